//! Loading the objects of `bpf/*.bpf.c`: the one program of each, over the memory it shares with us.

use super::bpf::{self, RunBy};
use super::walk::WalkError;
use aya_obj::btf::{Btf, BtfFeatures};
use aya_obj::{Features, Object};
use std::os::fd::{AsFd, OwnedFd};

fn misfit(error: &dyn std::fmt::Display) -> WalkError {
    WalkError::Object(error.to_string())
}

/// Loads the program `name` of the object in `bytes` into the kernel; `shared` is the descriptor of the map that holds
/// its variables.
pub fn load(bytes: &[u8], name: &'static str, shared: i32) -> Result<OwnedFd, WalkError> {
    load_as(bytes, name, shared, RunBy::Us)
}

/// The same of one that is to be attached to a tracepoint.
pub fn load_tracepoint(bytes: &[u8], name: &'static str, shared: i32) -> Result<OwnedFd, WalkError> {
    load_as(bytes, name, shared, RunBy::Tracepoint)
}

fn load_as(bytes: &[u8], name: &'static str, shared: i32, run_by: RunBy) -> Result<OwnedFd, WalkError> {
    let mut object = Object::parse(bytes).map_err(|e| misfit(&e))?;
    // All of these came before 5.17, which the programs need anyway; the object uses none of the newer kinds.
    let features = BtfFeatures::new(true, true, true, true, false, false, false, false);
    let btf = object
        .fixup_and_sanitize_btf(&features)
        .map_err(|e| misfit(&e))?
        .map(Btf::to_bytes)
        .ok_or_else(|| misfit(&"it carries no type information"))?;
    let refused =
        |source| WalkError::Refused { what: "the programs' type information", source, log: String::new() };
    let btf = bpf::load_btf(&btf).map_err(refused)?;

    let text: std::collections::HashSet<usize> =
        object.functions.keys().map(|(section, _)| *section).collect();
    let maps = std::mem::take(&mut object.maps);
    object
        .relocate_maps(maps.iter().map(|(name, m)| (name.as_str(), shared, m)), &text)
        .map_err(|e| misfit(&e))?;
    object.relocate_calls(&text).map_err(|e| misfit(&e))?;
    object.sanitize_functions(&Features::new(true, true, true, true, true, true, true, Some(features)));

    let program = object.programs.get(name).ok_or_else(|| misfit(&format!("no program named {name}")))?;
    let function = object.functions.get(&program.function_key());
    let function = function.ok_or_else(|| misfit(&format!("no code for {name}")))?;
    let func_info = function.func_info.func_info_bytes();
    let program = bpf::Program {
        insns: &function.instructions,
        license: &object.license,
        btf: btf.as_fd(),
        func_info: &func_info,
        func_info_rec_size: function.func_info_rec_size,
        func_info_cnt: function.func_info.len(),
    };
    bpf::load_program(&program, run_by).map_err(|(source, log)| WalkError::Refused {
        what: name,
        source,
        log: if log.is_empty() { log } else { format!("\n{log}") },
    })
}

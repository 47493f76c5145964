//! Loading the objects of `bpf/*.bpf.c`: relocated against the running kernel's type information, the programs of each
//! loaded over one shared array.

use super::bpf;
use super::walk::WalkError;
use aya_obj::btf::{Btf, BtfFeatures};
use aya_obj::{Features, Object};
use std::os::fd::{AsFd, OwnedFd};

/// An object, relocated.
pub struct Loaded {
    object: Object,
    btf: OwnedFd,
}

fn misfit(error: &dyn std::fmt::Display) -> WalkError {
    WalkError::Object(error.to_string())
}

impl Loaded {
    /// Parses the object in `bytes` and relocates it; `map` is the descriptor of its one map.
    pub fn new(bytes: &[u8], map: i32) -> Result<Self, WalkError> {
        let kernel = Btf::from_sys_fs().map_err(|e| WalkError::NoBtf(e.to_string()))?;
        let mut object = Object::parse(bytes).map_err(|e| misfit(&e))?;
        // All of these came before 5.17, which the programs need anyway; the object uses none of the newer kinds.
        let features = BtfFeatures::new(true, true, true, true, false, false, false, false);
        let btf = object
            .fixup_and_sanitize_btf(&features)
            .map_err(|e| misfit(&e))?
            .map(Btf::to_bytes)
            .ok_or_else(|| misfit(&"it carries no type information"))?;
        let refused = |what| move |source| WalkError::Refused { what, source, log: String::new() };
        let btf = bpf::load_btf(&btf).map_err(refused("the programs' type information"))?;
        object.relocate_btf(&kernel).map_err(|e| misfit(&e))?;

        let text: std::collections::HashSet<usize> =
            object.functions.keys().map(|(section, _)| *section).collect();
        let maps = object.maps.clone();
        object
            .relocate_maps(maps.iter().map(|(name, m)| (name.as_str(), map, m)), &text)
            .map_err(|e| misfit(&e))?;
        object.relocate_calls(&text).map_err(|e| misfit(&e))?;
        object.sanitize_functions(&Features::new(true, true, true, true, true, true, true, Some(features)));
        Ok(Self { object, btf })
    }

    /// Loads the program `name` into the kernel.
    pub fn program(&self, name: &'static str) -> Result<OwnedFd, WalkError> {
        let program =
            self.object.programs.get(name).ok_or_else(|| misfit(&format!("no program named {name}")))?;
        let function = self.object.functions.get(&program.function_key());
        let function = function.ok_or_else(|| misfit(&format!("no code for {name}")))?;
        let func_info = function.func_info.func_info_bytes();
        bpf::load_syscall_program(&bpf::Program {
            insns: &function.instructions,
            license: &self.object.license,
            btf: self.btf.as_fd(),
            func_info: &func_info,
            func_info_rec_size: function.func_info_rec_size,
            func_info_cnt: function.func_info.len(),
        })
        .map_err(|(source, log)| WalkError::Refused {
            what: name,
            source,
            log: if log.is_empty() { log } else { format!("\n{log}") },
        })
    }
}

//! `isotherm scheme convert`.

use crate::args::SchemeConvertArgs;
use crate::report::print;
use anyhow::{Context, bail};
use isotherm_schemes::{parse, write};
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

/// Runs the command.
///
/// # Errors
/// What is wrong with the input, what is lost where nothing may be, and those of the output.
pub fn run(args: &SchemeConvertArgs) -> anyhow::Result<ExitCode> {
    let source = &args.schemes.schemes;
    let file = super::load(source, args.schemes.from)?;
    for remark in &file.remarks {
        say!("isotherm: {source}: {remark}");
    }
    let (text, losses) = write(&file.entries, args.to);
    for loss in &losses {
        say!("isotherm: {} cannot say all: {loss}", args.to);
    }
    if args.strict && !losses.is_empty() {
        bail!("nothing was written, since {} cannot say all of it (--strict)", args.to);
    }
    match &args.output {
        Some(path) if path.as_os_str() != "-" => save(path, &text)?,
        _ => print(|out| out.write_all(text.as_bytes()))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Replaces a scheme file or nothing.
fn save(path: &Path, text: &str) -> anyhow::Result<()> {
    let shown = path.display();
    if path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.len() > 0) {
        let is_scheme_file = std::fs::read_to_string(path).is_ok_and(|text| parse(&text, None).is_ok());
        if !is_scheme_file {
            bail!(
                "{shown} exists and no schemes can be read from it; it is left as it is (remove it, or choose another name)"
            );
        }
    }
    // A device or a pipe is written in place.
    if path.metadata().is_ok_and(|metadata| !metadata.is_file()) {
        return std::fs::write(path, text).with_context(|| format!("cannot write {shown}"));
    }
    let target = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let mut name = target.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.partial", std::process::id()));
    let draft = target.with_file_name(name);
    let written = std::fs::write(&draft, text).and_then(|()| std::fs::rename(&draft, &target));
    written
        .inspect_err(|_| drop(std::fs::remove_file(&draft)))
        .with_context(|| format!("cannot write {shown}"))
}

//! `isotherm scheme`: scheme files, what schemes would do, and doing it.

mod apply;
mod check;
mod convert;
mod trial;

use crate::args::SchemeCommand;
use anyhow::{Context, bail};
use isotherm_schemes::{Format, SchemeFile, parse, presets};
use std::io::Read;
use std::path::Path;
use std::process::ExitCode;

/// Runs one of the commands.
///
/// # Errors
/// What went wrong, in words for the person who asked.
pub fn run(command: SchemeCommand) -> anyhow::Result<ExitCode> {
    match command {
        SchemeCommand::Check(args) => check::run(&args),
        SchemeCommand::Convert(args) => convert::run(&args),
        SchemeCommand::Try(args) => trial::run(&args),
        SchemeCommand::Apply(args) => apply::run(*args),
    }
}

/// More than this is no scheme file, and nothing is gained by reading on.
const LARGEST: u64 = 16 << 20;

/// The schemes of a file or a preset.
///
/// # Errors
/// There is neither, the file cannot be read, or all that is wrong with it.
pub fn load(source: &str, from: Option<Format>) -> anyhow::Result<SchemeFile> {
    if presets::is_preset(source) {
        let entries = presets::preset(source)?;
        return Ok(SchemeFile { entries, format: Format::Toml, remarks: Vec::new() });
    }
    let text = read(source)?;
    parse(&text, from).with_context(|| format!("{source} is not valid"))
}

fn read(source: &str) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    if source == "-" {
        std::io::stdin()
            .lock()
            .take(LARGEST + 1)
            .read_to_end(&mut bytes)
            .context("cannot read standard input")?;
    } else {
        let path = Path::new(source);
        let missing = || {
            let names: Vec<&str> = presets::PRESETS.iter().map(|preset| preset.name).collect();
            format!(
                "there is no scheme file {source}, and no preset of that name; presets are {}",
                names.join(", ")
            )
        };
        if !path.exists() {
            bail!(missing());
        }
        let file = std::fs::File::open(path).with_context(|| format!("cannot open {source}"))?;
        file.take(LARGEST + 1).read_to_end(&mut bytes).with_context(|| format!("cannot read {source}"))?;
    }
    if bytes.len() as u64 > LARGEST {
        bail!("{source} is larger than 16 MiB, which no scheme file is");
    }
    match String::from_utf8(bytes) {
        Ok(text) => Ok(text),
        Err(_) => bail!("{source} is not a text, so it is no scheme file"),
    }
}

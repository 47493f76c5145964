//! `isotherm scheme check`.

use crate::args::CheckArgs;
use crate::report::{print, print_json};
use isotherm_schemes::{Entry, Format, JSON_SCHEMA, explain, presets, write};
use serde::Serialize;
use std::io::Write;
use std::process::ExitCode;

/// A scheme in JSON.
#[derive(Serialize)]
struct Checked {
    name: Option<String>,
    line: Option<usize>,
    action: &'static str,
    explanation: String,
    toml: String,
}

/// Runs the command.
///
/// # Errors
/// What is wrong with the file.
pub fn run(args: &CheckArgs) -> anyhow::Result<ExitCode> {
    if args.json_schema {
        print(|out| out.write_all(JSON_SCHEMA.as_bytes()))?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.presets {
        print_presets()?;
        return Ok(ExitCode::SUCCESS);
    }
    let Some(source) = &args.schemes else {
        misuse!("name a scheme file or a preset; see isotherm scheme check --help")
    };
    let file = super::load(&source.schemes, source.from)?;
    for remark in &file.remarks {
        say!("isotherm: {}: {remark}", source.schemes);
    }
    if args.json {
        let checked: Vec<Checked> = file.entries.iter().map(checked).collect();
        print_json(&checked, true)?;
    } else {
        print(|out| {
            file.entries
                .iter()
                .enumerate()
                .try_for_each(|(at, entry)| writeln!(out, "{}: {}", entry.title(at), explain(entry)))
        })?;
    }
    Ok(ExitCode::SUCCESS)
}

fn checked(entry: &Entry) -> Checked {
    Checked {
        name: entry.name.clone(),
        line: entry.line,
        action: entry.scheme.action.name(),
        explanation: explain(entry),
        toml: write(std::slice::from_ref(entry), Format::Toml).0,
    }
}

fn print_presets() -> anyhow::Result<()> {
    print(|out| {
        for preset in presets::PRESETS {
            writeln!(out, "{}: {}", preset.name, preset.about)?;
            for parameter in preset.parameters {
                let given = format!("{}={}", parameter.name, parameter.default_text());
                writeln!(out, "  {given:<32}  {}", parameter.about)?;
            }
        }
        Ok(())
    })
}

//! `isotherm scheme check`.

use crate::args::CheckArgs;
use crate::report::{print, print_json};
use isotherm_damon::Attrs;
use isotherm_linux::schemes::Rule;
use isotherm_linux::schemes::preflight::{Finding, check_alone};
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
    /// What keeps it from doing that on this machine.
    warnings: Vec<String>,
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
    let found = found(&file.entries);
    if args.json {
        let entries = file.entries.iter().enumerate();
        let checked: Vec<Checked> = entries.map(|(at, entry)| checked(entry, at, &found)).collect();
        print_json(&checked, true)?;
    } else {
        found.iter().for_each(|finding| say!("isotherm: {finding}"));
        print(|out| {
            file.entries
                .iter()
                .enumerate()
                .try_for_each(|(at, entry)| writeln!(out, "{}: {}", entry.title(at), explain(entry)))
        })?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What would keep the schemes from doing what they say on this machine. They may be meant for another one, so nothing is refused.
fn found(entries: &[Entry]) -> Vec<Finding> {
    let rule = |(at, entry): (usize, &Entry)| Rule {
        name: entry.title(at),
        scheme: entry.scheme.clone(),
        max_refault_rate: None,
        max_pressure: entry.guard.max_psi_bp.map(|bp| f64::from(bp) / 100.0),
    };
    let rules: Vec<Rule> = entries.iter().enumerate().map(rule).collect();
    check_alone(&rules, &Attrs::default())
}

fn checked(entry: &Entry, at: usize, found: &[Finding]) -> Checked {
    let title = entry.title(at);
    let own = found.iter().filter(|finding| finding.scheme == title);
    let warning = |finding: &Finding| Finding { scheme: String::new(), ..finding.clone() }.to_string();
    Checked {
        warnings: own.map(warning).collect(),
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

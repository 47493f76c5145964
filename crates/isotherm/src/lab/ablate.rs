//! `isotherm lab ablate`.

use super::experiment::{Report, print, stop_on_signals};
use crate::args::AblateArgs;
use isotherm_damon::{Constant, Tuning};
use isotherm_lab::Watch;
use isotherm_lab::ablate::{Ablations, Pattern, Setup, constant, constants_table, pattern, table};
use std::process::ExitCode;

/// Simulates with all constants that are asked for changed, one after the other.
///
/// # Errors
/// There is no such constant or pattern; it cannot be printed.
pub fn run(args: &AblateArgs) -> anyhow::Result<ExitCode> {
    let mut constants: Vec<&Constant> = Vec::new();
    for name in &args.names {
        match constant(name) {
            Ok(found) if constants.iter().any(|c| c.name == found.name) => {}
            Ok(found) => constants.push(found),
            Err(near) => {
                misuse!("there is no constant {name:?}; nearest: {}; --list shows all", near.join(", "))
            }
        }
    }
    if constants.is_empty() {
        constants.extend(Tuning::CONSTANTS);
    }
    if args.list {
        print(&constants_table(constants))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut patterns: Vec<Pattern> = Vec::new();
    for name in &args.pattern {
        match pattern(name) {
            Ok(found) if patterns.contains(&found) => {}
            Ok(found) => patterns.push(found),
            Err(near) => misuse!("there is no pattern {name:?}; nearest: {}", near.join(", ")),
        }
    }
    if patterns.is_empty() {
        patterns.extend(Pattern::ALL);
    }
    let setup = Setup { seeds: args.seeds, factor: args.factor };
    let mut progress = |line: &str| say!("lab ablate: {line}");
    let mut watch = Watch { stop: stop_on_signals()?, progress: &mut progress };
    let mut results = Ablations::default();
    let outcome = results.simulate(&constants, &patterns, setup, &mut watch);
    let report = Report { setup, ok: None, interrupted: outcome.is_err(), results };
    report.tell("ablate", args.json, |report| table(&report.results, args.details), outcome)
}

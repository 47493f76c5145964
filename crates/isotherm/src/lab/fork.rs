//! `isotherm lab fork`.

use super::experiment::{Report, stop_on_signals};
use crate::args::ForkArgs;
use anyhow::bail;
use isotherm_lab::fork::{Error, Fork, GIB, Setup, table};
use isotherm_lab::{Bar, Watch};
use serde::Serialize;
use std::process::ExitCode;

#[derive(Serialize)]
struct Found {
    #[serde(flatten)]
    results: Fork,
    bars: Vec<Bar>,
}

/// Measures all layouts.
///
/// # Errors
/// There is no memory to measure with, or the system refuses to fork.
pub fn run(args: &ForkArgs) -> anyhow::Result<ExitCode> {
    let setup = Setup { runs: args.runs, mib: args.size.unwrap_or(GIB) };
    if let Some(why) = setup.shortage() {
        bail!("{why}; free some, or give a smaller --size");
    }
    let mut results = Fork::default();
    let mut progress = |line: &str| say!("lab fork: {line}");
    let mut watch = Watch { stop: stop_on_signals()?, progress: &mut progress };
    let outcome = results.measure(&setup, &mut watch);
    let bars = results.bars();
    let report = Report {
        // Bars are for 1 GiB.
        ok: (outcome.is_ok() && setup.mib == GIB).then(|| bars.iter().all(|bar| bar.met)),
        interrupted: matches!(outcome, Err(Error::Interrupted(_))),
        setup,
        results: Found { results, bars },
    };
    report.tell("fork", args.json, |report| table(&report.results.results, &setup), outcome)
}

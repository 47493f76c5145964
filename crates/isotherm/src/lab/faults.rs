//! `isotherm lab faults`.

use super::experiment::{Report, stop_on_signals};
use crate::args::FaultsArgs;
use isotherm_lab::faults::{Error, Faults, Setup, bars, table};
use isotherm_lab::{Bar, Watch};
use serde::Serialize;
use std::process::ExitCode;

#[derive(Serialize)]
struct Found {
    faults: Vec<Faults>,
    bars: Vec<Bar>,
}

/// Measures one thread, and two if there are CPUs for them.
///
/// # Errors
/// There is no memory to measure with, or the memory manager failed.
pub fn run(args: &FaultsArgs) -> anyhow::Result<ExitCode> {
    let setup = Setup { rounds: args.rounds, slice: args.slice };
    let mut progress = |line: &str| say!("lab faults: {line}");
    let mut watch = Watch { stop: stop_on_signals()?, progress: &mut progress };
    let cpus = std::thread::available_parallelism().map_or(1, Into::into);
    if cpus < 2 {
        say!("lab faults: skipped: two threads: this process may use one CPU only");
    }
    let (faults, outcome) = match Faults::measure(cpus.min(2), &setup, &mut watch) {
        Ok(faults) => (faults, Ok(())),
        Err(error) => (Vec::new(), Err(error)),
    };
    let bars = bars(&faults);
    let report = Report {
        ok: (outcome.is_ok() && cpus > 1).then(|| bars.iter().all(|bar| bar.met)),
        interrupted: matches!(outcome, Err(Error::Interrupted(_))),
        setup,
        results: Found { faults, bars },
    };
    report.tell("faults", args.json, |report| table(&report.results.faults), outcome)
}

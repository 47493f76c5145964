//! `isotherm lab faults`.

use super::experiment::{Report, stop_on_signals};
use crate::args::{FaultsArgs, FaultsPart};
use isotherm_lab::faults::{Error, Part, Results, Setup, table};
use isotherm_lab::{Bar, Watch};
use serde::Serialize;
use std::process::ExitCode;

#[derive(Serialize)]
struct Found {
    #[serde(flatten)]
    results: Results,
    bars: Vec<Bar>,
}

/// Measures all parts, or the one that is asked for: by one thread, and by more if there are CPUs for them.
///
/// # Errors
/// There is no memory to measure with, the memory manager failed, or Linux refused a system call of its side.
pub fn run(args: &FaultsArgs) -> anyhow::Result<ExitCode> {
    let setup = Setup { rounds: args.rounds, slice: args.slice };
    let mut progress = |line: &str| say!("lab faults: {line}");
    let mut watch = Watch { stop: stop_on_signals()?, progress: &mut progress };
    let cpus = std::thread::available_parallelism().map_or(1, Into::into);
    if cpus < 2 {
        say!("lab faults: skipped: two threads: this process may use one CPU only");
    }
    let parts: Vec<Part> = args.only.map_or(Part::ALL.to_vec(), |only| vec![part(only)]);
    let mut results = Results::default();
    let outcome: Result<(), Error> =
        parts.into_iter().try_for_each(|part| results.measure(part, cpus.min(MOST), &setup, &mut watch));
    let bars = results.bars();
    let complete = args.only.is_none() && outcome.is_ok() && cpus > 1;
    let report = Report {
        ok: complete.then(|| bars.iter().all(|bar| bar.met)),
        interrupted: matches!(outcome, Err(Error::Interrupted(_))),
        setup,
        results: Found { results, bars },
    };
    report.tell("faults", args.json, |report| table(&report.results.results), outcome)
}

/// Threads, for which the experiment has CPUs' caches.
const MOST: usize = 15;

const fn part(part: FaultsPart) -> Part {
    match part {
        FaultsPart::Own => Part::Faults,
        FaultsPart::Storm => Part::Storm,
        FaultsPart::Price => Part::Price,
        FaultsPart::Linux => Part::Beside,
    }
}

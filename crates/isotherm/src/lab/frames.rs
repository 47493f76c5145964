//! `isotherm lab frames`.

use super::experiment::{Report, stop_on_signals};
use crate::args::{FramesArgs, FramesPart};
use isotherm_lab::frames::{
    Ceiling, Cost, Error, FaultLoops, Frames, Setup, Sink, Throughput, conclusion, table,
};
use isotherm_lab::{Bar, Watch};
use serde::Serialize;
use std::process::ExitCode;

#[derive(Serialize)]
struct Found {
    #[serde(flatten)]
    results: Frames,
    /// Which way to give memory back; null when that was not measured.
    conclusion: Option<String>,
    bars: Vec<Bar>,
}

/// Measures all parts, or the one that is asked for.
///
/// # Errors
/// There is no memory to measure with.
pub fn run(args: &FramesArgs) -> anyhow::Result<ExitCode> {
    let setup = Setup { rounds: args.rounds, slice: args.slice };
    let mut progress = |line: &str| say!("lab frames: {line}");
    let mut watch = Watch { stop: stop_on_signals()?, progress: &mut progress };
    let cpus = std::thread::available_parallelism().map_or(1, Into::into);
    if cpus < 2 {
        say!("lab frames: skipped: two threads: this process may use one CPU only");
    }
    let mut results = Frames::default();
    let outcome = measure(args.only, cpus, &setup, &mut watch, &mut results);
    let bars = results.bars();
    let complete = args.only.is_none() && outcome.is_ok() && cpus > 1;
    let report = Report {
        ok: complete.then(|| bars.iter().all(|bar| bar.met)),
        interrupted: matches!(outcome, Err(Error::Interrupted(_))),
        setup,
        results: Found { conclusion: conclusion(&results.sinks), results, bars },
    };
    report.tell("frames", args.json, |report| table(&report.results.results), outcome)
}

fn measure(
    only: Option<FramesPart>,
    cpus: usize,
    setup: &Setup,
    watch: &mut Watch<'_>,
    results: &mut Frames,
) -> Result<(), Error> {
    let wanted = |part| only.is_none_or(|only| only == part);
    if wanted(FramesPart::Throughput) {
        if cpus > 1 {
            results.ceilings = Ceiling::measure(setup, watch)?;
        }
        results.throughput = Throughput::measure(cpus.min(2), setup, watch)?;
    }
    if wanted(FramesPart::Cost) {
        results.cost = Cost::measure(setup, watch)?;
    }
    if wanted(FramesPart::Faults) {
        results.fault_loops = FaultLoops::measure(setup, watch)?;
    }
    if wanted(FramesPart::Sinks) {
        results.sinks = Sink::measure(setup, watch)?;
    }
    Ok(())
}

//! `isotherm lab frames`.

use crate::args::{FramesArgs, FramesPart};
use crate::stop::Stop;
use anyhow::Context;
use isotherm_lab::frames::{Bar, Cost, Error, Frames, Setup, Sink, Throughput, Watch, conclusion, table};
use serde::Serialize;
use std::process::ExitCode;

#[derive(Serialize)]
struct Report<'a> {
    setup: Setup,
    #[serde(flatten)]
    results: &'a Frames,
    /// Which way to give memory back; null when that was not measured.
    conclusion: Option<String>,
    bars: Vec<Bar>,
    /// Whether all bars are met; null when a part was left out.
    ok: Option<bool>,
    /// Whether it was ended before everything was measured.
    interrupted: bool,
}

/// Measures all parts, or the one that is asked for.
///
/// # Errors
/// There is no memory to measure with.
pub fn run(args: &FramesArgs) -> anyhow::Result<ExitCode> {
    let setup = Setup { rounds: args.rounds, slice: args.slice };
    let stop = Stop::install().context("cannot catch Ctrl-C")?;
    let cpus = std::thread::available_parallelism().map_or(1, Into::into);
    if cpus < 2 {
        say!("lab frames: skipped: two threads: this process may use one CPU only");
    }
    let mut results = Frames::default();
    let outcome = measure(args.only, cpus, &setup, &stop, &mut results);
    let interrupted = matches!(outcome, Err(Error::Interrupted));
    let bars = results.bars();
    let complete = args.only.is_none() && outcome.is_ok() && cpus > 1;
    let ok = complete.then(|| bars.iter().all(|bar| bar.met));
    if args.json {
        let conclusion = conclusion(&results.sinks);
        let report = Report { setup, results: &results, conclusion, bars, ok, interrupted };
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{}", table(&results));
    }
    if interrupted {
        say!("lab frames: interrupted; what was measured until then is all there is");
        return Ok(ExitCode::from(130));
    }
    outcome?;
    Ok(if ok == Some(false) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn measure(
    only: Option<FramesPart>,
    cpus: usize,
    setup: &Setup,
    stop: &Stop,
    results: &mut Frames,
) -> Result<(), Error> {
    let wanted = |part| only.is_none_or(|only| only == part);
    let mut progress = |line: &str| say!("lab frames: {line}");
    let mut watch = Watch { stop: &|| stop.asked(), progress: &mut progress };
    if wanted(FramesPart::Throughput) {
        results.throughput = Throughput::measure(cpus.min(2), setup, &mut watch)?;
    }
    if wanted(FramesPart::Cost) {
        results.cost = Cost::measure(setup, &mut watch)?;
    }
    if wanted(FramesPart::Sinks) {
        results.sinks = Sink::measure(setup, &mut watch)?;
    }
    Ok(())
}

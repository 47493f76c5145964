//! `isotherm lab fork`.

use crate::args::ForkArgs;
use crate::stop::Stop;
use anyhow::Context;
use isotherm_lab::fork::{Bar, Error, Fork, Setup, Watch, table};
use serde::Serialize;
use std::process::ExitCode;

/// MiB that the bars hold for.
const GIB: u64 = 1024;

#[derive(Serialize)]
struct Report<'a> {
    setup: Setup,
    #[serde(flatten)]
    results: &'a Fork,
    bars: Vec<Bar>,
    /// Whether all bars are met; null when it was ended before, or is of another size than 1 GiB.
    ok: Option<bool>,
    /// Whether it was ended before everything was measured.
    interrupted: bool,
}

/// Measures all layouts.
///
/// # Errors
/// There is no memory to measure with, or the system refuses to fork.
pub fn run(args: &ForkArgs) -> anyhow::Result<ExitCode> {
    let setup = Setup { runs: args.runs, mib: args.size.unwrap_or(GIB) };
    let stop = Stop::install().context("cannot catch Ctrl-C")?;
    let mut results = Fork::default();
    let mut progress = |line: &str| say!("lab fork: {line}");
    let outcome = results.measure(&setup, &mut Watch { stop: &|| stop.asked(), progress: &mut progress });
    let interrupted = matches!(outcome, Err(Error::Interrupted));
    let bars = results.bars();
    let ok = (outcome.is_ok() && setup.mib == GIB).then(|| bars.iter().all(|bar| bar.met));
    if args.json {
        let report = Report { setup, results: &results, bars, ok, interrupted };
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{}", table(&results));
    }
    if interrupted {
        say!("lab fork: interrupted; what was measured until then is all there is");
        return Ok(ExitCode::from(130));
    }
    outcome?;
    Ok(if ok == Some(false) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

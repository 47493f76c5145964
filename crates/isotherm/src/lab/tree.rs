//! `isotherm lab tree`.

use super::experiment::{Report, stop_on_signals};
use crate::args::{TreeArgs, TreePart};
use isotherm_lab::tree::{Error, JUDGED, Setup, Tree, table};
use isotherm_lab::{Bar, Watch};
use serde::Serialize;
use std::process::ExitCode;

#[derive(Serialize)]
struct Found {
    #[serde(flatten)]
    results: Tree,
    bars: Vec<Bar>,
}

/// Measures both parts, or the one that is asked for.
///
/// # Errors
/// There is no memory to measure with.
pub fn run(args: &TreeArgs) -> anyhow::Result<ExitCode> {
    let setup = Setup { ranges: args.ranges.clone(), rounds: args.rounds, slice: args.slice };
    let mut progress = |line: &str| say!("lab tree: {line}");
    let mut watch = Watch { stop: stop_on_signals()?, progress: &mut progress };
    let cpus = std::thread::available_parallelism().map_or(1, Into::into);
    let wanted = |part| args.only.is_none_or(|only| only == part);
    let readers = wanted(TreePart::Readers);
    if readers && cpus < 2 {
        say!("lab tree: skipped: a second reader, and a writer: this process may use one CPU only");
    }
    let mut results = Tree::default();
    let outcome = results.measure(wanted(TreePart::Operations), readers.then_some(cpus), &setup, &mut watch);
    let bars = results.bars();
    let complete = args.only.is_none() && outcome.is_ok() && cpus > 1 && setup.ranges.contains(&JUDGED);
    let report = Report {
        ok: complete.then(|| bars.iter().all(|bar| bar.met)),
        interrupted: matches!(outcome, Err(Error::Interrupted(_))),
        setup,
        results: Found { results, bars },
    };
    report.tell("tree", args.json, |report| table(&report.results.results), outcome)
}

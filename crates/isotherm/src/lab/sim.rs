//! `isotherm lab sim`.

use super::experiment::{Report, stop_on_signals};
use crate::args::SimArgs;
use isotherm_lab::sim::{Results, Setup, table};
use isotherm_lab::{Watch, faults};
use std::process::ExitCode;

/// Measures what locks cost, and runs the model with that.
///
/// # Errors
/// There are no two CPUs to measure on, or no memory.
pub fn run(args: &SimArgs) -> anyhow::Result<ExitCode> {
    let cpus = std::thread::available_parallelism().map_or(1, Into::into);
    let given = args.costs.as_deref().map(read).transpose()?;
    if given.is_none() && cpus < 2 {
        anyhow::bail!(
            "what a cache line costs that another CPU wrote is measured with two CPUs, and this process may use one only; \
             give --costs FILE, as a run with --json elsewhere prints them"
        );
    }
    let setup = Setup { seed: args.seed, costs: faults::Setup { rounds: args.rounds, slice: args.slice } };
    let mut progress = |line: &str| say!("lab sim: {line}");
    let mut watch = Watch { stop: stop_on_signals()?, progress: &mut progress };
    let mut results = Results::default();
    let outcome = results.measure(given, &setup, &mut watch);
    let interrupted = matches!(outcome, Err(faults::Error::Interrupted(_)));
    let report = Report { ok: None, interrupted, setup, results };
    report.tell("sim", args.json, |report| table(&report.results), outcome)
}

/// Costs from a report of an earlier run.
fn read(path: &std::path::Path) -> anyhow::Result<faults::Costs> {
    use anyhow::Context;
    let named = || path.display().to_string();
    let text = std::fs::read_to_string(path).with_context(named)?;
    let report: serde_json::Value = serde_json::from_str(&text).with_context(named)?;
    let costs = report.get("costs").filter(|costs| !costs.is_null());
    let costs = costs
        .with_context(|| format!("{}: no costs: give what `isotherm lab sim --json` printed", named()))?;
    let costs: faults::Costs = serde_json::from_value(costs.clone()).with_context(named)?;
    anyhow::ensure!(costs.are_positive(), "{}: costs are ns, 0 or more, and a fault takes some", named());
    Ok(costs)
}

//! `isotherm lab sim`.

use super::experiment::{Report, stop_on_signals};
use crate::args::SimArgs;
use isotherm_lab::sim::{self, Accuracies, Patterns, Sampling, cores};
use isotherm_lab::{Watch, faults};
use isotherm_workloads::Plan;
use std::process::ExitCode;

/// Patterns that are run unless others are named, and those that have a bar of accuracy.
const PATTERNS: [&str; 3] = ["stairs", "zigzag", "hotspot"];
const JUDGED: [&str; 8] = ["stairs", "zigzag", "hotspot", "heap", "threads", "front", "sweep", "zipf"];

/// Runs patterns on the model machine, or the model of cores.
///
/// # Errors
/// A pattern cannot be carried out; with `--cores` there are no two CPUs to measure on; or no memory.
pub fn run(args: &SimArgs) -> anyhow::Result<ExitCode> {
    if args.cores {
        return on_cores(args);
    }
    let (setup, plans) = prepare(args)?;
    let mut progress = |line: &str| say!("lab sim: {line}");
    let mut watch = Watch { stop: stop_on_signals()?, progress: &mut progress };
    if args.accuracy {
        let mut results = Accuracies::default();
        let outcome = results.measure(&setup, &plans, &mut watch);
        let interrupted = matches!(outcome, Err(sim::Error::Interrupted(_)));
        let report = Report { ok: results.ok(), interrupted, setup, results };
        return report.tell("sim", args.json, |report| sim::accuracy_table(&report.results), outcome);
    }
    let mut results = Patterns::default();
    let outcome = results.measure(&setup, &plans, &mut watch);
    let interrupted = matches!(outcome, Err(sim::Error::Interrupted(_)));
    let report = Report { ok: None, interrupted, setup, results };
    report.tell("sim", args.json, |report| sim::table(&report.results), outcome)
}

/// What is to be run.
fn prepare(args: &SimArgs) -> anyhow::Result<(sim::Setup, Vec<Plan>)> {
    let default: &[&str] = if args.accuracy { &JUDGED } else { &PATTERNS };
    let patterns = if args.patterns.is_empty() {
        default.iter().map(|name| (*name).to_owned()).collect()
    } else {
        args.patterns.clone()
    };
    let setup = sim::Setup {
        patterns,
        set: args.set.clone(),
        scale_time: args.scale_time,
        seed: args.seed,
        prcl: format!("prcl:min_age={}us", args.min_age.as_micros()),
        samplers: args.sampler.map_or(Sampling::ALL.to_vec(), |one| vec![one.sampling()]),
    };
    let mut plans = Vec::new();
    for pattern in &setup.patterns {
        match setup.plan(pattern) {
            Err(error) if error.is_misuse() => misuse!("{error}"),
            plan => plans.push(plan?),
        }
    }
    Ok((setup, plans))
}

/// Measures what locks cost, and runs the model of cores with that.
fn on_cores(args: &SimArgs) -> anyhow::Result<ExitCode> {
    let cpus = std::thread::available_parallelism().map_or(1, Into::into);
    let given = args.costs.as_deref().map(read).transpose()?;
    if given.is_none() && cpus < 2 {
        anyhow::bail!(
            "what a cache line costs that another CPU wrote is measured with two CPUs, and this process may use one only; \
             give --costs FILE, as a run with --json elsewhere prints them"
        );
    }
    let setup =
        cores::Setup { seed: args.seed, costs: faults::Setup { rounds: args.rounds, slice: args.slice } };
    let mut progress = |line: &str| say!("lab sim: {line}");
    let mut watch = Watch { stop: stop_on_signals()?, progress: &mut progress };
    let mut results = cores::Results::default();
    let outcome = results.measure(given, &setup, &mut watch);
    let interrupted = matches!(outcome, Err(faults::Error::Interrupted(_)));
    let report = Report { ok: None, interrupted, setup, results };
    report.tell("sim", args.json, |report| cores::table(&report.results), outcome)
}

/// Costs from a report of an earlier run.
fn read(path: &std::path::Path) -> anyhow::Result<faults::Costs> {
    use anyhow::Context;
    let named = || path.display().to_string();
    let text = std::fs::read_to_string(path).with_context(named)?;
    let report: serde_json::Value = serde_json::from_str(&text).with_context(named)?;
    let costs = report.get("costs").filter(|costs| !costs.is_null());
    let costs = costs.with_context(|| {
        format!("{}: no costs: give what `isotherm lab sim --cores --json` printed", named())
    })?;
    let costs: faults::Costs = serde_json::from_value(costs.clone()).with_context(named)?;
    anyhow::ensure!(costs.are_positive(), "{}: costs are ns, 0 or more, and a fault takes some", named());
    Ok(costs)
}

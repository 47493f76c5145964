//! `isotherm lab`.

mod experiment;
pub mod fork;
pub mod frames;
pub mod overcommit;

use crate::args::{AccuracyArgs, OverheadArgs};
use crate::stop::Stop;
use anyhow::{Context, bail};
use clap::ValueEnum;
use experiment::interrupted;
use isotherm_lab::accuracy::{Options, summary_table};
use isotherm_lab::live::{Bench, Subject};
use isotherm_lab::live_overhead::{Interrupted, MemoryBound, OverheadRun, Schedule, shortage, table};
use isotherm_report::units::format_size;
use serde::Serialize;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

/// Patterns that `lab accuracy` runs unless told otherwise: those with a truth worth comparing.
const PATTERNS: [&str; 6] = ["stairs", "zigzag", "hotspot", "rates", "heap", "threads"];

/// `isotherm lab accuracy`.
///
/// # Errors
/// When a run fails.
pub fn accuracy(args: &AccuracyArgs) -> anyhow::Result<ExitCode> {
    args.monitor.attrs()?;
    if let Some(keep) = &args.keep {
        std::fs::create_dir_all(keep)
            .with_context(|| format!("cannot make the directory {}", keep.display()))?;
    }
    let bench = Bench {
        isotherm: std::env::current_exe().context("cannot find this program's own file")?,
        monitor: args.monitor.to_options(),
        keep: args.keep.clone(),
    };
    let patterns: Vec<String> = if args.patterns.is_empty() {
        PATTERNS.iter().map(|p| (*p).to_owned()).collect()
    } else {
        args.patterns.clone()
    };
    let mut options: Vec<String> = args.set.iter().flat_map(|s| ["--set".to_owned(), s.clone()]).collect();
    if let Some(factor) = args.scale_time {
        options.extend(["--scale-time".to_owned(), factor.to_string()]);
    }
    let mut runs = Vec::new();
    for _ in 0..args.runs.max(1) {
        for pattern in &patterns {
            for page in &args.pages {
                eprintln!("lab accuracy: {pattern}, {page} pages ...");
                let subject =
                    Subject { pattern: pattern.clone(), page: Some(page.clone()), options: options.clone() };
                let run = bench.accuracy(&subject, Options::default())?;
                if args.details {
                    println!("{}", run.accuracy.details());
                }
                eprintln!(
                    "  F1 {}, monitor {:.2} % of a CPU, {:.0} clears a second, at most {} checks a sample, {:.1} bytes a region",
                    run.accuracy.score.f1.map_or("-".into(), |f| format!("{f:.4}")),
                    run.cpu_share * 100.0,
                    run.clears_per_second,
                    run.max_checks_per_sample,
                    run.bytes_per_region
                );
                runs.push(run);
            }
        }
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&runs)?);
    } else {
        let verdicts: Vec<_> = runs.iter().map(|r| r.accuracy.clone()).collect();
        print!("{}", summary_table(&verdicts));
    }
    Ok(ExitCode::SUCCESS)
}

/// The shortest slice that holds enough work and one account of the monitor's cost.
const SHORTEST_SLICE: Duration = Duration::from_millis(500);

/// What `lab overhead` found, as JSON.
#[derive(Serialize)]
struct OverheadReport {
    results: Vec<OverheadRun>,
    skipped: Vec<Skipped>,
    /// Whether it was ended before everything was measured.
    interrupted: bool,
}

/// A workload that was not run.
#[derive(Serialize)]
struct Skipped {
    #[serde(flatten)]
    workload: MemoryBound,
    reason: String,
}

/// `isotherm lab overhead`.
///
/// # Errors
/// When a run fails, or none was possible.
pub fn overhead(args: &OverheadArgs) -> anyhow::Result<ExitCode> {
    let attrs = args.monitor.attrs()?;
    let least = SHORTEST_SLICE.max(attrs.aggr.saturating_mul(2));
    if args.slice < least {
        bail!("--slice {:?} is too short to tell anything; the least is {least:?} here", args.slice);
    }
    let stop = Stop::install().context("cannot catch Ctrl-C")?;
    let bench = Bench {
        isotherm: std::env::current_exe().context("cannot find this program's own file")?,
        monitor: args.monitor.to_options(),
        keep: None,
    };
    let schedule = Schedule {
        pairs: args.pairs,
        slice: args.slice,
        settle: args.settle,
        warm_up: args.warm_up,
        null: args.null,
    };
    let mut report = OverheadReport { results: Vec::new(), skipped: Vec::new(), interrupted: false };
    for workload in workloads(args) {
        if stop.asked() {
            break;
        }
        let named = format!("{}, {}, {} pages", format_size(workload.bytes), workload.kind, workload.page);
        if let Some(reason) = shortage(workload.bytes) {
            say!("lab overhead: {named}: skipped: {reason}");
            report.skipped.push(Skipped { workload, reason });
            continue;
        }
        match measure(&bench, &workload, &schedule, &named, &stop) {
            Ok(run) => report.results.push(run),
            Err(error) if error.is::<Interrupted>() => break,
            Err(error) => {
                // What was measured before it took minutes.
                tell_overhead(&report, args.json)?;
                return Err(error.context(named));
            }
        }
    }
    report.interrupted = stop.asked();
    tell_overhead(&report, args.json)?;
    if report.interrupted {
        return Ok(interrupted("overhead"));
    }
    Ok(if report.results.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn workloads(args: &OverheadArgs) -> Vec<MemoryBound> {
    let name = |value: Option<clap::builder::PossibleValue>| {
        value.map_or_else(String::new, |v| v.get_name().to_owned())
    };
    let mut all = Vec::new();
    for &page in &args.pages {
        for &kind in &args.kinds {
            all.extend(args.sizes.iter().map(|&bytes| MemoryBound {
                bytes,
                page: name(page.to_possible_value()),
                kind: name(kind.to_possible_value()),
            }));
        }
    }
    all
}

fn measure(
    bench: &Bench,
    workload: &MemoryBound,
    schedule: &Schedule,
    named: &str,
    stop: &Stop,
) -> anyhow::Result<OverheadRun> {
    say!("lab overhead: {named} ...");
    let live = std::io::stderr().is_terminal();
    let pairs = schedule.pairs;
    let mut progress = |done| {
        if live {
            say_on_the_line!("\r\x1b[K  pair {done} of {pairs}");
        }
    };
    let run = bench.overhead(workload, schedule, &|| stop.asked(), &mut progress);
    if live {
        say_on_the_line!("\r\x1b[K");
    }
    run
}

fn tell_overhead(report: &OverheadReport, json: bool) -> anyhow::Result<()> {
    if json {
        println!("{}", serde_json::to_string_pretty(report)?);
    } else if !report.results.is_empty() {
        print!("{}", table(&report.results));
    }
    Ok(())
}

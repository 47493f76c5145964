//! `isotherm lab`.

pub mod ablate;
mod experiment;
pub mod faults;
pub mod fork;
pub mod frames;
pub mod overcommit;
pub mod saving;
pub mod sim;
pub mod tree;

use crate::args::{AccuracyArgs, OverheadArgs, ReferenceName};
use crate::stop::Stop;
use anyhow::Context;
use clap::ValueEnum;
use experiment::{interrupted, print};
use isotherm_lab::accuracy::against::{Scan, Watched, against_table};
use isotherm_lab::accuracy::{AccuracyRun, Options, Subject, summary_table};
use isotherm_lab::machine::shortage;
use isotherm_lab::overhead::{MemoryBound, OverheadRun, Schedule, table};
use isotherm_lab::{Bench, Interrupted};
use isotherm_report::units::{format_size, format_time_exactly};
use isotherm_workloads::Pattern;
use serde::Serialize;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

/// Patterns that `lab accuracy` runs unless told otherwise: those with a truth worth comparing.
const PATTERNS: [&str; 14] = [
    "stairs", "zigzag", "hotspot", "rates", "heap", "threads", "front", "sweep", "zipf", "shm", "prefork",
    "bgsave", "swarm", "fft",
];

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
    if let Some(ReferenceName::Scan) = args.against {
        return against_scan(args, &bench);
    }
    let patterns: Vec<String> = if args.patterns.is_empty() {
        PATTERNS.iter().map(|p| (*p).to_owned()).collect()
    } else {
        args.patterns.clone()
    };
    for pattern in &patterns {
        check_pattern(pattern, &args.set)?;
    }
    let options = workload_options(&args.set, args.scale_time);
    let settle_ns = u64::try_from(args.settle.unwrap_or_default().as_nanos()).unwrap_or(u64::MAX);
    let judging = Options { settle_ns, ..Options::default() };
    let stop = experiment::stop()?;
    let mut runs = Vec::new();
    let subjects = patterns.iter().flat_map(|pattern| args.pages.iter().map(move |page| (pattern, page)));
    let all = (0..args.runs.max(1)).flat_map(|_| subjects.clone());
    for (pattern, page) in all {
        say!("lab accuracy: {pattern}, {page} pages ...");
        let subject =
            Subject { pattern: pattern.clone(), page: Some(page.clone()), options: options.clone() };
        match bench.accuracy(&subject, judging, &|| stop.asked()) {
            Ok(run) => {
                tell_accuracy(&run, args.details)?;
                runs.push(run);
            }
            Err(error) if error.is::<Interrupted>() => break,
            Err(error) => return Err(error.context(format!("{pattern}, {page} pages"))),
        }
    }
    if args.json {
        print(&(isotherm_report::json::to_string_pretty(&runs)? + "\n"))?;
    } else {
        print(&summary_table(&runs))?;
    }
    Ok(if stop.asked() { interrupted("accuracy") } else { ExitCode::SUCCESS })
}

/// What a monitor needs to find its way about a process of usual size.
const SETTLE: Duration = Duration::from_secs(5);

/// `isotherm lab accuracy --against scan`.
fn against_scan(args: &AccuracyArgs, bench: &Bench) -> anyhow::Result<ExitCode> {
    let stop = experiment::stop()?;
    let mut scan = Scan::new(&args.pid)?;
    let settle = args.settle.unwrap_or(SETTLE);
    let AccuracyArgs { duration, pass, pause, .. } = *args;
    let watched = Watched { pids: args.pid.clone(), settle, duration, pass, pause };
    say!(
        "lab accuracy: recording for {}, and scanning all pages for {} every {} ...",
        format_time_exactly(settle + duration),
        format_time_exactly(pass),
        format_time_exactly(pass + pause)
    );
    let run = match bench.against(&watched, &mut scan, &|| stop.asked()) {
        Ok(run) => run,
        Err(error) if error.is::<Interrupted>() => return Ok(interrupted("accuracy")),
        Err(error) => return Err(error),
    };
    if args.json {
        print(&(isotherm_report::json::to_string_pretty(&run)? + "\n"))?;
    } else {
        print(&against_table(&run))?;
    }
    Ok(if stop.asked() { interrupted("accuracy") } else { ExitCode::SUCCESS })
}

/// How a workload is told its parameters.
fn workload_options(set: &[String], scale_time: Option<f64>) -> Vec<String> {
    let mut options: Vec<String> = set.iter().flat_map(|s| ["--set".to_owned(), s.clone()]).collect();
    if let Some(factor) = scale_time {
        options.extend(["--scale-time".to_owned(), factor.to_string()]);
    }
    options
}

/// Refuses a pattern that is not there or cannot be what is asked for, before any other has run for a minute.
fn check_pattern(pattern: &str, set: &[String]) -> anyhow::Result<()> {
    let parameters: Vec<(String, String)> = set
        .iter()
        .map(|text| text.split_once('=').unwrap_or((text, "")))
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect();
    match Pattern::load(pattern, &parameters) {
        Err(error) if error.is_misuse() => misuse!("{error}"),
        loaded => Ok(loaded.map(drop)?),
    }
}

/// What is known as soon as one run is over.
fn tell_accuracy(run: &AccuracyRun, details: bool) -> anyhow::Result<()> {
    if details {
        print(&(run.accuracy.details() + "\n"))?;
    }
    let f1 = |f1: Option<f64>| f1.map_or("-".into(), |f| format!("{f:.4}"));
    say!(
        "  F1 {}, of bytes accessed within 1 s {}; monitor {:.2} % of a CPU, {:.0} clears a second, at most {} checks a sample, {:.1} bytes a region, {} samples missed, {} snapshots lost",
        f1(run.accuracy.score.f1),
        f1(run.accuracy.second.and_then(|s| s.f1)),
        run.cpu_share * 100.0,
        run.clears_per_second,
        run.max_checks_per_sample,
        run.bytes_per_region,
        run.samples_missed,
        run.snapshots_lost
    );
    for forked in &run.accuracy.forked {
        say!("  {}", forked.summary());
    }
    Ok(())
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
        let (slice, least) = (format_time_exactly(args.slice), format_time_exactly(least));
        misuse!("--slice {slice} is too short to tell anything; the least is {least} here");
    }
    let stop = experiment::stop()?;
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
        print(&(isotherm_report::json::to_string_pretty(report)? + "\n"))?;
    } else if !report.results.is_empty() {
        print(&table(&report.results))?;
    }
    Ok(())
}

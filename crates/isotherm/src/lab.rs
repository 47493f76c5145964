//! `isotherm lab`.

use crate::args::AccuracyArgs;
use anyhow::Context;
use isotherm_lab::accuracy::{Options, summary_table};
use isotherm_lab::live::{Bench, Subject};
use std::process::ExitCode;

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

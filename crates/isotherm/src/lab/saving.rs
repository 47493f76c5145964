//! `isotherm lab schemes`.

use super::experiment::{Report, stop_on_signals};
use super::{check_pattern, workload_options};
use crate::args::SavingArgs;
use crate::report::{PictureFile, PictureKind};
use anyhow::{Context, bail};
use isotherm_damon::schemes::Action;
use isotherm_lab::Interrupted;
use isotherm_lab::accuracy::Subject;
use isotherm_lab::schemes::{Run, SchemeBench, SchemeRuns, Under, Zram, table};
use isotherm_report::lines::{self, Lines, Plot, Series};
use serde::Serialize;
use std::process::ExitCode;

#[derive(Serialize)]
struct Setup {
    pairs: u32,
    /// Size of the zram device, bytes; null if it is the swap that was there.
    swap_bytes: Option<u64>,
}

#[derive(Serialize)]
struct Found {
    runs: Vec<SchemeRuns>,
}

/// Runs every pattern with every kind of pages.
///
/// # Errors
/// A run fails, or there is nowhere to page out to.
pub fn run(args: &SavingArgs) -> anyhow::Result<ExitCode> {
    args.monitor.attrs()?;
    for pattern in &args.patterns {
        check_pattern(pattern, &args.set)?;
    }
    let entries = crate::scheme::load(&args.scheme, None)?.entries;
    let picture = args.output.as_deref().map(PictureFile::new).transpose()?;
    if !rustix::process::geteuid().is_root() {
        bail!("acting on memory and counting what it did needs root; run it with sudo");
    }
    let pages_out = entries.iter().any(|entry| entry.scheme.action == Action::Pageout);
    if pages_out && args.swap.is_none() && !has_swap() {
        misuse!(
            "there is no swap to page out to; --swap 2G makes one in compressed memory, and removes it at the end"
        );
    }
    let stop = stop_on_signals()?;
    let zram = args.swap.map(Zram::new).transpose()?;
    if let Some(zram) = &zram {
        say!("lab schemes: swapping to zram until the end; if this is killed with -9: {}", zram.remedy());
    }
    let bench = SchemeBench {
        isotherm: std::env::current_exe().context("cannot find this program's own file")?,
        monitor: args.monitor.to_options(),
        schemes: args.scheme.clone(),
        entries,
        predict: args.predict,
    };
    let mut runs = Vec::new();
    let outcome = measure(args, &bench, &|| stop(), &mut runs);
    drop(zram);
    if let Some(picture) = picture.filter(|_| !runs.is_empty()) {
        let lines = lines_of(&runs);
        picture.write(|kind, out| match kind {
            PictureKind::Png => lines::write_png(&lines, out),
            PictureKind::Svg => lines::write_svg(&lines, out),
        })?;
    }
    let report = Report {
        setup: Setup { pairs: args.pairs, swap_bytes: args.swap },
        results: Found { runs },
        ok: None,
        interrupted: stop(),
    };
    report.tell("schemes", args.json, |report| table(&report.results.runs), outcome)
}

fn measure(
    args: &SavingArgs,
    bench: &SchemeBench,
    stop: &dyn Fn() -> bool,
    runs: &mut Vec<SchemeRuns>,
) -> anyhow::Result<()> {
    let options = workload_options(&args.set, args.scale_time);
    for pattern in &args.patterns {
        for page in &args.pages {
            let subject =
                Subject { pattern: pattern.clone(), page: Some(page.clone()), options: options.clone() };
            let mut progress = |pair: u32, under: Under| {
                let how = match under {
                    Under::Nothing => "by itself",
                    Under::Schemes => "under the schemes",
                    Under::Record => "recorded",
                };
                say!("lab schemes: {pattern}, {page} pages, pair {} of {}: {how} ...", pair + 1, args.pairs);
            };
            match bench.run(&subject, args.pairs, stop, &mut progress) {
                Ok(run) => runs.push(run),
                Err(error) if error.is::<Interrupted>() => return Ok(()),
                Err(error) => return Err(error.context(format!("{pattern}, {page} pages"))),
            }
            if stop() {
                return Ok(());
            }
        }
    }
    Ok(())
}

fn has_swap() -> bool {
    std::fs::read_to_string("/proc/swaps").is_ok_and(|swaps| swaps.lines().count() > 1)
}

fn lines_of(runs: &[SchemeRuns]) -> Lines {
    let series = |name: &str, run: &Run| Series {
        name: name.to_owned(),
        points: run
            .looks_since(0)
            .map(|look| ((look.time_ns as f64 - run.start_ns as f64) / 1e9, look.resident as f64))
            .collect(),
    };
    let plot = |runs: &SchemeRuns| {
        let (without, with) = runs.pairs.first()?;
        let page = runs.page.as_deref().unwrap_or_default();
        Some(Plot {
            caption: format!("Resident memory of {}, {page} pages", runs.pattern),
            series: vec![series("without", without), series("with", with)],
        })
    };
    let schemes = runs.first().map_or_else(String::new, |runs| runs.schemes.clone());
    Lines {
        title: format!("What {schemes} saves"),
        plots: runs.iter().filter_map(plot).collect(),
        notes: vec!["the first pair of runs; time 0 is the start of the first phase".to_owned()],
    }
}

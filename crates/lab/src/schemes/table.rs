//! The results for people: a column a workload.

use super::{Run, SchemeRuns};
use crate::Estimate;
use crate::table::{Table, percent, signed};
use isotherm_report::units::{format_size, format_time};

/// A row for each figure, a column for each workload, and what the figures mean.
pub fn table(runs: &[SchemeRuns]) -> String {
    if runs.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&[]);
    let mut row = |name: &str, cell: &dyn Fn(&SchemeRuns) -> Option<String>| {
        let cells = runs.iter().map(|run| cell(run).unwrap_or_else(|| "-".to_owned()));
        table.row(std::iter::once(name.to_owned()).chain(cells));
    };
    row("workload", &|r| {
        Some(format!("{} {}", r.pattern, r.page.as_deref().unwrap_or("")).trim_end().to_owned())
    });
    row("schemes", &|r| Some(r.schemes.clone()));
    row("pairs of runs", &|r| {
        let wall = mean(r, |without, _| Some(without.wall_ns as f64))?;
        Some(format!("{} x {}", r.pairs.len(), format_time(wall as u64)))
    });
    row("load, start .. end", &|r| Some(format!("{:.1} .. {:.1}", r.load[0], r.load[1])));
    row("resident without, mean", &|r| bytes(mean(r, |without, _| without.resident_since(without.start_ns))));
    row("resident with, mean", &|r| bytes(mean(r, |_, with| with.resident_since(with.start_ns))));
    row("saved", &|r| share(r.saved));
    row("saved, last phase", &|r| share(r.saved_last_phase));
    row("slowdown", &|r| r.slowdown.map(|slowdown| signed(slowdown.mean)));
    row("    95 % interval", &|r| {
        r.slowdown?.ci95.map(|(low, high)| format!("{} .. {}", signed(low), signed(high)))
    });
    row("monitor and actions, CPU", &|r| r.monitor_cpu_share.map(|cpu| percent(Some(cpu.mean), 2)));
    row("  time of actions", &|r| {
        mean(r, |_, with| Some(with.did.acting_ns as f64)).map(|ns| format_time(ns as u64))
    });
    row("  most in a quota window", &|r| {
        let (most, longest) = r.most_in_window();
        (most > 0).then(|| format!("{}, {}", format_size(most), format_time(longest)))
    });
    let several = runs.iter().any(|run| run.pairs.len() > 1);
    row("paged out", &|r| bytes(r.paged_out()));
    if several {
        row("    least .. most", &|r| spread(r, |run| Some(run.did.paged_out)));
    }
    row("  came back", &|r| bytes(r.refaulted()));
    if several {
        row("    least .. most", &|r| spread(r, Run::refaulted));
    }
    if runs.iter().any(|run| !run.predicted.is_empty()) {
        row("  predicted out", &|r| beside(r.prediction().map(|p| p.0), r.paged_out()));
        row("  predicted back", &|r| beside(r.prediction().map(|p| p.1), r.refaulted()));
    }
    row("acted on otherwise", &|r| {
        bytes(mean(r, |_, with| Some(with.did.acted_on as f64)).filter(|&bytes| bytes > 0.0))
    });
    table.render().trim_start_matches('\n').to_owned() + NOTES
}

const NOTES: &str = "
Each run is a process of its own, since what was paged out stays out. Resident is VmRSS of all processes from the first phase on,
looked at ten times a second. The slowdown is time an access, over all phases. What came back is what the machine read from swap. Most in a quota window is the bytes and the time of those with the most of each. Monitor and actions are the whole program's CPU time, its start included.
";

fn mean(runs: &SchemeRuns, of: impl Fn(&Run, &Run) -> Option<f64>) -> Option<f64> {
    crate::statistics::mean(
        &runs.pairs.iter().filter_map(|(without, with)| of(without, with)).collect::<Vec<_>>(),
    )
}

fn bytes(bytes: Option<f64>) -> Option<String> {
    bytes.map(|bytes| format_size(bytes as u64))
}

/// The least and the most that a run under the schemes had.
fn spread(runs: &SchemeRuns, of: impl Fn(&Run) -> Option<u64>) -> Option<String> {
    let values = || runs.pairs.iter().filter_map(|(_, with)| of(with));
    Some(format!("{} .. {}", format_size(values().min()?), format_size(values().max()?)))
}

fn share(estimate: Option<Estimate>) -> Option<String> {
    estimate.map(|estimate| percent(Some(estimate.mean), 1))
}

/// A prediction, and by how much it is off.
fn beside(predicted: Option<f64>, measured: Option<f64>) -> Option<String> {
    let text = bytes(predicted)?;
    let off = measured.filter(|&bytes| bytes > 0.0).map(|bytes| predicted.unwrap_or(0.0) / bytes - 1.0);
    Some(off.map_or_else(|| text.clone(), |off| format!("{text} ({})", signed(off))))
}

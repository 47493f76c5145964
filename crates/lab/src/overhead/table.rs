//! The results for people: a column a workload, since there is much to say about each.

use super::{Centre, OverheadRun, Slowdown, Time};
use crate::Estimate;
use crate::table::{Table, percent, signed};
use isotherm_report::units::{format_size, format_time};

/// A row for each figure, a column for each run, and what the figures mean.
pub fn table(runs: &[OverheadRun]) -> String {
    let mut table = Table::new(&[]);
    let mut row = |name: &str, cell: &dyn Fn(&OverheadRun) -> String| {
        table.row(std::iter::once(name.to_owned()).chain(runs.iter().map(cell)));
    };
    let dash = || "-".to_owned();
    // Of the monitor: nothing when it was left out.
    let of_monitor = |run: &OverheadRun, text: String| if run.null { dash() } else { text };
    row("membound", &|r| format!("{} {}", r.workload.kind, r.workload.page));
    row("size", &|r| format_size(r.workload.bytes));
    row("monitor", &|r| if r.null { "none (null)".to_owned() } else { r.backend.clone() });
    row("pairs of slices", &|r| format!("{} x {}", r.overhead.pairs.len(), format_time(r.slice_ns)));
    row("load, start .. end", &|r| {
        let [start, end] = r.load;
        format!("{start:.1} .. {end:.1}")
    });
    for (time, centre, name) in [
        (Time::Wall, Centre::Mean, "slowdown, wall time"),
        (Time::Wall, Centre::Median, "  of the typical 100 ms"),
        (Time::Cpu, Centre::Mean, "slowdown, CPU time"),
        (Time::Cpu, Centre::Median, "  of the typical 100 ms"),
    ] {
        let find = |r: &OverheadRun| -> Option<Slowdown> {
            r.slowdowns.iter().find(|s| s.time == time && s.centre == centre).cloned()
        };
        row(name, &|r| find(r).map_or_else(dash, |s| signed(s.slowdown.mean)));
        row("    95 % interval", &|r| interval(find(r).and_then(|s| confidence(&s.slowdown))));
        row("    stdev of pairs", &|r| percent(find(r).and_then(|s| s.slowdown.stdev), 2));
        row("    like against like", &|r| interval(find(r).and_then(|s| confidence(&s.noise?))));
    }
    row("slowdown, derived", &|r| of_monitor(r, percent(Some(r.derived), 3)));
    row("    flushes a second", &|r| {
        let seconds = r.overhead.cost.wall_ns.max(1) as f64 / 1e9;
        of_monitor(r, format!("{:.0}", r.overhead.cost.cleared.flushes as f64 / seconds))
    });
    row("    a flush, a page here", &|r| {
        of_monitor(r, format!("{:.2} us, {:.0} ns", r.prices.flush_ns / 1e3, r.prices.page_ns))
    });
    row("monitor CPU", &|r| of_monitor(r, percent(Some(r.overhead.cpu_share), 2)));
    row("  limit", &|r| {
        let none = r.overhead_limit <= 0.0;
        of_monitor(r, if none { "none".to_owned() } else { percent(Some(r.overhead_limit), 2) })
    });
    row("  start and end, once", &|r| {
        let starts = r.starts.count.max(1) as f64;
        of_monitor(r, format!("{:.1} ms", r.starts.once_cpu_ns as f64 / starts / 1e6))
    });
    row("  whole process here", &|r| {
        let share = r.starts.whole_cpu_ns as f64 / r.starts.whole_wall_ns.max(1) as f64;
        of_monitor(r, percent(Some(share), 2))
    });
    row("checks a sample, max", &|r| of_monitor(r, r.overhead.cost.max_checks_per_sample.to_string()));
    row("  limit", &|r| of_monitor(r, r.overhead.cost.max_nr_regions.to_string()));
    row("full scan / checks", &|r| {
        r.overhead.full_scan_ratio.map_or_else(dash, |ratio| format!("{ratio:.0}x"))
    });
    row("clears a second", &|r| of_monitor(r, format!("{:.0}", r.clears_per_second)));
    row("cut: checks", &|r| of_monitor(r, r.overhead.cost.checks_cut.to_string()));
    row("cut: clears", &|r| of_monitor(r, r.overhead.cost.clears_cut.to_string()));
    row("late samples", &|r| of_monitor(r, r.overhead.cost.samples_missed.to_string()));
    row("piece of work", &|r| format!("{} of {}", r.pieces, format_time(r.piece_ns as u64)));
    table.render().trim_start_matches('\n').to_owned() + &notes(runs)
}

fn notes(runs: &[OverheadRun]) -> String {
    let mut text = String::from(
        "\nSlowdowns are means over the pairs, intervals bootstrapped (Student's t for fewer than 8). `like\n\
         against like` is the 95 % interval between neighbouring slices of one kind, where the truth is 0: what this\n\
         machine can tell apart at this load.\n",
    );
    if runs.iter().any(|r| !r.null && r.backend == "pte") {
        text.push_str(
            "The derived slowdown is what was cleared times what that costs, measured on a thread of this program's own after\n\
             each workload, as if every page that was cleared was accessed again.\n",
        );
    }
    if runs.iter().any(|r| !r.null && r.starts.count > 0) {
        text.push_str(
            "Monitor CPU is that of slices. Starting and ending cost once a recording and is in neither the slices nor\n\
             the slowdown; `whole process here` has it, in recordings only a slice long.\n",
        );
    }
    if runs.iter().any(|r| r.backend == "kernel") {
        text.push_str("Of the kernel's own monitor, kdamond's CPU time is not in monitor CPU.\n");
    }
    if runs.iter().any(|r| !r.overhead.checks_bounded) {
        text.push_str("A sampling interval had MORE CHECKS than the limit of regions.\n");
    }
    text
}

/// Values from which resampling shows their spread; it makes too narrow an interval of fewer.
const ENOUGH_TO_RESAMPLE: usize = 8;

/// The 95 % interval of a mean: without assuming a normal distribution where there are values enough.
fn confidence(estimate: &Estimate) -> Option<(f64, f64)> {
    if estimate.count < ENOUGH_TO_RESAMPLE { estimate.ci95 } else { estimate.ci95_bootstrap }
}

fn interval(interval: Option<(f64, f64)>) -> String {
    interval.map_or_else(|| "-".to_owned(), |(low, high)| format!("{} .. {}", signed(low), signed(high)))
}

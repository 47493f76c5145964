//! The tables for people, after the seed's: mean, stdev, relative to the baseline.

use super::{Fork, GIB, Layout, Operation, Setup};
use crate::Estimate;
use crate::experiment::bars_table;
use crate::table::Table;

/// Mean, stdev and median of times.
fn times(estimate: &Estimate) -> [String; 3] {
    let stdev = estimate.stdev.map(|stdev| stdev / estimate.mean.abs() * 100.0);
    [
        format!("{:.3} ms", estimate.mean),
        stdev.map_or_else(|| "-".into(), |stdev| format!("{stdev:.1} %")),
        format!("{:.3}", estimate.median),
    ]
}

/// Mean, median and its interval of ratios.
fn relative(estimate: &Estimate) -> [String; 3] {
    let interval =
        estimate.median_ci95.map(|(low, high)| format!("[{:+.1}, {:+.1}]", low * 100.0, high * 100.0));
    [
        format!("{:+.1} %", estimate.mean * 100.0),
        format!("{:+.1} %", estimate.median * 100.0),
        interval.unwrap_or_else(|| "-".into()),
    ]
}

/// One table an operation, and the bars.
#[must_use]
pub fn table(results: &Fork, setup: &Setup) -> String {
    let mut text: String = Operation::ALL.map(|operation| of_operation(results, operation) + "\n").concat();
    text.push_str(&notes(results));
    text.push('\n');
    let bars = results.bars();
    text.push_str(&bars_table(&bars));
    if bars.is_empty() {
        return text;
    }
    if setup.mib != GIB {
        text.push_str(&format!("The bars are for {GIB} MiB; these are figures of {} MiB.\n", setup.mib));
    }
    if bars.iter().any(|bar| bar.interval.is_none()) {
        text.push_str("Where there is no interval, for which it takes six runs, noise may have decided.\n");
    }
    text
}

fn of_operation(results: &Fork, operation: Operation) -> String {
    let mut table = Table::new(&[
        operation.name(),
        "layout",
        "per page",
        "stdev",
        "median",
        "batched",
        "stdev",
        "median",
        "relative",
        "median",
        "95 % interval",
        "typical",
        "TLB ops",
        "unfolds",
    ]);
    for ours in results.ours.iter().filter(|ours| ours.operation == operation) {
        let mut row = vec![ours.format.to_owned(), ours.layout.name().to_owned()];
        row.extend(times(&ours.per_page));
        row.extend(times(&ours.batched));
        row.extend(relative(&ours.relative));
        row.push(format!("{:+.1} %", ours.typical.median * 100.0));
        row.push(format!("{} / {}", ours.tlb_per_page, ours.tlb_batched));
        row.push(ours.unfolds_batched.to_string());
        table.row(row);
    }
    for layout in Layout::ALL {
        let Some(linux) = results.linux.iter().find(|linux| linux.layout == layout) else { continue };
        let estimate = match operation {
            Operation::Fork => linux.fork.as_ref(),
            Operation::Exit => linux.exit.as_ref(),
            Operation::Zap => linux.zap.as_ref(),
            Operation::Harvest => None,
        };
        if let Some(estimate) = estimate {
            let row = ["Linux".to_owned(), layout.name().to_owned()];
            table.row(row.into_iter().chain(times(estimate)));
        }
    }
    table.render()
}

/// What one has to know about the figures.
fn notes(results: &Fork) -> String {
    let mut text = String::new();
    if !results.ours.is_empty() {
        text.push_str(
            "Ours: the shortest of several times in each run. Relative: batched to per page of the same run; typical: the \
             same with the\nmedian of the times in place of the shortest. TLB ops: per page / batched. Unfolds: batched;\npage by page there are no contiguous blocks.\n",
        );
    }
    let faults: u64 = results.ours.iter().map(|ours| ours.page_faults).sum();
    if faults > 0 {
        text.push_str(&format!(
            "While ours were timed there were {faults} page faults: the system had taken memory back.\n"
        ));
    }
    if let Some((fork, exit)) = results.linux.iter().find_map(|linux| linux.empty) {
        text.push_str(&format!(
            "Linux: less a fork without that memory, {fork:.3} ms, and its exit, {exit:.3} ms.\n"
        ));
    }
    for linux in &results.linux {
        let name = linux.layout.name();
        if let Some(why) = &linux.skipped {
            text.push_str(&format!("Linux: {name}: skipped: {why}\n"));
        } else if let Some(share) = linux.of_order {
            text.push_str(&format!("Linux: {name}: at least {:.1} % in such folios\n", share * 100.0));
        } else {
            text.push_str(&format!("Linux: {name}: of which folios, only root can see\n"));
        }
    }
    text
}

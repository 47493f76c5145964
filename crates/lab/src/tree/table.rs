//! What was measured, for people.

use super::{Latency, Readers, Rival, Tree};
use crate::experiment::bars_table;
use crate::table::{Table, percent};

/// Tables of all that was measured, and the bars.
#[must_use]
pub fn table(tree: &Tree) -> String {
    let mut parts = Vec::new();
    if !tree.latency.is_empty() {
        parts.push(latency(&tree.latency));
    }
    if !tree.readers.is_empty() {
        parts.push(readers(&tree.readers));
    }
    let bars = tree.bars();
    if !bars.is_empty() {
        parts.push(bars_table(&bars));
    }
    parts.join("\n")
}

fn latency(all: &[Latency]) -> String {
    let mut headings = vec!["ns".to_owned(), "ranges".to_owned()];
    for rival in Rival::ALL {
        headings.push(rival.name().into());
        if rival != Rival::Maple {
            headings.push("x".into());
        }
    }
    headings.push("array".into());
    let mut table = Table::new(&headings.iter().map(String::as_str).collect::<Vec<_>>());
    for one in all {
        let mut row = vec![one.operation.name().to_owned(), one.ranges.to_string()];
        for time in &one.times {
            row.push(format!("{:.1}", time.ns.median));
            row.extend(time.slower_by.map(|ratio| format!("{:.2}", ratio.median)));
        }
        row.push(one.array.map_or_else(|| "-".into(), |array| format!("{:.1}", array.median)));
        table.row(row);
    }
    format!(
        "{}x: times as long as maple, the median of the rounds' ratios\n\
         array: the same look-up by halving in sorted arrays, to which nothing can be stored\n",
        table.render()
    )
}

fn readers(all: &[Readers]) -> String {
    let mut table = Table::new(&[
        "million get/s",
        "ranges",
        "readers",
        "alone",
        "x of one",
        "beside a writer",
        "share",
        "writer elsewhere",
        "million writes/s",
    ]);
    for one in all {
        for by in &one.throughput {
            let million = |rate: &Option<crate::Estimate>| {
                rate.as_ref().map_or_else(|| "-".into(), |rate| format!("{:.2}", rate.median / 1e6))
            };
            table.row([
                by.rival.name().to_owned(),
                one.ranges.to_string(),
                one.readers.to_string(),
                format!("{:.2}", by.alone.median / 1e6),
                by.scaled.as_ref().map_or_else(|| "-".into(), |scaled| format!("{:.2}", scaled.median)),
                million(&by.beside_writer),
                percent(by.kept.as_ref().map(|kept| kept.median), 1),
                percent(by.writer_elsewhere.as_ref().map(|kept| kept.median), 1),
                million(&by.writes),
            ]);
        }
    }
    format!(
        "{}writer elsewhere: the share beside a writer of another tree, which the machine leaves\n",
        table.render()
    )
}

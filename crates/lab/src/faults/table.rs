//! What was measured, for people.

use super::{Beside, Faults, Lookups, Price, Results, Storm};
use crate::Estimate;
use crate::experiment::bars_table;
use crate::table::{Table, percent};

/// Tables of all that was measured, and the bars.
#[must_use]
pub fn table(all: &Results) -> String {
    let mut parts = Vec::new();
    if !all.faults.is_empty() {
        parts.push(faults(&all.faults));
        if all.faults.iter().any(|one| one.ceiling.is_some()) {
            parts.push(ceilings(&all.faults));
        }
    }
    if let Some(storm) = &all.storm {
        parts.push(stormed(storm));
    }
    if !all.prices.is_empty() {
        parts.push(prices(&all.prices));
    }
    if !all.beside.is_empty() {
        parts.push(beside(&all.beside));
    }
    let bars = all.bars();
    if !bars.is_empty() {
        parts.push(bars_table(&bars));
    }
    parts.join("\n")
}

fn interval(ratio: Option<&Estimate>, by: f64, digits: usize) -> String {
    let interval = ratio.and_then(|ratio| ratio.median_ci95);
    interval.map_or("-".into(), |(low, high)| format!("{:.digits$} to {:.digits$}", low * by, high * by))
}

/// Of which reason there were how many, the most first.
fn reasons(lookups: &Lookups) -> String {
    let mut reasons = lookups.reasons();
    reasons.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
    let words = reasons.iter().filter(|(_, count)| *count > 0).map(|(why, count)| format!("{why} {count}"));
    let words: Vec<String> = words.collect();
    if words.is_empty() { "-".into() } else { words.join(", ") }
}

fn faults(all: &[Faults]) -> String {
    let mut table = Table::new(&[
        "thousand faults/s",
        "",
        "beside mmap_lock",
        "95 % interval",
        "under the VMA's lock",
        "mapper, thousand rounds/s",
    ]);
    for one in all {
        let threads = threads(one);
        let place = if one.one_vma { " in one VMA" } else { "" };
        let mapper = if one.mapper { " beside a mapper" } else { "" };
        for rate in &one.ways {
            table.row([
                format!("{threads}{place}{mapper}, {}", rate.way.name()),
                format!("{:.0}", rate.faults.median / 1e3),
                rate.ratio.as_ref().map_or("-".into(), |ratio| format!("{:.2} x", ratio.median)),
                interval(rate.ratio.as_ref(), 1.0, 2),
                percent(rate.lookups.and_then(|lookups| lookups.share()), 2),
                rate.mapped.as_ref().map_or("-".into(), |mapped| format!("{:.1}", mapped.median / 1e3)),
            ]);
        }
    }
    table.render()
}

/// What no lock of a space can better.
fn ceilings(all: &[Faults]) -> String {
    let mut table = Table::new(&[
        "the mapper in another space",
        "thousand faults/s",
        "of those without a mapper",
        "beside mmap_lock",
        "95 % interval",
        "reached by per-VMA, sequence",
    ]);
    for one in all {
        let Some(ceiling) = &one.ceiling else { continue };
        table.row([
            threads(one),
            format!("{:.0}", ceiling.faults.median / 1e3),
            percent(Some(ceiling.of_alone.median), 0),
            format!("{:.2} x", ceiling.ratio.median),
            interval(Some(&ceiling.ratio), 1.0, 2),
            percent(Some(ceiling.reached.median), 0),
        ]);
    }
    table.render()
}

fn threads(one: &Faults) -> String {
    if one.threads == 1 { "1 thread".into() } else { format!("{} threads", one.threads) }
}

fn stormed(storm: &Storm) -> String {
    let mut table = Table::new(&[
        "start storm",
        "ms",
        "shorter than mmap_lock",
        "95 % interval, %",
        "under the VMA's lock",
        "others",
    ]);
    for one in &storm.ways {
        table.row([
            format!("{} threads, {} pages each, {}", storm.threads, storm.pages, one.way.name()),
            format!("{:.1}", one.ms.median),
            percent(one.shorter.as_ref().map(|shorter| shorter.median), 1),
            interval(one.shorter.as_ref(), 100.0, 1),
            percent(one.lookups.and_then(|lookups| lookups.share()), 2),
            one.lookups.as_ref().map_or("-".into(), reasons),
        ]);
    }
    table.render()
}

fn prices(all: &[Price]) -> String {
    let mut table =
        Table::new(&["ns", "here", "Linux", "here beside Linux", "95 % interval", "Linux' figure"]);
    for one in all {
        table.row([
            one.operation.into(),
            format!("{:.0}", one.here.median),
            format!("{:.0}", one.linux.median),
            format!("{:.2} x", one.ratio.median),
            interval(Some(&one.ratio), 1.0, 2),
            one.beside.into(),
        ]);
    }
    table.render()
}

fn beside(all: &[Beside]) -> String {
    let mut table = Table::new(&[
        "thousand/s",
        "here",
        "Linux",
        "here beside Linux",
        "95 % interval",
        "of",
        "only in Linux",
    ]);
    for one in all {
        let threads = if one.threads == 1 { "1 thread".into() } else { format!("{} threads", one.threads) };
        let [linux, _] = one.sequence.includes();
        table.row([
            format!("{}, {threads}", one.sequence.name()),
            format!("{:.0}", one.here.median / 1e3),
            format!("{:.0}", one.linux.median / 1e3),
            format!("{:.2} x", one.ratio.median),
            interval(Some(&one.ratio), 1.0, 2),
            one.sequence.unit().into(),
            linux.into(),
        ]);
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_those_that_occurred_the_most_frequent_first() {
        assert_eq!(reasons(&Lookups::default()), "-");
        let lookups = Lookups { faults: 15, success: 2, no_anon: 3, locked: 10, ..Lookups::default() };
        assert_eq!(reasons(&lookups), "write-locked 10, first write 3");
    }
}

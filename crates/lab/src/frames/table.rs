//! What was measured, for people.

use super::{Ceiling, Cost, FaultLoops, Frames, Rival, Sink, Throughput, Touching, conclusion};
use crate::experiment::bars_table;
use crate::table::{Table, percent, signed};

/// Tables of all that was measured, and the bars.
#[must_use]
pub fn table(frames: &Frames) -> String {
    let mut parts = Vec::new();
    if !frames.ceilings.is_empty() {
        parts.push(ceilings(&frames.ceilings));
    }
    if !frames.throughput.is_empty() {
        parts.push(throughput(&frames.throughput));
    }
    parts.extend(frames.cost.as_ref().map(cost));
    if !frames.fault_loops.is_empty() {
        parts.push(fault_loops(&frames.fault_loops));
    }
    if !frames.sinks.is_empty() {
        parts.push(sinks(&frames.sinks));
    }
    let bars = frames.bars();
    if !bars.is_empty() {
        parts.push(bars_table(&bars));
    }
    parts.join("\n")
}

fn ceilings(all: &[Ceiling]) -> String {
    let mut table =
        Table::new(&["threads that share nothing", "one, million/s", "two are x", "95 % interval"]);
    for one in all {
        let interval = one.scaling.median_ci95;
        table.row([
            one.alone.name().into(),
            format!("{:.1}", one.one.median / 1e6),
            format!("{:.2}", one.scaling.median),
            interval.map_or("-".into(), |(low, high)| format!("{low:.2} to {high:.2}")),
        ]);
    }
    table.render()
}

fn throughput(all: &[Throughput]) -> String {
    let mut headings = vec!["million pairs of get and put/s".to_owned()];
    for rival in Rival::ALL {
        headings.push(rival.name().into());
        if rival != Rival::Zone {
            headings.push("zone is x".into());
        }
    }
    let mut table = Table::new(&headings.iter().map(String::as_str).collect::<Vec<_>>());
    for one in all {
        let mut row = vec![one.name()];
        for rate in &one.rates {
            row.push(format!("{:.2}", rate.pairs.median / 1e6));
            row.extend(rate.slower_by.map(|ratio| format!("{:.2}", ratio.median)));
        }
        table.row(row);
    }
    table.render()
}

fn cost(cost: &Cost) -> String {
    let mut table = Table::new(&[
        "64 MiB allocated, touched, freed",
        "without reports",
        "slower by",
        "95 % interval",
        "reported of 1000",
    ]);
    let mut row = |name: &str, touching: &Touching| {
        let interval = touching.slowdown.ci95_bootstrap;
        table.row([
            name.into(),
            format!("{:.3} ms", touching.without_ns.median / 1e6),
            signed(touching.slowdown.median),
            interval.map_or("-".into(), |(low, high)| format!("{} to {}", signed(low), signed(high))),
            format!("{:.1}", touching.reported_per_1000),
        ]);
    };
    row("reports, but no work of the host", &cost.bookkeeping);
    row("reports by MADV_DONTNEED", &cost.with_host);
    format!("{}The host's work: {:.1} us for each 2 MiB reported\n", table.render(), cost.host_ns / 1e3)
}

fn fault_loops(all: &[FaultLoops]) -> String {
    let mut table = Table::new(&[
        "fault loops, tasks",
        "million pages/s without reports",
        "slower by",
        "95 % interval",
        "blocks reported",
    ]);
    for one in all {
        let interval = one.slowdown.median_ci95;
        table.row([
            one.tasks.to_string(),
            format!("{:.2}", one.pages.median / 1e6),
            signed(one.slowdown.median),
            interval.map_or("-".into(), |(low, high)| format!("{} to {}", signed(low), signed(high))),
            one.reported.to_string(),
        ]);
    }
    table.render()
}

fn sinks(sinks: &[Sink]) -> String {
    let mut table = Table::new(&[
        "2 MiB, us",
        "kept and used",
        "given back",
        "taken and used",
        "round trip",
        "stays resident",
    ]);
    for sink in sinks {
        let us = |ns: f64| format!("{:.1}", ns / 1e3);
        table.row([
            sink.name.into(),
            us(sink.keep_ns.median),
            us(sink.give_ns.median),
            us(sink.take_ns.median),
            us(sink.round_trip_ns.median),
            percent(Some(sink.stays), 0),
        ]);
    }
    let conclusion = conclusion(sinks).map_or_else(String::new, |text| format!("{text}\n"));
    format!("{}{conclusion}", table.render())
}

//! The tables for people, after the seed's: mean, stdev, relative to the baseline.

use super::{Fork, Layout, Operation};
use crate::Estimate;
use crate::table::Table;

fn ms(estimate: &Estimate) -> String {
    format!("{:.3} ms", estimate.mean)
}

fn stdev(estimate: &Estimate) -> String {
    estimate.stdev.map_or_else(|| "-".into(), |stdev| format!("{:.1} %", stdev / estimate.mean.abs() * 100.0))
}

/// One table an operation, and the bars.
#[must_use]
pub fn table(results: &Fork) -> String {
    let mut text = String::new();
    for operation in Operation::ALL {
        let mut table = Table::new(&[
            operation.name(),
            "layout",
            "per page",
            "stdev",
            "batched",
            "stdev",
            "relative",
            "TLB ops per page",
            "batched",
            "unfolds per page",
            "batched",
        ]);
        for ours in results.ours.iter().filter(|ours| ours.operation == operation) {
            table.row([
                ours.format.to_owned(),
                ours.layout.name().to_owned(),
                ms(&ours.per_page),
                stdev(&ours.per_page),
                ms(&ours.batched),
                stdev(&ours.batched),
                format!("{:+.1} %", ours.relative.mean * 100.0),
                ours.tlb_per_page.to_string(),
                ours.tlb_batched.to_string(),
                ours.unfolds_per_page.to_string(),
                ours.unfolds_batched.to_string(),
            ]);
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
                table.row(["Linux".into(), layout.name().into(), ms(estimate), stdev(estimate)]);
            }
        }
        text.push_str(&table.render());
        text.push('\n');
    }
    let empty = results.linux.iter().find_map(|linux| linux.empty);
    if let Some((fork, exit)) = empty {
        text.push_str(&format!(
            "Linux: less a fork without that memory, {fork:.3} ms, and its exit, {exit:.3} ms.\n\n"
        ));
    }
    let mut bars = Table::new(&["bar", "measured", ""]);
    for bar in results.bars() {
        bars.row([bar.what, format!("{:.3}", bar.measured), if bar.met { "met" } else { "missed" }.into()]);
    }
    text.push_str(&bars.render());
    text
}

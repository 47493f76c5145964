//! What the model says, for people.

use super::{CORES, Results};
use crate::table::Table;

/// Tables of the costs, of the model beside what was measured, and of the model.
#[must_use]
pub fn table(all: &Results) -> String {
    let mut parts = Vec::new();
    if let Some(costs) = &all.costs {
        let mut table = Table::new(&["cost", "ns"]);
        let rows = [
            ("a fault, by one thread alone", costs.fault),
            ("a fault, while the other CPU faults in another space", costs.apart),
            ("an atomic addition, own cache line", costs.local),
            ("an atomic addition, cache line of another CPU", costs.transfer),
            ("mmap_lock held by a mapper, at a time", costs.hold),
            ("a mapper between its rounds of three", costs.between),
            ("64 frames from the zone", costs.refill),
            ("spinning before sleep", costs.spin),
            ("a wake-up", costs.wake),
        ];
        for (what, ns) in rows {
            table.row([what.to_owned(), format!("{ns:.0}")]);
        }
        parts.push(table.render());
    }
    if !all.measured.is_empty() {
        let mut table = Table::new(&["million faults/s", "measured", "model", "model beside measured"]);
        for one in &all.measured {
            let Some(model) = all.modelled(one) else { continue };
            let place = if one.one_vma { "one VMA" } else { "own VMAs" };
            let threads =
                if one.threads == 1 { "1 thread".into() } else { format!("{} threads", one.threads) };
            table.row([
                format!("{threads}, {place}, {}", one.way.name()),
                format!("{:.2}", one.faults / 1e6),
                format!("{:.2}", model / 1e6),
                format!("{:.2} x", model / one.faults),
            ]);
        }
        parts.push(table.render());
    }
    if !all.scale.is_empty() {
        let cores = CORES.map(|cores| cores.to_string());
        let headings: Vec<&str> = std::iter::once("million faults/s by cores, model")
            .chain(cores.iter().map(String::as_str))
            .collect();
        let mut table = Table::new(&headings);
        for one in &all.scale {
            let name = format!("{}, {}", one.scenario.name(), one.way.name());
            let rates = one.faults.iter().map(|(_, faults)| format!("{:.1}", faults / 1e6));
            table.row(std::iter::once(name).chain(rates));
        }
        parts.push(table.render());
    }
    parts.join("\n")
}

//! What was measured, for people.

use super::{Faults, bars};
use crate::experiment::bars_table;
use crate::table::Table;

/// A table of all that was measured, and the bars.
#[must_use]
pub fn table(all: &[Faults]) -> String {
    let mut table = Table::new(&[
        "thousand faults/s",
        "per-VMA locks",
        "mmap_lock",
        "x",
        "95 % interval",
        "under the VMA's lock of 1000",
        "mapper, thousand rounds/s",
        "with mmap_lock",
    ]);
    for one in all {
        let threads = if one.threads == 1 { "1 thread".into() } else { format!("{} threads", one.threads) };
        let interval = one.ratio.median_ci95;
        let mut row = vec![
            format!("{threads}{}", if one.mapper { " beside a mapper" } else { "" }),
            format!("{:.0}", one.on.median / 1e3),
            format!("{:.0}", one.off.median / 1e3),
            format!("{:.2}", one.ratio.median),
            interval.map_or("-".into(), |(low, high)| format!("{low:.2} to {high:.2}")),
            format!("{:.1}", one.under_vma_lock_per_1000),
        ];
        if one.mapper {
            row.extend(one.mapped.iter().map(|mapped| format!("{:.1}", mapped.median / 1e3)));
        }
        table.row(row);
    }
    let bars = bars(all);
    if bars.is_empty() { table.render() } else { format!("{}\n{}", table.render(), bars_table(&bars)) }
}

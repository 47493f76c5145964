//! The comparison as text for people.

use super::{AgainstRun, ObjectScore};
use crate::table::{Table, percent};
use isotherm_report::units::format_size;

/// Objects shown; the rest is in the JSON.
const ROWS: usize = 20;

/// A row for all together and one for each object that was accessed much, and what the figures mean.
pub fn against_table(run: &AgainstRun) -> String {
    let against = &run.against;
    let mut table = Table::new(&[
        "object",
        "mapped",
        "scan",
        "recorded",
        "/ scan",
        "F1",
        "scan Hz",
        "recorded Hz",
        "unknown",
    ]);
    let mut row = |o: &ObjectScore| {
        let size = |bytes: f64| format_size(bytes.round() as u64);
        table.row([
            o.name.clone(),
            size(o.mapped),
            size(o.scanned),
            size(o.recorded),
            o.ratio.map_or_else(|| "-".to_owned(), |r| format!("{r:.2}")),
            o.f1.map_or_else(|| "-".to_owned(), |f| format!("{f:.4}")),
            format!("{:.3}", o.scanned_hz),
            format!("{:.3}", o.recorded_hz),
            percent((o.mapped + o.unknown > 0.0).then(|| o.unknown / (o.mapped + o.unknown)), 1),
        ]);
    };
    row(&against.total);
    against.objects.iter().take(ROWS).filter(|o| o.scanned + o.recorded > 0.0).for_each(&mut row);
    format!(
        "{}\nBytes accessed at least once in a pass of {:.2} s, mean of {} passes over {} processes ({} without a snapshot);\n\
         Hz is accesses a second to a page, at most one a pass. What several processes map counts once.\n\
         CPU: monitor ({}) {}, scan {}. Sampling intervals missed: {}, snapshots lost: {}.\n",
        table.render(),
        against.pass_seconds,
        against.passes,
        against.processes,
        against.without_snapshot,
        run.backend,
        percent(Some(run.cpu_share), 2),
        percent(Some(run.reference_cpu_share), 2),
        run.samples_missed,
        run.snapshots_lost,
    )
}

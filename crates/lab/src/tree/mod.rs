//! The range tree beside others: look-ups, stores, erasures and gap search, and readers beside a writer.
//!
//! 1. [`Latency`]: what one operation takes, on one thread, nobody else about.
//! 2. [`Readers`]: look-ups a second of one reader and of two, alone and beside a writer that stores and erases all the time.
//!
//! The ranges lie as the VMAs of an address space do: pages with unmapped ones between. What is compared is measured in
//! turn, in rounds, so that a machine that grows slower does so for all.

mod btree;
mod latency;
mod readers;
mod rivals;
mod space;
mod table;

pub use latency::{Latency, Operation, Time};
pub use readers::{Readers, Throughput};
pub use rivals::Rival;
pub use table::table;

use crate::experiment::{Bar, Figure, Interrupted, Watch};
use rivals::Maps;
use serde::Serialize;
use space::Space;
use std::time::Duration;

/// Ranges for which the bars hold.
pub const JUDGED: usize = 100_000;

/// The bars of "Address spaces: a range tree under RCU": ns of a look-up, and of a gap search.
const GET_NS: f64 = 60.0;
const GAP_NS: f64 = 1000.0;
/// The share of the readers' throughput that a busy writer leaves.
const KEPT: f64 = 0.9;
/// "Doubles with the second core", less what a median of a few rounds strays.
const DOUBLED: f64 = 1.95;

/// How much, how long and how often.
#[derive(Clone, Debug, Serialize)]
pub struct Setup {
    /// Numbers of ranges.
    pub ranges: Vec<usize>,
    /// Rounds; each measures everything once.
    pub rounds: u32,
    /// For how long each thing is measured in a round.
    #[serde(serialize_with = "seconds")]
    pub slice: Duration,
}

fn seconds<S: serde::Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(time.as_secs_f64())
}

/// Why there are no, or not all, results.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Somebody asked to stop.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
    /// The tree could not be built.
    #[error(transparent)]
    Build(#[from] isotherm_maple::BuildError),
}

/// All that was measured.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Tree {
    /// One operation at a time.
    pub latency: Vec<Latency>,
    /// Readers, and a writer beside them.
    pub readers: Vec<Readers>,
}

impl Tree {
    /// Measures with each number of ranges what is wanted: operations, and readers on up to so many CPUs.
    ///
    /// # Errors
    /// Interrupted; no memory. What was measured until then stays.
    pub fn measure(
        &mut self,
        operations: bool,
        cpus: Option<usize>,
        setup: &Setup,
        watch: &mut Watch<'_>,
    ) -> Result<(), Error> {
        for &ranges in &setup.ranges {
            watch.go_on()?;
            (watch.progress)(&format!("{ranges} ranges, building ..."));
            let space = Space::new(ranges);
            let maps = Maps::build(&space)?;
            if operations {
                self.latency.extend(Latency::measure(&space, &maps, setup, watch)?);
            }
            if let Some(cpus) = cpus {
                self.readers.extend(Readers::measure(&space, &maps, cpus, setup, watch)?);
            }
        }
        Ok(())
    }

    /// The bars of what was measured, for [`JUDGED`] ranges.
    #[must_use]
    pub fn bars(&self) -> Vec<Bar> {
        let mut bars = Vec::new();
        let time = |operation| {
            let one = |one: &&Latency| one.ranges == JUDGED && one.operation == operation;
            let time = self.latency.iter().find(one)?.of(Rival::Maple)?;
            Some(Figure::median(&time.ns))
        };
        let limits =
            [(Operation::Get, GET_NS), (Operation::LowestGap, GAP_NS), (Operation::HighestGap, GAP_NS)];
        for (operation, limit) in limits {
            let what = format!("maple, {JUDGED} ranges: {}, ns, <= {limit}", operation.name());
            bars.extend(time(operation).map(|ns| Bar::at_most(what, ns, limit)));
        }
        let readers = |readers| {
            let one = |one: &&Readers| one.ranges == JUDGED && one.readers == readers;
            self.readers.iter().find(one)?.of(Rival::Maple)
        };
        // With two readers a writer has a CPU to itself only on machines with three.
        let kept = readers(1).and_then(|one| one.kept.as_ref()).map(Figure::median);
        let what = format!("maple, {JUDGED} ranges: a reader beside a writer, share of alone, >= {KEPT}");
        bars.extend(kept.map(|kept| Bar::at_least(what, kept, KEPT)));
        let scaled = readers(2).and_then(|two| two.scaled.as_ref()).map(Figure::median);
        let what = format!("maple, {JUDGED} ranges: two readers beside one, times, >= {DOUBLED}");
        bars.extend(scaled.map(|scaled| Bar::at_least(what, scaled, DOUBLED)));
        bars
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Estimate;

    fn estimate(value: f64) -> Estimate {
        Estimate::of(&[value]).unwrap()
    }

    fn latency(ranges: usize, operation: Operation, ns: f64) -> Latency {
        let times = vec![Time { rival: Rival::Maple, ns: estimate(ns), slower_by: None }];
        Latency { ranges, operation, times, array: None }
    }

    fn readers(readers: usize, kept: f64, scaled: Option<f64>) -> Readers {
        let throughput = Throughput {
            rival: Rival::Maple,
            alone: estimate(1e7),
            beside_writer: Some(estimate(1e7 * kept)),
            kept: Some(estimate(kept)),
            writes: Some(estimate(1e6)),
            scaled: scaled.map(estimate),
            writer_elsewhere: None,
        };
        Readers { ranges: JUDGED, readers, throughput: vec![throughput] }
    }

    #[test]
    fn bars_are_those_of_the_issue_and_only_of_what_was_measured() {
        let mut tree = Tree::default();
        assert!(tree.bars().is_empty());
        tree.latency = vec![
            latency(1000, Operation::Get, 1.0),
            latency(JUDGED, Operation::Get, 61.0),
            latency(JUDGED, Operation::LowestGap, 900.0),
            latency(JUDGED, Operation::HighestGap, 1100.0),
        ];
        tree.readers = vec![readers(1, 0.95, None), readers(2, 0.2, Some(1.9))];
        let met: Vec<_> = tree.bars().into_iter().map(|bar| (bar.measured, bar.met)).collect();
        assert_eq!(met, [(61.0, false), (900.0, true), (1100.0, false), (0.95, true), (1.9, false)]);
    }
}

//! What clears found set, for whoever acts on memory.

use isotherm_damon::{AddrRange, TargetId};
use std::sync::{Arc, Mutex, PoisonError};

/// Ranges that are kept until they are taken, the most: 2 MiB. A monitor with a budget of 1 % of a CPU cleared up to 400 a second.
pub(crate) const MOST_SIGHTINGS: usize = 65_536;

/// Where those who clear bits say what they found set.
#[derive(Clone, Debug, Default)]
pub struct Sightings(Arc<Mutex<Vec<(TargetId, u64, AddrRange)>>>);

impl Sightings {
    /// These pages of a target were accessed at some time before `at_ns` (CLOCK_MONOTONIC), when their bits were cleared.
    pub fn add(&self, target: TargetId, at_ns: u64, ranges: impl IntoIterator<Item = AddrRange>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let room = MOST_SIGHTINGS.saturating_sub(all.len());
        all.extend(ranges.into_iter().map(|range| (target, at_ns, range)).take(room));
    }

    /// Takes what was said since it was last taken, in that order.
    pub fn take(&self) -> Vec<(TargetId, u64, AddrRange)> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

//! Where the caller may look at, or act on, the running state (seed 001, patch 8).

use crate::{Attrs, Moment, Snapshot, Target};

/// Called by the monitor at its steps. Every method does nothing unless implemented.
pub trait Callbacks {
    /// Monitoring begins: the targets have their first regions.
    fn before_start(&mut self, _targets: &[Target]) {}
    /// A sampling interval's checks are counted.
    fn after_sampling(&mut self, _targets: &[Target]) {}
    /// Schemes act here: in each sampling interval that is called for, after its checks are counted; at the end of an
    /// aggregation after regions are merged and before the snapshot is taken, which shows what was done to their ages.
    fn act(&mut self, _moment: &mut Moment<'_>) {}
    /// The sampling interval since the start in which [`Self::act`] is to be called next, at the latest, `now` being the
    /// present one. [`Monitor::tick`](crate::Monitor::tick) heeds it, so each such interval is a wake-up. The end of an
    /// aggregation need not be named.
    fn next_act(&self, _now: u64) -> u64 {
        u64::MAX
    }
    /// An aggregation ended: regions are merged, schemes have acted, nothing is reset yet.
    fn after_aggregation(&mut self, _targets: &mut [Target], _snapshot: &Snapshot) {}
    /// The regions were fitted to the targets' present mappings.
    fn after_update(&mut self, _targets: &[Target]) {}
    /// Interval auto-tuning changed the attributes.
    fn attrs_changed(&mut self, _attrs: &Attrs) {}
    /// Monitoring ends.
    fn before_terminate(&mut self, _targets: &[Target]) {}
}

/// No callbacks.
impl Callbacks for () {}

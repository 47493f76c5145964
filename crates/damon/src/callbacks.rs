//! Where the caller may look at, or act on, the running state (seed 001, patch 8).

use crate::{Attrs, Snapshot, Target};

/// Called by the monitor at its steps. Every method does nothing unless implemented.
pub trait Callbacks {
    /// Monitoring begins: the targets have their first regions.
    fn before_start(&mut self, _targets: &[Target]) {}
    /// A sampling interval's checks are counted.
    fn after_sampling(&mut self, _targets: &[Target]) {}
    /// An aggregation ended: regions are merged, nothing is reset yet. Schemes act here.
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

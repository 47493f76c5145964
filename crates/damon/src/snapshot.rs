//! What an aggregation hands out: the regions of every target, by value.

use crate::AddrRange;
use alloc::vec::Vec;

/// Names a target within a context. For a live process it is its pid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TargetId(pub u64);

/// One region as it stood at the end of an aggregation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegionSnapshot {
    /// Addresses of the region.
    pub range: AddrRange,
    /// Sampling intervals of the aggregation in which the region was seen accessed,
    /// 0..=[`Snapshot::max_nr_accesses`].
    pub nr_accesses: u32,
    /// The same in 1/10000 of an access (the kernel's `nr_accesses_bp`). Backends that estimate rates finer
    /// than one access an aggregation put them here; others put `nr_accesses * 10_000`.
    pub nr_accesses_bp: u32,
    /// Aggregation intervals for which the region kept about its `nr_accesses`.
    pub age: u32,
}

/// The regions of one target: sorted by address, disjoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TargetSnapshot {
    /// The target.
    pub id: TargetId,
    /// Its regions.
    pub regions: Vec<RegionSnapshot>,
}

/// The state of a context at the end of an aggregation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// When the aggregation began: nanoseconds of the caller's clock (CLOCK_MONOTONIC for live targets).
    pub start_ns: u64,
    /// When it ended.
    pub end_ns: u64,
    /// Sampling interval in force, nanoseconds.
    pub sample_ns: u64,
    /// Highest possible `nr_accesses` of this snapshot (aggregation / sampling).
    pub max_nr_accesses: u32,
    /// One entry a target.
    pub targets: Vec<TargetSnapshot>,
}

impl RegionSnapshot {
    /// Access rate in Hz given the highest possible count and the sampling interval: the share of sampling
    /// intervals with an access, times sampling intervals a second.
    pub fn rate_hz(&self, sample_ns: u64, max_nr_accesses: u32) -> f64 {
        if sample_ns == 0 || max_nr_accesses == 0 {
            return 0.0;
        }
        let share = f64::from(self.nr_accesses_bp) / 10_000.0 / f64::from(max_nr_accesses);
        share * 1e9 / sample_ns as f64
    }
}

impl Snapshot {
    /// Number of regions over all targets.
    pub fn nr_regions(&self) -> usize {
        self.targets.iter().map(|t| t.regions.len()).sum()
    }
}

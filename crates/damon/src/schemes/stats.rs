//! What a scheme did: counts from its beginning on, and the regions of its last pass.

use crate::{RegionSnapshot, TargetId};

/// Counts of a scheme since it began (kernel design document, "Statistics"; what the kernel has not is marked so). Bytes
/// saturate: a scheme for all of a large address space tries so many in some days.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Regions the action was tried on.
    pub nr_tried: u64,
    /// Bytes it was tried on: what the core's filters left, and the quota, without what was
    /// [skipped](super::Outcome::skipped).
    pub sz_tried: u64,
    /// Regions on at least a part of which it took effect.
    pub nr_applied: u64,
    /// Bytes on which it took effect.
    pub sz_applied: u64,
    /// Bytes that passed the operations' filters.
    pub sz_ops_filter_passed: u64,
    /// Quota windows that ended full.
    pub qt_exceeds: u64,
    /// Snapshots that were gone through: one a target and pass, unless the quota was full before its end.
    pub nr_snapshots: u64,
    /// Not the kernel's: passes that were made, also those that a full quota ended at once.
    pub nr_passes: u64,
    /// Not the kernel's: bytes that matched but for their rate, which is unknown, and were left alone for that. Counted in
    /// each pass, as tried bytes are.
    pub sz_unknown: u64,
    /// Not the kernel's: the same of the last pass that got to look at regions.
    pub sz_unknown_last: u64,
    /// Not the kernel's: bytes that [`Actions`](super::Actions) refused to act on. Not tried, not charged.
    pub sz_refused: u64,
    /// Not the kernel's: quota windows in which nothing was done because no goal's metric could be read.
    pub nr_blind_windows: u64,
    /// Not the kernel's: how long calls of [`Actions::apply`](super::Actions::apply) took.
    pub latencies: Latencies,
}

/// A histogram of durations: bucket `n` counts those from 2^(n-1) up to below 2^n nanoseconds, bucket 0 those of 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Latencies {
    /// Counts by bucket; the last one has all from 2^38 ns (4.6 minutes) on.
    pub buckets: [u64; Self::BUCKETS],
    /// Sum, in nanoseconds.
    pub total_ns: u64,
    /// The longest, in nanoseconds.
    pub max_ns: u64,
}

impl Default for Latencies {
    fn default() -> Self {
        Self { buckets: [0; Self::BUCKETS], total_ns: 0, max_ns: 0 }
    }
}

impl Latencies {
    /// Number of buckets.
    pub const BUCKETS: usize = 40;

    pub(super) fn add(&mut self, ns: u64) {
        let bucket = (u64::BITS - ns.leading_zeros()) as usize;
        if let Some(count) = self.buckets.get_mut(bucket.min(Self::BUCKETS - 1)) {
            *count += 1;
        }
        self.total_ns = self.total_ns.saturating_add(ns);
        self.max_ns = self.max_ns.max(ns);
    }

    /// How many there were.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// A duration, in nanoseconds, that `percent` of all stay at or below, correct to a factor of two; 0 if there were none.
    pub fn percentile(&self, percent: u32) -> u64 {
        let wanted = (u128::from(self.count()) * u128::from(percent.min(100))).div_ceil(100);
        let mut passed = 0u128;
        for (bucket, count) in self.buckets.iter().enumerate() {
            passed += u128::from(*count);
            if passed >= wanted && passed > 0 && bucket + 1 < Self::BUCKETS {
                return ((1u64 << bucket) - 1).min(self.max_ns);
            }
        }
        self.max_ns
    }
}

/// A region that a scheme got to, after the core's filters and the quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TriedRegion {
    /// Whose it is.
    pub target: TargetId,
    /// The part that was tried, and what was known of it; `nr_accesses` is the moving sum.
    pub region: RegionSnapshot,
    /// Bytes of it that passed the operations' filters.
    pub sz_filter_passed: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_fall_into_powers_of_two() {
        let mut all = Latencies::default();
        assert_eq!(all.percentile(50), 0);
        for ns in [0, 1, 2, 3, 1000, 1 << 38, u64::MAX] {
            all.add(ns);
        }
        assert_eq!((all.buckets[0], all.buckets[1], all.buckets[2], all.buckets[10]), (1, 1, 2, 1));
        assert_eq!((all.buckets[39], all.count(), all.max_ns), (2, 7, u64::MAX));
        assert_eq!((all.percentile(0), all.percentile(50), all.percentile(70)), (0, 3, 1023));
        assert_eq!(all.percentile(100), u64::MAX);
    }
}

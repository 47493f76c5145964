//! The ways in which faults find their VMA, and what was counted of them.

use isotherm_mm::LockStats;
use serde::Serialize;

/// How faults find their VMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// Under `mmap_lock` alone.
    MmapLock,
    /// Under per-VMA locks as the series of January 2023 has them.
    Sequence,
    /// Under a count of references, as Linux has it since 6.15.
    Counted,
    /// Without a write that CPUs share.
    Biased,
}

impl Way {
    /// All, the one first that the others are compared with.
    pub const ALL: [Self; 4] = [Self::MmapLock, Self::Sequence, Self::Counted, Self::Biased];

    /// In a few words.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::MmapLock => "mmap_lock",
            Self::Sequence => "per-VMA, sequence",
            Self::Counted => "per-VMA, counted",
            Self::Biased => "per-VMA, biased",
        }
    }
}

/// How look-ups under per-VMA locks ended, of all runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Lookups {
    /// Faults, as those counted who made them.
    pub faults: u64,
    /// Handled under the VMA's lock.
    pub success: u64,
    /// Begun under the VMA's lock, and started again under `mmap_lock`.
    pub retry: u64,
    /// No VMA has the address.
    pub not_mapped: u64,
    /// The VMA maps shared memory.
    pub object: u64,
    /// Nothing was written to the VMA before.
    pub no_anon: u64,
    /// Faults in the VMA are somebody else's.
    pub user: u64,
    /// The VMA was write-locked.
    pub locked: u64,
    /// The VMA did not have the address any more.
    pub moved: u64,
    /// The VMA did not permit the access.
    pub access: u64,
    /// Look-ups that began anew, as the VMA had been taken out. They end as one of the others.
    pub miss: u64,
}

impl Lookups {
    pub(super) fn add(&mut self, faults: u64, stats: LockStats) {
        self.faults += faults;
        self.success += stats.success;
        self.retry += stats.retry;
        self.not_mapped += stats.not_mapped;
        self.object += stats.object;
        self.no_anon += stats.no_anon;
        self.user += stats.user;
        self.locked += stats.locked;
        self.moved += stats.moved;
        self.access += stats.access;
        self.miss += stats.miss;
    }

    /// All that were not handled under the VMA's lock, by their reasons.
    #[must_use]
    pub const fn reasons(&self) -> [(&'static str, u64); 8] {
        [
            ("retried", self.retry),
            ("not mapped", self.not_mapped),
            ("shared memory", self.object),
            ("first write", self.no_anon),
            ("registered", self.user),
            ("write-locked", self.locked),
            ("moved", self.moved),
            ("not permitted", self.access),
        ]
    }

    /// Whether each fault ended in one of the ways.
    #[must_use]
    pub fn adds_up(&self) -> bool {
        self.success + self.reasons().iter().map(|(_, count)| count).sum::<u64>() == self.faults
    }

    /// The share that was handled under the VMA's lock; `None` if there were none.
    #[must_use]
    pub fn share(&self) -> Option<f64> {
        (self.faults > 0).then(|| self.success as f64 / self.faults as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fault_has_one_end() {
        let mut lookups = Lookups::default();
        let stats = LockStats { success: 90, no_anon: 7, locked: 3, miss: 5, ..LockStats::default() };
        lookups.add(100, stats);
        assert!(lookups.adds_up());
        assert_eq!(lookups.share(), Some(0.9));
        lookups.add(1, LockStats::default());
        assert!(!lookups.adds_up());
        assert_eq!(Lookups::default().share(), None);
    }
}

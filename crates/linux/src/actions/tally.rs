//! Memory that an action did not take effect on, by reason.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Why present memory that an action was meant for stayed as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Reason {
    /// Several processes map it: what one of them seldom uses another may.
    Shared,
    /// It is locked (mlock(2)), or otherwise not subject to reclaim.
    Locked,
    /// It is of hugetlbfs.
    Hugetlb,
    /// The folio is only partly within the region, or mapped in pieces: it would have been split.
    PartOfFolio,
    /// It is no memory that can be acted on: the zero page, a device's.
    Device,
    /// What folio it is part of could not be found out.
    UnknownFolio,
    /// It was accessed since its Accessed bit was last cleared, which it is now: it has its turn when that stays so. It is not
    /// tried, nor charged to a quota.
    Young,
    /// It lies in no mapping that was read: a new one, which is read soon.
    NewMapping,
    /// Its mapping refused the advice (EINVAL).
    Refused,
    /// Something was in the way for the moment (EAGAIN, EBUSY).
    Busy,
    /// There was no memory for it, or it was unmapped meanwhile (ENOMEM).
    NoMemory,
    /// It can go nowhere but to swap, and there is none, or none left. It is not tried, nor charged to a quota.
    NoSwap,
    /// The kernel took the advice and kept it nonetheless: dirty, in use by the kernel, or beyond a cgroup's limit of swap.
    Kept,
    /// This action, or this one on such memory, cannot be taken from user space here.
    Unsupported,
    /// The process may not be acted on (EPERM).
    NotPermitted,
}

impl Reason {
    /// All of them.
    pub const ALL: [Self; 15] = [
        Self::Shared,
        Self::Locked,
        Self::Hugetlb,
        Self::PartOfFolio,
        Self::Device,
        Self::UnknownFolio,
        Self::Young,
        Self::NewMapping,
        Self::Refused,
        Self::Busy,
        Self::NoMemory,
        Self::NoSwap,
        Self::Kept,
        Self::Unsupported,
        Self::NotPermitted,
    ];

    /// As logs have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Shared => "shared",
            Self::Locked => "locked",
            Self::Hugetlb => "hugetlb",
            Self::PartOfFolio => "part_of_folio",
            Self::Device => "device",
            Self::UnknownFolio => "unknown_folio",
            Self::Young => "young",
            Self::NewMapping => "new_mapping",
            Self::Refused => "refused",
            Self::Busy => "busy",
            Self::NoMemory => "no_memory",
            Self::NoSwap => "no_swap",
            Self::Kept => "kept",
            Self::Unsupported => "unsupported",
            Self::NotPermitted => "not_permitted",
        }
    }

    /// As people read it, of memory.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Shared => "shared with other processes",
            Self::Locked => "locked",
            Self::Hugetlb => "of hugetlbfs",
            Self::PartOfFolio => "part of a larger folio",
            Self::Device => "no reclaimable memory",
            Self::UnknownFolio => "of an unknown folio",
            Self::Young => "accessed since it was last looked at",
            Self::NewMapping => "of a mapping too new to be known",
            Self::Refused => "refused by its mapping",
            Self::Busy => "busy",
            Self::NoMemory => "without memory to do it",
            Self::NoSwap => "without room in swap",
            Self::Kept => "kept by the kernel",
            Self::Unsupported => "not possible from user space",
            Self::NotPermitted => "not permitted",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.words())
    }
}

/// Bytes by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftAlone([u64; Reason::ALL.len()]);

impl LeftAlone {
    /// Bytes for one reason.
    pub fn get(&self, reason: Reason) -> u64 {
        self.0.get(reason as usize).copied().unwrap_or(0)
    }

    /// Bytes for all of them.
    pub fn total(&self) -> u64 {
        self.0.iter().fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    /// The reasons there were, with bytes.
    pub fn iter(&self) -> impl Iterator<Item = (Reason, u64)> + '_ {
        Reason::ALL.into_iter().zip(self.0).filter(|(_, bytes)| *bytes > 0)
    }

    pub(super) fn add(&mut self, reason: Reason, bytes: u64) {
        if let Some(count) = self.0.get_mut(reason as usize) {
            *count = count.saturating_add(bytes);
        }
    }

    pub(super) fn add_all(&mut self, other: &Self) {
        for (reason, bytes) in other.iter() {
            self.add(reason, bytes);
        }
    }
}

//! The access check of one kind of address space.

use crate::{AddrRange, TargetId};
use alloc::vec::Vec;

/// What a check found at an address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Seen {
    /// Not looked at yet.
    #[default]
    Unchecked,
    /// Nothing is mapped there: not accessed, and it needs no preparing.
    Absent,
    /// Not accessed since it was last prepared.
    Idle,
    /// Accessed since it was last prepared (or never prepared).
    Accessed,
    /// The backend cannot tell (shared by several processes, mlocked, ...); says nothing about accesses.
    Blind,
}

/// One access check: where to look, and what was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Check {
    /// Which target's address space.
    pub target: TargetId,
    /// The address to look at.
    pub addr: u64,
    /// Found by [`Operations::check`] and, where preparing fails, by [`Operations::prepare`].
    pub seen: Seen,
    /// What one look stands for, in bytes: the size of the aligned block around `addr` that shares one
    /// Accessed bit (a page, a huge page). Set by [`Operations::check`].
    pub unit: u64,
}

impl Check {
    /// A check of `addr` in `target`, not yet done.
    pub const fn new(target: TargetId, addr: u64) -> Self {
        Self { target, addr, seen: Seen::Unchecked, unit: 0 }
    }
}

/// The operations of one kind of address space (kernel design document, "Operations set layer").
///
/// A page is *prepared* (its Accessed bit cleared) and *checked* later; what is not accessed stays idle, however
/// long it is watched, so a page prepared once can be checked any number of times.
pub trait Operations {
    /// The address ranges of `target` to monitor: sorted, disjoint. Called at the start and at every regions
    /// update. Empty when nothing is mapped (or the target is gone).
    fn ranges(&mut self, target: TargetId) -> Vec<AddrRange>;

    /// Targets whose ranges may have changed since the last call; asked at every regions update.
    fn take_changed(&mut self) -> Vec<TargetId>;

    /// Prepares every check's page: from now on it counts as not accessed. Called only with pages worth it: what
    /// the last check saw `Accessed`, or what was never looked at. Sets `seen` to [`Seen::Idle`] where that
    /// worked and to what stood in its way elsewhere.
    fn prepare(&mut self, checks: &mut [Check]);

    /// Looks at every check's page and sets `seen` and `unit`. Must not change what the next check sees.
    fn check(&mut self, checks: &mut [Check]);

    /// Whether the target still lives. A dead target keeps its last regions until it is removed.
    fn is_alive(&mut self, target: TargetId) -> bool;
}

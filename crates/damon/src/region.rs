//! Regions and targets: the state that sampling fills and adaptation reshapes.

use crate::{AddrRange, RegionSnapshot, TargetId};
use alloc::vec::Vec;

/// A range of addresses whose pages are taken to be accessed alike.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Region {
    /// Addresses, aligned to the target's `min_region`.
    pub range: AddrRange,
    /// Sampling intervals of the running aggregation in which the region was seen accessed.
    pub nr_accesses: u32,
    /// The same in 1/10000 of an access, where the sampler knows better than whole ones. Saturates.
    pub nr_accesses_bp: u32,
    /// `nr_accesses` at the end of the last aggregation.
    pub last_nr_accesses: u32,
    /// Aggregations for which `nr_accesses` stayed about the same.
    pub age: u32,
    /// See [`RegionSnapshot::seen_bp`].
    pub seen_bp: u16,
    /// See [`RegionSnapshot::exposure`].
    pub exposure: u32,
    /// See [`RegionSnapshot::resident`].
    pub resident: Option<u64>,
    /// See [`RegionSnapshot::idle_bp`].
    pub idle_bp: u16,
}

impl Region {
    /// A fresh region over `range`, of which nothing is known.
    pub const fn new(range: AddrRange) -> Self {
        Self {
            range,
            nr_accesses: 0,
            nr_accesses_bp: 0,
            last_nr_accesses: 0,
            age: 0,
            seen_bp: 0,
            exposure: 0,
            resident: None,
            idle_bp: 0,
        }
    }

    /// `nr_accesses` as it would be if the aggregation, of which `passed` in 0..=10000 (basis points) lies behind,
    /// ended like the last one: current + last x remaining fraction (kernel's moving sum).
    pub fn moving_sum(&self, passed_bp: u32) -> u32 {
        let remaining = u64::from(10_000 - passed_bp.min(10_000));
        self.nr_accesses + (u64::from(self.last_nr_accesses) * remaining / 10_000) as u32
    }

    /// Cuts the region at `addr`, which must lie strictly inside; both halves inherit all counts, and a share of what is
    /// resident.
    pub(crate) fn split_at(&mut self, addr: u64) -> Self {
        debug_assert!(self.range.start < addr && addr < self.range.end);
        let (left, size) = (u128::from(addr - self.range.start), u128::from(self.range.size().max(1)));
        let whole = self.resident;
        self.resident = whole.map(|bytes| (u128::from(bytes) * left / size) as u64);
        let resident = whole.zip(self.resident).map(|(all, left)| all - left);
        let right = Self { range: AddrRange::new(addr, self.range.end), resident, ..*self };
        self.range.end = addr;
        right
    }

    /// Accesses in 1/10000 of one ([`RegionSnapshot::accesses_bp`]).
    pub(crate) const fn accesses_bp(&self) -> u64 {
        crate::snapshot::accesses_bp(self.nr_accesses, self.nr_accesses_bp)
    }

    /// The share of it that is idle, in basis points, also if that is all.
    fn idle(&self) -> u16 {
        if self.accesses_bp() == 0 && self.seen_bp > 0 { 10_000 } else { self.idle_bp }
    }

    /// Takes in the right-hand neighbour: counts and ages become size-weighted integer means, and so
    /// does what was seen, of what is there.
    pub(crate) fn absorb(&mut self, right: &Self) {
        let (l, r) = (u128::from(self.range.size()), u128::from(right.range.size()));
        let mean = |a: u32, b: u32| ((u128::from(a) * l + u128::from(b) * r) / (l + r).max(1)) as u32;
        let idle = [self.idle(), right.idle()];
        // Of what saturated the mean would be too small.
        let fine =
            (u128::from(self.accesses_bp()) * l + u128::from(right.accesses_bp()) * r) / (l + r).max(1);
        self.nr_accesses = mean(self.nr_accesses, right.nr_accesses);
        self.nr_accesses_bp = u32::try_from(fine).unwrap_or(u32::MAX);
        self.last_nr_accesses = mean(self.last_nr_accesses, right.last_nr_accesses);
        self.age = mean(self.age, right.age);
        // Of what is not there nothing was tried.
        let there = self.resident.zip(right.resident).filter(|(a, b)| a.saturating_add(*b) > 0);
        let (l, r) = there.map_or((l, r), |(a, b)| (u128::from(a), u128::from(b)));
        if self.idle_bp > 0 || right.idle_bp > 0 {
            let [a, b] = idle.map(u128::from);
            self.idle_bp = ((a * l + b * r) / (l + r).max(1)).min(9999) as u16;
        }
        let seen = (u128::from(self.seen_bp) * l + u128::from(right.seen_bp) * r) / (l + r).max(1);
        // What is known in part is not unknown.
        self.seen_bp = (seen as u16).max(u16::from(self.seen_bp > 0 && right.seen_bp > 0));
        self.exposure = self.exposure.saturating_add(right.exposure);
        self.resident = self.resident.zip(right.resident).map(|(a, b)| a.saturating_add(b));
        self.range.end = right.range.end;
    }

    /// The region as handed out.
    pub fn snapshot(&self) -> RegionSnapshot {
        RegionSnapshot {
            range: self.range,
            nr_accesses: self.nr_accesses,
            nr_accesses_bp: self.nr_accesses_bp,
            age: self.age,
            seen_bp: self.seen_bp,
            exposure: self.exposure,
            resident: self.resident,
            idle_bp: self.idle_bp,
        }
    }
}

/// One monitored address space.
#[derive(Clone, Debug, Default)]
pub struct Target {
    /// Its name.
    pub id: TargetId,
    /// Its regions: sorted, disjoint, aligned.
    pub regions: Vec<Region>,
    /// The ranges to monitor, as the operations last gave them: sorted, disjoint.
    pub ranges: Vec<AddrRange>,
    /// The ranges are others than the regions were made for.
    pub(crate) moved: bool,
    /// Nothing but ages differs from the last snapshot.
    pub(crate) steady: bool,
    /// Highest `nr_accesses` of its regions at the last snapshot.
    pub(crate) highest: u32,
}

impl Target {
    /// A target with regions (sorted, disjoint) that come from elsewhere than a monitor, such as a recording: for
    /// [`Moment::new`](crate::Moment::new).
    pub fn new(id: TargetId, regions: Vec<Region>) -> Self {
        let ranges = regions.iter().map(|r| r.range).collect();
        Self { id, regions, ranges, ..Self::default() }
    }

    /// Bytes in all regions.
    pub fn size(&self) -> u64 {
        self.regions.iter().map(|r| r.range.size()).sum()
    }
}

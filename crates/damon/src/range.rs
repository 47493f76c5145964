//! A half-open range of addresses.

/// A half-open range of addresses in bytes, `start..end`.
///
/// Unlike [`core::ops::Range`] it is `Copy`, so that regions can carry one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AddrRange {
    /// First address of the range.
    pub start: u64,
    /// First address past the range.
    pub end: u64,
}

impl AddrRange {
    /// The range `start..end`. A range whose end does not lie past its start is empty.
    pub const fn new(start: u64, end: u64) -> Self {
        Self { start, end }
    }

    /// Size in bytes; 0 for an empty range.
    pub const fn size(self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// Whether no address lies in the range.
    pub const fn is_empty(self) -> bool {
        self.end <= self.start
    }

    /// Whether `addr` lies in the range.
    pub const fn contains(self, addr: u64) -> bool {
        self.start <= addr && addr < self.end
    }

    /// Whether the two ranges share an address.
    pub const fn intersects(self, other: Self) -> bool {
        self.start < other.end && other.start < self.end
    }

    /// The addresses in both ranges; empty when they share none.
    pub fn intersection(self, other: Self) -> Self {
        let start = self.start.max(other.start);
        Self { start, end: self.end.min(other.end).max(start) }
    }
}

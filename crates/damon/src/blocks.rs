//! Access checks of whole blocks: the operations of an address space whose page tables can be read.
//!
//! What one page table of the lowest level maps is a *block*: 512 pages, 2 MiB. Reading the table shows all of its Accessed
//! bits for the price of two or three single ones, and which pages are present at all; the tables above it show in which
//! blocks there is anything. So a look is cheap and complete, and what has to be chosen with care is what to clear.

use crate::{AddrRange, Operations, PAGE_SIZE, TargetId};
use alloc::vec::Vec;
use core::time::Duration;

/// Bytes of a block: what a page table of the lowest level, or a huge page, maps.
pub const BLOCK_SIZE: u64 = 2 << 20;
/// Pages of a block.
pub const BLOCK_PAGES: usize = (BLOCK_SIZE / PAGE_SIZE) as usize;

/// A bit a page of a block, the page at the lowest address first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pages(pub [u64; BLOCK_PAGES / 64]);

impl Pages {
    /// All pages of a block.
    pub const ALL: Self = Self([u64::MAX; BLOCK_PAGES / 64]);
    /// None.
    pub const NONE: Self = Self([0; BLOCK_PAGES / 64]);

    /// How many.
    pub fn count(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether none is in.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// Whether the page is in.
    pub fn contains(&self, page: usize) -> bool {
        self.0.get(page / 64).is_some_and(|word| word >> (page % 64) & 1 != 0)
    }

    /// Takes the page in. Pages past the block's end are none of it.
    pub fn insert(&mut self, page: usize) {
        if let Some(word) = self.0.get_mut(page / 64) {
            *word |= 1 << (page % 64);
        }
    }
}

/// What maps a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mapped {
    /// Could not be read this time: nothing is known.
    #[default]
    Unknown,
    /// Nothing is present in it.
    Absent,
    /// A page table: a bit a page.
    Table,
    /// A huge page, or part of one that is still larger: one Accessed bit for all of the block.
    Huge,
}

/// A look at a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockLook {
    /// Its first address, a multiple of [`BLOCK_SIZE`].
    pub addr: u64,
    /// What maps it.
    pub mapped: Mapped,
    /// Pages present in memory; of a huge page all.
    pub present: Pages,
    /// Pages whose Accessed bit is set; of a huge page all or none.
    pub young: Pages,
    /// Pages that may be written to without a fault, of those present: memory that a fork shares is not, until it is copied. Only a
    /// hint at what can be cleared alone: where it is not known, none.
    pub writable: Pages,
    /// Pages that the kernel may have mapped on its own account, those around one that was accessed (fault-around), of those
    /// present: of files or shared memory, as far as entries tell, and never written to. They come with their Accessed bits set, so
    /// that they are there tells no access. Where it is not known, none.
    pub around: Pages,
}

impl BlockLook {
    /// A look at the block at `addr`, not yet done.
    pub fn at(addr: u64) -> Self {
        Self { addr, ..Self::default() }
    }
}

/// What became of a range that was to be cleared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cleared {
    /// The target could not be reached: nothing was done.
    #[default]
    NotDone,
    /// The kernel took it. Pages that other processes map as well are silently left alone: only the next look says
    /// which bits are clear.
    Done,
    /// The kernel does not clear such memory (locked, hugetlb, devices).
    Refused,
    /// It would split a large folio, and was left alone.
    WouldSplit,
}

/// A range to clear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeClear {
    /// Neighbouring pages that were present at the last look, within one block.
    pub range: AddrRange,
    /// What became of it.
    pub cleared: Cleared,
}

/// Why the Accessed bit of a page cannot be cleared on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// Mapped here alone: it can.
    Exclusive,
    /// Other processes map it too.
    Shared,
    /// Locked, hugetlb, the zero page, a device's.
    Unclearable,
    /// Not present, or it could not be found out.
    Unknown,
}

/// Which memory a sweep clears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sweep {
    /// Private memory without a file.
    Anonymous,
    /// Files and shared memory.
    Mapped,
    /// Both.
    All,
}

/// What a target has run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ran {
    /// Another number whenever any part of it ran in between: about its CPU time, ns.
    pub mark: u64,
    /// It runs at this moment.
    pub now: bool,
}

/// Operations that look at blocks. An address space may give up such a look at any time (the target execs, dies, is
/// busy); whoever called tries again later.
pub trait BlockOperations: Operations {
    /// The first addresses of all blocks in which anything is present, in order. False if they could not be read; what
    /// is in `blocks` says nothing then.
    fn survey(&mut self, target: TargetId, blocks: &mut Vec<u64>) -> bool;

    /// Looks at blocks, in order of their addresses. Changes nothing. False if none could be read.
    fn look(&mut self, target: TargetId, blocks: &mut [BlockLook]) -> bool;

    /// Clears the Accessed bits of all pages in the ranges (sorted), and sees to it that the next access sets them again
    /// (flushes translations).
    fn clear(&mut self, target: TargetId, ranges: &mut [RangeClear]);

    /// Who maps the pages at `addrs`; one answer each, in order, replaced in `found`.
    fn ownership(&mut self, target: TargetId, addrs: &[u64], found: &mut Vec<Ownership>);

    /// Clears the Accessed bits of all of the target's memory of a kind, whoever else maps it. Translations are *not*
    /// flushed: what a processor holds one of shows as idle until it drops it. False if it cannot be done here.
    fn sweep(&mut self, target: TargetId, kind: Sweep) -> bool;

    /// How many mappings the target has, each of which a sweep goes through; `None` while that is being found out. Where it
    /// makes no difference, 0.
    fn mappings(&mut self, _target: TargetId) -> Option<usize> {
        Some(0)
    }

    /// For how long the target's address space has been there, at most; `None`: not known. What is found accessed in a young
    /// one was so not long ago.
    fn age(&mut self, _target: TargetId) -> Option<Duration> {
        None
    }

    /// Whether each of the targets runs, and a mark of how long it has. One that did not run accessed nothing, which costs next
    /// to nothing to know. `None` of one of which that cannot be told; nothing at all in `found`, which is replaced, where it
    /// can be told of none, now or later.
    fn ran(&mut self, _targets: &[TargetId], found: &mut Vec<Option<Ran>>) {
        found.clear();
    }

    /// Nanoseconds of the clock that drives the monitor since the running sampling interval began. Where clears take their
    /// time, or the monitor is woken up late, windows are longer or shorter than the intervals they are counted in.
    fn elapsed_ns(&mut self) -> u64 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_past_the_end_are_none_of_the_block() {
        let mut pages = Pages::NONE;
        pages.insert(511);
        pages.insert(512);
        assert!(pages.contains(511) && !pages.contains(512) && pages.count() == 1 && !pages.is_empty());
        assert_eq!(Pages::ALL.count(), BLOCK_PAGES);
    }
}

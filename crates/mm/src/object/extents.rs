//! Where an object is mapped: its reverse map (`i_mmap`).
//!
//! An extent is a stretch of addresses of a space at which a stretch of the object is mapped. It is not a VMA: what splits and
//! merges VMAs without moving pages, as `mprotect` and `madvise`, leaves extents as they are. They are sorted by space and
//! address; who looks for a page goes through all.

use alloc::vec::Vec;
use core::ops::Range;

use isotherm_pagetable::{Format, Machine, PageRange, VirtAddr};

use crate::error::Error;
use crate::flags::{PAGE_SHIFT, VmFlags};
use crate::paged::Mm;
use crate::shared::Shared;
use crate::vma::VmaInfo;

pub(crate) struct Extent<'m, F: Format, M: Machine> {
    pub(crate) mm: Shared<Mm<'m, F, M>>,
    /// Addresses.
    range: Range<u64>,
    /// The page of the object at the first address.
    pgoff: u64,
    /// Writes are seen by all who map the object; else pages may be copies, which are the space's own.
    pub(crate) shared: bool,
}

impl<'m, F: Format, M: Machine> Extent<'m, F, M> {
    fn key(&self) -> (u64, u64) {
        key(&self.mm, self.range.start)
    }

    fn part(&self, start: u64, end: u64) -> Self {
        let pgoff = self.pgoff + ((start - self.range.start) >> PAGE_SHIFT);
        Self { mm: self.mm.clone(), range: start..end, pgoff, shared: self.shared }
    }

    /// Where these pages of the object are, and which is the first that is there.
    pub(crate) fn find(&self, pages: &Range<u64>) -> Option<(PageRange, u64)> {
        let end = self.pgoff + ((self.range.end - self.range.start) >> PAGE_SHIFT);
        let (first, last) = (pages.start.max(self.pgoff), pages.end.min(end));
        let count = last.checked_sub(first).filter(|&count| count > 0)?;
        let start = self.range.start + ((first - self.pgoff) << PAGE_SHIFT);
        Some((PageRange::with_pages(VirtAddr(start), count).ok()?, first))
    }
}

fn key<F: Format, M: Machine>(mm: &Mm<'_, F, M>, start: u64) -> (u64, u64) {
    (mm.tables.id().root.0, start)
}

pub(crate) struct Extents<'m, F: Format, M: Machine> {
    all: Vec<Extent<'m, F, M>>,
    /// So many more there is room for, promised to operations that are under way.
    promised: usize,
}

impl<'m, F: Format, M: Machine> Extents<'m, F, M> {
    pub(crate) const fn new() -> Self {
        Self { all: Vec::new(), promised: 0 }
    }

    pub(crate) fn iter(&self) -> core::slice::Iter<'_, Extent<'m, F, M>> {
        self.all.iter()
    }

    /// Makes room for so many extents more, until [`unreserve`](Self::unreserve).
    pub(crate) fn reserve(&mut self, more: usize) -> Result<(), Error> {
        self.all.try_reserve(self.promised + more).map_err(|_| Error::NoMemory)?;
        self.promised += more;
        Ok(())
    }

    pub(crate) fn unreserve(&mut self, more: usize) {
        self.promised = self.promised.saturating_sub(more);
    }

    fn insert(&mut self, new: Extent<'m, F, M>) {
        debug_assert!(self.all.len() < self.all.capacity(), "no room was reserved");
        let at = self.all.partition_point(|one| one.key() < new.key());
        self.all.insert(at, new);
    }

    /// The VMA maps the object, which is `pgoff` pages in at its start. Room is reserved.
    pub(crate) fn attach(&mut self, mm: &Shared<Mm<'m, F, M>>, vma: &VmaInfo, pgoff: u64) {
        let shared = vma.flags.contains(VmFlags::SHARED);
        self.insert(Extent { mm: mm.clone(), range: vma.range(), pgoff, shared });
    }

    /// Addresses do not map the object any more. If an extent is split by that, room is reserved.
    pub(crate) fn detach(&mut self, mm: &Shared<Mm<'m, F, M>>, range: Range<u64>) {
        let first = self.all.partition_point(|one| one.key() < key(mm, range.start));
        // One that begins before may reach into the range.
        let mut at = first.saturating_sub(1);
        while let Some(one) = self.all.get(at) {
            let (start, end) = (one.range.start, one.range.end);
            if !one.mm.is(mm) || end <= range.start || start >= range.end {
                if one.key() >= key(mm, range.end) {
                    break;
                }
                at += 1;
                continue;
            }
            let low = (start < range.start).then(|| one.part(start, range.start));
            let high = (end > range.end).then(|| one.part(range.end, end));
            match (low, high) {
                (None, None) => drop(self.all.remove(at)),
                (Some(low), high) => {
                    self.replace(at, low);
                    if let Some(high) = high {
                        self.insert(high);
                    }
                    at += 1;
                }
                (None, Some(high)) => {
                    self.replace(at, high);
                    at += 1;
                }
            }
        }
    }

    fn replace(&mut self, at: usize, by: Extent<'m, F, M>) {
        if let Some(one) = self.all.get_mut(at) {
            *one = by;
        }
    }
}

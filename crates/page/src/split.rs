//! Splitting a folio into smaller ones, mapped or not (Linux' `split_huge_page`).
//!
//! Whoever splits holds a reference, knows all mappings, and keeps them from coming and going: by the locks of the tables
//! that their entries are in. Then the counts say whether there is any other reference. One compare-exchange takes them from
//! what they must be to 0 (Linux' `folio_ref_freeze`), and fails if anybody else refers to the folio: a pin, a page that was
//! unmapped and waits for the TLB's flush, a fork that has counted and not stored. While they are 0 a stale look gets no
//! reference, as of a folio that is freed. What each page is, is written then; the counts of the pieces come last, with
//! release. A look that began before finds a head whose order does not reach its frame any more, and looks again.

use crate::folio::Folio;
use crate::info::{DIRTY, Info, Kind, REFERENCED};
use crate::sync::Ordering;
use crate::view::FolioView;
use crate::{Block, Frame, Order, OwnedBlock, PageError, PageMeta, Pages};

/// No folio's count: what a piece's word holds while its mappings are counted. See [`PageMeta`].
const COUNTING: u64 = 1 << 31;
/// One mapping.
const MAP: u64 = 1 << 32;

impl<'m, P: Pages + ?Sized> Folio<'m, P> {
    /// Splits a folio that is not mapped, and to which this is the only reference, into folios of `order`, each with one
    /// reference. Dirty and referenced marks are those of all pieces from then on, as nobody knows whose they were. A folio
    /// that is not larger comes out as it is.
    ///
    /// Where reverse maps are kept, [`PageArray::spread_reverse_map`](crate::PageArray::spread_reverse_map) comes first.
    ///
    /// # Errors
    /// The folio comes back, with [`PageError::Referenced`] if it is mapped or somebody else refers to it.
    pub fn split(self, order: Order) -> Result<Pieces<'m, P>, (PageError, Self)> {
        if order >= self.order() {
            let (pages, next, order) = (self.pages, self.head(), self.order());
            let _raw = self.into_raw();
            return Ok(Pieces { pages, next, left: 1, order });
        }
        // SAFETY: there is no mapping, or it fails.
        Ok(unsafe { self.begin_split(order, 0) }?.finish())
    }

    /// Takes all references of a folio, `maps` mappings and this one, to split it. Until it is
    /// [finished](Splitting::finish) nobody gets another.
    ///
    /// # Errors
    /// The folio comes back, with [`PageError::Referenced`] if there are other mappings or references.
    ///
    /// # Safety
    /// No mapping of the folio is added or goes before it is finished, and [`mapped`](Splitting::mapped) is called for each.
    pub unsafe fn begin_split(self, order: Order, maps: u32) -> Result<Splitting<'m, P>, (PageError, Self)> {
        let order = order.min(self.order());
        let counts = (u64::from(maps) * MAP) | (u64::from(maps) + 1);
        // Acquire: what those did to the folio who had references happens before.
        let frozen =
            self.view.meta.counts.compare_exchange(counts, 0, Ordering::Acquire, Ordering::Relaxed).is_ok();
        if !frozen {
            return Err((PageError::Referenced, self));
        }
        let this = core::mem::ManuallyDrop::new(self);
        let whole = Block::new(this.view.head, this.view.order());
        Ok(Splitting { pages: this.pages, whole, info: this.view.meta.load(), order, maps })
    }
}

/// A folio that is being split: its references are all here. Dropped, its memory is lost.
#[must_use = "finish it: dropped, the folio's memory is lost"]
pub struct Splitting<'m, P: Pages + ?Sized> {
    pages: &'m P,
    whole: Block,
    info: Info,
    order: Order,
    /// Mappings that were not named yet.
    maps: u32,
}

impl<'m, P: Pages + ?Sized> Splitting<'m, P> {
    /// `pages` pages from `frame` on, all of one piece, are mapped by one entry or run of entries.
    ///
    /// # Panics
    /// If these are more than there are mappings, or the frame is none of the folio's: its counts are another's.
    pub fn mapped(&mut self, frame: Frame, pages: u32) {
        assert!(pages <= self.maps, "{} is mapped more often than it is", self.whole);
        let offset = frame.0.wrapping_sub(self.whole.frame.0);
        assert!(offset < self.whole.order.frames(), "{frame} is no frame of {}", self.whole);
        self.maps -= pages;
        let offset = offset & !(self.order.frames() - 1);
        if let Some(meta) = self.meta(offset) {
            // Relaxed: nobody else changes it, and who looks finds that it is no count.
            let counts = meta.counts.load(Ordering::Relaxed);
            meta.counts.store((counts | COUNTING) + u64::from(pages) * MAP, Ordering::Relaxed);
        }
    }

    /// Makes the pieces. Each has the references of its mappings, and the one that comes out.
    ///
    /// # Panics
    /// If [`mapped`](Self::mapped) was not called for all mappings.
    pub fn finish(self) -> Pieces<'m, P> {
        assert_eq!(self.maps, 0, "mappings of {} that nobody counted", self.whole);
        if self.order < self.whole.order {
            // Before any piece can be freed.
            // SAFETY: the folio's block was allocated by this allocator, as a whole or as a piece (`Folio::new`). All references to it
            // are here, and its counts are 0, so there is no other way to it. The value goes to the allocator alone.
            unsafe { self.pages.split(OwnedBlock::new(self.whole), self.order) };
        }
        let kind = if self.info.is_anon() { Kind::Anon } else { Kind::File };
        let marks = self.info.0 & (DIRTY | REFERENCED);
        let size = self.order.frames();
        for n in 0..self.whole.order.frames() {
            let Some(meta) = self.meta(n) else { continue };
            let offset = (n & (size - 1)) as u32;
            let info = meta.load().become_kind(kind, self.order.get(), offset);
            if offset == 0 {
                // No pin, for there is no other reference.
                meta.word.store(0, Ordering::Relaxed);
                meta.store(Info(info.0 | marks));
            } else {
                meta.store(info);
            }
        }
        for n in (0..self.whole.order.frames()).step_by(size as usize) {
            let Some(meta) = self.meta(n) else { continue };
            let maps = meta.counts.load(Ordering::Relaxed) >> 32;
            // Release: whoever gets a reference sees what the pages are.
            meta.counts.store((maps * MAP) | (maps + 1), Ordering::Release);
        }
        let left = self.whole.order.frames() / size;
        Pieces { pages: self.pages, next: self.whole.frame, left, order: self.order }
    }

    fn meta(&self, offset: u64) -> Option<&'m PageMeta> {
        self.pages.meta(self.whole.frame.add(offset))
    }
}

impl<P: Pages + ?Sized> core::fmt::Debug for Splitting<'_, P> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} being split into order {}, {} mappings to count", self.whole, self.order, self.maps)
    }
}

/// The folios that a larger one was split into, a reference to each: in the order of their frames. Dropped, those that were
/// not taken are given back: pieces that are mapped stay, the others are freed.
#[must_use = "dropped, pieces that are not mapped are freed"]
pub struct Pieces<'m, P: Pages + ?Sized> {
    pages: &'m P,
    next: Frame,
    left: u64,
    order: Order,
}

impl<'m, P: Pages + ?Sized> Iterator for Pieces<'m, P> {
    type Item = Folio<'m, P>;

    fn next(&mut self) -> Option<Folio<'m, P>> {
        self.left = self.left.checked_sub(1)?;
        let head = self.next;
        self.next = head.add(self.order.frames());
        let meta = self.pages.meta(head)?;
        let view = FolioView { head, info: meta.load(), offset: 0, meta };
        Some(Folio { pages: self.pages, view })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left as usize, Some(self.left as usize))
    }
}

impl<P: Pages + ?Sized> ExactSizeIterator for Pieces<'_, P> {}

impl<P: Pages + ?Sized> Drop for Pieces<'_, P> {
    fn drop(&mut self) {
        self.for_each(drop);
    }
}

impl<P: Pages + ?Sized> core::fmt::Debug for Pieces<'_, P> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} folios of order {} from {} on", self.left, self.order, self.next)
    }
}

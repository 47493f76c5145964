//! The counts of a folio, and what is known of it without owning a reference.

use core::fmt;

use crate::error::PageError;
use crate::info::{Info, Kind, LAZY_FREE};
use crate::sync::Ordering;
use crate::{Block, Frame, Order, OwnedBlock, PageMeta, Pages};

/// What a folio is, for copy-on-write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FolioKind {
    /// Anonymous memory.
    Anon,
    /// Pages of a file: the page cache holds them too, so a private write always copies.
    File,
}

impl FolioKind {
    #[inline(always)]
    pub(crate) const fn kind(self) -> Kind {
        match self {
            FolioKind::Anon => Kind::Anon,
            FolioKind::File => Kind::File,
        }
    }
}

/// The largest order of a folio: 2 MiB, what a PMD leaf maps with pages of 4 KiB.
pub const MAX_FOLIO_ORDER: Order = Order::HUGE;

/// One reference and one mapping.
const MAPPED: u64 = 1 | 1 << 32;
/// So many references are refused. From here to [`NO_COUNT`] is the room for additions that are found to be too many
/// only once they are made, on each CPU one of [`MOST_AT_ONCE`] at most: 2^21 CPUs.
#[cfg(not(loom))]
const MOST_REFERENCES: u32 = 1 << 30;
/// As above, in reach of a model.
#[cfg(loom)]
const MOST_REFERENCES: u32 = 1 << 10;
/// No folio's count is as large, a table's progression is: see [`PageMeta`].
const NO_COUNT: u32 = 1 << 31;
/// Mappings that are added at once: the pages of the largest folio.
const MOST_AT_ONCE: usize = 1 << MAX_FOLIO_ORDER.get();

/// What is known of the folio that a frame is part of. It holds no reference: unless the caller has one, or holds the lock
/// of a table that maps the folio, it may be outdated, which harms nobody, for only [`Folio`](crate::Folio)s give references back.
#[derive(Clone, Copy)]
pub struct FolioView<'m> {
    pub(crate) head: Frame,
    pub(crate) info: Info,
    pub(crate) offset: u32,
    pub(crate) meta: &'m PageMeta,
}

impl<'m> FolioView<'m> {
    /// The folio that a frame belongs to.
    ///
    /// # Errors
    /// [`PageError::Unknown`] if the frame has no metadata, [`PageError::NotAFolio`] if it is something else.
    #[inline]
    pub fn of<P: Pages + ?Sized>(pages: &'m P, frame: Frame) -> Result<Self, PageError> {
        let own = pages.meta(frame).ok_or(PageError::Unknown)?;
        let info = own.load();
        if !info.is_folio() {
            return Err(PageError::NotAFolio);
        }
        let offset = info.offset();
        if offset == 0 {
            return Ok(Self { head: frame, info, offset, meta: own });
        }
        let head = Frame(frame.0.wrapping_sub(u64::from(offset)));
        let meta = pages.meta(head).ok_or(PageError::Unknown)?;
        // It may be freed, and part of another: what a tail says counts as long as the head agrees.
        let info = meta.load();
        if info.reaches(offset) { Ok(Self { head, info, offset, meta }) } else { Err(PageError::NotAFolio) }
    }

    /// The folio of a frame, if its order is 0.
    #[inline(always)]
    pub fn small<P: Pages + ?Sized>(pages: &'m P, frame: Frame) -> Option<Self> {
        let meta = pages.meta(frame)?;
        let info = meta.load();
        info.is_small_folio().then_some(Self { head: frame, info, offset: 0, meta })
    }

    /// The folio of a frame, if its order is 0 and it is of this kind.
    #[inline(always)]
    pub fn small_of<P: Pages + ?Sized>(pages: &'m P, frame: Frame, kind: FolioKind) -> Option<Self> {
        let meta = pages.meta(frame)?;
        let info = meta.load();
        info.is_small(kind.kind()).then_some(Self { head: frame, info, offset: 0, meta })
    }

    /// Whether some of its pages are mapped, but not as many as it has: then the rest may lie idle, and a split would free it
    /// (Linux' deferred split). A page that is mapped twice is counted twice.
    #[must_use]
    pub fn is_partly_mapped(&self) -> bool {
        (1..self.order().frames()).contains(&u64::from(self.maps()))
    }

    /// The first frame.
    #[inline]
    #[must_use]
    pub fn head(&self) -> Frame {
        self.head
    }

    /// The frame that was asked for.
    #[inline]
    #[must_use]
    pub fn frame(&self) -> Frame {
        self.head.add(u64::from(self.offset))
    }

    /// The order: the folio has [`Order::frames`] frames.
    #[inline]
    #[must_use]
    pub fn order(&self) -> Order {
        Order::of_bits(self.info.order())
    }

    /// What it is.
    #[inline]
    #[must_use]
    pub fn kind(&self) -> FolioKind {
        if self.info.is_anon() { FolioKind::Anon } else { FolioKind::File }
    }

    /// How many frames there are from the one that was asked for to the folio's end, at least 1.
    #[inline]
    #[must_use]
    pub fn remaining(&self) -> usize {
        ((1u32 << self.info.order()) - self.offset) as usize
    }

    /// References, those of mappings included.
    #[inline]
    #[must_use]
    pub fn refs(&self) -> u32 {
        self.meta.counts.load(Ordering::Acquire) as u32
    }

    /// Mappings of pages; a huge leaf counts as all its pages.
    #[inline]
    #[must_use]
    pub fn maps(&self) -> u32 {
        (self.meta.counts.load(Ordering::Acquire) >> 32) as u32
    }

    /// [`refs`](Self::refs) and [`maps`](Self::maps) of one moment.
    #[inline]
    #[must_use]
    pub fn refs_and_maps(&self) -> (u32, u32) {
        let counts = self.meta.counts.load(Ordering::Acquire);
        (counts as u32, (counts >> 32) as u32)
    }

    /// Pins. Who finds none sees what the holders of those that ended have written to the folio's memory.
    #[inline]
    #[must_use]
    pub fn pins(&self) -> u32 {
        // Acquire pairs with the release of an ended pin.
        self.meta.word.load(Ordering::Acquire)
    }

    /// Whether its pages, of anonymous memory, were given up, and may be dropped where page tables say that they were not written
    /// to since ([`set_lazy_free`](Self::set_lazy_free)).
    #[must_use]
    pub fn is_lazy_free(&self) -> bool {
        let info = self.meta.load();
        info.is_anon() && info.0 & LAZY_FREE != 0
    }

    /// Remembers that the pages of a folio of anonymous memory were given up (Linux: a folio without `PG_swapbacked`). The pieces of
    /// the folio are, when it is split, until each is taken back by [`Folio::clear_lazy_free`](crate::Folio::clear_lazy_free).
    ///
    /// # Safety
    /// A reference is held of the folio by the caller, or by an entry that stays as it is, and it is of anonymous memory.
    pub unsafe fn set_lazy_free(&self) {
        debug_assert_eq!(self.kind(), FolioKind::Anon);
        self.meta.mark(true, false);
    }

    /// Remembers what page table entries said that go, of a folio of a file.
    ///
    /// # Safety
    /// A reference is held of the folio by the caller, or by the mappings that go: else the bits may be those of whatever
    /// the page is by now.
    #[inline]
    pub unsafe fn mark(&self, dirty: bool, referenced: bool) {
        self.meta.mark(dirty, referenced);
    }

    /// `pages` mappings more, each with its reference: at most 512, the pages of the largest folio.
    ///
    /// # Errors
    /// [`PageError::TooManyReferences`] if it would be 2^30 or more.
    ///
    /// # Safety
    /// A reference is held of the folio by the caller, or by an entry that stays as it is. Each mapping is given back by
    /// [`sub_mapped`](Self::sub_mapped). `pages` is at most 512.
    #[inline]
    pub unsafe fn add_mapped(&self, pages: usize) -> Result<(), PageError> {
        debug_assert!(pages <= MOST_AT_ONCE, "{pages} mappings at once");
        let bits = pages as u64 * MAPPED;
        // Relaxed: whoever adds holds a reference already.
        let before = self.meta.counts.fetch_add(bits, Ordering::Relaxed);
        if (before as u32).saturating_add(pages as u32) >= MOST_REFERENCES {
            self.meta.counts.fetch_sub(bits, Ordering::Relaxed);
            return Err(PageError::TooManyReferences);
        }
        Ok(())
    }

    /// As [`add_mapped`](Self::add_mapped), `count` of them, by a caller without a reference: only if the folio is still
    /// alive.
    ///
    /// # Errors
    /// [`PageError::NotAFolio`] if the frame is not part of a live folio of this order any more;
    /// [`PageError::TooManyReferences`].
    ///
    /// # Safety
    /// Each mapping is given back by [`sub_mapped`](Self::sub_mapped). `count` is at most 512. `pages` are these of whom
    /// the folio is.
    pub unsafe fn try_add_mapped<P: Pages + ?Sized>(
        &self,
        pages: &'m P,
        count: usize,
    ) -> Result<(), PageError> {
        debug_assert!(count <= MOST_AT_ONCE, "{count} mappings at once");
        self.try_add(count as u64 * MAPPED, count as u32)?;
        let now = self.meta.load();
        if now.order() == self.info.order() {
            return Ok(());
        }
        // SAFETY: these were just added, and map nothing.
        unsafe { Self { info: now, ..*self }.sub(pages, count as u64 * MAPPED, count as u32) };
        Err(PageError::NotAFolio)
    }

    pub(crate) fn try_add(&self, bits: u64, refs: u32) -> Result<(), PageError> {
        let mut counts = self.meta.counts.load(Ordering::Relaxed);
        loop {
            let before = counts as u32;
            // No folio's count, but a table's progression: see `PageMeta`.
            if before == 0 || before >= NO_COUNT {
                return Err(PageError::NotAFolio);
            }
            if before.saturating_add(refs) >= MOST_REFERENCES {
                return Err(PageError::TooManyReferences);
            }
            let more = counts.wrapping_add(bits);
            match self.meta.counts.compare_exchange_weak(counts, more, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Ok(()),
                Err(now) => counts = now,
            }
        }
    }

    /// Gives back `count` mappings with their references, and the folio with the last.
    ///
    /// # Safety
    /// The caller owns these mappings: entries that are gone, and that no TLB holds any more. `pages` are these of whom the
    /// folio is.
    #[inline]
    pub unsafe fn sub_mapped<P: Pages + ?Sized>(self, pages: &P, count: usize) {
        // SAFETY: the caller's duty.
        unsafe { self.sub(pages, count as u64 * MAPPED, count as u32) };
    }

    /// # Safety
    /// The caller owns what it gives back.
    #[inline]
    pub(crate) unsafe fn sub<P: Pages + ?Sized>(self, pages: &P, bits: u64, refs: u32) {
        // Release: what this holder did to the memory happens before it is freed. Acquire: so did what others did.
        let before = self.meta.counts.fetch_sub(bits, Ordering::AcqRel);
        debug_assert!(before as u32 >= refs, "reference count of {:?} below zero", self.head);
        if before as u32 == refs {
            // SAFETY: that was the last reference.
            unsafe { self.free(pages) };
        }
    }

    /// # Safety
    /// No reference is left, and the caller gave back the last.
    #[cold]
    unsafe fn free<P: Pages + ?Sized>(self, pages: &P) {
        let block = Block::new(self.head, self.order());
        // The tails say what they said: see `info`.
        self.meta.set_kind(Kind::Unused, 0, 0);
        // SAFETY: a folio is made of an owned block, and nobody refers to it any more.
        unsafe { pages.free(OwnedBlock::new(block)) };
    }
}

impl fmt::Debug for FolioView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Folio")
            .field("head", &self.head)
            .field("order", &self.order())
            .field("kind", &self.kind())
            .field("refs", &self.refs())
            .field("maps", &self.maps())
            .field("pins", &self.pins())
            .finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Folio;

    struct One(PageMeta);

    // SAFETY: there is one frame.
    unsafe impl Pages for One {
        fn meta(&self, frame: Frame) -> Option<&PageMeta> {
            (frame.0 == 0).then_some(&self.0)
        }
        unsafe fn free(&self, _: OwnedBlock) {}
        unsafe fn split(&self, _: OwnedBlock, _: Order) {}
    }

    #[test]
    fn a_count_does_not_overflow() {
        let machine = One(PageMeta::new());
        // SAFETY: the block is this test's.
        let block = unsafe { OwnedBlock::new(Block::new(Frame(0), Order::BASE)) };
        // SAFETY: as above.
        let folio = unsafe { Folio::new(&machine, block, FolioKind::File) }.unwrap();
        let others = u64::from(MOST_REFERENCES) - 3;
        machine.0.counts.fetch_add(others, Ordering::Relaxed);
        // SAFETY: the test holds a reference, and nothing is added.
        unsafe {
            for count in [2, MOST_AT_ONCE] {
                assert_eq!(folio.add_mapped(count), Err(PageError::TooManyReferences));
                assert_eq!(folio.try_add_mapped(&machine, count), Err(PageError::TooManyReferences));
            }
        }
        let last = Folio::get(&machine, Frame(0)).unwrap();
        assert_eq!(Folio::get(&machine, Frame(0)).err(), Some(PageError::TooManyReferences));
        drop(last);
        // What two CPUs have added, and have not taken off again yet, makes it no other page.
        machine.0.counts.fetch_add(2 * MOST_AT_ONCE as u64 * MAPPED, Ordering::Relaxed);
        assert_eq!(Folio::get(&machine, Frame(0)).err(), Some(PageError::TooManyReferences));
        machine.0.counts.fetch_sub(2 * MOST_AT_ONCE as u64 * MAPPED + others, Ordering::Relaxed);
        assert_eq!((folio.refs(), folio.maps()), (1, 0));
    }
}

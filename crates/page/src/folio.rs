//! Folios: `1 << order` frames, aligned to their size, that are counted as one.
//!
//! All frames of a folio know its order and how far its head is; the head holds the counts, and says alone whether the folio
//! is still there:
//!
//! - `maps`: how many page mappings there are, a huge leaf counting as all its pages;
//! - `refs`: the references that keep the folio alive, one for every page mapping and one for each other holder;
//! - `pins`: holders that do I/O to the memory. Whoever would move a folio looks whether there are any.
//!
//! # How a reference is taken without a lock
//!
//! Whoever holds a reference may add more by plain additions. Whoever only knows a frame may find a folio there that is
//! freed meanwhile, and whose frames become anything else. So [`Folio::get`] adds by compare-exchange, and only to a count
//! that is not 0; a page that is not a live folio's head has a word there that is 0 or no count ([`PageMeta`]). A
//! reference taken that way keeps whatever folio is there *now*; what it is, is read after it was taken, and if the frame
//! is not part of it, the reference is given back. Acquire pairs with the release that made the folio.

use core::fmt;
use core::mem::ManuallyDrop;

use crate::error::PageError;
use crate::info::{DIRTY, Kind, LAZY_FREE, REFERENCED};
use crate::kinds::set_kinds;
use crate::sync::Ordering;
use crate::view::{FolioKind, FolioView, MAX_FOLIO_ORDER};
use crate::{Block, Frame, OwnedBlock, PageMeta, Pages};

/// A reference to a folio. While it lives, the folio's frames are not freed; dropped, it is given back, and the folio with
/// the last one. It cannot be copied: a second one is a new [`get`](Self::get).
///
/// ```compile_fail,E0382
/// # use isotherm_page::{Folio, Pages};
/// fn given_back_twice<P: Pages>(folio: Folio<'_, P>) {
///     drop(folio);
///     drop(folio); // moved already
/// }
/// ```
///
/// A look at a folio gives nothing back that is somebody else's:
///
/// ```compile_fail,E0599
/// # use isotherm_page::{FolioView, Frame, Pages};
/// fn drop_anyones_reference<P: Pages>(pages: &P, frame: Frame) {
///     FolioView::of(pages, frame).unwrap().put(pages);
/// }
/// ```
pub struct Folio<'m, P: Pages + ?Sized> {
    pub(crate) pages: &'m P,
    pub(crate) view: FolioView<'m>,
}

impl<'m, P: Pages + ?Sized> Folio<'m, P> {
    /// Makes a block a folio with one reference, the value that is returned.
    ///
    /// # Errors
    /// The block comes back, with [`PageError::Misaligned`] if its order is above [`MAX_FOLIO_ORDER`] or it is not aligned,
    /// [`PageError::Unknown`] if a frame has no metadata, [`PageError::InUse`] if one is something already.
    ///
    /// # Safety
    /// The block was allocated from `pages`, as a whole or as a piece that `pages` takes back by itself ([`Pages::split`]).
    pub unsafe fn new(
        pages: &'m P,
        block: OwnedBlock,
        kind: FolioKind,
    ) -> Result<Self, (PageError, OwnedBlock)> {
        match Self::make(pages, *block, kind) {
            // SAFETY: the reference was just made.
            Ok(meta) => Ok(unsafe { Self::first(pages, block.into_block(), meta) }),
            Err(why) => Err((why, block)),
        }
    }

    /// Makes the pages of an owned block a folio's, and its first reference, which is the caller's. Returns the head's metadata: a
    /// folio that comes back through memory would be waited for.
    #[inline]
    pub(crate) fn make(pages: &'m P, block: Block, kind: FolioKind) -> Result<&'m PageMeta, PageError> {
        if block.order > MAX_FOLIO_ORDER || !block.is_aligned() {
            return Err(PageError::Misaligned(block));
        }
        set_kinds(pages, block, kind.kind())?;
        let meta = pages.meta(block.frame).ok_or(PageError::Unknown)?;
        meta.word.store(0, Ordering::Relaxed);
        // Release: whoever gets a reference sees what the pages are.
        meta.counts.store(1, Ordering::Release);
        Ok(meta)
    }

    /// The first reference to a folio, which [`make`](Self::make) made.
    ///
    /// # Safety
    /// It did, and this is done once.
    #[inline]
    pub(crate) unsafe fn first(pages: &'m P, block: Block, meta: &'m PageMeta) -> Self {
        Self { pages, view: FolioView { head: block.frame, info: meta.load(), offset: 0, meta } }
    }

    /// One reference more, of the folio that a frame is part of, if there is one that is alive. See the module's text.
    ///
    /// By the time it returns, the frame may have been unmapped from where the caller found it: look again.
    ///
    /// # Errors
    /// [`PageError::Unknown`], [`PageError::NotAFolio`], [`PageError::TooManyReferences`].
    pub fn get(pages: &'m P, frame: Frame) -> Result<Self, PageError> {
        let seen = FolioView::of(pages, frame)?;
        seen.try_add(1, 1)?;
        // The reference keeps the head what it is from here on.
        let head = Self { pages, view: FolioView { info: seen.meta.load(), offset: 0, ..seen } };
        if seen.offset >> head.view.info.order() != 0 {
            return Err(PageError::NotAFolio);
        }
        Ok(head.at(seen.offset))
    }

    fn at(mut self, offset: u32) -> Self {
        self.view.offset = offset;
        self
    }

    /// The frame alone, to be kept where a value cannot be. The reference stays taken.
    #[must_use = "the frame is all that is left of the reference"]
    pub fn into_raw(self) -> Frame {
        let frame = self.view.frame();
        core::mem::forget(self);
        frame
    }

    /// The reference again, of a frame that [`into_raw`](Self::into_raw) gave; `None` if that was another's.
    ///
    /// # Safety
    /// A reference to the frame's folio was made raw, and is made a value once.
    pub unsafe fn from_raw(pages: &'m P, frame: Frame) -> Option<Self> {
        let view = FolioView::of(pages, frame).ok()?;
        Some(Self { pages, view })
    }

    /// What is known of it.
    #[inline]
    #[must_use]
    pub fn view(&self) -> FolioView<'m> {
        self.view
    }

    /// The pages it is of.
    #[inline]
    #[must_use]
    pub fn pages(&self) -> &'m P {
        self.pages
    }

    /// Written through a mapping that is gone, since this was last taken. Of a folio of a file.
    #[must_use]
    pub fn take_dirty(&self) -> bool {
        self.view.meta.take_flag(DIRTY)
    }

    /// Accessed through a mapping that is gone, since this was last taken.
    #[must_use]
    pub fn take_referenced(&self) -> bool {
        self.view.meta.take_flag(REFERENCED)
    }

    /// The folio, of anonymous memory, was written to since it was given up, and is needed.
    pub fn clear_lazy_free(&self) {
        debug_assert_eq!(self.kind(), FolioKind::Anon);
        self.view.meta.take_flag(LAZY_FREE);
    }

    /// Counts the folio as pinned until the value is dropped: it is not freed, and whoever would move it, or share it by a
    /// fork, can see that ([`FolioView::pins`]).
    ///
    /// A fork or a collapse that is under way may have looked already, and a write fault on a page that is shared copies it,
    /// pinned or not: the folio stays, but the mapping may go. That the mapping stays too takes the lock of the table and
    /// an exclusive page, which the page tables see to (`AddressSpace::pin`).
    pub fn pin(self) -> Pinned<'m, P> {
        self.view.meta.word.fetch_add(1, Ordering::Relaxed);
        Pinned { folio: self }
    }

    /// Takes the block of a folio that nobody else refers to out of it, to make it something else.
    ///
    /// # Errors
    /// The folio comes back if there are other references; a pin is one.
    pub fn into_unused(self) -> Result<crate::Unique<'m, P, crate::Unused>, Self> {
        let alone = self.view.meta.counts.compare_exchange(1, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if !alone {
            return Err(self);
        }
        let this = ManuallyDrop::new(self);
        let block = Block::new(this.view.head, this.view.order());
        this.view.meta.set_kind(Kind::Unused, 0, 0);
        // SAFETY: the last reference was this one, and nobody gets another as the count is 0.
        Ok(unsafe { crate::Unique::of(this.pages, OwnedBlock::new(block)) })
    }
}

impl<'m, P: Pages + ?Sized> core::ops::Deref for Folio<'m, P> {
    type Target = FolioView<'m>;

    #[inline]
    fn deref(&self) -> &FolioView<'m> {
        &self.view
    }
}

impl<P: Pages + ?Sized> Drop for Folio<'_, P> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: this value is the reference.
        unsafe { self.view.sub(self.pages, 1, 1) };
    }
}

impl<P: Pages + ?Sized> fmt::Debug for Folio<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.view.fmt(f)
    }
}

/// A reference to a folio that is counted as a pin: see [`Folio::pin`] for what that promises.
#[derive(Debug)]
#[must_use = "dropped, the pin ends"]
pub struct Pinned<'m, P: Pages + ?Sized> {
    folio: Folio<'m, P>,
}

impl<'m, P: Pages + ?Sized> core::ops::Deref for Pinned<'m, P> {
    type Target = Folio<'m, P>;

    #[inline]
    fn deref(&self) -> &Folio<'m, P> {
        &self.folio
    }
}

impl<P: Pages + ?Sized> Drop for Pinned<'_, P> {
    fn drop(&mut self) {
        let before = self.folio.view.meta.word.fetch_sub(1, Ordering::Release);
        debug_assert!(before > 0, "{:?} is not pinned", self.folio.view.head);
    }
}

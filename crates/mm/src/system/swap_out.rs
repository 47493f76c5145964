//! Anonymous pages leave memory.
//!
//! A page is first made read-only wherever it is mapped, and the TLB is flushed: from here on it is what it is. Then it is
//! written to swap, while it stays mapped and may be read. Then each entry that is still read-only and clean becomes a swap entry. So a page is in
//! swap before there is a swap entry of it, a fault never waits for a page that is being written, and if swap fails nothing has
//! changed. Who writes to the page meanwhile makes it writable again, or has a copy, as after a fork: that entry is left as it
//! is. If a fork or `mprotect` has write-protected it since, it is dirty, in the child too. Nothing else makes it clean: a page
//! is swapped out by one at a time.
//!
//! A page that was locked ([`mlock`](crate::AddressSpace::mlock)) since it was chosen stays: the mark is looked at again before the first
//! entry becomes a swap entry. Whoever locks pages from then on waits until that is over, and finds either the page, which stays, or its
//! swap entry. So what is locked and was found in memory after that stays there. The writing to swap is not waited for if this is the only
//! one who takes pages away. Else it may be: that somebody looks at marks is known of all of them together, and a page is claimed from
//! when it is chosen on. Reclaim may write pages of files back between that and the writing to swap.
//!
//! A page that somebody refers to is not swapped out: not by whoever has the reference could it be found again.
//!
//! **Pages that were given up** (`MADV_FREE`) go without being written, and without swap: if no entry was dirty when it was made read-only, the
//! program has not written to the page since, and entries that are still so become empty. One that was dirty shows that the page is needed: it
//! is an ordinary one from then on. Who writes to it after it was made read-only is found as above.

use core::sync::atomic::fence;

use isotherm_page::{Folio, Frame};
use isotherm_pagetable::{
    Error as TableError, Format, Gather, Machine, PageRange, Replacement, Seen, Slot, SwapCounts, VirtAddr,
};

use super::records::Claim;
use super::{Family, Inner, System};
use crate::mmap_lock::MmapLock;
use crate::object::{Backing, Object};
use crate::shared::Shared;
use crate::swap::{SwapArea, SwapError, SwapPage};
use crate::sync::counter::Ordering;

/// Why a page stays in memory, or some of its mappings.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Kept {
    /// The system has no swap.
    #[error("the system has no swap")]
    NoSwap,
    /// It is no anonymous page of a space of the system.
    #[error("no anonymous page of a space of the system")]
    NotFound,
    /// A fork, or a move, of a space that maps it is under way.
    #[error("a fork or a move of a space that maps it is under way")]
    Busy,
    /// It is locked, pinned, referred to by somebody, or was written to meanwhile.
    #[error("the page is locked, pinned, referred to, or was written to meanwhile")]
    InUse,
    /// The block that it is to move to is not of its order, or of another machine.
    #[error("the block that the page is to move to is not of its order")]
    OtherBlock,
    /// A table that is to be split, or a list of places, finds no room.
    #[error("no room for a page table, or for the places where the page is mapped")]
    NoMemory,
    /// Swap is full or has failed.
    #[error(transparent)]
    Swap(#[from] SwapError),
}

/// So many pages are swapped out with two flushes.
pub(crate) const BATCH: usize = 32;

/// A page on its way.
pub(crate) struct Leaving<'a, 'm, F: Format, M: Machine> {
    _claim: Claim<'a>,
    folio: Folio<'m, M>,
    family: Shared<Family<'m, F, M>>,
    index: u64,
    swap_entry: u64,
    /// It was given up, and was not written to since.
    dropped: bool,
}

/// Whether a page of a family is to stay: see `Inner::stays`.
fn is_locked<'m, F: Format, M: Machine>(
    inner: &Inner<'m, F, M>,
    folio: &Folio<'m, M>,
    family: &Family<'m, F, M>,
) -> bool {
    inner.records.is_locked(folio.head()) && family.has_locks(None)
}

/// Whether somebody but mappings, and the caller, refers to a folio.
pub(super) fn in_use<M: Machine>(folio: &Folio<'_, M>) -> bool {
    folio.pins() > 0 || folio.refs() != folio.maps() + 1
}

impl<'m, F: Format, M: Machine> System<'m, F, M> {
    /// Swaps an anonymous page out wherever it is mapped; its frame is free then. One that was given up
    /// ([`lazy_free`](crate::AddressSpace::lazy_free)) is dropped, without swap. Locks of spaces are not needed, nor is it waited for
    /// faults.
    ///
    /// # Errors
    /// [`Kept`]: the page is still mapped, at some places at least.
    pub fn swap_out(&self, frame: Frame) -> Result<(), Kept> {
        let mut batch = Batch::new(self.inner(), true);
        batch.add(frame)?;
        let (gone, why) = batch.swap_out();
        if gone == 1 { Ok(()) } else { Err(why.unwrap_or(Kept::InUse)) }
    }
}

impl<'m, F: Format + 'm, M: Machine + 'm> Inner<'m, F, M> {
    /// Swaps out a page of shared memory that is this frame, and mapped so often at most.
    pub(crate) fn swap_out_shared<B: Backing, L: MmapLock>(
        &self,
        object: &Object<'m, F, M, B, L>,
        index: u64,
        frame: Frame,
        most: u32,
    ) -> Result<(), Kept> {
        if self.area.is_none() {
            return Err(Kept::NoSwap);
        }
        if self.records.is_locked(frame) && object.is_locked_in(index..index + 1, None) {
            return Err(Kept::InUse);
        }
        let _claim = self.records.claim(frame).ok_or(Kept::InUse)?;
        object.swap_out(index, frame, most, self)
    }
}

/// Pages that are swapped out together.
pub(crate) struct Batch<'a, 'm, F: Format, M: Machine> {
    inner: &'a Inner<'m, F, M>,
    pages: [Option<Leaving<'a, 'm, F, M>>; BATCH],
    len: usize,
    /// Waits for forks.
    patient: bool,
    /// A page that was used since the last aging stays.
    spares_young: bool,
    /// How many went without swap.
    lazy: u64,
}

impl<'a, 'm, F: Format, M: Machine> Batch<'a, 'm, F, M> {
    pub(crate) fn new(inner: &'a Inner<'m, F, M>, patient: bool) -> Self {
        Self { inner, pages: [const { None }; BATCH], len: 0, patient, spares_young: false, lazy: 0 }
    }

    pub(crate) fn spare_young(&mut self) {
        self.spares_young = true;
    }

    pub(crate) fn len(&self) -> u64 {
        self.len as u64
    }

    /// How many of those that left had been given up, since this was asked last.
    pub(crate) fn take_lazy(&mut self) -> u64 {
        core::mem::take(&mut self.lazy)
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len == BATCH
    }

    /// Takes a page in, if it is one that could go.
    pub(crate) fn add(&mut self, frame: Frame) -> Result<(), Kept> {
        let found = Folio::get(self.inner.machine, frame);
        if self.inner.area.is_none() && !found.as_ref().is_ok_and(|folio| folio.is_lazy_free()) {
            return Err(Kept::NoSwap);
        }
        let folio = found.map_err(|_| Kept::NotFound)?;
        let (family, index) = self.inner.anonymous(&folio).ok_or(Kept::NotFound)?;
        if is_locked(self.inner, &folio, &family) || in_use(&folio) && folio.order().get() == 0 {
            return Err(Kept::InUse);
        }
        let place = self.pages.get_mut(self.len).ok_or(Kept::Busy)?;
        let claim = self.inner.records.claim(frame).ok_or(Kept::InUse)?;
        *place = Some(Leaving { _claim: claim, folio, family, index, swap_entry: 0, dropped: false });
        self.len += 1;
        Ok(())
    }

    /// Swaps them out: of how many the frames are free, and why one was kept, if it was.
    pub(crate) fn swap_out(&mut self) -> (u64, Option<Kept>) {
        let mut slots = [Slot::default(); BATCH];
        let mut gather = Gather::of_any(self.inner.machine, &mut slots);
        let patient = self.patient;
        let mut why = None;
        for page in self.pages.iter_mut() {
            let Some(leaving) = page else { continue };
            let (mut found, mut young, mut dirty) = (false, false, false);
            let walked = leaving.walk(patient, |mm, at| {
                let Ok(range) = PageRange::with_pages(at, 1) else { return };
                found = true;
                if self.spares_young && mm.tables.clear_young(range).is_ok_and(|pages| pages > 0) {
                    young = true;
                }
                if !young {
                    // What is there by now may be another page, which stays as it is.
                    let done = mm.tables.mkclean_page(at, leaving.folio.frame(), &mut gather);
                    debug_assert!(matches!(done, Ok(_) | Err(TableError::Changed)), "{done:?}");
                    if done == Ok(true) {
                        dirty = true;
                        // Before anybody finds it clean.
                        leaving.folio.clear_lazy_free();
                    }
                }
            });
            // Whoever gave it up meanwhile has lost nothing by what was written before.
            leaving.dropped = !dirty && leaving.folio.is_lazy_free();
            if walked.is_err() {
                (*page, why) = (None, Some(Kept::Busy));
            } else if young {
                self.inner.records.touch(leaving.folio.head(), self.inner.now());
                (*page, why) = (None, Some(Kept::InUse));
            } else if !found && leaving.folio.maps() > 0 {
                // It is another's by now, or was never of this system.
                (*page, why) = (None, Some(Kept::NotFound));
            }
        }
        gather.flush();
        for page in self.pages.iter_mut() {
            let Some(leaving) = page else { continue };
            let done = match &self.inner.area {
                _ if leaving.dropped => leaving.unused(),
                Some(area) => leaving.write(self.inner, area),
                None => Err(Kept::NoSwap),
            };
            if let Err(kept) = done {
                (*page, why) = (None, Some(kept));
            }
        }
        // Who locks a page from here on sees its claim, and waits until it is away: see `Records::lock_mapped`.
        let moving = self.inner.records.begin_swap();
        fence(Ordering::SeqCst);
        let mut gone = 0;
        for page in self.pages.iter_mut() {
            let Some(leaving) = page else { continue };
            if is_locked(self.inner, &leaving.folio, &leaving.family) {
                if let Some(area) = self.inner.area.as_ref().filter(|_| !leaving.dropped) {
                    area.release(leaving.swap_entry);
                }
                (*page, why) = (None, Some(Kept::InUse));
                continue;
            }
            let frame = leaving.folio.frame();
            if leaving.dropped {
                let walked = leaving.walk(patient, |mm, at| {
                    let done = mm.tables.replace(at, Seen::Clean(frame), Replacement::Nothing, &mut gather);
                    if done.is_ok() {
                        mm.add(0, None, -1);
                    }
                });
                why = if walked.is_err() { Some(Kept::Busy) } else { why };
                continue;
            }
            let Some(area) = &self.inner.area else { continue };
            let walked = leaving.walk(patient, |mm, at| {
                // Before an entry holds it, and somebody releases it.
                area.share(leaving.swap_entry);
                mm.add_swapped(1);
                let (seen, by) = (Seen::Clean(frame), Replacement::SwapEntry(leaving.swap_entry));
                match mm.tables.replace(at, seen, by, &mut gather) {
                    Ok(_) => mm.add(0, None, -1),
                    Err(_) => {
                        mm.add_swapped(-1);
                        area.release(leaving.swap_entry);
                    }
                }
            });
            area.release(leaving.swap_entry);
            if walked.is_err() {
                why = Some(Kept::Busy);
            }
        }
        // Mappings give their references back.
        gather.flush();
        for leaving in self.pages.iter_mut().filter_map(Option::take) {
            let pages = leaving.folio.order().frames();
            // Of a large folio the others go one by one.
            if leaving.folio.maps() == 0 || pages > 1 && leaving.is_gone() {
                gone += 1;
                if leaving.dropped {
                    self.lazy += 1;
                    self.inner.counts.lazy_freed.fetch_add(1, Ordering::Relaxed);
                }
            } else {
                why = why.or(Some(Kept::InUse));
            }
        }
        // When no page is claimed any more.
        drop(moving);
        self.len = 0;
        (gone, why)
    }
}

impl<'m, F: Format, M: Machine> Leaving<'_, 'm, F, M> {
    fn walk(
        &self,
        patient: bool,
        visit: impl FnMut(&Shared<crate::paged::Mm<'m, F, M>>, VirtAddr),
    ) -> Result<(), super::Busy> {
        self.family.walk(self.folio.frame(), self.index, patient, || {}, visit)
    }

    /// Whether it is mapped nowhere.
    fn is_gone(&self) -> bool {
        let mut mapped = false;
        self.walk(false, |_, _| mapped = true).is_ok() && !mapped
    }

    /// Whether nobody but mappings refers to it.
    fn unused(&self) -> Result<(), Kept> {
        // A page of a larger folio has the references of its others too, and theirs who swap these out.
        let small = self.folio.order().get() == 0;
        if if small { in_use(&self.folio) } else { self.folio.pins() > 0 } {
            Err(Kept::InUse)
        } else {
            Ok(())
        }
    }

    fn write(&mut self, inner: &Inner<'m, F, M>, area: &SwapArea) -> Result<(), Kept> {
        self.unused()?;
        self.swap_entry = area.write(SwapPage { frame: self.folio.frame(), bytes: inner.bytes })?;
        area.stamp(self.swap_entry, inner.leave());
        // Whoever has got a reference since may only read the page: it is mapped read-only.
        Ok(())
    }
}

//! Pages of shared memory in swap.
//!
//! A page is taken out of all page tables and marked clean, in one hold of the lock. Then it is written to swap without the lock,
//! while it stays in the cache: who needs it meanwhile maps it again. In a second hold of the lock the cache has its swap entry in its place, if
//! nobody has marked it dirty: whoever maps it writable does, and so does [`with_page`](Object::with_page). Else, if somebody has
//! locked it meanwhile, and if swap fails, it is dirty again, as all shared memory is, and stays.
//!
//! Page tables have no swap entry of it, but nothing: whoever maps the object finds the page by its index, and a fault of any of them
//! brings it back for all. So the pages of a space that are in swap ([`Rss`](crate::Rss)) are its own alone; those of shared memory
//! are counted by the object ([`Object::swapped`]), as in Linux.

use alloc::sync::Arc;

use isotherm_page::{Folio, Frame};
use isotherm_pagetable::{Format, Machine, PageRange, SwapCounts};

use super::{Backing, BackingError, Inner, Object, ObjectKind, PageInError};
use crate::mmap_lock::MmapLock;
use crate::swap::{FrameBytes, SwapArea, SwapPage};
use crate::system::{self, Kept};

/// Where an object's pages are that are in swap.
pub(super) struct Swapped<'m> {
    pub(super) area: Arc<SwapArea>,
    bytes: &'m (dyn FrameBytes + Sync),
}

impl<F: Format, M: Machine> Inner<'_, F, M> {
    /// Drops what is in swap from an index on.
    pub(super) fn drop_swap_entries(&mut self, from: u64) {
        while let Some((index, _)) = self.cache.first_swap_entry(from..u64::MAX) {
            if let (Some(swap_entry), Some(swapped)) = (self.cache.drop_swap_entry(index), &self.swapped) {
                swapped.area.release(swap_entry);
            }
        }
    }
}

impl<'m, F: Format, M: Machine, B: Backing, L: MmapLock> Object<'m, F, M, B, L> {
    /// How many of its pages are in swap.
    pub fn swapped(&self) -> u64 {
        self.read().cache.swapped()
    }

    /// Swaps out a page of shared memory that is this frame, and mapped so often at most. The caller has seen to it that nobody
    /// else does. It stays if it is locked by the time when it would leave.
    pub(crate) fn swap_out(
        &self,
        index: u64,
        frame: Frame,
        most: u32,
        system: &system::Inner<'m, F, M>,
    ) -> Result<(), Kept> {
        let (area, bytes) = (system.area.as_ref().ok_or(Kept::NoSwap)?, system.bytes);
        let left_at = system.leave();
        let folio = Folio::get(self.machine, frame).map_err(|_| Kept::NotFound)?;
        {
            let mut inner = self.write();
            if inner.cache.get(index).is_none_or(|page| page.frame != frame) {
                return Err(Kept::NotFound);
            }
            if folio.maps() > most {
                return Err(Kept::InUse);
            }
            let swapped = inner.swapped.get_or_insert_with(|| Swapped { area: Arc::clone(area), bytes });
            if !Arc::ptr_eq(&swapped.area, area) {
                // Its pages are in another system's swap.
                return Err(Kept::NotFound);
            }
            let _ = self.unmap(&inner, index, &folio)?;
            if let Some(page) = inner.cache.get(index) {
                page.clear_dirty();
            }
        }
        let written = area.write(SwapPage { frame, bytes });
        let mut inner = self.write();
        // It is what it was: the folio is alive, and nobody else takes shared memory away but `resize`.
        let still = inner.cache.get(index).filter(|page| page.frame == frame);
        let done = match (written, still) {
            (Err(why), _) => Err(why.into()),
            (Ok(swap_entry), Some(page))
                if !page.is_dirty()
                    && self.unmap(&inner, index, &folio) == Ok(false)
                    && !inner.stays(&system.records, index, frame) =>
            {
                Ok(swap_entry)
            }
            (Ok(swap_entry), _) => {
                area.release(swap_entry);
                Err(Kept::InUse)
            }
        };
        match done {
            Ok(swap_entry) => {
                area.stamp(swap_entry, left_at);
                inner.cache.swap_out(index, swap_entry);
                inner.changes += 1;
                drop(inner);
                // SAFETY: the cache had a reference, and does not have the page any more.
                drop(unsafe { Folio::from_raw(self.machine, frame) });
                Ok(())
            }
            Err(why) => {
                if let Some(page) = inner.cache.get(index).filter(|page| page.frame == frame) {
                    page.set_dirty();
                }
                Err(why)
            }
        }
    }

    /// Takes a page out of all page tables, if only the cache and the caller refer to it else. Whether it was written to through
    /// one, since this was asked last.
    fn unmap(&self, inner: &Inner<'m, F, M>, index: u64, folio: &Folio<'m, M>) -> Result<bool, Kept> {
        if folio.pins() > 0 {
            return Err(Kept::InUse);
        }
        inner.mappings(index, folio.head(), |mm, at| {
            if let Ok(range) = PageRange::with_pages(at, 1) {
                mm.zap(range, self.kind);
            }
        });
        // Zaps have flushed: what was written through their mappings is in the page.
        let dirty = folio.take_dirty();
        if folio.refs() == 2 { Ok(dirty) } else { Err(Kept::InUse) }
    }

    /// Brings a page back whose swap entry was seen; what was remembered of when it left.
    pub(super) fn swap_in(&self, index: u64, swap_entry: u64) -> Result<Option<u64>, PageInError> {
        let (area, bytes) = {
            let inner = self.read();
            let Some(swapped) =
                inner.swapped.as_ref().filter(|_| inner.cache.swap_entry(index) == Some(swap_entry))
            else {
                return Ok(None);
            };
            // The slot is no other page's as long as this is held.
            swapped.area.share(swap_entry);
            (Arc::clone(&swapped.area), swapped.bytes)
        };
        let read = self.new_page().and_then(|folio| {
            let page = SwapPage { frame: folio.head(), bytes };
            area.read(swap_entry, page).map(|()| folio).map_err(|_| BackingError.into())
        });
        let mut left_at = None;
        let done = read.map(|folio| {
            let mut inner = self.write();
            if inner.cache.swap_entry(index) == Some(swap_entry) {
                left_at = Some(area.stamped(swap_entry));
                inner.cache.swap_in(index, folio.into_raw());
                area.release(swap_entry);
            }
        });
        area.release(swap_entry);
        done.map(|()| left_at)
    }

    pub(super) fn is_shmem(&self) -> bool {
        self.kind == ObjectKind::Shmem
    }
}

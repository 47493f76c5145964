//! Write-back, and changes of the size: one at a time for an object.

use core::ops::Range;

use isotherm_page::Folio;
use isotherm_pagetable::{Format, Machine, Slot};

use super::{Backing, BackingError, Object, ObjectKind};
use crate::mmap_lock::MmapLock;
use crate::sync::{AtomicBool, Ordering};

/// Pages that are made clean in one hold of the lock.
const BATCH: usize = 64;

/// Dropped, the next may begin.
struct Turn<'a>(&'a AtomicBool);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl<'m, F: Format, M: Machine, B: Backing, L: MmapLock> Object<'m, F, M, B, L> {
    /// Waits until no other thread writes back or changes the size.
    fn turn(&self) -> Turn<'_> {
        let mut tries = 0;
        while self.writing.swap(true, Ordering::Acquire) {
            self.lock.relax(tries);
            tries = tries.saturating_add(1);
        }
        Turn(&self.writing)
    }

    /// Writes the dirty pages of a range to the storage (`fsync`): what was written before, through whatever mapping, is there
    /// when this returns. Shared memory has none.
    ///
    /// # Errors
    /// [`BackingError`] if a page could not be written; it stays dirty. The others are written all the same.
    pub fn write_back(&self, pages: Range<u64>) -> Result<(), BackingError> {
        if self.kind == ObjectKind::Shmem {
            return Ok(());
        }
        let _turn = self.turn();
        let (mut at, mut done) = (pages.start, Ok(()));
        while at < pages.end {
            let mut batch = [const { None }; BATCH];
            let next = self.clean(at..pages.end, &mut batch);
            for (index, folio) in batch.iter().flatten() {
                if let Err(why) = self.backing.write_back(*index, folio.head()) {
                    done = Err(why);
                    if let Some(page) =
                        self.read().cache.get(*index).filter(|page| page.frame == folio.head())
                    {
                        page.set_dirty();
                    }
                }
            }
            at = next;
        }
        done
    }

    /// Makes some of the dirty pages of a range clean, and read-only wherever they are mapped; from which page on there may
    /// be more.
    fn clean(&self, range: Range<u64>, batch: &mut [Option<(u64, Folio<'m, M>)>; BATCH]) -> u64 {
        let inner = self.write();
        let Some(first) = inner.cache.first_in(range.clone()) else { return range.end };
        let pages = first.index..range.end.min(first.index + BATCH as u64);
        for extent in inner.extents.iter().filter(|extent| extent.shared) {
            let Some((mapped, _)) = extent.find(&pages) else { continue };
            let tables = &extent.mm.tables;
            let mut slots = [Slot::default(); 4];
            // Dropped, it flushes: then nobody writes without a fault any more.
            let mut gather = tables.gather(&mut slots);
            let done = tables.mkclean(mapped, &mut [], &mut gather);
            debug_assert!(done.is_ok(), "{done:?}");
        }
        let mut at = pages.start;
        for slot in batch {
            let Some(page) = inner.cache.first_in(at..pages.end) else { break };
            at = page.index + 1;
            // The cache has a reference. One that cannot be had now is had later.
            let Ok(folio) = Folio::get(self.machine, page.frame) else { continue };
            if page.is_dirty() | folio.take_dirty() {
                page.clear_dirty();
                *slot = Some((page.index, folio));
            }
        }
        pages.end
    }

    /// Sets the size, in pages (`truncate`). Pages beyond it go from the cache and from wherever they are mapped, copies of
    /// them in private mappings too; what was not written back is lost. A fault beyond the end is
    /// [`FaultError::Bus`](crate::FaultError::Bus). The storage is the caller's to change: after the object became smaller, and
    /// before it becomes larger again.
    pub fn resize(&self, pages: u64) {
        let _turn = self.turn();
        let mut inner = self.write();
        inner.size = pages;
        inner.changes += 1;
        for extent in inner.extents.iter() {
            if let Some((mapped, _)) = extent.find(&(pages..u64::MAX)) {
                extent.mm.zap(mapped, self.kind);
            }
        }
        while let Some(index) = inner.cache.first_in(pages..u64::MAX).map(|page| page.index) {
            inner.remove(self.machine, index, None);
        }
        inner.drop_swap_entries(pages);
    }
}

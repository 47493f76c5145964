//! What is done to a page of an object by its reverse map, wherever it is mapped.

use core::ops::Range;

use isotherm_page::{Folio, Frame};
use isotherm_pagetable::{Format, Machine, Mapping, PageRange, SpaceId, VirtAddr};

use super::extents::Extent;
use super::{Backing, Inner, Object};
use crate::mmap_lock::MmapLock;
use crate::paged::Mm;
use crate::shared::Shared;
use crate::system::{Kept, Records};

/// Addresses of a space.
type Place<'a, 'm, F, M> = (&'a Shared<Mm<'m, F, M>>, Range<u64>);

impl<'m, F: Format, M: Machine> Inner<'m, F, M> {
    /// Calls `each` for wherever the frame is mapped, which is the page of this index.
    pub(super) fn mappings(
        &self,
        index: u64,
        frame: Frame,
        mut each: impl FnMut(&Shared<Mm<'m, F, M>>, VirtAddr),
    ) {
        for extent in self.extents.iter() {
            let Some((range, _)) = extent.find(&(index..index + 1)) else { continue };
            if let Mapping::Page { frame: there, .. } = extent.mm.tables.query(range.start())
                && there == frame
            {
                each(&extent.mm, range.start());
            }
        }
    }

    /// Whether a space that maps some of these pages has locked memory. Where it maps them does not count if that is at these
    /// addresses of this space.
    fn is_locked_in(&self, pages: &Range<u64>, but: Option<Place<'_, 'm, F, M>>) -> bool {
        let counts = |extent: &Extent<'m, F, M>, first: u64| {
            but.as_ref().is_none_or(|(mm, range)| !extent.mm.is(mm) || !range.contains(&first))
        };
        self.extents.iter().any(|extent| {
            extent.mm.has_locks()
                && extent.find(pages).is_some_and(|(range, _)| counts(extent, range.start().0))
        })
    }

    /// Whether the page of this index, which is this frame, is to stay in memory: it is marked, and somebody who maps it has locked memory.
    ///
    /// It is asked with the object's lock held for writing, after the page was taken out of all page tables. Then it is right: a fault
    /// marks the page while it holds the lock, and `mlock` under the lock of a table that maps it. Who comes later does not find the page
    /// mapped, and waits for the object's lock.
    pub(super) fn stays(&self, records: &Records, index: u64, frame: Frame) -> bool {
        records.is_locked(frame) && self.is_locked_in(&(index..index + 1), None)
    }
}

impl<'m, F: Format, M: Machine, B: Backing, L: MmapLock> Object<'m, F, M, B, L> {
    /// Calls `each` for wherever a page is mapped that is in memory (`rmap_walk`), with the object's lock held for writing,
    /// so that no page is moved meanwhile: it must not call operations of the object, or of spaces. Copies of it that private mappings have are other pages.
    pub fn mappings(&self, index: u64, mut each: impl FnMut(SpaceId<M::Context>, VirtAddr)) {
        let inner = self.write();
        if let Some(page) = inner.cache.get(index) {
            inner.mappings(index, page.frame, |mm, at| each(mm.tables.id(), at));
        }
    }

    /// Calls `visit` for wherever a page is mapped, if it is this frame; whether it is. With the lock held for writing, as above.
    #[cfg(feature = "damon")]
    pub(crate) fn visit_mappings(
        &self,
        index: u64,
        frame: Frame,
        visit: impl FnMut(&Shared<Mm<'m, F, M>>, VirtAddr),
    ) -> bool {
        let inner = self.write();
        let is = inner.cache.get(index).is_some_and(|page| page.frame == frame);
        if is {
            inner.mappings(index, frame, visit);
        }
        is
    }

    /// Whether a space that maps some of these pages has locked memory. Where it maps them does not count if that is at these
    /// addresses of this space.
    pub(crate) fn is_locked_in(&self, pages: Range<u64>, but: Option<Place<'_, 'm, F, M>>) -> bool {
        self.read().is_locked_in(&pages, but)
    }

    /// Calls `each` for the frames of those pages of a range that are in memory, with the lock held: no page moves meanwhile.
    pub(crate) fn for_cached(&self, pages: Range<u64>, mut each: impl FnMut(Frame)) {
        let inner = self.write();
        let mut at = pages.start;
        while let Some(page) = inner.cache.first_in(at..pages.end) {
            at = page.index + 1;
            each(page.frame);
        }
    }

    /// Moves a page to another frame, if only the cache and the caller refer to it when all mappings are gone. `about_to` is called
    /// before anybody finds it there, with the object's lock held.
    pub(crate) fn migrate(
        &self,
        index: u64,
        folio: Folio<'m, M>,
        to: Folio<'m, M>,
        about_to: impl FnOnce(),
    ) -> Result<(), Kept> {
        let mut inner = self.write();
        let page = inner.cache.get(index).filter(|page| page.frame == folio.head()).ok_or(Kept::NotFound)?;
        if folio.pins() > 0 {
            return Err(Kept::InUse);
        }
        inner.mappings(index, page.frame, |mm, at| {
            if let Ok(range) = PageRange::with_pages(at, 1) {
                mm.zap(range, self.kind);
            }
        });
        // The other way round a gather that flushes in between would have said too late that it was written to.
        let used = folio.refs() != 2;
        if folio.take_dirty() {
            page.set_dirty();
        }
        if used {
            return Err(Kept::InUse);
        }
        // SAFETY: a reference is held of either. Nobody else reaches the new one; nor the old one, as the lock is held.
        unsafe { self.machine.copy(folio.head(), to.head(), 1) };
        about_to();
        if inner.cache.migrate(index, to.head()).is_some() {
            // The references change places: the cache has the new page's, and this gives back the old page's.
            let _cached = to.into_raw();
            // SAFETY: the cache had a reference, and does not have the page any more.
            drop(unsafe { Folio::from_raw(self.machine, folio.head()) });
        }
        Ok(())
    }

    /// Takes the clean pages of a range out of memory, wherever they are mapped, and returns how many: what reclaim does with
    /// pages of files; of shared memory none. Left are those that are dirty, which [`write_back`](Self::write_back) makes clean, and those that
    /// somebody else refers to. The next access brings a page in again.
    pub fn evict(&self, pages: Range<u64>) -> u64 {
        self.evict_mapped(pages, u32::MAX, None)
    }

    /// The same with those that are mapped so often at most, and are not locked, as the records of a system say.
    pub(crate) fn evict_mapped(&self, pages: Range<u64>, most: u32, records: Option<&Records>) -> u64 {
        let mut inner = self.write();
        let (mut at, mut evicted) = (pages.start, 0);
        while let Some(page) = inner.cache.first_in(at..pages.end) {
            let (index, frame) = (page.index, page.frame);
            at = index + 1;
            evicted += u64::from(self.evict_cached(&mut inner, index, frame, most, (records, None)));
        }
        evicted
    }

    /// One page, if it is this frame, and not locked. `left_at` is found again when the page comes back.
    pub(crate) fn evict_page(&self, index: u64, frame: Frame, left_at: u64, records: &Records) -> u64 {
        let mut inner = self.write();
        u64::from(self.evict_cached(&mut inner, index, frame, u32::MAX, (Some(records), Some(left_at))))
    }

    fn evict_cached(
        &self,
        inner: &mut Inner<'m, F, M>,
        index: u64,
        frame: Frame,
        most: u32,
        (records, left_at): (Option<&Records>, Option<u64>),
    ) -> bool {
        let Ok(folio) = Folio::get(self.machine, frame) else { return false };
        let clean = inner.cache.get(index).is_some_and(|page| page.frame == frame && !page.is_dirty());
        if !clean || folio.maps() > most || self.is_shmem() {
            return false;
        }
        inner.mappings(index, frame, |mm, at| {
            if let Ok(range) = PageRange::with_pages(at, 1) {
                mm.zap(range, self.kind);
            }
        });
        if folio.refs() != 2 {
            // Not the cache's and ours alone. A gather that is still to flush is among the others, and what its mappings
            // were written through says so only when it gives its reference back: so this is looked at first.
            return false;
        }
        if records.is_some_and(|records| inner.stays(records, index, frame)) {
            return false;
        }
        if !folio.take_dirty() {
            inner.remove(self.machine, index, left_at);
            return true;
        }
        if let Some(page) = inner.cache.get(index) {
            page.set_dirty();
        }
        false
    }

    /// Whether a page that is this frame was accessed anywhere since this was last taken.
    pub(crate) fn take_young(&self, index: u64, frame: Frame) -> bool {
        let inner = self.write();
        let mut young = false;
        if inner.cache.get(index).is_some_and(|page| page.frame == frame) {
            inner.mappings(index, frame, |mm, at| {
                let range = PageRange::with_pages(at, 1);
                young |= range.is_ok_and(|range| mm.tables.clear_young(range).is_ok_and(|pages| pages > 0));
            });
        }
        young
    }
}

//! What is done to a page of an object by its reverse map, wherever it is mapped.

use core::ops::Range;

use isotherm_page::{Folio, Frame};
use isotherm_pagetable::{Format, Machine, Mapping, PageRange, SpaceId, VirtAddr};

use super::{Backing, Inner, Object};
use crate::mmap_lock::MmapLock;
use crate::paged::Mm;
use crate::shared::Shared;

impl<'m, F: Format, M: Machine> Inner<'m, F, M> {
    /// Calls `each` for wherever the frame is mapped, which is the page of this index.
    fn mappings(&self, index: u64, frame: Frame, mut each: impl FnMut(&Shared<Mm<'m, F, M>>, VirtAddr)) {
        for extent in self.extents.iter() {
            let Some((range, _)) = extent.find(&(index..index + 1)) else { continue };
            if let Mapping::Page { frame: there, .. } = extent.mm.tables.query(range.start())
                && there == frame
            {
                each(&extent.mm, range.start());
            }
        }
    }
}

impl<F: Format, M: Machine, B: Backing, L: MmapLock> Object<'_, F, M, B, L> {
    /// Calls `each` for wherever a page is mapped that is in memory (`rmap_walk`), with the object's lock held for writing,
    /// so that no page is moved meanwhile: it must not call operations of the object, or of spaces. Copies of it that private mappings have are other pages.
    pub fn mappings(&self, index: u64, mut each: impl FnMut(SpaceId, VirtAddr)) {
        let inner = self.write();
        if let Some(page) = inner.cache.get(index) {
            inner.mappings(index, page.frame, |mm, at| each(mm.tables.id(), at));
        }
    }

    /// Takes the clean pages of a range out of memory, wherever they are mapped, and returns how many: what reclaim does with
    /// pages of files. Left are those that are dirty, which [`write_back`](Self::write_back) makes clean, and those that
    /// somebody else refers to. The next access brings a page in again.
    pub fn evict(&self, pages: Range<u64>) -> u64 {
        let mut inner = self.write();
        let (mut at, mut evicted) = (pages.start, 0);
        while let Some(page) = inner.cache.first_in(at..pages.end) {
            let (index, frame, dirty) = (page.index, page.frame, page.is_dirty());
            at = index + 1;
            let Ok(folio) = Folio::get(self.machine, frame) else { continue };
            if dirty {
                continue;
            }
            inner.mappings(index, frame, |mm, at| {
                if let Ok(range) = PageRange::with_pages(at, 1) {
                    mm.zap(range, self.kind);
                }
            });
            if folio.refs() != 2 {
                // Not the cache's and ours alone. A gather that is still to flush is among the others, and what its mappings
                // were written through says so only when it gives its reference back: so this is looked at first.
                continue;
            }
            if !folio.take_dirty() {
                inner.remove(self.machine, index);
                evicted += 1;
            } else if let Some(page) = inner.cache.get(index) {
                page.set_dirty();
            }
        }
        evicted
    }
}

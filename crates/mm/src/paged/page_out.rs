//! Pages of a range that leave memory, as their program advises.

use core::ops::Range;

use isotherm_page::{FolioKind, FolioView, Frame};
use isotherm_pagetable::{Format, Machine, Mapping, PageRange, VirtAddr};

use super::Paged;
use crate::flags::PAGE_SHIFT;
use crate::object::{BackingError, ObjectKind, Objects};
use crate::system::{BATCH, Batch, Kept, Kin};
use crate::vma::{ObjectId, VmaInfo};

/// So many pages are looked at under one lock of a table: what a table translates.
const WINDOW: u64 = 512;

/// Pages that could go, and from where on there may be more.
struct Found {
    pages: [(VirtAddr, Frame); BATCH],
    len: usize,
    next: u64,
    /// The first page of an object, and the one behind the last.
    object: Option<(u64, u64)>,
}

impl<'m, F: Format, M: Machine, O> Paged<'m, F, M, O> {
    /// Swaps out the anonymous pages of a VMA that no other space maps, which stays as it is meanwhile. How many are gone, and
    /// at which addresses pages of its object are.
    pub(crate) fn page_out(&self, vma: &VmaInfo) -> (u64, Option<Range<u64>>) {
        let (mut page, end) = (vma.start >> PAGE_SHIFT, vma.end >> PAGE_SHIFT);
        let (mut gone, mut object): (u64, Option<(u64, u64)>) = (0, None);
        while page < end {
            let found = self.find_pages(page, end.min((page | (WINDOW - 1)) + 1));
            page = found.next;
            if let Some((first, last)) = found.object {
                object = Some((object.map_or(first, |(first, _)| first), last));
            }
            if let Some(kin) = &self.kin {
                gone += self.swap_out(kin, vma, found.pages.get(..found.len).unwrap_or_default());
            }
        }
        (gone, object.map(|(first, end)| first << PAGE_SHIFT..end << PAGE_SHIFT))
    }

    fn find_pages(&self, first: u64, end: u64) -> Found {
        let mut found = Found { pages: [(VirtAddr(0), Frame(0)); BATCH], len: 0, next: end, object: None };
        let machine = self.mm.tables.machine();
        let Ok(range) = PageRange::with_pages(VirtAddr::of_page(first), end - first) else { return found };
        let done = self.mm.tables.runs(range, |run| {
            let Mapping::Page { frame, attributes, .. } = run.mapping else { return };
            if attributes.special || found.next < end {
                return;
            }
            let Ok(folio) = FolioView::of(machine, frame) else { return };
            // As in Linux, what others map is left to reclaim.
            if u64::from(folio.maps()) > folio.order().frames() {
                return;
            }
            let first = run.at.page();
            if folio.kind() == FolioKind::File {
                let from = found.object.map_or(first, |(from, _)| from);
                found.object = Some((from, first + run.pages));
                return;
            }
            for n in 0..run.pages {
                let at = VirtAddr::of_page(first + n);
                let Some(place) = found.pages.get_mut(found.len) else {
                    found.next = at.page();
                    return;
                };
                *place = (at, frame.add(n));
                found.len += 1;
            }
        });
        debug_assert!(done.is_ok(), "{done:?}");
        found
    }

    fn swap_out(&self, kin: &Kin<'m, F, M>, vma: &VmaInfo, pages: &[(VirtAddr, Frame)]) -> u64 {
        let mut batch = Batch::new(kin.system().inner(), false);
        for &(at, frame) in pages {
            if batch.add(frame) == Err(Kept::NotFound)
                && let Ok(folio) = self.mm.tables.reference(at, frame)
            {
                kin.owns_unknown(&folio, vma, at.0);
                drop(folio);
                let _ = batch.add(frame);
            }
        }
        batch.swap_out().0
    }
}

impl<'m, F: Format + 'm, M: Machine + 'm, O: Objects<'m, F, M>> Paged<'m, F, M, O> {
    /// Swaps out pages of shared memory, or writes those of a file back, and takes out of memory those that are mapped once at most; how many. Called without
    /// locks.
    pub(crate) fn page_out_object(&self, id: ObjectId, pages: Range<u64>) -> Result<u64, BackingError> {
        let Some(object) = self.objects.get(id) else { return Ok(0) };
        if object.kind() == ObjectKind::Shmem {
            let Some(kin) = &self.kin else { return Ok(0) };
            let (inner, mut gone) = (kin.system().inner(), 0);
            for index in pages {
                let frame = object.read().page(index).ok().flatten().map(|page| page.frame);
                let done = frame.map(|frame| inner.swap_out_shared(&object, index, frame, 1));
                gone += u64::from(done == Some(Ok(())));
            }
            return Ok(gone);
        }
        object.write_back(pages.clone())?;
        Ok(object.evict_mapped(pages, 1, self.system().map(|system| &system.inner().records)))
    }
}

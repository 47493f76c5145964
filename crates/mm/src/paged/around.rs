//! Fault-around: pages of an object that are in memory anyway are mapped beside the one that a read fault is for.

use isotherm_pagetable::{Attributes, Format, Machine, Mapping, PageRange, VirtAddr};

use super::Paged;
use super::resolve::Fault;
use crate::flags::{PAGE_SHIFT, VmFlags};
use crate::object::{Inner, ObjectKind, Objects};
use crate::vma::{ObjectId, VmaInfo};

/// Pages of a table: no fault looks beyond the one it is in.
const TABLE: u64 = 512;

/// Which pages are looked at, as the first and the one behind the last: `around`, aligned to their number, but not before the
/// VMA (`do_fault_around`).
pub(super) fn window(page: u64, vma: (u64, u64), around: u64) -> (u64, u64) {
    let first = (page - page % around).max(vma.0);
    let table_end = page - page % TABLE + TABLE;
    (first, (first + around).min(table_end).min(vma.1))
}

impl<'m, F: Format + 'm, M: Machine + 'm, O: Objects<'m, F, M>> Paged<'m, F, M, O> {
    /// Maps pages around one that a read fault has mapped, if they are in memory. They are not accessed yet, and say so. That
    /// there is no frame for a table is no error here.
    pub(super) fn map_around(
        &self,
        fault: &Fault,
        vma: &VmaInfo,
        (id, pgoff): (ObjectId, u64),
        object: (&Inner<'m, F, M>, ObjectKind),
        around: u64,
    ) {
        let (inner, kind) = object;
        let page = fault.at.page();
        let pages = (vma.start >> PAGE_SHIFT, vma.end >> PAGE_SHIFT);
        let (first, end) = window(page, pages, around.clamp(1, TABLE));
        for near in (first..end).filter(|&near| near != page) {
            let Ok(Some(cached)) = inner.page(pgoff + (near - pages.0)) else { continue };
            let at = VirtAddr::of_page(near);
            let (Mapping::None, Ok(range)) = (self.lookup(at), PageRange::with_pages(at, 1)) else {
                continue;
            };
            // As for the page itself: shared memory has no clean pages.
            let write = fault.flags.contains(VmFlags::SHARED | VmFlags::WRITE) && kind == ObjectKind::Shmem;
            let attributes =
                Attributes { execute: fault.executable(), write, young: false, ..Attributes::file() };
            if write {
                cached.set_dirty();
            }
            if let Some(kin) = &self.kin {
                kin.maps(cached.frame, vma, id, cached.index);
            }
            // If another fault was faster, it is there.
            let _ = self.map_range(fault.cpu, range, cached.frame, attributes, Some(kind));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::window;

    #[test]
    fn the_window_is_aligned_and_stays_in_the_vma_and_the_table() {
        let vma = (5, 1000);
        assert_eq!(window(21, vma, 16), (16, 32));
        assert_eq!(window(31, vma, 16), (16, 32));
        assert_eq!(window(6, vma, 16), (5, 21), "from the VMA's start on");
        assert_eq!(window(510, (505, 1000), 16), (505, 512), "one table");
        assert_eq!(window(998, vma, 16), (992, 1000));
        assert_eq!(window(7, vma, 1), (7, 8));
    }
}

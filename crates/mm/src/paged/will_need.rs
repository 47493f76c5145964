//! Pages of a range that will be needed, or will not.

use core::ops::Range;

use isotherm_page::FolioView;
use isotherm_pagetable::{Format, Machine, Mapping};

use super::Paged;
use super::mm::pages;
use crate::flags::{PAGE_SHIFT, PAGE_SIZE, VmFlags};
use crate::object::Objects;
use crate::system::GENERATIONS;
use crate::vma::{ObjectId, VmaInfo};

/// So many swapped pages, and so many stretches of objects, are brought in after one look.
const SOME: usize = 32;

/// What is to be brought in.
pub(crate) struct Wanted {
    swapped: [u64; SOME],
    len: usize,
    objects: [Option<(ObjectId, u64, u64)>; SOME],
    stretches: usize,
    next: u64,
    end: u64,
}

impl Wanted {
    /// Of a range.
    pub(crate) fn new(start: u64, end: u64) -> Self {
        Self { swapped: [0; SOME], len: 0, objects: [None; SOME], stretches: 0, next: start, end }
    }

    pub(crate) fn swapped(&self) -> &[u64] {
        self.swapped.get(..self.len).unwrap_or_default()
    }

    /// Pages of objects.
    pub(crate) fn cached(&self) -> impl Iterator<Item = (ObjectId, Range<u64>)> {
        self.objects.iter().flatten().map(|&(id, first, end)| (id, first..end))
    }

    /// From where on there may be more.
    pub(crate) fn next(&self) -> u64 {
        if self.len < SOME && self.stretches < SOME { self.end } else { self.next }
    }
}

impl<'m, F: Format, M: Machine, O> Paged<'m, F, M, O> {
    /// Notes what is absent in a VMA, unless there is no room for more. What its object does not have is not absent if somebody else
    /// is to bring it.
    pub(crate) fn find_absent(&self, vma: &VmaInfo, wanted: &mut Wanted) {
        let Some(range) = pages(&vma.range()) else { return };
        let object = vma.object.filter(|_| !vma.flags.contains(VmFlags::USER_MISSING));
        if let (Some((id, pgoff)), Some(place)) = (object, wanted.objects.get_mut(wanted.stretches)) {
            *place = Some((id, pgoff, pgoff + range.pages()));
            wanted.stretches += 1;
            wanted.next = vma.end;
        }
        let done = self.mm.tables.runs(range, |run| {
            if let (Mapping::SwapEntry(_), Some(place)) = (run.mapping, wanted.swapped.get_mut(wanted.len)) {
                *place = run.at.0;
                wanted.len += 1;
                wanted.next = wanted.next.max(run.at.0 + (run.pages << PAGE_SHIFT));
            }
        });
        debug_assert!(done.is_ok(), "{done:?}");
    }

    /// The resident pages of a VMA were just used, or not for the longest time; how many there are.
    pub(crate) fn set_age(&self, vma: &VmaInfo, young: bool) -> u64 {
        let (Some(kin), Some(range)) = (&self.kin, pages(&vma.range())) else { return 0 };
        let system = kin.system().inner();
        let time = if young { system.now() } else { system.now().wrapping_sub(GENERATIONS - 1) };
        let mut count = 0;
        let done = self.mm.tables.runs(range, |run| {
            let Mapping::Page { frame, attributes, .. } = run.mapping else { return };
            let Ok(folio) = FolioView::of(system.machine, frame) else { return };
            // As in Linux, only what is mapped here alone is made colder.
            if !attributes.special && (young || u64::from(folio.maps()) <= folio.order().frames()) {
                for n in 0..run.pages {
                    if let Ok(folio) = FolioView::of(system.machine, frame.add(n)) {
                        system.records.touch(folio.head(), time);
                    }
                }
                count += run.pages;
            }
        });
        debug_assert!(done.is_ok(), "{done:?}");
        if !young {
            let done = self.mm.tables.clear_young(range);
            debug_assert!(done.is_ok(), "{done:?}");
        }
        count
    }
}

impl<'m, F: Format + 'm, M: Machine + 'm, O: Objects<'m, F, M>> Paged<'m, F, M, O> {
    /// Sets the bits of the pages of a VMA that are in memory. The first bit is the page at `start`.
    pub(crate) fn find_resident(&self, vma: &VmaInfo, start: u64, bitmap: &mut [u64]) {
        let mut set = |address: u64, is: bool| {
            let n = (address - start) >> PAGE_SHIFT;
            if let Some(word) = bitmap.get_mut((n / 64) as usize) {
                *word = *word & !(1 << (n % 64)) | u64::from(is) << (n % 64);
            }
        };
        if let Some((id, pgoff)) = vma.object
            && let Some(object) = self.objects.get(id)
        {
            let inner = object.read();
            for (n, address) in vma.range().step_by(PAGE_SIZE as usize).enumerate() {
                set(address, matches!(inner.page(pgoff + n as u64), Ok(Some(_))));
            }
        }
        let Some(range) = pages(&vma.range()) else { return };
        let done = self.mm.tables.runs(range, |run| {
            // What a private mapping has copied may be in swap, whatever the object has.
            let is = matches!(run.mapping, Mapping::Page { .. });
            (0..run.pages).for_each(|n| set(run.at.0 + (n << PAGE_SHIFT), is));
        });
        debug_assert!(done.is_ok(), "{done:?}");
    }

    /// Brings in pages of an object that are not in memory, until one cannot be; how many.
    pub(crate) fn read_ahead(&self, id: ObjectId, pages: Range<u64>) -> u64 {
        let Some(object) = self.objects.get(id) else { return 0 };
        let before = object.cached();
        for index in pages {
            if object.bring_in(index).is_err() {
                break;
            }
        }
        object.cached().saturating_sub(before)
    }
}

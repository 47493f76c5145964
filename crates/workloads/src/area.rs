//! Areas: anonymous mappings of chosen page size, private or shared, that can grow and shrink in place.
//!
//! An area is one VMA of its own. Areas of fixed size end in a PROT_NONE guard page, so that the kernel does not merge
//! neighbours and smaps counts each alone. An area that will grow is placed at the bottom of a hole left free on
//! purpose; growing maps the memory behind it without replacing anything, shrinking unmaps it, so that the target's
//! address space really changes as a heap's does.

use crate::plan::AreaPlan;
use crate::truth::Page;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap_anonymous, mprotect, munmap};
use std::ffi::c_void;
use std::path::Path;
use std::sync::OnceLock;

/// Left free above an area that grows. The kernel places new mappings at the top of the highest hole that fits, so
/// thread stacks and allocator arenas of the workload itself eat from the far end of it.
const HOLE: usize = 256 << 20;

/// A mapping that is the area's alone for as long as the value lives.
#[derive(Debug)]
pub(crate) struct Area {
    base: usize,
    size: usize,
    /// Bytes at and after `base` to unmap in the end: `size` and the guard page, if any.
    mapped: usize,
    unit: usize,
    page: Page,
    /// MAP_PRIVATE or MAP_SHARED.
    kind: MapFlags,
    /// Whether what is mapped is written to at once.
    populated: bool,
}

fn pointer(address: usize) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(address)
}

impl Area {
    /// Maps and populates an area. `unit` is the size of its pages, `guard` of an order-0 page.
    pub(crate) fn map(plan: &AreaPlan, page: Page, unit: u64, guard: u64) -> Result<Self, Errno> {
        let number = |n: u64| usize::try_from(n).map_err(|_| Errno::NOMEM);
        let (size, max, unit, guard) =
            (number(plan.size)?, number(plan.max_size)?, number(unit)?, number(guard)?);
        let grows = max > size;
        let above = if grows { HOLE } else { guard };
        let length = max.checked_add(unit).and_then(|n| n.checked_add(above)).ok_or(Errno::NOMEM)?;
        let kind = if plan.shared { MapFlags::SHARED } else { MapFlags::PRIVATE };
        let flags = kind | MapFlags::NORESERVE;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice touches no memory in use.
        let found = unsafe { mmap_anonymous(std::ptr::null_mut(), length, ProtFlags::empty(), flags)? }
            .expose_provenance();
        let base = found.next_multiple_of(unit);
        let mut area = Self { base, size, mapped: size, unit, page, kind, populated: plan.populate };
        if grows {
            // SAFETY: exactly the mapping made above, which nothing refers to.
            unsafe { munmap(pointer(found), length)? };
            area.size = 0;
            area.mapped = 0;
            area.resize_to(size)?;
            return Ok(area);
        }
        area.mapped = size + guard;
        let (end, found_end) = (base + area.mapped, found + length);
        // SAFETY: the head and tail of the mapping made above, outside `base..end`; nothing refers to them.
        unsafe {
            if base > found {
                munmap(pointer(found), base - found)?;
            }
            if found_end > end {
                munmap(pointer(end), found_end - end)?;
            }
        }
        area.advise(base, size)?;
        // SAFETY: `base..base + size` belongs to this area, and allowing access to it takes nothing away.
        unsafe { mprotect(pointer(base), size, MprotectFlags::READ | MprotectFlags::WRITE)? };
        area.populate(base, size);
        Ok(area)
    }

    /// Address of the first byte.
    pub(crate) fn start(&self) -> usize {
        self.base
    }

    /// Bytes now.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Grows or shrinks the area in place to `size` bytes, a multiple of its unit, and populates what is new.
    /// Memory given up is gone: nothing may refer to it any more.
    pub(crate) fn resize(&mut self, size: u64) -> Result<(), Errno> {
        self.resize_to(usize::try_from(size).map_err(|_| Errno::NOMEM)?)
    }

    fn resize_to(&mut self, size: usize) -> Result<(), Errno> {
        let (old, new) = (self.base + self.size, self.base.checked_add(size).ok_or(Errno::NOMEM)?);
        if new > old {
            let flags = self.kind | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
            // SAFETY: NOREPLACE: fails rather than replace a mapping.
            let got = unsafe {
                mmap_anonymous(pointer(old), new - old, ProtFlags::READ | ProtFlags::WRITE, flags)?
            };
            if got.expose_provenance() != old {
                // Kernels before 4.17 take the address as a hint only.
                // SAFETY: exactly the mapping just made, which nothing refers to.
                unsafe { munmap(got, new - old)? };
                return Err(Errno::EXIST);
            }
            self.size = size;
            self.mapped = size;
            self.advise(old, new - old)?;
            self.populate(old, new - old);
        } else if new < old {
            // SAFETY: the area's own tail; workers hold addresses only during a phase, and none runs now.
            unsafe { munmap(pointer(new), old - new)? };
            self.size = size;
            self.mapped = size;
        }
        Ok(())
    }

    /// Gives all its memory back; it stays mapped, and reads as zeroes.
    pub(crate) fn discard(&mut self) -> Result<(), Errno> {
        // SAFETY: memory of this area, on whose contents nothing depends; no worker runs between phases.
        unsafe { madvise(pointer(self.base), self.size, Advice::LinuxDontNeed) }
    }

    fn advise(&self, start: usize, size: usize) -> Result<(), Errno> {
        let advice = match self.page {
            // Most programs say nothing of it, and what they do not forbid may be done to them.
            Page::Base if !large_unasked() => return Ok(()),
            Page::Base => Advice::LinuxNoHugepage,
            Page::Huge => Advice::LinuxHugepage,
        };
        // SAFETY: the advice concerns how pages of this area will be backed, not what they hold.
        match unsafe { madvise(pointer(start), size, advice) } {
            // A kernel without transparent huge pages: order-0 is what there is, and smaps will say so.
            Err(Errno::INVAL) => Ok(()),
            result => result,
        }
    }

    /// Writes to every page, with something else than zero so that no page can be shared or dropped as empty.
    fn populate(&self, start: usize, size: usize) {
        if !self.populated {
            return;
        }
        let step = rustix::param::page_size().min(self.unit);
        for address in (start..start + size).step_by(step) {
            // SAFETY: a mapped, writable, aligned address of this area, to which no reference exists.
            unsafe { pointer(address).cast::<u64>().write_volatile(address as u64 | 1) };
        }
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        if self.mapped > 0 {
            // SAFETY: the area's own mapping; whoever held its addresses has ended with the phase.
            let _ = unsafe { munmap(pointer(self.base), self.mapped) };
        }
    }
}

/// What smaps says of `start..end`: resident bytes, bytes in huge pages.
pub(crate) fn backing(smaps: &str, start: u64, end: u64) -> (u64, u64) {
    let (mut inside, mut resident, mut huge) = (false, 0u64, 0u64);
    for line in smaps.lines() {
        let Some((key, rest)) = line.split_once(' ') else { continue };
        if let Some((from, to)) = key.split_once('-') {
            if let (Ok(from), Ok(to)) = (u64::from_str_radix(from, 16), u64::from_str_radix(to, 16)) {
                inside = from < end && start < to;
            }
        } else if inside && (key == "Rss:" || key == "AnonHugePages:") {
            let kib: u64 = rest.trim().trim_end_matches("kB").trim().parse().unwrap_or(0);
            let bytes = kib.saturating_mul(1024);
            if key == "Rss:" {
                resident = resident.saturating_add(bytes);
            } else {
                huge = huge.saturating_add(bytes);
            }
        }
    }
    (resident, huge)
}

/// Whether this machine gives large folios to memory for which nobody asked for any.
fn large_unasked() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| {
        let base = Path::new("/sys/kernel/mm/transparent_hugepage");
        let by_size = std::fs::read_dir(base).into_iter().flatten().flatten().map(|entry| entry.path());
        let by_size = by_size.filter(|path| path.is_dir()).map(|path| path.join("enabled"));
        ["enabled", "shmem_enabled"]
            .map(|name| base.join(name))
            .into_iter()
            .chain(by_size)
            .any(|rule| std::fs::read_to_string(rule).is_ok_and(|rule| rule.contains("[always]")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: u64 = 2 << 20;

    fn plan(size: u64, max_size: u64) -> AreaPlan {
        AreaPlan { name: "a".into(), size, max_size, process: 0, shared: false, populate: true }
    }

    fn backing_now(area: &Area) -> (u64, u64) {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        backing(&smaps, area.start() as u64, (area.start() + area.size()) as u64)
    }

    #[test]
    fn an_area_of_base_pages_is_resident_and_has_no_huge_page() {
        let page = rustix::param::page_size() as u64;
        let areas: Vec<_> =
            (0..3).map(|_| Area::map(&plan(2 * UNIT, 2 * UNIT), Page::Base, page, page).unwrap()).collect();
        for area in &areas {
            assert_eq!(backing_now(area), (2 * UNIT, 0));
        }
    }

    #[test]
    fn an_area_grows_and_shrinks_in_place_and_keeps_what_it_held() {
        let page = rustix::param::page_size() as u64;
        let mut area = Area::map(&plan(page, 64 * page), Page::Base, page, page).unwrap();
        let start = area.start();
        for pages in [64, 3, 10, 1] {
            area.resize(pages * page).unwrap();
            assert_eq!((area.start(), area.size() as u64), (start, pages * page));
            assert_eq!(backing_now(&area), (pages * page, 0));
            // SAFETY: the first page is mapped throughout.
            assert_eq!(unsafe { pointer(start).cast::<u64>().read_volatile() }, start as u64 | 1);
        }
    }

    #[test]
    fn an_area_can_wait_for_its_first_touch_and_give_its_memory_back() {
        let page = rustix::param::page_size() as u64;
        let plan = AreaPlan { populate: false, ..plan(64 * page, 64 * page) };
        let mut area = Area::map(&plan, Page::Base, page, page).unwrap();
        assert_eq!(backing_now(&area), (0, 0));
        area.populated = true;
        area.populate(area.start(), area.size());
        assert_eq!(backing_now(&area), (64 * page, 0));
        area.discard().unwrap();
        assert_eq!((backing_now(&area), area.size() as u64), ((0, 0), 64 * page));
    }

    #[test]
    fn areas_for_huge_pages_are_aligned_to_them() {
        let page = rustix::param::page_size() as u64;
        for max in [2 * UNIT, 4 * UNIT] {
            let area = Area::map(&plan(2 * UNIT, max), Page::Huge, UNIT, page).unwrap();
            assert_eq!(area.start() as u64 % UNIT, 0);
            assert_eq!(backing_now(&area).0, 2 * UNIT);
        }
    }

    #[test]
    fn smaps_is_summed_over_the_vmas_of_the_range_only() {
        let smaps = "1000-3000 rw-p 00000000 00:00 0 \nSize:  8 kB\nRss:   8 kB\nAnonHugePages:   4 kB\n\
                     VmFlags: rd wr\n3000-4000 rw-p 00000000 00:00 0 [heap]\nRss:   4 kB\nAnonHugePages: 0 kB\n\
                     9000-a000 r--p 00000000 fe:00 7  /lib/x y.so\nRss:   4 kB\n";
        assert_eq!(backing(smaps, 0x1000, 0x4000), (12 << 10, 4 << 10));
        assert_eq!(backing(smaps, 0x3000, 0x9000), (4 << 10, 0));
        assert_eq!(backing(smaps, 0x5000, 0x6000), (0, 0));
    }
}

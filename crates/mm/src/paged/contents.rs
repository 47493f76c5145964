//! What operations of a space do to its page tables.

use core::ops::Range;

use isotherm_page::{FolioKind, FolioView};
use isotherm_pagetable::{
    ForkRule, Format, Half, Machine, Mapping, PageRange, Protection, Sharing, VirtAddr,
};

use super::Paged;
use super::folios::HUGE;
use super::mm::pages;
use crate::contents::{Contents, Held, HeldForRead};
use crate::error::Error;
use crate::flags::{PAGE_SHIFT, VmFlags};
use crate::object::{BackingError, ObjectKind, Objects};
use crate::shared::Shared;
use crate::spin::Spin;
use crate::system::Kin;
use crate::vma::{ObjectId, VmaInfo};

fn protection(flags: VmFlags) -> Protection {
    Protection {
        user: flags.intersects(VmFlags::ACCESS),
        write: flags.contains(VmFlags::WRITE),
        execute: flags.contains(VmFlags::EXEC),
    }
}

impl<'m, F: Format + 'm, M: Machine + 'm, O: Objects<'m, F, M>> Paged<'m, F, M, O> {
    /// Does something to the pages of a VMA while no reverse map does: with the lock of its object, if it has one.
    fn with_pages(&self, vma: &VmaInfo, act: impl FnOnce(PageRange, Option<ObjectKind>)) {
        let Some(pages) = pages(&vma.range()) else { return };
        match vma.object.and_then(|(id, _)| self.objects.get(id)) {
            Some(object) => {
                let _inner = object.read();
                act(pages, Some(object.kind()));
            }
            None => act(pages, None),
        }
    }
}

impl<'m, F: Format + 'm, M: Machine + 'm, O: Objects<'m, F, M>> Contents for Paged<'m, F, M, O> {
    /// All that a tree of the format translates from address 0 on.
    fn lowest(&self) -> u64 {
        self.mm.tables.lowest().0
    }

    fn limit(&self) -> u64 {
        match F::HALF {
            Half::Lower => 1 << F::VA_BITS,
            Half::Both => 1 << (F::VA_BITS - 1),
            Half::Upper => 0,
        }
    }

    fn begin(&mut self) {
        if let Some(kin) = &mut self.kin {
            kin.begin(&self.mm);
        }
    }

    fn reserve(&self, _: &Held<'_>, id: ObjectId, more: usize) -> Result<(), Error> {
        self.objects.get(id).ok_or(Error::NoObject)?.reserve(more)
    }

    fn unreserve(&self, _: &Held<'_>, id: ObjectId, more: usize) {
        if let Some(object) = self.objects.get(id) {
            object.unreserve(more);
        }
    }

    fn attach(&self, held: &Held<'_>, vma: &VmaInfo) {
        if let Some((id, pgoff)) = vma.object
            && let Some(object) = self.objects.get(id)
        {
            object.attach(&self.mm, vma, pgoff);
            if self.mm.has_locks() {
                self.wait_for_unlocking(held);
            }
        }
    }

    fn detach(&self, _: &Held<'_>, vma: &VmaInfo) {
        if let Some(object) = vma.object.and_then(|(id, _)| self.objects.get(id)) {
            object.detach(&self.mm, vma);
        }
    }

    fn unmap(
        &self,
        held: &Held<'_>,
        vmas: &mut dyn Iterator<Item = VmaInfo>,
        range: Range<u64>,
        within: Range<u64>,
    ) {
        self.mm.with_gather(|gather| {
            for vma in vmas {
                if let Some(kin) = self.kin.as_ref().filter(|_| vma.flags.contains(VmFlags::LOCKED)) {
                    // Of pages that others map too.
                    let flags = vma.flags - VmFlags::LOCKED_MASK;
                    self.lock_resident(held, kin, &VmaInfo { flags, ..vma });
                }
                self.with_pages(&vma, |pages, kind| self.mm.zap_in(pages, kind, gather));
                self.detach(held, &vma);
            }
            if self.kin.is_some() {
                self.mm.moved.lock().trim(range.start >> PAGE_SHIFT, range.end >> PAGE_SHIFT);
            }
            if let (Some(range), Some(within)) = (pages(&range), pages(&self.mm.above(within))) {
                let freed = self.mm.tables.free_empty_tables(range, within, gather);
                debug_assert!(freed.is_ok(), "{freed:?}");
            }
        });
    }

    fn split(&self, _: &Held<'_>, at: u64) -> Result<(), Error> {
        if !self.mm.has_huge() || at & (HUGE - 1) == 0 {
            return Ok(());
        }
        self.mm.tables.split(VirtAddr(at)).map_err(|_| Error::NoMemory)
    }

    fn zap(&self, _: &Held<'_>, vma: &VmaInfo) {
        self.mm.with_gather(|gather| {
            self.with_pages(vma, |pages, kind| self.mm.zap_in(pages, kind, gather));
        });
    }

    fn lazy_free(&self, _: &HeldForRead, vma: &VmaInfo) {
        self.give_up(vma);
    }

    fn protect(&self, _: &Held<'_>, vma: &VmaInfo) {
        let object = vma.object.and_then(|(id, _)| self.objects.get(id));
        let shared = vma.flags.contains(VmFlags::SHARED);
        let mut protection = protection(vma.flags);
        if shared && object.is_some_and(|object| object.kind() == ObjectKind::File) {
            // The next write marks the page dirty.
            protection.write = false;
        }
        let sharing = if shared { Sharing::Shared } else { Sharing::Private };
        let Some(pages) = pages(&vma.range()) else { return };
        let done = self.mm.with_gather(|gather| self.mm.tables.protect(pages, protection, sharing, gather));
        debug_assert!(done.is_ok(), "{done:?}");
    }

    fn lock(&self, held: &Held<'_>, vma: &VmaInfo) {
        if vma.flags.contains(VmFlags::LOCKED) {
            self.set_locks(held, true);
        }
        if let Some(kin) = &self.kin {
            self.lock_resident(held, kin, vma);
        }
    }

    fn count_locked(&self, held: &Held<'_>, pages: u64) {
        self.set_locks(held, pages > 0);
    }

    fn relocate(&self, _: &Held<'_>, vma: &VmaInfo, to: u64) -> Result<(), Error> {
        let _changing = match &self.kin {
            Some(kin) => {
                kin.moves(&self.mm, vma, to)?;
                Some(kin.changing())
            }
            None => None,
        };
        let mut done = Ok(());
        // A reverse map that is gone through meanwhile would find a page neither here nor there.
        self.with_pages(vma, |pages, _| {
            let Err(stopped) = self.mm.tables.remap(pages, VirtAddr(to)) else { return };
            // What was moved goes back, where its tables still are.
            let moved = stopped.at.0 - vma.start;
            let back =
                PageRange::new(to, to + moved).map(|back| self.mm.tables.remap(back, VirtAddr(vma.start)));
            debug_assert!(matches!(back, Ok(Ok(_))));
            done = Err(Error::NoMemory);
        });
        done
    }

    fn copy(
        &self,
        _: &Held<'_>,
        vmas: &mut dyn Iterator<Item = VmaInfo>,
        child: &mut Self,
    ) -> Result<(), Error> {
        // Until the copies are flushed, and the child is found.
        let _changing = self.kin.as_ref().map(Kin::changing);
        match (&mut child.kin, &self.kin) {
            (Some(child), Some(parent)) => child.descend(parent)?,
            (None, None) => {}
            _ => return Err(Error::Invalid),
        }
        child.folios = self.folios;
        self.copy_pages(vmas, child)?;
        if let Some(kin) = &mut child.kin {
            kin.join(&child.mm);
        }
        Ok(())
    }

    fn write_back(&self, id: ObjectId, pages: Range<u64>) -> Result<(), BackingError> {
        self.objects.get(id).map_or(Ok(()), |object| object.write_back(pages))
    }
}

impl<'m, F: Format + 'm, M: Machine + 'm, O: Objects<'m, F, M>> Paged<'m, F, M, O> {
    fn copy_pages(&self, vmas: &mut dyn Iterator<Item = VmaInfo>, child: &mut Self) -> Result<(), Error> {
        // No reverse map has the child yet.
        let child = Shared::get_mut(&mut child.mm).ok_or(Error::Invalid)?;
        if self.kin.is_some() {
            child.moved = Spin::new(self.mm.moved.lock().copy()?);
        }
        if self.mm.has_huge() {
            child.set_huge();
        }
        let rule = ForkRule::Copy(Sharing::Private);
        self.mm.with_gather(|gather| {
            for vma in vmas {
                if vma.object.is_some() && !vma.has_anon {
                    // The child's faults find the pages in the object (`vma_needs_copy`).
                    continue;
                }
                let Some(pages) = pages(&vma.range()) else { continue };
                let kind = vma.object.and_then(|(id, _)| self.objects.get(id)).map(|object| object.kind());
                let copied = self.mm.tables.copy_range(&child.tables, pages, rule, gather);
                child.came(0, copied.unwrap_or_else(|stopped| stopped.done), kind);
                copied.map_err(|_| Error::NoMemory)?;
            }
            Ok(())
        })
    }

    fn set_locks(&self, held: &Held<'_>, locks: bool) {
        if self.mm.has_locks() == locks {
            return;
        }
        self.mm.set_locks(locks);
        if locks {
            self.wait_for_unlocking(held);
        }
    }

    /// Who unlocks pages may have seen nobody else who maps them and has locked memory: it has unlocked them when this returns.
    fn wait_for_unlocking(&self, held: &Held<'_>) {
        if let Some(kin) = &self.kin {
            kin.system().inner().records.wait_for_unlocking(held);
        }
    }

    /// Whether the pages of the VMA's object are mapped elsewhere by a space that has locked memory, perhaps by this one at other
    /// addresses; and whether another space has that may map its anonymous pages.
    fn others_lock(&self, kin: &Kin<'m, F, M>, vma: &VmaInfo, pages: PageRange) -> (bool, bool) {
        let object = vma.object.and_then(|(id, first)| Some((self.objects.get(id)?, first)));
        let of_object = object.is_some_and(|(object, first)| {
            object.is_locked_in(first..first + pages.pages(), Some((&self.mm, vma.range())))
        });
        (of_object, (vma.object.is_none() || vma.has_anon) && kin.others_lock(&self.mm))
    }

    /// What the VMA says of its pages, the system remembers of those that are there. Of others their faults will.
    fn lock_resident(&self, held: &Held<'_>, kin: &Kin<'m, F, M>, vma: &VmaInfo) {
        let Some(pages) = pages(&vma.range()) else { return };
        let (locked, system) = (vma.flags.contains(VmFlags::LOCKED), kin.system().inner());
        let _unlocking = (!locked).then(|| system.records.begin_unlock());
        let (of_object, anonymous) = if locked { (false, false) } else { self.others_lock(kin, vma, pages) };
        let mut left = pages;
        loop {
            let mut moves = None;
            // Of the folio that was found last, where that was, and how many pages were: they may be in several runs.
            let mut found = (None, left.start(), 0);
            let done = self.mm.tables.runs(left, |run| {
                let Mapping::Page { frame, .. } = run.mapping else { return };
                if let Ok(folio) = FolioView::of(system.machine, frame) {
                    // Perhaps by one who has locked it, and who may not map a page of an object just now: one that has moved is
                    // mapped nowhere until it is used again. The mark means nothing once nobody has locked it.
                    let by_others = match folio.kind() {
                        FolioKind::File => of_object,
                        FolioKind::Anon => anonymous && folio.maps() > 1,
                    };
                    if by_others {
                        return;
                    }
                    if found.0 != Some(folio.head()) {
                        found = (Some(folio.head()), run.at, 0);
                    }
                    found.2 += run.pages;
                    // A folio has one mark. If only some of its pages are here, others may be locked: it stays marked then. No others are
                    // mapped if as many are as this run has, which stay mapped as long as the table is locked.
                    let whole = found.2 >= folio.order().frames() || run.pages == u64::from(folio.maps());
                    if !locked && !whole {
                        return;
                    }
                    let moving = system.records.lock_mapped(folio.head(), frame, run.pages, locked);
                    moves = moves.or(moving.map(|moving| (moving, found.1)));
                }
            });
            debug_assert!(done.is_ok(), "{done:?}");
            let Some((frame, from)) = moves else { break };
            // Who takes it away waits for no lock that is held here.
            held.wait_while(|| system.records.is_moving(frame, locked));
            // What lies below is done.
            let Ok(rest) = PageRange::new(from.0, vma.end) else { break };
            left = rest;
        }
        // Those that are not mapped here.
        if let Some((id, first)) = vma.object.filter(|_| !locked && !of_object)
            && let Some(object) = self.objects.get(id)
        {
            object.for_cached(first..first + pages.pages(), |frame| system.records.lock(frame, false));
        }
    }
}

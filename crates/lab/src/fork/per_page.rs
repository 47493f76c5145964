//! The baseline: page tables that are copied, harvested and emptied one page at a time, as a kernel without batches has it.
//!
//! For each entry the folio is looked up and its counts move by one, the parent's entry is write-protected by itself, and the
//! child's is written; Linux did so until the series (`copy_present_pte`, `zap_pte_range` of 6.6). What has nothing to do
//! with batches is what the page tables that are measured have as well, so that only the batches differ: the same entries,
//! metadata and locks, references and mappings of a folio in one word, plain stores where hardware has nothing left to set,
//! tables allocated some at a time, one flush for all, references given back after it. There are no contiguous blocks: that a
//! page by itself cannot keep them whole is why kernels without batches had none.
//!
//! What is mapped is ordinary memory of the parent's alone: an entry of which that is not so ends the loop.

mod fork;
mod zap;

use super::{Error, Layout};
use isotherm_page::{Block, OwnedBlock, TableGuard, Unique};
use isotherm_pagetable::host::HostMachine;
use isotherm_pagetable::{
    Attributes, FolioKind, FolioView, Format, Frame, Frames, Level, Memory, Order, Pages, SpaceId,
};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};

/// Entries of a table; formats of larger granules are not measured.
const ENTRIES: usize = 512;
/// Tables that are allocated at once: as many as the page tables that are measured get.
const TABLES: usize = 16;

type Entries = [AtomicU64; ENTRIES];

/// Pages that a space has, by kind: Linux' `rss`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Resident {
    pub anon: u64,
    pub file: u64,
}

impl Resident {
    #[inline(always)]
    fn count(&mut self, folio: &FolioView<'_>, pages: u64) {
        match folio.kind() {
            FolioKind::Anon => self.anon += pages,
            FolioKind::File => self.file += pages,
        }
    }
}

/// A space.
pub(super) struct PerPage<'m, F: Format> {
    machine: &'m HostMachine,
    id: SpaceId,
    format: PhantomData<F>,
}

/// Tables for a space, allocated some at a time.
struct Tables<'m> {
    machine: &'m HostMachine,
    frames: [Frame; TABLES],
    left: usize,
}

impl Tables<'_> {
    fn take(&mut self) -> Result<Frame, Error> {
        if self.left == 0 {
            self.left = self.machine.alloc_tables(&mut self.frames);
            self.frames[..self.left].reverse();
        }
        self.left = self.left.checked_sub(1).ok_or(Error::NoFrames)?;
        let frame = self.frames[self.left];
        // SAFETY: the machine gave the frame to us alone.
        let block = unsafe { Unique::new(self.machine, OwnedBlock::new(Block::new(frame, Order::BASE))) };
        let table = block.into_table().map_err(|_| Error::NoFrames)?;
        Ok(table.into_raw().frame)
    }
}

impl Drop for Tables<'_> {
    fn drop(&mut self) {
        for &frame in &self.frames[..self.left] {
            // SAFETY: allocated, and never used.
            unsafe { self.machine.free(OwnedBlock::new(Block::new(frame, Order::BASE))) };
        }
    }
}

impl<'m, F: Format> PerPage<'m, F> {
    /// An empty space.
    pub(super) fn new(machine: &'m HostMachine, asid: u16) -> Result<Self, Error> {
        assert!(F::GRANULE == 0 && F::TABLE_BITS == 9, "a format of 512 entries of 4 KiB");
        let root = Tables { machine, frames: [Frame(0); TABLES], left: 0 }.take()?;
        let space = PerPage { machine, id: SpaceId { root, context: asid }, format: PhantomData };
        // SAFETY: a table of this space's.
        unsafe { space.entries(root) }.iter().for_each(|entry| entry.store(0, Ordering::Relaxed));
        Ok(space)
    }

    fn tables(&self) -> Tables<'m> {
        Tables { machine: self.machine, frames: [Frame(0); TABLES], left: 0 }
    }

    /// # Safety
    /// The frame is a table of this space's.
    unsafe fn entries(&self, frame: Frame) -> &'m Entries {
        // SAFETY: the memory of a table, 4096 bytes of words that are read and written atomically.
        unsafe { self.machine.table(frame).cast::<Entries>().as_ref() }
    }

    /// The lock of a table.
    ///
    /// # Safety
    /// The frame is a table of this space's.
    #[inline(always)]
    unsafe fn lock(&self, frame: Frame) -> Option<TableGuard<'m>> {
        // SAFETY: the caller's duty.
        let table = unsafe { self.machine.meta(frame)?.table() };
        let mut tries = 0;
        loop {
            if let Ok(guard) = table.try_lock() {
                return Some(guard);
            }
            self.machine.relax(tries);
            tries += 1;
        }
    }

    /// The table of `level` that translates `page`; made if need be, `None` if there is none.
    fn table(
        &self,
        page: u64,
        target: Level,
        tables: Option<&mut Tables<'m>>,
    ) -> Result<Option<Frame>, Error> {
        let (mut level, mut frame) = (F::ROOT, self.id.root);
        let mut tables = tables;
        while level > target {
            // SAFETY: reached from the root.
            let entry = &unsafe { self.entries(frame) }[F::index(level, page)];
            let mut raw = entry.load(Ordering::Acquire);
            if raw == 0 {
                let Some(tables) = &mut tables else { return Ok(None) };
                let fresh = tables.take()?;
                // SAFETY: it is this space's from here on.
                unsafe { self.entries(fresh) }.iter().for_each(|entry| entry.store(0, Ordering::Relaxed));
                raw = F::table(fresh);
                entry.store(raw, Ordering::Release);
            }
            if !F::is_table(level, raw) {
                return Ok(None);
            }
            frame = F::table_frame(raw);
            level = level.below().ok_or(Error::NoFrames)?;
        }
        Ok(Some(frame))
    }

    /// Fills the space, page by page or by leaves of 2 MiB.
    pub(super) fn populate(&self, layout: Layout, pages: u64) -> Result<(), Error> {
        let mut tables = self.tables();
        let level = if layout == Layout::Pmd { Level::Pmd } else { Level::Pte };
        let mut page = 0;
        while page < pages {
            let order = Order::new(layout.order_at(page)).ok_or(Error::NoFrames)?;
            let folio = self.machine.folio(order, FolioKind::Anon).ok_or(Error::NoFrames)?;
            let end = page + order.frames();
            let mut frame = folio.head();
            while page < end {
                let table = self.table(page, level, Some(&mut tables))?.ok_or(Error::NoFrames)?;
                // SAFETY: the entry below has this mapping, and is given back by `zap` or `exit`.
                unsafe { folio.view().add_mapped(F::pages(level) as usize) }
                    .map_err(isotherm_pagetable::Error::from)?;
                let raw = F::leaf(level, frame, Attributes::anonymous());
                // SAFETY: found in this space.
                let entries = unsafe { self.entries(table) };
                entries[F::index(level, page)].store(raw, Ordering::Release);
                page += F::pages(level);
                frame = frame.add(F::pages(level));
            }
        }
        Ok(())
    }

    /// The folio of an entry of ordinary memory.
    #[inline(always)]
    fn folio(&self, raw: u64) -> Result<FolioView<'m>, Error> {
        if !F::is_valid(raw) || raw & F::SPECIAL != 0 {
            return Err(Error::NoFrames);
        }
        Ok(FolioView::of(self.machine, F::frame(raw)).map_err(isotherm_pagetable::Error::from)?)
    }

    /// Clears the accessed bits of all pages, and sets those of the bitmap that were set: as `ptep_test_and_clear_young`
    /// page by page.
    pub(super) fn harvest(&self, pages: u64, bitmap: &mut [u64]) -> Result<(), Error> {
        self.each_table(pages, |level, frame, first| {
            // SAFETY: a table of this space's.
            let (_lock, entries) = unsafe { (self.lock(frame), self.entries(frame)) };
            for (n, entry) in entries.iter().enumerate() {
                let raw = entry.load(Ordering::Acquire);
                if F::is_valid(raw) && !F::is_table(level, raw) && F::is_young(raw) {
                    update::<F>(entry, raw, |raw| raw & !F::YOUNG);
                    let page = first + n as u64 * F::pages(level);
                    for page in page..page + F::pages(level) {
                        bitmap[(page / 64) as usize] |= 1 << (page % 64);
                    }
                }
            }
            Ok(())
        })
    }

    /// The tables that hold leaves, with their level and first page.
    fn each_table(
        &self,
        pages: u64,
        mut each: impl FnMut(Level, Frame, u64) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut page = 0;
        while page < pages {
            let above = self.table(page, Level::Pmd, None)?.ok_or(Error::NoFrames)?;
            // SAFETY: reached from the root.
            let entries = unsafe { self.entries(above) };
            let mut leaves = false;
            for (n, entry) in entries.iter().enumerate() {
                let raw = entry.load(Ordering::Acquire);
                if F::is_table(Level::Pmd, raw) {
                    each(Level::Pte, F::table_frame(raw), page + n as u64 * F::pages(Level::Pmd))?;
                } else {
                    leaves |= raw != 0;
                }
            }
            if leaves {
                each(Level::Pmd, above, page)?;
            }
            page += F::table_pages(Level::Pmd);
        }
        Ok(())
    }
}

/// Changes an entry that was read as `raw` by the holder of its lock: by a plain store if hardware has nothing left to set,
/// as the page tables that are measured do. Returns what was replaced.
#[inline(always)]
fn update<F: Format>(entry: &AtomicU64, raw: u64, change: impl Fn(u64) -> u64) -> u64 {
    if F::no_hw_update(raw) {
        entry.store(change(raw), Ordering::Release);
        return raw;
    }
    let mut seen = raw;
    while let Err(now) = entry.compare_exchange(seen, change(seen), Ordering::AcqRel, Ordering::Acquire) {
        seen = now;
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;
    use isotherm_pagetable::{Arm64Hafdbs, RiscV, Sv48, X86_64};

    fn a_life<F: Format>(layout: Layout) {
        const PAGES: u64 = 6 * 512;
        let machine = HostMachine::new(4 * PAGES);
        let free = machine.free_frames();
        let parent = PerPage::<F>::new(&machine, 1).unwrap();
        parent.populate(layout, PAGES).unwrap();
        let all = Resident { anon: PAGES, file: 0 };
        let child = PerPage::<F>::new(&machine, 2).unwrap();
        assert_eq!(parent.fork(&child, PAGES).unwrap(), all);
        let level = if layout == Layout::Pmd { Level::Pmd } else { Level::Pte };
        let leaf = |space: &PerPage<'_, F>, page| {
            let table = space.table(page, level, None).unwrap().unwrap();
            // SAFETY: a table of the space's.
            let entries = unsafe { space.entries(table) };
            entries[F::index(level, page)].load(Ordering::Relaxed)
        };
        for page in (0..PAGES).step_by(F::pages(level) as usize) {
            let (ours, theirs) = (leaf(&parent, page), leaf(&child, page));
            let (parents, childs) = (F::attributes(ours), F::attributes(theirs));
            assert_eq!(F::frame(ours), F::frame(theirs));
            assert!(!parents.write && !parents.exclusive && parents.young && parents.dirty, "{parents:?}");
            assert!(!childs.write && !childs.exclusive && !childs.young && childs.dirty, "{childs:?}");
            let folio = FolioView::of(&machine, F::frame(ours)).unwrap();
            assert_eq!((folio.maps(), folio.refs()), (2 << folio.order().get(), 2 << folio.order().get()));
        }
        assert_eq!(machine.counts().tlb_ranges, 1);
        assert_eq!(child.exit(), all);
        let mut bitmap = vec![0; PAGES as usize / 64];
        parent.harvest(PAGES, &mut bitmap).unwrap();
        assert!(bitmap.iter().all(|&word| word == u64::MAX));
        bitmap.fill(0);
        parent.harvest(PAGES, &mut bitmap).unwrap();
        assert!(bitmap.iter().all(|&word| word == 0));
        assert_eq!(parent.zap(PAGES).unwrap(), all);
        assert_eq!(parent.exit(), Resident::default());
        assert_eq!(machine.free_frames(), free);
    }

    #[test]
    fn the_baseline_does_what_it_is_to_be_compared_for() {
        for layout in Layout::ALL {
            a_life::<X86_64>(layout);
            a_life::<Arm64Hafdbs>(layout);
            a_life::<RiscV<Sv48>>(layout);
        }
    }
}

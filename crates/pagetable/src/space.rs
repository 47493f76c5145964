//! The address space: its root, walks down from it, and tables that come and go.

use core::marker::PhantomData;

use crate::address::{ENTRIES, Frame, Level, PageRange};
use crate::batch::{Batched, Batching};
use crate::entries::{step, unfold_ends, write_run};
use crate::error::{Error, Stopped};
use crate::format::Format;
use crate::gather::{Gather, Slot};
use crate::machine::{Event, Machine, SpaceId};
use crate::table::{Locked, Table, prefetch};

/// A tree of page tables of format `F` on the machine `M`.
///
/// All operations but fork's child, [`exit`](Self::exit) and dropping take `&self` and may run at the same time on
/// different threads; each holds the lock of one table at a time, see the essay at the top of the crate. What two
/// operations on the *same* pages at the same time mean is for the caller's lock of the address space to decide
/// (`mmap_lock`, per-VMA locks): here the tree and all counts stay consistent, whichever comes first.
///
/// Dropping it zaps everything and gives the tables back.
pub struct AddressSpace<'m, F: Format, M: Machine, B: Batching = Batched> {
    pub(crate) machine: &'m M,
    pub(crate) id: SpaceId,
    kind: PhantomData<fn() -> (F, B)>,
}

/// What is found at a page.
pub(crate) enum Step<'m, M: Machine> {
    /// Nothing is mapped before this page.
    Gap(u64),
    /// Entries from this page on that are leaves, or a whole PTE table's.
    Window(Window<'m, M>),
}

/// Part of a locked table: entries `index..end`, the first of which translates `page`. Above the PTE level the first
/// is a leaf, the others may be anything.
pub(crate) struct Window<'m, M: Machine> {
    pub table: Locked<'m, M>,
    pub index: usize,
    pub end: usize,
    pub page: u64,
}

impl<M: Machine> Window<'_, M> {
    /// Whether the table knows its pattern, so that a batch need not read it.
    #[inline(always)]
    pub fn is_known<B: Batching>(&self) -> bool {
        B::BATCHED && self.table.pattern() != 0
    }

    /// The leaf at `index`.
    #[inline(always)]
    pub fn read<F: Format, B: Batching>(&self, index: usize) -> u64 {
        if self.is_known::<B>() {
            return self.table.pattern().wrapping_add(step(self.table.level).wrapping_mul(index as u64));
        }
        F::load(self.table.entry(index))
    }

    /// The page that the entry at `index` translates, its first if it is a huge one.
    pub fn page_of(&self, index: usize) -> u64 {
        let level = self.table.level;
        (self.page >> level.shift() << level.shift()) + ((index - self.index) as u64 * level.pages())
    }
}

/// What an operation made of a window.
pub(crate) enum Done {
    /// All before this page; go on there.
    Until(u64),
    /// The huge leaf at this page is covered only in part: split it, and come back.
    Split(u64),
}

impl<'m, F: Format, M: Machine, B: Batching> AddressSpace<'m, F, M, B> {
    /// An empty address space. `asid` is the caller's tag for its TLB entries and means nothing here.
    ///
    /// # Errors
    /// [`Error::NoTableFrame`].
    pub fn new(machine: &'m M, asid: u16) -> Result<Self, Error> {
        let root = new_table(machine)?;
        Ok(AddressSpace { machine, id: SpaceId { root, asid }, kind: PhantomData })
    }

    /// What the TLB operations of this space are told. Its `root` is what CR3 or TTBR0 takes.
    #[must_use]
    pub fn id(&self) -> SpaceId {
        self.id
    }

    /// The machine it was made on.
    #[must_use]
    pub fn machine(&self) -> &'m M {
        self.machine
    }

    /// A gather for operations on this space.
    pub fn gather<'g>(&self, slots: &'g mut [Slot]) -> Gather<'g, M>
    where
        'm: 'g,
    {
        Gather::new(self.machine, self.id, slots)
    }

    /// Checks that the format translates the range.
    pub(crate) fn check(&self, range: PageRange) -> Result<(), Stopped> {
        if range.first == range.end || F::translates(range.first, range.end) {
            Ok(())
        } else {
            Err(Stopped::at_page(range.first, Error::NotCanonical))
        }
    }

    pub(crate) fn check_page(&self, page: u64) -> Result<(), Error> {
        if F::translates(page, page + 1) { Ok(()) } else { Err(Error::NotCanonical) }
    }

    /// The table at `frame`.
    ///
    /// # Safety
    /// A guard that is older than the load that found the frame in the tree protects it as long as the result is used.
    unsafe fn table_at(&self, frame: Frame) -> &'m Table {
        // SAFETY: the caller's guard keeps the frame a table; the rest is `Memory::table`'s promise.
        unsafe { self.machine.table(frame).as_ref() }
    }

    /// Walks to `page` and locks the table that holds its leaf or, of a huge leaf, the table above.
    pub(crate) fn step(&self, page: u64, end: u64) -> Step<'m, M> {
        loop {
            let guard = self.machine.read_lock();
            let (mut level, mut frame) = (F::ROOT, self.id.root);
            let gap = loop {
                let Some(below) = level.below() else { break None };
                let index = level.index(page);
                // SAFETY: `guard` is older than the load that found `frame`.
                let table = unsafe { self.table_at(frame) };
                let raw = table.entries()[index].load();
                if level == Level::Pmd && end > next(level, page) {
                    self.look_ahead(table, index + 1);
                }
                if raw == 0 {
                    break Some(empty_until(table, level, page, end));
                }
                if !F::is_table(level, raw) {
                    break None;
                }
                (level, frame) = (below, F::table_frame(raw));
            };
            if let Some(next) = gap {
                return Step::Gap(next.min(end));
            }
            let locked = Locked::acquire(self.machine, frame, level);
            drop(guard);
            let Ok(table) = locked else { continue };
            let index = level.index(page);
            if level != Level::Pte {
                let raw = table.entry(index).relaxed();
                if raw == 0 || F::is_table(level, raw) {
                    continue;
                }
            }
            let last = level.index(end - 1) + 1;
            let same =
                page >> level.shift() >> crate::TABLE_BITS == (end - 1) >> level.shift() >> crate::TABLE_BITS;
            return Step::Window(Window { table, index, end: if same { last } else { ENTRIES }, page });
        }
    }

    /// Brings into the cache what the next table of a range operation is asked for first: its lock and pattern, and the
    /// folio that the pattern names. The prefetchers of the CPU do not follow pointers.
    #[inline(always)]
    fn look_ahead(&self, table: &Table, index: usize) {
        let Some(entry) = table.entries().get(index) else { return };
        let raw = entry.relaxed();
        if !F::is_present(raw) || !F::is_table(Level::Pmd, raw) {
            return;
        }
        let Some(meta) = self.machine.meta(F::table_frame(raw)) else { return };
        let pattern = meta.pattern();
        if pattern == 0 {
            prefetch(self.machine.table(F::table_frame(raw)).as_ptr());
        } else if let Some(folio) = self.machine.meta(F::frame(pattern)) {
            prefetch(folio);
        }
    }

    /// Walks over a range and hands what is mapped to `each`, table by table. `each` returns how far it came.
    pub(crate) fn for_windows(
        &self,
        range: PageRange,
        mut each: impl FnMut(Window<'m, M>) -> Result<Done, Stopped>,
    ) -> Result<(), Stopped> {
        self.check(range)?;
        let mut page = range.first;
        while page < range.end {
            page = match self.step(page, range.end) {
                Step::Gap(next) => next,
                Step::Window(window) => match each(window)? {
                    Done::Until(next) => next,
                    Done::Split(at) => {
                        self.split_leaf(at).map_err(|why| Stopped::at_page(page.max(at), why))?;
                        page.max(at)
                    }
                },
            };
        }
        Ok(())
    }

    /// Walks to `page`, making tables, and locks the table of `level` that translates it.
    ///
    /// Fails with [`Error::Occupied`] if a larger leaf is in the way.
    pub(crate) fn make(&self, page: u64, target: Level) -> Result<Locked<'m, M>, Error> {
        loop {
            let guard = self.machine.read_lock();
            let (mut level, mut frame) = (F::ROOT, self.id.root);
            let missing = loop {
                let Some(below) = level.below().filter(|_| level > target) else { break false };
                // SAFETY: `guard` is older than the load that found `frame`.
                let raw = unsafe { self.table_at(frame) }.entries()[level.index(page)].load();
                if raw == 0 {
                    break true;
                }
                if !F::is_table(level, raw) {
                    return Err(Error::Occupied);
                }
                (level, frame) = (below, F::table_frame(raw));
            };
            if missing {
                // Allocated before the lock is taken: the allocator may sleep or take locks of its own. The guard is
                // what must not be held then, so the walk starts anew.
                drop(guard);
                self.add_table(page, level)?;
                continue;
            }
            if let Ok(table) = Locked::acquire(self.machine, frame, level) {
                return Ok(table);
            }
        }
    }

    /// Puts an empty table below the empty entry of `level` at `page`, unless somebody was faster.
    fn add_table(&self, page: u64, level: Level) -> Result<(), Error> {
        let frame = new_table(self.machine)?;
        match self.make(page, level) {
            Ok(parent) if parent.entry(level.index(page)).relaxed() == 0 => {
                parent.change()[level.index(page)].store(F::table(frame));
                Ok(())
            }
            other => {
                self.machine.retire_table(frame);
                other.map(drop)
            }
        }
    }

    /// The table of `target` level at `page` of a space that nobody else uses, without a lock. If it is missing but the
    /// table above is there, `spare` becomes it, and the caller must write all its entries. `None` if more is needed, or
    /// a huge leaf is in the way.
    pub(crate) fn table_exclusive(
        &mut self,
        page: u64,
        target: Level,
        spare: &mut Option<Frame>,
    ) -> Option<&mut Table> {
        let (mut level, mut frame) = (F::ROOT, self.id.root);
        loop {
            // SAFETY: `&mut self` is the only way to this space's tables, so nobody holds a reference into them, and the
            // documentation of `copy_range` demands that no CPU has loaded the space.
            let table = unsafe { self.machine.table(frame).as_mut() };
            if level == target {
                return Some(table);
            }
            let entry = &mut table.entries_mut()[level.index(page)];
            let below = level.below()?;
            if entry.get() == 0 && below == target {
                entry.set(F::table(spare.take()?));
            }
            let raw = entry.get();
            if raw == 0 || !F::is_table(level, raw) {
                return None;
            }
            (level, frame) = (below, F::table_frame(raw));
        }
    }

    /// Replaces the huge leaf at `page` by a table of leaves of the level below, filled in one batch.
    pub(crate) fn split_leaf(&self, page: u64) -> Result<(), Error> {
        let fresh = new_table(self.machine)?;
        let Step::Window(window) = self.step(page, page + 1) else {
            self.machine.retire_table(fresh);
            return Ok(());
        };
        let level = window.table.level;
        let (Some(below), index) = (level.below(), window.index) else {
            drop(window);
            self.machine.retire_table(fresh);
            return Ok(());
        };
        let table = window.table;
        if !F::is_present(table.entry(index).relaxed()) {
            drop(table);
            self.machine.retire_table(fresh);
            return Ok(());
        }
        let first = page >> level.shift() << level.shift();
        unfold_ends::<F, M>(&table, self.id, first, 1);
        // Break before make: no TLB may hold the leaf and its parts at once.
        let raw = table.change()[index].swap(0);
        self.machine.invalidate_range(self.id, PageRange { first, end: first + level.pages() }, false);
        self.machine.sync();
        // SAFETY: nobody else has seen the fresh table.
        let parts = unsafe { self.machine.table(fresh).as_mut() };
        write_run::<F, M>(self.machine, parts, below, 0, F::at_level(raw, below), ENTRIES);
        table.change()[index].store(F::table(fresh));
        self.machine.event(Event::Split);
        Ok(())
    }

    /// Takes the tables out of the tree that lie wholly in the range and are empty.
    pub(crate) fn prune(&self, range: PageRange, gather: &mut Gather<'_, M>) {
        for level in [Level::Pmd, Level::Pud, Level::P4d, Level::Pgd] {
            if level > F::ROOT {
                break;
            }
            // The entries of this level whose tables lie wholly inside.
            let mut page = range.first.next_multiple_of(level.pages());
            while page + level.pages() <= range.end {
                if gather.is_full() {
                    // Not under the lock of a table: the flush waits for other CPUs.
                    gather.flush();
                }
                page = match self.parent(page, level) {
                    Some((parent, child)) => {
                        self.prune_one(&parent, page, child, gather);
                        page + level.pages()
                    }
                    None => self.skip(page, level),
                };
            }
        }
    }

    /// The first page from `page` on, past it, where a table of `level` could be found.
    fn skip(&self, page: u64, level: Level) -> u64 {
        let _guard = self.machine.read_lock();
        let (mut at, mut frame) = (F::ROOT, self.id.root);
        while at > level {
            // SAFETY: `_guard` is older than the load that found `frame`.
            let raw = unsafe { self.table_at(frame) }.entries()[at.index(page)].load();
            if raw == 0 || !F::is_table(at, raw) {
                return next(at, page);
            }
            let Some(below) = at.below() else { break };
            (at, frame) = (below, F::table_frame(raw));
        }
        next(level, page)
    }

    /// The locked table of `level` at `page`, and the child table its entry refers to.
    pub(crate) fn parent(&self, page: u64, level: Level) -> Option<(Locked<'m, M>, Frame)> {
        loop {
            let guard = self.machine.read_lock();
            let (mut at, mut frame) = (F::ROOT, self.id.root);
            while at > level {
                // SAFETY: `guard` is older than the load that found `frame`.
                let raw = unsafe { self.table_at(frame) }.entries()[at.index(page)].load();
                if raw == 0 || !F::is_table(at, raw) {
                    return None;
                }
                (at, frame) = (at.below()?, F::table_frame(raw));
            }
            // Looked at before the lock is taken: most often there is nothing.
            // SAFETY: as above.
            let raw = unsafe { self.table_at(frame) }.entries()[at.index(page)].load();
            if raw == 0 || !F::is_table(at, raw) {
                return None;
            }
            let locked = Locked::acquire(self.machine, frame, level);
            drop(guard);
            let Ok(table) = locked else { continue };
            let raw = table.entry(level.index(page)).relaxed();
            if raw == 0 || !F::is_table(level, raw) {
                return None;
            }
            return Some((table, F::table_frame(raw)));
        }
    }

    /// The frame of the table of `level` at `page`, if there is one.
    pub(crate) fn table_frame(&self, page: u64, level: Level, _guard: &M::Guard<'_>) -> Option<Frame> {
        let (mut at, mut frame) = (F::ROOT, self.id.root);
        while at > level {
            // SAFETY: `_guard` is older than the load that found `frame`.
            let raw = unsafe { self.table_at(frame) }.entries()[at.index(page)].load();
            if raw == 0 || !F::is_table(at, raw) {
                return None;
            }
            (at, frame) = (at.below()?, F::table_frame(raw));
        }
        Some(frame)
    }

    fn prune_one(&self, parent: &Locked<'m, M>, page: u64, child: Frame, gather: &mut Gather<'_, M>) {
        let Some(below) = parent.level.below() else { return };
        // The parent is locked, so the child is in the tree: it cannot be stale.
        let Ok(child) = Locked::acquire(self.machine, child, below) else { return };
        if child.table().is_empty() {
            parent.change()[parent.level.index(page)].store(0);
            gather.unlinked(child.unlink(), page, parent.level.pages());
        }
    }

    /// What a lock-free walk finds at a page: the level and the index of the entry there, empty or not, as it was read,
    /// and the table that holds it.
    pub(crate) fn walk<'a>(&'a self, page: u64, _guard: &'a M::Guard<'_>) -> (Level, usize, u64, &'a Table) {
        let (mut level, mut frame) = (F::ROOT, self.id.root);
        loop {
            // SAFETY: `_guard` is older than the load that found `frame`.
            let table = unsafe { self.table_at(frame) };
            let index = level.index(page);
            let raw = table.entries()[index].load();
            match level.below() {
                Some(below) if raw != 0 && F::is_table(level, raw) => {
                    (level, frame) = (below, F::table_frame(raw))
                }
                _ => return (level, index, raw, table),
            }
        }
    }

    /// Zaps everything, with one invalidation of the whole space a gathered batch, and gives back all tables: what the
    /// exit of a process does. Dropping does the same with a small gather.
    pub fn exit(mut self, slots: &mut [Slot]) {
        self.end(slots);
        core::mem::forget(self);
    }

    fn end(&mut self, slots: &mut [Slot]) {
        let mut gather = Gather::new(self.machine, self.id, slots);
        for range in halves::<F>() {
            gather.whole_space();
            // Nothing in a whole half needs a split, so nothing can fail.
            let _ = self.zap_into::<true>(range, &mut gather);
        }
        self.free_tables(F::ROOT, self.id.root, &mut gather);
        gather.whole_space();
        gather.flush();
    }

    /// Gives back a table of the tree that ends, and all below it. Leaves have been zapped.
    fn free_tables(&self, level: Level, frame: Frame, gather: &mut Gather<'_, M>) {
        if let Some(below) = level.below() {
            // SAFETY: the space ends, so the table is still in the tree and nobody else removes it.
            for entry in unsafe { self.table_at(frame) }.entries() {
                let raw = entry.relaxed();
                if F::is_present(raw) && F::is_table(level, raw) {
                    if below == Level::Pte {
                        gather.retired(F::table_frame(raw));
                    } else {
                        self.free_tables(below, F::table_frame(raw), gather);
                    }
                }
            }
        }
        gather.retired(frame);
    }
}

impl<F: Format, M: Machine, B: Batching> Drop for AddressSpace<'_, F, M, B> {
    fn drop(&mut self) {
        self.end(&mut [Slot::default(); 64]);
    }
}

/// The ranges that together are all a tree translates.
fn halves<F: Format>() -> impl Iterator<Item = PageRange> {
    let all = F::ROOT.table_pages();
    let top = 1u64 << (64 - crate::PAGE_SHIFT);
    let low = if F::translates(0, all) { all } else { all / 2 };
    [PageRange { first: 0, end: low }, PageRange { first: top - all / 2, end: top }]
        .into_iter()
        .filter(|r| F::translates(r.first, r.end))
}

/// The first page after `page`, whose entry in `table` is empty, that may be mapped: empty entries in a row are passed in
/// one walk, but none past `end` is looked at.
fn empty_until(table: &Table, level: Level, page: u64, end: u64) -> u64 {
    let first = page >> level.shift();
    let most = ((end - 1) >> level.shift()) - first;
    let rest = table.entries().get(level.index(page) + 1..).unwrap_or_default();
    let more = rest.iter().take(most as usize).take_while(|entry| entry.load() == 0).count();
    (first + 1 + more as u64) << level.shift()
}

/// The first page after the entry of `level` that translates `page`.
fn next(level: Level, page: u64) -> u64 {
    ((page >> level.shift()) + 1) << level.shift()
}

/// A frame for a table, all entries empty, reached by nobody else.
pub(crate) fn new_table<M: Machine>(machine: &M) -> Result<Frame, Error> {
    let frame = raw_table(machine)?;
    // SAFETY: the allocator gave the frame to us alone, and it is a table from here on.
    let table = unsafe { machine.table(frame).as_mut() };
    table.entries_mut().iter_mut().for_each(|entry| entry.set(0));
    Ok(frame)
}

/// A frame for a table, whose entries are still to be written, reached by nobody else.
pub(crate) fn raw_table<M: Machine>(machine: &M) -> Result<Frame, Error> {
    let frame = machine.alloc_table().ok_or(Error::NoTableFrame)?;
    let Some(meta) = machine.meta(frame) else {
        machine.retire_table(frame);
        return Err(Error::UnknownFrame);
    };
    meta.become_table();
    Ok(frame)
}

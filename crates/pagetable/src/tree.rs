//! Tables come, are split off, and go.

use core::marker::PhantomData;
use core::ops::Range;

use isotherm_page::{Block, Order, OwnedBlock, Table as PageTable, Unique};

use crate::address::{Frame, Level, PageRange};
use crate::entries::write_run;
use crate::error::Error;
use crate::fold::unfold_ends;
use crate::folio::base;
use crate::format::Format;
use crate::gather::Gather;
use crate::machine::{Event, Machine};
use crate::space::AddressSpace;
use crate::table::{CHANGING, Locked, OwnEntries};
use crate::walk::Step;

/// How many tables a fork allocates at once at the most.
const MOST: usize = 16;

/// A table that no tree refers to, reached by nobody else. Dropped, it is free at once, for nobody can walk through it.
pub(crate) type NewTable<'m, M> = Unique<'m, M, PageTable>;

/// The entry that links a table into a tree, which it belongs to from here on.
#[inline]
pub(crate) fn link<F: Format, M: Machine>(table: NewTable<'_, M>) -> u64 {
    F::table(table.into_raw().frame)
}

/// Frames for tables, allocated while no lock is held, for use under one. They are used in the order of the allocator,
/// for CPUs that fetch ahead into the next page; what is left over goes back.
pub(crate) struct Preallocated<'m, F: Format, M: Machine> {
    machine: &'m M,
    of: PhantomData<fn() -> F>,
    frames: [Frame; MOST],
    /// Those that are left.
    left: Range<usize>,
    /// How many were taken.
    pub taken: u64,
    /// How many to ask for the next time: more and more, so that little is asked for in vain.
    want: usize,
}

impl<'m, F: Format, M: Machine> Preallocated<'m, F, M> {
    pub fn new(machine: &'m M) -> Self {
        Preallocated { machine, of: PhantomData, frames: [Frame(0); MOST], left: 0..0, taken: 0, want: 1 }
    }

    /// Allocates tables, one at least and `most` at the most, unless some are left.
    pub fn fill(&mut self, most: u64) -> Result<(), Error> {
        if !self.left.is_empty() {
            return Ok(());
        }
        let most = usize::try_from(most).unwrap_or(MOST).clamp(1, self.want);
        self.want = (self.want * 2).min(MOST);
        let got = alloc::<F, M>(self.machine, &mut self.frames[..most]).min(most);
        let made = self.frames[..got].iter().take_while(|&&frame| {
            let block = Block::new(frame, base::<F>());
            // SAFETY: `Frames` promises that the frames are ours alone, and of this machine.
            match unsafe { Unique::new(self.machine, OwnedBlock::new(block)) }.into_table() {
                Ok(table) => table.into_raw() == block,
                Err((_, block)) => {
                    // What the allocator should not have given stays where it is.
                    core::mem::forget(block);
                    false
                }
            }
        });
        let made = made.count();
        self.left = 0..made;
        if made < got {
            return Err(Error::InUse);
        }
        if got == 0 { Err(Error::NoTableFrame) } else { Ok(()) }
    }

    /// A table whose entries are still to be written, reached by nobody else.
    pub fn take(&mut self) -> Result<NewTable<'m, M>, Error> {
        let frame = self.left.next().map(|n| self.frames[n]).ok_or(Error::NoTableFrame)?;
        self.taken += 1;
        // SAFETY: made a table by `fill`, given to nobody since, and linked nowhere.
        Ok(unsafe { Unique::from_raw(self.machine, Block::new(frame, base::<F>())) })
    }
}

impl<F: Format, M: Machine> Drop for Preallocated<'_, F, M> {
    fn drop(&mut self) {
        while let Ok(table) = self.take() {
            drop(table);
        }
    }
}

/// Allocates tables, at the start of `into`; how many.
fn alloc<F: Format, M: Machine>(machine: &M, into: &mut [Frame]) -> usize {
    if F::GRANULE == 0 {
        return machine.alloc_tables(into);
    }
    let tables = core::iter::from_fn(|| machine.alloc_table_of(base::<F>()));
    into.iter_mut().zip(tables).map(|(slot, frame)| *slot = frame).count()
}

/// Gives back the frames of a table.
///
/// # Safety
/// It is a table of this machine's of this order, no tree refers to it, and it is given back once.
pub(crate) unsafe fn retire<M: Machine>(machine: &M, frame: Frame, order: Order) {
    for meta in (0..order.frames()).filter_map(|n| machine.meta(frame.add(n))) {
        // SAFETY: it is a table that no tree refers to, the caller says. Walks that still go through it look at its entries and
        // its lock only.
        unsafe { meta.table().end() };
    }
    // SAFETY: the caller's duty.
    unsafe { machine.retire_table_of(frame, order) };
}

impl<'m, F: Format, M: Machine> AddressSpace<'m, F, M> {
    /// Walks to `page`, making tables, and locks the table of `level` that translates it.
    ///
    /// Fails with [`Error::Occupied`] if a larger leaf is in the way. Counts the tables that it adds.
    #[inline(always)]
    pub(crate) fn make(&self, page: u64, target: Level, added: &mut u64) -> Result<Locked<'m, F, M>, Error> {
        // Most often all are there, and it is free.
        let guard = self.machine.read_lock();
        if let Ok(frame) = self.tables_to(page, target, &guard) {
            // SAFETY: it was found under `guard`.
            if let Ok(table) = unsafe { Locked::try_acquire(self.machine, frame, target) } {
                return Ok(table);
            }
        }
        drop(guard);
        let (table, more) = self.make_missing(page, target)?;
        *added += more;
        Ok(table)
    }

    /// As [`make`](Self::make), where tables are missing or the last is locked; and how many were added.
    #[cold]
    fn make_missing(&self, page: u64, target: Level) -> Result<(Locked<'m, F, M>, u64), Error> {
        let mut added = 0;
        loop {
            let guard = self.machine.read_lock();
            let (mut level, mut frame) = (F::ROOT, self.id.root);
            let missing = loop {
                let Some(below) = level.below().filter(|_| level > target) else { break false };
                // SAFETY: `guard` is older than the load that found `frame`.
                let raw = unsafe { self.table_at(frame) }.at(F::index(level, page)).load();
                if raw == 0 {
                    break true;
                }
                if raw == CHANGING {
                    // SAFETY: as above.
                    unsafe { self.wait(frame, level) };
                    continue;
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
                added += self.add_table(page, level)?;
                continue;
            }
            // SAFETY: as above.
            if let Ok(table) = unsafe { Locked::acquire(self.machine, frame, level) } {
                return Ok((table, added));
            }
        }
    }

    /// Puts an empty table below the empty entry of `level` at `page`, unless somebody was faster. How many were added, those
    /// above included.
    fn add_table(&self, page: u64, level: Level) -> Result<u64, Error> {
        // Declared first and dropped last, if it is not used: allocators may sleep or take locks of their own, so it is not
        // freed under the parent's lock.
        let fresh = new_table::<F, M>(self.machine)?;
        let (parent, mut added) = self.make_missing(page, level)?;
        let entry = parent.entry(F::index(level, page));
        if entry.relaxed() == 0 {
            parent.change_at(F::index(level, page)).store(link::<F, M>(fresh));
            added += 1;
        }
        Ok(added)
    }

    /// Replaces the huge leaf at `page` by a table of leaves of the level below, filled in one batch.
    /// Whether there was one.
    pub(crate) fn split_leaf(&self, page: u64) -> Result<bool, Error> {
        // Dropped after the lock that is taken below, if it is not used.
        let fresh = new_table::<F, M>(self.machine)?;
        let Step::Window(window) = self.step(page, page + 1) else { return Ok(false) };
        let (table, index) = (window.table, window.index);
        let level = table.level;
        let Some(below) = level.below() else { return Ok(false) };
        if !F::is_present(table.entry(index).relaxed()) {
            return Ok(false);
        }
        let first = page >> F::shift(level) << F::shift(level);
        unfold_ends::<F, M>(&table, self.id, first, 1);
        // Break before make: no TLB may hold the leaf and its parts at once.
        let raw = table.change_at(index).swap(CHANGING);
        self.invalidate(level, first, F::pages(level));
        self.machine.sync();
        // SAFETY: nobody else has seen the fresh table.
        let mut parts = unsafe { OwnEntries::<F>::of(self.machine, fresh.frame()) };
        write_run::<F, M>(self.machine, &mut parts, below, 0, F::at_level(raw, below), 1 << F::TABLE_BITS);
        table.change_at(index).store(link::<F, M>(fresh));
        self.machine.event(Event::Split);
        Ok(true)
    }

    /// Takes the tables out of the tree that have pages of the range, lie wholly within the other and are empty; how many.
    pub(crate) fn prune(&self, range: PageRange, within: PageRange, gather: &mut Gather<'_, M>) -> u64 {
        let mut gone = 0;
        if range.first == range.end {
            return gone;
        }
        for level in [Level::Pmd, Level::Pud, Level::P4d, Level::Pgd] {
            if level > F::ROOT || level == F::ROOT && self.lends {
                // Tables that all processes share stay.
                break;
            }
            // The entries of this level whose tables lie wholly inside.
            let size = F::pages(level);
            let mut page = range.first.max(within.first.next_multiple_of(size)) & !(size - 1);
            let end = range.end.next_multiple_of(size).min(within.end);
            while page + size <= end {
                if gather.is_full() {
                    // Not under the lock of a table: the flush waits for other CPUs.
                    gather.flush();
                }
                page = match self.parent(page, level) {
                    Some((parent, child)) => {
                        // SAFETY: the parent is locked, and this is what its entry says.
                        gone += u64::from(unsafe { self.prune_one(&parent, page, child, gather) });
                        page + size
                    }
                    None => self.skip(page, level),
                };
            }
        }
        gone
    }

    /// Takes the child out if it is empty; whether it did.
    ///
    /// # Safety
    /// The parent's entry at `page` refers to the child.
    unsafe fn prune_one(
        &self,
        parent: &Locked<'m, F, M>,
        page: u64,
        child: Frame,
        gather: &mut Gather<'_, M>,
    ) -> bool {
        let Some(below) = parent.level.below() else { return false };
        // The parent is locked, so the child is in the tree: it cannot be stale.
        // SAFETY: as said: the parent's lock keeps it there.
        let Ok(child) = (unsafe { Locked::<F, M>::acquire(self.machine, child, below) }) else {
            return false;
        };
        let empty = child.is_empty();
        if empty {
            parent.change_at(F::index(parent.level, page)).store(0);
            // SAFETY: its entry is empty.
            unsafe { gather.unlinked(child.unlink(), base::<F>(), page, F::pages(parent.level)) };
        }
        empty
    }
}

/// A table, all entries empty.
pub(crate) fn new_table<F: Format, M: Machine>(machine: &M) -> Result<NewTable<'_, M>, Error> {
    let mut preallocated = Preallocated::<F, M>::new(machine);
    preallocated.fill(1)?;
    let table = preallocated.take()?;
    // SAFETY: the allocator gave the frame to us alone, and it is a table from here on.
    unsafe { OwnEntries::<F>::of(machine, table.frame()) }.clear();
    Ok(table)
}

//! The child's side of a fork: its tables, those that it has and those that are made for it.

use crate::address::Level;
use crate::entries::write_run;
use crate::error::Error;
use crate::format::Format;
use crate::machine::Machine;
use crate::space::AddressSpace;
use crate::table::{CHANGING, Locked, OwnEntries};
use crate::tree::{NewTable, Preallocated, link};

/// A batch that was not copied.
pub(super) enum Pause {
    Split,
    Spare,
    /// Somebody has the lock of a table of the child's.
    Busy,
    Failed(Error),
}

impl From<Error> for Pause {
    fn from(why: Error) -> Self {
        Pause::Failed(why)
    }
}

/// A table of the child's.
pub(super) enum Child<'m, F: Format, M: Machine> {
    /// It is in the child's tree, and locked.
    Linked(Locked<'m, F, M>),
    /// It is not yet, and what its entries hold was never written: each must be, also with nothing. It belongs below the
    /// empty entry with this index of the table that is [`Above`].
    Fresh { index: usize, table: NewTable<'m, M>, entries: OwnEntries<'m, F> },
}

/// Entries of a table of the child's, one at a time: what the loop for small folios is compiled for.
pub(super) trait Childs {
    /// What an entry holds, 0 also if it was never written.
    fn raw(&self, index: usize) -> u64;
    /// Writes an entry that is empty, or was never written.
    fn put(&mut self, index: usize, raw: u64);
    /// Nothing is copied there.
    fn leave(&mut self, index: usize);
}

impl<F: Format> Childs for OwnEntries<'_, F> {
    #[inline(always)]
    fn raw(&self, _: usize) -> u64 {
        0
    }
    #[inline(always)]
    fn put(&mut self, index: usize, raw: u64) {
        self.at_mut(index).set(raw);
    }
    #[inline(always)]
    fn leave(&mut self, index: usize) {
        self.put(index, 0);
    }
}

impl<F: Format, M: Machine> Childs for Locked<'_, F, M> {
    #[inline(always)]
    fn raw(&self, index: usize) -> u64 {
        self.entry(index).relaxed()
    }
    #[inline(always)]
    fn put(&mut self, index: usize, raw: u64) {
        self.change_at(index).store(raw);
    }
    #[inline(always)]
    fn leave(&mut self, _: usize) {}
}

impl<F: Format, M: Machine> Child<'_, F, M> {
    /// What an entry holds.
    fn raw(&self, index: usize) -> u64 {
        match self {
            Child::Linked(table) => table.raw(index),
            Child::Fresh { .. } => 0,
        }
    }

    /// Writes an entry that is empty, or was never written.
    pub fn set(&mut self, index: usize, raw: u64) {
        match self {
            Child::Linked(table) => table.put(index, raw),
            Child::Fresh { entries, .. } => entries.put(index, raw),
        }
    }

    /// Whether entries are empty.
    #[inline(always)]
    pub fn vacant(&self, index: usize, len: usize) -> bool {
        match self {
            Child::Linked(table) => {
                table.table()[index..index + len].iter().fold(0, |or, entry| or | entry.relaxed()) == 0
            }
            Child::Fresh { .. } => true,
        }
    }

    /// How many of some entries are empty, before the first that is not. If that is the first: a leaf cannot be copied
    /// there, but where a table is, its parts can.
    #[cold]
    pub fn vacancy(&self, level: Level, index: usize, len: usize) -> Result<usize, Pause> {
        match (index..index + len).position(|index| self.raw(index) != 0) {
            None => Ok(len),
            Some(0) => {
                let raw = self.raw(index);
                let table = F::is_valid(raw) && F::is_table(level, raw);
                Err(if table { Pause::Split } else { Error::Occupied.into() })
            }
            Some(vacant) => Ok(vacant),
        }
    }

    #[inline(always)]
    pub fn leave_empty(&mut self, entries: core::ops::Range<usize>) {
        if let Child::Fresh { entries: all, .. } = self {
            all.all_mut()[entries].iter_mut().for_each(|entry| entry.set(0));
        }
    }

    /// Lets others see it: all entries are written. `above` is what it was found with.
    #[inline(always)]
    pub fn finish(self, above: &Option<Above<'_, F, M>>) {
        if let Child::Fresh { index, table, .. } = self
            && let Some(above) = above
        {
            above.table.change_at(index).store(link::<F, M>(table));
        }
    }
}

/// The table of the child's above those that are made for it, locked. It stays so from one table to the next, unless the parent's
/// next is locked by another: then it is let go before that is waited for. So nobody waits for one of the child's tables while its
/// holder waits.
pub(super) struct Above<'m, F: Format, M: Machine> {
    table: Locked<'m, F, M>,
    /// The first page that it translates.
    first: u64,
}

impl<F: Format, M: Machine> Above<'_, F, M> {
    /// Whether it is the one above the table of `target` level at `page`.
    #[inline(always)]
    fn is_above(&self, page: u64, target: Level) -> bool {
        self.table.level.below() == Some(target) && self.first == first::<F>(self.table.level, page)
    }
}

/// The first page that the table of a level translates in which `page` is.
#[inline(always)]
fn first<F: Format>(level: Level, page: u64) -> u64 {
    page & !(F::table_pages(level) - 1)
}

impl<'m, F: Format, M: Machine> AddressSpace<'m, F, M> {
    /// The table of `target` level at `page` of a child that is being forked, locked, or, if there is none, one of the
    /// preallocated that is not linked yet. No lock is waited for, as the caller has one of the parent's. `above` is what the
    /// last call left there.
    ///
    /// Fails with [`Error::NoTableFrame`] if the preallocated is used up; what was added stays, so that a call with more goes
    /// on. Fails with [`Error::Occupied`] if a larger leaf is in the way, and with [`Pause::Busy`] if somebody has a lock.
    #[inline(always)]
    pub(super) fn table_of_child(
        &self,
        page: u64,
        target: Level,
        preallocated: &mut Preallocated<'m, F, M>,
        guard: &M::Guard<'_>,
        above: &mut Option<Above<'m, F, M>>,
    ) -> Result<Child<'m, F, M>, Pause> {
        if let Some(above) = above
            && above.is_above(page, target)
        {
            let index = F::index(above.table.level, page);
            if above.table.entry(index).relaxed() == 0 {
                return self.fresh(index, preallocated);
            }
        }
        self.find_table_of_child(page, target, preallocated, guard, above)
    }

    /// [`table_of_child`](Self::table_of_child) from the root.
    #[inline(never)]
    fn find_table_of_child(
        &self,
        page: u64,
        target: Level,
        preallocated: &mut Preallocated<'m, F, M>,
        _guard: &M::Guard<'_>,
        above: &mut Option<Above<'m, F, M>>,
    ) -> Result<Child<'m, F, M>, Pause> {
        // It may be one of those that are tried below.
        *above = None;
        let (mut level, mut frame) = (F::ROOT, self.id.root);
        loop {
            let Some(below) = level.below().filter(|_| level > target) else {
                // SAFETY: as below; or it is the root.
                let table = unsafe { Locked::try_acquire(self.machine, frame, level) };
                let table = table.map_err(|_| Pause::Busy)?;
                return Ok(Child::Linked(table));
            };
            let index = F::index(level, page);
            // SAFETY: `_guard` is older than the load that found `frame`.
            let raw = unsafe { self.table_at(frame) }.at(index).load();
            if raw == CHANGING {
                return Err(Pause::Busy);
            }
            if raw != 0 {
                if !F::is_table(level, raw) {
                    return Err(Error::Occupied.into());
                }
                (level, frame) = (below, F::table_frame(raw));
                continue;
            }
            // SAFETY: `_guard` is older than the load that found `frame`, or it is the root.
            let table = unsafe { Locked::try_acquire(self.machine, frame, level) };
            let table = table.map_err(|_| Pause::Busy)?;
            if table.entry(index).relaxed() != 0 {
                continue;
            }
            if below == target {
                *above = Some(Above { table, first: first::<F>(level, page) });
                return self.fresh(index, preallocated);
            }
            let fresh = preallocated.take()?;
            // SAFETY: the allocator gave the frame to us alone, and it is a table from here on.
            unsafe { OwnEntries::<F>::of(self.machine, fresh.frame()) }.clear();
            table.change_at(index).store(link::<F, M>(fresh));
        }
    }

    #[inline(always)]
    fn fresh(
        &self,
        index: usize,
        preallocated: &mut Preallocated<'m, F, M>,
    ) -> Result<Child<'m, F, M>, Pause> {
        let table = preallocated.take()?;
        // SAFETY: the allocator gave the frame to us alone, and it is a table from here on.
        let entries = unsafe { OwnEntries::<F>::of(self.machine, table.frame()) };
        Ok(Child::Fresh { index, table, entries })
    }
}

/// [`write_run`] where the child has a table already, as few have.
#[cold]
#[inline(never)]
pub(super) fn write_linked<F: Format, M: Machine>(
    table: &mut Locked<'_, F, M>,
    index: usize,
    raw: u64,
    len: usize,
) {
    let (machine, level) = (table.machine(), table.level);
    write_run::<F, M>(machine, table, level, index, raw, len);
}

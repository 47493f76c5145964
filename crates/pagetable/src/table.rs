//! A page table in memory, its entries, and its lock.

use core::marker::PhantomData;
use core::mem::ManuallyDrop;
use core::ptr::NonNull;

use isotherm_page::{NotLocked, TableGuard};

use crate::address::{ENTRIES, Frame, Level};
use crate::format::Format;
use crate::machine::Machine;
use crate::sync::{AtomicU64, Ordering};

/// An entry of a page table: a word that hardware may change at any time.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Entry(AtomicU64);

impl Entry {
    /// Reads the entry. What was written before a present entry was stored is seen by whoever reads it.
    #[inline]
    #[must_use]
    pub fn load(&self) -> u64 {
        // Acquire costs nothing on x86-64; on arm64 it is cheaper than the barrier it replaces.
        self.0.load(Ordering::Acquire)
    }

    #[inline]
    pub(crate) fn relaxed(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Under the lock, and only if no hardware update can change the entry: it is a leaf
    /// of that kind, empty or a table.
    #[inline]
    pub(crate) fn store(&self, raw: u64) {
        self.0.store(raw, Ordering::Release);
    }

    #[inline]
    pub(crate) fn swap(&self, raw: u64) -> u64 {
        self.0.swap(raw, Ordering::AcqRel)
    }

    /// As hardware does: sets or clears bits unless the entry changed meanwhile.
    #[inline]
    pub(crate) fn exchange(&self, old: u64, new: u64) -> Result<u64, u64> {
        self.0.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire)
    }

    /// Under the lock: replaces the entry, last seen as `old`, by `change` of it, without losing a bit that hardware
    /// sets meanwhile. Returns what was replaced.
    #[inline]
    pub(crate) fn update<F: Format>(&self, old: u64, change: impl Fn(u64) -> u64) -> u64 {
        if F::no_hw_update(old) {
            self.store(change(old));
            return old;
        }
        let mut seen = old;
        loop {
            match self.exchange(seen, change(seen)) {
                Ok(_) => return seen,
                Err(now) => seen = now,
            }
        }
    }

    /// Under the lock: empties the entry, last seen as `old`, and returns what it held at last.
    #[inline]
    pub(crate) fn take<F: Format>(&self, old: u64) -> u64 {
        self.replace::<F>(old, 0)
    }

    /// Under the lock: replaces the entry, last seen as `old`, and returns what it held at last.
    #[inline]
    pub(crate) fn replace<F: Format>(&self, old: u64, new: u64) -> u64 {
        if F::no_hw_update(old) {
            self.store(new);
            return old;
        }
        self.swap(new)
    }

    /// Nobody else can reach the table.
    #[inline]
    pub(crate) fn set(&mut self, raw: u64) {
        #[cfg(not(loom))]
        {
            *self.0.get_mut() = raw;
        }
        #[cfg(loom)]
        self.0.with_mut(|own| *own = raw);
    }
}

/// How many entries are empty from the first on. Most often all are, or none: eight are looked at together.
#[inline]
pub(crate) fn empty_from_first(entries: &[Entry]) -> usize {
    const CHUNK: usize = 8;
    let is_empty = |chunk: &&[Entry; CHUNK]| chunk.iter().fold(0, |or, entry| or | entry.relaxed()) == 0;
    let whole = entries.as_chunks::<CHUNK>().0.iter().take_while(is_empty).count() * CHUNK;
    whole + entries[whole..].iter().take(CHUNK).take_while(|entry| entry.relaxed() == 0).count()
}

/// What an entry above the lowest level holds while it is broken, before it is made anew: not present for hardware and
/// lookups, but no hole either. Whoever would change something there waits for the table's lock, whose holder is at it.
/// No format takes it for a table, and swap entries are in the lowest tables only.
pub(crate) const CHANGING: u64 = 1 << 7;

/// What an entry of this level holds while it is broken.
#[inline]
pub(crate) fn broken(level: Level) -> u64 {
    if level == Level::Pte { 0 } else { CHANGING }
}

/// A page table of 4 KiB: 512 entries in one frame. Formats with larger tables have their entries go on after it.
#[derive(Debug)]
#[cfg_attr(not(loom), repr(C, align(4096)))]
pub struct Table {
    entries: [Entry; ENTRIES],
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Table>() == 4096);

impl Default for Table {
    fn default() -> Self {
        Table { entries: core::array::from_fn(|_| Entry::default()) }
    }
}

impl Table {
    /// The entries.
    #[inline]
    #[must_use]
    pub fn entries(&self) -> &[Entry; ENTRIES] {
        &self.entries
    }
}

/// The entries of a table of the format `F`, as many as that has. The number is no field, so that the compiler knows it.
pub(crate) struct Entries<'m, F: Format> {
    first: NonNull<Entry>,
    table: PhantomData<&'m [Entry]>,
    of: PhantomData<fn() -> F>,
}

impl<F: Format> Clone for Entries<'_, F> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}
impl<F: Format> Copy for Entries<'_, F> {}

impl<'m, F: Format> Entries<'m, F> {
    /// The entries of the table in this frame.
    ///
    /// # Safety
    /// The frame is a table of this format as long as the result is used.
    #[inline(always)]
    pub unsafe fn of<M: Machine>(machine: &'m M, frame: Frame) -> Self {
        Entries { first: machine.table(frame).cast(), table: PhantomData, of: PhantomData }
    }

    #[inline(always)]
    pub fn all(self) -> &'m [Entry] {
        // SAFETY: `Memory::table` promises a whole table, and `of` was promised that it stays one.
        unsafe { core::slice::from_raw_parts(self.first.as_ptr(), 1 << F::TABLE_BITS) }
    }

    #[inline(always)]
    pub fn at(self, index: usize) -> &'m Entry {
        // Not `&self.all()[index]`: a reference to all entries for the sake of one costs Miri all of them.
        // SAFETY: as in `all`; the index is one of the table's.
        unsafe { self.first.add(index % (1 << F::TABLE_BITS)).as_ref() }
    }
}

/// The entries of a table that nobody else can reach.
pub(crate) struct OwnEntries<'m, F: Format>(Entries<'m, F>);

impl<'m, F: Format> OwnEntries<'m, F> {
    /// The entries of the table in this frame.
    ///
    /// # Safety
    /// The frame is a table of this format, and nobody else reaches it as long as the result is used.
    #[inline(always)]
    pub unsafe fn of<M: Machine>(machine: &'m M, frame: Frame) -> Self {
        // SAFETY: the caller's duty.
        OwnEntries(unsafe { Entries::of(machine, frame) })
    }

    #[inline(always)]
    pub fn all(&self) -> &[Entry] {
        self.0.all()
    }

    #[inline(always)]
    pub fn all_mut(&mut self) -> &mut [Entry] {
        // SAFETY: as in `Entries::all`; nobody else reaches them, and `self` is borrowed as long.
        unsafe { core::slice::from_raw_parts_mut(self.0.first.as_ptr(), 1 << F::TABLE_BITS) }
    }

    #[inline(always)]
    pub fn at_mut(&mut self, index: usize) -> &mut Entry {
        // SAFETY: as in `all_mut`; the index is one of the table's.
        unsafe { self.0.first.add(index % (1 << F::TABLE_BITS)).as_mut() }
    }

    /// Empties the table.
    pub fn clear(&mut self) {
        self.all_mut().iter_mut().for_each(|entry| entry.set(0));
    }
}

/// Asks for the cache line of something that is needed soon.
#[inline(always)]
pub(crate) fn prefetch<T>(what: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch changes nothing and faults nowhere.
    unsafe {
        core::arch::asm!("prefetcht0 [{}]", in(reg) what, options(nostack, preserves_flags, readonly));
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: a prefetch changes nothing and faults nowhere.
    unsafe {
        core::arch::asm!("prfm pldl1keep, [{}]", in(reg) what, options(nostack, preserves_flags, readonly));
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    let _ = what;
}

/// A page table that this thread has locked: the only software that changes its entries. See the crate's essay.
pub(crate) struct Locked<'m, F: Format, M: Machine> {
    machine: &'m M,
    pub frame: Frame,
    pub level: Level,
    table: Entries<'m, F>,
    lock: TableGuard<'m>,
}

/// Two tables, both locked.
pub(crate) type Two<'m, F, M> = (Locked<'m, F, M>, Locked<'m, F, M>);
/// Two pages' tables, the second unless they are the same.
pub(crate) type OneOrTwo<'m, F, M> = (Locked<'m, F, M>, Option<Locked<'m, F, M>>);

/// The table was removed from the tree while its lock was waited for: walk again from the root.
#[derive(Debug)]
pub(crate) struct Stale;

impl<'m, F: Format, M: Machine> Locked<'m, F, M> {
    /// Locks a table of the tree, once nobody else holds it.
    ///
    /// # Safety
    /// As [`try_acquire`](Self::try_acquire).
    pub unsafe fn acquire(machine: &'m M, frame: Frame, level: Level) -> Result<Self, Stale> {
        let mut tries = 0;
        loop {
            // SAFETY: the caller's duty.
            match unsafe { Self::try_acquire(machine, frame, level) } {
                Ok(locked) => return Ok(locked),
                Err(NotLocked::Stale) => return Err(Stale),
                Err(NotLocked::Held) => machine.relax(tries),
            }
            tries = tries.saturating_add(1);
        }
    }

    /// One try to.
    ///
    /// # Safety
    /// The frame is the root's of a space of this machine and format, or was found in its tree as a table of `level`. Since before it
    /// was found, and until this returns, a guard was held, or the lock of its parent, in which it is. The space does not end as long
    /// as the lock is held.
    #[inline]
    pub unsafe fn try_acquire(machine: &'m M, frame: Frame, level: Level) -> Result<Self, NotLocked> {
        // Every table's frame has metadata, for `Preallocated` looked at it.
        let meta = machine.meta(frame).ok_or(NotLocked::Stale)?;
        // SAFETY: the frame was found in a tree, the caller says, and stays a table, if a stale one.
        let lock = unsafe { meta.table() }.try_lock()?;
        // SAFETY: the frame is a table of the tree, for it is not stale; `Memory::table` promises the rest.
        let table = unsafe { Entries::of(machine, frame) };
        Ok(Locked { machine, frame, level, table, lock })
    }

    /// To read an entry.
    #[inline]
    pub fn entry(&self, index: usize) -> &'m Entry {
        self.table.at(index)
    }

    /// To read entries.
    #[inline(always)]
    pub fn table(&self) -> &'m [Entry] {
        self.table.all()
    }

    pub fn is_empty(&self) -> bool {
        empty_from_first(self.table()) == 1 << F::TABLE_BITS
    }

    /// To change entries: the progression is forgotten.
    #[inline(always)]
    pub fn change(&self) -> &'m [Entry] {
        self.lock.forget();
        self.table.all()
    }

    /// To change one.
    #[inline(always)]
    pub fn change_at(&self, index: usize) -> &'m Entry {
        self.lock.forget();
        self.table.at(index)
    }

    /// If not 0: every entry `n` is this plus `n` times [`Format::step`], and no hardware update can have changed it since. A table
    /// that was filled in one batch knows that without looking, which spares the next batch to read it.
    #[inline(always)]
    pub fn progression(&self) -> u64 {
        self.lock.progression()
    }

    /// Every entry `n` is now `raw` plus `n` steps.
    ///
    /// # Safety
    /// They are.
    #[inline]
    pub unsafe fn remember(&self, raw: u64) {
        if F::no_hw_update(raw) {
            // SAFETY: the caller's duty; no hardware update changes these entries, and `change` forgets it.
            unsafe { self.lock.remember(raw) };
        }
    }

    /// A sequence count of what pages of this table are permitted: it changes whenever a page is mapped or pinned, becomes
    /// writable, or has its permissions decided on.
    ///
    /// Two equal entries do not say that the page was not written in between, for it may have been made writable and
    /// read-only again. Two equal counts do: then a page that was read-only at the first look and is read-only now was
    /// never writable. Counts repeat after 2^27 changes, also across a frame's lives as different tables.
    pub fn sequence(&self) -> u32 {
        self.lock.sequence()
    }

    /// Counts the sequence up.
    #[inline]
    pub fn count_change(&self) {
        self.lock.count_change();
    }

    pub fn machine(&self) -> &'m M {
        self.machine
    }

    /// Unlocks a table that was unlinked from the tree under its parent's lock: whoever waits for it walks again.
    pub fn unlink(self) -> Frame {
        let this = ManuallyDrop::new(self);
        // SAFETY: `this` is not used again but for the frame, so the guard is moved out of it once.
        unsafe { core::ptr::read(&raw const this.lock) }.unlink();
        this.frame
    }
}

#[cfg(all(debug_assertions, not(miri)))]
impl<F: Format, M: Machine> Drop for Locked<'_, F, M> {
    fn drop(&mut self) {
        if self.progression() != 0 {
            for (n, entry) in self.table().iter().enumerate() {
                assert_eq!(
                    entry.relaxed(),
                    self.progression() + n as u64 * F::step(self.progression(), self.level),
                    "{:?}",
                    self.frame
                );
            }
        }
    }
}

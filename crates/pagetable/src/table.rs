//! A page table in memory, its entries, and its lock.

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

    /// Under the lock, and only if the entry is settled, empty or a table.
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
        if F::settled(old) {
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
        if F::settled(old) {
            self.store(new);
            return old;
        }
        self.swap(new)
    }

    /// Nobody else can reach the table.
    #[inline]
    pub(crate) fn get(&mut self) -> u64 {
        #[cfg(not(loom))]
        {
            *self.0.get_mut()
        }
        #[cfg(loom)]
        self.0.with_mut(|own| *own)
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

/// What an entry above the lowest level holds while it is broken, before it is made anew: not present for hardware and
/// lookups, but no hole either. Whoever would change something there waits for the table's lock, whose holder is at it.
/// No format takes it for a table, and tokens are in the lowest tables only.
pub(crate) const CHANGING: u64 = 1 << 7;

/// What an entry of this level holds while it is broken.
#[inline]
pub(crate) fn broken(level: Level) -> u64 {
    if level == Level::Pte { 0 } else { CHANGING }
}

/// A page table: 512 entries in one frame.
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

    #[inline]
    pub(crate) fn entries_mut(&mut self) -> &mut [Entry; ENTRIES] {
        &mut self.entries
    }

    /// Empties a table that nobody else can reach.
    pub(crate) fn clear(&mut self) {
        self.entries.iter_mut().for_each(|entry| entry.set(0));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.iter().all(|e| e.relaxed() == 0)
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

const LOCKED: u32 = 1;
const STALE: u32 = 2;

/// A page table that this thread has locked: the only software that changes its entries. See the crate's essay.
pub(crate) struct Locked<'m, M: Machine> {
    machine: &'m M,
    pub frame: Frame,
    pub level: Level,
    table: &'m Table,
    meta: &'m crate::folio::FrameMeta,
}

/// The table was removed from the tree while its lock was waited for: walk again from the root.
#[derive(Debug)]
pub(crate) struct Stale;

impl<'m, M: Machine> Locked<'m, M> {
    /// Locks a table of the tree. The caller's guard protects the frame until the lock is held.
    pub fn acquire(machine: &'m M, frame: Frame, level: Level) -> Result<Self, Stale> {
        // Every table frame has metadata, for it came from `alloc_table` (`new_table` checks that).
        let meta = machine.meta(frame).ok_or(Stale)?;
        let mut tries = 0;
        loop {
            let word = meta.word.load(Ordering::Relaxed);
            if word & STALE != 0 {
                // Pairs with `retire`, so that the walk anew finds what replaced the table.
                let _ = meta.word.load(Ordering::Acquire);
                return Err(Stale);
            }
            if word == 0
                && meta.word.compare_exchange(0, LOCKED, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                // SAFETY: the frame is a table of the tree, for it is not stale; `Memory::table` promises the rest.
                let table = unsafe { machine.table(frame).as_ref() };
                return Ok(Locked { machine, frame, level, table, meta });
            }
            machine.relax(tries);
            tries = tries.saturating_add(1);
        }
    }

    /// To read an entry.
    #[inline]
    pub fn entry(&self, index: usize) -> &'m Entry {
        &self.table.entries[index % ENTRIES]
    }

    /// To read entries.
    #[inline]
    pub fn table(&self) -> &'m Table {
        self.table
    }

    /// To change entries: the pattern is forgotten.
    #[inline(always)]
    pub fn change(&self) -> &'m [Entry; ENTRIES] {
        self.meta.set_pattern(0);
        &self.table.entries
    }

    /// If not 0: every entry `n` is this plus `n` pages, and settled, so hardware cannot have changed it since. A table
    /// that was filled in one batch knows that without looking, which spares the next batch to read it.
    #[inline(always)]
    pub fn pattern(&self) -> u64 {
        self.meta.pattern()
    }

    /// Every entry `n` is now `raw` plus `n` pages.
    #[inline]
    pub fn remember<F: Format>(&self, raw: u64) {
        if F::settled(raw) {
            self.meta.set_pattern(raw);
        }
    }

    /// Changes with every page that is mapped in this table, pinned or becomes writable, and when it was decided what
    /// pages permit (32768 times before it is the same again, also while the frame is something else in between). If it
    /// is still what it was, a page that was read-only then, and is the same now, was not written meanwhile: that its
    /// entry is the same does not tell, since it may have been writable in between.
    pub fn grants(&self) -> u32 {
        self.meta.grants()
    }

    /// To be called whenever a page is mapped, pinned or becomes writable, and when it is decided what pages permit.
    #[inline]
    pub fn grant(&self) {
        self.meta.grant();
    }

    pub fn machine(&self) -> &'m M {
        self.machine
    }

    /// Unlocks a table that was unlinked from the tree under its parent's lock: whoever waits for it walks again.
    pub fn unlink(self) -> Frame {
        let frame = self.frame;
        self.meta.word.store(STALE, Ordering::Release);
        core::mem::forget(self);
        frame
    }
}

impl<M: Machine> Drop for Locked<'_, M> {
    fn drop(&mut self) {
        #[cfg(all(debug_assertions, not(miri)))]
        if self.pattern() != 0 {
            for (n, entry) in self.table.entries.iter().enumerate() {
                assert_eq!(entry.relaxed(), self.pattern() + n as u64 * crate::PAGE_SIZE, "{:?}", self.frame);
            }
        }
        self.meta.word.store(0, Ordering::Release);
    }
}

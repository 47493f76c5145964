//! Changes of runs of entries under a table's lock, contiguous blocks taken care of: what the range operations call
//! `set_ptes`, `wrprotect_ptes` and `clear_ptes`.
//!
//! Contiguous blocks are folded and unfolded by [`fold`](crate::fold).

use core::ops::Range;

use crate::address::Level;
use crate::batch::Run;
use crate::fold::{fold_last, folded, may_fold};
use crate::format::Format;
use crate::machine::{Machine, SpaceId};
use crate::table::{Entry, Locked, OwnEntries, broken};

/// Entries that are written with one addition to a common base.
const CHUNK: usize = 8;

/// Stores the progression from `raw` on.
#[inline(always)]
pub(crate) fn store_all<F: Format>(entries: &[Entry], mut raw: u64, step: u64) {
    let (chunks, tail) = entries.as_chunks::<CHUNK>();
    if step == F::STEP {
        // With the step known to the compiler.
        for chunk in chunks {
            chunk.iter().enumerate().for_each(|(n, entry)| entry.store(nth(raw, n, F::STEP)));
            raw = nth(raw, CHUNK, F::STEP);
        }
    } else {
        for chunk in chunks {
            chunk.iter().enumerate().for_each(|(n, entry)| entry.store(nth(raw, n, step)));
            raw = nth(raw, CHUNK, step);
        }
    }
    tail.iter().enumerate().for_each(|(n, entry)| entry.store(nth(raw, n, step)));
}

/// [`store_all`] for entries that nobody else can reach: of these the compiler makes the widest stores that it knows. So many of
/// them at a time that where the loop lies in memory makes no difference.
#[inline(always)]
fn write_all<F: Format>(entries: &mut [Entry], mut raw: u64, step: u64) {
    if step != F::STEP {
        for entry in entries {
            entry.set(raw);
            raw = raw.wrapping_add(step);
        }
        return;
    }
    let (chunks, tail) = entries.as_chunks_mut::<{ 2 * CHUNK }>();
    for chunk in chunks {
        chunk.iter_mut().enumerate().for_each(|(n, entry)| entry.set(nth(raw, n, F::STEP)));
        raw = nth(raw, 2 * CHUNK, F::STEP);
    }
    tail.iter_mut().enumerate().for_each(|(n, entry)| entry.set(nth(raw, n, F::STEP)));
}

#[inline(always)]
pub(crate) fn nth(raw: u64, n: usize, step: u64) -> u64 {
    raw.wrapping_add(step.wrapping_mul(n as u64))
}

/// Stores `len` leaves from `raw` on into empty entries: pages of one folio, or special ones.
#[inline]
pub(crate) fn set_run<F: Format, M: Machine>(
    table: &Locked<'_, F, M>,
    space: SpaceId<M::Context>,
    page: u64,
    raw: u64,
    len: usize,
) {
    let (index, step) = (F::index(table.level, page), F::step(raw, table.level));
    table.count_change();
    let raw = raw & !F::CONT;
    if len == 1 {
        table.change_at(index).store(raw);
        if F::CONTIGUOUS > 1 && F::is_valid(raw) {
            fold_last::<F, M>(table, space, page, raw);
        }
        return;
    }
    // Only valid entries are folded.
    if F::CONTIGUOUS == 1 || !F::is_valid(raw) {
        store_all::<F>(&table.change()[index..(index + len).min(1 << F::TABLE_BITS)], raw, step);
        if len == 1 << F::TABLE_BITS && table.level == Level::Pte {
            // SAFETY: all entries were just stored so.
            unsafe { table.remember(raw) };
        }
        return;
    }
    let block = F::contiguous(table.level);
    let mut done = 0;
    while done < len {
        let (at, value) = (index + done, nth(raw, done, step));
        if at.is_multiple_of(block) && len - done >= block && may_fold::<F>(table.level, value) {
            // If one may be folded, so may all whole blocks behind it.
            let whole = (len - done) & !(block - 1);
            store_all::<F>(&table.change()[at..at + whole], value | F::CONT, step);
            done += whole;
        } else {
            table.change_at(at).store(value);
            if at % block == block - 1 || done + 1 == len {
                fold_last::<F, M>(table, space, page + ((done as u64) << F::shift(table.level)), value);
            }
            done += 1;
        }
    }
    if len == 1 << F::TABLE_BITS && table.level == Level::Pte && may_fold::<F>(table.level, raw) {
        // SAFETY: all entries were just stored so: block by block, as the whole may be folded.
        unsafe { table.remember(raw | F::CONT) };
    }
}

/// A table of a space that no CPU has loaded, in which entries change without a flush.
pub(crate) trait Unloaded<F: Format> {
    fn all(&self) -> &[Entry];
    /// Stores the progression from `raw` on.
    fn fill(&mut self, entries: Range<usize>, raw: u64, step: u64);
    /// Stores one.
    fn put(&mut self, index: usize, raw: u64);
}

impl<F: Format> Unloaded<F> for OwnEntries<'_, F> {
    #[inline(always)]
    fn all(&self) -> &[Entry] {
        self.all()
    }
    #[inline(always)]
    fn fill(&mut self, entries: Range<usize>, raw: u64, step: u64) {
        write_all::<F>(&mut self.all_mut()[entries], raw, step);
    }
    #[inline(always)]
    fn put(&mut self, index: usize, raw: u64) {
        self.at_mut(index).set(raw);
    }
}

impl<F: Format, M: Machine> Unloaded<F> for Locked<'_, F, M> {
    fn all(&self) -> &[Entry] {
        self.table()
    }
    fn fill(&mut self, entries: Range<usize>, raw: u64, step: u64) {
        store_all::<F>(&self.change()[entries], raw, step);
    }
    fn put(&mut self, index: usize, raw: u64) {
        self.change_at(index).store(raw);
    }
}

/// [`set_run`] for a table of a space that no CPU has loaded, as a fork builds it for the child.
#[inline]
pub(crate) fn write_run<F: Format, M: Machine>(
    machine: &M,
    table: &mut impl Unloaded<F>,
    level: Level,
    index: usize,
    raw: u64,
    len: usize,
) {
    let step = F::step(raw, level);
    let raw = raw & !F::CONT;
    if F::CONTIGUOUS == 1 || !F::is_valid(raw) {
        table.fill(index..index + len, raw, step);
        return;
    }
    let block = F::contiguous(level);
    let mut done = 0;
    while done < len {
        let (at, value) = (index + done, nth(raw, done, step));
        if at.is_multiple_of(block) && len - done >= block && may_fold::<F>(level, value) {
            // As in `set_run`.
            let whole = (len - done) & !(block - 1);
            table.fill(at..at + whole, value | F::CONT, step);
            done += whole;
        } else {
            table.put(at, value);
            if at % block == block - 1 {
                let block = at + 1 - block;
                if let Some((folded, _)) = folded::<F, M>(machine, table.all(), level, block) {
                    table.fill(block..at + 1, folded, step);
                }
            }
            done += 1;
        }
    }
}

/// [`write_run`] of one leaf.
#[inline(always)]
pub(crate) fn write_one<F: Format, M: Machine>(
    machine: &M,
    table: &mut impl Unloaded<F>,
    level: Level,
    index: usize,
    raw: u64,
) {
    let raw = raw & !F::CONT;
    table.put(index, raw);
    if F::CONTIGUOUS > 1 && F::is_valid(raw) && (index + 1).is_multiple_of(F::contiguous(level)) {
        let block = index + 1 - F::contiguous(level);
        if let Some((folded, _)) = folded::<F, M>(machine, table.all(), level, block) {
            table.fill(block..index + 1, folded, F::step(raw, level));
        }
    }
}

/// Changes the entries of a run, none of a block only in part. `change` adds nothing to the frame and must not depend
/// on young and dirty unless the run is exact.
#[inline]
pub(crate) fn change_run<F: Format, M: Machine>(
    table: &Locked<'_, F, M>,
    index: usize,
    run: &Run,
    change: impl Fn(u64) -> u64,
) {
    let entries = &table.change()[index..index + run.len];
    if !change_equal::<F, M>(table, entries, run, &change) {
        update_all::<F>(entries, change);
    }
}

/// [`change_run`] that returns the OR and the AND of the bits that were replaced, of those that hardware can set.
#[inline]
pub(crate) fn exchange_run<F: Format, M: Machine>(
    table: &Locked<'_, F, M>,
    index: usize,
    run: &Run,
    change: impl Fn(u64) -> u64,
) -> (u64, u64) {
    let entries = &table.change()[index..index + run.len];
    let (mut or, mut and) = (run.or, run.and);
    if !change_equal::<F, M>(table, entries, run, &change) {
        for entry in entries {
            let raw = entry.update::<F>(entry.relaxed(), &change);
            or |= raw;
            and &= raw | !F::STATE;
        }
    }
    (or, and)
}

/// [`exchange_run`] of one leaf.
#[inline(always)]
pub(crate) fn exchange_one<F: Format, M: Machine>(
    table: &Locked<'_, F, M>,
    index: usize,
    run: &Run,
    change: impl Fn(u64) -> u64,
) -> (u64, u64) {
    let raw = table.change_at(index).update::<F>(run.first, change);
    (run.or | raw, run.and & (raw | !F::STATE))
}

/// [`change_run`] of entries that are equal and that no hardware update can change: there is nothing left to set in any of them.
/// Whether they are.
#[inline(always)]
fn change_equal<F: Format, M: Machine>(
    table: &Locked<'_, F, M>,
    entries: &[Entry],
    run: &Run,
    change: &impl Fn(u64) -> u64,
) -> bool {
    if !run.exact() || !F::no_hw_update(run.first) {
        return false;
    }
    let raw = change(run.first);
    store_all::<F>(entries, raw, F::step(raw, table.level));
    if run.len == 1 << F::TABLE_BITS && table.level == Level::Pte {
        // SAFETY: all entries were just stored so.
        unsafe { table.remember(raw) };
    }
    true
}

/// Changes entries one by one. Apart from what calls it, so that all that is asked of an entry is in registers.
#[inline(never)]
fn update_all<F: Format>(entries: &[Entry], change: impl Fn(u64) -> u64) {
    for entry in entries {
        let raw = entry.relaxed();
        if F::no_hw_update(raw) {
            entry.store(change(raw));
        } else if let Err(now) = entry.exchange(raw, change(raw)) {
            update_again::<F>(entry, now, &change);
        }
    }
}

/// Changes an entry that hardware has changed just now. Apart: as a loop in that of [`update_all`] it costs each entry.
#[cold]
#[inline(never)]
fn update_again<F: Format>(entry: &Entry, now: u64, change: &impl Fn(u64) -> u64) {
    entry.update::<F>(now, change);
}

/// Empties the entries of a run, none of a block only in part. Returns the OR and the AND of their bits at last, those
/// of young and dirty only if `state` says that they matter.
#[inline]
pub(crate) fn clear_run<F: Format, M: Machine>(
    table: &Locked<'_, F, M>,
    index: usize,
    run: &Run,
    state: bool,
) -> (u64, u64) {
    replace_run::<F, M>(table, index, run, state, 0)
}

/// [`clear_run`] of entries that are made anew before the lock goes: nobody takes them for holes meanwhile.
pub(crate) fn break_run<F: Format, M: Machine>(
    table: &Locked<'_, F, M>,
    index: usize,
    run: &Run,
) -> (u64, u64) {
    replace_run::<F, M>(table, index, run, true, broken(table.level))
}

#[inline(always)]
fn replace_run<F: Format, M: Machine>(
    table: &Locked<'_, F, M>,
    index: usize,
    run: &Run,
    state: bool,
    by: u64,
) -> (u64, u64) {
    let entries = &table.change()[index..index + run.len];
    if !state || run.exact() && F::no_hw_update(run.first) {
        for entry in entries {
            entry.store(by);
        }
        return (run.or, run.and);
    }
    let (mut or, mut and) = (run.or, run.and);
    for entry in entries {
        let raw = entry.replace::<F>(entry.relaxed(), by);
        or |= raw;
        and &= raw | !F::STATE;
    }
    (or, and)
}

/// The OR and the AND of entries that are known to belong together.
pub(crate) fn run_of<F: Format, M: Machine>(table: &Locked<'_, F, M>, index: usize, len: usize) -> Run {
    let first = F::load(table.entry(index));
    let mut run = Run { len, first, or: first, and: first };
    for n in 1..len {
        let raw =
            F::load(table.entry(index + n)).wrapping_sub(F::step(first, table.level).wrapping_mul(n as u64));
        run.or |= raw;
        run.and &= raw;
    }
    run
}

//! Changes of runs of entries under a table's lock, contiguous blocks taken care of: what the range operations call
//! `set_ptes`, `wrprotect_ptes` and `clear_ptes`.
//!
//! # Contiguous blocks
//!
//! Sixteen aligned entries over one folio, with equal attributes and an aligned frame, carry the contiguous bit; the TLB
//! then holds them as one. The operations above never see it. Below:
//!
//! - a run that covers whole blocks is stored folded at once, without any flush, for its entries were empty;
//! - when the last entry of a block arrives alone, the block is folded if it qualifies (patch 14 of the seed's series,
//!   which looks at the entry with the highest address; here it is whichever comes last);
//! - a change of a part of a block unfolds it first, a change of all of it does not;
//! - folding and unfolding in place break before they make: the sixteen are emptied, gathering young and dirty, the TLB
//!   is flushed, and they are stored anew with what was gathered. A lock-free lookup meanwhile finds nothing there, and
//!   a fault waits for the lock.
//!
//! Young and dirty of a block are the OR over its entries, since the TLB sets them in any one. The entries of a PMD block are
//! folios of their own, each of which is asked about alone. So over these a block is folded only while they are all *at rest*:
//! equal, young, and dirty or read-only, so that no access has anything left to set, and each entry says what is true of its
//! folio. Whatever makes one of them old, clean or otherwise different unfolds the block first. Special mappings, of which
//! nobody asks for young and dirty, are folded as they are.

use core::ops::Range;

use crate::address::{Level, PageRange};
use crate::batch::{Run, with_state};
use crate::folio::one_folio;
use crate::format::Format;
use crate::machine::{Event, Flush, Machine, SpaceId};
use crate::table::{Entry, Locked, OwnEntries, broken};

/// Entries that are written with one addition to a common base.
const CHUNK: usize = 8;

/// Stores the progression from `raw` on.
#[inline(always)]
fn store_all<F: Format>(entries: &[Entry], mut raw: u64, step: u64) {
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
fn nth(raw: u64, n: usize, step: u64) -> u64 {
    raw.wrapping_add(step.wrapping_mul(n as u64))
}

/// Whether the leaves of a block of this level are folios of their own.
#[inline]
fn are_folios<F: Format>(level: Level, raw: u64) -> bool {
    level != Level::Pte && raw & F::SPECIAL == 0
}

/// Whether no access changes the leaf, whoever sets the bits.
#[inline]
fn is_at_rest<F: Format>(raw: u64) -> bool {
    F::is_young(raw) && (F::is_dirty(raw) || !F::is_writable(raw))
}

/// Whether a block that starts with this leaf may be folded, if its entries are as one.
#[inline]
fn may_fold<F: Format>(level: Level, raw: u64) -> bool {
    F::is_valid(raw)
        && F::contiguous(level) > 1
        && (!are_folios::<F>(level, raw) || is_at_rest::<F>(raw))
        && F::frame(raw).0 & (F::pages(level) * F::contiguous(level) as u64 - 1) == 0
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

/// Folds the block of a page whose entry was just stored, if that was the last to arrive.
#[inline]
fn fold_last<F: Format, M: Machine>(
    table: &Locked<'_, F, M>,
    space: SpaceId<M::Context>,
    page: u64,
    raw: u64,
) {
    let (at, block) = (F::index(table.level, page), F::contiguous(table.level));
    if block > 1 && (at % block == block - 1 || goes_on::<F, M>(table, at, raw)) {
        let first = (page >> F::shift(table.level)) - (at % block) as u64;
        try_fold::<F, M>(table, space, first << F::shift(table.level));
    }
}

/// Whether the last entry of a block is there already, and what the one at `at` lets expect: as memory is mapped upwards
/// nearly always, it mostly is not, and this look is all that a page costs which is not the last to arrive.
#[inline]
fn goes_on<F: Format, M: Machine>(table: &Locked<'_, F, M>, at: usize, raw: u64) -> bool {
    let block = F::contiguous(table.level);
    let distance = block - 1 - at % block;
    let expected = nth(raw, distance, F::step(raw, table.level));
    (table.entry(at + distance).relaxed() ^ expected) & !F::STATE == 0
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

/// The first entry of the block as it would be folded, if it qualifies and is not folded yet, and whether all entries are equal.
fn folded<F: Format, M: Machine>(
    machine: &M,
    table: &[Entry],
    level: Level,
    block: usize,
) -> Option<(u64, bool)> {
    let entries = &table[block..block + F::contiguous(level)];
    let first = F::load(&entries[0]);
    if !F::is_present(first)
        || F::is_table(level, first)
        || first & F::CONT != 0
        || !may_fold::<F>(level, first)
        || (first & F::SPECIAL == 0
            && level == Level::Pte
            && !one_folio(machine, F::frame(first), F::contiguous(level) << F::GRANULE))
    {
        return None;
    }
    let (mut or, mut and) = (first, first);
    for (n, entry) in entries.iter().enumerate().skip(1) {
        let raw = F::load(entry).wrapping_sub(F::step(first, level).wrapping_mul(n as u64));
        or |= raw;
        and &= raw;
    }
    let may_differ = if are_folios::<F>(level, first) { 0 } else { F::STATE };
    ((or ^ and) & !may_differ == 0).then(|| (with_state::<F>(first, or, and) | F::CONT, or == and))
}

fn try_fold<F: Format, M: Machine>(table: &Locked<'_, F, M>, space: SpaceId<M::Context>, page: u64) {
    let block = F::index(table.level, page);
    let Some((raw, exact)) = folded::<F, M>(table.machine(), table.table(), table.level, block) else {
        return;
    };
    if exact && F::no_hw_update(raw & !F::CONT) {
        // Hardware has nothing left to set in any of them, as each is still cached by itself.
        remake_equal::<F, M>(table, space, page, raw);
    } else {
        remake::<F, M>(table, space, page, true);
    }
    table.machine().event(Event::Fold);
}

/// Empties the block that starts at `page`, whose entries are equal and can be changed by no access, flushes, and stores it
/// anew from `raw` on.
fn remake_equal<F: Format, M: Machine>(
    table: &Locked<'_, F, M>,
    space: SpaceId<M::Context>,
    page: u64,
    raw: u64,
) {
    let block = F::index(table.level, page);
    let entries = &table.change()[block..block + F::contiguous(table.level)];
    entries.iter().for_each(|entry| entry.store(broken(table.level)));
    flush_block::<F, M>(table, space, page);
    store_all::<F>(entries, raw, F::step(raw, table.level));
}

/// Makes all CPUs drop their translations of the block that starts at `page`.
#[inline]
fn flush_block<F: Format, M: Machine>(table: &Locked<'_, F, M>, space: SpaceId<M::Context>, page: u64) {
    let pages = F::contiguous(table.level) as u64 * F::pages(table.level);
    let range = PageRange { first: page, end: page + pages };
    table.machine().invalidate_range(space, Flush::of::<F>(table.level, range));
    table.machine().sync();
}

/// Empties the block that starts at `page`, flushes, and stores it anew, folded or not, with what was gathered.
fn remake<F: Format, M: Machine>(
    table: &Locked<'_, F, M>,
    space: SpaceId<M::Context>,
    page: u64,
    fold: bool,
) {
    let block = F::index(table.level, page);
    let size = F::contiguous(table.level);
    let raw = table.entry(block).relaxed();
    if are_folios::<F>(table.level, raw) {
        // At rest, or they would not be folded.
        let raw = if fold { raw | F::CONT } else { raw & !F::CONT };
        return remake_equal::<F, M>(table, space, page, raw);
    }
    // Only valid entries are folded.
    let step = F::step(raw, table.level);
    let mut first = 0;
    let (mut or, mut and) = (0, u64::MAX);
    for n in 0..size {
        let entry = table.change_at(block + n);
        // Not `take`: a sibling of the same block may be changed by hardware although this entry
        // cannot, and that
        // is found when its turn comes.
        let raw = entry.replace::<F>(entry.relaxed(), broken(table.level));
        let raw = raw.wrapping_sub(step.wrapping_mul(n as u64));
        if n == 0 {
            first = raw;
        }
        or |= raw;
        and &= raw;
    }
    flush_block::<F, M>(table, space, page);
    let mut raw = with_state::<F>(first, or, and) & !F::CONT;
    if fold {
        raw |= F::CONT;
    }
    for n in 0..size {
        table.change_at(block + n).store(nth(raw, n, step));
    }
}

/// Unfolds the blocks that the run covers only in part. `true` if there was one: entries read before are outdated.
#[inline]
pub(crate) fn unfold_ends<F: Format, M: Machine>(
    table: &Locked<'_, F, M>,
    space: SpaceId<M::Context>,
    page: u64,
    len: usize,
) -> bool {
    if F::CONTIGUOUS == 1 {
        return false;
    }
    if len == 1 && !is_folded::<F>(table.entry(F::index(table.level, page)).relaxed()) {
        return false;
    }
    let first = page >> F::shift(table.level);
    let size = F::contiguous(table.level) as u64;
    let block_of = |entry: u64| entry - entry % size;
    let mut unfolded = false;
    let mut unfold = |entry: u64| {
        let page = block_of(entry) << F::shift(table.level);
        if is_folded::<F>(table.entry(F::index(table.level, page)).relaxed()) {
            remake::<F, M>(table, space, page, false);
            table.machine().event(Event::Unfold);
            unfolded = true;
        }
    };
    let end = first + len as u64;
    if first != block_of(first) {
        unfold(first);
    }
    if end != block_of(end) {
        unfold(end);
    }
    unfolded
}

#[inline]
fn is_folded<F: Format>(raw: u64) -> bool {
    F::is_present(raw) && raw & F::CONT != 0
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

//! Contiguous blocks: folded when their last entry arrives, unfolded when one must change.
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

use crate::address::{Level, PageRange};
use crate::batch::with_state;
use crate::entries::{nth, store_all};
use crate::folio::one_folio;
use crate::format::Format;
use crate::machine::{Event, Flush, Machine, SpaceId};
use crate::table::{Entry, Locked, broken};

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
pub(crate) fn may_fold<F: Format>(level: Level, raw: u64) -> bool {
    F::is_valid(raw)
        && F::contiguous(level) > 1
        && (!are_folios::<F>(level, raw) || is_at_rest::<F>(raw))
        && F::frame(raw).0 & (F::pages(level) * F::contiguous(level) as u64 - 1) == 0
}

/// Folds the block of a page whose entry was just stored, if that was the last to arrive.
#[inline]
pub(crate) fn fold_last<F: Format, M: Machine>(
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

/// The first entry of the block as it would be folded, if it qualifies and is not folded yet, and whether all entries are equal.
pub(crate) fn folded<F: Format, M: Machine>(
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

//! Batches: how many entries from here on can be treated as one.
//!
//! A batch is a run of present leaves of one table that map consecutive frames of one folio and agree in every bit but
//! the frame, apart from those the operation may ignore (the seed's generic rule). The caller bounds the run by the
//! folio; what is left is to compare up to 511 words with an arithmetic progression, which is done without a branch
//! for eight entries at a time. A batch reads no entry twice.
//!
//! An entry with the contiguous bit stands for its block: the young and dirty bits of the sixteen are one state. Read
//! one by one, each entry would gather its block anew, the 16 x 16 reads that the seed discusses. Here a block is read
//! once, and a batch that starts or ends in its middle takes what is left of it.

use crate::address::Level;
use crate::folio::{FolioKind, FolioView};
use crate::format::Format;
use crate::machine::Machine;
use crate::table::{Entry, Locked};

/// Whether a leaf may be one of a batch. No folio is larger than a huge leaf, so above the lowest level only special
/// mappings come in batches.
#[inline(always)]
pub(crate) fn is_many<F: Format>(level: Level, raw: u64) -> bool {
    level == Level::Pte || raw & F::SPECIAL != 0
}

/// The folio of a leaf, if it is of order 0 and this kind. One kind at a time, so that a loop over such leaves counts them by
/// their number.
#[inline(always)]
pub(crate) fn single<'m, F: Format, M: Machine>(
    machine: &'m M,
    raw: u64,
    kind: FolioKind,
) -> Option<FolioView<'m>> {
    // In larger granules no folio of order 0 is mapped.
    if F::GRANULE != 0 { None } else { FolioView::small_of(machine, F::frame(raw), kind) }
}

/// The other kind, if the leaf that ended a loop over small folios of `kind` is a small folio of that.
#[inline]
pub(crate) fn other_kind<F: Format, M: Machine>(
    machine: &M,
    raw: Option<u64>,
    kind: FolioKind,
) -> Option<FolioKind> {
    let raw = raw.filter(|&raw| F::is_valid(raw) && raw & F::SPECIAL == 0)?;
    let other = if kind == FolioKind::Anon { FolioKind::File } else { FolioKind::Anon };
    single::<F, M>(machine, raw, other).map(|_| other)
}

/// A batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    /// Entries, at least 1.
    pub len: usize,
    /// The first leaf; of a contiguous block with what its entries gathered.
    pub first: u64,
    /// The bits of all entries, each brought to the frame of the first.
    pub or: u64,
    /// The bits that all entries have.
    pub and: u64,
}

impl Run {
    /// Makes the next entry one of the batch, if it differs from what would be equal in bits that may.
    #[inline(always)]
    fn admit(&mut self, differ: u64, ignore: u64) -> bool {
        if differ & !ignore != 0 {
            return false;
        }
        self.or |= self.first ^ differ;
        self.and &= self.first ^ differ;
        self.len += 1;
        true
    }

    /// All entries are equal but for the frame.
    pub fn exact(&self) -> bool {
        self.or == self.and
    }
}

/// The batch at `index`, whose entry was read as `first`, of at most `limit` entries.
///
/// `step` is what the address in an entry grows by from one to the next; `ignore` are the bits that may differ.
#[inline(always)]
pub(crate) fn detect<F: Format>(
    table: &[Entry],
    index: usize,
    first: u64,
    limit: usize,
    step: u64,
    ignore: u64,
) -> Run {
    if F::CONTIGUOUS > 1 && first & F::CONT != 0 {
        return detect_blocks::<F>(table, index, first, limit, step, ignore);
    }
    if limit <= 1 {
        return Run { len: 1, first, or: first, and: first };
    }
    // With the step known to the compiler the comparison needs no register for the progression.
    if step == F::STEP {
        extend::<F>(table, index, first, limit, F::STEP, ignore)
    } else {
        extend_huge::<F>(table, index, first, limit, step, ignore)
    }
}

/// [`detect`] in a locked table, which need not be read if its entries are known to be a progression.
#[inline(always)]
pub(crate) fn detect_in<F: Format, M: Machine>(
    table: &Locked<'_, F, M>,
    index: usize,
    first: u64,
    limit: usize,
    ignore: u64,
) -> Run {
    let progression = table.progression();
    if progression != 0 && limit > 1 {
        let first = progression.wrapping_add(F::STEP * index as u64);
        return Run { len: limit.min((1 << F::TABLE_BITS) - index), first, or: first, and: first };
    }
    detect::<F>(table.table(), index, first, limit, F::step(first, table.level), ignore)
}

const CHUNK: usize = 8;

#[inline(never)]
fn extend_huge<F: Format>(
    table: &[Entry],
    index: usize,
    first: u64,
    limit: usize,
    step: u64,
    ignore: u64,
) -> Run {
    extend::<F>(table, index, first, limit, step, ignore)
}

#[inline(always)]
fn extend<F: Format>(table: &[Entry], index: usize, first: u64, limit: usize, step: u64, ignore: u64) -> Run {
    let end = (index + limit).min(1 << F::TABLE_BITS);
    let rest = table.get(index + 1..end).unwrap_or_default();
    let mut run = Run { len: 1, first, or: first, and: first };
    let mut expected = first.wrapping_add(step);
    let (chunks, tail) = rest.as_chunks::<CHUNK>();
    for chunk in chunks {
        let differ: [u64; CHUNK] =
            core::array::from_fn(|n| F::load(&chunk[n]) ^ expected.wrapping_add(step.wrapping_mul(n as u64)));
        if differ.iter().fold(0, |all, one| all | one) != 0 {
            // The batch ends here, or young and dirty differ.
            if differ.iter().all(|&differ| run.admit(differ, ignore)) {
                let expected = first.wrapping_add(step.wrapping_mul(run.len as u64));
                singly::<F>(&rest[run.len - 1..], expected, step, ignore, &mut run);
            }
            return run;
        }
        run.len += CHUNK;
        expected = expected.wrapping_add(step.wrapping_mul(CHUNK as u64));
    }
    if !tail.is_empty() {
        singly::<F>(tail, expected, step, ignore, &mut run);
    }
    run
}

#[inline(never)]
fn singly<F: Format>(rest: &[Entry], mut expected: u64, step: u64, ignore: u64, run: &mut Run) {
    for entry in rest {
        if !run.admit(F::load(entry) ^ expected, ignore) {
            return;
        }
        expected = expected.wrapping_add(step);
    }
}

/// Entries of a block where the step is this: only the lowest tables and those above them have blocks.
#[inline(always)]
fn block<F: Format>(step: u64) -> usize {
    if step == F::STEP { F::CONTIGUOUS } else { F::CONTIGUOUS_PMD }
}

/// The OR and the AND of the block of the entry at `index`, its entries brought to the frame of that one, which was
/// read before as `known`.
#[inline]
pub(crate) fn read_block<F: Format>(table: &[Entry], index: usize, known: u64, step: u64) -> (u64, u64) {
    let block = block::<F>(step);
    let within = index % block;
    let (mut or, mut and) = (known, known);
    for (n, entry) in table[index - within..][..block].iter().enumerate() {
        if n != within {
            let raw = F::load(entry).wrapping_add(step.wrapping_mul((within as u64).wrapping_sub(n as u64)));
            or |= raw;
            and &= raw;
        }
    }
    (or, and)
}

/// `raw` with the young and dirty state that several entries had together.
#[inline]
pub(crate) fn with_state<F: Format>(raw: u64, or: u64, and: u64) -> u64 {
    let mut raw = F::make_clean(raw) & !F::YOUNG;
    if F::is_young(or) {
        raw |= F::YOUNG;
    }
    if F::any_dirty(or, and) { F::make_dirty(raw) } else { raw }
}

fn detect_blocks<F: Format>(
    table: &[Entry],
    index: usize,
    first: u64,
    limit: usize,
    step: u64,
    ignore: u64,
) -> Run {
    let size = block::<F>(step);
    let (or, and) = read_block::<F>(table, index, first, step);
    let first = with_state::<F>(first, or, and);
    let mut run = Run { len: F::batch_remaining(first, index, size).min(limit), first, or, and };
    while run.len < limit {
        let block = index + run.len;
        // Whether the block is folded and goes on where the last ended is seen in its first entry.
        let shift = step.wrapping_mul(run.len as u64);
        let raw = F::load(&table[block]);
        if (raw.wrapping_sub(shift) ^ first) & !F::STATE != 0 {
            break;
        }
        let (or, and) = read_block::<F>(table, block, raw, step);
        let (or, and) = (or.wrapping_sub(shift), and.wrapping_sub(shift));
        let state = with_state::<F>(first, or, and);
        if (or ^ and) & !F::STATE != 0 || (state ^ first) & !ignore != 0 {
            break;
        }
        run.or |= or;
        run.and &= and;
        run.len += size.min(limit - run.len);
    }
    run
}

/// What a leaf says, of a contiguous block with what its entries gathered: arm64's `ptep_get`.
#[inline]
pub(crate) fn get<F: Format>(table: &[Entry], index: usize, level: Level) -> u64 {
    let raw = F::load(&table[index]);
    if F::CONTIGUOUS > 1 && F::is_present(raw) && raw & F::CONT != 0 {
        let (or, and) = read_block::<F>(table, index, raw, F::step(raw, level));
        return with_state::<F>(raw, or, and);
    }
    raw
}

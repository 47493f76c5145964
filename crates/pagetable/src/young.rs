//! Young: test and clear over a range, with the answer as a bitmap (what DAMON's access check needs).
//!
//! An entry is read once, with a plain load. What is young is collected sixty-four at a time; if all those entries are
//! young, and no hardware update can change them, as in memory that is in use, their bits are cleared by plain stores, else one by one with a
//! compare-exchange where hardware could set another bit meanwhile. The TLB is not flushed: as in Linux' DAMON, an access
//! through a translation that is still cached is not seen, which matters little and costs nothing.

use crate::address::{Frame, Level, PageRange, TABLE_BITS, VirtAddr};
use crate::error::{Error, Stopped};
use crate::fold::unfold_ends;
use crate::format::Format;
use crate::machine::{Machine, SpaceId};
use crate::space::AddressSpace;
use crate::table::{Entry, Locked};
use crate::walk::{Done, Window};

/// Bits of a word of the bitmap.
const WORD: usize = u64::BITS as usize;

/// A bitmap of the pages of a range: bit `i % 64` of word `i / 64` is page `i` of the range.
pub(crate) struct Bitmap<'a>(pub Option<&'a mut [u64]>);

impl Bitmap<'_> {
    /// Sets bits from `at` on as `bits`, lowest first. Those past the end of the bitmap are dropped.
    #[inline]
    fn set(&mut self, at: u64, bits: u64) {
        let Some(words) = &mut self.0 else { return };
        let (word, shift) = ((at / WORD as u64) as usize, at % WORD as u64);
        if let Some(low) = words.get_mut(word) {
            *low |= bits << shift;
        }
        if shift != 0
            && let Some(high) = words.get_mut(word + 1)
        {
            *high |= bits >> (WORD as u64 - shift);
        }
    }

    pub fn set_all(&mut self, mut at: u64, end: u64) {
        if at.is_multiple_of(WORD as u64) && end > at {
            let Some(words) = &mut self.0 else { return };
            let whole = (end - at) / WORD as u64;
            let first = (at / WORD as u64) as usize;
            if let Some(words) = words.get_mut(first..(first + whole as usize).min(words.len())) {
                words.fill(u64::MAX);
            }
            at += whole * WORD as u64;
        }
        while at < end {
            let n = (end - at).min(WORD as u64);
            self.set(at, u64::MAX >> (WORD as u64 - n));
            at += n;
        }
    }
}

impl<F: Format, M: Machine> AddressSpace<'_, F, M> {
    /// Clears the young bits of the range and returns how many of its pages were young. Bit `i % 64` of
    /// `bitmap[i / 64]` is set if page `i` was; bits that are set already stay, pages beyond the bitmap are harvested
    /// all the same. All pages of a huge leaf or of a folded block are young together, also if the range covers only
    /// some.
    ///
    /// # Errors
    /// [`Stopped`] with [`Error::NotCanonical`](crate::Error::NotCanonical).
    pub fn harvest_young(&self, range: PageRange, bitmap: &mut [u64]) -> Result<u64, Stopped> {
        self.young(range, true, Bitmap(Some(bitmap)))
    }

    /// Clears the young bits of the range, for the check to come (DAMON's `mkold`).
    ///
    /// # Errors
    /// As [`harvest_young`](Self::harvest_young).
    pub fn clear_young(&self, range: PageRange) -> Result<u64, Stopped> {
        self.young(range, true, Bitmap(None))
    }

    /// Like [`harvest_young`](Self::harvest_young), but clears nothing.
    ///
    /// # Errors
    /// As [`harvest_young`](Self::harvest_young).
    pub fn test_young(&self, range: PageRange, bitmap: &mut [u64]) -> Result<u64, Stopped> {
        self.young(range, false, Bitmap(Some(bitmap)))
    }

    /// The same, and calls `each` for each leaf that was young, with the first page of it that is in the range, its frame, and
    /// how many pages follow: what an aging of all memory wants to know. It is called under a table's lock: it must not call
    /// operations of this space.
    ///
    /// # Errors
    /// As [`harvest_young`](Self::harvest_young), and [`Error::Misaligned`](crate::Error::Misaligned) if the smallest leaf is not
    /// of 4 KiB.
    pub fn harvest_frames(
        &self,
        range: PageRange,
        mut each: impl FnMut(VirtAddr, Frame, u64),
    ) -> Result<u64, Stopped> {
        if F::GRANULE != 0 {
            return Err(Stopped::at_page(range.first, Error::Misaligned));
        }
        let mut young = 0;
        self.for_windows(range, &mut 0, |window, _| {
            let level = window.table.level;
            let first = window.page_of(window.index).max(range.first);
            let here = PageRange { first, end: window.page_of(window.end).min(range.end) };
            let mut bits = [0; (1 << TABLE_BITS) / WORD + 1];
            if level == Level::Pte {
                let found = harvest_ptes::<F, M>(&window, here, true, &mut Bitmap(Some(&mut bits)));
                young += found;
                let words = bits.iter().enumerate().filter(|(_, word)| found > 0 && **word != 0);
                for (n, word) in words {
                    for bit in (0..WORD).filter(|bit| word >> bit & 1 != 0) {
                        let index = window.index + n * WORD + bit;
                        let frame = F::frame(F::load(window.table.entry(index)));
                        each(VirtAddr::of_page(window.page_of(index)), frame, 1);
                    }
                }
                return Done::Until(window.page_of(window.end));
            }
            harvest_huge::<F, M>(&window, self.id, range, true, |page, raw, first, end| {
                young += end - first;
                each(VirtAddr::of_page(first), F::frame(raw).add(first - page), end - first);
            })
        })?;
        Ok(young)
    }

    fn young(&self, range: PageRange, clear: bool, mut bitmap: Bitmap<'_>) -> Result<u64, Stopped> {
        let mut young = 0;
        self.for_windows(range, &mut 0, |window, _| {
            let (found, done) = self.young_window(&window, range, clear, &mut bitmap);
            young += found;
            done
        })?;
        Ok(young)
    }

    /// How many of the window's pages are young that are in the range.
    #[inline]
    pub(crate) fn young_window(
        &self,
        window: &Window<'_, F, M>,
        range: PageRange,
        clear: bool,
        bitmap: &mut Bitmap<'_>,
    ) -> (u64, Done) {
        if window.table.level != Level::Pte {
            let mut young = 0;
            let done = harvest_huge::<F, M>(window, self.id, range, clear, |_, _, first, end| {
                young += end - first;
                bitmap.set_all(first - range.first, end - range.first);
            });
            return (young, done);
        }
        let young = if F::GRANULE == 0 {
            harvest_ptes::<F, M>(window, range, clear, bitmap)
        } else {
            harvest_large_ptes::<F, M>(window, range, clear, bitmap)
        };
        (young, Done::Until(window.page_of(window.end)))
    }
}

/// Calls `each` for each leaf that is young: its first page, the leaf, and which of its pages are in the range.
fn harvest_huge<F: Format, M: Machine>(
    window: &Window<'_, F, M>,
    space: SpaceId<M::Context>,
    range: PageRange,
    clear: bool,
    mut each: impl FnMut(u64, u64, u64, u64),
) -> Done {
    let level = window.table.level;
    for index in window.index..window.end {
        let page = window.page_of(index);
        let raw = F::load(window.table.entry(index));
        if F::is_valid(raw) && F::is_table(level, raw) {
            return Done::Until(page);
        }
        if !F::is_present(raw) || !F::is_young(raw) {
            continue;
        }
        if clear {
            if raw & F::CONT != 0 && raw & F::SPECIAL == 0 {
                // The block's other leaves are folios of their own.
                unfold_ends::<F, M>(&window.table, space, page & !(F::pages(level) - 1), 1);
            }
            let entry = window.table.change_at(index);
            entry.update::<F>(entry.relaxed(), |raw| raw & !F::YOUNG);
        }
        let (first, end) = (page.max(range.first), (page + F::pages(level)).min(range.end));
        each(page, raw, first, end);
    }
    Done::Until(window.page_of(window.end))
}

/// [`harvest_ptes`] where an entry stands for several pages of 4 KiB, and a block for more than a word of the bitmap.
fn harvest_large_ptes<F: Format, M: Machine>(
    window: &Window<'_, F, M>,
    range: PageRange,
    clear: bool,
    bitmap: &mut Bitmap<'_>,
) -> u64 {
    let (table, mut index, mut young) = (&window.table, window.index, 0);
    while index < window.end {
        let raw = F::load(table.entry(index));
        let present = F::is_present(raw);
        let folded = present && raw & F::CONT != 0;
        let len = if folded { F::CONTIGUOUS - index % F::CONTIGUOUS } else { 1 }.min(window.end - index);
        let is_young = if folded {
            harvest_block::<F, M, MOST>(table, index - index % F::CONTIGUOUS, index, raw, clear)
        } else {
            if present && F::is_young(raw) && clear {
                table.change_at(index).update::<F>(raw, |raw| raw & !F::YOUNG);
            }
            present && F::is_young(raw)
        };
        if is_young {
            let (first, pages) = (window.page_of(index) - range.first, (len as u64) << F::GRANULE);
            bitmap.set_all(first, first + pages);
            young += pages;
        }
        index += len;
    }
    young
}

fn harvest_ptes<F: Format, M: Machine>(
    window: &Window<'_, F, M>,
    range: PageRange,
    clear: bool,
    bitmap: &mut Bitmap<'_>,
) -> u64 {
    let table = &window.table;
    let (mut index, mut young) = (window.index, 0);
    // Blocks that the window covers only in part are looked at as a whole.
    let base = index as u64;
    let offset = |index: usize| window.page - range.first + index as u64 - base;
    while index < window.end {
        let entries = table.table();
        if F::CONTIGUOUS > 1 {
            let within = index % F::CONTIGUOUS;
            let raw = F::load(&entries[index]);
            if F::is_present(raw) && raw & F::CONT != 0 {
                let len = (F::CONTIGUOUS - within).min(window.end - index);
                if harvest_block::<F, M, BLOCK>(table, index - within, index, raw, clear) {
                    bitmap.set(offset(index), u64::MAX >> (WORD - len));
                    young += len as u64;
                }
                index += len;
                continue;
            }
        }
        let len = if F::CONTIGUOUS > 1 {
            (F::CONTIGUOUS - index % F::CONTIGUOUS).min(window.end - index)
        } else {
            WORD.min(window.end - index)
        };
        let bits = harvest_some::<F, M>(table, index, len, clear);
        if bits != 0 {
            bitmap.set(offset(index), bits);
            young += u64::from(bits.count_ones());
        }
        index += len;
    }
    young
}

/// Tests and clears up to 64 entries; which were young.
#[inline]
fn harvest_some<F: Format, M: Machine>(
    table: &Locked<'_, F, M>,
    index: usize,
    len: usize,
    clear: bool,
) -> u64 {
    let entries = &table.table()[index..(index + len).min(1 << F::TABLE_BITS)];
    let mut bits = 0;
    let (chunks, rest) = entries.as_chunks::<CHUNK>();
    for (n, chunk) in chunks.iter().enumerate() {
        bits |= harvest_chunk::<F, M>(table, index + n * CHUNK, chunk, clear) << (n * CHUNK);
    }
    for n in chunks.len() * CHUNK..chunks.len() * CHUNK + rest.len() {
        bits |= harvest_entry::<F, M>(table, index + n, clear) << n;
    }
    bits
}

const CHUNK: usize = 8;
/// Entries of a contiguous block, where there are any, of tables of 4 KiB.
const BLOCK: usize = 16;
/// The most that a contiguous block of any format has.
const MOST: usize = 128;

/// Eight entries, kept in registers from the load to the store.
#[inline(always)]
fn harvest_chunk<F: Format, M: Machine>(
    table: &Locked<'_, F, M>,
    index: usize,
    chunk: &[Entry; CHUNK],
    clear: bool,
) -> u64 {
    let raw = core::array::from_fn::<u64, CHUNK, _>(|n| F::load(&chunk[n]));
    let or = raw.iter().fold(0, |or, raw| or | raw);
    if or & F::YOUNG == 0 {
        return 0;
    }
    let and = raw.iter().fold(u64::MAX, |and, raw| and & raw);
    let wanted = F::VALID | F::YOUNG;
    if and & wanted == wanted && F::no_hw_update_of_any(or, and) {
        if clear {
            let _ = table.change();
            for (entry, raw) in chunk.iter().zip(&raw) {
                entry.store(raw & !F::YOUNG);
            }
        }
        return (1 << CHUNK) - 1;
    }
    (0..CHUNK).fold(0, |bits, n| bits | harvest_entry::<F, M>(table, index + n, clear) << n)
}

/// One entry: 1 if it is young.
#[inline]
fn harvest_entry<F: Format, M: Machine>(table: &Locked<'_, F, M>, index: usize, clear: bool) -> u64 {
    let raw = F::load(table.entry(index));
    let young = F::is_present(raw) && F::is_young(raw);
    if young && clear {
        table.change_at(index).update::<F>(raw, |raw| raw & !F::YOUNG);
    }
    u64::from(young)
}

/// Tests and clears a folded block, of which the entry at `index` was read as `raw` already; whether it was young.
#[inline]
fn harvest_block<F: Format, M: Machine, const N: usize>(
    table: &Locked<'_, F, M>,
    block: usize,
    index: usize,
    raw: u64,
    clear: bool,
) -> bool {
    let mut seen = [0; N];
    let seen = &mut seen[..F::CONTIGUOUS];
    let (mut or, mut and) = (raw, raw);
    // As long as `seen`, which is known when this is compiled.
    let all = block..block + F::CONTIGUOUS;
    for (n, (entry, seen)) in table.table()[all.clone()].iter().zip(seen.iter_mut()).enumerate() {
        *seen = if block + n == index { raw } else { F::load(entry) };
        or |= *seen;
        and &= *seen;
    }
    if !F::is_young(or) || !clear {
        return F::is_young(or);
    }
    let entries = table.change()[all].iter().zip(seen.iter());
    if F::no_hw_update_of_any(or, and) {
        entries.for_each(|(entry, raw)| entry.store(raw & !F::YOUNG));
    } else {
        entries.filter(|(_, raw)| F::is_young(**raw)).for_each(|(entry, &raw)| {
            entry.update::<F>(raw, |raw| raw & !F::YOUNG);
        });
    }
    true
}

//! What is mapped where.

use crate::address::{Frame, Level, PageRange, VirtAddr};
use crate::batch::{detect_in, get, read_block, with_state};
use crate::error::{Error, Stopped};
use crate::folio::{Folio, FolioView, Pinned};
use crate::format::{Attributes, Format, SwapEntry};
use crate::machine::Machine;
use crate::reader::Reader;
use crate::space::AddressSpace;
use crate::table::{CHANGING, Entry};
use crate::walk::{Done, Step, Window};

/// What a page is mapped to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mapping {
    /// Nothing.
    None,
    /// A swap entry put there by [`AddressSpace::map_swap_entry`], [`AddressSpace::swap_out`] or [`AddressSpace::replace`].
    SwapEntry(SwapEntry),
    /// A frame.
    Page {
        /// The frame of this very page, also within a huge leaf.
        frame: Frame,
        /// The level of the leaf.
        level: Level,
        /// The leaf is part of a folded contiguous block.
        contiguous: bool,
        /// Young and dirty of a contiguous block or of a huge leaf are those of all its pages together.
        attributes: Attributes,
    },
}

/// A stretch of pages that are mapped alike: to consecutive frames of one folio with equal attributes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MappedRun {
    /// The first page.
    pub at: VirtAddr,
    /// How many pages.
    pub pages: u64,
    /// The mapping of the first page. A run of swap entries is one leaf long.
    pub mapping: Mapping,
}

impl<F: Format, M: Machine> Reader<'_, '_, F, M> {
    /// What the page of an address is mapped to, without any lock. While another thread changes the mapping, the answer
    /// is that of before or after; where it splits a huge leaf, folds or unfolds, it may be [`Mapping::None`] for a
    /// moment.
    ///
    /// The reader protects the tables, not the folio, which may be free when this returns. To reach its memory take a
    /// [`reference`](AddressSpace::reference), or see [`Folio::get`].
    #[must_use]
    pub fn lookup(&self, at: VirtAddr) -> Mapping {
        let page = at.page();
        if !F::translates(page, page + 1) {
            return Mapping::None;
        }
        let (level, index, raw, table) = self.space.walk(page, &self.guard);
        let raw = if level == Level::Pte && F::CONTIGUOUS > 1 && F::is_present(raw) && raw & F::CONT != 0 {
            gather_unlocked::<F>(table.all(), index, raw)
        } else {
            raw
        };
        describe::<F>(level, page, raw)
    }
}

impl<'m, F: Format, M: Machine> AddressSpace<'m, F, M> {
    /// What the page of an address is mapped to, under the table's lock; when it returns that may have changed. In tables that are
    /// others' ([`with_kernel`](Self::with_kernel), [`with_entries`](Self::with_entries)) it is a [`lookup`](Reader::lookup): their
    /// locks are not this space's, and tables that the caller made may have none.
    #[must_use]
    pub fn query(&self, at: VirtAddr) -> Mapping {
        let page = at.page();
        if self.check_page(page).is_err() {
            return self.read().lookup(at);
        }
        match self.step(page, page + 1) {
            Step::Gap(_) => Mapping::None,
            Step::Window(window) => {
                let level = window.table.level;
                let raw = get::<F>(window.table.table(), window.index, level);
                describe::<F>(level, page, raw)
            }
        }
    }

    /// Calls `each` for every run of pages that are mapped alike, in order. It is called under a table's lock: it must
    /// not call operations of this space.
    ///
    /// # Errors
    /// [`Stopped`] with [`Error::NotCanonical`].
    pub fn runs(&self, range: PageRange, mut each: impl FnMut(MappedRun)) -> Result<(), Stopped> {
        self.for_windows(range, &mut 0, |window, _| {
            let (table, level) = (&window.table, window.table.level);
            let mut index = window.index;
            while index < window.end {
                let page = window.page_of(index);
                let raw = F::load(table.entry(index));
                if F::is_valid(raw) && F::is_table(level, raw) {
                    return Done::Until(page);
                }
                if raw == 0 {
                    index += 1;
                    continue;
                }
                if !F::is_present(raw) {
                    let mapping = Mapping::SwapEntry(SwapEntry::decode::<F>(raw));
                    each(MappedRun { at: VirtAddr::of_page(page), pages: F::pages(level), mapping });
                    index += 1;
                    continue;
                }
                let most = window.end - index;
                let limit = match FolioView::of(self.machine, F::frame(raw)) {
                    Ok(folio) if raw & F::SPECIAL == 0 => {
                        (folio.remaining() >> F::shift(level)).clamp(1, most)
                    }
                    _ => most,
                };
                let run = detect_in::<F, M>(table, index, raw, limit, 0);
                // The range may start and end within huge leaves.
                let first = page.max(range.first);
                let end = (page + ((run.len as u64) << F::shift(level))).min(range.end);
                let mapping = describe::<F>(level, first, run.first);
                each(MappedRun { at: VirtAddr::of_page(first), pages: end - first, mapping });
                index += run.len;
            }
            Done::Until(window.page_of(window.end))
        })
    }

    /// Takes a reference of the folio behind a page, under the table's lock: the frame, which is the reference's
    /// [`frame`](FolioView::frame), stays what it is until that is dropped, mapped there or not. Until then a write fault copies the page, unless it is exclusive.
    ///
    /// `expected` is the frame that the caller saw; without one it is whatever is there.
    ///
    /// # Errors
    /// [`Error::NotMapped`] if nothing, a swap entry or a special page is mapped; [`Error::Changed`] if another frame
    /// is than was expected; [`Error::UnknownFrame`] or [`Error::NotAFolio`] if memory corruption left an entry whose frame is in no
    /// folio; [`Error::TooManyReferences`]; [`Error::NotCanonical`].
    pub fn reference(&self, at: VirtAddr, expected: impl Into<Option<Frame>>) -> Result<Folio<'m, M>, Error> {
        let page = at.page();
        self.check_page(page)?;
        let Step::Window(window) = self.step(page, page + 1) else { return Err(Error::NotMapped) };
        let (_, frame) = self.frame_at(&window, page, Expected::new(expected.into()))?;
        Ok(Folio::get(self.machine, frame)?)
    }

    /// Pins the folio behind a page for I/O. An anonymous page must be exclusive, so that fork gives the child a copy
    /// instead of making it shared. Whether it may be written is the caller's to look at, and that a device wrote to it
    /// the caller's to remember. The pin ends when the value is dropped.
    ///
    /// `expected` is as for [`reference`](Self::reference).
    ///
    /// # Errors
    /// [`Error::NotMapped`]; [`Error::Changed`] if another frame is mapped than was expected; [`Error::NotPermitted`] if
    /// nobody may access the page, or if it is anonymous but not
    /// exclusive: resolve a write fault first; [`Error::UnknownFrame`] or [`Error::NotAFolio`] if memory corruption left an entry
    /// whose frame is in no folio; [`Error::TooManyReferences`].
    pub fn pin(&self, at: VirtAddr, expected: impl Into<Option<Frame>>) -> Result<Pinned<'m, M>, Error> {
        let page = at.page();
        self.check_page(page)?;
        let Step::Window(window) = self.step(page, page + 1) else { return Err(Error::NotMapped) };
        let (raw, frame) = self.frame_at(&window, page, Expected::new(expected.into()))?;
        if !F::is_valid(raw) {
            return Err(Error::NotPermitted);
        }
        let folio = Folio::get(self.machine, frame)?;
        if folio.kind() == crate::FolioKind::Anon && raw & F::EXCLUSIVE == 0 {
            return Err(Error::NotPermitted);
        }
        // Under the lock of the table: a fork that comes later sees the pin. A collapse under way gives up, though the
        // pin may be gone before it ends: what the device wrote is not in its copy.
        let pinned = folio.pin();
        window.table.count_change();
        Ok(pinned)
    }

    /// The leaf that maps a page, and the frame of the page.
    fn frame_at(
        &self,
        window: &Window<'_, F, M>,
        page: u64,
        expected: Expected,
    ) -> Result<(u64, Frame), Error> {
        let raw = F::load(window.table.entry(window.index));
        if !F::is_present(raw) || raw & F::SPECIAL != 0 {
            return Err(Error::NotMapped);
        }
        let level = window.table.level;
        expected.check::<F>(level, page, raw)?;
        Ok((raw, frame_of::<F>(level, page, raw)))
    }
}

/// The frame of a page, within a leaf of this level.
#[inline]
fn frame_of<F: Format>(level: Level, page: u64, raw: u64) -> Frame {
    F::frame(raw).add(page & (F::pages(level) - 1))
}

/// The frame that a caller expects, in one word.
#[derive(Clone, Copy)]
pub(crate) struct Expected(Frame);

impl Expected {
    /// No frame has this number.
    const ANY: Frame = Frame(u64::MAX);

    #[inline(always)]
    pub fn new(frame: Option<Frame>) -> Expected {
        Expected(frame.unwrap_or(Expected::ANY))
    }

    /// Refuses a page of another frame.
    #[inline(always)]
    pub fn check<F: Format>(self, level: Level, page: u64, raw: u64) -> Result<(), Error> {
        if self.0 != Expected::ANY && self.0 != frame_of::<F>(level, page, raw) {
            return Err(Error::Changed);
        }
        Ok(())
    }
}

#[inline(always)]
pub(crate) fn describe<F: Format>(level: Level, page: u64, raw: u64) -> Mapping {
    if F::is_present(raw) {
        return Mapping::Page {
            frame: frame_of::<F>(level, page, raw),
            level,
            contiguous: raw & F::CONT != 0,
            attributes: F::attributes(raw),
        };
    }
    if raw == 0 || raw == CHANGING && level != Level::Pte {
        return Mapping::None;
    }
    Mapping::SwapEntry(SwapEntry::decode::<F>(raw))
}

/// The state of a block that may be unfolded, write-protected or replaced meanwhile. Entries that are empty, or of other frames
/// by now, say nothing. Each says by itself whether it is dirty, for where that is kept depends on whether it may be
/// written.
fn gather_unlocked<F: Format>(table: &[Entry], index: usize, mut raw: u64) -> u64 {
    let block = index - index % F::CONTIGUOUS;
    let (or, and) = read_block::<F>(table, index, raw, F::STEP);
    if (or ^ and) & !F::STATE == 0 {
        // They belong together, as nearly always.
        return with_state::<F>(raw, or, and);
    }
    let first = F::frame(raw).0.wrapping_sub(((index - block) as u64) << F::GRANULE);
    for (at, entry) in table[block..block + F::CONTIGUOUS].iter().enumerate() {
        if block + at == index {
            // The walk read it.
            continue;
        }
        let other = F::load(entry);
        if F::is_present(other) && F::frame(other).0 == first.wrapping_add((at as u64) << F::GRANULE) {
            raw |= other & F::YOUNG;
            if F::is_dirty(other) {
                raw = F::make_dirty(raw);
            }
        }
    }
    raw
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::format::{Arm64Hafdbs, Attributes};

    /// A lookup has read one entry; before it reads the others, write faults replace some by copies.
    #[test]
    fn a_page_is_not_dirty_because_another_came_beside_it() {
        type F = Arm64Hafdbs;
        let state = Attributes { young: false, dirty: false, ..Attributes::anonymous() };
        let table: [Entry; 512] = core::array::from_fn(|_| Entry::default());
        for (n, entry) in table[16..32].iter().enumerate() {
            entry.store(F::leaf(Level::Pte, Frame(64 + n as u64), state) | F::CONT);
        }
        let raw = table[20].load();
        // Of the same frames in another order, of a frame that is next to the block's, and of a wholly other one.
        for (n, frame) in [(17, 66), (18, 65), (21, 80), (31, 1000)] {
            table[n].store(F::leaf(Level::Pte, Frame(frame), Attributes::anonymous()));
        }
        let found = F::attributes(gather_unlocked::<F>(&table, 20, raw));
        assert!(!found.young && !found.dirty, "{found:?}");
        table[30].store(F::leaf(Level::Pte, Frame(64 + 14), Attributes::anonymous()));
        let found = F::attributes(gather_unlocked::<F>(&table, 20, raw));
        assert!(found.young && found.dirty, "what is left of the block counts: {found:?}");
    }

    #[test]
    fn a_block_is_as_dirty_while_it_is_write_protected() {
        type F = Arm64Hafdbs;
        let state = Attributes { young: false, dirty: false, ..Attributes::anonymous() };
        let table: [Entry; 512] = core::array::from_fn(|_| Entry::default());
        for (n, entry) in table[..16].iter().enumerate() {
            let dirty = n == 9;
            let raw = F::leaf(Level::Pte, Frame(64 + n as u64), Attributes { dirty, young: dirty, ..state });
            entry.store(raw | F::CONT);
        }
        for done in 0..=16 {
            let raw = table[3].load();
            let found = F::attributes(gather_unlocked::<F>(&table, 3, raw));
            assert!(found.young && found.dirty, "{done} of 16 entries are write-protected: {found:?}");
            if let Some(entry) = table[..16].get(done) {
                entry.store(F::write_protect(entry.load()));
            }
        }
    }
}

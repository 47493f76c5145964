//! What a change leaves to do once the TLB is flushed: folios to give back, tables to retire.

use isotherm_page::Order;

use crate::address::{Frame, Level, PageRange};
use crate::error::Error;
use crate::folio::{Folio, FolioView};
use crate::format::Format;
use crate::machine::{Flush, Machine, SpaceId};
use crate::tree::retire;

/// Room for one run of pages or one table that waits for the flush. The caller supplies them: 512 are 4 KiB.
#[derive(Clone, Copy, Debug, Default)]
#[repr(transparent)]
pub struct Slot(u64);

const COUNT_BITS: u32 = 10;
const COUNT: u64 = (1 << COUNT_BITS) - 1;
const TABLE: u64 = 0;
/// What the entries said of the pages, above the frame, of which no format has so many.
const DIRTY: u64 = 1 << 63;
const YOUNG: u64 = 1 << 62;
/// Others of the folio's pages may still be mapped.
const PARTIAL: u64 = 1 << 61;
const FRAME: u64 = PARTIAL - 1;
/// In the place of the upper two bits, of a table: half its order.
const ORDER: u32 = 62;

impl Slot {
    fn table(frame: Frame, order: Order) -> Slot {
        debug_assert!(matches!(order.get(), 0 | 2 | 4), "the order of a table");
        Slot(frame.0 << COUNT_BITS | TABLE | u64::from(order.get() / 2) << ORDER)
    }

    fn order(self) -> Order {
        Order::new((self.0 >> ORDER) as u8 * 2).unwrap_or(Order::BASE)
    }
}

/// Collects what an operation removes, so that one TLB flush serves the whole batch (Linux' `mmu_gather`): mappings
/// first, then the flush, then the references that might free a folio.
///
/// It flushes by itself when its slots are used up, and when it is dropped. Several operations on one space may share
/// it; until [`flush`](Self::flush) returns, CPUs may still use what was removed or write-protected.
pub struct Gather<'g, M: Machine> {
    machine: &'g M,
    space: Option<SpaceId<M::Context>>,
    slots: &'g mut [Slot],
    /// Serves if the caller supplied none.
    own: [Slot; 1],
    used: usize,
    /// Pages whose translations are to be invalidated.
    range: PageRange,
    /// Of the smallest leaf among them.
    stride: u64,
    /// The levels of the leaves, a bit each.
    levels: u32,
    tables: bool,
    whole: bool,
    /// There may be slots of folios that are now partly mapped.
    partial: bool,
    flushes: u64,
}

const NOTHING: PageRange = PageRange { first: u64::MAX, end: 0 };

impl<'g, M: Machine> Gather<'g, M> {
    /// An empty one. Without slots every batch is flushed by itself.
    pub fn new(machine: &'g M, space: SpaceId<M::Context>, slots: &'g mut [Slot]) -> Gather<'g, M> {
        Self::serving(machine, Some(space), slots)
    }

    /// An empty one for no space yet: it serves whichever it is used with first.
    pub fn of_any(machine: &'g M, slots: &'g mut [Slot]) -> Gather<'g, M> {
        Self::serving(machine, None, slots)
    }

    fn serving(machine: &'g M, space: Option<SpaceId<M::Context>>, slots: &'g mut [Slot]) -> Gather<'g, M> {
        Gather {
            machine,
            space,
            slots,
            own: [Slot(0)],
            used: 0,
            range: NOTHING,
            stride: u64::MAX,
            levels: 0,
            tables: false,
            whole: false,
            partial: false,
            flushes: 0,
        }
    }

    /// How many flushes there were so far.
    #[must_use]
    pub fn flushes(&self) -> u64 {
        self.flushes
    }

    /// From here on for this space of the machine. What is collected is given back to the gather's machine, so it must be
    /// the same one.
    pub(crate) fn serve(&mut self, machine: &M, space: SpaceId<M::Context>) -> Result<(), Error> {
        if !core::ptr::eq(self.machine, machine) {
            return Err(Error::OtherMachine);
        }
        if self.space.is_none_or(|served| served.root != space.root) {
            self.flush();
        }
        // Also if the root is the same: what the caller made the gather with may be wrong, and the space before may have ended,
        // and its root be this one's. What it left here is in no TLB since then.
        self.space = Some(space);
        Ok(())
    }

    /// The whole space ends: one invalidation of all.
    pub(crate) fn whole_space(&mut self) {
        self.whole = true;
    }

    pub(crate) fn is_full(&self) -> bool {
        self.used == self.slots.len().max(1)
    }

    /// The translations of these pages changed, by leaves of this level.
    #[inline]
    pub(crate) fn touch<F: Format>(&mut self, level: Level, page: u64, pages: u64) {
        self.levels |= 1 << level as u32;
        self.widen(page, pages, F::pages(level));
    }

    #[inline]
    fn widen(&mut self, page: u64, pages: u64, stride: u64) {
        self.stride = self.stride.min(stride);
        self.range.first = self.range.first.min(page);
        self.range.end = self.range.end.max(page + pages);
    }

    /// `count` pages of one folio, from `frame` on, are no longer mapped.
    ///
    /// # Safety
    /// So many of the folio's mappings and their references are the gather's from here on: the entries that they stood for are
    /// gone, or their space ends and nobody reads them any more. They were in this gather's space. The TLB was flushed for them since
    /// they went; or [`touch`](Self::touch) is called for their pages before the gather is flushed, which it is when another run is
    /// put into a [full](Self::is_full) one; or the space ends, and [`whole_space`](Self::whole_space) was called since no CPU has it
    /// loaded.
    #[inline]
    pub(crate) unsafe fn unmapped(&mut self, frame: Frame, count: usize) {
        self.push(Slot(frame.0 << COUNT_BITS | count as u64));
    }

    /// As [`unmapped`](Self::unmapped), of some of the pages of a larger folio; `state` as for `unmapped_used`.
    ///
    /// # Safety
    /// As [`unmapped`](Self::unmapped).
    pub(crate) unsafe fn unmapped_part(&mut self, frame: Frame, count: usize, dirty: bool, young: bool) {
        self.unmapped_used_and(frame, count, dirty, young, PARTIAL);
        self.partial = true;
    }

    /// As [`unmapped`](Self::unmapped), for the folio to remember what the entries said. It learns of it after the flush:
    /// as long as a CPU may go on writing through its TLB, nobody must take the folio for clean and write it back too soon
    /// (Linux flushes, or delays the removal of the reverse mapping, for the same reason).
    ///
    /// # Safety
    /// As [`unmapped`](Self::unmapped).
    #[inline]
    pub(crate) unsafe fn unmapped_used(&mut self, frame: Frame, count: usize, dirty: bool, young: bool) {
        self.unmapped_used_and(frame, count, dirty, young, 0);
    }

    #[inline(always)]
    fn unmapped_used_and(&mut self, frame: Frame, count: usize, dirty: bool, young: bool, more: u64) {
        let state = if dirty { DIRTY } else { 0 } | if young { YOUNG } else { 0 };
        self.push(Slot(frame.0 << COUNT_BITS | count as u64 | state | more));
    }

    /// A table that covered `pages` from `page` on was taken out of the tree.
    ///
    /// # Safety
    /// [`Locked::unlink`](crate::table::Locked::unlink) gave the frame, when the parent's entry had been changed, and nobody else gives
    /// it back. It is of this order, and was in the tree of this gather's space.
    pub(crate) unsafe fn unlinked(&mut self, frame: Frame, order: Order, page: u64, pages: u64) {
        self.widen(page, pages, pages);
        self.tables = true;
        self.push(Slot::table(frame, order));
    }

    /// A table of a space that ends as a whole.
    ///
    /// # Safety
    /// This gather's space ends, by the caller, who names each table once and does not walk through it any more.
    /// [`whole_space`](Self::whole_space) was called since no CPU has it loaded, or there is no other table.
    pub(crate) unsafe fn retired(&mut self, frame: Frame, order: Order) {
        self.push(Slot::table(frame, order));
    }

    #[inline]
    fn push(&mut self, slot: Slot) {
        match self.slots.get_mut(self.used) {
            Some(room) => {
                *room = slot;
                self.used += 1;
            }
            None => self.push_to_full(slot),
        }
    }

    #[cold]
    fn push_to_full(&mut self, slot: Slot) {
        if self.is_full() {
            self.flush();
        }
        let slots = if self.slots.is_empty() { &mut self.own[..] } else { &mut *self.slots };
        if let Some(room) = slots.get_mut(self.used) {
            *room = slot;
            self.used += 1;
        }
    }

    /// Flushes the TLB if anything changed, then gives back the folios and tables.
    pub fn flush(&mut self) {
        if self.range.first < self.range.end || self.whole {
            if let Some(space) = self.space {
                if self.whole {
                    self.machine.invalidate_space(space);
                } else {
                    self.machine.invalidate_range(space, self.what());
                }
                self.machine.sync();
            }
            self.flushes += 1;
            self.range = NOTHING;
            (self.stride, self.levels) = (u64::MAX, 0);
            self.tables = false;
            self.whole = false;
        }
        let slots = if self.slots.is_empty() { &self.own[..] } else { &*self.slots };
        for &slot in &slots[..self.used] {
            Self::release(self.machine, slot);
        }
        // Once all are given back: a folio may be in several slots.
        if self.partial {
            for &slot in &slots[..self.used] {
                if slot.0 & PARTIAL != 0 && slot.0 & COUNT != TABLE {
                    note_partial(self.machine, Frame((slot.0 & FRAME) >> COUNT_BITS));
                }
            }
            self.partial = false;
        }
        self.used = 0;
    }

    fn what(&self) -> Flush {
        let level = [Level::Pte, Level::Pmd, Level::Pud, Level::P4d, Level::Pgd]
            .into_iter()
            .find(|&level| self.levels == 1 << level as u32 && !self.tables);
        Flush { range: self.range, stride: self.stride, level, tables: self.tables }
    }

    #[inline]
    fn release(machine: &M, slot: Slot) {
        let frame = Frame((slot.0 & FRAME) >> COUNT_BITS);
        match slot.0 & COUNT {
            // SAFETY: `unlinked` or `retired` was told of it, whose callers answer for that.
            TABLE => unsafe { retire(machine, frame, slot.order()) },
            count => {
                if let Ok(folio) = FolioView::of(machine, frame) {
                    if slot.0 & !FRAME != 0 {
                        // SAFETY: the mappings' references are given back below.
                        unsafe { folio.mark(slot.0 & DIRTY != 0, slot.0 & YOUNG != 0) };
                    }
                    // SAFETY: the mappings are the gather's, by `unmapped`, and the TLB was flushed.
                    unsafe { folio.sub_mapped(machine, count as usize) };
                }
            }
        }
    }
}

/// Reports a folio that is partly mapped to the machine, if it is: it may be gone by now, or be another.
#[cold]
pub(crate) fn note_partial<M: Machine>(machine: &M, frame: Frame) {
    if let Ok(folio) = Folio::get(machine, frame)
        && folio.is_partly_mapped()
    {
        machine.partly_mapped(&folio);
    }
}

impl<M: Machine> Drop for Gather<'_, M> {
    fn drop(&mut self) {
        self.flush();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Frames of all bits that a format's entry can hold, with every count and state, and tables of every order.
    #[test]
    #[cfg_attr(miri, ignore = "safe code, and exhaustive")]
    fn what_waits_for_a_flush_is_read_as_it_was_noted() {
        let frame_of = |slot: Slot| Frame((slot.0 & FRAME) >> COUNT_BITS);
        let bits = (0..40).map(|bit| 1 << bit);
        for frame in bits.chain([0, (1 << 40) - 1]).map(Frame) {
            for order in [0, 2, 4].map(|order| Order::new(order).unwrap()) {
                let slot = Slot::table(frame, order);
                assert_eq!((slot.0 & COUNT, frame_of(slot), slot.order()), (TABLE, frame, order));
            }
            for count in 1..=512 {
                for state in (0..8).map(|bits| bits << 61) {
                    let slot = Slot(frame.0 << COUNT_BITS | count | state);
                    assert_eq!((slot.0 & COUNT, frame_of(slot), slot.0 & !FRAME), (count, frame, state));
                }
            }
        }
    }
}

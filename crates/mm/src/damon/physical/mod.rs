//! DAMON on physical memory: frames, seen through reverse maps (the kernel's `paddr`).
//!
//! An address here is that of a frame. A page was accessed if any entry that maps it says so, in whatever space; so what several
//! programs share counts once. Frames that are free, or page tables, or pages of spaces outside the [`System`], are absent. Of files and
//! shared memory what is mapped is seen, and no `read` or `write`. A page of which a fork, or a move, is under way is not known at
//! that moment ([`Seen::Blind`]).
//!
//! To prepare a page is to clear bits without a flush, as for [spaces](super::Spaces); what the sampler that looks at blocks clears is
//! flushed, once for all that it clears together. That a page was accessed is not lost to reclaim: [`System`] notes it before the bits
//! are gone.

mod act;

use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

use isotherm_damon::{
    AddrRange, BLOCK_PAGES, BLOCK_SIZE, BlockLook, BlockOperations, Check, Cleared, Mapped, Operations,
    Ownership, Pages, RangeClear, Seen, Sweep, TargetId,
};
use isotherm_page::{Folio, FolioView, Frame};
use isotherm_pagetable::{Format, Gather, Machine, Mapping, Slot};

use super::see;
use crate::flags::{PAGE_SHIFT, PAGE_SIZE};
use crate::object::Objects;
use crate::system::{Busy, System};

/// The one target of a monitor of physical memory, and what schemes do to it. `objects` finds what spaces map: the same that these were
/// made with.
pub struct Physical<'m, F: Format, M: Machine, O = ()> {
    id: TargetId,
    system: System<'m, F, M>,
    objects: O,
    ranges: Vec<AddrRange>,
    /// Nanoseconds of a clock that times actions.
    clock: Option<fn() -> u64>,
}

/// What is found at a frame.
struct Look<'m, M: Machine> {
    folio: Folio<'m, M>,
    accessed: bool,
    /// So many bytes have one Accessed bit.
    unit: u64,
}

impl<'m, F: Format, M: Machine, O> Physical<'m, F, M, O> {
    /// All frames that the system knows.
    #[must_use]
    pub fn new(id: TargetId, system: &System<'m, F, M>, objects: O) -> Self {
        let all = AddrRange::new(0, system.inner().records.len() << PAGE_SHIFT);
        Self { id, system: system.clone(), objects, ranges: vec![all], clock: None }
    }

    /// Only these addresses, sorted and apart: those at which there is memory, say.
    #[must_use]
    pub fn with_ranges(self, ranges: Vec<AddrRange>) -> Self {
        Self { ranges, ..self }
    }

    /// Actions take as long as this clock says, in nanoseconds; without they take no time, and quotas of time are not used up.
    #[must_use]
    pub fn with_clock(self, clock: fn() -> u64) -> Self {
        Self { clock: Some(clock), ..self }
    }
}

impl<'m, F: Format + 'm, M: Machine + 'm, O: Objects<'m, F, M>> Physical<'m, F, M, O> {
    fn look_at(&self, frame: Frame) -> Result<Option<Look<'m, M>>, Busy> {
        let (mut accessed, mut unit) = (false, PAGE_SIZE);
        let found = self.system.inner().visit_mappings(&self.objects, frame, |mm, at| {
            let mapping = mm.tables.read().lookup(at);
            if let Mapping::Page { frame: there, .. } = mapping
                && there == frame
            {
                let (seen, bytes) = see::<F>(&mapping);
                (accessed, unit) = (accessed || seen == Seen::Accessed, unit.max(bytes));
            }
        })?;
        Ok(found.map(|folio| Look { folio, accessed, unit }))
    }

    /// A look at the pages of a block; `None` if one of them could not be seen.
    fn look_at_block(&self, addr: u64) -> Option<BlockLook> {
        let mut block = BlockLook { mapped: Mapped::Absent, ..BlockLook::at(addr) };
        for page in 0..BLOCK_PAGES {
            let frame = Frame((addr >> PAGE_SHIFT) + page as u64);
            let Some(look) = self.look_at(frame).ok()? else { continue };
            if look.unit >= BLOCK_SIZE {
                let young = if look.accessed { Pages::ALL } else { Pages::NONE };
                let all = Pages::ALL;
                return Some(BlockLook { mapped: Mapped::Huge, present: all, writable: all, young, ..block });
            }
            block.mapped = Mapped::Table;
            block.present.insert(page);
            // Whoever maps it, it is cleared alone.
            block.writable.insert(page);
            if look.accessed {
                block.young.insert(page);
            }
        }
        Some(block)
    }
}

/// The frame of an address.
fn frame(addr: u64) -> Frame {
    Frame(addr >> PAGE_SHIFT)
}

impl<'m, F: Format + 'm, M: Machine + 'm, O: Objects<'m, F, M>> Operations for Physical<'m, F, M, O> {
    /// What it was made with.
    fn ranges(&mut self, target: TargetId) -> Vec<AddrRange> {
        if target == self.id { self.ranges.clone() } else { Vec::new() }
    }

    /// Memory stays where it is.
    fn take_changed(&mut self) -> Vec<TargetId> {
        Vec::new()
    }

    fn prepare(&mut self, checks: &mut [Check]) {
        let inner = self.system.inner();
        for check in checks {
            check.seen = match inner.take_accessed(&self.objects, frame(check.addr), None) {
                _ if check.target != self.id => Seen::Absent,
                Ok(true) => Seen::Idle,
                Ok(false) => Seen::Absent,
                Err(Busy) => Seen::Blind,
            };
        }
    }

    fn check(&mut self, checks: &mut [Check]) {
        for check in checks {
            let found = if check.target == self.id { self.look_at(frame(check.addr)) } else { Ok(None) };
            (check.seen, check.unit) = match found {
                Ok(Some(look)) if look.accessed => (Seen::Accessed, look.unit),
                Ok(Some(look)) => (Seen::Idle, look.unit),
                Ok(None) => (Seen::Absent, 0),
                Err(Busy) => (Seen::Blind, 0),
            };
        }
    }

    fn is_alive(&mut self, target: TargetId) -> bool {
        target == self.id
    }
}

impl<'m, F: Format + 'm, M: Machine + 'm, O: Objects<'m, F, M>> BlockOperations for Physical<'m, F, M, O> {
    fn survey(&mut self, target: TargetId, blocks: &mut Vec<u64>) -> bool {
        blocks.clear();
        if target != self.id {
            return false;
        }
        let inner = self.system.inner();
        let is_page = |frame: Frame| {
            FolioView::of(inner.machine, frame).is_ok_and(|folio| inner.records.get(folio.head()).is_some())
        };
        for range in &self.ranges {
            let mut at = range.start;
            while at < range.end {
                let block = at & !(BLOCK_SIZE - 1);
                if blocks.last() != Some(&block) && is_page(frame(at)) {
                    blocks.push(block);
                }
                at = if blocks.last() == Some(&block) { block + BLOCK_SIZE } else { at + PAGE_SIZE };
            }
        }
        true
    }

    fn look(&mut self, target: TargetId, blocks: &mut [BlockLook]) -> bool {
        if target != self.id {
            return false;
        }
        for look in blocks {
            *look = self.look_at_block(look.addr).unwrap_or(BlockLook::at(look.addr));
        }
        true
    }

    fn clear(&mut self, target: TargetId, ranges: &mut [RangeClear]) {
        if target != self.id {
            return;
        }
        let inner = self.system.inner();
        let mut slots = [Slot::default(); 1];
        // Of all spaces that are met with. Dropped, it flushes.
        let mut gather = Gather::of_any(inner.machine, &mut slots);
        for clear in ranges {
            let mut at = clear.range.start;
            clear.cleared = Cleared::Done;
            while at < clear.range.end {
                if inner.take_accessed(&self.objects, frame(at), Some(&mut gather)).is_err() {
                    clear.cleared = Cleared::NotDone;
                }
                at += PAGE_SIZE;
            }
        }
    }

    /// Each page's bits can be cleared alone, whoever maps it.
    fn ownership(&mut self, target: TargetId, addrs: &[u64], found: &mut Vec<Ownership>) {
        found.clear();
        found.extend(addrs.iter().map(|&at| match self.look_at(frame(at)) {
            Ok(Some(_)) if target == self.id => Ownership::Exclusive,
            _ => Ownership::Unknown,
        }));
    }

    /// Of all spaces, for all kinds at once.
    fn sweep(&mut self, target: TargetId, kind: Sweep) -> bool {
        if target != self.id || kind != Sweep::All {
            return false;
        }
        let inner = self.system.inner();
        inner.take_young_of_all(inner.now());
        true
    }
}

impl<F: Format, M: Machine, O> fmt::Debug for Physical<'_, F, M, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Physical").field("id", &self.id).field("ranges", &self.ranges).finish_non_exhaustive()
    }
}

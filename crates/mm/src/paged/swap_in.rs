//! Pages that come back from swap.

use alloc::sync::Arc;

use isotherm_page::{Block, Folio, FolioKind, Order, OwnedBlock};
use isotherm_pagetable::{
    Attributes, Error as TableError, Format, Machine, Replacement, Seen, SwapCounts, SwapEntry, VirtAddr,
};

use super::Paged;
use crate::flags::VmFlags;
use crate::swap::{SwapArea, SwapError, SwapPage};
use crate::vma::VmaInfo;

/// A page that was read from swap for a fault, and is to be put in the place of its swap entry. Dropped, it was not needed.
pub(crate) struct Incoming<'m, M: Machine> {
    area: Arc<SwapArea>,
    /// Held, so that the slot is no other page's until this is dropped: an entry that has the swap entry then is of this page.
    swap_entry: u64,
    folio: Folio<'m, M>,
}

impl<M: Machine> Drop for Incoming<'_, M> {
    fn drop(&mut self) {
        self.area.release(self.swap_entry);
    }
}

/// A swap entry that is held.
struct HeldEntry<'a>(&'a SwapArea, u64);

impl Drop for HeldEntry<'_> {
    fn drop(&mut self) {
        self.0.release(self.1);
    }
}

/// Why a page cannot be read from swap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NotRead {
    /// There is no such swap entry any more: look again.
    Changed,
    NoMemory,
    Failed(SwapError),
}

impl<'m, F: Format, M: Machine, O> Paged<'m, F, M, O> {
    /// A page that is nobody's yet.
    pub(super) fn new_anon(&self) -> Result<Folio<'m, M>, TableError> {
        self.new_folio(Order::BASE)
    }

    /// A folio that is nobody's yet.
    pub(super) fn new_folio(&self, order: Order) -> Result<Folio<'m, M>, TableError> {
        let machine = self.mm.tables.machine();
        let frame = machine.alloc_folio(order).ok_or(TableError::NoFolioFrames(order))?;
        // SAFETY: it was just allocated.
        let block = unsafe { OwnedBlock::new(Block::new(frame, order)) };
        // SAFETY: it came from this machine.
        unsafe { Folio::new(machine, block, FolioKind::Anon) }.map_err(|(why, block)| {
            // SAFETY: nothing was made of it.
            unsafe { machine.free(block) };
            TableError::from(why)
        })
    }

    /// Reads the page of a swap entry. Called without locks.
    pub(crate) fn read_swap(&self, swap_entry: SwapEntry) -> Result<Incoming<'m, M>, NotRead> {
        let system = self.system().ok_or(NotRead::Failed(SwapError::Failed))?.inner();
        let area = system.area.as_ref().ok_or(NotRead::Failed(SwapError::Failed))?;
        if !area.try_share(swap_entry.value) {
            return Err(NotRead::Changed);
        }
        let held = HeldEntry(area, swap_entry.value);
        let folio = self.new_anon().map_err(|_| NotRead::NoMemory)?;
        let page = SwapPage { frame: folio.head(), bytes: system.bytes };
        area.read(swap_entry.value, page).map_err(NotRead::Failed)?;
        core::mem::forget(held);
        Ok(Incoming { area: Arc::clone(area), swap_entry: swap_entry.value, folio })
    }

    /// Puts a page in the place of its swap entry, if that is still there.
    pub(super) fn put_incoming(
        &self,
        vma: &VmaInfo,
        at: VirtAddr,
        swap_entry: SwapEntry,
        incoming: &Incoming<'m, M>,
        cpu: usize,
    ) -> Result<(), TableError> {
        let Some(kin) = &self.kin else { return Err(TableError::Changed) };
        let frame = incoming.folio.head();
        kin.come(&self.mm, vma).map_err(|_| TableError::NoTableFrame)?;
        kin.owns(frame, vma, at.0);
        let attributes = Attributes {
            execute: vma.flags.contains(VmFlags::EXEC),
            write: swap_entry.exclusive && vma.flags.contains(VmFlags::WRITE),
            exclusive: swap_entry.exclusive,
            ..Attributes::anonymous()
        };
        let by = Replacement::Page { frame, attributes };
        self.mm.tables.replace(at, Seen::SwapEntry(swap_entry), by, &mut self.mm.tables.gather(&mut []))?;
        self.mm.add(cpu, None, 1);
        self.mm.add_swapped(-1);
        let system = kin.system().inner();
        if !system.refault(false, incoming.area.stamped(incoming.swap_entry)) {
            system.records.touch(frame, system.now().wrapping_sub(1));
        }
        Ok(())
    }

    /// What is read already, if it is for this swap entry.
    pub(super) fn incoming_for<'i>(
        swap_entry: SwapEntry,
        incoming: &'i Option<Incoming<'m, M>>,
    ) -> Option<&'i Incoming<'m, M>> {
        incoming.as_ref().filter(|incoming| incoming.swap_entry == swap_entry.value)
    }
}

//! Folios as the page tables use them: `isotherm_page`'s, allocated from a machine.

use isotherm_page::{Block, Order, OwnedBlock, Pages};
pub use isotherm_page::{Folio, FolioKind, FolioView, Pinned};

use crate::address::{Frame, TABLE_BITS};
use crate::error::Error;
use crate::format::Format;
use crate::machine::Machine;

/// The largest order of a folio: 2 MiB, which a PMD leaf maps where tables are 4 KiB.
pub const MAX_ORDER: Order = match Order::new(TABLE_BITS as u8) {
    Some(order) => order,
    None => Order::BASE,
};
const _: () = assert!(MAX_ORDER.get() as u32 == TABLE_BITS, "a folio fills a table");

/// The order of what the smallest leaf maps.
#[inline]
pub(crate) fn base<F: Format>() -> Order {
    const { assert!(F::GRANULE <= MAX_ORDER.get() as u32, "a folio fills a leaf") };
    Order::new(F::GRANULE as u8).unwrap_or(Order::BASE)
}

/// A folio of the machine's memory with one reference, contents arbitrary.
pub(crate) fn new_folio<M: Machine>(
    machine: &M,
    order: Order,
    kind: FolioKind,
) -> Result<Folio<'_, M>, Error> {
    let head = machine.alloc_folio(order).ok_or(Error::NoFolioFrames(order))?;
    // SAFETY: `Frames` promises that the block is nobody else's, and of this machine.
    let made = unsafe { Folio::new(machine, OwnedBlock::new(Block::new(head, order)), kind) };
    made.map_err(|(why, block)| {
        // SAFETY: as above, and nothing was made of it.
        unsafe { machine.free(block) };
        why.into()
    })
}

/// Whether the aligned contiguous block that starts at `frame` lies within one folio.
pub(crate) fn one_folio<P: Pages>(pages: &P, frame: Frame, count: usize) -> bool {
    FolioView::of(pages, frame).is_ok_and(|folio| folio.remaining() >= count)
}

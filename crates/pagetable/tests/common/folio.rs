//! Folios of frames that a test knows by their numbers.

use isotherm_page::{Block, OwnedBlock};
use isotherm_pagetable::*;

/// Frames of a host's, by number: nobody else has them.
#[cfg(not(loom))]
pub fn take(host: &host::HostMachine, order: u8) -> Option<Frame> {
    let block = host.take(Order::new(order)?)?;
    let frame = block.frame();
    std::mem::forget(block);
    Some(frame)
}

/// A folio of frames that the test has taken.
pub fn prepare<P: Pages>(pages: &P, head: Frame, order: u8, kind: FolioKind) -> Result<Folio<'_, P>, Error> {
    let block = Block::new(head, Order::new(order).expect("an order"));
    // SAFETY: the tests make a folio of each block once at a time.
    unsafe { Folio::new(pages, OwnedBlock::new(block), kind) }.map_err(|(why, block)| {
        let _ = block.into_block();
        why.into()
    })
}

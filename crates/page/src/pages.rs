use crate::{Block, FolioView, Frame, Order, OwnedBlock, PageMeta};

/// Where pages' metadata is found, and where blocks go that nobody refers to any more: what the owned handles carry along, so
/// that they can be given back by being dropped.
///
/// # Safety
/// - [`meta`](Self::meta) returns the same metadata whenever it is asked for the same frame, and different metadata for
///   different frames. A frame for which it says `None` once has none ever. What [`metas`](Self::metas) returns is the same.
/// - Of several values that return the same metadata, each frees to the same allocator: the last handle to go gives the block to
///   the one that it was got by.
/// - Nothing but the handles of this crate, and whoever was given a block by [`free`](Self::free) or has allocated it,
///   changes what the frames of a block are.
/// - [`split`](Self::split) notes what the block is from then on, and nothing else: the memory stays in use, perhaps by processes
///   that write to it. It is not accessed, freed or handed out. Afterwards [`free`](Self::free) takes each piece.
/// - `meta`, `metas` and `split` do not unwind: their callers hold locks, and have changed part of what belongs together.
pub unsafe trait Pages {
    /// The metadata of a frame; `None` if it has none, as a device's memory. Of such memory nothing is known here. Page tables
    /// map it without a count, for anyone who asks, if the machine says that it is a device's, and else not at all.
    fn meta(&self, frame: Frame) -> Option<&PageMeta>;

    /// The metadata of all frames of a block, where they lie in a row: what [`meta`](Self::meta) returns for each. A folio that
    /// is made writes to all of them, and need not ask for each. By default it does.
    fn metas(&self, block: Block) -> Option<&[PageMeta]> {
        let _ = block;
        None
    }

    /// Takes a block back: no reference to it is left.
    ///
    /// # Safety
    /// The block is one of this allocator's, was allocated as a whole or is a piece of one that was [split](Self::split),
    /// and is of no kind any more.
    unsafe fn free(&self, block: OwnedBlock);

    /// An allocated block is now several of `order`, which is smaller: its folio is split, and each piece is
    /// [freed](Self::free) by itself. An allocator that keeps the order of what it has given out notes it here (a zone of
    /// `isotherm-frames`: `zone.split(block, order)`; Linux' `split_page`). A buddy allocator that believes whoever frees has
    /// nothing to do.
    ///
    /// It may be called with locks of page tables held. So it does not sleep, and takes no lock whose holder may wait for a page table:
    /// none under which folios are mapped, zapped or reclaimed. It cannot fail.
    ///
    /// # Safety
    /// The block is one of this allocator's, was allocated as a whole or is a piece of one that was split by this method, and `order`
    /// is smaller. All references to it are the caller's, and nobody can get another until this returns.
    unsafe fn split(&self, block: OwnedBlock, order: Order);

    /// Some pages of a folio were unmapped, and others are still [mapped](FolioView::is_partly_mapped): a candidate to be
    /// split when memory is short (Linux' `deferred_split_folio`). The page tables call it when the TLB is flushed, with no
    /// lock held and a reference to the folio; perhaps several times, and perhaps of one that is about to go. Mappings are counted,
    /// not pages: nothing is said of a folio of which two spaces map half each. A queue that keeps a reference keeps the memory; one
    /// that keeps the frame's number looks whether it is still [partly mapped](FolioView::is_partly_mapped) when its turn comes.
    /// By default nothing happens.
    fn partly_mapped(&self, folio: &FolioView<'_>) {
        let _ = folio;
    }
}

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
    /// The block is one of this allocator's, was allocated as a whole or is a piece that [`split`](Self::split) told of, and
    /// is of no kind any more.
    unsafe fn free(&self, block: OwnedBlock);

    /// An allocated block is now several of `order`, which is smaller: its folio is split, and each piece is
    /// [freed](Self::free) by itself. An allocator that keeps the order of what it has given out notes it here (a zone of
    /// `isotherm-frames`: `zone.split(block, order)`; Linux' `split_page`). One that does not, as a list of single frames or a
    /// buddy allocator that believes whoever frees, has nothing to do.
    ///
    /// It is called with no reference left that anyone could get, perhaps with locks of page tables held: what it locks is
    /// the allocator's own, and page tables are not called from here. It cannot fail.
    ///
    /// # Safety
    /// The block is one of this allocator's, was allocated as a whole or is a piece that this method told of, and only the
    /// caller refers to it.
    unsafe fn split(&self, block: OwnedBlock, order: Order);

    /// Some pages of a folio were unmapped, and others are still [mapped](FolioView::is_partly_mapped): a candidate to be
    /// split when memory is short (Linux' `deferred_split_folio`). The page tables call it when the TLB is flushed, with no
    /// lock held and a reference to the folio; perhaps several times. By default nothing happens.
    fn partly_mapped(&self, folio: &FolioView<'_>) {
        let _ = folio;
    }
}

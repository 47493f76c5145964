//! What can go wrong, and how far an operation on a range came.

use isotherm_page::{Order, PageError};

use crate::address::VirtAddr;
use crate::rss::RssStat;

/// Why an operation did not do what was asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An address or a frame is not aligned as the operation needs.
    #[error("not aligned to the size of the mapping")]
    Misaligned,
    /// The range ends before it begins, or leaves the addresses that the format translates; or the page is not within the bounds given.
    #[error(
        "the range ends before it begins, or is not within the bounds given or the addresses that the page-table format translates"
    )]
    NotCanonical,
    /// [`Pages::meta`](isotherm_page::Pages::meta) knows no metadata of the frame. Map device memory with
    /// [`Attributes::special`](crate::Attributes). Or the frame is beyond [`Format::FRAME_LIMIT`](crate::Format::FRAME_LIMIT).
    #[error("a frame without metadata, which only special mappings may have, or one that no entry can hold")]
    UnknownFrame,
    /// The frame is part of no folio, or is a page table.
    #[error("the frame belongs to no folio: make it part of one before it is mapped")]
    NotAFolio,
    /// A special mapping of memory that has metadata and is not reserved: it could be freed while it is mapped. Or of memory
    /// without metadata that the machine does not take for a [device's](crate::Memory::is_device).
    #[error("special mappings are not counted: only a device's memory, or reserved memory, may be mapped so")]
    NotReserved,
    /// A frame of the allocator's is in use already.
    #[error("the allocator returned a frame that is in use")]
    InUse,
    /// The gather, or the child of a fork, is of another machine.
    #[error("the gather or the child is of another machine than the address space")]
    OtherMachine,
    /// No frame for a page table.
    #[error("no frame for a page table: free memory and repeat from where the operation stopped")]
    NoTableFrame,
    /// No frames for the copy of a folio.
    #[error("no frames for a folio of order {0}: free memory and repeat from where the operation stopped")]
    NoFolioFrames(Order),
    /// Something is mapped there already.
    #[error("something is mapped there already: zap it first")]
    Occupied,
    /// A [global](crate::Attributes::global) leaf in a space that is no kernel's: its translation would outlive the flushes of the
    /// space.
    #[error("only a kernel's half may have global leaves: map without")]
    Global,
    /// The format has no such memory type.
    #[error("the page-table format has no leaves of this memory type")]
    MemoryType,
    /// A range was to be moved to where a part of it is.
    #[error("the pages would be moved to where some of them are: move them out of the way first")]
    Overlapping,
    /// Nothing is mapped there.
    #[error("nothing is mapped there")]
    NotMapped,
    /// The mapping forbids the access.
    #[error("the mapping does not permit the access")]
    NotPermitted,
    /// A folio is referred to so often that one reference more could overflow its count.
    #[error("the folio has too many references to take another")]
    TooManyReferences,
    /// A folio that is to be split is referred to by somebody else than the caller and its mappings.
    #[error("somebody else refers to the folio: try again when they no longer do")]
    Referenced,
    /// More tables than the caller supplied room for.
    #[error("more tables may map the folio than there is room for their locks: supply more")]
    TooManyTables,
    /// The folio is pinned for I/O, so it cannot be replaced by a copy.
    #[error("the folio is pinned for I/O: try again when the pin is gone")]
    Pinned,
    /// The pages of the range do not have what the collapse needs.
    #[error("not collapsible: {0}")]
    NotCollapsible(&'static str),
    /// The mapping is not the one that the caller saw, or changed while pages were copied.
    #[error(
        "the mapping is not what the caller took it for: look at it again; of a folio's split, flush, and look for all its mappings"
    )]
    Changed,
    /// A swap entry of 0, or with more than [`Format::SWAP_ENTRY_BITS`](crate::Format::SWAP_ENTRY_BITS) bits.
    #[error("a swap entry must not be 0, nor larger than the format can hold")]
    BadSwapEntry,
}

/// How far an operation on a range came before it failed: everything before `at` is done, nothing from `at` on is
/// changed, and the tree is consistent. Repeat from `at` once the cause is gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("stopped at {at}: {why}")]
pub struct Stopped {
    /// The first page that is not done.
    pub at: VirtAddr,
    /// The cause.
    #[source]
    pub why: Error,
    /// What was done before.
    pub done: RssStat,
}

impl Stopped {
    pub(crate) fn at_page(page: u64, why: Error) -> Stopped {
        Stopped { at: VirtAddr::of_page(page), why, done: RssStat::default() }
    }

    /// As it comes out of an operation that did this before.
    pub(crate) fn after(self, done: RssStat) -> Stopped {
        Stopped { done, ..self }
    }
}

impl From<PageError> for Error {
    fn from(why: PageError) -> Error {
        match why {
            PageError::Misaligned(_) => Error::Misaligned,
            PageError::Unknown => Error::UnknownFrame,
            PageError::InUse(_) => Error::InUse,
            PageError::TooManyReferences => Error::TooManyReferences,
            PageError::Referenced => Error::Referenced,
            _ => Error::NotAFolio,
        }
    }
}

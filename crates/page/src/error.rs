//! What can go wrong, and what to do about it.

use crate::{Block, FrameRange};

/// Why frames cannot be numbered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RangeError {
    /// No range has a frame in it.
    #[error("no frames: every range is empty")]
    Empty,
    /// Two ranges have frames in common.
    #[error("{0} and {1} overlap: give every frame once")]
    Overlap(FrameRange, FrameRange),
    /// More frames than can be numbered, or frame numbers beyond 64-bit addresses.
    #[error("the ranges are too large: at most 2^32 frames (16 TiB), numbered below 2^52")]
    TooLarge,
    /// The memory given does not suffice.
    #[error("the array of pages needs {needed} bytes but was given {given}: size it by page_array_size()")]
    TooLittleMemory {
        /// Bytes that suffice.
        needed: usize,
        /// Bytes that were given.
        given: usize,
    },
}

/// Why a page is not what it should be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PageError {
    /// The block does not begin where one of its order may, or is larger than a folio may be.
    #[error("{0} is not aligned to its size, or larger than a folio may be (order 9)")]
    Misaligned(Block),
    /// A frame has no metadata.
    #[error("a frame without metadata: it is in no range that the array of pages was made with")]
    Unknown,
    /// A page of the block has a kind already: it is a table, part of a folio, a slab or reserved.
    #[error("{0} has a page that is in use")]
    InUse(Block),
    /// The frame is part of no folio.
    #[error("the frame is part of no folio: it is free, a page table, a slab or reserved")]
    NotAFolio,
    /// A folio that is to be split has other mappings or references than the caller accounts for.
    #[error(
        "the folio has other mappings or references than those accounted for: pins, or page tables, which split it by split_folio()"
    )]
    Referenced,
    /// A folio is referred to so often that one reference more could overflow its count.
    #[error("the folio has too many references to take another")]
    TooManyReferences,
}

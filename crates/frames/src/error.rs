//! What can go wrong, and what to do about it.

use crate::{Block, FrameRange, Order};

/// Why a zone could not be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ZoneError {
    /// No range has a frame in it.
    #[error("no frames: every range given for the zone is empty")]
    NoFrames,
    /// Two ranges have frames in common, which would be handed out twice.
    #[error("{0} and {1} overlap: give every frame to a zone once")]
    Overlap(FrameRange, FrameRange),
    /// More frames than a zone can number, or frame numbers beyond 64-bit addresses.
    #[error("the ranges are too large: a zone holds at most 2^32 frames (16 TiB), numbered below 2^52")]
    TooLarge,
    /// The memory given for metadata does not suffice.
    #[error(
        "the zone needs {needed} bytes for its metadata but was given {given}: size it by metadata_size(), or with an array of pages by zone_size()"
    )]
    MetadataTooSmall {
        /// What [`metadata_size`](crate::metadata_size), or [`zone_size`](crate::zone_size), says.
        needed: usize,
        /// What was given.
        given: usize,
    },
    /// The array of pages is another zone's.
    #[error("the array of pages keeps another zone's state already: make an array for each zone")]
    ArrayTaken,
    /// The zone was not made to report blocks of this order, or any.
    #[error("the zone reports {}, not {}: say so when it is made", Reported(*.made), Reported(*.given))]
    ReportingOrder {
        /// What it was made for.
        made: Option<Order>,
        /// What was asked for.
        given: Option<Order>,
    },
    /// Watermarks are not in ascending order.
    #[error("watermarks must be min <= low <= high, but are {min}, {low} and {high} frames")]
    Watermarks {
        /// As configured.
        min: u64,
        /// As configured.
        low: u64,
        /// As configured.
        high: u64,
    },
}

/// What a zone reports.
struct Reported(Option<Order>);

impl core::fmt::Display for Reported {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.0 {
            Some(order) => write!(f, "blocks of order {order}"),
            None => f.write_str("nothing"),
        }
    }
}

/// Why nothing was allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GetError {
    /// Nothing of that size is free, not in any CPU's cache either, nor away at the host.
    #[error(
        "out of memory: no block of order {order} is free, and {free} frames are in all: free some, or make do with less"
    )]
    OutOfMemory {
        /// What was asked for.
        order: Order,
        /// Free frames, in blocks that are smaller; those in the caches included, as they were a moment ago.
        free: u64,
    },
    /// It would take the free frames below the watermark `min`, which [`Zone::get_reserve`](crate::Zone::get_reserve)
    /// may.
    #[error("{free} frames are free, of which {min} are kept for allocations that cannot wait: free some")]
    BelowMin {
        /// Free frames, those in the caches included.
        free: u64,
        /// The watermark.
        min: u64,
    },
    /// Too little is free while blocks are being reported to the host, which may suffice when they return.
    #[error("{blocks} blocks are being reported to the host: try again once they are back")]
    Reporting {
        /// How many are away, 1..=16.
        blocks: usize,
    },
}

/// Why a block could not be taken at its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GetAtError {
    /// Some of its frames are not of this zone.
    #[error("{0} is not, or not wholly, of this zone")]
    Foreign(Block),
    /// It does not begin where a block of its order may.
    #[error("{0} is not aligned to its size")]
    Misaligned(Block),
    /// Some of it is allocated, or [isolated](crate::Zone::isolate) or removed, or is being reported to the host: `reporting` says that
    /// the last may be the reason.
    #[error("{block} is not wholly free: some of it is allocated, isolated or removed{}", if *.reporting { ", or at the host just now" } else { "" })]
    InUse {
        /// What was asked for.
        block: Block,
        /// Whether blocks are away at the host, so that another try later may succeed.
        reporting: bool,
    },
}

/// Why a block was not freed. The zone is unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PutError {
    /// Some of its frames are not of this zone.
    #[error("{0} is not, or not wholly, of this zone: free it where it was allocated")]
    Foreign(Block),
    /// It does not begin where a block of its order may, so it was never allocated.
    #[error("{0} is not aligned to its size: it was never allocated")]
    Misaligned(Block),
    /// No allocated block begins there: it was freed before, or is the inside of another block.
    #[error("{0} is not allocated: it was freed twice, or is part of a larger block")]
    NotAllocated(Block),
    /// It was allocated with another order.
    #[error("{block} was allocated with order {allocated}: free it with that order, or split it first")]
    WrongOrder {
        /// As given.
        block: Block,
        /// As allocated.
        allocated: Order,
    },
}

/// Bulk freeing met a frame it could not free. Those before it in the slice are free, those behind it are not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("frame {index} of the slice: {reason}")]
pub struct PutBulkError {
    /// Its place in the slice.
    pub index: usize,
    /// What was wrong with it.
    #[source]
    pub reason: PutError,
}

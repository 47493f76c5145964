//! Blocks by their numbers, and blocks that somebody owns.

use core::fmt;
use core::ops::Deref;

use crate::{Frame, Order};

/// 2^order frames in a row, the first of which is aligned to the block's size.
///
/// Whoever names a block from outside (to free it, to take it at its place) may name one that is not aligned: the zone
/// answers with an error.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Block {
    /// The first frame.
    pub frame: Frame,
    /// The size.
    pub order: Order,
}

impl Block {
    /// The block of `order` that begins at `frame`.
    #[inline]
    #[must_use]
    pub const fn new(frame: Frame, order: Order) -> Self {
        Self { frame, order }
    }

    /// Address of the first byte.
    #[inline]
    #[must_use]
    pub const fn address(self) -> u64 {
        self.frame.address()
    }

    /// Size in bytes.
    #[inline]
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.order.bytes()
    }

    /// Whether the block begins where a block of its size may.
    #[inline]
    #[must_use]
    pub const fn is_aligned(self) -> bool {
        self.frame.is_aligned(self.order)
    }
}

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "block {} of order {}", self.frame, self.order)
    }
}

/// A block that an allocator handed out, and that belongs to whoever holds this value: nobody else uses its frames.
///
/// It cannot be copied, and is given back by being consumed. Dropped, the block stays allocated for good, for only its
/// allocator can free it; [`Unique`](crate::Unique) and [`Folio`](crate::Folio) free what they hold.
///
/// ```compile_fail,E0382
/// # use isotherm_page::OwnedBlock;
/// fn free(_block: OwnedBlock) {}
///
/// fn freed_twice(block: OwnedBlock) {
///     free(block);
///     free(block); // moved already
/// }
/// ```
#[derive(PartialEq, Eq, Debug)]
#[repr(transparent)]
#[must_use = "dropped, the block stays allocated: free it, or keep its number by `into_block`"]
pub struct OwnedBlock(Block);

impl OwnedBlock {
    /// The value for a block that was just allocated, or of which only the number was kept.
    ///
    /// # Safety
    /// The block is allocated, the caller alone owns it, and no other value like this exists of any of its frames. Numbers
    /// name memory: where two allocators hand out the same numbers (two arenas, two models of a machine), their blocks
    /// must not come to the same code.
    #[inline]
    pub const unsafe fn new(block: Block) -> Self {
        Self(block)
    }

    /// The number alone, to be kept where a value cannot be. The block stays allocated.
    #[inline]
    #[must_use = "the number is all that is left of the block"]
    pub const fn into_block(self) -> Block {
        self.0
    }
}

impl Deref for OwnedBlock {
    type Target = Block;

    #[inline]
    fn deref(&self) -> &Block {
        &self.0
    }
}

impl fmt::Display for OwnedBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alignment_is_to_the_blocks_size() {
        assert!(Block::new(Frame(0x400), Order::MAX).is_aligned());
        assert!(!Block::new(Frame(0x200), Order::MAX).is_aligned());
        assert!(Block::new(Frame(0x200), Order::HUGE).is_aligned());
    }
}

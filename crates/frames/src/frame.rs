//! The units memory is counted in: frames, orders, blocks, ranges.

use core::fmt;

/// log2 of a frame's size in bytes: frames are of 4 KiB.
pub const FRAME_SHIFT: u32 = 12;

/// A frame's size in bytes.
pub const FRAME_SIZE: u64 = 1 << FRAME_SHIFT;

/// One more than the highest frame number there can be: 64-bit addresses have 52 bits above a frame's offset.
pub const MAX_FRAME: u64 = 1 << (64 - FRAME_SHIFT);

/// A page frame by its number: its physical address divided by [`FRAME_SIZE`].
///
/// A number, not an address: where an address is meant, [`Frame::address`] says so.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(transparent)]
pub struct Frame(pub u64);

impl Frame {
    /// The frame that holds the byte at `address`.
    #[must_use]
    pub const fn containing(address: u64) -> Self {
        Self(address >> FRAME_SHIFT)
    }

    /// The address of the frame's first byte. A number of [`MAX_FRAME`] or above has none: its upper bits are lost, but
    /// no zone ever hands out such a frame.
    #[must_use]
    pub const fn address(self) -> u64 {
        self.0 << FRAME_SHIFT
    }

    /// Whether a block of `order` may begin here: blocks are aligned to their size.
    #[must_use]
    pub const fn is_aligned(self, order: Order) -> bool {
        self.0 & (order.frames() - 1) == 0
    }
}

impl fmt::Display for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// The size of a block: 2^order frames. 0 ([`Order::BASE`], 4 KiB) to 10 ([`Order::MAX`], 4 MiB), Linux' range on x86-64
/// until 6.4 called `MAX_ORDER` 11, since then 10.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(transparent)]
pub struct Order(u8);

impl Order {
    /// One frame, 4 KiB.
    pub const BASE: Self = Self(0);
    /// 512 frames, 2 MiB: what one entry of a page middle directory maps.
    pub const HUGE: Self = Self(9);
    /// 1024 frames, 4 MiB: the largest block.
    pub const MAX: Self = Self(10);
    /// How many orders there are.
    pub const COUNT: usize = 11;

    /// The order of that number; `None` above 10.
    #[must_use]
    pub const fn new(order: u8) -> Option<Self> {
        if order <= Self::MAX.0 { Some(Self(order)) } else { None }
    }

    /// 0..=10.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }

    /// Frames of a block, 1..=1024.
    #[must_use]
    pub const fn frames(self) -> u64 {
        1 << self.0
    }

    /// Bytes of a block, 4 KiB to 4 MiB.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        FRAME_SIZE << self.0
    }

    /// Every order, the smallest first.
    pub fn all() -> impl DoubleEndedIterator<Item = Self> {
        (0..=Self::MAX.0).map(Self)
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

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
    #[must_use]
    pub const fn new(frame: Frame, order: Order) -> Self {
        Self { frame, order }
    }

    /// Address of the first byte.
    #[must_use]
    pub const fn address(self) -> u64 {
        self.frame.address()
    }

    /// Size in bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.order.bytes()
    }

    /// Whether the block begins where a block of its size may.
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

/// Frames in a row: `start` and up to, without, `end`. Need not be aligned to anything.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FrameRange {
    /// The first frame.
    pub start: Frame,
    /// The frame behind the last.
    pub end: Frame,
}

impl FrameRange {
    /// The frames `start..end`, by number.
    #[must_use]
    pub const fn new(start: u64, end: u64) -> Self {
        Self { start: Frame(start), end: Frame(end) }
    }

    /// The frames that lie wholly in `bytes` bytes of memory from `address` on, as a firmware's memory map gives them;
    /// empty if there is none.
    #[must_use]
    pub const fn of_bytes(address: u64, bytes: u64) -> Self {
        // Rounded up without overflow, and a range that goes to the end of the address space stops there.
        let start = (address >> FRAME_SHIFT) + (address & (FRAME_SIZE - 1) != 0) as u64;
        let end = address.saturating_add(bytes) >> FRAME_SHIFT;
        Self::new(start, if end < start { start } else { end })
    }

    /// How many frames; 0 if `end` is not above `start`.
    #[must_use]
    pub const fn len(self) -> u64 {
        self.end.0.saturating_sub(self.start.0)
    }

    /// Whether there is no frame in it.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.len() == 0
    }
}

impl fmt::Display for FrameRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "frames {}..{}", self.start, self.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_give_only_frames_that_lie_wholly_in_them() {
        assert_eq!(FrameRange::of_bytes(0x1000, 0x3000), FrameRange::new(1, 4));
        assert_eq!(FrameRange::of_bytes(0x1001, 0x2fff), FrameRange::new(2, 4));
        assert_eq!(FrameRange::of_bytes(0, 0x9fc00), FrameRange::new(0, 0x9f));
        assert!(FrameRange::of_bytes(0x1001, 0xffe).is_empty());
        assert_eq!(FrameRange::of_bytes(u64::MAX - 0x1fff, u64::MAX).len(), 1);
    }

    #[test]
    fn orders_end_at_ten() {
        assert_eq!(Order::new(10), Some(Order::MAX));
        assert_eq!(Order::new(11), None);
        assert_eq!(Order::all().count(), Order::COUNT);
        assert_eq!((Order::HUGE.frames(), Order::HUGE.bytes()), (512, 2 << 20));
    }

    #[test]
    fn alignment_is_to_the_blocks_size() {
        assert!(Block::new(Frame(0x400), Order::MAX).is_aligned());
        assert!(!Block::new(Frame(0x200), Order::MAX).is_aligned());
        assert!(Block::new(Frame(0x200), Order::HUGE).is_aligned());
    }
}

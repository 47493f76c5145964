//! Frames and ranges of them: the units that memory is counted in.

use core::fmt;

use crate::Order;

/// log2 of a frame's size in bytes: frames are of 4 KiB.
pub const FRAME_SHIFT: u32 = 12;

/// A frame's size in bytes.
pub const FRAME_SIZE: u64 = 1 << FRAME_SHIFT;

/// One more than the highest frame number there can be: 64-bit addresses have 52 bits above a frame's offset.
pub const MAX_FRAME: u64 = 1 << (64 - FRAME_SHIFT);

/// A page frame by its number: its physical address divided by [`FRAME_SIZE`].
///
/// A number, not an address: where an address is meant, [`Frame::address`] says so.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct Frame(pub u64);

impl Frame {
    /// The frame that holds the byte at `address`.
    #[inline]
    #[must_use]
    pub const fn containing(address: u64) -> Self {
        Self(address >> FRAME_SHIFT)
    }

    /// The address of the frame's first byte. A number of [`MAX_FRAME`] or above has none: its upper bits are lost, but
    /// no zone ever hands out such a frame.
    #[inline]
    #[must_use]
    pub const fn address(self) -> u64 {
        self.0 << FRAME_SHIFT
    }

    /// The frame `frames` after this one, wrapping at 2^64.
    #[inline]
    #[must_use]
    pub const fn add(self, frames: u64) -> Self {
        Self(self.0.wrapping_add(frames))
    }

    /// Whether a block of `order` may begin here: blocks are aligned to their size.
    #[inline]
    #[must_use]
    pub const fn is_aligned(self, order: Order) -> bool {
        self.0 & (order.frames() - 1) == 0
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "frame {:#x}", self.0)
    }
}

impl fmt::Display for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
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
}

//! Orders: sizes of blocks.

use core::fmt;

use crate::FRAME_SIZE;

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
    #[inline]
    #[must_use]
    pub const fn new(order: u8) -> Option<Self> {
        if order <= Self::MAX.0 { Some(Self(order)) } else { None }
    }

    /// The order of that number, which came out of an order.
    #[inline]
    pub(crate) const fn of_bits(order: u8) -> Self {
        Self(order)
    }

    /// 0..=10.
    #[inline]
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }

    /// Frames of a block, 1..=1024.
    #[inline]
    #[must_use]
    pub const fn frames(self) -> u64 {
        1 << self.0
    }

    /// Bytes of a block, 4 KiB to 4 MiB.
    #[inline]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_end_at_ten() {
        assert_eq!(Order::new(10), Some(Order::MAX));
        assert_eq!(Order::new(11), None);
        assert_eq!(Order::all().count(), Order::COUNT);
        assert_eq!((Order::HUGE.frames(), Order::HUGE.bytes()), (512, 2 << 20));
    }
}

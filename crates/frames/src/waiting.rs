//! Which free memory the host does not know to be free: a bit a unit of the reporting order.
//!
//! A unit's bit is set when the last of its frames comes free (the seed's hook after buddy merging) and cleared when it is
//! isolated for a report or when any of its frames is allocated. A unit that is free without the bit has therefore been
//! reported, and nothing else need be kept: blocks may be merged and split above and below as they like, a reported half
//! beside one that waits stays reported, and what is allocated and freed again waits again.
//!
//! Seed 003 clears bits only when they are looked at for a report; clearing them at allocation as well costs a word
//! that the zone's lock has in hand anyway, and makes the count of what waits exact.

use crate::bits::{PAGEBLOCK_ORDER, WORD_ORDER, runs};

/// The zone's reporting bitmap.
pub struct Waiting<'m> {
    bits: &'m mut [u64],
    /// Bits set.
    count: u64,
    /// The reporting order.
    order: u8,
    /// The word of `bits` where the last search ended.
    cursor: usize,
}

impl<'m> Waiting<'m> {
    pub const fn new(bits: &'m mut [u64], order: u8) -> Self {
        Self { bits, count: 0, order, cursor: 0 }
    }

    /// Words of a bitmap for so many pageblocks.
    pub const fn words(pageblocks: usize, order: u8) -> usize {
        let units = match order {
            0..=PAGEBLOCK_ORDER => pageblocks << (PAGEBLOCK_ORDER - order),
            _ => pageblocks.div_ceil(2),
        };
        units.div_ceil(64)
    }

    pub const fn order(&self) -> u8 {
        self.order
    }

    /// How many units wait.
    pub const fn count(&self) -> u64 {
        self.count
    }

    fn set(&mut self, unit: usize) {
        let (word, bit) = (unit / 64, 1 << (unit % 64));
        self.count += u64::from(self.bits[word] & bit == 0);
        self.bits[word] |= bit;
    }

    pub fn clear(&mut self, unit: usize) {
        let (word, bit) = (unit / 64, 1 << (unit % 64));
        self.count -= u64::from(self.bits[word] & bit != 0);
        self.bits[word] &= !bit;
    }

    pub fn mark(&mut self, unit: usize, free: bool) {
        if free {
            self.set(unit);
        } else {
            self.clear(unit);
        }
    }

    /// Bit `word` of a pageblock's bitfield and the words that are full changed. Only for units of order 0 to 8.
    #[inline]
    pub fn word_changed(&mut self, pageblock: usize, word: usize, change: (u64, u64), full: (u64, u64)) {
        let first = pageblock << (PAGEBLOCK_ORDER - self.order);
        let (before, after, scale) = if self.order <= WORD_ORDER {
            let first = first + (word << (WORD_ORDER - self.order));
            (runs(change.0, self.order), runs(change.1, self.order), (first, self.order))
        } else {
            let order = self.order - WORD_ORDER;
            (runs(full.0, order), runs(full.1, order), (first, order))
        };
        let mut changed = before ^ after;
        while changed != 0 {
            let bit = changed.trailing_zeros();
            self.mark(scale.0 + (bit >> scale.1) as usize, after >> bit & 1 == 1);
            changed &= changed - 1;
        }
    }

    /// A pageblock became wholly free, or ceased to be; `pair` says so of it and its buddy. For units of orders 9 and 10.
    #[inline]
    pub fn pageblock_changed(&mut self, pageblock: usize, whole: bool, pair: bool) {
        match self.order.cmp(&PAGEBLOCK_ORDER) {
            core::cmp::Ordering::Less => {}
            core::cmp::Ordering::Equal => self.mark(pageblock, whole),
            core::cmp::Ordering::Greater => self.mark(pageblock / 2, pair),
        }
    }

    /// A unit that waits: the next one, going round, so that every unit gets its turn.
    pub fn next(&mut self) -> Option<usize> {
        if self.count == 0 {
            return None;
        }
        let words = self.bits.len();
        let found = (self.cursor..words).chain(0..self.cursor).find(|&at| self.bits[at] != 0)?;
        self.cursor = found;
        Some(found * 64 + self.bits[found].trailing_zeros() as usize)
    }
}

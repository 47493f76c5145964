//! A CPU's cache: blocks that were freed last, to be handed out next.
//!
//! As Linux' per-CPU pages (pcp): order 0 apart by mobility, and order 9. What is cached is allocated as far as the
//! buddy below knows; it is filled and emptied in batches, so that most allocations and frees touch no memory another
//! CPU writes.

use crate::{Mobility, Order};

/// Frames a cache holds of each mobility at most.
pub const FRAMES: usize = 128;
/// Frames moved between cache and buddy at a time: a word of a bitfield.
pub const BATCH: usize = 64;
/// Blocks of order 9 a cache holds at most.
pub const HUGE: usize = 4;
/// Blocks of order 9 moved at a time.
pub const HUGE_BATCH: usize = 2;

/// Local frame numbers, last in, first out.
pub struct Stack<const N: usize> {
    len: usize,
    items: [u32; N],
}

impl<const N: usize> Stack<N> {
    const fn new() -> Self {
        Self { len: 0, items: [0; N] }
    }

    pub const fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub fn pop(&mut self) -> Option<u32> {
        let last = self.len.checked_sub(1)?;
        let item = *self.items.get(last)?;
        self.len = last;
        Some(item)
    }

    /// Whether there was room.
    #[inline]
    pub fn push(&mut self, item: u32) -> bool {
        let Some(slot) = self.items.get_mut(self.len) else { return false };
        *slot = item;
        self.len += 1;
        true
    }

    /// Takes the `count` that lie longest, or all there are.
    pub fn oldest(&mut self, count: usize) -> impl Iterator<Item = u32> {
        let count = count.min(self.len);
        let mut taken = [0; N];
        taken[..count].copy_from_slice(&self.items[..count]);
        self.items.copy_within(count..self.len, 0);
        self.len -= count;
        taken.into_iter().take(count)
    }
}

pub struct Cache {
    pub frames: [Stack<FRAMES>; Mobility::COUNT],
    pub huge: Stack<HUGE>,
    /// Whether it was used since somebody last asked: a cache that was not is idle, and holds memory back for nobody.
    pub used: bool,
}

impl Cache {
    pub const fn new() -> Self {
        Self { frames: [Stack::new(), Stack::new()], huge: Stack::new(), used: false }
    }

    /// Whether blocks of that order are cached.
    pub const fn holds(order: Order) -> bool {
        matches!(order, Order::BASE | Order::HUGE)
    }

    #[inline]
    pub fn pop(&mut self, order: Order, mobility: Mobility) -> Option<u32> {
        self.used = true;
        if matches!(order, Order::BASE) { self.frames[mobility as usize].pop() } else { self.huge.pop() }
    }

    /// Whether there was room.
    #[inline]
    pub fn push(&mut self, order: Order, mobility: Mobility, item: u32) -> bool {
        self.used = true;
        if matches!(order, Order::BASE) {
            self.frames[mobility as usize].push(item)
        } else {
            self.huge.push(item)
        }
    }

    /// Frames held.
    pub fn len(&self) -> u64 {
        let frames: usize = self.frames.iter().map(Stack::len).sum();
        frames as u64 + self.huge.len() as u64 * Order::HUGE.frames()
    }
}

/// Runs of frames in one word of the bitfields, from frames one at a time: neighbours freed together cost one change.
pub struct Words<I> {
    locals: I,
    next: Option<(u32, u64)>,
}

impl<I: Iterator<Item = u32>> Words<I> {
    pub const fn new(locals: I) -> Self {
        Self { locals, next: None }
    }
}

impl<I: Iterator<Item = u32>> Iterator for Words<I> {
    /// The first local number of the word, a multiple of 64, and the bits of the frames.
    type Item = (u32, u64);

    #[inline]
    fn next(&mut self) -> Option<(u32, u64)> {
        for local in self.locals.by_ref() {
            let (word, bit) = (local / 64 * 64, 1 << (local % 64));
            match &mut self.next {
                Some((at, bits)) if *at == word => *bits |= bit,
                other => {
                    if let Some(done) = other.replace((word, bit)) {
                        return Some(done);
                    }
                }
            }
        }
        self.next.take()
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    #[test]
    fn the_last_in_is_the_first_out_and_the_oldest_leave_when_it_is_full() {
        let mut stack = Stack::<4>::new();
        assert!((1..=4).all(|item| stack.push(item)));
        assert!(!stack.push(5));
        assert_eq!(stack.oldest(3).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!((stack.pop(), stack.pop()), (Some(4), None));
        assert_eq!(stack.oldest(3).count(), 0);
    }

    #[test]
    fn neighbours_in_a_word_are_one_change() {
        let words: Vec<_> = Words::new([63, 1, 64, 65, 200, 2].into_iter()).collect();
        assert_eq!(words, [(0, 1 << 63 | 2), (64, 3), (192, 1 << 8), (0, 4)]);
        assert_eq!(Words::new(std::iter::empty()).next(), None);
    }
}

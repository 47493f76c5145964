//! A CPU's cache: blocks that were freed last, to be handed out next.
//!
//! As Linux' per-CPU pages (pcp), which cache orders 0 to 3 and 9; here every order up to 9, for folios of 16 KiB to 1 MiB are
//! allocated as often (mTHP). Each order and mobility is a stack of its own. What is cached is allocated as far as the buddy below
//! knows; a stack is filled and emptied by half, so that most allocations and frees touch no memory another CPU writes.
//!
//! A whole pageblock goes to the stack of order 9, and comes from there, before the zone is asked: the zone hands out what came back
//! last, which is as often another CPU's. Its tags, of which a pageblock of larger blocks has a cache line for every block or two, would
//! go from CPU to CPU with it.

use crate::bits::{PAGEBLOCK, mask};
use crate::{Mobility, Order};

/// Orders that are cached.
const ORDERS: usize = Order::HUGE.get() as usize + 1;

/// Blocks of each order, and mobility, that a cache has room for: two pageblocks, since half of it is moved at a time, and a whole
/// pageblock costs the zone no more than a word; of order 9, of which one is that much, 128. By `lab frames`: with a quarter of it
/// two CPUs that allocate in bulk wait for each other.
const ROOM: [u16; ORDERS] = [1024, 512, 256, 128, 64, 32, 16, 8, 4, 128];
/// What is held in any zone, however small it is.
const LEAST: [u16; ORDERS] = [128, 32, 16, 8, 4, 2, 2, 2, 2, 4];
/// A stack holds no more than this part of a CPU's share of the zone. (Linux lets the caches of all CPUs hold an eighth of a
/// zone: `MIN_PERCPU_PAGELIST_HIGH_FRACTION`. There are twenty stacks here, of which few are full at a time.)
const SHARE: u64 = 16;

const STACKS: usize = ORDERS * Mobility::COUNT;

/// Where each stack's room begins.
const STARTS: [u16; STACKS + 1] = {
    let mut starts = [0; STACKS + 1];
    let mut stack = 0;
    while stack < STACKS {
        starts[stack + 1] = starts[stack] + ROOM[stack / Mobility::COUNT];
        stack += 1;
    }
    starts
};
/// A pageblock cut into blocks of an order up to 9.
const fn blocks_of_pageblock(order: Order) -> usize {
    PAGEBLOCK as usize >> order.get()
}

/// Numbers that a cache needs room for, in memory of its own: kernels' stacks are too small to build it there. What is more than the
/// stacks need keeps those of two CPUs out of each other's cache lines.
pub const ITEMS: usize = STARTS[STACKS] as usize + 32;

/// How many blocks of each order a stack may hold.
#[derive(Clone, Copy, Debug)]
pub struct Limits([u16; ORDERS]);

impl Limits {
    /// In a zone of so many frames, with so many caches.
    pub fn of(frames: u64, caches: usize) -> Self {
        let share = frames / SHARE / (caches as u64).max(1);
        Self(core::array::from_fn(|order| {
            let share = u16::try_from(share >> order).unwrap_or(u16::MAX);
            share.clamp(LEAST[order], ROOM[order])
        }))
    }
}

/// Blocks of one order and mobility, by their first frames' local numbers; last in, first out.
#[derive(Clone, Copy, Debug)]
struct Stack {
    len: u16,
    start: u16,
    limit: u16,
    /// Blocks that it is filled with next time. A pageblock that many orders are cut from serves one that is asked for now and then;
    /// if each had one of its own at once, few blocks would spoil as many pageblocks. So it begins with one block, and doubles.
    fill: u16,
    /// Whether it was used since somebody last asked: a stack that was not is idle, and holds memory back for nobody.
    used: bool,
}

pub struct Cache<'m> {
    stacks: [Stack; STACKS],
    items: &'m mut [u32],
    /// Frames put in since the cache was made, round and round.
    pushed: u64,
}

#[inline(always)]
const fn stack(order: Order, mobility: Mobility) -> usize {
    order.get() as usize * Mobility::COUNT + mobility as usize
}

impl<'m> Cache<'m> {
    /// An empty one, with room for [`ITEMS`] numbers.
    pub fn new(limits: &Limits, items: &'m mut [u32]) -> Self {
        let stack = |stack: usize| Stack {
            len: 0,
            start: STARTS[stack],
            limit: limits.0[stack / Mobility::COUNT],
            fill: 1,
            used: false,
        };
        Self { stacks: core::array::from_fn(stack), items, pushed: 0 }
    }

    /// Whether blocks of that order are cached.
    #[inline(always)]
    pub const fn holds(order: Order) -> bool {
        order.get() as usize <= Order::HUGE.get() as usize
    }

    /// Blocks moved between a stack and the zone at a time.
    pub fn batch(&self, order: Order, mobility: Mobility) -> usize {
        usize::from(self.stacks[stack(order, mobility)].limit / 2).max(1)
    }

    /// Blocks that an empty stack is filled with, from one on up to [`Self::batch`].
    pub fn fill(&mut self, order: Order, mobility: Mobility) -> usize {
        let batch = self.batch(order, mobility);
        let stack = &mut self.stacks[stack(order, mobility)];
        let fill = usize::from(stack.fill).min(batch);
        stack.fill = stack.fill.saturating_mul(2).min(stack.limit.max(1));
        fill
    }

    #[inline]
    pub fn pop(&mut self, order: Order, mobility: Mobility) -> Option<u32> {
        let stack = self.stacks.get_mut(stack(order, mobility))?;
        let len = stack.len.checked_sub(1)?;
        let item = *self.items.get(usize::from(stack.start + len))?;
        (stack.len, stack.used) = (len, true);
        Some(item)
    }

    /// Whether there was room.
    #[inline]
    pub fn push(&mut self, order: Order, mobility: Mobility, item: u32) -> bool {
        let Some(stack) = self.stacks.get_mut(stack(order, mobility)) else { return false };
        stack.used = true;
        if stack.len >= stack.limit {
            return false;
        }
        let Some(slot) = self.items.get_mut(usize::from(stack.start + stack.len)) else { return false };
        *slot = item;
        stack.len += 1;
        self.pushed = self.pushed.wrapping_add(1 << order.get());
        true
    }

    /// Takes out the `count` that lie longest, or all there are; each is handed to `each`.
    pub fn oldest(&mut self, order: Order, mobility: Mobility, count: usize, each: impl FnOnce(&[u32])) {
        let stack = &mut self.stacks[stack(order, mobility)];
        let items = &mut self.items[usize::from(stack.start)..][..usize::from(stack.len)];
        let count = count.min(items.len());
        each(&items[..count]);
        items.copy_within(count.., 0);
        stack.len -= count as u16;
    }

    /// Whether a stack is filled and emptied by whole pageblocks, and is not that of order 9. In small zones none is.
    fn moves_pageblocks(&self, order: Order, mobility: Mobility) -> bool {
        order < Order::HUGE && self.batch(order, mobility) >= blocks_of_pageblock(order)
    }

    /// Fills an empty stack with the blocks of a pageblock that lies in the stack of order 9, if it has room for them; whether it did.
    pub fn split_pageblock(&mut self, order: Order, mobility: Mobility) -> bool {
        if !self.moves_pageblocks(order, mobility) {
            return false;
        }
        let Some(first) = self.pop(Order::HUGE, mobility) else { return false };
        // The lowest is handed out first.
        (first..first + PAGEBLOCK)
            .step_by(1 << order.get())
            .rev()
            .all(|block| self.push(order, mobility, block))
    }

    /// Moves those blocks of a stack that lie there longest and are all of a pageblock to the stack of order 9, if that has room;
    /// whether there were any. Only those are looked at that lie there longest, or behind the last of the pageblock that these are of.
    pub fn join_pageblock(&mut self, order: Order, mobility: Mobility) -> bool {
        let (count, huge) = (blocks_of_pageblock(order), &self.stacks[stack(Order::HUGE, mobility)]);
        if !self.moves_pageblocks(order, mobility) || huge.len >= huge.limit {
            return false;
        }
        let from = &mut self.stacks[stack(order, mobility)];
        let items = &mut self.items[usize::from(from.start)..][..usize::from(from.len)];
        let same = |items: &[u32]| match items.first() {
            Some(first) => items.iter().take_while(|&block| block / PAGEBLOCK == first / PAGEBLOCK).count(),
            None => 0,
        };
        let run = same(items);
        // No block is there twice, so as many as a pageblock has are all of it.
        let at = if run >= count { 0 } else { run };
        if at > 0 && items.get(at..at + count).is_none_or(|next| same(next) < count) {
            return false;
        }
        let first = items[at] / PAGEBLOCK * PAGEBLOCK;
        items.copy_within(at + count.., at);
        from.len -= count as u16;
        self.push(Order::HUGE, mobility, first)
    }

    /// Whether a stack was used since this was last asked. One that was not is asked for now and then only.
    pub fn was_used(&mut self, order: Order, mobility: Mobility) -> bool {
        let stack = &mut self.stacks[stack(order, mobility)];
        if !stack.used {
            stack.fill = 1;
        }
        core::mem::take(&mut stack.used)
    }

    /// Frames held.
    pub fn len(&self) -> u64 {
        self.stacks.iter().enumerate().map(|(at, stack)| u64::from(stack.len) << (at / Mobility::COUNT)).sum()
    }

    /// Frames put in so far: by how many this grows, the cache has become fuller by at most.
    pub const fn pushed(&self) -> u64 {
        self.pushed
    }

    /// Every order and mobility that is cached.
    pub fn all() -> impl Iterator<Item = (Order, Mobility)> {
        let orders = Order::all().filter(|&order| Self::holds(order));
        orders.flat_map(|order| [(order, Mobility::Movable), (order, Mobility::Unmovable)])
    }
}

/// Runs of frames in one word of the bitfields, from blocks of an order up to 6, one at a time: neighbours freed together cost one
/// change.
pub struct Words<I> {
    locals: I,
    order: u8,
    next: Option<(u32, u64)>,
}

impl<I: Iterator<Item = u32>> Words<I> {
    pub const fn new(locals: I, order: u8) -> Self {
        Self { locals, order, next: None }
    }
}

impl<I: Iterator<Item = u32>> Iterator for Words<I> {
    /// The first local number of the word, a multiple of 64, and the bits of the frames.
    type Item = (u32, u64);

    #[inline]
    fn next(&mut self) -> Option<(u32, u64)> {
        for local in self.locals.by_ref() {
            let (word, run) = (local / 64 * 64, mask(local % 64, self.order));
            match &mut self.next {
                Some((at, bits)) if *at == word => *bits |= run,
                other => {
                    if let Some(done) = other.replace((word, run)) {
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

    const BASE: Order = Order::BASE;
    const MOVABLE: Mobility = Mobility::Movable;

    #[test]
    fn the_last_in_is_the_first_out_and_the_oldest_leave_when_it_is_full() {
        let mut items = [0; ITEMS];
        let mut cache = Cache::new(&Limits([4; ORDERS]), &mut items);
        assert!((1..=4).all(|item| cache.push(BASE, MOVABLE, item)));
        assert!(!cache.push(BASE, MOVABLE, 5));
        cache.oldest(BASE, MOVABLE, 3, |items| assert_eq!(items, [1, 2, 3]));
        assert_eq!((cache.pop(BASE, MOVABLE), cache.pop(BASE, MOVABLE)), (Some(4), None));
        cache.oldest(BASE, MOVABLE, 3, |items| assert!(items.is_empty()));
    }

    /// Blocks of a pageblock, the lowest first.
    fn blocks(pageblock: u32, order: Order) -> impl DoubleEndedIterator<Item = u32> {
        let first = pageblock * PAGEBLOCK;
        (0..blocks_of_pageblock(order) as u32).map(move |n| first + (n << order.get()))
    }

    #[test]
    fn whole_pageblocks_go_to_the_stack_of_order_9_and_come_from_there() {
        let mut items = [0; ITEMS];
        let mut cache = Cache::new(&Limits::of(1 << 30, 2), &mut items);
        for order in Order::all().filter(|&order| order < Order::HUGE) {
            // One of another pageblock lies there longest, and stays.
            let other = 7 * PAGEBLOCK;
            assert!(cache.push(order, MOVABLE, other));
            assert!(!cache.join_pageblock(order, MOVABLE));
            assert!(blocks(3, order).rev().all(|block| cache.push(order, MOVABLE, block)));
            let held = cache.len();
            assert!(cache.join_pageblock(order, MOVABLE) && !cache.join_pageblock(order, MOVABLE));
            assert_eq!(cache.len(), held, "none is lost");
            assert_eq!((cache.pop(order, MOVABLE), cache.pop(order, MOVABLE)), (Some(other), None));
            assert!(!cache.split_pageblock(order, Mobility::Unmovable));
            assert!(cache.split_pageblock(order, MOVABLE) && !cache.split_pageblock(order, MOVABLE));
            assert!(blocks(3, order).all(|block| cache.pop(order, MOVABLE) == Some(block)));
            assert_eq!(cache.len(), 0);
        }
        // Blocks of two are no pageblock, nor all but one of one.
        let order = Order::new(8).unwrap();
        for block in [0, PAGEBLOCK, 2 * PAGEBLOCK, 3 * PAGEBLOCK] {
            assert!(cache.push(order, MOVABLE, block));
        }
        assert!(!cache.join_pageblock(order, MOVABLE));
        // In a small zone stacks hold less than that.
        let mut cache = Cache::new(&Limits::of(1 << 12, 2), &mut items);
        assert!(cache.push(Order::HUGE, MOVABLE, 0) && !cache.split_pageblock(BASE, MOVABLE));
    }

    #[test]
    fn stacks_are_filled_to_their_limits_and_keep_apart() {
        for frames in [0, 1 << 15, 1 << 40] {
            let limits = Limits::of(frames, 2);
            let mut items = [0; ITEMS];
            let mut cache = Cache::new(&limits, &mut items);
            let mut held = 0;
            for (n, (order, mobility)) in Cache::all().enumerate() {
                let limit = limits.0[usize::from(order.get())];
                assert!((0..limit).all(|item| cache.push(
                    order,
                    mobility,
                    n as u32 * 1000 + u32::from(item)
                )));
                assert!(!cache.push(order, mobility, 7));
                held += u64::from(limit) << order.get();
                assert_eq!(cache.len(), held);
            }
            for (n, (order, mobility)) in Cache::all().enumerate() {
                let limit = limits.0[usize::from(order.get())];
                for item in (0..limit).rev() {
                    assert_eq!(cache.pop(order, mobility), Some(n as u32 * 1000 + u32::from(item)));
                }
                assert_eq!(cache.pop(order, mobility), None);
                assert!(cache.was_used(order, mobility) && !cache.was_used(order, mobility));
            }
        }
    }

    #[test]
    fn limits_are_a_share_of_the_zone_between_what_is_always_held_and_what_there_is_room_for() {
        assert_eq!(Limits::of(0, 0).0, LEAST);
        assert_eq!(Limits::of(u64::MAX, 1).0, ROOM);
        // 256 MiB and 2 CPUs: 4 MiB a stack.
        assert_eq!(Limits::of(1 << 16, 2).0, [1024, 512, 256, 128, 64, 32, 16, 8, 4, 4]);
    }

    #[test]
    fn neighbours_in_a_word_are_one_change() {
        let words: Vec<_> = Words::new([63, 1, 64, 65, 200, 2].into_iter(), 0).collect();
        assert_eq!(words, [(0, 1 << 63 | 2), (64, 3), (192, 1 << 8), (0, 4)]);
        assert_eq!(Words::new(std::iter::empty(), 0).next(), None);
        let words: Vec<_> = Words::new([16, 32, 64, 128, 144].into_iter(), 4).collect();
        assert_eq!(words, [(0, 0xffff_ffff_0000), (64, 0xffff), (128, 0xffff_ffff)]);
    }
}

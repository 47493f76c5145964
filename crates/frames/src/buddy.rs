//! What is free in a zone, below the caches: pageblocks of bitfields, in lists by what they can give.
//!
//! Frames are counted here from the zone's first pageblock on, holes left out ([`crate::spans`]); whoever holds the
//! zone's lock has `&mut`, so nothing in this file knows of other CPUs.
//!
//! The bitfields alone say what is free. All else follows from them and is brought up to date by `settle` after every
//! change: the list a pageblock is in (the order of its longest free run), the pairs that make blocks of order 10, and
//! what waits to be reported.

use crate::bits::{self, Bitfield, PAGEBLOCK, PAGEBLOCK_ORDER, WORD_ORDER, WORDS, mask, runs};
use crate::lists::{List, Lists, Pageblock, Place, State};
use crate::waiting::Waiting;
use crate::{Mobility, Order};

pub struct Buddy<'m> {
    fields: &'m mut [Bitfield],
    lists: Lists<'m>,
    waiting: Option<Waiting<'m>>,
    free: u64,
    claimed: u64,
}

/// The block is not what the caller holds it for: part of it is not free when it should be, or free when it should not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mismatch;

impl<'m> Buddy<'m> {
    /// A zone of which nothing is free. Both slices are of one, even, length.
    pub fn new(
        fields: &'m mut [Bitfield],
        blocks: &'m mut [Pageblock],
        waiting: Option<Waiting<'m>>,
    ) -> Self {
        Self { fields, lists: Lists::new(blocks), waiting, free: 0, claimed: 0 }
    }

    /// Free frames.
    pub const fn free(&self) -> u64 {
        self.free
    }

    /// How often a pageblock was taken over from the other mobility.
    pub const fn claimed(&self) -> u64 {
        self.claimed
    }

    /// How many units wait for a report, if there is reporting.
    pub fn waiting(&self) -> u64 {
        self.waiting.as_ref().map_or(0, Waiting::count)
    }

    pub const fn pageblocks(&self) -> usize {
        self.fields.len()
    }

    /// Takes a block, from where it does least harm.
    pub fn take(&mut self, order: Order, mobility: Mobility) -> Option<u32> {
        let at = self.pick(order.get(), mobility)?;
        let within = if order.get() < PAGEBLOCK_ORDER { self.fields[at].find(order.get())? } else { 0 };
        let start = at as u32 * PAGEBLOCK + within;
        self.change(start, order, false, Place::Tail).ok()?;
        Some(start)
    }

    /// Takes up to `want` blocks, of up to a word many at a time, and gives each to `out`, those of a word from the last to the
    /// first. Returns how many. Without `cuts` it may be fewer: whoever asks for a pageblock or more at a time gets what is left of
    /// one, but no part of one that is wholly free, or all would come in two parts from then on.
    pub fn take_blocks(
        &mut self,
        order: Order,
        want: usize,
        mobility: Mobility,
        cuts: bool,
        mut out: impl FnMut(u32),
    ) -> usize {
        let mut missing = want;
        if order.get() > WORD_ORDER {
            while missing > 0
                && let Some(start) = self.take(order, mobility)
            {
                out(start);
                missing -= 1;
            }
            return want - missing;
        }
        let order = order.get();
        while missing > 0 {
            let Some(at) = self.pick(order, mobility) else { break };
            let was_whole = self.lists.blocks[at].is_whole();
            let all = (PAGEBLOCK >> order) as usize;
            if !cuts && was_whole && missing < all && missing < want && all <= want {
                break;
            }
            if was_whole && missing >= all {
                self.change_pageblock(at, false, Place::Tail);
                let first = at as u32 * PAGEBLOCK;
                (first..first + PAGEBLOCK).step_by(1 << order).rev().for_each(&mut out);
                missing -= all;
                continue;
            }
            // Of one that is wholly free a word is as good as another.
            let mut words = if was_whole { 0..WORDS } else { 0..0 };
            while missing > 0
                && let Some(word) =
                    words.next().or_else(|| self.fields[at].find(order).map(|best| best as usize / 64))
            {
                let starts = lowest(runs(self.fields[at].words[word], order), missing);
                // Runs of an order do not overlap.
                let taken = starts.wrapping_mul(mask(0, order));
                self.write(at, word, self.fields[at].words[word] & !taken);
                missing -= starts.count_ones() as usize;
                let first = at as u32 * PAGEBLOCK + word as u32 * 64;
                let mut left = starts;
                while left != 0 {
                    let bit = 63 - left.leading_zeros();
                    out(first + bit);
                    left &= !(1 << bit);
                }
            }
            self.settle(at, was_whole, Place::Tail);
        }
        want - missing
    }

    /// Takes the block at `start`, which is aligned to its order.
    ///
    /// # Errors
    /// Not all of it is free; nothing was taken.
    pub fn take_at(&mut self, start: u32, order: Order) -> Result<(), Mismatch> {
        let first = (start / PAGEBLOCK) as usize;
        let blocks = &self.lists.blocks[first..first + (1 << order.get().saturating_sub(PAGEBLOCK_ORDER))];
        if blocks.iter().any(|block| block.state != State::Normal) {
            return Err(Mismatch);
        }
        self.change(start, order, false, Place::Tail)
    }

    /// Gives the block at `start` back, which is aligned to its order.
    ///
    /// # Errors
    /// Some of it is free already; nothing was changed.
    pub fn put(&mut self, start: u32, order: Order, place: Place) -> Result<(), Mismatch> {
        self.change(start, order, true, place)
    }

    /// Gives frames back, a word of the bitfields at a time: those whose bits are set, of the 64 that the local number (a multiple
    /// of 64) begins. Words of one pageblock in a row cost least. Returns how many were free already.
    pub fn put_words(&mut self, words: impl Iterator<Item = (u32, u64)>) -> u64 {
        let mut rejected = 0;
        let (mut at, mut frames) = (0, [0; WORDS]);
        for (start, bits) in words {
            let next = (start / PAGEBLOCK) as usize;
            if next != at {
                rejected += self.put_pageblock(at, &core::mem::take(&mut frames));
                at = next;
            }
            frames[(start % PAGEBLOCK / 64) as usize] |= bits;
        }
        rejected + self.put_pageblock(at, &frames)
    }

    /// Gives back frames of one pageblock.
    fn put_pageblock(&mut self, at: usize, frames: &[u64; WORDS]) -> u64 {
        if *frames == [0; WORDS] {
            return 0;
        }
        if *frames == [u64::MAX; WORDS] && self.lists.blocks[at].free == 0 {
            self.change_pageblock(at, true, Place::Head);
            return 0;
        }
        let was_whole = self.lists.blocks[at].is_whole();
        let mut rejected = 0;
        for (word, &bits) in frames.iter().enumerate().filter(|(_, bits)| **bits != 0) {
            let before = self.fields[at].words[word];
            rejected += u64::from((before & bits).count_ones());
            self.write(at, word, before | bits);
        }
        self.settle(at, was_whole, Place::Head);
        rejected
    }

    /// Takes a unit that waits for a report; its order is the reporting order.
    pub fn isolate(&mut self) -> Option<u32> {
        loop {
            let (unit, order) = {
                let waiting = self.waiting.as_mut()?;
                (waiting.next()?, Order::new(waiting.order())?)
            };
            let start = (unit as u32) << order.get();
            if self.take_at(start, order).is_ok() {
                return Some(start);
            }
            // A unit that waits is free, so this is never reached; if it were, the mark would be wrong and must go.
            debug_assert!(false, "a unit that is not free waits for a report");
            self.waiting.as_mut()?.clear(unit);
        }
    }

    /// Gives an isolated unit back. One that was reported does not wait again until it has been allocated.
    pub fn give_back(&mut self, start: u32, order: Order, reported: bool) {
        let place = if reported { Place::Tail } else { Place::Head };
        let put = self.put(start, order, place);
        debug_assert!(put.is_ok(), "somebody freed an isolated unit");
        if reported && let Some(waiting) = &mut self.waiting {
            waiting.clear((start >> order.get()) as usize);
        }
    }

    /// Has every free unit of the pageblocks from `first` up to, without, `end` wait for a report, or none.
    pub fn mark(&mut self, first: usize, end: usize, wait: bool) {
        let Some(waiting) = &mut self.waiting else { return };
        let order = waiting.order();
        for at in first..end.min(self.fields.len()) {
            let field = &self.fields[at];
            if order > PAGEBLOCK_ORDER {
                let pair = self.lists.blocks[at].is_whole() && self.lists.blocks[at ^ 1].is_whole();
                waiting.mark(at / 2, pair && wait);
                continue;
            }
            for unit in 0..1usize << (PAGEBLOCK_ORDER - order) {
                let mut parts = bits::parts((unit as u32) << order, order);
                let free = parts.all(|(word, bits)| field.words[word] & bits == bits);
                waiting.mark((at << (PAGEBLOCK_ORDER - order)) + unit, free && wait);
            }
        }
    }

    /// Adds the free blocks of each order in the pageblocks from `first` up to, without, `end`; both are even.
    pub fn count(&self, first: usize, end: usize, counts: &mut [u64; Order::COUNT]) {
        for at in first..end.min(self.fields.len()) {
            self.fields[at].count(counts);
            if at % 2 == 1 && self.lists.blocks[at].is_whole() && self.lists.blocks[at - 1].is_whole() {
                counts[Order::HUGE.get() as usize] -= 2;
                counts[Order::MAX.get() as usize] += 1;
            }
        }
    }

    /// Keeps what is free in a pageblock, or comes free, from being handed out and reported.
    pub fn set_apart(&mut self, at: usize) {
        let block = &mut self.lists.blocks[at];
        if block.state != State::Normal {
            return;
        }
        let was_whole = block.is_whole();
        block.state = State::Isolated;
        self.free -= u64::from(block.free);
        self.settle(at, was_whole, Place::Tail);
        self.mark(at, at + 1, false);
    }

    /// The reverse of [`set_apart`](Self::set_apart).
    pub fn put_among(&mut self, at: usize) {
        let block = &mut self.lists.blocks[at];
        if block.state != State::Isolated {
            return;
        }
        block.state = State::Normal;
        self.free += u64::from(block.free);
        self.settle(at, false, Place::Tail);
        self.mark(at, at + 1, true);
    }

    /// What a pageblock is used as.
    pub fn state(&self, at: usize) -> State {
        self.lists.blocks[at].state
    }

    /// The first frame of a pageblock, of those whose bits are set in `frames`, that is not free.
    pub fn first_in_use(&self, at: usize, frames: &Bitfield) -> Option<u32> {
        let words = frames.words.iter().zip(&self.fields[at].words).enumerate();
        words
            .map(|(word, (all, free))| (word, all & !free))
            .find(|&(_, used)| used != 0)
            .map(|(word, used)| at as u32 * PAGEBLOCK + word as u32 * 64 + used.trailing_zeros())
    }

    /// Takes all frames of a pageblock away that is set apart and wholly free.
    pub fn remove(&mut self, at: usize) {
        self.fields[at] = Bitfield::default();
        let block = &mut self.lists.blocks[at];
        (block.free, block.state) = (0, State::Removed);
    }

    /// Gives a pageblock that was removed these frames, all free.
    pub fn add(&mut self, at: usize, frames: &Bitfield) {
        self.fields[at] = *frames;
        let block = &mut self.lists.blocks[at];
        block.free = frames.words.iter().map(|word| word.count_ones() as u16).sum();
        block.state = State::Isolated;
        self.put_among(at);
    }

    /// Records whom the pageblock at `start` is for, which is wholly allocated.
    pub fn assign(&mut self, start: u32, mobility: Mobility) {
        self.lists.blocks[(start / PAGEBLOCK) as usize].mobility = mobility;
    }

    /// The pageblock to take a block from; what was taken from it must be accounted for afterwards.
    ///
    /// In this order: the fullest one of the same mobility, so that few are partly free; a wholly free one, which then is
    /// of that mobility; the emptiest one of the other.
    fn pick(&mut self, order: u8, mobility: Mobility) -> Option<usize> {
        if order > PAGEBLOCK_ORDER {
            return self.lists.head(List::Pair).inspect(|&at| {
                self.lists.blocks[at].mobility = mobility;
                self.lists.blocks[at + 1].mobility = mobility;
            });
        }
        let own =
            (order..PAGEBLOCK_ORDER).find_map(|largest| self.lists.head(List::Partial { largest, mobility }));
        if own.is_some() {
            return own;
        }
        let whole = self.lists.head(List::Whole).or_else(|| self.lists.head(List::Pair));
        if let Some(at) = whole {
            self.lists.blocks[at].mobility = mobility;
            return whole;
        }
        let other = mobility.other();
        let at = (order..PAGEBLOCK_ORDER)
            .rev()
            .find_map(|largest| self.lists.head(List::Partial { largest, mobility: other }))?;
        // As Linux' steal_suitable_fallback: what cannot be moved claims the pageblock whatever is in it, so that the
        // next of its kind goes there too instead of spoiling another; what can be moved only if most of it is free.
        let block = &mut self.lists.blocks[at];
        if mobility == Mobility::Unmovable || u32::from(block.free) >= PAGEBLOCK / 2 {
            block.mobility = mobility;
            self.claimed += 1;
        }
        Some(at)
    }

    /// Makes all frames of an aligned block free or not free, if they are all the opposite now.
    fn change(&mut self, start: u32, order: Order, free: bool, place: Place) -> Result<(), Mismatch> {
        let at = (start / PAGEBLOCK) as usize;
        if order >= Order::HUGE {
            let pageblocks = at..at + (1 << (order.get() - PAGEBLOCK_ORDER));
            let now = if free { 0 } else { PAGEBLOCK as u16 };
            if pageblocks.clone().any(|at| self.lists.blocks[at].free != now) {
                return Err(Mismatch);
            }
            pageblocks.for_each(|at| self.change_pageblock(at, free, place));
            return Ok(());
        }
        let words = &self.fields[at].words;
        for (word, bits) in bits::parts(start % PAGEBLOCK, order.get()) {
            if words[word] & bits != if free { 0 } else { bits } {
                return Err(Mismatch);
            }
        }
        let was_whole = self.lists.blocks[at].is_whole();
        for (word, bits) in bits::parts(start % PAGEBLOCK, order.get()) {
            self.write(at, word, self.fields[at].words[word] ^ bits);
        }
        self.settle(at, was_whole, place);
        Ok(())
    }

    /// Makes a pageblock wholly free, of which nothing is, or the reverse.
    fn change_pageblock(&mut self, at: usize, free: bool, place: Place) {
        let after = if free { u64::MAX } else { 0 };
        if self.waiting.as_ref().is_some_and(|waiting| waiting.order() < PAGEBLOCK_ORDER) {
            (0..WORDS).for_each(|word| self.write(at, word, after));
        } else {
            // What `write` does, without counting bits.
            self.fields[at].words = [after; WORDS];
            self.lists.blocks[at].free = if free { PAGEBLOCK as u16 } else { 0 };
            let all = u64::from(PAGEBLOCK);
            if self.lists.blocks[at].state == State::Normal {
                self.free = if free { self.free + all } else { self.free - all };
            }
        }
        self.settle(at, !free, place);
    }

    /// Changes a word, the counts and what waits in it. `settle` must follow.
    fn write(&mut self, at: usize, word: usize, after: u64) {
        let field = &mut self.fields[at];
        let before = core::mem::replace(&mut field.words[word], after);
        let normal = self.lists.blocks[at].state == State::Normal;
        if let Some(waiting) = &mut self.waiting
            && waiting.order() < PAGEBLOCK_ORDER
            && normal
        {
            let full = field.full();
            let was_full = full & !(1 << word) | u64::from(before == u64::MAX) << word;
            waiting.word_changed(at, word, (before, after), (was_full, full));
        }
        let block = &mut self.lists.blocks[at];
        let (gone, come) = (before.count_ones(), after.count_ones());
        block.free = block.free - gone as u16 + come as u16;
        if normal {
            self.free = self.free - u64::from(gone) + u64::from(come);
        }
    }

    /// Brings what follows from a pageblock's bitfield up to date.
    fn settle(&mut self, at: usize, was_whole: bool, place: Place) {
        let (block, buddy) = (self.lists.blocks[at], at ^ 1);
        let whole = block.is_whole();
        let buddy_whole = self.lists.blocks[buddy].is_whole();
        let list = if block.state != State::Normal {
            None
        } else if whole {
            if buddy_whole { at.is_multiple_of(2).then_some(List::Pair) } else { Some(List::Whole) }
        } else if block.free == 0 {
            None
        } else {
            let mobility = block.mobility;
            self.fields[at].largest().map(|largest| List::Partial { largest, mobility })
        };
        self.lists.relist(at, list, place);
        if whole == was_whole {
            return;
        }
        if buddy_whole {
            let list = if whole { buddy.is_multiple_of(2).then_some(List::Pair) } else { Some(List::Whole) };
            self.lists.relist(buddy, list, place);
        }
        if let Some(waiting) = &mut self.waiting {
            waiting.pageblock_changed(at, whole, whole && buddy_whole);
        }
    }
}

/// The `count` lowest bits that are set in `word`, or all if there are no more.
fn lowest(word: u64, count: usize) -> u64 {
    if word.count_ones() as usize <= count {
        return word;
    }
    let mut rest = word;
    for _ in 0..count {
        rest &= rest - 1;
    }
    word & !rest
}

//! The record of the blocks that are in the balloon.
//!
//! The driver allocates nothing, and the blocks themselves cannot hold the record because the host throws their content
//! away. So it is kept in frames of its own, taken from the same source: one for every 511 blocks. They form a stack:
//! what went in last comes out first, which returns the small blocks before large ones are touched.

use core::ptr::NonNull;

use isotherm_frames::{Block, Frame, Order, OwnedBlock};

use super::memory::{FrameMemory, FrameSource, single};

/// Words in a frame; the first links to the frame below, the others are entries.
const WORDS: usize = 512;
const ENTRIES: usize = WORDS - 1;
/// An entry is a frame number of 32 bits above an order of 4.
const ORDER_BITS: u32 = 4;

#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// The frame on top, which holds `used` entries, at least one.
    top: Option<Frame>,
    used: usize,
}

fn word<M: FrameMemory>(memory: &M, frame: Frame, index: usize) -> Option<NonNull<u64>> {
    debug_assert!(index < WORDS);
    // SAFETY: the frame is one of the ledger's, mapped whole, and the index is below its end.
    Some(unsafe { memory.block_ptr(single(frame))?.cast::<u64>().add(index) })
}

fn read<M: FrameMemory>(memory: &M, frame: Frame, index: usize) -> Option<u64> {
    // SAFETY: see `word`; every word below `used` was written, and the link too.
    Some(unsafe { word(memory, frame, index)?.read() })
}

fn write<M: FrameMemory>(memory: &M, frame: Frame, index: usize, value: u64) -> Option<()> {
    // SAFETY: see `word`.
    unsafe { word(memory, frame, index)?.write(value) };
    Some(())
}

impl Ledger {
    /// Whether the next [`push`](Self::push) needs no frame from the source.
    fn has_room(&self) -> bool {
        self.top.is_some() && self.used < ENTRIES
    }

    /// Makes room for one more block; `false` if the source has no frame for it.
    pub fn reserve<M: FrameMemory>(&mut self, memory: &M, source: &mut impl FrameSource) -> bool {
        if self.has_room() {
            return true;
        }
        let Some(page) = source.take(Order::BASE) else { return false };
        let below = self.top.map_or(0, |frame| frame.0 + 1);
        if page.order != Order::BASE || write(memory, page.frame, 0, below).is_none() {
            source.give(page);
            return false;
        }
        self.top = Some(page.into_block().frame);
        self.used = 0;
        true
    }

    /// Records a block, after [`reserve`](Self::reserve).
    pub fn push<M: FrameMemory>(&mut self, memory: &M, block: Block) -> Option<()> {
        let top = self.top.filter(|_| self.used < ENTRIES)?;
        write(memory, top, 1 + self.used, (block.frame.0 << ORDER_BITS) | u64::from(block.order.get()))?;
        self.used += 1;
        Some(())
    }

    /// Takes the last block off the record. A frame of the record that becomes empty goes to `emptied`.
    pub fn pop<M: FrameMemory>(&mut self, memory: &M, mut emptied: impl FnMut(Block)) -> Option<Block> {
        self.drop_empty(memory, &mut emptied);
        let block = decode(read(memory, self.top?, self.used)?)?;
        self.used -= 1;
        self.drop_empty(memory, &mut emptied);
        Some(block)
    }

    /// Gives up what `reserve` took and `push` did not use.
    pub fn trim<M: FrameMemory>(&mut self, memory: &M, source: &mut impl FrameSource) {
        // SAFETY: a frame of the record's own, which it gives up.
        self.drop_empty(memory, &mut |block| source.give(unsafe { OwnedBlock::new(block) }));
    }

    /// After `reserve` without `push`, or after `pop`, the top frame may hold nothing.
    fn drop_empty<M: FrameMemory>(&mut self, memory: &M, emptied: &mut impl FnMut(Block)) {
        while let Some(top) = self.top.filter(|_| self.used == 0) {
            let below = read(memory, top, 0).unwrap_or(0).checked_sub(1).map(Frame);
            self.top = below;
            self.used = if below.is_some() { ENTRIES } else { 0 };
            emptied(single(top));
        }
    }

    /// The recorded blocks, the last first.
    pub fn iter<'a, M: FrameMemory>(&self, memory: &'a M) -> impl Iterator<Item = Block> + 'a {
        let (mut top, mut used) = (self.top, self.used);
        core::iter::from_fn(move || {
            while used == 0 {
                top = read(memory, top?, 0)?.checked_sub(1).map(Frame);
                used = ENTRIES;
            }
            let block = decode(read(memory, top?, used)?)?;
            used -= 1;
            Some(block)
        })
    }
}

fn decode(entry: u64) -> Option<Block> {
    let order = Order::new((entry & ((1 << ORDER_BITS) - 1)) as u8)?;
    Some(Block::new(Frame(entry >> ORDER_BITS), order))
}

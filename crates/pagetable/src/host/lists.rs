//! The free frames of the machine, and the tables that wait to be free.

use crate::address::Frame;
use crate::folio::MAX_ORDER;

/// The order of the largest blocks.
pub(super) const LARGEST: u8 = MAX_ORDER.get();

/// Free blocks by order.
#[derive(Debug, Default)]
pub(super) struct FreeLists {
    pub blocks: [Vec<u64>; LARGEST as usize + 1],
    /// Frames in the lists and those that were never used.
    pub free: u64,
    /// The first frame that was never used.
    pub unused: u64,
    pub end: u64,
    pub retired: Vec<Frame>,
    /// Larger tables, and their orders.
    pub retired_large: Vec<(Frame, u8)>,
    /// Tables that may still be allocated.
    pub table_budget: u64,
    /// Folios that may still be allocated by the operations themselves.
    pub folio_budget: u64,
}

impl FreeLists {
    pub fn take(&mut self, order: u8) -> Option<Frame> {
        if order > LARGEST {
            return None;
        }
        let frame = self.take_block(order)?;
        self.free -= 1 << order;
        Some(Frame(frame))
    }

    fn take_block(&mut self, order: u8) -> Option<u64> {
        // What was split already comes first, so that whole blocks of the largest order last.
        let split = (order..LARGEST).find(|&o| !self.blocks[usize::from(o)].is_empty());
        if let Some(from) = split {
            return self.split_block(from, order);
        }
        if order == LARGEST
            && let Some(block) = self.blocks[usize::from(order)].pop()
        {
            return Some(block);
        }
        if let Some(block) = self.take_unused(LARGEST) {
            self.blocks[usize::from(LARGEST)].push(block);
        } else if let Some(block) = self.take_unused(order) {
            // Of the rest that makes no whole block.
            return Some(block);
        }
        let from = (order..=LARGEST).find(|&o| !self.blocks[usize::from(o)].is_empty())?;
        self.split_block(from, order)
    }

    /// A block that was never used. What its alignment skips goes to the lists.
    fn take_unused(&mut self, order: u8) -> Option<u64> {
        let size = 1u64 << order;
        if self.unused.next_multiple_of(size) + size > self.end {
            return None;
        }
        while !self.unused.is_multiple_of(size) {
            let piece = self.unused.trailing_zeros();
            self.blocks[piece as usize].push(self.unused);
            self.unused += 1 << piece;
        }
        self.unused += size;
        Some(self.unused - size)
    }

    fn split_block(&mut self, from: u8, order: u8) -> Option<u64> {
        let block = self.blocks[usize::from(from)].pop()?;
        for half in order..from {
            self.blocks[usize::from(half)].push(block + (1 << half));
        }
        Some(block)
    }

    pub fn give(&mut self, frame: Frame, order: u8) {
        self.free += 1 << order;
        self.blocks[usize::from(order)].push(frame.0);
    }
}

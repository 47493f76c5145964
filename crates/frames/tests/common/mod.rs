//! A zone whose blocks are known by their numbers, as tests want them that free twice, too little or too much.
#![allow(dead_code, reason = "helpers of tests, each of which uses some")]

use std::ops::Deref;

use isotherm_frames::*;

/// A zone of a test's own: of its numbers nobody makes anything, so they may be freed at will.
#[derive(Clone, Copy)]
pub struct Numbers<'z>(pub &'z Zone<'z>);

impl<'z> Deref for Numbers<'z> {
    type Target = Zone<'z>;

    fn deref(&self) -> &Zone<'z> {
        self.0
    }
}

/// The value of a block, whoever has it. No memory stands behind the numbers.
pub fn owned(block: Block) -> OwnedBlock {
    // SAFETY: there is no memory that could be used twice.
    unsafe { OwnedBlock::new(block) }
}

/// A zone without memory behind it.
pub fn numbers<'m>(
    config: &Config,
    ranges: &[FrameRange],
    metadata: &'m mut [std::mem::MaybeUninit<u8>],
) -> Result<Zone<'m>, ZoneError> {
    // SAFETY: as above.
    unsafe { Zone::new(config, ranges, metadata) }
}

impl Numbers<'_> {
    pub fn get(&self, cpu: usize, order: Order, mobility: Mobility) -> Result<Block, GetError> {
        self.0.get(cpu, order, mobility).map(OwnedBlock::into_block)
    }

    pub fn get_reserve(&self, cpu: usize, order: Order, mobility: Mobility) -> Result<Block, GetError> {
        self.0.get_reserve(cpu, order, mobility).map(OwnedBlock::into_block)
    }

    pub fn get_at(&self, block: Block, mobility: Mobility) -> Result<(), GetAtError> {
        self.0.get_at(block, mobility).map(|got| assert_eq!(got.into_block(), block))
    }

    pub fn put(&self, cpu: usize, block: Block) -> Result<(), PutError> {
        self.0.put(cpu, owned(block))
    }

    pub fn put_bulk(&self, frames: &[Frame]) -> Result<(), PutBulkError> {
        // SAFETY: as in `owned`.
        unsafe { self.0.put_bulk(frames) }
    }

    /// The parts are counted and otherwise known by their numbers.
    pub fn split(&self, block: Block, order: Order) -> Result<(), PutError> {
        let parts = self.0.split(owned(block), order)?.map(OwnedBlock::into_block);
        let order = order.min(block.order);
        let expected = (block.frame.0..block.frame.0 + block.order.frames()).step_by(order.frames() as usize);
        assert!(parts.eq(expected.map(|frame| Block::new(Frame(frame), order))));
        Ok(())
    }
}

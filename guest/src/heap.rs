//! A heap for what a command needs while it runs: each allocation is a block of the zone. Wasteful for small ones, and
//! so simple that what it leaves allocated is seen in the zone's statistics.

use crate::memory::{self, order_of};
use crate::processor;
use core::alloc::{GlobalAlloc, Layout};
use core::ptr::null_mut;
use isotherm_frames::{Block, FRAME_SIZE, Frame, Order, OwnedBlock};

struct Heap;

#[global_allocator]
static HEAP: Heap = Heap;

fn order(layout: Layout) -> Option<Order> {
    // Blocks are aligned to their size.
    order_of(layout.size().max(layout.align()).div_ceil(FRAME_SIZE as usize))
}

// SAFETY: a block belongs to whoever got it until it is put back, is as large as was asked for, aligned to its size, and
// mapped at its own address for ever.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let block = order(layout).and_then(|order| memory::get(processor::current(), order).ok());
        block.map_or(null_mut(), |block| block.into_block().address() as *mut u8)
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        if let Some(order) = order(layout) {
            let block = Block::new(Frame::containing(place as u64), order);
            // SAFETY: the caller gives back what `alloc` gave, with the same layout.
            memory::put(processor::current(), unsafe { OwnedBlock::new(block) });
        }
    }
}

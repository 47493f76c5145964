//! A heap for what a command needs while it runs: small objects in pages by their sizes, others in blocks of the zone of their own.
//! A page without objects goes back at once, so that what is left allocated is seen in the zone's statistics.

use crate::memory::{self, order_of};
use crate::processor;
use core::alloc::{GlobalAlloc, Layout};
use core::ptr::{NonNull, null_mut};
use isotherm_frames::{Block, FRAME_SIZE, Frame, Order, OwnedBlock};
use isotherm_guest::slab::{PageSource, Slab, is_small};
use spin::Mutex;

struct Heap;

#[global_allocator]
static HEAP: Heap = Heap;

static SLAB: Mutex<Slab> = Mutex::new(Slab::new());

/// Pages of the zone.
struct Zone;

// SAFETY: a block of order 0 is a page, aligned, mapped at its own address for ever, and whoever's got it.
unsafe impl PageSource for Zone {
    fn take(&mut self) -> Option<NonNull<u8>> {
        let block = memory::get(processor::current(), Order::BASE).ok()?;
        NonNull::new(block.into_block().address() as *mut u8)
    }

    unsafe fn give(&mut self, page: NonNull<u8>) {
        let block = Block::new(Frame::containing(page.as_ptr() as u64), Order::BASE);
        // SAFETY: the caller gives back what `take` gave.
        memory::put(processor::current(), unsafe { OwnedBlock::new(block) });
    }
}

fn order(layout: Layout) -> Option<Order> {
    // Blocks are aligned to their size.
    order_of(layout.size().max(layout.align()).div_ceil(FRAME_SIZE as usize))
}

// SAFETY: an object or a block belongs to whoever got it until it is put back, is as large as was asked for, aligned to its size,
// and mapped at its own address for ever.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_small(layout.size(), layout.align()) {
            let object = SLAB.lock().alloc(layout.size(), layout.align(), &mut Zone);
            return object.map_or(null_mut(), NonNull::as_ptr);
        }
        let block = order(layout).and_then(|order| memory::get(processor::current(), order).ok());
        block.map_or(null_mut(), |block| block.into_block().address() as *mut u8)
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        if is_small(layout.size(), layout.align()) {
            if let Some(object) = NonNull::new(place) {
                // SAFETY: the caller gives back what `alloc` gave, with the same layout.
                unsafe { SLAB.lock().free(object, layout.size(), layout.align(), &mut Zone) };
            }
            return;
        }
        if let Some(order) = order(layout) {
            let block = Block::new(Frame::containing(place as u64), order);
            // SAFETY: as above.
            memory::put(processor::current(), unsafe { OwnedBlock::new(block) });
        }
    }
}

//! The machine that the page tables run on, here the real one: all RAM at its own address, frames from the zone, their
//! metadata in the array that the zone uses too.

use super::contradiction::{Checked, Contradiction, ensure};
use super::figures::{Figure, count};
use super::lapse::{self, Lapse};
use super::linger;
use super::readers::Retired;
use super::tlb;
use crate::memory;
use crate::processor;
use alloc::sync::Arc;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use isotherm_frames::{Block, FRAME_SIZE, Order, OwnedBlock};
use isotherm_page::{PageMeta, Pages};
use isotherm_pagetable::{Event, Folio, FolioKind, Frame, Frames, Memory, SwapCounts, Table};
use spin::Mutex;

/// What freed pages and tables hold, so that whoever still reads one finds it out. As an entry it is not present, and not
/// empty either.
const FREED: u64 = 0xdead_f4ee_dead_f4ee;

/// The one machine there is.
pub static HARDWARE: Hardware = Hardware {
    retired: Mutex::new(Retired::new()),
    forgotten: AtomicU64::new(0),
    used: AtomicU64::new(0),
    most: AtomicU64::new(u64::MAX),
    swap: Mutex::new(None),
};

/// See the module.
pub struct Hardware {
    retired: Mutex<Retired>,
    /// A frame that [`Lapse::Free`] left allocated, 0 for none.
    forgotten: AtomicU64,
    /// Frames of folios and tables that are allocated, and how many may be.
    used: AtomicU64,
    most: AtomicU64,
    /// Who counts swap entries in page tables.
    swap: Mutex<Option<Arc<dyn SwapCounts>>>,
}

/// Frees a block of this machine's.
///
/// # Safety
/// It is allocated, and nobody uses it any more.
unsafe fn free(block: Block) {
    // SAFETY: the caller's duty.
    memory::put(processor::current(), unsafe { OwnedBlock::new(block) });
}

fn words(frame: Frame) -> impl Iterator<Item = u64> {
    (frame.address()..frame.address() + FRAME_SIZE).step_by(8)
}

/// The experiment, while it runs.
pub struct Running;

impl Drop for Running {
    fn drop(&mut self) {
        let forgotten = HARDWARE.forgotten.swap(0, Ordering::Relaxed);
        if forgotten != 0 {
            // SAFETY: nobody has used it since it was forgotten.
            unsafe { free(Block::new(Frame(forgotten), Order::BASE)) };
        }
    }
}

/// Bytes that [`Lapse::Free`] left allocated; dropping [`Running`] frees them.
pub fn lost() -> u64 {
    if HARDWARE.forgotten.load(Ordering::Relaxed) == 0 { 0 } else { FRAME_SIZE }
}

impl Hardware {
    /// A new folio of anonymous memory with a reference of the caller's.
    ///
    /// # Errors
    /// There is no memory.
    pub fn folio(&'static self, order: u8) -> Checked<Folio<'static, Hardware>> {
        let lacking = || Contradiction(alloc::format!("no memory for a folio of order {order}"));
        let head = Order::new(order).and_then(|order| Some((self.alloc_folio(order)?, order)));
        let (head, order) = head.ok_or_else(lacking)?;
        // SAFETY: the zone has just given the block to this machine.
        let folio = unsafe { Folio::new(self, OwnedBlock::new(Block::new(head, order)), FolioKind::Anon) };
        folio.map_err(|(why, block)| {
            memory::put(processor::current(), block);
            Contradiction(alloc::format!("{why}"))
        })
    }

    /// From now on there are so many frames for folios and tables.
    pub fn set_most(&self, frames: u64) {
        self.most.store(frames, Ordering::Relaxed);
    }

    /// Who counts the swap entries of page tables from now on.
    pub fn set_swap(&self, swap: Option<Arc<dyn SwapCounts>>) {
        let before = core::mem::replace(&mut *self.swap.lock(), swap);
        // Not under the lock.
        drop(before);
    }

    fn allocate(&self, order: Order) -> Option<Frame> {
        let frames = order.frames();
        if self.used.fetch_add(frames, Ordering::Relaxed) + frames <= self.most.load(Ordering::Relaxed)
            && let Ok(block) = memory::get(processor::current(), order)
        {
            return Some(block.into_block().frame);
        }
        self.used.fetch_sub(frames, Ordering::Relaxed);
        None
    }

    fn swap(&self) -> Option<Arc<dyn SwapCounts>> {
        self.swap.lock().clone()
    }

    /// Gives all retired tables back. No space is walked any more.
    ///
    /// # Errors
    /// One does not come free.
    pub fn settle(&self) -> Checked {
        self.reclaim();
        ensure!(self.retired.lock().is_empty(), "a page table never came to the end of its grace period");
        Ok(())
    }

    fn reclaim(&self) {
        self.retired.lock().reclaim(free_table);
    }
}

fn free_table(table: OwnedBlock) {
    for word in words(table.frame) {
        // SAFETY: nobody walks through the table any more.
        unsafe { memory::write(word, FREED) };
    }
    memory::put(processor::current(), table);
}

// SAFETY: the array has one record a frame.
unsafe impl Pages for Hardware {
    fn meta(&self, frame: Frame) -> Option<&PageMeta> {
        memory::pages().meta(frame)
    }

    fn metas(&self, block: Block) -> Option<&[PageMeta]> {
        memory::pages().metas(block)
    }

    unsafe fn free(&self, block: OwnedBlock) {
        self.used.fetch_sub(block.order.frames(), Ordering::Relaxed);
        for page in 0..block.order.frames() {
            // SAFETY: nobody refers to the block any more.
            unsafe { memory::write(block.frame.add(page).address(), FREED) };
        }
        let forgotten = block.order == Order::BASE
            && lapse::is(Lapse::Free)
            && self
                .forgotten
                .compare_exchange(0, block.frame.0, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if forgotten {
            let _forgotten = block.into_block();
        } else {
            memory::put(processor::current(), block);
        }
    }

    unsafe fn split(&self, block: OwnedBlock, order: Order) {
        memory::split(block, order);
    }
}

// SAFETY: all RAM is mapped at its own address for ever.
unsafe impl Memory for Hardware {
    fn table(&self, frame: Frame) -> NonNull<Table> {
        linger::at_table(frame);
        // Frame 0 is never the zone's.
        NonNull::new(frame.address() as *mut Table).unwrap_or(NonNull::dangling())
    }

    unsafe fn copy(&self, from: Frame, to: Frame, frames: u64) {
        if lapse::is(Lapse::Copy) {
            return;
        }
        let pages = (0..frames).flat_map(|n| words(from.add(n)).zip(words(to.add(n))));
        for (from, to) in pages {
            // SAFETY: the caller's duty.
            unsafe { memory::write(to, memory::read(from)) };
        }
    }

    unsafe fn clear(&self, frame: Frame) {
        for word in words(frame) {
            // SAFETY: the caller's duty.
            unsafe { memory::write(word, 0) };
        }
    }

    fn relax(&self, _tries: u32) {
        // The lock's holder may wait for this processor's TLB.
        tlb::answer();
        core::hint::spin_loop();
    }

    fn event(&self, event: Event) {
        match event {
            Event::Split => count(Figure::Splits, 1),
            Event::Fold => count(Figure::Folds, 1),
            Event::Unfold => count(Figure::Unfolds, 1),
            _ => {}
        }
    }
}

// SAFETY: blocks are the zone's, each given out once until it is put back, aligned to their size; tables wait for readers.
unsafe impl Frames for Hardware {
    fn alloc_table(&self) -> Option<Frame> {
        self.reclaim();
        self.allocate(Order::BASE)
    }

    unsafe fn retire_table(&self, frame: Frame) {
        count(Figure::Tables, 1);
        self.used.fetch_sub(1, Ordering::Relaxed);
        // SAFETY: the caller gives back what `alloc_table` gave.
        let table = unsafe { OwnedBlock::new(Block::new(frame, Order::BASE)) };
        if lapse::is(Lapse::Grace) {
            return free_table(table);
        }
        self.retired.lock().add(table);
        self.reclaim();
    }

    fn alloc_folio(&self, order: Order) -> Option<Frame> {
        self.allocate(order)
    }

    fn share_swap_entry(&self, swap_entry: u64) {
        if let Some(swap) = self.swap() {
            swap.share(swap_entry);
        }
    }

    fn release_swap_entry(&self, swap_entry: u64) {
        if let Some(swap) = self.swap() {
            swap.release(swap_entry);
        }
    }
}

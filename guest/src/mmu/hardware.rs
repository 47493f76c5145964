//! The machine that the page tables run on, here the real one: all RAM at its own address, frames from the zone, a record
//! for each frame in memory of the zone's.

use super::contradiction::{Checked, Contradiction, ensure};
use super::figures::{Figure, count};
use super::lapse::{self, Lapse};
use super::linger;
use super::readers::Retired;
use super::tlb;
use crate::memory;
use crate::processor;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use isotherm_frames::{Block, FRAME_SIZE, Order, OwnedBlock};
use isotherm_pagetable::{Event, Folio, FolioKind, Frame, FrameMeta, Frames, Memory, Observe, Table};
use spin::Mutex;

/// What is known of a frame: what the page tables keep there, and the next retired table.
#[repr(C)]
struct Record {
    meta: FrameMeta,
    next: AtomicU64,
}

/// Frames whose records fill a block of order 9: 256 MiB of RAM.
const PER_CHUNK: u64 = Order::HUGE.bytes() / size_of::<Record>() as u64;
const CHUNKS: usize = (crate::paging::REACH / FRAME_SIZE / PER_CHUNK) as usize;

/// What freed pages and tables hold, so that whoever still reads one finds it out. As an entry it is not present, and not
/// empty either.
const FREED: u64 = 0xdead_f4ee_dead_f4ee;

/// The one machine there is.
pub static HARDWARE: Hardware = Hardware {
    chunks: [const { AtomicPtr::new(core::ptr::null_mut()) }; CHUNKS],
    retired: Mutex::new(Retired::new()),
    forgotten: AtomicU64::new(0),
};

/// See the module.
pub struct Hardware {
    chunks: [AtomicPtr<Record>; CHUNKS],
    retired: Mutex<Retired>,
    /// A frame that [`Lapse::Free`] left allocated, 0 for none.
    forgotten: AtomicU64,
}

fn base(frame: Frame) -> Block {
    block(frame, 0)
}

fn block(frame: Frame, order: u8) -> Block {
    Block::new(isotherm_frames::Frame(frame.0), Order::new(order).unwrap_or(Order::BASE))
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

/// The records of the machine, while they are there.
pub struct Prepared;

/// Allocates the records.
///
/// # Errors
/// There is no memory for them.
pub fn prepare() -> Checked<Prepared> {
    let prepared = Prepared;
    let chunks = memory::reach().div_ceil(FRAME_SIZE).div_ceil(PER_CHUNK) as usize;
    for chunk in HARDWARE.chunks.iter().take(chunks) {
        let block = memory::get(processor::current(), Order::HUGE)
            .map_err(|why| Contradiction(alloc::format!("no memory for the frames' records: {why}")))?
            .into_block();
        for address in (block.address()..block.address() + block.bytes()).step_by(8) {
            // SAFETY: inside the block that was just allocated.
            unsafe { memory::write(address, 0) };
        }
        chunk.store(block.address() as *mut Record, Ordering::Release);
    }
    Ok(prepared)
}

impl Drop for Prepared {
    fn drop(&mut self) {
        let forgotten = HARDWARE.forgotten.swap(0, Ordering::Relaxed);
        if forgotten != 0 {
            // SAFETY: nobody has used it since it was forgotten.
            unsafe { free(base(Frame(forgotten))) };
        }
        for chunk in &HARDWARE.chunks {
            let records = chunk.swap(core::ptr::null_mut(), Ordering::AcqRel);
            if !records.is_null() {
                let frame = Frame(records as u64 / FRAME_SIZE);
                // SAFETY: no space is left that could ask for records.
                unsafe { free(block(frame, Order::HUGE.get())) };
            }
        }
    }
}

/// Bytes that [`Lapse::Free`] left allocated; dropping [`Prepared`] frees them.
pub fn lost() -> u64 {
    if HARDWARE.forgotten.load(Ordering::Relaxed) == 0 { 0 } else { FRAME_SIZE }
}

impl Hardware {
    fn record(&self, frame: Frame) -> Option<&Record> {
        let chunk = self.chunks.get(usize::try_from(frame.0 / PER_CHUNK).ok()?)?.load(Ordering::Acquire);
        if chunk.is_null() {
            return None;
        }
        // SAFETY: a chunk has so many records, zeroed, all of whose fields are atomic; it goes when no space is left.
        Some(unsafe { &*chunk.add((frame.0 % PER_CHUNK) as usize) })
    }

    /// A new folio of anonymous memory with a reference of the caller's.
    ///
    /// # Errors
    /// There is no memory.
    pub fn folio(&'static self, order: u8) -> Checked<Folio<'static>> {
        let Some(head) = self.alloc_folio(order) else {
            return Err(Contradiction(alloc::format!("no memory for a folio of order {order}")));
        };
        Ok(Folio::prepare(self, head, order, FolioKind::Anon)?)
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
        let link = |frame| self.record(frame).map(|record| &record.next);
        self.retired.lock().reclaim(link, |frame| self.free_table(frame));
    }

    fn free_table(&self, frame: Frame) {
        for word in words(frame) {
            // SAFETY: nobody walks through the table any more.
            unsafe { memory::write(word, FREED) };
        }
        // SAFETY: as above.
        unsafe { free(base(frame)) };
    }
}

// SAFETY: all RAM is mapped at its own address for ever; a frame always has the same record.
unsafe impl Memory for Hardware {
    fn table(&self, frame: Frame) -> NonNull<Table> {
        linger::at_table(frame);
        // Frame 0 is never the zone's.
        NonNull::new(frame.address() as *mut Table).unwrap_or(NonNull::dangling())
    }

    fn meta(&self, frame: Frame) -> Option<&FrameMeta> {
        self.record(frame).map(|record| &record.meta)
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
}

// SAFETY: blocks are the zone's, each given out once until it is put back, aligned to their size; tables wait for readers.
unsafe impl Frames for Hardware {
    fn alloc_table(&self) -> Option<Frame> {
        self.reclaim();
        memory::get(processor::current(), Order::BASE).ok().map(|block| Frame(block.into_block().frame.0))
    }

    fn retire_table(&self, frame: Frame) {
        count(Figure::Tables, 1);
        if lapse::is(Lapse::Grace) {
            return self.free_table(frame);
        }
        self.retired.lock().add(frame, |frame| self.record(frame).map(|record| &record.next));
        self.reclaim();
    }

    fn alloc_folio(&self, order: u8) -> Option<Frame> {
        let block = memory::get(processor::current(), Order::new(order)?).ok()?;
        Some(Frame(block.into_block().frame.0))
    }

    fn free_folio(&self, head: Frame, order: u8) {
        for page in 0..1 << order {
            // SAFETY: nobody refers to the folio any more.
            unsafe { memory::write(head.add(page).address(), FREED) };
        }
        let forgotten = order == 0
            && lapse::is(Lapse::Free)
            && self.forgotten.compare_exchange(0, head.0, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if !forgotten {
            // SAFETY: no reference to the folio is left.
            unsafe { free(block(head, order)) };
        }
    }
}

impl Observe for Hardware {
    fn event(&self, event: Event) {
        if event == Event::Split {
            count(Figure::Splits, 1);
        }
    }
}

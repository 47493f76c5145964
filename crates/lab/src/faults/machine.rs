//! A machine for the faults: memory of this process, a zone with caches of CPUs, and no TLB.

use isotherm_frames::{Config, FrameRange, Mobility, Zone, metadata_size};
use isotherm_page::{Block, Frame, Order, OwnedBlock, PageMeta, Pages, Unique};
use isotherm_pagetable::{Flush, Frames, Memory, PAGE_SIZE, Rcu, SpaceId, Table, Tlb};
use isotherm_rcu::{Joined, Qsbr, QsbrGuard, RcuHead, Reclaim, Threads};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

/// CPUs that have caches of frames. Threads beyond share them.
const CPUS: usize = 16;
/// Threads that may be there at once: those of a start storm, and who watches.
const THREADS: usize = 112;

/// RCU by quiescent states of the threads.
pub(super) type ThreadRcu = Qsbr<Threads, THREADS>;
/// A thread that it waits for.
pub(super) type Member<'w> = Joined<'w, THREADS>;

thread_local! {
    static CPU: Cell<Option<usize>> = const { Cell::new(Some(0)) };
}

/// The CPU that this thread plays.
pub(super) fn cpu() -> usize {
    CPU.get().unwrap_or_else(runs_on)
}

/// From here on this thread plays a CPU.
pub(super) fn set_cpu(cpu: usize) {
    CPU.set(Some(cpu % CPUS));
}

/// From here on this thread plays the CPU that it runs on at the moment, as in a kernel: where threads are more than CPUs, what one
/// has freed is what the next on that CPU gets, while it is still in the CPU's cache.
pub(super) fn play_own_cpu() {
    CPU.set(None);
}

fn runs_on() -> usize {
    // SAFETY: it has no preconditions. Of glibc it is a load (rseq).
    let cpu = unsafe { libc::sched_getcpu() };
    usize::try_from(cpu).unwrap_or(0) % CPUS
}

/// Frames from 1 on; frame 0 is the zero page.
pub(super) struct Machine<'m> {
    memory: NonNull<u8>,
    layout: Layout,
    meta: Box<[PageMeta]>,
    zone: Zone<'m>,
    rcu: &'m ThreadRcu,
}

// SAFETY: the memory is owned, and reached through the operations, whose rules say who may.
unsafe impl Send for Machine<'_> {}
// SAFETY: as above.
unsafe impl Sync for Machine<'_> {}

/// What the books of a zone of so many frames take.
pub(super) fn books(frames: u64) -> Vec<MaybeUninit<u8>> {
    vec![MaybeUninit::uninit(); metadata_size(&[FrameRange::new(1, frames)], &Config::new(CPUS))]
}

impl<'m> Machine<'m> {
    /// `None` if there is no memory.
    pub(super) fn new(frames: u64, books: &'m mut [MaybeUninit<u8>], rcu: &'m ThreadRcu) -> Option<Self> {
        let bytes = usize::try_from(frames).ok()?.checked_mul(PAGE_SIZE as usize)?;
        let layout = Layout::from_size_align(bytes, PAGE_SIZE as usize).ok()?;
        let config = Config { relax: std::thread::yield_now, ..Config::new(CPUS) };
        // SAFETY: these frames are the memory below, which nobody else knows.
        let zone = unsafe { Zone::new(&config, &[FrameRange::new(1, frames)], books) }.ok()?;
        // SAFETY: the size is not 0, or the zone would have had no frames.
        let memory = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        let meta = (0..frames).map(|_| PageMeta::new()).collect();
        let machine = Self { memory, layout, meta, zone, rcu };
        let zero = Block::new(Frame(0), Order::BASE);
        // SAFETY: the zone has not got it, so it is nobody's. It is reserved for good.
        let zero = unsafe { Unique::new(&machine, OwnedBlock::new(zero)) }.into_reserved();
        let reserved = zero.is_ok();
        // What cannot be reserved is not the zone's to take back either.
        std::mem::forget(zero);
        reserved.then_some(machine)
    }

    fn at(&self, frame: Frame) -> NonNull<u8> {
        assert!((frame.0 * PAGE_SIZE) < self.layout.size() as u64, "{frame:?} is outside of memory");
        // SAFETY: within the allocation.
        unsafe { self.memory.add((frame.0 * PAGE_SIZE) as usize) }
    }

    /// Writes to each frame, so that the system has them there before anything is timed.
    pub(super) fn populate(&self) {
        for frame in 1..self.meta.len() as u64 {
            // SAFETY: within the allocation; nothing is made of the frames yet.
            unsafe { self.at(Frame(frame)).write_volatile(1) };
        }
    }

    fn take(&self, order: Order, mobility: Mobility) -> Option<Frame> {
        self.zone.get(cpu(), order, mobility).ok().map(|block| block.into_block().frame)
    }
}

impl Drop for Machine<'_> {
    fn drop(&mut self) {
        // SAFETY: allocated by `new` with this layout.
        unsafe { dealloc(self.memory.as_ptr(), self.layout) };
    }
}

// SAFETY: metadata is one array.
unsafe impl Pages for Machine<'_> {
    fn meta(&self, frame: Frame) -> Option<&PageMeta> {
        self.meta.get(usize::try_from(frame.0).ok()?)
    }

    unsafe fn free(&self, block: OwnedBlock) {
        // It came from the zone, which takes it.
        let given = self.zone.put(cpu(), block);
        debug_assert!(given.is_ok());
    }

    unsafe fn split(&self, block: OwnedBlock, order: Order) {
        let split = self.zone.split(block, order);
        debug_assert!(split.is_ok());
    }
}

// SAFETY: a frame is always the same page of one allocation, which lives as long as the machine.
unsafe impl Memory for Machine<'_> {
    fn table(&self, frame: Frame) -> NonNull<Table> {
        self.at(frame).cast()
    }

    unsafe fn copy(&self, from: Frame, to: Frame, frames: u64) {
        for n in 0..frames {
            // SAFETY: whole frames; nobody else reaches the target, and no program writes to the source here.
            unsafe { self.at(to.add(n)).copy_from_nonoverlapping(self.at(from.add(n)), PAGE_SIZE as usize) };
        }
    }

    unsafe fn clear(&self, frame: Frame) {
        // SAFETY: a whole frame, which nobody else reaches.
        unsafe { self.at(frame).write_bytes(0, PAGE_SIZE as usize) };
    }

    fn relax(&self, tries: u32) {
        if tries < 64 {
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
    }
}

/// A table that waits for its grace period.
#[repr(C)]
struct Retired {
    head: RcuHead,
    frame: Frame,
    machine: *const (),
}

/// # Safety
/// The head is that of a `Retired` that came from a box, of a machine that lives.
unsafe fn give_back(head: NonNull<RcuHead>) {
    // SAFETY: the head is the first field.
    let retired = unsafe { Box::from_raw(head.cast::<Retired>().as_ptr()) };
    // SAFETY: whoever has a machine waits for all callbacks before it goes.
    let machine = unsafe { &*retired.machine.cast::<Machine<'_>>() };
    // SAFETY: the table was the caller's, and nobody sees it any more.
    unsafe { machine.free(OwnedBlock::new(Block::new(retired.frame, Order::BASE))) };
}

// SAFETY: the zone hands out each block once; retired tables wait for a grace period.
unsafe impl Frames for Machine<'_> {
    fn alloc_table(&self) -> Option<Frame> {
        self.take(Order::BASE, Mobility::Unmovable)
    }

    unsafe fn retire_table(&self, frame: Frame) {
        let machine = std::ptr::from_ref(self).cast();
        let retired = Box::into_raw(Box::new(Retired { head: RcuHead::new(), frame, machine }));
        // SAFETY: a box's pointer is not null; it is deferred once, and any thread may give it back.
        unsafe { self.rcu.defer(NonNull::new_unchecked(retired).cast(), give_back) };
    }

    fn alloc_folio(&self, order: Order) -> Option<Frame> {
        self.take(order, Mobility::Movable)
    }
}

// SAFETY: there is no TLB.
unsafe impl Tlb for Machine<'_> {
    type Context = u16;
    fn invalidate_page(&self, _: SpaceId, _: u64) {}
    fn invalidate_range(&self, _: SpaceId, _: Flush) {}
    fn invalidate_space(&self, _: SpaceId) {}
    fn sync(&self) {}
}

impl Rcu for Machine<'_> {
    type Guard<'a>
        = QsbrGuard<'a, Threads>
    where
        Self: 'a;

    fn read_lock(&self) -> Self::Guard<'_> {
        self.rcu.read_lock()
    }
}

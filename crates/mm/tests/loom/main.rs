//! The locks of VMAs in every interleaving that loom makes: `RUSTFLAGS='--cfg loom' cargo test --release --test loom`.
//!
//! Here, what lies behind the VMAs is a cell a page. Operations write to the cells of the pages that they change, a reader who
//! has locked a VMA reads that of its page: loom reports accesses that nothing orders. Memory that is freed is overwritten.
#![cfg(loom)]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod objects;
mod ports;
/// Of the crate, for the module that `ports` has of it.
#[allow(dead_code, reason = "of all that is there it needs little")]
#[path = "../../src/sharded.rs"]
mod sharded;
mod shared;
mod swapping;
#[allow(dead_code, unused_imports, reason = "as above")]
#[path = "../../src/sync.rs"]
mod sync;
mod tiny;
mod words;

use std::alloc::Layout;
use std::cell::RefCell;
use std::ops::Range;
use std::ptr::NonNull;

use isotherm_maple::{Global, NodeAlloc};
use isotherm_mm::*;
use isotherm_rcu::Qsbr;
use isotherm_rcu::model::{Machine, on};
use loom::cell::UnsafeCell;
use loom::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};
use loom::thread;

const PAGE: u64 = 4096;
const FIRST: u64 = 32;
const PAGES: usize = 8;

std::thread_local! {
    /// What was freed in this run: overwritten, and given back before the next.
    static FREED: RefCell<Vec<(NonNull<u8>, Layout)>> = const { RefCell::new(Vec::new()) };
}

struct Overwriting;

// SAFETY: the global allocator's memory, given back later.
unsafe impl NodeAlloc for Overwriting {
    fn allocate(layout: Layout) -> Option<NonNull<u8>> {
        Global::allocate(layout)
    }

    unsafe fn free(memory: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller gives the memory back; it is kept until the next model begins.
        unsafe { memory.write_bytes(0, layout.size()) };
        FREED.with_borrow_mut(|freed| freed.push((memory, layout)));
    }
}

struct Lock(RwLock<()>);

// SAFETY: it is such a lock.
unsafe impl MmapLock for Lock {
    type Read<'a> = RwLockReadGuard<'a, ()>;
    type Write<'a> = RwLockWriteGuard<'a, ()>;

    fn read(&self) -> Self::Read<'_> {
        self.0.read().unwrap()
    }

    fn write(&self) -> Self::Write<'_> {
        self.0.write().unwrap()
    }

    fn relax(&self, _: u32) {
        thread::yield_now();
    }
}

/// A cell a page.
struct Cells([UnsafeCell<u32>; PAGES]);

// SAFETY: loom reports accesses that are not ordered.
unsafe impl Sync for Cells {}
// SAFETY: as above.
unsafe impl Send for Cells {}

impl Cells {
    fn new() -> Self {
        Self(std::array::from_fn(|_| UnsafeCell::new(0)))
    }

    fn write(&self, range: Range<u64>) {
        let within = |page: u64| (page - FIRST).min(PAGES as u64) as usize;
        for cell in &self.0[within(range.start / PAGE)..within(range.end / PAGE)] {
            // SAFETY: loom checks that nobody else is at it.
            cell.with_mut(|cell| unsafe { *cell += 1 });
        }
    }

    fn read(&self, address: u64) -> u32 {
        // SAFETY: loom checks that nobody writes.
        self.0[(address / PAGE - FIRST) as usize].with(|cell| unsafe { *cell })
    }
}

impl Contents for Cells {
    fn unmap(&self, _: &Held<'_>, _: &mut dyn Iterator<Item = VmaInfo>, range: Range<u64>, _: Range<u64>) {
        self.write(range);
    }

    fn zap(&self, _: &Held<'_>, vma: &VmaInfo) {
        self.write(vma.range());
    }

    fn protect(&self, _: &Held<'_>, vma: &VmaInfo) {
        self.write(vma.range());
    }

    fn relocate(&self, _: &Held<'_>, vma: &VmaInfo, to: u64) -> Result<(), Error> {
        let range = vma.range();
        let length = range.end - range.start;
        self.write(range);
        self.write(to..to + length);
        Ok(())
    }

    fn copy(&self, _: &Held<'_>, vmas: &mut dyn Iterator<Item = VmaInfo>, _: &mut Self) -> Result<(), Error> {
        vmas.for_each(|vma| self.write(vma.range()));
        Ok(())
    }
}

struct Model;

impl Platform for Model {
    type Rcu = &'static Qsbr<Machine, 2>;
    type Lock = Lock;
    type Contents = Cells;
    type Alloc = Overwriting;
}

/// The space goes before what it is freed through.
struct World {
    space: Option<AddressSpace<Model>>,
    rcu: *mut Qsbr<Machine, 2>,
}

// SAFETY: `rcu` is used by shared references alone until the last owner drops it, and what it points to is `Sync`.
unsafe impl Send for World {}
// SAFETY: as above.
unsafe impl Sync for World {}

impl World {
    fn space(&self) -> &AddressSpace<Model> {
        self.space.as_ref().unwrap()
    }

    fn rcu(&self) -> &Qsbr<Machine, 2> {
        // SAFETY: it lives until the drop.
        unsafe { &*self.rcu }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        drop(self.space.take());
        // SAFETY: the space is gone, and nobody else has it.
        drop(unsafe { Box::from_raw(self.rcu) });
    }
}

fn read_write(pages: u64) -> MapRequest {
    MapRequest::anonymous(pages * PAGE, Prot::READ | Prot::WRITE)
}

/// Gives back what the model before has freed.
fn free_all() {
    for (memory, layout) in FREED.take() {
        // SAFETY: it came from `Global`, and the model that could find it is over.
        unsafe { Global::free(memory, layout) };
    }
}

/// A stack and three VMAs: pages 0 and 1 (page 0 with anonymous state, that the others then have too), 2 and 3, 5.
fn world(vma_lock: VmaLocking) -> Arc<World> {
    free_all();
    let rcu = Box::into_raw(Box::new(Qsbr::new(Machine)));
    let config = Config {
        lowest: PAGE,
        end: 64 * PAGE,
        top_down_base: 64 * PAGE,
        bottom_up_base: PAGE,
        heap: PAGE,
        stack_guard: 0,
        vma_lock,
        ..Config::X86_64
    };
    // SAFETY: it lives until the drop of the world.
    let space = AddressSpace::new(unsafe { &*rcu }, Lock(RwLock::new(())), Cells::new(), config);
    space.mmap(&read_write(4).at(FIRST * PAGE)).unwrap();
    space.prepare_anon(FIRST * PAGE).unwrap();
    space.mprotect((FIRST + 2) * PAGE, 2 * PAGE, Prot::READ).unwrap();
    let stack = read_write(1).at((FIRST + 5) * PAGE);
    let stack = MapRequest { flags: stack.flags | MapFlags::GROWSDOWN, ..stack };
    space.mmap(&stack).unwrap();
    space.prepare_anon((FIRST + 5) * PAGE).unwrap();
    Arc::new(World { space: Some(space), rcu })
}

/// A reader of one page, who takes the VMA's lock, beside a writer; with each kind of lock.
fn model(page: u64, write: impl Fn(&AddressSpace<Model>) + Copy + Send + Sync + 'static) {
    for vma_lock in [VmaLocking::Sequence, VmaLocking::Counted, VmaLocking::Biased] {
        model_of(vma_lock, page, write);
    }
}

fn model_of(
    vma_lock: VmaLocking,
    page: u64,
    write: impl Fn(&AddressSpace<Model>) + Copy + Send + Sync + 'static,
) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    // Faults are counted in the VMAs, so counting them walks the tree.
    builder.max_branches = 10_000;
    builder.check(move || {
        let world = world(vma_lock);
        let address = (FIRST + page) * PAGE;
        // From the second reader on some go into slots.
        drop(world.space().lock_vma(address));
        let before = world.space().lock_stats().lookups();
        let reader = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                on(1);
                world.rcu().online();
                if let Some(read) = world.space().lock_vma(address) {
                    let info = read.info();
                    assert!(info.range().contains(&address), "the VMA has the address");
                    let contents = world.space().contents().read(address);
                    thread::yield_now();
                    assert_eq!(read.info(), info, "it does not change while it is locked");
                    assert_eq!(world.space().contents().read(address), contents);
                }
                // SAFETY: this CPU reads no more.
                unsafe { world.rcu().offline(1) };
            })
        };
        write(world.space());
        world.rcu().quiescent();
        world.rcu().advance(usize::MAX);
        reader.join().unwrap();
        let stats = world.space().lock_stats();
        assert_eq!(stats.lookups(), before + 1);
        world.rcu().barrier();
    });
}

const READ: Prot = Prot::READ;

#[test]
fn a_reader_against_write_lock_and_unlock() {
    model(2, |space| space.mprotect((FIRST + 2) * PAGE, 2 * PAGE, Prot::EXEC).unwrap());
}

#[test]
fn a_reader_against_two_writes() {
    model(5, |space| {
        space.discard((FIRST + 5) * PAGE, PAGE).unwrap();
        space.discard((FIRST + 5) * PAGE, PAGE).unwrap();
    });
}

#[test]
fn a_reader_against_detach_and_free() {
    model(2, |space| space.munmap((FIRST + 2) * PAGE, 2 * PAGE).unwrap());
}

#[test]
fn a_reader_against_a_vma_in_the_place_of_its_own() {
    model(2, |space| {
        space.munmap((FIRST + 2) * PAGE, 2 * PAGE).unwrap();
        space.mmap(&read_write(1).at((FIRST + 2) * PAGE)).unwrap();
        // A reader of the VMA that was there before would not be waited for.
        space.discard((FIRST + 2) * PAGE, PAGE).unwrap();
    });
}

#[test]
fn a_reader_against_a_split() {
    model(1, |space| space.mprotect((FIRST + 1) * PAGE, PAGE, READ | Prot::EXEC).unwrap());
}

#[test]
fn a_reader_against_a_merge_that_takes_its_vma() {
    model(2, |space| space.mprotect((FIRST + 2) * PAGE, 2 * PAGE, READ | Prot::WRITE).unwrap());
}

#[test]
fn a_reader_against_a_boundary_that_moves_over_it() {
    model(1, |space| space.mprotect((FIRST + 1) * PAGE, PAGE, READ).unwrap());
}

#[test]
fn a_reader_against_a_move() {
    model(2, |space| {
        let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
        space.mremap((FIRST + 2) * PAGE, PAGE, PAGE, flags, (FIRST + 7) * PAGE).unwrap();
    });
}

#[test]
fn a_reader_against_a_stack_that_grows() {
    model(4, |space| space.grow_stack((FIRST + 4) * PAGE).unwrap());
}

#[test]
fn a_reader_against_a_fork() {
    model(0, |space| drop(space.fork(Lock(RwLock::new(())), Cells::new()).unwrap()));
}

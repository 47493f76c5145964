//! Per-VMA locks with real threads: who is refused and why, who waits for whom.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use std::num::NonZeroU64;
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use common::*;
use isotherm_maple::Global;
use isotherm_mm::*;
use isotherm_rcu::Epoch;

fn prepared(space: &Space, at: u64, pages: u64) {
    space.mmap(&anonymous(pages).at(at * PAGE)).unwrap();
    space.prepare_anon(at * PAGE).unwrap();
}

const LOCKINGS: [VmaLocking; 3] = [VmaLocking::Sequence, VmaLocking::Counted, VmaLocking::Biased];

fn locking(vma_lock: VmaLocking) -> Config {
    Config { vma_lock, ..SMALL }
}

#[test]
fn lookups_are_refused_for_the_seeds_reasons() {
    let space = space(SMALL);
    assert!(space.lock_vma(30 * PAGE).is_none(), "nothing is mapped");
    space.mmap(&anonymous(4).at(30 * PAGE)).unwrap();
    assert!(space.lock_vma(30 * PAGE).is_none(), "no page was written to");
    // The fault under mmap_lock prepares the next one.
    space.lock_mmap(30 * PAGE).unwrap().prepare_anon();
    let read = space.lock_vma(30 * PAGE).unwrap();
    assert_eq!(read.info().range(), 30 * PAGE..34 * PAGE);
    drop(read);
    let source = Source::Object { id: NonZeroU64::MIN, offset: 0, rights: Prot::all() };
    space.mmap(&MapRequest { source, ..anonymous(2).at(40 * PAGE) }).unwrap();
    space.prepare_anon(40 * PAGE).unwrap();
    assert!(space.lock_vma(40 * PAGE).is_none(), "an object");
    space.lock_vma(31 * PAGE).unwrap().retry();
    space.lock_vma(31 * PAGE).unwrap().refuse();
    let expected = LockStats {
        success: 1,
        retry: 1,
        access: 1,
        not_mapped: 1,
        object: 1,
        no_anon: 1,
        ..LockStats::default()
    };
    assert_eq!(space.lock_stats(), expected);
    assert_eq!((space.lock_stats().aborts(), space.lock_stats().lookups()), (3, 6));
}

#[test]
fn turned_off_nobody_is_served_or_counted() {
    let space = space(Config { per_vma_locks: false, ..SMALL });
    prepared(&space, 30, 4);
    assert!(space.lock_vma(30 * PAGE).is_none());
    assert_eq!(space.lock_stats(), LockStats::default());
    assert_eq!(space.lock_mmap(30 * PAGE).unwrap().info().range(), 30 * PAGE..34 * PAGE);
}

/// As in Linux since: what a first write needs it makes under the VMA's lock, unless somebody changes VMAs.
#[test]
fn beyond_the_seed_a_vma_that_was_not_written_to_is_served() {
    for vma_lock in [VmaLocking::Counted, VmaLocking::Biased] {
        let space = space(locking(vma_lock));
        space.mmap(&anonymous(4).at(30 * PAGE)).unwrap();
        let read = space.lock_vma(30 * PAGE).unwrap();
        assert!(!read.info().has_anon);
        assert!(read.prepare_anon());
        assert!(read.info().has_anon);
        drop(read);
        space.mprotect(32 * PAGE, 2 * PAGE, Prot::READ).unwrap();
        let [low, high] = [30, 32].map(|page| space.find(page * PAGE).unwrap());
        assert!(low.has_anon && high.has_anon, "{vma_lock:?}: a split has it in both parts");
        let stats = LockStats { success: 1, ..LockStats::default() };
        assert_eq!(space.lock_stats(), stats, "{vma_lock:?}");
    }
}

/// A reader that comes too late for the old VMA finds the new one, or none.
#[test]
fn memory_of_vmas_is_used_again_and_tells_who_is_who() {
    let space = space(locking(VmaLocking::Counted));
    for round in 0..200 {
        let (at, other) = (30 + round % 7, 50 + round % 5);
        prepared(&space, at, 2);
        space.mmap(&anonymous(1).at(other * PAGE)).unwrap();
        assert_eq!(space.lock_vma(at * PAGE).unwrap().info().range(), at * PAGE..(at + 2) * PAGE);
        // More at a time than are kept.
        if round % 50 == 0 {
            for page in 0..64 {
                let prot = if page % 2 == 0 { Prot::READ } else { Prot::READ | Prot::WRITE };
                space.mmap(&MapRequest { prot, ..anonymous(1).at((100 + page) * PAGE) }).unwrap();
            }
            assert!(space.usage().maps >= 64);
            space.munmap(100 * PAGE, 64 * PAGE).unwrap();
        }
        space.munmap(at * PAGE, 2 * PAGE).unwrap();
        assert!(space.lock_vma(at * PAGE).is_none());
        space.munmap(other * PAGE, PAGE).unwrap();
    }
    assert_eq!(space.usage(), Usage::default());
}

#[test]
fn a_writer_waits_for_readers_of_its_vma_alone() {
    LOCKINGS.into_iter().for_each(waits_for_readers);
}

fn waits_for_readers(vma_lock: VmaLocking) {
    let space = space(locking(vma_lock));
    prepared(&space, 30, 4);
    // In some ways only the second reader shows what the lock can do.
    drop(space.lock_vma(30 * PAGE));
    prepared(&space, 40, 4);
    let read = space.lock_vma(30 * PAGE).unwrap();
    // Another VMA, and gaps, are nobody's business.
    space.mprotect(40 * PAGE, PAGE, Prot::READ).unwrap();
    space.munmap(40 * PAGE, 4 * PAGE).unwrap();
    prepared(&space, 50, 4);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            space.mprotect(31 * PAGE, PAGE, Prot::READ).unwrap();
            done.store(true, Ordering::Release);
        });
        // As soon as the writer waits, nobody else is let in.
        while let Some(other) = space.lock_vma(30 * PAGE) {
            drop(other);
            thread::yield_now();
        }
        assert!(!done.load(Ordering::Acquire), "the VMA changed under a reader");
        assert_eq!(read.info().range(), 30 * PAGE..34 * PAGE);
        drop(read);
    });
    assert!(done.load(Ordering::Acquire));
    // All are unlocked with mmap_lock.
    assert_eq!(space.lock_vma(30 * PAGE).unwrap().info().range(), 30 * PAGE..31 * PAGE);
    assert_eq!(space.lock_vma(31 * PAGE).unwrap().info().flags.prot(), Prot::READ);
}

#[test]
fn a_fault_below_a_stack_grows_it() {
    let space = space(SMALL);
    let stack = MapRequest { flags: MapFlags::FIXED | MapFlags::GROWSDOWN, ..anonymous(2).at(60 * PAGE) };
    space.mmap(&stack).unwrap();
    assert!(space.lock_vma(58 * PAGE).is_none());
    assert_eq!(space.lock_mmap(58 * PAGE).unwrap().info().range(), 58 * PAGE..62 * PAGE);
    assert_eq!(space.lock_mmap(70 * PAGE).unwrap_err(), Error::BadAddress);
    assert_eq!(space.lock_vma(58 * PAGE).unwrap().info().range(), 58 * PAGE..62 * PAGE);
}

/// `mmap_lock` that counts its writers.
struct Counted {
    lock: RwLock<()>,
    writers: AtomicU64,
}

struct Counting;

impl Platform for Counting {
    type Rcu = Epoch;
    type Lock = &'static Counted;
    type Contents = ();
    type Alloc = Global;
}

// SAFETY: that of the lock within.
unsafe impl MmapLock for &'static Counted {
    type Read<'a> = std::sync::RwLockReadGuard<'a, ()>;
    type Write<'a> = std::sync::RwLockWriteGuard<'a, ()>;

    fn read(&self) -> Self::Read<'_> {
        self.lock.read().unwrap()
    }

    fn write(&self) -> Self::Write<'_> {
        self.writers.fetch_add(1, Ordering::Relaxed);
        self.lock.write().unwrap()
    }
}

/// Who probes addresses at which nothing is keeps nobody else waiting.
#[test]
fn a_fault_where_nothing_is_mapped_only_reads() {
    static LOCK: Counted = Counted { lock: RwLock::new(()), writers: AtomicU64::new(0) };
    let space = AddressSpace::<Counting>::new(Epoch, &LOCK, (), SMALL);
    space.mmap(&anonymous(4).at(40 * PAGE)).unwrap();
    let stack = MapRequest { flags: MapFlags::FIXED | MapFlags::GROWSDOWN, ..anonymous(2).at(60 * PAGE) };
    space.mmap(&stack).unwrap();
    let writers = || LOCK.writers.load(Ordering::Relaxed);
    let before = writers();
    assert_eq!(space.lock_mmap(30 * PAGE).unwrap_err(), Error::BadAddress, "below memory");
    assert_eq!(space.lock_mmap(70 * PAGE).unwrap_err(), Error::BadAddress, "above all");
    assert_eq!(space.lock_mmap(40 * PAGE).unwrap().info().range(), 40 * PAGE..44 * PAGE);
    assert_eq!(writers(), before);
    assert_eq!(space.lock_mmap(58 * PAGE).unwrap().info().range(), 58 * PAGE..62 * PAGE);
    assert_eq!(writers(), before + 1, "the stack grew");
}

/// Readers lock VMAs wherever they find one, while a writer maps, splits, merges, moves and unmaps. What a reader holds has the
/// address, and stays as it is.
#[test]
fn what_is_locked_does_not_change() {
    LOCKINGS.into_iter().for_each(stays);
}

fn stays(vma_lock: VmaLocking) {
    let rounds = if cfg!(miri) { 30 } else { 3000 };
    let space = space(locking(vma_lock));
    let (stop, looks, held) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        for seed in 1..3u64 {
            let (space, stop, looks, held) = (&space, &stop, &looks, &held);
            scope.spawn(move || {
                let mut random = seed;
                while !stop.load(Ordering::Relaxed) {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let address = (28 + (random >> 33) % 20) * PAGE;
                    looks.fetch_add(1, Ordering::Relaxed);
                    let Some(read) = space.lock_vma(address) else { continue };
                    let info = read.info();
                    assert!(info.range().contains(&address), "{address:#x} in {info:?}");
                    for _ in 0..(random >> 60) {
                        std::hint::spin_loop();
                        // The first write of another may come in between.
                        let now = VmaInfo { has_anon: info.has_anon, ..read.info() };
                        assert_eq!(now, info, "it changed");
                    }
                    held.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for round in 0..rounds {
            let at = 30 + round % 5;
            prepared(&space, at, 8);
            space.mprotect((at + 2) * PAGE, 3 * PAGE, Prot::READ).unwrap();
            space.mprotect((at + 2) * PAGE, 3 * PAGE, Prot::READ | Prot::WRITE).unwrap();
            let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
            space.mremap((at + 1) * PAGE, 2 * PAGE, 2 * PAGE, flags, 40 * PAGE).unwrap();
            space.munmap((at + 4) * PAGE, 3 * PAGE).unwrap();
            if round % 7 == 0 {
                space.munmap(28 * PAGE, 20 * PAGE).unwrap();
            }
        }
        // The writer may be done before the readers ever came to run.
        while !cfg!(miri) && held.load(Ordering::Relaxed) < 1000 {
            prepared(&space, 30, 8);
            thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
    });
    let stats = space.lock_stats();
    assert_eq!(stats.lookups(), looks.load(Ordering::Relaxed), "{stats:?}");
    assert_eq!(stats.success, held.load(Ordering::Relaxed));
}

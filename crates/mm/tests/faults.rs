//! Faults on a machine of ordinary memory: of each kind, by threads beside a mapper, and without frames.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use common::host::*;
use common::{PAGE, SMALL, anonymous};
use isotherm_mm::*;
use isotherm_page::FolioView;
use isotherm_pagetable::X86_64;
use isotherm_pagetable::host::HostMachine;
use isotherm_rcu::Epoch;

#[test]
fn faults_of_each_kind() {
    let machine = HostMachine::new(FRAMES);
    let zero = zero(&machine);
    let space = new_space::<X86_64>(&machine, zero.frame());
    let at = 30 * PAGE;
    space.mmap(&anonymous(4).at(at)).unwrap();
    assert_eq!(word(&machine, &space, at, None), Ok(0));
    assert_eq!(space.contents().resident(), 0, "the zero page");
    assert_eq!(space.lock_stats().no_anon, 1);
    assert_eq!(word(&machine, &space, at, Some(7)), Ok(7));
    assert_eq!(word(&machine, &space, at + PAGE, Some(8)), Ok(8));
    let stats = space.lock_stats();
    assert_eq!((stats.no_anon, stats.success, stats.lookups()), (2, 1, 3));
    assert_eq!(space.contents().resident(), 2);
    // A child has the same pages until one of both writes.
    let child = space.fork(RwLock::new(()), Paged::new(&machine, 2, zero.frame()).unwrap()).unwrap();
    let free = machine.free_frames();
    assert_eq!(word(&machine, &child, at, None), Ok(7));
    assert_eq!(machine.free_frames(), free);
    assert_eq!(word(&machine, &child, at, Some(9)), Ok(9));
    assert_eq!(machine.free_frames(), free - 1);
    assert_eq!(word(&machine, &space, at, None), Ok(7));
    assert_eq!(word(&machine, &space, at, Some(10)), Ok(10));
    assert_eq!(machine.free_frames(), free - 1, "the parent is alone with its page");
    assert_eq!((space.contents().resident(), child.contents().resident()), (2, 2));
    // What may not be done.
    space.mprotect(at, PAGE, Prot::READ).unwrap();
    assert_eq!(space.fault(at, Access::Write), Err(FaultError::NotPermitted));
    assert_eq!(space.fault(at, Access::Execute), Err(FaultError::NotPermitted));
    assert_eq!(space.lock_stats().access, 2);
    assert_eq!(space.fault(at + 8 * PAGE, Access::Read), Err(FaultError::NotMapped));
    let source = Source::Object { id: std::num::NonZeroU64::MIN, offset: 0, rights: Prot::all() };
    assert_eq!(space.mmap(&MapRequest { source, ..anonymous(1) }), Err(Error::NoObject));
}

/// Threads fault in their own parts and in a common one, while one maps, protects, moves and unmaps, and forks.
fn beside_a_mapper(per_vma_locks: bool, vma_lock: VmaLocking) {
    const WORKERS: u64 = 3;
    let rounds = if cfg!(miri) { 3 } else { 3000 };
    let machine = HostMachine::new(FRAMES);
    let zero = zero(&machine);
    let before = machine.free_frames();
    let paged = Paged::new(&machine, 1, zero.frame()).unwrap();
    let config = Config { per_vma_locks, vma_lock, ..SMALL };
    let space: Space<'_> = Space::new(Epoch, RwLock::new(()), paged, config);
    let stop = AtomicBool::new(false);
    let own = |worker: u64| (100 + 40 * worker) * PAGE;
    for worker in 0..WORKERS {
        // A gap between: each has a VMA of its own.
        space.mmap(&anonymous(32).at(own(worker))).unwrap();
    }
    thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS)
            .map(|worker| {
                let (space, machine, stop) = (&space, &machine, &stop);
                scope.spawn(move || {
                    for round in 0.. {
                        for page in 0..32 {
                            let at = own(worker) + page * PAGE;
                            let value = round * 1000 + page + 1;
                            assert_eq!(word(machine, space, at, Some(value)), Ok(value));
                            // Somewhere in the mapper's part; what is found there is found out there.
                            let common = (30 + (round * 7 + page) % 20) * PAGE;
                            let access = if page % 2 == 0 { Access::Write } else { Access::Read };
                            let _ = space.fault(common, access);
                        }
                        for page in 0..32 {
                            let at = own(worker) + page * PAGE;
                            assert_eq!(word(machine, space, at, None), Ok(round * 1000 + page + 1));
                        }
                        space.discard(own(worker), 16 * PAGE).unwrap();
                        assert_eq!(word(machine, space, own(worker), None), Ok(0));
                        if stop.load(Ordering::Relaxed) {
                            break;
                        }
                    }
                })
            })
            .collect();
        for round in 0..rounds {
            let at = 30 + round % 5;
            space.mmap(&anonymous(8).at(at * PAGE)).unwrap();
            let _ = space.fault(at * PAGE, Access::Write);
            space.mprotect((at + 2) * PAGE, 3 * PAGE, Prot::READ).unwrap();
            let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
            space.mremap((at + 1) * PAGE, 2 * PAGE, 2 * PAGE, flags, 42 * PAGE).unwrap();
            space.munmap((at + 4) * PAGE, 3 * PAGE).unwrap();
            if round % 50 == 0 {
                let child = Paged::new(&machine, 2, zero.frame()).unwrap();
                let child = space.fork(RwLock::new(()), child).unwrap();
                assert_eq!(child.usage(), space.usage());
            }
        }
        stop.store(true, Ordering::Relaxed);
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    });
    // At rest: each page is there once, and all that is not free is a page, a table or the zero page.
    let mut pages = Vec::new();
    let mut resident = 0;
    space.for_each(0..u64::MAX, |vma| {
        for at in vma.range().step_by(PAGE as usize) {
            let Ok(frame) = space.contents().access(at, Access::Read) else { continue };
            if frame != zero.frame() {
                let folio = FolioView::of(&machine, frame).unwrap();
                assert_eq!((folio.maps(), folio.refs()), (1, 1), "a page of nobody else's");
                resident += 1;
                pages.push(frame);
            }
        }
    });
    pages.sort();
    pages.dedup();
    assert_eq!(pages.len(), resident, "a page is mapped twice");
    assert_eq!(space.contents().resident(), resident as u64);
    let stats = space.lock_stats();
    if per_vma_locks {
        assert!(stats.success > 0, "{stats:?}");
    } else {
        assert_eq!(stats, LockStats::default());
    }
    space.munmap(SMALL.lowest, SMALL.end - SMALL.lowest).unwrap();
    assert_eq!(space.contents().resident(), 0);
    drop(space);
    assert_eq!(machine.free_frames(), before, "exit frees all");
}

#[test]
fn threads_beside_a_mapper() {
    for vma_lock in [VmaLocking::Sequence, VmaLocking::Counted, VmaLocking::Biased] {
        beside_a_mapper(true, vma_lock);
    }
}

#[test]
fn threads_beside_a_mapper_under_mmap_lock_alone() {
    beside_a_mapper(false, VmaLocking::default());
}

/// A fork makes the parent's pages read-only in as many VMAs as there are, and waits for other CPUs once.
#[test]
fn a_fork_flushes_once() {
    let machine = HostMachine::new(FRAMES);
    let zero = zero(&machine);
    let space = new_space::<X86_64>(&machine, zero.frame());
    for page in (100..200).step_by(2) {
        space.mmap(&anonymous(1).at(page * PAGE)).unwrap();
        space.fault(page * PAGE, Access::Write).unwrap();
    }
    machine.reset_counts();
    let child = Paged::new(&machine, 2, zero.frame()).unwrap();
    let child = space.fork(RwLock::new(()), child).unwrap();
    let counts = machine.counts();
    assert_eq!((counts.tlb_ranges, counts.tlb_syncs, child.contents().resident()), (1, 1, 50));
    machine.reset_counts();
    space.munmap(100 * PAGE, 100 * PAGE).unwrap();
    assert_eq!(machine.counts().tlb_syncs, 1, "so does munmap");
}

/// A program that maps, writes and unmaps a page in each 2 MiB, and then in each GiB, keeps no tables.
#[test]
fn tables_go_with_what_they_map() {
    const HUGE: u64 = 2 << 20;
    let machine = HostMachine::new(FRAMES);
    let zero = zero(&machine);
    let config = Config { end: 1 << 40, ..SMALL };
    let space: Space<'_> =
        Space::new(Epoch, RwLock::new(()), Paged::new(&machine, 1, zero.frame()).unwrap(), config);
    let before = machine.free_frames();
    for at in (1..20).map(|n| n * HUGE).chain((1..20).map(|n| n << 30)) {
        space.mmap(&anonymous(1).at(at)).unwrap();
        space.fault(at, Access::Write).unwrap();
        space.munmap(at, PAGE).unwrap();
        assert_eq!(machine.free_frames(), before, "after the page at {at:#x}");
    }
    // A table that another VMA has pages in stays, and goes with the last.
    for page in [0, 2, 4] {
        space.mmap(&anonymous(1).at(HUGE + page * PAGE)).unwrap();
        assert_eq!(word(&machine, &space, HUGE + page * PAGE, Some(page + 1)), Ok(page + 1));
    }
    assert_eq!(machine.free_frames(), before - 6, "three tables below the root and three pages");
    space.munmap(HUGE + 2 * PAGE, PAGE).unwrap();
    space.munmap(HUGE, PAGE).unwrap();
    assert_eq!(machine.free_frames(), before - 4);
    assert_eq!(word(&machine, &space, HUGE + 4 * PAGE, None), Ok(5));
    let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
    space.mremap(HUGE + 4 * PAGE, PAGE, PAGE, flags, 3 << 30).unwrap();
    assert_eq!(machine.free_frames(), before - 4, "the old tables went, new ones came");
    assert_eq!(word(&machine, &space, 3 << 30, None), Ok(5));
    space.munmap(3 << 30, PAGE).unwrap();
    assert_eq!(machine.free_frames(), before);
}

/// A space ends where its page tables do.
#[test]
fn nothing_is_mapped_beyond_what_the_format_translates() {
    const END: u64 = 1 << 47;
    let machine = HostMachine::new(FRAMES);
    let zero = zero(&machine);
    let config = Config { end: 1 << 48, top_down_base: 1 << 48, ..SMALL };
    let space: Space<'_> =
        Space::new(Epoch, RwLock::new(()), Paged::new(&machine, 1, zero.frame()).unwrap(), config);
    assert_eq!(space.config().end, END);
    assert_eq!(space.mmap(&anonymous(2).at(END - PAGE)), Err(Error::NoSpace));
    let at = space.mmap(&anonymous(2)).unwrap();
    assert_eq!(at, END - 2 * PAGE, "the highest gap");
    assert_eq!(word(&machine, &space, END - 8, Some(7)), Ok(7));
    space.munmap(at, 2 * PAGE).unwrap();
    space.mmap(&anonymous(2).at(at)).unwrap();
    assert_eq!((word(&machine, &space, END - 8, None), space.contents().resident()), (Ok(0), 0));
}

/// A move that fails leaves a neighbour of the target as it was.
#[test]
fn a_move_that_fails_gives_a_neighbour_no_anonymous_state() {
    let machine = HostMachine::new(FRAMES);
    let zero = zero(&machine);
    let config = Config { end: 1 << 40, ..SMALL };
    let space: Space<'_> =
        Space::new(Epoch, RwLock::new(()), Paged::new(&machine, 1, zero.frame()).unwrap(), config);
    let (low, far) = (30 * PAGE, 1 << 30);
    let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
    space.mmap(&anonymous(4).at(low)).unwrap();
    assert_eq!(word(&machine, &space, low, Some(7)), Ok(7));
    space.mremap(low, 4 * PAGE, 4 * PAGE, flags, far).unwrap();
    // What was never written below where it was: it continues there, so both would merge.
    space.mmap(&anonymous(4).at(low - 4 * PAGE)).unwrap();
    machine.set_budget(0, u64::MAX);
    assert_eq!(space.mremap(far, 4 * PAGE, 4 * PAGE, flags, low), Err(Error::NoMemory));
    machine.set_budget(u64::MAX, u64::MAX);
    let beside = space.find(low - PAGE).unwrap();
    assert_eq!((beside.range(), beside.has_anon), (low - 4 * PAGE..low, false));
    assert_eq!(word(&machine, &space, far, None), Ok(7));
    space.mremap(far, 4 * PAGE, 4 * PAGE, flags, low).unwrap();
    assert_eq!(space.find(low).unwrap().range(), low - 4 * PAGE..low + 4 * PAGE);
    assert_eq!(word(&machine, &space, low, None), Ok(7));
}

/// Each allocation of a fault or an operation fails once, and the space goes on.
#[test]
fn without_frames_a_fault_is_an_error_and_the_space_is_usable() {
    let machine = HostMachine::new(FRAMES);
    let zero = zero(&machine);
    let before = machine.free_frames();
    {
        let space = new_space::<X86_64>(&machine, zero.frame());
        space.mmap(&anonymous(4).at(30 * PAGE)).unwrap();
        let mut failures = 0;
        while {
            machine.set_budget(failures, u64::MAX);
            space.fault(30 * PAGE, Access::Read) == Err(FaultError::NoMemory)
        } {
            failures += 1;
        }
        assert_eq!(failures, 2, "three tables below the root: those that were made stay");
        machine.set_budget(u64::MAX, 0);
        assert_eq!(
            space.fault(30 * PAGE, Access::Write),
            Err(FaultError::NoMemory),
            "the copy of the zero page"
        );
        assert_eq!(space.fault(31 * PAGE, Access::Write), Err(FaultError::NoMemory), "a new page");
        assert_eq!(space.contents().resident(), 0);
        machine.set_budget(u64::MAX, u64::MAX);
        for page in 30..34 {
            assert_eq!(word(&machine, &space, page * PAGE, Some(page)), Ok(page));
        }
        // A move to where tables are lacking, which comes back; and a fork.
        let far = 1 << 30;
        let config = Config { end: 1 << 40, ..SMALL };
        let wide: Space<'_> =
            Space::new(Epoch, RwLock::new(()), Paged::new(&machine, 3, zero.frame()).unwrap(), config);
        wide.mmap(&anonymous(4).at(30 * PAGE)).unwrap();
        for page in 30..34 {
            assert_eq!(word(&machine, &wide, page * PAGE, Some(page)), Ok(page));
        }
        let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
        let mut failures = 0;
        while {
            machine.set_budget(failures, u64::MAX);
            let moved = wide.mremap(30 * PAGE, 4 * PAGE, 4 * PAGE, flags, far - 2 * PAGE);
            assert!(matches!(moved, Err(Error::NoMemory) | Ok(_)));
            moved.is_err()
        } {
            failures += 1;
            assert_eq!(wide.usage().total, 4, "what was to be the new place is gone");
            for page in 30..34 {
                assert_eq!(word(&machine, &wide, page * PAGE, None), Ok(page), "{failures}");
            }
            assert_eq!(wide.contents().resident(), 4);
        }
        assert!(failures > 1, "the target spans two tables");
        machine.set_budget(u64::MAX, u64::MAX);
        assert_eq!(word(&machine, &wide, far + PAGE, None), Ok(33));
        let mut failures = 1;
        loop {
            machine.set_budget(failures, u64::MAX);
            let child = Paged::new(&machine, 2, zero.frame());
            let forked = child.and_then(|child| space.fork(RwLock::new(()), child));
            machine.set_budget(u64::MAX, u64::MAX);
            if let Ok(child) = forked {
                assert_eq!(word(&machine, &child, 33 * PAGE, None), Ok(33));
                break;
            }
            failures += 1;
        }
        assert!(failures > 1);
        for page in 30..34 {
            assert_eq!(word(&machine, &space, page * PAGE, Some(2 * page)), Ok(2 * page));
        }
    }
    assert_eq!(machine.free_frames(), before);
}

/// A space that becomes another program's has given back all that it had, and keeps its rules.
#[test]
fn exec_leaves_nothing_of_the_old_program() {
    let machine = HostMachine::new(FRAMES);
    let zero = zero(&machine);
    let mut space = new_space::<X86_64>(&machine, zero.frame());
    let (empty, tables) = (machine.free_frames(), space.contents().tables());
    space.mmap(&anonymous(8).at(30 * PAGE)).unwrap();
    space.brk(space.config().heap + 3 * PAGE);
    for page in 0..8 {
        word(&machine, &space, (30 + page) * PAGE, Some(page)).unwrap();
    }
    let config = *space.config();
    space.exec(RwLock::new(()), Paged::new(&machine, 3, zero.frame()).unwrap());
    assert_eq!((machine.free_frames(), space.contents().tables()), (empty, tables));
    assert_eq!((space.usage(), space.contents().rss()), (Usage::default(), Rss::default()));
    assert_eq!((*space.config(), space.brk(0)), (config, config.heap));
    assert_eq!(space.fault(30 * PAGE, Access::Read), Err(FaultError::NotMapped));
    space.mmap(&anonymous(1).at(30 * PAGE)).unwrap();
    assert_eq!(word(&machine, &space, 30 * PAGE, None), Ok(0), "nothing is left of what it wrote");
}

/// Tables that a space has are those that the machine gave out, whatever was mapped, forked, collapsed and unmapped.
#[test]
fn tables_are_counted_exactly() {
    let machine = HostMachine::new(FRAMES);
    let zero = zero(&machine);
    let free = machine.free_frames();
    let paged = |asid| Paged::new(&machine, asid, zero.frame()).unwrap();
    let wide = Config { end: 1 << 40, ..SMALL };
    let space: Space<'_> = Space::new(Epoch, RwLock::new(()), paged(1), wide);
    let in_use = |space: &Space<'_>| space.contents().tables() + space.contents().resident();
    for page in [30, 700, 1400, 2000] {
        space.mmap(&anonymous(4).at(page * PAGE)).unwrap();
        word(&machine, &space, page * PAGE, Some(page)).unwrap();
        assert_eq!(in_use(&space), free - machine.free_frames(), "page {page}");
    }
    let tables = space.contents().tables();
    let child = space.fork(RwLock::new(()), paged(2)).unwrap();
    assert_eq!(child.contents().tables(), tables);
    assert_eq!(in_use(&space) + tables, free - machine.free_frames());
    drop(child);
    space.munmap(700 * PAGE, 4 * PAGE).unwrap();
    space.munmap(1400 * PAGE, 4 * PAGE).unwrap();
    assert!(space.contents().tables() < tables);
    assert_eq!(in_use(&space), free - machine.free_frames());
}

/// In tables whose first entry is somebody else's, nothing is mapped below it.
#[test]
fn entries_that_are_others_are_left_alone() {
    let machine = HostMachine::new(FRAMES);
    let zero = zero(&machine);
    let free = machine.free_frames();
    // SAFETY: the entry refers to nothing.
    let tables = || unsafe { isotherm_pagetable::AddressSpace::with_entries(&machine, 1, 0, &[0]) }.unwrap();
    let wide = Config { end: 1 << 41, top_down_base: 1 << 41, ..SMALL };
    let contents = Paged::with_tables(tables(), zero.frame(), ()).unwrap();
    let space: Space<'_> = Space::new(Epoch, RwLock::new(()), contents, wide);
    assert_eq!((space.config().lowest, space.contents().tables()), (1 << 39, 1));
    assert_eq!(space.mmap(&anonymous(1).at(30 * PAGE)), Err(Error::TooLow));
    let at = space.mmap(&anonymous(4)).unwrap();
    assert_eq!(word(&machine, &space, at, Some(7)), Ok(7));
    let child = space.fork(RwLock::new(()), Paged::with_tables(tables(), zero.frame(), ()).unwrap()).unwrap();
    assert_eq!((word(&machine, &child, at, None), child.contents().tables()), (Ok(7), 4));
    assert_eq!(child.fault(30 * PAGE, Access::Read), Err(FaultError::NotMapped));
    drop((space, child));
    assert_eq!(machine.free_frames(), free);
}

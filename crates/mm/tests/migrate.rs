//! Pages that move to other frames: they stay what they are for all who map them, and the old frames are free.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, RwLock};
use std::thread;

use common::cpus::*;
use common::files::*;
use common::host::*;
use common::swap::*;
use common::{PAGE, SMALL, anonymous};
use isotherm_mm::*;
use isotherm_page::{FolioKind, FolioView, Frame, Order, Unique, Unused};
use isotherm_pagetable::host::HostMachine;
use isotherm_pagetable::{Arm64Hafdbs, Format, X86_64};
use isotherm_rcu::Epoch;

const AT: u64 = 30 * PAGE;
const HUGE: u64 = 2 << 20;

fn frame<F: Format>(space: &Space<'_, F>, at: u64) -> Frame {
    space.contents().access(at, Access::Read).unwrap()
}

fn block(machine: &HostMachine, order: u8) -> Unique<'_, HostMachine, Unused> {
    machine.take(Order::new(order).unwrap()).unwrap()
}

/// Moves the page of an address to another frame; which.
fn migrate<'m, F: Format + 'm>(
    machine: &'m HostMachine,
    system: &System<'m, F, HostMachine>,
    space: &Space<'m, F>,
    at: u64,
) -> Result<Frame, Kept> {
    let to = block(machine, 0);
    let new = to.frame();
    system.migrate(&(), frame(space, at), to).map(|()| new)
}

fn an_anonymous_page<F: Format>() {
    let (machine, swap) = machine_with_swap(FRAMES, 64);
    let zero = zero(&machine);
    let before = machine.free_frames();
    let system = system::<F>(&machine, &swap);
    let space = space_in(&system, zero.frame());
    space.mmap(&anonymous(8).at(AT)).unwrap();
    for page in 0..8 {
        word(&machine, &space, AT + page * PAGE, Some(page)).unwrap();
    }
    let (free, rss) = (machine.free_frames(), space.contents().rss());
    let old = frame(&space, AT);
    let new = migrate(&machine, &system, &space, AT).unwrap();
    assert_ne!(old, new);
    assert_eq!((frame(&space, AT), machine.free_frames()), (new, free), "the old frame is free");
    assert_eq!((word(&machine, &space, AT, None), space.contents().rss()), (Ok(0), rss));
    // It is this program's alone, as before: a write copies nothing.
    let copies = machine.counts().copies;
    assert_eq!(word(&machine, &space, AT, Some(70)), Ok(70));
    assert_eq!((frame(&space, AT), machine.counts().copies), (new, copies));
    // With all who share it after a fork, and where a child has moved it to.
    let child = fork_in(&space, zero.frame()).unwrap();
    let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
    child.mremap(AT + PAGE, PAGE, PAGE, flags, 60 * PAGE).unwrap();
    let new = migrate(&machine, &system, &child, 60 * PAGE).unwrap();
    assert_eq!((frame(&space, AT + PAGE), frame(&child, 60 * PAGE)), (new, new));
    assert_eq!(system.find(new).unwrap().len(), 2, "it is found there");
    assert_eq!(word(&machine, &child, 60 * PAGE, Some(9)), Ok(9));
    assert_eq!(word(&machine, &space, AT + PAGE, None), Ok(1), "a write is the writer's own");
    // Where nobody may access it, it moves all the same, and stays so.
    let at = AT + 2 * PAGE;
    let hidden = frame(&space, at);
    space.mprotect(at, PAGE, Prot::empty()).unwrap();
    system.migrate(&(), hidden, block(&machine, 0)).unwrap();
    assert_eq!(space.fault(at, Access::Read), Err(FaultError::NotPermitted));
    space.mprotect(at, PAGE, Prot::READ).unwrap();
    assert_eq!(word(&machine, &space, at, None), Ok(2));
    assert_eq!(word(&machine, &space, at, Some(5)), Err(FaultError::NotPermitted));
    // It can be swapped out afterwards, and move once more.
    let new = migrate(&machine, &system, &space, AT + 3 * PAGE).unwrap();
    system.swap_out(new).unwrap();
    assert_eq!(word(&machine, &child, AT + 3 * PAGE, None), Ok(3));
    migrate(&machine, &system, &child, AT + 3 * PAGE).unwrap();
    drop((space, child, system));
    assert_eq!(machine.free_frames(), before);
}

#[test]
fn an_anonymous_page_moves_with_all_who_map_it() {
    an_anonymous_page::<X86_64>();
    an_anonymous_page::<Arm64Hafdbs>();
}

#[test]
fn what_may_not_move_stays() {
    let (machine, swap) = machine_with_swap(FRAMES, 64);
    let zero = zero(&machine);
    let system = system::<X86_64>(&machine, &swap);
    let space = space_in(&system, zero.frame());
    space.mmap(&anonymous(4).at(AT)).unwrap();
    for page in 0..4 {
        word(&machine, &space, AT + page * PAGE, Some(page)).unwrap();
    }
    let old = frame(&space, AT);
    let free = machine.free_frames();
    // Somebody refers to it, or has pinned it.
    let reference = isotherm_page::Folio::get(&machine, old).unwrap();
    assert_eq!(migrate(&machine, &system, &space, AT), Err(Kept::InUse));
    let pinned = reference.pin();
    assert_eq!(migrate(&machine, &system, &space, AT), Err(Kept::InUse));
    drop(pinned);
    // The block is of another order; the frame is no page, or is nobody's here.
    assert_eq!(system.migrate(&(), old, block(&machine, 1)), Err(Kept::OtherBlock));
    let elsewhere = HostMachine::new(64);
    let nobodys = machine.folio(Order::BASE, FolioKind::Anon).unwrap();
    assert_eq!(system.migrate(&(), nobodys.head(), block(&machine, 0)), Err(Kept::NotFound));
    assert_eq!(system.migrate(&(), zero.frame(), block(&machine, 0)), Err(Kept::NotFound));
    assert_eq!(system.migrate(&(), Frame(u64::MAX), block(&machine, 0)), Err(Kept::NotFound));
    drop((nobodys, elsewhere));
    assert_eq!((frame(&space, AT), machine.free_frames()), (old, free), "what was to be used is free");
    assert_eq!(word(&machine, &space, AT, Some(6)), Ok(6));
    // A page that is locked moves, and is locked there.
    space.mlock(AT, PAGE, false).unwrap();
    let new = migrate(&machine, &system, &space, AT).unwrap();
    assert_eq!(system.swap_out(new), Err(Kept::InUse));
    space.munlock(AT, PAGE).unwrap();
    system.swap_out(new).unwrap();
    assert_eq!(word(&machine, &space, AT, None), Ok(6));
    // What was given up is there all the same, and needed from then on.
    space.lazy_free(AT + PAGE, PAGE).unwrap();
    let new = migrate(&machine, &system, &space, AT + PAGE).unwrap();
    system.swap_out(new).unwrap();
    assert_eq!((word(&machine, &space, AT + PAGE, None), system.stats().lazy_freed), (Ok(1), 0));
}

#[test]
fn a_large_folio_moves_as_a_whole() {
    let (machine, swap) = machine_with_swap(FRAMES, 16);
    let zero = zero(&machine);
    let before = machine.free_frames();
    let system = system::<X86_64>(&machine, &swap);
    let wide = Config { end: 1 << 40, ..SMALL };
    for order in [4, 9] {
        let folios = Folios { always: Order::new(order).unwrap(), advised: Order::new(order).unwrap() };
        let contents = Paged::in_system(&system, 1, zero.frame(), ()).unwrap().with_folios(folios);
        let space: Space<'_> = Space::new(Epoch, RwLock::new(()), contents, wide);
        let pages = 1 << order;
        space.mmap(&anonymous(pages).at(2 * HUGE)).unwrap();
        for page in 0..pages {
            word(&machine, &space, 2 * HUGE + page * PAGE, Some(page)).unwrap();
        }
        let (old, free) = (frame(&space, 2 * HUGE), machine.free_frames());
        assert_eq!(FolioView::of(&machine, old).unwrap().order().get(), order);
        assert_eq!(system.migrate(&(), old.add(1), block(&machine, 0)), Err(Kept::NotFound));
        let to = block(&machine, order);
        let new = to.frame();
        system.migrate(&(), old, to).unwrap();
        // A huge leaf is one still: no table was needed.
        assert_eq!((machine.free_frames(), machine.counts().splits), (free, 0));
        assert_eq!(space.contents().rss().anon, pages);
        for page in 0..pages {
            let at = 2 * HUGE + page * PAGE;
            assert_eq!((frame(&space, at), word(&machine, &space, at, None)), (new.add(page), Ok(page)));
        }
        drop(space);
    }
    drop(system);
    assert_eq!(machine.free_frames(), before);
}

#[test]
fn a_page_of_an_object_moves() {
    let (machine, swap) = machine_with_swap(FRAMES, 64);
    let zero = zero(&machine);
    let before = machine.free_frames();
    let system = system::<X86_64>(&machine, &swap);
    let files = Files::<X86_64>::new(&machine, &[(ObjectKind::File, 8), (ObjectKind::Shmem, 8)]);
    let new = || {
        let contents = Paged::in_system(&system, 1, zero.frame(), Arc::clone(&files)).unwrap();
        FileSpace::new(Epoch, RwLock::new(()), contents, SMALL)
    };
    let (one, two) = (new(), new());
    let at = |page: u64| page * PAGE + WORD;
    for (space, first) in [(&one, 40), (&two, 60)] {
        space.mmap(&object(1, 0, 8, true, first)).unwrap();
        space.mmap(&object(2, 0, 8, true, first + 8)).unwrap();
        for page in 0..16 {
            word(&machine, space, at(first + page), None).unwrap();
        }
    }
    // A page of the file that is written to, a clean one, and one of shared memory.
    assert_eq!(word(&machine, &one, at(41), Some(7)), Ok(7));
    assert_eq!(word(&machine, &one, at(48), Some(8)), Ok(8));
    let free = machine.free_frames();
    let frame = |page: u64| one.contents().access(at(page), Access::Read).unwrap();
    for page in [41, 42, 48] {
        let (old, to) = (frame(page), block(&machine, 0));
        let new = to.frame();
        system.migrate(&*files, old, to).unwrap();
        assert_eq!(machine.free_frames(), free, "the old frame is free");
        let found = [word(&machine, &one, at(page), None), word(&machine, &two, at(page + 20), None)];
        let expected = match page {
            41 => 7,
            42 => 1002,
            _ => 8,
        };
        assert_eq!(found, [Ok(expected); 2]);
        assert_eq!((frame(page), new), (new, two.contents().access(at(page + 20), Access::Read).unwrap()));
    }
    assert_eq!((files.file(1).cached(), files.file(2).cached()), (8, 8));
    // Dirty is what was, and nothing else.
    files.file(1).write_back(0..8).unwrap();
    assert_eq!((files.file(1).backing().get(1), files.file(1).backing().io().1), (7, 1));
    // One that somebody refers to stays.
    let held = isotherm_page::Folio::get(&machine, frame(43)).unwrap();
    assert_eq!(system.migrate(&*files, held.head(), block(&machine, 0)), Err(Kept::InUse));
    drop(held);
    word(&machine, &one, at(43), None).unwrap();
    // Without the registry it is not found.
    assert_eq!(system.migrate(&(), frame(43), block(&machine, 0)), Err(Kept::NotFound));
    assert_eq!(files.file(1).evict(0..8), 8);
    assert_eq!(word(&machine, &two, at(63), None), Ok(1003));
    drop((one, two, system, files));
    assert_eq!(machine.free_frames(), before);
}

/// While programs write, fork and are moved about from below, nothing is lost, and at rest all is counted.
#[test]
#[cfg_attr(miri, ignore = "thousands of rounds")]
fn nothing_is_lost_beside_programs() {
    let (machine, swap) = machine_with_swap(FRAMES, 64);
    let machine = Cpus::new(machine);
    let (cpu, zero) = (&machine, zero(&machine.host));
    let before = machine.host.free_frames();
    let system: System<'_, X86_64, _> = System::new(cpu, FRAMES, Some(swap.area.clone())).unwrap();
    let space = cpu_space(&system, zero.frame());
    space.mmap(&anonymous(64).at(AT)).unwrap();
    let (done, moved) = (AtomicBool::new(false), AtomicU64::new(0));
    let first = AT / PAGE;
    thread::scope(|scope| {
        let below = scope.spawn(|| {
            let mut page = 0;
            while !done.load(Ordering::Relaxed) {
                page = (page + 7) % 64;
                if let Ok(frame) = space.contents().access((first + page) * PAGE, Access::Read)
                    && let Some(to) = cpu.take(Order::BASE)
                    && system.migrate(&(), frame, to).is_ok()
                {
                    moved.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        let workers: Vec<_> = (0..2)
            .map(|n| {
                let (space, zero) = (&space, zero.frame());
                scope.spawn(move || {
                    for round in 1..2000_u64 {
                        let page = first + n * 32 + round % 32;
                        let value = round << 1 | n;
                        assert_eq!(cpu_word(cpu, space, page, Some(value)), Ok(value));
                        thread::yield_now();
                        assert_eq!(cpu_word(cpu, space, page, None), Ok(value));
                        if round % 100 == 0 {
                            let child = cpu_fork(space, zero).unwrap();
                            assert_eq!(cpu_word(cpu, &child, page, None), Ok(value));
                            assert_eq!(cpu_word(cpu, &child, page, Some(1)), Ok(1));
                            assert_eq!(cpu_word(cpu, space, page, None), Ok(value));
                        }
                    }
                })
            })
            .collect();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        done.store(true, Ordering::Relaxed);
        below.join().unwrap();
    });
    assert!(moved.into_inner() > 0);
    assert_eq!(space.contents().rss().anon, 64);
    drop((space, system));
    assert_eq!(machine.host.free_frames(), before);
}

/// Written after it was given up, and made clean by a move that came to nothing: it was dropped.
#[test]
fn what_was_written_after_it_was_given_up_is_there_if_it_cannot_move() {
    let (machine, swap) = machine_with_swap(FRAMES, 16);
    // They outlive what is done while the page is copied.
    let machine: &'static Cpus = Box::leak(Box::new(Cpus::new(machine)));
    let zero = Box::leak(Box::new(zero(&machine.host))).frame();
    let system: System<'_, X86_64, _> = System::new(machine, FRAMES, Some(swap.area.clone())).unwrap();
    let space = Arc::new(cpu_space(&system, zero));
    space.mmap(&anonymous(2).at(AT)).unwrap();
    let page = AT / PAGE;
    cpu_word(machine, &space, page, Some(5)).unwrap();
    let old = space.contents().access(AT, Access::Read).unwrap();
    space.lazy_free(AT, PAGE).unwrap();
    cpu_word(machine, &space, page, Some(77)).unwrap();
    let writer = Arc::clone(&space);
    *machine.copied.lock().unwrap() = Some(Box::new(move || {
        cpu_word(machine, &writer, page, Some(78)).unwrap();
    }));
    assert_eq!(system.migrate(&(), old, machine.take(Order::BASE).unwrap()), Err(Kept::InUse));
    assert_eq!(space.contents().access(AT, Access::Read).unwrap(), old);
    // The write that came between is there, and so it is if nobody writes any more.
    system.swap_out(old).unwrap();
    assert_eq!(cpu_word(machine, &space, page, None), Ok(78));
}

/// A page that is locked or unlocked while it moves is, afterwards, what the last call said.
#[test]
#[cfg_attr(miri, ignore = "thousands of rounds")]
fn what_is_locked_while_it_moves_is_known_afterwards() {
    let (machine, swap) = machine_with_swap(FRAMES, 64);
    let zero = zero(&machine);
    let before = machine.free_frames();
    let system = system::<X86_64>(&machine, &swap);
    let files = Files::<X86_64>::new(&machine, &[(ObjectKind::File, 8)]);
    let contents = Paged::in_system(&system, 1, zero.frame(), Arc::clone(&files)).unwrap();
    let space = FileSpace::new(Epoch, RwLock::new(()), contents, SMALL);
    space.mmap(&anonymous(1).at(AT)).unwrap();
    space.mmap(&object(1, 0, 1, true, AT / PAGE + 1)).unwrap();
    let there = |at| {
        word(&machine, &space, at + WORD, None).unwrap();
        space.contents().access(at, Access::Read).unwrap()
    };
    word(&machine, &space, AT, Some(3)).unwrap();
    for round in 0..4000_u64 {
        let (at, locked) = (AT + round % 2 * PAGE, round % 4 < 2);
        let (old, to) = (there(at), block(&machine, 0));
        let start = Barrier::new(2);
        thread::scope(|scope| {
            let (system, start, files) = (&system, &start, &files);
            scope.spawn(move || {
                start.wait();
                // Perhaps it does not move, if it is used just then.
                let _ = system.migrate(&**files, old, to);
            });
            start.wait();
            for _ in 0..round % 64 {
                std::hint::spin_loop();
            }
            if locked { space.mlock(at, PAGE, false) } else { space.munlock(at, PAGE) }.unwrap();
        });
        // What is locked does not leave; of a file's page that is who evicts by age.
        let now = there(at);
        if at == AT {
            let left = system.swap_out(now);
            assert_eq!(left, if locked { Err(Kept::InUse) } else { Ok(()) }, "round {round}");
            assert_eq!(word(&machine, &space, at, None), Ok(3));
        } else {
            assert_eq!(system.is_locked(&*files, now), locked, "round {round}");
        }
    }
    drop((space, system, files));
    assert_eq!(machine.free_frames(), before);
}

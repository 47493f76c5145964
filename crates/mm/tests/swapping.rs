//! Threads that use their memory while it is swapped out by advice and from below, mapped, moved, unmapped and forked: what is
//! written is found again, and at rest counts, reverse maps and slots are exact.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use common::cpus::*;
use common::host::{FRAMES, zero};
use common::swap::machine_with_swap;
use common::{PAGE, SMALL, anonymous};
use isotherm_mm::*;
use isotherm_page::{FolioView, Frame};
use isotherm_pagetable::{VirtAddr, X86_64};

const ROUNDS: u64 = if cfg!(miri) { 3 } else { 1500 };
const WORKERS: u64 = 3;
/// Pages of each worker's own.
const EACH: u64 = 16;
/// Pages that a child has in common with its parent.
const COMMON: u64 = 60;

/// Maps, moves, unmaps and forks.
fn map(space: &CpuSpace<'_>, zero: Frame, cpu: &Cpus, round: u64) {
    let at = 30 + round % 5;
    space.mmap(&anonymous(8).at(at * PAGE)).unwrap();
    let _ = space.fault(at * PAGE, Access::Write);
    space.mprotect((at + 2) * PAGE, 3 * PAGE, Prot::READ).unwrap();
    let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
    space.mremap((at + 1) * PAGE, 2 * PAGE, 2 * PAGE, flags, 42 * PAGE).unwrap();
    space.munmap((at + 4) * PAGE, 3 * PAGE).unwrap();
    if round.is_multiple_of(20) {
        let child = cpu_fork(space, zero).unwrap();
        for page in COMMON..COMMON + 4 {
            assert_eq!(cpu_word(cpu, &child, page, None), Ok(page));
        }
        assert_eq!(cpu_word(cpu, &child, COMMON, Some(round)), Ok(round));
        drop(child);
    }
}

#[test]
fn nothing_is_lost_and_counts_are_exact() {
    let (machine, swap) = machine_with_swap(FRAMES, 1024);
    let machine = Cpus::new(machine);
    let cpu = &machine;
    let zero = zero(&machine.host);
    let before = machine.host.free_frames();
    let system: System<'_, X86_64, _> = System::new(cpu, FRAMES, Some(swap.area.clone())).unwrap();
    let first = cpu_space(&system, zero.frame());
    let own = |worker: u64| 100 + 40 * worker;
    first.mmap(&anonymous(4).at(COMMON * PAGE)).unwrap();
    for page in COMMON..COMMON + 4 {
        cpu_word(cpu, &first, page, Some(page)).unwrap();
    }
    for worker in 0..WORKERS {
        first.mmap(&anonymous(EACH).at(own(worker) * PAGE)).unwrap();
    }
    let second = cpu_fork(&first, zero.frame()).unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS)
            .map(|worker| {
                let (spaces, done) = ([&first, &second], &done);
                scope.spawn(move || {
                    for round in 1.. {
                        for (n, space) in (0..).zip(spaces) {
                            for page in own(worker)..own(worker) + EACH {
                                let value = round * 10_000 + page * 10 + n;
                                assert_eq!(cpu_word(cpu, space, page, Some(value)), Ok(value));
                            }
                            let _ = space.fault((30 + round % 20) * PAGE, Access::Write);
                        }
                        for (n, space) in (0..).zip(spaces) {
                            for page in own(worker)..own(worker) + EACH {
                                assert_eq!(
                                    cpu_word(cpu, space, page, None),
                                    Ok(round * 10_000 + page * 10 + n)
                                );
                            }
                            assert_eq!(
                                cpu_word(cpu, space, COMMON + round % 4, None),
                                Ok(COMMON + round % 4)
                            );
                        }
                        if round.is_multiple_of(8) {
                            spaces[0].page_out(own(worker) * PAGE, EACH * PAGE).unwrap();
                        }
                        if done.load(Ordering::Relaxed) {
                            return;
                        }
                    }
                })
            })
            .collect();
        let (system, done_ref) = (&system, &done);
        scope.spawn(move || {
            let mut left = 0;
            for frame in (1..FRAMES.min(600)).cycle() {
                left += u64::from(system.swap_out(Frame(frame)).is_ok());
                if done_ref.load(Ordering::Relaxed) {
                    break;
                }
                if frame % 16 == 0 {
                    thread::yield_now();
                }
            }
            assert!(left > 0, "pages leave");
        });
        for round in 0..ROUNDS {
            map(if round.is_multiple_of(3) { &first } else { &second }, zero.frame(), cpu, round);
        }
        done.store(true, Ordering::Relaxed);
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    });
    // At rest: what is resident is found, and counted.
    for space in [&first, &second] {
        let mut anon = 0;
        space.for_each(0..u64::MAX, |vma| {
            for at in vma.range().step_by(PAGE as usize) {
                let Ok(frame) = space.contents().access(at, Access::Read) else { continue };
                if frame == zero.frame() {
                    continue;
                }
                anon += 1;
                let folio = FolioView::of(&machine, frame).unwrap();
                let places = system.find(frame).unwrap();
                assert!(places.contains(&(space.contents().id(), VirtAddr(at))), "{at:#x}: {places:?}");
                assert_eq!((places.len() as u32, folio.refs()), (folio.maps(), folio.maps()));
            }
        });
        assert_eq!(space.contents().rss().anon, anon);
    }
    let swap_entries = |space: &CpuSpace<'_>| space.contents().rss().swap;
    let held: u64 = (1..=u64::from(swap.area.slots()))
        .map(|swap_entry| u64::from(swap.area.swap_count(swap_entry)))
        .sum();
    assert_eq!(swap_entries(&first) + swap_entries(&second), held, "each swap entry is of one entry");
    for space in [&first, &second] {
        space.munmap(SMALL.lowest, SMALL.end - SMALL.lowest).unwrap();
        assert_eq!(space.contents().rss(), Rss::default());
    }
    assert_eq!(swap.area.used(), 0);
    drop((first, second, system));
    assert_eq!(machine.host.free_frames(), before, "exit frees all");
}

/// Threads that write more than there is memory for: each fault makes room, by what is swapped out of all.
#[test]
fn threads_in_more_memory_than_there_is() {
    const PAGES: u64 = 80;
    let rounds = if cfg!(miri) { 1 } else { 60 };
    let (machine, swap) = machine_with_swap(64, 1024);
    let machine = Cpus::new(machine);
    let cpu = &machine;
    let zero = zero(&machine.host);
    let before = machine.host.free_frames();
    let system: System<'_, X86_64, _> = System::new(cpu, 64, Some(swap.area.clone())).unwrap();
    let space = cpu_space(&system, zero.frame());
    for worker in 0..WORKERS {
        space.mmap(&anonymous(PAGES).at((100 + 100 * worker) * PAGE)).unwrap();
    }
    thread::scope(|scope| {
        for worker in 0..WORKERS {
            let (space, system) = (&space, &system);
            scope.spawn(move || {
                for round in 0..rounds {
                    for page in (0..PAGES).map(|page| 100 + 100 * worker + page) {
                        assert_eq!(
                            cpu_word(cpu, space, page, Some(round * 1000 + page)),
                            Ok(round * 1000 + page)
                        );
                    }
                    for page in (0..PAGES).map(|page| 100 + 100 * worker + page) {
                        assert_eq!(cpu_word(cpu, space, page, None), Ok(round * 1000 + page));
                    }
                    if round % 8 == worker {
                        system.age();
                    }
                }
            });
        }
    });
    let rss = space.contents().rss();
    assert_eq!((rss.anon + rss.swap, rss.swap), (WORKERS * PAGES, swap.area.used()));
    assert!(rss.swap > 0 && system.stats().refaults_anon > 0, "{rss:?} {:?}", system.stats());
    drop((space, system));
    assert_eq!((machine.host.free_frames(), swap.area.used()), (before, 0));
}

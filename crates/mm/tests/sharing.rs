//! Threads that fault on files and shared memory, in two spaces, while others write back, evict, change sizes, map, move, unmap
//! and fork: what is written is not lost, and at rest counts and reverse maps are exact.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use std::collections::BTreeSet;
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use common::files::*;
use common::host::{FRAMES, zero};
use common::{PAGE, SMALL};
use isotherm_mm::ObjectKind::{File, Shmem};
use isotherm_mm::*;
use isotherm_page::{FolioKind, FolioView, Frame};
use isotherm_pagetable::X86_64;
use isotherm_pagetable::host::HostMachine;

const ROUNDS: u64 = if cfg!(miri) { 3 } else { 1500 };
const WORKERS: u64 = 3;
/// Pages of the file that a worker alone writes to.
const EACH: u64 = 4;
/// Where the file is mapped, in pages: with shared writes, and privately; and where shared memory is.
const SHARED: u64 = 100;
const PRIVATE: u64 = 150;
const MEMORY: u64 = 200;

/// An access of a CPU. Whoever takes pages away waits until it is over, as a flush of the TLB does; faults come at any time.
fn word(
    (machine, gate): (&HostMachine, &RwLock<()>),
    space: &FileSpace<'_>,
    page: u64,
    write: Option<u64>,
) -> Result<u64, FaultError> {
    let access = if write.is_some() { Access::Write } else { Access::Read };
    loop {
        {
            let _gate = gate.read().unwrap();
            if let Ok(frame) = space.contents().access(page * PAGE, access) {
                let at = frame.address() + WORD;
                if let Some(value) = write {
                    machine.write(at, value).unwrap();
                }
                return Ok(machine.read(at).unwrap());
            }
        }
        space.fault(page * PAGE, access)?;
    }
}

/// The pages that are there, by kind, and where they are.
fn walk(machine: &HostMachine, space: &FileSpace<'_>, zero: Frame) -> (Rss, BTreeSet<(u64, u64, u64)>) {
    let (mut rss, mut places) = (Rss::default(), BTreeSet::new());
    space.for_each(0..u64::MAX, |vma| {
        for at in vma.range().step_by(PAGE as usize) {
            let Ok(frame) = space.contents().access(at, Access::Read) else { continue };
            if frame == zero {
                continue;
            }
            if FolioView::of(machine, frame).unwrap().kind() == FolioKind::Anon {
                rss.anon += 1;
                continue;
            }
            let (id, pgoff) = vma.object.unwrap();
            places.insert((id.get(), pgoff + (at - vma.start) / PAGE, at));
            if id.get() == 1 { rss.file += 1 } else { rss.shmem += 1 }
        }
    });
    (rss, places)
}

/// Maps, protects, moves, unmaps and forks.
fn map<'m>(
    machine: &'m HostMachine,
    files: &std::sync::Arc<Files<'m, X86_64>>,
    space: &FileSpace<'m>,
    zero: Frame,
    round: u64,
) {
    let (at, shared) = (30 + round % 5, round.is_multiple_of(2));
    space.mmap(&object(1 + round % 2, round % 7, 8, shared, at)).unwrap();
    let _ = space.fault(at * PAGE, Access::Write);
    let _ = space.fault((at + 1) * PAGE, Access::Read);
    space.mprotect((at + 2) * PAGE, 3 * PAGE, Prot::READ).unwrap();
    let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
    space.mremap((at + 1) * PAGE, 2 * PAGE, 2 * PAGE, flags, 42 * PAGE).unwrap();
    space.munmap((at + 4) * PAGE, 3 * PAGE).unwrap();
    if round.is_multiple_of(20) {
        let child = space.fork(RwLock::new(()), paged(machine, files, 3, zero).unwrap()).unwrap();
        let _ = child.fault(PRIVATE * PAGE, Access::Write);
        drop(child);
    }
}

#[test]
fn nothing_is_lost_and_counts_are_exact() {
    let machine = HostMachine::new(FRAMES);
    let zero = zero(&machine);
    let before = machine.free_frames();
    let files = Files::new(&machine, &[(File, WORKERS * EACH), (Shmem, 16)]);
    let gate = RwLock::new(());
    let first = file_space(&machine, &files, zero.frame());
    for (id, shared, at) in [(1, true, SHARED), (1, false, PRIVATE), (2, true, MEMORY)] {
        first.mmap(&object(id, 0, 16, shared, at)).unwrap();
    }
    let second = first.fork(RwLock::new(()), paged(&machine, &files, 2, zero.frame()).unwrap()).unwrap();
    let (done, cpu) = (AtomicBool::new(false), (&machine, &gate));
    let value = |round: u64, index: u64| round * 1000 + index;
    let rounds: Vec<u64> = thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS)
            .map(|worker| {
                let (first, second, done) = (&first, &second, &done);
                scope.spawn(move || {
                    for round in 1.. {
                        for index in worker * EACH..(worker + 1) * EACH {
                            let written = value(round, index);
                            assert_eq!(word(cpu, first, SHARED + index, Some(written)), Ok(written));
                            assert_eq!(word(cpu, second, SHARED + index, None), Ok(written));
                            // There is no copy of it but for a moment, below.
                            assert_eq!(word(cpu, first, PRIVATE + index, None), Ok(written));
                            let _ = word(cpu, second, MEMORY + (round + index) % 16, Some(round));
                            let common = (30 + (round * 7 + index) % 20) * PAGE;
                            let _ = second
                                .fault(common, if index % 2 == 0 { Access::Write } else { Access::Read });
                        }
                        if round.is_multiple_of(16) {
                            let own = (PRIVATE + worker * EACH) * PAGE;
                            let _ = word(cpu, first, PRIVATE + worker * EACH, Some(round));
                            first.discard(own, EACH * PAGE).unwrap();
                        }
                        if done.load(Ordering::Relaxed) {
                            return round;
                        }
                    }
                    unreachable!()
                })
            })
            .collect();
        let (files, done) = (&files, &done);
        scope.spawn(move || {
            for round in 0.. {
                {
                    let _gate = cpu.1.write().unwrap();
                    match round % 4 {
                        0 | 1 => files.file(1).write_back(round % 7..64).unwrap(),
                        2 => drop(files.file(1).evict(0..64)),
                        _ => files.file(2).resize(4 + round % 13),
                    }
                }
                if done.load(Ordering::Relaxed) {
                    break;
                }
                thread::yield_now();
            }
        });
        for round in 0..ROUNDS {
            map(&machine, files, if round.is_multiple_of(3) { &first } else { &second }, zero.frame(), round);
        }
        done.store(true, Ordering::Relaxed);
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    let mut expected = BTreeSet::new();
    for (asid, space) in [(1, &first), (2, &second)] {
        let (rss, places) = walk(&machine, space, zero.frame());
        assert_eq!(space.contents().rss(), rss);
        expected.extend(places.into_iter().map(|(id, index, at)| (asid, id, index, at)));
    }
    let mut found = BTreeSet::new();
    for id in [1, 2] {
        for index in 0..16 {
            files
                .file(id)
                .mappings(index, |space, at| assert!(found.insert((space.context, id, index, at.0))));
        }
    }
    assert_eq!(found, expected, "what reverse maps find is what is mapped");
    files.file(1).write_back(0..64).unwrap();
    for index in 0..WORKERS * EACH {
        let last = value(rounds[(index / EACH) as usize], index);
        assert_eq!(files.file(1).backing().get(index), last, "page {index}");
    }
    for space in [&first, &second] {
        space.munmap(SMALL.lowest, SMALL.end - SMALL.lowest).unwrap();
        assert_eq!(space.contents().rss(), Rss::default());
    }
    let cached = files.file(1).cached();
    assert_eq!((files.file(1).evict(0..64), files.file(1).cached()), (cached, 0));
    drop((first, second, files));
    assert_eq!(machine.free_frames(), before, "exit frees all");
}

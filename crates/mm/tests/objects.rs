//! Files and shared memory, one rule at a time: dirty and write-back, copies, the end of an object, the reverse map, failures.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Barrier, RwLock};

use common::files::*;
use common::host::{FRAMES, word, zero};
use common::{Failing, PAGE, SMALL, mappings};
use isotherm_mm::ObjectKind::{File, Shmem};
use isotherm_mm::*;
use isotherm_pagetable::host::HostMachine;
use isotherm_pagetable::{Arm64Software, Format, X86_64};

/// The word of a page.
const fn at(page: u64) -> u64 {
    page * PAGE + WORD
}

fn rss(anon: u64, file: u64, shmem: u64) -> Rss {
    Rss { anon, file, shmem, swap: 0 }
}

/// Runs on two formats: one whose hardware sets the dirty bit, one whose software does.
macro_rules! on_both {
    ($($name:ident: $test:ident;)*) => {$(
        #[test]
        fn $name() {
            $test::<X86_64>();
            $test::<Arm64Software>();
        }
    )*};
}

on_both! {
    what_is_written_is_written_back_once: dirty_pages;
    a_private_mapping_has_copies_of_its_own: private_copies;
    all_who_share_memory_see_it_and_a_child_does_too: shared_memory;
    beyond_the_end_of_an_object_is_nothing: truncation;
    pages_are_found_by_the_reverse_map_wherever_they_were_moved: reverse_map;
    a_storage_that_fails_loses_nothing: failing_storage;
    without_frames_or_memory_the_space_is_usable: without_memory;
}

fn dirty_pages<F: Format>() {
    let machine = HostMachine::new(FRAMES);
    let zero = zero(&machine);
    let before = machine.free_frames();
    let files = Files::<F>::new(&machine, &[(File, 8)]);
    let space = file_space(&machine, &files, zero.frame());
    let file = files.file(1);
    space.mmap(&object(1, 2, 4, true, 30)).unwrap();
    assert_eq!(word(&machine, &space, at(30), None), Ok(1002));
    assert_eq!((space.lock_stats().object, space.lock_stats().success), (1, 0), "as in the seed");
    assert_eq!((space.contents().rss(), file.cached(), file.backing().io()), (rss(0, 1, 0), 1, (1, 0)));
    space.msync(30 * PAGE, 4 * PAGE, MsyncFlags::SYNC).unwrap();
    assert_eq!(file.backing().io(), (1, 0), "nothing was written to");
    // A first read leaves the page read-only; the first write is seen.
    assert_eq!(word(&machine, &space, at(30), Some(7)), Ok(7));
    assert_eq!(word(&machine, &space, at(31), Some(8)), Ok(8));
    assert_eq!(file.backing().get(2), 1002);
    space.msync(30 * PAGE, 4 * PAGE, MsyncFlags::ASYNC).unwrap();
    assert_eq!(file.backing().io(), (2, 0));
    space.msync(30 * PAGE, PAGE, MsyncFlags::SYNC).unwrap();
    assert_eq!((file.backing().io(), file.backing().get(2)), ((2, 1), 7), "only what was asked for");
    space.msync(30 * PAGE, 4 * PAGE, MsyncFlags::SYNC).unwrap();
    assert_eq!((file.backing().io(), file.backing().get(3)), ((2, 2), 8));
    // Clean again: the next write is seen again, also after what is permitted was taken away and given.
    space.mprotect(30 * PAGE, 4 * PAGE, Prot::READ).unwrap();
    assert_eq!(word(&machine, &space, at(30), Some(9)), Err(FaultError::NotPermitted));
    space.mprotect(30 * PAGE, 4 * PAGE, Prot::READ | Prot::WRITE).unwrap();
    assert_eq!(word(&machine, &space, at(30), Some(9)), Ok(9));
    file.write_back(0..8).unwrap();
    assert_eq!((file.backing().io(), file.backing().get(2)), ((2, 3), 9));
    // What was written through a mapping that is gone is not lost.
    assert_eq!(word(&machine, &space, at(30), Some(10)), Ok(10));
    space.munmap(30 * PAGE, 4 * PAGE).unwrap();
    assert_eq!(file.evict(0..8), 1, "one page is clean");
    file.write_back(0..8).unwrap();
    assert_eq!((file.backing().io(), file.backing().get(2)), ((2, 4), 10));
    assert_eq!((file.evict(0..8), file.cached(), space.contents().rss()), (1, 0, rss(0, 0, 0)));
    // By `write`.
    file.with_page(5, true, |frame| machine.write(frame.address() + WORD, 55).unwrap()).unwrap();
    file.write_back(0..8).unwrap();
    assert_eq!(file.backing().get(5), 55);
    drop((space, files));
    assert_eq!(machine.free_frames(), before);
}

fn private_copies<F: Format>() {
    let machine = HostMachine::new(FRAMES);
    let zero = zero(&machine);
    let files = Files::<F>::new(&machine, &[(File, 8)]);
    let space = file_space(&machine, &files, zero.frame());
    let file = files.file(1);
    space.mmap(&object(1, 0, 4, false, 30)).unwrap();
    space.mmap(&object(1, 0, 4, true, 40)).unwrap();
    assert_eq!(word(&machine, &space, at(30), None), Ok(1000));
    assert_eq!(word(&machine, &space, at(31), None), Ok(1001));
    // As long as there is no copy, what is written to the file is seen.
    assert_eq!(word(&machine, &space, at(40), Some(1)), Ok(1));
    assert_eq!(word(&machine, &space, at(30), None), Ok(1));
    assert_eq!(space.contents().rss(), rss(0, 3, 0));
    assert_eq!(word(&machine, &space, at(30), Some(2)), Ok(2));
    assert_eq!(word(&machine, &space, at(32), Some(3)), Ok(3), "without a read before");
    assert_eq!(space.contents().rss(), rss(2, 2, 0));
    assert_eq!(word(&machine, &space, at(40), None), Ok(1));
    // Copies are nobody else's business: the file has none of them, and reclaim leaves them.
    file.write_back(0..8).unwrap();
    assert_eq!((file.backing().get(0), file.backing().get(2)), (1, 1002));
    assert_eq!(file.evict(0..8), 3);
    assert_eq!((word(&machine, &space, at(30), None), space.contents().rss()), (Ok(2), rss(2, 0, 0)));
    // A child shares copies until one of both writes; pages of the file come with them.
    assert_eq!(word(&machine, &space, at(31), None), Ok(1001));
    let child = space.fork(RwLock::new(()), paged(&machine, &files, 2, zero.frame()).unwrap()).unwrap();
    assert_eq!(child.contents().rss(), rss(2, 1, 0));
    assert_eq!(word(&machine, &child, at(30), Some(4)), Ok(4));
    assert_eq!(word(&machine, &child, at(31), Some(5)), Ok(5));
    assert_eq!(child.contents().rss(), rss(3, 0, 0));
    assert_eq!(word(&machine, &space, at(30), None), Ok(2));
    assert_eq!(word(&machine, &space, at(31), None), Ok(1001));
    // `MADV_DONTNEED` gives the file's page back.
    space.discard(30 * PAGE, PAGE).unwrap();
    assert_eq!((word(&machine, &space, at(30), None), space.contents().rss()), (Ok(1), rss(1, 2, 0)));
    // A second write goes under the VMA's lock only where no object is.
    assert_eq!(space.lock_stats().success, 0);
}

fn shared_memory<F: Format>() {
    let machine = HostMachine::new(FRAMES);
    let zero = zero(&machine);
    let before = machine.free_frames();
    let files = Files::<F>::new(&machine, &[(Shmem, 8)]);
    let space = file_space(&machine, &files, zero.frame());
    space.mmap(&object(1, 0, 8, true, 30)).unwrap();
    assert_eq!(word(&machine, &space, at(30), None), Ok(0));
    assert_eq!(word(&machine, &space, at(31), Some(7)), Ok(7));
    assert_eq!(space.contents().rss(), rss(0, 0, 2));
    let child = space.fork(RwLock::new(()), paged(&machine, &files, 2, zero.frame()).unwrap()).unwrap();
    assert_eq!(child.contents().rss(), rss(0, 0, 0), "found again by faults");
    assert_eq!(word(&machine, &child, at(31), Some(8)), Ok(8));
    assert_eq!(word(&machine, &child, at(30), Some(9)), Ok(9));
    assert_eq!((word(&machine, &space, at(30), None), word(&machine, &space, at(31), None)), (Ok(9), Ok(8)));
    // There is nowhere to write it to: it stays.
    space.msync(30 * PAGE, 8 * PAGE, MsyncFlags::SYNC).unwrap();
    assert_eq!((files.file(1).evict(0..8), files.file(1).cached()), (0, 2));
    drop((space, child));
    assert_eq!(files.file(1).cached(), 2, "as long as the object");
    drop(files);
    assert_eq!(machine.free_frames(), before);
}

fn truncation<F: Format>() {
    let machine = HostMachine::new(FRAMES);
    let zero = zero(&machine);
    let files = Files::<F>::new(&machine, &[(File, 4)]);
    let space = file_space(&machine, &files, zero.frame());
    let file = files.file(1);
    space.mmap(&object(1, 0, 8, true, 30)).unwrap();
    space.mmap(&object(1, 1, 4, false, 40)).unwrap();
    assert_eq!(word(&machine, &space, at(33), Some(3)), Ok(3));
    assert_eq!(word(&machine, &space, at(34), Some(3)), Err(FaultError::Bus));
    for page in 40..43 {
        assert_eq!(word(&machine, &space, at(page), Some(page)), Ok(page));
    }
    assert_eq!(space.contents().rss(), rss(3, 1, 0));
    file.resize(2);
    file.backing().truncate(2);
    assert_eq!((space.contents().rss(), file.pages()), (rss(1, 0, 0), 2), "copies beyond the end go too");
    assert_eq!(word(&machine, &space, at(33), None), Err(FaultError::Bus));
    assert_eq!(word(&machine, &space, at(41), None), Err(FaultError::Bus));
    assert_eq!(word(&machine, &space, at(40), None), Ok(40));
    file.resize(8);
    assert_eq!(word(&machine, &space, at(33), None), Ok(0));
    assert_eq!(word(&machine, &space, at(37), Some(7)), Ok(7));
}

fn reverse_map<F: Format>() {
    let machine = HostMachine::new(FRAMES);
    let zero = zero(&machine);
    let files = Files::<F>::new(&machine, &[(File, 16)]);
    let space = file_space(&machine, &files, zero.frame());
    let file = files.file(1);
    let found = |index: u64| {
        let mut pages = Vec::new();
        file.mappings(index, |id, at| pages.push((id.context, at.0 / PAGE)));
        pages.sort();
        pages
    };
    space.mmap(&object(1, 0, 8, true, 30)).unwrap();
    for page in 30..38 {
        assert_eq!(word(&machine, &space, at(page), Some(page)), Ok(page));
    }
    assert_eq!(found(3), [(1, 33)]);
    // VMAs that split and merge are the same mappings.
    space.mprotect(32 * PAGE, 2 * PAGE, Prot::READ).unwrap();
    assert_eq!((mappings(&space).len(), found(3)), (3, vec![(1, 33)]));
    let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
    space.mremap(33 * PAGE, 3 * PAGE, 3 * PAGE, flags, 60 * PAGE).unwrap();
    assert_eq!(
        (found(2), found(3), found(5), found(6)),
        (vec![(1, 32)], vec![(1, 60)], vec![(1, 62)], vec![(1, 36)])
    );
    // A hole in what is mapped; a copy of a mapping; one that grows.
    space.munmap(61 * PAGE, PAGE).unwrap();
    assert_eq!((found(4), found(5)), (vec![], vec![(1, 62)]));
    let copy = space.mremap(36 * PAGE, 0, 2 * PAGE, RemapFlags::MAYMOVE, 0).unwrap() / PAGE;
    assert_eq!(word(&machine, &space, at(copy), None), Ok(36));
    assert_eq!(found(6), [(1, 36), (1, copy)]);
    space.mremap(36 * PAGE, 2 * PAGE, 4 * PAGE, RemapFlags::empty(), 0).unwrap();
    assert_eq!((word(&machine, &space, at(39), None), found(9)), (Ok(1009), vec![(1, 39)]));
    let child = space.fork(RwLock::new(()), paged(&machine, &files, 2, zero.frame()).unwrap()).unwrap();
    assert_eq!(word(&machine, &child, at(62), None), Ok(35));
    assert_eq!(found(5), [(1, 62), (2, 62)]);
    // Made clean everywhere at once.
    file.write_back(0..16).unwrap();
    assert_eq!(word(&machine, &child, at(62), Some(5)), Ok(5));
    assert_eq!(word(&machine, &space, at(62), None), Ok(5));
    file.write_back(0..16).unwrap();
    assert_eq!(file.backing().get(5), 5);
    assert_eq!(file.evict(5..6), 1);
    assert_eq!(found(5), []);
    drop(child);
    assert_eq!(word(&machine, &space, at(62), None), Ok(5));
    assert_eq!(found(5), [(1, 62)]);
    // What was there before is there no more, though the same page is mapped at the same place.
    space.mmap(&object(1, 5, 1, true, 62)).unwrap();
    assert_eq!(found(5), []);
    assert_eq!(word(&machine, &space, at(62), None), Ok(5));
    assert_eq!(found(5), [(1, 62)]);
    space.munmap(SMALL.lowest, SMALL.end - SMALL.lowest).unwrap();
    assert!((0..16).all(|index| found(index).is_empty()));
    assert_eq!(space.contents().rss(), rss(0, 0, 0));
}

/// What a page was when it was read from the disk does not count if the page, or the file, has changed before it is in memory.
#[test]
fn what_is_read_too_late_is_read_again() {
    let machine = HostMachine::new(FRAMES);
    let zero = zero(&machine);
    let files = Files::<X86_64>::new(&machine, &[(File, 8)]);
    let space = file_space(&machine, &files, zero.frame());
    let file = files.file(1);
    space.mmap(&object(1, 0, 8, true, 30)).unwrap();
    let meanwhile = |page: u64, act: &dyn Fn()| {
        let barrier = Arc::new(Barrier::new(2));
        *file.backing().pause.lock().unwrap() = Some(Arc::clone(&barrier));
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| word(&machine, &space, at(page), None));
            barrier.wait();
            act();
            barrier.wait();
            reader.join().unwrap()
        })
    };
    let got = meanwhile(32, &|| {
        file.with_page(2, true, |frame| machine.write(frame.address() + WORD, 7).unwrap()).unwrap();
        file.write_back(0..8).unwrap();
        assert_eq!(file.evict(0..8), 1);
    });
    assert_eq!(got, Ok(7), "written, written back and evicted meanwhile");
    let got = meanwhile(33, &|| {
        file.resize(1);
        file.backing().truncate(1);
        file.resize(8);
    });
    assert_eq!(got, Ok(0), "cut off meanwhile");
    let got = meanwhile(34, &|| file.resize(1));
    assert_eq!(got, Err(FaultError::Bus));
}

fn failing_storage<F: Format>() {
    let machine = HostMachine::new(FRAMES);
    let zero = zero(&machine);
    let files = Files::<F>::new(&machine, &[(File, 4)]);
    let space = file_space(&machine, &files, zero.frame());
    let file = files.file(1);
    let fails = |fails| file.backing().fails.store(fails, Ordering::Relaxed);
    space.mmap(&object(1, 0, 4, true, 30)).unwrap();
    fails(true);
    assert_eq!(space.fault(at(30), Access::Read), Err(FaultError::Bus));
    assert_eq!(file.cached(), 0);
    fails(false);
    assert_eq!(word(&machine, &space, at(30), Some(7)), Ok(7));
    fails(true);
    assert_eq!(space.msync(30 * PAGE, PAGE, MsyncFlags::SYNC), Err(Error::Io));
    assert_eq!((file.evict(0..4), file.backing().get(0)), (0, 1000), "it is dirty still");
    fails(false);
    assert_eq!(space.msync(30 * PAGE, PAGE, MsyncFlags::SYNC), Ok(()));
    assert_eq!(file.backing().get(0), 7);
    // Other errors of `msync`.
    let sync = MsyncFlags::SYNC;
    assert_eq!(space.msync(30 * PAGE + 1, PAGE, sync), Err(Error::Invalid));
    assert_eq!(space.msync(30 * PAGE, PAGE, sync | MsyncFlags::ASYNC), Err(Error::Invalid));
    assert_eq!(word(&machine, &space, at(30), Some(8)), Ok(8));
    assert_eq!(space.msync(28 * PAGE, 8 * PAGE, sync), Err(Error::Hole));
    assert_eq!(file.backing().get(0), 8, "what is mapped is written all the same");
    space.mlock(30 * PAGE, PAGE, true).unwrap();
    assert_eq!(space.msync(30 * PAGE, PAGE, MsyncFlags::INVALIDATE), Err(Error::Busy));
}

/// Each allocation fails once: frames, tables, VMAs and nodes.
fn without_memory<F: Format>() {
    let machine = HostMachine::new(FRAMES);
    let zero = zero(&machine);
    let before = machine.free_frames();
    {
        let files = Files::<F>::new(&machine, &[(File, 8)]);
        let space = file_space(&machine, &files, zero.frame());
        let file = files.file(1);
        space.mmap(&object(1, 0, 4, false, 30)).unwrap();
        let repeat = |what: &str, fault: &dyn Fn() -> Result<(), FaultError>| {
            for tables in 0.. {
                for folios in 0..4 {
                    machine.set_budget(tables, folios);
                    let done = fault();
                    machine.set_budget(u64::MAX, u64::MAX);
                    if done.is_ok() {
                        assert!(tables + folios > 0, "{what} needs memory");
                        return;
                    }
                    assert_eq!(done, Err(FaultError::NoMemory), "{what}");
                    assert_eq!(space.contents().rss().anon, 0, "{what}");
                }
            }
        };
        repeat("a page of a file and its tables", &|| space.fault(at(30), Access::Read));
        repeat("a copy", &|| space.fault(at(30), Access::Write));
        assert_eq!(space.contents().rss(), rss(1, 0, 0));
        assert_eq!(word(&machine, &space, at(31), None), Ok(1001));
        // What changes where the object is mapped fails as a whole.
        space.mmap(&object(1, 4, 4, true, 40)).unwrap();
        for page in 40..44 {
            assert_eq!(word(&machine, &space, at(page), None), Ok(964 + page));
        }
        type Act<'a, 'm, F> = &'a dyn Fn(&FileSpace<'m, F>) -> Result<(), Error>;
        let fixed = RemapFlags::MAYMOVE | RemapFlags::FIXED;
        let acts: [(&str, Act<'_, '_, F>); 4] = [
            ("mmap", &|space| space.mmap(&object(1, 0, 2, true, 35)).map(drop)),
            ("mmap in the middle", &|space| space.mmap(&object(1, 0, 1, true, 41)).map(drop)),
            ("munmap in the middle", &|space| space.munmap(32 * PAGE, PAGE)),
            ("mremap", &|space| space.mremap(42 * PAGE, PAGE, PAGE, fixed, 50 * PAGE).map(drop)),
        ];
        for (what, act) in acts {
            let (maps, rss) = (mappings(&space), space.contents().rss());
            let mut failures = 0;
            loop {
                Failing::after(failures);
                let done = act(&space);
                Failing::after(u64::MAX);
                if done.is_ok() {
                    break;
                }
                assert_eq!(done, Err(Error::NoMemory), "{what}");
                assert_eq!((mappings(&space), space.contents().rss()), (maps.clone(), rss), "{what}");
                failures += 1;
            }
            assert!(failures > 0, "{what} needs memory");
        }
        let mut places = Vec::new();
        file.mappings(6, |_, at| places.push(at.0 / PAGE));
        assert_eq!(places, [50]);
        // A fork that fails leaves no mapping of the child's behind.
        for tables in 0.. {
            machine.set_budget(tables, u64::MAX);
            let child = paged(&machine, &files, 2, zero.frame());
            let forked = child.and_then(|child| space.fork(RwLock::new(()), child));
            machine.set_budget(u64::MAX, u64::MAX);
            if let Ok(child) = forked {
                assert_eq!(word(&machine, &child, at(31), None), Ok(1001));
                assert!(tables > 1);
                break;
            }
        }
        for failures in 0.. {
            let child = paged(&machine, &files, 2, zero.frame()).unwrap();
            Failing::after(failures);
            let forked = space.fork(RwLock::new(()), child);
            Failing::after(u64::MAX);
            if forked.is_ok() {
                break;
            }
        }
        file.mappings(1, |id, _| assert_eq!(id.context, 1));
        file.write_back(0..8).unwrap();
        let cached = file.cached();
        assert_eq!((file.evict(0..8), space.contents().rss()), (cached, rss(1, 0, 0)));
    }
    assert_eq!(machine.free_frames(), before);
}

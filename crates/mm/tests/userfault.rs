//! Faults that somebody else resolves: rules, a post-copy and a snapshot by threads, and fault-around.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use std::collections::BTreeMap;
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;

use common::files::*;
use common::host::{FRAMES, new_space, word, zero};
use common::{Failing, PAGE, SMALL, anonymous, mappings};
use isotherm_mm::*;
use isotherm_pagetable::X86_64;
use isotherm_pagetable::host::HostMachine;

const AT: u64 = 30 * PAGE;

#[test]
fn missing_pages_are_somebody_elses_until_they_are_filled() {
    let machine = HostMachine::new(FRAMES);
    let zero = zero(&machine);
    let space = new_space::<X86_64>(&machine, zero.frame());
    space.mmap(&anonymous(8).at(AT)).unwrap();
    assert_eq!(word(&machine, &space, AT, Some(5)), Ok(5));
    assert_eq!(space.register(AT, 9 * PAGE, UserFaults::MISSING), Err(Error::Hole));
    assert_eq!(space.register(AT, 4 * PAGE, UserFaults::MINOR), Err(Error::Invalid));
    assert_eq!(space.register(AT, 4 * PAGE, UserFaults::empty()), Err(Error::Invalid));
    space.register(AT, 4 * PAGE, UserFaults::MISSING).unwrap();
    // What is there is not missing; it takes mmap_lock all the same, for the reason that is counted.
    assert_eq!(word(&machine, &space, AT, None), Ok(5));
    for access in [Access::Read, Access::Write] {
        assert_eq!(space.fault(AT + PAGE, access), Err(FaultError::Missing));
    }
    assert_eq!(space.lock_stats().user, 2);
    space.fill(AT + PAGE, false, |frame| machine.write(frame.address(), 7).unwrap()).unwrap();
    assert_eq!(word(&machine, &space, AT + PAGE, None), Ok(7));
    assert_eq!(word(&machine, &space, AT + PAGE, Some(8)), Ok(8));
    assert_eq!(space.fill(AT + PAGE, false, |_| {}), Err(Error::Exists));
    space.fill_zeros(AT + 2 * PAGE).unwrap();
    assert_eq!(word(&machine, &space, AT + 2 * PAGE, None), Ok(0));
    assert_eq!(word(&machine, &space, AT + 2 * PAGE, Some(9)), Ok(9));
    assert_eq!(space.contents().resident(), 3);
    // Given back, a page is missing again; beyond the range nothing is.
    space.discard(AT + PAGE, PAGE).unwrap();
    assert_eq!(space.fault(AT + PAGE, Access::Read), Err(FaultError::Missing));
    assert_eq!(word(&machine, &space, AT + 5 * PAGE, Some(1)), Ok(1));
    assert_eq!(space.fill(AT + 5 * PAGE, false, |_| {}), Err(Error::BadAddress));
    assert_eq!(space.fill(AT + PAGE, true, |_| {}), Err(Error::BadAddress), "no marks here");
    // A child's faults are its own, and so are those of what is moved.
    let child = space.fork(RwLock::new(()), Paged::new(&machine, 2, zero.frame()).unwrap()).unwrap();
    assert_eq!(word(&machine, &child, AT + 3 * PAGE, Some(1)), Ok(1));
    space
        .mremap(AT + 2 * PAGE, 2 * PAGE, 2 * PAGE, RemapFlags::MAYMOVE | RemapFlags::FIXED, AT + 40 * PAGE)
        .unwrap();
    assert_eq!(word(&machine, &space, AT + 40 * PAGE, None), Ok(9));
    assert_eq!(word(&machine, &space, AT + 41 * PAGE, Some(1)), Ok(1));
    space.unregister(AT, 2 * PAGE).unwrap();
    assert_eq!(word(&machine, &space, AT + PAGE, None), Ok(0));
    assert!(mappings(&space).iter().all(|vma| !vma.flags.intersects(VmFlags::USER)));
}

#[test]
fn writes_to_marked_pages_are_reported_and_reads_are_not() {
    let machine = HostMachine::new(FRAMES);
    let zero = zero(&machine);
    let space = new_space::<X86_64>(&machine, zero.frame());
    space.mmap(&anonymous(8).at(AT)).unwrap();
    for page in 0..4 {
        word(&machine, &space, AT + page * PAGE, Some(page + 1)).unwrap();
    }
    assert_eq!(space.write_protect(AT, PAGE, true), Err(Error::BadAddress), "not registered");
    space.register(AT, 8 * PAGE, UserFaults::WRITE_PROTECT).unwrap();
    let write = |at, value| word(&machine, &space, at, Some(value));
    assert_eq!(write(AT, 11), Ok(11), "nothing is marked yet");
    space.write_protect(AT, 6 * PAGE, true).unwrap();
    for page in 0..6 {
        let at = AT + page * PAGE;
        assert_eq!(write(at, 20), Err(FaultError::WriteProtected), "also where nothing is yet");
        assert!(word(&machine, &space, at, None).is_ok());
        assert_eq!(write(at, 20), Err(FaultError::WriteProtected));
    }
    assert_eq!(write(AT + 6 * PAGE, 20), Ok(20));
    // Permissions that come and go do not take the marks away, nor does giving the page back.
    space.mprotect(AT, 3 * PAGE, Prot::READ).unwrap();
    space.mprotect(AT, 3 * PAGE, Prot::READ | Prot::WRITE).unwrap();
    assert_eq!(write(AT + PAGE, 20), Err(FaultError::WriteProtected));
    space.discard(AT + PAGE, PAGE).unwrap();
    assert_eq!(write(AT + PAGE, 20), Err(FaultError::WriteProtected));
    space.write_protect(AT + PAGE, PAGE, false).unwrap();
    assert_eq!(write(AT + PAGE, 20), Ok(20));
    assert_eq!(write(AT + 2 * PAGE, 20), Err(FaultError::WriteProtected));
    // Unmapped and mapped anew, registered anew, or moved, it is marked no more.
    space.munmap(AT + 2 * PAGE, PAGE).unwrap();
    space.mmap(&anonymous(1).at(AT + 2 * PAGE)).unwrap();
    space.register(AT + 2 * PAGE, PAGE, UserFaults::WRITE_PROTECT).unwrap();
    assert_eq!(write(AT + 2 * PAGE, 20), Ok(20));
    space.register(AT + 3 * PAGE, PAGE, UserFaults::WRITE_PROTECT).unwrap();
    assert_eq!(write(AT + 3 * PAGE, 20), Ok(20));
    space.mremap(AT + 4 * PAGE, PAGE, PAGE, RemapFlags::MAYMOVE | RemapFlags::FIXED, AT + 40 * PAGE).unwrap();
    assert_eq!(write(AT + 40 * PAGE, 20), Ok(20));
    // A page may come marked.
    space.register(AT + 5 * PAGE, PAGE, UserFaults::all() - UserFaults::MINOR).unwrap();
    space.discard(AT + 5 * PAGE, PAGE).unwrap();
    space.fill(AT + 5 * PAGE, true, |frame| machine.write(frame.address(), 3).unwrap()).unwrap();
    assert_eq!(word(&machine, &space, AT + 5 * PAGE, None), Ok(3));
    assert_eq!(write(AT + 5 * PAGE, 4), Err(FaultError::WriteProtected));
    space.write_protect(AT + 5 * PAGE, PAGE, false).unwrap();
    assert_eq!(write(AT + 5 * PAGE, 4), Ok(4));
}

#[test]
fn what_shared_memory_has_already_is_a_minor_fault() {
    let machine = HostMachine::new(FRAMES);
    let zero = zero(&machine);
    let files = Files::<X86_64>::new(&machine, &[(ObjectKind::Shmem, 8), (ObjectKind::File, 8)]);
    let space = file_space(&machine, &files, zero.frame());
    space.mmap(&object(1, 0, 8, true, 30)).unwrap();
    space.mmap(&object(2, 0, 8, true, 60)).unwrap();
    assert_eq!(space.register(60 * PAGE, PAGE, UserFaults::MISSING), Err(Error::Invalid), "a file");
    space.register(AT, 8 * PAGE, UserFaults::MISSING | UserFaults::MINOR).unwrap();
    assert_eq!(space.fault(AT, Access::Read), Err(FaultError::Missing));
    assert_eq!(space.map_cached(AT), Err(Error::BadAddress));
    // Another fills the memory, who has it mapped elsewhere.
    files.file(1).with_page(0, true, |frame| machine.write(frame.address(), 5).unwrap()).unwrap();
    assert_eq!(space.fault(AT, Access::Write), Err(FaultError::Minor));
    space.map_cached(AT).unwrap();
    assert_eq!(space.map_cached(AT), Err(Error::Exists));
    assert_eq!(word(&machine, &space, AT, Some(6)), Ok(6));
    space.fill(AT + PAGE, false, |frame| machine.write(frame.address(), 7).unwrap()).unwrap();
    assert_eq!(word(&machine, &space, AT + PAGE, None), Ok(7));
    files.file(1).with_page(1, false, |frame| assert_eq!(machine.read(frame.address()), Some(7))).unwrap();
    assert_eq!(space.contents().rss(), Rss { shmem: 2, ..Rss::default() });
    // What a private mapping is filled with is nobody else's.
    space.mmap(&object(1, 2, 2, false, 50)).unwrap();
    let private = 50 * PAGE;
    assert_eq!(space.register(private, PAGE, UserFaults::MINOR), Err(Error::Invalid));
    space.register(private, 2 * PAGE, UserFaults::MISSING).unwrap();
    assert_eq!(space.fault(private, Access::Read), Err(FaultError::Missing));
    space.fill(private, false, |frame| machine.write(frame.address(), 9).unwrap()).unwrap();
    assert_eq!(word(&machine, &space, private, Some(10)), Ok(10));
    assert_eq!((files.file(1).cached(), space.contents().rss().anon), (2, 1));
}

/// A program runs on the new host while its memory comes over: each page is asked for once it is missing, by whichever thread.
#[test]
fn a_post_copy_by_threads_brings_each_page_once() {
    const PAGES: u64 = 64;
    let machine = HostMachine::new(FRAMES);
    let zero = zero(&machine);
    let space = new_space::<X86_64>(&machine, zero.frame());
    space.mmap(&anonymous(PAGES).at(100 * PAGE)).unwrap();
    space.register(100 * PAGE, PAGES * PAGE, UserFaults::MISSING).unwrap();
    let (ask, asked) = channel::<u64>();
    let brought = thread::scope(|scope| {
        for thread in 0..2 {
            let (space, machine, ask) = (&space, &machine, ask.clone());
            scope.spawn(move || {
                for n in 0..PAGES {
                    let page = if thread == 0 { n } else { PAGES - 1 - n };
                    let at = (100 + page) * PAGE;
                    loop {
                        match word(machine, space, at, None) {
                            Ok(value) => break assert_eq!(value, 1000 + page),
                            Err(FaultError::Missing) => {
                                ask.send(at).unwrap();
                                thread::yield_now();
                            }
                            Err(why) => panic!("{why}"),
                        }
                    }
                }
            });
        }
        drop(ask);
        let mut brought = 0;
        for at in asked {
            let page = at / PAGE - 100;
            match space.fill(at, false, |frame| machine.write(frame.address(), 1000 + page).unwrap()) {
                Ok(()) => brought += 1,
                Err(why) => assert_eq!(why, Error::Exists),
            }
        }
        brought
    });
    assert_eq!((brought, space.contents().resident()), (PAGES, PAGES));
}

/// What a snapshot has of each page is what was there when all was marked, whatever is written meanwhile.
#[test]
fn a_snapshot_has_the_state_of_one_moment() {
    const PAGES: u64 = 32;
    let machine = HostMachine::new(FRAMES);
    let zero = zero(&machine);
    let space = new_space::<X86_64>(&machine, zero.frame());
    let base = 100 * PAGE;
    space.mmap(&anonymous(PAGES).at(base)).unwrap();
    for page in 0..PAGES {
        word(&machine, &space, base + page * PAGE, Some(page)).unwrap();
    }
    space.register(base, PAGES * PAGE, UserFaults::WRITE_PROTECT).unwrap();
    space.write_protect(base, PAGES * PAGE, true).unwrap();
    let snapshot = std::sync::Mutex::new(BTreeMap::new());
    let save = |at: u64| {
        // Under the lock, or the page could be saved after another thread was let on.
        let mut snapshot = snapshot.lock().unwrap();
        if let std::collections::btree_map::Entry::Vacant(entry) = snapshot.entry(at) {
            entry.insert(word(&machine, &space, at, None).unwrap());
            space.write_protect(at, PAGE, false).unwrap();
        }
    };
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for thread in 1..3 {
            let (space, machine, save, stop) = (&space, &machine, &save, &stop);
            scope.spawn(move || {
                for n in 0.. {
                    let at = base + (n * 7 * thread) % PAGES * PAGE;
                    while word(machine, space, at, Some(1000 + n)) == Err(FaultError::WriteProtected) {
                        save(at);
                    }
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
        }
        for page in 0..PAGES {
            save(base + page * PAGE);
        }
        stop.store(true, Ordering::Relaxed);
    });
    let expected: BTreeMap<u64, u64> = (0..PAGES).map(|page| (base + page * PAGE, page)).collect();
    assert_eq!(snapshot.into_inner().unwrap(), expected);
}

/// Which pages a read maps, by a rule that is written down again here.
#[test]
fn a_read_of_a_file_maps_what_is_in_memory_around_it() {
    let machine = HostMachine::new(FRAMES);
    let zero = zero(&machine);
    let files = Files::<X86_64>::new(&machine, &[(ObjectKind::File, 64), (ObjectKind::Shmem, 64)]);
    let contents = paged(&machine, &files, 1, zero.frame()).unwrap();
    let config = Config { fault_around: 8 * PAGE, ..SMALL };
    let space = FileSpace::new(isotherm_rcu::Epoch, RwLock::new(()), contents, config);
    let there = |space: &FileSpace<'_>| -> Vec<u64> {
        // Found without an access, which would fault.
        (0..400).filter(|page| space.contents().access(page * PAGE, Access::Read).is_ok()).collect()
    };
    for index in (0..64).filter(|index| index % 3 != 1) {
        files.file(1).page_in(index).unwrap();
    }
    // Pages 10 to 39 of the file from page 101 on: windows are aligned by address.
    space.mmap(&object(1, 10, 30, true, 101)).unwrap();
    let mut expected = Vec::new();
    for page in [105, 101, 130, 116] {
        space.fault(page * PAGE, Access::Read).unwrap();
        let index = |page: u64| page - 101 + 10;
        let first = (page - page % 8).max(101);
        let around = (first..(first + 8).min(131)).filter(|&near| near == page || index(near) % 3 != 1);
        expected.extend(around);
        expected.sort_unstable();
        expected.dedup();
        assert_eq!(there(&space), expected, "after {page}");
    }
    assert_eq!(space.contents().rss(), Rss { file: expected.len() as u64, ..Rss::default() });
    // They are the file's pages, and clean: a write to one is a fault that marks it dirty.
    let value = word(&machine, &space, 101 * PAGE + WORD, None).unwrap();
    assert_eq!(value, 1010);
    assert!(space.contents().access(101 * PAGE, Access::Write).is_err());
    // A write maps its own page alone; so does a read where faults are somebody else's.
    space.mmap(&object(1, 0, 16, false, 200)).unwrap();
    space.fault(200 * PAGE, Access::Write).unwrap();
    assert_eq!(there(&space).iter().filter(|&&page| page >= 200).count(), 1);
    for index in 0..8 {
        files.file(2).page_in(index).unwrap();
    }
    space.mmap(&object(2, 0, 8, true, 304)).unwrap();
    space.register(304 * PAGE, 8 * PAGE, UserFaults::WRITE_PROTECT).unwrap();
    space.fault(304 * PAGE, Access::Read).unwrap();
    assert_eq!(there(&space).iter().filter(|&&page| page >= 304).count(), 1);
    space.munmap(16 * PAGE, 400 * PAGE).unwrap();
    assert_eq!(space.contents().resident(), 0);
}

#[test]
fn without_memory_it_fails_cleanly_and_nothing_leaks() {
    let mut failed = 0;
    for budget in 0..200 {
        let machine = HostMachine::new(FRAMES);
        let zero = zero(&machine);
        let before = machine.free_frames();
        let space = new_space::<X86_64>(&machine, zero.frame());
        space.mmap(&anonymous(8).at(AT)).unwrap();
        for page in 0..7 {
            word(&machine, &space, AT + page * PAGE, Some(page)).unwrap();
        }
        Failing::after(budget);
        let done = space
            .register(AT + PAGE, 7 * PAGE, UserFaults::WRITE_PROTECT | UserFaults::MISSING)
            .and_then(|()| space.write_protect(AT + PAGE, 6 * PAGE, true))
            .and_then(|()| space.write_protect(AT + 3 * PAGE, PAGE, false));
        Failing::after(u64::MAX);
        match done {
            Ok(()) => {
                machine.set_budget(u64::MAX, 0);
                assert_eq!(space.fill(AT + 7 * PAGE, true, |_| {}), Err(Error::NoMemory));
                machine.set_budget(u64::MAX, u64::MAX);
                assert_eq!(space.fault(AT + 7 * PAGE, Access::Read), Err(FaultError::Missing));
                space.fill(AT + 7 * PAGE, false, |_| {}).unwrap();
                assert_eq!(word(&machine, &space, AT + 7 * PAGE, Some(1)), Ok(1), "it was not marked");
            }
            Err(why) => {
                assert_eq!(why, Error::NoMemory);
                failed += 1;
            }
        }
        space.unregister(AT, 8 * PAGE).unwrap();
        for page in 0..8 {
            assert_eq!(word(&machine, &space, AT + page * PAGE, Some(page)), Ok(page));
        }
        assert_eq!(space.contents().resident(), 8);
        drop(space);
        assert_eq!(machine.free_frames(), before);
        if done.is_ok() {
            break;
        }
    }
    assert!((1..200).contains(&failed), "{failed}");
}

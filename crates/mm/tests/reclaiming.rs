//! Which pages leave when memory is short, and what becomes of a program that finds none.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use std::sync::RwLock;
use std::sync::atomic::Ordering;

use common::files::*;
use common::host::{FRAMES, word, zero};
use common::swap::*;
use common::{PAGE, SMALL, anonymous};
use isotherm_mm::ObjectKind::{File, Shmem};
use isotherm_mm::*;
use isotherm_pagetable::{X86_64, X86_64La57};
use isotherm_rcu::Epoch;

const AT: u64 = 30 * PAGE;

/// Which of so many pages are resident.
fn resident(space: &common::host::Space<'_>, pages: u64) -> Vec<u64> {
    // A look of the MMU would make them young.
    let before = space.contents().resident();
    let there: Vec<u64> =
        (0..pages).filter(|page| space.contents().access(AT + page * PAGE, Access::Read).is_ok()).collect();
    assert_eq!(there.len() as u64, before);
    there
}

#[test]
fn what_was_not_used_for_longest_leaves_first() {
    let (machine, swap) = machine_with_swap(FRAMES, 64);
    let zero = zero(&machine);
    let system = system::<X86_64>(&machine, &swap);
    let space = space_in(&system, zero.frame());
    space.mmap(&anonymous(16).at(AT)).unwrap();
    let touch = |pages: std::ops::Range<u64>| {
        for page in pages {
            assert_eq!(word(&machine, &space, AT + page * PAGE, Some(page)), Ok(page));
        }
    };
    touch(0..16);
    assert_eq!(system.age(), 16);
    touch(0..8);
    assert_eq!(system.age(), 8);
    touch(0..4);
    // As old as the last look says; then what was used since counts too.
    assert_eq!(system.generations::<4>(), [8, 8, 0, 0]);
    assert_eq!(system.age(), 4);
    assert_eq!(system.generations::<4>(), [4, 4, 8, 0]);
    let done = system.reclaim(&(), 6);
    assert_eq!((done.anon, done.file), (6, 0));
    assert!(resident(&space, 16).iter().filter(|&&page| page >= 8).count() == 2);
    system.age();
    // All that are left were looked at just now. What was used since is spared as long as there is anything else.
    touch(0..2);
    assert_eq!(system.reclaim(&(), 100).anon, 8);
    touch(0..2);
    let done = system.reclaim(&(), 100);
    assert_eq!(done.anon, 2, "nothing is spared if all are in use: {done:?}");
    assert_eq!(space.contents().rss(), Rss { swap: 16, ..Rss::default() });
    touch(0..16);
    assert_eq!(system.stats().refaults_anon, 16);
}

#[test]
fn what_was_used_since_the_last_look_is_spared() {
    let (machine, swap) = machine_with_swap(FRAMES, 64);
    let zero = zero(&machine);
    let system = system::<X86_64>(&machine, &swap);
    let space = space_in(&system, zero.frame());
    space.mmap(&anonymous(8).at(AT)).unwrap();
    for page in 0..8 {
        word(&machine, &space, AT + page * PAGE, Some(page)).unwrap();
    }
    system.age();
    system.age();
    for page in 0..3 {
        word(&machine, &space, AT + page * PAGE, None).unwrap();
    }
    // In the reverse map of a child too.
    let child = fork_in(&space, zero.frame()).unwrap();
    word(&machine, &child, AT + 5 * PAGE, None).unwrap();
    assert_eq!(system.reclaim(&(), 100).anon, 4);
    assert_eq!(resident(&space, 8), [0, 1, 2, 5]);
    assert_eq!(child.contents().rss(), Rss { anon: 4, swap: 4, ..Rss::default() });
}

/// A program that needs more than there is, with swap and without.
#[test]
fn a_fault_makes_room_or_fails() {
    let (machine, swap) = machine_with_swap(64, 100);
    let zero = zero(&machine);
    let before = machine.free_frames();
    let system = System::<X86_64, _>::new(&machine, 64, Some(swap.area.clone())).unwrap();
    let space = space_in(&system, zero.frame());
    space.mmap(&anonymous(200).at(AT)).unwrap();
    for page in 0..120 {
        assert_eq!(word(&machine, &space, AT + page * PAGE, Some(page)), Ok(page));
    }
    for page in 0..120 {
        assert_eq!(word(&machine, &space, AT + page * PAGE, None), Ok(page));
    }
    // Until swap is full too.
    let last =
        (120..200).find(|page| word(&machine, &space, AT + page * PAGE, Some(*page)).is_err()).unwrap();
    assert_eq!(space.fault(AT + last * PAGE, Access::Write), Err(FaultError::NoMemory));
    let rss = space.contents().rss();
    assert_eq!((rss.anon + rss.swap, rss.swap), (last, 100));
    // A page that is in swap cannot come back either, and what is resident is as it was.
    let is_there = |page: &u64| space.contents().access(AT + page * PAGE, Access::Read).is_ok();
    let absent = (0..last).find(|page| !is_there(page)).unwrap();
    assert_eq!(space.fault(AT + absent * PAGE, Access::Read), Err(FaultError::NoMemory));
    space.discard(AT, 100 * PAGE).unwrap();
    for page in 100..last {
        assert_eq!(word(&machine, &space, AT + page * PAGE, None), Ok(page));
    }
    // Storage that fails is no room.
    swap.flaky.writes_fail.store(true, Ordering::Relaxed);
    let failed = (0..100).find_map(|page| word(&machine, &space, AT + page * PAGE, Some(1)).err());
    assert_eq!(failed, Some(FaultError::NoMemory));
    drop(space);
    drop(system);
    assert_eq!((machine.free_frames(), swap.area.used()), (before, 0));
}

#[test]
fn reclaim_ends_at_the_high_watermark() {
    let (machine, swap) = machine_with_swap(256, 256);
    let zero = zero(&machine);
    let system = System::<X86_64, _>::new(&machine, 256, Some(swap.area.clone())).unwrap();
    let space = space_in(&system, zero.frame());
    space.mmap(&anonymous(200).at(AT)).unwrap();
    for page in 0..200 {
        word(&machine, &space, AT + page * PAGE, Some(page)).unwrap();
    }
    let free = machine.free_frames();
    let marks = Watermarks { low: free + 1, high: 120 };
    let done = system.balance(&(), marks, || machine.free_frames());
    assert_eq!((free + done.total(), machine.free_frames() >= 120), (machine.free_frames(), true));
    assert!(machine.free_frames() < 120 + 32, "not much more");
    assert_eq!(system.balance(&(), marks, || machine.free_frames()), Reclaimed::default());
}

/// A working set that is a little larger than memory is seen to be one; what is read once is not.
#[test]
fn refaults_tell_the_working_set() {
    let (machine, swap) = machine_with_swap(96, 1024);
    let zero = zero(&machine);
    let system = System::<X86_64, _>::new(&machine, 96, Some(swap.area.clone())).unwrap();
    let space = space_in(&system, zero.frame());
    space.mmap(&anonymous(450).at(AT)).unwrap();
    for page in 0..450 {
        word(&machine, &space, AT + page * PAGE, Some(page)).unwrap();
    }
    // Each page comes back when all others have left since.
    for page in 0..450 {
        word(&machine, &space, AT + page * PAGE, None).unwrap();
    }
    let once = system.stats();
    assert!(once.refaults_anon > 300 && once.activated < 100, "{once:?}");
    for _ in 0..4 {
        for page in 0..100 {
            word(&machine, &space, AT + page * PAGE, None).unwrap();
        }
    }
    let often = system.stats();
    let (again, active) = (often.refaults_anon - once.refaults_anon, often.activated - once.activated);
    assert!(again > 100 && active * 2 > again, "{often:?}");
}

fn in_system<'m>(
    system: &System<'m, X86_64, isotherm_pagetable::host::HostMachine>,
    files: &std::sync::Arc<Files<'m, X86_64>>,
    zero: isotherm_page::Frame,
) -> FileSpace<'m> {
    let paged = Paged::in_system(system, 1, zero, files.clone()).unwrap();
    FileSpace::new(Epoch, RwLock::new(()), paged, SMALL)
}

#[test]
fn pages_of_files_are_written_back_and_leave() {
    let (machine, swap) = machine_with_swap(FRAMES, 64);
    let zero = zero(&machine);
    let before = machine.free_frames();
    let files = Files::<X86_64>::new(&machine, &[(File, 8), (Shmem, 4)]);
    let system = system::<X86_64>(&machine, &swap);
    let space = in_system(&system, &files, zero.frame());
    space.mmap(&object(1, 0, 8, true, 30)).unwrap();
    space.mmap(&object(1, 0, 8, false, 40)).unwrap();
    space.mmap(&object(2, 0, 4, true, 50)).unwrap();
    let at = |page: u64| page * PAGE + WORD;
    for page in 30..38 {
        assert_eq!(word(&machine, &space, at(page), None), Ok(1000 + page - 30));
    }
    word(&machine, &space, at(30), Some(7)).unwrap();
    word(&machine, &space, at(41), Some(8)).unwrap();
    word(&machine, &space, at(50), Some(9)).unwrap();
    system.age();
    system.age();
    word(&machine, &space, at(35), None).unwrap();
    let done = system.reclaim(&files, 100);
    // All but the page that was used; the copy and shared memory went to swap, the latter as the object's.
    assert_eq!((done.file, done.anon, done.shmem), (7, 1, 1));
    assert_eq!(space.contents().rss(), Rss { anon: 0, file: 1, shmem: 0, swap: 1 });
    assert_eq!((files.file(1).cached(), files.file(1).backing().get(0)), (1, 7));
    assert_eq!(word(&machine, &space, at(30), None), Ok(7));
    assert_eq!(word(&machine, &space, at(41), None), Ok(8));
    assert_eq!(word(&machine, &space, at(31), None), Ok(1001));
    assert_eq!(word(&machine, &space, at(50), None), Ok(9));
    let stats = system.stats();
    assert_eq!((stats.refaults_file, stats.refaults_anon), (2, 2));
    // By advice: the copy, and pages of the file that are mapped once.
    assert_eq!(space.page_out(40 * PAGE, 8 * PAGE), Ok(PAGE));
    assert_eq!(space.page_out(30 * PAGE, 8 * PAGE), Ok(3 * PAGE));
    assert_eq!(space.contents().rss(), Rss { shmem: 1, swap: 1, ..Rss::default() });
    // Storage that fails keeps what is dirty.
    word(&machine, &space, at(33), Some(5)).unwrap();
    files.file(1).backing().fails.store(true, Ordering::Relaxed);
    system.age();
    system.age();
    assert_eq!(system.reclaim(&files, 100).file, 0);
    files.file(1).backing().fails.store(false, Ordering::Relaxed);
    assert_eq!(word(&machine, &space, at(33), None), Ok(5));
    // Truncated, a copy that is in swap is gone as well, of a child too.
    let child =
        space.fork(RwLock::new(()), Paged::in_system(&system, 2, zero.frame(), files.clone()).unwrap());
    let child = child.unwrap();
    let shared = files.file(2).swapped();
    assert_eq!(swap.area.used(), 1 + shared);
    files.file(1).resize(1);
    assert_eq!((swap.area.used(), child.contents().rss().swap), (shared, 0));
    drop((space, child, files, system));
    assert_eq!(machine.free_frames(), before);
}

/// With 5 levels of page tables programs have 56 bits of addresses.
#[test]
fn pages_beyond_48_bits_leave_too() {
    const FAR: u64 = 1 << 50;
    let (machine, swap) = machine_with_swap(128, 512);
    let zero = zero(&machine);
    let system = system::<X86_64La57>(&machine, &swap);
    let contents = Paged::in_system(&system, 1, zero.frame(), ()).unwrap();
    let config = Config { end: 1 << 56, ..SMALL };
    let space = common::host::Space::<X86_64La57>::new(Epoch, RwLock::new(()), contents, config);
    space.mmap(&anonymous(200).at(FAR)).unwrap();
    for page in 0..200 {
        word(&machine, &space, FAR + page * PAGE, Some(page + 1)).unwrap();
    }
    let rss = space.contents().rss();
    assert!(rss.anon + rss.swap == 200 && rss.swap > 80, "{rss:?}");
    for page in 0..200 {
        assert_eq!(word(&machine, &space, FAR + page * PAGE, None), Ok(page + 1));
    }
}

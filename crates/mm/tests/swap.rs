//! Anonymous pages from below: where they are mapped, how they go to swap and come back, and what happens if swap fails.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use std::sync::RwLock;
use std::sync::atomic::Ordering;

use common::host::*;
use common::swap::*;
use common::{PAGE, SMALL, anonymous};
use isotherm_mm::*;
use isotherm_page::{Folio, Frame};
use isotherm_pagetable::X86_64;
use isotherm_pagetable::host::HostMachine;
use isotherm_rcu::Epoch;

const AT: u64 = 30 * PAGE;

fn frame(space: &Space<'_>, at: u64) -> Frame {
    space.contents().access(at, Access::Read).unwrap()
}

/// Where the page of an address is found from below.
fn places(system: &System<'_, X86_64, HostMachine>, space: &Space<'_>, at: u64) -> Vec<(Frame, u64)> {
    let mut places: Vec<_> =
        system.find(frame(space, at)).unwrap().iter().map(|(id, at)| (id.root, at.0 / PAGE)).collect();
    places.sort();
    places
}

fn swapped(space: &Space<'_>) -> (u64, u64) {
    let rss = space.contents().rss();
    (rss.anon, rss.swap)
}

#[test]
fn a_page_is_found_wherever_it_is_mapped() {
    let (machine, swap) = machine_with_swap(FRAMES, 64);
    let zero = zero(&machine);
    let system = system::<X86_64>(&machine, &swap);
    let space = space_in(&system, zero.frame());
    let root = |space: &Space<'_>| space.contents().id().root;
    space.mmap(&anonymous(4).at(AT)).unwrap();
    for page in 0..4 {
        word(&machine, &space, AT + page * PAGE, Some(page)).unwrap();
    }
    assert_eq!(places(&system, &space, AT), [(root(&space), 30)]);
    // A child, its child, and what either writes to.
    let child = fork_in(&space, zero.frame()).unwrap();
    let grandchild = fork_in(&child, zero.frame()).unwrap();
    let mut all = [&space, &child, &grandchild].map(|space| (root(space), 30));
    all.sort();
    assert_eq!(places(&system, &grandchild, AT), all);
    word(&machine, &child, AT, Some(9)).unwrap();
    assert_eq!(places(&system, &child, AT), [(root(&child), 30)]);
    assert_eq!(places(&system, &space, AT).len(), 2);
    drop(space);
    assert_eq!(places(&system, &grandchild, AT), [(root(&grandchild), 30)]);
    // Moved as a part, and moved again; what comes to where it was is another page.
    let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
    child.mremap(AT + PAGE, 2 * PAGE, 2 * PAGE, flags, 50 * PAGE).unwrap();
    child.mmap(&anonymous(2).at(AT + PAGE)).unwrap();
    word(&machine, &child, AT + PAGE, Some(77)).unwrap();
    child.mremap(51 * PAGE, PAGE, PAGE, flags, 60 * PAGE).unwrap();
    let mut both = [(root(&child), 60), (root(&grandchild), 32)];
    both.sort();
    assert_eq!(places(&system, &child, 60 * PAGE), both);
    assert_eq!(places(&system, &child, AT + PAGE), [(root(&child), 31)]);
    // Its child has it at the same place, also when it is swapped out there.
    let last = fork_in(&child, zero.frame()).unwrap();
    assert_eq!(places(&system, &last, 60 * PAGE).len(), 3);
    system.swap_out(frame(&last, 60 * PAGE)).unwrap();
    for (space, at) in [(&last, 60 * PAGE), (&child, 60 * PAGE), (&grandchild, AT + 2 * PAGE)] {
        assert_eq!(word(&machine, space, at, None), Ok(2));
    }
    assert_eq!(word(&machine, &grandchild, AT + PAGE, None), Ok(1));
    assert_eq!(swap.area.used(), 0);
}

#[test]
fn a_line_of_forks_is_found_however_long() {
    let (machine, swap) = machine_with_swap(FRAMES, 64);
    let zero = zero(&machine);
    let system = system::<X86_64>(&machine, &swap);
    let mut spaces = vec![space_in(&system, zero.frame())];
    spaces[0].mmap(&anonymous(40).at(AT)).unwrap();
    for n in 0..20 {
        word(&machine, spaces.last().unwrap(), AT + n * PAGE, Some(n)).unwrap();
        let child = fork_in(spaces.last().unwrap(), zero.frame()).unwrap();
        spaces.push(child);
    }
    for n in 0..20 {
        let found = places(&system, &spaces[20], AT + n * PAGE);
        assert_eq!(found.len() as u64, 21 - n, "page {n}");
    }
    // The first go: what is left is found all the same.
    spaces.drain(..15);
    assert_eq!(places(&system, &spaces[5], AT).len(), 6);
}

#[test]
fn what_is_paged_out_comes_back() {
    let (machine, swap) = machine_with_swap(FRAMES, 64);
    let zero = zero(&machine);
    let before = machine.free_frames();
    let system = system::<X86_64>(&machine, &swap);
    let space = space_in(&system, zero.frame());
    space.mmap(&anonymous(8).at(AT)).unwrap();
    for page in 0..4 {
        word(&machine, &space, AT + page * PAGE, Some(page)).unwrap();
    }
    assert_eq!(word(&machine, &space, AT + 4 * PAGE, None), Ok(0), "the zero page is no anonymous one");
    let free = machine.free_frames();
    assert_eq!(space.page_out(AT, 8 * PAGE), Ok(4 * PAGE));
    assert_eq!((swapped(&space), swap.area.used(), machine.free_frames()), ((0, 4), 4, free + 4));
    assert_eq!(space.page_out(AT, 8 * PAGE), Ok(0));
    let retries = space.lock_stats().retry;
    assert_eq!(word(&machine, &space, AT + PAGE, None), Ok(1));
    assert_eq!(space.lock_stats().retry, retries + 1, "swap is for mmap_lock");
    assert_eq!((swapped(&space), swap.area.used()), ((1, 3), 3));
    // It was this space's alone, and is again: no copy is made for a write, and no fault.
    let copies = machine.counts().copies;
    let faults = space.lock_stats().lookups();
    assert_eq!(word(&machine, &space, AT + PAGE, Some(11)), Ok(11));
    assert_eq!((machine.counts().copies, space.lock_stats().lookups()), (copies, faults));
    // Without permission it goes, and comes back when there is one.
    space.mprotect(AT, 4 * PAGE, Prot::empty()).unwrap();
    assert_eq!(space.page_out(AT, 4 * PAGE), Ok(PAGE));
    assert_eq!(space.fault(AT + PAGE, Access::Read), Err(FaultError::NotPermitted));
    space.mprotect(AT, 4 * PAGE, Prot::READ).unwrap();
    assert_eq!(word(&machine, &space, AT + PAGE, None), Ok(11));
    assert_eq!(word(&machine, &space, AT + PAGE, Some(5)), Err(FaultError::NotPermitted));
    space.mprotect(AT, 4 * PAGE, Prot::READ | Prot::WRITE).unwrap();
    assert_eq!(word(&machine, &space, AT + 2 * PAGE, Some(12)), Ok(12));
    // DONTNEED and munmap give slots back.
    space.discard(AT, PAGE).unwrap();
    assert_eq!((swapped(&space), swap.area.used()), ((2, 1), 1));
    assert_eq!(word(&machine, &space, AT, None), Ok(0));
    space.munmap(AT, 8 * PAGE).unwrap();
    assert_eq!((swapped(&space), swap.area.used()), ((0, 0), 0));
    drop(space);
    drop(system);
    assert_eq!(machine.free_frames(), before);
}

#[test]
fn a_fork_shares_what_is_in_swap() {
    let (machine, swap) = machine_with_swap(FRAMES, 64);
    let zero = zero(&machine);
    let system = system::<X86_64>(&machine, &swap);
    let space = space_in(&system, zero.frame());
    space.mmap(&anonymous(2).at(AT)).unwrap();
    for page in 0..2 {
        word(&machine, &space, AT + page * PAGE, Some(7 + page)).unwrap();
    }
    space.page_out(AT, PAGE).unwrap();
    let child = fork_in(&space, zero.frame()).unwrap();
    assert_eq!((swapped(&space), swapped(&child), swap.area.used()), ((1, 1), (1, 1), 1));
    // What both map, advice leaves alone, and reclaim takes.
    assert_eq!(child.page_out(AT, 2 * PAGE), Ok(0));
    system.swap_out(frame(&child, AT + PAGE)).unwrap();
    assert_eq!((swapped(&space), swapped(&child), swap.area.used()), ((0, 2), (0, 2), 2));
    assert_eq!(word(&machine, &child, AT, Some(9)), Ok(9));
    assert_eq!(word(&machine, &space, AT, None), Ok(7));
    assert_eq!(swap.area.used(), 1, "nobody needs the first any more");
    drop(space);
    assert_eq!((swap.area.used(), swapped(&child)), (1, (1, 1)));
    assert_eq!(word(&machine, &child, AT + PAGE, None), Ok(8));
    assert_eq!((swap.area.used(), swapped(&child)), (0, (2, 0)));
}

#[test]
fn what_must_stay_stays() {
    let (machine, swap) = machine_with_swap(FRAMES, 64);
    let zero = zero(&machine);
    let system = system::<X86_64>(&machine, &swap);
    let space = space_in(&system, zero.frame());
    space.mmap(&anonymous(4).at(AT)).unwrap();
    word(&machine, &space, AT, Some(1)).unwrap();
    space.mlock(AT, PAGE, false).unwrap();
    assert_eq!(system.swap_out(frame(&space, AT)), Err(Kept::InUse));
    assert_eq!(space.page_out(AT, 4 * PAGE), Err(Error::Invalid));
    // Faulted in later, the same.
    space.mlock(AT + PAGE, PAGE, true).unwrap();
    word(&machine, &space, AT + PAGE, Some(2)).unwrap();
    assert_eq!(system.swap_out(frame(&space, AT + PAGE)), Err(Kept::InUse));
    space.munlock(AT, 2 * PAGE).unwrap();
    // Somebody's reference, as a device has.
    let held = Folio::get(&machine, frame(&space, AT)).unwrap();
    assert_eq!(system.swap_out(held.head()), Err(Kept::InUse));
    let pinned = held.pin();
    assert_eq!(space.page_out(AT, 4 * PAGE), Ok(PAGE), "the other goes");
    drop(pinned);
    assert_eq!(space.page_out(AT, 4 * PAGE), Ok(PAGE));
    assert_eq!(system.swap_out(zero.frame()), Err(Kept::NotFound));
    assert_eq!(system.swap_out(Frame(u64::MAX)), Err(Kept::NotFound));
}

#[test]
fn swap_that_fails_changes_nothing() {
    let (machine, swap) = machine_with_swap(FRAMES, 3);
    let zero = zero(&machine);
    let system = system::<X86_64>(&machine, &swap);
    let space = space_in(&system, zero.frame());
    space.mmap(&anonymous(5).at(AT)).unwrap();
    let write = |round: u64| {
        for page in 0..5 {
            assert_eq!(word(&machine, &space, AT + page * PAGE, Some(page + round)), Ok(page + round));
        }
    };
    write(10);
    swap.flaky.writes_fail.store(true, Ordering::Relaxed);
    assert_eq!(space.page_out(AT, 5 * PAGE), Ok(0));
    assert_eq!(system.swap_out(frame(&space, AT)), Err(Kept::Swap(SwapError::Failed)));
    assert_eq!((swapped(&space), swap.area.used()), ((5, 0), 0));
    write(20);
    swap.flaky.writes_fail.store(false, Ordering::Relaxed);
    assert_eq!(space.page_out(AT, 5 * PAGE), Ok(3 * PAGE), "as many as there is room for");
    assert_eq!(system.swap_out(frame(&space, AT + 4 * PAGE)), Err(Kept::Swap(SwapError::Full)));
    swap.flaky.reads_fail.store(true, Ordering::Relaxed);
    assert_eq!(space.fault(AT, Access::Read), Err(FaultError::Bus));
    assert_eq!((swapped(&space), swap.area.used()), ((2, 3), 3));
    swap.flaky.reads_fail.store(false, Ordering::Relaxed);
    for page in 0..5 {
        assert_eq!(word(&machine, &space, AT + page * PAGE, None), Ok(page + 20));
    }
    assert_eq!((swapped(&space), swap.area.used()), ((5, 0), 0));
}

/// Bytes are what they were: pages that compress, pages that do not, and those of one word.
#[test]
fn contents_survive_compression() {
    let (machine, swap) = machine_with_swap(FRAMES, 64);
    let zero = zero(&machine);
    let system = system::<X86_64>(&machine, &swap);
    let space = space_in(&system, zero.frame());
    space.mmap(&anonymous(3).at(AT)).unwrap();
    let mut seed = 1u64;
    let mut random = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as u8
    };
    let noise: PageBytes = std::array::from_fn(|_| random());
    let text: PageBytes = std::array::from_fn(|n| b"isotherm "[n % 9]);
    let pages = [noise, text, [0x5a; PAGE as usize]];
    for (n, page) in (0..).zip(&pages) {
        space.fault(AT + n * PAGE, Access::Write).unwrap();
        machine.write_page(frame(&space, AT + n * PAGE), page).unwrap();
    }
    assert_eq!(space.page_out(AT, 3 * PAGE), Ok(3 * PAGE));
    let stats = swap.flaky.memory.stats();
    assert_eq!((stats.pages, stats.same), (3, 1));
    assert!((PAGE..PAGE + 512).contains(&stats.bytes), "{stats:?}");
    for (n, page) in (0..).zip(&pages) {
        space.fault(AT + n * PAGE, Access::Read).unwrap();
        let mut found = [0; PAGE as usize];
        machine.read_page(frame(&space, AT + n * PAGE), &mut found).unwrap();
        assert!(found == *page, "page {n}");
    }
    assert_eq!(swap.flaky.memory.stats(), CompressedStats::default());
}

/// Each allocation of a fault on a swapped page, and of a space of a system and its fork, fails once.
#[test]
fn without_frames_a_swapped_page_stays_where_it_is() {
    let (machine, swap) = machine_with_swap(FRAMES, 64);
    let zero = zero(&machine);
    let before = machine.free_frames();
    let system = system::<X86_64>(&machine, &swap);
    {
        let space = space_in(&system, zero.frame());
        space.mmap(&anonymous(2).at(AT)).unwrap();
        word(&machine, &space, AT, Some(7)).unwrap();
        word(&machine, &space, AT + PAGE, Some(8)).unwrap();
        space.page_out(AT, PAGE).unwrap();
        machine.set_budget(u64::MAX, 0);
        assert_eq!(space.fault(AT, Access::Write), Err(FaultError::NoMemory));
        assert_eq!(swapped(&space), (0, 2), "it made room as long as it could");
        machine.set_budget(u64::MAX, u64::MAX);
        word(&machine, &space, AT + PAGE, None).unwrap();
        assert_eq!((swapped(&space), swap.area.used()), ((1, 1), 1));
        for failures in 0.. {
            machine.set_budget(failures, u64::MAX);
            let child = fork_in(&space, zero.frame());
            machine.set_budget(u64::MAX, u64::MAX);
            let Ok(child) = child else { continue };
            assert!(failures > 3, "a root and three tables");
            assert_eq!(places(&system, &space, AT + PAGE).len(), 2);
            assert_eq!(word(&machine, &child, AT, None), Ok(7));
            break;
        }
        assert_eq!(places(&system, &space, AT + PAGE).len(), 1);
        assert_eq!(word(&machine, &space, AT, Some(9)), Ok(9));
        assert_eq!(swap.area.used(), 0);
    }
    drop(Paged::in_system(&system, 1, zero.frame(), ()).unwrap());
    assert_eq!(machine.free_frames(), before);
}

/// A space without a system, or in another, has no child in this one.
#[test]
fn a_child_is_in_the_system_of_its_parent() {
    let (machine, swap) = machine_with_swap(FRAMES, 64);
    let zero = zero(&machine);
    let (one, other) = (system::<X86_64>(&machine, &swap), system::<X86_64>(&machine, &swap));
    let space = space_in(&one, zero.frame());
    let contents = || Paged::in_system(&other, 2, zero.frame(), ()).unwrap();
    assert_eq!(space.fork(RwLock::new(()), contents()).err(), Some(Error::Invalid));
    let without = Paged::new(&machine, 2, zero.frame()).unwrap();
    assert_eq!(space.fork(RwLock::new(()), without).err(), Some(Error::Invalid));
    let outside: Space<'_> =
        Space::new(Epoch, RwLock::new(()), Paged::new(&machine, 3, zero.frame()).unwrap(), SMALL);
    assert_eq!(outside.fork(RwLock::new(()), contents()).err(), Some(Error::Invalid));
    outside.mmap(&anonymous(1).at(AT)).unwrap();
    word(&machine, &outside, AT, Some(1)).unwrap();
    assert_eq!((outside.page_out(AT, PAGE), outside.contents().resident()), (Ok(0), 1));
}

/// What is moved may grow down from where it is then.
#[test]
fn a_stack_that_was_moved_and_grows_is_found() {
    let (machine, swap) = machine_with_swap(FRAMES, 64);
    let zero = zero(&machine);
    let system = system::<X86_64>(&machine, &swap);
    let space = space_in(&system, zero.frame());
    let request = anonymous(1).at(49 * PAGE);
    space.mmap(&MapRequest { flags: request.flags | MapFlags::GROWSDOWN, ..request }).unwrap();
    word(&machine, &space, AT, Some(1)).unwrap();
    let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
    space.mremap(AT, PAGE, PAGE, flags, 55 * PAGE).unwrap();
    word(&machine, &space, 50 * PAGE, Some(2)).unwrap();
    let root = space.contents().id().root;
    for page in [50, 55] {
        assert_eq!(places(&system, &space, page * PAGE), [(root, page)]);
    }
}

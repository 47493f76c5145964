//! Faults that somebody else resolves beside swap, reclaim and large folios; and fault-around beside reclaim.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use std::sync::{Arc, RwLock};

use common::files::*;
use common::host::{FRAMES, Space, word, zero};
use common::swap::*;
use common::{PAGE, SMALL, anonymous};
use isotherm_mm::*;
use isotherm_page::{FolioView, Frame, Order};
use isotherm_pagetable::X86_64;
use isotherm_pagetable::host::HostMachine;
use isotherm_rcu::Epoch;

const AT: u64 = 30 * PAGE;
const HUGE: u64 = 2 << 20;

fn frame(space: &Space<'_>, at: u64) -> Frame {
    space.contents().access(at, Access::Read).unwrap()
}

fn bring(machine: &HostMachine, space: &Space<'_>, at: u64, mark: bool, value: u64) {
    space.fill(at, mark, |frame| machine.write(frame.address(), value).unwrap()).unwrap();
}

#[test]
fn what_was_filled_is_found_from_below_and_is_not_missing_when_it_is_swapped_out() {
    let (machine, swap) = machine_with_swap(FRAMES, 64);
    let zero = zero(&machine);
    let before = machine.free_frames();
    let system = system::<X86_64>(&machine, &swap);
    let space = space_in(&system, zero.frame());
    // Moved, and grown since: its pages are not at their indices.
    space.mmap(&anonymous(4).at(AT)).unwrap();
    assert_eq!(word(&machine, &space, AT, Some(0)), Ok(0));
    let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
    space.mremap(AT, 4 * PAGE, 8 * PAGE, flags, 60 * PAGE).unwrap();
    let at = |page: u64| (60 + page) * PAGE;
    space.register(at(0), 8 * PAGE, UserFaults::MISSING | UserFaults::WRITE_PROTECT).unwrap();
    for page in 1..8 {
        bring(&machine, &space, at(page), page == 3, page);
    }
    for page in 0..8 {
        let found: Vec<u64> =
            system.find(frame(&space, at(page))).unwrap().iter().map(|(_, at)| at.0).collect();
        assert_eq!(found, [at(page)]);
        system.swap_out(frame(&space, at(page))).unwrap();
    }
    assert_eq!(space.contents().rss(), Rss { swap: 8, ..Rss::default() });
    for page in [0, 1, 2, 7] {
        assert_eq!(word(&machine, &space, at(page), None), Ok(page));
        assert_eq!(word(&machine, &space, at(page), Some(10 + page)), Ok(10 + page));
    }
    // A mark stays where it is, whether it was set before the page left or after, and whatever brings the page back.
    space.write_protect(at(4), 2 * PAGE, true).unwrap();
    assert_eq!(space.will_need(at(4), PAGE), Ok(PAGE));
    for page in 3..6 {
        assert_eq!(word(&machine, &space, at(page), Some(9)), Err(FaultError::WriteProtected));
        assert_eq!(word(&machine, &space, at(page), None), Ok(page));
        assert_eq!(word(&machine, &space, at(page), Some(9)), Err(FaultError::WriteProtected));
    }
    space.write_protect(at(3), 3 * PAGE, false).unwrap();
    for page in 3..6 {
        assert_eq!(word(&machine, &space, at(page), Some(20 + page)), Ok(20 + page));
    }
    assert_eq!(space.fill(at(6), false, |_| {}), Err(Error::Exists), "it is in swap");
    space.discard(at(6), PAGE).unwrap();
    assert_eq!(space.fault(at(6), Access::Read), Err(FaultError::Missing));
    assert_eq!(space.contents().rss(), Rss { anon: 7, ..Rss::default() });
    assert_eq!(swap.area.used(), 0);
    drop(space);
    assert_eq!(machine.free_frames(), before);
}

/// A guest of four times the memory there is comes over, page by page.
#[test]
fn who_fills_pages_makes_room_for_them() {
    const PAGES: u64 = 200;
    let (machine, swap) = machine_with_swap(64, 256);
    let zero = zero(&machine);
    let system = system::<X86_64>(&machine, &swap);
    let space = space_in(&system, zero.frame());
    space.mmap(&anonymous(PAGES).at(AT)).unwrap();
    space.register(AT, PAGES * PAGE, UserFaults::all() - UserFaults::MINOR).unwrap();
    for page in 0..PAGES {
        bring(&machine, &space, AT + page * PAGE, page % 2 == 0, 1000 + page);
    }
    let rss = space.contents().rss();
    assert_eq!((rss.anon + rss.swap, rss.swap), (PAGES, swap.area.used()));
    for page in 0..PAGES {
        let at = AT + page * PAGE;
        assert_eq!(word(&machine, &space, at, None), Ok(1000 + page));
        let marked = word(&machine, &space, at, Some(page)) == Err(FaultError::WriteProtected);
        assert_eq!(marked, page % 2 == 0);
    }
}

#[test]
fn no_large_folio_maps_what_is_somebody_elses() {
    let (machine, swap) = machine_with_swap(FRAMES, 16);
    let zero = zero(&machine);
    let system = system::<X86_64>(&machine, &swap);
    let huge = Folios { always: Order::HUGE, advised: Order::HUGE };
    let contents = Paged::in_system(&system, 1, zero.frame(), ()).unwrap().with_folios(huge);
    let space: Space<'_> = Space::new(Epoch, RwLock::new(()), contents, Config { end: 1 << 40, ..SMALL });
    let at = 4 * HUGE;
    let order = |at: u64| FolioView::of(&machine, frame(&space, at)).unwrap().order().get();
    let write = |at: u64| word(&machine, &space, at, Some(at));
    space.mmap(&anonymous(3 * 512).at(at)).unwrap();
    // A huge page that is marked in part.
    write(at).unwrap();
    assert_eq!(order(at), 9);
    space.register(at, 2 * HUGE, UserFaults::WRITE_PROTECT).unwrap();
    space.write_protect(at + PAGE, 3 * PAGE, true).unwrap();
    for page in [0, 4, 511] {
        assert_eq!(write(at + page * PAGE), Ok(at + page * PAGE));
    }
    for page in 1..4 {
        assert_eq!(write(at + page * PAGE), Err(FaultError::WriteProtected));
    }
    assert_eq!(space.collapse(at, HUGE, 511), Ok(0), "it is marked");
    // Marks where nothing is: a write beside them maps a page.
    let next = at + HUGE;
    space.write_protect(next, PAGE, true).unwrap();
    assert_eq!(write(next + PAGE), Ok(next + PAGE));
    assert_eq!((order(next + PAGE), write(next)), (0, Err(FaultError::WriteProtected)));
    // What is missing stays missing; when all is there, and no mark, it may be huge.
    let last = at + 2 * HUGE;
    space.register(last, HUGE, UserFaults::MISSING).unwrap();
    for page in 0..512 {
        assert_eq!(space.collapse(last, HUGE, 511), Ok(0));
        assert_eq!(space.fault(last + page * PAGE, Access::Write), Err(FaultError::Missing));
        bring(&machine, &space, last + page * PAGE, false, page);
    }
    assert_eq!(space.collapse(last, HUGE, 511), Ok(HUGE));
    assert_eq!(order(last), 9);
    assert_eq!(word(&machine, &space, last + 77 * PAGE, None), Ok(77));
    assert_eq!(space.contents().rss(), Rss { anon: 512 + 1 + 512, ..Rss::default() });
}

#[test]
fn what_a_read_mapped_around_it_is_reclaimed_as_well() {
    let (machine, swap) = machine_with_swap(FRAMES, 16);
    let zero = zero(&machine);
    let system = system::<X86_64>(&machine, &swap);
    let files = Files::<X86_64>::new(&machine, &[(ObjectKind::File, 8), (ObjectKind::Shmem, 8)]);
    let contents = Paged::in_system(&system, 1, zero.frame(), Arc::clone(&files)).unwrap();
    let config = Config { fault_around: 8 * PAGE, ..SMALL };
    let space = FileSpace::new(Epoch, RwLock::new(()), contents, config);
    for index in 0..8 {
        files.file(1).page_in(index).unwrap();
    }
    space.mmap(&object(1, 0, 8, true, 32)).unwrap();
    space.fault(32 * PAGE, Access::Read).unwrap();
    assert_eq!(space.contents().rss().file, 8);
    assert_eq!(system.reclaim(&files, 100).file, 7, "all but what was used");
    system.age();
    assert_eq!(system.reclaim(&files, 100).file, 1);
    assert_eq!((space.contents().rss().file, files.file(1).cached()), (0, 0));
    // What somebody else is to bring is not brought by advice.
    space.mmap(&object(2, 0, 8, true, 64)).unwrap();
    space.register(64 * PAGE, 8 * PAGE, UserFaults::MISSING).unwrap();
    assert_eq!(space.will_need(64 * PAGE, 8 * PAGE), Ok(0));
    assert_eq!(space.fault(64 * PAGE, Access::Read), Err(FaultError::Missing));
    assert_eq!(space.will_need(32 * PAGE, 8 * PAGE), Ok(8 * PAGE));
}

//! Large folios: by advice, room and frames; huge leaves that are cut, moved, forked and swapped out, and made of what is there.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use std::sync::{Barrier, RwLock};

use common::host::*;
use common::swap::*;
use common::{PAGE, SMALL, anonymous};
use isotherm_mm::*;
use isotherm_page::{FolioView, Frame, Order};
use isotherm_pagetable::host::HostMachine;
use isotherm_pagetable::{Mapping, X86_64};
use isotherm_rcu::Epoch;

const HUGE: u64 = 2 << 20;
const AT: u64 = 4 * HUGE;
const WIDE: Config = Config { end: 1 << 40, ..SMALL };
const READ_WRITE: Prot = Prot::READ.union(Prot::WRITE);

fn order(order: u8) -> Order {
    Order::new(order).unwrap()
}

fn paged<'m>(
    system: &System<'m, X86_64, HostMachine>,
    zero: Frame,
    always: u8,
    advised: u8,
) -> Paged<'m, X86_64, HostMachine> {
    let folios = Folios { always: order(always), advised: order(advised) };
    Paged::in_system(system, 1, zero, ()).unwrap().with_folios(folios)
}

/// The order of the folio at an address.
fn folio(machine: &HostMachine, space: &Space<'_>, at: u64) -> u8 {
    FolioView::of(machine, space.contents().access(at, Access::Read).unwrap()).unwrap().order().get()
}

/// The words of pages are their numbers, and so much more: written, or as they are found.
fn words(machine: &HostMachine, space: &Space<'_>, range: std::ops::Range<u64>, add: u64, write: bool) {
    for at in range.step_by(PAGE as usize) {
        let value = at / PAGE + add;
        assert_eq!(word(machine, space, at, write.then_some(value)), Ok(value), "at {at:#x}");
    }
}

#[test]
fn orders_follow_advice_and_room() {
    let (machine, swap) = machine_with_swap(FRAMES, 16);
    let zero = zero(&machine);
    let before = machine.free_frames();
    let system = system::<X86_64>(&machine, &swap);
    let space: Space<'_> = Space::new(Epoch, RwLock::new(()), paged(&system, zero.frame(), 2, 9), WIDE);
    // From three pages below a huge page on, over two of them.
    space.mmap(&anonymous(2 * 512 + 3).at(AT - 3 * PAGE)).unwrap();
    let touch = |at: u64| {
        assert_eq!(word(&machine, &space, at, Some(at)), Ok(at));
        (folio(&machine, &space, at), space.contents().rss().anon)
    };
    assert_eq!(touch(AT - 3 * PAGE), (0, 1), "four pages would begin before it");
    assert_eq!(touch(AT - PAGE), (1, 3));
    assert_eq!(touch(AT + 5 * PAGE), (2, 7));
    assert_eq!(word(&machine, &space, AT + 4 * PAGE, None), Ok(0));
    space.madvise(AT, 2 * HUGE, Advice::HugePage).unwrap();
    assert_eq!(touch(AT + HUGE + 9 * PAGE), (9, 7 + 512));
    assert_eq!(touch(AT + 8 * PAGE), (3, 7 + 512 + 8), "beside what is there");
    space.madvise(AT, HUGE, Advice::NoHugePage).unwrap();
    assert_eq!(touch(AT + 9 * PAGE), (3, 7 + 512 + 8), "it is there already");
    assert_eq!(touch(AT + 100 * PAGE), (0, 7 + 512 + 9));
    space.discard(AT, HUGE).unwrap();
    assert_eq!(touch(AT + 100 * PAGE), (0, 3 + 512 + 1));
    drop(space);
    assert_eq!(machine.free_frames(), before);
}

#[test]
fn without_large_blocks_there_are_small_folios() {
    let (machine, swap) = machine_with_swap(300, 1024);
    let zero = zero(&machine);
    let system = system::<X86_64>(&machine, &swap);
    let space: Space<'_> = Space::new(Epoch, RwLock::new(()), paged(&system, zero.frame(), 9, 9), WIDE);
    space.mmap(&anonymous(512).at(AT)).unwrap();
    // Of 300 frames not one block of 512 can be; in the end pages that were written first make room for others.
    words(&machine, &space, AT..AT + HUGE, 7, true);
    assert!(folio(&machine, &space, AT + HUGE - PAGE) < 9);
    words(&machine, &space, AT..AT + HUGE, 7, false);
    let rss = space.contents().rss();
    assert_eq!(rss.anon + rss.swap, 512);
}

/// What is cut stays right and is counted exactly, and without a table for the pieces nothing changes.
#[test]
fn huge_leaves_are_cut_by_operations_on_parts() {
    type Cut<'a> = &'a dyn Fn(&Space<'_>) -> Result<(), Error>;
    let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
    let cuts: [(Cut<'_>, u64); 6] = [
        (&|space| space.munmap(AT + 3 * PAGE, 5 * PAGE), 507),
        (&|space| space.discard(AT + 3 * PAGE, 5 * PAGE), 507),
        (&|space| space.mprotect(AT + 3 * PAGE, 5 * PAGE, Prot::READ), 512),
        (&|space| space.madvise(AT + 3 * PAGE, 5 * PAGE, Advice::DontFork), 512),
        (&|space| space.mlock(AT + 3 * PAGE, 5 * PAGE, false), 512),
        (&|space| space.mremap(AT + 3 * PAGE, 5 * PAGE, 5 * PAGE, flags, AT + 2 * HUGE).map(drop), 512),
    ];
    for (n, (cut, left)) in cuts.into_iter().enumerate() {
        let (machine, swap) = machine_with_swap(FRAMES, 16);
        let zero = zero(&machine);
        let before = machine.free_frames();
        let system = system::<X86_64>(&machine, &swap);
        let space: Space<'_> = Space::new(Epoch, RwLock::new(()), paged(&system, zero.frame(), 9, 9), WIDE);
        space.mmap(&anonymous(512).at(AT)).unwrap();
        words(&machine, &space, AT..AT + HUGE, 0, true);
        assert_eq!(folio(&machine, &space, AT), 9);
        let was = (space.usage(), space.contents().rss());
        machine.set_budget(0, u64::MAX);
        assert_eq!(cut(&space), Err(Error::NoMemory), "cut {n}");
        machine.set_budget(u64::MAX, u64::MAX);
        assert_eq!((space.usage(), space.contents().rss()), was, "cut {n}");
        words(&machine, &space, AT..AT + HUGE, 0, false);
        cut(&space).unwrap();
        assert_eq!(space.contents().rss().anon, left, "cut {n}");
        words(&machine, &space, AT..AT + 3 * PAGE, 0, false);
        words(&machine, &space, AT + 8 * PAGE..AT + HUGE, 0, false);
        // A child has what it is to have.
        let child = fork_in(&space, zero.frame()).unwrap();
        words(&machine, &child, AT + 8 * PAGE..AT + HUGE, 0, false);
        words(&machine, &child, AT + 8 * PAGE..AT + 20 * PAGE, 5, true);
        words(&machine, &space, AT + 8 * PAGE..AT + HUGE, 0, false);
        drop((space, child));
        assert_eq!(machine.free_frames(), before, "cut {n}");
    }
}

#[test]
fn huge_pages_are_swapped_out_and_come_back_small() {
    let (machine, swap) = machine_with_swap(FRAMES, 1024);
    let zero = zero(&machine);
    let system = system::<X86_64>(&machine, &swap);
    let space: Space<'_> = Space::new(Epoch, RwLock::new(()), paged(&system, zero.frame(), 9, 9), WIDE);
    space.mmap(&anonymous(1024).at(AT)).unwrap();
    words(&machine, &space, AT..AT + 2 * HUGE, 0, true);
    let free = machine.free_frames();
    assert_eq!(space.page_out(AT, HUGE), Ok(HUGE));
    // A table came for the pieces.
    assert_eq!((space.contents().rss().swap, machine.free_frames()), (512, free + 512 - 1));
    // Reclaim takes the other.
    system.age();
    system.age();
    assert_eq!(system.reclaim(&(), 512).anon, 512);
    assert_eq!((space.contents().rss().swap, machine.free_frames()), (1024, free + 1024 - 2));
    words(&machine, &space, AT..AT + 2 * HUGE, 0, false);
    assert_eq!((folio(&machine, &space, AT), space.contents().rss().anon, swap.area.used()), (0, 1024, 0));
    // And they are made huge again.
    let found = |at: u64| match system.find(space.contents().access(at, Access::Read).unwrap()).unwrap()[..] {
        [(_, place)] => assert_eq!(place.0, at),
        ref other => panic!("{other:?}"),
    };
    assert_eq!(space.collapse(AT, 2 * HUGE, 0), Ok(2 * HUGE));
    assert_eq!((folio(&machine, &space, AT), space.contents().rss().anon), (9, 1024));
    found(AT);
    found(AT + 77 * PAGE);
    words(&machine, &space, AT..AT + 2 * HUGE, 0, false);
}

#[test]
fn what_is_there_is_collapsed() {
    let (machine, swap) = machine_with_swap(FRAMES, 1024);
    let zero = zero(&machine);
    let before = machine.free_frames();
    let system = system::<X86_64>(&machine, &swap);
    let space: Space<'_> = Space::new(Epoch, RwLock::new(()), paged(&system, zero.frame(), 0, 0), WIDE);
    space.mmap(&anonymous(4 * 512).at(AT)).unwrap();
    words(&machine, &space, AT..AT + 10 * PAGE, 0, true);
    assert_eq!(space.collapse(AT, HUGE, 501), Ok(0), "502 are missing");
    assert_eq!(space.collapse(AT, HUGE, 502), Ok(HUGE));
    assert_eq!((folio(&machine, &space, AT), space.contents().rss().anon), (9, 512));
    words(&machine, &space, AT..AT + 10 * PAGE, 0, false);
    assert_eq!(word(&machine, &space, AT + 10 * PAGE, None), Ok(0));
    assert_eq!(space.collapse(AT, HUGE, 0), Ok(HUGE), "already");
    // What is shared with a child is not; nor what is in swap, or lacks frames.
    words(&machine, &space, AT + HUGE..AT + HUGE + PAGE, 0, true);
    let child = fork_in(&space, zero.frame()).unwrap();
    assert_eq!(space.collapse(AT + HUGE, HUGE, 511), Ok(0));
    drop(child);
    machine.set_budget(u64::MAX, 0);
    assert_eq!(space.collapse(AT + HUGE, HUGE, 511), Err(Error::NoMemory));
    machine.set_budget(u64::MAX, u64::MAX);
    assert_eq!(space.page_out(AT + HUGE, PAGE), Ok(PAGE));
    assert_eq!(space.collapse(AT + HUGE, HUGE, 511), Ok(0));
    words(&machine, &space, AT + HUGE..AT + HUGE + PAGE, 0, false);
    assert_eq!(space.contents().rss(), Rss { anon: 513, ..Rss::default() });
    drop(space);
    // A scanner looks where huge pages are wanted, some at a time.
    let space: Space<'_> = Space::new(Epoch, RwLock::new(()), paged(&system, zero.frame(), 0, 9), WIDE);
    space.mmap(&anonymous(3 * 512).at(AT)).unwrap();
    for block in 0..3 {
        words(&machine, &space, AT + block * HUGE..AT + block * HUGE + PAGE, 0, true);
    }
    assert_eq!(space.collapse_step(0, 10, 511), Ok((0, 0)), "nowhere");
    space.madvise(AT + HUGE, 2 * HUGE, Advice::HugePage).unwrap();
    assert_eq!(space.collapse_step(0, 1, 511), Ok((AT + 2 * HUGE, HUGE)));
    assert_eq!(space.collapse_step(AT + 2 * HUGE, 1, 511), Ok((0, HUGE)));
    assert_eq!(space.contents().rss().anon, 1 + 2 * 512);
    space.mprotect(AT, 3 * HUGE, Prot::READ).unwrap();
    space.mprotect(AT, 3 * HUGE, READ_WRITE).unwrap();
    words(&machine, &space, AT + 2 * HUGE..AT + 3 * HUGE, 9, true);
    drop(space);
    assert_eq!(machine.free_frames(), before);
}

/// Of a folio that is mapped in part the rest becomes free, when memory is short or by advice.
#[test]
fn folios_are_split_on_demotion() {
    let (machine, swap) = machine_with_swap(FRAMES, 1024);
    let zero = zero(&machine);
    let before = machine.free_frames();
    let system = system::<X86_64>(&machine, &swap);
    let space: Space<'_> = Space::new(Epoch, RwLock::new(()), paged(&system, zero.frame(), 9, 9), WIDE);
    space.mmap(&anonymous(1024).at(AT)).unwrap();
    words(&machine, &space, AT..AT + 2 * HUGE, 0, true);
    assert_eq!(space.split(AT + 5 * PAGE, PAGE), Ok(1));
    assert_eq!((folio(&machine, &space, AT), folio(&machine, &space, AT + HUGE)), (0, 9));
    // Each piece is found, and leaves alone.
    let frame = space.contents().access(AT + 9 * PAGE, Access::Read).unwrap();
    assert_eq!(system.find(frame).unwrap().len(), 1);
    assert_eq!(space.page_out(AT + 9 * PAGE, PAGE), Ok(PAGE));
    words(&machine, &space, AT..AT + 2 * HUGE, 0, false);
    // Half of the other goes; its frames do when somebody needs some, also where a child maps the rest.
    let child = fork_in(&space, zero.frame()).unwrap();
    for space in [&space, &child] {
        space.munmap(AT + HUGE, HUGE / 2).unwrap();
    }
    let free = machine.free_frames();
    system.age();
    system.age();
    let done = system.reclaim(&(), 2000);
    assert!(done.split == 256 && machine.free_frames() >= free + 256, "{done:?}");
    assert_eq!(space.split(AT + HUGE + HUGE / 2, HUGE / 2), Ok(0), "these are pages now");
    for space in [&space, &child] {
        words(&machine, space, AT..AT + HUGE, 0, false);
        words(&machine, space, AT + HUGE + HUGE / 2..AT + 2 * HUGE, 0, false);
    }
    drop((space, child));
    assert_eq!((machine.free_frames(), swap.area.used()), (before, 0));
}

/// A folio that is split while it is locked, or unlocked: all of its pages are what the space says in the end.
#[test]
fn pages_of_a_folio_that_is_split_are_locked_as_it_was() {
    for round in 0..200 {
        let (machine, swap) = machine_with_swap(FRAMES, 16);
        let zero = zero(&machine);
        let system = system::<X86_64>(&machine, &swap);
        let space: Space<'_> = Space::new(Epoch, RwLock::new(()), paged(&system, zero.frame(), 9, 9), WIDE);
        // Other memory that stays locked, so that marks count.
        for (at, pages) in [(AT - HUGE, 1), (AT, 512)] {
            space.mmap(&anonymous(pages).at(at)).unwrap();
        }
        space.mlock(AT - HUGE, PAGE, false).unwrap();
        let lock = round % 2 == 0;
        if !lock {
            space.mlock(AT, HUGE, false).unwrap();
        }
        word(&machine, &space, AT, Some(1)).unwrap();
        let head = space.contents().access(AT, Access::Read).unwrap();
        assert_eq!(folio(&machine, &space, AT), 9);
        let start = Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                start.wait();
                system.split(head).unwrap();
            });
            start.wait();
            // At another moment of the split each time.
            (0..round * 20).for_each(|_| std::hint::spin_loop());
            if lock { space.mlock(AT, HUGE, false).unwrap() } else { space.munlock(AT, HUGE).unwrap() }
        });
        for n in 0..512 {
            assert_eq!(system.is_locked(&(), head.add(n)), lock, "page {n} in round {round}");
        }
    }
}

/// A folio has one mark: who unlocks some of its pages leaves the others locked.
#[test]
fn the_rest_of_a_folio_stays_locked() {
    let give_up: [fn(&Space<'_>, u64); 2] =
        [|space, at| space.munlock(at, PAGE).unwrap(), |space, at| space.munmap(at, PAGE).unwrap()];
    for give_up in give_up {
        let (machine, swap) = machine_with_swap(FRAMES, 2048);
        let zero = zero(&machine);
        let system = system::<X86_64>(&machine, &swap);
        let space: Space<'_> = Space::new(Epoch, RwLock::new(()), paged(&system, zero.frame(), 9, 9), WIDE);
        space.mmap(&anonymous(1024).at(AT)).unwrap();
        // Other memory that stays locked, so that marks count.
        space.mmap(&anonymous(1).at(AT - HUGE)).unwrap();
        words(&machine, &space, AT..AT + 2 * HUGE, 0, true);
        space.mlock(AT - HUGE, PAGE, false).unwrap();
        space.mlock(AT, 2 * HUGE, false).unwrap();
        give_up(&space, AT + 3 * PAGE);
        // Beside pages that were written to, which are other runs.
        words(&machine, &space, AT + 4 * PAGE..AT + 9 * PAGE, 0, true);
        let resident = |from: u64| {
            while system.reclaim(&(), 2000).total() > 0 {}
            let mapped = |&at: &u64| matches!(space.contents().mapping(at), Mapping::Page { .. });
            (from..from + HUGE).step_by(PAGE as usize).filter(mapped).count()
        };
        assert!(resident(AT) >= 511);
        assert_eq!(resident(AT + HUGE), 512);
        // The second folio is unlocked as a whole, and the rest of the first with what is mapped of it.
        space.munlock(AT + HUGE, HUGE).unwrap();
        assert_eq!(resident(AT + HUGE), 0);
        assert!(resident(AT) >= 511);
        space.munlock(AT - HUGE, PAGE).unwrap();
        space.munlock(AT, 3 * PAGE).unwrap();
        space.munlock(AT + 4 * PAGE, HUGE - 4 * PAGE).unwrap();
        assert_eq!(resident(AT), 0, "nothing is locked any more");
    }
}

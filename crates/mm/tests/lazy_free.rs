//! `MADV_FREE`: pages that are given up leave without swap, unless they were written to since.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use std::num::NonZeroU64;
use std::sync::RwLock;
use std::sync::atomic::Ordering;

use common::host::*;
use common::swap::*;
use common::{PAGE, SMALL, anonymous};
use isotherm_mm::*;
use isotherm_page::{Folio, Frame, Order};
use isotherm_pagetable::host::HostMachine;
use isotherm_pagetable::{Arm64Hafdbs, Arm64Software, Format, Mapping, X86_64};
use isotherm_rcu::Epoch;

const AT: u64 = 32 * PAGE;

fn rss(space: &Space<'_, impl Format>) -> (u64, u64) {
    let rss = space.contents().rss();
    (rss.anon, rss.swap)
}

fn frame<F: Format>(space: &Space<'_, F>, at: u64) -> Frame {
    match space.contents().mapping(at) {
        Mapping::Page { frame, .. } => frame,
        other => panic!("{other:?} at {at:#x}"),
    }
}

/// Pages `0..n` from [`AT`] on, of which each has its number and one.
fn fill<F: Format>(machine: &HostMachine, space: &Space<'_, F>, n: u64) {
    space.mmap(&anonymous(n).at(AT)).unwrap();
    for page in 0..n {
        word(machine, space, AT + page * PAGE, Some(page + 1)).unwrap();
    }
}

/// What was given up leaves by any way, although nothing can be written to swap; what was written to since does not.
#[test]
fn what_is_given_up_leaves_without_swap_unless_it_was_written_to() {
    fn check<F: Format>() {
        let (machine, swap) = machine_with_swap(FRAMES, 64);
        let zero = zero(&machine);
        let system = system::<F>(&machine, &swap);
        let space = space_in(&system, zero.frame());
        fill(&machine, &space, 12);
        swap.flaky.writes_fail.store(true, Ordering::Relaxed);
        space.lazy_free(AT, 8 * PAGE).unwrap();
        assert_eq!(rss(&space), (12, 0), "until memory is needed they are there");
        assert_eq!(word(&machine, &space, AT, None), Ok(1), "and what they were");
        let faults = space.lock_stats().lookups();
        word(&machine, &space, AT + PAGE, Some(77)).unwrap();
        if F::HARDWARE_DIRTY {
            assert_eq!(space.lock_stats().lookups(), faults, "no fault is needed to take one back");
        }
        let free = machine.free_frames();
        // By advice, from below, and by reclaim, which spares the one that was read since.
        assert_eq!(space.page_out(AT + 2 * PAGE, PAGE), Ok(PAGE));
        let third = frame(&space, AT + 3 * PAGE);
        assert_eq!(system.swap_out(third), Ok(()));
        system.age();
        word(&machine, &space, AT, None).unwrap();
        let done = system.reclaim(&(), 4);
        assert_eq!((done.lazy, done.anon, machine.free_frames()), (4, 0, free + 6), "{done:?}");
        assert_eq!((rss(&space), swap.area.used(), system.stats().lazy_freed), ((6, 0), 0, 6));
        for page in [0, 8, 9, 10, 11] {
            assert_eq!(word(&machine, &space, AT + page * PAGE, None), Ok(page + 1));
        }
        assert_eq!(word(&machine, &space, AT + PAGE, None), Ok(77));
        for page in 2..8 {
            assert_eq!(word(&machine, &space, AT + page * PAGE, None), Ok(0), "page {page}");
        }
        // What was taken back is an ordinary page: it stays if swap fails, and is swapped out if not.
        assert_eq!(space.page_out(AT + PAGE, PAGE), Ok(0));
        assert_eq!(word(&machine, &space, AT + PAGE, None), Ok(77));
        swap.flaky.writes_fail.store(false, Ordering::Relaxed);
        assert_eq!(space.page_out(AT + PAGE, PAGE), Ok(PAGE));
        assert_eq!((swap.area.used(), word(&machine, &space, AT + PAGE, None)), (1, Ok(77)));
    }
    check::<X86_64>();
    check::<Arm64Hafdbs>();
    check::<Arm64Software>();
}

/// Clean is not given up: swap that fails leaves pages clean.
#[test]
fn what_swap_has_made_clean_is_not_given_up() {
    let (machine, swap) = machine_with_swap(FRAMES, 64);
    let zero = zero(&machine);
    let system = system::<X86_64>(&machine, &swap);
    let space = space_in(&system, zero.frame());
    fill(&machine, &space, 2);
    space.lazy_free(AT, PAGE).unwrap();
    word(&machine, &space, AT, Some(5)).unwrap();
    swap.flaky.writes_fail.store(true, Ordering::Relaxed);
    for _ in 0..3 {
        assert_eq!(space.page_out(AT, 2 * PAGE), Ok(0));
        assert_eq!(system.swap_out(frame(&space, AT)), Err(Kept::Swap(SwapError::Failed)));
    }
    assert_eq!(word(&machine, &space, AT, None), Ok(5));
    assert_eq!(word(&machine, &space, AT + PAGE, None), Ok(2));
    // Given up in this state, it goes; written to, it does not.
    space.lazy_free(AT, 2 * PAGE).unwrap();
    word(&machine, &space, AT, Some(6)).unwrap();
    assert_eq!(space.page_out(AT, 2 * PAGE), Ok(PAGE));
    assert_eq!(word(&machine, &space, AT, None), Ok(6));
    assert_eq!(word(&machine, &space, AT + PAGE, None), Ok(0));
}

/// Pages of a frame that was given up are the next owner's, and no reference may be left to them.
#[test]
fn what_becomes_of_a_page_later_is_not_given_up() {
    let (machine, swap) = machine_with_swap(FRAMES, 64);
    let zero = zero(&machine);
    let system = system::<X86_64>(&machine, &swap);
    let space = space_in(&system, zero.frame());
    fill(&machine, &space, 4);
    space.lazy_free(AT, 4 * PAGE).unwrap();
    // Its frames go, and come back, as others' pages and as its own.
    space.discard(AT, 4 * PAGE).unwrap();
    for page in 0..4 {
        word(&machine, &space, AT + page * PAGE, Some(page + 10)).unwrap();
    }
    // Read-only, so that the entries are not dirty any more than they were.
    assert_eq!(space.page_out(AT, 2 * PAGE), Ok(2 * PAGE));
    assert_eq!(swap.area.used(), 2);
    for page in 0..4 {
        assert_eq!(word(&machine, &space, AT + page * PAGE, None), Ok(page + 10));
    }
    space.lazy_free(AT, PAGE).unwrap();
    let held = Folio::get(&machine, frame(&space, AT)).unwrap();
    assert_eq!(system.swap_out(held.head()), Err(Kept::InUse));
    let pinned = held.pin();
    assert_eq!((space.page_out(AT, PAGE), word(&machine, &space, AT, None)), (Ok(0), Ok(10)));
    drop(pinned);
    assert_eq!((space.page_out(AT, PAGE), word(&machine, &space, AT, None)), (Ok(PAGE), Ok(0)));
}

#[test]
fn what_is_in_swap_is_dropped_at_once() {
    let (machine, swap) = machine_with_swap(FRAMES, 64);
    let zero = zero(&machine);
    let system = system::<X86_64>(&machine, &swap);
    let space = space_in(&system, zero.frame());
    fill(&machine, &space, 6);
    space.page_out(AT, 4 * PAGE).unwrap();
    let child = fork_in(&space, zero.frame()).unwrap();
    assert_eq!((rss(&space), rss(&child), swap.area.used()), ((2, 4), (2, 4), 4));
    space.lazy_free(AT + PAGE, 4 * PAGE).unwrap();
    assert_eq!((rss(&space), rss(&child), swap.area.used()), ((2, 1), (2, 4), 4), "the child has them still");
    assert_eq!(word(&machine, &space, AT + PAGE, None), Ok(0));
    assert_eq!(word(&machine, &space, AT, None), Ok(1));
    child.lazy_free(AT + PAGE, 5 * PAGE).unwrap();
    assert_eq!((rss(&child), swap.area.used()), ((2, 1), 1));
    drop(child);
    drop(space);
    assert_eq!(swap.area.used(), 0);
}

/// What others map is theirs too; what was given up before a fork, both have given up, until one writes.
#[test]
fn forks() {
    let (machine, swap) = machine_with_swap(FRAMES, 64);
    let zero = zero(&machine);
    let system = system::<X86_64>(&machine, &swap);
    let space = space_in(&system, zero.frame());
    fill(&machine, &space, 4);
    space.lazy_free(AT, 2 * PAGE).unwrap();
    let child = fork_in(&space, zero.frame()).unwrap();
    // Shared: not given up.
    space.lazy_free(AT + 2 * PAGE, 2 * PAGE).unwrap();
    child.lazy_free(AT + 2 * PAGE, 2 * PAGE).unwrap();
    word(&machine, &child, AT, Some(50)).unwrap();
    for page in 0..4 {
        assert_eq!(system.swap_out(frame(&space, AT + page * PAGE)), Ok(()));
    }
    assert_eq!((rss(&space), rss(&child), swap.area.used()), ((0, 2), (1, 2), 2));
    for (page, (mine, its)) in [(0, 50), (0, 0), (3, 3), (4, 4)].into_iter().enumerate() {
        let at = AT + page as u64 * PAGE;
        assert_eq!(word(&machine, &space, at, None), Ok(mine), "page {page}");
        assert_eq!(word(&machine, &child, at, None), Ok(its), "page {page}");
    }
}

#[test]
fn without_swap_it_leaves_too() {
    let machine = HostMachine::new(FRAMES);
    let zero = zero(&machine);
    let system = System::<X86_64, _>::new(&machine, FRAMES, None).unwrap();
    let space = space_in(&system, zero.frame());
    fill(&machine, &space, 6);
    assert_eq!(system.swap_out(frame(&space, AT)), Err(Kept::NoSwap));
    space.lazy_free(AT, 4 * PAGE).unwrap();
    word(&machine, &space, AT, Some(9)).unwrap();
    assert_eq!(system.swap_out(frame(&space, AT)), Err(Kept::NoSwap));
    let done = system.reclaim(&(), 100);
    assert_eq!((done.lazy, done.anon, rss(&space)), (3, 0, (3, 0)), "{done:?}");
    assert_eq!(word(&machine, &space, AT, None), Ok(9));
    assert_eq!(word(&machine, &space, AT + PAGE, None), Ok(0));
}

/// A program that needs more memory than there is gets what it has given up, without an error.
#[test]
fn a_fault_takes_what_was_given_up() {
    let machine = HostMachine::new(64);
    let zero = zero(&machine);
    let system = System::<X86_64, _>::new(&machine, 64, None).unwrap();
    let space = space_in(&system, zero.frame());
    space.mmap(&anonymous(400).at(AT)).unwrap();
    for page in 0..400 {
        word(&machine, &space, AT + page * PAGE, Some(page)).unwrap();
        space.lazy_free(AT + page * PAGE, PAGE).unwrap();
    }
    assert!(system.stats().lazy_freed > 300, "{:?}", system.stats());
}

#[test]
fn what_cannot_be_given_up() {
    let (machine, swap) = machine_with_swap(FRAMES, 64);
    let zero = zero(&machine);
    let system = system::<X86_64>(&machine, &swap);
    let space = space_in(&system, zero.frame());
    fill(&machine, &space, 8);
    assert_eq!(space.lazy_free(AT + 1, PAGE), Err(Error::Invalid));
    assert_eq!(space.lazy_free(AT, 0), Ok(()));
    assert_eq!(space.lazy_free(AT, u64::MAX), Err(Error::Invalid));
    // A hole is an error, and the rest is given up; what is locked ends it there.
    space.munmap(AT + 2 * PAGE, PAGE).unwrap();
    space.mlock(AT + 5 * PAGE, PAGE, false).unwrap();
    assert_eq!(space.lazy_free(AT, 5 * PAGE), Err(Error::Hole));
    assert_eq!(space.lazy_free(AT + 3 * PAGE, 5 * PAGE), Err(Error::Invalid));
    assert_eq!(space.lazy_free(AT + 2 * PAGE, PAGE), Err(Error::Hole));
    let maps = space.usage().maps;
    space.munlock(AT + 5 * PAGE, PAGE).unwrap();
    assert_eq!((maps, space.usage().maps), (4, 2), "advice of this kind splits nothing");
    swap.flaky.writes_fail.store(true, Ordering::Relaxed);
    assert_eq!(space.page_out(AT + 3 * PAGE, 5 * PAGE), Ok(2 * PAGE));
    assert_eq!(space.page_out(AT, 2 * PAGE), Ok(2 * PAGE));
    for (page, value) in [(0, 0), (1, 0), (3, 0), (4, 0), (5, 6), (6, 7), (7, 8)] {
        assert_eq!(word(&machine, &space, AT + page * PAGE, None), Ok(value), "page {page}");
    }
    // The zero page is not one to be given up, and what is without permission is.
    space.mmap(&anonymous(2).at(AT)).unwrap();
    word(&machine, &space, AT, None).unwrap();
    word(&machine, &space, AT + PAGE, Some(3)).unwrap();
    space.mprotect(AT, 2 * PAGE, Prot::empty()).unwrap();
    space.lazy_free(AT, 2 * PAGE).unwrap();
    assert_eq!((space.page_out(AT, 2 * PAGE), rss(&space).0), (Ok(PAGE), 3));
    assert!(matches!(space.contents().mapping(AT), Mapping::Page { attributes, .. } if attributes.special));
    // Objects are refused before anything is looked at.
    let source = Source::Object { id: NonZeroU64::new(9).unwrap(), offset: 0, rights: Prot::all() };
    let layout = common::space(SMALL);
    for flags in [MapFlags::empty(), MapFlags::SHARED] {
        let request = MapRequest { source, flags: flags | MapFlags::FIXED, ..anonymous(2).at(AT) };
        layout.mmap(&request).unwrap();
        assert_eq!(layout.lazy_free(AT, PAGE), Err(Error::Invalid));
    }
}

fn large<'m, F: Format>(system: &System<'m, F, HostMachine>, zero: Frame, order: u8) -> Space<'m, F> {
    let always = Order::new(order).unwrap();
    let folios = Folios { always, advised: always };
    let contents = Paged::in_system(system, 1, zero, ()).unwrap().with_folios(folios);
    Space::new(Epoch, RwLock::new(()), contents, Config { end: 2048 * PAGE, ..SMALL })
}

/// Of large folios a part is given up once they are split, and as a whole they leave as a whole.
#[test]
fn large_folios() {
    fn check<F: Format>(order: u8, at: u64) {
        let (machine, swap) = machine_with_swap(FRAMES, 2048);
        let zero = zero(&machine);
        let before = machine.free_frames();
        let system = system::<F>(&machine, &swap);
        let space = large(&system, zero.frame(), order);
        let pages = 1 << order;
        space.mmap(&anonymous(3 * pages).at(at)).unwrap();
        for page in 0..3 * pages {
            word(&machine, &space, at + page * PAGE, Some(page + 1)).unwrap();
        }
        assert_eq!(rss(&space).0, 3 * pages);
        swap.flaky.writes_fail.store(true, Ordering::Relaxed);
        // The second half of the first, all of the second, and one page of the third.
        space.lazy_free(at + pages / 2 * PAGE, (pages + pages / 2 + 1) * PAGE).unwrap();
        let kept = pages + pages / 2;
        word(&machine, &space, at + (pages + 3) * PAGE, Some(7)).unwrap();
        let given_up = |page: u64| {
            let Mapping::Page { frame, attributes, .. } = space.contents().mapping(at + page * PAGE) else {
                panic!("gone")
            };
            Folio::get(&machine, frame).unwrap().is_lazy_free() && !attributes.dirty
        };
        assert!(!given_up(0) && given_up(pages - 1) && given_up(2 * pages) && !given_up(2 * pages + 1));
        system.age();
        system.age();
        let mut gone = 0;
        while let done @ 1.. = system.reclaim(&(), u64::MAX).total() {
            gone += done;
        }
        // The entry of a huge leaf, or of a block, is dirty as a whole.
        assert!((gone..gone + pages).contains(&(3 * pages - rss(&space).0)), "{gone} {:?}", rss(&space));
        assert!(rss(&space).0 >= kept && rss(&space).1 == 0);
        assert!(system.stats().lazy_freed > pages / 2);
        for page in 0..3 * pages {
            let found = word(&machine, &space, at + page * PAGE, None).unwrap();
            match page {
                _ if page == pages + 3 => assert_eq!(found, 7),
                _ if page < pages / 2 || page > 2 * pages => assert_eq!(found, page + 1),
                _ => assert!(found == 0 || found == page + 1),
            }
        }
        drop(space);
        drop(system);
        assert_eq!(machine.free_frames(), before);
    }
    check::<X86_64>(2, AT);
    check::<X86_64>(9, 512 * PAGE);
    check::<Arm64Hafdbs>(4, AT);
    check::<Arm64Hafdbs>(9, 512 * PAGE);
}

/// Without a table to split a huge leaf the advice does nothing, and nothing is lost.
#[test]
fn without_tables_a_huge_leaf_is_kept() {
    let (machine, swap) = machine_with_swap(FRAMES, 2048);
    let zero = zero(&machine);
    let system = system::<X86_64>(&machine, &swap);
    let space = large(&system, zero.frame(), 9);
    space.mmap(&anonymous(512).at(512 * PAGE)).unwrap();
    word(&machine, &space, 512 * PAGE, Some(1)).unwrap();
    machine.set_budget(0, 0);
    assert_eq!(space.lazy_free(520 * PAGE, 8 * PAGE), Ok(()));
    machine.set_budget(u64::MAX, u64::MAX);
    assert_eq!((rss(&space), word(&machine, &space, 520 * PAGE, None)), ((512, 0), Ok(0)));
    let Mapping::Page { frame, attributes, .. } = space.contents().mapping(520 * PAGE) else {
        panic!("gone")
    };
    assert!(attributes.dirty && !Folio::get(&machine, frame).unwrap().is_lazy_free());
    space.lazy_free(520 * PAGE, 8 * PAGE).unwrap();
    swap.flaky.writes_fail.store(true, Ordering::Relaxed);
    assert_eq!(space.page_out(512 * PAGE, 512 * PAGE), Ok(8 * PAGE));
    assert_eq!(word(&machine, &space, 512 * PAGE, None), Ok(1));
}

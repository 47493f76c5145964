//! Rules of layout, one by one.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use std::num::NonZeroU64;
use std::sync::RwLock;

use common::*;
use isotherm_mm::*;

fn object(id: u64, page: u64, pages: u64, at: u64) -> MapRequest {
    let source =
        Source::Object { id: NonZeroU64::new(id).unwrap(), offset: page * PAGE, rights: Prot::all() };
    MapRequest { source, ..anonymous(pages).at(at * PAGE) }
}

fn map(space: &Space, at: u64, pages: u64) {
    assert_eq!(space.mmap(&anonymous(pages).at(at * PAGE)), Ok(at * PAGE));
}

#[test]
fn neighbours_that_are_alike_become_one_vma() {
    let space = space(SMALL);
    map(&space, 30, 2);
    map(&space, 34, 2);
    map(&space, 32, 2);
    assert_eq!(ranges(&space), [(30, 36)]);
    space.mprotect(32 * PAGE, 2 * PAGE, Prot::READ).unwrap();
    assert_eq!(ranges(&space), [(30, 32), (32, 34), (34, 36)]);
    // What was never written is not committed any more without the right to: then it is, and merges again.
    space.mprotect(32 * PAGE, 2 * PAGE, Prot::READ | Prot::WRITE).unwrap();
    assert_eq!(ranges(&space), [(30, 36)]);
}

#[test]
fn nothing_comes_to_lie_below_the_lowest_address_by_whatever_call() {
    let space = space(SMALL);
    map(&space, 30, 2);
    let fixed = RemapFlags::MAYMOVE | RemapFlags::FIXED;
    assert_eq!(space.mremap(30 * PAGE, 2 * PAGE, 2 * PAGE, fixed, 0), Err(Error::TooLow));
    assert_eq!(space.mremap(30 * PAGE, 2 * PAGE, 2 * PAGE, fixed, 15 * PAGE), Err(Error::TooLow));
    assert_eq!(ranges(&space), [(30, 32)]);
    assert_eq!(space.mmap(&anonymous(1).at(PAGE)), Err(Error::TooLow));
    // A hint is passed over.
    let leaves = RemapFlags::MAYMOVE | RemapFlags::DONTUNMAP;
    let at = space.mremap(30 * PAGE, 2 * PAGE, 2 * PAGE, leaves, PAGE).unwrap();
    assert!(at >= SMALL.lowest, "{at:#x}");
}

#[test]
fn objects_merge_only_where_the_offset_continues() {
    let space = space(SMALL);
    for (at, page) in [(30, 5), (32, 7), (34, 10)] {
        space.mmap(&object(1, page, 2, at)).unwrap();
    }
    space.mmap(&object(2, 12, 2, 36)).unwrap();
    assert_eq!(ranges(&space), [(30, 34), (34, 36), (36, 38)]);
    let found = space.find(33 * PAGE).unwrap();
    assert_eq!(found.object, Some((NonZeroU64::new(1).unwrap(), 5)));
}

#[test]
fn vmas_with_pages_of_their_own_do_not_merge_with_others_that_have_them() {
    let space = space(SMALL);
    map(&space, 30, 2);
    map(&space, 34, 2);
    space.prepare_anon(30 * PAGE).unwrap();
    space.prepare_anon(34 * PAGE).unwrap();
    map(&space, 32, 2);
    // The first takes what has none; the second has other pages than the first.
    assert_eq!(ranges(&space), [(30, 34), (34, 36)]);
    // A neighbour that had none yet takes those of the one that it might merge with, whatever it permits now.
    let flags = MapFlags::FIXED | MapFlags::NORESERVE;
    space.mmap(&MapRequest { flags, ..anonymous(2).at(40 * PAGE) }).unwrap();
    space.mmap(&MapRequest { flags, prot: Prot::READ, ..anonymous(2).at(42 * PAGE) }).unwrap();
    space.prepare_anon(40 * PAGE).unwrap();
    space.prepare_anon(42 * PAGE).unwrap();
    assert_eq!(ranges(&space)[2..], [(40, 42), (42, 44)]);
    space.mprotect(40 * PAGE, 2 * PAGE, Prot::READ).unwrap();
    assert_eq!(ranges(&space)[2..], [(40, 44)]);
}

#[test]
fn a_childs_pages_do_not_spread_to_neighbours() {
    let parent = space(SMALL);
    map(&parent, 30, 2);
    parent.prepare_anon(30 * PAGE).unwrap();
    let child = parent.fork(RwLock::new(()), ()).unwrap();
    map(&child, 32, 2);
    assert_eq!(ranges(&child), [(30, 32), (32, 34)]);
    map(&parent, 32, 2);
    assert_eq!(ranges(&parent), [(30, 34)]);
}

#[test]
fn a_fork_leaves_out_and_wipes_what_it_is_told_to() {
    let parent = space(SMALL);
    for at in [30, 34, 38] {
        map(&parent, at, 2);
        parent.prepare_anon(at * PAGE).unwrap();
    }
    parent.madvise(30 * PAGE, 2 * PAGE, Advice::DontFork).unwrap();
    parent.madvise(34 * PAGE, 2 * PAGE, Advice::WipeOnFork).unwrap();
    parent.mlock(38 * PAGE, PAGE, false).unwrap();
    parent.brk(SMALL.heap + PAGE);
    let child = parent.fork(RwLock::new(()), ()).unwrap();
    assert_eq!(ranges(&child), [(21, 22), (34, 36), (38, 39), (39, 40)]);
    assert_eq!(child.brk(0), SMALL.heap + PAGE);
    assert!(!child.find(34 * PAGE).unwrap().has_anon && child.find(38 * PAGE).unwrap().has_anon);
    assert_eq!((parent.usage().locked, child.usage().locked), (1, 0));
}

#[test]
fn a_stack_grows_and_keeps_its_guard_gap() {
    let space = space(SMALL);
    let stack = MapRequest { flags: MapFlags::FIXED | MapFlags::GROWSDOWN, ..anonymous(2).at(60 * PAGE) };
    space.mmap(&stack).unwrap();
    map(&space, 40, 2);
    assert_eq!(space.grow_stack(52 * PAGE), Ok(()));
    assert_eq!(ranges(&space), [(40, 42), (52, 62)]);
    // The gap is 8 pages: from page 50 on.
    assert_eq!(space.grow_stack(49 * PAGE), Err(Error::NoSpace));
    assert_eq!(space.grow_stack(50 * PAGE), Ok(()));
    // What may not be accessed may be nearer; so may another stack.
    space.mprotect(40 * PAGE, 2 * PAGE, Prot::empty()).unwrap();
    assert_eq!(space.grow_stack(43 * PAGE), Ok(()));
    assert_eq!(space.grow_stack(41 * PAGE), Ok(()), "mapped already");
    assert_eq!(space.grow_stack(39 * PAGE), Err(Error::BadAddress), "what lies above is no stack");
    // Nothing is placed in the gap, with a hint or without.
    let hint = MapRequest { address: 38 * PAGE, ..anonymous(1) };
    assert_eq!(space.mmap(&hint), Ok(38 * PAGE));
    space.munmap(30 * PAGE, 13 * PAGE).unwrap();
    let hint = MapRequest { address: 36 * PAGE, ..anonymous(1) };
    assert_ne!(space.mmap(&hint), Ok(36 * PAGE));
}

#[test]
fn limits_hold() {
    let limits = Limits { maps: 3, address_space: 10 * PAGE, data: 8 * PAGE, stack: 4 * PAGE, locked: PAGE };
    let space = space(Config { limits, ..SMALL });
    map(&space, 30, 5);
    assert_eq!(space.mmap(&anonymous(6)), Err(Error::Limit), "all");
    assert_eq!(space.mmap(&anonymous(4)), Err(Error::Limit), "data");
    // What is replaced does not count.
    map(&space, 30, 6);
    assert_eq!(space.mlock(30 * PAGE, 2 * PAGE, true), Err(Error::Limit));
    let locked = MapRequest { flags: MapFlags::LOCKED, ..anonymous(2) };
    assert_eq!(space.mmap(&locked), Err(Error::LockedLimit));
    // What is locked already does not count again, however it is locked.
    space.mlock(30 * PAGE, PAGE, false).unwrap();
    assert_eq!(space.mlock(30 * PAGE, PAGE, true), Ok(()));
    assert_eq!(space.mlock(30 * PAGE, 2 * PAGE, true), Err(Error::Limit), "one more");
    assert_eq!(space.usage().locked, 1);
    space.munlock(30 * PAGE, PAGE).unwrap();
    // One VMA, then two; a third is the last, and a fourth is not made.
    space.munmap(31 * PAGE, PAGE).unwrap();
    space.munmap(33 * PAGE, PAGE).unwrap();
    assert_eq!(ranges(&space), [(30, 31), (32, 33), (34, 36)]);
    map(&space, 34, 4);
    assert_eq!(space.munmap(35 * PAGE, PAGE), Err(Error::Limit));
    assert_eq!(space.mprotect(35 * PAGE, PAGE, Prot::READ), Err(Error::Limit));
    assert_eq!(ranges(&space), [(30, 31), (32, 33), (34, 38)]);
    assert_eq!(space.munmap(34 * PAGE, PAGE), Ok(()), "no VMA more");
    let stack = MapRequest {
        prot: Prot::READ,
        flags: MapFlags::FIXED | MapFlags::GROWSDOWN,
        ..anonymous(1).at(80 * PAGE)
    };
    space.mmap(&stack).unwrap();
    assert_eq!(space.grow_stack(76 * PAGE), Err(Error::Limit), "a stack of five pages");
    assert_eq!(space.grow_stack(77 * PAGE), Ok(()));
}

#[test]
fn a_limit_that_has_room_for_one_split_of_two_changes_nothing() {
    let limits = Limits { maps: 2, ..Config::X86_64.limits };
    let space = space(Config { limits, ..SMALL });
    map(&space, 30, 4);
    assert_eq!(space.mprotect(31 * PAGE, 2 * PAGE, Prot::READ), Err(Error::Limit));
    assert_eq!((ranges(&space), space.usage().maps), (vec![(30, 34)], 1));
    assert_eq!(space.mprotect(31 * PAGE, 3 * PAGE, Prot::READ), Ok(()));
    assert_eq!(ranges(&space), [(30, 31), (31, 34)]);
}

#[test]
fn bottom_up_places_from_the_base() {
    let space = space(Config { bottom_up: true, ..SMALL });
    assert_eq!(space.mmap(&anonymous(2)), Ok(100 * PAGE));
    assert_eq!(space.mmap(&anonymous(2)), Ok(102 * PAGE));
    assert_eq!(space.mmap(&anonymous(32)), Ok(128 * PAGE), "aligned to a huge page");
    assert_eq!(space.mmap(&anonymous(2)), Ok(104 * PAGE));
}

#[test]
fn what_may_not_be_permitted_is_not() {
    let space = space(SMALL);
    let rights = Prot::READ;
    let source = Source::Object { id: NonZeroU64::MIN, offset: 0, rights };
    let request = MapRequest { source, prot: Prot::READ, flags: MapFlags::SHARED, ..anonymous(2) };
    let at = space.mmap(&request).unwrap();
    assert_eq!(space.mprotect(at, PAGE, Prot::READ | Prot::WRITE), Err(Error::Access));
    assert_eq!(space.mprotect(at, PAGE, Prot::EXEC), Err(Error::Access));
    let writes = MapRequest { prot: Prot::READ | Prot::WRITE, ..request };
    assert_eq!(space.mmap(&writes), Err(Error::Access));
    // A private mapping may be written: the copy is the space's own.
    let private = MapRequest { flags: MapFlags::empty(), ..writes };
    assert!(space.mmap(&private).is_ok());
    assert_eq!(space.mmap(&anonymous(1).at(15 * PAGE)), Err(Error::TooLow));
    assert_eq!(Error::TooLow.errno(), 1);
}

/// Whatever is allocated last fails, and nothing has changed; then it succeeds.
#[test]
fn without_memory_nothing_changes() {
    type Act = fn(&Space) -> Result<(), Error>;
    let acts: [(&str, Act); 11] = [
        ("mmap", |space| space.mmap(&anonymous(3)).map(drop)),
        ("mmap that replaces", |space| {
            space.mmap(&MapRequest { prot: Prot::READ, ..anonymous(9).at(31 * PAGE) }).map(drop)
        }),
        ("mmap in the middle", |space| {
            space.mmap(&MapRequest { prot: Prot::EXEC, ..anonymous(1).at(32 * PAGE) }).map(drop)
        }),
        ("munmap in the middle", |space| space.munmap(32 * PAGE, PAGE)),
        ("munmap of many", |space| space.munmap(31 * PAGE, 8 * PAGE)),
        ("mprotect of a half", |space| space.mprotect(33 * PAGE, PAGE, Prot::EXEC)),
        ("mprotect in the middle", |space| space.mprotect(31 * PAGE, 2 * PAGE, Prot::EXEC)),
        ("mlock in the middle", |space| space.mlock(32 * PAGE, PAGE, true)),
        ("mremap", |space| space.mremap(36 * PAGE, 2 * PAGE, 4 * PAGE, RemapFlags::MAYMOVE, 0).map(drop)),
        ("grow", |space| space.grow_stack(58 * PAGE)),
        ("fork", |space| space.fork(RwLock::new(()), ()).map(drop)),
    ];
    for (what, act) in acts {
        let space = space(SMALL);
        map(&space, 30, 4);
        space.mmap(&MapRequest { prot: Prot::READ, ..anonymous(4).at(36 * PAGE) }).unwrap();
        let stack = MapRequest { flags: MapFlags::FIXED | MapFlags::GROWSDOWN, ..anonymous(2).at(60 * PAGE) };
        space.mmap(&stack).unwrap();
        // So many VMAs that the tree has branches.
        for at in (100..200).step_by(2) {
            map(&space, at, 1);
        }
        let (before, usage) = (mappings(&space), space.usage());
        let mut failures = 0;
        loop {
            Failing::after(failures);
            let done = act(&space);
            Failing::after(u64::MAX);
            if done.is_ok() {
                break;
            }
            assert_eq!(done, Err(Error::NoMemory), "{what}");
            assert_eq!((mappings(&space), space.usage()), (before.clone(), usage), "{what}: {failures}");
            failures += 1;
        }
        assert!(failures > 0, "{what} needs memory");
    }
}

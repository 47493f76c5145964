//! Cases that are easy to get wrong, after the ideas of the kernel's own tests of its maple tree
//! (tools/testing/radix-tree/maple.c, lib/test_maple_tree.c).
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use common::{Both, Counting, Rcu, value};
use isotherm_maple::{BuildError, InsertError, MapleTree, Mapped, NoMemory, Reserve};
use std::ops::RangeInclusive;

/// Runs with a tree and its naive twin, compares them, and frees all nodes.
fn with(run: impl FnOnce(&mut Both<'_>)) {
    let rcu = Rcu::for_threads();
    let _joined = rcu.join().unwrap();
    let mut both = Both::new(&rcu);
    run(&mut both);
    both.check();
    drop(both);
    rcu.barrier();
}

/// The nth of ranges of ten with gaps of ten between them.
fn nth(n: u64) -> RangeInclusive<u64> {
    20 * n..=20 * n + 9
}

fn fill(both: &mut Both<'_>, count: u64) {
    (0..count).for_each(|n| both.store(nth(n), n as usize + 1));
}

#[test]
fn all_of_u64_is_one_range() {
    with(|both| {
        both.store(0..=u64::MAX, 1);
        both.check();
        both.store(5..=5, 2);
        both.store(u64::MAX..=u64::MAX, 3);
        both.store(0..=0, 4);
        both.check();
        both.erase(0..=u64::MAX);
        assert_eq!(both.tree.levels(), 0, "a tree of one gap has no node");
    });
}

/// An empty range changes nothing, whatever its bounds.
#[test]
#[expect(clippy::reversed_empty_ranges, reason = "they are what is tested")]
fn empty_ranges_are_nothing() {
    with(|both| {
        both.store(10..=20, 1);
        both.store(20..=10, 2);
        both.erase(15..=14);
        assert_eq!(both.tree.read().find(20..=10), None);
        assert_eq!(both.tree.try_write().unwrap().lowest_gap(1, 1, 20..=10), None);
    });
}

/// (check_root_expand) The tree grows from nothing by a range at 0, at the end, and in the middle.
#[test]
fn the_first_range_lies_anywhere() {
    for range in [0..=0, 0..=9, 5..=5, 7..=u64::MAX - 1, 7..=u64::MAX, u64::MAX..=u64::MAX] {
        with(|both| both.store(range, 1));
    }
}

/// (check_null_expand, check_gap_combining) What is erased joins the gaps beside it, also in the nodes beside it.
#[test]
fn gaps_join_within_and_across_nodes() {
    with(|both| {
        fill(both, 500);
        for n in (0..500).step_by(3) {
            both.erase(nth(n));
        }
        both.check();
        for n in (0..500).rev() {
            both.erase(nth(n));
            both.tree.try_write().unwrap().check();
        }
        assert_eq!(both.tree.levels(), 0);
    });
}

/// (check_spanning_write) One store replaces ranges of many leaves, with ends within ranges, at their ends, and in gaps.
#[test]
fn a_store_spans_leaves_and_branches() {
    for (first, last) in [(5, 5), (0, 9), (10, 19), (0, 0), (9, 10)] {
        for (from, to) in [(1, 3), (20, 70), (0, 1499), (3, 1400), (700, 702)] {
            with(|both| {
                fill(both, 1500);
                both.store(20 * from + first..=20 * to + last, 9999);
                both.check();
                both.erase(20 * from + last..=20 * to + first.max(last));
            });
        }
    }
}

/// (check_ranges) Entries and pivots at the borders of full nodes: each store at each place of a tree of two levels.
#[test]
fn splits_at_every_place() {
    for at in 0..70 {
        with(|both| {
            fill(both, 70);
            for delta in [0, 4, 9, 10, 14, 19] {
                both.store(20 * at + delta..=20 * at + delta, 5000 + delta as usize);
            }
        });
    }
}

/// (check_next_entry, check_prev_entry) Steps from where there is nothing, and past the ends.
#[test]
fn steps_start_anywhere() {
    with(|both| {
        fill(both, 200);
        let reader = both.tree.read();
        let one = |n: u64| Some(Mapped { first: 20 * n, last: 20 * n + 9, value: value(n as usize + 1) });
        assert_eq!(reader.find(15..=u64::MAX), one(1));
        assert_eq!(reader.find(15..=19), None);
        assert_eq!(reader.find(15..=20), one(1));
        assert_eq!(reader.find_back(0..=15), one(0));
        assert_eq!(reader.find_back(10..=15), None);
        assert_eq!(reader.find(4000..=u64::MAX), None);
        assert_eq!(reader.find_back(0..=u64::MAX), one(199));
        let mut iter = reader.range(25..=65);
        assert_eq!((iter.next(), iter.next_back(), iter.next(), iter.next()), (one(1), one(3), one(2), None));
        assert_eq!(iter.next_back(), None);
    });
}

/// (check_alloc_rev_range, check_alloc_range) As `mmap` looks for room: from the top down, and from the bottom up.
#[test]
fn gaps_are_found_from_either_end() {
    with(|both| {
        fill(both, 1000);
        both.erase(nth(500));
        let writer = both.tree.try_write().unwrap();
        let within = 0..=19_999;
        assert_eq!(writer.lowest_gap(11, 1, within.clone()), Some(20 * 499 + 10));
        assert_eq!(writer.highest_gap(11, 1, within.clone()), Some(20 * 500 + 9));
        assert_eq!(writer.lowest_gap(30, 1, within.clone()), Some(20 * 499 + 10));
        assert_eq!(writer.lowest_gap(31, 1, within.clone()), None);
        assert_eq!(writer.lowest_gap(16, 16, within.clone()), Some(10_000));
        assert_eq!(writer.highest_gap(16, 16, within.clone()), Some(10_000));
        assert_eq!(
            writer.lowest_gap(8, 8, within.clone()),
            Some(32),
            "10 to 19 holds no multiple of 8 that fits"
        );
        assert_eq!(writer.lowest_gap(31, 1, 0..=u64::MAX), Some(19_990));
        assert_eq!(writer.highest_gap(u64::MAX, 1, 0..=u64::MAX), None);
        assert_eq!(writer.highest_gap(1, 1 << 63, 0..=u64::MAX), Some(1 << 63));
        assert_eq!(writer.lowest_gap(5, 1, 12..=16), Some(12));
        assert_eq!(writer.lowest_gap(5, 1, 13..=16), None);
    });
    with(|both| {
        let writer = both.tree.try_write().unwrap();
        assert_eq!(writer.lowest_gap(u64::MAX, 1, 0..=u64::MAX), Some(0), "all but one index of nothing");
        assert_eq!(writer.highest_gap(0x1000, 0x1000, 0..=u64::MAX), Some(u64::MAX - 0xfff));
    });
}

/// (check_ma_wr_store, mas_store in place) What need not move does not: no memory is taken.
#[test]
fn what_fits_its_place_is_stored_in_place() {
    let rcu = Rcu::for_threads();
    let _joined = rcu.join().unwrap();
    let tree = MapleTree::<_, _, Counting>::build(&rcu, (0..9).map(|n| (nth(n), value(1)))).unwrap();
    let mut writer = tree.try_write().unwrap();
    Counting::with(0, || {
        writer.store(30..=39, value(7)).unwrap();
        assert_eq!(writer.replace(45, value(8)), Some(value(1)));
        // A range for another, for a gap between two, and back.
        writer.store(20..=29, value(9)).unwrap();
        writer.erase(35).unwrap().unwrap();
        writer.store(30..=39, value(10)).unwrap();
    });
    writer.check();
    let all: Vec<_> = writer.range(0..=59).map(|one| (one.first, one.value.get())).collect();
    assert_eq!(all, [(0, 1), (20, 9), (30, 10), (40, 8)]);
}

/// What the README says of memory: a node for 27 entries that are built, and at most three a level for a store.
#[test]
fn memory_is_what_the_readme_says() {
    let rcu = Rcu::for_threads();
    let _joined = rcu.join().unwrap();
    let tree = MapleTree::<_, _, Counting>::build(&rcu, (0..100_000).map(|n| (nth(n), value(1)))).unwrap();
    assert_eq!(tree.levels(), 4, "100,000 ranges with gaps");
    let (leaves, live) = (200_000 / 27, Counting::live());
    assert!((leaves..leaves + leaves / 25).contains(&live), "{live} nodes");
    let mut writer = tree.try_write().unwrap();
    let mut most = 0;
    for n in 0..2000 {
        let (first, length) = (977 * n, [3, 25, 300, 40_000][n as usize % 4]);
        let before = Counting::live();
        writer.store(first..=first + length, value(2)).unwrap();
        // Nothing is freed meanwhile.
        most = most.max(Counting::live() - before);
    }
    assert!((4..=3 * 4 + 1).contains(&most), "{most} nodes");
    drop(writer);
    drop(tree);
    rcu.barrier();
    assert_eq!(Counting::live(), 0);
}

/// As a program maps one area below the other. Halves of nodes that nothing is added to any more would be 2,600.
#[test]
fn stores_in_order_fill_nodes() {
    const COUNT: u64 = 20_000;
    for down in [false, true] {
        let rcu = Rcu::for_threads();
        let _joined = rcu.join().unwrap();
        let tree = MapleTree::<_, _, Counting>::new_in(&rcu);
        let mut writer = tree.try_write().unwrap();
        for n in 0..COUNT {
            writer.store(nth(if down { COUNT - 1 - n } else { n }), value(1)).unwrap();
        }
        writer.check();
        rcu.barrier();
        // Each range and its gap are two entries.
        let (entries, live) = (2 * COUNT as isize, Counting::live());
        assert!(live < entries / 20, "{live} nodes of {entries} entries, down: {down}");
        drop(writer);
        drop(tree);
        assert_eq!(Counting::live(), 0);
    }
}

#[test]
fn an_occupied_range_is_left_alone() {
    with(|both| {
        fill(both, 10);
        let mut writer = both.tree.try_write().unwrap();
        let taken = Mapped { first: 40, last: 49, value: value(3) };
        assert_eq!(writer.insert(30..=45, value(99)), Err(InsertError::Occupied(taken)));
        assert_eq!(writer.reserve(1).unwrap().insert(30..=45, value(99)), Err(taken));
        assert_eq!(writer.erase(35).unwrap(), None);
        assert_eq!(writer.replace(35, value(99)), None);
    });
}

#[test]
fn there_is_one_writer() {
    with(|both| {
        let writer = both.tree.try_write().unwrap();
        assert!(both.tree.try_write().is_none());
        drop(writer);
        assert!(both.tree.try_write().is_some());
    });
}

/// (check_dead_node, mas_dead_node) An iteration goes on in what replaced its leaf.
#[test]
fn an_iteration_goes_on_when_its_leaf_dies() {
    with(|both| {
        fill(both, 100);
        let mut seen = Vec::new();
        let reader = both.tree.read();
        let mut iter = reader.iter();
        for n in 0..100_u64 {
            seen.push(iter.next().unwrap().first);
            // The next but one is gone before the iteration comes to it, and the one after is another.
            let mut writer = both.tree.try_write().unwrap();
            if n % 4 == 1 && n < 90 {
                writer.erase_range(nth(n + 2)).unwrap();
                writer.store(20 * (n + 2) + 15..=20 * (n + 2) + 15, value(1)).unwrap();
            }
        }
        let expected = (0..100).map(|n| if n % 4 == 3 && n < 92 { 20 * n + 15 } else { 20 * n });
        assert_eq!(seen, expected.collect::<Vec<u64>>());
        drop(reader);
        both.naive.0 = both.tree.read().iter().collect();
    });
}

#[test]
fn what_is_not_sorted_is_not_built() {
    let rcu = Rcu::for_threads();
    let _joined = rcu.join().unwrap();
    let build = |ranges: &[RangeInclusive<u64>]| {
        let tree = MapleTree::<_, _>::build(&rcu, ranges.iter().map(|range| (range.clone(), value(1))));
        tree.map(|tree| tree.read().iter().count())
    };
    let many: Vec<_> = (0..1000).map(nth).chain([0..=1]).collect();
    assert_eq!(build(&[0..=5, 6..=6, 10..=u64::MAX]), Ok(3));
    assert_eq!(build(&[0..=5, 5..=6]), Err(BuildError::Unsorted(5)));
    assert_eq!(build(&[0..=u64::MAX, 0..=0]), Err(BuildError::Unsorted(0)));
    assert_eq!(build(&many), Err(BuildError::Unsorted(0)));
    assert_eq!(build(&[]), Ok(0));
}

/// Each operation fails at each allocation in turn: nothing has changed, nothing leaks, and with a reserve none fails.
#[test]
fn a_store_without_memory_changes_nothing() {
    let rcu = Rcu::for_threads();
    let _joined = rcu.join().unwrap();
    let ranges = || (0..1200).map(|n| (nth(n), value(n as usize + 1)));
    for range in [5..=5, 100..=20_000, 15..=17, 0..=9, 11_990..=12_030] {
        for raw in [Some(value(77)), None] {
            let mut allocations = 0;
            loop {
                let tree = MapleTree::<_, _, Counting>::build(&rcu, ranges()).unwrap();
                let before: Vec<_> = tree.read().iter().collect();
                let mut writer = tree.try_write().unwrap();
                let live = Counting::live();
                let done = Counting::with(allocations, || match raw {
                    Some(value) => writer.store(range.clone(), value),
                    None => writer.erase_range(range.clone()),
                });
                writer.check();
                if done.is_ok() {
                    break;
                }
                assert_eq!((done, Counting::live()), (Err(NoMemory), live));
                assert_eq!(writer.iter().collect::<Vec<_>>(), before);
                let mut reserved = writer.reserve(1).unwrap();
                Counting::with(0, || match raw {
                    Some(value) => reserved.store(range.clone(), value),
                    None => reserved.erase_range(range.clone()),
                });
                drop(reserved);
                writer.check();
                allocations += 1;
            }
            rcu.barrier();
            assert_eq!(Counting::live(), 0);
        }
    }
    for fail in 0..60 {
        let built = Counting::with(fail, || MapleTree::<_, _, Counting>::build(&rcu, ranges()));
        assert_eq!(built.map(drop), Err(BuildError::NoMemory(NoMemory)));
        assert_eq!(Counting::live(), 0);
    }
}

/// More stores than can be counted are refused, where some of them would be lost later.
#[test]
fn a_reserve_for_more_stores_than_can_be_counted_is_refused() {
    let rcu = Rcu::for_threads();
    let _member = rcu.join().unwrap();
    let both = Both::new(&rcu);
    let mut writer = both.tree.try_write().unwrap();
    for stores in [usize::MAX, usize::MAX / 3 + 2, 0xaaaa_aaaa_aaaa_aaac] {
        assert!(writer.reserve(stores).is_err(), "{stores}");
    }
}

/// A reserve that was filled before the tree grew is refused, not used up half-way.
#[test]
fn a_reserve_for_a_smaller_tree_is_refused() {
    with(|both| {
        fill(both, 10);
        let mut reserve = Reserve::new();
        reserve.fill(both.tree.levels(), 1).unwrap();
        fill(both, 2000);
        let mut writer = both.tree.try_write().unwrap();
        let mut reserve = writer.reserve_from(reserve, 1).map(drop).unwrap_err();
        reserve.fill(both.tree.levels(), 1).unwrap();
        writer.reserve_from(reserve, 1).unwrap().store(7..=30_000, value(1));
        both.naive.set(&(7..=30_000), Some(value(1)));
    });
}

#[test]
#[should_panic = "more stores than were reserved"]
fn a_reserve_is_for_so_many_stores() {
    with(|both| {
        let mut writer = both.tree.try_write().unwrap();
        let mut reserved = writer.reserve(1).unwrap();
        reserved.store(0..=1, value(1));
        reserved.store(0..=1, value(1));
    });
}

//! More cases after the ideas of the kernel's tests of its maple tree (lib/test_maple_tree.c, tools/testing/radix-tree): whole
//! histories, where `cases.rs` has single steps.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use common::{Both, Naive, Rcu, value};
use isotherm_maple::MapleTree;

fn with(run: impl FnOnce(&Rcu)) {
    let rcu = Rcu::for_threads();
    let joined = rcu.join().unwrap();
    run(&rcu);
    rcu.barrier();
    drop(joined);
}

/// (check_seq, check_rev_seq) One index after the other, from either end: each is found as soon as it is there, and its
/// neighbour to come is not.
#[test]
fn sequences_in_either_direction() {
    for down in [false, true] {
        with(|rcu| {
            let tree = MapleTree::<_, _>::new(rcu);
            let index = |n: u64| if down { 4000 - n } else { n };
            for n in 0..2000 {
                let mut writer = tree.try_write().unwrap();
                writer.insert(index(n)..=index(n), value(n as usize + 1)).unwrap();
                assert_eq!(writer.get(index(n)), Some(value(n as usize + 1)));
                assert_eq!(
                    (writer.get(index(n + 1)), writer.get(index(n / 2))),
                    (None, Some(value(n as usize / 2 + 1)))
                );
            }
            let writer = tree.try_write().unwrap();
            writer.check();
            let firsts: Vec<_> = writer.iter().map(|one| one.first).collect();
            let mut expected: Vec<_> = (0..2000).map(index).collect();
            expected.sort_unstable();
            assert_eq!(firsts, expected);
        });
    }
}

/// (check_forking, check_dup) A copy of trees of every small size is equal to its original, has its gaps, and neither sees
/// what is stored to the other.
#[test]
fn forks_of_every_size_are_equal_and_independent() {
    with(|rcu| {
        for size in (0..130).chain([800, 1600]) {
            for gap in [0, 5] {
                let ranges = (0..size).map(|n| (10 * n..=10 * n + 9 - gap, value(n as usize + 1)));
                let parent = MapleTree::<_, _>::build(rcu, ranges).unwrap();
                let copied: Vec<_> = parent.read().iter().map(|one| (one.range(), one.value)).collect();
                let child = MapleTree::<_, _>::build(rcu, copied).unwrap();
                let mut writer = child.try_write().unwrap();
                writer.check();
                assert!(writer.iter().eq(parent.read().iter()), "{size}");
                let free = parent.try_write().unwrap().lowest_gap(5, 1, 0..=u64::MAX);
                assert_eq!(writer.lowest_gap(5, 1, 0..=u64::MAX), free);
                writer.store(3..=25, value(9999)).unwrap();
                writer.check();
                assert_eq!(parent.read().iter().count() as u64, size);
                parent.try_write().unwrap().clear();
                assert_eq!(writer.get(3), Some(value(9999)));
            }
        }
    });
}

/// (check_empty_area_fill) A space is filled from the top down as `mmap` fills it, and from the bottom up, until nothing
/// fits; then every other is taken out, and the holes are found again.
#[test]
fn a_space_is_filled_until_nothing_fits() {
    const PAGES: u64 = 1500;
    for highest in [true, false] {
        with(|rcu| {
            let tree = MapleTree::<_, _>::new(rcu);
            let mut writer = tree.try_write().unwrap();
            let bounds = 0x10_0000..=0x10_0000 + 2 * PAGES - 1;
            let mut places = Vec::new();
            loop {
                let bounds = bounds.clone();
                let found =
                    if highest { writer.highest_gap(2, 2, bounds) } else { writer.lowest_gap(2, 2, bounds) };
                let Some(first) = found else { break };
                writer.insert(first..=first + 1, value(places.len() + 1)).unwrap();
                places.push(first);
            }
            assert_eq!(places.len() as u64, PAGES);
            assert!(places.is_sorted_by(|a, b| if highest { a > b } else { a < b }));
            for &first in places.iter().step_by(2) {
                writer.erase(first).unwrap().unwrap();
            }
            writer.check();
            for &first in places.iter().step_by(2) {
                let bounds = bounds.clone();
                let found =
                    if highest { writer.highest_gap(1, 2, bounds) } else { writer.lowest_gap(2, 1, bounds) };
                assert_eq!(found, Some(first));
                writer.store(first..=first + 1, value(1)).unwrap();
            }
            assert_eq!(writer.lowest_gap(1, 1, bounds), None);
        });
    }
}

/// (check_empty_area_window) Bounds that cut gaps off, at each place of the leaves and one to either side.
#[test]
fn gaps_within_windows() {
    with(|rcu| {
        let mut both = Both { tree: MapleTree::new(rcu), naive: Naive::default() };
        (0..70).for_each(|n| both.store(20 * n..=20 * n + 9 + n % 3, n as usize + 1));
        let writer = both.tree.try_write().unwrap();
        for from in (0..1400).step_by(7) {
            for (length, size) in [(1, 1), (5, 3), (12, 9), (23, 10), (400, 10), (400, 11)] {
                let window = from..=from + length;
                assert_eq!(writer.lowest_gap(size, 1, window.clone()), both.naive.lowest(size, 1, &window));
                assert_eq!(writer.highest_gap(size, 1, window.clone()), both.naive.highest(size, 1, &window));
                assert_eq!(writer.lowest_gap(size, 4, window.clone()), both.naive.lowest(size, 4, &window));
                assert_eq!(writer.highest_gap(size, 4, window.clone()), both.naive.highest(size, 4, &window));
            }
        }
    });
}

/// (check_bnode_min_spanning, check_deficient_node) Erasures that span nodes and leave few entries at the left, at the right,
/// or on both sides, next to full neighbours and without any.
#[test]
fn nodes_with_few_entries_are_merged() {
    const RANGES: u64 = 900;
    for left in [0, 1, 2, 13, 14, 27, 380] {
        for right in [0, 1, 2, 13, 14, 27, 380] {
            with(|rcu| {
                let ranges = (0..RANGES).map(|n| (20 * n..=20 * n + 9, value(n as usize + 1)));
                let tree = MapleTree::<_, _>::build(rcu, ranges).unwrap();
                let mut writer = tree.try_write().unwrap();
                writer.erase_range(20 * left..=20 * (RANGES - right) - 1).unwrap();
                writer.check();
                let firsts: Vec<_> = writer.iter().map(|one| one.first / 20).collect();
                assert_eq!(firsts, (0..left).chain(RANGES - right..RANGES).collect::<Vec<_>>());
                let levels = if left + right == 0 { 0 } else { 3 };
                assert!(tree.levels() <= levels);
            });
        }
    }
}

/// (check_iteration) What an iteration has come to is replaced, taken out or split under it.
#[test]
fn what_an_iteration_is_at_changes() {
    with(|rcu| {
        let ranges = (0..300).map(|n| (20 * n..=20 * n + 9, value(n as usize + 1)));
        let tree = MapleTree::<_, _>::build(rcu, ranges).unwrap();
        let reader = tree.read();
        let mut seen = 0;
        for one in reader.iter() {
            assert_eq!(one.first, 20 * seen, "each once");
            let mut writer = tree.try_write().unwrap();
            match seen % 3 {
                0 => assert!(writer.erase(one.first).unwrap().is_some()),
                1 => assert!(writer.replace(one.first, value(7777)).is_some()),
                _ => writer.store(one.first..=one.first + 3, value(8888)).unwrap(),
            }
            seen += 1;
            if seen % 3 == 0 {
                // Its end is still to come for who looks from there, and not for who has passed it.
                assert_eq!(writer.entry(one.last).unwrap().first, one.first + 4);
            }
        }
        assert_eq!(seen, 300);
    });
}

//! A short life of a tree, small enough for Miri, which executes every `unsafe` block of the crate in it. The naive map is
//! compared at the end: at each step it would be most of the time.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use common::{Both, Counting, Naive, Rcu, value};
use isotherm_maple::{BuildError, MapleTree, NoMemory};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Three levels: more leaves of 27 entries than a root has room for.
const RANGES: u64 = 420;

/// The nth of ranges of ten with gaps of ten between them, and its value.
fn nth(n: u64) -> (std::ops::RangeInclusive<u64>, std::num::NonZeroUsize) {
    (20 * n..=20 * n + 9, value(n as usize + 1))
}

#[test]
fn it_grows_changes_and_is_cleared() {
    let rcu = Rcu::for_threads();
    let _joined = rcu.join().unwrap();
    let mut both =
        Both { tree: MapleTree::build(&rcu, (0..RANGES).map(nth)).unwrap(), naive: Naive::default() };
    both.naive.0 = both.tree.read().iter().collect();
    assert_eq!((both.tree.levels(), both.naive.0.len()), (3, RANGES as usize));
    let mut random = 3_u64;
    for n in 0..if cfg!(miri) { 12 } else { 400 } {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let first = random % (20 * RANGES);
        let range = first..=first + [2, 9, 30, 900][n % 4];
        if n % 3 == 0 {
            both.erase(range);
        } else if n % 3 == 1 {
            both.store(range, 1000 + n);
        } else {
            let mut writer = both.tree.try_write().unwrap();
            writer.reserve(1).unwrap().store(range.clone(), value(1000 + n));
            both.naive.set(&range, Some(value(1000 + n)));
        }
        rcu.quiescent();
        rcu.advance(usize::MAX);
    }
    let mut writer = both.tree.try_write().unwrap();
    writer.check();
    assert_eq!(writer.iter().collect::<Vec<_>>(), both.naive.0);
    let mut back: Vec<_> = writer.iter().rev().collect();
    back.reverse();
    assert_eq!(back, both.naive.0);
    for size in [1, 15, 100] {
        let all = 0..=20 * RANGES;
        assert_eq!(writer.lowest_gap(size, 4, all.clone()), both.naive.lowest(size, 4, &all));
        assert_eq!(writer.highest_gap(size, 4, all.clone()), both.naive.highest(size, 4, &all));
    }
    let some = both.naive.0[both.naive.0.len() / 2];
    assert_eq!(writer.replace(some.last, value(7)), Some(some.value));
    assert_eq!(writer.entry(some.first).unwrap().value, value(7));
    writer.clear();
    assert_eq!(writer.iter().next(), None);
    drop(writer);
    drop(both);
    rcu.barrier();
}

/// It fails at each allocation in turn: nothing has changed, and nothing leaks.
#[test]
fn without_memory_nothing_changes_and_nothing_leaks() {
    let rcu = Rcu::for_threads();
    let _joined = rcu.join().unwrap();
    let tree = MapleTree::<_, _, Counting>::build(&rcu, (0..RANGES).map(nth)).unwrap();
    let mut writer = tree.try_write().unwrap();
    let live = Counting::live();
    let mut fail = 0;
    while let Err(error) = Counting::with(fail, || writer.store(105..=4015, value(1))) {
        assert_eq!((error, Counting::live()), (NoMemory, live));
        fail += 1;
    }
    assert!(fail >= 2, "a leaf and a branch");
    writer.check();
    drop(writer);
    drop(tree);
    rcu.barrier();
    assert_eq!(Counting::live(), 0);
    for fail in [0, 1, 2, 13, 30] {
        let built = Counting::with(fail, || MapleTree::<_, _, Counting>::build(&rcu, (0..RANGES).map(nth)));
        assert!(built.is_err_and(|error| error == BuildError::NoMemory(NoMemory)), "{fail}");
        assert_eq!(Counting::live(), 0, "{fail}");
    }
}

/// What was built before the ranges' iterator panics is given back.
#[test]
fn an_iterator_that_panics_leaks_nothing() {
    let rcu = Rcu::for_threads();
    let _joined = rcu.join().unwrap();
    for last in [0, 1, 28, 60, RANGES] {
        let ranges =
            (0..=last).map(|n| if n < last { nth(n) } else { std::panic::resume_unwind(Box::new(())) });
        let build = || MapleTree::<_, _, Counting>::build(&rcu, ranges).map(drop);
        assert!(catch_unwind(AssertUnwindSafe(build)).is_err());
        assert_eq!(Counting::live(), 0, "{last}");
    }
}

/// Whatever everything was erased from, no node is left.
#[test]
fn erasing_all_leaves_no_node() {
    let rcu = Rcu::for_threads();
    let _joined = rcu.join().unwrap();
    let all = 0..=u64::MAX;
    let shapes =
        [vec![all.clone()], vec![5..=9], vec![0..=0, 1..=u64::MAX], (0..35).map(|n| nth(n).0).collect()];
    for ranges in shapes {
        for erase in 0..3 {
            let tree = MapleTree::<_, _, Counting>::new_in(&rcu);
            let mut writer = tree.try_write().unwrap();
            ranges.iter().for_each(|range| writer.store(range.clone(), value(1)).unwrap());
            let count = writer.iter().count();
            match erase {
                0 => writer.erase_range(all.clone()).unwrap(),
                1 => writer.reserve(1).unwrap().erase_range(all.clone()),
                _ => (0..count).for_each(|_| {
                    let first = writer.iter().next().unwrap().first;
                    writer.erase(first).unwrap().unwrap();
                }),
            }
            assert_eq!((tree.levels(), writer.iter().next()), (0, None), "{ranges:?}");
            rcu.barrier();
            assert_eq!(Counting::live(), 0);
        }
    }
}

//! Random operations on a tree and on a naive map.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use common::{Both, Naive, Rcu, value};
use isotherm_maple::{InsertError, MapleTree, Reserve};
use proptest::prelude::*;
use std::ops::RangeInclusive;

#[derive(Clone, Debug)]
enum Step {
    Store(RangeInclusive<u64>),
    StoreReserved(RangeInclusive<u64>),
    Insert(RangeInclusive<u64>),
    EraseRange(RangeInclusive<u64>),
    Erase(u64),
    EraseReserved(u64),
    Replace(u64),
    Clear,
    Find(RangeInclusive<u64>),
    Ends(RangeInclusive<u64>, Vec<bool>),
    Gap(u64, u32, RangeInclusive<u64>),
}

/// Indexes near each other, so that ranges meet, in three places: at either end of u64 and in its middle.
fn index() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 0..2000_u64,
        1 => (0..50_u64).prop_map(|back| u64::MAX - back),
        2 => (0..300_u64).prop_map(|on| (1 << 40) + on * 0x1000),
    ]
}

fn range() -> impl Strategy<Value = RangeInclusive<u64>> {
    let near = (index(), prop_oneof![6 => 0..4_u64, 3 => 0..40_u64, 1 => 0..3000_u64]);
    prop_oneof![
        12 => near.prop_map(|(first, more)| first..=first.saturating_add(more)),
        1 => (index(), index()).prop_map(|(a, b)| a.min(b)..=a.max(b)),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => range().prop_map(Step::Store),
        3 => range().prop_map(Step::StoreReserved),
        3 => range().prop_map(Step::Insert),
        4 => range().prop_map(Step::EraseRange),
        5 => index().prop_map(Step::Erase),
        2 => index().prop_map(Step::EraseReserved),
        2 => index().prop_map(Step::Replace),
        1 => prop_oneof![9 => Just(Step::Find(0..=0)), 1 => Just(Step::Clear)],
        2 => range().prop_map(Step::Find),
        2 => (range(), prop::collection::vec(any::<bool>(), 0..40)).prop_map(|(range, ends)| Step::Ends(range, ends)),
        4 => (1..3000_u64, 0..8_u32, range()).prop_map(|(size, shift, bounds)| Step::Gap(size, shift, bounds)),
    ]
}

fn apply(both: &mut Both<'_>, n: usize, step: Step) {
    let value = value(n + 1);
    let naive = &mut both.naive;
    let mut writer = both.tree.try_write().unwrap();
    match step {
        Step::Store(range) => {
            writer.store(range.clone(), value).unwrap();
            naive.set(&range, Some(value));
        }
        Step::StoreReserved(range) => {
            let mut reserve = Reserve::new();
            reserve.fill(both.tree.levels(), 2).unwrap();
            let mut reserved = writer.reserve_from(reserve, 2).unwrap();
            reserved.store(range.clone(), value);
            reserved.store(*range.end()..=*range.end(), value);
            naive.set(&range, Some(value));
            naive.set(&(*range.end()..=*range.end()), Some(value));
        }
        Step::Insert(range) => match writer.insert(range.clone(), value) {
            Ok(()) => {
                assert_eq!(naive.within(&range), []);
                naive.set(&range, Some(value));
            }
            Err(error) => assert_eq!(error, InsertError::Occupied(naive.within(&range)[0])),
        },
        Step::EraseRange(range) => {
            writer.erase_range(range.clone()).unwrap();
            naive.set(&range, None);
        }
        Step::Erase(index) => {
            let gone = naive.get(index);
            assert_eq!(writer.erase(index).unwrap(), gone);
            gone.iter().for_each(|gone| naive.set(&gone.range(), None));
        }
        Step::EraseReserved(index) => {
            let gone = naive.get(index);
            assert_eq!(writer.reserve(1).unwrap().erase(index), gone);
            gone.iter().for_each(|gone| naive.set(&gone.range(), None));
        }
        Step::Replace(index) => {
            let found = naive.get(index);
            assert_eq!(writer.replace(index, value), found.map(|found| found.value));
            found.iter().for_each(|found| naive.set(&found.range(), Some(value)));
        }
        Step::Clear => {
            writer.clear();
            naive.0.clear();
        }
        Step::Find(range) => {
            let within = naive.within(&range);
            assert_eq!(writer.find(range.clone()), within.first().copied());
            assert_eq!(writer.find_back(range), within.last().copied());
        }
        Step::Ends(range, ends) => {
            let mut within = std::collections::VecDeque::from(naive.within(&range));
            let mut iter = writer.range(range);
            for end in ends {
                if end {
                    assert_eq!(iter.next(), within.pop_front());
                } else {
                    assert_eq!(iter.next_back(), within.pop_back());
                }
            }
            assert_eq!(iter.collect::<Vec<_>>(), Vec::from(within));
        }
        Step::Gap(size, shift, bounds) => {
            for bounds in [0..=u64::MAX, bounds] {
                let align = 1 << shift;
                assert_eq!(
                    writer.lowest_gap(size, align, bounds.clone()),
                    naive.lowest(size, align, &bounds)
                );
                assert_eq!(
                    writer.highest_gap(size, align, bounds.clone()),
                    naive.highest(size, align, &bounds)
                );
            }
        }
    }
    writer.check();
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_tree_is_a_map(steps in prop::collection::vec(step(), 1..400)) {
        let rcu = Rcu::for_threads();
        let joined = rcu.join().unwrap();
        let mut both = Both::new(&rcu);
        for (n, step) in steps.into_iter().enumerate() {
            apply(&mut both, n, step);
            if n % 16 == 0 {
                both.check();
                rcu.quiescent();
                rcu.advance(usize::MAX);
            }
        }
        both.check();
        drop(both);
        rcu.barrier();
        drop(joined);
    }

    #[test]
    fn a_tree_that_is_built_equals_one_that_is_stored_to(
        ranges in prop::collection::vec(range(), 0..1500),
        more in prop::collection::vec(step(), 0..20),
    ) {
        let rcu = Rcu::for_threads();
        let _joined = rcu.join().unwrap();
        let mut naive = Naive::default();
        for (n, range) in ranges.iter().enumerate() {
            naive.set(range, Some(value(n + 1)));
        }
        let tree = MapleTree::build(&rcu, naive.0.iter().map(|one| (one.range(), one.value))).unwrap();
        let mut both = Both { tree, naive };
        both.check();
        for (n, step) in more.into_iter().enumerate() {
            apply(&mut both, n, step);
        }
        both.check();
    }
}

/// Many operations in a row, so that trees grow and shrink by levels.
#[test]
fn a_long_life() {
    let rcu = Rcu::for_threads();
    let _joined = rcu.join().unwrap();
    let mut both = Both::new(&rcu);
    let mut random = 1_u64;
    let mut next = |limit: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % limit
    };
    let rounds = if cfg!(miri) { 300 } else { 20_000 };
    for n in 0..rounds {
        // In turn it grows, shrinks a little, and is nearly emptied.
        let first = next(40_000);
        let range = first..=first + next(if n / 4000 % 5 == 4 { 20_000 } else { 12 });
        if next(3) < if n / 4000 % 2 == 0 { 2 } else { 1 } {
            both.store(range, n + 1);
        } else {
            both.erase(range);
        }
        if n % 1000 == 0 {
            both.check();
        }
        rcu.quiescent();
        rcu.advance(100);
    }
    both.check();
}

//! Readers on threads of their own while the tree changes under them.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use isotherm_maple::MapleTree;
use isotherm_rcu::{Epoch, Qsbr, Reclaim, Threads};
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

const ROUNDS: u64 = if cfg!(miri) { 60 } else { 30_000 };
const RANGES: u64 = if cfg!(miri) { 70 } else { 3000 };

/// Every fourth range stays as it is; the others come, go, are split and overwritten. A value is its range's number and one.
fn writes(tree: &MapleTree<NonZeroUsize, impl Reclaim>, mut between: impl FnMut()) {
    let mut random = 7_u64;
    for _ in 0..ROUNDS {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let n = random % RANGES;
        let first = 100 * n;
        let value = NonZeroUsize::new(n as usize + 1).unwrap();
        let mut writer = tree.try_write().unwrap();
        match (n % 4, random >> 32 & 3) {
            (0, _) => assert!(writer.replace(first, value).is_some()),
            (1, 0) => writer.erase_range(first..=first + 299).unwrap(),
            (_, 1) => writer.store(first + 10..=first + 20, value).unwrap(),
            (_, 2) => writer.store(first..=first + 99, value).unwrap(),
            _ => writer.erase_range(first + 5..=first + 15).unwrap(),
        }
        drop(writer);
        between();
    }
    tree.try_write().unwrap().check();
}

fn reads(tree: &MapleTree<NonZeroUsize, impl Reclaim>, random: &mut u64) {
    let reader = tree.read();
    for _ in 0..20 {
        *random ^= *random << 13;
        *random ^= *random >> 7;
        *random ^= *random << 17;
        let index = *random % (100 * RANGES);
        let found = reader.get(index).map(|value| value.get() as u64 - 1);
        assert!(
            found == Some(index / 100) || found.is_none() && !(index / 100).is_multiple_of(4),
            "{index}: {found:?}"
        );
    }
    let from = *random % (100 * RANGES);
    let mut next = from.next_multiple_of(400);
    for one in reader.range(from..=from + 4000) {
        let n = one.value.get() as u64 - 1;
        assert!(one.first / 100 == n && one.last / 100 == n, "{one:?}");
        if n.is_multiple_of(4) && one.first >= from {
            assert_eq!(one.first, next, "none that stays is missed");
            next += 400;
        }
    }
}

fn tree<R: Reclaim>(rcu: R) -> MapleTree<NonZeroUsize, R> {
    let all = (0..RANGES).map(|n| (100 * n..=100 * n + 99, NonZeroUsize::new(n as usize + 1).unwrap()));
    MapleTree::build(rcu, all).unwrap()
}

#[test]
fn readers_with_quiescent_states() {
    let rcu = Qsbr::<Threads, 3>::for_threads();
    let tree = tree(&rcu);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for seed in 1..3 {
            let (rcu, tree, done) = (&rcu, &tree, &done);
            scope.spawn(move || {
                let _joined = rcu.join().unwrap();
                let mut random = seed;
                while !done.load(Ordering::Relaxed) {
                    reads(tree, &mut random);
                    rcu.quiescent();
                }
            });
        }
        scope.spawn(|| {
            let _joined = rcu.join().unwrap();
            writes(&tree, || {
                rcu.quiescent();
                rcu.advance(100);
            });
            done.store(true, Ordering::Relaxed);
        });
    });
}

#[test]
fn readers_with_epochs() {
    let tree = tree(Epoch);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = 5;
            while !done.load(Ordering::Relaxed) {
                reads(&tree, &mut random);
            }
        });
        writes(&tree, || ());
        done.store(true, Ordering::Relaxed);
    });
}

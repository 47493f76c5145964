//! Readers against the writer in every interleaving: `RUSTFLAGS='--cfg loom' cargo test --release --test loom`.
//!
//! Nodes have four entries here, so that trees of a few ranges have several levels. A node that is freed is overwritten: a
//! reader who comes to it panics.
#![cfg(loom)]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::alloc::Layout;
use std::cell::RefCell;
use std::num::NonZeroUsize;
use std::ptr::NonNull;

use isotherm_maple::{Global, MapleTree, NodeAlloc};
use isotherm_rcu::Qsbr;
use isotherm_rcu::model::{Machine, on};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;

std::thread_local! {
    /// What was freed in this run: overwritten, and given back before the next.
    static FREED: RefCell<Vec<(NonNull<u8>, Layout)>> = const { RefCell::new(Vec::new()) };
}

struct Overwriting;

// SAFETY: the global allocator's memory, given back later.
unsafe impl NodeAlloc for Overwriting {
    fn allocate(layout: Layout) -> Option<NonNull<u8>> {
        Global::allocate(layout)
    }

    unsafe fn free(memory: NonNull<u8>, layout: Layout) {
        // A leaf without entries, in which no index is found.
        // SAFETY: the caller gives the memory back; it is kept until the next model begins.
        unsafe { memory.write_bytes(0, layout.size()) };
        FREED.with_borrow_mut(|freed| freed.push((memory, layout)));
    }
}

/// Loom's models drop nothing that is not dropped by hand: the tree goes before what it is freed through.
struct World {
    tree: MapleTree<NonZeroUsize, &'static Qsbr<Machine, 2>, Overwriting>,
    rcu: *mut Qsbr<Machine, 2>,
}

// SAFETY: `rcu` is used by shared references alone until the last owner drops it, and what it points to is `Sync`.
unsafe impl Send for World {}
// SAFETY: as above.
unsafe impl Sync for World {}

fn value(n: usize) -> NonZeroUsize {
    NonZeroUsize::new(n).unwrap()
}

impl World {
    /// The nth range is 10n to 10n+9, and its value n+1.
    fn new(ranges: u64) -> Arc<Self> {
        for (memory, layout) in FREED.take() {
            // SAFETY: it came from `Global`, and the model that could find it is over.
            unsafe { Global::free(memory, layout) };
        }
        let rcu = Box::into_raw(Box::new(Qsbr::new(Machine)));
        let all = (0..ranges).map(|n| (10 * n..=10 * n + 9, value(n as usize + 1)));
        // SAFETY: it lives until the drop of the world, whose tree goes before.
        let tree = MapleTree::build(unsafe { &*rcu }, all).unwrap();
        Arc::new(Self { tree, rcu })
    }

    fn get(&self, index: u64) -> usize {
        self.tree.read().get(index).map_or(0, NonZeroUsize::get)
    }

    fn store(&self, range: std::ops::RangeInclusive<u64>, n: usize) {
        self.tree.try_write().unwrap().store(range, value(n)).unwrap();
    }

    fn erase(&self, range: std::ops::RangeInclusive<u64>) {
        self.tree.try_write().unwrap().erase_range(range).unwrap();
    }

    /// Frees what can be freed.
    fn free(&self) {
        for _ in 0..2 {
            self.tree.rcu().quiescent();
            self.tree.rcu().advance(usize::MAX);
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.tree.try_write().unwrap().check();
        self.tree.try_write().unwrap().clear();
        // SAFETY: it came from a box, and nothing is left in the tree that would use it.
        drop(unsafe { Box::from_raw(self.rcu) });
    }
}

/// `read` runs on a CPU of its own beside `write`, which frees what it replaced.
fn model(
    ranges: u64,
    write: impl Fn(&World) + Sync + Send + Copy + 'static,
    read: impl Fn(&World) + Sync + Send + Copy + 'static,
) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.max_branches = 20_000;
    builder.check(move || {
        let world = World::new(ranges);
        let other = world.clone();
        let reader = thread::spawn(move || {
            on(1);
            read(&other);
            other.tree.rcu().quiescent();
            read(&other);
            other.tree.rcu().quiescent();
        });
        write(&world);
        world.free();
        reader.join().unwrap();
    });
}

#[test]
fn a_reader_against_a_split_of_its_leaf() {
    model(
        6,
        |world| world.store(13..=14, 100),
        |world| {
            assert_eq!(world.get(12), 2, "beside what changes");
            assert!([2, 100].contains(&world.get(13)));
            assert_eq!(world.get(59), 6);
        },
    );
}

#[test]
fn a_reader_against_a_merge() {
    model(
        8,
        |world| world.erase(0..=35),
        |world| {
            assert_eq!(world.get(36), 4);
            assert!([3, 0].contains(&world.get(25)));
            assert_eq!(world.get(70), 8);
        },
    );
}

#[test]
fn a_reader_against_a_root_that_grows() {
    model(
        3,
        |world| world.store(14..=15, 100),
        |world| {
            assert_eq!(world.get(13), 2);
            assert_eq!(world.get(29), 3);
        },
    );
}

#[test]
fn a_reader_against_a_root_that_shrinks_to_nothing() {
    model(
        5,
        |world| {
            world.erase(10..=u64::MAX);
            world.erase(0..=9);
        },
        |world| {
            let seen = [world.get(5), world.get(45)];
            assert!([[1, 5], [1, 0], [0, 0]].contains(&seen), "{seen:?}");
        },
    );
}

#[test]
fn a_reader_against_stores_in_place_and_by_copies() {
    model(
        5,
        |world| {
            world.store(20..=29, 100);
            world.store(24..=25, 101);
        },
        |world| {
            let seen = [world.get(24), world.get(24)];
            assert!(seen.is_sorted() && [3, 100, 101].contains(&seen[0]), "time goes one way: {seen:?}");
        },
    );
}

#[test]
fn an_iteration_against_a_change_of_its_leaf() {
    model(
        6,
        |world| world.store(15..=24, 100),
        |world| {
            let reader = world.tree.read();
            let all: Vec<_> = reader.iter().map(|one| (one.first, one.value.get())).collect();
            let here = |n: u64, value| assert!(all.contains(&(10 * n, value)), "{n} in {all:?}");
            // Whatever happens, these are there, and in order.
            for n in [0, 1, 3, 4, 5] {
                here(n, n as usize + 1);
            }
            assert!(all.is_sorted_by_key(|one| one.0));
        },
    );
}

/// Who has seen an operation done does not see what was before it, also not in a leaf that he has from then. This is what the
/// mark of the dead is for, and why it comes before the link.
#[test]
fn an_iteration_sees_what_a_lookup_has_seen() {
    model(
        6,
        |world| world.store(13..=14, 100),
        |world| {
            let reader = world.tree.read();
            let mut iter = reader.iter();
            assert_eq!(iter.next().map(|one| one.last), Some(9));
            let seen = world.get(13);
            let next = iter.next().map(|one| one.last);
            assert!(seen == 2 && next == Some(19) || next == Some(12), "{seen}, then a range to {next:?}");
        },
    );
}

/// The same where one leaf replaces one, so that the root stays.
#[test]
fn an_iteration_sees_what_a_lookup_has_seen_in_a_tree_of_the_same_root() {
    model(
        6,
        |world| world.store(15..=24, 100),
        |world| {
            let reader = world.tree.read();
            let mut iter = reader.iter();
            assert_eq!(iter.next().map(|one| one.last), Some(9));
            let seen = world.get(15);
            let next = iter.next().map(|one| one.last);
            assert!(seen == 2 && next == Some(19) || next == Some(14), "{seen}, then a range to {next:?}");
        },
    );
}

/// The same backwards, and of a subtree that goes as a whole.
#[test]
fn an_iteration_backwards_sees_what_a_lookup_has_seen() {
    model(
        6,
        |world| world.tree.try_write().unwrap().clear(),
        |world| {
            let reader = world.tree.read();
            let mut iter = reader.range(0..=29);
            let first = iter.next_back().map(|one| one.first);
            let seen = world.get(5);
            let next = iter.next_back().map(|one| one.first);
            assert!(seen == 1 || next.is_none(), "{first:?}, then nothing at 5, then {next:?}");
        },
    );
}

/// Somebody else has seen it, and says so.
#[test]
fn an_iteration_sees_what_others_have_seen() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.max_branches = 20_000;
    builder.check(|| {
        let world = World::new(6);
        let told = Arc::new(AtomicBool::new(false));
        let (writing, telling) = (world.clone(), (world.clone(), told.clone()));
        let writer = thread::spawn(move || writing.store(13..=14, 100));
        let teller = thread::spawn(move || {
            on(1);
            if telling.0.get(13) == 100 {
                telling.1.store(true, Ordering::Release);
            }
        });
        let reader = world.tree.read();
        let mut iter = reader.iter();
        assert_eq!(iter.next().map(|one| one.last), Some(9));
        let known = told.load(Ordering::Acquire);
        let next = iter.next().map(|one| one.last);
        assert!(!known && next == Some(19) || next == Some(12), "{known}, then a range to {next:?}");
        drop(reader);
        writer.join().unwrap();
        teller.join().unwrap();
    });
}

#[test]
fn an_iteration_backwards_against_a_merge() {
    model(
        6,
        |world| world.erase(10..=39),
        |world| {
            let reader = world.tree.read();
            let all: Vec<_> = reader.iter().rev().map(|one| one.first).collect();
            for first in [0, 40, 50] {
                assert!(all.contains(&first), "{first} in {all:?}");
            }
            assert!(all.is_sorted_by(|a, b| a > b));
        },
    );
}

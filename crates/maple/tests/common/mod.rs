//! A naive map, and a tree beside it.
#![allow(dead_code, clippy::unwrap_used, reason = "shared by several tests; what fails here fails the test")]

use isotherm_maple::{Global, MapleTree, Mapped, NodeAlloc};
use isotherm_rcu::{Qsbr, Threads};
use std::alloc::Layout;
use std::cell::Cell;
use std::num::NonZeroUsize;
use std::ops::RangeInclusive;
use std::ptr::NonNull;

pub type Rcu = Qsbr<Threads, 4>;
pub type Tree<'r> = MapleTree<NonZeroUsize, &'r Rcu>;

pub fn value(n: usize) -> NonZeroUsize {
    NonZeroUsize::new(n).unwrap()
}

/// Ranges and their values, sorted, as a list.
#[derive(Clone, Default, Debug)]
pub struct Naive(pub Vec<Mapped<NonZeroUsize>>);

impl Naive {
    pub fn get(&self, index: u64) -> Option<Mapped<NonZeroUsize>> {
        self.0.iter().copied().find(|one| one.range().contains(&index))
    }

    pub fn within(&self, range: &RangeInclusive<u64>) -> Vec<Mapped<NonZeroUsize>> {
        self.0.iter().copied().filter(|one| one.first <= *range.end() && *range.start() <= one.last).collect()
    }

    /// Maps the range to the value, or to nothing.
    pub fn set(&mut self, range: &RangeInclusive<u64>, value: Option<NonZeroUsize>) {
        let (first, last) = (*range.start(), *range.end());
        if range.is_empty() {
            return;
        }
        let mut all = Vec::new();
        for one in self.0.drain(..) {
            if one.last < first || one.first > last {
                all.push(one);
                continue;
            }
            if one.first < first {
                all.push(Mapped { last: first - 1, ..one });
            }
            if one.last > last {
                all.push(Mapped { first: last + 1, ..one });
            }
        }
        all.extend(value.map(|value| Mapped { first, last, value }));
        all.sort_by_key(|one| one.first);
        self.0 = all;
    }

    /// Ranges without a value.
    pub fn gaps(&self) -> Vec<(u64, u64)> {
        let mut gaps = Vec::new();
        let mut next = Some(0);
        for one in &self.0 {
            if let Some(next) = next.filter(|&next| next < one.first) {
                gaps.push((next, one.first - 1));
            }
            next = one.last.checked_add(1);
        }
        gaps.extend(next.map(|next| (next, u64::MAX)));
        gaps
    }

    pub fn lowest(&self, size: u64, align: u64, bounds: &RangeInclusive<u64>) -> Option<u64> {
        self.gaps().into_iter().find_map(|(first, last)| {
            let (first, last) = (first.max(*bounds.start()), last.min(*bounds.end()));
            let start = first.checked_next_multiple_of(align)?;
            (start.checked_add(size - 1)? <= last).then_some(start)
        })
    }

    pub fn highest(&self, size: u64, align: u64, bounds: &RangeInclusive<u64>) -> Option<u64> {
        self.gaps().into_iter().rev().find_map(|(first, last)| {
            let (first, last) = (first.max(*bounds.start()), last.min(*bounds.end()));
            let start = last.checked_sub(size - 1)? / align * align;
            (start >= first).then_some(start)
        })
    }
}

/// A tree and the list that it must equal.
pub struct Both<'r> {
    pub tree: Tree<'r>,
    pub naive: Naive,
}

impl<'r> Both<'r> {
    pub fn new(rcu: &'r Rcu) -> Self {
        Self { tree: MapleTree::new(rcu), naive: Naive::default() }
    }

    pub fn store(&mut self, range: RangeInclusive<u64>, n: usize) {
        self.tree.try_write().unwrap().store(range.clone(), value(n)).unwrap();
        self.naive.set(&range, Some(value(n)));
    }

    pub fn erase(&mut self, range: RangeInclusive<u64>) {
        self.tree.try_write().unwrap().erase_range(range.clone()).unwrap();
        self.naive.set(&range, None);
    }

    /// Equal in all that can be read.
    pub fn check(&self) {
        let writer = self.tree.try_write().unwrap();
        writer.check();
        let reader = self.tree.read();
        assert_eq!(reader.iter().collect::<Vec<_>>(), self.naive.0);
        assert_eq!(writer.iter().rev().collect::<Vec<_>>(), {
            let mut all = self.naive.0.clone();
            all.reverse();
            all
        });
        // The list is slow, and Miri more so.
        let step = if cfg!(miri) { self.naive.0.len() / 10 + 1 } else { 1 };
        for one in self.naive.0.iter().step_by(step) {
            for index in [one.first, one.last, one.first.wrapping_sub(1), one.last.wrapping_add(1)] {
                assert_eq!(reader.get(index), self.naive.get(index).map(|one| one.value));
                assert_eq!(reader.entry(index), self.naive.get(index));
            }
        }
    }
}

thread_local! {
    /// Allocations until one fails, and nodes that live.
    static LEFT: Cell<usize> = const { Cell::new(usize::MAX) };
    static LIVE: Cell<isize> = const { Cell::new(0) };
}

/// The global allocator, which counts, and fails when it is to.
pub struct Counting;

impl Counting {
    /// Nodes of this thread that live.
    pub fn live() -> isize {
        LIVE.get()
    }

    /// Runs with so many allocations, after which all fail.
    pub fn with<T>(allocations: usize, run: impl FnOnce() -> T) -> T {
        LEFT.set(allocations);
        let done = run();
        LEFT.set(usize::MAX);
        done
    }
}

// SAFETY: the global allocator's memory.
unsafe impl NodeAlloc for Counting {
    fn allocate(layout: Layout) -> Option<NonNull<u8>> {
        LEFT.set(LEFT.get().checked_sub(1)?);
        LIVE.set(LIVE.get() + 1);
        Global::allocate(layout)
    }

    unsafe fn free(memory: NonNull<u8>, layout: Layout) {
        LIVE.set(LIVE.get() - 1);
        // SAFETY: it came from there.
        unsafe { Global::free(memory, layout) };
    }
}

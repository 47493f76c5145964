//! Maps of ranges, behind one face.

use super::btree::{OfBtree, OfBtreeGaps};
use super::space::Space;
use crossbeam_skiplist::SkipMap;
use isotherm_maple::{BuildError, MapleTree};
use isotherm_rcu::{Joined, Qsbr, Threads};
use rangemap::RangeInclusiveMap;
use serde::Serialize;
use std::num::NonZeroUsize;
use std::ops::Bound;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Which map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Rival {
    /// `isotherm-maple`, with RCU by quiescent states.
    Maple,
    /// The crate `rangemap`, behind a readers-writer lock.
    Rangemap,
    /// The standard library's B-tree by first index, behind its readers-writer lock. A gap search goes from range to range.
    Btree,
    /// The same with all gaps in a second B-tree by length, as an allocator has free blocks: a search for a gap of a size is
    /// one for the lowest or highest among those that fit.
    BtreeGaps,
    /// The crate `crossbeam-skiplist`: a lock-free skip list by first index. A gap search goes from range to range.
    Skiplist,
}

impl Rival {
    /// All, in the order they are measured in.
    pub const ALL: [Self; 5] = [Self::Maple, Self::Rangemap, Self::Btree, Self::BtreeGaps, Self::Skiplist];

    /// As in the table's heading.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Maple => "maple",
            Self::Rangemap => "rangemap",
            Self::Btree => "BTreeMap",
            Self::BtreeGaps => "BTreeMap, gaps",
            Self::Skiplist => "skip list",
        }
    }
}

/// What every map can do. Values are not 0. Nothing is stored but to where nothing is, and only what was stored is erased.
pub(super) trait Map: Sync + Sized {
    /// What a thread that uses the map has meanwhile.
    type Member<'a>
    where
        Self: 'a;

    /// The map of a space, the nth range to n+1.
    fn build(space: &Space) -> Result<Self, BuildError>;
    /// Before this thread uses it.
    fn join(&self) -> Self::Member<'_>;
    /// Now and then, between operations.
    fn rest(&self) {}
    /// The value whose range holds the index, or 0.
    fn get(&self, index: u64) -> usize;
    /// By one thread at a time. Returns whether the range was free, and was stored.
    fn store(&self, first: u64, last: u64, value: usize) -> bool;
    /// By the same thread.
    fn erase(&self, first: u64, last: u64);
    /// Where the lowest gap of so many indexes begins that ends at or before `to`.
    fn lowest_gap(&self, size: u64, to: u64) -> Option<u64>;
    /// The highest place in that gap which is the highest.
    fn highest_gap(&self, size: u64, to: u64) -> Option<u64>;
}

/// What runs on each of the maps.
pub(super) trait Visit {
    /// Of one map.
    fn visit<M: Map>(&mut self, rival: Rival, map: &M);
}

/// All maps of one space.
pub(super) struct Maps {
    maple: OfMaple,
    rangemap: OfRangemap,
    btree: OfBtree,
    btree_gaps: OfBtreeGaps,
    skiplist: OfSkiplist,
}

impl Maps {
    pub(super) fn build(space: &Space) -> Result<Self, BuildError> {
        Ok(Self {
            maple: Map::build(space)?,
            rangemap: Map::build(space)?,
            btree: Map::build(space)?,
            btree_gaps: Map::build(space)?,
            skiplist: Map::build(space)?,
        })
    }

    pub(super) fn visit(&self, rival: Rival, visit: &mut impl Visit) {
        match rival {
            Rival::Maple => visit.visit(rival, &self.maple),
            Rival::Rangemap => visit.visit(rival, &self.rangemap),
            Rival::Btree => visit.visit(rival, &self.btree),
            Rival::BtreeGaps => visit.visit(rival, &self.btree_gaps),
            Rival::Skiplist => visit.visit(rival, &self.skiplist),
        }
    }
}

/// The space's ranges with their values.
pub(super) fn valued(space: &Space) -> impl Iterator<Item = (u64, u64, usize)> {
    space.ranges.iter().zip(1..).map(|(&(first, last), value)| (first, last, value))
}

/// Two readers, a writer, and the thread that builds.
const THREADS: usize = 4;

pub(super) struct OfMaple(MapleTree<NonZeroUsize, Qsbr<Threads, THREADS>>);

impl Map for OfMaple {
    type Member<'a> = Option<Joined<'a, THREADS>>;

    fn build(space: &Space) -> Result<Self, BuildError> {
        let value = |value| NonZeroUsize::new(value).unwrap_or(NonZeroUsize::MIN);
        let ranges = valued(space).map(|(first, last, n)| (first..=last, value(n)));
        MapleTree::build(Qsbr::for_threads(), ranges).map(Self)
    }

    fn join(&self) -> Self::Member<'_> {
        self.0.rcu().join().ok()
    }

    fn rest(&self) {
        self.0.rcu().quiescent();
        self.0.rcu().advance(usize::MAX);
    }

    #[inline]
    fn get(&self, index: u64) -> usize {
        self.0.read().get(index).map_or(0, NonZeroUsize::get)
    }

    #[inline]
    fn store(&self, first: u64, last: u64, value: usize) -> bool {
        let Some(value) = NonZeroUsize::new(value) else { return false };
        self.0.try_write().is_some_and(|mut writer| writer.insert(first..=last, value).is_ok())
    }

    #[inline]
    fn erase(&self, first: u64, last: u64) {
        let erased = self.0.try_write().map(|mut writer| writer.erase_range(first..=last));
        debug_assert_eq!(erased, Some(Ok(())));
    }

    #[inline]
    fn lowest_gap(&self, size: u64, to: u64) -> Option<u64> {
        self.0.try_write()?.lowest_gap(size, 1, 0..=to)
    }

    #[inline]
    fn highest_gap(&self, size: u64, to: u64) -> Option<u64> {
        self.0.try_write()?.highest_gap(size, 1, 0..=to)
    }
}

/// The standard library's lock, which on Linux is one word and no system call unless somebody waits.
pub(super) struct Locked<T>(RwLock<T>);

impl<T> Locked<T> {
    pub(super) const fn new(map: T) -> Self {
        Self(RwLock::new(map))
    }

    pub(super) fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

struct OfRangemap(Locked<RangeInclusiveMap<u64, usize>>);

impl Map for OfRangemap {
    type Member<'a> = ();

    fn build(space: &Space) -> Result<Self, BuildError> {
        let map = valued(space).map(|(first, last, value)| (first..=last, value)).collect();
        Ok(Self(Locked::new(map)))
    }

    fn join(&self) {}

    #[inline]
    fn get(&self, index: u64) -> usize {
        self.0.read().get(&index).copied().unwrap_or(0)
    }

    #[inline]
    fn store(&self, first: u64, last: u64, value: usize) -> bool {
        let mut map = self.0.write();
        let free = !map.overlaps(&(first..=last));
        if free {
            map.insert(first..=last, value);
        }
        free
    }

    #[inline]
    fn erase(&self, first: u64, last: u64) {
        self.0.write().remove(first..=last);
    }

    fn lowest_gap(&self, size: u64, to: u64) -> Option<u64> {
        let gap = self.0.read().gaps(&(0..=to)).find(|gap| gap.end() - gap.start() >= size - 1);
        gap.map(|gap| *gap.start())
    }

    /// Its gaps come from the lowest on only, so this goes by its ranges from the highest on.
    fn highest_gap(&self, size: u64, to: u64) -> Option<u64> {
        let map = self.0.read();
        let ranges = map.overlapping(0..=to).rev().map(|(range, _)| (*range.start(), *range.end()));
        highest(ranges, size, to)
    }
}

/// The lowest gap between ranges that come in order.
pub(super) fn lowest(ranges: impl Iterator<Item = (u64, u64)>, size: u64, to: u64) -> Option<u64> {
    let mut free = 0;
    for (first, last) in ranges {
        if first >= free && first - free >= size {
            return (first - 1 <= to).then_some(free);
        }
        free = last.checked_add(1)?;
    }
    (to.checked_sub(free)? >= size - 1).then_some(free)
}

/// The highest gap between ranges that come in order from the highest on, none of which begins behind `to`.
pub(super) fn highest(ranges: impl Iterator<Item = (u64, u64)>, size: u64, to: u64) -> Option<u64> {
    // One behind the last that is free.
    let mut end = to.saturating_add(1);
    for (first, last) in ranges {
        if end > last && end - last > size {
            return Some(end - size);
        }
        end = first;
    }
    end.checked_sub(size)
}

struct OfSkiplist(SkipMap<u64, (u64, usize)>);

impl Map for OfSkiplist {
    type Member<'a> = ();

    fn build(space: &Space) -> Result<Self, BuildError> {
        Ok(Self(valued(space).map(|(first, last, value)| (first, (last, value))).collect()))
    }

    fn join(&self) {}

    #[inline]
    fn get(&self, index: u64) -> usize {
        let found = self.0.upper_bound(Bound::Included(&index));
        found.map_or(0, |found| if index <= found.value().0 { found.value().1 } else { 0 })
    }

    #[inline]
    fn store(&self, first: u64, last: u64, value: usize) -> bool {
        let before = self.0.upper_bound(Bound::Included(&last));
        let free = before.is_none_or(|before| before.value().0 < first);
        if free {
            self.0.insert(first, (last, value));
        }
        free
    }

    #[inline]
    fn erase(&self, first: u64, _last: u64) {
        self.0.remove(&first);
    }

    fn lowest_gap(&self, size: u64, to: u64) -> Option<u64> {
        lowest(self.0.range(..=to).map(|one| (*one.key(), one.value().0)), size, to)
    }

    fn highest_gap(&self, size: u64, to: u64) -> Option<u64> {
        highest(self.0.range(..=to).rev().map(|one| (*one.key(), one.value().0)), size, to)
    }
}

#[cfg(test)]
mod tests {
    use super::super::space::LARGE;
    use super::*;

    struct Agree<'s>(&'s Space, Vec<(Vec<usize>, Vec<Option<u64>>)>);

    impl Visit for Agree<'_> {
        fn visit<M: Map>(&mut self, _: Rival, map: &M) {
            let _member = map.join();
            let last = self.0.last();
            let (mut values, mut gaps) = (Vec::new(), Vec::new());
            let mut look = || {
                values.extend((0..=last + 40).map(|index| map.get(index)));
                for size in (1..=LARGE + self.0.sizes).chain([u64::MAX]) {
                    gaps.extend([map.lowest_gap(size, last), map.highest_gap(size, last)]);
                }
            };
            look();
            // With holes filled, of which each is full then.
            for (n, &range) in self.0.ranges.iter().enumerate().step_by(3) {
                let (first, last) = Space::hole(range);
                assert!(map.store(first, last, 1000 + n) && !map.store(last, last, 1));
            }
            look();
            for &range in self.0.ranges.iter().step_by(3) {
                let (first, last) = Space::hole(range);
                map.erase(first, last);
            }
            map.rest();
            values.extend((0..=last + 40).map(|index| map.get(index)));
            gaps.extend(
                (1..LARGE).flat_map(|size| [map.lowest_gap(size, last), map.highest_gap(size, last)]),
            );
            self.1.push((values, gaps));
        }
    }

    #[test]
    fn all_maps_agree() {
        for count in [8, 100, 333] {
            let space = Space::new(count);
            let maps = Maps::build(&space).unwrap();
            let mut agree = Agree(&space, Vec::new());
            for rival in Rival::ALL {
                maps.visit(rival, &mut agree);
            }
            let [first, others @ ..] = &agree.1[..] else { unreachable!() };
            assert!(first.0.contains(&count) && first.0.contains(&0) && first.1.contains(&None));
            others.iter().for_each(|other| assert!(first == other, "{count}"));
        }
    }
}

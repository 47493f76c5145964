//! Maps of ranges, behind one face.

use super::space::Space;
use crossbeam_skiplist::SkipMap;
use isotherm_maple::{BuildError, MapleTree};
use isotherm_rcu::{Joined, Qsbr, Threads};
use rangemap::RangeInclusiveMap;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
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
fn valued(space: &Space) -> impl Iterator<Item = (u64, u64, usize)> {
    space.ranges.iter().zip(1..).map(|(&(first, last), value)| (first, last, value))
}

/// Two readers, a writer, and the thread that builds.
const THREADS: usize = 4;

struct OfMaple(MapleTree<NonZeroUsize, Qsbr<Threads, THREADS>>);

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
struct Locked<T>(RwLock<T>);

impl<T> Locked<T> {
    const fn new(map: T) -> Self {
        Self(RwLock::new(map))
    }

    fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, T> {
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
fn lowest(ranges: impl Iterator<Item = (u64, u64)>, size: u64, to: u64) -> Option<u64> {
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
fn highest(ranges: impl Iterator<Item = (u64, u64)>, size: u64, to: u64) -> Option<u64> {
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

type ByFirst = BTreeMap<u64, (u64, usize)>;

fn by_first(space: &Space) -> ByFirst {
    valued(space).map(|(first, last, value)| (first, (last, value))).collect()
}

fn get(map: &ByFirst, index: u64) -> usize {
    let found = map.range(..=index).next_back();
    found.filter(|&(_, &(last, _))| index <= last).map_or(0, |(_, &(_, value))| value)
}

fn is_free(map: &ByFirst, first: u64, last: u64) -> bool {
    map.range(..=last).next_back().is_none_or(|(_, &(end, _))| end < first)
}

struct OfBtree(Locked<ByFirst>);

impl Map for OfBtree {
    type Member<'a> = ();

    fn build(space: &Space) -> Result<Self, BuildError> {
        Ok(Self(Locked::new(by_first(space))))
    }

    fn join(&self) {}

    #[inline]
    fn get(&self, index: u64) -> usize {
        get(&self.0.read(), index)
    }

    #[inline]
    fn store(&self, first: u64, last: u64, value: usize) -> bool {
        let mut map = self.0.write();
        let free = is_free(&map, first, last);
        if free {
            map.insert(first, (last, value));
        }
        free
    }

    #[inline]
    fn erase(&self, first: u64, _last: u64) {
        self.0.write().remove(&first);
    }

    fn lowest_gap(&self, size: u64, to: u64) -> Option<u64> {
        lowest(self.0.read().range(..=to).map(|(&first, &(last, _))| (first, last)), size, to)
    }

    fn highest_gap(&self, size: u64, to: u64) -> Option<u64> {
        highest(self.0.read().range(..=to).rev().map(|(&first, &(last, _))| (first, last)), size, to)
    }
}

/// The ranges, and the gaps between them by length and first index.
struct WithGaps {
    map: ByFirst,
    gaps: BTreeSet<(u64, u64)>,
}

impl WithGaps {
    /// First and last index of the gap between the ranges on either side of a range.
    fn around(&self, first: u64, last: u64) -> (u64, u64) {
        let before = self.map.range(..first).next_back().map_or(0, |(_, &(last, _))| last + 1);
        let after = self.map.range((Bound::Excluded(last), Bound::Unbounded)).next();
        (before, after.map_or(u64::MAX, |(&first, _)| first - 1))
    }

    /// The length counts from 0: all of u64 has one too.
    fn add(&mut self, first: u64, last: u64) {
        if first <= last {
            self.gaps.insert((last - first, first));
        }
    }
}

struct OfBtreeGaps(Locked<WithGaps>);

impl Map for OfBtreeGaps {
    type Member<'a> = ();

    fn build(space: &Space) -> Result<Self, BuildError> {
        let between = space.ranges.windows(2).filter_map(|two| match two {
            &[(_, last), (first, _)] => Some((first - last - 2, last + 1)),
            _ => None,
        });
        let rest = space.last() + 1;
        let gaps = between.chain([(u64::MAX - rest, rest)]).collect();
        Ok(Self(Locked::new(WithGaps { map: by_first(space), gaps })))
    }

    fn join(&self) {}

    #[inline]
    fn get(&self, index: u64) -> usize {
        get(&self.0.read().map, index)
    }

    #[inline]
    fn store(&self, first: u64, last: u64, value: usize) -> bool {
        let mut both = self.0.write();
        if !is_free(&both.map, first, last) {
            return false;
        }
        let (start, end) = both.around(first, last);
        both.gaps.remove(&(end - start, start));
        if start < first {
            both.add(start, first - 1);
        }
        if last < end {
            both.add(last + 1, end);
        }
        both.map.insert(first, (last, value));
        true
    }

    #[inline]
    fn erase(&self, first: u64, last: u64) {
        let mut both = self.0.write();
        both.map.remove(&first);
        let (start, end) = both.around(first, last);
        if start < first {
            both.gaps.remove(&(first - 1 - start, start));
        }
        if last < end {
            both.gaps.remove(&(end - last - 1, last + 1));
        }
        both.add(start, end);
    }

    #[inline]
    fn lowest_gap(&self, size: u64, to: u64) -> Option<u64> {
        let both = self.0.read();
        let fit = both.gaps.range((size - 1, 0)..).map(|&(_, first)| first);
        fit.filter(|&first| first <= to && to - first >= size - 1).min()
    }

    #[inline]
    fn highest_gap(&self, size: u64, to: u64) -> Option<u64> {
        let both = self.0.read();
        let fit = both.gaps.range((size - 1, 0)..).map(|&(more, first)| (first, (first + more).min(to)));
        fit.filter(|&(first, last)| first <= last && last - first >= size - 1)
            .map(|(_, last)| last + 1 - size)
            .max()
    }
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

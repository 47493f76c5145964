//! The standard library's B-tree as a map of ranges, without an index of gaps and with one.

use super::rivals::{Locked, Map, highest, lowest, valued};
use super::space::Space;
use isotherm_maple::BuildError;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

pub(super) type ByFirst = BTreeMap<u64, (u64, usize)>;

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

pub(super) struct OfBtree(Locked<ByFirst>);

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
pub(super) struct WithGaps {
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

pub(super) struct OfBtreeGaps(Locked<WithGaps>);

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

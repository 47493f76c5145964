//! The rows of a group, as they gather.

use crate::{Mapping, Mappings};
use isotherm_damon::{AddrRange, RegionSnapshot};
use std::sync::Arc;

/// Snapshots that become a row group.
#[derive(Default)]
pub(super) struct Group {
    pub(super) heads: Vec<Head>,
    pub(super) targets: Vec<Target>,
    pub(super) regions: Vec<RegionSnapshot>,
    /// Text that stands in these rows.
    pub(super) items: Vec<(usize, String)>,
    /// Text that stands in no row, of a group without any.
    pub(super) lone: Vec<String>,
    /// Bytes of what stands in rows.
    pub(super) items_len: usize,
}

/// What a snapshot says of itself.
pub(super) struct Head {
    pub(super) index: u64,
    pub(super) start_ns: u64,
    pub(super) end_ns: u64,
    /// Both by the wall clock, microseconds since 1970.
    pub(super) wall_us: Option<(i64, i64)>,
    pub(super) sample_ns: u64,
    pub(super) max_nr_accesses: u32,
    pub(super) rows: usize,
}

/// A target of a snapshot.
pub(super) struct Target {
    pub(super) id: u64,
    pub(super) who: Option<Arc<Who>>,
    pub(super) names: Option<Arc<Names>>,
    pub(super) rows: usize,
}

/// What is known of a target.
pub(super) struct Who {
    pub(super) pid: u32,
    pub(super) comm: String,
}

/// A target's mappings at a time.
pub(super) struct Names {
    pub(super) maps: Arc<[Mapping]>,
}

impl Names {
    pub(super) fn new(maps: &Mappings) -> Self {
        let mut maps = Arc::clone(&maps.maps);
        // They come sorted; a file may have it otherwise.
        if !maps.is_sorted_by_key(|m| m.start) {
            Arc::make_mut(&mut maps).sort_by_key(|m| m.start);
        }
        Self { maps }
    }

    pub(super) fn walk(&self) -> Walk<'_> {
        Walk { maps: &self.maps, at: 0, last: 0 }
    }
}

/// Finds mappings for regions in order of address.
pub(super) struct Walk<'a> {
    maps: &'a [Mapping],
    /// The first that ends past the last region's start.
    at: usize,
    last: u64,
}

impl Walk<'_> {
    /// Index of the mapping that covers most of `range`, as [`Mappings::main_mapping`] finds it.
    pub(super) fn main(&mut self, range: AddrRange) -> Option<usize> {
        if range.start < self.last {
            self.at = self.maps.partition_point(|m| m.end <= range.start);
        }
        self.last = range.start;
        while self.maps.get(self.at).is_some_and(|m| m.end <= range.start) {
            self.at += 1;
        }
        let touching = self.maps.iter().enumerate().skip(self.at).take_while(|(_, m)| m.start < range.end);
        let covered = |m: &Mapping| m.range().intersection(range).size();
        touching.max_by_key(|&(i, m)| (covered(m), std::cmp::Reverse(i))).map(|(i, _)| i)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn walking_finds_what_searching_finds(
            sizes in prop::collection::vec((0..3_u64, 1..4_u64), 0..12),
            ranges in prop::collection::vec((0..40_u64, 0..12_u64), 0..30),
        ) {
            let mut end = 0;
            let maps = sizes.iter().map(|(gap, size)| {
                let start = end + gap;
                end = start + size;
                Mapping { start, end, ..Mapping::default() }
            });
            let maps = Mappings { maps: maps.collect(), ..Mappings::default() };
            let names = Names::new(&maps);
            let mut walk = names.walk();
            for (start, size) in ranges {
                let range = AddrRange::new(start, start + size);
                prop_assert_eq!(walk.main(range), maps.main_mapping(range));
            }
        }
    }
}

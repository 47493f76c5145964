//! Which ranges to monitor, and how a target's regions follow them: the start, and the regions update.

use crate::{AddrRange, Region};
use alloc::vec::Vec;

const fn align_down(addr: u64, to: u64) -> u64 {
    addr & !(to - 1)
}

const fn align_up(addr: u64, to: u64) -> u64 {
    align_down(addr.saturating_add(to - 1), to)
}

/// The three regions of a virtual address space: its mappings without the two biggest gaps between them, which in a
/// usual process separates heap, mmap area and stack (seeds 000/001; kernel design document, "Virtual address space").
///
/// `mappings` must be sorted and disjoint. Fewer than two gaps give fewer ranges; no mappings give none.
///
/// ```
/// use isotherm_damon::{AddrRange, three_regions};
/// let maps = [(10, 20), (20, 25), (200, 210), (210, 220), (300, 305), (307, 330)].map(|(s, e)| AddrRange::new(s, e));
/// let want = [(10, 25), (200, 220), (300, 330)].map(|(s, e)| AddrRange::new(s, e));
/// assert_eq!(three_regions(&maps), want);
/// ```
pub fn three_regions(mappings: &[AddrRange]) -> Vec<AddrRange> {
    without_gaps(mappings, 2, 1)
}

/// The mappings (sorted, disjoint) without the `most` biggest gaps between them, of those that are at least `least` bytes:
/// what lies between two others stays in when it is small, so that thousands of mappings make a few ranges.
pub fn without_gaps(mappings: &[AddrRange], most: usize, least: u64) -> Vec<AddrRange> {
    let (Some(first), Some(last)) = (mappings.first(), mappings.last()) else { return Vec::new() };
    let between = mappings.windows(2).map(|pair| AddrRange::new(pair[0].end, pair[1].start));
    let mut gaps: Vec<AddrRange> = between.filter(|gap| gap.size() >= least.max(1)).collect();
    if gaps.len() > most {
        gaps.select_nth_unstable_by_key(most, |gap| core::cmp::Reverse(gap.size()));
        gaps.truncate(most);
    }
    gaps.sort_unstable();
    let mut start = first.start;
    let mut ranges = Vec::with_capacity(gaps.len() + 1);
    for gap in gaps {
        ranges.push(AddrRange::new(start, gap.start));
        start = gap.end;
    }
    ranges.push(AddrRange::new(start, last.end));
    ranges
}

/// The first regions of a target over `ranges`: each range cut evenly so that together they reach
/// `min_nr_regions`, as far as `min_region` (bytes, a power of two) lets them.
pub(crate) fn initial_regions(ranges: &[AddrRange], min_nr_regions: usize, min_region: u64) -> Vec<Region> {
    let ranges: Vec<AddrRange> = ranges
        .iter()
        .map(|r| AddrRange::new(align_down(r.start, min_region), align_up(r.end, min_region)))
        .filter(|r| !r.is_empty())
        .collect();
    let total: u64 = ranges.iter().map(|r| r.size()).sum();
    let mut regions = Vec::new();
    for range in ranges {
        // Rounded up, so that small ranges beside large ones do not keep the total below the minimum.
        let share = (u128::from(range.size()) * min_nr_regions as u128).div_ceil(u128::from(total));
        let pieces = u64::try_from(share).unwrap_or(u64::MAX).min(range.size() / min_region).max(1);
        let size = align_down(range.size() / pieces, min_region).max(min_region);
        let mut start = range.start;
        for index in 0..pieces {
            let end = if index + 1 == pieces { range.end } else { start + size };
            regions.push(Region::new(AddrRange::new(start, end)));
            start = end;
        }
    }
    regions
}

/// Makes `regions` follow the target's new `ranges` (sorted, disjoint): what intersects no range goes, edges stretch
/// or shrink to the ranges' borders, what no region covers gets a new one.
pub(crate) fn update_regions(regions: &mut Vec<Region>, ranges: &[AddrRange], min_region: u64) {
    let old = core::mem::take(regions);
    let mut old = old.into_iter().peekable();
    let mut floor = 0;
    for range in ranges {
        let want =
            AddrRange::new(align_down(range.start, min_region).max(floor), align_up(range.end, min_region));
        if want.is_empty() {
            continue;
        }
        floor = want.end;
        let mut at = want.start;
        let mut first = true;
        while let Some(region) = old.peek_mut() {
            if region.range.end <= want.start {
                old.next();
                continue;
            }
            if region.range.start >= want.end {
                break;
            }
            let inside = region.range.intersection(want);
            if inside.start > at && !first {
                regions.push(Region::new(AddrRange::new(at, inside.start)));
            }
            // The first region stretches down to the range's own border.
            let start = if first { want.start } else { inside.start };
            first = false;
            regions.push(Region { range: AddrRange::new(start, inside.end), ..*region });
            at = inside.end;
            if region.range.end > want.end {
                // Its rest may lie in the next range.
                region.range.start = want.end;
                break;
            }
            old.next();
        }
        match regions.last_mut().filter(|_| !first) {
            Some(last) => last.range.end = want.end,
            None => regions.push(Region::new(want)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    fn ranges(list: &[(u64, u64)]) -> Vec<AddrRange> {
        list.iter().map(|&(s, e)| AddrRange::new(s, e)).collect()
    }

    fn spans(regions: &[Region]) -> Vec<(u64, u64)> {
        regions.iter().map(|r| (r.range.start, r.range.end)).collect()
    }

    #[test]
    fn fewer_gaps_give_fewer_regions() {
        assert_eq!(three_regions(&[]), vec![]);
        assert_eq!(three_regions(&ranges(&[(4, 8), (8, 12)])), ranges(&[(4, 12)]));
        assert_eq!(three_regions(&ranges(&[(4, 8), (10, 12)])), ranges(&[(4, 8), (10, 12)]));
    }

    #[test]
    fn min_region_wins_over_min_nr_regions() {
        let regions = initial_regions(&ranges(&[(0, 10)]), 10, 2);
        assert_eq!(spans(&regions), [(0, 2), (2, 4), (4, 6), (6, 8), (8, 10)]);
    }

    #[test]
    fn the_start_reaches_min_nr_regions() {
        let regions = initial_regions(&ranges(&[(0, 1000), (5000, 6000), (9000, 9010)]), 10, 1);
        assert_eq!(regions.len(), 5 + 5 + 1, "{:?}", spans(&regions));
    }

    // The four cases of the kernel's unit test "damon_test_apply_three_regions*".
    #[test]
    fn update_follows_the_kernels_unit_tests() {
        let start = [(10, 20), (20, 30), (50, 55), (55, 57), (57, 59), (70, 80), (80, 90), (90, 100)];
        type Spans = &'static [(u64, u64)];
        let cases: [(Spans, Spans); 4] = [
            (&[(5, 27), (45, 55), (73, 104)], &[(5, 20), (20, 27), (45, 55), (73, 80), (80, 90), (90, 104)]),
            (&[(5, 27), (56, 57), (65, 104)], &[(5, 20), (20, 27), (56, 57), (65, 80), (80, 90), (90, 104)]),
            (&[(5, 27), (61, 63), (65, 104)], &[(5, 20), (20, 27), (61, 63), (65, 80), (80, 90), (90, 104)]),
            (&[(5, 7), (30, 32), (65, 68)], &[(5, 7), (30, 32), (65, 68)]),
        ];
        for (new, want) in cases {
            let mut regions: Vec<Region> =
                start.iter().map(|&(s, e)| Region::new(AddrRange::new(s, e))).collect();
            update_regions(&mut regions, &ranges(new), 1);
            assert_eq!(spans(&regions), want, "after {new:?}");
        }
    }

    fn sorted_ranges() -> impl Strategy<Value = Vec<AddrRange>> {
        prop::collection::vec((1u64..50, 1u64..80), 0..8).prop_map(|steps| {
            let mut at = 0;
            steps
                .into_iter()
                .map(|(gap, size)| {
                    let start = at + gap;
                    at = start + size;
                    AddrRange::new(start * 4096, at * 4096)
                })
                .collect()
        })
    }

    proptest! {
        #[test]
        fn updated_regions_cover_exactly_the_new_ranges(a in sorted_ranges(), b in sorted_ranges(), n in 3usize..40) {
            let mut regions = initial_regions(&a, n, 4096);
            update_regions(&mut regions, &b, 4096);
            for pair in regions.windows(2) {
                prop_assert!(pair[0].range.end <= pair[1].range.start);
            }
            prop_assert!(regions.iter().all(|r| !r.range.is_empty() && r.range.start % 4096 == 0));
            let covered: u64 = regions.iter().map(|r| r.range.size()).sum();
            prop_assert_eq!(covered, b.iter().map(|r| r.size()).sum::<u64>());
            for range in &b {
                let inside: u64 = regions.iter().map(|r| r.range.intersection(*range).size()).sum();
                prop_assert_eq!(inside, range.size());
            }
        }

        #[test]
        fn three_regions_cover_every_mapping(maps in sorted_ranges()) {
            let three = three_regions(&maps);
            prop_assert!(three.len() <= 3);
            for map in &maps {
                prop_assert!(three.iter().any(|r| r.intersection(*map) == *map));
            }
        }
    }
}

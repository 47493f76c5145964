//! Adaptive regions: merging what is alike, splitting at random, and ages.
//!
//! Why this finds the pattern: a region is only as good as the assumption that its pages are accessed alike. Merging
//! removes borders that say nothing; splitting draws new ones blindly; those that separate different pages survive
//! the next merge because the two sides count differently. The number of regions, and so the cost, stays between two
//! bounds whatever the target's size (seed 001, patches 5 and 6; kernel design document, "Adaptive Regions
//! Adjustment").

use crate::{Region, Rng, Target};
use alloc::vec::Vec;

/// Counts one more aggregation into each region's age, or starts it anew when `nr_accesses` moved by more than
/// `threshold`.
pub(crate) fn age_regions(regions: &mut [Region], threshold: u32) {
    for region in regions {
        if region.nr_accesses.abs_diff(region.last_nr_accesses) > threshold {
            region.age = 0;
        } else {
            region.age = region.age.saturating_add(1);
        }
    }
}

/// Merges neighbours whose `nr_accesses` differ by at most `threshold` and whose joint size is at most `max_size`
/// bytes, unless `keep_apart` says that the two are known to differ.
pub(crate) fn merge_regions(
    regions: &mut Vec<Region>,
    threshold: u32,
    max_size: u64,
    keep_apart: impl Fn(&Region, &Region) -> bool,
) {
    regions.dedup_by(|right, left| {
        let alike = left.range.end == right.range.start
            && left.nr_accesses.abs_diff(right.nr_accesses) <= threshold
            && left.range.size() + right.range.size() <= max_size
            && !keep_apart(left, right);
        if alike {
            left.absorb(right);
        }
        alike
    });
}

/// Merges over all targets, with a growing threshold while there are more than `max_nr_regions`, until under it or
/// past the highest possible `nr_accesses`.
pub(crate) fn merge_targets(
    targets: &mut [Target],
    threshold: u32,
    max_size: u64,
    max_nr_regions: usize,
    max_nr_accesses: u32,
) {
    let mut threshold = threshold;
    loop {
        for target in targets.iter_mut() {
            merge_regions(&mut target.regions, threshold, max_size, |_, _| false);
        }
        let nr_regions: usize = targets.iter().map(|t| t.regions.len()).sum();
        if nr_regions <= max_nr_regions || threshold >= max_nr_accesses {
            return;
        }
        threshold = (threshold * 2).max(1);
    }
}

/// Gives regions that were drawn anew the `last_nr_accesses` and age of those that lay where they lie: means, weighted by
/// the bytes in common. What lies where nothing lay is new.
pub(crate) fn inherit(old: &[Region], new: &mut [Region]) {
    let mut first = 0;
    for region in new {
        while old.get(first).is_some_and(|o| o.range.end <= region.range.start) {
            first += 1;
        }
        let (mut bytes, mut last, mut age) = (0u128, 0u128, 0u128);
        for before in old.iter().skip(first).take_while(|o| o.range.start < region.range.end) {
            let common = u128::from(before.range.intersection(region.range).size());
            bytes += common;
            last += common * u128::from(before.last_nr_accesses);
            age += common * u128::from(before.age);
        }
        // Means of 32-bit numbers fit.
        region.last_nr_accesses = last.checked_div(bytes).unwrap_or(0) as u32;
        region.age = age.checked_div(bytes).unwrap_or(0) as u32;
    }
}

/// Splits every region that is larger than twice `min_region` into `pieces` at random places: the left piece gets
/// 10..90 % of what is being cut.
pub(crate) fn split_regions(regions: &mut Vec<Region>, pieces: usize, min_region: u64, rng: &mut Rng) {
    let old = core::mem::take(regions);
    regions.reserve(old.len() * pieces);
    for mut region in old {
        // Pieces come off the right end, so that the remaining left part is cut again.
        let mut cut_off: [Option<Region>; 2] = [None, None];
        for slot in cut_off.iter_mut().take(pieces.saturating_sub(1)) {
            let size = region.range.size();
            if size <= 2 * min_region {
                break;
            }
            let tenths = 1 + rng.below(9);
            let left = (u128::from(size) * u128::from(tenths) / 10) as u64 & !(min_region - 1);
            if left != 0 && left < size {
                *slot = Some(region.split_at(region.range.start + left));
            }
        }
        regions.push(region);
        regions.extend(cut_off.into_iter().rev().flatten());
    }
}

/// The split step over all targets (kernel: only while at most half of `max_nr_regions` exist; into three when the
/// number did not change since last time and is below a third).
pub(crate) fn split_targets(
    targets: &mut [Target],
    last_nr_regions: &mut usize,
    max_nr_regions: usize,
    min_region: u64,
    rng: &mut Rng,
) {
    let nr_regions: usize = targets.iter().map(|t| t.regions.len()).sum();
    if nr_regions <= max_nr_regions / 2 {
        let pieces = if *last_nr_regions == nr_regions && nr_regions < max_nr_regions / 3 { 3 } else { 2 };
        for target in targets {
            split_regions(&mut target.regions, pieces, min_region, rng);
        }
    }
    *last_nr_regions = nr_regions;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AddrRange, Rng};
    use alloc::vec;
    use proptest::prelude::*;

    fn region(start: u64, end: u64, nr_accesses: u32, age: u32) -> Region {
        Region {
            nr_accesses,
            nr_accesses_bp: nr_accesses * 10_000,
            age,
            ..Region::new(AddrRange::new(start, end))
        }
    }

    #[test]
    fn merging_two_takes_size_weighted_means() {
        let mut regions = vec![region(0, 100, 10, 9), region(100, 300, 20, 21)];
        merge_regions(&mut regions, 10, u64::MAX, |_, _| false);
        assert_eq!(regions.len(), 1);
        assert_eq!((regions[0].nr_accesses, regions[0].age), (16, 17));
        assert_eq!(regions[0].range, AddrRange::new(0, 300));
    }

    /// A heap of 10 pages of which half could be observed, beside 90 that are not there.
    #[test]
    fn what_was_seen_is_a_share_of_what_is_there() {
        let part = |start, end, seen_bp, resident| Region {
            seen_bp,
            resident: Some(resident),
            ..region(start, end, 0, 0)
        };
        let seen = |parts: [Region; 2]| {
            let mut regions = parts.to_vec();
            merge_regions(&mut regions, 0, u64::MAX, |_, _| false);
            assert_eq!(regions.len(), 1);
            (regions[0].seen_bp, regions[0].resident)
        };
        assert_eq!(seen([part(0, 10, 5000, 10), part(10, 100, 10_000, 0)]), (5000, Some(10)));
        assert_eq!(seen([part(0, 10, 5000, 10), part(10, 100, 10_000, 40)]), (9000, Some(50)));
        assert_eq!(seen([part(0, 10, 5000, 0), part(10, 100, 10_000, 0)]), (9500, Some(0)), "by size");
        assert_eq!(seen([part(0, 10, 1, 1000), part(10, 100, 10_000, 0)]).0, 1, "not unknown");
    }

    // The kernel's unit test "damon_test_merge_regions_of".
    #[test]
    fn merging_follows_the_kernels_unit_test() {
        let starts = [0u64, 100, 114, 122, 130, 156, 170, 184];
        let ends = [100u64, 112, 122, 130, 156, 170, 184, 230];
        let counts = [0u32, 0, 10, 10, 20, 30, 1, 2];
        let mut regions: Vec<Region> = (0..8).map(|i| region(starts[i], ends[i], counts[i], 0)).collect();
        merge_regions(&mut regions, 9, 9999, |_, _| false);
        let spans: Vec<_> = regions.iter().map(|r| (r.range.start, r.range.end)).collect();
        assert_eq!(spans, [(0, 112), (114, 130), (130, 156), (156, 170), (170, 230)]);
    }

    #[test]
    fn joint_size_is_limited() {
        let mut regions = vec![region(0, 60, 1, 0), region(60, 100, 1, 0), region(100, 120, 1, 0)];
        merge_regions(&mut regions, 1, 80, |_, _| false);
        assert_eq!(regions.len(), 2, "60 + 40 is too much, 40 + 20 is not");
    }

    #[test]
    fn age_counts_while_accesses_stay() {
        let mut regions = vec![region(0, 10, 5, 3), region(10, 20, 8, 3)];
        regions[0].last_nr_accesses = 4;
        age_regions(&mut regions, 1);
        assert_eq!((regions[0].age, regions[1].age), (4, 0));
    }

    fn regions() -> impl Strategy<Value = Vec<Region>> {
        prop::collection::vec((0u64..3, 1u64..300, 0u32..21, 0u32..100), 1..60).prop_map(|steps| {
            let mut at = 0;
            steps
                .into_iter()
                .map(|(gap, size, nr, age)| {
                    let start = at + gap * 4096;
                    at = start + size * 4096;
                    region(start, at, nr, age)
                })
                .collect()
        })
    }

    fn bytes(regions: &[Region]) -> u64 {
        regions.iter().map(|r| r.range.size()).sum()
    }

    fn well_formed(regions: &[Region]) -> bool {
        regions.iter().all(|r| !r.range.is_empty() && r.range.start % 4096 == 0 && r.range.end % 4096 == 0)
            && regions.windows(2).all(|p| p[0].range.end <= p[1].range.start)
    }

    #[test]
    fn regions_drawn_anew_inherit_by_the_bytes_in_common() {
        let mut old = vec![region(0, 100, 0, 10), region(100, 200, 0, 20)];
        old[1].last_nr_accesses = 8;
        let mut new =
            vec![region(0, 50, 1, 0), region(50, 150, 2, 0), region(150, 200, 3, 0), region(300, 400, 4, 0)];
        inherit(&old, &mut new);
        let all: Vec<_> = new.iter().map(|r| (r.age, r.last_nr_accesses, r.nr_accesses)).collect();
        assert_eq!(all, [(10, 0, 1), (15, 4, 2), (20, 8, 3), (0, 0, 4)]);
    }

    proptest! {
        #[test]
        fn merge_and_split_conserve_bytes(mut list in regions(), threshold in 0u32..20, pieces in 2usize..4, seed: u64) {
            let before = bytes(&list);
            let count = list.len();
            merge_regions(&mut list, threshold, 1 << 24, |_, _| false);
            prop_assert!(list.len() <= count && bytes(&list) == before && well_formed(&list));
            let merged = list.len();
            split_regions(&mut list, pieces, 4096, &mut Rng::new(seed));
            prop_assert!(list.len() <= merged * pieces && bytes(&list) == before && well_formed(&list));
        }

        #[test]
        fn a_split_leaves_a_tenth_on_either_side(size in 21u64..10_000, seed: u64) {
            let mut list = vec![region(0, size * 4096, 7, 2)];
            split_regions(&mut list, 2, 4096, &mut Rng::new(seed));
            prop_assert_eq!(list.len(), 2);
            let left = list[0].range.size() as f64 / (size * 4096) as f64;
            prop_assert!((0.1 - 1.0 / size as f64..=0.9).contains(&left));
            prop_assert!(list.iter().all(|r| (r.nr_accesses, r.age) == (7, 2)), "children inherit");
        }

        #[test]
        fn merging_gets_under_the_maximum(list in regions(), max in 10usize..40) {
            // Neighbours across a gap can never merge, so their number is a floor of its own.
            let gaps = list.windows(2).filter(|p| p[0].range.end != p[1].range.start).count();
            let mut targets = [Target { regions: list, ..Target::default() }];
            merge_targets(&mut targets, 1, u64::MAX, max, 20);
            prop_assert!(targets[0].regions.len() <= max.max(gaps + 1));
        }
    }
}

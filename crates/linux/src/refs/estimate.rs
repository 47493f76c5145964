//! From shares of referenced pages to `nr_accesses`. Pure.
//!
//! `nr_accesses` of a region means: out of the sampling intervals of an aggregation, in how many a random page of the
//! region is seen accessed. What clear_refs and smaps give is the share f of a mapping's pages that were accessed in a
//! window of w sampling intervals.
//!
//! * Over a window of about one interval, f *is* the probability that a random page is accessed in an interval,
//!   however unevenly accesses are spread over the mapping. It tells nothing of what is accessed more rarely than
//!   once in windows x pages.
//! * Over a long window, f sees rare accesses, and 1 - (1 - f)^(1/w) turns it into a probability for one interval as
//!   if all pages were alike. As f is concave in each page's probability, that is never more than the true mean
//!   (Jensen's inequality): a mapping with one hot tenth shows f = 0.1 over both windows, and only the short one tells
//!   that the tenth is accessed all the time.
//!
//! Pages of files that others map too cannot be told apart: they are left out. Where they are less than half of a mapping,
//! the references are taken to be spread alike over all its pages; otherwise its rate is unknown.
//!
//! So the larger of both estimates is taken: the short one is unbiased but blind below its resolution, the long one a
//! lower bound.

use super::smaps::Use;
use isotherm_damon::{AddrRange, RegionSnapshot};

/// One mapping over two windows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Look {
    pub referenced: u64,
    pub resident: u64,
    /// Length of the window in sampling intervals, above 0.
    pub intervals: f64,
}

impl Look {
    /// Probability that a random page is accessed in one sampling interval, all pages alike, 0..=1.
    pub(super) fn per_interval(self, page_size: u64) -> f64 {
        let pages = (self.resident / page_size.max(1)) as f64;
        if pages < 1.0 || self.intervals <= 0.0 {
            return 0.0;
        }
        let share = (self.referenced as f64 / self.resident as f64).clamp(0.0, 1.0);
        if self.intervals <= 1.0 {
            return share;
        }
        // All of n pages seen: the share is likely above 1 - 1/n, but no more is known. Half a page short of all
        // keeps a long window from claiming that every page is accessed all the time.
        let share = share.min(1.0 - 0.5 / pages);
        -((-share).ln_1p() / self.intervals).exp_m1()
    }
}

/// Least share of a mapping's pages whose use can be told for its rate to be known. Half: what the others may add then is
/// no more than what there is. A guess.
const LEAST_OWN: f64 = 0.5;

/// A mapping's estimates over the looks of an aggregation, and what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Mapping {
    pub range: AddrRange,
    pub resident: u64,
    /// Share of the resident pages whose use can be told, 0..=1.
    own: f64,
    /// Page-intervals looked at.
    exposure: f64,
    short_sum: f64,
    shorts: u32,
    long_sum: f64,
    longs: u32,
    last_nr_accesses: u32,
    age: u32,
}

impl Mapping {
    pub(super) fn new(now: Use) -> Self {
        Self::default().now(now)
    }

    /// The same mapping, of another size perhaps.
    pub(super) fn now(self, now: Use) -> Self {
        let shared = if now.resident == 0 { 0.0 } else { now.others as f64 / now.resident as f64 };
        Self { range: now.range, resident: now.resident, own: (1.0 - shared).clamp(0.0, 1.0), ..self }
    }

    /// Counts a look at all its pages after so many intervals.
    pub(super) fn saw(&mut self, look: Look, page_size: u64) {
        self.exposure += look.resident as f64 / page_size as f64 * look.intervals * self.own;
    }

    /// Share of it whose rate is known, in basis points.
    fn seen_bp(&self) -> u16 {
        let looked_at = self.shorts > 0 || self.longs > 0;
        // Rounded, at most 10,000.
        if looked_at && self.own >= LEAST_OWN { (self.own * 10_000.0).round() as u16 } else { 0 }
    }

    pub(super) fn saw_short(&mut self, probability: f64) {
        self.short_sum += probability;
        self.shorts += 1;
    }

    pub(super) fn saw_long(&mut self, probability: f64) {
        self.long_sum += probability;
        self.longs += 1;
    }

    fn probability(&self) -> f64 {
        let mean = |sum: f64, n: u32| if n == 0 { 0.0 } else { sum / f64::from(n) };
        mean(self.short_sum, self.shorts).max(mean(self.long_sum, self.longs)).clamp(0.0, 1.0)
    }
}

/// Ends an aggregation: the mappings' regions, at most `max_regions`, and the mappings made ready for the next one.
/// `aggregations` is how many aggregation intervals it took, at least 1.
pub(super) fn regions(
    mappings: &mut [Mapping],
    max_nr_accesses: u32,
    aggregations: u32,
    max_regions: usize,
) -> Vec<RegionSnapshot> {
    let count = |m: &Mapping| {
        if m.seen_bp() == 0 { 0 } else { (m.probability() * f64::from(max_nr_accesses)).round() as u32 }
    };
    // As DAMON judges: changes up to a tenth of the highest count are none.
    let threshold = mappings.iter().map(count).max().unwrap_or(0) / 10;
    let mut regions = Vec::with_capacity(mappings.len());
    for mapping in mappings.iter_mut() {
        let seen_bp = mapping.seen_bp();
        let nr_accesses = if seen_bp == 0 { 0 } else { count(mapping) };
        let steady = nr_accesses.abs_diff(mapping.last_nr_accesses) <= threshold;
        mapping.age = if steady { mapping.age.saturating_add(aggregations) } else { 0 };
        mapping.last_nr_accesses = nr_accesses;
        let known = if seen_bp == 0 { 0.0 } else { mapping.probability() };
        let in_bp = known * f64::from(max_nr_accesses) * 10_000.0;
        regions.push(RegionSnapshot {
            range: mapping.range,
            nr_accesses,
            nr_accesses_bp: in_bp.round() as u32,
            age: mapping.age,
            seen_bp,
            // Past the largest number there is no more to say; that number itself has another meaning.
            exposure: (mapping.exposure.round() as u32).min(RegionSnapshot::COUNTED - 1),
            resident: Some(mapping.resident),
            idle_bp: 0,
        });
        mapping.exposure = 0.0;
        (mapping.short_sum, mapping.shorts, mapping.long_sum, mapping.longs) = (0.0, 0, 0.0, 0);
    }
    merge_down_to(regions, max_regions.max(1))
}

/// Joins neighbours until at most `max` are left, first those that lie closest together and then those most alike.
/// Means weigh by size, as in DAMON's merge; what was seen, by what is there.
fn merge_down_to(regions: Vec<RegionSnapshot>, max: usize) -> Vec<RegionSnapshot> {
    if regions.len() <= max {
        return regions;
    }
    let mut seams: Vec<(u64, u32, usize)> = regions
        .windows(2)
        .enumerate()
        .filter_map(|(i, pair)| match pair {
            [a, b] => Some((b.range.start - a.range.end, a.nr_accesses_bp.abs_diff(b.nr_accesses_bp), i)),
            _ => None,
        })
        .collect();
    let joins = regions.len() - max;
    seams.sort_unstable();
    seams.truncate(joins);
    let mut joined_to_next = vec![false; regions.len()];
    for (_, _, i) in seams {
        if let Some(join) = joined_to_next.get_mut(i) {
            *join = true;
        }
    }
    let mut merged: Vec<RegionSnapshot> = Vec::with_capacity(max);
    let mut join_previous = false;
    for (region, joins_next) in regions.into_iter().zip(joined_to_next) {
        match merged.last_mut() {
            Some(last) if join_previous => *last = joined(*last, region),
            _ => merged.push(region),
        }
        join_previous = joins_next;
    }
    merged
}

fn joined(a: RegionSnapshot, b: RegionSnapshot) -> RegionSnapshot {
    let (size_a, size_b) = (u128::from(a.range.size()), u128::from(b.range.size()));
    let total = (size_a + size_b).max(1);
    // A weighted mean lies between both and so fits.
    let mean = |x: u32, y: u32| ((u128::from(x) * size_a + u128::from(y) * size_b) / total) as u32;
    // What is not there could not be observed; the rate is that of what was.
    let (there_a, there_b) = match (a.resident.unwrap_or(0), b.resident.unwrap_or(0)) {
        (0, 0) => (size_a, size_b),
        (a, b) => (u128::from(a), u128::from(b)),
    };
    let (seen_a, seen_b) = (there_a * u128::from(a.seen_bp), there_b * u128::from(b.seen_bp));
    let seen_bp = (seen_a + seen_b) / (there_a + there_b).max(1);
    let of_seen = |x: u32, y: u32| {
        ((u128::from(x) * seen_a + u128::from(y) * seen_b) / (seen_a + seen_b).max(1)) as u32
    };
    RegionSnapshot {
        range: AddrRange::new(a.range.start, b.range.end),
        nr_accesses: of_seen(a.nr_accesses, b.nr_accesses),
        nr_accesses_bp: of_seen(a.nr_accesses_bp, b.nr_accesses_bp),
        age: mean(a.age, b.age),
        seen_bp: seen_bp as u16,
        exposure: a.exposure.saturating_add(b.exposure).min(RegionSnapshot::COUNTED - 1),
        resident: Some(a.resident.unwrap_or(0) + b.resident.unwrap_or(0)),
        idle_bp: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAGE: u64 = 4096;

    fn look(referenced: u64, resident: u64, intervals: f64) -> f64 {
        Look { referenced: referenced * PAGE, resident: resident * PAGE, intervals }.per_interval(PAGE)
    }

    fn mapping(start: u64, size: u64) -> Mapping {
        let range = AddrRange::new(start, start + size);
        Mapping::new(Use { range, resident: size, ..Use::default() })
    }

    #[test]
    fn a_short_window_shows_the_probability_itself() {
        assert_eq!(look(10, 100, 1.0), 0.1);
        assert_eq!(look(100, 100, 0.5), 1.0);
        assert_eq!(look(0, 0, 1.0), 0.0);
        assert_eq!(look(5, 10, 0.0), 0.0);
    }

    #[test]
    fn a_long_window_shows_rates_far_below_one_an_interval() {
        // Each page is accessed with probability 1/1000 an interval: over 200 intervals 18.1 % of them.
        let p = look(1814, 10_000, 200.0);
        assert!((p - 0.001).abs() < 1e-5, "{p}");
        // All pages seen over a long window say little: here at least 1.5 % an interval, not 100 %.
        let p = look(1000, 1000, 500.0);
        assert!(p > 0.01 && p < 0.02, "{p}");
    }

    #[test]
    fn a_hot_part_is_not_taken_for_a_lukewarm_whole() {
        let mut m = mapping(0, 100 * PAGE);
        m.saw_short(look(10, 100, 1.0));
        m.saw_long(look(10, 100, 200.0));
        let regions = regions(&mut [m], 20, 1, 10);
        assert_eq!((regions[0].nr_accesses, regions[0].nr_accesses_bp), (2, 20_000));
    }

    #[test]
    fn age_counts_aggregations_and_restarts_with_a_change() {
        let mut m = [mapping(0, PAGE), mapping(PAGE, PAGE)];
        let mut round = |p: f64, aggregations| {
            m[0].saw_short(p);
            m[1].saw_short(1.0);
            regions(&mut m, 20, aggregations, 10)[0]
        };
        assert_eq!((round(1.0, 1).nr_accesses, round(1.0, 1).age), (20, 1));
        assert_eq!(round(0.9, 30).age, 31, "a tenth is no change");
        let changed = round(0.2, 5);
        assert_eq!((changed.nr_accesses, changed.age), (4, 0));
        assert_eq!(round(0.2, 5).age, 5);
    }

    #[test]
    fn what_was_not_looked_at_or_is_used_by_others_is_unknown() {
        let region = |m: Mapping| regions(&mut [m], 20, 1, 10)[0];
        let never = region(mapping(0, PAGE));
        assert!(never.is_unknown() && never.nr_accesses == 0);
        let looked_at = |others: u64| {
            let range = AddrRange::new(0, 100 * PAGE);
            let seen = Use { range, resident: 100 * PAGE, referenced: 50 * PAGE, others: others * PAGE };
            let mut m = Mapping::new(seen);
            let look = Look { referenced: seen.referenced, resident: seen.resident, intervals: 1.0 };
            m.saw(look, PAGE);
            m.saw_short(look.per_interval(PAGE));
            region(m)
        };
        let (own, mixed, libc) = (looked_at(0), looked_at(30), looked_at(80));
        assert_eq!(
            (own.seen_bp, own.nr_accesses, own.exposure, own.resident),
            (10_000, 10, 100, Some(100 * PAGE))
        );
        assert_eq!((mixed.seen_bp, mixed.nr_accesses, mixed.exposure), (7000, 10, 70));
        assert!(libc.is_unknown() && libc.nr_accesses_bp == 0 && libc.resident == Some(100 * PAGE));
        // Joined, the rate is that of what was seen, and half of what is there was.
        let joined = joined(own, RegionSnapshot { range: AddrRange::new(100 * PAGE, 400 * PAGE), ..libc });
        assert_eq!((joined.seen_bp, joined.nr_accesses, joined.resident), (5000, 10, Some(200 * PAGE)));
    }

    #[test]
    fn regions_join_across_the_smallest_gaps_first() {
        let mut m =
            [mapping(0, 10), mapping(10, 10), mapping(1000, 10), mapping(1020, 10), mapping(90_000, 10)];
        m[0].saw_short(1.0);
        let ranges: Vec<_> = regions(&mut m, 20, 1, 3).iter().map(|r| (r.range.start, r.range.end)).collect();
        assert_eq!(ranges, [(0, 20), (1000, 1030), (90_000, 90_010)]);
        m.iter_mut().for_each(|m| m.saw_short(0.0));
        m[0].saw_short(2.0);
        assert_eq!(regions(&mut m, 20, 1, 3)[0].nr_accesses, 10);
    }

    proptest! {
        #[test]
        fn estimates_stay_probabilities(referenced: u64, resident: u64, intervals in 0.0..1e9_f64) {
            let p = Look { referenced, resident, intervals }.per_interval(PAGE);
            prop_assert!((0.0..=1.0).contains(&p));
        }

        #[test]
        fn the_long_estimate_is_what_equal_pages_would_show(p in 0.0001..0.05_f64, w in 2.0..200.0_f64) {
            let pages = 1_000_000.0;
            let seen = (1.0 - (1.0 - p).powf(w)) * pages;
            prop_assume!(seen < pages - 10.0);
            prop_assert!((look(seen as u64, pages as u64, w) / p - 1.0).abs() < 0.02);
        }

        #[test]
        fn never_more_regions_than_allowed_and_none_lost(
            sizes in proptest::collection::vec((1_u64..1000, 0_u64..1000, 0.0..1.0_f64), 1..60), max in 1_usize..20,
        ) {
            let mut at = 0;
            let mut mappings: Vec<Mapping> = sizes.iter().map(|&(size, gap, p)| {
                let mut m = mapping(at, size);
                m.saw_short(p);
                at += size + gap;
                m
            }).collect();
            let all = mappings.clone();
            let regions = regions(&mut mappings, 20, 1, max);
            prop_assert_eq!(regions.len(), max.min(all.len()));
            prop_assert!(regions.is_sorted_by(|a, b| a.range.end <= b.range.start));
            prop_assert!(regions.iter().all(|r| r.nr_accesses <= 20 && r.nr_accesses_bp <= 200_000));
            for m in &all {
                let inside = |r: &RegionSnapshot| r.range.start <= m.range.start && m.range.end <= r.range.end;
                prop_assert!(regions.iter().any(inside));
            }
        }
    }
}

//! The moment in which schemes act: the regions as they stand, at the end of an aggregation or between two.

use crate::{AddrRange, Attrs, PAGE_SIZE, Region, RegionSnapshot, Target, TargetId};
use alloc::vec::Vec;

/// The state of a context in a sampling interval, open for change by [`Callbacks::act`](crate::Callbacks::act).
///
/// Regions can be looked at, and their ages started anew ([`Self::renew`]). Whatever is changed, regions stay sorted,
/// disjoint and aligned, and never become more than [`Attrs::max_nr_regions`] by it.
#[derive(Debug)]
pub struct Moment<'a> {
    /// The caller's clock, in nanoseconds.
    pub now_ns: u64,
    /// Sampling intervals since the start (kernel: `passed_sample_intervals`).
    pub interval: u64,
    /// Whether an aggregation ends now.
    pub ends_aggregation: bool,
    /// Attributes in force.
    pub attrs: Attrs,
    /// Alignment and least size of regions, in bytes.
    pub min_region: u64,
    pub(crate) targets: &'a mut [Target],
    /// Accesses are counted anew in each aggregation, so that in its middle the last one's count fills up.
    pub(crate) counts: bool,
    pub(crate) passed_bp: u32,
    pub(crate) nr_regions: Option<usize>,
    pub(crate) reshaped: bool,
    /// Where Accessed bits of pages that were accessed were cleared, with a flush.
    pub(crate) cleared: Vec<(TargetId, AddrRange)>,
}

impl<'a> Moment<'a> {
    /// The end of an aggregation at `now_ns`, `interval` sampling intervals after the start, outside of a monitor: to run
    /// schemes over regions that come from elsewhere, such as a recording. Regions are aligned to pages.
    pub fn new(targets: &'a mut [Target], attrs: Attrs, now_ns: u64, interval: u64) -> Self {
        Self {
            now_ns,
            interval,
            ends_aggregation: true,
            attrs,
            min_region: PAGE_SIZE,
            targets,
            counts: false,
            passed_bp: 10_000,
            nr_regions: None,
            reshaped: false,
            cleared: Vec::new(),
        }
    }

    /// The targets with their regions.
    pub fn targets(&self) -> &[Target] {
        self.targets
    }

    /// Bytes in all regions.
    pub fn size(&self) -> u64 {
        self.targets.iter().map(Target::size).fold(0, u64::saturating_add)
    }

    /// `nr_accesses` of a region as of now: between two aggregations the moving sum ([`Region::moving_sum`]), or the
    /// estimate where the sampler keeps one. Where some of the looks showed nothing, it is that of the others: what could not
    /// be seen must not make a region colder. Never above [`Attrs::max_nr_accesses`].
    pub fn nr_accesses(&self, region: &Region) -> u32 {
        let most = self.attrs.max_nr_accesses();
        if !self.counts {
            return region.nr_accesses.min(most);
        }
        let sum = u64::from(region.moving_sum(self.passed_bp));
        u32::try_from(of_seen(region, sum)).unwrap_or(u32::MAX).min(most)
    }

    /// The same in 1/10000 of an access.
    pub fn nr_accesses_bp(&self, region: &Region) -> u64 {
        let most = u64::from(self.attrs.max_nr_accesses()) * 10_000;
        let accesses = if self.counts {
            let left = u64::from(10_000 - self.passed_bp.min(10_000));
            of_seen(
                region,
                u64::from(region.nr_accesses) * 10_000 + u64::from(region.last_nr_accesses) * left,
            )
        } else {
            region.accesses_bp()
        };
        accesses.min(most)
    }

    /// A region as of now, by value.
    pub fn snapshot(&self, region: &Region) -> RegionSnapshot {
        let fine = u32::try_from(self.nr_accesses_bp(region)).unwrap_or(u32::MAX);
        RegionSnapshot { nr_accesses: self.nr_accesses(region), nr_accesses_bp: fine, ..region.snapshot() }
    }

    /// Starts the age of `range` of a target (by index) anew. A region of which only a part lies in the range is split.
    ///
    /// Where `max_nr_regions` exist already it is not: its age becomes the size-weighted mean of both parts, as if they had
    /// been merged at once. So a sampler that seldom draws regions anew is not left with ever more of them.
    pub fn renew(&mut self, target: usize, range: AddrRange) {
        let count = *self
            .nr_regions
            .get_or_insert_with(|| self.targets.iter().map(|target| target.regions.len()).sum());
        let most = self.attrs.max_nr_regions;
        let Some(target) = self.targets.get_mut(target) else { return };
        let mut at = target.regions.partition_point(|r| r.range.end <= range.start);
        let mut added = 0;
        while let Some(region) = target.regions.get_mut(at).filter(|r| r.range.start < range.end) {
            let inside = region.range.intersection(range);
            if inside == region.range {
                region.age = 0;
                at += 1;
            } else if count + added >= most {
                let kept = u128::from(region.range.size() - inside.size());
                region.age = (u128::from(region.age) * kept / u128::from(region.range.size().max(1))) as u32;
                at += 1;
            } else {
                // The left border first; what is right of it comes up in the next round.
                let border = if inside.start > region.range.start { inside.start } else { inside.end };
                let right = region.split_at(border);
                target.regions.insert(at + 1, right);
                added += 1;
                if border == inside.start {
                    at += 1;
                }
            }
            // It is no longer what the last snapshot showed.
            target.steady = false;
        }
        self.nr_regions = Some(count + added);
        self.reshaped |= added > 0;
    }
}

/// A count of a region of which only a share was seen, as if all of it had been; rounded to the hotter side.
fn of_seen(region: &Region, count: u64) -> u64 {
    match u64::from(region.seen_bp) {
        0 | 10_000.. => count,
        share => count.saturating_mul(10_000).div_ceil(share),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TargetId;
    use alloc::vec;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    fn target(borders: &[u64]) -> Target {
        let regions = borders.windows(2).map(|pair| Region {
            age: 9,
            nr_accesses: 3,
            resident: Some((pair[1] - pair[0]) * PAGE_SIZE / 2),
            ..Region::new(AddrRange::new(pair[0] * PAGE_SIZE, pair[1] * PAGE_SIZE))
        });
        Target { id: TargetId(1), regions: regions.collect(), ..Target::default() }
    }

    fn ages(target: &Target) -> Vec<(u64, u64, u32)> {
        target.regions.iter().map(|r| (r.range.start / PAGE_SIZE, r.range.end / PAGE_SIZE, r.age)).collect()
    }

    fn pages(start: u64, end: u64) -> AddrRange {
        AddrRange::new(start * PAGE_SIZE, end * PAGE_SIZE)
    }

    #[test]
    fn only_what_lies_in_the_range_becomes_young() {
        let mut targets = [target(&[0, 10, 20, 30])];
        targets[0].steady = true;
        let mut moment = Moment::new(&mut targets, Attrs::default(), 0, 1);
        moment.renew(0, pages(13, 25));
        assert!(moment.reshaped);
        assert_eq!(ages(&targets[0]), [(0, 10, 9), (10, 13, 9), (13, 20, 0), (20, 25, 0), (25, 30, 9)]);
        assert!(!targets[0].steady, "the next snapshot must show it");
        let mut moment = Moment::new(&mut targets, Attrs::default(), 0, 1);
        moment.renew(0, pages(2, 4));
        assert_eq!(ages(&targets[0])[..3], [(0, 2, 9), (2, 4, 0), (4, 10, 9)]);
        let resident: u64 = targets[0].regions.iter().filter_map(|r| r.resident).sum();
        assert_eq!(resident, 15 * PAGE_SIZE, "what is resident is divided, not doubled");
    }

    #[test]
    fn what_could_not_be_seen_makes_nothing_colder() {
        let mut targets = [target(&[0, 10])];
        let mut moment = Moment::new(&mut targets, Attrs::default(), 0, 1);
        (moment.counts, moment.passed_bp) = (true, 5_000);
        // 3 so far and 10 the last time are 8; of a quarter of the looks 8 is more than there can be, of half 16.
        let mut region = Region { nr_accesses: 3, last_nr_accesses: 10, ..Region::default() };
        for (seen_bp, want) in [(10_000, 8), (5_000, 16), (2_500, 20), (0, 8)] {
            region.seen_bp = seen_bp;
            let found = (moment.nr_accesses(&region), moment.nr_accesses_bp(&region));
            assert_eq!(found, (want, u64::from(want) * 10_000), "{seen_bp} bp seen");
        }
    }

    #[test]
    fn where_there_is_no_room_ages_are_averaged() {
        let mut targets = [target(&[0, 10, 20, 30])];
        let attrs = Attrs { min_nr_regions: 3, max_nr_regions: 3, ..Attrs::default() };
        let mut moment = Moment::new(&mut targets, attrs, 0, 1);
        moment.renew(0, pages(5, 20));
        assert!(!moment.reshaped);
        assert_eq!(ages(&targets[0]), [(0, 10, 4), (10, 20, 0), (20, 30, 9)]);
    }

    proptest! {
        #[test]
        fn regions_stay_well_formed(
            sizes in prop::collection::vec(1u64..40, 1..12),
            cuts in prop::collection::vec((0u64..400, 1u64..90), 0..20),
            most in 3usize..40,
        ) {
            let mut borders = vec![0];
            for size in sizes {
                borders.push(borders[borders.len() - 1] + size);
            }
            let mut targets = [target(&borders)];
            let (count, size) = (targets[0].regions.len(), targets[0].size());
            for (start, size) in cuts {
                let attrs = Attrs { max_nr_regions: most, ..Attrs::default() };
                Moment::new(&mut targets, attrs, 0, 1).renew(0, pages(start, start + size));
            }
            let regions = &targets[0].regions;
            prop_assert!(regions.len() <= most.max(count));
            prop_assert_eq!(targets[0].size(), size);
            prop_assert!(regions.windows(2).all(|p| p[0].range.end == p[1].range.start));
            prop_assert!(regions.iter().all(|r| !r.range.is_empty() && r.range.start % PAGE_SIZE == 0));
        }
    }
}

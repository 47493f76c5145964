//! The end of an aggregation: borders from the evidence, then an estimate for every region.

use super::Watched;
use super::count::{Count, RUNGS, highest};
use super::probe::State;
use super::refine::{self, Border};
use super::segment::{Evidence, segment};
use crate::{AddrRange, Attrs, Region, Target};
use alloc::vec::Vec;

/// Price of a change of rate (nats) where no border is known yet, and where one is.
const PRICE: f32 = 6.0;
const PRICE_KNOWN: f32 = 1.5;
/// Most trials one probe brings into segmentation: pages of one stretch are alike, but not that alike.
const MAX_TRIALS: f32 = 20.0;
/// Trials that a region's estimate can be worth at most. DAMON's own has aggregation/sampling (20) of them.
const MEMORY: f32 = 100.0;
/// Trials that segmentation's word is worth for a region just cut.
const PRIOR: f32 = 8.0;
/// Sampling intervals a page that are remembered on average.
const REMEMBERED: f32 = 60.0;
/// Least and greatest share that is forgotten in an aggregation.
const FORGOTTEN: (f32, f32) = (0.05, 0.6);
/// Nats a page by which rates of their own must explain them better than one for all, for pages to differ.
const UNLIKE: f32 = 1.0;
/// Trials at its region's rate that are added to what a page showed, when the pages of a region are averaged.
const SHRINK: f32 = 2.0;

/// One probe's evidence, and what it stands for.
struct Point {
    unit: AddrRange,
    count: Count,
}

/// Ends the aggregation for one target: cuts regions at new borders, estimates every region, resets the probes.
pub(super) fn conclude(watched: &mut Watched, target: &mut Target, attrs: &Attrs, min_region: u64, now: u64) {
    let points = remember(watched, target, now);
    let borders = find_borders(&points, target, min_region, &watched.borders);
    for border in &borders {
        cut(target, border);
    }
    watched.borders.clear();
    watched.borders.extend(borders.iter().map(|b| b.at));
    watched.borders.sort_unstable();
    watched.borders.dedup();
    refine::begin(watched, &borders, min_region);
    estimate(&points, target, attrs);
}

/// Brings every probe's memory up to date, and gives what each has to say.
fn remember(watched: &mut Watched, target: &Target, now: u64) -> Vec<Point> {
    let mut points = Vec::with_capacity(watched.probes.len());
    let mut rest = watched.probes.as_mut_slice();
    for region in &target.regions {
        let start = rest.partition_point(|p| p.addr < region.range.start);
        let end = rest.partition_point(|p| p.addr < region.range.end);
        let (head, tail) = rest.split_at_mut(end);
        rest = tail;
        let mine = head.get_mut(start..).unwrap_or_default();
        // What changed for most of the pages tried has probably changed for all. Page by page, because a loop over an
        // array touches all of them at once: many idle in the same few intervals prove no more than one.
        let (mut tried, mut contradicting) = (0, 0);
        let mut intervals = 0.0;
        for probe in mine.iter_mut() {
            probe.fresh = probe.evidence(rate(region), now);
            intervals += probe.fresh.intervals();
            let known = if probe.past.is_empty() { count(region) } else { probe.past };
            if let Some(contradicts) = probe.contradicts(known.at_most(MAX_TRIALS)) {
                tried += 1;
                contradicting += usize::from(contradicts);
            }
        }
        let changed = 2 * contradicting > tried;
        // All pages forget at the same pace. Were those that wait to be cleared again to keep what they showed, their last
        // access would count for more and more.
        let pace = intervals / mine.len().max(1) as f32;
        let kept = 1.0 - (pace / REMEMBERED).clamp(FORGOTTEN.0, FORGOTTEN.1);
        for probe in mine.iter_mut().filter(|p| p.state != State::Blind) {
            probe.remember(changed, kept);
            if !probe.past.is_empty() {
                points.push(Point { unit: probe.unit, count: probe.past });
            }
        }
    }
    points
}

/// Access probability an interval that a region has had so far.
pub(super) fn rate(region: &Region) -> f32 {
    count(region).rate()
}

fn count(region: &Region) -> Count {
    Count::new(region.hits, region.watched)
}

/// Cuts at a border that is new. What the whole had shown says nothing about either half; what segmentation found does.
fn cut(target: &mut Target, border: &Border) {
    let Some(index) = target.region_at(border.at) else { return };
    if target.regions.get(index).is_none_or(|r| r.range.start == border.at) {
        return;
    }
    target.cut(border.at);
    for (half, rung) in [(index, border.left), (index + 1, border.right)] {
        if let Some(region) = target.regions.get_mut(half) {
            region.watched = PRIOR;
            region.hits = rung.rate() * PRIOR;
        }
    }
}

fn find_borders(points: &[Point], target: &Target, min_region: u64, known: &[u64]) -> Vec<Border> {
    let zones: Vec<Zone> =
        points.windows(2).map(|pair| Zone::between(&pair[0], &pair[1], target, known)).collect();
    let evidence: Vec<Evidence> = points
        .iter()
        .enumerate()
        .map(|(index, point)| {
            let count = point.count.at_most(MAX_TRIALS);
            let price = match index.checked_sub(1).and_then(|i| zones.get(i)) {
                Some(Zone { gap: true, .. }) => 0.0,
                Some(Zone { border: Some(_), .. }) => PRICE_KNOWN,
                _ => PRICE,
            };
            Evidence { count, price }
        })
        .collect();
    let rungs = segment(&evidence);
    let mut borders: Vec<Border> = Vec::new();
    let mut stretch_start = points.first().map_or(0, |p| p.unit.start);
    for (index, zone) in zones.iter().enumerate() {
        let (Some(&left), Some(&right)) = (rungs.get(index), rungs.get(index + 1)) else { break };
        if zone.gap {
            stretch_start = zone.range.end;
            continue;
        }
        if left == right {
            continue;
        }
        let at = zone.border.unwrap_or_else(|| refine::middle(zone.range, min_region));
        let left_size = at.saturating_sub(stretch_start);
        if let Some(previous) = borders.last_mut().filter(|b| b.at == stretch_start) {
            previous.smaller = previous.smaller.min(left_size);
        }
        borders.push(Border { at, zone: zone.range, left, right, smaller: left_size.max(min_region) });
        stretch_start = at;
    }
    borders
}

/// What lies between two neighbouring points.
struct Zone {
    /// Addresses that neither point stands for.
    range: AddrRange,
    /// A border between regions in it, one the evidence demanded before if there is one.
    border: Option<u64>,
    /// Something unmonitored lies in it.
    gap: bool,
}

impl Zone {
    fn between(left: &Point, right: &Point, target: &Target, known: &[u64]) -> Self {
        let range = AddrRange::new(left.unit.end.min(right.unit.start), right.unit.start);
        let mut zone = Self { range, border: None, gap: false };
        let first = target.regions.partition_point(|r| r.range.start < range.start);
        let mut previous_end = first.checked_sub(1).and_then(|i| target.regions.get(i)).map(|r| r.range.end);
        for region in target.regions.get(first..).unwrap_or_default() {
            if region.range.start > range.end {
                break;
            }
            zone.gap |= previous_end.is_some_and(|end| end != region.range.start);
            previous_end = Some(region.range.end);
            if zone.border.is_none() || known.binary_search(&region.range.start).is_ok() {
                zone.border = Some(region.range.start);
            }
        }
        zone
    }
}

/// Brings every region's counts up to date: each point weighs as many bytes of the region as are nearest to it.
fn estimate(points: &[Point], target: &mut Target, attrs: &Attrs) {
    let max = attrs.max_nr_accesses();
    let mut first = 0;
    for region in &mut target.regions {
        while points
            .get(first)
            .is_some_and(|p| p.unit.start < region.range.start && p.unit.end <= region.range.start)
        {
            first += 1;
        }
        let inside = points.get(first..).unwrap_or_default();
        let count = inside.partition_point(|p| p.unit.start < region.range.end);
        let inside = inside.get(..count).unwrap_or_default();
        let weights: Vec<f32> = (0..inside.len()).map(|i| weight(inside, i, region.range)).collect();
        let pairs = || inside.iter().zip(&weights);
        let all = pairs().fold(Count::default(), |sum, (p, w)| sum.plus(p.count.times(*w)));
        if !all.is_empty() {
            let common = all.rate();
            let trials: f32 = inside.iter().map(|p| p.count.weight()).sum();
            let mean = if alike(inside) {
                common
            } else {
                // Where pages differ, hot ones have fewer trials than idle ones, and the ratio of the sums is low: the
                // mean of what each shows, drawn towards the ratio as far as its own trials are few.
                let of = |p: &Point| p.count.plus(Count::new(SHRINK * common, SHRINK)).rate();
                let (sum, bytes) =
                    pairs().fold((0.0, 0.0), |(sum, bytes), (p, w)| (sum + w * of(p), bytes + w));
                sum / bytes
            };
            region.watched = trials.min(MEMORY);
            region.hits = mean * region.watched;
        } else {
            // Nothing new: the old estimate stands, with less weight the next time.
            region.hits *= 0.7;
            region.watched *= 0.7;
        }
        let share = rate(region);
        region.nr_accesses_bp = (share * max as f32 * 10_000.0) as u32;
        region.nr_accesses = (share * max as f32 + 0.5) as u32;
    }
}

/// Whether one rate explains what all of the pages showed about as well as a rate for each.
fn alike(points: &[Point]) -> bool {
    let mut together = [0.0f32; RUNGS];
    let mut apart = 0.0;
    for point in points {
        let own = point.count.at_most(MAX_TRIALS).likelihoods();
        apart += highest(&own).1;
        for (sum, value) in together.iter_mut().zip(&own) {
            *sum += value;
        }
    }
    apart - highest(&together).1 <= points.len() as f32 * UNLIKE
}

/// Bytes of `range` that are nearest to the point.
fn weight(points: &[Point], index: usize, range: AddrRange) -> f32 {
    let Some(point) = points.get(index) else { return 0.0 };
    let middle = |a: &Point, b: &Point| a.unit.end.midpoint(b.unit.start);
    let low = index.checked_sub(1).and_then(|i| points.get(i)).map_or(range.start, |p| middle(p, point));
    let high = points.get(index + 1).map_or(range.end, |n| middle(point, n));
    high.saturating_sub(low).max(1) as f32
}

/// Whether what two regions showed, now and in earlier aggregations, can hardly come from one rate.
pub(super) fn differ(left: &Region, right: &Region) -> bool {
    left.watched >= 10.0 && right.watched >= 10.0 && count(left).contradicts(count(right))
}

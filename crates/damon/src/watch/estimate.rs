//! The end of an aggregation: borders from the evidence, then an estimate for every region.

use super::refine::{self, Border};
use super::segment::{Evidence, segment};
use super::{Watched, probe::State};
use crate::{AddrRange, Attrs, Region, Target};
use alloc::vec::Vec;

/// Price of a change of rate (nats) where no border is known yet, and where one is.
const PRICE: f32 = 6.0;
const PRICE_KNOWN: f32 = 1.5;
/// Most trials one probe brings into segmentation: pages of one stretch are alike, but not that alike.
const MAX_TRIALS: f32 = 20.0;
/// Trials an estimate remembers. DAMON's own has aggregation/sampling (20) of them.
const MEMORY: f32 = 100.0;

/// Squared standard deviations (of the difference, under the pooled estimate) from which fresh evidence contradicts
/// what is remembered. Forgetting too early costs precision for a moment, too late shows what is not so any more.
const CONTRADICTION: f32 = 5.0;

/// Trials that segmentation's word is worth for a region just cut.
const PRIOR: f32 = 8.0;
/// Trials from which on a region may turn hotter at once. One access is not enough to call a large region hot; one
/// page found idle in hot memory is little, too, but cold memory is watched densely and soon set right.
const SUDDEN: f32 = 3.0;

/// One probe's evidence, and what it stands for.
struct Point {
    unit: AddrRange,
    hits: f32,
    watched: f32,
}

/// Ends the aggregation for one target: cuts regions at new borders, estimates every region, resets the probes.
pub(super) fn conclude(watched: &mut Watched, target: &mut Target, attrs: &Attrs, min_region: u64, now: u64) {
    let points = collect(watched, target, now);
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
    for probe in &mut watched.probes {
        probe.reset();
    }
}

fn collect(watched: &Watched, target: &Target, now: u64) -> Vec<Point> {
    let mut points = Vec::with_capacity(watched.probes.len());
    let mut regions = target.regions.iter().peekable();
    for probe in &watched.probes {
        if probe.state == State::Blind {
            continue;
        }
        while regions.next_if(|r| r.range.end <= probe.addr).is_some() {}
        let Some(region) = regions.peek().filter(|r| r.range.contains(probe.addr)) else { continue };
        if let Some((hits, trials)) = probe.evidence(rate(region), now) {
            points.push(Point { unit: probe.unit, hits, watched: trials });
        }
    }
    points
}

/// Access probability an interval that a region has had so far.
pub(super) fn rate(region: &Region) -> f32 {
    if region.watched > 0.0 { (region.hits / region.watched).clamp(0.0, 1.0) } else { 0.0 }
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
            let scale = (MAX_TRIALS / point.watched).min(1.0);
            let price = match index.checked_sub(1).and_then(|i| zones.get(i)) {
                Some(Zone { gap: true, .. }) => 0.0,
                Some(Zone { border: Some(_), .. }) => PRICE_KNOWN,
                _ => PRICE,
            };
            Evidence { hits: point.hits * scale, watched: point.watched * scale, price }
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
        // A ratio of sums, not a mean of ratios: a probe that was hit early and not cleared again has few trials, and
        // its own ratio would count for too much.
        let (mut hits, mut tried, mut trials) = (0.0f32, 0.0f32, 0.0f32);
        for (index, point) in inside.iter().enumerate() {
            let middle = |a: &Point, b: &Point| a.unit.end.midpoint(b.unit.start);
            let low = index
                .checked_sub(1)
                .and_then(|i| inside.get(i))
                .map_or(region.range.start, |p| middle(p, point));
            let high = inside.get(index + 1).map_or(region.range.end, |n| middle(point, n));
            let bytes = high.saturating_sub(low).max(1) as f32;
            hits += bytes * point.hits;
            tried += bytes * point.watched;
            trials += point.watched;
        }
        if tried > 0.0 {
            remember(region, (hits / tried).min(1.0), trials.min(MEMORY / 2.0));
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

/// Whether what two regions showed, now and in earlier aggregations, can hardly come from one rate.
pub(super) fn differ(left: &Region, right: &Region) -> bool {
    left.watched >= 10.0
        && right.watched >= 10.0
        && contradict((rate(left), left.watched), (rate(right), right.watched), CONTRADICTION)
}

/// Whether two shares, each with its number of trials, differ by more than the square root of `limit` standard
/// deviations of their difference under the pooled estimate. Half a hit is added so that a certainty can be
/// contradicted.
fn contradict((a, tried_a): (f32, f32), (b, tried_b): (f32, f32), limit: f32) -> bool {
    let pooled = (a * tried_a + b * tried_b + 0.5) / (tried_a + tried_b + 1.0);
    let variance = pooled * (1.0 - pooled) * (1.0 / tried_a.max(1.0) + 1.0 / tried_b.max(1.0));
    (a - b) * (a - b) > limit * variance
}

/// Blends `fresh` (from `trials` looks) with what the region remembers, unless the two contradict each other.
fn remember(region: &mut Region, fresh: f32, trials: f32) {
    let known = region.watched;
    let sudden = fresh > rate(region) && trials < SUDDEN;
    if known == 0.0 || !sudden && contradict((rate(region), known), (fresh, trials), CONTRADICTION) {
        region.hits = fresh * trials;
        region.watched = trials;
        return;
    }
    let keep = ((MEMORY - trials).max(0.0) / known).min(1.0);
    region.hits = region.hits * keep + fresh * trials;
    region.watched = region.watched * keep + trials;
}

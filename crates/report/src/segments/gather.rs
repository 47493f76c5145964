//! From a snapshot to segments.

use super::{Segment, absent, is_sparse, reduce};
use crate::rate::{BP, RateScale, interval_ns};
use isotherm_damon::{Snapshot, TargetId};
use std::cmp::Ordering;

/// The segments of a snapshot, which may come in pieces: sorted and disjoint, neighbours of equal count and age joined, but for what is
/// there and what is not. Each stands for so many seconds. More than `most` are reduced to as many, as [`reduce`] does with gaps of at
/// most `widest`.
pub(crate) struct Gather {
    out: Vec<Segment>,
    most: usize,
    widest: u64,
    lost: f64,
    in_order: bool,
}

impl Gather {
    /// Nothing yet, in memory that is used again.
    pub fn new((most, widest): (usize, u64), mut out: Vec<Segment>) -> Self {
        out.clear();
        Self { out, most, widest, lost: 0.0, in_order: true }
    }

    /// Takes the next piece.
    pub fn add(&mut self, snapshot: &Snapshot, seconds: f64, mut wanted: impl FnMut(TargetId) -> bool) {
        let Self { out, most, widest, lost, in_order } = self;
        let scale = RateScale::of(snapshot);
        let (start, end) = interval_ns(snapshot);
        let aggr_s = match snapshot.sample_ns.saturating_mul(u64::from(snapshot.max_nr_accesses)) {
            0 => (end - start) as f64 / crate::units::SECOND_NS,
            ns => ns as f64 / crate::units::SECOND_NS,
        };
        for target in &snapshot.targets {
            if !wanted(target.id) {
                continue;
            }
            let mut previous = None;
            for region in &target.regions {
                if region.range.is_empty() {
                    continue;
                }
                let monitored = region.range.size() as f64 * seconds;
                // All of it exactly, or rounding would leave a trace of what is unknown.
                let seen = monitored * (f64::from(region.seen_bp) / BP).min(1.0);
                let absent = absent(region);
                let segment = Segment {
                    target: target.id,
                    range: region.range,
                    size: region.range.size() as f64,
                    seen,
                    unknown: monitored - seen,
                    absent: absent * (monitored - seen),
                    empty: absent * seen,
                    heat: seen * scale.hz(region),
                    aged: seen * f64::from(region.age) * aggr_s,
                };
                let there = (region.resident == Some(0), is_sparse(region));
                let said = (region.accesses_bp(), region.age, region.seen_bp, there);
                let key = (region.range.start, said);
                match out.last_mut() {
                    Some(last) if previous == Some(key) => last.absorb(&segment),
                    last => {
                        *in_order &= last.is_none_or(|last| last.order(&segment) != Ordering::Greater);
                        out.push(segment);
                    }
                }
                previous = Some((region.range.end, said));
                // All of a million of them at once would take a hundred megabytes.
                if *in_order && out.len() >= most.saturating_mul(2) {
                    *lost += reduce(out, *most, *widest);
                    // The last one may be another's now.
                    previous = None;
                }
            }
        }
    }

    /// The segments, and the heat lost with what they were reduced by.
    pub fn finish(self) -> (Vec<Segment>, f64) {
        let Self { mut out, most, widest, mut lost, .. } = self;
        // Recordings of other programs may break the order that a snapshot promises.
        if !out.is_sorted_by(|a, b| a.order(b) != Ordering::Greater) {
            out.sort_by(Segment::order);
        }
        let mut floor: Option<(TargetId, u64)> = None;
        for segment in out.iter_mut() {
            if let Some((target, end)) = floor
                && target == segment.target
                && segment.range.start < end
            {
                segment.range.start = end.min(segment.range.end);
            }
            floor = Some((segment.target, segment.range.end));
        }
        out.retain(|s| !s.range.is_empty());
        if out.len() > most {
            // Laid over others as they are they would take several times as much.
            lost += reduce(&mut out, most, widest);
            out.shrink_to(most);
        }
        (out, lost)
    }
}

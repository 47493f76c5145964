//! Which bytes were accessed at least once in a second: recorded against true.
//!
//! A region that is accessed in a share p of its sampling intervals is expected to be accessed in a second of n of them with
//! the probability 1 - (1-p)^n. The truth has for each byte whether it was, or for random accesses with what probability.
//! Where both are the same, the record is right; what they have in common is the smaller of both.
//!
//! Memory that several processes map counts once, with the accesses of all of them.

use super::overlay::{Piece, overlay};
use crate::Quartiles;
use isotherm_damon::{RegionSnapshot, Snapshot};
use isotherm_report::rate::share_accessed;
use isotherm_workloads::truth::{Coverage, PhaseLine, Segment};
use serde::Serialize;
use std::collections::BTreeMap;

/// How long bytes have time to be accessed.
pub(super) const SECOND_NS: u64 = 1_000_000_000;

impl Piece for Segment {
    fn start(&self) -> u64 {
        self.start
    }

    fn end(&self) -> u64 {
        self.end
    }
}

/// How well the bytes accessed within a second were known, over all seconds that end with a snapshot and lie in one phase.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Second {
    /// Seconds judged.
    pub windows: u64,
    /// Share of what was recorded as accessed that was; `None` when nothing was recorded.
    pub precision: Option<f64>,
    /// Share of what was accessed that was recorded as accessed; `None` when nothing was.
    pub recall: Option<f64>,
    /// Harmonic mean of the two: twice the bytes in common by those recorded and those true.
    pub f1: Option<f64>,
    /// True working set of a second, bytes, of all that the record was asked for, known to it or not.
    pub truth: Quartiles,
    /// Recorded working set of a second, bytes of the workload's areas.
    pub recorded: Quartiles,
    /// Median of recorded / true over the bytes that the record knows, of the seconds in which any of them was accessed.
    pub ratio: Option<f64>,
    /// Share of the bytes of which the record says that it does not know; of the other figures they are in `truth` alone.
    pub unknown_share: f64,
}

/// Sums over seconds.
#[derive(Clone, Debug, Default)]
pub(super) struct Seconds {
    common: f64,
    recorded: f64,
    truth: f64,
    unknown: f64,
    all: f64,
    wss: Vec<WorkingSet>,
}

/// Bytes accessed in one second.
#[derive(Clone, Copy, Debug)]
struct WorkingSet {
    truth: f64,
    known_truth: f64,
    recorded: f64,
}

impl Seconds {
    /// Judges the second that ends with `snapshot`, unless another phase reaches into it.
    pub(super) fn judge(
        &mut self,
        phase: &PhaseLine,
        regions: &BTreeMap<u32, Vec<RegionSnapshot>>,
        snapshot: &Snapshot,
    ) {
        let start = snapshot.end_ns.checked_sub(SECOND_NS).filter(|&start| start >= phase.start_ns);
        let Some(start) = start.filter(|_| snapshot.sample_ns > 0) else { return };
        let truth = Coverage { segments: phase.segments(start..snapshot.end_ns) };
        // Both cut alike, by the truth's pieces and the record's regions.
        let (mut real, mut recorded) = (Coverage::default(), Coverage::default());
        for (&pid, regions) in regions {
            let first = recorded.segments.len();
            let mut whose: Vec<Option<&RegionSnapshot>> = Vec::new();
            overlay(truth.of(pid), regions, |piece, region, part| {
                let piece = Segment { start: part.start, end: part.end, ..*piece };
                self.all += piece.size() as f64;
                if region.is_some_and(RegionSnapshot::is_unknown) {
                    self.unknown += piece.size() as f64;
                    return;
                }
                let accessed = region.map_or(0.0, |r| accessed_within(r, SECOND_NS, snapshot));
                real.segments.push(piece);
                recorded.segments.push(Segment { accessed, ..piece });
                whose.push(region);
            });
            no_more_than_resident(recorded.segments.get_mut(first..).unwrap_or_default(), &whose);
        }
        let (mut common, mut both) = (0.0, (0.0, 0.0));
        let mut compare = |real: &Segment, recorded: &Segment| {
            let bytes = real.size() as f64;
            common += bytes * real.accessed.min(recorded.accessed);
            both.0 += bytes * real.accessed;
            both.1 += bytes * recorded.accessed;
        };
        let private = real.segments.iter().zip(&recorded.segments).filter(|(s, _)| !s.shared);
        private.for_each(|(real, recorded)| compare(real, recorded));
        let (real, recorded) = (real.shared(), recorded.shared());
        real.iter().zip(&recorded).for_each(|(real, recorded)| compare(real, recorded));
        self.common += common;
        self.truth += both.0;
        self.recorded += both.1;
        let asked = truth.segments.iter().filter(|s| regions.contains_key(&s.pid)).copied();
        let asked = Coverage { segments: asked.collect() };
        self.wss.push(WorkingSet { truth: asked.distinct_bytes(), known_truth: both.0, recorded: both.1 });
    }

    pub(super) fn verdict(&self) -> Option<Second> {
        let ratio = |part: f64, all: f64| (all > 0.0).then(|| part / all);
        let quartiles = |pick: fn(&WorkingSet) -> f64| {
            let bytes: Vec<u64> = self.wss.iter().map(|w| pick(w).round() as u64).collect();
            Quartiles::of(&bytes)
        };
        let mut ratios: Vec<f64> = self.wss.iter().filter_map(|w| ratio(w.recorded, w.known_truth)).collect();
        ratios.sort_by(f64::total_cmp);
        Some(Second {
            windows: self.wss.len() as u64,
            precision: ratio(self.common, self.recorded),
            recall: ratio(self.common, self.truth),
            f1: ratio(2.0 * self.common, self.recorded + self.truth),
            truth: quartiles(|w| w.truth)?,
            recorded: quartiles(|w| w.recorded)?,
            ratio: ratios.get(ratios.len() / 2).copied(),
            unknown_share: ratio(self.unknown, self.all).unwrap_or(0.0),
        })
    }
}

/// Scales what was recorded as accessed down to what of its region is resident, as reports do: a page that is not there is
/// not accessed. Of each piece the region that it is of, or none.
fn no_more_than_resident(pieces: &mut [Segment], whose: &[Option<&RegionSnapshot>]) {
    let mut rest = pieces;
    for regions in whose.chunk_by(|a, b| a.map(|r| r.range) == b.map(|r| r.range)) {
        let (pieces, after) = std::mem::take(&mut rest).split_at_mut(regions.len());
        rest = after;
        let Some(resident) = regions.first().copied().flatten().and_then(|region| region.resident) else {
            continue;
        };
        let accessed: f64 = pieces.iter().map(|p| p.size() as f64 * p.accessed).sum();
        if accessed > resident as f64 {
            pieces.iter_mut().for_each(|p| p.accessed *= resident as f64 / accessed);
        }
    }
}

/// The probability that a page of `region` was accessed in `length_ns`, by its recorded rate.
pub(super) fn accessed_within(region: &RegionSnapshot, length_ns: u64, snapshot: &Snapshot) -> f64 {
    let most = f64::from(snapshot.max_nr_accesses.max(1)) * 10_000.0;
    share_accessed(region, most, length_ns as f64 / snapshot.sample_ns.max(1) as f64)
}

#[cfg(test)]
mod tests;

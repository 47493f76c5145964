//! How true what was told is.

use crate::{Kind, Pattern};
use isotherm_damon::{AddrRange, RegionSnapshot, Snapshot, TargetSnapshot};

/// Hot bytes told and true: hot is what is accessed at 15 Hz and more; what is accessed at 6.7 Hz and less is not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HotBytes {
    /// Hot, and told to be.
    pub hit: u64,
    /// Hot, and not told to be.
    pub missed: u64,
    /// Told to be hot, and not.
    pub false_alarm: u64,
}

impl HotBytes {
    /// Adds what was told of a target that accesses memory by this pattern.
    pub fn add(&mut self, target: &TargetSnapshot, pattern: &Pattern) {
        for (range, rate) in &pattern.areas {
            let hz = rate * 200.0;
            let regions = target.regions.iter().filter(|r| r.nr_accesses > 0);
            let called: u64 = regions.map(|r| r.range.intersection(*range).size()).sum();
            if hz >= 15.0 {
                self.hit += called;
                self.missed += range.size() - called;
            } else if hz <= 6.7 {
                self.false_alarm += called;
            }
        }
    }

    /// The harmonic mean of precision and recall.
    #[must_use]
    pub fn f1(&self) -> f64 {
        let share = |of: u64| self.hit as f64 / of.max(1) as f64;
        let (precision, recall) = (share(self.hit + self.false_alarm), share(self.hit + self.missed));
        2.0 * precision * recall / (precision + recall).max(1e-9)
    }
}

/// Bytes accessed within a second, as `lab accuracy` judges them: recorded against true, by what both have in common.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Second {
    /// In both.
    pub common: f64,
    /// Recorded.
    pub told: f64,
    /// True.
    pub truth: f64,
}

impl Second {
    /// Adds what a snapshot tells of a target that accesses memory by this pattern.
    pub fn add(&mut self, snapshot: &Snapshot, target: &TargetSnapshot, pattern: &Pattern) {
        let now = snapshot.end_ns / 5_000_000;
        let front = pattern.front.map(|(range, _)| (range, 0.0));
        for (area, rate) in pattern.areas.iter().copied().chain(front) {
            for (part, share) in accessed(pattern, area, rate, now) {
                for region in target.regions.iter().filter(|r| !r.is_unknown()) {
                    let bytes = region.range.intersection(part).size() as f64;
                    let recorded = share_accessed(region, snapshot.max_nr_accesses, 200);
                    self.common += bytes * share.min(recorded);
                    self.told += bytes * recorded;
                    self.truth += bytes * share;
                }
            }
        }
    }

    /// The harmonic mean of precision and recall.
    #[must_use]
    pub fn f1(&self) -> f64 {
        2.0 * self.common / (self.told + self.truth)
    }
}

/// The share of a region that is accessed within so many sampling intervals, as it tells.
#[must_use]
pub fn share_accessed(region: &RegionSnapshot, max_nr_accesses: u32, intervals: i32) -> f64 {
    let accessed = 1.0 - f64::from(region.idle_bp) / 10_000.0;
    let p = region.probability(max_nr_accesses) / accessed;
    accessed * (1.0 - (1.0 - p.min(1.0)).powi(intervals))
}

/// The truth of an area: the probability that one of its pages is accessed within the second before `now`.
fn accessed(pattern: &Pattern, area: AddrRange, rate: f64, now: u64) -> Vec<(AddrRange, f64)> {
    if let Some((front, _)) = pattern.front.filter(|(front, _)| *front == area) {
        let (then, till) = (pattern.reached(now.saturating_sub(200)).end, pattern.reached(now).end);
        return vec![(AddrRange::new(front.start, then), 0.0), (AddrRange::new(then, till), 1.0)];
    }
    let hits = rate * 200.0;
    vec![(area, if pattern.kind == Kind::Random { 1.0 - (-hits).exp() } else { hits.min(1.0) })]
}

/// Mean rate that a snapshot tells of an area of a target, Hz; what is unknown counts as not accessed.
#[must_use]
pub fn told(snapshot: &Snapshot, target: &TargetSnapshot, area: AddrRange) -> f64 {
    let regions = target.regions.iter().filter(|r| r.seen_bp > 0);
    let heat = |r: &RegionSnapshot| {
        r.range.intersection(area).size() as f64 * r.rate_hz(snapshot.sample_ns, snapshot.max_nr_accesses)
    };
    regions.map(heat).sum::<f64>() / area.size() as f64
}

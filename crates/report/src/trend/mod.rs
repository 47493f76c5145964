//! One figure a snapshot (the working-set size, the number of regions): its distribution, and how it moves.

mod chart;
mod distribution;
mod series;
mod text;

pub use chart::{ChartOptions, write_png, write_svg};
pub use distribution::{PERCENTILES, Percentile};
pub use series::Bucket;
pub use text::{TextOptions, write_text};

use crate::Accumulate;
use crate::provenance::Provenance;
use crate::rate::{BP, RateScale, interval_ns};
use crate::units::{self, Rate, format_rate, format_share, format_size, format_size_tick, significant};
use distribution::Distribution;
use isotherm_damon::{Snapshot, TargetId};
use isotherm_record::Item;
use serde::Serialize;
use series::Series;

/// From when on memory belongs to the working set.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Threshold {
    /// At least so many accesses in an aggregation (`nr_accesses`).
    Accesses(u32),
    /// At least this access rate.
    Rate(Rate),
}

impl Default for Threshold {
    /// One access in an aggregation.
    fn default() -> Self {
        Self::Accesses(1)
    }
}

impl std::fmt::Display for Threshold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Accesses(1) => f.write_str("at least 1 access an aggregation"),
            Self::Accesses(n) => write!(f, "at least {n} accesses an aggregation"),
            Self::Rate(Rate::Hz(hz)) => write!(f, "at least {}", format_rate(*hz)),
            Self::Rate(Rate::Share(share)) => {
                write!(f, "at least {} of the highest rate", format_share(*share))
            }
        }
    }
}

/// What is counted in a snapshot.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Measure {
    /// Bytes of the regions that reach a threshold, all targets together.
    WorkingSet(Threshold),
    /// Number of regions, all targets together.
    Regions,
}

impl Measure {
    /// A figure of this measure with its unit.
    pub fn format(self, value: f64) -> String {
        match self {
            Self::WorkingSet(_) => format_size(value.round().max(0.0) as u64),
            Self::Regions => significant(value, 4),
        }
    }

    /// The same for an axis, where values are round.
    fn format_tick(self, value: f64) -> String {
        match self {
            Self::WorkingSet(_) => format_size_tick(value.round().max(0.0) as u64),
            Self::Regions => significant(value, 4),
        }
    }

    /// What it is, a clause.
    pub fn describe(self) -> String {
        match self {
            Self::WorkingSet(threshold) => format!("working-set size: bytes of regions with {threshold}"),
            Self::Regions => "number of regions".to_owned(),
        }
    }
}

/// What to analyse.
#[derive(Clone, Debug, PartialEq)]
pub struct TrendOptions {
    /// What is counted.
    pub measure: Measure,
    /// Targets counted; empty: all.
    pub targets: Vec<TargetId>,
    /// Most buckets of time, 2..=65536.
    pub buckets: usize,
}

impl TrendOptions {
    /// All targets, 256 buckets.
    pub fn new(measure: Measure) -> Self {
        Self { measure, targets: Vec::new(), buckets: 256 }
    }
}

/// Collects one figure a snapshot.
#[derive(Clone, Debug)]
pub struct TrendAnalysis {
    options: TrendOptions,
    provenance: Provenance,
    distribution: Distribution,
    series: Series,
    /// Figure of the snapshots that ended last: foreign recordings may hold one snapshot a target for one moment.
    pending: Option<(u64, u64, u64)>,
}

/// The distribution of a figure, and how it moved.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TrendReport {
    /// Where it comes from.
    pub provenance: Provenance,
    /// What was counted, in words.
    pub what: String,
    /// `bytes` or `regions`.
    pub unit: &'static str,
    /// What was counted.
    #[serde(skip)]
    pub measure: Measure,
    /// Mean over time; `null` without snapshots.
    pub mean: Option<f64>,
    /// Percentiles by time; empty without snapshots.
    pub percentiles: Vec<Percentile>,
    /// How far percentiles 1 to 99 may be off, as a share of themselves; 0: exact.
    pub relative_error: f64,
    /// The time called 0, ns.
    pub origin_ns: u64,
    /// The figure over time.
    pub over_time: Vec<Bucket>,
}

impl TrendReport {
    /// A percentile; `None` when it is none of [`PERCENTILES`] or there are no snapshots.
    pub fn percentile(&self, percent: u8) -> Option<u64> {
        self.percentiles.iter().find(|p| p.percent == percent).map(|p| p.value)
    }

    fn seconds(&self, ns: u64) -> f64 {
        (ns as f64 - self.origin_ns as f64) / units::SECOND_NS
    }
}

impl TrendAnalysis {
    /// An analysis of nothing yet.
    pub fn new(options: TrendOptions) -> Self {
        let series = Series::new(options.buckets);
        Self {
            options,
            provenance: Provenance::default(),
            distribution: Distribution::default(),
            series,
            pending: None,
        }
    }

    /// For reports on a recording that was cut: in what way, a clause.
    pub fn set_truncated(&mut self, how: String) {
        self.provenance.truncated = Some(how);
    }

    fn flush(&mut self) {
        if let Some((start, end, value)) = self.pending.take() {
            self.distribution.add(value, end - start);
            self.series.add(value, start, end);
        }
    }

    /// The report.
    pub fn finish(mut self) -> TrendReport {
        self.flush();
        TrendReport {
            what: self.options.measure.describe(),
            unit: match self.options.measure {
                Measure::WorkingSet(_) => "bytes",
                Measure::Regions => "regions",
            },
            measure: self.options.measure,
            mean: self.distribution.mean(),
            relative_error: self.distribution.relative_error(),
            percentiles: self.distribution.percentiles(),
            origin_ns: self.provenance.origin_ns(),
            over_time: self.series.buckets(),
            provenance: self.provenance,
        }
    }
}

impl Accumulate for TrendAnalysis {
    fn snapshot(&mut self, snapshot: &Snapshot) {
        self.provenance.snapshot(snapshot);
        let ids = &self.options.targets;
        let targets = snapshot.targets.iter().filter(|t| ids.is_empty() || ids.contains(&t.id));
        let value: u64 = match self.options.measure {
            Measure::Regions => targets.map(|t| t.regions.len() as u64).sum(),
            Measure::WorkingSet(Threshold::Accesses(least)) => {
                let hot = targets.flat_map(|t| &t.regions).filter(|r| r.nr_accesses >= least);
                hot.fold(0, |sum: u64, r| sum.saturating_add(r.range.size()))
            }
            Measure::WorkingSet(Threshold::Rate(rate)) => {
                let least_bp = match rate {
                    Rate::Hz(hz) => hz / RateScale::of(snapshot).hz_per_bp(),
                    Rate::Share(share) => share * f64::from(snapshot.max_nr_accesses) * BP,
                };
                // A rate asked for in decimals must not miss the count it is meant to name.
                let least_bp = least_bp * (1.0 - 1e-9);
                let hot =
                    targets.flat_map(|t| &t.regions).filter(|r| f64::from(r.nr_accesses_bp) >= least_bp);
                hot.fold(0, |sum: u64, r| sum.saturating_add(r.range.size()))
            }
        };
        let (start, end) = interval_ns(snapshot);
        match &mut self.pending {
            Some((_, last, total)) if *last == end => *total = total.saturating_add(value),
            _ => {
                self.flush();
                self.pending = Some((start, end, value));
            }
        }
    }

    fn note(&mut self, item: &Item) {
        self.provenance.note(item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic::{MIB, region, snapshot, stairs};

    fn report(measure: Measure, list: &[Snapshot]) -> TrendReport {
        let mut analysis = TrendAnalysis::new(TrendOptions::new(measure));
        list.iter().for_each(|s| analysis.snapshot(s));
        analysis.finish()
    }

    #[test]
    fn the_working_set_of_stairs_is_one_step() {
        let wss = report(Measure::WorkingSet(Threshold::default()), &stairs(0, 5));
        assert!(wss.percentiles.iter().all(|p| p.value == 10 * MIB));
        assert_eq!(wss.mean, Some((10 * MIB) as f64));
        assert_eq!(wss.over_time.len(), 50);
        assert_eq!(report(Measure::Regions, &stairs(0, 5)).percentile(50), Some(10));
    }

    #[test]
    fn thresholds_include_what_they_name() {
        let list = [snapshot(0, 1, vec![region(0, 1, 1), region(1, 11, 7), region(11, 111, 20)])];
        for (threshold, bytes) in [
            (Threshold::Accesses(0), 111),
            (Threshold::Accesses(1), 111),
            (Threshold::Accesses(7), 110),
            (Threshold::Accesses(8), 100),
            (Threshold::Rate(Rate::Hz(70.0)), 110),
            (Threshold::Rate(Rate::Hz(70.1)), 100),
            (Threshold::Rate(Rate::Share(0.35)), 110),
            (Threshold::Rate(Rate::Share(1.0)), 100),
        ] {
            assert_eq!(
                report(Measure::WorkingSet(threshold), &list).percentile(50),
                Some(bytes),
                "{threshold}"
            );
        }
    }

    #[test]
    fn targets_of_one_moment_add_up_also_when_recorded_one_a_snapshot() {
        let list: Vec<Snapshot> =
            (0..10).flat_map(|i| [1, 2].map(|t| snapshot(i, t, vec![region(0, 4096 * t, 20)]))).collect();
        let measure = Measure::WorkingSet(Threshold::default());
        assert_eq!(report(measure, &list).percentile(1), Some(3 * 4096));
        let mut one =
            TrendAnalysis::new(TrendOptions { targets: vec![TargetId(2)], ..TrendOptions::new(measure) });
        list.iter().for_each(|s| one.snapshot(s));
        assert_eq!(one.finish().percentile(99), Some(2 * 4096));
    }

    #[test]
    fn nothing_recorded_is_no_percentile() {
        let empty = report(Measure::Regions, &[]);
        assert_eq!((empty.mean, empty.percentiles.len(), empty.over_time.len()), (None, 0, 0));
        assert!(serde_json::to_string(&empty).unwrap().contains("\"mean\":null"));
    }
}

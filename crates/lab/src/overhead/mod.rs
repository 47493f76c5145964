//! What monitoring cost: paired runs of a target, with and without the monitor.
//!
//! [`pairs`](Pair) compares the same work with and without the monitor, [`Overhead`] makes of the pairs a slowdown with
//! its spread. Both take what was measured and give back figures. `live` runs the programs that are measured.

mod live;
mod pairs;
mod prices;
mod table;

pub use live::Schedule;
pub use pairs::{Centre, Pair, Span, Time, grouped, pairs_of_likes, pairs_of_work};
pub use prices::{Cleared, Prices};
pub use table::table;

use crate::Estimate;
use serde::Serialize;

/// What the monitor itself did, over all monitored time of the pairs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct MonitorCost {
    /// Time it was attached, ns.
    pub wall_ns: u64,
    /// CPU time it used in that time, ns.
    pub cpu_ns: u64,
    /// Sampling interval, ns.
    pub sample_ns: u64,
    /// Access checks done.
    pub checks: u64,
    /// Most checks in one sampling interval.
    pub max_checks_per_sample: u64,
    /// Upper bound of regions, and so of checks in a sampling interval.
    pub max_nr_regions: u64,
    /// Accessed bits cleared.
    pub clears: u64,
    /// What was cleared, with and without flushes.
    pub cleared: Cleared,
    /// Checks that the overhead budget cut.
    pub checks_cut: u64,
    /// Clears that the overhead budget cut.
    pub clears_cut: u64,
    /// Sampling intervals missed because the monitor came late.
    pub samples_missed: u64,
    /// Pages of the target that were resident, mean: what a scan of everything would check each time.
    pub resident_pages: u64,
}

/// Why there is no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OverheadError {
    /// No pair, or one with a time of zero.
    #[error("no pair of runs was timed; run longer, or with smaller pieces of work")]
    NoPairs,
}

/// The cost of monitoring one target.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Overhead {
    /// What was monitored.
    pub target: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// Each pair of times.
    pub pairs: Vec<Pair>,
    /// Share by which the target was slower.
    pub slowdown: Estimate,
    /// Share of one CPU that the monitor used.
    pub cpu_share: f64,
    /// What it did.
    pub cost: MonitorCost,
    /// Checks that a scan of all resident pages in each sampling interval would have done.
    pub full_scan_checks: u64,
    /// The same against the checks that were done; `None` when there were none.
    pub full_scan_ratio: Option<f64>,
    /// Whether no sampling interval had more checks than `max_nr_regions`.
    pub checks_bounded: bool,
}

impl Overhead {
    /// The result of `pairs` on a target of `bytes` bytes.
    ///
    /// # Errors
    /// When there is no pair to compare.
    pub fn new(target: &str, bytes: u64, pairs: Vec<Pair>, cost: MonitorCost) -> Result<Self, OverheadError> {
        let slowdowns: Vec<_> = pairs.iter().map(Pair::slowdown).collect();
        let slowdown = Estimate::of(&slowdowns).ok_or(OverheadError::NoPairs)?;
        let samples = cost.wall_ns / cost.sample_ns.max(1);
        let full_scan_checks = cost.resident_pages.saturating_mul(samples);
        Ok(Self {
            target: target.to_owned(),
            bytes,
            pairs,
            slowdown,
            cpu_share: if cost.wall_ns > 0 { cost.cpu_ns as f64 / cost.wall_ns as f64 } else { 0.0 },
            cost,
            full_scan_checks,
            full_scan_ratio: (cost.checks > 0).then(|| full_scan_checks as f64 / cost.checks as f64),
            checks_bounded: cost.max_checks_per_sample <= cost.max_nr_regions,
        })
    }
}

/// The workload to monitor: one thread that does nothing but touch memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MemoryBound {
    /// Bytes of its mapping.
    pub bytes: u64,
    /// `4k` or `thp`.
    pub page: String,
    /// `random` or `sequential`.
    pub kind: String,
}

/// The slowdown by one way of looking at the same slices.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Slowdown {
    /// Whose time.
    pub time: Time,
    /// What stands for a slice: the mean of all its work, or the median of spans an aggregation interval long.
    pub centre: Centre,
    /// Share by which the target was slower, over the pairs.
    pub slowdown: Estimate,
    /// The same between neighbouring slices of one kind (both without the monitor, or both with it), where the truth
    /// is 0: what this machine can tell apart at this time. `None` for fewer than two pairs.
    pub noise: Option<Estimate>,
    /// The pairs.
    pub pairs: Vec<Pair>,
}

/// What starting and ending the monitor cost, apart from its running.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Starts {
    /// How often it was started.
    pub count: u64,
    /// CPU time of all its processes from fork to exit, ns.
    pub whole_cpu_ns: u64,
    /// How long they lived, ns.
    pub whole_wall_ns: u64,
    /// CPU time of them outside their sessions (start and end), ns.
    pub once_cpu_ns: u64,
}

/// The result for one workload.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OverheadRun {
    /// What was monitored.
    pub workload: MemoryBound,
    /// By which backend; empty for null runs.
    pub backend: String,
    /// The ceiling the monitor was given, a share of one CPU; 0: none.
    pub overhead_limit: f64,
    /// Whether the monitor was left out.
    pub null: bool,
    /// Length of a slice, ns.
    pub slice_ns: u64,
    /// Time before each slice, ns.
    pub settle_ns: u64,
    /// By wall time, mean over all work; checks and the monitor's running cost.
    #[serde(flatten)]
    pub overhead: Overhead,
    /// By wall and CPU time, by mean and median.
    pub slowdowns: Vec<Slowdown>,
    /// What starting it cost.
    pub starts: Starts,
    /// Pages cleared a second.
    pub clears_per_second: f64,
    /// What clears cost here.
    pub prices: Prices,
    /// The slowdown that follows from them and from what was cleared, if every page cleared was accessed again.
    pub derived: f64,
    /// Pieces of work that lie inside slices.
    pub pieces: usize,
    /// Mean time of one without the monitor, ns.
    pub piece_ns: f64,
    /// The machine's load (1 minute) at the start and at the end; the workload itself counts 1.
    pub load: [f64; 2],
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn figures_are_what_they_are_called() {
        let pairs = vec![
            Pair { without_ns: 100.0, with_ns: 101.0 },
            Pair { without_ns: 200.0, with_ns: 206.0 },
            Pair { without_ns: 100.0, with_ns: 102.0 },
        ];
        let cost = MonitorCost {
            wall_ns: 10_000_000_000,
            cpu_ns: 80_000_000,
            sample_ns: 5_000_000,
            checks: 2000 * 50,
            max_checks_per_sample: 60,
            max_nr_regions: 1000,
            resident_pages: 25_600,
            clears_cut: 7,
            ..MonitorCost::default()
        };
        let result = Overhead::new("membound", 100 << 20, pairs, cost).unwrap();
        assert!((result.slowdown.mean - 0.02).abs() < 1e-12);
        assert!((result.slowdown.stdev.unwrap() - 0.01).abs() < 1e-12);
        assert!((result.cpu_share - 0.008).abs() < 1e-12);
        assert_eq!(result.full_scan_checks, 25_600 * 2000);
        assert_eq!(result.full_scan_ratio, Some(512.0));
        assert!(result.checks_bounded);
        let json = serde_json::to_value(&result).unwrap();
        assert_eq!(json["cost"]["checks"], 100_000);
        assert_eq!(json["pairs"][1]["with_ns"], 206.0);
    }

    #[test]
    fn more_checks_than_regions_are_told() {
        let pairs = vec![Pair { without_ns: 1.0, with_ns: 1.0 }];
        let cost =
            MonitorCost { max_checks_per_sample: 1001, max_nr_regions: 1000, ..MonitorCost::default() };
        let result = Overhead::new("t", 1, pairs, cost).unwrap();
        assert!(!result.checks_bounded);
        assert_eq!(result.full_scan_ratio, None);
    }

    #[test]
    fn without_pairs_there_is_no_result() {
        assert_eq!(Overhead::new("t", 1, vec![], MonitorCost::default()), Err(OverheadError::NoPairs));
        let zero = vec![Pair { without_ns: 0.0, with_ns: 1.0 }];
        assert_eq!(Overhead::new("t", 1, zero, MonitorCost::default()), Err(OverheadError::NoPairs));
    }

    proptest! {
        /// However the machine's speed differs from pair to pair, a monitor that costs the same share shows just it.
        #[test]
        fn drift_between_pairs_does_not_count(base in proptest::collection::vec(1e3f64..1e12, 2..20), share in -0.5f64..2.0) {
            let pairs = base.iter().map(|&b| Pair { without_ns: b, with_ns: b * (1.0 + share) }).collect();
            let result = Overhead::new("t", 1, pairs, MonitorCost::default()).unwrap();
            prop_assert!((result.slowdown.mean - share).abs() < 1e-9);
            prop_assert!(result.slowdown.stdev.unwrap() < 1e-9);
        }
    }
}

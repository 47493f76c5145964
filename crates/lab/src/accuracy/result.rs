//! The verdict: a serialisable value.

use super::{Forked, Options, Score, Second};
use crate::Quartiles;
use isotherm_workloads::truth::{Arrivals, Page, Stated};
use serde::Serialize;

/// How true a record of one run of a workload is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Accuracy {
    /// The workload's pattern.
    pub pattern: String,
    /// The pages its areas asked for.
    pub page: Page,
    /// Whether they got them.
    pub backed_as_asked: bool,
    /// How many processes it had.
    pub processes: usize,
    /// How it was judged.
    pub options: Options,
    /// Which windows were judged.
    pub windows: Windows,
    /// Hot bytes over all judged windows.
    pub score: Score,
    /// Bytes accessed within a second; `None` when no second was judged.
    pub second: Option<Second>,
    /// Children that were forked for a phase, and what the hot memory of the first process was called around that.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub forked: Vec<Forked>,
    /// Processes with hot memory.
    pub found: Found,
    /// How fast the record followed changes of phase.
    pub convergence: Convergence,
    /// Each phase alone.
    pub phases: Vec<PhaseScore>,
    /// Working-set size; `None` when no window was judged.
    pub wss: Option<Wss>,
    /// Mean of the absolute relative errors of rates from 10 to 50 Hz; `None` where there are none.
    pub rate_error_10_to_50_hz: Option<f64>,
    /// Recorded against real rates, the highest stated rate first.
    pub rates: Vec<RateScore>,
}

/// Which windows were judged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Windows {
    /// In one phase: judged.
    pub judged: u64,
    /// A phase began or ended in it: left out.
    pub across_change: u64,
    /// In the time after a change of phase that does not count.
    pub settling: u64,
    /// In no phase (setup, the end), or without length: left out.
    pub outside: u64,
    /// Time of the judged windows together, ns.
    pub judged_ns: u64,
    /// Time of all phases together, ns. What is not judged of it was not recorded or lies in windows left out.
    pub phase_ns: u64,
}

/// Processes with hot memory, and when it was found: when the greater part of it was recorded hot, from the start of the
/// first phase in which it was looked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Found {
    /// Processes with hot memory.
    pub hot: usize,
    /// Those of which it was found.
    pub found: usize,
    /// Median of those found, ms.
    pub median_ms: Option<f64>,
    /// Slowest of those found, ms.
    pub max_ms: Option<f64>,
}

impl Found {
    pub(super) fn of(after_ns: impl Iterator<Item = Option<u64>> + Clone) -> Self {
        let mut times: Vec<f64> = after_ns.clone().flatten().map(|ns| ns as f64 / 1e6).collect();
        times.sort_by(f64::total_cmp);
        Self {
            hot: after_ns.count(),
            found: times.len(),
            median_ms: times.get(times.len().saturating_sub(1) / 2).copied(),
            max_ms: times.last().copied(),
        }
    }
}

/// How fast a record followed changes of phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Convergence {
    /// Phases with judged windows.
    pub phases: usize,
    /// Phases in which some window reached the F1 asked for.
    pub converged: usize,
    /// Median over those phases, ms from the change to the end of that window.
    pub median_ms: Option<f64>,
    /// Slowest of those phases, ms.
    pub max_ms: Option<f64>,
}

impl Convergence {
    pub(super) fn of(phases: &[PhaseScore]) -> Self {
        let judged: Vec<_> = phases.iter().filter(|p| p.windows > 0).collect();
        let mut times: Vec<f64> = judged.iter().filter_map(|p| p.converged_after_ms).collect();
        times.sort_by(f64::total_cmp);
        Self {
            phases: judged.len(),
            converged: times.len(),
            median_ms: times.get(times.len().saturating_sub(1) / 2).copied(),
            max_ms: times.last().copied(),
        }
    }
}

/// One phase.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PhaseScore {
    /// Counts from 0.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Judged windows.
    pub windows: u64,
    /// Hot bytes over them.
    pub score: Score,
    /// Time from the start of the phase to the end of the first window whose F1 reached what was asked for.
    pub converged_after_ms: Option<f64>,
    /// F1 from that window on.
    pub f1_once_converged: Option<f64>,
}

/// Working-set size, bytes a window.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Wss {
    /// Bytes that were hot.
    pub truth: Quartiles,
    /// Bytes of the workload's areas that were recorded hot (those too near the threshold left out).
    pub inside: Quartiles,
    /// Bytes of the whole process that were recorded hot, also in windows across a change: what a wss report shows.
    pub process: Quartiles,
    /// Median recorded inside against the true median; `None` when nothing was hot.
    pub p50_error: Option<f64>,
    /// Known bounds for the median of the whole process, where the pattern has such.
    pub bounds: Option<Bounds>,
}

impl Wss {
    /// Whether the median of the whole process lies in the known bounds; `None` when there are none.
    pub fn p50_in_bounds(&self) -> Option<bool> {
        self.bounds.map(|b| (b.low..=b.high).contains(&self.process.p50))
    }
}

/// Bounds for the median working-set size that the public tests of DAMON use with the same patterns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Bounds {
    /// Least, bytes.
    pub low: u64,
    /// Greatest, bytes.
    pub high: u64,
}

impl Bounds {
    /// The bounds of a built-in pattern, given its true working set: with other sizes than the built-in ones they say
    /// nothing.
    pub fn of_pattern(pattern: &str, true_bytes: u64) -> Option<Self> {
        let (size, low, high) = match pattern {
            "stairs" => (10, 9, 11),
            "zigzag" => (100, 90, 110),
            "hotspot" => (2, 3, 12),
            _ => return None,
        };
        (true_bytes == size << 20).then_some(Self { low: low << 20, high: high << 20 })
    }
}

/// Recorded against real rates, over all ranges with the same stated rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RateScore {
    /// What the pattern has.
    pub stated: Stated,
    /// How accesses follow one another.
    pub arrivals: Arrivals,
    /// What the workload achieved, mean over bytes and time.
    pub achieved_hz: f64,
    /// What can be counted of that with one look a sampling interval.
    pub countable_hz: f64,
    /// What the record says, mean over bytes and time; bytes in no region count as 0.
    pub recorded_hz: f64,
    /// Recorded - countable.
    pub error_hz: f64,
    /// The same against countable; `None` where nothing was to be counted.
    pub relative_error: Option<f64>,
}

//! How true a record is: its regions against what the workload says it did, byte by byte.
//!
//! A snapshot speaks for its window `start_ns..end_ns`. A window that lies in one phase of the truth is judged: every
//! byte the workload had mapped in that phase is hot or cold by its achieved rate, and hot or cold by the region that
//! covers it (bytes that no region covers count as cold). Each byte weighs as long as the window. Windows in which a
//! phase changes, or outside all phases, are counted and not judged: the truth does not say what they should show.
//!
//! Nothing is claimed for the rest of the process (stack, libraries, allocator), so it counts neither for nor against
//! the record; a region that spans both is judged by the part inside. Ranges whose achieved rate lies within a factor
//! `margin` of the threshold are neither hot nor cold: whether a window shows one access or none is chance. They are
//! left out and their share is reported.

mod live;
mod result;
mod score;

pub use live::{AccuracyRun, Subject, judge};
pub use result::{Accuracy, Bounds, Convergence, PhaseScore, RateScore, Windows, Wss, summary_table};
pub use score::Score;

use crate::Quartiles;
use isotherm_damon::{AddrRange, RegionSnapshot, Snapshot, TargetId};
use isotherm_workloads::truth::{Arrivals, PhaseLine, RangeLine, Stated, Truth};
use score::Tally;
use serde::Serialize;
use std::cmp::Ordering;

/// From where on memory is called hot.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Threshold {
    /// Seen accessed in so many samples of an aggregation or more. 1 is DAMON's meaning of the working set. For the
    /// truth it stands for so many accesses an aggregation interval.
    Samples(u32),
    /// Accessed at this rate or more.
    Hz(f64),
}

/// How to judge.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Options {
    /// From where on memory is called hot. Default: one sample.
    pub threshold: Threshold,
    /// Ranges with a rate between threshold / margin and threshold x margin are not judged; >= 1. Default 1.5.
    pub margin: f64,
    /// F1 of a window from which the record has followed a change of phase. Default 0.95.
    pub converged_f1: f64,
}

impl Default for Options {
    fn default() -> Self {
        Self { threshold: Threshold::Samples(1), margin: 1.5, converged_f1: 0.95 }
    }
}

/// Why nothing can be judged.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum AccuracyError {
    /// The truth has no phase.
    #[error(
        "the workload ended before its first phase was over; there is nothing to compare the record with"
    )]
    NoPhase,
    /// A threshold that all or no memory would reach.
    #[error("the threshold {0:?} must be above 0")]
    Threshold(Threshold),
    /// A margin below 1.
    #[error("the margin {0} must be at least 1 (1: judge every range)")]
    Margin(f64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Hot,
    Cold,
    Ambiguous,
}

/// Sums for all ranges with the same stated rate.
#[derive(Clone, Debug)]
struct RateSums {
    stated: Stated,
    arrivals: Arrivals,
    weight: f64,
    achieved: f64,
    countable: f64,
    recorded: f64,
}

#[derive(Clone, Debug, Default)]
struct PhaseSums {
    tally: Tally,
    /// Since the window that first reached `converged_f1`.
    settled: Tally,
    windows: u64,
    converged_after_ns: Option<u64>,
}

/// Takes snapshots one after the other, in time order, and says at the end how true they were. Its memory grows by a
/// few words a snapshot.
#[derive(Clone, Debug)]
pub struct Judge<'a> {
    truth: &'a Truth,
    options: Options,
    target: TargetId,
    windows: Windows,
    tally: Tally,
    phases: Vec<PhaseSums>,
    rates: Vec<RateSums>,
    wss_inside: Vec<u64>,
    wss_truth: Vec<u64>,
    wss_process: Vec<u64>,
}

impl<'a> Judge<'a> {
    /// Judges by `truth` what snapshots say of `target`; by default of the target named by the workload's pid.
    ///
    /// # Errors
    /// When the truth has no phase or the options make no sense.
    pub fn new(truth: &'a Truth, target: Option<TargetId>, options: Options) -> Result<Self, AccuracyError> {
        if truth.phases.is_empty() {
            return Err(AccuracyError::NoPhase);
        }
        match options.threshold {
            Threshold::Samples(n) if n > 0 => {}
            Threshold::Hz(hz) if hz.is_finite() && hz > 0.0 => {}
            other => return Err(AccuracyError::Threshold(other)),
        }
        if !(options.margin.is_finite() && options.margin >= 1.0) {
            return Err(AccuracyError::Margin(options.margin));
        }
        Ok(Self {
            truth,
            options,
            target: target.unwrap_or(TargetId(u64::from(truth.workload.pid))),
            windows: Windows::default(),
            tally: Tally::default(),
            phases: vec![PhaseSums::default(); truth.phases.len()],
            rates: Vec::new(),
            wss_inside: Vec::new(),
            wss_truth: Vec::new(),
            wss_process: Vec::new(),
        })
    }

    /// Judges a snapshot. One without the target counts as a record that saw nothing of it.
    pub fn add(&mut self, snapshot: &Snapshot) {
        let (start, end) = (snapshot.start_ns, snapshot.end_ns);
        // The first phase that is not over when the window begins is the only one the window can lie in.
        let index = self.truth.phases.partition_point(|p| p.end_ns <= start);
        let Some(phase) = self.truth.phases.get(index).filter(|p| p.start_ns < end && start < end) else {
            self.windows.outside += 1;
            return;
        };
        let found = snapshot.targets.iter().find(|t| t.id == self.target);
        let mut regions = found.map_or(&[][..], |t| &t.regions[..]);
        let sorted;
        if !regions.is_sorted_by_key(|r| r.range) {
            let mut copy = regions.to_vec();
            copy.sort_by_key(|r| r.range);
            sorted = copy;
            regions = &sorted;
        }
        let hot = |r: &RegionSnapshot| self.is_hot(r, snapshot);
        self.wss_process.push(regions.iter().filter(|r| hot(r)).map(|r| r.range.size()).sum());
        if start < phase.start_ns || phase.end_ns < end {
            self.windows.across_change += 1;
            return;
        }
        self.windows.judged += 1;
        self.windows.judged_ns += end - start;
        self.judge(index, phase, regions, snapshot);
    }

    fn judge(&mut self, index: usize, phase: &PhaseLine, regions: &[RegionSnapshot], snapshot: &Snapshot) {
        let window_ns = snapshot.end_ns - snapshot.start_ns;
        let mut tally = Tally::default();
        let (mut inside, mut truly) = (0, 0);
        overlay(&phase.ranges, regions, |range, region, bytes| {
            let recorded_hot = region.is_some_and(|r| self.is_hot(r, snapshot));
            let class = self.class(range.achieved_hz, snapshot);
            tally.add(class, recorded_hot, u128::from(bytes) * u128::from(window_ns));
            if class == Class::Hot {
                truly += bytes;
            }
            if class != Class::Ambiguous && recorded_hot {
                inside += bytes;
            }
            let recorded_hz = region.map_or(0.0, |r| r.rate_hz(snapshot.sample_ns, snapshot.max_nr_accesses));
            add_rate(
                &mut self.rates,
                range,
                recorded_hz,
                bytes as f64 * window_ns as f64,
                snapshot.sample_ns,
            );
        });
        self.wss_inside.push(inside);
        self.wss_truth.push(truly);
        self.tally.merge(&tally);
        let Some(sums) = self.phases.get_mut(index) else { return };
        sums.windows += 1;
        sums.tally.merge(&tally);
        // A window with nothing hot and nothing recorded hot is right.
        if sums.converged_after_ns.is_none() && tally.f1().unwrap_or(1.0) >= self.options.converged_f1 {
            sums.converged_after_ns = Some(snapshot.end_ns - phase.start_ns);
        }
        if sums.converged_after_ns.is_some() {
            sums.settled.merge(&tally);
        }
    }

    /// The threshold in accesses a second.
    fn threshold_hz(&self, snapshot: &Snapshot) -> f64 {
        match self.options.threshold {
            Threshold::Hz(hz) => hz,
            Threshold::Samples(n) => {
                let aggregation_ns = snapshot.sample_ns as f64 * f64::from(snapshot.max_nr_accesses);
                f64::from(n) * 1e9 / aggregation_ns.max(1.0)
            }
        }
    }

    fn class(&self, achieved_hz: f64, snapshot: &Snapshot) -> Class {
        let hz = self.threshold_hz(snapshot);
        if achieved_hz >= hz * self.options.margin {
            Class::Hot
        } else if achieved_hz <= 0.0 || achieved_hz <= hz / self.options.margin {
            Class::Cold
        } else {
            Class::Ambiguous
        }
    }

    fn is_hot(&self, region: &RegionSnapshot, snapshot: &Snapshot) -> bool {
        match self.options.threshold {
            Threshold::Samples(n) => region.nr_accesses >= n,
            // A count of whole samples that stands for just this rate must not miss it by a rounding error.
            Threshold::Hz(hz) => {
                region.rate_hz(snapshot.sample_ns, snapshot.max_nr_accesses) >= hz * (1.0 - 1e-9)
            }
        }
    }

    /// The verdict on all snapshots so far.
    pub fn finish(&self) -> Accuracy {
        let truth = self.truth;
        let phase_ns: u64 = truth.phases.iter().map(|p| p.end_ns - p.start_ns).sum();
        let phases: Vec<_> = (truth.phases.iter().zip(&self.phases))
            .map(|(phase, sums)| PhaseScore {
                index: phase.index,
                name: phase.name.clone(),
                windows: sums.windows,
                score: sums.tally.score(),
                converged_after_ms: sums.converged_after_ns.map(|ns| ns as f64 / 1e6),
                f1_once_converged: sums.settled.f1(),
            })
            .collect();
        let mut rates = self.rates.clone();
        rates.sort_by(|a, b| by_rate(b.stated).partial_cmp(&by_rate(a.stated)).unwrap_or(Ordering::Equal));
        let wss = self.wss();
        Accuracy {
            pattern: truth.workload.pattern.clone(),
            page: truth.workload.page,
            backed_as_asked: truth.areas.iter().all(|a| a.backed_as_asked),
            options: self.options,
            windows: Windows { phase_ns, ..self.windows },
            score: self.tally.score(),
            convergence: Convergence::of(&phases),
            phases,
            wss,
            rates: rates.iter().map(RateSums::score).collect(),
        }
    }

    fn wss(&self) -> Option<Wss> {
        let (inside, truth) = (Quartiles::of(&self.wss_inside)?, Quartiles::of(&self.wss_truth)?);
        let process = Quartiles::of(&self.wss_process)?;
        let error = (truth.p50 > 0).then(|| (inside.p50 as f64 - truth.p50 as f64) / truth.p50 as f64);
        let bounds = Bounds::of_pattern(&self.truth.workload.pattern, truth.p50);
        Some(Wss { truth, inside, process, p50_error: error, bounds })
    }
}

/// Walks the truth's ranges and the record's regions side by side; calls `each` with bytes that have one range and
/// one region (or none). Both are sorted; what overlaps an earlier region counts for the earlier one.
fn overlay<'t, 'r>(
    ranges: &'t [RangeLine],
    regions: &'r [RegionSnapshot],
    mut each: impl FnMut(&'t RangeLine, Option<&'r RegionSnapshot>, u64),
) {
    let mut first = 0;
    for range in ranges {
        let mut at = range.start;
        while regions.get(first).is_some_and(|r| r.range.end <= at) {
            first += 1;
        }
        for region in regions.get(first..).unwrap_or_default() {
            if region.range.start >= range.end {
                break;
            }
            let part = region.range.intersection(AddrRange::new(at, range.end));
            if part.is_empty() {
                continue;
            }
            if part.start > at {
                each(range, None, part.start - at);
            }
            each(range, Some(region), part.size());
            at = part.end;
        }
        if at < range.end {
            each(range, None, range.end - at);
        }
    }
}

/// What a monitor that looks once each `sample_ns` can count of accesses at `hz`: never more than one a sample.
fn countable_hz(hz: f64, arrivals: Arrivals, sample_ns: u64) -> f64 {
    let seconds = sample_ns.max(1) as f64 / 1e9;
    match arrivals {
        Arrivals::None => 0.0,
        Arrivals::Periodic => hz.min(1.0 / seconds),
        // Share of samples in which a Poisson process has at least one event.
        Arrivals::Random => -(-hz * seconds).exp_m1() / seconds,
    }
}

fn add_rate(rates: &mut Vec<RateSums>, range: &RangeLine, recorded_hz: f64, weight: f64, sample_ns: u64) {
    let same = |r: &RateSums| r.stated == range.rate && r.arrivals == range.arrivals;
    let index = rates.iter().position(same).unwrap_or_else(|| {
        rates.push(RateSums {
            stated: range.rate,
            arrivals: range.arrivals,
            weight: 0.0,
            achieved: 0.0,
            countable: 0.0,
            recorded: 0.0,
        });
        rates.len() - 1
    });
    if let Some(sums) = rates.get_mut(index) {
        sums.weight += weight;
        sums.achieved += weight * range.achieved_hz;
        sums.countable += weight * countable_hz(range.achieved_hz, range.arrivals, sample_ns);
        sums.recorded += weight * recorded_hz;
    }
}

fn by_rate(stated: Stated) -> f64 {
    match stated {
        Stated::Hz(hz) => hz,
        Stated::Max(_) => f64::INFINITY,
    }
}

impl RateSums {
    fn score(&self) -> RateScore {
        let mean = |sum: f64| if self.weight > 0.0 { sum / self.weight } else { 0.0 };
        let (countable_hz, recorded_hz) = (mean(self.countable), mean(self.recorded));
        let error_hz = recorded_hz - countable_hz;
        RateScore {
            stated: self.stated,
            arrivals: self.arrivals,
            achieved_hz: mean(self.achieved),
            countable_hz,
            recorded_hz,
            error_hz,
            relative_error: (countable_hz > 0.0).then(|| error_hz / countable_hz),
        }
    }
}

#[cfg(test)]
mod tests;

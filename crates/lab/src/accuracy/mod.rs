//! How true a record is: its regions against what the workload says it did, byte by byte.
//!
//! A snapshot speaks for its window `start_ns..end_ns`. A window that lies in one phase of the truth is judged: every
//! byte the workload had mapped in that phase is hot or cold by its achieved rate, and hot or cold by the region that
//! covers it (bytes that no region covers count as cold). Each byte weighs as long as the window. Windows in which a
//! phase changes, or outside all phases, are counted and not judged: the truth does not say what they should show.
//!
//! Of a workload with several processes, those bytes are judged together, each process's by the target of its pid.
//!
//! Nothing is claimed for the rest of a process (stack, libraries, allocator), so it counts neither for nor against
//! the record; a region that spans both is judged by the part inside. Ranges whose achieved rate lies within a factor
//! `margin` of the threshold are neither hot nor cold: whether a window shows one access or none is chance. So are those
//! that a stream moves through slowly: hot is a rate, and theirs changes while one looks. Both are left out and their
//! share is reported. What the record calls unknown is left out too, and told apart.
//!
//! Memory in motion is judged by [`Second`] instead: which bytes were accessed at least once in a second. Where the workload
//! forks a child for a phase, [`Forked`] tells what its hot memory was called around that.

pub mod against;
mod forked;
mod hot;
mod live;
mod overlay;
mod rates;
mod result;
mod score;
mod second;
mod table;

pub use forked::{Forked, ForkedSecond, Told, When};
pub use live::{AccuracyRun, Subject, judge};
pub use result::{Accuracy, Bounds, Convergence, Found, PhaseScore, RateScore, Windows, Wss};
pub use score::Score;
pub use second::Second;
pub use table::summary_table;

use crate::Quartiles;
use forked::Lives;
use hot::{Class, Heat, Recorded};
use isotherm_damon::{RegionSnapshot, Snapshot, TargetId};
use isotherm_workloads::truth::{PhaseLine, RangeLine, Segment, Truth};
use overlay::{Piece, overlay};
use rates::Rates;
use score::Tally;
use second::Seconds;
use serde::Serialize;
use std::collections::BTreeMap;

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
    /// Time after the start of a phase, ns, in which windows do not count for the scores. Default 0.
    pub settle_ns: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { threshold: Threshold::Samples(1), margin: 1.5, converged_f1: 0.95, settle_ns: 0 }
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

#[derive(Clone, Debug, Default)]
struct PhaseSums {
    tally: Tally,
    /// Since the window that first reached `converged_f1`.
    settled: Tally,
    windows: u64,
    converged_after_ns: Option<u64>,
}

/// A piece of a phase's truth, with the range it is part of.
#[derive(Clone, Debug)]
struct Steady<'a> {
    segment: Segment,
    range: &'a RangeLine,
}

impl Piece for Steady<'_> {
    fn start(&self) -> u64 {
        self.segment.start
    }

    fn end(&self) -> u64 {
        self.segment.end
    }
}

/// What a phase's rates are, piece by piece: the same for all its windows.
#[derive(Clone, Debug)]
struct Rated<'a> {
    phase: usize,
    pieces: Vec<Steady<'a>>,
}

/// What one window showed.
#[derive(Default)]
struct Window {
    tally: Tally,
    rates: Rates,
    /// Bytes recorded hot, of those that were hot or cold.
    inside: u64,
    /// Bytes that were hot.
    truly: u64,
}

/// Takes snapshots one after the other, in time order, and says at the end how true they were. Its memory grows by a
/// few words a snapshot.
#[derive(Clone, Debug)]
pub struct Judge<'a> {
    truth: &'a Truth,
    options: Options,
    /// The target that stands for each process; none of a process that is not judged.
    targets: BTreeMap<u32, TargetId>,
    rated: Option<Rated<'a>>,
    windows: Windows,
    tally: Tally,
    phases: Vec<PhaseSums>,
    rates: Rates,
    seconds: Seconds,
    lives: Lives,
    wss_inside: Vec<u64>,
    wss_truth: Vec<u64>,
    wss_process: Vec<u64>,
    /// Processes with hot memory, and when it was found: ns from when it became hot.
    found: BTreeMap<u32, Option<u64>>,
}

impl<'a> Judge<'a> {
    /// Judges by `truth` what snapshots say of its processes: the targets named by their pids; or of `target` alone, as
    /// the first of them.
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
        let targets = match target {
            Some(target) => BTreeMap::from([(truth.workload.pid, target)]),
            None => truth.processes.iter().map(|p| (p.pid, TargetId(u64::from(p.pid)))).collect(),
        };
        Ok(Self {
            truth,
            options,
            targets,
            rated: None,
            windows: Windows::default(),
            tally: Tally::default(),
            phases: vec![PhaseSums::default(); truth.phases.len()],
            rates: Rates::default(),
            seconds: Seconds::default(),
            lives: Lives::of(truth),
            wss_inside: Vec::new(),
            wss_truth: Vec::new(),
            wss_process: Vec::new(),
            found: BTreeMap::new(),
        })
    }

    /// Judges a snapshot. A process without its target counts as one of which the record saw nothing.
    pub fn add(&mut self, snapshot: &Snapshot) {
        let (start, end) = (snapshot.start_ns, snapshot.end_ns);
        // The first phase that is not over when the window begins is the only one the window can lie in.
        let truth = self.truth;
        let index = truth.phases.partition_point(|p| p.end_ns <= start);
        let Some(phase) = truth.phases.get(index).filter(|p| p.start_ns < end && start < end) else {
            self.windows.outside += 1;
            return;
        };
        let regions = self.by_process(snapshot);
        let of_first = regions.get(&truth.workload.pid).map_or(&[][..], Vec::as_slice);
        self.lives.add(truth, of_first, snapshot);
        let heat = Heat::new(&self.options, snapshot);
        let hot = |r: &&RegionSnapshot| heat.of_region(r) == Recorded::Hot;
        self.wss_process.push(regions.values().flatten().filter(hot).map(|r| r.range.size()).sum());
        if start < phase.start_ns || phase.end_ns < end {
            self.windows.across_change += 1;
            return;
        }
        let window = self.judge(index, phase, &regions, snapshot, &heat);
        let Some(sums) = self.phases.get_mut(index) else { return };
        // A window with nothing hot and nothing recorded hot is right.
        if sums.converged_after_ns.is_none() && window.tally.f1().unwrap_or(1.0) >= self.options.converged_f1
        {
            sums.converged_after_ns = Some(end - phase.start_ns);
        }
        if start < phase.start_ns + self.options.settle_ns {
            self.windows.settling += 1;
            return;
        }
        self.windows.judged += 1;
        self.windows.judged_ns += end - start;
        sums.windows += 1;
        sums.tally.merge(&window.tally);
        if sums.converged_after_ns.is_some() {
            sums.settled.merge(&window.tally);
        }
        self.tally.merge(&window.tally);
        self.rates.merge(&window.rates);
        self.wss_inside.push(window.inside);
        self.wss_truth.push(window.truly);
        self.seconds.judge(phase, &regions, snapshot);
    }

    /// The regions of each process, sorted by address; none of one that the snapshot does not have.
    fn by_process(&self, snapshot: &Snapshot) -> BTreeMap<u32, Vec<RegionSnapshot>> {
        let of: BTreeMap<TargetId, &[RegionSnapshot]> =
            snapshot.targets.iter().map(|t| (t.id, &t.regions[..])).collect();
        let regions = |target: &TargetId| {
            let mut regions = of.get(target).map_or_else(Vec::new, |r| r.to_vec());
            regions.sort_by_key(|r| r.range);
            regions
        };
        self.targets.iter().map(|(&pid, target)| (pid, regions(target))).collect()
    }

    fn judge(
        &mut self,
        index: usize,
        phase: &'a PhaseLine,
        regions: &BTreeMap<u32, Vec<RegionSnapshot>>,
        snapshot: &Snapshot,
        heat: &Heat,
    ) -> Window {
        let window_ns = snapshot.end_ns - snapshot.start_ns;
        let rated = match self.rated.take() {
            Some(rated) if rated.phase == index => rated,
            _ => Rated { phase: index, pieces: steady(phase) },
        };
        let mut window = Window::default();
        let processes = rated.pieces.chunk_by(|a, b| a.segment.pid == b.segment.pid);
        for (pieces, pid) in processes.filter_map(|p| Some((p, p.first()?.segment.pid))) {
            let Some(regions) = regions.get(&pid) else { continue };
            let (mut hot, mut seen) = (0, 0);
            overlay(pieces, regions, |piece, region, part| {
                let bytes = part.size();
                let recorded = region.map_or(Recorded::Cold, |r| heat.of_region(r));
                let class = heat.of_truth(&piece.segment);
                window.tally.add(class, recorded, u128::from(bytes) * u128::from(window_ns));
                if class == Class::Hot {
                    window.truly += bytes;
                    hot += bytes;
                    seen += if recorded == Recorded::Hot { bytes } else { 0 };
                }
                if class != Class::Ambiguous && recorded == Recorded::Hot {
                    window.inside += bytes;
                }
                if recorded != Recorded::Unknown {
                    let recorded_hz =
                        region.map_or(0.0, |r| r.rate_hz(snapshot.sample_ns, snapshot.max_nr_accesses));
                    let weight = bytes as f64 * window_ns as f64;
                    window.rates.add(piece.range, piece.segment.hz, recorded_hz, weight, snapshot.sample_ns);
                }
            });
            if hot > 0 {
                let found = self.found.entry(pid).or_default();
                // The greater part of what is hot in it.
                if found.is_none() && seen * 2 > hot {
                    *found = Some(snapshot.end_ns - phase.start_ns);
                }
            }
        }
        self.rated = Some(rated);
        window
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
        Accuracy {
            pattern: truth.workload.pattern.clone(),
            page: truth.workload.page,
            processes: truth.processes.len(),
            backed_as_asked: truth.areas.iter().all(|a| a.backed_as_asked),
            options: self.options,
            windows: Windows { phase_ns, ..self.windows },
            score: self.tally.score(),
            second: self.seconds.verdict(),
            forked: self.lives.verdict(),
            found: Found::of(self.found.values().copied()),
            convergence: Convergence::of(&phases),
            phases,
            wss: self.wss(),
            rate_error_10_to_50_hz: self.rates.middle_error(),
            rates: self.rates.scores(),
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

/// The rates of a phase, each with its range: a range has as many pieces as it has rates.
fn steady(phase: &PhaseLine) -> Vec<Steady<'_>> {
    let mut segments = phase.segments(phase.start_ns..phase.end_ns).into_iter().peekable();
    let mut pieces = Vec::new();
    for range in &phase.ranges {
        let inside = |s: &Segment| s.pid == range.pid && s.start < range.end;
        while let Some(segment) = segments.next_if(inside) {
            pieces.push(Steady { segment, range });
        }
    }
    pieces
}

#[cfg(test)]
mod tests;

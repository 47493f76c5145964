//! One simulation, and its figures.

use super::Measure;
use crate::statistics::mean;
use isotherm_damon::{AddrRange, Snapshot, TargetId, TargetSnapshot, Tuning, Watch};
use isotherm_simulated::{HotBytes, Pattern, Phase, Run, Second, run, told};
use serde::Serialize;
use std::collections::BTreeMap;

/// What is simulated.
pub(super) struct Simulation {
    pub phases: Vec<Phase>,
    pub targets: u64,
    /// One in so many runs, and the sampler is told so; 0: it is not told, and all run.
    pub one_in: u64,
    /// Phases that come before what is judged.
    pub skipped: usize,
}

impl Simulation {
    /// One target that runs.
    pub fn of(phases: Vec<Phase>) -> Self {
        Self { phases, targets: 1, one_in: 0, skipped: 0 }
    }

    fn runs(&self, id: TargetId) -> bool {
        self.one_in == 0 || id.0.is_multiple_of(self.one_in)
    }
}

/// What one simulation showed; `None` for what its pattern has not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Figures {
    /// See [`Measure::F1`].
    pub f1: Option<f64>,
    /// See [`Measure::Second`].
    pub second: Option<f64>,
    /// See [`Measure::RateError`].
    pub rate_error: Option<f64>,
    /// See [`Measure::Found`].
    pub found_s: Option<f64>,
    /// See [`Measure::Clears`].
    pub clears_per_second: f64,
    /// See [`Measure::WakeUps`].
    pub wake_ups_per_second: f64,
    /// See [`Measure::Cpu`].
    pub cpu_share: f64,
}

impl Figures {
    /// One of them.
    #[must_use]
    pub fn get(&self, measure: Measure) -> Option<f64> {
        match measure {
            Measure::F1 => self.f1,
            Measure::Second => self.second,
            Measure::RateError => self.rate_error,
            Measure::Found => self.found_s,
            Measure::Clears => Some(self.clears_per_second),
            Measure::WakeUps => Some(self.wake_ups_per_second),
            Measure::Cpu => Some(self.cpu_share),
        }
    }
}

/// Lets a sampler with these constants watch, and judges what it tells.
pub(super) fn judge(simulation: &Simulation, tuning: Tuning, seed: u64) -> Figures {
    let runs = |id| simulation.runs(id);
    let told = run(
        &simulation.phases,
        simulation.targets,
        (simulation.one_in != 0, &runs),
        Watch::with_tuning(tuning),
        seed,
    );
    let seconds = told.intervals as f64 * 0.005;
    let truth = Truth::of(simulation);
    Figures {
        found_s: found(&told, &truth),
        clears_per_second: told.clears as f64 / seconds,
        wake_ups_per_second: told.wake_ups as f64 / seconds,
        cpu_share: told.spent_ns / (seconds * 1e9),
        ..accuracy(&told, &truth)
    }
}

/// What is accessed in truth.
struct Truth<'a> {
    simulation: &'a Simulation,
    /// The patterns of the phases when nothing runs.
    idle: Vec<Pattern>,
}

impl<'a> Truth<'a> {
    fn of(simulation: &'a Simulation) -> Self {
        let idle = simulation.phases.iter().map(|phase| {
            let areas = phase.pattern.areas.iter().map(|(area, _)| (*area, 0.0)).collect();
            Pattern { areas, hot: Vec::new(), ..phase.pattern.clone() }
        });
        Self { simulation, idle: idle.collect() }
    }

    /// Of a target in a phase.
    fn at(&self, phase: usize, id: TargetId) -> Option<&Pattern> {
        let (of_phase, idle) = (self.simulation.phases.get(phase)?, self.idle.get(phase)?);
        Some(if of_phase.asleep || !self.simulation.runs(id) { idle } else { &of_phase.pattern })
    }

    fn judged<'b>(&self, run: &'b Run) -> impl Iterator<Item = (usize, &'b Snapshot)> {
        let skipped = self.simulation.skipped;
        run.snapshots.iter().filter(move |(phase, _)| *phase >= skipped).map(|(phase, s)| (*phase, s))
    }
}

/// F1 of all snapshots but those that saw a change of phase, and how wrong rates are on average over a phase.
fn accuracy(run: &Run, truth: &Truth<'_>) -> Figures {
    let (mut hot, mut second) = (HotBytes::default(), Second::default());
    // Of each phase and area, the rate and what was told of it.
    let mut rates: BTreeMap<(usize, u64, TargetId), (f64, Vec<f64>)> = BTreeMap::new();
    let mut previous = None;
    for (phase, snapshot) in truth.judged(run) {
        if previous.replace(phase) != Some(phase) {
            continue;
        }
        for target in &snapshot.targets {
            let Some(pattern) = truth.at(phase, target.id) else { continue };
            hot.add(target, pattern);
            second.add(snapshot, target, pattern);
            for (area, rate) in &pattern.areas {
                let hz = rate * 200.0;
                if (9.0..51.0).contains(&hz) {
                    let key = (phase, area.start, target.id);
                    rates.entry(key).or_insert((hz, Vec::new())).1.push(told(snapshot, target, *area));
                }
            }
        }
    }
    let errors: Vec<f64> =
        rates.values().filter_map(|(hz, told)| mean(told).map(|told| (told - hz).abs() / hz)).collect();
    Figures {
        f1: (hot.hit + hot.missed > 0).then(|| hot.f1()),
        second: (second.truth > 0.0).then(|| second.f1()),
        rate_error: mean(&errors),
        ..Figures::default()
    }
}

/// Mean time from the start of a phase until the greater part of a target's hot memory was told to be hot; where it never was, the
/// length of the phase.
fn found(run: &Run, truth: &Truth<'_>) -> Option<f64> {
    let mut all: BTreeMap<(usize, TargetId), (f64, bool)> = BTreeMap::new();
    let mut start = 0.0;
    let mut starts = Vec::new();
    for phase in &truth.simulation.phases {
        starts.push(start);
        start += f64::from(phase.aggregations) * 0.1;
    }
    for (phase, snapshot) in truth.judged(run) {
        let Some(began) = starts.get(phase) else { continue };
        for target in &snapshot.targets {
            let Some(pattern) = truth.at(phase, target.id) else { continue };
            let hot: Vec<AddrRange> = pattern
                .areas
                .iter()
                .filter(|(_, rate)| rate * 200.0 >= 15.0)
                .map(|(area, _)| *area)
                .collect();
            if hot.is_empty() {
                continue;
            }
            let (after, is_found) = all.entry((phase, target.id)).or_default();
            if !*is_found {
                *after = snapshot.end_ns as f64 / 1e9 - began;
                *is_found = 2 * called(target, &hot) > hot.iter().map(|area| area.size()).sum();
            }
        }
    }
    mean(&all.values().map(|(after, _)| *after).collect::<Vec<_>>())
}

/// Bytes of these that are told to be hot.
fn called(target: &TargetSnapshot, hot: &[AddrRange]) -> u64 {
    let regions = target.regions.iter().filter(|region| region.nr_accesses > 0);
    regions.flat_map(|r| hot.iter().map(|area| r.range.intersection(*area).size())).sum()
}

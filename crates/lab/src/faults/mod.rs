//! Page faults under per-VMA locks, and under `mmap_lock` alone.
//!
//! The question of the patch series "Per-VMA locks" (version 2, January 2023): threads fault in VMAs of their own, while
//! another maps, protects and unmaps. Each way is measured in each round, in turn, on the same memory manager
//! (`isotherm-mm`) with the mechanism on and off; a fault takes a frame from the zone of `isotherm-frames`, clears it and
//! maps it. There is no program behind, so neither a trap nor a TLB is part of the figures.

mod machine;
mod run;
mod table;

pub use table::table;

use crate::Estimate;
use crate::experiment::{Bar, Figure, Interrupted, Watch};
use run::Outcome;
use serde::Serialize;
use std::time::Duration;

/// The bars, from the issue that the memory manager was built by.
const TIMES: f64 = 3.0;
const ONE_THREAD: f64 = 1.0;

/// How long and how often.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Setup {
    /// Rounds; each measures everything once.
    pub rounds: u32,
    /// For how long each thing is measured in a round.
    #[serde(serialize_with = "seconds")]
    pub slice: Duration,
}

fn seconds<S: serde::Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(time.as_secs_f64())
}

/// Why there are no, or not all, results.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Somebody asked to stop.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
    /// The memory that the experiment works on was not to be had.
    #[error("no memory for the machine of the experiment")]
    Memory,
    /// The memory manager refused what it was asked for.
    #[error("the address space of the experiment: {0}")]
    Space(#[from] isotherm_mm::Error),
    /// A fault was not resolved.
    #[error("a fault of the experiment: {0}")]
    Fault(#[from] isotherm_mm::FaultError),
}

/// What runs.
#[derive(Clone, Copy, Debug)]
struct Run {
    threads: usize,
    mapper: bool,
    per_vma_locks: bool,
}

/// Faults of some threads, with the mechanism on and off.
#[derive(Clone, Debug, Serialize)]
pub struct Faults {
    /// How many threads fault.
    pub threads: usize,
    /// Whether another maps, protects and unmaps meanwhile.
    pub mapper: bool,
    /// Faults a second under per-VMA locks, of all threads together.
    pub on: Estimate,
    /// The same under `mmap_lock` alone.
    pub off: Estimate,
    /// The one divided by the other, of the same round.
    pub ratio: Estimate,
    /// Rounds of the mapper a second, on and off.
    pub mapped: [Estimate; 2],
    /// Of 1000 faults under per-VMA locks so many were handled under their VMA's lock. The mapper's are counted too: one in
    /// each of its rounds, which is the first in its VMA and so takes `mmap_lock`.
    pub under_vma_lock_per_1000: f64,
    /// Whether the count of pages was right after each run.
    pub resident_exact: bool,
}

impl Faults {
    /// Measures one thread and `threads` of them, alone and beside a mapper.
    ///
    /// # Errors
    /// [`Error`].
    pub fn measure(threads: usize, setup: &Setup, watch: &mut Watch<'_>) -> Result<Vec<Self>, Error> {
        let counts = if threads > 1 { vec![1, threads] } else { vec![1] };
        let cells: Vec<(usize, bool)> =
            counts.into_iter().flat_map(|threads| [(threads, false), (threads, true)]).collect();
        let mut outcomes: Vec<[Vec<Outcome>; 2]> = cells.iter().map(|_| [Vec::new(), Vec::new()]).collect();
        for round in 1..=setup.rounds {
            (watch.progress)(&format!("faults, round {round} of {} ...", setup.rounds));
            for (&(threads, mapper), outcomes) in cells.iter().zip(&mut outcomes) {
                // Who is first changes with the round.
                let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
                for way in order {
                    watch.go_on()?;
                    let run = Run { threads, mapper, per_vma_locks: way == 0 };
                    outcomes[way].push(run.go(setup.slice)?);
                }
            }
        }
        let judged = cells
            .iter()
            .zip(&outcomes)
            .filter_map(|(&(threads, mapper), [on, off])| judge(threads, mapper, on, off));
        Ok(judged.collect())
    }
}

/// `None` if there are no figures.
fn judge(threads: usize, mapper: bool, on: &[Outcome], off: &[Outcome]) -> Option<Faults> {
    let of = |all: &[Outcome], figure: fn(&Outcome) -> f64| {
        Estimate::of(&all.iter().map(figure).collect::<Vec<_>>())
    };
    let ratios: Vec<f64> = on.iter().zip(off).map(|(on, off)| on.faults / off.faults).collect();
    let sum = |count: fn(&Outcome) -> u64| on.iter().map(count).sum::<u64>() as f64;
    let lookups = sum(|one| one.stats.lookups());
    Some(Faults {
        threads,
        mapper,
        on: of(on, |one| one.faults)?,
        off: of(off, |one| one.faults)?,
        ratio: Estimate::of(&ratios)?,
        mapped: [of(on, |one| one.mapped)?, of(off, |one| one.mapped)?],
        under_vma_lock_per_1000: 1000.0 * sum(|one| one.stats.success) / lookups.max(1.0),
        resident_exact: on.iter().chain(off).all(|one| one.resident.0 == one.resident.1),
    })
}

/// The bars of what was measured.
#[must_use]
pub fn bars(all: &[Faults]) -> Vec<Bar> {
    let mut bars = Vec::new();
    let cell =
        |threads: usize, mapper: bool| all.iter().find(|one| one.threads == threads && one.mapper == mapper);
    if let Some(two) = cell(2, true) {
        let what = "two threads beside a mapper: per-VMA locks beside mmap_lock, >= 3";
        bars.push(Bar::at_least(what, Figure::median(&two.ratio), TIMES));
    }
    if let Some(one) = cell(1, false) {
        let slower = Figure::median(&one.ratio).map(|ratio| (1.0 / ratio - 1.0) * 100.0);
        bars.push(Bar::at_most("one thread alone: slower by per-VMA locks, %, <= 1", slower, ONE_THREAD));
    }
    if !all.is_empty() {
        let wrong = all.iter().filter(|one| !one.resident_exact).count();
        let figure = Figure { value: wrong as f64, interval: None };
        bars.push(Bar::at_most("counts of resident pages that are wrong, <= 0", figure, 0.0));
    }
    bars
}

#[cfg(test)]
mod tests {
    use super::*;

    fn estimate(value: f64) -> Estimate {
        Estimate::of(&[value]).expect("a figure")
    }

    fn faults(threads: usize, mapper: bool, on: f64, off: f64) -> Faults {
        Faults {
            threads,
            mapper,
            on: estimate(on),
            off: estimate(off),
            ratio: estimate(on / off),
            mapped: [estimate(0.0), estimate(0.0)],
            under_vma_lock_per_1000: 1000.0,
            resident_exact: true,
        }
    }

    #[test]
    fn bars_are_those_of_the_issue_and_only_of_what_was_measured() {
        assert!(bars(&[]).is_empty());
        let mut all = vec![faults(1, false, 100.0, 102.0), faults(2, true, 300.0, 90.0)];
        let met = |all: &[Faults]| bars(all).into_iter().map(|bar| bar.met).collect::<Vec<_>>();
        assert_eq!(met(&all), [true, false, true]);
        all[1] = faults(2, true, 200.0, 90.0);
        all[0].resident_exact = false;
        assert_eq!(met(&all), [false, false, false]);
    }

    #[test]
    fn a_run_counts_faults_and_pages_exactly() {
        let setup = Setup { rounds: 1, slice: Duration::from_millis(20) };
        let mut watch = Watch { stop: std::sync::Arc::new(|| false), progress: &mut |_| {} };
        let all = Faults::measure(2, &setup, &mut watch).expect("there is memory");
        let cells: Vec<_> = all.iter().map(|one| (one.threads, one.mapper)).collect();
        assert_eq!(cells, [(1, false), (1, true), (2, false), (2, true)]);
        for one in &all {
            assert!(one.on.median > 0.0 && one.off.median > 0.0, "{one:?}");
            assert!(one.resident_exact, "{one:?}");
            assert!(one.mapper || one.mapped[0].median == 0.0, "{one:?}");
        }
    }
}

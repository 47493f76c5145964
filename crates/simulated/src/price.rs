//! What looks, clears and wake-ups cost on a virtual machine, and what the default ceiling of 1 % of a CPU gives.

use crate::{Keep, Pattern, Simulated};
use isotherm_damon::{Allowance, Attrs, Monitor, Snapshot, TargetId, Watch};

/// CPU time of a wake-up, of a run of the program that looks and of a block in it, and of a clear, ns.
const WAKE_UP: f64 = 40_000.0;
/// ... and what each target adds to a wake-up.
const OF_TARGET: f64 = 1_000.0;
const RUN: f64 = 3_000.0;
const LOOK: f64 = 1_000.0;
const CLEAR: f64 = 12_000.0;
/// CPU ns a sampling interval of 5 ms that 1 % gives.
const EARNED: f64 = 50_000.0;
/// ... and what can be saved up.
const HOLDS: f64 = 10e6;
/// Targets from which on looks that are due do not wait for the purse, as the governor has it.
const MANY: u64 = 16;

/// What there is to spend.
#[derive(Clone, Copy, Debug)]
pub struct Purse {
    left: f64,
    wake_up: f64,
    has_many: bool,
    /// What was spent so far, CPU ns.
    pub spent_ns: f64,
    /// Wake-ups so far.
    pub wake_ups: u64,
}

impl Purse {
    /// All that it holds, for so many targets.
    #[must_use]
    pub fn full(targets: u64) -> Self {
        let wake_up = WAKE_UP + OF_TARGET * targets as f64;
        Self { left: HOLDS, wake_up, has_many: targets >= MANY, spent_ns: 0.0, wake_ups: 0 }
    }

    fn allowance(&self, concludes: bool) -> Allowance {
        let left = (self.left - self.wake_up).max(0.0);
        let least = if self.has_many && !concludes { 32 + 5 * (RUN / LOOK) as usize } else { 0 };
        let plannable = EARNED * 20.0 * 0.6;
        Allowance {
            checks: ((left / LOOK) as usize).max(least),
            prepares: (left * 0.75 / CLEAR) as usize,
            by_turns: usize::MAX,
            checks_a_call: (RUN / LOOK) as usize,
            checks_per_aggr: (plannable * 0.3 / LOOK) as usize,
            prepares_per_aggr: (plannable * 0.6 / CLEAR) as usize,
            swept_a_prepare: 220,
            wake_ups_per_aggr: (EARNED * 20.0 * 0.6 / self.wake_up) as usize,
            asked_per_aggr: 64,
        }
    }
}

/// One tick at the sampling interval `now`, later if there is nothing left for one, and what it costs.
pub fn tick(monitor: &mut Monitor<Simulated, Watch>, now: &mut u64, purse: &mut Purse, keep: &mut Keep) {
    let promised = purse.has_many && !monitor.concludes_at(*now * 5_000_000);
    if purse.left < 0.0 && !promised {
        let wait = (-purse.left / EARNED) as u64 + 10;
        *now += wait;
        purse.left += wait as f64 * EARNED;
        monitor.ops().now = *now;
    }
    let before = (*monitor.tally(), monitor.ops().runs);
    let concludes = monitor.concludes_at(*now * 5_000_000);
    let due = monitor.tick(*now * 5_000_000, purse.allowance(concludes), keep);
    let after = (*monitor.tally(), monitor.ops().runs);
    let spent = purse.wake_up
        + (after.1 - before.1) as f64 * RUN
        + (after.0.checks - before.0.checks) as f64 * LOOK
        + (after.0.prepares - before.0.prepares) as f64 * CLEAR;
    purse.left -= spent;
    purse.spent_ns += spent;
    purse.wake_ups += 1;
    purse.left = (purse.left + due as f64 * EARNED).min(HOLDS);
    *now += due;
    monitor.ops().now = *now;
}

/// What targets do for a while.
#[derive(Clone, Debug)]
pub struct Phase {
    /// Where they access memory, and how often.
    pub pattern: Pattern,
    /// For so many aggregations of 100 ms.
    pub aggregations: u32,
    /// None of them runs, whatever the pattern says; told to a sampler that is told who runs.
    pub asleep: bool,
}

impl Phase {
    /// One in which all run.
    #[must_use]
    pub fn new(pattern: Pattern, aggregations: u32) -> Self {
        Self { pattern, aggregations, asleep: false }
    }
}

/// What came of a run.
#[derive(Clone, Debug)]
pub struct Run {
    /// All snapshots, with the index of the phase each lies in.
    pub snapshots: Vec<(usize, Snapshot)>,
    /// Ranges that were cleared.
    pub clears: u64,
    /// Wake-ups.
    pub wake_ups: u64,
    /// What it cost, CPU ns.
    pub spent_ns: f64,
    /// How long it took, in sampling intervals of 5 ms.
    pub intervals: u64,
    /// Most checks in one of them.
    pub max_checks: u64,
}

/// Lets a sampler watch `targets` targets, all alike, of which those that `runs` denies sleep. `tells`: it is told who runs.
///
/// # Panics
/// Without a phase.
#[must_use]
pub fn run(
    phases: &[Phase],
    targets: u64,
    (tells, runs): (bool, &dyn Fn(TargetId) -> bool),
    sampler: Watch,
    seed: u64,
) -> Run {
    let first = phases.first().expect("a run has a phase");
    let mut ops = Simulated::new(first.pattern.clone());
    ops.tells_who_runs = tells;
    let mut monitor =
        Monitor::new(Attrs::default(), ops, sampler, seed).expect("the default attributes are valid");
    for id in (1..=targets).map(TargetId) {
        monitor.add_target(id).expect("there is room for targets");
        if !runs(id) {
            monitor.ops().asleep.insert(id, 0);
        }
    }
    let mut snapshots = Vec::new();
    let (mut now, mut end) = (0u64, 0u64);
    let mut purse = Purse::full(targets);
    for (index, phase) in phases.iter().enumerate() {
        monitor.ops().change(phase.pattern.clone());
        for id in (1..=targets).map(TargetId).filter(|id| runs(*id)) {
            if !phase.asleep {
                monitor.ops().asleep.remove(&id);
            } else {
                monitor.ops().asleep.entry(id).or_insert(now);
            }
        }
        end += u64::from(phase.aggregations) * 20;
        while now < end {
            let mut keep = Keep::default();
            tick(&mut monitor, &mut now, &mut purse, &mut keep);
            snapshots.extend(keep.0.into_iter().map(|s| (index, s)));
        }
    }
    Run {
        snapshots,
        clears: monitor.ops().clears,
        wake_ups: purse.wake_ups,
        spent_ns: purse.spent_ns,
        intervals: now,
        max_checks: monitor.tally().max_checks_per_sample,
    }
}

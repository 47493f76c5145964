//! What looks, clears and wake-ups cost on a virtual machine, and what the default ceiling of 1 % of a CPU gives.

use crate::{Keep, Pattern, Simulated};
use core::time::Duration;
use isotherm_damon::{Allowance, Attrs, Monitor, Snapshot, Tally, TargetId, Watch};

/// CPU time, ns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prices {
    /// A wake-up.
    pub wake_up: f64,
    /// A run of the program that looks.
    pub run: f64,
    /// A block in it.
    pub look: f64,
    /// A call that clears.
    pub clear_call: f64,
    /// An [`Allowance::prepares`] in it.
    pub clear: f64,
    /// A page that is swept.
    pub swept: f64,
    /// The end of an aggregation: drawing, and handing over what was drawn.
    pub end: f64,
}

impl Prices {
    /// Of a program that leaves most of the processor to the monitor.
    pub const QUIET: Self = Self {
        wake_up: 40_000.0,
        run: 3_000.0,
        look: 1_000.0,
        clear_call: 0.0,
        clear: 12_000.0,
        swept: 55.0,
        end: 0.0,
    };
    /// Measured where the program that is watched keeps the other thread of the core busy (`isotherm lab accuracy zigzag`).
    pub const BUSY: Self = Self {
        wake_up: 50_000.0,
        run: 27_000.0,
        look: 1_500.0,
        clear_call: 35_000.0,
        clear: 25_000.0,
        swept: 65.0,
        end: 350_000.0,
    };
}

/// What each target adds to a wake-up, ns.
const OF_TARGET: f64 = 1_000.0;
/// Share of a CPU that may be used: 1 %.
const SHARE: f64 = 0.01;
/// ... and what can be saved up.
const HOLDS: f64 = 10e6;
/// Targets from which on looks that are due do not wait for the purse, as the governor has it.
const MANY: u64 = 16;

/// How time passes: attributes that are a whole number of the simulation's units, and what a unit is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// The monitor's attributes.
    pub attrs: Attrs,
    /// Unit of [`Simulated::now`] and of a [`Pattern`]'s rates, ns; the sampling interval is a multiple of it.
    pub unit_ns: u64,
}

impl Default for Pace {
    /// DAMON's defaults, with a unit of one sampling interval.
    fn default() -> Self {
        Self { attrs: Attrs::default(), unit_ns: 5_000_000 }
    }
}

impl Pace {
    /// Units of a time.
    fn units(&self, time: Duration) -> u64 {
        time.as_nanos() as u64 / self.unit_ns
    }
}

/// What there is to spend.
#[derive(Clone, Copy, Debug)]
pub struct Purse {
    pace: Pace,
    prices: Prices,
    share: f64,
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
        Self::at(targets, Pace::default())
    }

    /// The same for other attributes.
    #[must_use]
    pub fn at(targets: u64, pace: Pace) -> Self {
        let prices = Prices::QUIET;
        let wake_up = prices.wake_up + OF_TARGET * targets as f64;
        Self {
            pace,
            prices,
            share: SHARE,
            left: HOLDS,
            wake_up,
            has_many: targets >= MANY,
            spent_ns: 0.0,
            wake_ups: 0,
        }
    }

    /// The monitor's attributes are others from now on.
    ///
    /// # Panics
    /// When the sampling interval is no whole number of units.
    pub fn set_attrs(&mut self, attrs: Attrs) {
        assert!(attrs.sample.as_nanos().is_multiple_of(u128::from(self.pace.unit_ns)), "whole units");
        self.pace.attrs = attrs;
    }

    /// Only `share` of a CPU is left for looks, clears and wake-ups: the rest of the ceiling goes elsewhere.
    #[must_use]
    pub fn with_share(self, share: f64) -> Self {
        Self { share, ..self }
    }

    /// All that is done costs so much, of one target.
    #[must_use]
    pub fn with_prices(self, prices: Prices) -> Self {
        Self { prices, wake_up: prices.wake_up + OF_TARGET, ..self }
    }

    /// CPU ns that are earned in so many units.
    fn earned(&self, units: u64) -> f64 {
        units as f64 * self.pace.unit_ns as f64 * self.share
    }

    /// For how many units a tick must wait as there is nothing left for one; by then it is earned. A look of many targets that is
    /// due, and does not conclude an aggregation, does not wait.
    pub fn wait(&mut self, concludes: bool) -> u64 {
        if self.left >= 0.0 || (self.has_many && !concludes) {
            return 0;
        }
        let wait = (-self.left / self.earned(1)) as u64 + self.pace.units(Duration::from_millis(50)).max(1);
        self.left += self.earned(wait);
        wait
    }

    /// What a tick may do now.
    #[must_use]
    pub fn allowance(&self, concludes: bool) -> Allowance {
        let prices = self.prices;
        let left = (self.left - self.wake_up).max(0.0);
        let least =
            if self.has_many && !concludes { 32 + 5 * (prices.run / prices.look) as usize } else { 0 };
        let all = self.earned(self.pace.units(self.pace.attrs.aggr));
        // As the governor has it: what is left when being awake is paid, and a wake-up by all that it takes.
        let (plannable, awake) = match prices.end {
            0.0 => (all * 0.6, all * 0.6 / self.wake_up),
            end => ((all - end - 2.0 * self.wake_up).max(all * 0.3), all * 0.6 / (self.wake_up + end / 2.0)),
        };
        Allowance {
            checks: ((left / prices.look) as usize).max(least),
            prepares: (left * 0.75 / prices.clear) as usize,
            prepares_a_call: (prices.clear_call / prices.clear) as usize,
            by_turns: usize::MAX,
            checks_a_call: (prices.run / prices.look) as usize,
            checks_per_aggr: (plannable * 0.3 / prices.look) as usize,
            prepares_per_aggr: (plannable * 0.6 / prices.clear) as usize,
            swept_a_prepare: (prices.clear / prices.swept) as usize,
            wake_ups_per_aggr: awake as usize,
            asked_per_aggr: 64,
        }
    }

    /// A tick that ran the program that looks so often, and after which the next is due in so many sampling intervals, is paid for,
    /// by what the monitor's tally was before it and is after it. In how many units the next is due.
    pub fn pay(
        &mut self,
        (before, after): (&Tally, &Tally),
        runs: u64,
        intervals: u64,
        concluded: bool,
    ) -> u64 {
        let due = intervals * self.pace.units(self.pace.attrs.sample).max(1);
        let spent = self.wake_up
            + if concluded { self.prices.end } else { 0.0 }
            + runs as f64 * self.prices.run
            + (after.checks - before.checks) as f64 * self.prices.look
            + (after.clear_calls - before.clear_calls) as f64 * self.prices.clear_call
            + (after.prepares - before.prepares) as f64 * self.prices.clear;
        self.left -= spent;
        self.spent_ns += spent;
        self.wake_ups += 1;
        self.left = (self.left + self.earned(due)).min(HOLDS);
        due
    }
}

/// One tick at the moment `now`, in units, later if there is nothing left for one, and what it costs.
pub fn tick(monitor: &mut Monitor<Simulated, Watch>, now: &mut u64, purse: &mut Purse, keep: &mut Keep) {
    let unit_ns = purse.pace.unit_ns;
    let wait = purse.wait(monitor.concludes_at(*now * unit_ns));
    if wait > 0 {
        *now += wait;
        monitor.ops().now = *now;
    }
    let before = (*monitor.tally(), monitor.ops().runs);
    let concludes = monitor.concludes_at(*now * unit_ns);
    let intervals = monitor.tick(*now * unit_ns, purse.allowance(concludes), keep);
    let runs = monitor.ops().runs - before.1;
    *now += purse.pay((&before.0, monitor.tally()), runs, intervals, concludes);
    monitor.ops().now = *now;
}

/// What targets do for a while.
#[derive(Clone, Debug)]
pub struct Phase {
    /// Where they access memory, and how often.
    pub pattern: Pattern,
    /// For so many aggregations: 100 ms each by default.
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
    /// How long it took, in units: sampling intervals of 5 ms by default.
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
    run_at(Pace::default(), phases, targets, (tells, runs), sampler, seed)
}

/// The same with other attributes.
///
/// # Panics
/// Without a phase, and with attributes that are not valid.
#[must_use]
pub fn run_at(
    pace: Pace,
    phases: &[Phase],
    targets: u64,
    (tells, runs): (bool, &dyn Fn(TargetId) -> bool),
    sampler: Watch,
    seed: u64,
) -> Run {
    let first = phases.first().expect("a run has a phase");
    let mut ops = Simulated::new(first.pattern.clone());
    ops.tells_who_runs = tells;
    let mut monitor = Monitor::new(pace.attrs, ops, sampler, seed).expect("the attributes are valid");
    for id in (1..=targets).map(TargetId) {
        monitor.add_target(id).expect("there is room for targets");
        if !runs(id) {
            monitor.ops().asleep.insert(id, 0);
        }
    }
    let mut snapshots = Vec::new();
    let (mut now, mut end) = (0u64, 0u64);
    let mut purse = Purse::at(targets, pace);
    for (index, phase) in phases.iter().enumerate() {
        monitor.ops().change(phase.pattern.clone());
        for id in (1..=targets).map(TargetId).filter(|id| runs(*id)) {
            if !phase.asleep {
                monitor.ops().asleep.remove(&id);
            } else {
                monitor.ops().asleep.entry(id).or_insert(now);
            }
        }
        end += u64::from(phase.aggregations) * pace.units(pace.attrs.aggr);
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

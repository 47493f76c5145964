//! How checks become `nr_accesses`: the interface between the monitor's loop and an estimator.

use crate::{Attrs, Check, Operations, Region, Rng, Target, TargetId};

/// How much a sampling interval may spend. The caller derives it from its overhead budget and measured costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// Pages that may be looked at; never more than `max_nr_regions` are.
    pub checks: usize,
    /// Pages that may be prepared (cleared).
    pub prepares: usize,
    /// Checks that a whole aggregation can afford in the long run; what a sampler plans with.
    pub checks_per_aggr: usize,
    /// Prepares that a whole aggregation can afford in the long run.
    pub prepares_per_aggr: usize,
}

impl Allowance {
    /// No limit but `max_nr_regions`.
    pub const UNLIMITED: Self = Self {
        checks: usize::MAX,
        prepares: usize::MAX,
        checks_per_aggr: usize::MAX,
        prepares_per_aggr: usize::MAX,
    };
}

/// What was done, and what the allowance cut; only ever grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Pages looked at.
    pub checks: u64,
    /// Most pages looked at in one sampling interval.
    pub max_checks_per_sample: u64,
    /// Pages prepared.
    pub prepares: u64,
    /// Checks that were due but exceeded the allowance.
    pub checks_cut: u64,
    /// Prepares that were due but exceeded the allowance.
    pub prepares_cut: u64,
}

/// What a sampler works with during one step.
pub struct Step<'a, O> {
    /// The address spaces.
    pub ops: &'a mut O,
    /// Their regions.
    pub targets: &'a mut [Target],
    /// Attributes in force.
    pub attrs: &'a Attrs,
    /// Alignment of regions, bytes.
    pub min_region: u64,
    /// Randomness.
    pub rng: &'a mut Rng,
    /// What may be spent in this sampling interval.
    pub allowance: Allowance,
    /// The running sampling interval, counted from the monitor's start.
    pub now: u64,
    /// What was done.
    pub tally: &'a mut Tally,
    /// Checks done in this sampling interval.
    pub checked: usize,
}

impl<O: Operations> Step<'_, O> {
    /// Checks that may still be done in this sampling interval.
    pub fn checks_left(&self) -> usize {
        self.allowance.checks.min(self.attrs.max_nr_regions).saturating_sub(self.checked)
    }

    /// Looks at the pages and counts the looks. The caller keeps within [`Self::checks_left`].
    pub fn check(&mut self, checks: &mut [Check]) {
        if checks.is_empty() {
            return;
        }
        self.ops.check(checks);
        self.checked += checks.len();
        self.tally.checks += checks.len() as u64;
        self.tally.max_checks_per_sample = self.tally.max_checks_per_sample.max(self.checked as u64);
    }

    /// Prepares the pages and counts them. The caller keeps within `allowance.prepares`.
    pub fn prepare(&mut self, checks: &mut [Check]) {
        if checks.is_empty() {
            return;
        }
        self.ops.prepare(checks);
        self.allowance.prepares = self.allowance.prepares.saturating_sub(checks.len());
        self.tally.prepares += checks.len() as u64;
    }
}

/// An estimator: decides which pages to look at and turns what they show into `nr_accesses`, which every sampler
/// gives in DAMON's unit (0..=aggregation/sampling).
pub trait Sampler {
    /// One sampling interval: look at what was prepared, prepare what comes next.
    fn sample<O: Operations>(&mut self, step: &mut Step<'_, O>);

    /// The aggregation ends: bring `nr_accesses` and `nr_accesses_bp` of every region up to date. May cut regions
    /// at borders it found.
    fn conclude<O: Operations>(&mut self, step: &mut Step<'_, O>);

    /// Regions have changed: because a new `aggregation` begins (after merge, reset, split), or else because a regions
    /// update came in the middle of one.
    fn plan<O: Operations>(&mut self, step: &mut Step<'_, O>, aggregation: bool);

    /// Whether two neighbouring regions of a target are known to differ.
    fn keeps_apart(&self, target: TargetId, left: &Region, right: &Region) -> bool;

    /// Whether it finds borders by itself, so that blind splits are not wanted.
    fn finds_borders(&self) -> bool;

    /// Whether a look accounts for all sampling intervals since the last one, not just for one.
    fn spans_gaps(&self) -> bool;

    /// The next sampling interval after `now` in which it has something to do, at the latest `end`.
    fn next_due(&self, now: u64, end: u64) -> u64;

    /// The target is gone, or its address space was replaced (exec).
    fn forget(&mut self, target: TargetId);
}

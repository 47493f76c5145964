//! How checks become `nr_accesses`: the interface between the monitor's loop and an estimator.

use crate::{
    AddrRange, Attrs, BlockLook, BlockOperations, Check, Cleared, Operations, PAGE_SIZE, Ran, RangeClear,
    Rng, Sweep, Target, TargetId, watch,
};
use alloc::vec::Vec;

/// How much a sampling interval may spend. The caller derives it from its overhead budget and measured costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// Looks (at pages, or at blocks as a whole); never more than `max_nr_regions` are.
    pub checks: usize,
    /// ... of them those that need not go with a clear: by turns, wherever something may have changed.
    pub by_turns: usize,
    /// Looks that a call costs as much as, beside those that it makes: some 20 us, against 1 us a block.
    pub checks_a_call: usize,
    /// Pages that may be prepared, or what may be cleared for as much as 50 pages are, of which a range costs as much as 12.
    pub prepares: usize,
    /// Prepares that a call costs as much as, beside those that it makes: some 35 us, against 25 us.
    pub prepares_a_call: usize,
    /// Checks that a whole aggregation may spend in the long run; what a sampler plans with.
    pub checks_per_aggr: usize,
    /// Prepares that a whole aggregation may spend in the long run.
    pub prepares_per_aggr: usize,
    /// Pages that a sweep goes through for the price of a prepare.
    pub swept_a_prepare: usize,
    /// Wake-ups that a whole aggregation may spend: on a virtual machine each costs as much as fifty looks.
    pub wake_ups_per_aggr: usize,
    /// Targets that may be asked in an aggregation whether they ran ([`BlockOperations::ran`]); what is not used is saved up.
    pub asked_per_aggr: usize,
}

/// As measured where nothing else is known: a prepare of a page costs 10 us, and a sweep, which flushes nothing, 45 ns a page of anonymous
/// memory, 70 ns of shared.
const SWEPT_A_PREPARE: usize = 220;

impl Allowance {
    /// No limit but `max_nr_regions`.
    pub const UNLIMITED: Self = Self {
        checks: usize::MAX,
        by_turns: usize::MAX,
        checks_a_call: 0,
        prepares: usize::MAX,
        prepares_a_call: 0,
        checks_per_aggr: usize::MAX,
        prepares_per_aggr: usize::MAX,
        swept_a_prepare: SWEPT_A_PREPARE,
        wake_ups_per_aggr: usize::MAX,
        asked_per_aggr: usize::MAX,
    };
}

/// What was done, and what the allowance cut; only ever grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Looks, at pages or at blocks.
    pub checks: u64,
    /// Calls that made them, and surveys.
    pub calls: u64,
    /// Most looks in one sampling interval.
    pub max_checks_per_sample: u64,
    /// Prepares, in the unit of [`Allowance::prepares`].
    pub prepares: u64,
    /// Those of them that stand for sweeps.
    pub prepares_of_sweeps: u64,
    /// Ranges cleared, each of which flushes translations.
    pub ranges_cleared: u64,
    /// Pages in them.
    pub pages_cleared: u64,
    /// Calls that cleared ranges.
    pub clear_calls: u64,
    /// Sweeps.
    pub sweeps: u64,
    /// Pages present in what was swept.
    pub pages_swept: u64,
    /// The same with each mapping counted as so many pages as take as long.
    pub entries_swept: u64,
    /// Checks that were due but exceeded the allowance.
    pub checks_cut: u64,
    /// Prepares that were due but exceeded the allowance.
    pub prepares_cut: u64,
    /// Targets that were asked whether they ran.
    pub asked: u64,
    /// Pages that could not be cleared alone since others map them too: only sweeps show those.
    pub blind_shared: u64,
    /// Pages that could not be cleared since they are locked, of hugetlb, or of a device.
    pub blind_locked: u64,
    /// Pages that were left alone since clearing them would split a large folio, or it is not known whether it would.
    pub blind_split: u64,
    /// Pages whose Accessed bits were left set, each time that they were looked at again.
    pub left_set: u64,
    /// Those of them whose bits were found clear: others had cleared them.
    pub found_clear: u64,
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
    /// When it began, by the caller's clock.
    pub now_ns: u64,
    /// What was done.
    pub tally: &'a mut Tally,
    /// Checks done in this sampling interval.
    pub checked: &'a mut usize,
    /// Calls that made them, and surveys.
    pub called: &'a mut usize,
}

impl<O: Operations> Step<'_, O> {
    /// Checks that one more call may still do in this sampling interval.
    pub fn checks_left(&self) -> usize {
        let calls = (*self.called + 1).saturating_mul(self.allowance.checks_a_call);
        let allowed = self.allowance.checks.saturating_sub(calls);
        allowed.min(self.attrs.max_nr_regions).saturating_sub(*self.checked)
    }

    /// ... on credit: the budget is paid back later, while what an interval may hold stays.
    pub fn checks_on_credit(&self) -> usize {
        self.attrs.max_nr_regions.saturating_sub(*self.checked)
    }

    /// Looks at the pages and counts the looks. The caller keeps within [`Self::checks_left`].
    pub fn check(&mut self, checks: &mut [Check]) {
        if checks.is_empty() {
            return;
        }
        self.ops.check(checks);
        self.count_checks(checks.len());
        self.count_call();
    }

    fn count_call(&mut self) {
        *self.called += 1;
        self.tally.calls += 1;
    }

    fn count_checks(&mut self, checks: usize) {
        *self.checked += checks;
        self.tally.checks += checks as u64;
        self.tally.max_checks_per_sample = self.tally.max_checks_per_sample.max(*self.checked as u64);
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

impl<O: BlockOperations> Step<'_, O> {
    /// As [`BlockOperations::survey`]; it costs what a call does.
    pub fn survey(&mut self, target: TargetId, blocks: &mut Vec<u64>) -> bool {
        self.count_call();
        self.ops.survey(target, blocks)
    }

    /// Looks at blocks, and counts each as a look. The caller keeps within [`Self::checks_left`].
    pub fn look(&mut self, target: TargetId, blocks: &mut [BlockLook]) -> bool {
        self.count_checks(blocks.len());
        self.count_call();
        self.ops.look(target, blocks)
    }

    /// As [`BlockOperations::ran`].
    pub fn ran(&mut self, targets: &[TargetId], found: &mut Vec<Option<Ran>>) {
        self.tally.asked += targets.len() as u64;
        self.ops.ran(targets, found);
    }

    /// This moment, in thousandths of a sampling interval since the caller's clock was at 0.
    pub fn moment(&mut self) -> u64 {
        let sample_ns = u64::try_from(self.attrs.sample.as_nanos()).unwrap_or(u64::MAX).max(1);
        let ns = u128::from(self.now_ns) + u128::from(self.ops.elapsed_ns());
        u64::try_from(ns * 1000 / u128::from(sample_ns)).unwrap_or(u64::MAX)
    }

    /// Clears ranges of so many entries of page tables (a huge page is one), and counts them.
    pub fn clear(&mut self, target: TargetId, ranges: &mut [RangeClear], entries: usize) {
        if ranges.is_empty() {
            return;
        }
        self.ops.clear(target, ranges);
        self.tally.clear_calls += 1;
        let done = ranges.iter().filter(|r| r.cleared == Cleared::Done);
        self.tally.ranges_cleared += done.clone().count() as u64;
        self.tally.pages_cleared += done.map(|r| r.range.size() / PAGE_SIZE).sum::<u64>();
        self.spend(watch::price_of(ranges.len(), entries));
        self.allowance.prepares = self.allowance.prepares.saturating_sub(self.allowance.prepares_a_call);
    }

    /// Sweeps a target of which `pages` are present, which takes as long as `entries` pages do with its mappings. False if that
    /// cannot be done.
    pub fn sweep(&mut self, target: TargetId, kind: Sweep, pages: usize, entries: usize) -> bool {
        let done = self.ops.sweep(target, kind);
        if done {
            self.tally.sweeps += 1;
            self.tally.pages_swept += pages as u64;
            self.tally.entries_swept += entries as u64;
            let price = 1 + entries / self.allowance.swept_a_prepare.max(1);
            self.spend(price);
            self.tally.prepares_of_sweeps += price as u64;
        }
        done
    }

    fn spend(&mut self, prepares: usize) {
        self.allowance.prepares = self.allowance.prepares.saturating_sub(prepares);
        self.tally.prepares += prepares as u64;
    }
}

/// An estimator over operations `O`: decides what to look at and turns what that shows into `nr_accesses`, which every
/// sampler gives in DAMON's unit (0..=aggregation/sampling).
pub trait Sampler<O: Operations> {
    /// Of many targets the few that run, those that take most CPU time first, if it knows.
    fn busiest(&self, _found: &mut Vec<TargetId>) {}

    /// One sampling interval: look at what was prepared, prepare what comes next.
    fn sample(&mut self, step: &mut Step<'_, O>);

    /// The aggregation ends: bring every region up to date. One that does not leave regions to be adapted draws them
    /// itself, and marks those of its targets whose regions it changed.
    fn conclude(&mut self, step: &mut Step<'_, O>);

    /// Regions have changed: because a new `aggregation` begins (after merge, reset, split), or else because a regions
    /// update came in the middle of one.
    fn plan(&mut self, step: &mut Step<'_, O>, aggregation: bool);

    /// Accessed bits were cleared by others in these ranges just now, of pages that were accessed, and translations flushed.
    fn cleared(&mut self, _step: &mut Step<'_, O>, _ranges: &[(TargetId, AddrRange)]) {}

    /// Whether regions adapt by merging and blind splits, and counts begin anew with each aggregation.
    fn adapts_regions(&self) -> bool;

    /// Whether a look accounts for all sampling intervals since the last one, not just for one.
    fn spans_gaps(&self) -> bool;

    /// The next sampling interval after `now` in which it has something to do, at the latest `end`.
    fn next_due(&self, now: u64, end: u64) -> u64;

    /// The target is gone, or its address space was replaced (exec).
    fn forget(&mut self, target: TargetId);

    /// The sampling interval becomes `new` / `old` times as long, from sampling interval `now` on.
    fn rescale(&mut self, old: u64, new: u64, now: u64);
}

//! Whom to sweep, and when: memory that others map too, and what was never seen where that is cheaper at once than bit by bit. What a
//! sweep is and what it shows: [`super::clear`].

use super::tuning::Tuning;
use super::{Watch, Watched};
use crate::{BlockOperations, Step, Sweep};

/// Where schemes clear what is in use, and so show it, the rest is swept on credit while it is more than this part of that. A guess.
const SHOWN_BY_OTHERS: usize = 4;

impl Watch {
    /// Sweeps a target that was hardly seen, once its memory no longer grows, also before there is enough for it: watched all at
    /// once, it shows what is hot within the second, and from clears only once all of them were made, which takes ten times as
    /// long. The budget gets it back over the next seconds.
    pub(super) fn sweep_on_credit<O: BlockOperations>(&mut self, step: &mut Step<'_, O>) {
        let (now, tuning) = (step.now, self.tuning);
        if now < self.lent_until || self.targets.len() >= tuning.many {
            return;
        }
        let an_aggregation = step.allowance.prepares_per_aggr.max(1);
        let most = an_aggregation.saturating_mul(tuning.lent);
        let seen = |t: &Watched| t.census.watching + t.census.lit;
        // What schemes clear says nothing of the rest, of which there may be less by then.
        let hardly = |t: &Watched| t.census.unseen * (if t.told { SHOWN_BY_OTHERS } else { 1 }) > seen(t);
        let wants = |t: &Watched| {
            let price = price_of_sweep(t, Sweep::All, step);
            let whole = super::price::price_by_blocks(t, t.census.unseen);
            t.runs()
                && hardly(t)
                // Either much of what was seen is idle, or it has built its memory before anybody's eyes and nothing of it was seen yet.
                && match 16 * seen(t) > t.census.unseen {
                    true => t.told || 2 * t.census.touched < seen(t),
                    false => t.grew != 0 && now <= t.grew + 2 * tuning.appeared,
                }
                && has_settled(t, step)
                && t.entries(Sweep::All) <= tuning.longest_sweep
                && price > an_aggregation
                && price < whole.min(most)
                && t.blocks.len() <= step.checks_on_credit()
        };
        let Some(index) = self.targets.iter().position(wants) else { return };
        let Some(target) = self.targets.get_mut(index) else { return };
        let aggregations = (price_of_sweep(target, Sweep::All, step) / an_aggregation) as u64;
        self.lent_until = now + 2 * aggregations * u64::from(step.attrs.max_nr_accesses());
        if target.sweep(step, Sweep::All, true, u64::from(step.attrs.max_nr_accesses()), &tuning) {
            target.take_census(now, &tuning);
        }
    }

    /// Sets aside what sweeps may spend. If there is enough for one, it is made at any moment of the aggregation: one that comes at
    /// its end each time, every second or so, would meet a program of the same rhythm at one point, and take that for its rate.
    pub(super) fn plan_sweep<O: BlockOperations>(&mut self, step: &mut Step<'_, O>, budget: usize) {
        let most = (budget * 100).max(self.tuning.first_sweeps);
        self.sweep_credit = (self.sweep_credit + budget * self.tuning.sweep_share / 100).min(most);
        self.sweep_at = None;
        if let Some(target) = self.whom_to_sweep(step).and_then(|i| self.targets.get(i)) {
            // The first time there is no rhythm yet.
            let latest = if target.swept == 0 { 1 } else { u64::from(step.attrs.max_nr_accesses()).max(1) };
            let wait = step.rng.below(latest);
            self.sweep_at = Some(step.now + wait);
            if wait == 0 {
                self.make_sweep(step);
            }
        }
    }

    /// The target of which a sweep shows most for its price, of those there is enough for.
    fn whom_to_sweep<O: BlockOperations>(&self, step: &Step<'_, O>) -> Option<usize> {
        let (now, tuning, credit, looks) = (step.now, &self.tuning, self.sweep_credit, step.checks_left());
        let telling = |t: &Watched| t.census.shared + t.census.unseen + t.census.lit_shared;
        let kind = |t: &Watched| self.kind_of_sweep(t);
        let fits = |t: &Watched| {
            price_of_sweep(t, kind(t), step) <= credit
                && t.entries(Sweep::All) <= tuning.longest_sweep
                && t.looks_of_sweep() <= looks
        };
        let targets = self.targets.iter().enumerate().filter(|(_, t)| t.runs());
        let waited = |t: &Watched| now.saturating_sub(t.swept);
        let best = targets
            .filter(|(_, t)| telling(t) > 0 && (t.swept == 0 || waited(t) >= tuning.sweep_pause))
            // What is hot and its own shows worse for a while after a sweep.
            .filter(|(_, t)| telling(t) > t.census.lit - t.census.lit_shared)
            // Of what grows, a sweep shows what there was.
            .filter(|(_, t)| t.swept != 0 || t.census.shared > 0 || has_settled(t, step))
            // Last, as it goes through all blocks.
            .filter(|(_, t)| fits(t))
            .max_by_key(|(_, t)| {
                telling(t) as u64 * 1000 / price_of_sweep(t, kind(t), step) as u64 * waited(t).min(1 << 20)
            });
        best.map(|(i, _)| i)
    }

    /// What a sweep of a target clears. Of many, the first one leaves files out, which are half of what a small process has, and the
    /// same half of all of them: what each has for itself is seen the sooner.
    pub(super) fn kind_of_sweep(&self, target: &Watched) -> Sweep {
        let is_first = target.swept == 0 && target.census.unseen_writable > 0;
        if is_first && self.targets.len() >= self.tuning.many { Sweep::Anonymous } else { Sweep::All }
    }

    /// Makes the sweep that was planned.
    pub(super) fn make_sweep<O: BlockOperations>(&mut self, step: &mut Step<'_, O>) {
        self.sweep_at = None;
        let longest = longest(step, self.targets.len(), &self.tuning);
        let Some(index) = self.whom_to_sweep(step) else { return };
        let Some(kind) = self.targets.get(index).map(|t| self.kind_of_sweep(t)) else { return };
        let Some(target) = self.targets.get_mut(index) else { return };
        self.sweep_credit = self.sweep_credit.saturating_sub(price_of_sweep(target, kind, step));
        if target.sweep(step, kind, false, longest, &self.tuning) {
            target.take_census(step.now, &self.tuning);
        }
    }
}

/// How long windows are, in intervals, over what nothing is known of. Of many targets the aggregation's end may come late.
pub(super) fn longest<O>(step: &Step<'_, O>, targets: usize, tuning: &Tuning) -> u64 {
    let aggregation = u64::from(step.attrs.max_nr_accesses());
    if targets >= tuning.many { (aggregation * tuning.in_time / 100).max(1) } else { aggregation }
}

/// Nothing appeared in it for an aggregation.
fn has_settled<O>(target: &Watched, step: &Step<'_, O>) -> bool {
    target.grew == 0 || step.now.saturating_sub(target.grew) >= u64::from(step.attrs.max_nr_accesses())
}

/// In the unit of [`crate::Allowance::prepares`].
pub(super) fn price_of_sweep<O>(target: &Watched, kind: Sweep, step: &Step<'_, O>) -> usize {
    1 + target.entries(kind) / step.allowance.swept_a_prepare.max(1)
}

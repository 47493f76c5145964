//! DAMON's own estimator: one random page a region and sampling interval.
//!
//! In each sampling interval every region's last random page is looked at, counted into `nr_accesses` when it was
//! accessed, and a new random page is prepared (seed 001, patch 4). It costs a look and a prepare a region and
//! interval; see [`crate::Watch`] for backends on which preparing is dear.

use crate::{Check, Operations, Rng, Sampler, Seen, Step, TargetId};
use alloc::vec::Vec;

/// One random page a region and sampling interval.
#[derive(Clone, Debug, Default)]
pub struct Classic {
    /// Prepared in the last interval: one check a region, in the order of targets and regions. A
    /// [`Seen::Unchecked`] entry was cut by the allowance, a [`Seen::Blind`] one could not be prepared.
    pending: Vec<Check>,
}

impl Classic {
    /// A fresh estimator.
    pub const fn new() -> Self {
        Self { pending: Vec::new() }
    }

    fn choose<O: Operations>(&mut self, step: &mut Step<'_, O>) {
        self.pending.clear();
        for target in step.targets.iter() {
            for region in &target.regions {
                self.pending
                    .push(Check::new(target.id, random_page(region.range, step.min_region, step.rng)));
            }
        }
        // When not all may be done, a random run of them is, so that over time every region gets its turn.
        let allowed = step.allowance.prepares.min(step.attrs.max_nr_regions).min(self.pending.len());
        step.tally.prepares_cut += (self.pending.len() - allowed) as u64;
        let start = step.rng.below(self.pending.len() as u64) as usize;
        self.pending.rotate_left(start);
        if let Some(batch) = self.pending.get_mut(..allowed) {
            step.prepare(batch);
        }
        self.pending.rotate_right(start);
    }
}

/// A random `unit`-aligned address of `range`.
pub(crate) fn random_page(range: crate::AddrRange, unit: u64, rng: &mut Rng) -> u64 {
    range.start + rng.below(range.size() / unit.max(1)) * unit
}

impl<O: Operations> Sampler<O> for Classic {
    fn sample(&mut self, step: &mut Step<'_, O>) {
        // What could not be cleared shows an access of any time, which is none of this interval.
        let prepared = |c: &Check| matches!(c.seen, Seen::Idle | Seen::Absent);
        let mut due: Vec<Check> = self.pending.iter().copied().filter(prepared).collect();
        let allowed = step.checks_left().min(due.len());
        step.tally.checks_cut += (due.len() - allowed) as u64;
        due.truncate(allowed);
        step.check(&mut due);
        let mut results = due.iter();
        let regions = step.targets.iter_mut().flat_map(|t| &mut t.regions);
        for (region, check) in regions.zip(&self.pending) {
            if !prepared(check) {
                continue;
            }
            let Some(result) = results.next().filter(|r| region.range.contains(r.addr)) else { continue };
            match result.seen {
                Seen::Accessed => {
                    region.nr_accesses += 1;
                    region.nr_accesses_bp = region.nr_accesses_bp.saturating_add(10_000);
                    region.exposure += 1;
                }
                Seen::Idle | Seen::Absent => region.exposure += 1,
                Seen::Blind | Seen::Unchecked => {}
            }
        }
        self.choose(step);
    }

    fn conclude(&mut self, step: &mut Step<'_, O>) {
        let samples = step.attrs.max_nr_accesses();
        for region in step.targets.iter_mut().flat_map(|t| &mut t.regions) {
            // Of the looks an aggregation has, those that showed something.
            let seen = u64::from(region.exposure.min(samples)) * 10_000 / u64::from(samples);
            region.seen_bp = seen as u16;
        }
    }

    fn plan(&mut self, step: &mut Step<'_, O>, _aggregation: bool) {
        // Regions changed under the pending checks.
        self.choose(step);
    }

    fn adapts_regions(&self) -> bool {
        true
    }

    fn spans_gaps(&self) -> bool {
        false
    }

    fn next_due(&self, now: u64, _end: u64) -> u64 {
        now + 1
    }

    fn forget(&mut self, target: TargetId) {
        self.pending.retain(|c| c.target != target);
    }

    fn rescale(&mut self, _old: u64, _new: u64, _now: u64) {}
}

//! An estimator for backends on which looking is cheap and preparing is dear.
//!
//! Reading an Accessed bit from outside costs a fraction of a microsecond and nobody notices. Clearing one costs the
//! target a TLB shoot-down. DAMON's own estimator clears a page a region and sampling interval, 200 times a second;
//! this one gets the same numbers from far fewer clears, because of what a cleared bit is: a sticky trap.
//!
//! # Probes
//! A *probe* is a page that was cleared once and is looked at again and again. A page that stays idle needs no second
//! clear, however long it is watched: cold memory costs looks only, so it can be covered densely, many probes a
//! region. The number of probes is bounded by `max_nr_regions`, and so is the number of looks in a sampling interval.
//!
//! # From looks to nr_accesses
//! A probe watched over `n` sampling intervals and found accessed in `s` of them says `s / n`: DAMON's own meaning of
//! `nr_accesses / max`. To keep it unbiased whatever the access pattern, when a probe is watched must not depend on
//! what it shows. So a *run* has a length fixed beforehand; within it the page is cleared again whenever it was
//! accessed. Pages expected to be hot get short runs (a clear for every interval), in turn ([`choose`]); pages expected
//! to be cold are watched without end (a clear only for every access, so rates far below one access an aggregation are
//! counted too). When an access is found after several intervals without a look, it may have been any of them
//! ([`count`]).
//!
//! Probes stay where they are and remember what they showed, the more of it the fewer intervals a page can be watched;
//! a page that contradicts what it showed before starts anew, and so does a region of which most pages tried do
//! ([`estimate`]).
//!
//! # Borders
//! Blind splitting is exploration: DAMON learns where a border is by drawing one and seeing whether it survives. With
//! many probes a region the border can be read off: [`segment`] finds the most likely division of the address space
//! into stretches of equal rate, at a price for every border that keeps noise out; [`refine`] then closes in on each
//! border by bisection, down to a page, within a few sampling intervals.
//!
//! # What a budget cuts
//! Looks and clears are handed out in the order: runs under way, planned checks of accessed memory, borders being closed
//! in on, new probes in cold memory; the last two only from what is saved up. What does not fit is counted in
//! [`crate::Tally`].

mod choose;
mod count;
mod estimate;
mod place;
mod probe;
mod refine;
mod segment;

use crate::{Check, Operations, Region, Sampler, Step, TargetId};
use alloc::vec::Vec;
use probe::{Probe, State};
use refine::Refine;

/// The estimator; see the module's essay.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    targets: Vec<Watched>,
    /// Which target is served first; moves on so that a tight budget starves nobody.
    first: usize,
}

/// What is known of one target.
#[derive(Clone, Debug, Default)]
struct Watched {
    id: TargetId,
    /// Sorted by address.
    probes: Vec<Probe>,
    /// Planned checks of hot memory: when (sampling interval) and which probe, in that order.
    checks: Vec<(u64, u32)>,
    /// New probes in cold memory that wait to be cleared for the first time.
    seeds: Vec<u32>,
    /// Borders being closed in on.
    refines: Vec<Refine>,
    /// Borders the evidence demands, sorted.
    borders: Vec<u64>,
}

/// Prepares that borders and new probes leave for checks, in aggregations' worth.
const RESERVED: usize = 2;
/// ... and at most so many.
const MOST_RESERVED: usize = 400;

/// Which probe a check belongs to.
#[derive(Clone, Copy)]
enum Of {
    Probe(usize),
    Refine(usize, usize),
}

impl Watch {
    /// A fresh estimator.
    pub const fn new() -> Self {
        Self { targets: Vec::new(), first: 0 }
    }
}

impl Watched {
    /// Adds probes; what is planned refers to probes by index and is carried over.
    fn insert(&mut self, mut new: Vec<Probe>) {
        let addr_of = |probes: &[Probe], i: u32| probes.get(i as usize).map_or(0, |p| p.addr);
        let checks: Vec<(u64, u64)> =
            self.checks.iter().map(|&(at, i)| (at, addr_of(&self.probes, i))).collect();
        let seeds: Vec<u64> = self.seeds.iter().map(|&i| addr_of(&self.probes, i)).collect();
        self.probes.append(&mut new);
        self.probes.sort_by_key(|p| p.addr);
        self.probes.dedup_by_key(|p| p.addr);
        let find = |addr: u64| self.probes.partition_point(|p| p.addr < addr) as u32;
        self.checks = checks.into_iter().map(|(at, addr)| (at, find(addr))).collect();
        self.seeds = seeds.into_iter().map(find).collect();
    }

    fn probe_mut(&mut self, of: Of) -> Option<&mut Probe> {
        match of {
            Of::Probe(index) => self.probes.get_mut(index),
            Of::Refine(index, slot) => self.refines.get_mut(index)?.probes.get_mut(slot),
        }
    }

    /// Probes to look at in this interval, the most telling first. The idle ones outside runs wait for the
    /// aggregation's end.
    fn due(&mut self, now: u64, list: &mut Vec<Of>) {
        let due = |p: &Probe| p.state == State::Watching && p.due_at(now).is_some_and(|at| at <= now);
        for (index, refine) in self.refines.iter().enumerate() {
            let watching = refine.probes.iter().enumerate().filter(|(_, p)| due(p));
            list.extend(watching.map(|(slot, _)| Of::Refine(index, slot)));
        }
        list.extend(self.probes.iter().enumerate().filter(|(_, p)| due(p)).map(|(i, _)| Of::Probe(i)));
    }

    /// The next interval in which something is due, at the latest `end`. Waking up costs tens of microseconds on a
    /// virtual machine, more than a hundred looks.
    fn next_due(&self, now: u64, end: u64) -> u64 {
        // What waits for a clear that was not allowed waits on until there is another reason to wake up.
        let refines = self.refines.iter().flat_map(|r| &r.probes);
        let runs =
            refines.chain(&self.probes).filter(|p| p.state == State::Watching).filter_map(|p| p.due_at(now));
        let queued = self.checks.iter().map(|(at, _)| *at).find(|at| *at > now);
        runs.chain(queued).min().unwrap_or(end).clamp(now + 1, end.max(now + 1))
    }

    /// Looks at `list`, as far as the step allows.
    fn look<O: Operations>(&mut self, step: &mut Step<'_, O>, list: &mut Vec<Of>) {
        let allowed = step.checks_left().min(list.len());
        step.tally.checks_cut += (list.len() - allowed) as u64;
        list.truncate(allowed);
        let mut checks: Vec<Check> = Vec::with_capacity(list.len());
        for of in list.iter() {
            checks.push(Check::new(self.id, self.probe_mut(*of).map_or(0, |p| p.addr)));
        }
        step.check(&mut checks);
        for (of, check) in list.iter().zip(&checks) {
            if let Some(probe) = self.probe_mut(*of) {
                probe.looked(check, step.now);
            }
        }
    }

    /// Clears what wants clearing, as far as the step allows.
    fn clear<O: Operations>(&mut self, step: &mut Step<'_, O>) {
        let now = step.now;
        let mut list: Vec<Of> = Vec::new();
        let again =
            self.probes.iter().enumerate().filter(|(_, p)| p.state == State::Lit && p.in_run(now + 1));
        list.extend(again.map(|(index, _)| Of::Probe(index)));
        let ready = self.checks.partition_point(|(at, _)| *at <= now);
        let before = list.len();
        let due = before + ready;
        let allowed = step.allowance.prepares.min(due);
        step.tally.prepares_cut += (due - allowed) as u64;
        // Checks that are not allowed now wait.
        list.extend(self.checks.drain(..allowed.saturating_sub(before)).map(|(_, i)| Of::Probe(i as usize)));
        list.truncate(allowed);
        // Borders and new probes can wait, so what checks will need stays in reserve.
        let reserve = step.allowance.prepares_per_aggr.min(MOST_RESERVED / RESERVED) * RESERVED;
        let mut spare = step.allowance.prepares.saturating_sub(due).saturating_sub(reserve);
        for (index, refine) in self.refines.iter().enumerate() {
            let wanting = refine.probes.iter().enumerate().filter(|(_, p)| refine.wants_clear(p));
            let before = list.len();
            list.extend(wanting.map(|(slot, _)| Of::Refine(index, slot)).take(spare));
            spare -= list.len() - before;
        }
        let seeds = spare.min(self.seeds.len());
        list.extend(self.seeds.drain(..seeds).map(|i| Of::Probe(i as usize)));
        let mut checks: Vec<Check> = Vec::with_capacity(list.len());
        for of in &list {
            checks.push(Check::new(self.id, self.probe_mut(*of).map_or(0, |p| p.addr)));
        }
        step.prepare(&mut checks);
        for (of, check) in list.iter().zip(&checks) {
            if let Some(probe) = self.probe_mut(*of) {
                probe.prepared(check, now);
            }
        }
    }
}

impl Sampler for Watch {
    fn sample<O: Operations>(&mut self, step: &mut Step<'_, O>) {
        let nr_targets = self.targets.len().max(1);
        self.first = (self.first + 1) % nr_targets;
        let mut list = Vec::new();
        for index in 0..nr_targets {
            let Some(target) = self.targets.get_mut((self.first + index) % nr_targets) else { continue };
            list.clear();
            target.due(step.now, &mut list);
            target.look(step, &mut list);
            if let Some(t) = step.targets.iter_mut().find(|t| t.id == target.id) {
                refine::advance(target, t, step.min_region);
            }
            target.clear(step);
        }
    }

    fn conclude<O: Operations>(&mut self, step: &mut Step<'_, O>) {
        let now = step.now;
        let nr_targets = self.targets.len().max(1);
        let mut list = Vec::new();
        for index in 0..nr_targets {
            let Some(target) = self.targets.get_mut((self.first + index) % nr_targets) else { continue };
            list.clear();
            let stale = target.probes.iter().enumerate().filter(|(_, p)| p.is_watching(now));
            list.extend(stale.map(|(i, _)| Of::Probe(i)));
            // When not all can be looked at, begin where the last sweep had to stop.
            if list.len() > step.checks_left() {
                let at = list.len().min(step.rng.below(list.len() as u64) as usize);
                list.rotate_left(at);
            }
            target.look(step, &mut list);
            if let Some(t) = step.targets.iter_mut().find(|t| t.id == target.id) {
                estimate::conclude(target, t, step.attrs, step.min_region, now);
            }
        }
    }

    fn plan<O: Operations>(&mut self, step: &mut Step<'_, O>, aggregation: bool) {
        // Probes know addresses, not regions: an update of regions in between changes nothing for them.
        if !aggregation {
            return;
        }
        let known: Vec<TargetId> = step.targets.iter().map(|t| t.id).collect();
        self.targets.retain(|t| known.contains(&t.id));
        for id in &known {
            if !self.targets.iter().any(|t| t.id == *id) {
                self.targets.push(Watched { id: *id, ..Watched::default() });
            }
        }
        place::plan(&mut self.targets, step);
        // While awake: what the sweep found accessed, and new probes.
        for target in &mut self.targets {
            target.clear(step);
        }
    }

    fn keeps_apart(&self, target: TargetId, left: &Region, right: &Region) -> bool {
        let border = right.range.start;
        estimate::differ(left, right)
            || self.targets.iter().any(|t| t.id == target && t.borders.binary_search(&border).is_ok())
    }

    fn finds_borders(&self) -> bool {
        true
    }

    fn spans_gaps(&self) -> bool {
        true
    }

    fn next_due(&self, now: u64, end: u64) -> u64 {
        self.targets.iter().map(|t| t.next_due(now, end)).min().unwrap_or(end).max(now + 1)
    }

    fn forget(&mut self, target: TargetId) {
        self.targets.retain(|t| t.id != target);
    }
}

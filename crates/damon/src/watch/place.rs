//! Where to probe in the coming aggregation.
//!
//! Probes lie at even spacing, each in a random place of its stretch, and stay, so that what each showed adds up. Cold
//! ones are watched without end; of hot memory's a few are checked, those first whose turn was longest ago. Some move
//! elsewhere now and then, so that in time every page is seen.

use super::Watched;
use super::choose::{self, Candidate};
use super::estimate::rate;
use super::probe::{Probe, State, look_period};
use crate::{AddrRange, Operations, Region, Step, Target};
use alloc::vec::Vec;

/// Access probability an interval above which a region is checked by runs instead of being watched without end.
const ACTIVE: f32 = 0.02;
/// Probes of a hot region: so many times what can be checked of it in an aggregation, and at most so many.
const ROUNDS: usize = 8;
const MOST: usize = 48;
/// Length of a check's run, in mean times between accesses.
const RUN: f32 = 1.5;
/// One in so many checks of hot memory is of a page not seen before.
const EXPLORED: u64 = 6;
/// Share of `max_nr_regions` that may be probes; the rest is room for closing in on borders.
const PROBE_SHARE: (usize, usize) = (7, 8);
/// Share of the prepares that goes into moving cold probes to other places, so that in time every page is seen.
const MOVED: usize = 8;
/// Prepares that are saved for a change of pattern, in aggregations' worth; what exceeds them goes into seeing more.
const SAVED: usize = 8;
/// Most cold probes that move in an aggregation.
const MOST_MOVED: usize = 20;

/// Prepares that no plan exceeds.
const ENOUGH: usize = 4000;

/// Plans the next aggregation for all targets.
pub(super) fn plan<O: Operations>(all: &mut [Watched], step: &mut Step<'_, O>) {
    // Without a ceiling, there is still no use in more than this.
    let allowance = crate::Allowance {
        prepares: step.allowance.prepares.min(ENOUGH),
        prepares_per_aggr: step.allowance.prepares_per_aggr.min(ENOUGH / 10),
        ..step.allowance
    };
    // A sweep at the aggregation's end must fit beside runs and refinement.
    let room =
        (step.attrs.max_nr_regions * PROBE_SHARE.0 / PROBE_SHARE.1).min(allowance.checks_per_aggr / 2).max(8);
    let total: u64 = step.targets.iter().map(Target::size).sum();
    let active: usize = step.targets.iter().flat_map(|t| &t.regions).filter(|r| rate(r) > ACTIVE).count();
    let nr_targets = step.targets.len().max(1);
    let samples = u64::from(step.attrs.max_nr_accesses());
    let affordable = allowance.prepares_per_aggr.min(allowance.prepares + allowance.prepares_per_aggr / 2);
    // A check costs its first clear, and about one more during its run.
    let checked = (affordable / 2).max(1);
    // What quiet times have saved up beyond so many aggregations' worth.
    let beyond =
        |aggregations: usize| allowance.prepares.saturating_sub(allowance.prepares_per_aggr * aggregations);
    let spare = beyond(SAVED) / 4;
    for target in step.targets.iter() {
        let Some(watched) = all.iter_mut().find(|w| w.id == target.id) else { continue };
        // Half the room in equal parts, half by size: a small process beside a big one is still seen.
        let by_size = (room as u128 / 2 * u128::from(target.size()) / u128::from(total.max(1))) as usize;
        let share = (room / 2 / nr_targets + by_size).max(4);
        let cluster = step.rng.below(samples);
        let mut planner = Planner {
            min_region: step.min_region,
            rng: step.rng,
            now: step.now,
            samples,
            checked,
            saved: beyond(1) / 3 / nr_targets,
            active,
            least: (checked / nr_targets / 2).max(1),
            share,
            cluster,
            verified: (allowance.prepares / 8 / active.max(1)).clamp(4, 64),
            moved: (affordable / MOVED).max(spare).div_ceil(nr_targets).min(MOST_MOVED),
        };
        planner.plan(watched, target);
    }
}

/// What is to be cleared in the coming aggregation, by address.
#[derive(Default)]
struct Planned {
    /// Checks of hot memory, with the interval they begin in.
    checks: Vec<(u64, u64)>,
    /// New probes in cold memory.
    seeds: Vec<u64>,
}

struct Planner<'a> {
    min_region: u64,
    rng: &'a mut crate::Rng,
    now: u64,
    /// Samples an aggregation.
    samples: u64,
    /// Checks of accessed memory that can be afforded.
    checked: usize,
    /// Checks that savings can pay for on top.
    saved: usize,
    /// Hot regions, over all targets.
    active: usize,
    /// Checks that a target gets whether or not it has hot regions.
    least: usize,
    /// Probes the target may have.
    share: usize,
    /// When the short runs of this aggregation begin, a random moment: waking up once for all of them is cheaper than
    /// spreading them.
    cluster: u64,
    /// Probes just found accessed that are kept under observation, a region.
    verified: usize,
    /// Cold probes to move elsewhere.
    moved: usize,
}

impl Planner<'_> {
    fn plan(&mut self, watched: &mut Watched, target: &Target) {
        let old = core::mem::take(&mut watched.probes);
        let cold_bytes: u64 =
            target.regions.iter().filter(|r| rate(r) <= ACTIVE).map(|r| r.range.size()).sum();
        let hot = target.regions.iter().filter(|r| rate(r) > ACTIVE).count();
        // Every region gets two; what remains is spread over cold memory.
        let checked = (self.checked * hot).div_ceil(self.active.max(1)).max(self.least);
        let most = (checked * ROUNDS / hot.max(1)).clamp(4, MOST);
        let reserved = hot * most.min(8) + 2 * (target.regions.len() - hot);
        let spread = self.share.saturating_sub(reserved).max(1) as u64;
        let spacing = (cold_bytes / spread).max(self.min_region);
        let mut old = old.into_iter().peekable();
        let mut probes: Vec<Probe> = Vec::with_capacity(self.share + 8);
        let mut planned = Planned::default();
        let mut candidates: Vec<Candidate> = Vec::new();
        for region in &target.regions {
            while old.next_if(|p| p.addr < region.range.start).is_some() {}
            let mut mine: Vec<Probe> = Vec::new();
            while let Some(probe) = old.next_if(|p| p.addr < region.range.end) {
                mine.push(probe);
            }
            one_a_unit(&mut mine);
            if rate(region) > ACTIVE {
                self.watch_hot(region, &mut mine, spacing.max(region.range.size() / most as u64));
                choose::of_hot(region, &mine, self.rng, &mut candidates);
            } else {
                self.watch_cold(region, &mut mine, spacing, &mut planned, &mut candidates);
            }
            mine.sort_by_key(|p| p.addr);
            mine.dedup_by_key(|p| p.addr);
            probes.append(&mut mine);
        }
        self.check(&mut probes, candidates, checked, spacing, &mut planned);
        self.move_some(&mut probes, &mut planned);
        thin_out(&mut probes, self.share + self.share / 16);
        let find = |addr: u64| {
            let index = probes.partition_point(|p| p.addr < addr);
            probes.get(index).filter(|p| p.addr == addr).map(|_| index as u32)
        };
        planned.checks.sort_unstable();
        // In random order: when not all can be cleared soon, those that can are spread over all of memory.
        for index in (1..planned.seeds.len()).rev() {
            planned.seeds.swap(index, self.rng.below(index as u64 + 1) as usize);
        }
        watched.checks = planned.checks.iter().filter_map(|&(at, addr)| Some((at, find(addr)?))).collect();
        watched.seeds = planned.seeds.iter().filter_map(|addr| find(*addr)).collect();
        watched.probes = probes;
    }

    /// Probes at even spacing, of which a few are checked.
    fn watch_hot(&mut self, region: &Region, mine: &mut Vec<Probe>, spacing: u64) {
        // What has just turned out accessed is looked into while it is fresh: with dense probes it shows whether all of
        // the region is hot or parts of it are. Of many, some will do.
        let fresh = |p: &Probe| p.state == State::Lit && p.in_run(self.now + 1);
        let stride = mine.iter().filter(|p| fresh(p)).count().div_ceil(self.verified).max(1);
        let mut count = 0;
        for probe in mine.iter_mut() {
            count += usize::from(fresh(probe));
            if !probe.in_run(self.now + 1) || fresh(probe) && count % stride != 0 {
                probe.run_end = 0;
            }
        }
        let mut added = self.fill(region, mine, spacing);
        mine.append(&mut added);
    }

    /// Plans the checks of accessed memory.
    fn check(
        &mut self,
        probes: &mut Vec<Probe>,
        candidates: Vec<Candidate>,
        most: usize,
        spacing: u64,
        planned: &mut Planned,
    ) {
        let chosen = choose::choose(candidates, most, self.saved);
        let indices: Vec<usize> =
            chosen.iter().map(|c| probes.partition_point(|p| p.addr < c.addr)).collect();
        for (candidate, index) in chosen.iter().zip(indices) {
            let Some(probe) = probes.get_mut(index) else { continue };
            if candidate.known && self.rng.below(EXPLORED) == 0 {
                self.move_near(probe, candidate.region, spacing);
            }
            probe.run_length = ((RUN / candidate.rate) as u32).clamp(1, self.samples as u32);
            probe.period = look_period(candidate.rate);
            probe.chosen = self.now;
            let latest = self.samples.saturating_sub(u64::from(probe.run_length)).saturating_sub(1);
            planned.checks.push((self.now + self.cluster.min(latest), probe.addr));
        }
        probes.sort_by_key(|p| p.addr);
        probes.dedup_by_key(|p| p.addr);
    }

    /// Takes another page near by instead.
    fn move_near(&mut self, probe: &mut Probe, region: AddrRange, spacing: u64) {
        let near = AddrRange::new(
            probe.addr.saturating_sub(spacing / 2).max(region.start).next_multiple_of(self.min_region),
            probe.addr.saturating_add(spacing / 2).min(region.end),
        );
        if near.size() < 2 * self.min_region {
            return;
        }
        let addr = crate::classic::random_page(near, self.min_region, self.rng);
        if addr != probe.addr {
            *probe = Probe::new(addr, self.min_region);
        }
    }

    /// Probes at even spacing; those already there stay.
    fn watch_cold(
        &mut self,
        region: &Region,
        mine: &mut Vec<Probe>,
        spacing: u64,
        planned: &mut Planned,
        candidates: &mut Vec<Candidate>,
    ) {
        for probe in mine.iter_mut() {
            probe.run_length = 0;
            if probe.run_end <= self.now {
                probe.run_end = 0;
            }
            probe.counting = probe.state == State::Watching;
            match probe.state {
                State::Unknown => planned.seeds.push(probe.addr),
                State::Lit => candidates.push(Candidate::of_cold(region, probe, self.rng)),
                State::Watching | State::Blind => {}
            }
        }
        let mut added = self.fill(region, mine, spacing);
        planned.seeds.extend(added.iter().map(|p| p.addr));
        mine.append(&mut added);
    }

    /// New probes for the gaps of a region.
    fn fill(&mut self, region: &Region, mine: &[Probe], spacing: u64) -> Vec<Probe> {
        let pages = region.range.size() / self.min_region;
        // At least two a region, where it has two pages.
        let spacing = spacing.min((pages / 2).max(1) * self.min_region);
        let mut at = region.range.start;
        // How much of the spacing lies on the near side of the gap: at the region's edge half of it, beside a probe
        // half of what the probe stands for.
        let mut before = spacing / 2;
        let mut added: Vec<Probe> = Vec::new();
        let edge = AddrRange::new(region.range.end, region.range.end);
        for unit in mine.iter().map(|p| p.unit).chain([edge]) {
            let after = if unit.is_empty() { spacing / 2 } else { unit.size() / 2 };
            let gap = unit.start.saturating_sub(at);
            let count =
                ((before + gap + after + spacing / 2) / spacing).saturating_sub(1).min(gap / self.min_region);
            before = after;
            for index in 0..count {
                let pages = gap / self.min_region;
                let stratum = AddrRange::new(
                    at + pages * index / count * self.min_region,
                    at + pages * (index + 1) / count * self.min_region,
                );
                // Not too near the stratum's ends, so that no gap is much wider than the spacing.
                let quarter = stratum.size() / 4 / self.min_region * self.min_region;
                let middle = AddrRange::new(stratum.start + quarter, stratum.end - quarter);
                let addr = crate::classic::random_page(middle, self.min_region, self.rng);
                added.push(Probe::new(addr, self.min_region));
            }
            at = at.max(unit.end);
        }
        added
    }

    /// Moves a few cold probes to other pages near by.
    fn move_some(&mut self, probes: &mut [Probe], planned: &mut Planned) {
        for _ in 0..self.moved {
            let index = self.rng.below(probes.len() as u64) as usize;
            let before = index.checked_sub(1).and_then(|i| probes.get(i)).map(|p| p.addr);
            let after = probes.get(index + 1).map(|p| p.addr);
            let (Some(before), Some(after), Some(probe)) = (before, after, probes.get_mut(index)) else {
                continue;
            };
            let span = AddrRange::new(probe.addr.midpoint(before), probe.addr.midpoint(after));
            // Neighbours far away lie in another area: what is between may not be mapped at all.
            if probe.state != State::Watching || !probe.counting || span.size() > (1 << 30) {
                continue;
            }
            let start = span.start.next_multiple_of(self.min_region);
            let span = AddrRange::new(start, span.end);
            if span.size() < 4 * self.min_region {
                continue;
            }
            *probe =
                Probe::new(crate::classic::random_page(span, self.min_region, self.rng), self.min_region);
            planned.seeds.push(probe.addr);
        }
    }
}

/// Two probes in one huge page would show the same bit.
fn one_a_unit(probes: &mut Vec<Probe>) {
    probes.dedup_by(|right, left| {
        let same = right.unit.intersects(left.unit);
        if same && right.state == State::Watching && left.state != State::Watching {
            core::mem::swap(right, left);
        }
        same
    });
}

/// Gets rid of the probes nearest to their neighbours until `max` are left.
fn thin_out(probes: &mut Vec<Probe>, max: usize) {
    let Some(excess) = probes.len().checked_sub(max).filter(|e| *e > 0) else { return };
    let mut gaps: Vec<(u64, u64)> =
        probes.windows(2).map(|p| (p[1].addr.saturating_sub(p[0].addr), p[1].addr)).collect();
    gaps.sort_unstable();
    let mut drop: Vec<u64> = gaps.into_iter().take(excess).map(|(_, addr)| addr).collect();
    drop.sort_unstable();
    probes.retain(|p| drop.binary_search(&p.addr).is_err());
}

//! Where to probe in the coming aggregation.
//!
//! Cold memory gets probes at even spacing, each in a random place of its stretch, and they stay. Hot memory gets a
//! few checks of random pages, anew each time, like DAMON's own.

use super::Watched;
use super::estimate::rate;
use super::probe::{Probe, State, look_period};
use crate::{AddrRange, Operations, Region, Step, Target};
use alloc::vec::Vec;

/// Access probability an interval above which a region is checked by runs instead of being watched without end.
const ACTIVE: f32 = 0.02;
/// Intervals between looks at lukewarm memory.
const LUKEWARM_PERIOD: u32 = 8;
/// Access probability an interval from which on single accesses in a region are nothing unusual.
const LUKEWARM: f32 = 0.002;
/// Share of `max_nr_regions` that may be probes; the rest is room for closing in on borders.
const PROBE_SHARE: (usize, usize) = (7, 8);
/// Share of the prepares that goes into moving cold probes to other places, so that in time every page is seen.
const MOVED: usize = 8;

/// Plans the next aggregation for all targets.
pub(super) fn plan<O: Operations>(all: &mut [Watched], step: &mut Step<'_, O>) {
    let allowance = step.allowance;
    // A sweep at the aggregation's end must fit beside runs and refinement.
    let room =
        (step.attrs.max_nr_regions * PROBE_SHARE.0 / PROBE_SHARE.1).min(allowance.checks_per_aggr / 2).max(8);
    let total: u64 = step.targets.iter().map(Target::size).sum();
    let active: usize = step.targets.iter().flat_map(|t| &t.regions).filter(|r| rate(r) > ACTIVE).count();
    let lukewarm = step
        .targets
        .iter()
        .flat_map(|t| &t.regions)
        .filter(|r| (LUKEWARM..=ACTIVE).contains(&rate(r)))
        .count();
    let nr_targets = step.targets.len().max(1);
    let samples = u64::from(step.attrs.max_nr_accesses());
    // A run costs its first clear and, with the length chosen in check_hot, two more on average.
    let affordable =
        allowance.prepares_per_aggr.min(allowance.prepares.saturating_add(allowance.prepares_per_aggr / 2));
    let fresh = (affordable / 4 / active.max(1)).clamp(1, 8);
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
            fresh,
            share,
            cluster,
            verified: (allowance.prepares / 8 / active.max(1)).clamp(4, 64),
            lukewarm: (affordable / 3 / lukewarm.max(1)).max(4),
            moved: (affordable / MOVED / nr_targets).min(16),
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
    /// Checks a hot region gets.
    fresh: usize,
    /// Probes the target may have.
    share: usize,
    /// When the short runs of this aggregation begin, a random moment: waking up once for all of them is cheaper than
    /// spreading them.
    cluster: u64,
    /// Probes just found accessed that are kept under observation, a region.
    verified: usize,
    /// Clears a lukewarm region may cost.
    lukewarm: usize,
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
        let reserved = hot * (self.fresh + 1) + 2 * (target.regions.len() - hot);
        let spread = self.share.saturating_sub(reserved).max(1) as u64;
        let spacing = (cold_bytes / spread).max(self.min_region);
        let mut old = old.into_iter().peekable();
        let mut probes: Vec<Probe> = Vec::with_capacity(self.share + 8);
        let mut planned = Planned::default();
        for region in &target.regions {
            while old.next_if(|p| p.addr < region.range.start).is_some() {}
            let mut mine: Vec<Probe> = Vec::new();
            while let Some(probe) = old.next_if(|p| p.addr < region.range.end) {
                mine.push(probe);
            }
            one_a_unit(&mut mine);
            if rate(region) > ACTIVE {
                self.check_hot(region, &mut mine, &mut planned);
            } else if rate(region) > LUKEWARM {
                self.watch_lukewarm(region, &mut mine, &mut planned);
            } else {
                self.watch_cold(region, &mut mine, spacing, &mut planned);
            }
            mine.sort_by_key(|p| p.addr);
            mine.dedup_by_key(|p| p.addr);
            probes.append(&mut mine);
        }
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

    /// A few random pages of a hot region, one a stratum.
    fn check_hot(&mut self, region: &Region, mine: &mut Vec<Probe>, planned: &mut Planned) {
        let rate = rate(region);
        // What has just turned out accessed is looked into while it is fresh: with dense probes it shows whether all of
        // the region is hot or parts of it are. Of many, some will do.
        let fresh = |p: &Probe| p.state == State::Lit && p.in_run(self.now + 1);
        let stride = mine.iter().filter(|p| fresh(p)).count().div_ceil(self.verified).max(1);
        let mut count = 0;
        // Idle pages in hot memory are traps for free; lit ones say nothing any more.
        mine.retain(|p| {
            count += usize::from(fresh(p));
            p.state == State::Watching || p.state == State::Blind || (fresh(p) && count % stride == 0)
        });
        for probe in mine.iter_mut().filter(|p| !p.in_run(self.now + 1)) {
            probe.counting = false;
            probe.run_end = 0;
        }
        let pages = region.range.size() / self.min_region;
        let count = (self.fresh as u64).min(pages);
        for index in 0..count {
            let stratum = AddrRange::new(
                region.range.start + pages * index / count * self.min_region,
                region.range.start + pages * (index + 1) / count * self.min_region,
            );
            // The outermost pages now and then: they are the first to tell that a border moved inwards.
            let addr = match self.rng.below(6) {
                0 if index == 0 => stratum.start,
                0 if index + 1 == count => stratum.end - self.min_region,
                _ => crate::classic::random_page(stratum, self.min_region, self.rng),
            };
            let mut probe = Probe::new(addr, self.min_region);
            // Twice the mean time between accesses; where that is one interval, a single look says it all.
            let length = if rate > 0.95 { 1 } else { (2.0 / rate) as u32 };
            probe.run_length = length.clamp(1, self.samples as u32);
            probe.period = look_period(rate);
            let latest = self.samples.saturating_sub(u64::from(probe.run_length)).saturating_sub(1);
            let at = self.now + self.cluster.min(latest);
            mine.retain(|p| p.addr != addr);
            mine.push(probe);
            planned.checks.push((at, addr));
        }
    }

    /// Probes at even spacing; those already there stay.
    fn watch_cold(&mut self, region: &Region, mine: &mut Vec<Probe>, spacing: u64, planned: &mut Planned) {
        for probe in mine.iter_mut() {
            probe.run_length = 0;
            if probe.run_end <= self.now {
                probe.run_end = 0;
            }
            probe.counting = probe.state == State::Watching;
            if matches!(probe.state, State::Unknown | State::Lit) {
                planned.seeds.push(probe.addr);
            }
        }
        let mut added = self.fill(region, mine, spacing);
        planned.seeds.extend(added.iter().map(|p| p.addr));
        mine.append(&mut added);
    }

    /// Memory in which single accesses are nothing unusual: probes stay, are looked at a few times an aggregation, and
    /// those accessed are cleared again, as many of them as can be afforded.
    fn watch_lukewarm(&mut self, region: &Region, mine: &mut Vec<Probe>, planned: &mut Planned) {
        let accesses = rate(region) * self.samples as f32;
        let wanted = ((self.lukewarm as f32 / accesses) as u64).clamp(6, self.share.max(6) as u64);
        // A mean rate this low may also be a hot spot in cold memory: what has just been found accessed is looked into
        // while that is news, and now and then later.
        let look_into = region.age < 3 || self.rng.below(4) == 0;
        let fresh = |p: &Probe| look_into && p.state == State::Lit && p.in_run(self.now + 1);
        let lit = |p: &Probe| matches!(p.state, State::Unknown | State::Lit) && !fresh(p);
        let stride = (mine.iter().filter(|p| lit(p)).count() as u64).div_ceil(wanted).max(1);
        let mut count = 0;
        mine.retain(|p| {
            count += u64::from(lit(p));
            !lit(p) || count % stride == 0
        });
        if (mine.len() as u64) < wanted {
            let spacing = (region.range.size() / wanted).max(self.min_region);
            let mut added = self.fill(region, mine, spacing);
            mine.append(&mut added);
        }
        for probe in
            mine.iter_mut().filter(|p| !(look_into && p.state == State::Lit && p.in_run(self.now + 1)))
        {
            probe.run_length = 0;
            probe.period = LUKEWARM_PERIOD;
            probe.run_end = self.now + self.samples;
            probe.counting = probe.state == State::Watching;
            if matches!(probe.state, State::Unknown | State::Lit) {
                planned.checks.push((self.now, probe.addr));
            }
        }
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

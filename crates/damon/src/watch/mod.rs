//! An estimator for address spaces whose page tables can be read, and on which clearing is dear.
//!
//! Reading Accessed bits from outside costs about a nanosecond a page when a whole page table is read at once, and nobody
//! notices. Clearing them costs the target a TLB shoot-down a range. DAMON's own estimator clears a page a region and
//! sampling interval, 200 times a second; this one gets the same numbers from far fewer clears.
//!
//! # What is known
//! The pages of a target are taken 64 at a time, as *cells*. A cell that was cleared is watched until it shows accesses;
//! idle memory is watched without ever being cleared again, so it can all be watched, and an access shows where it is to
//! the page. Pages that were accessed show nothing more until they are cleared again; the others of their cell go on being
//! watched. What was not there and is there now was accessed, and needs no clear: where memory appears, it is looked at often.
//! Where always the same pages of a cell are accessed, those alone are its evidence ([`focus`]).
//! How looks become a rate: [`cell`] and [`evidence`].
//!
//! # What is drawn
//! Cells of one rate that lie beside each other are *stretches*, found by the most likely division of the address space
//! ([`segment`]), in which a cell whose pages are accessed each for itself has more weight ([`shown`]); the border is where the
//! cells' pages say it is ([`draw`]), and what is hot may be less than a cell. What appeared counts as accessed for a second and is
//! unknown from then on, until it was cleared. What was not looked at yet is unknown too: a survey tells where page tables are, not what
//! is in them. Regions are stretches, cut where they are larger than the monitor allows. Nothing is drawn anew of a target that
//! showed nothing new, and seldom where rates only shift a little.
//!
//! # What is cleared
//! Every aggregation ([`plan`]): *checks* ([`checks`]) of what is hot, a few pages of each stretch by turns, so that none is believed hot
//! for long when it is not any more; of several targets all those of one go first, as each takes a call of its own. What a check shows is taken to be so of its whole stretch, but for silence: a stretch of which more
//! than a few times what was checked fell silent is unknown until it is seen, since a tenth of it may be in use, and idle memory is
//! what schemes take away. When checks disagree with
//! what was believed, all of the stretch is to be observed anew; when those of one part of it disagree with those of another, it
//! falls apart ([`places`]). Neighbours that were told apart stay two for a while, also when their rates come near each other. What remains goes into memory that was never cleared, or not since it was hot, evenly spread, that
//! which is writable and so not shared since a fork first, until all is watched, and then by turns into what was accessed once
//! and not heard of since. As long as most of many targets wait to be seen, these come before nearly all else. All of that is
//! cleared in one call for each target. Memory that other processes map is not cleared by the page but
//! by *sweeps*, for which a share is set aside, at a random moment of an aggregation, as checks are. A target that was hardly
//! seen, and was idle where it was, is swept once on credit, so that all of it is watched within a second.
//!
//! # When
//! Looks and clears share wake-ups, which cost as much as a hundred looks: one for the checks, at a random moment of the
//! aggregation lest a program of the same rhythm be met at the same point each time; then after 1, 2, 4, 8 ... intervals as
//! windows end; and one at the aggregation's end, when as much of all that is watched is looked at as may be, by turns.
//! Of most blocks a look tells nothing new: all that is there is watched and was idle for long, and still is. That is kept for the
//! block as a whole, so that its cells need not be read. However many targets there are, none costs anything but in its turn. One
//! that does not run accesses nothing: it is asked now and then whether it ran, and until it did, its memory is idle without a look
//! or a clear ([`activity`]). Of many targets those that run most come first ([`turns`]), and to see something of each comes before
//! all of any.
//! Checks that could not be paid for then wait, and come before others are chosen: they get another random moment of the next aggregation,
//! and if that was missed too they come at its end. Meanwhile every other turn of looks is left out.
//!
//! # Who else clears
//! Bits that were left set and are found clear were taken by others. How often that happens is estimated, and rates allow for the
//! accesses that it hides ([`theft`]).

mod activity;
mod cell;
mod checks;
mod choose;
mod clear;
mod draw;
mod evidence;
mod focus;
mod parts;
mod places;
mod plan;
mod price;
mod queue;
mod quiet;
mod regions;
mod rescale;
mod segment;
mod shown;
mod spread;
mod sweep;
mod target;
mod theft;
mod told;
mod tuning;
mod turns;

pub(crate) use price::price_of;
pub use tuning::{Constant, Tuning};

use crate::{AddrRange, BlockOperations, Sampler, Step, Target, TargetId, adapt};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use cell::State;
use core::time::Duration;
use draw::{Stretch, draw};
use parts::present;
use regions::regions;
use rescale::Rescale;
use spread::spread_results;
use target::{Block, Watched};

/// The estimator; see the module's essay.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    /// As given, and with times in sampling intervals of so long.
    given: Tuning,
    tuning: Tuning,
    sample: Duration,
    sweeps: bool,
    targets: Vec<Watched>,
    index: BTreeMap<TargetId, usize>,
    /// Whose turn it is: to be looked at, that of the busiest, that of those that grow, to be cleared where it is forgotten, and where it was never seen, in part or at all.
    look_turn: usize,
    busy_turn: usize,
    front_turn: usize,
    forgotten_turn: usize,
    again_turn: usize,
    unheard_turn: usize,
    /// Aggregations since what can wait was last cleared.
    waited: usize,
    /// Aggregations for which most of many targets have waited to be seen.
    crowded_for: usize,
    clear_turn: usize,
    /// Of many targets, the few that run, most CPU time first.
    busiest: Vec<usize>,
    cannot_ask: bool,
    /// Targets that may be asked whether they ran, saved up until all may.
    ask_credit: usize,
    /// Aggregations since a few targets were last asked.
    unasked: usize,
    most_run: bool,
    /// When the sweep of this aggregation is made, if there is to be one.
    sweep_at: Option<u64>,
    /// When the checks of this aggregation are made, and which.
    checks_at: u64,
    checks: Vec<(TargetId, AddrRange)>,
    /// What those cost, and how often they were given another moment.
    checks_price: usize,
    checks_put_off: u32,
    /// Turns of looks were left out in the last aggregation, so that checks which wait could be paid for.
    turns_skipped: bool,
    /// When the last plan was made.
    planned_at: u64,
    /// When checks were last made at once, because a pattern had changed.
    hurried: u64,
    /// What is saved up for checks, in hundredths of one.
    check_credit: usize,
    /// Wake-ups that are saved up for checks.
    wake_credit: usize,
    /// Wake-ups since the aggregation began, whether it has checks, and those that the last one with checks took.
    woken: usize,
    checking: bool,
    round: usize,
    /// Aggregations since checks were last chosen.
    unchecked: usize,
    /// What was spent on a sweep beyond an aggregation's share, in clears: the next ones spend so much less.
    borrowed: usize,
    /// What sweeps may spend, in clears.
    sweep_credit: usize,
    /// No other sweep is made on credit until then.
    lent_until: u64,
    /// A target ended since the last plan: what it shared with others may be theirs alone now.
    one_ended: bool,
    scratch: Vec<u64>,
}

impl Watch {
    /// A fresh estimator.
    pub fn new() -> Self {
        Self { sweeps: true, sweep_credit: Tuning::DEFAULT.first_sweeps, ..Self::default() }
    }

    /// One with other numbers than [`Tuning::DEFAULT`].
    pub fn with_tuning(tuning: Tuning) -> Self {
        Self { given: tuning, sweep_credit: tuning.first_sweeps, ..Self::new() }
    }

    /// Whether memory that other processes map too may be swept; without, its rates stay unknown.
    pub fn set_sweeps(&mut self, on: bool) {
        self.sweeps = on;
    }

    /// Times are counted in intervals of the length that they have now.
    fn count_in(&mut self, sample: Duration) {
        if self.sample != sample {
            (self.sample, self.tuning) = (sample, self.given.in_intervals(sample));
        }
    }

    fn reindex(&mut self) {
        self.index = self.targets.iter().enumerate().map(|(i, t)| (t.id, i)).collect();
    }

    /// Looks at blocks whose windows have ended.
    fn look_at_due<O: BlockOperations>(&mut self, step: &mut Step<'_, O>) {
        let (now, count) = (step.now, self.targets.len());
        for offset in 0..count {
            // Where there is too little for all, another one comes first each time.
            let index = (now as usize).wrapping_add(offset) % count;
            let Some(target) = self.targets.get_mut(index) else { break };
            if !target.due.iter().any(|(at, _)| *at <= now) {
                continue;
            }
            let mut addrs: Vec<u64> =
                target.due.iter().filter(|(at, _)| *at <= now).map(|(_, addr)| *addr).collect();
            addrs.sort_unstable();
            addrs.dedup();
            let mut blocks: Vec<usize> =
                addrs.iter().filter_map(|a| target.blocks.binary_search_by_key(a, |b| b.addr).ok()).collect();
            let left = step.checks_left();
            step.tally.checks_cut += blocks.len().saturating_sub(left) as u64;
            blocks.truncate(left);
            if blocks.is_empty() && left == 0 {
                return;
            }
            // What could not be looked at comes up again at the aggregation's end, or here if all of it was cleared at once.
            let beyond = blocks.last().and_then(|b| target.blocks.get(*b)).map_or(0, |b| b.addr);
            let again = blocks.len() < addrs.len() && (target.was_swept_anew || count >= self.tuning.many);
            target.was_swept_anew &= again;
            target.due.retain(|(at, addr)| *at > now || again && *addr > beyond);
            target.look(step, &blocks, &self.tuning);
        }
    }
}

impl<O: BlockOperations> Sampler<O> for Watch {
    fn sample(&mut self, step: &mut Step<'_, O>) {
        self.count_in(step.attrs.sample);
        self.woken += 1;
        self.look_at_due(step);
        if self.sweep_at.is_some_and(|at| step.now >= at) {
            self.make_sweep(step);
        }
        if step.now >= self.checks_at && !self.checks.is_empty() {
            self.make_checks(step);
        }
    }

    fn conclude(&mut self, step: &mut Step<'_, O>) {
        self.count_in(step.attrs.sample);
        self.ask_who_ran(step);
        self.look_by_turns(step);
        let now = step.now;
        let share = step.attrs.max_nr_regions / step.targets.len().max(1);
        // Cutting what is too large adds up to min_nr_regions. Of many targets each has so many, whatever the maximum.
        let spare = share.saturating_sub(step.attrs.min_nr_regions);
        let most = if step.targets.len() > 1 { spare.max(step.attrs.min_nr_regions) } else { spare.max(1) };
        let max_nr_accesses = step.attrs.max_nr_accesses();
        let running = self.targets.iter().filter(|t| t.runs()).count();
        let tuning = self.tuning.for_targets(running);
        for (i, target) in step.targets.iter_mut().enumerate() {
            // Mostly they stand in one order.
            let at = match self.targets.get(i) {
                Some(watched) if watched.id == target.id => Some(i),
                _ => self.index.get(&target.id).copied(),
            };
            let Some(watched) = at.and_then(|i| self.targets.get_mut(i)) else { continue };
            if watched.surveyed.is_none() {
                // Nobody knows yet what it has.
                continue;
            }
            watched.theft.conclude(now, &self.tuning);
            let (left, taken) = watched.theft.take_counts();
            step.tally.left_set += left;
            step.tally.found_clear += taken;
            spread_results(watched, now, u64::from(max_nr_accesses), &self.tuning);
            // Drawing takes time in proportion to what there is: of a large target it is done less often.
            let mut pause =
                watched.blocks.len() as u64 / tuning.blocks_a_drawing.max(1) * u64::from(max_nr_accesses);
            if watched.grew > watched.drawn {
                pause /= tuning.grows_sooner.max(1);
            }
            // What is new is so for a while only, and the less the longer ago it appeared.
            watched.dirty |= watched.grew != 0 && now <= watched.grew + tuning.appeared + tuning.redrawn;
            let soon = watched.drawn != 0 && now < watched.drawn + pause;
            let settles = watched.drawn != 0 && now < watched.drawn + tuning.redrawn && !watched.changed;
            if soon || (settles || !watched.dirty) && !target.moved {
                continue;
            }
            watched.drawn = now;
            (watched.dirty, watched.changed) = (false, false);
            target.moved = false;
            let as_of = watched.activity.as_of(now);
            watched.stretches = draw(watched, &covered(&target.ranges, &watched.blocks), as_of, &tuning);
            watched.find_edges(&self.tuning);
            watched.is_hot = watched.stretches.iter().any(|s| s.is_hot(&self.tuning));
            let size: u64 = watched.stretches.iter().map(|s| s.range.size()).sum();
            let max_size = (size / step.attrs.min_nr_regions as u64).max(step.min_region);
            let most = (most, most.max(spare + step.attrs.min_nr_regions));
            let there = |range| present(&watched.blocks, range);
            target.redraw(regions((&watched.stretches, there), max_size, most, max_nr_accesses, &tuning));
        }
    }

    fn plan(&mut self, step: &mut Step<'_, O>, aggregation: bool) {
        if !aggregation {
            return;
        }
        self.count_in(step.attrs.sample);
        if core::mem::take(&mut self.one_ended) && self.targets.len() < self.tuning.many {
            // A child that was forked to save what there is, and is gone: all is to be seen again at once.
            self.targets.iter_mut().for_each(|target| target.retry_shared(step.now, &self.tuning));
        }
        // Mostly nothing has changed, or some were added.
        let differs = self.targets.iter().zip(step.targets.iter()).any(|(a, b)| a.id != b.id);
        if !differs && self.targets.len() <= step.targets.len() {
            for target in step.targets.iter().skip(self.targets.len()) {
                self.index.insert(target.id, self.targets.len());
                self.targets.push(Watched::new(target.id));
            }
        } else {
            let known = core::mem::take(&mut self.targets).into_iter().map(|t| (t.id, t));
            let mut known: BTreeMap<TargetId, Watched> = known.collect();
            let of = |id| known.remove(&id).unwrap_or_else(|| Watched::new(id));
            self.targets = step.targets.iter().map(|t| t.id).map(of).collect();
            self.reindex();
            // Indices, of what there was before.
            self.busiest.clear();
        }
        if self.targets.iter().any(|t| t.is_forgotten) {
            let anew: Vec<TargetId> = self.targets.iter().filter(|t| t.is_forgotten).map(|t| t.id).collect();
            self.checks.retain(|(id, _)| !anew.contains(id));
            self.busiest.clear();
            self.targets.iter_mut().for_each(|t| t.is_forgotten = false);
        }
        self.plan_clears(step);
    }

    fn busiest(&self, found: &mut Vec<TargetId>) {
        found.extend(self.busiest.iter().filter_map(|i| Some(self.targets.get(*i)?.id)));
    }

    fn adapts_regions(&self) -> bool {
        false
    }

    fn spans_gaps(&self) -> bool {
        true
    }

    fn next_due(&self, now: u64, end: u64) -> u64 {
        let windows = self.targets.iter().flat_map(|t| &t.due).map(|(at, _)| *at);
        let checks = (!self.checks.is_empty()).then_some(self.checks_at);
        windows
            .chain(checks)
            .chain(self.sweep_at)
            .filter(|at| *at > now)
            .min()
            .unwrap_or(end)
            .clamp(now + 1, end.max(now + 1))
    }

    fn cleared(&mut self, step: &mut Step<'_, O>, ranges: &[(TargetId, AddrRange)]) {
        self.count_in(step.attrs.sample);
        let mut ranges = ranges.to_vec();
        ranges.sort_unstable_by_key(|(id, range)| (*id, range.start));
        for of_one in ranges.chunk_by(|a, b| a.0 == b.0) {
            let Some((id, _)) = of_one.first() else { continue };
            let Some(target) = self.index.get(id).and_then(|i| self.targets.get_mut(*i)) else { continue };
            if target.is_forgotten || target.id != *id {
                continue;
            }
            let ranges: Vec<AddrRange> = of_one.iter().map(|(_, range)| *range).collect();
            target.cleared_by_others(step, &ranges, &self.tuning);
        }
    }

    fn forget(&mut self, target: TargetId) {
        // A thousand may end at once: those that are gone go together, when the next plan is made. One that is not, because it
        // executed another program, begins anew in its place.
        if let Some(gone) = self.index.get(&target).and_then(|i| self.targets.get_mut(*i)) {
            *gone = Watched::new(target);
            gone.is_forgotten = true;
            self.one_ended = true;
        }
    }

    fn rescale(&mut self, old: u64, new: u64, now: u64) {
        self.rescale_all(Rescale::new(old, new, now));
    }
}

/// The monitored ranges, and what is present outside of them: mappings change faster than they are read.
fn covered(ranges: &[AddrRange], blocks: &[Block]) -> Vec<AddrRange> {
    let mut all: Vec<AddrRange> = ranges.to_vec();
    let is_outside = |part: AddrRange| {
        let next = ranges.partition_point(|r| r.end <= part.start);
        ranges.get(next).is_none_or(|r| r.start >= part.end)
    };
    let mut add = |part: AddrRange| match all.get_mut(ranges.len()..).and_then(|more| more.last_mut()) {
        Some(last) if last.end == part.start => last.end = part.end,
        _ => all.push(part),
    };
    for block in blocks {
        let whole = AddrRange::new(block.addr, block.addr + crate::BLOCK_SIZE);
        // As nearly all are.
        let first = ranges.partition_point(|r| r.end <= whole.start);
        if ranges.get(first).is_some_and(|r| r.start <= whole.start && r.end >= whole.end) {
            continue;
        }
        if is_outside(whole) {
            add(whole);
            continue;
        }
        let present = block.parts().filter(|(_, _, cell)| cell.state != State::Absent);
        present
            .map(|(addr, size, _)| AddrRange::new(addr, addr + size))
            .filter(|part| is_outside(*part))
            .for_each(&mut add);
    }
    if all.len() != ranges.len() {
        all.sort_unstable();
    }
    all
}

impl Target {
    /// Takes new regions in the place of the old; what is known of time passes over to those that lie where they lay.
    fn redraw(&mut self, regions: Vec<crate::Region>) {
        let old = core::mem::replace(&mut self.regions, regions);
        adapt::inherit(&old, &mut self.regions);
        self.steady = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_present_outside_of_known_mappings_is_covered_cell_by_cell() {
        const CELL: u64 = target::CELL_SIZE;
        let range = |start: u64, end: u64| AddrRange::new(start * CELL, end * CELL);
        // Mappings of a parent; its child mapped memory right below them, and far away.
        let mappings = [range(20, 24), range(40, 64)];
        let mut blocks: Vec<Block> = [0, 8, 16, 96].map(|cell| Block::new(cell * CELL, None)).into();
        for (block, cells) in [(1, 4..8), (2, 0..5), (3, 0..8)] {
            for cell in cells {
                blocks[block].cells[cell].state = State::Unseen;
            }
        }
        let expected = [range(0, 16), range(16, 20), range(20, 24), range(40, 64), range(96, 104)];
        let found = covered(&mappings, &blocks);
        let joined = |ranges: &[AddrRange]| {
            let mut joined: Vec<AddrRange> = Vec::new();
            for range in ranges {
                match joined.last_mut().filter(|last| last.end == range.start) {
                    Some(last) => last.end = range.end,
                    None => joined.push(*range),
                }
            }
            joined
        };
        assert_eq!(joined(&found), joined(&expected), "{found:?}");
        assert_eq!(covered(&mappings, &[]), mappings);
    }
}

//! Checks of hot memory: which stretches, when within the aggregation, and of which of their cells.

use super::cell::{Cell, State};
use super::clear::{all_of, some_of};
use super::shown::Shown;
use super::target::{At, CELL_SIZE};
use super::tuning::{PAGES_A_CLEAR, PAGES_A_RANGE};
use super::{Stretch, Watch};
use crate::{AddrRange, BlockOperations, Step, TargetId};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// Of a stretch of no more than that, checks are of whole cells until it is known which of their pages are accessed.
const SMALL: u64 = 4 * CELL_SIZE;

/// Longest that a stretch counts as waiting, in intervals.
const LONGEST: u64 = 1 << 20;

/// A stretch that may be checked.
struct Candidate {
    target: TargetId,
    range: AddrRange,
    /// What a check of it costs, in pages.
    pages: usize,
    /// Little is known of it, or doubtful.
    unsettled: bool,
    /// The last check did not show what was expected: one alone cannot tell that it fell silent.
    suspect: bool,
    /// It is accessed several times an aggregation: of what is slower, checks made at one moment tell much the same.
    fast: bool,
    /// It has so many cells that checks of them show something of all.
    many: bool,
    /// Intervals since the last one.
    waited: u64,
    /// How much a check is worth: the longer ago the last one, the larger the stretch, the less is known of it.
    worth: u64,
}

impl Watch {
    /// Chooses what to check, stretches of which little is known first, then by turns. Returns how many, and what they cost.
    pub(super) fn choose_checks<O: BlockOperations>(
        &mut self,
        step: &mut Step<'_, O>,
        most: usize,
        of_each: usize,
        waiting: usize,
        at_once: bool,
    ) -> (usize, usize) {
        let tuning = self.tuning;
        let mut all: Vec<Candidate> = Vec::new();
        let mut left = most.saturating_mul(PAGES_A_CLEAR);
        for target in self.targets.iter().filter(|t| t.is_hot && !t.activity.is_still()) {
            let pages = PAGES_A_RANGE + target.entries_a_cell().min(tuning.check_pages as usize);
            for stretch in target.stretches.iter().filter(|s| s.is_hot(&tuning) && s.own > 0) {
                let unsettled =
                    stretch.evidence.floor || stretch.suspect || stretch.places.doubtful || is_thin(stretch);
                let waited = step.now.saturating_sub(stretch.checked).clamp(1, LONGEST);
                let size = 1 << (stretch.resident.max(1).ilog2() / 2);
                // What may be idle by now is told as hot until it is checked once more.
                let weight = if stretch.doubted {
                    64
                } else if unsettled {
                    4
                } else {
                    1
                };
                let worth = waited * size * weight;
                let (range, suspect) = (stretch.range, stretch.suspect);
                let fast = stretch.rate() >= tuning.fast && stretch.range.size() >= 2 * crate::BLOCK_SIZE;
                let many = stretch.own >= tuning.settled_cells;
                all.push(Candidate {
                    target: target.id,
                    range,
                    pages,
                    unsettled,
                    suspect,
                    fast,
                    many,
                    waited,
                    worth,
                });
            }
        }
        // What has faded by half comes first, whatever it is worth: small stretches of one target would never come before those of another
        // that has a large one.
        let running = self.targets.iter().filter(|t| t.runs()).count();
        let overdue = (tuning.for_targets(running).half_life as u64).min(LONGEST);
        let late = |c: &Candidate| if c.waited >= overdue { c.waited } else { 0 };
        all.sort_unstable_by_key(|c| (core::cmp::Reverse((late(c), c.worth)), c.range.start));
        group_by_target(&mut all);
        // Where there are fewer, each stretch has its turn first.
        let (whole, each) = (left, tuning.checks_settled * all.len());
        let mut longest = 0;
        let a_call = step.allowance.prepares_a_call.saturating_mul(PAGES_A_CLEAR);
        let mut last = all.first().map(|c| c.target);
        for candidate in &all {
            if last != Some(candidate.target) {
                if left <= a_call {
                    step.tally.prepares_cut += 1;
                    continue;
                }
                left -= a_call;
                last = Some(candidate.target);
            }
            let is_roomy = whole >= each * candidate.pages;
            if left == 0 {
                step.tally.prepares_cut += 1;
                continue;
            }
            let times = match candidate.unsettled {
                true if waiting == 0 && candidate.fast => of_each * tuning.checks_fast,
                true if waiting == 0 => of_each,
                true if candidate.suspect => of_each.div_ceil(2).max(2),
                true => of_each.div_ceil(2),
                false if waiting == 0 && candidate.fast && candidate.many && is_roomy => {
                    tuning.checks_settled
                }
                false => 1,
            };
            // What is checked far beyond what there is is looked at too late to tell anything. One check alone would never tell that it
            // fell silent.
            let least = if candidate.suspect { 2 } else { 1 };
            let times = times.min((left / candidate.pages).max(least));
            left = left.saturating_sub(times * candidate.pages);
            for _ in 0..times {
                self.checks.push((candidate.target, candidate.range));
            }
            let Some(target) = self.index.get(&candidate.target).and_then(|i| self.targets.get_mut(*i))
            else {
                continue;
            };
            if let Some(stretch) = target.stretches.iter_mut().find(|s| s.range == candidate.range) {
                stretch.checked = step.now;
                let length =
                    if stretch.rate() > 0.0 { (tuning.window_hits / stretch.rate()) as u64 } else { 0 };
                longest = longest.max(length.max(1));
            }
        }
        let price = (whole - left).div_ceil(PAGES_A_CLEAR);
        // At any moment where all windows are short: a program whose rhythm divides the aggregation is to be met at each of its points.
        // Long ones begin early, so that most end within the aggregation.
        let samples = u64::from(step.attrs.max_nr_accesses());
        let latest = if 2 * longest <= samples { samples } else { samples - samples / 3 }.max(1);
        self.checks_at = step.now + if at_once { 0 } else { step.rng.below(latest) };
        (self.checks_price, self.checks_put_off) = (price, 0);
        if self.checks_at == step.now && !self.checks.is_empty() {
            let chosen = self.checks.len();
            self.make_checks(step);
            return (chosen, price);
        }
        (self.checks.len(), price)
    }

    /// Leaves out checks of targets that ended, rest or are not hot any more: what they cost would be kept for nothing.
    pub(super) fn drop_checks_in_vain(&mut self) {
        let (index, targets) = (&self.index, &self.targets);
        let is_of_use = |id: &TargetId| {
            let target = index.get(id).and_then(|at| targets.get(*at)).filter(|t| t.id == *id);
            target.is_some_and(|t| t.is_hot && t.runs())
        };
        let before = self.checks.len();
        self.checks.retain(|(id, _)| is_of_use(id));
        self.checks_price = (self.checks_price * self.checks.len()).div_ceil(before.max(1));
    }

    /// Gives checks that were chosen and not made another moment of the coming aggregation. Returns what they cost.
    pub(super) fn put_off_checks<O: BlockOperations>(&mut self, step: &mut Step<'_, O>) -> usize {
        let price = self.checks_price;
        let samples = u64::from(step.attrs.max_nr_accesses());
        if step.allowance.prepares == 0 {
            // To wake up for them would be in vain.
            self.checks_at = step.now + samples;
            return price;
        }
        self.checks_put_off += 1;
        if self.checks_put_off > 1 {
            // There was enough at this moment, and never at others.
            self.make_checks(step);
        } else {
            self.checks_at = step.now + 1 + step.rng.below(samples.saturating_sub(1).max(1));
        }
        price
    }

    /// Clears what was chosen. What there is nothing left for waits.
    pub(super) fn make_checks<O: BlockOperations>(&mut self, step: &mut Step<'_, O>) {
        let mut checks = core::mem::take(&mut self.checks);
        checks.sort_unstable();
        let chosen = checks.len();
        let mut left = Vec::new();
        for group in checks.chunk_by(|a, b| a.0 == b.0) {
            if step.allowance.prepares == 0 || step.checks_left() == 0 {
                left.extend_from_slice(group);
                continue;
            }
            let Some(target) =
                group.first().and_then(|(id, _)| self.index.get(id)).and_then(|i| self.targets.get_mut(*i))
            else {
                continue;
            };
            let mut cells: Vec<(At, u64)> = Vec::with_capacity(group.len());
            for same in group.chunk_by(|a, b| a.1 == b.1) {
                let Some((_, range)) = same.first() else { continue };
                let is_small = range.size() <= SMALL;
                let mut half_known = step.rng.below(2) == 0;
                for _ in same {
                    let can_be = |c: &Cell| !c.shared && matches!(c.state, State::Lit | State::Unseen);
                    // Of a cell of which some pages were accessed, another window or two tell whether those are all that are: by turns
                    // with any other, or in a large stretch no cell would have its second window soon.
                    let is_half_known = |c: &Cell| {
                        let some = c.focus.is_open(c.present) && c.focus.is_young() && c.tried == c.present;
                        some && Shown::runs(c.tried, c.shown) >= self.tuning.run && can_be(c)
                    };
                    half_known = !half_known;
                    let first =
                        if half_known { target.any_of(*range, step.rng, is_half_known) } else { None };
                    let Some(at) = first.or_else(|| target.any_of(*range, step.rng, can_be)) else {
                        break;
                    };
                    let Some(cell) = target.blocks.get(at.block).and_then(|b| b.cells.get(at.cell)) else {
                        continue;
                    };
                    // Once in a while a cell shows all its pages, so that borders within it are known; where it may be that some of them
                    // are never accessed, a part that happens to be those would show nothing for as long as it is watched.
                    let pages = if cell.tried == 0
                        || cell.focus.is_open(cell.present) && (is_small || cell.focus.is_young())
                    {
                        all_of(cell)
                    } else {
                        some_of(
                            cell,
                            target.whole >= self.tuning.larger_folios,
                            self.tuning.check_pages,
                            step.rng.below(64),
                        )
                    };
                    cells.push((at, pages));
                }
            }
            cells.sort_unstable_by_key(|(at, _)| *at);
            cells.dedup_by_key(|(at, _)| *at);
            if !cells.is_empty() {
                target.clear(step, &cells, &self.tuning);
            }
        }
        self.checks_price = (self.checks_price * left.len()).div_ceil(chosen.max(1));
        checks.clear();
        checks.append(&mut left);
        self.checks = checks;
    }
}

/// Those of one target go together, the target of the first one first: each takes a call of its own, as dear as several checks, and what
/// is left over for others is better spent on all of one of them than on a little of each.
fn group_by_target(all: &mut [Candidate]) {
    let mut rank: BTreeMap<TargetId, usize> = BTreeMap::new();
    for candidate in &*all {
        let next = rank.len();
        rank.entry(candidate.target).or_insert(next);
    }
    // Stable: by worth within each.
    all.sort_by_key(|candidate| rank.get(&candidate.target).copied());
}

/// Little stands behind its rate.
fn is_thin(stretch: &Stretch) -> bool {
    stretch.evidence.hits < 2.0
}

//! What to clear in the coming aggregation.

use super::cell::State;
use super::clear::all_of;
use super::price::{another_call, cells_for, price_by_blocks, price_of_cells};
use super::queue::Queue;
use super::sweep::{longest, price_of_sweep};
use super::target::At;
use super::{Watch, Watched};
use crate::{BlockOperations, Step, Sweep};
use alloc::vec::Vec;

impl Watch {
    pub(super) fn plan_clears<O: BlockOperations>(&mut self, step: &mut Step<'_, O>) {
        let tuning = self.tuning;
        // Where ticks are dear, aggregations take longer than they should: then there is as much more to spend.
        let samples = u64::from(step.attrs.max_nr_accesses()).max(1);
        let late_by = if self.targets.len() >= tuning.many { tuning.late_by.max(1) } else { 1 };
        let passed = (step.now.saturating_sub(self.planned_at) / samples).clamp(1, late_by) as usize;
        self.planned_at = step.now;
        let budget = step.allowance.prepares_per_aggr.saturating_mul(passed).min(tuning.enough);
        let available = step.allowance.prepares.min(tuning.enough);
        let spend = available.min(budget + available.saturating_sub(budget) / tuning.saved.max(1));
        let paid = self.borrowed.min(spend.div_ceil(2));
        self.borrowed -= paid;
        let spend = spend - paid;
        let waits = |t: &&Watched| t.census.unseen > 0 && !t.activity.is_still();
        let waiting: usize = self.targets.iter().filter(waits).map(|t| t.census.unseen).sum();
        // Of many targets, something of each comes before all of any.
        let count = self.targets.len();
        let crowded = count >= tuning.many && 4 * self.targets.iter().filter(waits).count() > count;
        let part = if crowded { tuning.crowded.max(1) } else { 1 };
        // Where waking up is dear, there are checks in every other aggregation or so, of more memory each.
        let mut wake_ups = step.allowance.wake_ups_per_aggr.min(tuning.round);
        if count < tuning.many
            && waiting > self.targets.iter().map(|t| t.census.watching + t.census.lit).sum()
        {
            // What they cost is better spent on what was not seen at all.
            wake_ups = wake_ups.div_ceil(2);
        }
        if self.checking {
            self.round = self.woken.clamp(1, tuning.round.max(1));
        }
        // The one at the end comes anyway.
        let spent = core::mem::take(&mut self.woken).saturating_sub(1);
        let earned = wake_ups.saturating_sub(1).max(1);
        self.wake_credit = (self.wake_credit + earned).saturating_sub(spent).min(2 * tuning.round);
        // Patterns change as a whole: what was hot until now is looked at as soon as something else is.
        let mut changes = false;
        for target in &mut self.targets {
            changes |= core::mem::take(&mut target.surprised);
        }
        // Checks that always come at once come at one point of the aggregation, and meet a program whose rhythm divides it at one
        // point of its own: a loop at 50 Hz would be told 200 Hz where it then is, and idle elsewhere.
        let at_once = changes && (self.hurried == 0 || step.now >= self.hurried + tuning.hurries);
        if at_once {
            self.hurried = step.now;
        }
        let needed = if changes { self.round / 2 } else { self.round };
        // The less waits, the less of what there is goes to it. What was forgotten waits too: where hot memory is in many pieces
        // checks of all of them would take all there is, and what is not checked would be unknown for good.
        let seen: usize = self.targets.iter().map(|t| t.census.watching + t.census.lit).sum();
        let forgotten: usize =
            self.targets.iter().filter(|t| !t.activity.is_still()).map(|t| t.census.forgotten).sum();
        let share = match waiting + forgotten {
            0 => 100,
            waiting if 8 * waiting < seen => (100 + tuning.checks_share) / 2,
            _ => tuning.checks_share / part,
        };
        // Where nothing is left looks at what is checked would come too late to tell how hot it is: then one is made only when the last
        // is long ago.
        let mut for_checks = (spend * share / 100).max(spend.min(1));
        if crowded {
            // Saved up, as a share may come to less than one.
            self.check_credit =
                (self.check_credit + spend * share).min((100 * tuning.checks_saved).max(spend * share));
            for_checks = self.check_credit / 100;
        } else {
            self.check_credit = 0;
        }
        // Where other windows use up all wake-ups there would never be any, and of hot memory it would not be known how hot it is.
        self.unchecked += 1;
        let is_rich = available >= tuning.rich.saturating_mul(budget.max(tuning.batch / 2));
        let has_wake_ups = !crowded && (self.wake_credit + 1 >= needed || is_rich);
        // The sooner the more targets have hot memory, as what is paid for may be of one of them. Of many, wake-ups are dear: up to every
        // other aggregation, and not where hardly any is hot; in a crowd others are to be found first.
        let is_hot = |t: &&Watched| t.is_hot && !t.activity.is_still();
        let hot = self.targets.iter().filter(is_hot).count();
        let hot = if crowded || hot * tuning.many < count { 1 } else { hot };
        let most = if count >= tuning.many { tuning.soon / 2 } else { tuning.soon };
        let is_due = self.unchecked >= tuning.soon.div_ceil(hot.clamp(1, most.max(1)));
        if is_due && !crowded {
            for_checks = for_checks.max(1);
        }
        self.drop_checks_in_vain();
        if !self.checks.is_empty() {
            // Those that there was nothing left for come before others are chosen.
            for_checks = self.put_off_checks(step).min(spend);
            self.checking = true;
        } else if (has_wake_ups || is_due) && for_checks > 0 {
            self.unchecked = 0;
            let of_each = if crowded { 1 } else { tuning.checks_unsettled };
            let (chosen, price) = self.choose_checks(step, for_checks, of_each, waiting, at_once);
            for_checks = price;
            self.check_credit = self.check_credit.saturating_sub(100 * for_checks);
            self.checking = chosen > 0;
        } else {
            (self.checking, for_checks) = (false, 0);
        }
        let rest = spend.saturating_sub(for_checks);
        // Neither does it keep what was hot and is known no more from being seen again.
        // By how much of it there may be: what was never heard of is rather idle.
        let (unheard, lit) = self
            .targets
            .iter()
            .fold((0, 0), |(unheard, lit), t| (unheard + t.census.unheard, lit + 4 * t.census.lit));
        let percent = (100 * lit / (lit + unheard).max(1)).min(tuning.forgotten_share);
        self.waited += 1;
        let due = rest >= tuning.batch || self.waited >= tuning.soon;
        let for_forgotten = if crowded || !due { 0 } else { rest * percent / 100 };
        let rest = rest - for_forgotten;
        let rest = rest + self.watch_the_forgotten(step, for_forgotten);
        // What changes comes first, but never keeps others from being seen at all. In a crowd it has its turn now and then: each of
        // these takes a wake-up of its own for its look, of which all that is swept takes one.
        self.crowded_for = if crowded { self.crowded_for + 1 } else { 0 };
        let has_turn = self.crowded_for.is_multiple_of(tuning.crowded_turn);
        let for_risen = match waiting {
            0 => rest,
            _ if has_turn => rest.div_ceil(2 * part),
            _ => 0,
        };
        let for_edges = if waiting > 0 { for_risen / 8 } else { for_risen };
        // Once for all of them: with as many targets as there are lists, each list would begin with the same one every time.
        self.again_turn = self.again_turn.wrapping_add(1);
        let spent = for_edges - self.watch_again(step, for_edges, true, |t| &mut t.edges).min(for_edges);
        let left = self.watch_again(step, for_risen - spent, false, |t| &mut t.risen);
        let rest = self.see_the_unheard_of(step, rest - for_risen + left);
        // A call costs as much as several ranges: what can wait does, until there is enough for more of them.
        if due || left < for_risen || crowded && has_turn {
            self.waited = 0;
            let rest = self.see_the_unseen(step, rest);
            if has_turn {
                let rest = self.watch_again(step, rest, false, |t| &mut t.mixed);
                self.watch_the_forgotten(step, rest);
            }
        }
        self.clear_chosen(step);
        if self.sweeps {
            self.sweep_on_credit(step);
            self.plan_sweep(step, budget);
        }
    }

    /// Chooses memory outside of hot stretches that was found accessed, so that it shows whether that goes on. Returns what is
    /// left to spend.
    fn watch_again<O: BlockOperations>(
        &mut self,
        step: &mut Step<'_, O>,
        mut rest: usize,
        edges: bool,
        of: fn(&mut Watched) -> &mut Queue,
    ) -> usize {
        let (now, tuning, count) = (step.now, self.tuning, self.targets.len());
        for offset in 0..count {
            let Some(target) = self.targets.get_mut(self.again_turn.wrapping_add(offset) % count) else {
                break;
            };
            if rest == 0 {
                break;
            }
            if target.activity.is_still() {
                continue;
            }
            if of(target).is_empty() {
                continue;
            }
            let entries = target.entries_a_cell();
            let mut waiting = of(target).take();
            let mut last = None;
            let mut cells: Vec<At> = Vec::new();
            waiting.retain(|addr| {
                let Some(at) = target.at(*addr) else { return false };
                let Some(cell) = target.blocks.get(at.block).and_then(|b| b.cells.get(at.cell)) else {
                    return false;
                };
                let next = target.stretches.partition_point(|s| s.range.end <= *addr);
                if edges && matches!(cell.state, State::Unseen | State::Lit) {
                    if price_of_cells(cells.len(), entries) >= rest {
                        return true;
                    }
                    last = Some(*addr);
                    cells.push(at);
                    return false;
                }
                let in_heat = target
                    .stretches
                    .get(next)
                    .is_some_and(|s| s.is_hot(&tuning) && cell.evidence.is_like(s.rate(), &tuning));
                // Of many targets, something of each comes before all of any.
                let beside = cell.state == State::Unseen && count < tuning.many;
                let wants = cell.wants_clear(now, &tuning) || cell.is_piece(&tuning);
                let lit = !matches!(cell.state, State::Unseen | State::Absent | State::Blind(_)) && wants;
                if !beside && (!lit || in_heat) {
                    return false;
                }
                if price_of_cells(cells.len(), entries) >= rest {
                    return true;
                }
                last = Some(*addr);
                cells.push(at);
                false
            });
            step.tally.prepares_cut += waiting.len() as u64;
            of(target).put_back(waiting, last);
            rest = rest.saturating_sub(price_of_cells(cells.len(), entries));
            if !cells.is_empty() {
                rest = rest.saturating_sub(another_call(count, target, step));
            }
            target.chosen.append(&mut cells);
        }
        rest
    }

    /// Chooses memory that was never seen, evenly spread where it is more than may be cleared: half of it of the busiest, if
    /// they are few, the other half by turns.
    fn see_the_unseen<O: BlockOperations>(&mut self, step: &mut Step<'_, O>, rest: usize) -> usize {
        let count = self.targets.len();
        let busiest = core::mem::take(&mut self.busiest);
        let is_new = |t: &Watched| !t.had_its_turn && t.census.unseen > 0 && t.runs();
        let has_new = count >= self.tuning.many && self.targets.iter().any(is_new);
        let mut left = if busiest.is_empty() { 0 } else { rest / 2 };
        let mut rest = rest - left;
        for &index in &busiest {
            if left == 0 {
                break;
            }
            left = self.see_unseen_of(index, step, left, has_new);
        }
        rest += left;
        self.busiest = busiest;
        for _ in 0..count {
            if rest == 0 {
                break;
            }
            self.clear_turn = (self.clear_turn + 1) % count;
            rest = self.see_unseen_of(self.clear_turn, step, rest, has_new);
        }
        rest
    }

    /// Chooses first cells of targets of which nothing was seen at all: they may tell what all of it is, and wait for no batch. Half of
    /// what there is at most, as others may wait, too. Returns what is left to spend.
    fn see_the_unheard_of<O: BlockOperations>(&mut self, step: &mut Step<'_, O>, rest: usize) -> usize {
        let count = self.targets.len();
        let unheard_of = self.targets.iter().filter(|t| t.is_unheard_of()).count();
        if unheard_of == 0 || count < 2 || count >= self.tuning.many {
            return rest;
        }
        let mut half = rest.div_ceil(2);
        let (mut left, each) = (rest - half, (half / unheard_of).max(1));
        for _ in 0..count {
            self.unheard_turn = (self.unheard_turn + 1) % count;
            let index = self.unheard_turn;
            if half == 0 || !self.targets.get(index).is_some_and(|t| t.is_unheard_of()) {
                continue;
            }
            let part = each.min(half);
            half -= part;
            left += self.see_unseen_of(index, step, part, false);
        }
        left + half
    }

    /// The same of one target, unless it had its turn and others did not (`has_new`). Returns what is left to spend.
    fn see_unseen_of<O: BlockOperations>(
        &mut self,
        index: usize,
        step: &mut Step<'_, O>,
        mut rest: usize,
        has_new: bool,
    ) -> usize {
        let count = self.targets.len();
        let telling = |t: &&mut Watched| t.census.unseen > 0 && !t.activity.is_still();
        let Some(kind) = self.targets.get(index).map(|t| self.kind_of_sweep(t)) else { return rest };
        let Some(target) = self.targets.get_mut(index).filter(telling) else { return rest };
        if has_new && target.had_its_turn {
            return rest;
        }
        target.mappings = step.ops.mappings(target.id);
        let unseen = target.census.unseen;
        // Those that lie together cost less than each by itself.
        let whole = price_by_blocks(target, unseen);
        let swept = price_of_sweep(target, kind, step);
        // Of many targets a few clears of each would tell little of any: all of one now, and of the next one later.
        let may_borrow = count >= self.tuning.many && self.borrowed == 0;
        let allowed = if may_borrow { step.allowance.prepares } else { rest };
        let looks = target.looks_of_sweep();
        let fits = swept <= allowed && looks <= step.checks_left();
        let is_best = self.sweeps
            && swept < whole
            && target.census.lit * 4 < unseen
            // Another one would leave the same.
            && (kind != Sweep::All || unseen > 2 * target.left_by_sweep)
            && target.entries(kind) <= self.tuning.longest_sweep;
        let soon = swept <= step.allowance.prepares_per_aggr.saturating_mul(self.tuning.soon)
            && 2 * looks <= step.attrs.max_nr_regions
            && target.put_off < self.tuning.put_off;
        let will_be_known = target.mappings.is_none() && target.put_off < self.tuning.put_off;
        if count >= self.tuning.many && (will_be_known || is_best && !fits && soon) {
            target.put_off += 1;
            return rest;
        }
        let entries = target.entries_a_cell();
        target.put_off = 0;
        target.had_its_turn = true;
        if is_best && fits {
            // Small processes: all at once is cheaper.
            let before = step.allowance.prepares;
            if target.sweep(step, kind, false, longest(step, count, &self.tuning), &self.tuning) {
                target.take_census(step.now, &self.tuning);
                let spent = before.saturating_sub(step.allowance.prepares);
                self.borrowed += spent.saturating_sub(rest);
                return rest.saturating_sub(spent);
            }
        }
        let most = if whole <= rest { unseen } else { cells_for(rest, entries).max(1) };
        rest = rest.saturating_sub(whole + another_call(count, target, step));
        // What a fork shares cannot be cleared but by a sweep: what is likely its own comes first, but never keeps other memory from
        // being seen. Where there is none of it, nothing is gone through in vain.
        let writable = target.census.unseen_writable.min(unseen);
        let first = writable.min(most - (most / 4).min(unseen - writable));
        let mut chosen = Vec::new();
        if first > 0 {
            chosen = target.spread(first, |c| c.state == State::Unseen && c.writable);
        }
        if chosen.len() < most && writable < unseen {
            let others = target.spread(most - chosen.len(), |c| c.state == State::Unseen && !c.writable);
            chosen.extend(others);
        }
        target.count_seen(chosen.len());
        target.chosen.extend(chosen);
        rest
    }

    /// Chooses memory that was accessed when it was last heard of, which is long ago, by turns.
    fn watch_the_forgotten<O: BlockOperations>(&mut self, step: &mut Step<'_, O>, mut rest: usize) -> usize {
        let (now, tuning, count) = (step.now, self.tuning, self.targets.len());
        for _ in 0..count {
            self.forgotten_turn = (self.forgotten_turn + 1) % count;
            let Some(target) = self.targets.get_mut(self.forgotten_turn) else { break };
            let entries = target.entries_a_cell();
            let most = cells_for(rest, entries);
            if most == 0 {
                break;
            }
            // To find none takes time in proportion to what there is.
            if target.activity.is_still() || now < target.none_forgotten_until {
                continue;
            }
            // In an order of their own, or what was never seen would lose its turns to these.
            core::mem::swap(&mut target.spread_turn, &mut target.forgotten_turn);
            let chosen = target.spread(most, |c| {
                let unheard = c.is_rest || now.saturating_sub(c.evidence.last) > tuning.forgotten;
                c.state != State::Unseen && !c.shared && unheard && c.wants_clear(now, &tuning)
            });
            core::mem::swap(&mut target.spread_turn, &mut target.forgotten_turn);
            if chosen.len() < most {
                target.none_forgotten_until = now + tuning.forgotten;
            }
            rest = rest.saturating_sub(price_of_cells(chosen.len(), entries));
            if !chosen.is_empty() {
                rest = rest.saturating_sub(another_call(count, target, step));
            }
            target.chosen.extend(chosen);
        }
        rest
    }

    /// Clears what was chosen: all of a target at once, as each call costs as much as several ranges.
    fn clear_chosen<O: BlockOperations>(&mut self, step: &mut Step<'_, O>) {
        for target in self.targets.iter_mut().filter(|t| !t.chosen.is_empty()) {
            let mut chosen = core::mem::take(&mut target.chosen);
            chosen.sort_unstable();
            chosen.dedup();
            // A sweep may have come in between, and with it a look.
            let now = step.now;
            let pages = |at: At| {
                let block = target.blocks.get(at.block)?;
                let cell = block.cells.get(at.cell).filter(|_| !block.huge || at.cell == 0)?;
                cell.wants_clear(now, &self.tuning).then(|| (at, all_of(cell)))
            };
            let cells: Vec<(At, u64)> = chosen.iter().copied().filter_map(pages).collect();
            target.clear(step, &cells, &self.tuning);
            target.take_census(now, &self.tuning);
            chosen.clear();
            target.chosen = chosen;
        }
    }
}

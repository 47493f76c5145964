//! Whose turn it is to be asked and looked at. Of many targets those that run come first, with half of what may be spent, and
//! all have their turn with the rest.

use super::Watch;
use super::activity::busiest;
use super::target::moment_of;
use crate::{BlockOperations, Step, TargetId};
use alloc::vec::Vec;

/// What became of a target's turn.
enum Turned {
    /// All there was to look at was looked at.
    Whole,
    /// It was too much for what was left.
    Cut,
}

impl Watch {
    /// Asks the targets whether they ran, as often as may be.
    pub(super) fn ask_who_ran<O: BlockOperations>(&mut self, step: &mut Step<'_, O>) {
        let count = self.targets.len();
        if count == 0 || self.cannot_ask {
            return;
        }
        // Where most of a few run, they are known to: it is asked whether one still does.
        if self.most_run && count < self.tuning.many {
            self.unasked = (self.unasked + 1) % self.tuning.asked_less.max(1);
            if self.unasked != 0 {
                return;
            }
        }
        let asked: Vec<usize> =
            (0..count).filter(|i| self.targets.get(*i).is_some_and(|t| !t.is_forgotten)).collect();
        if asked.is_empty() {
            return;
        }
        // All at once, as one by one they cost several times as much. Where most run, to know who does not saves little.
        let allowed = step.allowance.asked_per_aggr;
        let saved = if self.most_run { allowed.div_ceil(self.tuning.asked_less.max(1)) } else { allowed };
        // But what did not run when it was last asked counts as idle: that must not be long ago.
        let saved = saved.max(count.div_ceil(self.tuning.asked_within.max(1)));
        self.ask_credit = self.ask_credit.saturating_add(saved).min(count);
        if self.ask_credit < count {
            return;
        }
        self.ask_credit = 0;
        let ids: Vec<TargetId> = asked.iter().filter_map(|i| Some(self.targets.get(*i)?.id)).collect();
        let mut found = Vec::new();
        step.ran(&ids, &mut found);
        if found.is_empty() {
            self.cannot_ask = true;
            return;
        }
        let moment = moment_of(step);
        for (i, ran) in asked.iter().zip(found) {
            if let Some(target) = self.targets.get_mut(*i) {
                target.told_of_running(ran, moment, &self.tuning);
            }
        }
        let run = self.targets.iter().filter(|t| t.activity.busy.is_some_and(|busy| busy > 0.0)).count();
        self.most_run = 2 * run > count;
        self.busiest =
            if self.most_run || count < self.tuning.many { Vec::new() } else { busiest(&self.targets) };
    }

    /// Looks at what is watched, from where the last turn ended, as far as may be.
    pub(super) fn look_by_turns<O: BlockOperations>(&mut self, step: &mut Step<'_, O>) {
        let count = self.targets.len();
        // Half is left for looks at what is about to be cleared, or a quarter where something is looked at for the first time.
        let mut allowed = (step.checks_left().min(step.allowance.by_turns) / 2)
            .min(step.allowance.checks_per_aggr.max(32))
            .max(1)
            // One at least, but an interval holds no more than it may.
            .min(step.checks_on_credit());
        allowed -= self.look_at_fronts(step, allowed / 2);
        let busiest = core::mem::take(&mut self.busiest);
        if !busiest.is_empty() {
            let mut half = allowed / 2;
            allowed -= half;
            for _ in 0..busiest.len() {
                self.busy_turn %= busiest.len();
                let Some(&index) = busiest.get(self.busy_turn).filter(|_| half > 0) else { break };
                match self.take_turn(index, &mut half, step) {
                    Turned::Whole => self.busy_turn += 1,
                    Turned::Cut => break,
                }
            }
            allowed += half;
        }
        self.busiest = busiest;
        // What was never looked at is unknown, and can be cleared only once it was: half of it goes there, so that others have their turn
        // also where new ones come all the time.
        let mut half = if count > 1 { allowed / 2 } else { 0 };
        allowed -= half;
        for index in 0..count {
            if half == 0 {
                break;
            }
            if self.targets.get(index).is_some_and(|t| t.runs() && !t.looked_once)
                && let Turned::Cut = self.take_turn(index, &mut half, step)
            {
                break;
            }
        }
        allowed += half;
        // Where checks wait for what they cost, every other aggregation goes without: these looks tell less, and where there is little to
        // spend they would take all of it.
        self.turns_skipped = !self.turns_skipped && !self.checks.is_empty();
        if self.turns_skipped {
            return;
        }
        for _ in 0..count {
            if allowed == 0 {
                break;
            }
            self.look_turn %= count;
            match self.take_turn(self.look_turn, &mut allowed, step) {
                Turned::Whole => self.look_turn += 1,
                Turned::Cut => break,
            }
        }
    }

    /// Looks where memory appears: what was not there and is there now was accessed, and how long ago only a look in time tells.
    fn look_at_fronts<O: BlockOperations>(&mut self, step: &mut Step<'_, O>, most: usize) -> usize {
        let (now, count) = (step.now, self.targets.len());
        let running = self.targets.iter().filter(|t| t.runs()).count();
        let (mut left, mut turns) = (most, self.tuning.few);
        for offset in 0..count {
            let Some(target) = self.targets.get_mut((self.front_turn + offset) % count) else { break };
            let grows = target.grew != 0 && now.saturating_sub(target.grew) <= self.tuning.appeared;
            let lately = target.surveyed.is_none_or(|at| now < at + self.tuning.survey_pause);
            if !target.runs() || !grows && (running > self.tuning.few || lately) {
                continue;
            }
            if left == 0 || turns == 0 {
                self.front_turn = (self.front_turn + offset) % count;
                break;
            }
            turns -= 1;
            target.survey(step, &mut self.scratch, &self.tuning);
            left = left.saturating_sub(1 + target.look_at_fronts(step, left, &self.tuning));
        }
        most - left
    }

    /// Looks at a target, from where its last turn ended, with at most `allowed` looks, of which it takes what it uses.
    fn take_turn<O: BlockOperations>(
        &mut self,
        index: usize,
        allowed: &mut usize,
        step: &mut Step<'_, O>,
    ) -> Turned {
        let (is_few, is_alone) = (self.targets.len() < self.tuning.many, self.targets.len() == 1);
        let Some(target) = self.targets.get_mut(index).filter(|t| !t.is_forgotten) else {
            return Turned::Whole;
        };
        // Others may still take away what it has, or give it huge pages.
        let looked = target.surveyed.is_some_and(|at| step.now < at + self.tuning.rest_look);
        if target.activity.is_resting() && looked && target.look_from == 0 {
            return Turned::Whole;
        }
        if target.look_from == 0 {
            if target.turned == Some(step.now) {
                // It had its turn already.
                return Turned::Whole;
            }
            target.turned = Some(step.now);
            let began = step.moment();
            // Reading the upper levels of page tables costs as much as the looks themselves.
            let runs_as_before = target.runs()
                && target.surveyed.is_some_and(|at| step.now < at + self.tuning.survey_pause)
                && (target.grew == 0 || step.now > target.grew + self.tuning.appeared);
            if target.surveyed != Some(step.now) && !runs_as_before {
                target.survey(step, &mut self.scratch, &self.tuning);
            } else {
                target.mappings = step.ops.mappings(target.id);
            }
            target.turn_began = (target.surveyed == Some(step.now)).then_some(began);
            *allowed = allowed.saturating_sub(step.allowance.checks_a_call).max(1);
        }
        // Where nothing was ever watched, a look tells nothing more than the first one did.
        let census = target.census;
        // One that is alone has a second turn for what is new, and goes on with what did not fit into one once something is watched: its
        // rates are told steadier so where there is little to spend (`tests/simulated/bursts.rs`). Of several, others would come first.
        let is_known = target.looked_once
            && !(if is_alone { core::mem::take(&mut target.has_new) } else { target.has_new });
        let idle = is_known && census.watching + census.lit == 0 && !target.activity.is_still();
        // Nothing can be cleared of what was never looked at.
        let most = if target.looked_once || target.look_from > 0 {
            *allowed
        } else {
            (step.checks_left().min(step.allowance.by_turns) / 2).max(*allowed)
        };
        target.looked_once |= is_alone;
        let mut blocks = if idle { Vec::new() } else { target.telling(target.look_from, most + 1) };
        let whole = blocks.len() <= most;
        blocks.truncate(most);
        if is_few
            && blocks.len() < most
            && let Some(control) = target.control()
            && let Err(place) = blocks.binary_search(&control)
        {
            blocks.insert(place, control);
        }
        if !blocks.is_empty() && !target.look(step, &blocks, &self.tuning) {
            target.turn_began = None;
        }
        let a_call = if blocks.is_empty() { 0 } else { step.allowance.checks_a_call };
        *allowed = allowed.saturating_sub(blocks.len() + a_call);
        if !whole {
            target.look_from = blocks.last().map_or(0, |i| i + 1);
            step.tally.checks_cut += 1;
            return Turned::Cut;
        }
        (target.look_from, target.looked_once) = (0, true);
        // Those that came meanwhile where the turn had passed already.
        if target.has_new && !is_alone {
            target.has_new = target.blocks.iter().any(|b| b.unlooked);
        }
        target.take_census(step.now, &self.tuning);
        if let Some(began) = target.turn_began.take() {
            let moment = moment_of(step);
            target.activity.looked(began, moment);
        }
        Turned::Whole
    }
}

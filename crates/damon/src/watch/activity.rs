//! Which targets run. A process that did not run accessed nothing: all of its memory was idle for as long, and to know that
//! takes no clear and no look. Of a machine's processes nearly all sleep nearly always.
//!
//! Now and then each target is asked for a mark of what it has run. When the mark is what it was before, the target is *still*
//! since then: clearing its memory would show nothing. Once all of it was looked at as well, so that what it accessed before is
//! known, it is *resting*: looks would show nothing either. From time to time, and when it runs again, what it has is credited
//! with having been idle for so long.

use super::Watched;
use super::cell::{Moment, State};
use super::evidence::Evidence;
use super::rescale::Rescale;
use super::shown::Shown;
use super::tuning::Tuning;
use crate::Ran;
use alloc::vec::Vec;

/// What is known of a target's running.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Activity {
    /// What it had run when it was last asked, and when that was.
    ran: Option<Ran>,
    asked: Moment,
    /// CPU time it took between the last two times it was asked, ns an interval; `None`: not known.
    pub busy: Option<f32>,
    /// It has not run since then, in thousandths of an interval.
    still_since: Option<u64>,
    /// All of its memory was looked at since.
    settled: bool,
    /// Up to then it was credited with having been idle.
    credited: Moment,
}

impl Activity {
    /// It does not run, and what it did before is known: there is nothing to see.
    pub fn is_resting(&self) -> bool {
        self.still_since.is_some() && self.settled
    }

    /// It does not run, as far as is known: clearing would show nothing.
    pub fn is_still(&self) -> bool {
        self.still_since.is_some()
    }

    /// All of its memory was looked at, from the moment `began` (thousandths of an interval) until now.
    pub fn looked(&mut self, began: u64, moment: Moment) {
        if self.still_since.is_some_and(|since| since <= began) && !self.settled {
            self.settled = true;
            self.credited = moment;
        }
    }

    /// The sampling interval has another length from now on.
    pub fn rescale(&mut self, by: Rescale) {
        self.busy.iter_mut().for_each(|busy| by.each(busy));
        self.still_since.iter_mut().for_each(|since| by.exact(since));
        by.moment(&mut self.asked);
        by.moment(&mut self.credited);
    }

    /// The interval to which evidence reaches without fading: of a target that rests, nothing changes.
    pub fn as_of(&self, now: u64) -> u64 {
        if self.is_resting() { self.credited.now.min(now) } else { now }
    }
}

impl Watched {
    /// Takes in what it has run by now.
    pub fn told_of_running(&mut self, ran: Option<Ran>, moment: Moment, tuning: &Tuning) {
        let before = self.activity;
        let same = ran.is_some_and(|ran| !ran.now) && before.ran == ran;
        if let Some(since) = before.still_since.filter(|_| before.is_resting()) {
            // When it ran again is not known, but until it was last asked it did not.
            let until = if same { moment } else { before.asked };
            let length = until.at.saturating_sub(before.credited.at);
            // Seldom, as it takes time in proportion to what there is.
            if !same || length >= tuning.rest_pause * 1000 {
                self.credit_rest(until.at.saturating_sub(since), length, until, tuning);
                self.activity.credited = until;
            }
            if !same {
                self.end_rest(since, moment, tuning);
            }
        } else if let Some(since) = before.still_since.filter(|_| !same) {
            self.begin_windows_at(before.asked.at, since);
        }
        let activity = &mut self.activity;
        if same {
            activity.still_since.get_or_insert(before.asked.at);
            activity.busy = Some(0.0);
        } else {
            (activity.still_since, activity.settled) = (None, false);
            activity.busy = before.ran.zip(ran).map(|(before_ran, ran)| {
                let passed = (moment.at.saturating_sub(before.asked.at) as f32 / 1000.0).max(1.0);
                (ran.mark.saturating_sub(before_ran.mark) as f32 / passed).max(1.0)
            });
        }
        (activity.ran, activity.asked) = (ran, moment);
    }

    /// It has rested for `rest` until then, `length` of that since the last credit, in thousandths of an interval.
    ///
    /// What is watched shows what it accesses when it runs again, so each rest adds to what is known of it. What is not watched
    /// may be accessed whenever it runs, unseen: that it is idle meanwhile says something only while that lasts, and only if
    /// it lasts longer than what is accessed at all was ever idle.
    fn credit_rest(&mut self, rest: u64, length: u64, until: Moment, tuning: &Tuning) {
        let (rest, length) = (rest as f32 / 1000.0, length as f32 / 1000.0);
        let mut changed = false;
        self.blocks.iter_mut().for_each(super::target::Block::rouse);
        for cell in self.blocks.iter_mut().flat_map(super::target::Block::used) {
            let before = cell.evidence;
            match &mut cell.state {
                State::Absent => continue,
                State::Watching { since, .. } => {
                    *since = until.at.max(*since);
                    cell.evidence.take(Shown::default(), length, true, until.now, tuning);
                }
                State::Unseen | State::Lit | State::Blind(_) => {
                    let least = if before.hits > 0.0 { tuning.surprise_idle / before.rate() } else { 0.0 };
                    if rest < least.max(tuning.rest_least) {
                        continue;
                    }
                    cell.evidence = Evidence::of(0.0, rest.min(tuning.most_exposure), false, until.now);
                    if cell.state == State::Lit {
                        cell.state = State::Unseen;
                    }
                }
            }
            // More exposure than that makes no difference to what is drawn of idle memory.
            changed |= before.hits > 0.0 || before.exposure < tuning.long_idle;
        }
        if changed {
            self.dirty = true;
            self.take_census(until.now, tuning);
        }
    }

    /// What was cleared since it was `still` could not be accessed before it ran again, which was later than `at`.
    fn begin_windows_at(&mut self, at: u64, still: u64) {
        self.blocks.iter_mut().for_each(super::target::Block::rouse);
        for cell in self.blocks.iter_mut().flat_map(super::target::Block::used) {
            if let State::Watching { since, .. } = &mut cell.state
                && *since >= still
            {
                *since = at.max(*since);
            }
        }
    }

    /// It runs again: what was known of unwatched memory because it did not is known no more.
    fn end_rest(&mut self, since: u64, moment: Moment, tuning: &Tuning) {
        let began = moment.now.saturating_sub(moment.at.saturating_sub(since) / 1000);
        for cell in self.blocks.iter_mut().flat_map(super::target::Block::used) {
            let watched = matches!(cell.state, State::Watching { .. } | State::Absent);
            if !watched && cell.evidence.hits <= 0.0 && cell.evidence.last > began {
                cell.evidence = Evidence::default();
                self.dirty = true;
            }
        }
        if self.dirty {
            self.take_census(moment.now, tuning);
        }
    }
}

/// Targets that are known to run, most CPU time first: where the heat is, most likely.
pub(super) fn busiest(targets: &[Watched]) -> Vec<usize> {
    let busy = |t: &Watched| t.activity.busy.filter(|busy| *busy > 0.0);
    let mut busiest: Vec<usize> = Vec::new();
    busiest.extend(targets.iter().enumerate().filter(|(_, t)| busy(t).is_some()).map(|(i, _)| i));
    let of = |i: &usize| targets.get(*i).and_then(busy).unwrap_or(0.0);
    busiest.sort_by(|a, b| of(b).total_cmp(&of(a)));
    busiest
}

#[cfg(test)]
mod tests {
    use super::super::cell::Cell;
    use super::super::target::Block;
    use super::*;
    use crate::TargetId;

    #[test]
    fn what_was_cleared_of_one_that_did_not_run_counts_from_when_it_was_last_known_not_to() {
        let ran = |mark| Some(Ran { mark, now: false });
        let at = |now| Moment { now, at: now * 1000 };
        let watching = |since| State::Watching { since, due: 0, doubtful_until: 0 };
        let mut block = Block::new(0, None);
        // Cleared before it was known not to run, and since.
        for (cell, since) in block.cells.iter_mut().zip([10_000, 50_000]) {
            *cell = Cell { present: 1, window: 1, state: watching(since), ..Cell::default() };
        }
        let mut target = Watched::new(TargetId(1));
        target.blocks.push(block);
        for (now, mark) in [(40, 7), (60, 7), (200, 7)] {
            target.told_of_running(ran(mark), at(now), &super::super::tuning::AT_5_MS);
        }
        assert!(target.activity.is_still() && !target.activity.is_resting());
        target.told_of_running(ran(9), at(330), &super::super::tuning::AT_5_MS);
        let states: Vec<State> =
            target.blocks.iter().flat_map(|b| &b.cells).take(2).map(|c| c.state).collect();
        assert_eq!(states, [watching(10_000), watching(200_000)]);
    }
}

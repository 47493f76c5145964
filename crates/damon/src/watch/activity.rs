//! Which targets run. A process that did not run accessed nothing: all of its memory was idle for as long, and to know that
//! takes no clear and no look. Of a machine's processes nearly all sleep nearly always.
//!
//! Now and then each target is asked for a mark of what it has run. When the mark is what it was before, the target is *still*
//! since then: clearing its memory would show nothing. Once all of it was looked at as well, so that what it accessed before is
//! known, it is *resting*: looks would show nothing either. From time to time, and when it runs again, what it has is credited
//! with having been idle for so long.

use super::Watched;
use super::cell::{Moment, State};
use super::evidence::Verdict;
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
        if before.is_resting() {
            // When it ran again is not known, but until it was last asked it did not.
            let until = if same { moment } else { before.asked };
            let length = until.at.saturating_sub(before.credited.at);
            // Seldom, as it takes time in proportion to what there is.
            if length >= tuning.rest_pause * 1000 || !same && length > 0 {
                self.credit_rest(length as f32 / 1000.0, until, tuning);
                self.activity.credited = until;
            }
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

    /// All of its memory was idle for `length` intervals, until then.
    fn credit_rest(&mut self, length: f32, until: Moment, tuning: &Tuning) {
        let mut changed = false;
        for cell in self.blocks.iter_mut().flat_map(super::target::Block::used) {
            let before = cell.evidence;
            // More exposure than that makes no difference to what is drawn of idle memory.
            changed |= before.hits > 0.0 || before.exposure < super::draw::LONG_IDLE;
            match &mut cell.state {
                State::Absent => continue,
                State::Watching { since, .. } => *since = until.at.max(*since),
                State::Unseen | State::Lit | State::Blind(_) => {}
            }
            let verdict = cell.evidence.take(0.0, length, true, until.now, tuning);
            if cell.state == State::Lit && (verdict == Verdict::Silent || cell.evidence.hits <= 0.0) {
                cell.state = State::Unseen;
            }
        }
        if changed {
            self.dirty = true;
            self.take_census(until.now, tuning);
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

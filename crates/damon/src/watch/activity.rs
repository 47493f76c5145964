//! Which targets run. A process that did not run accessed nothing: all of its memory was idle for as long, and to know that
//! takes no clear and no look. Of a machine's processes nearly all sleep nearly always.

use super::Watched;
use super::cell::{Moment, State};
use super::evidence::Verdict;
use super::tuning::Tuning;
use alloc::vec::Vec;

/// What is known of a target's running.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Activity {
    /// What it had run when it was last asked for, and when that was, in thousandths of an interval; 0: never.
    ran: Option<u64>,
    asked: u64,
    /// CPU time it took between the last two times it was asked for, ns an interval; `None`: not known.
    pub busy: Option<f32>,
    /// It has not run since then.
    still_since: Option<u64>,
    /// All of its memory was looked at since, so that what it had accessed before is known.
    settled: bool,
    /// Up to then it was credited with having been idle, as interval and in thousandths.
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

    /// All of its memory was looked at.
    pub fn looked(&mut self, moment: Moment) {
        if self.still_since.is_some() && !self.settled {
            self.settled = true;
            self.credited = moment;
        }
    }

    /// The moment to which evidence reaches without fading: of a target that rests, nothing changes.
    pub fn as_of(&self, now: u64) -> u64 {
        if self.is_resting() { self.credited.now.min(now) } else { now }
    }
}

impl Watched {
    /// Takes in what it has run by now.
    pub fn told_of_running(&mut self, ran: Option<u64>, moment: Moment, tuning: &Tuning) {
        let before = self.activity;
        let same = ran.is_some() && before.ran == ran;
        if before.is_resting() {
            let since = before.credited;
            let until = if same { moment.at } else { before.asked };
            let length = until.saturating_sub(since.at);
            // Seldom, and when it wakes up: it takes time in proportion to what there is.
            let pause = tuning.rest_pause * 1000;
            if length >= pause || !same {
                self.credit_rest(length as f32 / 1000.0, moment, tuning);
                self.activity.credited = moment;
            }
        }
        let activity = &mut self.activity;
        if same {
            activity.still_since.get_or_insert(before.asked);
            activity.busy = Some(0.0);
        } else {
            (activity.still_since, activity.settled) = (None, false);
            activity.busy = before.ran.zip(ran).map(|(before_ns, ns)| {
                let passed = (moment.at.saturating_sub(before.asked) as f32 / 1000.0).max(1.0);
                (ns.saturating_sub(before_ns) as f32 / passed).max(1.0)
            });
        }
        (activity.ran, activity.asked) = (ran, moment.at);
    }

    /// All of its memory was idle for `length` intervals.
    fn credit_rest(&mut self, length: f32, moment: Moment, tuning: &Tuning) {
        let mut changed = false;
        for cell in self.blocks.iter_mut().flat_map(super::target::Block::used) {
            let before = cell.evidence;
            changed |= before.hits > 0.0 || before.exposure < 200.0;
            match &mut cell.state {
                State::Absent => continue,
                State::Watching { since, .. } => *since = moment.at,
                State::Unseen | State::Lit | State::Blind(_) => {}
            }
            let verdict = cell.evidence.take(0.0, length, true, moment.now, tuning);
            if cell.state == State::Lit && (verdict == Verdict::Silent || cell.evidence.hits <= 0.0) {
                cell.state = State::Unseen;
            }
        }
        if changed {
            self.dirty = true;
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

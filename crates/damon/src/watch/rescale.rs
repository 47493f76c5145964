//! The sampling interval changes: all that is counted in intervals (times, lengths, exposure) keeps its meaning, and windows go on.

use super::cell::{Cell, Moment, State};
use super::evidence::Evidence;
use super::{Stretch, Watch, Watched};

/// Intervals become `ratio` times as many, seen from the interval `now`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rescale {
    ratio: f64,
    now: u64,
}

impl Rescale {
    /// From intervals of `old` to those of `new`, at interval `now`.
    pub fn new(old: u64, new: u64, now: u64) -> Self {
        Self { ratio: old as f64 / new.max(1) as f64, now }
    }

    /// A moment in the past or to come, in intervals; 0, which is never, stays.
    pub fn time(self, at: &mut u64) {
        let far = |from: u64, to: u64| (to.saturating_sub(from) as f64 * self.ratio + 0.5) as u64;
        *at = match *at {
            // Never, or at any time.
            0 | u64::MAX => return,
            past if past <= self.now => self.now.saturating_sub(far(past, self.now)).max(1),
            coming => self.now.saturating_add(far(self.now, coming)),
        };
    }

    /// An exact moment ([`Moment::at`]): that is the caller's clock, in thousandths of an interval.
    pub fn exact(self, at: &mut u64) {
        *at = (*at as f64 * self.ratio + 0.5) as u64;
    }

    /// Both.
    pub fn moment(self, moment: &mut Moment) {
        self.time(&mut moment.now);
        self.exact(&mut moment.at);
    }

    /// A number of intervals.
    pub fn length(self, intervals: &mut f32) {
        *intervals = (f64::from(*intervals) * self.ratio) as f32;
    }

    /// Something for each interval.
    pub fn each(self, value: &mut f32) {
        *value = (f64::from(*value) / self.ratio) as f32;
    }

    fn evidence(self, evidence: &mut Evidence) {
        self.length(&mut evidence.exposure);
        self.length(&mut evidence.idle);
        self.time(&mut evidence.last);
    }

    fn cell(self, cell: &mut Cell) {
        self.evidence(&mut cell.evidence);
        self.exact(&mut cell.opened_at);
        for at in [&mut cell.hit_at, &mut cell.blind_since] {
            self.time(at);
        }
        if let Some(appeared) = &mut cell.appeared {
            self.time(&mut appeared.at);
            self.length(&mut appeared.within);
        }
        if let State::Watching { since, due, doubtful_until } = &mut cell.state {
            self.exact(since);
            self.time(due);
            self.time(doubtful_until);
        }
    }

    fn stretch(self, stretch: &mut Stretch) {
        self.evidence(&mut stretch.evidence);
        self.length(&mut stretch.missed);
        for at in [&mut stretch.checked, &mut stretch.silent_at, &mut stretch.heard] {
            self.time(at);
        }
        self.time(&mut stretch.apart_until);
        // Rates of checks: there will be others.
        stretch.places.clear();
        stretch.split = None;
    }

    fn target(self, target: &mut Watched) {
        for block in &mut target.blocks {
            block.looked.iter_mut().for_each(|at| self.time(at));
            self.time(&mut block.left_at);
            block.rouse();
            block.cells.iter_mut().for_each(|cell| self.cell(cell));
        }
        target.stretches.iter_mut().for_each(|stretch| self.stretch(stretch));
        target.due.iter_mut().for_each(|(at, _)| self.time(at));
        target.results.clear();
        target.activity.rescale(self);
        target.theft.rescale(self);
        target.surveyed.iter_mut().chain(&mut target.turned).for_each(|at| self.time(at));
        target.turn_began.iter_mut().for_each(|at| self.exact(at));
        for at in [
            &mut target.grew,
            &mut target.none_forgotten_until,
            &mut target.counted,
            &mut target.drawn,
            &mut target.swept,
            &mut target.retried,
        ] {
            self.time(at);
        }
        (target.dirty, target.changed) = (true, true);
    }
}

impl Watch {
    pub(super) fn rescale_all(&mut self, by: Rescale) {
        self.targets.iter_mut().for_each(|target| by.target(target));
        self.sweep_at.iter_mut().for_each(|at| by.time(at));
        for at in [&mut self.checks_at, &mut self.planned_at, &mut self.hurried, &mut self.lent_until] {
            by.time(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_keep_their_distance_in_time() {
        let by = Rescale::new(20, 5, 1000);
        let of = |mut at: u64| {
            by.time(&mut at);
            at
        };
        // 10 intervals of 20 are 40 of 5, before and after.
        assert_eq!([990, 1000, 1010].map(of), [960, 1000, 1040]);
        // What is further away than time has passed is long ago, not never, and never stays so.
        assert_eq!([1, 0, u64::MAX].map(of), [1, 0, u64::MAX]);
        let mut at = 999_500;
        by.exact(&mut at);
        assert_eq!(at, 3_998_000);
        let (mut length, mut each) = (10.0, 8.0);
        by.length(&mut length);
        by.each(&mut each);
        assert_eq!((length, each), (40.0, 2.0));
    }
}

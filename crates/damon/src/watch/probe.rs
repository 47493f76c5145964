//! One watched page.

use crate::{AddrRange, Check, Seen};

/// Where a probe stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum State {
    /// Never cleared: its bit may be years old.
    #[default]
    Unknown,
    /// Idle (or nothing mapped there) as of the last look.
    Watching,
    /// Seen accessed; says nothing more until cleared again.
    Lit,
    /// The backend cannot watch this page.
    Blind,
}

/// A page that is, was or will be watched.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Probe {
    /// Where to look.
    pub addr: u64,
    /// The addresses that share this page's Accessed bit.
    pub unit: AddrRange,
    pub state: State,
    /// Whether what it shows is counted: within a run, or in memory expected to be cold.
    pub counting: bool,
    /// Last look (or clear), as a sampling interval.
    pub since: u64,
    /// Start of the present idle streak.
    pub idle_since: u64,
    /// First sampling interval past the run; 0: no run.
    pub run_end: u64,
    /// Length of the run to start with the next clear; 0: watch without end.
    pub run_length: u32,
    /// Within a run, how many intervals lie between looks.
    pub period: u32,
    /// In this aggregation: intervals seen accessed.
    pub hits: f32,
    /// In this aggregation: intervals watched.
    pub watched: f32,
}

/// A page that was expected to be cold and turns out accessed is cleared again at once, and looked at in each of so
/// many intervals, to tell hot from lukewarm.
const VERIFY_RUN: u64 = 4;
/// After so many accesses in an aggregation it is hot, and not worth more clears.
const MAX_HITS: f32 = 2.0;

/// How many intervals may lie between looks at a page accessed with probability `rate` in each: so few that two
/// accesses seldom fall between two looks; a power of two.
pub(super) fn look_period(rate: f32) -> u32 {
    match rate {
        r if r > 0.3 => 1,
        r if r > 0.15 => 2,
        r if r > 0.07 => 4,
        _ => 8,
    }
}

impl Probe {
    pub fn new(addr: u64, min_region: u64) -> Self {
        Self { addr, unit: AddrRange::new(addr, addr + min_region), ..Self::default() }
    }

    /// Whether a look in interval `now` would tell something new.
    pub fn is_watching(&self, now: u64) -> bool {
        self.state == State::Watching && self.since < now
    }

    /// In which interval this probe's run wants the next look, if it runs.
    pub fn due_at(&self, now: u64) -> Option<u64> {
        self.in_run(now)
            .then(|| (self.since + u64::from(self.period.max(1))).min(self.run_end.max(self.since + 1)))
    }

    pub fn in_run(&self, now: u64) -> bool {
        self.run_end >= now && self.run_end != 0
    }

    /// Takes in a look's result.
    pub fn looked(&mut self, check: &Check, now: u64) {
        let elapsed = now.saturating_sub(self.since).max(1) as f32;
        self.set_unit(check);
        match check.seen {
            Seen::Accessed => {
                if self.counting {
                    self.hits += 1.0;
                    // Of the intervals since the last look, those before the access were trials, one a miss each. Those
                    // after it were too if accesses come at even distances (there was none), and were not if they come
                    // at random (there may have been more). Halfway between the two.
                    self.watched += (3.0 * elapsed + 1.0) / 4.0;
                    if self.run_length == 0 && self.hits <= MAX_HITS && !self.in_run(now + 1) {
                        self.run_end = now + VERIFY_RUN;
                        self.period = 1;
                    }
                }
                self.state = State::Lit;
                self.since = now;
            }
            Seen::Idle | Seen::Absent => {
                if self.counting {
                    self.watched += elapsed;
                }
                self.since = now;
            }
            Seen::Blind => self.state = State::Blind,
            Seen::Unchecked => {}
        }
        if self.run_end != 0 && now >= self.run_end {
            self.run_end = 0;
            // What follows a run depends on how it ended, so it must not count.
            self.counting = self.run_length == 0 && self.state == State::Watching;
        }
    }

    /// Takes in a clear's result.
    pub fn prepared(&mut self, check: &Check, now: u64) {
        self.set_unit(check);
        match check.seen {
            Seen::Idle | Seen::Absent => {
                self.state = State::Watching;
                self.since = now;
                self.idle_since = now;
                if self.run_end == 0 && self.run_length != 0 {
                    self.run_end = now + u64::from(self.run_length);
                }
                self.counting = true;
            }
            Seen::Blind => self.state = State::Blind,
            Seen::Accessed | Seen::Unchecked => self.state = State::Lit,
        }
    }

    fn set_unit(&mut self, check: &Check) {
        if check.unit.is_power_of_two() {
            let start = check.addr & !(check.unit - 1);
            self.unit = AddrRange::new(start, start.saturating_add(check.unit));
        }
    }

    /// What it showed in this aggregation, as far as that may count: (intervals accessed, intervals watched).
    /// `expected` is the access probability an interval that its region had so far.
    pub fn evidence(&self, expected: f32, now: u64) -> Option<(f32, f32)> {
        if self.watched > 0.0 {
            return Some((self.hits, self.watched));
        }
        // Idle for far longer than the region's rate allows: cold, however the watch began.
        let idle = now.saturating_sub(self.idle_since) as f32;
        (self.state == State::Watching && idle * expected > 4.0).then_some((0.0, idle.min(20.0)))
    }

    /// Begins a new aggregation.
    pub fn reset(&mut self) {
        self.hits = 0.0;
        self.watched = 0.0;
    }
}

//! One watched page.

use super::count::Count;
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
    /// What it showed in this aggregation.
    pub fresh: Count,
    /// The part of it that came after its first access.
    pub after: Count,
    /// What it showed before, as far as it is remembered.
    pub past: Count,
    /// When it was last chosen for a check of hot memory.
    pub chosen: u64,
}

/// A page that was expected to be cold and turns out accessed is cleared again at once, and looked at in each of so
/// many intervals, to tell hot from lukewarm.
const VERIFY_RUN: u64 = 2;
/// After so many accesses in an aggregation nothing more is verified: it is hot, and not worth more clears.
const MAX_HITS: f32 = 1.0;

/// How many intervals may lie between looks at a page accessed with probability `rate` in each: so few that two
/// accesses seldom fall between two looks; a power of two.
pub(super) fn look_period(rate: f32) -> u32 {
    match rate {
        r if r > 0.3 => 1,
        r if r > 0.1 => 2,
        r if r > 0.03 => 4,
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
                    self.count(Count::accessed_within(elapsed));
                    if self.run_length == 0
                        && self.fresh.hits + self.fresh.late <= MAX_HITS
                        && !self.in_run(now + 1)
                    {
                        self.run_end = now + VERIFY_RUN;
                        self.period = 1;
                    }
                }
                self.state = State::Lit;
                self.since = now;
            }
            Seen::Idle | Seen::Absent => {
                if self.counting {
                    self.count(Count::new(0.0, elapsed));
                }
                self.since = now;
            }
            Seen::Blind => self.state = State::Blind,
            Seen::Unchecked => {}
        }
        if self.run_end != 0 && now >= self.run_end {
            self.run_end = 0;
            // What follows a run depends on how it ended, so it must not count. But memory that was hot and showed no
            // access in a run has perhaps turned cold: watching it further is free, and decides that.
            let silent = self.fresh.hits + self.fresh.late <= 0.0;
            self.counting = self.state == State::Watching && (self.run_length == 0 || silent);
        }
    }

    fn count(&mut self, count: Count) {
        if self.fresh.hits + self.fresh.late > 0.0 {
            self.after = self.after.plus(count);
        }
        self.fresh = self.fresh.plus(count);
    }

    /// Whether this aggregation contradicts what was `known` before; `None` when it has nothing to say. A single late
    /// access says nothing (slow loops touch all of an array at once, now and then), what follows it does.
    pub fn contradicts(&self, known: Count) -> Option<bool> {
        let telling = if self.fresh.late > 0.0 { self.after } else { self.fresh };
        (!telling.is_empty() && !known.is_empty()).then(|| telling.contradicts(known))
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

    /// What it showed in this aggregation, as far as that may count. `expected` is the access probability an interval
    /// that its region had so far.
    pub fn evidence(&self, expected: f32, now: u64) -> Count {
        if !self.fresh.is_empty() {
            return self.fresh;
        }
        // Idle for far longer than the region's rate allows: cold, however the watch began.
        let idle = now.saturating_sub(self.idle_since) as f32;
        let cold = self.state == State::Watching && idle * expected > 4.0;
        if cold { Count::new(0.0, idle.min(20.0)) } else { Count::default() }
    }

    /// Ends an aggregation: of what is remembered a share is `kept` and `fresh` added, unless the two contradict each
    /// other or the whole region has `changed`.
    pub fn remember(&mut self, changed: bool, kept: f32) {
        let other = self.contradicts(self.past) == Some(true);
        let fresh = core::mem::take(&mut self.fresh);
        self.after = Count::default();
        self.past = if changed || other { fresh } else { self.past.times(kept).plus(fresh) };
    }
}

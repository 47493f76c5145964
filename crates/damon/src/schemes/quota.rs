//! Quotas: how much a scheme may do in a window of time.
//!
//! A window opens with the first pass that finds the last one as old as `reset_interval`, and its effective size, in bytes, is
//! fixed then: the least of `bytes`, what `time` is enough for at the throughput measured, and the size that goals tuned. What
//! is charged are bytes tried. The window is full when less than a least region is left; none of its passes goes further. It
//! is closed earlier when a unit that cannot be divided has its turn and does not fit: that one comes first in the next window.
//!
//! # Time
//! The kernel's windows take longer than `time` whenever throughput falls. Here:
//! - actions are asked for in pieces that should take half of the time left, at the slowest [`Pace`] of recent calls;
//! - each is given the time left, ends when that is over, and says how far it came ([`Outcome::until`](super::Outcome::until));
//! - nothing is asked for that is going to take longer than what is left, but for one least call in a window in which nothing
//!   was done yet, so that a scheme whose least call takes longer than a window gets on at all;
//! - what a window took too long is taken off those that follow.
//!
//! **The bound.** A *least call* is one that an action cannot end in the middle of. No window takes longer than `time` and one
//! least call, and no number of windows in a row longer than so many times `time` and one least call: each that was too long is
//! made up for before anything else is done. An action that cannot stop at all has all of a piece for its least call.
//!
//! A pass under a quota, of whatever kind, takes no more than three quarters of the time until the next one, and leaves the rest of
//! its window to that: sampling goes on meanwhile.
//!
//! The effective size goes by the mean throughput of recent windows, not of all since the start, or by the pace where that is
//! higher: one call that was slow by chance does not count for long.

use super::error::{Field, SchemeError};
use super::goal::{Feedback, Goal};
use super::pace::{Pace, SKIPPED_SHARE};
use super::tuner::{GoalTuner, Range, Tuned};
use crate::PAGE_SIZE;
use alloc::vec::Vec;
use core::num::NonZeroU32;
use core::time::Duration;

/// How the properties of a region weigh for its priority, against each other (kernel: permil). All 0: all regions are equal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weights {
    /// Of the size.
    pub size: u32,
    /// Of the access frequency.
    pub frequency: u32,
    /// Of the age.
    pub age: u32,
}

/// What bytes on which the action failed are charged: `num / denom` of them, rounded up. Without it, all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailCharge {
    /// Numerator.
    pub num: u32,
    /// Denominator.
    pub denom: NonZeroU32,
}

/// Limits of what a scheme does in a window of time (kernel design document, "Quotas").
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Bytes in a window.
    pub bytes: Option<u64>,
    /// Time that actions may take in a window, by the clock of those who act ([`Outcome::took_ns`](super::Outcome::took_ns)).
    pub time: Option<Duration>,
    /// Length of a window. 0: each pass has one of its own.
    pub reset_interval: Duration,
    /// Which regions come first, where the action has a temperature ([`Action`](super::Action)): `pageout`, `lru_deprio` and
    /// `migrate_cold` take colder ones first, `lru_prio` and `migrate_hot` hotter ones. The others take regions by turns.
    pub weights: Weights,
    /// Figures of the system that tune the size of a window.
    pub goals: Vec<Goal>,
    /// How they tune it.
    pub tuner: GoalTuner,
    /// What failed bytes are charged.
    pub fail_charge: Option<FailCharge>,
}

impl Default for Quota {
    /// No limit; windows of a second, once there is one.
    fn default() -> Self {
        Self {
            bytes: None,
            time: None,
            reset_interval: Duration::from_secs(1),
            weights: Weights::default(),
            goals: Vec::new(),
            tuner: GoalTuner::default(),
            fail_charge: None,
        }
    }
}

/// Throughput before anything was measured (kernel: 1024 pages a millisecond).
const FIRST_BYTES_A_MS: u64 = 1024 * PAGE_SIZE;

/// Of the time until the next pass this part is for actions, the rest for monitoring, which the same thread does. A guess.
const PASS_SHARE: (u64, u64) = (3, 4);

/// Throughput is measured over so many windows' time: what is older counts for half.
const REMEMBERED: u64 = 8;

/// No more than this part of a window's bytes is left unused for what costs less as a whole. A guess: a block of 2 MiB that is paged
/// out page by page costs six times as much, so that a window of 8 MiB that is left unused by a quarter costs a third as much.
const UNUSED: u64 = 4;

/// Share of a window's time in which no call is begun any more.
const RESERVE: u64 = 10;

/// It is no more than this: so long a busy machine keeps a thread waiting, mostly.
const LONGEST_WAIT_NS: u64 = 5_000_000;

impl Quota {
    /// Whether there is any limit.
    pub fn is_limited(&self) -> bool {
        self.bytes.is_some() || self.time.is_some() || !self.goals.is_empty()
    }

    /// What is wrong with it.
    pub(super) fn problems(&self) -> impl Iterator<Item = SchemeError> {
        let bytes = (self.bytes == Some(0)).then(|| SchemeError::zero(Field::QuotaBytes));
        let time = self.time.is_some_and(|time| time.is_zero()).then(|| SchemeError::zero(Field::QuotaTime));
        let goals = self.goals.iter().enumerate().filter_map(|(index, goal)| goal.validate(index).err());
        bytes.into_iter().chain(time).chain(goals)
    }

    fn time_ns(&self) -> Option<u64> {
        self.time.map(ns)
    }
}

pub(super) fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// What is charged for a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    /// Bytes tried.
    pub tried: u64,
    /// Those of them on which it took effect.
    pub applied: u64,
    /// Bytes only looked at.
    pub skipped: u64,
    /// How long it took.
    pub took_ns: u64,
    /// How long it waited besides.
    pub waited_ns: u64,
}

/// The running window of a scheme's quota.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Window {
    opened_ns: Option<u64>,
    /// Bytes it may charge.
    effective: u64,
    /// The same as far as bytes and goals limit it, not time.
    limit: u64,
    charged: u64,
    /// Bytes that were only looked at.
    skipped: u64,
    /// Something was tried in it.
    used: bool,
    /// What comes next does not fit.
    closed: bool,
    /// Nanoseconds in which calls are made.
    time_ns: Option<u64>,
    /// What is kept back beside them: a call that is preempted, or waits, takes longer than anybody can know before.
    reserve_ns: u64,
    spent_ns: u64,
    /// Taken beyond the time of earlier windows, and not yet made up for.
    overrun_ns: u64,
    /// Throughput: bytes tried, and how long that took.
    tried: u64,
    took_ns: u64,
    /// How long calls are going to take.
    pace: Pace,
    /// Nanoseconds that the running pass may take, and those it took.
    pass_ns: u64,
    pass_spent_ns: u64,
    /// What comes next is left for the next pass.
    rests: bool,
    /// What goals tuned.
    tuned: Tuned,
}

impl Window {
    /// Whether the next one is to be opened.
    pub fn is_over(&self, quota: &Quota, now_ns: u64) -> bool {
        self.opened_ns.is_none_or(|opened| now_ns.saturating_sub(opened) >= ns(quota.reset_interval))
    }

    /// How long ago it was opened; 0 for the first.
    pub fn elapsed_ns(&self, now_ns: u64) -> u64 {
        self.opened_ns.map_or(0, |opened| now_ns.saturating_sub(opened))
    }

    /// Opens the next window. `feedback` is of the goals, if there are any; `monitored` is the number of bytes that there are
    /// at all. Whether the window before ended full.
    pub fn open(
        &mut self,
        quota: &Quota,
        now_ns: u64,
        feedback: Option<Feedback>,
        monitored: u64,
        min_region: u64,
    ) -> bool {
        let was_full = self.opened_ns.is_some() && self.is_full(min_region);
        let elapsed = self.elapsed_ns(now_ns);
        let asked = quota.time_ns();
        if let Some(asked) = asked {
            let over = self.allowed_ns().map_or(0, |allowed| self.spent_ns.saturating_sub(allowed));
            // Windows in which there was no pass made up for some of it.
            let windows = elapsed.checked_div(ns(quota.reset_interval)).unwrap_or(1);
            let idle = windows.saturating_sub(1);
            let owed = self.overrun_ns.saturating_add(over).saturating_sub(idle.saturating_mul(asked));
            let allowed = asked.saturating_sub(owed);
            self.overrun_ns = owed - (asked - allowed);
            self.allow(allowed);
            if self.took_ns / REMEMBERED > asked {
                (self.tried, self.took_ns) = (self.tried / 2, self.took_ns / 2);
            }
        } else {
            (self.time_ns, self.reserve_ns, self.overrun_ns) = (None, 0, 0);
        }
        (self.opened_ns, self.charged, self.spent_ns) = (Some(now_ns), 0, 0);
        (self.skipped, self.used, self.closed) = (0, false, false);
        self.effective = quota.bytes.unwrap_or(u64::MAX);
        if let Some(feedback) = feedback {
            let range = Range { least: min_region, most: self.most(quota, monitored) };
            self.effective = self.effective.min(self.tuned.next(quota.tuner, feedback, was_full, range));
        }
        self.limit = self.effective;
        if let Some(allowed) = self.allowed_ns().filter(|&allowed| allowed > 0) {
            // The least there is is done once, however long it takes.
            let by_time = self.bytes_in(allowed).max(self.pace.known_bytes_in(allowed).unwrap_or(0));
            self.effective = self.effective.min(by_time.max(min_region));
        }
        was_full
    }

    /// More than this a window cannot do, whatever goals say.
    fn most(&self, quota: &Quota, monitored: u64) -> u64 {
        let in_time = quota.time_ns().map_or(u64::MAX, |time| self.bytes_in(time));
        let most = quota.bytes.unwrap_or(u64::MAX).min(in_time);
        if monitored == 0 { most } else { most.min(monitored) }
    }

    /// Bytes that can be tried in so much time.
    fn bytes_in(&self, time_ns: u64) -> u64 {
        let bytes = if self.took_ns == 0 || self.tried == 0 {
            u128::from(FIRST_BYTES_A_MS) * u128::from(time_ns) / 1_000_000
        } else {
            u128::from(self.tried) * u128::from(time_ns) / u128::from(self.took_ns)
        };
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    /// When it was opened.
    pub const fn opened_ns(&self) -> Option<u64> {
        self.opened_ns
    }

    /// What the window may charge, in bytes.
    pub const fn effective(&self) -> u64 {
        self.effective
    }

    /// A pass begins; the next one is due in so long.
    pub fn begin_pass(&mut self, interval: Duration) {
        (self.pass_ns, self.pass_spent_ns, self.rests) =
            (ns(interval) / PASS_SHARE.1 * PASS_SHARE.0, 0, false);
    }

    /// It may take so many nanoseconds.
    fn allow(&mut self, allowed: u64) {
        self.reserve_ns = (allowed / RESERVE).min(LONGEST_WAIT_NS);
        self.time_ns = Some(allowed - self.reserve_ns);
    }

    /// Nanoseconds that it may take, where time is limited.
    fn allowed_ns(&self) -> Option<u64> {
        self.time_ns.map(|time| time + self.reserve_ns)
    }

    /// Nanoseconds left for actions in the window, where time is limited.
    fn time_left(&self) -> Option<u64> {
        self.time_ns.map(|time| time.saturating_sub(self.spent_ns))
    }

    /// Nanoseconds left for actions in this pass.
    pub fn pass_left(&self) -> u64 {
        let left = self.pass_ns.saturating_sub(self.pass_spent_ns);
        self.time_left().map_or(left, |time| time.min(left))
    }

    /// Whether no action fits into this pass any more.
    pub fn is_over_for_now(&self, min_region: u64) -> bool {
        self.rests || self.pass_left() == 0 || self.is_full(min_region)
    }

    /// Whoever acts stopped, since the next least call would take longer than [`Self::pass_left`]: nothing more is done in this
    /// pass, and in this window, if it was the window's time.
    pub fn stop(&mut self) {
        self.rests = true;
        self.closed |=
            self.time_left().is_some_and(|left| left <= self.pass_ns.saturating_sub(self.pass_spent_ns));
    }

    /// Whether no action fits any more.
    pub fn is_full(&self, min_region: u64) -> bool {
        let unit = min_region.max(1);
        let too_long = |left: u64| left == 0 || self.used && self.pace.bytes_in(left) < unit;
        self.closed || self.left() < unit || self.time_left().is_some_and(too_long)
    }

    /// How much of `size` bytes to ask for in one call: no more than is left, in whole least regions. Not while full.
    pub fn piece(&self, size: u64, min_region: u64) -> u64 {
        let unit = min_region.max(1);
        let whole = |bytes: u64| bytes - bytes % unit;
        let left = self.left();
        let piece = if size <= left { size } else { whole(left) };
        if self.time_ns.is_none() {
            return piece;
        }
        piece.min(whole(self.pace.piece(self.pass_left() / 2)).max(unit))
    }

    /// Whether a call for so many bytes, which cannot be divided, keeps to what is left. What was only looked at does not count:
    /// a window that tried nothing has room for as much as any, and takes a call however long that is.
    pub fn fits(&self, bytes: u64) -> bool {
        if !self.used {
            return bytes <= self.limit;
        }
        bytes <= self.effective.saturating_sub(self.charged)
            && self.time_left().is_none_or(|left| bytes <= self.pace.bytes_in(left))
    }

    /// Whether so many of its bytes are left that it should not be closed for what could be divided.
    pub fn has_much_left(&self) -> bool {
        self.left() > self.effective / UNUSED
    }

    /// Whether something was tried in it.
    pub const fn is_used(&self) -> bool {
        self.used
    }

    /// Nothing more is done in it.
    pub const fn close(&mut self) {
        self.closed = true;
    }

    /// Bytes left.
    const fn left(&self) -> u64 {
        self.effective.saturating_sub(self.charged.saturating_add(self.skipped / SKIPPED_SHARE))
    }

    /// Charges a call.
    pub fn charge(&mut self, call: Call, fail_charge: Option<FailCharge>) {
        let Call { tried, applied, skipped, took_ns, waited_ns } = call;
        self.used |= tried > 0;
        let charge = fail_charge.map_or(tried, |fail| {
            let failed = u128::from(tried - applied.min(tried)) * u128::from(fail.num);
            let failed = failed.div_ceil(u128::from(fail.denom.get()));
            applied.saturating_add(u64::try_from(failed).unwrap_or(u64::MAX))
        });
        self.charged = self.charged.saturating_add(charge);
        self.skipped = self.skipped.saturating_add(skipped);
        self.spent_ns = self.spent_ns.saturating_add(took_ns);
        self.pass_spent_ns = self.pass_spent_ns.saturating_add(took_ns.saturating_add(waited_ns));
        self.tried = self.tried.saturating_add(tried);
        self.took_ns = self.took_ns.saturating_add(took_ns);
        self.pace.learn(tried, skipped, took_ns);
    }

    /// The quota has other parameters now. What it was given for the running window it loses where it would get less now.
    pub fn commit(&mut self, quota: &Quota) {
        if !quota.is_limited() {
            self.opened_ns = None;
            (self.effective, self.limit) = (0, 0);
            return;
        }
        self.effective = self.effective.min(quota.bytes.unwrap_or(u64::MAX));
        self.limit = self.limit.min(quota.bytes.unwrap_or(u64::MAX));
        if let Some(time) = quota.time_ns().filter(|_| self.opened_ns.is_some()) {
            self.allow(self.allowed_ns().map_or(time, |before| before.min(time)));
        }
    }
}

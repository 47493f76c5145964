//! When the bytes of a segment were accessed last.
//!
//! The rates of snapshots say with which probability a page was accessed in an aggregation. So of the bytes of a segment it
//! is known how many were accessed last in which stretch of time, on the mean: an aggregation with probability `q` moves a
//! share `q` of whatever was accessed last before it into its own time. That is what a [`History`] keeps, as bytes by
//! time. It can be cut and joined without changing any sum.
//!
//! Stretches of time are joined the older they are, to an eighth of their age, and are taken to be even inside. So the
//! bytes that were accessed last near the end of a window are known to an eighth of the window's length; those accessed
//! all the time, or not at all, are exact.

use super::figures::{COLD_S, WINDOWS_S};

/// Times nearer to each other than this are the same, seconds: what rounding makes of them.
pub(super) const ROUNDING_S: f64 = 1e-6;

// The longer windows are as long as the times since which memory is cold, and the first needs no history.
const _: () = assert!(WINDOWS_S[1] == COLD_S[0] && WINDOWS_S[2] == COLD_S[1]);

/// Stretches shorter than this are not told apart, seconds. A guess: well below the shortest window of 1 s.
const FINEST_S: f64 = 0.25;

/// A stretch of time may be as long as this share of its age.
const SHARE_OF_AGE: f64 = 1.0 / 8.0;

/// Ages beyond this are all alike, seconds: no window is longer.
const OLDEST_S: f64 = 320.0;

/// Less than this share of a history is given to its neighbour in time.
const NEGLIGIBLE: f64 = 1e-5;

/// Bytes by when they were accessed last.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Spell {
    /// Seconds, `from <= to`. Of bytes that were not accessed since they became known: when that was.
    from: f64,
    to: f64,
    bytes: f64,
    /// Whether they were accessed then, or known to be idle from then on.
    accessed: bool,
}

/// Bytes by when they were accessed last.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct History {
    /// Those not accessed since they became known, then the others; both oldest first.
    spells: Vec<Spell>,
}

impl History {
    /// All bytes in it.
    pub fn bytes(&self) -> f64 {
        self.spells.iter().map(|s| s.bytes).sum()
    }

    /// Makes it one of `bytes` bytes: what is missing is known to be idle from `now` on; of what is too much nobody says
    /// which it is, so all of it shrinks alike.
    pub fn resize(&mut self, bytes: f64, now: f64) {
        let have = self.bytes();
        if bytes <= 0.0 {
            self.spells.clear();
        } else if have > bytes {
            self.scale(bytes / have);
        } else if bytes - have > bytes * 1e-9 {
            let idle = self.spells.partition_point(|s| !s.accessed);
            self.spells.insert(idle, Spell { from: now, to: now, bytes: bytes - have, accessed: false });
            self.compact(now);
        }
    }

    /// So many bytes of which it was known to be idle that nothing was there are there since `at`: nobody can say that they were idle for
    /// longer. It is the oldest that are taken for them.
    pub fn arrive(&mut self, bytes: f64, at: f64) {
        let mut left = bytes;
        for spell in self.spells.iter_mut().take_while(|s| !s.accessed) {
            let taken = left.min(spell.bytes);
            (spell.bytes, left) = (spell.bytes - taken, left - taken);
        }
        if left >= bytes {
            return;
        }
        self.spells.retain(|s| s.bytes > 0.0);
        let idle = self.spells.partition_point(|s| !s.accessed);
        self.spells.insert(idle, Spell { from: at, to: at, bytes: bytes - left, accessed: false });
        self.compact(at);
    }

    /// Leaves this share of all bytes.
    pub fn scale(&mut self, share: f64) {
        self.spells.iter_mut().for_each(|s| s.bytes *= share);
    }

    /// Cuts off a share of its bytes, 0..=1, and returns that.
    pub fn split_off(&mut self, share: f64) -> Self {
        let mut other = self.clone();
        other.scale(share);
        self.scale(1.0 - share);
        other
    }

    /// Takes in the bytes of `other`.
    pub fn join(&mut self, other: Self, now: f64) {
        if self.spells.is_empty() {
            *self = other;
            return;
        }
        self.spells.extend(other.spells);
        self.spells.sort_by(|a, b| {
            (a.accessed, a.to).partial_cmp(&(b.accessed, b.to)).unwrap_or(std::cmp::Ordering::Equal)
        });
        self.compact(now);
    }

    /// From `from` to `to` seconds each byte was accessed at a rate of `per_s` a second, at random.
    pub fn pass(&mut self, per_s: f64, from: f64, to: f64) {
        if per_s <= 0.0 || to <= from || self.spells.is_empty() {
            return;
        }
        let all = self.bytes();
        // Backwards from the end in steps that grow with age, as the stretches may.
        let mut steps = [0.0; 64];
        let mut nr = 0;
        let mut age = 0.0;
        while age < to - from && nr + 1 < steps.len() {
            age = (age + FINEST_S.max(age * SHARE_OF_AGE)).min(to - from);
            steps[nr] = age;
            nr += 1;
        }
        steps[nr.saturating_sub(1)] = to - from;
        let (mut old, mut left) = (to - from, (-per_s * (to - from)).exp());
        self.scale(left);
        for i in (0..nr).rev() {
            let young = if i == 0 { 0.0 } else { steps[i - 1] };
            let later = if i == 0 { 1.0 } else { (-per_s * young).exp() };
            let bytes = all * (later - left);
            if bytes > 0.0 {
                self.spells.push(Spell { from: to - old, to: to - young, bytes, accessed: true });
            }
            (old, left) = (young, later);
        }
        self.compact(to);
    }

    /// Joins what need not be told apart.
    fn compact(&mut self, now: f64) {
        let negligible = self.bytes() * NEGLIGIBLE;
        // What is negligible counts as accessed: the error is on the side of not calling it cold.
        self.spells.dedup_by(|next, kept| {
            let longest = FINEST_S.max((now - next.to) * SHARE_OF_AGE);
            let alike = next.accessed == kept.accessed
                && (next.to - kept.from <= longest || now - next.to >= OLDEST_S);
            let tiny = next.accessed && kept.bytes <= negligible;
            if alike {
                kept.from = kept.from.min(next.from);
                kept.to = kept.to.max(next.to);
            } else if tiny {
                (kept.from, kept.to, kept.accessed) = (next.from, next.to, true);
            }
            if alike || tiny {
                kept.bytes += next.bytes;
            }
            alike || tiny
        });
    }

    /// The bytes that were accessed.
    pub fn only_accessed(&self) -> Self {
        Self { spells: self.spells.iter().filter(|s| s.accessed).copied().collect() }
    }

    /// When the same `all` bytes were accessed last by either of two, of each of which a share was: `either` gives what these come to. Of
    /// both only what was accessed counts.
    pub fn latest(&self, other: &Self, all: f64, either: impl Fn(f64, f64) -> f64) -> Self {
        let mut times: Vec<f64> = Vec::with_capacity(2 * (self.spells.len() + other.spells.len()) + 1);
        times.extend(
            self.spells.iter().chain(&other.spells).filter(|s| s.accessed).flat_map(|s| [s.from, s.to]),
        );
        times.sort_by(f64::total_cmp);
        times.dedup();
        let Some((&first, &last)) = times.first().zip(times.last()) else { return Self::default() };
        // What was accessed in an instant counts as before it.
        times.insert(0, first - FINEST_S);
        // Bytes that neither has accessed since then.
        let left = |since: f64| {
            let accessed = |one: &Self| one.accessed_since(since) / all.max(f64::MIN_POSITIVE);
            all * (1.0 - either(accessed(self), accessed(other))).max(0.0)
        };
        let mut spells = Vec::with_capacity(times.len());
        let mut before = left(first - FINEST_S);
        for pair in times.windows(2) {
            let after = left(pair[1]);
            if after > before {
                spells.push(Spell { from: pair[0], to: pair[1], bytes: after - before, accessed: true });
            }
            before = after;
        }
        let mut latest = Self { spells };
        latest.compact(last);
        latest
    }

    /// Bytes accessed at `since` seconds or later.
    pub fn accessed_since(&self, since: f64) -> f64 {
        self.spells.iter().filter(|s| s.accessed).map(|s| s.bytes * (1.0 - s.share_before(since))).sum()
    }

    /// Bytes known not to have been accessed since `since` seconds.
    pub fn idle_since(&self, since: f64) -> f64 {
        self.spells.iter().map(|s| s.bytes * s.share_before(since)).sum()
    }

    /// Until when the bytes accessed, and those idle, in times as long as reports ask for stay what they are at `now`, if
    /// nothing is accessed; `now` where they change all the time.
    pub fn stands_until(&self, now: f64) -> f64 {
        let mut until = f64::INFINITY;
        for time in COLD_S {
            for spell in &self.spells {
                if spell.from + time > now - ROUNDING_S {
                    until = until.min(spell.from + time);
                } else if spell.to + time > now {
                    return now;
                }
            }
        }
        until
    }

    /// Mean age in seconds, none counting for more than [`OLDEST_S`], and the share of bytes that were accessed at all.
    /// Histories alike in both can be one.
    pub fn signature(&self, now: f64) -> (f64, f64) {
        let (mut bytes, mut age, mut accessed) = (0.0, 0.0, 0.0);
        for spell in &self.spells {
            bytes += spell.bytes;
            age += spell.bytes * (now - spell.from.midpoint(spell.to)).clamp(0.0, OLDEST_S);
            accessed += if spell.accessed { spell.bytes } else { 0.0 };
        }
        if bytes > 0.0 { (age / bytes, accessed / bytes) } else { (0.0, 0.0) }
    }
}

impl Spell {
    /// Share of its bytes last accessed before `since`; an instant counts as before its own time.
    fn share_before(&self, since: f64) -> f64 {
        if self.to <= since {
            1.0
        } else if self.from >= since {
            0.0
        } else {
            (since - self.from) / (self.to - self.from)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against rates kept aggregation by aggregation.
        #[test]
        fn what_a_window_meets_is_the_product_of_its_misses(
            rates in prop::collection::vec(prop_oneof![Just(0.0), 0.001..1.0_f64, Just(50.0)], 1..400),
        ) {
            let mut history = History::default();
            history.resize(1000.0, 0.0);
            for (i, rate) in rates.iter().enumerate() {
                history.pass(*rate, i as f64 / 10.0, (i + 1) as f64 / 10.0);
            }
            prop_assert!((history.bytes() - 1000.0).abs() < 1e-6);
            prop_assert!(history.spells.len() < 64, "{}", history.spells.len());
            let now = rates.len() as f64 / 10.0;
            for window in [10.0, 20.0] {
                let met = |seconds: f64| {
                    let within = rates.iter().rev().take((seconds * 10.0).round() as usize);
                    1000.0 * (1.0 - (-within.sum::<f64>() / 10.0).exp())
                };
                // What was accessed last about as long ago as the window is long is known to an eighth of that.
                let found = history.accessed_since(now - window);
                prop_assert!(found >= met(window * 0.87) - 1.0, "{} {}", found, met(window));
                prop_assert!(found <= met(window * 1.15) + 1.0, "{} {}", found, met(window));
                if now >= window {
                    let idle = history.idle_since(now - window);
                    prop_assert!((idle + found - 1000.0).abs() < 0.1, "{} {}", idle, found);
                }
            }
        }

        #[test]
        fn cutting_and_joining_changes_no_sum(share in 0.0..=1.0_f64, rate in 0.0..5.0_f64) {
            let mut history = History::default();
            history.resize(64.0, 0.0);
            history.pass(rate, 0.0, 30.0);
            let (all, met) = (history.bytes(), history.accessed_since(20.0));
            let other = history.split_off(share);
            prop_assert!((other.bytes() - 64.0 * share).abs() < 1e-6);
            history.join(other, 30.0);
            prop_assert!((history.bytes() - all).abs() < 1e-6);
            prop_assert!((history.accessed_since(20.0) - met).abs() < 1.0);
        }
    }

    #[test]
    fn a_steady_rate_is_the_same_in_one_step_as_in_many() {
        let fresh = || {
            let mut history = History::default();
            history.resize(1000.0, 0.0);
            history
        };
        for rate in [0.01, 0.1, 1.0, 20.0] {
            let (mut one, mut many) = (fresh(), fresh());
            one.pass(rate, 0.0, 100.0);
            (0..1000).for_each(|i| many.pass(rate, f64::from(i) / 10.0, f64::from(i + 1) / 10.0));
            for window in [1.0, 10.0, 60.0] {
                let (a, b) = (one.accessed_since(100.0 - window), many.accessed_since(100.0 - window));
                assert!((a - b).abs() < 30.0, "{rate} {window} {a} {b}");
            }
        }
    }

    #[test]
    fn what_arrives_is_idle_from_then_on_only() {
        let mut history = History::default();
        history.resize(100.0, 0.0);
        history.arrive(30.0, 20.0);
        assert_eq!((history.idle_since(10.0), history.idle_since(20.0)), (70.0, 100.0));
        history.pass(0.1, 20.0, 30.0);
        let accessed = history.accessed_since(20.0);
        history.arrive(1000.0, 40.0);
        // What was accessed was, and nothing else has been idle for longer.
        assert_eq!(history.accessed_since(20.0), accessed);
        assert!((history.idle_since(39.0) - accessed).abs() < 1e-9 && (history.bytes() - 100.0).abs() < 1e-9);
    }

    #[test]
    fn what_became_known_is_idle_from_then_on_only() {
        let mut history = History::default();
        history.resize(100.0, 0.0);
        history.resize(150.0, 30.0);
        assert_eq!(history.idle_since(10.0), 100.0);
        assert_eq!(history.idle_since(30.0), 150.0);
        assert_eq!(history.accessed_since(0.0), 0.0);
        history.resize(75.0, 40.0);
        assert_eq!((history.idle_since(10.0), history.idle_since(30.0)), (50.0, 75.0));
    }
}

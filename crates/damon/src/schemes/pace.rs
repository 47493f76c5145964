//! How long an action is going to take: learned from calls, quickly and on the safe side.
//!
//! A speed that falls is believed at once, one that rises bit by bit: the estimate is near the slowest of the last calls. What is
//! too little to say anything of the speed (a page, or memory most of which is absent) raises the time by its own length only,
//! since the fixed cost of a call would be taken for slowness. Before anything was measured calls are small, and each may be
//! twice as large as the one before.

use crate::PAGE_SIZE;

/// Time that an action takes by bytes. Integers only: nanoseconds a MiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pace {
    /// 0: nothing was measured.
    ns_a_mib: u64,
    calls: u32,
}

const MIB: u128 = 1 << 20;

/// A rise of the speed is believed by this part of it with each call. A guess: one slow call in two keeps the estimate within a
/// factor of two of it, and one that was 600 times as slow by chance is made up for in six windows (`tests/schemes/time.rs`).
const BELIEVED: u64 = 2;

/// Bytes that were looked at and hold nothing count for this part: to find out that a page is absent takes about so much less
/// than to page it out.
pub(super) const SKIPPED_SHARE: u64 = 64;

impl Pace {
    /// Bytes of the first call, and of the least one whose time says how fast an action is: 16 pages. A guess: 64 KiB take less
    /// than a millisecond to page out to any device that swap should be on, and cost several times as much as a call itself.
    pub const FIRST: u64 = 16 * PAGE_SIZE;

    /// Nothing is known.
    pub const fn new() -> Self {
        Self { ns_a_mib: 0, calls: 0 }
    }

    /// Learns from a call that tried `tried` bytes, found `skipped` bytes empty, and took `took_ns` nanoseconds.
    pub fn learn(&mut self, tried: u64, skipped: u64, took_ns: u64) {
        self.calls = self.calls.saturating_add(1);
        if tried == 0 || took_ns == 0 {
            return;
        }
        let sample = over(took_ns, tried);
        if self.ns_a_mib == 0 {
            self.ns_a_mib = sample;
        } else if sample > self.ns_a_mib {
            let bytes = tried.saturating_add(skipped / SKIPPED_SHARE).max(Self::FIRST);
            self.ns_a_mib = self.ns_a_mib.max(over(took_ns, bytes));
        } else {
            self.ns_a_mib -= (self.ns_a_mib - sample) / BELIEVED;
        }
    }

    /// Bytes that take no longer than `ns` nanoseconds; `u64::MAX` while nothing was measured.
    pub fn bytes_in(&self, ns: u64) -> u64 {
        let bytes = (u128::from(ns) * MIB).checked_div(u128::from(self.ns_a_mib)).unwrap_or(u128::MAX);
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    /// The same; `None` while nothing was measured.
    pub(super) fn known_bytes_in(&self, ns: u64) -> Option<u64> {
        (self.ns_a_mib > 0).then(|| self.bytes_in(ns))
    }

    /// How large a call may be that is to take no longer than `ns` nanoseconds, in bytes: as [`Self::bytes_in`], and the first
    /// ones small.
    pub fn piece(&self, ns: u64) -> u64 {
        self.bytes_in(ns).min(Self::FIRST << self.calls.min(32))
    }
}

/// Nanoseconds a MiB, at least 1.
fn over(took_ns: u64, bytes: u64) -> u64 {
    let ns = u128::from(took_ns) * MIB / u128::from(bytes.max(1));
    u64::try_from(ns).unwrap_or(u64::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = PAGE_SIZE;

    #[test]
    fn slowness_is_believed_at_once_and_speed_bit_by_bit() {
        let mut pace = Pace::new();
        assert_eq!(pace.bytes_in(1), u64::MAX);
        pace.learn(100 * PAGE, 0, 100_000);
        assert_eq!(pace.bytes_in(10_000), 10 * PAGE);
        pace.learn(100 * PAGE, 0, 800_000);
        assert_eq!(pace.bytes_in(80_000), 10 * PAGE);
        pace.learn(100 * PAGE, 0, 100_000);
        // Half of the way from 8 us a page back to 1 us.
        assert_eq!(pace.bytes_in(45_000), 10 * PAGE);
    }

    #[test]
    fn what_is_small_or_empty_says_little_of_speed() {
        let mut pace = Pace::new();
        pace.learn(1000 * PAGE, 0, 1_000_000);
        // 10 us for a page are what a call costs.
        pace.learn(PAGE, 0, 10_000);
        pace.learn(PAGE, 6400 * PAGE, 80_000);
        assert_eq!(pace.bytes_in(10_000), 10 * PAGE);
        // ... but a millisecond is not.
        pace.learn(PAGE, 0, 1_600_000);
        assert_eq!(pace.bytes_in(1_000_000), 10 * PAGE);
    }

    #[test]
    fn the_first_calls_are_small_and_no_number_is_too_large() {
        let mut pace = Pace::new();
        let mut sizes = [0; 3];
        for size in &mut sizes {
            *size = pace.piece(u64::MAX) / PAGE;
            pace.learn(0, PAGE, 100);
        }
        assert_eq!(sizes, [16, 32, 64]);
        for _ in 0..100 {
            pace.learn(1, u64::MAX, u64::MAX);
            assert!(pace.bytes_in(u64::MAX) > 0);
        }
        assert_eq!(pace.bytes_in(1000), 0);
    }
}

//! `pi`: a proportional-integral controller of a quota's size.
//!
//! What a scheme does shows in a goal's metric late: memory that was paged out costs nothing before it is accessed again, a
//! minute later perhaps. And what a page costs then differs by a factor of five on one machine within a minute. So the
//! controller works with ratios, and has two parts (Åström and Hägglund, "Advanced PID Control", 2006):
//! - *integral*: a base, which moves by at most a sixteenth a window. Where the metric stays at its target, the base is the size
//!   that keeps it there.
//! - *proportional*: a window gets the base times 2 to the power of 4 times the error: sixteen times the base when the metric
//!   is 0, a sixteenth when it is twice the target or more, and the base again as soon as the metric is back.
//!
//! The error is 1 less the score, from -1 to 1. That of the proportional part is smoothed (exponentially) over two windows, that
//! of the integral part over sixteen. In the latter a burst counts for all it was, up to 64 times the target: what it cost
//! is saved afterwards, so that the target holds for the mean of minutes, too.
//!
//! From one window to the next the size grows at most to four times itself and falls at most to a quarter. *Anti-windup*: the
//! base does not rise after a window that was not used up (conditional integration), so a time with nothing left to do
//! ends with the base it began with. It is never above what bytes, time and the monitored memory leave, and never below a
//! 65536th of that, from where it is back in a hundred windows or two.
//!
//! The constants were chosen with the model of `tests/schemes/plant.rs`, in which half or twice of each changes the mean of the
//! metric and of what is reclaimed by less than a tenth, but for an integral part half as quick.

use super::goal::MET;

/// The error of twice the target is the least there is.
const HIGHEST: u64 = 2 * MET;

/// For the proportional part a window counts for one in so many.
const SMOOTHED: u64 = 2;

/// The same for the integral part, and the most that a window may be.
const SLOWLY: u64 = 16;
const HIGHEST_BURST: u64 = 64 * MET;

/// An error of 1 is so many powers of two.
const PROPORTIONAL: u64 = 4;

/// An error of 1 moves the base by one in so many of it.
const INTEGRAL: u64 = 16;

/// From one window to the next the size is at most so many times as large, or as small.
const STEP: u64 = 4;

/// The first base is one in so many of the most there may be, the lowest one in so many.
const FIRST: u64 = 1024;
const LOWEST: u64 = 65_536;

/// Sizes are in bytes, scores in 1/10000 of the target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Pi {
    /// The integral part; 0 before the first window.
    base: u64,
    /// Of the last window.
    size: u64,
    /// The smoothed scores, for the proportional and the integral part; `None` before the first.
    scores: Option<(u64, u64)>,
}

impl Pi {
    /// The size of the next window, at most `most`. `score` is the goal's, `None` as long as there is none; `used_up`, whether
    /// the last window was. Less than `least` cannot be acted on.
    pub fn next(&mut self, score: Option<u64>, used_up: bool, least: u64, most: u64) -> u64 {
        let lowest = (most / LOWEST).max(least).clamp(1, most.max(1));
        if self.base == 0 {
            self.base = (most / FIRST).max(lowest);
            self.size = self.base;
        }
        if let Some(score) = score {
            let (quick, slow) = (score.min(HIGHEST), score.min(HIGHEST_BURST));
            let (quick, slow) = self.scores.map_or((quick, slow), |before| {
                (smoothed(before.0, quick, SMOOTHED), smoothed(before.1, slow, SLOWLY))
            });
            // What was not asked for for want of anything to do is not saved up either.
            let slow = if used_up { slow } else { slow.max(MET) };
            self.scores = Some((quick, slow));
            let step = scaled(self.base, slow.abs_diff(MET).min(MET), MET * INTEGRAL);
            if slow > MET {
                self.base = self.base.saturating_sub(step);
            } else if used_up {
                self.base = self.base.saturating_add(step);
            }
            self.base = self.base.clamp(lowest, most.max(1));
            let wanted = power(self.base, quick.abs_diff(MET) * PROPORTIONAL, quick < MET);
            self.size = wanted.clamp(self.size / STEP, self.size.max(least).saturating_mul(STEP));
        }
        self.size = self.size.min(most);
        self.size
    }
}

/// The mean so far with one more, which counts for one in so many.
const fn smoothed(mean: u64, value: u64, one_in: u64) -> u64 {
    (mean * (one_in - 1) + value) / one_in
}

/// `value` times 2 to the power of `exponent` / 10000, or divided by it; linear between whole powers.
fn power(value: u64, exponent: u64, up: bool) -> u64 {
    let factor = u64::from(2u8).saturating_pow(u32::try_from(exponent / MET).unwrap_or(u32::MAX));
    let part = MET + exponent % MET;
    if up { scaled(value.saturating_mul(factor), part, MET) } else { scaled(value / factor, MET, part) }
}

/// `value` times `num` / `denom`.
fn scaled(value: u64, num: u64, denom: u64) -> u64 {
    let scaled = u128::from(value) * u128::from(num) / u128::from(denom);
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const MOST: u64 = 1024 * MIB;

    /// In the long run at its target, with a base of 1 MiB.
    fn settled() -> Pi {
        let mut pi = Pi::default();
        for _ in 0..100 {
            assert_eq!(pi.next(Some(MET), true, 4096, MOST), MIB);
        }
        pi
    }

    fn next(pi: &mut Pi, score: u64, windows: u32) -> u64 {
        (0..windows).fold(0, |_, _| pi.next(Some(score), true, 4096, MOST))
    }

    #[test]
    fn a_window_in_numbers() {
        // 7500 smoothed, so two to the power of 1; 9687 slowly, so the base moves by 313 of 160000.
        assert_eq!(next(&mut settled(), 5000, 1), 2 * (MIB + 2051));
        // 13750, so two thirds of a half; 10468, so 468 of 160000 down.
        assert_eq!(next(&mut settled(), 17_500, 1), (MIB - 3067) / 2 * 2 / 3);
        assert_eq!(
            next(&mut settled(), 0, 20) / next(&mut settled(), 0, 19),
            1,
            "sixteen times the base, which creeps"
        );
        assert_eq!((power(MIB, 5000, true), power(MIB, 5000, false)), (MIB * 3 / 2, MIB * 2 / 3));
        assert_eq!((power(MIB, 40_000, true), power(MIB, 40_000, false)), (16 * MIB, MIB / 16));
        assert_eq!(power(u64::MAX, 40_000, true), u64::MAX);
    }

    #[test]
    fn overshoot_is_answered_at_once_and_does_not_bring_it_down() {
        let mut pi = settled();
        let high = next(&mut pi, 40_000, 3);
        assert!(high <= MIB / 4, "{high}");
        // Six times the target for three windows: back within ten, and less than before until it is saved.
        let (first, back) = (next(&mut pi, MET, 4), next(&mut pi, MET, 6));
        assert!(first >= MIB / 4 && (MIB / 2..MIB).contains(&back), "{first}, {back}");
        // Others stall for a minute and longer: it is far down then, but not where nothing is.
        next(&mut pi, 1_000_000, 500);
        assert_eq!(pi.base, MOST / LOWEST);
        next(&mut pi, 0, 160);
        assert!(pi.base >= MIB, "{}", pi.base);
    }

    #[test]
    fn nothing_left_to_do_does_not_wind_it_up() {
        let mut pi = settled();
        for _ in 0..10_000 {
            pi.next(Some(0), false, 4096, MOST);
        }
        assert_eq!((pi.base, pi.size), (MIB, 16 * MIB));
        // Back at the target, the size is what it was.
        assert!((MIB..=MIB + MIB / 8).contains(&next(&mut pi, MET, 6)));
    }

    #[test]
    fn no_number_is_too_large_or_too_small() {
        for (least, most) in [(4096, 0), (0, 0), (u64::MAX, 1), (1, u64::MAX), (4096, u64::MAX)] {
            let mut pi = Pi::default();
            for score in [None, Some(0), Some(u64::MAX), Some(1), Some(u64::MAX), Some(0)] {
                for _ in 0..100 {
                    assert!(pi.next(score, true, least, most) <= most);
                }
            }
        }
    }
}

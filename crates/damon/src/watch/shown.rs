//! What a window showed, and of how many observations it is.
//!
//! Where a program goes over its memory in order, the pages of a cell are accessed together, or one after the other: whatever share
//! of them a window shows, it is one observation, of where the loop was. Where pages are accessed at random, each for itself,
//! 64 of them are 64 observations, and one window tells a rate of 4 Hz from one of 2. Which of the two it is shows in how the
//! accessed pages lie. What a loop has come to is one run of neighbours, or two where the window began within a pass. Pages at
//! random make as many runs as chance has it.

use super::tuning::Tuning;

/// What a window showed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Shown {
    /// Share of its pages that were accessed.
    pub share: f32,
    /// Its pages; at least 1 where any was accessed.
    pub pages: f32,
    /// Runs of neighbours that the accessed ones make.
    pub runs: u32,
}

impl Shown {
    /// Runs that the pages `shown` make among those of `window`; what is not in the window separates none.
    pub fn runs(window: u64, shown: u64) -> u32 {
        changes(window, shown).div_ceil(2)
    }
}

/// Of how many observations the pages of a window are, 0 to 64, by those of them that were accessed since it was opened; `before`
/// where that cannot be told.
pub(super) fn observations(window: u64, shown: u64, before: u8, tuning: &Tuning) -> u8 {
    let (count, hit) = (window.count_ones(), (shown & window).count_ones());
    // Of each pair of neighbours one is accessed and the other is not with a probability of 2 p (1 - p).
    let expected = (2 * hit * (count - hit)) as f32 / count.max(1) as f32;
    if expected < tuning.telling {
        return before;
    }
    let share = changes(window, shown).saturating_sub(tuning.run) as f32 / (expected - tuning.run as f32);
    (share.clamp(0.0, 1.0) * count as f32) as u8
}

/// How often neighbours among the pages of a window differ in whether they were accessed; an accessed end counts as well.
fn changes(window: u64, shown: u64) -> u32 {
    let shown = shown & window;
    if shown == 0 {
        return 0;
    }
    // Mostly the window has no holes: each bit is compared with the one below.
    let first = window.trailing_zeros();
    if (window >> first).trailing_ones() == window.count_ones() {
        return (shown ^ shown << 1).count_ones() + (shown >> 63) as u32;
    }
    let (mut rest, mut last, mut changes) = (window, false, 0u32);
    while rest != 0 {
        let is_shown = shown & rest & rest.wrapping_neg() != 0;
        changes += u32::from(last != is_shown);
        last = is_shown;
        rest &= rest - 1;
    }
    changes + u32::from(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    use super::super::tuning::AT_5_MS as T;

    #[test]
    fn runs_are_counted_among_the_pages_of_the_window() {
        assert_eq!(Shown::runs(u64::MAX, 0), 0);
        assert_eq!(Shown::runs(u64::MAX, u64::MAX), 1);
        assert_eq!(Shown::runs(u64::MAX, 0xff << 20), 1);
        assert_eq!(Shown::runs(u64::MAX, 0b1011_0001), 3);
        // 0 to 3 and 8 to 11: neighbours in the window.
        assert_eq!(Shown::runs(0xf0f, 0xc0c), 2);
        assert_eq!(Shown::runs(0xf0f, 0x30c), 1);
        assert_eq!(Shown::runs(0xf0f, 0xf0), 0, "outside of it");
    }

    #[test]
    fn a_window_without_holes_is_counted_as_any_other() {
        let mut rng = crate::Rng::new(3);
        for _ in 0..10_000 {
            let (first, count) = (rng.below(64) as u32, 1 + rng.below(64) as u32);
            let window = u64::MAX >> (64 - count.min(64 - first)) << first;
            let shown = rng.below(u64::MAX) & rng.below(u64::MAX);
            let pages = (0..64).filter(|page| window >> page & 1 != 0).map(|page| shown >> page & 1 != 0);
            let with_ends: std::vec::Vec<bool> =
                core::iter::once(false).chain(pages).chain(core::iter::once(false)).collect();
            let changes = with_ends.windows(2).filter(|two| two[0] != two[1]).count();
            assert_eq!(super::changes(window, shown), changes as u32, "{window:x} {shown:x}");
        }
    }

    #[test]
    fn what_a_loop_came_to_is_one_observation() {
        for count in 8..56 {
            let run = (1u64 << count) - 1;
            assert_eq!(observations(u64::MAX, run, 9, &T), 0, "{count} pages from the start");
            assert_eq!(observations(u64::MAX, run.rotate_left(50), 9, &T), 0, "{count} pages around the end");
            // Two fronts, as a butterfly has them.
            let half = (1u64 << (count / 2)) - 1;
            assert_eq!(observations(u64::MAX, half << 2 | half << 34, 9, &T), 0, "{count} pages in two runs");
        }
    }

    #[test]
    fn pages_at_random_are_nearly_as_many_observations_as_pages() {
        let mut rng = crate::Rng::new(7);
        for percent in [15, 30, 50, 70, 85] {
            let mut sum = 0;
            for _ in 0..200 {
                let shown = (0..64).fold(0u64, |set, page| set | u64::from(rng.below(100) < percent) << page);
                sum += u32::from(observations(u64::MAX, shown, 0, &T));
            }
            assert!(sum / 200 > 40, "{percent} %: {} on average", sum / 200);
        }
    }

    #[test]
    fn too_few_pages_tell_nothing() {
        assert_eq!(observations(u64::MAX, 0, 5, &T), 5);
        assert_eq!(observations(u64::MAX, u64::MAX, 5, &T), 5);
        assert_eq!(observations(u64::MAX, 0b1001, 5, &T), 5);
        assert_eq!(observations(0xff, 0x55, 5, &T), 5);
        assert_eq!(observations(0, 0, 5, &T), 5);
    }
}

//! Which regions come first when not all can.
//!
//! Where actions have a temperature, a region's score is the weighted mean of three subscores (kernel design document,
//! "Prioritization"; the kernel's common score function):
//! - frequency: `nr_accesses` by the highest possible one;
//! - age: the bit length of the age in seconds, up to 32, negated where the frequency is 0: the longer a region has not been
//!   accessed, the colder it is. [`Watch`](crate::Watch) knows rates of far less than an access an aggregation, of which the
//!   kernel counts 0 most of the time. Memory that is accessed every 5 s has not been idle for longer than that, however long it
//!   has been accessed at that rate: its age counts as no more than the time between two accesses of a page;
//! - size: the bit length of the size in least regions, up to 32. The kernel takes this weight and does not use it; here
//!   larger regions come first, whatever the action.
//!
//! Actions for cold memory take the inverse of the first two.
//!
//! To the kernel regions of one score are equal. There an octave of the age is about a hundredth, so that memory that is accessed every
//! 20 s has the score of what is accessed every 10 s, though paged out it comes back half as often; and so has for a while what was acted
//! on a moment ago, whatever its rate, since its age began anew. So regions of one score, whose frequency rounds to 0, are
//! ordered further by the time between two accesses, in steps of an eighth of an octave. What has another score is never in another
//! order than by that. Regions of one step are equal, and so are those of one score that are not accessed at all, or so often that
//! the kernel counts it.

use super::{Action, Weights};
use crate::{Moment, Region};

/// Scores are below this (kernel: `DAMOS_MAX_SCORE` + 1).
const SCORES: usize = 100;

/// Ranks within a score. Steps of a time are eighths of an octave: estimates of rates are hardly better than that.
const STEPS: usize = 1 << 8;
const STEPS_AN_OCTAVE: u128 = 8;

/// Ranks are below this.
pub(super) const RANKS: usize = SCORES * STEPS;

const HIGHEST: u64 = SCORES as u64 - 1;
const AGE_BITS: u64 = 32;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Favours {
    Hot,
    Cold,
}

/// Which memory an action is for. The others take all alike, in the order of addresses.
const fn favours(action: Action) -> Option<Favours> {
    match action {
        Action::Pageout | Action::LruDeprio | Action::MigrateCold => Some(Favours::Cold),
        Action::LruPrio | Action::MigrateHot => Some(Favours::Hot),
        Action::Willneed
        | Action::Cold
        | Action::Hugepage
        | Action::Nohugepage
        | Action::Collapse
        | Action::Stat => None,
    }
}

/// Whether regions are ordered by score at all.
pub(super) const fn is_ordered(action: Action, weights: Weights) -> bool {
    favours(action).is_some() && (weights.size | weights.frequency | weights.age) != 0
}

/// The region's rank, `0..RANKS`; the highest first.
pub(super) fn rank(action: Action, weights: Weights, moment: &Moment<'_>, region: &Region) -> u16 {
    let Some(favours) = favours(action).filter(|_| is_ordered(action, weights)) else { return 0 };
    let (w_size, w_frequency, w_age) =
        (u64::from(weights.size), u64::from(weights.frequency), u64::from(weights.age));
    let most = u64::from(moment.attrs.max_nr_accesses()) * 10_000;
    let accesses_bp = moment.nr_accesses_bp(region);
    let frequency = accesses_bp * 100 / most;
    let aggr_us = moment.attrs.aggr.as_micros();
    let between_us = (aggr_us * 10_000).checked_div(u128::from(accesses_bp)).filter(|_| frequency == 0);
    let idle_us = (aggr_us * u128::from(region.age)).min(between_us.unwrap_or(u128::MAX));
    let seconds = idle_us / 1_000_000;
    let bits = u64::from(u128::BITS - seconds.leading_zeros()).min(AGE_BITS);
    let bits = if frequency == 0 { AGE_BITS - bits } else { AGE_BITS + bits };
    let age = bits * 100 / AGE_BITS / 2;
    let heat = (w_frequency * frequency + w_age * age).checked_div(w_frequency + w_age).unwrap_or(0);
    let heat = heat * HIGHEST / 100;
    let is_hot = favours == Favours::Hot;
    let heat = if is_hot { heat } else { HIGHEST - heat };
    let units = region.range.size() / moment.min_region.max(1);
    let size = u64::from(u64::BITS - units.leading_zeros()).min(AGE_BITS) * HIGHEST / AGE_BITS;
    let sum = w_size + w_frequency + w_age;
    let score = (w_size * size + (w_frequency + w_age) * heat).checked_div(sum).unwrap_or(0).min(HIGHEST);
    let step = match between_us {
        _ if w_frequency + w_age == 0 || frequency > 0 => 0,
        Some(between_us) => step(between_us),
        None => STEPS as u64 - 1,
    };
    let step = if is_hot { STEPS as u64 - 1 - step } else { step };
    (score * STEPS as u64 + step) as u16
}

/// How many steps a time takes: the bit length of its seconds, with a fraction.
fn step(time_us: u128) -> u64 {
    let seconds = time_us / 1_000_000;
    let bits = u128::from(u128::BITS - seconds.leading_zeros());
    // What the bit length stands for begins here, and is as long.
    let begins = if seconds == 0 { 0 } else { 1_000_000 << (bits - 1) };
    let part = (time_us - begins) * STEPS_AN_OCTAVE / begins.max(1_000_000);
    u64::try_from(bits * STEPS_AN_OCTAVE + part).unwrap_or(u64::MAX).min(STEPS as u64 - 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AddrRange, Attrs, Target};
    use alloc::vec;

    /// Frequency in samples of 20, age in aggregations of 100 ms.
    fn score_of(action: Action, weights: (u32, u32, u32), nr_accesses: u32, age: u32, pages: u64) -> u8 {
        fine_score_of(action, weights, nr_accesses * 10_000, age, pages)
    }

    /// Frequency in 1/10000 of a sample.
    fn fine_score_of(action: Action, weights: (u32, u32, u32), bp: u32, age: u32, pages: u64) -> u8 {
        let region = Region {
            nr_accesses: bp / 10_000,
            nr_accesses_bp: bp,
            age,
            ..Region::new(AddrRange::new(0, pages * 4096))
        };
        let mut targets = vec![Target::default()];
        let moment = Moment::new(&mut targets, Attrs::default(), 0, 1);
        let weights = Weights { size: weights.0, frequency: weights.1, age: weights.2 };
        (usize::from(rank(action, weights, &moment, &region)) / STEPS) as u8
    }

    fn rank_of(action: Action, weights: (u32, u32, u32), bp: u32, age: u32) -> u16 {
        let region = Region {
            nr_accesses: bp / 10_000,
            nr_accesses_bp: bp,
            age,
            ..Region::new(AddrRange::new(0, 4096))
        };
        let mut targets = vec![Target::default()];
        let moment = Moment::new(&mut targets, Attrs::default(), 0, 1);
        let weights = Weights { size: weights.0, frequency: weights.1, age: weights.2 };
        rank(action, weights, &moment, &region)
    }

    // Computed by hand from the rule.
    #[test]
    fn the_published_rule_in_numbers() {
        let hot = |nr, age| score_of(Action::LruPrio, (0, 1, 1), nr, age, 1);
        // Frequency 0, age 0: (0 + 50) / 2 = 25, of 99 24.
        assert_eq!(hot(0, 0), 24);
        // 10 s without an access: 4 bits, (32 - 4) * 100 / 64 = 43; 21 of 100.
        assert_eq!(hot(0, 100), 20);
        // 10 of 20, 10 s: (50 + 56) / 2 = 53.
        assert_eq!(hot(10, 100), 52);
        // All the time, for ever: 4294967295 aggregations are 429496729 s, 29 bits.
        assert_eq!(hot(20, u32::MAX), 96);
        let cold = |nr, age| score_of(Action::Pageout, (0, 1, 1), nr, age, 1);
        assert_eq!((cold(0, 0), cold(0, 100), cold(10, 100)), (99 - 24, 99 - 20, 99 - 52));
    }

    #[test]
    fn what_is_accessed_seldom_is_idle_for_no_longer_than_accesses_are_apart() {
        let cold = |bp, age| fine_score_of(Action::Pageout, (0, 1, 1), bp, age, 1);
        // Of 0.05, 0.1, 0.2, 0.5 and 2 Hz, all for minutes, and idle as long.
        let seldom = [50, 100, 200, 500, 1900].map(|bp| cold(bp, 3000));
        assert!(seldom.is_sorted_by(|a, b| a >= b) && seldom[0] > seldom[3], "{seldom:?}");
        assert!(cold(0, 3000) > seldom[0]);
        // Accessed every 20 s: as if idle for 20 s; before that, for as long as it is.
        assert_eq!([3000, 40].map(|age| cold(50, age)), [200, 40].map(|age| cold(0, age)));
        // What the kernel counts is scored as the kernel does.
        assert!(cold(10_000, 3000) < cold(10_000, 0));
    }

    #[test]
    fn of_one_score_what_is_accessed_less_often_comes_first() {
        for weights in [(0, 1, 1), (0, 1, 0), (0, 0, 1), (1, 1, 1)] {
            let cold = |bp, age| rank_of(Action::Pageout, weights, bp, age);
            // 0.05, 0.06, 0.1, 0.12, 0.2, 0.5 and 1 Hz, for minutes.
            let seldom = [50, 60, 100, 120, 200, 500, 1000].map(|bp| cold(bp, 3000));
            assert!(seldom.is_sorted_by(|a, b| a > b), "{weights:?}: {seldom:?}");
            let hot =
                [50, 60, 100, 120, 200, 500, 1000].map(|bp| rank_of(Action::LruPrio, weights, bp, 3000));
            assert!(hot.is_sorted_by(|a, b| a < b), "{weights:?}: {hot:?}");
            // What is not accessed comes before that, and is told apart by its score alone.
            assert!(cold(0, 3000) > cold(1, 3000) && cold(0, 3000) == cold(0, 3001), "{weights:?}");
            // What was acted on a moment ago, and comes back: the slower first.
            assert!(cold(50, 20) > cold(100, 20), "{weights:?}");
            // An estimate that differs by a hundredth is the same.
            assert_eq!(cold(95, 3000), cold(96, 3000));
            // What the kernel counts has one rank a score.
            assert_eq!(cold(10_000, 10) % STEPS as u16, 0);
        }
    }

    #[test]
    fn without_weights_or_temperature_all_are_equal() {
        for (nr, age, pages) in [(0, 0, 1), (20, 500, 1 << 20), (0, 90, 7)] {
            assert_eq!(score_of(Action::Pageout, (0, 0, 0), nr, age, pages), 0);
            assert_eq!(score_of(Action::Stat, (1, 1, 1), nr, age, pages), 0);
            assert_eq!(score_of(Action::Cold, (1, 1, 1), nr, age, pages), 0);
        }
    }

    #[test]
    fn larger_regions_come_first_by_weight_of_size() {
        for action in [Action::Pageout, Action::LruPrio] {
            assert!(score_of(action, (1, 0, 0), 0, 0, 512) > score_of(action, (1, 0, 0), 0, 0, 16));
            // Without a weight size means nothing.
            assert_eq!(score_of(action, (0, 1, 0), 3, 0, 512), score_of(action, (0, 1, 0), 3, 0, 16));
        }
        assert_eq!(score_of(Action::Pageout, (u32::MAX, 0, 0), 0, 0, 1 << 40), 99);
    }
}

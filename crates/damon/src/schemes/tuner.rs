//! Tuners: how goals make the size of a window.
//!
//! `consist` and `temporal` are the kernel's (design document, "Aim-oriented Feedback-driven Auto-tuning"); [`pi`](super::pi) is
//! Isotherm's own.

use super::goal::{Feedback, MET};
use super::pi::Pi;

/// How goals make a quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GoalTuner {
    /// Find the quota that keeps the goal met, in steps in proportion to the distance from it; the least at twice the goal.
    #[default]
    Consist,
    /// All the quota until the goal is met, then none.
    Temporal,
    /// Find the quota that keeps the goal met by proportional-integral control. The kernel has no such tuner.
    Pi,
}

/// The least size that `consist` tunes, in 1/10000 of a byte: from less, steps would be of nothing.
const LEAST_BP: u64 = 10_000;

/// What was tuned so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tuned {
    /// By `consist`, in 1/10000 of a byte.
    consist_bp: u64,
    pi: Pi,
}

/// What a size is tuned within.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    /// Less cannot be acted on.
    pub least: u64,
    /// More has no effect.
    pub most: u64,
}

impl Tuned {
    /// The size of the next window, in bytes. `used_up`: the last one was.
    pub fn next(&mut self, tuner: GoalTuner, feedback: Feedback, used_up: bool, range: Range) -> u64 {
        match (tuner, feedback) {
            // What it does to the system cannot be seen, so nothing is done.
            (_, Feedback::Blind) | (GoalTuner::Temporal, Feedback::Later) => 0,
            (GoalTuner::Consist, Feedback::Later) => self.consist_bp.max(LEAST_BP) / MET,
            (GoalTuner::Consist, Feedback::Score(score)) => {
                let next = next_size(self.consist_bp.max(LEAST_BP), score);
                // A size tuned beyond what has any effect would take as many windows to come down again.
                self.consist_bp = next.min(range.most.max(1).saturating_mul(MET));
                self.consist_bp / MET
            }
            (GoalTuner::Temporal, Feedback::Score(score)) => {
                if score >= MET {
                    0
                } else {
                    u64::MAX
                }
            }
            (GoalTuner::Pi, Feedback::Later) => self.pi.next(None, used_up, range.least, range.most),
            (GoalTuner::Pi, Feedback::Score(score)) => {
                self.pi.next(Some(score), used_up, range.least, range.most)
            }
        }
    }
}

/// The next size that `consist` tries after `last`, both in 1/10000 of a byte: changed by the distance of the score from
/// [`MET`], in proportion. Twice the goal or more: the least there is.
fn next_size(last: u64, score: u64) -> u64 {
    if score >= 2 * MET {
        return LEAST_BP;
    }
    let step = u128::from(last) * u128::from(score.abs_diff(MET)) / u128::from(MET);
    let step = u64::try_from(step).unwrap_or(u64::MAX);
    if score > MET { last.saturating_sub(step).max(LEAST_BP) } else { last.saturating_add(step) }
}

#[cfg(test)]
mod tests {
    use super::*;

    // The kernel's unit test "damon_test_feed_loop_next_input": 900000 and the scores 200, 2000 and 250000000.
    #[test]
    fn the_feedback_loop_follows_the_kernels_unit_test() {
        assert!(next_size(900_000, 200) > 900_000);
        assert!(next_size(900_000, 250_000_000) < 900_000);
        assert!(next_size(900_000, 200) > next_size(900_000, 2000));
    }

    #[test]
    fn the_feedback_loop_in_numbers() {
        assert_eq!(next_size(1_000_000, 10_000), 1_000_000);
        assert_eq!(next_size(1_000_000, 0), 2_000_000);
        assert_eq!(next_size(1_000_000, 5_000), 1_500_000);
        assert_eq!(next_size(1_000_000, 15_000), 500_000);
        assert_eq!(next_size(1_000_000, 18_000), 200_000);
        assert_eq!(next_size(1_000_000, 20_000), LEAST_BP);
        assert_eq!(next_size(11_000, 19_999), LEAST_BP);
        assert_eq!(next_size(u64::MAX, 0), u64::MAX);
    }
}

//! Goals: a quota that tunes itself until a figure of the system is what it should be.
//!
//! A goal's score is its metric by its target, in basis points: 10000 is met. Of several goals the best-met rules. `consist`
//! looks for the quota that keeps the goal met; `temporal` spends all it may until it is met, and then nothing (kernel design
//! document, "Aim-oriented Feedback-driven Auto-tuning").

use super::Metrics;
use super::error::{Field, SchemeError};
use alloc::string::String;

/// The score of a goal that is met.
pub const MET: u64 = 10_000;

/// What a goal goes by.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GoalMetric {
    /// A value that the user gives ([`Schemes::set_goal_input`](super::Schemes::set_goal_input)); `None` as long as there is
    /// none.
    UserInput(Option<u64>),
    /// Microseconds of memory pressure stall (`some`) since the last quota window began. [`Metrics::goal`] gives the total
    /// since any moment.
    SomeMemPsiUs {
        /// Of this memory cgroup; `None`: of the machine.
        cgroup: Option<String>,
    },
    /// Used memory of a NUMA node, in basis points of all of it.
    NodeMemUsedBp(u32),
    /// Free memory of a NUMA node, in basis points of all of it.
    NodeMemFreeBp(u32),
    /// Memory of a NUMA node that a memory cgroup uses, in basis points of the node's.
    NodeMemcgUsedBp {
        /// The node.
        node: u32,
        /// The path of the cgroup.
        cgroup: String,
    },
    /// Memory of a NUMA node that a memory cgroup does not use, in basis points of the node's.
    NodeMemcgFreeBp {
        /// The node.
        node: u32,
        /// The path of the cgroup.
        cgroup: String,
    },
    /// Active memory in basis points of active and inactive memory.
    ActiveMemBp,
    /// Inactive memory in basis points of active and inactive memory.
    InactiveMemBp,
    /// Memory on this NUMA node in basis points of all memory that the scheme would act on.
    NodeEligibleMemBp(u32),
}

/// A figure of the system, and what it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Goal {
    /// Which figure.
    pub metric: GoalMetric,
    /// What it should be, in the metric's unit; not 0.
    pub target: u64,
}

/// How goals make a quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GoalTuner {
    /// Find the quota that keeps the goal met.
    #[default]
    Consist,
    /// All the quota until the goal is met, then none.
    Temporal,
}

/// What is remembered of a goal between windows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct GoalState {
    /// Stall time when the last window began.
    stalled_us: Option<u64>,
}

/// What goals say when a window opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Feedback {
    /// The score of the goal that rules.
    Score(u64),
    /// Nothing yet: it takes the length of a window to know.
    Later,
    /// No metric can be read.
    Blind,
}

/// How much longer than the reset interval a window was.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stretch {
    pub elapsed_ns: u64,
    pub reset_ns: u64,
}

impl Goal {
    pub(super) const fn validate(&self, index: usize) -> Result<(), SchemeError> {
        if self.target == 0 { Err(SchemeError::zero(Field::Goal(index))) } else { Ok(()) }
    }

    /// The metric's score, if it is at `value`.
    pub fn score(&self, value: u64) -> u64 {
        let score = u128::from(value) * u128::from(MET) / u128::from(self.target.max(1));
        u64::try_from(score).unwrap_or(u64::MAX)
    }

    fn read(
        &self,
        scheme: usize,
        state: &mut GoalState,
        stretch: Stretch,
        metrics: &mut impl Metrics,
    ) -> Feedback {
        let value = match &self.metric {
            GoalMetric::UserInput(value) => *value,
            metric => metrics.goal(scheme, metric),
        };
        let Some(mut value) = value else {
            state.stalled_us = None;
            return Feedback::Blind;
        };
        if let GoalMetric::SomeMemPsiUs { .. } = self.metric {
            let Some(before) = state.stalled_us.replace(value) else { return Feedback::Later };
            value = value.saturating_sub(before);
            // The target is meant for a window as long as asked for; one that lasted longer saw more.
            if stretch.elapsed_ns > stretch.reset_ns && stretch.reset_ns > 0 {
                let scaled =
                    u128::from(value) * u128::from(stretch.reset_ns) / u128::from(stretch.elapsed_ns);
                value = u64::try_from(scaled).unwrap_or(u64::MAX);
            }
        }
        Feedback::Score(self.score(value))
    }
}

/// What the goals of a scheme say together. `states` has one entry a goal.
pub(super) fn feedback(
    goals: &[Goal],
    scheme: usize,
    states: &mut [GoalState],
    stretch: Stretch,
    metrics: &mut impl Metrics,
) -> Feedback {
    let mut all = Feedback::Blind;
    for (goal, state) in goals.iter().zip(states) {
        all = match (all, goal.read(scheme, state, stretch, metrics)) {
            (Feedback::Score(a), Feedback::Score(b)) => Feedback::Score(a.max(b)),
            (Feedback::Score(a), _) | (_, Feedback::Score(a)) => Feedback::Score(a),
            (Feedback::Later, _) | (_, Feedback::Later) => Feedback::Later,
            (Feedback::Blind, Feedback::Blind) => Feedback::Blind,
        };
    }
    all
}

/// The least tuned size, in 1/10000 of a byte: from less, steps would be of nothing.
pub(super) const LEAST_BP: u64 = 10_000;

/// The next size that `consist` tries after `last`, both in 1/10000 of a byte: changed by the distance of the score from
/// [`MET`], in proportion. Twice the goal or more: the least there is.
pub(super) fn next_size(last: u64, score: u64) -> u64 {
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
    use alloc::vec;

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

    struct Totals(vec::IntoIter<Option<u64>>);

    impl Metrics for Totals {
        fn goal(&mut self, _scheme: usize, _metric: &GoalMetric) -> Option<u64> {
            self.0.next().flatten()
        }
    }

    #[test]
    fn stalls_count_by_window_and_the_best_met_goal_rules() {
        let goals = [
            Goal { metric: GoalMetric::SomeMemPsiUs { cgroup: None }, target: 1000 },
            Goal { metric: GoalMetric::UserInput(Some(30)), target: 100 },
        ];
        let mut states = [GoalState::default(); 2];
        let mut totals =
            Totals(vec![Some(90_000), Some(90_500), Some(90_600), Some(92_600), None].into_iter());
        let mut read = |elapsed_ns, goals: &[Goal], states: &mut [GoalState]| {
            feedback(goals, 0, states, Stretch { elapsed_ns, reset_ns: 100 }, &mut totals)
        };
        assert_eq!(
            read(100, &goals, &mut states),
            Feedback::Score(3000),
            "the total before the start says nothing"
        );
        assert_eq!(read(100, &goals, &mut states), Feedback::Score(5000));
        assert_eq!(read(100, &goals, &mut states), Feedback::Score(3000));
        // 2000 us in a window of twice the length.
        assert_eq!(read(200, &goals, &mut states), Feedback::Score(10_000));
        assert_eq!(read(100, &goals[..1], &mut states), Feedback::Blind);
    }
}

//! Goals: a quota that tunes itself until a figure of the system is what it should be.
//!
//! A goal's score is its metric by its target, in basis points: 10000 is met. Of several goals the best-met rules. What becomes
//! of a score is the tuner's business (`tuner.rs`).

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

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

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

//! Interval auto-tuning: keep the share of observed accesses near a goal by stretching or shrinking the intervals.
//!
//! Too short an aggregation shows few regions accessed at all, too long a one shows all of them always; both say
//! little. The kernel's design document ("Monitoring Intervals Auto-tuning") aims at a given share of the highest
//! possible count of access events.

use crate::{Attrs, Target};
use core::time::Duration;

/// What interval auto-tuning aims at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntervalsGoal {
    /// Wanted share of observed access events, sum(size x nr_accesses) / sum(size x highest nr_accesses), in basis
    /// points. The kernel's documents recommend 400 (4 %).
    pub access_bp: u32,
    /// Aggregations between two adjustments; 3 is recommended.
    pub aggrs: u32,
    /// Shortest sampling interval to use; 5 ms is recommended.
    pub min_sample: Duration,
    /// Longest sampling interval to use; 10 s is recommended.
    pub max_sample: Duration,
}

impl Default for IntervalsGoal {
    fn default() -> Self {
        Self {
            access_bp: 400,
            aggrs: 3,
            min_sample: Duration::from_millis(5),
            max_sample: Duration::from_secs(10),
        }
    }
}

/// Sums access events over aggregations and proposes new attributes every `aggrs` of them.
#[derive(Clone, Debug)]
pub(crate) struct Tuner {
    goal: IntervalsGoal,
    observed: u128,
    possible: u128,
    aggregations: u32,
}

impl Tuner {
    pub(crate) fn new(goal: IntervalsGoal) -> Self {
        Self { goal, observed: 0, possible: 0, aggregations: 0 }
    }

    /// Counts an aggregation in; gives new attributes when it is time and they differ.
    pub(crate) fn aggregated(&mut self, targets: &[Target], attrs: &Attrs) -> Option<Attrs> {
        let max = u128::from(attrs.max_nr_accesses());
        for region in targets.iter().flat_map(|t| &t.regions) {
            self.observed += u128::from(region.range.size()) * u128::from(region.nr_accesses);
            self.possible += u128::from(region.range.size()) * max;
        }
        self.aggregations += 1;
        if self.aggregations < self.goal.aggrs.max(1) {
            return None;
        }
        let score_bp = (self.observed * 10_000).checked_div(self.possible).unwrap_or(0) as u64;
        *self = Self::new(self.goal);
        let tuned = self.goal.apply(attrs, score_bp);
        (tuned != *attrs).then_some(tuned)
    }
}

impl IntervalsGoal {
    /// The attributes for the next period after one that showed `score_bp` of the possible events: both intervals
    /// times 0.5..=2, their ratio kept, the sampling interval within its bounds.
    pub fn apply(&self, attrs: &Attrs, score_bp: u64) -> Attrs {
        let goal = u64::from(self.access_bp.max(1));
        // Like the kernel's feedback loop: from the present value by the relative distance to the goal.
        let missing = (goal as i64 - score_bp.min(2 * goal) as i64) * 10_000 / goal as i64;
        let factor_bp = (10_000 + missing).clamp(5_000, 20_000) as u128;
        let sample = attrs.sample.as_micros().max(1);
        let (low, high) = (self.min_sample.as_micros().max(1), self.max_sample.as_micros().max(1));
        let tuned = (sample * factor_bp / 10_000).clamp(low, high.max(low));
        let micros = |us: u128| Duration::from_micros(u64::try_from(us).unwrap_or(u64::MAX));
        Attrs { sample: micros(tuned), aggr: micros(attrs.aggr.as_micros() * tuned / sample), ..*attrs }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_grow_when_little_is_seen_and_shrink_when_much_is() {
        let goal = IntervalsGoal::default();
        let attrs = Attrs::default();
        let none = goal.apply(&attrs, 0);
        assert_eq!((none.sample.as_millis(), none.aggr.as_millis()), (10, 200));
        assert_eq!(goal.apply(&attrs, 400), attrs, "at the goal nothing changes");
        let slow = Attrs { sample: Duration::from_millis(100), aggr: Duration::from_secs(2), ..attrs };
        let much = goal.apply(&slow, 10_000);
        assert_eq!((much.sample.as_millis(), much.aggr.as_millis()), (50, 1000));
        assert_eq!(goal.apply(&attrs, 10_000).sample, attrs.sample, "not below the shortest");
        assert_eq!(goal.apply(&attrs, 200).sample.as_micros(), 7500);
    }
}

//! Recorded against real rates, over all ranges with the same stated rate.

use super::RateScore;
use isotherm_workloads::truth::{Arrivals, RangeLine, Stated};
use std::cmp::Ordering;

/// Sums for all ranges with the same stated rate.
#[derive(Clone, Debug)]
pub(super) struct RateSums {
    stated: Stated,
    arrivals: Arrivals,
    weight: f64,
    achieved: f64,
    countable: f64,
    pub(super) recorded: f64,
}

/// Rates at which a mean error is asked for, Hz: far enough above one access an aggregation, far enough below one a sample.
const MIDDLE: std::ops::RangeInclusive<f64> = 9.5..=52.5;

/// All rates of a record.
#[derive(Clone, Debug, Default)]
pub(super) struct Rates(pub(super) Vec<RateSums>);

impl Rates {
    pub(super) fn add(
        &mut self,
        range: &RangeLine,
        real_hz: f64,
        recorded_hz: f64,
        weight: f64,
        sample_ns: u64,
    ) {
        self.sum(&RateSums {
            stated: range.rate,
            arrivals: range.arrivals,
            weight,
            achieved: weight * real_hz,
            countable: weight * countable_hz(real_hz, range.arrivals, sample_ns),
            recorded: weight * recorded_hz,
        });
    }

    pub(super) fn merge(&mut self, other: &Self) {
        other.0.iter().for_each(|sums| self.sum(sums));
    }

    fn sum(&mut self, other: &RateSums) {
        let same = |r: &&mut RateSums| r.stated == other.stated && r.arrivals == other.arrivals;
        match self.0.iter_mut().find(same) {
            Some(sums) => {
                sums.weight += other.weight;
                sums.achieved += other.achieved;
                sums.countable += other.countable;
                sums.recorded += other.recorded;
            }
            None => self.0.push(other.clone()),
        }
    }

    /// The highest stated rate first.
    pub(super) fn scores(&self) -> Vec<RateScore> {
        let mut rates = self.0.clone();
        rates.sort_by(|a, b| by_rate(b.stated).partial_cmp(&by_rate(a.stated)).unwrap_or(Ordering::Equal));
        rates.iter().map(RateSums::score).collect()
    }

    /// Mean of the absolute relative errors of rates from 10 to 50 Hz, each weighing as many bytes and as long as it had.
    pub(super) fn middle_error(&self) -> Option<f64> {
        let (mut sum, mut weight) = (0.0, 0.0);
        for rate in &self.0 {
            let score = rate.score();
            if let Some(error) = score.relative_error.filter(|_| MIDDLE.contains(&score.achieved_hz)) {
                sum += error.abs() * rate.weight;
                weight += rate.weight;
            }
        }
        (weight > 0.0).then(|| sum / weight)
    }
}

/// What a monitor that looks once each `sample_ns` can count of accesses at `hz`: never more than one a sample.
fn countable_hz(hz: f64, arrivals: Arrivals, sample_ns: u64) -> f64 {
    let seconds = sample_ns.max(1) as f64 / 1e9;
    match arrivals {
        Arrivals::None => 0.0,
        Arrivals::Periodic => hz.min(1.0 / seconds),
        // Share of samples in which a Poisson process has at least one event.
        Arrivals::Random => -(-hz * seconds).exp_m1() / seconds,
    }
}

fn by_rate(stated: Stated) -> f64 {
    match stated {
        Stated::Hz(hz) => hz,
        Stated::Max(_) => f64::INFINITY,
    }
}

impl RateSums {
    fn score(&self) -> RateScore {
        let mean = |sum: f64| if self.weight > 0.0 { sum / self.weight } else { 0.0 };
        let (countable_hz, recorded_hz) = (mean(self.countable), mean(self.recorded));
        let error_hz = recorded_hz - countable_hz;
        RateScore {
            stated: self.stated,
            arrivals: self.arrivals,
            achieved_hz: mean(self.achieved),
            countable_hz,
            recorded_hz,
            error_hz,
            relative_error: (countable_hz > 0.0).then(|| error_hz / countable_hz),
        }
    }
}

//! Percentiles of a stream of values, in bounded memory.
//!
//! The first 65,536 values are kept as they are. After that they go into a histogram with 128 buckets an octave (as in
//! HDR Histogram), which errs by at most 1/256 of a value; lowest and highest stay exact.

use serde::Serialize;

/// Values kept before the histogram takes over.
const MAX_EXACT: usize = 1 << 16;
/// Buckets an octave: 2 to this.
const BITS: u32 = 7;
const BUCKETS: usize = (65 - BITS as usize) << BITS;

/// The percentiles that reports show, in 1/100.
pub const PERCENTILES: [u8; 9] = [0, 1, 5, 25, 50, 75, 95, 99, 100];

/// A value that is not exceeded in a share of the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Percentile {
    /// Share of the time, 0..=100.
    pub percent: u8,
    /// The least value that is not exceeded for at least so much of the time.
    pub value: u64,
}

/// Most steps of a distribution that is drawn: more than a plot has pixels.
const MAX_STEPS: usize = 1024;

/// A stretch of the time in which a figure was no higher than some value, and higher than that of the step before.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// Share of the time up to its end, those with lower values included, 0..=1. It begins where the one before ends.
    pub share: f64,
    /// The value.
    pub value: u64,
}

/// A distribution of values, each with a weight: the time for which it held.
#[derive(Clone, Debug, Default)]
pub(super) struct Distribution {
    exact: Vec<(u64, u64)>,
    histogram: Vec<u128>,
    weight: u128,
    sum: f64,
    min: u64,
    max: u64,
}

impl Distribution {
    pub fn add(&mut self, value: u64, weight: u64) {
        if weight == 0 {
            return;
        }
        self.min = if self.weight == 0 { value } else { self.min.min(value) };
        self.max = self.max.max(value);
        self.weight += u128::from(weight);
        self.sum += value as f64 * weight as f64;
        if self.histogram.is_empty() {
            self.exact.push((value, weight));
            if self.exact.len() > MAX_EXACT {
                self.histogram = vec![0; BUCKETS];
                for (value, weight) in std::mem::take(&mut self.exact) {
                    self.histogram[bucket(value)] += u128::from(weight);
                }
            }
        } else {
            self.histogram[bucket(value)] += u128::from(weight);
        }
    }

    /// Mean over time; `None` without values.
    pub fn mean(&self) -> Option<f64> {
        (self.weight > 0).then(|| self.sum / self.weight as f64)
    }

    /// How far a percentile other than 0 and 100 may be off, as a share of itself.
    pub fn relative_error(&self) -> f64 {
        if self.histogram.is_empty() { 0.0 } else { 1.0 / f64::from(2u32 << BITS) }
    }

    /// The values of [`PERCENTILES`], and all of the distribution in at most [`MAX_STEPS`] steps; empty without values.
    pub fn finish(mut self) -> (Vec<Percentile>, Vec<Step>) {
        if self.weight == 0 {
            return (Vec::new(), Vec::new());
        }
        self.exact.sort_unstable();
        let kept = self.exact.iter().map(|(value, weight)| (*value, u128::from(*weight)));
        let counted =
            self.histogram.iter().enumerate().filter(|(_, w)| **w > 0).map(|(i, w)| (middle(i), *w));
        let values: Vec<(u64, u128)> = kept.chain(counted).collect();
        let percentile = |percent: &u8| {
            let wanted = self.weight * u128::from(*percent);
            let mut below = 0;
            let found = values.iter().find(|(_, weight)| {
                below += weight;
                below * 100 >= wanted
            });
            let value = match percent {
                0 => self.min,
                100 => self.max,
                _ => found.map_or(self.max, |(value, _)| (*value).clamp(self.min, self.max)),
            };
            Percentile { percent: *percent, value }
        };
        (PERCENTILES.iter().map(percentile).collect(), self.steps(&values))
    }

    fn steps(&self, values: &[(u64, u128)]) -> Vec<Step> {
        let mut steps: Vec<Step> = Vec::new();
        let mut below = 0;
        for (value, weight) in values {
            below += weight;
            let step =
                Step { share: below as f64 / self.weight as f64, value: (*value).clamp(self.min, self.max) };
            match steps.last_mut() {
                Some(last) if last.value == step.value => last.share = step.share,
                // Narrower than can be drawn: the highest value of it stands for all.
                Some(last)
                    if (last.share * MAX_STEPS as f64) as usize
                        == (step.share * MAX_STEPS as f64) as usize =>
                {
                    *last = step;
                }
                _ => steps.push(step),
            }
        }
        steps
    }
}

/// Values below 128 have a bucket each; above, the highest set bit and the seven below it choose.
fn bucket(value: u64) -> usize {
    let shift = (63 - (value | 1).leading_zeros()).saturating_sub(BITS);
    // Octave `shift` begins at `(shift + 1) << BITS` for shift > 0, since its values keep their top bit.
    ((u64::from(shift) << BITS) + (value >> shift)) as usize
}

/// The middle of a bucket.
fn middle(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let shift = (bucket >> BITS).saturating_sub(1);
    let first = (bucket - (shift << BITS)) << shift;
    first.saturating_add(((1u64 << shift) - 1) / 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn percentiles(values: &[(u64, u64)]) -> Vec<u64> {
        let mut distribution = Distribution::default();
        values.iter().for_each(|(v, w)| distribution.add(*v, *w));
        distribution.finish().0.iter().map(|p| p.value).collect()
    }

    /// Each value as often as its weight says, sorted: the naive way.
    fn naive(values: &[(u64, u64)]) -> Vec<u64> {
        let mut all: Vec<u64> =
            values.iter().flat_map(|(v, w)| std::iter::repeat_n(*v, *w as usize)).collect();
        all.sort_unstable();
        let rank = |p: u8| (all.len() * usize::from(p)).div_ceil(100).max(1);
        PERCENTILES.iter().map(|p| all[rank(*p) - 1]).collect()
    }

    proptest! {
        #[test]
        fn percentiles_are_those_of_the_sorted_list(
            values in proptest::collection::vec((any::<u64>(), 1u64..20), 1..50),
        ) {
            prop_assert_eq!(percentiles(&values), naive(&values));
        }

        #[test]
        fn a_bucket_holds_its_value_within_the_stated_error(value in any::<u64>()) {
            let index = bucket(value);
            prop_assert!(index < BUCKETS);
            let error = middle(index).abs_diff(value) as f64;
            prop_assert!(error <= value as f64 / 256.0, "{value} {index} {}", middle(index));
            prop_assert!(value == 0 || bucket(value - 1) <= index);
        }
    }

    #[test]
    fn many_values_stay_within_the_stated_error() {
        let values: Vec<(u64, u64)> = (0..200_000u64).map(|i| ((i * 7919) % 200_000 * 4096, 1)).collect();
        let mut distribution = Distribution::default();
        values.iter().for_each(|(v, w)| distribution.add(*v, *w));
        assert!(distribution.exact.is_empty());
        let error = distribution.relative_error();
        assert!((error - 1.0 / 256.0).abs() < 1e-12);
        let found: Vec<u64> = distribution.finish().0.iter().map(|p| p.value).collect();
        for (found, expected) in found.iter().zip(naive(&values)) {
            assert!((*found as f64 - expected as f64).abs() <= error * expected as f64, "{found} {expected}");
        }
    }

    #[test]
    fn steps_are_all_values_and_not_too_many() {
        let steps = |values: &[(u64, u64)]| {
            let mut distribution = Distribution::default();
            values.iter().for_each(|(value, weight)| distribution.add(*value, *weight));
            distribution.finish().1
        };
        let two = steps(&[(10, 1), (3, 2), (10, 1)]);
        assert_eq!(two, [Step { share: 0.5, value: 3 }, Step { share: 1.0, value: 10 }]);
        let many = steps(&(0..60_000).map(|i| (i * 7919 % 60_000, 1)).collect::<Vec<_>>());
        assert!((900..=MAX_STEPS + 1).contains(&many.len()), "{}", many.len());
        assert!(many.windows(2).all(|w| w[0].value < w[1].value && w[0].share < w[1].share));
        assert_eq!(many.last().map(|s| (s.share, s.value)), Some((1.0, 59_999)));
        assert!(steps(&[]).is_empty());
    }

    #[test]
    fn time_counts_not_the_number_of_snapshots() {
        // 10 for nine seconds, 1000 for one, in a single long and many short snapshots.
        let mut values = vec![(10, 9_000)];
        values.extend((0..10).map(|_| (1000, 100)));
        assert_eq!(percentiles(&values)[4], 10);
        assert_eq!(percentiles(&[]), [0u64; 0]);
    }
}

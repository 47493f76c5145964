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

    /// The values of [`PERCENTILES`]; empty without values.
    pub fn percentiles(mut self) -> Vec<Percentile> {
        if self.weight == 0 {
            return Vec::new();
        }
        self.exact.sort_unstable();
        let kept = self.exact.iter().map(|(value, weight)| (*value, u128::from(*weight)));
        let counted =
            self.histogram.iter().enumerate().filter(|(_, w)| **w > 0).map(|(i, w)| (middle(i), *w));
        let values: Vec<(u64, u128)> = kept.chain(counted).collect();
        PERCENTILES
            .iter()
            .map(|percent| {
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
            })
            .collect()
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
        distribution.percentiles().iter().map(|p| p.value).collect()
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
        let found: Vec<u64> = distribution.percentiles().iter().map(|p| p.value).collect();
        for (found, expected) in found.iter().zip(naive(&values)) {
            assert!((*found as f64 - expected as f64).abs() <= error * expected as f64, "{found} {expected}");
        }
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

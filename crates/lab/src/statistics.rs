//! Means, spreads and percentiles of what was measured.

use isotherm_workloads::Rng;
use serde::Serialize;

/// Two-sided 97.5 % quantiles of Student's t for 1 to 30 degrees of freedom (any table of the distribution).
const T975: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];

/// Resamples of a bootstrap: enough for the 2.5 % tails to be steady in their second digit.
const RESAMPLES: usize = 4000;

/// A mean with its spread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Estimate {
    /// How many values.
    pub count: usize,
    /// Their mean.
    pub mean: f64,
    /// Their median.
    pub median: f64,
    /// Sample standard deviation; `None` for fewer than two values.
    pub stdev: Option<f64>,
    /// 95 % confidence interval of the mean by Student's t; `None` for fewer than two values.
    pub ci95: Option<(f64, f64)>,
    /// The same by bootstrap (percentiles of resampled means, fixed seed): holds without a normal distribution.
    pub ci95_bootstrap: Option<(f64, f64)>,
    /// 95 % confidence interval of the median by order statistics: holds whatever the distribution, and a few values that are
    /// far off do not move it; `None` for fewer than six values.
    pub median_ci95: Option<(f64, f64)>,
    /// Least value.
    pub min: f64,
    /// Greatest value.
    pub max: f64,
}

impl Estimate {
    /// The estimate from `values`; `None` when there are none or one of them is not finite.
    pub fn of(values: &[f64]) -> Option<Self> {
        if values.iter().any(|v| !v.is_finite()) {
            return None;
        }
        let count = values.len();
        let (mean, median) = (mean(values)?, median(values)?);
        let stdev = (count > 1).then(|| {
            let squares: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
            (squares / (count - 1) as f64).sqrt()
        });
        let ci95 = stdev.map(|s| {
            let freedom = count - 1;
            // Beyond the table: the normal quantile and the first term of its expansion, right to 0.001.
            let t = T975.get(freedom - 1).copied().unwrap_or(1.95996 + 2.372 / freedom as f64);
            let half = t * s / (count as f64).sqrt();
            (mean - half, mean + half)
        });
        Some(Self {
            count,
            mean,
            median,
            stdev,
            ci95,
            ci95_bootstrap: (count > 1).then(|| bootstrap(values)),
            median_ci95: median_interval(values),
            min: values.iter().copied().fold(mean, f64::min),
            max: values.iter().copied().fold(mean, f64::max),
        })
    }
}

/// The mean; `None` of no values.
pub(crate) fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// The median, the mean of the two middle values where their number is even; `None` of no values.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let low = sorted.get(sorted.len().checked_sub(1)? / 2)?;
    Some(f64::midpoint(*low, *sorted.get(sorted.len() / 2)?))
}

/// The interval between the `k`th least and the `k`th greatest value, which misses the median with the probability that of
/// fair coins fewer than `k` show heads, or fewer than `k` tails (Conover, Practical Nonparametric Statistics, 3.2).
fn median_interval(values: &[f64]) -> Option<(f64, f64)> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = median_rank(sorted.len()).checked_sub(1)?;
    Some((*sorted.get(rank)?, *sorted.get(sorted.len() - 1 - rank)?))
}

/// The largest `k` for which that is 5 % at the most; 0 if there is none.
fn median_rank(count: usize) -> usize {
    if count > 1000 {
        // Powers of a half would become too small to add up, and the normal distribution is close.
        return ((count as f64 - 1.95996 * (count as f64).sqrt()) / 2.0) as usize;
    }
    let (mut probability, mut fewer, mut k) = (0.5f64.powi(count as i32), 0.0, 0);
    while k < count {
        fewer += probability;
        if fewer > 0.025 {
            break;
        }
        probability *= (count - k) as f64 / (k + 1) as f64;
        k += 1;
    }
    k
}

fn bootstrap(values: &[f64]) -> (f64, f64) {
    let mut rng = Rng::new(1, 0);
    let count = values.len() as u64;
    let mut means: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            let sum: f64 = (0..count).filter_map(|_| values.get(rng.below(count) as usize)).sum();
            sum / count as f64
        })
        .collect();
    means.sort_by(f64::total_cmp);
    let at = |share: f64| means.get((share * RESAMPLES as f64) as usize).copied().unwrap_or_default();
    (at(0.025), at(0.975))
}

/// Percentiles of a quantity in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Quartiles {
    /// A quarter of the values lie at or below it.
    pub p25: u64,
    /// The median.
    pub p50: u64,
    /// Three quarters of the values lie at or below it.
    pub p75: u64,
}

impl Quartiles {
    /// By the nearest-rank method, so each is one of the values; `None` for no values.
    pub fn of(values: &[u64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_unstable();
        let rank = |quarters: usize| {
            let rank = (sorted.len() * quarters).div_ceil(4).max(1);
            sorted.get(rank - 1).copied()
        };
        Some(Self { p25: rank(1)?, p50: rank(2)?, p75: rank(3)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_estimate_agrees_with_one_made_by_hand() {
        // Mean 3, squares 4 + 1 + 0 + 1 + 4 = 10, stdev sqrt(10 / 4), half width 2.776 * stdev / sqrt(5).
        let e = Estimate::of(&[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
        let stdev = 2.5f64.sqrt();
        assert_eq!((e.count, e.mean, e.median, e.min, e.max), (5, 3.0, 3.0, 1.0, 5.0));
        assert!((e.stdev.unwrap() - stdev).abs() < 1e-12);
        let (low, high) = e.ci95.unwrap();
        assert!((high - 3.0 - 2.776 * stdev / 5f64.sqrt()).abs() < 1e-9 && (low + high - 6.0).abs() < 1e-9);
        let (low, high) = e.ci95_bootstrap.unwrap();
        assert!(1.0 < low && low < 2.5 && 3.5 < high && high < 5.0, "{low} {high}");
        assert_eq!(Estimate::of(&[2.0, 1.0]).unwrap().median, 1.5);
    }

    #[test]
    fn too_few_values_have_no_spread() {
        assert_eq!(Estimate::of(&[]), None);
        assert_eq!(Estimate::of(&[1.0, f64::NAN]), None);
        let one = Estimate::of(&[7.0]).unwrap();
        assert_eq!(
            (one.mean, one.median, one.stdev, one.ci95, one.ci95_bootstrap, one.median_ci95),
            (7.0, 7.0, None, None, None, None)
        );
        let many: Vec<f64> = (0..100).map(f64::from).collect();
        let (low, high) = Estimate::of(&many).unwrap().ci95.unwrap();
        assert!(low > 43.0 && high < 56.0);
    }

    #[test]
    fn the_median_s_interval_is_that_of_the_tables() {
        // Ranks for 95 % in the tables of the sign test: none below 6 values, 1 of 6, 2 of 10, 10 of 30, 40 of 100.
        let ranks = [5, 6, 8, 9, 10, 20, 30, 100].map(median_rank);
        assert_eq!(ranks, [0, 1, 1, 2, 2, 6, 10, 40]);
        // Where one way takes over from the other.
        assert_eq!((median_rank(1000), median_rank(1001)), (469, 469));
        let values: Vec<f64> = (1..=30).rev().map(f64::from).collect();
        assert_eq!(Estimate::of(&values).unwrap().median_ci95, Some((10.0, 21.0)));
        // What spoils a third of the values does not move it far.
        let spoilt: Vec<f64> = values.iter().map(|&v| if v > 21.0 { v * 1e9 } else { v }).collect();
        assert_eq!(Estimate::of(&spoilt).unwrap().median_ci95, Some((10.0, 21.0)));
        assert_eq!(Estimate::of(&values[..5]).unwrap().median_ci95, None);
    }

    #[test]
    fn quartiles_are_values_that_occur() {
        assert_eq!(Quartiles::of(&[]), None);
        assert_eq!(Quartiles::of(&[9]), Some(Quartiles { p25: 9, p50: 9, p75: 9 }));
        assert_eq!(Quartiles::of(&[40, 10, 20, 30]), Some(Quartiles { p25: 10, p50: 20, p75: 30 }));
        assert_eq!(Quartiles::of(&[1, 2, 3, 4, 5]), Some(Quartiles { p25: 2, p50: 3, p75: 4 }));
    }
}

//! A value over time in a fixed number of buckets, in one pass.
//!
//! The length of a recording is not known before its end. So buckets start as short as the first snapshot; whenever
//! they no longer reach, neighbours are joined and each covers twice the time. At the end at least half are in use.

use serde::Serialize;

/// A value in a stretch of time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Bucket {
    /// First moment, ns.
    pub start_ns: u64,
    /// First moment past it, ns.
    pub end_ns: u64,
    /// Mean over the time of which something is known; `null` where there is none.
    pub mean: Option<f64>,
    /// Lowest value.
    pub min: Option<u64>,
    /// Highest value.
    pub max: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    /// Value x ns.
    sum: f64,
    ns: u64,
    min: u64,
    max: u64,
}

impl Cell {
    fn add(&mut self, other: Self) {
        if other.ns == 0 {
            return;
        }
        self.min = if self.ns == 0 { other.min } else { self.min.min(other.min) };
        self.max = self.max.max(other.max);
        self.sum += other.sum;
        self.ns = self.ns.saturating_add(other.ns);
    }
}

#[derive(Clone, Debug)]
pub(super) struct Series {
    start_ns: u64,
    width_ns: u64,
    cells: Vec<Cell>,
    last_ns: u64,
}

impl Series {
    /// At most `most` buckets, at least 2; an odd number is rounded up.
    pub fn new(most: usize) -> Self {
        let most = most.clamp(2, 1 << 16).next_multiple_of(2);
        Self { start_ns: 0, width_ns: 0, cells: vec![Cell::default(); most], last_ns: 0 }
    }

    /// `value` held from `start` to `end`; `None`: that is time in which it is not known. What lies before the first start is
    /// moved there.
    pub fn add(&mut self, value: Option<u64>, start: u64, end: u64) {
        if start >= end {
            return;
        }
        if self.width_ns == 0 {
            self.start_ns = start;
            self.width_ns = end - start;
        }
        let start = start.max(self.start_ns) - self.start_ns;
        let end = end.max(self.start_ns + start + 1) - self.start_ns;
        while u128::from(end) > u128::from(self.width_ns) * self.cells.len() as u128 {
            self.halve();
        }
        self.last_ns = self.last_ns.max(end);
        let Some(value) = value else { return };
        let index = |ns: u64| usize::try_from(ns / self.width_ns).unwrap_or(usize::MAX);
        for i in index(start)..=index(end - 1) {
            let from = i as u64 * self.width_ns;
            let ns = end.min(from.saturating_add(self.width_ns)) - start.max(from);
            self.cells[i].add(Cell { sum: value as f64 * ns as f64, ns, min: value, max: value });
        }
    }

    fn halve(&mut self) {
        let n = self.cells.len();
        for i in 0..n / 2 {
            let mut joined = self.cells[2 * i];
            joined.add(self.cells[2 * i + 1]);
            self.cells[i] = joined;
        }
        self.cells[n / 2..].fill(Cell::default());
        self.width_ns = self.width_ns.saturating_mul(2);
    }

    pub fn buckets(&self) -> Vec<Bucket> {
        let used = if self.width_ns == 0 { 0 } else { self.last_ns.div_ceil(self.width_ns) as usize };
        let at = |i: usize| {
            self.start_ns.saturating_add((i as u64).saturating_mul(self.width_ns).min(self.last_ns))
        };
        let bucket = |(i, cell): (usize, &Cell)| {
            let known = cell.ns > 0;
            Bucket {
                start_ns: at(i),
                end_ns: at(i + 1),
                mean: known.then(|| cell.sum / cell.ns as f64),
                min: known.then_some(cell.min),
                max: known.then_some(cell.max),
            }
        };
        self.cells.iter().take(used).enumerate().map(bucket).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn buckets_cover_the_time_and_keep_value_times_time(
            steps in proptest::collection::vec((proptest::option::of(0u64..5_000), 1u64..1_000, 0u64..1_000), 1..60),
            most in 2usize..20,
        ) {
            let mut series = Series::new(most);
            let (mut now, mut sum, mut first) = (1_000, 0u64, None);
            for (value, length, pause) in steps {
                series.add(value, now, now + length);
                first.get_or_insert(now);
                sum += value.unwrap_or(0) * length;
                now += length;
                if pause > 900 {
                    now += pause;
                }
            }
            let buckets = series.buckets();
            prop_assert!(buckets.len() <= most.next_multiple_of(2));
            prop_assert_eq!(Some(buckets[0].start_ns), first);
            prop_assert!(buckets.windows(2).all(|w| w[0].end_ns == w[1].start_ns));
            let kept: f64 = series.cells.iter().map(|c| c.sum).sum();
            prop_assert!((kept - sum as f64).abs() <= 1e-9 * sum as f64);
            for b in &buckets {
                if let (Some(min), Some(mean), Some(max)) = (b.min, b.mean, b.max) {
                    prop_assert!(min as f64 <= mean + 1e-9 && mean <= max as f64 + 1e-9);
                }
            }
        }
    }

    #[test]
    fn time_in_which_nothing_is_known_has_no_value() {
        let mut series = Series::new(8);
        series.add(None, 10, 20);
        series.add(Some(3), 20, 30);
        series.add(None, 30, 50);
        let buckets = series.buckets();
        assert_eq!(buckets.iter().map(|b| b.mean).collect::<Vec<_>>(), [None, Some(3.0), None, None]);
        assert_eq!((buckets[0].start_ns, buckets[3].end_ns), (10, 50));
    }

    #[test]
    fn extremes_survive_the_joining() {
        let mut series = Series::new(4);
        for i in 0..1000u64 {
            series.add(Some(if i == 500 { 99 } else { 7 }), i * 10, i * 10 + 10);
        }
        let buckets = series.buckets();
        assert!((2..=4).contains(&buckets.len()));
        assert_eq!(buckets.iter().filter_map(|b| b.max).max(), Some(99));
        assert_eq!(buckets.iter().filter_map(|b| b.min).min(), Some(7));
        assert_eq!(buckets.last().map(|b| b.end_ns), Some(10_000));
    }

    #[test]
    fn extreme_times_do_not_panic() {
        let mut series = Series::new(3);
        series.add(Some(1), 5, 6);
        series.add(Some(u64::MAX), u64::MAX - 1, u64::MAX);
        series.add(Some(1), 0, 2);
        series.add(Some(1), 9, 9);
        series.add(None, 9, u64::MAX);
        assert!(series.buckets().len() <= 4);
        assert_eq!(Series::new(8).buckets(), []);
    }
}

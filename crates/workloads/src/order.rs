//! Orders: which page of its range a stream touches when. The threads go by them, and the truth computes from them which
//! bytes were accessed in a span of time.

use crate::pattern::Layout;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Which page comes when.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "lowercase")]
pub enum Order {
    /// In address order.
    Sequential,
    /// Two fronts `stride` bytes apart; see [`Kind::Butterfly`](crate::Kind::Butterfly).
    Butterfly {
        /// Distance of the fronts in bytes, a multiple of an order-0 page.
        stride: u64,
    },
    /// Drawn at random, all alike.
    Random,
    /// Drawn at random, some more often than others.
    Zipf(Popularity),
}

/// How often which bytes are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Popularity {
    /// The n-th most popular grain is drawn with a probability in proportion to 1 / n^skew; 0..=10.
    pub skew: f64,
    /// Where the popular grains lie.
    pub layout: Layout,
    /// Bytes of a grain.
    pub grain: u64,
}

impl Order {
    /// Whether pages are drawn, so that there are no passes.
    pub fn is_random(self) -> bool {
        matches!(self, Self::Random | Self::Zipf(_))
    }

    /// The page that a pass over `pages` pages comes to as its `visit`-th, both counted from 0.
    pub(crate) fn page(self, visit: u64, pages: u64, page_bytes: u64) -> u64 {
        let Self::Butterfly { stride } = self else { return visit };
        let stride = (stride / page_bytes.max(1)).max(1);
        let block = visit / (2 * stride) * 2 * stride;
        if block + 2 * stride > pages {
            // What is too short for two fronts comes in address order.
            return visit;
        }
        let within = visit - block;
        block + within / 2 + within % 2 * stride
    }

    /// The pages that the visits `visits` of one pass come to: sorted, disjoint.
    pub(crate) fn pages(self, visits: Range<u64>, pages: u64, page_bytes: u64) -> Vec<Range<u64>> {
        let visits = visits.start.min(pages)..visits.end.min(pages);
        let Self::Butterfly { stride } = self else { return vec![visits] };
        let stride = (stride / page_bytes.max(1)).max(1);
        let size = 2 * stride;
        let mut found = Vec::new();
        let mut at = visits.start;
        while at < visits.end {
            let block = at / size * size;
            if block + size > pages {
                found.push(at..visits.end);
                break;
            }
            if at == block && visits.end >= block + size {
                // All whole blocks at once.
                let whole = (visits.end.min(pages / size * size) - at) / size * size;
                found.push(at..at + whole);
                at += whole;
                continue;
            }
            let (from, to) = (at - block, (visits.end - block).min(size));
            found.push(block + from.div_ceil(2)..block + to.div_ceil(2));
            found.push(block + stride + from / 2..block + stride + to / 2);
            at = block + to;
        }
        joined(found)
    }
}

/// The union of `ranges`: sorted, disjoint, none empty.
pub(crate) fn joined(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.retain(|r| r.start < r.end);
    ranges.sort_unstable_by_key(|r| r.start);
    let mut out: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match out.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => out.push(range),
        }
    }
    out
}

impl Popularity {
    /// By how much the place of a grain rises with its rank, going around the range of `count` grains.
    fn step(&self, count: u64) -> u64 {
        match self.layout {
            Layout::Clustered => 1,
            Layout::Scattered => {
                // About the golden ratio of the range: neighbours in rank lie far apart, and since the step has no divisor
                // in common with the count, each grain comes once.
                let mut step = (count as f64 * 0.618_033_988_75) as u64;
                while gcd(step, count) != 1 {
                    step += 1;
                }
                step
            }
        }
    }

    /// The share of all draws that each of `count` grains gets, in address order.
    pub(crate) fn shares(&self, count: u64) -> Vec<f64> {
        let weight = |rank: u64| (rank as f64 + 1.0).powf(-self.skew);
        let sum: f64 = (0..count).map(weight).sum();
        let mut shares = vec![0.0; usize::try_from(count).unwrap_or(0)];
        let step = self.step(count.max(1));
        for rank in 0..count {
            let grain = usize::try_from(place(rank, step, count)).unwrap_or(usize::MAX);
            if let Some(share) = shares.get_mut(grain) {
                *share = weight(rank) / sum;
            }
        }
        shares
    }
}

/// Where the `rank`-th most popular of `count` grains lies.
fn place(rank: u64, step: u64, count: u64) -> u64 {
    (u128::from(rank) * u128::from(step) % u128::from(count.max(1))) as u64
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Draws grains by their popularity: rejection-inversion (Hörmann and Derflinger 1996). Needs no table, whose own accesses
/// would be part of the process.
#[derive(Clone, Debug)]
pub(crate) struct Zipf {
    count: u64,
    step: u64,
    skew: f64,
    first: f64,
    last: f64,
    squeeze: f64,
}

impl Zipf {
    /// Draws from `count` grains, at least 1.
    pub(crate) fn new(popularity: &Popularity, count: u64) -> Self {
        let (count, skew) = (count.max(1), popularity.skew);
        let step = popularity.step(count);
        let mut zipf = Self { count, step, skew, first: 0.0, last: 0.0, squeeze: 0.0 };
        zipf.first = zipf.integral(1.5) - 1.0;
        zipf.last = zipf.integral(zipf.count as f64 + 0.5);
        zipf.squeeze = 2.0 - zipf.inverse(zipf.integral(2.5) - zipf.density(2.0));
        zipf
    }

    /// A grain, counted from the start of the range.
    pub(crate) fn draw(&self, rng: &mut crate::rng::Rng) -> u64 {
        loop {
            let u = self.last + rng.unit() * (self.first - self.last);
            let x = self.inverse(u);
            let k = x.round().clamp(1.0, self.count as f64);
            if k - x <= self.squeeze || u >= self.integral(k + 0.5) - self.density(k) {
                return place(k as u64 - 1, self.step, self.count);
            }
        }
    }

    fn density(&self, x: f64) -> f64 {
        (-self.skew * x.ln()).exp()
    }

    fn integral(&self, x: f64) -> f64 {
        let log = x.ln();
        let t = (1.0 - self.skew) * log;
        log * if t.abs() > 1e-8 { t.exp_m1() / t } else { 1.0 + t / 2.0 }
    }

    fn inverse(&self, y: f64) -> f64 {
        let t = (y * (1.0 - self.skew)).max(-1.0);
        (y * if t.abs() > 1e-8 { t.ln_1p() / t } else { 1.0 - t / 2.0 }).exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;
    use proptest::prelude::*;

    #[test]
    fn a_butterfly_goes_by_pairs() {
        let order = Order::Butterfly { stride: 2 };
        let pages: Vec<_> = (0..9).map(|v| order.page(v, 9, 1)).collect();
        assert_eq!(pages, [0, 2, 1, 3, 4, 6, 5, 7, 8]);
    }

    #[test]
    fn draws_have_the_shares_that_are_stated() {
        for (skew, layout) in [(0.0, Layout::Clustered), (0.8, Layout::Scattered), (1.0, Layout::Scattered)] {
            let popularity = Popularity { skew, layout, grain: 1 };
            let (count, draws) = (20, 200_000);
            let (zipf, mut rng) = (Zipf::new(&popularity, count), Rng::new(1, 2));
            let mut seen = vec![0u32; count as usize];
            for _ in 0..draws {
                seen[zipf.draw(&mut rng) as usize] += 1;
            }
            for (grain, share) in popularity.shares(count).into_iter().enumerate() {
                let (got, expected) = (f64::from(seen[grain]), share * f64::from(draws));
                // Five standard deviations.
                assert!((got - expected).abs() < 5.0 * expected.sqrt(), "{skew} {grain}: {got} {expected}");
            }
        }
    }

    #[test]
    fn a_scattered_popularity_has_every_grain_once() {
        for count in [1, 2, 3, 12, 128, 1000, 65_536] {
            let popularity = Popularity { skew: 1.0, layout: Layout::Scattered, grain: 1 };
            let step = popularity.step(count);
            let grains: std::collections::BTreeSet<_> =
                (0..count).map(|rank| place(rank, step, count)).collect();
            assert_eq!(grains.len() as u64, count);
        }
    }

    proptest! {
        #[test]
        fn the_pages_of_visits_are_those_visited(
            stride in 1..9u64, pages in 1..60u64, ends in (0..60u64, 0..60u64), butterfly: bool,
        ) {
            let order = if butterfly { Order::Butterfly { stride } } else { Order::Sequential };
            let visits = ends.0.min(ends.1).min(pages)..ends.0.max(ends.1).min(pages);
            let mut naive: Vec<_> = visits.clone().map(|v| order.page(v, pages, 1)).collect();
            naive.sort_unstable();
            let got = order.pages(visits, pages, 1);
            prop_assert!(got.windows(2).all(|w| w[0].end < w[1].start));
            prop_assert_eq!(got.into_iter().flatten().collect::<Vec<_>>(), naive);
        }

        /// A pass comes to every page once.
        #[test]
        fn a_pass_is_a_permutation(stride in 1..9u64, pages in 1..60u64) {
            let order = Order::Butterfly { stride };
            let mut all: Vec<_> = (0..pages).map(|v| order.page(v, pages, 1)).collect();
            all.sort_unstable();
            prop_assert!(all.into_iter().eq(0..pages));
        }
    }
}

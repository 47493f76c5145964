//! The most likely division of an address space into stretches of equal access rate.
//!
//! Each probe tried `n` times and hit `s` times. Rates come from a small ladder; a stretch at rate `p` explains its
//! probes with log-likelihood `sum(s ln p + (n - s) ln(1 - p))`; every change of rate from one probe to the next costs
//! a fixed price. The division with the highest total is found exactly by dynamic programming (Viterbi) in one pass:
//! number of probes x number of rates. The price is what keeps noise from becoming regions: two changes (a stretch
//! that begins and ends) must be paid for by evidence that is e^(2 x price) times likelier than without them.

use alloc::vec::Vec;

/// The ladder: probability of an access in a sampling interval, with ln(p) and ln(1 - p). (core has no logarithm.)
const LADDER: [(f32, f32, f32); 8] = [
    (0.001, -6.9078, -0.0010),
    (0.012, -4.4228, -0.0121),
    (0.05, -2.9957, -0.0513),
    (0.12, -2.1203, -0.1278),
    (0.25, -1.3863, -0.2877),
    (0.48, -0.7340, -0.6539),
    (0.8, -0.2231, -1.6094),
    (0.985, -0.0151, -4.1997),
];
const RUNGS: usize = LADDER.len();

/// What one probe showed, and the price of a change of rate just before it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Evidence {
    pub hits: f32,
    pub watched: f32,
    pub price: f32,
}

/// A rung of the ladder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rung(usize);

impl Rung {
    /// Log-likelihood of `hits` in `watched` trials at this rate.
    fn likelihood(self, hits: f32, watched: f32) -> f32 {
        let (_, ln_p, ln_q) = LADDER[self.0];
        hits * ln_p + (watched - hits).max(0.0) * ln_q
    }

    /// How much likelier (nats) `hits` in `watched` trials are at this rate than at `other`.
    pub fn against(self, other: Self, hits: f32, watched: f32) -> f32 {
        self.likelihood(hits, watched) - other.likelihood(hits, watched)
    }

    /// Nats that a trial at this rate yields on average to tell it from `other` (Kullback-Leibler divergence).
    pub fn information(self, other: Self) -> f32 {
        self.against(other, LADDER[self.0].0, 1.0)
    }

    /// Access probability an interval.
    pub fn rate(self) -> f32 {
        LADDER[self.0].0
    }
}

/// The rung that each probe's stretch has on the ladder, in order.
pub(super) fn segment(evidence: &[Evidence]) -> Vec<Rung> {
    let mut best = [0.0f32; RUNGS];
    let mut from: Vec<[u8; RUNGS]> = Vec::with_capacity(evidence.len());
    for (index, e) in evidence.iter().enumerate() {
        let (top, top_value) = highest(&best);
        let price = if index == 0 { 0.0 } else { e.price };
        let mut back = [0u8; RUNGS];
        for rung in 0..RUNGS {
            if best[rung] < top_value - price {
                best[rung] = top_value - price;
                back[rung] = top as u8;
            } else {
                back[rung] = rung as u8;
            }
            best[rung] += Rung(rung).likelihood(e.hits, e.watched);
        }
        from.push(back);
    }
    let (mut rung, _) = highest(&best);
    let mut rungs = alloc::vec![Rung(0); evidence.len()];
    for (at, back) in rungs.iter_mut().zip(&from).rev() {
        *at = Rung(rung);
        rung = usize::from(back[rung]);
    }
    rungs
}

fn highest(values: &[f32; RUNGS]) -> (usize, f32) {
    let mut top = 0;
    for (index, value) in values.iter().enumerate() {
        if *value > values[top] {
            top = index;
        }
    }
    (top, values[top])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(probes: &[(f32, f32)]) -> Vec<f32> {
        let evidence: Vec<Evidence> =
            probes.iter().map(|&(hits, watched)| Evidence { hits, watched, price: 6.0 }).collect();
        segment(&evidence).into_iter().map(Rung::rate).collect()
    }

    #[test]
    fn a_stretch_of_hits_stands_out() {
        let mut probes = [(0.0, 20.0); 30];
        probes[12..15].fill((2.0, 2.0));
        let rates = line(&probes);
        assert!(rates[..12].iter().chain(&rates[15..]).all(|r| *r < 0.01), "{rates:?}");
        assert!(rates[12..15].iter().all(|r| *r > 0.5), "{rates:?}");
    }

    #[test]
    fn one_chance_hit_does_not() {
        let mut probes = [(0.0, 20.0); 30];
        probes[12] = (1.0, 20.0);
        let rates = line(&probes);
        assert!(rates.windows(2).all(|p| p[0] == p[1]), "{rates:?}");
    }

    #[test]
    fn lukewarm_and_cold_are_told_apart() {
        let mut probes = [(0.0, 20.0); 40];
        probes[20..].fill((1.0, 20.0));
        let rates = line(&probes);
        assert!(
            rates[..19].iter().all(|r| *r < 0.005) && rates[22..].iter().all(|r| *r > 0.005),
            "{rates:?}"
        );
    }
}

//! The most likely division of an address space into stretches of equal access rate.
//!
//! Rates come from a small ladder; a stretch at one rate explains what its probes showed with the log-likelihood that
//! [`super::count`] gives; every change of rate from one probe to the next costs a fixed price. The division with the highest total is found exactly by dynamic programming (Viterbi) in one pass:
//! number of probes x number of rates. The price is what keeps noise from becoming regions: two changes (a stretch
//! that begins and ends) must be paid for by evidence that is e^(2 x price) times likelier than without them.

use super::count::{Count, RUNGS, Rung, highest};
use alloc::vec::Vec;

/// What one probe showed, and the price of a change of rate just before it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Evidence {
    pub count: Count,
    pub price: f32,
}

/// The rung that each probe's stretch has on the ladder, in order.
pub(super) fn segment(evidence: &[Evidence]) -> Vec<Rung> {
    let mut best = [0.0f32; RUNGS];
    let mut from: Vec<[u8; RUNGS]> = Vec::with_capacity(evidence.len());
    for (index, e) in evidence.iter().enumerate() {
        let (top, top_value) = highest(&best);
        let price = if index == 0 { 0.0 } else { e.price };
        let likelihoods = e.count.likelihoods();
        let mut back = [0u8; RUNGS];
        for rung in 0..RUNGS {
            if best[rung] < top_value - price {
                best[rung] = top_value - price;
                back[rung] = top as u8;
            } else {
                back[rung] = rung as u8;
            }
            best[rung] += likelihoods[rung];
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

#[cfg(test)]
mod tests {
    use super::*;

    fn line(probes: &[(f32, f32)]) -> Vec<f32> {
        let evidence: Vec<Evidence> = probes
            .iter()
            .map(|&(hits, tried)| Evidence { count: Count::new(hits, tried), price: 6.0 })
            .collect();
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

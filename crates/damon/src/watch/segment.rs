//! The most likely division of an address space into stretches of equal access rate.
//!
//! Rates come from a small ladder, and *unknown* stands beside it as a rung of its own. A stretch at one rate explains the
//! evidence of its cells with a log-likelihood; every change from one cell to the next costs a price. The division with the
//! highest total is found exactly by dynamic programming (Viterbi) in one pass. The price is what keeps noise from becoming
//! regions: two changes (a stretch that begins and ends) must be paid for by evidence that is e^(2 x price) times likelier
//! than without them.

use super::tuning::Tuning;
use alloc::vec::Vec;

/// The ladder of rates: probability `p` of an access in a sampling interval, with ln(p) and ln(1 - p). (core has no
/// logarithm.) From 2.4 Hz on, at 5 ms a sampling interval, rungs are a factor of 1.7 apart, so that 10 and 20 Hz are two.
const LADDER: [(f32, f32, f32); RATES] = [
    (0.0003, -8.1117, -0.0003),
    (0.0011, -6.8124, -0.0011),
    (0.003, -5.8091, -0.0030),
    (0.006, -5.1160, -0.0060),
    (0.012, -4.4228, -0.0121),
    (0.024, -3.7297, -0.0243),
    (0.042, -3.1701, -0.0429),
    (0.07, -2.6593, -0.0726),
    (0.12, -2.1203, -0.1278),
    (0.2, -1.6094, -0.2231),
    (0.32, -1.1394, -0.3857),
    (0.55, -0.5978, -0.7985),
    (0.95, -0.0513, -2.9957),
];
const RATES: usize = 13;
/// The rung of what is unknown.
pub(super) const UNKNOWN: usize = RATES;
const RUNGS: usize = RATES + 1;

/// What a cell, or several alike, have to say.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Word {
    /// Nothing: it has two halves. It goes with its neighbours.
    None,
    /// It was not tried yet: it goes with its neighbours, unless it is 4 MiB or more.
    Untried { cells: f32 },
    /// It appeared a while ago, and was not tried since.
    Appeared { cells: f32 },
    /// It was tried and showed nothing.
    Unknown { cells: f32 },
    /// Hits and exposure of one cell, and how many are alike.
    Seen { hits: f32, exposure: f32, cells: f32 },
}

/// A piece of address space with its evidence, and the price of a change just before it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub word: Word,
    pub price: f32,
}

impl Word {
    fn likelihoods(self, tuning: &Tuning) -> [f32; RUNGS] {
        let mut all = [0.0; RUNGS];
        match self {
            Self::None => {}
            Self::Untried { cells } => all[..RATES].fill(-tuning.untried_unknown * cells),
            Self::Appeared { cells } => all[..RATES].fill(-tuning.appeared_unknown * cells),
            Self::Unknown { cells } => all[..RATES].fill(-tuning.likelier_unknown * cells),
            Self::Seen { hits, exposure, cells } => {
                let misses = (exposure - hits).max(0.0);
                for (value, (_, ln_p, ln_q)) in all.iter_mut().zip(&LADDER) {
                    *value = (hits * ln_p + misses * ln_q) * cells;
                }
                let best = all.iter().take(RATES).copied().fold(f32::NEG_INFINITY, f32::max);
                all[UNKNOWN] = best
                    - (tuning.likelier_known + tuning.likelier_hit * hits.min(tuning.hits_at_most)) * cells;
            }
        }
        all
    }
}

/// The rung that is nearest to a rate.
pub(super) fn rung_of(rate: f32) -> usize {
    let between = LADDER.iter().zip(LADDER.iter().skip(1)).map(|(low, high)| low.0 * high.0);
    between.take_while(|product| rate * rate >= *product).count()
}

/// The rung of each piece's stretch: pieces with the same number that follow each other belong together.
pub(super) fn segment(pieces: &[Piece], tuning: &Tuning) -> Vec<u8> {
    let mut best = [0.0f32; RUNGS];
    let mut from: Vec<[u8; RUNGS]> = Vec::with_capacity(pieces.len());
    for (index, piece) in pieces.iter().enumerate() {
        let (top, top_value) = highest(&best);
        // Only differences count. Sums over gigabytes would lose prices to rounding.
        best.iter_mut().for_each(|value| *value -= top_value);
        let top_value = 0.0;
        let price = if index == 0 { 0.0 } else { piece.price };
        let likelihoods = piece.word.likelihoods(tuning);
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
    let mut rungs = alloc::vec![0u8; pieces.len()];
    for (at, back) in rungs.iter_mut().zip(&from).rev() {
        *at = rung as u8;
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

    fn line(cells: &[(f32, f32)]) -> Vec<u8> {
        let piece = |&(hits, exposure): &(f32, f32)| {
            let word = if exposure < 0.0 {
                Word::Unknown { cells: 1.0 }
            } else {
                Word::Seen { hits, exposure, cells: 1.0 }
            };
            Piece { word, price: 6.0 }
        };
        segment(&cells.iter().map(piece).collect::<Vec<_>>(), &super::super::tuning::AT_5_MS)
    }

    #[test]
    fn a_stretch_of_hits_stands_out() {
        let mut cells = [(0.0, 200.0); 30];
        cells[12..15].fill((2.0, 2.0));
        let rungs = line(&cells);
        assert!(rungs[..12].iter().chain(&rungs[15..]).all(|r| *r == 0), "{rungs:?}");
        assert!(rungs[12..15].iter().all(|r| usize::from(*r) == RATES - 1), "{rungs:?}");
    }

    #[test]
    fn one_chance_hit_does_not() {
        let mut cells = [(0.0, 200.0); 30];
        cells[12] = (1.0, 200.0);
        let rungs = line(&cells);
        assert!(rungs.windows(2).all(|p| p[0] == p[1]), "{rungs:?}");
    }

    #[test]
    fn unknown_is_a_stretch_of_its_own_but_not_for_one_cell() {
        let mut cells = [(0.0, 200.0); 60];
        cells[10..40].fill((0.0, -1.0));
        cells[50] = (0.0, -1.0);
        let rungs = line(&cells);
        assert!(rungs[10..40].iter().all(|r| usize::from(*r) == UNKNOWN), "{rungs:?}");
        assert_eq!((rungs[9], rungs[40], rungs[50]), (0, 0, 0));
    }

    #[test]
    fn prices_hold_after_gigabytes_of_evidence() {
        // 8 GiB at one rate, each cell as many observations; then as much again at a rate hardly higher, and what is unknown.
        let seen = |hits: f32| Word::Seen { hits, exposure: 320.0, cells: 40.0 };
        // Under Miri so many would take minutes.
        let count = if cfg!(miri) { 1000 } else { 30_000 };
        let mut words = alloc::vec![seen(16.0); count];
        words.extend([Word::Unknown { cells: 1.0 }; 30]);
        // One cell that shows a little more is not worth two changes.
        words.push(Word::Seen { hits: 1.0, exposure: 20.0, cells: 1.0 });
        words.extend([seen(16.0); 100]);
        words.push(Word::Seen { hits: 1.0, exposure: 12.0, cells: 1.0 });
        words.extend([seen(16.0); 100]);
        let pieces: Vec<Piece> = words.into_iter().map(|word| Piece { word, price: 3.0 }).collect();
        let rungs = segment(&pieces, &super::super::tuning::AT_5_MS);
        assert!(rungs[count..count + 30].iter().all(|r| usize::from(*r) == UNKNOWN), "unknown is not hot");
        assert!(rungs[count + 40..].iter().all(|r| *r == rungs[0]), "a change has its price");
    }

    #[test]
    fn ten_and_twenty_hertz_are_told_apart() {
        let mut cells = [(4.0, 80.0); 80];
        cells[40..].fill((8.0, 80.0));
        let rungs = line(&cells);
        assert!(rungs[0] < rungs[79] && rungs[..40].iter().all(|r| *r == rungs[0]), "{rungs:?}");
    }
}

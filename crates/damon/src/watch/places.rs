//! Where in a stretch checks showed what: whether it is of two rates, and from where on.
//!
//! What a check shows is taken to be so of its whole stretch ([`super`]), so its cells all know the same, and nothing that they
//! know could tell neighbours apart that were once drawn as one. So checks are kept apart by the eighth of the stretch they
//! were made in. When two rates, one on either side of an eighth's border, explain them much better than one does, each side's
//! cells are given what was seen there, and the next drawing finds the border. One that lies within an eighth is found to
//! the eighth first; what is left over then disagrees with the rest of its new stretch, and so on.
//!
//! How much better is judged by how much checks of one side differ among themselves: pages that are accessed at random, each
//! for itself, show nearly the same in every check, and pages that are accessed together all or nothing.

use super::evidence::hits_of;
use super::segment::rung_of;
use super::tuning::Tuning;
use crate::AddrRange;

const PLACES: usize = 8;

/// The checks in each eighth of a range.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Places {
    range: AddrRange,
    seen: [Seen; PLACES],
    /// It may be of two rates: more checks will tell.
    pub doubtful: bool,
    /// Counts rounds of checks.
    round: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Seen {
    checks: f32,
    hits: f32,
    exposure: f32,
    /// Sums of the checks' rates, and of their squares.
    rates: f32,
    squares: f32,
    /// In which of the last rounds they were made, a bit each: what was checked at one moment may be one observation.
    rounds: u32,
}

/// Where a stretch falls apart, with hits and exposure of either side.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Split {
    pub at: u64,
    pub left: (f32, f32),
    pub right: (f32, f32),
}

impl Seen {
    fn add(self, other: Self) -> Self {
        Self {
            checks: self.checks + other.checks,
            hits: self.hits + other.hits,
            exposure: self.exposure + other.exposure,
            rates: self.rates + other.rates,
            squares: self.squares + other.squares,
            rounds: self.rounds | other.rounds,
        }
    }

    fn times(self, by: f32) -> Self {
        Self {
            checks: self.checks * by,
            hits: self.hits * by,
            exposure: self.exposure * by,
            rates: self.rates * by,
            squares: self.squares * by,
            rounds: self.rounds,
        }
    }

    fn rate(self) -> f32 {
        if self.exposure > 0.0 { self.hits / self.exposure } else { 0.0 }
    }

    /// Sum of the squares of what checks differ from their mean rate.
    fn spread(self) -> f32 {
        if self.checks > 0.0 { (self.squares - self.rates * self.rates / self.checks).max(0.0) } else { 0.0 }
    }
}

impl Places {
    /// Those of a stretch that was drawn anew: kept if seven eighths of it are the same.
    pub fn carried_to(self, range: AddrRange) -> Self {
        let common = self.range.intersection(range).size();
        let same = common * 8 >= self.range.size() * 7 && common * 8 >= range.size() * 7;
        if same { self } else { Self { range, ..Self::default() } }
    }

    /// All that was seen is of another pattern.
    pub fn clear(&mut self) {
        (self.seen, self.doubtful) = (Default::default(), false);
    }

    /// The checks that follow are of another moment.
    pub fn begin_round(&mut self) {
        self.round = self.round.wrapping_add(1);
        self.seen.iter_mut().for_each(|seen| seen.rounds &= !(1 << (self.round % 32)));
    }

    /// A check at `addr` during which `share` of the pages were hit in `length` intervals.
    pub fn add(&mut self, addr: u64, share: f32, length: f32, tuning: &Tuning) {
        let size = (self.range.size() / PLACES as u64).max(1);
        let place = (addr.saturating_sub(self.range.start) / size).min(PLACES as u64 - 1);
        let length = length.max(share);
        let rate = if length > 0.0 { share / length } else { 0.0 };
        if let Some(seen) = self.seen.get_mut(place as usize) {
            let check = Seen {
                checks: 1.0,
                hits: hits_of(share, length),
                exposure: length,
                rates: rate,
                squares: rate * rate,
                rounds: 1 << (self.round % 32),
            };
            *seen = seen.add(check);
        }
        // Forgotten at one pace.
        if self.seen.iter().any(|s| s.checks > tuning.most_a_place) {
            self.seen.iter_mut().for_each(|s| *s = s.times(0.5));
        }
    }

    /// The likeliest split in two, if two rates are much likelier than one.
    pub fn split(&mut self, tuning: &Tuning) -> Option<Split> {
        let sum = |part: &[Seen]| part.iter().fold(Seen::default(), |a, b| a.add(*b));
        let whole = sum(&self.seen);
        let mean = whole.rates / whole.checks.max(1.0);
        let least = whole.checks * (mean * tuning.alike_sides) * (mean * tuning.alike_sides);
        let mut best: Option<(f32, Split)> = None;
        for place in 1..PLACES {
            let (left, right) = self.seen.split_at(place);
            let (left, right) = (sum(left), sum(right));
            let few = |side: Seen| {
                side.checks < tuning.checks_a_side || (side.rounds.count_ones() as f32) < tuning.rounds_a_side
            };
            if few(left) || few(right) {
                continue;
            }
            let within = left.spread() + right.spread() + least;
            let gain = whole.checks / 2.0 * ln((within / (whole.spread() + least)).min(1.0)).abs();
            let (a, b) = (left.hits * right.exposure, right.hits * left.exposure);
            // Of one rung, they would be drawn as one again.
            let apart = (a > b * tuning.apart_sides || b > a * tuning.apart_sides)
                && rung_of(left.rate()) != rung_of(right.rate());
            if apart && best.is_none_or(|(g, _)| gain > g) {
                let at = self.range.start + self.range.size() / PLACES as u64 * place as u64;
                let of = |s: Seen| (s.hits, s.exposure);
                best = Some((gain, Split { at, left: of(left), right: of(right) }));
            }
        }
        self.doubtful = best.is_some_and(|(gain, _)| gain > tuning.price_sides / 3.0);
        best.filter(|(gain, _)| *gain > tuning.price_sides).map(|(_, split)| split)
    }
}

/// Natural logarithm of what lies between 0 and 1: core has none.
fn ln(x: f32) -> f32 {
    let (mut x, mut halvings) = (x.clamp(1e-9, 1.0), 0.0);
    while x < 0.5 {
        (x, halvings) = (x * 2.0, halvings + 1.0);
    }
    // By its series in (1 - x) / (1 + x), at most a third.
    let y = (1.0 - x) / (1.0 + x);
    let z = y * y;
    -2.0 * y * (1.0 + z * (1.0 / 3.0 + z * (1.0 / 5.0 + z / 7.0))) - halvings * core::f32::consts::LN_2
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 1 << 30;
    const CELL: u64 = 256 << 10;
    use super::super::tuning::AT_5_MS as T;

    /// Places of `cells` cells of 256 KiB, each checked `times` times at the rate that `rate` says, in windows of 2 intervals.
    fn checked(cells: u64, times: usize, rate: impl Fn(u64) -> f32) -> Places {
        let mut places = Places::default().carried_to(AddrRange::new(START, START + cells * CELL));
        for _ in 0..times {
            places.begin_round();
            (0..cells).for_each(|i| places.add(START + i * CELL + CELL / 2, rate(i) * 2.0, 2.0, &T));
        }
        places
    }

    #[test]
    fn two_rates_are_told_apart_between_the_cells_they_differ_in_however_few_those_are() {
        for (cells, border) in [(2u64, 1u64), (4, 1), (4, 2), (5, 3), (8, 3), (64, 16), (64, 56)] {
            let mut places = checked(cells, 12, |i| if i < border { 0.25 } else { 0.05 });
            let split = places.split(&T).unwrap_or_else(|| panic!("{cells} cells, {border}"));
            for i in 0..cells {
                let middle = START + i * CELL + CELL / 2;
                assert_eq!(
                    middle < split.at,
                    i < border,
                    "cell {i} of {cells}, of which {border} are hotter: {split:?}"
                );
            }
            let rate = |(hits, exposure): (f32, f32)| hits / exposure;
            assert!(
                (0.2..0.35).contains(&rate(split.left)) && (0.04..0.07).contains(&rate(split.right)),
                "{split:?}"
            );
        }
    }

    #[test]
    fn one_rate_is_no_two() {
        assert_eq!(checked(64, 30, |_| 0.1).split(&T), None);
        assert_eq!(checked(64, 30, |_| 0.0).split(&T), None);
        assert_eq!(checked(64, 0, |_| 0.0).split(&T), None);
        // All or nothing, at random: 10 Hz everywhere.
        let mut rng = crate::Rng::new(3);
        let mut places = Places::default().carried_to(AddrRange::new(START, START + 64 * CELL));
        // Under Miri 20,000 do not end within ten minutes.
        let rounds = if cfg!(miri) { 100 } else { 20_000 };
        let mut splits = 0;
        for _ in 0..rounds {
            let hit = rng.below(10) == 0;
            places.begin_round();
            places.add(START + rng.below(64) * CELL, f32::from(u8::from(hit)), 2.0, &T);
            splits += u32::from(places.split(&T).is_some());
        }
        assert!(splits * 100 < rounds, "{splits} of {rounds}");
    }

    #[test]
    fn rates_of_one_rung_are_left_together() {
        let mut places = checked(64, 30, |i| if i < 32 { 0.0090 } else { 0.0160 });
        assert_eq!(places.split(&T), None);
    }

    #[test]
    fn what_is_drawn_a_little_different_keeps_its_checks() {
        let places = checked(64, 3, |i| if i < 32 { 0.25 } else { 0.05 });
        let of = |start: u64, end: u64| AddrRange::new(START + start * CELL, START + end * CELL);
        assert_eq!(places.carried_to(of(0, 64)), places);
        assert_eq!(places.carried_to(of(2, 66)), places);
        assert_ne!(places.carried_to(of(0, 50)), places);
        assert_ne!(places.carried_to(of(0, 80)), places);
    }

    #[test]
    fn logarithms_are_those_of_everybody() {
        for i in 1..1000 {
            let x = i as f32 / 1000.0;
            let (own, std) = (ln(x), f64::from(x).ln() as f32);
            assert!((own - std).abs() < 1e-4 * std.abs().max(1e-2), "ln({x}) is {std}, not {own}");
        }
    }
}

//! Where in a stretch checks showed what: whether it is of two rates, and from where on.
//!
//! What a check shows is taken to be so of its whole stretch ([`super`]), so its cells all know the same, and nothing that they
//! know could tell neighbours apart that were once drawn as one. So checks are kept apart by the eighth of the stretch they
//! were made in. When two rates, one on either side of an eighth's border, explain them much better than one does, each side's
//! cells are given what was seen there, and the next drawing finds the border. One that lies within an eighth is found to
//! the eighth first; what is left over then disagrees with the rest of its new stretch, and so on.
//!
//! What is judged is by how much the sides of a border differ at one moment. A loop that passes over all of a side at once is met
//! by all checks of it or by none: from moment to moment its share differs far more than the sides do at any. A loop whose front
//! stands now here, now there sets its neighbours apart at each moment, all at once, and the other way round at another. So
//! each moment at which two checks or more of either side were made is one observation, of the mean of one side less that of the
//! other; where there are fewer, those of the next moments are added. Where a stretch falls apart, and that it does, is told by its
//! checks, each for itself; that it is no passing front, by those observations: they must lie much closer to their mean than to zero.

use super::evidence::hits_of;
use super::segment::rung_of;
use super::tuning::Tuning;
use crate::AddrRange;
use alloc::vec::Vec;

const PLACES: usize = 8;
/// Shares that differ by less are the same: two pages of 64.
const ALIKE: f32 = 0.03;

/// The checks in each eighth of a range, and what they say of the borders between those.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Places {
    range: AddrRange,
    seen: [Seen; PLACES],
    borders: [Border; PLACES - 1],
    /// It may be of two rates: more checks will tell.
    pub doubtful: bool,
}

/// A check, as far as it tells where accesses are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Checked {
    /// Middle of what was checked.
    pub at: u64,
    /// Share of its pages that were hit.
    pub share: f32,
    /// In intervals.
    pub length: f32,
    /// It tells a rate: where it was hit, that was not to be expected long before.
    pub in_time: bool,
}

/// What tells a rate, the older the less.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Seen {
    hits: f32,
    exposure: f32,
}

/// By how much the sides of a border differ.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Border {
    /// All checks of either side, and those since the last observation.
    all: (Side, Side),
    left: Side,
    right: Side,
    /// Observations, sums of them and of their squares, and of how much chance there is in each.
    count: f32,
    sum: f32,
    squares: f32,
    chance: f32,
}

/// Checks of one side: how many, the sums of what they showed beyond what was expected, of its squares, and of shares.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Side {
    checks: f32,
    beyond: f32,
    squares: f32,
    shares: f32,
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
        Self { hits: self.hits + other.hits, exposure: self.exposure + other.exposure }
    }

    fn rate(self) -> f32 {
        if self.exposure > 0.0 { self.hits / self.exposure } else { 0.0 }
    }
}

impl Side {
    fn add(&mut self, beyond: f32, share: f32, weight: f32) {
        self.checks += weight;
        self.beyond += beyond * weight;
        self.squares += beyond * beyond * weight;
        self.shares += share * weight;
    }

    fn fade(&mut self) {
        for sum in [&mut self.checks, &mut self.beyond, &mut self.squares, &mut self.shares] {
            *sum /= 2.0;
        }
    }

    fn mean(self) -> f32 {
        self.beyond / self.checks.max(1.0)
    }

    /// Sum of the squares of what checks differ from their mean.
    fn spread(self) -> f32 {
        (self.squares - self.beyond * self.mean()).max(0.0)
    }
}

impl Border {
    /// Takes in a check; one of n that were compared with their mean counts as (n - 1) / n, as that mean is of them.
    fn add(&mut self, is_left: bool, beyond: f32, share: f32, weight: f32) {
        let (all, recent) =
            if is_left { (&mut self.all.0, &mut self.left) } else { (&mut self.all.1, &mut self.right) };
        all.add(beyond, share, weight);
        // How much the sides differ at one moment is of all checks of it.
        recent.add(beyond, share, 1.0);
    }

    /// Makes an observation of what was checked since the last one, if that is enough.
    fn observe(&mut self, tuning: &Tuning) {
        let (left, right) = (self.left, self.right);
        if left.checks.min(right.checks) < tuning.checks_a_side {
            return;
        }
        let checks = left.checks + right.checks;
        let difference = left.mean() - right.mean();
        let within = (left.spread() + right.spread()) / (checks - 2.0).max(1.0);
        let alike = tuning.alike_sides * (left.shares + right.shares) / checks;
        self.count += 1.0;
        self.sum += difference;
        self.squares += difference * difference;
        self.chance += within * (1.0 / left.checks + 1.0 / right.checks) + alike * alike;
        (self.left, self.right) = (Side::default(), Side::default());
        if self.count > tuning.most_moments {
            for sum in [&mut self.count, &mut self.sum, &mut self.squares, &mut self.chance] {
                *sum /= 2.0;
            }
        }
    }

    /// Nats by which two rates explain the checks better than one, if each is an observation of its own.
    fn gain(&self, tuning: &Tuning) -> f32 {
        let (left, right) = self.all;
        let checks = left.checks + right.checks;
        if left.checks.min(right.checks) < tuning.checks_a_side {
            return 0.0;
        }
        let alike = tuning.alike_sides * (left.shares + right.shares) / checks;
        let least = checks * alike * alike;
        let mean = (left.beyond + right.beyond) / checks;
        let whole = (left.squares + right.squares - mean * mean * checks).max(0.0);
        -ln(((left.spread() + right.spread() + least) / (whole + least).max(1e-9)).min(1.0)) * checks / 2.0
    }

    /// Nats by which they explain the moments better.
    fn gain_of_moments(&self, tuning: &Tuning) -> f32 {
        if self.count < tuning.moments {
            return 0.0;
        }
        let around = (self.squares - self.sum * self.sum / self.count).max(0.0) + self.chance;
        -ln((around / (self.squares + self.chance).max(1e-9)).min(1.0)) * (self.count - 1.0) / 2.0
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
        *self = Self { range: self.range, ..Self::default() };
    }

    /// Takes in the checks of one moment; `expected` is the access probability an interval that was believed.
    pub fn add(&mut self, checks: &[Checked], expected: f32, tuning: &Tuning) {
        // What is old is of when the rate was believed to be another one, and windows had lengths that tell it less well.
        if self.seen.iter().map(|s| s.hits).sum::<f32>() > tuning.sides_hits {
            for seen in &mut self.seen {
                seen.hits *= tuning.side_fades;
                seen.exposure *= tuning.side_fades;
            }
        }
        let size = (self.range.size() / PLACES as u64).max(1);
        let place_of =
            |c: &Checked| (c.at.saturating_sub(self.range.start) / size).min(PLACES as u64 - 1) as usize;
        for check in checks.iter().filter(|c| c.in_time) {
            if let Some(seen) = self.seen.get_mut(place_of(check)) {
                let exposure = check.length.max(check.share);
                *seen = seen.add(Seen { hits: hits_of(check.share, check.length), exposure });
            }
        }
        // What windows of other lengths showed is not to be compared.
        let mut classes: Vec<u32> = checks.iter().map(|c| class(c.length)).collect();
        classes.sort_unstable();
        classes.dedup();
        for of in classes {
            let alike = || checks.iter().filter(|c| class(c.length) == of);
            let (count, sum) = alike().fold((0.0, 0.0), |(n, sum), c| (n + 1.0, sum + c.share));
            // One that was made alone is compared with what was expected, a straggler with nothing.
            let (mean, weight) = match checks {
                [only] => ((expected * only.length).min(1.0), 1.0),
                _ => (sum / count, (count - 1.0) / count),
            };
            // Where all were hit, or none, one rate and two say the same.
            if checks.len() > 1 && alike().all(|c| (c.share - mean).abs() <= ALIKE) {
                continue;
            }
            for check in alike() {
                let place = place_of(check);
                for (i, border) in self.borders.iter_mut().enumerate() {
                    border.add(place <= i, check.share - mean, check.share, weight);
                }
            }
        }
        for border in &mut self.borders {
            border.observe(tuning);
            if border.all.0.checks + border.all.1.checks > tuning.most_checks {
                border.all.0.fade();
                border.all.1.fade();
            }
        }
    }

    /// The likeliest split in two, if two rates are much likelier than one.
    pub fn split(&mut self, tuning: &Tuning) -> Option<Split> {
        let sum = |part: &[Seen]| part.iter().fold(Seen::default(), |a, b| a.add(*b));
        let mut best: Option<(f32, Split)> = None;
        let (mut best_is_firm, mut may_be) = (false, false);
        for (i, border) in self.borders.iter().enumerate() {
            let gain = border.gain(tuning);
            let of_moments = border.gain_of_moments(tuning);
            let firm = of_moments >= tuning.price_moments;
            let (left, right) = self.seen.split_at(i + 1);
            let (left, right) = (sum(left), sum(right));
            let (a, b) = (left.hits * right.exposure, right.hits * left.exposure);
            // Of one rung, they would be drawn as one again.
            let apart = (a > b * tuning.apart_sides || b > a * tuning.apart_sides)
                && (a > b) == (border.sum > 0.0)
                && rung_of(left.rate()) != rung_of(right.rate());
            if apart && best.is_none_or(|(g, _)| gain > g) {
                let at = self.range.start + self.range.size() / PLACES as u64 * (i as u64 + 1);
                let of = |s: Seen| (s.hits, s.exposure);
                best = Some((gain, Split { at, left: of(left), right: of(right) }));
                best_is_firm = firm;
                may_be = border.count < tuning.moments || of_moments > tuning.price_moments / 3.0;
            }
        }
        self.doubtful = may_be && best.is_some_and(|(gain, _)| gain > tuning.price_sides / 3.0);
        best.filter(|(gain, _)| best_is_firm && *gain > tuning.price_sides).map(|(_, split)| split)
    }
}

/// Windows of one class are of about one length: planned ones are powers of two.
fn class(length: f32) -> u32 {
    // The exponent of a float: within a factor of the square root of two of a power.
    (length * core::f32::consts::SQRT_2).to_bits() >> 23
}

/// Natural logarithm of what lies between 0 and 1: core has none.
pub(super) fn ln(x: f32) -> f32 {
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
            let check = |i: u64| Checked {
                at: START + i * CELL + CELL / 2,
                share: rate(i) * 2.0,
                length: 2.0,
                in_time: true,
            };
            places.add(&(0..cells).map(check).collect::<Vec<_>>(), 0.1, &T);
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
            let share = f32::from(u8::from(hit));
            places.add(
                &[Checked { at: START + rng.below(64) * CELL, share, length: 2.0, in_time: true }],
                0.05,
                &T,
            );
            splits += u32::from(places.split(&T).is_some());
        }
        assert!(splits * 100 < rounds, "{splits} of {rounds}");
    }

    /// Moments of 16 checks each until there is a split, of at most 200; `hit`: whether the cell of 64 is, at the moment.
    fn moments_until_split(
        seed: u64,
        mut hit: impl FnMut(u64, u64, &mut crate::Rng) -> bool,
    ) -> Option<(u64, Split)> {
        let mut rng = crate::Rng::new(seed);
        let mut places = Places::default().carried_to(AddrRange::new(START, START + 64 * CELL));
        for moment in 0..200 {
            let cells: Vec<u64> = (0..16).map(|_| rng.below(64)).collect();
            let check =
                |cell: u64, share| Checked { at: START + cell * CELL, share, length: 1.0, in_time: true };
            let checks: Vec<_> =
                cells.iter().map(|c| check(*c, f32::from(u8::from(hit(moment, *c, &mut rng))))).collect();
            places.add(&checks, 0.4, &T);
            if let Some(split) = places.split(&T) {
                return Some((moment, split));
            }
        }
        None
    }

    #[test]
    fn two_loops_that_are_met_whole_or_not_at_all_are_told_apart_within_a_second() {
        // At 200 Hz the one, at 50 Hz the other: of 5 ms each shows in all, or in one of four.
        let mut now = (u64::MAX, false);
        let found = moments_until_split(5, |moment, cell, rng| {
            if now.0 != moment {
                now = (moment, rng.below(4) == 0);
            }
            cell < 24 || now.1
        });
        let (moments, split) = found.unwrap();
        assert!(moments <= 10 && split.at == START + 24 * CELL, "after {moments}: {split:?}");
    }

    #[test]
    fn where_a_loops_front_stands_is_no_border() {
        // Loops over all of it, of which each moment meets another part. A split now and then is chance.
        for width in [4, 8, 16, 32] {
            let splits = (0..20).filter(|seed| {
                let mut now = (u64::MAX, 0);
                let found = moments_until_split(*seed, |moment, cell, rng| {
                    if now.0 != moment {
                        now = (moment, rng.below(64));
                    }
                    (cell + 64 - now.1) % 64 < width
                });
                found.is_some_and(|(moments, _)| moments < 50)
            });
            let splits = splits.count();
            assert!(splits <= 5, "{splits} of 20 within 50 moments, {width} of 64");
        }
    }

    #[test]
    fn rates_of_one_rung_are_left_together() {
        let rung = |low: f32, high: f32| {
            let mut places = Places::default().carried_to(AddrRange::new(START, START + 64 * CELL));
            let share = |i: u64| if i < 32 { low * 16.0 } else { high * 16.0 };
            let check =
                |i: u64| Checked { at: START + i * CELL, share: share(i), length: 16.0, in_time: true };
            (0..30).for_each(|_| places.add(&(0..64).map(check).collect::<Vec<_>>(), 0.0125, &T));
            places.split(&T)
        };
        assert_eq!(rung(0.0090, 0.0150), None);
        assert!(rung(0.0090, 0.0300).is_some());
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

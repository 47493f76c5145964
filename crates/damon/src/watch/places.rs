//! Where in a stretch checks showed what: whether it is of two rates, and from where on.
//!
//! What a check shows is taken to be so of its whole stretch ([`super`]), so its cells all know the same, and nothing that they
//! know could tell neighbours apart that were once drawn as one. So checks are kept apart by the eighth of the stretch they
//! were made in. When two rates, one on either side of an eighth's border, explain them much better than one does, each side's
//! cells are given what was seen there, and the next drawing finds the border. One that lies within an eighth is found to
//! the eighth first; what is left over then disagrees with the rest of its new stretch, and so on.
//!
//! How much better is judged by when checks were first accessed: whether they were within the first window is a yes or no, the
//! time until then tells two to four times as much, also of a check that was looked at for the last time long after that
//! window. Rates that differ by a factor shift the logarithm of that time and leave its spread as it is; and how much checks of one
//! side differ among themselves says what a shift means: pages that are accessed at random, each for itself, show nearly the same
//! in every check, and pages that are accessed together all or nothing.

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
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Seen {
    checks: f32,
    hits: f32,
    exposure: f32,
    /// Checks that were accessed, and sums of the logarithms of the time until then, and of their squares.
    shown: f32,
    logs: f32,
    squares: f32,
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
            shown: self.shown + other.shown,
            logs: self.logs + other.logs,
            squares: self.squares + other.squares,
        }
    }

    fn times(self, by: f32) -> Self {
        Self {
            checks: self.checks * by,
            hits: self.hits * by,
            exposure: self.exposure * by,
            shown: self.shown * by,
            logs: self.logs * by,
            squares: self.squares * by,
        }
    }

    /// Sum of the squares of what the logarithms differ from their mean.
    fn spread(self) -> f32 {
        if self.shown > 0.0 { (self.squares - self.logs * self.logs / self.shown).max(0.0) } else { 0.0 }
    }

    /// Mean logarithm of the time until they were accessed.
    fn log(self) -> f32 {
        if self.shown > 0.0 { self.logs / self.shown } else { 0.0 }
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

    /// A check at `addr` during which `share` of the pages were hit in `length` intervals.
    pub fn add(&mut self, addr: u64, share: f32, length: f32, tuning: &Tuning) {
        let length = length.max(share);
        let check = Seen { checks: 1.0, hits: hits_of(share, length), exposure: length, ..Seen::default() };
        self.put(addr, check);
        // Forgotten at one pace.
        if self.seen.iter().any(|s| s.checks > tuning.most_a_place) {
            self.seen.iter_mut().for_each(|s| *s = s.times(0.5));
        }
    }

    /// `share` of the pages of a check at `addr` were accessed more than `before` and at most `within` intervals after it was made.
    pub fn shown(&mut self, addr: u64, share: f32, before: f32, within: f32) {
        // Of pages accessed together it is the time to the first access, which is at any moment of the time between two.
        let time = if share < 0.97 { within / share } else { before.midpoint(within) * 2.0 };
        let log = log_of(time.max(0.05));
        self.put(addr, Seen { shown: 1.0, logs: log, squares: log * log, ..Seen::default() });
    }

    fn put(&mut self, addr: u64, check: Seen) {
        let size = (self.range.size() / PLACES as u64).max(1);
        let place = (addr.saturating_sub(self.range.start) / size).min(PLACES as u64 - 1);
        if let Some(seen) = self.seen.get_mut(place as usize) {
            *seen = seen.add(check);
        }
    }

    /// The likeliest split in two, if two rates are much likelier than one.
    pub fn split(&mut self, tuning: &Tuning) -> Option<Split> {
        let sum = |part: &[Seen]| part.iter().fold(Seen::default(), |a, b| a.add(*b));
        let whole = sum(&self.seen);
        let least = whole.shown * tuning.alike_sides * tuning.alike_sides;
        let mut best: Option<(f32, Split)> = None;
        for place in 1..PLACES {
            let (left, right) = self.seen.split_at(place);
            let (left, right) = (sum(left), sum(right));
            if left.shown < tuning.checks_a_side || right.shown < tuning.checks_a_side {
                continue;
            }
            let within = left.spread() + right.spread() + least;
            let gain = whole.shown / 2.0 * ln((within / (whole.spread() + least)).min(1.0)).abs();
            // So many times as seldom the left side is accessed as the right.
            let times = exp(left.log() - right.log());
            let all = whole.hits / (left.exposure + right.exposure * times).max(f32::MIN_POSITIVE);
            let (a, b) = (all, all * times);
            // Of one rung, they would be drawn as one again.
            let apart =
                (times > tuning.apart_sides || times * tuning.apart_sides < 1.0) && rung_of(a) != rung_of(b);
            if apart && best.is_none_or(|(g, _)| gain > g) {
                let at = self.range.start + self.range.size() / PLACES as u64 * place as u64;
                let of = |s: Seen, rate: f32| (s.exposure * rate, s.exposure);
                best = Some((gain, Split { at, left: of(left, a), right: of(right, b) }));
            }
        }
        self.doubtful = best.is_some_and(|(gain, _)| gain > tuning.price_sides / 3.0);
        best.filter(|(gain, _)| *gain > tuning.price_sides).map(|(_, split)| split)
    }
}

/// Natural logarithm of any positive number.
fn log_of(x: f32) -> f32 {
    if x > 1.0 { -ln(1.0 / x) } else { ln(x) }
}

/// The inverse of [`log_of`].
fn exp(x: f32) -> f32 {
    // (1 + y + y²/2 + y³/6)^64 of the 64th part.
    let y = x.clamp(-20.0, 20.0) / 64.0;
    let mut power = 1.0 + y * (1.0 + y / 2.0 * (1.0 + y / 3.0));
    for _ in 0..6 {
        power *= power;
    }
    power
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
    const T: Tuning = Tuning::DEFAULT;

    /// Places of `cells` cells of 256 KiB, each checked `times` times at the rate that `rate` says, in windows of 2 intervals.
    fn checked(cells: u64, times: usize, rate: impl Fn(u64) -> f32) -> Places {
        let mut places = Places::default().carried_to(AddrRange::new(START, START + cells * CELL));
        for _ in 0..times {
            for i in (0..cells).filter(|_| times > 0) {
                let (addr, share) = (START + i * CELL + CELL / 2, rate(i) * 2.0);
                places.add(addr, share, 2.0, &T);
                if share > 0.0 {
                    places.shown(addr, share, 0.0, 2.0);
                }
            }
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

    /// What only the time of the first access tells: no check of either side was accessed within its first window.
    #[test]
    fn what_is_accessed_later_is_told_apart_too() {
        let mut places = checked(64, 0, |_| 0.0);
        for i in (0..64).flat_map(|i| [i; 2]) {
            let addr = START + i * CELL;
            places.add(addr, if i == 5 || i == 50 { 1.0 } else { 0.0 }, 2.0, &T);
            places.shown(addr, 1.0, 2.0, if i < 32 { 6.0 } else { 20.0 });
        }
        let split = places.split(&T).unwrap();
        assert_eq!(split.at, START + 32 * CELL);
        let rate = |(hits, exposure): (f32, f32)| hits / exposure;
        assert!((rate(split.left) / rate(split.right) - 22.0 / 8.0).abs() < 0.01, "{split:?}");
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
            // The next access is at any moment of the 20 intervals between two.
            let (addr, next) = (START + rng.below(64) * CELL, rng.below(20) as f32);
            places.add(addr, f32::from(u8::from(next < 2.0)), 2.0, &T);
            let (before, within) = if next < 2.0 { (0.0, 2.0) } else { (2.0, 20.0) };
            places.shown(addr, 1.0, before, within);
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
            assert!((log_of(1.0 / x) + std).abs() < 1e-4 * std.abs().max(1e-2), "ln(1 / {x})");
            assert!((exp(std) / x - 1.0).abs() < 1e-3, "e^{std} is {x}, not {}", exp(std));
        }
    }
}

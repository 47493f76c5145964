//! What looks at a page have shown, and how likely that is at a given access rate.
//!
//! A look in the interval after the last one says whether the page was accessed in one interval: a trial. A page found
//! idle after `n` intervals was tried `n` times without a hit. A page found accessed after `n` intervals was accessed
//! in *at least one* of them, which at rate `p` has probability 1 - (1 - p)^n: strong evidence against cold memory,
//! and none at all about how hot it is. Counting such a *late* hit as one hit in `n` trials would make hot memory that
//! is seldom looked at seem lukewarm, so late hits are kept apart.

/// The ladder of rates: probability `p` of an access in a sampling interval, with ln(p) and ln(1 - p). (core has no
/// logarithm.)
const LADDER: [(f32, f32, f32); RUNGS] = [
    (0.001, -6.9078, -0.0010),
    (0.012, -4.4228, -0.0121),
    (0.05, -2.9957, -0.0513),
    (0.12, -2.1203, -0.1278),
    (0.25, -1.3863, -0.2877),
    (0.48, -0.7340, -0.6539),
    (0.8, -0.2231, -1.6094),
    (0.95, -0.0513, -2.9957),
];
pub(super) const RUNGS: usize = 8;

/// ln(1 - (1 - p)^n) for each rung and n = 2, 4, 8, 16, 32.
const LATE: [[f32; RUNGS]; 5] = [
    [-6.2151, -3.7357, -2.3279, -1.4890, -0.8267, -0.3153, -0.0408, -0.0025],
    [-5.5230, -3.0546, -1.6847, -0.9155, -0.3804, -0.0759, -0.0016, 0.0],
    [-4.8318, -2.3853, -1.0889, -0.4457, -0.1055, -0.0054, 0.0, 0.0],
    [-4.1427, -1.7393, -0.5800, -0.1385, -0.0101, 0.0, 0.0, 0.0],
    [-3.4575, -1.1380, -0.2153, -0.0169, -0.0001, 0.0, 0.0, 0.0],
];

/// Nats by which two rates must explain what was seen better than one does, for the two to count as different.
/// Forgetting too early costs precision for a moment, too late shows what is not so any more.
const CONTRADICTION: f32 = 2.5;

/// Nats by which a higher rate must be likelier than a lower one to be believed.
const SURELY: f32 = 0.2;

/// A rung of the ladder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rung(pub(super) usize);

impl Rung {
    /// Nats that a trial at this rate yields on average to tell it from `other` (Kullback-Leibler divergence).
    pub fn information(self, other: Self) -> f32 {
        Count::new(self.rate(), 1.0).against(self, other)
    }

    /// Access probability an interval.
    pub fn rate(self) -> f32 {
        LADDER[self.0].0
    }
}

/// Looks at a page, or at several.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Count {
    /// Intervals known to have had an access.
    pub hits: f32,
    /// Intervals of which it is known whether they had.
    pub tried: f32,
    /// Accesses found late, somewhere in several intervals.
    pub late: f32,
    /// Intervals in which they lay.
    pub span: f32,
}

impl Count {
    /// `hits` in `tried` trials.
    pub const fn new(hits: f32, tried: f32) -> Self {
        Self { hits, tried, late: 0.0, span: 0.0 }
    }

    /// An access in at least one of `intervals`.
    pub fn accessed_within(intervals: f32) -> Self {
        if intervals <= 1.0 {
            Self::new(1.0, 1.0)
        } else {
            Self { late: 1.0, span: intervals, ..Self::default() }
        }
    }

    /// How much was seen: trials, with a late hit for one.
    pub fn weight(self) -> f32 {
        self.tried + self.late
    }

    /// Whether nothing was seen.
    pub fn is_empty(self) -> bool {
        self.weight() <= 0.0
    }

    pub fn plus(self, other: Self) -> Self {
        Self {
            hits: self.hits + other.hits,
            tried: self.tried + other.tried,
            late: self.late + other.late,
            span: self.span + other.span,
        }
    }

    pub fn times(self, factor: f32) -> Self {
        Self {
            hits: self.hits * factor,
            tried: self.tried * factor,
            late: self.late * factor,
            span: self.span * factor,
        }
    }

    /// The same, as if seen only so often that the weight is at most `most`.
    pub fn at_most(self, most: f32) -> Self {
        if self.weight() > most { self.times(most / self.weight()) } else { self }
    }

    /// Intervals that were watched.
    pub fn intervals(self) -> f32 {
        self.tried + self.span
    }

    /// Log-likelihood at each rung.
    pub fn likelihoods(self) -> [f32; RUNGS] {
        let misses = (self.tried - self.hits).max(0.0);
        let mut all = LADDER.map(|(_, ln_p, ln_q)| self.hits * ln_p + misses * ln_q);
        if self.late > 0.0 {
            let intervals = self.span / self.late;
            let row = [3.0, 6.0, 12.0, 24.0].iter().filter(|limit| intervals >= **limit).count();
            for (value, late) in all.iter_mut().zip(&LATE[row]) {
                *value += self.late * late;
            }
        }
        all
    }

    /// How much likelier (nats) this is at one rate than at the other.
    pub fn against(self, one: Rung, other: Rung) -> f32 {
        let all = self.likelihoods();
        all[one.0] - all[other.0]
    }

    /// The most likely rate where hits are not late; where they are, the lowest that explains them well.
    pub fn rate(self) -> f32 {
        if self.late <= 0.0 {
            return if self.tried > 0.0 { (self.hits / self.tried).clamp(0.0, 1.0) } else { 0.0 };
        }
        let all = self.likelihoods();
        let enough = highest(&all).1 - SURELY;
        let start = all.iter().position(|value| *value >= enough).unwrap_or(0);
        // Between the rungs: how many of the intervals had an access, if the rate is this, and so again (EM).
        let intervals = self.span / self.late;
        let mut rate = LADDER[start].0;
        for _ in 0..4 {
            // At random, there may have been more than the one; at even distances there was not, unless so many fit
            // into the interval. Halfway between the two.
            let even = (intervals * rate).max(1.0);
            let random = intervals * rate / (1.0 - power(1.0 - rate, intervals as u32)).max(1e-6);
            let accesses = self.hits + self.late * even.midpoint(random);
            rate = (accesses / (self.tried + self.span)).clamp(1e-6, 1.0);
        }
        rate
    }

    /// Whether the two can hardly come from one rate.
    pub fn contradicts(self, other: Self) -> bool {
        let (a, b) = (self.likelihoods(), other.likelihoods());
        let mut both = a;
        for (sum, value) in both.iter_mut().zip(&b) {
            *sum += value;
        }
        highest(&a).1 + highest(&b).1 - highest(&both).1 > CONTRADICTION
    }
}

/// The highest of the values, and which it is.
pub(super) fn highest(values: &[f32; RUNGS]) -> (usize, f32) {
    let mut top = 0;
    for (index, value) in values.iter().enumerate() {
        if *value > values[top] {
            top = index;
        }
    }
    (top, values[top])
}

fn power(mut base: f32, mut exponent: u32) -> f32 {
    let mut result = 1.0;
    while exponent > 0 {
        if exponent & 1 == 1 {
            result *= base;
        }
        base *= base;
        exponent >>= 1;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_hits_speak_against_cold_but_not_for_how_hot() {
        let late = Count { late: 3.0, span: 60.0, ..Count::default() };
        assert!(late.against(Rung(7), Rung(0)) > 10.0);
        assert!(late.against(Rung(7), Rung(4)).abs() < 0.1);
        // With trials beside them these decide.
        assert!(late.plus(Count::new(4.0, 4.0)).rate() > 0.9);
        assert!(late.plus(Count::new(0.0, 60.0)).rate() < 0.1);
    }

    #[test]
    fn rare_accesses_found_late_are_counted_right() {
        // At 0.02 an interval, a look every 20 intervals finds an access in a third of the cases.
        let seen = Count { late: 33.2, span: 33.2 * 20.0, ..Count::new(0.0, 66.8 * 20.0) };
        assert!((seen.rate() - 0.02).abs() < 0.003, "{}", seen.rate());
    }

    #[test]
    fn contradictions() {
        assert!(Count::new(1.0, 1.0).contradicts(Count::new(0.0, 40.0)));
        assert!(Count::accessed_within(20.0).contradicts(Count::new(0.0, 400.0)));
        assert!(Count::new(0.0, 2.0).contradicts(Count::new(20.0, 20.0)));
        assert!(!Count::new(1.0, 20.0).contradicts(Count::new(0.0, 40.0)));
        assert!(!Count::new(3.0, 10.0).contradicts(Count::new(10.0, 40.0)));
    }
}

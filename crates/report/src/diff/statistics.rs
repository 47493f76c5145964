//! Whether a difference of means is more than noise.
//!
//! The figure of a recording is the mean over the middle half of its blocks of time (of few, over all); that of a side the mean over the middle
//! half of its recordings (of all, where there are fewer than four). This one figure is shown, tested and put into words.
//!
//! There are two kinds of noise. Within a recording a figure moves, and what it was a moment ago it still nearly is. So the
//! recording is cut into blocks, and the scatter of these says how well the mean is known. That is widened for
//! correlation between one block and the next, and never taken to be less than blocks of twice the length show. Only what
//! goes beyond what recordings of a steady program show counts: the rest is in the experience below. The fewer
//! the blocks, the less well the scatter itself is known: it has few degrees of freedom (after Welch and Satterthwaite).
//!
//! And two recordings of one program differ by more than that: regions lie elsewhere, the budget was spent elsewhere, the
//! machine did something else. That shows only between recordings. Where there is one on each side it has to be taken from
//! experience ([`Prior`]), plus what a late monitor adds, for each recording by itself. Experience may be wrong for a program
//! nobody has seen. Where there are several recordings their own scatter takes its place, as far as they are many: a moderated
//! t-test (G. K. Smyth, "Linear models and empirical Bayes methods for assessing differential expression", 2004). Where they
//! scatter more than experience says it counts for less, in proportion.
//!
//! A program whose memory is in motion (see the module `motion`) differs from itself by more: in proportion to how much it differs
//! from itself a moment later. That comes to the experience, for each recording by what was seen in it.
//!
//! What a monitor could not see is no noise, and yet nobody knows what it would have added: any share of it may have been
//! in use, in each recording another. So each share is taken to be as likely as any other, which has a variance of a twelfth of
//! the square. Blocks do not show it and more recordings do not make it less, as what hides from one hides from the next.
//!
//! Many figures are compared at once, so p-values are corrected as S. Holm has it ("A simple sequentially rejective multiple
//! test procedure", 1979). A test that finds nothing says little by itself: [`Test::detectable`] says what it could have found.

/// What is known about the scatter of runs before any is compared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prior {
    /// Standard deviation between recordings of one program, as a share of the figure.
    pub relative: f64,
    /// The same in the figure's unit, for small figures.
    pub absolute: f64,
    /// How many degrees of freedom that knowledge is worth.
    pub freedom: f64,
}

/// How many degrees of freedom it is worth to know how much memory moved: less than other experience, since what it says of other runs
/// is taken from few programs. A guess.
const MOTION_FREEDOM: f64 = 10.0;

/// With so many degrees of freedom between the recordings of each side, these alone show how much they scatter.
const OWN_FREEDOM: f64 = 4.0;

/// With so many blocks the outer ones are left out.
const MANY_BLOCKS: usize = 6;

/// So much of the prior's variance is what moves within a recording.
const INCLUDED: f64 = 0.5;

/// A figure in one recording.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Run {
    /// Its mean in each block of time.
    pub blocks: Vec<f64>,
    /// Standard deviation that a late monitor and a late program add to the prior's, as a share of the figure.
    pub late: f64,
    /// What may belong to it or not, in the figure's unit: bytes of which nothing was known.
    pub unknown: f64,
    /// Standard deviation that memory in motion adds to the prior's, in the figure's unit.
    pub motion: f64,
}

/// What a test found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Test {
    /// Probability that recordings of one program differ by as much as these, either way.
    pub p: f64,
    /// Standard error of the difference.
    pub error: f64,
    /// How well that is known.
    pub freedom: f64,
    /// What of the variance comes from what is unknown, as a share.
    pub by_unknown: f64,
}

/// Values in order without the lowest and highest quarter.
fn middle(list: &[f64]) -> Vec<f64> {
    without(list, list.len() / 4)
}

/// Values in order without the `cut` lowest and highest.
fn without(list: &[f64], cut: usize) -> Vec<f64> {
    let mut sorted = list.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[cut..sorted.len() - cut].to_vec()
}

/// 0 without any.
fn mean(list: &[f64]) -> f64 {
    if list.is_empty() { 0.0 } else { list.iter().sum::<f64>() / list.len() as f64 }
}

/// Mean of the middle half; of three and fewer the plain mean. 0 without any.
fn middle_mean(list: &[f64]) -> f64 {
    mean(&middle(list))
}

/// The figure of a side: the one that is shown, tested and put into words. Of four and more recordings those in the middle
/// count, as with blocks: one may have been made on a busy machine.
pub fn centre(runs: &[Run]) -> f64 {
    middle_mean(&runs.iter().map(Run::mean).collect::<Vec<f64>>())
}

impl Run {
    /// Mean over the middle half of the blocks: a second in which the machine was busy with something else does not move
    /// it. 0 without any.
    pub fn mean(&self) -> f64 {
        mean(&self.middle())
    }

    /// The blocks that count. Where they are few all do: of the two or three in the middle nobody could tell how much they
    /// scatter.
    fn middle(&self) -> Vec<f64> {
        let nr = self.blocks.len();
        without(&self.blocks, if nr < MANY_BLOCKS { 0 } else { nr / 4 })
    }

    /// Variance of that, as the blocks tell, and its degrees of freedom: of a trimmed mean, after K. K. Yuen ("The
    /// two-sample trimmed t for unequal population variances", 1974), widened for correlation.
    fn variance(&self) -> (f64, f64) {
        let (n, middle) = (self.blocks.len() as f64, self.middle());
        let (Some(low), Some(high), kept) = (middle.first(), middle.last(), middle.len() as f64) else {
            return (0.0, 1.0);
        };
        if kept < 2.0 {
            return (0.0, 1.0);
        }
        let winsorised: Vec<f64> = self.blocks.iter().map(|b| b.clamp(*low, *high)).collect();
        let mean = self.blocks.iter().sum::<f64>() / n;
        let off: Vec<f64> = self.blocks.iter().map(|b| b - mean).collect();
        let square: f64 = off.iter().map(|x| x * x).sum();
        let lagged: f64 = off.windows(2).map(|w| w[0] * w[1]).sum();
        let correlation = if square > 0.0 { (lagged / square).clamp(0.0, 0.6) } else { 0.0 };
        let mut variance = of_mean(&winsorised) * (1.0 + correlation) / (1.0 - correlation);
        // Longer blocks, while there are three: where neighbours are alike they show more than short ones.
        let mut longer = winsorised;
        while longer.len() >= 6 {
            longer = longer.chunks_exact(2).map(|pair| pair[0].midpoint(pair[1])).collect();
            variance = variance.max(of_mean(&longer));
        }
        (variance * n * (n - 1.0) / (kept * (kept - 1.0)), kept - 1.0)
    }
}

/// Variance of the mean of independent values.
fn of_mean(list: &[f64]) -> f64 {
    let n = list.len() as f64;
    if n < 2.0 { 0.0 } else { scatter(list) / (n * (n - 1.0)) }
}

/// Sum of squared distances from the mean.
fn scatter(list: &[f64]) -> f64 {
    let mean = list.iter().sum::<f64>() / list.len().max(1) as f64;
    list.iter().map(|x| (x - mean) * (x - mean)).sum()
}

/// One side, ready to be tested.
struct Side {
    mean: f64,
    /// Sum of squares between its recordings, the outer ones drawn in.
    scatter: f64,
    /// Recordings that count.
    nr: f64,
    /// Variances of a recording: what the prior says, what its blocks say, and the freedom of the latter.
    prior: f64,
    within: f64,
    within_freedom: f64,
    /// Variance of what is unknown.
    unknown: f64,
    /// Variance by memory in motion.
    motion: f64,
}

impl Side {
    fn of(runs: &[Run], prior: &Prior, level: f64) -> Self {
        let means: Vec<f64> = runs.iter().map(Run::mean).collect();
        let kept = middle(&means);
        let (low, high) = (kept.first().copied().unwrap_or(0.0), kept.last().copied().unwrap_or(0.0));
        let drawn_in: Vec<f64> = means.iter().map(|m| m.clamp(low, high)).collect();
        let each =
            |run: &Run| (prior.relative.powi(2) + run.late.powi(2)) * level * level + prior.absolute.powi(2);
        let within: Vec<(f64, f64)> = runs.iter().map(Run::variance).collect();
        Self {
            mean: centre(runs),
            scatter: scatter(&drawn_in),
            nr: kept.len() as f64,
            // One recording made on a busy machine does not decide for all: of four and more it is left out here, too.
            prior: middle_mean(&runs.iter().map(each).collect::<Vec<f64>>()),
            within: middle_mean(&within.iter().map(|w| w.0).collect::<Vec<f64>>()),
            within_freedom: within.iter().map(|w| w.1).sum(),
            unknown: middle_mean(&runs.iter().map(|run| run.unknown.powi(2) / 12.0).collect::<Vec<f64>>()),
            motion: middle_mean(&runs.iter().map(|run| run.motion.powi(2)).collect::<Vec<f64>>()),
        }
    }
}

/// What moves within a run shows between several of them, too: the more there are the less it is needed.
fn needed(own_freedom: f64) -> f64 {
    (1.0 - own_freedom / OWN_FREEDOM).max(0.0)
}

/// How much it counts that memory is in motion, between sides of so many recordings: 1 of one each, 0 of three and more.
pub fn motion_counts(nr: [usize; 2]) -> f64 {
    let kept: usize = nr.iter().map(|nr| nr - 2 * (nr / 4)).sum();
    needed(kept as f64 - 2.0)
}

/// Tests whether two sides differ.
pub fn test(a: &[Run], b: &[Run], prior: &Prior) -> Test {
    if a.is_empty() || b.is_empty() {
        return Test { p: 1.0, error: 0.0, freedom: 1.0, by_unknown: 0.0 };
    }
    let level = centre(a).abs().midpoint(centre(b).abs());
    let sides = [Side::of(a, prior, level), Side::of(b, prior, level)];
    let own_freedom = sides[0].nr + sides[1].nr - 2.0;
    let needed = needed(own_freedom);
    // The variance of the difference as expected, and by Welch and Satterthwaite how well that is known.
    let (mut expected, mut doubt) = (0.0, 0.0);
    let from_prior = sides.iter().map(|s| s.prior / s.nr).sum::<f64>();
    doubt += from_prior * from_prior / prior.freedom;
    expected += from_prior;
    let from_motion = sides.iter().map(|s| s.motion / s.nr).sum::<f64>() * needed;
    doubt += from_motion * from_motion / MOTION_FREEDOM;
    expected += from_motion;
    for side in &sides {
        let part = (side.within - INCLUDED * (side.prior + side.motion)).max(0.0) * needed / side.nr;
        expected += part;
        doubt += part * part / side.within_freedom.max(1.0);
    }
    let mut freedom = if doubt > 0.0 { expected * expected / doubt } else { prior.freedom };
    let mut variance = expected;
    if own_freedom > 0.0 {
        let observed =
            (sides[0].scatter + sides[1].scatter) / own_freedom * (1.0 / sides[0].nr + 1.0 / sides[1].nr);
        // Recordings that scatter more than expected contradict the prior, which then counts for less.
        let prior_freedom = if observed > expected { freedom * expected / observed } else { freedom };
        variance = (prior_freedom * expected + own_freedom * observed) / (prior_freedom + own_freedom);
        freedom = prior_freedom + own_freedom;
    }
    // This part is known exactly, so that it adds to the error and not to the doubt about it.
    let unknown = sides[0].unknown + sides[1].unknown;
    if unknown > 0.0 {
        freedom *= ((variance + unknown) / variance.max(f64::MIN_POSITIVE)).powi(2);
        freedom = freedom.min(1e6);
        variance += unknown;
    }
    let by_unknown = if variance > 0.0 { unknown / variance } else { 0.0 };
    let (error, difference) = (variance.sqrt(), (sides[0].mean - sides[1].mean).abs());
    let p = if difference <= 0.0 {
        1.0
    } else if error <= 0.0 {
        0.0
    } else {
        both_tails(difference / error, freedom)
    };
    Test { p, error, freedom, by_unknown }
}

impl Test {
    /// The smallest difference that would have a p-value below `level`.
    pub fn detectable(&self, level: f64) -> f64 {
        let (mut low, mut high) = (0.0, 1e4);
        for _ in 0..60 {
            let t = f64::midpoint(low, high);
            if both_tails(t, self.freedom) < level { high = t } else { low = t }
        }
        high * self.error
    }
}

/// Corrects p-values for being many: each is the level at which it would be rejected among all.
pub fn holm(p: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|a, b| p[*a].total_cmp(&p[*b]));
    let mut corrected = vec![1.0; p.len()];
    let mut highest: f64 = 0.0;
    for (rank, at) in order.into_iter().enumerate() {
        highest = highest.max((p[at] * (p.len() - rank) as f64).min(1.0));
        corrected[at] = highest;
    }
    corrected
}

/// Probability that Student's t with so many degrees of freedom is further from 0 than `t`.
fn both_tails(t: f64, freedom: f64) -> f64 {
    incomplete_beta(freedom / 2.0, 0.5, freedom / (freedom + t * t))
}

/// The regularised incomplete beta function, by its continued fraction (NIST Digital Library of Mathematical Functions,
/// 8.17.22).
fn incomplete_beta(a: f64, b: f64, x: f64) -> f64 {
    if x <= 0.0 || x >= 1.0 {
        return x.clamp(0.0, 1.0);
    }
    // It converges fast on this side only.
    if x > (a + 1.0) / (a + b + 2.0) {
        return 1.0 - incomplete_beta(b, a, 1.0 - x);
    }
    let front = (ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b) + a * x.ln() + b * (1.0 - x).ln()).exp() / a;
    let (mut fraction, mut c, mut d) = (1.0, 1.0, 0.0);
    for i in 0..400_u32 {
        let m = f64::from(i / 2);
        let numerator = if i == 0 {
            1.0
        } else if i % 2 == 0 {
            m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m))
        } else {
            -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0))
        };
        let small = |v: f64| if v.abs() < 1e-300 { 1e-300 } else { v };
        d = 1.0 / small(1.0 + numerator * d);
        c = small(1.0 + numerator / c);
        fraction *= c * d;
        if (1.0 - c * d).abs() < 1e-12 {
            break;
        }
    }
    (front * (fraction - 1.0)).clamp(0.0, 1.0)
}

/// Logarithm of the gamma function of a positive number: Stirling's series, after moving up to where it is exact enough.
fn ln_gamma(x: f64) -> f64 {
    let (mut x, mut shift) = (x, 0.0);
    while x < 12.0 {
        shift += x.ln();
        x += 1.0;
    }
    let inverse = 1.0 / (x * x);
    let series = (1.0 / 12.0 - inverse * (1.0 / 360.0 - inverse * (1.0 / 1260.0 - inverse / 1680.0))) / x;
    (x - 0.5) * x.ln() - x + 0.5 * (2.0 * std::f64::consts::PI).ln() + series - shift
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Prior = Prior { relative: 0.01, absolute: 0.0, freedom: 10.0 };

    fn run(mean: f64, by: f64) -> Run {
        Run { blocks: vec![mean - by, mean + by, mean - by, mean + by], ..Run::default() }
    }

    fn p_value(a: &[Run], b: &[Run], prior: &Prior) -> f64 {
        test(a, b, prior).p
    }

    #[test]
    fn an_outlier_moves_neither_the_figure_nor_the_direction() {
        let runs = |list: &[f64]| list.iter().map(|m| run(*m, 0.0)).collect::<Vec<_>>();
        // The plain mean of the second is below that of the first.
        let (a, b) = (runs(&[100.0, 101.0, 99.0, 100.0]), runs(&[110.0, 30.0, 111.0, 109.0]));
        assert!(centre(&b) > centre(&a), "{} {}", centre(&a), centre(&b));
    }

    #[test]
    fn one_late_recording_does_not_decide_for_all() {
        let mut runs = vec![run(100.0, 0.0); 5];
        let calm = test(&runs, &runs, &NONE).error;
        runs[3].late = 0.3;
        assert!(test(&runs, &runs, &NONE).error < 1.01 * calm);
        // Of two recordings it does.
        assert!(test(&[run(100.0, 0.0)], &runs[3..4], &NONE).error > 10.0);
    }

    #[test]
    fn recordings_that_contradict_the_prior_are_believed() {
        let runs = |list: &[f64]| list.iter().map(|m| run(*m, 0.0)).collect::<Vec<_>>();
        let p = p_value(&runs(&[85.0, 100.0, 112.0]), &runs(&[100.0, 115.0, 128.0]), &NONE);
        assert!(p > 0.1, "{p}");
    }

    #[test]
    fn a_figure_that_moves_is_known_less_well_than_the_prior() {
        let found = test(&[run(100.0, 10.0)], &[run(110.0, 10.0)], &NONE);
        assert!(found.freedom < 7.0 && found.detectable(0.01) > 20.0, "{found:?}");
        let steady = test(&[run(100.0, 0.0)], &[run(110.0, 0.0)], &NONE);
        assert!((steady.detectable(0.01) - 3.169 * 2.0_f64.sqrt() * 1.05).abs() < 0.02, "{steady:?}");
    }

    /// What recordings of a steady program move by within themselves is part of what they differ by.
    #[test]
    fn what_moves_no_more_than_the_prior_says_costs_nothing() {
        let error = |by: f64| test(&[run(100.0, by)], &[run(100.0, by)], &NONE).error;
        assert!((error(0.5) - error(0.0)).abs() < 1e-9, "{} {}", error(0.5), error(0.0));
        assert!(error(4.0) > 1.5 * error(0.0));
    }

    /// A recording of 10 s has a few blocks; none of them is left out.
    #[test]
    fn of_few_blocks_all_count() {
        let few = Run { blocks: vec![1.0, 1.0, 1.0, 2.0], ..Run::default() };
        assert!((few.mean() - 1.25).abs() < 1e-9);
        let many = Run { blocks: vec![1.0, 1.0, 1.0, 1.0, 1.0, 2.0], ..Run::default() };
        assert!((many.mean() - 1.0).abs() < 1e-9);
    }

    #[test]
    fn tails_are_those_of_the_tables() {
        for (t, freedom, p) in [
            (12.706, 1.0, 0.05),
            (2.228, 10.0, 0.05),
            (3.169, 10.0, 0.01),
            (2.0, 60.0, 0.0500),
            (1.96, 1e6, 0.05),
            (0.0, 5.0, 1.0),
        ] {
            let found = both_tails(t, freedom);
            assert!((found - p).abs() < 2e-4, "{t} {freedom}: {found} instead of {p}");
        }
    }

    #[test]
    fn a_difference_within_what_runs_differ_by_is_none() {
        let p = |a: f64, b: f64| p_value(&[run(a, 0.0)], &[run(b, 0.0)], &NONE);
        assert_eq!(p(5.0, 5.0), 1.0);
        assert!(p(100.0, 101.0) > 0.4 && p(100.0, 110.0) < 0.001);
        // What moves about by itself needs more.
        assert!(p_value(&[run(100.0, 20.0)], &[run(110.0, 20.0)], &NONE) > 0.2);
    }

    #[test]
    fn several_recordings_show_their_own_scatter() {
        let runs = |list: &[f64]| list.iter().map(|m| run(*m, 0.0)).collect::<Vec<_>>();
        let wild = p_value(&runs(&[90.0, 110.0, 100.0]), &runs(&[101.0, 119.0, 110.0]), &NONE);
        let calm = p_value(&runs(&[99.0, 101.0, 100.0]), &runs(&[109.0, 111.0, 110.0]), &NONE);
        assert!(wild > 0.02 && calm < 1e-4, "{wild} {calm}");
        // One of five was made while the machine was busy.
        let starved =
            p_value(&runs(&[65.3, 65.5, 57.0, 65.2, 65.6]), &runs(&[71.5, 57.4, 72.0, 71.2, 71.8]), &NONE);
        assert!(starved < 1e-3, "{starved}");
    }

    /// Figures between 0 and 1, by an ordinary linear congruence.
    fn draws() -> impl FnMut() -> f64 {
        let mut state = 7_u64;
        move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 33) as f64) / f64::from(1_u32 << 31)
        }
    }

    /// The model in the open: a program uses 100, of which a recording does not see what it happens to lose, any share of
    /// `unknown`; recordings scatter as the prior says. How often a comparison of two of them, the second of a program larger by
    /// `more`, is below the level.
    fn rejected(unknown: f64, more: f64) -> f64 {
        let mut next = draws();
        let rounds = 3000;
        let mut below = 0;
        for _ in 0..rounds {
            let mut one = |uses: f64| {
                // A sum of twelve is nearly normal.
                let normal = (0..12).map(|_| next()).sum::<f64>() - 6.0;
                let seen = uses * (1.0 + NONE.relative * normal) - next() * unknown;
                vec![Run { unknown, ..run(seen, 0.0) }]
            };
            below += usize::from(p_value(&one(100.0), &one(100.0 + more), &NONE) < 0.01);
        }
        below as f64 / f64::from(rounds)
    }

    #[test]
    fn what_is_unknown_makes_no_difference_and_hides_no_more_than_it_can() {
        for unknown in [0.0, 3.0, 10.0, 40.0] {
            let wrong = rejected(unknown, 0.0);
            assert!(wrong <= 0.015, "{unknown}: {wrong}");
        }
        // With nothing said of it half of them would differ.
        let blindly = |unknown: f64| {
            let mut next = draws();
            let mut one = || vec![run(100.0 - next() * unknown, 0.0)];
            (0..1000).filter(|_| p_value(&one(), &one(), &NONE) < 0.01).count()
        };
        assert!(blindly(40.0) > 500, "{}", blindly(40.0));
        for (unknown, more) in [(0.0, 7.0), (3.0, 10.0), (10.0, 20.0), (40.0, 70.0)] {
            let found = rejected(unknown, more);
            assert!(found > 0.9, "{unknown}, {more}: {found}");
        }
    }

    #[test]
    fn more_recordings_show_no_more_of_what_none_has_seen() {
        let runs = |nr: usize| vec![Run { unknown: 30.0, ..run(100.0, 0.0) }; nr];
        let error = |nr| test(&runs(nr), &runs(nr), &NONE).error;
        let least = (2.0 * 30.0_f64.powi(2) / 12.0).sqrt();
        assert!(error(1) > least && error(8) > least && error(8) < error(1), "{} {}", error(1), error(8));
    }

    #[test]
    fn a_slow_drift_widens_the_error() {
        let drift = Run { blocks: vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0], ..Run::default() };
        let jumps = Run { blocks: vec![1.0, 4.0, 3.0, 6.0, 2.0, 5.0], ..Run::default() };
        assert!(drift.variance().0 > 1.5 * jumps.variance().0);
    }

    #[test]
    fn many_comparisons_are_corrected() {
        let found = holm(&[0.01, 0.5, 0.02, 0.04]);
        let expected = [0.04, 0.5, 0.06, 0.08];
        assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12), "{found:?}");
        assert!(holm(&[]).is_empty());
    }
}

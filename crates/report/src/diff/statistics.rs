//! Whether a difference of means is more than noise.
//!
//! There are two kinds of noise. Within a recording a figure moves, and what it was a moment ago it still nearly is: so a
//! recording is cut into blocks of time, and the mean of a run is known as well as the scatter of its blocks says, widened
//! by what is left of correlation between one block and the next. And two recordings of one program differ by more than that: regions lie
//! elsewhere, the budget was spent elsewhere, the machine did something else. That shows only between recordings. Where
//! there is one on each side it has to be taken from experience ([`Prior`]); where there are several, their own scatter
//! takes its place as far as they are many: a moderated t-test (G. K. Smyth, "Linear models and empirical Bayes methods for
//! assessing differential expression", 2004). Many figures are compared at once, so p-values are corrected as S. Holm has it
//! ("A simple sequentially rejective multiple test procedure", 1979).

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

/// With so many degrees of freedom between the recordings of each side, these alone show how much they scatter.
const OWN_FREEDOM: f64 = 4.0;

/// A figure in one recording.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Run {
    /// Its mean in each block of time.
    pub blocks: Vec<f64>,
}

impl Run {
    /// Blocks in order of value without the lowest and highest quarter, and how many were left out at each end.
    fn trimmed(&self) -> (Vec<f64>, usize) {
        let mut sorted = self.blocks.clone();
        sorted.sort_by(f64::total_cmp);
        let cut = sorted.len() / 4;
        (sorted[cut..sorted.len() - cut].to_vec(), cut)
    }

    /// Mean over the middle half of the blocks: a second in which the machine was busy with something else does not move
    /// it. 0 without any.
    pub fn mean(&self) -> f64 {
        let (middle, _) = self.trimmed();
        if middle.is_empty() { 0.0 } else { middle.iter().sum::<f64>() / middle.len() as f64 }
    }

    /// Variance of that, as the blocks tell: of a trimmed mean, after K. K. Yuen ("The two-sample trimmed t for unequal
    /// population variances", 1974), widened for correlation.
    fn variance(&self) -> f64 {
        let (n, (middle, cut)) = (self.blocks.len() as f64, self.trimmed());
        let (Some(low), Some(high), kept) = (middle.first(), middle.last(), middle.len() as f64) else {
            return 0.0;
        };
        if kept < 2.0 {
            return 0.0;
        }
        let winsorised = [vec![*low; cut], middle.clone(), vec![*high; cut]].concat();
        let mean = self.blocks.iter().sum::<f64>() / n;
        let off: Vec<f64> = self.blocks.iter().map(|b| b - mean).collect();
        let square: f64 = off.iter().map(|x| x * x).sum();
        let lagged: f64 = off.windows(2).map(|w| w[0] * w[1]).sum();
        let correlation = if square > 0.0 { (lagged / square).clamp(0.0, 0.6) } else { 0.0 };
        scatter(&winsorised) / (kept * (kept - 1.0)) * (1.0 + correlation) / (1.0 - correlation)
    }
}

/// Sum of squared distances from the mean.
fn scatter(list: &[f64]) -> f64 {
    let mean = list.iter().sum::<f64>() / list.len().max(1) as f64;
    list.iter().map(|x| (x - mean) * (x - mean)).sum()
}

/// Probability that runs of one program differ by as much as these, either way.
pub fn p_value(a: &[Run], b: &[Run], prior: &Prior) -> f64 {
    if a.is_empty() || b.is_empty() {
        return 1.0;
    }
    // Of four and more on a side those in the middle count, as with blocks: one may have been made on a busy machine.
    let side = |runs: &[Run]| {
        let all = Run { blocks: runs.iter().map(Run::mean).collect() };
        let (middle, cut) = all.trimmed();
        let (low, high) = (middle.first().copied().unwrap_or(0.0), middle.last().copied().unwrap_or(0.0));
        (
            all.mean(),
            scatter(&[vec![low; cut], middle.clone(), vec![high; cut]].concat()),
            middle.len() as f64,
        )
    };
    let ((mean_a, scatter_a, nr_a), (mean_b, scatter_b, nr_b)) = (side(a), side(b));
    let freedom = nr_a + nr_b - 2.0;
    let within = a.iter().chain(b).map(Run::variance).sum::<f64>() / (a.len() + b.len()) as f64;
    let level = mean_a.abs().midpoint(mean_b.abs());
    // What moves within a run shows between several of them, too.
    let within = if freedom < OWN_FREEDOM { within } else { 0.0 };
    let expected = (prior.relative * level).powi(2) + prior.absolute.powi(2) + within;
    let observed = scatter_a + scatter_b;
    let variance = (prior.freedom * expected + observed) / (prior.freedom + freedom);
    let error = (variance * (1.0 / nr_a + 1.0 / nr_b)).sqrt();
    let difference = (mean_a - mean_b).abs();
    if difference <= 0.0 {
        return 1.0;
    }
    if error <= 0.0 {
        return 0.0;
    }
    both_tails(difference / error, prior.freedom + freedom)
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
        Run { blocks: vec![mean - by, mean + by, mean - by, mean + by] }
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

    #[test]
    fn a_slow_drift_widens_the_error() {
        let drift = Run { blocks: vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0] };
        let jumps = Run { blocks: vec![1.0, 4.0, 3.0, 6.0, 2.0, 5.0] };
        assert!(drift.variance() > 1.5 * jumps.variance());
    }

    #[test]
    fn many_comparisons_are_corrected() {
        let found = holm(&[0.01, 0.5, 0.02, 0.04]);
        let expected = [0.04, 0.5, 0.06, 0.08];
        assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12), "{found:?}");
        assert!(holm(&[]).is_empty());
    }
}

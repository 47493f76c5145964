//! What the constants of the sampler are for: accuracy and cost in simulations without each of them.
//!
//! Every pattern is simulated with the constants as they are, then with one of them taken away, or divided and multiplied by a
//! factor where there is no without. A figure differs where the means over the seeds lie further apart than twice what seeds differ
//! among themselves, and by more than would matter to anybody ([`Measure::negligible`]). A constant of which no figure differs in
//! any pattern may go, or is for something that no pattern shows.

mod judge;
mod patterns;
mod table;

pub use judge::Figures;
pub use patterns::Pattern;
pub use table::{constants_table, table};

use crate::experiment::{Interrupted, Watch};
use crate::statistics::Estimate;
use isotherm_damon::{Constant, Tuning};
use serde::Serialize;

/// What is told of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// F1 of hot bytes.
    F1,
    /// F1 of bytes accessed within a second.
    Second,
    /// Mean relative error of the rates of what is accessed 10 to 50 times a second.
    RateError,
    /// Seconds until the greater part of hot memory is told to be hot.
    Found,
    /// Ranges cleared a second.
    Clears,
    /// Wake-ups a second.
    WakeUps,
    /// Share of a CPU, by the price that looks, clears and wake-ups have in the simulation.
    Cpu,
}

impl Measure {
    /// All.
    pub const ALL: [Self; 7] =
        [Self::F1, Self::Second, Self::RateError, Self::Found, Self::Clears, Self::WakeUps, Self::Cpu];

    /// What people call it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::F1 => "F1 hot",
            Self::Second => "F1 1 s",
            Self::RateError => "rate error",
            Self::Found => "found, s",
            Self::Clears => "clears/s",
            Self::WakeUps => "wake-ups/s",
            Self::Cpu => "CPU",
        }
    }

    /// A difference that matters to nobody: half a percent of F1, two of a rate, an aggregation, three percent of a cost.
    #[must_use]
    pub fn negligible(self, default: f64) -> f64 {
        match self {
            Self::F1 | Self::Second => 0.005,
            Self::RateError => 0.02,
            Self::Found => 0.1,
            Self::Clears | Self::WakeUps | Self::Cpu => 0.03 * default,
        }
    }
}

/// How a constant is changed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// What it stands for is taken away.
    Without,
    /// It is so many times its default.
    Times(f64),
}

impl Change {
    /// What is tried of a constant; what is rounded to its default is not.
    #[must_use]
    pub fn of(constant: &Constant, factor: f64) -> Vec<Self> {
        let all = match constant.without {
            Some(_) => vec![Self::Without],
            None => vec![Self::Times(1.0 / factor), Self::Times(factor)],
        };
        all.into_iter().filter(|change| change.tuning(constant) != Tuning::DEFAULT).collect()
    }

    /// All constants as they are, but for this one.
    #[must_use]
    pub fn tuning(self, constant: &Constant) -> Tuning {
        let mut tuning = Tuning::DEFAULT;
        let value = match self {
            Self::Without => constant.without.unwrap_or(constant.default),
            Self::Times(factor) => constant.default * factor,
        };
        (constant.set)(&mut tuning, value);
        tuning
    }
}

/// How it is done.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Setup {
    /// Runs of each pattern, each with another seed.
    pub seeds: u32,
    /// What constants are divided and multiplied by of which there is no without.
    pub factor: f64,
}

impl Setup {
    fn seeds(self) -> impl Iterator<Item = u64> {
        (0..u64::from(self.seeds)).map(|i| 11 + 12 * i)
    }
}

/// What a pattern shows with all constants as they are.
#[derive(Clone, Debug, Serialize)]
pub struct Baseline {
    /// Which.
    pub pattern: &'static str,
    /// By seed.
    pub figures: Vec<Figures>,
}

/// What a constant does to one measure of one pattern.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// Which.
    pub measure: Measure,
    /// Mean over the seeds, less that of the default.
    pub by: f64,
    /// What a difference must exceed to count.
    pub limit: f64,
}

impl Difference {
    /// Whether it is more than seeds differ, and more than nothing to anybody.
    #[must_use]
    pub fn counts(&self) -> bool {
        self.by.abs() > self.limit
    }

    fn of(measure: Measure, default: &[Figures], changed: &[Figures]) -> Option<Self> {
        let estimate = |all: &[Figures]| {
            let values: Vec<f64> = all.iter().filter_map(|figures| figures.get(measure)).collect();
            Estimate::of(&values)
        };
        let (default, changed) = (estimate(default)?, estimate(changed)?);
        let spread = default.stdev.unwrap_or(0.0).max(changed.stdev.unwrap_or(0.0));
        let limit = (2.0 * spread).max(measure.negligible(default.mean));
        Some(Self { measure, by: changed.mean - default.mean, limit })
    }
}

/// What a change of a constant does to one pattern.
#[derive(Clone, Debug, Serialize)]
pub struct Shown {
    /// Which.
    pub pattern: &'static str,
    /// By seed.
    pub figures: Vec<Figures>,
    /// Of each measure that the pattern has.
    pub differences: Vec<Difference>,
}

/// What a change of a constant does.
#[derive(Clone, Debug, Serialize)]
pub struct Ablation {
    /// The constant's name.
    pub constant: &'static str,
    /// Its default.
    pub default: f64,
    /// How it was changed.
    pub change: Change,
    /// What it was meanwhile; null for infinity.
    pub value: f64,
    /// In words.
    pub effect: Effect,
    /// Pattern by pattern.
    pub patterns: Vec<Shown>,
}

/// Whether a change made a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// No run went any other way: no pattern comes to where the constant counts.
    Unused,
    /// Runs went another way, and no figure differs by more than between seeds.
    Nothing,
    /// Some figure differs.
    Differs,
}

impl Ablation {
    fn of(constant: &Constant, change: Change, patterns: Vec<Shown>, baselines: &[Baseline]) -> Self {
        let same = |shown: &Shown| {
            baselines.iter().any(|b| b.pattern == shown.pattern && b.figures == shown.figures)
        };
        let counts = |shown: &Shown| shown.differences.iter().any(Difference::counts);
        let effect = if patterns.iter().all(same) {
            Effect::Unused
        } else if patterns.iter().any(counts) {
            Effect::Differs
        } else {
            Effect::Nothing
        };
        let (constant, default, value) =
            (constant.name, constant.default, (constant.get)(&change.tuning(constant)));
        Self { constant, default, change, value, effect, patterns }
    }

    /// The mean of a measure's differences over the patterns that have it.
    #[must_use]
    pub fn mean(&self, measure: Measure) -> Option<f64> {
        let all = self.patterns.iter().flat_map(|shown| &shown.differences);
        let values: Vec<f64> = all.filter(|d| d.measure == measure).map(|d| d.by).collect();
        crate::statistics::mean(&values)
    }
}

/// All that was simulated.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Ablations {
    /// The constants as they are.
    pub defaults: Vec<Baseline>,
    /// Each of them changed.
    pub ablations: Vec<Ablation>,
}

impl Ablations {
    /// Simulates all patterns with each of the constants changed.
    ///
    /// # Errors
    /// [`Interrupted`]; what was simulated before stays in `self`.
    pub fn simulate(
        &mut self,
        constants: &[&Constant],
        patterns: &[Pattern],
        setup: Setup,
        watch: &mut Watch<'_>,
    ) -> Result<(), Interrupted> {
        for pattern in patterns {
            (watch.progress)(&format!("{}, as it is ...", pattern.name()));
            let figures = figures(*pattern, Tuning::DEFAULT, setup, watch)?;
            self.defaults.push(Baseline { pattern: pattern.name(), figures });
        }
        let all: Vec<(&Constant, Change)> = constants
            .iter()
            .flat_map(|constant| Change::of(constant, setup.factor).into_iter().map(|c| (*constant, c)))
            .collect();
        for (index, (constant, change)) in all.iter().enumerate() {
            let (name, changed) = (constant.name, table::changed(constant, *change));
            (watch.progress)(&format!("{} of {}: {name}, {changed} ...", index + 1, all.len()));
            let mut shown = Vec::new();
            for (pattern, baseline) in patterns.iter().zip(&self.defaults) {
                let figures = figures(*pattern, change.tuning(constant), setup, watch)?;
                let differences = Measure::ALL
                    .into_iter()
                    .filter_map(|measure| Difference::of(measure, &baseline.figures, &figures))
                    .collect();
                shown.push(Shown { pattern: pattern.name(), figures, differences });
            }
            self.ablations.push(Ablation::of(constant, *change, shown, &self.defaults));
        }
        Ok(())
    }
}

fn figures(
    pattern: Pattern,
    tuning: Tuning,
    setup: Setup,
    watch: &Watch<'_>,
) -> Result<Vec<Figures>, Interrupted> {
    setup
        .seeds()
        .map(|seed| {
            watch.go_on()?;
            Ok(judge::judge(&pattern.simulation(), tuning, seed))
        })
        .collect()
}

/// The constant of this name, or else those whose names are nearest to it, nearest first.
///
/// # Errors
/// There is none.
pub fn constant(name: &str) -> Result<&'static Constant, Vec<&'static str>> {
    let all = Tuning::CONSTANTS;
    all.iter().find(|c| c.name == name).ok_or_else(|| nearest(name, all.iter().map(|c| c.name)))
}

/// The pattern of this name, or else those whose names are nearest to it.
///
/// # Errors
/// There is none.
pub fn pattern(name: &str) -> Result<Pattern, Vec<&'static str>> {
    let named = Pattern::ALL.into_iter().find(|p| p.name() == name);
    named.ok_or_else(|| nearest(name, Pattern::ALL.into_iter().map(Pattern::name)))
}

/// Up to three of the names that are nearest to a word; all that hold it come first.
fn nearest<'a>(word: &str, names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    // What is longer than any name is none, and would take long to compare.
    let word: String = word.to_ascii_lowercase().replace('-', "_").chars().take(40).collect();
    let far = |name: &str| {
        let part = !word.is_empty() && (name.contains(&word) || word.contains(name));
        if part { 0 } else { distance(&word, name) }
    };
    let mut near: Vec<(usize, &str)> = names.map(|name| (far(name), name)).collect();
    near.sort_unstable();
    let first = near.first().map_or(0, |(far, _)| *far);
    near.into_iter().take_while(|(far, _)| *far <= first + 1).map(|(_, name)| name).take(3).collect()
}

/// Letters to insert, delete or replace (Wagner and Fischer 1974).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut row = vec![i + 1];
        for (y, pair) in b.iter().zip(last.windows(2)) {
            let [diagonal, above] = pair else { continue };
            let left = row.last().copied().unwrap_or(i + 1);
            row.push((above + 1).min(left + 1).min(diagonal + usize::from(x != *y)));
        }
        last = row;
    }
    last.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests;

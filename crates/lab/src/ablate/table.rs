//! What was found, for people.

use super::{Ablation, Ablations, Change, Difference, Effect, Measure};
use crate::statistics::mean;
use crate::table::Table;
use isotherm_damon::Constant;

/// The figures of the constants as they are, what each of them does, and which do nothing.
#[must_use]
pub fn table(found: &Ablations, details: bool) -> String {
    let mut parts = Vec::new();
    if !found.defaults.is_empty() {
        parts.push(defaults(found));
    }
    if !found.ablations.is_empty() {
        parts.push(differences(found, details));
        parts.extend(idle(found));
    }
    parts.join("\n")
}

fn defaults(found: &Ablations) -> String {
    let mut table = headed("constants as they are", "");
    for baseline in &found.defaults {
        let figure = |measure| {
            let values: Vec<f64> = baseline.figures.iter().filter_map(|f| f.get(measure)).collect();
            mean(&values).map_or("-".into(), |value| absolute(measure, value))
        };
        table.row([baseline.pattern.to_owned()].into_iter().chain(Measure::ALL.map(figure)));
    }
    table.render()
}

fn headed(first: &str, last: &str) -> Table {
    let names = Measure::ALL.map(Measure::name);
    Table::new(&[&[first][..], &names, &[last]].concat())
}

fn differences(found: &Ablations, details: bool) -> String {
    let mut table = headed("difference, mean of the patterns", "differs most in");
    for ablation in &found.ablations {
        let name = format!("{}, {}", ablation.constant, of_change(ablation.change, ablation.value));
        let mean = |measure| ablation.mean(measure).map_or("-".into(), |by| relative(measure, by));
        table.row([name].into_iter().chain(Measure::ALL.map(mean)).chain([in_what(ablation)]));
        for shown in ablation.patterns.iter().filter(|_| details) {
            let of = |measure| shown.differences.iter().find(|d| d.measure == measure);
            let by = |measure| of(measure).map_or("-".into(), |d| relative(measure, d.by));
            let counts = shown.differences.iter().filter(|d| d.counts()).map(|d| d.measure.name());
            let counts = counts.collect::<Vec<_>>().join(", ");
            table.row(
                [format!("  {}", shown.pattern)].into_iter().chain(Measure::ALL.map(by)).chain([counts]),
            );
        }
    }
    table.render()
}

/// Where the difference stands out most, and in how many other figures there is one.
fn in_what(ablation: &Ablation) -> String {
    match ablation.effect {
        Effect::Unused => return "= unused".into(),
        Effect::Nothing => return "= nothing".into(),
        Effect::Differs => {}
    }
    let all = ablation.patterns.iter().flat_map(|shown| shown.differences.iter().map(|d| (shown.pattern, d)));
    let mut all: Vec<_> = all.filter(|(_, d)| d.counts()).collect();
    let stands_out = |d: &Difference| d.by.abs() / d.limit.max(1e-9);
    all.sort_by(|a, b| stands_out(b.1).total_cmp(&stands_out(a.1)));
    let Some((pattern, most)) = all.first() else { return String::new() };
    let others = match all.len() - 1 {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{pattern}: {} {}{others}", most.measure.name(), relative(most.measure, most.by))
}

/// Constants that do nothing however they were changed.
fn idle(found: &Ablations) -> Vec<String> {
    let mut names: Vec<&str> = found.ablations.iter().map(|a| a.constant).collect();
    names.dedup();
    let of = |name: &str| found.ablations.iter().filter(move |a| a.constant == name).collect::<Vec<_>>();
    let all = |name: &str, effect| of(name).iter().all(|a| a.effect == effect);
    let unused: Vec<&str> = names.iter().copied().filter(|n| all(n, Effect::Unused)).collect();
    let nothing: Vec<&str> = names
        .iter()
        .copied()
        .filter(|n| !unused.contains(n) && of(n).iter().all(|a| a.effect != Effect::Differs))
        .collect();
    let told =
        |what: &str, names: Vec<&str>| (!names.is_empty()).then(|| format!("{what}: {}\n", names.join(", ")));
    let nothing = told("No difference beyond that between seeds", nothing);
    nothing.into_iter().chain(told("Never came into play in these patterns", unused)).collect()
}

fn absolute(measure: Measure, value: f64) -> String {
    match measure {
        Measure::F1 | Measure::Second => format!("{value:.3}"),
        Measure::RateError => format!("{:.0} %", value * 100.0),
        Measure::Found | Measure::WakeUps => format!("{value:.1}"),
        Measure::Clears => format!("{value:.0}"),
        Measure::Cpu => format!("{:.2} %", value * 100.0),
    }
}

fn relative(measure: Measure, by: f64) -> String {
    if by == 0.0 {
        return "=".into();
    }
    match measure {
        Measure::F1 | Measure::Second => format!("{by:+.3}"),
        Measure::RateError => format!("{:+.0} %", by * 100.0),
        Measure::Found | Measure::WakeUps => format!("{by:+.1}"),
        Measure::Clears => format!("{by:+.0}"),
        Measure::Cpu => format!("{:+.2} %", by * 100.0),
    }
}

/// The constants with their defaults and reasons.
#[must_use]
pub fn constants_table<'a>(constants: impl IntoIterator<Item = &'a Constant>) -> String {
    let mut text = String::new();
    for constant in constants {
        let change = match constant.without {
            Some(_) => changed(constant, Change::Without),
            None => "tried at parts and multiples".into(),
        };
        let unit = if constant.least.is_some() { " ms" } else { "" };
        text.push_str(&format!("{} = {}{unit} ({change})\n", constant.name, number(constant.default)));
        text.push_str(&format!("   {}\n", plain(constant.reason.trim())));
    }
    text
}

/// Words without the marks of a link in documentation.
fn plain(reason: &str) -> String {
    reason.replace("[`Self::", "").replace("[`", "").replace("`]", "").replace('`', "")
}

/// How a constant is changed, in words.
pub(super) fn changed(constant: &Constant, change: Change) -> String {
    of_change(change, (constant.get)(&change.tuning(constant)))
}

fn of_change(change: Change, value: f64) -> String {
    match change {
        Change::Without => format!("without: {}", number(value)),
        Change::Times(_) => number(value),
    }
}

/// A number as one would write it; the largest are no numbers but the lack of a limit.
fn number(value: f64) -> String {
    if value >= 1e15 {
        return "no limit".into();
    }
    // As short as its type was: most are kept in single precision.
    let short = value as f32;
    if value != 0.0 && value.abs() < 1e-3 { format!("{short:e}") } else { short.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isotherm_damon::Tuning;

    #[test]
    fn numbers_are_told_as_they_were_written() {
        let all =
            [1e-6f32, 0.4, 0.05, 393_216.0, f32::INFINITY, 0.0, 1e-30, 2.5].map(|n| number(f64::from(n)));
        assert_eq!(all, ["1e-6", "0.4", "0.05", "393216", "no limit", "0", "1e-30", "2.5"]);
    }

    #[test]
    fn every_constant_is_listed_with_its_reason_in_plain_words() {
        let list = constants_table(Tuning::CONSTANTS);
        assert!(list.contains("surprise_row = 1e-4 (without: 0)\n   ... of a stretch's checks"), "{list}");
        assert!(
            list.contains("price = 2 (tried at parts and multiples)\n   Nats a change of rate"),
            "{list}"
        );
        assert!(!list.contains(['[', '`']), "{list}");
    }
}

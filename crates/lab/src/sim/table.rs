//! What came of it, for people: tables like the seeds'.

use super::{Accuracies, Configuration, Done, Patterns, Sampling};
use crate::table::{Table, percent, signed};

impl Patterns {
    /// Patterns and who watched them: a row each.
    fn rows(&self) -> Vec<(&str, Sampling)> {
        let mut rows = Vec::new();
        for run in &self.runs {
            if let Some(sampling) = run.sampling
                && !rows.contains(&(run.pattern.as_str(), sampling))
            {
                rows.push((run.pattern.as_str(), sampling));
            }
        }
        rows
    }

    fn of(&self, (pattern, sampling): (&str, Sampling), configuration: Configuration) -> Option<&Done> {
        self.runs.iter().find(|run| {
            (run.pattern.as_str(), run.configuration) == (pattern, configuration)
                && run.sampling.is_none_or(|watched| watched == sampling)
        })
    }

    /// A figure of each run, beside that of orig.
    fn figures(&self, what: &str, unit: f64, figure: impl Fn(&Done) -> f64) -> String {
        let names = Configuration::ALL.map(Configuration::name);
        let headings = [what, names[0], names[1], "", names[2], "", names[3], "", names[4], ""];
        let mut table = Table::new(&headings);
        for row in self.rows() {
            let orig = self.of(row, Configuration::Orig).map(&figure);
            let mut cells = vec![format!("{}, {}", row.0, row.1.name())];
            for configuration in Configuration::ALL {
                let found = self.of(row, configuration).map(&figure);
                cells.push(found.map_or_else(|| "-".to_owned(), |value| format!("{:.2}", value / unit)));
                if configuration != Configuration::Orig {
                    let change = orig.zip(found).filter(|(orig, _)| *orig > 0.0);
                    cells.push(change.map_or_else(String::new, |(orig, value)| signed(value / orig - 1.0)));
                }
            }
            table.row(cells);
        }
        table.render()
    }
}

/// Runtime, resident set and huge pages of all configurations, and what happened under each scheme.
#[must_use]
pub fn table(all: &Patterns) -> String {
    let mut parts = vec![
        all.figures("runtime, s of CPU", 1e9, |run| run.cpu_ns as f64),
        all.figures("resident, MiB", f64::from(1 << 20), |run| run.resident.rss),
        all.figures("in huge pages, MiB", f64::from(1 << 20), |run| run.resident.huge),
    ];
    let mut table =
        Table::new(&["", "refaults", "faults", "walks", "flushes", "monitor CPU", "most checks", "left out"]);
    for run in &all.runs {
        let by = run.sampling.map_or_else(String::new, |sampling| format!(", {}", sampling.name()));
        table.row([
            format!("{}, {}{by}", run.pattern, run.configuration.name()),
            run.events.refaults.to_string(),
            (run.events.zero + run.events.copy + run.events.refaults).to_string(),
            run.events.walks.to_string(),
            run.events.flushes.to_string(),
            percent(run.sampling.map(|_| run.monitor_share), 2),
            run.max_checks.to_string(),
            run.missed.to_string(),
        ]);
    }
    parts.push(table.render());
    parts.join("\n")
}

/// How true it was what DAMON said.
#[must_use]
pub fn accuracy_table(all: &Accuracies) -> String {
    let number = |f1: Option<f64>| f1.map_or_else(|| "-".to_owned(), |f1| format!("{f1:.3}"));
    let headings =
        ["pattern", "judged", "F1", "bar", "", "change seen", "monitor CPU", "checks: mean", "most in 5 ms"];
    let mut table = Table::new(&headings);
    for one in &all.checked {
        let (what, f1, bar) = one.judged();
        let met = match one.met() {
            Some(true) => "met",
            Some(false) => "missed",
            None => "",
        };
        let bar = if one.met().is_some() { number(bar) } else { "-".to_owned() };
        let seen = one.accuracy.convergence.median_ms;
        table.row([
            format!("{}, {}", one.accuracy.pattern, one.sampling.name()),
            what.to_owned(),
            number(f1),
            bar,
            met.to_owned(),
            seen.map_or_else(|| "-".to_owned(), |ms| format!("{:.1} s", ms / 1e3)),
            percent(Some(one.monitor_share), 2),
            format!("{:.1}", one.mean_checks),
            one.max_checks.to_string(),
        ]);
    }
    table.render()
}

//! The one-line text format of the DAMON patches (seed 000, "Configurations"):
//! `<min size> <max size> <min freq %> <max freq %> <min age> <max age> <action>`.
//!
//! ```text
//! # ethp: Use huge pages if a region >2MB shows >5% access rate
//! 2M null    5 null    null null    hugepage
//! ```
//!
//! `null` is no bound, and so are `min` in a column of minima and `max` in one of maxima. `#` begins a comment. Frequencies are
//! percentages, with or without the sign; ages have a unit.

use crate::convert::Loss;
use crate::entry::{Entry, check};
use crate::error::{Errors, Problem, Sink};
use crate::values::{self, Why, show_percent, show_size, show_time};
use crate::words::meant;
use isotherm_damon::Attrs;
use isotherm_damon::schemes::{AccessPattern, Action, Age, Bounds, Frequency, Scheme};
use std::time::Duration;

const COLUMNS: [&str; 7] =
    ["min size", "max size", "min frequency", "max frequency", "min age", "max age", "action"];

/// The schemes of a file.
pub(crate) fn read(text: &str) -> Result<Vec<Entry>, Errors> {
    let (mut entries, mut sink) = (Vec::new(), Sink::default());
    for (index, whole) in text.lines().enumerate() {
        let words = whole.split('#').next().unwrap_or_default();
        // Eight are enough to see that there are too many.
        let words: Vec<&str> = words.split_whitespace().take(COLUMNS.len() + 1).collect();
        if words.is_empty() {
            continue;
        }
        let at = Some(index + 1);
        let number = (entries.len() + 1).to_string();
        match scheme(&words, &mut |field, problem| sink.add(at, Some(&number), field, problem)) {
            Some(scheme) => entries.push(Entry { line: at, ..Entry::new(scheme) }),
            None if sink.errors.len() > 100 => break,
            None => {}
        }
    }
    if entries.is_empty() && sink.errors.is_empty() {
        let what = "there is no scheme in the file; one is a table [[scheme]] (TOML), or a line like \
                    4K null  null 5  5s null  pageout";
        sink.add(None, None, "", Problem::Invalid(what.to_owned()));
    }
    if sink.errors.is_empty() {
        check(&entries, &mut sink);
    }
    sink.finish(entries)
}

fn scheme(words: &[&str], wrong: &mut dyn FnMut(&str, Problem)) -> Option<Scheme> {
    if words.len() != COLUMNS.len() {
        let count = if words.len() > COLUMNS.len() { "more".to_owned() } else { words.len().to_string() };
        let why = format!("a scheme has 7 columns ({}), and here are {count}", COLUMNS.join(", "));
        wrong("", Problem::Value(why));
        return None;
    }
    let sizes = bounds(words, 0, values::size, wrong);
    let shares = bounds(words, 2, percentage, wrong);
    let ages = bounds(words, 4, values::time, wrong);
    let word = words[6].replace('-', "_");
    let action = Action::from_name(&word);
    if action.is_none() {
        let names: Vec<&str> = Action::ALL.into_iter().map(Action::name).collect();
        let meant = meant(&word, names.iter().copied());
        let word = words[6].chars().take(60).collect();
        wrong("action", Problem::UnknownWord { word, meant, known: names.join(", ") });
    }
    let ((min_size, max_size), (min_bp, max_bp), (min_age, max_age), action) =
        (sizes?, shares?, ages?, action?);
    let pattern = AccessPattern {
        size: Bounds::new(min_size.unwrap_or(0), max_size.unwrap_or(u64::MAX)),
        frequency: Frequency::Share(Bounds::new(min_bp.unwrap_or(0), max_bp.unwrap_or(10_000))),
        age: Age::Time(Bounds::new(min_age.unwrap_or_default(), max_age.unwrap_or(Duration::MAX))),
    };
    Some(Scheme::new(pattern, action))
}

type Ends<T> = (Option<T>, Option<T>);

/// A pair of columns. `None` if one of them cannot be understood.
fn bounds<T>(
    words: &[&str],
    at: usize,
    parse: fn(&str) -> Result<T, Why>,
    wrong: &mut dyn FnMut(&str, Problem),
) -> Option<Ends<T>> {
    let mut end = |at: usize, open: &str| {
        let word = words[at];
        if word == "null" || word == open {
            return Some(None);
        }
        let read = parse(word);
        read.map_err(|why| wrong(COLUMNS[at], Problem::Value(format!("{why}, or null for no bound"))))
            .ok()
            .map(Some)
    };
    let (min, max) = (end(at, "min"), end(at + 1, "max"));
    Some((min?, max?))
}

fn percentage(text: &str) -> Result<u32, Why> {
    let number = text.strip_suffix('%').unwrap_or(text);
    values::share(&format!("{number}%"))
}

/// The schemes as lines, and what of them a line cannot say.
pub(crate) fn write(entries: &[Entry]) -> (String, Vec<Loss>) {
    let (mut losses, mut rows) = (Vec::new(), Vec::new());
    for (index, entry) in entries.iter().enumerate() {
        let title = entry.title(index);
        let mut lose = |field: &str, what: String| losses.push(Loss::new(&title, field, what));
        rows.push((entry.name.clone(), row(entry, &mut lose)));
    }
    let width = |column: usize| rows.iter().map(|(_, row)| row[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..COLUMNS.len()).map(width).collect();
    let mut out = String::from("# min max size, min max frequency (%), min max age, action\n");
    for (name, row) in rows {
        if let Some(name) = name {
            out.push_str(&format!("# {name}\n"));
        }
        for (column, word) in row.iter().enumerate() {
            let gap = if column + 1 == COLUMNS.len() {
                ""
            } else if column % 2 == 1 {
                "    "
            } else {
                " "
            };
            let width = if gap.is_empty() { 0 } else { widths[column] };
            out.push_str(&format!("{word:<width$}{gap}"));
        }
        out.push('\n');
    }
    (out, losses)
}

fn row(entry: &Entry, lose: &mut dyn FnMut(&str, String)) -> [String; 7] {
    let scheme = &entry.scheme;
    let attrs = Attrs::default();
    let null = || "null".to_owned();
    let size = scheme.pattern.size;
    let (min_bp, max_bp) = match scheme.pattern.frequency {
        Frequency::Share(bounds) => (bounds.min, bounds.max),
        Frequency::Samples(bounds) => {
            let most = attrs.max_nr_accesses();
            let share = |samples: u32| (u64::from(samples.min(most)) * 10_000 / u64::from(most)) as u32;
            let (min, max) = (share(bounds.min), share(bounds.max));
            let what = format!(
                "samples become shares: of {most} in an aggregation, as by default, {} to {} %",
                show_percent(min, 2),
                show_percent(max, 2)
            );
            lose("access", what);
            (min, max)
        }
    };
    let (min_age, max_age) = match scheme.pattern.age {
        Age::Time(bounds) => (bounds.min, bounds.max),
        Age::Aggregations(bounds) => {
            let time = |count: u32| attrs.aggr.saturating_mul(count);
            lose(
                "age",
                format!("aggregations become times, at {} each as by default", show_time(attrs.aggr)),
            );
            (time(bounds.min), if bounds.max == u32::MAX { Duration::MAX } else { time(bounds.max) })
        }
    };
    crate::convert::beyond_a_line(entry, lose);
    [
        if size.min == 0 { null() } else { show_size(size.min) },
        if size.max == u64::MAX { null() } else { show_size(size.max) },
        if min_bp == 0 { null() } else { show_percent(min_bp, 2) },
        if max_bp == 10_000 { null() } else { show_percent(max_bp, 2) },
        if min_age.is_zero() { null() } else { show_time(min_age) },
        if max_age == Duration::MAX { null() } else { show_time(max_age) },
        scheme.action.name().to_owned(),
    ]
}

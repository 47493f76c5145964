//! One parameter over a range of values, all tried in one reading of the recording.

use super::{Throughput, Trial, TrialReport};
use crate::Entry;
use crate::entry::checked;
use crate::error::{Errors, Problem};
use crate::values::{self, Access, Span, Why};
use crate::words::meant;
use isotherm_damon::schemes::{Age, Frequency};
use isotherm_record::Item;
use isotherm_report::Accumulate;
use std::time::Duration;

/// Values that a range is divided into, its ends among them.
const VALUES: usize = 8;

/// Parameters that can be set by name.
const PARAMETERS: [&str; 10] = [
    "min_size",
    "max_size",
    "min_access",
    "max_access",
    "min_age",
    "max_age",
    "apply_interval",
    "quota.size",
    "quota.time",
    "quota.reset_interval",
];

/// Sets a parameter of a scheme, by its name in scheme files.
///
/// # Errors
/// There is no such parameter, or it cannot have the value.
pub fn set(entry: &mut Entry, parameter: &str, value: &str) -> Result<(), Errors> {
    assign(entry, parameter, value).map_err(|why| match why {
        Some(why) => Errors::one(parameter, Problem::Value(why)),
        None => {
            let known = PARAMETERS.join(", ");
            let problem = Problem::UnknownKey { meant: meant(parameter, PARAMETERS), known };
            Errors::one(&parameter.chars().take(60).collect::<String>(), problem)
        }
    })
}

fn assign(entry: &mut Entry, parameter: &str, value: &str) -> Result<(), Option<Why>> {
    let scheme = &mut entry.scheme;
    let pattern = &mut scheme.pattern;
    match parameter {
        "min_size" => pattern.size.min = values::size(value)?,
        "max_size" => pattern.size.max = values::size(value)?,
        "min_access" | "max_access" => {
            let given = values::access(value)?;
            let ends = match pattern.frequency {
                Frequency::Share(b) => (Access::Share(b.min), Access::Share(b.max)),
                Frequency::Samples(b) => (Access::Samples(b.min), Access::Samples(b.max)),
            };
            let (min, max) = if parameter == "min_access" { (given, ends.1) } else { (ends.0, given) };
            pattern.frequency = values::frequency(Some(min), Some(max))?;
        }
        "min_age" | "max_age" => {
            let given = values::span(value)?;
            let ends = match pattern.age {
                Age::Time(b) => (Span::Time(b.min), Span::Time(b.max)),
                Age::Aggregations(b) => (Span::Aggregations(b.min), Span::Aggregations(b.max)),
            };
            let (min, max) = if parameter == "min_age" { (given, ends.1) } else { (ends.0, given) };
            pattern.age = values::age(Some(min), Some(max))?;
        }
        "apply_interval" => scheme.apply_interval = Some(values::time(value)?),
        "quota.size" => scheme.quota.bytes = Some(values::size(value)?),
        "quota.time" => scheme.quota.time = Some(values::time(value)?),
        "quota.reset_interval" => scheme.quota.reset_interval = values::time(value)?,
        _ => return Err(None),
    }
    Ok(())
}

/// Values of a parameter, in steps of equal ratio: sizes, times and shares differ by orders of magnitude.
fn steps(parameter: &str, min: &str, max: &str) -> Result<Vec<String>, Why> {
    let both = |parse: fn(&str) -> Result<u64, Why>| Ok::<_, Why>((parse(min)?, parse(max)?));
    type Show = fn(u64) -> String;
    let (show, (low, high), unit): (Show, (u64, u64), u64) = match parameter {
        "min_size" | "max_size" | "quota.size" => (values::show_size, both(values::size)?, 4096),
        "min_access" | "max_access" => {
            let show = |bp| values::show_share(u32::try_from(bp).unwrap_or(u32::MAX));
            (show, both(|text| values::share(text).map(u64::from))?, 1)
        }
        _ => {
            let show = |ns| values::show_time(Duration::from_nanos(ns));
            let parse =
                |text: &str| values::time(text).map(|t| u64::try_from(t.as_nanos()).unwrap_or(u64::MAX));
            (show, both(parse)?, 1_000_000)
        }
    };
    if low > high {
        return Err(format!("the minimum, {min}, is above the maximum, {max}"));
    }
    let (from, to) = (low.max(unit) as f64, high.max(unit) as f64);
    let mut found: Vec<u64> = (0..VALUES)
        .map(|step| {
            let exact = from * (to / from).powf(step as f64 / (VALUES - 1) as f64);
            // Two digits are enough for what lies between the ends.
            let round = 10f64.powf(exact.log10().floor() - 1.0).max(unit as f64);
            ((exact / round).round() * round) as u64
        })
        .collect();
    if parameter.contains("size") {
        found.iter_mut().for_each(|bytes| *bytes = bytes.next_multiple_of(4096));
    }
    if let (Some(first), true) = (found.first_mut(), VALUES > 1) {
        *first = low;
    }
    if let Some(last) = found.last_mut() {
        *last = high;
    }
    found.dedup();
    Ok(found.into_iter().map(show).collect())
}

/// A trial for each value of a parameter.
#[derive(Debug)]
pub struct Sweep {
    /// The parameter.
    pub parameter: String,
    trials: Vec<(String, Trial)>,
}

impl Sweep {
    /// From `PARAMETER=MIN..MAX`, or `PARAMETER=VALUE,VALUE,...`; the parameter is set in all schemes that have a bound of its kind,
    /// with `NAME.PARAMETER` in the one of that name. `throughputs` as for [`Trial::new`].
    ///
    /// # Errors
    /// No such parameter or scheme, or a value that it cannot have.
    pub fn new(entries: &[Entry], text: &str, throughputs: &[Throughput]) -> Result<Self, Errors> {
        let value = |why: &str| Errors::one("--sweep", Problem::Value(why.to_owned()));
        let example = "write it like min_age=1s..60s or min_age=1s,10s,60s";
        let (whole, list) = text.split_once('=').ok_or_else(|| value(example))?;
        let named = entries.iter().find_map(|entry| {
            let name = entry.name.as_deref()?;
            whole.strip_prefix(name)?.strip_prefix('.').map(|parameter| (Some(name), parameter))
        });
        let (only, parameter) = named.unwrap_or((None, whole.trim()));
        if !PARAMETERS.contains(&parameter) {
            let problem =
                Problem::UnknownKey { meant: meant(parameter, PARAMETERS), known: PARAMETERS.join(", ") };
            return Err(Errors::one(&parameter.chars().take(60).collect::<String>(), problem));
        }
        let wrong = |why: Why| Errors::one(parameter, Problem::Value(why));
        let list: Vec<String> = match list.split_once("..") {
            Some((min, max)) => steps(parameter, min.trim(), max.trim()).map_err(wrong)?,
            None => list.split(',').map(|value| value.trim().to_owned()).take(100).collect(),
        };
        let mut trials = Vec::new();
        for step in list {
            let mut changed = entries.to_vec();
            for entry in changed.iter_mut().filter(|entry| only.is_none() || entry.name.as_deref() == only) {
                set(entry, parameter, &step)?;
            }
            let changed = checked(changed)?;
            trials.push((step, Trial::new(&changed, throughputs).map_err(|error| wrong(error.to_string()))?));
        }
        Ok(Self { parameter: whole.trim().to_owned(), trials })
    }

    /// Takes an item of the recording.
    pub fn item(&mut self, item: &Item) {
        self.trials.iter_mut().for_each(|(_, trial)| trial.item(item));
    }

    /// What came of each value.
    pub fn finish(self) -> Vec<(String, TrialReport)> {
        self.trials.into_iter().map(|(value, trial)| (value, trial.finish())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_has_round_values_between_its_ends() {
        let of = |parameter, min, max| steps(parameter, min, max).unwrap().join(" ");
        assert_eq!(of("min_age", "1s", "60s"), "1s 1800ms 3200ms 5800ms 10s 19s 33s 1m");
        assert_eq!(of("min_size", "4K", "4K"), "4K");
        assert!(of("max_access", "0%", "5%").starts_with("0% "));
        assert!(steps("min_age", "5s", "1s").is_err() && steps("min_age", "5", "1s").is_err());
    }

    #[test]
    fn what_cannot_be_swept_is_named() {
        let entries = crate::presets::preset("prcl").unwrap();
        for (text, part) in [
            ("min_aeg=1s..2s", "did you mean min_age?"),
            ("min_age", "write it like"),
            ("min_age=1s,x", "min_age"),
        ] {
            let error = Sweep::new(&entries, text, &[]).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        assert_eq!(Sweep::new(&entries, "prcl.min_age=1s,2s", &[]).unwrap().trials.len(), 2);
    }
}

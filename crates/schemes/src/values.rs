//! Figures of scheme files: read with their units, written so that they come back exactly.

use isotherm_damon::AddrRange;
use isotherm_damon::schemes::{Age, Bounds, Frequency};
use isotherm_report::units::parse_address_range;
pub(crate) use isotherm_report::units::{parse_size, parse_time};
use std::time::Duration;

/// Why a figure cannot be understood.
pub(crate) type Why = String;

pub(crate) fn size(text: &str) -> Result<u64, Why> {
    parse_size(text).map_err(|error| error.to_string())
}

pub(crate) fn time(text: &str) -> Result<Duration, Why> {
    parse_time(text).map_err(|error| error.to_string())
}

pub(crate) fn addresses(text: &str) -> Result<AddrRange, Why> {
    parse_address_range(text).map_err(|error| error.to_string())
}

/// A decimal number times `10^digits`, exact: `12.5` with 2 digits is 1250. `Err(true)`: it has more digits than that.
fn decimal(text: &str, digits: usize) -> Result<u64, bool> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let is_number = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || !is_number(whole) || !is_number(part) {
        return Err(false);
    }
    let part = part.trim_end_matches('0');
    if part.len() > digits {
        return Err(true);
    }
    let all = format!("{whole}{part:0<digits$}");
    // What is too large for it is more than 100 % in any case.
    Ok(all.parse().unwrap_or(u64::MAX))
}

/// A percentage in units of `10^-digits` percent, not above 100 %.
fn percent(text: &str, digits: usize, what: &str) -> Result<u32, Why> {
    let wrong = |why: &str| format!("{text:?} is not {what}: {why}; write it like 5%");
    let number = text.trim().strip_suffix('%').ok_or_else(|| wrong("it has no % sign"))?.trim();
    let value = decimal(number, digits).map_err(|fine| match fine {
        true => wrong(&format!("it is finer than 0.{:0<1$}1 %", "", digits.saturating_sub(1))),
        false => wrong("it is not a number"),
    })?;
    let most = 100 * 10u64.pow(digits as u32);
    if value > most {
        return Err(wrong("it is more than 100 %, the most there can be"));
    }
    Ok(value as u32)
}

/// A share in basis points.
pub(crate) fn share(text: &str) -> Result<u32, Why> {
    percent(text, 2, "a share")
}

/// A share in permil.
pub(crate) fn permil(text: &str) -> Result<u32, Why> {
    percent(text, 1, "a share")
}

/// How often memory is accessed: a share of the sampling intervals, or their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Share(u32),
    Samples(u32),
}

pub(crate) fn access(text: &str) -> Result<Access, Why> {
    let text = text.trim();
    if let Some(number) = text.strip_suffix("samples").or(text.strip_suffix("sample")) {
        let number = number.trim();
        return number.parse().map(Access::Samples).map_err(|_| {
            format!("{text:?} is not a number of samples: {number:?} is not a whole number; write it like 3 samples")
        });
    }
    if text == "0" {
        return Ok(Access::Share(0));
    }
    if text.parse::<f64>().is_ok() {
        return Err(format!(
            "{text:?} has no unit: % of the sampling intervals, or samples; write it like 5% or 3 samples"
        ));
    }
    percent(text, 2, "an access frequency").map(Access::Share)
}

/// For how long: time, or aggregation intervals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Span {
    Time(Duration),
    Aggregations(u32),
}

pub(crate) fn span(text: &str) -> Result<Span, Why> {
    let text = text.trim();
    if let Some(number) = text.strip_suffix("aggregations").or(text.strip_suffix("aggregation")) {
        let number = number.trim();
        return number.parse().map(Span::Aggregations).map_err(|_| {
            format!("{text:?} is not a number of aggregations: {number:?} is not a whole number; write it like 30 aggregations")
        });
    }
    time(text).map(Span::Time)
}

/// Both bounds of the frequency, of which none, one or both are given.
pub(crate) fn frequency(min: Option<Access>, max: Option<Access>) -> Result<Frequency, Why> {
    use Access::{Samples, Share};
    // 0 is the same in both units.
    let (min, max) = match (min, max) {
        (Some(Share(0)), Some(Samples(max))) => (Some(Samples(0)), Some(Samples(max))),
        (Some(Samples(min)), Some(Share(0))) => (Some(Samples(min)), Some(Samples(0))),
        other => other,
    };
    match (min, max) {
        (Some(Samples(min)), Some(Samples(max))) => Ok(Frequency::Samples(Bounds::new(min, max))),
        (Some(Samples(min)), None) => Ok(Frequency::Samples(Bounds::new(min, u32::MAX))),
        (None, Some(Samples(max))) => Ok(Frequency::Samples(Bounds::new(0, max))),
        (Some(Share(min)), Some(Share(max))) => Ok(Frequency::Share(Bounds::new(min, max))),
        (Some(Share(min)), None) => Ok(Frequency::Share(Bounds::new(min, 10_000))),
        (None, Some(Share(max))) => Ok(Frequency::Share(Bounds::new(0, max))),
        (None, None) => Ok(Frequency::Share(Bounds::new(0, 10_000))),
        _ => Err("one bound is in % and the other in samples; write both in one unit".to_owned()),
    }
}

/// Both bounds of the age.
pub(crate) fn age(min: Option<Span>, max: Option<Span>) -> Result<Age, Why> {
    use Span::{Aggregations, Time};
    let (min, max) = match (min, max) {
        (Some(Time(Duration::ZERO)), Some(Aggregations(max))) => {
            (Some(Aggregations(0)), Some(Aggregations(max)))
        }
        other => other,
    };
    match (min, max) {
        (Some(Aggregations(min)), Some(Aggregations(max))) => Ok(Age::Aggregations(Bounds::new(min, max))),
        (Some(Aggregations(min)), None) => Ok(Age::Aggregations(Bounds::new(min, u32::MAX))),
        (None, Some(Aggregations(max))) => Ok(Age::Aggregations(Bounds::new(0, max))),
        (Some(Time(min)), Some(Time(max))) => Ok(Age::Time(Bounds::new(min, max))),
        (Some(Time(min)), None) => Ok(Age::Time(Bounds::new(min, Duration::MAX))),
        (None, Some(Time(max))) => Ok(Age::Time(Bounds::new(Duration::ZERO, max))),
        (None, None) => Ok(Age::Time(Bounds::new(Duration::ZERO, Duration::MAX))),
        _ => Err("one bound is a time and the other in aggregations; write both in one unit".to_owned()),
    }
}

/// `MIN..MAX`; either end may be left out, or be called `min` or `max`. What stands behind the range after a space is the unit of
/// both ends.
pub(crate) fn range(text: &str) -> Result<(Option<String>, Option<String>), Why> {
    let Some((min, max)) = text.split_once("..") else {
        return Err(format!(
            "{text:?} is not a range; write {} for at least that, {} for at most",
            range_example(text, true),
            range_example(text, false)
        ));
    };
    let (mut min, max) = (min.trim().to_owned(), max.trim().to_owned());
    let unit = max.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.').trim().to_owned();
    let bare = !min.is_empty() && min.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    if bare && (unit == "%" || unit.starts_with("sample") || unit.starts_with("aggregation")) {
        min = format!("{min} {unit}");
    }
    let open = |text: String, word: &str| match text.as_str() {
        "" | "null" => None,
        other if other == word => None,
        _ => Some(text),
    };
    Ok((open(min, "min"), open(max, "max")))
}

fn range_example(text: &str, least: bool) -> String {
    let text = if text.len() > 20 { "VALUE" } else { text.trim() };
    if least { format!("\"{text}..\"") } else { format!("\"..{text}\"") }
}

/// Something in an interval: `100M/s` is 100M and a second.
pub(crate) fn rate(text: &str) -> Result<(&str, Option<Duration>), Why> {
    let Some((value, every)) = text.split_once('/') else { return Ok((text, None)) };
    let every = every.trim();
    let with_number =
        if every.starts_with(|c: char| c.is_ascii_digit()) { every.to_owned() } else { format!("1{every}") };
    match time(&with_number) {
        Ok(every) if !every.is_zero() => Ok((value, Some(every))),
        _ => Err(format!("{every:?} behind the / is not an interval; write it like 100M/s or 1G/10s")),
    }
}

/// Bytes with the largest unit that says them exactly.
pub(crate) fn show_size(bytes: u64) -> String {
    let units = [(60, "E"), (50, "P"), (40, "T"), (30, "G"), (20, "M"), (10, "K")];
    let unit = units.into_iter().find(|(bits, _)| bytes != 0 && bytes.is_multiple_of(1u64 << bits));
    unit.map_or_else(|| bytes.to_string(), |(bits, unit)| format!("{}{unit}", bytes >> bits))
}

/// A time with the largest unit that says it exactly.
pub(crate) fn show_time(time: Duration) -> String {
    let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let units = [
        (86_400_000_000_000, "d"),
        (3_600_000_000_000, "h"),
        (60_000_000_000, "m"),
        (1_000_000_000, "s"),
        (1_000_000, "ms"),
        (1_000, "us"),
    ];
    let unit = units.into_iter().find(|(factor, _)| ns != 0 && ns.is_multiple_of(*factor));
    unit.map_or_else(
        || if ns == 0 { "0s".to_owned() } else { format!("{ns}ns") },
        |(factor, unit)| format!("{}{unit}", ns / factor),
    )
}

/// A share of `value` parts, of which 100 % has `100 * 10^digits`, without a sign.
pub(crate) fn show_percent(value: u32, digits: u32) -> String {
    let unit = 10u32.pow(digits);
    let (whole, part) = (value / unit, value % unit);
    if part == 0 {
        return whole.to_string();
    }
    let part = format!("{part:0>0$}", digits as usize);
    format!("{whole}.{}", part.trim_end_matches('0'))
}

/// Basis points as `5%`.
pub(crate) fn show_share(bp: u32) -> String {
    format!("{}%", show_percent(bp, 2))
}

/// Permil as `5%`.
pub(crate) fn show_permil(permil: u32) -> String {
    format!("{}%", show_percent(permil, 1))
}

/// A string of TOML and of JSON: basic strings are the same in both.
pub(crate) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_exact_and_bounded() {
        for (text, bp) in [("5%", 500), ("0.05 %", 5), ("100%", 10_000), ("12.50%", 1250), ("0%", 0)] {
            assert_eq!(share(text), Ok(bp), "{text}");
        }
        assert_eq!((permil("20%"), permil("0.5%"), show_permil(5)), (Ok(200), Ok(5), "0.5%".to_owned()));
        for (text, why) in [
            ("5", "no % sign"),
            ("101%", "more than 100 %"),
            ("99999999999999999999999%", "more than 100 %"),
            ("0.001%", "finer than 0.01 %"),
            ("x%", "not a number"),
            ("-1%", "not a number"),
        ] {
            let error = share(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
        assert!(permil("0.05%").unwrap_err().contains("finer than 0.1 %"));
    }

    #[test]
    fn ranges_have_open_ends_and_one_unit() {
        let of = |text: &str| range(text).map(|(a, b)| (a.unwrap_or_default(), b.unwrap_or_default()));
        let pair = |a: &str, b: &str| Ok((a.to_owned(), b.to_owned()));
        assert_eq!(of("4K.."), pair("4K", ""));
        assert_eq!(of("..5%"), pair("", "5%"));
        assert_eq!(of("4K..max"), pair("4K", ""));
        assert_eq!(of("min .. 2M"), pair("", "2M"));
        assert_eq!(of("1..3 samples"), pair("1 samples", "3 samples"));
        assert!(of("5s").unwrap_err().contains("\"5s..\" for at least"));
    }

    #[test]
    fn what_is_written_is_read_exactly() {
        for bytes in [0, 1, 1023, 4096, 128 << 20, 3 << 40, u64::MAX, 1 << 63] {
            assert_eq!(size(&show_size(bytes)), Ok(bytes));
        }
        for ns in [0, 1, 999, 5_000_000, 120_000_000_000, 86_400_000_000_000, u64::MAX] {
            let time_ = Duration::from_nanos(ns);
            assert_eq!(time(&show_time(time_)), Ok(time_), "{}", show_time(time_));
        }
        assert_eq!(
            (show_size(128 << 20), show_time(Duration::from_secs(90))),
            ("128M".to_owned(), "90s".to_owned())
        );
        assert_eq!(rate("100M/s"), Ok(("100M", Some(Duration::from_secs(1)))));
        assert_eq!(rate("1G/10s"), Ok(("1G", Some(Duration::from_secs(10)))));
        assert!(rate("1G/x").is_err() && rate("1G/0s").is_err());
    }
}

//! Figures with their units, from people.

use isotherm_damon::AddrRange;
use std::time::Duration;

/// A figure that cannot be understood, with what would be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {what}: {why}; write it like {example}")]
pub struct UnitError {
    text: String,
    what: &'static str,
    why: String,
    example: &'static str,
}

/// An access rate as an argument: absolute, or relative to the highest rate that the sampling interval can show.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rate {
    /// Accesses a second.
    Hz(f64),
    /// Share of the highest possible rate, 0..=1.
    Share(f64),
}

/// An interval with both ends included; `None` is no bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds<T> {
    /// Lowest value inside.
    pub min: Option<T>,
    /// Highest value inside.
    pub max: Option<T>,
}

impl<T> Default for Bounds<T> {
    fn default() -> Self {
        Self { min: None, max: None }
    }
}

impl<T: PartialOrd> Bounds<T> {
    /// Whether `value` lies inside.
    pub fn contains(&self, value: &T) -> bool {
        self.min.as_ref().is_none_or(|min| min <= value) && self.max.as_ref().is_none_or(|max| value <= max)
    }

    /// Whether every value lies inside.
    pub fn is_open(&self) -> bool {
        self.min.is_none() && self.max.is_none()
    }
}

/// A kind of figure, for error messages.
#[derive(Clone, Copy)]
struct Kind {
    what: &'static str,
    example: &'static str,
}

impl Kind {
    fn error(self, text: &str, why: impl Into<String>) -> UnitError {
        UnitError { text: text.to_owned(), what: self.what, why: why.into(), example: self.example }
    }

    /// What begins with anything else than a number.
    fn without_number(self, text: &str) -> UnitError {
        let negative = text.trim_start().starts_with('-');
        self.error(text, if negative { "it is negative" } else { "it does not begin with a number" })
    }
}

const SIZE: Kind = Kind { what: "a size", example: "4K, 2M or 1.5 GiB" };
const TIME: Kind = Kind { what: "a time", example: "5ms, 1s or 2m" };
const SHARE: Kind = Kind { what: "a share", example: "0.3%" };
const RATE: Kind = Kind { what: "an access rate", example: "200Hz or 5%" };
const ADDRESS: Kind = Kind { what: "an address", example: "0x7f1200000000" };
const ADDRESS_RANGE: Kind = Kind { what: "an address range", example: "0x7f1200000000-0x7f1200200000" };
const BOUNDS: Kind = Kind { what: "a range", example: "MIN..MAX, MIN.. or ..MAX" };

/// Splits `2.5MiB` into `2.5` and `MiB`.
fn split_number(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    (number, unit.trim())
}

/// `number` times `factor`, exact for whole numbers, rounded for decimals.
fn scaled(kind: Kind, text: &str, number: &str, factor: u64) -> Result<u64, UnitError> {
    if number.is_empty() {
        return Err(kind.without_number(text));
    }
    let too_large = || kind.error(text, "it is too large");
    if !number.contains('.') {
        let value: u64 = number.parse().map_err(|_| too_large())?;
        return value.checked_mul(factor).ok_or_else(too_large);
    }
    let value: f64 = number.parse().map_err(|_| kind.error(text, format!("{number:?} is not a number")))?;
    let product = (value * factor as f64).round();
    if product < u64::MAX as f64 { Ok(product as u64) } else { Err(too_large()) }
}

/// Bytes: a number with an optional binary unit, `512`, `4K`, `2M`, `1.5 GiB`, `1T`, in any case. Units are powers of
/// 1024 with or without the `i`, as in the kernel's and the seeds' files.
///
/// # Errors
/// No number, an unknown unit, or more than `u64::MAX` bytes.
pub fn parse_size(text: &str) -> Result<u64, UnitError> {
    let (number, unit) = split_number(text.trim());
    if number.is_empty() {
        return Err(SIZE.without_number(text));
    }
    let lower = unit.to_ascii_lowercase();
    let letter = lower.strip_suffix("ib").or(lower.strip_suffix('b')).unwrap_or(&lower);
    let factor = match letter {
        "" if lower != "ib" => 1,
        "k" => 1 << 10,
        "m" => 1 << 20,
        "g" => 1 << 30,
        "t" => 1 << 40,
        "p" => 1 << 50,
        "e" => 1 << 60,
        _ => return Err(SIZE.error(text, format!("the unit {unit:?} is not one of B K M G T P E"))),
    };
    scaled(SIZE, text, number, factor)
}

/// A time: numbers with the units `ns us ms s m h d` (also `min`), one or several of them: `5ms`, `1.5s`, `3m 20s`.
/// Only 0 goes without a unit.
///
/// # Errors
/// No number, a missing or unknown unit, or more than 584 years.
pub fn parse_time(text: &str) -> Result<Duration, UnitError> {
    let mut rest = text.trim();
    if rest == "0" {
        return Ok(Duration::ZERO);
    }
    let mut total: u64 = 0;
    loop {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, after) = rest.split_at(end);
        let after = after.trim_start();
        let unit_end = after.find(|c: char| !c.is_alphabetic()).unwrap_or(after.len());
        let (unit, next) = after.split_at(unit_end);
        let factor = match unit {
            "ns" => 1,
            "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" | "min" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            "d" => 86_400_000_000_000,
            "" if !number.is_empty() => return Err(TIME.error(text, "it has no unit (ns us ms s m h d)")),
            "" => return Err(TIME.without_number(text)),
            _ => return Err(TIME.error(text, format!("the unit {unit:?} is not one of ns us ms s m h d"))),
        };
        total = total
            .checked_add(scaled(TIME, text, number, factor)?)
            .ok_or_else(|| TIME.error(text, "it is too large"))?;
        rest = next.trim_start();
        if rest.is_empty() {
            return Ok(Duration::from_nanos(total));
        }
    }
}

fn decimal(kind: Kind, text: &str, number: &str) -> Result<f64, UnitError> {
    match number.trim().parse::<f64>() {
        Ok(value) if value.is_finite() && value >= 0.0 => Ok(value),
        Ok(_) => Err(kind.error(text, "it is negative or not finite")),
        Err(_) => Err(kind.error(text, format!("{:?} is not a number", number.trim()))),
    }
}

/// A share of a whole in percent: `0.3%` is 0.003. The sign is required, since a bare `0.3` could mean either; only 0
/// goes without. May exceed 1 (`150%` of one CPU).
///
/// # Errors
/// No number, no `%`, or a negative number.
pub fn parse_share(text: &str) -> Result<f64, UnitError> {
    let trimmed = text.trim();
    if trimmed == "0" {
        return Ok(0.0);
    }
    let number = trimmed.strip_suffix('%').ok_or_else(|| SHARE.error(text, "it has no % sign"))?;
    Ok(decimal(SHARE, text, number)? / 100.0)
}

/// An access rate: `200Hz`, `1.5 kHz`, or a percentage of the highest possible rate, `5%`.
///
/// # Errors
/// No number, no unit, a negative number, or more than 100 %.
pub fn parse_rate(text: &str) -> Result<Rate, UnitError> {
    let lower = text.trim().to_ascii_lowercase();
    if lower == "0" {
        return Ok(Rate::Hz(0.0));
    }
    if let Some(number) = lower.strip_suffix('%') {
        let share = decimal(RATE, text, number)? / 100.0;
        return if share <= 1.0 {
            Ok(Rate::Share(share))
        } else {
            Err(RATE.error(text, "it is more than 100 %"))
        };
    }
    let number = lower.strip_suffix("hz").ok_or_else(|| RATE.error(text, "it has no unit (Hz, kHz or %)"))?;
    let (number, factor) = match number.trim_end() {
        n if n.ends_with('k') => (&n[..n.len() - 1], 1e3),
        n if n.ends_with('m') => (&n[..n.len() - 1], 1e6),
        n => (n, 1.0),
    };
    Ok(Rate::Hz(decimal(RATE, text, number)? * factor))
}

/// A virtual or physical address in hexadecimal, with or without `0x` (as in `/proc/PID/maps`).
///
/// # Errors
/// Anything else.
pub fn parse_address(text: &str) -> Result<u64, UnitError> {
    let trimmed = text.trim();
    let digits = trimmed.strip_prefix("0x").or(trimmed.strip_prefix("0X")).unwrap_or(trimmed);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err(ADDRESS.error(text, "it is not hexadecimal"));
    }
    u64::from_str_radix(digits, 16).map_err(|_| ADDRESS.error(text, "it has more than 64 bits"))
}

/// A range of addresses: `START-END` with the end excluded, or `START+SIZE`; hexadecimal addresses, a size as in
/// [`parse_size`].
///
/// # Errors
/// Not two addresses, or an end that does not lie past the start.
pub fn parse_address_range(text: &str) -> Result<AddrRange, UnitError> {
    let range = if let Some((start, end)) = text.split_once('-') {
        AddrRange::new(parse_address(start)?, parse_address(end)?)
    } else if let Some((start, size)) = text.split_once('+') {
        let start = parse_address(start)?;
        let end = start.checked_add(parse_size(size)?);
        AddrRange::new(start, end.ok_or_else(|| ADDRESS_RANGE.error(text, "it ends past the last address"))?)
    } else {
        return Err(ADDRESS_RANGE.error(text, "it has no end"));
    };
    if range.is_empty() {
        Err(ADDRESS_RANGE.error(text, "its end does not lie past its start"))
    } else {
        Ok(range)
    }
}

/// A bound of a pattern: `null` (the seeds' word), or what `parse` takes.
///
/// # Errors
/// Those of `parse`.
pub fn parse_bound<T>(
    text: &str,
    parse: impl Fn(&str) -> Result<T, UnitError>,
) -> Result<Option<T>, UnitError> {
    match text.trim() {
        "null" => Ok(None),
        other => parse(other).map(Some),
    }
}

/// Bounds for a filter: `MIN..MAX`, `MIN..`, `..MAX`, either end also `null`; a single value is both ends.
///
/// # Errors
/// Those of `parse`, or a minimum above the maximum.
pub fn parse_bounds<T: PartialOrd + Clone>(
    text: &str,
    parse: impl Fn(&str) -> Result<T, UnitError>,
) -> Result<Bounds<T>, UnitError> {
    let end = |part: &str| match part.trim() {
        "" => Ok(None),
        part => parse_bound(part, &parse),
    };
    let bounds = match text.split_once("..") {
        Some((min, max)) => Bounds { min: end(min)?, max: end(max)? },
        None => {
            let value = parse_bound(text, &parse)?;
            Bounds { min: value.clone(), max: value }
        }
    };
    match (&bounds.min, &bounds.max) {
        (Some(min), Some(max)) if min > max => Err(BOUNDS.error(text, "the minimum is above the maximum")),
        _ => Ok(bounds),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::{format_size, format_time};
    use proptest::prelude::*;

    #[test]
    fn sizes_as_the_seeds_write_them() {
        for (text, bytes) in [
            ("0", 0),
            ("4K", 4096),
            ("2M", 2 << 20),
            ("2 MiB", 2 << 20),
            ("1.5g", 3 << 29),
            ("512B", 512),
            ("4kB", 4096),
            ("1e", 1 << 60),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in [
            "",
            "K",
            "-4K",
            "4X",
            "4iB",
            "1.2.3M",
            "16E",
            "99999999999999999999",
            "4 K M",
            ".",
            "18446744073709551615.9",
        ] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn times_as_the_seeds_write_them() {
        for (text, ns) in [
            ("5ms", 5_000_000),
            ("1s", 1_000_000_000),
            ("0", 0),
            ("1.5 s", 1_500_000_000),
            ("3m 20s", 200_000_000_000),
            ("3m20s", 200_000_000_000),
            ("100us", 100_000),
            ("1d", 86_400_000_000_000),
        ] {
            assert_eq!(parse_time(text), Ok(Duration::from_nanos(ns)), "{text}");
        }
        for text in ["", "5", "ms", "5 parsecs", "-1s", "1s 5", "300000d", "9".repeat(30).as_str(), "1..2s"] {
            assert!(parse_time(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_bare_number_of_seconds_or_percent_names_the_remedy() {
        let message = parse_time("10").unwrap_err().to_string();
        assert!(message.contains("no unit") && message.contains("1s"), "{message}");
        let message = parse_share("0.3").unwrap_err().to_string();
        assert!(message.contains('%'), "{message}");
    }

    #[test]
    fn what_is_negative_is_said_to_be() {
        for error in
            [parse_size("-4K").unwrap_err(), parse_time("-1s").unwrap_err(), parse_time(" -5").unwrap_err()]
        {
            assert!(error.to_string().contains("it is negative"), "{error}");
        }
        for error in
            [parse_size("K").unwrap_err(), parse_time("ms").unwrap_err(), parse_size("").unwrap_err()]
        {
            assert!(error.to_string().contains("does not begin with a number"), "{error}");
        }
    }

    #[test]
    fn shares_and_rates() {
        assert!((parse_share("0.3%").unwrap() - 0.003).abs() < 1e-12);
        assert_eq!(parse_rate("200Hz"), Ok(Rate::Hz(200.0)));
        assert_eq!(parse_rate("1.5 kHz"), Ok(Rate::Hz(1500.0)));
        assert_eq!(parse_rate("5 %"), Ok(Rate::Share(0.05)));
        for text in ["200", "-1Hz", "101%", "infHz", "nan%", "Hz", "%"] {
            assert!(parse_rate(text).is_err(), "{text}");
        }
    }

    #[test]
    fn addresses_and_their_ranges() {
        assert_eq!(parse_address("0x7f00"), Ok(0x7f00));
        assert_eq!(parse_address_range("1000-0x3000"), Ok(AddrRange::new(0x1000, 0x3000)));
        assert_eq!(parse_address_range("0x1000+8K"), Ok(AddrRange::new(0x1000, 0x3000)));
        for text in [
            "1000",
            "3000-1000",
            "1000-1000",
            "x-y",
            "0xffffffffffffffff+2K",
            "+",
            "-",
            "1234567890abcdef0-f",
        ] {
            assert!(parse_address_range(text).is_err(), "{text}");
        }
    }

    #[test]
    fn bounds_with_and_without_ends() {
        assert_eq!(parse_bounds("4K..2M", parse_size), Ok(Bounds { min: Some(4096), max: Some(2 << 20) }));
        assert_eq!(parse_bounds("4K..", parse_size), Ok(Bounds { min: Some(4096), max: None }));
        assert_eq!(
            parse_bounds("null..1s", parse_time),
            Ok(Bounds { min: None, max: Some(Duration::from_secs(1)) })
        );
        assert_eq!(parse_bounds("4K", parse_size), Ok(Bounds { min: Some(4096), max: Some(4096) }));
        assert_eq!(parse_bound("null", parse_size), Ok(None));
        assert!(parse_bounds("2M..4K", parse_size).is_err());
    }

    proptest! {
        #[test]
        fn nothing_makes_a_parser_panic(text in "\\PC{0,24}") {
            let _ = (parse_size(&text), parse_time(&text), parse_share(&text), parse_rate(&text));
            let _ = (parse_address_range(&text), parse_bounds(&text, parse_size));
        }

        #[test]
        fn what_is_printed_can_be_given_back(bytes in 0u64..1 << 60, ns in 0u64..1 << 60) {
            let near = |a: u64, b: u64| (a as f64 - b as f64).abs() <= 0.06 * b as f64;
            prop_assert!(near(parse_size(&format_size(bytes)).unwrap(), bytes));
            prop_assert!(near(parse_time(&format_time(ns)).unwrap().as_nanos() as u64, ns));
        }
    }
}

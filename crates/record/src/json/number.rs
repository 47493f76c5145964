//! Numbers as damo writes them: plain, or for people.

use serde::de::{Deserialize, Deserializer, Error, Visitor};
use std::fmt;

/// A number in a file of damo's.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) enum Number {
    /// `null`, or no such key.
    #[default]
    Missing,
    Int(i128),
    Float(f64),
    /// With commas, a unit, or `max`.
    Text(String),
}

const TIMES_NS: [(&str, f64); 7] =
    [("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9), ("m", 60e9), ("h", 3600e9), ("d", 86_400e9)];
const SIZES: &str = "KMGTPE";

impl Number {
    /// A plain count, also a percentage (`12.5 %`).
    pub(super) fn count(&self) -> Option<f64> {
        match self {
            Self::Missing => None,
            Self::Int(n) => Some(*n as f64),
            Self::Float(n) => Some(*n),
            Self::Text(text) => plain(text.trim_end_matches('%')),
        }
    }

    /// An address or a size in bytes; `K`, `KB` and `KiB` are all 1024. Exact for integers.
    pub(super) fn bytes(&self) -> Option<u64> {
        match self {
            Self::Text(text) => {
                if let Ok(exact) = without_commas(text).parse() {
                    return Some(exact);
                }
                let text = text.trim();
                let number = text.strip_suffix('B').unwrap_or(text);
                let number = number.strip_suffix('i').unwrap_or(number);
                let power = number.chars().next_back().and_then(|unit| SIZES.find(unit));
                match power {
                    Some(power) => {
                        let factor = 1024_f64.powi(i32::try_from(power).ok()? + 1);
                        whole(plain(&number[..number.len() - 1])? * factor)
                    }
                    None => whole(plain(number)?),
                }
            }
            other => other.exact(),
        }
    }

    /// A time in ns; a number without a unit counts `unit_ns` each.
    pub(super) fn time_ns(&self, unit_ns: u64) -> Option<u64> {
        match self {
            Self::Int(n) => u64::try_from(n.checked_mul(i128::from(unit_ns))?).ok(),
            Self::Text(text) => {
                plain(text).map_or_else(|| times(text), |n| Some(n * unit_ns as f64)).and_then(whole)
            }
            other => whole(other.count()? * unit_ns as f64),
        }
    }

    fn exact(&self) -> Option<u64> {
        match self {
            Self::Int(n) => u64::try_from(*n).ok(),
            other => whole(other.count()?),
        }
    }
}

/// The nearest whole number that is one.
fn whole(n: f64) -> Option<u64> {
    // The cast saturates, which is right for damo's `max`.
    (n >= 0.0).then(|| n.round() as u64)
}

fn without_commas(text: &str) -> String {
    text.chars().filter(|&c| c != ',' && !c.is_whitespace()).collect()
}

/// A number without a unit.
fn plain(text: &str) -> Option<f64> {
    match text.trim() {
        "max" => Some(u64::MAX as f64),
        "min" => Some(0.0),
        text => without_commas(text).parse().ok().filter(|n: &f64| n.is_finite()),
    }
}

/// Times with units, in ns: `5 ms`, `1 m 20 s`.
fn times(text: &str) -> Option<f64> {
    let mut total = 0.0;
    let mut rest = text.trim();
    while !rest.is_empty() {
        let digits = rest.find(|c: char| c.is_ascii_alphabetic())?;
        let (number, after) = rest.split_at(digits);
        let letters = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
        let (unit, next) = after.split_at(letters);
        let factor = TIMES_NS.iter().find(|(name, _)| *name == unit)?.1;
        total += plain(number)? * factor;
        rest = next.trim_start();
    }
    Some(total)
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NumberVisitor)
    }
}

struct NumberVisitor;

impl Visitor<'_> for NumberVisitor {
    type Value = Number;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number, a string that holds one, or null")
    }

    fn visit_u64<E: Error>(self, n: u64) -> Result<Number, E> {
        Ok(Number::Int(n.into()))
    }

    fn visit_i64<E: Error>(self, n: i64) -> Result<Number, E> {
        Ok(Number::Int(n.into()))
    }

    fn visit_f64<E: Error>(self, n: f64) -> Result<Number, E> {
        Ok(Number::Float(n))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Number, E> {
        Ok(Number::Text(text.to_owned()))
    }

    fn visit_unit<E: Error>(self) -> Result<Number, E> {
        Ok(Number::Missing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(json: &str) -> Number {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn every_way_to_write_a_number() {
        for (json, bytes) in [
            ("140731667070976", 140_731_667_070_976),
            ("\"140,731,667,070,976\"", 140_731_667_070_976),
            ("18446744073709551615", u64::MAX),
            ("\"18,446,744,073,709,551,615\"", u64::MAX),
            ("\"max\"", u64::MAX),
            ("4096.0", 4096),
            ("\"4K\"", 4096),
            ("\"1.500 MiB\"", 1_572_864),
            ("\"2 GB\"", 2 << 30),
            ("\"12 B\"", 12),
        ] {
            assert_eq!(number(json).bytes(), Some(bytes), "{json}");
        }
        for (json, ns) in [
            ("5000", 5_000_000),
            ("5000.0", 5_000_000),
            ("\"5,000\"", 5_000_000),
            ("\"5 ms\"", 5_000_000),
            ("\"100ms\"", 100_000_000),
            ("\"1 m 20 s\"", 80_000_000_000),
            ("\"1.5 s\"", 1_500_000_000),
        ] {
            assert_eq!(number(json).time_ns(1000), Some(ns), "{json} us");
        }
        assert_eq!(number("\"12.5 %\"").count(), Some(12.5));
        assert_eq!(number("null"), Number::Missing);
    }

    #[test]
    fn what_is_no_number_is_none() {
        for json in ["\"\"", "\"K\"", "\"-1\"", "-1", "\"12 parsecs\"", "\"nan\"", "\"é\""] {
            assert_eq!(number(json).bytes(), None, "{json}");
        }
        for json in ["\"ms\"", "\"5 parsecs\"", "-5", "\"5 ms 6\"", "\"é\""] {
            assert_eq!(number(json).time_ns(1), None, "{json}");
        }
    }
}

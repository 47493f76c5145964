//! Sizes, times and rates as people write them: `10M`, `5s`, `200Hz`.

use serde::Deserialize;
use std::str::FromStr;

/// Why a quantity cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no {what}; write it like {example}")]
pub struct QuantityError {
    text: String,
    what: &'static str,
    example: &'static str,
}

/// What a TOML file may hold where a quantity stands: a bare number or a number with its unit.
#[derive(Deserialize)]
#[serde(untagged)]
enum Raw {
    Int(i64),
    Float(f64),
    Text(String),
}

impl Raw {
    fn into_text(self) -> String {
        match self {
            Self::Int(n) => n.to_string(),
            Self::Float(n) => n.to_string(),
            Self::Text(s) => s,
        }
    }
}

/// Splits `1.5 G` into 1.5 and `G`; `None` for what does not begin with a finite number >= 0.
fn number_and_unit(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(digits)?;
    let number: f64 = number.parse().ok()?;
    number.is_finite().then_some((number, unit.trim()))
}

/// A number of bytes. Units are powers of 1024: K, M, G, T, with or without `iB`/`B`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "Raw")]
pub struct Size(pub u64);

impl FromStr for Size {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let error = || QuantityError { text: text.to_owned(), what: "size", example: "4K, 10M or 1.5G" };
        let (number, unit) = number_and_unit(text).ok_or_else(error)?;
        let unit = unit.trim_end_matches("iB").trim_end_matches('B');
        let shift = match unit {
            "" => 0,
            "K" | "k" => 10,
            "M" | "m" => 20,
            "G" | "g" => 30,
            "T" | "t" => 40,
            _ => return Err(error()),
        };
        let bytes = number * f64::from(1u32 << shift.min(30)) * f64::from(1u32 << (shift - shift.min(30)));
        // 2^56 bytes are more than any address space this can run in; below it f64 is exact to a few bytes.
        if bytes >= (1u64 << 56) as f64 { Err(error()) } else { Ok(Self(bytes as u64)) }
    }
}

impl TryFrom<Raw> for Size {
    type Error = QuantityError;

    fn try_from(raw: Raw) -> Result<Self, QuantityError> {
        raw.into_text().parse()
    }
}

/// A length of time in nanoseconds. Units: ns, us, ms, s, m (minutes), h; a bare number is seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "Raw")]
pub struct Span(pub u64);

impl FromStr for Span {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let error = || QuantityError { text: text.to_owned(), what: "time", example: "200ms, 5s or 1m" };
        let (number, unit) = number_and_unit(text).ok_or_else(error)?;
        let factor = match unit {
            "ns" => 1.0,
            "us" => 1e3,
            "ms" => 1e6,
            "" | "s" => 1e9,
            "m" => 60e9,
            "h" => 3600e9,
            _ => return Err(error()),
        };
        let ns = number * factor;
        // A year: longer runs are typing errors, and sums of such times cannot overflow.
        if ns > 366.0 * 86_400e9 { Err(error()) } else { Ok(Self(ns.round() as u64)) }
    }
}

impl TryFrom<Raw> for Span {
    type Error = QuantityError;

    fn try_from(raw: Raw) -> Result<Self, QuantityError> {
        raw.into_text().parse()
    }
}

/// How often each page of a range is accessed.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(try_from = "Raw")]
pub enum Rate {
    /// So many accesses a second, 0 < rate <= 1 MHz.
    Hz(f64),
    /// As fast as possible, without sleeping.
    Max,
}

impl FromStr for Rate {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let error = || QuantityError {
            text: text.to_owned(),
            what: "rate",
            example: "200Hz, 0.5Hz, 0 or max (at most 1000000Hz)",
        };
        if text.trim() == "max" {
            return Ok(Self::Max);
        }
        let (number, unit) = number_and_unit(text).ok_or_else(error)?;
        if (unit.is_empty() || unit.eq_ignore_ascii_case("hz")) && number <= 1e6 {
            Ok(Self::Hz(number))
        } else {
            Err(error())
        }
    }
}

impl TryFrom<Raw> for Rate {
    type Error = QuantityError;

    fn try_from(raw: Raw) -> Result<Self, QuantityError> {
        raw.into_text().parse()
    }
}

/// How fast a stream goes through its range.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(try_from = "Raw")]
pub enum Speed {
    /// So many bytes a second, above 0, spread evenly.
    Bytes(u64),
    /// As fast as possible, without sleeping.
    Max,
}

impl FromStr for Speed {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        if text.trim() == "max" {
            return Ok(Self::Max);
        }
        match text.trim().trim_end_matches("/s").parse() {
            Ok(Size(bytes)) if bytes > 0 => Ok(Self::Bytes(bytes)),
            _ => Err(QuantityError {
                text: text.to_owned(),
                what: "speed",
                example: "100M, 2G/s or max (bytes a second)",
            }),
        }
    }
}

impl TryFrom<Raw> for Speed {
    type Error = QuantityError;

    fn try_from(raw: Raw) -> Result<Self, QuantityError> {
        raw.into_text().parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_times_and_rates_read_as_written() {
        for (text, bytes) in
            [("0", 0), ("4096", 4096), ("4K", 4096), ("10M", 10 << 20), ("1.5G", 3 << 29), ("2 TiB", 2 << 40)]
        {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
        for (text, ns) in [("5s", 5_000_000_000), ("0.5", 500_000_000), ("20 ms", 20_000_000), ("7us", 7000)]
        {
            assert_eq!(text.parse(), Ok(Span(ns)), "{text}");
        }
        for (text, rate) in [("200Hz", Rate::Hz(200.0)), ("0", Rate::Hz(0.0)), ("max", Rate::Max)] {
            assert_eq!(text.parse(), Ok(rate), "{text}");
        }
        for (text, speed) in
            [("100M", Speed::Bytes(100 << 20)), ("2G/s", Speed::Bytes(2 << 30)), ("max", Speed::Max)]
        {
            assert_eq!(text.parse(), Ok(speed), "{text}");
        }
    }

    #[test]
    fn nonsense_is_refused_with_an_example() {
        for text in ["", "M", "-1", "1X", "1e3", "99999999T", "1..2"] {
            let error = text.parse::<Size>().unwrap_err().to_string();
            assert!(error.contains("10M"), "{error}");
        }
        for text in ["", "s", "5 sec", "1000000h", "-3s"] {
            assert!(text.parse::<Span>().is_err(), "{text}");
        }
        for text in ["", "fast", "2000000", "-1Hz", "5kHz"] {
            assert!(text.parse::<Rate>().is_err(), "{text}");
        }
        for text in ["", "0", "quick", "/s"] {
            assert!(text.parse::<Speed>().is_err(), "{text}");
        }
    }
}

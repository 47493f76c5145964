//! damo's figures.

use crate::values::{Why, parse_size, parse_time};
use serde_json::Value;
use std::time::Duration;

/// A figure that may stand for "as much as there can be".
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Figure<T> {
    Most,
    Is(T),
}

/// A number without a unit, if the value is one. What 64 bits cannot hold is how damo prints the most there can be.
fn plain(value: &Value) -> Option<Figure<f64>> {
    let number = match value {
        Value::Number(number) => number.as_f64()?,
        Value::String(text) if text == "max" => return Some(Figure::Most),
        Value::String(text) if text == "min" => 0.0,
        Value::String(text) if text.bytes().all(|b| b.is_ascii_digit() || b == b',' || b == b'.') => {
            text.replace(',', "").parse().ok()?
        }
        _ => return None,
    };
    if !number.is_finite() || number < 0.0 {
        return None;
    }
    Some(if number >= u64::MAX as f64 { Figure::Most } else { Figure::Is(number) })
}

/// A whole number that a float would round.
fn exact(value: &Value) -> Option<u64> {
    match value {
        Value::Number(number) => number.as_u64(),
        Value::String(text) => text.replace(',', "").parse().ok(),
        _ => None,
    }
}

fn shown(value: &Value) -> String {
    let text = value.to_string();
    if text.chars().count() <= 60 { text } else { text.chars().take(60).chain("...".chars()).collect() }
}

fn text_of(value: &Value, what: &str) -> Result<String, Why> {
    match value {
        Value::String(text) if text.len() <= 100 => Ok(text.replace(',', "")),
        other => Err(format!("{} is not {what}", shown(other))),
    }
}

pub(super) fn bytes(value: &Value) -> Result<u64, Why> {
    match (exact(value), plain(value)) {
        (Some(bytes), _) => Ok(bytes),
        (_, Some(Figure::Most)) => Ok(u64::MAX),
        (_, Some(Figure::Is(bytes))) => Ok(bytes as u64),
        _ => parse_size(&text_of(value, "a size")?).map_err(|error| error.to_string()),
    }
}

/// A time; a plain number counts `unit_ns`.
pub(super) fn time(value: &Value, unit_ns: u64) -> Result<Duration, Why> {
    match (exact(value), plain(value)) {
        (Some(units), _) => Ok(units.checked_mul(unit_ns).map_or(Duration::MAX, Duration::from_nanos)),
        (_, Some(Figure::Most)) => Ok(Duration::MAX),
        (_, Some(Figure::Is(units))) => Ok(Duration::from_nanos((units * unit_ns as f64) as u64)),
        _ => {
            let text = text_of(value, "a time")?;
            let time = parse_time(&text).map_err(|error| error.to_string())?;
            Ok(if time.as_nanos() >= u128::from(u64::MAX) { Duration::MAX } else { time })
        }
    }
}

/// A share in parts of which 100 % has `whole`; a plain number counts `unit` parts. No more than 100 %.
pub(super) fn share(value: &Value, whole: u32, unit: u32) -> Result<Figure<u32>, Why> {
    let parts = match plain(value) {
        Some(Figure::Most) => return Ok(Figure::Most),
        Some(Figure::Is(number)) => number * f64::from(unit),
        None => {
            let text = text_of(value, "a share")?;
            let number = text.strip_suffix('%').map(str::trim).and_then(|text| text.parse::<f64>().ok());
            let number = number.filter(|n| n.is_finite() && *n >= 0.0);
            let number = number.ok_or_else(|| format!("{} is not a share, like \"5 %\"", shown(value)))?;
            if number >= u64::MAX as f64 {
                return Ok(Figure::Most);
            }
            number * f64::from(whole) / 100.0
        }
    };
    if parts > f64::from(whole) {
        return Err(format!("{} is more than 100 %, the most there can be", shown(value)));
    }
    if (parts - parts.round()).abs() > 1e-6 {
        return Err(format!("{} is finer than {} %", shown(value), 100.0 / f64::from(whole)));
    }
    Ok(Figure::Is(parts.round() as u32))
}

/// A count.
pub(super) fn count(value: &Value, most: u64) -> Result<u64, Why> {
    let number = exact(value).or(match plain(value) {
        Some(Figure::Most) => Some(u64::MAX),
        Some(Figure::Is(number)) if number.fract() == 0.0 => Some(number as u64),
        _ => None,
    });
    let number = number.ok_or_else(|| format!("{} is not a whole number", shown(value)))?;
    if number <= most {
        Ok(number)
    } else {
        Err(format!("{number} is more than {most}, the most there can be"))
    }
}

/// A count with a unit behind it: `3 samples`.
pub(super) fn count_of(value: &Value, unit: &str) -> Option<Result<u32, Why>> {
    let Value::String(text) = value else { return None };
    let number = text.strip_suffix(unit)?.trim();
    let most = u64::from(u32::MAX);
    let number = count(&Value::from(number), u64::MAX);
    Some(number.map(|number| number.min(most) as u32))
}

pub(super) fn flag(value: &Value) -> Result<bool, Why> {
    let word = value.as_str().map(str::to_ascii_lowercase);
    match (value, word.as_deref()) {
        (Value::Bool(on), _) => Ok(*on),
        (_, Some("y" | "yes" | "true")) => Ok(true),
        (_, Some("n" | "no" | "false")) => Ok(false),
        _ => Err(format!("{} is neither true nor false", shown(value))),
    }
}

pub(super) fn string(value: &Value) -> Result<String, Why> {
    value.as_str().map(str::to_owned).ok_or_else(|| format!("{} is not a string", shown(value)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn figures_as_damo_prints_them() {
        assert_eq!(bytes(&json!("4.000 KiB")), Ok(4096));
        assert_eq!(bytes(&json!("26,843,545,600")), Ok(26_843_545_600));
        assert_eq!((bytes(&json!("max")), bytes(&json!(4096))), (Ok(u64::MAX), Ok(4096)));
        assert_eq!(bytes(&json!("18446744073709551615")), Ok(u64::MAX));
        let ms = |value: Value| time(&value, 1_000_000);
        assert_eq!(ms(json!("1 s 500 ms")), Ok(Duration::from_millis(1500)));
        assert_eq!(ms(json!(10)), Ok(Duration::from_millis(10)));
        assert_eq!((ms(json!("max")), ms(json!("0 ns"))), (Ok(Duration::MAX), Ok(Duration::ZERO)));
        assert_eq!(ms(json!("18446744073709551615000000")), Ok(Duration::MAX));
        let bp = |value: Value| share(&value, 10_000, 100);
        assert_eq!(
            (bp(json!("5 %")), bp(json!(5)), bp(json!("0.3 %"))),
            (Ok(Figure::Is(500)), Ok(Figure::Is(500)), Ok(Figure::Is(30)))
        );
        assert_eq!(bp(json!("18,446,744,073,709,551,615 %")), Ok(Figure::Most));
        assert!(bp(json!("101 %")).is_err() && bp(json!("0.001 %")).is_err() && bp(json!(-1)).is_err());
        assert_eq!(share(&json!("0.000000"), 1000, 1), Ok(Figure::Is(0)));
        assert_eq!(count_of(&json!("1,000 samples"), "samples"), Some(Ok(1000)));
    }
}

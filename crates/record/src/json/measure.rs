//! Accesses and ages, which come in one of two units.

use super::number::Number;
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use std::fmt;

/// Accesses or age: an object that tells it in one of two units, or a bare number.
///
/// By hand, since serde's untagged enums copy everything first, and this is most of a file.
#[derive(Default)]
pub(super) struct Measure {
    /// Samples, or aggregation intervals.
    pub(super) counted: Number,
    /// Percent, or microseconds.
    pub(super) scaled: Number,
}

impl<'de> Deserialize<'de> for Measure {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(MeasureVisitor)
    }
}

struct MeasureVisitor;

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Unit {
    Samples,
    AggrIntervals,
    Percent,
    Usec,
    #[serde(other)]
    Other,
}

impl<'de> Visitor<'de> for MeasureVisitor {
    type Value = Measure;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number, or an object of units")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Measure, A::Error> {
        let mut measure = Measure::default();
        while let Some(unit) = map.next_key()? {
            match unit {
                Unit::Samples | Unit::AggrIntervals => measure.counted = map.next_value()?,
                Unit::Percent | Unit::Usec => measure.scaled = map.next_value()?,
                Unit::Other => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(measure)
    }

    fn visit_u64<E: serde::de::Error>(self, n: u64) -> Result<Measure, E> {
        Ok(Measure { counted: Number::Int(n.into()), ..Measure::default() })
    }

    fn visit_i64<E: serde::de::Error>(self, n: i64) -> Result<Measure, E> {
        Ok(Measure { counted: Number::Int(n.into()), ..Measure::default() })
    }

    fn visit_f64<E: serde::de::Error>(self, n: f64) -> Result<Measure, E> {
        Ok(Measure { counted: Number::Float(n), ..Measure::default() })
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Measure, E> {
        Ok(Measure { counted: Number::Text(text.to_owned()), ..Measure::default() })
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<Measure, E> {
        Ok(Measure::default())
    }
}

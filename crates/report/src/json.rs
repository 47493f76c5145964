//! JSON that can be looked at: what would disturb a terminal is escaped.
//!
//! JSON must escape control characters up to U+001F only. Names come from elsewhere, and JSON is often printed: here
//! U+007F to U+009F (a terminal may take U+009B for the start of an escape sequence) and the characters that turn the
//! direction of text are escaped as well. A reader gets the same strings.

use isotherm_record::disturbs;
use serde::Serialize;
use serde_json::Serializer;
use serde_json::ser::{CompactFormatter, Formatter, PrettyFormatter};
use std::io::{self, Write};

/// Writes `value` without line breaks.
///
/// # Errors
/// Those of `out`, and of a value that JSON has no form for.
pub fn to_writer(out: impl Write, value: &impl Serialize) -> io::Result<()> {
    value.serialize(&mut Serializer::with_formatter(out, Escaped(CompactFormatter))).map_err(io::Error::from)
}

/// Writes `value` indented.
///
/// # Errors
/// As [`to_writer`].
pub fn to_writer_pretty(out: impl Write, value: &impl Serialize) -> io::Result<()> {
    let form = Escaped(PrettyFormatter::new());
    value.serialize(&mut Serializer::with_formatter(out, form)).map_err(io::Error::from)
}

/// `value` without line breaks.
///
/// # Errors
/// Of a value that JSON has no form for.
pub fn to_string(value: &impl Serialize) -> io::Result<String> {
    let mut text = Vec::new();
    to_writer(&mut text, value)?;
    String::from_utf8(text).map_err(io::Error::other)
}

/// `value` indented.
///
/// # Errors
/// As [`to_string`].
pub fn to_string_pretty(value: &impl Serialize) -> io::Result<String> {
    let mut text = Vec::new();
    to_writer_pretty(&mut text, value)?;
    String::from_utf8(text).map_err(io::Error::other)
}

/// A form of JSON, with more escaped.
struct Escaped<F>(F);

impl<F: Formatter> Formatter for Escaped<F> {
    fn write_string_fragment<W: ?Sized + Write>(&mut self, out: &mut W, fragment: &str) -> io::Result<()> {
        let mut rest = fragment;
        while let Some(at) = rest.find(disturbs) {
            let (before, from) = rest.split_at(at);
            out.write_all(before.as_bytes())?;
            let mut chars = from.chars();
            if let Some(c) = chars.next() {
                // All of them are of the first 65536 characters.
                write!(out, "\\u{:04x}", u32::from(c))?;
            }
            rest = chars.as_str();
        }
        out.write_all(rest.as_bytes())
    }

    fn begin_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.begin_array(out)
    }

    fn end_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_array(out)
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_array_value(out, first)
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_array_value(out)
    }

    fn begin_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.begin_object(out)
    }

    fn end_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_object(out)
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_object_key(out, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.begin_object_value(out)
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_object_value(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    #[test]
    fn what_would_disturb_a_terminal_is_escaped() {
        let text = to_string(&json!({"c1\u{9b}31m": "del\u{7f} esc\u{1b} bidi\u{202e} \"é日\""})).unwrap();
        assert_eq!(text, r#"{"c1\u009b31m":"del\u007f esc\u001b bidi\u202e \"é日\""}"#);
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            any::<String>().prop_map(Value::from),
            "[\u{70}-\u{a0}\u{2020}-\u{2070}]{0,8}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 40, 6, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                proptest::collection::btree_map(any::<String>(), inner, 0..6)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        /// With nothing to escape both forms are those of `serde_json`; in any case a reader gets what was written.
        #[test]
        fn a_reader_gets_the_same(value in any_value()) {
            let plain = serde_json::to_string(&value).unwrap();
            for (ours, theirs) in [
                (to_string(&value).unwrap(), plain.clone()),
                (to_string_pretty(&value).unwrap(), serde_json::to_string_pretty(&value).unwrap()),
            ] {
                prop_assert!(!ours.contains(|c| c != '\n' && disturbs(c)));
                prop_assert_eq!(
                    serde_json::from_str::<Value>(&ours).unwrap(),
                    serde_json::from_str::<Value>(&theirs).unwrap()
                );
                if !plain.contains(disturbs) {
                    prop_assert_eq!(ours, theirs);
                }
            }
        }
    }
}

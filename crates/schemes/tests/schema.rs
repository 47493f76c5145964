//! The published JSON schema: it takes what the reader takes, and refuses what has a key or a word too many.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use common::entry;
use isotherm_schemes::{Format, JSON_SCHEMA, presets, write};
use proptest::prelude::*;
use serde_json::Value;

/// As much of JSON Schema as the schema uses; what else it should use fails here.
fn valid(schema: &Value, root: &Value, value: &Value) -> bool {
    let Value::Object(rules) = schema else { panic!("{schema}") };
    rules.iter().all(|(rule, what)| match rule.as_str() {
        "$ref" => valid(root.pointer(what.as_str().unwrap().trim_start_matches('#')).unwrap(), root, value),
        "type" => {
            let is = |name: &Value| match name.as_str().unwrap() {
                "object" => value.is_object(),
                "array" => value.is_array(),
                "string" => value.is_string(),
                "integer" => value.is_i64() || value.is_u64(),
                "boolean" => value.is_boolean(),
                other => panic!("{other}"),
            };
            what.as_array().map_or_else(|| is(what), |names| names.iter().any(is))
        }
        "properties" => value.as_object().is_none_or(|object| {
            object.iter().all(|(key, value)| what.get(key).is_none_or(|schema| valid(schema, root, value)))
        }),
        "additionalProperties" => value
            .as_object()
            .is_none_or(|object| object.keys().all(|key| rules["properties"].get(key).is_some())),
        "required" => {
            let needed = what.as_array().unwrap();
            value
                .as_object()
                .is_none_or(|object| needed.iter().all(|key| object.contains_key(key.as_str().unwrap())))
        }
        "items" => value.as_array().is_none_or(|items| items.iter().all(|item| valid(what, root, item))),
        "oneOf" => what.as_array().unwrap().iter().filter(|schema| valid(schema, root, value)).count() == 1,
        "enum" => what.as_array().unwrap().contains(value),
        "minimum" => value.as_i64().is_none_or(|number| number >= what.as_i64().unwrap()),
        "minItems" => value.as_array().is_none_or(|items| items.len() as u64 >= what.as_u64().unwrap()),
        "minLength" => {
            value.as_str().is_none_or(|text| text.chars().count() as u64 >= what.as_u64().unwrap())
        }
        "maxLength" => {
            value.as_str().is_none_or(|text| text.chars().count() as u64 <= what.as_u64().unwrap())
        }
        "$schema" | "$defs" | "title" | "description" | "examples" => true,
        other => panic!("{other}"),
    })
}

fn takes(toml: &str) -> bool {
    let schema: Value = serde_json::from_str(JSON_SCHEMA).unwrap();
    let value: toml::Table = toml.parse().unwrap();
    valid(&schema, &schema, &serde_json::to_value(value).unwrap())
}

#[test]
fn presets_and_the_book_are_valid() {
    for preset in presets::PRESETS {
        let entries = presets::preset(preset.name).unwrap();
        assert!(takes(&write(&entries, Format::Toml).0), "{}", preset.name);
    }
    let page = include_str!("../../../docs/schemes.md");
    let examples: Vec<&str> =
        page.split("```toml\n").skip(1).map(|part| part.split("```").next().unwrap()).collect();
    assert!(examples.len() >= 2);
    for example in examples {
        isotherm_schemes::parse(example, Some(Format::Toml)).unwrap();
        assert!(takes(example), "{example}");
    }
}

#[test]
fn what_the_reader_refuses_by_its_form_is_not_valid() {
    for text in [
        "",
        "[[scheme]]",
        "[[scheme]]\naction = \"page_out\"",
        "[[scheme]]\naction = \"stat\"\nmin_szie = \"4K\"",
        "[[scheme]]\naction = \"stat\"\nunknown = \"yes\"",
        "[[scheme]]\naction = \"stat\"\nfilters = [{ allow = \"anon\", reject = \"anon\" }]",
        "[[scheme]]\naction = \"stat\"\nquota.goals = [{ metric = \"psi\", target = 1 }]",
        "[[scheme]]\naction = \"stat\"\nmax_nr_snapshots = 0",
    ] {
        assert!(!takes(text) && isotherm_schemes::parse(text, Some(Format::Toml)).is_err(), "{text}");
    }
}

proptest! {
    #[test]
    fn all_that_is_written_is_valid(entry in entry()) {
        let text = write(&[entry], Format::Toml).0;
        prop_assert!(takes(&text), "{}", text);
    }
}

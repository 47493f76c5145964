//! A scheme's filters, in words.

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, SeqAccess, Visitor};
use std::fmt;

/// Most filters named, and longest name.
const MAX_NAMED: u64 = 8;
const MAX_NAME: usize = 64;

/// The filters of a record.
#[derive(Default)]
pub(super) struct Filters {
    /// `allow anon, reject memcg /a`; empty without filters.
    pub(super) words: String,
    pub(super) count: u64,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Filter {
    #[serde(alias = "type", alias = "name")]
    filter_type: Option<String>,
    matching: Option<bool>,
    allow: Option<bool>,
    memcg_path: Option<String>,
}

impl Filter {
    fn words(&self) -> String {
        let verb = if self.allow == Some(true) { "allow" } else { "reject" };
        let not = if self.matching == Some(false) { "none-" } else { "" };
        let name = self.filter_type.as_deref().unwrap_or("unnamed");
        let mut words = format!("{verb} {not}{}", cut(name));
        if let Some(path) = self.memcg_path.as_deref().filter(|p| !p.is_empty()) {
            words.push(' ');
            words.push_str(&cut(path));
        }
        words
    }
}

fn cut(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(MAX_NAME).collect()
}

impl<'de> Deserialize<'de> for Filters {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(FiltersVisitor)
    }
}

struct FiltersVisitor;

impl<'de> Visitor<'de> for FiltersVisitor {
    type Value = Filters;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of filters")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Filters, A::Error> {
        let mut filters = Filters::default();
        while filters.count < MAX_NAMED {
            let Some(filter) = seq.next_element::<Filter>()? else { return Ok(filters) };
            if filters.count > 0 {
                filters.words.push_str(", ");
            }
            filters.words.push_str(&filter.words());
            filters.count += 1;
        }
        while seq.next_element::<IgnoredAny>()?.is_some() {
            filters.count += 1;
        }
        if filters.count > MAX_NAMED {
            filters.words.push_str(&format!(" and {} more", filters.count - MAX_NAMED));
        }
        Ok(filters)
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<Filters, E> {
        Ok(Filters::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_told_in_words() {
        let words = |json: &str| serde_json::from_str::<Filters>(json).unwrap().words;
        assert_eq!(words("[]"), "");
        assert_eq!(words("null"), "");
        let two = r#"[{"filter_type": "anon", "matching": true, "allow": true, "hugepage_size": ["0", "0"]},
            {"filter_type": "memcg", "matching": false, "memcg_path": "/a", "allow": false}]"#;
        assert_eq!(words(two), "allow anon, reject none-memcg /a");
        let ten = format!("[{}]", [r#"{"type": "anon"}"#; 10].join(","));
        assert!(words(&ten).ends_with("reject anon and 2 more"), "{}", words(&ten));
    }
}

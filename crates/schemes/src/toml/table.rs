//! A table of a TOML file, whose keys are asked for one by one; those that nobody asked for are mistakes.

use crate::error::{Problem, Sink};
use crate::values::Why;
use crate::words::meant;
use std::cell::RefCell;
use std::ops::Range;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Where lines begin, to say on which one something stands.
pub(super) struct Lines(Vec<usize>);

impl Lines {
    pub fn of(text: &str) -> Self {
        let ends = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at + 1);
        Self(std::iter::once(0).chain(ends).collect())
    }

    /// The line of a place, from 1.
    pub fn at(&self, place: usize) -> usize {
        self.0.partition_point(|start| *start <= place)
    }
}

/// What tables report to.
pub(super) struct Report<'l> {
    pub lines: &'l Lines,
    pub sink: RefCell<Sink>,
    pub scheme: RefCell<Option<String>>,
}

impl Report<'_> {
    /// How much was found to be wrong so far.
    pub fn count(&self) -> usize {
        self.sink.borrow().errors.len()
    }

    pub fn add(&self, span: &Range<usize>, field: &str, problem: Problem) {
        let line = Some(self.lines.at(span.start));
        self.sink.borrow_mut().add(line, self.scheme.borrow().as_deref(), field, problem);
    }
}

pub(super) type Value<'t> = Spanned<DeValue<'t>>;

/// A table, what it is called (with a dot at its end, or nothing), and where it stands.
pub(super) struct Table<'a, 't> {
    pub table: &'a DeTable<'t>,
    pub path: String,
    pub span: Range<usize>,
    pub report: &'a Report<'a>,
}

impl<'a, 't> Table<'a, 't> {
    /// The name of a key with that of its table.
    pub fn name(&self, key: &str) -> String {
        format!("{}{key}", self.path)
    }

    pub fn get(&self, key: &str) -> Option<&'a Value<'t>> {
        self.table.get(key)
    }

    pub fn wrong(&self, key: &str, problem: Problem) {
        let span = self.get(key).map_or_else(|| self.span.clone(), Spanned::span);
        self.report.add(&span, &self.name(key), problem);
    }

    /// Refuses keys that are none of `known`.
    pub fn only(&self, known: &[&str]) {
        for key in self.table.keys() {
            let word = key.get_ref().as_ref();
            if !known.contains(&word) {
                let problem = Problem::UnknownKey {
                    meant: meant(word, known.iter().copied()),
                    known: known.join(", "),
                };
                self.report.add(&key.span(), &self.name(&shortened(word)), problem);
            }
        }
    }

    /// The text of a string or a number.
    pub fn text(&self, key: &str, what: &str) -> Option<String> {
        let value = self.get(key)?;
        let text = match value.get_ref() {
            DeValue::String(text) => Some(text.clone().into_owned()),
            DeValue::Integer(number) => Some(number.to_string()),
            DeValue::Float(number) => Some(number.as_str().to_owned()),
            _ => None,
        };
        if text.is_none() {
            self.wrong(key, Problem::Value(format!("it must be {what}")));
        }
        text
    }

    /// A value that is written as text.
    pub fn value<T>(&self, key: &str, what: &str, parse: impl FnOnce(&str) -> Result<T, Why>) -> Option<T> {
        let text = self.text(key, what)?;
        parse(&text).map_err(|why| self.wrong(key, Problem::Value(why))).ok()
    }

    /// One of some words, which may be written with hyphens.
    pub fn word<'w>(&self, key: &str, known: &[&'w str]) -> Option<&'w str> {
        let text = self.text(key, "a word in quotes")?;
        let word = text.replace('-', "_");
        let found = known.iter().copied().find(|known| *known == word);
        if found.is_none() {
            let meant = meant(&word, known.iter().copied());
            let problem = Problem::UnknownWord { word: shortened(&text), meant, known: known.join(", ") };
            self.wrong(key, problem);
        }
        found
    }

    pub fn flag(&self, key: &str) -> Option<bool> {
        match self.get(key)?.get_ref() {
            DeValue::Boolean(on) => Some(*on),
            _ => {
                self.wrong(key, Problem::Value("it must be true or false, without quotes".to_owned()));
                None
            }
        }
    }

    /// A whole number.
    pub fn number(&self, key: &str, most: u64) -> Option<u64> {
        let number = whole(self.get(key)?);
        match number {
            Some(number) if number <= most => Some(number),
            Some(number) => {
                self.wrong(
                    key,
                    Problem::Value(format!("{number} is more than {most}, the most there can be")),
                );
                None
            }
            None => {
                self.wrong(
                    key,
                    Problem::Value("it must be a whole number, 0 or more, without quotes".to_owned()),
                );
                None
            }
        }
    }

    /// The table of a key.
    pub fn table(&self, key: &str) -> Option<Table<'a, 't>> {
        let value = self.get(key)?;
        let DeValue::Table(table) = value.get_ref() else {
            self.wrong(
                key,
                Problem::Value(format!("it must be a table: {{ ... }}, or lines like {key}.NAME = VALUE")),
            );
            return None;
        };
        Some(Table { table, path: format!("{}.", self.name(key)), span: value.span(), report: self.report })
    }

    /// The elements of a key's array; none if there is no such key.
    pub fn array(&self, key: &str) -> &'a [Value<'t>] {
        match self.get(key).map(|value| value.get_ref()) {
            None => &[],
            Some(DeValue::Array(array)) => array,
            Some(_) => {
                self.wrong(key, Problem::Value("it must be an array: [ ... ]".to_owned()));
                &[]
            }
        }
    }

    /// The tables of a key's array.
    pub fn tables(&self, key: &str) -> Vec<Table<'a, 't>> {
        let mut tables = Vec::new();
        for (index, value) in self.array(key).iter().enumerate() {
            let name = format!("{}[{index}]", self.name(key));
            match value.get_ref() {
                DeValue::Table(table) => {
                    tables.push(Table {
                        table,
                        path: format!("{name}."),
                        span: value.span(),
                        report: self.report,
                    });
                }
                _ => self.report.add(
                    &value.span(),
                    &name,
                    Problem::Value("it must be a table: { ... }".to_owned()),
                ),
            }
        }
        tables
    }

    /// The strings of a key's array.
    pub fn strings(&self, key: &str) -> Option<Vec<String>> {
        self.get(key)?;
        let strings: Option<Vec<String>> =
            self.array(key).iter().map(|v| v.get_ref().as_str().map(str::to_owned)).collect();
        if strings.is_none() {
            self.wrong(key, Problem::Value("it must be an array of strings: [\"...\", \"...\"]".to_owned()));
        }
        strings
    }
}

/// A whole number that is not negative.
pub(super) fn whole(value: &Value<'_>) -> Option<u64> {
    match value.get_ref() {
        DeValue::Integer(number) => u64::from_str_radix(number.as_str(), number.radix()).ok(),
        _ => None,
    }
}

/// What of a word fits into a message.
fn shortened(word: &str) -> String {
    if word.chars().count() <= 60 {
        word.to_owned()
    } else {
        word.chars().take(60).chain("...".chars()).collect()
    }
}

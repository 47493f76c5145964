//! What is wrong with a scheme file: where, in which field, what was expected.

use isotherm_damon::schemes::{AccessPattern, Age, Field, Frequency, Reason, SchemeError};
use isotherm_report::units::{format_size, format_time};
use std::fmt;

/// What is wrong with a value or a key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    /// The file is not of its format at all.
    Syntax(String),
    /// There is no such key here.
    UnknownKey {
        /// What may have been meant.
        meant: Option<String>,
        /// The keys that there are.
        known: String,
    },
    /// The word is none of those that the field can have.
    UnknownWord {
        /// The word.
        word: String,
        /// What may have been meant.
        meant: Option<String>,
        /// The words that there are.
        known: String,
    },
    /// The value cannot be understood: what it is, what is wrong, and an example.
    Value(String),
    /// It has to be there.
    Missing(&'static str),
    /// It says something other than another key.
    Conflict(String),
    /// The value has no meaning there.
    Invalid(String),
    /// The scheme and an earlier one undo each other's work on the same memory.
    Contradicts {
        /// The earlier one.
        other: String,
        /// What this one does.
        action: &'static str,
        /// What that one does.
        undoes: &'static str,
    },
    /// It means something, but not to Isotherm.
    Unsupported(String),
}

/// What may have been meant, as the end of a sentence.
fn did_you_mean(meant: Option<&String>, known: &str) -> String {
    match meant {
        Some(meant) => format!("; did you mean {meant}?"),
        None => format!("; there are {known}"),
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Syntax(why) | Self::Value(why) | Self::Invalid(why) | Self::Unsupported(why) => {
                f.write_str(why)
            }
            Self::UnknownKey { meant, known } => {
                write!(f, "there is no such key{}", did_you_mean(meant.as_ref(), known))
            }
            Self::UnknownWord { word, meant, known } => {
                write!(f, "{word:?} is none of its values{}", did_you_mean(meant.as_ref(), known))
            }
            Self::Missing(what) => write!(f, "it is missing: {what}"),
            Self::Conflict(with) => f.write_str(with),
            Self::Contradicts { other, action, undoes } => write!(
                f,
                "{action} and scheme {other}'s {undoes} take the same memory, and undo each other; keep their patterns apart \
                 (size, access or age), or give them filters"
            ),
        }
    }
}

/// One thing that is wrong with a scheme file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct FileError {
    /// Line of the file, from 1, where the format has lines.
    pub line: Option<usize>,
    /// The scheme: its name, or its number from 1.
    pub scheme: Option<String>,
    /// The field, as the file calls it; empty where it is none.
    pub field: String,
    /// What is wrong.
    pub problem: Problem,
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = self.line.map(|line| format!("line {line}"));
        let scheme = self.scheme.as_ref().map(|scheme| format!("scheme {scheme}"));
        let field = (!self.field.is_empty()).then(|| self.field.clone());
        let place: Vec<String> = [line, scheme, field].into_iter().flatten().collect();
        if place.is_empty() {
            return write!(f, "{}", self.problem);
        }
        write!(f, "{}: {}", place.join(", "), self.problem)
    }
}

/// All that is wrong with a scheme file, in its order; at least one thing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Errors(pub Vec<FileError>);

/// More than this nobody reads.
const MOST: usize = 20;

impl Errors {
    /// One thing that is wrong with no line in particular.
    pub(crate) fn one(field: &str, problem: Problem) -> Self {
        Self(vec![FileError { line: None, scheme: None, field: field.to_owned(), problem }])
    }
}

impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().take(MOST).enumerate() {
            write!(f, "{}{error}", if index > 0 { "\n" } else { "" })?;
        }
        match self.0.len().saturating_sub(MOST) {
            0 => Ok(()),
            more => write!(f, "\nand {more} more"),
        }
    }
}

/// Collects what is wrong, up to what anybody reads.
#[derive(Debug, Default)]
pub(crate) struct Sink {
    pub errors: Vec<FileError>,
}

impl Sink {
    pub fn add(&mut self, line: Option<usize>, scheme: Option<&str>, field: &str, problem: Problem) {
        if self.errors.len() < 10 * MOST {
            let scheme = scheme.map(str::to_owned);
            self.errors.push(FileError { line, scheme, field: field.to_owned(), problem });
        }
    }

    pub fn finish<T>(self, value: T) -> Result<T, Errors> {
        if self.errors.is_empty() { Ok(value) } else { Err(Errors(self.errors)) }
    }
}

/// The key of a scheme file that holds a field of the core's.
pub(crate) fn key_of(field: Field) -> String {
    match field {
        Field::Size => "size".to_owned(),
        Field::Frequency => "access".to_owned(),
        Field::Age => "age".to_owned(),
        Field::ApplyInterval => "apply_interval".to_owned(),
        Field::QuotaBytes => "quota.size".to_owned(),
        Field::CoreFilter(_) | Field::OpsFilter(_) => "filters".to_owned(),
        other => other.to_string(),
    }
}

/// What the core finds wrong, in the units of people.
pub(crate) fn invalid(pattern: &AccessPattern, error: SchemeError) -> Problem {
    let (field, reason) = (error.field, error.reason);
    let in_unit = |figure: u64| match (field, pattern.age, pattern.frequency) {
        (Field::Age, Age::Time(_), _) => format_time(figure.saturating_mul(1000)),
        (Field::Age, Age::Aggregations(_), _) => format!("{figure} aggregations"),
        (Field::Frequency, _, Frequency::Share(_)) => format!("{} %", figure as f64 / 100.0),
        (Field::Frequency, _, Frequency::Samples(_)) => format!("{figure} samples"),
        _ => format_size(figure),
    };
    Problem::Invalid(match (field, reason) {
        (Field::Age | Field::Size | Field::Frequency, Reason::Reversed { min, max }) => {
            format!("the minimum, {}, is above the maximum, {}", in_unit(min), in_unit(max))
        }
        (Field::Frequency, Reason::Above { value, .. }) => {
            format!("{} % is more than 100 %, the most there can be", value as f64 / 100.0)
        }
        (Field::Nodes, Reason::Missing) => {
            "the action needs it: to which NUMA nodes memory goes, like nodes = [1]".to_owned()
        }
        (Field::QuotaBytes | Field::QuotaTime, Reason::Zero) => {
            "a quota of zero does nothing at all; leave it out for no limit".to_owned()
        }
        (_, reason) => reason.to_string(),
    })
}

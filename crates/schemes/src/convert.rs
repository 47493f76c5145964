//! From one format to another, and what is lost on the way.

use crate::entry::{Entry, normal};
use crate::format::Format;
use crate::values::show_time;
use crate::{damo, text, toml};
use isotherm_damon::schemes::Quota;

/// Something that the format written cannot say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// The scheme: its name, or its number from 1 and action.
    pub scheme: String,
    /// The field, as the TOML format calls it.
    pub field: String,
    /// What becomes of it.
    pub what: String,
}

impl Loss {
    pub(crate) fn new(scheme: &str, field: &str, what: impl Into<String>) -> Self {
        Self { scheme: scheme.to_owned(), field: field.to_owned(), what: what.into() }
    }
}

impl std::fmt::Display for Loss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "scheme {}, {}: {}", self.scheme, self.field, self.what)
    }
}

/// The schemes in a format, and what it cannot say of them.
pub fn write(entries: &[Entry], format: Format) -> (String, Vec<Loss>) {
    match format {
        Format::Toml => (toml::write(entries), Vec::new()),
        Format::Text => text::write(entries),
        Format::Damo => damo::write(entries),
    }
}

const LEFT_OUT: &str = "left out";

/// What nothing but the TOML format says.
pub(crate) fn beyond_damo(entry: &Entry, lose: &mut dyn FnMut(&str, String)) {
    if entry.scheme.unknown {
        lose(
            "unknown",
            "left out: memory whose rate is unknown passes for idle there in any case".to_owned(),
        );
    }
    if entry.scheme.max_nr_snapshots.is_some() {
        lose("max_nr_snapshots", LEFT_OUT.to_owned());
    }
    if entry.guard.max_refault_bp.is_some() {
        lose("max_refault_rate", LEFT_OUT.to_owned());
    }
    if entry.guard.max_psi_bp.is_some() {
        lose("max_psi", LEFT_OUT.to_owned());
    }
    for index in entry.sources.keys() {
        lose(&format!("quota.goals[{index}]"), "where its value comes from is left out".to_owned());
    }
}

/// What a line of the text format has no column for.
pub(crate) fn beyond_a_line(entry: &Entry, lose: &mut dyn FnMut(&str, String)) {
    let scheme = &entry.scheme;
    if let Some(interval) = scheme.apply_interval {
        lose(
            "apply_interval",
            format!("left out: it acts at each aggregation's end, not every {}", show_time(interval)),
        );
    }
    if normal(scheme.quota.clone()) != Quota::default() {
        lose("quota", "left out: nothing limits how much it does".to_owned());
    }
    if scheme.watermarks.is_some() {
        lose("watermarks", "left out: it acts however much memory is free".to_owned());
    }
    if !scheme.filters.core.is_empty() || !scheme.filters.ops.is_empty() {
        lose("filters", "left out: it acts on all memory that matches".to_owned());
    }
    if !scheme.nodes.is_empty() {
        lose("nodes", LEFT_OUT.to_owned());
    }
    beyond_damo(entry, lose);
}

//! Patterns: what a workload does, as written in a TOML file. The format is told at [`Pattern`].

use crate::quantity::{Rate, Size, Span, Speed};
use crate::truth::Page;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Why a pattern cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PatternError {
    /// No built-in pattern of that name.
    #[error("no pattern is called `{name}`; built in are {known}; a file's name must end in .toml")]
    Unknown {
        /// The name asked for.
        name: String,
        /// The names there are.
        known: String,
    },
    /// The file cannot be read.
    #[error("cannot read the pattern {path}: {source}")]
    Read {
        /// The file.
        path: String,
        /// The system's answer.
        #[source]
        source: std::io::Error,
    },
    /// Not TOML, or a key that means nothing here, or a value of the wrong kind.
    #[error("pattern {pattern}: {message}")]
    Syntax {
        /// File or built-in name.
        pattern: String,
        /// What the parser says.
        message: String,
    },
    /// A parameter that the pattern does not have.
    #[error("pattern {pattern} has no parameter `{key}`; it has {known}")]
    NoSuchParam {
        /// File or built-in name.
        pattern: String,
        /// The key asked for.
        key: String,
        /// The keys there are.
        known: String,
    },
    /// Well-formed, but it cannot be carried out.
    #[error("pattern {pattern}, {place}: {message}")]
    Meaning {
        /// The pattern's name.
        pattern: String,
        /// Which area, phase or access.
        place: String,
        /// What is wrong and what would be right.
        message: String,
    },
}

impl PatternError {
    /// Whether the command line is at fault, not a file: what is built in is only wrong with the wrong parameters.
    pub fn is_misuse(&self) -> bool {
        match self {
            Self::Unknown { .. } | Self::NoSuchParam { .. } => true,
            Self::Read { .. } => false,
            Self::Syntax { pattern, .. } | Self::Meaning { pattern, .. } => {
                BUILTIN.iter().any(|(name, _)| name == pattern)
            }
        }
    }
}

macro_rules! builtin {
    ($($name:literal),* $(,)?) => {
        /// The built-in patterns: name and TOML text.
        pub const BUILTIN: &[(&str, &str)] = &[$(($name, include_str!(concat!("../../patterns/", $name, ".toml")))),*];
    };
}

builtin!(
    "stairs", "zigzag", "hotspot", "rates", "heap", "threads", "membound", "front", "sweep", "zipf", "shm",
    "prefork", "bgsave", "swarm", "fft", "build",
);

/// How an access goes through its range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Every page once a period, in address order.
    #[default]
    Sequential,
    /// One page drawn at random each time; `rate` is still per page.
    Random,
    /// Every page once a pass, two fronts side by side: of each block of twice `stride` bytes a page of the lower half,
    /// the page `stride` above it, the next of the lower half, and so on, as the butterflies of an FFT go.
    Butterfly,
    /// One page drawn at random each time, the n-th most popular one with a probability in proportion to
    /// 1 / n^`skew`. `rate` is the mean over all pages.
    Zipf,
}

/// Where the popular pages of [`Kind::Zipf`] lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layout {
    /// The more popular, the nearer to the start of the range.
    #[default]
    Clustered,
    /// Strewn over the range, in pieces of `grain` bytes.
    Scattered,
}

/// When the accesses of [`Kind::Random`] come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Gaps {
    /// Exponentially distributed gaps: each page sees a Poisson process.
    #[default]
    Poisson,
    /// Equal gaps.
    Uniform,
}

/// What one touch reads or writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Touch {
    /// Eight bytes of each page: the least that sets the Accessed bit.
    #[default]
    Page,
    /// Eight bytes of each 64-byte line: moves the whole range through the caches.
    Line,
}

/// A pattern file after substitution of its parameters.
///
/// A pattern has *areas* (separate mappings) and *phases* (spans of time in which a fixed set of accesses goes on). It may
/// have *processes*: children that are forked once the areas of the first process are populated, or for one phase each.
/// All numbers a user may want to change stand under `[params]`; a string that consists of `$name` is replaced by the
/// parameter of that name before anything else is read. All keys are those of [`Pattern`], [`ProcessSpec`], [`AreaSpec`],
/// [`PhaseSpec`], [`ResizeSpec`] and [`AccessSpec`].
///
/// ```
/// use isotherm_workloads::{Overrides, PageSizes, Pattern, Plan};
///
/// let text = r#"
/// name = "stairs"
/// summary = "areas side by side, one hot at a time"
///
/// [params]
/// steps = 10
/// size = "10M"
///
/// [[area]]
/// name = "stair{i}"       # {i} counts 0..count
/// count = "$steps"
/// size = "$size"
///
/// [[phase]]
/// name = "step{i}"        # {i} counts 0..repeat
/// repeat = "$steps"
/// duration = "5s"
///
/// [[phase.access]]
/// area = "stair{i}"       # {i} of the phase; {j} counts 0..repeat of the access
/// rate = "250Hz"
/// "#;
/// let pattern = Pattern::parse("stairs.toml", text, &[("steps".into(), "4".into())])?;
/// let plan = Plan::new(&pattern, &Overrides::default(), PageSizes::of_this_machine())?;
/// assert_eq!((plan.areas.len(), plan.phases.len()), (4, 4));
/// # Ok::<(), isotherm_workloads::PatternError>(())
/// ```
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pattern {
    /// Its name.
    pub name: String,
    /// One line for people.
    #[serde(default)]
    pub summary: String,
    /// Page size of all areas unless the command line says otherwise.
    #[serde(default)]
    pub page: Page,
    /// A range at or above this rate is called hot in the truth. Default 10 Hz: one access in DAMON's default
    /// aggregation interval of 100 ms, the least that counts into its working set.
    #[serde(default = "default_hot_hz")]
    pub hot_hz: f64,
    /// Seed of all random draws.
    #[serde(default = "default_seed")]
    pub seed: u64,
    /// How often the list of phases is gone through.
    #[serde(default = "one")]
    pub cycles: u32,
    /// The parameters, as they stood after the command line's changes.
    #[serde(default)]
    pub params: toml::Table,
    /// Child processes.
    #[serde(default)]
    pub process: Vec<ProcessSpec>,
    /// Mappings.
    pub area: Vec<AreaSpec>,
    /// Phases in order.
    pub phase: Vec<PhaseSpec>,
}

/// One or several like child processes.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProcessSpec {
    /// Name; must hold `{i}` when `count` is above 1.
    pub name: String,
    /// How many.
    #[serde(default = "one")]
    pub count: u32,
    /// It is forked whenever a phase of this name begins, and ends with that phase; may hold `{i}`. It maps nothing of its
    /// own. Default: it lives as long as the workload.
    #[serde(default)]
    pub phase: String,
}

/// One or several like mappings.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AreaSpec {
    /// Name; must hold `{i}` when `count` is above 1.
    pub name: String,
    /// Size in bytes at the start, rounded up to whole pages.
    pub size: Size,
    /// How many.
    #[serde(default = "one")]
    pub count: u32,
    /// Which child process maps it, after it is forked; may hold `{i}`. Default: the first process maps it before it forks,
    /// so that all children have it too: the same memory when it is `shared`, or else copied where it is written to.
    #[serde(default)]
    pub process: String,
    /// MAP_SHARED instead of MAP_PRIVATE.
    #[serde(default)]
    pub shared: bool,
    /// Whether all of it is written to before the first phase. Otherwise its memory comes with the first touch.
    #[serde(default = "yes")]
    pub populate: bool,
}

/// One phase, or several like it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PhaseSpec {
    /// Name; may hold `{i}`.
    #[serde(default)]
    pub name: String,
    /// How long; may be left out when an access has `units` or `passes`.
    pub duration: Option<Span>,
    /// How many phases are made of this one.
    #[serde(default = "one")]
    pub repeat: u32,
    /// What goes on in it; nothing is a phase in which all memory is idle.
    #[serde(default)]
    pub access: Vec<AccessSpec>,
    /// Areas that change their size before the phase begins.
    #[serde(default)]
    pub resize: Vec<ResizeSpec>,
    /// Areas whose memory is given back to the kernel before the phase begins; each may hold `{i}`.
    #[serde(default)]
    pub discard: Vec<String>,
}

/// A change of an area's size.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResizeSpec {
    /// Which area; may hold `{i}`.
    pub area: String,
    /// New size in bytes, rounded up to whole pages. The start stays where it is.
    pub size: Size,
}

/// One stream of accesses, or several like it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AccessSpec {
    /// Which area; may hold `{i}` (phase) and `{j}` (access).
    pub area: String,
    /// How many streams are made of this one.
    #[serde(default = "one")]
    pub repeat: u32,
    /// First byte, counted from the area's start; rounded down to a page.
    #[serde(default)]
    pub offset: Size,
    /// Added to `offset` once for each `{i}`; the sum wraps around the area.
    #[serde(default)]
    pub step: Size,
    /// Added to `offset` once for each `{j}`.
    #[serde(default)]
    pub step_each: Size,
    /// Bytes, rounded up to whole pages; default: to the area's end.
    pub size: Option<Size>,
    /// Which process does it; may hold `{i}` and `{j}`. Default: the one whose area it is.
    #[serde(default)]
    pub process: String,
    /// How.
    #[serde(default)]
    pub kind: Kind,
    /// How often each page is accessed, in passes as fast as they go at equal gaps. Either this or `speed`.
    pub rate: Option<Rate>,
    /// How many bytes a second are gone through, evenly.
    pub speed: Option<Speed>,
    /// With kind `butterfly`: distance of the two fronts in bytes, rounded up to whole pages.
    pub stride: Option<Size>,
    /// `stride` is multiplied by this once for each `{i}`.
    #[serde(default = "one")]
    pub stride_factor: u32,
    /// With kind `zipf`: exponent of the popularity, 0 (all alike) to 10.
    #[serde(default = "default_skew")]
    pub skew: f64,
    /// With kind `zipf`: where the popular pages lie.
    #[serde(default)]
    pub layout: Layout,
    /// With kind `zipf`: bytes that are equally popular, rounded up to whole pages; default: a page.
    #[serde(default)]
    pub grain: Size,
    /// Tell the course of a stream also when it makes five passes a second or more, for which its mean rate does: then the truth
    /// knows when a machine that is busy held it up.
    #[serde(default)]
    pub course: bool,
    /// The stream ends after so many passes.
    pub passes: Option<u32>,
    /// When random accesses come.
    #[serde(default)]
    pub gaps: Gaps,
    /// Writes instead of reads.
    #[serde(default)]
    pub write: bool,
    /// What one touch covers.
    #[serde(default)]
    pub touch: Touch,
    /// Which thread does it; may hold `{i}` and `{j}`. Streams with the same name share a thread.
    #[serde(default)]
    pub thread: String,
    /// With rate `max`: time is taken for each so many bytes (a touch counts as its page or line).
    pub work: Option<Size>,
    /// With `work`: the phase is over when so much work is done.
    pub units: Option<u32>,
}

fn one() -> u32 {
    1
}

fn yes() -> bool {
    true
}

fn default_skew() -> f64 {
    1.0
}

fn default_seed() -> u64 {
    1
}

fn default_hot_hz() -> f64 {
    10.0
}

impl Pattern {
    /// The built-in pattern `name`, or the file `name` when it ends in `.toml`, with `params` put in place of its
    /// own: each is a key of its `[params]` table and a new value.
    ///
    /// # Errors
    /// When there is none, when it cannot be read, or when it has no such parameter.
    pub fn load(name: &str, params: &[(String, String)]) -> Result<Self, PatternError> {
        if let Some((_, text)) = BUILTIN.iter().find(|(n, _)| *n == name) {
            return Self::parse(name, text, params);
        }
        if Path::new(name).extension().is_some_and(|e| e == "toml") {
            let text = std::fs::read_to_string(name)
                .map_err(|source| PatternError::Read { path: name.to_owned(), source })?;
            return Self::parse(name, &text, params);
        }
        let known: Vec<_> = BUILTIN.iter().map(|(n, _)| *n).collect();
        Err(PatternError::Unknown { name: name.to_owned(), known: known.join(", ") })
    }

    /// Reads a pattern from TOML text. `origin` names it in errors.
    ///
    /// # Errors
    /// When the text is no pattern or has no such parameter.
    pub fn parse(origin: &str, text: &str, params: &[(String, String)]) -> Result<Self, PatternError> {
        let syntax = |message: String| PatternError::Syntax { pattern: origin.to_owned(), message };
        let mut table: toml::Table = text.parse().map_err(|e: toml::de::Error| syntax(e.to_string()))?;
        let mut own = match table.remove("params") {
            None => toml::Table::new(),
            Some(toml::Value::Table(own)) => own,
            Some(_) => return Err(syntax("`params` must be a table".to_owned())),
        };
        for (key, value) in params {
            let Some(old) = own.get_mut(key) else {
                let known: Vec<_> = own.keys().cloned().collect();
                let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                return Err(PatternError::NoSuchParam {
                    pattern: origin.to_owned(),
                    key: key.clone(),
                    known,
                });
            };
            *old = value_like(value);
        }
        let mut table = toml::Value::Table(table);
        substitute(&mut table, &own).map_err(syntax)?;
        let mut pattern: Self = table.try_into().map_err(|e: toml::de::Error| syntax(e.to_string()))?;
        pattern.params = own;
        Ok(pattern)
    }
}

/// The TOML value that `text` from the command line stands for.
fn value_like(text: &str) -> toml::Value {
    if let Ok(n) = text.parse::<i64>() {
        toml::Value::Integer(n)
    } else if let Ok(n) = text.parse::<f64>() {
        toml::Value::Float(n)
    } else if let Ok(b) = text.parse::<bool>() {
        toml::Value::Boolean(b)
    } else {
        toml::Value::String(text.to_owned())
    }
}

fn substitute(value: &mut toml::Value, params: &toml::Table) -> Result<(), String> {
    match value {
        toml::Value::String(text) => {
            if let Some(key) = text.strip_prefix('$') {
                let Some(new) = params.get(key) else {
                    return Err(format!("`${key}` stands for no parameter; add `{key}` to [params]"));
                };
                *value = new.clone();
            }
            Ok(())
        }
        toml::Value::Array(items) => items.iter_mut().try_for_each(|v| substitute(v, params)),
        toml::Value::Table(items) => items.iter_mut().try_for_each(|(_, v)| substitute(v, params)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;

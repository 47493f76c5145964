//! Why a scheme is refused: which of its fields, and what is wrong with it.

use core::fmt;

/// A parameter of a [`Scheme`](super::Scheme).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Field {
    /// `pattern.size`, bytes.
    Size,
    /// `pattern.frequency`, samples or basis points.
    Frequency,
    /// `pattern.age`, aggregations or microseconds.
    Age,
    /// `apply_interval`.
    ApplyInterval,
    /// `quota.bytes`.
    QuotaBytes,
    /// `quota.time`.
    QuotaTime,
    /// `quota.goals`, the one of this index.
    Goal(usize),
    /// `watermarks`, permil.
    Watermarks,
    /// `filters.core`, the one of this index.
    CoreFilter(usize),
    /// `filters.ops`, the one of this index.
    OpsFilter(usize),
    /// `nodes`: where to migrate to.
    Nodes,
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Size => f.write_str("pattern.size"),
            Self::Frequency => f.write_str("pattern.frequency"),
            Self::Age => f.write_str("pattern.age"),
            Self::ApplyInterval => f.write_str("apply_interval"),
            Self::QuotaBytes => f.write_str("quota.bytes"),
            Self::QuotaTime => f.write_str("quota.time"),
            Self::Goal(index) => write!(f, "quota.goals[{index}]"),
            Self::Watermarks => f.write_str("watermarks"),
            Self::CoreFilter(index) => write!(f, "filters.core[{index}]"),
            Self::OpsFilter(index) => write!(f, "filters.ops[{index}]"),
            Self::Nodes => f.write_str("nodes"),
        }
    }
}

/// What is wrong with a [`Field`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The least value lies above the greatest.
    Reversed {
        /// The lower bound.
        min: u64,
        /// The upper bound.
        max: u64,
    },
    /// The value lies above what the field can have.
    Above {
        /// The value.
        value: u64,
        /// The greatest it can have.
        limit: u64,
    },
    /// Zero has no meaning there, or one that nobody can want.
    Zero,
    /// The action needs it, and there is none.
    Missing,
    /// Watermarks must be in the order high, mid, low, each at most as high as the one before.
    Unordered,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reversed { min, max } => write!(f, "the minimum, {min}, is above the maximum, {max}"),
            Self::Above { value, limit } => write!(f, "{value} is more than {limit}, the most there can be"),
            Self::Zero => f.write_str("must be more than zero"),
            Self::Missing => f.write_str("the action needs it"),
            Self::Unordered => f.write_str("must be ordered: high >= mid >= low"),
        }
    }
}

/// Why a [`Scheme`](super::Scheme) is not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {reason}")]
pub struct SchemeError {
    /// Which parameter.
    pub field: Field,
    /// What is wrong with it.
    pub reason: Reason,
}

impl SchemeError {
    pub(super) const fn zero(field: Field) -> Self {
        Self { field, reason: Reason::Zero }
    }
}

/// Why a list of schemes was not taken; nothing is changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("scheme {index}: {error}")]
pub struct CommitError {
    /// Which of the schemes, counted from 0.
    pub index: usize,
    /// What is wrong with it.
    pub error: SchemeError,
}

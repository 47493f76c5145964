//! What can fail.

use crate::Mapped;

/// There was no memory for a node. The tree is as it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no memory for a node of the range tree")]
pub struct NoMemory;

/// Why a range was not inserted. The tree is as it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InsertError<V> {
    /// The range is not free: the first value in it.
    #[error("the range is not free: {:#x} to {:#x} is taken", .0.first, .0.last)]
    Occupied(Mapped<V>),
    /// There was no memory for a node.
    #[error(transparent)]
    NoMemory(#[from] NoMemory),
}

/// Why a tree was not built.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BuildError {
    /// A range is empty, or does not begin after the one before: its first index.
    #[error("the range at {0:#x} is empty or not after the one before")]
    Unsorted(u64),
    /// There was no memory for a node.
    #[error(transparent)]
    NoMemory(#[from] NoMemory),
}

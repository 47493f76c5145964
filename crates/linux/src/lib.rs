//! DAMON on live Linux processes.
mod source;
pub use source::{Counters, Source, SourceError};

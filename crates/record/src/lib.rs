//! Recordings of data access patterns.
//!
//! A recording is a sequence of [`Item`]s. Whatever file they come from (our own format, one of damo's), a reader
//! hands out the same items; whatever file they go to, a writer takes the same items.
#![forbid(unsafe_code)]

mod model;

pub use model::*;

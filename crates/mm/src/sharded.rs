//! Counters that CPUs do not meet in: one of several for each.

/// Shards of a counter.
pub(crate) const SHARDS: usize = 8;

/// Alone on its cache lines (two, since x86-64 prefetches them in pairs).
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Padded<T>(pub(crate) T);

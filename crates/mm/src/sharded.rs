//! Counters that CPUs do not meet in.

use core::ops::Deref;

use crate::sync::counter::{AtomicU64, Ordering};

/// Shards of a counter: CPUs whose numbers differ by a multiple of it meet in its cache lines.
pub const SHARDS: usize = 8;

/// Alone on its cache lines (two, since x86-64 prefetches them in pairs).
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Padded<T>(pub(crate) T);

impl<T> Deref for Padded<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// A sum. A shard may be below zero.
#[derive(Debug)]
pub(crate) struct Sharded([Padded<AtomicU64>; SHARDS]);

impl Sharded {
    pub(crate) fn new() -> Self {
        Self(core::array::from_fn(|_| Padded(AtomicU64::new(0))))
    }

    /// `cpu` is any number; CPUs that differ in the lowest bits do not meet.
    pub(crate) fn add(&self, cpu: usize, change: i64) {
        if let Some(shard) = self.0.get(cpu % SHARDS) {
            shard.0.fetch_add(change.cast_unsigned(), Ordering::Relaxed);
        }
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.iter().fold(0, |sum, shard| sum.wrapping_add(shard.0.load(Ordering::Relaxed)))
    }
}

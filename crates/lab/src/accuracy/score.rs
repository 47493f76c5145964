//! Counting hits and misses.

use super::hot::{Class, Recorded};
use serde::Serialize;

/// Byte-nanoseconds by what they were and what the record called them. Whole numbers, so sums do not depend on their
/// order; 2^128 of them are a terabyte watched for ten billion years.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) hot_as_hot: u128,
    pub(super) hot_as_cold: u128,
    pub(super) cold_as_hot: u128,
    pub(super) cold_as_cold: u128,
    pub(super) ambiguous: u128,
    pub(super) unknown: u128,
}

impl Tally {
    pub(super) fn add(&mut self, truth: Class, recorded: Recorded, amount: u128) {
        let sum = match (truth, recorded) {
            (_, Recorded::Unknown) => &mut self.unknown,
            (Class::Hot, Recorded::Hot) => &mut self.hot_as_hot,
            (Class::Hot, Recorded::Cold) => &mut self.hot_as_cold,
            (Class::Cold, Recorded::Hot) => &mut self.cold_as_hot,
            (Class::Cold, Recorded::Cold) => &mut self.cold_as_cold,
            (Class::Ambiguous, _) => &mut self.ambiguous,
        };
        *sum = sum.saturating_add(amount);
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.hot_as_hot = self.hot_as_hot.saturating_add(other.hot_as_hot);
        self.hot_as_cold = self.hot_as_cold.saturating_add(other.hot_as_cold);
        self.cold_as_hot = self.cold_as_hot.saturating_add(other.cold_as_hot);
        self.cold_as_cold = self.cold_as_cold.saturating_add(other.cold_as_cold);
        self.ambiguous = self.ambiguous.saturating_add(other.ambiguous);
        self.unknown = self.unknown.saturating_add(other.unknown);
    }

    /// F1 of the hot bytes; `None` when nothing is hot and nothing was called hot.
    pub(super) fn f1(&self) -> Option<f64> {
        let hits = 2.0 * self.hot_as_hot as f64;
        let all = hits + self.hot_as_cold as f64 + self.cold_as_hot as f64;
        (all > 0.0).then(|| hits / all)
    }

    pub(super) fn score(&self) -> Score {
        let ratio = |hits: u128, misses: u128| {
            let all = hits as f64 + misses as f64;
            (all > 0.0).then(|| hits as f64 / all)
        };
        let byte_seconds = |n: u128| n as f64 / 1e9;
        Score {
            precision: ratio(self.hot_as_hot, self.cold_as_hot),
            recall: ratio(self.hot_as_hot, self.hot_as_cold),
            f1: self.f1(),
            hot_as_hot: byte_seconds(self.hot_as_hot),
            hot_as_cold: byte_seconds(self.hot_as_cold),
            cold_as_hot: byte_seconds(self.cold_as_hot),
            cold_as_cold: byte_seconds(self.cold_as_cold),
            ambiguous: byte_seconds(self.ambiguous),
            unknown: byte_seconds(self.unknown),
        }
    }
}

/// How well hot bytes were told from cold ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Score {
    /// Share of what was recorded hot that was hot; `None` when nothing was recorded hot.
    pub precision: Option<f64>,
    /// Share of what was hot that was recorded hot; `None` when nothing was hot.
    pub recall: Option<f64>,
    /// Harmonic mean of the two; `None` when nothing was hot and nothing was recorded hot, which is right.
    pub f1: Option<f64>,
    /// Byte-seconds that were hot and recorded hot.
    pub hot_as_hot: f64,
    /// Byte-seconds that were hot and recorded cold, or not at all.
    pub hot_as_cold: f64,
    /// Byte-seconds that were cold and recorded hot.
    pub cold_as_hot: f64,
    /// Byte-seconds that were cold and recorded cold, or not at all.
    pub cold_as_cold: f64,
    /// Byte-seconds too near the threshold to be judged, or in motion.
    pub ambiguous: f64,
    /// Byte-seconds of which the record says that it does not know.
    pub unknown: f64,
}

impl Score {
    /// All byte-seconds.
    fn all(&self) -> f64 {
        let judged = self.hot_as_hot + self.hot_as_cold + self.cold_as_hot + self.cold_as_cold;
        judged + self.ambiguous + self.unknown
    }

    /// Share of all byte-seconds that could not be judged.
    pub fn ambiguous_share(&self) -> Option<f64> {
        let all = self.all();
        (all > 0.0).then(|| self.ambiguous / all)
    }

    /// Share of all byte-seconds that the record does not know.
    pub fn unknown_share(&self) -> Option<f64> {
        let all = self.all();
        (all > 0.0).then(|| self.unknown / all)
    }
}

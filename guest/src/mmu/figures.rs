//! What the experiment counts, on all processors.

use alloc::string::String;
use core::fmt::Write;
use core::sync::atomic::{AtomicU64, Ordering};

/// A kind of thing that is counted.
#[derive(Clone, Copy, Debug)]
pub enum Figure {
    /// Loads, stores and fetches through page tables under test.
    Touches,
    /// Page faults that the processor raised.
    Faults,
    /// Faults that were refused.
    Refused,
    /// Write faults that ended with a copy.
    Copied,
    /// Write faults that ended without one.
    Reused,
    /// Address spaces forked.
    Forks,
    /// Pages found young by a harvest.
    Young,
    /// Huge leaves split.
    Splits,
    /// Pages, 2 MiB or parts of it collapsed to a huge leaf.
    Collapses,
    /// Flushes that another processor was asked for.
    Shootdowns,
    /// Folios split into smaller ones.
    Folios,
    /// Page tables that were given back.
    Tables,
    /// Operations of the random part.
    Operations,
    /// Contiguous blocks folded while they were in use.
    Folds,
    /// Contiguous blocks unfolded.
    Unfolds,
}

const NAMES: [&str; 15] = [
    "touches",
    "faults",
    "refused",
    "copied",
    "reused",
    "forks",
    "young",
    "splits",
    "collapses",
    "shootdowns",
    "folios",
    "tables",
    "operations",
    "folds",
    "unfolds",
];
/// Those behind have only some processors.
const COMMON: usize = Figure::Folds as usize;

static COUNTS: [AtomicU64; NAMES.len()] = [const { AtomicU64::new(0) }; NAMES.len()];

/// Adds `n`.
pub fn count(figure: Figure, n: u64) {
    COUNTS[figure as usize].fetch_add(n, Ordering::Relaxed);
}

/// How many so far.
pub fn counted(figure: Figure) -> u64 {
    COUNTS[figure as usize].load(Ordering::Relaxed)
}

/// From zero again.
pub fn reset() {
    COUNTS.iter().for_each(|count| count.store(0, Ordering::Relaxed));
}

/// `name=figure` of all that this processor has, a blank before each.
pub fn tell() -> String {
    NAMES.iter().zip(&COUNTS).enumerate().fold(String::new(), |mut text, (n, (name, count))| {
        let count = count.load(Ordering::Relaxed);
        if n < COMMON || count > 0 {
            let _ = write!(text, " {name}={count}");
        }
        text
    })
}

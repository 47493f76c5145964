//! How much of what was paged out is accessed again, by what was recorded of its rate.
//!
//! A rate that is recorded is an estimate, and says less than it seems to about one snapshot's time:
//! - it is never quite 0;
//! - where nothing is accessed any more it fades, over many snapshots;
//! - where nobody looked it stands still. A recording knows what was found at the next look: if that was less, the accesses that
//!   the old figure stands for were before, not since.

use isotherm_damon::RegionSnapshot;

/// Hits, by rate and exposure, with fewer of which memory was not seen to be accessed at all. Measured: regions of idle memory in
/// recordings of `pte` had 0.1 to 0.6, of its own prior and of the one hit that they may owe to their border.
const LEAST_HITS: f64 = 0.7;

/// The probability that a page is accessed in a sampling interval, as far as the evidence goes: a backend that keeps an account
/// of it still shows a rate of its own prior, or of a hit long ago, where nothing is accessed any more.
pub(super) fn accessed(region: &RegionSnapshot, max_nr_accesses: u32) -> f64 {
    let rate = region.probability(max_nr_accesses).min(1.0);
    if region.exposure == RegionSnapshot::COUNTED || region.exposure == 0 {
        return rate;
    }
    let exposure = f64::from(region.exposure);
    let hits = rate * exposure;
    if hits < LEAST_HITS { 0.0 } else { rate }
}

/// A rate that falls by more than this part of it a snapshot is an estimate that fades, of memory that is accessed no more. A
/// guess: estimates that remember for ten aggregations fall so.
const FADING: f64 = 0.1;

/// For a second what appeared counts as accessed (the monitor's rule), and about as long again its region shows that, ns.
pub(super) const APPEARED_NS: u64 = 2_000_000_000;

/// Part of memory that is accessed at random, where programs go over the rest in loops: a recording does not say which is which.
/// Fitted: with 0.1 what was predicted of the patterns `sweep` and `fft`, which are loops, and of `zipf`, which is random, was within
/// 20 % of what `scheme apply` then did (`ci/schemes.sh predict`); with 0 or 0.2 that of `fft` was not.
const AT_RANDOM: f64 = 0.1;

/// Share of pages that were not accessed since a moment, each having been so many times on average: at random that is `e^-x` of
/// them, in a loop `1 - x`.
pub(super) fn missed(accesses: f64) -> f64 {
    AT_RANDOM * (-accesses).exp() + (1.0 - AT_RANDOM) * (1.0 - accesses).max(0.0)
}

/// Share of what is out of a region that is accessed in so many intervals, `rate` being what is known to be accessed in one, and
/// `before` the same a snapshot ago.
pub(super) fn returning(region: &RegionSnapshot, rate: f64, before: f64, intervals: f64) -> f64 {
    let counted = region.exposure == RegionSnapshot::COUNTED;
    let rate = if counted { rate } else { (rate - (before - rate).max(0.0) / FADING).max(0.0) };
    match region.age {
        // Its rate has just changed, and its borders have not followed yet: rather a part of it is in use than all a little.
        0 if !region.is_unknown() => rate,
        _ => 1.0 - (1.0 - rate).powf(intervals),
    }
}

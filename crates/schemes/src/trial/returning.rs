//! How much of what was paged out is accessed again, by what was recorded of its rate.
//!
//! A rate that is recorded is an estimate, and says less than it seems to about one snapshot's time:
//! - it has a spread, and is never quite 0;
//! - where nothing is accessed any more it fades, over many snapshots;
//! - where nobody looked it stands still. A recording knows what was found at the next look: if that was less, the accesses that
//!   the old figure stands for were before, not since.

use isotherm_damon::{AddrRange, RegionSnapshot, Snapshot, TargetId};

/// Standard deviations by which a rate must be above 0. A guess: with less, the one hit that a region of idle memory may owe to
/// its border lets it come back bit by bit; with more, memory that is accessed every ten seconds does not.
const SURE: f64 = 1.5;

/// The probability that a page is accessed in a sampling interval, as far as the evidence goes: a backend that keeps an account
/// of it still shows a rate of its own prior, or of a hit long ago, where nothing is accessed any more.
pub(super) fn accessed(region: &RegionSnapshot, max_nr_accesses: u32) -> f64 {
    let rate = region.probability(max_nr_accesses).min(1.0);
    if region.exposure == RegionSnapshot::COUNTED || region.exposure == 0 {
        return rate;
    }
    let exposure = f64::from(region.exposure);
    let hits = rate * exposure;
    ((hits - SURE * hits.sqrt()) / exposure).clamp(0.0, 1.0)
}

/// A rate that falls by more than this part of it a snapshot is an estimate that fades, of memory that is accessed no more. A
/// guess: estimates that remember for ten aggregations fall so.
const FADING: f64 = 0.1;

/// How far ahead it is looked, ns, and in how many snapshots at most. A monitor with a budget of 1 % of a CPU looked at a
/// program of 1 GiB all of which had been written every 2.4 s (`isotherm lab schemes`, pattern `build`); this is twice that.
pub(super) const AHEAD_NS: u64 = 5_000_000_000;
pub(super) const AHEAD: usize = 128;

/// What is known to be accessed of a range at a snapshot, as [`accessed`]; `None`: nothing is said of it.
pub(super) fn accessed_at(snapshot: &Snapshot, target: TargetId, range: AddrRange) -> Option<f64> {
    let target = snapshot.targets.iter().find(|one| one.id == target)?;
    let first = target.regions.partition_point(|region| region.range.end <= range.start);
    let touching = target.regions.iter().skip(first).take_while(|region| region.range.start < range.end);
    let (mut sum, mut bytes) = (0.0, 0.0);
    for region in touching {
        let common = region.range.intersection(range).size() as f64;
        sum += accessed(region, snapshot.max_nr_accesses) * common;
        bytes += common;
    }
    (bytes > 0.0).then(|| sum / bytes)
}

/// Share of what is out of a region that is accessed in so many intervals, `rate` being what is known to be accessed in one, and
/// `before` the same a snapshot ago.
pub(super) fn returning(region: &RegionSnapshot, rate: f64, before: f64, intervals: f64) -> f64 {
    let counted = region.exposure == RegionSnapshot::COUNTED;
    let rate = if counted { rate } else { (rate - (before - rate).max(0.0) / FADING).max(0.0) };
    match region.age {
        _ if region.is_unknown() => 0.0,
        // Its rate has just changed, and its borders have not followed yet: rather a part of it is in use than all a little.
        0 => rate,
        _ => 1.0 - (1.0 - rate).powf(intervals),
    }
}

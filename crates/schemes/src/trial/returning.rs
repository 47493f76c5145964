//! How much of what was paged out is accessed again, by what was recorded of its rate.
//!
//! A rate that is recorded is an estimate, and says less than it seems to about one snapshot's time:
//! - it is never quite 0;
//! - where nothing is accessed any more it fades, over many snapshots;
//! - where nobody looked it stands still. A recording knows what was found at the next look: if that was less, the accesses that
//!   the old figure stands for were before, not since.

use isotherm_damon::RegionSnapshot;

/// Hits, by rate and exposure, with fewer of which memory was not seen to be accessed at all: less than one. Measured: regions of idle
/// memory in recordings of `pte` had 0.1 to 0.72, of its own prior and of a part of a window that they may owe to their border.
const LEAST_HITS: f64 = 1.0;

/// An exposure so many times as long as the stretch of time in question says by itself that memory is not accessed in that: what is
/// accessed once in it shows nothing for so long with a probability of `e^-3`, 5 %.
const TELLS: f64 = 3.0;

/// What a recording has to say for memory to be taken as idle.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Evidence {
    pub max_nr_accesses: u32,
    /// Least exposure, in sampling intervals. Less is no evidence of anything, and unknown is not cold.
    pub exposure: f64,
}

impl Evidence {
    /// Of memory that schemes act on which was idle for so many sampling intervals.
    pub fn of_idle_for(intervals: f64, max_nr_accesses: u32) -> Self {
        Self { max_nr_accesses, exposure: TELLS * intervals }
    }
}

/// The probability that a page is accessed in a sampling interval, as far as the evidence goes: a backend that keeps an account
/// of it still shows a rate of its own prior, or of a hit long ago, where nothing is accessed any more. Where it hardly looked that is
/// all there is to go by.
pub(super) fn accessed(region: &RegionSnapshot, evidence: Evidence) -> f64 {
    let rate = region.probability(evidence.max_nr_accesses).min(1.0);
    if region.exposure == RegionSnapshot::COUNTED || region.exposure == 0 {
        return rate;
    }
    let exposure = f64::from(region.exposure);
    let hits = rate * exposure;
    if hits < LEAST_HITS && exposure >= evidence.exposure { 0.0 } else { rate }
}

/// A rate that falls by more than this part of it a snapshot is an estimate that fades, of memory that is accessed no more. A
/// guess: estimates that remember for ten aggregations fall so.
const FADING: f64 = 0.1;

/// It fell by no more than an estimate fades by itself: nobody saw an access.
pub(super) fn is_stale(rate: f64, before: f64) -> bool {
    rate <= before && rate >= before * (1.0 - FADING)
}

/// For a second what appeared counts as accessed (the monitor's rule), and about as long again its region shows that, ns.
pub(super) const APPEARED_NS: u64 = 2_000_000_000;

/// How late a look may come after the access that it finds, ns. A monitor with a budget of 1 % of a CPU looked at a program of 1 GiB every
/// 2.4 s (see `AHEAD_NS`).
const LATE_NS: f64 = 2.4e9;

/// Share of pages that were not accessed in a stretch of time, each having been so many times on average as far as looks tell, and `rate`
/// times in a sampling interval of so many ns.
///
/// In a loop of period `P` it is `1 - t/P` of them in a time `t`. A look comes after the access that it finds, and a monitor's windows
/// double: found accessed once in a time `L`, memory is gone over once in a time of at least `L/2` and at most `L`, or of at least what
/// is left of `L` if the look was late. This is the mean over those times. Memory that is accessed at random has more such pages, `e^-x`
/// of them if all are accessed as often; a recording does not say which it is.
pub(super) fn missed(accesses: f64, rate: f64, sample_ns: f64) -> f64 {
    if accesses <= 0.0 {
        return 1.0;
    }
    // All as parts of `L`.
    let late = (LATE_NS / sample_ns * rate).clamp(0.5, 1.0);
    let shortest = accesses.max(1.0 - late).min(1.0);
    ((1.0 - shortest + accesses * shortest.ln()) / late).clamp(0.0, 1.0)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_idle_where_it_was_watched_for_long_enough() {
        let region = |nr_accesses_bp, exposure| RegionSnapshot {
            nr_accesses_bp,
            exposure,
            seen_bp: 10_000,
            ..RegionSnapshot::default()
        };
        // A second of 200 intervals; half a hit is what the monitor begins with.
        let evidence = Evidence::of_idle_for(200.0, 20);
        let at = |exposure: u32| {
            let half_a_hit = (0.5 / f64::from(exposure) * 20.0 * 10_000.0) as u32;
            accessed(&region(half_a_hit, exposure), evidence) * 200.0
        };
        assert!(at(100) > 0.9, "watched for half a second, it may be accessed every second: {}", at(100));
        assert!(at(500) > 0.19);
        assert_eq!((at(600), at(100_000)), (0.0, 0.0));
        // A hit is one, however long it was watched.
        assert!(accessed(&region(200, 1000), evidence) > 0.0);
    }

    #[test]
    fn what_is_gone_over_in_the_time_in_question_is_not_missed() {
        const SAMPLE_NS: f64 = 5e6;
        // Once in so many seconds, and the shortest time that it may be.
        for (every_s, shortest) in [(2.0, 0.0), (4.0, 1.6), (10.0, 5.0)] {
            let rate = SAMPLE_NS / 1e9 / every_s;
            let of = |accesses| missed(accesses, rate, SAMPLE_NS);
            assert_eq!([-1.0, 0.0, 1.0, 7.0].map(of), [1.0, 1.0, 0.0, 0.0]);
            for accesses in [0.1, 0.5, 0.7, 0.9] {
                // The mean over loops of the lengths that there may be.
                let lengths =
                    (1..=10_000).map(|n| every_s * f64::from(n) / 1e4).filter(|length| *length > shortest);
                let shares: Vec<f64> =
                    lengths.map(|length| (1.0 - accesses * every_s / length).max(0.0)).collect();
                let mean = shares.iter().sum::<f64>() / shares.len() as f64;
                assert!(
                    (of(accesses) - mean).abs() < 0.001,
                    "{every_s} s, {accesses}: {} {mean}",
                    of(accesses)
                );
            }
        }
    }
}

//! From counts of one snapshot to rates in Hz, and to the time it stands for.

use isotherm_damon::{RegionSnapshot, Snapshot};

/// [`RegionSnapshot::accesses_bp`] of one access.
pub(crate) const BP: f64 = 10_000.0;

/// What one access count of a snapshot is worth. Computed once a snapshot, so that a region costs one multiplication.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateScale {
    hz_per_bp: f64,
    max_bp: Option<f64>,
}

impl RateScale {
    /// The scale of `snapshot`: the same rule as [`RegionSnapshot::rate_hz`]. Formats that record no sampling interval
    /// (the binary record format) leave the length of the aggregation, over which the accesses were counted.
    pub fn of(snapshot: &Snapshot) -> Self {
        let max = f64::from(snapshot.max_nr_accesses);
        let counted_ns = snapshot.sample_ns as f64 * max;
        let (start, end) = interval_ns(snapshot);
        let counted_ns = if counted_ns > 0.0 { counted_ns } else { (end - start) as f64 };
        Self {
            hz_per_bp: crate::units::SECOND_NS / BP / counted_ns,
            max_bp: (snapshot.max_nr_accesses > 0).then_some(max * BP),
        }
    }

    /// Access rate of a region in Hz: no more than one access a sampling interval, whatever a file says.
    pub fn hz(self, region: &RegionSnapshot) -> f64 {
        (region.accesses_bp() as f64).min(self.max_bp.unwrap_or(f64::INFINITY)) * self.hz_per_bp
    }

    /// Hz of one of [`RegionSnapshot::accesses_bp`].
    pub fn hz_per_bp(self) -> f64 {
        self.hz_per_bp
    }

    /// The highest rate that the snapshot can show, Hz; `None` when the recording does not say how many samples an
    /// aggregation has.
    pub fn max_hz(self) -> Option<f64> {
        self.max_bp.map(|bp| bp * self.hz_per_bp)
    }
}

/// The share of a region's pages that its accesses are of: all of them, where it is not known that some are idle.
pub fn share_in_use(region: &RegionSnapshot) -> f64 {
    1.0 - f64::from(region.idle_bp.min(9999)) / BP
}

/// The share of a region's pages that are accessed at least once in so many sampling intervals, where `max_bp` is the most of
/// [`RegionSnapshot::accesses_bp`] that there can be.
pub fn share_accessed(region: &RegionSnapshot, max_bp: f64, intervals: f64) -> f64 {
    let in_use = share_in_use(region);
    let missed = (1.0 - region.accesses_bp() as f64 / max_bp / in_use).max(0.0);
    in_use * (1.0 - missed.powf(intervals))
}

/// The limit of [`share_accessed`] for short intervals: by the region's rate alone, which is `hz`.
pub(crate) fn share_accessed_by_rate(region: &RegionSnapshot, hz: f64, seconds: f64) -> f64 {
    let in_use = share_in_use(region);
    in_use * -(-hz / in_use * seconds).exp_m1()
}

/// Time that is missing beyond this, seconds, is a time in which nothing is known: between snapshots, or inside one. A guess:
/// more than a late aggregation, less than the shortest time after which anything is called cold.
pub const GAP_S: f64 = 2.0;

/// DAMON's default aggregation interval.
const DEFAULT_AGGR_NS: u64 = 100_000_000;

/// The time a snapshot stands for, `(start, end)` in ns with `start < end`.
///
/// Most often that is what [`recorded_ns`] returns. A snapshot that took more than [`GAP_S`] longer than its sampling
/// intervals stood still on the way, with the recorder or the machine: nothing was observed then. It stands for the
/// aggregation interval before its end, and the rest of it is a gap.
pub fn interval_ns(snapshot: &Snapshot) -> (u64, u64) {
    let (start, end) = recorded_ns(snapshot);
    let aggr = snapshot.sample_ns.saturating_mul(u64::from(snapshot.max_nr_accesses));
    let late = (end - start).saturating_sub(aggr) as f64 > GAP_S * crate::units::SECOND_NS;
    if aggr > 0 && late { (end - aggr, end) } else { (start, end) }
}

/// From when to when a snapshot was taken, `(start, end)` in ns with `start < end`. Where a recording gives no length (a
/// single snapshot of a format without start times), the aggregation interval before its end; where that is not known either, DAMON's
/// default of 100 ms; at least 1 ns.
pub fn recorded_ns(snapshot: &Snapshot) -> (u64, u64) {
    if snapshot.start_ns < snapshot.end_ns {
        return (snapshot.start_ns, snapshot.end_ns);
    }
    let end = snapshot.end_ns.max(1);
    let aggr = match snapshot.sample_ns.saturating_mul(u64::from(snapshot.max_nr_accesses)) {
        0 => DEFAULT_AGGR_NS,
        aggr => aggr,
    };
    (end.saturating_sub(aggr), end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(nr: u32) -> RegionSnapshot {
        RegionSnapshot { nr_accesses: nr, nr_accesses_bp: nr * 10_000, ..RegionSnapshot::default() }
    }

    #[test]
    fn a_region_seen_in_every_sample_of_5_ms_is_at_200_hz() {
        let snapshot = Snapshot {
            start_ns: 0,
            // The aggregation came late: the rate is that of the samples, not of the wall.
            end_ns: 130_000_000,
            sample_ns: 5_000_000,
            max_nr_accesses: 20,
            targets: Vec::new(),
        };
        let scale = RateScale::of(&snapshot);
        assert!((scale.hz(&region(20)) - 200.0).abs() < 1e-9);
        assert!((scale.max_hz().unwrap() - 200.0).abs() < 1e-9);
        assert!((scale.hz(&region(7)) - region(7).rate_hz(5_000_000, 20)).abs() < 1e-9);
    }

    #[test]
    fn no_rate_is_above_one_access_a_sampling_interval() {
        let snapshot = |max_nr_accesses, sample_ns| Snapshot {
            end_ns: 200_000_000,
            sample_ns,
            max_nr_accesses,
            ..Snapshot::default()
        };
        // Of 10 samples of 10 ms no more than 10 can have seen an access: files of others say otherwise now and then.
        for (nr, hz) in [(3, 30.0), (10, 100.0), (15, 100.0)] {
            assert!((RateScale::of(&snapshot(10, 10_000_000)).hz(&region(nr)) - hz).abs() < 1e-9, "{nr}");
        }
        assert!((RateScale::of(&snapshot(0, 0)).hz(&region(40)) - 200.0).abs() < 1e-9, "where nobody knows");
    }

    #[test]
    fn without_a_sampling_interval_the_rate_is_accesses_a_second() {
        let snapshot = Snapshot { start_ns: 0, end_ns: 100_000_000, ..Snapshot::default() };
        let scale = RateScale::of(&snapshot);
        assert!((scale.hz(&region(20)) - 200.0).abs() < 1e-9);
        assert_eq!(scale.max_hz(), None);
    }

    #[test]
    fn a_snapshot_without_length_gets_its_aggregation_interval() {
        let mut snapshot =
            Snapshot { start_ns: 5, end_ns: 5, sample_ns: 2, max_nr_accesses: 2, targets: Vec::new() };
        assert_eq!(interval_ns(&snapshot), (1, 5));
        snapshot.end_ns = 0;
        assert_eq!(interval_ns(&snapshot), (0, 1));
    }

    #[test]
    fn of_a_snapshot_without_length_and_interval_the_default_is_taken() {
        let snapshot = Snapshot { start_ns: 5_000_000_000, end_ns: 5_000_000_000, ..Snapshot::default() };
        assert_eq!(interval_ns(&snapshot), (4_900_000_000, 5_000_000_000));
        assert!((RateScale::of(&snapshot).hz(&region(7)) - 70.0).abs() < 1e-9, "not 7 GHz");
    }

    #[test]
    fn a_snapshot_that_stood_still_stands_for_its_last_aggregation_interval() {
        let taken = |end_ns, sample_ns| Snapshot {
            start_ns: 1_000_000_000,
            end_ns,
            sample_ns,
            max_nr_accesses: 20,
            targets: Vec::new(),
        };
        let second = 1_000_000_000;
        assert_eq!(interval_ns(&taken(61 * second, 5_000_000)), (60_900_000_000, 61 * second));
        assert_eq!(
            interval_ns(&taken(3 * second, 5_000_000)),
            (second, 3 * second),
            "late, as on a busy machine"
        );
        assert_eq!(
            interval_ns(&taken(61 * second, 3 * second)),
            (second, 61 * second),
            "long sampling intervals"
        );
        assert_eq!(
            interval_ns(&taken(61 * second, 0)),
            (second, 61 * second),
            "a format without sampling intervals"
        );
    }
}

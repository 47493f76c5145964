use super::*;
use isotherm_damon::AddrRange;
use isotherm_workloads::truth::{Arrivals, RangeLine, Stated};
use proptest::prelude::*;

fn range(pid: u32, start: u64, end: u64, hz: f64, shared: bool) -> RangeLine {
    RangeLine {
        pid,
        area: "a".into(),
        start,
        end,
        unit: 1,
        rate: Stated::Hz(hz),
        achieved_hz: hz,
        arrivals: if hz > 0.0 { Arrivals::Periodic } else { Arrivals::None },
        write: false,
        hot: false,
        touches: 0,
        missed: 0,
        max_gap_ns: 0,
        shared,
        courses: Vec::new(),
    }
}

fn phase(ranges: Vec<RangeLine>) -> PhaseLine {
    PhaseLine {
        index: 0,
        name: "p".into(),
        start_ns: 0,
        end_ns: 10 * SECOND_NS,
        complete: true,
        ranges,
        courses: Vec::new(),
    }
}

/// With 5 ms sampling, 20 samples an aggregation: `share` of them, in 1/10000.
fn region(start: u64, end: u64, share: f64) -> RegionSnapshot {
    RegionSnapshot {
        range: AddrRange::new(start, end),
        nr_accesses: (share * 20.0) as u32,
        nr_accesses_bp: (share * 200_000.0).round() as u32,
        ..RegionSnapshot::default()
    }
}

fn snapshot(end_ns: u64) -> Snapshot {
    Snapshot {
        start_ns: end_ns - 100_000_000,
        end_ns,
        sample_ns: 5_000_000,
        max_nr_accesses: 20,
        targets: Vec::new(),
    }
}

fn judged(phase: &PhaseLine, regions: &[(u32, Vec<RegionSnapshot>)]) -> Option<Second> {
    let mut seconds = Seconds::default();
    seconds.judge(phase, &regions.iter().cloned().collect(), &snapshot(2 * SECOND_NS));
    seconds.verdict()
}

#[test]
fn a_rate_says_how_many_bytes_a_second_accesses() {
    let phase = phase(vec![range(1, 0, 100, 20.0, false), range(1, 100, 300, 0.0, false)]);
    // Half a percent of the samples: 63 % of 200 samples have one.
    let got = judged(&phase, &[(1, vec![region(0, 100, 1.0), region(100, 200, 0.005)])]).unwrap();
    let wrong = 100.0 * (1.0 - 0.995f64.powi(200));
    assert!((got.precision.unwrap() - 100.0 / (100.0 + wrong)).abs() < 1e-9);
    assert_eq!((got.recall, got.truth.p50), (Some(1.0), 100));
    assert!((got.ratio.unwrap() - (100.0 + wrong) / 100.0).abs() < 1e-9);
    assert_eq!(got.recorded.p50, (100.0 + wrong).round() as u64);
}

#[test]
fn a_second_that_began_before_its_phase_is_not_judged() {
    let mut seconds = Seconds::default();
    let phase = phase(vec![range(1, 0, 100, 20.0, false)]);
    seconds.judge(&phase, &BTreeMap::from([(1, Vec::new())]), &snapshot(SECOND_NS - 1));
    assert_eq!(seconds.verdict(), None);
}

#[test]
fn shared_memory_counts_once_with_the_accesses_of_all() {
    let of = |pid, a, b| vec![range(pid, 0, 100, a, true), range(pid, 100, 200, b, true)];
    let phase = phase(of(1, 20.0, 0.0).into_iter().chain(of(2, 20.0, 20.0)).collect());
    // The one is known right, the other not at all: together all bytes accessed are known but those of the other alone.
    let got = judged(&phase, &[(1, vec![region(0, 100, 1.0)]), (2, vec![region(0, 200, 0.0)])]).unwrap();
    assert_eq!((got.truth.p50, got.recorded.p50), (200, 100));
    assert_eq!((got.precision, got.recall), (Some(1.0), Some(0.5)));
}

#[test]
fn what_is_unknown_is_missing_from_all_but_the_truth() {
    let phase = phase(vec![range(1, 0, 100, 20.0, false), range(1, 100, 150, 20.0, false)]);
    let unknown = RegionSnapshot { seen_bp: 0, ..region(100, 150, 0.0) };
    let got = judged(&phase, &[(1, vec![region(0, 100, 1.0), unknown])]).unwrap();
    assert_eq!((got.truth.p50, got.recorded.p50), (150, 100));
    assert_eq!((got.recall, got.ratio), (Some(1.0), Some(1.0)));
    assert!((got.unknown_share - 1.0 / 3.0).abs() < 1e-9);
}

proptest! {
    /// Byte by byte.
    #[test]
    fn what_both_have_in_common_is_the_smaller_of_both(
        truth in proptest::collection::vec((1..20u64, prop_oneof![Just(0.0), Just(20.0), 0.0..1.0f64]), 1..6),
        record in proptest::collection::vec((1..20u64, 0.0..0.02f64), 0..6),
    ) {
        let mut at = 0;
        let ranges: Vec<_> = truth
            .iter()
            .map(|&(size, hz)| {
                at += size;
                range(1, at - size, at, hz, false)
            })
            .collect();
        let end = at;
        at = 0;
        let regions: Vec<_> = record
            .iter()
            .map(|&(size, share)| {
                at += size;
                region(at - size, at, share)
            })
            .collect();
        let (mut common, mut real, mut recorded) = (0.0, 0.0, 0.0);
        for byte in 0..end {
            let q = ranges.iter().find(|r| r.start <= byte && byte < r.end).map_or(0.0, |r| r.achieved_hz.min(1.0));
            let p = regions
                .iter()
                .find(|r| r.range.contains(byte))
                .map_or(0.0, |r| accessed_within(r, SECOND_NS, &snapshot(2 * SECOND_NS)));
            common += q.min(p);
            real += q;
            recorded += p;
        }
        let mut seconds = Seconds::default();
        seconds.judge(&phase(ranges), &BTreeMap::from([(1, regions)]), &snapshot(2 * SECOND_NS));
        prop_assert!((seconds.common - common).abs() < 1e-6);
        prop_assert!((seconds.truth - real).abs() < 1e-6);
        prop_assert!((seconds.recorded - recorded).abs() < 1e-6);
    }
}

#[test]
fn no_more_than_is_resident_was_accessed() {
    let half = RegionSnapshot { resident: Some(1000), ..region(0, 2000, 1.0) };
    let there = RegionSnapshot { resident: Some(500), ..region(2000, 2500, 1.0) };
    let phase = phase(vec![range(1, 0, 1000, 100.0, false), range(1, 1000, 2500, 0.0, false)]);
    let found = judged(&phase, &[(1, vec![half, there])]).unwrap();
    assert_eq!((found.truth.p50, found.recorded.p50), (1000, 1500));
}

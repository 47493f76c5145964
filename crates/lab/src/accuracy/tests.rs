use super::*;
use isotherm_damon::{AddrRange, TargetSnapshot};
use isotherm_workloads::truth::{AreaLine, Arrivals, Page, ProcessLine, Stated, Workload};
use proptest::prelude::*;

const PID: u64 = 42;
const MS: u64 = 1_000_000;

fn range(start: u64, end: u64, hz: f64) -> RangeLine {
    RangeLine {
        pid: PID as u32,
        area: "a".into(),
        start,
        end,
        unit: 1,
        rate: Stated::Hz(hz),
        achieved_hz: hz,
        arrivals: if hz > 0.0 { Arrivals::Periodic } else { Arrivals::None },
        write: false,
        hot: hz >= 10.0,
        touches: 0,
        missed: 0,
        max_gap_ns: 0,
        shared: false,
        courses: Vec::new(),
    }
}

fn phase(index: u32, start_ms: u64, end_ms: u64, ranges: Vec<RangeLine>) -> PhaseLine {
    let name = format!("p{index}");
    PhaseLine {
        index,
        name,
        start_ns: start_ms * MS,
        end_ns: end_ms * MS,
        complete: true,
        ranges,
        courses: Vec::new(),
    }
}

fn truth(pattern: &str, phases: Vec<PhaseLine>) -> Truth {
    Truth {
        workload: Workload {
            version: 1,
            pattern: pattern.into(),
            pid: PID as u32,
            page: Page::Base,
            unit: 1,
            clock: "CLOCK_MONOTONIC".into(),
            seed: 1,
            time_scale: 1.0,
            hot_hz: 10.0,
            params: serde_json::Value::Null,
        },
        processes: vec![ProcessLine { name: "main".into(), pid: PID as u32, phase: None }],
        areas: Vec::<AreaLine>::new(),
        phases,
        work: Vec::new(),
        end: None,
    }
}

fn region(start: u64, end: u64, nr_accesses: u32) -> RegionSnapshot {
    RegionSnapshot {
        range: AddrRange::new(start, end),
        nr_accesses,
        nr_accesses_bp: nr_accesses * 10_000,
        age: 0,
        ..RegionSnapshot::default()
    }
}

/// 5 ms sampling, 100 ms aggregation.
fn snapshot(start_ms: u64, end_ms: u64, regions: Vec<RegionSnapshot>) -> Snapshot {
    Snapshot {
        start_ns: start_ms * MS,
        end_ns: end_ms * MS,
        sample_ns: 5 * MS,
        max_nr_accesses: 20,
        targets: vec![TargetSnapshot::new(TargetId(PID), regions)],
    }
}

fn judge(truth: &Truth, options: Options, snapshots: &[Snapshot]) -> Accuracy {
    let mut judge = Judge::new(truth, None, options).unwrap();
    snapshots.iter().for_each(|s| judge.add(s));
    judge.finish()
}

#[test]
fn a_record_that_is_right_scores_one_and_its_surroundings_do_not_count() {
    let truth = truth("t", vec![phase(0, 0, 1000, vec![range(100, 200, 200.0), range(200, 400, 0.0)])]);
    // 0..100 and 400..500 are the process's own business, hot or not.
    let regions = vec![region(0, 50, 20), region(50, 200, 20), region(200, 380, 0), region(400, 500, 9)];
    let got =
        judge(&truth, Options::default(), &[snapshot(0, 100, regions.clone()), snapshot(100, 200, regions)]);
    assert_eq!((got.score.precision, got.score.recall, got.score.f1), (Some(1.0), Some(1.0), Some(1.0)));
    assert!((got.score.hot_as_hot - 100.0 * 0.2).abs() < 1e-9);
    assert!((got.score.cold_as_cold - 200.0 * 0.2).abs() < 1e-9);
    let wss = got.wss.unwrap();
    assert_eq!((wss.truth.p50, wss.inside.p50, wss.process.p50), (100, 100, 300));
    assert_eq!(wss.p50_error, Some(0.0));
}

#[test]
fn half_right_is_half_right() {
    let truth = truth("t", vec![phase(0, 0, 1000, vec![range(0, 100, 200.0), range(100, 200, 0.0)])]);
    // 50 of 100 hot bytes found; 50 cold bytes called hot.
    let got = judge(&truth, Options::default(), &[snapshot(0, 100, vec![region(50, 150, 1)])]);
    assert_eq!((got.score.precision, got.score.recall, got.score.f1), (Some(0.5), Some(0.5), Some(0.5)));
    assert_eq!(got.wss.unwrap().p50_error, Some(0.0));
}

#[test]
fn windows_across_a_change_or_outside_phases_are_counted_not_judged() {
    let hot = |a, b| vec![range(0, 100, a), range(100, 200, b)];
    let truth = truth("t", vec![phase(0, 100, 300, hot(200.0, 0.0)), phase(1, 300, 500, hot(0.0, 200.0))]);
    let wrong = || vec![region(0, 200, 0)];
    let got = judge(
        &truth,
        Options::default(),
        &[
            snapshot(0, 100, wrong()),  // before
            snapshot(50, 150, wrong()), // into the first phase
            snapshot(150, 250, vec![region(0, 100, 20)]),
            snapshot(250, 350, wrong()), // across
            snapshot(350, 450, vec![region(100, 200, 20)]),
            snapshot(450, 550, wrong()), // out of the last
            snapshot(550, 650, wrong()), // after
            snapshot(400, 400, wrong()), // without length
        ],
    );
    let w = got.windows;
    assert_eq!((w.judged, w.across_change, w.outside), (2, 3, 3));
    assert_eq!((w.judged_ns, w.phase_ns), (200 * MS, 400 * MS));
    assert_eq!(got.score.f1, Some(1.0));
}

#[test]
fn convergence_is_the_time_until_the_first_good_window() {
    let hot = |a, b| vec![range(0, 100, a), range(100, 200, b)];
    let truth = truth(
        "t",
        vec![
            phase(0, 0, 1000, hot(200.0, 0.0)),
            phase(1, 1000, 2000, hot(0.0, 200.0)),
            phase(2, 2000, 3000, hot(0.0, 0.0)),
            phase(3, 3000, 4000, hot(200.0, 200.0)),
        ],
    );
    let record = |t: u64, a, b| snapshot(t, t + 100, vec![region(0, 100, a), region(100, 200, b)]);
    let got = judge(
        &truth,
        Options::default(),
        &[
            record(0, 20, 0),
            record(1000, 20, 0),
            record(1100, 20, 20),
            record(1200, 0, 20),
            record(1300, 20, 20),
            record(2000, 0, 1),
            record(2100, 0, 0),
            record(3000, 0, 0),
        ],
    );
    let after: Vec<_> = got.phases.iter().map(|p| p.converged_after_ms).collect();
    assert_eq!(after, [Some(100.0), Some(300.0), Some(200.0), None]);
    // From then on: one window right, one with twice as much as there is.
    assert_eq!(got.phases[1].f1_once_converged, Some(0.8));
    // Nothing is hot in the third phase: only its wrong window has an F1.
    assert_eq!((got.phases[2].score.f1, got.phases[2].f1_once_converged), (Some(0.0), None));
    let c = got.convergence;
    assert_eq!((c.phases, c.converged, c.median_ms, c.max_ms), (4, 3, Some(200.0), Some(300.0)));
}

#[test]
fn rates_near_the_threshold_are_left_out_and_told() {
    let ranges = vec![range(0, 100, 200.0), range(100, 200, 10.0), range(200, 300, 1.0)];
    let truth = truth("t", vec![phase(0, 0, 1000, ranges)]);
    let snapshots = [snapshot(0, 100, vec![region(0, 200, 20), region(200, 300, 0)])];
    let got = judge(&truth, Options::default(), &snapshots);
    assert_eq!(got.score.f1, Some(1.0));
    assert!((got.score.ambiguous_share().unwrap() - 1.0 / 3.0).abs() < 1e-9);
    let strict = judge(&truth, Options { margin: 1.0, ..Options::default() }, &snapshots);
    assert_eq!((strict.score.f1, strict.score.ambiguous_share()), (Some(1.0), Some(0.0)));
    let high = Options { threshold: Threshold::Hz(50.0), ..Options::default() };
    let got = judge(&truth, high, &snapshots);
    assert_eq!((got.score.precision, got.score.recall), (Some(0.5), Some(1.0)));
}

#[test]
fn a_rate_threshold_takes_regions_that_just_reach_it() {
    let truth = truth("t", vec![phase(0, 0, 1000, vec![range(0, 100, 100.0)])]);
    for (nr, hz) in [(3, 30.0), (7, 70.0), (1, 10.0)] {
        let options = Options { threshold: Threshold::Hz(hz), margin: 1.0, ..Options::default() };
        let got = judge(&truth, options, &[snapshot(0, 100, vec![region(0, 100, nr)])]);
        assert_eq!(got.score.recall, Some(1.0), "{hz} Hz");
        let got = judge(&truth, options, &[snapshot(0, 100, vec![region(0, 100, nr - 1)])]);
        assert_eq!(got.score.recall, Some(0.0), "{hz} Hz");
    }
    // 41 of 80 samples of 12.5 ms are 41 Hz, but come out as 40.99999999999999.
    let rounded = Snapshot {
        sample_ns: 12_500_000,
        max_nr_accesses: 80,
        ..snapshot(0, 1000, vec![region(0, 100, 41)])
    };
    let options = Options { threshold: Threshold::Hz(41.0), margin: 1.0, ..Options::default() };
    assert_eq!(judge(&truth, options, &[rounded]).score.recall, Some(1.0));
}

#[test]
fn rates_are_compared_with_what_can_be_counted() {
    let mut random = range(300, 400, 200.0);
    random.arrivals = Arrivals::Random;
    let ranges = vec![range(0, 100, 1000.0), range(100, 200, 50.0), range(200, 300, 0.0), random];
    let truth = truth("t", vec![phase(0, 0, 1000, ranges)]);
    let regions = vec![region(0, 100, 20), region(100, 150, 5), region(150, 300, 1), region(300, 400, 12)];
    let got = judge(&truth, Options::default(), &[snapshot(0, 100, regions)]);
    let rates: Vec<_> =
        got.rates.iter().map(|r| (r.achieved_hz, r.countable_hz.round(), r.recorded_hz.round())).collect();
    // 50 Hz: half of it seen at 50, half at 10. Poisson at 200 Hz: (1 - 1/e) of 200 samples a second.
    assert_eq!(rates, [(1000.0, 200.0, 200.0), (200.0, 126.0, 120.0), (50.0, 50.0, 30.0), (0.0, 0.0, 10.0)]);
    assert!((got.rates[2].relative_error.unwrap() + 0.4).abs() < 1e-9);
    assert_eq!(got.rates[3].relative_error, None);
}

#[test]
fn known_bounds_hold_for_the_builtin_sizes_only() {
    let size = 10u64 << 20;
    let make = |size| truth("stairs", vec![phase(0, 0, 1000, vec![range(1 << 30, (1 << 30) + size, 250.0)])]);
    let run = |size, seen| {
        let regions = vec![region(1 << 30, (1 << 30) + seen, 20)];
        judge(&make(size), Options::default(), &[snapshot(0, 100, regions)]).wss.unwrap().p50_in_bounds()
    };
    assert_eq!(run(size, size), Some(true));
    assert_eq!(run(size, 12 << 20), Some(false));
    assert_eq!(run(size / 2, size / 2), None);
}

#[test]
fn a_snapshot_without_the_target_saw_nothing_of_it() {
    let truth = truth("t", vec![phase(0, 0, 1000, vec![range(0, 100, 200.0)])]);
    let mut other = snapshot(0, 100, vec![region(0, 100, 20)]);
    other.targets[0].id = TargetId(7);
    let got = judge(&truth, Options::default(), std::slice::from_ref(&other));
    assert_eq!((got.score.recall, got.score.precision, got.score.f1), (Some(0.0), None, Some(0.0)));
    let mut named = Judge::new(&truth, Some(TargetId(7)), Options::default()).unwrap();
    named.add(&other);
    assert_eq!(named.finish().score.f1, Some(1.0));
}

#[test]
fn what_cannot_be_judged_is_refused() {
    let none = truth("t", vec![]);
    assert_eq!(Judge::new(&none, None, Options::default()).unwrap_err(), AccuracyError::NoPhase);
    let some = truth("t", vec![phase(0, 0, 1, vec![])]);
    for threshold in [Threshold::Samples(0), Threshold::Hz(0.0), Threshold::Hz(f64::NAN)] {
        let options = Options { threshold, ..Options::default() };
        assert!(matches!(Judge::new(&some, None, options), Err(AccuracyError::Threshold(_))));
    }
    let options = Options { margin: 0.5, ..Options::default() };
    assert_eq!(Judge::new(&some, None, options).unwrap_err(), AccuracyError::Margin(0.5));
}

#[test]
fn tables_and_json_show_the_verdict() {
    let truth =
        truth("t", vec![phase(0, 0, 1000, vec![range(0, 1 << 20, 200.0), range(1 << 20, 2 << 20, 0.0)])]);
    let got = judge(&truth, Options::default(), &[snapshot(0, 100, vec![region(0, 3 << 19, 20)])]);
    let run = AccuracyRun {
        accuracy: got.clone(),
        backend: "pte".into(),
        cpu_share: 0.0123,
        max_checks_per_sample: 0,
        clears_per_second: 0.0,
        derived_slowdown: 0.0,
        bytes_per_region: 0.0,
        samples_missed: 0,
        snapshots_lost: 0,
    };
    let table = summary_table(std::slice::from_ref(&run));
    assert!(table.contains("1.23 %") && table.contains("1 of 1"), "{table}");
    for text in [got.details(), table] {
        for part in ["66.67 %", "100.00 %", "0.8000", "1.5 MiB", "1.0 MiB", "4k"] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
    }
    let json = serde_json::to_value(&got).unwrap();
    assert_eq!(json["wss"]["inside"]["p50"], 3 << 19);
    assert_eq!(json["options"]["threshold"]["samples"], 1);
    assert_eq!(json["rates"][0]["stated"], 200.0);
}

const UNIVERSE: u64 = 48;

/// Cuts of the universe into pieces, some of them dropped.
fn pieces<T: std::fmt::Debug>(value: impl Strategy<Value = T>) -> impl Strategy<Value = Vec<(u64, u64, T)>> {
    proptest::collection::vec((1..12u64, 0..6u64, value), 0..8).prop_map(|steps| {
        let mut at = 0;
        let mut out = Vec::new();
        for (size, gap, value) in steps {
            let start = at + gap;
            if start + size > UNIVERSE {
                break;
            }
            out.push((start, start + size, value));
            at = start + size;
        }
        out
    })
}

fn any_truth() -> impl Strategy<Value = Truth> {
    let hz = prop_oneof![Just(0.0), 0.1..300.0f64, Just(10.0), Just(15.0), Just(10.0 / 1.5)];
    let ranges = pieces(hz).prop_map(|p| p.into_iter().map(|(s, e, hz)| range(s, e, hz)).collect::<Vec<_>>());
    proptest::collection::vec((0..40u64, 1..400u64, ranges), 1..5).prop_map(|phases| {
        let mut at = 0;
        let mut out = Vec::new();
        for (i, (gap, length, ranges)) in phases.into_iter().enumerate() {
            out.push(phase(i as u32, at + gap, at + gap + length, ranges));
            at += gap + length;
        }
        truth("t", out)
    })
}

fn any_snapshots() -> impl Strategy<Value = Vec<Snapshot>> {
    let regions =
        pieces(0..=20u32).prop_map(|p| p.into_iter().map(|(s, e, nr)| region(s, e, nr)).collect::<Vec<_>>());
    proptest::collection::vec((0..30u64, 0..120u64, regions), 0..12).prop_map(|windows| {
        let mut at = 0;
        let mut out = Vec::new();
        for (gap, length, regions) in windows {
            out.push(snapshot(at + gap, at + gap + length, regions));
            at += gap + length;
        }
        out
    })
}

/// The judgement as its definition has it: every byte of every window, one after the other.
#[derive(Default, Debug, PartialEq)]
struct Naive {
    sums: Tally,
    wss_inside: Vec<u64>,
    wss_truth: Vec<u64>,
    wss_process: Vec<u64>,
    recorded_hz_weight: f64,
}

fn naive(truth: &Truth, snapshots: &[Snapshot], margin: f64) -> Naive {
    let mut out = Naive::default();
    for s in snapshots {
        let region_of = |b: u64| s.targets[0].regions.iter().find(|r| r.range.contains(b));
        let touching = truth.phases.iter().any(|p| p.start_ns < s.end_ns && s.start_ns < p.end_ns);
        if touching && s.start_ns < s.end_ns {
            let hot = (0..UNIVERSE).filter(|&b| region_of(b).is_some_and(|r| r.nr_accesses >= 1));
            out.wss_process.push(hot.count() as u64);
        }
        let Some(phase) = truth.phases.iter().find(|p| p.start_ns <= s.start_ns && s.end_ns <= p.end_ns)
        else {
            continue;
        };
        if s.start_ns == s.end_ns {
            continue;
        }
        let window = u128::from(s.end_ns - s.start_ns);
        let (mut inside, mut truly) = (0, 0);
        for byte in 0..UNIVERSE {
            let Some(range) = phase.ranges.iter().find(|r| r.start <= byte && byte < r.end) else { continue };
            let region = region_of(byte);
            let recorded_hot = region.is_some_and(|r| r.nr_accesses >= 1);
            out.recorded_hz_weight += region.map_or(0.0, |r| f64::from(r.nr_accesses) * 10.0) * window as f64;
            let class = if range.achieved_hz >= 10.0 * margin {
                Class::Hot
            } else if range.achieved_hz <= 10.0 / margin {
                Class::Cold
            } else {
                Class::Ambiguous
            };
            truly += u64::from(class == Class::Hot);
            inside += u64::from(class != Class::Ambiguous && recorded_hot);
            match (class, recorded_hot) {
                (Class::Hot, true) => out.sums.hot_as_hot += window,
                (Class::Hot, false) => out.sums.hot_as_cold += window,
                (Class::Cold, true) => out.sums.cold_as_hot += window,
                (Class::Cold, false) => out.sums.cold_as_cold += window,
                (Class::Ambiguous, _) => out.sums.ambiguous += window,
            }
        }
        out.wss_inside.push(inside);
        out.wss_truth.push(truly);
    }
    out
}

proptest! {
    #[test]
    fn judging_by_ranges_is_judging_byte_by_byte(
        truth in any_truth(),
        snapshots in any_snapshots(),
        margin in prop_oneof![Just(1.0), Just(1.5), 1.0..4.0f64],
    ) {
        let mut judge = Judge::new(&truth, None, Options { margin, ..Options::default() }).unwrap();
        snapshots.iter().for_each(|s| judge.add(s));
        let expected = naive(&truth, &snapshots, margin);
        prop_assert_eq!(judge.tally, expected.sums);
        prop_assert_eq!(&judge.wss_inside, &expected.wss_inside);
        prop_assert_eq!(&judge.wss_truth, &expected.wss_truth);
        prop_assert_eq!(&judge.wss_process, &expected.wss_process);
        let recorded: f64 = judge.rates.0.iter().map(|r| r.recorded).sum();
        prop_assert!((recorded - expected.recorded_hz_weight).abs() <= expected.recorded_hz_weight * 1e-9);
        let w = judge.windows;
        prop_assert_eq!(w.judged + w.across_change + w.outside, snapshots.len() as u64);
        let phases = judge.phases.iter().fold(Tally::default(), |mut sum, p| { sum.merge(&p.tally); sum });
        prop_assert_eq!(phases, judge.tally);
    }

    /// Regions out of order or overlapping (a foreign record) still count each byte once.
    #[test]
    fn no_record_makes_a_byte_count_twice(
        truth in any_truth(),
        mut regions in proptest::collection::vec((0..UNIVERSE, 1..20u64, 0..=20u32), 0..8),
    ) {
        regions.reverse();
        let regions = regions.into_iter().map(|(s, n, nr)| region(s, s + n, nr)).collect();
        let p = &truth.phases[0];
        let snapshot = snapshot(p.start_ns / MS, p.end_ns / MS, regions);
        let mut judge = Judge::new(&truth, None, Options::default()).unwrap();
        judge.add(&snapshot);
        let t = judge.tally;
        let sum = t.hot_as_hot + t.hot_as_cold + t.cold_as_hot + t.cold_as_cold + t.ambiguous;
        let bytes: u64 = p.ranges.iter().map(|r| r.end - r.start).sum();
        prop_assert_eq!(sum, u128::from(bytes) * u128::from(p.end_ns - p.start_ns));
    }
}

/// Two processes with the same addresses, each with its own regions.
#[test]
fn processes_are_judged_together_each_by_its_own_target() {
    let of = |pid: u64, ranges: Vec<RangeLine>| {
        ranges.into_iter().map(move |r| RangeLine { pid: pid as u32, ..r })
    };
    let ranges = of(PID, vec![range(0, 100, 200.0), range(100, 200, 0.0)])
        .chain(of(PID + 1, vec![range(0, 100, 0.0), range(100, 200, 200.0)]))
        .chain(of(PID + 2, vec![range(0, 100, 200.0)]));
    let mut truth = truth("t", vec![phase(0, 0, 1000, ranges.collect())]);
    for pid in [PID + 1, PID + 2] {
        truth.processes.push(ProcessLine { name: "child".into(), pid: pid as u32, phase: None });
    }
    let record = |start, first| {
        let mut s = snapshot(start, start + 100, vec![region(0, 100, first), region(100, 200, 0)]);
        s.targets.push(TargetSnapshot::new(TargetId(PID + 1), vec![region(0, 100, 0), region(100, 200, 20)]));
        s
    };
    // The first is found in the second window, the second at once, the third never: it is no target.
    let got = judge(&truth, Options::default(), &[record(0, 0), record(100, 20)]);
    assert_eq!((got.score.precision, got.score.recall), (Some(1.0), Some(0.5)));
    assert_eq!((got.processes, got.found.hot, got.found.found), (3, 3, 2));
    assert_eq!((got.found.median_ms, got.found.max_ms), (Some(100.0), Some(200.0)));
    let late = judge(
        &truth,
        Options { settle_ns: 100 * MS, ..Options::default() },
        &[record(0, 0), record(100, 20)],
    );
    assert_eq!((late.windows.settling, late.windows.judged), (1, 1));
    assert!((late.score.recall.unwrap() - 2.0 / 3.0).abs() < 1e-9);
    assert_eq!(late.found.max_ms, Some(200.0));
}

#[test]
fn the_error_of_middling_rates_weighs_by_bytes() {
    let ranges =
        vec![range(0, 100, 200.0), range(100, 200, 50.0), range(200, 500, 20.0), range(500, 600, 1.0)];
    let truth = truth("t", vec![phase(0, 0, 1000, ranges)]);
    // 50 Hz right, 20 Hz half as much again, the others far off and not asked for.
    let regions = vec![region(0, 100, 1), region(100, 200, 5), region(200, 500, 3), region(500, 600, 20)];
    let got = judge(&truth, Options::default(), &[snapshot(0, 100, regions)]);
    assert!((got.rate_error_10_to_50_hz.unwrap() - 0.375).abs() < 1e-9);
}

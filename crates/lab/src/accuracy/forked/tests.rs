use super::*;
use isotherm_damon::AddrRange;
use isotherm_workloads::Order;
use isotherm_workloads::truth::{
    Arrivals, Course, Page, PhaseLine, ProcessLine, RangeLine, Stated, Workload,
};

const MS: u64 = 1_000_000;

/// 100 bytes that are passed over at 20 Hz, but for the time `still`, in ms from the start of the phase; 100 more are idle.
fn phase(index: u32, start_ms: u64, end_ms: u64, still: std::ops::Range<u64>) -> PhaseLine {
    let mut passes = 0;
    let mut points = vec![(0, 0)];
    for at in (0..end_ms - start_ms).step_by(50).filter(|at| !still.contains(at)) {
        points.push((at * MS, passes * 100));
        passes += 1;
        points.push((at * MS + MS, passes * 100));
    }
    let mean_hz = passes as f64 / ((end_ms - start_ms) as f64 / 1e3);
    let (order, logged) = (Order::Sequential, true);
    let course =
        Course { start: 0, size: 100, page: 1, unit: 1, order, touches_a_page: 1, mean_hz, logged, points };
    let range = |start, end, hz: f64| RangeLine {
        pid: 7,
        area: "data".into(),
        start,
        end,
        unit: 1,
        rate: Stated::Hz(hz),
        achieved_hz: hz,
        arrivals: if hz > 0.0 { Arrivals::Periodic } else { Arrivals::None },
        write: false,
        hot: hz > 0.0,
        touches: 0,
        missed: 0,
        max_gap_ns: 0,
        shared: false,
        courses: if hz > 0.0 { vec![0] } else { Vec::new() },
    };
    PhaseLine {
        index,
        name: format!("p{index}"),
        start_ns: start_ms * MS,
        end_ns: end_ms * MS,
        complete: true,
        ranges: vec![range(0, 100, mean_hz), range(100, 200, 0.0)],
        courses: vec![course],
    }
}

/// Three seconds, a child for two, three more; between two phases nothing is accessed for 10 ms.
fn truth(still: std::ops::Range<u64>) -> Truth {
    let workload = Workload {
        version: 2,
        pattern: "t".into(),
        pid: 7,
        page: Page::Base,
        unit: 1,
        clock: "CLOCK_MONOTONIC".into(),
        seed: 1,
        time_scale: 1.0,
        hot_hz: 10.0,
        params: serde_json::Value::Null,
    };
    let process = |name: &str, pid, phase| ProcessLine { name: name.into(), pid, phase };
    Truth {
        workload,
        processes: vec![process("main", 7, None), process("child", 8, Some(1))],
        areas: Vec::new(),
        phases: vec![phase(0, 0, 2990, 0..0), phase(1, 3000, 5000, still), phase(2, 5010, 8000, 0..0)],
        work: Vec::new(),
        end: None,
    }
}

/// A snapshot of 100 ms.
fn snapshot(end_ms: u64) -> Snapshot {
    Snapshot {
        start_ns: (end_ms - 100) * MS,
        end_ns: end_ms * MS,
        sample_ns: 5 * MS,
        max_nr_accesses: 20,
        targets: Vec::new(),
    }
}

/// Bytes at a rate; `None`: unknown.
fn region(start: u64, end: u64, hz: Option<u32>) -> RegionSnapshot {
    let bp = hz.unwrap_or(0) * 1000;
    RegionSnapshot {
        range: AddrRange::new(start, end),
        nr_accesses: bp / 10_000,
        nr_accesses_bp: bp,
        seen_bp: if hz.is_some() { 10_000 } else { 0 },
        ..RegionSnapshot::default()
    }
}

/// What is made of a record that has the regions `record(ms)` in the snapshot that ends then.
fn judged(truth: &Truth, record: impl Fn(u64) -> Vec<RegionSnapshot>) -> Forked {
    let mut lives = Lives::of(truth);
    for end in (100..8200).step_by(100) {
        lives.add(truth, &record(end), &snapshot(end));
    }
    lives.verdict().pop().unwrap()
}

#[test]
fn a_record_that_stays_right_is_right_in_each_second() {
    let got = judged(&truth(0..0), |_| vec![region(0, 100, Some(20)), region(100, 200, Some(0))]);
    assert!(got.seen_before);
    assert_eq!((got.child.as_str(), got.lived_ms, got.worst_cold_share), ("child", 2010.0, 0.0));
    assert_eq!((got.seen_after_ms, got.seen_after_snapshots), (Some(90.0), Some(1)));
    assert_eq!(got.worst_unseen_later, Some(0.0));
    let keys: Vec<_> = got.seconds.iter().map(|s| (s.when, s.second)).collect();
    // The first second of the truth has no second before it, and its end none after.
    let (before, during, after) = (When::Before, When::During, When::After);
    let expected = [
        (before, -3),
        (before, -2),
        (before, -1),
        (during, 0),
        (during, 1),
        (during, 2),
        (after, 0),
        (after, 1),
        (after, 2),
    ];
    assert_eq!(keys, expected);
    assert!(
        got.seconds.iter().all(|s| s.told == Told { hot: 100.0, ..Told::default() }),
        "{:?}",
        got.seconds
    );
}

#[test]
fn what_reads_cold_and_what_is_unknown_are_told_apart_and_the_time_until_all_is_seen() {
    let record = |end| match end {
        // A fifth cold and a tenth lukewarm in two snapshots, then half of it unknown until 6.5 s.
        4000 | 4100 => vec![region(0, 20, Some(0)), region(20, 30, Some(3)), region(30, 100, Some(20))],
        ..4200 => vec![region(0, 100, Some(20))],
        // All of it in between, but not for a second.
        5600..6000 => vec![region(0, 100, Some(20))],
        4200..6500 => vec![region(0, 50, None), region(50, 100, Some(20))],
        // And 2 % that no region covers.
        _ => vec![region(0, 98, Some(20))],
    };
    let got = judged(&truth(0..0), record);
    assert_eq!((got.worst_cold_share, got.worst_cold_at_ms), (0.2, 1000.0));
    assert_eq!(got.worst_unknown_share, 0.5);
    assert_eq!(got.seen_after_ms, Some(1490.0));
    assert_eq!(got.seen_after_snapshots, Some(15));
    let second = got.seconds.iter().find(|s| (s.when, s.second) == (When::During, 1)).unwrap();
    let told = second.told;
    assert!(
        (told.all() - 100.0).abs() < 1e-9 && told.unknown > 30.0 && (told.cold, told.lukewarm) == (4.0, 2.0),
        "{told:?}"
    );
}

#[test]
fn nothing_is_asked_of_memory_that_the_program_left_alone() {
    // Between 3.5 and 4.5 s it stood still, and the record says so.
    let truth = truth(500..1500);
    let cold_from = |from: u64, to: u64| {
        judged(&truth, |end| {
            vec![
                region(0, 100, Some(if (from..to).contains(&end) { 0 } else { 20 })),
                region(100, 200, Some(0)),
            ]
        })
    };
    assert_eq!(cold_from(3700, 4500).worst_cold_share, 0.0);
    // As soon as it goes on for a second at its rate, 0 Hz is wrong.
    assert_eq!(cold_from(3700, 5400).worst_cold_share, 1.0);
}

#[test]
fn what_is_lost_again_later_is_told() {
    let got = judged(&truth(0..0), |end| {
        // The third second after its end, and before that.
        let lost = if (7100..7300).contains(&end) { 40 } else { u64::from(end == 6900) * 80 };
        vec![region(0, lost.max(1), None), region(lost, 100, Some(20))]
    });
    assert_eq!((got.seen_after_ms, got.worst_unseen_later), (Some(90.0), Some(0.4)));
}

#[test]
fn a_record_that_never_recovers_is_told_as_such() {
    let got = judged(&truth(0..0), |end| vec![region(0, 100, (end < 4000).then_some(20))]);
    assert_eq!((got.seen_after_ms, got.seen_after_snapshots), (None, None));
    assert!(got.summary().contains("not all of it seen again"), "{}", got.summary());
    let never = judged(&truth(0..0), |_| Vec::new());
    assert!(!never.seen_before && never.worst_cold_share == 1.0);
    assert!(never.details().contains("fork -1"), "{}", never.details());
}

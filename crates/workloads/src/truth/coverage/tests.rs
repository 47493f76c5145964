use super::*;
use crate::order::{Order, Popularity};
use crate::pattern::Layout;
use crate::truth::{Course, Page, Stated, VERSION, Workload};
use proptest::prelude::*;

fn range(pid: u32, start: u64, end: u64, hz: f64, arrivals: Arrivals, courses: Vec<usize>) -> RangeLine {
    RangeLine {
        pid,
        area: "a".into(),
        start,
        end,
        unit: 1,
        rate: Stated::Hz(hz),
        achieved_hz: hz,
        arrivals,
        write: false,
        hot: false,
        touches: 0,
        missed: 0,
        max_gap_ns: 0,
        shared: false,
        courses,
    }
}

fn phase(start_ns: u64, end_ns: u64, ranges: Vec<RangeLine>, courses: Vec<Course>) -> PhaseLine {
    PhaseLine { index: 0, name: "p".into(), start_ns, end_ns, complete: true, ranges, courses }
}

fn truth(phases: Vec<PhaseLine>) -> Truth {
    let workload = Workload {
        version: VERSION,
        pattern: "t".into(),
        pid: 1,
        page: Page::Base,
        unit: 1,
        clock: "CLOCK_MONOTONIC".into(),
        seed: 1,
        time_scale: 1.0,
        hot_hz: 10.0,
        params: serde_json::Value::Null,
    };
    Truth { workload, processes: Vec::new(), areas: Vec::new(), phases, work: Vec::new(), end: None }
}

/// A course over `size` bytes of one-byte pages.
fn course(order: Order, size: u64, mean_hz: f64, points: Vec<(u64, u64)>) -> Course {
    Course { start: 1000, size, page: 1, unit: 1, order, touches_a_page: 1, mean_hz, logged: false, points }
}

const S: u64 = 1_000_000_000;

#[test]
fn a_front_covers_what_it_passed_in_the_window() {
    // 100 bytes in 10 s, evenly.
    let front = course(Order::Sequential, 100, 0.1, vec![(0, 0), (10 * S, 100)]);
    let range = range(1, 1000, 1100, 0.1, Arrivals::Periodic, vec![0]);
    let truth = truth(vec![phase(5 * S, 15 * S, vec![range], vec![front])]);
    let covered = |a, b| {
        let coverage = truth.coverage(a * S..b * S);
        let hot: Vec<_> =
            coverage.segments.iter().filter(|s| s.accessed > 0.0).map(|s| (s.start, s.end)).collect();
        assert_eq!(coverage.bytes(), hot.iter().map(|(a, b)| b - a).sum::<u64>() as f64);
        assert!(coverage.segments.iter().all(|s| s.moving));
        hot
    };
    assert_eq!(covered(7, 8), [(1020, 1030)]);
    assert_eq!(covered(0, 6), [(1000, 1010)]);
    assert_eq!(covered(14, 30), [(1090, 1100)]);
    assert_eq!(covered(20, 30), []);
    assert_eq!(covered(0, 5), []);
}

#[test]
fn a_sweep_wraps_around_and_a_huge_page_counts_whole() {
    // Two passes over 10 pages in 20 s; pages of 4 bytes back it, of which a touch accesses all.
    let mut sweep = course(Order::Sequential, 10, 0.1, vec![(0, 0), (20 * S, 20)]);
    let one = |sweep: &Course, a: u64, b: u64| {
        let range = range(1, 1000, 1010, 0.1, Arrivals::Periodic, vec![0]);
        truth(vec![phase(0, 20 * S, vec![range], vec![sweep.clone()])]).coverage(a * S..b * S)
    };
    let hot = |c: Coverage| -> Vec<_> {
        c.segments.iter().filter(|s| s.accessed > 0.0).map(|s| (s.start, s.end)).collect()
    };
    assert_eq!(hot(one(&sweep, 8, 12)), [(1000, 1002), (1008, 1010)]);
    assert_eq!(hot(one(&sweep, 3, 13)), [(1000, 1010)]);
    sweep.unit = 4;
    assert_eq!(hot(one(&sweep, 5, 6)), [(1004, 1008)]);
    // A rate of the window, not of the phase: one touch of each of 4 pages in 4 s.
    assert!((one(&sweep, 8, 12).segments[0].hz - 0.1).abs() < 1e-9);
}

#[test]
fn random_accesses_cover_what_is_to_be_expected() {
    let popularity = Popularity { skew: 1.0, layout: Layout::Clustered, grain: 10 };
    // 4 grains at a mean of 2 Hz a page: shares 12, 6, 4, 3 of 25.
    let zipf = course(Order::Zipf(popularity), 40, 2.0, Vec::new());
    let ranges = vec![
        range(1, 1000, 1040, 2.0, Arrivals::Random, vec![0]),
        range(1, 2000, 2100, 0.5, Arrivals::Random, Vec::new()),
        range(1, 3000, 3100, 0.25, Arrivals::Periodic, Vec::new()),
        range(1, 4000, 4100, 0.0, Arrivals::None, Vec::new()),
    ];
    let truth = truth(vec![phase(0, 10 * S, ranges, vec![zipf])]);
    let coverage = truth.coverage(3 * S..5 * S);
    let hz: Vec<_> = coverage.of(1).iter().take(4).map(|s| s.hz).collect();
    for (got, expected) in hz.into_iter().zip([96.0, 48.0, 32.0, 24.0]) {
        assert!((got - expected / 25.0).abs() < 1e-9, "{got}");
    }
    let poisson = |hz: f64, bytes: f64| bytes * (1.0 - (-hz * 2.0).exp());
    let expected = [96.0, 48.0, 32.0, 24.0].map(|hz| poisson(hz / 25.0, 10.0)).iter().sum::<f64>();
    let expected = expected + poisson(0.5, 100.0) + 50.0;
    assert!((coverage.bytes() - expected).abs() < 1e-9);
    assert!(coverage.segments.iter().all(|s| !s.moving));
}

#[test]
fn a_window_over_two_phases_is_the_union_of_both() {
    let hz = |a, b| {
        vec![range(1, 0, 10, a, Arrivals::Periodic, vec![]), range(1, 10, 30, b, Arrivals::Periodic, vec![])]
    };
    let truth = truth(vec![phase(0, S, hz(50.0, 0.0), vec![]), phase(2 * S, 3 * S, hz(50.0, 20.0), vec![])]);
    assert_eq!(truth.coverage(0..S).bytes(), 10.0);
    let both = truth.coverage(0..3 * S);
    assert_eq!(both.bytes(), 30.0);
    // 50 accesses in each of two of three seconds.
    assert!((both.segments[0].hz - 100.0 / 3.0).abs() < 1e-9);
    assert_eq!(truth.coverage(S..2 * S), Coverage::default());
}

#[test]
fn shared_memory_counts_once_and_is_whose_it_is() {
    let shared = |pid, start, end, hz| RangeLine {
        shared: true,
        ..range(pid, start, end, hz, Arrivals::Periodic, vec![])
    };
    let ranges = vec![
        range(1, 0, 100, 50.0, Arrivals::Periodic, vec![]),
        shared(1, 1000, 1100, 50.0),
        shared(1, 1100, 1200, 0.0),
        range(2, 0, 100, 50.0, Arrivals::Periodic, vec![]),
        shared(2, 1000, 1050, 0.0),
        shared(2, 1050, 1150, 50.0),
        shared(2, 1150, 1200, 0.0),
    ];
    let coverage = truth(vec![phase(0, S, ranges, vec![])]).coverage(0..S);
    assert_eq!((coverage.bytes(), coverage.distinct_bytes()), (400.0, 350.0));
    assert_eq!(coverage.of(2).len(), 4);
    let hz: Vec<_> = coverage.shared().iter().map(|s| (s.start, s.end, s.hz)).collect();
    assert_eq!(hz, [(1000, 1050, 50.0), (1050, 1100, 100.0), (1100, 1150, 50.0), (1150, 1200, 0.0)]);
}

proptest! {
    /// Touch after touch: a byte is accessed if one of its touches lies in the window.
    #[test]
    fn a_course_covers_what_its_touches_did(
        pages in 1..40u64,
        per_page in 1..4u64,
        stride in 1..6u64,
        butterfly: bool,
        from in 0..200u64,
        length in 1..100u64,
    ) {
        let order = if butterfly { Order::Butterfly { stride } } else { Order::Sequential };
        // One touch a nanosecond, 150 of them.
        let points = vec![(0, 0), (100, 100), (150, 150)];
        let course = Course { touches_a_page: per_page, ..course(order, pages, 1.0, points) };
        let mut accessed = vec![0.0; pages as usize];
        for touch in from..(from + length).min(150) {
            accessed[order.page(touch / per_page % pages, pages, 1) as usize] = 1.0;
        }
        let stretches = course.stretches(from..from + length);
        let mut at = 1000;
        for s in &stretches {
            prop_assert!(s.start == at && s.end > s.start);
            for byte in s.start..s.end {
                prop_assert_eq!(s.accessed, accessed[(byte - 1000) as usize], "byte {}", byte - 1000);
            }
            at = s.end;
        }
        prop_assert_eq!(at, 1000 + pages);
    }

    /// Byte by byte: rates add up, chances are independent.
    #[test]
    fn two_coverages_together_are_both_at_every_byte(
        a in proptest::collection::vec((0..3u32, 0..8u64, 1..8u64, 0..=4u32), 0..8),
        b in proptest::collection::vec((0..3u32, 0..8u64, 1..8u64, 0..=4u32), 0..8),
    ) {
        let build = |steps: Vec<(u32, u64, u64, u32)>| {
            let (mut pid, mut at, mut out) = (1, 0, Vec::new());
            for (next, gap, size, quarters) in steps {
                if next == 0 {
                    (pid, at) = (pid + 1, 0);
                }
                let accessed = f64::from(quarters) / 4.0;
                let (start, end) = (at + gap, at + gap + size);
                let hz = f64::from(quarters);
                let arrivals = Arrivals::Periodic;
                out.push(Segment { pid, start, end, hz, accessed, arrivals, moving: false, shared: false });
                at = end;
            }
            out
        };
        let (a, b) = (build(a), build(b));
        let got = merged(&a, &b);
        prop_assert!(got.is_sorted_by(|x, y| (x.pid, x.end) <= (y.pid, y.start)));
        let at = |list: &[Segment], pid, byte| {
            let found = list.iter().find(|s| s.pid == pid && (s.start..s.end).contains(&byte));
            found.map(|s| (s.hz, s.accessed))
        };
        for pid in 1..10 {
            for byte in 0..130 {
                let expected = match (at(&a, pid, byte), at(&b, pid, byte)) {
                    (Some(x), Some(y)) => Some((x.0 + y.0, 1.0 - (1.0 - x.1) * (1.0 - y.1))),
                    (x, y) => x.or(y),
                };
                prop_assert_eq!(at(&got, pid, byte), expected);
            }
        }
    }
}

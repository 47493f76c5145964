//! The patterns of the workloads, at the price that looks, clears and wake-ups have on a virtual machine and under
//! the default ceiling of 1 % of a CPU: what `lab accuracy` measures on live processes, here without noise.

use isotherm_damon::*;
use isotherm_simulated::{HotBytes, Kind, MIB, PAGE, Pattern, Phase, areas, run, worker};

/// Snapshots with the index of the phase each lies in.
pub fn watch(phases: &[(Pattern, u32)], seed: u64) -> Vec<(usize, Snapshot)> {
    watch_many(phases, 1, seed)
}

/// The same of so many targets, all alike.
fn watch_many(phases: &[(Pattern, u32)], targets: u64, seed: u64) -> Vec<(usize, Snapshot)> {
    let phases: Vec<Phase> =
        phases.iter().map(|(pattern, time)| Phase::new(pattern.clone(), *time)).collect();
    let run = run(&phases, targets, (false, &|_| true), Watch::new(), seed);
    assert!(run.max_checks <= 1000);
    run.snapshots
}

/// F1 over all snapshots but those that saw a change of phase.
fn f1(phases: &[(Pattern, u32)], found: &[(usize, Snapshot)]) -> f64 {
    let mut bytes = HotBytes::default();
    for pair in found.windows(2) {
        let (phase, snapshot) = &pair[1];
        if pair[0].0 == *phase {
            bytes.add(&snapshot.targets[0], &phases[*phase].0);
        }
    }
    bytes.f1()
}

/// Holds F1 to `least`, with small pages and with huge ones, on average over several seeds.
fn judge(name: &str, least: f64, phases: &[(Pattern, u32)]) {
    let mut failed = Vec::new();
    for (unit, word) in [(PAGE, "4k"), (2 * MIB, "huge")] {
        let phases: Vec<_> = phases.iter().map(|(p, n)| (Pattern { unit, ..p.clone() }, *n)).collect();
        let all = [11, 23, 35, 47, 59, 61, 73, 85].map(|seed| f1(&phases, &watch(&phases, seed)));
        let mean = all.iter().sum::<f64>() / all.len() as f64;
        println!("F1 {mean:.4} {name}, {word} pages, by seed {all:.3?}");
        failed.extend((mean < least).then_some(word));
    }
    assert!(failed.is_empty(), "{name}: F1 below {least} with {failed:?} pages");
}

#[test]
fn stairs() {
    let step = |hot: u64| {
        areas(&std::array::from_fn::<_, 10, _>(|i| (2, 10240, if i as u64 == hot { 250.0 } else { 0.0 })))
    };
    judge("stairs", 0.97, &(0..10).map(|i| (step(i), 50)).collect::<Vec<_>>());
}

#[test]
fn zigzag() {
    let left = areas(&[(2, 102_400, 250.0), (2, 102_400, 0.0)]);
    let right = areas(&[(2, 102_400, 0.0), (2, 102_400, 250.0)]);
    judge("zigzag", 0.97, &[(left.clone(), 50), (right.clone(), 50), (left, 50), (right, 50)]);
}

#[test]
fn hot_spot() {
    let mut spot = areas(&[(2, 604 * 1024, 0.0), (0, 2048, 1000.0), (0, 418 * 1024, 0.0)]);
    spot.kind = Kind::Random;
    judge("hot spot", 0.93, &[(spot, 300)]);
}

#[test]
fn rates() {
    let falling = areas(&[200.0, 50.0, 20.0, 10.0, 1.0, 0.0].map(|hz| (2, 20480, hz)));
    let rising = areas(&[0.0, 1.0, 10.0, 20.0, 50.0, 200.0].map(|hz| (2, 20480, hz)));
    judge("rates", 0.95, &[(falling, 150), (rising, 150)]);
}

#[test]
fn random_rates() {
    let mut falling = areas(&[200.0, 50.0, 20.0, 10.0, 1.0, 0.0].map(|hz| (2, 20480, hz)));
    let mut rising = areas(&[0.0, 1.0, 10.0, 20.0, 50.0, 200.0].map(|hz| (2, 20480, hz)));
    falling.kind = Kind::Random;
    rising.kind = Kind::Random;
    judge("random rates", 0.93, &[(falling, 150), (rising, 150)]);
}

#[test]
fn threads() {
    let phase = |left: f64, right: f64| {
        areas(&std::array::from_fn::<_, 32, _>(|i| (2, 4096, if i < 16 { left } else { right })))
    };
    judge(
        "threads",
        0.97,
        &[(phase(250.0, 0.0), 60), (phase(0.0, 250.0), 60), (phase(250.0, 250.0), 60), (phase(0.0, 0.0), 60)],
    );
}

#[test]
fn hot_spots_of_many_sizes() {
    // Every other area is idle; sizes from 1 to 64 MiB, rates from 20 Hz to 1000 Hz.
    let list: Vec<(u64, u64, f64)> = (0..14)
        .map(|i| (0, 1024 << (i % 7), if i % 2 == 0 { [20.0, 60.0, 200.0, 1000.0][i / 2 % 4] } else { 0.0 }))
        .collect();
    let mut pattern = areas(&list);
    pattern.kind = Kind::Random;
    judge("hot spots", 0.93, &[(pattern, 300)]);
}

#[test]
fn every_one_of_many_workers_is_found() {
    for targets in [8, 32, 128] {
        let found = watch_many(&[(worker(), 100)], targets, 3);
        let is_found = |t: &TargetSnapshot| {
            let bytes: u64 = t.regions.iter().filter(|r| r.nr_accesses > 0).map(|r| r.range.size()).sum();
            (3 * MIB..6 * MIB).contains(&bytes)
        };
        let hot = |s: &Snapshot| s.targets.iter().filter(|t| is_found(t)).count();
        let seconds = |ns: u64| ns as f64 / 1e9;
        // When the last of them was found.
        let mut known = std::collections::BTreeSet::new();
        let all = found.iter().find(|(_, s)| {
            known.extend(s.targets.iter().filter(|t| is_found(t)).map(|t| t.id));
            known.len() as u64 == targets
        });
        let all = all.map(|(_, s)| seconds(s.end_ns));
        let counts: Vec<usize> = found.iter().step_by(10).map(|(_, s)| hot(s)).collect();
        let hz = |s: &Snapshot| {
            let heat = |r: &RegionSnapshot| r.range.size() as f64 * r.rate_hz(s.sample_ns, s.max_nr_accesses);
            let of = |t: &TargetSnapshot| t.regions.iter().map(heat).sum::<f64>() / (4 * MIB) as f64;
            s.targets.iter().map(of).sum::<f64>() / targets as f64
        };
        let rates: Vec<u64> = found.iter().step_by(10).map(|(_, s)| hz(s) as u64).collect();
        println!("{targets} workers: all found after {all:?} s; by second {counts:?}, at {rates:?} Hz");
        // With looks in time and waits as the governor has them the last of 128 is found after 5.6 s; 5 are wanted.
        assert!(all.is_some_and(|s| s <= 6.0), "{targets} workers: {counts:?}");
    }
}

#[test]
fn workers_that_stop_are_not_hot_for_long() {
    let mut idle = worker();
    idle.hot.clear();
    let found = watch_many(&[(worker(), 80), (idle, 80)], 32, 3);
    let hot = |s: &Snapshot| {
        let is_hot =
            |t: &&TargetSnapshot| t.regions.iter().any(|r| r.nr_accesses > 0 && r.range.size() > MIB);
        s.targets.iter().filter(is_hot).count()
    };
    let counts: Vec<usize> = found.iter().step_by(10).map(|(_, s)| hot(s)).collect();
    assert!(counts[5] >= 30, "they were: {counts:?}");
    assert_eq!(counts[counts.len() - 2], 0, "{counts:?}");
}

/// Mean rate that is told of an area in the snapshots given, Hz.
pub fn told(found: &[(usize, Snapshot)], area: AddrRange) -> f64 {
    let of = |s: &Snapshot| isotherm_simulated::told(s, &s.targets[0], area);
    found.iter().map(|(_, s)| of(s)).sum::<f64>() / found.len() as f64
}

#[test]
fn low_rates_beside_idle_memory_are_right_for_as_long_as_they_are_watched() {
    for (kind, hz) in [
        (Kind::Random, 1.0),
        (Kind::Random, 2.0),
        (Kind::Random, 5.0),
        (Kind::Sweep, 1.0),
        (Kind::Sweep, 5.0),
    ] {
        let mut pattern = areas(&[(2, 1024, 100.0), (0, 150 * 1024, hz), (0, 150 * 1024, 0.0)]);
        pattern.kind = kind;
        let mut all = Vec::new();
        for seed in [2, 4, 6, 8, 10, 12] {
            let found = watch(&[(pattern.clone(), 300)], seed);
            let rates: Vec<f64> = found[50..].chunks(50).map(|part| told(part, pattern.areas[1].0)).collect();
            // A loop over 600 MiB is met at few points in 5 s.
            let apart = rates.iter().any(|rate| (rate / hz - 1.0).abs() > 0.8);
            assert!(!apart, "{kind:?}, {hz} Hz, seed {seed}: {rates:?}");
            all.extend(rates);
        }
        let mean = all.iter().sum::<f64>() / all.len() as f64;
        assert!((mean / hz - 1.0).abs() < 0.2, "{kind:?}, {hz} Hz: {mean}");
    }
}

#[test]
fn the_working_set_of_skewed_rates_is_about_right() {
    let count = 1200;
    let hz = |i: u64| (0.3 * count as f64 / (i * 7919 % count + 1) as f64).min(150.0);
    let mut pattern = areas(&(0..count).map(|i| (0, 256, hz(i))).collect::<Vec<_>>());
    pattern.kind = Kind::Random;
    let accessed = |hz: f64| 1.0 - (-hz).exp();
    let truth: f64 = (0..count).map(|i| 256.0 * 1024.0 * accessed(hz(i))).sum();
    let found = watch(&[(pattern.clone(), 200)], 5);
    for upto in [50, 100, 190] {
        let of = |s: &Snapshot| -> f64 {
            let regions = s.targets[0].regions.iter().filter(|r| r.seen_bp > 0);
            let bytes = |r: &RegionSnapshot| {
                let present = |(area, _): &(AddrRange, f64)| r.range.intersection(*area).size();
                pattern.areas.iter().map(present).sum::<u64>() as f64
            };
            regions.map(|r| bytes(r) * accessed(r.rate_hz(s.sample_ns, s.max_nr_accesses))).sum()
        };
        let last = &found[upto - 10..upto];
        let share = last.iter().map(|(_, s)| of(s)).sum::<f64>() / last.len() as f64 / truth;
        assert!((0.75..1.35).contains(&share), "{share} of it after {upto} aggregations");
    }
}

#[test]
fn what_is_written_counts_as_accessed_for_a_second() {
    let start = 0x7f00_4000_0000;
    let speed = 100 * MIB / 200;
    let mut pattern = areas(&[(0, 4096, 0.0)]);
    pattern.front = Some((AddrRange::new(start, start + 1024 * MIB), speed));
    let found = watch(&[(pattern.clone(), 90)], 5);
    let (mut common, mut all) = (0.0, 0.0);
    for (_, snapshot) in &found[15..] {
        let now = snapshot.end_ns / 5_000_000;
        let truth = AddrRange::new(pattern.reached(now - 200).end, pattern.reached(now).end);
        for region in snapshot.targets[0].regions.iter().filter(|r| r.seen_bp > 0) {
            let there = region.range.intersection(pattern.reached(now)).size() as f64;
            let accessed = 1.0 - (-region.rate_hz(snapshot.sample_ns, snapshot.max_nr_accesses)).exp();
            common += region.range.intersection(truth).size() as f64 * accessed;
            all += there * accessed;
        }
        all += truth.size() as f64;
    }
    let f1 = 2.0 * common / all;
    assert!(f1 > 0.85, "F1 of what was accessed within a second: {f1:.3}");
}

#[test]
fn a_border_within_a_cell_makes_what_lies_beside_it_no_warmer() {
    // Both ends of the hot spot lie in the middle of a cell.
    let pattern = areas(&[(0, 300 * 1024 + 92, 0.0), (0, 2048, 200.0), (0, 400 * 1024, 0.0)]);
    for seed in [5, 11, 23, 35, 47, 59, 61, 73, 85] {
        let found = watch(&[(pattern.clone(), 200)], seed);
        let last = &found[150..];
        assert!(told(last, pattern.areas[1].0) > 150.0);
        // 0.0005 Hz are 200 KiB of 400 MiB accessed in a second.
        let beside = told(last, pattern.areas[0].0) + told(last, pattern.areas[2].0);
        assert!(beside < 0.002, "{beside} Hz beside it with seed {seed}");
    }
}

#[test]
fn neighbours_in_large_memory_that_is_seldom_drawn_are_told_apart_too() {
    // 1 GiB, drawn in every fourth aggregation.
    let rates = [20.0, 8.0, 0.0];
    let pages = [16 * 1024, 16 * 1024, 224 * 1024];
    let mut pattern = areas(&[(0, pages[0], rates[0]), (0, pages[1], rates[1]), (0, pages[2], rates[2])]);
    pattern.kind = Kind::Random;
    let found = watch(&[(pattern.clone(), 300)], 5);
    let last = found.get(250..).expect("300 aggregations");
    let hz: Vec<f64> = pattern.areas.iter().map(|(area, _)| told(last, *area)).collect();
    assert!(hz[0] > 1.6 * hz[1] && (12.0..28.0).contains(&hz[0]) && (5.0..12.0).contains(&hz[1]), "{hz:?}");
    assert!(hz[2] < 0.2, "{hz:?}");
}

#[test]
fn neighbours_that_were_drawn_as_one_come_to_be_told_apart() {
    for kind in [Kind::Random, Kind::Periodic] {
        let rates = [200.0, 50.0, 20.0, 10.0, 1.0, 0.0];
        let mut pattern = areas(&rates.map(|rate| (0, 20480, rate)));
        pattern.kind = kind;
        let found = watch(&[(pattern.clone(), 200)], 5);
        let last = found.get(150..).expect("200 aggregations");
        for ((area, _), rate) in pattern.areas.iter().zip(rates) {
            let told = told(last, *area);
            // Of a page that is accessed at random, 200 times a second, 1 - 1/e of the intervals show it.
            let want = if kind == Kind::Random { 200.0 * (1.0 - (-rate / 200.0f64).exp()) } else { rate };
            println!("{kind:?} {told:.1} instead of {want:.1} Hz");
            assert!((told - want).abs() <= want * 0.35, "{kind:?}: {told:.1} instead of {want:.1} Hz");
        }
    }
}

//! The monitor over simulated address spaces, whose access rates are known page by page.
#![allow(clippy::unwrap_used, reason = "a test that cannot set up has failed")]

mod acted;
mod asleep;
mod bursts;
mod busy;
mod crowd;
mod folios;
mod forked;
mod intervals;
mod patterns;
mod pieces;
mod poor;
mod rates;
mod seconds;
mod shared;
mod stolen;

use isotherm_damon::*;
use isotherm_simulated::{Keep, Kind, MIB, PAGE, Pattern, Simulated};

struct Run {
    snapshots: Vec<Snapshot>,
    tally: Tally,
    clears: u64,
}

/// Runs `phases`, each for its number of aggregations, at a budget of `prepares` a sampling interval.
fn run<S: Sampler<Simulated>>(sampler: S, phases: &[(Pattern, u32)], prepares: usize) -> Run {
    run_on(Simulated::new(phases[0].0.clone()), sampler, phases, prepares)
}

/// The same on what was prepared.
fn run_on<S: Sampler<Simulated>>(
    ops: Simulated,
    sampler: S,
    phases: &[(Pattern, u32)],
    prepares: usize,
) -> Run {
    let mut monitor = Monitor::new(Attrs::default(), ops, sampler, 7).unwrap();
    monitor.add_target(TargetId(1)).unwrap();
    let mut keep = Keep::default();
    let mut allowance = Allowance {
        checks: 4000,
        prepares,
        prepares_a_call: 0,
        by_turns: usize::MAX,
        checks_a_call: 0,
        checks_per_aggr: 4000,
        prepares_per_aggr: prepares.saturating_mul(20),
        swept_a_prepare: 220,
        wake_ups_per_aggr: 7,
        asked_per_aggr: 64,
    };
    let mut now = 0u64;
    for (pattern, aggregations) in phases {
        monitor.ops().change(pattern.clone());
        let end = now + u64::from(*aggregations) * 20;
        while now < end {
            let before = monitor.tally().prepares;
            let due = monitor.tick(now * 5_000_000, allowance, &mut keep);
            let used = (monitor.tally().prepares - before) as usize;
            allowance.prepares = (allowance.prepares.saturating_sub(used))
                .saturating_add(prepares.saturating_mul(due as usize))
                .min(prepares.saturating_mul(200));
            now += due;
            monitor.ops().now = now;
        }
    }
    let tally = *monitor.tally();
    let clears = monitor.ops().clears;
    Run { snapshots: keep.0, tally, clears }
}

/// F1 of the bytes with at least one access, over the snapshots given.
fn f1(snapshots: &[Snapshot], pattern: &Pattern) -> f64 {
    let (mut hit, mut found, mut truth) = (0u64, 0u64, 0u64);
    for snapshot in snapshots {
        truth += pattern.hot.iter().map(|(r, _)| r.size()).sum::<u64>();
        for region in snapshot.targets[0].regions.iter().filter(|r| r.nr_accesses > 0) {
            found += region.range.size();
            hit += pattern.hot.iter().map(|(r, _)| r.intersection(region.range).size()).sum::<u64>();
        }
    }
    let precision = hit as f64 / found.max(1) as f64;
    let recall = hit as f64 / truth.max(1) as f64;
    2.0 * precision * recall / (precision + recall).max(1e-9)
}

/// A process of `mib` MiB between a small heap and a stack.
fn process(mib: u64, hot: &[(u64, u64, f64)]) -> Pattern {
    let base = 0x7f00_0000_0000;
    let kib = |k: u64| base + k * 1024;
    Pattern {
        ranges: vec![
            AddrRange::new(0x5500_0000_0000, 0x5500_0000_0000 + 40 * PAGE),
            AddrRange::new(base, base + mib * MIB),
            AddrRange::new(0x7fff_0000_0000, 0x7fff_0000_0000 + 33 * PAGE),
        ],
        hot: hot
            .iter()
            .map(|&(start, size, rate)| (AddrRange::new(kib(start), kib(start + size)), rate))
            .collect(),
        areas: Vec::new(),
        front: None,
        unit: PAGE,
        kind: Kind::Random,
    }
}

fn mean_hz(snapshots: &[Snapshot], range: AddrRange) -> f64 {
    let mut sum = 0.0;
    for s in snapshots {
        for r in &s.targets[0].regions {
            let share = r.range.intersection(range).size() as f64 / range.size() as f64;
            sum += share * r.rate_hz(s.sample_ns, s.max_nr_accesses);
        }
    }
    sum / snapshots.len() as f64
}

#[test]
fn watch_finds_two_hot_megabytes_in_a_gigabyte() {
    let pattern = process(1024, &[(300 * 1024 + 412, 2048, 5.0)]);
    let run = run(Watch::new(), &[(pattern.clone(), 50)], 2);
    let f = f1(&run.snapshots[20..], &pattern);
    assert!(f > 0.98, "F1 {f}");
    assert!(run.tally.max_checks_per_sample <= 1000);
}

/// Cleared bit by bit, all of it would be watched after twenty seconds: it is swept on credit.
#[test]
fn a_small_hot_spot_of_a_gigabyte_is_found_within_seconds() {
    let pattern = process(1024, &[(300 * 1024 + 512, 512, 5.0)]);
    let run = run(Watch::new(), &[(pattern.clone(), 80)], 1);
    let f = f1(&run.snapshots[40..], &pattern);
    assert!(f > 0.95, "F1 {f}");
    assert!(run.tally.max_checks_per_sample <= 1000);
}

#[test]
fn watch_follows_stairs() {
    let phases: Vec<(Pattern, u32)> =
        (0..10).map(|i| (process(101, &[(512 + i * 10240, 10240, 5.0)]), 30)).collect();
    let run = run(Watch::new(), &phases, 2);
    for (i, (pattern, _)) in phases.iter().enumerate().skip(1) {
        // The first window after the change saw both phases.
        let f = f1(&run.snapshots[i * 30 + 1..i * 30 + 29], pattern);
        assert!(f > 0.97, "phase {i}: F1 {f}");
    }
}

#[test]
fn watch_follows_zigzag_with_huge_pages() {
    let left = Pattern { unit: 2 * MIB, ..process(201, &[(0, 102_400, 5.0)]) };
    let right = Pattern { unit: 2 * MIB, ..process(201, &[(102_400, 102_400, 5.0)]) };
    let phases = [(left.clone(), 40), (right.clone(), 40), (left.clone(), 40)];
    let run = run(Watch::new(), &phases, 2);
    for (i, (pattern, _)) in phases.iter().enumerate() {
        let f = f1(&run.snapshots[i * 40 + 10..i * 40 + 39], pattern);
        assert!(f > 0.97, "phase {i}: F1 {f}");
    }
}

#[test]
fn watch_counts_rates_without_bias() {
    for kind in [Kind::Random, Kind::Periodic] {
        // Accesses a sampling interval; 0.05 is 10 Hz at 5 ms.
        for rate in [0.005, 0.05, 0.25, 0.5, 2.0] {
            let mut pattern = process(400, &[(100 * 1024, 100 * 1024, rate)]);
            pattern.kind = kind;
            let run = run(Watch::new(), &[(pattern.clone(), 120)], 2);
            let share = if kind == Kind::Periodic { f64::min(rate, 1.0) } else { 1.0 - (-rate).exp() };
            let (hz, want) = (mean_hz(&run.snapshots[40..], pattern.hot[0].0), share * 200.0);
            let error = (hz - want).abs() / want;

            assert!(error < 0.15, "{kind:?}, rate {rate}: {hz} Hz instead of {want}");
        }
    }
}

#[test]
fn a_budget_too_small_to_save_up_for_much_is_spent_all_the_same() {
    let mut monitor =
        Monitor::new(Attrs::default(), Simulated::new(process(64, &[])), Watch::new(), 7).unwrap();
    monitor.add_target(TargetId(1)).unwrap();
    let allowance = Allowance {
        checks: 100,
        prepares: 8,
        prepares_a_call: 0,
        by_turns: usize::MAX,
        checks_a_call: 0,
        checks_per_aggr: 50,
        prepares_per_aggr: 4,
        swept_a_prepare: 1,
        wake_ups_per_aggr: 2,
        asked_per_aggr: 64,
    };
    let (mut now, mut keep) = (0, Keep::default());
    while now < 200 * 20 {
        now += monitor.tick(now * 5_000_000, allowance, &mut keep);
        monitor.ops().now = now;
    }
    assert!(monitor.ops().clears >= 30, "{} clears", monitor.ops().clears);
}

#[test]
fn watch_clears_little() {
    let pattern = process(1024, &[(300 * 1024, 100 * 1024, 5.0)]);
    let run = run(Watch::new(), &[(pattern, 100)], 8);
    let per_aggregation = run.clears as f64 / 100.0;
    // Of 160 that it could.
    assert!(per_aggregation < 120.0, "{per_aggregation} clears an aggregation");
}

#[test]
fn classic_finds_a_hot_half() {
    let pattern = process(200, &[(0, 100 * 1024, 5.0)]);
    let run = run(Classic::new(), &[(pattern.clone(), 100)], usize::MAX / 40);
    let f = f1(&run.snapshots[40..], &pattern);
    assert!(f > 0.9, "F1 {f}");
    assert!(run.tally.max_checks_per_sample <= 1000);
}

#[test]
fn many_targets_share_what_there_is() {
    // So many that each gets but a few probes.
    let pattern = process(8, &[(0, 4096, 0.01), (4096, 2048, 5.0)]);
    let mut monitor =
        Monitor::new(Attrs::default(), Simulated::new(pattern.clone()), Watch::new(), 3).unwrap();
    for id in 1..=250 {
        monitor.add_target(TargetId(id)).unwrap();
    }
    let mut keep = Keep::default();
    let allowance = Allowance {
        checks: 4000,
        prepares: 1000,
        prepares_a_call: 0,
        by_turns: usize::MAX,
        checks_a_call: 0,
        checks_per_aggr: 4000,
        prepares_per_aggr: 100,
        swept_a_prepare: 220,
        wake_ups_per_aggr: 7,
        asked_per_aggr: 64,
    };
    let mut now = 0;
    while now < 20 * 60 {
        let due = monitor.tick(now * 5_000_000, allowance, &mut keep);
        now += due;
        monitor.ops().now = now;
    }
    assert!(monitor.tally().max_checks_per_sample <= 1000);
    let last = keep.0.last().unwrap();
    assert_eq!(last.targets.len(), 250);
    for target in &last.targets {
        let bytes: u64 = target.regions.iter().map(|r| r.range.size()).sum();
        assert_eq!(bytes, 8 * MIB + 73 * PAGE, "nothing is lost of target {:?}", target.id);
    }
    let seen = last.targets.iter().filter(|t| t.regions.iter().any(|r| r.nr_accesses > 0)).count();
    assert!(seen > 40, "{seen} of 250 busy processes are seen to be busy");
    // Every one has its turn: each was seen to be busy at some time, though none can be watched all the time.
    let busy: std::collections::BTreeSet<TargetId> = keep
        .0
        .iter()
        .flat_map(|s| &s.targets)
        .filter(|t| t.regions.iter().any(|r| r.nr_accesses > 0))
        .map(|t| t.id)
        .collect();
    assert!(busy.len() > 190, "{} of 250 busy processes were seen to be busy", busy.len());
}

#[test]
fn without_a_ceiling_it_keeps_to_the_number_of_regions() {
    let pattern = process(400, &[(0, 200 * 1024, 0.5)]);
    let mut monitor =
        Monitor::new(Attrs::default(), Simulated::new(pattern.clone()), Watch::new(), 3).unwrap();
    monitor.add_target(TargetId(1)).unwrap();
    let mut keep = Keep::default();
    let mut now = 0;
    while now < 20 * 50 {
        now += monitor.tick(now * 5_000_000, Allowance::UNLIMITED, &mut keep);
        monitor.ops().now = now;
    }
    assert!(monitor.tally().max_checks_per_sample <= 1000);
    let f = f1(&keep.0[20..], &pattern);
    assert!(f > 0.97, "F1 {f}");
}

/// What is told is the same whatever the caller's clock says when it begins: it had been taken for the time since then, and what is left of a
/// window counted in no live run, only here, where clocks begin at 0.
#[test]
fn when_the_callers_clock_began_makes_no_difference() {
    let pattern = process(64, &[(0, 16 * 1024, 0.01), (20 * 1024, 8192, 0.2), (40 * 1024, 2048, 5.0)]);
    let told = |began_ns: u64| {
        let ops = Simulated::new(pattern.clone());
        let mut monitor = Monitor::new(Attrs::default(), ops, Watch::new(), 7).unwrap();
        monitor.add_target(TargetId(1)).unwrap();
        let (mut now, mut keep) = (0, Keep::default());
        let allowance = Allowance { prepares: 40, prepares_per_aggr: 40, ..Allowance::UNLIMITED };
        while now < 20 * 50 {
            now += monitor.tick(began_ns + now * 5_000_000, allowance, &mut keep);
            monitor.ops().now = now;
        }
        let regions = |s: Snapshot| s.targets.into_iter().flat_map(|t| t.regions).collect::<Vec<_>>();
        keep.0.into_iter().map(regions).collect::<Vec<_>>()
    };
    assert_eq!(told(0), told(77_781_000 * 5_000_000));
}

//! What the kernel's selftests ask of schemes, on simulated address spaces, with both samplers.

use crate::*;
use isotherm_simulated::{Kind, Pattern, Simulated};
use std::time::Duration;

/// What the monitor's clock and the simulation's go by.
fn drive<S: Sampler<Simulated>>(
    monitor: &mut Monitor<Simulated, S>,
    schemes: &mut Schemes,
    now: &mut u64,
    end: u64,
    each: &mut impl Callbacks,
) {
    while *now < end {
        let mut actions = Recorder::default();
        *now += monitor.tick(*now * 5 * MS, BUDGET, &mut schemes.driver(&mut actions, &mut (), each));
        monitor.ops().now = *now;
    }
}

const BUDGET: Allowance = Allowance { checks: 4000, ..Allowance::UNLIMITED };

/// `parts` of 10 MiB each side by side, of which those of `hot` are accessed all the time.
fn memory(parts: u64, hot: &[u64]) -> Pattern {
    let base = 1 << 40;
    let part = |i: u64| AddrRange::new(base + i * 10 * MIB, base + (i + 1) * 10 * MIB);
    Pattern {
        ranges: vec![AddrRange::new(base, base + parts * 10 * MIB)],
        hot: hot.iter().map(|i| (part(*i), 5.0)).collect(),
        areas: Vec::new(),
        front: None,
        unit: PAGE,
        kind: Kind::Random,
    }
}

fn monitor<S: Sampler<Simulated>>(sampler: S, pattern: Pattern) -> Monitor<Simulated, S> {
    let mut monitor = Monitor::new(Attrs::default(), Simulated::new(pattern), sampler, 7).unwrap();
    monitor.add_target(TargetId(1)).unwrap();
    monitor
}

fn tried_bytes(schemes: &Schemes, scheme: usize) -> u64 {
    schemes.tried_regions(scheme).iter().map(|t| t.region.range.size()).sum()
}

/// damos_quota.py: 1 MiB each 100 ms. No pass tries more, and each that tried as much is a window that ended full.
fn quota<S: Sampler<Simulated>>(sampler: S) {
    let quota = Quota { bytes: Some(MIB), reset_interval: Duration::from_millis(100), ..Quota::default() };
    let mut all = schemes(vec![Scheme { quota, ..Scheme::new(AccessPattern::ANY, Action::Stat) }]);
    let mut monitor = monitor(sampler, memory(2, &[0]));
    let (mut now, mut full) = (0, 0);
    for aggregation in 1..=40 {
        if aggregation == 20 {
            monitor.ops().change(memory(2, &[1]));
        }
        drive(&mut monitor, &mut all, &mut now, aggregation * 20 + 1, &mut ());
        let tried = tried_bytes(&all, 0);
        assert!(tried <= MIB, "{tried} bytes");
        full += u64::from(tried == MIB);
    }
    drive(&mut monitor, &mut all, &mut now, 41 * 20 + 1, &mut ());
    let exceeds = all.stats(0).unwrap().qt_exceeds;
    assert!(full > 30 && exceeds >= full, "{exceeds} windows exceeded, {full} seen");
}

#[test]
fn damos_quota() {
    quota(Classic::new());
    quota(Watch::new());
}

/// damos_quota_goal.py: scores of 0, 15000, 5000, 18000 of 10000 raise and lower the effective quota within half a second.
#[test]
fn damos_quota_goal() {
    let goals = vec![Goal { metric: GoalMetric::UserInput(Some(0)), target: 10_000 }];
    let quota = Quota { goals, reset_interval: Duration::from_millis(100), ..Quota::default() };
    let mut all = schemes(vec![Scheme { quota, ..Scheme::new(AccessPattern::ANY, Action::Stat) }]);
    let mut monitor = monitor(Classic::new(), memory(2, &[0]));
    let mut now = 0;
    for (round, score) in [0, 15_000, 5_000, 18_000].into_iter().enumerate() {
        assert!(all.set_goal_input(0, 0, Some(score)));
        let before = all.effective_bytes(0);
        drive(&mut monitor, &mut all, &mut now, (round as u64 + 1) * 100 + 1, &mut ());
        let after = all.effective_bytes(0);
        if score < 10_000 {
            assert!(after > before, "score {score}: {before}, then {after}");
        } else {
            assert!(after < before || after == 1, "score {score}: {before}, then {after}");
        }
    }
}

/// damos_apply_interval.py: a scheme applied each 10 ms tries at least nine times as many regions as one each 100 ms.
fn apply_interval<S: Sampler<Simulated>>(sampler: S) {
    let every = |ms| Scheme {
        apply_interval: Some(Duration::from_millis(ms)),
        ..Scheme::new(AccessPattern::ANY, Action::Stat)
    };
    let by_default = Scheme { apply_interval: None, ..every(1) };
    let mut all = schemes(vec![every(10), every(100), by_default]);
    let mut monitor = monitor(sampler, memory(2, &[0]));
    drive(&mut monitor, &mut all, &mut 0, 2001, &mut ());
    let tried = |scheme| all.stats(scheme).unwrap().nr_tried;
    assert!(tried(0) >= 9 * tried(1), "{} and {}", tried(0), tried(1));
    assert!(tried(2).abs_diff(tried(1)) * 10 <= tried(1), "{} and {}", tried(1), tried(2));
    assert_eq!(all.stats(0).unwrap().nr_snapshots, 1000);
    assert_eq!(all.stats(2).unwrap().nr_snapshots, 100);
}

#[test]
fn damos_apply_interval() {
    apply_interval(Classic::new());
    apply_interval(Watch::new());
}

/// Between aggregations rates hold: what is accessed all the time does not begin each aggregation as idle memory.
#[test]
fn rates_hold_between_aggregations() {
    let hot = Scheme {
        apply_interval: Some(Duration::from_millis(10)),
        ..Scheme::new(AccessPattern::ANY.nr_accesses(15, u32::MAX), Action::Stat)
    };
    let mut all = schemes(vec![hot]);
    let mut monitor = monitor(Classic::new(), memory(2, &[0, 1]));
    let mut now = 0;
    drive(&mut monitor, &mut all, &mut now, 201, &mut ());
    for pass in 1..=40 {
        drive(&mut monitor, &mut all, &mut now, 200 + pass * 2 + 1, &mut ());
        assert_eq!(tried_bytes(&all, 0), 20 * MIB, "pass {pass}");
        assert_eq!(all.stats(0).unwrap().nr_passes, 100 + pass);
    }
}

/// A region that is split in the middle of an aggregation goes on being sampled, and so do those behind it.
#[test]
fn splitting_between_aggregations_loses_no_samples() {
    struct Coldest(u32);
    impl Callbacks for Coldest {
        fn after_aggregation(&mut self, _targets: &mut [Target], snapshot: &Snapshot) {
            let regions = &snapshot.targets[0].regions;
            self.0 = self.0.min(regions.iter().map(|r| r.nr_accesses).min().unwrap_or(0));
        }
    }
    let quota = Quota { bytes: Some(33 * PAGE), reset_interval: Duration::ZERO, ..Quota::default() };
    let split = Scheme {
        apply_interval: Some(Duration::from_millis(5)),
        quota,
        ..Scheme::new(AccessPattern::ANY, Action::Cold)
    };
    let mut all = schemes(vec![split]);
    let mut monitor = monitor(Classic::new(), memory(2, &[0, 1]));
    let (mut now, mut coldest) = (0, Coldest(u32::MAX));
    drive(&mut monitor, &mut all, &mut now, 601, &mut coldest);
    assert!(all.stats(0).unwrap().nr_tried > 500);
    assert!(coldest.0 >= 15, "{} of 20 intervals, all of which had accesses", coldest.0);
}

/// damos_tried_regions.py: of 14 parts every second is accessed; the fifth lowest of eleven counts is at least 14.
fn tried_regions<S: Sampler<Simulated>>(sampler: S) {
    let mut all = schemes(vec![Scheme::new(AccessPattern::ANY, Action::Stat)]);
    let mut monitor = monitor(sampler, memory(14, &[0, 2, 4, 6, 8, 10, 12]));
    let mut now = 0;
    let mut counts = Vec::new();
    for sample in 0..11 {
        drive(&mut monitor, &mut all, &mut now, 1000 + sample * 20 + 1, &mut ());
        counts.push(all.tried_regions(0).len());
        let tried = all.tried_regions(0);
        assert!(tried.windows(2).all(|p| p[0].region.range.end <= p[1].region.range.start));
        assert_eq!(tried_bytes(&all, 0), 140 * MIB);
    }
    counts.sort_unstable();
    assert!(counts[4] >= 14, "{counts:?}");
}

#[test]
fn damos_tried_regions() {
    tried_regions(Classic::new());
    tried_regions(Watch::new());
}

/// sysfs_update_schemes_tried_regions_wss_estimation.py: bytes tried by a scheme for what is accessed are the working set.
fn working_set<S: Sampler<Simulated>>(sampler: S, parts: &[u64]) {
    let accessed = AccessPattern::ANY.nr_accesses(1, u32::MAX);
    let mut all = schemes(vec![Scheme::new(accessed, Action::Stat)]);
    let mut monitor = monitor(sampler, memory(40, parts));
    let (mut now, mut found) = (0, Vec::new());
    for sample in 0..40 {
        drive(&mut monitor, &mut all, &mut now, 600 + sample * 20 + 1, &mut ());
        found.push(tried_bytes(&all, 0));
    }
    found.sort_unstable();
    let truth = parts.len() as u64 * 10 * MIB;
    for at in [20, 30] {
        assert!(found[at].abs_diff(truth) * 5 <= truth, "{} of {truth} bytes", found[at]);
    }
}

#[test]
fn wss_estimation() {
    for parts in [&[7][..], &[7, 8, 9, 20], &[3, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 30, 31, 32, 33]] {
        working_set(Classic::new(), parts);
        working_set(Watch::new(), parts);
    }
}

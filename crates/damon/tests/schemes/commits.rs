//! Commits: what a scheme keeps when its parameters are exchanged, and what is refused.

use crate::*;
use core::num::NonZeroU32;
use std::time::Duration;

fn stat(bytes: u64) -> Scheme {
    let quota = Quota { bytes: Some(bytes), ..Quota::default() };
    Scheme { quota, ..Scheme::new(AccessPattern::ANY, Action::Stat) }
}

fn tried(all: &Schemes) -> u64 {
    all.stats(0).unwrap().sz_tried / PAGE
}

#[test]
fn a_commit_keeps_statistics_windows_and_places() {
    let mut all = schemes(vec![stat(10 * PAGE)]);
    let (mut targets, mut recorder) = ([target(1, vec![region(0, 100, 3, 9)])], Recorder::default());
    pass(&mut all, &mut targets, 0, &mut recorder);
    assert_eq!(all.tried_regions(0)[0].region.range.end, 10 * PAGE);
    // Another action and pattern, another scheme behind it.
    let cold = Scheme { action: Action::Cold, ..stat(10 * PAGE) };
    all.commit(vec![cold.clone(), stat(PAGE)]).unwrap();
    assert_eq!(tried(&all), 10);
    pass(&mut all, &mut targets, 500 * MS, &mut recorder);
    assert_eq!(tried(&all), 10, "the window is still full");
    assert_eq!(all.stats(1).unwrap().sz_tried, PAGE, "the new one begins");
    pass(&mut all, &mut targets, 1000 * MS, &mut recorder);
    assert_eq!(recorder.calls[0].range, AddrRange::new(10 * PAGE, 20 * PAGE), "goes on where it stopped");
    assert_eq!(all.stats(0).unwrap().qt_exceeds, 1);
    // Fewer, and more again: the last one is forgotten.
    all.commit(vec![cold.clone()]).unwrap();
    assert_eq!(all.stats(1), None);
    all.commit(vec![cold, stat(PAGE)]).unwrap();
    assert_eq!(all.stats(1).unwrap(), &Stats::default());
}

#[test]
fn of_a_running_window_no_more_is_kept_than_there_is_now() {
    let mut all = schemes(vec![stat(50 * PAGE)]);
    let (mut targets, mut recorder) = ([target(1, vec![region(0, 8, 3, 9)])], Recorder::default());
    pass(&mut all, &mut targets, 0, &mut recorder);
    all.commit(vec![stat(10 * PAGE)]).unwrap();
    assert_eq!(all.effective_bytes(0), 10 * PAGE);
    pass(&mut all, &mut targets, MS, &mut recorder);
    assert_eq!(tried(&all), 10);
    // More counts from the next window on, as in the kernel.
    all.commit(vec![stat(90 * PAGE)]).unwrap();
    pass(&mut all, &mut targets, 2 * MS, &mut recorder);
    assert_eq!(tried(&all), 10);
    // Without a limit there is no window, and with one again a new one.
    all.commit(vec![Scheme::new(AccessPattern::ANY, Action::Stat)]).unwrap();
    pass(&mut all, &mut targets, 3 * MS, &mut recorder);
    assert_eq!((tried(&all), all.effective_bytes(0)), (18, 0));
    all.commit(vec![stat(PAGE)]).unwrap();
    pass(&mut all, &mut targets, 4 * MS, &mut recorder);
    assert_eq!(tried(&all), 19);
}

#[test]
fn what_goals_tuned_is_kept() {
    let goal = |value| Scheme {
        quota: Quota {
            goals: vec![Goal { metric: GoalMetric::UserInput(Some(value)), target: 10_000 }],
            ..Quota::default()
        },
        ..Scheme::new(AccessPattern::ANY, Action::Stat)
    };
    let mut all = schemes(vec![goal(0)]);
    let (mut targets, mut recorder) = ([target(1, vec![region(0, 1 << 20, 3, 9)])], Recorder::default());
    for second in 0..12 {
        pass(&mut all, &mut targets, second * 1000 * MS, &mut recorder);
    }
    assert_eq!(all.effective_bytes(0), 4096);
    assert_eq!(tried(&all), 1, "nothing is tried before there is a page for it");
    all.commit(vec![goal(5000)]).unwrap();
    pass(&mut all, &mut targets, 12_000 * MS, &mut recorder);
    assert_eq!(all.effective_bytes(0), 6144);
    assert!(all.set_goal_input(0, 0, Some(15_000)));
    pass(&mut all, &mut targets, 13_000 * MS, &mut recorder);
    assert_eq!(all.effective_bytes(0), 3072);
    // Without a value there is nothing to go by.
    assert!(all.set_goal_input(0, 0, None));
    pass(&mut all, &mut targets, 14_000 * MS, &mut recorder);
    assert_eq!((all.effective_bytes(0), all.stats(0).unwrap().nr_blind_windows), (0, 1));
    assert_eq!(all.status(0), Some(Status::Goals));
    assert!(!all.set_goal_input(0, 1, None) && !all.set_goal_input(1, 0, None));
}

#[test]
fn a_commit_that_is_refused_changes_nothing() {
    let mut all = schemes(vec![stat(10 * PAGE)]);
    let before = all.schemes().to_vec();
    let wrong = Scheme::new(AccessPattern::ANY.size(5, 4), Action::Stat);
    let error = all.commit(vec![stat(PAGE), wrong]).unwrap_err();
    assert_eq!(error.to_string(), "scheme 1: pattern.size: the minimum, 5, is above the maximum, 4");
    assert_eq!(all.schemes(), before);
}

#[test]
fn every_field_is_checked_and_named() {
    let any = AccessPattern::ANY;
    let new = || Scheme::new(any, Action::Stat);
    let pattern = |pattern| Scheme { pattern, ..new() };
    let quota = |quota| Scheme { quota, ..new() };
    let goal = |target| Goal { metric: GoalMetric::ActiveMemBp, target };
    let mut address = new();
    address.filters.core.push(Filter::allow(CoreKind::Target(TargetId(1))));
    address.filters.core.push(Filter::allow(CoreKind::Addr(AddrRange::new(8, 4))));
    let mut huge = new();
    huge.filters.ops.push(Filter::reject(PageKind::HugepageSize { min: 2, max: 1 }));
    let marks = Watermarks {
        metric: WatermarkMetric::FreeMemRate,
        interval: Duration::from_secs(1),
        high: 1,
        mid: 2,
        low: 0,
    };
    let migrate = Scheme::new(any, Action::MigrateCold);
    let cases = [
        (pattern(any.nr_accesses(2, 1)), "pattern.frequency: the minimum, 2, is above the maximum, 1"),
        (pattern(any.share(0, 10_001)), "pattern.frequency: 10001 is more than 10000, the most there can be"),
        (pattern(any.aggregations(9, 1)), "pattern.age: the minimum, 9, is above the maximum, 1"),
        (
            pattern(any.age(Duration::from_secs(2), Duration::from_secs(1))),
            "pattern.age: the minimum, 2000000, is above the maximum, 1000000",
        ),
        (Scheme { apply_interval: Some(Duration::ZERO), ..new() }, "apply_interval: must be more than zero"),
        (quota(Quota { bytes: Some(0), ..Quota::default() }), "quota.bytes: must be more than zero"),
        (
            quota(Quota { time: Some(Duration::ZERO), ..Quota::default() }),
            "quota.time: must be more than zero",
        ),
        (
            quota(Quota { goals: vec![goal(5), goal(0)], ..Quota::default() }),
            "quota.goals[1]: must be more than zero",
        ),
        (Scheme { watermarks: Some(marks), ..new() }, "watermarks: must be ordered: high >= mid >= low"),
        (address, "filters.core[1]: the minimum, 8, is above the maximum, 4"),
        (huge, "filters.ops[0]: the minimum, 2, is above the maximum, 1"),
        (migrate.clone(), "nodes: the action needs it"),
        (
            Scheme { nodes: vec![Node { id: 1, weight: 0 }], ..migrate.clone() },
            "nodes: must be more than zero",
        ),
    ];
    for (scheme, want) in cases {
        assert_eq!(scheme.validate().unwrap_err().to_string(), want);
    }
    let fail_charge = Some(FailCharge { num: 3, denom: NonZeroU32::MIN });
    let valid = [
        Scheme { nodes: vec![Node { id: 1, weight: 1 }], ..migrate },
        quota(Quota { reset_interval: Duration::ZERO, bytes: Some(1), fail_charge, ..Quota::default() }),
    ];
    assert!(valid.iter().all(|scheme| scheme.validate().is_ok()));
    assert!(Action::ALL.iter().all(|action| Action::from_name(action.name()) == Some(*action)));
    assert_eq!(Action::from_name("page_out"), None);
}

//! Schemes of all kinds, for round trips.
#![allow(dead_code, reason = "each test file uses its share")]

use isotherm_damon::schemes::*;
use isotherm_damon::{AddrRange, TargetId};
use isotherm_schemes::{Entry, Guard, Source};
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;
use std::num::{NonZeroU32, NonZeroU64};
use std::time::Duration;

fn time() -> impl Strategy<Value = Duration> {
    prop_oneof![
        (1u64..10_000).prop_map(Duration::from_millis),
        (1u64..10_000).prop_map(Duration::from_secs),
        (1u64..u64::MAX / 1000).prop_map(Duration::from_micros),
    ]
}

fn ordered<T: Ord>(a: T, b: T) -> Bounds<T> {
    if a <= b { Bounds { min: a, max: b } } else { Bounds { min: b, max: a } }
}

fn size() -> impl Strategy<Value = Bounds<u64>> {
    let one =
        || prop_oneof![Just(0), Just(u64::MAX), any::<u64>(), (0u64..1 << 20).prop_map(|pages| pages << 12)];
    (one(), one()).prop_map(|(a, b)| ordered(a, b))
}

pub fn by_share() -> impl Strategy<Value = AccessPattern> {
    let bp = || prop_oneof![Just(0), Just(10_000), 0u32..=10_000];
    // Only what is no bound lies beyond 584 years.
    let most = prop_oneof![Just(Duration::MAX), time()];
    let least = prop_oneof![Just(Duration::ZERO), time()];
    (size(), bp(), bp(), least, most).prop_map(|(size, a, b, x, y)| AccessPattern {
        size,
        frequency: Frequency::Share(ordered(a, b)),
        age: Age::Time(ordered(x, y)),
    })
}

fn pattern() -> impl Strategy<Value = AccessPattern> {
    let count = || prop_oneof![Just(0), Just(u32::MAX), any::<u32>()];
    let counted = (size(), count(), count(), count(), count()).prop_map(|(size, a, b, x, y)| AccessPattern {
        size,
        frequency: Frequency::Samples(ordered(a, b)),
        age: Age::Aggregations(ordered(x, y)),
    });
    prop_oneof![by_share(), counted]
}

fn path() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("/a/b".to_owned()),
        "[ -~]{1,20}",
        any::<String>().prop_filter("not empty", |s| !s.is_empty())
    ]
}

fn goal() -> impl Strategy<Value = Goal> {
    let bp = 1u64..=10_000;
    let shares = prop_oneof![
        any::<u32>().prop_map(GoalMetric::NodeMemUsedBp),
        any::<u32>().prop_map(GoalMetric::NodeMemFreeBp),
        (any::<u32>(), path()).prop_map(|(node, cgroup)| GoalMetric::NodeMemcgUsedBp { node, cgroup }),
        (any::<u32>(), path()).prop_map(|(node, cgroup)| GoalMetric::NodeMemcgFreeBp { node, cgroup }),
        Just(GoalMetric::ActiveMemBp),
        Just(GoalMetric::InactiveMemBp),
        any::<u32>().prop_map(GoalMetric::NodeEligibleMemBp),
    ];
    prop_oneof![
        (shares, bp).prop_map(|(metric, target)| Goal { metric, target }),
        (of(path()), 1u64..1 << 50)
            .prop_map(|(cgroup, target)| Goal { metric: GoalMetric::SomeMemPsiUs { cgroup }, target }),
        (of(0u64..1 << 62), 1u64..1 << 62)
            .prop_map(|(value, target)| Goal { metric: GoalMetric::UserInput(value), target }),
    ]
}

fn quota() -> impl Strategy<Value = Quota> {
    let weights = (any::<u32>(), 0u32..1000, 0u32..10).prop_map(|(size, frequency, age)| Weights {
        size,
        frequency,
        age,
    });
    let fail = (any::<u32>(), 1u32..1000)
        .prop_map(|(num, denom)| FailCharge { num, denom: NonZeroU32::new(denom).unwrap() });
    let limits = (of(1u64..u64::MAX), of(time()), time());
    (limits, weights, vec(goal(), 0..3), 0..3usize, of(fail)).prop_map(
        |((bytes, time, every), weights, goals, tuner, fail_charge)| {
            let limited = bytes.is_some() || time.is_some() || !goals.is_empty();
            let tuner = [GoalTuner::Consist, GoalTuner::Temporal, GoalTuner::Pi][tuner];
            let quota = Quota { bytes, time, reset_interval: every, weights, goals, tuner, fail_charge };
            if limited { quota } else { Quota::default() }
        },
    )
}

fn filters() -> impl Strategy<Value = Filters> {
    let core = prop_oneof![
        (0u64..1 << 47, 1u64..1 << 40).prop_map(|(at, size)| CoreKind::Addr(AddrRange::new(at, at + size))),
        (0u64..1 << 62).prop_map(|id| CoreKind::Target(TargetId(id))),
    ];
    let page = prop_oneof![
        Just(PageKind::Anon),
        Just(PageKind::Active),
        Just(PageKind::Young),
        Just(PageKind::Unmapped),
        size().prop_map(|b| PageKind::HugepageSize { min: b.min, max: b.max }),
        path().prop_map(PageKind::Memcg),
        path().prop_map(PageKind::File),
    ];
    let core = (core, any::<bool>(), any::<bool>()).prop_map(|(kind, matching, allow)| Filter {
        kind,
        matching,
        allow,
    });
    let ops = (page, any::<bool>(), any::<bool>()).prop_map(|(kind, matching, allow)| Filter {
        kind,
        matching,
        allow,
    });
    (vec(core, 0..3), vec(ops, 0..4)).prop_map(|(core, ops)| Filters { core, ops })
}

fn watermarks() -> impl Strategy<Value = Watermarks> {
    (time(), 0u32..=1000, 0u32..=1000, 0u32..=1000).prop_map(|(interval, a, b, c)| {
        let mut marks = [a, b, c];
        marks.sort_unstable();
        let [low, mid, high] = marks;
        Watermarks { metric: WatermarkMetric::FreeMemRate, interval, high, mid, low }
    })
}

fn scheme() -> impl Strategy<Value = Scheme> {
    let node = (any::<u32>(), 1u32..1000).prop_map(|(id, weight)| Node { id, weight });
    let action = (0..Action::ALL.len()).prop_map(|at| Action::ALL[at]);
    let rest = (of(time()), of(watermarks()), of(1u64..1 << 62), any::<bool>());
    (pattern(), action, quota(), filters(), vec(node, 1..3), rest).prop_map(
        |(pattern, action, quota, filters, nodes, rest)| {
            let (apply_interval, watermarks, most, unknown) = rest;
            let migrates = matches!(action, Action::MigrateHot | Action::MigrateCold);
            Scheme {
                apply_interval,
                quota,
                watermarks,
                filters,
                nodes: if migrates { nodes } else { Vec::new() },
                max_nr_snapshots: most.and_then(NonZeroU64::new),
                unknown,
                ..Scheme::new(pattern, action)
            }
        },
    )
}

/// A scheme with everything that a file can say of it.
pub fn entry() -> impl Strategy<Value = Entry> {
    let guard = (of(0u32..=10_000), of(0u32..=10_000))
        .prop_map(|(max_refault_bp, max_psi_bp)| Guard { max_refault_bp, max_psi_bp });
    let source = prop_oneof![
        path().prop_map(|path| Source::File(path.into())),
        vec(path(), 1..3).prop_map(Source::Command),
    ];
    (of("[a-z][a-z0-9 ._-]{0,20}"), scheme(), guard, of(source)).prop_map(|(name, scheme, guard, source)| {
        let user = scheme.quota.goals.iter().position(|goal| matches!(goal.metric, GoalMetric::UserInput(_)));
        let sources = user.zip(source).into_iter().collect();
        Entry { name, line: None, scheme, guard, sources }
    })
}

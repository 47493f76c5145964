//! What one pass does: patterns, several schemes, ages, tried regions, snapshots, refusals, memory that is unknown.

use crate::*;
use core::num::NonZeroU64;
use std::time::Duration;

/// Four regions of 512 pages: hot, warm, cold for half a second, cold for ten.
fn four() -> Vec<Region> {
    vec![region(0, 512, 20, 30), region(512, 512, 1, 30), region(1024, 512, 0, 5), region(1536, 512, 0, 100)]
}

fn starts(recorder: &Recorder) -> Vec<u64> {
    recorder.calls.iter().map(|call| call.range.start / PAGE).collect()
}

#[test]
fn the_seeds_schemes_find_what_they_say() {
    let any = AccessPattern::ANY;
    // 2M null, 5 null, null null: huge pages where a region of 2 MB shows at least 5 %.
    let hugepage = Scheme::new(any.size(2 << 20, u64::MAX).share(500, 10_000), Action::Hugepage);
    // 2M null, null 5, 1s null.
    let cold = any.size(2 << 20, u64::MAX).share(0, 500).age(Duration::from_secs(1), Duration::MAX);
    // 4K null, null 5, 500ms null (seed 001) or 5s null (seed 000).
    let idle = |ms| any.size(4096, u64::MAX).share(0, 500).age(Duration::from_millis(ms), Duration::MAX);
    let found = |scheme: Scheme| {
        let (mut targets, mut recorder) = ([target(1, four())], Recorder::default());
        pass(&mut schemes(vec![scheme]), &mut targets, 0, &mut recorder);
        starts(&recorder)
    };
    assert_eq!(found(hugepage), [0, 512]);
    // One access of twenty is 5 %, and bounds are part of what they bound.
    assert_eq!(found(Scheme::new(cold, Action::Nohugepage)), [512, 1536]);
    assert_eq!(found(Scheme::new(idle(500), Action::Pageout)), [512, 1024, 1536]);
    assert_eq!(found(Scheme::new(idle(5000), Action::Pageout)), [1536]);
    // A new scheme of the kernel's has all bounds 0, and matches nothing.
    assert_eq!(found(Scheme::new(any.size(0, 0).nr_accesses(0, 0).aggregations(0, 0), Action::Stat)), []);
}

#[test]
fn bounds_of_samples_and_aggregations_are_taken_as_they_are() {
    let (mut targets, mut recorder) = ([target(1, four())], Recorder::default());
    let pattern = AccessPattern::ANY.size(512 * PAGE, 512 * PAGE).nr_accesses(0, 1).aggregations(30, 100);
    pass(&mut schemes(vec![Scheme::new(pattern, Action::Cold)]), &mut targets, 0, &mut recorder);
    assert_eq!(starts(&recorder), [512, 1536]);
}

#[test]
fn an_action_starts_the_age_anew_though_it_failed_and_stat_does_not() {
    for (action, age) in [(Action::Pageout, 0), (Action::Hugepage, 0), (Action::Stat, 100)] {
        let (mut targets, mut recorder) =
            ([target(1, four())], Recorder { fails: 100, ..Recorder::default() });
        let mut all = schemes(vec![Scheme::new(AccessPattern::ANY.aggregations(100, u32::MAX), action)]);
        pass(&mut all, &mut targets, 0, &mut recorder);
        let ages: Vec<u32> = targets[0].regions.iter().map(|r| r.age).collect();
        assert_eq!(ages, [30, 30, 5, age], "{action}");
        let stats = all.stats(0).unwrap();
        assert_eq!((stats.nr_tried, stats.sz_tried), (1, 512 * PAGE), "{action}");
        assert_eq!((stats.nr_applied, stats.sz_applied), (0, 0), "{action}");
    }
}

#[test]
fn schemes_act_one_after_another_and_see_what_the_one_before_did() {
    let old = AccessPattern::ANY.aggregations(30, u32::MAX);
    let mut all = schemes(vec![
        Scheme::new(old.nr_accesses(0, 0), Action::Cold),
        Scheme::new(old, Action::Pageout),
        Scheme::new(AccessPattern::ANY, Action::Stat),
    ]);
    let (mut targets, mut recorder) = ([target(1, four())], Recorder::default());
    pass(&mut all, &mut targets, 0, &mut recorder);
    let calls: Vec<(usize, u64)> = recorder.calls.iter().map(|c| (c.scheme, c.range.start / PAGE)).collect();
    // What was made cold is young, so it is not paged out.
    assert_eq!(calls, [(0, 1536), (1, 0), (1, 512)]);
    assert_eq!(all.stats(2).unwrap().nr_tried, 4);
    assert_eq!(all.tried_regions(2).len(), 4);
}

#[test]
fn tried_regions_are_those_of_the_last_pass() {
    let mut all = schemes(vec![Scheme::new(AccessPattern::ANY.nr_accesses(1, 20), Action::Stat)]);
    let (mut targets, mut recorder) =
        ([target(1, four()), target(2, vec![region(7, 3, 9, 2)])], Recorder::default());
    pass(&mut all, &mut targets, 0, &mut recorder);
    let tried: Vec<_> = all
        .tried_regions(0)
        .iter()
        .map(|t| (t.target.0, t.region.range.start / PAGE, t.region.nr_accesses, t.region.age))
        .collect();
    assert_eq!(tried, [(1, 0, 20, 30), (1, 512, 1, 30), (2, 7, 9, 2)]);
    assert!(recorder.calls.is_empty(), "nothing is done for stat");
    targets[0].regions.clear();
    pass(&mut all, &mut targets, 0, &mut recorder);
    assert_eq!(all.tried_regions(0).len(), 1);
    all.clear_tried_regions();
    assert_eq!(all.tried_regions(0), []);
    assert_eq!(all.stats(0).unwrap().nr_tried, 4);
}

#[test]
fn stat_counts_what_passes_page_filters_and_applies_nothing() {
    let mut scheme = Scheme::new(AccessPattern::ANY, Action::Stat);
    scheme.filters.ops.push(Filter::reject(PageKind::Anon));
    let (mut all, mut recorder) = (schemes(vec![scheme]), Recorder::default());
    pass(&mut all, &mut [target(1, four())], 0, &mut recorder);
    let stats = all.stats(0).unwrap();
    assert_eq!((stats.nr_applied, stats.sz_applied), (0, 0));
    assert_eq!(stats.sz_ops_filter_passed, 2048 * PAGE);
    assert!(all.tried_regions(0).iter().all(|t| t.sz_filter_passed == 512 * PAGE));
}

#[test]
fn unknown_memory_is_left_alone_and_counted() {
    let mut regions = four();
    // One never seen, beside cold ones; of another half was.
    regions[2].seen_bp = 0;
    regions[3].seen_bp = 5000;
    let idle = AccessPattern::ANY.nr_accesses(0, 0);
    let scheme = Scheme::new(idle, Action::Pageout);
    let (mut all, mut recorder) = (schemes(vec![scheme.clone()]), Recorder::default());
    let mut targets = [target(1, regions.clone())];
    pass(&mut all, &mut targets, 0, &mut recorder);
    pass(&mut all, &mut targets, 0, &mut recorder);
    assert_eq!(starts(&recorder), [1536, 1536]);
    let stats = all.stats(0).unwrap();
    assert_eq!((stats.sz_unknown, stats.sz_unknown_last), (1024 * PAGE, 512 * PAGE));
    assert_eq!(targets[0].regions[2].age, 5, "nothing was done to it");

    let (mut all, mut recorder) = (schemes(vec![Scheme { unknown: true, ..scheme }]), Recorder::default());
    pass(&mut all, &mut [target(1, regions)], 0, &mut recorder);
    assert_eq!(starts(&recorder), [1024, 1536]);
    assert_eq!(all.stats(0).unwrap().sz_unknown, 0);
}

#[test]
fn max_nr_snapshots_ends_a_scheme_until_it_is_raised() {
    let scheme = |most| Scheme {
        max_nr_snapshots: NonZeroU64::new(most),
        ..Scheme::new(AccessPattern::ANY, Action::Stat)
    };
    let (mut all, mut recorder) = (schemes(vec![scheme(3)]), Recorder::default());
    let mut targets = [target(1, four()), target(2, four()), target(3, Vec::new())];
    // One a target that has regions; the third is the last.
    for (tried, status) in [(8, Status::Active), (12, Status::Snapshots), (12, Status::Snapshots)] {
        pass(&mut all, &mut targets, 0, &mut recorder);
        assert_eq!((all.stats(0).unwrap().nr_tried, all.status(0).unwrap()), (tried, status));
    }
    assert_eq!(all.stats(0).unwrap().nr_snapshots, 3);
    all.commit(vec![scheme(4)]).unwrap();
    pass(&mut all, &mut targets, 0, &mut recorder);
    assert_eq!(all.stats(0).unwrap().nr_tried, 16);
}

#[test]
fn what_is_refused_is_not_tried() {
    let refused = AddrRange::new(512 * PAGE, 513 * PAGE);
    let cases = [(Refusal::Range, 7, 1), (Refusal::Target, 5, 3), (Refusal::Pass, 1, 1)];
    for (refusal, tried, left) in cases {
        let mut all = schemes(vec![Scheme::new(AccessPattern::ANY, Action::Pageout)]);
        let mut recorder = Recorder { refuses: Some((refused, refusal)), ..Recorder::default() };
        let mut other = four();
        // The second target has its memory elsewhere.
        for r in &mut other {
            r.range = AddrRange::new(r.range.start + (1 << 40), r.range.end + (1 << 40));
        }
        let mut targets = [target(1, four()), target(2, other)];
        pass(&mut all, &mut targets, 0, &mut recorder);
        let stats = all.stats(0).unwrap();
        assert_eq!((stats.nr_tried, stats.sz_refused), (tried, left * 512 * PAGE), "{refusal:?}");
        assert_eq!(stats.latencies.count(), tried, "{refusal:?}");
        assert_eq!(targets[0].regions[1].age, 30, "{refusal:?}");
    }
}

/// Does the first page of what it is asked for; then the target is gone.
struct Half(Vec<AddrRange>);

impl Actions for Half {
    fn apply(&mut self, request: &Request<'_>) -> Result<Outcome, Refusal> {
        self.0.push(request.range);
        let (until, refused) = (Some(request.range.start + PAGE), Some(Refusal::Target));
        Ok(Outcome { applied: PAGE, passed: PAGE, until, refused, ..Outcome::default() })
    }
}

#[test]
fn what_was_done_before_a_refusal_stands_and_the_rest_is_not_tried() {
    for bytes in [None, Some(1 << 40)] {
        let quota = Quota { bytes, ..Quota::default() };
        let mut all = schemes(vec![Scheme { quota, ..Scheme::new(AccessPattern::ANY, Action::Pageout) }]);
        let (mut half, mut targets) =
            (Half(Vec::new()), [target(1, four()), target(2, vec![region(0, 8, 0, 9)])]);
        all.apply(&mut Moment::new(&mut targets, Attrs::default(), 0, 1), &mut half, &mut ());
        let stats = all.stats(0).unwrap();
        assert_eq!(half.0.len(), 2, "one call a target, and the other has its turn: {:?}", half.0);
        assert_eq!((stats.nr_tried, stats.sz_tried, stats.sz_applied), (2, 2 * PAGE, 2 * PAGE));
        assert_eq!(stats.sz_refused, (4 * 512 + 8 - 2) * PAGE);
        assert!(all.tried_regions(0).iter().all(|tried| tried.region.range.size() == PAGE));
    }
}

/// Finds nothing to act on.
struct Nothing;

impl Actions for Nothing {
    fn apply(&mut self, request: &Request<'_>) -> Result<Outcome, Refusal> {
        Ok(Outcome { skipped: request.range.size(), took_ns: 7, ..Outcome::default() })
    }
}

#[test]
fn a_look_at_what_is_not_there_is_no_action() {
    let mut all = schemes(vec![Scheme::new(AccessPattern::ANY, Action::Pageout)]);
    let mut targets = [target(1, four())];
    all.apply(&mut Moment::new(&mut targets, Attrs::default(), 0, 1), &mut Nothing, &mut ());
    let stats = all.stats(0).unwrap();
    assert_eq!((stats.nr_tried, stats.sz_tried, stats.latencies.count()), (0, 0, 0));
}

struct Free(Option<u64>);

impl Metrics for Free {
    fn watermark(&mut self, _metric: WatermarkMetric) -> Option<u64> {
        self.0
    }
}

#[test]
fn watermarks_stop_schemes_and_when_all_stop_monitoring_may() {
    let marks = |seconds| Watermarks {
        metric: WatermarkMetric::FreeMemRate,
        interval: Duration::from_secs(seconds),
        high: 500,
        mid: 400,
        low: 200,
    };
    let scheme = |seconds| Scheme {
        watermarks: Some(marks(seconds)),
        ..Scheme::new(AccessPattern::ANY, Action::Stat)
    };
    let mut all = schemes(vec![scheme(7), scheme(5)]);
    let (mut free, mut targets) = (Free(Some(450)), [target(1, four())]);
    let mut at = |all: &mut Schemes, free: &mut Free| {
        all.apply(&mut Moment::new(&mut targets, Attrs::default(), 0, 1), &mut Recorder::default(), free);
        all.stats(0).unwrap().nr_snapshots
    };
    assert_eq!((all.dormant(&mut free), at(&mut all, &mut free)), (None, 1));
    free.0 = Some(600);
    assert_eq!(at(&mut all, &mut free), 1);
    assert_eq!(all.status(0), Some(Status::Watermarks));
    assert_eq!(all.dormant(&mut free), Some(Duration::from_secs(5)));
    free.0 = None;
    assert!(all.dormant(&mut free).is_some(), "what cannot be read allows nothing");
    free.0 = Some(399);
    assert_eq!((all.dormant(&mut free), at(&mut all, &mut free)), (None, 2));
    // One without watermarks keeps the monitor going.
    free.0 = Some(600);
    all.commit(vec![scheme(7), Scheme::new(AccessPattern::ANY, Action::Stat)]).unwrap();
    assert_eq!((all.dormant(&mut free), at(&mut all, &mut free)), (None, 2));
    assert_eq!(all.stats(1).unwrap().nr_snapshots, 3);
    assert_eq!(Schemes::new().dormant(&mut free), None);
}

#[test]
fn passes_come_at_their_interval_and_a_late_one_is_not_made_up_for() {
    let every = |ms| Scheme {
        apply_interval: Some(Duration::from_millis(ms)),
        ..Scheme::new(AccessPattern::ANY, Action::Stat)
    };
    // Sampling 5 ms: every 3 intervals, and less than one is one.
    let mut all = schemes(vec![every(17), every(1)]);
    let mut targets = [target(1, four())];
    let mut seen = Vec::new();
    for interval in [1, 2, 3, 4, 5, 6, 7, 13, 14, 15, 16] {
        let before = all.stats(0).unwrap().nr_snapshots;
        all.apply(
            &mut Moment::new(&mut targets, Attrs::default(), 0, interval),
            &mut Recorder::default(),
            &mut (),
        );
        if all.stats(0).unwrap().nr_snapshots > before {
            seen.push(interval);
        }
    }
    assert_eq!(seen, [3, 6, 13, 15]);
    assert_eq!(all.stats(1).unwrap().nr_snapshots, 11);
    assert_eq!(all.next_act(16), 17);
}

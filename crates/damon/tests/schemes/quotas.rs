//! Quotas: windows, time, goals, priorities.

use crate::*;
use core::num::NonZeroU32;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::time::Duration;

fn limited(action: Action, quota: Quota) -> Scheme {
    let nodes = vec![Node { id: 1, weight: 1 }];
    Scheme { quota, nodes, ..Scheme::new(AccessPattern::ANY, action) }
}

#[test]
fn a_window_is_full_until_it_is_reset_and_the_last_region_is_split() {
    let quota = Quota { bytes: Some(10 * PAGE + 100), ..Quota::default() };
    let (mut all, mut recorder) = (schemes(vec![limited(Action::Cold, quota)]), Recorder::default());
    let mut targets = [target(1, vec![region(0, 4, 0, 9), region(4, 96, 0, 9)])];
    let mut exceeds = Vec::new();
    for at in [0, 400, 999, 1000, 2500] {
        pass(&mut all, &mut targets, at * MS, &mut recorder);
        exceeds.push(all.stats(0).unwrap().qt_exceeds);
    }
    let ranges: Vec<_> = recorder.calls.iter().map(|c| (c.range.start / PAGE, c.range.end / PAGE)).collect();
    assert_eq!(ranges, [(0, 4), (4, 10), (10, 20), (20, 30)], "what is left of a page is no page");
    assert_eq!(exceeds, [0, 0, 0, 1, 2]);
    assert_eq!(all.effective_bytes(0), 10 * PAGE + 100);
    let ages: Vec<_> = targets[0].regions.iter().map(|r| (r.range.start / PAGE, r.age)).collect();
    assert_eq!(ages, [(0, 0), (4, 0), (10, 0), (20, 0), (30, 9)]);
    // Cut by the quota, no snapshot was gone through to its end.
    assert_eq!(all.stats(0).unwrap().nr_snapshots, 0);
}

#[test]
fn the_effective_size_is_the_least_of_all_limits() {
    let time = Some(Duration::from_millis(10));
    let quota = |bytes, time| Quota { bytes, time, ..Quota::default() };
    let first = |quota: Quota| {
        let mut all = schemes(vec![limited(Action::Cold, quota)]);
        pass(&mut all, &mut [target(1, vec![region(0, 1, 0, 9)])], 0, &mut Recorder::default());
        all.effective_bytes(0)
    };
    assert_eq!(
        first(quota(None, time)),
        10 * 1024 * PAGE,
        "1024 pages a millisecond, before any is measured"
    );
    assert_eq!(first(quota(Some(MIB), time)), MIB);
    assert_eq!(first(quota(Some(1 << 30), time)), 10 * 1024 * PAGE);
    assert_eq!(first(Quota::default()), 0, "without a limit there is none");
}

#[test]
fn time_is_kept_to_at_the_throughput_there_is() {
    // 2 us a page: 10 ms are 5000 pages. Then four times as slow.
    let quota = Quota { time: Some(Duration::from_millis(10)), ..Quota::default() };
    let mut all = schemes(vec![limited(Action::Pageout, quota)]);
    let mut recorder = Recorder::default();
    let mut spent = Vec::new();
    for second in 0..40 {
        recorder.ns_a_page = if second < 20 { 2000 } else { 8000 };
        let before = all.stats(0).unwrap().latencies.total_ns;
        pass(&mut all, &mut [target(1, vec![region(0, 1 << 20, 0, 9)])], second * 1000 * MS, &mut recorder);
        spent.push(all.stats(0).unwrap().latencies.total_ns - before);
    }
    assert!(spent[..20].iter().all(|ns| (9 * MS..=10 * MS).contains(ns)), "{spent:?}");
    // Asked for half of the time left as it was measured before, it took twice that.
    assert!(spent[20..].iter().all(|ns| *ns <= 20 * MS), "{spent:?}");
    assert!(spent[20..].iter().sum::<u64>() <= 20 * 10 * MS + 10 * MS, "{spent:?}");
    assert!(spent[30..].iter().all(|ns| (8 * MS..=10 * MS + 8000).contains(ns)), "{spent:?}");
    assert_eq!(all.effective_bytes(0) / (10 * MS / 8000 * PAGE), 1, "{}", all.effective_bytes(0));
    // The first calls, of which nobody knew how long they would take, were small.
    assert_eq!(recorder.calls[0].range.size(), 16 * PAGE);
    assert!(recorder.calls.len() < 40 * 20, "{} calls", recorder.calls.len());
}

#[test]
fn a_call_that_took_too_long_shortens_the_next_windows() {
    let quota = Quota { time: Some(Duration::from_millis(10)), ..Quota::default() };
    let mut all = schemes(vec![limited(Action::Pageout, quota)]);
    // One call of 16 pages takes 32 ms.
    let mut recorder = Recorder { ns_a_page: 2 * MS, ..Recorder::default() };
    let mut calls = Vec::new();
    for second in 0..7 {
        pass(&mut all, &mut [target(1, vec![region(0, 1 << 20, 0, 9)])], second * 1000 * MS, &mut recorder);
        calls.push(recorder.calls.len());
    }
    // 22 ms too long: two windows of nothing, one of 8 ms, and 10 ms, of 2 ms a page, from then on. In the last tenth of them no
    // call is begun.
    assert_eq!(calls[..3], [1, 1, 1]);
    assert_eq!(recorder.calls[1..].iter().map(|c| c.took_ns).sum::<u64>(), 6 * MS + 3 * 8 * MS);
}

#[test]
fn failed_bytes_are_charged_as_the_scheme_says() {
    let charge = |num| FailCharge { num, denom: NonZeroU32::new(10).unwrap() };
    // Of 20 pages that fail each takes a tenth, and what is left is tried again until it is less than a page.
    let cases = [
        (None, 100, 20..=20),
        (Some(charge(1)), 100, 180..=200),
        (Some(charge(1)), 0, 20..=20),
        (Some(charge(10)), 50, 20..=20),
    ];
    for (fail_charge, fails, pages) in cases {
        let quota = Quota { bytes: Some(20 * PAGE), fail_charge, ..Quota::default() };
        let mut all = schemes(vec![limited(Action::Pageout, quota)]);
        let mut recorder = Recorder { fails, ..Recorder::default() };
        pass(&mut all, &mut [target(1, vec![region(0, 4000, 0, 9)])], 0, &mut recorder);
        let tried = recorder.bytes() / PAGE;
        assert!(pages.contains(&tried), "{fail_charge:?}, {fails} % failed: {tried} pages");
    }
}

/// A machine whose pressure is what it is set to.
struct Pressure(Option<u64>);

impl Metrics for Pressure {
    fn goal(&mut self, _scheme: usize, metric: &GoalMetric) -> Option<u64> {
        assert_eq!(*metric, GoalMetric::NodeMemFreeBp(1));
        self.0
    }
}

fn goal(tuner: GoalTuner, bytes: Option<u64>) -> Scheme {
    let goals = vec![Goal { metric: GoalMetric::NodeMemFreeBp(1), target: 50 }];
    limited(Action::Stat, Quota { goals, tuner, bytes, ..Quota::default() })
}

fn effective(all: &mut Schemes, second: u64, metric: Option<u64>) -> u64 {
    let mut targets = [target(1, vec![region(0, 1000, 0, 9)])];
    let mut moment = Moment::new(&mut targets, Attrs::default(), second * 1000 * MS, 1);
    all.apply(&mut moment, &mut Recorder::default(), &mut Pressure(metric));
    all.effective_bytes(0)
}

#[test]
fn temporal_spends_all_until_the_goal_is_met() {
    let mut all = schemes(vec![goal(GoalTuner::Temporal, Some(MIB))]);
    let course = [(Some(0), MIB), (Some(49), MIB), (Some(50), 0), (Some(900), 0), (Some(49), MIB), (None, 0)];
    for (second, (metric, want)) in course.into_iter().enumerate() {
        assert_eq!(effective(&mut all, second as u64, metric), want, "at {metric:?}");
    }
}

#[test]
fn what_consist_tunes_has_a_ceiling_that_it_comes_down_from_at_once() {
    for (bytes, ceiling) in [(None, 1000 * PAGE), (Some(100 * PAGE), 100 * PAGE)] {
        let mut all = schemes(vec![goal(GoalTuner::Consist, bytes)]);
        let mut last = 0;
        for second in 0..200 {
            let now = effective(&mut all, second, Some(0));
            assert!(now > last || now == ceiling, "{last}, then {now}");
            last = now;
        }
        assert_eq!(last, ceiling);
        assert_eq!(effective(&mut all, 200, Some(75)), ceiling / 2);
        assert_eq!(effective(&mut all, 201, None), 0);
        assert_eq!(effective(&mut all, 202, Some(50)), ceiling / 2, "what was tuned is kept");
        assert_eq!(effective(&mut all, 203, Some(100)), 1);
    }
}

/// The published score, written down again: weighted mean of frequency and age, of 99.
fn naive_score(r: &Region, hot: bool, (frequency, age): (u32, u32)) -> u32 {
    let of_frequency = r.nr_accesses * 100 / 20;
    let (mut seconds, mut bits) = (u64::from(r.age) / 10, 0i32);
    while seconds > 0 && bits < 32 {
        seconds /= 2;
        bits += 1;
    }
    if of_frequency == 0 {
        bits = -bits;
    }
    let of_age = (bits + 32) as u32 * 100 / 32 / 2;
    let heat = (frequency * of_frequency + age * of_age) / (frequency + age) * 99 / 100;
    if hot { heat } else { 99 - heat }
}

fn regions() -> impl Strategy<Value = Vec<Region>> {
    let one = (0u64..3, 1u64..60, 0u32..21, 0u32..3000);
    prop::collection::vec(one, 1..30).prop_map(|list| {
        let mut at = 0;
        list.into_iter()
            .map(|(gap, size, nr_accesses, age)| {
                let start = at + gap;
                at = start + size;
                region(start, size, nr_accesses, age)
            })
            .collect()
    })
}

proptest! {
    #[test]
    fn hotter_first_for_hot_actions_and_colder_first_for_cold_ones(
        list in regions(),
        more in regions(),
        action in prop::sample::select(vec![
            Action::Pageout, Action::LruDeprio, Action::MigrateCold, Action::LruPrio, Action::MigrateHot,
        ]),
        frequency in 0u32..4,
        age in 1u32..4,
        pages in 1u64..600,
        times in 1u64..4,
    ) {
        let weights = Weights { size: 0, frequency, age };
        let quota = Quota { bytes: Some(pages * PAGE), weights, ..Quota::default() };
        let (mut all, mut recorder) = (schemes(vec![limited(action, quota)]), Recorder::default());
        let before = [target(1, list), target(2, more)];
        // Also when something was left over from a window before.
        for window in 0..times {
            recorder.calls.clear();
            pass(&mut all, &mut before.clone(), window * 1000 * MS, &mut recorder);
        }
        let hot = matches!(action, Action::LruPrio | Action::MigrateHot);
        let mut tried: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        for target in &before {
            for r in &target.regions {
                let mine = recorder.calls.iter().filter(|c| c.target == target.id);
                let bytes: u64 = mine.map(|c| c.range.intersection(r.range).size()).sum();
                let all = tried.entry(naive_score(r, hot, (frequency, age))).or_default();
                *all = (all.0 + bytes, all.1 + r.range.size());
            }
        }
        // None of a lower score is tried unless all of a higher score are.
        let mut cut = false;
        for (score, (bytes, size)) in tried.iter().rev() {
            prop_assert!(!cut || *bytes == 0, "score {score}: {tried:?}");
            cut |= bytes < size;
        }
        let total: u64 = tried.values().map(|t| t.1).sum();
        prop_assert_eq!(recorder.bytes(), total.min(pages * PAGE), "and nothing is left over");
    }

    #[test]
    fn no_window_exceeds_its_effective_size_or_its_time(
        bytes in prop::option::of(1u64..3 << 20),
        time_us in prop::option::of(1u64..20_000),
        reset_ms in 0u64..400,
        weighted in any::<bool>(),
        fail in prop::option::of(0u32..12),
        steps in prop::collection::vec((0u64..250, regions(), 0u64..5000, 0u64..101, any::<bool>()), 1..40),
    ) {
        let weights = if weighted { Weights { size: 0, frequency: 1, age: 1 } } else { Weights::default() };
        let fail_charge = fail.map(|num| FailCharge { num, denom: NonZeroU32::new(10).unwrap() });
        let time = time_us.map(Duration::from_micros);
        let reset_interval = Duration::from_millis(reset_ms);
        let quota = Quota { bytes, time, reset_interval, weights, fail_charge, ..Quota::default() };
        let is_limited = quota.is_limited();
        let (mut all, mut recorder) =
            (schemes(vec![limited(Action::Pageout, quota)]), Recorder::default());
        // What was charged and spent in the window, and, in all, windows, time, and the longest call.
        let (mut now, mut opened, mut charged) = (0u64, None::<u64>, 0u64);
        let (mut windows, mut in_all, mut longest) = (0u64, 0u64, 0u64);
        for (dt, list, ns_a_page, fails, same) in steps {
            now += dt;
            (recorder.ns_a_page, recorder.fails) = (ns_a_page, fails);
            if opened.is_none_or(|at| now - at >= reset_ms) {
                let passed = opened.map_or(1, |at| (now - at).checked_div(reset_ms).unwrap_or(1).max(1));
                (opened, charged, windows) = (Some(now), 0, windows + passed);
            }
            let list = if same { vec![region(3, 5000, 0, 9)] } else { list };
            let tried_before = recorder.calls.len();
            pass(&mut all, &mut [target(1, list)], now * MS, &mut recorder);
            for call in &recorder.calls[tried_before..] {
                let failed = call.range.size() * fails / 100;
                let charge = match fail {
                    Some(num) => call.range.size() - failed + (failed * u64::from(num)).div_ceil(10),
                    None => call.range.size(),
                };
                charged += charge;
                in_all += call.took_ns;
                longest = longest.max(call.took_ns);
                prop_assert!(call.range.start % PAGE == 0 && call.range.end % PAGE == 0);
            }
            if !is_limited {
                continue;
            }
            prop_assert!(bytes.is_none_or(|bytes| all.effective_bytes(0) <= bytes));
            // Charged more than it is, what fails may be too much; what is applied is not.
            if fail.is_none_or(|num| num <= 10) {
                prop_assert!(charged <= all.effective_bytes(0), "{charged} bytes");
            }
            if let Some(us) = time_us {
                let most = windows * us * 1000 + longest;
                prop_assert!(in_all <= most, "{in_all} ns in {windows} windows of {us} us");
            }
        }
    }
}

//! What is counted, and what is not.

use super::*;
use crate::synthetic::{MIB, mapping, mappings, region, snapshot, stairs, unknown};
use isotherm_damon::{RegionSnapshot, TargetSnapshot};

const ACCESSED: Measure = Measure::WorkingSet(Definition::Threshold(Threshold::Accesses(1)));
const DAMO: Measure = Measure::WorkingSet(Definition::Damo);

fn window(seconds: f64) -> Measure {
    Measure::WorkingSet(Definition::Window(Duration::from_secs_f64(seconds)))
}

fn report(measure: Measure, list: &[Snapshot]) -> TrendReport {
    let mut analysis = TrendAnalysis::new(TrendOptions::new(measure));
    list.iter().for_each(|s| analysis.snapshot(s));
    analysis.finish()
}

#[test]
fn the_working_set_of_stairs_is_one_step() {
    let wss = report(DAMO, &stairs(0, 5));
    assert!(wss.percentiles.iter().all(|p| p.value == 10 * MIB));
    assert_eq!(wss.mean, Some((10 * MIB) as f64));
    assert_eq!(wss.over_time.len(), 50);
    assert_eq!(report(Measure::Regions, &stairs(0, 5)).percentile(50), Some(10));
}

#[test]
fn thresholds_include_what_they_name() {
    let list = [snapshot(0, 1, vec![region(0, 1, 1), region(1, 11, 7), region(11, 111, 20)])];
    for (threshold, bytes) in [
        (Threshold::Accesses(0), 111),
        (Threshold::Accesses(1), 111),
        (Threshold::Accesses(7), 110),
        (Threshold::Accesses(8), 100),
        (Threshold::Rate(Rate::Hz(70.0)), 110),
        (Threshold::Rate(Rate::Hz(70.1)), 100),
        (Threshold::Rate(Rate::Share(0.35)), 110),
        (Threshold::Rate(Rate::Share(1.0)), 100),
    ] {
        assert_eq!(
            report(Measure::WorkingSet(Definition::Threshold(threshold)), &list).percentile(50),
            Some(bytes),
            "{threshold}"
        );
    }
}

#[test]
fn a_share_of_a_highest_rate_that_is_not_known_is_one_of_the_highest_seen() {
    let mut list = [snapshot(0, 1, vec![region(0, 1, 1), region(1, 11, 7), region(11, 111, 10)])];
    (list[0].sample_ns, list[0].max_nr_accesses) = (0, 0);
    for (share, bytes) in [(0.05, 111), (0.2, 110), (0.8, 100)] {
        let threshold = Threshold::Rate(Rate::Share(share));
        let report = report(Measure::WorkingSet(Definition::Threshold(threshold)), &list);
        assert_eq!(report.percentile(50), Some(bytes), "{threshold}");
    }
}

#[test]
fn targets_of_one_moment_add_up_also_when_recorded_one_a_snapshot() {
    let list: Vec<Snapshot> =
        (0..10).flat_map(|i| [1, 2].map(|t| snapshot(i, t, vec![region(0, 4096 * t, 20)]))).collect();
    let measure = DAMO;
    assert_eq!(report(measure, &list).percentile(1), Some(3 * 4096));
    let mut one =
        TrendAnalysis::new(TrendOptions { targets: vec![TargetId(2)], ..TrendOptions::new(measure) });
    list.iter().for_each(|s| one.snapshot(s));
    assert_eq!(one.finish().percentile(99), Some(2 * 4096));
}

#[test]
fn nothing_recorded_is_no_percentile() {
    let empty = report(Measure::Regions, &[]);
    assert_eq!((empty.mean, empty.percentiles.len(), empty.over_time.len()), (None, 0, 0));
    assert!(serde_json::to_string(&empty).unwrap().contains("\"mean\":null"));
}

#[test]
fn a_window_meets_what_is_accessed_within_it() {
    // Half a percent of the sampling intervals: once a second.
    let rare = RegionSnapshot { nr_accesses_bp: 1000, ..region(0, 1000, 0) };
    let list = [snapshot(0, 1, vec![rare, region(1000, 1100, 20), region(2000, 9000, 0)])];
    for (seconds, expected) in [
        (0.005, 1000.0 * 0.005),
        (1.0, 1000.0 * (1.0 - 0.995_f64.powi(200))),
        (10.0, 1000.0 * (1.0 - 0.995_f64.powi(2000))),
    ] {
        let found = report(window(seconds), &list).percentile(50).unwrap();
        assert_eq!(found, 100 + expected.round() as u64, "{seconds} s");
    }
    assert_eq!(report(DAMO, &list).percentile(50), Some(100));
    // What is named in the text is what was asked for.
    assert!(report(window(1.0), &list).what.contains("Denning: accessed at least once within 1 s"));
    assert!(report(DAMO, &list).what.contains("damo: regions with at least 1 access an aggregation"));
    // Without a sampling interval: once a second too, as a rate.
    let mut foreign = list.clone();
    foreign[0].sample_ns = 0;
    let found = report(window(1.0), &foreign).percentile(50).unwrap();
    assert_eq!(found, 100 + (1000.0 * (1.0 - (-1.0_f64).exp())).round() as u64);
}

/// Every eighth page in use, in each interval or once in ten: no window holds more than those, and each holds as many of them as it
/// would if they lay together.
#[test]
fn pages_that_lie_apart_are_a_working_set_of_their_size() {
    let apart = |nr_accesses_bp| RegionSnapshot {
        nr_accesses: nr_accesses_bp / 10_000,
        nr_accesses_bp,
        idle_bp: 8750,
        ..region(0, 8000, 0)
    };
    for (bp, p) in [(25_000, 1.0), (2500, 0.1_f64)] {
        for (seconds, intervals) in [(0.005, 1), (0.05, 10), (10.0, 2000)] {
            let list = [snapshot(0, 1, vec![apart(bp)])];
            let expected = 1000.0 * (1.0 - (1.0 - p).powi(intervals));
            let found = report(window(seconds), &list).percentile(50).unwrap();
            assert!(found.abs_diff(expected.round() as u64) <= 1, "{p} {seconds} s: {found} {expected}");
        }
    }
    // Half of it is there, and so half of them.
    let half = RegionSnapshot { resident: Some(4000), ..apart(25_000) };
    assert_eq!(report(window(10.0), &[snapshot(0, 1, vec![half])]).percentile(50), Some(500));
}

/// However long the window: of a region with 10 of 1000 bytes there no more than these are met.
#[test]
fn what_is_not_there_is_in_no_working_set() {
    let with = |bytes, region| RegionSnapshot { resident: Some(bytes), ..region };
    let rare = RegionSnapshot { nr_accesses_bp: 1000, ..region(5000, 6000, 0) };
    let half = RegionSnapshot { seen_bp: 5000, ..region(8000, 9000, 20) };
    let list = [with(10, region(0, 1000, 20)), with(900, rare), region(6000, 6100, 20), with(600, half)];
    let list = [snapshot(0, 1, list.to_vec())];
    // Of the 600 bytes that are there of what is half seen 300 are unknown.
    for (seconds, expected) in [(1.0, 10.0 + 1000.0 * (1.0 - 0.995_f64.powi(200))), (1000.0, 10.0 + 900.0)] {
        let found = report(window(seconds), &list);
        assert_eq!(found.percentile(50), Some(100 + 300 + expected.round() as u64), "{seconds} s");
        assert_eq!(found.unknown_bytes[0].value, 300, "{seconds} s");
    }
    assert_eq!(report(DAMO, &list).percentile(50), Some(2100), "damo's reports know nothing of it");
}

/// Two who have different halves of a file use all of it between them, or half if it is the same: three quarters on the
/// mean. Of one process it is the half that it has.
#[test]
fn what_nobody_has_of_an_object_is_in_no_working_set() {
    let half = RegionSnapshot { resident: Some(500), ..region(0, 1000, 20) };
    let mut list = snapshot(0, 1, vec![half]);
    list.targets.push(TargetSnapshot::new(TargetId(2), vec![half]));
    let found = |targets| {
        let options = TrendOptions { targets, ..TrendOptions::new(window(30.0)) };
        let mut analysis = TrendAnalysis::new(options);
        for id in [1, 2] {
            analysis.note(&mappings(id, vec![mapping(0, 1000, "rw-s", "/dev/shm/x", 9, 0)]));
        }
        analysis.snapshot(&list);
        analysis.finish().percentile(50)
    };
    assert_eq!((found(vec![]), found(vec![TargetId(2)])), (Some(750), Some(500)));
}

#[test]
fn what_is_unknown_is_neither_in_nor_forgotten() {
    let half = RegionSnapshot { seen_bp: 5000, ..region(3000, 4000, 20) };
    let absent = RegionSnapshot { resident: Some(10), ..unknown(4000, 5000) };
    let list = [snapshot(0, 1, vec![region(0, 1000, 20), unknown(1000, 3000), half, absent])];
    for measure in [window(1.0), ACCESSED] {
        let found = report(measure, &list);
        assert_eq!(found.percentile(50), Some(1500), "{measure:?}");
        assert_eq!(found.unknown_bytes[0].value, 2000 + 500 + 10, "{measure:?}");
        assert!(found.unknown_remark().unwrap().contains("of which nothing is known"));
    }
    let known = report(DAMO, &[snapshot(0, 1, vec![region(0, 1000, 20)])]);
    assert_eq!(known.unknown_remark(), None);
    assert!(report(Measure::Regions, &list).unknown_bytes.is_empty());
    let zero = Measure::WorkingSet(Definition::Threshold(Threshold::Accesses(0)));
    assert_eq!(
        report(zero, &list).percentile(50),
        Some(1500),
        "not even a threshold of none takes the unknown"
    );
}

/// A second of which nothing is known has no working set of nothing.
#[test]
fn a_time_of_which_nothing_is_known_is_left_out() {
    let blank = |start| {
        snapshot(
            start,
            1,
            vec![unknown(0, 4000), RegionSnapshot { resident: Some(0), ..region(5000, 6000, 0) }],
        )
    };
    let known = |start| snapshot(start, 1, vec![region(0, 1000, 20), unknown(1000, 4000)]);
    for measure in [window(1.0), ACCESSED] {
        let found = report(measure, &[blank(0), blank(1), blank(2), known(3)]);
        assert_eq!((found.percentile(0), found.percentile(100)), (Some(1000), Some(1000)), "{measure:?}");
        assert_eq!(found.mean, Some(1000.0));
        assert!(
            found.remarks.iter().any(|r| r.contains("are not counted: nothing was known")),
            "{:?}",
            found.remarks
        );
        // Beside what is idle it is known that none of that was accessed.
        let idle = report(measure, &[snapshot(0, 1, vec![unknown(0, 4000), region(5000, 6000, 0)])]);
        assert_eq!(idle.percentile(50), Some(0), "{measure:?}");
        assert!(!idle.remarks.iter().any(|r| r.contains("not counted")), "{:?}", idle.remarks);
    }
    let nothing = report(window(1.0), &[blank(0)]);
    assert!(nothing.percentiles.is_empty());
    let mut out = Vec::new();
    write_text(&nothing, &TextOptions::default(), &mut out).unwrap();
    assert!(String::from_utf8(out).unwrap().contains("nothing is known of any memory"));
}

#[test]
fn damo_counts_regions_as_recorded() {
    let half = RegionSnapshot { seen_bp: 5000, ..region(3000, 4000, 1) };
    let rare = RegionSnapshot { nr_accesses_bp: 4900, ..region(5000, 6000, 0) };
    let mut analysis = TrendAnalysis::new(TrendOptions::new(DAMO));
    analysis.note(&mappings(1, vec![mapping(0, 500, "rw-s", "/dev/shm/x", 9, 0)]));
    analysis.note(&mappings(2, vec![mapping(0, 500, "rw-s", "/dev/shm/x", 9, 0)]));
    let mut list = snapshot(0, 1, vec![region(0, 1000, 20), unknown(1000, 3000), half, rare]);
    list.targets.push(TargetSnapshot::new(TargetId(2), vec![region(0, 1000, 3)]));
    analysis.snapshot(&list);
    assert_eq!(analysis.finish().percentile(50), Some(1000 + 1000 + 1000));
}

#[test]
fn a_window_longer_than_the_recording_is_told() {
    let list: Vec<Snapshot> = (0..120).map(|i| snapshot(i, 1, vec![region(0, MIB, 1)])).collect();
    let remarks = |seconds| report(window(seconds), &list).remarks;
    assert!(remarks(1.0).is_empty() && remarks(12.0).is_empty());
    let said = remarks(3_600_000.0);
    assert!(said[0].contains("shorter than the window: 12 s of 41d 16h") && said.len() == 1, "{said:?}");
    assert!(report(DAMO, &list).remarks.is_empty());
}

/// In its first moments rates are guesses, which a long window multiplies.
#[test]
fn before_a_window_was_observed_nothing_is_counted_of_it() {
    let list: Vec<Snapshot> = (0..200)
        .map(|i| snapshot(i, 1, vec![region(0, MIB, 20), region(MIB, 64 * MIB, u32::from(i < 5))]))
        .collect();
    let found = report(window(10.0), &list);
    assert_eq!(found.percentile(100), Some(MIB));
    assert_eq!(found.over_time.iter().filter_map(|bucket| bucket.max).max(), Some(MIB));
    assert!(found.over_time[0].start_ns >= 9 * 1_000_000_000);
    assert!(
        found.remarks.len() == 1 && found.remarks[0].starts_with("the first 10 s are not counted"),
        "{found:?}"
    );
    // Where there is no more than that it is said to be extrapolated.
    let short = report(window(10.0), &list[..60]);
    assert_eq!(short.percentile(100), Some(64 * MIB));
    assert!(short.remarks[0].contains("extrapolated"), "{:?}", short.remarks);
    let second = report(window(1.0), &list);
    assert!(second.percentile(100).unwrap() > 60 * MIB && second.remarks.is_empty());
}

#[test]
fn a_gap_is_no_part_of_a_working_set() {
    let mut analysis = TrendAnalysis::new(TrendOptions::new(window(1.0)));
    analysis.note(&mappings(1, vec![mapping(100, 200, "rw-p", "[heap]", 0, 0)]));
    analysis.snapshot(&snapshot(0, 1, vec![region(0, 1_000_000, 20)]));
    assert_eq!(analysis.finish().percentile(50), Some(100));
}

#[test]
fn what_several_targets_map_counts_once_with_the_accesses_of_all() {
    let shared = |target| {
        mappings(
            target,
            vec![
                mapping(target << 20, (target << 20) + 1000, "rw-s", "/dev/shm/buffers", 42, 0),
                mapping(1 << 30, (1 << 30) + 10, "rw-p", "", 0, 0),
            ],
        )
    };
    let mut list = snapshot(0, 1, Vec::new());
    // Five targets, each with a tenth of an access an aggregation: p is 0.005 for one, 1 - 0.995^5 for all.
    let part = |target: u64| RegionSnapshot {
        nr_accesses_bp: 1000,
        ..region(target << 20, (target << 20) + 1000, 0)
    };
    list.targets = (1..=5)
        .map(|t| TargetSnapshot::new(TargetId(t), vec![part(t), region(1 << 30, (1 << 30) + 10, 20)]))
        .collect();
    let found = |measure, targets: Vec<TargetId>| {
        let mut analysis = TrendAnalysis::new(TrendOptions { targets, ..TrendOptions::new(measure) });
        (1..=5).for_each(|t| analysis.note(&shared(t)));
        analysis.snapshot(&list);
        analysis.finish().percentile(50).unwrap()
    };
    let of = |mappers: i32| (1000.0 * (1.0 - 0.995_f64.powi(200 * mappers))).round() as u64;
    assert_eq!(found(window(1.0), Vec::new()), of(5) + 50);
    assert_eq!(found(window(1.0), vec![TargetId(2), TargetId(4)]), of(2) + 20);
    let all = Measure::WorkingSet(Definition::Threshold(Threshold::Accesses(0)));
    assert_eq!(found(all, Vec::new()), 1050);
}

#[test]
fn time_without_targets_is_in_no_percentile() {
    let mut list = stairs(0, 5);
    let before = report(DAMO, &list);
    let end = list.len() as u64;
    list.extend((end..end + 500).map(|i| Snapshot { targets: Vec::new(), ..snapshot(i, 1, Vec::new()) }));
    let after = report(DAMO, &list);
    assert_eq!((&after.percentiles, after.mean), (&before.percentiles, before.mean));
    // Nor is the time in which those that were asked for had ended.
    list.truncate(50);
    list.extend((end..end + 500).map(|i| snapshot(i, 2, vec![region(0, 1, 1)])));
    let mut analysis =
        TrendAnalysis::new(TrendOptions { targets: vec![TargetId(1)], ..TrendOptions::new(DAMO) });
    list.iter().for_each(|s| analysis.snapshot(s));
    assert_eq!(analysis.finish().percentiles, before.percentiles);
    let none = report(DAMO, &[Snapshot { targets: Vec::new(), ..snapshot(0, 1, Vec::new()) }]);
    assert_eq!((none.mean, none.percentiles.len()), (None, 0));
}

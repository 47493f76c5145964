//! damo's files as they come: several records in one, schemes' tracepoints, and more of everything than one expects.

#![allow(clippy::unwrap_used)] // helpers of tests; clippy.toml allows it in the tests only

mod common;

use common::{items_of, snapshots};
use isotherm_damon::Snapshot;
use isotherm_record::{Item, ReadOptions, RecordChoice, RecordedAttrs, Warning, open_with};
use std::fmt::Write as _;
use std::io::Write as _;

fn read(content: &str, options: &ReadOptions) -> (Vec<Item>, Vec<Warning>) {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(content.as_bytes()).unwrap();
    let mut reader = open_with(file.path(), options).unwrap();
    let items = items_of(&mut *reader);
    (items, reader.warnings().to_vec())
}

/// A target, and what of each of its regions.
type Outlines = Vec<(u64, Vec<u64>)>;

/// Of each snapshot its end in ms, and of each target its id and its regions' starts.
fn outline(list: &[Snapshot]) -> Vec<(u64, Outlines)> {
    let target =
        |t: &isotherm_damon::TargetSnapshot| (t.id.0, t.regions.iter().map(|r| r.range.start).collect());
    list.iter().map(|s| (s.end_ns / 1_000_000, s.targets.iter().map(target).collect())).collect()
}

#[test]
fn what_a_scheme_is_applied_to_is_a_record_of_its_own() {
    // Two schemes on one target, the second on few regions; an application ends where addresses start over.
    let line = |ms: u64, us: u64, scheme: u64, start: u64, nr: u32| {
        format!(
            "kdamond.0 4452 [000] 10.{:06}: damon:damos_before_apply: ctx_idx=0 scheme_idx={scheme} target_idx=0 \
             nr_regions=3 {start}-{}: {nr} 5\n",
            ms * 1000 + us,
            start + 4096
        )
    };
    let mut text = String::new();
    for ms in [100, 200, 300] {
        for (i, start) in [4096, 8192, 12288].into_iter().enumerate() {
            text += &line(ms, i as u64, 0, start, 3);
        }
        text += &line(ms, 9, 1, 8192, 4);
    }
    text += &line(400, 0, 1, 12288, 4);
    let (items, warnings) = read(&text, &ReadOptions::default());
    let all = |ms| (ms, vec![(0, vec![4096, 8192, 12288])]);
    assert_eq!(outline(&snapshots(&items)), [all(10_100), all(10_200), all(10_300)]);
    assert_eq!(snapshots(&items)[1].start_ns, 10_100_000_000);
    assert_eq!(snapshots(&items)[1].targets[0].regions[2].age, 5);
    let Some(Warning::Records { list, used: Some(1) }) = warnings.first() else { panic!("{warnings:?}") };
    assert_eq!(list[1], "2: context 0, scheme 1, 1 target, 4 snapshots");

    let second = ReadOptions { record: RecordChoice::Nth(2), ..ReadOptions::default() };
    let (items, _) = read(&text, &second);
    let one = |ms, start| (ms, vec![(0, vec![start])]);
    assert_eq!(
        outline(&snapshots(&items)),
        [one(10_100, 8192), one(10_200, 8192), one(10_300, 8192), one(10_400, 12288)]
    );
    // Both, as targets of their own.
    let (items, _) = read(&text, &ReadOptions { record: RecordChoice::All, ..ReadOptions::default() });
    let targets: Vec<(u64, String)> = items
        .iter()
        .filter_map(|i| match i {
            Item::Target(t) => Some((t.id, t.comm.clone())),
            _ => None,
        })
        .collect();
    assert_eq!(targets.len(), 2);
    assert!(targets[0].0 != targets[1].0 && targets[1].1 == "context 0, scheme 1", "{targets:?}");
    // Where memory was monitored as such, that is what is read.
    text += "k 1 [0] 10.500000: damon:damon_aggregated: target_id=9 nr_regions=1 4096-8192: 3 4\n";
    let (items, _) = read(&text, &ReadOptions::default());
    assert_eq!(outline(&snapshots(&items)), [one(10_500, 4096)].map(|(ms, _)| (ms, vec![(9, vec![4096])])));
}

#[test]
fn what_the_user_says_completes_what_json_lacks() {
    let text = r#"[{"target_id":1,"snapshots":[{"start_time":0,"end_time":100000000,"regions":[
        {"start":0,"end":4096,"nr_accesses":{"percent":50},"age":{"usec":200000}}]}]}]"#;
    let intervals = RecordedAttrs { sample_us: 10_000, aggr_us: 100_000, ..RecordedAttrs::default() };
    let (items, _) = read(text, &ReadOptions { intervals, ..ReadOptions::default() });
    let snapshot = &snapshots(&items)[0];
    assert_eq!((snapshot.sample_ns, snapshot.max_nr_accesses), (10_000_000, 10));
    let region = snapshot.targets[0].regions[0];
    assert_eq!((region.nr_accesses, region.age), (5, 2));
    // What the file says itself counts more.
    let own =
        text.replace("\"target_id\"", "\"intervals\":{\"sample_us\":5000,\"aggr_us\":100000},\"target_id\"");
    let (items, _) = read(&own, &ReadOptions { intervals, ..ReadOptions::default() });
    assert_eq!(snapshots(&items)[0].max_nr_accesses, 20);
}

#[test]
fn one_target_told_twice_counts_once() {
    let record = r#"{"target_id":1,"snapshots":[{"start_time":0,"end_time":100,"regions":[{"start":0,"end":4096,"nr_accesses":1}]}]}"#;
    let (items, warnings) = read(&format!("[{record},{record}]"), &ReadOptions::default());
    assert_eq!(outline(&snapshots(&items)), [(0, vec![(1, vec![0])])]);
    let twice =
        |w: &Warning| matches!(w, Warning::Skipped { count: 1, what } if what.contains("more than once"));
    assert!(warnings.iter().any(twice), "{warnings:?}");
}

/// All the time such a file takes is in its length: with a look at all others for each, these would take an hour.
#[test]
fn sixty_thousand_targets_are_nothing_special() {
    let mut text = String::new();
    for round in 0..2 {
        for target in 0..60_000 {
            // All at one time, which joins them.
            let _ = writeln!(
                text,
                "k 1 [0] {round}.000000: damon:damon_aggregated: target_id={target} nr_regions=1 0-4096: 1 1"
            );
        }
    }
    let (items, warnings) = read(&text, &ReadOptions::default());
    assert_eq!(warnings, []);
    let list = snapshots(&items);
    assert_eq!(list.iter().map(|s| s.targets.len()).collect::<Vec<_>>(), [60_000, 60_000]);
    assert_eq!(items.iter().filter(|i| matches!(i, Item::Target(_))).count(), 60_000);

    let mut text = String::from("[");
    for target in 0..60_000 {
        let separator = if target == 0 { "" } else { "," };
        let _ = write!(
            text,
            r#"{separator}{{"target_id":{target},"snapshots":[{{"start_time":{},"end_time":{},"regions":[]}}]}}"#,
            59_999 - target,
            60_000 - target
        );
    }
    text.push(']');
    let (items, _) = read(&text, &ReadOptions::default());
    let list = snapshots(&items);
    assert_eq!(list.len(), 60_000);
    assert!(list.is_sorted_by_key(|s| s.end_ns));
}

/// The kernel traces an aggregation target by target.
#[test]
fn targets_of_one_aggregation_that_end_microseconds_apart_are_one_snapshot() {
    let (mut trace, mut applied) = (String::new(), String::new());
    for round in 0..5_u64 {
        // The third target is there from the second aggregation on, and the first gone in the last.
        for target in 0..3_u64 {
            if target == 2 && round == 0 || target == 0 && round == 4 {
                continue;
            }
            // The second is interrupted meanwhile.
            let time =
                0.1 * (round + 1) as f64 + 30e-6 * target as f64 + if target == 1 { 0.002 } else { 0.0 };
            let _ = writeln!(
                trace,
                "k 1 [0] {time:.6}: damon:damon_aggregated: target_id={target} nr_regions=1 0-4096: 20 1"
            );
            let _ = writeln!(
                applied,
                "k 1 [0] {time:.6}: damon:damos_before_apply: ctx_idx=0 scheme_idx=0 target_idx={target} nr_regions=1 0-4096: 20 1"
            );
        }
    }
    for text in [trace, applied] {
        for intervals in [
            RecordedAttrs::default(),
            RecordedAttrs { sample_us: 5000, aggr_us: 100_000, ..Default::default() },
        ] {
            let (items, _) = read(&text, &ReadOptions { intervals, ..ReadOptions::default() });
            let list = snapshots(&items);
            let nr: Vec<usize> = list.iter().map(|s| s.targets.len()).collect();
            assert_eq!(nr, [2, 3, 3, 3, 2], "{intervals:?}");
            for pair in list.windows(2) {
                assert!(pair[0].end_ns <= pair[1].start_ns + 3_000_000, "{pair:?}");
            }
        }
    }
}

#[test]
fn no_byte_is_in_two_regions_of_a_target() {
    let region = |start: u64, end: u64, nr: u32| {
        format!(
            r#"{{"start":{start},"end":{end},"nr_accesses":{{"samples":{nr}}},"age":{{"aggr_intervals":1}}}}"#
        )
    };
    // Out of order, inside another, twice, and reaching over the end of another.
    let regions = [
        region(8192, 12288, 4),
        region(0, 8192, 1),
        region(4096, 6000, 2),
        region(0, 8192, 3),
        region(10000, 20480, 5),
    ];
    let text = format!(
        r#"[{{"target_id":1,"snapshots":[{{"start_time":1,"end_time":2,"regions":[{}]}}]}}]"#,
        regions.join(",")
    );
    let (items, warnings) = read(&text, &ReadOptions::default());
    let list: Vec<(u64, u64, u32)> = snapshots(&items)[0].targets[0]
        .regions
        .iter()
        .map(|r| (r.range.start, r.range.end, r.nr_accesses))
        .collect();
    assert_eq!(list, [(0, 8192, 1), (8192, 12288, 4), (12288, 20480, 5)]);
    assert_eq!(
        warnings,
        [Warning::Skipped {
            count: 3,
            what: "parts of regions that others of the same target and time lie over"
        }]
    );
}

/// Two monitors that are out of step are no one: neither are two aggregations of one target.
#[test]
fn what_ends_at_other_times_stays_apart() {
    let mut text = String::new();
    for round in 0..5 {
        for (target, phase) in [(0, 0.0), (1, 0.04)] {
            let _ = writeln!(
                text,
                "k 1 [0] {:.6}: damon:damon_aggregated: target_id={target} nr_regions=1 0-4096: 1 1",
                1.0 + 0.1 * f64::from(round) + phase
            );
        }
    }
    let (items, _) = read(&text, &ReadOptions::default());
    assert!(snapshots(&items).iter().all(|s| s.targets.len() == 1));
    assert_eq!(snapshots(&items).len(), 10);
}

#[test]
fn messages_say_what_is_used_and_what_is_not() {
    let (_, warnings) = read(
        r#"[{"target_id":1,"snapshots":[{"start_time":1,"end_time":2,"regions":[]}]}, {"oops" 5}]"#,
        &ReadOptions::default(),
    );
    assert!(warnings[0].to_string().ends_with("; the snapshots before that are used"), "{}", warnings[0]);
    let cut = Warning::Truncated { offset: 16, lost_bytes: 3, last_ns: 0 };
    assert!(cut.to_string().ends_with("; no snapshot comes before that"), "{cut}");
    let left_out = |count| Warning::Skipped { count, what: "statistics of schemes" }.to_string();
    assert_eq!(
        [left_out(1), left_out(2)].join("; "),
        "left out: 1 of the statistics of schemes; left out: 2 statistics of schemes"
    );
}

#[test]
fn what_ends_before_it_begins_is_no_region() {
    let line = |range: &str| {
        format!("k 1 [0] 100.000000: damon:damon_aggregated: target_id=1 nr_regions=3 {range}: 3 4\n")
    };
    let text = [line("8192-4096"), line("8192-8192"), line("8192-12288")].concat();
    let (items, warnings) = read(&text, &ReadOptions::default());
    assert_eq!(snapshots(&items)[0].targets[0].regions.len(), 1);
    let what = "regions that do not end past their start";
    assert!(warnings.contains(&Warning::Skipped { count: 2, what }), "{warnings:?}");
}

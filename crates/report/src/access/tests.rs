//! Which regions are shown, and what they add up to.

use super::*;
use crate::synthetic::{MIB, any_snapshots, heat, mapping, mappings, region, snapshot, stairs, unknown};
use crate::units::Rate;
use isotherm_record::Mappings;
use proptest::prelude::*;

fn report(options: AccessOptions, list: &[Snapshot]) -> AccessReport {
    let mut analysis = AccessAnalysis::new(options);
    list.iter().for_each(|s| analysis.snapshot(s));
    analysis.finish()
}

fn select(selection: Selection) -> AccessOptions {
    AccessOptions { selection, ..AccessOptions::default() }
}

/// Start of the hottest region, in steps of the stairs.
fn hot_step(report: &AccessReport) -> u64 {
    let regions = report.targets[0].regions.iter();
    regions.max_by(|a, b| a.rate_hz.unwrap().total_cmp(&b.rate_hz.unwrap())).unwrap().start / (10 * MIB)
}

#[test]
fn a_moment_is_the_snapshot_it_lies_in() {
    let list = stairs(0, 10);
    assert_eq!(hot_step(&report(select(Selection::Last), &list)), 9);
    for (at, step) in [(0.0, 0), (3.45, 3), (100.0, 9)] {
        assert_eq!(hot_step(&report(select(Selection::At(Duration::from_secs_f64(at))), &list)), step);
    }
    let last = report(select(Selection::Last), &list);
    let hot = &last.targets[0].regions[9];
    assert_eq!((hot.rate_hz, hot.rate_share, hot.nr_accesses), (Some(200.0), Some(1.0), Some(20)));
    assert_eq!((hot.age_ns, last.totals.rate_hz), (300_000_000, 20.0));
}

#[test]
fn the_group_of_the_hottest_region_comes_first() {
    let of = |id, rates: [u32; 2]| {
        let regions = vec![region(0, MIB, rates[0]), region(MIB, 3 * MIB, rates[1])];
        TargetSnapshot::new(TargetId(id), regions)
    };
    let targets = vec![of(1, [3, 1]), of(2, [0, 20]), of(3, [5, 0])];
    let list = [Snapshot { targets, ..snapshot(0, 1, Vec::new()) }];
    let order = |sort, descending| -> Vec<u64> {
        let options = AccessOptions { sort, descending, ..AccessOptions::default() };
        report(options, &list).targets.iter().map(|group| group.target).collect()
    };
    assert_eq!(order(SortKey::Rate, true), [2, 3, 1]);
    assert_eq!(order(SortKey::Rate, false), [2, 3, 1], "0 Hz, 0 Hz, and 10 Hz");
    assert_eq!(order(SortKey::Size, true), [1, 2, 3], "all are as large");
    assert_eq!(order(SortKey::Address, false), [1, 2, 3]);
}

#[test]
fn a_list_may_be_cut_and_its_sums_are_of_all() {
    let of = |id, first| {
        let at = |i: u64| region(i * MIB, (i + 1) * MIB, u32::try_from(i).unwrap() + first);
        TargetSnapshot::new(TargetId(id), (0..5).map(at).collect())
    };
    let list = [Snapshot { targets: vec![of(1, 0), of(2, 10)], ..snapshot(0, 1, Vec::new()) }];
    let of = |limit, selection| {
        let (sort, descending) = (SortKey::Rate, true);
        report(AccessOptions { selection, sort, descending, limit, ..AccessOptions::default() }, &list)
    };
    for selection in [Selection::Last, Selection::Between(Duration::ZERO, Duration::from_secs(9))] {
        let (all, cut) = (of(None, selection), of(Some(2), selection));
        assert_eq!(cut.totals, all.totals);
        for (cut, all) in cut.targets.iter().zip(&all.targets) {
            assert_eq!((cut.target, &cut.totals), (all.target, &all.totals));
            assert_eq!(cut.regions, all.regions[..2]);
            assert_eq!((cut.unlisted_regions, cut.unlisted_bytes), (3, 3 * MIB));
            assert_eq!((all.unlisted_regions, all.regions.len()), (0, 5));
        }
        let mut text = Vec::new();
        write_text(&cut, 100, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert_eq!(text.matches("3 more regions, 3.0 MiB, not listed: --limit").count(), 2, "{text}");
        let of_all = of(Some(5), selection);
        assert_eq!(of_all, all);
    }
}

#[test]
fn an_aggregate_is_the_mean_over_its_time() {
    let between = Selection::Between(Duration::from_millis(500), Duration::from_millis(2500));
    let report = report(select(between), &stairs(0, 10));
    assert_eq!((report.start_ns, report.end_ns, report.snapshots), (500_000_000, 2_500_000_000, 20));
    let rates: Vec<f64> = report.targets[0].regions.iter().map(|r| r.rate_hz.unwrap().round()).collect();
    assert_eq!(rates[..3], [50.0, 100.0, 50.0]);
    assert!(rates[3..].iter().all(|hz| *hz == 0.0));
}

proptest! {
    #[test]
    fn an_aggregate_keeps_the_mean_rate_of_every_byte(list in any_snapshots(), from in 0u64..2000, size in 1u64..3000) {
        let report = report(select(Selection::Between(Duration::ZERO, Duration::from_secs(100))), &list);
        let range = AddrRange::new(from, from + size);
        for region in report.targets.iter().flat_map(|t| &t.regions) {
            let own = AddrRange::new(region.start, region.end);
            let (heat, seen) = heat(&list, own.intersection(range));
            // Segments are cut at every boundary, so each byte of one has the segment's rate.
            if seen > 0.0 {
                let hz = region.rate_hz.unwrap();
                    prop_assert!((hz - heat / seen).abs() < 1e-6 * hz.max(1.0));
            }
        }
    }
}

#[test]
fn names_are_those_of_the_selected_time() {
    let map = |time_ns, name: &str| {
        let maps = vec![mapping(0, 100 * MIB, "rw-p", name, 0, 0)];
        Item::Mappings(Mappings { target: 1, time_ns, maps: maps.into(), partial: false })
    };
    let mut analysis = AccessAnalysis::new(select(Selection::At(Duration::from_secs(2))));
    analysis.note(&map(0, "/before"));
    for (i, snapshot) in stairs(0, 10).iter().enumerate() {
        if i == 50 {
            analysis.note(&map(5_000_000_000, "/after"));
        }
        analysis.snapshot(snapshot);
    }
    assert_eq!(analysis.finish().targets[0].regions[0].mapping.as_deref(), Some("before"));
}

#[test]
fn targets_are_grouped_and_totals_add_up() {
    let list: Vec<Snapshot> =
        [1, 2].map(|t| snapshot(0, t, vec![region(0, 4096, 20), region(4096, 8192 * t, 1)])).into();
    let report =
        report(AccessOptions { sort: SortKey::Rate, descending: true, ..AccessOptions::default() }, &list);
    assert_eq!(report.targets.iter().map(|t| t.target).collect::<Vec<_>>(), [1, 2]);
    assert_eq!((report.totals.regions, report.totals.bytes), (4, 3 * 8192));
    assert_eq!(report.totals.classes[4].bytes, 8192);
    // One access of twenty is 5 %, which is not above 5 %.
    assert_eq!(report.totals.classes[1].bytes, 16384);
    let by_group: u64 = report.targets.iter().map(|t| t.totals.bytes).sum();
    assert_eq!(by_group, report.totals.bytes);
}

#[test]
fn nothing_recorded_is_an_empty_report() {
    for selection in [Selection::Last, Selection::Between(Duration::ZERO, Duration::MAX)] {
        assert!(report(select(selection), &[]).targets.is_empty());
    }
}

#[test]
fn unknown_is_not_cold() {
    let list = [snapshot(0, 1, vec![region(0, 1000, 0), unknown(1000, 3000), region(3000, 4000, 20)])];
    let cold = |unknown| {
        let pattern = Pattern { max_rate: Some(Rate::Hz(0.0)), unknown, ..Pattern::default() };
        report(AccessOptions { pattern, ..AccessOptions::default() }, &list)
    };
    let starts = |report: &AccessReport| -> Vec<u64> {
        report.targets.iter().flat_map(|t| &t.regions).map(|r| r.start).collect()
    };
    assert_eq!(starts(&cold(false)), [0]);
    assert_eq!(starts(&cold(true)), [0, 1000]);
    let all = report(AccessOptions::default(), &list);
    assert_eq!(starts(&all), [0, 1000, 3000], "shown where no rate is asked for");
    assert_eq!((all.targets[0].regions[1].rate_hz, all.targets[0].regions[1].seen), (None, 0.0));
    let totals = &all.totals;
    assert_eq!((totals.classes[0].bytes, totals.unknown_bytes, totals.bytes), (1000, 2000, 4000));
    assert_eq!((totals.classes[0].regions, totals.unknown_regions), (1, 1));
    assert_eq!(totals.rate_hz, 100.0, "the mean of what is known");
    let over_time = report(select(Selection::Between(Duration::ZERO, Duration::MAX)), &list);
    assert_eq!(over_time.targets[0].regions[1].rate_hz, None);
    assert_eq!(over_time.totals.unknown_bytes, 2000);
}

#[test]
fn what_mappings_are_called_is_told_without_what_else_a_region_covers() {
    let pattern = Pattern { mapping: "nosuch".to_owned(), ..Pattern::default() };
    let mut analysis = AccessAnalysis::new(AccessOptions { pattern, ..AccessOptions::default() });
    analysis.note(&mappings(
        1,
        vec![
            mapping(0, 6000, "r--p", "/lib/a.so", 1, 0),
            mapping(6000, 8000, "rw-p", "[heap]", 0, 0),
            mapping(8000, 9000, "r--p", "/lib/a.so", 1, 6000),
        ],
    ));
    analysis.snapshot(&snapshot(0, 1, vec![region(0, 8000, 1), region(8000, 9000, 2)]));
    let missing = analysis.finish().missing.unwrap().to_string();
    assert!(missing.ends_with("has \"nosuch\" in its name; there are a.so, [heap]"), "{missing}");
}

/// A region has the name of the mapping that is asked for, of all that it covers.
#[test]
fn a_region_over_several_mappings_is_found_by_each_of_them() {
    let found = |part: &str, by| {
        let pattern = Pattern { mapping: part.to_owned(), ..Pattern::default() };
        let mut analysis = AccessAnalysis::new(AccessOptions { pattern, by, ..AccessOptions::default() });
        analysis.note(&mappings(
            1,
            vec![
                mapping(0, 6000, "r--p", "/lib/a.so", 1, 0),
                mapping(6000, 8000, "rw-p", "[heap]", 0, 0),
                mapping(8000, 9000, "r--p", "/srv/old/b", 2, 0),
            ],
        ));
        analysis.snapshot(&snapshot(0, 1, vec![region(0, 8000, 1), region(8000, 9000, 2)]));
        let report = analysis.finish();
        let regions = report.targets.iter().flat_map(|t| &t.regions);
        (
            regions.map(|r| r.mapping.as_deref().unwrap_or("").to_owned()).collect::<Vec<_>>(),
            report.hidden_regions,
        )
    };
    assert_eq!(found("heap", Grouping::Target), (vec!["[heap] (+1)".to_owned()], 1));
    assert_eq!(found("a.so", Grouping::Target), (vec!["a.so (+1)".to_owned()], 1));
    assert_eq!(found("srv", Grouping::Target), (vec!["b".to_owned()], 1), "by its path");
    assert_eq!(found("/lib/", Grouping::Object), (vec!["a.so".to_owned()], 2));
    assert_eq!(found("heap", Grouping::Object), (vec!["[heap]".to_owned()], 2));
}

#[test]
fn what_is_not_there_is_not_unknown() {
    // Half of the memory that could not be observed is there, of what was seen in part a quarter.
    let with = |region: RegionSnapshot, resident| RegionSnapshot { resident: Some(resident), ..region };
    let half = RegionSnapshot { seen_bp: 5000, ..region(4000, 6000, 20) };
    let list = [snapshot(
        0,
        1,
        vec![with(region(0, 1000, 0), 1000), with(unknown(1000, 3000), 1000), with(half, 500)],
    )];
    for selection in [Selection::Last, Selection::Between(Duration::ZERO, Duration::MAX)] {
        for by in [Grouping::Target, Grouping::Object] {
            let all = report(AccessOptions { by, ..select(selection) }, &list);
            let totals = &all.totals;
            assert_eq!((totals.bytes, totals.unknown_bytes), (5000, 1000 + 250), "{selection:?} {by:?}");
            assert_eq!((totals.classes[0].bytes, totals.classes[4].bytes), (1000, 250));
            assert_eq!((totals.absent_bytes, totals.resident), (1000 + 1500, Some(2500)));
            assert_eq!(all.targets[0].regions[1].rate_hz, None, "of what is there nothing is known");
        }
    }
}

#[test]
fn a_heap_has_the_size_of_its_mapping() {
    let heap = mappings(1, vec![mapping(8192, 8192 + 4096, "rw-p", "[heap]", 0, 0)]);
    let mut wide = region(0, 249 * MIB, 0);
    wide.resident = Some(4096);
    for selection in [Selection::Last, Selection::Between(Duration::ZERO, Duration::MAX)] {
        let mut analysis = AccessAnalysis::new(select(selection));
        analysis.note(&heap);
        // The second region lies in the gap above.
        analysis.snapshot(&snapshot(0, 1, vec![wide, region(249 * MIB, 250 * MIB, 0)]));
        let report = analysis.finish();
        let rows = &report.targets[0].regions;
        assert_eq!(rows.len(), 1);
        assert_eq!((rows[0].start, rows[0].end, rows[0].size), (8192, 12_288, 4096));
        assert_eq!(rows[0].mapping.as_deref(), Some("[heap]"));
        assert_eq!((report.totals.bytes, report.totals.classes[0].bytes), (4096, 4096));
        assert_eq!((rows[0].resident, report.totals.resident), (Some(4096), Some(4096)));
    }
}

/// Three backends on one segment of shared memory, each with 10 pages of its own.
fn backends(options: AccessOptions) -> AccessReport {
    let mut analysis = AccessAnalysis::new(options);
    let mut all = snapshot(0, 1, Vec::new());
    for target in 1..=3_u64 {
        let shared = target << 30;
        analysis.note(&mappings(
            target,
            vec![
                mapping(0, 40_960, "rw-p", "[heap]", 0, 0),
                mapping(shared, shared + 100 * MIB, "rw-s", "/dev/shm/PostgreSQL.1", 77, 4096),
            ],
        ));
        // Half of the segment: each in half of the intervals. The rest: cold.
        let regions = vec![
            region(0, 40_960, 2),
            region(shared, shared + 50 * MIB, 10),
            region(shared + 50 * MIB, shared + 100 * MIB, 0),
        ];
        all.targets.push(TargetSnapshot::new(TargetId(target), regions));
    }
    all.targets.remove(0);
    analysis.snapshot(&all);
    analysis.finish()
}

#[test]
fn a_shared_segment_appears_once_and_counts_once() {
    let whole = 3 * 40_960 + 100 * MIB;
    for selection in [Selection::Last, Selection::Between(Duration::ZERO, Duration::MAX)] {
        let by_target = backends(select(selection));
        assert_eq!(by_target.targets.len(), 3);
        assert!(by_target.targets.iter().all(|t| t.totals.bytes == 40_960 + 100 * MIB));
        assert_eq!(by_target.totals.bytes, whole, "in the sum over all it counts once");
        let by_object = backends(AccessOptions { by: Grouping::Object, ..select(selection) });
        assert_eq!(by_object.totals.bytes, whole);
        let [.., segment] = &by_object.targets[..] else { panic!("no segment") };
        assert_eq!(by_object.targets.len(), 4);
        assert_eq!(segment.object.as_deref(), Some("0:8:77"));
        assert!(segment.name.contains("PostgreSQL.1") && segment.name.contains("mapped by 3 targets"));
        assert_eq!(segment.regions.len(), 2);
        let hot = &segment.regions[0];
        assert_eq!((hot.start, hot.end, hot.size), (4096, 4096 + 50 * MIB, 50 * MIB));
        // 1 - 0.5^3 of 200 Hz.
        assert!((hot.rate_hz.unwrap() - 175.0).abs() < 1e-3, "{hot:?}");
        assert!(by_object.targets[0].name.contains("memory of its own"));
        assert!((by_object.totals.rate_hz - by_target.totals.rate_hz).abs() < 1e-2);
    }
    let pattern = Pattern { targets: vec![2], ..Pattern::default() };
    let one = backends(AccessOptions { by: Grouping::Object, pattern, ..AccessOptions::default() });
    assert_eq!(one.targets.len(), 2);
    assert!((one.targets[1].regions[0].rate_hz.unwrap() - 100.0).abs() < 1e-3, "only the chosen target's");
}

/// As after the first second of a recording of processes that sleep.
#[test]
fn what_stood_still_since_before_the_time_asked_for_is_in_it() {
    let pattern =
        Pattern { min_rate: Some(Rate::Hz(0.0)), max_rate: Some(Rate::Hz(0.0)), ..Pattern::default() };
    let selection = Selection::Between(Duration::from_secs(1), Duration::from_secs(2));
    let by = Grouping::Object;
    let mut analysis =
        AccessAnalysis::new(AccessOptions { selection, pattern, by, ..AccessOptions::default() });
    for target in 1..=3 {
        let maps = [
            mapping(0, 100 * MIB, "rw-p", "[heap]", 0, 0),
            mapping(200 * MIB, 201 * MIB, "r-xp", "/lib/x.so", 7, 0),
        ]
        .into();
        analysis.note(&Item::Mappings(Mappings { target, time_ns: 0, maps, partial: false }));
    }
    for i in 0..30 {
        let regions = vec![region(0, 100 * MIB, 0), region(200 * MIB, 201 * MIB, 0)];
        let mut all = snapshot(i, 1, regions.clone());
        all.targets.extend((2..=3).map(|id| TargetSnapshot::new(TargetId(id), regions.clone())));
        all.targets.iter_mut().for_each(|target| target.steady = i > 0);
        analysis.snapshot(&all);
    }
    let report = analysis.finish();
    assert_eq!((report.targets.len(), report.totals.bytes), (4, 301 * MIB), "three heaps, and one file");
}

#[test]
fn a_file_that_was_seen_before_its_mapping_was_known_counts_once() {
    let mean = Selection::Between(Duration::ZERO, Duration::MAX);
    let options = AccessOptions { by: Grouping::Object, ..select(mean) };
    let mut analysis = AccessAnalysis::new(options);
    let heap = mapping(0, 40_960, "rw-p", "[heap]", 0, 0);
    analysis.note(&mappings(1, vec![heap.clone()]));
    let (file, end) = (1 << 30, (1 << 30) + 100 * MIB);
    // One region over the end of the file and memory of its own behind it.
    let seen = |at| snapshot(at, 1, vec![region(0, 40_960, 2), region(file, end + 8192, 10)]);
    analysis.snapshot(&seen(0));
    let own = mapping(end, end + 8192, "rw-p", "", 0, 0);
    analysis.note(&mappings(1, vec![heap, mapping(file, end, "r--s", "/d/big", 7, 0), own]));
    (1..10).for_each(|at| analysis.snapshot(&seen(at)));
    let report = analysis.finish();
    assert_eq!(report.totals.bytes, 100 * MIB + 40_960 + 8192);
    let sizes: Vec<u64> = report.targets.iter().map(|target| target.totals.bytes).collect();
    assert_eq!(sizes, [40_960 + 8192, 100 * MIB]);
}

#[test]
fn very_many_objects_are_looked_through_once() {
    // Those who map it looked for anew for each object would take minutes.
    const MANY: u64 = 60_000;
    let options = AccessOptions { by: Grouping::Object, ..AccessOptions::default() };
    let mut analysis = AccessAnalysis::new(options);
    for target in [1, 2] {
        let maps = (1..=MANY).map(|i| mapping(i << 13, (i << 13) + 4096, "r--p", "/d/f", i, 0));
        analysis.note(&mappings(target, maps.collect()));
    }
    let mut both = snapshot(0, 1, vec![region(0, (MANY + 1) << 13, 2)]);
    both.targets.push(TargetSnapshot::new(TargetId(2), both.targets[0].regions.clone()));
    analysis.snapshot(&both);
    let report = analysis.finish();
    assert_eq!(report.targets.len() as u64, MANY);
    assert!(report.targets.iter().all(|object| object.name.ends_with("mapped by 2 targets")));
}

#[test]
fn the_end_is_that_of_the_targets() {
    let mut list = stairs(0, 10);
    let end = list.len() as u64;
    list.extend((end..end + 50).map(|i| Snapshot { targets: Vec::new(), ..snapshot(i, 1, Vec::new()) }));
    for selection in [Selection::Last, Selection::At(Duration::from_secs(12))] {
        assert_eq!(hot_step(&report(select(selection), &list)), 9, "{selection:?}");
    }
}

#[test]
fn a_snapshot_of_very_many_regions_keeps_its_sums_and_its_heat() {
    let nr = 3 * MOST_AT_ONCE as u64;
    let hot = |i: u64| if (i / 1000).is_multiple_of(9) { 20 } else { (i % 2) as u32 };
    let regions: Vec<RegionSnapshot> = (0..nr).map(|i| region(i << 12, (i + 1) << 12, hot(i))).collect();
    let list = [snapshot(0, 1, regions.clone()), snapshot(1, 1, regions)];
    let moment = report(select(Selection::Last), &list);
    assert_eq!(moment.targets[0].regions.len() as u64, nr);
    let mean = report(select(Selection::Between(Duration::ZERO, Duration::MAX)), &list);
    assert!(mean.targets[0].regions.len() <= MAX_SEGMENTS);
    assert_eq!(mean.totals.bytes, moment.totals.bytes);
    let heat = |report: &AccessReport| report.totals.rate_hz * report.totals.bytes as f64;
    assert!((heat(&mean) / heat(&moment) - 1.0).abs() < 1e-6, "{} {}", heat(&mean), heat(&moment));
    // What is hot and what is not are far enough apart to stay apart.
    assert_eq!(mean.totals.classes[4].bytes, moment.totals.classes[4].bytes);
}

#[test]
fn groups_add_up_in_every_order() {
    let sorted = |sort, descending| {
        let mut analysis =
            AccessAnalysis::new(AccessOptions { sort, descending, ..AccessOptions::default() });
        let mut all = snapshot(0, 1, Vec::new());
        all.targets.clear();
        for target in 1..=3 {
            let maps = (0..4).map(|i| mapping(i * 4 * MIB, i * 4 * MIB + MIB * target, "rw-p", "", 0, 0));
            analysis.note(&mappings(target, maps.collect()));
            let regions = (0..4).map(|i| region(i * 4 * MIB, (i + 1) * 4 * MIB, (i as u32 * 7 + 3) % 5));
            all.targets.push(TargetSnapshot::new(TargetId(target), regions.collect()));
        }
        analysis.snapshot(&all);
        let report = analysis.finish();
        let mut groups: Vec<(u64, Totals)> =
            report.targets.into_iter().map(|t| (t.target, t.totals)).collect();
        groups.sort_by_key(|(target, _)| *target);
        (groups, report.totals)
    };
    let plain = sorted(SortKey::Address, false);
    assert_eq!(plain.0.iter().map(|(_, t)| t.bytes).collect::<Vec<_>>(), [4 * MIB, 8 * MIB, 12 * MIB]);
    assert_eq!((plain.1.bytes, plain.1.regions), (24 * MIB, 12));
    for sort in [SortKey::Rate, SortKey::Size, SortKey::Target] {
        for descending in [false, true] {
            assert_eq!(sorted(sort, descending), plain, "{sort:?} {descending}");
        }
    }
}

/// A region over two mappings of one page of a file, of which a third is there: the sum is the row's.
#[test]
fn the_sum_of_one_row_is_the_row() {
    for selection in [Selection::Last, Selection::Between(Duration::ZERO, Duration::MAX)] {
        let mut analysis = AccessAnalysis::new(select(selection));
        let maps = vec![
            mapping(0, 6000, "r--p", "/lib/a.so", 7, 0),
            mapping(6000, 12_000, "rw-p", "/lib/a.so", 7, 0),
        ];
        analysis.note(&mappings(1, maps));
        let region = RegionSnapshot { resident: Some(4001), ..region(0, 12_000, 3) };
        analysis.snapshot(&snapshot(0, 1, vec![region]));
        let report = analysis.finish();
        let row = &report.targets[0].regions[0];
        for totals in [&report.totals, &report.targets[0].totals] {
            assert_eq!((totals.bytes, totals.resident), (row.size, row.resident), "{selection:?}");
            assert_eq!(totals.absent_bytes, row.size - row.resident.unwrap(), "{selection:?}");
            assert_eq!(totals.rate_hz, row.rate_hz.unwrap(), "{selection:?}");
        }
    }
}

/// One that has just begun does not say for a moment what it has of the buffers that all map, and guesses have it access all of them.
#[test]
fn a_newborn_process_does_not_hide_what_is_resident() {
    let selection = Selection::Between(Duration::ZERO, Duration::MAX);
    let options = AccessOptions { by: Grouping::Object, selection, ..AccessOptions::default() };
    let mut analysis = AccessAnalysis::new(options);
    for target in [1, 2] {
        let buffers = mapping(0, 100 * MIB, "rw-s", "/dev/shm/buffers", 7, 0);
        analysis.note(&mappings(target, vec![buffers]));
    }
    for i in 0..100 {
        let there =
            |start, end, nr, resident| RegionSnapshot { resident: Some(resident), ..region(start, end, nr) };
        let regions = vec![there(0, 10 * MIB, 2, 10 * MIB), there(10 * MIB, 100 * MIB, 0, 0)];
        let mut next = snapshot(i, 1, regions);
        if let Some(fresh) = match i {
            50 => Some(unknown(0, 100 * MIB)),
            51 => Some(region(0, 100 * MIB, 1)),
            _ => None,
        } {
            next.targets.push(TargetSnapshot::new(TargetId(2), vec![fresh]));
        }
        analysis.snapshot(&next);
    }
    let report = analysis.finish();
    let [buffers] = &report.targets[..] else { panic!("{:?}", report.targets) };
    let [used, rest] = &buffers.regions[..] else { panic!("{:?}", buffers.regions) };
    assert_eq!((used.end, used.resident), (10 * MIB, Some(10 * MIB)));
    assert!(used.rate_hz.is_some_and(|hz| (19.0..21.0).contains(&hz)), "{used:?}");
    assert!(rest.is_absent(), "nobody ever touched it: {rest:?}");
    assert_eq!(buffers.totals.absent_bytes, 90 * MIB);
    assert_eq!(buffers.totals.resident, Some(10 * MIB));
}

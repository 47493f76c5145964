//! Regions that cover several mappings: what each of these has is not known.

use super::*;
use crate::units::format_size;

const KIB: u64 = 1 << 10;
const BASE: u64 = 1 << 30;

/// A region of which all is present, in use at this rate but for a share of it.
fn strewn(start: u64, end: u64, nr: u32, idle_bp: u16) -> RegionSnapshot {
    let bp = nr * (10_000 - u32::from(idle_bp));
    RegionSnapshot {
        nr_accesses: bp / 10_000,
        nr_accesses_bp: bp,
        idle_bp,
        resident: Some(end - start),
        ..region(start, end, 0)
    }
}

/// Files of 64 KiB each, one after the other, by their numbers.
fn files(target: u64, base: u64, perms: &str, numbers: std::ops::Range<u64>) -> Item {
    let one = |(at, i): (u64, u64)| {
        let start = base + at * 64 * KIB;
        mapping(start, start + 64 * KIB, perms, &format!("/srv/{i}"), 100 + i, 0)
    };
    mappings(target, (0..).zip(numbers).map(one).collect())
}

fn report(by: By, notes: &[Item], list: &[Snapshot]) -> HoldingsReport {
    let mut analysis = HoldingsAnalysis::new(HoldingsOptions { by, ..Default::default() });
    notes.iter().for_each(|note| analysis.note(note));
    list.iter().for_each(|s| analysis.snapshot(s));
    analysis.finish()
}

fn figures(report: &HoldingsReport) -> Vec<(String, Figures)> {
    let mappings = report.mappings.iter().map(|m| (m.name.clone(), m.figures));
    mappings.chain(report.objects.iter().map(|o| (o.name.clone(), o.figures))).collect()
}

/// Of 88 files every fourth is in use. Four regions of 22 files each know that a quarter is in use, and nobody knows of which files: once
/// those that happened to lie first of each 256 KiB were said to be it.
#[test]
fn which_of_the_files_under_one_region_are_in_use_is_not_made_up() {
    let size = 22 * 64 * KIB;
    let regions: Vec<_> = (0..4).map(|i| strewn(BASE + i * size, BASE + (i + 1) * size, 20, 7500)).collect();
    for by in [By::Mapping, By::Object] {
        let report = report(by, &[files(1, BASE, "rw-s", 0..88)], &span(0, 12, &regions));
        let lines = figures(&report);
        assert_eq!(lines.len(), 88);
        for (name, f) in &lines {
            for figure in [Figure::WorkingSet(0), Figure::WorkingSet(1), Figure::Hot, Figure::Cold(0)] {
                assert_eq!(f.certainty(figure), Certainty::AtMost(64 * KIB), "{name}: {figure:?}");
                assert_eq!(f.measured(figure), None);
            }
            assert_eq!((f.resident, f.certainty(Figure::Resident)), (Some(64 * KIB), Certainty::Measured));
            let json = serde_json::to_value(f).unwrap();
            assert!(json["ws_1s"].is_null() && json["cold_10s"].is_null(), "{json}");
            assert_eq!(json["between"]["ws_1s"], serde_json::json!([0, 64 * KIB]));
            assert_eq!((&json["shared_out"], &json["resident"]), (&(64 * KIB).into(), &(64 * KIB).into()));
        }
        // The sum was measured.
        let quarter = 22 * 64 * KIB;
        assert!(report.totals.ws_1s.abs_diff(quarter) < 100, "{}", format_size(report.totals.ws_1s));
        assert_eq!(report.totals.certainty(Figure::WorkingSet(0)), Certainty::Measured);
        let mut text = Vec::new();
        write_table(&report, 100, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let line = text.lines().find(|line| line.contains("40 ") || line.contains("/40")).unwrap();
        assert!(line.contains(" <64K"), "{text}");
        assert!(text.contains("<: no more than: of a region that covers several mappings"), "{text}");
        let mut csv = Vec::new();
        write_csv(&report, &mut csv).unwrap();
        let csv = String::from_utf8(csv).unwrap();
        let column = |name: &str| csv.lines().next().unwrap().split(',').position(|n| n == name).unwrap();
        let row: Vec<&str> = csv.lines().find(|l| l.contains(",/srv/40,")).unwrap().split(',').collect();
        assert_eq!((row[column("ws_1s")], row[column("shared_out")]), ("", "65536"));
    }
}

/// Where all that is there is in use, or none of it, it is known of each mapping.
#[test]
fn of_what_is_alike_each_mapping_has_its_part() {
    let (middle, end) = (BASE + 11 * 64 * KIB, BASE + 22 * 64 * KIB);
    let regions = [strewn(BASE, middle, 20, 0), strewn(middle, end, 0, 0)];
    let report = report(By::Mapping, &[files(1, BASE, "rw-s", 0..22)], &span(0, 12, &regions));
    for (name, f) in figures(&report) {
        let hot = name.parse::<u64>().unwrap() < 11;
        let (used, cold) = if hot { (64 * KIB, 0) } else { (0, 64 * KIB) };
        assert_eq!((f.ws_1s, f.cold_10s, f.hot), (used, Some(cold), Some(used)), "{name}");
        assert!(
            Figure::ALL.iter().all(|figure| f.certainty(*figure) == Certainty::Measured),
            "{name}: {f:?}"
        );
        let json = serde_json::to_value(f).unwrap();
        assert!(json.get("between").is_none() && json.get("shared_out").is_none(), "{json}");
    }
    let mut text = Vec::new();
    write_table(&report, 100, &mut text).unwrap();
    assert!(!String::from_utf8(text).unwrap().contains("no more than"));
}

/// A large mapping whose edge is under a region with its neighbour: the most that it may have there is told, and what little that may
/// be of a large figure is no matter.
#[test]
fn bounds_are_as_near_as_the_recording_lets_them() {
    let file = |start: u64, end: u64, i: u64| {
        mapping(BASE + start * MIB, BASE + end * MIB, "r--s", &format!("/srv/{i}"), i, 0)
    };
    let maps = mappings(1, vec![file(0, 64, 1), file(64, 65, 2), file(65, 100, 3)]);
    let at = |start: u64, end: u64, nr, idle| strewn(BASE + start * MIB, BASE + end * MIB, nr, idle);
    let regions = [at(0, 63, 0, 0), at(63, 67, 20, 5000), at(67, 100, 20, 0)];
    let report = report(By::Mapping, &[maps], &span(0, 12, &regions));
    let of = |name: &str| report.mappings.iter().find(|m| m.name == name).unwrap().figures;
    assert_eq!(of("1").certainty(Figure::WorkingSet(0)), Certainty::AtMost(MIB));
    assert_eq!(of("1").certainty(Figure::Cold(0)), Certainty::Measured);
    assert_eq!(of("2").certainty(Figure::WorkingSet(0)), Certainty::AtMost(MIB));
    // 33 MiB are its own, and of the other two none, one or two are in use.
    assert_eq!(of("3").certainty(Figure::WorkingSet(0)), Certainty::Measured);
    assert_eq!(of("3").bounds.map(|bounds| bounds.shared_out), Some(2 * MIB));
    assert_eq!(of("3").certainty(Figure::Cold(0)), Certainty::AtMost(2 * MIB));
}

/// Sixteen processes that have the same few pages of a large file in their page tables, beside a library that is all there, under regions
/// that are cut elsewhere in each: it is there once, however many map it.
#[test]
fn a_file_that_many_have_a_little_of_is_there_once() {
    const FILE: u64 = 30;
    let list = |target: u64| {
        let base = (target << 32) + target % 5 * MIB;
        let maps = vec![
            mapping(base, base + FILE * MIB, "r--p", "/lib/data.so", 7, 0),
            mapping(base + FILE * MIB, base + (FILE + 2) * MIB, "r-xp", "/lib/code.so", 8, 0),
        ];
        // Nothing of the first 24 MiB or more; the rest with the neighbour, all of which is there.
        let at = base + (20 + target % 4) * MIB;
        let end = base + (FILE + 2) * MIB;
        let there = |start, end, bytes| RegionSnapshot { resident: Some(bytes), ..region(start, end, 0) };
        (maps, vec![there(base, at, 8 * KIB), there(at, end, 2 * MIB + 8 * KIB)])
    };
    let mut holdings = Holdings::default();
    (1..=16).for_each(|target| holdings.note(&mappings(target, list(target).0)));
    for i in 0..20 {
        let mut all = snapshot(i, 1, Vec::new());
        all.targets = (1..=16).map(|t| TargetSnapshot::new(TargetId(t), list(t).1)).collect();
        holdings.snapshot(&all);
    }
    let objects = holdings.objects();
    let data = objects.iter().find(|o| o.name == "data.so").unwrap().figures;
    // That of one process, but for borders that lie elsewhere in each.
    let most = 2 * MIB + 200 * KIB;
    assert!(data.resident.unwrap() <= most, "{}", format_size(data.resident.unwrap()));
    assert_eq!(data.measured(Figure::Resident), None, "how much of it lies in the neighbour is not known");
    assert!(
        matches!(data.certainty(Figure::Resident), Certainty::AtMost(bytes) if bytes <= most),
        "{data:?}"
    );
    assert!(
        holdings.totals().resident.unwrap() <= 2 * most,
        "{}",
        format_size(holdings.totals().resident.unwrap())
    );
}

/// Of a program that several run all have the same pages; of buffers that several map each may use others.
#[test]
fn private_files_are_the_same_for_all_and_shared_memory_is_not() {
    let half = |base: u64| RegionSnapshot {
        resident: Some(4 * MIB),
        nr_accesses: 1,
        nr_accesses_bp: 700,
        ..region(base, base + 8 * MIB, 0)
    };
    for (perms, same) in [("r-xp", true), ("r--s", false)] {
        let mut holdings = Holdings::default();
        let base = |target: u64| target << 32;
        for target in 1..=3 {
            let at = base(target);
            holdings.note(&mappings(target, vec![mapping(at, at + 8 * MIB, perms, "/srv/all", 7, 0)]));
        }
        for i in 0..150 {
            let mut all = snapshot(i, 1, Vec::new());
            all.targets = (1..=3).map(|t| TargetSnapshot::new(TargetId(t), vec![half(base(t))])).collect();
            holdings.snapshot(&all);
        }
        let [object] = &holdings.objects()[..] else { panic!("one object") };
        let one = holdings.figures(TargetId(1)).unwrap();
        let (all, of_one) = (object.figures, one);
        if same {
            assert_eq!((all.resident, all.ws_1s), (Some(4 * MIB), of_one.ws_1s));
            assert_eq!((all.ws_10s, all.cold_10s), (of_one.ws_10s, of_one.cold_10s));
        } else {
            assert_eq!(all.resident, Some(7 * MIB));
            assert!(all.ws_1s > of_one.ws_1s, "{all:?}");
        }
        // It is so of what those did that have ended.
        for target in [2, 3] {
            holdings.note(&Item::TargetEnd(TargetEnd {
                target,
                reason: "exited".to_owned(),
                ..TargetEnd::default()
            }));
        }
        holdings.snapshot(&snapshot(150, 1, vec![half(base(1))]));
        let left = holdings.objects()[0].figures;
        assert_eq!(left.resident, all.resident, "{perms}");
        assert_eq!(holdings.stock().totals, holdings.totals());
    }
}

/// Sixteen processes that use the same tenth of a library: it is in use once, wherever each has it. Which pages those are is not recorded, and
/// they were laid down at other ones in each whose address is no multiple of the others'.
#[test]
fn the_same_pages_are_in_use_wherever_a_library_is_mapped() {
    for (perms, same) in [("r-xp", true), ("r--s", false)] {
        for (step, idle_bp) in
            [(0, 9000), (4 * KIB, 9000), (16 * KIB, 9000), (16 * KIB, 9800), (100 * KIB, 5000)]
        {
            let mut holdings = Holdings::default();
            let base = |t: u64| (t << 32) + t * step;
            for t in 1..=16 {
                let list = vec![mapping(base(t), base(t) + 16 * MIB, perms, "/lib/code.so", 8, 0)];
                holdings.note(&mappings(t, list));
            }
            for i in 0..120 {
                let mut all = snapshot(i, 1, Vec::new());
                let one = |t| vec![strewn(base(t), base(t) + 16 * MIB, 20, idle_bp)];
                all.targets = (1..=16).map(|t| TargetSnapshot::new(TargetId(t), one(t))).collect();
                holdings.snapshot(&all);
            }
            let (object, one) = (holdings.objects()[0].figures, holdings.figures(TargetId(1)).unwrap());
            // Pages are cut at borders of cells: a cell of 256 KiB has one more at the most.
            let near = |a: u64, b: u64| a.abs_diff(b) <= 64 * 4096;
            let in_use = 16 * MIB * u64::from(10_000 - idle_bp) / 10_000;
            assert!(near(one.ws_1s, in_use), "{step} {idle_bp}: {one:?}");
            if same {
                assert!(
                    near(object.ws_1s, in_use) && near(object.ws_10s.unwrap(), in_use),
                    "{step}: {object:?}"
                );
                assert!(near(object.hot.unwrap(), in_use), "{step} {idle_bp}: {object:?}");
                assert!(near(object.cold_10s.unwrap(), 16 * MIB - in_use), "{step} {idle_bp}: {object:?}");
            } else {
                let any = 1.0 - (f64::from(idle_bp) / 10_000.0).powi(16);
                assert!(near(object.ws_1s, (16.0 * MIB as f64 * any) as u64), "{step} {idle_bp}: {object:?}");
            }
            assert_eq!(holdings.totals().ws_1s, object.ws_1s);
            assert_eq!(holdings.stock().totals, holdings.totals());
        }
    }
}

/// Two processes map a file: one has a region of its own for it and leaves it alone, of the other one region covers it and a neighbour, and half
/// of that is in use. So all of the file may be cold, or none of it.
#[test]
fn no_more_of_a_file_is_known_to_be_cold_than_all_who_map_it_leave_alone() {
    for perms in ["r--s", "r--p"] {
        let mut holdings = Holdings::default();
        let base = |t: u64| t << 32;
        for t in 1..=2 {
            let (middle, end) = (base(t) + 8 * MIB, base(t) + 16 * MIB);
            let list = vec![
                mapping(base(t), middle, perms, "/srv/a", 9, 0),
                mapping(middle, end, "rw-p", "[heap]", 0, 0),
            ];
            holdings.note(&mappings(t, list));
        }
        let idle = |from: u64, to: u64| strewn(from, to, 0, 0);
        for i in 0..150 {
            let mut all = snapshot(i, 1, Vec::new());
            let (middle, end) = (base(1) + 8 * MIB, base(1) + 16 * MIB);
            all.targets = vec![
                TargetSnapshot::new(TargetId(1), vec![idle(base(1), middle), idle(middle, end)]),
                TargetSnapshot::new(TargetId(2), vec![strewn(base(2), base(2) + 16 * MIB, 20, 5000)]),
            ];
            holdings.snapshot(&all);
        }
        let file = holdings.objects()[0].figures;
        for figure in [Figure::Cold(0), Figure::WorkingSet(1)] {
            assert_eq!(file.shown(figure), Some(4 * MIB), "{perms} {figure:?}");
            assert_eq!(file.certainty(figure), Certainty::AtMost(8 * MIB), "{perms} {figure:?}");
        }
        assert_eq!(file.certainty(Figure::Resident), Certainty::Measured);
    }
}

/// Nothing of it is any process's own: of a region over two files the sum is known, and how much of that others use too is not.
#[test]
fn the_sum_of_files_that_several_map_has_bounds_as_well() {
    let mut analysis = HoldingsAnalysis::new(HoldingsOptions::default());
    let mut holdings = Holdings::default();
    let base = |t: u64| t << 32;
    let file = |at: u64, i: u64| mapping(at, at + 8 * MIB, "r--p", &format!("/lib/{i}"), 8 + i, 0);
    for list in
        [mappings(1, vec![file(base(1), 1), file(base(1) + 8 * MIB, 2)]), mappings(2, vec![file(base(2), 1)])]
    {
        analysis.note(&list);
        holdings.note(&list);
    }
    for i in 0..150 {
        let mut all = snapshot(i, 1, Vec::new());
        all.targets = vec![
            TargetSnapshot::new(TargetId(1), vec![strewn(base(1), base(1) + 16 * MIB, 20, 5000)]),
            TargetSnapshot::new(TargetId(2), vec![strewn(base(2), base(2) + 8 * MIB, 20, 0)]),
        ];
        holdings.snapshot(&all);
        analysis.snapshot(&all);
    }
    let totals = holdings.totals();
    assert_eq!((totals.ws_10s, totals.certainty(Figure::WorkingSet(1))), (Some(12 * MIB), Certainty::About));
    assert_eq!(totals.certainty(Figure::Resident), Certainty::Measured);
    assert_eq!(holdings.stock().totals, totals);
    let reason = "exited".to_owned();
    analysis.note(&Item::TargetEnd(TargetEnd { target: 2, time_ns: 150 * AGGR_NS, reason }));
    for i in 150..170 {
        let one = vec![strewn(base(1), base(1) + 16 * MIB, 0, 0)];
        analysis.snapshot(&snapshot(i, 1, one));
    }
    let mut text = Vec::new();
    let report = analysis.finish();
    write_table(&report, 100, &mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    let highest = text.lines().find(|line| line.starts_with("highest, ")).unwrap();
    assert!(highest.contains(" ~12M") && text.contains("~: about"), "{text}");
}

/// Where each file is of one process, all regions count once.
#[test]
fn the_sum_of_what_no_other_maps_is_measured() {
    let mut holdings = Holdings::default();
    for t in 1..=2_u64 {
        let base = t << 32;
        let list = vec![
            mapping(base, base + 8 * MIB, "r--s", &format!("/srv/{t}"), 8 + t, 0),
            mapping(base + 8 * MIB, base + 16 * MIB, "rw-p", "[heap]", 0, 0),
        ];
        holdings.note(&mappings(t, list));
    }
    for i in 0..120 {
        let mut all = snapshot(i, 1, Vec::new());
        let one = |t: u64| vec![strewn(t << 32, (t << 32) + 16 * MIB, 20, 5000)];
        all.targets = (1..=2).map(|t| TargetSnapshot::new(TargetId(t), one(t))).collect();
        holdings.snapshot(&all);
    }
    let totals = holdings.totals();
    assert_eq!((totals.ws_1s, totals.cold_10s, totals.bounds), (16 * MIB, Some(16 * MIB), None));
    assert_eq!(holdings.stock().totals, totals);
}

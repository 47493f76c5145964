//! What is held, against a byte-by-byte account.

mod ended;
mod known;
mod lives;
mod naive;
mod portions;
mod shown;
mod together;

use super::*;
use crate::synthetic::{AGGR_NS, MIB, mapping, mappings, region, snapshot, unknown};
use crate::trend::{Definition, Measure, TrendAnalysis, TrendOptions};
use isotherm_damon::RegionSnapshot;
use isotherm_record::TargetEnd;
use proptest::prelude::*;

fn held(list: &[Snapshot]) -> Holdings {
    let mut holdings = Holdings::default();
    list.iter().for_each(|s| holdings.snapshot(s));
    holdings
}

/// `seconds` of snapshots of target 1 from the `from`th second on.
fn span(from: u64, seconds: u64, regions: &[RegionSnapshot]) -> Vec<Snapshot> {
    (from * 10..(from + seconds) * 10).map(|i| snapshot(i, 1, regions.to_vec())).collect()
}

#[test]
fn hot_cold_and_unknown_are_told_apart() {
    let resident = RegionSnapshot { resident: Some(3 * MIB), ..region(8 * MIB, 16 * MIB, 0) };
    let list = span(0, 70, &[region(0, 8 * MIB, 20), resident, unknown(16 * MIB, 20 * MIB)]);
    let figures = held(&list).totals();
    assert_eq!(figures.mapped, 20 * MIB);
    assert_eq!((figures.resident, figures.resident_at_least()), (None, Some(3 * MIB)), "not known of all");
    assert_eq!(figures.working_sets(), [Some(8 * MIB); 3]);
    assert_eq!(figures.hot, Some(8 * MIB));
    // What is not there cannot be reclaimed; nothing was observed for 5 minutes.
    assert_eq!(figures.cold(), [Some(3 * MIB), Some(3 * MIB), None]);
    assert_eq!(figures.unknown, Some(4 * MIB));
}

/// A file that is mapped and read in order, a MiB a second: no more can be cold since 10 s than was there 10 s ago.
#[test]
fn what_was_not_there_is_not_cold_since_then() {
    let mut list = Vec::new();
    for i in 0..40 {
        // Most of its pages come with the fault of another: nobody accesses them. Regions are drawn now so, now so.
        let (whole, front) = (64 * MIB, (i + 1) * MIB);
        let part = |start: u64, end: u64, resident| RegionSnapshot {
            resident: Some(resident),
            ..region(start, end, 0)
        };
        let regions = match i % 3 {
            0 => vec![part(0, whole, front)],
            1 => vec![part(0, front, front), part(front, whole, 0)],
            _ => vec![part(0, i * MIB, i * MIB), part(i * MIB, whole, MIB)],
        };
        list.extend(span(i, 1, &regions));
    }
    let figures = held(&list).totals();
    assert_eq!(figures.resident, Some(40 * MIB));
    let cold = figures.cold_10s.unwrap();
    assert!((29 * MIB..=31 * MIB).contains(&cold), "{} MiB", cold / MIB);
}

/// What is there stays as cold as it is, however the regions are drawn that it lies in.
#[test]
fn drawing_regions_anew_brings_nothing() {
    let there = |i: u64| {
        let part =
            |start, end, resident| RegionSnapshot { resident: Some(resident), ..region(start, end, 0) };
        // All of it lies in the first half.
        let at = (8 + i * 5 % 24) * MIB;
        [part(0, at, at), part(at, 64 * MIB, 32 * MIB - at)]
    };
    let list: Vec<Snapshot> = (0..40).flat_map(|i| span(i, 1, &there(i))).collect();
    let cold = held(&list).totals().cold_10s.unwrap();
    assert!(cold > 31 * MIB, "{} MiB of 32", cold / MIB);
}

/// Every eighth page in use: a working set of so many, and the others are as cold as if they lay elsewhere.
#[test]
fn pages_between_those_in_use_are_cold() {
    let apart =
        RegionSnapshot { nr_accesses: 2, nr_accesses_bp: 25_000, idle_bp: 8750, ..region(0, 8 * MIB, 0) };
    let figures = held(&span(0, 70, &[apart, region(8 * MIB, 10 * MIB, 0)])).totals();
    assert_eq!(figures.mapped, 10 * MIB);
    assert_eq!(figures.working_sets(), [Some(MIB); 3]);
    assert_eq!(
        figures.hot,
        Some(MIB),
        "each of them in every interval, though the region is at an eighth of that"
    );
    assert_eq!(figures.cold(), [Some(9 * MIB), Some(9 * MIB), None]);
}

/// The same whose regions' borders come and go, as does what is known of how many are in use.
#[test]
fn pages_that_lie_apart_are_the_same_ones_whatever_the_borders() {
    let apart = |from: u64, to: u64, idle_bp| RegionSnapshot {
        nr_accesses: 1,
        nr_accesses_bp: 10_000,
        idle_bp,
        ..region(from * MIB / 4, to * MIB / 4, 0)
    };
    let mut list = Vec::new();
    for i in 0..70 {
        let (first, second) = (7 + i * 5 % 13, 27 + i * 7 % 29);
        let idle = |part: u64| 8700 + ((i * 3 + part) % 5 * 20) as u16;
        let regions = [(0, first, 0), (first, second, 1), (second, 64, 2)];
        list.extend(span(i, 1, &regions.map(|(from, to, part)| apart(from, to, idle(part)))));
    }
    let figures = held(&list).totals();
    let [one, ten, sixty] = figures.working_sets().map(|ws| ws.unwrap() as f64 / MIB as f64);
    assert!((1.9..2.1).contains(&one), "{one} MiB of 16 within a second");
    assert!(ten < 2.3 && sixty < 2.3, "{ten} and {sixty} MiB within 10 and 60");
    assert!(figures.cold_10s.unwrap() > 13 * MIB, "{:?}", figures.cold());
}

#[test]
fn what_was_in_use_a_while_ago_belongs_to_the_longer_windows() {
    let mut list = span(0, 30, &[region(0, MIB, 20), region(MIB, 4 * MIB, 0)]);
    list.extend(span(30, 30, &[region(0, MIB, 0), region(MIB, 3 * MIB, 20), region(3 * MIB, 4 * MIB, 0)]));
    let figures = held(&list).totals();
    assert_eq!(figures.working_sets(), [2 * MIB, 2 * MIB, 3 * MIB].map(Some));
    assert_eq!(figures.cold(), [Some(2 * MIB), Some(MIB), None]);
    // Five seconds on, all of it idle.
    list.extend(span(60, 5, &[region(0, 4 * MIB, 0)]));
    let figures = held(&list).totals();
    assert_eq!(figures.working_sets(), [0, 2 * MIB, 3 * MIB].map(Some));
    assert_eq!(figures.cold(), [Some(2 * MIB), Some(MIB), None]);
}

#[test]
fn what_was_unknown_in_the_meantime_is_not_known_to_be_cold() {
    let mut list = span(0, 20, &[region(0, 2 * MIB, 0)]);
    list.extend(span(20, 1, &[region(0, MIB, 0), unknown(MIB, 2 * MIB)]));
    list.extend(span(21, 5, &[region(0, 2 * MIB, 0)]));
    assert_eq!(held(&list).totals().cold_10s, Some(MIB));
    list.extend(span(26, 6, &[region(0, 2 * MIB, 0)]));
    assert_eq!(held(&list).totals().cold_10s, Some(2 * MIB));
}

#[test]
fn a_gap_between_snapshots_is_no_time_without_accesses() {
    let mut list = span(0, 5, &[region(0, MIB, 0)]);
    list.extend(span(15, 5, &[region(0, MIB, 0)]));
    assert_eq!(held(&list).totals().cold_10s, None);
    assert_eq!(held(&list).totals().ws_10s, None, "nor one that was observed");
    list.extend(span(20, 6, &[region(0, MIB, 0)]));
    let figures = held(&list).totals();
    assert_eq!((figures.cold_10s, figures.working_sets()), (Some(MIB), [Some(0), Some(0), None]));
}

#[test]
fn a_stop_of_the_recorder_is_no_time_without_accesses() {
    let idle = [region(0, MIB, 0), region(MIB, 2 * MIB, 20)];
    for steady in [false, true] {
        let mut list = span(0, 5, &idle);
        // Stopped in the middle of an aggregation, which ends 12 s later than it should.
        let mut stopped = snapshot(50, 1, idle.to_vec());
        stopped.end_ns = 170 * AGGR_NS;
        list.push(stopped);
        list.extend(span(17, 5, &idle));
        list.iter_mut().skip(1).for_each(|s| s.targets[0].steady = steady);
        if steady {
            list.iter_mut().skip(1).for_each(|s| *s = s.changes());
        }
        let figures = held(&list).totals();
        assert_eq!((figures.mapped, figures.cold_10s, figures.ws_10s), (2 * MIB, None, None), "{steady}");
        list.extend(span(22, 6, &idle));
        assert_eq!(held(&list).totals().cold_10s, Some(MIB), "observed for so long since then");
    }
    // One that is late, as on a busy machine, is not.
    let mut list = span(0, 5, &idle);
    list.push(Snapshot { end_ns: 65 * AGGR_NS, ..snapshot(50, 1, idle.to_vec()) });
    list.extend((65..110).map(|i| snapshot(i, 1, idle.to_vec())));
    assert_eq!(held(&list).totals().cold_10s, Some(MIB));
}

#[test]
fn what_is_not_there_is_in_no_working_set() {
    let part = RegionSnapshot { resident: Some(MIB), ..region(0, 8 * MIB, 20) };
    let figures = held(&span(0, 20, &[part])).totals();
    assert_eq!((figures.mapped, figures.resident), (8 * MIB, Some(MIB)));
    assert_eq!((figures.working_sets(), figures.hot), ([Some(MIB), Some(MIB), None], Some(MIB)));
}

#[test]
fn the_age_of_what_could_not_be_observed_says_nothing_of_the_rest() {
    let old = RegionSnapshot { age: 4000, ..unknown(MIB, 2 * MIB) };
    let figures = held(&span(0, 1, &[region(0, MIB, 0), old])).totals();
    assert_eq!(figures.cold(), [None; 3]);
}

#[test]
fn a_recording_of_one_snapshot_has_what_its_ages_say() {
    let cold = RegionSnapshot { age: 700, ..region(0, MIB, 0) };
    let figures = held(&[snapshot(0, 1, vec![cold, region(MIB, 2 * MIB, 0)])]).totals();
    assert_eq!(figures.cold(), [Some(MIB), Some(MIB), None]);
}

#[test]
fn a_steady_target_needs_no_regions() {
    let regions =
        [region(0, MIB, 1), region(MIB, 2 * MIB, 0), unknown(2 * MIB, 3 * MIB), region(3 * MIB, 4 * MIB, 20)];
    let list = span(0, 90, &regions);
    let full = held(&list);
    for with_regions in [true, false] {
        let mut holdings = Holdings::default();
        for (i, snapshot) in list.iter().enumerate() {
            let mut snapshot = snapshot.clone();
            snapshot.targets[0].steady = i > 0 && i != 500;
            holdings.snapshot(&if with_regions { snapshot } else { snapshot.changes() });
        }
        let (a, b) = (holdings.totals(), full.totals());
        for (a, b) in a.working_sets().into_iter().zip(b.working_sets()) {
            assert!(a.unwrap().abs_diff(b.unwrap()) < MIB / 100, "{a:?} {b:?}");
        }
        for (a, b) in a.cold().into_iter().zip(b.cold()) {
            assert!(a.is_some() == b.is_some() && a.unwrap_or(0).abs_diff(b.unwrap_or(0)) < MIB / 100);
        }
        assert_eq!((a.mapped, a.hot, a.unknown), (b.mapped, b.hot, b.unknown));
    }
}

/// Three processes that share a file, each with a heap of its own.
fn family() -> Holdings {
    let mut holdings = Holdings::default();
    for target in 1..=3 {
        holdings.note(&Item::Target(TargetInfo {
            id: target,
            pid: target as u32,
            comm: format!("worker{target}"),
            ..TargetInfo::default()
        }));
        let at = target << 30;
        holdings.note(&mappings(
            target,
            vec![
                mapping(at, at + MIB, "rw-s", "/dev/shm/cache", 42, 0),
                mapping(at + MIB, at + 2 * MIB, "rw-p", "", 0, 0),
                mapping(at + 2 * MIB, at + 3 * MIB, "---p", "", 0, 0),
                mapping(at + 5 * MIB, at + 6 * MIB, "rw-p", "[heap]", 0, 0),
                mapping(at + 8 * MIB, at + 9 * MIB, "rw-p", "", 0, 0),
            ],
        ));
    }
    for i in 0..200 {
        let mut all = snapshot(i, 1, Vec::new());
        all.targets = (1..=3)
            .map(|t| {
                let at = t << 30;
                // Target 3 alone uses the upper half of what is shared.
                let upper = if t == 3 { 20 } else { 0 };
                let regions = vec![
                    region(at, at + MIB / 2, 20),
                    region(at + MIB / 2, at + MIB, upper),
                    region(at + MIB, at + 9 * MIB, 0),
                ];
                TargetSnapshot::new(TargetId(t), regions)
            })
            .collect();
        holdings.snapshot(&all);
    }
    holdings
}

#[test]
fn what_several_targets_map_counts_once_in_totals_and_in_each_process() {
    let holdings = family();
    let processes = holdings.processes();
    assert_eq!(processes.len(), 3);
    for process in &processes {
        assert_eq!(process.figures.mapped, 5 * MIB, "gaps are no memory");
        assert_eq!(process.observed_ns, 20_000_000_000);
    }
    assert_eq!(processes[0].figures.ws_10s, Some(MIB / 2));
    assert_eq!(processes[2].figures.ws_10s, Some(MIB));
    let totals = holdings.totals();
    assert_eq!(totals.mapped, 13 * MIB);
    assert_eq!((totals.working_sets(), totals.hot), ([Some(MIB), Some(MIB), None], Some(MIB)));
    assert_eq!(totals.cold_10s, Some(12 * MIB), "nobody uses the rest");
    let objects = holdings.objects();
    assert_eq!(objects.len(), 1);
    assert_eq!((objects[0].name.as_str(), objects[0].mappers), ("cache", 3));
    assert_eq!((objects[0].figures.mapped, objects[0].figures.cold_10s), (MIB, Some(0)));
}

#[test]
fn mappings_of_a_name_are_one_line_and_runs_of_anonymous_memory() {
    let rows = family().mappings(TargetId(1));
    let names: Vec<(&str, u64, bool)> = rows.iter().map(|r| (&*r.name, r.figures.mapped, r.shared)).collect();
    assert_eq!(
        names,
        [("cache", MIB, true), ("anon", 2 * MIB, false), ("[heap]", MIB, false), ("anon", MIB, false)]
    );
    assert_eq!(rows[0].figures.hot, Some(MIB / 2));
    assert_eq!((rows[1].start, rows[1].end), ((1 << 30) + MIB, (1 << 30) + 3 * MIB));
}

#[test]
fn what_is_hot_is_not_decided_by_the_last_aggregation_nor_the_first() {
    // Three times too high for two seconds, below a tenth of the highest rate from then on.
    let (high, low) = ([region(0, MIB, 4)], [region(0, MIB, 1)]);
    let hot = |spans: &[(u64, u64, &[RegionSnapshot])]| {
        let list: Vec<_> = spans.iter().flat_map(|(from, seconds, r)| span(*from, *seconds, r)).collect();
        held(&list).totals().hot
    };
    assert_eq!(hot(&[(0, 2, &high), (2, 15, &low)]), Some(0));
    // A pause at the end.
    let busy = [region(0, MIB, 20)];
    let idle = [region(0, MIB, 0)];
    assert_eq!(hot(&[(0, 20, &busy), (20, 1, &idle)]), Some(MIB));
    assert_eq!(hot(&[(0, 20, &busy), (20, 12, &idle)]), Some(0), "cold is not hot");
}

#[test]
fn memory_outside_of_all_mappings_has_a_line_and_lines_add_up() {
    let mut analysis = HoldingsAnalysis::new(HoldingsOptions { by: By::Mapping, ..Default::default() });
    analysis.note(&mappings(1, vec![mapping(0, 4 * MIB, "rw-p", "[heap]", 0, 0)]));
    let list =
        span(0, 20, &[region(0, 5 * MIB, 20), region(6 * MIB, 8 * MIB, 3), region(9 * MIB, 20 * MIB, 0)]);
    list.iter().for_each(|s| analysis.snapshot(s));
    let report = analysis.finish();
    let lines: Vec<_> = report.mappings.iter().map(|m| (m.name.as_str(), m.figures.mapped)).collect();
    assert_eq!(lines, [("[heap]", 4 * MIB), (crate::UNKNOWN_MAPPING, 2 * MIB)]);
    let sum = |figure: fn(&Figures) -> u64| report.mappings.iter().map(|m| figure(&m.figures)).sum::<u64>();
    assert_eq!(sum(|f| f.mapped), report.totals.mapped);
    assert_eq!(sum(|f| f.ws_1s), report.totals.ws_1s);
    assert_eq!(Some(sum(|f| f.ws_10s.unwrap())), report.totals.ws_10s);
    let mut text = Vec::new();
    write_text(&report, 80, &mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("unknown mapping"), "{text}");
}

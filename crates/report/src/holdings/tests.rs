//! What is held, against a byte-by-byte account.

mod ended;
mod known;
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

#[test]
fn what_ended_keeps_its_last_figures_and_leaves_the_totals() {
    let mut holdings = family();
    let end =
        |target| Item::TargetEnd(TargetEnd { target, reason: "killed".to_owned(), ..TargetEnd::default() });
    holdings.note(&end(2));
    assert_eq!(holdings.totals().mapped, 13 * MIB, "how things stood at the last snapshot");
    let mut next = snapshot(200, 1, vec![region(1 << 30, (1 << 30) + MIB, 0)]);
    next.targets.push(TargetSnapshot::new(TargetId(3), vec![region(3 << 30, (3 << 30) + MIB, 0)]));
    holdings.snapshot(&next);
    assert_eq!(holdings.totals().mapped, MIB);
    let processes: Vec<_> = holdings.processes_with_mappings().collect();
    assert_eq!(processes.len(), 3);
    let gone = processes.iter().find(|p| p.target == 2).unwrap();
    assert_eq!((gone.ended.as_deref(), gone.figures.mapped), (Some("killed"), 5 * MIB));
    assert_eq!(gone.mappings.len(), 4);
    // All gone, and nothing but empty snapshots after that.
    holdings.note(&end(1));
    holdings.note(&end(3));
    holdings.snapshot(&Snapshot { targets: Vec::new(), ..snapshot(201, 1, Vec::new()) });
    assert_eq!(holdings.totals().mapped, MIB);
    assert!(holdings.processes().iter().filter(|p| p.ended.is_none()).count() == 2);
}

#[test]
fn the_mappings_kept_of_what_ended_add_up_to_it() {
    let mut holdings = Holdings::default();
    let place = |i: u64| (i * 4 * MIB, i * 4 * MIB + MIB * (1 + i % 3));
    let map = |i| mapping(place(i).0, place(i).1, "rw-p", &format!("/lib/{i}.so"), 0, 0);
    holdings.note(&mappings(1, (0..20).map(map).collect()));
    let part =
        |i| RegionSnapshot { resident: Some(MIB / 2), ..region(place(i).0, place(i).1, (i % 5) as u32) };
    for i in 0..20 {
        holdings.snapshot(&snapshot(i, 1, (0..20).map(part).collect()));
    }
    holdings.note(&Item::TargetEnd(TargetEnd { target: 1, ..TargetEnd::default() }));
    holdings.snapshot(&snapshot(20, 2, vec![region(0, MIB, 0)]));
    let processes: Vec<_> = holdings.processes_with_mappings().collect();
    let gone = processes.iter().find(|p| p.target == 1).unwrap();
    assert_eq!(gone.mappings.len(), 9, "eight, and the rest");
    let rest = gone.mappings.last().unwrap();
    assert_eq!((&*rest.name, rest.ranges), ("other mappings", 12));
    let sum = |pick: fn(&Figures) -> u64| gone.mappings.iter().map(|m| pick(&m.figures)).sum::<u64>();
    assert_eq!(sum(|f| f.mapped), gone.figures.mapped);
    assert_eq!(sum(|f| f.resident.unwrap()), gone.figures.resident.unwrap());
    assert!(sum(|f| f.ws_1s).abs_diff(gone.figures.ws_1s) < 10, "but for rounding");
}

#[test]
fn memory_does_not_grow_with_the_recording_nor_with_targets_that_ended() {
    let mut holdings = Holdings::default();
    let mut at = 12345_u64;
    for i in 0..3000 {
        let mut regions = Vec::new();
        let mut start = 0;
        for _ in 0..20 {
            at = at.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let end = start + 4096 * (1 + (at >> 40) % 300);
            regions.push(region(start, end, ((at >> 20) % 21) as u32));
            start = end;
        }
        let mut snapshot = snapshot(i, 1, regions.clone());
        snapshot.targets.push(TargetSnapshot::new(TargetId(i + 10), regions));
        holdings.snapshot(&snapshot);
        holdings.note(&Item::TargetEnd(TargetEnd { target: i + 10, ..TargetEnd::default() }));
    }
    assert!(holdings.held[&1].layer.segments.len() <= 40 + 256);
    assert!(holdings.held.len() <= 2 && holdings.gone.len() == MAX_ENDED);
    assert_eq!(holdings.nr_ended(), 2999);
}

#[test]
fn files_of_processes_that_came_and_went_are_forgotten() {
    let mut holdings = Holdings::default();
    let file = |inode: u64| mapping(MIB, 2 * MIB, "r--s", &format!("/tmp/job-{inode}"), inode, 0);
    holdings.note(&mappings(1, vec![file(1)]));
    for i in 2..20_000 {
        holdings.note(&mappings(i, vec![file(i)]));
        let mut both = snapshot(i - 2, 1, vec![region(MIB, 2 * MIB, 20)]);
        both.targets.push(TargetSnapshot::new(TargetId(i), vec![region(MIB, 2 * MIB, 1)]));
        holdings.snapshot(&both);
        holdings.note(&Item::TargetEnd(TargetEnd { target: i, ..TargetEnd::default() }));
    }
    assert!(holdings.space.nr_objects() < 4096, "{}", holdings.space.nr_objects());
    // What is mapped has its name, however long ago it was mapped.
    let objects = holdings.objects();
    assert!(objects.iter().any(|object| object.path == "/tmp/job-1" && object.mappers == 1), "{objects:?}");
    assert_eq!(objects.iter().filter(|object| object.mappers > 0).count(), 2);
    // The others are those of the last minute, at ten a second.
    assert!(objects.len() <= 2 + 601, "{}", objects.len());
    let nobodys = objects.iter().filter(|object| object.mappers == 0);
    assert!(nobodys.clone().count() > 100 && nobodys.clone().all(|o| o.figures.ws_60s > Some(0)));
}

#[test]
fn pages_of_a_file_here_and_there_take_no_more_memory_than_their_region() {
    const PAGE: u64 = 4096;
    let mut holdings = Holdings::default();
    for target in [1, 2] {
        let map = |i: u64| match i % 2 {
            0 => mapping(i * PAGE, (i + 1) * PAGE, "rw-p", "", 0, 0),
            _ => mapping(i * PAGE, (i + 1) * PAGE, "r--p", "/usr/lib/a", 1, i * PAGE),
        };
        holdings.note(&mappings(target, (0..1000).map(map).collect()));
    }
    for i in 0..120 {
        let mut both = snapshot(i, 1, vec![region(0, 400 * PAGE, 20), region(400 * PAGE, 1000 * PAGE, 0)]);
        both.targets.push(TargetSnapshot::new(TargetId(2), vec![region(0, 1000 * PAGE, 0)]));
        holdings.snapshot(&both);
    }
    assert!(holdings.held.values().all(|held| held.layer.segments.len() <= 2));
    let figures = |f: &Figures| (f.mapped / PAGE, f.ws_1s / PAGE, f.cold_10s.map(|cold| cold / PAGE));
    assert_eq!(figures(&holdings.objects()[0].figures), (500, 200, Some(300)));
    assert_eq!(figures(&holdings.totals()), (1500, 400, Some(1100)));
    assert_eq!(holdings.stock().totals, holdings.totals());
    let rows = holdings.mappings(TargetId(1));
    assert_eq!(rows.iter().filter(|row| row.shared).map(|row| row.ranges).collect::<Vec<_>>(), [500]);
    assert_eq!(rows.len(), 501, "each page of its own, and the file");
}

#[test]
fn however_many_end_together_what_they_shared_counts_once() {
    let mut holdings = Holdings::default();
    let all = 2..2 + 2 * MAX_ENDED as u64;
    let mut last = snapshot(0, 1, vec![region(0, MIB, 20)]);
    for target in all.clone() {
        holdings.note(&mappings(target, vec![mapping(0, MIB, "r--s", "/srv/data", 7, 0)]));
        last.targets.push(TargetSnapshot::new(TargetId(target), vec![region(0, MIB, 20)]));
    }
    holdings.note(&mappings(1, vec![mapping(0, MIB, "r--s", "/srv/data", 7, 0)]));
    holdings.snapshot(&last);
    all.for_each(|target| holdings.note(&Item::TargetEnd(TargetEnd { target, ..TargetEnd::default() })));
    assert_eq!(holdings.totals().mapped, MIB);
}

#[test]
fn other_memory_at_the_same_address_has_no_past() {
    let mut holdings = Holdings::default();
    holdings.note(&mappings(1, vec![mapping(0, MIB, "r--p", "/usr/lib/a", 1, 0)]));
    span(0, 20, &[region(0, MIB, 0)]).iter().for_each(|s| holdings.snapshot(s));
    assert_eq!(holdings.totals().cold_10s, Some(MIB));
    holdings.note(&mappings(1, vec![mapping(0, MIB, "r--p", "/usr/lib/b", 2, 0)]));
    span(20, 5, &[region(0, MIB, 0)]).iter().for_each(|s| holdings.snapshot(s));
    assert_eq!(holdings.totals().cold_10s, Some(0));
}

const PAGES: usize = 64;

/// What is true of one byte of every page: accesses a second and whether known, a snapshot each.
#[derive(Clone, Debug, Default)]
struct Naive(Vec<Vec<Option<f64>>>);

impl Naive {
    fn take(&mut self, regions: &[RegionSnapshot]) {
        let page = |at: u64| {
            let found = regions.iter().find(|r| r.range.contains(at * 4096))?;
            let p = f64::from(found.nr_accesses) / 20.0;
            (found.seen_bp > 0).then(|| (-(-p).ln_1p()).min(CERTAIN) / 0.005)
        };
        self.0.push((0..PAGES as u64).map(page).collect());
    }

    /// Pages accessed within the last `seconds`, of those known now, since they last became known.
    fn met(&self, seconds: f64, page: usize) -> Option<f64> {
        self.0.last()?[page]?;
        let known = self.0.iter().rev().map_while(|s| s[page]);
        Some(1.0 - (-known.take((seconds * 10.0).round() as usize).sum::<f64>() / 10.0).exp())
    }

    /// Pages whose mean rate is `least_hz` and more, as far as they were accessed within so many seconds.
    fn hot(&self, least_hz: f64, seconds: f64) -> f64 {
        let hot = |page: &usize| {
            let mut known: Vec<f64> = self.0.iter().rev().map_while(|s| s[*page]).collect();
            known.reverse();
            let mut mean = 0.0;
            for (nr, per_s) in known.iter().enumerate() {
                let hz = -(-per_s * 0.005).exp_m1() / 0.005;
                mean += (hz - mean) / ((nr + 1) as f64).min(FADE_S * 10.0);
            }
            mean >= least_hz
        };
        (0..PAGES).filter(hot).filter_map(|page| self.met(seconds, page)).sum()
    }

    fn ws(&self, seconds: f64) -> f64 {
        (0..PAGES).filter_map(|page| self.met(seconds, page)).sum::<f64>() * 4096.0
    }

    /// The most that a working set may be: each page counts at least as in that of a second, which goes by the present
    /// rate, also where less than a second was observed.
    fn most_ws(&self, seconds: f64) -> f64 {
        let second = |page: usize| Some(1.0 - (-self.0.last()?[page]?).exp());
        let met = |page| Some(self.met(seconds, page)?.max(second(page)?));
        (0..PAGES).filter_map(met).sum::<f64>() * 4096.0
    }

    fn cold(&self, seconds: f64) -> f64 {
        let nr = (seconds * 10.0).round() as usize;
        let known =
            |page: usize| self.0.len() >= nr && self.0.iter().rev().take(nr).all(|s| s[page].is_some());
        let cold =
            (0..PAGES).filter(|page| known(*page)).filter_map(|page| Some(1.0 - self.met(seconds, page)?));
        cold.sum::<f64>() * 4096.0
    }
}

/// Phases of a target: for so many aggregations these rates by page, `None` unknown; regions are drawn anew in each
/// snapshot.
fn phases() -> impl Strategy<Value = Vec<(u64, Vec<Option<u32>>)>> {
    let rate = prop_oneof![4 => Just(Some(0)), 2 => Just(Some(20)), 1 => (1..20_u32).prop_map(Some), 1 => Just(None)];
    let stretch = (1..16_usize, rate).prop_map(|(pages, rate)| vec![rate; pages]);
    let pages = prop::collection::vec(stretch, 4..20).prop_map(|list| {
        let mut all = list.concat();
        all.resize(PAGES, Some(0));
        all
    });
    prop::collection::vec((1..160_u64, pages), 1..5)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Every figure is that of the bytes, one by one.
    #[test]
    fn figures_are_those_of_a_byte_by_byte_account(phases in phases(), seed in 0..1_000_u64) {
        let (mut naive, mut holdings, mut trend) = (
            Naive::default(),
            Holdings::default(),
            TrendAnalysis::new(TrendOptions::new(Measure::WorkingSet(Definition::default()))),
        );
        let mut at = 0;
        for (length, pages) in &phases {
            for _ in 0..*length {
                // A border wherever the rate changes, and at places that vary.
                let mut regions: Vec<RegionSnapshot> = Vec::new();
                for (i, rate) in pages.iter().enumerate() {
                    let start = i as u64 * 4096;
                    let mut next = region(start, start + 4096, rate.unwrap_or(0));
                    next.seen_bp = if rate.is_some() { 10_000 } else { 0 };
                    match regions.last_mut() {
                        Some(last)
                            if (last.nr_accesses, last.seen_bp) == (next.nr_accesses, next.seen_bp)
                                && !(i as u64 * 7 + at * seed).is_multiple_of(11) =>
                        {
                            last.range.end = next.range.end;
                        }
                        _ => regions.push(next),
                    }
                }
                regions.iter_mut().for_each(|r| r.age = 0);
                naive.take(&regions);
                holdings.snapshot(&snapshot(at, 1, regions.clone()));
                at += 1;
                if at == phases.iter().map(|p| p.0).sum::<u64>() {
                    trend.snapshot(&snapshot(at - 1, 1, regions));
                }
            }
        }
        prop_assert_eq!(holdings.now_ns(), at * AGGR_NS);
        let figures = holdings.totals();
        let last = naive.0.last().cloned().unwrap_or_default();
        prop_assert_eq!(figures.mapped, PAGES as u64 * 4096);
        prop_assert_eq!(figures.unknown, Some(last.iter().filter(|p| p.is_none()).count() as u64 * 4096));
        // Stretches whose means are nearly alike may be one: what lies about the threshold may be on either side. And of
        // the working set of 10 s, which no more than that is hot, the border is known to an eighth, as below.
        let hot = figures.hot.unwrap() as f64;
        let bytes = |least_hz: f64, seconds: f64| naive.hot(least_hz, seconds) * 4096.0;
        prop_assert!(hot >= bytes(20.0 * 1.5, 8.0) - 8192.0, "{hot} {}", bytes(20.0, 10.0));
        prop_assert!(hot <= bytes(20.0 / 1.5, 13.0) + 8192.0, "{hot} {}", bytes(20.0, 10.0));
        prop_assert!(figures.ws_1s.abs_diff(trend.finish().percentile(50).unwrap()) <= 1);
        // Joined histories may be a twentieth of their age apart, and the bytes that were accessed last about as long ago
        // as a window is long are known to an eighth of it.
        let slack = 0.03 * PAGES as f64 * 4096.0;
        for (found, seconds) in [(figures.ws_10s, 10.0), (figures.ws_60s, 60.0)] {
            prop_assert_eq!(found.is_some(), at as f64 / 10.0 + 0.25 >= seconds, "{:?} {}", figures, at);
            let Some(found) = found else { continue };
            let found = found as f64;
            prop_assert!(found >= naive.ws(seconds * 0.8) - slack, "{} s: {} {}", seconds, found, naive.ws(seconds));
            let most = naive.most_ws(seconds * 1.25 + 0.5);
            prop_assert!(found <= most + slack, "{} s: {} {}", seconds, found, most);
        }
        for (found, seconds) in figures.cold().into_iter().zip(COLD_S) {
            prop_assert_eq!(found.is_some(), at as f64 / 10.0 >= seconds, "{:?} {}", figures, at);
            let Some(found) = found else { continue };
            prop_assert!(found as f64 >= naive.cold(seconds * 1.25 + 0.5) - slack, "{} {}", found, naive.cold(seconds));
            prop_assert!(found as f64 <= naive.cold(seconds * 0.8) + slack, "{} {}", found, naive.cold(seconds));
        }
        let rows = holdings.mappings(TargetId(1));
        prop_assert_eq!(rows.iter().map(|r| r.figures.mapped).sum::<u64>(), figures.mapped);
        let process = &holdings.processes()[0];
        prop_assert_eq!(process.figures, figures);
    }
}

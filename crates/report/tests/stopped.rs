//! The recorder, or the machine, stood still in the middle of an aggregation: no report shows that time as observed.

use isotherm_damon::{AddrRange, RegionSnapshot, Snapshot, TargetId, TargetSnapshot};
use isotherm_report::Accumulate;
use isotherm_report::access::{AccessAnalysis, AccessOptions, Selection};
use isotherm_report::diff::{DiffOptions, Profile, compare};
use isotherm_report::heatmap::{Area, GridSpec, Raster};
use isotherm_report::info::{FileInfo, InfoAnalysis};
use isotherm_report::trend::{Definition, Measure, Threshold, TrendAnalysis, TrendOptions};
use std::time::Duration;

const MIB: u64 = 1 << 20;
const MS: u64 = 1_000_000;

/// Of 4 MiB the first is in use; only in the aggregation in which it all stood still, for a minute, the other three are.
fn recording() -> Vec<Snapshot> {
    let region = |start: u64, end: u64, nr: u32| RegionSnapshot {
        range: AddrRange::new(start * MIB, end * MIB),
        nr_accesses: nr,
        nr_accesses_bp: nr * 10_000,
        ..RegionSnapshot::default()
    };
    let taken = |start_ns: u64, end_ns: u64, (low, high): (u32, u32)| Snapshot {
        start_ns,
        end_ns,
        sample_ns: 5 * MS,
        max_nr_accesses: 20,
        targets: vec![TargetSnapshot::new(TargetId(1), vec![region(0, 1, low), region(1, 4, high)])],
    };
    let mut list: Vec<Snapshot> = (0..20).map(|i| taken(i * 100 * MS, (i + 1) * 100 * MS, (20, 0))).collect();
    list.push(taken(2_000 * MS, 62_000 * MS, (0, 20)));
    list.extend((620..640).map(|i| taken(i * 100 * MS, (i + 1) * 100 * MS, (20, 0))));
    list
}

fn taken_in<T: Accumulate>(mut analysis: T) -> T {
    recording().iter().for_each(|snapshot| analysis.snapshot(snapshot));
    analysis
}

#[test]
fn wss_gives_it_no_weight() {
    let accessed = Measure::WorkingSet(Definition::Threshold(Threshold::default()));
    let report = taken_in(TrendAnalysis::new(TrendOptions::new(accessed))).finish();
    // 40 of 41 aggregations with 1 MiB.
    assert_eq!(report.percentile(95), Some(MIB));
    assert!((report.mean.unwrap() - 43.0 / 41.0 * MIB as f64).abs() < 1.0, "{:?}", report.mean);
    let then = report.over_time.iter().filter(|b| b.start_ns > 3_000 * MS && b.end_ns < 61_000 * MS);
    assert!(then.clone().count() > 10 && then.clone().all(|bucket| bucket.mean.is_none()));
    let window = Measure::WorkingSet(Definition::Window(Duration::from_secs(10)));
    let remarks = taken_in(TrendAnalysis::new(TrendOptions::new(window))).finish().remarks.join(" ");
    assert!(remarks.contains("4.1 s of 10 s"), "{remarks}");
}

#[test]
fn the_heatmap_is_blank_then() {
    let area = Area { start: 0, end: 4 * MIB, ..Area::default() };
    let spec = GridSpec { areas: vec![(area, 4)], columns: 64, start_ns: 0, end_ns: 64_000 * MS };
    let map = taken_in(Raster::new(&spec)).finish();
    let rate = |row, column| map.panels[0].rate_hz(row, column);
    for column in 2..61 {
        assert_eq!((0..4).map(|row| rate(row, column)).collect::<Vec<_>>(), [None; 4], "{column}");
    }
    assert_eq!((rate(3, 61), rate(3, 62)), (Some(200.0), Some(0.0)), "the interval before its end");
}

#[test]
fn access_weighs_it_as_one_aggregation() {
    let selection = Selection::Between(Duration::ZERO, Duration::from_secs(64));
    let report =
        taken_in(AccessAnalysis::new(AccessOptions { selection, ..AccessOptions::default() })).finish();
    let last = report.targets[0].regions.last().unwrap();
    assert_eq!((last.start, last.end), (MIB, 4 * MIB));
    assert!((last.rate_hz.unwrap() - 200.0 / 41.0).abs() < 1e-6, "{last:?}");
    let within = Selection::Between(Duration::from_secs(10), Duration::from_secs(50));
    let none = taken_in(AccessAnalysis::new(AccessOptions { selection: within, ..AccessOptions::default() }));
    assert_eq!(none.finish().snapshots, 0);
}

#[test]
fn diff_finds_no_more_in_use_for_it() {
    let profile = || vec![("x.rec".to_owned(), taken_in(Profile::new(Vec::new())))];
    let options = DiffOptions { settle_s: 0.0, ..DiffOptions::default() };
    let report = compare(profile(), profile(), &options);
    let (mean, seconds) = (report.total.working_set.a, report.a[0].blocks_s.iter().sum::<f64>());
    assert!(mean < 1.2 * MIB as f64 && (seconds - 4.1).abs() < 1e-6, "{mean} {seconds}");
}

#[test]
fn info_calls_it_a_gap() {
    let report = taken_in(InfoAnalysis::default()).finish(FileInfo::default());
    assert_eq!(report.longest_gap_ns, 59_900 * MS);
}

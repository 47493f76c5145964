//! What a region costs the analyses: 18 million regions, as in an hour of recording at 500 regions and 100 ms, go through
//! each of them. Prints nanoseconds a region, in one thread, without reading or decoding anything.
//!
//! `cargo run --release -p isotherm-report --example raster_speed [MILLIONS]`
use isotherm_damon::{AddrRange, RegionSnapshot, Snapshot, TargetId, TargetSnapshot};
use isotherm_report::Accumulate;
use isotherm_report::heatmap::{AreaChoice, PictureOptions, Raster, Survey, SurveyOptions, TerminalOptions};
use isotherm_report::trend::{Definition, Measure, Threshold, TrendAnalysis, TrendOptions};
use std::time::Instant;

/// Snapshots held in memory and used again and again, each time later.
const DISTINCT: usize = 64;

/// `regions` regions with ever-moving boundaries over heap, mmap area and stack of a process of some 5 GB; `warm` in
/// 16 of them are not cold.
fn snapshots(regions: usize, warm: u64) -> Vec<Snapshot> {
    // Knuth's MMIX generator: enough to keep the branch predictor honest.
    let mut state = 1u64;
    let mut random = move |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let snapshot = |_| {
        let mut list = Vec::with_capacity(regions);
        for (base, share) in [(0x5555_0000_0000u64, 4), (0x7f00_0000_0000, 11), (0x7ffc_0000_0000, 1)] {
            let mut at = base;
            for _ in 0..regions * share / 16 {
                let end = at + 4096 * (1 + random(5000));
                let nr = if random(16) < warm { 1 + random(20) as u32 } else { 0 };
                let range = AddrRange::new(at, end);
                list.push(RegionSnapshot {
                    range,
                    nr_accesses: nr,
                    nr_accesses_bp: nr * 10_000,
                    age: 1,
                    ..RegionSnapshot::default()
                });
                at = end;
            }
        }
        Snapshot {
            start_ns: 0,
            end_ns: 0,
            sample_ns: 5_000_000,
            max_nr_accesses: 20,
            targets: vec![TargetSnapshot::new(TargetId(1), list)],
        }
    };
    (0..DISTINCT).map(snapshot).collect()
}

/// Feeds `count` snapshots to `analysis`; nanoseconds a region.
fn feed(analysis: &mut impl Accumulate, list: &mut [Snapshot], count: usize) -> f64 {
    let mut regions = 0;
    let start = Instant::now();
    for i in 0..count {
        let snapshot = &mut list[i % DISTINCT];
        snapshot.start_ns = i as u64 * 100_000_000;
        snapshot.end_ns = snapshot.start_ns + 100_000_000;
        regions += snapshot.nr_regions();
        analysis.snapshot(snapshot);
    }
    start.elapsed().as_secs_f64() * 1e9 / regions as f64
}

fn main() {
    let millions: usize = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(18);
    println!("{millions} million regions, ns a region");
    println!(
        "{:>8} {:>6} {:>8} {:>12} {:>12} {:>8}",
        "regions", "warm", "survey", "terminal map", "picture map", "wss"
    );
    for (regions, warm) in [(100, 2), (500, 2), (500, 16), (1000, 2), (1000, 16)] {
        let mut list = snapshots(regions, warm);
        let count = millions * 1_000_000 / regions;
        let mut survey = Survey::new(SurveyOptions::default());
        let surveyed = feed(&mut survey, &mut list, count);
        let time = survey.time_range().expect("snapshots were fed");
        let areas = survey.areas(&AreaChoice::Hot, 4).expect("snapshots were fed");
        let mut terminal = Raster::new(&TerminalOptions::default().grid(areas.clone(), time));
        let mut picture = Raster::new(&PictureOptions::default().grid(areas, time));
        let mut wss = TrendAnalysis::new(TrendOptions::new(Measure::WorkingSet(Definition::Threshold(
            Threshold::default(),
        ))));
        let drawn = feed(&mut terminal, &mut list, count);
        let painted = feed(&mut picture, &mut list, count);
        let measured = feed(&mut wss, &mut list, count);
        println!("{regions:>8} {warm:>3}/16 {surveyed:>8.2} {drawn:>12.2} {painted:>12.2} {measured:>8.2}");
        assert!(terminal.finish().highest_hz > 0.0 && picture.finish().highest_hz > 0.0);
        assert!(wss.finish().mean.is_some_and(|bytes| bytes > 0.0));
    }
}

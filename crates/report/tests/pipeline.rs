//! A recording goes through every report; what they say agrees with sums over its regions, made the plain way.

use isotherm_record::synthetic::{Shape, Synthetic};
use isotherm_record::{Item, ItemReader};
use isotherm_report::Accumulate;
use isotherm_report::access::{AccessAnalysis, AccessOptions};
use isotherm_report::heatmap::{AreaChoice, PictureOptions, Raster, Survey, SurveyOptions, write_png};
use isotherm_report::raw::{RawFormat, RawWriter};
use isotherm_report::trend::{Definition, Measure, Threshold, TrendAnalysis, TrendOptions};

fn recording() -> Vec<Item> {
    let mut reader = Synthetic::new(Shape { nr_regions: 60_000, nr_targets: 2, ..Shape::default() });
    std::iter::from_fn(|| reader.next_item().expect("made in memory")).collect()
}

fn snapshots(items: &[Item]) -> impl Iterator<Item = &isotherm_damon::Snapshot> {
    items.iter().filter_map(|item| match item {
        Item::Snapshot(snapshot) => Some(snapshot),
        _ => None,
    })
}

#[test]
fn the_heat_of_all_areas_is_the_heat_of_all_regions() {
    let items = recording();
    let expected: f64 = snapshots(&items)
        .flat_map(|s| s.targets.iter().flat_map(|t| &t.regions).map(move |r| (s, r)))
        .map(|(s, r)| {
            let seconds = (s.end_ns - s.start_ns) as f64 / 1e9;
            r.rate_hz(s.sample_ns, s.max_nr_accesses) * r.range.size() as f64 * seconds
        })
        .sum();
    let mut survey = Survey::new(SurveyOptions::default());
    items.iter().for_each(|item| survey.item(item));
    let areas = survey.areas(&AreaChoice::All, 99).unwrap();
    assert_eq!(areas.len(), 6, "heap, mmap and stack of two targets: {areas:?}");
    let options = PictureOptions::default();
    let mut raster = Raster::new(&options.grid(areas, survey.time_range().unwrap()));
    items.iter().for_each(|item| raster.item(item));
    let map = raster.finish();
    let drawn: f64 = map.panels.iter().map(|panel| panel.heat).sum();
    assert!((drawn - expected).abs() < 1e-9 * expected, "{drawn} {expected}");
    assert!((map.heat_share().unwrap() - 1.0).abs() < 1e-6);
    assert!(map.highest_hz <= 200.0);
    let mut png = Vec::new();
    write_png(&map, &options, &mut png).unwrap();
    assert!(png.len() > 10_000);
}

#[test]
fn the_working_set_is_the_sum_of_accessed_regions() {
    let items = recording();
    let mut sums: Vec<(u64, u64)> = snapshots(&items)
        .map(|s| {
            let regions = s.targets.iter().flat_map(|t| &t.regions);
            let bytes = regions.filter(|r| r.nr_accesses > 0).map(|r| r.range.size()).sum();
            (bytes, s.end_ns - s.start_ns)
        })
        .collect();
    sums.sort_unstable();
    let total: u64 = sums.iter().map(|(_, ns)| ns).sum();
    let mut below = 0;
    let median = sums.iter().find(|(_, ns)| {
        below += ns;
        2 * below >= total
    });
    let mut wss = TrendAnalysis::new(TrendOptions::new(Measure::WorkingSet(Definition::Threshold(
        Threshold::default(),
    ))));
    items.iter().for_each(|item| wss.item(item));
    let report = wss.finish();
    assert_eq!(report.percentile(50), median.map(|(bytes, _)| *bytes));
    assert_eq!(report.percentile(100), sums.last().map(|(bytes, _)| *bytes));
}

#[test]
fn raw_has_a_line_a_region_and_access_all_regions_of_the_last_snapshot() {
    let items = recording();
    let regions: usize = snapshots(&items).map(|s| s.nr_regions()).sum();
    let mut raw = RawWriter::new(Vec::new(), RawFormat::Text, Vec::new());
    let mut access = AccessAnalysis::new(AccessOptions::default());
    for item in &items {
        raw.item(item).unwrap();
        access.item(item);
    }
    let text = String::from_utf8(raw.finish(Default::default()).unwrap()).unwrap();
    assert_eq!(text.lines().filter(|line| !line.starts_with('#')).count(), regions);
    let last = snapshots(&items).last().unwrap();
    let report = access.finish();
    assert_eq!(report.totals.regions as usize, last.nr_regions());
    assert!(report.targets.iter().flat_map(|t| &t.regions).all(|r| r.mapping.is_some()));
}

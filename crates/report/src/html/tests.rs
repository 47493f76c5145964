//! What a page is made of, without a browser; `crates/isotherm/tests/html` opens pages in one.

use super::code::{AGE_STEP, Coder, LEAST_AGE_S};
use super::grid::Sum;
use super::pyramid::{self, TILE};
use super::*;
use crate::Accumulate;
use crate::heatmap::Area;
use crate::synthetic::{
    AGGR_NS, MIB, any_snapshots, heat, mapping, mappings, region, snapshot, stairs, unknown,
};
use crate::trend::{Definition, Measure, TrendAnalysis, TrendOptions};
use crate::units::format_address;
use flate2::read::ZlibDecoder;
use isotherm_damon::{AddrRange, Snapshot, TargetId, TargetSnapshot};
use isotherm_record::{Item, TargetEnd, TargetInfo};
use proptest::prelude::*;
use std::io::Read;

fn area(start: u64, end: u64) -> Area {
    Area { start, end, name: "heap".to_owned(), ..Area::default() }
}

fn provenance(snapshots: &[Snapshot]) -> Provenance {
    let mut provenance = Provenance::default();
    snapshots.iter().for_each(|s| provenance.snapshot(s));
    provenance
}

fn drawn(areas: Vec<Area>, time: (u64, u64), snapshots: &[Snapshot]) -> Canvas {
    let mut canvas = Canvas::new(areas, time, &provenance(snapshots));
    snapshots.iter().for_each(|s| canvas.snapshot(s));
    canvas
}

fn contents(snapshots: &[Snapshot], max_bytes: u64) -> Contents {
    let options = TrendOptions::new(Measure::WorkingSet(Definition::default()));
    let (mut trend, mut holdings) = (TrendAnalysis::new(options), Holdings::default());
    for snapshot in snapshots {
        trend.snapshot(snapshot);
        holdings.snapshot(snapshot);
    }
    let command = "isotherm report heatmap -i a.rec".to_owned();
    Contents {
        title: String::new(),
        trend: trend.finish(),
        holdings,
        gave_up: Vec::new(),
        command,
        max_bytes,
    }
}

fn near(a: f32, b: f64) -> bool {
    (f64::from(a) - b).abs() <= 1e-5 * b.abs().max(1e-6)
}

/// Codes of rate, age and known share of a level, column by column.
fn decoded(level: &pyramid::Level) -> Vec<Vec<[u8; 3]>> {
    let mut cells = vec![vec![[0; 3]; level.rows]; level.columns];
    let mut tiles = level.tiles.iter();
    for left in (0..level.columns).step_by(TILE) {
        for low in (0..level.rows).step_by(TILE) {
            let (width, height) = ((level.columns - left).min(TILE), (level.rows - low).min(TILE));
            let tile = tiles.next().unwrap();
            if tile.is_empty() {
                continue;
            }
            let mut bytes = Vec::new();
            ZlibDecoder::new(&tile[..]).read_to_end(&mut bytes).unwrap();
            assert_eq!(bytes.len(), 3 * width * height);
            for (i, _) in bytes[..width * height].iter().enumerate() {
                let at = |plane: usize| bytes[plane * width * height + i];
                cells[left + i / height][low + i % height] = [at(0), at(1), at(2)];
            }
        }
    }
    assert!(tiles.next().is_none());
    cells
}

#[test]
fn what_stood_still_was_not_observed() {
    let regions = || vec![region(0, MIB, 20)];
    let stopped = Snapshot { end_ns: 600 * AGGR_NS, ..snapshot(1, 1, regions()) };
    let list = [snapshot(0, 1, regions()), stopped, snapshot(600, 1, regions())];
    let canvas = drawn(vec![area(0, MIB)], (0, 601 * AGGR_NS), &list);
    let seen: f32 = canvas.grids[0].sums.iter().map(|sum| sum.seen).sum();
    assert!(near(seen, 0.3 * MIB as f64), "{seen}");
}

proptest! {
    #[test]
    fn every_cell_has_the_heat_of_its_addresses_and_time(list in any_snapshots(), start in 0u64..300) {
        let end = list.last().map_or(1, |s| s.end_ns);
        let canvas = drawn(vec![area(start, 4096)], (0, end), &list);
        let grid = &canvas.grids[0];
        for column in 0..canvas.time.cells {
            let (from, to) = (column as u64 * canvas.time.unit, ((column + 1) as u64 * canvas.time.unit).min(end));
            let clipped: Vec<Snapshot> = list.iter().filter(|s| s.start_ns < to && from < s.end_ns).map(|s| {
                let (start_ns, end_ns) = (s.start_ns.max(from), s.end_ns.min(to));
                Snapshot { start_ns, end_ns, ..s.clone() }
            }).collect();
            // A sample of the rows: all of them take a second.
            for row in (0..grid.rows.cells).step_by(1 + grid.rows.cells / 7) {
                let low = start + row as u64 * grid.rows.unit;
                let range = AddrRange::new(low, (low + grid.rows.unit).min(4096));
                let (heat, seen) = heat(&clipped, range);
                let sum = grid.sums[column * grid.rows.cells + row];
                prop_assert!(near(sum.heat, heat) && near(sum.seen, seen), "{sum:?} {heat} {seen}");
            }
        }
    }

    #[test]
    fn a_coarser_level_says_what_its_cells_say_together(
        cells in proptest::collection::vec((0u8..4, 0.0f32..100.0), 600..1500), rows in 1usize..700,
    ) {
        let columns = cells.len() / rows;
        prop_assume!(columns > 0);
        let sum = |(kind, hz): &(u8, f32)| match kind {
            0 => Sum::default(),
            1 => Sum { unknown: 4096.0, ..Sum::default() },
            _ => Sum { heat: hz * 4096.0, seen: 4096.0, unknown: 0.0, aged: 4096.0 },
        };
        let sums: Vec<Sum> = cells[..columns * rows].iter().map(sum).collect();
        let mut grid = drawn(vec![area(0, 4096)], (0, 1), &[]).grids.remove(0);
        grid.sums.clone_from(&sums);
        grid.rows.cells = rows;
        let coder = Coder::new(pyramid::highest_hz(std::slice::from_ref(&grid)));
        let pyramid = Pyramid::new(&mut grid, coder).unwrap();
        for (i, level) in pyramid.levels.iter().enumerate() {
            let codes = decoded(level);
            for (column, codes) in codes.iter().enumerate() {
                for (row, code) in codes.iter().enumerate() {
                    let mut all = Sum::default();
                    for c in column << i..((column + 1) << i).min(columns) {
                        for r in row << i..((row + 1) << i).min(rows) {
                            all.add(&sums[c * rows + r], 1.0);
                        }
                    }
                    let expected = coder.cell(&all);
                    // Sums of sums are rounded otherwise.
                    prop_assert!(code.iter().zip(expected).all(|(a, b)| a.abs_diff(b) <= 1), "{code:?} {expected:?}");
                    prop_assert!(expected[0] > 2 || code[0] == expected[0], "{code:?} {expected:?}");
                }
            }
        }
        let last = pyramid.levels.last().unwrap();
        prop_assert!(last.columns <= TILE && last.rows <= TILE);
    }
}

#[test]
fn rates_ages_and_what_is_unknown_are_those_of_the_recording() {
    let list: Vec<Snapshot> = (0..20)
        .map(|i| {
            let mut regions = vec![region(0, MIB, 20), region(MIB, 2 * MIB, 0), unknown(2 * MIB, 3 * MIB)];
            regions.iter_mut().for_each(|r| r.age = 50);
            snapshot(i, 1, regions)
        })
        .collect();
    let mut canvas = drawn(vec![area(0, 4 * MIB)], (0, 20 * AGGR_NS), &list);
    let coder = Coder::new(pyramid::highest_hz(&canvas.grids));
    let pyramid = Pyramid::new(&mut canvas.grids[0], coder).unwrap();
    let codes = decoded(&pyramid.levels[0]);
    let rows = codes[0].len() / 4;
    let at = |mib: usize| codes[3][mib * rows + rows / 2];
    assert!((coder.hz(at(0)[0]).unwrap() - 200.0).abs() < 1e-3);
    let age = LEAST_AGE_S * AGE_STEP.powi(i32::from(at(0)[1]) - 1);
    assert!((age / 5.0 - 1.0).abs() < 0.05, "50 aggregations of 100 ms: {age}");
    assert_eq!(coder.hz(at(1)[0]), Some(0.0));
    assert_eq!((at(2)[0], at(3)[0]), (1, 0), "unknown, and not monitored");
}

#[test]
fn a_page_keeps_to_its_size_and_says_when_it_cannot() {
    let list = stairs(0, 60);
    let page = |most: u64| {
        let canvas = drawn(vec![area(0, 100 * MIB)], (0, 600 * AGGR_NS), &list);
        let mut out = Vec::new();
        write(canvas, &contents(&list, most), &mut out).map(|written| (written, out.len() as u64))
    };
    let (whole, bytes) = page(u64::MAX).unwrap();
    assert_eq!((whole.bytes, whole.coarsened), (bytes, 0));
    let (less, bytes) = page(bytes - 1).unwrap();
    assert_eq!((less.bytes, less.coarsened), (bytes, 1));
    assert!(less.bytes < whole.bytes);
    match page(1000) {
        Err(HtmlError::TooLarge { least, most }) => assert!(least > most && least <= less.bytes + 4096),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_minute_takes_little_more_than_the_program() {
    let list = stairs(0x7f00_0000_0000, 60);
    let time = (0, 600 * AGGR_NS);
    let mut out = Vec::new();
    let areas = vec![area(0x7f00_0000_0000, 0x7f00_0000_0000 + 100 * MIB)];
    write(drawn(areas, time, &list), &contents(&list, u64::MAX), &mut out).unwrap();
    assert!(out.len() < page::frame_len() + 30_000, "{} {}", out.len(), page::frame_len());
}

/// What the table of the page is given.
fn table(holdings: &Holdings) -> serde_json::Value {
    serde_json::to_value(model::HoldingsModel::new(holdings, &[], 0)).unwrap()
}

#[test]
fn the_page_says_of_whom_memory_is_shown_that_was_given_up() {
    let mut holdings = Holdings::default();
    let info = TargetInfo { id: 7, pid: 4711, comm: "perl".to_owned(), ..TargetInfo::default() };
    holdings.item(&Item::Target(info));
    let target = TargetSnapshot::new(TargetId(7), vec![region(0, MIB, 20)]);
    holdings.item(&Item::Snapshot(Snapshot { targets: vec![target], ..snapshot(0, 1, Vec::new()) }));
    let gave_up = |target| GaveUp { target, time_ns: 3_000_000_000, left: 0.03 };
    let table = model::HoldingsModel::new(&holdings, &[gave_up(7), gave_up(8)], 1_000_000_000);
    let remark = serde_json::to_value(table).unwrap()["remark"].clone();
    assert_eq!(remark, "perl 4711 as of 2.000 s: then it gave up memory, and ended with 3 % of it.");
}

#[test]
fn processes_left_out_are_those_forgotten_and_those_cut_off() {
    // 600 that ended, of which 256 are remembered, and 1000 that run: of 1256 the page lists 1000.
    let mut holdings = Holdings::default();
    let of = |i: u64, ids: std::ops::Range<u64>| Snapshot {
        targets: ids.map(|id| TargetSnapshot::new(TargetId(id), vec![region(0, MIB, 20)])).collect(),
        ..snapshot(i, 1, Vec::new())
    };
    holdings.item(&Item::Snapshot(of(0, 0..600)));
    for target in 0..600 {
        holdings.item(&Item::TargetEnd(TargetEnd { target, ..TargetEnd::default() }));
    }
    holdings.item(&Item::Snapshot(of(1, 1000..2000)));
    let table = table(&holdings);
    assert_eq!(table["processes"].as_array().unwrap().len(), 1000);
    assert_eq!(table["remark"], "600 processes that held less are left out.");
}

#[test]
fn a_file_that_is_mapped_in_places_far_apart_is_not_all_that_lies_between() {
    let (low, high) = (0x5500_0000_0000, 0x7f00_0000_0000);
    let mut holdings = Holdings::default();
    let map = |at: u64, name| mapping(at, at + MIB, "rw-p", name, 0, 0);
    holdings.item(&mappings(
        1,
        vec![map(low, "/usr/bin/server"), map(low + 8 * MIB, "[heap]"), map(high, "/usr/bin/server")],
    ));
    let regions = [low, low + 8 * MIB, high].map(|at| region(at, at + MIB, 20)).to_vec();
    holdings.item(&Item::Snapshot(snapshot(0, 1, regions)));
    let table = table(&holdings);
    let place = |name: &str| {
        let maps = table["processes"][0]["mappings"].as_array().unwrap();
        maps.iter().find(|m| m["name"] == name).unwrap()["place"].as_str().unwrap().to_owned()
    };
    let heap = format!("{} to {}", format_address(low + 8 * MIB), format_address(low + 9 * MIB));
    assert_eq!(place("[heap]"), heap);
    let hull = format!("{} to {}", format_address(low), format_address(high + MIB));
    assert_eq!(place("server"), format!("2 ranges of addresses between {hull}"));
}

#[test]
fn names_cannot_end_the_data_or_begin_an_element() {
    let list = stairs(0, 2);
    let evil = "</script><!--<img src='x' onerror=alert(1)>{{script}}";
    let mut canvas =
        Canvas::new(vec![Area { target: Some(1), ..area(0, 100 * MIB) }], (0, AGGR_NS), &provenance(&list));
    canvas.item(&Item::Target(TargetInfo { id: 1, comm: evil.to_owned(), ..TargetInfo::default() }));
    canvas.item(&mappings(1, vec![mapping(0, MIB, "rw-p", evil, 0, 0)]));
    list.iter().for_each(|s| canvas.snapshot(s));
    let mut out = Vec::new();
    let contents = Contents { title: evil.to_owned(), ..contents(&list, u64::MAX) };
    write(canvas, &contents, &mut out).unwrap();
    let html = String::from_utf8(out).unwrap();
    assert!(html.starts_with(SIGNATURE));
    assert_eq!(html.matches("<script").count(), 3);
    assert_eq!(html.matches("</script").count(), 3);
    assert!(!html.contains("<img") && !html.contains("<!--"));
    // It is there all the same, as text.
    assert!(html.contains("&lt;/script&gt;") && html.contains("\\u003c/script>"));
    assert!(html.contains("default-src 'none'"));
}

#[test]
fn the_page_refers_to_nothing_outside() {
    let list = stairs(0, 2);
    let mut out = Vec::new();
    write(drawn(vec![area(0, MIB)], (0, AGGR_NS), &list), &contents(&list, u64::MAX), &mut out).unwrap();
    let html = String::from_utf8(out).unwrap();
    let outside: Vec<&str> =
        html.split("http").skip(1).map(|rest| rest.split(['\'', '"']).next().unwrap()).collect();
    // A name of XML, which nobody fetches, and the header that forbids fetching.
    assert_eq!(outside, ["-equiv=", "://www.w3.org/2000/svg"]);
    assert!(!html.contains("url(") && !html.contains("@import") && !html.contains("fetch("));
    assert!(!html.contains("innerHTML") && !html.contains("insertAdjacentHTML"));
}

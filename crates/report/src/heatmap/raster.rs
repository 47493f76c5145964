//! From regions to cells, exactly.
//!
//! A region adds `rate x bytes x seconds` to the cells it shares addresses and time with, in proportion, and the same
//! bytes and seconds to what the cells count as known; a cell's rate is the quotient. What could not be observed of the
//! region goes to a third sum, of what is unknown. All sums only ever grow, so nothing cancels: 0 Hz stays exactly 0.
//!
//! Reports are bounded by this loop, so it does little: a snapshot almost always lies inside one column, regions of
//! 0 Hz touch no heat, and touching regions are counted as monitored in one go, at the end of the run.

use super::axis::{Axis, spread};
use super::shown::Shown;
use super::{Area, Cells, EMPTY, GridSpec, HOT, Heatmap, Panel, UNKNOWN};
use crate::names::NameBook;
use crate::provenance::{Provenance, Reading};
use crate::rate::{BP, RateScale, interval_ns};
use crate::segments::{ABSENT, Segment, unknown_of};
use crate::space::Space;
use crate::{Accumulate, units};
use isotherm_damon::{AddrRange, RegionSnapshot, Snapshot, TargetId};
use isotherm_record::{Item, SchemeAction};
use std::collections::BTreeSet;
use std::ops::Range;

/// `seen_bp` of a region all of which could be observed.
const ALL: u16 = 10_000;

/// Draws snapshots into the cells of a [`GridSpec`].
#[derive(Clone, Debug)]
pub struct Raster {
    provenance: Provenance,
    names: NameBook,
    space: Space,
    targets: Vec<TargetId>,
    time: Axis,
    grids: Vec<Grid>,
    shown: Shown,
}

/// Sums of cells, column by column.
#[derive(Clone, Debug, Default)]
struct Sums {
    /// Hz x bytes x seconds.
    heat: Vec<f64>,
    /// Known: bytes x seconds.
    seen: Vec<f64>,
    /// Unknown: bytes x seconds.
    unknown: Vec<f64>,
}

/// Some cells of [`Sums`].
struct Part<'a> {
    heat: &'a mut [f64],
    seen: &'a mut [f64],
    unknown: &'a mut [f64],
}

impl Sums {
    fn new(cells: usize) -> Self {
        let zeros = || vec![0.0; cells];
        Self { heat: zeros(), seen: zeros(), unknown: zeros() }
    }

    fn part(&mut self, at: Range<usize>) -> Part<'_> {
        Part {
            heat: &mut self.heat[at.clone()],
            seen: &mut self.seen[at.clone()],
            unknown: &mut self.unknown[at],
        }
    }
}

/// The cells of one panel.
#[derive(Clone, Debug)]
struct Grid {
    area: Area,
    rows: Axis,
    cells: Sums,
    /// A column for what lies in several: drawn once, then shared out.
    spare: Sums,
    /// Column and row of cells in which an action took effect; each once, however many there were.
    marks: BTreeSet<(usize, usize)>,
}

impl Grid {
    fn new(area: Area, rows: usize, columns: usize) -> Self {
        let rows = Axis::new(area.start, area.end, rows);
        let n = rows.parts();
        Self { area, cells: Sums::new(n * columns), spare: Sums::new(n), rows, marks: BTreeSet::new() }
    }

    /// Marks where an action took effect. Objects have other addresses: what was done to them is not shown there.
    fn mark(&mut self, time: &Axis, action: &SchemeAction) {
        let others = self.area.target().is_some_and(|target| target.0 != action.target);
        let (start, end) = (action.start.max(self.rows.start()), action.end.min(self.rows.end()));
        let inside = (time.start()..=time.end()).contains(&action.time_ns);
        if action.applied == 0 || others || self.area.is_object() || !inside || start >= end {
            return;
        }
        let column = time.part(action.time_ns);
        self.marks.extend((self.rows.part(start)..=self.rows.part(end - 1)).map(|row| (column, row)));
    }

    /// Calls `draw(axis, cells, seconds)` so that what it draws for one second lands in the columns
    /// that `start..end` overlaps, in proportion.
    fn over_time(&mut self, time: &Axis, start: u64, end: u64, draw: impl Fn(&Axis, Part<'_>, f64)) {
        let (start, end) = (start.max(time.start()), end.min(time.end()));
        if start >= end {
            return;
        }
        let rows = self.rows.parts();
        let seconds = |ns: u64| ns as f64 / units::SECOND_NS;
        let first = time.part(start);
        if end <= time.edges[first + 1] {
            let at = first * rows..(first + 1) * rows;
            draw(&self.rows, self.cells.part(at), seconds(end - start));
            return;
        }
        let Sums { heat, seen, unknown } = &mut self.spare;
        [heat, seen, unknown].into_iter().for_each(|cells| cells.fill(0.0));
        draw(&self.rows, self.spare.part(0..rows), 1.0);
        for column in first..=time.part(end - 1) {
            let share = seconds(end.min(time.edges[column + 1]) - start.max(time.edges[column]));
            let part = self.cells.part(column * rows..(column + 1) * rows);
            add(part.heat, &self.spare.heat, share);
            add(part.seen, &self.spare.seen, share);
            add(part.unknown, &self.spare.unknown, share);
        }
    }

    /// Marks as unknown what is mostly so and not hot, against the highest rate of all panels.
    fn mark_unknown(&self, cells: &mut Cells, highest_hz: f64) {
        let rows = self.rows.parts();
        for (row, line) in cells.hz.chunks_mut(cells.columns.max(1)).enumerate() {
            for (column, cell) in line.iter_mut().enumerate() {
                let at = column * rows + row;
                let mostly = self.cells.unknown[at] > self.cells.seen[at];
                if mostly && cell.is_finite() && *cell < HOT * highest_hz as f32 || mostly && *cell == 0.0 {
                    *cell = UNKNOWN;
                }
            }
        }
    }

    fn panel(&self, columns: usize, names: &NameBook) -> Panel {
        let rows = self.rows.parts();
        let mut hz = vec![EMPTY; rows * columns];
        for (row, line) in hz.chunks_mut(columns).enumerate() {
            for (column, cell) in line.iter_mut().enumerate() {
                let at = column * rows + row;
                *cell = match (self.cells.seen[at], self.cells.unknown[at]) {
                    (seen, unknown) if seen <= 0.0 && unknown <= 0.0 => EMPTY,
                    (seen, _) if seen <= 0.0 => UNKNOWN,
                    (seen, _) => (self.cells.heat[at] / seen) as f32,
                };
            }
        }
        let range = self.area.range();
        let labels = names.labels(self.area.target(), range);
        Panel {
            rows,
            heat: self.cells.heat.iter().sum(),
            labels: labels.into_iter().map(|(r, name)| (r.start, r.end, name)).collect(),
            cells: Cells { columns, hz },
            marks: self.marks.clone(),
            area: self.area.clone(),
        }
    }
}

fn add(to: &mut [f64], from: &[f64], factor: f64) {
    for (to, from) in to.iter_mut().zip(from) {
        *to += from * factor;
    }
}

/// Draws the regions of one target: sorted, disjoint.
fn draw_regions(rows: &Axis, regions: &[RegionSnapshot], hz_per_bp: f64, seconds: f64, cells: Part<'_>) {
    let (low, high) = (rows.start(), rows.end());
    let first = regions.partition_point(|r| r.range.end <= low);
    let mut run = AddrRange::new(low, low);
    for region in &regions[first..] {
        if region.range.start >= high {
            break;
        }
        let (start, end) = (region.range.start.max(low), region.range.end.min(high));
        if start >= end {
            continue;
        }
        let mut known = seconds;
        if region.seen_bp == ALL {
            if start != run.end {
                if !run.is_empty() {
                    spread(rows, run.start, run.end, seconds, cells.seen);
                }
                run.start = start;
            }
            run.end = end;
        } else {
            known *= f64::from(region.seen_bp) / BP;
            let (unknown, absent) = unknown_of(region, seconds - known);
            spread(rows, start, end, known + absent * ABSENT, cells.seen);
            spread(rows, start, end, unknown, cells.unknown);
        }
        if region.accesses_bp() != 0 {
            spread(rows, start, end, region.accesses_bp() as f64 * hz_per_bp * known, cells.heat);
        }
    }
    if !run.is_empty() {
        spread(rows, run.start, run.end, seconds, cells.seen);
    }
}

impl Raster {
    /// Empty cells for `spec`.
    pub fn new(spec: &GridSpec) -> Self {
        let time = Axis::new(spec.start_ns, spec.end_ns, spec.columns);
        let columns = time.parts();
        let grids = spec.areas.iter().filter(|(area, _)| !area.range().is_empty());
        let grids = grids.map(|(area, rows)| Grid::new(area.clone(), *rows, columns)).collect();
        Self {
            provenance: Provenance::default(),
            names: NameBook::default(),
            space: Space::default(),
            targets: Vec::new(),
            time,
            grids,
            shown: Shown::default(),
        }
    }

    /// Of objects, only what these targets access; empty: all targets.
    #[must_use]
    pub fn of_targets(mut self, targets: Vec<TargetId>) -> Self {
        self.targets = targets;
        self
    }

    /// Has reports say what became of reading the recording.
    pub fn set_reading(&mut self, reading: Reading) {
        self.provenance.set_reading(reading);
    }

    /// Draws what several snapshots together say about the time `start..end`.
    pub(super) fn segments(&mut self, start: u64, end: u64, segments: &[Segment]) {
        if start >= end {
            return;
        }
        let seconds = (end - start) as f64 / units::SECOND_NS;
        for grid in &mut self.grids {
            let (target, area) = (grid.area.target(), grid.area.range());
            grid.over_time(&self.time, start, end, |rows, cells, part| {
                for segment in segments {
                    let shared = segment.range.intersection(area);
                    if shared.is_empty() || target.is_some_and(|t| t != segment.target) {
                        continue;
                    }
                    let per_byte = part / seconds / segment.range.size() as f64;
                    spread(rows, shared.start, shared.end, segment.heat * per_byte, cells.heat);
                    let seen = segment.seen + segment.absent * ABSENT;
                    spread(rows, shared.start, shared.end, seen * per_byte, cells.seen);
                    let unknown = segment.unknown - segment.absent;
                    if unknown > 0.0 {
                        spread(rows, shared.start, shared.end, unknown * per_byte, cells.unknown);
                    }
                }
            });
        }
    }

    /// Total of the cells, all panels: heat in Hz x bytes x seconds, and known bytes x seconds.
    pub fn totals(&self) -> (f64, f64) {
        let sum = |cells: fn(&Grid) -> &Vec<f64>| self.grids.iter().flat_map(cells).sum();
        (sum(|g| &g.cells.heat), sum(|g| &g.cells.seen))
    }

    /// The heatmap.
    pub fn finish(self) -> Heatmap {
        self.finish_beside(0.0)
    }

    /// The heatmap as a part of a larger picture, in which rates up to `highest_hz` occur: beside those is judged whether
    /// what little is known of a cell is hot.
    pub fn finish_beside(self, highest_hz: f64) -> Heatmap {
        finish(self.provenance, &self.names, &self.time, &self.grids, highest_hz)
    }

    /// The heatmap of what was drawn, with names and provenance from elsewhere.
    pub(super) fn finish_with(self, provenance: Provenance, names: &NameBook) -> Heatmap {
        finish(provenance, names, &self.time, &self.grids, 0.0)
    }
}

fn finish(
    provenance: Provenance,
    names: &NameBook,
    time: &Axis,
    grids: &[Grid],
    elsewhere_hz: f64,
) -> Heatmap {
    let columns = time.parts();
    let mut panels: Vec<Panel> = grids.iter().map(|grid| grid.panel(columns, names)).collect();
    let highest_hz = super::scale_end(panels.iter().flat_map(Panel::cells).fold(elsewhere_hz, f64::max));
    for (grid, panel) in grids.iter().zip(&mut panels) {
        grid.mark_unknown(&mut panel.cells, highest_hz);
    }
    Heatmap {
        start_ns: time.start(),
        end_ns: time.end(),
        origin_ns: provenance.origin_ns(),
        columns,
        highest_hz,
        panels,
        provenance,
    }
}

impl Raster {
    /// Draws a snapshot that stands for the time from `start` to `end`, ns: several of the same regions, put together.
    pub fn standing(&mut self, snapshot: &Snapshot, (start, end): (u64, u64)) {
        self.provenance.standing(snapshot, (start, end));
        let hz_per_bp = RateScale::of(snapshot).hz_per_bp();
        let Self { space, targets, time, grids, shown, .. } = self;
        shown.each(
            (space, targets),
            snapshot,
            grids,
            |grid| &grid.area,
            |grid, regions| {
                grid.over_time(time, start, end, |rows, cells, seconds| {
                    draw_regions(rows, regions, hz_per_bp, seconds, cells);
                });
            },
        );
    }
}

impl Accumulate for Raster {
    fn snapshot(&mut self, snapshot: &Snapshot) {
        self.standing(snapshot, interval_ns(snapshot));
    }

    fn note(&mut self, item: &Item) {
        self.provenance.note(item);
        self.names.note(item);
        self.space.note(item);
        if let Item::Action(action) = item {
            self.grids.iter_mut().for_each(|grid| grid.mark(&self.time, action));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heatmap::{Cell, MAX_SIDE, edge};
    use crate::synthetic::{MIB, any_snapshots, heat, mapping, mappings, region, snapshot, stairs, unknown};
    use proptest::prelude::*;

    fn spec(range: AddrRange, time: (u64, u64), columns: usize, rows: usize) -> GridSpec {
        let area = Area { start: range.start, end: range.end, ..Area::default() };
        GridSpec { areas: vec![(area, rows)], columns, start_ns: time.0, end_ns: time.1 }
    }

    fn draw(spec: &GridSpec, snapshots: &[Snapshot]) -> Raster {
        let mut raster = Raster::new(spec);
        snapshots.iter().for_each(|s| raster.snapshot(s));
        raster
    }

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-9 * a.abs().max(b.abs()).max(1e-6)
    }

    proptest! {
        #[test]
        fn heat_is_conserved(list in any_snapshots(), columns in 1usize..40, rows in 1usize..60) {
            let end = list.last().map_or(1, |s| s.end_ns);
            let raster = draw(&spec(AddrRange::new(0, 8192), (0, end), columns, rows), &list);
            let (drawn, seen) = raster.totals();
            let (expected, expected_seen) = heat(&list, AddrRange::new(0, 8192));
            prop_assert!(near(drawn, expected), "{drawn} {expected}");
            prop_assert!(near(seen, expected_seen), "{seen} {expected_seen}");
        }

        #[test]
        fn a_part_of_the_addresses_holds_that_part_of_the_heat(
            list in any_snapshots(), start in 0u64..2000, size in 1u64..2000, rows in 1usize..60,
        ) {
            let range = AddrRange::new(start, start + size);
            let end = list.last().map_or(1, |s| s.end_ns);
            let (drawn, seen) = draw(&spec(range, (0, end), 7, rows), &list).totals();
            let (expected, expected_seen) = heat(&list, range);
            prop_assert!(near(drawn, expected) && near(seen, expected_seen));
        }

        #[test]
        fn every_cell_is_the_mean_over_what_was_monitored(
            list in any_snapshots(), columns in 1usize..9, rows in 1usize..9,
        ) {
            let end = list.last().map_or(1, |s| s.end_ns);
            let map = draw(&spec(AddrRange::new(0, 4096), (0, end), columns, rows), &list).finish();
            let panel = &map.panels[0];
            for row in 0..panel.rows {
                for column in 0..map.columns {
                    let (from, to) = (edge(0, end, map.columns, column), edge(0, end, map.columns, column + 1));
                    let clipped: Vec<Snapshot> = list.iter().filter(|s| s.start_ns < to && from < s.end_ns).map(|s| {
                        let mut s = s.clone();
                        s.start_ns = s.start_ns.max(from);
                        s.end_ns = s.end_ns.min(to);
                        s
                    }).collect();
                    let (heat, seen) = heat(&clipped, panel.row_range(row));
                    match panel.rate_hz(row, column) {
                        None => prop_assert!(seen <= 1e-12),
                        Some(hz) => prop_assert!((hz - heat / seen).abs() <= 1e-6 * hz.max(1.0), "{hz} {heat} {seen}"),
                    }
                }
            }
        }

        #[test]
        fn a_constant_200_hz_reads_200_hz_in_every_cell(
            columns in 1usize..200, rows in 1usize..200, cut in 1u64..100, span in 1u64..30,
        ) {
            let list: Vec<Snapshot> =
                (0..30).map(|i| snapshot(i, 1, vec![region(0, cut * 4096, 20), region(cut * 4096, 100 * 4096, 20)])).collect();
            let map = draw(&spec(AddrRange::new(4096, 99 * 4096), (0, span * 100_000_000), columns, rows), &list).finish();
            for row in 0..map.panels[0].rows {
                for column in 0..map.columns {
                    prop_assert_eq!(map.panels[0].rate_hz(row, column), Some(200.0));
                }
            }
        }
    }

    #[test]
    fn not_monitored_is_not_0_hz() {
        let list = [snapshot(0, 1, vec![region(0, 10, 0)]), snapshot(2, 1, vec![region(0, 20, 10)])];
        let map = draw(&spec(AddrRange::new(0, 30), (0, 300_000_000), 3, 3), &list).finish();
        let row = |r: usize| [0, 1, 2].map(|c| map.panels[0].rate_hz(r, c));
        assert_eq!(row(0), [Some(0.0), None, Some(100.0)]);
        assert_eq!(row(1), [None, None, Some(100.0)]);
        assert_eq!(row(2), [None; 3]);
        let json = serde_json::to_value(&map).unwrap();
        assert_eq!(json["panels"][0]["rates_hz"][0], serde_json::json!([0.0, null, 100.0]));
    }

    #[test]
    fn what_is_unknown_is_a_value_of_its_own() {
        let known = |seen_bp, nr| RegionSnapshot { seen_bp, ..region(10, 20, nr) };
        let with = |resident| RegionSnapshot { resident: Some(resident), ..unknown(10, 20) };
        // Cold; unknown; little seen and cold; little seen and hot; most of it seen and cold.
        let list = [
            snapshot(0, 1, vec![region(0, 10, 20), region(10, 20, 0)]),
            snapshot(1, 1, vec![region(0, 10, 20), unknown(10, 20)]),
            snapshot(2, 1, vec![region(0, 10, 20), known(1000, 0)]),
            snapshot(3, 1, vec![region(0, 10, 20), known(1000, 10)]),
            snapshot(4, 1, vec![region(0, 10, 20), known(9000, 0)]),
            // Nothing is there that could be unknown; some is.
            snapshot(5, 1, vec![region(0, 10, 20), with(0)]),
            snapshot(6, 1, vec![region(0, 10, 20), with(1)]),
        ];
        let whole = spec(AddrRange::new(0, 30), (0, 700_000_000), 7, 3);
        let mut raster = draw(&whole, &list);
        let map = raster.clone().finish();
        let row: Vec<Cell> = (0..7).map(|c| map.panels[0].cell(1, c)).collect();
        let (cold, hot) = (Cell::Rate(0.0), Cell::Rate(100.0));
        assert_eq!(row, [cold, Cell::Unknown, Cell::Unknown, hot, cold, cold, Cell::Unknown]);
        assert_eq!(map.panels[0].cell(2, 0), Cell::Empty);
        assert!(map.has_unknown());
        let json = serde_json::to_value(&map).unwrap();
        assert_eq!(json["panels"][0]["rates_hz"][1][1], serde_json::json!("unknown"));
        // The same where the survey draws it.
        raster = Raster::new(&whole);
        let mut segments = Vec::new();
        for s in &list {
            let mut gather = crate::segments::Gather::new((usize::MAX, 0), std::mem::take(&mut segments));
            gather.add(s, 1.0, |_| true);
            (segments, _) = gather.finish();
            raster.segments(s.start_ns, s.end_ns, &segments);
        }
        let drawn = raster.finish();
        assert!((0..5).all(|c| match (drawn.panels[0].cell(1, c), row[c]) {
            (Cell::Rate(a), Cell::Rate(b)) => (a - b).abs() < 1e-6,
            (a, b) => a == b,
        }));
    }

    #[test]
    fn a_gap_in_a_region_is_not_drawn() {
        let mut raster = Raster::new(&spec(AddrRange::new(0, 30), (0, 100_000_000), 1, 3));
        let maps = vec![mapping(0, 10, "rw-p", "a", 0, 0), mapping(20, 30, "rw-p", "b", 0, 0)];
        raster.note(&mappings(1, maps));
        raster.snapshot(&snapshot(0, 1, vec![region(0, 30, 0)]));
        let map = raster.finish();
        let column: Vec<Cell> = (0..3).map(|r| map.panels[0].cell(r, 0)).collect();
        assert_eq!(column, [Cell::Rate(0.0), Cell::Empty, Cell::Rate(0.0)]);
    }

    #[test]
    fn only_the_target_of_an_area_is_drawn() {
        let mut list = stairs(0, 1);
        list.iter_mut().for_each(|s| s.targets[0].id.0 = 2);
        let mut wanted = spec(AddrRange::new(0, 100 * MIB), (0, 1_000_000_000), 10, 10);
        wanted.areas[0].0.target = Some(1);
        assert_eq!(draw(&wanted, &list).totals(), (0.0, 0.0));
        wanted.areas[0].0.target = Some(2);
        assert!(draw(&wanted, &list).totals().0 > 0.0);
    }

    #[test]
    fn bounds_that_make_no_sense_draw_nothing_and_do_not_panic() {
        let list = stairs(u64::MAX - 100 * MIB, 1);
        for (range, time) in [
            (AddrRange::new(10, 10), (0, 0)),
            (AddrRange::new(u64::MAX - 5, u64::MAX), (u64::MAX, u64::MAX)),
            (AddrRange::new(0, u64::MAX), (0, u64::MAX)),
            (AddrRange::new(0, 3), (0, 2)),
        ] {
            let map = draw(&spec(range, time, 100_000, 100_000), &list).finish();
            assert!(map.columns <= MAX_SIDE);
        }
        let map = draw(&GridSpec::default(), &list).finish();
        assert_eq!((map.panels.len(), map.highest_hz), (0, 0.0));
    }
}

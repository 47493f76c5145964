//! The finest level of the page: sums over time and address.
//!
//! As in [`crate::heatmap::Raster`], a region adds what it says, in proportion, to every cell that it shares addresses and
//! time with. Cells are even here, of a whole number of pages and nanoseconds, so that four of them make one of the next
//! level and every edge is a round address. Sums are single precision: a cell takes some hundred snapshots, and is kept
//! within 2 % of its rate anyway ([`super::code`]). What was never accessed stays exactly 0.

use crate::heatmap::{Area, Shown};
use crate::names::NameBook;
use crate::provenance::{Provenance, Reading};
use crate::rate::{BP, RateScale, interval_ns};
use crate::segments::{ABSENT, unknown_of};
use crate::space::Space;
use crate::{Accumulate, units};
use isotherm_damon::{RegionSnapshot, Snapshot, TargetId};
use isotherm_record::Item;

/// Most columns: of a day, one every 21 s.
const MAX_COLUMNS: u64 = 4096;
/// Most rows of an area.
const MAX_ROWS: u64 = 1024;
/// Fewest rows that the sharing out leaves an area.
const MIN_ROWS: u64 = 32;
/// Cells of all areas together, unless there are very many areas: 96 MB of sums.
const MAX_CELLS: u64 = 6 << 20;
const PAGE: u64 = 4096;

/// What is summed up of a cell.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Sum {
    /// Hz x bytes x seconds.
    pub heat: f32,
    /// Known: bytes x seconds.
    pub seen: f32,
    /// Unknown: bytes x seconds.
    pub unknown: f32,
    /// Age of what is known: seconds x bytes x seconds.
    pub aged: f32,
}

impl Sum {
    pub fn add(&mut self, other: &Self, factor: f32) {
        self.heat += other.heat * factor;
        self.seen += other.seen * factor;
        self.unknown += other.unknown * factor;
        self.aged += other.aged * factor;
    }
}

/// Even cells along one side.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Side {
    pub start: u64,
    /// First past the last; the last cell may reach further.
    pub end: u64,
    /// Of a cell, at least 1.
    pub unit: u64,
    pub cells: usize,
    per_unit: f64,
}

impl Side {
    fn new(start: u64, end: u64, unit: u64) -> Self {
        let (end, unit) = (end.max(start.saturating_add(1)), unit.max(1));
        let cells = usize::try_from((end - start).div_ceil(unit)).unwrap_or(usize::MAX).max(1);
        Self { start, end, unit, cells, per_unit: 1.0 / unit as f64 }
    }

    /// The cell in which `at` lies, which must lie inside.
    #[inline]
    fn cell(&self, at: u64) -> usize {
        let offset = at - self.start;
        // The product may be off by one where the quotient is close to a whole number.
        let guess = (offset as f64 * self.per_unit) as u64;
        let cell = match guess * self.unit {
            edge if edge > offset => guess - 1,
            edge if offset - edge >= self.unit => guess + 1,
            _ => guess,
        };
        (cell as usize).min(self.cells - 1)
    }

    /// Calls `part(cell, length)` for what of `start..end` (not empty, inside) lies in each cell.
    #[inline]
    fn spread(&self, start: u64, end: u64, mut part: impl FnMut(usize, u64)) {
        let mut cell = self.cell(start);
        let mut from = start;
        loop {
            let edge = self.start.saturating_add((cell as u64 + 1).saturating_mul(self.unit));
            let to = edge.min(end);
            part(cell, to - from);
            if to == end || cell + 1 == self.cells {
                return;
            }
            (from, cell) = (to, cell + 1);
        }
    }
}

/// The cells of one area, column by column.
#[derive(Clone, Debug)]
pub(super) struct Grid {
    pub area: Area,
    pub rows: Side,
    pub sums: Vec<Sum>,
}

impl Grid {
    fn draw(&mut self, time: &Side, start: u64, end: u64, regions: &[RegionSnapshot], each: Each) {
        let (start, end) = (start.max(time.start), end.min(time.end));
        if start >= end {
            return;
        }
        let (rows, sums) = (self.rows, &mut self.sums);
        let first = regions.partition_point(|r| r.range.end <= rows.start);
        time.spread(start, end, |column, ns| {
            let seconds = ns as f64 / units::SECOND_NS;
            let column = &mut sums[column * rows.cells..(column + 1) * rows.cells];
            for region in regions[first..].iter().take_while(|r| r.range.start < rows.end) {
                let (low, high) = (region.range.start.max(rows.start), region.range.end.min(rows.end));
                if low < high {
                    let sum = each.of(region, seconds);
                    rows.spread(low, high, |row, bytes| column[row].add(&sum, bytes as f32));
                }
            }
        });
    }
}

/// What turns a region of a snapshot into sums.
#[derive(Clone, Copy)]
struct Each {
    hz_per_bp: f64,
    aggr_s: f64,
}

impl Each {
    /// What a byte of the region adds in so many seconds.
    #[inline]
    fn of(self, region: &RegionSnapshot, seconds: f64) -> Sum {
        let seen = seconds * f64::from(region.seen_bp) / BP;
        let unseen = if region.seen_bp < BP as u16 { seconds - seen } else { 0.0 };
        let (unknown, absent) = unknown_of(region, unseen);
        Sum {
            heat: (region.accesses_bp() as f64 * self.hz_per_bp * seen) as f32,
            seen: (seen + absent * ABSENT) as f32,
            unknown: unknown as f32,
            aged: (f64::from(region.age) * self.aggr_s * seen) as f32,
        }
    }
}

/// Draws snapshots into the finest level of a page.
///
/// Needs some 100 MB, however long the recording is: 16 bytes a cell.
#[derive(Clone, Debug)]
pub struct Canvas {
    pub(super) provenance: Provenance,
    pub(super) names: NameBook,
    pub(super) space: Space,
    targets: Vec<TargetId>,
    pub(super) time: Side,
    /// The highest rate that the snapshots could show, Hz; 0 where they do not tell.
    pub(super) ceiling_hz: f64,
    pub(super) grids: Vec<Grid>,
    shown: Shown,
}

impl Canvas {
    /// Cells for these areas, in the order in which they are to be shown, and this time, `(start, end)` in ns. `seen` is
    /// what a survey of the recording found: cells are not finer than its snapshots.
    pub fn new(areas: Vec<Area>, time: (u64, u64), seen: &Provenance) -> Self {
        let length = time.1.saturating_sub(time.0).max(1);
        let time = Side::new(time.0, time.1, snapshot_ns(seen).max(length.div_ceil(MAX_COLUMNS)));
        let areas: Vec<Area> = areas.into_iter().filter(|area| !area.range().is_empty()).collect();
        let weight = |area: &Area| (area.range().size() as f64).sqrt();
        let total: f64 = areas.iter().map(weight).sum();
        let rows = MAX_CELLS as f64 / time.cells as f64;
        let grid = |area: Area| {
            let share = rows * weight(&area) / total;
            let most = (share as u64).clamp(MIN_ROWS, MAX_ROWS);
            let size = area.range().size();
            let unit = if size < PAGE { 1 } else { PAGE };
            let row = size.div_ceil(most).checked_next_multiple_of(unit).unwrap_or(size);
            let rows = Side::new(area.start, area.end, row);
            Grid { area, rows, sums: vec![Sum::default(); rows.cells * time.cells] }
        };
        Self {
            provenance: Provenance::default(),
            names: NameBook::default(),
            space: Space::default(),
            targets: Vec::new(),
            time,
            ceiling_hz: 0.0,
            grids: areas.into_iter().map(grid).collect(),
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
}

/// How long a snapshot is, ns: an aggregation, or their mean where the recording does not say. At least 1.
pub(super) fn snapshot_ns(seen: &Provenance) -> u64 {
    match seen.attrs.aggr_us {
        0 => (seen.length_ns() / seen.snapshots.max(1)).max(1),
        us => us.saturating_mul(1000),
    }
}

impl Accumulate for Canvas {
    fn snapshot(&mut self, snapshot: &Snapshot) {
        self.provenance.snapshot(snapshot);
        let (start, end) = interval_ns(snapshot);
        let aggr_ns = match snapshot.sample_ns.saturating_mul(u64::from(snapshot.max_nr_accesses)) {
            0 => end - start,
            ns => ns,
        };
        let rates = RateScale::of(snapshot);
        self.ceiling_hz = self.ceiling_hz.max(rates.max_hz().unwrap_or(0.0));
        let each = Each { hz_per_bp: rates.hz_per_bp(), aggr_s: aggr_ns as f64 / units::SECOND_NS };
        let Self { space, targets, time, grids, shown, .. } = self;
        shown.each(
            (space, targets),
            snapshot,
            grids,
            |grid| &grid.area,
            |grid, regions| {
                grid.draw(time, start, end, regions, each);
            },
        );
    }

    fn note(&mut self, item: &Item) {
        self.provenance.note(item);
        self.names.note(item);
        self.space.note(item);
    }
}

//! The scrolling heatmap: columns that were drawn once stay as they are and move left.
//!
//! Columns lie on a fixed grid of time, so that a new one leaves the others alone; only those that are not complete yet
//! are computed, and only the characters at the right edge change. That is what keeps a live heatmap cheap, for the
//! processor and for the line to the terminal. Computing, marks and colours are those of `isotherm report heatmap`.

use super::timeline::{MapsSince, Span};
use isotherm_damon::{AddrRange, RegionSnapshot, Snapshot, TargetId, TargetSnapshot};
use isotherm_record::{Item, Mappings};
use isotherm_report::Accumulate;
use isotherm_report::heatmap::{Area, AreaChoice, Cell, GridSpec, Heatmap, Raster, Survey, SurveyOptions};
use std::collections::BTreeMap;
use std::ops::Range;

/// What of a target's past is needed to draw.
#[derive(Clone, Debug, Default)]
pub struct Material {
    pub spans: Vec<Span>,
    pub maps: Vec<MapsSince>,
}

impl Material {
    /// Hands it to a report in order of time; of regions and mappings only what touches one of `ranges`, if there are any.
    /// `standing` hands on regions with the time that they stood.
    fn play<T: Accumulate>(
        &self,
        id: TargetId,
        ranges: &[AddrRange],
        to: &mut T,
        standing: impl Fn(&mut T, &Snapshot, (u64, u64)),
    ) {
        let touches = |range: AddrRange| ranges.is_empty() || ranges.iter().any(|r| r.intersects(range));
        let mut maps = self.maps.iter().peekable();
        let mut first = true;
        for span in &self.spans {
            while let Some(list) =
                maps.next_if(|list| std::mem::take(&mut first) || list.since_ns <= span.moment.start_ns)
            {
                let (time_ns, partial) = (list.since_ns, list.partial);
                // The last says how far an incomplete list goes.
                let last = list.maps.len().saturating_sub(1);
                let wanted = list.maps.iter().enumerate();
                let wanted = wanted.filter(|(i, m)| touches(m.range()) || (partial && *i == last));
                let maps = wanted.map(|(_, m)| m.clone()).collect();
                to.note(&Item::Mappings(Mappings { target: id.0, time_ns, maps, partial }));
            }
            first = false;
            let regions: Vec<RegionSnapshot> =
                span.regions.iter().filter(|r| touches(r.range)).copied().collect();
            let snapshot: Snapshot = span.moment.snapshot(vec![TargetSnapshot::new(id, regions)]);
            standing(to, &snapshot, (snapshot.start_ns, snapshot.end_ns));
        }
    }

    /// The areas with the heat, the hottest first.
    pub fn areas(&self, id: TargetId, most: usize) -> Vec<Area> {
        let options =
            SurveyOptions { every_snapshot: true, slices: 8, segments: 256, ..SurveyOptions::default() };
        let mut survey = Survey::new(options);
        self.play(id, &[], &mut survey, Survey::standing);
        let mut areas = survey.areas(&AreaChoice::Hot, most).unwrap_or_default();
        areas.sort_by(|a, b| b.heat_share.unwrap_or(0.0).total_cmp(&a.heat_share.unwrap_or(0.0)));
        areas
    }

    /// Which share of the heat lies in `areas`; `None` without any heat.
    pub fn share_in(&self, areas: &[Area]) -> Option<f64> {
        let (mut all, mut inside) = (0.0, 0.0);
        for span in &self.spans {
            let time = span.moment.end_ns.saturating_sub(span.moment.start_ns) as f64;
            for region in span.regions.iter().filter(|r| r.accesses_bp() > 0) {
                let rate = region.accesses_bp() as f64 * time;
                all += rate * region.range.size() as f64;
                let shared = areas.iter().map(|a| a.range().intersection(region.range).size()).sum::<u64>();
                inside += rate * shared as f64;
            }
        }
        (all > 0.0).then(|| inside / all)
    }
}

/// What the columns are columns of.
#[derive(Clone, Debug, Default, PartialEq)]
struct Key {
    id: u64,
    /// Areas with their rows, from the bottom of the screen to its top.
    panels: Vec<(Area, usize)>,
    column_ns: u64,
    origin_ns: u64,
}

/// A column: the cells of all panels, one after the other, the lowest address first.
#[derive(Clone, Debug)]
struct Drawn {
    cells: Vec<Cell>,
    highest_hz: f64,
    complete: bool,
}

/// The heatmap of the entered process.
#[derive(Debug, Default)]
pub struct Heat {
    key: Key,
    columns: BTreeMap<u64, Drawn>,
    /// Upper end of the scale, Hz: it moves in steps, as with it every colour changes.
    pub scale_hz: f64,
    /// Mappings inside each panel.
    pub labels: Vec<Vec<(u64, u64, String)>>,
}

/// Columns kept beside those that are shown.
const SPARE: u64 = 512;

impl Heat {
    /// Says what is to be shown. Whatever differs from before is drawn anew.
    pub fn show(&mut self, id: TargetId, panels: Vec<(Area, usize)>, column_ns: u64, origin_ns: u64) {
        let key = Key { id: id.0, panels, column_ns: column_ns.max(1), origin_ns };
        if key != self.key {
            if key.id != self.key.id {
                self.scale_hz = 0.0;
            }
            self.key = key;
            self.columns.clear();
            self.labels.clear();
        }
    }

    /// Areas with their rows, from the bottom of the screen to its top.
    pub fn panels(&self) -> &[(Area, usize)] {
        &self.key.panels
    }

    /// The column that `ns` lies in.
    pub fn column_at(&self, ns: u64) -> u64 {
        ns.saturating_sub(self.key.origin_ns) / self.key.column_ns
    }

    /// When a column begins, ns.
    pub fn start_of(&self, column: u64) -> u64 {
        self.key.origin_ns.saturating_add(column.saturating_mul(self.key.column_ns))
    }

    /// Draws those of `wanted` that are not complete. `known_to`: the end of the last snapshot; `fetch` gives what
    /// there is between two times.
    pub fn update(&mut self, wanted: Range<u64>, known_to: u64, mut fetch: impl FnMut(u64, u64) -> Material) {
        let past = wanted.start.saturating_sub(SPARE);
        self.columns = self.columns.split_off(&past);
        self.draw(wanted.clone(), known_to, &mut fetch);
        let shown = self.columns.range(wanted.clone());
        let highest = shown.map(|(_, drawn)| drawn.highest_hz).fold(0.0, f64::max);
        // Up at once, down when there is plenty of room.
        if highest > self.scale_hz || round_up(highest) * 4.0 < self.scale_hz {
            let before = self.scale_hz;
            self.scale_hz = round_up(highest);
            // What little is known counts as hot or not by the scale.
            if before > 0.0 {
                self.columns.clear();
                self.draw(wanted, known_to, &mut fetch);
            }
        }
    }

    fn draw(&mut self, wanted: Range<u64>, known_to: u64, fetch: &mut impl FnMut(u64, u64) -> Material) {
        let missing = |at: &u64| self.columns.get(at).is_none_or(|drawn| !drawn.complete);
        let Some(first) = wanted.clone().find(missing) else { return };
        let last = wanted.rev().find(missing).unwrap_or(first);
        if self.key.panels.is_empty() {
            return;
        }
        let (from, to) = (self.start_of(first), self.start_of(last + 1));
        let material = fetch(from, to);
        let spec = GridSpec {
            areas: self.key.panels.clone(),
            columns: usize::try_from(last - first + 1).unwrap_or(1),
            start_ns: from,
            end_ns: to,
        };
        let mut raster = Raster::new(&spec);
        let ranges: Vec<AddrRange> = self.key.panels.iter().map(|(area, _)| area.range()).collect();
        material.play(TargetId(self.key.id), &ranges, &mut raster, Raster::standing);
        let map: Heatmap = raster.finish_beside(self.scale_hz);
        for at in first..=last {
            let column = (at - first) as usize;
            let cells: Vec<Cell> = map
                .panels
                .iter()
                .zip(&self.key.panels)
                .flat_map(|(panel, (_, rows))| (0..*rows).map(move |row| panel.cell(row, column)))
                .collect();
            let rates =
                cells.iter().filter_map(|cell| if let Cell::Rate(hz) = cell { Some(*hz) } else { None });
            let highest_hz = rates.fold(0.0, f64::max);
            let complete = self.start_of(at + 1) <= known_to;
            self.columns.insert(at, Drawn { cells, highest_hz, complete });
        }
        self.labels = map.panels.into_iter().map(|panel| panel.labels).collect();
    }

    /// What a cell shows: panels count from the bottom, rows from the lowest address.
    pub fn cell(&self, panel: usize, row: usize, column: u64) -> Cell {
        let below: usize = self.key.panels.iter().take(panel).map(|(_, rows)| rows).sum();
        let drawn = self.columns.get(&column);
        drawn.and_then(|d| d.cells.get(below + row)).copied().unwrap_or(Cell::Empty)
    }
}

/// The next of 1, 2, 5 times a power of ten.
fn round_up(hz: f64) -> f64 {
    if hz <= 0.0 || !hz.is_finite() {
        return 0.0;
    }
    let power = 10f64.powf(hz.log10().floor());
    [1.0, 2.0, 5.0, 10.0].map(|step| step * power).into_iter().find(|s| *s >= hz * 0.999_999).unwrap_or(hz)
}

/// Shares out `lines` among areas, from the bottom to the top: with a title each, and none below `least` lines of cells.
/// The hottest comes first in `areas`; where there is no room for all of them the colder are left out.
pub fn share_out(areas: &[Area], lines: usize, rows_per_line: usize) -> Vec<(Area, usize)> {
    const LEAST: usize = 3;
    let most = (lines / (LEAST + 1)).clamp(1, areas.len().max(1));
    let mut chosen: Vec<Area> = areas.iter().take(most).cloned().collect();
    chosen.sort_by_key(|area| area.start);
    let room = lines.saturating_sub(chosen.len()).max(1);
    let weight = |area: &Area| (area.range().size() as f64).sqrt().max(1.0);
    let total: f64 = chosen.iter().map(weight).sum();
    let spare = room.saturating_sub(chosen.len() * LEAST.min(room));
    let mut parts: Vec<usize> =
        chosen.iter().map(|area| LEAST.min(room) + (spare as f64 * weight(area) / total) as usize).collect();
    // What rounding left goes to the largest.
    let left = room.saturating_sub(parts.iter().sum());
    if let Some(largest) = (0..parts.len()).max_by_key(|i| chosen[*i].range().size()) {
        parts[largest] += left;
    }
    chosen.into_iter().zip(parts.into_iter().map(|lines| lines * rows_per_line)).collect()
}

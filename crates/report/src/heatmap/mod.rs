//! Time x address: where the heat is, and when.
//!
//! A cell of the heatmap is the mean access rate, in Hz, over those bytes and moments of the cell that were
//! monitored and known, so that a constant 200 Hz reads 200 Hz in every cell at every resolution. A cell of which nothing
//! was monitored (not mapped, or no recording) is empty, which is not 0 Hz. Neither is *unknown*: what was monitored, but
//! could not be observed. A cell is unknown when most of it is, unless what is known of it is hot.
//!
//! Two passes draw exactly: a [`Survey`] finds the areas worth showing, a [`Raster`] draws them. The survey's own
//! picture ([`Survey::draw`]) needs no second pass and is what `isotherm record` ends with.

mod areas;
mod axis;
mod layouts;
mod picture;
mod raster;
mod shown;
mod survey;
mod terminal;
mod view;

pub use areas::{Area, AreaChoice, AreaError, LeftOut};
pub use picture::{PictureOptions, write_png, write_svg};
pub(crate) use picture::{frame, most_ticks, time_axis};
pub use raster::Raster;
pub(crate) use shown::Shown;
pub use survey::{Survey, SurveyOptions};
pub use terminal::{Glyph, TerminalOptions, write_body as write_terminal_body, write_terminal};
pub use view::{Level, Tick, time_ticks};

use crate::provenance::Provenance;
use crate::units::format_size;
use isotherm_damon::AddrRange;
use serde::{Serialize, Serializer};
use std::collections::BTreeSet;
use std::str::FromStr;

/// Most columns and most rows of a panel; more are cut down to it.
const MAX_SIDE: usize = 2048;

/// What a heatmap shows, and in how much detail.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GridSpec {
    /// Areas with their number of rows, from the bottom of the picture to its top.
    pub areas: Vec<(Area, usize)>,
    /// Columns of the time axis.
    pub columns: usize,
    /// First moment, ns.
    pub start_ns: u64,
    /// First moment past the last, ns.
    pub end_ns: u64,
}

impl GridSpec {
    /// Shares out `rows` among `areas`, by the square root of their size so that small areas stay readable next to
    /// large ones, each a multiple of `unit` and at least `least`. `time` is `(start, end)` in ns.
    pub fn new(
        areas: Vec<Area>,
        time: (u64, u64),
        columns: usize,
        rows: usize,
        unit: usize,
        least: usize,
    ) -> Self {
        let unit = unit.max(1);
        let weight = |area: &Area| (area.range().size() as f64).sqrt().max(1.0);
        let total: f64 = areas.iter().map(weight).sum();
        let areas = areas
            .into_iter()
            .map(|area| {
                let share = rows as f64 * weight(&area) / total / unit as f64;
                let rows = (share.round() as usize * unit).max(least.max(unit)).min(MAX_SIDE);
                (area, rows)
            })
            .collect();
        Self {
            areas,
            columns: columns.clamp(1, MAX_SIDE),
            start_ns: time.0,
            end_ns: time.1.max(time.0.saturating_add(1)),
        }
    }
}

/// One area over time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Panel {
    /// What it shows.
    #[serde(flatten)]
    pub area: Area,
    /// Rows, lowest address first.
    pub rows: usize,
    /// Heat shown in the panel: Hz x bytes x seconds.
    pub heat: f64,
    /// Mappings inside the area: first address, first address past it, name.
    pub labels: Vec<(u64, u64, String)>,
    /// Rates in Hz, row by row; [`EMPTY`] and [`UNKNOWN`] are no rates.
    #[serde(rename = "rates_hz", serialize_with = "by_row")]
    cells: Cells,
    /// Cells in which an action of a scheme took effect.
    #[serde(rename = "acted_on", skip_serializing_if = "BTreeSet::is_empty")]
    marks: BTreeSet<(usize, usize)>,
}

/// What a cell shows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Cell {
    /// Nothing of it was monitored.
    Empty,
    /// It was monitored, but could not be observed.
    Unknown,
    /// Mean access rate of what is known of it, Hz.
    Rate(f64),
}

/// Nothing was monitored.
const EMPTY: f32 = f32::NAN;
/// Nothing is known.
const UNKNOWN: f32 = f32::INFINITY;
/// A cell of which little is known shows its rate from this share of the highest rate on: hot spots are found, and what
/// would be drawn like cold memory is drawn as unknown. A guess.
const HOT: f32 = 0.05;

#[derive(Clone, Debug, PartialEq)]
struct Cells {
    columns: usize,
    hz: Vec<f32>,
}

/// A cell in JSON.
#[derive(Serialize)]
#[serde(untagged)]
enum JsonCell {
    Rate(f32),
    Word(&'static str),
    Empty(()),
}

/// JSON: an array a row, `null` where nothing was monitored, `"unknown"` where nothing is known.
fn by_row<S: Serializer>(cells: &Cells, serializer: S) -> Result<S::Ok, S::Error> {
    let cell = |hz: &f32| match *hz {
        UNKNOWN => JsonCell::Word("unknown"),
        hz if hz.is_nan() => JsonCell::Empty(()),
        hz => JsonCell::Rate(hz),
    };
    let row = |row: &[f32]| row.iter().map(cell).collect::<Vec<_>>();
    serializer.collect_seq(cells.hz.chunks(cells.columns.max(1)).map(row))
}

impl Panel {
    /// What a cell shows; nothing outside.
    pub fn cell(&self, row: usize, column: usize) -> Cell {
        let hz = match column < self.cells.columns {
            true => row.checked_mul(self.cells.columns).and_then(|at| self.cells.hz.get(at + column)),
            false => None,
        };
        match hz {
            Some(&UNKNOWN) => Cell::Unknown,
            Some(hz) if !hz.is_nan() => Cell::Rate(f64::from(*hz)),
            _ => Cell::Empty,
        }
    }

    /// Mean access rate of a cell in Hz, over what of it was monitored and known; `None` when nothing was, or outside.
    pub fn rate_hz(&self, row: usize, column: usize) -> Option<f64> {
        match self.cell(row, column) {
            Cell::Rate(hz) => Some(hz),
            Cell::Empty | Cell::Unknown => None,
        }
    }

    /// Whether an action of a scheme took effect in a cell.
    pub fn is_acted_on(&self, row: usize, column: usize) -> bool {
        self.marks.contains(&(column, row))
    }

    /// Whether any cell is unknown.
    fn has_unknown(&self) -> bool {
        self.cells.hz.contains(&UNKNOWN)
    }

    /// Addresses of a row.
    pub fn row_range(&self, row: usize) -> AddrRange {
        let edge = |row| edge(self.area.start, self.area.end, self.rows, row);
        AddrRange::new(edge(row), edge(row + 1))
    }

    /// Bytes a row stands for, rounded.
    pub fn row_bytes(&self) -> u64 {
        self.area.range().size() / self.rows.max(1) as u64
    }

    fn cells(&self) -> impl Iterator<Item = f64> + '_ {
        self.cells.hz.iter().filter(|hz| hz.is_finite()).map(|hz| f64::from(*hz))
    }
}

/// Lower edge of the `index`th of `parts` even parts of `start..end`.
fn edge(start: u64, end: u64, parts: usize, index: usize) -> u64 {
    let offset = u128::from(end.saturating_sub(start)) * index.min(parts) as u128 / parts.max(1) as u128;
    // At most end - start.
    start + offset as u64
}

/// A heatmap, ready to be drawn.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Heatmap {
    /// Where it comes from.
    pub provenance: Provenance,
    /// Left edge, ns on the recording's clock.
    pub start_ns: u64,
    /// Right edge, ns.
    pub end_ns: u64,
    /// The time that the axis calls 0, ns.
    pub origin_ns: u64,
    /// Columns of every panel.
    pub columns: usize,
    /// Upper end of the scale, Hz: the highest rate of a cell, but no less than [`LEAST_SCALE_HZ`]; 0 where nothing was accessed.
    pub highest_hz: f64,
    /// Panels from the bottom to the top.
    pub panels: Vec<Panel>,
}

impl Heatmap {
    /// Share of all recorded heat, of all targets, that lies in the panels; `None` when the areas were given, not surveyed.
    pub fn heat_share(&self) -> Option<f64> {
        self.panels.iter().map(|p| p.area.heat_share).sum()
    }

    /// What the panels are parts of, and do not show, a clause.
    pub fn left_out(&self) -> Option<String> {
        let all: BTreeSet<(Option<u64>, u64, u64)> = self
            .panels
            .iter()
            .filter_map(|panel| panel.area.left_out.map(|l| (panel.area.target, l.size, l.resident)))
            .collect();
        let sum = |of: fn(&(Option<u64>, u64, u64)) -> u64| all.iter().map(of).fold(0, u64::saturating_add);
        let (size, resident) = (format_size(sum(|l| l.1)), format_size(sum(|l| l.2)));
        (!all.is_empty()).then(|| {
            format!("not shown: {size} of addresses in which no more than {resident} are in memory (--address shows them)")
        })
    }

    /// Whether any cell of any panel is unknown.
    pub fn has_unknown(&self) -> bool {
        self.panels.iter().any(Panel::has_unknown)
    }

    /// Whether actions of schemes took effect on what is shown.
    pub fn has_actions(&self) -> bool {
        self.panels.iter().any(|panel| !panel.marks.is_empty())
    }

    /// Which scale [`Scale::Auto`] stands for here.
    pub fn scale(&self, scale: Scale) -> Scale {
        if scale != Scale::Auto {
            return scale;
        }
        let (mut low, mut all) = (0.0, 0.0);
        for hz in self.panels.iter().flat_map(Panel::cells) {
            all += hz;
            if hz < self.highest_hz / 8.0 {
                low += hz;
            }
        }
        // On a linear scale most of the heat would be next to invisible.
        if low > all / 2.0 { Scale::Sqrt } else { Scale::Linear }
    }
}

/// Where a scale of rates ends at least, Hz: what sleeps, and is accessed once a minute, is not drawn like what works. A guess:
/// memory accessed less than once a second is in no working set of a second.
pub const LEAST_SCALE_HZ: f64 = 1.0;

/// The upper end of a scale for rates up to `hz`.
pub(crate) fn scale_end(hz: f64) -> f64 {
    if hz > 0.0 { hz.max(LEAST_SCALE_HZ) } else { 0.0 }
}

/// How rates become colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scale {
    /// Linear, unless that would leave most of the heat in the darkest eighth: then square root.
    #[default]
    Auto,
    /// In proportion to the rate.
    Linear,
    /// In proportion to the square root of the rate.
    Sqrt,
    /// By the logarithm of the rate, over three decades below the highest.
    Log,
}

impl Scale {
    /// Where `hz` lies between 0 and `highest`: 0..=1.
    pub fn level(self, hz: f64, highest: f64) -> f64 {
        if hz <= 0.0 || highest <= 0.0 {
            return 0.0;
        }
        let share = (hz / highest).min(1.0);
        match self {
            Self::Auto | Self::Linear => share,
            Self::Sqrt => share.sqrt(),
            Self::Log => (1.0 + share.log10() / 3.0).max(0.0),
        }
    }

    /// The rate at `level`, Hz; inverse of [`Scale::level`].
    pub fn rate_hz(self, level: f64, highest: f64) -> f64 {
        let level = level.clamp(0.0, 1.0);
        highest
            * match self {
                Self::Auto | Self::Linear => level,
                Self::Sqrt => level * level,
                Self::Log if level == 0.0 => 0.0,
                Self::Log => 10f64.powf((level - 1.0) * 3.0),
            }
    }

    /// What to add to a legend: nothing for the linear scale.
    pub fn remark(self) -> &'static str {
        match self {
            Self::Auto | Self::Linear => "",
            Self::Sqrt => " (square-root scale)",
            Self::Log => " (logarithmic scale)",
        }
    }
}

/// A word that is not one of those expected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{word:?} is not {expected}")]
pub struct UnknownWord {
    pub(crate) word: String,
    pub(crate) expected: &'static str,
}

impl FromStr for Scale {
    type Err = UnknownWord;

    fn from_str(word: &str) -> Result<Self, UnknownWord> {
        match word {
            "auto" => Ok(Self::Auto),
            "linear" => Ok(Self::Linear),
            "sqrt" => Ok(Self::Sqrt),
            "log" => Ok(Self::Log),
            _ => Err(UnknownWord { word: word.to_owned(), expected: "a scale: auto, linear, sqrt or log" }),
        }
    }
}

/// Round values from `start` to `end` for an axis: multiples of 1, 2 or 5 times a power of ten, at most `most`.
pub(crate) fn ticks(start: f64, end: f64, most: usize) -> Vec<f64> {
    let span = end - start;
    if !span.is_finite() || span <= 0.0 {
        return vec![start];
    }
    let raw = span / most.max(1) as f64;
    let power = 10f64.powf(raw.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .map(|m| m * power)
        .into_iter()
        .find(|s| *s >= raw * 0.999)
        .unwrap_or(10.0 * power);
    let first = (start / step - 1e-9).ceil();
    (0..=most).map(|i| (first + i as f64) * step).take_while(|t| *t <= end + step * 1e-9).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_and_their_inverses_agree() {
        for scale in [Scale::Linear, Scale::Sqrt, Scale::Log] {
            assert_eq!(scale.level(0.0, 200.0), 0.0);
            assert_eq!(scale.level(200.0, 200.0), 1.0);
            for level in [0.25, 0.5, 0.9] {
                assert!((scale.level(scale.rate_hz(level, 200.0), 200.0) - level).abs() < 1e-9);
            }
        }
    }

    #[test]
    fn ticks_are_round_and_few() {
        assert_eq!(ticks(0.0, 60.0, 6), [0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0]);
        assert_eq!(ticks(3.0, 10.0, 4), [4.0, 6.0, 8.0, 10.0]);
        assert_eq!(ticks(5.0, 5.0, 4), [5.0]);
        assert!(ticks(0.0, 1e-9, 10).len() <= 11);
    }

    #[test]
    fn rows_go_to_areas_by_size_but_none_starves() {
        let area = |start, end| Area { start, end, ..Area::default() };
        let spec = GridSpec::new(vec![area(0, 4096), area(1 << 30, 1 << 34)], (0, 10), 80, 40, 2, 4);
        assert_eq!(spec.areas[0].1, 4);
        assert_eq!(spec.areas[1].1, 40);
    }
}

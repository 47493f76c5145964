//! What the program of the page is given, as JSON.

use super::grid::{Grid, Side};
use super::page::{Block, Blocks};
use super::pyramid::{self, Pyramid};
use super::{Canvas, Contents, code, grid};
use crate::before_end::{self, GaveUp};
use crate::colour::{self, Colour};
use crate::columns::elided as within;
use crate::holdings::{Figures, Holdings, MappingHoldings, ProcessHoldings};
use crate::trend::TrendReport;
use crate::units::{counted, format_address, format_share, format_size};
use flate2::{Compression, write::ZlibEncoder};
use serde::Serialize;
use std::cmp::Reverse;
use std::io;

/// Colours of the scale that the page is given.
const COLOURS: usize = 256;
/// Processes listed, and mappings of all of them together.
const MAX_PROCESSES: usize = 1000;
const MAX_MAPPINGS: usize = 6000;
/// Most characters of a name, and of a path: Linux' longest is 4096 bytes. A file may have any.
const MAX_NAME: usize = 256;
const MAX_PATH: usize = 4096;
/// Names of mappings kept of an area: the largest.
const MAX_LABELS: usize = 512;

/// What the program is given.
#[derive(Serialize)]
pub(super) struct Model {
    /// From the time called 0.
    start_ns: i64,
    length_ns: u64,
    /// A column of level 0, and a snapshot.
    column_ns: u64,
    snapshot_ns: u64,
    highest_hz: f64,
    /// The highest rate that could be seen; 0 where the recording does not tell.
    ceiling_hz: f64,
    scale: &'static str,
    rate_step: f64,
    age_step: f64,
    least_age_s: f64,
    hot: f64,
    tile: usize,
    colours: Vec<String>,
    unknown: [String; 2],
    /// Draws heatmaps of the recording; an area and a time are added.
    command: String,
    pub areas: Vec<AreaModel>,
    trend: Block,
    holdings: Block,
}

#[derive(Serialize)]
pub(super) struct AreaModel {
    title: String,
    facts: String,
    /// First address; text, since a number of the program holds 53 bits.
    start: String,
    size: u64,
    row_bytes: u64,
    /// Pixels, at most.
    height: u32,
    /// What makes the command draw this area, and whether addresses can be added to it.
    command: String,
    by_address: bool,
    /// Offset, size and name of mappings.
    labels: Vec<(u64, u64, String)>,
    levels: Vec<LevelModel>,
}

#[derive(Serialize)]
struct LevelModel {
    /// Cells of level 0 in a cell, along each side.
    factor: u64,
    columns: usize,
    rows: usize,
    tiles: Vec<Option<Block>>,
}

/// The trend as the program reads it: a number a stretch of time, times from the start of the page.
#[derive(Serialize)]
struct TrendModel {
    what: String,
    summary: String,
    start_ns: i64,
    width_ns: u64,
    mean: Vec<Option<u64>>,
    min: Vec<Option<u64>>,
    max: Vec<Option<u64>>,
    unknown: Vec<Option<u64>>,
    percentiles: Vec<(u8, u64)>,
    unknown_percentiles: Vec<(u8, u64)>,
}

impl Model {
    /// All but the levels of the areas, drawn so high each. What is `scaled`: the highest rate, and the scale of colours.
    pub fn new(
        canvas: &Canvas,
        contents: &Contents,
        scaled: (f64, &'static str),
        heights: &[u32],
        blocks: &mut Blocks,
    ) -> io::Result<Self> {
        let origin_ns = canvas.provenance.origin_ns();
        let trend = blocks.push(&packed(&trend(&contents.trend, &canvas.time))?);
        let holdings =
            blocks.push(&packed(&HoldingsModel::new(&contents.holdings, &contents.gave_up, origin_ns))?);
        let areas = canvas.grids.iter().zip(heights);
        Ok(Self {
            start_ns: since(canvas.time.start, origin_ns),
            length_ns: canvas.time.end - canvas.time.start,
            column_ns: canvas.time.unit,
            snapshot_ns: grid::snapshot_ns(&canvas.provenance),
            highest_hz: scaled.0,
            ceiling_hz: canvas.ceiling_hz,
            scale: scaled.1,
            rate_step: code::RATE_STEP,
            age_step: code::AGE_STEP,
            least_age_s: code::LEAST_AGE_S,
            hot: code::HOT,
            tile: pyramid::TILE,
            colours: (0..COLOURS).map(|i| hex(colour::heat(i as f64 / (COLOURS - 1) as f64))).collect(),
            unknown: [hex(colour::UNKNOWN), hex(colour::UNKNOWN_STRIPE)],
            areas: areas.map(|(grid, height)| area(canvas, grid, *height)).collect(),
            command: contents.command.clone(),
            trend,
            holdings,
        })
    }
}

impl AreaModel {
    /// Adds the levels of its pyramid, and their tiles to `blocks`.
    pub fn set_levels(&mut self, pyramid: &Pyramid, blocks: &mut Blocks) {
        let level = |(i, level): (usize, &pyramid::Level)| LevelModel {
            factor: 1 << (pyramid.dropped + i),
            columns: level.columns,
            rows: level.rows,
            tiles: level.tiles.iter().map(|tile| (!tile.is_empty()).then(|| blocks.push(tile))).collect(),
        };
        self.levels = pyramid.levels.iter().enumerate().map(level).collect();
    }
}

/// `at` from `origin`, both on one clock.
fn since(at: u64, origin: u64) -> i64 {
    at.cast_signed().wrapping_sub(origin.cast_signed())
}

fn area(canvas: &Canvas, grid: &Grid, height: u32) -> AreaModel {
    let Grid { area, rows, .. } = grid;
    let mut facts = vec![area.extent(), format!("from {}", format_address(area.start))];
    let mut title = area.name.clone();
    let mut command = String::new();
    let object = area.target().and_then(|id| canvas.space.object(id));
    match (object, area.target()) {
        (Some(object), _) => command.push_str(&format!(" --object {}", object.id)),
        (None, Some(target)) => {
            title.push_str(&format!(" of {}", canvas.provenance.target_name(target)));
            command.push_str(&format!(" --target {}", canvas.provenance.target_word(target)));
        }
        (None, None) => {}
    }
    if let Some(share) = area.heat_share {
        facts.push(format!("{} of the heat", format_share(share)));
    }
    if let Some(left_out) = area.left_out {
        let (size, resident) = (format_size(left_out.size), format_size(left_out.resident));
        facts.push(format!(
            "beside {size} of addresses, not shown, in which no more than {resident} are in memory"
        ));
    }
    let mut labels = canvas.names.labels(area.target(), area.range());
    // The largest; what is too small to be named is seldom met.
    labels.sort_by_key(|(range, _)| Reverse(range.size()));
    labels.truncate(MAX_LABELS);
    labels.sort_by_key(|(range, _)| range.start);
    AreaModel {
        title: within(&title, MAX_NAME),
        facts: facts.join(", "),
        start: format_address(area.start),
        size: area.range().size(),
        row_bytes: rows.unit,
        height,
        command,
        by_address: object.is_none(),
        labels: labels
            .into_iter()
            .map(|(r, name)| (r.start - area.start, r.size(), within(&name, MAX_NAME)))
            .collect(),
        levels: Vec::new(),
    }
}

fn trend(report: &TrendReport, time: &Side) -> TrendModel {
    let rounded = |mean: Option<f64>| mean.map(|bytes| bytes.round() as u64);
    let value = |percent| report.percentile(percent).map_or("unknown".to_owned(), format_size);
    let pairs = |list: &[crate::trend::Percentile]| list.iter().map(|p| (p.percent, p.value)).collect();
    let first = report.over_time.first();
    TrendModel {
        what: report.what.clone(),
        summary: format!("median {}, lowest {}, highest {}", value(50), value(0), value(100)),
        start_ns: first.map_or(0, |b| since(b.start_ns, time.start)),
        width_ns: first.map_or(1, |b| b.end_ns - b.start_ns).max(1),
        mean: report.over_time.iter().map(|b| rounded(b.mean)).collect(),
        min: report.over_time.iter().map(|b| b.min).collect(),
        max: report.over_time.iter().map(|b| b.max).collect(),
        unknown: report.unknown_over_time.iter().map(|b| rounded(b.mean)).collect(),
        percentiles: pairs(&report.percentiles),
        unknown_percentiles: pairs(&report.unknown_bytes),
    }
}

/// Processes with their mappings as they were at the end, the largest of each.
#[derive(Serialize)]
pub(super) struct HoldingsModel {
    time_ns: i64,
    /// What was left out, a sentence; may be empty.
    remark: String,
    totals: Figures,
    processes: Vec<ProcessModel>,
}

#[derive(Serialize)]
struct ProcessModel {
    name: String,
    pid: u64,
    ended: Option<String>,
    figures: Figures,
    mappings: Vec<MappingModel>,
}

#[derive(Serialize)]
struct MappingModel {
    name: String,
    path: String,
    /// Its addresses, in words: those of a file lie apart.
    place: String,
    figures: Figures,
}

impl HoldingsModel {
    pub fn new(holdings: &Holdings, gave_up: &[GaveUp], origin_ns: u64) -> Self {
        let size = |f: &Figures| (f.longest_working_set(), f.resident, f.mapped);
        let nr = holdings.processes().len();
        let each = (MAX_MAPPINGS / nr.clamp(1, MAX_PROCESSES)).clamp(8, 512);
        let largest = |mut p: ProcessHoldings| {
            p.mappings.sort_by_key(|m| Reverse(size(&m.figures)));
            let cut = p.mappings.len() > each;
            p.mappings.truncate(each);
            p.mappings.shrink_to_fit();
            (p, cut)
        };
        let mut all: Vec<_> = holdings.processes_with_mappings().map(largest).collect();
        all.sort_by_key(|(p, _)| Reverse(size(&p.figures)));
        // Those that ended are not all remembered.
        let ended = all.iter().filter(|(p, _)| p.ended.is_some()).count() as u64;
        let forgotten = holdings.nr_ended().saturating_sub(ended);
        let left_out = forgotten + all.len().saturating_sub(MAX_PROCESSES) as u64;
        all.truncate(MAX_PROCESSES);
        let cut = all.iter().any(|(_, cut)| *cut);
        let listed = |target| all.iter().map(|(p, _)| p).find(|p| p.target == target);
        let gave_up: Vec<_> = gave_up.iter().filter(|of| listed(of.target).is_some()).copied().collect();
        let name = |target| listed(target).map(|p| format!("{} {}", within(&p.name, MAX_NAME), p.pid));
        let gave_up = before_end::remark(&gave_up, origin_ns, |target| name(target).unwrap_or_default());
        let process = |(p, _): (ProcessHoldings, bool)| {
            let mapping = |m: MappingHoldings| MappingModel {
                name: within(&m.name, MAX_NAME),
                path: within(&m.path, MAX_PATH),
                place: place(&m),
                figures: m.figures,
            };
            ProcessModel {
                name: within(&p.name, MAX_NAME),
                pid: if p.pid == 0 { p.target } else { u64::from(p.pid) },
                ended: p.ended.map(|how| within(&how, MAX_NAME)),
                figures: p.figures,
                mappings: p.mappings.into_iter().map(mapping).collect(),
            }
        };
        let processes = all.into_iter().map(process).collect();
        let mut remark = Vec::new();
        if left_out > 0 {
            remark.push(format!(
                "{} that held less {} left out.",
                counted(left_out, "process"),
                if left_out == 1 { "is" } else { "are" }
            ));
        }
        if cut {
            remark.push(format!("Of each process the {each} mappings are listed that were used most."));
        }
        remark.extend(gave_up.map(|words| format!("{words}.")));
        Self {
            time_ns: since(holdings.now_ns(), origin_ns),
            remark: remark.join(" "),
            totals: holdings.totals(),
            processes,
        }
    }
}

/// The addresses of a mapping.
fn place(m: &MappingHoldings) -> String {
    let hull = format!("{} to {}", format_address(m.start), format_address(m.end));
    match m.ranges {
        0 | 1 => hull,
        ranges => format!("{ranges} ranges of addresses between {hull}"),
    }
}

/// JSON as a zlib stream.
fn packed(value: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
    serde_json::to_writer(&mut encoder, value)?;
    encoder.finish()
}

fn hex(colour: Colour) -> String {
    format!("#{:02x}{:02x}{:02x}", colour.r, colour.g, colour.b)
}

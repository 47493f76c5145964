//! From the model to what a frame shows: copied while the lock is held, arranged and drawn after.

use super::heat::Material;
use super::model::Model;
use super::state::{MappingRow, Row};
use isotherm_damon::{AddrRange, TargetId};
use isotherm_linux::Cost;
use isotherm_record::{Mapping, command_line};
use isotherm_report::heatmap::Area;
use isotherm_report::holdings::{Figures, MappingHoldings};
use isotherm_report::names::{printable, short_name};
use std::sync::Arc;

/// What every screen shows at its top.
#[derive(Clone, Debug, Default)]
pub struct Head {
    pub host: String,
    pub backend: String,
    pub limit: f64,
    pub processes: usize,
    /// Of them, those whose list of mappings is not known to its end.
    pub incomplete: usize,
    /// These have ended, and the figures are their last: those of the last snapshot, not all that ever ended.
    pub is_past: bool,
    /// None as long as nothing was added up.
    pub sum: Option<Figures>,
    pub refused: (u64, String),
    pub snapshots: u64,
    pub lost: u64,
    /// Of the last ten seconds together.
    pub cost: Option<Cost>,
    /// Share of the sampling intervals of that time that were missed.
    pub missed: Option<f64>,
    pub started_ns: u64,
    /// What is kept, ns.
    pub kept: Option<(u64, u64)>,
    /// The session is over, and why.
    pub over: Option<String>,
}

impl Head {
    pub fn of(model: &Model) -> Self {
        Self {
            host: model.header.host.clone(),
            backend: model.header.backend.name.clone(),
            limit: model.header.overhead_limit,
            processes: if model.is_of_the_past() { model.last_watched().len() } else { model.alive() },
            incomplete: model.incomplete(),
            is_past: model.is_of_the_past(),
            sum: model.totals,
            refused: model.refused.clone(),
            snapshots: model.snapshots,
            lost: model.lost,
            cost: model.recent_cost(),
            missed: model.recent_missed(),
            started_ns: model.header.started_ns,
            kept: model.kept(),
            over: model.over.clone(),
        }
    }
}

/// The rows of the list, in no order. Once all has ended, those of the last snapshot with their last figures: there will be no
/// others, and the sum is of these.
pub fn rows(model: &Model) -> Vec<Row> {
    let last = model.is_of_the_past().then(|| model.last_watched());
    let listed = model
        .targets
        .iter()
        .filter(|(id, target)| last.as_ref().map_or(target.ended.is_none(), |last| last.contains(id)));
    listed
        .map(|(&id, target)| Row {
            id,
            pid: target.info.pid,
            name: printable(&target.info.comm).into_owned(),
            command: command_line(&target.info.cmdline),
            figures: target.figures,
            trend: target.trend.iter().copied().collect(),
        })
        .collect()
}

/// The entered process.
#[derive(Clone, Debug, Default)]
pub struct Process {
    pub pid: u32,
    pub name: String,
    pub command: String,
    /// None as long as they were not added up.
    pub figures: Option<Figures>,
    pub ended: Option<String>,
    /// Its list of mappings is long, and was not read to its end.
    pub incomplete: bool,
    pub mappings: Vec<MappingRow>,
    /// Stretches that can be shown, with their names and paths.
    names: Vec<(AddrRange, String, String)>,
    hull: Option<AddrRange>,
    maps: Option<Arc<[Mapping]>>,
}

impl Process {
    pub fn of(model: &Model, id: TargetId) -> Option<Self> {
        let target = model.targets.get(&id)?;
        let mappings: Vec<MappingRow> = model.holdings.mappings(id).into_iter().map(row).collect();
        Some(Self {
            names: mappings.iter().map(|row| (row.range, row.name.clone(), row.path.clone())).collect(),
            pid: target.info.pid,
            name: printable(&target.info.comm).into_owned(),
            command: command_line(&target.info.cmdline),
            // Those of the list may be of a moment before: they are added up as seldom as many processes allow.
            figures: model.holdings.figures(id).or(target.figures),
            ended: target.ended.as_ref().map(|(_, how)| how.clone()),
            mappings,
            hull: target.timeline.last().and_then(|span| {
                let (first, last) = span.regions.first().zip(span.regions.last())?;
                Some(AddrRange::new(first.range.start, last.range.end))
            }),
            incomplete: target.timeline.maps().is_some_and(|list| list.partial),
            maps: target.timeline.maps().map(|list| Arc::clone(&list.maps)),
        })
    }

    /// From its lowest address to its highest; the kernel's own mappings at the very top left out.
    pub fn limits(&self) -> Option<AddrRange> {
        if let Some(maps) = &self.maps
            && let (Some(first), Some(last)) = (maps.first(), maps.iter().rfind(|m| m.end <= USER))
        {
            // Beyond the end of an incomplete list there is more.
            let end = self.hull.filter(|hull| self.incomplete && hull.end <= USER).map_or(0, |hull| hull.end);
            return Some(AddrRange::new(first.start, last.end.max(end)));
        }
        self.hull
    }

    /// What there is to see of `range`, from the lowest address: its parts, if they lie as far apart as those that `isotherm
    /// report heatmap` shows apart; otherwise the range itself. Of a file's mappings, those of the file.
    pub fn parts(&self, range: AddrRange) -> Vec<Area> {
        let row = self.names.iter().find(|(of, ..)| *of == range);
        let (name, path) = row.map_or(("", ""), |(_, name, path)| (name, path));
        let maps = self.maps.as_deref().unwrap_or_default().iter();
        let inside = maps.filter(|m| m.end <= USER && m.range().intersects(range));
        let inside: Vec<&Mapping> =
            inside.filter(|m| path.is_empty() || printable(&m.name) == path).collect();
        let ranges: Vec<AddrRange> = inside.iter().map(|m| m.range().intersection(range)).collect();
        let apart = far_apart(&ranges, range);
        let all = apart.len();
        let area = |(i, part): (usize, AddrRange)| {
            let largest = || {
                let here = inside.iter().filter(|m| m.range().intersects(part));
                here.max_by_key(|m| m.range().intersection(part).size()).map(|m| short_name(m).into_owned())
            };
            let name = match name {
                "" if part == range => None,
                "" => largest(),
                name => Some(name.to_owned()),
            };
            let mut name = name.unwrap_or_else(|| super::state::addresses(part));
            if all > 1 {
                name.push_str(&format!(", part {} of {all}", i + 1));
            }
            Area { start: part.start, end: part.end, name, ..Area::default() }
        };
        apart.into_iter().enumerate().map(area).collect()
    }
}

/// The end of what programs can map; the kernel's own mappings lie above.
const USER: u64 = 1 << 56;

/// Gaps wider than this, and than all that is mapped, are left out: the rule of `isotherm report heatmap`.
const HUGE_GAP: u64 = 64 << 20;

/// The hulls of what lies together of `ranges`, which are sorted and within `whole`; `whole` itself if nothing lies far from
/// the rest, or from the ends.
fn far_apart(ranges: &[AddrRange], whole: AddrRange) -> Vec<AddrRange> {
    let mapped = ranges.iter().map(|r| r.size()).fold(0, u64::saturating_add);
    let widest = mapped.max(HUGE_GAP);
    let mut parts: Vec<AddrRange> = Vec::new();
    for range in ranges {
        match parts.last_mut() {
            Some(last) if range.start.saturating_sub(last.end) <= widest => {
                last.end = last.end.max(range.end);
            }
            _ => parts.push(*range),
        }
    }
    let Some(first) = parts.first_mut() else { return vec![whole] };
    if first.start - whole.start <= widest {
        first.start = whole.start;
    }
    if let Some(last) = parts.last_mut()
        && whole.end - last.end <= widest
    {
        last.end = whole.end;
    }
    parts
}

fn row(held: MappingHoldings) -> MappingRow {
    let range = AddrRange::new(held.start, held.end);
    MappingRow { range, name: held.name, path: held.path, figures: held.figures }
}

/// A target's past between two times.
pub fn material(model: &Model, id: TargetId, from: u64, to: u64) -> Material {
    let Some(target) = model.targets.get(&id) else { return Material::default() };
    Material {
        spans: target.timeline.between(from, to).cloned().collect(),
        maps: target.timeline.maps_between(from, to).cloned().collect(),
    }
}

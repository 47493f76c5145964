//! From the model to what a frame shows: copied while the lock is held, arranged and drawn after.

use super::heat::Material;
use super::model::Model;
use super::state::{MappingRow, Row};
use isotherm_damon::{AddrRange, TargetId};
use isotherm_linux::Cost;
use isotherm_record::Mapping;
use isotherm_report::holdings::{Figures, MappingHoldings};
use isotherm_report::names::printable;
use std::sync::Arc;

/// What every screen shows at its top.
#[derive(Clone, Debug, Default)]
pub struct Head {
    pub host: String,
    pub backend: String,
    pub limit: f64,
    pub processes: usize,
    pub sum: Figures,
    pub refused: (u64, String),
    pub snapshots: u64,
    pub lost: u64,
    pub cost: Option<Cost>,
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
            processes: model.alive(),
            sum: model.totals,
            refused: model.refused.clone(),
            snapshots: model.snapshots,
            lost: model.lost,
            cost: model.cost,
            started_ns: model.header.started_ns,
            kept: model.kept(),
            over: model.over.clone(),
        }
    }
}

/// The rows of the list, in no order.
pub fn rows(model: &Model) -> Vec<Row> {
    let alive = model.targets.iter().filter(|(_, target)| target.ended.is_none());
    alive
        .map(|(&id, target)| Row {
            id,
            pid: target.info.pid,
            name: printable(&target.info.comm).into_owned(),
            command: printable(&target.info.cmdline.join(" ")).into_owned(),
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
    pub figures: Figures,
    pub ended: Option<String>,
    pub mappings: Vec<MappingRow>,
    /// Names of stretches that can be shown.
    pub names: Vec<(AddrRange, String)>,
    hull: Option<AddrRange>,
    maps: Option<Arc<[Mapping]>>,
}

impl Process {
    pub fn of(model: &Model, id: TargetId) -> Option<Self> {
        let target = model.targets.get(&id)?;
        let mappings: Vec<MappingRow> = model.holdings.mappings(id).into_iter().map(row).collect();
        Some(Self {
            names: mappings.iter().map(|row| (row.range, row.name.clone())).collect(),
            pid: target.info.pid,
            name: printable(&target.info.comm).into_owned(),
            command: printable(&target.info.cmdline.join(" ")).into_owned(),
            figures: target.figures,
            ended: target.ended.as_ref().map(|(_, how)| how.clone()),
            mappings,
            hull: target.timeline.last().and_then(|span| {
                let (first, last) = span.regions.first().zip(span.regions.last())?;
                Some(AddrRange::new(first.range.start, last.range.end))
            }),
            maps: target.timeline.maps().cloned(),
        })
    }

    /// From its lowest address to its highest; the kernel's own mappings at the very top left out.
    pub fn limits(&self) -> Option<AddrRange> {
        const USER: u64 = 1 << 56;
        if let Some(maps) = &self.maps
            && let (Some(first), Some(last)) = (maps.first(), maps.iter().rfind(|m| m.end <= USER))
        {
            return Some(AddrRange::new(first.start, last.end));
        }
        self.hull
    }
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

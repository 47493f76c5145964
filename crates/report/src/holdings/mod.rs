//! What each process, mapping and object holds: mapped, resident, working set, hot, cold, unknown bytes.
//!
//! [`Holdings`] is given the items of a recording, or snapshots and mappings as a live session hands them out, and says at
//! any time how things stand ([`Holdings::processes`], [`Holdings::mappings`], [`Holdings::objects`],
//! [`Holdings::totals`]). It keeps, for each stretch of memory, the rate of the last aggregation and how many of its bytes
//! were accessed last when (the module `history`), so it needs memory by the number of regions, not by the length of the
//! recording, and a snapshot costs what the regions cost that are in it: a target marked steady costs next to nothing,
//! with its regions or without.
//!
//! | figure | rule |
//! |---|---|
//! | mapped | bytes of regions, cut to the mappings of the target |
//! | resident | of these, present in memory; of a region that is mapped in part, each part has its share |
//! | working set, 1 s | Denning's, at the rates of the last aggregation, as [`crate::trend`] has it: of a region accessed in a share `p` of the sampling intervals, `1 - (1 - p)^n` |
//! | working set, 10 s and 60 s | the same over the aggregations that there were: `1 - product(1 - p)^n`; not known where nothing has been observed for so long. Never less than that of a shorter window |
//! | hot | at a tenth of the highest rate and more, on a mean in which what was `t` seconds ago counts `exp(-t / FADE_S)` ([`FADE_S`]), since it became known. Never more than the working set of 10 s |
//! | cold since | present, and known not to have been accessed for so long: the product of the above, without what was unknown, and what was not there, in the meantime. None where nothing has been observed for so long |
//! | unknown | could not be observed, and may be there |
//!
//! Of a region over several lines (mappings, objects) each has a share by size, and bounds where that was not measured (the module
//! `bounds`). So the three working sets and what is cold are expected values, as the rates are. In the sums of a process everything it
//! maps counts; in the totals, and in the lines of objects, what several targets map counts once, with the accesses of all
//! of them. Of a single process the totals are its sums.
//!
//! What ended is no part of the totals, and its figures are those of its last snapshot; but what it did in files and shared memory
//! counts in the lines of these, and in the totals as long as somebody maps them (the module `past`). So does what a process that goes
//! on did in what it has unmapped. What ended after the last
//! snapshot counts as running: how things stood then is what is reported. Memory keeps its history as long as its addresses belong
//! to the same object, or to none. A gap of more than [`GAP_S`] between snapshots, or inside one ([`interval_ns`]), ends all
//! knowledge of what was idle.

mod bounds;
mod csv;
mod figures;
mod history;
mod layer;
mod objects;
mod past;
mod portions;
mod report;
mod rows;
mod stock;
#[cfg(test)]
mod tests;
mod text;
mod thin;

pub use bounds::{Bounds, Certainty, Figure};
pub use csv::write_csv;
pub use figures::{COLD_NAMES, COLD_S, Figures, HOT_SHARE, WINDOWS_S};
pub use report::{By, Highest, HoldingsAnalysis, HoldingsOptions, HoldingsReport, Sort};
pub use rows::{MappingHoldings, ObjectHoldings, ProcessHoldings};
pub use stock::Stock;
pub use text::{short_size, write_table, write_text};

use crate::Accumulate;
use crate::names::disjoint;
use crate::rate::{BP, GAP_S, RateScale, interval_ns, share_in_use};
use crate::space::Space;
use crate::units::SECOND_NS;
use isotherm_damon::{AddrRange, RegionSnapshot, Snapshot, TargetId, TargetSnapshot};
use isotherm_record::{Item, Mapping, Mappings, TargetInfo};
use layer::{Layer, Part};
use objects::Scale;
use past::Past;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use stock::{Found, LastStock};
use thin::{MOST_PARTS, thin};

/// How fast times fade out of the mean by which memory is hot, seconds. A guess: slow enough that neither a pause of the program
/// nor the first second, in which rates are guessed from few looks, decides; so fast that what was accessed all the time and is
/// not any more is hot for less than 6 s, well before the time after which anything is cold.
pub const FADE_S: f64 = 2.5;

/// Targets that ended and are still reported; of more, those that held most.
const MAX_ENDED: usize = 256;

/// Expected accesses in a sampling interval that are as good as certain.
const CERTAIN: f64 = 40.0;

/// A target under observation.
#[derive(Clone, Debug, Default)]
struct Held {
    layer: Layer,
    /// Start of its first snapshot, or of the first after a gap, and end of its last one, seconds.
    first: f64,
    until: f64,
    /// When it ended and how, if it did.
    ended: Option<String>,
    /// What it was found to hold the last time.
    found: Option<Found>,
}

/// What each process, mapping and object holds; the rules are those of the [module](self).
#[derive(Clone, Debug, Default)]
pub struct Holdings {
    targets: Vec<TargetId>,
    space: Space,
    held: BTreeMap<u64, Held>,
    infos: BTreeMap<u64, TargetInfo>,
    /// Sorted, disjoint.
    names: BTreeMap<u64, Arc<[Mapping]>>,
    scale: Scale,
    /// End of the last snapshot, seconds.
    now: f64,
    /// Those that ended since the last snapshot.
    ending: BTreeSet<u64>,
    gone: Vec<ProcessHoldings>,
    nr_gone: u64,
    /// Targets that ended without a snapshot of them, and for how long they were known at most, ns.
    unseen: (u64, u64),
    past: Past,
    piece: TargetSnapshot,
    mapped: TargetSnapshot,
    parts: Vec<Part>,
    last: LastStock,
    /// Objects when those that nobody maps any more were forgotten the last time.
    objects_left: usize,
}

impl Holdings {
    /// Of these targets only; of all where the list is empty.
    pub fn new(targets: Vec<TargetId>) -> Self {
        Self { targets, ..Self::default() }
    }

    /// End of the last snapshot that had a target, ns; 0 before there was one.
    pub fn now_ns(&self) -> u64 {
        (self.now * SECOND_NS).round() as u64
    }

    /// Targets that ended, those included that are no longer listed.
    pub fn nr_ended(&self) -> u64 {
        self.nr_gone
    }

    /// Those of them that are no longer listed.
    pub fn nr_forgotten(&self) -> u64 {
        self.nr_gone - self.gone.len() as u64
    }

    /// Targets that ended without a snapshot of them, and for how long they were known at most, ns.
    pub fn unseen(&self) -> (u64, u64) {
        self.unseen
    }

    /// Whether some that run as things stand have ended since.
    fn loses(&self) -> bool {
        !self.ending.is_empty()
    }

    fn wanted(&self, id: TargetId) -> bool {
        self.targets.is_empty() || self.targets.contains(&id)
    }

    fn take_snapshot(&mut self, snapshot: &Snapshot) {
        if snapshot.targets.is_empty() {
            return;
        }
        self.bury(snapshot);
        let rates = RateScale::of(snapshot);
        let (start, end) = interval_ns(snapshot);
        let (start, end) = (start as f64 / SECOND_NS, end as f64 / SECOND_NS);
        let counted_ns = snapshot.sample_ns as f64 * f64::from(snapshot.max_nr_accesses);
        self.scale = Scale {
            aggr_s: if counted_ns > 0.0 { counted_ns / SECOND_NS } else { end - start },
            sample_s: if snapshot.max_nr_accesses > 0 { snapshot.sample_ns as f64 / SECOND_NS } else { 0.0 },
            max_hz: rates.max_hz(),
            imported: self.scale.imported,
        };
        self.now = self.now.max(end);
        for target in &snapshot.targets {
            if self.wanted(target.id) {
                self.take_target(target, snapshot.max_nr_accesses, rates, (start, end));
            }
        }
    }

    fn take_target(&mut self, target: &TargetSnapshot, max: u32, rates: RateScale, (start, end): (f64, f64)) {
        let met = self.held.contains_key(&target.id.0);
        let held = self.held.entry(target.id.0).or_insert_with(|| Held {
            layer: Layer::new(start),
            first: start,
            until: start,
            ended: None,
            found: None,
        });
        let gap = start - held.until > GAP_S;
        if gap {
            held.layer.catch_up(held.until);
            held.layer.skip_to(start);
            held.first = start;
            held.changes();
        }
        held.until = held.until.max(end);
        // After a gap too: its state goes on, and its regions may have been left out.
        if target.steady && met {
            return;
        }
        held.changes();
        let max_bp = f64::from(max) * BP;
        let (sample_s, aggr_s) = (self.scale.sample_s, self.scale.aggr_s);
        self.parts.clear();
        let mut longest: f64 = 0.0;
        let mut add = |whole: AddrRange, region: &RegionSnapshot, parts: &mut Vec<Part>| {
            let size = region.range.size() as f64;
            let in_use = share_in_use(region);
            for (range, used) in in_use_first(region.range, in_use) {
                let of = if used { 1.0 / in_use } else { 0.0 };
                let p = if max_bp > 0.0 { region.accesses_bp() as f64 / max_bp * of } else { 0.0 };
                let hz = rates.hz(region) * of;
                let per_s =
                    if sample_s > 0.0 { (-(-p.min(1.0)).ln_1p()).min(CERTAIN) / sample_s } else { hz };
                // The age of what could not be observed tells nothing.
                let idle = !met && per_s <= 0.0 && !region.is_unknown();
                let idle_s = if idle { f64::from(region.age) * aggr_s } else { 0.0 };
                longest = longest.max(idle_s);
                parts.push(Part {
                    range,
                    seen: f64::from(region.seen_bp) / BP,
                    per_s,
                    hz,
                    resident: region.resident.map(|bytes| bytes as f64 / size),
                    idle_s,
                    whole,
                    strewn: in_use < 1.0,
                });
            }
        };
        // Whose memory it is, is asked for when it is reported: objects may lie between a process's own memory page by page.
        if target.regions.len() <= MOST_PARTS {
            self.space.clip(target, &mut self.mapped);
            with_whole(&target.regions, &self.mapped.regions, |whole, region| {
                add(whole, region, &mut self.parts);
            });
        } else {
            // Piece by piece, and what there is of it reduced before the next.
            for regions in target.regions.chunks(MOST_PARTS) {
                self.piece.id = target.id;
                self.piece.regions.clear();
                self.piece.regions.extend_from_slice(regions);
                self.space.clip(&self.piece, &mut self.mapped);
                with_whole(&self.piece.regions, &self.mapped.regions, |whole, region| {
                    add(whole, region, &mut self.parts);
                });
                if self.parts.is_sorted_by(|a, b| a.range.end <= b.range.start) {
                    thin(&mut self.parts, MOST_PARTS, &self.scale);
                }
            }
        }
        // Recordings of other programs may break the order that a snapshot promises.
        if !self.parts.is_sorted_by(|a, b| a.range.end <= b.range.start) {
            untangle(&mut self.parts);
        }
        if !met {
            held.layer.known_from -= longest;
        }
        // What held at the last change held until this aggregation began.
        let from = start.min(end).max(held.layer.until);
        held.layer.catch_up(from);
        held.layer.replace(&self.parts, from, end);
    }

    /// Takes those off the books that ended before `snapshot`.
    fn bury(&mut self, snapshot: &Snapshot) {
        if self.ending.is_empty() {
            return;
        }
        for target in &snapshot.targets {
            // One that came back has not ended.
            if self.ending.remove(&target.id.0)
                && let Some(held) = self.held.get_mut(&target.id.0)
            {
                held.ended = None;
            }
        }
        for id in std::mem::take(&mut self.ending) {
            let row = self.process(TargetId(id), true);
            self.inherit(id);
            // Not before: how things stood at the end is reported of as many as ended together.
            self.space.end(id);
            self.last.without(self.held.remove(&id).and_then(|held| held.found));
            self.names.remove(&id);
            self.infos.remove(&id);
            let Some(row) = row else { continue };
            self.nr_gone += 1;
            self.gone.push(row);
            if self.gone.len() > MAX_ENDED {
                let held = |row: &ProcessHoldings| {
                    let f = &row.figures;
                    (f.longest_working_set(), f.resident, f.mapped)
                };
                let least = (0..self.gone.len()).min_by_key(|&i| held(&self.gone[i])).unwrap_or(0);
                self.gone.remove(least);
            }
        }
        let space = &self.space;
        self.past.retain(|object| space.object_at(object).is_some());
    }

    fn take_mappings(&mut self, mappings: &Mappings) {
        if !self.wanted(TargetId(mappings.target)) {
            return;
        }
        let (moved, left) = self.space.remap(mappings);
        let Self { held, past, scale, .. } = self;
        if let Some(held) = held.get_mut(&mappings.target) {
            // What it did in files that it maps no more is theirs, as if it had ended.
            held.leave(mappings.target, &left, scale, past);
            held.layer.forget(&moved);
            held.changes();
        }
        self.names.insert(mappings.target, disjoint(&mappings.maps));
        self.space.forget_unmapped(&mut self.objects_left);
        let space = &self.space;
        if !left.is_empty() {
            self.past.retain(|object| space.object_at(object).is_some());
        }
    }
}

/// Calls `each` with every mapped part that is not empty, and the region that it is a part of: both in order.
fn with_whole(
    regions: &[RegionSnapshot],
    mapped: &[RegionSnapshot],
    mut each: impl FnMut(AddrRange, &RegionSnapshot),
) {
    let mut of = regions.iter().map(|region| region.range).peekable();
    for part in mapped.iter().filter(|part| !part.range.is_empty()) {
        while of.next_if(|whole| whole.end <= part.range.start).is_some() {}
        // Recordings of other programs may break the order that a snapshot promises.
        let whole = of.peek().copied().filter(|whole| whole.contains(part.range.start));
        each(whole.unwrap_or(part.range), part);
    }
}

/// Of pages in use that lie apart it is not recorded which those are: it counts as much if they are the first of each stretch. Those
/// stretches lie where they lie whatever the regions' borders, so that what was in use a moment ago is what is in use now. Regions of
/// which nothing is idle are whole.
fn in_use_first(range: AddrRange, in_use: f64) -> impl Iterator<Item = (AddrRange, bool)> {
    // The cells of the monitor; larger ones where they would be very many.
    let stretch =
        if in_use < 1.0 { (range.size() >> 8).next_power_of_two().max(256 << 10) } else { u64::MAX };
    let mut at = range.start;
    let pairs = std::iter::from_fn(move || {
        let start = at;
        if start >= range.end {
            return None;
        }
        let end = (start - start % stretch).saturating_add(stretch).min(range.end);
        at = end;
        // Of a part too: of all there are as many pages as the share says.
        let border = start + ((end - start) as f64 * in_use).ceil() as u64;
        let border = border.min(end);
        Some([(AddrRange::new(start, border), true), (AddrRange::new(border, end), false)])
    });
    pairs.flatten().filter(|(range, _)| !range.is_empty())
}

/// Sorts parts, and cuts off what lies under another.
fn untangle(parts: &mut Vec<Part>) {
    parts.sort_by_key(|p| p.range.start);
    let mut floor = 0;
    parts.retain_mut(|part| {
        let start = part.range.start.max(floor);
        if start >= part.range.end {
            return false;
        }
        part.range.start = start;
        floor = part.range.end;
        true
    });
}

impl Accumulate for Holdings {
    fn snapshot(&mut self, snapshot: &Snapshot) {
        self.take_snapshot(snapshot);
    }

    fn note(&mut self, item: &Item) {
        match item {
            Item::Header(header) => {
                self.scale.imported = header.backend.name.starts_with(isotherm_record::IMPORTED)
            }
            Item::Target(info) => {
                self.infos.insert(info.id, info.clone());
            }
            Item::Mappings(mappings) => self.take_mappings(mappings),
            Item::TargetEnd(end) => match self.held.get_mut(&end.target) {
                Some(held) => {
                    held.ended = Some(end.reason.clone());
                    self.ending.insert(end.target);
                }
                None => {
                    self.space.end(end.target);
                    if let Some(info) = self.infos.remove(&end.target)
                        && self.wanted(TargetId(end.target))
                    {
                        let known_ns = end.time_ns.saturating_sub(info.time_ns);
                        self.unseen = (self.unseen.0 + 1, self.unseen.1.max(known_ns));
                    }
                    self.names.remove(&end.target);
                }
            },
            _ => {}
        }
    }
}

//! The regions of a moment, or of a stretch of time: where, how large, how hot, for how long.

mod model;
mod pattern;
mod rows;
mod text;
mod totals;

pub use model::{AccessRegion, AccessReport, TargetAccess};
pub use pattern::{Pattern, SortKey};
pub use text::write_text;
pub use totals::{RateClass, Totals};

use crate::Accumulate;
use crate::before_end::{BeforeEnd, Due};
use crate::heatmap::UnknownWord;
use crate::names::NameBook;
use crate::provenance::{Provenance, Reading};
use crate::rate::{BP, RateScale, interval_ns};
use crate::segments::{Gather, Pile, Segment};
use crate::space::{Space, is_object};
use crate::units::{SECOND_NS, counted};
use isotherm_damon::{AddrRange, RegionSnapshot, Snapshot, TargetId, TargetSnapshot};
use isotherm_record::Item;
use rows::{Adding, Rows};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;
use totals::Sum;

/// Segments an aggregate is reduced to; above it, neighbours of similar rate are joined.
const MAX_SEGMENTS: usize = 4096;

/// Of memory of which it was known for this share of the time what is resident, it is taken to have been the same in the rest. A new
/// process does not tell what it has before the first look at it, nor then anybody what is resident of the files that it maps: a
/// second, of each. A guess.
const MOSTLY_TOLD: f64 = 0.5;

/// Segments that a snapshot is reduced to before it is added: many more than are left in the end.
const MOST_AT_ONCE: usize = 16 * MAX_SEGMENTS;

/// Which snapshots to report. Times are distances from the recording's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Selection {
    /// The last snapshot.
    #[default]
    Last,
    /// The snapshot of this moment, which is the last that began before it (or the first).
    At(Duration),
    /// The mean over all snapshots that overlap this time, each in proportion; of a time without length, as [`Self::At`].
    Between(Duration, Duration),
}

/// What to report.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AccessOptions {
    /// Which snapshots.
    pub selection: Selection,
    /// Which of their regions.
    pub pattern: Pattern,
    /// Order within a target; [`SortKey::Address`] unless said otherwise.
    pub sort: SortKey,
    /// Largest first.
    pub descending: bool,
    /// Whose memory a group of regions is.
    pub by: Grouping,
    /// Most regions that are listed of a group, the first in the order asked for; all where it is not said.
    pub limit: Option<usize>,
}

/// Whose memory a group of regions is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Grouping {
    /// A target's: everything that it maps.
    #[default]
    Target,
    /// An object's (a file, shared memory), with the accesses of all targets that map it; addresses are offsets in it.
    /// What is a target's own stays a group of the target.
    Object,
}

impl std::str::FromStr for Grouping {
    type Err = UnknownWord;

    fn from_str(word: &str) -> Result<Self, UnknownWord> {
        match word {
            "target" => Ok(Self::Target),
            "object" => Ok(Self::Object),
            _ => Err(UnknownWord { word: word.to_owned(), expected: "target or object" }),
        }
    }
}

/// Keeps the regions of the selected time.
#[derive(Debug)]
pub struct AccessAnalysis {
    options: AccessOptions,
    provenance: Provenance,
    /// Of the last snapshot; how things stood at another moment is as it was.
    before: BeforeEnd,
    names: NameBook,
    space: Space,
    /// The snapshot to report; of an aggregate, the intervals of the last one.
    held: Snapshot,
    mapped: Snapshot,
    pile: Pile,
    spare: Vec<Segment>,
    /// Time covered and number of the snapshots selected.
    covered: Option<(u64, u64)>,
    /// Of the targets of an aggregate: byte-seconds of which it is known what is resident, and all.
    told: HashMap<TargetId, (f64, f64)>,
    snapshots: u64,
    ceiling_hz: Option<f64>,
}

impl AccessAnalysis {
    /// An analysis of nothing yet.
    pub fn new(mut options: AccessOptions) -> Self {
        if let Selection::Between(from, to) = options.selection
            && from == to
        {
            options.selection = Selection::At(from);
        }
        let wanted = options.pattern.targets.clone();
        Self {
            options,
            provenance: Provenance::default(),
            before: BeforeEnd::together(wanted),
            names: NameBook::default(),
            space: Space::default(),
            held: Snapshot::default(),
            mapped: Snapshot::default(),
            pile: Pile::default(),
            spare: Vec::new(),
            covered: None,
            told: HashMap::new(),
            snapshots: 0,
            ceiling_hz: None,
        }
    }

    /// Has reports say what became of reading the recording.
    pub fn set_reading(&mut self, reading: Reading) {
        self.provenance.set_reading(reading);
    }

    fn absolute(&self, time: Duration) -> u64 {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.provenance.origin_ns().saturating_add(ns)
    }

    /// Keeps a copy of the snapshot; beside the held one when both are of the same moment (recordings with one target
    /// a snapshot).
    fn hold(&mut self, snapshot: &Snapshot) {
        if self.snapshots > 0 && self.held.end_ns == snapshot.end_ns {
            self.held.targets.extend(snapshot.targets.iter().cloned());
            self.snapshots += 1;
            return;
        }
        self.held.clone_from(snapshot);
        self.snapshots = 1;
    }

    /// Takes what may be the last of it.
    fn take(&mut self, due: Due<'_>) {
        match due {
            Due::Note(item) => self.learn(item),
            Due::Snapshot(snapshot) if !self.is_of_wanted(snapshot) => {}
            Due::Snapshot(snapshot) if self.snapshots > 0 && self.held.end_ns == snapshot.end_ns => {
                self.hold(snapshot);
            }
            Due::Snapshot(snapshot) => {
                std::mem::swap(&mut self.held, snapshot);
                self.snapshots = 1;
            }
        }
    }

    /// How things stood at the end is how they stood when there was something last.
    fn is_of_wanted(&self, snapshot: &Snapshot) -> bool {
        let ids = &self.options.pattern.targets;
        snapshot.targets.iter().any(|target| ids.is_empty() || ids.contains(&target.id.0))
    }

    fn learn(&mut self, item: &Item) {
        self.names.note(item);
        self.space.note(item);
    }

    fn add(&mut self, snapshot: &Snapshot, from: u64, to: u64) {
        let (start, end) = interval_ns(snapshot);
        let (shared_start, shared_end) = (start.max(from), end.min(to));
        if shared_start >= shared_end {
            return;
        }
        let seconds = (shared_end - shared_start) as f64 / SECOND_NS;
        let wanted = wanted(&self.options);
        let (told, mut gather) =
            (&mut self.told, Gather::new((MOST_AT_ONCE, u64::MAX), std::mem::take(&mut self.spare)));
        let piece = |mapped: &Snapshot| {
            for target in &mapped.targets {
                let (told, all) = told.entry(target.id).or_default();
                for region in &target.regions {
                    let bytes = region.range.size() as f64 * seconds;
                    *told += if region.resident.is_some() { bytes } else { 0.0 };
                    *all += bytes;
                }
            }
            gather.add(mapped, seconds, |_| true);
        };
        match self.options.by {
            Grouping::Target => self.space.each_by_target(snapshot, wanted, &mut self.mapped, piece),
            Grouping::Object => self.space.each_by_object(snapshot, wanted, &mut self.mapped, piece),
        }
        (self.spare, _) = gather.finish();
        let targets = Vec::new();
        self.held = Snapshot { targets, ..*snapshot };
        self.pile.add(&self.spare, 2 * MAX_SEGMENTS);
        let (a, b) = self.covered.unwrap_or((shared_start, shared_end));
        self.covered = Some((a.min(shared_start), b.max(shared_end)));
        self.snapshots += 1;
        if let Some(hz) = RateScale::of(snapshot).max_hz() {
            self.ceiling_hz = Some(self.ceiling_hz.map_or(hz, |c: f64| c.max(hz)));
        }
    }

    /// The report. Without a snapshot in the selected time it has no targets.
    pub fn finish(mut self) -> AccessReport {
        let mut before = std::mem::take(&mut self.before);
        let gave_up = before.finish(|due| self.take(due));
        let mut pattern = self.options.pattern.clone();
        if self.options.by == Grouping::Object {
            // Those of other targets were left out before the rest was added up.
            pattern.targets.clear();
        }
        if let Some((start, end)) = self.covered {
            pattern.not_once_in((end - start) as f64 / SECOND_NS);
        }
        let mut rows = Rows::new(pattern);
        let (start_ns, end_ns) = match self.options.selection {
            Selection::Between(..) => {
                let segments = std::mem::take(&mut self.pile).finish(MAX_SEGMENTS);
                self.aggregate(&segments, &mut rows);
                self.covered.unwrap_or((0, 0))
            }
            _ if self.snapshots == 0 => (0, 0),
            _ => {
                self.moment(&mut rows);
                interval_ns(&self.held)
            }
        };
        let missing = rows.missing();
        let Rows { ceiling_hz, mut shown, hidden, groups, .. } = rows;
        let hidden_regions = hidden.sum.regions();
        let hidden_totals = self.totals(hidden);
        let (of_groups, totals) = self.totals_of(groups, ceiling_hz);
        self.options.sort.sort(&mut shown, self.options.descending);
        let mut report = AccessReport {
            start_ns,
            end_ns,
            origin_ns: self.provenance.origin_ns(),
            snapshots: self.snapshots,
            ceiling_hz,
            hidden_regions,
            hidden_bytes: hidden_totals.bytes,
            hidden_resident: hidden_totals.resident,
            hidden_unknown_bytes: hidden_totals.unknown_bytes,
            totals,
            targets: Vec::new(),
            gave_up,
            provenance: Provenance::default(),
            missing,
        };
        let mappers = self.mappers();
        while let Some(target) = shown.last().map(|row| row.target) {
            let first = shown.partition_point(|row| row.target != target);
            let regions = if first == 0 { std::mem::take(&mut shown) } else { shown.split_off(first) };
            let id = TargetId(target);
            report.targets.push(TargetAccess {
                target,
                name: self.group_name(id, &mappers),
                object: self.space.object(id).map(|object| object.id.to_string()),
                totals: of_groups.get(&target).cloned().unwrap_or_default(),
                regions,
                unlisted_regions: 0,
                unlisted_bytes: 0,
            });
        }
        report.targets.reverse();
        if self.options.sort.sorts_groups() {
            let (sort, descending) = (self.options.sort, self.options.descending);
            report.targets.sort_by(|a, b| {
                let order = a.regions.first().zip(b.regions.first()).map(|(a, b)| sort.compare(a, b));
                let order = order.unwrap_or(std::cmp::Ordering::Equal);
                if descending { order.reverse() } else { order }
            });
        }
        for target in &mut report.targets {
            let listed = self.options.limit.unwrap_or(usize::MAX).min(target.regions.len());
            let rest = target.regions.split_off(listed);
            target.unlisted_regions = rest.len() as u64;
            target.unlisted_bytes = rest.iter().map(|region| region.size).sum();
        }
        report.provenance = self.provenance;
        report
    }

    /// How many of the targets of the report map each object; of none where it is not by object.
    fn mappers(&self) -> HashMap<TargetId, usize> {
        if self.options.by != Grouping::Object {
            return HashMap::new();
        }
        // Of a moment: those of then; over a stretch of time: all that came by.
        let then: BTreeSet<TargetId> = self.held.targets.iter().map(|t| t.id).collect();
        let chosen = wanted(&self.options);
        self.space.mappers(|t| chosen(t) && (then.is_empty() || then.contains(&t)))
    }

    fn group_name(&self, id: TargetId, mappers: &HashMap<TargetId, usize>) -> String {
        let target = || self.provenance.target_name(id);
        match (self.space.object(id), self.options.by) {
            (Some(object), _) => {
                let mappers = mappers.get(&id).map_or(0, |n| *n as u64);
                format!("{}, mapped by {}", object.title(), counted(mappers, "target"))
            }
            (None, Grouping::Object) => format!("{}: memory of its own", target()),
            (None, Grouping::Target) => target(),
        }
    }

    /// `last`: the name of the row before, which most rows have, too: a snapshot may have a million.
    fn name(&self, target: TargetId, range: AddrRange, last: &RefCell<Arc<str>>) -> Option<Arc<str>> {
        let shared = |name: &str| {
            let mut last = last.borrow_mut();
            if **last != *name {
                *last = name.into();
            }
            last.clone()
        };
        match self.space.object(target) {
            Some(object) => Some(shared(&object.name)),
            None => self.names.name(target, range).map(|name| shared(&name.to_string())),
        }
    }

    /// The regions of the held snapshot, of which only whom it is of is kept.
    fn moment(&mut self, rows: &mut Rows) {
        let scale = RateScale::of(&self.held);
        let (start, end) = interval_ns(&self.held);
        let aggr_ns = match self.held.sample_ns.saturating_mul(u64::from(self.held.max_nr_accesses)) {
            0 => end - start,
            ns => ns,
        };
        let by_object = self.options.by == Grouping::Object;
        if by_object {
            self.space.by_object(&self.held, wanted(&self.options), &mut self.mapped);
        }
        let targets = if by_object { &self.mapped.targets } else { &self.held.targets };
        let regions = || {
            let all = targets.iter().flat_map(|t| t.regions.iter().map(|region| (t.id, region)));
            all.filter(|(_, region)| !region.range.is_empty())
        };
        rows.ceilings(scale.max_hz().unwrap_or_else(|| {
            let known = regions()
                .filter(|(id, r)| !r.is_unknown() && (by_object || self.space.mapped(*id, r).is_some()));
            known.map(|(_, region)| scale.hz(region)).fold(0.0, f64::max)
        }));
        let last = RefCell::default();
        let row = |target: TargetId, region: &RegionSnapshot| {
            let (size, hull) = match by_object {
                true => (region.range.size(), region.range),
                // A gap is no memory.
                false => self.space.mapped(target, region)?,
            };
            let hz = (!region.is_unknown()).then(|| scale.hz(region));
            let row = AccessRegion {
                target: target.0,
                start: hull.start,
                end: hull.end,
                size,
                resident: region.resident.map(|bytes| bytes.min(size)),
                mapping: self.name(target, hull, &last),
                nr_accesses: Some(region.nr_accesses),
                rate_hz: hz,
                rate_share: hz.zip(scale.max_hz()).map(|(hz, max)| hz / max),
                seen: f64::from(region.seen_bp) / BP,
                exposure: (region.exposure != RegionSnapshot::COUNTED).then_some(region.exposure),
                age_ns: u64::from(region.age).saturating_mul(aggr_ns),
            };
            Some(row)
        };
        rows.alone = targets.len() <= 1;
        for (id, region) in regions() {
            if let Some(row) = row(id, region) {
                rows.take(row, region, (&self.space, &self.names));
            }
        }
        self.held.targets.iter_mut().for_each(|target| target.regions = Vec::new());
    }

    /// The segments of the selected time.
    fn aggregate(&self, segments: &[Segment], rows: &mut Rows) {
        let hz_per_bp = RateScale::of(&self.held).hz_per_bp();
        let told_share = |target: &TargetId| match self.told.get(target) {
            Some((told, all)) if *all > 0.0 => told / all,
            _ => 0.0,
        };
        let last = RefCell::default();
        let row = |s: &Segment| {
            let told = told_share(&s.target);
            let is_told = told >= MOSTLY_TOLD;
            let s = &if is_told { s.as_when_told(told) } else { *s };
            let seen = s.seen_share();
            let there = (s.size * s.there_share()).round() as u64;
            // What never was there, as long as that was told, was not accessed in the moments in which it was not.
            let never = is_told && there == 0;
            let hz = (s.seen > 0.0).then(|| if never { 0.0 } else { s.rate_hz() });
            let row = AccessRegion {
                target: s.target.0,
                start: s.range.start,
                end: s.range.end,
                size: s.size.round() as u64,
                resident: is_told.then_some(there),
                mapping: self.name(s.target, s.range, &last),
                nr_accesses: None,
                rate_hz: hz,
                rate_share: hz.zip(self.ceiling_hz).map(|(hz, max)| hz / max),
                seen,
                exposure: None,
                age_ns: (s.age_s() * SECOND_NS).round() as u64,
            };
            let bp = (hz.unwrap_or(0.0) / hz_per_bp).round();
            let region = RegionSnapshot {
                range: s.range,
                nr_accesses: (bp / BP) as u32,
                nr_accesses_bp: bp as u32,
                seen_bp: (seen * BP).ceil() as u16,
                resident: Some(there),
                ..RegionSnapshot::default()
            };
            (row, region)
        };
        // The accesses of the first moments, in which nobody knew yet whose memory it was, are few: that it would count twice is worse.
        let own = |segment: &Segment| {
            let parts = match self.options.by == Grouping::Target || is_object(segment.target) {
                true => vec![segment.range],
                false => self.space.without_objects(segment.target, segment.range),
            };
            let whole = segment.range.size().max(1) as f64;
            let part = |range: AddrRange| Segment {
                range,
                size: segment.size * range.size() as f64 / whole,
                ..*segment
            };
            parts.into_iter().map(part).collect::<Vec<_>>()
        };
        let found: Vec<(AccessRegion, RegionSnapshot)> =
            segments.iter().flat_map(own).map(|segment| row(&segment)).collect();
        let highest = found.iter().filter_map(|(row, _)| row.rate_hz).fold(0.0, f64::max);
        rows.ceilings(self.ceiling_hz.unwrap_or(highest));
        for (row, region) in found {
            rows.take(row, &region, (&self.space, &self.names));
        }
    }

    /// Sums over some rows. What several targets map is put together first; a target's own sums are those of its rows.
    fn totals(&mut self, adding: Adding) -> Totals {
        match adding.targets.len() {
            0 | 1 => adding.plain.finish(),
            _ => self.put_together(adding.sum, adding.targets),
        }
    }

    /// Sums over each group, and over all.
    fn totals_of(
        &mut self,
        groups: BTreeMap<u64, Adding>,
        ceiling_hz: f64,
    ) -> (HashMap<u64, Totals>, Totals) {
        let (mut all, mut targets, mut each) = (Sum::new(ceiling_hz), Vec::new(), HashMap::new());
        for (target, group) in groups {
            all.absorb(&group.sum);
            each.insert(target, group.plain.finish());
            targets.extend(group.targets);
        }
        match each.values().next().filter(|_| each.len() == 1).cloned() {
            Some(only) => (each, only),
            None => {
                let totals = self.put_together(all, targets);
                (each, totals)
            }
        }
    }

    /// Adds what several targets map once.
    fn put_together(&mut self, mut sum: Sum, targets: Vec<TargetSnapshot>) -> Totals {
        let scale = RateScale::of(&self.held);
        let whole = Snapshot { targets, ..self.held };
        self.space.by_object(&whole, |_| true, &mut self.mapped);
        for region in self.mapped.targets.iter().flat_map(|t| &t.regions) {
            let seen = f64::from(region.seen_bp) / BP;
            sum.add(region.range.size(), scale.hz(region), seen, region.resident);
        }
        sum.finish()
    }
}

/// The targets whose regions go into the report.
fn wanted(options: &AccessOptions) -> impl Fn(TargetId) -> bool {
    let ids = match options.by {
        Grouping::Object => options.pattern.targets.clone(),
        // Their regions are counted as hidden.
        Grouping::Target => Vec::new(),
    };
    move |id| ids.is_empty() || ids.contains(&id.0)
}

impl Accumulate for AccessAnalysis {
    fn snapshot(&mut self, snapshot: &Snapshot) {
        self.provenance.snapshot(snapshot);
        if self.options.selection == Selection::Last {
            let mut before = std::mem::take(&mut self.before);
            before.snapshot(snapshot, |due| self.take(due));
            self.before = before;
            return;
        }
        if !self.is_of_wanted(snapshot) {
            return;
        }
        match self.options.selection {
            Selection::Last => {}
            Selection::At(time) => {
                let same = self.snapshots > 0 && self.held.end_ns == snapshot.end_ns;
                if self.snapshots == 0 || same || interval_ns(snapshot).0 < self.absolute(time) {
                    self.hold(snapshot);
                }
            }
            Selection::Between(from, to) => self.add(snapshot, self.absolute(from), self.absolute(to)),
        }
    }

    fn note(&mut self, item: &Item) {
        self.provenance.note(item);
        let limit = match self.options.selection {
            Selection::Last => {
                let mut before = std::mem::take(&mut self.before);
                before.note(item, |due| self.take(due));
                self.before = before;
                return;
            }
            Selection::At(time) | Selection::Between(_, time) => self.absolute(time),
        };
        // The names of then, not of later.
        match item {
            Item::Mappings(m) if m.time_ns > limit && self.names.time_ns(TargetId(m.target)).is_some() => {}
            other => self.learn(other),
        }
    }
}

#[cfg(test)]
mod tests;

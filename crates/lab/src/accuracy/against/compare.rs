//! Passes of a reference beside snapshots of a recording, object by object.

use super::{Pass, Seen, SeenMapping};
use crate::accuracy::overlay::{Piece, overlay};
use crate::accuracy::second::accessed_within;
use isotherm_damon::{AddrRange, RegionSnapshot, Snapshot};
use isotherm_workloads::truth::{Arrivals, Coverage, Segment};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What reference and recording say of an object.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ObjectScore {
    /// File, shared segment, or kind of private memory.
    pub name: String,
    /// Bytes mapped, mean over the passes; what several processes map counts once.
    pub mapped: f64,
    /// Bytes accessed at least once in a pass by the reference, mean over the passes.
    pub scanned: f64,
    /// The same by the recording.
    pub recorded: f64,
    /// recorded / scanned; `None` when nothing was accessed.
    pub ratio: Option<f64>,
    /// Twice the bytes in common by those of both; `None` when neither has any.
    pub f1: Option<f64>,
    /// Accesses a second to each page, at most one a pass, by the reference: mean over the object.
    pub scanned_hz: f64,
    /// The same by the recording.
    pub recorded_hz: f64,
    /// Bytes of which the recording says that it does not know, mean over the passes; in none of the other figures.
    pub unknown: f64,
}

/// The whole comparison.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Against {
    /// Passes compared.
    pub passes: u64,
    /// Passes without a snapshot.
    pub without_snapshot: u64,
    /// Mean length of a pass, seconds.
    pub pass_seconds: f64,
    /// Processes seen in any pass.
    pub processes: usize,
    /// All objects together.
    pub total: ObjectScore,
    /// Each object, the most accessed first.
    pub objects: Vec<ObjectScore>,
}

#[derive(Clone, Debug, Default)]
struct Sums {
    mapped: f64,
    scanned: f64,
    recorded: f64,
    common: f64,
    unknown: f64,
}

impl Sums {
    fn add(&mut self, scanned: &Segment, recorded: &Segment) {
        let bytes = scanned.size() as f64;
        self.mapped += bytes;
        self.scanned += bytes * scanned.accessed;
        self.recorded += bytes * recorded.accessed;
        self.common += bytes * scanned.accessed.min(recorded.accessed);
    }

    fn merge(&mut self, other: &Self) {
        self.mapped += other.mapped;
        self.scanned += other.scanned;
        self.recorded += other.recorded;
        self.common += other.common;
        self.unknown += other.unknown;
    }

    fn score(&self, name: &str, passes: u64, pass_seconds: f64) -> ObjectScore {
        let ratio = |part: f64, all: f64| (all > 0.0).then(|| part / all);
        let mean = |sum: f64| sum / passes.max(1) as f64;
        let hz = |sum: f64| ratio(sum, self.mapped * pass_seconds).unwrap_or(0.0);
        ObjectScore {
            name: name.to_owned(),
            mapped: mean(self.mapped),
            scanned: mean(self.scanned),
            recorded: mean(self.recorded),
            ratio: ratio(self.recorded, self.scanned),
            f1: ratio(2.0 * self.common, self.scanned + self.recorded),
            scanned_hz: hz(self.scanned),
            recorded_hz: hz(self.recorded),
            unknown: mean(self.unknown),
        }
    }
}

/// Part of a mapping that was accessed, or was not.
struct Part {
    range: AddrRange,
    accessed: bool,
}

impl Piece for Part {
    fn start(&self) -> u64 {
        self.range.start
    }

    fn end(&self) -> u64 {
        self.range.end
    }
}

/// A file or shared segment: device, inode, and its name.
type Object = ((u32, u32), u64, Arc<str>);

/// A mapping's parts as both see them, cut alike.
#[derive(Default)]
struct Both {
    scanned: Coverage,
    recorded: Coverage,
}

/// Takes one pass after the other, each with the last snapshot of its time.
#[derive(Default)]
pub struct Comparison {
    sums: BTreeMap<Arc<str>, Sums>,
    passes: u64,
    without_snapshot: u64,
    pass_ns: u64,
    processes: std::collections::BTreeSet<u32>,
}

impl Comparison {
    /// Compares a pass with a snapshot. Without one it is only counted.
    pub fn add(&mut self, pass: &Pass, snapshot: Option<&Snapshot>) {
        let Some(snapshot) = snapshot.filter(|s| s.sample_ns > 0) else {
            self.without_snapshot += 1;
            return;
        };
        let length_ns = pass.end_ns.saturating_sub(pass.start_ns);
        self.passes += 1;
        self.pass_ns += length_ns;
        let mut objects = BTreeMap::new();
        for seen in &pass.processes {
            self.processes.insert(seen.pid);
            let target = snapshot.targets.iter().find(|t| t.id.0 == u64::from(seen.pid));
            let regions = target.map_or(&[][..], |t| &t.regions[..]);
            self.process(seen, regions, snapshot, length_ns, &mut objects);
        }
        for ((_, _, name), both) in objects {
            let sums = self.sums.entry(name).or_default();
            // Cut alike before, they are cut alike after.
            let (scanned, recorded) = (both.scanned.shared(), both.recorded.shared());
            scanned.iter().zip(&recorded).for_each(|(s, r)| sums.add(s, r));
        }
    }

    fn process(
        &mut self,
        seen: &Seen,
        regions: &[RegionSnapshot],
        snapshot: &Snapshot,
        length_ns: u64,
        objects: &mut BTreeMap<Object, Both>,
    ) {
        for mapping in &seen.mappings {
            let parts = parts(mapping, &seen.accessed);
            let mut private = Both::default();
            let both = match mapping.object {
                Some((device, inode, _)) => {
                    objects.entry((device, inode, Arc::clone(&mapping.name))).or_default()
                }
                None => &mut private,
            };
            // Each mapping is as a process of its own to the union of all that map an object.
            let pid = both.scanned.segments.last().map_or(0, |s| s.pid + 1);
            let shift = mapping.object.map_or(0, |(_, _, offset)| mapping.range.start.wrapping_sub(offset));
            let mut unknown = 0.0;
            overlay(&parts, regions, |part, region, range| {
                if region.is_some_and(RegionSnapshot::is_unknown) {
                    unknown += range.size() as f64;
                    return;
                }
                let accessed = if part.accessed { 1.0 } else { 0.0 };
                let (start, end) = (range.start.wrapping_sub(shift), range.end.wrapping_sub(shift));
                let (hz, arrivals) = (0.0, Arrivals::None);
                let scanned =
                    Segment { pid, start, end, hz, accessed, arrivals, moving: false, shared: true };
                let accessed = region.map_or(0.0, |r| accessed_within(r, length_ns, snapshot));
                both.scanned.segments.push(scanned);
                both.recorded.segments.push(Segment { accessed, ..scanned });
            });
            let sums = self.sums.entry(Arc::clone(&mapping.name)).or_default();
            sums.unknown += unknown;
            let alone = private.scanned.segments.iter().zip(&private.recorded.segments);
            alone.for_each(|(s, r)| sums.add(s, r));
        }
    }

    /// The verdict on all passes so far.
    pub fn finish(&self) -> Against {
        let pass_seconds = self.pass_ns as f64 / 1e9 / self.passes.max(1) as f64;
        let mut total = Sums::default();
        self.sums.values().for_each(|s| total.merge(s));
        let mut objects: Vec<_> =
            self.sums.iter().map(|(name, s)| s.score(name, self.passes, pass_seconds)).collect();
        let weight = |o: &ObjectScore| o.scanned.max(o.recorded);
        objects.sort_by(|a, b| weight(b).total_cmp(&weight(a)));
        Against {
            passes: self.passes,
            without_snapshot: self.without_snapshot,
            pass_seconds,
            processes: self.processes.len(),
            total: total.score("all", self.passes, pass_seconds),
            objects,
        }
    }
}

/// The parts of a mapping, accessed and not, in address order. `accessed` is sorted.
fn parts(mapping: &SeenMapping, accessed: &[AddrRange]) -> Vec<Part> {
    let first = accessed.partition_point(|a| a.end <= mapping.range.start);
    let inside = accessed.get(first..).unwrap_or_default().iter().take_while(|a| a.start < mapping.range.end);
    let mut at = mapping.range.start;
    let mut parts = Vec::new();
    for range in inside.map(|a| a.intersection(mapping.range)) {
        parts.push(Part { range: AddrRange::new(at, range.start), accessed: false });
        parts.push(Part { range, accessed: true });
        at = range.end;
    }
    parts.push(Part { range: AddrRange::new(at, mapping.range.end), accessed: false });
    parts.retain(|p| !p.range.is_empty());
    parts
}

#[cfg(test)]
mod tests;

//! The lines of a report on holdings.

use super::figures::{Density, Figures, Sums};
use super::layer::Segment;
use super::objects::{self, Scale, Share};
use super::stock::owned;
use super::{Held, Holdings};
use crate::names::{printable, short_name};
use crate::space::{Space, UNKNOWN_MAPPING};
use crate::units::SECOND_NS;
use isotherm_damon::{AddrRange, TargetId};
use isotherm_record::Mapping;
use serde::Serialize;
use std::collections::{BTreeMap, HashMap, HashSet};

/// Mappings kept of a target that ended: the largest, and [`OTHER_MAPPINGS`].
const KEPT_OF_ENDED: usize = 8;

/// What reports call the mappings of a process that ended beyond the largest, all of them together.
const OTHER_MAPPINGS: &str = "other mappings";

/// What the kernel writes behind the name of what has none any more.
const DELETED: &str = " (deleted)";

/// What a process holds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProcessHoldings {
    /// Target id.
    pub target: u64,
    /// Process id; 0 where the recording does not say.
    pub pid: u32,
    /// Name of the program; empty where the recording does not say.
    pub name: String,
    /// The time that the figures are of, ns: the end of its last snapshot.
    pub time_ns: u64,
    /// For how long it was observed until then without a gap, ns.
    pub observed_ns: u64,
    /// How it ended, when it ended before the last snapshot.
    pub ended: Option<String>,
    /// All that it maps.
    pub figures: Figures,
    /// Its mappings, where they were asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mappings: Vec<MappingHoldings>,
}

/// What a mapping of a process holds: all mappings of one file or name in it; or a run of anonymous ones.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MappingHoldings {
    /// Target id.
    pub target: u64,
    /// Its pid; 0 where the recording does not say.
    pub pid: u32,
    /// Name of its program; empty where the recording does not say.
    pub process: String,
    /// Short name: a file name, `[heap]`, `anon`; `unknown mapping` where none is known.
    pub name: String,
    /// Path, or `[heap]` and the like; empty for anonymous memory.
    pub path: String,
    /// First address.
    pub start: u64,
    /// Last address, and one.
    pub end: u64,
    /// Ranges of addresses without a gap that it consists of: of several, not all between `start` and `end` is its own.
    pub ranges: u64,
    /// For how long its process was observed, ns.
    pub observed_ns: u64,
    /// Whether it is a file or shared memory, which other processes may map too.
    pub shared: bool,
    /// Its figures.
    pub figures: Figures,
}

/// What is held by a file or shared memory, each byte once, with the accesses of all who map it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ObjectHoldings {
    /// Last component of its path.
    pub name: String,
    /// Its path.
    pub path: String,
    /// Device and inode, `MAJOR:MINOR:INODE`.
    pub id: String,
    /// How many of the targets map it; 0: those that did have ended.
    pub mappers: u64,
    /// Its figures.
    pub figures: Figures,
}

impl Holdings {
    /// Every process without its mappings, and those that ended last; by target.
    pub fn processes(&self) -> Vec<ProcessHoldings> {
        let running = self.held.keys().filter_map(|id| self.process(TargetId(*id), false));
        running
            .chain(self.gone.iter().map(|p| ProcessHoldings { mappings: Vec::new(), ..p.clone() }))
            .collect()
    }

    /// Every process with its mappings, by address; of those that ended the largest, and the others as one. They add up to the
    /// process. One after the other: there may be hundreds with thousands of mappings each.
    pub fn processes_with_mappings(&self) -> impl Iterator<Item = ProcessHoldings> {
        let with = |id: &u64| {
            let mut process = self.process(TargetId(*id), false)?;
            process.mappings = self.mappings(TargetId(*id));
            Some(process)
        };
        self.held.keys().filter_map(with).chain(self.gone.iter().cloned())
    }

    /// A process; `None` when it is not under observation.
    pub(super) fn process(&self, id: TargetId, at_its_end: bool) -> Option<ProcessHoldings> {
        let held = self.held.get(&id.0)?;
        let mut sums = Sums::default();
        held.densities(&self.scale, |segment, density| {
            sums.add(&density.sums(), segment.state.range.size() as f64)
        });
        let info = self.infos.get(&id.0);
        let mut mappings = Vec::new();
        if at_its_end {
            let mut rows = self.mapping_rows(id, held);
            rows.sort_by_key(|(m, _)| std::cmp::Reverse((m.figures.resident, m.figures.mapped)));
            let others = rows.split_off(rows.len().min(KEPT_OF_ENDED));
            mappings = rows.into_iter().map(|(row, _)| row).collect();
            mappings.extend(self.together(held, others));
        }
        Some(ProcessHoldings {
            target: id.0,
            pid: info.map_or(0, |i| i.pid),
            name: info.map_or_else(String::new, |i| printable(&i.comm).into_owned()),
            time_ns: (held.until * SECOND_NS).round() as u64,
            observed_ns: (held.observed_s() * SECOND_NS).round() as u64,
            ended: held.ended.clone().filter(|_| at_its_end),
            figures: sums.figures(held.observed_s(), &self.scale),
            mappings,
        })
    }

    /// The figures of a process, those of the same moment as its mappings; `None` when it is not under observation.
    pub fn figures(&self, id: TargetId) -> Option<Figures> {
        self.process(id, false).map(|process| process.figures)
    }

    /// The mappings of a process, by address.
    pub fn mappings(&self, id: TargetId) -> Vec<MappingHoldings> {
        let Some(held) = self.held.get(&id.0) else {
            let gone = self.gone.iter().rev().find(|p| p.target == id.0);
            return gone.map_or_else(Vec::new, |p| p.mappings.clone());
        };
        self.mapping_rows(id, held).into_iter().map(|(row, _)| row).collect()
    }

    /// Several mappings of a target as one; nothing where there are none.
    fn together(&self, held: &Held, rows: Vec<(MappingHoldings, Sums)>) -> Option<MappingHoldings> {
        let mut sums = Sums::default();
        rows.iter().for_each(|(_, of_row)| sums.add(of_row, 1.0));
        let one = rows.into_iter().map(|(row, _)| row).reduce(|one, row| MappingHoldings {
            start: one.start.min(row.start),
            end: one.end.max(row.end),
            ranges: one.ranges + row.ranges,
            shared: one.shared || row.shared,
            ..one
        })?;
        let figures = sums.figures(held.observed_s(), &self.scale);
        Some(MappingHoldings { name: OTHER_MAPPINGS.to_owned(), path: String::new(), figures, ..one })
    }

    /// The mappings of a target, by address, and their sums.
    fn mapping_rows(&self, id: TargetId, held: &Held) -> Vec<(MappingHoldings, Sums)> {
        let named = self.names.get(&id.0).map_or(&[][..], |maps| &**maps);
        let info = self.infos.get(&id.0);
        let mut rows: Vec<(MappingHoldings, Sums)> = Vec::new();
        let mut by_path: HashMap<&str, usize> = HashMap::new();
        // Of a run of anonymous memory, and of what no mapping is known of: the row, and where it ends.
        let mut run: Option<(usize, u64)> = None;
        held.densities(&self.scale, |segment, density| {
            let range = segment.state.range;
            cut(named, range, |piece, name| {
                let path = name.map_or("", |n| &*n.name);
                let shared = name.is_some_and(|n| n.object().is_some());
                let found = if path.is_empty() {
                    run.filter(|(row, end)| {
                        *end == piece.start && (rows[*row].0.name == UNKNOWN_MAPPING) == name.is_none()
                    })
                    .map(|(row, _)| row)
                } else {
                    by_path.get(path).copied()
                };
                let row = found.unwrap_or_else(|| {
                    let row = MappingHoldings {
                        target: id.0,
                        pid: info.map_or(0, |i| i.pid),
                        process: info.map_or_else(String::new, |i| printable(&i.comm).into_owned()),
                        name: name.map_or_else(|| UNKNOWN_MAPPING.to_owned(), |n| short_name(n).into_owned()),
                        path: printable(path).into_owned(),
                        start: piece.start,
                        end: piece.end,
                        ranges: 1,
                        observed_ns: (held.observed_s() * SECOND_NS).round() as u64,
                        shared: false,
                        figures: Figures::default(),
                    };
                    rows.push((row, Sums::default()));
                    rows.len() - 1
                });
                if path.is_empty() {
                    run = Some((row, piece.end));
                } else {
                    by_path.insert(path, row);
                }
                let (mapping, sums) = &mut rows[row];
                // They come by address.
                mapping.ranges += u64::from(piece.start > mapping.end);
                mapping.end = mapping.end.max(piece.end);
                mapping.shared |= shared;
                sums.add(&density.sums(), piece.size() as f64);
            });
        });
        let figures = |sums: &Sums| sums.figures(held.observed_s(), &self.scale);
        rows.iter_mut().for_each(|(row, sums)| row.figures = figures(sums));
        rows
    }

    /// Every file and shared memory, also files that only targets mapped that have ended.
    pub fn objects(&self) -> Vec<ObjectHoldings> {
        let mut shares = self.shares();
        let running: HashSet<usize> = shares.iter().map(|share| share.object).collect();
        // What has no name went with the last who mapped it.
        let outlives = |at| self.space.object_at(at).is_some_and(|object| !object.path().ends_with(DELETED));
        let nr_running = shares.len();
        self.past.shares(self.now, |at| running.contains(&at) || outlives(at), &mut shares);
        let mut mappers: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
        for share in &shares[..nr_running] {
            let list = mappers.entry(share.object).or_default();
            // Those of one target come one after the other.
            if list.last() != Some(&share.target) {
                list.push(share.target);
            }
        }
        let mut rows = Vec::new();
        objects::add_up(shares.iter(), &self.scale, |index, sums| {
            let Some(object) = self.space.object_at(index) else { return };
            let mappers = mappers.get(&index).map_or(&[][..], Vec::as_slice);
            let mut observed = longest(mappers.iter().filter_map(|target| self.held.get(target)));
            if let Some(from) = self.past.from().filter(|_| self.past.knows(index)) {
                observed = observed.max(self.now - from);
            }
            // Files that nobody maps any more and nobody used within a minute are many, and nobody's.
            if mappers.is_empty() && sums.ws[2] <= 0.0 {
                return;
            }
            rows.push(ObjectHoldings {
                name: object.name.clone(),
                path: object.path().to_owned(),
                id: object.id.to_string(),
                mappers: mappers.len() as u64,
                figures: sums.figures(observed, &self.scale),
            });
        });
        rows
    }

    /// What each process under observation has of its own, which no other can map.
    pub fn own_of_processes(&self) -> Vec<ProcessHoldings> {
        let own = |(id, held): (&u64, &Held)| {
            let process = self.process(TargetId(*id), false)?;
            let figures =
                held.own(TargetId(*id), &self.space, &self.scale).figures(held.observed_s(), &self.scale);
            Some(ProcessHoldings { figures, ..process })
        };
        self.held.iter().filter_map(own).collect()
    }

    /// All of it: what several targets map counts once; of a single one as its own line has it, in which what it maps twice counts
    /// twice. Of those that ended only what they did in objects that others map is part of it.
    pub fn totals(&self) -> Figures {
        let mut shares = self.shares();
        let running: HashSet<usize> = shares.iter().map(|share| share.object).collect();
        let nr_running = shares.len();
        self.past.shares(self.now, |object| running.contains(&object), &mut shares);
        if self.held.len() == 1
            && shares.len() == nr_running
            && let Some(only) = self.held.keys().next().and_then(|id| self.figures(TargetId(*id)))
        {
            return only;
        }
        let mut sums = Sums::default();
        let own = |(id, held): (&u64, &Held)| held.own(TargetId(*id), &self.space, &self.scale);
        self.held.iter().map(own).for_each(|own| sums.add(&own, 1.0));
        objects::add_up(shares.iter(), &self.scale, |_, object| sums.add(object, 1.0));
        sums.figures(self.observed_s(), &self.scale)
    }

    /// What a target that ended did in objects is kept.
    pub(super) fn inherit(&mut self, id: u64) {
        let Some(held) = self.held.get_mut(&id) else { return };
        held.layer.catch_up(held.until);
        let times = (held.first.min(held.layer.known_from), held.until);
        for segment in &held.layer.segments {
            self.space.owners(TargetId(id), segment.state.range, |range, object| {
                if let Some((object, start)) = object {
                    self.past.take(object, (start, range.size()), segment, times);
                }
            });
        }
    }

    /// For how long the one was observed that was observed longest, seconds. What began since then had no working set before.
    pub(super) fn observed_s(&self) -> f64 {
        longest(self.held.values())
    }

    /// What targets say of objects; those of a target one after the other.
    fn shares(&self) -> Vec<Share> {
        let mut shares = Vec::new();
        for (id, held) in &self.held {
            held.densities(&self.scale, |segment, density| {
                owned(TargetId(*id), &self.space, segment, &density, &mut shares);
            });
        }
        shares
    }
}

fn longest<'a>(held: impl Iterator<Item = &'a Held>) -> f64 {
    held.map(Held::observed_s).fold(0.0, f64::max)
}

impl Held {
    /// For how long it has been observed without a gap, seconds.
    pub(super) fn observed_s(&self) -> f64 {
        (self.until - self.first).max(0.0)
    }

    pub(super) fn densities(&self, scale: &Scale, mut each: impl FnMut(&Segment, Density)) {
        for segment in &self.layer.segments {
            each(segment, Density::of(segment, self.layer.until, self.layer.known_from, self.until, scale));
        }
    }

    /// What belongs to this target only.
    fn own(&self, id: TargetId, space: &Space, scale: &Scale) -> Sums {
        let (mut sums, mut shares) = (Sums::default(), Vec::new());
        self.densities(scale, |segment, density| {
            let own = owned(id, space, segment, &density, &mut shares);
            shares.clear();
            sums.add(&density.sums(), own);
        });
        sums
    }
}

/// Cuts `range` at the borders of mappings: sorted, disjoint.
fn cut<'a>(mappings: &'a [Mapping], range: AddrRange, mut piece: impl FnMut(AddrRange, Option<&'a Mapping>)) {
    let mut at = range.start;
    for mapping in &mappings[mappings.partition_point(|m| m.end <= range.start)..] {
        if mapping.start >= range.end {
            break;
        }
        if at < mapping.start {
            piece(AddrRange::new(at, mapping.start), None);
        }
        let inside = mapping.range().intersection(range);
        piece(inside, Some(mapping));
        at = inside.end;
    }
    if at < range.end {
        piece(AddrRange::new(at, range.end), None);
    }
}

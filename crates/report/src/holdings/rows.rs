//! The lines of a report on holdings.

use super::bounds::Span;
use super::figures::{Density, Figures, Sums};
use super::layer::Segment;
use super::objects::{self, OfObject, Scale, Share};
use super::past::Past;
use super::portions::{Given, Portions};
use super::stock::Owning;
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
    /// Its list of mappings was not read to its end: at least so much is mapped.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_partial: bool,
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
    /// How many of the targets map it; 0: those that did have ended, or have unmapped it.
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
        let sums = held.sums(&self.scale);
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
            is_partial: self.space.is_partial(id),
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
    fn together(&self, held: &Held, rows: Vec<(MappingHoldings, Given)>) -> Option<MappingHoldings> {
        let mut given = Given::default();
        rows.iter().for_each(|(_, of_row)| given.add(of_row));
        let one = rows.into_iter().map(|(row, _)| row).reduce(|one, row| MappingHoldings {
            start: one.start.min(row.start),
            end: one.end.max(row.end),
            ranges: one.ranges + row.ranges,
            shared: one.shared || row.shared,
            ..one
        })?;
        let figures = given.figures(held.observed_s(), &self.scale);
        Some(MappingHoldings { name: OTHER_MAPPINGS.to_owned(), path: String::new(), figures, ..one })
    }

    /// The mappings of a target, by address, and what they were given.
    fn mapping_rows<'a>(&'a self, id: TargetId, held: &Held) -> Vec<(MappingHoldings, Given)> {
        let named = self.names.get(&id.0).map_or(&[][..], |maps| &**maps);
        let info = self.infos.get(&id.0);
        let mut rows: Vec<(MappingHoldings, Given)> = Vec::new();
        let mut by_path: HashMap<&str, usize> = HashMap::new();
        // Of a run of anonymous memory, and of what no mapping is known of: the row, and where it ends.
        let mut run: Option<(usize, u64)> = None;
        let mut row_of =
            |piece: AddrRange, name: Option<&'a Mapping>, rows: &mut Vec<(MappingHoldings, Given)>| {
                let path = name.map_or("", |n| &*n.name);
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
                    rows.push((row, Given::default()));
                    rows.len() - 1
                });
                if path.is_empty() {
                    run = Some((row, piece.end));
                } else {
                    by_path.insert(path, row);
                }
                let mapping = &mut rows[row].0;
                // They come by address.
                mapping.ranges += u64::from(piece.start > mapping.end);
                mapping.end = mapping.end.max(piece.end);
                mapping.shared |= name.is_some_and(|n| n.object().is_some());
                row
            };
        let mut portions = Portions::default();
        held.regions(&self.scale, |region| {
            for (segment, density) in region {
                let sums = density.sums();
                cut(named, segment.state.range, |piece, name| {
                    let row = row_of(piece, name, &mut rows);
                    portions.add(row, &sums, piece.size() as f64, segment.state.strewn);
                });
            }
            portions.give(|row, given| rows[row].1.add(given));
        });
        let figures = |given: &Given| given.figures(held.observed_s(), &self.scale);
        rows.iter_mut().for_each(|(row, given)| row.figures = figures(given));
        rows
    }

    /// Every file and shared memory, also files that nobody maps any more and somebody used within a minute.
    pub fn objects(&self) -> Vec<ObjectHoldings> {
        let shares = self.shares();
        let running: HashSet<usize> = shares.iter().map(|share| share.object).collect();
        // What has no name went with the last who mapped it.
        let outlives = |at| self.space.object_at(at).is_some_and(|object| !object.path().ends_with(DELETED));
        let is_same = |object| self.space.is_same_for_all(object);
        let past =
            self.past.shares(self.now, |at| running.contains(&at) || outlives(at), shares.iter(), is_same);
        let mut mappers: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
        for share in &shares {
            let list = mappers.entry(share.object).or_default();
            // Those of one target come one after the other.
            if list.last() != Some(&share.target) {
                list.push(share.target);
            }
        }
        let mut rows = Vec::new();
        let shares: Vec<&Share> = shares.iter().chain(&past).collect();
        for (index, OfObject { sums, span, .. }) in objects::each(&shares, &self.scale, is_same) {
            let Some(object) = self.space.object_at(index) else { continue };
            let mappers = mappers.get(&index).map_or(&[][..], Vec::as_slice);
            let mut observed = longest(mappers.iter().filter_map(|target| self.held.get(target)));
            if let Some(from) = self.past.from().filter(|_| self.past.knows(index)) {
                observed = observed.max(self.now - from);
            }
            // Files that nobody maps any more and nobody used within a minute are many, and nobody's.
            if mappers.is_empty() && sums.ws[2] <= 0.0 {
                continue;
            }
            rows.push(ObjectHoldings {
                name: object.name.clone(),
                path: object.path().to_owned(),
                id: object.id.to_string(),
                mappers: mappers.len() as u64,
                figures: Figures {
                    bounds: span.and_then(|span| span.bounds(&sums)),
                    ..sums.figures(observed, &self.scale)
                },
            });
        }
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
    /// twice. Of those that ended only what they did in objects that others map is part of it. It has bounds where regions cover what is a
    /// process's own beside what others map too: how much of them counts once is not known.
    pub fn totals(&self) -> Figures {
        let shares = self.shares();
        let running: HashSet<usize> = shares.iter().map(|share| share.object).collect();
        let is_same = |object| self.space.is_same_for_all(object);
        let past = self.past.shares(self.now, |object| running.contains(&object), shares.iter(), is_same);
        if self.held.len() == 1
            && past.is_empty()
            && let Some(only) = self.held.keys().next().and_then(|id| self.figures(TargetId(*id)))
        {
            return only;
        }
        let mut owns = Vec::with_capacity(self.held.len());
        let mut total = Given::default();
        for (id, held) in &self.held {
            let own = held.own(TargetId(*id), &self.space, &self.scale);
            total.sums.add(&own.sums, 1.0);
            owns.push((own.span, held.sums(&self.scale)));
        }
        let shares: Vec<&Share> = shares.iter().chain(&past).collect();
        let objects = objects::each(&shares, &self.scale, is_same);
        let mut of_objects = Sums::default();
        objects.values().for_each(|object| of_objects.add(&object.sums, 1.0));
        total.sums.add(&of_objects, 1.0);
        total.span = Span::of_all(&total.sums, &owns, objects.values());
        total.figures(self.observed_s(), &self.scale)
    }

    /// What a target that ended did in objects is kept.
    pub(super) fn inherit(&mut self, id: u64) {
        let Self { held, space, past, scale, .. } = self;
        let Some(held) = held.get_mut(&id) else { return };
        let mut pieces = Vec::new();
        for segment in &held.layer.segments {
            space.owners(TargetId(id), segment.state.range, |range, object| {
                pieces.extend(object.map(|(object, start)| (range, object, start)));
            });
        }
        held.leave(id, &pieces, scale, past);
        past.end(id, |object| space.is_same_for_all(object));
    }

    /// For how long the one was observed that was observed longest, seconds. What began since then had no working set before.
    pub(super) fn observed_s(&self) -> f64 {
        longest(self.held.values())
    }

    /// What targets say of objects; those of a target one after the other.
    fn shares(&self) -> Vec<Share> {
        let (mut shares, mut owning) = (Vec::new(), Owning::default());
        for (id, held) in &self.held {
            held.regions(&self.scale, |region| {
                owning.cut(TargetId(*id), (&self.space, &self.scale), region, &mut shares);
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

    /// All that it maps.
    fn sums(&self, scale: &Scale) -> Sums {
        let mut sums = Sums::default();
        self.regions(scale, |region| {
            for (segment, density) in region {
                sums.add(&density.sums(), segment.state.range.size() as f64);
            }
        });
        sums
    }

    /// Calls `each` with the segments of each region, neighbours of which it says one thing.
    pub(super) fn regions<'a>(&'a self, scale: &Scale, mut each: impl FnMut(&[(&'a Segment, Density)])) {
        let mut region: Vec<(&Segment, Density)> = Vec::new();
        for segment in &self.layer.segments {
            if region.last().is_some_and(|(last, _)| last.state.whole != segment.state.whole) {
                each(&region);
                region.clear();
            }
            let density = Density::of(segment, self.layer.until, self.layer.known_from, self.until, scale);
            region.push((segment, density));
        }
        if !region.is_empty() {
            each(&region);
        }
    }

    /// What it did in objects that it leaves is kept: in these addresses, in order, which are those of the object from an offset on.
    pub(super) fn leave(
        &mut self,
        id: u64,
        pieces: &[(AddrRange, usize, u64)],
        scale: &Scale,
        past: &mut Past,
    ) {
        if pieces.is_empty() {
            return;
        }
        self.layer.catch_up(self.until);
        let times = (self.first.min(self.layer.known_from), self.until);
        self.regions(scale, |region| {
            // Which bytes of it are accessed is not known: what it did is spread over all of it.
            let strewn = region.iter().any(|(segment, _)| segment.state.strewn);
            let mut spread = None;
            for (segment, _) in region {
                let range = segment.state.range;
                let first = pieces.partition_point(|(piece, ..)| piece.end <= range.start);
                let here = pieces.get(first..).unwrap_or_default().iter();
                for (piece, object, start) in here.take_while(|(piece, ..)| piece.start < range.end) {
                    let of = match strewn {
                        true => &*spread.get_or_insert_with(|| {
                            Segment::spread(region.iter().map(|(segment, _)| *segment), times.1)
                        }),
                        false => *segment,
                    };
                    let inside = piece.intersection(range);
                    let start = start + (inside.start - piece.start);
                    past.take((*object, id), (start, inside.size()), of, times);
                }
            }
        });
    }

    /// What belongs to this target only.
    fn own(&self, id: TargetId, space: &Space, scale: &Scale) -> Given {
        let (mut own, mut shares, mut owning) = (Given::default(), Vec::new(), Owning::default());
        self.regions(scale, |region| {
            own.add(&owning.cut(id, (space, scale), region, &mut shares));
            shares.clear();
        });
        own
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

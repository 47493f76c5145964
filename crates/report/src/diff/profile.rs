//! One recording, as it is compared: what each stretch of memory did in each block of time.

use crate::Accumulate;
use crate::names::{printable, short_name};
use crate::provenance::Provenance;
use crate::rate::{BP, RateScale, interval_ns};
use crate::space::Space;
use crate::space::UNKNOWN_MAPPING;
use crate::units::SECOND_NS;
use isotherm_damon::{AddrRange, RegionSnapshot, Snapshot, TargetId};
use isotherm_record::{Item, Mappings};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Slots of time at most; when there are more, two become one.
const MAX_SLOTS: usize = 128;

/// Length of a slot at first, seconds.
const SLOT_S: f64 = 0.5;

/// Blocks are at least so long, seconds, where the recording is: rates look back for about a second, so what is further
/// apart is nearly independent, and what dependence is left widens the error. With blocks of 2 s a recording of 10 s had two
/// or three that could be used, and of two means nobody can tell how much they scatter: of 100 pairs of 10 s whose hot set
/// differed by a tenth 63 were found different, with blocks of 1 s 80, and the same 0 of 90 pairs of one program.
const BLOCK_S: f64 = 1.0;

/// Blocks with so much more unknown than the best one are left out, as a share of the working set. Less than the smallest
/// change that counts.
const MORE_UNKNOWN: f64 = 0.02;

/// Blocks at most.
const MAX_BLOCKS: usize = 16;

/// Areas kept apart at most; more are put together.
const MAX_AREAS: usize = 4096;

/// Anonymous memory below this size is put together, bytes.
const SMALL: u64 = 256 << 10;

/// What was seen of memory in a stretch of time: sums of bytes (or Hz x bytes) times seconds, or means.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Sums {
    pub ws: f64,
    pub heat: f64,
    pub seen: f64,
    pub unknown: f64,
}

impl Sums {
    pub fn add(&mut self, other: &Self) {
        self.ws += other.ws;
        self.heat += other.heat;
        self.seen += other.seen;
        self.unknown += other.unknown;
    }

    fn over(&self, seconds: f64) -> Self {
        let by = |x: f64| if seconds > 0.0 { x / seconds } else { 0.0 };
        Self { ws: by(self.ws), heat: by(self.heat), seen: by(self.seen), unknown: by(self.unknown) }
    }
}

/// Memory that is compared as one.
#[derive(Clone, Debug, Default)]
struct Area {
    /// `None`: a file or shared memory, which is no target's.
    target: Option<u64>,
    name: String,
    /// Anonymous, and where.
    anonymous: Option<AddrRange>,
    size: u64,
    slots: Vec<Sums>,
    /// It turned out to be part of another.
    part_of: Option<usize>,
}

/// Memory of a program that is compared as one.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct AreaProfile {
    /// Name of the program; empty for objects, and where there is one process only.
    pub program: String,
    /// Whether it is a file or shared memory, which several can map.
    pub object: bool,
    pub name: String,
    /// Whether it is told apart by size and order alone.
    pub anonymous: bool,
    /// Largest size, bytes.
    pub size: u64,
    /// Means, a block each.
    pub blocks: Vec<Sums>,
}

/// A recording, ready to be compared.
#[derive(Clone, Debug)]
pub(super) struct RunProfile {
    pub provenance: Provenance,
    /// Seconds of each block.
    pub blocks_s: Vec<f64>,
    /// Seconds left out at the start.
    pub settled_s: f64,
    /// By program and address.
    pub areas: Vec<AreaProfile>,
}

/// Collects a recording to be compared, in memory that does not grow with its length.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    targets: Vec<TargetId>,
    provenance: Provenance,
    space: Space,
    mapped: Snapshot,
    layouts: BTreeMap<u64, Vec<(AddrRange, usize)>>,
    areas: Vec<Area>,
    named: HashMap<(u64, String), usize>,
    /// The anonymous areas of each target that are no part of another, by start. No two of them touch.
    runs: HashMap<u64, BTreeMap<u64, usize>>,
    objects: HashMap<u64, usize>,
    programs: BTreeMap<u64, String>,
    seen_targets: BTreeSet<u64>,
    /// Seconds observed in each slot.
    seconds: Vec<f64>,
    slot_s: f64,
    start_s: Option<f64>,
    last_end: u64,
}

impl Profile {
    /// Of these targets; of all where the list is empty.
    pub fn new(targets: Vec<TargetId>) -> Self {
        Self { targets, slot_s: SLOT_S, ..Self::default() }
    }

    /// For a recording that was cut: in what way, a clause.
    pub fn set_truncated(&mut self, how: String) {
        self.provenance.truncated = Some(how);
    }

    /// Whether there is anything to compare.
    pub fn is_empty(&self) -> bool {
        self.seconds.is_empty()
    }

    fn take_mappings(&mut self, mappings: &Mappings) {
        let mut maps: Vec<_> = mappings.maps.iter().filter(|m| m.start < m.end).collect();
        maps.sort_by_key(|m| m.start);
        let mut layout: Vec<(AddrRange, usize)> = Vec::new();
        let mut sizes: HashMap<usize, u64> = HashMap::new();
        let mut run: Option<AddrRange> = None;
        let mut runs: Vec<AddrRange> = Vec::new();
        for map in maps {
            let floor = layout.last().map_or(0, |l| l.0.end).max(run.map_or(0, |r| r.end));
            let range = AddrRange::new(map.start.max(floor), map.end);
            if range.is_empty() {
                continue;
            }
            if map.name.is_empty() {
                match &mut run {
                    Some(last) if last.end == range.start => last.end = range.end,
                    _ => runs.extend(run.replace(range)),
                }
                continue;
            }
            let area = self.named(mappings.target, short_name(map).into_owned());
            *sizes.entry(area).or_default() += range.size();
            layout.push((range, area));
        }
        runs.extend(run);
        for range in runs {
            let area = self.anonymous(mappings.target, range);
            layout.push((range, area));
        }
        layout.sort_by_key(|(range, _)| range.start);
        for (area, size) in sizes {
            self.areas[area].size = self.areas[area].size.max(size);
        }
        self.layouts.insert(mappings.target, layout);
    }

    fn named(&mut self, target: u64, name: String) -> usize {
        if let Some(at) = self.named.get(&(target, name.clone())) {
            return *at;
        }
        let name = if self.areas.len() < MAX_AREAS { name } else { "others".to_owned() };
        if let Some(at) = self.named.get(&(target, name.clone())) {
            return *at;
        }
        self.areas.push(Area { target: Some(target), name: name.clone(), ..Area::default() });
        self.named.insert((target, name), self.areas.len() - 1);
        self.areas.len() - 1
    }

    /// The area of a run of anonymous memory: what overlaps it or touches it was the same before.
    fn anonymous(&mut self, target: u64, range: AddrRange) -> usize {
        let mut found: Option<usize> = None;
        let runs = self.runs.entry(target).or_default();
        // They do not touch each other, so what touches the range are the last that start in it or below.
        let near: Vec<(u64, usize)> = runs
            .range(..=range.end)
            .rev()
            .map(|(start, at)| (*start, *at))
            .take_while(|(_, at)| self.areas[*at].anonymous.is_some_and(|a| range.start <= a.end))
            .collect();
        for (start, _) in &near {
            runs.remove(start);
        }
        for (_, at) in near.into_iter().rev() {
            let Some(first) = found else {
                found = Some(at);
                continue;
            };
            let other = std::mem::take(&mut self.areas[at].slots);
            self.areas[at].part_of = Some(first);
            let hull = self.areas[at].anonymous;
            let area = &mut self.areas[first];
            area.size += hull.map_or(0, |h| h.size());
            area.slots.resize(area.slots.len().max(other.len()), Sums::default());
            area.slots.iter_mut().zip(&other).for_each(|(slot, more)| slot.add(more));
            if let (Some(mine), Some(hull)) = (&mut area.anonymous, hull) {
                *mine = AddrRange::new(mine.start.min(hull.start), mine.end.max(hull.end));
            }
        }
        let at = match found {
            Some(at) => at,
            None if self.areas.len() < MAX_AREAS => {
                let name = "anon".to_owned();
                self.areas.push(Area {
                    target: Some(target),
                    name,
                    anonymous: Some(range),
                    ..Area::default()
                });
                self.areas.len() - 1
            }
            None => return self.named(target, "anon, others".to_owned()),
        };
        let area = &mut self.areas[at];
        area.size = area.size.max(range.size());
        if let Some(mine) = &mut area.anonymous {
            *mine = AddrRange::new(mine.start.min(range.start), mine.end.max(range.end));
            self.runs.entry(target).or_default().insert(mine.start, at);
        }
        at
    }

    fn object(&mut self, id: TargetId) -> usize {
        if let Some(at) = self.objects.get(&id.0) {
            return *at;
        }
        let name = self.space.object(id).map_or_else(|| "?".to_owned(), |o| o.name.clone());
        self.areas.push(Area { target: None, name, ..Area::default() });
        self.objects.insert(id.0, self.areas.len() - 1);
        self.areas.len() - 1
    }

    fn slot(&mut self, at_s: f64) -> usize {
        let start = *self.start_s.get_or_insert(at_s);
        loop {
            let slot = ((at_s - start).max(0.0) / self.slot_s) as usize;
            if slot < MAX_SLOTS {
                return slot;
            }
            self.slot_s *= 2.0;
            self.seconds = self.seconds.chunks(2).map(|pair| pair.iter().sum()).collect();
            for area in &mut self.areas {
                let halved = area.slots.chunks(2).map(|pair| {
                    let mut sum = Sums::default();
                    pair.iter().for_each(|slot| sum.add(slot));
                    sum
                });
                area.slots = halved.collect();
            }
        }
    }

    fn take_snapshot(&mut self, snapshot: &Snapshot) {
        let wanted = |id| self.targets.is_empty() || self.targets.contains(&id);
        if !snapshot.targets.iter().any(|target| wanted(target.id)) {
            // A time without targets is no time in which they had a working set of nothing.
            return;
        }
        let (start, end) = interval_ns(snapshot);
        let seconds = (end - start) as f64 / SECOND_NS;
        let slot = self.slot(start as f64 / SECOND_NS);
        if self.seconds.len() <= slot {
            self.seconds.resize(slot + 1, 0.0);
        }
        // Recordings of other programs may hold a snapshot a target for one moment.
        if self.last_end != end {
            self.seconds[slot] += seconds;
        }
        self.last_end = end;
        let mut mapped = std::mem::take(&mut self.mapped);
        let targets = &self.targets;
        self.space.by_object(snapshot, |id| targets.is_empty() || targets.contains(&id), &mut mapped);
        let scale = RateScale::of(snapshot);
        let max_bp = f64::from(snapshot.max_nr_accesses) * BP;
        let samples = SECOND_NS / snapshot.sample_ns.max(1) as f64;
        let figures = |region: &RegionSnapshot| {
            let seen = f64::from(region.seen_bp) / BP;
            let there = region.resident.map_or(1.0, |b| b as f64 / region.range.size().max(1) as f64);
            let met = if snapshot.sample_ns > 0 && max_bp > 0.0 {
                1.0 - (1.0 - region.accesses_bp() as f64 / max_bp).max(0.0).powf(samples)
            } else {
                -(-scale.hz(region)).exp_m1()
            };
            let heat = seen * scale.hz(region);
            Sums { ws: seen * met, heat, seen, unknown: (1.0 - seen).min(there) }
        };
        for target in &mapped.targets {
            if crate::space::is_object(target.id) {
                let area = self.object(target.id);
                let end = target.regions.last().map_or(0, |r| r.range.end);
                let first = target.regions.first().map_or(end, |r| r.range.start);
                self.areas[area].size = self.areas[area].size.max(end - first);
                for region in &target.regions {
                    self.add(area, slot, &figures(region), region.range.size() as f64 * seconds);
                }
                continue;
            }
            self.seen_targets.insert(target.id.0);
            let layout = self.layouts.remove(&target.id.0).unwrap_or_default();
            for region in &target.regions {
                let each = figures(region);
                let mut at = region.range.start;
                let first = layout.partition_point(|(range, _)| range.end <= at);
                for (range, area) in &layout[first..] {
                    if range.start >= region.range.end {
                        break;
                    }
                    let inside = range.intersection(AddrRange::new(at, region.range.end));
                    if at < inside.start {
                        let rest = self.named(target.id.0, UNKNOWN_MAPPING.to_owned());
                        self.add(rest, slot, &each, (inside.start - at) as f64 * seconds);
                    }
                    self.add(*area, slot, &each, inside.size() as f64 * seconds);
                    at = inside.end;
                }
                if at < region.range.end {
                    let rest = self.named(target.id.0, UNKNOWN_MAPPING.to_owned());
                    self.add(rest, slot, &each, (region.range.end - at) as f64 * seconds);
                }
            }
            self.layouts.insert(target.id.0, layout);
        }
        self.mapped = mapped;
    }

    fn add(&mut self, mut area: usize, slot: usize, each: &Sums, by: f64) {
        while let Some(whole) = self.areas[area].part_of {
            // The way is halved each time it is gone.
            if let Some(next) = self.areas[whole].part_of {
                self.areas[area].part_of = Some(next);
            }
            area = whole;
        }
        let slots = &mut self.areas[area].slots;
        if slots.len() <= slot {
            slots.resize(slot + 1, Sums::default());
        }
        let sums =
            Sums { ws: each.ws * by, heat: each.heat * by, seen: each.seen * by, unknown: each.unknown * by };
        slots[slot].add(&sums);
    }

    /// The recording in blocks, without the first `settle_s` seconds of it, or the first fifth where it is short. Time in
    /// which no snapshot was taken is in no block: nothing is known of it, and it is as if it had not been.
    pub(super) fn finish(self, settle_s: f64) -> RunProfile {
        let Blocks { of_slot, seconds: blocks_s, settled_s } = Blocks::new(&self.seconds, settle_s);
        let nr = blocks_s.len();
        let mut pooled: BTreeMap<(String, u8, String, u64), AreaProfile> = BTreeMap::new();
        let alone = self.seen_targets.len() == 1;
        let mut of_program: HashMap<&str, usize> = HashMap::new();
        for target in &self.seen_targets {
            *of_program.entry(self.programs.get(target).map_or("", String::as_str)).or_default() += 1;
        }
        for area in self.areas.iter().filter(|a| a.part_of.is_none()) {
            let name = area.target.and_then(|t| self.programs.get(&t)).map_or("", String::as_str);
            // Of several processes of one program nobody knows which is which.
            let one = of_program.get(name) == Some(&1);
            let program = if area.target.is_none() || alone { String::new() } else { name.to_owned() };
            let place = area.anonymous.filter(|_| one && area.size >= SMALL).map(|a| a.start);
            let rank = u8::from(area.target.is_some());
            let key = (program.clone(), rank, area.name.clone(), place.unwrap_or(0));
            let profile = pooled.entry(key).or_insert_with(|| AreaProfile {
                program,
                object: area.target.is_none(),
                name: match (area.anonymous, one && area.size < SMALL) {
                    (Some(_), true) => "anon, small".to_owned(),
                    _ => area.name.clone(),
                },
                anonymous: place.is_some(),
                size: 0,
                blocks: vec![Sums::default(); nr],
            });
            profile.size += area.size;
            for (sums, block) in area.slots.iter().zip(&of_slot) {
                if let Some(block) = block {
                    profile.blocks[*block].add(sums);
                }
            }
        }
        let mut areas: Vec<AreaProfile> = pooled.into_values().collect();
        for area in &mut areas {
            for (sums, seconds) in area.blocks.iter_mut().zip(&blocks_s) {
                *sums = sums.over(*seconds);
            }
        }
        let mut run = RunProfile { provenance: self.provenance, blocks_s, settled_s, areas };
        run.keep_what_is_known();
        run
    }
}

/// How slots of time are put together, so that each block has about as much time with snapshots.
struct Blocks {
    /// The block of each slot; `None`: it is left out.
    of_slot: Vec<Option<usize>>,
    /// Seconds with snapshots in each block: none is without.
    seconds: Vec<f64>,
    /// Seconds with snapshots left out at the start.
    settled_s: f64,
}

impl Blocks {
    /// Of slots with so many `seconds` each, the first `settle_s` of them left out: in whole slots, at most a fifth of all
    /// (rounded up), and never the last slot.
    fn new(seconds: &[f64], settle_s: f64) -> Self {
        let all: f64 = seconds.iter().sum();
        let settle_s = settle_s.min(all / 5.0);
        let last = seconds.iter().rposition(|s| *s > 0.0).unwrap_or(0);
        let (mut first, mut settled_s) = (0, 0.0);
        // Sums of many snapshots may miss a whole second by rounding.
        while first < last && settled_s + 1e-6 < settle_s {
            settled_s += seconds[first];
            first += 1;
        }
        let left = all - settled_s;
        let most = ((left / BLOCK_S + 1e-6) as usize).clamp(1, MAX_BLOCKS);
        let mut blocks = Self { of_slot: vec![None; first], seconds: Vec::new(), settled_s };
        let (mut passed, mut reached) = (0.0, None);
        for slot in seconds.iter().skip(first) {
            if *slot <= 0.0 {
                blocks.of_slot.push(None);
                continue;
            }
            // By its middle, so that rounding does not decide.
            let at = (((passed + slot / 2.0) / left * most as f64) as usize).min(most - 1);
            passed += slot;
            // A slot longer than a block has one of its own; those that it reaches over are none.
            if reached.replace(at) != Some(at) {
                blocks.seconds.push(0.0);
            }
            let block = blocks.seconds.len() - 1;
            blocks.seconds[block] += slot;
            blocks.of_slot.push(Some(block));
        }
        if blocks.seconds.is_empty() {
            blocks.seconds.push(0.0);
        }
        blocks
    }
}

impl RunProfile {
    /// Leaves out blocks in which more was unknown than at other times, at most half of them: what a monitor that came late
    /// lost sight of is not what the program stopped using.
    fn keep_what_is_known(&mut self) {
        let unknown: Vec<f64> = (0..self.blocks_s.len())
            .map(|block| self.areas.iter().map(|area| area.blocks[block].unknown).sum())
            .collect();
        let used = self.areas.iter().flat_map(|area| &area.blocks).map(|block| block.ws).sum::<f64>();
        let mut sorted = unknown.clone();
        sorted.sort_by(f64::total_cmp);
        let (Some(least), Some(median)) = (sorted.first(), sorted.get(sorted.len() / 2)) else { return };
        let most = median.max(least + MORE_UNKNOWN * used / self.blocks_s.len() as f64);
        let kept = |block: &usize| unknown[*block] <= most;
        let choose = |from: &[Sums]| (0..from.len()).filter(kept).map(|at| from[at]).collect::<Vec<Sums>>();
        for area in &mut self.areas {
            area.blocks = choose(&area.blocks);
        }
        self.blocks_s = (0..unknown.len()).filter(kept).map(|at| self.blocks_s[at]).collect();
    }
}

impl Accumulate for Profile {
    fn snapshot(&mut self, snapshot: &Snapshot) {
        self.provenance.snapshot(snapshot);
        self.take_snapshot(snapshot);
    }

    fn note(&mut self, item: &Item) {
        self.provenance.note(item);
        self.space.note(item);
        match item {
            Item::Target(info) => {
                self.programs.insert(info.id, printable(&info.comm).into_owned());
            }
            Item::Mappings(mappings) => self.take_mappings(mappings),
            _ => {}
        }
    }
}

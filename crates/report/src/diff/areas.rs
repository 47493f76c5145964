//! What is kept apart of a recording, and what targets that ended add up to.
//!
//! A machine may start a million processes a day. Of those that ended what counts is their program: where several ran it
//! nobody knows which is which, and their memory is compared by name. So what a target held is added up under the names
//! of its program's memory some time after it ended, and its areas are free for others. Of the first process of a program the areas
//! stay apart: there may be no second.

use super::motion::{BySlot, Places, Turn};
use super::profile::Sums;
use crate::names::short_name;
use crate::space::UNKNOWN_MAPPING;
use isotherm_damon::AddrRange;
use isotherm_record::Mappings;
use std::collections::{BTreeMap, HashMap};

/// Areas of targets kept apart at most, objects, and areas of targets that ended; more are put together.
pub(super) const MAX_AREAS: usize = 4096;

/// Programs of which processes ended that are kept apart at most. A guess: more than a machine runs, but for those that are
/// made up.
pub(super) const MAX_PROGRAMS: usize = 1024;

/// Names of a program whose processes ended that are kept apart at most, so that one does not take the room of all others.
const MAX_NAMES: usize = 256;

/// What is called so that is more than is kept apart.
pub(super) const OTHERS: &str = "others";

/// Memory that is compared as one.
#[derive(Clone, Debug, Default)]
pub(super) struct Area {
    pub name: String,
    /// Anonymous, and where.
    pub anonymous: Option<AddrRange>,
    pub size: u64,
    pub slots: Vec<Sums>,
    places: Places,
    /// What moved within it.
    pub motion: BySlot,
    /// It turned out to be part of another.
    part_of: Option<usize>,
}

impl Area {
    pub fn called(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }

    fn add(&mut self, slot: usize, sums: &Sums) {
        if self.slots.len() <= slot {
            self.slots.resize(slot + 1, Sums::default());
        }
        self.slots[slot].add(sums);
    }
}

/// The areas of all targets, and of objects.
#[derive(Clone, Debug, Default)]
pub(super) struct Areas {
    list: Vec<Area>,
    /// Of those, the ones that nobody uses.
    free: Vec<usize>,
    /// How many belong to targets that are known.
    of_targets: usize,
}

impl Areas {
    /// How many are in use.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.list.len() - self.free.len()
    }

    /// Whether a target may have another one.
    fn have_room(&self) -> bool {
        self.of_targets < MAX_AREAS
    }

    pub fn add(&mut self, area: Area) -> usize {
        match self.free.pop() {
            Some(at) => {
                self.list[at] = area;
                at
            }
            None => {
                self.list.push(area);
                self.list.len() - 1
            }
        }
    }

    /// One that is no part of another.
    pub fn get(&self, at: usize) -> Option<&Area> {
        self.list.get(at).filter(|area| area.part_of.is_none())
    }

    /// It has at least this size.
    pub fn reaches(&mut self, at: usize, size: u64) {
        self.list[at].size = self.list[at].size.max(size);
    }

    /// Adds to a slot what each byte of `range` says, for so many seconds.
    pub fn add_to(&mut self, at: usize, slot: usize, each: &Sums, (range, seconds): (AddrRange, f64)) {
        let at = self.whole_of(at);
        let sums = each.times(range.size() as f64 * seconds);
        self.list[at].places.add(range, sums.ws);
        self.list[at].add(slot, &sums);
    }

    /// Ends a stretch of so many seconds: what is not where it was, of each area. What moved within one is told to a slot, if there is one.
    pub fn end_stretch(&mut self, seconds: f64, slot: Option<usize>) -> Vec<Turn> {
        let end = |area: &mut Area| {
            let turn = area.places.turn(seconds);
            if let Some(slot) = slot.filter(|_| turn.compared > 0.0) {
                area.motion.add(slot, turn.moved(seconds));
            }
            turn
        };
        self.list.iter_mut().map(end).collect()
    }

    /// Where anything lies is not wanted any more.
    pub fn close(&mut self) {
        self.list.iter_mut().for_each(|area| area.places = Places::default());
    }

    /// What comes next is not compared with what was.
    pub fn forget_places(&mut self) {
        self.list.iter_mut().for_each(|area| area.places.forget());
    }

    /// The area that this one is part of, or itself.
    fn whole_of(&mut self, mut at: usize) -> usize {
        while let Some(whole) = self.list[at].part_of {
            // The way is halved each time it is gone.
            if let Some(next) = self.list[whole].part_of {
                self.list[at].part_of = Some(next);
            }
            at = whole;
        }
        at
    }

    /// All of it.
    pub fn sums(&self) -> Sums {
        let mut sums = Sums::default();
        self.list.iter().flat_map(|area| &area.slots).for_each(|slot| sums.add(slot));
        sums
    }

    /// Two slots become one, everywhere.
    pub fn halve(&mut self) {
        for area in &mut self.list {
            let halved = area.slots.chunks(2).map(|pair| {
                let mut sum = Sums::default();
                pair.iter().for_each(|slot| sum.add(slot));
                sum
            });
            area.slots = halved.collect();
            area.motion.halve();
        }
    }

    /// What `from` holds belongs to `to`, its size too.
    fn merge(&mut self, from: usize, to: usize) {
        let merged = &mut self.list[from];
        let (slots, places) = (std::mem::take(&mut merged.slots), std::mem::take(&mut merged.places));
        let (motion, size) = (std::mem::take(&mut merged.motion), merged.size);
        let area = &mut self.list[to];
        area.size += size;
        area.places.merge(&places);
        area.motion.merge(&motion);
        area.slots.resize(area.slots.len().max(slots.len()), Sums::default());
        area.slots.iter_mut().zip(&slots).for_each(|(slot, more)| slot.add(more));
    }

    fn release(&mut self, at: usize) {
        self.list[at] = Area::default();
        self.free.push(at);
    }
}

/// A target.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    /// Name of its program.
    pub program: String,
    /// Whether it was in a snapshot.
    pub seen: bool,
    layout: Vec<(AddrRange, usize)>,
    /// Where in it the last part that was shared out began: they come in order of their addresses.
    near: usize,
    named: HashMap<String, usize>,
    /// Its anonymous areas that are no part of another, by start. No two of them touch.
    runs: BTreeMap<u64, usize>,
    /// All of its areas.
    areas: Vec<usize>,
}

impl Known {
    /// Its areas, with the name of its program.
    pub fn areas(&self) -> impl Iterator<Item = (&str, usize)> {
        self.areas.iter().map(|at| (&*self.program, *at))
    }

    /// Nothing will be shared out any more.
    pub fn close(&mut self) {
        (self.layout, self.named, self.runs) = (Vec::new(), HashMap::new(), BTreeMap::new());
    }

    pub fn take_mappings(&mut self, mappings: &Mappings, areas: &mut Areas) {
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
            let area = self.named(&short_name(map), areas);
            *sizes.entry(area).or_default() += range.size();
            layout.push((range, area));
        }
        runs.extend(run);
        for range in runs {
            let area = self.anonymous(range, areas);
            layout.push((range, area));
        }
        layout.sort_by_key(|(range, _)| range.start);
        for (area, size) in sizes {
            areas.reaches(area, size);
        }
        (self.layout, self.near) = (layout, 0);
    }

    /// Calls `part(areas, area, inside)` for what of `range` lies in each area.
    pub fn share_out(
        &mut self,
        range: AddrRange,
        areas: &mut Areas,
        mut part: impl FnMut(&mut Areas, usize, AddrRange),
    ) {
        let layout = std::mem::take(&mut self.layout);
        let mut at = range.start;
        let ends_before = |(mapped, _): &(AddrRange, usize)| mapped.end <= at;
        if self.near.checked_sub(1).and_then(|near| layout.get(near)).is_some_and(|last| !ends_before(last)) {
            self.near = 0;
        }
        let rest = layout.get(self.near..).unwrap_or_default();
        let first = self.near
            + match rest.iter().take(8).position(|part| !ends_before(part)) {
                Some(steps) => steps,
                None => rest.partition_point(ends_before),
            };
        self.near = first;
        for (mapped, area) in &layout[first..] {
            if mapped.start >= range.end {
                break;
            }
            let inside = mapped.intersection(AddrRange::new(at, range.end));
            if at < inside.start {
                let rest = self.named(UNKNOWN_MAPPING, areas);
                part(areas, rest, AddrRange::new(at, inside.start));
            }
            part(areas, *area, inside);
            at = inside.end;
        }
        if at < range.end {
            let rest = self.named(UNKNOWN_MAPPING, areas);
            part(areas, rest, AddrRange::new(at, range.end));
        }
        self.layout = layout;
    }

    fn named(&mut self, name: &str, areas: &mut Areas) -> usize {
        let name = if self.named.contains_key(name) || areas.have_room() { name } else { OTHERS };
        if let Some(at) = self.named.get(name) {
            return *at;
        }
        let at = self.add(Area::called(name), areas);
        self.named.insert(name.to_owned(), at);
        at
    }

    fn add(&mut self, area: Area, areas: &mut Areas) -> usize {
        let at = areas.add(area);
        areas.of_targets += 1;
        self.areas.push(at);
        at
    }

    /// The area of a run of anonymous memory: what overlaps it or touches it was the same before.
    fn anonymous(&mut self, range: AddrRange, areas: &mut Areas) -> usize {
        // They do not touch each other, so what touches the range are the last that start in it or below.
        let near: Vec<(u64, usize)> = self
            .runs
            .range(..=range.end)
            .rev()
            .map(|(start, at)| (*start, *at))
            .take_while(|(_, at)| areas.list[*at].anonymous.is_some_and(|a| range.start <= a.end))
            .collect();
        let mut found: Option<usize> = None;
        for (start, at) in near.into_iter().rev() {
            self.runs.remove(&start);
            let Some(first) = found else {
                found = Some(at);
                continue;
            };
            let hull = areas.list[at].anonymous;
            areas.list[at].size = hull.map_or(0, |h| h.size());
            areas.merge(at, first);
            areas.list[at].part_of = Some(first);
            if let (Some(mine), Some(hull)) = (&mut areas.list[first].anonymous, hull) {
                *mine = AddrRange::new(mine.start.min(hull.start), mine.end.max(hull.end));
            }
        }
        let at = match found {
            Some(at) => at,
            None if areas.have_room() => {
                self.add(Area { anonymous: Some(range), ..Area::called("anon") }, areas)
            }
            None => return self.named("anon, others", areas),
        };
        let area = &mut areas.list[at];
        area.size = area.size.max(range.size());
        if let Some(mine) = &mut area.anonymous {
            *mine = AddrRange::new(mine.start.min(range.start), mine.end.max(range.end));
            self.runs.insert(mine.start, at);
        }
        at
    }
}

/// What targets that ended add up to.
#[derive(Clone, Debug, Default)]
pub(super) struct Closed {
    programs: BTreeMap<String, Program>,
    /// How many areas that takes.
    nr_areas: usize,
}

#[derive(Clone, Debug, Default)]
struct Program {
    processes: u64,
    /// Areas of the only one.
    apart: Vec<usize>,
    /// Of several, by name.
    together: BTreeMap<String, usize>,
}

impl Closed {
    /// Takes a target that ended.
    pub fn add(&mut self, known: Known, areas: &mut Areas) {
        areas.of_targets -= known.areas.len();
        let whole = |at: &usize| areas.get(*at).is_some() && known.seen;
        let (roots, rest): (Vec<usize>, Vec<usize>) = known.areas.iter().partition(|at| whole(at));
        rest.into_iter().for_each(|at| areas.release(at));
        if !known.seen {
            return;
        }
        // Half of the room is for names of programs that several processes ran.
        let is_kept = self.programs.contains_key(&known.program)
            || self.programs.len() < MAX_PROGRAMS && self.nr_areas + roots.len() <= MAX_AREAS / 2;
        let name = if is_kept { known.program } else { OTHERS.to_owned() };
        let program = self.programs.entry(name).or_default();
        // Of those that are called others nobody knows either which is which.
        program.processes += if is_kept { 1 } else { 2 };
        if program.processes == 1 {
            self.nr_areas += roots.len();
            program.apart = roots;
            return;
        }
        self.nr_areas -= program.apart.len() + program.together.len();
        for at in std::mem::take(&mut program.apart).into_iter().chain(roots) {
            let room =
                program.together.len() < MAX_NAMES && self.nr_areas + program.together.len() < MAX_AREAS;
            program.put_together(at, room, areas);
        }
        self.nr_areas += program.together.len();
    }

    /// How many programs are kept apart.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.programs.len()
    }

    /// How many processes of each program ended.
    pub fn processes(&self) -> HashMap<&str, u64> {
        self.programs.iter().map(|(name, program)| (&**name, program.processes)).collect()
    }

    /// Their areas, with the name of the program.
    pub fn areas(&self) -> impl Iterator<Item = (&str, usize)> {
        let of = |(name, program)| {
            let Program { apart, together, .. }: &Program = program;
            let name: &String = name;
            apart.iter().chain(together.values()).map(move |at| (&**name, *at))
        };
        self.programs.iter().flat_map(of)
    }
}

impl Program {
    /// Adds an area to what is called so, or to the others where there is no `room` for another name.
    fn put_together(&mut self, at: usize, room: bool, areas: &mut Areas) {
        let area = &mut areas.list[at];
        area.anonymous = None;
        if !room && !self.together.contains_key(&area.name) {
            OTHERS.clone_into(&mut area.name);
        }
        match self.together.get(&area.name) {
            Some(to) => {
                areas.merge(at, *to);
                areas.release(at);
            }
            None => {
                self.together.insert(area.name.clone(), at);
            }
        }
    }
}

//! One recording, as it is compared: what each stretch of memory did in each block of time.

use super::areas::{Area, Areas, Closed, Known, MAX_AREAS, MAX_PROGRAMS, OTHERS};
use super::motion::{BySlot, STRETCH_S, Stretch, Turn};
use super::run::{AreaProfile, Blocks, Motion, RunProfile};
use crate::Accumulate;
use crate::names::printable;
use crate::provenance::{Provenance, Reading};
use crate::rate::{BP, RateScale, interval_ns, share_accessed, share_accessed_by_rate, share_in_use};
use crate::space::{Space, accessible_of, unknown_beside};
use crate::units::SECOND_NS;
use isotherm_damon::{RegionSnapshot, Snapshot, TargetId};
use isotherm_record::{Cost, Item, Mappings, ObjectId};
use std::collections::{BTreeMap, HashMap, VecDeque};

/// Slots of time at most; when there are more, two become one.
const MAX_SLOTS: usize = 128;

/// Length of a slot at first, seconds.
const SLOT_S: f64 = 0.5;

/// Targets that ended and are still kept apart.
const MAX_ENDED: usize = 256;

/// Anonymous memory below this size is put together, bytes.
const SMALL: u64 = 256 << 10;

/// What was seen of memory in a stretch of time: sums of bytes (or Hz x bytes) times seconds, or means.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Sums {
    pub ws: f64,
    /// How much `ws` moves with the speed of the program: its derivative by the logarithm of all rates, about.
    pub slope: f64,
    pub heat: f64,
    pub seen: f64,
    pub unknown: f64,
}

impl Sums {
    pub fn add(&mut self, other: &Self) {
        self.ws += other.ws;
        self.slope += other.slope;
        self.heat += other.heat;
        self.seen += other.seen;
        self.unknown += other.unknown;
    }

    fn over(&self, seconds: f64) -> Self {
        self.times(if seconds > 0.0 { 1.0 / seconds } else { 0.0 })
    }

    /// All of it, so many times.
    pub fn times(&self, by: f64) -> Self {
        Self {
            ws: self.ws * by,
            slope: self.slope * by,
            heat: self.heat * by,
            seen: self.seen * by,
            unknown: self.unknown * by,
        }
    }
}

/// Collects a recording to be compared, in memory that does not grow with its length, nor with targets that ended.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    targets: Vec<TargetId>,
    provenance: Provenance,
    space: Space,
    mapped: Snapshot,
    /// What there is of objects, to use again.
    shared: Vec<(TargetId, RegionSnapshot, f64)>,
    areas: Areas,
    known: BTreeMap<u64, Known>,
    /// Those that ended, the oldest first: one that leaves a control group may come back.
    ended: VecDeque<u64>,
    closed: Closed,
    /// Of those that ended, so many are kept apart.
    remembered: usize,
    objects: HashMap<ObjectId, usize>,
    /// What is known of the objects beyond the most that are kept apart.
    other_objects: Option<usize>,
    /// Objects when those that nobody maps any more were forgotten the last time.
    objects_left: usize,
    /// Seconds observed in each slot.
    seconds: Vec<f64>,
    /// Sampling intervals missed in each slot, as far as it is known when that was.
    missed: Vec<f64>,
    slot_s: f64,
    stretch: Stretch,
    /// The longest so far, seconds.
    longest_stretch_s: f64,
    /// What of all memory moved, and of each program's own.
    moved: BySlot,
    moved_of: HashMap<String, BySlot>,
    start_s: Option<f64>,
    last_end: u64,
}

impl Profile {
    /// Of these targets; of all where the list is empty.
    pub fn new(targets: Vec<TargetId>) -> Self {
        Self { targets, slot_s: SLOT_S, remembered: MAX_ENDED, ..Self::default() }
    }

    /// Another number of targets that ended is kept apart.
    #[cfg(test)]
    pub(super) fn remembering(self, remembered: usize) -> Self {
        Self { remembered, ..self }
    }

    /// What takes memory: areas, targets, programs of those that ended, objects.
    #[cfg(test)]
    pub(super) fn held(&self) -> [usize; 4] {
        let objects = self.objects.len().max(self.space.nr_objects());
        [self.areas.len(), self.known.len(), self.closed.len(), objects]
    }

    /// Has reports say what became of reading the recording.
    pub fn set_reading(&mut self, reading: Reading) {
        self.provenance.set_reading(reading);
    }

    /// Gives back what only reading takes. No more items may follow: of several recordings all are kept until they are compared.
    pub fn close(&mut self) {
        self.end_stretch();
        self.stretch = Stretch::default();
        self.areas.close();
        (self.space, self.mapped, self.shared) = (Space::default(), Snapshot::default(), Vec::new());
        self.known.values_mut().for_each(Known::close);
    }

    /// Whether both are of one recording, as far as it can be told: a copy, or the same in another format. Taken for two it would
    /// seem to show that recordings of the program hardly scatter.
    pub fn is_same(&self, other: &Self) -> bool {
        let when = |p: &Provenance| (p.first_ns, p.last_ns, p.snapshots, p.regions);
        when(&self.provenance) == when(&other.provenance)
            && self.seconds == other.seconds
            && self.areas.sums() == other.areas.sums()
    }

    /// Whether there is anything to compare.
    pub fn is_empty(&self) -> bool {
        self.seconds.is_empty()
    }

    fn take_mappings(&mut self, mappings: &Mappings) {
        self.ended.retain(|id| *id != mappings.target);
        let known = self.known.entry(mappings.target).or_default();
        known.take_mappings(mappings, &mut self.areas);
        self.space.forget_unmapped(&mut self.objects_left);
    }

    /// A target has ended: of those that did so long ago only what they add up to is kept.
    fn end(&mut self, target: u64) {
        if !self.known.contains_key(&target) || self.ended.contains(&target) {
            return;
        }
        self.ended.push_back(target);
        if self.ended.len() > self.remembered
            && let Some(known) = self.ended.pop_front().and_then(|oldest| self.known.remove(&oldest))
        {
            self.closed.add(known, &mut self.areas);
        }
    }

    fn object(&mut self, id: TargetId) -> usize {
        let object = self.space.object(id);
        if let Some(at) = object.and_then(|o| self.objects.get(&o.id)).or(self.other_objects.as_ref()) {
            return *at;
        }
        let Some(object) = object.filter(|_| self.objects.len() < MAX_AREAS) else {
            let at = self.areas.add(Area::called(OTHERS));
            self.other_objects = Some(at);
            return at;
        };
        let at = self.areas.add(Area::called(&object.name));
        self.objects.insert(object.id, at);
        at
    }

    fn slot(&mut self, at_s: f64) -> usize {
        let start = *self.start_s.get_or_insert(at_s);
        loop {
            let slot = ((at_s - start).max(0.0) / self.slot_s) as usize;
            if slot < MAX_SLOTS {
                return slot;
            }
            self.slot_s *= 2.0;
            for list in [&mut self.seconds, &mut self.missed] {
                *list = list.chunks(2).map(|pair| pair.iter().sum()).collect();
            }
            self.areas.halve();
            self.moved.halve();
            self.moved_of.values_mut().for_each(BySlot::halve);
            self.stretch.halve();
        }
    }

    /// A snapshot of so many seconds begins in `slot`, at `start`: the stretch before ends where it is long enough.
    fn pass(&mut self, slot: usize, start: u64, seconds: f64) {
        let gap_s = start.saturating_sub(self.last_end) as f64 / SECOND_NS;
        let follows = gap_s < STRETCH_S;
        if self.stretch.seconds >= STRETCH_S || !follows {
            self.end_stretch();
            self.stretch = self.stretch.next(slot, follows);
            if self.stretch.before.is_none() {
                self.areas.forget_places();
            }
        }
        self.stretch.seconds += seconds;
        self.longest_stretch_s = self.longest_stretch_s.max(self.stretch.seconds);
    }

    fn end_stretch(&mut self) {
        let seconds = self.stretch.seconds;
        let slot = self.stretch.before.filter(|_| self.stretch.is_enough());
        let turns = self.areas.end_stretch(seconds, slot);
        let Some(slot) = slot else { return };
        // What goes from one area to another has moved as well.
        let mut all = Turn::default();
        turns.iter().for_each(|turn| all.add(*turn));
        self.moved.add(slot, all.moved(seconds));
        let mut of_programs: HashMap<&str, Turn> = HashMap::new();
        for (name, at) in self.known.values().flat_map(Known::areas).chain(self.closed.areas()) {
            of_programs.entry(name).or_default().add(turns[at]);
        }
        for (name, turn) in of_programs.into_iter().filter(|(_, turn)| turn.compared > 0.0) {
            // Of more programs than that what holds of all memory holds.
            if self.moved_of.len() < MAX_PROGRAMS || self.moved_of.contains_key(name) {
                self.moved_of.entry(name.to_owned()).or_default().add(slot, turn.moved(seconds));
            }
        }
    }

    /// Intervals were missed in a stretch of time, which lies where snapshots have been.
    fn take_missed(&mut self, cost: &Cost) {
        let Some(start) = self.start_s.filter(|_| cost.samples_missed > 0 && cost.wall_ns > 0) else {
            return;
        };
        let to = (cost.time_ns as f64 / SECOND_NS - start) / self.slot_s;
        let length = cost.wall_ns as f64 / SECOND_NS / self.slot_s;
        let from = to - length;
        // What came before the first snapshot, or would be far behind the last, is in no slot.
        let last = (to.ceil().max(0.0) as usize).min(MAX_SLOTS).min(self.seconds.len() + 2);
        for slot in from.max(0.0) as usize..last {
            let here = (to.min(slot as f64 + 1.0) - from.max(slot as f64)).max(0.0);
            if self.missed.len() <= slot {
                self.missed.resize(slot + 1, 0.0);
            }
            self.missed[slot] += cost.samples_missed as f64 * here / length;
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
            self.pass(slot, start, seconds);
            self.seconds[slot] += seconds;
        }
        self.last_end = end;
        let mut mapped = std::mem::take(&mut self.mapped);
        let mut shared = std::mem::take(&mut self.shared);
        let scale = RateScale::of(snapshot);
        let max_bp = f64::from(snapshot.max_nr_accesses) * BP;
        let samples = SECOND_NS / snapshot.sample_ns.max(1) as f64;
        // Regions that are cut to what is mapped come as many parts of one rate.
        let mut last: Option<((u64, u16), f64)> = None;
        let mut figures = |region: &RegionSnapshot| {
            let (seen, present, unknown) = accessible_of(region);
            let said = (region.accesses_bp(), region.idle_bp);
            let met = match last.filter(|(last, _)| *last == said) {
                Some((_, met)) => met,
                None if snapshot.sample_ns > 0 && max_bp > 0.0 => share_accessed(region, max_bp, samples),
                None => share_accessed_by_rate(region, scale.hz(region), 1.0),
            };
            last = Some((said, met));
            let in_use = share_in_use(region);
            let heat = seen * scale.hz(region);
            // Of what is met with 1 - e^-x the derivative is x e^-x, which this is within a fifth, without a logarithm.
            let slope = 1.5 * met * (1.0 - met / in_use) * seen;
            let ws = (seen * met).min(present * in_use);
            Sums { ws, slope, heat, seen, unknown }
        };
        let Self { targets, space, known, areas, .. } = self;
        let own = |mapped: &Snapshot| {
            for target in &mapped.targets {
                let known = known.entry(target.id.0).or_default();
                known.seen = true;
                for region in &target.regions {
                    let each = figures(region);
                    known.share_out(region.range, areas, |areas, area, inside| {
                        areas.add_to(area, slot, &each, (inside, seconds));
                    });
                }
            }
        };
        let wanted = |id| targets.is_empty() || targets.contains(&id);
        space.each_in_use(snapshot, wanted, (&mut mapped, 1.0), own, |object, region, used| {
            shared.push((object, *region, used));
        });
        for regions in shared.chunk_by(|a, b| a.0 == b.0) {
            let (Some((object, first, _)), Some((_, last, _))) = (regions.first(), regions.last()) else {
                continue;
            };
            let area = self.object(*object);
            self.areas.reaches(area, last.range.end - first.range.start);
            for (_, region, used) in regions {
                let by_rate = figures(region);
                let ws = if snapshot.sample_ns > 0 && max_bp > 0.0 { *used } else { by_rate.ws };
                let unknown = unknown_beside(region, ws);
                self.areas.add_to(area, slot, &Sums { ws, unknown, ..by_rate }, (region.range, seconds));
            }
        }
        shared.clear();
        self.shared = shared;
        self.mapped = mapped;
    }

    /// The recording in blocks, without the first `settle_s` seconds of it, or the first fifth where it is short. Time in
    /// which no snapshot was taken is in no block: nothing is known of it, and it is as if it had not been.
    pub(super) fn finish(mut self, settle_s: f64) -> RunProfile {
        self.end_stretch();
        let Blocks { of_slot, seconds: blocks_s, settled_s } = Blocks::new(&self.seconds, settle_s);
        let nr = blocks_s.len();
        let mut pooled: BTreeMap<(String, u8, String, u64), AreaProfile> = BTreeMap::new();
        let (mut seen, mut of_program) = (0, self.closed.processes());
        for known in self.known.values().filter(|known| known.seen) {
            *of_program.entry(&known.program).or_default() += 1;
        }
        of_program.values().for_each(|processes| seen += processes);
        let alone = seen == 1;
        let objects = self.objects.values().chain(&self.other_objects).map(|at| (None, *at));
        let targets = self.known.values().flat_map(Known::areas).chain(self.closed.areas());
        for (name, at) in objects.chain(targets.map(|(name, at)| (Some(name), at))) {
            let Some(area) = self.areas.get(at) else { continue };
            // Of several processes of one program nobody knows which is which.
            let one = name.is_some_and(|name| of_program.get(name) == Some(&1));
            let program = name.filter(|_| !alone).unwrap_or_default().to_owned();
            let place = area.anonymous.filter(|_| one && area.size >= SMALL).map(|a| a.start);
            let rank = u8::from(name.is_some());
            let key = (program.clone(), rank, area.name.clone(), place.unwrap_or(0));
            let profile = pooled.entry(key).or_insert_with(|| AreaProfile {
                program,
                object: name.is_none(),
                name: match (area.anonymous, one && area.size < SMALL) {
                    (Some(_), true) => "anon, small".to_owned(),
                    _ => area.name.clone(),
                },
                anonymous: place.is_some(),
                size: 0,
                blocks: vec![Sums::default(); nr],
                motion: BySlot::default(),
                of_one: one,
            });
            profile.size += area.size;
            profile.motion.merge(&area.motion);
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
        let sample_s = self.provenance.attrs.sample_us as f64 / 1e6;
        let all = self.provenance.length_ns() as f64 / SECOND_NS;
        // Of what it is not known when it was, each second has its part.
        let others = self.provenance.cost.samples_missed as f64 - self.missed.iter().sum::<f64>();
        let everywhere = if all > 0.0 { others.max(0.0) / all } else { 0.0 };
        let mut missed: Vec<f64> = blocks_s.iter().map(|seconds| everywhere * seconds).collect();
        for (more, block) in self.missed.iter().zip(&of_slot) {
            if let Some(block) = block {
                missed[*block] += more;
            }
        }
        let share = |(missed, seconds): (&f64, &f64)| (missed * sample_s / seconds.max(sample_s)).min(1.0);
        let missed: Vec<f64> = missed.iter().zip(&blocks_s).map(share).collect();
        let of_program = self.moved_of.into_iter();
        let motion = Motion {
            slots: Vec::new(),
            all: self.moved,
            of_program: of_program
                .map(|(name, moved)| (if alone { String::new() } else { name }, moved))
                .collect(),
        };
        let provenance = self.provenance;
        // What was missed is known when it is known which blocks stay.
        let mut run = RunProfile { provenance, blocks_s, missed: 0.0, settled_s, areas, motion };
        let [punctual, known] = run.keep_what_is_known(missed);
        // As far as two stretches reach from the slot to which is told what moved between them.
        let reach = (2.0 * self.longest_stretch_s / self.slot_s).ceil() as usize;
        run.motion.choose([&known, &punctual], &of_slot, reach);
        run
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
                self.ended.retain(|id| *id != info.id);
                self.known.entry(info.id).or_default().program = printable(&info.comm).into_owned();
            }
            Item::Mappings(mappings) => self.take_mappings(mappings),
            Item::TargetEnd(end) => self.end(end.target),
            Item::Cost(cost) => self.take_missed(cost),
            _ => {}
        }
    }
}

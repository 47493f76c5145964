//! What memory the regions of a snapshot stand for.
//!
//! A region is a range of addresses. Not all of it need be mapped, and what is mapped may be mapped by others too. So
//! before anything is summed up, regions are cut to the mappings of their target: a gap is not cold memory, it is none.
//! And before anything is summed up over several targets, the bytes of files and shared memory are put together under the
//! object that they belong to, where each byte counts once ([`Space::by_object`]; the module `shared` tells how rates
//! add up there).
//!
//! A recording need not have mappings (those of other programs do not). Then a region counts whole. Where a list of
//! mappings is incomplete, and it is not known what is resident of a region, only what the list names as an object's is told
//! apart. A complete one may be older than the memory: a
//! region that lies outside of all mappings, and was accessed or is resident, is memory of which the mapping is not known,
//! and reports call it [`UNKNOWN_MAPPING`]. What is resident of it counts, a page at least where it was accessed; all of it where
//! that is not known. (What several
//! regions were found to hold together is divided among them by size, so a gap that one of them covers may be said to hold a
//! page or two: it must not count for more than these.)

mod copies;
mod cutter;
mod logs;
mod shared;

use crate::names::{printable, short_name};
use crate::rate::BP;
pub(crate) use copies::WIDE;
use cutter::Cutter;
use isotherm_damon::{AddrRange, RegionSnapshot, TargetId};
use isotherm_record::{Item, Mapping, Mappings, ObjectId};
pub(crate) use logs::Logs;
use shared::Shares;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

/// Ended targets of which the mappings are still remembered.
const MAX_ENDED: usize = 256;

/// So many objects are never looked through for those that nobody maps any more.
const FEW_OBJECTS: usize = 1024;

/// From here on are the ids that [`Space::by_object`] gives to objects, as many as there are below twice that: JSON's readers hold
/// numbers in 53 bits. No target's id is there: it is a pid, or counts from there, or is an address in the kernel.
const OBJECT: u64 = 1 << 52;

/// What reports call memory of which no mapping is known.
pub const UNKNOWN_MAPPING: &str = "unknown mapping";

/// Whether an id is that of an object.
pub(crate) const fn is_object(id: TargetId) -> bool {
    id.0 / OBJECT == 1
}

/// The id of the object with this number.
const fn object_id(number: usize) -> TargetId {
    TargetId(OBJECT + number as u64 % OBJECT)
}

/// A file or shared memory that a target of the recording maps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Object {
    pub id: ObjectId,
    /// Its path as last seen.
    path: String,
    /// Last component of the path.
    pub name: String,
    /// Somebody maps it shared (`MAP_SHARED`).
    is_shared: bool,
}

impl Object {
    /// Name and id, for titles.
    pub fn title(&self) -> String {
        format!("{} (device {}:{}, inode {})", self.name, self.id.device.0, self.id.device.1, self.id.inode)
    }

    /// Its path as last seen.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Whether `word` is part of its path, or its id as [`ObjectId`] prints it.
    pub fn is_called(&self, word: &str) -> bool {
        self.path.contains(word) || self.id.to_string() == word
    }
}

/// Part of a target's memory that is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    range: AddrRange,
    /// The object whose bytes these are, and where in it the piece begins. `None`: the target's own.
    object: Option<(usize, u64)>,
}

/// The mapped memory of a target: sorted, disjoint.
#[derive(Clone, Debug, Default)]
struct Layout {
    pieces: Vec<Piece>,
    partial: bool,
}

/// The mapped memory of every target, kept from [`Mappings`] items.
#[derive(Clone, Debug, Default)]
pub(crate) struct Space {
    targets: BTreeMap<u64, Layout>,
    ended: VecDeque<u64>,
    /// By a number that is given once.
    objects: BTreeMap<usize, Object>,
    next_object: usize,
    index: HashMap<ObjectId, usize>,
    shares: Shares,
}

impl Space {
    /// Takes what an item says about mappings; others are ignored.
    pub fn note(&mut self, item: &Item) {
        match item {
            Item::Mappings(mappings) => drop(self.update(mappings)),
            Item::TargetEnd(end) => self.end(end.target),
            _ => {}
        }
    }

    /// A target has ended: its mappings are forgotten after those of others that ended before it.
    pub fn end(&mut self, target: u64) {
        self.ended.push_back(target);
        if self.ended.len() > MAX_ENDED
            && let Some(oldest) = self.ended.pop_front()
        {
            self.targets.remove(&oldest);
        }
    }

    /// Takes the mappings of a target; gives the addresses, sorted and disjoint, that belong to another object now, or to one
    /// where they belonged to none, or the other way round; and which of them belonged to which object before, with the offset there.
    pub fn remap(&mut self, mappings: &Mappings) -> (Vec<AddrRange>, Vec<(AddrRange, usize, u64)>) {
        let before = self.update(mappings);
        let after = self.targets.get(&mappings.target);
        let moved = differences(pieces(before.as_ref()), pieces(after));
        let mut left = Vec::new();
        for range in &moved {
            for_owners(pieces(before.as_ref()), *range, |part, owner| {
                left.extend(owner.map(|(object, start)| (part, object, start)));
            });
        }
        (moved, left)
    }

    /// Returns how the target's memory was mapped before.
    fn update(&mut self, mappings: &Mappings) -> Option<Layout> {
        self.ended.retain(|id| *id != mappings.target);
        let mut maps: Vec<&Mapping> = mappings.maps.iter().filter(|m| m.start < m.end).collect();
        maps.sort_by_key(|m| m.start);
        let mut layout = Layout { pieces: Vec::with_capacity(maps.len()), partial: mappings.partial };
        for mapping in maps {
            let floor = layout.pieces.last().map_or(0, |p| p.range.end);
            let range = AddrRange::new(mapping.start.max(floor), mapping.end);
            if range.start >= range.end {
                continue;
            }
            let object = mapping.object().map(|id| {
                let at = self.object_index(id, mapping);
                (at, mapping.offset.saturating_add(range.start - mapping.start))
            });
            match layout.pieces.last_mut() {
                Some(last) if last.range.end == range.start && continues(last, object) => {
                    last.range.end = range.end;
                }
                _ => layout.pieces.push(Piece { range, object }),
            }
        }
        layout.pieces.shrink_to_fit();
        self.targets.insert(mappings.target, layout)
    }

    fn object_index(&mut self, id: ObjectId, mapping: &Mapping) -> usize {
        let is_shared = mapping.perms.ends_with('s');
        if let Some(&at) = self.index.get(&id) {
            if let Some(object) = self.objects.get_mut(&at) {
                object.is_shared |= is_shared;
                if *object.path != *mapping.name {
                    object.path = printable(&mapping.name).into_owned();
                    object.name = short_name(mapping).into_owned();
                }
            }
            return at;
        }
        let name = short_name(mapping).into_owned();
        let at = self.next_object;
        self.next_object += 1;
        self.objects.insert(at, Object { id, path: printable(&mapping.name).into_owned(), name, is_shared });
        self.index.insert(id, at);
        at
    }

    /// Forgets the objects that nobody maps any more, once there are more than twice as many as were left the last time.
    /// For who asks for the names of what is mapped only: processes that come and go for a week may each bring a file of
    /// their own.
    pub fn forget_unmapped(&mut self, left: &mut usize) {
        if self.objects.len() <= 2 * (*left).max(FEW_OBJECTS) {
            return;
        }
        let pieces = self.targets.values().flat_map(|layout| &layout.pieces);
        let mapped: HashSet<usize> = pieces.filter_map(|piece| piece.object).map(|(at, _)| at).collect();
        self.objects.retain(|at, _| mapped.contains(at));
        self.index.retain(|_, at| mapped.contains(at));
        *left = self.objects.len();
    }

    /// How many objects are known.
    #[cfg(test)]
    pub fn nr_objects(&self) -> usize {
        self.objects.len().max(self.index.len())
    }

    /// The object that [`Self::by_object`] gave this id; `None` for the id of a target.
    pub fn object(&self, id: TargetId) -> Option<&Object> {
        if !is_object(id) {
            return None;
        }
        self.objects.get(&usize::try_from(id.0 - OBJECT).ok()?)
    }

    /// The object that [`Self::owners`] gave this index.
    pub fn object_at(&self, index: usize) -> Option<&Object> {
        self.objects.get(&index)
    }

    /// Whether all who map the object that has this index are taken to have the same pages of it, and to use the same: as those who run
    /// one program have of it and of its libraries, which are mapped privately. In what somebody maps shared each may have its own.
    pub fn is_same_for_all(&self, index: usize) -> bool {
        self.objects.get(&index).is_some_and(|object| !object.is_shared)
    }

    /// How many of the targets wanted map each object, as far as their mappings are remembered; objects that none maps are left
    /// out.
    pub fn mappers(&self, wanted: impl Fn(TargetId) -> bool) -> HashMap<TargetId, usize> {
        // Of each object how many map it, and the last of them: one that maps it twice counts once.
        let mut found: HashMap<usize, (usize, u64)> = HashMap::new();
        for (target, layout) in self.targets.iter().filter(|(id, _)| wanted(TargetId(**id))) {
            for (object, _) in layout.pieces.iter().filter_map(|piece| piece.object) {
                match found.get_mut(&object) {
                    Some((_, last)) if last == target => {}
                    Some((count, last)) => (*count, *last) = (*count + 1, *target),
                    None => {
                        found.insert(object, (1, *target));
                    }
                }
            }
        }
        found.into_iter().map(|(at, (count, _))| (object_id(at), count)).collect()
    }

    /// Names of objects, for messages: those that several targets map first.
    pub fn object_names(&self) -> Vec<String> {
        let mappers = self.mappers(|_| true);
        let mut all: Vec<(usize, &Object)> = self.objects.iter().map(|(at, object)| (*at, object)).collect();
        all.sort_by_key(|(at, _)| Reverse(mappers.get(&object_id(*at)).copied()));
        all.into_iter().map(|(_, o)| format!("{} ({})", o.name, o.id)).collect()
    }

    /// Cuts a range of a target's addresses by whose memory it is, as mappings were last known: calls `each` with every part of
    /// it, in order, and the object that it belongs to with the offset there; `None` is the target's own.
    pub fn owners(
        &self,
        target: TargetId,
        range: AddrRange,
        each: impl FnMut(AddrRange, Option<(usize, u64)>),
    ) {
        for_owners(pieces(self.targets.get(&target.0)), range, each);
    }

    /// Cuts the regions of a target to what is mapped of them.
    fn cutter(&self, target: TargetId) -> Cutter<'_> {
        let layout = self.targets.get(&target.0);
        Cutter {
            pieces: layout.map_or(&[], |l| &l.pieces),
            partial: layout.is_some_and(|l| l.partial),
            at: 0,
        }
    }

    /// What of a range of a target's addresses is no object's, as mappings were last known. Memory that is met with before the
    /// list of mappings that has it was read belongs to nothing at first.
    pub fn without_objects(&self, target: TargetId, range: AddrRange) -> Vec<AddrRange> {
        let pieces = self.targets.get(&target.0).map_or(&[][..], |layout| &layout.pieces);
        let first = pieces.partition_point(|piece| piece.range.end <= range.start);
        let inside = pieces.get(first..).unwrap_or_default().iter();
        let objects = inside
            .take_while(|piece| piece.range.start < range.end)
            .filter(|piece| piece.object.is_some())
            .map(|piece| piece.range.intersection(range));
        let (mut own, mut at) = (Vec::new(), range.start);
        for object in objects {
            own.push(AddrRange::new(at, object.start.max(at)));
            at = object.end.max(at);
        }
        own.push(AddrRange::new(at, range.end));
        own.retain(|range| !range.is_empty());
        own
    }

    /// How much of a region is mapped, and from where to where: `(bytes, hull)`; `None` when nothing is.
    pub fn mapped(&self, target: TargetId, region: &RegionSnapshot) -> Option<(u64, AddrRange)> {
        let mut found: Option<(u64, AddrRange)> = None;
        self.cutter(target).parts(region, |part, _| {
            let (bytes, hull) = found.unwrap_or((0, part.range));
            found = Some((bytes + part.range.size(), AddrRange::new(hull.start, part.range.end)));
        });
        found.filter(|(bytes, _)| *bytes > 0)
    }

    /// Whether the list of a target's mappings was not read to its end.
    pub fn is_partial(&self, target: TargetId) -> bool {
        self.targets.get(&target.0).is_some_and(|layout| layout.partial)
    }

    /// Whether regions of `target` have to be cut.
    pub fn cuts(&self, target: TargetId) -> bool {
        self.targets.get(&target.0).is_some_and(|l| l.partial || !l.pieces.is_empty())
    }
}

fn pieces(layout: Option<&Layout>) -> &[Piece] {
    layout.map_or(&[], |layout| &layout.pieces)
}

/// Cuts a range by whose memory it is: [`Space::owners`].
fn for_owners(pieces: &[Piece], range: AddrRange, mut each: impl FnMut(AddrRange, Option<(usize, u64)>)) {
    let first = pieces.partition_point(|piece| piece.range.end <= range.start);
    let mut at = range.start;
    for piece in pieces.get(first..).unwrap_or_default() {
        if piece.range.start >= range.end {
            break;
        }
        if at < piece.range.start {
            each(AddrRange::new(at, piece.range.start), None);
        }
        let inside = piece.range.intersection(range);
        each(inside, piece.within(inside.start));
        at = inside.end;
    }
    if at < range.end {
        each(AddrRange::new(at, range.end), None);
    }
}

/// The addresses that do not belong to the same bytes of the same object in two lists of pieces.
fn differences(before: &[Piece], after: &[Piece]) -> Vec<AddrRange> {
    // Which bytes lie from `at` on, and up to where.
    let bytes = |pieces: &[Piece], next: &mut usize, at: u64| {
        while pieces.get(*next).is_some_and(|piece| piece.range.end <= at) {
            *next += 1;
        }
        match pieces.get(*next) {
            None => (None, u64::MAX),
            Some(piece) if at < piece.range.start => (None, piece.range.start),
            Some(piece) => {
                let base = |(object, offset): (usize, u64)| (object, offset.wrapping_sub(piece.range.start));
                (piece.object.map(base), piece.range.end)
            }
        }
    };
    let (mut i, mut j, mut at) = (0, 0, 0);
    let mut found: Vec<AddrRange> = Vec::new();
    while at < u64::MAX {
        let ((old, until), (new, also)) = (bytes(before, &mut i, at), bytes(after, &mut j, at));
        let end = until.min(also);
        if old != new {
            match found.last_mut() {
                Some(last) if last.end == at => last.end = end,
                _ => found.push(AddrRange::new(at, end)),
            }
        }
        at = end;
    }
    found
}

impl Piece {
    /// The object whose bytes these are, and which byte of it lies at `address`.
    fn within(&self, address: u64) -> Option<(usize, u64)> {
        self.object.map(|(object, offset)| (object, offset.saturating_add(address - self.range.start)))
    }
}

/// What may be said of each byte of a region of which a share of `resident` is present (`None`: not known, it may be all of it)
/// and of that a share of `seen` could be observed: the share that may have been accessed and would be known to have been, and
/// the share that is unknown. Pages that are not there are not accessed, so no working set holds more of a region than is
/// resident; and what is not there could not be observed either, but is known for all that.
pub(crate) fn accessible(seen: f64, resident: Option<f64>) -> (f64, f64) {
    let there = resident.unwrap_or(1.0).min(1.0);
    let present = there * seen.clamp(0.0, 1.0);
    (present, there - present)
}

/// The same of `region`, with the share that could be observed before them.
pub(crate) fn accessible_of(region: &RegionSnapshot) -> (f64, f64, f64) {
    let seen = (f64::from(region.seen_bp) / BP).min(1.0);
    let size = region.range.size().max(1) as f64;
    let (present, unknown) = accessible(seen, region.resident.map(|bytes| bytes as f64 / size));
    (seen, present, unknown)
}

/// The share of a region of which nothing is known where a share of it is in use: no more than the rest of what is there.
pub(crate) fn unknown_beside(region: &RegionSnapshot, in_use: f64) -> f64 {
    let (_, known, unknown) = accessible_of(region);
    unknown.min((known + unknown - in_use).max(0.0))
}

/// Whether what follows `last` without a gap is the same memory going on.
fn continues(last: &Piece, object: Option<(usize, u64)>) -> bool {
    match (last.object, object) {
        (None, None) => true,
        (Some((a, offset)), Some((b, next))) => a == b && offset.checked_add(last.range.size()) == Some(next),
        _ => false,
    }
}

/// Takes the part that follows without a gap, of the same region.
fn join(last: &mut RegionSnapshot, part: &RegionSnapshot) {
    last.range.end = part.range.end;
    last.resident = last.resident.zip(part.resident).map(|(a, b)| a.saturating_add(b));
}

#[cfg(test)]
mod tests;

//! Mappings told by what changed.
//!
//! A program whose heap grows every second has its hundreds of mappings written every second, which would outweigh its
//! regions. So a target's mappings go out whole at first and again once a minute, and between that as the mappings that
//! went and those that came. This is the one thing that reaches beyond a block: where damage hits one link of the chain,
//! the rest of that minute's changes are passed over, and the mappings before them stay in force.
//!
//! A change takes a few bytes, and compression takes what is left of a list that is repeated: a small file can stand for more
//! mappings than memory holds. So those in force at one time are limited ([`MAX_MAPPINGS`]); lists beyond are passed over, and
//! counted. A target of which none was read has an empty list then that says that there is more, so that no report takes what it
//! has for all that its addresses could hold.

use super::packed;
use super::varint::{Cursor, put};
use crate::{Mapping, Mappings};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Recorded time after which mappings go out whole again.
const WHOLE_AFTER_NS: u64 = 60_000_000_000;

/// Mappings of all targets at one time, a list counted as one more. Those who read keep some 200 bytes of each between them, so
/// this is 100 MiB (`report summary` of that many took 114 MB): a thousand processes of 500 mappings each, or eight of the most that Linux allows by default (65,530).
pub(super) const MAX_MAPPINGS: usize = 1 << 19;

/// Names that mappings are made to share, at most, and bytes of one (Linux' longest path). A guess: more files than most programs
/// of a machine have mapped.
const MAX_NAMES: usize = 1 << 12;
const MAX_NAME: usize = 4096;

/// A target's mappings as they stand in a file: whole. The fields of [`Mappings`] one by one, as flattened ones would be kept
/// twice while they are read.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Whole {
    /// Number of this item among those of the target.
    serial: u64,
    target: u64,
    time_ns: u64,
    maps: Vec<Mapping>,
    partial: bool,
}

/// The same, to be written.
#[derive(Debug, Serialize)]
pub(super) struct WholeOf<'a> {
    serial: u64,
    #[serde(flatten)]
    mappings: &'a Mappings,
}

/// What is said of a list beside its mappings.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Head {
    serial: u64,
    target: u64,
    time_ns: u64,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    partial: bool,
}

/// The same of a change, which is written without [`Change::new`].
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ChangeHead {
    serial: u64,
    base: Option<Base>,
    target: u64,
    time_ns: u64,
    gone: Vec<u64>,
    partial: bool,
}

impl WholeOf<'_> {
    /// With its mappings packed.
    pub(super) fn pack(&self) -> serde_json::Result<Vec<u8>> {
        let &Mappings { target, time_ns, partial, ref maps } = self.mappings;
        packed(&Head { serial: self.serial, target, time_ns, partial }, maps)
    }
}

/// `length JSON list`.
fn packed(head: &impl Serialize, maps: &[Mapping]) -> serde_json::Result<Vec<u8>> {
    let head = serde_json::to_vec(head)?;
    let mut out = Vec::with_capacity(head.len() + 16 * maps.len());
    put(&mut out, head.len() as u64);
    out.extend_from_slice(&head);
    packed::pack(&mut out, maps);
    Ok(out)
}

/// The two parts of it: what the first says, and the list. `None` if it is no such thing.
fn parts<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Option<(T, &'a [u8])> {
    let mut cursor = Cursor::new(bytes);
    let length = usize::try_from(cursor.uint()?).ok()?;
    let head = serde_json::from_slice(cursor.bytes(length)?).ok()?;
    let list = cursor.bytes(cursor.len())?;
    Some((head, list))
}

/// A target's mappings as they stand in a file: what changed since the item before.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Change {
    serial: u64,
    /// Not since the target's own item before, as it is its first: since this one of its parent, which it was forked from.
    #[serde(skip_serializing_if = "Option::is_none")]
    base: Option<Base>,
    target: u64,
    time_ns: u64,
    /// Starts of the mappings that went.
    gone: Vec<u64>,
    /// Mappings that came.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    new: Vec<Mapping>,
    /// The list is not complete.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    partial: bool,
}

/// An item of another target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Base {
    target: u64,
    serial: u64,
}

/// Why mappings were not read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// What they change was not read.
    Orphan,
    /// Together with those of the other targets they are more than [`MAX_MAPPINGS`]. The target has the list that it had before,
    /// if it had one; else this, an empty one.
    TooMany(Option<Mappings>),
}

/// What to write.
pub(super) enum Form<'a> {
    Whole(WholeOf<'a>),
    Change(Change),
}

/// The mappings of each target, at one end of a file or the other.
#[derive(Debug, Default)]
pub(super) struct Known {
    targets: HashMap<u64, State>,
    /// Mappings in them.
    held: usize,
    /// Parents of targets; only who writes needs to know.
    parents: HashMap<u64, u64>,
    /// Names that were read, each kept once: most mappings have one that many have.
    names: HashSet<Arc<str>>,
}

#[derive(Debug)]
struct State {
    serial: u64,
    whole_ns: u64,
    mappings: Mappings,
}

impl Known {
    /// A target came.
    pub(super) fn born(&mut self, target: u64, parent: Option<u64>) {
        if let Some(parent) = parent {
            self.parents.insert(target, parent);
        }
    }

    /// How to write `mappings`.
    pub(super) fn form<'a>(&mut self, mappings: &'a Mappings) -> Form<'a> {
        let known = self.targets.get(&mappings.target);
        let serial = known.map_or(0, |k| k.serial + 1);
        let base = self.parents.get(&mappings.target).filter(|_| known.is_none()).and_then(|parent| {
            let state = self.targets.get(parent)?;
            Some((state, Base { target: *parent, serial: state.serial }))
        });
        let since = known.or(base.map(|(state, _)| state));
        let base = base.map(|(_, base)| base);
        let recent = since.filter(|k| mappings.time_ns.saturating_sub(k.whole_ns) < WHOLE_AFTER_NS);
        let between = |k: &State| Change { base, ..Change::between(serial, &k.mappings, mappings) };
        // Of lists that are not sorted it cannot be told by what changed; and much change is no change.
        let told = recent.filter(|k| is_sorted(&k.mappings.maps) && is_sorted(&mappings.maps));
        let change = told.map(between).filter(|change| change.new.len() < mappings.maps.len() / 2);
        let whole_ns = match (&change, since) {
            (Some(_), Some(known)) => known.whole_ns,
            _ => mappings.time_ns,
        };
        // What a reader does not keep is written whole the next time, too.
        self.keep(mappings.target, State { serial, whole_ns, mappings: mappings.clone() });
        match change {
            Some(change) => Form::Change(change),
            None => Form::Whole(WholeOf { serial, mappings }),
        }
    }

    /// Keeps the mappings of a target, unless they are too many: then it has those that it had.
    fn keep(&mut self, target: u64, state: State) -> bool {
        let held = self.would_hold(target, state.mappings.maps.len());
        let fits = held <= MAX_MAPPINGS;
        if fits {
            self.held = held;
            self.targets.insert(target, state);
        }
        fits
    }

    /// Mappings of all targets when this one has so many.
    fn would_hold(&self, target: u64, count: usize) -> usize {
        self.held - self.held_by(target) + 1 + count
    }

    fn held_by(&self, target: u64) -> usize {
        self.targets.get(&target).map_or(0, |state| 1 + state.mappings.maps.len())
    }

    /// Mappings that were read, with names that they share.
    fn sharing_names(&mut self, mut maps: Vec<Mapping>) -> Vec<Mapping> {
        for mapping in &mut maps {
            match self.names.get(&mapping.name) {
                Some(name) => mapping.name = Arc::clone(name),
                None if mapping.name.len() > MAX_NAME => {}
                None => {
                    // Those that are in use stay with who uses them.
                    if self.names.len() >= MAX_NAMES {
                        self.names.clear();
                    }
                    self.names.insert(Arc::clone(&mapping.name));
                }
            }
        }
        maps
    }

    /// Takes in what was read whole and packed; `None` if it is not that.
    pub(super) fn whole_of(&mut self, bytes: &[u8]) -> Option<Result<Mappings, Left>> {
        let (head, list) = parts::<Head>(bytes)?;
        if packed::count(list)? > MAX_MAPPINGS as u64 {
            return Some(Err(self.too_many(head.target, head.time_ns)));
        }
        let Head { serial, target, time_ns, partial } = head;
        Some(self.whole(Whole { serial, target, time_ns, maps: packed::unpack(list)?, partial }))
    }

    /// Takes in a change that was packed; `None` if it is not that.
    pub(super) fn change_of(&mut self, bytes: &[u8]) -> Option<Result<Mappings, Left>> {
        let (head, list) = parts::<ChangeHead>(bytes)?;
        if packed::count(list)? > MAX_MAPPINGS as u64 {
            return Some(Err(self.too_many(head.target, head.time_ns)));
        }
        let ChangeHead { serial, base, target, time_ns, gone, partial } = head;
        Some(self.change(Change { serial, base, target, time_ns, gone, new: packed::unpack(list)?, partial }))
    }

    /// Takes in what was read whole.
    pub(super) fn whole(&mut self, read: Whole) -> Result<Mappings, Left> {
        let Whole { serial, target, time_ns, maps, partial } = read;
        let maps = self.sharing_names(maps).into();
        let mappings = Mappings { target, time_ns, maps, partial };
        let state = State { serial, whole_ns: time_ns, mappings: mappings.clone() };
        if self.keep(target, state) { Ok(mappings) } else { Err(self.too_many(target, time_ns)) }
    }

    /// Takes in a change.
    pub(super) fn change(&mut self, mut change: Change) -> Result<Mappings, Left> {
        change.new = self.sharing_names(change.new);
        let known = match change.base {
            Some(base) => self.targets.get(&base.target).filter(|k| k.serial == base.serial),
            None => {
                self.targets.get(&change.target).filter(|k| change.serial.checked_sub(1) == Some(k.serial))
            }
        };
        let known = known.ok_or(Left::Orphan)?;
        // Not made first and looked at then: what a few bytes ask for is not to cost as much as it says.
        let least = (known.mappings.maps.len() + change.new.len()).saturating_sub(change.gone.len());
        if self.would_hold(change.target, least) > MAX_MAPPINGS {
            return Err(self.too_many(change.target, change.time_ns));
        }
        let mappings = change.apply(&known.mappings);
        let state = State { serial: change.serial, whole_ns: known.whole_ns, mappings: mappings.clone() };
        let kept = self.keep(change.target, state);
        if kept { Ok(mappings) } else { Err(self.too_many(change.target, change.time_ns)) }
    }

    fn too_many(&self, target: u64, time_ns: u64) -> Left {
        let none = Mappings { target, time_ns, partial: true, ..Mappings::default() };
        Left::TooMany((!self.targets.contains_key(&target)).then_some(none))
    }

    /// A target ended.
    pub(super) fn forget(&mut self, target: u64) {
        self.held -= self.held_by(target);
        self.targets.remove(&target);
        self.parents.remove(&target);
    }
}

/// In order, no two with one start.
fn is_sorted(maps: &[Mapping]) -> bool {
    maps.is_sorted_by(|a, b| a.start < b.start)
}

impl Change {
    /// With its new mappings packed.
    pub(super) fn pack(mut self) -> serde_json::Result<Vec<u8>> {
        let new = std::mem::take(&mut self.new);
        packed(&self, &new)
    }

    /// Both must be sorted.
    fn between(serial: u64, old: &Mappings, new: &Mappings) -> Self {
        let (mut gone, mut came) = (Vec::new(), Vec::new());
        let mut before = old.maps.iter().peekable();
        for mapping in &*new.maps {
            while let Some(passed) = before.next_if(|m| m.start < mapping.start) {
                gone.push(passed.start);
            }
            match before.next_if(|m| m.start == mapping.start) {
                Some(same) if same == mapping => {}
                other => {
                    gone.extend(other.map(|m| m.start));
                    came.push(mapping.clone());
                }
            }
        }
        gone.extend(before.map(|m| m.start));
        let (target, time_ns, partial) = (new.target, new.time_ns, new.partial);
        Self { serial, base: None, target, time_ns, gone, new: came, partial }
    }

    fn apply(&self, old: &Mappings) -> Mappings {
        let stays = |m: &&Mapping| self.gone.binary_search(&m.start).is_err();
        let mut maps: Vec<Mapping> = old.maps.iter().filter(stays).chain(&self.new).cloned().collect();
        maps.sort_by_key(|m| m.start);
        let maps = maps.into();
        Mappings { target: self.target, time_ns: self.time_ns, maps, partial: self.partial }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read_back(whole: &WholeOf<'_>) -> Whole {
        serde_json::from_str(&serde_json::to_string(whole).unwrap()).unwrap()
    }

    proptest! {
        /// However mappings change, sorted or not, a reader has what the writer was given.
        #[test]
        fn a_reader_follows_every_change(
            steps in prop::collection::vec(
                (0..2_u64, 0..40_u64, prop::collection::vec((0..12_u64, 0..3_u64), 0..10), any::<bool>()),
                0..20,
            ),
        ) {
            let (mut writer, mut reader, mut packed_reader) =
                (Known::default(), Known::default(), Known::default());
            let mut time_ns = 0;
            for (target, seconds, maps, sorted) in steps {
                time_ns += seconds * 1_000_000_000;
                let map = |(start, size)| Mapping {
                    start,
                    end: start + size,
                    device: (8, size as u32),
                    inode: size,
                    offset: start / 2,
                    ..Mapping::default()
                };
                let mut maps: Vec<Mapping> = maps.into_iter().map(map).collect();
                if sorted {
                    maps.sort_by_key(|m| m.start);
                    maps.dedup_by_key(|m| m.start);
                }
                let mappings = Mappings { target, time_ns, maps: maps.into(), partial: seconds % 3 == 0 };
                let read = match writer.form(&mappings) {
                    Form::Whole(whole) => {
                        let packed = packed_reader.whole_of(&whole.pack().unwrap());
                        prop_assert_eq!(packed, Some(Ok(mappings.clone())));
                        reader.whole(read_back(&whole))
                    }
                    Form::Change(change) => {
                        let text = serde_json::to_string(&change).unwrap();
                        let packed = packed_reader.change_of(&change.pack().unwrap());
                        prop_assert_eq!(packed, Some(Ok(mappings.clone())));
                        reader.change(serde_json::from_str(&text).unwrap())
                    }
                };
                prop_assert_eq!(read, Ok(mappings));
            }
        }
    }

    #[test]
    fn a_change_without_its_beginning_is_passed_over() {
        let map = |start: u64| Mapping { start, end: start + 1, ..Mapping::default() };
        let at = |time_ns, starts: &[u64]| Mappings {
            target: 1,
            time_ns,
            maps: starts.iter().map(|&s| map(s)).collect(),
            ..Mappings::default()
        };
        let (mut writer, mut reader) = (Known::default(), Known::default());
        let lists = [at(0, &[1, 2, 3, 4, 5]), at(1, &[1, 2, 3, 4, 6]), at(2, &[1, 2, 3, 4, 7])];
        let mut forms = lists.iter().map(|m| writer.form(m)).collect::<Vec<_>>().into_iter();
        let (Some(Form::Whole(first)), Some(Form::Change(_)), Some(Form::Change(third))) =
            (forms.next(), forms.next(), forms.next())
        else {
            panic!("a small change was written whole");
        };
        reader.whole(read_back(&first)).unwrap();
        assert_eq!(reader.change(third), Err(Left::Orphan));
        // The next whole one mends it.
        let last = at(WHOLE_AFTER_NS, &[1, 2]);
        let Form::Whole(whole) = writer.form(&last) else { panic!("never whole again") };
        assert_eq!(reader.whole(read_back(&whole)).unwrap().maps.len(), 2);
    }

    #[test]
    fn mappings_of_one_name_share_it() {
        let named = |start: u64, name: &str| Mapping {
            start,
            end: start + 1,
            name: name.into(),
            ..Mapping::default()
        };
        let list = |target| Whole {
            target,
            maps: vec![named(1, "/lib/a"), named(2, ""), named(3, "/lib/a")],
            ..Whole::default()
        };
        let mut reader = Known::default();
        let (one, other) = (reader.whole(list(1)).unwrap(), reader.whole(list(2)).unwrap());
        assert!(Arc::ptr_eq(&one.maps[0].name, &other.maps[2].name));
        assert_eq!(reader.names.len(), 2);
        // However many there are, not all of them are kept.
        let many = (0..3 * MAX_NAMES as u64).map(|at| named(at, &format!("/tmp/{at}"))).collect();
        reader.whole(Whole { target: 3, maps: many, ..Whole::default() }).unwrap();
        assert!(reader.names.len() <= MAX_NAMES);
    }

    #[test]
    fn what_fork_made_is_told_by_what_differs_from_its_parent() {
        let map = |start: u64| Mapping { start, end: start + 1, ..Mapping::default() };
        let of = |target, time_ns, starts: &[u64]| Mappings {
            target,
            time_ns,
            maps: starts.iter().map(|&s| map(s)).collect(),
            ..Mappings::default()
        };
        let (mut writer, mut reader, mut other) = (Known::default(), Known::default(), Known::default());
        writer.born(1, None);
        writer.born(2, Some(1));
        let (parent, child) = (of(1, 0, &[1, 2, 3, 4, 5]), of(2, 5, &[1, 2, 3, 4, 5, 9]));
        let Form::Whole(whole) = writer.form(&parent) else { panic!("a change of nothing") };
        reader.whole(read_back(&whole)).unwrap();
        let Form::Change(change) = writer.form(&child) else { panic!("all of it again") };
        let text = serde_json::to_string(&change).unwrap();
        assert!(text.len() < 150, "{text}");
        assert_eq!(reader.change(serde_json::from_str(&text).unwrap()), Ok(child));
        assert_eq!(
            other.change(change),
            Err(Left::Orphan),
            "whoever does not know the parent's passes it over"
        );
        let later = of(2, 6, &[1, 2, 3, 4, 9]);
        let Form::Change(change) = writer.form(&later) else { panic!("all of it again") };
        assert_eq!(reader.change(change), Ok(later));
    }

    #[test]
    fn mappings_of_many_forks_end_at_a_limit_and_begin_again_when_some_ended() {
        let maps: std::sync::Arc<[Mapping]> =
            (0..(1 << 14) - 1).map(|at| Mapping { start: at, end: at + 1, ..Mapping::default() }).collect();
        let of = |target| Mappings { target, time_ns: 1, maps: maps.clone(), ..Mappings::default() };
        let (mut writer, mut reader) = (Known::default(), Known::default());
        let mut pass = |target: u64, reader: &mut Known| {
            writer.born(target, Some(1));
            match writer.form(&of(target)) {
                Form::Whole(whole) => reader.whole(read_back(&whole)),
                Form::Change(change) => reader.change(change),
            }
            .map(|read| read.maps.len())
        };
        for target in 1..=32 {
            assert_eq!(pass(target, &mut reader), Ok((1 << 14) - 1));
        }
        let none = |target, time_ns| Mappings { target, time_ns, partial: true, ..Mappings::default() };
        assert_eq!(pass(33, &mut reader), Err(Left::TooMany(Some(none(33, 1)))));
        assert_eq!(reader.held, MAX_MAPPINGS);
        let mut more = of(7);
        let beyond = Mapping { start: 1 << 20, end: 1 << 21, ..Mapping::default() };
        more.maps = more.maps.iter().cloned().chain([beyond]).collect();
        let more = Whole { serial: 9, target: 7, time_ns: 1, maps: more.maps.to_vec(), partial: false };
        assert_eq!(reader.whole(more), Err(Left::TooMany(None)), "it has what it had");
        // A list of nothing takes memory too.
        let empty = Whole { target: 99, ..Whole::default() };
        assert_eq!(reader.whole(empty), Err(Left::TooMany(Some(none(99, 0)))));
        reader.forget(7);
        assert_eq!(pass(34, &mut reader), Ok((1 << 14) - 1));
    }
}

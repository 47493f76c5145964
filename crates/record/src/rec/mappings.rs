//! Mappings told by what changed.
//!
//! A program whose heap grows every second has its hundreds of mappings written every second, which would outweigh its
//! regions. So a target's mappings go out whole at first and again once a minute, and between that as the mappings that
//! went and those that came. This is the one thing that reaches beyond a block: where damage hits one link of the chain,
//! the rest of that minute's changes are passed over, and the mappings before them stay in force.

use crate::{Mapping, Mappings};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// Recorded time after which mappings go out whole again.
const WHOLE_AFTER_NS: u64 = 60_000_000_000;

/// A target's mappings as they stand in a file: whole.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Whole {
    /// Number of this item among those of the target.
    serial: u64,
    #[serde(flatten)]
    mappings: Mappings,
}

/// A target's mappings as they stand in a file: what changed since the item before.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Change {
    serial: u64,
    target: u64,
    time_ns: u64,
    /// Starts of the mappings that went.
    gone: Vec<u64>,
    /// Mappings that came.
    new: Vec<Mapping>,
    /// The list is not complete.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    partial: bool,
}

/// What to write.
pub(super) enum Form {
    Whole(Whole),
    Change(Change),
}

/// The mappings of each target, at one end of a file or the other.
#[derive(Debug, Default)]
pub(super) struct Known {
    targets: HashMap<u64, State>,
}

#[derive(Debug)]
struct State {
    serial: u64,
    whole_ns: u64,
    mappings: Mappings,
}

impl Known {
    /// How to write `mappings`.
    pub(super) fn form(&mut self, mappings: &Mappings) -> Form {
        let known = self.targets.get(&mappings.target);
        let serial = known.map_or(0, |k| k.serial + 1);
        let recent = known.filter(|k| mappings.time_ns.saturating_sub(k.whole_ns) < WHOLE_AFTER_NS);
        let change = recent.map(|k| Change::between(serial, &k.mappings, mappings)).filter(|change| {
            // Not all that is called sorted is; and much change is no change.
            change.new.len() < mappings.maps.len() / 2
                && recent.is_some_and(|k| change.apply(&k.mappings) == *mappings)
        });
        let whole_ns = match (&change, known) {
            (Some(_), Some(known)) => known.whole_ns,
            _ => mappings.time_ns,
        };
        self.targets.insert(mappings.target, State { serial, whole_ns, mappings: mappings.clone() });
        match change {
            Some(change) => Form::Change(change),
            None => Form::Whole(Whole { serial, mappings: mappings.clone() }),
        }
    }

    /// Takes in what was read whole.
    pub(super) fn whole(&mut self, Whole { serial, mappings }: Whole) -> Mappings {
        let state = State { serial, whole_ns: mappings.time_ns, mappings: mappings.clone() };
        self.targets.insert(mappings.target, state);
        mappings
    }

    /// Takes in a change; `None` when what it changes was not read.
    pub(super) fn change(&mut self, change: &Change) -> Option<Mappings> {
        let known = self.targets.get_mut(&change.target)?;
        if change.serial.checked_sub(1) != Some(known.serial) {
            return None;
        }
        known.serial = change.serial;
        known.mappings = change.apply(&known.mappings);
        Some(known.mappings.clone())
    }

    /// A target ended.
    pub(super) fn forget(&mut self, target: u64) {
        self.targets.remove(&target);
    }
}

impl Change {
    fn between(serial: u64, old: &Mappings, new: &Mappings) -> Self {
        let missing = |of: &Mapping, from: &Mappings| {
            let at = from.maps.partition_point(|m| m.start < of.start);
            from.maps.get(at) != Some(of)
        };
        Self {
            serial,
            target: new.target,
            time_ns: new.time_ns,
            gone: old.maps.iter().filter(|m| missing(m, new)).map(|m| m.start).collect(),
            new: new.maps.iter().filter(|m| missing(m, old)).cloned().collect(),
            partial: new.partial,
        }
    }

    fn apply(&self, old: &Mappings) -> Mappings {
        let stays = |m: &&Mapping| self.gone.binary_search(&m.start).is_err();
        let mut maps: Vec<Mapping> = old.maps.iter().filter(stays).chain(&self.new).cloned().collect();
        maps.sort_by_key(|m| m.start);
        Mappings { target: self.target, time_ns: self.time_ns, maps, partial: self.partial }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// However mappings change, sorted or not, a reader has what the writer was given.
        #[test]
        fn a_reader_follows_every_change(
            steps in prop::collection::vec(
                (0..2_u64, 0..40_u64, prop::collection::vec((0..12_u64, 0..3_u64), 0..10), any::<bool>()),
                0..20,
            ),
        ) {
            let (mut writer, mut reader) = (Known::default(), Known::default());
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
                let mappings = Mappings { target, time_ns, maps, partial: seconds % 3 == 0 };
                let read = match writer.form(&mappings) {
                    Form::Whole(whole) => Some(reader.whole(whole)),
                    Form::Change(change) => reader.change(&change),
                };
                prop_assert_eq!(read, Some(mappings));
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
        let mut forms = [at(0, &[1, 2, 3, 4, 5]), at(1, &[1, 2, 3, 4, 6]), at(2, &[1, 2, 3, 4, 7])]
            .map(|m| writer.form(&m))
            .into_iter();
        let (Some(Form::Whole(first)), Some(Form::Change(_)), Some(Form::Change(third))) =
            (forms.next(), forms.next(), forms.next())
        else {
            panic!("a small change was written whole");
        };
        reader.whole(first);
        assert_eq!(reader.change(&third), None);
        // The next whole one mends it.
        let Form::Whole(whole) = writer.form(&at(WHOLE_AFTER_NS, &[1, 2])) else {
            panic!("never whole again")
        };
        assert_eq!(reader.whole(whole).maps.len(), 2);
    }
}

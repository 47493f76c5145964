//! Which target of one file is which of another.

use crate::TargetInfo;
use std::collections::{BTreeMap, VecDeque};

/// Ids of targets whose own was another one's in an earlier file start here.
const FIRST_RENAMED: u64 = 1 << 48;

/// Processes that ended and are still known, should they be met again: one that leaves a control group may come back.
const MAX_ENDED: usize = 1 << 16;

/// What a process is known by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Identity {
    Started {
        boot: usize,
        pid: u32,
        ticks: u64,
    },
    /// Of a file that does not say when it was started.
    Named {
        id: u64,
        pid: u32,
    },
}

/// The targets of all files so far.
#[derive(Debug)]
pub(super) struct Targets {
    ids: BTreeMap<Identity, u64>,
    /// Of those, the ones that ended, or of which nobody knows, oldest first, and which of all ends it was.
    ended: VecDeque<(Identity, u64)>,
    /// The last end of each of them that did not come back.
    last_end: BTreeMap<Identity, u64>,
    ends: u64,
    /// Of the file at hand: by its id there, who it is, and its id here.
    of_file: BTreeMap<u64, (Identity, u64)>,
    /// Ids in use here before the file, and since it began.
    before: Ids,
    now: Ids,
    next_renamed: u64,
}

impl Default for Targets {
    fn default() -> Self {
        Self {
            ids: BTreeMap::new(),
            ended: VecDeque::new(),
            last_end: BTreeMap::new(),
            ends: 0,
            of_file: BTreeMap::new(),
            before: Ids::default(),
            now: Ids::default(),
            next_renamed: FIRST_RENAMED,
        }
    }
}

impl Targets {
    /// What comes is of another file.
    pub fn begin_file(&mut self) {
        self.of_file.clear();
        for (first, last) in std::mem::take(&mut self.now).0 {
            self.before.insert(first, last);
        }
    }

    /// Gives a target the id that it has here.
    pub fn meet(&mut self, info: &mut TargetInfo, boot: usize) {
        let TargetInfo { pid, started_ticks: ticks, .. } = *info;
        let identity = match ticks {
            0 => Identity::Named { id: info.id, pid },
            ticks => Identity::Started { boot, pid, ticks },
        };
        let known = self.ids.get(&identity).or(self.of_file.get(&info.id).map(|(_, here)| here)).copied();
        let id = known.unwrap_or_else(|| match self.is_taken(info.id) {
            false => info.id,
            true => {
                self.next_renamed += 1;
                while self.is_taken(self.next_renamed) {
                    self.next_renamed += 1;
                }
                self.next_renamed
            }
        });
        self.last_end.remove(&identity);
        self.ids.insert(identity, id);
        if matches!(identity, Identity::Named { .. }) {
            // Nothing tells how long it lives.
            self.may_go(identity);
        }
        self.now.insert(id, id);
        self.of_file.insert(info.id, (identity, id));
        info.id = id;
        if let Some(parent) = &mut info.parent {
            *parent = self.id(*parent);
        }
    }

    fn is_taken(&self, id: u64) -> bool {
        self.before.contains(id) || self.now.contains(id)
    }

    /// The id here of what is `id` in the file.
    pub fn id(&self, id: u64) -> u64 {
        self.of_file.get(&id).map_or(id, |(_, id)| *id)
    }

    /// The target that is `id` in the file has ended.
    pub fn end(&mut self, id: u64) {
        let Some(&(identity, here)) = self.of_file.get(&id) else { return };
        if here == id {
            self.of_file.remove(&id);
        }
        if matches!(identity, Identity::Named { .. }) {
            // Nothing else tells it from another of that id; it may go since it was met.
            return;
        }
        self.may_go(identity);
    }

    /// From now on it may be forgotten, once so many others may.
    fn may_go(&mut self, identity: Identity) {
        self.ends += 1;
        self.ended.push_back((identity, self.ends));
        self.last_end.insert(identity, self.ends);
        if self.ended.len() > MAX_ENDED
            && let Some((oldest, end)) = self.ended.pop_front()
            // It did not come back since.
            && self.last_end.get(&oldest) == Some(&end)
        {
            self.last_end.remove(&oldest);
            self.ids.remove(&oldest);
        }
    }
}

/// A set of ids, most of which follow each other: first and last of each stretch.
#[derive(Debug, Default)]
struct Ids(BTreeMap<u64, u64>);

impl Ids {
    fn contains(&self, id: u64) -> bool {
        self.0.range(..=id).next_back().is_some_and(|(_, last)| *last >= id)
    }

    /// Adds `first..=last`.
    fn insert(&mut self, mut first: u64, mut last: u64) {
        if let Some((&start, &end)) = self.0.range(..=first).next_back()
            && end >= first.saturating_sub(1)
        {
            (first, last) = (start, last.max(end));
        }
        while let Some((&start, &end)) = self.0.range(first..=last.saturating_add(1)).next() {
            self.0.remove(&start);
            last = last.max(end);
        }
        self.0.insert(first, last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn a_set_of_stretches_holds_what_was_added(stretches in prop::collection::vec((0..60_u64, 0..6_u64), 0..30)) {
            let (mut ids, mut naive) = (Ids::default(), BTreeSet::new());
            for (first, more) in stretches {
                ids.insert(first, first + more);
                naive.extend(first..=first + more);
                prop_assert!((0..70).all(|id| ids.contains(id) == naive.contains(&id)));
            }
            // No two of them touch.
            let borders: Vec<(u64, u64)> = ids.0.into_iter().collect();
            prop_assert!(borders.windows(2).all(|pair| pair[0].1 + 1 < pair[1].0), "{borders:?}");
        }
    }

    proptest! {
        /// Ids as files have them, those among them that reading several files gives out.
        #[test]
        fn each_process_has_an_id_of_its_own_and_keeps_it(
            files in prop::collection::vec(
                prop::collection::vec((0..4_u64, any::<bool>(), 0..5_u32, 0..3_u64), 0..6), 1..5),
        ) {
            let mut targets = Targets::default();
            let mut before: BTreeMap<(u32, u64), u64> = BTreeMap::new();
            for file in files {
                targets.begin_file();
                let (mut pids, mut ids) = (BTreeSet::new(), BTreeSet::new());
                let mut here = BTreeMap::new();
                for (id, renamed, pid, ticks) in file {
                    let id = if renamed { FIRST_RENAMED + id } else { id };
                    if !pids.insert(pid) || !ids.insert(id) {
                        continue;
                    }
                    let mut info = TargetInfo { id, pid, started_ticks: ticks, ..TargetInfo::default() };
                    targets.meet(&mut info, 0);
                    prop_assert_eq!(targets.id(id), info.id);
                    if let (1.., Some(had)) = (ticks, before.get(&(pid, ticks))) {
                        prop_assert_eq!(*had, info.id);
                    }
                    prop_assert_eq!(here.insert(info.id, pid), None, "two processes of one id");
                    before.insert((pid, ticks), info.id);
                }
            }
        }
    }

    #[test]
    fn files_that_do_not_say_when_a_process_was_started_do_not_fill_the_memory_either() {
        let mut targets = Targets::default();
        for file in 0..3 * MAX_ENDED as u32 {
            targets.begin_file();
            for pid in [1, 2 + file] {
                let mut info = TargetInfo { id: u64::from(pid), pid, ..TargetInfo::default() };
                targets.meet(&mut info, 0);
                assert_eq!(info.id, u64::from(pid), "in each file the same, or new");
            }
        }
        assert!(targets.ids.len() <= MAX_ENDED && targets.before.0.len() == 1, "{}", targets.ids.len());
    }

    #[test]
    fn one_that_came_back_is_known_however_many_ended_since() {
        let mut targets = Targets::default();
        let one = || TargetInfo { id: 1, pid: 1, started_ticks: 7, ..TargetInfo::default() };
        targets.meet(&mut one(), 0);
        targets.end(1);
        targets.meet(&mut one(), 0);
        for other in 2..3 * MAX_ENDED as u64 {
            let mut info =
                TargetInfo { id: other, pid: other as u32, started_ticks: 7, ..TargetInfo::default() };
            targets.meet(&mut info, 0);
            targets.end(other);
        }
        targets.begin_file();
        let mut info = TargetInfo { id: 1 << 40, ..one() };
        targets.meet(&mut info, 0);
        assert_eq!(info.id, 1);
    }

    #[test]
    fn the_last_id_of_all_is_one_too() {
        let mut ids = Ids::default();
        ids.insert(u64::MAX, u64::MAX);
        ids.insert(u64::MAX - 1, u64::MAX);
        ids.insert(0, 0);
        assert!(ids.contains(u64::MAX) && ids.contains(0) && !ids.contains(1) && ids.0.len() == 2);
    }

    #[test]
    fn those_that_ended_do_not_fill_the_memory() {
        let mut targets = Targets::default();
        for id in 0..3 * MAX_ENDED as u64 {
            let mut info = TargetInfo { id, pid: id as u32, started_ticks: 7, ..TargetInfo::default() };
            targets.meet(&mut info, 0);
            assert_eq!(info.id, id);
            targets.end(id);
        }
        assert!(targets.ids.len() <= MAX_ENDED && targets.of_file.is_empty() && targets.now.0.len() == 1);
    }
}

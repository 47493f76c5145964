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
    /// Of those, the ones that ended, oldest first.
    ended: VecDeque<Identity>,
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
        let id = match self.ids.get(&identity) {
            Some(id) => *id,
            // In a file each has an id of its own.
            None if !self.before.contains(info.id) => info.id,
            None => {
                self.next_renamed += 1;
                while self.before.contains(self.next_renamed) {
                    self.next_renamed += 1;
                }
                self.next_renamed
            }
        };
        self.ids.insert(identity, id);
        self.now.insert(id, id);
        self.of_file.insert(info.id, (identity, id));
        info.id = id;
        if let Some(parent) = &mut info.parent {
            *parent = self.id(*parent);
        }
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
            // Nothing else tells it from another of that id.
            return;
        }
        self.ended.push_back(identity);
        if self.ended.len() > MAX_ENDED
            && let Some(oldest) = self.ended.pop_front()
            && !self.ended.contains(&oldest)
        {
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

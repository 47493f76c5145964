//! How things stood before a program's end.
//!
//! Programs that end give back what they hold, piece by piece, and often that is what their last snapshots show: little more than
//! libraries. Whoever asks what a program held means none of that. So of a target that ended, what gives back memory in its last
//! [`LAST_NS`] is left out: its snapshots after the last one in which it had most of what it had in that time ([`WHOLE`]), and its
//! mappings since. What is left out is told ([`GaveUp`]). Times series are not concerned: there the end belongs to the picture.
//!
//! For that, items are held back until they are older than [`LAST_NS`], or more than [`MOST_REGIONS`].

use crate::Accumulate;
use crate::units::{SECOND_NS, counted, format_seconds, format_share};
use isotherm_damon::{Snapshot, TargetSnapshot};
use isotherm_record::Item;
use serde::Serialize;
use std::collections::{HashMap, HashSet, VecDeque};

/// How long an end may take. A guess: 4 GiB are given back within a second, and interpreters clean up before.
const LAST_NS: u64 = 2_000_000_000;

/// The share of the most that a target had by which it still counts as whole. A guess: less is what allocators give back at any time.
const WHOLE: f64 = 0.9;

/// Regions held back at most: 8 MB. Of snapshots that are larger, ends are shown as they are.
const MOST_REGIONS: usize = 1 << 17;

/// Snapshots that are kept for their memory.
const SPARE: usize = 4;

/// A target that gave up memory before it ended; it is shown as it stood before.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct GaveUp {
    /// Target id.
    pub target: u64,
    /// The end of the snapshot that is shown, ns.
    pub time_ns: u64,
    /// The share of its memory that was left in its last snapshot, 0..1.
    pub left: f64,
}

/// Holds back the last items, and leaves out what shows ends.
#[derive(Clone, Debug, Default)]
pub(crate) struct BeforeEnd {
    queue: VecDeque<Held>,
    /// Regions in it.
    regions: usize,
    ending: HashSet<u64>,
    gave_up: Vec<GaveUp>,
    spare: Vec<Snapshot>,
}

#[derive(Clone, Debug)]
enum Held {
    Snapshot(Snapshot),
    Note(Item),
    LeftOut,
}

/// An item whose time has come. Snapshots may be taken out of it: what is put there instead serves again.
pub(crate) enum Due<'a> {
    Snapshot(&'a mut Snapshot),
    Note(&'a Item),
}

impl BeforeEnd {
    /// Takes a snapshot; gives what is due.
    pub fn snapshot(&mut self, snapshot: &Snapshot, mut due: impl FnMut(Due<'_>)) {
        self.leave_out_ends();
        let mut held = self.spare.pop().unwrap_or_default();
        copy(snapshot, &mut held);
        self.regions += regions(&held);
        self.queue.push_back(Held::Snapshot(held));
        let from = snapshot.end_ns.saturating_sub(LAST_NS);
        // Whatever follows a snapshot is due with it.
        while let Some(first) = self.queue.front() {
            match first {
                Held::Snapshot(first) if first.end_ns >= from && self.regions <= MOST_REGIONS => break,
                _ => self.release(&mut due),
            }
        }
    }

    /// Takes any other item; gives what is due.
    pub fn note(&mut self, item: &Item, mut due: impl FnMut(Due<'_>)) {
        if let Item::TargetEnd(end) = item {
            self.ending.insert(end.target);
        }
        match self.queue.is_empty() {
            true => due(Due::Note(item)),
            false => self.queue.push_back(Held::Note(item.clone())),
        }
    }

    /// Gives what is left, and tells of those whose ends were left out.
    pub fn finish(&mut self, mut due: impl FnMut(Due<'_>)) -> Vec<GaveUp> {
        self.leave_out_ends();
        while !self.queue.is_empty() {
            self.release(&mut due);
        }
        std::mem::take(&mut self.gave_up)
    }

    fn release(&mut self, due: &mut impl FnMut(Due<'_>)) {
        match self.queue.pop_front() {
            Some(Held::Snapshot(mut snapshot)) => {
                self.regions = self.regions.saturating_sub(regions(&snapshot));
                due(Due::Snapshot(&mut snapshot));
                if self.spare.len() < SPARE {
                    self.spare.push(snapshot);
                }
            }
            Some(Held::Note(item)) => due(Due::Note(&item)),
            Some(Held::LeftOut) | None => {}
        }
    }

    /// Of those that ended since the last snapshot.
    fn leave_out_ends(&mut self) {
        if self.ending.is_empty() {
            return;
        }
        let ending = std::mem::take(&mut self.ending);
        let mut had: HashMap<u64, Had> = HashMap::new();
        for held in &self.queue {
            let Held::Snapshot(snapshot) = held else { continue };
            let ending = snapshot.targets.iter().filter(|target| ending.contains(&target.id.0));
            ending.for_each(|target| had.entry(target.id.0).or_default().add(target));
        }
        had.retain(|_, had| !had.is_whole());
        for held in self.queue.iter_mut().rev() {
            match held {
                // What comes later is of one that came back.
                Held::Note(Item::TargetEnd(end)) => {
                    had.entry(end.target).and_modify(|had| had.ended = true);
                }
                Held::Snapshot(snapshot) if !had.is_empty() => {
                    let time_ns = snapshot.end_ns;
                    let before = regions(snapshot);
                    snapshot.targets.retain(|target| {
                        let id = target.id.0;
                        let Some(of) = had.get_mut(&id).filter(|had| had.ended) else { return true };
                        if !of.is_whole() {
                            of.sizes.pop();
                            return false;
                        }
                        let left = of.last / of.most;
                        had.remove(&id);
                        self.gave_up.push(GaveUp { target: id, time_ns, left });
                        true
                    });
                    self.regions = self.regions.saturating_sub(before - regions(snapshot));
                }
                Held::Note(Item::Mappings(mappings))
                    if had.get(&mappings.target).is_some_and(|had| had.ended) =>
                {
                    *held = Held::LeftOut;
                }
                _ => {}
            }
        }
    }
}

/// Hands a recording to an analysis of how things stand, without the ends of those that end.
#[derive(Clone, Debug, Default)]
pub struct WithoutEnds<A> {
    before: BeforeEnd,
    analysis: A,
}

impl<A: Accumulate> WithoutEnds<A> {
    /// For this analysis.
    pub fn new(analysis: A) -> Self {
        Self { before: BeforeEnd::default(), analysis }
    }

    /// The analysis, and who gave up memory at its end.
    pub fn finish(mut self) -> (A, Vec<GaveUp>) {
        let gave_up = self.before.finish(|due| take(&mut self.analysis, due));
        (self.analysis, gave_up)
    }
}

impl<A: Accumulate> Accumulate for WithoutEnds<A> {
    fn snapshot(&mut self, snapshot: &Snapshot) {
        self.before.snapshot(snapshot, |due| take(&mut self.analysis, due));
    }

    fn note(&mut self, item: &Item) {
        self.before.note(item, |due| take(&mut self.analysis, due));
    }
}

fn take(analysis: &mut impl Accumulate, due: Due<'_>) {
    match due {
        Due::Snapshot(snapshot) => analysis.snapshot(snapshot),
        Due::Note(item) => analysis.note(item),
    }
}

/// What a target had in the snapshots that are held back.
#[derive(Default)]
struct Had {
    /// Bytes, of each snapshot.
    sizes: Vec<f64>,
    most: f64,
    last: f64,
    /// Its end was met with, from behind.
    ended: bool,
}

impl Had {
    fn add(&mut self, target: &TargetSnapshot) {
        let known: Option<u64> = target.regions.iter().filter_map(|r| r.resident).reduce(u64::saturating_add);
        let mapped = || target.regions.iter().map(|r| r.range.size() as f64).sum();
        // Whoever stands still may be handed on without its regions.
        let bytes = match target.steady && target.regions.is_empty() {
            true => self.last,
            false => known.map_or_else(mapped, |bytes| bytes as f64),
        };
        self.sizes.push(bytes);
        self.most = self.most.max(bytes);
        self.last = bytes;
    }

    /// Whether it was so in the last snapshot that is left.
    fn is_whole(&self) -> bool {
        self.sizes.last().is_none_or(|bytes| *bytes >= WHOLE * self.most)
    }
}

fn regions(snapshot: &Snapshot) -> usize {
    snapshot.targets.iter().map(|target| target.regions.len()).sum()
}

/// Copies a snapshot, into the memory of another.
pub(crate) fn copy(from: &Snapshot, to: &mut Snapshot) {
    let Snapshot { start_ns, end_ns, sample_ns, max_nr_accesses, targets } = from;
    (to.start_ns, to.end_ns) = (*start_ns, *end_ns);
    (to.sample_ns, to.max_nr_accesses) = (*sample_ns, *max_nr_accesses);
    to.targets.clone_from(targets);
}

/// What has to be said of those in `gave_up` that are in a report; nothing of none. `name`: what a target is called there.
pub(crate) fn remark(gave_up: &[GaveUp], origin_ns: u64, name: impl Fn(u64) -> String) -> Option<String> {
    match gave_up {
        [] => None,
        [one] => Some(format!(
            "{} as of {} s: then it gave up memory, and ended with {} of it",
            name(one.target),
            format_seconds(one.time_ns.saturating_sub(origin_ns)),
            format_share(one.left)
        )),
        several => Some(format!(
            "{} as they stood before they gave up memory in the last {} s before their ends",
            counted(several.len() as u64, "process"),
            LAST_NS as f64 / SECOND_NS
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic::{MIB, mapping, mappings, region};
    use isotherm_damon::TargetId;
    use isotherm_record::TargetEnd;

    fn target(id: u64, mib: u64) -> TargetSnapshot {
        TargetSnapshot::new(TargetId(id), vec![region(MIB, (1 + mib) * MIB, 1)])
    }

    fn at(tenths: u64, targets: Vec<TargetSnapshot>) -> Item {
        let (start_ns, end_ns) = (tenths * 100_000_000, (tenths + 1) * 100_000_000);
        Item::Snapshot(Snapshot { start_ns, end_ns, sample_ns: 5_000_000, max_nr_accesses: 20, targets })
    }

    fn end(target: u64) -> Item {
        Item::TargetEnd(TargetEnd { target, time_ns: 0, reason: "exited".to_owned() })
    }

    /// What comes out, and who gave up.
    fn through(items: &[Item]) -> (Vec<Item>, Vec<GaveUp>) {
        let (mut before, mut out) = (BeforeEnd::default(), Vec::new());
        let mut due = |due: Due<'_>| {
            out.push(match due {
                Due::Snapshot(snapshot) => Item::Snapshot(snapshot.clone()),
                Due::Note(item) => item.clone(),
            });
        };
        for item in items {
            match item {
                Item::Snapshot(snapshot) => before.snapshot(snapshot, &mut due),
                other => before.note(other, &mut due),
            }
        }
        let gave_up = before.finish(&mut due);
        (out, gave_up)
    }

    #[test]
    fn what_nobody_ends_in_comes_out_as_it_went_in() {
        let mut items = vec![mappings(1, vec![mapping(MIB, 300 * MIB, "rw-p", "", 0, 0)])];
        for tenth in 0..60 {
            items.push(at(tenth, vec![target(1, 1 + tenth % 7 * 40)]));
            items.push(mappings(1, vec![mapping(MIB, (300 + tenth) * MIB, "rw-p", "", 0, 0)]));
        }
        assert_eq!(through(&items), (items, vec![]));
    }

    #[test]
    fn of_a_target_that_gave_up_its_memory_the_last_whole_snapshot_is_the_last() {
        let names = mappings(1, vec![mapping(MIB, 2 * MIB, "rw-p", "", 0, 0)]);
        let mut items: Vec<Item> =
            (0..40).map(|tenth| at(tenth, vec![target(1, 100), target(2, 50)])).collect();
        items.push(at(40, vec![target(1, 95), target(2, 50)]));
        items.push(names.clone());
        items.push(at(41, vec![target(1, 60), target(2, 10)]));
        items.push(at(42, vec![target(1, 2), target(2, 10)]));
        items.extend([end(1), at(43, vec![target(2, 50)])]);
        let (out, gave_up) = through(&items);
        assert_eq!(gave_up, [GaveUp { target: 1, time_ns: 4_100_000_000, left: 0.02 }]);
        let mut expected = items;
        expected[42] = at(41, vec![target(2, 10)]);
        expected[43] = at(42, vec![target(2, 10)]);
        // Which mappings it had left.
        assert_eq!(expected.remove(41), names);
        assert_eq!(out, expected);
        assert_eq!(
            remark(&gave_up, 0, |id| format!("sort {id}")).as_deref(),
            Some("sort 1 as of 4.100 s: then it gave up memory, and ended with 2 % of it")
        );
    }

    #[test]
    fn what_was_given_up_earlier_is_gone() {
        let mut items: Vec<Item> = (0..20).map(|tenth| at(tenth, vec![target(1, 100)])).collect();
        items.extend((20..45).map(|tenth| at(tenth, vec![target(1, 20)])));
        items.push(end(1));
        assert_eq!(through(&items), (items, vec![]));
    }

    #[test]
    fn who_comes_back_keeps_what_it_came_back_with() {
        let names = |mib| mappings(1, vec![mapping(MIB, mib * MIB, "rw-p", "", 0, 0)]);
        let items = [
            at(0, vec![target(1, 100)]),
            names(2),
            at(1, vec![target(1, 1)]),
            end(1),
            names(9),
            at(2, vec![target(1, 8)]),
        ];
        let (out, gave_up) = through(&items);
        assert_eq!(gave_up, [GaveUp { target: 1, time_ns: 100_000_000, left: 0.01 }]);
        let expected =
            [items[0].clone(), at(1, vec![]), items[3].clone(), items[4].clone(), items[5].clone()];
        assert_eq!(out, expected);
    }

    #[test]
    fn who_stands_still_has_what_it_had() {
        let mut still = target(1, 0);
        still.regions.clear();
        still.steady = true;
        let items =
            [at(0, vec![target(1, 100)]), at(1, vec![still.clone()]), at(2, vec![target(1, 1)]), end(1)];
        let (out, gave_up) = through(&items);
        assert_eq!(gave_up, [GaveUp { target: 1, time_ns: 200_000_000, left: 0.01 }]);
        assert_eq!(out, [at(0, vec![target(1, 100)]), at(1, vec![still]), at(2, vec![]), end(1)]);
    }

    #[test]
    fn large_snapshots_are_not_held_back() {
        let many = |tenth, regions| {
            let list = (0..regions).map(|i| region(i * MIB, (i + 1) * MIB, 0)).collect();
            at(tenth, vec![TargetSnapshot::new(TargetId(1), list)])
        };
        let mut before = BeforeEnd::default();
        for tenth in 0..8 {
            let Item::Snapshot(snapshot) = many(tenth, MOST_REGIONS as u64 / 3) else { unreachable!() };
            before.snapshot(&snapshot, |_| {});
            assert!(before.regions <= MOST_REGIONS && before.queue.len() <= 3);
        }
        let Item::Snapshot(snapshot) = many(9, MOST_REGIONS as u64 + 1) else { unreachable!() };
        before.snapshot(&snapshot, |_| {});
        assert!(before.regions == 0 && before.queue.is_empty());
    }
}

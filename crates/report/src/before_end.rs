//! How things stood before a program's end.
//!
//! Programs that end give back what they hold, piece by piece, and often that is what their last snapshots show: little more than
//! libraries. Whoever asks what a program held means none of that. So of one that ended, what gives back memory in its last
//! [`LAST_NS`] is left out: its snapshots after the last one in which it had most of what it had in that time ([`WHOLE`]), and its
//! mappings since; its end is told there ([`Ends::Each`]). Where a single moment is shown it is one of all of them: the last snapshot
//! in which they had most, if all of them ended ([`Ends::Together`]). What is left out is reported ([`GaveUp`]). Series over time are
//! not concerned: there the end belongs to the picture. Whoever executes another program begins anew.
//!
//! For that, items are held back until they are older than [`LAST_NS`], or more than [`MOST_REGIONS`] or [`MOST_NOTES`]: of large
//! snapshots less than that time is looked at.

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

/// Regions and mappings held back at most: 8 MB. Of snapshots that are larger, ends are shown as they are. A guess.
const MOST_REGIONS: usize = 1 << 17;

/// Other items held back at most, as of control groups that are empty for days. A guess.
const MOST_NOTES: usize = 1 << 12;

/// Of so many it is reported that they gave up memory, the last ones: more than reports have lines of processes that ended.
const MOST_TOLD: usize = 1 << 10;

/// Snapshots that are kept for their memory. A guess.
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

/// Whose ends are left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Ends {
    /// Each program's own.
    #[default]
    Each,
    /// That of all there are, at the end of the recording.
    Together,
}

/// Holds back the last items, and leaves out what shows ends.
#[derive(Clone, Debug, Default)]
pub(crate) struct BeforeEnd {
    ends: Ends,
    /// Together, of these only; of all where it is empty.
    wanted: Vec<u64>,
    queue: VecDeque<Held>,
    /// Regions and mappings in it, and items other than snapshots.
    regions: usize,
    notes: usize,
    /// When each became what it is: whoever executes another program begins anew, and an aggregation that began before shows what
    /// there was before.
    since: HashMap<u64, u64>,
    /// Each by itself: those whose regions were handed on. As long as they stand still they are not needed again.
    met: HashSet<u64>,
    /// Those that ended: since the last snapshot, or without one since.
    ended: HashSet<u64>,
    gave_up: Vec<GaveUp>,
    spare: Vec<Snapshot>,
}

#[derive(Clone, Debug)]
enum Held {
    Snapshot(Snapshot),
    Note(Box<Item>),
    LeftOut,
}

/// An item whose time has come. Snapshots may be taken out of it: what is put there instead serves again.
pub(crate) enum Due<'a> {
    Snapshot(&'a mut Snapshot),
    Note(&'a Item),
}

impl BeforeEnd {
    /// For a moment of all, or of these targets.
    pub fn together(wanted: Vec<u64>) -> Self {
        Self { ends: Ends::Together, wanted, ..Self::default() }
    }

    /// Takes a snapshot; gives what is due.
    pub fn snapshot(&mut self, snapshot: &Snapshot, mut due: impl FnMut(Due<'_>)) {
        match self.ends {
            Ends::Each => self.leave_out_each(),
            Ends::Together if self.ended.is_empty() => {}
            // Who came back has not ended.
            Ends::Together => snapshot.targets.iter().for_each(|target| _ = self.ended.remove(&target.id.0)),
        }
        let mut held = self.spare.pop().unwrap_or_default();
        let (met, each) = (&mut self.met, self.ends == Ends::Each);
        copy_where(snapshot, &mut held, |target| !each || met.insert(target.id.0) || !target.steady);
        self.regions += regions(&held);
        self.queue.push_back(Held::Snapshot(held));
        self.release_until(snapshot.end_ns.saturating_sub(LAST_NS), &mut due);
    }

    /// Gives what is due: snapshots that ended before `from`, and what there is too much of.
    fn release_until(&mut self, from: u64, due: &mut impl FnMut(Due<'_>)) {
        // Whatever follows a snapshot is due with it.
        while let Some(first) = self.queue.front() {
            let is_full = self.regions > MOST_REGIONS || self.notes > MOST_NOTES;
            match first {
                Held::Snapshot(first) if first.end_ns >= from && !is_full => break,
                _ => self.release(due),
            }
        }
    }

    /// Takes any other item; gives what is due.
    pub fn note(&mut self, item: &Item, mut due: impl FnMut(Due<'_>)) {
        if let Item::TargetEnd(end) = item
            && is_end_of_program(&end.reason)
        {
            self.ended.insert(end.target);
        }
        match item {
            Item::TargetEnd(end) => _ = self.met.remove(&end.target),
            Item::Target(info) => {
                if self.ends == Ends::Each && self.ended.contains(&info.id) {
                    self.leave_out_each();
                }
                // Before the first of them it was nothing.
                self.since.entry(info.id).and_modify(|since| *since = info.time_ns).or_insert(0);
            }
            _ => {}
        }
        if self.queue.is_empty() {
            return due(Due::Note(item));
        }
        self.notes += 1;
        self.regions += nr_mappings(item);
        self.queue.push_back(Held::Note(Box::new(item.clone())));
        self.release_until(0, &mut due);
    }

    /// Gives what is left, and tells of those whose ends were left out.
    pub fn finish(&mut self, mut due: impl FnMut(Due<'_>)) -> Vec<GaveUp> {
        match self.ends {
            Ends::Each => self.leave_out_each(),
            Ends::Together => self.leave_out_end(),
        }
        while !self.queue.is_empty() {
            self.release(&mut due);
        }
        std::mem::take(&mut self.gave_up)
    }

    /// What stands in the queue, counted anew.
    fn count(&mut self) {
        let size = |held: &Held| match held {
            Held::Snapshot(snapshot) => (regions(snapshot), 0),
            Held::Note(item) => (nr_mappings(item), 1),
            Held::LeftOut => (0, 0),
        };
        (self.regions, self.notes) =
            self.queue.iter().map(size).fold((0, 0), |(regions, notes), (r, n)| (regions + r, notes + n));
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
            Some(Held::Note(item)) => {
                self.notes = self.notes.saturating_sub(1);
                self.regions = self.regions.saturating_sub(nr_mappings(&item));
                due(Due::Note(&item));
            }
            Some(Held::LeftOut) | None => {}
        }
    }

    /// Of those that ended since the last snapshot, what shows how they did.
    fn leave_out_each(&mut self) {
        if self.ended.is_empty() {
            return;
        }
        let ended = std::mem::take(&mut self.ended);
        let mut had: HashMap<u64, Had> = HashMap::new();
        for held in &self.queue {
            match held {
                Held::Snapshot(snapshot) => {
                    let ended = snapshot.targets.iter().filter(|target| ended.contains(&target.id.0));
                    let ended = ended.filter(|target| is_of(&self.since, target, snapshot));
                    ended.for_each(|target| had.entry(target.id.0).or_default().add(target));
                }
                Held::Note(item) => {
                    if let Item::TargetEnd(end) = &**item {
                        // What follows is of one that came back.
                        had.entry(end.target).and_modify(|had| had.ended_before = true);
                    }
                }
                Held::LeftOut => {}
            }
        }
        ended.iter().for_each(|id| _ = self.since.remove(id));
        had.retain(|_, had| !had.is_whole());
        let mut ends: Vec<(usize, Box<Item>)> = Vec::new();
        for (at, held) in self.queue.iter_mut().enumerate().rev() {
            match held {
                Held::Snapshot(snapshot) if !had.is_empty() => {
                    let time_ns = snapshot.end_ns;
                    snapshot.targets.retain(|target| {
                        let id = target.id.0;
                        let Some(of) = had.get_mut(&id).filter(|had| had.end.is_some()) else { return true };
                        if !of.is_whole() {
                            of.sizes.pop();
                            return false;
                        }
                        let left = of.last.share_of(of.most);
                        self.gave_up.push(GaveUp { target: id, time_ns, left });
                        ends.extend(had.remove(&id).and_then(|had| had.end).map(|end| (at + 1, end)));
                        true
                    });
                }
                Held::Note(item) => {
                    let leaves = match &**item {
                        // What comes later is of one that came back.
                        Item::TargetEnd(end) => match had.get_mut(&end.target) {
                            Some(had) if had.end.is_none() => {
                                had.end = Some(item.clone());
                                true
                            }
                            _ => false,
                        },
                        Item::Mappings(maps) => had.get(&maps.target).is_some_and(|had| had.end.is_some()),
                        _ => false,
                    };
                    if leaves {
                        *held = Held::LeftOut;
                    }
                }
                _ => {}
            }
        }
        // The latest first, so that places stay what they are. Whoever else is in the snapshots that follow has gone on without it.
        ends.into_iter().for_each(|(at, end)| self.queue.insert(at, Held::Note(end)));
        self.gave_up.drain(..self.gave_up.len().saturating_sub(MOST_TOLD));
        self.count();
    }

    /// Where all have ended, what shows how they did: everything after the last moment in which they had most.
    fn leave_out_end(&mut self) {
        let mut moments: Vec<Moment> = Vec::new();
        let mut sizes: HashMap<u64, Size> = HashMap::new();
        let mut mosts: HashMap<u64, Size> = HashMap::new();
        for (at, held) in self.queue.iter().enumerate() {
            let Held::Snapshot(snapshot) = held else { continue };
            let wanted = |id| self.wanted.is_empty() || self.wanted.contains(&id);
            for target in snapshot.targets.iter().filter(|target| wanted(target.id.0)) {
                if !is_of(&self.since, target, snapshot) {
                    // What it was then is not what it held: nobody goes back so far.
                    moments.clear();
                    continue;
                }
                // Some recordings have several snapshots of one moment.
                if moments.last().is_none_or(|moment| moment.end_ns != snapshot.end_ns) {
                    moments.push(Moment { at, end_ns: snapshot.end_ns, ..Moment::default() });
                }
                let before = sizes.get(&target.id.0).copied().unwrap_or_default();
                let size = Size::of(target, before);
                sizes.insert(target.id.0, size);
                let most = mosts.entry(target.id.0).or_default();
                *most = most.or(size);
                if let Some(moment) = moments.last_mut() {
                    moment.all = moment.all.and(size);
                    moment.each.insert(target.id.0);
                }
            }
        }
        let most = moments.iter().fold(Size::default(), |most, moment| most.or(moment.all));
        let is_whole = |moment: &Moment| moment.all.share_of(most) >= WHOLE;
        let Some(last) = moments.last() else { return };
        if is_whole(last) || !last.each.iter().all(|id| self.ended.contains(id)) {
            return;
        }
        let Some(whole) = moments.iter().rposition(is_whole) else { return };
        let Moment { end_ns, each, .. } = &moments[whole];
        for &target in each {
            let of = |sizes: &HashMap<u64, Size>| sizes.get(&target).copied().unwrap_or_default();
            let left = of(&sizes).share_of(of(&mosts));
            if self.ended.contains(&target) && left < WHOLE {
                self.gave_up.push(GaveUp { target, time_ns: *end_ns, left });
            }
        }
        self.gave_up.sort_by_key(|of| of.target);
        let first = moments[whole + 1].at;
        // Mappings that were read since the snapshot are of what came then.
        let is_mappings =
            |held: &Held| matches!(held, Held::Note(item) if matches!(**item, Item::Mappings(_)));
        let from = (0..first).rev().find(|&at| matches!(self.queue[at], Held::Snapshot(_))).unwrap_or(first);
        for held in self.queue.iter_mut().skip(from + 1) {
            if is_mappings(held) {
                *held = Held::LeftOut;
            }
        }
        for held in self.queue.iter_mut().skip(first) {
            if matches!(held, Held::Snapshot(_)) {
                *held = Held::LeftOut;
            }
        }
        self.count();
    }
}

/// Whether all of the aggregation is of what the target is now.
fn is_of(since: &HashMap<u64, u64>, target: &TargetSnapshot, snapshot: &Snapshot) -> bool {
    since.get(&target.id.0).is_none_or(|since| snapshot.start_ns >= *since)
}

/// What there was at a time.
#[derive(Default)]
struct Moment {
    /// The place of its first snapshot.
    at: usize,
    end_ns: u64,
    each: HashSet<u64>,
    all: Size,
}

/// Whether a target is none any more because its program ended: others may have been left alone with all that they have.
fn is_end_of_program(reason: &str) -> bool {
    reason.starts_with("exited") || reason.starts_with("killed")
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

/// Bytes, resident and mapped: the latter of what no residence is known of at any time.
#[derive(Clone, Copy, Default)]
struct Size {
    resident: f64,
    mapped: f64,
}

impl Size {
    /// Of a target that had `before` in the snapshot before: what of it is resident is not told each time.
    fn of(target: &TargetSnapshot, before: Self) -> Self {
        // Whoever stands still may be handed on without its regions.
        if target.steady && target.regions.is_empty() {
            return before;
        }
        let resident = target.regions.iter().filter_map(|r| r.resident).reduce(u64::saturating_add);
        let mapped = target.regions.iter().map(|r| r.range.size() as f64).sum();
        Self { resident: resident.map_or(before.resident, |bytes| bytes as f64), mapped }
    }

    fn and(self, other: Self) -> Self {
        Self { resident: self.resident + other.resident, mapped: self.mapped + other.mapped }
    }

    /// Whichever is more.
    fn or(self, other: Self) -> Self {
        Self { resident: self.resident.max(other.resident), mapped: self.mapped.max(other.mapped) }
    }

    fn share_of(self, whole: Self) -> f64 {
        match whole.resident > 0.0 {
            true => self.resident / whole.resident,
            false if whole.mapped > 0.0 => self.mapped / whole.mapped,
            false => 1.0,
        }
    }
}

/// What a target had in the snapshots that are held back.
#[derive(Default)]
struct Had {
    sizes: Vec<Size>,
    most: Size,
    last: Size,
    /// Its end, which is met with from behind.
    end: Option<Box<Item>>,
    /// It had ended when it came back.
    ended_before: bool,
}

impl Had {
    fn add(&mut self, target: &TargetSnapshot) {
        if std::mem::take(&mut self.ended_before) {
            *self = Self::default();
        }
        let size = Size::of(target, self.last);
        self.sizes.push(size);
        self.most = self.most.or(size);
        self.last = size;
    }

    /// Whether it was so in the last snapshot that is left.
    fn is_whole(&self) -> bool {
        self.sizes.last().is_none_or(|size| size.share_of(self.most) >= WHOLE)
    }
}

fn regions(snapshot: &Snapshot) -> usize {
    snapshot.targets.iter().map(|target| target.regions.len()).sum()
}

fn nr_mappings(item: &Item) -> usize {
    if let Item::Mappings(mappings) = item { mappings.maps.len() } else { 0 }
}

/// Copies a snapshot, into the memory of another, but for the regions of some.
fn copy_where(from: &Snapshot, to: &mut Snapshot, mut with_regions: impl FnMut(&TargetSnapshot) -> bool) {
    let mut targets = std::mem::take(&mut to.targets);
    targets.resize_with(from.targets.len(), TargetSnapshot::default);
    for (to, from) in targets.iter_mut().zip(&from.targets) {
        if with_regions(from) {
            to.clone_from(from);
        } else {
            (to.id, to.steady) = (from.id, from.steady);
            to.regions.clear();
        }
    }
    *to = Snapshot { targets, ..*from };
}

/// What has to be said of those in `gave_up` that are in a report; nothing of none. `name`: what a target is called there.
pub(crate) fn remark(gave_up: &[GaveUp], origin_ns: u64, name: impl Fn(u64) -> String) -> Option<String> {
    /// So many are named.
    const FEW: usize = 3;
    match gave_up {
        [] => None,
        [one] => Some(format!(
            "{} as of {} s: then it gave up memory, and ended with {} of it",
            name(one.target),
            format_seconds(one.time_ns.saturating_sub(origin_ns)),
            format_share(one.left)
        )),
        several => {
            let who = match several.len() {
                0..=FEW => several.iter().map(|of| name(of.target)).collect::<Vec<_>>().join(", "),
                many => counted(many as u64, "process"),
            };
            let last = LAST_NS as f64 / SECOND_NS;
            Some(format!("{who} as they stood before they gave up memory, in their last {last} s"))
        }
    }
}

#[cfg(test)]
mod tests;

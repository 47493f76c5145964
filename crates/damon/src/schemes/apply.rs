//! One pass of one scheme: which memory, in which order, and the acting.
//!
//! A pass takes time in proportion to the number of regions: they are gone through once to find *candidates* (parts of
//! matching regions that the core's filters leave), which are ordered by counting their ranks. It holds addresses from then
//! on, so that it does not matter what becomes of regions meanwhile.

use super::attempt::{Attempt, Deferred, try_candidate};
use super::goal::{Feedback, Stretch, feedback};
use super::priority::{RANKS, is_ordered, rank};
use super::quota::ns;
use super::set::State;
use super::{Action, Actions, Metrics, Refusal, Scheme};
use crate::{AddrRange, Moment, RegionSnapshot, Target, TargetId};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// Where the last pass under a quota stopped among regions of one rank: the next one goes on there, and comes round to the
/// first again. By address, since regions change between passes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cursor {
    id: TargetId,
    target: usize,
    addr: u64,
}

impl Cursor {
    /// Finds the target again. If it is gone, the one that came after it is next.
    fn settle(&mut self, targets: &[Target]) {
        let unset = self.target == 0 && self.addr == 0;
        if unset || targets.get(self.target).is_some_and(|target| target.id == self.id) {
            return;
        }
        match targets.iter().position(|target| target.id == self.id) {
            Some(target) => self.target = target,
            None => self.addr = 0,
        }
    }
}

/// A part of a region that the action is meant for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Candidate {
    pub target: usize,
    pub id: TargetId,
    rank: u16,
    /// Which one it is in the order of addresses.
    place: usize,
    /// The operations' filters are to be asked.
    pub filtered: bool,
    /// What is known of it, with the part's own range.
    pub region: RegionSnapshot,
    /// It, and the candidates left and right of it without a gap, which are asked the same filters.
    pub run: AddrRange,
}

/// How far a pass has come with a target.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    refused: bool,
    /// Some of its candidates were left for the quota.
    cut: bool,
}

/// What passes work with; kept, so that none allocates when as many regions were seen before.
#[derive(Clone, Debug, Default)]
pub(super) struct Scratch {
    found: Vec<Candidate>,
    ordered: Vec<Candidate>,
    /// For each of those found where what is left of it begins: what goes with the one before it was acted on with that.
    begin: Vec<u64>,
    targets: Vec<Progress>,
    /// For each rank, where in the order it ends.
    ends: Vec<usize>,
}

/// A part of a region, which has a share of what is resident.
pub(super) fn part(region: &RegionSnapshot, range: AddrRange) -> RegionSnapshot {
    let whole = u128::from(region.range.size().max(1));
    let size = u128::from(range.size()).min(whole);
    let resident = region.resident.map(|bytes| (u128::from(bytes) * size / whole) as u64);
    RegionSnapshot { range, resident, ..*region }
}

/// Adds bytes to a count that must not begin anew.
pub(super) fn add(count: &mut u64, bytes: u64) {
    *count = count.saturating_add(bytes);
}

/// Lets an active scheme act once.
pub(super) fn pass(
    scheme: &Scheme,
    index: usize,
    state: &mut State,
    scratch: &mut Scratch,
    moment: &mut Moment<'_>,
    actions: &mut impl Actions,
    metrics: &mut impl Metrics,
) {
    let limited = scheme.quota.is_limited();
    state.tried.clear();
    state.stats.nr_passes += 1;
    if limited {
        open_window(scheme, index, state, moment, metrics);
        if state.window.is_full(moment.min_region) {
            return;
        }
        state.window.begin_pass(scheme.apply_interval.unwrap_or(moment.attrs.aggr));
        if !is_ordered(scheme.action, scheme.quota.weights) {
            state.cursors.retain(|rank, _| *rank == 0);
        }
        state.cursors.values_mut().for_each(|cursor| cursor.settle(moment.targets()));
    }
    let targets = find(scheme, state, scratch, moment, limited);
    join(scratch);
    if limited {
        order(&state.cursors, scratch);
        put_first(state.deferred.take(), &mut scratch.ordered);
    } else {
        scratch.ordered.clone_from(&scratch.found);
    }
    scratch.targets.clear();
    scratch.targets.resize(targets, Progress::default());
    act(scheme, index, state, scratch, moment, actions);
    let gone_through = moment.targets().iter().zip(&scratch.targets);
    let whole = gone_through.filter(|(target, progress)| !target.regions.is_empty() && !progress.cut);
    state.stats.nr_snapshots += whole.count() as u64;
    if limited {
        // They were tried by priority.
        state.tried.sort_unstable_by_key(|tried| (tried.target, tried.region.range.start));
    }
}

fn open_window(
    scheme: &Scheme,
    index: usize,
    state: &mut State,
    moment: &Moment<'_>,
    metrics: &mut impl Metrics,
) {
    let quota = &scheme.quota;
    if !state.window.is_over(quota, moment.now_ns) {
        return;
    }
    let stretch =
        Stretch { elapsed_ns: state.window.elapsed_ns(moment.now_ns), reset_ns: ns(quota.reset_interval) };
    let feedback =
        (!quota.goals.is_empty()).then(|| feedback(&quota.goals, index, &mut state.goals, stretch, metrics));
    state.blind = feedback == Some(Feedback::Blind);
    state.stats.nr_blind_windows += u64::from(state.blind);
    let monitored = if feedback.is_some() { moment.size() } else { 0 };
    let was_full = state.window.open(quota, moment.now_ns, feedback, monitored, moment.min_region);
    state.stats.qt_exceeds += u64::from(was_full);
}

/// Finds the candidates, in the order of targets and addresses. How many targets were gone through: no more than the limit of
/// snapshots leaves.
fn find(
    scheme: &Scheme,
    state: &mut State,
    scratch: &mut Scratch,
    moment: &Moment<'_>,
    limited: bool,
) -> usize {
    scratch.found.clear();
    let most = scheme.max_nr_snapshots.map_or(u64::MAX, |most| most.get() - state.stats.nr_snapshots);
    let (mut targets, mut snapshots, mut left_alone) = (0, 0, 0u64);
    for (index, target) in moment.targets().iter().enumerate() {
        if snapshots >= most {
            break;
        }
        targets = index + 1;
        snapshots += u64::from(!target.regions.is_empty());
        for region in &target.regions {
            if !scheme.pattern.matches(moment, region) {
                continue;
            }
            let known = moment.snapshot(region);
            let rank = if limited { rank(scheme.action, scheme.quota.weights, moment, region) } else { 0 };
            let cursor = state.cursors.get(&rank).filter(|c| limited && c.target == index);
            let first = state.deferred.filter(|first| limited && first.id == target.id);
            let (start, end) = first.map_or((0, 0), |first| (first.range.start, first.range.end));
            let mut cuts = [cursor.map_or(0, |cursor| cursor.addr), start, end];
            cuts.sort_unstable();
            let found = &mut scratch.found;
            scheme.filters.divide(target.id, region.range, moment.min_region, |range, filtered| {
                if known.is_unknown() && !scheme.unknown {
                    left_alone = left_alone.saturating_add(range.size());
                    return;
                }
                let mut push = |range| {
                    let region = part(&known, range);
                    let candidate = Candidate {
                        target: index,
                        id: target.id,
                        rank,
                        filtered,
                        region,
                        ..Candidate::default()
                    };
                    found.push(candidate);
                };
                let mut start = range.start;
                for cut in cuts {
                    if start < cut && cut < range.end {
                        push(AddrRange::new(start, cut));
                        start = cut;
                    }
                }
                push(AddrRange::new(start, range.end));
            });
        }
    }
    state.stats.sz_unknown_last = left_alone;
    add(&mut state.stats.sz_unknown, left_alone);
    targets
}

/// Tells candidates which of them they are, and of their neighbours.
fn join(scratch: &mut Scratch) {
    let Scratch { found, begin, .. } = scratch;
    begin.clear();
    begin.resize(found.len(), 0);
    let goes_on = |left: &Candidate, right: &Candidate| {
        left.target == right.target
            && left.filtered == right.filtered
            && left.region.range.end == right.region.range.start
    };
    let mut place = 0;
    for run in found.chunk_by_mut(goes_on) {
        let (start, end) =
            (run.first().map(|c| c.region.range.start), run.last().map(|c| c.region.range.end));
        for candidate in run {
            candidate.run = AddrRange::new(start.unwrap_or(0), end.unwrap_or(0));
            candidate.place = place;
            place += 1;
        }
    }
}

/// What had its turn in the last window and did not fit is first in this one, or smaller ones would be preferred for ever.
fn put_first(deferred: Option<Deferred>, ordered: &mut [Candidate]) {
    let Some(first) = deferred else { return };
    let at = ordered.iter().position(|c| c.id == first.id && c.region.range.start == first.range.start);
    if let Some(until) = at.and_then(|at| ordered.get_mut(..=at)) {
        until.rotate_right(1);
    }
}

/// Puts candidates into the order in which they have their turn: by rank, the highest first; those of one rank by address,
/// from where the last pass stopped round to there again.
fn order(cursors: &BTreeMap<u16, Cursor>, scratch: &mut Scratch) {
    let Scratch { found, ordered, ends, .. } = scratch;
    ordered.clear();
    ordered.resize(found.len(), Candidate::default());
    ends.clear();
    ends.resize(RANKS, 0);
    for candidate in found.iter() {
        if let Some(count) = ends.get_mut(usize::from(candidate.rank)) {
            *count += 1;
        }
    }
    let mut before = 0;
    for end in ends.iter_mut().rev() {
        // First where the next one of this rank goes, in the end where the last one went.
        (before, *end) = (before + *end, before);
    }
    for candidate in found.iter() {
        let Some(at) = ends.get_mut(usize::from(candidate.rank)) else { continue };
        if let Some(slot) = ordered.get_mut(*at) {
            *slot = *candidate;
        }
        *at += 1;
    }
    for (rank, cursor) in cursors {
        let rank = usize::from(*rank);
        let end = ends.get(rank).copied().unwrap_or(0);
        let start = ends.get(rank + 1).copied().unwrap_or(0);
        let Some(equal) = ordered.get_mut(start..end) else { continue };
        let passed =
            equal.partition_point(|c| (c.target, c.region.range.start) < (cursor.target, cursor.addr));
        equal.rotate_left(passed);
    }
}

fn act(
    scheme: &Scheme,
    index: usize,
    state: &mut State,
    scratch: &mut Scratch,
    moment: &mut Moment<'_>,
    actions: &mut impl Actions,
) {
    let limited = scheme.quota.is_limited();
    let Scratch { found, ordered, begin, targets, .. } = scratch;
    let mut stopped = false;
    for candidate in ordered.iter() {
        let Some(progress) = targets.get_mut(candidate.target) else { continue };
        let whole = candidate.region.range;
        let start = begin.get(candidate.place).map_or(whole.start, |begin| whole.start.max(*begin));
        if start >= whole.end {
            continue;
        }
        stopped |= limited && state.window.is_over_for_now(moment.min_region);
        if stopped {
            progress.cut = true;
            continue;
        }
        if progress.refused {
            add(&mut state.stats.sz_refused, whole.end - start);
            continue;
        }
        let rest =
            Candidate { region: part(&candidate.region, AddrRange::new(start, whole.end)), ..*candidate };
        let Attempt { end, refusal } = try_candidate(scheme, index, state, &rest, moment.min_region, actions);
        if refusal.is_some() {
            add(&mut state.stats.sz_refused, whole.end.saturating_sub(end));
        }
        progress.cut |=
            refusal != Some(Refusal::Target) && refusal != Some(Refusal::Range) && end < whole.end;
        progress.refused |= refusal == Some(Refusal::Target);
        stopped |= refusal == Some(Refusal::Pass);
        if limited {
            let addr = if refusal.is_some() { end.max(whole.end) } else { end };
            let cursor = Cursor { id: candidate.id, target: candidate.target, addr };
            state.cursors.insert(candidate.rank, cursor);
        }
        let right = found.iter().zip(begin.iter_mut()).skip(candidate.place + 1);
        for (_, begin) in right.take_while(|(right, _)| end > whole.end && right.region.range.start < end) {
            *begin = end;
        }
        if end > start && scheme.action != Action::Stat {
            moment.renew(candidate.target, AddrRange::new(start, end));
        }
    }
}

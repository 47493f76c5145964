//! One pass of one scheme: which memory, in which order, and the acting.
//!
//! A pass takes time in proportion to the number of regions: they are gone through once to find *candidates* (parts of
//! matching regions that the core's filters leave), which are ordered by counting their scores. It holds addresses from then
//! on, so that it does not matter what becomes of regions meanwhile.

use super::goal::{Feedback, Stretch, feedback};
use super::priority::{SCORES, is_ordered, score};
use super::quota::ns;
use super::set::State;
use super::{Action, Actions, Metrics, Outcome, Refusal, Request, Scheme, TriedRegion};
use crate::{AddrRange, Moment, RegionSnapshot, Target, TargetId};
use alloc::vec::Vec;

/// Where the last pass under a quota stopped among regions of one score: the next one goes on there, and comes round to the
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
struct Candidate {
    target: usize,
    id: TargetId,
    score: u8,
    /// The operations' filters are to be asked.
    filtered: bool,
    /// What is known of it, with the part's own range.
    region: RegionSnapshot,
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
    targets: Vec<Progress>,
}

/// A part of a region, which has a share of what is resident.
fn part(region: &RegionSnapshot, range: AddrRange) -> RegionSnapshot {
    let (size, whole) = (u128::from(range.size()), u128::from(region.range.size().max(1)));
    let resident = region.resident.map(|bytes| (u128::from(bytes) * size / whole) as u64);
    RegionSnapshot { range, resident, ..*region }
}

/// Adds bytes to a count that must not begin anew.
fn add(count: &mut u64, bytes: u64) {
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
        let levels = if is_ordered(scheme.action, scheme.quota.weights) { SCORES } else { 1 };
        state.cursors.resize(levels, Cursor::default());
        state.cursors.iter_mut().for_each(|cursor| cursor.settle(moment.targets()));
    }
    let targets = find(scheme, state, scratch, moment, limited);
    if limited {
        order(&state.cursors, scratch);
    } else {
        core::mem::swap(&mut scratch.found, &mut scratch.ordered);
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
    state.stats.nr_blind_windows += u64::from(feedback == Some(Feedback::Blind));
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
            let score = if limited { score(scheme.action, scheme.quota.weights, moment, region) } else { 0 };
            let cursor = state.cursors.get(usize::from(score)).filter(|c| limited && c.target == index);
            let found = &mut scratch.found;
            scheme.filters.divide(target.id, region.range, moment.min_region, |range, filtered| {
                if known.is_unknown() && !scheme.unknown {
                    left_alone = left_alone.saturating_add(range.size());
                    return;
                }
                let mut push = |range| {
                    let region = part(&known, range);
                    found.push(Candidate { target: index, id: target.id, score, filtered, region });
                };
                match cursor.filter(|cursor| range.start < cursor.addr && cursor.addr < range.end) {
                    Some(cursor) => {
                        push(AddrRange::new(range.start, cursor.addr));
                        push(AddrRange::new(cursor.addr, range.end));
                    }
                    None => push(range),
                }
            });
        }
    }
    state.stats.sz_unknown_last = left_alone;
    add(&mut state.stats.sz_unknown, left_alone);
    targets
}

/// Puts candidates into the order in which they have their turn: by score, the highest first; those of one score by address,
/// from where the last pass stopped round to there again.
fn order(cursors: &[Cursor], scratch: &mut Scratch) {
    let Scratch { found, ordered, .. } = scratch;
    ordered.clear();
    ordered.resize(found.len(), Candidate::default());
    let mut ends = [0usize; SCORES];
    for candidate in found.iter() {
        if let Some(count) = ends.get_mut(usize::from(candidate.score)) {
            *count += 1;
        }
    }
    let mut before = 0;
    for end in ends.iter_mut().rev() {
        // First where the next one of this score goes, in the end where the last one went.
        (before, *end) = (before + *end, before);
    }
    for candidate in found.iter() {
        let Some(at) = ends.get_mut(usize::from(candidate.score)) else { continue };
        if let Some(slot) = ordered.get_mut(*at) {
            *slot = *candidate;
        }
        *at += 1;
    }
    for (score, cursor) in cursors.iter().enumerate() {
        let end = ends.get(score).copied().unwrap_or(0);
        let start = ends.get(score + 1).copied().unwrap_or(0);
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
    let Scratch { ordered, targets, .. } = scratch;
    let mut stopped = false;
    for candidate in ordered.iter() {
        let Some(progress) = targets.get_mut(candidate.target) else { continue };
        stopped |= limited && state.window.is_full(moment.min_region);
        if stopped {
            progress.cut = true;
            continue;
        }
        if progress.refused {
            add(&mut state.stats.sz_refused, candidate.region.range.size());
            continue;
        }
        let (done, refusal) = try_candidate(scheme, index, state, candidate, moment, actions);
        let range = candidate.region.range;
        let end = range.start + done;
        if refusal.is_some() {
            add(&mut state.stats.sz_refused, range.end - end);
        }
        progress.cut |=
            refusal != Some(Refusal::Target) && refusal != Some(Refusal::Range) && end < range.end;
        progress.refused |= refusal == Some(Refusal::Target);
        stopped |= refusal == Some(Refusal::Pass);
        if let Some(cursor) = state.cursors.get_mut(usize::from(candidate.score)).filter(|_| limited) {
            let addr = if refusal.is_some() { range.end } else { end };
            *cursor = Cursor { id: candidate.id, target: candidate.target, addr };
        }
        if done > 0 && scheme.action != Action::Stat {
            moment.renew(candidate.target, AddrRange::new(range.start, end));
        }
    }
}

/// Tries one candidate as far as the quota lets it. Bytes tried, from its start on, and why it was not more.
fn try_candidate(
    scheme: &Scheme,
    index: usize,
    state: &mut State,
    candidate: &Candidate,
    moment: &Moment<'_>,
    actions: &mut impl Actions,
) -> (u64, Option<Refusal>) {
    let limited = scheme.quota.is_limited();
    let range = candidate.region.range;
    let filters = if candidate.filtered { scheme.filters.ops.as_slice() } else { &[] };
    let counts_only = scheme.action == Action::Stat;
    let (mut at, mut applied, mut passed, mut refusal) = (range.start, 0u64, 0u64, None);
    while at < range.end && !(limited && state.window.is_full(moment.min_region)) {
        let rest = range.end - at;
        let size = if limited { state.window.piece(rest, moment.min_region) } else { rest };
        let outcome = if counts_only && filters.is_empty() {
            Outcome::default()
        } else {
            let request = Request {
                scheme: index,
                action: scheme.action,
                target: candidate.id,
                range: AddrRange::new(at, at + size),
                region: &candidate.region,
                filters,
                nodes: &scheme.nodes,
                time_left_ns: state.window.time_left().filter(|_| limited),
            };
            match actions.apply(&request) {
                Ok(outcome) => {
                    state.stats.latencies.add(outcome.took_ns);
                    outcome
                }
                Err(why) => {
                    refusal = Some(why);
                    break;
                }
            }
        };
        let took = if counts_only { 0 } else { outcome.applied.min(size) };
        if limited {
            state.window.charge(size, took, outcome.took_ns, scheme.quota.fail_charge);
        }
        (applied, passed) = (applied + took, passed + outcome.passed.min(size));
        at += size;
    }
    let done = at - range.start;
    if done > 0 {
        let region = part(&candidate.region, AddrRange::new(range.start, at));
        state.tried.push(TriedRegion { target: candidate.id, region, sz_filter_passed: passed });
        let stats = &mut state.stats;
        stats.nr_tried += 1;
        add(&mut stats.sz_tried, done);
        stats.nr_applied += u64::from(applied > 0);
        add(&mut stats.sz_applied, applied);
        add(&mut stats.sz_ops_filter_passed, passed);
    }
    (done, refusal)
}

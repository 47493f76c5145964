//! One candidate of a pass, in pieces as large as the quota lets them be.
//!
//! Memory comes in units that are acted on whole or not at all: least regions here, large folios for those who act. A piece
//! that ends within such a unit, at the border of a region or of what the quota leaves, comes back with it
//! ([`Outcome::cut`]). It is asked for in a call of its own then, also if it reaches into the next region, as long as that
//! matches. A unit for which the window has no room left closes it, and comes first in the next one; what has more bytes than a
//! whole window is asked for in part, which is to say left alone, unless it can be divided ([`Outcome::divides`]). What can be is
//! also asked for in part where much of the window would be left unused. An action that stops for want of time ends the pass: the
//! next one goes on where it stopped.

use super::apply::{Candidate, add, part};
use super::quota::Call;
use super::set::State;
use super::{Action, Actions, Outcome, Refusal, Request, Scheme, TriedRegion};
use crate::{AddrRange, TargetId};

/// What had its turn, and did not fit into what was left of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Deferred {
    pub id: TargetId,
    pub range: AddrRange,
}

/// How far it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Attempt {
    /// Where what was tried ends: behind the candidate, if something at its end went on.
    pub end: u64,
    /// Why it was not more.
    pub refusal: Option<Refusal>,
}

/// Tries one candidate as far as the quota lets it.
pub(super) fn try_candidate(
    scheme: &Scheme,
    index: usize,
    state: &mut State,
    candidate: &Candidate,
    min_region: u64,
    actions: &mut impl Actions,
) -> Attempt {
    let limited = scheme.quota.is_limited();
    let range = candidate.region.range;
    let filters = if candidate.filtered { scheme.filters.ops.as_slice() } else { &[] };
    let counts_only = scheme.action == Action::Stat;
    let (mut at, mut refusal, mut unit) = (range.start, None, None);
    let (mut tried, mut applied, mut passed) = (0u64, 0u64, 0u64);
    while at < range.end && !(limited && state.window.is_over_for_now(min_region)) {
        let rest = range.end - at;
        let size = if limited { state.window.piece(rest, min_region) } else { rest };
        let piece = AddrRange::new(at, at + size);
        let (asked, matches) = match unit.take() {
            None => (piece, candidate.run),
            Some((unit, _)) if !limited || state.window.fits(AddrRange::size(unit)) => (unit, candidate.run),
            Some((_, divides)) if !state.window.is_used() || divides && state.window.has_much_left() => {
                (piece, piece)
            }
            Some((unit, _)) => {
                state.window.close();
                state.deferred = Some(Deferred { id: candidate.id, range: unit });
                break;
            }
        };
        let outcome = if counts_only && filters.is_empty() {
            Outcome::default()
        } else {
            let request = Request {
                scheme: index,
                action: scheme.action,
                target: candidate.id,
                range: asked,
                matches,
                region: &candidate.region,
                filters,
                nodes: &scheme.nodes,
                time_left_ns: limited.then(|| state.window.pass_left()),
                window_ns: state.window.opened_ns().filter(|_| limited),
            };
            match actions.apply(&request) {
                Ok(outcome) => outcome,
                Err(why) => {
                    refusal = Some(why);
                    break;
                }
            }
        };
        let stopped = outcome.until.filter(|until| {
            (limited || outcome.refused.is_some()) && (asked.start..asked.end).contains(until)
        });
        let cut = outcome.cut.filter(|cut| {
            stopped.is_none()
                && (asked.start..asked.end).contains(&cut.start)
                && asked.end < cut.end
                && cut.end <= matches.end
        });
        let end = stopped.or(cut.map(|cut| cut.start)).unwrap_or(asked.end);
        unit = cut.map(|cut| (cut, outcome.divides));
        let dealt_with = end - asked.start;
        let skipped = outcome.skipped.min(dealt_with);
        let left = dealt_with - skipped;
        let took = if counts_only { 0 } else { outcome.applied.min(left) };
        if left > 0 && !(counts_only && filters.is_empty()) {
            // A look at memory of which nothing is there is no action.
            state.stats.latencies.add(outcome.took_ns.saturating_add(outcome.waited_ns));
        }
        if limited {
            let Outcome { took_ns, waited_ns, .. } = outcome;
            let call = Call { tried: left, applied: took, skipped, took_ns, waited_ns };
            state.window.charge(call, scheme.quota.fail_charge);
            if stopped.is_some() && outcome.refused.is_none() {
                state.window.stop();
            }
        }
        (tried, applied, passed) = (tried + left, applied + took, passed + outcome.passed.min(left));
        at = end;
        if stopped.is_some() && outcome.refused.is_some() {
            refusal = outcome.refused;
            break;
        }
    }
    if at > range.start {
        let region = part(&candidate.region, AddrRange::new(range.start, at));
        state.tried.push(TriedRegion { target: candidate.id, region, sz_filter_passed: passed });
    }
    if tried > 0 {
        let stats = &mut state.stats;
        stats.nr_tried += 1;
        add(&mut stats.sz_tried, tried);
        stats.nr_applied += u64::from(applied > 0);
        add(&mut stats.sz_applied, applied);
        add(&mut stats.sz_ops_filter_passed, passed);
    }
    Attempt { end: at, refusal }
}

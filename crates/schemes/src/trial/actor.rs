//! What acts in a dry run: it notes what would have been done.

use super::account::Account;
use super::later::Later;
use super::mapped::Mapped;
use super::memory::{Mark, Memory};
use super::recorded::density;
use super::returning::{Evidence, accessed, missed};
use isotherm_damon::schemes::{Action, Actions, Outcome, Refusal, Request};
use isotherm_damon::{PAGE_SIZE, RegionSnapshot, Snapshot, TargetId};
use isotherm_report::rate::share_in_use;
use std::collections::BTreeMap;

/// Notes what would have been done.
pub(super) struct Actor<'a> {
    pub memories: &'a mut BTreeMap<TargetId, Memory>,
    pub accounts: &'a mut [Account],
    pub mapped: &'a mut Mapped,
    pub snapshot: &'a Snapshot,
    pub now_ns: u64,
    /// Sampling intervals an aggregation.
    pub intervals: f64,
    pub sample_ns: f64,
    /// Exposures add up from one aggregation to the next.
    pub keeps_account: bool,
    pub evidence: Evidence,
    /// What was recorded later.
    pub later: &'a Later,
    /// Bytes paged out.
    pub paged_out: f64,
}

impl Actions for Actor<'_> {
    fn apply(&mut self, request: &Request<'_>) -> Result<Outcome, Refusal> {
        let Some(memory) = self.memories.get_mut(&request.target) else { return Err(Refusal::Target) };
        // What others map as well is left alone.
        let own = match request.action {
            Action::Stat | Action::Willneed => 1.0,
            _ => self.mapped.own_share(self.snapshot, request.target, request.range),
        };
        let density = density(request.region, || request.region.range.size());
        let now = self.now_ns as f64;
        let pageouts: Vec<bool> = self.accounts.iter().map(|account| account.is_pageout).collect();
        let undone: Vec<bool> = self
            .accounts
            .iter()
            .map(|account| account.action.is_some_and(|a| undoes(request.action, a)))
            .collect();
        // Of accesses that are counted it is not known which pages were accessed.
        let spares = request.action == Action::Pageout && request.region.exposure != RegionSnapshot::COUNTED;
        let (later, intervals, sample_ns, evidence) =
            (self.later, self.intervals, self.sample_ns, self.evidence);
        // Only such a monitor says which pages it saw, and how much it looked at.
        let (looked, spared_for_ns) = match self.accounts.get(request.scheme) {
            Some(account) if self.keeps_account && spares => {
                let age = f64::from(request.region.age) * intervals;
                (looked(self.snapshot, request, age, sample_ns), account.spared_for_ns)
            }
            _ => (1.0, 0),
        };
        let (mut applied, mut there) = (0.0, 0.0);
        memory.all_within(request.range, self.accounts.len(), |range, piece| {
            let bytes = range.size() as f64 * density;
            piece.begin(density);
            piece.settle(density, self.now_ns);
            let out: f64 =
                piece.marks.iter().zip(&pageouts).filter(|(_, out)| **out).map(|(mark, _)| mark.share).sum();
            let out = out.min(1.0);
            for (mark, _) in piece.marks.iter_mut().zip(&undone).filter(|(_, undone)| **undone) {
                *mark = Mark::default();
            }
            (piece.renewed_ns, piece.back) = (Some(self.now_ns), 0.0);
            // If schemes did not act on it before it had the rate of its region for as long as that is old, or the one that is known soon,
            // if that is more: it had that already. Or the one that the next looks found, if nothing was seen until then.
            let rate = accessed(request.region, evidence);
            let more = later.more(request.target, 0, range, rate);
            let rate = more.or_else(|| later.less(request.target, 0, range, rate)).unwrap_or(rate);
            // Of those of its pages that are accessed at all; what is out are the others first.
            let in_use = share_in_use(request.region);
            let rate = (rate / in_use).min(1.0);
            let accesses =
                piece.accesses.unwrap_or_else(|| rate * f64::from(request.region.age.max(1)) * intervals);
            let left = (1.0 - out - piece.young).max(0.0);
            let unused = (1.0 - in_use - out).clamp(0.0, left);
            let idle = unused + (left - unused) * missed(accesses, rate, sample_ns);
            // Of what nobody looked at since it was accessed last the bits are set still, also those from when it was in use; and what was
            // left for that a moment ago is so again.
            let is_again = |cleared: u64| self.now_ns.saturating_sub(cleared) < spared_for_ns;
            let idle = match piece.accesses {
                None => idle * looked,
                Some(_) if piece.cleared_ns.is_some_and(is_again) => 0.0,
                Some(_) => idle,
            };
            let spared = if spares { 1.0 - out - idle } else { 0.0 };
            if spares {
                // What was accessed stays, and is seen to be accessed again or not.
                (piece.young, piece.accesses, piece.cleared_ns) = (0.0, Some(0.0), Some(self.now_ns));
            }
            let Some(mark) = piece.marks.get_mut(request.scheme) else { return };
            // What is not there, and what is as the action would leave it, is not changed by it.
            there += bytes * if request.action == Action::Willneed { out } else { 1.0 - out - spared };
            // Of what is there this part is the target's own.
            let own = if out < 1.0 { ((own - out) / (1.0 - out)).max(0.0) } else { 0.0 };
            let fresh = match request.action {
                Action::Pageout => (1.0 - out - spared) * own,
                Action::Willneed => out,
                _ => (1.0 - mark.share).min(1.0 - out) * own,
            };
            let fresh = fresh.max(0.0);
            applied += fresh * bytes;
            let kept = mark.share;
            mark.share = (kept + fresh).min(1.0);
            if mark.share > 0.0 {
                mark.since_ns = (mark.since_ns * kept + now * fresh) / (kept + fresh).max(f64::MIN_POSITIVE);
            }
        });
        let mut bytes_per_s = u64::MAX;
        if let Some(account) = self.accounts.get_mut(request.scheme) {
            account.applied += applied;
            bytes_per_s = account.bytes_per_s.max(1);
        }
        if request.action == Action::Pageout {
            self.paged_out += applied;
        }
        let applied = applied as u64;
        let took_ns = u128::from(applied) * 1_000_000_000 / u128::from(bytes_per_s);
        let took_ns = u64::try_from(took_ns).unwrap_or(u64::MAX);
        let skipped = match request.action {
            Action::Stat => 0,
            _ => request.range.size().saturating_sub(there as u64),
        };
        Ok(Outcome { applied, passed: applied, took_ns, skipped, ..Outcome::default() })
    }
}

/// What a monitor counts of the exposure of a cell, at most, ns. It is 500 ms (`weight` of the watching monitor's table); of idle areas
/// that were looked at as a whole 455 to 470 were recorded (patterns `fft`, `heap` and `zipf`).
const WATCHED_NS: f64 = 455e6;

/// What such a monitor looks at together.
const CELL: f64 = (64 * PAGE_SIZE) as f64;

/// Share of a region that a monitor looked at in the time in which it was as often accessed as now, so many intervals: its exposure, by
/// that of so many cells of which all windows since then are over. Each is as long as all before it, so that is half of the time or more.
fn looked(snapshot: &Snapshot, request: &Request<'_>, intervals: f64, sample_ns: f64) -> f64 {
    let Some(target) = snapshot.targets.iter().find(|one| one.id == request.target) else { return 1.0 };
    let at = target.regions.partition_point(|region| region.range.end <= request.range.start);
    let Some((before, after)) = target.regions.split_at_checked(at) else { return 1.0 };
    // A recording may not say it.
    let Some(own) = after.first().filter(|own| own.exposure > 0) else { return 1.0 };
    // Regions that are cut for their size have each the exposure of all of it.
    let same = |one: &&RegionSnapshot| {
        (one.exposure, one.nr_accesses_bp, one.seen_bp) == (own.exposure, own.nr_accesses_bp, own.seen_bp)
    };
    let run = before.iter().rev().take_while(same).chain(after.iter().take_while(same));
    let bytes: f64 = run.map(|one| density(one, || one.range.size()) * one.range.size() as f64).sum();
    let of_cell = (intervals / 2.0).min(WATCHED_NS / sample_ns).max(1.0);
    (f64::from(own.exposure) / (bytes / CELL).max(1.0) / of_cell).min(1.0)
}

/// Whether an action takes back what another left.
const fn undoes(action: Action, other: Action) -> bool {
    matches!(
        (action, other),
        (Action::Willneed, Action::Pageout)
            | (Action::Nohugepage, Action::Hugepage | Action::Collapse)
            | (Action::Hugepage | Action::Collapse, Action::Nohugepage)
            | (Action::MigrateHot, Action::MigrateCold)
            | (Action::MigrateCold, Action::MigrateHot)
            | (Action::LruPrio, Action::LruDeprio | Action::Cold)
            | (Action::LruDeprio | Action::Cold, Action::LruPrio)
    )
}

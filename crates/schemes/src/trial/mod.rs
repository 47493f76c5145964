//! Dry runs: what schemes would have done to the memory of a recording, and what that would have cost.
//!
//! The core's schemes run over the recorded regions, snapshot by snapshot, with quotas, apply intervals and filters as they do
//! live. What a live run changes, and a recording of an undisturbed one does not show, is modelled:
//! - **Memory paged out stays out until it is accessed again**, and is not paged out again before. A region's pages are accessed
//!   in an interval with the probability `p` that was recorded, so of what is out `1 - (1 - p)^n` comes back in `n` intervals
//!   (Denning; the estimate of `isotherm report wss`), as far as the evidence for `p` goes. Where
//!   the rate has just changed it is `p` itself, since a region's borders follow a change only after a while. What comes back is a
//!   change of its rate that no monitor misses: the age of memory of which a tenth came back begins anew. What comes to be for the
//!   first time was not out: while that counts as accessed nothing comes back.
//! - **An action lets ages begin anew.** The age of a region is the least of the recorded one and the time since the action, the
//!   mean by size where only a part was acted on, as regions merge. When the recording shows another rate, its age holds again.
//! - **Stale rates.** Where a rate stands still or fades, nobody saw an access; what the next looks found is taken, ten seconds
//!   ahead at most, if that is less. Where a rate is unknown, memory is accessed as often as is known first after that, or was before (`later.rs`).
//! - **What is resident** is what was recorded, less what is out. Where a recording does not say, it is what is mapped.
//! - **What was accessed since it was last looked at stays**, as live, and goes when its turn comes again and it was not accessed
//!   meanwhile. Where nothing was done yet that is the same estimate over the time for which the rate has been what it is. A rate that
//!   is known shortly after counts as well, if that is more: the monitor was late. Not of accesses that were counted page by page.
//! - **Bits stay set until somebody clears them.** At its first turn memory stays that nobody looked at since it was in use; how much of it
//!   the monitor did look at follows from the exposure that it recorded (`actor.rs`). And what was left alone for its bits less than the
//!   least age ago is left alone again, as live.
//! - **What was hardly looked at is not idle** for want of hits: memory is taken as idle only where it was watched for long enough to
//!   know (`returning.rs`).
//! - **What several processes map** is left alone, as far as it can be told (`mapped.rs`).
//! - **Unknown** is left alone, by the core.
//! - **Time** of a quota passes as actions get their bytes done, at a [`Throughput`] that the caller measured.
//!
//! Memory in use is bounded: pieces of memory that schemes left alike are joined.

mod account;
mod actor;
mod later;
mod mapped;
mod memory;
mod recorded;
mod report;
mod returning;
mod series;
mod sweep;
mod throughput;

pub use report::{SchemeTrial, TrialReport, WITHIN_S};
pub use series::Step;
pub use sweep::{Sweep, set};
pub use throughput::Throughput;

use crate::Entry;
use account::Account;
use actor::Actor;
use isotherm_damon::schemes::{Action, CommitError, Metrics, Schemes, WatermarkMetric};
use isotherm_damon::{Attrs, Moment, RegionSnapshot, Snapshot, Target, TargetId, TargetSnapshot};
use isotherm_record::{Item, Mappings, TargetInfo};
use isotherm_report::Accumulate;
use isotherm_report::rate::{interval_ns, share_in_use};
use isotherm_report::units::format_time;
use later::{AHEAD, AHEAD_NS, Later};
use mapped::Mapped;
use memory::Memory;
use recorded::{density, region_of};
use returning::{APPEARED_NS, Evidence, accessed, is_stale, returning};
use series::Series;
use std::collections::btree_map::Entry as Slot;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// When more than this part of what was out of a piece came back, its age begins anew. A guess.
const NOTICED: f64 = 0.1;
/// ... if that is as much as a page of 64, which is what monitors look at.
const LEAST_NOTICED: f64 = 1.0 / 64.0;

/// A dry run of schemes over a recording; give it all items ([`Accumulate`]).
#[derive(Debug)]
pub struct Trial {
    schemes: Schemes,
    titles: Vec<String>,
    accounts: Vec<Account>,
    memories: BTreeMap<TargetId, Memory>,
    mapped: Mapped,
    /// Exposures add up from one aggregation to the next.
    keeps_account: bool,
    fallback: Attrs,
    first_ns: Option<u64>,
    last_ns: u64,
    intervals: u64,
    snapshots: u64,
    resident_byte_ns: f64,
    /// The part of it that is only what is mapped.
    mapped_byte_ns: f64,
    out_byte_ns: f64,
    most_out: f64,
    series: Series,
    assumed: Vec<String>,
    /// What was read and not gone through yet.
    pending: VecDeque<Pending>,
}

/// An item that waits until those after it are known.
#[derive(Debug)]
enum Pending {
    Snapshot(Arc<Snapshot>),
    Target(TargetInfo),
    Mappings(Mappings),
    End(TargetId),
}

impl Trial {
    /// A run of these schemes. `throughputs` is how much their actions get done in a quota's time; for those it does not name
    /// something is assumed, and that is said.
    ///
    /// # Errors
    /// When one of them is not valid.
    pub fn new(entries: &[Entry], throughputs: &[Throughput]) -> Result<Self, CommitError> {
        let mut schemes = Schemes::new();
        let (mut assumed, mut rates) = (Vec::new(), Vec::new());
        let prepared = entries.iter().enumerate().map(|(index, entry)| {
            let mut scheme = entry.scheme.clone();
            let title = entry.title(index);
            if !scheme.quota.goals.is_empty() {
                scheme.quota.goals.clear();
                assumed.push(format!(
                    "scheme {title}: a recording says nothing of its goals; it does all that the rest of its quota allows"
                ));
            }
            if scheme.watermarks.take().is_some() {
                assumed.push(format!("scheme {title}: a recording says nothing of free memory; its watermarks let it act"));
            }
            if !scheme.filters.ops.is_empty() {
                scheme.filters.ops.clear();
                assumed.push(format!("scheme {title}: a recording says nothing of kinds of pages; those filters let all pass"));
            }
            let (rate, said) = throughput::of(&scheme, &title, throughputs);
            rates.push(rate);
            assumed.extend(said);
            scheme
        });
        let prepared: Vec<_> = prepared.collect();
        let account = |(entry, bytes_per_s)| Account { bytes_per_s, ..Account::of(entry) };
        let accounts = entries.iter().zip(rates).map(account).collect();
        schemes.commit(prepared)?;
        Ok(Self {
            schemes,
            titles: entries.iter().enumerate().map(|(index, entry)| entry.title(index)).collect(),
            accounts,
            memories: BTreeMap::new(),
            mapped: Mapped::default(),
            keeps_account: false,
            fallback: Attrs::default(),
            first_ns: None,
            last_ns: 0,
            intervals: 0,
            snapshots: 0,
            resident_byte_ns: 0.0,
            mapped_byte_ns: 0.0,
            out_byte_ns: 0.0,
            most_out: 0.0,
            series: Series::new(),
            assumed,
            pending: VecDeque::new(),
        })
    }

    /// What they would have done.
    pub fn finish(mut self) -> TrialReport {
        self.go_through(true);
        let seconds = self.first_ns.map_or(0.0, |first| self.last_ns.saturating_sub(first) as f64 / 1e9);
        let per_second = |byte_ns: f64| if seconds > 0.0 { byte_ns / 1e9 / seconds } else { 0.0 };
        let resident_known = self.mapped_byte_ns <= 0.01 * self.resident_byte_ns;
        if !resident_known {
            self.assumed.push(
                "the recording does not say of all memory what is resident; there all that is mapped was taken to be".to_owned(),
            );
        }
        for (title, account) in self.titles.iter().zip(&self.accounts) {
            if seconds > 0.0 && account.min_age_ns > seconds * 1e9 {
                let time = |ns: f64| format_time(ns as u64);
                let (age, length) = (time(account.min_age_ns), time(seconds * 1e9));
                self.assumed.push(format!(
                    "scheme {title}: the recording lasts {length}, and memory is to be {age} old, so next to nothing can match"
                ));
            }
        }
        let schemes = self.accounts.iter().enumerate().map(|(index, account)| {
            let stats = self.schemes.stats(index).cloned().unwrap_or_default();
            SchemeTrial {
                scheme: self.titles.get(index).cloned().unwrap_or_default(),
                action: account.action.map_or("", Action::name).to_owned(),
                tried_bytes: stats.sz_tried,
                applied_bytes: account.applied as u64,
                accessed_again_bytes: account.again as u64,
                accessed_again_within_min_age_bytes: account.again_within_min_age as u64,
                accessed_again_within: WITHIN_S
                    .iter()
                    .zip(account.within)
                    .map(|(s, bytes)| (*s, bytes as u64))
                    .collect(),
                left_bytes: (account.applied - account.again).max(0.0) as u64,
                unknown_bytes: stats.sz_unknown_last,
                quota_exceeds: stats.qt_exceeds,
            }
        });
        TrialReport {
            seconds,
            snapshots: self.snapshots,
            resident_bytes: per_second(self.resident_byte_ns),
            resident_known,
            out_bytes: per_second(self.out_byte_ns),
            out_byte_seconds: self.out_byte_ns / 1e9,
            most_out_bytes: self.most_out as u64,
            schemes: schemes.collect(),
            over_time: self.series.finish(),
            assumed: self.assumed,
        }
    }

    /// The attributes in force, as far as the snapshot says.
    fn attrs(&self, snapshot: &Snapshot) -> Attrs {
        let (start, end) = interval_ns(snapshot);
        let most = u64::from(snapshot.max_nr_accesses);
        let sample_ns = match (snapshot.sample_ns, most) {
            (0, 0) => u64::try_from(self.fallback.sample.as_nanos()).unwrap_or(1),
            (0, most) => (end - start) / most,
            (sample, _) => sample,
        };
        let sample = Duration::from_nanos(sample_ns.max(1000));
        let aggr = if most > 0 {
            sample.saturating_mul(snapshot.max_nr_accesses)
        } else {
            Duration::from_nanos(end - start)
        };
        // Regions are split wherever a scheme stops; the limit is the monitor's affair.
        Attrs { sample, aggr: aggr.max(sample), max_nr_regions: usize::MAX >> 1, ..Attrs::default() }
    }
}

impl Accumulate for Trial {
    fn note(&mut self, item: &Item) {
        match item {
            Item::Header(header) => {
                self.keeps_account = header.backend.name == "pte";
                if header.attrs.sample_us > 0 {
                    self.fallback.sample = Duration::from_micros(header.attrs.sample_us);
                }
            }
            Item::Target(info) => self.pending.push_back(Pending::Target(info.clone())),
            Item::Mappings(mappings) => self.pending.push_back(Pending::Mappings(mappings.clone())),
            Item::TargetEnd(end) => self.pending.push_back(Pending::End(TargetId(end.target))),
            _ => {}
        }
    }

    fn snapshot(&mut self, snapshot: &Snapshot) {
        self.pending.push_back(Pending::Snapshot(Arc::new(snapshot.clone())));
        self.go_through(false);
    }
}

impl Trial {
    /// Goes through what is far enough behind the last snapshot, or all.
    fn go_through(&mut self, all: bool) {
        let last = self.pending.iter().rev().find_map(|pending| match pending {
            Pending::Snapshot(snapshot) => Some(Arc::clone(snapshot)),
            _ => None,
        });
        while let Some(pending) = self.pending.front() {
            if let (Pending::Snapshot(snapshot), Some(last)) = (pending, &last) {
                let ahead = last.end_ns.saturating_sub(snapshot.end_ns);
                if !all && ahead < AHEAD_NS && self.pending.len() < AHEAD {
                    return;
                }
            }
            match self.pending.pop_front() {
                Some(Pending::Snapshot(snapshot)) => {
                    let last = last.as_ref().map_or_else(|| Arc::clone(&snapshot), Arc::clone);
                    let later = self.later(&snapshot, &last);
                    self.step(&snapshot, &later);
                }
                Some(Pending::Target(info)) => self.mapped.target(&info),
                Some(Pending::Mappings(mappings)) => self.mapped.mappings(mappings),
                Some(Pending::End(target)) => {
                    self.memories.remove(&target);
                    self.mapped.gone(target.0);
                }
                None => {}
            }
        }
    }

    /// What is known after `snapshot`.
    fn later(&self, snapshot: &Arc<Snapshot>, last: &Arc<Snapshot>) -> Later {
        let snapshots = || {
            self.pending.iter().filter_map(|pending| match pending {
                Pending::Snapshot(later) => Some(later),
                _ => None,
            })
        };
        Later::new(snapshot, snapshots, last, self.idle_for(&self.attrs(snapshot)))
    }

    /// Goes through a snapshot; what is known `later` was read already.
    fn step(&mut self, snapshot: &Snapshot, later: &Later) {
        let attrs = self.attrs(snapshot);
        let (start, now_ns) = interval_ns(snapshot);
        let first = *self.first_ns.get_or_insert(start);
        // What a gap in the recording hides is taken to go on as before.
        let since = if self.snapshots == 0 { start } else { self.last_ns };
        // Of clears before that nothing is asked any more.
        let spared_for_ns = self.accounts.iter().map(|account| account.spared_for_ns).max().unwrap_or(0);
        let elapsed = now_ns.saturating_sub(since) as f64;
        let sample_ns = attrs.sample.as_nanos() as f64;
        let intervals = (elapsed / sample_ns).max(1.0);
        self.intervals += intervals.round() as u64;
        self.snapshots += 1;
        self.last_ns = now_ns;
        let (again_before, applied_before) = (self.total(|a| a.again), self.total(|a| a.applied));
        let aggr_ns = attrs.aggr.as_nanos() as f64;
        let evidence = Evidence::of_idle_for(self.idle_for(&attrs), snapshot.max_nr_accesses);
        let (mut targets, mut out, mut resident) = (Vec::new(), 0.0, 0.0);
        let mut inherited = self.inherited(snapshot);
        for (index, target) in snapshot.targets.iter().enumerate() {
            let memory = match self.memories.entry(target.id) {
                Slot::Occupied(known) => known.into_mut(),
                // A fork copies what is out as well.
                Slot::Vacant(new) => new.insert(inherited.remove(&target.id).unwrap_or_default()),
            };
            memory.keep(target.regions.iter().map(|region| region.range));
            let mut regions = Vec::with_capacity(target.regions.len());
            for known in &target.regions {
                let density = density(known, || self.mapped.bytes(target.id, known.range));
                resident += density * known.range.size() as f64;
                if known.resident.is_none() {
                    self.mapped_byte_ns += density * known.range.size() as f64 * elapsed;
                }
                let known_rate = (!known.is_unknown()).then(|| accessed(known, evidence));
                let in_use = share_in_use(known);
                let is_counted = known.exposure == RegionSnapshot::COUNTED;
                let recorded = f64::from(known.age);
                let (mut younger, accounts) = (0.0, &mut self.accounts);
                memory.within(known.range, |range, piece| {
                    let bytes = range.size() as f64;
                    let (rate, before) = match known_rate {
                        Some(rate) => {
                            let before = piece.rate.replace(rate).unwrap_or(rate);
                            match later.less(target.id, index, range, rate) {
                                Some(less) if is_stale(rate, before) && !is_counted => (less, less),
                                _ => (rate, before),
                            }
                        }
                        // It is what it turns out to be, or else was.
                        None => {
                            let rate = later.known(target.id, index, range).or(piece.rate).unwrap_or(0.0);
                            (rate, rate)
                        }
                    };
                    piece.settle(density, now_ns);
                    // Of those of its pages that are accessed at all.
                    let (rate, before) = ((rate / in_use).min(1.0), (before / in_use).min(1.0));
                    let returning = match piece.grew_ns {
                        // What came to be was accessed, as far as is known nothing else was.
                        Some(grew) if now_ns.saturating_sub(grew) < APPEARED_NS => 0.0,
                        _ => returning(known, rate, before, intervals),
                    };
                    let out_before = piece.out(accounts);
                    // What is out are those that are not, first.
                    let used = (out_before > 0.0).then(|| (1.0 - (1.0 - in_use) / out_before).max(0.0));
                    let (mut absent, mut present) = (0.0, 0.0);
                    for (account, mark) in accounts.iter_mut().zip(&mut piece.marks) {
                        let used = used.filter(|_| account.is_pageout).unwrap_or(in_use);
                        let back = (mark.share - mark.seen).max(0.0) * used * returning;
                        if back > 0.0 {
                            // On average it was accessed in the middle of the time.
                            let after_ns = now_ns as f64 - elapsed / 2.0 - mark.since_ns;
                            account.accessed_again(back * bytes * density, after_ns);
                            *(if account.is_lasting { &mut mark.seen } else { &mut mark.share }) +=
                                if account.is_lasting { back } else { -back };
                        }
                        if account.is_pageout {
                            out += mark.share * bytes * density;
                            (absent, present) = (absent + mark.share, present + back);
                        }
                    }
                    piece.young = (piece.young + present).min(1.0 - absent.min(1.0));
                    // Once is as good as often.
                    let more = known_rate.and_then(|rate| later.more(target.id, index, range, rate));
                    let accessed = rate.max(more.unwrap_or(0.0) / in_use);
                    piece.accesses = piece.accesses.map(|sum| (sum + accessed * intervals).min(1.0));
                    piece.cleared_ns =
                        piece.cleared_ns.filter(|cleared| now_ns.saturating_sub(*cleared) < spared_for_ns);
                    piece.back += present;
                    if piece.back > LEAST_NOTICED && piece.back > NOTICED * (absent + piece.back) {
                        (piece.renewed_ns, piece.back) = (Some(now_ns), 0.0);
                    }
                    let age =
                        piece.renewed_ns.map(|renewed| (now_ns.saturating_sub(renewed)) as f64 / aggr_ns);
                    match age {
                        Some(age) if age < recorded => younger += (recorded - age) * bytes,
                        // The recording shows a change since then.
                        _ => piece.renewed_ns = None,
                    }
                });
                let age = recorded - younger / known.range.size().max(1) as f64;
                regions.push(region_of(known, age.max(0.0) as u32, density));
            }
            targets.push(Target::new(target.id, regions));
        }
        let mut moment = Moment::new(&mut targets, attrs, now_ns, self.intervals);
        let mut actor = Actor {
            memories: &mut self.memories,
            mapped: &mut self.mapped,
            snapshot,
            accounts: &mut self.accounts,
            now_ns,
            intervals: aggr_ns / sample_ns,
            sample_ns,
            keeps_account: self.keeps_account,
            evidence,
            later,
            paged_out: 0.0,
        };
        self.schemes.apply(&mut moment, &mut actor, &mut Always);
        let paged_out = actor.paged_out;
        for target in &snapshot.targets {
            if let Some(memory) = self.memories.get_mut(&target.id) {
                memory.join(aggr_ns, self.keeps_account);
            }
        }
        self.out_byte_ns += out * elapsed;
        self.resident_byte_ns += resident * elapsed;
        self.most_out = self.most_out.max(out + paged_out);
        let seconds = |ns: u64| ns.saturating_sub(first) as f64 / 1e9;
        self.series.add(Step {
            start_s: seconds(since),
            end_s: seconds(now_ns),
            applied_bytes: self.total(|a| a.applied) - applied_before,
            accessed_again_bytes: self.total(|a| a.again) - again_before,
            out_bytes: out,
        });
    }
}

impl Trial {
    /// What targets that are new in a snapshot have of their parents' memory.
    fn inherited(&self, snapshot: &Snapshot) -> BTreeMap<TargetId, Memory> {
        let new = snapshot.targets.iter().filter(|target| !self.memories.contains_key(&target.id));
        let of = |target: &TargetSnapshot| {
            let parent = self.mapped.parent(target.id).and_then(|parent| self.memories.get(&parent))?;
            Some((target.id, parent.clone()))
        };
        new.filter_map(of).collect()
    }

    /// The least of the schemes' minimum ages, at least an aggregation, in sampling intervals. 0 if the backend counts anew with each
    /// aggregation, so that exposures do not say for how long memory was watched; its age does.
    fn idle_for(&self, attrs: &Attrs) -> f64 {
        if !self.keeps_account {
            return 0.0;
        }
        let ages = self.accounts.iter().map(|account| account.min_age_ns);
        let least_ns = ages.fold(f64::INFINITY, f64::min).max(attrs.aggr.as_nanos() as f64);
        least_ns / attrs.sample.as_nanos() as f64
    }

    fn total(&self, of: impl Fn(&Account) -> f64) -> f64 {
        self.accounts.iter().map(of).sum()
    }
}

/// Watermarks were taken away; nothing else is asked for.
struct Always;

impl Metrics for Always {
    fn watermark(&mut self, _: WatermarkMetric) -> Option<u64> {
        Some(0)
    }
}

//! Where a report comes from: every report says which backend saw the accesses, what it could not see, what the
//! overhead budget cut, and whether the recording is whole.

mod counted;
mod words;

use crate::rate::interval_ns;
use counted::Counted;
use isotherm_damon::Snapshot;
use isotherm_record::{
    Backend, Cost, Header, Item, Mappings, Processes, RecordedAttrs, SchemeAction, TargetInfo,
};
use serde::Serialize;
use std::collections::BTreeSet;

/// Targets described by name; more are counted only.
const MAX_TARGETS: usize = 1024;

/// Targets with an incomplete list of mappings that are counted.
const MAX_INCOMPLETE: usize = 1 << 16;

/// Sums of the [`Cost`] items of a recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct CostTotals {
    /// Wall time covered, ns.
    pub wall_ns: u64,
    /// CPU time of the monitor, ns.
    pub cpu_ns: u64,
    /// Access checks done.
    pub checks: u64,
    /// Most checks in one sampling interval.
    pub max_checks_per_sample: u64,
    /// Pages cleared.
    pub clears: u64,
    /// Checks the overhead budget cut.
    pub checks_cut: u64,
    /// Clears the overhead budget cut.
    pub clears_cut: u64,
    /// Sampling intervals missed because the monitor came late.
    pub samples_missed: u64,
    /// Snapshots an observer lost because it was slow.
    pub snapshots_lost: u64,
    /// Checks that a scan of every resident page in every sampling interval would have done.
    pub full_scan_checks: f64,
    /// Processes that became targets, and those that should have; `waiting` is what was left at the end. `null` where the
    /// recording does not say.
    pub processes: Option<Processes>,
}

impl CostTotals {
    fn add(&mut self, cost: &Cost, sample_us: u64) {
        self.wall_ns = self.wall_ns.saturating_add(cost.wall_ns);
        self.cpu_ns = self.cpu_ns.saturating_add(cost.cpu_ns);
        self.checks = self.checks.saturating_add(cost.checks);
        self.max_checks_per_sample = self.max_checks_per_sample.max(cost.max_checks_per_sample);
        self.clears = self.clears.saturating_add(cost.clears);
        self.checks_cut = self.checks_cut.saturating_add(cost.checks_cut);
        self.clears_cut = self.clears_cut.saturating_add(cost.clears_cut);
        self.samples_missed = self.samples_missed.saturating_add(cost.samples_missed);
        self.snapshots_lost = self.snapshots_lost.saturating_add(cost.snapshots_lost);
        if let Some(more) = cost.processes {
            let none = Processes { too_short: Some(0), ..Processes::default() };
            let so_far = self.processes.unwrap_or(none);
            self.processes = Some(Processes {
                seen: so_far.seen.saturating_add(more.seen),
                too_short: so_far.too_short.zip(more.too_short).map(|(a, b)| a.saturating_add(b)),
                at_most: so_far.at_most.saturating_add(more.at_most),
                unreached: so_far.unreached.saturating_add(more.unreached),
                longest_wait_ns: so_far.longest_wait_ns.max(more.longest_wait_ns),
                waiting: more.waiting,
            });
        }
        if sample_us > 0 {
            let samples = cost.wall_ns as f64 / (sample_us as f64 * 1e3);
            self.full_scan_checks += cost.resident_pages as f64 * samples;
        }
    }

    /// CPU time of the monitor as a share of one CPU; `None` when nothing was measured.
    pub fn cpu_share(&self) -> Option<f64> {
        (self.wall_ns > 0).then(|| self.cpu_ns as f64 / self.wall_ns as f64)
    }
}

/// Actions of a scheme, summed up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ActionTotals {
    /// Name of the scheme.
    pub scheme: String,
    /// What it did.
    pub action: String,
    /// How often.
    pub count: u64,
    /// Bytes that it was tried on.
    pub tried: u64,
    /// Bytes on which it took effect.
    pub applied: u64,
}

/// What became of reading a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// In what way the recording is incomplete, a clause; `None` when it is whole.
    pub truncated: Option<String>,
    /// What was left out, chosen or assumed; a sentence each.
    pub remarks: Vec<String>,
}

/// What is known about a recording besides its snapshots.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Provenance {
    /// Program that made the recording.
    pub producer: String,
    /// Host name.
    pub host: String,
    /// Kernel release.
    pub kernel: String,
    /// Machine.
    pub machine: String,
    /// The command that was started for the recording.
    pub command: Vec<String>,
    /// Wall-clock time of the start, ns since 1970.
    pub started_unix_ns: u64,
    /// The clock of all other times at the start, ns.
    pub started_ns: u64,
    /// Attributes last in force.
    pub attrs: RecordedAttrs,
    /// Whether they changed while recording.
    pub attrs_changed: bool,
    /// Ceiling of the monitor's CPU time as a share of one CPU; 0: none.
    pub overhead_limit: f64,
    /// Who saw the accesses, and what it could not see.
    pub backend: Backend,
    /// Targets, in order of appearance; the first 1024.
    pub targets: Vec<TargetInfo>,
    /// How many targets there were.
    pub nr_targets: u64,
    /// Those that are counted only.
    #[serde(skip)]
    counted: Counted,
    /// Snapshots read.
    pub snapshots: u64,
    /// Regions read, all snapshots and targets.
    pub regions: u64,
    /// Start of the first snapshot, ns.
    pub first_ns: u64,
    /// End of the last snapshot, ns.
    pub last_ns: u64,
    /// What monitoring cost.
    pub cost: CostTotals,
    /// Targets whose list of mappings is not known to its end; what they map beyond is `unknown mapping`.
    pub incomplete_mappings: u64,
    /// Which these are.
    #[serde(skip)]
    incomplete: BTreeSet<u64>,
    /// What schemes did while it was recorded, a line a scheme and action.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub actions: Vec<ActionTotals>,
    /// Why the recording ended; `None` when it has no end.
    pub end: Option<String>,
    /// In what way the recording is incomplete, a clause; `None` when it is whole.
    pub truncated: Option<String>,
    /// What reading it left out, chose or assumed; a sentence each.
    pub remarks: Vec<String>,
}

impl Provenance {
    /// Takes what became of reading the recording.
    pub fn set_reading(&mut self, reading: Reading) {
        (self.truncated, self.remarks) = (reading.truncated, reading.remarks);
    }

    /// Takes what an item says about the recording.
    pub fn item(&mut self, item: &Item) {
        match item {
            Item::Snapshot(snapshot) => self.snapshot(snapshot),
            other => self.note(other),
        }
    }

    /// Counts a snapshot.
    pub fn snapshot(&mut self, snapshot: &Snapshot) {
        self.standing(snapshot, interval_ns(snapshot));
    }

    /// Counts a snapshot that stands for the time from `start` to `end`, ns.
    pub(crate) fn standing(&mut self, snapshot: &Snapshot, (start, end): (u64, u64)) {
        self.first_ns = if self.snapshots == 0 { start } else { self.first_ns.min(start) };
        self.last_ns = self.last_ns.max(end);
        self.snapshots += 1;
        self.regions += snapshot.nr_regions() as u64;
    }

    /// Takes an item other than a snapshot.
    pub fn note(&mut self, item: &Item) {
        match item {
            Item::Header(header) => self.header(header),
            Item::Target(info) => self.target(info),
            Item::Attrs { attrs, .. } => {
                self.attrs_changed |= self.attrs != *attrs;
                self.attrs = *attrs;
            }
            Item::Cost(cost) => self.cost.add(cost, self.attrs.sample_us),
            Item::Action(action) => self.action(action),
            Item::End(end) => {
                self.end = Some(end.reason.clone());
                if !end.blind_spots.is_empty() {
                    self.backend.blind_spots.clone_from(&end.blind_spots);
                }
            }
            Item::TargetEnd(end) => self.counted.end(end.target),
            Item::Mappings(mappings) => self.mappings(mappings),
            Item::Snapshot(_) => {}
        }
    }

    fn target(&mut self, info: &TargetInfo) {
        if let Some(known) = self.targets.iter_mut().find(|t| t.id == info.id) {
            // It runs another program now.
            known.clone_from(info);
        } else if self.targets.len() < MAX_TARGETS {
            self.nr_targets += 1;
            self.targets.push(info.clone());
        } else {
            self.nr_targets += u64::from(self.counted.add(info.id));
        }
    }

    fn mappings(&mut self, mappings: &Mappings) {
        if !mappings.partial {
            self.incomplete.remove(&mappings.target);
        } else if self.incomplete.len() < MAX_INCOMPLETE {
            self.incomplete.insert(mappings.target);
        }
        self.incomplete_mappings = self.incomplete.len() as u64;
    }

    fn action(&mut self, action: &SchemeAction) {
        let same = |t: &ActionTotals| t.scheme == action.scheme && t.action == action.action;
        let at = self.actions.iter().position(same).or_else(|| {
            // No more schemes run at once; of those that a file brought later only the first are told apart.
            (self.actions.len() < MAX_TARGETS).then(|| {
                let (scheme, action) = (action.scheme.clone(), action.action.clone());
                self.actions.push(ActionTotals { scheme, action, ..ActionTotals::default() });
                self.actions.len() - 1
            })
        });
        if let Some(totals) = at.and_then(|at| self.actions.get_mut(at)) {
            totals.count += 1;
            totals.tried = totals.tried.saturating_add(action.tried);
            totals.applied = totals.applied.saturating_add(action.applied);
        }
    }

    fn header(&mut self, header: &Header) {
        self.producer.clone_from(&header.producer);
        self.host.clone_from(&header.host);
        self.kernel.clone_from(&header.kernel);
        self.machine.clone_from(&header.machine);
        self.command.clone_from(&header.command);
        self.started_unix_ns = header.started_unix_ns;
        self.started_ns = header.started_ns;
        self.attrs = header.attrs;
        self.overhead_limit = header.overhead_limit;
        self.backend = header.backend.clone();
    }

    /// The time that reports call 0: the start of the recording, or of the first snapshot where that is unknown or
    /// later than it.
    pub fn origin_ns(&self) -> u64 {
        match self.started_ns {
            0 => self.first_ns,
            started if self.snapshots > 0 => started.min(self.first_ns),
            started => started,
        }
    }

    /// Time covered by the snapshots, ns.
    pub fn length_ns(&self) -> u64 {
        self.last_ns.saturating_sub(self.first_ns)
    }
}

#[cfg(test)]
mod tests;

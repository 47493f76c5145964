//! What a session tells, and to whom.

use crate::maps::MapList;
use crate::process::Process;
use crate::source::Counters;
use crate::targets::{Counts, EndReason};
use isotherm_damon::{Attrs, Snapshot, TargetId};
use std::sync::Arc;
use std::time::Duration;

/// Cost and cuts of a stretch of time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// When it ended, ns of CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// How long it was, ns.
    pub wall_ns: u64,
    /// CPU time of this whole process in it without that of schemes' actions, ns; in the first, also what [`super::SessionOptions::cpu_before`] says.
    pub cpu_ns: u64,
    /// What the source did in it. `max_checks_per_sample` is that of the whole session.
    pub counters: Counters,
    /// Resident pages of all targets, each as it was at its last turn: some seconds ago where targets are many.
    pub resident_pages: u64,
    /// Snapshots that this observer lost in it, because it was slow.
    pub snapshots_lost: u64,
    /// What was met with while looking for targets, since the session began.
    pub met: Counts,
}

/// Processes that are not observed, since the last such event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusals {
    /// How many.
    pub count: u64,
    /// Pid of the first of them.
    pub pid: u32,
    /// Why that one is not, a sentence that names it.
    pub why: String,
}

/// What a session tells.
#[derive(Clone, Debug)]
pub enum SessionEvent {
    /// A target appeared.
    Target {
        /// Its name in all other events.
        id: TargetId,
        /// The process.
        process: Arc<Process>,
        /// The target whose child it is.
        parent: Option<TargetId>,
        /// It was forked, and runs what its parent runs.
        is_copy: bool,
        /// When, ns of CLOCK_MONOTONIC.
        time_ns: u64,
    },
    /// A target's mappings were read for the first time, or changed.
    Mappings {
        /// The target.
        id: TargetId,
        /// Its mappings; perhaps only the lower ones as yet, or these and the others as they were ([`MapList::is_complete`]).
        maps: Arc<MapList>,
        /// When, ns.
        time_ns: u64,
    },
    /// A target runs another program now.
    Execed {
        /// The target.
        id: TargetId,
        /// The process.
        process: Arc<Process>,
        /// When, ns.
        time_ns: u64,
    },
    /// The attributes changed while running.
    Attrs {
        /// Those in force now.
        attrs: Attrs,
        /// When, ns.
        time_ns: u64,
    },
    /// An aggregation ended. Steady targets are without regions ([`Snapshot::changes`]) unless this observer did not get
    /// the snapshot before: then all are there, and none is marked steady.
    Snapshot(Arc<Snapshot>),
    /// A target is gone.
    TargetEnd {
        /// The target.
        id: TargetId,
        /// Why.
        reason: EndReason,
        /// When it was noticed, ns. No snapshot handed out later has it.
        time_ns: u64,
    },
    /// Processes that were found cannot be observed.
    Refused(Refusals),
    /// What cannot be seen of the targets, as far as it is known by now, a sentence each. Told when it changes, at most about
    /// once a second.
    BlindSpots(Arc<[String]>),
    /// Pids of those that may clear Accessed bits, by their names ([`crate::Source::suspects`]); told every few seconds
    /// where it takes next to nothing.
    Suspects(Arc<[u32]>),
    /// About once a second, and at the end.
    Cost(Cost),
}

/// Is told what a session sees, on a thread of its own ([`super::Feed::run`]). Every method does nothing unless
/// implemented; see [`SessionEvent`] for what the arguments mean.
pub trait Observer {
    /// A target appeared.
    fn target(
        &mut self,
        _id: TargetId,
        _process: &Arc<Process>,
        _parent: Option<TargetId>,
        _is_copy: bool,
        _time_ns: u64,
    ) {
    }
    /// Its mappings were read for the first time or changed.
    fn mappings(&mut self, _id: TargetId, _maps: &MapList, _time_ns: u64) {}
    /// It runs another program now.
    fn execed(&mut self, _id: TargetId, _process: &Process, _time_ns: u64) {}
    /// The attributes changed.
    fn attrs(&mut self, _attrs: &Attrs, _time_ns: u64) {}
    /// An aggregation ended; steady targets may be without regions.
    fn snapshot(&mut self, _snapshot: &Snapshot) {}
    /// A target is gone.
    fn target_end(&mut self, _id: TargetId, _reason: EndReason, _time_ns: u64) {}
    /// Processes that were found cannot be observed.
    fn refused(&mut self, _refusals: &Refusals) {}
    /// What cannot be seen of the targets, so far: replaces what was told before.
    fn blind_spots(&mut self, _spots: &[String]) {}
    /// Pids of those that may clear Accessed bits.
    fn suspects(&mut self, _pids: &[u32]) {}
    /// About once a second, and at the end.
    fn cost(&mut self, _cost: &Cost) {}
    /// Nothing came for about a second.
    fn idle(&mut self) {}
    /// CPU time that threads of its own took so far: part of what it costs.
    fn beside(&self) -> Duration {
        Duration::ZERO
    }
}

impl SessionEvent {
    /// Calls the observer's method for it.
    pub fn tell(&self, observer: &mut dyn Observer) {
        match self {
            Self::Target { id, process, parent, is_copy, time_ns } => {
                observer.target(*id, process, *parent, *is_copy, *time_ns);
            }
            Self::Mappings { id, maps, time_ns } => observer.mappings(*id, maps, *time_ns),
            Self::Execed { id, process, time_ns } => observer.execed(*id, process, *time_ns),
            Self::Attrs { attrs, time_ns } => observer.attrs(attrs, *time_ns),
            Self::Snapshot(snapshot) => observer.snapshot(snapshot),
            Self::TargetEnd { id, reason, time_ns } => observer.target_end(*id, *reason, *time_ns),
            Self::Refused(refusals) => observer.refused(refusals),
            Self::BlindSpots(spots) => observer.blind_spots(spots),
            Self::Suspects(pids) => observer.suspects(pids),
            Self::Cost(cost) => observer.cost(cost),
        }
    }
}

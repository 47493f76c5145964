//! Where snapshots of live targets come from, whatever the backend.
//!
//! `pte` and `idle` run [`isotherm_damon`]'s monitor over their operations; `refs` and `kernel` have snapshots of
//! their own making. All of them are driven alike: by one thread that calls [`Source::tick`] when it is due.

use crate::maps::Numbers;
use crate::process::{Process, ProcessError};
use crate::pte::Lives;
use crate::schemes::SharedEngine;
use isotherm_damon::{AddrRange, Attrs, Ran, Snapshot, TargetId};
use std::sync::Arc;
use std::time::Duration;

/// What a source has done so far; only ever grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Access checks done.
    pub checks: u64,
    /// Most checks done in one sampling interval.
    pub max_checks_per_sample: u64,
    /// Pages (or other units) cleared.
    pub clears: u64,
    /// Ranges cleared at once, each of which flushed translations; 0 where clears flush none.
    pub flushes: u64,
    /// Sweeps: whole processes cleared at once, without a flush.
    pub sweeps: u64,
    /// Pages in them.
    pub pages_swept: u64,
    /// Checks the overhead budget cut.
    pub checks_cut: u64,
    /// Clears the overhead budget cut.
    pub clears_cut: u64,
    /// Sampling intervals missed because a tick came late.
    pub samples_missed: u64,
}

/// A process of the machine, in a list of all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedProcess {
    /// Its pid.
    pub pid: u32,
    /// Its parent's.
    pub parent: u32,
    /// A mark of what its first thread has run.
    pub ran: Ran,
    /// That thread is all there is: no other one, and no other process that shares its memory.
    pub is_whole: bool,
    /// Pages that it has mapped, as `statm` says.
    pub pages_mapped: u64,
}

/// Why a source cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// A system call or file operation on behalf of `what` failed.
    #[error("{what}: {source}")]
    Io {
        /// What was being done, to what.
        what: String,
        /// The system's answer.
        #[source]
        source: std::io::Error,
    },
    /// A process cannot be observed.
    #[error(transparent)]
    Process {
        /// Why not.
        source: Box<ProcessError>,
    },
    /// The machine, user or kernel does not allow it.
    #[error("{what}: {reason}; {remedy}")]
    Unavailable {
        /// The backend or primitive.
        what: String,
        /// Why not.
        reason: String,
        /// What would help.
        remedy: String,
    },
}

impl From<ProcessError> for SourceError {
    fn from(source: ProcessError) -> Self {
        Self::Process { source: Box::new(source) }
    }
}

/// A backend at work: turns targets into snapshots.
///
/// A session owns the targets: it holds each [`Process`], reads its mappings and notices its exec, and tells the source.
/// A source therefore opens no process by its pid, and reads no mappings of its own.
pub trait Source {
    /// Name of the backend: `pte`, `idle`, `refs`, `kernel`.
    fn name(&self) -> &'static str;

    /// Starts to observe a process under the name `id`. Its ranges follow by [`Source::set_ranges`].
    ///
    /// # Errors
    /// When the process is gone or may not be observed; the other targets are observed on.
    fn add_target(&mut self, id: TargetId, process: &Arc<Process>) -> Result<(), SourceError>;

    /// Says what a target has mapped: sorted, disjoint, one range a mapping, neighbours not joined. Called whenever that
    /// changed; while a long list of mappings is being read, with what is known so far. Unknown ids are ignored.
    fn set_ranges(&mut self, id: TargetId, ranges: &[AddrRange]);

    /// Tells how many mappings a target has; `None` while they are being read.
    fn set_mappings(&mut self, _id: TargetId, _count: Option<usize>) {}

    /// A target runs another program: nothing known of its address space holds any more, its ranges are empty until
    /// the next [`Source::set_ranges`]. Unknown ids are ignored.
    fn execed(&mut self, id: TargetId);

    /// Targets whose address space the source found replaced since the last call, before it was told. The caller
    /// answers with [`Source::execed`].
    fn take_execed(&mut self) -> Vec<TargetId> {
        Vec::new()
    }

    /// Targets that cannot be observed any longer since the last call, each with the reason (one that became another
    /// user's by exec, for instance). They are in no later snapshot; the caller removes them.
    fn take_lost(&mut self) -> Vec<(TargetId, SourceError)> {
        Vec::new()
    }

    /// Stops to observe a target. Unknown ids are ignored.
    fn remove_target(&mut self, id: TargetId);

    /// Does what is due at `now_ns` (CLOCK_MONOTONIC). When an aggregation ended, gives its snapshot to `sink`.
    /// Returns when the next tick is due.
    ///
    /// # Errors
    /// When the backend cannot go on at all; what concerns a single target is not an error ([`Source::take_lost`]).
    fn tick(&mut self, now_ns: u64, sink: &mut dyn FnMut(&Snapshot)) -> Result<u64, SourceError>;

    /// Others spent CPU time on what the source hands out (observers, on their threads): it counts against the same
    /// ceiling. A source without a budget of its own need not heed it.
    fn charge(&mut self, _cpu: Duration) {}

    /// The thread that calls [`Source::tick`] spent CPU time on the source's behalf that has a budget of its own: ticks need not
    /// wait until it is made good. A source without a budget of its own need not heed it.
    fn spent_beside(&mut self, _cpu: Duration) {}

    /// So much CPU time was spent on the source's behalf before it began: it is to be made good. A source without a budget of its
    /// own need not heed it.
    fn spent_before(&mut self, _cpu: Duration) {}

    /// Lists all processes of the machine, by the caller's numbers, if the backend has a way to do so that is cheaper than
    /// reading `/proc`; false if it has none.
    fn list_processes(&mut self, _found: &mut Vec<ListedProcess>) -> bool {
        false
    }

    /// The last such list, in any order, if one was made since this was last asked and it was not handed out.
    fn latest_list(&mut self, _found: &mut Vec<ListedProcess>) -> bool {
        false
    }

    /// Pids of all processes of the machine, the kernel's threads too, whose names begin like
    /// [`AccessedBitClearers::NAMES`](crate::probe::AccessedBitClearers::NAMES), if the backend has a way to find them that is
    /// cheaper than reading `/proc`.
    fn suspects(&mut self) -> Option<Vec<u32>> {
        None
    }

    /// A way to read mappings that is cheaper than `/proc`, if the backend has one.
    fn numbers(&mut self) -> Option<Numbers> {
        None
    }

    /// Begins to count the processes that targets start, or that anybody does, if the backend can do so exactly.
    fn count_lives(&mut self, _everything: bool) -> Option<Lives> {
        None
    }

    /// Of many targets the few that run, those that take most CPU time first, if the backend knows: nothing changes in the
    /// others.
    fn busiest(&self, _found: &mut Vec<TargetId>) {}

    /// Lets schemes act on the regions from now on. False if the source has no regions that can be acted on.
    fn set_schemes(&mut self, _engine: &SharedEngine) -> bool {
        false
    }

    /// The attributes in force; auto-tuning changes them.
    fn attrs(&self) -> Attrs;

    /// What it has done so far.
    fn counters(&self) -> Counters;

    /// For how long it did not sample, since its overhead ceiling had nothing left for that. A source without a budget of its own
    /// never waits for it.
    fn waited(&self) -> Duration {
        Duration::ZERO
    }

    /// Whether it sees whole VMAs only.
    fn is_coarse(&self) -> bool {
        false
    }

    /// What it cannot see of its targets, a sentence each, with figures where known.
    fn blind_spots(&mut self) -> Vec<String>;
}

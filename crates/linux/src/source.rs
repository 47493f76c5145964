//! Where snapshots of live targets come from, whatever the backend.
//!
//! `pte` and `idle` run [`isotherm_damon`]'s monitor over their operations; `refs` and `kernel` have snapshots of
//! their own making. All of them are driven alike: by one thread that calls [`Source::tick`] when it is due.

use isotherm_damon::{Snapshot, TargetId};

/// What a source has done so far; only ever grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Access checks done.
    pub checks: u64,
    /// Most checks done in one sampling interval.
    pub max_checks_per_sample: u64,
    /// Pages (or other units) cleared.
    pub clears: u64,
    /// Checks the overhead budget cut.
    pub checks_cut: u64,
    /// Clears the overhead budget cut.
    pub clears_cut: u64,
    /// Sampling intervals missed because a tick came late.
    pub samples_missed: u64,
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
        source: Box<crate::process::ProcessError>,
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

/// A backend at work: turns targets into snapshots.
pub trait Source {
    /// Name of the backend: `pte`, `idle`, `refs`, `kernel`.
    fn name(&self) -> &'static str;

    /// Starts to observe the process `pid` under the name `id`. The caller holds a pidfd of it.
    ///
    /// # Errors
    /// When the process is gone or may not be observed.
    fn add_target(
        &mut self,
        id: TargetId,
        pid: rustix::process::Pid,
        pidfd: std::os::fd::BorrowedFd<'_>,
    ) -> Result<(), SourceError>;

    /// Stops to observe a target. Unknown ids are ignored.
    fn remove_target(&mut self, id: TargetId);

    /// Does what is due at `now_ns` (CLOCK_MONOTONIC). When an aggregation ended, gives its snapshot to `sink`.
    /// Returns when the next tick is due.
    ///
    /// # Errors
    /// When the backend cannot go on at all; a single target's death is not an error.
    fn tick(&mut self, now_ns: u64, sink: &mut dyn FnMut(&Snapshot)) -> Result<u64, SourceError>;

    /// What it has done so far.
    fn counters(&self) -> Counters;

    /// Whether it sees whole VMAs only.
    fn is_coarse(&self) -> bool {
        false
    }

    /// What it cannot see of its targets, a sentence each, with figures where known.
    fn blind_spots(&mut self) -> Vec<String>;
}

//! Which processes to observe, as they come and go.
//!
//! A [`Tracker`] starts from processes, a command, control groups or a rule (`matching.rs`) and follows their children. It is polled, at the
//! regions update interval or so, and tells what happened since in [`Event`]s. What it holds it holds by pidfd, so a
//! pid that means another process by now is never taken for a target.
//!
//! # What a look costs
//! While nothing happens: an epoll_wait(2) (`ends.rs`), a read of `/proc/loadavg` (`births.rs`), and a `/proc/PID/stat`
//! of a few targets in turn to notice exec. The rest waits in queues and is done within the CPU time the caller gives
//! ([`Tracker::look`]): taking in processes, one after the other, some 30 us each; how those that died ended. Where many wait,
//! a list of all processes ([`Tracker::take_list`]) saves looking up whose children they are, and tells which of them run:
//! those are taken in first (`candidates.rs`).

mod births;
mod candidates;
mod cgroup;
mod command;
mod ends;
mod family;
mod finding;
mod matching;
mod tracker;

pub(crate) use cgroup::mounted_versions as mounted_cgroup_versions;
pub use cgroup::{Cgroup, CgroupError};
pub use command::{CommandError, HeldCommand, RunningCommand};
pub use matching::{ProcessRule, RuleError};
pub use tracker::Tracker;

use crate::process::{ExitStatus, Process, ProcessError};
use std::sync::Arc;

/// What happened to the targets.
#[derive(Debug)]
pub enum Event {
    /// A process became a target.
    Appeared {
        /// The process.
        process: Arc<Process>,
        /// Pid of the target whose child it is; none for those named by the user, members of a control group, and
        /// children of what is no target.
        parent: Option<u32>,
        /// It is a copy of that parent, as fork made it: it has run no program of its own.
        is_copy: bool,
    },
    /// A target runs another program now: nothing in its address space is as it was.
    Execed {
        /// Pid of the target.
        pid: u32,
    },
    /// A process is no target any more.
    Ended {
        /// Its pid.
        pid: u32,
        /// Why.
        reason: EndReason,
    },
    /// A process that was found, not named, cannot be observed. Told once.
    Refused {
        /// Its pid.
        pid: u32,
        /// Why not.
        error: TargetError,
    },
}

/// Why a process is no target any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// It ended; with its status where the system tells (see [`Process::exit_status`]).
    Exited(Option<ExitStatus>),
    /// It moved out of the control group.
    LeftCgroup,
    /// The rule by which it was one does not match it any more.
    MatchesNoMore,
    /// It may not be observed any more.
    Refused,
}

impl std::fmt::Display for EndReason {
    /// In words, as recordings have it: `exited`, or the exit status.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exited(Some(status)) => status.fmt(f),
            Self::Exited(None) => f.write_str("exited"),
            Self::LeftCgroup => f.write_str("left the control group"),
            Self::MatchesNoMore => f.write_str("matches the rule no more"),
            Self::Refused => f.write_str("may not be observed any more"),
        }
    }
}

/// Why a process does not become a target.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// It cannot be observed.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// There are as many targets as there may be.
    #[error("process {pid} is not observed: {limit} processes are observed already; narrow the choice")]
    TooMany {
        /// Its pid.
        pid: u32,
        /// Most targets at a time.
        limit: usize,
    },
}

/// What to follow.
#[derive(Clone, Copy, Debug)]
pub struct TrackerOptions {
    /// Whether children of targets, and their children, become targets too.
    pub follow_children: bool,
    /// Whether processes whose parents died are handed to this process (PR_SET_CHILD_SUBREAPER) and become targets:
    /// so a server that turns itself into a daemon is not lost. Every child this process did not
    /// [`Tracker::add`] itself counts as one, so set it only where it starts no others. They are waited for when they
    /// end. Needs `follow_children`.
    pub adopt_orphans: bool,
    /// Most targets at a time.
    pub max_targets: usize,
}

impl Default for TrackerOptions {
    fn default() -> Self {
        Self { follow_children: true, adopt_orphans: false, max_targets: 16_384 }
    }
}

/// What a tracker met with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Processes that became targets.
    pub seen: u64,
    /// Processes that were to become targets and ended before they could be looked at. `None` where that is not known: unless
    /// they are counted ([`Tracker::count_lives`]), only that there were none can be.
    pub too_short: Option<u64>,
    /// No more than so many were too short: pids, of threads too and whosever, that were given out and gone at the next look, or
    /// given out so fast that their parents' lists of children were looked at instead.
    pub at_most: u64,
    /// Processes that were to become targets and ended while they waited for their turn, which the caller's CPU time did not
    /// reach. They are not among those that were too short.
    pub unreached: u64,
    /// The longest that one of these is known to have waited, ns: until its end was noticed.
    pub longest_wait_ns: u64,
    /// Processes that are to become targets and live, but have not been taken in yet.
    pub waiting: u64,
    /// Processes that cannot be observed.
    pub refused: u64,
}

#[cfg(test)]
mod tests;

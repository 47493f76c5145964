//! Why a process cannot be observed.

use rustix::io::Errno;
use rustix::process::Pid;
use std::io;

/// Why a process cannot be observed. Each sentence says what happened, to which process, and what helps.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// No process has this pid.
    #[error("process {pid}: no such process; see `ps -e` for those there are")]
    NoSuchProcess {
        /// The pid asked for.
        pid: u32,
    },
    /// It ended while it was looked at (or has ended, and only its status is left).
    #[error("process {pid} has exited")]
    Exited {
        /// Its pid.
        pid: u32,
    },
    /// It is a thread of the kernel.
    #[error("process {pid} ({comm}) is a kernel thread and has no memory of its own; name a user process")]
    KernelThread {
        /// Its pid.
        pid: u32,
        /// Its name.
        comm: String,
    },
    /// The system does not let this user look into it.
    #[error(
        "process {pid}: not allowed to read {what}; run as its user or as root, or with CAP_SYS_PTRACE (which it takes \
         for programs that changed their user or forbade core dumps)"
    )]
    NotPermitted {
        /// Its pid.
        pid: u32,
        /// What could not be read.
        what: String,
    },
    /// Too many files are open, here or on the whole machine.
    #[error("process {pid}: too many open files; raise the limit (`ulimit -n`) or observe fewer processes")]
    TooManyFiles {
        /// Its pid.
        pid: u32,
    },
    /// The kernel is too old to hold a process by a file descriptor.
    #[error("process {pid}: this kernel has no pidfd_open; Linux 5.3 or newer is needed")]
    NoPidfd {
        /// The pid asked for.
        pid: u32,
    },
    /// Anything else the system said.
    #[error("process {pid}: cannot read {what}: {source}")]
    Io {
        /// Its pid.
        pid: u32,
        /// What could not be read.
        what: String,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
}

/// A pid as people and `/proc` write it.
pub(crate) fn raw(pid: Pid) -> u32 {
    pid.as_raw_nonzero().get().unsigned_abs()
}

impl ProcessError {
    /// Sorts the system's answer to an operation on `what` of process `pid`.
    pub(crate) fn from_io(pid: Pid, what: impl Into<String>, source: io::Error) -> Self {
        let pid = raw(pid);
        match source.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::SRCH | Errno::NOENT) => Self::Exited { pid },
            Some(Errno::ACCESS | Errno::PERM) => Self::NotPermitted { pid, what: what.into() },
            Some(Errno::MFILE | Errno::NFILE) => Self::TooManyFiles { pid },
            _ => Self::Io { pid, what: what.into(), source },
        }
    }

    /// Whether the process is simply gone, which for a child or a member of a cgroup is no error.
    pub const fn is_gone(&self) -> bool {
        matches!(self, Self::NoSuchProcess { .. } | Self::Exited { .. })
    }
}

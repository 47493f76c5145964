//! Why a process cannot be observed.

use crate::probe::is_initial_user_namespace;
use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::{CapabilitySet, capabilities};
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
    #[error("process {pid}: not allowed to read {what}; {remedy}")]
    NotPermitted {
        /// Its pid.
        pid: u32,
        /// What could not be read.
        what: String,
        /// What would help this user.
        remedy: &'static str,
    },
    /// Too many files are open, here or on the whole machine.
    #[error(
        "process {pid}: too many open files; raise the limit (`ulimit -n`, LimitNOFILE= of a systemd unit) or observe fewer \
         processes"
    )]
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

/// What helps this user to look into processes of others.
fn remedy() -> &'static str {
    let may_trace = capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_PTRACE));
    remedy_for(rustix::process::geteuid().is_root(), may_trace, is_initial_user_namespace())
}

/// Telling root to run as root helps nobody: root of a container lacks a capability, or stands outside of the process's user
/// namespace, or something else forbids it.
const fn remedy_for(is_root: bool, may_trace: bool, initial_namespace: bool) -> &'static str {
    match (is_root, may_trace, initial_namespace) {
        (false, false, _) => {
            "run as its user or as root, or with CAP_SYS_PTRACE (which it takes for programs that changed their user or \
             forbade core dumps)"
        }
        (true, false, _) => {
            "this root has no CAP_SYS_PTRACE: give it to the container (`docker run --cap-add SYS_PTRACE`, \
             securityContext.capabilities in Kubernetes), or run outside of it"
        }
        (_, true, false) => {
            "this is root of a user namespace, which reaches the processes of that namespace only: run as root of the host"
        }
        (_, true, true) => {
            "CAP_SYS_PTRACE is there, so a security module or a sandbox forbids it (`cat /sys/kernel/security/lsm`, `dmesg`); \
             name another process, or run where it does not"
        }
    }
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
            Some(Errno::ACCESS | Errno::PERM) => {
                Self::NotPermitted { pid, what: what.into(), remedy: remedy() }
            }
            Some(Errno::MFILE | Errno::NFILE) => Self::TooManyFiles { pid },
            _ => Self::Io { pid, what: what.into(), source },
        }
    }

    /// Whether the process is simply gone, which for a child or a member of a cgroup is no error.
    pub const fn is_gone(&self) -> bool {
        matches!(self, Self::NoSuchProcess { .. } | Self::Exited { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_not_told_to_be_root() {
        for (may_trace, initial, what) in [
            (false, true, "--cap-add SYS_PTRACE"),
            (false, false, "--cap-add SYS_PTRACE"),
            (true, false, "root of the host"),
            (true, true, "security module"),
        ] {
            let said = remedy_for(true, may_trace, initial);
            assert!(said.contains(what) && !said.contains("or as root"), "{said}");
        }
        assert!(remedy_for(false, false, true).contains("as root"));
    }

    #[test]
    fn too_many_files_is_told_with_both_remedies() {
        let pid = Pid::from_raw(7).unwrap();
        let error = ProcessError::from_io(pid, "x", Errno::MFILE.into()).to_string();
        assert!(error.contains("ulimit -n") && error.contains("LimitNOFILE"), "{error}");
    }
}

//! How a process ended.

use rustix::process::{WaitId, WaitIdOptions, waitid};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::os::fd::BorrowedFd;

/// How a process ended, as waitpid(2) tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExitStatus {
    /// It called exit(2) with this status, 0..=255.
    Exited(i32),
    /// This signal killed it.
    Killed {
        /// Number of the signal.
        signal: i32,
        /// Whether it dumped core.
        core_dumped: bool,
    },
}

impl ExitStatus {
    /// Whether it exited with status 0.
    pub const fn success(self) -> bool {
        matches!(self, Self::Exited(0))
    }

    /// The status a shell reports for it, and that a wrapper should exit with: the program's own, or 128 + the
    /// signal's number.
    pub const fn shell_code(self) -> i32 {
        match self {
            Self::Exited(status) => status,
            Self::Killed { signal, .. } => 128_i32.saturating_add(signal),
        }
    }

    /// From the `int` that wait(2) fills in and `/proc/PID/stat` shows of a zombie.
    pub(crate) const fn from_wait(code: i32) -> Self {
        if code & 0x7f == 0 {
            Self::Exited((code >> 8) & 0xff)
        } else {
            Self::Killed { signal: code & 0x7f, core_dumped: code & 0x80 != 0 }
        }
    }
}

impl From<std::process::ExitStatus> for ExitStatus {
    fn from(status: std::process::ExitStatus) -> Self {
        use std::os::unix::process::ExitStatusExt;
        Self::from_wait(status.into_raw())
    }
}

impl fmt::Display for ExitStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Exited(status) => write!(f, "exited with status {status}"),
            Self::Killed { signal, core_dumped } => {
                write!(f, "killed by signal {signal}")?;
                if let Some(name) = signal_name(signal) {
                    write!(f, " ({name})")?;
                }
                if core_dumped { f.write_str(", core dumped") } else { Ok(()) }
            }
        }
    }
}

/// The signals programs die of, by the numbers x86-64 and arm64 share.
const fn signal_name(signal: i32) -> Option<&'static str> {
    Some(match signal {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        5 => "SIGTRAP",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        10 => "SIGUSR1",
        11 => "SIGSEGV",
        12 => "SIGUSR2",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        15 => "SIGTERM",
        24 => "SIGXCPU",
        25 => "SIGXFSZ",
        31 => "SIGSYS",
        _ => return None,
    })
}

/// The status of a dead child of ours that nobody waited for yet. It can still be waited for afterwards.
pub(super) fn of_own_child(pidfd: BorrowedFd<'_>) -> Option<ExitStatus> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let status = waitid(WaitId::PidFd(pidfd), options).ok()??;
    if let Some(code) = status.exit_status() {
        return Some(ExitStatus::Exited(code));
    }
    let signal = status.terminating_signal()?;
    Some(ExitStatus::Killed { signal, core_dumped: status.dumped() })
}

/// The status of any process that was waited for already, by PIDFD_GET_INFO (Linux 6.15).
pub(super) fn of_reaped(pidfd: BorrowedFd<'_>) -> Option<ExitStatus> {
    /// `struct pidfd_info` as first published (include/uapi/linux/pidfd.h, PIDFD_INFO_SIZE_VER0).
    #[repr(C)]
    #[derive(Default)]
    struct PidfdInfo {
        mask: u64,
        cgroupid: u64,
        ids: [u32; 11],
        exit_code: i32,
    }
    const _: () = assert!(size_of::<PidfdInfo>() == 64);
    const PIDFD_INFO_EXIT: u64 = 1 << 3;
    const PIDFD_GET_INFO: rustix::ioctl::Opcode = rustix::ioctl::opcode::read_write::<PidfdInfo>(0xff, 11);

    let mut info = PidfdInfo { mask: PIDFD_INFO_EXIT, ..PidfdInfo::default() };
    // SAFETY: the opcode is PIDFD_GET_INFO for a structure of this size, which the kernel fills in; kernels that do
    // not know it refuse.
    let request = unsafe { rustix::ioctl::Updater::<PIDFD_GET_INFO, PidfdInfo>::new(&mut info) };
    // SAFETY: as above; the pidfd is open while it is borrowed.
    unsafe { rustix::ioctl::ioctl(pidfd, request) }.ok()?;
    (info.mask & PIDFD_INFO_EXIT != 0).then(|| ExitStatus::from_wait(info.exit_code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_read_as_people_say_them() {
        assert_eq!(ExitStatus::from_wait(3 << 8).to_string(), "exited with status 3");
        assert_eq!(ExitStatus::from_wait(9).to_string(), "killed by signal 9 (SIGKILL)");
        assert_eq!(
            ExitStatus::from_wait(11 | 0x80).to_string(),
            "killed by signal 11 (SIGSEGV), core dumped"
        );
        assert_eq!(ExitStatus::from_wait(50).to_string(), "killed by signal 50");
    }

    #[test]
    fn the_shell_sees_a_signal_as_128_and_its_number() {
        assert_eq!(ExitStatus::Exited(7).shell_code(), 7);
        assert_eq!(ExitStatus::Killed { signal: 15, core_dumped: false }.shell_code(), 143);
        assert!(ExitStatus::Exited(0).success());
        assert!(!ExitStatus::Killed { signal: 15, core_dumped: false }.success());
    }
}

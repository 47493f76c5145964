//! A live process, held so that its pid cannot come to mean another.
//!
//! A pid may be given to a new process as soon as the old one was waited for. A [`Process`] therefore holds a pidfd,
//! and whatever it reads from `/proc/PID` it takes for true only if the pidfd says *afterwards* that the process
//! still lives: then the pid was its own all the while.

mod error;
mod exit;
mod memory;
pub(crate) mod parse;

pub use error::ProcessError;
pub use exit::ExitStatus;

pub(crate) use error::raw;
pub(crate) use parse::{Image, Stat};

use crate::proc_file;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::AtomicI32;

/// A live process and all its threads.
#[derive(Debug)]
pub struct Process {
    pid: Pid,
    pidfd: OwnedFd,
    start_time: u64,
    first_comm: String,
    /// A thread that has its memory, where the first one has ended; 0: the first one.
    thread: AtomicI32,
}

/// What a record says about a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessInfo {
    /// Its pid, in the observer's pid namespace.
    pub pid: u32,
    /// Its parent's pid; 0 if that lies outside the namespace.
    pub parent: u32,
    /// Its name, as `ps` shows it; at most 15 bytes.
    pub comm: String,
    /// Its command line; empty if it has none or overwrote it.
    pub cmdline: Vec<String>,
    /// The file it runs; absent when it may not be read.
    pub exe: Option<PathBuf>,
    /// When it started, in nanoseconds of CLOCK_BOOTTIME; exact to a clock tick, most often 10 ms.
    pub start_ns: u64,
}

/// How much memory a process holds, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessMemory {
    /// Resident, without huge pages of hugetlbfs (VmRSS).
    pub rss: u64,
    /// Locked by mlock(2) (VmLck).
    pub locked: u64,
    /// Huge pages of hugetlbfs (HugetlbPages).
    pub hugetlb: u64,
    /// Swapped out (VmSwap).
    pub swapped: u64,
}

impl Process {
    /// Holds the process `pid`. The pid of a thread stands for its process.
    ///
    /// # Errors
    /// When there is none or it has exited, it is a kernel thread, or the system refuses.
    pub fn open(pid: Pid) -> Result<Self, ProcessError> {
        match Self::open_leader(pid)? {
            Some((process, _)) => Ok(process),
            None => Self::open(leader_of(pid)?),
        }
    }

    /// Holds the process that `pid` leads, with what its `stat` says; `None` if `pid` is another thread of it. Of all
    /// ways to look at a pid this is the cheapest, as threads need no file of `/proc`.
    pub(crate) fn open_leader(pid: Pid) -> Result<Option<(Self, Stat)>, ProcessError> {
        let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => pidfd,
            Err(Errno::SRCH) => return Err(ProcessError::NoSuchProcess { pid: raw(pid) }),
            Err(Errno::NOSYS) => return Err(ProcessError::NoPidfd { pid: raw(pid) }),
            // The answer to a thread that leads no process: EINVAL, since 6.9 ENOENT.
            Err(Errno::INVAL | Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(ProcessError::from_io(pid, "a pidfd", errno.into())),
        };
        let mut process =
            Self { pid, pidfd, start_time: 0, first_comm: String::new(), thread: AtomicI32::new(0) };
        let stat = process.stat()?;
        if stat.kernel_thread {
            return Err(ProcessError::KernelThread { pid: raw(pid), comm: stat.comm });
        }
        process.start_time = stat.start_time;
        process.first_comm.clone_from(&stat.comm);
        Ok(Some((process, stat)))
    }

    /// Its pid.
    pub const fn pid(&self) -> Pid {
        self.pid
    }

    /// The file descriptor that holds it. Readable once it has ended.
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// When it started, in clock ticks since boot. With its pid this names it until the next boot.
    pub const fn start_time(&self) -> u64 {
        self.start_time
    }

    /// When it started, in nanoseconds of CLOCK_BOOTTIME; exact to a clock tick, most often 10 ms.
    pub fn start_ns(&self) -> u64 {
        self.start_time.saturating_mul(NS_PER_SEC / clock_ticks_per_second())
    }

    /// Its name when it was opened: what is known of a process that ended before it could be asked more.
    pub fn first_comm(&self) -> &str {
        &self.first_comm
    }

    /// Takes the name that it has now for the one it was found under: it runs another program.
    pub(crate) fn name_anew(&mut self) {
        if let Ok(comm) = self.comm() {
            self.first_comm = comm;
        }
    }

    /// Whether any of its threads still lives.
    pub fn is_alive(&self) -> bool {
        !has_ended(self.pidfd())
    }

    /// How it ended: always known of the caller's own children before they are waited for; of others while they
    /// wait to be waited for, and from Linux 6.15 on also later. `None` while it lives.
    pub fn exit_status(&self) -> Option<ExitStatus> {
        if self.is_alive() {
            return None;
        }
        exit::of_own_child(self.pidfd())
            .or_else(|| self.status_of_zombie())
            .or_else(|| exit::of_reaped(self.pidfd()))
    }

    fn status_of_zombie(&self) -> Option<ExitStatus> {
        let mut text = Vec::new();
        proc_file::read_into(self.path("stat"), &mut text).ok()?;
        let stat = parse::stat(&text)?;
        // The start time tells it from a later process of the same pid.
        let ours = stat.start_time == self.start_time && matches!(stat.state, b'Z' | b'X');
        // Without leave to trace it the kernel shows status 0.
        let shown = stat.exit_code != 0 || self.has_our_user();
        (ours && shown).then(|| ExitStatus::from_wait(stat.exit_code))
    }

    fn has_our_user(&self) -> bool {
        use std::os::unix::fs::MetadataExt;
        let own = rustix::process::geteuid();
        own.is_root() || std::fs::metadata(self.path("")).is_ok_and(|m| m.uid() == own.as_raw())
    }

    /// What a record says about it.
    ///
    /// # Errors
    /// When it has exited or may not be read.
    pub fn info(&self) -> Result<ProcessInfo, ProcessError> {
        let stat = self.stat()?;
        let exe = std::fs::read_link(self.path("exe")).ok();
        let cmdline = self.cmdline()?;
        Ok(ProcessInfo {
            pid: raw(self.pid),
            parent: stat.parent,
            comm: stat.comm,
            cmdline,
            exe,
            start_ns: self.start_ns(),
        })
    }

    /// Its name, as `ps` shows it; at most 15 bytes.
    ///
    /// # Errors
    /// When it has exited.
    pub fn comm(&self) -> Result<String, ProcessError> {
        Ok(String::from_utf8_lossy(self.read("comm")?.trim_ascii_end()).into_owned())
    }

    /// Its command line; empty if it has none or overwrote it. Without empty arguments at its end: a program that writes a title
    /// there, as redis does, leaves the rest empty, and what was an argument is not told from that.
    ///
    /// # Errors
    /// When it has exited or may not be read.
    pub fn cmdline(&self) -> Result<Vec<String>, ProcessError> {
        Ok(arguments(&self.read("cmdline")?))
    }

    /// How much memory it holds.
    ///
    /// # Errors
    /// When it has exited.
    pub fn memory(&self) -> Result<ProcessMemory, ProcessError> {
        // Finds it where the first thread has none.
        self.pages()?;
        let text = self.read_at(self.memory_path("status"), "status")?;
        // A process that is just ending shows none of these lines, and indeed holds nothing.
        let bytes = |key| parse::status_bytes(&text, key).unwrap_or(0);
        Ok(ProcessMemory {
            rss: bytes("VmRSS"),
            locked: bytes("VmLck"),
            hugetlb: bytes("HugetlbPages"),
            swapped: bytes("VmSwap"),
        })
    }

    /// Its resident pages: of the page size, whatever folios they are part of. Cheap, a few microseconds; the kernel
    /// counts in batches, so that it may be off by some tens of pages a CPU.
    ///
    /// # Errors
    /// When it has exited.
    pub fn resident_pages(&self) -> Result<u64, ProcessError> {
        Ok(self.pages()?.1)
    }

    /// Whether the caller may look into its memory: its mappings, page table and page map.
    ///
    /// # Errors
    /// [`ProcessError::NotPermitted`] with the remedy, or that it has exited.
    pub fn check_readable(&self) -> Result<(), ProcessError> {
        // Opening these asks for leave to trace at once (PTRACE_MODE_READ), reading maps would be dear.
        File::open(self.path("maps"))
            .map(drop)
            .map_err(|source| ProcessError::from_io(self.pid, "its mappings (/proc/PID/maps)", source))?;
        self.still_alive()
    }

    /// Waits for an exec under way to set up its arguments, a hundred microseconds or so, a few milliseconds at most.
    /// Descriptors marked close-on-exec are closed a little earlier, and till then the process has no command line.
    pub(crate) fn wait_for_exec(&self) {
        for _ in 0..50 {
            if self.read("cmdline").is_ok_and(|text| text.is_empty()) {
                std::thread::sleep(std::time::Duration::from_micros(100));
            } else {
                break;
            }
        }
    }

    pub(crate) fn stat(&self) -> Result<Stat, ProcessError> {
        let text = self.read("stat")?;
        parse::stat(&text).ok_or_else(|| self.malformed("stat"))
    }

    /// The path of one of its files in `/proc`.
    pub(crate) fn path(&self, file: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{file}", self.pid))
    }

    /// Whether what was just read from its pid was its own.
    pub(crate) fn still_alive(&self) -> Result<(), ProcessError> {
        if self.is_alive() { Ok(()) } else { Err(ProcessError::Exited { pid: raw(self.pid) }) }
    }

    fn read(&self, file: &str) -> Result<Vec<u8>, ProcessError> {
        self.read_at(self.path(file), file)
    }

    fn read_at(&self, path: PathBuf, file: &str) -> Result<Vec<u8>, ProcessError> {
        let mut text = Vec::new();
        let read = proc_file::read_into(path, &mut text);
        self.still_alive()?;
        read.map_err(|source| ProcessError::from_io(self.pid, format!("/proc/PID/{file}"), source))?;
        Ok(text)
    }

    fn malformed(&self, file: &str) -> ProcessError {
        let source = std::io::Error::new(std::io::ErrorKind::InvalidData, "not in the kernel's format");
        ProcessError::Io { pid: raw(self.pid), what: format!("/proc/PID/{file}"), source }
    }
}

impl AsFd for Process {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd()
    }
}

/// Whether the process that a pidfd holds has ended; a zombie has.
pub(crate) fn has_ended(pidfd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(pidfd, PollFlags::IN)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    // An interrupted poll tells nothing; the next look will.
    matches!(poll(&mut fds, Some(&at_once)), Ok(n) if n > 0)
}

/// The arguments in `/proc/PID/cmdline`, without empty ones at the end.
fn arguments(text: &[u8]) -> Vec<String> {
    let Some(last) = text.iter().rposition(|&b| b != 0) else { return Vec::new() };
    let words = text.get(..=last).unwrap_or_default().split(|&b| b == 0);
    words.map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

const NS_PER_SEC: u64 = 1_000_000_000;

fn clock_ticks_per_second() -> u64 {
    rustix::param::clock_ticks_per_second().max(1)
}

/// The process that the thread `tid` is part of; the thread must not lead it.
fn leader_of(tid: Pid) -> Result<Pid, ProcessError> {
    let none = || ProcessError::NoSuchProcess { pid: raw(tid) };
    let text = proc_file::read_text(format!("/proc/{tid}/status")).map_err(|_| none())?;
    parse::status_field(text.as_bytes(), "Tgid")
        .and_then(proc_file::parse_number)
        .and_then(|n| Pid::from_raw(i32::try_from(n).ok()?))
        .filter(|&leader| leader != tid)
        .ok_or_else(none)
}

/// Raises the number of files this process may have open as far as it goes, since each target takes one. Processes
/// started later inherit the limit. Returns it.
pub(crate) fn raise_descriptor_limit() -> Option<u64> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // Without a limit of its own a process is still held to what the machine allows one.
    let raised = Rlimit { current: limit.maximum, ..limit };
    if limit.current != limit.maximum && setrlimit(Resource::Nofile, raised).is_err() {
        return limit.current;
    }
    limit.maximum
}

#[cfg(test)]
mod tests;

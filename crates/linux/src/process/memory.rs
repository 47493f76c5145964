//! Where the memory of a process is found.
//!
//! What `/proc/PID` shows, and what a pidfd stands for, is its first thread. That one may end before the others (`pthread_exit` in
//! `main`): its mappings, page map and sizes are empty from then on, `clear_refs` does nothing without saying so, and
//! process_madvise does not find the process. The other threads have the same memory, under `/proc/PID/task/TID`, and from Linux 6.9
//! on pidfds of their own. So another thread is looked for once the first one has no memory, and again when that one ends.

use super::{Process, ProcessError, parse};
use crate::proc_file;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;

/// Threads that are asked.
const MOST_THREADS_TRIED: usize = 64;

/// From Linux 6.9 on: the pidfd is to be of a thread that need not be the first.
const PIDFD_THREAD: PidfdFlags = PidfdFlags::from_bits_retain(libc::O_EXCL as u32);

/// What process_madvise finds a process's memory by.
#[derive(Debug)]
pub(crate) enum MemoryFd<'a> {
    /// Its own.
    Process(BorrowedFd<'a>),
    /// That of another of its threads than the first.
    Thread(OwnedFd),
}

impl AsFd for MemoryFd<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Process(fd) => *fd,
            Self::Thread(fd) => fd.as_fd(),
        }
    }
}

impl Process {
    /// The path of a file in `/proc` that tells of its memory.
    pub(crate) fn memory_path(&self, file: &str) -> PathBuf {
        match self.thread.load(Relaxed) {
            0 => self.path(file),
            tid => self.path(&format!("task/{tid}/{file}")),
        }
    }

    /// What process_madvise finds its memory by.
    ///
    /// # Errors
    /// EINVAL where its first thread ended and the kernel has no pidfds of others; ESRCH when the one that was found has ended, too.
    pub(crate) fn memory_fd(&self) -> io::Result<MemoryFd<'_>> {
        match Pid::from_raw(self.thread.load(Relaxed)) {
            None => Ok(MemoryFd::Process(self.pidfd())),
            Some(tid) => Ok(MemoryFd::Thread(pidfd_open(tid, PIDFD_THREAD)?)),
        }
    }

    /// The pid by which calls that take one find its memory.
    pub(crate) fn memory_pid(&self) -> Pid {
        Pid::from_raw(self.thread.load(Relaxed)).unwrap_or(self.pid)
    }

    /// Calls process_madvise, or what fails as it does: with ESRCH where the thread that it is given has no memory any more. Then
    /// another one is looked for, once.
    ///
    /// # Errors
    /// The call's, and those of [`Self::memory_fd`].
    pub(crate) fn with_memory<T>(
        &self,
        mut call: impl FnMut(BorrowedFd<'_>) -> io::Result<T>,
    ) -> io::Result<T> {
        let mut once = || self.memory_fd().and_then(|fd| call(fd.as_fd()));
        match once() {
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) && self.find_memory() => once(),
            result => result,
        }
    }

    /// Looks for a thread that has its memory, the first one first. False if none was found.
    pub(crate) fn find_memory(&self) -> bool {
        let has_memory = |file: &str| {
            let mut text = Vec::new();
            let read = proc_file::read_into(self.path(file), &mut text);
            read.is_ok() && parse::statm(&text).is_some_and(|(mapped, _)| mapped > 0)
        };
        if has_memory("statm") {
            self.thread.store(0, Relaxed);
            return self.is_alive();
        }
        let Ok(threads) = std::fs::read_dir(self.path("task")) else { return false };
        let tids = threads.filter_map(|thread| thread.ok()?.file_name().to_str()?.parse::<i32>().ok());
        let found = tids.take(MOST_THREADS_TRIED).find(|tid| has_memory(&format!("task/{tid}/statm")));
        if let Some(tid) = found {
            self.thread.store(tid, Relaxed);
        }
        // What was read is its own if it lives still.
        found.is_some() && self.is_alive()
    }

    /// Pages mapped and pages resident.
    ///
    /// # Errors
    /// When it has exited.
    pub(crate) fn pages(&self) -> Result<(u64, u64), ProcessError> {
        let mut text = Vec::new();
        let mut read = || {
            proc_file::read_into(self.memory_path("statm"), &mut text)?;
            Ok(parse::statm(&text))
        };
        let pages = match read() {
            // The thread that had it is gone, or has it no more.
            Ok(Some((0, _))) | Err(_) if self.find_memory() => read(),
            pages => pages,
        };
        self.still_alive()?;
        pages
            .map_err(|source: io::Error| ProcessError::from_io(self.pid(), "/proc/PID/statm", source))?
            .ok_or_else(|| self.malformed("statm"))
    }
}

/// Whether an error of [`Process::memory_fd`] says that the kernel cannot do it.
pub(crate) fn has_no_fd(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::INVAL.raw_os_error())
}

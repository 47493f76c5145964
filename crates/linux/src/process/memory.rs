//! Where the memory of a process is found.
//!
//! What `/proc/PID` shows, and what a pidfd stands for, is its first thread. That one may end before the others (`pthread_exit` in
//! `main`): its mappings, page map and sizes are empty from then on, and `clear_refs` does nothing without saying so. The other threads
//! have the same memory, under `/proc/PID/task/TID`. So another thread is looked for once the first one has no memory, and again when
//! that one ends. Advice has no way to it: process_madvise finds no process (ESRCH), also by a pidfd of another thread (Linux 6.18).

use super::{Process, ProcessError, parse};
use crate::proc_file;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;

/// Threads that are asked.
const MOST_THREADS_TRIED: usize = 64;

impl Process {
    /// The path of a file in `/proc` that tells of its memory.
    pub(crate) fn memory_path(&self, file: &str) -> PathBuf {
        match self.thread.load(Relaxed) {
            0 => self.path(file),
            tid => self.path(&format!("task/{tid}/{file}")),
        }
    }

    /// Whether its first thread is known to have ended, and others have its memory.
    pub(crate) fn is_headless(&self) -> bool {
        self.thread.load(Relaxed) != 0
    }

    /// Whether it has memory that advice, which has just found none, cannot reach.
    pub(crate) fn is_out_of_reach(&self) -> bool {
        self.is_headless() || self.find_memory() && self.is_headless()
    }

    /// Looks for a thread that has its memory, the first one first. False if none was found.
    pub(crate) fn find_memory(&self) -> bool {
        if self.has_memory("statm") {
            self.thread.store(0, Relaxed);
            return self.is_alive();
        }
        let Ok(threads) = std::fs::read_dir(self.path("task")) else { return false };
        let tids = threads.filter_map(|thread| thread.ok()?.file_name().to_str()?.parse::<i32>().ok());
        let found = tids.take(MOST_THREADS_TRIED).find(|tid| self.has_memory(&format!("task/{tid}/statm")));
        if let Some(tid) = found {
            self.thread.store(tid, Relaxed);
        }
        // What was read is its own if it lives still.
        found.is_some() && self.is_alive()
    }

    fn has_memory(&self, statm: &str) -> bool {
        let mut text = Vec::new();
        let read = proc_file::read_into(self.path(statm), &mut text);
        read.is_ok() && parse::statm(&text).is_some_and(|(mapped, _)| mapped > 0)
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

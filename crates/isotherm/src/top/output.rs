//! What the watched command prints: kept while the screen is drawn on, and shown after.

use anyhow::Context;
use isotherm_report::units::format_size;
use rustix::fs::{FallocateFlags, Mode, OFlags};
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Where the standard streams led before.
#[derive(Default)]
struct Streams {
    out: Option<OwnedFd>,
    err: Option<OwnedFd>,
    from: Option<OwnedFd>,
}

/// Of those that are diverted. The panic hook needs it too.
static BEFORE: Mutex<Streams> = Mutex::new(Streams { out: None, err: None, from: None });

/// Lets the streams of this process lead where they led before. May be called from any thread, any number of times.
pub fn restore() {
    let before = std::mem::take(&mut *BEFORE.lock().unwrap_or_else(PoisonError::into_inner));
    // Of what was open a moment ago.
    if let Some(out) = before.out {
        let _ = rustix::stdio::dup2_stdout(&out);
    }
    if let Some(err) = before.err {
        let _ = rustix::stdio::dup2_stderr(&err);
    }
    if let Some(from) = before.from {
        let _ = rustix::stdio::dup2_stdin(&from);
    }
}

/// Standard streams that led to the terminal, diverted: into a file without a name, and from nothing.
pub struct Output {
    file: File,
    /// Whether anything leads into the file.
    diverted: bool,
    /// Bytes of it that were shown.
    shown: u64,
    left_out: Arc<AtomicU64>,
}

/// So much of what a command prints is kept, and at most twice as much at times: nobody reads more of it when the screen is
/// over, and a command that prints for days must not fill the disk.
const KEPT: u64 = 4 << 20;

/// Lets go of what was printed long ago.
pub struct Keeper {
    file: File,
    /// Bytes at the file's start that are gone.
    left_out: Arc<AtomicU64>,
}

impl Keeper {
    /// Where the file holds more than twice what is kept, its beginning is given back to the disk. The command goes on writing
    /// where it was, so the file is not cut: a hole is made.
    pub fn trim(&mut self) {
        let before = self.left_out.load(Ordering::Relaxed);
        let Ok(size) = self.file.metadata().map(|m| m.len()) else { return };
        if size.saturating_sub(before) <= 2 * KEPT {
            return;
        }
        let from = (size - KEPT) & !4095;
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        // A file system without holes keeps all of it.
        if rustix::fs::fallocate(&self.file, hole, before, from - before).is_ok() {
            self.left_out.store(from, Ordering::Relaxed);
        }
    }
}

impl Output {
    /// Diverts them. What leads elsewhere is left alone.
    ///
    /// # Errors
    /// No temporary file can be made.
    pub fn divert() -> anyhow::Result<Self> {
        let file = tempfile::tempfile().context("cannot make a file for what the command prints")?;
        let keep = |fd: &dyn AsFd| rustix::io::fcntl_dupfd_cloexec(fd, 3).ok();
        let before = Streams {
            out: if io::stdout().is_terminal() { keep(&io::stdout()) } else { None },
            err: if io::stderr().is_terminal() { keep(&io::stderr()) } else { None },
            from: if io::stdin().is_terminal() { keep(&io::stdin()) } else { None },
        };
        let (out, err, from) = (before.out.is_some(), before.err.is_some(), before.from.is_some());
        *BEFORE.lock().unwrap_or_else(PoisonError::into_inner) = before;
        let diverted = Self { file, diverted: out || err, shown: 0, left_out: Arc::default() };
        let failed = "cannot divert what the command prints";
        if out {
            rustix::stdio::dup2_stdout(&diverted.file).context(failed)?;
        }
        if err {
            rustix::stdio::dup2_stderr(&diverted.file).context(failed)?;
        }
        if from {
            let nothing = rustix::fs::open("/dev/null", OFlags::RDONLY, Mode::empty()).context(failed)?;
            rustix::stdio::dup2_stdin(&nothing).context(failed)?;
        }
        Ok(diverted)
    }

    /// What keeps the file small, where anything leads into it.
    pub fn keeper(&self) -> Option<Keeper> {
        let file = self.file.try_clone().ok().filter(|_| self.diverted)?;
        Some(Keeper { file, left_out: Arc::clone(&self.left_out) })
    }

    /// Restores the streams of this process, and prints what came since it was called last. What the command prints still
    /// leads into the file.
    pub fn show(&mut self) {
        restore();
        if !self.diverted {
            return;
        }
        let mut out = io::stdout().lock();
        let left_out = self.left_out.load(Ordering::Relaxed);
        if self.shown < left_out {
            self.shown = left_out;
            say!("isotherm: the first {} of what the command printed were not kept", format_size(left_out));
        }
        let mut piece = [0; 1 << 16];
        // The command writes where the file's own position is, so that must not be moved.
        while let Ok(n @ 1..) = self.file.read_at(&mut piece, self.shown) {
            self.shown += n as u64;
            if out.write_all(&piece[..n]).is_err() {
                return;
            }
        }
        let _ = out.flush();
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        self.show();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn what_was_printed_long_ago_takes_no_room() {
        let file = tempfile::tempfile().expect("a file");
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if rustix::fs::fallocate(&file, hole, 0, 4096).is_err() {
            println!("skipped: this file system makes no holes");
            return;
        }
        let mut writer = file.try_clone().expect("another descriptor");
        let mut keeper = Keeper { file: file.try_clone().expect("another"), left_out: Arc::default() };
        let line = |n: u64| format!("{n:0>1023}\n");
        for n in 0..40 << 10 {
            writer.write_all(line(n).as_bytes()).expect("room");
            if n % 1000 == 0 {
                keeper.trim();
            }
        }
        keeper.trim();
        let left_out = keeper.left_out.load(Ordering::Relaxed);
        let held = file.metadata().expect("its size").blocks() * 512;
        assert!(held <= 2 * KEPT + (1 << 20), "{held} bytes on disk");
        assert!((40 << 20) - left_out >= KEPT, "{left_out} left out");
        let mut last = vec![0; 1024];
        file.read_exact_at(&mut last, (40 << 20) - 1024).expect("the last line");
        assert_eq!(last, line((40 << 10) - 1).as_bytes());
    }
}

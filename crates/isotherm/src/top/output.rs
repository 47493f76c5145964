//! What the watched command prints: kept while the screen is drawn on, and shown after.

use anyhow::Context;
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, PoisonError};

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
        let diverted = Self { file, diverted: out || err, shown: 0 };
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

    /// Restores the streams of this process, and prints what came since it was called last. What the command prints still
    /// leads into the file.
    pub fn show(&mut self) {
        restore();
        if !self.diverted {
            return;
        }
        let mut out = io::stdout().lock();
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

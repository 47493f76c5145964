//! What the watched command prints: kept while the screen is drawn on, and shown after.

use anyhow::Context;
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io::{self, IsTerminal, Read, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};

/// Standard streams that led to the terminal, diverted: into a file without a name, and from nothing.
pub struct Output {
    file: File,
    out: Option<OwnedFd>,
    err: Option<OwnedFd>,
    from: Option<OwnedFd>,
}

impl Output {
    /// Diverts them. What leads elsewhere is left alone.
    ///
    /// # Errors
    /// No temporary file can be made.
    pub fn divert() -> anyhow::Result<Self> {
        let file = tempfile::tempfile().context("cannot make a file for what the command prints")?;
        let keep = |fd: &dyn AsFd| rustix::io::fcntl_dupfd_cloexec(fd, 3).ok();
        let diverted = Self {
            out: if io::stdout().is_terminal() { keep(&io::stdout()) } else { None },
            err: if io::stderr().is_terminal() { keep(&io::stderr()) } else { None },
            from: if io::stdin().is_terminal() { keep(&io::stdin()) } else { None },
            file,
        };
        let failed = "cannot divert what the command prints";
        if diverted.out.is_some() {
            rustix::stdio::dup2_stdout(&diverted.file).context(failed)?;
        }
        if diverted.err.is_some() {
            rustix::stdio::dup2_stderr(&diverted.file).context(failed)?;
        }
        if diverted.from.is_some() {
            let nothing = rustix::fs::open("/dev/null", OFlags::RDONLY, Mode::empty()).context(failed)?;
            rustix::stdio::dup2_stdin(&nothing).context(failed)?;
        }
        Ok(diverted)
    }

    fn restore(&mut self) {
        // Of what was open a moment ago.
        if let Some(out) = self.out.take() {
            let _ = rustix::stdio::dup2_stdout(&out);
        }
        if let Some(err) = self.err.take() {
            let _ = rustix::stdio::dup2_stderr(&err);
        }
        if let Some(from) = self.from.take() {
            let _ = rustix::stdio::dup2_stdin(&from);
        }
    }

    /// Ends it, and prints what came.
    pub fn show(mut self) {
        let was_diverted = self.out.is_some() || self.err.is_some();
        self.restore();
        if !was_diverted || self.file.rewind().is_err() {
            return;
        }
        let mut out = io::stdout().lock();
        let mut piece = [0; 1 << 16];
        while let Ok(n @ 1..) = self.file.read(&mut piece) {
            if out.write_all(&piece[..n]).is_err() {
                return;
            }
        }
        let _ = out.flush();
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        self.restore();
    }
}

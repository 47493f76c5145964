//! Ending on request, and not starting in vain.

use anyhow::bail;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts the signals that ask to end. The default action of none of them takes place.
pub struct Stop {
    interrupts: Arc<AtomicUsize>,
    terminations: Arc<AtomicUsize>,
}

impl Stop {
    /// Catches SIGINT, SIGTERM and SIGHUP from now on.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn install() -> std::io::Result<Self> {
        let stop = Self { interrupts: Arc::default(), terminations: Arc::default() };
        for (signal, counter) in
            [(SIGINT, &stop.interrupts), (SIGTERM, &stop.terminations), (SIGHUP, &stop.terminations)]
        {
            let counter = Arc::clone(counter);
            // SAFETY: the handler only adds to an atomic, which is async-signal-safe.
            unsafe {
                signal_hook::low_level::register(signal, move || {
                    counter.fetch_add(1, Ordering::Relaxed);
                })
            }?;
        }
        Ok(stop)
    }

    /// Whether any came.
    pub fn asked(&self) -> bool {
        self.interrupts.load(Ordering::Relaxed) + self.terminations() > 0
    }

    /// How many came that only this process got.
    pub fn terminations(&self) -> usize {
        self.terminations.load(Ordering::Relaxed)
    }
}

/// Looks whether `program` can be run, before anything is overwritten for its sake.
///
/// # Errors
/// When it is not there or not executable.
pub fn check_program(program: &OsStr) -> anyhow::Result<()> {
    let runs =
        |path: &Path| path.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0);
    let name = program.to_string_lossy();
    if program.as_bytes().contains(&b'/') {
        if runs(Path::new(program)) {
            return Ok(());
        }
        bail!("{name}: no such program, or not executable; nothing was recorded");
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    if std::env::split_paths(&path).any(|dir| runs(&dir.join(program))) {
        return Ok(());
    }
    bail!("{name}: not found in PATH; give its path, for example ./{name}. Nothing was recorded")
}

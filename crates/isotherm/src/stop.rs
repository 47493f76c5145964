//! Ending on request, and not starting in vain.

use isotherm_linux::targets::CommandError;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
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
    hangups: Arc<AtomicUsize>,
    quits: Arc<AtomicUsize>,
    hears_hangups: bool,
    /// Whether SIGHUP asks to end.
    hangup_ends: bool,
    /// Whether it is asked to end when nobody reads standard output any more.
    hears_reader: bool,
}

impl Stop {
    /// Catches SIGINT, SIGTERM and SIGHUP from now on; SIGHUP only if it is not ignored (nohup).
    ///
    /// # Errors
    /// When the system refuses.
    pub fn install() -> std::io::Result<Self> {
        Self::install_with(true)
    }

    /// The same where SIGHUP, though counted, does not ask to end: it has files read again.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn install_for_service() -> std::io::Result<Self> {
        Self::install_with(false)
    }

    fn install_with(hangup_ends: bool) -> std::io::Result<Self> {
        let stop = Self {
            hangup_ends,
            hears_reader: false,
            interrupts: Arc::default(),
            terminations: Arc::default(),
            hangups: Arc::default(),
            quits: Arc::default(),
            hears_hangups: !is_ignored(SIGHUP),
        };
        for (signal, counter) in
            [(SIGINT, &stop.interrupts), (SIGTERM, &stop.terminations), (SIGHUP, &stop.hangups)]
        {
            if signal == SIGHUP && !stop.hears_hangups {
                continue;
            }
            catch(signal, counter)?;
        }
        Ok(stop)
    }

    /// From now on SIGQUIT asks to end as well: it must not end what has yet to give the terminal back.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn hear_quit(&self) -> std::io::Result<()> {
        catch(SIGQUIT, &self.quits)
    }

    /// From now on it asks to end, too, that nobody reads standard output any more ([`crate::reader`]).
    pub fn hear_reader(&mut self) {
        self.hears_reader = true;
    }

    /// Whether nobody reads standard output any more, where that asks to end.
    pub fn reader_left(&self) -> bool {
        self.hears_reader && crate::reader::has_left()
    }

    /// Whether it is asked to end.
    pub fn asked(&self) -> bool {
        self.count() > 0 || self.reader_left()
    }

    /// How many came so far that ask to end.
    pub fn count(&self) -> usize {
        self.interrupts() + self.terminations() + self.ending_hangups() + self.quits()
    }

    /// How often Ctrl-C was pressed.
    pub fn interrupts(&self) -> usize {
        self.interrupts.load(Ordering::Relaxed)
    }

    /// How many SIGTERM came, which only this process got.
    pub fn terminations(&self) -> usize {
        self.terminations.load(Ordering::Relaxed)
    }

    /// How many SIGHUP came.
    pub fn hangups(&self) -> usize {
        self.hangups.load(Ordering::Relaxed)
    }

    fn quits(&self) -> usize {
        self.quits.load(Ordering::Relaxed)
    }

    fn ending_hangups(&self) -> usize {
        if self.hangup_ends { self.hangups() } else { 0 }
    }

    /// Whether SIGHUP is counted: it was not ignored when this process began.
    pub fn hears_hangups(&self) -> bool {
        self.hears_hangups
    }

    /// The status to exit with for the signal that came, 128 and its number; none if none came.
    pub fn code(&self) -> Option<u8> {
        let came = [
            (SIGHUP, self.ending_hangups()),
            (SIGTERM, self.terminations()),
            (SIGQUIT, self.quits()),
            (SIGINT, self.interrupts()),
        ];
        came.into_iter().find(|(_, count)| *count > 0).and_then(|(signal, _)| u8::try_from(128 + signal).ok())
    }

    /// The same where Ctrl-C is how a user ends what has no end of its own, and all is well then.
    pub fn code_but_ctrl_c(&self) -> Option<u8> {
        self.code().filter(|code| i32::from(*code) != 128 + SIGINT)
    }
}

fn catch(signal: i32, counter: &Arc<AtomicUsize>) -> std::io::Result<()> {
    let counter = Arc::clone(counter);
    // SAFETY: the handler only adds to an atomic, which is async-signal-safe.
    unsafe {
        signal_hook::low_level::register(signal, move || {
            counter.fetch_add(1, Ordering::Relaxed);
        })
    }?;
    Ok(())
}

/// Whether this process was started with `signal` ignored.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal - 1) & 1 == 1
}

/// Looks whether `program` can be run, before anything is overwritten for its sake.
///
/// # Errors
/// When it is not there or not executable.
pub fn check_program(program: &OsStr) -> Result<(), CommandError> {
    let runs =
        |path: &Path| path.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0);
    let name = program.to_string_lossy().into_owned();
    let path = Path::new(program);
    if program.as_bytes().contains(&b'/') {
        return match path.metadata() {
            Ok(_) if runs(path) => Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                Err(CommandError::NotFound { program: name })
            }
            _ => Err(CommandError::NotPermitted { program: name }),
        };
    }
    let dirs = std::env::var_os("PATH").unwrap_or_default();
    if std::env::split_paths(&dirs).any(|dir| runs(&dir.join(program))) {
        return Ok(());
    }
    Err(CommandError::NotFound { program: name })
}

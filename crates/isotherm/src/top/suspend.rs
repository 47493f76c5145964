//! Ctrl-Z and `fg`: the terminal is the shell's meanwhile.

use rustix::process::{Signal, kill_current_process_group};
use signal_hook::consts::{SIGCONT, SIGTSTP};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Set by signals.
pub struct Signals {
    suspend: Arc<AtomicBool>,
    continued: Arc<AtomicBool>,
}

impl Signals {
    /// Catches SIGTSTP and SIGCONT from now on.
    ///
    /// # Errors
    /// The system refuses.
    pub fn catch() -> io::Result<Self> {
        let signals = Self { suspend: Arc::default(), continued: Arc::default() };
        signal_hook::flag::register(SIGTSTP, Arc::clone(&signals.suspend))?;
        signal_hook::flag::register(SIGCONT, Arc::clone(&signals.continued))?;
        Ok(signals)
    }

    /// Whether this process is asked to stop.
    pub fn suspend(&self) -> bool {
        self.suspend.swap(false, Ordering::Relaxed)
    }

    /// Whether it goes on after it was stopped by others.
    pub fn continued(&self) -> bool {
        self.continued.swap(false, Ordering::Relaxed)
    }

    /// Does what the terminal does on Ctrl-Z when it is not taken over: all of the process group is asked to stop.
    pub fn ask_group(&self) {
        if kill_current_process_group(Signal::TSTP).is_err() {
            self.suspend.store(true, Ordering::Relaxed);
        }
    }

    /// Stops this process, and returns when it goes on. Where nobody could let it go on, the system does not stop it.
    pub fn stop_here(&self) {
        // SAFETY: a zeroed sigaction is a valid value to be filled in or to stand for SIG_DFL without flags; both calls get
        // pointers to live values. raise(3) sends to this thread, so that it does not run on past this line before all
        // threads stand still.
        unsafe {
            let mut ours: libc::sigaction = std::mem::zeroed();
            let mut default: libc::sigaction = std::mem::zeroed();
            default.sa_sigaction = libc::SIG_DFL;
            if libc::sigaction(SIGTSTP, &default, &mut ours) == 0 {
                libc::raise(SIGTSTP);
                libc::sigaction(SIGTSTP, &ours, std::ptr::null_mut());
            }
        }
        // That it goes on is known here.
        self.continued.store(false, Ordering::Relaxed);
        self.suspend.store(false, Ordering::Relaxed);
    }
}

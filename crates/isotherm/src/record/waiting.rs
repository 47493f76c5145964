//! Waiting for the command once it is no longer watched.

use crate::stop::Stop;
use isotherm_linux::process::ExitStatus;
use isotherm_linux::targets::{CommandError, RunningCommand};
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// How waiting ended.
#[derive(Clone, Copy, Debug)]
pub enum Waited {
    /// With the command.
    Ended(ExitStatus),
    /// The user did not want to wait; the command runs on.
    Left,
}

/// How long a command may take to end before the user is told what is waited for.
const PATIENCE: Duration = Duration::from_millis(500);

/// Waits for the command, says after a while that it does, with `over` as the reason (`None`: silently), and calls `meanwhile`
/// again and again. What asks this process alone to end is passed on to it as it came; a second Ctrl-C ends the waiting.
///
/// # Errors
/// When the system does not tell how the command fares.
pub fn wait_for(
    mut running: RunningCommand,
    stop: &Stop,
    over: Option<&str>,
    mut meanwhile: impl FnMut(),
) -> Result<Waited, CommandError> {
    let since = Instant::now();
    let interrupts = stop.interrupts();
    let (mut terminations, mut hangups) = (0, 0);
    let mut told = false;
    loop {
        meanwhile();
        if let Some(status) = running.try_wait()? {
            return Ok(Waited::Ended(status));
        }
        // Ctrl-C reaches the whole foreground group; other signals only us.
        while terminations < stop.terminations() {
            terminations += 1;
            running.signal(Signal::TERM)?;
        }
        while hangups < stop.hangups() {
            hangups += 1;
            running.signal(Signal::HUP)?;
        }
        // One Ctrl-C, if it came, ended the recording. A command may heed it or not; the next one is for us.
        if stop.interrupts() > interrupts.max(1) {
            say!("isotherm: not waiting for the command any longer; it runs on");
            return Ok(Waited::Left);
        }
        if let Some(over) = over.filter(|_| !told && since.elapsed() > PATIENCE) {
            told = true;
            let again = if interrupts > 0 { " again" } else { " twice" };
            say!("isotherm: {over}; waiting for the command (Ctrl-C{again} leaves it alone)");
        }
        std::thread::park_timeout(Duration::from_millis(20));
    }
}

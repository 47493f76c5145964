//! How every experiment of `isotherm lab` ends: with its report, and a status.

use anyhow::Context;
use serde::Serialize;
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;

use crate::stop::Stop;

/// What stops an experiment: Ctrl-C, or another signal that asks to end.
pub type Stopped = Arc<dyn Fn() -> bool + Send + Sync>;

/// Catches the signals that ask to end, from now on.
///
/// # Errors
/// When the system refuses.
pub fn stop_on_signals() -> anyhow::Result<Stopped> {
    let stop = Stop::install().context("cannot catch Ctrl-C")?;
    Ok(Arc::new(move || stop.asked()))
}

/// What an experiment found.
#[derive(Serialize)]
pub struct Report<S, R> {
    /// How it was done.
    pub setup: S,
    /// What was measured.
    #[serde(flatten)]
    pub results: R,
    /// Whether the bars are met; null when they cannot be judged by what was measured.
    pub ok: Option<bool>,
    /// Whether it was ended before everything was measured.
    pub interrupted: bool,
}

impl<S: Serialize, R: Serialize> Report<S, R> {
    /// Prints it, as JSON or as `text`; gives the status for it. What was measured is told even if `outcome` is a failure.
    ///
    /// # Errors
    /// It cannot be printed; the outcome's, unless that is an interruption.
    pub fn tell<E>(
        &self,
        name: &str,
        json: bool,
        text: impl FnOnce(&Self) -> String,
        outcome: Result<(), E>,
    ) -> anyhow::Result<ExitCode>
    where
        anyhow::Error: From<E>,
    {
        let text = if json { isotherm_report::json::to_string_pretty(self)? + "\n" } else { text(self) };
        let mut out = std::io::stdout().lock();
        out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("cannot print the report")?;
        if self.interrupted {
            return Ok(interrupted(name));
        }
        outcome?;
        Ok(if self.ok == Some(false) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}

/// Says that the experiment ended before its time; the status for that.
pub fn interrupted(name: &str) -> ExitCode {
    say!("lab {name}: interrupted; what was measured until then is all there is");
    ExitCode::from(130)
}

//! How every experiment of `isotherm lab` ends: with its report, and a status.

use anyhow::Context;
use serde::Serialize;
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;

use crate::stop::Stop;

/// What stops an experiment: Ctrl-C, another signal that asks to end, or that nobody reads its report.
pub type Stopped = Arc<dyn Fn() -> bool + Send + Sync>;

/// Catches the signals that ask to end, from now on, and hears of a reader who leaves.
///
/// # Errors
/// When the system refuses.
pub fn stop_on_signals() -> anyhow::Result<Stopped> {
    let stop = stop()?;
    Ok(Arc::new(move || stop.asked()))
}

/// The same, for who has to know which it was.
///
/// # Errors
/// As [`stop_on_signals`].
pub fn stop() -> anyhow::Result<Stop> {
    let mut stop = Stop::install().context("cannot catch Ctrl-C")?;
    stop.hear_reader();
    Ok(stop)
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
        print(&text)?;
        if self.interrupted {
            return Ok(interrupted(name));
        }
        outcome?;
        Ok(if self.ok == Some(false) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}

/// Prints a report, or part of it.
///
/// # Errors
/// It cannot be printed; nobody reads it any more.
pub fn print(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    let printed = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    if printed.is_err() && crate::reader::has_left() {
        return Err(crate::Unread.into());
    }
    printed.context("cannot print the report")
}

/// Says that the experiment ended before its time; the status for that.
pub fn interrupted(name: &str) -> ExitCode {
    if crate::reader::has_left() {
        return ExitCode::from(crate::reader::LEFT);
    }
    say!("lab {name}: interrupted; what was measured until then is all there is");
    ExitCode::from(130)
}

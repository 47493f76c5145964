//! How many guests fit into the budget.

use super::{PATIENCE, SETTLE, Setup, resident};
use crate::Watch;
use isotherm_qemu::{Error, Guest};
use serde::Serialize;

/// How many guests fit. Sizes in bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Fit {
    /// Whether the guests reported their free memory.
    pub reporting: bool,
    /// How many guests fit.
    pub guests: u32,
    /// Whether one more was tried and did not fit; otherwise no more were to be tried.
    pub exceeded: bool,
    /// Each guest's share, the one that did not fit too.
    pub runs: Vec<GuestRun>,
}

/// What one guest did. Sizes in bytes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GuestRun {
    /// How long it allocated and touched, by its own clock, in seconds.
    pub seconds: f64,
    /// What it had resident when it had touched all.
    pub peak: u64,
    /// What it had resident 3 s after it had freed it all; `None` for the one that did not fit.
    pub settled: Option<u64>,
    /// What all guests had resident at its peak.
    pub sum_at_peak: u64,
    /// What all guests had resident 3 s after it had freed it all.
    pub sum_settled: Option<u64>,
}

/// Starts guest after guest until the budget is exceeded, or [`Setup::guests`] are there.
///
/// # Errors
/// A guest cannot be booted, or ends; or the caller interrupts. All guests are gone then.
pub fn fit(setup: &Setup, reporting: bool, watch: &mut Watch<'_>) -> Result<Fit, Error> {
    let mut result = Fit { reporting, ..Fit::default() };
    let mut guests: Vec<Guest> = Vec::new();
    while result.guests < setup.guests && !result.exceeded {
        let guest = setup.boot(setup.memory, reporting, watch)?;
        guests.push(guest);
        let run = one(setup, &mut guests, watch)?;
        (watch.progress)(&format!(
            "guest {} {} reporting: {} MiB resident in all at its peak, of {} MiB",
            guests.len(),
            if reporting { "with" } else { "without" },
            run.sum_at_peak >> 20,
            setup.budget >> 20
        ));
        result.exceeded = run.settled.is_none();
        result.guests += u32::from(!result.exceeded);
        result.runs.push(run);
    }
    Ok(result)
}

/// The last of `guests` does its work; it frees what it touched only if it fits.
fn one(setup: &Setup, guests: &mut [Guest], watch: &Watch<'_>) -> Result<GuestRun, Error> {
    let Some(last) = guests.last_mut() else { return Err(Error::Interrupted) };
    let alloc = last.ask(&format!("alloc {}", setup.touch), PATIENCE)?.get("us")?;
    let touch = last.ask("touch", PATIENCE)?.get("us")?;
    let peak = last.resident()?.whole;
    let sum_at_peak = resident(guests)?;
    let mut run = GuestRun {
        seconds: (alloc + touch) as f64 / 1e6,
        peak,
        settled: None,
        sum_at_peak,
        sum_settled: None,
    };
    if sum_at_peak <= setup.budget
        && let Some(last) = guests.last_mut()
    {
        last.ask("check", PATIENCE)?;
        last.ask("free all", PATIENCE)?;
        last.wait(SETTLE)?;
        run.settled = Some(last.resident()?.whole);
        run.sum_settled = Some(resident(guests)?);
    }
    watch.go_on().map_err(|_| Error::Interrupted)?;
    Ok(run)
}

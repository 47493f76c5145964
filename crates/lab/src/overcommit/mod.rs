//! Overcommit: what free page reporting is for. The two use cases of the patch series "mm: Support for page hinting"
//! (version 10, June 2019) that brought the idea to Linux, in smaller sizes.
//!
//! 1. [`Fit`]: how many guests fit into a host. One after the other is started, allocates and touches most of its
//!    memory, frees it, and stays. The series: 5 guests of 5 GB that touch 4 GB on a host with 15 GB, 3 without.
//! 2. [`Memhog`]: three guests on a host that could not hold the memory of all; `memhog` runs in one after the other. The
//!    series: 37 s for the third, and 3 min 35 s without.
//!
//! The guests are QEMU with the program of `guest/`: no kernel, so that nothing but the frames allocator and the balloon
//! driver under test decides what is given back. The host is a budget: the sum of the resident sets of all guests, QEMU's
//! own part in it, must not exceed it. Nothing is enforced, so nothing of this machine is swapped or killed for the
//! experiment's sake, and no privilege is needed; that also means that the second experiment shows by how much the budget
//! would have been exceeded, not how slow that would have made a host that swaps. As root the second is done once more with a
//! [`Budget`] that is enforced: the guests are in a memory cgroup, and there is swap in compressed memory.

mod budget;
mod fit;
mod memhog;
mod table;

pub use budget::Budget;
pub use fit::{Fit, GuestRun, fit};
pub use memhog::{Memhog, memhog};
pub use table::{details, table};

use crate::Watch;
use isotherm_qemu::{Guest, Machine};
use serde::Serialize;
use std::sync::Arc;
use std::time::Duration;

/// Most that the third memhog may be slower than the first: the bar.
pub const SLOWER: f64 = 0.10;
/// How many times faster the third memhog is to be with reporting, where the budget is enforced: the bar. (The series: 37 s and
/// 215 s, 5.8 times.)
pub const FASTER: f64 = 5.0;
/// The series' machine: 15 GB, guests of 5 GB that touch 4 GB, three guests of 6 GB.
const GB: u64 = 1 << 30;
/// How long a guest may work without a word.
const PATIENCE: Duration = Duration::from_secs(300);
/// How long is waited after memory was freed: the bar of `cargo xtask guest`, and as long where nothing is reported.
const SETTLE: Duration = Duration::from_secs(3);

/// What the experiments are done with. Sizes in bytes.
#[derive(Clone, Debug, Serialize)]
pub struct Setup {
    /// The host's memory.
    pub budget: u64,
    /// RAM of a guest of the first experiment.
    pub memory: u64,
    /// What it touches.
    pub touch: u64,
    /// RAM of a guest of the second experiment.
    pub hog_memory: u64,
    /// What memhog writes to.
    pub hog: u64,
    /// Most guests to start at a time.
    pub guests: u32,
    /// How often the second experiment is done.
    pub runs: u32,
    /// What to boot: program, emulator, kind of machine.
    #[serde(skip)]
    pub machine: Machine,
}

impl Setup {
    /// The series' sizes, divided by `scale`, in whole MiB.
    #[must_use]
    pub fn scaled(machine: Machine, scale: f64) -> Self {
        let mib = |bytes: u64| ((bytes as f64 / scale) as u64 >> 20).max(1) << 20;
        Self {
            budget: mib(15 * GB),
            memory: mib(5 * GB),
            touch: mib(4 * GB),
            hog_memory: mib(6 * GB),
            // All but what the guest's own books take, and what is in pieces below 1 MiB.
            hog: mib(6 * GB - 6 * GB / 16),
            guests: 8,
            runs: 5,
            machine,
        }
    }

    /// What is resident at the most, if nothing is ever given back.
    #[must_use]
    pub fn most_resident(&self) -> u64 {
        // The first experiment stops with the guest that exceeds the budget.
        const QEMU: u64 = 64 << 20;
        let fitting = self.budget.saturating_add(self.memory).saturating_add(QEMU);
        fitting.max(self.hog_memory.saturating_add(QEMU).saturating_mul(3))
    }

    /// What cannot be, and why.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        const LEAST: u64 = 64 << 20;
        let smallest = self.memory.min(self.hog_memory);
        if smallest < LEAST {
            return Some(format!(
                "guests of {} MiB are too small to show anything; the least is 64",
                smallest >> 20
            ));
        }
        if self.touch > self.memory - self.memory / 16 {
            return Some(format!(
                "a guest of {} MiB cannot touch {} MiB: a sixteenth is for its own books",
                self.memory >> 20,
                self.touch >> 20
            ));
        }
        None
    }

    fn boot(&self, memory: u64, reporting: bool, watch: &Watch<'_>) -> Result<Guest, isotherm_qemu::Error> {
        let machine = Machine { memory, reporting, ..self.machine.clone() };
        let stop = Arc::clone(&watch.stop);
        Guest::boot(&machine, move || stop())
    }
}

/// Both experiments, each without and with reporting.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Overcommit {
    /// The first experiment.
    pub fit: Vec<Fit>,
    /// The second.
    pub memhog: Vec<Memhog>,
    /// The second with an enforced budget.
    pub enforced: Vec<Memhog>,
    /// Why there is none of that.
    pub not_enforced: Option<String>,
}

impl Overcommit {
    /// How many times as long the third memhog takes without reporting, where the budget is enforced.
    #[must_use]
    pub fn saved(&self) -> Option<f64> {
        let third = |reporting| self.enforced.iter().find(|hog| hog.reporting == reporting)?.median(2);
        Some(third(false)? / third(true)?)
    }

    /// Whether the bars are met: at least 5 guests with reporting, and 3 without, as in the series; the third memhog
    /// no slower than the first by more than a tenth, and, if a budget could be enforced, at least 5 times faster than without
    /// reporting. `None` as long as something is missing.
    #[must_use]
    pub fn ok(&self) -> Option<bool> {
        let fits = |reporting| self.fit.iter().find(|fit| fit.reporting == reporting).map(|fit| fit.guests);
        let hog = self.memhog.iter().find(|hog| hog.reporting)?.third_to_first()?;
        let saved = if self.not_enforced.is_some() { FASTER } else { self.saved()? };
        Some(fits(true)? >= 5 && fits(false)? <= 3 && hog <= 1.0 + SLOWER && saved >= FASTER)
    }
}

/// What all of them have resident together.
fn resident(guests: &[Guest]) -> Result<u64, isotherm_qemu::Error> {
    guests.iter().map(|guest| Ok(guest.resident()?.whole)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_the_series_scaled() {
        let setup = Setup::scaled(Machine::new("guest", 0), 10.0);
        assert_eq!((setup.budget >> 20, setup.memory >> 20, setup.touch >> 20), (1536, 512, 409));
        assert_eq!((setup.hog_memory >> 20, setup.hog >> 20), (614, 576));
        assert_eq!(setup.fault(), None);
    }

    #[test]
    fn guests_that_cannot_do_it_are_refused_before_they_boot() {
        let mut setup = Setup::scaled(Machine::new("guest", 0), 1000.0);
        assert!(setup.fault().is_some_and(|why| why.contains("too small")));
        setup = Setup { touch: 512 << 20, ..Setup::scaled(Machine::new("guest", 0), 10.0) };
        assert!(setup.fault().is_some_and(|why| why.contains("cannot touch")));
    }

    #[test]
    fn the_bars_need_all_results() {
        let fit = |reporting, guests| Fit { reporting, guests, ..Fit::default() };
        let hog = |reporting, third| Memhog { reporting, runs: vec![[1.0, 1.0, third]], ..Memhog::default() };
        let mut all = Overcommit {
            fit: vec![fit(false, 3)],
            memhog: vec![hog(false, 9.0), hog(true, 1.05)],
            ..Overcommit::default()
        };
        assert_eq!(all.ok(), None);
        all.fit.push(fit(true, 5));
        assert_eq!(all.ok(), None);
        all.enforced = vec![hog(false, 4.9), hog(true, 1.0)];
        assert_eq!(all.ok(), Some(false));
        all.enforced = vec![hog(false, 5.1), hog(true, 1.0)];
        assert_eq!(all.ok(), Some(true));
        all.enforced.clear();
        all.not_enforced = Some("no root".into());
        assert_eq!(all.ok(), Some(true));
        all.memhog[1] = hog(true, 1.2);
        assert_eq!(all.ok(), Some(false));
    }
}

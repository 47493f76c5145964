//! memhog in three guests, one after the other.
//!
//! What memhog takes is above all what the host needs to find memory. Memory that nobody has used for long may be dear: on
//! a host that is itself a guest and reports its free memory, it has to come back from below first. So a fourth guest
//! runs memhog beforehand and is gone: the first guest finds its memory as warm as the second can find the first's.
//!
//! With an enforced [`Budget`] the third guest's memory is only to be had by swapping out what the first two have freed and not
//! given back, as in the series.

use super::{Budget, PATIENCE, SETTLE, Setup, resident};
use crate::Watch;
use isotherm_qemu::{Error, Guest};
use serde::Serialize;
use std::time::{Duration, Instant};

/// How many guests run memhog.
const GUESTS: usize = 3;
/// How long the next guest waits for its turn at least. No longer than it takes to report, or what was given back would
/// be cold again.
const TURN: Duration = Duration::from_millis(200);
/// How often is looked whether a guest has given its memory back.
const GLANCE: Duration = Duration::from_millis(20);

/// What memhog took. Sizes in bytes, times in seconds by the guests' own clocks.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Memhog {
    /// Whether the guests reported their free memory.
    pub reporting: bool,
    /// Times of the three guests, a run each.
    pub runs: Vec<[f64; GUESTS]>,
    /// The most that all guests had resident right after a memhog, over all runs.
    pub peak: u64,
    /// By how much that is above the budget; 0 if it is not.
    pub over_budget: u64,
    /// Whether the budget was enforced.
    pub enforced: bool,
    /// The most that was swapped out right after a memhog.
    pub swapped: u64,
}

impl Memhog {
    /// Median time of guest `index`, from 0.
    #[must_use]
    pub fn median(&self, index: usize) -> Option<f64> {
        median(self.runs.iter().filter_map(|run| run.get(index).copied()))
    }

    /// How long the third took for each second of the first: the median over the runs.
    #[must_use]
    pub fn third_to_first(&self) -> Option<f64> {
        median(self.runs.iter().filter(|run| run[0] > 0.0).map(|run| run[GUESTS - 1] / run[0]))
    }
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let high = *values.get(middle)?;
    if values.len() % 2 == 1 { Some(high) } else { Some((values.get(middle - 1)? + high) / 2.0) }
}

/// Boots three guests and lets memhog run in each, once; adds the times to `result`.
///
/// # Errors
/// A guest cannot be booted, or ends; or the caller interrupts. All guests are gone then.
pub fn memhog(
    setup: &Setup,
    result: &mut Memhog,
    budget: Option<&Budget>,
    watch: &mut Watch<'_>,
) -> Result<(), Error> {
    let mut guests: Vec<Guest> = Vec::new();
    for _ in 0..GUESTS {
        let guest = setup.boot(setup.hog_memory, result.reporting, watch)?;
        if let Some(budget) = budget {
            budget.hold(guest.pid()).map_err(|why| Error::Io {
                doing: "put a guest into its cgroup".into(),
                source: std::io::Error::other(format!("{why:#}")),
            })?;
        }
        guests.push(guest);
    }
    let hog = format!("memhog {}", setup.hog);
    setup.boot(setup.hog_memory, false, watch)?.ask(&hog, PATIENCE)?;
    let mut times = [0.0; GUESTS];
    for (index, time) in times.iter_mut().enumerate() {
        if let Some(guest) = guests.get_mut(index) {
            *time = guest.ask(&hog, PATIENCE)?.get("us")? as f64 / 1e6;
        }
        // Reporting lags behind the free, so this is the peak, or shortly after it.
        result.peak = result.peak.max(resident(&guests)?);
        result.swapped = result.swapped.max(budget.map_or(0, Budget::swapped));
        if let Some(guest) = guests.get(index) {
            guest.wait(TURN)?;
            let from = Instant::now();
            while result.reporting && guest.resident()?.ram > setup.hog / 2 && from.elapsed() < SETTLE {
                guest.wait(GLANCE)?;
            }
        }
    }
    result.over_budget = result.peak.saturating_sub(setup.budget);
    (watch.progress)(&format!(
        "memhog {} reporting{}: {:.2} s, {:.2} s, {:.2} s; {} MiB resident in all, of {} MiB",
        if result.reporting { "with" } else { "without" },
        if result.enforced { ", enforced" } else { "" },
        times[0],
        times[1],
        times[2],
        result.peak >> 20,
        setup.budget >> 20
    ));
    result.runs.push(times);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_one_run_and_medians_over_runs() {
        let hog =
            Memhog { runs: vec![[1.0, 2.0, 1.1], [4.0, 1.0, 4.0], [2.0, 9.0, 3.0]], ..Memhog::default() };
        assert_eq!(hog.median(1), Some(2.0));
        assert_eq!(hog.third_to_first(), Some(1.1));
        assert_eq!(Memhog::default().third_to_first(), None);
        assert_eq!(median([3.0, 1.0].into_iter()), Some(2.0));
    }
}

//! Page faults under per-VMA locks, and under `mmap_lock` alone; and beside Linux.
//!
//! The question of the patch series "Per-VMA locks" (version 2, January 2023). On the same memory manager (`isotherm-mm`), with
//! the mechanism in its kinds and off ([`Way`]):
//!
//! 1. [`Faults`]: threads fault in VMAs of their own, alone and while another maps, protects and unmaps; and in one VMA.
//! 2. [`Storm`]: 100 threads start, each maps a stack and other areas, touches them, and exits.
//!
//! And beside Linux on this machine:
//!
//! 3. [`Price`]: one fault, and one mapping, less what only a system call costs.
//! 4. [`Beside`]: whole sequences of will-it-scale.
//!
//! Each way is measured in each round, in an order that changes with the round. A fault here takes a frame from the zone of
//! `isotherm-frames`, clears it and maps it. There is no program behind, so neither a trap nor a TLB is part of the figures.

mod bars;
mod beside;
mod costs;
mod linux;
mod machine;
mod own;
mod price;
mod run;
mod space;
mod storm;
mod table;
mod way;

pub use beside::{Beside, Sequence};
pub use costs::{BATCH, Costs, Measured};
pub use own::{Ceiling, Faults, Rate};
pub use price::Price;
pub use storm::{Storm, Stormed};
pub use table::table;
pub use way::{Lookups, Way};

use crate::experiment::{Interrupted, Watch};
use serde::Serialize;
use std::time::Duration;

/// How long and how often.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Setup {
    /// Rounds; each measures everything once.
    pub rounds: u32,
    /// For how long each thing is measured in a round, but a storm, which takes what it takes.
    #[serde(serialize_with = "seconds")]
    pub slice: Duration,
}

fn seconds<S: serde::Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(time.as_secs_f64())
}

/// Why there are no, or not all, results.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Somebody asked to stop.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
    /// The memory that the experiment works on was not to be had.
    #[error("no memory for the machine of the experiment")]
    Memory,
    /// The memory manager refused what it was asked for.
    #[error("the address space of the experiment: {0}")]
    Space(#[from] isotherm_mm::Error),
    /// A fault was not resolved.
    #[error("a fault of the experiment: {0}")]
    Fault(#[from] isotherm_mm::FaultError),
    /// Linux refused a system call of its side.
    #[error("Linux' side: {0}: {1}")]
    System(&'static str, std::io::Error),
    /// Linux does not know `MADV_POPULATE_WRITE`, or has no memory.
    #[error("Linux' side: MADV_POPULATE_WRITE, which Linux has since 5.14, was refused")]
    Populate,
}

/// A part of the experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// [`Faults`].
    Faults,
    /// [`Storm`].
    Storm,
    /// [`Price`].
    Price,
    /// [`Beside`].
    Beside,
}

impl Part {
    /// All.
    pub const ALL: [Self; 4] = [Self::Faults, Self::Storm, Self::Price, Self::Beside];
}

/// All that was measured.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Results {
    /// CPUs that there were to run on.
    pub cpus: usize,
    /// Threads in VMAs of their own.
    pub faults: Vec<Faults>,
    /// Threads that start all at once.
    pub storm: Option<Storm>,
    /// Single operations beside Linux.
    pub prices: Vec<Price>,
    /// Sequences beside Linux.
    pub beside: Vec<Beside>,
}

impl Results {
    /// Measures a part with up to so many threads, but for the storm.
    ///
    /// # Errors
    /// [`Error`]. What was measured until then stays.
    pub fn measure(
        &mut self,
        part: Part,
        threads: usize,
        setup: &Setup,
        watch: &mut Watch<'_>,
    ) -> Result<(), Error> {
        self.cpus = threads;
        match part {
            Part::Faults => self.faults = Faults::measure(threads, setup, watch)?,
            Part::Storm => self.storm = Storm::measure(setup, watch)?,
            Part::Price => self.prices = Price::measure(setup, watch)?,
            Part::Beside => self.beside = Beside::measure(threads, setup, watch)?,
        }
        Ok(())
    }
}

/// `0..count`, begun at another place in each round, and every second round backwards.
fn in_turn(round: u32, count: usize) -> impl Iterator<Item = usize> {
    let (round, first) = (round as usize, round as usize / 2 % count);
    (0..count)
        .map(move |n| if round.is_multiple_of(2) { (first + n) % count } else { (first + count - n) % count })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_first_changes_with_the_round() {
        let order = |round, count| in_turn(round, count).collect::<Vec<_>>();
        assert_eq!((0..4).map(|round| order(round, 2)).collect::<Vec<_>>(), [[0, 1], [0, 1], [1, 0], [1, 0]]);
        assert_eq!((order(0, 3), order(1, 3), order(2, 3)), (vec![0, 1, 2], vec![0, 2, 1], vec![1, 2, 0]));
    }
}

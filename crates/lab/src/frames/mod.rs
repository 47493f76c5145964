//! The frames allocator: how fast it is beside others, what reporting costs it, and what the ways to give memory back
//! to the system cost.
//!
//! 1. [`Throughput`]: pairs of get and put, beside `buddy_system_allocator` (what Rust kernels use), the zone without its caches,
//!    all CPUs behind one lock, and the C library's malloc, in patterns after those of the LLFree paper (Wrenger et al., USENIX ATC 2023).
//!    How two threads scale is to be seen beside what two scale that share nothing ([`Ceiling`]): on a machine whose processors are
//!    threads of one core, that is less than two.
//! 2. [`Cost`]: a loop that allocates, touches and frees, with and without reporting; the host's work apart.
//! 3. [`FaultLoops`]: seed 003's own table, `page_fault1` by 1 to N tasks, with and without reporting.
//! 4. [`Sink`]: giving 2 MiB back and taking them again, for each way. The question that the patch series "mm: Support for
//!    page hinting" (version 10, June 2019) left open: "Decide between MADV_DONTNEED and MADV_FREE".
//!
//! What is compared is measured in turn, in rounds, so that a machine that grows slower does so for all.

mod ceiling;
mod cost;
mod fault_loops;
mod pattern;
mod rivals;
mod sinks;
mod table;
mod throughput;

pub use ceiling::{Alone, Ceiling};
pub use cost::{Cost, Touching};
pub use fault_loops::FaultLoops;
pub use pattern::Pattern;
pub use rivals::Rival;
pub use sinks::{Sink, conclusion};
pub use table::table;
pub use throughput::{Rate, Throughput};

use crate::experiment::{Bar, Figure, Interrupted};
use serde::Serialize;
use std::time::Duration;

/// The bars, from the issue the allocator was built by.
const REPEAT: f64 = 25e6;
const REPEAT_RATIO: f64 = 8.0;
const REPEAT_SCALING: f64 = 1.8;
const SCALING: f64 = 1.6;
const REPORTING: f64 = 0.01;

/// How long and how often.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Setup {
    /// Rounds; each measures everything once.
    pub rounds: u32,
    /// For how long each thing is measured in a round.
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
    /// The memory that the experiments work on was not to be had.
    #[error(transparent)]
    Arena(#[from] isotherm_arena::ArenaError),
    /// The thread that reports was not to be had.
    #[error("cannot start the thread that reports: {0}")]
    Thread(#[from] std::io::Error),
    /// The same, of a single allocation.
    #[error("the arena of the experiment has no room: {0}")]
    Get(#[from] isotherm_arena::GetError),
}

/// All that was measured.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Frames {
    /// What two threads do beside one that share nothing.
    pub ceilings: Vec<Ceiling>,
    /// Pairs of get and put.
    pub throughput: Vec<Throughput>,
    /// What reporting costs; `None` if it was not measured.
    pub cost: Option<Cost>,
    /// Fault loops with and without reporting.
    pub fault_loops: Vec<FaultLoops>,
    /// The ways to give memory back.
    pub sinks: Vec<Sink>,
}

impl Frames {
    /// The bars of what was measured.
    #[must_use]
    pub fn bars(&self) -> Vec<Bar> {
        let mut bars = Vec::new();
        let mut at_least = |what: &str, measured: Option<Figure>, limit: f64| {
            bars.extend(measured.map(|measured| Bar::at_least(what, measured, limit)));
        };
        let rate = |pattern, order, threads, rival| {
            let one = |one: &&Throughput| (one.pattern, one.order, one.threads) == (pattern, order, threads);
            self.throughput.iter().find(one).and_then(|one| one.rate(rival))
        };
        let ratio =
            |pattern, order, rival| rate(pattern, order, 1, rival)?.slower_by.as_ref().map(Figure::median);
        let zone = |pattern, order, threads| {
            rate(pattern, order, threads, Rival::Zone).map(|rate| Figure::median(&rate.pairs))
        };
        let million = |rate: Option<Figure>| rate.map(|rate| rate.map(|pairs| pairs / 1e6));
        at_least("order 0 repeated, M pairs/s, >= 25", million(zone(Pattern::Repeat, 0, 1)), REPEAT / 1e6);
        let beside = ratio(Pattern::Repeat, 0, Rival::BuddySystem);
        at_least("order 0 repeated, beside buddy_system_allocator, >= 8", beside, REPEAT_RATIO);
        at_least("order 9 repeated, M pairs/s, >= 25", million(zone(Pattern::Repeat, 9, 1)), REPEAT / 1e6);
        for one in &self.throughput {
            // The best of them is the one that the zone's lead is smallest over.
            let leads = Rival::BEATEN.into_iter().filter_map(|rival| one.rate(rival)?.slower_by.as_ref());
            let lead = leads.map(Figure::median).min_by(|one, other| one.value.total_cmp(&other.value));
            let what =
                format!("{}: beside the best of buddy_system_allocator and a global lock, >= 1", one.name());
            at_least(&what, lead, 1.0);
            if one.threads == 2 {
                let repeated = (one.pattern, one.order) == (Pattern::Repeat, 0);
                let least = if repeated { REPEAT_SCALING } else { SCALING };
                let what = format!("{}: beside one, >= {least}", one.name());
                at_least(&what, one.scaling.as_ref().map(Figure::median), least);
            }
        }
        bars.extend(self.fault_loops.iter().map(|loops| {
            let slower = Figure::median(&loops.slowdown).map(|share| share * 100.0);
            let what = format!("fault loops of {} tasks: slower by reporting, %, <= 1", loops.tasks);
            Bar::at_most(what, slower, REPORTING * 100.0)
        }));
        bars.extend(self.cost.as_ref().map(|cost| {
            let slower = Figure::median(&cost.bookkeeping.slowdown).map(|share| share * 100.0);
            let what = "allocate, touch, free: slower by reporting, without the host's work, %, <= 1";
            Bar::at_most(what, slower, REPORTING * 100.0)
        }));
        bars
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Estimate;

    fn estimate(value: f64) -> Estimate {
        Estimate::of(&[value]).unwrap()
    }

    fn throughput(pattern: Pattern, order: u8, threads: usize, zone: f64, buddy: f64) -> Throughput {
        let rate = |rival, pairs: f64, slower: Option<f64>| Rate {
            rival,
            pairs: estimate(pairs),
            slower_by: slower.map(estimate),
        };
        let rates = vec![rate(Rival::Zone, zone, None), rate(Rival::BuddySystem, buddy, Some(zone / buddy))];
        // One thread comes to 30 in all that is measured with two.
        let scaling = (threads == 2).then(|| estimate(zone / 30e6));
        Throughput { pattern, order, threads, rates, scaling }
    }

    #[test]
    fn bars_are_those_of_the_issue_and_only_of_what_was_measured() {
        let mut frames = Frames::default();
        assert!(frames.bars().is_empty());
        frames.throughput = vec![
            throughput(Pattern::Repeat, 0, 1, 30e6, 4e6),
            throughput(Pattern::Repeat, 0, 2, 60e6, 4e6),
            throughput(Pattern::Bulk, 0, 1, 20e6, 21e6),
            throughput(Pattern::Repeat, 9, 1, 24e6, 1e6),
        ];
        let met: Vec<_> = frames.bars().into_iter().map(|bar| (bar.measured, bar.met)).collect();
        let expected = [
            (30.0, true),
            (7.5, false),
            (24.0, false),
            // Each beside the best of the others, here the only one; and two threads beside one.
            (7.5, true),
            (15.0, true),
            (2.0, true),
            (20.0 / 21.0, false),
            (24.0, true),
        ];
        assert_eq!(met, expected);
    }
}

//! What this machine cannot show: page faults on up to 64 cores.
//!
//! [`Scale`] is a discrete-event model (`events.rs`) of threads that fault, each on a core of its own, with the memory manager's
//! locks, counters and allocator as what they share. **What locks and cache lines cost in it is measured here** ([`Costs`]), on
//! two CPUs of this machine; how a machine of 64 cores is built it does not know: a line costs the same from any core, and memory
//! is as fast for all. So it shows which lock or line ends the scaling, and about where, not what a certain machine does. At one
//! and two threads it is put beside what is measured.

mod events;
mod programs;
mod table;

pub use crate::faults::{Costs, Measured};
pub use programs::Scenario;
pub use table::table;

use crate::experiment::{Interrupted, Watch};
use crate::faults::{self, Way};
use serde::Serialize;

/// Numbers of cores.
pub const CORES: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];

/// Virtual time of a run, ns: some ten thousand faults a core.
const VIRTUAL: f64 = 2e6;

/// Of what is put beside measured figures.
const SEED: u64 = 1;

/// How often and for how long costs are measured, and the seed of the model.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Setup {
    /// The seed.
    pub seed: u64,
    /// How costs are measured.
    pub costs: faults::Setup,
}

/// Faults of one kind by numbers of cores.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Scale {
    /// Who does what.
    pub scenario: Scenario,
    /// How faults find their VMA.
    pub way: Way,
    /// Cores that fault, and faults a second of all of them.
    pub faults: Vec<(usize, f64)>,
}

/// All that was found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Results {
    /// What the model was given.
    pub costs: Option<Costs>,
    /// What was measured beside it.
    pub measured: Vec<Measured>,
    /// What the model says.
    pub scale: Vec<Scale>,
}

/// The ways that differ in the model.
const WAYS: [Way; 3] = [Way::MmapLock, Way::Sequence, Way::Biased];

impl Results {
    /// Measures costs, unless they are given, and runs the model.
    ///
    /// # Errors
    /// [`faults::Error`].
    pub fn measure(
        &mut self,
        given: Option<Costs>,
        setup: &Setup,
        watch: &mut Watch<'_>,
    ) -> Result<(), faults::Error> {
        let costs = match given {
            Some(costs) => costs,
            None => {
                let (costs, measured) = Costs::measure(&setup.costs, watch)?;
                self.measured = measured;
                costs
            }
        };
        self.costs = Some(costs);
        self.scale = scale(&costs, setup.seed, watch)?;
        Ok(())
    }

    /// What the model says of what was measured: of two threads, with what a fault costs while both CPUs of this machine
    /// are busy.
    #[must_use]
    pub fn modelled(&self, measured: &Measured) -> Option<f64> {
        let costs = self.costs?;
        let costs = if measured.threads > 1 { Costs { fault: costs.apart, ..costs } } else { costs };
        let scenario = if measured.one_vma { Scenario::OneVma } else { Scenario::Own };
        let done = scenario.run(measured.way, measured.threads, &costs, VIRTUAL, SEED);
        Some(done as f64 / (VIRTUAL * 1e-9))
    }
}

/// Runs the model: the same costs and seed give the same figures.
///
/// # Errors
/// [`Interrupted`].
pub fn scale(costs: &Costs, seed: u64, watch: &mut Watch<'_>) -> Result<Vec<Scale>, Interrupted> {
    let mut all = Vec::new();
    for scenario in Scenario::ALL {
        for way in WAYS {
            let mut faults = Vec::new();
            for cores in CORES {
                watch.go_on()?;
                let done = scenario.run(way, cores, costs, VIRTUAL, seed);
                faults.push((cores, done as f64 / (VIRTUAL * 1e-9)));
            }
            all.push(Scale { scenario, way, faults });
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    /// As on a server: a line comes over in 80 ns, a mapper holds its lock for 1.5 us.
    const COSTS: Costs = Costs {
        fault: 250.0,
        apart: 250.0,
        local: 6.0,
        transfer: 80.0,
        hold: 1500.0,
        between: 500.0,
        refill: 1500.0,
        spin: 1000.0,
        wake: 8000.0,
    };

    fn run(seed: u64) -> Vec<Scale> {
        let mut watch = Watch { stop: Arc::new(|| false), progress: &mut |_| {} };
        scale(&COSTS, seed, &mut watch).expect("nobody interrupts")
    }

    #[test]
    fn the_same_costs_and_seed_give_the_same_figures_and_the_locks_their_order() {
        let all = run(1);
        assert_eq!(all, run(1));
        assert_ne!(all, run(2));
        let of = |scenario, way, cores| {
            let one = all.iter().find(|one| (one.scenario, one.way) == (scenario, way)).expect("it was run");
            one.faults.iter().find(|(n, _)| *n == cores).expect("it was run").1
        };
        for way in WAYS {
            // One core alone is as fast as what was measured, and two are faster.
            let alone = of(Scenario::Own, way, 1) * 250e-9;
            assert!((0.9..1.1).contains(&alone), "{way:?} {alone}");
            assert!(of(Scenario::Own, way, 2) > 1.2 * of(Scenario::Own, way, 1), "{way:?}");
        }
        // One line that all write to twice a fault ends mmap_lock's scaling; own VMAs have none of that kind.
        let most = 1e9 / (2.0 * COSTS.transfer);
        assert!(of(Scenario::Own, Way::MmapLock, 64) < 1.1 * most);
        assert!(of(Scenario::Own, Way::Sequence, 64) > 4.0 * of(Scenario::Own, Way::MmapLock, 64));
        assert!(of(Scenario::Mapper, Way::Sequence, 8) > 3.0 * of(Scenario::Mapper, Way::MmapLock, 8));
        // In one VMA the counter is such a line again, and slots are not.
        assert!(of(Scenario::OneVma, Way::Sequence, 64) < 1.2 * most);
        assert!(of(Scenario::OneVma, Way::Biased, 64) > 2.0 * of(Scenario::OneVma, Way::Sequence, 64));
    }
}

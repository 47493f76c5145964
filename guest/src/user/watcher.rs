//! DAMON on all processes: one processor drives its monitor by the clock.

use super::platform::Space;
use super::process::Process;
use super::world::World;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Deref;
use core::time::Duration;
use isotherm_damon::{Allowance, Attrs, Callbacks, Classic, Monitor, Snapshot, Target, TargetId};
use isotherm_mm::damon::Spaces;
use isotherm_pagetable::Format;

/// An aggregation: shorter than DAMON's default, as a run takes seconds, and the monitor is late whenever a program has its turn.
const AGGREGATION: Duration = Duration::from_millis(50);
/// A sampling interval, in microseconds: DAMON's default.
const SAMPLE_US: u64 = 5_000;
/// How often pages grow older.
const AGE_US: u64 = 50_000;

/// A process that is watched.
pub struct Watched<F: Format + 'static>(Arc<Process<F>>);

impl<F: Format> Deref for Watched<F> {
    type Target = Space<F>;

    fn deref(&self) -> &Space<F> {
        &self.0
    }
}

/// What the monitor said.
#[derive(Default)]
struct Seen {
    snapshots: u64,
    /// Most bytes accessed in an aggregation.
    most: u64,
}

impl Callbacks for Seen {
    fn after_aggregation(&mut self, _: &mut [Target], snapshot: &Snapshot) {
        self.snapshots += 1;
        let regions = snapshot.targets.iter().flat_map(|target| &target.regions);
        let accessed = regions.filter(|region| region.nr_accesses > 0).map(|region| region.range.size());
        self.most = self.most.max(accessed.sum());
    }
}

/// The monitor.
pub struct Watcher<F: Format + 'static> {
    monitor: Monitor<Spaces<Watched<F>>, Classic>,
    processes: Vec<(TargetId, Watched<F>)>,
    seen: Seen,
    due_us: u64,
    age_us: u64,
}

impl<F: Format + 'static> Watcher<F> {
    /// Without processes; `None` if its attributes are refused, which they are not.
    pub fn new(seed: u64) -> Option<Self> {
        let attrs = Attrs { aggr: AGGREGATION, ..Attrs::default() };
        let monitor = Monitor::new(attrs, Spaces::new(), Classic::new(), seed).ok()?;
        Some(Self { monitor, processes: Vec::new(), seen: Seen::default(), due_us: 0, age_us: 0 })
    }

    /// What is due at this time.
    pub fn run(&mut self, world: &World<F>, now_us: u64) {
        if now_us >= self.age_us {
            world.system.age();
            self.age_us = now_us + AGE_US;
        }
        if now_us < self.due_us {
            return;
        }
        self.come_and_go(world);
        let intervals = self.monitor.tick(now_us * 1000, Allowance::UNLIMITED, &mut self.seen);
        self.due_us = now_us + intervals * SAMPLE_US;
    }

    fn come_and_go(&mut self, world: &World<F>) {
        for process in world.take_new().into_iter().filter_map(|process| process.upgrade()) {
            let (id, watched) = (TargetId(process.id), Watched(process));
            self.monitor.ops().add(id, Watched(Arc::clone(&watched.0)));
            if self.monitor.add_target(id).is_ok() {
                self.processes.push((id, watched));
            }
        }
        // Nobody but the monitor has it any more: once here, once in the operations.
        let over = |(_, watched): &(TargetId, Watched<F>)| Arc::strong_count(&watched.0) <= 2;
        while let Some(at) = self.processes.iter().position(over) {
            let (id, watched) = self.processes.swap_remove(at);
            self.monitor.remove_target(id);
            self.monitor.ops().remove(id);
            // The process ends here.
            drop(watched);
        }
    }

    /// Snapshots that it made, and the most bytes that it saw accessed.
    pub fn finish(self) -> (u64, u64) {
        (self.seen.snapshots, self.seen.most)
    }
}

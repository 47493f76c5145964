//! The monitor on the model machine: one of both samplers, its schemes, and its CPU time.

use super::machine::Space;
use super::prices::CHECK;
use isotherm_damon::schemes::Schemes;
use isotherm_damon::{
    Allowance, Attrs, Callbacks, Classic, Monitor, MonitorError, Sampler, Snapshot, Tally, Target, TargetId,
    Watch,
};
use isotherm_mm::damon::Spaces;
use isotherm_simulated::Purse;
use serde::Serialize;
use std::sync::Arc;

/// How memory is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Sampling {
    /// DAMON's own: a page a region and sampling interval, of at most 1000 regions.
    Classic,
    /// Whole blocks, at 1 % of a CPU by what looks and clears cost a program on Linux.
    Blocks,
}

impl Sampling {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Classic, Self::Blocks];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Classic => "classic",
            Self::Blocks => "blocks",
        }
    }
}

type Watched<'m> = Spaces<Arc<Space<'m>>>;

/// Keeps the snapshots after the schemes acted.
#[derive(Default)]
struct Keep(Vec<Snapshot>);

impl Callbacks for Keep {
    fn after_aggregation(&mut self, _: &mut [Target], snapshot: &Snapshot) {
        self.0.push(snapshot.clone());
    }
}

/// A monitor of either sampler.
trait Ticks<'m> {
    fn tick(&mut self, now_ns: u64, allowance: Allowance, callbacks: &mut Driven<'_, 'm>) -> u64;
    fn concludes_at(&self, now_ns: u64) -> bool;
    fn tally(&self) -> Tally;
    fn add(&mut self, id: TargetId, space: Arc<Space<'m>>) -> Result<(), MonitorError>;
    fn remove(&mut self, id: TargetId);
}

/// What acts while the monitor runs, and keeps what it says.
struct Driven<'a, 'm> {
    schemes: &'a mut Schemes,
    actions: &'a mut Watched<'m>,
    keep: &'a mut Keep,
}

impl<'m, S: Sampler<Watched<'m>>> Ticks<'m> for Monitor<Watched<'m>, S> {
    fn tick(&mut self, now_ns: u64, allowance: Allowance, callbacks: &mut Driven<'_, 'm>) -> u64 {
        let Driven { schemes, actions, keep } = callbacks;
        let mut metrics = ();
        Self::tick(self, now_ns, allowance, &mut schemes.driver(&mut **actions, &mut metrics, &mut **keep))
    }

    fn concludes_at(&self, now_ns: u64) -> bool {
        Self::concludes_at(self, now_ns)
    }

    fn tally(&self) -> Tally {
        *Self::tally(self)
    }

    fn add(&mut self, id: TargetId, space: Arc<Space<'m>>) -> Result<(), MonitorError> {
        self.ops().add(id, space);
        self.add_target(id)
    }

    fn remove(&mut self, id: TargetId) {
        self.remove_target(id);
        self.ops().remove(id);
    }
}

/// A monitor with its schemes.
pub struct Watcher<'m> {
    monitor: Box<dyn Ticks<'m> + 'm>,
    sampling: Sampling,
    schemes: Schemes,
    actions: Watched<'m>,
    purse: Purse,
    keep: Keep,
    /// Beginning of its time, ns.
    start: u64,
    /// When it is due, in sampling intervals since then.
    due: u64,
    cpu_ns: f64,
}

const SAMPLE_NS: u64 = 5_000_000;

impl<'m> Watcher<'m> {
    /// A monitor with DAMON's default attributes, from this time on.
    pub fn new(sampling: Sampling, schemes: Schemes, seed: u64, start: u64) -> Result<Self, MonitorError> {
        let (attrs, none) = (Attrs::default(), Spaces::new);
        let monitor: Box<dyn Ticks<'m> + 'm> = match sampling {
            Sampling::Classic => Box::new(Monitor::new(attrs, none(), Classic::new(), seed)?),
            Sampling::Blocks => Box::new(Monitor::new(attrs, none(), Watch::new(), seed)?),
        };
        let (actions, keep, purse) = (none(), Keep::default(), Purse::full(1));
        Ok(Self { monitor, sampling, schemes, actions, purse, keep, start, due: 0, cpu_ns: 0.0 })
    }

    /// Watches one more.
    pub fn add(&mut self, id: TargetId, space: &Arc<Space<'m>>) -> Result<(), MonitorError> {
        self.actions.add(id, Arc::clone(space));
        self.monitor.add(id, Arc::clone(space))
    }

    /// Watches one less.
    pub fn remove(&mut self, id: TargetId) {
        self.actions.remove(id);
        self.monitor.remove(id);
    }

    /// When it runs next, ns.
    pub fn due_ns(&self) -> u64 {
        self.start + self.due * SAMPLE_NS
    }

    /// Runs once, at the time it is due, or puts that off as there is nothing to spend.
    pub fn run(&mut self) {
        let concludes = self.monitor.concludes_at(self.due_ns());
        if self.sampling == Sampling::Blocks {
            let wait = self.purse.wait(concludes);
            if wait > 0 {
                self.due += wait;
                return;
            }
        }
        let allowance = match self.sampling {
            Sampling::Classic => Allowance::UNLIMITED,
            Sampling::Blocks => self.purse.allowance(concludes),
        };
        let (at, before) = (self.due_ns(), self.monitor.tally());
        let mut driven =
            Driven { schemes: &mut self.schemes, actions: &mut self.actions, keep: &mut self.keep };
        let intervals = self.monitor.tick(at, allowance, &mut driven);
        let after = self.monitor.tally();
        match self.sampling {
            Sampling::Classic => {
                let done = after.checks - before.checks + after.prepares - before.prepares;
                self.cpu_ns += (done * CHECK) as f64;
                self.due += intervals;
            }
            Sampling::Blocks => {
                self.due +=
                    self.purse.pay((&before, &after), after.calls - before.calls, intervals, concludes);
                self.cpu_ns = self.purse.spent_ns;
            }
        }
    }

    /// What it did, what it cost, and what it said.
    pub fn finish(self) -> (Tally, f64, Vec<Snapshot>) {
        (self.monitor.tally(), self.cpu_ns, self.keep.0)
    }
}

//! Plans: a pattern with its templates expanded, every name resolved, every size and time a number.

mod planner;

use crate::order::Order;
use crate::pattern::{Gaps, Touch};
use crate::quantity::Rate;
use crate::truth::Page;

/// Bytes of a cache line, whatever the machine's: what [`Touch::Line`] steps by.
pub(crate) const LINE: u64 = 64;

/// What the command line says over the pattern.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Overrides {
    /// Page size of all areas.
    pub page: Option<Page>,
    /// Seed of all random draws.
    pub seed: Option<u64>,
    /// How often the phases are gone through.
    pub cycles: Option<u32>,
    /// Factor on the length of phases, > 0; default 1.
    pub time_scale: Option<f64>,
}

/// Sizes of pages on this machine, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageSizes {
    /// Order-0 page.
    pub base: u64,
    /// Transparent huge page (PMD size).
    pub huge: u64,
}

impl PageSizes {
    /// Asks the kernel. Where it knows no transparent huge pages, 2 MiB is assumed: the areas are aligned all the
    /// same, and the truth says what backs them.
    pub fn of_this_machine() -> Self {
        let huge = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")
            .ok()
            .and_then(|s| s.trim().parse().ok())
            .filter(|n: &u64| n.is_power_of_two())
            .unwrap_or(2 << 20);
        Self { base: rustix::param::page_size() as u64, huge }
    }
}

/// A mapping to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AreaPlan {
    /// Its name.
    pub name: String,
    /// Bytes before the first phase; a multiple of the unit.
    pub size: u64,
    /// Bytes when it is largest.
    pub max_size: u64,
    /// Index of the process that maps it; 0: the first, before it forks the others.
    pub process: usize,
    /// MAP_SHARED instead of MAP_PRIVATE.
    pub shared: bool,
    /// Whether all of it is written to before the first phase.
    pub populate: bool,
}

/// A stream of accesses to part of an area.
#[derive(Clone, Debug, PartialEq)]
pub struct Stream {
    /// Index of the area.
    pub area: usize,
    /// First byte, counted from the area's start; a multiple of the unit.
    pub offset: u64,
    /// Bytes; a multiple of the unit, within the area's size in the phase.
    pub size: u64,
    /// Index of the process that does it; 0: the first.
    pub process: usize,
    /// Which page comes when.
    pub order: Order,
    /// How often each page; above 0.
    pub rate: Rate,
    /// Whether touches are spread evenly over the time instead of coming in passes as fast as they go.
    pub steady: bool,
    /// When random accesses come.
    pub gaps: Gaps,
    /// Writes instead of reads.
    pub write: bool,
    /// What one touch covers.
    pub touch: Touch,
    /// Index of the thread.
    pub thread: usize,
    /// Touches in a timed piece of work; 0: none is timed.
    pub work_touches: u64,
    /// Pieces of work after which the stream ends; `None`: it ends with the phase.
    pub units: Option<u32>,
    /// Passes after which it ends; `None`: it ends with the phase.
    pub passes: Option<u32>,
    /// Whether its course is told, however fast it is.
    pub course: bool,
}

impl Stream {
    /// Whether the phase waits for its end.
    pub fn ends(&self) -> bool {
        self.units.is_some() || self.passes.is_some()
    }
}

/// A thread to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadPlan {
    /// Index of its process.
    pub process: usize,
}

/// A phase.
#[derive(Clone, Debug, PartialEq)]
pub struct PhasePlan {
    /// Its name.
    pub name: String,
    /// Length in ns; `None`: until all its work is done.
    pub duration: Option<u64>,
    /// Areas that change their size before it, with the new size.
    pub resize: Vec<(usize, u64)>,
    /// Areas whose memory is given back before it.
    pub discard: Vec<usize>,
    /// Processes that are forked for it and end with it.
    pub forks: Vec<usize>,
    /// What goes on in it.
    pub streams: Vec<Stream>,
}

/// All that is needed to run a workload.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Name of the pattern.
    pub pattern: String,
    /// Pages of all areas.
    pub page: Page,
    /// Size of such a page, bytes.
    pub unit: u64,
    /// Size of an order-0 page, bytes.
    pub base_page: u64,
    /// Seed of all random draws.
    pub seed: u64,
    /// Factor that was applied to the length of phases.
    pub time_scale: f64,
    /// Rate from which a range is called hot, Hz.
    pub hot_hz: f64,
    /// Parameters, for the truth.
    pub params: toml::Table,
    /// Names of the processes; the first is the one that forks the others.
    pub processes: Vec<String>,
    /// Those that live from before the first phase to the end.
    pub lasting: Vec<usize>,
    /// Mappings.
    pub areas: Vec<AreaPlan>,
    /// The threads that do the accesses.
    pub threads: Vec<ThreadPlan>,
    /// Phases in order.
    pub phases: Vec<PhasePlan>,
}

#[cfg(test)]
mod tests;

//! What the cores of the model do, after the code of `isotherm-mm`.

use super::events::{Mode, Prices, Step, World};
use crate::faults::{Costs, Way};
use serde::Serialize;

/// Who does what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scenario {
    /// Threads fault, each in a VMA of its own.
    Own,
    /// The same beside another that maps, protects and unmaps.
    Mapper,
    /// All threads fault in one VMA.
    OneVma,
}

/// The lock of the address space, and that of the zone of frames.
const MMAP_LOCK: usize = 0;
const ZONE: usize = 1;

/// Shards of the count of pages, and slots of biased locks: as in `isotherm-mm`. Cores beyond share them, by their lines here.
const SHARDS: usize = isotherm_mm::SHARDS;
const SLOTS: usize = isotherm_mm::SLOTS;

/// Read-modify-writes of a fault: the VMA's lock, or `mmap_lock`, twice, and the count of pages.
const WRITES: f64 = 3.0;

impl Scenario {
    /// All.
    pub const ALL: [Self; 3] = [Self::Own, Self::Mapper, Self::OneVma];

    /// In a few words.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Own => "own VMAs",
            Self::Mapper => "own VMAs, beside a mapper",
            Self::OneVma => "one VMA",
        }
    }

    /// How many faults there are in a time, ns, on so many cores; a mapper has one more.
    pub(super) fn run(self, way: Way, cores: usize, costs: &Costs, time: f64, seed: u64) -> u64 {
        let Costs { local, transfer, spin, wake, .. } = *costs;
        let prices = Prices { local, transfer, spin, wake };
        // Lines: shards of the count of pages, then what faults in the VMA write to: one of each core, or a common one.
        let mut programs: Vec<Vec<Step>> = (0..cores).map(|core| self.fault(way, core, costs)).collect();
        let mut which: Vec<usize> = (0..cores).collect();
        if self == Self::Mapper {
            which.push(programs.len());
            programs.push(mapper(costs));
        }
        let lines = SHARDS + cores.max(SLOTS);
        let done = World::new(prices, &programs, &which, (lines, 2), seed).run(time);
        done.iter().take(cores).sum()
    }

    fn fault(self, way: Way, core: usize, costs: &Costs) -> Vec<Step> {
        let batch = crate::faults::BATCH;
        let own = costs.fault - WRITES * costs.local - (costs.refill + costs.local) / f64::from(batch);
        let work = Step::Work(own.max(0.0));
        let count = Step::Write(core % SHARDS);
        let line = match (self, way) {
            (Self::OneVma, Way::Biased) => SHARDS + core % SLOTS,
            (Self::OneVma, _) => SHARDS,
            _ => SHARDS + core,
        };
        let mut program = match way {
            Way::MmapLock => {
                vec![Step::Lock(MMAP_LOCK, Mode::Read), work, count, Step::Unlock(MMAP_LOCK, Mode::Read)]
            }
            _ => vec![Step::Write(line), work, count, Step::Write(line)],
        };
        program.extend([
            Step::Seldom { once_in: batch, steps: 3 },
            Step::Lock(ZONE, Mode::Write),
            Step::Work(costs.refill),
            Step::Unlock(ZONE, Mode::Write),
            Step::Done,
        ]);
        program
    }
}

/// Maps, touches, protects and unmaps: its fault is the first in its VMA, and so takes `mmap_lock` in any way.
fn mapper(costs: &Costs) -> Vec<Step> {
    let hold = |time, mode| [Step::Lock(MMAP_LOCK, mode), Step::Work(time), Step::Unlock(MMAP_LOCK, mode)];
    let mut program = Vec::new();
    program.extend(hold(costs.hold, Mode::Write));
    program.extend(hold(costs.fault, Mode::Read));
    program.extend(hold(costs.hold, Mode::Write));
    program.extend(hold(costs.hold, Mode::Write));
    program.extend([Step::Work(costs.between), Step::Done]);
    program
}

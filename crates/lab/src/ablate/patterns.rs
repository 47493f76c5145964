//! What is simulated: the patterns of the workloads, small enough for hundreds of runs.

use super::judge::Simulation;
use isotherm_damon::AddrRange;
use isotherm_simulated::{Kind, MIB, Pattern as Accesses, Phase, areas, worker, zipf};

/// A pattern of accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Ten areas of 10 MiB, one hot at a time.
    Stairs,
    /// Two of 100 MiB in turn, of huge pages.
    Zigzag,
    /// 2 MiB accessed at random in a GiB.
    Hotspot,
    /// Neighbours of 200, 50, 20, 10, 1 and 0 Hz, each gone through in order; then the other way round.
    Rates,
    /// The same, each page at random.
    RandomRates,
    /// The same, of huge pages, each area within a moment.
    HugeRates,
    /// 32 areas of 4 MiB, the left or the right half of them hot.
    Threads,
    /// Skewed random accesses that begin after 3 s of idleness.
    Zipf,
    /// A loop over 256 MiB, twice a second, that begins after 3 s.
    Sweep,
    /// Memory that is written once, 100 MiB a second.
    Front,
    /// 64 processes of 10 MiB, 4 MiB hot in each.
    Workers,
    /// 200 such, of which 10 run.
    Swarm,
    /// One that runs, sleeps, and runs again.
    Nap,
}

impl Pattern {
    /// All.
    pub const ALL: [Self; 13] = [
        Self::Stairs,
        Self::Zigzag,
        Self::Hotspot,
        Self::Rates,
        Self::RandomRates,
        Self::HugeRates,
        Self::Threads,
        Self::Zipf,
        Self::Sweep,
        Self::Front,
        Self::Workers,
        Self::Swarm,
        Self::Nap,
    ];

    /// What people call it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Stairs => "stairs",
            Self::Zigzag => "zigzag",
            Self::Hotspot => "hotspot",
            Self::Rates => "rates",
            Self::RandomRates => "random-rates",
            Self::HugeRates => "huge-rates",
            Self::Threads => "threads",
            Self::Zipf => "zipf",
            Self::Sweep => "sweep",
            Self::Front => "front",
            Self::Workers => "workers",
            Self::Swarm => "swarm",
            Self::Nap => "nap",
        }
    }

    pub(super) fn simulation(self) -> Simulation {
        match self {
            Self::Stairs => {
                let step = |hot: u64| {
                    let hz = |i: u64| if i == hot { 250.0 } else { 0.0 };
                    areas(&(0..10).map(|i| (2, 10_240, hz(i))).collect::<Vec<_>>())
                };
                Simulation::of((0..10).step_by(2).map(|hot| Phase::new(step(hot), 40)).collect())
            }
            Self::Zigzag => {
                let half = |left: f64, right: f64| Accesses {
                    unit: 2 * MIB,
                    ..areas(&[(2, 102_400, left), (2, 102_400, right)])
                };
                Simulation::of(vec![
                    Phase::new(half(250.0, 0.0), 50),
                    Phase::new(half(0.0, 250.0), 50),
                    Phase::new(half(250.0, 0.0), 50),
                ])
            }
            Self::Hotspot => {
                let list = [(2, 604 * 1024, 0.0), (0, 2048, 1000.0), (0, 418 * 1024, 0.0)];
                Simulation::of(vec![Phase::new(Accesses { kind: Kind::Random, ..areas(&list) }, 150)])
            }
            Self::Rates => rates(|accesses| Accesses { kind: Kind::InOrder, ..accesses }),
            Self::RandomRates => rates(|accesses| Accesses { kind: Kind::Random, ..accesses }),
            Self::HugeRates => rates(|accesses| Accesses { unit: 2 * MIB, ..accesses }),
            Self::Threads => {
                let phase = |left: f64, right: f64| {
                    let hz = |i| if i < 16 { left } else { right };
                    Phase::new(areas(&(0..32).map(|i| (2, 4096, hz(i))).collect::<Vec<_>>()), 40)
                };
                Simulation::of(vec![
                    phase(250.0, 0.0),
                    phase(0.0, 250.0),
                    phase(250.0, 250.0),
                    phase(0.0, 0.0),
                ])
            }
            Self::Zipf => {
                let list = [zipf(96, 1024, false), zipf(48, 2048, true), vec![(0, 64 * 1024, 0.0)]].concat();
                later(Accesses { kind: Kind::Random, ..areas(&list) })
            }
            Self::Sweep => {
                let list = [(0, 256 * 1024, 2.0), (0, 64 * 1024, 0.0)];
                later(Accesses { kind: Kind::InOrder, ..areas(&list) })
            }
            Self::Front => {
                let start = 0x7f00_1000_0000;
                let front = Some((AddrRange::new(start, start + 1024 * MIB), MIB / 2));
                let idle = areas(&[(0, 64 * 1024, 0.0)]);
                Simulation::of(vec![Phase::new(Accesses { front, ..idle }, 90)])
            }
            Self::Workers => Simulation { targets: 64, ..Simulation::of(vec![Phase::new(worker(), 80)]) },
            Self::Swarm => {
                Simulation { targets: 200, one_in: 20, ..Simulation::of(vec![Phase::new(worker(), 80)]) }
            }
            Self::Nap => {
                let runs = Phase::new(worker(), 40);
                let sleeps = Phase { asleep: true, ..runs.clone() };
                Simulation { one_in: 1, ..Simulation::of(vec![runs.clone(), sleeps, runs]) }
            }
        }
    }
}

/// Neighbours of six rates, as `change` has them.
fn rates(change: impl Fn(Accesses) -> Accesses) -> Simulation {
    let hz = [200.0, 50.0, 20.0, 10.0, 1.0, 0.0];
    let phase = |hz: [f64; 6]| Phase::new(change(areas(&hz.map(|hz| (2, 20_480, hz)))), 100);
    let mut rising = hz;
    rising.reverse();
    Simulation::of(vec![phase(hz), phase(rising)])
}

/// What begins after 3 s of idleness.
fn later(accesses: Accesses) -> Simulation {
    let idle = Accesses { hot: Vec::new(), ..accesses.clone() };
    Simulation { skipped: 1, ..Simulation::of(vec![Phase::new(idle, 30), Phase::new(accesses, 120)]) }
}

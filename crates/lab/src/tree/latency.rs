//! What one operation takes.

use super::rivals::{Map, Maps, Rival, Visit};
use super::space::{Chain, LARGE, Space};
use super::{Error, Setup};
use crate::machine::pin;
use crate::{Estimate, Watch};
use serde::Serialize;
use std::hint::black_box;
use std::time::Duration;

/// What is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// The value of an index in a range at random. The CPU may begin the next look-up before the last one has ended.
    Get,
    /// The same, but where the index lies depends on the value found before, so that it cannot.
    GetInTurn,
    /// A range stored into the middle of a gap at random.
    Store,
    /// It is taken out again.
    Erase,
    /// The lowest gap of a size, in the lower half.
    LowestGap,
    /// The highest gap of a size, in the upper half.
    HighestGap,
}

impl Operation {
    /// All.
    pub const ALL: [Self; 6] =
        [Self::Get, Self::GetInTurn, Self::Store, Self::Erase, Self::LowestGap, Self::HighestGap];

    /// As in the table.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::GetInTurn => "get, in turn",
            Self::Store => "store",
            Self::Erase => "erase",
            Self::LowestGap => "lowest gap",
            Self::HighestGap => "highest gap",
        }
    }
}

/// The time of one map.
#[derive(Clone, Debug, Serialize)]
pub struct Time {
    /// Which.
    pub rival: Rival,
    /// ns of an operation, a round each.
    pub ns: Estimate,
    /// This one's time divided by maple's in the same round; `None` of maple itself.
    pub slower_by: Option<Estimate>,
}

/// One operation of all maps.
#[derive(Clone, Debug, Serialize)]
pub struct Latency {
    /// How many ranges there are.
    pub ranges: usize,
    /// Which operation.
    pub operation: Operation,
    /// The time of each map.
    pub times: Vec<Time>,
}

impl Latency {
    /// The time of one of them.
    #[must_use]
    pub fn of(&self, rival: Rival) -> Option<&Time> {
        self.times.iter().find(|time| time.rival == rival)
    }

    /// Measures all operations of all maps with so many ranges.
    pub(super) fn measure(
        space: &Space,
        maps: &Maps,
        setup: &Setup,
        watch: &mut Watch<'_>,
    ) -> Result<Vec<Self>, Error> {
        let ranges = space.ranges.len();
        let mut times = Operation::ALL.map(|_| Rival::ALL.map(|_| Vec::new()));
        for round in 1..=setup.rounds {
            (watch.progress)(&format!("{ranges} ranges, operations, round {round} of {} ...", setup.rounds));
            for (at, rival) in Rival::ALL.into_iter().enumerate() {
                watch.go_on()?;
                let mut run = Run { space, slice: setup.slice, round, ns: [0.0; Operation::ALL.len()] };
                maps.visit(rival, &mut run);
                for (times, ns) in times.iter_mut().zip(run.ns) {
                    times.get_mut(at).into_iter().for_each(|times: &mut Vec<f64>| times.push(ns));
                }
            }
        }
        let judged = Operation::ALL.into_iter().zip(&times).map(|(operation, times)| {
            let [maple, ..] = times;
            let time = |(rival, times): (Rival, &Vec<f64>)| {
                let ratios: Vec<f64> = times.iter().zip(maple).map(|(time, maple)| time / maple).collect();
                let slower_by = if rival == Rival::Maple { None } else { Estimate::of(&ratios) };
                Some(Time { rival, ns: Estimate::of(times)?, slower_by })
            };
            Self { ranges, operation, times: Rival::ALL.into_iter().zip(times).filter_map(time).collect() }
        });
        Ok(judged.collect())
    }
}

struct Run<'s> {
    space: &'s Space,
    slice: Duration,
    round: u32,
    ns: [f64; Operation::ALL.len()],
}

impl Visit for Run<'_> {
    fn visit<M: Map>(&mut self, _: Rival, map: &M) {
        // On a thread of its own, which is pinned and a member until it ends.
        let ns = std::thread::scope(|scope| {
            let timing = scope.spawn(|| {
                pin(0);
                let _member = map.join();
                self.times(map)
            });
            timing.join()
        });
        self.ns = ns.unwrap_or([f64::NAN; Operation::ALL.len()]);
    }
}

/// Operations between two looks at the clock, where one takes less than a microsecond.
const SOME: usize = 256;

impl Run<'_> {
    fn times<M: Map>(&self, map: &M) -> [f64; Operation::ALL.len()] {
        let Self { space, .. } = self;
        let mut chain = Chain(0x9e37_79b9_7f4a_7c15 ^ u64::from(self.round) << 32);
        let get = self.slice(|| {
            for _ in 0..SOME {
                black_box(map.get(space.index(&mut chain)));
            }
            map.rest();
            SOME
        });
        let in_turn = self.slice(|| {
            for _ in 0..SOME {
                let found = map.get(space.index(&mut chain));
                chain.mix(found as u64);
            }
            map.rest();
            SOME
        });
        let (mut store, mut erase) = (Spent::default(), Spent::default());
        let mut holes = Vec::with_capacity(SOME);
        while store.time + erase.time < 2 * self.slice {
            // Each gap once: of few ranges fewer at a time.
            let start = chain.below(space.ranges.len());
            let step = space.ranges.len() / SOME.min(space.ranges.len());
            let count = SOME.min(space.ranges.len());
            holes.clear();
            holes.extend((0..count).filter_map(|n| {
                let at = (start + n * step) % space.ranges.len();
                space.ranges.get(at).map(|&range| Space::hole(range))
            }));
            for at in (1..holes.len()).rev() {
                holes.swap(at, chain.below(at + 1));
            }
            store.add(|| {
                let stored = holes.iter().filter(|&&(first, last)| map.store(first, last, 1)).count();
                map.rest();
                stored
            });
            erase.add(|| {
                holes.iter().for_each(|&(first, last)| map.erase(first, last));
                map.rest();
                holes.len()
            });
        }
        let to = space.last();
        let mut gaps = |search: fn(&M, u64, u64) -> Option<u64>| {
            self.slice(|| {
                let size = LARGE + chain.below(space.sizes as usize) as u64;
                chain.mix(search(map, size, to).unwrap_or(0));
                1
            })
        };
        [get, in_turn, store.ns(), erase.ns(), gaps(M::lowest_gap), gaps(M::highest_gap)]
    }

    /// ns of an operation: for a slice, and once at least, after one turn that does not count.
    fn slice(&self, mut some: impl FnMut() -> usize) -> f64 {
        some();
        let mut spent = Spent::default();
        while spent.time < self.slice || spent.count == 0 {
            // The clock costs hundreds of ns, so it is not read for every operation while they are short.
            let turns = if spent.ns() < 20_000.0 { 64 } else { 1 };
            spent.add(|| (0..turns).map(|_| some()).sum());
        }
        spent.ns()
    }
}

/// This thread's CPU time: others that have the CPU meanwhile are not what is measured.
fn clock() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// CPU time that went by, and operations in it.
#[derive(Default)]
struct Spent {
    time: Duration,
    count: usize,
}

impl Spent {
    fn add(&mut self, run: impl FnOnce() -> usize) {
        let start = clock();
        self.count += run();
        self.time += clock() - start;
    }

    /// ns of one; more than anything if there was none.
    fn ns(&self) -> f64 {
        self.time.as_nanos() as f64 / self.count as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn all_operations_of_all_maps_are_timed_and_leave_them_as_they_were() {
        let space = Space::new(100);
        let maps = Maps::build(&space).unwrap();
        let setup = Setup { ranges: vec![100], rounds: 2, slice: Duration::from_micros(100) };
        let mut watch = Watch { stop: Arc::new(|| false), progress: &mut |_| {} };
        let all = Latency::measure(&space, &maps, &setup, &mut watch).unwrap();
        assert_eq!(all.len(), Operation::ALL.len());
        for latency in all {
            assert_eq!(latency.times.len(), Rival::ALL.len());
            assert!(latency.times.iter().all(|time| time.ns.count == 2 && time.ns.min > 0.0), "{latency:?}");
            assert!(latency.of(Rival::Maple).unwrap().slower_by.is_none());
        }
        struct Empty<'s>(&'s Space);
        impl Visit for Empty<'_> {
            fn visit<M: Map>(&mut self, rival: Rival, map: &M) {
                let _member = map.join();
                for &range in &self.0.ranges {
                    assert_eq!(map.get(Space::hole(range).0), 0, "{rival:?}");
                }
            }
        }
        for rival in Rival::ALL {
            maps.visit(rival, &mut Empty(&space));
        }
    }

    #[test]
    fn it_ends_when_asked_to() {
        let space = Space::new(100);
        let maps = Maps::build(&space).unwrap();
        let setup = Setup { ranges: vec![100], rounds: u32::MAX, slice: Duration::from_secs(3600) };
        let mut watch = Watch { stop: Arc::new(|| true), progress: &mut |_| {} };
        assert!(matches!(Latency::measure(&space, &maps, &setup, &mut watch), Err(Error::Interrupted(_))));
    }
}

//! What one operation takes.

use super::rivals::{Map, Maps, Rival, Visit, valued};
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
    /// ns of the same look-up in arrays in order, by halving without a branch: nothing can be stored to them, and they have not
    /// a byte more than is needed. So a reader can tell a slow map from a slow machine. `None` of what is no look-up.
    pub array: Option<Estimate>,
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
        let array = Array::new(space);
        let mut floor = [const { Vec::new() }; 2];
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
            let run = Run { space, slice: setup.slice, round, ns: [0.0; Operation::ALL.len()] };
            let ns = alone(|| run.gets(&mut run.chain(), |index| array.get(index), || {}));
            floor.iter_mut().zip(ns.unwrap_or([f64::NAN; 2])).for_each(|(all, ns)| all.push(ns));
        }
        let judged = Operation::ALL.into_iter().zip(&times).map(|(operation, times)| {
            let [maple, ..] = times;
            let time = |(rival, times): (Rival, &Vec<f64>)| {
                let ratios: Vec<f64> = times.iter().zip(maple).map(|(time, maple)| time / maple).collect();
                let slower_by = if rival == Rival::Maple { None } else { Estimate::of(&ratios) };
                Some(Time { rival, ns: Estimate::of(times)?, slower_by })
            };
            let array = match operation {
                Operation::Get => Estimate::of(&floor[0]),
                Operation::GetInTurn => Estimate::of(&floor[1]),
                _ => None,
            };
            let times = Rival::ALL.into_iter().zip(times).filter_map(time).collect();
            Self { ranges, operation, times, array }
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
        // A member until it ends.
        let ns = alone(|| {
            let _member = map.join();
            self.times(map)
        });
        self.ns = ns.unwrap_or([f64::NAN; Operation::ALL.len()]);
    }
}

/// On a thread of its own, which is pinned.
fn alone<T: Send>(timing: impl FnOnce() -> T + Send) -> std::thread::Result<T> {
    std::thread::scope(|scope| {
        let timing = scope.spawn(|| {
            pin(0);
            timing()
        });
        timing.join()
    })
}

/// First indexes in order, and of each its last index and its value.
struct Array(Vec<u64>, Vec<(u64, usize)>);

impl Array {
    fn new(space: &Space) -> Self {
        Self(
            valued(space).map(|(first, ..)| first).collect(),
            valued(space).map(|(_, last, value)| (last, value)).collect(),
        )
    }

    #[inline]
    fn get(&self, index: u64) -> usize {
        let Self(firsts, others) = self;
        let (mut at, mut count) = (0, firsts.len());
        while count > 1 {
            let half = count / 2;
            let right = firsts.get(at + half).is_some_and(|&first| first <= index);
            // A product is no branch, which would be guessed wrong every second time.
            at += half * usize::from(right);
            count -= half;
        }
        others.get(at).map_or(0, |&(last, value)| if index <= last { value } else { 0 })
    }
}

/// Operations between two looks at the clock, where one takes less than a microsecond.
const SOME: usize = 256;

impl Run<'_> {
    /// The indexes that are looked up, the same for all.
    fn chain(&self) -> Chain {
        Chain(0x9e37_79b9_7f4a_7c15 ^ u64::from(self.round) << 32)
    }

    /// ns of a look-up, and of one that waits for the one before.
    #[inline]
    fn gets(&self, chain: &mut Chain, get: impl Fn(u64) -> usize, rest: impl Fn()) -> [f64; 2] {
        let Self { space, .. } = self;
        let free = self.slice(|| {
            for _ in 0..SOME {
                black_box(get(space.index(chain)));
            }
            rest();
            SOME
        });
        let in_turn = self.slice(|| {
            for _ in 0..SOME {
                let found = get(space.index(chain));
                chain.mix(found as u64);
            }
            rest();
            SOME
        });
        [free, in_turn]
    }

    fn times<M: Map>(&self, map: &M) -> [f64; Operation::ALL.len()] {
        let Self { space, .. } = self;
        let mut chain = self.chain();
        let [get, in_turn] = self.gets(&mut chain, |index| map.get(index), || map.rest());
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
            let is_get = matches!(latency.operation, Operation::Get | Operation::GetInTurn);
            assert_eq!(latency.array.is_some(), is_get, "{latency:?}");
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
        let array = Array::new(&space);
        for (first, last, value) in valued(&space) {
            assert_eq!([first, last, last + 1].map(|index| array.get(index)), [value, value, 0]);
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

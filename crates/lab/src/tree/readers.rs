//! Look-ups a second of several readers, alone and beside a writer.

use super::rivals::{Map, Maps, OfMaple, Rival, Visit};
use super::space::{Chain, Space};
use super::{Error, Setup};
use crate::machine::pin;
use crate::{Estimate, Watch};
use serde::Serialize;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What one map manages.
#[derive(Clone, Debug, Serialize)]
pub struct Throughput {
    /// Which map.
    pub rival: Rival,
    /// Look-ups of all readers together, nobody writing, a second in which they do not wait for a CPU: waiting for a lock
    /// counts, and what else the machine does, or the writer on the same CPU, does not. A round each.
    pub alone: Estimate,
    /// The same beside a writer; `None` where there is no CPU for it.
    pub beside_writer: Option<Estimate>,
    /// What share of those alone in the same round that is.
    pub kept: Option<Estimate>,
    /// Stores and erasures a second of the writer.
    pub writes: Option<Estimate>,
    /// What share is left of those alone beside a writer of another such map: they share the machine and nothing else, so no map
    /// can keep more. Two CPUs that are threads of one core slow each other down. Of maple alone.
    pub writer_elsewhere: Option<Estimate>,
    /// Times as many look-ups, alone, as one reader had in the same round; `None` of one reader.
    pub scaled: Option<Estimate>,
}

/// Readers of all maps.
#[derive(Clone, Debug, Serialize)]
pub struct Readers {
    /// How many ranges there are.
    pub ranges: usize,
    /// How many readers, each on a CPU of its own.
    pub readers: usize,
    /// What each map manages.
    pub throughput: Vec<Throughput>,
}

/// Rates of a map, a round each.
#[derive(Clone, Debug, Default)]
struct Rates {
    alone: Vec<f64>,
    beside: Vec<f64>,
    writes: Vec<f64>,
    elsewhere: Vec<f64>,
}

impl Readers {
    /// What one of them manages.
    #[must_use]
    pub fn of(&self, rival: Rival) -> Option<&Throughput> {
        self.throughput.iter().find(|one| one.rival == rival)
    }

    /// Measures all maps with so many ranges, with one reader and, where there are CPUs for it, two.
    ///
    /// A writer has a CPU of its own, or shares that of the second reader where there are just two. With one CPU there is
    /// none.
    pub(super) fn measure(
        space: &Space,
        maps: &Maps,
        cpus: usize,
        setup: &Setup,
        watch: &mut Watch<'_>,
    ) -> Result<Vec<Self>, Error> {
        let ranges = space.ranges.len();
        let mut rates = [const { [const { Vec::new() }; 2] }; Rival::ALL.len()]
            .map(|two: [Vec<f64>; 2]| two.map(|_| Rates::default()));
        let elsewhere = OfMaple::build(space)?;
        for round in 1..=setup.rounds {
            (watch.progress)(&format!("{ranges} ranges, readers, round {round} of {} ...", setup.rounds));
            for (rival, rates) in Rival::ALL.into_iter().zip(&mut rates) {
                for (readers, rates) in (1..=cpus.min(2)).zip(rates) {
                    let run = |writer, elsewhere| {
                        watch.go_on()?;
                        let (reads, writes) = (0.0, 0.0);
                        let mut run =
                            Run { space, readers, writer, elsewhere, slice: setup.slice, reads, writes };
                        maps.visit(rival, &mut run);
                        Ok::<_, Error>((run.reads, run.writes))
                    };
                    rates.alone.push(run(false, None)?.0);
                    if cpus > 1 {
                        let (reads, writes) = run(true, None)?;
                        rates.beside.push(reads);
                        rates.writes.push(writes);
                        if rival == Rival::Maple {
                            rates.elsewhere.push(run(true, Some(&elsewhere))?.0);
                        }
                    }
                }
            }
        }
        let judged = (1..=cpus.min(2)).map(|readers| {
            let judge = |(rival, rates): (Rival, &[Rates; 2])| judge(rival, rates, readers);
            Self {
                ranges,
                readers,
                throughput: Rival::ALL.into_iter().zip(&rates).filter_map(judge).collect(),
            }
        });
        Ok(judged.collect())
    }
}

/// Rates of one reader and of two as estimates, and ratios of the same round.
fn judge(rival: Rival, rates: &[Rates; 2], readers: usize) -> Option<Throughput> {
    let of = rates.get(readers - 1)?;
    let ratios = |over: &[f64], under: &[f64]| {
        let ratios: Vec<f64> = over.iter().zip(under).map(|(over, under)| over / under).collect();
        Estimate::of(&ratios)
    };
    let [one, ..] = rates;
    Some(Throughput {
        rival,
        alone: Estimate::of(&of.alone)?,
        beside_writer: Estimate::of(&of.beside),
        kept: ratios(&of.beside, &of.alone),
        writes: Estimate::of(&of.writes),
        writer_elsewhere: ratios(&of.elsewhere, &of.alone),
        scaled: if readers > 1 { ratios(&of.alone, &one.alone) } else { None },
    })
}

struct Run<'s> {
    space: &'s Space,
    readers: usize,
    writer: bool,
    /// Where the writer writes, if not to what is read.
    elsewhere: Option<&'s OfMaple>,
    slice: Duration,
    reads: f64,
    writes: f64,
}

/// Operations between two looks at whether to stop.
const SOME: usize = 256;

impl Visit for Run<'_> {
    fn visit<M: Map>(&mut self, _: Rival, map: &M) {
        let threads = self.readers + usize::from(self.writer);
        let (barrier, done) = (Barrier::new(threads + 1), AtomicBool::new(false));
        let (space, readers, writer, slice) = (self.space, self.readers, self.writer, self.slice);
        let (barrier, done) = (&barrier, &done);
        let run = |cpu, work: fn(&M, &Space, &mut Chain) -> usize| {
            let _member = map.join();
            rate(cpu, |chain| work(map, space, chain), barrier, done)
        };
        let run_elsewhere = |cpu, other: &OfMaple| {
            let _member = other.join();
            rate(cpu, |chain| write(other, space, chain), barrier, done)
        };
        let elsewhere = self.elsewhere;
        let (reads, writes) = std::thread::scope(|scope| {
            let reading: Vec<_> = (0..readers).map(|cpu| scope.spawn(move || run(cpu, read))).collect();
            let cpu = readers.min(last_cpu());
            let writing = writer.then(|| {
                scope.spawn(move || match elsewhere {
                    None => run(cpu, write),
                    Some(other) => run_elsewhere(cpu, other),
                })
            });
            barrier.wait();
            std::thread::sleep(slice);
            done.store(true, Ordering::Relaxed);
            let reads = reading.into_iter().map(|thread| thread.join().unwrap_or(f64::NAN)).sum();
            (reads, writing.map_or(0.0, |thread| thread.join().unwrap_or(f64::NAN)))
        });
        (self.reads, self.writes) = (reads, writes);
    }
}

/// How often a second work is done, from when all are ready to when they are to end.
fn rate(cpu: usize, mut work: impl FnMut(&mut Chain) -> usize, barrier: &Barrier, done: &AtomicBool) -> f64 {
    pin(cpu);
    let mut chain = Chain(0x9e37_79b9_7f4a_7c15 ^ (cpu as u64 + 1) << 32);
    // What the thread is the first to use, it uses before the clock runs.
    work(&mut chain);
    barrier.wait();
    // What was waited is counted within the time that it is taken off from, wherever the thread is preempted; and a thread
    // that comes to run only when the slice is over has a rate too.
    let (start, delayed, mut count) = (Instant::now(), run_delay(), 0);
    loop {
        count += work(&mut chain);
        if done.load(Ordering::Relaxed) {
            break;
        }
    }
    let waited = run_delay().saturating_sub(delayed);
    count as f64 / start.elapsed().saturating_sub(waited).as_secs_f64()
}

/// How long this thread was ready to run and had to wait for a CPU, as the system counts it; nothing if it does not
/// (Documentation/scheduler/sched-stats.rst).
fn run_delay() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    Duration::from_nanos(text.split_whitespace().nth(1).and_then(|ns| ns.parse().ok()).unwrap_or(0))
}

/// The last of the CPUs this process may use.
fn last_cpu() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from) - 1
}

/// Look-ups, each depending on the one before.
fn read<M: Map>(map: &M, space: &Space, chain: &mut Chain) -> usize {
    for _ in 0..SOME {
        let found = map.get(space.index(chain));
        chain.mix(found as u64);
    }
    map.rest();
    SOME
}

/// Stores into gaps, and what was stored is erased.
fn write<M: Map>(map: &M, space: &Space, chain: &mut Chain) -> usize {
    let mut writes = 0;
    for _ in 0..SOME / 8 {
        let (first, last) = Space::hole(space.range(chain));
        if map.store(first, last, 1) {
            map.erase(first, last);
            writes += 2;
        }
    }
    map.rest();
    writes
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn ratios_are_of_the_same_round() {
        let (alone, beside) = (vec![10.0, 20.0], vec![5.0, 20.0]);
        let one = Rates { alone, beside, writes: vec![1.0, 1.0], elsewhere: vec![6.0, 20.0] };
        let two = Rates { alone: vec![20.0, 30.0], ..Rates::default() };
        let [first, second] = [1, 2].map(|n| judge(Rival::Maple, &[one.clone(), two.clone()], n).unwrap());
        let ends = |estimate: &Option<Estimate>| estimate.as_ref().map(|one| (one.min, one.max));
        assert_eq!((ends(&first.kept), ends(&first.scaled)), (Some((0.5, 1.0)), None));
        assert_eq!((ends(&first.writer_elsewhere), ends(&second.writer_elsewhere)), (Some((0.6, 1.0)), None));
        assert_eq!((ends(&second.kept), ends(&second.scaled)), (None, Some((1.5, 2.0))));
    }

    #[test]
    fn readers_and_a_writer_of_all_maps_get_on() {
        let space = Space::new(100);
        let maps = Maps::build(&space).unwrap();
        let mut watch = Watch { stop: Arc::new(|| false), progress: &mut |_| {} };
        // The second is over before the threads come to run, as any may be where others run.
        let [setup, over] = [Duration::from_millis(5), Duration::ZERO].map(|slice| Setup {
            ranges: vec![100],
            rounds: 1,
            slice,
        });
        for setup in [&setup, &over] {
            // On a machine with one CPU they share it: it is no figure then, but it ends.
            let all = Readers::measure(&space, &maps, 2, setup, &mut watch).unwrap();
            assert_eq!(all.iter().map(|one| one.readers).collect::<Vec<_>>(), [1, 2]);
            for one in all.iter().flat_map(|readers| &readers.throughput) {
                let beside = one.beside_writer.as_ref().unwrap();
                assert!(one.alone.median > 0.0 && beside.median > 0.0, "{one:?}");
                assert!(one.writes.as_ref().unwrap().median > 0.0, "{one:?}");
                assert_eq!(one.writer_elsewhere.is_some(), one.rival == Rival::Maple, "{one:?}");
            }
        }
        let alone = Readers::measure(&space, &maps, 1, &setup, &mut watch).unwrap();
        assert!(alone.len() == 1 && alone[0].throughput.iter().all(|one| one.kept.is_none()));
    }
}

//! One run: threads that fault, and perhaps one that maps.

use super::machine::{Member, ThreadRcu, set_cpu};
use super::space::{Experiment, PAGE, Space, on_a_machine, quiet, read_write, since, there};
use super::{Error, Way};
use crate::machine::pin;
use isotherm_mm::{Access, LockStats, MapFlags, MapRequest, Prot};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

/// Pages that a thread faults in before it gives them back: 32 MiB.
const OWN: u64 = 8192;
/// Pages that the mapper maps.
const MAPPED: u64 = 16;
/// Rounds of the mapper between two looks at whether grace periods are over.
const BATCH: u64 = 16;
/// After so many looks that found none over the mapper waits for one: a thread that others took the CPU from holds them up, and
/// what the mapper freed, up to three tables a round, would be lacking.
const STALLED: u32 = 32;
/// Between the parts of two threads that have a VMA of their own each.
const APART: u64 = 1 << 30;

/// What runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) threads: usize,
    pub(super) mapper: bool,
    /// All threads fault in one VMA.
    pub(super) one_vma: bool,
    /// Every second thread faults in another space: they share the machine alone.
    pub(super) apart: bool,
    /// The mapper maps in another space: it shares the machine with those who fault, and no lock of a space.
    pub(super) mapper_apart: bool,
    pub(super) way: Way,
    pub(super) slice: Duration,
}

/// What a run came to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outcome {
    /// Faults a second, of all threads, of the time in which they faulted.
    pub(super) faults: f64,
    /// Rounds of the mapper a second.
    pub(super) mapped: f64,
    /// The share of the time in which the mapper was in operations that hold `mmap_lock` for writing.
    pub(super) held: f64,
    /// Faults, also the mapper's.
    pub(super) calls: u64,
    pub(super) stats: LockStats,
    /// Pages that are counted, and that are there.
    pub(super) resident: (u64, u64),
}

impl Run {
    /// One thread, under the series' locks, and no mapper.
    pub(super) const fn alone(slice: Duration) -> Self {
        let way = Way::Sequence;
        Self { threads: 1, mapper: false, one_vma: false, apart: false, mapper_apart: false, way, slice }
    }

    /// Does it for the slice.
    pub(super) fn go(&self) -> Result<Outcome, Error> {
        on_a_machine(self, self.way, OWN * self.threads as u64, 0)
    }

    /// Where a thread's part begins.
    const fn own(&self, worker: usize) -> u64 {
        let apart = if self.one_vma { OWN * PAGE } else { APART };
        APART + apart * worker as u64
    }
}

impl Experiment for Run {
    type Outcome = Outcome;

    fn run<'w>(
        &self,
        spaces: [&Space<'w, '_>; 2],
        rcu: &'w ThreadRcu,
        me: &mut Member<'w>,
    ) -> Result<Outcome, Error> {
        let [space, _] = spaces;
        let of = |worker: usize| spaces[if self.apart { worker % 2 } else { 0 }];
        for worker in 0..self.threads {
            let space = of(worker);
            space.mmap(&read_write(OWN).at(self.own(worker)))?;
            // The first fault takes mmap_lock in some ways; it is not what is measured.
            space.fault(self.own(worker), Access::Write)?;
        }
        let before = space.lock_stats();
        let (stop, barrier) =
            (AtomicBool::new(false), Barrier::new(self.threads + 1 + usize::from(self.mapper)));
        let alone = self.threads == 1 && !self.mapper;
        let all = || {
            std::thread::scope(|scope| {
                let worker = |worker| {
                    let (stop, barrier) = (&stop, &barrier);
                    scope.spawn(move || {
                        pin(worker);
                        set_cpu(worker);
                        let joined = rcu.join();
                        barrier.wait();
                        let _joined = joined.map_err(|_| Error::Memory)?;
                        // Alone it waits for nobody, so what others do with its CPU need not be counted.
                        let clock = if alone { own_time } else { time };
                        fault(of(worker), rcu, self.own(worker), stop, clock)
                    })
                };
                let workers: Vec<_> = (0..self.threads).map(worker).collect();
                let mapper = self.mapper.then(|| {
                    let (stop, barrier) = (&stop, &barrier);
                    let space = spaces[usize::from(self.mapper_apart)];
                    let thread = self.threads;
                    scope.spawn(move || {
                        // If there is one more.
                        pin(thread);
                        set_cpu(thread);
                        let joined = rcu.join();
                        barrier.wait();
                        let _joined = joined.map_err(|_| Error::Memory)?;
                        map(space, rcu, stop)
                    })
                });
                barrier.wait();
                let started = Instant::now();
                std::thread::sleep(self.slice);
                stop.store(true, Ordering::Relaxed);
                // Who ended before, for want of memory, did not do what was measured.
                let done: Result<Vec<Done>, Error> = workers.into_iter().map(joined).collect();
                let mapped = mapper.map_or(Ok(Mapped::default()), joined);
                Ok::<_, Error>((started.elapsed(), done?, mapped?))
            })
        };
        let (elapsed, done, Mapped { rounds, held }) = me.offline(all)?;
        let seconds = elapsed.as_secs_f64();
        let stats = since(space.lock_stats(), before);
        Ok(Outcome {
            faults: done.iter().map(|one| one.faults as f64 / one.time.as_secs_f64().max(1e-9)).sum(),
            mapped: rounds as f64 / seconds,
            held: held.as_secs_f64() / seconds,
            calls: done.iter().map(|one| one.faults).sum::<u64>() + rounds,
            stats,
            resident: (
                spaces.iter().map(|space| space.contents().resident()).sum(),
                spaces.iter().map(|space| there(space)).sum(),
            ),
        })
    }
}

/// What came of a thread.
fn joined<T>(thread: ScopedJoinHandle<'_, Result<T, Error>>) -> Result<T, Error> {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// What a mapper did.
#[derive(Clone, Copy, Default)]
struct Mapped {
    rounds: u64,
    /// In operations that hold `mmap_lock` for writing, and waiting for it.
    held: Duration,
}

/// What a thread did.
#[derive(Clone, Copy, Default)]
struct Done {
    faults: u64,
    /// In which it faulted.
    time: Duration,
}

fn time() -> Duration {
    clock(rustix::time::ClockId::Monotonic)
}

/// For which this thread had a CPU.
fn own_time() -> Duration {
    clock(rustix::time::ClockId::ThreadCPUTime)
}

fn clock(clock: rustix::time::ClockId) -> Duration {
    let now = rustix::time::clock_gettime(clock);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// Faults all pages of a part in, one after the other, gives them back, and again.
fn fault(
    space: &Space<'_, '_>,
    rcu: &ThreadRcu,
    start: u64,
    stop: &AtomicBool,
    clock: fn() -> Duration,
) -> Result<Done, Error> {
    let mut done = Done::default();
    loop {
        let began = clock();
        let ended = touch(space, rcu, start, stop, &mut done.faults)?;
        done.time += clock().saturating_sub(began);
        if ended {
            return Ok(done);
        }
        space.discard(start, OWN * PAGE)?;
    }
}

/// Faults all pages in, once. Whether it is to end.
fn touch(
    space: &Space<'_, '_>,
    rcu: &ThreadRcu,
    start: u64,
    stop: &AtomicBool,
    faults: &mut u64,
) -> Result<bool, Error> {
    for page in 0..OWN {
        *faults += 1;
        space.fault(start + page * PAGE, Access::Write)?;
        quiet(rcu, *faults);
        // After one, so that a thread that comes to run only when the slice is over has a rate too.
        if stop.load(Ordering::Relaxed) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Maps, touches a page, protects a half and unmaps, again and again. How often it touched one.
fn map(space: &Space<'_, '_>, rcu: &ThreadRcu, stop: &AtomicBool) -> Result<Mapped, Error> {
    let request = MapRequest { flags: MapFlags::NORESERVE, ..read_write(MAPPED) };
    let (mut done, mut stalled) = (Mapped::default(), 0);
    loop {
        let start = Instant::now();
        let at = space.mmap(&request)?;
        done.held += start.elapsed();
        done.rounds += 1;
        space.fault(at, Access::Write)?;
        let start = Instant::now();
        space.mprotect(at, MAPPED / 2 * PAGE, Prot::READ)?;
        space.munmap(at, MAPPED * PAGE)?;
        done.held += start.elapsed();
        rcu.quiescent();
        // What it frees is freed in batches, as in kernels: or it would do little else.
        if done.rounds.is_multiple_of(BATCH) {
            stalled = if rcu.advance(usize::MAX) == 0 { stalled + 1 } else { 0 };
        }
        while stalled >= STALLED && !stop.load(Ordering::Relaxed) {
            std::thread::yield_now();
            rcu.quiescent();
            if rcu.advance(usize::MAX) > 0 {
                stalled = 0;
            }
        }
        if stop.load(Ordering::Relaxed) {
            return Ok(done);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapper_has_back_what_it_gave_back() {
        // On most machines it maps more in this time than the machine has frames for, with three tables in each round.
        let slice = Duration::from_millis(150);
        let outcome = Run { threads: 0, mapper: true, ..Run::alone(slice) }.go().expect("there is memory");
        assert!(outcome.mapped > 0.0 && outcome.held > 0.0, "{outcome:?}");
        assert_eq!(outcome.resident.0, outcome.resident.1);
    }
}

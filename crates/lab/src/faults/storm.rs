//! A start storm: many threads that each map what a thread needs, touch it, and exit.

use super::machine::{Member, ThreadRcu, play_own_cpu};
use super::space::{Experiment, PAGE, Space, on_a_machine, quiet, read_write, since, there};
use super::{Error, Lookups, Setup, Way};
use crate::machine::{begin_on, cpus};
use crate::{Estimate, Watch};
use isotherm_mm::{Access, LockStats, MapFlags, MapRequest, Prot};
use serde::Serialize;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Barrier, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// Threads, as in the series.
pub const THREADS: usize = 100;

/// Pages of a stack, below which lies a guard page; of those the uppermost are touched.
const STACK: u64 = 2048;
const STACK_TOUCHED: u64 = 16;
/// Pages of thread-local storage, of a signal stack and of a table of the program's. All are touched.
const OTHERS: [u64; 3] = [4, 16, 256];

const TOUCHED: u64 = STACK_TOUCHED + OTHERS[0] + OTHERS[1] + OTHERS[2];

/// The storm under one kind of lock.
#[derive(Clone, Debug, Serialize)]
pub struct Stormed {
    /// Which.
    pub way: Way,
    /// From the start of all threads until the last has unmapped what it had, ms.
    pub ms: Estimate,
    /// How much shorter than under `mmap_lock` alone, as a share, of the same round.
    pub shorter: Option<Estimate>,
    /// How faults found their VMA, if not under `mmap_lock` alone.
    pub lookups: Option<Lookups>,
}

/// A storm under each kind of lock.
#[derive(Clone, Debug, Serialize)]
pub struct Storm {
    /// How many threads.
    pub threads: usize,
    /// Pages that each touches.
    pub pages: u64,
    /// Under each.
    pub ways: Vec<Stormed>,
    /// Whether the count of pages was right after each run: none.
    pub resident_exact: bool,
}

#[derive(Clone, Copy, Debug)]
struct Outcome {
    seconds: f64,
    faults: u64,
    stats: LockStats,
    exact: bool,
}

struct Once;

/// Where threads wait until they are let go, all at once. Those that leave a `Barrier` do so one after the other, as each takes its
/// mutex: then few of them run at a time, and wait for no lock of a space.
#[derive(Default)]
struct Gate {
    lock: RwLock<()>,
    came: AtomicUsize,
}

impl Gate {
    /// Closed until what is returned is dropped.
    fn close(&self) -> impl Drop {
        self.lock.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until it is open.
    fn pass(&self) {
        self.came.fetch_add(1, Ordering::Relaxed);
        drop(self.lock.read().unwrap_or_else(PoisonError::into_inner));
    }

    /// Waits until so many have come, and most likely sleep there.
    fn wait_for(&self, threads: usize) {
        while self.came.load(Ordering::Relaxed) < threads {
            std::thread::yield_now();
        }
        std::thread::sleep(ASLEEP);
    }
}

/// For who came last to the gate to fall asleep there. A guess.
const ASLEEP: Duration = Duration::from_millis(1);

impl Storm {
    /// Measures all ways in turn.
    ///
    /// # Errors
    /// [`Error`].
    pub fn measure(setup: &Setup, watch: &mut Watch<'_>) -> Result<Option<Self>, Error> {
        let mut outcomes = Way::ALL.map(|_| Vec::new());
        for round in 0..setup.rounds {
            (watch.progress)(&format!("storm, round {} of {} ...", round + 1, setup.rounds));
            for way in super::in_turn(round, Way::ALL.len()) {
                watch.go_on()?;
                outcomes[way].push(on_a_machine(&Once, Way::ALL[way], TOUCHED * THREADS as u64, 0)?);
            }
        }
        Ok(judge(&outcomes))
    }
}

/// `None` without rounds.
fn judge(outcomes: &[Vec<Outcome>; Way::ALL.len()]) -> Option<Storm> {
    let [off, ..] = outcomes;
    let mut ways = Vec::new();
    for (way, outcomes) in Way::ALL.into_iter().zip(outcomes) {
        let ms: Vec<f64> = outcomes.iter().map(|one| one.seconds * 1e3).collect();
        let shorter: Vec<f64> =
            outcomes.iter().zip(off).map(|(on, off)| 1.0 - on.seconds / off.seconds).collect();
        let mut lookups = Lookups::default();
        outcomes.iter().for_each(|one| lookups.add(one.faults, one.stats));
        let shorter = Estimate::of(&shorter).filter(|_| way != Way::MmapLock);
        let lookups = (way != Way::MmapLock).then_some(lookups);
        ways.push(Stormed { way, ms: Estimate::of(&ms)?, shorter, lookups });
    }
    let resident_exact = outcomes.iter().flatten().all(|one| one.exact);
    Some(Storm { threads: THREADS, pages: TOUCHED, ways, resident_exact })
}

impl Experiment for Once {
    type Outcome = Outcome;

    fn run<'w>(
        &self,
        [space, _]: [&Space<'w, '_>; 2],
        rcu: &'w ThreadRcu,
        me: &mut Member<'w>,
    ) -> Result<Outcome, Error> {
        let gate = Gate::default();
        // What Linux does at the end of a thread of this process is not what is measured, so all wait for the last.
        let over = Barrier::new(THREADS);
        let (failed, faults) = (AtomicBool::new(false), AtomicU64::new(0));
        let last = AtomicU64::new(0);
        let epoch = Instant::now();
        let storm = || {
            std::thread::scope(|scope| {
                let closed = gate.close();
                for thread in 0..THREADS {
                    let (gate, over, failed, faults, last) = (&gate, &over, &failed, &faults, &last);
                    scope.spawn(move || {
                        // As threads that a program starts one after the other: woken by one, they would all be on its CPU for
                        // as long as the whole storm takes.
                        let everywhere = begin_on(thread % cpus());
                        play_own_cpu();
                        let joined = rcu.join();
                        // Who sleeps here is waited for by no grace period of the others'.
                        rcu.quiescent();
                        gate.pass();
                        drop(everywhere);
                        let lived = joined.map_err(|_| Error::Memory).and_then(|_joined| live(space, rcu));
                        last.fetch_max(nanoseconds(epoch), Ordering::Relaxed);
                        match lived {
                            Ok(touched) => _ = faults.fetch_add(touched, Ordering::Relaxed),
                            Err(_) => failed.store(true, Ordering::Relaxed),
                        }
                        over.wait();
                    });
                }
                gate.wait_for(THREADS);
                let start = nanoseconds(epoch);
                drop(closed);
                start
            })
        };
        let start = me.offline(storm);
        if failed.into_inner() {
            return Err(Error::Memory);
        }
        Ok(Outcome {
            seconds: Duration::from_nanos(last.into_inner() - start).as_secs_f64(),
            faults: faults.into_inner(),
            stats: since(space.lock_stats(), LockStats::default()),
            exact: (space.contents().resident(), there(space), space.usage().maps) == (0, 0, 0),
        })
    }
}

fn nanoseconds(epoch: Instant) -> u64 {
    u64::try_from(epoch.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// A thread's life: how many faults it had.
fn live(space: &Space<'_, '_>, rcu: &ThreadRcu) -> Result<u64, Error> {
    // As glibc does: nothing may be accessed, then all but the guard page.
    let stack = MapRequest { prot: Prot::empty(), flags: MapFlags::NORESERVE, ..read_write(STACK + 1) };
    let stack = space.mmap(&MapRequest { flags: stack.flags | MapFlags::STACK, ..stack })?;
    space.mprotect(stack + PAGE, STACK * PAGE, Prot::READ | Prot::WRITE)?;
    let mut areas = [(0, 0); OTHERS.len()];
    for (area, pages) in areas.iter_mut().zip(OTHERS) {
        *area = (space.mmap(&read_write(pages))?, pages);
    }
    let mut faults = 0;
    let mut touch = |at: u64| {
        faults += 1;
        quiet(rcu, faults);
        space.fault(at, Access::Write)
    };
    for page in 0..STACK_TOUCHED {
        touch(stack + (STACK - page) * PAGE)?;
    }
    for (start, pages) in areas {
        for page in 0..pages {
            touch(start + page * PAGE)?;
        }
    }
    for (start, pages) in areas {
        space.munmap(start, pages * PAGE)?;
    }
    space.munmap(stack, (STACK + 1) * PAGE)?;
    Ok(faults)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn nobody_passes_a_gate_before_all_have_come_and_it_is_opened() {
        let (gate, passed) = (Gate::default(), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            let closed = gate.close();
            for _ in 0..4 {
                scope.spawn(|| {
                    gate.pass();
                    passed.fetch_add(1, Ordering::Relaxed);
                });
            }
            gate.wait_for(4);
            assert_eq!(passed.load(Ordering::Relaxed), 0);
            drop(closed);
        });
        assert_eq!(passed.into_inner(), 4);
    }

    #[test]
    fn all_threads_end_and_leave_nothing_behind_and_each_fault_has_one_end() {
        let setup = Setup { rounds: 1, slice: Duration::ZERO };
        let mut watch = Watch { stop: Arc::new(|| false), progress: &mut |_| {} };
        let storm = Storm::measure(&setup, &mut watch).expect("there is memory").expect("a round");
        assert!(storm.resident_exact);
        for one in &storm.ways {
            assert!(one.ms.median > 0.0);
            let looked_up = one.way != Way::MmapLock;
            assert_eq!((one.lookups.is_some(), one.shorter.is_some()), (looked_up, looked_up), "{one:?}");
            if let Some(lookups) = one.lookups {
                assert!(lookups.adds_up() && lookups.faults == TOUCHED * THREADS as u64, "{lookups:?}");
            }
        }
    }
}

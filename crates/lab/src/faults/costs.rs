//! What locks, cache lines and a fault cost on this machine: for a model of more cores than it has.

use super::machine::{Machine, ThreadRcu, books, set_cpu};
use super::run::Run;
use super::{Error, Setup, Way};
use crate::Watch;
use crate::machine::pin;
use crate::statistics::median;
use isotherm_page::{Block, Order, OwnedBlock, Pages};
use isotherm_pagetable::Frames;
use serde::{Deserialize, Serialize};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Frames that a CPU's cache takes from the zone at a time.
pub const BATCH: u32 = 64;

/// ns, each the median of some rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Costs {
    /// A fault under a VMA's lock, by one thread alone.
    pub fault: f64,
    /// The same while the other CPU faults in another space: they share memory and its allocator, and no lock of a space.
    pub apart: f64,
    /// An atomic addition to a cache line that the same CPU wrote last.
    pub local: f64,
    /// The same after the other CPU wrote it.
    pub transfer: f64,
    /// How long an operation of a mapper takes, for nearly all of which it holds `mmap_lock` for writing.
    pub hold: f64,
    /// What a mapper does between its rounds of three operations and a fault: it frees what waited for a grace period.
    pub between: f64,
    /// [`BATCH`] frames taken from the zone, less taking them from the CPU's cache.
    pub refill: f64,
    /// For how long who waits for a lock spins before it sleeps: a hundred looks, as the standard library's lock does.
    pub spin: f64,
    /// From a wake-up until the thread runs.
    pub wake: f64,
}

/// Faults a second that were measured, for the model to be compared with.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// How faults find their VMA.
    pub way: Way,
    /// How many threads fault.
    pub threads: usize,
    /// Whether all fault in one VMA.
    pub one_vma: bool,
    /// Faults a second of all.
    pub faults: f64,
}

impl Costs {
    /// Whether they are such that something can be modelled.
    #[must_use]
    pub fn are_positive(&self) -> bool {
        let others = [
            self.apart,
            self.local,
            self.transfer,
            self.hold,
            self.between,
            self.refill,
            self.spin,
            self.wake,
        ];
        self.fault.is_finite()
            && self.fault > 0.0
            && others.iter().all(|cost| cost.is_finite() && *cost >= 0.0)
    }

    /// Measures all on two CPUs.
    ///
    /// # Errors
    /// [`Error`].
    pub fn measure(setup: &Setup, watch: &mut Watch<'_>) -> Result<(Self, Vec<Measured>), Error> {
        let mut rounds: [Vec<f64>; 9] = Default::default();
        let cells: Vec<(Way, usize, bool)> = [Way::MmapLock, Way::Sequence, Way::Biased]
            .into_iter()
            .flat_map(|way| [(way, 1, false), (way, 2, false), (way, 2, true)])
            .collect();
        let mut rates: Vec<Vec<f64>> = cells.iter().map(|_| Vec::new()).collect();
        for round in 1..=setup.rounds {
            (watch.progress)(&format!("costs, round {round} of {} ...", setup.rounds));
            for (&(way, threads, one_vma), rates) in cells.iter().zip(&mut rates) {
                watch.go_on()?;
                let run = Run { threads, one_vma, way, ..Run::alone(setup.slice) };
                rates.push(run.go()?.faults);
            }
            watch.go_on()?;
            let apart = Run { threads: 2, apart: true, ..Run::alone(setup.slice) }.go()?;
            let apart = 2e9 / apart.faults;
            let mapper = Run { threads: 0, mapper: true, ..Run::alone(setup.slice) }.go()?;
            // Sequence, alone: the fourth cell.
            let fault = rates.get(3).and_then(|all| all.last()).map_or(0.0, |rate| 1e9 / rate);
            let (local, transfer) = lines();
            let hold = mapper.held * 1e9 / mapper.mapped / 3.0;
            let between = (1e9 / mapper.mapped - 3.0 * hold - fault).max(0.0);
            let all = [fault, apart, local, transfer, hold, between, refill()?, spin(), wake()];
            rounds.iter_mut().zip(all).for_each(|(rounds, one)| rounds.push(one));
        }
        let [fault, apart, local, transfer, hold, between, refill, spin, wake] =
            rounds.map(|all| median(&all).unwrap_or_default());
        let measured = cells.iter().zip(&rates).filter_map(|(&(way, threads, one_vma), rates)| {
            Some(Measured { way, threads, one_vma, faults: median(rates)? })
        });
        let costs = Self { fault, apart, local, transfer, hold, between, refill, spin, wake };
        Ok((costs, measured.collect()))
    }
}

/// A hundred looks of who waits.
fn spin() -> f64 {
    const TIMES: u32 = 100;
    let word = AtomicU64::new(0);
    let start = Instant::now();
    for _ in 0..TIMES {
        for _ in 0..100 {
            std::hint::black_box(word.load(Ordering::Relaxed));
            std::hint::spin_loop();
        }
    }
    nanoseconds(start) / f64::from(TIMES)
}

/// Alone on its cache lines.
#[derive(Default)]
#[repr(align(128))]
struct Line(AtomicU64);

/// An addition, and one to a line that another CPU wrote last: by two threads that do other things between, as who faults does,
/// on a common line and on lines of their own.
fn lines() -> (f64, f64) {
    const LOCAL: u64 = 200_000;
    let line = Line::default();
    let start = Instant::now();
    for _ in 0..LOCAL {
        line.0.fetch_add(1, Ordering::AcqRel);
    }
    let local = nanoseconds(start) / LOCAL as f64;
    let (own, common) = (additions(false), additions(true));
    (local, local + (common - own).max(0.0))
}

/// ns of a round of other things and an addition, of two threads at a time.
fn additions(common: bool) -> f64 {
    const ROUNDS: u32 = 50_000;
    let lines = [Line::default(), Line::default()];
    let barrier = Barrier::new(2);
    let play = |cpu: usize| {
        let line = if common { &lines[0] } else { &lines[cpu] };
        pin(cpu);
        barrier.wait();
        let start = Instant::now();
        for round in 0..ROUNDS {
            line.0.fetch_add(1, Ordering::AcqRel);
            // Some 100 ns.
            let mut other = u64::from(round);
            for _ in 0..100 {
                other = std::hint::black_box(other).wrapping_mul(3);
            }
        }
        nanoseconds(start) / f64::from(ROUNDS)
    };
    let times = std::thread::scope(|scope| {
        let threads = [scope.spawn(|| play(0)), scope.spawn(|| play(1))];
        threads.map(|one| one.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    times[0].max(times[1])
}

/// A batch of frames from the zone.
fn refill() -> Result<f64, Error> {
    const FRAMES: u64 = 4096;
    let rcu = ThreadRcu::for_threads();
    let mut books = books(2 * FRAMES);
    let machine = Machine::new(2 * FRAMES, &mut books, &rcu).ok_or(Error::Memory)?;
    set_cpu(0);
    let free = |frame| {
        // SAFETY: it was taken from this machine, and nothing was made of it.
        unsafe { machine.free(OwnedBlock::new(Block::new(frame, Order::BASE))) }
    };
    let start = Instant::now();
    for _ in 0..FRAMES {
        free(machine.alloc_folio(Order::BASE).ok_or(Error::Memory)?);
    }
    // Out of the cache and into it: two of the same kind.
    let cached = nanoseconds(start) / FRAMES as f64 / 2.0;
    let mut frames = Vec::with_capacity(FRAMES as usize);
    let start = Instant::now();
    for _ in 0..FRAMES {
        frames.push(machine.alloc_folio(Order::BASE).ok_or(Error::Memory)?);
    }
    let each = nanoseconds(start) / FRAMES as f64;
    frames.into_iter().for_each(free);
    Ok(((each - cached) * f64::from(BATCH)).max(0.0))
}

/// Until a thread that sleeps runs, once it is woken.
fn wake() -> f64 {
    const TURNS: u32 = 500;
    let turn = AtomicU64::new(0);
    let wait = |own: u64| {
        while turn.load(Ordering::Acquire) % 2 != own {
            std::thread::park();
        }
        turn.fetch_add(1, Ordering::AcqRel);
    };
    let caller = std::thread::current();
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            for _ in 0..TURNS {
                wait(1);
                caller.unpark();
            }
        });
        let start = Instant::now();
        for _ in 0..TURNS {
            wait(0);
            other.thread().unpark();
        }
        let _ = other.join();
        nanoseconds(start) / f64::from(2 * TURNS)
    })
}

fn nanoseconds(since: Instant) -> f64 {
    since.elapsed().as_nanos() as f64
}

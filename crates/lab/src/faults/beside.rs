//! The same system calls and faults here and in Linux: will-it-scale's page_fault1 to 3, mmap1 and brk1.
//!
//! What is compared is not the same work in all: see [`Sequence::includes`].

use super::linux::{self, Memory};
use super::machine::{Member, ThreadRcu, set_cpu};
use super::space::{Experiment, PAGE, Space, on_a_machine, quiet, read_write, shared};
use super::{Error, Setup, Way};
use crate::machine::pin;
use crate::{Estimate, Watch};
use isotherm_mm::{Access, MapFlags};
use serde::Serialize;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Pages that a thread maps, touches and unmaps in one round: 16 MiB. will-it-scale has 128 MiB, more than caches hold.
pub(super) const PAGES: u64 = 4096;
/// Pages of mmap1, of which none is touched: 128 MiB.
pub(super) const UNTOUCHED: u64 = 32768;

/// A program of will-it-scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Sequence {
    /// Private memory is mapped, each page written to, and unmapped.
    PageFault1,
    /// A file is mapped privately, each page written to, so copied, and unmapped.
    PageFault2,
    /// A file is mapped shared, each page written to, and unmapped.
    PageFault3,
    /// Private memory is mapped and unmapped.
    Mmap1,
    /// The heap grows by a page, and shrinks.
    Brk1,
}

impl Sequence {
    /// All.
    pub const ALL: [Self; 5] =
        [Self::PageFault1, Self::PageFault2, Self::PageFault3, Self::Mmap1, Self::Brk1];

    /// As will-it-scale has it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::PageFault1 => "page_fault1",
            Self::PageFault2 => "page_fault2",
            Self::PageFault3 => "page_fault3",
            Self::Mmap1 => "mmap1",
            Self::Brk1 => "brk1",
        }
    }

    /// What is counted.
    #[must_use]
    pub const fn unit(self) -> &'static str {
        match self {
            Self::PageFault1 | Self::PageFault2 | Self::PageFault3 => "page",
            Self::Mmap1 | Self::Brk1 => "pair of calls",
        }
    }

    /// What only one side does: Linux, then this memory manager.
    #[must_use]
    pub const fn includes(self) -> [&'static str; 2] {
        match self {
            Self::PageFault1 | Self::PageFault2 | Self::PageFault3 => {
                ["trap, access, TLB, memory cgroup, LRU", "call"]
            }
            Self::Mmap1 | Self::Brk1 => ["system calls, security hooks, accounting", "calls"],
        }
    }

    /// Whether several threads of a process do it.
    const fn is_for_threads(self) -> bool {
        // There is one heap.
        !matches!(self, Self::Brk1)
    }
}

/// A sequence by some threads of one process, here and in Linux.
#[derive(Clone, Debug, Serialize)]
pub struct Beside {
    /// Which.
    pub sequence: Sequence,
    /// How many threads.
    pub threads: usize,
    /// Pages or pairs of calls a second here, of all threads, under per-VMA locks.
    pub here: Estimate,
    /// The same in Linux.
    pub linux: Estimate,
    /// The one divided by the other, of the same round.
    pub ratio: Estimate,
}

impl Beside {
    /// Measures all sequences, by one thread and by `threads`.
    ///
    /// # Errors
    /// [`Error`].
    pub fn measure(threads: usize, setup: &Setup, watch: &mut Watch<'_>) -> Result<Vec<Self>, Error> {
        let counts: &[usize] = if threads > 1 { &[1, threads] } else { &[1] };
        let cells: Vec<(Sequence, usize)> = Sequence::ALL
            .into_iter()
            .flat_map(|sequence| counts.iter().map(move |&threads| (sequence, threads)))
            .filter(|(sequence, threads)| *threads == 1 || sequence.is_for_threads())
            .collect();
        let mut rates: Vec<[Vec<f64>; 2]> = cells.iter().map(|_| [Vec::new(), Vec::new()]).collect();
        for round in 0..setup.rounds {
            (watch.progress)(&format!("beside Linux, round {} of {} ...", round + 1, setup.rounds));
            for (&(sequence, threads), rates) in cells.iter().zip(&mut rates) {
                let run = Run { sequence, threads, slice: setup.slice };
                for side in super::in_turn(round, 2) {
                    watch.go_on()?;
                    let rate = if side == 0 { run.here()? } else { run.in_linux()? };
                    rates[side].push(rate);
                }
            }
        }
        let judged = cells.into_iter().zip(&rates).filter_map(|((sequence, threads), [here, linux])| {
            let ratios: Vec<f64> = here.iter().zip(linux).map(|(here, linux)| here / linux).collect();
            let (here, linux) = (Estimate::of(here)?, Estimate::of(linux)?);
            Some(Self { sequence, threads, here, linux, ratio: Estimate::of(&ratios)? })
        });
        Ok(judged.collect())
    }
}

#[derive(Clone, Copy, Debug)]
struct Run {
    sequence: Sequence,
    threads: usize,
    slice: Duration,
}

impl Run {
    fn here(&self) -> Result<f64, Error> {
        let (all, file) = match self.sequence {
            Sequence::PageFault1 => (PAGES * self.threads as u64, 0),
            Sequence::PageFault2 => (2 * PAGES * self.threads as u64, PAGES * self.threads as u64),
            Sequence::PageFault3 => (PAGES * self.threads as u64, PAGES * self.threads as u64),
            Sequence::Mmap1 | Sequence::Brk1 => (0, 0),
        };
        on_a_machine(self, Way::Sequence, all, file)
    }

    fn in_linux(&self) -> Result<f64, Error> {
        let memory = Memory::new(PAGES * self.threads as u64)?;
        self.timed(|thread, go_on| {
            let mut done = 0;
            while go_on() {
                done += linux::round(self.sequence, &memory, PAGES * thread as u64)?;
            }
            Ok(done)
        })
    }

    /// How often a second all threads do what each returns the number of.
    fn timed(
        &self,
        act: impl Fn(usize, &dyn Fn() -> bool) -> Result<u64, Error> + Sync,
    ) -> Result<f64, Error> {
        let (stop, barrier, all) =
            (AtomicBool::new(false), Barrier::new(self.threads + 1), AtomicU64::new(0));
        let (started, results) = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..self.threads)
                .map(|thread| {
                    let (stop, barrier, all, act) = (&stop, &barrier, &all, &act);
                    scope.spawn(move || {
                        pin(thread);
                        set_cpu(thread);
                        barrier.wait();
                        let done = act(thread, &|| !stop.load(Ordering::Relaxed))?;
                        all.fetch_add(done, Ordering::Relaxed);
                        Ok::<(), Error>(())
                    })
                })
                .collect();
            barrier.wait();
            let started = Instant::now();
            std::thread::sleep(self.slice);
            stop.store(true, Ordering::Relaxed);
            let join = |worker: std::thread::ScopedJoinHandle<'_, _>| worker.join();
            (started, workers.into_iter().map(join).collect::<Vec<_>>())
        });
        let seconds = started.elapsed().as_secs_f64();
        for result in results {
            result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        Ok(all.into_inner() as f64 / seconds)
    }
}

impl Experiment for Run {
    type Outcome = f64;

    fn run<'w>(
        &self,
        [space, _]: [&Space<'w, '_>; 2],
        rcu: &'w ThreadRcu,
        me: &mut Member<'w>,
    ) -> Result<f64, Error> {
        linux::for_own_maps(|request| space.mmap(&request).map(drop))?;
        me.offline(|| {
            self.timed(|thread, go_on| {
                let _joined = rcu.join().map_err(|_| Error::Memory)?;
                let mut done = 0;
                while go_on() {
                    done += self.round(space, rcu, PAGES * thread as u64)?;
                    rcu.quiescent();
                    rcu.advance(usize::MAX);
                }
                Ok(done)
            })
        })
    }
}

impl Run {
    /// What the sequence does once, with a file from a page on: so many pages or pairs of calls.
    fn round(&self, space: &Space<'_, '_>, rcu: &ThreadRcu, from: u64) -> Result<u64, Error> {
        let request = match self.sequence {
            Sequence::PageFault1 => read_write(PAGES),
            Sequence::PageFault2 => shared(PAGES, from, MapFlags::empty()),
            Sequence::PageFault3 => shared(PAGES, from, MapFlags::SHARED),
            Sequence::Mmap1 => {
                let at = space.mmap(&read_write(UNTOUCHED))?;
                space.munmap(at, UNTOUCHED * PAGE)?;
                return Ok(1);
            }
            Sequence::Brk1 => {
                let heap = space.brk(0);
                if space.brk(heap + PAGE) != heap + PAGE || space.brk(heap) != heap {
                    return Err(Error::Memory);
                }
                return Ok(1);
            }
        };
        let at = space.mmap(&request)?;
        for page in 0..PAGES {
            space.fault(at + page * PAGE, Access::Write)?;
            quiet(rcu, page);
        }
        space.munmap(at, PAGES * PAGE)?;
        Ok(PAGES)
    }
}

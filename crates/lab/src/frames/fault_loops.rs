//! Fault loops with and without reporting: seed 003's own table.
//!
//! After `page_fault1` of will-it-scale: each task takes 128 MiB of memory, writes to each of its pages, gives all back, and so on,
//! on 1 to N CPUs at once. Memory goes back to the system as by default, a second after it came free; what a loop takes again
//! before that stays. The series found no more than 3 % up to 24 tasks.

use super::{Error, Setup};
use crate::machine::pin;
use crate::{Estimate, Watch};
use isotherm_arena::{Arena, GiveBack, Order, Reporter, Settings};
use serde::Serialize;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

/// What a task takes: 128 MiB, in blocks of 2 MiB.
const BLOCKS: usize = 64;
/// Pairs of slices for each round of the other experiments.
const PAIRS: u32 = 2;
/// How much longer a slice is than one of the others: reports are due a second after memory came free.
const LONGER: u32 = 15;
/// Most tasks at once.
const MOST: usize = 24;

/// So many tasks at once.
#[derive(Clone, Debug, Serialize)]
pub struct FaultLoops {
    /// Tasks, each on a CPU of its own.
    pub tasks: usize,
    /// Pages written a second by all of them, without reporting.
    pub pages: Estimate,
    /// By which share fewer are with reporting, by slices that follow each other.
    pub slowdown: Estimate,
    /// Blocks of 2 MiB that were reported meanwhile.
    pub reported: u64,
}

impl FaultLoops {
    /// Measures 1 to as many tasks as there are CPUs.
    ///
    /// # Errors
    /// Interrupted; no memory.
    pub fn measure(setup: &Setup, watch: &mut Watch<'_>) -> Result<Vec<Self>, Error> {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from).min(MOST);
        (1..=cpus).filter_map(|tasks| Self::of(tasks, setup, watch).transpose()).collect()
    }

    fn of(tasks: usize, setup: &Setup, watch: &mut Watch<'_>) -> Result<Option<Self>, Error> {
        (watch.progress)(&format!("fault loops of {tasks} tasks ..."));
        // Twice what they use, so that some is free all the time.
        let bytes = 2 * tasks * BLOCKS * Order::HUGE.bytes() as usize;
        let arena = Arc::new(Arena::new(&Settings::new(bytes, GiveBack::DontNeed))?);
        let slice = setup.slice * LONGER;
        // One that does not count: the memory is touched for the first time.
        loops(&arena, tasks, slice / LONGER);
        let run = |reports: bool| {
            let reporter = if reports { Some(Reporter::start(Arc::clone(&arena))?) } else { None };
            let rate = loops(&arena, tasks, slice);
            drop(reporter);
            Ok::<f64, Error>(rate)
        };
        let (mut rates, mut slowdowns) = (Vec::new(), Vec::new());
        for round in 0..setup.rounds.saturating_mul(PAIRS) {
            watch.go_on()?;
            // In one order, then in the other: what a steady drift adds in one it takes away in the other.
            let (without, with) = if round % 2 == 0 {
                let without = run(false)?;
                (without, run(true)?)
            } else {
                let with = run(true)?;
                (run(false)?, with)
            };
            rates.push(without);
            slowdowns.push(without / with - 1.0);
        }
        let reported = arena.stats().reported;
        let estimates = Estimate::of(&rates).zip(Estimate::of(&slowdowns));
        Ok(estimates.map(|(pages, slowdown)| Self { tasks, pages, slowdown, reported }))
    }
}

/// Pages written a second.
fn loops(arena: &Arena, tasks: usize, slice: Duration) -> f64 {
    let barrier = Barrier::new(tasks);
    std::thread::scope(|scope| {
        let barrier = &barrier;
        let threads: Vec<_> = (0..tasks)
            .map(|cpu| {
                scope.spawn(move || {
                    pin(cpu);
                    barrier.wait();
                    let rate = task(arena, slice);
                    // Nobody leaves the others alone with the machine before all have stopped measuring.
                    barrier.wait();
                    rate
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or(0.0)).sum()
    })
}

fn task(arena: &Arena, slice: Duration) -> f64 {
    let start = Instant::now();
    let mut pages = 0u64;
    while start.elapsed() < slice {
        let mut blocks: Vec<_> = (0..BLOCKS).filter_map(|_| arena.allocate(Order::HUGE).ok()).collect();
        for block in &mut blocks {
            block.iter_mut().step_by(4096).for_each(|byte| *byte = byte.wrapping_add(1));
        }
        pages += blocks.len() as u64 * Order::HUGE.frames();
    }
    pages as f64 / start.elapsed().as_secs_f64()
}

//! The loops that are timed, for any allocator: `crates/lab/llfree` puts another one into them.

use isotherm_frames::Order;
use serde::Serialize;
use std::hint::black_box;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// What every allocator can do. A block is a number that means something to its allocator only.
pub trait Allocator: Sync {
    /// A block; `None` if there is none.
    fn get(&self, cpu: usize, order: Order) -> Option<usize>;
    /// Frees a block that `get` gave.
    fn put(&self, cpu: usize, block: usize, order: Order);
}

/// What is held at most in a pattern, a thread: 128 MiB, so that no cache holds it.
const HELD: u64 = 128 << 20;

/// The orders that are measured: pages, and folios of 8 KiB, 64 KiB and 2 MiB.
pub const ORDERS: [u8; 4] = [0, 1, 4, 9];

/// The order in which blocks are taken and given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Pattern {
    /// One block, again and again.
    Repeat,
    /// 128 MiB of blocks, then all given back in the order they came.
    Bulk,
    /// Of 128 MiB of blocks one at random is given back and another taken.
    Random,
}

impl Pattern {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Repeat, Self::Bulk, Self::Random];

    /// As in the table.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Repeat => "repeat",
            Self::Bulk => "bulk",
            Self::Random => "random",
        }
    }
}

/// A pattern, for a while.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// What is done.
    pub pattern: Pattern,
    /// With blocks of this order.
    pub order: Order,
    /// By so many threads.
    pub threads: usize,
    /// For so long.
    pub slice: Duration,
}

impl Run {
    /// Pairs a second. `pin` binds the thread that calls it to the CPU with this index.
    pub fn on<A: Allocator>(self, allocator: &A, pin: fn(usize)) -> f64 {
        together(self.threads, pin, |cpu, barrier| self.thread(allocator, cpu, barrier))
    }

    fn thread<A: Allocator>(self, allocator: &A, cpu: usize, barrier: &Barrier) -> f64 {
        let count = (HELD / self.order.bytes()) as usize;
        let mut held: Vec<usize> = Vec::with_capacity(count);
        let mut random = 0x9e37_79b9_7f4a_7c15 ^ (cpu as u64) << 32;
        if self.pattern == Pattern::Random {
            held.extend((0..count).filter_map(|_| allocator.get(cpu, self.order)));
            // Mixed, as neighbours come one after the other.
            for at in (1..held.len()).rev() {
                held.swap(at, below(&mut random, at + 1));
            }
        }
        barrier.wait();
        let start = Instant::now();
        let mut pairs = 0;
        let mut elapsed = Duration::ZERO;
        while elapsed < self.slice {
            pairs += self.some(allocator, cpu, &mut held, &mut random, count);
            elapsed = start.elapsed();
        }
        // Nobody leaves the other alone with the machine before both have stopped measuring.
        barrier.wait();
        held.into_iter().for_each(|block| allocator.put(cpu, block, self.order));
        pairs as f64 / elapsed.as_secs_f64()
    }

    /// Some pairs, between two looks at the clock; how many.
    #[inline]
    fn some<A: Allocator>(
        self,
        allocator: &A,
        cpu: usize,
        held: &mut Vec<usize>,
        random: &mut u64,
        count: usize,
    ) -> u64 {
        match self.pattern {
            Pattern::Repeat => {
                let pairs = (0..1000).filter(|_| {
                    let block = allocator.get(cpu, self.order);
                    black_box(block).inspect(|&block| allocator.put(cpu, block, self.order)).is_some()
                });
                pairs.count() as u64
            }
            Pattern::Bulk => {
                held.extend((0..count).filter_map(|_| allocator.get(cpu, self.order)));
                held.drain(..).map(|block| allocator.put(cpu, block, self.order)).count() as u64
            }
            Pattern::Random => {
                let mut pairs = 0;
                for _ in 0..1000 {
                    let (gone, come) = (below(random, held.len()), below(random, held.len()));
                    // What is freed now is not what the next allocation would be given at this place.
                    let Some(&block) = held.get(gone) else { break };
                    allocator.put(cpu, block, self.order);
                    held.swap_remove(gone);
                    let Some(block) = allocator.get(cpu, self.order) else { break };
                    held.push(block);
                    let last = held.len() - 1;
                    held.swap(come, last);
                    pairs += 1;
                }
                pairs
            }
        }
    }
}

/// The sum of what so many threads return, each on a CPU of its own. The barrier is for all of them.
pub fn together(threads: usize, pin: fn(usize), thread: impl Fn(usize, &Barrier) -> f64 + Sync) -> f64 {
    let barrier = Barrier::new(threads);
    std::thread::scope(|scope| {
        let (barrier, thread) = (&barrier, &thread);
        let threads: Vec<_> = (0..threads)
            .map(|cpu| {
                scope.spawn(move || {
                    pin(cpu);
                    thread(cpu, barrier)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or(0.0)).sum()
    })
}

/// A number below `limit` (xorshift64*); 0 if that is 0.
#[inline]
fn below(state: &mut u64, limit: usize) -> usize {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    let random = state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
    // Multiplied into the range: a division would cost as much as what is measured.
    ((random * limit as u64) >> 32) as usize
}

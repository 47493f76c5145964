//! How many pairs of get and put a second.

use super::rivals::{Allocator, OfBuddySystem, OfMalloc, OfZone, Rival};
use super::{Error, Setup};
use crate::machine::pin;
use crate::{Estimate, Watch};
use isotherm_frames::Order;
use serde::Serialize;
use std::hint::black_box;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// What is held at most in a pattern, a thread: 128 MiB, so that no cache holds it.
const HELD: u64 = 128 << 20;

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

/// One allocator in one pattern.
#[derive(Clone, Debug, Serialize)]
pub struct Rate {
    /// Which.
    pub rival: Rival,
    /// Pairs a second, of all threads together, a round each.
    pub pairs: Estimate,
    /// The zone's rate in the same round divided by this one's; `None` of the zone itself.
    pub slower_by: Option<Estimate>,
}

/// All allocators in one pattern.
#[derive(Clone, Debug, Serialize)]
pub struct Throughput {
    /// The pattern.
    pub pattern: Pattern,
    /// The order of the blocks.
    pub order: u8,
    /// How many threads do it at once, each on a CPU of its own.
    pub threads: usize,
    /// Each allocator's rate.
    pub rates: Vec<Rate>,
}

impl Throughput {
    /// The rate of one of them.
    #[must_use]
    pub fn rate(&self, rival: Rival) -> Option<&Rate> {
        self.rates.iter().find(|rate| rate.rival == rival)
    }

    /// Measures all patterns with orders 0 and 9 and up to `threads` (1 or 2) threads.
    ///
    /// # Errors
    /// Interrupted.
    pub fn measure(threads: usize, setup: &Setup, watch: &mut Watch<'_>) -> Result<Vec<Self>, Error> {
        let mut metadata = OfZone::metadata();
        let Ok(zone) = OfZone::new(&mut metadata) else { return Ok(Vec::new()) };
        let buddy = OfBuddySystem::new();
        let mut runs = Vec::new();
        for pattern in Pattern::ALL {
            for order in [Order::BASE, Order::HUGE] {
                for threads in 1..=threads {
                    let run = Run { pattern, order, threads, slice: setup.slice };
                    runs.push((run, [const { Vec::new() }; Rival::ALL.len()]));
                }
            }
        }
        // A round of everything, then the next: whatever else the machine does for a while spoils one round of some things,
        // not all rounds of one.
        for round in 1..=setup.rounds {
            (watch.progress)(&format!("pairs of get and put, round {round} of {} ...", setup.rounds));
            for (run, rates) in &mut runs {
                for (rival, rates) in Rival::ALL.into_iter().zip(rates) {
                    watch.go_on()?;
                    rates.push(match rival {
                        Rival::Zone => run.on(&zone),
                        Rival::BuddySystem => run.on(&buddy),
                        Rival::Malloc => run.on(&OfMalloc),
                    });
                }
            }
        }
        let judged = runs.into_iter().map(|(Run { pattern, order, threads, .. }, rates)| Self {
            pattern,
            order: order.get(),
            threads,
            rates: judge(&rates),
        });
        Ok(judged.collect())
    }
}

/// Rates of each rival by round, the zone's first, as estimates and ratios of the same round.
fn judge(rates: &[Vec<f64>; Rival::ALL.len()]) -> Vec<Rate> {
    let [zone, ..] = rates;
    let rate = |(rival, rates): (Rival, &Vec<f64>)| {
        let ratios: Vec<f64> = zone.iter().zip(rates).map(|(zone, rate)| zone / rate).collect();
        let slower_by = if rival == Rival::Zone { None } else { Estimate::of(&ratios) };
        Some(Rate { rival, pairs: Estimate::of(rates)?, slower_by })
    };
    Rival::ALL.into_iter().zip(rates).filter_map(rate).collect()
}

#[derive(Clone, Copy)]
struct Run {
    pattern: Pattern,
    order: Order,
    threads: usize,
    slice: Duration,
}

impl Run {
    /// Pairs a second.
    fn on<A: Allocator>(self, allocator: &A) -> f64 {
        let barrier = Barrier::new(self.threads);
        std::thread::scope(|scope| {
            let barrier = &barrier;
            let threads: Vec<_> = (0..self.threads)
                .map(|cpu| {
                    scope.spawn(move || {
                        pin(cpu);
                        self.thread(allocator, cpu, barrier)
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap_or(0.0)).sum()
        })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_the_same_round() {
        let rates = judge(&[vec![10.0, 40.0], vec![5.0, 10.0], vec![1.0, 1.0]]);
        let ratio = |at: usize| rates[at].slower_by.map(|ratio| (ratio.min, ratio.max));
        assert_eq!((ratio(0), ratio(1), ratio(2)), (None, Some((2.0, 4.0)), Some((10.0, 40.0))));
    }

    #[test]
    fn every_pattern_makes_pairs_and_leaves_nothing_allocated() {
        let mut metadata = OfZone::metadata();
        let zone = OfZone::new(&mut metadata).unwrap();
        for pattern in Pattern::ALL {
            for order in [Order::BASE, Order::HUGE] {
                let run = Run { pattern, order, threads: 2, slice: Duration::from_millis(1) };
                assert!(run.on(&zone) > 0.0 && run.on(&OfMalloc) > 0.0, "{pattern:?} {order}");
            }
        }
        // All 8 GiB can be had.
        let blocks: Vec<_> = std::iter::from_fn(|| zone.get(0, Order::MAX)).collect();
        assert_eq!(blocks.len(), 2048);
    }
}

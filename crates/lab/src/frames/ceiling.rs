//! What two threads do beside one on this machine where they share nothing: what no allocator does better. Processors may be the
//! two threads of one core.

use super::pattern::together;
use super::{Error, Setup};
use crate::machine::pin;
use crate::{Estimate, Watch};
use serde::Serialize;
use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What each thread does by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Alone {
    /// Sums in registers, four that do not wait for each other.
    Arithmetic,
    /// A word at random of 256 KiB of its own, read and written: more than the first cache holds, less than the second.
    Memory,
    /// A lock of its own, taken and given back.
    Lock,
}

/// Words of [`Alone::Memory`].
const WORDS: usize = (256 << 10) / 8;

impl Alone {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Arithmetic, Self::Memory, Self::Lock];

    /// As in the table.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Arithmetic => "arithmetic",
            Self::Memory => "memory of its own",
            Self::Lock => "a lock of its own",
        }
    }

    /// Times a second, for so long.
    fn rate(self, slice: Duration, cpu: usize, barrier: &Barrier) -> f64 {
        let mut words: Vec<u64> = (0..WORDS as u64).collect();
        let mut sums = [1_u64, 2, 3, 4];
        // On the heap, and larger than what processors fetch together: no line is the other thread's too.
        let lock = Box::new([const { AtomicU64::new(0) }; 64]);
        let mut random = 0x9e37_79b9_7f4a_7c15 ^ (cpu as u64) << 32;
        barrier.wait();
        let start = Instant::now();
        let (mut times, mut elapsed) = (0_u64, Duration::ZERO);
        while elapsed < slice {
            match self {
                Self::Arithmetic => {
                    for _ in 0..1000 {
                        sums = sums.map(|sum| sum.wrapping_mul(5).wrapping_add(1));
                    }
                    sums = black_box(sums);
                }
                Self::Memory => {
                    for _ in 0..1000 {
                        random ^= random << 13;
                        random ^= random >> 7;
                        random ^= random << 17;
                        let word = &mut words[random as usize % WORDS];
                        *word = word.wrapping_add(random);
                    }
                }
                Self::Lock => {
                    for _ in 0..1000 {
                        black_box(lock[32].swap(1, Ordering::Acquire));
                        lock[32].store(0, Ordering::Release);
                    }
                }
            }
            times += 1000;
            elapsed = start.elapsed();
        }
        black_box((words, sums));
        // Nobody leaves the other alone with the machine before both have stopped measuring.
        barrier.wait();
        times as f64 / elapsed.as_secs_f64()
    }
}

/// What two threads do beside one.
#[derive(Clone, Debug, Serialize)]
pub struct Ceiling {
    /// Of what.
    pub alone: Alone,
    /// Times a second, by one thread.
    pub one: Estimate,
    /// Both threads together, divided by the one of the same round.
    pub scaling: Estimate,
}

impl Ceiling {
    /// Measures each, if there are two CPUs.
    ///
    /// # Errors
    /// Interrupted.
    pub fn measure(setup: &Setup, watch: &mut Watch<'_>) -> Result<Vec<Self>, Error> {
        let mut rates = Alone::ALL.map(|_| (Vec::new(), Vec::new()));
        (watch.progress)("what two threads do beside one that share nothing ...");
        for _ in 0..setup.rounds {
            for (alone, (one, scaling)) in Alone::ALL.into_iter().zip(&mut rates) {
                watch.go_on()?;
                let of =
                    |threads| together(threads, pin, |cpu, barrier| alone.rate(setup.slice, cpu, barrier));
                let single = of(1);
                one.push(single);
                scaling.push(of(2) / single);
            }
        }
        let estimate = |(alone, (one, scaling)): (Alone, (Vec<f64>, Vec<f64>))| {
            Some(Self { alone, one: Estimate::of(&one)?, scaling: Estimate::of(&scaling)? })
        };
        Ok(Alone::ALL.into_iter().zip(rates).filter_map(estimate).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn each_kind_of_work_is_measured_by_one_thread_and_by_two() {
        let setup = Setup { rounds: 3, slice: Duration::from_millis(1) };
        let mut watch = Watch { stop: Arc::new(|| false), progress: &mut |_| {} };
        let found = Ceiling::measure(&setup, &mut watch).unwrap();
        assert_eq!(found.iter().map(|one| one.alone).collect::<Vec<_>>(), Alone::ALL);
        assert!(found.iter().all(|one| one.one.median > 0.0 && one.scaling.median > 0.0), "{found:?}");
    }
}

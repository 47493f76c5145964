//! What clears cost whoever's memory is cleared, measured on the spot: a thread that does nothing but touch memory, with
//! and without its pages being cleared as fast as may be. With the monitor's counts this gives the slowdown that
//! monitoring must cause, which is far below what a noisy machine can measure.

use crate::Interrupted;
use anyhow::bail;
use rustix::mm::{Advice, madvise};
use serde::Serialize;
use std::hint::black_box;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const PAGE: usize = 4096;
/// More than a TLB covers, less than would take long to touch.
const PAGES: usize = 8192;
/// Long against a thread's start and a scheduler's tick.
const SLICE: Duration = Duration::from_millis(20);
/// Slices of each kind; what is told is their median.
const ROUNDS: usize = 15;
/// Pages of a large range.
const LARGE: usize = 64;

/// Prices in ns of the target's time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Prices {
    /// Of clearing a range: the interruption, and the translations lost.
    pub flush_ns: f64,
    /// Of each page that was cleared: its next access sets the bit again.
    pub page_ns: f64,
}

/// What was cleared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Cleared {
    /// Ranges, each with a flush.
    pub flushes: u64,
    /// Pages in them.
    pub pages: u64,
    /// Pages that were swept, without a flush.
    pub swept: u64,
}

impl Prices {
    /// The share of `wall_ns` that the target lost, if it touched every page that was cleared.
    pub fn slowdown(&self, cleared: Cleared, wall_ns: u64) -> f64 {
        let pages = cleared.pages as f64 + cleared.swept as f64;
        (cleared.flushes as f64 * self.flush_ns + pages * self.page_ns) / wall_ns.max(1) as f64
    }

    /// Those of this machine, measured when they are first asked for.
    ///
    /// # Errors
    /// As [`Prices::measure`].
    pub fn here(stop: &dyn Fn() -> bool) -> anyhow::Result<Self> {
        static HERE: OnceLock<Prices> = OnceLock::new();
        if let Some(prices) = HERE.get() {
            return Ok(*prices);
        }
        let prices = Self::measure(stop)?;
        Ok(*HERE.get_or_init(|| prices))
    }

    /// Measures them on this machine, in less than two seconds.
    ///
    /// # Errors
    /// When the kernel refuses, or [`Interrupted`].
    pub fn measure(stop: &dyn Fn() -> bool) -> anyhow::Result<Self> {
        let words = PAGES * PAGE / size_of::<u64>();
        let mut memory: Vec<AtomicU64> = Vec::with_capacity(words);
        let start = memory.as_ptr().wrapping_byte_add(to_page(&memory)).cast_mut().cast();
        // SAFETY: all but one of the buffer's pages, from the first whole one on, which outlive the call; the advice changes
        // no contents. Clearing a page of a huge page would split it. A kernel without huge pages refuses: none to split.
        let _ = unsafe { madvise(start, (PAGES - 1) * PAGE, Advice::LinuxNoHugepage) };
        memory.extend((0..words).map(|_| AtomicU64::new(1)));
        let (touches, over) = (AtomicU64::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| touch(&memory, &touches, &over));
            let measured = Self::beside(&memory, &touches, stop);
            over.store(true, Ordering::Relaxed);
            measured
        })
    }

    fn beside(memory: &[AtomicU64], touches: &AtomicU64, stop: &dyn Fn() -> bool) -> anyhow::Result<Self> {
        let (mut small, mut large) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            if stop() {
                bail!(Interrupted);
            }
            for (pages, prices) in [(1, &mut small), (LARGE, &mut large)] {
                let before = slice(memory, touches, 0)?;
                let cleared = slice(memory, touches, pages)?;
                let after = slice(memory, touches, 0)?;
                // Neighbours in time are alike, whatever else the machine does.
                let rate = (before.rate() + after.rate()) / 2.0;
                let lost = 1.0 - cleared.rate() / rate;
                prices.push(cleared.time.as_nanos() as f64 * lost / cleared.ranges.max(1) as f64);
            }
        }
        let (small, large) = (median(small), median(large));
        let page_ns = ((large - small) / (LARGE - 1) as f64).max(0.0);
        Ok(Self { flush_ns: (small - page_ns).max(0.0), page_ns })
    }
}

struct Slice {
    time: Duration,
    touches: u64,
    ranges: u64,
}

impl Slice {
    fn rate(&self) -> f64 {
        self.touches as f64 / self.time.as_secs_f64()
    }
}

/// Clears ranges of `pages` pages, or sleeps if that is 0, and counts what the other thread does meanwhile.
fn slice(memory: &[AtomicU64], touches: &AtomicU64, pages: usize) -> anyhow::Result<Slice> {
    let (start, before) = (Instant::now(), touches.load(Ordering::Relaxed));
    let mut ranges = 0;
    let Some(places) = (PAGES - 1).checked_div(pages) else {
        std::thread::sleep(SLICE);
        return Ok(Slice {
            time: start.elapsed(),
            touches: touches.load(Ordering::Relaxed) - before,
            ranges,
        });
    };
    let base = to_page(memory);
    while start.elapsed() < SLICE {
        let at = base + (ranges as usize * 769 % places) * pages * PAGE;
        let start = memory.as_ptr().wrapping_byte_add(at).cast_mut().cast();
        // SAFETY: the pages lie within `memory`, which outlives the call, and this advice changes no contents.
        unsafe { madvise(start, pages * PAGE, Advice::LinuxCold) }?;
        ranges += 1;
    }
    Ok(Slice { time: start.elapsed(), touches: touches.load(Ordering::Relaxed) - before, ranges })
}

/// Bytes from the start of the memory to its first whole page.
fn to_page(memory: &[AtomicU64]) -> usize {
    memory.as_ptr().addr().next_multiple_of(PAGE) - memory.as_ptr().addr()
}

fn touch(memory: &[AtomicU64], touches: &AtomicU64, over: &AtomicBool) {
    let (mut state, mut sum) = (0x9e37_79b9_7f4a_7c15_u64, 0_u64);
    while !over.load(Ordering::Relaxed) {
        for _ in 0..256 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let at = state as usize % memory.len();
            sum = sum.wrapping_add(memory.get(at).map_or(0, |word| word.load(Ordering::Relaxed)));
        }
        touches.fetch_add(256, Ordering::Relaxed);
    }
    black_box(sum);
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_times_prices_is_the_slowdown() {
        let prices = Prices { flush_ns: 5_000.0, page_ns: 100.0 };
        let cleared = Cleared { flushes: 1_000, pages: 30_000, swept: 20_000 };
        assert!((prices.slowdown(cleared, 10_000_000_000) - 0.001).abs() < 1e-12);
        assert_eq!(prices.slowdown(Cleared::default(), 0), 0.0);
    }

    #[test]
    fn prices_are_some_microseconds_and_some_nanoseconds() {
        let prices = Prices::measure(&|| false).unwrap();
        // A clear must cost something, and no machine takes a millisecond for one.
        assert!(prices.flush_ns + 64.0 * prices.page_ns > 0.0 && prices.flush_ns < 1e6, "{prices:?}");
        assert!(Prices::measure(&|| true).is_err());
    }
}

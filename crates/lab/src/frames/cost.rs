//! What reporting costs a loop that allocates, touches and frees.
//!
//! Two comparisons. *Bookkeeping*: a zone without reporting beside one that reports to a host that acknowledges at once
//! and does nothing: what is left is the allocator's own work. *With the host's work*: an arena whose free memory nobody
//! gives back beside one whose memory goes back to the system, whence page faults when it is touched again.
//!
//! In both a thread on another CPU drives the reports, which are due after a thousandth of the usual delay: the loop is
//! reported all the time, as in practice it never would be.

use super::{Error, Setup};
use crate::machine::pin;
use crate::{Estimate, Watch};
use isotherm_arena::{Arena, GiveBack, Poll, Settings};
use isotherm_frames::{
    Block, Config, FrameRange, Mobility, Order, Progress, ReportSink, ReportingConfig, Zone, metadata_size,
};
use serde::Serialize;
use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The memory the loop has, and the part it uses: blocks of 2 MiB.
const BLOCKS: usize = 64;
const USED: usize = 32;
/// Words between two pages' first.
const PAGE: usize = 4096 / 8;
/// When a report is due.
const DELAY: Duration = Duration::from_millis(1);

/// Pairs of slices for each round of the other experiments, and what a slice there is divided by: the effect is small and
/// the loop short, so many short pairs tell more than a few long ones.
const PAIRS: u32 = 8;

/// The loop without and with reports.
#[derive(Clone, Debug, Serialize)]
pub struct Touching {
    /// Time of a round of the loop without, ns: 32 blocks of 2 MiB allocated, a word of each page written, and freed.
    pub without_ns: Estimate,
    /// By which share a round takes longer with reports, by slices that follow each other.
    pub slowdown: Estimate,
    /// Blocks of 2 MiB reported for every 1000 that were allocated.
    pub reported_per_1000: f64,
}

/// What reporting costs.
#[derive(Clone, Debug, Serialize)]
pub struct Cost {
    /// With a host that does nothing.
    pub bookkeeping: Touching,
    /// With the system as host, by `MADV_DONTNEED`.
    pub with_host: Touching,
    /// The time the host takes for a block of 2 MiB, ns, on the CPU that reports.
    pub host_ns: f64,
}

struct Nobody;

impl ReportSink for Nobody {
    type Error = Infallible;

    fn report(&mut self, _blocks: &[Block]) -> Result<(), Infallible> {
        Ok(())
    }
}

impl Cost {
    /// Measures both.
    ///
    /// # Errors
    /// Interrupted; no memory.
    pub fn measure(setup: &Setup, watch: &mut Watch<'_>) -> Result<Option<Self>, Error> {
        (watch.progress)("allocate, touch, free: reports to nobody ...");
        let Some(bookkeeping) = bookkeeping(setup, watch)? else { return Ok(None) };
        (watch.progress)("allocate, touch, free: reports to the system ...");
        let Some((with_host, host_ns)) = with_host(setup, watch)? else { return Ok(None) };
        Ok(Some(Self { bookkeeping, with_host, host_ns }))
    }
}

fn bookkeeping(setup: &Setup, watch: &mut Watch<'_>) -> Result<Option<Touching>, Error> {
    let mut memory = vec![1u64; BLOCKS * (Order::HUGE.bytes() as usize / 8)];
    let ranges = [FrameRange::of_bytes(0, BLOCKS as u64 * Order::HUGE.bytes())];
    let reporting =
        ReportingConfig { delay: DELAY.as_nanos() as u64, threshold: 1, ..ReportingConfig::DEFAULT };
    let configs = [Config::new(2), Config::new(2).with_reporting(reporting)];
    let mut metadata =
        configs.map(|config| vec![std::mem::MaybeUninit::uninit(); metadata_size(&ranges, &config)]);
    let [first, second] = &mut metadata;
    // SAFETY: each zone's numbers are places in `memory`, which one thread works on with one zone at a time.
    let zones = unsafe { (Zone::new(&configs[0], &ranges, first), Zone::new(&configs[1], &ranges, second)) };
    let (Ok(without), Ok(with)) = zones else { return Ok(None) };
    let start = Instant::now();
    compare(setup, watch, |reports| {
        let zone = if reports { &with } else { &without };
        let before = zone.stats().reported;
        let poll = || {
            let now = start.elapsed().as_nanos() as u64;
            match zone.report(now, &mut Nobody) {
                Ok(Progress::Reported(_)) => Duration::ZERO,
                Ok(_) | Err(_) => DELAY / 4,
            }
        };
        let mut blocks = Vec::with_capacity(USED);
        let timed = beside(reports, poll, || {
            slice(setup.slice / (PAIRS / 2), || {
                blocks.extend((0..USED).filter_map(|_| zone.get(0, Order::HUGE, Mobility::Movable).ok()));
                for block in &blocks {
                    let start = (block.address() / 8) as usize;
                    let words = memory.get_mut(start..start + (block.bytes() / 8) as usize);
                    touch(words.unwrap_or_default());
                }
                let count = blocks.len();
                blocks.drain(..).for_each(|block| {
                    let put = zone.put(0, block);
                    debug_assert!(put.is_ok());
                });
                count
            })
        });
        Ok(Timed { reported: zone.stats().reported - before, ..timed })
    })
}

fn with_host(setup: &Setup, watch: &mut Watch<'_>) -> Result<Option<(Touching, f64)>, Error> {
    let bytes = BLOCKS * Order::HUGE.bytes() as usize;
    let settings = Settings { delay: DELAY, threshold: 1, ..Settings::new(bytes, GiveBack::DontNeed) };
    let arenas = [Arena::new(&settings)?, Arena::new(&settings)?];
    // Time and bytes of polls that gave something back.
    let (spent, given) = (AtomicU64::new(0), AtomicU64::new(0));
    let touching = compare(setup, watch, |reports| {
        let arena = &arenas[usize::from(reports)];
        let before = arena.stats().reported;
        let poll = || {
            let start = Instant::now();
            match arena.poll() {
                Ok(Poll::Returned(bytes)) => {
                    spent.fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
                    given.fetch_add(bytes, Ordering::Relaxed);
                    Duration::ZERO
                }
                Ok(Poll::Later(_)) | Err(_) => DELAY / 4,
            }
        };
        let timed = beside(reports, poll, || {
            slice(setup.slice / (PAIRS / 2), || {
                let mut blocks: Vec<_> = (0..USED).filter_map(|_| arena.allocate(Order::HUGE).ok()).collect();
                blocks.iter_mut().for_each(|block| block.iter_mut().step_by(4096).for_each(|byte| *byte = 1));
                blocks.len()
            })
        });
        Ok(Timed { reported: arena.stats().reported - before, ..timed })
    })?;
    let blocks = given.into_inner() as f64 / Order::HUGE.bytes() as f64;
    Ok(touching.map(|touching| (touching, spent.into_inner() as f64 / blocks.max(1.0))))
}

/// What a slice took.
#[derive(Clone, Copy)]
struct Timed {
    /// A round of the loop, ns for [`USED`] blocks.
    round_ns: f64,
    allocated: u64,
    reported: u64,
}

/// Slices without and with reports in turn.
fn compare(
    setup: &Setup,
    watch: &Watch<'_>,
    mut run: impl FnMut(bool) -> Result<Timed, Error>,
) -> Result<Option<Touching>, Error> {
    let (mut times, mut slowdowns) = (Vec::new(), Vec::new());
    let (mut allocated, mut reported) = (0, 0);
    // One of each that does not count: the memory is touched for the first time.
    run(false)?;
    run(true)?;
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
        times.push(without.round_ns);
        slowdowns.push(with.round_ns / without.round_ns - 1.0);
        allocated += with.allocated;
        reported += with.reported;
    }
    let estimates = Estimate::of(&times).zip(Estimate::of(&slowdowns));
    Ok(estimates.map(|(without_ns, slowdown)| Touching {
        without_ns,
        slowdown,
        reported_per_1000: reported as f64 * 1000.0 / allocated.max(1) as f64,
    }))
}

/// Runs `work` on the first CPU while, if asked to, a thread on the second calls `poll`, which says for how long to wait.
fn beside(reports: bool, poll: impl Fn() -> Duration + Sync, work: impl FnOnce() -> Timed + Send) -> Timed {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(1);
            while !done.load(Ordering::Relaxed) {
                // Without reports it wakes as often: what is compared is the reports.
                let wait = if reports { poll() } else { DELAY / 4 };
                if !wait.is_zero() {
                    std::thread::sleep(wait);
                }
            }
        });
        let worker = scope.spawn(|| {
            pin(0);
            work()
        });
        let timed = worker.join();
        done.store(true, Ordering::Relaxed);
        timed.unwrap_or(Timed { round_ns: f64::NAN, allocated: 0, reported: 0 })
    })
}

/// Repeats a round, which says how many blocks it had, for a slice. The median round counts: others that use the machine
/// now and then do not.
fn slice(length: Duration, mut round: impl FnMut() -> usize) -> Timed {
    // One that does not count: since the last slice everything has been free for long, and has been given back.
    round();
    let start = Instant::now();
    let (mut times, mut allocated) = (Vec::new(), 0);
    while times.is_empty() || start.elapsed() < length {
        let start = Instant::now();
        let blocks = round();
        if blocks > 0 {
            times.push(start.elapsed().as_nanos() as f64 * USED as f64 / blocks as f64);
        }
        allocated += blocks as u64;
    }
    let round_ns = Estimate::of(&times).map_or(f64::NAN, |times| times.median);
    Timed { round_ns, allocated, reported: 0 }
}

fn touch(words: &mut [u64]) {
    words.iter_mut().step_by(PAGE).for_each(|word| *word += 1);
}

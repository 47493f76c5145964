//! The threads that touch memory: each goes through its streams by an absolute schedule.
//!
//! A periodic stream has a slot every 1/rate seconds from the start of the phase; in each it passes once over its
//! range. A pass that comes so late that the next slot has begun is left out and counted, never made up for: two
//! passes in one sampling interval look like one to any monitor. Long passes are cut into chunks between which the
//! thread serves whichever stream has the shortest period.

use crate::clock::{now_ns, sleep_until, thread_cpu_ns};
use crate::pattern::{Gaps, Kind, Touch};
use crate::plan::{LINE, Stream};
use crate::quantity::Rate;
use crate::rng::Rng;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Touches between two looks at the clock: some 100 us of cache misses.
const CHUNK: usize = 2048;
/// Random accesses are done in batches this far apart: well below any sampling interval, and far fewer wake-ups.
const BATCH_NS: u64 = 1_000_000;
/// Random accesses that are later than this are left out.
const LATE_NS: u64 = 50_000_000;
/// Longest sleep, so that a request to stop is seen soon.
const NAP_NS: u64 = 50_000_000;

/// A stream at its address.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    /// Index of the stream in its phase.
    pub(crate) index: usize,
    /// First byte; valid for the whole phase.
    pub(crate) base: usize,
    /// Bytes, a multiple of the unit.
    pub(crate) size: usize,
    /// Size of a page of the area.
    pub(crate) unit: usize,
    /// Size of an order-0 page.
    pub(crate) base_page: usize,
    /// What to do.
    pub(crate) stream: Stream,
}

/// A phase as one thread sees it.
#[derive(Debug)]
pub(crate) struct Shift<'a> {
    pub(crate) start_ns: u64,
    pub(crate) end_ns: Option<u64>,
    pub(crate) jobs: Vec<Job>,
    /// Streams of the phase, over all threads, that still have work to do; `None` when none ever had.
    pub(crate) open_work: Option<Arc<AtomicUsize>>,
    /// Set when the workload is to end.
    pub(crate) stop: &'a AtomicBool,
}

/// What came of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Index of the stream in its phase.
    pub(crate) index: usize,
    /// Accesses done.
    pub(crate) touches: u64,
    /// Touches in which every page is accessed once, on average for random streams.
    pub(crate) touches_per_pass: u64,
    /// Passes or random accesses left out.
    pub(crate) missed: u64,
    /// Longest time between the starts of two passes.
    pub(crate) max_gap_ns: u64,
    /// Each piece of work.
    pub(crate) work: Vec<Piece>,
}

/// When a piece of work was done and what it took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) start_ns: u64,
    pub(crate) end_ns: u64,
    pub(crate) cpu_ns: u64,
}

enum Pace {
    /// One pass in each slot of `period` ns.
    Slots { period: f64, slot: u64, passing: bool, last_pass: Option<u64> },
    /// One access each `mean` ns on average.
    Single { mean: f64, next: f64, batch: u64 },
    /// Without a pause.
    Flat { work_start: u64, cpu_start: u64 },
}

struct Runner {
    job: Job,
    pace: Pace,
    start_ns: u64,
    /// Touches in a pass over the range.
    touches_per_pass: usize,
    /// Next touch of the pass.
    position: usize,
    tally: Tally,
    done: bool,
}

/// Does one phase's share of a thread. Returns what came of each stream and when the last access was over.
pub(crate) fn work(shift: Shift<'_>, rng: &mut Rng) -> (Vec<Tally>, u64) {
    let mut runners: Vec<_> = shift.jobs.into_iter().map(|job| Runner::new(job, shift.start_ns)).collect();
    let mut turn = 0;
    loop {
        let now = now_ns();
        let work_done = shift.open_work.as_ref().is_some_and(|n| n.load(Ordering::Relaxed) == 0);
        if work_done || shift.end_ns.is_some_and(|end| now >= end) || shift.stop.load(Ordering::Relaxed) {
            break;
        }
        let mut wake = shift.end_ns.unwrap_or(u64::MAX).min(now.saturating_add(NAP_NS));
        let mut best: Option<(u64, usize)> = None;
        for offset in 0..runners.len() {
            // Beginning elsewhere each time gives streams of equal urgency their turns.
            let i = (turn + offset) % runners.len();
            let Some(runner) = runners.get(i).filter(|r| !r.done) else { continue };
            if runner.due() > now {
                wake = wake.min(runner.due());
            } else if best.is_none_or(|(period, _)| runner.period() < period) {
                best = Some((runner.period(), i));
            }
        }
        match best.and_then(|(_, i)| runners.get_mut(i).map(|r| (i, r))) {
            Some((i, runner)) => {
                turn = i + 1;
                runner.step(now, rng);
                if runner.done
                    && let Some(open) = &shift.open_work
                {
                    open.fetch_sub(1, Ordering::Relaxed);
                }
            }
            None => sleep_until(wake),
        }
    }
    (runners.into_iter().map(|r| r.tally).collect(), now_ns())
}

impl Runner {
    fn new(job: Job, start_ns: u64) -> Self {
        let units = (job.size / job.unit.max(1)).max(1);
        let granule = match job.stream.touch {
            Touch::Line => LINE as usize,
            Touch::Page => job.base_page,
        };
        let touches_per_pass = (job.size / granule.max(1)).max(1);
        let per_pass = match job.stream.kind {
            Kind::Sequential => touches_per_pass,
            Kind::Random => units,
        };
        let pace = match (job.stream.rate, job.stream.kind) {
            (Rate::Max, _) => Pace::Flat { work_start: start_ns, cpu_start: thread_cpu_ns() },
            (Rate::Hz(hz), Kind::Sequential) => {
                Pace::Slots { period: 1e9 / hz, slot: 0, passing: false, last_pass: None }
            }
            (Rate::Hz(hz), Kind::Random) => {
                Pace::Single { mean: 1e9 / (hz * units as f64), next: start_ns as f64, batch: start_ns }
            }
        };
        let tally = Tally { index: job.index, touches_per_pass: per_pass as u64, ..Tally::default() };
        Self { job, pace, start_ns, touches_per_pass, position: 0, tally, done: false }
    }

    /// When there is something to do.
    fn due(&self) -> u64 {
        match self.pace {
            Pace::Slots { period, slot, .. } => self.start_ns + (slot as f64 * period) as u64,
            Pace::Single { batch, .. } => batch,
            Pace::Flat { .. } => 0,
        }
    }

    /// How urgent it is: the shorter the more.
    fn period(&self) -> u64 {
        match self.pace {
            Pace::Slots { period, .. } => period as u64,
            Pace::Single { .. } => BATCH_NS,
            Pace::Flat { .. } => u64::MAX - 1,
        }
    }

    fn step(&mut self, now: u64, rng: &mut Rng) {
        match self.pace {
            Pace::Slots { period, slot, passing, last_pass } => {
                self.step_slot(now, period, slot, passing, last_pass);
            }
            Pace::Single { mean, next, .. } => self.step_single(now, mean, next, rng),
            Pace::Flat { work_start, cpu_start } => self.step_flat(work_start, cpu_start, rng),
        }
    }

    fn step_slot(&mut self, now: u64, period: f64, slot: u64, passing: bool, last_pass: Option<u64>) {
        let (mut slot, mut last_pass) = (slot, last_pass);
        if !passing {
            let current = ((now.saturating_sub(self.start_ns)) as f64 / period) as u64;
            self.tally.missed += current.saturating_sub(slot);
            slot = current.max(slot);
            if let Some(last) = last_pass {
                self.tally.max_gap_ns = self.tally.max_gap_ns.max(now.saturating_sub(last));
            }
            last_pass = Some(now);
        }
        let touches = CHUNK.min(self.touches_per_pass - self.position);
        self.pass(touches);
        let passing = self.position != 0;
        self.pace = Pace::Slots { period, slot: if passing { slot } else { slot + 1 }, passing, last_pass };
    }

    fn step_single(&mut self, now: u64, mean: f64, next: f64, rng: &mut Rng) {
        let (mut next, now_f) = (next, now as f64);
        let oldest = now_f - LATE_NS as f64;
        if next < oldest {
            self.tally.missed += ((oldest - next) / mean) as u64;
            next = oldest;
        }
        let mut touches = 0;
        while next <= now_f && touches < CHUNK {
            touches += 1;
            next += match self.job.stream.gaps {
                Gaps::Uniform => mean,
                Gaps::Poisson => mean * rng.exponential(),
            };
        }
        self.scatter(touches, rng);
        let batch = if next <= now_f { now } else { (next as u64).max(now + BATCH_NS) };
        self.pace = Pace::Single { mean, next, batch };
    }

    fn step_flat(&mut self, work_start: u64, cpu_start: u64, rng: &mut Rng) {
        let per_work = self.job.stream.work_touches;
        let mut touches = CHUNK;
        if per_work > 0 {
            let left = per_work - self.tally.touches % per_work;
            touches = touches.min(usize::try_from(left).unwrap_or(CHUNK));
        }
        match self.job.stream.kind {
            Kind::Sequential => self.pass(touches.min(self.touches_per_pass - self.position)),
            Kind::Random => self.scatter(touches, rng),
        }
        if per_work > 0 && self.tally.touches.is_multiple_of(per_work) {
            let (now, cpu) = (now_ns(), thread_cpu_ns());
            let cpu_ns = cpu.saturating_sub(cpu_start);
            self.tally.work.push(Piece { start_ns: work_start, end_ns: now, cpu_ns });
            self.pace = Pace::Flat { work_start: now, cpu_start: cpu };
            self.done = self.job.stream.units.is_some_and(|n| self.tally.work.len() >= n as usize);
        }
    }

    /// The next `touches` touches of the pass over the range.
    fn pass(&mut self, touches: usize) {
        let Job { base, base_page, ref stream, .. } = self.job;
        for i in self.position..self.position + touches {
            let address = match stream.touch {
                Touch::Line => base + i * LINE as usize,
                // Another cache line in each page: the same one in all would fall into one set of the cache.
                Touch::Page => base + i * base_page + (i * LINE as usize) % base_page,
            };
            touch(address, stream.write);
        }
        self.tally.touches += touches as u64;
        self.position += touches;
        if self.position >= self.touches_per_pass {
            self.position = 0;
        }
    }

    /// Touches of lines drawn at random from the whole range.
    fn scatter(&mut self, touches: usize, rng: &mut Rng) {
        let lines = (self.job.size / LINE as usize) as u64;
        for _ in 0..touches {
            touch(self.job.base + rng.below(lines) as usize * LINE as usize, self.job.stream.write);
        }
        self.tally.touches += touches as u64;
    }
}

#[inline]
fn touch(address: usize, write: bool) {
    let pointer = std::ptr::with_exposed_provenance_mut::<u64>(address);
    // SAFETY: jobs are made from areas that stay mapped, readable and writable for the whole phase, and their
    // positions stay below the range's size; no reference to that memory exists, and all accesses are volatile.
    // Several threads may write to one word at once: nothing ever depends on the value.
    unsafe {
        if write {
            pointer.write_volatile(address as u64 | 1);
        } else {
            pointer.read_volatile();
        }
    }
}

//! The threads that touch memory: each goes through its streams by an absolute schedule.
//!
//! A periodic stream has a slot every 1/rate seconds from the start of the phase; in each it passes once over its
//! range. A pass that comes so late that the next slot has begun is left out and counted, never made up for: two
//! passes in one sampling interval look like one to any monitor. Long passes are cut into chunks between which the
//! thread serves whichever stream has the shortest period.
//!
//! A steady stream spreads its touches evenly instead, and one that comes late goes on from where it is: its schedule is
//! put off, so that it never runs faster than stated.

use crate::clock::{now_ns, sleep_until, thread_cpu_ns};
use crate::control::Words;
use crate::order::{Order, Zipf};
use crate::pattern::{Gaps, Touch};
use crate::plan::{LINE, PhasePlan, Stream};
use crate::quantity::Rate;
use crate::rng::Rng;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Touches between two looks at the clock: some 100 us of cache misses.
const CHUNK: usize = 2048;
/// Random and steady accesses are done in batches this far apart: well below any sampling interval, and far fewer wake-ups.
const BATCH_NS: u64 = 1_000_000;
/// Random and steady accesses that are later than this are left out or put off.
const LATE_NS: u64 = 50_000_000;
/// Passes further apart than this have their course told: a mean rate says too little of a second of them.
const SLOW_NS: f64 = 200e6;
/// Time between two points of a course: some bytes a point, and well below what a window is long.
const POINT_NS: u64 = 5_000_000;
/// Longest sleep, so that a request to stop is seen soon.
const NAP_NS: u64 = 50_000_000;

/// Where streams run: a clock, and memory.
pub(crate) trait Ground {
    /// Nanoseconds of the clock that schedules are by.
    fn now_ns(&self) -> u64;
    /// CPU time of the thread, ns.
    fn cpu_ns(&self) -> u64;
    /// Reads or writes eight bytes. An address of a job that is under way.
    fn touch(&mut self, address: usize, write: bool);
}

/// This machine.
pub(crate) struct Live;

impl Ground for Live {
    fn now_ns(&self) -> u64 {
        now_ns()
    }

    fn cpu_ns(&self) -> u64 {
        thread_cpu_ns()
    }

    #[inline]
    fn touch(&mut self, address: usize, write: bool) {
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
}

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
#[derive(Clone, Debug)]
pub(crate) struct Shift<'a> {
    pub(crate) start_ns: u64,
    pub(crate) end_ns: Option<u64>,
    pub(crate) jobs: Vec<Job>,
    /// Streams of the phase, over all threads, that still have work to do; `None` when none ever had.
    pub(crate) open_work: Option<&'a AtomicUsize>,
    /// Set when the workload is to end.
    pub(crate) stop: &'a AtomicBool,
}

impl<'a> Shift<'a> {
    /// A phase without jobs yet.
    pub(crate) fn of_phase(start_ns: u64, end_ns: Option<u64>, phase: &PhasePlan, words: &'a Words) -> Self {
        let open_work = phase.streams.iter().any(Stream::ends).then_some(&words.open_work);
        Self { start_ns, end_ns, jobs: Vec::new(), open_work, stop: &words.stop }
    }
}

/// What came of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    /// For slow passes, and where the plan wants it: nanoseconds since the start of the phase, touches until then.
    pub(crate) points: Vec<(u64, u64)>,
    /// Whether the points are there only because the plan wants them.
    pub(crate) logged: bool,
}

/// When a piece of work was done and what it took.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
    /// One touch each `gap` ns.
    Steady { gap: f64, next: f64, batch: u64 },
    /// Without a pause.
    Flat { work_start: u64, cpu_start: u64 },
}

/// A stream under way.
pub(crate) struct Runner {
    job: Job,
    pace: Pace,
    start_ns: u64,
    /// Touches in a pass over the range.
    touches_per_pass: usize,
    /// Next touch of the pass.
    position: usize,
    /// For [`Order::Zipf`]: what draws the grain.
    zipf: Option<Zipf>,
    /// Whether the points of its course are kept.
    tracked: bool,
    pub(crate) tally: Tally,
    pub(crate) done: bool,
}

/// Does one phase's share of a thread. Returns what came of each stream and when the last access was over.
pub(crate) fn work(shift: Shift<'_>, rng: &mut Rng) -> (Vec<Tally>, u64) {
    let mut runners: Vec<_> =
        shift.jobs.into_iter().map(|job| Runner::new(job, shift.start_ns, Live.cpu_ns())).collect();
    let (mut turn, mut ground) = (0, Live);
    loop {
        let now = now_ns();
        let work_done = shift.open_work.is_some_and(|n| n.load(Ordering::Relaxed) == 0);
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
                runner.step(now, rng, &mut ground);
                if runner.has_ended()
                    && let Some(open) = shift.open_work
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
    /// Before its first touch, in a thread that has had so much CPU time.
    pub(crate) fn new(job: Job, start_ns: u64, cpu_ns: u64) -> Self {
        let units = (job.size / job.unit.max(1)).max(1);
        let granule = match job.stream.touch {
            Touch::Line => LINE as usize,
            Touch::Page => job.base_page,
        };
        let touches_per_pass = (job.size / granule.max(1)).max(1);
        let (order, steady) = (job.stream.order, job.stream.steady);
        let per_pass = if order.is_random() { units } else { touches_per_pass };
        let pace = match job.stream.rate {
            Rate::Max => Pace::Flat { work_start: start_ns, cpu_start: cpu_ns },
            Rate::Hz(hz) if order.is_random() => {
                Pace::Single { mean: 1e9 / (hz * units as f64), next: start_ns as f64, batch: start_ns }
            }
            Rate::Hz(hz) if steady => Pace::Steady {
                gap: 1e9 / (hz * touches_per_pass as f64),
                next: start_ns as f64,
                batch: start_ns,
            },
            Rate::Hz(hz) => Pace::Slots { period: 1e9 / hz, slot: 0, passing: false, last_pass: None },
        };
        let tracked = !order.is_random()
            && match pace {
                Pace::Slots { period, .. } => period > SLOW_NS,
                Pace::Flat { .. } => job.stream.work_touches == 0,
                _ => true,
            };
        let zipf = match order {
            Order::Zipf(p) => Some(Zipf::new(&p, job.size as u64 / p.grain.max(1))),
            _ => None,
        };
        let logged = job.stream.course && !tracked && !order.is_random();
        let tracked = tracked || logged;
        let tally = Tally { index: job.index, touches_per_pass: per_pass as u64, logged, ..Tally::default() };
        Self { job, pace, start_ns, touches_per_pass, position: 0, zipf, tracked, tally, done: false }
    }

    /// When there is something to do.
    pub(crate) fn due(&self) -> u64 {
        match self.pace {
            Pace::Slots { period, slot, .. } => self.start_ns + (slot as f64 * period) as u64,
            Pace::Single { batch, .. } | Pace::Steady { batch, .. } => batch,
            Pace::Flat { .. } => 0,
        }
    }

    /// How urgent it is: the shorter the more.
    pub(crate) fn period(&self) -> u64 {
        match self.pace {
            Pace::Slots { period, .. } => period as u64,
            Pace::Single { .. } | Pace::Steady { .. } => BATCH_NS,
            Pace::Flat { .. } => u64::MAX - 1,
        }
    }

    /// Whether a phase need not wait for it any more, which it would.
    pub(crate) fn has_ended(&self) -> bool {
        self.done && self.job.stream.ends()
    }

    /// What is due at this moment, or a part of it.
    pub(crate) fn step(&mut self, now: u64, rng: &mut Rng, ground: &mut impl Ground) {
        let apart =
            self.tally.points.last().is_none_or(|p| now.saturating_sub(self.start_ns) >= p.0 + POINT_NS);
        if self.tracked && apart {
            self.point(now);
        }
        self.go(now, rng, ground);
        let passes = self.job.stream.passes.map(|n| u64::from(n) * self.touches_per_pass as u64);
        self.done |= passes.is_some_and(|touches| self.tally.touches >= touches);
        if self.tracked && (self.position == 0 || self.done) {
            self.point(ground.now_ns());
        }
    }

    fn point(&mut self, now: u64) {
        self.tally.points.push((now.saturating_sub(self.start_ns), self.tally.touches));
    }

    fn go(&mut self, now: u64, rng: &mut Rng, ground: &mut impl Ground) {
        match self.pace {
            Pace::Slots { period, slot, passing, last_pass } => {
                self.step_slot(now, (period, slot, passing, last_pass), ground);
            }
            Pace::Single { mean, next, .. } => self.step_single(now, (mean, next), rng, ground),
            Pace::Steady { gap, next, .. } => self.step_steady(now, gap, next, ground),
            Pace::Flat { work_start, cpu_start } => self.step_flat(work_start, cpu_start, rng, ground),
        }
    }

    fn step_slot(
        &mut self,
        now: u64,
        (period, mut slot, passing, mut last_pass): (f64, u64, bool, Option<u64>),
        ground: &mut impl Ground,
    ) {
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
        self.pass(touches, ground);
        let passing = self.position != 0;
        self.pace = Pace::Slots { period, slot: if passing { slot } else { slot + 1 }, passing, last_pass };
    }

    fn step_single(
        &mut self,
        now: u64,
        (mean, mut next): (f64, f64),
        rng: &mut Rng,
        ground: &mut impl Ground,
    ) {
        let now_f = now as f64;
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
        self.scatter(touches, rng, ground);
        let batch = if next <= now_f { now } else { (next as u64).max(now + BATCH_NS) };
        self.pace = Pace::Single { mean, next, batch };
    }

    fn step_steady(&mut self, now: u64, gap: f64, next: f64, ground: &mut impl Ground) {
        let (mut next, now_f) = (next, now as f64);
        let oldest = now_f - LATE_NS as f64;
        if next < oldest {
            self.tally.missed += ((oldest - next) / gap) as u64;
            next = oldest;
        }
        let due = ((now_f - next) / gap).floor() as usize + 1;
        let touches = due.min(CHUNK).min(self.touches_per_pass - self.position);
        self.pass(touches, ground);
        next += touches as f64 * gap;
        let batch = if next <= now_f { now } else { (next as u64).max(now + BATCH_NS) };
        self.pace = Pace::Steady { gap, next, batch };
    }

    fn step_flat(&mut self, work_start: u64, cpu_start: u64, rng: &mut Rng, ground: &mut impl Ground) {
        let per_work = self.job.stream.work_touches;
        let mut touches = CHUNK;
        if per_work > 0 {
            let left = per_work - self.tally.touches % per_work;
            touches = touches.min(usize::try_from(left).unwrap_or(CHUNK));
        }
        if self.job.stream.order.is_random() {
            self.scatter(touches, rng, ground);
        } else {
            self.pass(touches.min(self.touches_per_pass - self.position), ground);
        }
        if per_work > 0 && self.tally.touches.is_multiple_of(per_work) {
            let (now, cpu) = (ground.now_ns(), ground.cpu_ns());
            let cpu_ns = cpu.saturating_sub(cpu_start);
            self.tally.work.push(Piece { start_ns: work_start, end_ns: now, cpu_ns });
            self.pace = Pace::Flat { work_start: now, cpu_start: cpu };
            self.done = self.job.stream.units.is_some_and(|n| self.tally.work.len() >= n as usize);
        }
    }

    /// The next `touches` touches of the pass over the range.
    fn pass(&mut self, touches: usize, ground: &mut impl Ground) {
        let Job { base, base_page, ref stream, size, .. } = self.job;
        let (line, pages) = (LINE as usize, size / base_page.max(1));
        let lines = base_page / line;
        for i in self.position..self.position + touches {
            let address = match (stream.order, stream.touch) {
                (Order::Butterfly { .. }, touch) => {
                    let (visit, line_in_page) = match touch {
                        Touch::Line => (i / lines, i % lines),
                        Touch::Page => (i, i % lines),
                    };
                    let page = stream.order.page(visit as u64, pages as u64, base_page as u64) as usize;
                    base + page * base_page + line_in_page * line
                }
                (_, Touch::Line) => base + i * line,
                // Another cache line in each page: the same one in all would fall into one set of the cache.
                (_, Touch::Page) => base + i * base_page + (i * line) % base_page,
            };
            ground.touch(address, stream.write);
        }
        self.tally.touches += touches as u64;
        self.position += touches;
        if self.position >= self.touches_per_pass {
            self.position = 0;
        }
    }

    /// Touches of lines drawn at random from the whole range.
    fn scatter(&mut self, touches: usize, rng: &mut Rng, ground: &mut impl Ground) {
        let (size, write) = (self.job.size as u64, self.job.stream.write);
        for _ in 0..touches {
            let (start, length) = match (self.job.stream.order, &self.zipf) {
                (Order::Zipf(popularity), Some(zipf)) => {
                    (zipf.draw(rng) * popularity.grain, popularity.grain)
                }
                _ => (0, size),
            };
            let line = start / LINE + rng.below(length / LINE);
            ground.touch(self.job.base + line as usize * LINE as usize, write);
        }
        self.tally.touches += touches as u64;
    }
}

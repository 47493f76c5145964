//! Runs a plan: maps the areas, lets the threads work phase by phase, tells the truth.

use crate::area::{Area, backing};
use crate::clock::{cpu_ns, now_ns, sleep_until};
use crate::pattern::Touch;
use crate::plan::{LINE, PhasePlan, Plan, Stream};
use crate::ranges::{Extent, of_area};
use crate::rng::Rng;
use crate::truth::{
    AreaLine, EndLine, Line, Page, PhaseBegin, PhaseLine, RangeLine, Ready, VERSION, WorkLine, Workload,
};
use crate::worker::{Job, Piece, Shift, Tally, work};
use rustix::io::Errno;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::ScopedJoinHandle;
use std::time::Duration;

/// Why a workload cannot run (on).
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Less memory than the pattern needs.
    #[error(
        "the pattern needs {need} bytes of memory and the machine has {available} to spare; make it smaller with --set"
    )]
    Memory {
        /// Bytes of all areas at their largest.
        need: u64,
        /// MemAvailable.
        available: u64,
    },
    /// An area cannot be mapped or resized.
    #[error("cannot map area {area} with {bytes} bytes: {source}; try smaller sizes with --set")]
    Map {
        /// The area.
        area: String,
        /// Its size.
        bytes: u64,
        /// The kernel's answer.
        #[source]
        source: Errno,
    },
    /// The kernel does not say how memory is backed.
    #[error("cannot read {path}: {source}")]
    Proc {
        /// The file.
        path: &'static str,
        /// The system's answer.
        #[source]
        source: std::io::Error,
    },
    /// No more threads.
    #[error("cannot start {count} threads: {source}")]
    Thread {
        /// How many the plan has.
        count: usize,
        /// The system's answer.
        #[source]
        source: std::io::Error,
    },
    /// The truth cannot be written.
    #[error("cannot write the truth: {0}")]
    Output(#[from] std::io::Error),
    /// A thread of the workload died.
    #[error("a thread of the workload ended early; its panic message is above")]
    Worker,
}

/// What holds the first phase back once everything is mapped.
pub enum Start<'a> {
    /// Nothing.
    Now,
    /// So many nanoseconds.
    After(u64),
    /// Until the function says true; asked every 20 ms.
    When(&'a mut dyn FnMut() -> bool),
}

/// What came of a run, for people; the truth has it all.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Areas whose memory is not backed by the pages that were asked for.
    pub backed_otherwise: Vec<String>,
    /// How long each timed piece of work took, ns.
    pub work_ns: Vec<u64>,
    /// Bytes of all pieces of work together.
    pub work_bytes: u64,
}

impl Outcome {
    /// Throughput and time of a piece of work as one line; `None` when none was timed.
    pub fn work_summary(&self) -> Option<String> {
        let count = self.work_ns.len();
        let sum: f64 = self.work_ns.iter().map(|&n| n as f64).sum();
        if count == 0 || sum <= 0.0 {
            return None;
        }
        let mean = sum / count as f64;
        let squares: f64 = self.work_ns.iter().map(|&n| (n as f64 - mean).powi(2)).sum();
        let deviation = (squares / (count.max(2) - 1) as f64).sqrt();
        let gib = self.work_bytes as f64 / f64::from(1 << 30);
        Some(format!(
            "{count} pieces of work, {gib:.2} GiB in {:.3} s: {:.3} GiB/s; one takes {:.3} ms (standard deviation {:.3} ms)",
            sum / 1e9,
            gib / (sum / 1e9),
            mean / 1e6,
            deviation / 1e6,
        ))
    }
}

type Answer = (Vec<Tally>, u64);

/// Runs `plan` to its end or until `stop` is set, and writes the truth to `out`, each line as soon as it is known.
///
/// # Errors
/// When memory or threads are lacking or `out` cannot be written. What was written up to then stays true.
pub fn run(
    plan: &Plan,
    start: Start<'_>,
    stop: &AtomicBool,
    out: &mut dyn Write,
) -> Result<Outcome, RunError> {
    check_memory(plan)?;
    std::thread::scope(|scope| {
        let (answer, answers) = channel::<Answer>();
        let mut crew = Crew { orders: Vec::new(), handles: Vec::new(), answers };
        for index in 0..plan.threads {
            let (order, inbox) = channel::<Shift<'_>>();
            let answer = answer.clone();
            let rng = Rng::new(plan.seed, index as u64);
            let handle = std::thread::Builder::new()
                .name(format!("touch{index}"))
                .stack_size(256 << 10)
                .spawn_scoped(scope, move || serve(&inbox, &answer, rng))
                .map_err(|source| RunError::Thread { count: plan.threads, source })?;
            crew.orders.push(order);
            crew.handles.push(handle);
        }
        let mut show = Show { plan, areas: Vec::new(), out, outcome: Outcome::default() };
        show.tell(&Line::Workload(workload_line(plan)))?;
        show.map()?;
        show.tell(&Line::Ready(Ready { time_ns: now_ns() }))?;
        wait(start, stop);
        for (index, phase) in plan.phases.iter().enumerate() {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            show.resize(phase)?;
            show.phase(index, phase, &crew, stop)?;
        }
        let reason = if stop.load(Ordering::Relaxed) { "interrupted" } else { "finished" };
        show.tell(&Line::End(EndLine { time_ns: now_ns(), reason: reason.to_owned(), cpu_ns: cpu_ns() }))?;
        Ok(show.outcome)
    })
}

/// The threads and the ways to and from them. Dropping it lets them end.
struct Crew<'scope, 'a> {
    orders: Vec<Sender<Shift<'a>>>,
    handles: Vec<ScopedJoinHandle<'scope, ()>>,
    answers: Receiver<Answer>,
}

impl Crew<'_, '_> {
    fn answer(&self) -> Result<Answer, RunError> {
        loop {
            match self.answers.recv_timeout(Duration::from_millis(500)) {
                Ok(answer) => return Ok(answer),
                Err(RecvTimeoutError::Timeout) if self.handles.iter().any(|h| h.is_finished()) => {
                    return Err(RunError::Worker);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(RunError::Worker),
            }
        }
    }
}

/// A thread's life: one shift after the other until no more can come.
fn serve(inbox: &Receiver<Shift<'_>>, answer: &Sender<Answer>, mut rng: Rng) {
    // Wake-ups within 1 us of the schedule; the default slack of 50 us would show as jitter. Best effort.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1000));
    while let Ok(shift) = inbox.recv() {
        if answer.send(work(shift, &mut rng)).is_err() {
            break;
        }
    }
}

fn workload_line(plan: &Plan) -> Workload {
    Workload {
        version: VERSION,
        pattern: plan.pattern.clone(),
        pid: std::process::id(),
        page: plan.page,
        unit: plan.unit,
        clock: "CLOCK_MONOTONIC".to_owned(),
        seed: plan.seed,
        time_scale: plan.time_scale,
        hot_hz: plan.hot_hz,
        params: serde_json::to_value(&plan.params).unwrap_or_default(),
    }
}

/// Refuses what would drive the machine out of memory.
fn check_memory(plan: &Plan) -> Result<(), RunError> {
    const PATH: &str = "/proc/meminfo";
    let text = std::fs::read_to_string(PATH).map_err(|source| RunError::Proc { path: PATH, source })?;
    let available = text
        .lines()
        .find_map(|l| l.strip_prefix("MemAvailable:")?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    let (need, available) = (plan.max_bytes(), available.map_or(u64::MAX, |kib| kib.saturating_mul(1024)));
    if need > available { Err(RunError::Memory { need, available }) } else { Ok(()) }
}

fn wait(start: Start<'_>, stop: &AtomicBool) {
    const NAP_NS: u64 = 20_000_000;
    let nap = |until: u64| sleep_until(until.min(now_ns().saturating_add(NAP_NS)));
    match start {
        Start::Now => {}
        Start::After(ns) => {
            let until = now_ns().saturating_add(ns);
            while now_ns() < until && !stop.load(Ordering::Relaxed) {
                nap(until);
            }
        }
        Start::When(ready) => {
            while !stop.load(Ordering::Relaxed) && !ready() {
                nap(u64::MAX);
            }
        }
    }
}

/// The areas of a running plan, and where their truth goes.
struct Show<'a> {
    plan: &'a Plan,
    areas: Vec<Area>,
    out: &'a mut dyn Write,
    outcome: Outcome,
}

impl Show<'_> {
    fn tell(&mut self, line: &Line) -> Result<(), RunError> {
        let mut text = serde_json::to_string(line).map_err(std::io::Error::from)?;
        text.push('\n');
        self.out.write_all(text.as_bytes())?;
        Ok(self.out.flush()?)
    }

    fn map(&mut self) -> Result<(), RunError> {
        // The kernel maps downwards: the last comes first so that addresses rise with the index.
        for plan in self.plan.areas.iter().rev() {
            let area = Area::map(plan, self.plan.page, self.plan.unit, self.plan.base_page)
                .map_err(|source| RunError::Map { area: plan.name.clone(), bytes: plan.size, source })?;
            self.areas.push(area);
        }
        self.areas.reverse();
        self.tell_areas(|_| true)
    }

    fn resize(&mut self, phase: &PhasePlan) -> Result<(), RunError> {
        for &(index, size) in &phase.resize {
            if let Some(area) = self.areas.get_mut(index) {
                area.resize(size).map_err(|source| {
                    let area = self.plan.areas.get(index).map(|a| a.name.clone()).unwrap_or_default();
                    RunError::Map { area, bytes: size, source }
                })?;
            }
        }
        if phase.resize.is_empty() {
            return Ok(());
        }
        self.tell_areas(|index| phase.resize.iter().any(|&(i, _)| i == index))
    }

    fn tell_areas(&mut self, which: impl Fn(usize) -> bool) -> Result<(), RunError> {
        const PATH: &str = "/proc/self/smaps";
        let smaps = std::fs::read_to_string(PATH).map_err(|source| RunError::Proc { path: PATH, source })?;
        let lines: Vec<_> = (self.plan.areas.iter().zip(&self.areas).enumerate())
            .filter(|(index, _)| which(*index))
            .map(|(_, (plan, area))| {
                let (start, end) = (area.start() as u64, (area.start() + area.size()) as u64);
                let (resident_bytes, huge_bytes) = backing(&smaps, start, end);
                let huge_wanted = if self.plan.page == Page::Huge { end - start } else { 0 };
                let backed_as_asked = resident_bytes == end - start && huge_bytes == huge_wanted;
                let (name, unit) = (plan.name.clone(), self.plan.unit);
                AreaLine { name, start, end, unit, resident_bytes, huge_bytes, backed_as_asked }
            })
            .collect();
        for line in lines {
            if !line.backed_as_asked && !self.outcome.backed_otherwise.contains(&line.name) {
                self.outcome.backed_otherwise.push(line.name.clone());
            }
            self.tell(&Line::Area(line))?;
        }
        Ok(())
    }

    fn phase<'s>(
        &mut self,
        index: usize,
        phase: &PhasePlan,
        crew: &Crew<'_, 's>,
        stop: &'s AtomicBool,
    ) -> Result<(), RunError> {
        let number = u32::try_from(index).unwrap_or(u32::MAX);
        let start_ns = now_ns();
        let begin = PhaseBegin { index: number, name: phase.name.clone(), start_ns };
        self.tell(&Line::PhaseBegin(begin))?;
        let end_ns = phase.duration.map(|d| start_ns.saturating_add(d));
        let with_work = phase.streams.iter().filter(|s| s.units.is_some()).count();
        let open_work = (with_work > 0).then(|| Arc::new(AtomicUsize::new(with_work)));

        let mut shifts: Vec<Vec<Job>> = crew.orders.iter().map(|_| Vec::new()).collect();
        for (index, stream) in phase.streams.iter().enumerate() {
            if let Some(jobs) = shifts.get_mut(stream.thread) {
                jobs.push(self.job(index, stream)?);
            }
        }
        let mut waiting = 0;
        for (order, jobs) in crew.orders.iter().zip(shifts) {
            if !jobs.is_empty() {
                let open_work = open_work.clone();
                order
                    .send(Shift { start_ns, end_ns, jobs, open_work, stop })
                    .map_err(|_| RunError::Worker)?;
                waiting += 1;
            }
        }
        if waiting == 0 {
            let until = end_ns.map_or(0, |end| end.saturating_sub(start_ns));
            wait(Start::After(until), stop);
        }
        let (mut tallies, mut last_ns) = (Vec::new(), now_ns());
        for _ in 0..waiting {
            let (tally, last) = crew.answer()?;
            tallies.extend(tally);
            last_ns = last_ns.max(last);
        }
        let work_done = open_work.is_some_and(|n| n.load(Ordering::Relaxed) == 0);
        let complete = work_done || !stop.load(Ordering::Relaxed) || end_ns.is_some_and(|end| last_ns >= end);
        tallies.sort_by_key(|t| t.index);
        self.tell_work(number, phase, &tallies)?;
        let seconds = last_ns.saturating_sub(start_ns) as f64 / 1e9;
        let ranges = self.ranges(phase, &tallies, seconds);
        let name = phase.name.clone();
        self.tell(&Line::Phase(PhaseLine {
            index: number,
            name,
            start_ns,
            end_ns: last_ns,
            complete,
            ranges,
        }))
    }

    fn job(&self, index: usize, stream: &Stream) -> Result<Job, RunError> {
        let (Some(area), Ok(offset), Ok(size), Ok(unit), Ok(base_page)) = (
            self.areas.get(stream.area),
            usize::try_from(stream.offset),
            usize::try_from(stream.size),
            usize::try_from(self.plan.unit),
            usize::try_from(self.plan.base_page),
        ) else {
            return Err(RunError::Worker);
        };
        // The plan keeps streams inside their area; what the threads may touch hangs on it.
        assert!(offset.checked_add(size).is_some_and(|end| end <= area.size()), "stream outside its area");
        Ok(Job { index, base: area.start() + offset, size, unit, base_page, stream: stream.clone() })
    }

    fn tell_work(&mut self, phase: u32, plan: &PhasePlan, tallies: &[Tally]) -> Result<(), RunError> {
        for (stream, tally) in plan.streams.iter().zip(tallies) {
            let granule = if stream.touch == Touch::Line { LINE } else { self.plan.base_page };
            let area = self.plan.areas.get(stream.area).map(|a| a.name.clone()).unwrap_or_default();
            let (touches, bytes) = (stream.work_touches, stream.work_touches.saturating_mul(granule));
            for &Piece { start_ns, end_ns, cpu_ns } in &tally.work {
                self.outcome.work_ns.push(end_ns.saturating_sub(start_ns));
                self.outcome.work_bytes = self.outcome.work_bytes.saturating_add(bytes);
                self.tell(&Line::Work(WorkLine {
                    phase,
                    area: area.clone(),
                    start_ns,
                    end_ns,
                    cpu_ns,
                    touches,
                    bytes,
                }))?;
            }
        }
        Ok(())
    }

    fn ranges(&self, phase: &PhasePlan, tallies: &[Tally], seconds: f64) -> Vec<RangeLine> {
        let mut by_area: Vec<Vec<(&Stream, &Tally)>> = self.areas.iter().map(|_| Vec::new()).collect();
        for (stream, tally) in phase.streams.iter().zip(tallies) {
            if let Some(list) = by_area.get_mut(stream.area) {
                list.push((stream, tally));
            }
        }
        let mut lines = Vec::new();
        for ((area, plan), streams) in self.areas.iter().zip(&self.plan.areas).zip(by_area) {
            let (start, size) = (area.start() as u64, area.size() as u64);
            let extent = Extent { name: &plan.name, start, size, unit: self.plan.unit };
            lines.extend(of_area(extent, &streams, seconds, self.plan.hot_hz));
        }
        lines.sort_by_key(|l| l.start);
        lines
    }
}

//! Runs a plan: maps the areas, forks the children, lets all work phase by phase, tells the truth.

use crate::clock::{cpu_ns, now_ns, sleep_until};
use crate::control::{Announced, Control};
use crate::crew::{Areas, Crew};
use crate::family::{Family, Said};
use crate::lines::{area_lines, workload_line};
use crate::pattern::Touch;
use crate::plan::{LINE, PhasePlan, Plan};
use crate::ranges::of_phase;
use crate::truth::{AreaLine, EndLine, Line, PhaseBegin, PhaseLine, ProcessLine, Ready, WorkLine};
use crate::worker::{Piece, Shift, Tally};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Longest time between two looks whether to stop.
const NAP: Duration = Duration::from_millis(20);

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
    /// No page to share with children, no more processes, or no way to talk to them.
    #[error("cannot start the workload's processes: {0}")]
    Fork(#[source] Errno),
    /// A child process failed or died.
    #[error("process {name} of the workload: {how}")]
    Child {
        /// Its name in the pattern.
        name: String,
        /// What became of it.
        how: String,
    },
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

/// Runs `plan` to its end or until `stop` is set, and writes the truth to `out`, each line as soon as it is known. A plan
/// with several processes must be run by a process of one thread, which forks the others; all of them end with it.
///
/// # Errors
/// When memory, threads or processes are lacking or `out` cannot be written. What was written up to then stays true.
pub fn run(
    plan: &Plan,
    start: Start<'_>,
    stop: &AtomicBool,
    out: &mut dyn Write,
) -> Result<Outcome, RunError> {
    check_memory(plan)?;
    let control = Control::new().map_err(RunError::Fork)?;
    let mut areas = Areas::default();
    let mut out = Out { out, outcome: Outcome::default() };
    out.tell(&Line::Workload(workload_line(plan, std::process::id(), "CLOCK_MONOTONIC")))?;
    areas.map(plan, 0)?;
    let mut lines = area_lines(plan, 0, &areas, |_| true)?;
    // Forked while this process has a single thread.
    let mut family = Family::fork(plan, &control, &mut areas)?;
    for &process in &plan.lasting {
        out.process(plan, process, family.pid(process), None)?;
    }
    let mut ready = 1;
    while ready < plan.lasting.len() && !stop.load(Ordering::Relaxed) {
        if let Some((_, Said::Ready(of_child))) = family.listen(NAP)? {
            lines.extend(of_child);
            ready += 1;
        }
    }
    lines.sort_by_key(|(index, _)| *index);
    let extents = lines.iter().map(|(index, line)| (*index, (line.start, line.end))).collect();
    lines.into_iter().try_for_each(|(_, line)| out.area(line))?;
    let mut show = Show { plan, control: &control, areas, extents, family, out };
    std::thread::scope(|scope| {
        let crew = Crew::start(scope, plan, 0)?;
        show.out.tell(&Line::Ready(Ready { time_ns: now_ns() }))?;
        wait(start, stop);
        for (index, phase) in plan.phases.iter().enumerate() {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            show.change(phase)?;
            show.phase(index, phase, &crew, stop)?;
        }
        Ok::<_, RunError>(())
    })?;
    show.family.end();
    let reason = if stop.load(Ordering::Relaxed) { "interrupted" } else { "finished" };
    let end = EndLine { time_ns: now_ns(), reason: reason.to_owned(), cpu_ns: cpu_ns() };
    show.out.tell(&Line::End(end))?;
    Ok(show.out.outcome)
}

/// Memory that a forked process takes beside its areas: page tables, kernel stack, pages it writes to. Measured with `free`:
/// the 1000 processes of `swarm` take 190 MB, of which 102 MB are areas. Rounded up for a large parent's page tables.
const A_PROCESS: u64 = 256 << 10;

/// Refuses what would drive the machine out of memory.
fn check_memory(plan: &Plan) -> Result<(), RunError> {
    const PATH: &str = "/proc/meminfo";
    let text = std::fs::read_to_string(PATH).map_err(|source| RunError::Proc { path: PATH, source })?;
    let available = text
        .lines()
        .find_map(|l| l.strip_prefix("MemAvailable:")?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    let processes = (plan.processes.len() as u64).saturating_mul(A_PROCESS);
    let need = plan.max_bytes().saturating_add(plan.copied_bytes()).saturating_add(processes);
    let (need, available) = (need, available.map_or(u64::MAX, |kib| kib.saturating_mul(1024)));
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

/// Where the truth goes, and what it says for people.
struct Out<'a> {
    out: &'a mut dyn Write,
    outcome: Outcome,
}

impl Out<'_> {
    fn tell(&mut self, line: &Line) -> Result<(), RunError> {
        let mut text = serde_json::to_string(line).map_err(std::io::Error::from)?;
        text.push('\n');
        self.out.write_all(text.as_bytes())?;
        Ok(self.out.flush()?)
    }

    fn process(
        &mut self,
        plan: &Plan,
        process: usize,
        pid: Option<u32>,
        phase: Option<u32>,
    ) -> Result<(), RunError> {
        let name = plan.processes.get(process).cloned().unwrap_or_default();
        pid.map_or(Ok(()), |pid| self.tell(&Line::Process(ProcessLine { name, pid, phase })))
    }

    fn area(&mut self, line: AreaLine) -> Result<(), RunError> {
        if !line.backed_as_asked && !self.outcome.backed_otherwise.contains(&line.name) {
            self.outcome.backed_otherwise.push(line.name.clone());
        }
        self.tell(&Line::Area(line))
    }
}

/// A running plan.
struct Show<'a> {
    plan: &'a Plan,
    control: &'a Control,
    areas: Areas,
    /// First address and first past it of each area, by its index, whichever process has it.
    extents: BTreeMap<usize, (u64, u64)>,
    family: Family<'a>,
    out: Out<'a>,
}

impl<'a> Show<'a> {
    /// Changes areas as the phase wants them, before it begins.
    fn change(&mut self, phase: &PhasePlan) -> Result<(), RunError> {
        let plan = self.plan;
        let failed = |index: usize, bytes, source| {
            let area = plan.areas.get(index).map(|a| a.name.clone()).unwrap_or_default();
            RunError::Map { area, bytes, source }
        };
        for &(index, size) in &phase.resize {
            if let Some(area) = self.areas.get_mut(index) {
                area.resize(size).map_err(|source| failed(index, size, source))?;
            }
        }
        for &index in &phase.discard {
            if let Some(area) = self.areas.get_mut(index) {
                area.discard().map_err(|source| failed(index, area.size() as u64, source))?;
            }
        }
        if phase.resize.is_empty() {
            return Ok(());
        }
        let resized = |index| phase.resize.iter().any(|&(i, _)| i == index);
        for (index, line) in area_lines(plan, 0, &self.areas, resized)? {
            self.extents.insert(index, (line.start, line.end));
            self.out.area(line)?;
        }
        Ok(())
    }

    fn phase(
        &mut self,
        index: usize,
        phase: &PhasePlan,
        crew: &Crew<'_, 'a>,
        stop: &AtomicBool,
    ) -> Result<(), RunError> {
        let number = u32::try_from(index).unwrap_or(u32::MAX);
        self.family.fork_for(index, &mut self.areas)?;
        for &process in &phase.forks {
            self.out.process(self.plan, process, self.family.pid(process), Some(number))?;
        }
        let start_ns = now_ns();
        self.out.tell(&Line::PhaseBegin(PhaseBegin { index: number, name: phase.name.clone(), start_ns }))?;
        let end_ns = phase.duration.map(|d| start_ns.saturating_add(d));
        let with_end = phase.streams.iter().filter(|s| s.ends()).count();
        self.control.announce(Announced { index, start_ns, end_ns }, with_end);
        let shift = Shift::of_phase(start_ns, end_ns, phase, self.control);
        let mut threads = crew.begin(self.plan, phase, &self.areas, &shift)?;
        let mut children: Vec<_> =
            phase.streams.iter().map(|s| s.process).filter(|&process| process != 0).collect();
        children.sort_unstable();
        children.dedup();
        let mut children = children.len();
        if threads == 0 && children == 0 {
            let length = end_ns.map_or(0, |end| end.saturating_sub(start_ns));
            wait(Start::After(length), stop);
        }
        let (mut tallies, mut last_ns) = (Vec::new(), now_ns());
        while threads > 0 || children > 0 {
            if stop.load(Ordering::Relaxed) {
                self.control.stop.store(true, Ordering::Relaxed);
            }
            let answer = if threads > 0 {
                let answer = crew.answer(NAP)?;
                threads -= usize::from(answer.is_some());
                answer
            } else {
                None
            };
            // While own threads work, children are only asked for what they have said already, so that none waits for a
            // full pipe.
            let patience = if threads > 0 { Duration::ZERO } else { NAP };
            let said = if children > 0 { self.family.listen(patience)? } else { None };
            let of_child = match said {
                Some((_, Said::Done { tallies, last_ns })) => {
                    children -= 1;
                    Some((tallies, last_ns))
                }
                _ => None,
            };
            for (tally, last) in answer.into_iter().chain(of_child) {
                tallies.extend(tally);
                last_ns = last_ns.max(last);
            }
        }
        let work_done = with_end > 0 && self.control.open_work.load(Ordering::Relaxed) == 0;
        let complete = work_done || !stop.load(Ordering::Relaxed) || end_ns.is_some_and(|end| last_ns >= end);
        tallies.sort_by_key(|t| t.index);
        self.tell_work(number, phase, &tallies)?;
        let seconds = last_ns.saturating_sub(start_ns) as f64 / 1e9;
        let pid = |process| self.family.pid(process);
        let (ranges, courses) = of_phase(self.plan, phase, &self.extents, pid, &tallies, seconds);
        let (index, name, end_ns) = (number, phase.name.clone(), last_ns);
        self.out.tell(&Line::Phase(PhaseLine {
            index,
            name,
            start_ns,
            end_ns,
            complete,
            ranges,
            courses,
        }))?;
        self.family.await_end(&phase.forks)
    }

    fn tell_work(&mut self, phase: u32, plan: &PhasePlan, tallies: &[Tally]) -> Result<(), RunError> {
        for (stream, tally) in plan.streams.iter().zip(tallies) {
            let granule = if stream.touch == Touch::Line { LINE } else { self.plan.base_page };
            let area = self.plan.areas.get(stream.area).map(|a| a.name.clone()).unwrap_or_default();
            let (touches, bytes) = (stream.work_touches, stream.work_touches.saturating_mul(granule));
            for &Piece { start_ns, end_ns, cpu_ns } in &tally.work {
                self.out.outcome.work_ns.push(end_ns.saturating_sub(start_ns));
                self.out.outcome.work_bytes = self.out.outcome.work_bytes.saturating_add(bytes);
                self.out.tell(&Line::Work(WorkLine {
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
}

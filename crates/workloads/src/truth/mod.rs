//! The truth a workload tells about itself: JSON lines, one [`Line`] each.
//!
//! In order: `workload` (what was asked for), a `process` for each process, an `area` for each mapping once it is populated,
//! `ready`; then for each phase a `process` for each that is forked for it, a `phase_begin` when it starts, `work` for each timed
//! piece of work and `phase` when it is over; `end` last. Setup, the wait for a monitor, changes of an area's size, forks and the
//! ends of processes lie outside phases: nothing is claimed for them.
//!
//! A `phase` covers every byte of every area mapped in it, process by process: its ranges are sorted and disjoint, and a
//! byte in none of them was not mapped. So for any byte of an area and any time in a phase the truth says how often it was
//! accessed. Where a mean rate does not say enough, because a stream moves through its range slowly or prefers some
//! pages, the phase has a [`Course`] besides. [`Truth::coverage`] puts both together.

mod course;
mod coverage;

pub use course::Course;
pub use coverage::{Coverage, Segment};

use serde::{Deserialize, Serialize};
use std::io::BufRead;

/// Version of the lines' meaning. Version 1, which knew one process and no courses, is read too.
pub const VERSION: u32 = 2;

/// The longest line a reader accepts, bytes. 4096 areas in a phase take about 1 MiB, a course some 100 KiB a minute.
const MAX_LINE: u64 = 64 << 20;

/// Size of the pages that back an area.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Page {
    /// Order-0 pages (MADV_NOHUGEPAGE, where large ones come unasked).
    #[default]
    #[serde(rename = "4k")]
    Base,
    /// Transparent huge pages (MADV_HUGEPAGE, aligned to their size).
    #[serde(rename = "thp")]
    Huge,
}

/// How often a range is meant to be accessed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Stated {
    /// Accesses a second to each page; 0: untouched.
    Hz(f64),
    /// As fast as possible.
    Max(Max),
}

/// The word `max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Max {
    /// The word.
    Max,
}

/// How the accesses to one page of a range follow one another; what a sampling monitor can see depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Arrivals {
    /// Never.
    #[default]
    None,
    /// At equal gaps.
    Periodic,
    /// Independent of one another (a Poisson process, or so nearly).
    Random,
}

/// First line: what was asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Workload {
    /// [`VERSION`].
    pub version: u32,
    /// Name of the pattern.
    pub pattern: String,
    /// Process id of the workload.
    pub pid: u32,
    /// Pages asked for.
    pub page: Page,
    /// Size of such a page in bytes: the unit that `rate` is per.
    pub unit: u64,
    /// The clock of all times.
    pub clock: String,
    /// Seed of all random draws.
    pub seed: u64,
    /// Factor by which phases were shortened or stretched.
    pub time_scale: f64,
    /// Rate from which a range is called hot, Hz.
    pub hot_hz: f64,
    /// The pattern's parameters as used.
    pub params: serde_json::Value,
}

/// A process of the workload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessLine {
    /// Its name in the pattern; `main` forks the others.
    pub name: String,
    /// Its process id.
    pub pid: u32,
    /// The phase for which it was forked, by its index: it came just before it began and was gone before the next one did.
    /// `None`: it lived as long as the workload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<u32>,
}

/// A mapping, populated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AreaLine {
    /// The process that mapped it. What the first process maps, its children have too, at the same address.
    #[serde(default)]
    pub pid: u32,
    /// Name in the pattern.
    pub name: String,
    /// First address.
    pub start: u64,
    /// First address past it.
    pub end: u64,
    /// Size of the pages asked for, bytes.
    pub unit: u64,
    /// Bytes resident (smaps `Rss`).
    pub resident_bytes: u64,
    /// Bytes in huge pages (smaps `AnonHugePages`).
    pub huge_bytes: u64,
    /// Whether the area is backed as asked: all of it resident (if its pattern populates it), and all or nothing of it
    /// in huge pages.
    pub backed_as_asked: bool,
    /// Whether it is MAP_SHARED: the same memory in every process.
    #[serde(default)]
    pub shared: bool,
}

/// Setup is over; the first phase begins once the start condition holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// CLOCK_MONOTONIC, ns.
    pub time_ns: u64,
}

/// A phase begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhaseBegin {
    /// Counts phases from 0.
    pub index: u32,
    /// Name in the pattern.
    pub name: String,
    /// CLOCK_MONOTONIC, ns.
    pub start_ns: u64,
}

/// Bytes with one history in a phase.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RangeLine {
    /// Process that has it mapped and did the accesses that are counted here.
    #[serde(default)]
    pub pid: u32,
    /// Area it lies in.
    pub area: String,
    /// First address.
    pub start: u64,
    /// First address past it.
    pub end: u64,
    /// Size of a page, bytes.
    pub unit: u64,
    /// Accesses a second to each page as the pattern has it.
    pub rate: Stated,
    /// Accesses a second to each page as it came to be: touches / pages / length of the phase.
    pub achieved_hz: f64,
    /// How they follow one another.
    pub arrivals: Arrivals,
    /// Whether any access is a write.
    pub write: bool,
    /// Whether the stated rate reaches the pattern's `hot_hz`.
    pub hot: bool,
    /// Accesses to the range in all.
    pub touches: u64,
    /// Passes (periodic) or accesses (random) left out because their time had gone by.
    pub missed: u64,
    /// Longest time between the starts of two passes over the range, ns; 0 for fewer than two passes and for
    /// random accesses.
    pub max_gap_ns: u64,
    /// Whether it is MAP_SHARED: what others do to the same memory counts in their ranges of the same addresses.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shared: bool,
    /// Courses of the phase, by index, that say more of the accesses than their mean rate.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub courses: Vec<usize>,
}

/// A phase is over.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PhaseLine {
    /// Counts phases from 0.
    pub index: u32,
    /// Name in the pattern.
    pub name: String,
    /// First moment, CLOCK_MONOTONIC ns.
    pub start_ns: u64,
    /// No access of the phase comes at or after this moment.
    pub end_ns: u64,
    /// False when a signal cut it short.
    pub complete: bool,
    /// Sorted by process and address, disjoint; every byte mapped.
    pub ranges: Vec<RangeLine>,
    /// Streams of accesses of which a mean rate says too little.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub courses: Vec<Course>,
}

/// A timed piece of work: always the same number of accesses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkLine {
    /// Phase it was done in.
    pub phase: u32,
    /// Area it was done on.
    pub area: String,
    /// CLOCK_MONOTONIC, ns.
    pub start_ns: u64,
    /// CLOCK_MONOTONIC, ns.
    pub end_ns: u64,
    /// CPU time the thread used for it, ns: unlike `end_ns - start_ns` without the time in which others had the CPU.
    pub cpu_ns: u64,
    /// Accesses done.
    pub touches: u64,
    /// Bytes they stand for (a page or a line each).
    pub bytes: u64,
}

/// Last line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndLine {
    /// CLOCK_MONOTONIC, ns.
    pub time_ns: u64,
    /// `finished` or `interrupted`.
    pub reason: String,
    /// CPU time of all its processes, ns.
    pub cpu_ns: u64,
}

/// One line of the truth.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Line {
    /// What was asked for.
    Workload(Workload),
    /// A process of the workload.
    Process(ProcessLine),
    /// A mapping, populated.
    Area(AreaLine),
    /// Setup is over.
    Ready(Ready),
    /// A phase begins.
    PhaseBegin(PhaseBegin),
    /// A phase is over.
    Phase(PhaseLine),
    /// A timed piece of work.
    Work(WorkLine),
    /// The workload ends.
    End(EndLine),
}

/// A whole truth, read back.
#[derive(Clone, Debug, PartialEq)]
pub struct Truth {
    /// What was asked for.
    pub workload: Workload,
    /// Its processes, the first one first.
    pub processes: Vec<ProcessLine>,
    /// Mappings: all as they were before the first phase, then each that changed its size, once a change.
    pub areas: Vec<AreaLine>,
    /// Phases that came to an end, in time order, not overlapping.
    pub phases: Vec<PhaseLine>,
    /// Timed pieces of work.
    pub work: Vec<WorkLine>,
    /// How it ended; `None` when the workload was killed.
    pub end: Option<EndLine>,
}

/// Why a truth cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TruthError {
    /// The stream broke.
    #[error("cannot read the workload's truth: {0}")]
    Io(#[from] std::io::Error),
    /// A line is not one of ours.
    #[error("line {line} of the workload's truth: {message}")]
    Line {
        /// Counts from 1.
        line: usize,
        /// What is wrong with it.
        message: String,
    },
    /// There is no `workload` line.
    #[error("the workload's truth is empty; the workload ended before it began (see its standard error)")]
    Empty,
}

impl Truth {
    /// Reads lines up to the end of the stream. A last line cut short (the workload was killed) is left out.
    ///
    /// # Errors
    /// When the stream breaks, a line is malformed, phases overlap or go backwards, ranges are not sorted, or there
    /// is no `workload` line.
    pub fn read(mut input: impl BufRead) -> Result<Self, TruthError> {
        let mut workload: Option<Workload> = None;
        let mut processes = Vec::new();
        let (mut areas, mut phases, mut work, mut end) =
            (Vec::new(), Vec::<PhaseLine>::new(), Vec::new(), None);
        let mut buffer = Vec::new();
        for number in 1.. {
            buffer.clear();
            let read = std::io::Read::take(&mut input, MAX_LINE).read_until(b'\n', &mut buffer)?;
            let error = |message: String| TruthError::Line { line: number, message };
            if read == 0 || (buffer.last() != Some(&b'\n') && (read as u64) < MAX_LINE) {
                break;
            }
            match serde_json::from_slice(&buffer).map_err(|e| error(e.to_string()))? {
                Line::Workload(w) if !(1..=VERSION).contains(&w.version) => {
                    return Err(error(format!("version {}, this program reads 1 to {VERSION}", w.version)));
                }
                Line::Workload(w) => workload = Some(w),
                Line::Process(p) => processes.push(p),
                Line::Area(a) => areas.push(a),
                Line::Ready(_) | Line::PhaseBegin(_) => {}
                Line::Phase(p) => {
                    check_phase(&p, phases.last()).map_err(error)?;
                    phases.push(p);
                }
                Line::Work(w) => work.push(w),
                Line::End(e) => end = Some(e),
            }
        }
        let workload = workload.ok_or(TruthError::Empty)?;
        // A truth of version 1 names its process once.
        let pid = workload.pid;
        if processes.is_empty() {
            processes.push(ProcessLine { name: "main".to_owned(), pid, phase: None });
        }
        let pids = (areas.iter_mut().map(|a| &mut a.pid))
            .chain(phases.iter_mut().flat_map(|p| &mut p.ranges).map(|r| &mut r.pid));
        pids.filter(|p| **p == 0).for_each(|p| *p = pid);
        Ok(Self { workload, processes, areas, phases, work, end })
    }
}

fn check_phase(phase: &PhaseLine, last: Option<&PhaseLine>) -> Result<(), String> {
    if phase.end_ns < phase.start_ns || last.is_some_and(|l| l.end_ns > phase.start_ns) {
        return Err(format!("phase {} goes back in time", phase.index));
    }
    let mut at = (0, 0);
    for range in &phase.ranges {
        if (range.pid, range.start) < at || range.end <= range.start {
            return Err(format!("the ranges of phase {} are not sorted and disjoint", phase.index));
        }
        if !(range.achieved_hz.is_finite() && range.achieved_hz >= 0.0) {
            return Err(format!("a rate of phase {} is no number", phase.index));
        }
        if range.courses.iter().any(|&course| course >= phase.courses.len()) {
            return Err(format!("a range of phase {} has a course that is not there", phase.index));
        }
        at = (range.pid, range.end);
    }
    if let Some(reason) = phase.courses.iter().find_map(Course::contradiction) {
        return Err(format!("a course of phase {} {reason}", phase.index));
    }
    Ok(())
}

#[cfg(test)]
mod tests;

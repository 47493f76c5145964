//! The `refs` backend: `/proc/PID/clear_refs` and the Referenced lines of `/proc/PID/smaps`, without root.
//!
//! It sees whole mappings, so regions are mappings and their rates are means over all their pages. Both files walk the
//! whole page table, about 54 ns a page, and hold mmap_lock for reading meanwhile: a look at 1 GiB of small pages costs
//! some 14 ms. A *round* on a target is: clear; look one sampling interval later; look again when the round ends. Rounds
//! follow each other as fast as the overhead budget allows, at most every other sampling interval; for a big process
//! that is once in seconds, and then snapshots come as rarely. See [`estimate`] for what the two looks tell.

mod estimate;
mod smaps;

use crate::clock;
use crate::process::{Process, ProcessError};
use crate::session::monotonic_ns;
use crate::source::{Counters, Source, SourceError};
use estimate::{Look, Mapping};
use isotherm_damon::{AddrRange, Attrs, AttrsError, Snapshot, TargetId, TargetSnapshot};
use smaps::Use;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

/// The `refs` backend at work.
#[derive(Debug)]
pub struct Refs {
    attrs: Attrs,
    overhead: f64,
    targets: Vec<Target>,
    /// When the snapshot under way began.
    start_ns: Option<u64>,
    /// When the round under way ends.
    round_end_ns: u64,
    round_cost: Duration,
    rounds: u64,
    round_ns: u64,
    short_ns: u64,
    /// Bytes looked at so far, and those of them in files that others map too.
    resident: u64,
    others: u64,
    counters: Counters,
    chunk: Vec<u8>,
    scratch: Vec<Use>,
}

#[derive(Debug)]
struct Target {
    id: TargetId,
    process: Arc<Process>,
    phase: Phase,
    short: Vec<Use>,
    short_intervals: f64,
    mappings: Vec<Mapping>,
    gone: bool,
    /// Why it cannot be looked at any more, until the session took notice.
    lost: Option<ProcessError>,
}

/// Where in its round a target is. Times are when its last clearing began: the walk that clears and the walk that
/// looks go at the same pace, so what lies between their beginnings is the window of every page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Clear,
    Short { cleared_ns: u64 },
    Long { cleared_ns: u64 },
}

/// Room for a few hundred lines; the kernel gives out a page at a time.
const CHUNK: usize = 64 << 10;

impl Refs {
    /// A backend without targets, to spend at most `overhead` of one CPU (0.01 is 1 %; 0 means no ceiling).
    ///
    /// # Errors
    /// When the attributes are not valid.
    pub fn new(attrs: Attrs, overhead: f64) -> Result<Self, AttrsError> {
        attrs.validate()?;
        Ok(Self {
            attrs,
            overhead,
            targets: Vec::new(),
            start_ns: None,
            round_end_ns: 0,
            round_cost: Duration::ZERO,
            rounds: 0,
            round_ns: 0,
            short_ns: 0,
            resident: 0,
            others: 0,
            counters: Counters::default(),
            chunk: Vec::new(),
            scratch: Vec::new(),
        })
    }

    fn sample_ns(&self) -> u64 {
        as_ns(self.attrs.sample).max(1)
    }

    /// Shortest time from one clearing to the next that keeps to the budget.
    fn round_length_ns(&self) -> u64 {
        let shortest = 2 * self.sample_ns();
        if self.overhead <= 0.0 {
            return shortest;
        }
        // Too big a float becomes the largest integer.
        shortest.max((self.round_cost.as_nanos() as f64 / self.overhead) as u64)
    }

    /// Clears the target's Accessed bits or looks at them, as its phase has it.
    fn step(&mut self, index: usize) {
        let page_size = rustix::param::page_size() as u64;
        let sample_ns = self.sample_ns() as f64;
        let Some(target) = self.targets.get_mut(index) else { return };
        let now = monotonic_ns();
        let result = match target.phase {
            Phase::Clear => clear(&target.process).map(|()| {
                target.phase = Phase::Short { cleared_ns: now };
                self.counters.clears += target.mappings.iter().map(|m| m.resident / page_size).sum::<u64>();
            }),
            Phase::Short { cleared_ns } => {
                self.short_ns = now.saturating_sub(cleared_ns);
                target.short_intervals = self.short_ns as f64 / sample_ns;
                target.phase = Phase::Long { cleared_ns };
                look(&target.process, &mut self.chunk, &mut target.short)
            }
            Phase::Long { cleared_ns } => {
                target.phase = Phase::Clear;
                let intervals = now.saturating_sub(cleared_ns) as f64 / sample_ns;
                look(&target.process, &mut self.chunk, &mut self.scratch).map(|()| {
                    self.resident += self.scratch.iter().map(|u| u.resident).sum::<u64>();
                    self.others += self.scratch.iter().map(|u| u.others).sum::<u64>();
                    target.take(&self.scratch, intervals, page_size);
                })
            }
        };
        if let Err(error) = result {
            // Whoever follows the targets learns of its end by itself; that it became another user's is told.
            target.gone = true;
            target.lost = Some(error).filter(|error| !error.is_gone());
        }
    }

    fn end_round(&mut self, now_ns: u64, sink: &mut dyn FnMut(&Snapshot)) {
        self.rounds += 1;
        let start_ns = self.start_ns.unwrap_or(now_ns);
        let elapsed = now_ns.saturating_sub(start_ns);
        let aggr_ns = as_ns(self.attrs.aggr).max(1);
        // Within half a sampling interval of its end an aggregation is over: rounds need not divide it evenly.
        if elapsed.saturating_add(self.sample_ns() / 2) < aggr_ns {
            return;
        }
        let max_nr_accesses = self.attrs.max_nr_accesses();
        let aggregations = u32::try_from((elapsed + aggr_ns / 2) / aggr_ns).unwrap_or(u32::MAX).max(1);
        let share = (self.attrs.max_nr_regions / self.targets.len().max(1)).max(1);
        let targets: Vec<TargetSnapshot> = self
            .targets
            .iter_mut()
            .filter(|target| !target.gone)
            .map(|target| {
                TargetSnapshot::new(
                    target.id,
                    estimate::regions(&mut target.mappings, max_nr_accesses, aggregations, share),
                )
            })
            .collect();
        let snapshot =
            Snapshot { start_ns, end_ns: now_ns, sample_ns: self.sample_ns(), max_nr_accesses, targets };
        let regions = snapshot.nr_regions() as u64;
        // A look is a check of each region. DAMON would have checked each in every sampling interval.
        self.counters.checks += regions.saturating_mul(2 * self.rounds);
        self.counters.max_checks_per_sample = self.counters.max_checks_per_sample.max(regions);
        let intervals = elapsed / self.sample_ns();
        self.counters.checks_cut += regions.saturating_mul(intervals.saturating_sub(2 * self.rounds));
        self.rounds = 0;
        self.start_ns = Some(now_ns);
        sink(&snapshot);
    }
}

impl Target {
    /// Takes in the second look of a round.
    fn take(&mut self, now: &[Use], intervals: f64, page_size: u64) {
        let mut before = std::mem::take(&mut self.mappings).into_iter().peekable();
        let mut short = self.short.iter().peekable();
        self.mappings.reserve(now.len());
        for &long in now {
            // A mapping is the same if it starts where it did: heaps and stacks grow.
            while before.next_if(|m| m.range.start < long.range.start).is_some() {}
            while short.next_if(|s| s.range.start < long.range.start).is_some() {}
            let mut mapping = before
                .next_if(|m| m.range.start == long.range.start)
                .map_or_else(|| Mapping::new(long), |m| m.now(long));
            if let Some(short) = short.next_if(|s| s.range.start == long.range.start) {
                let look = Look {
                    referenced: short.referenced,
                    resident: short.resident,
                    intervals: self.short_intervals,
                };
                mapping.saw(look, page_size);
                mapping.saw_short(look.per_interval(page_size));
            }
            let look = Look { referenced: long.referenced, resident: long.resident, intervals };
            mapping.saw(look, page_size);
            mapping.saw_long(look.per_interval(page_size));
            self.mappings.push(mapping);
        }
    }
}

impl Source for Refs {
    fn name(&self) -> &'static str {
        "refs"
    }

    fn add_target(&mut self, id: TargetId, process: &Arc<Process>) -> Result<(), SourceError> {
        // Told now, while there is someone to read it.
        process.check_readable()?;
        if let Err(source) = OpenOptions::new().write(true).open(process.memory_path("clear_refs")) {
            if source.kind() == std::io::ErrorKind::NotFound && process.is_alive() {
                return Err(SourceError::Unavailable {
                    what: "refs".to_owned(),
                    reason: "this kernel has no /proc/PID/clear_refs".to_owned(),
                    remedy: "it needs CONFIG_PROC_PAGE_MONITOR; every distribution's kernel has it"
                        .to_owned(),
                });
            }
            let what = "and clear its Referenced bits (/proc/PID/clear_refs)";
            return Err(ProcessError::from_io(process.pid(), what, source).into());
        }
        self.targets.push(Target {
            id,
            process: Arc::clone(process),
            phase: Phase::Clear,
            short: Vec::new(),
            short_intervals: 0.0,
            mappings: Vec::new(),
            gone: false,
            lost: None,
        });
        Ok(())
    }

    fn remove_target(&mut self, id: TargetId) {
        self.targets.retain(|target| target.id != id);
    }

    /// What it looks at, smaps, tells the mappings anew each time.
    fn set_ranges(&mut self, _id: TargetId, _ranges: &[AddrRange]) {}

    fn execed(&mut self, id: TargetId) {
        for target in self.targets.iter_mut().filter(|target| target.id == id) {
            (target.phase, target.mappings) = (Phase::Clear, Vec::new());
        }
    }

    fn take_lost(&mut self) -> Vec<(TargetId, SourceError)> {
        let lost = self.targets.iter_mut();
        lost.filter_map(|target| Some((target.id, target.lost.take()?.into()))).collect()
    }

    fn tick(&mut self, now_ns: u64, sink: &mut dyn FnMut(&Snapshot)) -> Result<u64, SourceError> {
        self.chunk.resize(CHUNK, 0);
        if self.targets.iter().all(|target| target.gone) {
            self.start_ns = None;
            return Ok(now_ns.saturating_add(as_ns(self.attrs.aggr)));
        }
        if self.start_ns.is_none() {
            self.start_ns = Some(now_ns);
            self.round_ns = self.round_length_ns();
            self.round_end_ns = now_ns.saturating_add(self.round_ns);
        }
        let sample_ns = self.sample_ns();
        let before = clock::of_this_thread();
        let mut round_over = true;
        for index in 0..self.targets.len() {
            let Some(target) = self.targets.get(index).filter(|target| !target.gone) else { continue };
            let due = match target.phase {
                Phase::Clear => now_ns,
                Phase::Short { cleared_ns } => cleared_ns.saturating_add(sample_ns),
                Phase::Long { .. } => self.round_end_ns,
            };
            if due <= now_ns {
                self.step(index);
            }
            round_over &= self.targets.get(index).is_none_or(|t| t.gone || t.phase == Phase::Clear);
        }
        self.round_cost += clock::of_this_thread().saturating_sub(before);
        if round_over {
            let now = monotonic_ns().max(now_ns);
            self.end_round(now, sink);
            let before = clock::of_this_thread();
            for index in 0..self.targets.len() {
                if self.targets.get(index).is_some_and(|t| !t.gone && t.phase == Phase::Clear) {
                    self.step(index);
                }
            }
            // What the round that just ended cost says how long the next must be.
            self.round_ns = self.round_length_ns();
            self.round_end_ns = now.saturating_add(self.round_ns);
            self.round_cost = clock::of_this_thread().saturating_sub(before);
        }
        let due = |target: &Target| match target.phase {
            Phase::Clear => now_ns,
            Phase::Short { cleared_ns } => cleared_ns.saturating_add(sample_ns),
            Phase::Long { .. } => self.round_end_ns,
        };
        Ok(self.targets.iter().filter(|t| !t.gone).map(due).min().unwrap_or(self.round_end_ns))
    }

    fn attrs(&self) -> Attrs {
        self.attrs
    }

    fn counters(&self) -> Counters {
        self.counters
    }

    fn is_coarse(&self) -> bool {
        true
    }

    fn blind_spots(&mut self) -> Vec<String> {
        let ms = |ns: u64| ns as f64 / 1e6;
        let mut spots = vec![
            "whole mappings only: a rate is the mean over all resident pages of a mapping".to_owned(),
            "pages whose translation stays in a CPU's TLB between two looks seem idle: clear_refs flushes no TLB"
                .to_owned(),
            "clearing makes pages look older to the kernel's own reclaim".to_owned(),
        ];
        if self.others > 0 {
            spots.push(format!(
                "file pages that other processes map too are left out, since their use cannot be told from the target's: \
                 {:.1} % of the resident memory looked at",
                self.others as f64 / self.resident.max(1) as f64 * 100.0
            ));
        }
        if self.round_ns != 0 {
            spots.push(format!(
                "accesses were counted over {:.1} ms and once more over the rest of every {:.0} ms, as often as the \
                 overhead allows",
                ms(self.short_ns),
                ms(self.round_ns)
            ));
        }
        spots
    }
}

fn clear(process: &Process) -> Result<(), ProcessError> {
    // Finds it where the first thread, or the one that was found, has ended: clearing would do nothing, and not say so.
    process.pages()?;
    let written = OpenOptions::new()
        .write(true)
        .open(process.memory_path("clear_refs"))
        .and_then(|mut f| f.write_all(b"1"));
    process.still_alive()?;
    written.map_err(|source| ProcessError::from_io(process.pid(), "/proc/PID/clear_refs", source))
}

fn look(process: &Process, chunk: &mut [u8], into: &mut Vec<Use>) -> Result<(), ProcessError> {
    process.pages()?;
    let read = File::open(process.memory_path("smaps")).and_then(|file| smaps::read(file, chunk, into));
    process.still_alive()?;
    read.map_err(|source| ProcessError::from_io(process.pid(), "/proc/PID/smaps", source))
}

fn as_ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;

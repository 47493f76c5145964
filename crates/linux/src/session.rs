//! Observing live targets: the loop that drives a [`Source`], follows the targets, and tells an [`Observer`].
//!
//! One thread runs it. The observer is called from this thread and must not block: what takes time belongs behind a
//! queue of its own.

use crate::maps::Maps;
use crate::process::Process;
use crate::source::{Counters, Source, SourceError};
use crate::targets::{EndReason, Event, TargetError, Tracker};
use isotherm_damon::{Snapshot, TargetId};
use rustix::thread::clock_nanosleep_absolute;
use rustix::time::{ClockId, Timespec, clock_gettime};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Cost and cuts of a stretch of time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// When it ended, ns of CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// How long it was, ns.
    pub wall_ns: u64,
    /// CPU time of this whole process in it, ns.
    pub cpu_ns: u64,
    /// What the source did in it. `max_checks_per_sample` is that of the whole session.
    pub counters: Counters,
    /// Resident pages of all targets at its end.
    pub resident_pages: u64,
}

/// Is told what a session sees. Every method does nothing unless implemented.
pub trait Observer {
    /// A target appeared.
    fn target(&mut self, _id: TargetId, _process: &Process, _parent: Option<TargetId>, _time_ns: u64) {}
    /// Its mappings were read for the first time or changed.
    fn mappings(&mut self, _id: TargetId, _maps: &Maps, _time_ns: u64) {}
    /// It runs another program now.
    fn execed(&mut self, _id: TargetId, _process: &Process, _time_ns: u64) {}
    /// An aggregation ended.
    fn snapshot(&mut self, _snapshot: &Snapshot) {}
    /// A target is gone.
    fn target_end(&mut self, _id: TargetId, _reason: EndReason, _time_ns: u64) {}
    /// A child or a member of a cgroup cannot be observed.
    fn refused(&mut self, _pid: u32, _why: &str) {}
    /// About once a second, and at the end.
    fn cost(&mut self, _cost: &Cost) {}
}

/// Why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The time asked for is over.
    Duration,
    /// The caller's stop condition held.
    Stopped,
    /// No target is left.
    NoTargets,
}

/// How long to observe, and how often to look around.
#[derive(Clone, Copy, Debug)]
pub struct SessionOptions {
    /// For how long; `None`: until stopped or all targets are gone.
    pub duration: Option<Duration>,
    /// How often to look for new targets and changed mappings.
    pub update: Duration,
    /// Share of one CPU that reading mappings may take.
    pub overhead: f64,
}

struct Observed {
    id: TargetId,
    process: Arc<Process>,
    maps: Maps,
}

/// A session: a source at work on what a tracker follows.
pub struct Session<'a> {
    source: Box<dyn Source>,
    tracker: Tracker,
    options: SessionOptions,
    observer: &'a mut dyn Observer,
    /// By pid.
    observed: BTreeMap<u32, Observed>,
    /// Pids that have named a target.
    used: BTreeSet<u32>,
    next_reused: u64,
    cost_at_ns: u64,
    cost_cpu: Duration,
    cost_counters: Counters,
}

/// CLOCK_MONOTONIC in nanoseconds.
pub fn monotonic_ns() -> u64 {
    to_ns(clock_gettime(ClockId::Monotonic))
}

fn to_ns(time: Timespec) -> u64 {
    let (s, ns) = (u64::try_from(time.tv_sec).unwrap_or(0), u64::try_from(time.tv_nsec).unwrap_or(0));
    s * 1_000_000_000 + ns
}

fn process_cpu() -> Duration {
    Duration::from_nanos(to_ns(clock_gettime(ClockId::ProcessCPUTime)))
}

/// Longest sleep, so that a stop is heeded soon also when sampling intervals are long.
const MAX_SLEEP_NS: u64 = 100_000_000;
/// How soon to look for an exited target: cheap, and a command's end should end the recording at once.
const COST_PERIOD_NS: u64 = 1_000_000_000;

impl<'a> Session<'a> {
    /// A session over what `tracker` follows.
    pub fn new(
        source: Box<dyn Source>,
        tracker: Tracker,
        options: SessionOptions,
        observer: &'a mut dyn Observer,
    ) -> Self {
        Self {
            source,
            tracker,
            options,
            observer,
            observed: BTreeMap::new(),
            used: BTreeSet::new(),
            next_reused: 1 << 32,
            cost_at_ns: monotonic_ns(),
            cost_cpu: process_cpu(),
            cost_counters: Counters::default(),
        }
    }

    /// Takes up the targets there are already, so that a held command can be released with its monitor in place.
    ///
    /// # Errors
    /// When the backend cannot go on.
    pub fn start(&mut self) -> Result<(), SourceError> {
        self.look_around(monotonic_ns())
    }

    /// Observes until the duration is over, `stop` says so, or no target is left.
    ///
    /// # Errors
    /// When the backend cannot go on; what was told to the observer until then stands.
    pub fn run(&mut self, stop: &mut dyn FnMut() -> bool) -> Result<Ended, SourceError> {
        let start = monotonic_ns();
        let deadline = self.options.duration.map(|d| start.saturating_add(as_ns(d)));
        let update_ns = as_ns(self.options.update).max(1_000_000);
        let mut look_at = start + update_ns.min(COST_PERIOD_NS / 10);
        let ended = loop {
            let now = monotonic_ns();
            if stop() {
                break Ok(Ended::Stopped);
            }
            if deadline.is_some_and(|d| now >= d) {
                break Ok(Ended::Duration);
            }
            if now >= look_at {
                look_at = now + update_ns;
                if let Err(error) = self.look_around(now) {
                    break Err(error);
                }
            }
            if self.observed.is_empty() && self.tracker.is_finished() {
                break Ok(Ended::NoTargets);
            }
            let observer = &mut *self.observer;
            let due = match self.source.tick(now, &mut |snapshot| observer.snapshot(snapshot)) {
                Ok(due) => due,
                // The only target's death shows as an error of some backends; the tracker tells it properly.
                Err(error) => match self.look_around(now) {
                    Ok(()) if self.observed.is_empty() => break Ok(Ended::NoTargets),
                    _ => break Err(error),
                },
            };
            self.listen_to_source(now);
            if now.saturating_sub(self.cost_at_ns) >= COST_PERIOD_NS {
                self.tell_cost(now);
                self.notice_ends(now)?;
            }
            let wake = due.min(look_at).min(deadline.unwrap_or(u64::MAX)).min(now + MAX_SLEEP_NS);
            sleep_until(wake);
        };
        self.tell_cost(monotonic_ns());
        ended
    }

    /// What the source cannot see.
    pub fn blind_spots(&mut self) -> Vec<String> {
        self.source.blind_spots()
    }

    /// What the source did so far.
    pub fn counters(&self) -> Counters {
        self.source.counters()
    }

    /// Between two full looks, at least notices when everything has ended.
    fn notice_ends(&mut self, now: u64) -> Result<(), SourceError> {
        if self.observed.values().all(|o| !o.process.is_alive()) { self.look_around(now) } else { Ok(()) }
    }

    fn look_around(&mut self, now: u64) -> Result<(), SourceError> {
        for event in self.tracker.poll() {
            match event {
                Event::Appeared { process, parent } => self.appeared(process, parent, now)?,
                Event::Execed { pid } => {
                    self.execed(pid, now);
                }
                Event::Ended { pid, reason } => {
                    if let Some(observed) = self.observed.remove(&pid) {
                        self.source.remove_target(observed.id);
                        self.observer.target_end(observed.id, reason, now);
                    }
                }
                Event::Refused { pid, error } => self.observer.refused(pid, &refusal(&error)),
            }
        }
        for observed in self.observed.values_mut() {
            // A process on its way out has no mappings to read; its end is told by the next poll.
            let Ok((pages, _)) = observed.process.pages() else { continue };
            if observed.maps.is_stale(pages)
                && observed.maps.read(&observed.process).is_ok_and(|changed| changed)
            {
                self.source.set_ranges(observed.id, observed.maps.ranges());
                self.observer.mappings(observed.id, &observed.maps, now);
            }
        }
        Ok(())
    }

    fn execed(&mut self, pid: u32, now: u64) {
        if let Some(observed) = self.observed.get_mut(&pid) {
            observed.maps.invalidate();
            self.source.execed(observed.id);
            self.observer.execed(observed.id, &observed.process, now);
        }
    }

    /// What the source found out about single targets.
    fn listen_to_source(&mut self, now: u64) {
        for id in self.source.take_execed() {
            if let Some((&pid, observed)) = self.observed.iter_mut().find(|(_, o)| o.id == id) {
                self.tracker.knows_exec(pid);
                // Its new mappings do not wait for the next look around.
                observed.maps.invalidate();
                self.execed(pid, now);
            }
        }
        for (id, error) in self.source.take_lost() {
            let Some((&pid, _)) = self.observed.iter().find(|(_, o)| o.id == id) else { continue };
            self.source.remove_target(id);
            self.observed.remove(&pid);
            self.tracker.give_up(pid);
            self.observer.refused(pid, &error.to_string());
            self.observer.target_end(id, EndReason::Refused, now);
        }
    }

    fn appeared(&mut self, process: Arc<Process>, parent: Option<u32>, now: u64) -> Result<(), SourceError> {
        let pid = u32::try_from(process.pid().as_raw_nonzero().get()).unwrap_or(0);
        // A pid that comes back is another target.
        let id = if self.used.insert(pid) {
            TargetId(u64::from(pid))
        } else {
            self.next_reused += 1;
            TargetId(self.next_reused)
        };
        let mut maps = Maps::new();
        let mapped = maps.read(&process);
        match self.source.add_target(id, &process) {
            Ok(()) => {}
            Err(SourceError::Process { source }) if source.is_gone() => return Ok(()),
            Err(SourceError::Process { source }) if !self.observed.is_empty() => {
                self.observer.refused(pid, &source.to_string());
                return Ok(());
            }
            Err(error) => return Err(error),
        }
        let parent = parent.and_then(|p| self.observed.get(&p)).map(|o| o.id);
        self.observer.target(id, &process, parent, now);
        if mapped.is_ok() {
            self.source.set_ranges(id, maps.ranges());
            self.observer.mappings(id, &maps, now);
        }
        self.observed.insert(pid, Observed { id, process, maps });
        Ok(())
    }

    fn tell_cost(&mut self, now: u64) {
        let cpu = process_cpu();
        let total = self.source.counters();
        let before = self.cost_counters;
        let resident = self.observed.values().map(|o| o.process.resident_pages().unwrap_or(0)).sum();
        self.observer.cost(&Cost {
            time_ns: now,
            wall_ns: now.saturating_sub(self.cost_at_ns),
            cpu_ns: as_ns(cpu.saturating_sub(self.cost_cpu)),
            counters: Counters {
                checks: total.checks - before.checks,
                max_checks_per_sample: total.max_checks_per_sample,
                clears: total.clears - before.clears,
                checks_cut: total.checks_cut - before.checks_cut,
                clears_cut: total.clears_cut - before.clears_cut,
                samples_missed: total.samples_missed - before.samples_missed,
            },
            resident_pages: resident,
        });
        (self.cost_at_ns, self.cost_cpu, self.cost_counters) = (now, cpu, total);
    }
}

fn refusal(error: &TargetError) -> String {
    error.to_string()
}

fn as_ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn sleep_until(ns: u64) {
    let until = Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 };
    // A signal ends it early; the loop's own conditions decide what then.
    let _ = clock_nanosleep_absolute(ClockId::Monotonic, &until);
}

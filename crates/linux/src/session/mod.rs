//! Observing live targets: the loop that drives a [`Source`], owns the targets, and tells observers.
//!
//! One thread runs it. For each target the session holds one [`Process`], which is one file descriptor, and one list of
//! mappings, and lends both to the source. Beside sampling, it takes in processes and reads mappings, in small steps
//! under shares of the overhead budget (`chores.rs`). Observers sit behind bounded queues (`feed.rs`), on threads of their
//! own: nothing is converted, written or waited for here.

mod bucket;
mod chores;
mod feed;
mod intake;
mod observer;

pub use crate::clock::monotonic_ns;
pub use feed::{Feed, FeedLimits};
pub use observer::{Cost, Observer, Refusals, SessionEvent};

use crate::clock::{self, to_ns};
use crate::maps::Maps;
use crate::process::{Process, raise_descriptor_limit, raw};
use crate::schemes::{Engine, SharedEngine, lock};
use crate::source::{Counters, ListedProcess, Source, SourceError};
use crate::targets::{EndReason, Event, Tracker};
use bucket::Bucket;
use chores::{Chores, READING, TAKING_IN};
use feed::{Known, Outlets};
use isotherm_damon::{Attrs, Ran, TargetId};
use rustix::thread::clock_nanosleep_absolute;
use rustix::time::{ClockId, Timespec, clock_gettime};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

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
    /// How often to look for new targets and changed mappings, at most.
    pub update: Duration,
    /// The whole overhead budget, a share of one CPU (0.01 is 1 %; 0: no ceiling). 35 % of it may go into taking
    /// in processes (5 % as long as many wait and none of them goes on running), 10 % into reading mappings that changed.
    pub overhead: f64,
    /// CPU time that this process spent on the session's behalf before there was one: told with the first costs, and made
    /// good in the seconds that follow.
    pub cpu_before: Duration,
    /// All that this process does is this session's: what threads that observe nothing use of the CPU comes out of the budget as well.
    pub alone: bool,
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self {
            duration: None,
            update: Attrs::default().update,
            overhead: 0.01,
            cpu_before: Duration::ZERO,
            alone: false,
        }
    }
}

/// A target of the session.
#[derive(Debug)]
struct Observed {
    pid: u32,
    process: Arc<Process>,
    parent: Option<TargetId>,
    maps: Maps,
    resident_pages: u64,
    /// When it was taken in, or executed another program.
    began_ns: u64,
    next_look_ns: u64,
    /// What it had run by the last list of all processes, and when its mappings are read at the earliest if such a list tells that
    /// they changed.
    ran: Option<Ran>,
    next_read_ns: u64,
}

/// A session: a source at work on what a tracker follows.
pub struct Session {
    source: Box<dyn Source>,
    tracker: Tracker,
    options: SessionOptions,
    outlets: Outlets,
    targets: BTreeMap<TargetId, Observed>,
    by_pid: BTreeMap<u32, TargetId>,
    /// Targets that died, until the tracker tells how, in its order.
    ending: VecDeque<(u32, TargetId, u64)>,
    /// Pids that have named a target.
    used: BTreeSet<u32>,
    next_reused: u64,
    chores: Chores,
    /// All processes of the machine, when that was last asked for, and when it may be again.
    listed: Vec<ListedProcess>,
    list_at: u64,
    busiest: Vec<TargetId>,
    taking_in: Bucket,
    reading: Bucket,
    refusals: Option<Refusals>,
    observed_any: bool,
    /// Start of the first snapshot and end of the last one, ns.
    covered: Option<(u64, u64)>,
    /// Why the source refused the first target, for when it takes none.
    first_refusal: Option<SourceError>,
    attrs: Attrs,
    schemes: Option<SharedEngine>,
    /// CPU time of acting as of the last costs.
    acted: Duration,
    /// CPU time of other threads up to the last costs.
    beside: Duration,
    cost_at_ns: u64,
    cost_cpu: Duration,
    cost_counters: Counters,
    /// When the observers are told next who may clear Accessed bits.
    suspects_at: u64,
}

/// Whether snapshots from the start of the first to the end of the last leave no room for another in a duration. One that is
/// longer than what is left by no more than two sampling intervals has room: looks are that late. Where there was no snapshot
/// and there is no target, none is under way.
fn is_covered(covered: Option<(u64, u64)>, asked_ns: u64, attrs: &Attrs, has_targets: bool) -> bool {
    if covered.is_none() && !has_targets {
        return true;
    }
    let covered = covered.map_or(0, |(first, last)| last.saturating_sub(first));
    let late = as_ns(attrs.sample).saturating_mul(2);
    covered.saturating_add(as_ns(attrs.aggr)) > asked_ns.saturating_add(late)
}

/// CPU time that this process, all its threads, has used so far.
pub fn process_cpu() -> Duration {
    Duration::from_nanos(to_ns(clock_gettime(ClockId::ProcessCPUTime)))
}

/// CPU time that all threads but this one have used so far.
fn beside() -> Duration {
    process_cpu().saturating_sub(clock::of_this_thread())
}

/// Longest sleep, so that a stop, and the end of a target, are heeded soon also when sampling intervals are long.
const MAX_SLEEP_NS: u64 = 100_000_000;
/// How often it is asked who died and whose turn it is to have its mappings read, where nothing waits: a tick asks before it hands
/// out a snapshot, and not every wake-up need ask again.
const WORK_PERIOD_NS: u64 = 50_000_000;
const COST_PERIOD_NS: u64 = 1_000_000_000;
/// Between two looks who may clear Accessed bits, 0.3 ms for a thousand processes: one that is there for less may be missed. A
/// guess.
const SUSPECTS_PERIOD_NS: u64 = 5_000_000_000;
/// ... and how long after the start for the first time: before observers look through /proc for them by themselves, which takes 1.4 ms for
/// 150 tasks, when there is most else to do.
const FIRST_SUSPECTS_NS: u64 = 1_500_000_000;
/// Between two steps of other work, so that sampling is not late for it.
const STEP_PERIOD_NS: u64 = 2_000_000;
/// CPU time for taking in processes before the mappings of those taken in are read, at the start: two or three at a time.
const TAKE_IN: Duration = Duration::from_micros(100);
/// Steps done at once before the session starts, so that a held command and other named targets are known by then.
const STEPS_AT_START: u32 = 4;
/// Names of targets whose pid has named one before start here: past all pids.
const FIRST_REUSED: u64 = 1 << 32;

impl Session {
    /// A session over what `tracker` follows. Raises the limit on open files of this process as far as it goes.
    pub fn new(mut source: Box<dyn Source>, tracker: Tracker, options: SessionOptions) -> Self {
        raise_descriptor_limit();
        let now = monotonic_ns();
        source.spent_before(options.cpu_before);
        Self {
            attrs: source.attrs(),
            tracker,
            options,
            outlets: Outlets::default(),
            targets: BTreeMap::new(),
            by_pid: BTreeMap::new(),
            ending: VecDeque::new(),
            used: BTreeSet::new(),
            next_reused: FIRST_REUSED,
            chores: Chores::by(source.numbers()),
            listed: Vec::new(),
            list_at: 0,
            busiest: Vec::new(),
            taking_in: Bucket::new(options.overhead, TAKING_IN, now),
            reading: Bucket::new(options.overhead, READING, now),
            refusals: None,
            observed_any: false,
            covered: None,
            first_refusal: None,
            schemes: None,
            acted: Duration::ZERO,
            beside: beside(),
            cost_at_ns: now,
            cost_cpu: process_cpu().saturating_sub(options.cpu_before),
            cost_counters: Counters::default(),
            suspects_at: now.saturating_add(FIRST_SUSPECTS_NS),
            source,
        }
    }

    /// A queue of all that the session tells from now on; at first, of the targets there are already.
    pub fn subscribe(&mut self, limits: FeedLimits) -> Feed {
        self.outlets.add(limits)
    }

    /// Lets schemes act on the targets, from their first regions on: to be called before [`Self::start`]. False if the backend
    /// has no regions that can be acted on.
    pub fn set_schemes(&mut self, engine: &SharedEngine) -> bool {
        let acts = self.source.set_schemes(engine);
        self.schemes = acts.then(|| Arc::clone(engine));
        acts
    }

    fn tell_schemes(&self, tell: impl FnOnce(&mut Engine)) {
        if let Some(engine) = &self.schemes {
            tell(&mut lock(engine));
        }
    }

    /// Takes up the targets there are already, so that a held command can be released with its monitor in place.
    ///
    /// # Errors
    /// When the backend cannot go on.
    pub fn start(&mut self) -> Result<(), SourceError> {
        let now = monotonic_ns();
        self.catch_up(now);
        let events = self.tracker.look(TAKE_IN);
        self.take(events, now)?;
        self.list_processes(now);
        for _ in 0..STEPS_AT_START {
            let events = self.tracker.work(TAKE_IN);
            self.take(events, now)?;
            self.read_mappings(now, |chores, targets, news| chores.step(targets, bucket::STEP, news));
        }
        Ok(())
    }

    /// Observes until the duration is over, `stop` says so, or no target is left. An aggregation begins a little after the
    /// session does: the last one that the duration has room for is waited for, an aggregation interval at most.
    ///
    /// # Errors
    /// When the backend cannot go on, or refused every target there was; what was told until then stands.
    pub fn run(&mut self, stop: &mut dyn FnMut() -> bool) -> Result<Ended, SourceError> {
        let start = monotonic_ns();
        let deadline = self.options.duration.map(|d| start.saturating_add(as_ns(d)));
        let update_ns = as_ns(self.options.update).max(1_000_000);
        let mut look_at = start + update_ns.min(COST_PERIOD_NS / 10);
        let mut work_at = start;
        let ended = loop {
            let now = monotonic_ns();
            if stop() {
                break Ok(Ended::Stopped);
            }
            if deadline
                .is_some_and(|d| now >= d && (now >= d.saturating_add(self.grace_ns()) || self.has_covered()))
            {
                break Ok(Ended::Duration);
            }
            let looked = if now >= look_at {
                look_at = now + update_ns;
                self.look_around(now)
            } else if now >= work_at || self.has_work(now) {
                work_at = now + WORK_PERIOD_NS;
                self.work(now)
            } else {
                Ok(())
            };
            if let Err(error) = looked {
                break Err(error);
            }
            if self.targets.is_empty() && self.ending.is_empty() {
                self.tracker.drop_dead();
            }
            if self.targets.is_empty() && self.ending.is_empty() && self.tracker.is_finished() {
                break self.first_refusal.take().map_or(Ok(Ended::NoTargets), Err);
            }
            let due = match self.tick(now) {
                Ok(due) => due,
                // The only target's death shows as an error of some backends; the tracker tells it properly.
                Err(error) => match self.look_around(now) {
                    Ok(()) if self.targets.is_empty() => break Ok(Ended::NoTargets),
                    _ => break Err(error),
                },
            };
            self.listen_to_source(now);
            if now.saturating_sub(self.cost_at_ns) >= COST_PERIOD_NS {
                self.tell_cost(now);
                self.tell_suspects(now);
                self.catch_up(now);
            }
            let deadline =
                deadline.map_or(u64::MAX, |d| if now < d { d } else { d.saturating_add(self.grace_ns()) });
            let mut wake = due.min(look_at).min(deadline).min(now + MAX_SLEEP_NS);
            if self.tracker.has_work() {
                wake = wake.min(self.taking_in.due_ns(now).max(now + STEP_PERIOD_NS));
            }
            if self.chores.has_work() {
                wake = wake.min(self.reading.due_ns(now).max(now + STEP_PERIOD_NS));
            }
            if self.tracker.wants_list() {
                wake = wake.min(self.list_at.max(now + STEP_PERIOD_NS));
            }
            if self.chores.has_first() {
                wake = wake.min(self.taking_in.due_ns(now).max(now + STEP_PERIOD_NS));
            }
            sleep_until(wake);
        };
        let now = monotonic_ns();
        let events = self.tracker.last_ends();
        let ended = self.take(events, now).and(ended);
        self.tell_cost(now);
        ended
    }

    /// Whether the duration asked for has no room for another aggregation.
    fn has_covered(&self) -> bool {
        let asked = self.options.duration.map_or(0, as_ns);
        is_covered(self.covered, asked, &self.attrs, !self.targets.is_empty())
    }

    fn grace_ns(&self) -> u64 {
        as_ns(self.attrs.aggr)
    }

    /// Whether there is anything beside sampling that does not wait for a time of its own.
    fn has_work(&self, now: u64) -> bool {
        let lists = now >= self.list_at && self.tracker.wants_list();
        lists || self.tracker.has_work() || self.chores.has_work()
    }

    /// Pids of all processes that were targets up to now.
    pub const fn pids(&self) -> &BTreeSet<u32> {
        &self.used
    }

    /// What the source cannot see.
    pub fn blind_spots(&mut self) -> Vec<String> {
        self.source.blind_spots()
    }

    /// Pids of those that may clear Accessed bits, by their names, where that can be had for next to nothing; the others need not
    /// be looked at.
    pub fn suspects(&mut self) -> Option<Vec<u32>> {
        self.source.suspects()
    }

    /// For how long nothing was sampled, since the overhead ceiling had nothing left for that.
    pub fn waited(&self) -> Duration {
        self.source.waited()
    }

    /// What the source did so far.
    pub fn counters(&self) -> Counters {
        self.source.counters()
    }

    /// Lets the source sample. What it hands out goes on without the targets that have died by then.
    fn tick(&mut self, now: u64) -> Result<u64, SourceError> {
        let Self { source, tracker, outlets, by_pid, ending, covered, .. } = self;
        let mut dead = BTreeSet::new();
        let due = source.tick(now, &mut |snapshot| {
            let first = covered.map_or(snapshot.start_ns, |(first, _)| first);
            *covered = Some((first, snapshot.end_ns));
            let deaths = tracker.take_deaths();
            for pid in deaths {
                if let Some(id) = by_pid.remove(&pid) {
                    ending.push_back((pid, id, monotonic_ns()));
                    dead.insert(id);
                }
            }
            outlets.snapshot(snapshot, &dead);
        });
        dead.into_iter().for_each(|id| self.stop_observing(id));
        due
    }

    fn notice_deaths(&mut self, now: u64) {
        for pid in self.tracker.take_deaths() {
            if let Some(id) = self.by_pid.remove(&pid) {
                self.ending.push_back((pid, id, now));
                self.stop_observing(id);
            }
        }
    }

    fn stop_observing(&mut self, id: TargetId) {
        if let Some(target) = self.targets.remove(&id) {
            self.source.remove_target(id);
            if let Some(engine) = &self.schemes {
                lock(engine).gone(id);
            }
            self.chores.forget(id);
            if self.by_pid.get(&target.pid) == Some(&id) {
                self.by_pid.remove(&target.pid);
            }
        }
    }

    /// Acts on what the tracker tells.
    fn take(&mut self, events: Vec<Event>, now: u64) -> Result<(), SourceError> {
        for event in events {
            match event {
                Event::Appeared { process, parent, is_copy } => {
                    self.appeared(process, parent, is_copy, now)?;
                }
                Event::Execed { pid } => {
                    if let Some(&id) = self.by_pid.get(&pid) {
                        self.execed(id, now);
                    }
                }
                Event::Ended { pid, reason } => {
                    let died = self.ending.iter().position(|(ending, ..)| *ending == pid);
                    let (id, time_ns) = match died.and_then(|at| self.ending.remove(at)) {
                        Some((_, id, time_ns)) => (id, time_ns),
                        None => match self.by_pid.get(&pid) {
                            Some(&id) => (id, now),
                            None => continue,
                        },
                    };
                    self.stop_observing(id);
                    self.outlets.tell(&SessionEvent::TargetEnd { id, reason, time_ns });
                }
                Event::Refused { pid, error } => self.refused(pid, error.to_string()),
            }
        }
        Ok(())
    }

    fn appeared(
        &mut self,
        process: Arc<Process>,
        parent: Option<u32>,
        is_copy: bool,
        now: u64,
    ) -> Result<(), SourceError> {
        let pid = raw(process.pid());
        // A pid that comes back is another target.
        let id = if self.used.insert(pid) {
            TargetId(u64::from(pid))
        } else {
            self.next_reused += 1;
            TargetId(self.next_reused)
        };
        match self.source.add_target(id, &process) {
            Ok(()) => {}
            Err(SourceError::Process { source }) if source.is_gone() => return Ok(()),
            // It is the machine that lacks something, not this process.
            Err(error @ SourceError::Unavailable { .. }) if self.targets.is_empty() => return Err(error),
            Err(error) => {
                self.tracker.give_up(pid);
                self.refused(pid, error.to_string());
                if !self.observed_any {
                    self.first_refusal.get_or_insert(error);
                }
                return Ok(());
            }
        }
        (self.observed_any, self.first_refusal) = (true, None);
        self.tell_schemes(|engine| engine.target(id, &process));
        let parent = parent.and_then(|p| self.by_pid.get(&p)).copied();
        let told = SessionEvent::Target { id, process: Arc::clone(&process), parent, is_copy, time_ns: now };
        self.outlets.tell(&told);
        if let Some(old) = self.by_pid.insert(pid, id) {
            // Its pid is another's by now, so it has died; the tracker will tell how.
            self.ending.push_back((pid, old, now));
            self.stop_observing(old);
        }
        let (began_ns, next_look_ns) = (now, now.saturating_add(chores::first_look(self.options.update)));
        // What fork made has its parent's mappings until it makes its own: that is found at its turn, like any change.
        let inherited = parent.filter(|_| is_copy).and_then(|id| self.targets.get(&id));
        let maps = inherited.map(|parent| parent.maps.inherited()).unwrap_or_default();
        let list = Arc::clone(maps.list());
        let observed = Observed {
            pid,
            process,
            parent,
            maps,
            resident_pages: 0,
            began_ns,
            next_look_ns,
            ran: None,
            next_read_ns: next_look_ns,
        };
        self.targets.insert(id, observed);
        if list.mappings().is_empty() {
            self.chores.read_first(id);
        } else {
            self.source.set_ranges(id, list.ranges());
            self.source.set_mappings(id, Some(list.mappings().len()));
            self.tell_schemes(|engine| engine.mappings(id, &list));
            self.outlets.mappings(id, &list, now);
        }
        Ok(())
    }

    fn execed(&mut self, id: TargetId, now: u64) {
        let Some(target) = self.targets.get_mut(&id) else { return };
        target.maps.invalidate();
        (target.began_ns, target.next_look_ns) =
            (now, now.saturating_add(chores::first_look(self.options.update)));
        target.next_read_ns = target.next_look_ns;
        self.source.execed(id);
        if let Some(engine) = &self.schemes {
            lock(engine).execed(id);
        }
        self.chores.read_anew(id);
        self.outlets.tell(&SessionEvent::Execed { id, process: Arc::clone(&target.process), time_ns: now });
    }

    /// What the source found out about single targets, and whether it changed its attributes.
    fn listen_to_source(&mut self, now: u64) {
        for id in self.source.take_execed() {
            if let Some(target) = self.targets.get(&id) {
                self.tracker.knows_exec(target.pid);
                self.execed(id, now);
            }
        }
        for (id, error) in self.source.take_lost() {
            let Some(target) = self.targets.get(&id) else { continue };
            let pid = target.pid;
            self.tracker.give_up(pid);
            self.stop_observing(id);
            self.refused(pid, format!("process {pid} is not observed any longer: {error}"));
            let reason = EndReason::Refused;
            self.outlets.tell(&SessionEvent::TargetEnd { id, reason, time_ns: now });
        }
        let attrs = self.source.attrs();
        if attrs != self.attrs {
            self.attrs = attrs;
            self.outlets.tell(&SessionEvent::Attrs { attrs, time_ns: now });
        }
    }

    fn refused(&mut self, pid: u32, why: String) {
        match &mut self.refusals {
            Some(refusals) => refusals.count += 1,
            none => *none = Some(Refusals { count: 1, pid, why }),
        }
    }

    fn catch_up(&mut self, now: u64) {
        let known = self.targets.iter().map(|(&id, t)| Known {
            id,
            process: &t.process,
            parent: t.parent,
            maps: t.maps.list(),
        });
        self.outlets.catch_up(known, now);
    }

    fn tell_suspects(&mut self, now: u64) {
        if now < self.suspects_at {
            return;
        }
        self.suspects_at = now.saturating_add(SUSPECTS_PERIOD_NS);
        if let Some(pids) = self.source.suspects() {
            self.outlets.tell(&SessionEvent::Suspects(pids.into()));
        }
    }

    fn tell_cost(&mut self, now: u64) {
        if let Some(refusals) = self.refusals.take() {
            self.outlets.tell(&SessionEvent::Refused(refusals));
        }
        self.outlets.blind_spots(self.source.blind_spots());
        let (observers, beside) = (self.outlets.take_cpu(), beside());
        let others = beside.saturating_sub(std::mem::replace(&mut self.beside, beside));
        self.source.charge(if self.options.alone { others } else { observers });
        let cpu = process_cpu();
        let acted = self.schemes.as_ref().map_or(Duration::ZERO, |engine| lock(engine).cpu());
        let acted_since = acted.saturating_sub(self.acted);
        let total = self.source.counters();
        let before = self.cost_counters;
        self.outlets.cost(Cost {
            time_ns: now,
            wall_ns: now.saturating_sub(self.cost_at_ns),
            cpu_ns: as_ns(cpu.saturating_sub(self.cost_cpu).saturating_sub(acted_since)),
            counters: Counters {
                checks: total.checks - before.checks,
                max_checks_per_sample: total.max_checks_per_sample,
                clears: total.clears - before.clears,
                flushes: total.flushes - before.flushes,
                sweeps: total.sweeps - before.sweeps,
                pages_swept: total.pages_swept - before.pages_swept,
                checks_cut: total.checks_cut - before.checks_cut,
                clears_cut: total.clears_cut - before.clears_cut,
                samples_missed: total.samples_missed - before.samples_missed,
            },
            resident_pages: self.targets.values().map(|t| t.resident_pages).sum(),
            snapshots_lost: 0,
            met: self.tracker.counts(),
        });
        (self.cost_at_ns, self.cost_cpu, self.cost_counters) = (now, cpu, total);
        self.acted = acted;
    }
}

fn as_ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn sleep_until(ns: u64) {
    let until = Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 };
    // A signal ends it early; the loop's own conditions decide what then.
    let _ = clock_nanosleep_absolute(ClockId::Monotonic, &until);
}

#[cfg(test)]
mod tests;

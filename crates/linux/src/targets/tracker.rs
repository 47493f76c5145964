//! The tracker: its queues, and in which order they are worked off.

use super::births::Births;
use super::candidates::{Candidate, Candidates};
use super::ends::Ends;
use super::family::{self_pid, wait_for};
use super::finding::TakenIn;
use super::matching::Matching;
use super::{Cgroup, CgroupError, Counts, EndReason, Event, TargetError, TrackerOptions};
use crate::clock::Budget;
use crate::process::{Image, Process, ProcessError, Stat, raw};
use crate::pte::{Lives, Seen};
use rustix::process::WaitId;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::ReadDir;
use std::sync::Arc;
use std::time::Duration;

/// How a process came to be a target, or may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    Named,
    Child,
    Orphan,
    Member,
    /// A rule matches it.
    Matching,
    /// All processes of the machine are targets.
    Any,
}

#[derive(Debug)]
pub(super) struct Target {
    pub(super) process: Arc<Process>,
    image: Image,
    pub(super) origin: Origin,
}

/// A target that died, and of which that is not told yet.
#[derive(Debug)]
struct Dead {
    pid: u32,
    target: Target,
    /// Whether [`Tracker::take_deaths`] has named it.
    named: bool,
}

/// Caps on what one look does, however much CPU time it is given.
const THREADS_A_LOOK: usize = 256;
pub(super) const EXEC_LOOKS_A_LOOK: usize = 32;
/// Most processes remembered as refused.
const MOST_REFUSED: usize = 4096;

/// Keeps track of targets.
#[derive(Debug)]
pub struct Tracker {
    pub(super) options: TrackerOptions,
    pub(super) targets: BTreeMap<u32, Target>,
    /// Pids of those named: whoever named a child of this process waits for it.
    pub(super) named: BTreeSet<u32>,
    ends: Ends,
    dead: VecDeque<Dead>,
    cgroups: Vec<Cgroup>,
    /// Who looks for those that a rule matches.
    pub(super) matching: Option<Matching>,
    /// Those found that wait to be taken in.
    pub(super) candidates: Candidates,
    pub(super) everything: bool,
    /// The list of all processes, as far as it is not worked off.
    pub(super) listing: Option<ReadDir>,
    pub(super) births: Births,
    pub(super) events: Vec<Event>,
    pub(super) refused: BTreeSet<u32>,
    /// Targets whose lists of children wait for a look.
    pub(super) families: BTreeSet<u32>,
    next_exec_look: u32,
    pub(super) next_family_look: u32,
    pub(super) idle_looks: u32,
    pub(super) counts: Counts,
    /// Pids that were gone when they were looked at.
    pub(super) gone: u64,
    lives: Option<Census>,
}

/// Shorter waits than this are no fault of the budget: several looks, and a list of all processes, may lie between a
/// process' being found and its turn. A guess.
pub(super) const SHORT_WAIT_NS: u64 = 200_000_000;

/// The count of processes that targets start.
#[derive(Debug)]
struct Census {
    lives: Lives,
    /// Processes tracked that it did not count: they were there before their parents were tracked.
    found: u64,
    /// Of those tracked, the ones that became targets, or were refused.
    met: u64,
    /// Of these, the ones that it counted as unseen, since they ended just before.
    late: u64,
}

impl Tracker {
    /// A tracker without targets.
    pub fn new(options: TrackerOptions) -> Self {
        if options.adopt_orphans {
            // Any pid turns it on. It cannot fail on a kernel that has pidfds.
            let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
        }
        Self {
            options,
            targets: BTreeMap::new(),
            named: BTreeSet::new(),
            ends: Ends::new(),
            dead: VecDeque::new(),
            cgroups: Vec::new(),
            matching: None,
            candidates: Candidates::default(),
            everything: false,
            listing: None,
            births: Births::new(),
            events: Vec::new(),
            refused: BTreeSet::new(),
            families: BTreeSet::new(),
            next_exec_look: 0,
            next_family_look: 0,
            idle_looks: 0,
            counts: Counts::default(),
            gone: 0,
            lives: None,
        }
    }

    /// Whether processes can become targets that nobody named: whether it is worth counting them.
    pub fn follows(&self) -> bool {
        self.options.follow_children || self.everything
    }

    /// Whether every process of the machine is a target.
    pub fn is_of_everything(&self) -> bool {
        self.everything
    }

    /// From now on the processes that targets start are counted by `lives`.
    pub fn count_lives(&mut self, lives: Lives) {
        for target in self.targets.values() {
            lives.see(raw(target.process.pid()));
        }
        self.lives = Some(Census { lives, found: 0, met: 0, late: 0 });
    }

    /// A process will be added that may start others at once: those are counted. It must not run yet.
    pub fn expect(&mut self, process: &Process) {
        if let Some(census) = &self.lives {
            census.lives.see(raw(process.pid()));
        }
    }

    /// Queues one that is to become a target.
    pub(super) fn queue(&mut self, candidate: Candidate) {
        if let Some(census) = &mut self.lives
            && !self.candidates.contains(candidate.pid)
        {
            census.found += u64::from(census.lives.track(candidate.pid));
        }
        self.candidates.push(candidate);
    }

    /// A process is, or was, looked at: it does not count as unseen.
    pub(super) fn met(&mut self, pid: u32) {
        if let Some(census) = &mut self.lives {
            let seen = census.lives.see(pid);
            census.met += u64::from(seen != Seen::Uncounted);
            census.late += u64::from(seen == Seen::Late);
        }
    }

    /// A process was looked at and is no target, or no longer one: it waits no more, and what it starts does not count. One
    /// that ended before stays counted as unseen.
    pub(super) fn decline(&mut self, pid: u32) {
        if let Some(census) = &mut self.lives {
            census.met += u64::from(census.lives.decline(pid) == Seen::First);
        }
    }

    /// Adds a process; the next look tells of it and of the children it has. Adding a target again does nothing.
    ///
    /// # Errors
    /// When it has exited, may not be observed, or is one too many.
    pub fn add(&mut self, process: Process) -> Result<(), TargetError> {
        // Also one that has exited: whoever named it waits for it.
        self.named.insert(raw(process.pid()));
        let stat = process.stat()?;
        self.adopt(process, &stat, Origin::Named, None)
    }

    /// Adds a control group: the next looks tell of its processes. Its members are targets while they are members,
    /// whosever children they are.
    ///
    /// # Errors
    /// When its members cannot be read.
    pub fn add_cgroup(&mut self, cgroup: Cgroup) -> Result<(), CgroupError> {
        cgroup.members()?;
        self.cgroups.push(cgroup);
        Ok(())
    }

    /// Adds every process of the machine (of this pid namespace), but for kernel threads, which have no memory of their
    /// own, and this process itself. Those that cannot be observed are told as refused.
    pub fn add_all(&mut self) {
        self.everything = true;
        self.listing = std::fs::read_dir("/proc").ok();
    }

    /// The targets' processes, by pid.
    pub fn processes(&self) -> impl ExactSizeIterator<Item = &Arc<Process>> {
        self.targets.values().map(|t| &t.process)
    }

    /// What it met with so far.
    pub fn counts(&self) -> Counts {
        let at_most = if self.follows() { self.gone + self.births.lost() } else { 0 };
        let (too_short, waiting) = match &self.lives {
            Some(Census { lives, found, met, late }) => {
                let (forked, unseen) = lives.counts();
                let unseen = unseen.saturating_sub(*late);
                let waiting = (forked + found).saturating_sub(unseen + met);
                // Of those that have ended in the queue it is not known yet how long they waited.
                let in_queue = self.candidates.pids().filter(|&pid| lives.has_ended(pid)).count() as u64;
                (Some(unseen.saturating_sub(self.counts.unreached + in_queue)), waiting)
            }
            None => ((at_most == 0).then_some(0), self.candidates.len() as u64),
        };
        Counts { too_short, at_most: too_short.unwrap_or(at_most), waiting, ..self.counts }
    }

    /// Whether no target is left and none can come any more.
    pub fn is_finished(&self) -> bool {
        self.targets.is_empty()
            && self.events.is_empty()
            && self.dead.is_empty()
            && self.candidates.is_empty()
            && !self.everything
            && self.matching.is_none()
            && !self.cgroups.iter().any(Cgroup::exists)
    }

    /// Whether the last look left work undone for want of CPU time, or what it waited for is there by now.
    pub fn has_work(&self) -> bool {
        self.listing.is_some()
            || !self.dead.is_empty()
            || !self.births.is_empty()
            || !self.families.is_empty()
            || !(self.candidates.is_empty() || self.candidates.is_held())
    }

    /// [`Tracker::look`] without a limit.
    pub fn poll(&mut self) -> Vec<Event> {
        let mut events = self.look(Duration::MAX);
        while self.listing.is_some() {
            events.extend(self.look(Duration::MAX));
        }
        events
    }

    /// Looks what happened since the last look, and works off what waits until `cpu` of the calling thread's time is
    /// used up, a process more at most; the end of one is told in any case.
    pub fn look(&mut self, cpu: Duration) -> Vec<Event> {
        let budget = Budget::of(cpu);
        // Newborns first: the children of a target that just ended lose their parent when it does.
        let follows = self.options.follow_children && !self.targets.is_empty();
        if follows || self.everything {
            self.look_for_births(budget);
        }
        self.look_for_ends();
        self.tell_ends(budget);
        self.look_into_cgroups();
        self.look_for_matching(budget);
        self.go_on(budget);
        // What waits to be seen at all comes first, and then the mappings of what was taken in.
        if !self.has_work() {
            self.look_for_exec(if cpu == Duration::MAX { budget } else { Budget::of(cpu / 4) });
        }
        std::mem::take(&mut self.events)
    }

    /// Only works off what waits, as [`Tracker::look`] does.
    pub fn work(&mut self, cpu: Duration) -> Vec<Event> {
        let budget = Budget::of(cpu);
        self.tell_ends(budget);
        self.take_in_newborns(budget);
        self.go_on(budget);
        std::mem::take(&mut self.events)
    }

    /// How those that died and were not told yet ended, all of them: the last thing to ask for.
    pub fn last_ends(&mut self) -> Vec<Event> {
        self.look_for_ends();
        self.tell_ends(Budget::of(Duration::MAX));
        // What waits no longer is not to be told as what does.
        self.drop_dead_candidates(|_| false);
        self.events.retain(|event| matches!(event, Event::Ended { .. }));
        std::mem::take(&mut self.events)
    }

    fn go_on(&mut self, budget: Budget) {
        let mut threads_looked_at = 0;
        while !budget.is_spent() {
            if let Some((candidate, since_ns)) = self.candidates.pop() {
                if self.take_in(candidate) == TakenIn::Gone {
                    self.ended_waiting(since_ns);
                }
            } else if threads_looked_at >= THREADS_A_LOOK || self.families.is_empty() {
                break;
            } else {
                threads_looked_at += self.look_at_a_family();
            }
        }
        self.go_through_listing(budget);
    }

    /// Pids of targets that died since the last call. They are targets no more; how they ended is told by the looks to
    /// come, in the same order. Cheap, and meant to be called right before a snapshot is handed on.
    pub fn take_deaths(&mut self) -> Vec<u32> {
        self.look_for_ends();
        let unnamed = self.dead.iter_mut().rev().take_while(|dead| !dead.named);
        let mut pids: Vec<u32> = unnamed
            .map(|dead| {
                dead.named = true;
                dead.pid
            })
            .collect();
        pids.reverse();
        pids
    }

    /// A target was found to run another program, by other means than a look, which then tells of it no more.
    pub fn knows_exec(&mut self, pid: u32) {
        if let Some(target) = self.targets.get_mut(&pid)
            && let Ok(stat) = target.process.stat()
        {
            target.image = stat.image;
        }
    }

    /// A target cannot be observed any more: it is none from now on, nor will it be again.
    pub fn give_up(&mut self, pid: u32) {
        if let Some(target) = self.targets.remove(&pid) {
            self.ends.remove(&target.process);
            self.counts.refused += 1;
        }
        self.families.remove(&pid);
        self.decline(pid);
        self.refuse(pid);
    }

    pub(super) fn refuse(&mut self, pid: u32) -> bool {
        self.refused.len() < MOST_REFUSED && self.refused.insert(pid)
    }

    pub(super) fn adopt(
        &mut self,
        process: Process,
        stat: &Stat,
        origin: Origin,
        parent: Option<u32>,
    ) -> Result<(), TargetError> {
        let pid = raw(process.pid());
        if self.targets.contains_key(&pid) {
            return Ok(());
        }
        if self.targets.len() >= self.options.max_targets {
            return Err(TargetError::TooMany { pid, limit: self.options.max_targets });
        }
        // The kernel shows where the program lies to those alone that may also read its mappings.
        if !stat.image.is_known() {
            process.check_readable()?;
        }
        self.ends
            .add(&process, pid)
            .map_err(|error| ProcessError::from_io(process.pid(), "its end (epoll)", error))?;
        let process = Arc::new(process);
        self.counts.seen += 1;
        let of_parent = parent.and_then(|pid| self.targets.get(&pid)).map(|parent| parent.image);
        let is_copy = stat.image.is_known() && of_parent == Some(stat.image);
        self.met(pid);
        self.events.push(Event::Appeared { process: Arc::clone(&process), parent, is_copy });
        self.targets.insert(pid, Target { process, image: stat.image, origin });
        // Where everything is a target, children are found with all the others.
        if self.options.follow_children && !self.everything && origin != Origin::Matching {
            self.families.insert(pid);
        }
        Ok(())
    }

    /// Takes those that died out of the targets. How they ended is looked up later.
    fn look_for_ends(&mut self) {
        loop {
            let ended = self.ends.look();
            let before = self.dead.len();
            for pid in ended {
                let Some(target) = self.targets.remove(&pid) else { continue };
                self.ends.remove(&target.process);
                self.families.remove(&pid);
                self.dead.push_back(Dead { pid, target, named: false });
            }
            if self.dead.len() == before {
                return;
            }
        }
    }

    fn tell_ends(&mut self, budget: Budget) {
        if !self.dead.is_empty() && self.options.adopt_orphans {
            // Whoever lost a parent just now is ours.
            self.look_at_own_children();
        }
        // One at least: a session ends with its last target, whatever the budget.
        while let Some(Dead { pid, target, .. }) = self.dead.pop_front() {
            let status = target.process.exit_status();
            if target.origin == Origin::Orphan {
                wait_for(WaitId::PidFd(target.process.pidfd()));
            }
            self.events.push(Event::Ended { pid, reason: EndReason::Exited(status) });
            // Of the last targets all: the session goes on until they are told, with nothing left to observe.
            if budget.is_spent() && !self.targets.is_empty() {
                break;
            }
        }
    }

    fn look_into_cgroups(&mut self) {
        if self.cgroups.is_empty() {
            return;
        }
        let mut members = BTreeSet::new();
        // A group that is gone has no members left.
        members.extend(self.cgroups.iter().filter_map(|group| group.members().ok()).flatten());
        self.refused.retain(|pid| members.contains(pid));
        let left: Vec<u32> = self
            .targets
            .iter()
            .filter(|(pid, target)| target.origin == Origin::Member && !members.contains(pid))
            // Those that just ended are told as that, at the next look.
            .filter(|(_, target)| target.process.is_alive())
            .map(|(&pid, _)| pid)
            .collect();
        for pid in left {
            self.forget_target(pid, EndReason::LeftCgroup);
        }
        // What still waits since the last look may not be a member any more.
        let left = self
            .candidates
            .retain(|candidate| candidate.origin != Origin::Member || members.contains(&candidate.pid));
        left.into_iter().for_each(|(candidate, _)| self.decline(candidate.pid));
        for pid in members {
            let is_known = self.targets.contains_key(&pid) || self.refused.contains(&pid);
            if !is_known && pid != self_pid() {
                self.queue(Candidate { pid, origin: Origin::Member, parent: None, listed: false });
            }
        }
    }

    /// One that lives is a target no longer.
    pub(super) fn forget_target(&mut self, pid: u32, reason: EndReason) {
        if let Some(target) = self.targets.remove(&pid) {
            self.ends.remove(&target.process);
        }
        self.families.remove(&pid);
        self.decline(pid);
        self.events.push(Event::Ended { pid, reason });
    }

    fn look_for_exec(&mut self, budget: Budget) {
        for _ in 0..EXEC_LOOKS_A_LOOK.min(self.targets.len()) {
            if budget.is_spent() {
                break;
            }
            let Some(pid) = next_in_turn(&self.targets, &mut self.next_exec_look) else { break };
            let Some(target) = self.targets.get_mut(&pid) else { break };
            // Gone: the next look tells. Without leave to trace, the image is unknown and never differs.
            let Ok(stat) = target.process.stat() else { continue };
            if stat.image.is_known() && stat.image != target.image {
                target.image = stat.image;
                self.events.push(Event::Execed { pid });
            }
        }
    }
}

/// The first pid not below `turn`, around the end; the turn passes on.
pub(super) fn next_in_turn(targets: &BTreeMap<u32, Target>, turn: &mut u32) -> Option<u32> {
    let pid = *targets.range(*turn..).chain(targets.range(..*turn)).next()?.0;
    *turn = pid.saturating_add(1);
    Some(pid)
}

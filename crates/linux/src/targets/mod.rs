//! Which processes to observe, as they come and go.
//!
//! A [`Tracker`] starts from processes, a command or control groups and follows their children. It is polled, at the
//! regions update interval or so, and tells what happened since in [`Event`]s. What it holds it holds by pidfd, so a
//! pid that means another process by now is never taken for a target.
//!
//! # What a poll costs
//! While nothing happens: a poll(2) over all pidfds, a read of `/proc/loadavg` (`births.rs`), and a `/proc/PID/stat` of
//! a few targets in turn to notice exec. The rest is capped a poll: looks at newborn pids, at threads' lists of
//! children, and at targets for exec; what is left over is done at the next poll.

mod births;
mod cgroup;
mod command;

pub(crate) use cgroup::mounted_versions as mounted_cgroup_versions;
pub use cgroup::{Cgroup, CgroupError};
pub use command::{CommandError, HeldCommand, RunningCommand};

use crate::proc_file;
use crate::process::{ExitStatus, Image, Process, ProcessError, kin_of, raw};
use births::Births;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What happened to the targets.
#[derive(Debug)]
pub enum Event {
    /// A process became a target.
    Appeared {
        /// The process.
        process: Arc<Process>,
        /// Pid of the target whose child it is; none for those named by the user and members of a control group.
        parent: Option<u32>,
    },
    /// A target runs another program now: nothing in its address space is as it was.
    Execed {
        /// Pid of the target.
        pid: u32,
    },
    /// A process is no target any more.
    Ended {
        /// Its pid.
        pid: u32,
        /// Why.
        reason: EndReason,
    },
    /// A child or a member of a control group cannot be observed. Told once.
    Refused {
        /// Its pid.
        pid: u32,
        /// Why not.
        error: TargetError,
    },
}

/// Why a process is no target any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// It ended; with its status where the system tells (see [`Process::exit_status`]).
    Exited(Option<ExitStatus>),
    /// It moved out of the control group.
    LeftCgroup,
    /// It may not be observed any more.
    Refused,
}

/// Why a process does not become a target.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// It cannot be observed.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// There are as many targets as there may be.
    #[error("process {pid} is not observed: {limit} processes are observed already; narrow the choice")]
    TooMany {
        /// Its pid.
        pid: u32,
        /// Most targets at a time.
        limit: usize,
    },
}

/// What to follow.
#[derive(Clone, Copy, Debug)]
pub struct TrackerOptions {
    /// Whether children of targets, and their children, become targets too.
    pub follow_children: bool,
    /// Whether processes whose parents died are handed to this process (PR_SET_CHILD_SUBREAPER) and become targets:
    /// so a server that turns itself into a daemon is not lost. Every child this process did not
    /// [`Tracker::add`] itself counts as one, so set it only where it starts no others. They are waited for when they
    /// end. Needs `follow_children`.
    pub adopt_orphans: bool,
    /// Most targets at a time.
    pub max_targets: usize,
}

impl Default for TrackerOptions {
    fn default() -> Self {
        Self { follow_children: true, adopt_orphans: false, max_targets: 1024 }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    Named,
    Child,
    Orphan,
    Member,
}

#[derive(Debug)]
struct Target {
    process: Arc<Process>,
    image: Image,
    origin: Origin,
}

/// Caps on what one poll does; see the module's head.
const NEWBORNS_A_POLL: usize = 256;
const THREADS_A_POLL: usize = 256;
const EXEC_LOOKS_A_POLL: usize = 32;
/// Idle polls between looks at a target's list of children, in case the newborn pids did not tell all.
const POLLS_BETWEEN_FAMILY_LOOKS: u32 = 16;
/// Most processes remembered as refused.
const MOST_REFUSED: usize = 4096;

/// Keeps track of targets.
#[derive(Debug)]
pub struct Tracker {
    options: TrackerOptions,
    targets: BTreeMap<u32, Target>,
    cgroups: Vec<Cgroup>,
    births: Births,
    events: Vec<Event>,
    refused: BTreeSet<u32>,
    /// Targets whose lists of children wait for a look.
    families: BTreeSet<u32>,
    next_exec_look: u32,
    next_family_look: u32,
    idle_polls: u32,
    scratch: Vec<u8>,
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
            cgroups: Vec::new(),
            births: Births::new(),
            events: Vec::new(),
            refused: BTreeSet::new(),
            families: BTreeSet::new(),
            next_exec_look: 0,
            next_family_look: 0,
            idle_polls: 0,
            scratch: Vec::new(),
        }
    }

    /// Adds a process; the next poll tells of it and of the children it has. Adding a target again does nothing.
    ///
    /// # Errors
    /// When it has exited, may not be observed, or is one too many.
    pub fn add(&mut self, process: Process) -> Result<(), TargetError> {
        self.adopt(process, Origin::Named, None)
    }

    /// Adds a control group: the next poll tells of its processes. Its members are targets while they are members,
    /// whosever children they are.
    ///
    /// # Errors
    /// When its members cannot be read.
    pub fn add_cgroup(&mut self, cgroup: Cgroup) -> Result<(), CgroupError> {
        cgroup.members()?;
        self.cgroups.push(cgroup);
        Ok(())
    }

    /// The targets' processes, by pid.
    pub fn processes(&self) -> impl ExactSizeIterator<Item = &Arc<Process>> {
        self.targets.values().map(|t| &t.process)
    }

    /// Whether no target is left and none can come any more.
    pub fn is_finished(&self) -> bool {
        self.targets.is_empty() && self.events.is_empty() && !self.cgroups.iter().any(Cgroup::exists)
    }

    /// Looks what happened since the last poll. See the module's head for what that costs.
    pub fn poll(&mut self) -> Vec<Event> {
        // Newborns first: the children of a target that just ended lose their parent when it does.
        if self.options.follow_children && !self.targets.is_empty() {
            self.look_for_children();
        }
        self.look_for_ends();
        self.look_into_cgroups();
        self.look_for_exec();
        std::mem::take(&mut self.events)
    }

    /// A target was found to run another program, by other means than a poll, which then tells of it no more.
    pub fn knows_exec(&mut self, pid: u32) {
        if let Some(target) = self.targets.get_mut(&pid)
            && let Ok(stat) = target.process.stat()
        {
            target.image = stat.image;
        }
    }

    /// A target cannot be observed any more: it is none from now on, nor will it be again.
    pub fn give_up(&mut self, pid: u32) {
        self.targets.remove(&pid);
        self.families.remove(&pid);
        self.refused.insert(pid);
    }

    fn adopt(&mut self, process: Process, origin: Origin, parent: Option<u32>) -> Result<(), TargetError> {
        let pid = raw(process.pid());
        if self.targets.contains_key(&pid) {
            return Ok(());
        }
        if self.targets.len() >= self.options.max_targets {
            return Err(TargetError::TooMany { pid, limit: self.options.max_targets });
        }
        process.check_readable()?;
        let image = process.stat()?.image;
        let process = Arc::new(process);
        self.events.push(Event::Appeared { process: Arc::clone(&process), parent });
        self.targets.insert(pid, Target { process, image, origin });
        if self.options.follow_children {
            self.families.insert(pid);
        }
        Ok(())
    }

    /// Makes `pid` a target, or tells once why not.
    fn take_in(&mut self, pid: u32, origin: Origin, parent: Option<u32>) {
        if self.targets.contains_key(&pid) || self.refused.contains(&pid) {
            return;
        }
        let Some(handle) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return };
        let taken = Process::open(handle).map_err(TargetError::from).and_then(|process| {
            // Between the listing and now it may have ended, and its pid come to mean another.
            match origin {
                Origin::Child | Origin::Orphan if process.stat()?.parent != parent.unwrap_or(self_pid()) => {
                    Err(ProcessError::Exited { pid }.into())
                }
                _ => self.adopt(process, origin, parent),
            }
        });
        match taken {
            Ok(()) => {}
            Err(TargetError::Process(error)) if error.is_gone() => {
                if origin == Origin::Orphan {
                    wait_for(WaitId::Pid(handle));
                }
            }
            Err(error) => {
                if self.refused.len() < MOST_REFUSED {
                    self.refused.insert(pid);
                    let kernel_thread =
                        matches!(error, TargetError::Process(ProcessError::KernelThread { .. }));
                    if !kernel_thread {
                        self.events.push(Event::Refused { pid, error });
                    }
                }
            }
        }
    }

    fn look_for_children(&mut self) {
        let all_known = self.births.look();
        let mut looks = 0;
        while looks < NEWBORNS_A_POLL {
            let Some(pid) = self.births.next() else { break };
            looks += 1;
            // A pid given out anew is not the one that was refused.
            self.refused.remove(&pid);
            let Some(kin) = kin_of(pid, &mut self.scratch).filter(|kin| kin.leader == pid) else { continue };
            if self.targets.contains_key(&kin.parent) {
                self.take_in(pid, Origin::Child, Some(kin.parent));
            } else if self.options.adopt_orphans && kin.parent == self_pid() {
                self.take_in(pid, Origin::Orphan, None);
            }
        }
        if !all_known {
            self.families.extend(self.targets.keys());
        }
        self.idle_polls += 1;
        if self.families.is_empty() && self.idle_polls >= POLLS_BETWEEN_FAMILY_LOOKS {
            self.idle_polls = 0;
            if let Some(pid) = next_in_turn(&self.targets, &mut self.next_family_look) {
                self.families.insert(pid);
            }
            if self.options.adopt_orphans {
                self.look_at_own_children();
            }
        }
        self.look_at_families();
    }

    /// Looks up the children of the targets that wait for it. Their own children follow in the same call.
    fn look_at_families(&mut self) {
        let mut threads_looked_at = 0;
        while threads_looked_at < THREADS_A_POLL {
            let Some(parent) = self.families.pop_first() else { break };
            let (children, threads) = children_of(parent);
            threads_looked_at += threads;
            match children {
                Some(children) => {
                    for child in children {
                        self.take_in(child, Origin::Child, Some(parent));
                    }
                }
                // A kernel without CONFIG_PROC_CHILDREN: everybody's parent tells as much.
                None => {
                    self.families.clear();
                    self.births.expect(all_pids());
                    break;
                }
            }
        }
    }

    /// Orphans are handed over by the kernel without a newborn pid.
    fn look_at_own_children(&mut self) {
        let (children, _) = children_of(self_pid());
        for child in children.into_iter().flatten() {
            self.take_in(child, Origin::Orphan, None);
        }
    }

    fn look_for_ends(&mut self) {
        let mut ended: Vec<u32> = Vec::new();
        {
            let mut pids: Vec<u32> = Vec::with_capacity(self.targets.len());
            let mut fds: Vec<PollFd<'_>> = Vec::with_capacity(self.targets.len());
            for (&pid, target) in &self.targets {
                pids.push(pid);
                fds.push(PollFd::from_borrowed_fd(target.process.pidfd(), PollFlags::IN));
            }
            let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
            // Interrupted or refused for want of memory: the next poll finds them.
            if poll(&mut fds, Some(&at_once)).is_ok_and(|ready| ready > 0) {
                ended.extend(
                    pids.iter().zip(&fds).filter(|(_, fd)| !fd.revents().is_empty()).map(|(pid, _)| pid),
                );
            }
        }
        if !ended.is_empty() && self.options.adopt_orphans {
            // Whoever lost a parent just now is ours.
            self.look_at_own_children();
        }
        for pid in ended {
            let Some(target) = self.targets.remove(&pid) else { continue };
            let status = target.process.exit_status();
            if target.origin == Origin::Orphan {
                wait_for(WaitId::PidFd(target.process.pidfd()));
            }
            self.families.remove(&pid);
            self.events.push(Event::Ended { pid, reason: EndReason::Exited(status) });
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
            // Those that just ended are told as that, at the next poll.
            .filter(|(_, target)| target.process.is_alive())
            .map(|(&pid, _)| pid)
            .collect();
        for pid in left {
            self.targets.remove(&pid);
            self.families.remove(&pid);
            self.events.push(Event::Ended { pid, reason: EndReason::LeftCgroup });
        }
        for pid in members {
            self.take_in(pid, Origin::Member, None);
        }
    }

    fn look_for_exec(&mut self) {
        for _ in 0..EXEC_LOOKS_A_POLL.min(self.targets.len()) {
            let Some(pid) = next_in_turn(&self.targets, &mut self.next_exec_look) else { break };
            let Some(target) = self.targets.get_mut(&pid) else { break };
            // Gone: the next poll tells. Without leave to trace, the image is unknown and never differs.
            let Ok(stat) = target.process.stat() else { continue };
            if stat.image.is_known() && stat.image != target.image {
                target.image = stat.image;
                self.events.push(Event::Execed { pid });
            }
        }
    }
}

/// The first pid not below `turn`, around the end; the turn passes on.
fn next_in_turn(targets: &BTreeMap<u32, Target>, turn: &mut u32) -> Option<u32> {
    let pid = *targets.range(*turn..).chain(targets.range(..*turn)).next()?.0;
    *turn = pid.saturating_add(1);
    Some(pid)
}

/// The children of all threads of `pid`, if the kernel lists them, and the number of threads looked at.
fn children_of(pid: u32) -> (Option<Vec<u32>>, usize) {
    let mut children = Vec::new();
    let mut threads = 0;
    let mut text = Vec::new();
    // A process that is gone has no children left.
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return (Some(children), 1) };
    for task in tasks.flatten() {
        threads += 1;
        let task = task.path();
        match proc_file::read_into(task.join("children"), &mut text) {
            Ok(()) => {
                let pids = text.split(|&b| b == b' ').filter_map(proc_file::parse_number);
                children.extend(pids.filter_map(|pid| u32::try_from(pid).ok()));
            }
            Err(_) if task.join("stat").exists() => return (None, threads),
            Err(_) => {}
        }
    }
    (Some(children), threads)
}

fn all_pids() -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok()).collect()
}

fn self_pid() -> u32 {
    std::process::id()
}

fn wait_for(who: WaitId<'_>) {
    // Nothing to wait for is as good as having waited.
    let _ = waitid(who, WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
}

#[cfg(test)]
mod tests;

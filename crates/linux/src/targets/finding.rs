//! How a tracker finds processes: those that are born, the children of those that it follows, all there are.
//!
//! Three ways, from the cheapest to what works everywhere: a list of all processes that a backend gives, 0.2 us each, which
//! tells their parents and whether they ran as well; pids given out since the last look ([`super::births`]); and
//! directories of `/proc`, some 45 us a process.

use super::candidates::Candidate;
use super::family::{all_pids, children_of, self_pid, wait_for};
use super::tracker::{Origin, SHORT_WAIT_NS, Tracker, next_in_turn};
use super::{Event, TargetError};
use crate::clock::{Budget, monotonic_ns};
use crate::process::{Process, ProcessError, Stat, has_ended};
use crate::source::ListedProcess;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, WaitId, pidfd_open};
use std::collections::BTreeSet;
use std::os::fd::AsFd;

/// With so many targets whose children are to be looked up (some 45 us each), or so many that wait to be taken in, a list
/// of all processes pays: 0.3 us each of the machine's.
const WORTH_A_LIST: usize = 5;
/// Idle looks between looks at a target's list of children, in case the newborn pids did not tell all.
const LOOKS_BETWEEN_FAMILY_LOOKS: u32 = 16;

/// What became of one that was to be taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TakenIn {
    /// It has ended.
    Gone,
    /// It is a target, or none for a reason of its own.
    Settled,
}

/// Whether the process of this pid is there and has not ended. Some 2 us; not what pid it is by now.
fn lives(pid: u32) -> bool {
    let handle = i32::try_from(pid).ok().and_then(Pid::from_raw);
    match handle.map(|handle| pidfd_open(handle, PidfdFlags::empty())) {
        Some(Ok(pidfd)) => !has_ended(pidfd.as_fd()),
        Some(Err(Errno::SRCH)) | None => false,
        // Too many open files, for instance, says nothing of it.
        Some(Err(_)) => true,
    }
}

impl Tracker {
    /// Where no target is left: drops those that wait and have ended, up to the first that lives. It is what can end a
    /// session then, and so waits for no budget; each is dropped once, for some 2 us.
    pub fn drop_dead(&mut self) {
        if self.targets.is_empty() {
            let dead = self.candidates.take_dead(lives);
            dead.into_iter().for_each(|(candidate, since_ns)| self.dropped(candidate, since_ns));
        }
    }

    /// Drops those that wait and have ended, of all that are not `known_to_live`.
    pub(super) fn drop_dead_candidates(&mut self, known_to_live: impl Fn(u32) -> bool) {
        let dead = self.candidates.retain(|candidate| known_to_live(candidate.pid) || lives(candidate.pid));
        dead.into_iter().for_each(|(candidate, since_ns)| self.dropped(candidate, since_ns));
    }

    /// One that waited has ended; an orphan that was handed to this process is waited for.
    fn dropped(&mut self, candidate: Candidate, since_ns: u64) {
        let Candidate { pid, .. } = candidate;
        if self.options.adopt_orphans
            && !self.named.contains(&pid)
            && let Some(handle) = i32::try_from(pid).ok().and_then(Pid::from_raw)
        {
            wait_for(WaitId::Pid(handle));
        }
        self.ended_waiting(since_ns);
    }

    /// One that had waited since then has ended.
    pub(super) fn ended_waiting(&mut self, since_ns: u64) {
        let waited_ns = monotonic_ns().saturating_sub(since_ns);
        if waited_ns >= SHORT_WAIT_NS {
            self.counts.unreached += 1;
            self.counts.longest_wait_ns = self.counts.longest_wait_ns.max(waited_ns);
        } else {
            self.gone += 1;
        }
    }

    /// Whether a list of all processes would save work ([`Tracker::take_list`]).
    pub fn wants_list(&self) -> bool {
        self.listing.is_some()
            || self.families.len() >= WORTH_A_LIST
            || self.births.iter().len() >= WORTH_A_LIST
            || self.candidates.len() >= WORTH_A_LIST
    }

    /// No list can be had.
    pub fn has_no_list(&mut self) {
        self.candidates.wait_no_longer();
    }

    /// Whether much waits to be taken in and none of it goes on running: then nothing is missed meanwhile. Where there are no
    /// targets, nothing else is there to spend CPU time on.
    pub fn waits_for_idle_ones(&self) -> bool {
        !self.targets.is_empty()
            && self.candidates.are_idle()
            && self.families.is_empty()
            && self.births.is_empty()
    }

    /// Takes in a list of all processes, parents before their children: what else looking up families and reading `/proc`
    /// would find. It must be newer than the last look. Those that ran since the list before are taken in first.
    pub fn take_list(&mut self, listed: &[ListedProcess]) {
        self.listing = None;
        // A pid given out anew is not the one that was refused.
        for pid in self.births.iter() {
            self.refused.remove(&pid);
        }
        // Mostly parents come before their children; not where a younger process took in an orphan.
        while self.take_kin(listed) {}
        self.families.clear();
        // To find out that what was born lives no more, or is a thread, takes little; the others are known now.
        let pids: BTreeSet<u32> = listed.iter().map(|process| process.pid).collect();
        self.births.forget(|pid| pids.contains(&pid));
        self.drop_dead_candidates(|pid| pids.contains(&pid));
        self.candidates.put_running_first(listed);
    }

    /// Queues the kin of what is known among the processes listed. Whether there was any.
    fn take_kin(&mut self, listed: &[ListedProcess]) -> bool {
        let before = self.candidates.len();
        for &ListedProcess { pid, parent, .. } in listed {
            if self.targets.contains_key(&pid) || self.refused.contains(&pid) || pid == self_pid() {
                continue;
            }
            let is_kin =
                || parent != self_pid() && (self.follows_target(parent) || self.candidates.follows(parent));
            let (origin, parent) = if self.everything {
                (Origin::Any, None)
            } else if self.options.follow_children && is_kin() {
                (Origin::Child, Some(parent))
            } else if self.options.adopt_orphans && parent == self_pid() && !self.named.contains(&pid) {
                (Origin::Orphan, None)
            } else {
                continue;
            };
            self.queue(Candidate { pid, origin, parent, listed: true });
        }
        !self.everything && self.candidates.len() > before
    }

    /// Makes `pid` a target, or tells once why not.
    pub(super) fn take_in(&mut self, Candidate { pid, origin, parent, listed }: Candidate) -> TakenIn {
        let is_known = self.targets.contains_key(&pid) || self.refused.contains(&pid) || pid == self_pid();
        if is_known || (origin == Origin::Orphan && self.named.contains(&pid)) {
            if !self.targets.contains_key(&pid) {
                self.decline(pid);
            }
            return TakenIn::Settled;
        }
        let Some(handle) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return TakenIn::Settled };
        let taken = Process::open_leader(handle).map_err(TargetError::from).and_then(|opened| {
            let Some((process, stat)) = opened else { return Ok(()) };
            // Between the listing and now its parent may have died, or it, and its pid come to mean another.
            match origin {
                Origin::Child | Origin::Orphan if stat.parent != parent.unwrap_or(self_pid()) => {
                    if self.options.follow_children && self.follows_target(stat.parent) {
                        self.adopt(process, &stat, Origin::Child, Some(stat.parent))
                    } else if self.is_orphan(pid, &stat) {
                        self.adopt(process, &stat, Origin::Orphan, None)
                    } else {
                        Ok(())
                    }
                }
                // It may have waited for long.
                Origin::Matching if !self.matching.as_ref().is_some_and(|matching| matching.allows(pid)) => {
                    Ok(())
                }
                Origin::Any | Origin::Matching => {
                    let parent = Some(stat.parent).filter(|parent| self.targets.contains_key(parent));
                    self.adopt(process, &stat, origin, parent)
                }
                _ => self.adopt(process, &stat, origin, parent),
            }
        });
        match taken {
            // It has come to be another's child: what is found to be that is no target.
            Ok(()) if !self.targets.contains_key(&pid) => self.decline(pid),
            Ok(()) if listed => {
                self.families.remove(&pid);
            }
            Ok(()) => {}
            Err(TargetError::Process(error)) if error.is_gone() => {
                if origin == Origin::Orphan {
                    wait_for(WaitId::Pid(handle));
                }
                return TakenIn::Gone;
            }
            Err(error) => self.tell_refused(pid, error),
        }
        TakenIn::Settled
    }

    pub(super) fn tell_refused(&mut self, pid: u32, error: TargetError) {
        let kernel_thread = matches!(error, TargetError::Process(ProcessError::KernelThread { .. }));
        self.met(pid);
        self.decline(pid);
        if self.refuse(pid) && !kernel_thread {
            self.counts.refused += 1;
            self.events.push(Event::Refused { pid, error });
        }
    }

    pub(super) fn look_for_births(&mut self, budget: Budget) {
        let all_known = self.births.look();
        self.take_in_newborns(budget);
        if !all_known && self.everything {
            self.listing = std::fs::read_dir("/proc").ok();
        } else if !all_known {
            let followed = self.targets.iter().filter(|(_, target)| target.origin != Origin::Matching);
            self.families.extend(followed.map(|(pid, _)| pid));
            self.candidates.need_families();
        }
        self.idle_looks += 1;
        if !self.everything && self.families.is_empty() && self.idle_looks >= LOOKS_BETWEEN_FAMILY_LOOKS {
            self.idle_looks = 0;
            if let Some(pid) = next_in_turn(&self.targets, &mut self.next_family_look)
                && self.follows_target(pid)
            {
                self.families.insert(pid);
            }
            if self.options.adopt_orphans {
                self.look_at_own_children();
            }
        }
    }

    pub(super) fn take_in_newborns(&mut self, budget: Budget) {
        while !budget.is_spent()
            && let Some(pid) = self.births.next()
        {
            // A pid given out anew is not the one that was refused.
            self.refused.remove(&pid);
            self.newborn(pid);
        }
    }

    pub(super) fn newborn(&mut self, pid: u32) {
        if self.targets.contains_key(&pid) || self.candidates.contains(pid) || pid == self_pid() {
            return;
        }
        let Some(handle) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return };
        let result = match Process::open_leader(handle) {
            Ok(None) => return,
            // Its parent was listed before it was born, and is to become a target.
            Ok(Some((_, stat))) if self.follows_candidate(stat.parent) => {
                let (origin, parent) = (Origin::Child, Some(stat.parent));
                return self.queue(Candidate { pid, origin, parent, listed: true });
            }
            Ok(Some((process, stat))) => {
                let parent = Some(stat.parent).filter(|parent| self.targets.contains_key(parent));
                let followed = parent.filter(|&parent| self.follows_target(parent));
                let origin = match followed {
                    _ if self.everything => Origin::Any,
                    Some(_) => Origin::Child,
                    None if self.is_orphan(pid, &stat) => Origin::Orphan,
                    None => return self.decline(pid),
                };
                self.adopt(process, &stat, origin, parent)
            }
            Err(error) => Err(error.into()),
        };
        match result {
            // Whatever children it has were born after it, and so are among the newborn too.
            Ok(()) => {
                self.families.remove(&pid);
            }
            Err(TargetError::Process(error)) if error.is_gone() => self.gone += 1,
            Err(error) => self.tell_refused(pid, error),
        }
    }

    /// Looks up the children of one of the targets that wait for it. Returns the number of its threads.
    pub(super) fn look_at_a_family(&mut self) -> usize {
        let Some(parent) = self.families.pop_first() else { return 0 };
        let (children, threads) = children_of(parent);
        match children {
            Some(children) => {
                for pid in children {
                    if self.targets.contains_key(&pid) {
                        continue;
                    }
                    let (origin, parent) = (Origin::Child, Some(parent));
                    self.queue(Candidate { pid, origin, parent, listed: false });
                }
            }
            // A kernel without CONFIG_PROC_CHILDREN: everybody's parent tells as much.
            None => {
                self.families.clear();
                self.births.expect(all_pids());
            }
        }
        threads
    }

    /// Whether it is a target whose children are to be targets: of those that a rule matches, only the ones that match are.
    fn follows_target(&self, pid: u32) -> bool {
        self.targets.get(&pid).is_some_and(|target| target.origin != Origin::Matching)
    }

    /// Whether `pid` is to become a target and its children with it.
    pub(super) fn follows_candidate(&self, pid: u32) -> bool {
        self.options.follow_children && !self.everything && pid != self_pid() && self.candidates.follows(pid)
    }

    /// Whether it was handed to this process, rather than started by it to be named as a target.
    pub(super) fn is_orphan(&self, pid: u32, stat: &Stat) -> bool {
        self.options.adopt_orphans && stat.parent == self_pid() && !self.named.contains(&pid)
    }

    /// Orphans are handed over by the kernel without a newborn pid.
    pub(super) fn look_at_own_children(&mut self) {
        let (children, _) = children_of(self_pid());
        for child in children.into_iter().flatten() {
            self.take_in(Candidate { pid: child, origin: Origin::Orphan, parent: None, listed: false });
        }
    }

    pub(super) fn go_through_listing(&mut self, budget: Budget) {
        while !budget.is_spent()
            && let Some(listing) = &mut self.listing
        {
            match listing.next() {
                Some(Ok(entry)) => {
                    // What is no number is none of the processes.
                    if let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) {
                        self.take_in(Candidate { pid, origin: Origin::Any, parent: None, listed: false });
                    }
                }
                Some(Err(_)) | None => self.listing = None,
            }
        }
    }
}

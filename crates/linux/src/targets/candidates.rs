//! Those that may become targets and wait to be taken in: which costs some 30 us each, so that a thousand of them wait for
//! seconds. Those that run go first, since the others access nothing meanwhile.

use super::tracker::Origin;
use crate::clock::monotonic_ns;
use crate::source::ListedProcess;
use isotherm_damon::Ran;
use std::cmp::Reverse;
use std::collections::VecDeque;
use std::collections::btree_map::{BTreeMap, Entry};

/// A process that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    pub pid: u32,
    pub origin: Origin,
    /// Whose child it is, if that is why it was found.
    pub parent: Option<u32>,
    /// It was found in a list of all processes, and so were its children.
    pub listed: bool,
}

/// What is known of one that waits.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    parent: Option<u32>,
    /// Since when (CLOCK_MONOTONIC).
    since_ns: u64,
    /// A rule matches it: its children are judged by themselves.
    alone: bool,
    /// What it had run by the last list.
    ran: Option<Ran>,
    /// It ran between the last two lists (1), and between the two before as well (2): one that was just born ran once.
    own_runs: u8,
    /// The same of it or of one that it is an ancestor of, and how much of that was seen by the last list, ns.
    runs: u8,
    ran_ns: u64,
}

/// With so many it is waited for the second list, which tells who runs: to take in as many takes as long.
const MANY: usize = 32;
/// Stands for the number of lists where there are none.
const NO_LIST: u8 = u8::MAX;
/// [`Waiting::runs`] of one that goes on running.
const GOES_ON: u8 = 2;

/// A queue without duplicates.
#[derive(Debug, Default)]
pub(super) struct Candidates {
    queue: VecDeque<Candidate>,
    waiting: BTreeMap<u32, Waiting>,
    waits_for_list: bool,
    /// Lists since one began to wait alone: who goes on running is known from the third on.
    lists: u8,
}

impl Candidates {
    /// Adds one. What was known of one that waits already is known better now: it may have another parent.
    pub(super) fn push(&mut self, candidate: Candidate) {
        let Candidate { pid, parent, origin, .. } = candidate;
        match self.waiting.entry(pid) {
            Entry::Vacant(vacant) => {
                if self.queue.is_empty() {
                    self.lists = 0;
                }
                let alone = origin == Origin::Matching;
                let since_ns = monotonic_ns();
                vacant.insert(Waiting {
                    parent,
                    since_ns,
                    alone,
                    ran: None,
                    own_runs: 0,
                    runs: 0,
                    ran_ns: 0,
                });
                self.queue.push_back(candidate);
            }
            Entry::Occupied(mut waiting) if waiting.get().parent != parent => {
                waiting.get_mut().parent = parent;
                waiting.get_mut().alone = origin == Origin::Matching;
                if let Some(queued) = self.queue.iter_mut().find(|queued| queued.pid == pid) {
                    *queued = candidate;
                }
            }
            Entry::Occupied(_) => {}
        }
    }

    /// The children of those that wait are not known any more.
    pub(super) fn need_families(&mut self) {
        self.queue.iter_mut().for_each(|candidate| candidate.listed = false);
    }

    /// The next one, and since when it has waited; none as long as a list is waited for.
    pub(super) fn pop(&mut self) -> Option<(Candidate, u64)> {
        if self.is_held() { None } else { self.take_first() }
    }

    fn take_first(&mut self) -> Option<(Candidate, u64)> {
        let candidate = self.queue.pop_front()?;
        let since_ns =
            self.waiting.remove(&candidate.pid).map_or_else(monotonic_ns, |waiting| waiting.since_ns);
        Some((candidate, since_ns))
    }

    /// Takes those out that come before the first one that `lives`, each with since when it has waited.
    pub(super) fn take_dead(&mut self, lives: impl Fn(u32) -> bool) -> Vec<(Candidate, u64)> {
        let mut dead = Vec::new();
        while self.queue.front().is_some_and(|first| !lives(first.pid)) {
            dead.extend(self.take_first());
        }
        dead
    }

    pub(super) fn contains(&self, pid: u32) -> bool {
        self.waiting.contains_key(&pid)
    }

    /// Whether it waits and its children are to be targets with it.
    pub(super) fn follows(&self, pid: u32) -> bool {
        self.waiting.get(&pid).is_some_and(|waiting| !waiting.alone)
    }

    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Those that wait.
    pub(super) fn pids(&self) -> impl Iterator<Item = u32> {
        self.queue.iter().map(|candidate| candidate.pid)
    }

    /// Returns those that go, each with since when it has waited.
    pub(super) fn retain(&mut self, keep: impl Fn(&Candidate) -> bool) -> Vec<(Candidate, u64)> {
        let Self { queue, waiting, .. } = self;
        let mut gone = Vec::new();
        queue.retain(|candidate| {
            let keeps = keep(candidate);
            if !keeps {
                let since_ns = waiting.remove(&candidate.pid).map_or(0, |waiting| waiting.since_ns);
                gone.push((*candidate, since_ns));
            }
            keeps
        });
        gone
    }

    /// Whether a list is waited for: the second one, and then the third by all that did not run between the two.
    pub(super) fn is_held(&self) -> bool {
        let is_known = self.lists > GOES_ON || self.runs_of_first() > 0;
        self.queue.len() >= MANY && (self.waits_for_list || !is_known)
    }

    /// Whether many wait, and none of them goes on running.
    pub(super) fn are_idle(&self) -> bool {
        self.lists > GOES_ON
            && self.lists != NO_LIST
            && self.queue.len() >= MANY
            && self.runs_of_first() < GOES_ON
    }

    /// Those that run are before the others.
    fn runs_of_first(&self) -> u8 {
        self.queue.front().and_then(|first| self.waiting.get(&first.pid)).map_or(0, |first| first.runs)
    }

    /// There will be no list.
    pub(super) fn wait_no_longer(&mut self) {
        (self.waits_for_list, self.lists) = (false, NO_LIST);
    }

    /// Puts those first that ran since the last list, each behind its parents if they wait as well. Of a process of several
    /// threads a list does not tell whether it runs: it counts as running.
    pub(super) fn put_running_first(&mut self, listed: &[ListedProcess]) {
        let (mut running, mut new) = (Vec::new(), false);
        for process in listed {
            let Some(waiting) = self.waiting.get_mut(&process.pid) else { continue };
            let before = waiting.ran.replace(process.ran);
            new |= before.is_none();
            // A mark is CPU time, but for a few.
            waiting.ran_ns = before.map_or(0, |before| process.ran.mark.saturating_sub(before.mark));
            if !process.is_whole {
                // What its other threads ran is not known: it may be most of all.
                waiting.ran_ns = u64::MAX;
            }
            let runs = process.ran.now || waiting.ran_ns > 0;
            waiting.runs = if runs { GOES_ON.min(waiting.own_runs + 1) } else { 0 };
            waiting.own_runs = waiting.runs;
            if runs {
                running.push((process.pid, waiting.runs, waiting.ran_ns));
            }
        }
        self.waits_for_list = new && !self.waits_for_list;
        self.lists = self.lists.saturating_add(1).min(NO_LIST - 1);
        for (pid, runs, ran_ns) in running {
            let mut next = self.waiting.get(&pid).and_then(|waiting| waiting.parent);
            while let Some(waiting) = next
                .and_then(|pid| self.waiting.get_mut(&pid))
                .filter(|w| (w.runs, w.ran_ns) < (runs, ran_ns))
            {
                (waiting.runs, waiting.ran_ns) = (runs, ran_ns);
                next = waiting.parent;
            }
        }
        let Self { queue, waiting, .. } = self;
        // Those first that run most: where all were just born, all ran. Stable: parents stay before their children.
        let runs = |candidate: &Candidate| {
            waiting.get(&candidate.pid).map_or((0, 0), |waiting| (waiting.runs, waiting.ran_ns))
        };
        queue.make_contiguous().sort_by_key(|candidate| Reverse(runs(candidate)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(pid: u32, parent: u32) -> Candidate {
        Candidate { pid, origin: Origin::Child, parent: Some(parent), listed: true }
    }

    fn listed(pid: u32, mark: u64, now: bool) -> ListedProcess {
        ListedProcess { pid, parent: 1, ran: Ran { mark, now }, is_whole: true, pages_mapped: 0 }
    }

    #[test]
    fn many_wait_for_the_second_list() {
        let mut candidates = Candidates::default();
        (10..90).for_each(|pid| candidates.push(candidate(pid, 1)));
        let idle: Vec<_> = (10..90).map(|pid| listed(pid, 7, false)).collect();
        candidates.put_running_first(&idle);
        assert_eq!(candidates.pop(), None);
        let mut later = idle.clone();
        later[70] = listed(80, 8, false);
        candidates.put_running_first(&later);
        assert!(!candidates.are_idle(), "two lists do not tell who goes on running");
        let mut idle_after_all = Candidates::default();
        (10..90).for_each(|pid| idle_after_all.push(candidate(pid, 1)));
        [&idle, &later, &later].into_iter().for_each(|list| idle_after_all.put_running_first(list));
        assert!(idle_after_all.are_idle(), "it ran once, as what is just born does");
        later[70] = listed(80, 9, false);
        later[69] = listed(79, 9, false);
        candidates.put_running_first(&later);
        assert!(!candidates.are_idle(), "it goes on");
        assert_eq!(candidates.pop().map(|(c, _)| c.pid), Some(80));
        assert_eq!(candidates.pop().map(|(c, _)| c.pid), Some(79));
        candidates.put_running_first(&later);
        assert!(candidates.are_idle());
        // New ones come all the time: that is no reason to wait again and again.
        candidates.push(candidate(91, 1));
        let with = |mark| later.iter().copied().chain([listed(91, mark, false)]).collect::<Vec<_>>();
        candidates.put_running_first(&with(1));
        assert_eq!(candidates.pop(), None);
        candidates.push(candidate(92, 1));
        candidates.put_running_first(&with(1).into_iter().chain([listed(92, 1, false)]).collect::<Vec<_>>());
        assert!(candidates.pop().is_some());
        // Nor for one that never comes.
        candidates.push(candidate(93, 1));
        candidates.put_running_first(&[listed(93, 1, false)]);
        assert_eq!(candidates.pop(), None);
        candidates.wait_no_longer();
        assert!(candidates.pop().is_some());
    }

    fn order(candidates: &mut Candidates) -> Vec<u32> {
        std::iter::from_fn(|| candidates.pop()).map(|(c, _)| c.pid).collect()
    }

    #[test]
    fn those_that_run_go_first_with_their_parents_before_them() {
        let mut candidates = Candidates::default();
        for (pid, parent) in [(10, 1), (11, 10), (12, 1), (13, 12), (14, 13), (15, 1)] {
            candidates.push(candidate(pid, parent));
        }
        candidates.push(candidate(10, 1));
        assert_eq!(candidates.len(), 6, "none twice");
        let idle: Vec<_> = (10..16).map(|pid| listed(pid, 7, false)).collect();
        candidates.put_running_first(&idle);
        // 14 ran; its parents 12 and 13 did not.
        let mut later = idle;
        later[4] = listed(14, 8, false);
        later.push(listed(99, 9, true));
        candidates.put_running_first(&later);
        assert_eq!(order(&mut candidates), [12, 13, 14, 10, 11, 15]);
        assert!(candidates.is_empty() && !candidates.contains(14));
    }

    #[test]
    fn of_those_that_run_the_busiest_go_first() {
        let mut candidates = Candidates::default();
        for (pid, parent) in [(10, 1), (11, 1), (12, 1), (13, 10)] {
            candidates.push(candidate(pid, parent));
        }
        let at = |marks: [u64; 4]| -> Vec<ListedProcess> {
            (10..14).zip(marks).map(|(pid, mark)| listed(pid, mark, false)).collect()
        };
        // All were just born, so all ran; one since then more than the others.
        candidates.put_running_first(&at([5, 5, 5, 5]));
        candidates.put_running_first(&at([10, 900, 10, 300]));
        assert_eq!(
            order(&mut candidates),
            [11, 10, 13, 12],
            "10 is the parent of one that runs more than 12"
        );
        // Of one with several threads the list does not tell how much those ran.
        [20, 21].into_iter().for_each(|pid| candidates.push(candidate(pid, 1)));
        for mark in [5, 900] {
            let threads = ListedProcess { is_whole: false, ..listed(21, 5, false) };
            candidates.put_running_first(&[listed(20, mark, false), threads]);
        }
        assert_eq!(order(&mut candidates), [21, 20]);
    }

    #[test]
    fn what_is_found_again_keeps_what_was_known_of_it() {
        let mut candidates = Candidates::default();
        let push = |candidates: &mut Candidates| (10..50).for_each(|pid| candidates.push(candidate(pid, 1)));
        let lists =
            |ran: u32| (10..50).map(|pid| listed(pid, 7 + u64::from(pid == ran), false)).collect::<Vec<_>>();
        push(&mut candidates);
        candidates.put_running_first(&lists(0));
        for _ in 0..2 {
            push(&mut candidates);
            candidates.put_running_first(&lists(0));
        }
        assert!(candidates.are_idle());
        push(&mut candidates);
        candidates.put_running_first(&lists(40));
        // Its parent died meanwhile, and another one took it.
        candidates.push(candidate(41, 5));
        assert_eq!(candidates.pop().map(|(c, _)| c.pid), Some(40));
        let rest: Vec<Candidate> = std::iter::from_fn(|| candidates.pop()).map(|(c, _)| c).collect();
        assert_eq!(rest.iter().find(|c| c.pid == 41).and_then(|c| c.parent), Some(5));
        assert!(rest.len() == 39 && !candidates.are_idle());
    }

    #[test]
    fn what_is_on_a_processor_runs_at_the_first_list() {
        let mut candidates = Candidates::default();
        (10..13).for_each(|pid| candidates.push(candidate(pid, 1)));
        candidates.put_running_first(&[listed(10, 1, false), listed(12, 1, true)]);
        let gone: Vec<u32> = candidates.retain(|c| c.pid != 10).iter().map(|(c, _)| c.pid).collect();
        assert_eq!(gone, [10]);
        assert!(!candidates.contains(10));
        assert_eq!(order(&mut candidates), [12, 11]);
    }
}

//! What is done beside sampling: taking in processes, reading mappings, looking whether anything changed. All of it in
//! small steps, under a share of the overhead budget, so that it costs the same whatever there is to do; what the budget
//! does not buy waits.

use super::bucket::{Bucket, STEP};
use super::{Observed, as_ns};
use crate::clock::{self, Budget};
use crate::maps::{MapList, Numbers, Reader, StepLimit};
use crate::process::ProcessError;
use crate::source::ListedProcess;
use isotherm_damon::TargetId;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// Most of a list of mappings that is read in a step: some 0.5 ms (60,000 mappings took 57 such steps of 0.5 ms).
const STEP_BYTES: usize = 64 << 10;

/// Lists that wait from which on the program for numbers is loaded before any list is printed.
const MANY_LISTS: usize = 12;

/// How long after the start it is loaded in any case, ns.
const NUMBERS_AFTER: u64 = 2_000_000_000;

/// Share of the overhead budget that taking in processes may take: what is not taken in is not seen. Sampling gets what
/// is left of the whole.
pub(super) const TAKING_IN: f64 = 0.35;

/// ... where many wait and none of them goes on running: nothing is missed meanwhile, and what each of them costs afterwards,
/// to be drawn, recorded and looked at for the first time, is several times as much. Some ten are taken in a second at the default budget.
pub(super) const TAKING_IN_IDLE: f64 = 0.05;

/// Share that reading mappings may take: they name what is seen.
pub(super) const READING: f64 = 0.1;

/// Most targets whose size is looked up in a step, some 5 us each.
const LOOKS_A_STEP: usize = 16;

/// Part of this work's share that looking up sizes may take: so the sizes of a thousand targets are looked up every four
/// seconds or so at the default budget, and reading what has changed is not kept waiting by looking what has.
const TURNS: f64 = 0.25;

/// The shortest time from one look at a target's size to the next, ns: two an aggregation, as intervals are by default.
const SOONEST: u64 = 50_000_000;

/// Pause between two looks from which on a target is young no more, ns: half its age.
const YOUNG_NS: u64 = 1_000_000_000;

/// How long after a target began its size is looked at first, ns.
pub(super) fn first_look(interval: Duration) -> u64 {
    until_next_look(0, interval)
}

/// How long after that, ns: a program maps most of what it will at its start, and what is mapped but not known to be has no
/// name, and is in no report. So the younger it is the sooner, and each `interval` once it is twice as old as that.
fn until_next_look(age_ns: u64, interval: Duration) -> u64 {
    (age_ns / 2).max(SOONEST).min(as_ns(interval))
}

/// News of a target's mappings.
pub(super) struct News {
    pub id: TargetId,
    /// What is known of a list that is not whole; `None`: the target's list was replaced.
    pub partial: Option<Arc<MapList>>,
    /// Whether observers are to know, too: of a long list they get the beginning and then the whole, once each; of one that
    /// was known and has changed, what is new up to where that was found with the rest as it was.
    pub for_observers: bool,
}

/// Mappings to read, and whose turn it is.
#[derive(Debug, Default)]
pub(super) struct Chores {
    /// The cheap way to lists.
    numbers: Numbers,
    /// For lists that take one step, as most do.
    quick: Reader,
    /// Of targets of which no mappings are known, and of those that run and whose mappings changed.
    first: VecDeque<TargetId>,
    waiting: VecDeque<TargetId>,
    /// For the others, one after the other, so that they hold up nobody else.
    long: Reader,
    long_waiting: VecDeque<TargetId>,
    long_now: Option<TargetId>,
    /// All that are in one of the queues.
    queued: BTreeSet<TargetId>,
    long_first: bool,
    /// Mappings of the list being read that were told.
    told: usize,
    /// Targets whose lists were told to have changed, and are not read to the end yet.
    outdated: BTreeSet<TargetId>,
    next_turn: TargetId,
    next_busy: usize,
    turns_due_ns: u64,
    /// When it was first a target's turn.
    began_ns: Option<u64>,
}

impl Chores {
    /// With another way to read mappings than `/proc`, where there is one.
    pub(super) fn by(numbers: Option<Numbers>) -> Self {
        Self { numbers: numbers.unwrap_or_default(), ..Self::default() }
    }

    /// Has a target's mappings read.
    pub(super) fn read(&mut self, id: TargetId) {
        if self.queued.insert(id) {
            self.waiting.push_back(id);
        }
    }

    /// Has the mappings of a target read before those of others: nothing is known of it, or it runs.
    pub(super) fn read_first(&mut self, id: TargetId) {
        if self.queued.insert(id) {
            self.first.push_back(id);
        } else if let Some(at) = self.waiting.iter().position(|waiting| *waiting == id) {
            self.waiting.remove(at);
            self.first.push_back(id);
        }
    }

    /// Whether any mappings are to be read first.
    pub(super) fn has_first(&self) -> bool {
        !self.first.is_empty()
    }

    /// Reads mappings that come first for `cpu`, one list more at most.
    pub(super) fn step_first(
        &mut self,
        targets: &mut BTreeMap<TargetId, Observed>,
        cpu: Duration,
        news: &mut Vec<News>,
    ) {
        let budget = Budget::of(cpu);
        while !budget.is_spent()
            && let Some(id) = self.first.pop_front()
        {
            self.quick_step(targets, id, news);
        }
    }

    /// Drops what was read of a target's mappings, and has them read anew.
    pub(super) fn read_anew(&mut self, id: TargetId) {
        if self.long_now == Some(id) {
            self.stop_long();
        }
        self.read(id);
    }

    pub(super) fn forget(&mut self, id: TargetId) {
        self.outdated.remove(&id);
        if self.long_now == Some(id) {
            self.stop_long();
        }
        if self.queued.remove(&id) {
            self.first.retain(|first| *first != id);
        }
    }

    fn stop_long(&mut self) {
        self.long.abandon();
        if let Some(id) = self.long_now.take() {
            self.queued.remove(&id);
        }
    }

    pub(super) fn has_work(&self) -> bool {
        !self.queued.is_empty()
    }

    /// Reads mappings for `cpu`, a step more at most.
    pub(super) fn step(
        &mut self,
        targets: &mut BTreeMap<TargetId, Observed>,
        cpu: Duration,
        news: &mut Vec<News>,
    ) {
        let start = clock::of_this_thread();
        let left = || cpu.saturating_sub(clock::of_this_thread().saturating_sub(start));
        // In turn, as one endless list would otherwise keep all others waiting, or they it.
        self.long_first = !self.long_first;
        if self.long_first {
            self.long_step(targets, left(), news);
        }
        // A list that was begun is read on for a whole step, past the budget, which is charged for it: what was read of one
        // that is cut short would be read again.
        while !left().is_zero() {
            let Some(id) = self.first.pop_front().or_else(|| self.waiting.pop_front()) else { break };
            self.quick_step(targets, id, news);
        }
        let limit = left();
        if !self.long_first && !limit.is_zero() {
            self.long_step(targets, limit, news);
        }
    }

    fn quick_step(&mut self, targets: &mut BTreeMap<TargetId, Observed>, id: TargetId, news: &mut Vec<News>) {
        let Some(target) = targets.get_mut(&id).filter(|_| self.queued.contains(&id)) else { return };
        let limit = StepLimit { bytes: STEP_BYTES, cpu: STEP };
        let (quick, numbers) = (&mut self.quick, &mut self.numbers);
        let read = quick.begin_by(&target.process, numbers, self.queued.len() >= MANY_LISTS);
        match read.and_then(|()| quick.step_by(&target.process, &mut target.maps, limit, numbers)) {
            Ok(step) => match step.whole {
                Some(changed) => {
                    self.queued.remove(&id);
                    self.outdated.remove(&id);
                    if changed {
                        news.push(News { id, partial: None, for_observers: true });
                    }
                }
                None => {
                    if target.maps.mappings().is_empty() {
                        let partial = Some(Arc::new(self.quick.so_far().clone()));
                        news.push(News { id, partial, for_observers: true });
                    } else {
                        tell_outdated(&mut self.outdated, id, &self.quick, target.maps.list(), news);
                    }
                    self.long_waiting.push_back(id);
                }
            },
            // Its end, or its next program, is told by others; then there will be another reading.
            Err(_) => {
                self.queued.remove(&id);
            }
        }
        self.quick.abandon();
    }

    fn long_step(&mut self, targets: &mut BTreeMap<TargetId, Observed>, cpu: Duration, news: &mut Vec<News>) {
        if self.long_now.is_none() {
            self.long_now = loop {
                let Some(id) = self.long_waiting.pop_front() else { return };
                let target = targets.get(&id).filter(|_| self.queued.contains(&id));
                let numbers = &mut self.numbers;
                if target.is_some_and(|target| self.long.begin_by(&target.process, numbers, true).is_ok()) {
                    break Some(id);
                }
                self.queued.remove(&id);
            };
            self.told = 0;
        }
        let Some(id) = self.long_now else { return };
        let Some(target) = targets.get_mut(&id) else { return self.stop_long() };
        let limit = StepLimit { bytes: STEP_BYTES, cpu };
        match self.long.step_by(&target.process, &mut target.maps, limit, &mut self.numbers) {
            Ok(step) => match step.whole {
                Some(changed) => {
                    self.stop_long();
                    self.outdated.remove(&id);
                    if changed {
                        news.push(News { id, partial: None, for_observers: true });
                    }
                }
                // Each time it has doubled, so that copying what is known costs no more than reading it; by numbers that takes as long
                // as copying.
                None if target.maps.mappings().is_empty()
                    && self.long.so_far().mappings().len()
                        > self.told.max(1000) * if self.long.reads_numbers() { 8 } else { 2 } =>
                {
                    self.told = self.long.so_far().mappings().len();
                    let partial = Some(Arc::new(self.long.so_far().clone()));
                    news.push(News { id, partial, for_observers: false });
                }
                None if !target.maps.mappings().is_empty() => {
                    tell_outdated(&mut self.outdated, id, &self.long, target.maps.list(), news);
                }
                None => {}
            },
            Err(error) => {
                self.stop_long();
                if !error.is_gone() && !matches!(error, ProcessError::NotPermitted { .. }) {
                    self.read(id);
                }
            }
        }
    }

    /// Takes in a list of all processes, which tells the sizes of all of them at once: of targets whose mappings are others by now those
    /// are read, each at most once in `interval`, and first of those that run.
    pub(super) fn take_list(
        &mut self,
        targets: &mut BTreeMap<TargetId, Observed>,
        listed: &[ListedProcess],
        by_pid: &BTreeMap<u32, TargetId>,
        now_ns: u64,
        interval: Duration,
    ) {
        // No more than that, as what comes first comes before new processes are taken in.
        let mut left = LOOKS_A_STEP / 2;
        for process in listed {
            let Some((&id, target)) =
                by_pid.get(&process.pid).and_then(|id| Some((id, targets.get_mut(id)?)))
            else {
                continue;
            };
            let before = target.ran.replace(process.ran);
            if now_ns < target.next_read_ns || target.maps.is_of(process.pages_mapped) {
                continue;
            }
            let age_ns = now_ns.saturating_sub(target.began_ns);
            target.next_read_ns = now_ns.saturating_add(until_next_look(age_ns, interval));
            // Of several threads the list tells what one has run.
            let runs = process.ran.now
                || !process.is_whole
                || before.is_some_and(|before| before.mark != process.ran.mark);
            if runs && left > 0 {
                left -= 1;
                self.read_first(id);
            } else {
                self.read(id);
            }
        }
    }

    /// Looks up the sizes of a few targets in turn, each at most once in `interval`, and queues those whose mappings
    /// have likely changed.
    pub(super) fn take_turns(
        &mut self,
        targets: &mut BTreeMap<TargetId, Observed>,
        now_ns: u64,
        busiest: &[TargetId],
        interval: Duration,
        bucket: &Bucket,
    ) {
        if now_ns < self.turns_due_ns {
            return;
        }
        // Whether a list is still right is known by numbers alone: one mapping may take the place of another of the same size. At the
        // start there is most else to do.
        if now_ns >= *self.began_ns.get_or_insert(now_ns) + NUMBERS_AFTER {
            self.numbers.are_ready(true);
        }
        let start = clock::of_this_thread();
        // What runs changes its mappings; what does not, cannot.
        let half = LOOKS_A_STEP / 2;
        for _ in 0..half.min(busiest.len()) {
            self.next_busy = (self.next_busy + 1) % busiest.len();
            let Some(&id) = busiest.get(self.next_busy) else { break };
            if self.look_up_size(targets, id, now_ns, interval) || self.waiting.contains(&id) {
                self.read_first(id);
            }
        }
        self.look_up_sizes(targets, now_ns, interval);
        let spent = clock::of_this_thread().saturating_sub(start);
        self.turns_due_ns = now_ns.saturating_add(bucket.lasts_ns(spent, TURNS));
    }

    fn look_up_sizes(&mut self, targets: &mut BTreeMap<TargetId, Observed>, now_ns: u64, interval: Duration) {
        for _ in 0..LOOKS_A_STEP.min(targets.len()) {
            let next = targets.range(self.next_turn..).next().or_else(|| targets.iter().next());
            let Some((&id, _)) = next else { return };
            // One for which it is too soon was looked up out of turn.
            self.next_turn = TargetId(id.0.wrapping_add(1));
            if self.look_up_size(targets, id, now_ns, interval) {
                self.read(id);
            }
        }
    }

    /// Whether its mappings are to be read again; false if it is too soon to tell.
    fn look_up_size(
        &mut self,
        targets: &mut BTreeMap<TargetId, Observed>,
        id: TargetId,
        now_ns: u64,
        interval: Duration,
    ) -> bool {
        let Some(target) = targets.get_mut(&id).filter(|t| now_ns >= t.next_look_ns) else { return false };
        let wait = until_next_look(now_ns.saturating_sub(target.began_ns), interval);
        target.next_look_ns = now_ns.saturating_add(wait);
        // One that ended is noticed elsewhere.
        let Ok((mapped, resident)) = target.process.pages() else { return false };
        target.resident_pages = resident;
        let is_known = self.numbers.stamp(&target.process).map(|stamp| target.maps.is_as_of(stamp));
        let is_young = wait < as_ns(interval).min(YOUNG_NS);
        match is_known {
            Some(Some(false)) => true,
            // Of what is young looks are many, and that nothing changed from one to the next is no wonder.
            _ if is_young => !target.maps.is_of(mapped),
            // It was printed before there were numbers.
            Some(None) => true,
            // What is mapped is the same, but a file may be called otherwise by now.
            Some(Some(true)) | None => target.maps.is_stale(mapped),
        }
    }
}

/// Tells, once, that the list of mappings that is known of a target is no longer the one it has, as soon as that is found:
/// under a low ceiling it may take minutes until a list of tens of thousands is read to its end.
fn tell_outdated(
    told: &mut BTreeSet<TargetId>,
    id: TargetId,
    reader: &Reader,
    known: &MapList,
    news: &mut Vec<News>,
) {
    if !told.contains(&id)
        && let Some(list) = reader.with_rest_of(known)
    {
        told.insert(id);
        news.push(News { id, partial: Some(Arc::new(list)), for_observers: true });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maps::Maps;
    use crate::process::Process;
    use isotherm_damon::Ran;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_file_that_is_mapped_in_the_place_of_another_of_its_size_has_the_list_read_again() {
        use crate::maps::numbers_tests::{AT, Mapping, c_string, files, map_at, numbers};
        let Some(mut numbers) = numbers() else { return };
        let (_dir, files) = files("turns");
        let [first, second] = files.each_ref().map(c_string);
        let child = Mapping::that_changes(|| map_at(&first), || map_at(&second));
        if numbers.stamp(&child.0).is_none() {
            println!("skipped: this kernel does not count changes of mappings");
            return;
        }
        let process = Arc::new(Process::open(child.0.pid()).unwrap());
        let target = Observed {
            pid: 1,
            process: Arc::clone(&process),
            parent: None,
            maps: Maps::default(),
            resident_pages: 0,
            began_ns: 0,
            next_look_ns: 0,
            ran: None,
            next_read_ns: 0,
        };
        let id = TargetId(1);
        let mut targets = BTreeMap::from([(id, target)]);
        let mut chores = Chores::by(Some(numbers));
        let (bucket, interval) = (Bucket::new(0.0, 1.0, 0), Duration::from_secs(1));
        let name = |targets: &BTreeMap<TargetId, Observed>| {
            targets[&id].maps.find(AT as u64).map(|mapping| mapping.name.to_string()).unwrap_or_default()
        };
        chores.read(id);
        chores.step(&mut targets, STEP, &mut Vec::new());
        assert!(name(&targets).contains("-kept-"));
        chores.take_turns(&mut targets, 10 * SECOND, &[], interval, &bucket);
        assert!(!chores.has_work(), "nothing changed");
        // Files may be called otherwise by now.
        let looks: Vec<u64> = (11..30)
            .take_while(|at| {
                chores.take_turns(&mut targets, at * SECOND, &[], interval, &bucket);
                !chores.has_work()
            })
            .collect();
        assert!(looks.len() < 10, "{looks:?}");
        chores.step(&mut targets, STEP, &mut Vec::new());
        assert!(!chores.has_work());
        rustix::process::kill_process(process.pid(), rustix::process::Signal::CONT).unwrap();
        let mut seen = Maps::new();
        while !seen.find(AT as u64).is_some_and(|mapping| mapping.name.contains("-deleted-")) {
            seen.read(&process).unwrap();
        }
        chores.take_turns(&mut targets, 32 * SECOND, &[], interval, &bucket);
        chores.step(&mut targets, STEP, &mut Vec::new());
        assert!(name(&targets).contains("-deleted-"));
    }

    #[test]
    fn a_list_of_sizes_has_those_mappings_read_that_changed_and_those_that_run_first() {
        let own = Arc::new(Process::open(rustix::process::getpid()).unwrap());
        let mut maps = Maps::default();
        maps.read(&own).unwrap();
        let observed = || Observed {
            pid: 1,
            process: Arc::clone(&own),
            parent: None,
            maps: maps.inherited(),
            resident_pages: 0,
            began_ns: 0,
            next_look_ns: 0,
            ran: None,
            next_read_ns: 10 * SECOND,
        };
        let mut targets: BTreeMap<TargetId, Observed> = (1..5).map(|id| (TargetId(id), observed())).collect();
        let by_pid: BTreeMap<u32, TargetId> = (1..5).map(|pid| (pid, TargetId(u64::from(pid)))).collect();
        let known = (0..).find(|pages| maps.is_of(*pages)).unwrap();
        let listed = |marks: [u64; 4], sizes: [u64; 4]| -> Vec<ListedProcess> {
            let of = |((pid, mark), pages_mapped)| ListedProcess {
                pid,
                parent: 0,
                ran: Ran { mark, now: false },
                is_whole: true,
                pages_mapped,
            };
            (1..).zip(marks).zip(sizes).map(of).collect()
        };
        let mut chores = Chores::default();
        let mut take = |chores: &mut Chores, at, marks, sizes| {
            chores.take_list(&mut targets, &listed(marks, sizes), &by_pid, at, Duration::from_secs(1));
        };
        let other = known + 1;
        take(&mut chores, 9 * SECOND, [7; 4], [other; 4]);
        assert!(!chores.has_work(), "they were read too shortly before");
        take(&mut chores, 11 * SECOND, [7, 7, 8, 8], [known, other, other, known]);
        assert_eq!((&chores.first, &chores.waiting), (&[TargetId(3)].into(), &[TargetId(2)].into()));
        // One that waits comes to the front once it runs, at the next interval.
        take(&mut chores, 11 * SECOND + 1, [7, 9, 9, 9], [known, other, other, known]);
        assert_eq!(chores.first.len(), 1);
        take(&mut chores, 13 * SECOND, [7, 10, 9, 9], [known, other, other, known]);
        assert_eq!((&chores.first, chores.waiting.len()), (&[TargetId(3), TargetId(2)].into(), 0));
    }
}

//! What a session does beside sampling: it looks for processes and takes them in, and reads what they have mapped, each under
//! its share of the overhead budget.

use super::chores::{self, Chores, News};
use super::{Observed, Session};
use crate::clock;
use crate::schemes::lock;
use crate::source::SourceError;
use isotherm_damon::TargetId;
use std::collections::BTreeMap;
use std::time::Duration;

/// Between two lists of all processes, some 0.3 ms for a thousand: one finds those to take in, the next ones which of them run.
const LIST_PERIOD_NS: u64 = 100_000_000;
/// ... when it found none that runs.
const IDLE_LIST_PERIOD_NS: u64 = 1_000_000_000;
/// Share of what taking in processes may take that goes into lists.
const LISTING: f64 = 0.25;

impl Session {
    /// Looks for new targets, ends and exec, within the budget.
    pub(super) fn look_around(&mut self, now: u64) -> Result<(), SourceError> {
        self.catch_up(now);
        self.notice_deaths(now);
        self.share_of_taking_in();
        let cpu = self.taking_in.allowance(now).unwrap_or_default();
        let start = clock::of_this_thread();
        let events = self.tracker.look(cpu);
        self.take(events, now)?;
        self.taking_in.spend(clock::of_this_thread().saturating_sub(start));
        self.list_processes(now);
        self.read_first(now);
        self.go_on_reading(now);
        Ok(())
    }

    /// Goes on with what is left to do, if the budget allows.
    pub(super) fn work(&mut self, now: u64) -> Result<(), SourceError> {
        self.notice_deaths(now);
        // What was taken in is known only when its mappings are: that comes before taking in more.
        self.read_first(now);
        // How a target ended is told whatever the budget.
        self.share_of_taking_in();
        let cpu = self.taking_in.allowance(now).or((!self.ending.is_empty()).then_some(Duration::ZERO));
        if let Some(cpu) = cpu.filter(|_| self.tracker.has_work()) {
            let start = clock::of_this_thread();
            let events = self.tracker.work(cpu);
            self.take(events, now)?;
            self.taking_in.spend(clock::of_this_thread().saturating_sub(start));
        }
        self.list_processes(now);
        self.go_on_reading(now);
        Ok(())
    }

    /// What taking in may take depends on who is next.
    fn share_of_taking_in(&mut self) {
        let idle = self.tracker.waits_for_idle_ones();
        let part = if idle { chores::TAKING_IN_IDLE } else { chores::TAKING_IN };
        self.taking_in.set_part(self.options.overhead, part);
    }

    /// Asks for a list of all processes, where that is the cheapest way to what waits to be looked up.
    pub(super) fn list_processes(&mut self, now: u64) {
        if now < self.list_at || !self.tracker.wants_list() {
            return;
        }
        let start = clock::of_this_thread();
        if self.source.list_processes(&mut self.listed) {
            self.tracker.take_list(&self.listed);
            self.take_sizes(now);
        } else {
            self.tracker.has_no_list();
        }
        let period = if self.tracker.waits_for_idle_ones() { IDLE_LIST_PERIOD_NS } else { LIST_PERIOD_NS };
        let spent = clock::of_this_thread().saturating_sub(start);
        // Of the share of those that are idle the lists would leave nothing.
        if period == LIST_PERIOD_NS {
            self.taking_in.spend(spent);
        }
        // Of a machine with very many processes, or under a low ceiling, less often; but not more seldom where all are idle: that one
        // of them begins to run is seen by the lists alone.
        let share = self.options.overhead * chores::TAKING_IN * LISTING;
        let lasts = if share > 0.0 { (spent.as_nanos() as f64 / share) as u64 } else { 0 };
        self.list_at = now.saturating_add(period.max(lasts));
    }

    /// Has those mappings read that are others by now, as the list of all processes tells that was just made.
    fn take_sizes(&mut self, now: u64) {
        let Self { chores, targets, listed, by_pid, options, .. } = self;
        chores.take_list(targets, listed, by_pid, now, options.update);
    }

    /// Reads mappings that come first: what was taken in, or runs, is known only when they are.
    fn read_first(&mut self, now: u64) {
        if self.chores.has_first()
            && let Some(cpu) = self.taking_in.allowance(now)
        {
            let start = clock::of_this_thread();
            self.read_mappings(now, |chores, targets, news| chores.step_first(targets, cpu, news));
            self.taking_in.spend(clock::of_this_thread().saturating_sub(start));
        }
    }

    fn go_on_reading(&mut self, now: u64) {
        if let Some(cpu) = self.reading.allowance(now) {
            let start = clock::of_this_thread();
            if self.source.latest_list(&mut self.listed) {
                self.take_sizes(now);
            }
            self.busiest.clear();
            self.source.busiest(&mut self.busiest);
            self.chores.take_turns(&mut self.targets, now, &self.busiest, self.options.update, &self.reading);
            if self.chores.has_work() {
                self.read_mappings(now, |chores, targets, news| chores.step(targets, cpu, news));
            }
            let spent = clock::of_this_thread().saturating_sub(start);
            self.reading.spend(spent);
            self.source.spent_beside(spent);
        }
    }

    pub(super) fn read_mappings(
        &mut self,
        now: u64,
        read: impl FnOnce(&mut Chores, &mut BTreeMap<TargetId, Observed>, &mut Vec<News>),
    ) {
        let mut news = Vec::new();
        read(&mut self.chores, &mut self.targets, &mut news);
        for News { id, partial, for_observers } in news {
            let Some(target) = self.targets.get(&id) else { continue };
            let list = partial.as_ref().unwrap_or(target.maps.list());
            self.source.set_ranges(id, list.ranges());
            // Of one that was known and has changed there are about as many.
            let counted = partial.is_none() || !target.maps.mappings().is_empty();
            self.source.set_mappings(id, counted.then(|| list.mappings().len()));
            if let Some(engine) = &self.schemes {
                lock(engine).mappings(id, list);
            }
            if for_observers {
                self.outlets.mappings(id, list, now);
            }
        }
    }
}

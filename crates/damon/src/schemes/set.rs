//! The schemes of a context: their parameters, what they have come to, and how one is exchanged without losing the other.

use super::apply::{Cursor, Scratch, pass};
use super::attempt::Deferred;
use super::error::CommitError;
use super::goal::{GoalMetric, GoalState};
use super::quota::{Window, ns};
use super::{Actions, Metrics, Scheme, Stats, TriedRegion};
use crate::{Callbacks, Moment};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::time::Duration;

/// Whether a scheme acts, and why not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It acts.
    Active,
    /// Its watermarks keep it from acting, or their metric cannot be read.
    Watermarks,
    /// It has gone through as many snapshots as it may.
    Snapshots,
    /// [`Schemes::suspend`] keeps it from acting.
    Suspended,
    /// No goal's metric can be read, so its quota is 0 until one can.
    Goals,
}

/// What a scheme has come to.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    pub stats: Stats,
    /// Regions of the last pass: those of a target together, in order of their addresses.
    pub tried: Vec<TriedRegion>,
    pub window: Window,
    pub goals: Vec<GoalState>,
    /// Where the last pass stopped, for each rank that had its turn.
    pub cursors: BTreeMap<u16, Cursor>,
    /// What did not fit into the last window, and comes first in the next one.
    pub deferred: Option<Deferred>,
    /// By its watermarks.
    pub inactive: bool,
    /// No goal's metric could be read when the running window was opened.
    pub blind: bool,
    suspended: bool,
    /// The sampling interval of the next pass, for schemes with an interval of their own, and the interval's length then.
    next: Option<(u64, Duration)>,
}

/// The schemes of a context, and their state.
///
/// They are driven by a monitor through [`Callbacks`]: put [`Self::driver`]'s result in the place of the callbacks, or call
/// [`Self::apply`] in [`Callbacks::act`] and [`Self::next_act`] in [`Callbacks::next_act`].
#[derive(Clone, Debug, Default)]
pub struct Schemes {
    schemes: Vec<Scheme>,
    states: Vec<State>,
    scratch: Scratch,
}

impl Schemes {
    /// No schemes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Exchanges the schemes' parameters. A scheme is the one of the same index: its statistics, its running quota window, what
    /// its goals tuned and where it stopped are kept, everything else is replaced. Those that are more begin anew, those that
    /// are no more are forgotten. Of a window that runs a scheme keeps no more than it would get now.
    ///
    /// # Errors
    /// When one of them is not valid; nothing is changed then.
    pub fn commit(&mut self, schemes: Vec<Scheme>) -> Result<(), CommitError> {
        let same: Vec<Option<usize>> = (0..schemes.len()).map(Some).collect();
        self.commit_from(schemes, &same)
    }

    /// As [`Self::commit`], where schemes may have moved in the list: `from` has an entry for each, the index that it had. One that had
    /// none, or shares it with one before it, begins anew.
    ///
    /// # Errors
    /// When one of them is not valid; nothing is changed then.
    pub fn commit_from(&mut self, schemes: Vec<Scheme>, from: &[Option<usize>]) -> Result<(), CommitError> {
        for (index, scheme) in schemes.iter().enumerate() {
            scheme.validate().map_err(|error| CommitError { index, error })?;
        }
        let from = |index: usize| from.get(index).copied().flatten();
        let mut states: Vec<Option<State>> =
            core::mem::take(&mut self.states).into_iter().map(Some).collect();
        let mut state = |at: usize| states.get_mut(at)?.take();
        self.states =
            (0..schemes.len()).map(|index| from(index).and_then(&mut state).unwrap_or_default()).collect();
        let before = core::mem::replace(&mut self.schemes, schemes);
        for (index, (scheme, state)) in self.schemes.iter().zip(&mut self.states).enumerate() {
            let before = from(index).and_then(|at| before.get(at));
            state.window.commit(&scheme.quota);
            state.goals.resize_with(scheme.quota.goals.len(), GoalState::default);
            for (goal, known) in state.goals.iter_mut().enumerate() {
                let metric = |scheme: &Scheme| scheme.quota.goals.get(goal).map(|goal| goal.metric.clone());
                if before.and_then(metric) != metric(scheme) {
                    *known = GoalState::default();
                }
            }
            if before.is_none_or(|before| before.apply_interval != scheme.apply_interval) {
                state.next = None;
            }
            if scheme.watermarks.is_none() {
                state.inactive = false;
            }
            state.blind &= !scheme.quota.goals.is_empty();
        }
        Ok(())
    }

    /// Gives the goal of an index its present value, if it is one of [`GoalMetric::UserInput`]. Whether there is such a goal.
    pub fn set_goal_input(&mut self, scheme: usize, goal: usize, value: Option<u64>) -> bool {
        let goal = self.schemes.get_mut(scheme).and_then(|scheme| scheme.quota.goals.get_mut(goal));
        match goal.map(|goal| &mut goal.metric) {
            Some(GoalMetric::UserInput(input)) => {
                *input = value;
                true
            }
            _ => false,
        }
    }

    /// Keeps a scheme from acting, or no longer; for reasons of the caller's.
    pub fn suspend(&mut self, scheme: usize, on: bool) {
        if let Some(state) = self.states.get_mut(scheme) {
            state.suspended = on;
        }
    }

    /// The schemes in force.
    pub fn schemes(&self) -> &[Scheme] {
        &self.schemes
    }

    /// What the scheme of this index has done so far.
    pub fn stats(&self, scheme: usize) -> Option<&Stats> {
        self.states.get(scheme).map(|state| &state.stats)
    }

    /// Regions of the scheme's last pass: those of a target together, in order of their addresses.
    pub fn tried_regions(&self, scheme: usize) -> &[TriedRegion] {
        self.states.get(scheme).map_or(&[], |state| &state.tried)
    }

    /// Forgets the regions of all schemes' last passes.
    pub fn clear_tried_regions(&mut self) {
        self.states.iter_mut().for_each(|state| state.tried.clear());
    }

    /// What the scheme may do in its running quota window, in bytes; 0 without a limit, and before its first pass.
    pub fn effective_bytes(&self, scheme: usize) -> u64 {
        self.states.get(scheme).map_or(0, |state| state.window.effective())
    }

    /// Whether the scheme acts, as far as is known since its last pass.
    pub fn status(&self, scheme: usize) -> Option<Status> {
        let (scheme, state) = self.schemes.get(scheme).zip(self.states.get(scheme))?;
        Some(state.status(scheme))
    }

    /// Reads the metrics of all watermarks. If they keep every scheme from acting, nothing needs to be monitored: how long to
    /// wait before this is called again (kernel design document, "Watermarks").
    pub fn dormant(&mut self, metrics: &mut impl Metrics) -> Option<Duration> {
        let mut wait: Option<Duration> = None;
        let mut all = true;
        for (scheme, state) in self.schemes.iter().zip(&mut self.states) {
            state.read_watermark(scheme, metrics);
            all &= state.inactive;
            if let Some(marks) = scheme.watermarks {
                wait = Some(wait.map_or(marks.interval, |least| least.min(marks.interval)));
            }
        }
        wait.filter(|_| all)
    }

    /// Lets every scheme act that is due, one after another.
    pub fn apply(&mut self, moment: &mut Moment<'_>, actions: &mut impl Actions, metrics: &mut impl Metrics) {
        for (index, (scheme, state)) in self.schemes.iter().zip(&mut self.states).enumerate() {
            if !state.is_due(scheme, moment) {
                continue;
            }
            state.read_watermark(scheme, metrics);
            // Whether goals can be read is found out by each window anew.
            if matches!(state.status(scheme), Status::Active | Status::Goals) {
                pass(scheme, index, state, &mut self.scratch, moment, actions, metrics);
            }
        }
        actions.take_cleared(&mut moment.cleared);
    }

    /// For [`Callbacks::next_act`]: the sampling interval in which a scheme with an interval of its own is due next.
    pub fn next_act(&self, now: u64) -> u64 {
        let own = self.schemes.iter().zip(&self.states).filter(|(scheme, _)| scheme.apply_interval.is_some());
        own.map(|(_, state)| state.next.map_or(now + 1, |(at, _)| at)).min().unwrap_or(u64::MAX)
    }

    /// Callbacks that let the schemes act, and pass everything on to `then`.
    pub fn driver<'a, A, M, C>(
        &'a mut self,
        actions: &'a mut A,
        metrics: &'a mut M,
        then: &'a mut C,
    ) -> Driver<'a, A, M, C> {
        Driver { schemes: self, actions, metrics, then }
    }
}

impl State {
    fn status(&self, scheme: &Scheme) -> Status {
        if self.suspended {
            Status::Suspended
        } else if scheme.max_nr_snapshots.is_some_and(|most| self.stats.nr_snapshots >= most.get()) {
            Status::Snapshots
        } else if self.inactive {
            Status::Watermarks
        } else if self.blind {
            Status::Goals
        } else {
            Status::Active
        }
    }

    fn read_watermark(&mut self, scheme: &Scheme, metrics: &mut impl Metrics) {
        if let Some(marks) = scheme.watermarks {
            self.inactive = !marks.is_active(!self.inactive, metrics.watermark(marks.metric));
        }
    }

    /// Whether a pass is due; the next one is set then. Counted in sampling intervals, as the kernel's `next_apply_sis`.
    fn is_due(&mut self, scheme: &Scheme, moment: &Moment<'_>) -> bool {
        let Some(interval) = scheme.apply_interval else { return moment.ends_aggregation };
        let sample = moment.attrs.sample;
        let step = (ns(interval) / ns(sample).max(1)).max(1);
        // The grid begins where the scheme does, and anew when its unit changes.
        let begins = (moment.interval.saturating_sub(1).saturating_add(step), sample);
        let (at, _) = *self.next.get_or_insert(begins);
        let at = if self.next.is_some_and(|(_, unit)| unit != sample) { begins.0 } else { at };
        self.next = Some((at, sample));
        if moment.interval < at {
            return false;
        }
        // The next on the grid: what was missed is not made up for.
        let passes = ((moment.interval - at) / step).saturating_add(1);
        let next = at.saturating_add(passes.saturating_mul(step));
        self.next = Some((next, sample));
        true
    }
}

/// Callbacks that let [`Schemes`] act; made by [`Schemes::driver`].
#[derive(Debug)]
pub struct Driver<'a, A, M, C> {
    schemes: &'a mut Schemes,
    actions: &'a mut A,
    metrics: &'a mut M,
    then: &'a mut C,
}

impl<A: Actions, M: Metrics, C: Callbacks> Callbacks for Driver<'_, A, M, C> {
    fn act(&mut self, moment: &mut Moment<'_>) {
        self.schemes.apply(moment, self.actions, self.metrics);
        self.then.act(moment);
    }
    fn next_act(&self, now: u64) -> u64 {
        self.schemes.next_act(now).min(self.then.next_act(now))
    }
    fn before_start(&mut self, targets: &[crate::Target]) {
        self.then.before_start(targets);
    }
    fn after_sampling(&mut self, targets: &[crate::Target]) {
        self.then.after_sampling(targets);
    }
    fn after_aggregation(&mut self, targets: &mut [crate::Target], snapshot: &crate::Snapshot) {
        self.then.after_aggregation(targets, snapshot);
    }
    fn after_update(&mut self, targets: &[crate::Target]) {
        self.then.after_update(targets);
    }
    fn attrs_changed(&mut self, attrs: &crate::Attrs) {
        self.then.attrs_changed(attrs);
    }
    fn before_terminate(&mut self, targets: &[crate::Target]) {
        self.then.before_terminate(targets);
    }
}

//! The threads of one process, and its areas: what does a phase's share of the work.

use crate::area::Area;
use crate::plan::{PhasePlan, Plan, Stream};
use crate::rng::Rng;
use crate::run::RunError;
use crate::worker::{Job, Shift, Tally, work};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

/// What came of a thread's share of a phase, and when its last access was over.
pub(crate) type Answer = (Vec<Tally>, u64);

/// The threads and the ways to and from them. Dropping it lets them end.
pub(crate) struct Crew<'scope, 'a> {
    /// Index of each thread in the plan, and the way to it.
    orders: Vec<(usize, Sender<Shift<'a>>)>,
    handles: Vec<ScopedJoinHandle<'scope, ()>>,
    answers: Receiver<Answer>,
}

impl<'scope, 'a: 'scope> Crew<'scope, 'a> {
    /// Starts the threads of process `process` of the plan.
    pub(crate) fn start(
        scope: &'scope Scope<'scope, '_>,
        plan: &Plan,
        process: usize,
    ) -> Result<Self, RunError> {
        let (answer, answers) = channel::<Answer>();
        let mut crew = Self { orders: Vec::new(), handles: Vec::new(), answers };
        let threads = plan.threads.iter().enumerate().filter(|(_, t)| t.process == process);
        for (index, _) in threads {
            let (order, inbox) = channel::<Shift<'a>>();
            let answer = answer.clone();
            let rng = Rng::new(plan.seed, index as u64);
            let handle = std::thread::Builder::new()
                .name(format!("touch{index}"))
                .stack_size(256 << 10)
                .spawn_scoped(scope, move || serve(&inbox, &answer, rng))
                .map_err(|source| RunError::Thread { count: plan.threads.len(), source })?;
            crew.orders.push((index, order));
            crew.handles.push(handle);
        }
        Ok(crew)
    }

    /// Gives each thread its share of a phase; `shift` is the phase as all see it. How many have one.
    pub(crate) fn begin(
        &self,
        plan: &Plan,
        phase: &PhasePlan,
        areas: &Areas,
        shift: &Shift<'a>,
    ) -> Result<usize, RunError> {
        let mut waiting = 0;
        for (thread, order) in &self.orders {
            let streams = phase.streams.iter().enumerate().filter(|(_, s)| s.thread == *thread);
            let jobs = streams.map(|(index, s)| areas.job(plan, index, s)).collect::<Result<Vec<_>, _>>()?;
            if !jobs.is_empty() {
                order.send(Shift { jobs, ..shift.clone() }).map_err(|_| RunError::Worker)?;
                waiting += 1;
            }
        }
        Ok(waiting)
    }

    /// The next answer; `None` when none came in time.
    pub(crate) fn answer(&self, patience: Duration) -> Result<Option<Answer>, RunError> {
        match self.answers.recv_timeout(patience) {
            Ok(answer) => Ok(Some(answer)),
            Err(RecvTimeoutError::Timeout) if self.handles.iter().any(|h| h.is_finished()) => {
                Err(RunError::Worker)
            }
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(RunError::Worker),
        }
    }
}

/// A thread's life: one shift after the other until no more can come.
fn serve(inbox: &Receiver<Shift<'_>>, answer: &Sender<Answer>, mut rng: Rng) {
    // Wake-ups within 1 us of the schedule; the default slack of 50 us would show as jitter. Best effort.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1000));
    while let Ok(shift) = inbox.recv() {
        if answer.send(work(shift, &mut rng)).is_err() {
            break;
        }
    }
}

/// The areas that a process has mapped, by their index in the plan.
#[derive(Debug, Default)]
pub(crate) struct Areas(Vec<Option<Area>>);

impl Areas {
    /// Maps those of `process` in addition to what is mapped already.
    pub(crate) fn map(&mut self, plan: &Plan, process: usize) -> Result<(), RunError> {
        self.0.resize_with(plan.areas.len(), || None);
        // The kernel maps downwards: the last comes first so that addresses rise with the index.
        for (area, slot) in plan.areas.iter().zip(&mut self.0).rev().filter(|(a, _)| a.process == process) {
            let mapped = Area::map(area, plan.page, plan.unit, plan.base_page);
            let error = |source| RunError::Map { area: area.name.clone(), bytes: area.size, source };
            *slot = Some(mapped.map_err(error)?);
        }
        Ok(())
    }

    pub(crate) fn get(&self, index: usize) -> Option<&Area> {
        self.0.get(index).and_then(Option::as_ref)
    }

    pub(crate) fn get_mut(&mut self, index: usize) -> Option<&mut Area> {
        self.0.get_mut(index).and_then(Option::as_mut)
    }

    fn job(&self, plan: &Plan, index: usize, stream: &Stream) -> Result<Job, RunError> {
        let (Some(area), Ok(offset), Ok(size), Ok(unit), Ok(base_page)) = (
            self.get(stream.area),
            usize::try_from(stream.offset),
            usize::try_from(stream.size),
            usize::try_from(plan.unit),
            usize::try_from(plan.base_page),
        ) else {
            return Err(RunError::Worker);
        };
        // The plan keeps streams inside their area; what the threads may touch hangs on it.
        assert!(offset.checked_add(size).is_some_and(|end| end <= area.size()), "stream outside its area");
        Ok(Job { index, base: area.start() + offset, size, unit, base_page, stream: stream.clone() })
    }
}

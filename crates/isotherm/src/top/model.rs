//! What `top` knows: every target's figures, and of its past what fits into a bound.
//!
//! A thread of its own folds in what the session tells ([`Folder`]). The screen takes the lock for as long as it takes to
//! copy what it shows, and never while it draws or writes; sampling waits for neither.

use super::timeline::{MapsSince, Moment, Timeline};
use crate::live;
use isotherm_damon::{Attrs, Snapshot, TargetId};
use isotherm_linux::maps::MapList;
use isotherm_linux::process::Process;
use isotherm_linux::targets::EndReason;
use isotherm_linux::thread_cpu;
use isotherm_linux::{Cost, Observer, Refusals};
use isotherm_record as rec;
use isotherm_record::Item;
use isotherm_report::Accumulate;
use isotherm_report::holdings::{Figures, Holdings};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Seconds of the trend.
pub const TREND: usize = 120;
/// The same of what has ended: as many as a narrow column shows, and some. A guess.
const TREND_OF_ENDED: usize = 16;

/// Targets that ended and are still kept for what they did.
const MOST_ENDED: usize = 1024;

/// Names of a target that are kept beside the present one: one that executes programs all the time shall not fill the memory.
const MOST_NAMES: usize = 32;

/// How much of the past is kept.
#[derive(Clone, Copy, Debug)]
pub struct Keep {
    /// How long, ns.
    pub time_ns: u64,
    /// Bytes that it may take; where it takes more, the oldest goes sooner.
    pub bytes: usize,
}

impl Default for Keep {
    /// Ten minutes in 64 MiB.
    fn default() -> Self {
        Self { time_ns: 600_000_000_000, bytes: 64 << 20 }
    }
}

/// A process.
#[derive(Clone, Debug, Default)]
pub struct Target {
    pub info: rec::TargetInfo,
    /// What it was called before, oldest first. The first of all its names is dated when it was first watched, the others when
    /// it was found to have them.
    pub former: VecDeque<rec::TargetInfo>,
    pub timeline: Timeline,
    /// None as long as they were not added up.
    pub figures: Option<Figures>,
    /// Working set (1 s) second by second, the latest last; none where it is not known.
    pub trend: VecDeque<Option<f32>>,
    /// When it ended, and how.
    pub ended: Option<(u64, String)>,
}

impl Target {
    /// It is called otherwise from `time_ns` on.
    fn rename(&mut self, comm: String, cmdline: Vec<String>, time_ns: u64) {
        let cmdline = if cmdline.is_empty() { self.info.cmdline.clone() } else { cmdline };
        if (&comm, &cmdline) == (&self.info.comm, &self.info.cmdline) {
            return;
        }
        let renamed = rec::TargetInfo { comm, cmdline, time_ns, ..self.info.clone() };
        self.former.push_back(std::mem::replace(&mut self.info, renamed));
        if self.former.len() > MOST_NAMES
            && let Some(oldest) = self.former.pop_front()
            && let Some(next) = self.former.front_mut()
        {
            // It has been watched since then.
            next.time_ns = oldest.time_ns;
        }
    }

    /// Forgets names that it no longer had at `ns`.
    fn forget_names(&mut self, ns: u64) {
        while self.former.get(1).unwrap_or(&self.info).time_ns <= ns && self.former.pop_front().is_some() {}
    }

    /// Memory it takes, about: a command line may be as long as the past of a process that did little.
    fn bytes(&self) -> usize {
        let names = self.former.iter().chain(std::iter::once(&self.info));
        let command: usize =
            names.flat_map(|info| &info.cmdline).map(|word| size_of::<String>() + word.len()).sum();
        size_of::<Self>() + command + size_of::<Option<f32>>() * self.trend.capacity() + self.timeline.bytes()
    }
}

/// All that is known.
#[derive(Clone, Debug, Default)]
pub struct Model {
    pub header: rec::Header,
    /// What processes and mappings hold now.
    pub holdings: Holdings,
    pub targets: BTreeMap<TargetId, Target>,
    /// The snapshots kept.
    pub moments: VecDeque<Moment>,
    /// All processes together: what several map counts once.
    pub totals: Option<Figures>,
    /// Snapshots seen.
    pub snapshots: u64,
    /// Snapshots lost.
    pub lost: u64,
    /// Processes that may not be watched, and why the first may not.
    pub refused: (u64, String),
    pub cost: Option<Cost>,
    /// Costs of the time that is kept.
    pub costs: VecDeque<Cost>,
    /// What the backend cannot see, as far as it is known by now.
    pub blind_spots: Vec<String>,
    /// The session is over, and why.
    pub over: Option<String>,
    /// Raised by each change that shows.
    pub version: u64,
    keep: Keep,
}

impl Model {
    pub fn new(header: rec::Header, keep: Keep) -> Self {
        Self { header, keep, ..Self::default() }
    }

    /// A target is found, or found anew under another name.
    pub fn target(&mut self, info: rec::TargetInfo) {
        self.version += 1;
        self.holdings.note(&Item::Target(info.clone()));
        let id = TargetId(info.id);
        self.targets.entry(id).or_default().info = info;
    }

    /// A target is called otherwise from `time_ns` on; without a command line it keeps the one it had.
    pub fn renamed(&mut self, id: TargetId, comm: String, cmdline: Vec<String>, time_ns: u64) {
        if let Some(target) = self.targets.get_mut(&id) {
            target.rename(comm, cmdline, time_ns);
            self.version += 1;
        }
    }

    pub fn mappings(&mut self, list: rec::Mappings) {
        let target = self.targets.get_mut(&TargetId(list.target));
        let Some(target) = target.filter(|target| target.ended.is_none()) else { return };
        target.timeline.map(MapsSince::of(&list));
        self.holdings.note(&Item::Mappings(list));
    }

    pub fn snapshot(&mut self, snapshot: &Snapshot) {
        let moment = Moment::of(snapshot);
        self.snapshots += 1;
        self.version += 1;
        self.moments.push_back(moment);
        for seen in &snapshot.targets {
            if let Some(target) = self.targets.get_mut(&seen.id) {
                target.timeline.push(moment, seen);
            }
        }
        self.holdings.snapshot(snapshot);
    }

    pub fn target_end(&mut self, id: TargetId, reason: String, time_ns: u64) {
        let end = rec::TargetEnd { target: id.0, time_ns, reason: reason.clone() };
        self.holdings.note(&Item::TargetEnd(end));
        if let Some(target) = self.targets.get_mut(&id) {
            target.ended = Some((time_ns, reason));
            // When all have ended those of the last snapshot stay on the screen. Thousands may have ended, though.
            let first = target.trend.len().saturating_sub(TREND_OF_ENDED);
            target.trend = target.trend.drain(first..).collect();
            self.version += 1;
        }
    }

    pub fn cost(&mut self, cost: &Cost) {
        self.lost += cost.snapshots_lost;
        self.cost = Some(*cost);
        self.costs.push_back(*cost);
        self.version += 1;
        for target in self.targets.values_mut().filter(|target| target.ended.is_none()) {
            if target.trend.len() == TREND {
                target.trend.pop_front();
            }
            let [ws_1s, ..] = target.figures.map_or([None; 3], |figures| figures.working_sets());
            target.trend.push_back(ws_1s.map(|bytes| bytes as f32));
        }
        self.forget(cost.time_ns);
    }

    /// The last cost, with the CPU and wall time of the last ten seconds: work comes in bursts, and the ceiling is kept on
    /// the mean.
    pub fn recent_cost(&self) -> Option<Cost> {
        let last = self.cost?;
        let recent =
            self.costs.iter().rev().take_while(|cost| last.time_ns.saturating_sub(cost.time_ns) < COST_NS);
        let (cpu_ns, wall_ns) =
            recent.fold((0, 0), |(cpu, wall), cost| (cpu + cost.cpu_ns, wall + cost.wall_ns));
        Some(Cost { cpu_ns, wall_ns, ..last })
    }

    /// Share of the sampling intervals of that time that were missed since the monitor came late; none where it is not known.
    pub fn recent_missed(&self) -> Option<f64> {
        let last = self.cost?;
        let recent =
            self.costs.iter().rev().take_while(|cost| last.time_ns.saturating_sub(cost.time_ns) < COST_NS);
        let (missed, wall_ns) =
            recent.fold((0, 0), |(n, wall), cost| (n + cost.counters.samples_missed, wall + cost.wall_ns));
        let intervals = wall_ns as f64 / (self.header.attrs.sample_us as f64 * 1000.0);
        (intervals > 0.0 && intervals.is_finite()).then(|| (missed as f64 / intervals).min(1.0))
    }

    /// Has the figures of processes be those of the last snapshot.
    pub fn add_up(&mut self) {
        let stock = self.holdings.stock();
        for (id, figures) in stock.processes {
            if let Some(target) = self.targets.get_mut(&id) {
                target.figures = Some(figures);
            }
        }
        self.totals = Some(stock.totals);
    }

    /// All of it as it is at this moment. The past is shared by reference.
    pub fn frozen(&self) -> Self {
        let mut frozen = self.clone();
        frozen.add_up();
        frozen
    }

    /// Forgets what is past the bounds.
    fn forget(&mut self, now_ns: u64) {
        let mut horizon = now_ns.saturating_sub(self.keep.time_ns);
        loop {
            let mut bytes = self.moments.len() * size_of::<Moment>();
            for target in self.targets.values_mut() {
                target.timeline.forget(horizon);
                target.forget_names(horizon);
                bytes += target.bytes();
            }
            while self.moments.front().is_some_and(|m| m.end_ns < horizon) {
                self.moments.pop_front();
            }
            // The last second stays, whatever it takes.
            let kept = now_ns.saturating_sub(horizon);
            if bytes <= self.keep.bytes || kept < 1_000_000_000 {
                break;
            }
            horizon = now_ns - kept / 8 * 7;
        }
        while self.costs.front().is_some_and(|c| c.time_ns < horizon) {
            self.costs.pop_front();
        }
        self.targets.retain(|_, t| t.ended.is_none() || !t.timeline.is_empty());
        let ended = self.targets.iter().filter_map(|(&id, t)| Some((t.ended.as_ref()?.0, id)));
        let mut ended: Vec<(u64, TargetId)> = ended.collect();
        let excess = ended.len().saturating_sub(MOST_ENDED);
        if excess > 0 {
            // Many may have ended at the same time: of those, too, no more than the bound.
            ended.select_nth_unstable(excess - 1);
            ended[..excess].iter().for_each(|(_, id)| {
                self.targets.remove(id);
            });
        }
    }

    /// Beginning and end of what is kept, ns.
    pub fn kept(&self) -> Option<(u64, u64)> {
        Some((self.moments.front()?.start_ns, self.moments.back()?.end_ns))
    }

    /// Whether the session is over since all processes ended: what they held last is all that there is to show.
    pub fn is_of_the_past(&self) -> bool {
        self.over.is_some() && self.alive() == 0
    }

    /// Those of the last snapshot that had a target: what the totals are of.
    pub fn last_watched(&self) -> BTreeSet<TargetId> {
        let held = self.holdings.processes().into_iter().filter(|process| process.ended.is_none());
        held.map(|process| TargetId(process.target)).collect()
    }

    /// Processes of now whose list of mappings is not known to its end.
    pub fn incomplete(&self) -> usize {
        let alive = self.targets.values().filter(|t| t.ended.is_none());
        alive.filter(|t| t.timeline.maps().is_some_and(|list| list.partial)).count()
    }

    /// Processes there are now.
    pub fn alive(&self) -> usize {
        self.targets.values().filter(|t| t.ended.is_none()).count()
    }
}

/// The model, shared by the thread that folds and the one that draws.
#[derive(Clone, Debug)]
pub struct Shared(Arc<Mutex<Model>>);

impl Shared {
    pub fn new(model: Model) -> Self {
        Self(Arc::new(Mutex::new(model)))
    }

    pub fn lock(&self) -> MutexGuard<'_, Model> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Folds what the session tells into the model.
pub struct Folder {
    model: Shared,
    processes: BTreeMap<TargetId, Arc<Process>>,
    unasked: VecDeque<TargetId>,
    pace: FigurePace,
}

/// Costs are shown on the mean of so long.
const COST_NS: u64 = 10_000_000_000;
/// Share of a CPU that adding up figures takes at most: it is taken from what monitoring may take, and with many processes
/// in motion it would leave little of that. A quarter of the default.
const FIGURES: f64 = 0.002_5;
/// Figures are never older than this, ns, however dear they are.
const OLDEST_FIGURES_NS: u64 = 10_000_000_000;

/// When figures are to be added up.
#[derive(Clone, Copy, Debug, Default)]
struct FigurePace {
    due_ns: u64,
}

impl FigurePace {
    fn is_due(self, now_ns: u64) -> bool {
        // Costs come about a second apart.
        self.due_ns <= now_ns.saturating_add(100_000_000)
    }

    /// They took so much CPU time.
    fn took(&mut self, cpu: Duration, now_ns: u64) {
        let wait = Duration::from_secs_f64(cpu.as_secs_f64() / FIGURES).as_nanos();
        self.due_ns = now_ns + u64::try_from(wait).unwrap_or(u64::MAX).min(OLDEST_FIGURES_NS);
    }
}

/// Command lines asked for in a second of those that were forked (see the recorder).
const ASKED_A_SECOND: usize = 8;

impl Folder {
    pub fn new(model: Shared) -> Self {
        let (processes, unasked) = Default::default();
        Self { model, processes, unasked, pace: FigurePace::default() }
    }

    fn name_anew(&mut self, id: TargetId, process: &Process, time_ns: u64) {
        let (comm, cmdline) = live::names_of(process);
        self.model.lock().renamed(id, comm, cmdline, time_ns);
    }
}

impl Observer for Folder {
    fn target(
        &mut self,
        id: TargetId,
        process: &Arc<Process>,
        parent: Option<TargetId>,
        is_copy: bool,
        time_ns: u64,
    ) {
        self.processes.insert(id, Arc::clone(process));
        let names = if is_copy && parent.is_some() {
            self.unasked.push_back(id);
            let model = self.model.lock();
            let known = parent.and_then(|parent| model.targets.get(&parent));
            (process.first_comm().to_owned(), known.map_or_else(Vec::new, |p| p.info.cmdline.clone()))
        } else {
            live::names_of(process)
        };
        let info = live::target_info(id, process, parent, names, time_ns);
        self.model.lock().target(info);
    }

    fn mappings(&mut self, id: TargetId, maps: &MapList, time_ns: u64) {
        let list = live::recorded_mappings(id, maps, time_ns);
        self.model.lock().mappings(list);
    }

    fn execed(&mut self, id: TargetId, process: &Process, time_ns: u64) {
        self.name_anew(id, process, time_ns);
    }

    fn attrs(&mut self, attrs: &Attrs, _time_ns: u64) {
        self.model.lock().header.attrs = live::recorded_attrs(attrs);
    }

    fn snapshot(&mut self, snapshot: &Snapshot) {
        self.model.lock().snapshot(snapshot);
    }

    fn target_end(&mut self, id: TargetId, reason: EndReason, time_ns: u64) {
        self.processes.remove(&id);
        let reason = reason.to_string();
        self.model.lock().target_end(id, reason, time_ns);
    }

    fn refused(&mut self, refusals: &Refusals) {
        let mut model = self.model.lock();
        if model.refused.0 == 0 {
            model.refused.1.clone_from(&refusals.why);
        }
        model.refused.0 += refusals.count;
        model.version += 1;
    }

    fn blind_spots(&mut self, spots: &[String]) {
        self.model.lock().blind_spots = spots.to_vec();
    }

    fn cost(&mut self, cost: &Cost) {
        // Of processes that came and went within a second nobody asks any more.
        self.unasked.retain(|id| self.processes.contains_key(id));
        for _ in 0..ASKED_A_SECOND {
            let Some(id) = self.unasked.pop_front() else { break };
            if let Some(process) = self.processes.get(&id).map(Arc::clone) {
                self.name_anew(id, &process, isotherm_linux::monotonic_ns());
            }
        }
        let mut model = self.model.lock();
        if self.pace.is_due(cost.time_ns) {
            let before = thread_cpu();
            model.add_up();
            self.pace.took(thread_cpu().saturating_sub(before), cost.time_ns);
        }
        model.cost(cost);
    }
}

#[cfg(test)]
mod tests;

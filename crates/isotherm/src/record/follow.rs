//! `isotherm record --follow`: a summary every interval, a JSON object a line, on standard output. On a thread of its own: who
//! reads it may be slow, or gone, and the recording goes on to its proper end.

use super::utc::Utc;
use crate::live;
use isotherm_damon::{Snapshot, TargetId};
use isotherm_linux::maps::MapList;
use isotherm_linux::process::Process;
use isotherm_linux::targets::{Counts, EndReason};
use isotherm_linux::{Cost, FeedLimits, Observer, Session};
use isotherm_record as rec;
use isotherm_record::Item;
use isotherm_report::Accumulate;
use isotherm_report::holdings::{Figures, Holdings};
use serde::Serialize;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Prints summaries.
pub struct Follower {
    interval_ns: u64,
    started_ns: u64,
    due_ns: u64,
    holdings: Holdings,
    snapshots: u64,
    spent: Spent,
    /// As of the last cost.
    met: Option<Counts>,
    gone: Arc<AtomicBool>,
    lost: Lost,
}

/// Why lines could not be written, but for that nobody reads them: the first error. No line is written after it.
pub type Lost = Arc<Mutex<Option<std::io::Error>>>;

/// What monitoring cost since the last line.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Spent {
    #[serde(skip)]
    wall_ns: u64,
    #[serde(skip)]
    cpu_ns: u64,
    /// CPU time of the monitor as a share of one CPU.
    cpu_share: Option<f64>,
    checks: u64,
    clears: u64,
    checks_cut: u64,
    clears_cut: u64,
    samples_missed: u64,
    /// Snapshots that are not in these lines, since they were read too slowly.
    snapshots_lost: u64,
}

/// A line.
#[derive(Serialize)]
struct Line {
    time: String,
    elapsed_s: f64,
    snapshots: u64,
    processes: Vec<ProcessLine>,
    totals: Figures,
    /// Processes met with so far; absent before the first second is over.
    seen: Option<u64>,
    too_short: Option<u64>,
    unreached: Option<u64>,
    waiting: Option<u64>,
    /// Absent where it was not told since the line before.
    cost: Option<Spent>,
}

/// A process in a line.
#[derive(Serialize)]
struct ProcessLine {
    pid: u32,
    name: String,
    #[serde(flatten)]
    figures: Figures,
}

impl Follower {
    /// One that prints every `interval`.
    pub fn new(interval: Duration) -> Self {
        let interval_ns = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX).max(1);
        let started_ns = isotherm_linux::monotonic_ns();
        Self {
            interval_ns,
            started_ns,
            due_ns: started_ns.saturating_add(interval_ns),
            holdings: Holdings::default(),
            snapshots: 0,
            spent: Spent::default(),
            met: None,
            gone: Arc::default(),
            lost: Arc::default(),
        }
    }

    /// Set once nobody reads what it prints.
    pub fn gone(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.gone)
    }

    /// Holds why lines could not be written, once that is so.
    pub fn lost(&self) -> Lost {
        Arc::clone(&self.lost)
    }

    fn prints(&self) -> bool {
        !self.gone.load(Ordering::Relaxed)
            && self.lost.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    fn tick(&mut self, now_ns: u64) {
        // What monitoring cost, and whom it met with, comes shortly after the snapshot; the first line waits for it.
        let patience = if self.met.is_none() { self.interval_ns.min(FIRST_COST_NS) } else { 0 };
        if now_ns >= self.due_ns.saturating_add(patience) {
            let passed = (now_ns - self.due_ns) / self.interval_ns;
            self.due_ns = self.due_ns.saturating_add((passed + 1).saturating_mul(self.interval_ns));
            self.print(now_ns);
        }
    }

    fn print(&mut self, now_ns: u64) {
        if !self.prints() {
            return;
        }
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let wall_ns = u64::try_from(wall.as_nanos()).unwrap_or(0);
        // The moment that the figures are of, not that of printing.
        let late = isotherm_linux::monotonic_ns().saturating_sub(now_ns);
        let mut cost = std::mem::take(&mut self.spent);
        cost.cpu_share = (cost.wall_ns > 0).then(|| cost.cpu_ns as f64 / cost.wall_ns as f64);
        let living = self.holdings.processes().into_iter().filter(|process| process.ended.is_none());
        let line = Line {
            time: Utc::from_ns(wall_ns.saturating_sub(late)).rfc_3339(),
            elapsed_s: now_ns.saturating_sub(self.started_ns) as f64 / 1e9,
            snapshots: std::mem::take(&mut self.snapshots),
            processes: living
                .map(|process| ProcessLine { pid: process.pid, name: process.name, figures: process.figures })
                .collect(),
            totals: self.holdings.totals(),
            seen: self.met.map(|met| met.seen),
            too_short: self.met.and_then(|met| met.too_short),
            unreached: self.met.map(|met| met.unreached),
            waiting: self.met.map(|met| met.waiting),
            // Costs come every second: of a shorter interval, or one between two, there is none to tell.
            cost: (cost.wall_ns > 0).then_some(cost),
        };
        let Ok(mut text) = serde_json::to_vec(&line) else { return };
        text.push(b'\n');
        let mut out = std::io::stdout().lock();
        match out.write_all(&text).and_then(|()| out.flush()) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {
                self.gone.store(true, Ordering::Relaxed);
            }
            Err(error) => *self.lost.lock().unwrap_or_else(PoisonError::into_inner) = Some(error),
        }
    }
}

impl Observer for Follower {
    fn target(
        &mut self,
        id: TargetId,
        process: &Arc<Process>,
        parent: Option<TargetId>,
        is_copy: bool,
        time_ns: u64,
    ) {
        // A copy has its parent's name, or will have one of its own.
        let comm = if is_copy { process.first_comm().to_owned() } else { live::names_of(process).0 };
        let info = live::target_info(id, process, parent, (comm, Vec::new()), time_ns);
        self.holdings.note(&Item::Target(info));
    }

    fn mappings(&mut self, id: TargetId, maps: &MapList, time_ns: u64) {
        self.holdings.note(&Item::Mappings(live::recorded_mappings(id, maps, time_ns)));
    }

    fn execed(&mut self, id: TargetId, process: &Process, time_ns: u64) {
        let info = live::target_info(id, process, None, live::names_of(process), time_ns);
        self.holdings.note(&Item::Target(info));
    }

    fn snapshot(&mut self, snapshot: &Snapshot) {
        self.holdings.snapshot(snapshot);
        self.snapshots += 1;
        self.tick(snapshot.end_ns);
    }

    fn target_end(&mut self, id: TargetId, _reason: EndReason, time_ns: u64) {
        let end = rec::TargetEnd { target: id.0, time_ns, reason: "ended".to_owned() };
        self.holdings.note(&Item::TargetEnd(end));
    }

    fn cost(&mut self, cost: &Cost) {
        let spent = &mut self.spent;
        spent.wall_ns += cost.wall_ns;
        spent.cpu_ns += cost.cpu_ns;
        spent.checks += cost.counters.checks;
        spent.clears += cost.counters.clears;
        spent.checks_cut += cost.counters.checks_cut;
        spent.clears_cut += cost.counters.clears_cut;
        spent.samples_missed += cost.counters.samples_missed;
        spent.snapshots_lost += cost.snapshots_lost;
        self.met = Some(cost.met);
        // Where there is no snapshot, as of an empty control group, there is a line all the same.
        self.tick(cost.time_ns);
    }
}

/// Lets the follower run on a thread of its own until the session is over.
///
/// # Errors
/// The system gives no thread.
pub fn start(session: &mut Session, mut follower: Follower) -> std::io::Result<JoinHandle<()>> {
    let feed = session.subscribe(FeedLimits { snapshots: QUEUE, ..FeedLimits::default() });
    std::thread::Builder::new().name("isotherm-follow".to_owned()).spawn(move || {
        feed.run(&mut follower);
        // What is left of an interval.
        if follower.snapshots > 0 || follower.spent.wall_ns > 0 {
            follower.print(follower.holdings.now_ns());
        }
    })
}

/// How long the first line waits for the first cost at the longest: costs come every second.
const FIRST_COST_NS: u64 = 1_000_000_000;

/// Snapshots that may wait: some seconds, should the reader keep its writer waiting.
const QUEUE: usize = 64;

/// How long a reader that stands still is waited for once the recording has ended.
const PATIENCE: Duration = Duration::from_secs(1);

/// Lets the follower print its last line; not for ever, since its reader may have stopped reading. It ends with the process
/// then: the last line may be cut, and those that waited are lost, which `lost` is told.
pub fn finish(thread: &JoinHandle<()>, lost: &Lost) {
    let since = Instant::now();
    while !thread.is_finished() {
        if since.elapsed() >= PATIENCE {
            let why = "nobody read them for a second after the recording had ended; the last one may be cut";
            let mut lost = lost.lock().unwrap_or_else(PoisonError::into_inner);
            lost.get_or_insert_with(|| std::io::Error::new(std::io::ErrorKind::TimedOut, why));
            return;
        }
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

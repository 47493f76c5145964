//! Measuring what monitoring costs: a memory-bound workload as one program, `isotherm record` beside it as another,
//! attached and detached in turn (ABBA), so that the same process on the same pages is its own comparison.
//!
//! The monitor's start (loading its eBPF programs, reading mappings) costs much for a moment and is then over. It falls
//! into the time each slice is given to settle, the one without the monitor as the one with it, and is told apart
//! from the running cost rather than hidden: [`Starts`].

mod machine;
mod process;
mod table;

use crate::Estimate;
use crate::live::{Bench, add_cost};
use crate::overhead::{
    Centre, MonitorCost, Overhead, Pair, Span, Time, grouped, pairs_of_likes, pairs_of_work,
};
use anyhow::{Context, bail};
use isotherm_record::{Cost, Item};
use isotherm_workloads::now_ns;
use isotherm_workloads::truth::{Line, Truth, WorkLine};
use machine::load;
use process::Running;
use serde::Serialize;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

pub use machine::{available_memory, shortage};
pub use process::Ended;
pub use table::table;

/// Longest sleep between two looks whether to stop.
const NAP: Duration = Duration::from_millis(50);
/// How long a program may take until it is ready; populating memory takes its time besides.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes a second at which memory is populated on the slowest of machines.
const SLOWEST_POPULATION: u64 = 64 << 20;
/// Least bytes of a piece of work: some milliseconds of cache misses.
const PIECE: u64 = 16 << 20;
/// Pieces of work a workload can time in all.
const MAX_PIECES: u64 = 1_000_000;
/// Bytes a second that no memory passes to one thread.
const FASTEST: u64 = 64 << 30;

/// The workload to monitor: one thread that does nothing but touch memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MemoryBound {
    /// Bytes of its mapping.
    pub bytes: u64,
    /// `4k` or `thp`.
    pub page: String,
    /// `random` or `sequential`.
    pub kind: String,
}

/// How to go about a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Pairs of slices, one without and one with the monitor; at least 1.
    pub pairs: u32,
    /// Length of a slice that counts.
    pub slice: Duration,
    /// Time before it that does not count, after the monitor has begun to write (or would have).
    pub settle: Duration,
    /// What the workload does before the first slice.
    pub warm_up: Duration,
    /// Leave out the monitor, to see what differs all the same.
    pub null: bool,
}

/// The slowdown by one way of looking at the same slices.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Slowdown {
    /// Whose time.
    pub time: Time,
    /// What stands for a slice: the mean of all its work, or the median of spans an aggregation interval long.
    pub centre: Centre,
    /// Share by which the target was slower, over the pairs.
    pub slowdown: Estimate,
    /// The same between neighbouring slices of one kind (both without the monitor, or both with it), where the truth
    /// is 0: what this machine can tell apart at this time. `None` for fewer than two pairs.
    pub noise: Option<Estimate>,
    /// The pairs.
    pub pairs: Vec<Pair>,
}

/// What starting and ending the monitor cost, apart from its running.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Starts {
    /// How often it was started.
    pub count: u64,
    /// CPU time of all its processes from fork to exit, ns.
    pub whole_cpu_ns: u64,
    /// How long they lived, ns.
    pub whole_wall_ns: u64,
    /// CPU time of them outside their sessions (start and end), ns.
    pub once_cpu_ns: u64,
}

/// The result for one workload.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OverheadRun {
    /// What was monitored.
    pub workload: MemoryBound,
    /// By which backend; empty for null runs.
    pub backend: String,
    /// The ceiling the monitor was given, a share of one CPU; 0: none.
    pub overhead_limit: f64,
    /// Whether the monitor was left out.
    pub null: bool,
    /// Length of a slice, ns.
    pub slice_ns: u64,
    /// Time before each slice, ns.
    pub settle_ns: u64,
    /// By wall time, mean over all work; checks and the monitor's running cost.
    #[serde(flatten)]
    pub overhead: Overhead,
    /// By wall and CPU time, by mean and median.
    pub slowdowns: Vec<Slowdown>,
    /// What starting it cost.
    pub starts: Starts,
    /// Pages cleared a second.
    pub clears_per_second: f64,
    /// Pieces of work that lie inside slices.
    pub pieces: usize,
    /// Mean time of one without the monitor, ns.
    pub piece_ns: f64,
    /// The machine's load (1 minute) at the start and at the end; the workload itself counts 1.
    pub load: [f64; 2],
}

/// The user wanted it to end before there was anything to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("interrupted before two pairs were measured")]
pub struct Interrupted;

/// What one attachment of the monitor did.
#[derive(Default)]
struct Attachment {
    in_slice: Cost,
    costs: u64,
    resident_sum: u64,
    all_cpu_ns: u64,
    aggr_ns: u64,
    sample_ns: u64,
    max_nr_regions: u64,
    backend: String,
    overhead_limit: f64,
}

/// All attachments so far.
#[derive(Default)]
struct Monitored {
    cost: MonitorCost,
    costs: u64,
    resident_sum: u64,
    aggr_ns: u64,
    backend: String,
    overhead_limit: f64,
    starts: Starts,
}

impl Bench {
    /// Runs `workload` and times its work with and without the monitor. `progress` is told how many pairs are done;
    /// when `stop` says so, the measurement ends with the pairs it has.
    ///
    /// # Errors
    /// When a program fails (with what it said), or [`Interrupted`] with fewer than two pairs. No process is left
    /// behind either way.
    pub fn overhead(
        &self,
        workload: &MemoryBound,
        schedule: &Schedule,
        stop: &dyn Fn() -> bool,
        progress: &mut dyn FnMut(u32),
    ) -> anyhow::Result<OverheadRun> {
        let dir = tempfile::tempdir().context("cannot make a directory for recordings")?;
        let load_before = load();
        let truth = dir.path().join("truth.jsonl");
        let mut target = self.start_workload(workload, schedule, &truth, stop)?;
        nap(schedule.warm_up, stop)?;
        let (mut spans, mut monitored) = (Vec::new(), Monitored::default());
        'pairs: for pair in 0..schedule.pairs {
            for attach in if pair % 2 == 0 { [false, true] } else { [true, false] } {
                match self.slice(&mut target, attach, schedule, dir.path(), &mut monitored, stop) {
                    Ok(span) => spans.push(span),
                    Err(_) if stop() => break 'pairs,
                    Err(error) => return Err(error),
                }
            }
            progress(pair + 1);
        }
        let load = [load_before, load()];
        target.end()?.succeed()?;
        let wanted = usize::try_from(schedule.pairs.min(2)).unwrap_or(2) * 2;
        if stop() && spans.len() < wanted {
            bail!(Interrupted);
        }
        spans.truncate(spans.len() / 2 * 2);
        let file = File::open(&truth).context("the workload left no truth")?;
        let truth = Truth::read(BufReader::new(file))?;
        monitored.into_run(workload, schedule, &truth.work, &spans, load)
    }

    fn start_workload(
        &self,
        workload: &MemoryBound,
        schedule: &Schedule,
        truth: &Path,
        stop: &dyn Fn() -> bool,
    ) -> anyhow::Result<Running> {
        // Twice the time all takes if nothing is slow; a piece is as large as it must be for all to be timed.
        let slices = u64::from(schedule.pairs) * 2;
        let seconds = (schedule.slice + schedule.settle).as_secs().saturating_add(2).saturating_mul(slices);
        let seconds = seconds.saturating_add(schedule.warm_up.as_secs()).saturating_mul(2);
        let piece = PIECE.max(seconds.saturating_mul(FASTEST / MAX_PIECES));
        let mut command = Command::new(&self.isotherm);
        command.args(["workload", "membound", "--page", &workload.page]);
        for (key, value) in [
            ("size", workload.bytes.to_string()),
            ("kind", workload.kind.clone()),
            ("work", piece.to_string()),
            ("units", MAX_PIECES.to_string()),
        ] {
            command.arg("--set").arg(format!("{key}={value}"));
        }
        command.arg("--truth").arg(truth);
        let mut running = Running::start(command, "the workload", truth.with_extension("err"))?;
        let patience = PATIENCE + Duration::from_secs(workload.bytes / SLOWEST_POPULATION);
        running.wait_until("ready", patience, stop, || is_ready(truth))?;
        Ok(running)
    }

    /// One slice, with or without the monitor.
    fn slice(
        &self,
        target: &mut Running,
        attach: bool,
        schedule: &Schedule,
        dir: &Path,
        monitored: &mut Monitored,
        stop: &dyn Fn() -> bool,
    ) -> anyhow::Result<Span> {
        let recording = dir.join("slice.rec");
        let mut monitor = None;
        if attach && !schedule.null {
            // An old one would be set aside, and its presence mistaken for the new one's.
            let _ = std::fs::remove_file(&recording);
            let mut command = Command::new(&self.isotherm);
            command.args(["record", "--quiet", "--no-children", "--pid", &target.pid().to_string(), "-o"]);
            command.arg(&recording).args(&self.monitor);
            let mut running = Running::start(command, "the monitor", dir.join("monitor.err"))?;
            running.wait_until("attached", PATIENCE, stop, || recording.exists())?;
            monitor = Some(running);
        }
        nap(schedule.settle, stop)?;
        let start_ns = now_ns();
        nap(schedule.slice, stop)?;
        let span = Span { start_ns, end_ns: now_ns(), monitored: attach };
        target.must_run()?;
        if let Some(mut monitor) = monitor {
            monitor.must_run()?;
            let ended = monitor.end()?;
            ended.succeed()?;
            monitored.add(&attachment(&recording, &span)?, &ended);
        }
        Ok(span)
    }
}

/// Sleeps, unless the user wants to stop.
fn nap(duration: Duration, stop: &dyn Fn() -> bool) -> anyhow::Result<()> {
    let until = now_ns().saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX));
    loop {
        if stop() {
            bail!(Interrupted);
        }
        let left = Duration::from_nanos(until.saturating_sub(now_ns()));
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(NAP));
    }
}

/// Whether the workload works: its truth so far has a phase that began.
fn is_ready(truth: &Path) -> bool {
    let Ok(file) = File::open(truth) else { return false };
    BufReader::new(file)
        .lines()
        .map_while(Result::ok)
        .any(|line| matches!(serde_json::from_str(&line), Ok(Line::PhaseBegin(_))))
}

/// Reads what a recording says about its own cost inside `span`.
fn attachment(recording: &Path, span: &Span) -> anyhow::Result<Attachment> {
    let mut reader = isotherm_record::open(recording)?;
    let mut a = Attachment::default();
    while let Some(item) = reader.next_ref()? {
        match item {
            Item::Header(header) => {
                a.backend.clone_from(&header.backend.name);
                a.overhead_limit = header.overhead_limit;
                a.sample_ns = header.attrs.sample_us.saturating_mul(1000);
                a.aggr_ns = header.attrs.aggr_us.saturating_mul(1000);
                a.max_nr_regions = header.attrs.max_nr_regions;
            }
            Item::Cost(cost) => {
                a.all_cpu_ns += cost.cpu_ns;
                // Told about once a second: those of which the greater part lies in the slice.
                let middle = cost.time_ns.saturating_sub(cost.wall_ns / 2);
                if (span.start_ns..span.end_ns).contains(&middle) {
                    add_cost(&mut a.in_slice, cost);
                    a.costs += 1;
                    a.resident_sum += cost.resident_pages;
                } else {
                    // The bound on checks holds always, also while settling.
                    let most = &mut a.in_slice.max_checks_per_sample;
                    *most = (*most).max(cost.max_checks_per_sample);
                }
            }
            _ => {}
        }
    }
    if a.costs == 0 {
        bail!("the recording says nothing about its cost in a slice; make slices longer with --slice");
    }
    Ok(a)
}

impl Monitored {
    fn add(&mut self, a: &Attachment, ended: &Ended) {
        let c = &mut self.cost;
        c.wall_ns += a.in_slice.wall_ns;
        c.cpu_ns += a.in_slice.cpu_ns;
        c.sample_ns = a.sample_ns;
        c.checks += a.in_slice.checks;
        c.max_checks_per_sample = c.max_checks_per_sample.max(a.in_slice.max_checks_per_sample);
        c.max_nr_regions = a.max_nr_regions;
        c.clears += a.in_slice.clears;
        c.checks_cut += a.in_slice.checks_cut;
        c.clears_cut += a.in_slice.clears_cut;
        c.samples_missed += a.in_slice.samples_missed;
        self.costs += a.costs;
        self.resident_sum += a.resident_sum;
        self.aggr_ns = a.aggr_ns;
        self.backend.clone_from(&a.backend);
        self.overhead_limit = a.overhead_limit;
        self.starts.count += 1;
        self.starts.whole_cpu_ns += ended.cpu_ns;
        self.starts.whole_wall_ns += ended.wall_ns;
        self.starts.once_cpu_ns += ended.cpu_ns.saturating_sub(a.all_cpu_ns);
    }

    fn into_run(
        self,
        workload: &MemoryBound,
        schedule: &Schedule,
        work: &[WorkLine],
        spans: &[Span],
        load: [f64; 2],
    ) -> anyhow::Result<OverheadRun> {
        let mut cost = self.cost;
        cost.resident_pages = self.resident_sum.checked_div(self.costs).unwrap_or(0);
        // What happens once an aggregation must be in every span of which the median is taken.
        let least_ns = self.aggr_ns.max(100_000_000);
        let groups = grouped(work, spans, least_ns);
        let mut slowdowns = Vec::new();
        for (time, centre) in [
            (Time::Wall, Centre::Mean),
            (Time::Wall, Centre::Median),
            (Time::Cpu, Centre::Mean),
            (Time::Cpu, Centre::Median),
        ] {
            let work = if centre == Centre::Mean { work } else { &groups };
            let pairs = pairs_of_work(work, spans, time, centre);
            let of = |pairs: &[Pair]| Estimate::of(&pairs.iter().map(Pair::slowdown).collect::<Vec<_>>());
            if let Some(slowdown) = of(&pairs) {
                let noise = of(&pairs_of_likes(work, spans, time, centre));
                slowdowns.push(Slowdown { time, centre, slowdown, noise, pairs });
            }
        }
        let pairs = pairs_of_work(work, spans, Time::Wall, Centre::Mean);
        let target = format!("{} {}", workload.kind, workload.page);
        let overhead = Overhead::new(&target, workload.bytes, pairs, cost)?;
        let inside = |w: &&WorkLine| spans.iter().any(|s| s.holds(w));
        let times: Vec<f64> = overhead.pairs.iter().map(|p| p.without_ns).collect();
        Ok(OverheadRun {
            workload: workload.clone(),
            backend: self.backend,
            overhead_limit: self.overhead_limit,
            null: schedule.null,
            slice_ns: u64::try_from(schedule.slice.as_nanos()).unwrap_or(u64::MAX),
            settle_ns: u64::try_from(schedule.settle.as_nanos()).unwrap_or(u64::MAX),
            slowdowns,
            starts: self.starts,
            clears_per_second: cost.clears as f64 * 1e9 / cost.wall_ns.max(1) as f64,
            pieces: work.iter().filter(inside).count(),
            piece_ns: crate::statistics::mean(&times).unwrap_or(0.0),
            load,
            overhead,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(times: impl IntoIterator<Item = u64>) -> Vec<WorkLine> {
        let mut at = 0;
        let piece = |ns| {
            at += ns;
            let (start_ns, end_ns) = (at - ns, at);
            WorkLine { phase: 0, area: "a".into(), start_ns, end_ns, cpu_ns: ns, touches: 1, bytes: 64 }
        };
        times.into_iter().map(piece).collect()
    }

    fn small() -> (MemoryBound, Schedule) {
        let workload = MemoryBound { bytes: 1 << 20, page: "4k".into(), kind: "random".into() };
        let s = Duration::from_secs(1);
        (workload, Schedule { pairs: 2, slice: s, settle: s, warm_up: s, null: false })
    }

    #[test]
    fn a_pulse_once_an_aggregation_shows_in_every_way_of_looking() {
        // Pieces of 10 ms; with the monitor every tenth takes 1 ms longer.
        let with = |i: u64| 10_000_000 + u64::from(i.is_multiple_of(10)) * 1_000_000;
        let half = |n: u64| std::iter::repeat_n(10_000_000, n as usize);
        let lines = work(half(100).chain((0..200).map(with)).chain(half(100)));
        let at = |i: usize| lines.get(i).map_or(u64::MAX, |w| w.start_ns);
        let spans = [(0, 100, false), (100, 200, true), (200, 300, true), (300, 400, false)]
            .map(|(a, b, monitored)| Span { start_ns: at(a), end_ns: at(b), monitored });
        let (workload, schedule) = small();
        let monitored = Monitored { aggr_ns: 100_000_000, ..Monitored::default() };
        let run = monitored.into_run(&workload, &schedule, &lines, &spans, [1.0, 1.0]).unwrap();
        assert_eq!(run.slowdowns.len(), 4);
        for s in &run.slowdowns {
            assert!((s.slowdown.mean - 0.01).abs() < 1e-9, "{s:?}");
            assert_eq!(s.noise.unwrap().mean, 0.0);
        }
        assert_eq!((run.pieces, run.overhead.pairs.len()), (400, 2));
        let text = table(std::slice::from_ref(&run));
        assert!(text.contains("+1.00 %"), "{text}");
    }

    #[test]
    fn a_start_is_told_apart_from_running() {
        let in_slice = Cost { wall_ns: 2_000_000_000, cpu_ns: 10_000_000, clears: 500, ..Cost::default() };
        let a = Attachment {
            in_slice,
            costs: 2,
            resident_sum: 512,
            all_cpu_ns: 16_000_000,
            ..Attachment::default()
        };
        let mut monitored = Monitored::default();
        let ended = Ended::ok(70_000_000, 3_000_000_000);
        monitored.add(&a, &ended);
        monitored.add(&a, &ended);
        let lines = work([10; 40]);
        let spans = [(0, 200, false), (200, 400, true)].map(|(start_ns, end_ns, monitored)| Span {
            start_ns,
            end_ns,
            monitored,
        });
        let (workload, schedule) = small();
        let run = monitored.into_run(&workload, &schedule, &lines, &spans, [1.0, 1.0]).unwrap();
        assert!((run.overhead.cpu_share - 0.005).abs() < 1e-9);
        assert_eq!(run.starts.once_cpu_ns, 2 * 54_000_000);
        assert_eq!(run.overhead.cost.resident_pages, 256);
        assert!((run.clears_per_second - 250.0).abs() < 1e-6);
        let text = table(&[run]);
        assert!(text.contains("54.0 ms"), "{text}");
    }
}

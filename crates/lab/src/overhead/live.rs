//! Measuring what monitoring costs: a memory-bound workload as one program, `isotherm record` beside it as another,
//! attached and detached in turn (ABBA), so that the same process on the same pages is its own comparison.
//!
//! The monitor's start (loading its eBPF programs, reading mappings) costs much for a moment and is then over. It falls
//! into the time each slice is given to settle, the one without the monitor as the one with it, and is told apart
//! from the running cost rather than hidden: [`Starts`].

use super::{
    Centre, MemoryBound, MonitorCost, Overhead, OverheadRun, Pair, Prices, Slowdown, Span, Starts, Time,
    grouped, pairs_of_likes, pairs_of_work,
};
use crate::bench::Bench;
use crate::cost::CostSum;
use crate::machine::load;
use crate::process::{Ended, Running, nap};
use crate::{Estimate, Interrupted};
use anyhow::{Context, bail};
use isotherm_record::Item;
use isotherm_workloads::now_ns;
use isotherm_workloads::truth::{Line, Truth, WorkLine};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

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

/// How a recording says it was made.
#[derive(Clone, Debug, Default)]
struct Made {
    backend: String,
    overhead_limit: f64,
    sample_ns: u64,
    aggr_ns: u64,
    max_nr_regions: u64,
}

/// What one attachment of the monitor did.
#[derive(Default)]
struct Attachment {
    made: Made,
    in_slice: CostSum,
    all_cpu_ns: u64,
}

/// All attachments so far.
#[derive(Default)]
struct Monitored {
    made: Made,
    cost: CostSum,
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
        // With the workload gone, so that there is a processor for each thread.
        let prices = Prices::measure(stop)?;
        monitored.into_run(workload, schedule, &truth.work, &spans, load, prices)
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
            let mut command = self.record(&recording);
            command.args(["--no-children", "--pid", &target.pid().to_string()]);
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
                a.made = Made {
                    backend: header.backend.name.clone(),
                    overhead_limit: header.overhead_limit,
                    sample_ns: header.attrs.sample_us.saturating_mul(1000),
                    aggr_ns: header.attrs.aggr_us.saturating_mul(1000),
                    max_nr_regions: header.attrs.max_nr_regions,
                };
            }
            Item::Cost(cost) => {
                a.all_cpu_ns += cost.cpu_ns;
                // Told about once a second: those of which the greater part lies in the slice.
                let middle = cost.time_ns.saturating_sub(cost.wall_ns / 2);
                if (span.start_ns..span.end_ns).contains(&middle) {
                    a.in_slice.add(cost);
                } else {
                    // The bound on checks holds always, also while settling.
                    let most = &mut a.in_slice.total.max_checks_per_sample;
                    *most = (*most).max(cost.max_checks_per_sample);
                }
            }
            _ => {}
        }
    }
    if a.in_slice.count == 0 {
        bail!("the recording says nothing about its cost in a slice; make slices longer with --slice");
    }
    Ok(a)
}

impl Monitored {
    fn add(&mut self, a: &Attachment, ended: &Ended) {
        self.made.clone_from(&a.made);
        self.cost.merge(&a.in_slice);
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
        prices: Prices,
    ) -> anyhow::Result<OverheadRun> {
        let total = &self.cost.total;
        let cost = MonitorCost {
            wall_ns: total.wall_ns,
            cpu_ns: total.cpu_ns,
            sample_ns: self.made.sample_ns,
            checks: total.checks,
            max_checks_per_sample: total.max_checks_per_sample,
            max_nr_regions: self.made.max_nr_regions,
            clears: total.clears,
            cleared: self.cost.cleared(),
            checks_cut: total.checks_cut,
            clears_cut: total.clears_cut,
            samples_missed: total.samples_missed,
            resident_pages: self.cost.resident_pages(),
        };
        // What happens once an aggregation must be in every span of which the median is taken.
        let least_ns = self.made.aggr_ns.max(100_000_000);
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
            backend: self.made.backend,
            overhead_limit: self.made.overhead_limit,
            null: schedule.null,
            slice_ns: u64::try_from(schedule.slice.as_nanos()).unwrap_or(u64::MAX),
            settle_ns: u64::try_from(schedule.settle.as_nanos()).unwrap_or(u64::MAX),
            slowdowns,
            starts: self.starts,
            clears_per_second: self.cost.clears_per_second(),
            prices,
            derived: prices.slowdown(cost.cleared, cost.wall_ns),
            pieces: work.iter().filter(inside).count(),
            piece_ns: crate::statistics::mean(&times).unwrap_or(0.0),
            load,
            overhead,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::table;
    use super::*;
    use isotherm_record::Cost;

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
        let monitored =
            Monitored { made: Made { aggr_ns: 100_000_000, ..Made::default() }, ..Monitored::default() };
        let run =
            monitored.into_run(&workload, &schedule, &lines, &spans, [1.0, 1.0], Prices::default()).unwrap();
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
        let cost = |resident_pages| Cost {
            wall_ns: 1_000_000_000,
            cpu_ns: 5_000_000,
            clears: 250,
            resident_pages,
            ..Cost::default()
        };
        let mut in_slice = CostSum::default();
        [cost(200), cost(312)].iter().for_each(|c| in_slice.add(c));
        let a = Attachment { in_slice, all_cpu_ns: 16_000_000, ..Attachment::default() };
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
        let run =
            monitored.into_run(&workload, &schedule, &lines, &spans, [1.0, 1.0], Prices::default()).unwrap();
        assert!((run.overhead.cpu_share - 0.005).abs() < 1e-9);
        assert_eq!(run.starts.once_cpu_ns, 2 * 54_000_000);
        assert_eq!(run.overhead.cost.resident_pages, 256);
        assert!((run.clears_per_second - 250.0).abs() < 1e-6);
        let text = table(&[run]);
        assert!(text.contains("54.0 ms"), "{text}");
    }
}

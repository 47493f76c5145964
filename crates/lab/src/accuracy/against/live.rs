//! Running the comparison: `isotherm record` as a program of its own, the reference in this one.

use super::{Against, Comparison, Pass, Reference};
use crate::Interrupted;
use crate::bench::Bench;
use crate::cost::CostSum;
use crate::process::{Running, nap};
use anyhow::{Context, bail};
use isotherm_damon::Snapshot;
use isotherm_record::Item;
use isotherm_workloads::now_ns;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long the monitor may take until it writes.
const PATIENCE: Duration = Duration::from_secs(60);
/// Looks a pass: the monitor clears Accessed bits too, and what it clears between two looks is lost to the reference.
const LOOKS: u32 = 8;

/// What to look at, and for how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watched {
    /// Processes; their descendants are watched too.
    pub pids: Vec<u32>,
    /// How long the monitor runs before the first pass.
    pub settle: Duration,
    /// How long passes go on.
    pub duration: Duration,
    /// Length of a pass.
    pub pass: Duration,
    /// How long the reference keeps away after each pass: what it clears is lost to the monitor, as is what any other clears,
    /// so of a reference that never pauses it would be compared how well that is made good for.
    pub pause: Duration,
}

/// A comparison, and what both sides cost.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AgainstRun {
    /// The comparison.
    #[serde(flatten)]
    pub against: Against,
    /// Backend of the recording.
    pub backend: String,
    /// The monitor's CPU time as a share of one CPU.
    pub cpu_share: f64,
    /// The reference's.
    pub reference_cpu_share: f64,
    /// Sampling intervals missed because the monitor came late.
    pub samples_missed: u64,
    /// Snapshots that were lost because writing them was slow.
    pub snapshots_lost: u64,
}

impl Bench {
    /// Records the processes and looks at them by `reference` over the same seconds. When `stop` says so, it ends with the
    /// passes that are done.
    ///
    /// # Errors
    /// When the monitor fails (with what it said) or the reference does; [`Interrupted`] before the first pass is over.
    pub fn against(
        &self,
        watched: &Watched,
        reference: &mut dyn Reference,
        stop: &dyn Fn() -> bool,
    ) -> anyhow::Result<AgainstRun> {
        let dir = tempfile::tempdir().context("cannot make a directory for the recording")?;
        let place = self.keep.as_deref().unwrap_or(dir.path());
        let recording = place.join("against.rec");
        // An old one would be set aside, and its presence mistaken for the new one's.
        let _ = std::fs::remove_file(&recording);
        let mut command = self.record(&recording);
        command.args(watched.pids.iter().flat_map(|pid| ["--pid".to_owned(), pid.to_string()]));
        let mut monitor = Running::start(command, "the monitor", dir.path().join("monitor.err"))?;
        monitor.wait_until("attached", PATIENCE, stop, || recording.exists())?;
        nap(watched.settle, stop)?;
        let (cpu, since) = (thread_cpu(), Instant::now());
        let mut passes = Vec::new();
        while since.elapsed() < watched.duration {
            monitor.must_run()?;
            let pass = one_pass(reference, watched.pass, stop);
            match pass.and_then(|pass| {
                passes.push(pass);
                nap(watched.pause.min(watched.duration.saturating_sub(since.elapsed())), stop)
            }) {
                Ok(()) => {}
                Err(error) if error.is::<Interrupted>() => break,
                Err(error) => return Err(error),
            }
        }
        let reference_cpu_share =
            (thread_cpu() - cpu).as_secs_f64() / since.elapsed().as_secs_f64().max(1e-9);
        monitor.end()?.succeed()?;
        if passes.is_empty() {
            bail!(Interrupted);
        }
        let mut run = compare(&passes, &recording)?;
        run.reference_cpu_share = reference_cpu_share;
        Ok(run)
    }
}

fn one_pass(
    reference: &mut dyn Reference,
    length: Duration,
    stop: &dyn Fn() -> bool,
) -> anyhow::Result<Pass> {
    reference.begin()?;
    let start_ns = now_ns();
    for look in 1..=LOOKS {
        // By the clock, so that looks that take long do not make the pass longer.
        let due = length * look / LOOKS;
        nap(due.saturating_sub(Duration::from_nanos(now_ns() - start_ns)), stop)?;
        reference.look()?;
    }
    Ok(Pass { start_ns, end_ns: now_ns(), processes: reference.end() })
}

/// Compares passes with the recording at `path`.
fn compare(passes: &[Pass], path: &Path) -> anyhow::Result<AgainstRun> {
    let mut reader = isotherm_record::open(path)?;
    let mut cost = CostSum::default();
    let mut backend = String::new();
    let mut last: Vec<Option<Snapshot>> = vec![None; passes.len()];
    while let Some(item) = reader.next_ref()? {
        match item {
            Item::Snapshot(snapshot) => {
                let index = passes.partition_point(|p| p.end_ns < snapshot.end_ns);
                let pass = passes.get(index).filter(|p| p.start_ns < snapshot.end_ns);
                if let (Some(slot), Some(_)) = (last.get_mut(index), pass) {
                    *slot = Some(snapshot.clone());
                }
            }
            Item::Cost(item) => cost.add(item),
            Item::Header(header) => backend.clone_from(&header.backend.name),
            _ => {}
        }
    }
    let mut comparison = Comparison::default();
    passes.iter().zip(&last).for_each(|(pass, snapshot)| comparison.add(pass, snapshot.as_ref()));
    Ok(AgainstRun {
        against: comparison.finish(),
        backend,
        cpu_share: cost.cpu_share(),
        reference_cpu_share: 0.0,
        samples_missed: cost.total.samples_missed,
        snapshots_lost: cost.total.snapshots_lost,
    })
}

fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

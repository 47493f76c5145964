//! Running the experiments: `isotherm record` as a program of its own, on a workload as another.

use super::{Accuracy, Judge, Options};
use crate::bench::Bench;
use crate::cost::CostSum;
use crate::overhead::Prices;
use crate::process::Running;
use anyhow::Context;
use isotherm_record::Item;
use isotherm_workloads::truth::Truth;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;

/// A workload to judge a record by.
#[derive(Clone, Debug)]
pub struct Subject {
    /// A built-in pattern or a TOML file.
    pub pattern: String,
    /// `4k`, `thp`, or `None` for the pattern's own.
    pub page: Option<String>,
    /// Further options for the workload (`--set`, `--scale-time`, ...).
    pub options: Vec<String>,
}

/// One run's verdict and what it cost.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct AccuracyRun {
    /// How true the record is.
    #[serde(flatten)]
    pub accuracy: Accuracy,
    /// Backend that made it.
    pub backend: String,
    /// The monitor's CPU time as a share of one CPU.
    pub cpu_share: f64,
    /// Most checks in one sampling interval.
    pub max_checks_per_sample: u64,
    /// Pages cleared a second.
    pub clears_per_second: f64,
    /// Share of its time that the workload's clears cost, if it accessed all that was cleared: counts times prices
    /// measured here.
    pub derived_slowdown: f64,
    /// Bytes of the recording for each region in it.
    pub bytes_per_region: f64,
    /// Sampling intervals missed because the monitor came late.
    pub samples_missed: u64,
    /// Snapshots that were lost because writing them was slow.
    pub snapshots_lost: u64,
}

impl Bench {
    /// Records `subject` and judges the record by what the workload says it did. When `stop` says so, both end.
    ///
    /// # Errors
    /// When either program fails or the truth cannot be read; with what they said. [`Interrupted`](crate::Interrupted)
    /// when stopped.
    pub fn accuracy(
        &self,
        subject: &Subject,
        options: Options,
        stop: &dyn Fn() -> bool,
    ) -> anyhow::Result<AccuracyRun> {
        let dir = tempfile::tempdir().context("cannot make a directory for the recording")?;
        let stem = Path::new(&subject.pattern).file_stem().unwrap_or_default().to_string_lossy();
        let stem = format!("{stem}-{}", subject.page.as_deref().unwrap_or("own"));
        let place = self.keep.as_deref().unwrap_or(dir.path());
        let recording = place.join(format!("{stem}.rec"));
        let truth_file = place.join(format!("{stem}.truth.jsonl"));
        let mut command = self.record(&recording);
        // The children of a pattern are watched as any program's are; one without has none.
        command.arg("--").arg(&self.isotherm).args(["workload", &subject.pattern]);
        command.args(["--delay", "1s", "--truth"]).arg(&truth_file).args(&subject.options);
        if let Some(page) = &subject.page {
            command.args(["--page", page]);
        }
        Running::start(command, "the monitor", dir.path().join("monitor.err"))?.finish(stop)?.succeed()?;
        let truth = File::open(&truth_file).context("the workload left no truth")?;
        let truth = Truth::read(BufReader::new(truth))?;
        judge(&truth, &recording, options, &Prices::here(stop)?)
    }
}

/// Judges the recording at `path` by `truth`.
///
/// # Errors
/// When the recording cannot be read or the truth says nothing.
pub fn judge(truth: &Truth, path: &Path, options: Options, prices: &Prices) -> anyhow::Result<AccuracyRun> {
    let mut judge = Judge::new(truth, None, options)?;
    let mut reader = isotherm_record::open(path)?;
    let mut total = CostSum::default();
    let mut backend = String::new();
    let mut regions = 0u64;
    while let Some(item) = reader.next_ref()? {
        match item {
            Item::Snapshot(snapshot) => {
                regions += snapshot.nr_regions() as u64;
                judge.add(snapshot);
            }
            Item::Cost(cost) => total.add(cost),
            Item::Header(header) => backend.clone_from(&header.backend.name),
            _ => {}
        }
    }
    let bytes = std::fs::metadata(path).map(|m| m.len()).unwrap_or(0);
    Ok(AccuracyRun {
        accuracy: judge.finish(),
        backend,
        cpu_share: total.cpu_share(),
        max_checks_per_sample: total.total.max_checks_per_sample,
        clears_per_second: total.clears_per_second(),
        derived_slowdown: prices.slowdown(total.cleared(), total.total.wall_ns),
        bytes_per_region: bytes as f64 / regions.max(1) as f64,
        samples_missed: total.total.samples_missed,
        snapshots_lost: total.total.snapshots_lost,
    })
}

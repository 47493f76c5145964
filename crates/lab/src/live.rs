//! Running the experiments: `isotherm record` as a program of its own, on a workload as another.

use crate::accuracy::{Accuracy, Judge, Options};
use anyhow::{Context, bail};
use isotherm_record::{Cost, Item};
use isotherm_workloads::truth::Truth;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What the experiments run: the program, and how it is to monitor.
#[derive(Clone, Debug)]
pub struct Bench {
    /// The `isotherm` program.
    pub isotherm: PathBuf,
    /// Options for `isotherm record` (`--backend`, `--overhead`, intervals, numbers of regions).
    pub monitor: Vec<String>,
    /// Keep recordings and truths here, `PATTERN-PAGES.rec` and `.truth.jsonl`, instead of throwing them away.
    pub keep: Option<PathBuf>,
}

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
    /// Bytes of the recording for each region in it.
    pub bytes_per_region: f64,
}

impl Bench {
    /// Records `subject` and judges the record by what the workload says it did.
    ///
    /// # Errors
    /// When either program fails or the truth cannot be read; with what they said.
    pub fn accuracy(&self, subject: &Subject, options: Options) -> anyhow::Result<AccuracyRun> {
        let dir = tempfile::tempdir().context("cannot make a directory for the recording")?;
        let stem = Path::new(&subject.pattern).file_stem().unwrap_or_default().to_string_lossy();
        let stem = format!("{stem}-{}", subject.page.as_deref().unwrap_or("own"));
        let place = self.keep.as_deref().unwrap_or(dir.path());
        let recording = place.join(format!("{stem}.rec"));
        let truth_file = place.join(format!("{stem}.truth.jsonl"));
        let mut command = Command::new(&self.isotherm);
        command.args(["record", "--quiet", "--no-children", "-o"]).arg(&recording).args(&self.monitor);
        command.arg("--").arg(&self.isotherm).args(["workload", &subject.pattern]);
        command.args(["--delay", "1s", "--truth"]).arg(&truth_file).args(&subject.options);
        if let Some(page) = &subject.page {
            command.args(["--page", page]);
        }
        run(command)?;
        let truth = File::open(&truth_file).context("the workload left no truth")?;
        let truth = Truth::read(BufReader::new(truth))?;
        judge(&truth, &recording, options)
    }
}

/// Judges the recording at `path` by `truth`.
///
/// # Errors
/// When the recording cannot be read or the truth says nothing.
pub fn judge(truth: &Truth, path: &Path, options: Options) -> anyhow::Result<AccuracyRun> {
    let mut judge = Judge::new(truth, None, options)?;
    let mut reader = isotherm_record::open(path)?;
    let mut total = Cost::default();
    let mut backend = String::new();
    let mut regions = 0u64;
    while let Some(item) = reader.next_ref()? {
        match item {
            Item::Snapshot(snapshot) => {
                regions += snapshot.nr_regions() as u64;
                judge.add(snapshot);
            }
            Item::Cost(cost) => add_cost(&mut total, cost),
            Item::Header(header) => backend.clone_from(&header.backend.name),
            _ => {}
        }
    }
    let bytes = std::fs::metadata(path).map(|m| m.len()).unwrap_or(0);
    let seconds = (total.wall_ns as f64 / 1e9).max(1e-9);
    Ok(AccuracyRun {
        accuracy: judge.finish(),
        backend,
        cpu_share: total.cpu_ns as f64 / total.wall_ns.max(1) as f64,
        max_checks_per_sample: total.max_checks_per_sample,
        clears_per_second: total.clears as f64 / seconds,
        bytes_per_region: bytes as f64 / regions.max(1) as f64,
    })
}

pub(crate) fn add_cost(total: &mut Cost, cost: &Cost) {
    total.wall_ns += cost.wall_ns;
    total.cpu_ns += cost.cpu_ns;
    total.checks += cost.checks;
    total.max_checks_per_sample = total.max_checks_per_sample.max(cost.max_checks_per_sample);
    total.clears += cost.clears;
    total.checks_cut += cost.checks_cut;
    total.clears_cut += cost.clears_cut;
    total.samples_missed += cost.samples_missed;
    total.snapshots_lost += cost.snapshots_lost;
}

/// Runs a program to its end; its complaints become the error.
fn run(mut command: Command) -> anyhow::Result<()> {
    let output = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .with_context(|| format!("cannot run {}", command.get_program().to_string_lossy()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{} {}: {}", command.get_program().to_string_lossy(), output.status, said.trim_end());
    }
    Ok(())
}

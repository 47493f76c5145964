//! What `lab accuracy` and `lab overhead` run: the monitor and the workloads, both as programs of their own.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;

/// The program to measure, and how it is to monitor.
#[derive(Clone, Debug)]
pub struct Bench {
    /// The `isotherm` program.
    pub isotherm: PathBuf,
    /// Options for `isotherm record` (`--backend`, `--overhead`, intervals, numbers of regions).
    pub monitor: Vec<String>,
    /// Keep recordings and truths here, `PATTERN-PAGES.rec` and `.truth.jsonl`, instead of throwing them away.
    pub keep: Option<PathBuf>,
}

impl Bench {
    /// `isotherm record` to the file `recording`, with the options of the bench; the targets are still to be named.
    pub(crate) fn record(&self, recording: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(&self.isotherm);
        command.args(["record", "--quiet", "-o"]).arg(recording).args(&self.monitor);
        command
    }
}

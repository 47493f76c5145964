//! The runs: a workload by itself, under `isotherm scheme apply`, and under `isotherm record`, in turn.

use super::family::{Look, watch};
use super::{Run, SchemeBench, SchemeRuns, Under, did::Did};
use crate::accuracy::Subject;
use crate::machine::load;
use crate::process::Running;
use anyhow::Context;
use isotherm_damon::schemes::Action;
use isotherm_linux::schemes::preflight::default_quota;
use isotherm_schemes::trial::{Throughput, Trial, TrialReport};
use isotherm_workloads::truth::Truth;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// From when the workload is ready to its first phase: the monitor starts in that time.
const DELAY: &str = "500ms";
/// How long populating memory may take.
const PATIENCE: Duration = Duration::from_secs(120);

impl SchemeBench {
    /// Runs `subject` `pairs` times under the schemes and as often without; `progress` hears of each run before it begins.
    /// When `stop` says so it ends with the pairs that are whole.
    ///
    /// # Errors
    /// When a program fails, with what it said; [`Interrupted`](crate::Interrupted) before the first pair was whole.
    pub fn run(
        &self,
        subject: &Subject,
        pairs: u32,
        stop: &dyn Fn() -> bool,
        progress: &mut dyn FnMut(u32, Under),
    ) -> anyhow::Result<SchemeRuns> {
        let dir = tempfile::tempdir().context("cannot make a directory for truths and logs")?;
        // The monitor is the same program, and what two processes map is left alone.
        let program = dir.path().join("workload");
        std::fs::copy(&self.isotherm, &program).context("cannot copy the program that runs workloads")?;
        let before = load();
        let mut all = Vec::new();
        let mut trials = Vec::new();
        for pair in 0..pairs {
            // A machine that grows steadily slower or faster shows no difference.
            let mut order = vec![Under::Nothing, Under::Schemes];
            if pair % 2 == 1 {
                order.reverse();
            }
            if self.predict {
                order.push(Under::Record);
            }
            let mut runs = Vec::new();
            for under in order {
                progress(pair, under);
                match self.one(subject, &program, under, dir.path(), stop) {
                    Ok(run) => runs.push(run),
                    Err(_) if stop() && !all.is_empty() => break,
                    Err(error) => return Err(error),
                }
                if under == Under::Record {
                    let did = runs.iter().find(|run: &&Run| run.under == Under::Schemes).map(|run| &run.did);
                    trials.push(self.trial(&dir.path().join("run.rec"), did)?);
                }
            }
            let of = |under| runs.iter().find(|run| run.under == under).cloned();
            let (Some(without), Some(with)) = (of(Under::Nothing), of(Under::Schemes)) else { break };
            all.push((without, with));
        }
        Ok(SchemeRuns::new(subject, &self.schemes, all, trials, [before, load()]))
    }

    fn one(
        &self,
        subject: &Subject,
        program: &Path,
        under: Under,
        dir: &Path,
        stop: &dyn Fn() -> bool,
    ) -> anyhow::Result<Run> {
        let at = |name: &str| dir.join(name);
        for name in ["truth", "log", "run.rec"] {
            // One that is there would be mistaken for the new one.
            let _ = std::fs::remove_file(at(name));
        }
        let mut command = Command::new(program);
        command.args(["workload", &subject.pattern, "--delay", DELAY, "--truth"]).arg(at("truth"));
        command.args(&subject.options);
        if let Some(page) = &subject.page {
            command.args(["--page", page]);
        }
        let mut workload = Running::start(command, "the workload", at("workload.err"))?;
        let pid = workload.pid();
        let ready = || std::fs::read_to_string(at("truth")).is_ok_and(|text| text.contains("\"ready\""));
        workload.wait_until("ready", PATIENCE, stop, ready)?;
        let monitor = self.monitor_of(under, pid, dir)?;
        let done = AtomicBool::new(false);
        let (ended, looks) = std::thread::scope(|scope| {
            let watcher = watch(scope, pid, &done);
            let ended = workload.finish(stop);
            done.store(true, Ordering::Relaxed);
            let looks: Vec<Look> = watcher.join().unwrap_or_default();
            ended.map(|ended| (ended, looks))
        })?;
        ended.succeed()?;
        let monitor_cpu_ns = match monitor {
            // It ends by itself, its targets being gone.
            Some(monitor) => {
                let ended = monitor.finish(stop)?;
                ended.succeed()?;
                Some(ended.cpu_ns)
            }
            None => None,
        };
        let truth = File::open(at("truth")).context("the workload left no truth")?;
        let truth = Truth::read(BufReader::new(truth))?;
        let did = match under {
            Under::Schemes => Did::read(&at("log"))?,
            Under::Nothing | Under::Record => Did::default(),
        };
        Run::new(under, &truth, looks, monitor_cpu_ns, did)
    }

    fn monitor_of(&self, under: Under, pid: i32, dir: &Path) -> anyhow::Result<Option<Running>> {
        let mut command = Command::new(&self.isotherm);
        match under {
            Under::Nothing => return Ok(None),
            Under::Schemes => {
                command.args(["scheme", "apply", &self.schemes, "--quiet", "--log"]).arg(dir.join("log"));
            }
            Under::Record => {
                command.args(["record", "--quiet", "-o"]).arg(dir.join("run.rec"));
            }
        }
        command.args(&self.monitor).args(["--pid", &pid.to_string()]);
        Running::start(command, "the monitor", dir.join("monitor.err")).map(Some)
    }

    /// What `scheme try` says of a recording, if actions are as fast as they were in the run that `did` is of.
    fn trial(&self, recording: &Path, did: Option<&Did>) -> anyhow::Result<TrialReport> {
        let mut entries = self.entries.clone();
        for entry in &mut entries {
            if let Some(quota) = default_quota(&entry.scheme) {
                entry.scheme.quota = quota;
            }
        }
        let measured = did.into_iter().flat_map(|did| &did.throughput);
        let throughputs: Vec<Throughput> = measured
            .map(|(action, &bytes_per_s)| Throughput {
                action: Action::from_name(action),
                bytes_per_s,
                source: "measured in the run under the schemes".to_owned(),
            })
            .collect();
        let mut trial = Trial::new(&entries, &throughputs)?;
        let mut reader = isotherm_record::open(recording)?;
        while let Some(item) = reader.next_item()? {
            isotherm_report::Accumulate::item(&mut trial, &item);
        }
        Ok(trial.finish())
    }
}

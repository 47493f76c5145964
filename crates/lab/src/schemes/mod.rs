//! What schemes save and what they cost: a workload under `isotherm scheme apply` beside the same by itself, in pairs.
//!
//! Memory that was paged out stays out, so that no process can be its own comparison: each run is a process of its own. A
//! third one under `isotherm record`, where wanted, tells what `isotherm scheme try` predicts of the second.

mod did;
mod family;
mod live;
mod table;

pub use crate::zram::Zram;
pub use did::Did;
pub use family::Look;
pub use table::table;

use crate::Estimate;
use crate::accuracy::Subject;
use anyhow::bail;
use isotherm_schemes::Entry;
use isotherm_schemes::trial::TrialReport;
use isotherm_workloads::truth::Truth;
use serde::Serialize;
use std::path::PathBuf;

/// The program to measure, the schemes, and how it is to monitor.
#[derive(Clone, Debug)]
pub struct SchemeBench {
    /// The `isotherm` program.
    pub isotherm: PathBuf,
    /// Options for its monitor (`--backend`, `--overhead`, intervals, numbers of regions).
    pub monitor: Vec<String>,
    /// Scheme file or preset.
    pub schemes: String,
    /// The schemes in it.
    pub entries: Vec<Entry>,
    /// Also record each workload without schemes, and try them on the recording.
    pub predict: bool,
}

/// What a workload ran under.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Under {
    /// By itself.
    Nothing,
    /// `isotherm scheme apply`.
    Schemes,
    /// `isotherm record`.
    Record,
}

/// One run of a workload.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Run {
    /// What it ran under.
    pub under: Under,
    /// From the begin of the first phase to the end of the last, ns.
    pub wall_ns: u64,
    /// When the first phase began, CLOCK_MONOTONIC, ns.
    pub start_ns: u64,
    /// When the last phase began, CLOCK_MONOTONIC, ns.
    pub last_phase_ns: u64,
    /// Accesses done.
    pub touches: u64,
    /// CPU time of the monitor from its start to its end, actions included, ns.
    pub monitor_cpu_ns: Option<u64>,
    /// What the schemes did.
    #[serde(flatten)]
    pub did: Did,
    /// Its memory over time.
    pub looks: Vec<Look>,
}

impl Run {
    fn new(
        under: Under,
        truth: &Truth,
        looks: Vec<Look>,
        monitor_cpu_ns: Option<u64>,
        did: Did,
    ) -> anyhow::Result<Self> {
        let (Some(first), Some(last)) = (truth.phases.first(), truth.phases.last()) else {
            bail!("the workload did nothing");
        };
        let ranges = truth.phases.iter().flat_map(|phase| &phase.ranges);
        Ok(Self {
            under,
            wall_ns: last.end_ns.saturating_sub(first.start_ns),
            start_ns: first.start_ns,
            last_phase_ns: last.start_ns,
            touches: ranges.map(|range| range.touches).sum(),
            monitor_cpu_ns,
            did,
            looks,
        })
    }

    /// Mean resident bytes from `start_ns` to the end.
    pub fn resident_since(&self, start_ns: u64) -> Option<f64> {
        let looks = self.looks_since(start_ns);
        crate::statistics::mean(&looks.map(|look| look.resident as f64).collect::<Vec<_>>())
    }

    /// Bytes that came back: what the machine read from swap, from before anything was paged out on. What was given back to the kernel
    /// while it was out, or ended there, did not. `None` if nothing of the run ever was in swap (files).
    pub fn refaulted(&self) -> Option<u64> {
        self.looks.iter().any(|look| look.swapped > 0).then_some(())?;
        let bytes = |look: Option<&Look>| look.map_or(0, |look| look.swapped_in);
        Some(bytes(self.looks_since(0).last()).saturating_sub(bytes(self.looks.first())))
    }

    /// Looks at it from `start_ns` on; those at its ending are not among them, when its memory is given back.
    pub fn looks_since(&self, start_ns: u64) -> impl Iterator<Item = &Look> {
        let end_ns = self.start_ns.saturating_add(self.wall_ns);
        self.looks.iter().filter(move |look| (start_ns..end_ns).contains(&look.time_ns))
    }

    fn ns_a_touch(&self) -> f64 {
        self.wall_ns as f64 / self.touches.max(1) as f64
    }
}

/// What the pairs of one workload say.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SchemeRuns {
    /// Pattern or file.
    pub pattern: String,
    /// Pages that backed it; null for the pattern's own.
    pub page: Option<String>,
    /// Scheme file or preset.
    pub schemes: String,
    /// Share by which an access took longer under the schemes: of work that is a given amount that is its run time, of work
    /// for a given time what was not done in it.
    pub slowdown: Option<Estimate>,
    /// Share by which resident memory was less, mean from the first phase on.
    pub saved: Option<Estimate>,
    /// The same of the last phase.
    pub saved_last_phase: Option<Estimate>,
    /// Share of one CPU that monitor and actions used.
    pub monitor_cpu_share: Option<Estimate>,
    /// Pairs of runs, without and with the schemes.
    pub pairs: Vec<(Run, Run)>,
    /// What was predicted for each pair, if anything.
    pub predicted: Vec<TrialReport>,
    /// The machine's load (1 minute) at the start and at the end.
    pub load: [f64; 2],
}

impl SchemeRuns {
    fn new(
        subject: &Subject,
        schemes: &str,
        pairs: Vec<(Run, Run)>,
        predicted: Vec<TrialReport>,
        load: [f64; 2],
    ) -> Self {
        let estimate = |of: &dyn Fn(&Run, &Run) -> Option<f64>| {
            Estimate::of(&pairs.iter().filter_map(|(without, with)| of(without, with)).collect::<Vec<_>>())
        };
        let less =
            |without: Option<f64>, with: Option<f64>| Some(1.0 - with? / without.filter(|&b| b > 0.0)?);
        Self {
            pattern: subject.pattern.clone(),
            page: subject.page.clone(),
            schemes: schemes.to_owned(),
            slowdown: estimate(&|without, with| Some(with.ns_a_touch() / without.ns_a_touch() - 1.0)),
            saved: estimate(&|without, with| {
                less(without.resident_since(without.start_ns), with.resident_since(with.start_ns))
            }),
            saved_last_phase: estimate(&|without, with| {
                less(without.resident_since(without.last_phase_ns), with.resident_since(with.last_phase_ns))
            }),
            monitor_cpu_share: estimate(&|_, with| {
                Some(with.monitor_cpu_ns? as f64 / with.wall_ns.max(1) as f64)
            }),
            pairs,
            predicted,
            load,
        }
    }

    fn mean_of(&self, of: impl Fn(&Run) -> Option<f64>) -> Option<f64> {
        crate::statistics::mean(&self.pairs.iter().filter_map(|(_, with)| of(with)).collect::<Vec<_>>())
    }

    /// Most bytes tried in a window of a scheme's quota, and the most time that actions of one took, ns; of all runs.
    pub fn most_in_window(&self) -> (u64, u64) {
        let did = || self.pairs.iter().map(|(_, with)| &with.did);
        let most = |of: fn(&Did) -> u64| did().map(of).max().unwrap_or(0);
        (most(|did| did.most_in_window), most(|did| did.longest_in_window_ns))
    }

    /// Bytes paged out, mean of the runs.
    pub fn paged_out(&self) -> Option<f64> {
        self.mean_of(|run| Some(run.did.paged_out as f64))
    }

    /// Bytes of them that came back, mean of the runs; `None` where nothing went to swap.
    pub fn refaulted(&self) -> Option<f64> {
        self.mean_of(|run| run.refaulted().map(|bytes| bytes as f64))
    }

    /// The predicted bytes paged out, and those that come back; means.
    pub fn prediction(&self) -> Option<(f64, f64)> {
        let mean = |of: fn(&TrialReport) -> u64| {
            crate::statistics::mean(&self.predicted.iter().map(|trial| of(trial) as f64).collect::<Vec<_>>())
        };
        Some((mean(TrialReport::paged_out_bytes)?, mean(TrialReport::refaulted_bytes)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isotherm_damon::PAGE_SIZE;

    /// A run of 10 s in 1,000 touches, with resident sizes of its first and last phase, and what is in swap then.
    fn run(under: Under, wall_s: u64, resident: [u64; 2], swapped: u64) -> Run {
        let look = |time_ns, resident, swapped| Look {
            time_ns,
            resident,
            swapped,
            // Others read a page before; a quarter of what is in swap in the end came back before.
            swapped_in: PAGE_SIZE + swapped / 4,
        };
        Run {
            under,
            wall_ns: wall_s * 1_000_000_000,
            start_ns: 1_000_000_000,
            last_phase_ns: 5_000_000_000,
            touches: 1000,
            monitor_cpu_ns: (under == Under::Schemes).then_some(100_000_000),
            did: Did { paged_out: swapped * 2, ..Did::default() },
            looks: vec![
                // Before the first phase: does not count.
                look(0, 7777, 0),
                look(2_000_000_000, resident[0], 0),
                look(6_000_000_000, resident[1], swapped),
                // At its exit.
                look(20_000_000_000, 1, 0),
            ],
        }
    }

    fn subject() -> Subject {
        Subject { pattern: "build".into(), page: None, options: Vec::new() }
    }

    #[test]
    fn figures_are_what_they_are_called() {
        let pair = || {
            (run(Under::Nothing, 10, [1000, 1000], 0), run(Under::Schemes, 11, [1000, 100], 900 * PAGE_SIZE))
        };
        let runs = SchemeRuns::new(&subject(), "prcl", vec![pair(), pair()], Vec::new(), [0.0; 2]);
        let mean = |estimate: Option<Estimate>| estimate.unwrap().mean;
        assert!((mean(runs.slowdown) - 0.1).abs() < 1e-9);
        assert!((mean(runs.saved) - 0.45).abs() < 1e-9 && (mean(runs.saved_last_phase) - 0.9).abs() < 1e-9);
        assert!((mean(runs.monitor_cpu_share) - 0.1 / 11.0).abs() < 1e-9);
        let pages = |bytes: Option<f64>| bytes.map(|bytes| bytes / PAGE_SIZE as f64);
        assert_eq!((pages(runs.paged_out()), pages(runs.refaulted())), (Some(1800.0), Some(225.0)));
        assert_eq!(runs.prediction(), None);
        let text = table(std::slice::from_ref(&runs));
        for part in ["build", "+10.00 %", "45.0 %", "90.0 %", "prcl"] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }

    #[test]
    fn what_never_was_in_swap_is_not_known_to_have_come_back() {
        let pair = (run(Under::Nothing, 10, [10, 10], 0), run(Under::Schemes, 10, [10, 10], 0));
        let runs = SchemeRuns::new(&subject(), "prcl", vec![pair], Vec::new(), [0.0; 2]);
        assert_eq!(runs.refaulted(), None);
        assert!(table(&[runs]).contains("came back"));
    }
}

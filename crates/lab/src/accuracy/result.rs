//! The verdict: a serialisable value and tables of it.

use super::{Options, Score, Threshold};
use crate::Quartiles;
use crate::table::{Table, mib, percent};
use isotherm_workloads::truth::{Arrivals, Page, Stated};
use serde::Serialize;

/// How true a record of one run of a workload is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Accuracy {
    /// The workload's pattern.
    pub pattern: String,
    /// The pages its areas asked for.
    pub page: Page,
    /// Whether they got them.
    pub backed_as_asked: bool,
    /// How it was judged.
    pub options: Options,
    /// Which windows were judged.
    pub windows: Windows,
    /// Hot bytes over all judged windows.
    pub score: Score,
    /// How fast the record followed changes of phase.
    pub convergence: Convergence,
    /// Each phase alone.
    pub phases: Vec<PhaseScore>,
    /// Working-set size; `None` when no window was judged.
    pub wss: Option<Wss>,
    /// Recorded against real rates, the highest stated rate first.
    pub rates: Vec<RateScore>,
}

/// Which windows were judged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Windows {
    /// In one phase: judged.
    pub judged: u64,
    /// A phase began or ended in it: left out.
    pub across_change: u64,
    /// In no phase (setup, the end), or without length: left out.
    pub outside: u64,
    /// Time of the judged windows together, ns.
    pub judged_ns: u64,
    /// Time of all phases together, ns. What is not judged of it was not recorded or lies in windows left out.
    pub phase_ns: u64,
}

/// How fast a record followed changes of phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Convergence {
    /// Phases with judged windows.
    pub phases: usize,
    /// Phases in which some window reached the F1 asked for.
    pub converged: usize,
    /// Median over those phases, ms from the change to the end of that window.
    pub median_ms: Option<f64>,
    /// Slowest of those phases, ms.
    pub max_ms: Option<f64>,
}

impl Convergence {
    pub(super) fn of(phases: &[PhaseScore]) -> Self {
        let judged: Vec<_> = phases.iter().filter(|p| p.windows > 0).collect();
        let mut times: Vec<f64> = judged.iter().filter_map(|p| p.converged_after_ms).collect();
        times.sort_by(f64::total_cmp);
        Self {
            phases: judged.len(),
            converged: times.len(),
            median_ms: times.get(times.len().saturating_sub(1) / 2).copied(),
            max_ms: times.last().copied(),
        }
    }
}

/// One phase.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PhaseScore {
    /// Counts from 0.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Judged windows.
    pub windows: u64,
    /// Hot bytes over them.
    pub score: Score,
    /// Time from the start of the phase to the end of the first window whose F1 reached what was asked for.
    pub converged_after_ms: Option<f64>,
    /// F1 from that window on.
    pub f1_once_converged: Option<f64>,
}

/// Working-set size, bytes a window.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Wss {
    /// Bytes that were hot.
    pub truth: Quartiles,
    /// Bytes of the workload's areas that were recorded hot (those too near the threshold left out).
    pub inside: Quartiles,
    /// Bytes of the whole process that were recorded hot, also in windows across a change: what a wss report shows.
    pub process: Quartiles,
    /// Median recorded inside against the true median; `None` when nothing was hot.
    pub p50_error: Option<f64>,
    /// Known bounds for the median of the whole process, where the pattern has such.
    pub bounds: Option<Bounds>,
}

impl Wss {
    /// Whether the median of the whole process lies in the known bounds; `None` when there are none.
    pub fn p50_in_bounds(&self) -> Option<bool> {
        self.bounds.map(|b| (b.low..=b.high).contains(&self.process.p50))
    }
}

/// Bounds for the median working-set size that the public tests of DAMON use with the same patterns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Bounds {
    /// Least, bytes.
    pub low: u64,
    /// Greatest, bytes.
    pub high: u64,
}

impl Bounds {
    /// The bounds of a built-in pattern, given its true working set: with other sizes than the built-in ones they say
    /// nothing.
    pub fn of_pattern(pattern: &str, true_bytes: u64) -> Option<Self> {
        let (size, low, high) = match pattern {
            "stairs" => (10, 9, 11),
            "zigzag" => (100, 90, 110),
            "hotspot" => (2, 3, 12),
            _ => return None,
        };
        (true_bytes == size << 20).then_some(Self { low: low << 20, high: high << 20 })
    }
}

/// Recorded against real rates, over all ranges with the same stated rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RateScore {
    /// What the pattern has.
    pub stated: Stated,
    /// How accesses follow one another.
    pub arrivals: Arrivals,
    /// What the workload achieved, mean over bytes and time.
    pub achieved_hz: f64,
    /// What can be counted of that with one look a sampling interval.
    pub countable_hz: f64,
    /// What the record says, mean over bytes and time; bytes in no region count as 0.
    pub recorded_hz: f64,
    /// Recorded - countable.
    pub error_hz: f64,
    /// The same against countable; `None` where nothing was to be counted.
    pub relative_error: Option<f64>,
}

impl Accuracy {
    fn page_name(&self) -> &'static str {
        match self.page {
            Page::Base => "4k",
            Page::Huge => "thp",
        }
    }

    /// All figures of the run as text for people.
    pub fn details(&self) -> String {
        let w = &self.windows;
        let threshold = match self.options.threshold {
            Threshold::Samples(n) => format!("nr_accesses >= {n}"),
            Threshold::Hz(hz) => format!("{hz} Hz"),
        };
        let seconds = |ns: u64| ns as f64 / 1e9;
        let mut text = format!(
            "{} ({} pages{}): hot is {threshold}\n\
             windows: {} judged ({:.1} s of {:.1} s), {} across a change of phase, {} outside\n\
             precision {}, recall {}, F1 {}; too near the threshold to judge: {}\n\n",
            self.pattern,
            self.page_name(),
            if self.backed_as_asked { "" } else { ", not all backed as asked" },
            w.judged,
            seconds(w.judged_ns),
            seconds(w.phase_ns),
            w.across_change,
            w.outside,
            percent(self.score.precision, 2),
            percent(self.score.recall, 2),
            number(self.score.f1),
            percent(self.ambiguous_share(), 1),
        );
        let mut table =
            Table::new(&["phase", "windows", "precision", "recall", "F1", "converged after", "F1 then"]);
        for p in &self.phases {
            table.row([
                p.name.clone(),
                p.windows.to_string(),
                percent(p.score.precision, 2),
                percent(p.score.recall, 2),
                number(p.score.f1),
                p.converged_after_ms.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.0} ms")),
                number(p.f1_once_converged),
            ]);
        }
        text.push_str(&table.render());
        if let Some(wss) = &self.wss {
            let mut table = Table::new(&["working set", "p25", "p50", "p75"]);
            for (name, q) in
                [("true", wss.truth), ("recorded, areas", wss.inside), ("recorded, process", wss.process)]
            {
                table.row([name.to_owned(), mib(q.p25), mib(q.p50), mib(q.p75)]);
            }
            text.push('\n');
            text.push_str(&table.render());
            if let (Some(bounds), Some(inside)) = (wss.bounds, wss.p50_in_bounds()) {
                let verdict = if inside { "inside" } else { "outside" };
                let (low, high) = (mib(bounds.low), mib(bounds.high));
                text.push_str(&format!("p50 of the process is {verdict} the known bounds {low} to {high}\n"));
            }
        }
        let mut table = Table::new(&["rate", "achieved", "countable", "recorded", "error", "relative"]);
        for r in &self.rates {
            let stated = match r.stated {
                Stated::Hz(hz) => format!("{hz} Hz"),
                Stated::Max(_) => "max".to_owned(),
            };
            table.row([
                stated,
                format!("{:.2} Hz", r.achieved_hz),
                format!("{:.2} Hz", r.countable_hz),
                format!("{:.2} Hz", r.recorded_hz),
                format!("{:+.2} Hz", r.error_hz),
                r.relative_error.map_or_else(|| "-".to_owned(), |e| format!("{:+.1} %", e * 100.0)),
            ]);
        }
        text.push('\n');
        text.push_str(&table.render());
        text
    }

    /// Share of all byte-seconds that were too near the threshold.
    pub fn ambiguous_share(&self) -> Option<f64> {
        let s = &self.score;
        let all = s.hot_as_hot + s.hot_as_cold + s.cold_as_hot + s.cold_as_cold + s.ambiguous;
        (all > 0.0).then(|| s.ambiguous / all)
    }
}

fn number(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |v| format!("{v:.4}"))
}

/// One row a run.
pub fn summary_table(runs: &[Accuracy]) -> String {
    let mut table = Table::new(&[
        "pattern",
        "pages",
        "windows",
        "precision",
        "recall",
        "F1",
        "converged",
        "wss p50",
        "true",
        "process",
        "bounds",
        "rate error",
    ]);
    for run in runs {
        let wss = |pick: fn(&Wss) -> u64| run.wss.as_ref().map_or_else(|| "-".to_owned(), |w| mib(pick(w)));
        let bounds = run.wss.as_ref().and_then(Wss::p50_in_bounds);
        // The worst of the rates that can be counted at all.
        let worst =
            run.rates.iter().filter_map(|r| r.relative_error).max_by(|a, b| a.abs().total_cmp(&b.abs()));
        table.row([
            run.pattern.clone(),
            run.page_name().to_owned(),
            run.windows.judged.to_string(),
            percent(run.score.precision, 2),
            percent(run.score.recall, 2),
            number(run.score.f1),
            run.convergence.median_ms.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.0} ms")),
            wss(|w| w.inside.p50),
            wss(|w| w.truth.p50),
            wss(|w| w.process.p50),
            bounds.map_or("-", |inside| if inside { "in" } else { "out" }).to_owned(),
            worst.map_or_else(|| "-".to_owned(), |e| format!("{:+.1} %", e * 100.0)),
        ]);
    }
    table.render()
}

//! The verdict as text for people.

use super::{Accuracy, AccuracyRun, Threshold, Wss};
use crate::table::{Table, mib, percent};
use isotherm_workloads::truth::{Page, Stated};

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
             windows: {} judged ({:.1} s of {:.1} s), {} across a change of phase, {} settling, {} outside\n\
             precision {}, recall {}, F1 {}; too near the threshold or in motion: {}, unknown: {}\n\n",
            self.pattern,
            self.page_name(),
            if self.backed_as_asked { "" } else { ", not all backed as asked" },
            w.judged,
            seconds(w.judged_ns),
            seconds(w.phase_ns),
            w.across_change,
            w.settling,
            w.outside,
            percent(self.score.precision, 2),
            percent(self.score.recall, 2),
            number(self.score.f1),
            percent(self.score.ambiguous_share(), 1),
            percent(self.score.unknown_share(), 1),
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
            if let Some(second) = &self.second {
                for (name, q) in [("true, 1 s", second.truth), ("recorded, 1 s", second.recorded)] {
                    table.row([name.to_owned(), mib(q.p25), mib(q.p50), mib(q.p75)]);
                }
            }
            text.push('\n');
            text.push_str(&table.render());
            if let (Some(bounds), Some(inside)) = (wss.bounds, wss.p50_in_bounds()) {
                let verdict = if inside { "inside" } else { "outside" };
                let (low, high) = (mib(bounds.low), mib(bounds.high));
                text.push_str(&format!("p50 of the process is {verdict} the known bounds {low} to {high}\n"));
            }
        }
        if let Some(second) = &self.second {
            text.push_str(&format!(
                "accessed within 1 s: precision {}, recall {}, F1 {}, recorded / true {}, unknown {}\n",
                percent(second.precision, 2),
                percent(second.recall, 2),
                number(second.f1),
                ratio(second.ratio),
                percent(Some(second.unknown_share), 1),
            ));
        }
        let found = &self.found;
        if self.processes > 1 {
            let ms = |ms: Option<f64>| ms.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.0} ms"));
            text.push_str(&format!(
                "processes: {}, {} of them hot, of which {} were found (median {}, slowest {})\n",
                self.processes,
                found.hot,
                found.found,
                ms(found.median_ms),
                ms(found.max_ms)
            ));
        }
        for forked in &self.forked {
            text.push_str(&format!("\n{}", forked.details()));
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
}

/// A share that is there.
pub(super) fn percent_of(share: f64) -> String {
    percent(Some(share), 1)
}

fn number(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |v| format!("{v:.4}"))
}

fn ratio(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |v| format!("{v:.2}"))
}

/// Lowest rate whose error the summary shows, Hz.
const SLOWEST_HZ: f64 = 0.5;

/// One row a run: hot bytes, bytes accessed within a second, working sets, rates, and what the monitor cost.
pub fn summary_table(runs: &[AccuracyRun]) -> String {
    let mut table = Table::new(&[
        "pattern",
        "pages",
        "windows",
        "precision",
        "recall",
        "F1",
        "converged",
        "found",
        "slowest",
        "F1 of 1 s",
        "wss of 1 s",
        "/ true",
        "unknown",
        "wss p50",
        "true",
        "process",
        "bounds",
        "rate error",
        "10..50 Hz",
        "CPU",
        "slowdown",
    ]);
    let ms = |ms: Option<f64>| ms.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.0} ms"));
    for AccuracyRun { accuracy: run, cpu_share, derived_slowdown, .. } in runs {
        let wss = |pick: fn(&Wss) -> u64| run.wss.as_ref().map_or_else(|| "-".to_owned(), |w| mib(pick(w)));
        let bounds = run.wss.as_ref().and_then(Wss::p50_in_bounds);
        // The worst of the rates that can be counted: of slower ones a second shows an access or none.
        let countable = run.rates.iter().filter(|r| r.countable_hz >= SLOWEST_HZ);
        let worst = countable.filter_map(|r| r.relative_error).max_by(|a, b| a.abs().total_cmp(&b.abs()));
        // Where nothing is hot by a rate there is nothing to find, and what was called hot shows in the precision.
        let any_hot = run.score.hot_as_hot + run.score.hot_as_cold > 0.0;
        table.row([
            run.pattern.clone(),
            run.page_name().to_owned(),
            run.windows.judged.to_string(),
            percent(run.score.precision, 2),
            percent(run.score.recall, 2),
            number(run.score.f1.filter(|_| any_hot)),
            ms(run.convergence.median_ms),
            format!("{} of {}", run.found.found, run.found.hot),
            ms(run.found.max_ms),
            number(run.second.and_then(|s| s.f1)),
            run.second.map_or_else(|| "-".to_owned(), |s| mib(s.recorded.p50)),
            ratio(run.second.and_then(|s| s.ratio)),
            percent(run.score.unknown_share(), 1),
            wss(|w| w.inside.p50),
            wss(|w| w.truth.p50),
            wss(|w| w.process.p50),
            bounds.map_or("-", |inside| if inside { "in" } else { "out" }).to_owned(),
            worst.map_or_else(|| "-".to_owned(), |e| format!("{:+.1} %", e * 100.0)),
            percent(run.rate_error_10_to_50_hz, 1),
            percent(Some(*cpu_share), 2),
            percent(Some(*derived_slowdown), 2),
        ]);
    }
    table.render()
}

//! What a recording ends with: what the largest processes hold, where the heat was, how big the working set, what monitoring cost.
//!
//! Made from the snapshots as they pass by, without reading the file again.

use crate::Accumulate;
use crate::columns::wrapped;
use crate::heatmap::{
    AreaChoice, GridSpec, Heatmap, Survey, SurveyOptions, TerminalOptions, write_terminal_body,
};
use crate::holdings::{HoldingsAnalysis, HoldingsOptions, HoldingsReport, write_table};
use crate::provenance::Provenance;
use crate::trend::{Definition, Measure, TrendAnalysis, TrendOptions, TrendReport};
use crate::units::{format_share, format_size, significant};
use isotherm_damon::Snapshot;
use isotherm_record::Item;
use serde::Serialize;
use std::io::{self, Write};

/// Areas shown at most.
const MAX_AREAS: usize = 3;

/// Processes listed at most; of a single one, its mappings.
const MAX_LINES: usize = 4;

/// Collects a summary while recording. Needs some 8 MB at most, whatever the recording's length.
#[derive(Clone, Debug)]
pub struct SummaryAnalysis {
    survey: Survey,
    wss: TrendAnalysis,
    holdings: HoldingsAnalysis,
}

impl Default for SummaryAnalysis {
    fn default() -> Self {
        let survey = SurveyOptions { every_snapshot: true, ..SurveyOptions::default() };
        let wss = TrendOptions::new(Measure::WorkingSet(Definition::default()));
        let lines = HoldingsOptions { limit: MAX_LINES, mappings: MAX_LINES, ..HoldingsOptions::default() };
        Self {
            survey: Survey::new(survey),
            wss: TrendAnalysis::new(wss),
            holdings: HoldingsAnalysis::new(lines),
        }
    }
}

/// The end of a recording, in short.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// What the largest processes hold at the end.
    pub holdings: HoldingsReport,
    /// The hottest areas; `null` when nothing was recorded.
    pub heatmap: Option<Heatmap>,
    /// The working-set size.
    pub wss: TrendReport,
    /// What was recorded, by whom, at what cost.
    pub provenance: Provenance,
}

impl SummaryAnalysis {
    /// The summary, with a heatmap that fits `options`.
    pub fn finish(self, options: &TerminalOptions) -> Summary {
        let heatmap = self.survey.time_range().and_then(|time| {
            let areas = self.survey.areas(&AreaChoice::Hot, MAX_AREAS).ok()?;
            let spec: GridSpec = options.grid(areas, time);
            Some(self.survey.draw(&spec))
        });
        let provenance = self.survey.provenance().clone();
        let mut holdings = self.holdings.finish();
        if holdings.processes.len() > 1 {
            holdings.processes.iter_mut().for_each(|process| process.mappings.clear());
        }
        Summary { holdings, heatmap, wss: self.wss.finish(), provenance }
    }
}

impl Accumulate for SummaryAnalysis {
    fn snapshot(&mut self, snapshot: &Snapshot) {
        self.survey.snapshot(snapshot);
        self.wss.snapshot(snapshot);
        self.holdings.snapshot(snapshot);
    }

    fn note(&mut self, item: &Item) {
        self.survey.note(item);
        self.wss.note(item);
        self.holdings.note(item);
    }
}

/// Writes the summary; `options` as given to [`SummaryAnalysis::finish`].
///
/// # Errors
/// Those of `out`.
pub fn write_text(summary: &Summary, options: &TerminalOptions, out: &mut impl Write) -> io::Result<()> {
    for line in summary.provenance.head_within(options.width.max(40)) {
        writeln!(out, "{line}")?;
    }
    if !summary.holdings.processes.is_empty() {
        write_table(&summary.holdings, options.width, out)?;
    }
    match &summary.heatmap {
        Some(map) => write_terminal_body(map, options, out)?,
        None if summary.provenance.snapshots > 0 => {
            writeln!(out, "nothing was observed in any snapshot: no process was there")?;
        }
        None => {
            writeln!(
                out,
                "no snapshot was taken: the recording ended before the first aggregation was over"
            )?;
        }
    }
    let columns = options.width.max(40);
    let mut say = |text: &str| wrapped(text, columns).iter().try_for_each(|line| writeln!(out, "{line}"));
    if !summary.wss.percentiles.is_empty() {
        let value = |p: u8| format_size(summary.wss.percentile(p).unwrap_or(0));
        say(&format!(
            "working set ({}): median {}, p25 {}, p75 {}, p95 {}, highest {}",
            Definition::default(),
            value(50),
            value(25),
            value(75),
            value(95),
            value(100)
        ))?;
    }
    for remark in summary.wss.unknown_remark().iter().chain(&summary.wss.remarks) {
        say(remark)?;
    }
    if let Some(cost) = cost_of(&summary.provenance) {
        say(&cost)?;
        if let Some(map) = &summary.provenance.end {
            say(&format!("ended: {}", crate::names::printable(map)))?;
        }
    }
    for line in summary.provenance.foot_within(columns) {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

fn cost_of(provenance: &Provenance) -> Option<String> {
    let cost = &provenance.cost;
    let share = cost.cpu_share()?;
    let seconds = cost.wall_ns as f64 / crate::units::SECOND_NS;
    let a_second = |n: u64| format!("{}/s", significant(n as f64 / seconds, 3));
    let mut text = format!("cost of monitoring: {} of a CPU", format_share(share));
    if provenance.overhead_limit > 0.0 {
        text += &format!(" (ceiling {})", format_share(provenance.overhead_limit));
    }
    text += &format!(
        ", {} checks, at most {} a sampling interval, {} pages cleared",
        a_second(cost.checks),
        cost.max_checks_per_sample,
        a_second(cost.clears)
    );
    if cost.checks > 0 && cost.full_scan_checks > 0.0 {
        let ratio = cost.full_scan_checks / cost.checks as f64;
        text +=
            &format!("; a full scan would have needed {} times the checks", significant(ratio.round(), 6));
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic::{MIB, region, snapshot, stairs, unknown};
    use isotherm_record::{Backend, Cost, End, Header, RecordedAttrs};

    fn text(each: u64) -> String {
        let options = TerminalOptions { width: 80, lines: 10, ..TerminalOptions::default() };
        let mut analysis = SummaryAnalysis::default();
        analysis.item(&Item::Header(Header {
            attrs: RecordedAttrs { sample_us: 5_000, aggr_us: 100_000, ..RecordedAttrs::default() },
            backend: Backend {
                name: "pte".to_owned(),
                coarse: false,
                blind_spots: vec!["mlocked: 1 %".to_owned()],
            },
            overhead_limit: 0.01,
            ..Header::default()
        }));
        for snapshot in stairs(0x7f00_0000_0000, each) {
            analysis.item(&Item::Snapshot(snapshot));
        }
        analysis.item(&Item::Cost(Cost {
            wall_ns: 10_000_000_000,
            cpu_ns: 50_000_000,
            checks: 20_000,
            max_checks_per_sample: 10,
            clears: 500,
            clears_cut: 3,
            resident_pages: 25_600,
            ..Cost::default()
        }));
        analysis.item(&Item::End(End { reason: "duration reached".to_owned(), ..End::default() }));
        let mut out = Vec::new();
        write_text(&analysis.finish(&options), &options, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn it_shows_heat_working_set_cost_and_limits() {
        let text = text(10);
        for part in [
            "backend pte",
            "working set",
            "total at",
            "time (s)",
            "median 10.0 MiB",
            "0.5 % of a CPU (ceiling 1 %)",
            "2000/s checks",
            "2560 times",
            "blind spot: mlocked: 1 %",
            "3 clears",
            "ended: duration reached",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert_eq!(text.lines().filter(|l| l.contains("99")).count(), 10, "{text}");
    }

    #[test]
    fn time_that_is_in_no_working_set_is_told() {
        let options = TerminalOptions { width: 100, lines: 10, ..TerminalOptions::default() };
        let mut analysis = SummaryAnalysis::default();
        for i in 0..30 {
            let memory = if i < 10 { unknown(0, MIB) } else { region(0, MIB, 20) };
            analysis.item(&Item::Snapshot(snapshot(i, 1, vec![memory])));
        }
        let mut out = Vec::new();
        write_text(&analysis.finish(&options), &options, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("median 1.0 MiB") && text.contains("1 s are not counted"), "{text}");
    }

    #[test]
    fn a_recording_of_nothing_says_so() {
        assert!(text(0).contains("no snapshot was taken"));
    }
}

//! A trend as text: percentiles with bars, and bars over time.

use super::TrendReport;
use crate::columns::wrapped;
use crate::heatmap::{Tick, time_ticks};
use crate::units::format_share;
use std::io::{self, Write};

/// How to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextOptions {
    /// Columns of the terminal; at least 40 are used.
    pub width: usize,
    /// Lines of the plot over time; 0: no plot.
    pub lines: usize,
}

impl Default for TextOptions {
    fn default() -> Self {
        Self { width: 100, lines: 10 }
    }
}

/// Eighths of a character, from empty to full: from below, and from the left.
const RISING: [char; 9] =
    [' ', '\u{2581}', '\u{2582}', '\u{2583}', '\u{2584}', '\u{2585}', '\u{2586}', '\u{2587}', '\u{2588}'];
const GROWING: [char; 9] =
    [' ', '\u{258f}', '\u{258e}', '\u{258d}', '\u{258c}', '\u{258b}', '\u{258a}', '\u{2589}', '\u{2588}'];

/// Stands on the axis where nothing is known, which is not 0.
const UNKNOWN: char = '?';

/// Writes the table of percentiles and the plot over time, with the head and foot of the recording.
///
/// # Errors
/// Those of `out`.
pub fn write_text(report: &TrendReport, options: &TextOptions, out: &mut impl Write) -> io::Result<()> {
    for line in report.provenance.head_within(options.width.max(LEAST)) {
        writeln!(out, "{line}")?;
    }
    say(&report.what, options.width, out)?;
    write_percentiles(report, options.width, out)?;
    if options.lines > 0 {
        write_plot(report, options, out)?;
    }
    for line in report.provenance.foot_within(options.width.max(LEAST)) {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

/// The table of percentiles.
pub(crate) fn write_percentiles(report: &TrendReport, width: usize, out: &mut impl Write) -> io::Result<()> {
    let Some(highest) = report.percentile(100) else {
        let why = match report.provenance.snapshots {
            0 => "the recording holds no snapshot",
            _ if report.unknown_bytes.is_empty() => "no target was there in the recorded time",
            _ => "nothing is known of any memory in the recorded time",
        };
        writeln!(out, "{why}")?;
        return report.unknown_remark().iter().try_for_each(|remark| say(remark, width, out));
    };
    writeln!(out, "{:>12} {:>11}", "% of time", "not above")?;
    for p in &report.percentiles {
        let bar = bar(p.value as f64 / highest.max(1) as f64, width.saturating_sub(26));
        let line = format!("{:>12} {:>11} {bar}", p.percent, report.measure.format(p.value as f64));
        writeln!(out, "{}", line.trim_end())?;
    }
    if let Some(mean) = report.mean {
        writeln!(out, "{:>12} {:>11}", "mean", report.measure.format(mean))?;
    }
    for remark in report.unknown_remark().iter().chain(&report.remarks) {
        say(remark, width, out)?;
    }
    if report.relative_error > 0.0 {
        let exact = format!(
            "percentiles 1 to 99 are exact to {} of their value",
            format_share(report.relative_error)
        );
        say(&exact, width, out)?;
    }
    Ok(())
}

/// Columns that are used in any case.
const LEAST: usize = 40;

/// Writes a sentence, in several lines where it is longer than one.
fn say(text: &str, width: usize, out: &mut impl Write) -> io::Result<()> {
    wrapped(text, width.max(LEAST)).iter().try_for_each(|line| writeln!(out, "{line}"))
}

fn bar(share: f64, width: usize) -> String {
    let eighths = (share.clamp(0.0, 1.0) * width as f64 * 8.0).round() as usize;
    let mut bar = GROWING[8].to_string().repeat(eighths / 8);
    if !eighths.is_multiple_of(8) {
        bar.push(GROWING[eighths % 8]);
    }
    bar
}

/// Mean of the buckets over each of `columns` even parts of the time; `None` where nothing is known.
fn resampled(report: &TrendReport, columns: usize) -> Vec<Option<f64>> {
    let (Some(first), Some(last)) = (report.over_time.first(), report.over_time.last()) else {
        return Vec::new();
    };
    let (start, span) = (first.start_ns as f64, (last.end_ns - first.start_ns) as f64);
    let mut sums = vec![(0.0, 0.0); columns];
    for bucket in &report.over_time {
        let Some(mean) = bucket.mean else { continue };
        let position = |ns: u64| (ns as f64 - start) / span * columns as f64;
        let (from, to) = (position(bucket.start_ns), position(bucket.end_ns));
        let last = (to.ceil() as usize).min(columns);
        for (i, (sum, weight)) in sums.iter_mut().enumerate().take(last).skip(from as usize) {
            let shared = (to.min(i as f64 + 1.0) - from.max(i as f64)).max(0.0);
            *sum += mean * shared;
            *weight += shared;
        }
    }
    sums.into_iter().map(|(sum, weight)| (weight > 1e-9).then(|| sum / weight)).collect()
}

fn write_plot(report: &TrendReport, options: &TextOptions, out: &mut impl Write) -> io::Result<()> {
    const GUTTER: usize = 13;
    const NARROWEST: usize = 20;
    let columns = options.width.max(NARROWEST) - GUTTER - 1;
    let values = resampled(report, columns);
    let Some(highest) = values.iter().flatten().copied().reduce(f64::max) else { return Ok(()) };
    writeln!(out)?;
    for line in (0..options.lines).rev() {
        let label = match line {
            _ if line + 1 == options.lines => report.measure.format(highest),
            0 => report.measure.format(0.0),
            _ if line * 2 == options.lines => report.measure.format(highest / 2.0),
            _ => String::new(),
        };
        let bars: String = values
            .iter()
            .map(|value| {
                let Some(value) = value else { return if line == 0 { UNKNOWN } else { ' ' } };
                let eighths = value / highest.max(f64::MIN_POSITIVE) * options.lines as f64 * 8.0;
                RISING[(eighths - line as f64 * 8.0).round().clamp(0.0, 8.0) as usize]
            })
            .collect();
        writeln!(out, "{label:>11} |{}", bars.trim_end())?;
    }
    let (Some(first), Some(last)) = (report.over_time.first(), report.over_time.last()) else {
        return Ok(());
    };
    let (start, end) = (report.seconds(first.start_ns), report.seconds(last.end_ns));
    let (mut marks, mut labels) = (vec!['-'; columns], String::new());
    for Tick { place, text } in time_ticks(start, end, (columns / 12).max(1)) {
        let at = (place * columns as f64) as usize;
        if labels.len() <= at && at + text.len() <= columns {
            labels.push_str(&" ".repeat(at - labels.len()));
            labels.push_str(&text);
            labels.push(' ');
            marks[at.min(columns - 1)] = '+';
        }
    }
    writeln!(out, "{:>11} +{}", "", marks.into_iter().collect::<String>())?;
    writeln!(out, "{:>11}  {}", "time (s)", labels.trim_end())?;
    if values.contains(&None) {
        say(&format!("{UNKNOWN}: nothing is known of that time"), options.width, out)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Accumulate;
    use crate::synthetic::{MIB, region, snapshot, unknown};
    use crate::trend::{Definition, Measure, TrendAnalysis, TrendOptions};

    /// 1 MiB for half of the time, then 8 MiB.
    fn step() -> String {
        within(60)
    }

    fn within(width: usize) -> String {
        let mut analysis = TrendAnalysis::new(TrendOptions::new(Measure::WorkingSet(Definition::default())));
        for i in 0..40 {
            analysis.snapshot(&snapshot(i, 1, vec![region(0, if i < 20 { MIB } else { 8 * MIB }, 20)]));
        }
        let mut out = Vec::new();
        write_text(&analysis.finish(), &TextOptions { width, lines: 8 }, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_table_names_percentiles_with_units() {
        let text = step();
        let row = |p: &str| text.lines().find(|l| l.split_whitespace().next() == Some(p)).unwrap().to_owned();
        assert!(
            row("50").contains("1.0 MiB") && row("75").contains("8.0 MiB") && row("mean").contains("4.5 MiB"),
            "{text}"
        );
        let flowing = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(flowing.contains("Denning: accessed at least once within 1 s"), "{text}");
    }

    #[test]
    fn on_a_narrow_terminal_no_line_of_the_plot_or_the_table_is_wrapped() {
        for width in [20, 28, 40, 60] {
            let text = within(width);
            let rows = text.lines().filter(|l| l.contains(['|', '+', '\u{2588}']) && !l.contains("unnamed"));
            let longest = rows.map(|l| l.chars().count()).max().unwrap();
            assert!((12..=width.max(24)).contains(&longest), "{width}: {text}");
            let longest = text.lines().map(|l| l.chars().count()).max().unwrap();
            assert!(longest <= width.max(LEAST), "{width}: {text}");
        }
    }

    #[test]
    fn the_plot_rises_where_the_working_set_does() {
        let text = step();
        let plot: Vec<&str> = text.lines().filter(|l| l.chars().nth(12) == Some('|')).collect();
        assert_eq!(plot.len(), 8, "{text}");
        let full = |line: &str| line.chars().filter(|c| *c == RISING[8]).count();
        assert_eq!((full(plot[0]), full(plot[7])), (23, 46), "{text}");
        let drawn = text.lines().skip_while(|l| !l.contains("% of time"));
        assert!(drawn.into_iter().all(|l| l.chars().count() <= 60), "{text}");
        assert!(text.contains("time (s)"));
    }

    #[test]
    fn what_is_not_known_is_not_drawn_as_nothing() {
        let mut analysis = TrendAnalysis::new(TrendOptions::new(Measure::WorkingSet(Definition::default())));
        for i in 0..40 {
            let known = region(0, MIB, if i < 20 { 0 } else { 20 });
            analysis.snapshot(&snapshot(i, 1, vec![if i < 10 { unknown(0, MIB) } else { known }]));
        }
        let report = analysis.finish();
        let means: Vec<Option<f64>> = report.over_time.iter().map(|b| b.mean).collect();
        assert!(means[..10].iter().all(Option::is_none), "{means:?}");
        assert!(means[10..20].iter().all(|mean| *mean == Some(0.0)), "{means:?}");
        let mut out = Vec::new();
        write_text(&report, &TextOptions { width: 54, lines: 4 }, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let bottom = text.lines().rfind(|l| l.chars().nth(12) == Some('|')).unwrap();
        assert_eq!(bottom.matches('?').count(), 10, "{text}");
        assert!(bottom.contains(&format!("|{}{}", "?".repeat(10), " ".repeat(10))), "{text}");
        assert!(text.contains("?: nothing is known"), "{text}");
        assert!(!step().contains('?'));
    }

    #[test]
    fn without_snapshots_it_says_so() {
        let report = TrendAnalysis::new(TrendOptions::new(Measure::Regions)).finish();
        let mut out = Vec::new();
        write_text(&report, &TextOptions::default(), &mut out).unwrap();
        assert!(String::from_utf8(out).unwrap().contains("no snapshot"));
    }
}

//! A trend as a picture: the figure over time, and its distribution beside it on the same axis.

use super::TrendReport;
use crate::canvas::{
    Anchor, Bitmap, Canvas, FAINT, HAIRLINE, INK, MARGIN, Page, Rect, Svg, TextSize, TextStyle, byte_axis,
};
use crate::colour::Colour;
use crate::columns::shortened;
use crate::heatmap::{frame, most_ticks, ticks, time_axis, time_ticks};
use std::io::{self, Write};

/// How large to draw.
#[derive(Clone, Debug, PartialEq)]
pub struct ChartOptions {
    /// Width of the picture, pixels; at least 640 and at most 4096 are used.
    pub width: usize,
    /// Height of the plot, pixels; at least 120 and at most 4096 are used.
    pub height: usize,
    /// Title; the recording's first line when empty.
    pub title: String,
}

impl Default for ChartOptions {
    fn default() -> Self {
        Self { width: 1280, height: 420, title: String::new() }
    }
}

/// The line and, lighter, the band from lowest to highest.
const LINE: Colour = Colour::hex(0x93_2667);
const LEFT: f64 = 150.0;
/// What is plotted, below the page's head.
const CAPTION: f64 = 66.0;
const AXIS: f64 = 78.0;

/// Writes `report` as PNG.
///
/// # Errors
/// Those of `out`.
pub fn write_png(report: &TrendReport, options: &ChartOptions, out: impl Write) -> io::Result<()> {
    let layout = Layout::new(report, options);
    let mut bitmap = Bitmap::new(layout.width as usize, layout.height as usize);
    draw(report, &layout, &mut bitmap);
    bitmap.write_png(out)
}

/// Writes `report` as SVG.
///
/// # Errors
/// Those of `out`.
pub fn write_svg(report: &TrendReport, options: &ChartOptions, mut out: impl Write) -> io::Result<()> {
    let layout = Layout::new(report, options);
    let mut svg = Svg::new(layout.width as usize, layout.height as usize);
    draw(report, &layout, &mut svg);
    out.write_all(svg.finish().as_bytes())
}

struct Layout {
    page: Page,
    width: f64,
    height: f64,
    time: Rect,
    distribution: Rect,
}

impl Layout {
    fn new(report: &TrendReport, options: &ChartOptions) -> Self {
        let value = |p: u8| report.percentile(p).map(|v| format!("p{p} {}", report.measure.format(v as f64)));
        let values: Vec<String> = [5, 25, 50, 75, 95, 100].into_iter().filter_map(value).collect();
        let mut notes = vec![values.join(", ")];
        notes.extend(report.unknown_remark());
        notes.extend(report.remarks.iter().cloned());
        if report.over_time.iter().any(|b| b.min != b.max) {
            notes
                .push("line: mean; band: lowest to highest of the snapshots in each step of time".to_owned());
        }
        if report.over_time.iter().any(|b| b.mean.is_none()) {
            notes.push("where there is no line nothing is known of that time".to_owned());
        }
        notes.extend(report.provenance.foot());
        let page = Page::new(options.width, &report.provenance, &options.title, notes);
        let (width, y) = (page.width, page.head() + CAPTION);
        let height = options.height.clamp(120, 4096) as f64;
        let right = (width / 5.0).round();
        let distribution = Rect { x: width - MARGIN - 80.0 - right, y, width: right, height };
        let time = Rect { x: LEFT, y, width: distribution.x - 48.0 - LEFT, height };
        Self { width, height: y + height + AXIS + page.foot(), page, time, distribution }
    }
}

/// The top of the value axis and the distance of its ticks: binary round for bytes, decimal for counts.
fn value_axis(report: &TrendReport, highest: f64) -> (f64, f64) {
    let highest = highest.max(1.0);
    if report.unit == "bytes" {
        return byte_axis(highest, 6.0);
    }
    let step = ticks(0.0, highest, 6).get(1).copied().unwrap_or(highest).max(1.0);
    ((highest / step).ceil().max(1.0) * step, step)
}

fn draw(report: &TrendReport, layout: &Layout, canvas: &mut dyn Canvas) {
    layout.page.draw(layout.time.bottom() + AXIS, canvas);
    let small = TextStyle::new(TextSize::Small);
    let label = TextStyle::new(TextSize::Label);
    let mut what = report.what.clone();
    if let Some(first) = what.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    let room = (layout.width - LEFT - MARGIN) / TextSize::Label.char_width();
    canvas.text(LEFT, layout.time.y - 26.0, &shortened(&what, room as usize), label.bold());
    let Some(highest) = report.percentile(100) else {
        canvas.text(LEFT, layout.time.y + 40.0, "the recording holds no snapshot", label);
        return;
    };
    let (top, step) = value_axis(report, highest as f64);
    for i in 0..=(top / step).round() as usize {
        let value = i as f64 * step;
        for plot in [&layout.time, &layout.distribution] {
            let y = y_of(plot, value, top);
            canvas.line(&[(plot.x, y), (plot.right(), y)], 1.0, HAIRLINE);
        }
        let text = report.measure.format_tick(value);
        canvas.text(LEFT - 14.0, y_of(&layout.time, value, top), &text, small.anchor(Anchor::End));
    }
    draw_over_time(report, layout.time, top, canvas);
    draw_distribution(report, layout.distribution, top, canvas);
}

fn y_of(plot: &Rect, value: f64, top: f64) -> f64 {
    plot.bottom() - plot.height * (value / top).clamp(0.0, 1.0)
}

fn draw_over_time(report: &TrendReport, plot: Rect, top: f64, canvas: &mut dyn Canvas) {
    let (Some(first), Some(last)) = (report.over_time.first(), report.over_time.last()) else { return };
    let (start, end) = (report.seconds(first.start_ns), report.seconds(last.end_ns));
    let x_of =
        |ns: u64| plot.x + plot.width * (report.seconds(ns) - start) / (end - start).max(f64::MIN_POSITIVE);
    // A gap in the recording is a gap in the line.
    for run in report.over_time.split(|b| b.mean.is_none()) {
        let steps = |value: fn(&super::Bucket) -> f64| {
            run.iter().flat_map(move |b| {
                let y = y_of(&plot, value(b), top);
                [(x_of(b.start_ns), y), (x_of(b.end_ns), y)]
            })
        };
        let mut band: Vec<(f64, f64)> = steps(|b| b.max.unwrap_or(0) as f64).collect();
        let mut low: Vec<(f64, f64)> = steps(|b| b.min.unwrap_or(0) as f64).collect();
        low.reverse();
        band.extend(low);
        canvas.fill(&band, LINE, 0.25);
        canvas.line(&steps(|b| b.mean.unwrap_or(0.0)).collect::<Vec<_>>(), 2.0, LINE);
    }
    frame(plot, canvas);
    time_axis(plot, &time_ticks(start, end, most_ticks(&plot)), canvas);
}

/// The distribution: from left to right the share of the time, upwards the value not exceeded in it. A step for every value
/// that occurred, since between two of them there is none.
fn stairs_of(report: &TrendReport, plot: &Rect, top: f64) -> Vec<(f64, f64)> {
    let x = |share: f64| plot.x + plot.width * share;
    let mut from = 0.0;
    let steps = report.distribution.iter().flat_map(|step| {
        let y = y_of(plot, step.value as f64, top);
        [(x(std::mem::replace(&mut from, step.share)), y), (x(step.share), y)]
    });
    steps.collect()
}

fn draw_distribution(report: &TrendReport, plot: Rect, top: f64, canvas: &mut dyn Canvas) {
    let point = |percent: u8, value: u64| {
        (plot.x + plot.width * f64::from(percent) / 100.0, y_of(&plot, value as f64, top))
    };
    let line = stairs_of(report, &plot, top);
    let mut below = line.clone();
    below.extend([(plot.right(), plot.bottom()), (plot.x, plot.bottom())]);
    canvas.fill(&below, LINE, 0.12);
    canvas.line(&line, 2.0, LINE);
    frame(plot, canvas);
    let label = TextStyle::new(TextSize::Label).anchor(Anchor::Middle);
    for percent in [0, 50, 100] {
        let (x, _) = point(percent, 0);
        canvas.line(&[(x, plot.bottom()), (x, plot.bottom() + 7.0)], 1.0, INK);
        canvas.text(x, plot.bottom() + 22.0, &percent.to_string(), label);
    }
    canvas.text(plot.x + plot.width / 2.0, plot.bottom() + 50.0, "percentile (% of time)", label);
    // The values worth reading off; where they crowd, the median has precedence.
    let mut taken: Vec<f64> = Vec::new();
    for percent in [50, 100, 95, 5] {
        let Some(value) = report.percentile(percent) else { continue };
        let (x, y) = point(percent, value);
        canvas.rect(Rect { x: x - 3.0, y: y - 3.0, width: 6.0, height: 6.0 }, LINE);
        if taken.iter().all(|other| (other - y).abs() >= 22.0) {
            taken.push(y);
            let small = TextStyle::new(TextSize::Small);
            canvas.line(&[(x, y), (plot.right(), y)], 1.0, FAINT);
            canvas.text(plot.right() + 6.0, y, &format!("p{percent}"), small);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Accumulate;
    use crate::synthetic::{region, snapshot, stairs};
    use crate::trend::{Definition, Measure, TrendAnalysis, TrendOptions};

    fn report(measure: Measure, each: u64) -> TrendReport {
        let mut analysis = TrendAnalysis::new(TrendOptions::new(measure));
        stairs(0, each).iter().for_each(|s| analysis.snapshot(s));
        analysis.finish()
    }

    #[test]
    fn the_svg_has_units_on_both_axes() {
        let mut out = Vec::new();
        let wss = report(Measure::WorkingSet(Definition::default()), 4);
        write_svg(&wss, &ChartOptions::default(), &mut out).unwrap();
        let svg = String::from_utf8(out).unwrap();
        for part in ["time (s)", "2 MiB", "percentile (% of time)", "p50", "Working-set size"] {
            assert!(svg.contains(part), "{part}");
        }
    }

    #[test]
    fn the_line_lies_at_the_value() {
        let report = report(Measure::Regions, 4);
        let options = ChartOptions::default();
        let layout = Layout::new(&report, &options);
        let mut bitmap = Bitmap::new(layout.width as usize, layout.height as usize);
        draw(&report, &layout, &mut bitmap);
        // 10 regions, on an axis from 0 to 10: the line runs along the top.
        assert_eq!(value_axis(&report, 10.0), (10.0, 2.0));
        let middle = (layout.time.x + layout.time.width / 2.0) as usize;
        assert_eq!(bitmap.pixel(middle, layout.time.y as usize), Some(LINE));
    }

    /// Two phases: what is drawn has two levels, and nothing of the ramp between them.
    #[test]
    fn the_distribution_of_two_values_is_a_step() {
        let mut analysis = TrendAnalysis::new(TrendOptions::new(Measure::Regions));
        for i in 0..100 {
            let regions = if i < 60 { 2 } else { 10 };
            let regions = (0..regions).map(|r| region(r * 4096, (r + 1) * 4096, 0)).collect();
            analysis.snapshot(&snapshot(i, 1, regions));
        }
        let report = analysis.finish();
        let plot = Rect { x: 0.0, y: 0.0, width: 100.0, height: 10.0 };
        let drawn = stairs_of(&report, &plot, 10.0);
        assert_eq!(drawn, [(0.0, 8.0), (60.0, 8.0), (60.0, 0.0), (100.0, 0.0)]);
    }

    #[test]
    fn an_empty_recording_still_makes_a_picture_that_says_so() {
        let empty = report(Measure::Regions, 0);
        let mut out = Vec::new();
        write_svg(&empty, &ChartOptions::default(), &mut out).unwrap();
        assert!(String::from_utf8(out).unwrap().contains("no snapshot"));
        let mut out = Vec::new();
        write_png(&empty, &ChartOptions { width: 0, height: 0, ..ChartOptions::default() }, &mut out)
            .unwrap();
        assert_eq!(&out[1..4], b"PNG");
    }
}

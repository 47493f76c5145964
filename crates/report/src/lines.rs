//! Bytes over time, a line a series, as a picture.

use crate::canvas::{
    Anchor, Bitmap, Canvas, HAIRLINE, MARGIN, Page, Rect, Svg, TextSize, TextStyle, byte_axis,
};
use crate::colour::Colour;
use crate::heatmap::{frame, most_ticks, time_axis, time_ticks};
use crate::units::format_size_tick;
use std::io::{self, Write};

/// One line.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// What it is.
    pub name: String,
    /// Seconds and bytes, in order of time.
    pub points: Vec<(f64, f64)>,
}

/// A plot.
#[derive(Clone, Debug, PartialEq)]
pub struct Plot {
    /// What is plotted.
    pub caption: String,
    /// The lines; those beyond the fourth have the colours of the first again.
    pub series: Vec<Series>,
}

/// Plots one below the other.
#[derive(Clone, Debug, PartialEq)]
pub struct Lines {
    /// Title.
    pub title: String,
    /// The plots.
    pub plots: Vec<Plot>,
    /// Notes below.
    pub notes: Vec<String>,
}

/// Told apart also without colour: by how light they are.
const COLOURS: [Colour; 4] =
    [Colour::hex(0x6b_7280), Colour::hex(0x93_2667), Colour::hex(0xe6_7e22), Colour::hex(0x1f_6f8b)];
const LEFT: f64 = 150.0;
const CAPTION: f64 = 66.0;
const AXIS: f64 = 78.0;
const HEIGHT: f64 = 260.0;
const WIDTH: usize = 1280;

/// Writes the picture as PNG.
///
/// # Errors
/// Those of `out`.
pub fn write_png(lines: &Lines, out: impl Write) -> io::Result<()> {
    let page = page(lines);
    let mut bitmap = Bitmap::new(WIDTH, height(lines, &page) as usize);
    draw(lines, &page, &mut bitmap);
    bitmap.write_png(out)
}

/// Writes the picture as SVG.
///
/// # Errors
/// Those of `out`.
pub fn write_svg(lines: &Lines, mut out: impl Write) -> io::Result<()> {
    let page = page(lines);
    let mut svg = Svg::new(WIDTH, height(lines, &page) as usize);
    draw(lines, &page, &mut svg);
    out.write_all(svg.finish().as_bytes())
}

fn page(lines: &Lines) -> Page {
    Page::plain(WIDTH, &lines.title, lines.notes.clone())
}

fn height(lines: &Lines, page: &Page) -> f64 {
    page.head() + lines.plots.len() as f64 * (CAPTION + HEIGHT + AXIS) + page.foot()
}

fn draw(lines: &Lines, page: &Page, canvas: &mut dyn Canvas) {
    let mut y = page.head();
    for plot in &lines.plots {
        let area = Rect { x: LEFT, y: y + CAPTION, width: page.width - LEFT - MARGIN - 20.0, height: HEIGHT };
        draw_plot(plot, area, canvas);
        y = area.bottom() + AXIS;
    }
    page.draw(y, canvas);
}

fn draw_plot(plot: &Plot, area: Rect, canvas: &mut dyn Canvas) {
    let label = TextStyle::new(TextSize::Label);
    canvas.text(LEFT, area.y - 26.0, &plot.caption, label.bold());
    let all = || plot.series.iter().flat_map(|series| &series.points);
    let fold = |of: fn(&(f64, f64)) -> f64, start, fold: fn(f64, f64) -> f64| all().map(of).fold(start, fold);
    let (start, end) = (fold(|p| p.0, f64::INFINITY, f64::min), fold(|p| p.0, f64::NEG_INFINITY, f64::max));
    if start >= end {
        canvas.text(LEFT, area.y + 40.0, "nothing was seen", label);
        return;
    }
    let (top, step) = byte_axis(fold(|p| p.1, 1.0, f64::max), 5.0);
    let y_of = |value: f64| area.bottom() - area.height * (value / top).clamp(0.0, 1.0);
    let x_of = |at: f64| area.x + area.width * (at - start) / (end - start);
    let small = TextStyle::new(TextSize::Small);
    for i in 0..=(top / step).round() as usize {
        let value = i as f64 * step;
        canvas.line(&[(area.x, y_of(value)), (area.right(), y_of(value))], 1.0, HAIRLINE);
        canvas.text(LEFT - 14.0, y_of(value), &format_size_tick(value as u64), small.anchor(Anchor::End));
    }
    let mut right = area.right();
    let coloured: Vec<_> = plot.series.iter().zip(COLOURS.iter().cycle()).collect();
    for (series, colour) in coloured.into_iter().rev() {
        let line: Vec<(f64, f64)> =
            series.points.iter().map(|&(at, value)| (x_of(at), y_of(value))).collect();
        canvas.line(&line, 2.0, *colour);
        // The legend stands in the caption's line, from the right.
        right -= TextSize::Small.width(&series.name);
        canvas.text(right, area.y - 26.0, &series.name, small);
        right -= 40.0;
        canvas.line(&[(right, area.y - 26.0), (right + 30.0, area.y - 26.0)], 4.0, *colour);
        right -= 24.0;
    }
    frame(area, canvas);
    time_axis(area, &time_ticks(start, end, most_ticks(&area)), canvas);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines() -> Lines {
        let series = |name: &str, of: fn(f64) -> f64| Series {
            name: name.to_owned(),
            points: (0..=100).map(|i| (f64::from(i), of(f64::from(i)))).collect(),
        };
        let gib = f64::from(1 << 30);
        let falls = |at: f64| f64::from(1 << 30) * if at < 50.0 { 1.0 } else { 0.125 };
        assert_eq!(byte_axis(gib, 5.0), (gib, gib / 4.0));
        Lines {
            title: "build under prcl".to_owned(),
            plots: vec![Plot {
                caption: "Resident memory".to_owned(),
                series: vec![series("without", |_| f64::from(1 << 30)), series("with", falls)],
            }],
            notes: vec!["1 of 3 pairs".to_owned()],
        }
    }

    #[test]
    fn the_svg_names_lines_and_units() {
        let mut out = Vec::new();
        write_svg(&lines(), &mut out).unwrap();
        let svg = String::from_utf8(out).unwrap();
        for part in [
            "build under prcl",
            "Resident memory",
            ">without<",
            ">with<",
            "1 GiB",
            "time (s)",
            "1 of 3 pairs",
        ] {
            assert!(svg.contains(part), "{part}");
        }
    }

    #[test]
    fn a_line_lies_at_its_value() {
        let (lines, mut bitmap) = (lines(), Bitmap::new(WIDTH, 600));
        let page = page(&lines);
        draw(&lines, &page, &mut bitmap);
        let area_top = page.head() + CAPTION;
        let right = WIDTH as f64 - MARGIN - 20.0;
        // An eighth of the axis above its bottom, in the second half.
        let y = (area_top + HEIGHT * 0.875) as usize;
        let x = (LEFT + (right - LEFT) * 0.75) as usize;
        assert_eq!(bitmap.pixel(x, y), Some(COLOURS[1]));
        assert_eq!(bitmap.pixel(x, area_top as usize), Some(COLOURS[0]));
    }

    #[test]
    fn what_saw_nothing_is_said_to_have() {
        let nothing = Plot { caption: "Resident memory".to_owned(), series: Vec::new() };
        let mut out = Vec::new();
        write_svg(&Lines { plots: vec![nothing], ..lines() }, &mut out).unwrap();
        assert!(String::from_utf8(out).unwrap().contains("nothing was seen"));
        write_png(&Lines { plots: Vec::new(), ..lines() }, Vec::new()).unwrap();
    }
}

//! What is gained and what it costs, for several values of one parameter, as a picture.

use crate::canvas::{
    Anchor, Bitmap, Canvas, FAINT, HAIRLINE, INK, MARGIN, Page, Rect, Svg, TextSize, TextStyle, byte_axis,
};
use crate::colour::Colour;
use crate::heatmap::frame;
use crate::provenance::Provenance;
use crate::units::format_size_tick;
use std::io::{self, Write};

/// One value of the parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// The value.
    pub label: String,
    /// Bytes gained.
    pub gain: f64,
    /// Bytes of cost.
    pub cost: f64,
}

/// Gain and cost over the values of a parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct Tradeoff {
    /// The parameter.
    pub parameter: String,
    /// What the gain is.
    pub gain: String,
    /// What the cost is.
    pub cost: String,
    /// The values, in order.
    pub points: Vec<Point>,
}

const GAIN: Colour = Colour::hex(0x1f_6f8b);
const COST: Colour = Colour::hex(0x93_2667);
const LEFT: f64 = 150.0;
const CAPTION: f64 = 66.0;
const AXIS: f64 = 78.0;
const GAP: f64 = 84.0;
const HEIGHT: f64 = 220.0;
const WIDTH: usize = 1280;

/// Writes the picture as PNG.
///
/// # Errors
/// Those of `out`.
pub fn write_png(tradeoff: &Tradeoff, provenance: &Provenance, out: impl Write) -> io::Result<()> {
    let page = Page::new(WIDTH, provenance, "", Vec::new());
    let mut bitmap = Bitmap::new(WIDTH, height(&page) as usize);
    draw(tradeoff, &page, &mut bitmap);
    bitmap.write_png(out)
}

/// Writes the picture as SVG.
///
/// # Errors
/// Those of `out`.
pub fn write_svg(tradeoff: &Tradeoff, provenance: &Provenance, mut out: impl Write) -> io::Result<()> {
    let page = Page::new(WIDTH, provenance, "", Vec::new());
    let mut svg = Svg::new(WIDTH, height(&page) as usize);
    draw(tradeoff, &page, &mut svg);
    out.write_all(svg.finish().as_bytes())
}

fn plots(page: &Page) -> [Rect; 2] {
    let width = page.width - LEFT - MARGIN - 40.0;
    let y = page.head() + CAPTION;
    [Rect { x: LEFT, y, width, height: HEIGHT }, Rect { x: LEFT, y: y + HEIGHT + GAP, width, height: HEIGHT }]
}

fn height(page: &Page) -> f64 {
    plots(page)[1].bottom() + AXIS + page.foot()
}

fn draw(tradeoff: &Tradeoff, page: &Page, canvas: &mut dyn Canvas) {
    let [upper, lower] = plots(page);
    page.draw(lower.bottom() + AXIS, canvas);
    panel(tradeoff, upper, &tradeoff.gain, GAIN, |point| point.gain, canvas);
    panel(tradeoff, lower, &tradeoff.cost, COST, |point| point.cost, canvas);
    let label = TextStyle::new(TextSize::Label).anchor(Anchor::Middle);
    for (index, point) in tradeoff.points.iter().enumerate() {
        let x = x_of(&lower, index, tradeoff.points.len());
        canvas.line(&[(x, lower.bottom()), (x, lower.bottom() + 7.0)], 1.0, INK);
        canvas.text(x, lower.bottom() + 22.0, &point.label, label);
    }
    canvas.text(lower.x + lower.width / 2.0, lower.bottom() + 50.0, &tradeoff.parameter, label);
}

/// Values stand at equal distances, whatever they are.
fn x_of(plot: &Rect, index: usize, count: usize) -> f64 {
    plot.x + plot.width * (index as f64 + 0.5) / count.max(1) as f64
}

fn panel(
    tradeoff: &Tradeoff,
    plot: Rect,
    caption: &str,
    colour: Colour,
    of: impl Fn(&Point) -> f64,
    canvas: &mut dyn Canvas,
) {
    canvas.text(LEFT, plot.y - 26.0, caption, TextStyle::new(TextSize::Label).bold());
    let highest = tradeoff.points.iter().map(&of).filter(|value| value.is_finite()).fold(1.0, f64::max);
    let (top, step) = byte_axis(highest, 4.0);
    let y_of = |value: f64| plot.bottom() - plot.height * (value / top).clamp(0.0, 1.0);
    let small = TextStyle::new(TextSize::Small);
    for i in 0..=(top / step).round() as usize {
        let value = i as f64 * step;
        canvas.line(&[(plot.x, y_of(value)), (plot.right(), y_of(value))], 1.0, HAIRLINE);
        canvas.text(LEFT - 14.0, y_of(value), &format_size_tick(value as u64), small.anchor(Anchor::End));
    }
    let count = tradeoff.points.len();
    let line: Vec<(f64, f64)> = tradeoff
        .points
        .iter()
        .enumerate()
        .map(|(at, point)| (x_of(&plot, at, count), y_of(of(point))))
        .collect();
    canvas.line(&line, 2.0, colour);
    for (x, y) in line {
        canvas.line(&[(x, y), (x, plot.bottom())], 1.0, FAINT);
        canvas.rect(Rect { x: x - 4.0, y: y - 4.0, width: 8.0, height: 8.0 }, colour);
    }
    frame(plot, canvas);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tradeoff(points: &[(&str, f64, f64)]) -> Tradeoff {
        let point = |&(label, gain, cost): &(&str, f64, f64)| Point { label: label.to_owned(), gain, cost };
        Tradeoff {
            parameter: "min_age".to_owned(),
            gain: "kept out".to_owned(),
            cost: "accessed again".to_owned(),
            points: points.iter().map(point).collect(),
        }
    }

    #[test]
    fn the_svg_names_values_and_both_axes_with_units() {
        let mut out = Vec::new();
        let swept = tradeoff(&[("1s", 4e6, 2e6), ("10s", 3e6, 1e5)]);
        write_svg(&swept, &Provenance::default(), &mut out).unwrap();
        let svg = String::from_utf8(out).unwrap();
        for part in ["min_age", "kept out", "accessed again", ">1s<", ">10s<", "1 MiB", "512 KiB"] {
            assert!(svg.contains(part), "{part}");
        }
    }

    #[test]
    fn the_highest_gain_lies_at_the_top() {
        let swept = tradeoff(&[("1s", 4.0 * 1048576.0, 0.0), ("10s", 0.0, 0.0)]);
        let page = Page::new(WIDTH, &Provenance::default(), "", Vec::new());
        let mut bitmap = Bitmap::new(WIDTH, height(&page) as usize);
        draw(&swept, &page, &mut bitmap);
        let [upper, _] = plots(&page);
        let at = |index, y: f64| bitmap.pixel(x_of(&upper, index, 2) as usize, y as usize);
        assert_eq!(at(0, upper.y + 2.0), Some(GAIN));
        assert_eq!(at(1, upper.bottom() - 3.0), Some(GAIN));
    }

    #[test]
    fn nothing_to_show_is_still_a_picture() {
        let mut out = Vec::new();
        write_png(&tradeoff(&[]), &Provenance::default(), &mut out).unwrap();
        assert_eq!(&out[1..4], b"PNG");
    }
}

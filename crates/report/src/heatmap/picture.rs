//! A heatmap as a picture.

use super::{Area, GridSpec, Heatmap, Level, Panel, Scale, Tick, terminal};
use crate::canvas::{
    Anchor, Bitmap, Canvas, FAINT, HAIRLINE, INK, MARGIN, Page, Rect, Svg, TextSize, TextStyle, VOID,
};
use crate::colour;
use crate::columns::shortened;
use crate::units::{format_address, format_rate, format_size_tick};
use std::io::{self, Write};

/// How large to draw.
#[derive(Clone, Debug, PartialEq)]
pub struct PictureOptions {
    /// Width of the picture, pixels; at least 640 and at most 4096 are used.
    pub width: usize,
    /// Height of the cells of all panels together, pixels.
    pub height: usize,
    /// How rates become colours.
    pub scale: Scale,
    /// Title; the recording's first line when empty.
    pub title: String,
}

impl Default for PictureOptions {
    fn default() -> Self {
        Self { width: 1280, height: 560, scale: Scale::Auto, title: String::new() }
    }
}

/// Pixels of a cell, each way.
const CELL: usize = 2;
/// Addresses at the left.
const LEFT: usize = 180;
/// Names of mappings at the right.
const RIGHT: usize = 210;
/// The legend, below the page's head.
const LEGEND: f64 = 70.0;
/// A panel's title, and the space above it.
const PANEL_HEAD: f64 = 48.0;
/// Time axis with its labels.
const AXIS: f64 = 78.0;

impl PictureOptions {
    /// The cells that fit: give it to a [`super::Raster`] and the result to [`write_png`] or [`write_svg`].
    pub fn grid(&self, areas: Vec<Area>, time: (u64, u64)) -> GridSpec {
        GridSpec::new(areas, time, self.plot_width() / CELL, self.height.min(8192) / CELL, 1, 24)
    }

    fn plot_width(&self) -> usize {
        (self.width.clamp(640, 4096) - LEFT - RIGHT) / CELL * CELL
    }
}

/// Writes `map` as PNG.
///
/// # Errors
/// Those of `out`.
pub fn write_png(map: &Heatmap, options: &PictureOptions, out: impl Write) -> io::Result<()> {
    let layout = Layout::new(map, options);
    let mut bitmap = Bitmap::new(layout.width as usize, layout.height as usize);
    draw(map, options, &layout, &mut bitmap);
    bitmap.write_png(out)
}

/// Writes `map` as SVG.
///
/// # Errors
/// Those of `out`.
pub fn write_svg(map: &Heatmap, options: &PictureOptions, mut out: impl Write) -> io::Result<()> {
    let layout = Layout::new(map, options);
    let mut svg = Svg::new(layout.width as usize, layout.height as usize);
    draw(map, options, &layout, &mut svg);
    out.write_all(svg.finish().as_bytes())
}

/// Where everything stands.
struct Layout {
    page: Page,
    width: f64,
    height: f64,
    /// One a panel, in the order of [`Heatmap::panels`].
    plots: Vec<Rect>,
    axis: f64,
}

impl Layout {
    fn new(map: &Heatmap, options: &PictureOptions) -> Self {
        let mut notes = Vec::new();
        if let Some(share) = map.heat_share() {
            let share = crate::units::format_share(share);
            notes.push(format!("{share} of the recorded heat (Hz x bytes x s) lies in the areas shown"));
        }
        notes.extend(map.left_out());
        notes.extend(map.provenance.foot());
        let page = Page::new(options.width, &map.provenance, &options.title, notes);
        let mut y = page.head() + LEGEND;
        let mut plots: Vec<Rect> = Vec::new();
        for panel in map.panels.iter().rev() {
            y += PANEL_HEAD;
            let height = (panel.rows * CELL) as f64;
            plots.push(Rect { x: LEFT as f64, y, width: options.plot_width() as f64, height });
            y += height;
        }
        plots.reverse();
        Self { width: page.width, height: y + AXIS + page.foot(), page, plots, axis: y }
    }
}

fn draw(map: &Heatmap, options: &PictureOptions, layout: &Layout, canvas: &mut dyn Canvas) {
    let scale = map.scale(options.scale);
    layout.page.draw(layout.axis + AXIS, canvas);
    draw_legend(map, scale, layout.page.head(), canvas);
    for (panel, plot) in map.panels.iter().zip(&layout.plots) {
        draw_panel(map, panel, *plot, scale, canvas);
    }
    draw_time_axis(map, layout, canvas);
}

fn draw_legend(map: &Heatmap, scale: Scale, top: f64, canvas: &mut dyn Canvas) {
    let label = TextStyle::new(TextSize::Small);
    let bar = Rect { x: LEFT as f64, y: top + 20.0, width: 400.0, height: 16.0 };
    canvas.text(bar.x - 12.0, bar.y + 8.0, "access rate", label.anchor(Anchor::End));
    let steps = 180;
    canvas.cells(bar, steps, 1, &|i, _| colour::heat(i as f64 / (steps - 1) as f64));
    // Where all is 0 Hz there is nothing to tell apart.
    let marks: &[f64] = if map.highest_hz > 0.0 { &[0.0, 0.25, 0.5, 0.75, 1.0] } else { &[0.0] };
    for &level in marks {
        let x = bar.x + level * bar.width;
        canvas.line(&[(x, bar.bottom()), (x, bar.bottom() + 5.0)], 1.0, FAINT);
        let text = format_rate(scale.rate_hz(level, map.highest_hz));
        canvas.text(x, bar.bottom() + 17.0, &text, label.anchor(Anchor::Middle));
    }
    let mut x = bar.right() + 60.0;
    canvas.rect(Rect { x, width: 22.0, ..bar }, VOID);
    x += 32.0;
    canvas.text(x, bar.y + 8.0, "not monitored", label);
    x += TextSize::Small.width("not monitored") + 32.0;
    if map.has_unknown() {
        let swatch = Rect { x, width: 22.0, ..bar };
        canvas.cells(swatch, 22 / CELL, bar.height as usize / CELL, &colour::unknown);
        x += 32.0;
        canvas.text(x, bar.y + 8.0, "unknown", label);
        x += TextSize::Small.width("unknown") + 32.0;
    }
    if map.has_actions() {
        let swatch = Rect { x, width: CELL as f64, ..bar };
        canvas.cells(swatch, 1, bar.height as usize / CELL, &|_, row| {
            if colour::is_dash(row) { colour::ACTED } else { colour::heat(0.0) }
        });
        x += 12.0;
        canvas.text(x, bar.y + 8.0, "action", label);
        x += TextSize::Small.width("action") + 32.0;
    }
    canvas.text(x, bar.y + 8.0, scale.remark().trim_start(), label.faint());
}

fn draw_panel(map: &Heatmap, panel: &Panel, plot: Rect, scale: Scale, canvas: &mut dyn Canvas) {
    let room = plot.width + RIGHT as f64 - MARGIN;
    let title = terminal::title(map, panel, (room / TextSize::Label.char_width()) as usize);
    canvas.text(plot.x, plot.y - 16.0, &title, TextStyle::new(TextSize::Label).bold());
    // Addresses grow upwards.
    canvas.cells(plot, map.columns, panel.rows, &|column, row| {
        let from_below = panel.rows - 1 - row;
        let acted = |row| panel.is_acted_on(row, column);
        // An action on a row only is a dash, wherever the row is.
        let alone = from_below == 0 || !acted(from_below - 1);
        if acted(from_below) && (alone || colour::is_dash(row)) {
            return colour::ACTED;
        }
        match map.level(panel, from_below, column, scale) {
            Level::Rate(_, level) => colour::heat(level),
            Level::Unknown => colour::unknown(column, row),
            Level::Empty => VOID,
        }
    });
    frame(plot, canvas);
    draw_addresses(panel, plot, canvas);
    draw_names(panel, plot, canvas);
}

pub(crate) fn frame(plot: Rect, canvas: &mut dyn Canvas) {
    let (l, t, r, b) = (plot.x - 0.5, plot.y - 0.5, plot.right() + 0.5, plot.bottom() + 0.5);
    canvas.line(&[(l, t), (r, t), (r, b), (l, b), (l, t)], 1.0, FAINT);
}

/// The first address in full, above it distances in round sizes.
fn draw_addresses(panel: &Panel, plot: Rect, canvas: &mut dyn Canvas) {
    let style = TextStyle::new(TextSize::Small).anchor(Anchor::End);
    let size = panel.area.range().size();
    let at = |offset: u64| plot.bottom() - plot.height * offset as f64 / size.max(1) as f64;
    let mut tick = |offset: u64, text: &str, style: TextStyle| {
        canvas.line(&[(plot.x - 8.0, at(offset)), (plot.x, at(offset))], 1.0, FAINT);
        canvas.text(plot.x - 14.0, at(offset), text, style);
    };
    tick(0, &format_address(panel.area.start), style);
    tick(size, &format_address(panel.area.end), style);
    let most = (plot.height / 64.0).max(1.0) as u64;
    let step = size.div_ceil(most + 1).checked_next_power_of_two().unwrap_or(u64::MAX);
    let offsets = (1..=most).filter_map(|i| step.checked_mul(i)).take_while(|offset| *offset < size);
    for offset in offsets {
        // Not where it would run into the address of the end.
        if at(offset) - plot.y >= 24.0 && plot.bottom() - at(offset) >= 24.0 {
            tick(offset, &format!("+ {}", format_size_tick(offset)), style.faint());
        }
    }
}

/// The mappings: a bracket each, and names as far as there is room, the largest first.
fn draw_names(panel: &Panel, plot: Rect, canvas: &mut dyn Canvas) {
    let y = |place: f64| plot.bottom() - plot.height * place;
    let mut taken: Vec<f64> = Vec::new();
    let chars = ((RIGHT as f64 - MARGIN - 22.0) / TextSize::Small.char_width()) as usize;
    for (start, end, name) in panel.names() {
        let (top, bottom) = (y(end), y(start));
        let x = plot.right() + 10.0;
        if bottom - top >= 3.0 {
            canvas.line(&[(x, top + 1.0), (x, bottom - 1.0)], 2.0, HAIRLINE);
        }
        let middle = ((top + bottom) / 2.0).clamp(plot.y + 6.0, plot.bottom() - 6.0);
        if taken.iter().all(|other| (other - middle).abs() >= 21.0) {
            taken.push(middle);
            canvas.text(x + 10.0, middle, &shortened(name, chars), TextStyle::new(TextSize::Small));
        }
    }
}

fn draw_time_axis(map: &Heatmap, layout: &Layout, canvas: &mut dyn Canvas) {
    let Some(plot) = layout.plots.first() else { return };
    let axis = Rect { y: layout.axis, height: 0.0, ..*plot };
    time_axis(axis, &map.time_ticks(most_ticks(plot)), canvas);
}

/// As many ticks as fit below `plot`.
pub(crate) fn most_ticks(plot: &Rect) -> usize {
    (plot.width / 110.0) as usize
}

/// Draws ticks and their labels below `plot`.
pub(crate) fn time_axis(plot: Rect, ticks: &[Tick], canvas: &mut dyn Canvas) {
    let label = TextStyle::new(TextSize::Label).anchor(Anchor::Middle);
    for tick in ticks {
        let x = plot.x + plot.width * tick.place;
        canvas.line(&[(x, plot.bottom()), (x, plot.bottom() + 7.0)], 1.0, INK);
        canvas.text(x, plot.bottom() + 22.0, &tick.text, label);
    }
    canvas.text(plot.x + plot.width / 2.0, plot.bottom() + 50.0, "time (s)", label);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Accumulate;
    use crate::heatmap::Raster;
    use crate::synthetic::{MIB, region, snapshot, stairs, unknown};

    fn map(options: &PictureOptions) -> Heatmap {
        let area = Area { end: 110 * MIB, name: "<mmap>".to_owned(), ..Area::default() };
        let mut raster = Raster::new(&options.grid(vec![area], (0, 10_000_000_000)));
        stairs(0, 10).iter().for_each(|s| raster.snapshot(s));
        raster.finish()
    }

    #[test]
    fn the_png_shows_hot_cold_and_not_monitored_in_their_colours() {
        let options = PictureOptions { width: 800, height: 220, ..PictureOptions::default() };
        let map = map(&options);
        let layout = Layout::new(&map, &options);
        let mut bitmap = Bitmap::new(layout.width as usize, layout.height as usize);
        draw(&map, &options, &layout, &mut bitmap);
        let plot = layout.plots[0];
        // The tenth of the time and the eleventh of the addresses, from below.
        let at = |tenth: f64, eleventh: f64| {
            let x = plot.x + plot.width * (tenth + 0.5) / 10.0;
            bitmap
                .pixel(x as usize, (plot.bottom() - plot.height * (eleventh + 0.5) / 11.0) as usize)
                .unwrap()
        };
        for step in 0..10 {
            assert_eq!(at(f64::from(step), f64::from(step)), colour::heat(1.0));
            assert_eq!(at(f64::from(step), f64::from((step + 3) % 10)), colour::heat(0.0));
            assert_eq!(at(f64::from(step), 10.0), VOID);
        }
        let mut png = Vec::new();
        write_png(&map, &options, &mut png).unwrap();
        assert_eq!(&png[1..4], b"PNG");
    }

    #[test]
    fn the_svg_carries_axes_units_and_escaped_names() {
        let options = PictureOptions::default();
        let mut svg = Vec::new();
        write_svg(&map(&options), &options, &mut svg).unwrap();
        let svg = String::from_utf8(svg).unwrap();
        for part in
            ["time (s)", "200 Hz", "not monitored", "&lt;mmap&gt;", "data:image/png;base64,", "+ 64 MiB"]
        {
            assert!(svg.contains(part), "{part}");
        }
    }

    #[test]
    fn unknown_is_striped_in_a_colour_of_its_own() {
        let options = PictureOptions { width: 640, height: 100, ..PictureOptions::default() };
        let area = Area { end: 8192, ..Area::default() };
        let mut raster = Raster::new(&options.grid(vec![area], (0, 100_000_000)));
        raster.snapshot(&snapshot(0, 1, vec![region(0, 4096, 0), unknown(4096, 8192)]));
        let map = raster.finish();
        let layout = Layout::new(&map, &options);
        let mut bitmap = Bitmap::new(layout.width as usize, layout.height as usize);
        draw(&map, &options, &layout, &mut bitmap);
        let plot = layout.plots[0];
        let column = |y: f64| -> Vec<_> {
            let x = plot.x as usize + 10;
            (x..x + 40).filter_map(|x| bitmap.pixel(x, (plot.y + plot.height * y) as usize)).collect()
        };
        let upper = column(0.25);
        assert!(upper.contains(&colour::UNKNOWN) && upper.contains(&colour::UNKNOWN_STRIPE));
        assert!(upper.iter().all(|c| [colour::UNKNOWN, colour::UNKNOWN_STRIPE].contains(c)));
        assert!(column(0.75).iter().all(|c| *c == colour::heat(0.0)));
        let mut svg = Vec::new();
        write_svg(&map, &options, &mut svg).unwrap();
        assert!(String::from_utf8(svg).unwrap().contains(">unknown<"), "a legend");
    }
}

//! The screen of one process: its heatmap, and its mappings.

use super::heat::{Heat, share_out};
use super::screen::{Hits, Target};
use super::state::{Column, MappingRow, Parts, State};
use super::style::Look;
use super::table;
use isotherm_damon::AddrRange;
use isotherm_report::heatmap::{Area, Cell, Glyph, Level, Scale};
use isotherm_report::units::{format_address, format_rate, format_size, significant};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};

/// Width of an address, with the space after it.
const ADDRESS: u16 = 15;
/// Square root: what is accessed now and then shows beside what is accessed all the time, at whatever scale.
pub const SCALE: Scale = Scale::Sqrt;

/// Where the parts of the screen are.
pub struct Places {
    pub heat: Rect,
    pub mappings: Rect,
}

/// Shares out the lines.
pub fn places(area: Rect, parts: Parts, mappings: usize) -> Places {
    let table = match parts {
        Parts::Heatmap => 0,
        Parts::Mappings => area.height,
        // A third, no more than there are, and none where the heatmap would have too little.
        Parts::Both if area.height < 12 => 0,
        Parts::Both => (area.height / 3).min(u16::try_from(mappings).unwrap_or(u16::MAX).saturating_add(1)),
    };
    let heat = Rect { height: area.height - table, ..area };
    Places { heat, mappings: Rect { y: area.y + heat.height, height: table, ..area } }
}

/// Where the cells of the heatmap are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Grid {
    /// Cells and titles of panels.
    pub cells: Rect,
    /// Cells of a line.
    pub rows_per_line: u16,
    gutter: u16,
    names: u16,
    foot: u16,
}

impl Grid {
    pub fn new(area: Rect, look: Look) -> Self {
        let gutter = if area.width >= 40 { ADDRESS } else { 0 };
        let names = if area.width >= 70 { (area.width / 6).min(24) } else { 0 };
        // Below: the axis, its figures, and the legend.
        let foot = match area.height {
            0..4 => 0,
            4..7 => 2,
            _ => 3,
        };
        Self {
            cells: Rect {
                x: area.x + gutter,
                y: area.y,
                width: area.width.saturating_sub(gutter + names),
                height: area.height.saturating_sub(foot),
            },
            rows_per_line: if look.is_plain() { 1 } else { 2 },
            gutter,
            names,
            foot,
        }
    }

    /// Lines of the time axis.
    pub fn axis_lines(&self) -> u16 {
        self.foot.min(2)
    }

    /// Areas with their rows for this grid.
    pub fn panels(&self, areas: &[Area]) -> Vec<(Area, usize)> {
        share_out(areas, usize::from(self.cells.height), usize::from(self.rows_per_line))
    }
}

/// A cell that was pointed at.
pub struct Pointed {
    pub range: AddrRange,
    pub column: u64,
    pub cell: Cell,
    pub name: String,
}

/// The lines of panels from the top of the screen: a title, then cells; each line with its panel and its lowest row.
fn lines(heat: &Heat, unit: usize) -> Vec<(usize, Option<usize>)> {
    let mut lines = Vec::new();
    for (panel, (_, rows)) in heat.panels().iter().enumerate().rev() {
        lines.push((panel, None));
        lines.extend((0..rows / unit).rev().map(|line| (panel, Some(line * unit))));
    }
    lines
}

fn row_range((area, rows): &(Area, usize), row: usize, count: usize) -> AddrRange {
    let size = u128::from(area.range().size());
    let edge = |row: usize| area.start + (size * row.min(*rows) as u128 / (*rows).max(1) as u128) as u64;
    AddrRange::new(edge(row), edge(row + count))
}

/// What is at a place of the screen; columns begin with `first`.
pub fn pointed(heat: &Heat, grid: &Grid, first: u64, x: u16, y: u16) -> Option<Pointed> {
    if !grid.cells.contains((x, y).into()) {
        return None;
    }
    let unit = usize::from(grid.rows_per_line);
    let (panel, row) = *lines(heat, unit).get(usize::from(y - grid.cells.y))?;
    let row = row?;
    let column = first + u64::from(x - grid.cells.x);
    let range = row_range(heat.panels().get(panel)?, row, unit);
    // Of two cells in one character the hotter.
    let cells = (row..row + unit).map(|row| heat.cell(panel, row, column));
    let cell = cells.max_by(|a, b| {
        let rank = |cell: &Cell| match cell {
            Cell::Empty => -2.0,
            Cell::Unknown => -1.0,
            Cell::Rate(hz) => *hz,
        };
        rank(a).total_cmp(&rank(b))
    })?;
    let label = heat.labels.get(panel).and_then(|labels| {
        labels.iter().find(|(start, end, _)| AddrRange::new(*start, *end).intersects(range))
    });
    Some(Pointed { range, column, cell, name: label.map_or_else(String::new, |(_, _, name)| name.clone()) })
}

/// Draws the heatmap; its last column is `last`.
pub fn draw_heat(heat: &Heat, grid: &Grid, last: u64, origin_ns: u64, look: Look, buffer: &mut Buffer) {
    let unit = usize::from(grid.rows_per_line);
    let cells = grid.cells;
    let first = (last + 1).saturating_sub(u64::from(cells.width));
    for (y, (panel, row)) in lines(heat, unit).into_iter().take(usize::from(cells.height)).enumerate() {
        let y = cells.y + y as u16;
        let shown = &heat.panels()[panel];
        let line =
            Rect { x: cells.x - grid.gutter, y, width: grid.gutter + cells.width + grid.names, height: 1 };
        let Some(row) = row else {
            draw_title(shown, line, look, buffer);
            continue;
        };
        for x in 0..cells.width {
            let column = first + u64::from(x);
            let level = |row| Level::new(heat.cell(panel, row, column), SCALE, heat.scale_hz);
            let cell = &mut buffer[(cells.x + x, y)];
            if look.is_plain() {
                cell.set_char(level(row).digit());
                continue;
            }
            let Glyph { symbol, fg, bg, dim } = Glyph::of(level(row + 1), level(row));
            cell.set_char(symbol);
            let paint = |colour| look.colour(colour);
            let mut style = Style::new();
            style.fg = fg.map(paint);
            style.bg = bg.map(paint);
            if dim {
                style = style.add_modifier(Modifier::DIM);
            }
            cell.set_style(style);
        }
        let top = row + unit >= shown.1;
        if grid.gutter > 0 && (top || row == 0 || (row / unit).is_multiple_of(4)) {
            let address = format_address(row_range(shown, row, 1).start);
            table::put(buffer, line, 0, ADDRESS - 1, &address, false, Style::new());
        }
        if grid.names > 0
            && let Some(name) = name_beside(heat, panel, row, unit)
        {
            let x = grid.gutter + cells.width + 1;
            table::put(buffer, line, x, grid.names - 1, &name, true, Style::new());
        }
    }
    draw_time(heat, grid, first, origin_ns, buffer);
    if grid.foot == 3 {
        let y = cells.bottom() + 2;
        let x = cells.x - grid.gutter;
        draw_legend(
            heat,
            Rect { x, y, width: grid.gutter + cells.width + grid.names, height: 1 },
            look,
            buffer,
        );
    }
}

fn draw_title((area, rows): &(Area, usize), line: Rect, look: Look, buffer: &mut Buffer) {
    let (size, row) = (area.extent(), area.range().size() / (*rows).max(1) as u64);
    let heat = area.heat_share.map(|share| format!(", {} % of the heat", significant(share * 100.0, 2)));
    let text = format!("{}: {size}, {} a row{}", area.name, format_size(row), heat.unwrap_or_default());
    table::put(buffer, line, 0, line.width, &text, true, look.bold());
}

/// The name of the mapping whose middle is in these rows; of several the largest.
fn name_beside(heat: &Heat, panel: usize, row: usize, unit: usize) -> Option<String> {
    let range = row_range(heat.panels().get(panel)?, row, unit);
    let labels = heat.labels.get(panel)?.iter();
    let here = labels.filter(|(start, end, _)| range.contains(start + (end - start) / 2));
    here.max_by_key(|(start, end, _)| end - start).map(|(_, _, name)| name.clone())
}

/// The time axis. Marks stand at round times, so that they move with the columns.
fn draw_time(heat: &Heat, grid: &Grid, first: u64, origin_ns: u64, buffer: &mut Buffer) {
    if grid.foot < 2 {
        return;
    }
    let cells = grid.cells;
    let (axis, figures) = (cells.bottom(), cells.bottom() + 1);
    let column_ns = heat.start_of(1) - heat.start_of(0);
    let step = tick_step(column_ns);
    for x in 0..cells.width {
        let column = first + u64::from(x);
        let at = column.is_multiple_of(step);
        buffer[(cells.x + x, axis)].set_char(if at { '+' } else { '-' });
        if at {
            let seconds = heat.start_of(column).saturating_sub(origin_ns) as f64 / 1e9;
            let text = significant(seconds, 6);
            // Whole figures only: half of one would be another.
            if x + text.len() as u16 <= cells.width {
                buffer.set_string(cells.x + x, figures, text, Style::new());
            }
        }
    }
    if grid.gutter > 0 {
        buffer.set_string(cells.x - grid.gutter, figures, "time (s)", Style::new());
    }
}

/// Columns between two marks: about ten, and a round time.
fn tick_step(column_ns: u64) -> u64 {
    const SECONDS: [u64; 12] = [1, 2, 5, 10, 20, 50, 100, 300, 600, 1800, 3600, 18_000];
    let fits = SECONDS.iter().map(|s| s * 1_000_000_000 / column_ns.max(1)).find(|columns| *columns >= 10);
    fits.unwrap_or(12).max(1)
}

fn draw_legend(heat: &Heat, line: Rect, look: Look, buffer: &mut Buffer) {
    let highest = heat.scale_hz;
    let up_to = |level: f64| format_rate(SCALE.rate_hz(level, highest));
    if look.is_plain() {
        let text = if highest > 0.0 {
            format!(
                "0: 0 Hz, 1 up to {}, 5 {}, 9 {}; ?: unknown; blank: not monitored",
                up_to(1.0 / 9.0),
                up_to(5.0 / 9.0),
                up_to(1.0)
            )
        } else {
            "0: 0 Hz; ?: unknown; blank: not monitored".to_owned()
        };
        table::put(buffer, line, 0, line.width, &table::fit(&text, line.width, "; "), true, look.dim());
        return;
    }
    let mut x = line.x;
    let mut say = |text: &str, buffer: &mut Buffer| {
        let room = usize::from(line.right().saturating_sub(x));
        x = buffer.set_stringn(x, line.y, text, room, look.dim()).0;
        x
    };
    let mut at = say("rate: 0 Hz ", buffer);
    let bar = if highest > 0.0 { 20 } else { 1 };
    for i in 0..bar {
        if at < line.right() {
            let glyph =
                Glyph::of(Level::Rate(1.0, f64::from(i) / 19.0), Level::Rate(1.0, f64::from(i) / 19.0));
            let style = Style {
                fg: glyph.fg.map(|c| look.colour(c)),
                bg: glyph.bg.map(|c| look.colour(c)),
                ..Style::new()
            };
            buffer.set_stringn(at, line.y, glyph.symbol.to_string(), 1, style);
            at += 1;
        }
    }
    let text = if highest > 0.0 { format!(" {} (middle {}); ", up_to(1.0), up_to(0.5)) } else { "; ".into() };
    let room = |at: u16| usize::from(line.right().saturating_sub(at));
    at = buffer.set_stringn(at, line.y, text, room(at), look.dim()).0;
    let unknown = Glyph::of(Level::Unknown, Level::Unknown);
    let style = Style {
        fg: unknown.fg.map(|c| look.colour(c)),
        bg: unknown.bg.map(|c| look.colour(c)),
        ..Style::new()
    };
    let sign = unknown.symbol.to_string().repeat(2);
    at = buffer.set_stringn(at, line.y, sign, room(at), style).0;
    buffer.set_stringn(at, line.y, " unknown; \u{b7} not monitored", room(at), look.dim());
}

/// Width of the address of a mapping, of its name.
const START: u16 = 14;
const NAME: u16 = 10;

/// Draws the mappings, which are arranged already. Returns how many lines of them there is room for.
pub fn draw_mappings(
    state: &mut State,
    rows: &[MappingRow],
    area: Rect,
    look: Look,
    hits: &mut Hits,
    buffer: &mut Buffer,
) -> usize {
    let Some(entered) = &mut state.entered else { return 0 };
    if area.height == 0 {
        return 0;
    }
    let sets = (state.window, state.cold);
    let layout = table::layout(area.width, START, NAME, 8);
    let head = Rect { height: 1, ..area };
    let rest = if layout.rest.1 > 8 { "MAPPED" } else { "" };
    let heads = table::heads(&layout, "ADDRESS", rest, entered.sort, sets, head, look, buffer);
    hits.extend(heads.into_iter().map(|(at, column)| (at, Target::Head(column))));
    let lines = area.height - 1;
    for (line, at) in table::visible(&mut entered.cursor, lines, rows.len()).enumerate() {
        let row = &rows[at];
        let line = Rect::new(area.x, area.y + 1 + line as u16, area.width, 1);
        let selected = at == entered.cursor.at;
        let style = if selected { look.reverse() } else { Style::new() };
        if selected {
            buffer.set_style(line, style);
        }
        for &(column, x, wide) in layout.columns.iter().take(2) {
            match column {
                Column::Key => {
                    table::put(buffer, line, x, wide, &format_address(row.range.start), true, style);
                }
                _ => table::put(buffer, line, x, wide, &row.name, true, style),
            }
        }
        table::figures(&layout, Some(&row.figures), sets, line, (style, look.unknown()), buffer);
        let (x, wide) = layout.rest;
        if wide > 8 {
            let size = format_size(row.figures.mapped);
            // The path may be cut, a word that says what the size is may not.
            let path = size.len() + 1 + 8 < usize::from(wide);
            let text = if path { format!("{size} {}", row.path) } else { size };
            table::put(buffer, line, x, wide, &text, true, style);
        }
        hits.push((line, Target::Row(at)));
    }
    usize::from(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn however_many_mappings_there_are_a_third_of_the_lines_is_theirs() {
        let area = Rect::new(0, 3, 80, 60);
        let lines = |mappings| places(area, Parts::Both, mappings).mappings.height;
        assert_eq!((lines(0), lines(5), lines(100)), (1, 6, 20));
        // As many as a process may have, and what 16 bits hold.
        for mappings in [65_530, 65_534, 65_535, 65_536, 65_537, usize::MAX] {
            assert_eq!(lines(mappings), 20, "{mappings}");
        }
    }
}

//! The list of processes.

use super::gather::Head;
use super::state::{Row, State};
use super::style::Look;
use super::table;
use super::{screen::Hits, screen::Target};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

/// Width of a pid, of a name, and of a trend.
const PID: u16 = 7;
const NAME: u16 = 10;
const TREND: u16 = 8;

/// Draws it; the rows are arranged already. Returns how many lines of them there is room for.
pub fn draw(
    state: &mut State,
    rows: &[Row],
    known: &Head,
    area: Rect,
    look: Look,
    hits: &mut Hits,
    buffer: &mut Buffer,
) -> usize {
    let layout = table::layout(area.width, PID, NAME, TREND);
    let sets = (state.window, state.cold);
    let head = Rect { height: 1.min(area.height), ..area };
    let trend = if layout.rest.1 >= 5 { "TREND" } else { "" };
    let heads = table::heads(&layout, "PID", trend, state.sort, sets, head, look, buffer);
    hits.extend(heads.into_iter().map(|(at, column)| (at, Target::Head(column))));
    let lines = area.height.saturating_sub(1);
    for (line, at) in table::visible(&mut state.cursor, lines, rows.len()).enumerate() {
        let row = &rows[at];
        let line = Rect::new(area.x, area.y + 1 + line as u16, area.width, 1);
        let selected = at == state.cursor.at;
        let style = if selected { look.reverse() } else { Default::default() };
        if selected {
            buffer.set_style(line, style);
        }
        for &(column, x, wide) in layout.columns.iter().take(2) {
            let (text, left) = match column {
                super::state::Column::Key => (row.pid.to_string(), false),
                _ => (row.name.clone(), true),
            };
            table::put(buffer, line, x, wide, &text, left, style);
        }
        table::figures(&layout, row.figures.as_ref(), sets, line, (style, look.unknown()), buffer);
        let (x, wide) = layout.rest;
        // Beside the bars of a minute there may be room for the command.
        let bars = wide.min(TREND.max(wide / 2)).min(super::model::TREND as u16);
        let trend = table::bars(&row.trend, bars);
        table::put(buffer, line, x, bars, &trend, true, style.patch(look.trend()));
        if wide > bars + 8 {
            table::put(buffer, line, x + bars + 1, wide - bars - 1, &row.command, true, style);
        }
        hits.push((line, Target::Row(at)));
    }
    if rows.is_empty() && area.height > 1 {
        let line = Rect { y: area.y + 1, height: 1, ..area };
        let text = match () {
            () if !state.filter.is_empty() => "no process has this in its name, command or pid",
            () if known.over.is_some() => "no process was watched",
            // One that comes is shown: control groups, rules and whole machines are watched for more.
            () if known.snapshots > 0 => "no process matches now; those that come are shown",
            () => "no process yet: the first snapshot comes after an aggregation interval",
        };
        table::put(buffer, line, 1, area.width.saturating_sub(1), text, true, look.dim());
    }
    usize::from(lines)
}

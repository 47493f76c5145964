//! What stands around: the head, the keys at the bottom, help, and what is typed.

use super::gather::{Head, Process};
use super::rows::{Column, value};
use super::state::{Entered, Prompt, State};
use super::style::Look;
use super::table::{self, fit, put};
use isotherm_report::units::{counted, format_share, format_size, format_time};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

/// It is said that monitoring comes late when it misses so many of the sampling intervals. A guess: fewer change little.
const LATE: f64 = 0.05;

/// Lines of the head on a screen of this height.
pub fn head_lines(height: u16) -> u16 {
    match height {
        0..6 => 0,
        6..10 => 1,
        10..16 => 2,
        _ => 3,
    }
}

/// Draws the head. `screen`: share of a CPU that the screen takes.
pub fn head(
    head: &Head,
    process: Option<(&Process, &Entered)>,
    state: &State,
    screen: f64,
    area: Rect,
    look: Look,
    buffer: &mut Buffer,
) {
    let line = |n: u16| Rect { y: area.y + n, height: 1, ..area };
    if area.height == 0 {
        return;
    }
    let mut mark = head.over.as_ref().map_or_else(String::new, |over| format!("OVER: {over} "));
    if state.paused.is_some() {
        mark.push_str("PAUSED ");
    }
    if let Some(share) = head.missed.filter(|share| *share >= LATE) {
        mark.push_str(&format!("LATE {:.0} % ", share * 100.0));
    }
    let since = head.kept.map_or(0, |(_, last)| last.saturating_sub(head.started_ns));
    let right = format!("{mark}{}", format_time(since / 1_000_000_000 * 1_000_000_000));
    let wide = table::wide(&right).min(area.width);
    put(buffer, line(0), area.width - wide, wide, &right, true, look.bold());
    let what = match process {
        Some((process, _)) => {
            let ended = process.ended.as_ref().map(|how| format!(" ({how})")).unwrap_or_default();
            let list = if process.incomplete { ", list of mappings incomplete" } else { "" };
            format!("{} (pid {}){ended}{list}: {}", process.name, process.pid, process.command)
        }
        None => {
            let refused = match head.refused.0 {
                0 => String::new(),
                n if area.width < 120 => format!(", {n} may not be watched"),
                n => format!(", {n} may not be watched ({})", head.refused.1),
            };
            let ended = if head.is_past && head.processes > 0 { " that ended" } else { "" };
            let processes = counted(head.processes as u64, "process");
            let lists = match head.incomplete {
                0 => String::new(),
                1 => ", 1 list of mappings incomplete".to_owned(),
                n => format!(", {n} lists of mappings incomplete"),
            };
            format!("isotherm top: {processes}{ended} on {}{lists}{refused}", head.host)
        }
    };
    put(buffer, line(0), 0, area.width.saturating_sub(wide + 1), &what, true, look.bold());
    if area.height > 1 {
        let sum = process.map_or(head.sum, |(process, _)| process.figures);
        let size = |column| {
            let bytes = value(sum.as_ref(), column, state.window.min(2), state.cold.min(2));
            let at_least = sum.and_then(|sum| sum.resident_at_least()).filter(|_| column == Column::Resident);
            match (bytes, at_least) {
                (Some(bytes), _) => format_size(bytes),
                (None, Some(told)) => format!("{}+", format_size(told)),
                (None, None) => "?".to_owned(),
            }
        };
        let text = format!(
            "{} {}, hot {}, cold {} {}, unknown {}, resident {}",
            ["WS 1s", "WS 10s", "WS 60s"][state.window.min(2)],
            size(Column::WorkingSet),
            size(Column::Hot),
            ["10s", "1m", "5m"][state.cold.min(2)],
            size(Column::Cold),
            size(Column::Unknown),
            size(Column::Resident)
        );
        put(buffer, line(1), 0, area.width, &fit(&text, area.width, ", "), true, Style::new());
    }
    if area.height > 2 {
        let costs = costs(head, screen);
        put(buffer, line(2), 0, area.width, &fit(&costs, area.width, "; "), true, look.dim());
    }
}

/// What it costs, and whether anything was lost.
fn costs(head: &Head, screen: f64) -> String {
    let cost = head.cost.filter(|cost| cost.wall_ns > 0);
    let monitor = cost.map_or_else(
        || "?".to_owned(),
        |c| {
            let share = (c.cpu_ns as f64 / c.wall_ns as f64 - screen).max(0.0);
            format!("{:.2} %", share * 100.0)
        },
    );
    let limit = match head.limit {
        limit if limit > 0.0 => format!(" (limit {})", format_share(limit)),
        _ => String::new(),
    };
    let lost = if head.lost == 0 { "0 lost".to_owned() } else { format!("{} LOST", head.lost) };
    format!(
        "{}: monitor {monitor} of a CPU{limit}, screen {:.2} %; snapshots {}, {lost}",
        head.backend,
        screen * 100.0,
        head.snapshots
    )
}

/// The bottom line: what is typed, what was said, or the keys.
pub fn foot(state: &State, line: Rect, look: Look, buffer: &mut Buffer) {
    if line.height == 0 {
        return;
    }
    if let Some((prompt, text)) = &state.prompt {
        let what = match prompt {
            Prompt::Filter => "filter by name: ",
            Prompt::Save => "write to FILE.rec or FILE.txt: ",
        };
        // The end of a long name is what is being typed.
        let room = line.width.saturating_sub(what.len() as u16 + 1);
        let mut shown = text.as_str();
        while table::wide(shown) > room
            && let Some(first) = shown.chars().next()
        {
            shown = &shown[first.len_utf8()..];
        }
        put(buffer, line, 0, line.width, &format!("{what}{shown}_"), true, look.bold());
        return;
    }
    if let Some(message) = &state.message {
        put(buffer, line, 0, line.width, message, true, look.bold());
        return;
    }
    let filter = state.entered.as_ref().map_or(&state.filter, |e| &e.filter);
    let mut x = 0;
    if !filter.is_empty() {
        let text = format!("filter: {filter}  ");
        put(buffer, line, x, line.width, &text, true, look.bold());
        x += table::wide(&text);
    }
    // The most needed first: what does not fit is left out.
    let keys: &[(&str, &str)] = match state.entered {
        None => &[
            ("q", "quit"),
            ("?", "help"),
            ("Enter", "open"),
            ("s", "sort"),
            ("/", "filter"),
            ("p", "pause"),
            ("w", "write"),
            ("u", "window"),
            ("c", "cold since"),
            ("r", "reverse"),
        ],
        Some(_) => &[
            ("Esc", "back"),
            ("?", "help"),
            ("Enter", "show"),
            ("+ -", "zoom"),
            ("[ ]", "time"),
            ("<- ->", "past"),
            ("p", "pause"),
            ("Tab", "parts"),
            ("s", "sort"),
            ("w", "write"),
            ("/", "filter"),
        ],
    };
    for (key, what) in keys {
        let wide = (key.len() + what.len() + 3) as u16;
        if x + wide > line.width + 2 {
            break;
        }
        put(buffer, line, x, key.len() as u16, key, true, look.reverse());
        put(buffer, line, x + key.len() as u16 + 1, what.len() as u16, what, true, Style::new());
        x += wide;
    }
}

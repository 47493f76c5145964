//! Tables of figures: columns by how much room there is, rows, heads to click on.

use super::rows::{Column, Cursor, Sort, figure, value};
use super::style::Look;
use isotherm_report::holdings::{Certainty, Figures};
use isotherm_report::units::{format_size, format_size_up};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::Span;

/// Width of a column of sizes, `999.9 MiB`.
const SIZE: u16 = 9;
/// Sizes in the order in which they are left out where there is no room, the last first.
const BY_WORTH: [Column; 5] =
    [Column::WorkingSet, Column::Unknown, Column::Hot, Column::Cold, Column::Resident];

/// How a table is laid out.
#[derive(Clone, Debug)]
pub struct Layout {
    pub columns: Vec<(Column, u16, u16)>,
    /// Where what follows the figures begins, and how wide it is.
    pub rest: (u16, u16),
}

/// The columns that fit into `width`: key, name, sizes; `rest`: what is wanted after them.
pub fn layout(width: u16, key: u16, name: u16, rest: u16) -> Layout {
    let fixed = key + 1 + name;
    let room = width.saturating_sub(fixed);
    let most = usize::from(room / (SIZE + 1)).min(BY_WORTH.len());
    // What follows gives way to the last of the sizes only where nothing else does.
    let with_rest = usize::from(room.saturating_sub(rest + 1) / (SIZE + 1)).min(BY_WORTH.len());
    let chosen = if with_rest + 1 >= most { with_rest.max(1) } else { most };
    let shown = &BY_WORTH[..chosen.min(most)];
    let sizes = Column::ALL.into_iter().filter(|c| shown.contains(c));
    let used = fixed + (SIZE + 1) * shown.len() as u16;
    let spare = width.saturating_sub(used + if with_rest > 0 { rest + 1 } else { 0 });
    // A name may be longer, but what follows is shown as wide as it can be on a wide screen.
    let name = (name + (spare / 2).min(name)).min(width.saturating_sub(key + 1).max(1));
    let mut x = 0;
    let mut columns = Vec::new();
    for (column, wide) in
        [(Column::Key, key), (Column::Name, name)].into_iter().chain(sizes.map(|c| (c, SIZE)))
    {
        columns.push((column, x, wide));
        x += wide + 1;
    }
    Layout { columns, rest: (x, width.saturating_sub(x)) }
}

/// What stands above a column.
pub fn title(column: Column, key: &str, window: usize, cold: usize) -> String {
    match column {
        Column::Key => key.into(),
        Column::Name => "NAME".into(),
        Column::Resident => "RESIDENT".into(),
        Column::WorkingSet => ["WS 1s", "WS 10s", "WS 60s"][window.min(2)].into(),
        Column::Hot => "HOT".into(),
        Column::Cold => format!("COLD {}", ["10s", "1m", "5m"][cold.min(2)]),
        Column::Unknown => "UNKNOWN".into(),
    }
}

/// A line of heads; the one sorted by is marked. Returns where each can be clicked.
#[allow(clippy::too_many_arguments, reason = "what a line of heads consists of")]
pub fn heads(
    layout: &Layout,
    key: &str,
    rest: &str,
    sort: Sort,
    (window, cold): (usize, usize),
    area: Rect,
    look: Look,
    buffer: &mut Buffer,
) -> Vec<(Rect, Column)> {
    buffer.set_style(area, look.reverse());
    let mut hits = Vec::new();
    for &(column, x, wide) in &layout.columns {
        let mut text = title(column, key, window, cold);
        if sort.by == column {
            text.push(if sort.ascends() { '^' } else { 'v' });
        }
        let left = column == Column::Name || (column == Column::Key && wide > 8);
        put(buffer, area, x, wide, &text, left, look.reverse());
        let x = area.x.saturating_add(x).min(area.right());
        hits.push((Rect::new(x, area.y, wide.min(area.right() - x), 1), column));
    }
    put(buffer, area, layout.rest.0, layout.rest.1, rest, true, look.reverse());
    hits
}

/// A row of figures.
pub fn figures(
    layout: &Layout,
    figures: Option<&Figures>,
    (window, cold): (usize, usize),
    area: Rect,
    (style, unknown): (Style, Style),
    buffer: &mut Buffer,
) {
    for &(column, x, wide) in layout.columns.iter().filter(|(c, ..)| BY_WORTH.contains(c)) {
        let bytes = value(figures, column, window, cold);
        let certainty = figures.zip(figure(column, window, cold)).map(|(f, figure)| f.certainty(figure));
        let text = match (bytes, certainty) {
            // What nobody can know yet is neither nothing nor all.
            (None, _) => "?".into(),
            (Some(bytes), None | Some(Certainty::Measured)) => size(bytes),
            (Some(bytes), Some(Certainty::About)) => marked('~', bytes),
            (Some(_), Some(Certainty::AtMost(most))) => marked('<', most),
        };
        let unknown_here = column == Column::Unknown && bytes != Some(0) || bytes.is_none();
        let style = if unknown_here { style.patch(unknown) } else { style };
        put(buffer, area, x, wide, &text, false, style);
    }
}

/// Bytes in a column. Nothing is a bare 0: a dash is what reports print of what is not known.
fn size(bytes: u64) -> String {
    if bytes == 0 {
        return "0".into();
    }
    let text = format_size(bytes);
    match text.split_once('.') {
        // 1000.0 to 1023.9 of a unit: the decimal is what one can do without.
        Some((whole, rest)) if text.len() > usize::from(SIZE) => {
            format!("{whole}{}", rest.trim_start_matches(|c: char| c.is_ascii_digit()))
        }
        _ => text,
    }
}

/// The same of a share of a region over several mappings, whose last digit is one more than is known: to the nearest, or up
/// where it is a bound (`<`).
fn marked(mark: char, bytes: u64) -> String {
    if bytes == 0 {
        return format!("{mark}0");
    }
    let is_bound = mark == '<';
    let text = if is_bound { format_size_up(bytes) } else { format_size(bytes) };
    match text.split_once('.') {
        Some((whole, rest)) if text.len() >= usize::from(SIZE) => {
            let (tenths, unit) = rest.split_at(1);
            let up = if is_bound { tenths != "0" } else { tenths >= "5" };
            format!("{mark}{}{unit}", whole.parse::<u64>().unwrap_or(0) + u64::from(up))
        }
        _ => format!("{mark}{text}"),
    }
}

/// Columns that a text takes: some characters take two, others none.
pub fn wide(text: &str) -> u16 {
    u16::try_from(Span::raw(text).width()).unwrap_or(u16::MAX)
}

/// Text in a column, `x` from the left of `area`; to the right unless `left`.
pub fn put(buffer: &mut Buffer, area: Rect, x: u16, wide: u16, text: &str, left: bool, style: Style) {
    if x >= area.width || area.height == 0 {
        return;
    }
    let wide = wide.min(area.width - x);
    let indent = if left { 0 } else { wide - self::wide(text).min(wide) };
    buffer.set_stringn(area.x + x + indent, area.y, text, usize::from(wide - indent), style);
}

/// As many whole items of a line as there is room for, the first in any case. Sizes are shortened (`64.7M`) where that helps.
pub fn fit(text: &str, wide: u16, separator: &str) -> String {
    let long = |text: &str| self::wide(text) > wide;
    if !long(text) {
        return text.to_owned();
    }
    let mut text = text.to_owned();
    for (unit, short) in [(" KiB", "K"), (" MiB", "M"), (" GiB", "G"), (" TiB", "T")] {
        text = text.replace(unit, short);
    }
    while long(&text)
        && let Some((shorter, _)) = text.rsplit_once(separator)
    {
        text.truncate(shorter.len());
    }
    text
}

/// What is visible of a list.
pub fn visible(cursor: &mut Cursor, lines: u16, len: usize) -> std::ops::Range<usize> {
    cursor.follow(usize::from(lines).max(1), len);
    cursor.top..(cursor.top + usize::from(lines)).min(len)
}

/// A trend as bars, the latest at the right, against its own highest; `?` where it is not known.
pub fn bars(trend: &[Option<f32>], wide: u16) -> String {
    const BARS: [char; 8] =
        ['\u{2581}', '\u{2582}', '\u{2583}', '\u{2584}', '\u{2585}', '\u{2586}', '\u{2587}', '\u{2588}'];
    let shown = &trend[trend.len().saturating_sub(usize::from(wide))..];
    let highest = shown.iter().copied().flatten().fold(0.0, f32::max);
    let bar = |value: f32| match value / highest {
        _ if highest <= 0.0 || value <= 0.0 => ' ',
        share => BARS[((share * 8.0).ceil() as usize).clamp(1, 8) - 1],
    };
    let indent = usize::from(wide).saturating_sub(shown.len());
    " ".repeat(indent) + &shown.iter().map(|v| v.map_or('?', bar)).collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_trend_does_not_know_is_no_empty_bar() {
        let trend = [Some(2.0), Some(0.0), None, Some(1.0)];
        assert_eq!(bars(&trend, 6), "  \u{2588} ?\u{2584}");
        assert_eq!(bars(&[None], 2), " ?");
    }

    #[test]
    fn a_line_holds_whole_items() {
        let line = "WS 1s 64.7 MiB, hot 64.2 MiB, cold 10s 960.1 MiB, unknown 7.4 MiB, resident 1.0 GiB";
        assert_eq!(fit(line, 90, ", "), line);
        let short = "WS 1s 64.7M, hot 64.2M, cold 10s 960.1M, unknown 7.4M, resident 1.0G";
        assert_eq!(fit(line, 80, ", "), short);
        assert_eq!(fit(line, 60, ", "), "WS 1s 64.7M, hot 64.2M, cold 10s 960.1M, unknown 7.4M");
        assert_eq!(fit(line, 3, ", "), "WS 1s 64.7M");
        assert_eq!(fit("", 0, ", "), "");
    }

    #[test]
    fn a_size_with_a_mark_fits_its_column() {
        for (bytes, text) in [
            (0, "<0"),
            (64 << 10, "<64.0 KiB"),
            (999 << 20, "<999 MiB"),
            ((100 << 20) + 1, "<101 MiB"),
            (1022 << 20, "<1022 MiB"),
            ((1022 << 20) + (5 << 17), "<1023 MiB"),
            ((1 << 30) + 1, "<1.1 GiB"),
            (3 << 30, "<3.0 GiB"),
        ] {
            assert_eq!(marked('<', bytes), text);
            assert!(text.len() <= usize::from(SIZE));
        }
        assert_eq!(marked('~', (100 << 20) + (3 << 18)), "~101 MiB");
        assert_eq!(marked('~', (100 << 20) + 1), "~100 MiB");
    }
}

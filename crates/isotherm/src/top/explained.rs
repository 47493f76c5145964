//! What is shown at `?`: the keys, and what the columns mean.

use super::style::Look;
use super::table::put;
use crate::help;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::widgets::{Block, Clear, Widget};

/// Columns of the text, and of what stands around it.
const WIDE: u16 = 76;

/// As it fits a screen of 80 x 24.
const LINES: [&str; 22] = [
    "Up Down PgUp PgDn Home End  select (wheel; click)",
    "Enter       open a process; show a mapping in the heatmap",
    "Esc         back: the hot areas, then the list          q  quit",
    "s S r       sort by the next, previous column; reverse (click a head)",
    "/           filter by pid or any part of the command line; Esc ends it",
    "u  c        window of the working set; since when memory is cold",
    "p Space     pause: all is shown as of this moment; watching goes on",
    "w           write what is kept (up to a pause): FILE.rec; screen: .txt",
    "Heatmap: + - zoom in, out (wheel)   { } up, down   0 hot areas",
    "         [ ] longer, shorter columns   Left Right past   n now",
    "         Tab both parts, one of them    a click says what is there",
    "Ctrl-L      draw anew                           Ctrl-Z suspend",
    "LATE 9 %    so many sampling intervals were missed: rates read too low",
    "WS          working set: bytes accessed at least once within 1, 10, 60 s",
    "HOT         accessed at a tenth of the highest rate and more",
    "COLD        resident, known not to be accessed for so long",
    "?  +        not known, or not for so long yet; more may be there",
    "~  <        about, at most: shared out of a region over several mappings",
    "UNKNOWN     could not be observed: it is not cold",
    "TREND       working set (1 s), a bar a second, against its own highest",
    "Rows count shared memory in each process, the head counts it once.",
    "incomplete  a long list of mappings, not all read: else `unknown mapping`",
];

/// Where on the wide screen it begins what keys do.
const KEYS: usize = 12;

/// A line without its columns of space, which are for the wide screen, where they stand below each other.
fn without_columns(line: &str) -> String {
    let mut text = String::new();
    let mut at = 0;
    for word in line.split(' ') {
        let gap = at - line[..at].trim_end().len();
        if !text.is_empty() && !word.is_empty() {
            text.push_str(match gap {
                _ if at == KEYS => ": ",
                2 if at > KEYS => ": ",
                0..3 => " ",
                _ => "; ",
            });
        }
        text.push_str(word);
        at += word.len() + 1;
    }
    text
}

/// The lines at so many columns: what does not fit goes on below, further in.
fn lines(columns: usize) -> Vec<String> {
    const INDENT: usize = 2;
    if columns >= usize::from(WIDE) - 3 {
        return LINES.map(str::to_owned).to_vec();
    }
    // A line that goes on is one with the line before.
    let mut whole: Vec<String> = Vec::new();
    for line in LINES {
        let words = without_columns(line);
        match whole.last_mut() {
            Some(last) if line.starts_with("            ") => {
                last.push(' ');
                last.push_str(&words);
            }
            _ => whole.push(words),
        }
    }
    let mut lines = Vec::new();
    whole.iter().for_each(|text| help::wrap(text, INDENT, "", columns, &mut lines));
    lines
}

/// Draws it over what is there, from line `from` on, or as far down as there is something. Returns how far down that can be: 0 where all
/// of it is seen.
pub fn draw(area: Rect, from: usize, look: Look, buffer: &mut Buffer) -> usize {
    let wide = WIDE.min(area.width);
    // The border, and a column before the text.
    let lines = lines(usize::from(wide.saturating_sub(3)));
    let high = (lines.len() as u16 + 2).min(area.height);
    let over = Rect {
        x: area.x + (area.width - wide) / 2,
        y: area.y + (area.height - high) / 2,
        width: wide,
        height: high,
    };
    let most = lines.len().saturating_sub(usize::from(high.saturating_sub(2)));
    let title = match most {
        0 => " isotherm top: any key closes ",
        _ if wide < 58 => " Up, Down: more; other keys close ",
        _ => " isotherm top: Up and Down show more, any other key closes ",
    };
    Clear.render(over, buffer);
    let block = Block::bordered().title(title).border_style(look.dim());
    let inside = block.inner(over);
    block.render(over, buffer);
    for (y, text) in lines.iter().skip(from.min(most)).take(usize::from(inside.height)).enumerate() {
        let line = Rect { y: inside.y + y as u16, height: 1, ..inside };
        put(buffer, line, 1, line.width.saturating_sub(1), text, true, Style::new());
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_what_they_do_stay_apart() {
        assert_eq!(without_columns(LINES[0]), "Up Down PgUp PgDn Home End: select (wheel; click)");
        assert_eq!(without_columns(LINES[2]), "Esc: back: the hot areas, then the list; q: quit");
        assert_eq!(without_columns(LINES[5]), "u c: window of the working set; since when memory is cold");
        assert_eq!(without_columns(LINES[8]), "Heatmap: + - zoom in, out (wheel); { } up, down; 0 hot areas");
        assert_eq!(without_columns(LINES[9]), "[ ] longer, shorter columns; Left Right past; n now");
    }

    #[test]
    fn no_word_is_lost_at_any_width() {
        let words = |lines: &[String]| -> Vec<String> {
            let all = lines.join(" ");
            all.split_whitespace().map(|word| word.trim_end_matches([':', ';']).to_owned()).collect()
        };
        let all = words(&lines(73));
        for columns in 12..80 {
            let lines = lines(columns);
            assert_eq!(words(&lines), all, "{columns}");
            let longest = lines.iter().map(|line| line.chars().count()).max().unwrap();
            assert!(longest <= columns, "{columns}: {longest}");
        }
    }
}

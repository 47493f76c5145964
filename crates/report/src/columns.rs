//! Text in columns of a terminal.
//!
//! A character may take two columns, as those of Chinese and Japanese do, or none, as combining ones do: what is cut, wrapped
//! or filled up here is so by the columns that it takes (Unicode Standard Annex 11, by the crate `unicode-width`, which the
//! live view counts by too). A character of two columns that does not fit is left out, so a text may be one shorter than what there
//! is room for.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// How many columns `text` takes.
pub fn width(text: &str) -> usize {
    text.width()
}

/// `text` filled up with spaces to `columns`.
pub fn padded(text: &str, columns: usize) -> String {
    let mut padded = text.to_owned();
    padded.extend(std::iter::repeat_n(' ', columns.saturating_sub(width(text))));
    padded
}

/// The beginning of `text` that takes at most so many columns.
fn front(text: &str, columns: usize) -> &str {
    let mut taken = 0;
    let past = text.char_indices().find(|(_, c)| {
        taken += c.width().unwrap_or(0);
        taken > columns
    });
    text.split_at(past.map_or(text.len(), |(at, _)| at)).0
}

/// The end of `text` that takes at most so many columns.
fn back(text: &str, columns: usize) -> &str {
    let mut taken = 0;
    let kept = text.char_indices().rev().take_while(|(_, c)| {
        taken += c.width().unwrap_or(0);
        taken <= columns
    });
    text.split_at(kept.last().map_or(text.len(), |(at, _)| at)).1
}

/// `text` cut to so many columns, a `~` in the last when something is missing.
pub fn shortened(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    match columns.checked_sub(1) {
        None => String::new(),
        Some(rest) => format!("{}~", front(text, rest)),
    }
}

/// `text` cut to so many columns: what is too much is taken from its middle, since a command's program and its last
/// arguments tell most.
pub(crate) fn elided(text: &str, columns: usize) -> String {
    const GAP: &str = " ... ";
    if width(text) <= columns {
        return text.to_owned();
    }
    if columns < 3 * GAP.len() {
        return shortened(text, columns);
    }
    let kept = columns - GAP.len();
    let (front, back) = (front(text, kept.div_ceil(2)), back(text, kept / 2));
    // At the ends of words, unless a word takes most of the room.
    let front =
        front.rsplit_once(' ').map_or(front, |(f, _)| if 2 * f.len() > front.len() { f } else { front });
    let back = back.split_once(' ').map_or(back, |(_, b)| if 2 * b.len() > back.len() { b } else { back });
    format!("{}{GAP}{}", front.trim_end(), back.trim_start())
}

/// `text` in lines of at most so many columns, broken at spaces where there are any.
pub fn wrapped(text: &str, columns: usize) -> Vec<String> {
    wrapped_by(text, columns, |word| elided(word, columns))
}

/// The same, but that a word which is too long, as a path may be, stays whole.
pub(crate) fn wrapped_whole(text: &str, columns: usize) -> Vec<String> {
    wrapped_by(text, columns, str::to_owned)
}

fn wrapped_by(text: &str, columns: usize, first: impl Fn(&str) -> String) -> Vec<String> {
    let mut lines: Vec<(String, usize)> = Vec::new();
    for word in text.split(' ') {
        let wide = width(word);
        match lines.last_mut() {
            Some((line, taken)) if *taken + 1 + wide <= columns => {
                line.push(' ');
                line.push_str(word);
                *taken += 1 + wide;
            }
            _ => {
                let word = first(word);
                let wide = width(&word);
                lines.push((word, wide));
            }
        }
    }
    lines.into_iter().map(|(line, _)| line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn long_notes_are_wrapped_not_lost() {
        let lines = wrapped("blind spot: pages mapped by several processes", 20);
        assert_eq!(lines, ["blind spot: pages", "mapped by several", "processes"]);
        assert_eq!(lines.join(" "), "blind spot: pages mapped by several processes");
    }

    #[test]
    fn what_is_too_long_loses_its_middle() {
        assert_eq!(elided("redis-server --port 6379", 24), "redis-server --port 6379");
        assert_eq!(elided("redis-server --save 60 1 --port 6379", 30), "redis-server ... --port 6379");
        assert_eq!(elided("redis-server-of-mine=port-6379", 24), "redis-serv ... port-6379");
        assert_eq!(elided("redis-server", 4), "red~");
        for columns in 0..50 {
            assert!(width(&elided("a b c d e f g h i j k l m n o p", columns)) <= columns);
        }
    }

    #[test]
    fn wide_characters_take_two_columns_and_combining_ones_none() {
        assert_eq!((width("日本語"), width("e\u{301}"), width("abc")), (6, 1, 3));
        assert_eq!(padded("日本", 6), "日本  ");
        assert_eq!(shortened("日本語日本", 6), "日本~");
        assert_eq!(shortened("日本語日本", 7), "日本語~");
        assert_eq!(shortened("e\u{301}e\u{301}e\u{301}", 2), "e\u{301}~");
        assert_eq!(shortened("ab", 0), "");
        assert_eq!(elided("日本語日本語日本語日本語", 20), "日本語日 ... 日本語");
        assert_eq!(wrapped("日本 語日 本語", 9), ["日本 語日", "本語"]);
    }

    proptest! {
        #[test]
        fn nothing_is_wider_than_its_room(text in "[ a日é\u{301}\u{1f600}]{0,40}", columns in 0_usize..50) {
            prop_assert!(width(&shortened(&text, columns)) <= columns);
            prop_assert!(width(&elided(&text, columns)) <= columns);
            prop_assert!(wrapped(&text, columns).iter().all(|line| width(line) <= columns));
            prop_assert_eq!(wrapped_whole(&text, columns).join(" "), text.as_str());
            prop_assert_eq!(width(&padded(&shortened(&text, columns), columns)), columns);
        }
    }
}

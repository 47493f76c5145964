//! What the terminal at hand can show.

use isotherm_report::colour::{ColourChoice, ColourMode};
use std::io::IsTerminal;
use std::os::fd::AsFd;

/// Used where there is no terminal to ask.
const WIDTH: usize = 100;

/// Columns and lines of the terminal at `fd`; without one, what COLUMNS says or 100 columns, and no lines.
pub fn size(fd: impl AsFd) -> (usize, Option<usize>) {
    match rustix::termios::tcgetwinsize(fd) {
        Ok(size) if size.ws_col > 0 => {
            (usize::from(size.ws_col), Some(usize::from(size.ws_row)).filter(|rows| *rows > 0))
        }
        _ => {
            let columns = std::env::var("COLUMNS").ok().and_then(|c| c.parse().ok());
            (columns.unwrap_or(WIDTH), None)
        }
    }
}

/// A line of progress that fits the terminal at standard error: where it does not, parts are left out from behind, but not the
/// first, nor `end`.
pub fn progress(parts: &[String], end: &str) -> String {
    fitting(parts, end, size(std::io::stderr()).0)
}

fn fitting(parts: &[String], end: &str, columns: usize) -> String {
    // In the last column some terminals go on to the next line.
    let room = columns.saturating_sub(1);
    let line = |parts: &[String]| format!("{} {end}", parts.join(", "));
    let fits = |text: &str| text.chars().count() <= room;
    let most = (1..=parts.len()).rev().map(|nr| line(&parts[..nr])).find(|text| fits(text));
    most.unwrap_or_else(|| parts.first().map_or(end, |first| first).chars().take(room).collect())
}

/// How to show heat at `output`.
pub fn colours(output: &impl IsTerminal, choice: ColourChoice) -> ColourMode {
    let variable = |name: &str| std::env::var(name).ok();
    ColourMode::detect(
        choice,
        output.is_terminal(),
        variable("NO_COLOR").as_deref(),
        variable("COLORTERM").as_deref(),
        variable("TERM").as_deref(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_takes_one_line() {
        let parts = ["recording 1 s", "1 process", "13 regions"].map(str::to_owned);
        let end = "(Ctrl-C ends it)";
        assert_eq!(fitting(&parts, end, 80), "recording 1 s, 1 process, 13 regions (Ctrl-C ends it)");
        assert_eq!(fitting(&parts, end, 42), "recording 1 s, 1 process (Ctrl-C ends it)");
        for columns in 0..80 {
            assert!(fitting(&parts, end, columns).len() <= columns.saturating_sub(1));
        }
    }
}

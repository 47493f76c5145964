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

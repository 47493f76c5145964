//! Statistics in place: a few lines on a terminal that are written anew each time, below what was said before.

/// What stands on the terminal.
#[derive(Debug, Default)]
pub struct Screen {
    lines: Vec<String>,
}

impl Screen {
    /// What to write so that `lines` stand there instead of what does. A terminal of so many rows has room for less than that of them,
    /// or those at the top would scroll away, and could not be written over.
    pub fn next(&mut self, lines: &[String], rows: Option<usize>) -> String {
        let most = rows.map_or(usize::MAX, |rows| rows.saturating_sub(1).max(1));
        let text = self.clear();
        self.lines = lines.iter().take(most).cloned().collect();
        text + &self.again()
    }

    /// What to write so that nothing of it stands there, and something else can be written from its first line on.
    pub fn clear(&self) -> String {
        match self.lines.len() {
            0 => "\r\x1b[J".into(),
            lines => format!("\r\x1b[{lines}A\x1b[J"),
        }
    }

    /// All of it, where the cursor is.
    pub fn again(&self) -> String {
        self.lines.iter().flat_map(|line| [line.as_str(), "\r\n"]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_written_over_and_what_stood_above_stays() {
        let mut terminal = vt100::Parser::new(6_u16.try_into().unwrap(), 20_u16.try_into().unwrap(), 0);
        let lines =
            |count: usize, name: &str| (0..count).map(|at| format!("{name} {at}")).collect::<Vec<_>>();
        let mut screen = Screen::default();
        let mut write = |text: String| {
            terminal.process(text.as_bytes());
            let all = terminal.screen().contents();
            all.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>()
        };
        write("before\r\n".into());
        assert_eq!(write(screen.next(&lines(3, "a"), Some(6))), ["before", "a 0", "a 1", "a 2"]);
        assert_eq!(write(screen.next(&lines(2, "b"), Some(6))), ["before", "b 0", "b 1"]);
        write(screen.clear());
        write("news\r\n".into());
        assert_eq!(write(screen.again()), ["before", "news", "b 0", "b 1"]);
        // More than there is room for.
        assert_eq!(write(screen.next(&lines(9, "c"), Some(6))), ["c 0", "c 1", "c 2", "c 3", "c 4"]);
        assert_eq!(write(screen.next(&lines(1, "d"), Some(6))), ["d 0"]);
    }
}

//! What all pictures have in common: title and backend at the top, notes at the bottom.
//!
//! Nothing is cut off at the right edge. What is too long is wrapped; a command too long even for that loses its middle,
//! and stands whole among the notes.

use super::{Canvas, TextSize, TextStyle};
use crate::columns::{elided, wrapped};
use crate::provenance::Provenance;

/// Free space at the left and right edge, pixels.
pub(crate) const MARGIN: f64 = 28.0;
/// Height of a note, pixels.
const NOTE: f64 = 25.0;
/// Distance of the title's lines, pixels.
const TITLE: f64 = 38.0;
/// Most lines of the title, and of what follows it.
const LINES: usize = 2;
/// Most characters of the command among the notes.
const COMMAND: usize = 1000;

/// Texts around a plot, in lines that fit.
#[derive(Clone, Debug)]
pub(crate) struct Page {
    /// Width of the picture, pixels.
    pub width: f64,
    title: Vec<String>,
    how: Vec<String>,
    notes: Vec<String>,
}

impl Page {
    /// For a picture of `width` pixels; at least 640 and at most 4096 are used. An empty `title` stands for the recording's
    /// first line.
    pub fn new(width: usize, provenance: &Provenance, title: &str, notes: Vec<String>) -> Self {
        let width = width.clamp(640, 4096) as f64;
        let line = |size: TextSize| ((width - 2.0 * MARGIN) / size.char_width()) as usize;
        let (title_line, small_line) = (line(TextSize::Title), line(TextSize::Small));
        let mut all = notes;
        // Words are not broken, so that lines do not fill up; the more is left out until all is in.
        let fitting = |make: &dyn Fn(usize) -> String| {
            let mut room = LINES * title_line;
            loop {
                let lines = wrapped(&make(room), title_line);
                if lines.len() <= LINES || room <= title_line {
                    return lines;
                }
                room -= 1;
            }
        };
        let title = match title {
            "" => {
                let whole = provenance.title(usize::MAX);
                let lines = fitting(&|room| provenance.title(room));
                if lines.join(" ") != whole {
                    all.push(elided(&whole, COMMAND));
                }
                lines
            }
            given => fitting(&|room| elided(given, room)),
        };
        let how = provenance.head().get(1).map_or_else(Vec::new, |how| wrapped(how, small_line));
        let notes = all.iter().flat_map(|note| wrapped(note, small_line)).collect();
        Self { width, title, how: how.into_iter().take(LINES).collect(), notes }
    }

    /// For a picture of what is in no recording.
    pub fn plain(width: usize, title: &str, notes: Vec<String>) -> Self {
        Self { how: Vec::new(), ..Self::new(width, &Provenance::default(), title, notes) }
    }

    /// Height of the head, pixels.
    pub fn head(&self) -> f64 {
        34.0 + self.title.len() as f64 * TITLE + self.how.len().saturating_sub(1) as f64 * NOTE
    }

    /// Height of the notes with the margin below them, pixels.
    pub fn foot(&self) -> f64 {
        self.notes.len() as f64 * NOTE + MARGIN
    }

    /// Draws the head, and the notes from `foot` on.
    pub fn draw(&self, foot: f64, canvas: &mut dyn Canvas) {
        let title = TextStyle::new(TextSize::Title).bold();
        let small = TextStyle::new(TextSize::Small).faint();
        let mut y = 34.0;
        for line in &self.title {
            canvas.text(MARGIN, y, line, title);
            y += TITLE;
        }
        y -= 6.0;
        for line in &self.how {
            canvas.text(MARGIN, y, line, small);
            y += NOTE;
        }
        for (i, note) in self.notes.iter().enumerate() {
            canvas.text(MARGIN, foot + (i as f64 + 0.5) * NOTE, note, small);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isotherm_record::{Header, Item};

    #[test]
    fn a_long_command_keeps_its_ends_and_the_figures_behind_it() {
        let arguments = (0..300).map(|i| format!("--option-{i}=value"));
        let command: Vec<String> =
            ["java".to_owned()].into_iter().chain(arguments).chain(["server.jar".to_owned()]).collect();
        let mut provenance = Provenance::default();
        provenance.note(&Item::Header(Header { command: command.clone(), ..Header::default() }));
        for width in [640, 1280, 4096] {
            let page = Page::new(width, &provenance, "", Vec::new());
            let title = page.title.join(" ");
            assert!(page.title.len() <= LINES, "{title}");
            assert!(title.starts_with("java --option-0") && title.contains(" ... "), "{title}");
            assert!(title.ends_with("server.jar: 0 s in 0 snapshots, 0 regions"), "{title}");
            let fits = |lines: &[String], size: TextSize| {
                lines.iter().all(|l| size.width(l) <= page.width - 2.0 * MARGIN)
            };
            assert!(fits(&page.title, TextSize::Title) && fits(&page.notes, TextSize::Small));
            assert!(page.notes.join(" ").contains("--option-20=value"), "whole among the notes");
        }
        let given = Page::new(640, &provenance, &command.join(" "), Vec::new());
        assert!(given.title.len() <= LINES && given.title.join(" ").ends_with("server.jar"));
        assert!(given.notes.is_empty());
        let short = Page::new(640, &Provenance::default(), "", vec!["a note".to_owned()]);
        assert_eq!(short.notes, ["a note"]);
    }
}

//! Looks: with colours those of the reports, without them none.

use isotherm_report::colour::{Colour, ColourMode, UNKNOWN_STRIPE, heat};
use ratatui::style::{Color, Modifier, Style};

/// How the terminal shows colours.
#[derive(Clone, Copy, Debug)]
pub struct Look(pub ColourMode);

impl Look {
    pub fn colour(self, colour: Colour) -> Color {
        match self.0 {
            ColourMode::True => Color::Rgb(colour.r, colour.g, colour.b),
            ColourMode::Ansi256 => Color::Indexed(colour.ansi256()),
            ColourMode::Plain => Color::Reset,
        }
    }

    /// Without colours.
    pub fn is_plain(self) -> bool {
        self.0 == ColourMode::Plain
    }

    pub fn bold(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    pub fn dim(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    /// Heads of columns, and the selected row.
    pub fn reverse(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    pub fn unknown(self) -> Style {
        Style::new().fg(self.colour(UNKNOWN_STRIPE))
    }

    pub fn trend(self) -> Style {
        Style::new().fg(self.colour(heat(0.7)))
    }
}

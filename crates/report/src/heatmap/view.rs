//! What all renderings of a heatmap have in common: how hot a cell looks, which names stand where, ticks.
//!
//! Renderers (terminal, picture, page, live screen) take it from here and from [`crate::colour`], and only draw.

use super::{Cell, Heatmap, Panel, Scale, ticks};
use crate::colour::{self, Colour};
use crate::units::{SECOND_NS, significant};

/// What a cell shows, with its place on the scale.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Level {
    /// Nothing of it was monitored.
    Empty,
    /// It was monitored, but could not be observed.
    Unknown,
    /// Hz, and 0..=1.
    Rate(f64, f64),
}

impl Level {
    /// The level of a cell where `highest_hz` is the upper end of the scale.
    pub fn new(cell: Cell, scale: Scale, highest_hz: f64) -> Self {
        match cell {
            Cell::Rate(hz) => Self::Rate(hz, scale.level(hz, highest_hz)),
            Cell::Unknown => Self::Unknown,
            Cell::Empty => Self::Empty,
        }
    }

    /// The cell without colours: 0 is 0 Hz, 1 to 9 are ninths of the scale, `?` is unknown, blank is not monitored.
    pub fn digit(self) -> char {
        match self {
            Self::Empty => ' ',
            Self::Unknown => '?',
            Self::Rate(hz, _) if hz <= 0.0 => '0',
            Self::Rate(_, level) => char::from(b'0' + ((level * 9.0 - 1e-9).ceil() as u8).clamp(1, 9)),
        }
    }

    /// Its colour without a pattern; `None` where nothing was monitored.
    pub fn colour(self) -> Option<Colour> {
        match self {
            Self::Empty => None,
            Self::Unknown => Some(colour::UNKNOWN),
            Self::Rate(_, level) => Some(colour::heat(level)),
        }
    }
}

/// A round value on an axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Tick {
    /// Where: 0 is the axis' start, 1 its end.
    pub place: f64,
    /// The value, without a unit.
    pub text: String,
}

/// Ticks for the time from `start` to `end`, seconds; at most `most`, and one.
pub fn time_ticks(start: f64, end: f64, most: usize) -> Vec<Tick> {
    let span = (end - start).max(f64::MIN_POSITIVE);
    let tick = |at: f64| Tick { place: (at - start) / span, text: significant(at, 6) };
    ticks(start, end, most.max(1)).into_iter().map(tick).collect()
}

impl Heatmap {
    /// What a cell of a panel shows on `scale`, which must not be [`Scale::Auto`] (see [`Self::scale`]). Row 0 is the lowest
    /// address.
    pub fn level(&self, panel: &Panel, row: usize, column: usize, scale: Scale) -> Level {
        Level::new(panel.cell(row, column), scale, self.highest_hz)
    }

    /// Its time in seconds since the moment that is called 0.
    pub fn seconds(&self) -> (f64, f64) {
        let seconds = |ns: u64| (ns as f64 - self.origin_ns as f64) / SECOND_NS;
        (seconds(self.start_ns), seconds(self.end_ns))
    }

    /// Ticks of the time axis, at most `most`, and one.
    pub fn time_ticks(&self, most: usize) -> Vec<Tick> {
        let (start, end) = self.seconds();
        time_ticks(start, end, most)
    }
}

impl Panel {
    /// The mappings inside, the largest first: where each begins and ends (0 is the lowest address, 1 the end), and its name.
    /// A renderer names them in this order as far as there is room.
    pub fn names(&self) -> Vec<(f64, f64, &str)> {
        let size = self.area.range().size().max(1) as f64;
        let place = |address: u64| address.saturating_sub(self.area.start) as f64 / size;
        let mut labels: Vec<&(u64, u64, String)> = self.labels.iter().collect();
        labels.sort_by_key(|(start, end, _)| std::cmp::Reverse(end.saturating_sub(*start)));
        labels.into_iter().map(|(start, end, name)| (place(*start), place(*end), name.as_str())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_have_a_place_between_the_ends() {
        let ticks = time_ticks(3.0, 10.0, 4);
        let expected = [(1.0 / 7.0, "4"), (3.0 / 7.0, "6"), (5.0 / 7.0, "8"), (1.0, "10")];
        assert_eq!(ticks.len(), expected.len());
        for (tick, (place, text)) in ticks.iter().zip(expected) {
            assert!((tick.place - place).abs() < 1e-9 && tick.text == text, "{tick:?}");
        }
        assert_eq!(time_ticks(5.0, 5.0, 0).len(), 1);
    }
}

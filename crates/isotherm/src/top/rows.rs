//! Rows of the lists, and how they are sorted, filtered and scrolled.

use isotherm_damon::{AddrRange, TargetId};
use isotherm_report::holdings::{Figure, Figures};
use std::cmp::Ordering;

/// A process in the list.
#[derive(Clone, Debug, Default)]
pub struct Row {
    pub id: TargetId,
    pub pid: u32,
    pub name: String,
    pub command: String,
    /// None as long as they were not added up.
    pub figures: Option<Figures>,
    /// Working set second by second; none where it is not known.
    pub trend: Vec<Option<f32>>,
}

/// A mapping of the entered process.
#[derive(Clone, Debug, PartialEq)]
pub struct MappingRow {
    pub range: AddrRange,
    pub name: String,
    pub path: String,
    pub figures: Figures,
}

/// What lists can be sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    /// Pid of a process, address of a mapping.
    Key,
    Name,
    Resident,
    WorkingSet,
    Hot,
    Cold,
    Unknown,
}

impl Column {
    pub const ALL: [Self; 7] =
        [Self::Key, Self::Name, Self::Resident, Self::WorkingSet, Self::Hot, Self::Cold, Self::Unknown];

    pub fn after(self, by: usize) -> Self {
        let at = Self::ALL.iter().position(|c| *c == self).unwrap_or(0);
        Self::ALL[(at + by) % Self::ALL.len()]
    }

    /// Whether small comes first unless asked otherwise.
    fn ascends(self) -> bool {
        matches!(self, Self::Key | Self::Name)
    }
}

/// How a list is sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sort {
    pub by: Column,
    pub reverse: bool,
}

impl Sort {
    pub const fn by(by: Column) -> Self {
        Self { by, reverse: false }
    }

    /// Whether small comes first.
    pub fn ascends(self) -> bool {
        self.by.ascends() != self.reverse
    }

    /// The same column again turns it round.
    pub fn choose(&mut self, by: Column) {
        *self = if self.by == by { Self { by, reverse: !self.reverse } } else { Self::by(by) };
    }

    pub fn order(self, order: Ordering) -> Ordering {
        if self.ascends() { order } else { order.reverse() }
    }

    /// Of two figures. What nobody knows is neither small nor large: it comes last, whichever is first.
    pub fn order_figures(self, a: Option<u64>, b: Option<u64>) -> Ordering {
        match a.zip(b) {
            Some((a, b)) => self.order(a.cmp(&b)),
            None => a.is_none().cmp(&b.is_none()),
        }
    }
}

/// The selected row of a list, and the first that is visible.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    pub at: usize,
    pub top: usize,
}

impl Cursor {
    pub fn step(&mut self, by: isize, len: usize) {
        self.at = self.at.saturating_add_signed(by).min(len.saturating_sub(1));
    }

    /// Moves what is visible, so that the selected row is among it.
    pub fn follow(&mut self, lines: usize, len: usize) {
        self.at = self.at.min(len.saturating_sub(1));
        self.top = self.top.min(len.saturating_sub(lines)).min(self.at);
        if self.at >= self.top + lines {
            self.top = self.at + 1 - lines;
        }
    }
}

/// The figure in a column; `None`: it has another thing.
pub fn figure(by: Column, window: usize, cold: usize) -> Option<Figure> {
    match by {
        Column::Key | Column::Name => None,
        Column::Resident => Some(Figure::Resident),
        Column::WorkingSet => Some(Figure::WorkingSet(window)),
        Column::Hot => Some(Figure::Hot),
        Column::Cold => Some(Figure::Cold(cold)),
        Column::Unknown => Some(Figure::Unknown),
    }
}

/// The figure in a column, bytes; `None` where nobody knows it.
pub fn value(figures: Option<&Figures>, by: Column, window: usize, cold: usize) -> Option<u64> {
    figures?.shown(figure(by, window, cold)?)
}

/// Whether any of the texts has `filter` in it, whatever the case.
pub fn matches(filter: &str, texts: &[&str]) -> bool {
    let filter = filter.to_lowercase();
    filter.is_empty() || texts.iter().any(|text| text.to_lowercase().contains(&filter))
}

//! The edges of cells along one side of a heatmap.

use super::{MAX_SIDE, edge};

/// Even parts of a range of numbers, with exact integer edges.
#[derive(Clone, Debug)]
pub(super) struct Axis {
    pub(super) edges: Vec<u64>,
    parts_per_unit: f64,
}

impl Axis {
    pub(super) fn new(start: u64, end: u64, parts: usize) -> Self {
        let end = end.max(start.saturating_add(1));
        // A part of less than a byte or a nanosecond could not be told from its neighbours.
        let parts = parts.clamp(1, MAX_SIDE).min(usize::try_from(end - start).unwrap_or(usize::MAX).max(1));
        let edges = (0..=parts).map(|i| edge(start, end, parts, i)).collect();
        Self { edges, parts_per_unit: parts as f64 / (end - start) as f64 }
    }

    pub(super) fn parts(&self) -> usize {
        self.edges.len() - 1
    }

    pub(super) fn start(&self) -> u64 {
        self.edges[0]
    }

    pub(super) fn end(&self) -> u64 {
        self.edges[self.edges.len() - 1]
    }

    /// The part in which `at` lies; `at` must lie inside the axis.
    #[inline]
    pub(super) fn part(&self, at: u64) -> usize {
        let guess = (at.saturating_sub(self.edges[0]) as f64 * self.parts_per_unit) as usize;
        let mut part = guess.min(self.edges.len() - 2);
        while part > 0 && self.edges[part] > at {
            part -= 1;
        }
        while part + 2 < self.edges.len() && self.edges[part + 1] <= at {
            part += 1;
        }
        part
    }
}

/// Adds `density` times the bytes shared with `start..end` (not empty, inside the axis) to the parts of `cells`.
#[inline]
pub(super) fn spread(axis: &Axis, start: u64, end: u64, density: f64, cells: &mut [f64]) {
    let first = axis.part(start);
    if end <= axis.edges[first + 1] {
        cells[first] += (end - start) as f64 * density;
        return;
    }
    let last = axis.part(end - 1);
    cells[first] += (axis.edges[first + 1] - start) as f64 * density;
    let inner = cells[first + 1..last].iter_mut();
    for (cell, edges) in inner.zip(axis.edges[first + 1..=last].windows(2)) {
        *cell += (edges[1] - edges[0]) as f64 * density;
    }
    cells[last] += (end - axis.edges[last]) as f64 * density;
}

//! What clears cost.

use super::Watched;
use super::tuning::{PAGES_A_CLEAR, PAGES_A_RANGE};
use crate::Step;

/// Ranges with so many entries of page tables in them, in the unit of [`crate::Allowance::prepares`].
pub(crate) const fn price_of(ranges: usize, entries: usize) -> usize {
    (ranges * PAGES_A_RANGE + entries).div_ceil(PAGES_A_CLEAR)
}

/// Of several targets each takes a call of its own, once.
pub(super) fn another_call<O>(targets: usize, target: &Watched, step: &Step<'_, O>) -> usize {
    if targets > 1 && target.chosen.is_empty() { step.allowance.prepares_a_call } else { 0 }
}

/// So many cells of so many entries, each by itself.
pub(super) const fn price_of_cells(cells: usize, entries: usize) -> usize {
    price_of(cells, cells * entries)
}

/// How many cells that pays.
pub(super) const fn cells_for(prepares: usize, entries: usize) -> usize {
    prepares * PAGES_A_CLEAR / (PAGES_A_RANGE + entries)
}

/// Cells that lie together, in a target's blocks.
pub(super) fn price_by_blocks(target: &Watched, cells: usize) -> usize {
    price_of(target.blocks.len().min(cells), cells * target.entries_a_cell())
}

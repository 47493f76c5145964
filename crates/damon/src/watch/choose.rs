//! Which cells are checked and cleared: at random in a stretch, spread evenly over all of a target, beside borders.

use super::cell::{Cell, State};
use super::draw::Stretch;
use super::target::{self, At, CELLS, Watched};
use super::tuning::Tuning;
use crate::AddrRange;
use alloc::vec::Vec;

impl Watched {
    /// The cell that starts at `addr`.
    pub(super) fn at(&self, addr: u64) -> Option<At> {
        let block = self.blocks.binary_search_by_key(&(addr & !(crate::BLOCK_SIZE - 1)), |b| b.addr).ok()?;
        Some(At { block, cell: (addr % crate::BLOCK_SIZE / target::CELL_SIZE) as usize })
    }

    /// Notes the cells beside borders of hot stretches that wait to be seen page by page.
    pub(super) fn find_edges(&mut self, tuning: &Tuning) {
        let mut edges = core::mem::take(&mut self.edges);
        edges.clear();
        for pair in self.stretches.windows(2) {
            let [left, right] = pair else { continue };
            if left.is_hot(tuning) == right.is_hot(tuning) || left.range.end != right.range.start {
                continue;
            }
            for addr in [left.range.end - 1, left.range.end] {
                let addr = addr & !(target::CELL_SIZE - 1);
                let cell = self.at(addr).and_then(|at| self.blocks.get(at.block)?.cells.get(at.cell));
                if cell.is_some_and(|c| {
                    c.tried == 0 && !c.shared && matches!(c.state, State::Unseen | State::Lit)
                }) {
                    edges.push(addr);
                }
            }
        }
        self.edges = edges;
    }

    /// A random one of the cells of a range that are wanted: the first from a random place on.
    pub(super) fn any_of(
        &self,
        range: AddrRange,
        rng: &mut crate::Rng,
        wanted: impl Fn(&Cell) -> bool,
    ) -> Option<At> {
        let first = self.blocks.partition_point(|b| b.addr + crate::BLOCK_SIZE <= range.start);
        let end = self.blocks.partition_point(|b| b.addr < range.end);
        let count = end.checked_sub(first).filter(|n| *n > 0)?;
        let (start, turn) = (rng.below(count as u64) as usize, rng.below(CELLS as u64) as usize);
        (0..=count).find_map(|i| {
            let index = first + (start + i) % count;
            let block = self.blocks.get(index)?;
            let used = if block.huge { 1 } else { CELLS };
            let inside = |cell: usize| {
                block
                    .parts()
                    .nth(cell)
                    .is_some_and(|(addr, size, c)| range.contains(addr + size / 2) && wanted(c))
            };
            let cell = (0..used).map(|i| (i + turn) % used).find(|cell| inside(*cell))?;
            Some(At { block: index, cell })
        })
    }

    /// Up to `most` of the cells that are wanted, spread evenly over the blocks, in order. Goes on where it stopped the
    /// last time: every block has its turn before one has its second.
    pub(super) fn spread(&mut self, most: usize, wanted: impl Fn(&Cell) -> bool) -> Vec<At> {
        let count = self.blocks.len();
        let mut found: Vec<At> = Vec::new();
        // A stride that visits all, and as evenly as may be whenever it is stopped: the golden ratio.
        let mut stride = (count * 618 / 1000).max(1);
        while gcd(stride, count) > 1 {
            stride += 1;
        }
        // First one of each block, then the others.
        let rounds = if most >= count { CELLS } else { 1 };
        for _ in 0..count {
            let index = self.spread_turn.wrapping_mul(stride) % count;
            let offset = self.spread_turn / count.max(1) + index;
            self.spread_turn = (self.spread_turn + 1) % (count * CELLS);
            let Some(block) = self.blocks.get(index) else { continue };
            let used = if block.huge { 1 } else { CELLS };
            let cells = (0..used).map(|c| (c + offset) % used);
            let unseen = cells.filter(|c| block.cells.get(*c).is_some_and(&wanted));
            found.extend(unseen.take(rounds).map(|cell| At { block: index, cell }));
            if found.len() >= most {
                found.truncate(most);
                break;
            }
        }
        found.sort_unstable();
        found
    }
}

const fn gcd(mut a: usize, mut b: usize) -> usize {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

impl Stretch {
    pub(super) fn is_hot(&self, tuning: &Tuning) -> bool {
        self.rate() > tuning.active
    }
}

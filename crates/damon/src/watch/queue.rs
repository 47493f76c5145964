//! Cells that wait for their turn.

use alloc::vec::Vec;

/// Cells, by address, that wait to be cleared. Each has its turn before one has its second, however few turns there are.
#[derive(Clone, Debug, Default)]
pub(super) struct Queue {
    cells: Vec<u64>,
    /// The last that had its turn.
    turn: u64,
}

impl Queue {
    pub fn push(&mut self, cell: u64) {
        self.cells.push(cell);
    }

    pub fn extend(&mut self, cells: impl Iterator<Item = u64>) {
        self.cells.extend(cells);
    }

    pub fn clear(&mut self) {
        self.cells.clear();
    }

    /// All that wait, whose turn it is first.
    pub fn take(&mut self) -> Vec<u64> {
        let mut cells = core::mem::take(&mut self.cells);
        cells.sort_unstable();
        cells.dedup();
        let next = cells.partition_point(|cell| *cell <= self.turn);
        cells.rotate_left(next);
        cells
    }

    /// Puts back those whose turn did not come; `last` is who had the last one.
    pub fn put_back(&mut self, cells: Vec<u64>, last: Option<u64>) {
        self.cells = cells;
        self.turn = last.unwrap_or(self.turn);
    }

    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::Queue;

    #[test]
    fn every_cell_has_its_turn_although_those_before_it_come_back_at_once() {
        let mut queue = Queue::default();
        let mut served = [0; 20];
        queue.extend(0..20);
        for _ in 0..20 {
            let mut waiting = queue.take();
            let now: Vec<u64> = waiting.drain(..3).collect();
            now.iter().for_each(|cell| served[*cell as usize] += 1);
            queue.put_back(waiting, now.last().copied());
            now.iter().for_each(|cell| queue.push(*cell));
        }
        assert_eq!(served, [3; 20]);
    }

    use alloc::vec::Vec;
}

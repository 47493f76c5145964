//! Clears that others made and told of: a scheme's actions, which leave alone what was accessed and clear its bits.
//!
//! What was accessed since it was watched would be lost with the bits, so it is taken in first. From then on it is a clear as good
//! as one's own, and costs a look: a scheme that goes over all of a large target shows all of it at once.

use super::cell::{Look, State};
use super::target::{CELL_SIZE, Watched, moment_of};
use super::tuning::Tuning;
use crate::{AddrRange, BLOCK_SIZE, BlockLook, BlockOperations, Mapped, PAGE_SIZE, Step};
use alloc::vec::Vec;

impl Watched {
    /// Pages of these ranges, sorted and disjoint, were accessed, and their bits were cleared just now.
    pub fn cleared_by_others<O: BlockOperations>(
        &mut self,
        step: &mut Step<'_, O>,
        ranges: &[AddrRange],
        tuning: &Tuning,
    ) {
        self.told = true;
        let touched = |addr: u64| {
            let at = ranges.partition_point(|range| range.end <= addr);
            ranges.get(at).is_some_and(|range| range.start < addr + BLOCK_SIZE)
        };
        let mut indices: Vec<usize> =
            self.blocks.iter().enumerate().filter(|(_, b)| touched(b.addr)).map(|(i, _)| i).collect();
        for index in &indices {
            let Some(block) = self.blocks.get_mut(*index) else { continue };
            let (addr, huge) = (block.addr, block.huge);
            for (i, cell) in block.used().iter_mut().enumerate() {
                let told =
                    if huge { whole(ranges, addr) } else { pages_of(ranges, addr + i as u64 * CELL_SIZE) };
                cell.young &= !told;
            }
        }
        indices.truncate(step.checks_left());
        let mut looks: Vec<BlockLook> =
            indices.iter().filter_map(|i| self.blocks.get(*i)).map(|b| BlockLook::at(b.addr)).collect();
        if looks.is_empty() || !step.look(self.id, &mut looks) {
            return;
        }
        let moment = moment_of(step);
        let longest = u64::from(step.attrs.max_nr_accesses());
        let theft = self.theft;
        for (look, index) in looks.iter().zip(indices) {
            let Some(block) = self.blocks.get_mut(index) else { continue };
            let expected = if block.huge { Mapped::Huge } else { Mapped::Table };
            if look.mapped != expected {
                continue;
            }
            block.rouse();
            let (addr, huge) = (block.addr, block.huge);
            for (i, cell) in block.used().iter_mut().enumerate() {
                let base = addr + i as u64 * CELL_SIZE;
                let told = if huge { whole(ranges, addr) } else { pages_of(ranges, base) } & cell.present;
                if told == 0 || matches!(cell.state, State::Blind(_)) {
                    continue;
                }
                if let State::Watching { due, doubtful_until, .. } = &mut cell.state
                    && told & cell.window != 0
                {
                    (*due, *doubtful_until) = (moment.now, 0);
                    cell.looked(
                        cell.present,
                        told,
                        &Look { moment, gap: 1, longest, theft, beside: 0, tuning },
                    );
                }
                cell.left(look.present.0[i] & !told, look.young.0[i]);
                (self.dirty, self.changed) = (true, true);
                let present = look.present.0[i] & told;
                let clear = present & !look.young.0[i];
                // What shows again already was accessed anew, unless most does: then it was not cleared after all.
                if clear == 0 || 2 * clear.count_ones() < present.count_ones() {
                    continue;
                }
                let rest = if matches!(cell.state, State::Watching { .. }) { cell.window } else { 0 };
                cell.open((present | rest) & look.present.0[i], true, moment, longest, tuning);
                if let State::Watching { due, .. } = cell.state {
                    self.due.push((due, addr));
                }
            }
        }
    }
}

/// All of a huge page, if the ranges have all of it.
fn whole(ranges: &[AddrRange], addr: u64) -> u64 {
    let at = ranges.partition_point(|range| range.end <= addr);
    let has_all = ranges.get(at).is_some_and(|range| range.start <= addr && addr + BLOCK_SIZE <= range.end);
    if has_all { u64::MAX } else { 0 }
}

/// Which pages of the cell at `base` lie in the ranges.
fn pages_of(ranges: &[AddrRange], base: u64) -> u64 {
    let cell = AddrRange::new(base, base + CELL_SIZE);
    let first = ranges.partition_point(|range| range.end <= base);
    let mut pages = 0;
    for range in ranges.get(first..).unwrap_or_default().iter().take_while(|r| r.start < cell.end) {
        let inside = range.intersection(cell);
        let (from, count) = ((inside.start - base) / PAGE_SIZE, inside.size() / PAGE_SIZE);
        if count > 0 {
            pages |= (u64::MAX >> (64 - count.min(64))) << from;
        }
    }
    pages
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_a_cell_by_ranges() {
        let page = |first: u64, end: u64| AddrRange::new(first * PAGE_SIZE, end * PAGE_SIZE);
        assert_eq!(pages_of(&[page(0, 64)], 0), u64::MAX);
        assert_eq!(pages_of(&[page(0, 2), page(63, 70)], 0), 1 << 63 | 0b11);
        assert_eq!(pages_of(&[page(0, 2), page(63, 70)], CELL_SIZE), 0b11_1111);
        assert_eq!(pages_of(&[page(0, 2)], CELL_SIZE), 0);
        assert_eq!((whole(&[page(0, 512)], 0), whole(&[page(1, 512)], 0)), (u64::MAX, 0));
    }
}

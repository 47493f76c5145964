//! Clearing: pages of cells, range by range, or all memory of a target at once; and what a look afterwards says of it.

use super::cell::{Blind, Cell, State};
use super::shown::Shown;
use super::target::{At, Block, CELL_SIZE, Watched, moment_of};
use super::tuning::{PAGES_A_MAPPING, Tuning};
use crate::{
    AddrRange, BLOCK_SIZE, BlockLook, BlockOperations, Cleared, Mapped, Ownership, PAGE_SIZE, RangeClear,
    Step, Sweep, TargetId,
};
use alloc::vec::Vec;

impl Watched {
    /// Clears pages of cells, given in order, and opens windows over them.
    pub fn clear<O: BlockOperations>(
        &mut self,
        step: &mut Step<'_, O>,
        cells: &[(At, u64)],
        tuning: &Tuning,
    ) {
        let mut entries = 0;
        let mut ranges: Vec<RangeClear> = Vec::new();
        // Each block is looked at afterwards; what is too much of that waits for another interval.
        let cells = first_blocks(cells, step.checks_left());
        for &(at, pages) in cells {
            let Some(block) = self.blocks.get(at.block) else { continue };
            if block.huge {
                ranges.push(clear_of(AddrRange::new(block.addr, block.addr + BLOCK_SIZE)));
                entries += 1;
                continue;
            }
            let base = block.addr + at.cell as u64 * CELL_SIZE;
            let mut rest = pages;
            entries += pages.count_ones() as usize;
            while rest != 0 {
                let first = u64::from(rest.trailing_zeros());
                let count = u64::from((rest >> first).trailing_ones());
                let range = AddrRange::new(base + first * PAGE_SIZE, base + (first + count) * PAGE_SIZE);
                // Neighbours make one range: each flushes translations once.
                match ranges
                    .last_mut()
                    .filter(|r| r.range.end == range.start && !range.start.is_multiple_of(BLOCK_SIZE))
                {
                    Some(last) => last.range.end = range.end,
                    None => ranges.push(clear_of(range)),
                }
                rest = if first + count >= 64 { 0 } else { rest & (u64::MAX << (first + count)) };
            }
        }
        if ranges.is_empty() {
            return;
        }
        for (at, pages) in cells {
            let Some(block) = self.blocks.get_mut(at.block) else { continue };
            // A huge page is cleared whole.
            let pages = if block.huge { u64::MAX } else { *pages };
            block.cells.get_mut(at.cell).into_iter().for_each(|cell| cell.young &= !pages);
        }
        let before = moment_of(step);
        step.clear(self.id, &mut ranges, entries);
        let after = moment_of(step);
        let longest = u64::from(step.attrs.max_nr_accesses());
        let which = |addr: u64| ranges.partition_point(|r| r.range.end <= addr);
        let refused =
            |addr: u64| ranges.get(which(addr)).filter(|r| r.range.contains(addr)).map(|r| r.cleared);
        // A clear is believed when a look has seen it.
        let mut indices: Vec<usize> = cells.iter().map(|(at, _)| at.block).collect();
        indices.dedup();
        let mut looks: Vec<BlockLook> =
            indices.iter().filter_map(|i| self.blocks.get(*i)).map(|b| BlockLook::at(b.addr)).collect();
        if !step.look(self.id, &mut looks) {
            return;
        }
        self.see_left(&indices, &looks, step.now, tuning);
        // What is accessed still, or again: all at once, as each question costs as much as a clear.
        let still_young = |(at, pages): &(At, u64)| {
            let block = self.blocks.get(at.block)?;
            let base = block.addr + if block.huge { 0 } else { at.cell as u64 * CELL_SIZE };
            let first = if block.huge { 0 } else { u64::from(pages.trailing_zeros().min(63)) * PAGE_SIZE };
            let look = indices.binary_search(&at.block).ok().and_then(|position| looks.get(position))?;
            let is_done = refused(base + first) == Some(Cleared::Done);
            is_done.then(|| (base, look.present.0[at.cell] & pages & look.young.0[at.cell]))
        };
        let asked: Vec<(u64, u64)> = cells.iter().map(|cell| still_young(cell).unwrap_or_default()).collect();
        let owners = owners_of(step, self.id, &asked);
        for (&(at, pages), owner) in cells.iter().zip(owners) {
            let Ok(position) = indices.binary_search(&at.block) else { continue };
            let (Some(look), Some(block)) = (looks.get(position), self.blocks.get_mut(at.block)) else {
                continue;
            };
            let expected = if block.huge { Mapped::Huge } else { Mapped::Table };
            let Some(cell) = block.cells.get_mut(at.cell).filter(|_| look.mapped == expected) else {
                continue;
            };
            cell.writable = look.writable.0[at.cell] != 0;
            let base = block.addr + at.cell as u64 * CELL_SIZE;
            let first = base + u64::from(pages.trailing_zeros().min(63)) * PAGE_SIZE;
            match refused(if block.huge { block.addr } else { first }) {
                Some(Cleared::Done) => {}
                // Of a larger folio: to be cleared with the rest of it, next time.
                Some(Cleared::WouldSplit)
                    if !block.huge && pages != look.present.0[at.cell] && !cell.whole =>
                {
                    cell.whole = true;
                    self.whole = self.whole.saturating_add(1);
                    continue;
                }
                Some(why @ (Cleared::Refused | Cleared::WouldSplit)) => {
                    let tried =
                        if block.huge { BLOCK_SIZE / PAGE_SIZE } else { u64::from(pages.count_ones()) };
                    if why == Cleared::Refused {
                        step.tally.blind_locked += tried;
                    } else {
                        step.tally.blind_split += tried;
                    }
                    cell.blind(Blind::Unclearable, step.now);
                    self.dirty = true;
                    continue;
                }
                Some(Cleared::NotDone) | None => continue,
            }
            let present = look.present.0[at.cell] & pages;
            let still = present & look.young.0[at.cell];
            // All that was accessed anew, if nobody else maps it; otherwise what is clear.
            let is_own = still == 0 || owner == Ownership::Exclusive;
            let seen = if is_own { present } else { present & !still };
            // Of a cell of which most cannot be cleared, the rest says nothing.
            let window = if 2 * seen.count_ones() >= present.count_ones() { seen } else { 0 };
            self.dirty |= cell.state == State::Unseen || window == 0;
            if window == 0 {
                let why = if present == 0 { None } else { Some(owner) };
                let tried = if block.huge { BLOCK_SIZE / PAGE_SIZE } else { u64::from(present.count_ones()) };
                match why {
                    Some(Ownership::Unclearable) => {
                        step.tally.blind_locked += tried;
                        cell.blind(Blind::Unclearable, step.now);
                    }
                    // What cannot be found out is as good as shared: it was not cleared.
                    Some(_) => {
                        step.tally.blind_shared += tried;
                        cell.blind(Blind::Shared, step.now);
                        (cell.is_of_others, cell.again) = (owner == Ownership::Shared, 0);
                    }
                    None => {}
                }
                continue;
            }
            cell.shared = false;
            // One range is cleared after the other.
            let moment = before.towards(after, which(first), ranges.len());
            cell.open(window, true, moment, longest, tuning);
            if let State::Watching { due, .. } = cell.state {
                self.due.push((due, block.addr));
            }
        }
    }

    /// Takes in what looks after a clear show of what was not cleared.
    pub(super) fn see_left(&mut self, indices: &[usize], looks: &[BlockLook], now: u64, tuning: &Tuning) {
        for (index, look) in indices.iter().zip(looks) {
            let Some(block) = self.blocks.get_mut(*index) else { continue };
            if look.mapped != if block.huge { Mapped::Huge } else { Mapped::Table } {
                continue;
            }
            block.rouse();
            block.find_taken(look, now, &mut self.theft, tuning);
            for (i, cell) in block.used().iter_mut().enumerate() {
                cell.find_strays(look.present.0[i], look.young.0[i] & cell.present);
                cell.left(look.present.0[i], look.young.0[i]);
            }
        }
    }

    /// What a sweep goes through, in pages.
    pub fn entries(&self, kind: Sweep) -> usize {
        let mappings = self.mappings.map_or(usize::MAX, |count| count.saturating_mul(PAGES_A_MAPPING));
        self.pages(kind).saturating_add(mappings).min(usize::MAX / 2)
    }

    /// Pages that a sweep clears, as far as is known.
    fn pages(&self, kind: Sweep) -> usize {
        match kind {
            // Most of what may be written has no file.
            Sweep::Anonymous => self.census.present_writable,
            Sweep::Mapped | Sweep::All => self.census.present,
        }
    }

    /// Looks that a sweep takes at most.
    pub fn looks_of_sweep(&self) -> usize {
        self.blocks.len() + self.blocks.iter().filter(|b| b.is_watched()).count()
    }

    /// Clears all memory of a kind, and opens a window over each cell that is clear afterwards. What was accessed until now is
    /// looked for where it is watched; unless all is to begin `anew`, which takes half the looks, and those also
    /// if they are more than may be made now. Windows over what nothing is known of are `longest` long. False if that cannot be
    /// done.
    pub fn sweep<O: BlockOperations>(
        &mut self,
        step: &mut Step<'_, O>,
        kind: Sweep,
        anew: bool,
        longest: u64,
        tuning: &Tuning,
    ) -> bool {
        self.swept = step.now;
        // What was accessed until now would be lost, where it is watched.
        let watches = |b: &Block| !anew && b.is_watched();
        let unlooked =
            self.blocks.iter().enumerate().filter(|(_, b)| b.looked != Some(step.now) && watches(b));
        let unlooked: Vec<usize> = unlooked.map(|(i, _)| i).collect();
        if !anew && unlooked.len() + self.blocks.len() > step.checks_left() {
            return false;
        }
        if !unlooked.is_empty() && !self.look(step, &unlooked, tuning) {
            return false;
        }
        let before = moment_of(step);
        if !step.sweep(self.id, kind, self.pages(kind), self.entries(kind)) {
            return false;
        }
        let after = moment_of(step);
        // What open windows have shown so far is theirs.
        let closed = |cell: &&mut Cell| !matches!(cell.state, State::Watching { .. });
        self.blocks.iter_mut().flat_map(|b| &mut b.cells).filter(closed).for_each(|cell| cell.young = 0);
        let mut looks: Vec<BlockLook> = self.blocks.iter().map(|b| BlockLook::at(b.addr)).collect();
        if !step.look(self.id, &mut looks) {
            return false;
        }
        let aggregation = u64::from(step.attrs.max_nr_accesses());
        let count = self.blocks.len();
        for (at, (block, look)) in self.blocks.iter_mut().zip(&looks).enumerate() {
            let moment = before.towards(after, at, count);
            let expected = if block.huge { Mapped::Huge } else { Mapped::Table };
            if look.mapped != expected {
                continue;
            }
            block.rouse();
            let (addr, block_looked) = (block.addr, block.looked);
            block.left_at = step.now;
            for (i, cell) in block.used().iter_mut().enumerate() {
                cell.writable = look.writable.0[i] != 0;
                let clear = look.present.0[i] & !look.young.0[i];
                // What is mostly clear was cleared; the rest was accessed since or is not of this kind.
                let mostly = clear != 0 && 2 * clear.count_ones() >= cell.present.count_ones();
                if mostly {
                    cell.find_strays(look.present.0[i], look.young.0[i] & cell.present);
                }
                cell.left(look.present.0[i], look.young.0[i]);
                let is_unlooked = anew && block_looked != Some(step.now);
                // What is hot and can be cleared alone is checked, with a flush: after this clear without one it may be in a TLB and
                // show nothing for as long as it stays there, and would be lost.
                let is_checked = cell.own && !cell.shared && cell.rate() > tuning.active;
                let wants = !is_checked && cell.wants_clear(step.now, tuning)
                    || matches!(cell.state, State::Blind(_))
                    || is_unlooked && matches!(cell.state, State::Watching { .. });
                // Of all kinds, some that was cleared stands for its neighbours: the rest of them was accessed since. Where all was,
                // or cannot be cleared, it is tried alone.
                // Of what others map it is known that it was cleared: what is set was accessed between that and the look, which is much of
                // what is hot where the monitor waits for a processor. That this is always so is not likely: what is mapped there now may
                // be the zero page, which is never cleared.
                let is_sure =
                    kind == Sweep::All && cell.shared && cell.is_of_others && cell.again < tuning.again;
                // Other sweeps leave some kinds as they are.
                if kind == Sweep::All {
                    cell.again = if mostly { 0 } else { cell.again.saturating_add(1) };
                }
                let window = if is_sure || anew && clear != 0 { look.present.0[i] } else { clear };
                // Of what is accessed, all was accessed since: the others tell nothing of it.
                let of = cell.focus.known().map(|pages| pages & look.present.0[i]);
                let is_beside = of.is_some_and(|pages| pages != 0 && pages & window == 0);
                if wants && !is_beside && (mostly || is_sure || anew && clear != 0) {
                    // What is known of is looked at when it would show, and comes late if it must.
                    let longest = if cell.rate() > 0.0 { aggregation } else { longest };
                    cell.open(window, false, moment, longest, tuning);
                    if is_sure {
                        cell.young |= window & look.young.0[i];
                    }
                    if let State::Watching { due, .. } = cell.state {
                        self.due.push((due, addr));
                    }
                } else if wants && anew {
                    self.risen.push(addr + i as u64 * CELL_SIZE);
                }
            }
        }
        self.dirty = true;
        self.was_swept_anew = anew;
        if kind == Sweep::All {
            let cells = self.blocks.iter_mut().flat_map(Block::used);
            self.left_by_sweep = cells.filter(|cell| cell.state == State::Unseen).count();
        }
        true
    }
}

/// The cells that lie in the first `most` blocks of a list.
fn first_blocks(cells: &[(At, u64)], most: usize) -> &[(At, u64)] {
    let end: usize = cells.chunk_by(|a, b| a.0.block == b.0.block).take(most).map(<[_]>::len).sum();
    cells.get(..end).unwrap_or_default()
}

fn clear_of(range: AddrRange) -> RangeClear {
    RangeClear { range, cleared: Cleared::NotDone }
}

/// Who maps these pages of each of these cells, judged by up to seven of them: any that cannot be cleared speaks for all. Of those of
/// which no pages are asked nothing is found out.
fn owners_of<O: BlockOperations>(
    step: &mut Step<'_, O>,
    id: TargetId,
    asked: &[(u64, u64)],
) -> Vec<Ownership> {
    let mut addrs: Vec<u64> = Vec::new();
    let mut counts: Vec<usize> = Vec::with_capacity(asked.len());
    for &(base, pages) in asked {
        let before = addrs.len();
        let mut rest = pages;
        let skip = (pages.count_ones() / 4).max(1);
        while rest != 0 {
            addrs.push(base + u64::from(rest.trailing_zeros()) * PAGE_SIZE);
            for _ in 0..skip {
                rest &= rest.wrapping_sub(1);
            }
        }
        counts.push(addrs.len() - before);
    }
    let mut found = Vec::new();
    if !addrs.is_empty() {
        step.ops.ownership(id, &addrs, &mut found);
    }
    let mut found = found.as_slice();
    let judge = |count: usize| {
        let (of, others) = found.split_at(count.min(found.len()));
        found = others;
        let any = |what: Ownership| of.contains(&what);
        if any(Ownership::Shared) {
            Ownership::Shared
        } else if any(Ownership::Unclearable) {
            Ownership::Unclearable
        } else if any(Ownership::Exclusive) {
            Ownership::Exclusive
        } else {
            Ownership::Unknown
        }
    };
    counts.into_iter().map(judge).collect()
}

/// All present pages of a cell.
pub(super) const fn all_of(cell: &Cell) -> u64 {
    cell.present
}

/// About `most` neighbouring pages of a cell, the run of them that `from` says, or the next one that is no emptier than others by
/// half; all where folios are larger than that.
pub(super) fn some_of(cell: &Cell, whole: bool, most: u32, from: u64) -> u64 {
    let of = cell.focus.of(cell.present);
    // Each run of neighbours is a range of its own, which is as dear as clearing all in between.
    let scattered = Shown::runs(cell.present, of) > 2;
    if whole || cell.whole || scattered || cell.present.count_ones() <= most {
        return cell.present;
    }
    if of.count_ones() <= most {
        return of;
    }
    let most = most.clamp(1, 64);
    let run = u64::MAX >> (64 - most);
    let count = u64::from(64u32.div_ceil(most));
    let runs = (0..count).map(|i| (from + i) % count).map(|i| of & run << (i * u64::from(most)));
    // The first that is not much emptier than others.
    let least = runs.clone().map(u64::count_ones).max().unwrap_or(0).div_ceil(2);
    runs.clone().find(|pages| pages.count_ones() >= least).unwrap_or(of)
}

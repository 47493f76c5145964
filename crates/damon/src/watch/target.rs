//! What is known of one target: its blocks, and the flows of looks and clears through them.

use super::activity::Activity;
use super::cell::{Blind, Cell, Moment, State, Told, Window};
use super::draw::{Stretch, step_at};
use super::evidence::Verdict;
use super::tuning::{BLOCKS_A_COUNT, MOST_FRONTS, PAGES_A_MAPPING, Tuning};
use crate::{
    AddrRange, BLOCK_SIZE, BlockLook, BlockOperations, Cleared, Mapped, Ownership, PAGE_SIZE, Pages,
    RangeClear, Step, Sweep, TargetId,
};
use alloc::vec::Vec;

/// Bytes of a cell.
pub(super) const CELL_SIZE: u64 = 64 * PAGE_SIZE;
pub(super) const CELLS: usize = (BLOCK_SIZE / CELL_SIZE) as usize;

/// 2 MiB of address space in which something is present.
#[derive(Clone, Debug)]
pub(super) struct Block {
    pub addr: u64,
    /// A huge page: its first cell stands for all of it.
    pub huge: bool,
    /// When it was last looked at, or known to be absent; `None`: never.
    pub looked: Option<u64>,
    pub cells: [Cell; CELLS],
}

impl Block {
    fn new(addr: u64, absent_at: Option<u64>) -> Self {
        Self { addr, huge: false, looked: absent_at, cells: [Cell::default(); CELLS] }
    }

    /// The cells that stand for something, with their first address and size.
    pub fn parts(&self) -> impl Iterator<Item = (u64, u64, &Cell)> {
        let size = if self.huge { BLOCK_SIZE } else { CELL_SIZE };
        let count = if self.huge { 1 } else { CELLS };
        self.cells.iter().take(count).enumerate().map(move |(i, c)| (self.addr + i as u64 * size, size, c))
    }

    /// As [`Self::parts`], to change them.
    pub fn used(&mut self) -> &mut [Cell] {
        let count = if self.huge { 1 } else { CELLS };
        &mut self.cells[..count]
    }
}

/// A cell of a target, by index of its block and within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct At {
    pub block: usize,
    pub cell: usize,
}

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

/// How many cells are where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Census {
    /// Wait to be cleared for the first time.
    pub unseen: usize,
    /// Show something at the next look.
    pub watching: usize,
    /// Only a sweep shows: mapped by others too.
    pub shared: usize,
    /// Were accessed and show nothing more, and can be cleared alone.
    pub lit: usize,
    /// Entries of page tables present.
    pub present: usize,
}

/// One target.
#[derive(Clone, Debug, Default)]
pub(super) struct Watched {
    pub id: TargetId,
    /// Sorted by address.
    pub blocks: Vec<Block>,
    pub surveyed: Option<u64>,
    /// Which block the next turn to be looked at begins with.
    pub look_from: usize,
    /// Mappings it has; `None`: not known yet.
    pub mappings: Option<usize>,
    /// When memory last appeared; 0: not yet.
    pub grew: u64,
    /// When it last had its turn.
    pub turned: Option<u64>,
    /// When that turn began, in thousandths of an interval, if all went well since.
    pub turn_began: Option<u64>,
    /// There is nothing in it that was accessed and is forgotten, until then.
    pub none_forgotten_until: u64,
    /// How often a sweep that could not be paid was put off.
    pub put_off: usize,
    pub activity: Activity,
    /// Any of its stretches may be hot.
    pub is_hot: bool,
    /// What was last drawn of it.
    pub stretches: Vec<Stretch>,
    /// Windows that wait for a look: when, and in which block (by address).
    pub due: Vec<(u64, u64)>,
    /// Windows over accessed memory that closed in this aggregation, and where.
    pub results: Vec<(u64, Window)>,
    /// Cells that were found accessed where that was not expected: to be watched again at once.
    pub risen: Queue,
    /// Cells beside a border of hot memory whose pages were not seen one by one: to be cleared whole, so that the border is
    /// known to the page.
    pub edges: Queue,
    /// Cells of which some pages are accessed now and then: to be watched again when there is nothing better to do.
    pub mixed: Queue,
    /// What is to be cleared next, and which pages of it.
    pub chosen: Vec<(At, u64)>,
    /// Blocks in which memory appears, or may next.
    pub fronts: Vec<u64>,
    /// Memory that was idle was accessed in this aggregation: the pattern changes.
    pub surprised: bool,
    /// The next drawing will differ, if only a little.
    pub dirty: bool,
    /// It will differ so that it must not wait.
    pub changed: bool,
    pub census: Census,
    /// When it was taken.
    counted: u64,
    /// When its stretches were last drawn.
    pub drawn: u64,
    /// All its blocks had a look, or the first part of them.
    pub looked_once: bool,
    /// How many turns blocks have had to be seen, and to be seen again.
    pub spread_turn: usize,
    pub forgotten_turn: usize,
    /// When it was last swept.
    pub swept: u64,
}

impl Watched {
    pub fn new(id: TargetId) -> Self {
        Self { id, dirty: true, changed: true, ..Self::default() }
    }

    /// Finds out which blocks have anything in them.
    pub fn survey<O: BlockOperations>(&mut self, step: &mut Step<'_, O>, scratch: &mut Vec<u64>) {
        if !step.survey(self.id, scratch) {
            return;
        }
        let before = self.surveyed.replace(step.now);
        self.mappings = step.ops.mappings(self.id);
        if self.blocks.iter().map(|b| b.addr).eq(scratch.iter().copied()) {
            return;
        }
        (self.dirty, self.changed) = (true, true);
        let turn = self.blocks.get(self.look_from).map(|b| b.addr);
        let old = core::mem::take(&mut self.blocks);
        let mut old = old.into_iter().peekable();
        self.blocks.reserve(scratch.len());
        for &addr in scratch.iter() {
            while old.next_if(|b| b.addr < addr).is_some() {}
            let block = old.next_if(|b| b.addr == addr).unwrap_or_else(|| {
                if before.is_some() {
                    self.fronts.push(addr);
                }
                Block::new(addr, before)
            });
            self.blocks.push(block);
        }
        let over = self.fronts.len().saturating_sub(MOST_FRONTS);
        self.fronts.drain(..over);
        if self.look_from > 0 {
            self.look_from = turn.map_or(0, |addr| self.blocks.partition_point(|b| b.addr < addr));
        }
    }

    /// Looks where memory appears, as far as it goes on there, with at most `most` looks. Returns how many it took.
    pub fn look_at_fronts<O: BlockOperations>(
        &mut self,
        step: &mut Step<'_, O>,
        most: usize,
        tuning: &Tuning,
    ) -> usize {
        let mut left = most;
        // Those that have room for more are looked at next time.
        let mut later: Vec<u64> = Vec::new();
        while left > 0 && !self.fronts.is_empty() {
            let mut fronts = core::mem::take(&mut self.fronts);
            fronts.sort_unstable();
            fronts.dedup();
            let mut indices: Vec<usize> = Vec::new();
            for addr in fronts {
                let Ok(index) = self.blocks.binary_search_by_key(&addr, |b| b.addr) else { continue };
                if self.blocks.get(index).is_some_and(|b| b.looked == Some(step.now)) {
                    later.push(addr);
                } else if indices.len() < left {
                    indices.push(index);
                } else {
                    later.push(addr);
                }
            }
            if indices.is_empty() || !self.look(step, &indices, tuning) {
                break;
            }
            left -= indices.len();
        }
        later.append(&mut self.fronts);
        later.truncate(MOST_FRONTS);
        self.fronts = later;
        most - left
    }

    /// Looks at the blocks of these indices (sorted) and takes in what they show.
    pub fn look<O: BlockOperations>(
        &mut self,
        step: &mut Step<'_, O>,
        indices: &[usize],
        tuning: &Tuning,
    ) -> bool {
        let mut looks: Vec<BlockLook> =
            indices.iter().filter_map(|i| self.blocks.get(*i)).map(|b| BlockLook::at(b.addr)).collect();
        let before = moment_of(step);
        if looks.is_empty() || !step.look(self.id, &mut looks) {
            return false;
        }
        let after = moment_of(step);
        for (i, (look, index)) in looks.iter().zip(indices).enumerate() {
            let moment = before.towards(after, i, indices.len());
            self.take_in(look, *index, moment, u64::from(step.attrs.max_nr_accesses()), tuning);
        }
        true
    }

    fn take_in(&mut self, look: &BlockLook, index: usize, moment: Moment, longest: u64, tuning: &Tuning) {
        let now = moment.now;
        let Some(block) = self.blocks.get_mut(index) else { return };
        let huge = match look.mapped {
            Mapped::Unknown => return,
            Mapped::Huge => true,
            Mapped::Absent => block.huge,
            Mapped::Table => false,
        };
        if huge != block.huge {
            // Collapsed or split: what was known was about other units. If nothing was there, it appeared as what it is.
            let was_absent = block.parts().all(|(_, _, c)| c.state == State::Absent);
            block.huge = huge;
            block.cells = [Cell::default(); CELLS];
            block.looked = block.looked.filter(|_| was_absent);
            (self.dirty, self.changed) = (true, true);
        }
        let gap = block.looked.map_or(0, |at| now.saturating_sub(at).max(1));
        block.looked = Some(now);
        let base = block.addr;
        let (mut hit, mut grows, block_is_huge) = (false, false, block.huge);
        for (i, cell) in block.used().iter_mut().enumerate() {
            let (present, young) =
                if look.mapped == Mapped::Absent { (0, 0) } else { (look.present.0[i], look.young.0[i]) };
            let before = cell.evidence;
            let told = cell.looked(present, young, moment, gap, longest, tuning);
            let window = match told {
                Told::Nothing => continue,
                Told::Changed => {
                    self.dirty = true;
                    continue;
                }
                Told::Appeared => {
                    (self.dirty, self.changed, grows) = (true, true, true);
                    continue;
                }
                Told::Closed(window) => window,
            };
            // A rate falls with every idle window; none stays none.
            self.dirty |= window.share > 0.0 || before.hits > 0.0 || before.exposure <= 0.0;
            self.changed |= window.verdict != Verdict::Expected
                || before.exposure <= 0.0
                || window.share > 0.0 && (before.hits <= 0.0 || before.floor);
            let addr = base + i as u64 * CELL_SIZE;
            if window.share > 0.0 && !cell.shared {
                let risen = window.verdict == Verdict::Surprise || window.share > 0.5;
                if risen {
                    self.risen.push(addr)
                } else {
                    self.mixed.push(addr)
                }
                hit |= risen && before.hits <= 0.0;
                self.surprised |= window.verdict == Verdict::Surprise && before.exposure > 0.0;
            }
            if before.rate() > tuning.active && !window.is_rest {
                // A cell with a border in it tells of both sides, so of neither.
                if block_is_huge || step_at(cell).is_none() {
                    self.results.push((addr, window));
                }
                // What is due later can wait for the aggregation's end.
                if window.share <= 0.0
                    && let State::Watching { due, .. } = cell.state
                    && due <= now + longest / 2
                {
                    self.due.push((due, base));
                }
            }
        }
        if grows {
            self.grew = now;
            if block.parts().any(|(_, _, c)| c.state == State::Absent) {
                self.fronts.push(base);
            } else {
                self.fronts.extend([base.wrapping_add(BLOCK_SIZE), base.wrapping_sub(BLOCK_SIZE)]);
            }
        }
        if hit {
            // Heat has neighbours, and together they cost little more than one.
            let unseen = block.parts().filter(|(_, _, c)| c.state == State::Unseen && !c.shared);
            self.risen.extend(unseen.map(|(addr, ..)| addr));
        }
    }

    /// Clears pages of cells, given in order, and opens windows over them.
    pub fn clear<O: BlockOperations>(
        &mut self,
        step: &mut Step<'_, O>,
        cells: &[(At, u64)],
        tuning: &Tuning,
    ) {
        let mut ranges: Vec<RangeClear> = Vec::new();
        // Each block is looked at afterwards; what is too much of that waits for another interval.
        let cells = first_blocks(cells, step.checks_left());
        for &(at, pages) in cells {
            let Some(block) = self.blocks.get(at.block) else { continue };
            if block.huge {
                ranges.push(clear_of(AddrRange::new(block.addr, block.addr + BLOCK_SIZE)));
                continue;
            }
            let base = block.addr + at.cell as u64 * CELL_SIZE;
            let mut rest = pages;
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
        let before = moment_of(step);
        step.clear(self.id, &mut ranges);
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
        for &(at, pages) in cells {
            let Ok(position) = indices.binary_search(&at.block) else { continue };
            let (Some(look), Some(block)) = (looks.get(position), self.blocks.get_mut(at.block)) else {
                continue;
            };
            let expected = if block.huge { Mapped::Huge } else { Mapped::Table };
            let Some(cell) = block.cells.get_mut(at.cell).filter(|_| look.mapped == expected) else {
                continue;
            };
            let base = block.addr + at.cell as u64 * CELL_SIZE;
            let first = base + u64::from(pages.trailing_zeros().min(63)) * PAGE_SIZE;
            match refused(if block.huge { block.addr } else { first }) {
                Some(Cleared::Done) => {}
                Some(Cleared::Refused | Cleared::WouldSplit) => {
                    cell.blind(Blind::Unclearable, step.now);
                    self.dirty = true;
                    continue;
                }
                Some(Cleared::NotDone) | None => continue,
            }
            let present = look.present.0[at.cell] & pages;
            let still = present & look.young.0[at.cell];
            let seen = if still == 0 { present } else { seen_again(step, self.id, base, present, still) };
            // Of a cell of which most cannot be cleared, the rest says nothing.
            let window = if 2 * seen.count_ones() >= present.count_ones() { seen } else { 0 };
            self.dirty |= cell.state == State::Unseen || window == 0;
            if window == 0 {
                let why = if present == 0 { None } else { Some(owner_of(step, self.id, base, still)) };
                match why {
                    Some(Ownership::Unclearable) => cell.blind(Blind::Unclearable, step.now),
                    // What cannot be found out is as good as shared: it was not cleared.
                    Some(_) => cell.blind(Blind::Shared, step.now),
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

    /// What a sweep goes through, in pages.
    pub fn entries(&self) -> usize {
        let mappings = self.mappings.map_or(usize::MAX, |count| count.saturating_mul(PAGES_A_MAPPING));
        self.census.present.saturating_add(mappings).min(usize::MAX / 2)
    }

    /// Looks that a sweep takes at most.
    pub fn looks_of_sweep(&self) -> usize {
        let huge = self.blocks.iter().filter(|b| b.huge).count();
        2 * self.blocks.len() - huge + huge.min(self.census.watching)
    }

    /// Clears all memory of a kind, and opens a window over each cell that is clear afterwards. False if that
    /// cannot be done.
    pub fn sweep<O: BlockOperations>(
        &mut self,
        step: &mut Step<'_, O>,
        kind: Sweep,
        tuning: &Tuning,
    ) -> bool {
        self.swept = step.now;
        // What was accessed until now would be lost, where it is watched.
        let watches =
            |b: &Block| !b.huge || b.parts().any(|(_, _, c)| matches!(c.state, State::Watching { .. }));
        let unlooked =
            self.blocks.iter().enumerate().filter(|(_, b)| b.looked != Some(step.now) && watches(b));
        let unlooked: Vec<usize> = unlooked.map(|(i, _)| i).collect();
        if unlooked.len() + self.blocks.len() > step.checks_left_in_bulk() {
            return false;
        }
        if !unlooked.is_empty() && !self.look(step, &unlooked, tuning) {
            return false;
        }
        let before = moment_of(step);
        if !step.sweep(self.id, kind, self.census.present, self.entries()) {
            return false;
        }
        let after = moment_of(step);
        let mut looks: Vec<BlockLook> = self.blocks.iter().map(|b| BlockLook::at(b.addr)).collect();
        if !step.look(self.id, &mut looks) {
            return false;
        }
        let longest = u64::from(step.attrs.max_nr_accesses());
        let count = self.blocks.len();
        for (at, (block, look)) in self.blocks.iter_mut().zip(&looks).enumerate() {
            let moment = before.towards(after, at, count);
            let expected = if block.huge { Mapped::Huge } else { Mapped::Table };
            if look.mapped != expected {
                continue;
            }
            let addr = block.addr;
            for (i, cell) in block.used().iter_mut().enumerate() {
                let clear = look.present.0[i] & !look.young.0[i];
                let wants = cell.wants_clear(step.now, tuning) || matches!(cell.state, State::Blind(_));
                // What is mostly clear was cleared; the rest was accessed since or is not of this kind.
                if wants && clear != 0 && 2 * clear.count_ones() >= cell.present.count_ones() {
                    cell.open(clear, false, moment, longest, tuning);
                    if let State::Watching { due, .. } = cell.state {
                        self.due.push((due, addr));
                    }
                }
            }
        }
        self.dirty = true;
        true
    }

    /// Notes that so many cells that waited to be seen are watched now, until the next census.
    pub fn count_seen(&mut self, cells: usize) {
        self.census.unseen = self.census.unseen.saturating_sub(cells);
        self.census.watching += cells;
    }

    /// Counts anew where its cells stand, and gives those another try that could not be observed for a while.
    pub fn take_census(&mut self, now: u64, tuning: &Tuning) {
        let least = if self.dirty { self.blocks.len() as u64 / BLOCKS_A_COUNT } else { tuning.retry / 4 };
        if self.counted != 0 && now.saturating_sub(self.counted) < least {
            return;
        }
        self.counted = now;
        let mut census = Census::default();
        for block in &mut self.blocks {
            let huge = block.huge;
            for cell in block.used() {
                if matches!(cell.state, State::Blind(_))
                    && now.saturating_sub(cell.blind_since) >= tuning.retry
                {
                    cell.recover();
                    self.dirty = true;
                }
                if cell.appeared.is_some() && !cell.is_new(now, tuning) {
                    cell.appeared = None;
                    (self.dirty, self.changed) = (true, true);
                }
                match cell.state {
                    State::Absent => continue,
                    State::Unseen => census.unseen += 1,
                    State::Watching { .. } => census.watching += 1,
                    State::Lit => census.lit += usize::from(!cell.shared),
                    State::Blind(Blind::Unclearable) => {}
                    State::Blind(Blind::Shared) => census.shared += 1,
                }
                let shows_more = cell.state != State::Unseen && cell.wants_clear(now, tuning);
                census.shared += usize::from(cell.shared && shows_more);
                // A huge page is one entry of a page table.
                census.present += if huge { 1 } else { cell.present.count_ones() as usize };
            }
        }
        self.census = census;
    }

    /// The first `most` blocks from `from` on with cells that a look may tell something of.
    pub fn telling(&self, from: usize, most: usize) -> Vec<usize> {
        let tells = |b: &Block| {
            b.looked.is_none()
                || b.parts().any(|(_, _, c)| matches!(c.state, State::Watching { .. } | State::Absent))
        };
        let blocks = self.blocks.iter().enumerate().skip(from).filter(|(_, b)| tells(b));
        blocks.map(|(i, _)| i).take(most).collect()
    }
}

pub(super) fn moment_of<O: BlockOperations>(step: &mut Step<'_, O>) -> Moment {
    Moment { now: step.now, at: step.moment() }
}

/// The cells that lie in the first `most` blocks of a list.
fn first_blocks(cells: &[(At, u64)], most: usize) -> &[(At, u64)] {
    let end: usize = cells.chunk_by(|a, b| a.0.block == b.0.block).take(most).map(<[_]>::len).sum();
    cells.get(..end).unwrap_or_default()
}

fn clear_of(range: AddrRange) -> RangeClear {
    RangeClear { range, cleared: Cleared::NotDone }
}

/// Which pages of a range that was cleared are under observation, when some are young (again): all, if nobody else maps
/// them, since they were accessed anew; otherwise those that are clear.
fn seen_again<O: BlockOperations>(
    step: &mut Step<'_, O>,
    id: TargetId,
    base: u64,
    present: u64,
    still: u64,
) -> u64 {
    if owner_of(step, id, base, still) == Ownership::Exclusive { present } else { present & !still }
}

/// Who maps these pages of a cell, judged by up to four of them: any that cannot be cleared speaks for all.
fn owner_of<O: BlockOperations>(step: &mut Step<'_, O>, id: TargetId, base: u64, pages: u64) -> Ownership {
    let mut addrs: Vec<u64> = Vec::with_capacity(4);
    let mut rest = pages;
    let skip = (pages.count_ones() / 4).max(1);
    while rest != 0 {
        addrs.push(base + u64::from(rest.trailing_zeros()) * PAGE_SIZE);
        for _ in 0..skip {
            rest &= rest.wrapping_sub(1);
        }
    }
    let mut found = Vec::new();
    step.ops.ownership(id, &addrs, &mut found);
    let any = |what: Ownership| found.contains(&what);
    if any(Ownership::Shared) {
        Ownership::Shared
    } else if any(Ownership::Unclearable) {
        Ownership::Unclearable
    } else if any(Ownership::Exclusive) {
        Ownership::Exclusive
    } else {
        Ownership::Unknown
    }
}

/// All present pages of a cell.
pub(super) const fn all_of(cell: &Cell) -> u64 {
    cell.present
}

/// At most `most` neighbouring pages of a cell, from the half that has more of them.
pub(super) fn some_of(cell: &Cell, most: u32, upper: bool) -> u64 {
    if cell.present.count_ones() <= most {
        return cell.present;
    }
    let (low, high) = (cell.present & u64::from(u32::MAX), cell.present & !u64::from(u32::MAX));
    let (first, second) = if upper { (high, low) } else { (low, high) };
    if first.count_ones() * 2 >= second.count_ones() { first } else { second }
}

const _: () = assert!(CELLS == Pages::NONE.0.len());

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

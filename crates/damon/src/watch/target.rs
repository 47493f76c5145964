//! What is known of one target: its blocks, and the flow of looks through them.

use super::activity::Activity;
use super::cell::{Blind, Cell, Look, Moment, State, Told, Window, mapped_beside};
use super::draw::Stretch;
use super::evidence::Verdict;
use super::parts::step_at;
use super::queue::Queue;
use super::theft::Theft;
use super::tuning::Tuning;
use crate::{AddrRange, BLOCK_SIZE, BlockLook, BlockOperations, Mapped, PAGE_SIZE, Pages, Step, TargetId};
use alloc::vec::Vec;

/// Bytes of a cell.
pub(super) const CELL_SIZE: u64 = 64 * PAGE_SIZE;
pub(super) const CELLS: usize = (BLOCK_SIZE / CELL_SIZE) as usize;

/// What is kept of a block that is calm.
#[derive(Clone, Copy, Debug)]
struct Calm {
    /// The pages that are there.
    present: Pages,
    /// The last look that ended the windows of its cells, of which they do not know; `None`: they know all.
    ended: Option<Moment>,
    /// When the next one does, and how long windows are.
    due: u64,
    longest: u64,
}

/// 2 MiB of address space in which something is present.
#[derive(Clone, Debug)]
pub(super) struct Block {
    pub addr: u64,
    /// A huge page: its first cell stands for all of it.
    pub huge: bool,
    /// When it was last looked at, or known to be absent; `None`: never.
    pub looked: Option<u64>,
    /// When it was last seen which bits are set.
    pub left_at: u64,
    /// It was not looked at yet: what a survey found is that there may be something.
    pub unlooked: bool,
    /// ... and is there since its address space began at the earliest.
    pub is_first: bool,
    /// All that is there is watched, and was idle for longer than counts: another look that shows no access tells nothing. Of such a
    /// block, as most are, a look reads this alone, an eighth of what all of its cells are.
    calm: Option<Calm>,
    pub cells: [Cell; CELLS],
}

impl Block {
    pub(super) fn new(addr: u64, absent_at: Option<u64>) -> Self {
        Self {
            addr,
            huge: false,
            looked: absent_at,
            left_at: 0,
            unlooked: true,
            is_first: false,
            calm: None,
            cells: [Cell::default(); CELLS],
        }
    }

    /// Of an address space that began at `born`, so that nothing was there before, and found at its first survey.
    fn born(addr: u64, born: Option<u64>) -> Self {
        Self { is_first: born.is_some(), ..Self::new(addr, born) }
    }

    /// Takes in a look at a block that is calm, if it shows that nothing has changed.
    fn stays_calm(&mut self, look: &BlockLook, moment: Moment) -> bool {
        let is_same = look.mapped == Mapped::Table && look.young.is_empty();
        let Some(calm) = self.calm.as_mut().filter(|calm| is_same && calm.present == look.present) else {
            return false;
        };
        if moment.now >= calm.due {
            (calm.ended, calm.due) = (Some(moment), moment.now + calm.longest);
        }
        (self.looked, self.left_at) = (Some(moment.now), moment.now);
        true
    }

    /// Its cells are told until when nothing was accessed, before they take in anything else: as if each look had ended their windows.
    pub fn rouse(&mut self) {
        let Some(Calm { ended: Some(Moment { now, at }), due: next, .. }) = self.calm.take() else { return };
        for cell in &mut self.cells {
            if let State::Watching { since, due, .. } = &mut cell.state {
                cell.evidence.idle += at.saturating_sub(*since) as f32 / 1000.0;
                (*since, *due) = (at.max(*since), next.max(*due));
                cell.evidence.last = now.max(cell.evidence.last);
                cell.opened_at = at.max(cell.opened_at);
            }
        }
    }

    /// Finds out whether it is calm, after a look that roused it.
    fn calm_down(&mut self, longest: u64, tuning: &Tuning) {
        let is_calm = |cell: &Cell| match cell.state {
            State::Absent => true,
            State::Watching { doubtful_until, .. } => {
                let evidence = &cell.evidence;
                cell.window == cell.present
                    && !cell.is_rest
                    && cell.young == 0
                    && doubtful_until == 0
                    && evidence.hits <= 0.0
                    // No more than that is kept.
                    && evidence.exposure >= tuning.most_exposure * 0.99
            }
            State::Unseen | State::Lit | State::Blind(_) => false,
        };
        if self.huge || !self.cells.iter().all(is_calm) {
            return;
        }
        let due = |cell: &Cell| if let State::Watching { due, .. } = cell.state { due } else { 0 };
        let due = self.cells.iter().map(due).max().unwrap_or(0);
        let present = Pages(self.cells.map(|cell| cell.present));
        self.calm = Some(Calm { present, ended: None, due, longest });
    }

    /// The cells that stand for something, with their first address and size.
    pub fn parts(&self) -> impl Iterator<Item = (u64, u64, &Cell)> {
        let size = if self.huge { BLOCK_SIZE } else { CELL_SIZE };
        let count = if self.huge { 1 } else { CELLS };
        self.cells.iter().take(count).enumerate().map(move |(i, c)| (self.addr + i as u64 * size, size, c))
    }

    /// Finds out what others took since the bits were last seen, before the look is taken in or something is cleared.
    pub fn find_taken(&mut self, look: &BlockLook, now: u64, theft: &mut Theft, tuning: &Tuning) {
        let gap = now.saturating_sub(core::mem::replace(&mut self.left_at, now));
        if gap == 0 || look.mapped == Mapped::Absent {
            return;
        }
        let huge = self.huge;
        for (i, cell) in self.used().iter().enumerate() {
            let Some((left, taken)) = cell.taken(look.present.0[i], look.young.0[i]) else { continue };
            let rate = (cell.evidence.exposure > 0.0).then(|| cell.rate());
            // A huge page has one bit.
            let (left, taken) = if huge { (1, u32::from(2 * taken > left)) } else { (left, taken) };
            theft.saw(left, taken, gap as f32, rate);
        }
        theft.notice(now, tuning);
    }

    /// A look would tell of some of it whether it was accessed.
    pub fn is_watched(&self) -> bool {
        self.parts().any(|(_, _, cell)| matches!(cell.state, State::Watching { .. }))
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

/// How many cells are where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Census {
    /// Wait to be cleared for the first time.
    pub unseen: usize,
    /// Those of them that are writable.
    pub unseen_writable: usize,
    /// Those of them of which nothing was ever known, or nothing is since they were lost.
    pub unheard: usize,
    /// Show something at the next look.
    pub watching: usize,
    /// Only a sweep shows: mapped by others too.
    pub shared: usize,
    /// Were accessed and show nothing more, and can be cleared alone, as far as is known.
    pub lit: usize,
    /// Those of them of which nothing was heard for so long that hardly anything is known.
    pub forgotten: usize,
    /// Those of them that likely only a sweep shows: a sweep did, and of what was tried alone so many are shared.
    pub lit_shared: usize,
    /// Showed any access, of those above.
    pub touched: usize,
    /// Blocks that are one huge page.
    pub huge: usize,
    /// Entries of page tables present.
    pub present: usize,
    /// Those of them in cells that are writable.
    pub present_writable: usize,
}

/// One target.
#[derive(Clone, Debug, Default)]
pub(super) struct Watched {
    pub id: TargetId,
    /// It ended, or executed another program, since the last plan was made.
    pub is_forgotten: bool,
    /// Sorted by address.
    pub blocks: Vec<Block>,
    pub surveyed: Option<u64>,
    /// Which block the next turn to be looked at begins with.
    pub look_from: usize,
    /// Where the next block to be looked at for what others cleared is looked for.
    control_from: usize,
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
    /// It had a turn to be seen, if only in part.
    pub had_its_turn: bool,
    /// How often a sweep that could not be paid was put off.
    pub put_off: usize,
    pub activity: Activity,
    pub theft: Theft,
    /// Any of its stretches may be hot.
    pub is_hot: bool,
    /// What was last drawn of it.
    pub stretches: Vec<Stretch>,
    /// Windows that wait for a look: when, and in which block (by address).
    pub due: Vec<(u64, u64)>,
    /// Windows over accessed memory that closed in this aggregation, and where.
    pub results: Vec<(AddrRange, Window)>,
    /// Cells that were found accessed where that was not expected: to be watched again at once.
    pub risen: Queue,
    /// Cells beside a border of hot memory whose pages were not seen one by one: to be cleared whole, so that the border is
    /// known to the page.
    pub edges: Queue,
    /// Cells of which some pages are accessed now and then: to be watched again when there is nothing better to do.
    pub mixed: Queue,
    /// What is to be cleared next.
    pub chosen: Vec<At>,
    /// Blocks in which memory appears, or may next.
    pub fronts: Vec<u64>,
    /// Memory that was idle was accessed in this aggregation: the pattern changes.
    pub surprised: bool,
    /// Schemes clear what is in use.
    pub told: bool,
    /// The next drawing will differ, if only a little.
    pub dirty: bool,
    /// It will differ so that it must not wait.
    pub changed: bool,
    pub census: Census,
    /// When it was taken.
    pub counted: u64,
    /// When its stretches were last drawn.
    pub drawn: u64,
    /// All its blocks had a look, or the first part of them.
    pub looked_once: bool,
    /// Cells of which a part could not be cleared without splitting a folio.
    pub whole: u32,
    /// Blocks came since its last turn.
    pub has_new: bool,
    /// How many turns blocks have had to be seen, and to be seen again.
    pub spread_turn: usize,
    pub forgotten_turn: usize,
    /// When what others map was last tried again because one ended.
    pub retried: u64,
    /// When it was last swept.
    pub swept: u64,
    /// Cells that sweeps of all kinds of memory leave unseen: they were accessed again before it was looked, or sweeps do not clear them.
    pub left_by_sweep: usize,
    /// All of it was, and not all was looked at since.
    pub was_swept_anew: bool,
}

impl Watched {
    /// It may access something, as far as is known.
    pub fn runs(&self) -> bool {
        !self.is_forgotten && !self.activity.is_still()
    }

    /// It runs, has memory, and nothing of that was ever observed.
    pub fn is_unheard_of(&self) -> bool {
        let census = self.census;
        self.runs() && census.unseen > 0 && census.watching + census.lit + census.shared == 0
    }

    /// Entries of page tables that most of its cells are.
    pub fn entries_a_cell(&self) -> usize {
        if 2 * self.census.huge > self.blocks.len() { 1 } else { 64 }
    }

    pub fn new(id: TargetId) -> Self {
        Self { id, dirty: true, changed: true, ..Self::default() }
    }

    /// Finds out which blocks have anything in them.
    pub fn survey<O: BlockOperations>(
        &mut self,
        step: &mut Step<'_, O>,
        scratch: &mut Vec<u64>,
        tuning: &Tuning,
    ) {
        if !step.survey(self.id, scratch) {
            return;
        }
        let before = self.surveyed.replace(step.now);
        let born = if before.is_none() { self.began(step, tuning) } else { None };
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
                self.has_new = true;
                if before.is_none() {
                    return Block::born(addr, born);
                }
                self.fronts.push(addr);
                Block::new(addr, before)
            });
            self.blocks.push(block);
        }
        let over = self.fronts.len().saturating_sub(tuning.most_fronts);
        self.fronts.drain(..over);
        if self.look_from > 0 {
            self.look_from = turn.map_or(0, |addr| self.blocks.partition_point(|b| b.addr < addr));
        }
    }

    /// When its address space began, if that is so short a time ago that what was accessed since counts as accessed now.
    fn began<O: BlockOperations>(&self, step: &mut Step<'_, O>, tuning: &Tuning) -> Option<u64> {
        let age = step.ops.age(self.id)?.as_nanos() / step.attrs.sample.as_nanos().max(1);
        let age = u64::try_from(age).ok().filter(|age| *age <= tuning.appeared)?;
        Some(step.now.saturating_sub(age))
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
        later.truncate(tuning.most_fronts);
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
        if block.stays_calm(look, moment) {
            return;
        }
        block.rouse();
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
        let is_first = core::mem::take(&mut block.is_first);
        if core::mem::take(&mut block.unlooked) {
            (self.dirty, self.changed) = (true, true);
        }
        let base = block.addr;
        block.find_taken(look, now, &mut self.theft, tuning);
        let theft = self.theft;
        let (mut hit, mut grows, block_is_huge) = (false, false, block.huge);
        for (i, cell) in block.used().iter_mut().enumerate() {
            let (present, young) =
                if look.mapped == Mapped::Absent { (0, 0) } else { (look.present.0[i], look.young.0[i]) };
            cell.writable = look.writable.0[i] != 0;
            // What was not there before was accessed, also if another has cleared that since. What fork copied was not.
            let set = young;
            let appeared = present & !cell.present;
            let beside = mapped_beside(appeared, look.around.0[i]);
            let young = if is_first { young } else { (young | appeared) & !beside };
            cell.find_strays(present, set & !beside);
            cell.left(present, set);
            let (before, focus) = (cell.evidence, cell.focus.known());
            let told = cell.looked(present, young, &Look { moment, gap, longest, theft, beside, tuning });
            if !matches!(cell.state, State::Watching { .. }) {
                // From now on it counts what is left set, not what was seen while a window was open.
                cell.young = set & present;
            }
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
                // A piece of a cell is told from what a loop came to by whether it comes again.
                let risen =
                    window.verdict == Verdict::Surprise || window.share > 0.5 || cell.is_piece(tuning);
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
                // Nor does one of which it was just found that it is of other pages.
                // One that fell silent has none any more.
                let is_of_these = window.verdict == Verdict::Silent && focus.is_some()
                    || cell.focus.known() == focus && (focus.is_some() || step_at(cell).is_none());
                if block_is_huge || is_of_these {
                    let size = if block_is_huge { BLOCK_SIZE } else { CELL_SIZE };
                    self.results.push((AddrRange::new(addr, addr + size), window));
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
        block.calm_down(longest, tuning);
        if hit {
            // Heat has neighbours, and together they cost little more than one.
            let unseen = block.parts().filter(|(_, _, c)| c.state == State::Unseen && !c.shared);
            self.risen.extend(unseen.map(|(addr, ..)| addr));
        }
    }

    /// Notes that so many cells that waited to be seen are watched now, until the next census.
    pub fn count_seen(&mut self, cells: usize) {
        self.census.unseen = self.census.unseen.saturating_sub(cells);
        self.census.watching += cells;
    }

    /// What could not be cleared because others map it is tried again at once: one of them ended.
    /// Where others come and go all the time, no more often than twice as often as without.
    pub fn retry_shared(&mut self, now: u64, tuning: &Tuning) {
        if self.retried != 0 && now < self.retried + tuning.retry / 2 {
            return;
        }
        self.retried = now;
        for cell in self.blocks.iter_mut().flat_map(Block::used) {
            if cell.state == State::Blind(Blind::Shared) {
                cell.recover();
                self.dirty = true;
            }
        }
        self.counted = 0;
    }

    /// Counts anew where its cells stand, and gives those another try that could not be observed for a while.
    pub fn take_census(&mut self, now: u64, tuning: &Tuning) {
        let least = if self.dirty {
            self.blocks.len() as u64 / tuning.blocks_a_count.max(1)
        } else {
            tuning.retry / 4
        };
        if self.counted != 0 && now.saturating_sub(self.counted) < least {
            return;
        }
        self.counted = now;
        let mut census = Census::default();
        let (mut own, mut shared, mut lit_by_sweep) = (0, 0, 0);
        for block in &mut self.blocks {
            let huge = block.huge;
            census.huge += usize::from(huge);
            for cell in block.used() {
                if matches!(cell.state, State::Blind(_))
                    && now.saturating_sub(cell.blind_since) >= tuning.retry
                {
                    cell.recover();
                    self.dirty = true;
                }
                if cell.appeared.is_some() && !cell.is_new(now, tuning) {
                    cell.appeared = None;
                    cell.was_new = cell.state == State::Unseen;
                    (self.dirty, self.changed) = (true, true);
                }
                match cell.state {
                    State::Absent => continue,
                    State::Unseen => {
                        census.unseen += 1;
                        census.unseen_writable += usize::from(cell.writable);
                        census.unheard += usize::from(cell.evidence.exposure <= 0.0);
                    }
                    State::Watching { .. } => census.watching += 1,
                    State::Lit => {
                        census.lit += usize::from(!cell.shared);
                        let last = now.saturating_sub(cell.evidence.last);
                        census.forgotten += usize::from(!cell.shared && last > tuning.forgotten);
                        lit_by_sweep += usize::from(!cell.shared && !cell.own);
                    }
                    State::Blind(Blind::Unclearable) => {}
                    State::Blind(Blind::Shared) => census.shared += 1,
                }
                own += usize::from(cell.own);
                shared += usize::from(cell.shared);
                census.touched += usize::from(cell.state == State::Lit || cell.evidence.hits > 0.0);
                let shows_more = cell.state != State::Unseen && cell.wants_clear(now, tuning);
                census.shared += usize::from(cell.shared && shows_more);
                // A huge page is one entry of a page table.
                let present = if huge { 1 } else { cell.present.count_ones() as usize };
                census.present += present;
                census.present_writable += if cell.writable { present } else { 0 };
            }
        }
        census.lit_shared = lit_by_sweep * shared / (own + shared).max(1);
        self.census = census;
        self.left_by_sweep = self.left_by_sweep.min(census.unseen);
    }

    /// Another block each time whose bits are left set and that nothing else is to be seen of: it tells whether others clear them.
    pub fn control(&mut self) -> Option<usize> {
        let count = self.blocks.len();
        let is_left = |b: &Block| !b.is_watched() && b.parts().any(|(_, _, cell)| cell.young != 0);
        let (tail, head) = (self.control_from.min(count)..count, 0..self.control_from.min(count));
        let next = tail.chain(head).find(|i| self.blocks.get(*i).is_some_and(is_left));
        self.control_from = next.map_or(0, |i| i + 1);
        next
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

const _: () = assert!(CELLS == Pages::NONE.0.len());

#[cfg(test)]
mod tests {
    use super::super::evidence::Evidence;
    use super::super::tuning::AT_5_MS as T;
    use super::*;

    /// 2 MiB that were idle for as long as counts, looked at at the end of each of 20 aggregations, in the middle of the next, and at
    /// its end, with these pages accessed before either. Each time all cells take in what a look shows (`anew`), or they need not.
    fn looked_at(accessed: [u64; 2], anew: bool) -> (alloc::string::String, bool) {
        let mut block = Block::new(0, Some(0));
        block.unlooked = false;
        block.cells = [Cell {
            state: State::Watching { since: 0, due: 20, doubtful_until: 0 },
            present: u64::MAX,
            window: u64::MAX,
            opened: u64::MAX,
            evidence: Evidence::of(0.0, T.most_exposure, false, 0),
            ..Cell::default()
        }; CELLS];
        let mut target = Watched::new(TargetId(1));
        target.blocks.push(block);
        let mut was_calm = false;
        let nows =
            (1..=20).map(|i| (i * 20, 0)).chain([(413, accessed[0]), (420, accessed[0] | accessed[1])]);
        for (now, young) in nows.chain([(440, 0), (460, 0)]) {
            let mut look = BlockLook::at(0);
            (look.mapped, look.present, look.writable) = (Mapped::Table, Pages::ALL, Pages::ALL);
            look.young.0[3] = young;
            target.take_in(&look, 0, Moment { now, at: now * 1000 + 7 }, 20, &T);
            was_calm |= target.blocks.iter().any(|block| block.calm.is_some_and(|calm| calm.ended.is_some()));
            if anew {
                target.blocks.iter_mut().for_each(Block::rouse);
            }
        }
        target.blocks.iter_mut().for_each(Block::rouse);
        // They are added up in other steps.
        for cell in target.blocks.iter_mut().flat_map(|block| &mut block.cells) {
            let evidence = &mut cell.evidence;
            for sum in [&mut evidence.hits, &mut evidence.exposure, &mut evidence.idle] {
                *sum = (*sum * 100.0).round() / 100.0;
            }
        }
        (alloc::format!("{:?}", target.blocks.iter().map(|b| b.cells).collect::<Vec<_>>()), was_calm)
    }

    #[test]
    fn what_a_calm_block_shows_is_taken_in_as_if_all_its_cells_had_been_told_of_each_look() {
        for accessed in
            [[0, 0], [1 << 5, 0], [0xf0f, 0], [0, 0x7000], [u64::MAX, 0], [0, u64::MAX], [1, 1 << 40]]
        {
            let ((calm, was_calm), (told, was_told)) =
                (looked_at(accessed, false), looked_at(accessed, true));
            assert!(was_calm && !was_told);
            assert_eq!(calm, told, "{accessed:x?}");
        }
    }
}

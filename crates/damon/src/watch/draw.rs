//! From cells to regions: the likeliest division into stretches, its borders to the page, and what each stretch is known by.

use super::evidence::Evidence;
use super::parts::{Part, Sum, parts, step_at};
use super::places::{Places, Split};
use super::segment::{Piece, UNKNOWN, Word, rung_of, segment};
use super::target::{CELL_SIZE, Watched};
use super::tuning::Tuning;
use crate::{AddrRange, BLOCK_SIZE, PAGE_SIZE};
use alloc::vec::Vec;

/// Neighbouring cells of one rate.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Stretch {
    pub range: AddrRange,
    /// The mean of its cells'.
    pub evidence: Evidence,
    /// Cells that were observed, and those that could not be.
    pub seen: u32,
    pub blind: u32,
    /// Cells that can be cleared on their own.
    pub own: u32,
    /// Bytes present.
    pub resident: u64,
    pub known: bool,
    /// A check did not show what was expected: more are wanted.
    pub suspect: bool,
    /// Checks that fell silent since one was last accessed, when one last did, and when one was last accessed.
    pub silent: u8,
    pub silent_at: u64,
    pub heard: u64,
    /// Checks of it or of its neighbours fell silent, and none was accessed since.
    pub doubted: bool,
    /// When it was last checked.
    pub checked: u64,
    /// Exposure since a check of it was last accessed.
    pub missed: f32,
    /// Bytes absent by bytes present, if that is more than [`Tuning::mostly`]; otherwise 0.
    pub nothing: f32,
    /// Where checks showed it to fall apart, since it was drawn.
    pub split: Option<Split>,
    /// What checks showed where.
    pub places: Places,
    /// Both sides of where it begins are hot, and their rates differed: until then they stay two.
    pub apart_until: u64,
    /// Pages of its first and its last cell that lie outside of what is accessed of them ([`super::focus`]).
    pub lead: u8,
    pub tail: u8,
    /// Pages there, without those, and those of them that the evidence is of.
    pub pages: u32,
    pub focus: u32,
    /// The share of its pages that are idle, as it is of its cells of which it is known which pages are accessed.
    pub idle: f32,
}

impl Stretch {
    /// Access probability an interval, of what is accessed of it.
    pub fn rate(&self) -> f32 {
        if self.known { self.evidence.rate() } else { 0.0 }
    }

    /// The share of its pages that its evidence is of.
    pub fn share(&self) -> f32 {
        if self.pages == 0 { 1.0 } else { self.focus as f32 / self.pages as f32 }
    }
}

/// Divides `ranges` (sorted, disjoint) into stretches.
pub(super) fn draw(watched: &Watched, ranges: &[AddrRange], now: u64, tuning: &Tuning) -> Vec<Stretch> {
    let mut stretches = Vec::with_capacity(watched.stretches.len() + 8);
    let mut block = 0;
    for range in ranges {
        while watched.blocks.get(block).is_some_and(|b| b.addr + BLOCK_SIZE <= range.start) {
            block += 1;
        }
        let parts = parts(watched, &mut block, *range, now, tuning);
        let known = &watched.stretches;
        let pieces: Vec<Piece> = parts
            .iter()
            .map(|part| Piece { word: part.word, price: price(known, part.range.start, tuning) })
            .collect();
        let rungs = segment(&pieces, tuning);
        let walls = walls(known, &parts, &rungs, now);
        join(&parts, &rungs, &walls, &mut stretches, tuning);
    }
    carry(&watched.stretches, &mut stretches, now, tuning);
    keep_apart(&mut stretches, now, tuning);
    stretches
}

/// Indices, in order, of the parts at which a stretch begins although its rate is that of the one before, because not long ago it was not.
///
/// Two rates that come near each other by chance would be drawn as one, and then take seconds to be told apart again. Told apart
/// they cost a few checks.
fn walls(known: &[Stretch], parts: &[Part<'_>], rungs: &[u8], now: u64) -> Vec<usize> {
    let mut walls = Vec::new();
    for stretch in known.iter().filter(|s| s.apart_until > now) {
        let at = stretch.range.start;
        let index = parts.partition_point(|p| p.range.start + CELL_SIZE / 2 < at);
        let Some(part) = parts.get(index).filter(|p| p.range.start.abs_diff(at) <= CELL_SIZE / 2) else {
            continue;
        };
        // Where rates change nearby, that is where they do.
        let around =
            |i: &usize| parts.get(*i).is_some_and(|p| p.range.start.abs_diff(part.range.start) <= BLOCK_SIZE);
        let before = (0..index).rev().take_while(around).last().unwrap_or(index);
        let after = (index..parts.len()).take_while(around).last().unwrap_or(index);
        let near = rungs.get(before..=after).unwrap_or_default();
        if index > 0 && near.iter().all(|r| near.first() == Some(r)) && near.len() > 1 {
            walls.push(index);
        }
    }
    walls
}

/// Notes which stretches are to stay apart.
fn keep_apart(stretches: &mut [Stretch], now: u64, tuning: &Tuning) {
    let counts = |s: &Stretch| s.rate() > tuning.active && s.range.size() >= BLOCK_SIZE && s.own > 0;
    let mut before: Option<Stretch> = None;
    for stretch in stretches {
        if let Some(before) = before.filter(|b| b.range.end == stretch.range.start && counts(b))
            && counts(stretch)
            && rung_of(before.rate()) != rung_of(stretch.rate())
        {
            stretch.apart_until = now + tuning.apart_for;
        }
        before = Some(*stretch);
    }
}

fn price(known: &[Stretch], at: u64, tuning: &Tuning) -> f32 {
    let next = known.partition_point(|s| s.range.start + CELL_SIZE / 2 < at);
    let near = known.get(next).is_some_and(|s| s.range.start.abs_diff(at) <= CELL_SIZE / 2);
    if near { tuning.price_known } else { tuning.price }
}

/// What is added up of the parts of a stretch, beside what is kept of it.
#[derive(Clone, Copy, Debug, Default)]
struct Joined {
    /// What cells with a border in them know is of both sides, it counts only where nothing else is known: how much, of how many cells,
    /// and as `bounds`.
    half: Sum,
    half_cells: u32,
    half_bounds: Bounds,
    /// Bytes in which nothing is present.
    nothing: u64,
    /// Cells that the evidence is of.
    weight: f32,
    /// Pages there that lie past the focus of the last cell.
    tail: u32,
    /// Pages of those cells of which it is known which are accessed, and those that are.
    sorted: (u32, u32),
    bounds: Bounds,
    /// Some of it was not looked at yet: nobody knows whether anything is there.
    unlooked: bool,
}

/// Hits that tell only that the rate is no less, and all of them, one a cell at most.
#[derive(Clone, Copy, Debug, Default)]
struct Bounds {
    of_bounds: f32,
    hits: f32,
}

impl Bounds {
    fn add(&mut self, part: &Part<'_>) {
        let hits = part.evidence.hits.min(1.0) * part.weight();
        self.of_bounds += if part.own.is_some_and(|e| e.floor) { hits } else { 0.0 };
        self.hits += hits;
    }

    /// A few cells of which no more is known do not make a bound of what was measured of the others: the next check that is accessed
    /// by chance would be taken for a higher one, and for the rate of all of it. Nor does one that was measured for long of all bounds.
    fn are_most(self) -> bool {
        2.0 * self.of_bounds > self.hits
    }
}

/// Joins parts of one rung to stretches, and draws the borders between stretches to the page.
fn join(parts: &[Part<'_>], rungs: &[u8], walls: &[usize], stretches: &mut Vec<Stretch>, tuning: &Tuning) {
    let first = stretches.len();
    let mut previous: Option<(usize, u8)> = None;
    let mut all: Vec<Joined> = Vec::new();
    for (index, (part, &rung)) in parts.iter().zip(rungs).enumerate() {
        let is_wall = walls.binary_search(&index).is_ok();
        let fresh = is_wall || previous.is_none_or(|(_, r)| r != rung);
        if fresh {
            let mut start = part.range.start;
            if let Some((before, other)) = previous
                && let Some(left) = parts.get(before)
            {
                start = if is_wall { part.range.start } else { border(left, part, other < rung) };
                if let Some((stretch, joined)) = stretches.last_mut().zip(all.last_mut()) {
                    if stretch.range.end != start {
                        (stretch.tail, joined.tail) = (0, 0);
                    }
                    stretch.range.end = start;
                }
            }
            // What one cell has to say is not said of all that is not known around it.
            let known = usize::from(rung) != UNKNOWN;
            let range = AddrRange::new(start, part.range.end);
            stretches.push(Stretch { range, known, ..Stretch::default() });
            all.push(Joined::default());
        }
        if let Some((stretch, joined)) = stretches.last_mut().zip(all.last_mut()) {
            add(part, stretch, joined);
        }
        previous = Some((index, rung));
    }
    for (stretch, joined) in stretches.iter_mut().skip(first).zip(all) {
        conclude(stretch, joined, tuning);
    }
    // A border drawn to the page may leave nothing of a stretch of one cell.
    let kept = stretches.split_off(first);
    stretches.extend(kept.into_iter().filter(|s| !s.range.is_empty()));
}

/// Adds a part to the stretch that it is of.
fn add(part: &Part<'_>, stretch: &mut Stretch, joined: &mut Joined) {
    joined.nothing += if part.absent { part.range.size() } else { 0 };
    joined.unlooked |= part.unlooked;
    let half = part.word == Word::None;
    if half {
        joined.half.add(part.evidence);
        joined.half_bounds.add(part);
        joined.half_cells += if part.seen { part.cells } else { 0 };
    }
    stretch.range.end = part.range.end;
    stretch.resident += part.resident;
    let pages = (part.resident / PAGE_SIZE) as u32;
    stretch.pages += pages;
    stretch.focus += part.focus.map_or(pages, u64::count_ones);
    if let Some(cell) = part.cell.filter(|_| !half && part.seen)
        && let Some(some) = cell.focus.sorted(cell.present)
    {
        joined.sorted.0 += cell.present.count_ones();
        joined.sorted.1 += some.count_ones();
    }
    // A cell that is cut by the range's end has no pages beside its focus to draw.
    let whole = part.cell.filter(|_| part.range.size() == CELL_SIZE);
    let edge = whole.zip(part.focus);
    if stretch.range.start == part.range.start
        && let Some((cell, focus)) = edge
    {
        let lead = focus.trailing_zeros();
        stretch.lead = lead as u8;
        let before = (cell.present & ((1 << lead) - 1)).count_ones();
        stretch.pages -= before;
        joined.sorted.0 = joined.sorted.0.saturating_sub(before);
    }
    let tail = edge.map_or(0, |(_, focus)| focus.leading_zeros());
    stretch.tail = tail as u8;
    joined.tail = edge.map_or(0, |(cell, _)| (cell.present & !(u64::MAX >> tail)).count_ones());
    if !part.absent && !half {
        joined.bounds.add(part);
        stretch.evidence.hits += part.evidence.hits * part.weight();
        stretch.evidence.exposure += part.evidence.exposure * part.weight();
        if part.seen {
            joined.weight += part.weight() * part.cells as f32;
            stretch.seen += part.cells;
        }
    }
    stretch.own += if part.shared || part.absent || part.unlooked { 0 } else { part.cells };
    stretch.blind += if part.blind { part.cells } else { 0 };
}

/// What all that was added up comes to.
fn conclude(stretch: &mut Stretch, mut joined: Joined, tuning: &Tuning) {
    if stretch.seen == 0 {
        stretch.evidence.hits += joined.half.hits;
        stretch.evidence.exposure += joined.half.exposure;
        (joined.bounds, joined.weight) = (joined.half_bounds, joined.half_cells as f32);
        stretch.seen = joined.half_cells;
    }
    stretch.evidence.floor = joined.bounds.are_most();
    // What is not present was not accessed: that is known too.
    let absent = stretch.resident == 0 && stretch.blind == 0 && !joined.unlooked;
    let evidence = &mut stretch.evidence;
    // Of few pages of a cell it is as much as of all.
    let cells = if joined.weight > 0.0 { joined.weight } else { stretch.seen.max(1) as f32 };
    let of_all = stretch.seen.max(1) as f32 / cells;
    let enough =
        evidence.hits * of_all >= tuning.known_hits || evidence.exposure * of_all >= tuning.known_exposure;
    stretch.known = absent || stretch.known && stretch.seen > 0 && enough;
    let present = stretch.range.size().saturating_sub(joined.nothing).max(PAGE_SIZE);
    stretch.nothing = if joined.nothing / tuning.mostly.max(1) > present && !absent {
        (joined.nothing / present) as f32
    } else {
        0.0
    };
    (evidence.hits, evidence.exposure) = (evidence.hits / cells, evidence.exposure / cells);
    stretch.pages = stretch.pages.saturating_sub(joined.tail).max(stretch.focus);
    let (of, accessed) = joined.sorted;
    let of = of.saturating_sub(joined.tail).max(accessed);
    stretch.idle = if of > 0 { 1.0 - accessed as f32 / of as f32 } else { 0.0 };
    if absent {
        stretch.seen = stretch.seen.max(1);
    }
}

/// The border between two neighbouring parts, of which the right one is `hotter` or colder: drawn into the cell on either
/// side as far as its last window says so.
fn border(left: &Part<'_>, right: &Part<'_>, hotter: bool) -> u64 {
    let at = right.range.start;
    let whole = |part: &Part<'_>| part.range.size() == CELL_SIZE;
    // Pages of the left cell that belong to the right.
    let over = left
        .cell
        .filter(|_| whole(left) && left.focus.is_none())
        .and_then(|cell| step_at(cell).map(|step| 64 - step).filter(|_| (cell.shown >> 63 != 0) == hotter));
    if let Some(pages) = over {
        return at - u64::from(pages) * PAGE_SIZE;
    }
    let under = right
        .cell
        .filter(|_| whole(right) && right.focus.is_none())
        .and_then(|cell| step_at(cell).filter(|_| (cell.shown & 1 != 0) != hotter));
    at + u64::from(under.unwrap_or(0)) * PAGE_SIZE
}

/// Whether seven eighths of `part` are the other's.
fn is_of(part: AddrRange, whole: AddrRange) -> bool {
    8 * part.intersection(whole).size() >= 7 * part.size()
}

/// What is remembered of stretches beside their evidence passes to those that lie where they lay.
fn carry(old: &[Stretch], new: &mut [Stretch], now: u64, tuning: &Tuning) {
    for stretch in new {
        let middle = stretch.range.start.midpoint(stretch.range.end);
        let at = old.partition_point(|s| s.range.end <= middle);
        if let Some(before) = old.get(at).filter(|s| s.range.contains(middle)) {
            stretch.checked = before.checked;
            stretch.suspect = before.suspect;
            // Cut in two it is not twice as much: what is most of it has it. Of a small part it may be that none of it was checked.
            let is_most = 2 * stretch.range.intersection(before.range).size() > before.range.size();
            stretch.silent = if is_most { before.silent } else { 0 };
            (stretch.silent_at, stretch.heard, stretch.doubted) =
                (before.silent_at, before.heard, before.doubted);
            stretch.places = before.places;
            if stretch.range == before.range {
                stretch.evidence.luck = before.evidence.luck;
            }
            // Of few cells each check tells much of all. A part that is accessed about as often is taken to be accessed with the rest
            // of it.
            if is_of(stretch.range, before.range) && stretch.own >= tuning.settled_cells {
                stretch.evidence.deepen(&before.evidence, now, tuning);
            }
            // As large a part of what stands behind it now as it was of what did.
            let kept = stretch.evidence.exposure / before.evidence.exposure.max(1.0);
            stretch.missed = if is_most { before.missed * kept.min(1.0) } else { 0.0 };
        }
        stretch.places = stretch.places.carried_to(stretch.range);
        let near = old.partition_point(|s| s.range.start + CELL_SIZE / 2 < stretch.range.start);
        if let Some(before) =
            old.get(near).filter(|s| s.range.start.abs_diff(stretch.range.start) <= CELL_SIZE / 2)
        {
            stretch.apart_until = before.apart_until;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::cell::{Cell, State};
    use super::super::target::{Block, CELLS};
    use super::*;

    /// 64 MiB that appeared and of which nothing was heard since, but for one cell.
    fn one_cell_of_many(own: Cell) -> Vec<Stretch> {
        let mut watched = Watched::default();
        let (present, state) = (u64::MAX, State::Unseen);
        let quiet = Cell { present, state, was_new: true, tried: present, shown: present, ..Cell::default() };
        for block in 0..32 {
            let mut block = Block::new(block * BLOCK_SIZE, Some(1));
            (block.cells, block.unlooked) = ([quiet; CELLS], false);
            watched.blocks.push(block);
        }
        if let Some(block) = watched.blocks.get_mut(16) {
            block.cells[3] = own;
        }
        draw(&watched, &[AddrRange::new(0, 32 * BLOCK_SIZE)], 1000, &super::super::tuning::AT_5_MS)
    }

    #[test]
    fn one_cell_does_not_speak_for_all_that_is_unknown_around_it() {
        // 5 Hz, from hardly half a hit: not enough to be a stretch of its own.
        let evidence = Evidence::of(0.42, 16.0, false, 990);
        let own = Cell { present: u64::MAX, state: State::Lit, evidence, ..Cell::default() };
        let stretches = one_cell_of_many(own);
        let known: u64 = stretches.iter().filter(|s| s.known).map(|s| s.range.size()).sum();
        assert!(known <= CELL_SIZE, "{} KiB of it are known: {stretches:?}", known >> 10);
        // What is surely hot is.
        let evidence = Evidence::of(10.0, 16.0, false, 990);
        let own = Cell { present: u64::MAX, state: State::Lit, evidence, ..Cell::default() };
        let stretches = one_cell_of_many(own);
        let known: u64 = stretches.iter().filter(|s| s.known).map(|s| s.range.size()).sum();
        assert_eq!(known, CELL_SIZE, "{stretches:?}");
    }

    /// As the memory in use of a small process, beside arenas that were seen to be idle.
    #[test]
    fn four_megabytes_of_which_nothing_was_seen_are_not_told_as_what_lies_beside_them() {
        let idle = Cell {
            present: u64::MAX,
            window: u64::MAX,
            state: State::Watching { since: 0, due: 0, doubtful_until: 0 },
            evidence: Evidence::of(0.0, 300.0, false, 990),
            ..Cell::default()
        };
        let untried = Cell { present: u64::MAX, state: State::Unseen, ..Cell::default() };
        let known = |first: u64, count: u64| {
            let mut watched = Watched::default();
            for at in 0..12 {
                let mut block = Block::new(at * BLOCK_SIZE, None);
                let cell = if (first..first + count).contains(&at) { untried } else { idle };
                (block.cells, block.unlooked) = ([cell; CELLS], false);
                watched.blocks.push(block);
            }
            let drawn =
                draw(&watched, &[AddrRange::new(0, 12 * BLOCK_SIZE)], 1000, &super::super::tuning::AT_5_MS);
            drawn.iter().filter(|s| s.known).map(|s| s.range.size() / BLOCK_SIZE).sum::<u64>()
        };
        assert_eq!([known(0, 2), known(5, 2), known(10, 2)], [10, 10, 10]);
        assert_eq!(known(5, 4), 8);
    }

    #[test]
    fn what_was_not_looked_at_yet_is_not_taken_for_memory_that_is_not_there() {
        let idle = Cell {
            present: u64::MAX,
            window: u64::MAX,
            state: State::Watching { since: 0, due: 0, doubtful_until: 0 },
            evidence: Evidence::of(0.0, 5000.0, false, 990),
            ..Cell::default()
        };
        // 64 MiB that are idle, a hole, and 4 MiB of which it is known only that there may be something.
        let mut watched = Watched::default();
        for at in (0..32).chain(40..42) {
            let mut block = Block::new(at * BLOCK_SIZE, None);
            if at < 32 {
                (block.cells, block.unlooked) = ([idle; CELLS], false);
            }
            watched.blocks.push(block);
        }
        let range = |from: u64, to: u64| AddrRange::new(from * BLOCK_SIZE, to * BLOCK_SIZE);
        let tuning = &super::super::tuning::AT_5_MS;
        let drawn = draw(&watched, &[range(0, 64)], 1000, tuning);
        let known = |of: AddrRange| drawn.iter().any(|s| s.known && s.range.intersects(of));
        assert!(!known(range(40, 42)) && known(range(0, 32)) && known(range(42, 64)), "{drawn:?}");
        // Once it was, nothing is there.
        watched.blocks.iter_mut().for_each(|block| block.unlooked = false);
        assert!(draw(&watched, &[range(0, 64)], 1000, tuning).iter().all(|s| s.known));
        // Alone, too.
        let mut watched = Watched::default();
        watched.blocks.push(Block::new(0, None));
        assert!(draw(&watched, &[range(0, 1)], 1000, tuning).iter().all(|s| !s.known && s.seen == 0));
    }

    /// Whether what is known of 2 MiB, so many cells of which with this evidence are bounds and the others measured, is a bound.
    fn is_bound(bounds: usize, bound: Evidence, measured: Evidence) -> bool {
        let mut watched = Watched::default();
        let lit = |evidence| Cell { present: u64::MAX, state: State::Lit, evidence, ..Cell::default() };
        let mut block = Block::new(0, Some(1));
        (block.cells, block.unlooked) = ([lit(measured); CELLS], false);
        block.cells[..bounds].fill(lit(bound));
        watched.blocks.push(block);
        let drawn = draw(&watched, &[AddrRange::new(0, BLOCK_SIZE)], 1000, &super::super::tuning::AT_5_MS);
        assert_eq!(drawn.len(), 1, "{drawn:?}");
        drawn[0].evidence.floor
    }

    #[test]
    fn a_stretch_is_known_by_a_bound_if_most_of_its_cells_are() {
        let of = |hits: f32, floor| Evidence::of(hits, hits * 20.0, floor, 990);
        assert!(!is_bound(1, of(1.0, true), of(1.0, false)));
        assert!(!is_bound(3, of(1.0, true), of(1.0, false)) && is_bound(5, of(1.0, true), of(1.0, false)));
        // However much one of them knows.
        assert!(!is_bound(1, of(16.0, true), of(1.0, false)));
        assert!(is_bound(7, of(0.4, true), of(16.0, false)));
    }
}

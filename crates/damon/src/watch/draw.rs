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

/// Joins parts of one rung to stretches, and draws the borders between stretches to the page.
fn join(parts: &[Part<'_>], rungs: &[u8], walls: &[usize], stretches: &mut Vec<Stretch>, tuning: &Tuning) {
    let first = stretches.len();
    let mut previous: Option<(usize, u8)> = None;
    // What cells with a border in them know is of both sides: it counts only where nothing else is known.
    let mut halves: Vec<(Sum, u32, (f32, f32))> = Vec::new();
    // Bytes of each in which nothing is present.
    let mut nothing: Vec<u64> = Vec::new();
    // Cells that the evidence of each is of.
    let mut weights: Vec<f32> = Vec::new();
    // Pages there that lie past the focus of the last cell of each.
    let mut tails: Vec<u32> = Vec::new();
    // Pages of those cells of each of which it is known which are accessed, and those that are.
    let mut sorted: Vec<(u32, u32)> = Vec::new();
    // Hits of each that tell only that the rate is no less, and all of them, one a cell at most.
    let mut bounds: Vec<(f32, f32)> = Vec::new();
    for (index, (part, &rung)) in parts.iter().zip(rungs).enumerate() {
        let is_wall = walls.binary_search(&index).is_ok();
        let fresh = is_wall || previous.is_none_or(|(_, r)| r != rung);
        if fresh {
            let mut start = part.range.start;
            if let Some((before, other)) = previous
                && let Some(left) = parts.get(before)
            {
                start = if is_wall { part.range.start } else { border(left, part, other < rung) };
                if let Some(stretch) = stretches.last_mut() {
                    if stretch.range.end != start {
                        stretch.tail = 0;
                        tails.last_mut().into_iter().for_each(|pages| *pages = 0);
                    }
                    stretch.range.end = start;
                }
            }
            // What one cell has to say is not said of all that is not known around it.
            let known = usize::from(rung) != UNKNOWN;
            let range = AddrRange::new(start, part.range.end);
            stretches.push(Stretch { range, known, ..Stretch::default() });
            halves.push((Sum::default(), 0, (0.0, 0.0)));
            nothing.push(0);
            weights.push(0.0);
            tails.push(0);
            sorted.push((0, 0));
            bounds.push((0.0, 0.0));
        }
        if part.absent
            && let Some(bytes) = nothing.last_mut()
        {
            *bytes += part.range.size();
        }
        let half = part.word == Word::None;
        let is_bound = part.own.is_some_and(|e| e.floor);
        let hits = part.evidence.hits.min(1.0) * part.weight();
        let of_bounds = if is_bound { hits } else { 0.0 };
        if half && let Some((sum, cells, bounds)) = halves.last_mut() {
            sum.add(part.evidence);
            *bounds = (bounds.0 + of_bounds, bounds.1 + hits);
            *cells += if part.seen { part.cells } else { 0 };
        }
        if let Some(stretch) = stretches.last_mut() {
            stretch.range.end = part.range.end;
            stretch.resident += part.resident;
            let pages = (part.resident / PAGE_SIZE) as u32;
            stretch.pages += pages;
            stretch.focus += part.focus.map_or(pages, u64::count_ones);
            if let Some((of, accessed)) = sorted.last_mut()
                && let Some(cell) = part.cell.filter(|_| !half && part.seen)
                && let Some(some) = cell.focus.sorted(cell.present)
            {
                *of += cell.present.count_ones();
                *accessed += some.count_ones();
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
                sorted.last_mut().into_iter().for_each(|(of, _)| *of = of.saturating_sub(before));
            }
            let tail = edge.map_or(0, |(_, focus)| focus.leading_zeros());
            stretch.tail = tail as u8;
            if let Some(pages) = tails.last_mut() {
                *pages = edge.map_or(0, |(cell, _)| (cell.present & !(u64::MAX >> tail)).count_ones());
            }
            if part.seen
                && !part.absent
                && !half
                && let Some(sum) = weights.last_mut()
            {
                *sum += part.weight() * part.cells as f32;
            }
            if !part.absent && !half {
                if let Some(bounds) = bounds.last_mut() {
                    *bounds = (bounds.0 + of_bounds, bounds.1 + hits);
                }
                stretch.evidence.hits += part.evidence.hits * part.weight();
                stretch.evidence.exposure += part.evidence.exposure * part.weight();
            }
            stretch.seen += if part.seen && !part.absent && !half { part.cells } else { 0 };
            stretch.own += if part.shared || part.absent { 0 } else { part.cells };
            stretch.blind += if part.blind { part.cells } else { 0 };
        }
        previous = Some((index, rung));
    }
    let sums = halves.into_iter().zip(nothing).zip(weights.into_iter().zip(tails.into_iter().zip(sorted)));
    for (
        (stretch, mut bounds),
        (((half, cells, half_bounds), nothing), (mut weight, (tail, (of, accessed)))),
    ) in stretches.iter_mut().skip(first).zip(bounds).zip(sums)
    {
        if stretch.seen == 0 {
            stretch.evidence.hits += half.hits;
            stretch.evidence.exposure += half.exposure;
            bounds = half_bounds;
            (stretch.seen, weight) = (cells, cells as f32);
        }
        // A few cells of which no more is known do not make a bound of what was measured of the others: the next check that is accessed
        // by chance would be taken for a higher one, and for the rate of all of it. Nor does one that was measured for long of all bounds.
        let (of_bounds, hits) = bounds;
        stretch.evidence.floor = 2.0 * of_bounds > hits;
        // What is not present was not accessed: that is known too.
        let absent = stretch.resident == 0 && stretch.blind == 0;
        let evidence = &mut stretch.evidence;
        // Of few pages of a cell it is as much as of all.
        let cells = if weight > 0.0 { weight } else { stretch.seen.max(1) as f32 };
        let of_all = stretch.seen.max(1) as f32 / cells;
        let enough = evidence.hits * of_all >= tuning.known_hits
            || evidence.exposure * of_all >= tuning.known_exposure;
        stretch.known = absent || stretch.known && stretch.seen > 0 && enough;
        let present = stretch.range.size().saturating_sub(nothing).max(PAGE_SIZE);
        stretch.nothing = if nothing / tuning.mostly.max(1) > present && !absent {
            (nothing / present) as f32
        } else {
            0.0
        };
        (evidence.hits, evidence.exposure) = (evidence.hits / cells, evidence.exposure / cells);
        stretch.pages = stretch.pages.saturating_sub(tail).max(stretch.focus);
        let of = of.saturating_sub(tail).max(accessed);
        stretch.idle = if of > 0 { 1.0 - accessed as f32 / of as f32 } else { 0.0 };
        if absent {
            stretch.seen = stretch.seen.max(1);
        }
    }
    // A border drawn to the page may leave nothing of a stretch of one cell.
    let kept = stretches.split_off(first);
    stretches.extend(kept.into_iter().filter(|s| !s.range.is_empty()));
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
    use super::super::target::Block;
    use super::*;

    /// 64 MiB that appeared and of which nothing was heard since, but for one cell.
    fn one_cell_of_many(own: Cell) -> Vec<Stretch> {
        let mut watched = Watched::default();
        let (present, state) = (u64::MAX, State::Unseen);
        let quiet = Cell { present, state, was_new: true, tried: present, shown: present, ..Cell::default() };
        for block in 0..32 {
            let mut block = Block::new(block * BLOCK_SIZE, Some(1));
            block.cells.fill(quiet);
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

    /// Whether what is known of 2 MiB, so many cells of which with this evidence are bounds and the others measured, is a bound.
    fn is_bound(bounds: usize, bound: Evidence, measured: Evidence) -> bool {
        let mut watched = Watched::default();
        let lit = |evidence| Cell { present: u64::MAX, state: State::Lit, evidence, ..Cell::default() };
        let mut block = Block::new(0, Some(1));
        block.cells.fill(lit(measured));
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

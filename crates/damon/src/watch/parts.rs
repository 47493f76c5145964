//! What is known of an address space, piece by piece in order: cells, and long runs of them that are alike, with what each has to say
//! of where rates change ([`super::segment`]).

use super::cell::{Cell, State};
use super::evidence::{Evidence, tells};
use super::segment::Word;
use super::target::{Block, CELL_SIZE, Watched};
use super::tuning::Tuning;
use crate::{AddrRange, BLOCK_SIZE, PAGE_SIZE};
use alloc::vec::Vec;

/// A piece of address space that is drawn as one: cells alike, or nothing present.
pub(super) struct Part<'a> {
    pub range: AddrRange,
    pub word: Word,
    pub evidence: Sum,
    pub cells: u32,
    pub resident: u64,
    pub blind: bool,
    /// It takes a sweep to clear it.
    pub shared: bool,
    pub seen: bool,
    /// Nothing is present: not accessed, but no part of what is.
    pub absent: bool,
    /// It was not looked at yet.
    pub unlooked: bool,
    /// What its one cell knows.
    pub own: Option<Evidence>,
    /// Its one cell, if it is of small pages: it has pages to draw a border between.
    pub cell: Option<&'a Cell>,
    /// Pages of its one cell that its evidence is of, if those are not all.
    pub focus: Option<u64>,
}

impl Part<'_> {
    /// The share of its pages that its evidence is of.
    pub fn weight(&self) -> f32 {
        self.focus
            .map_or(1.0, |pages| pages.count_ones() as f32 / ((self.resident / PAGE_SIZE) as f32).max(1.0))
    }
}

/// Evidence of several cells, which need not be of one rate.
///
/// Their mean rate is not that of all hits and all exposure: cells that are idle gather exposure for as long as they are, those
/// that are accessed stop when they are. So none weighs more than [`Tuning::weight`]; what is less weighs what it is, as the rate of a
/// cell that was hit early is more chance than knowledge.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sum {
    pub hits: f32,
    pub exposure: f32,
}

impl Sum {
    fn of(hits: f32, exposure: f32, tuning: &Tuning) -> Self {
        let (hits, exposure) = at_most(tuning.weight, hits, exposure);
        Self { hits, exposure }
    }

    pub fn add(&mut self, other: Self) {
        self.hits += other.hits;
        self.exposure += other.exposure;
    }
}

/// The same rate with at most so much exposure, and no less of it than hits.
fn at_most(most: f32, hits: f32, exposure: f32) -> (f32, f32) {
    let kept = if exposure > most { most / exposure } else { 1.0 };
    (hits * kept, (exposure * kept).max(hits * kept))
}

/// Bytes present in a range, by `blocks` in order of their addresses.
pub(super) fn present(blocks: &[Block], range: AddrRange) -> u64 {
    let first = blocks.partition_point(|block| block.addr + BLOCK_SIZE <= range.start);
    let blocks = blocks.get(first..).unwrap_or_default().iter();
    let looked = blocks.take_while(|block| block.addr < range.end).filter(|block| !block.unlooked);
    looked
        .flat_map(Block::parts)
        .map(|(addr, size, cell)| {
            let inside = AddrRange::new(addr, addr + size).intersection(range);
            if inside.size() == size {
                (u64::from(cell.present.count_ones()) * if size == CELL_SIZE { PAGE_SIZE } else { size })
                    .min(size)
            } else if inside.is_empty() {
                0
            } else if size == CELL_SIZE {
                let (from, pages) = ((inside.start - addr) / PAGE_SIZE, inside.size() / PAGE_SIZE);
                let these = if pages < 64 { ((1 << pages) - 1) << from } else { u64::MAX };
                u64::from((cell.present & these).count_ones()) * PAGE_SIZE
            } else if cell.present != 0 {
                inside.size()
            } else {
                0
            }
        })
        .sum()
}

/// The range's parts in order, without a gap between them.
pub(super) fn parts<'a>(
    watched: &'a Watched,
    next: &mut usize,
    range: AddrRange,
    now: u64,
    tuning: &Tuning,
) -> Vec<Part<'a>> {
    let mut parts: Vec<Part<'a>> = Vec::new();
    let mut at = range.start;
    while let Some(block) = watched.blocks.get(*next).filter(|b| b.addr < range.end) {
        if block.addr > at {
            parts.push(absent(AddrRange::new(at, block.addr), tuning));
        }
        if block.unlooked {
            let piece = AddrRange::new(block.addr, block.addr + BLOCK_SIZE).intersection(range);
            at = piece.end;
            push(&mut parts, unlooked(piece));
        }
        for (addr, size, cell) in block.parts().filter(|_| !block.unlooked) {
            let piece = AddrRange::new(addr, addr + size).intersection(range);
            if piece.is_empty() {
                continue;
            }
            at = piece.end;
            push(&mut parts, part_of(cell, piece, size, now, tuning));
        }
        if block.addr + BLOCK_SIZE > range.end {
            break;
        }
        *next += 1;
    }
    if at < range.end {
        parts.push(absent(AddrRange::new(at, range.end), tuning));
    }
    parts
}

/// Long stretches of idle or absent memory are one part: there is nothing to decide within them.
fn push<'a>(parts: &mut Vec<Part<'a>>, part: Part<'a>) {
    match parts.last_mut().filter(|last| alike(last, &part)) {
        Some(last) => {
            last.range.end = part.range.end;
            last.cells += part.cells;
            last.evidence.add(part.evidence);
            last.resident += part.resident;
            (last.cell, last.own) = (None, None);
            last.word = with_cells(last.word, last.cells);
        }
        None => parts.push(part),
    }
}

/// Of a block that was not looked at yet: it may be in use, and it may not be there at all.
fn unlooked(range: AddrRange) -> Part<'static> {
    let cells = (range.size() / CELL_SIZE).max(1) as u32;
    Part {
        range,
        word: Word::Unknown { cells: cells as f32 },
        evidence: Sum::default(),
        cells,
        resident: 0,
        blind: false,
        shared: false,
        seen: false,
        absent: false,
        unlooked: true,
        own: None,
        cell: None,
        focus: None,
    }
}

fn absent(range: AddrRange, tuning: &Tuning) -> Part<'static> {
    let cells = (range.size() / CELL_SIZE).clamp(1, 1 << 20) as u32;
    Part {
        range,
        word: Word::Seen { hits: 0.0, exposure: tuning.absent, cells: (cells as f32).min(16.0) },
        evidence: Sum::default(),
        cells,
        resident: 0,
        blind: false,
        shared: false,
        seen: true,
        absent: true,
        unlooked: false,
        own: None,
        cell: None,
        focus: None,
    }
}

fn part_of<'a>(cell: &'a Cell, range: AddrRange, size: u64, now: u64, tuning: &Tuning) -> Part<'a> {
    let small = size == CELL_SIZE;
    let page = if small { PAGE_SIZE } else { size };
    if cell.state == State::Unseen
        && !cell.is_new(now, tuning)
        && cell.evidence.exposure <= 0.0
        && !cell.shared
    {
        return Part {
            range,
            word: if cell.was_new || cell.appeared.is_some() {
                Word::Appeared { cells: 1.0 }
            } else {
                Word::Untried { cells: 1.0 }
            },
            evidence: Sum::default(),
            cells: 1,
            resident: (u64::from(cell.present.count_ones()) * page).min(size),
            blind: false,
            shared: false,
            seen: false,
            absent: false,
            unlooked: false,
            own: None,
            cell: None,
            focus: None,
        };
    }
    if matches!(cell.state, State::Watching { .. })
        && cell.evidence.hits <= 0.0
        && cell.shown == 0
        && cell.evidence.exposure > 0.0
        && !cell.is_new(now, tuning)
    {
        // Most cells of most targets are idle: of one class of exposure, so that they join.
        let exposure = match cell.evidence.exposure {
            e if e >= tuning.long_idle => tuning.long_idle,
            e if e >= 40.0 => 40.0,
            e if e >= 10.0 => 10.0,
            e => e.max(2.0),
        };
        return Part {
            range,
            word: Word::Seen { hits: 0.0, exposure, cells: 1.0 },
            evidence: Sum::of(0.0, cell.evidence.exposure, tuning),
            cells: 1,
            resident: (u64::from(cell.present.count_ones()) * page).min(size),
            blind: false,
            shared: cell.shared,
            seen: true,
            absent: false,
            unlooked: false,
            own: None,
            cell: small.then_some(cell),
            focus: None,
        };
    }
    let (hits, exposure) = cell.known(now, tuning);
    let blind = matches!(cell.state, State::Blind(_)) || cell.shared;
    let seen = tells(hits, exposure);
    let was_hit = cell.state == State::Lit && cell.evidence.hits > 0.0;
    let word = if cell.state == State::Absent {
        // Nothing there: it was not accessed, but whose neighbour it is matters more.
        Word::Seen { hits: 0.0, exposure: 10.0, cells: 1.0 }
    } else if small && cell.focus.known().is_none() && step_at(cell).is_some() {
        Word::None
    } else if seen {
        // However long ago it was heard of, it is no idle memory, with which the little that is left would go.
        let least = if was_hit { cell.evidence.hits.min(tuning.lit_hits) } else { 0.0 };
        let kept = if hits < least { hits / least } else { 1.0 };
        let (hits, exposure) = at_most(tuning.most_telling, hits / kept, exposure / kept);
        let observations =
            if hits > 0.0 { cell.observations.clamp(1, tuning.most_observations.max(1)) } else { 1 };
        Word::Seen { hits, exposure, cells: f32::from(observations) }
    } else if blind || cell.state == State::Lit {
        // It was observed, or tried, and that says nothing any more.
        Word::Unknown { cells: if was_hit { tuning.forgotten_unknown } else { 1.0 } }
    } else {
        Word::Untried { cells: 1.0 }
    };
    Part {
        range,
        word,
        evidence: if seen { Sum::of(hits, exposure, tuning) } else { Sum::default() },
        cells: 1,
        resident: (u64::from(cell.present.count_ones()) * page).min(size),
        blind: blind && !seen,
        shared: cell.shared,
        seen,
        absent: cell.state == State::Absent,
        unlooked: false,
        own: Some(cell.evidence),
        cell: small.then_some(cell),
        focus: cell
            .focus
            .known()
            .map(|pages| pages & cell.present)
            .filter(|pages| small && *pages != 0 && seen && hits > 0.0),
    }
}

fn alike(last: &Part<'_>, part: &Part<'_>) -> bool {
    if last.blind != part.blind
        || last.shared != part.shared
        || last.seen != part.seen
        || last.absent != part.absent
        || last.unlooked != part.unlooked
        || part.cell.is_some_and(|c| c.shown != 0)
    {
        return false;
    }
    match (last.word, part.word) {
        (Word::Seen { hits: a, exposure: x, .. }, Word::Seen { hits: b, exposure: y, .. }) => {
            a == 0.0 && b == 0.0 && x == y && last.cell.is_none_or(|c| c.shown == 0)
        }
        (Word::Unknown { .. }, Word::Unknown { .. })
        | (Word::Appeared { .. }, Word::Appeared { .. })
        | (Word::Untried { .. }, Word::Untried { .. }) => true,
        _ => false,
    }
}

fn with_cells(word: Word, cells: u32) -> Word {
    let cells = cells as f32;
    match word {
        Word::None => word,
        Word::Unknown { .. } => Word::Unknown { cells },
        Word::Appeared { .. } => Word::Appeared { cells },
        Word::Untried { .. } => Word::Untried { cells },
        Word::Seen { hits, exposure, .. } => Word::Seen { hits, exposure, cells },
    }
}

/// Where a cell has a single step from accessed to not accessed or back: index of the first page past it.
pub(super) fn step_at(cell: &Cell) -> Option<u32> {
    let (tried, shown) = (cell.tried, cell.shown);
    if tried != u64::MAX || shown == 0 || shown == u64::MAX {
        return None;
    }
    let changes = (shown ^ (shown >> 1)) & (u64::MAX >> 1);
    (changes.count_ones() == 1).then(|| changes.trailing_zeros() + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_present_is_counted_to_the_page() {
        let mut blocks: Vec<Block> = [0, 1, 3, 4].map(|at| Block::new(at * BLOCK_SIZE, None)).into();
        blocks.iter_mut().for_each(|block| block.unlooked = false);
        blocks[0].cells.iter_mut().for_each(|cell| cell.present = 0b1111 << 30);
        blocks[1].huge = true;
        blocks[1].cells[0].present = 1;
        blocks[2].unlooked = true;
        let count = |from: u64, to: u64| {
            present(&blocks, AddrRange::new(from * PAGE_SIZE, to * PAGE_SIZE)) / PAGE_SIZE
        };
        assert_eq!(
            (count(0, 512), count(0, 30), count(0, 32), count(32, 33), count(33, 94)),
            (32, 0, 2, 1, 1)
        );
        assert_eq!((count(0, 64), count(31, 96), count(500, 600)), (4, 5, 88));
        assert_eq!((count(512, 1024), count(1024, 3000), count(0, 3000)), (512, 0, 544));
        assert_eq!(count(7, 7), 0);
    }
}

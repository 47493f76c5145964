//! What the checks of a stretch showed, taken to be so of all of it.

use super::cell::{self, Cell, State};
use super::draw::Stretch;
use super::evidence::{Evidence, Verdict, tells};
use super::places::Checked;
use super::quiet::{Showed, find_quiet, within};
use super::target::{self, Block, CELLS, Watched};
use super::tuning::Tuning;
use crate::AddrRange;
use alloc::vec::Vec;

/// What checks showed is taken to be so of all of a stretch, unless they disagree.
pub(super) fn spread_results(target: &mut Watched, now: u64, longest: u64, tuning: &Tuning) {
    if target.results.is_empty() {
        return;
    }
    if target.theft.is_new(now, longest) {
        // What fell silent just when others began to clear bits is likelier to be in use than not.
        target.results.retain(|(_, window)| window.verdict != Verdict::Silent);
    }
    let mut changed = false;
    let mut results = core::mem::take(&mut target.results);
    results.sort_unstable_by_key(|(cell, _)| cell.start);
    let quiet = find_quiet(&mut target.stretches, &results, now, tuning);
    for (stretch, quiet) in target.stretches.iter_mut().zip(quiet) {
        let mine = within(&results, stretch.range);
        if mine.is_empty() || !stretch.is_hot(tuning) {
            continue;
        }
        if quiet {
            changed = true;
            fall_silent(stretch, &mut target.blocks, mine, now, tuning);
        }
        // Where pages that are accessed lie apart, cells of which it is not known yet which those are tell another rate: that of all
        // of their pages.
        let sparse = stretch.idle > tuning.sparse;
        let focused: Vec<(AddrRange, cell::Window)>;
        let mine = match sparse && mine.iter().any(|(_, w)| !w.is_focus) {
            true => {
                focused = mine.iter().filter(|(_, w)| w.is_focus).copied().collect();
                focused.as_slice()
            }
            false => mine,
        };
        if mine.is_empty() {
            continue;
        }
        let Showed { hits, silent } = Showed::by(mine, stretch, tuning);
        if hits > 0 {
            stretch.missed = 0.0;
        }
        let believed = stretch.evidence.rate();
        // Found accessed where that was to be expected long before, it tells nothing of the rate; beside windows that were looked at in
        // time it would stand for many intervals with one access.
        let late = |w: &cell::Window| w.share > 0.97 && believed * w.length > 1.0;
        let any_in_time = mine.iter().any(|(_, w)| w.counts && !late(w));
        let counted = || mine.iter().map(|(_, w)| w).filter(|w| w.counts && !(any_in_time && late(w)));
        // It is accessed, but far less often than was believed, or not everywhere. The time until the first access of each check, or
        // until it fell silent, tells roughly how often: what was believed stands in the way of what checks will tell.
        let total = |of: fn(&cell::Window) -> f32| mine.iter().map(|(_, w)| of(w)).sum::<f32>();
        let (shown, watched) = (total(|w| w.share), total(|w| w.length));
        let few = mine.len() <= 3 * tuning.checks_unsettled * tuning.checks_fast;
        let is_mixed = few && silent > 0 && silent <= hits && 2.0 * shown < believed * watched;
        if !is_mixed && (silent > 0 || counted().next().is_none()) {
            continue;
        }
        if is_mixed {
            stretch.evidence = Evidence { luck: 1.0, ..Evidence::of(1.0, watched / shown, false, now) };
            changed = true;
        } else {
            // Checks made at one moment meet a loop at one point: together they are one observation.
            let (share, length) = (mean(counted().map(|w| w.share)), mean(counted().map(|w| w.length)));
            let surprises = counted().filter(|w| w.verdict == Verdict::Surprise).count();
            if 2 * surprises > counted().count() {
                let mut anew = stretch.evidence;
                anew.begin(share, length, now, tuning);
                if counted().count() == 1 && !tells(anew.hits, anew.exposure) {
                    // One cell may differ from all others, and what one short window shows is too little to know them by: they are to
                    // be checked before they are taken to have changed with it.
                    stretch.suspect = true;
                } else {
                    changed = true;
                    stretch.evidence = anew;
                }
            } else if stretch.evidence.is_late(length) && counted().any(|w| w.late) {
                stretch.evidence.take_late(share, length, now, tuning);
            } else if stretch.evidence.add_in_a_row(share, length, now, tuning) == Verdict::Surprise {
                changed = true;
                stretch.places.clear();
            }
            // Each check by itself would have to be silent for longer and longer, as the rate falls with all that show nothing.
            stretch.missed += if hits > 0 { 0.0 } else { length };
            if stretch.evidence.is_over(stretch.missed, tuning) {
                // Few of its cells were watched meanwhile: the others are unknown, and to be seen.
                changed = true;
                fall_silent(stretch, &mut target.blocks, mine, now, tuning);
                continue;
            }
        }
        // So many windows are a sweep, which says nothing of where: what a loop has passed since looks like another rate than what it
        // has yet to reach.
        if mine.len() <= tuning.checks_told {
            let checked = |(cell, w): &(AddrRange, cell::Window)| Checked {
                // By its middle, as it will be told.
                at: cell.start.midpoint(cell.end),
                share: w.share,
                length: w.length,
                in_time: w.share < 0.97 || believed * w.length <= 1.0,
            };
            let checks: Vec<Checked> = mine.iter().filter(|(_, w)| w.counts).map(checked).collect();
            stretch.places.add(&checks, believed, tuning);
        }
        if let Some(split) = stretch.places.split(tuning) {
            changed = true;
            stretch.places.clear();
            stretch.split = Some(split);
        }
        // Until it is drawn anew, what checks show is of one side each: the next drawing is to find them as they are.
        let split = stretch.split;
        let evidence = stretch.evidence;
        let side = |(hits, exposure): (f32, f32)| {
            let kept = (tuning.side_hits / hits).min(tuning.most_exposure / exposure).min(1.0);
            Evidence { luck: 1.0, ..Evidence::of(hits * kept, exposure * kept, false, now) }
        };
        for_cells(&mut target.blocks, stretch.range, |addr, cell| {
            // What was seen of its cells since it was drawn may set some of them apart.
            let is_checked = is_mixed && mine.iter().any(|(checked, _)| checked.contains(addr));
            let is_of_these = !sparse || cell.focus.known().is_some();
            if is_checked || is_of_these && cell.evidence.hits > 0.0 && cell.evidence.may_be(believed, tuning)
            {
                let of = match split {
                    Some(split) if addr < split.at => side(split.left),
                    Some(split) => side(split.right),
                    None => evidence,
                };
                cell.evidence = Evidence { idle: cell.evidence.idle, ..of };
                if of.hits <= 0.0 && cell.state == State::Lit {
                    // What is thought to be idle is watched, so that it shows if it is not.
                    cell.state = State::Unseen;
                }
            }
        });
    }
    target.changed |= changed;
    results.clear();
    target.results = results;
}

/// It fell silent as a whole, as far as is known.
fn fall_silent(
    stretch: &mut Stretch,
    blocks: &mut [Block],
    checks: &[(AddrRange, cell::Window)],
    now: u64,
    tuning: &Tuning,
) {
    (stretch.suspect, stretch.missed) = (false, 0.0);
    stretch.places.clear();
    let Showed { hits, silent } = Showed::by(checks, stretch, tuning);
    let is_covered = hits == 0 && silent * tuning.checks_cover >= stretch.own as usize;
    let exposure = is_covered.then(|| mean(checks.iter().map(|(_, w)| w.length)));
    for_cells(blocks, stretch.range, |_, cell| {
        if cell.state == State::Lit {
            cell.fell_silent(exposure, now);
        }
    });
}

fn mean(values: impl Iterator<Item = f32>) -> f32 {
    let (sum, count) = values.fold((0.0, 0), |(sum, count), value| (sum + value, count + 1));
    sum / count.max(1) as f32
}

/// Calls `each` with the cells that lie in the range for the most part, and their middles.
fn for_cells(blocks: &mut [Block], range: AddrRange, mut each: impl FnMut(u64, &mut Cell)) {
    let first = blocks.partition_point(|b| b.addr + crate::BLOCK_SIZE <= range.start);
    for block in blocks.get_mut(first..).unwrap_or_default() {
        if block.addr >= range.end {
            break;
        }
        let (addr, huge) = (block.addr, block.huge);
        let (size, count) = if huge { (crate::BLOCK_SIZE, 1) } else { (target::CELL_SIZE, CELLS) };
        for (i, cell) in block.cells.iter_mut().take(count).enumerate() {
            let middle = addr + i as u64 * size + size / 2;
            if range.contains(middle) {
                each(middle, cell);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tuning::AT_5_MS as T;
    use super::target::CELL_SIZE;
    use super::*;

    /// 2 MiB of eight cells, at 0.4 accesses an interval as far as is known.
    fn hot() -> Watched {
        let known = Evidence::of(16.0, 40.0, false, 100);
        let mut block = Block::new(0, None);
        for cell in &mut block.cells {
            (cell.state, cell.present, cell.evidence) = (State::Lit, u64::MAX, known);
        }
        let range = AddrRange::new(0, CELLS as u64 * CELL_SIZE);
        let stretch = Stretch { range, evidence: known, known: true, seen: 8, own: 8, ..Stretch::default() };
        let mut target = Watched::default();
        (target.blocks, target.stretches) = (alloc::vec![block], alloc::vec![stretch]);
        target
    }

    /// One page of 32, where 12 were expected.
    const WINDOW: cell::Window = cell::Window {
        share: 1.0 / 32.0,
        length: 0.988,
        counts: true,
        is_rest: false,
        verdict: Verdict::Surprise,
        believed: 0.4,
        late: false,
        is_focus: false,
    };

    fn checks(target: &mut Watched, cells: &[u64]) {
        for cell in cells {
            let start = cell * CELL_SIZE;
            target.results.push((AddrRange::new(start, start + CELL_SIZE), WINDOW));
        }
        spread_results(target, 110, 20, &T);
    }

    /// What one short window shows is too little to know a stretch by: all of it had become unknown.
    #[test]
    fn one_cell_that_surprises_changes_no_other() {
        let mut target = hot();
        checks(&mut target, &[3]);
        assert_eq!(target.stretches[0].evidence.hits, 16.0);
        assert!(target.stretches[0].suspect, "more checks are wanted");
        assert!(target.blocks[0].cells.iter().all(|cell| cell.evidence.hits > 10.0));
    }

    /// Cells that are accessed at least somewhat more often than the mean stayed a bound for ever, whatever checks showed.
    #[test]
    fn what_checks_show_is_told_of_cells_of_which_a_bound_is_known() {
        let mut target = hot();
        let known = Evidence::of(16.0, 160.0, false, 100);
        target.stretches[0].evidence = known;
        target.blocks[0].cells[4..].iter_mut().for_each(|cell| cell.evidence = known);
        // Twice as often may be chance, four times is none.
        let other = Evidence::of(0.4, 1.0, true, 100);
        target.blocks[0].cells[..4]
            .iter_mut()
            .for_each(|cell| cell.evidence = Evidence::of(0.4, 2.0, true, 100));
        target.blocks[0].cells[4].evidence = other;
        target.results.extend((5..8).map(|cell: u64| {
            let start = cell * CELL_SIZE;
            let window = cell::Window { share: 0.0, length: 4.0, verdict: Verdict::Expected, ..WINDOW };
            (AddrRange::new(start, start + CELL_SIZE), window)
        }));
        spread_results(&mut target, 110, 20, &T);
        let cells = &target.blocks[0].cells;
        assert_eq!(cells[4].evidence, other);
        let told = |cell: &&Cell| !cell.evidence.floor && cell.evidence.rate() < 0.099;
        assert_eq!(cells.iter().filter(told).count(), 7, "{cells:?}");
    }

    #[test]
    fn several_that_surprise_do() {
        let mut target = hot();
        checks(&mut target, &[1, 3, 6]);
        assert!(target.stretches[0].evidence.rate() < 0.1);
    }
}

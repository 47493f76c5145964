//! Which pages of a range an action is for, and in which pieces: a large folio whole or not at all.

use super::tally::{LeftAlone, Reason};
use crate::frames::{Folio, flag};
use crate::pte::Inspected;
use isotherm_damon::{AddrRange, BLOCK_SIZE, PAGE_SIZE};
use std::ops::Range;

/// What may be done to folios.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    /// What was accessed since its Accessed bit was last cleared, or not long before, is left alone.
    pub young_stays: bool,
    /// What can go nowhere but to swap is left alone.
    pub no_swap: bool,
    /// Memory that several processes map is left alone.
    pub exclusive: bool,
    /// Large folios are acted on only if they are covered whole.
    pub whole_folios: bool,
    /// ... which the kernel respects also for those that are mapped page by page.
    pub keeps_large: bool,
}

/// What is to be done in a range.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Selection {
    /// Pages to act on, by their index in the range: in order, disjoint, each within one mapping. All of a run's pages that are
    /// present are meant.
    pub runs: Vec<Range<usize>>,
    /// Bytes present in those runs.
    pub present: u64,
    /// Bytes present that passed the filters, whether they can be acted on or not.
    pub passed: u64,
    /// Pages whose bits are set, where what was accessed stays: in order, disjoint, each run in one mapping.
    pub young: Vec<Range<usize>>,
    /// Bytes that passed and cannot.
    pub left: LeftAlone,
    /// A folio that begins in the range and goes on behind its end, by indices: nothing from there on was selected.
    pub cut: Option<Range<usize>>,
    /// Bytes at the start of the range that are the rest of a folio which matches from its start on: it is acted on with that.
    pub rest: u64,
}

impl Selection {
    /// What was accessed stays, and the rest of it with that.
    pub(super) fn wait(&mut self) {
        self.left.add(Reason::Young, self.present);
        (self.present, self.runs) = (0, Vec::new());
    }
}

/// How many pages around those that are looked at match as well, so that a folio may reach beyond them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Around {
    pub before: u64,
    pub behind: u64,
}

/// Pages of one folio, or one small page.
struct Unit {
    pages: Range<usize>,
    folio: Option<Folio>,
    /// All of its folio, and mapped so that the kernel sees that.
    whole: bool,
    /// So many of its folio's pages are before the first that was looked at ...
    before: u64,
    /// ... and so many behind the last: with them it would be whole.
    behind: u64,
}

fn unit_at(pages: &[Inspected], at: usize, rules: Rules) -> Unit {
    let one = |folio, whole| Unit { pages: at..at + 1, folio, whole, before: 0, behind: 0 };
    let Some(first) = pages.get(at) else { return one(None, false) };
    let Some(folio) = first.folio.filter(Folio::is_large) else { return one(first.folio, true) };
    let same = pages.iter().skip(at).zip(first.pfn..).take_while(|(page, pfn)| {
        page.present
            && page.pfn == *pfn
            && folio.contains(*pfn)
            && page.huge == first.huge
            && page.protection == first.protection
    });
    let end = at + same.count().max(1);
    let (before, count) = (first.pfn.saturating_sub(folio.head), (end - at) as u64);
    let behind = folio.frames().saturating_sub(before + count);
    let readable = first.huge || rules.keeps_large && first.young.is_some();
    let goes_on = (before == 0 || at == 0) && (behind == 0 || end == pages.len());
    let (whole, unit) =
        (readable && before + behind == 0, Unit { pages: at..end, ..one(Some(folio), false) });
    if readable && goes_on { Unit { whole, before, behind, ..unit } } else { unit }
}

/// Why a folio cannot be acted on.
fn obstacle(unit: &Unit, pages: &[Inspected], rules: Rules) -> Option<Reason> {
    let Some(folio) = unit.folio else { return Some(Reason::UnknownFolio) };
    let has = |bits: u64| folio.flags & bits != 0;
    if has(flag::HUGETLB) {
        return Some(Reason::Hugetlb);
    }
    if has(flag::ZERO_PAGE | flag::NOPAGE) {
        return Some(Reason::Device);
    }
    if has(flag::UNEVICTABLE | flag::MLOCKED) {
        return Some(Reason::Locked);
    }
    if rules.exclusive && pages.iter().any(|page| !page.exclusive) {
        return Some(Reason::Shared);
    }
    if rules.no_swap && has(flag::SWAP_BACKED) {
        return Some(Reason::NoSwap);
    }
    (rules.whole_folios && !unit.whole).then_some(Reason::PartOfFolio)
}

/// Selects among the `pages` that begin at `start`. `passes` evaluates the filters on a unit's pages, `mapping` gives the
/// mapping of an address.
pub(super) fn select(
    start: u64,
    pages: &[Inspected],
    rules: Rules,
    around: Around,
    mut passes: impl FnMut(u64, &[Inspected], Option<&Folio>) -> bool,
    mut mapping: impl FnMut(u64) -> Option<AddrRange>,
) -> Selection {
    let mut selection = Selection::default();
    let addr = |index: usize| start + index as u64 * PAGE_SIZE;
    // The mapping that was found last, and whether the last run may go on.
    let (mut area, mut open) = (AddrRange::default(), false);
    let mut at = 0;
    while let Some(page) = pages.get(at) {
        if !page.present {
            // What is absent in between costs nothing, and each run is a TLB flush.
            at += 1;
            continue;
        }
        let unit = unit_at(pages, at, rules);
        let inside = pages.get(unit.pages.clone()).unwrap_or_default();
        let bytes = inside.len() as u64 * PAGE_SIZE;
        let reaches = unit.before + unit.behind > 0;
        if reaches && rules.whole_folios && unit.before <= around.before && unit.behind <= around.behind {
            if unit.before == 0 {
                selection.cut = Some(at..unit.pages.end + unit.behind as usize);
                break;
            }
            selection.rest += bytes;
            at = unit.pages.end;
            continue;
        }
        at = unit.pages.end;
        if !passes(addr(unit.pages.start), inside, unit.folio.as_ref()) {
            open = false;
            continue;
        }
        selection.passed += bytes;
        if !area.contains(addr(unit.pages.start)) {
            area = mapping(addr(unit.pages.start)).unwrap_or_default();
            open = false;
        }
        let cut = addr(unit.pages.start) < area.start || addr(unit.pages.end) > area.end;
        let why = obstacle(&unit, inside, rules).or_else(|| {
            cut.then_some(if area.is_empty() { Reason::NewMapping } else { Reason::PartOfFolio })
        });
        if let Some(why) = why {
            selection.left.add(why, bytes);
            open = false;
            continue;
        }
        if rules.young_stays && inside.iter().any(Inspected::is_in_use) {
            selection.left.add(Reason::Young, bytes);
            let is_set = inside.iter().any(|page| page.young == Some(true));
            match selection.young.last_mut() {
                Some(last) if last.end == unit.pages.start && area.contains(addr(last.start)) && is_set => {
                    last.end = unit.pages.end;
                }
                _ if is_set => selection.young.push(unit.pages),
                _ => {}
            }
            open = false;
            continue;
        }
        selection.present += bytes;
        match selection.runs.last_mut() {
            Some(last) if open => last.end = unit.pages.end,
            _ => selection.runs.push(unit.pages),
        }
        open = true;
    }
    selection
}

/// The whole blocks within a range of pages that begins at `start`, as indices.
pub(super) fn blocks(start: u64, pages: usize) -> impl Iterator<Item = Range<usize>> {
    let block_pages = (BLOCK_SIZE / PAGE_SIZE) as usize;
    let first = ((start.next_multiple_of(BLOCK_SIZE) - start) / PAGE_SIZE) as usize;
    (first..).step_by(block_pages).map(move |at| at..at + block_pages).take_while(move |b| b.end <= pages)
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "lists of runs, of which there is one")]
mod tests;

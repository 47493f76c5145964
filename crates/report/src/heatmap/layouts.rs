//! Which memory each target had, one layout of its address space after the other.
//!
//! A process that runs another program (exec) leaves all of its memory, and that of the new program lies elsewhere. Laid
//! over each other, the two would look like one process whose heap spans what lies between the two heaps. So layouts are
//! kept apart: an area is of memory that one process had at one time.
//!
//! A layout ends where a list of mappings has none in common with the one before, by address and name. Without such lists
//! (other programs' recordings) it ends where a snapshot shares no address with all the layout had.

use crate::names::NameBook;
use isotherm_damon::{AddrRange, RegionSnapshot, Snapshot, TargetId};
use isotherm_record::Item;
use std::collections::BTreeMap;

/// Most ranges of a layout; above, those next to each other are joined.
const MAX_RANGES: usize = 64;
/// Most layouts of a target; above, the oldest goes.
const MAX_LAYOUTS: usize = 16;
/// Most targets whose layouts are kept.
const MAX_TARGETS: usize = 4096;

/// The layouts of every target: sorted, disjoint ranges of addresses.
#[derive(Clone, Debug, Default)]
pub(super) struct Layouts {
    targets: BTreeMap<u64, Target>,
}

#[derive(Clone, Debug, Default)]
struct Target {
    layouts: Vec<Vec<AddrRange>>,
    /// What comes next is a layout of its own.
    left: bool,
}

impl Layouts {
    /// Takes what an item says about mappings; `names` must know of the items before it only.
    pub fn note(&mut self, item: &Item, names: &NameBook) {
        if let Item::Mappings(new) = item
            && names.has_none_of(TargetId(new.target), &new.maps)
            && let Some(target) = self.targets.get_mut(&new.target)
        {
            target.left = true;
        }
    }

    /// Takes the regions of a snapshot, cut to what is mapped.
    #[cfg(test)]
    pub fn snapshot(&mut self, snapshot: &Snapshot, names: &NameBook) {
        let mut runs = Runs::default();
        self.piece(snapshot, names, &mut runs);
        self.end(names, runs);
    }

    /// Takes the regions of a part of a snapshot, cut to what is mapped: `runs` are those of the last target so far, which may go on. [`Self::end`] ends it.
    pub fn piece(&mut self, snapshot: &Snapshot, names: &NameBook, runs: &mut Runs) {
        for list in &snapshot.targets {
            if runs.target != Some(list.id) {
                self.take(names, runs);
                runs.target = Some(list.id);
            }
            runs.add(&list.regions);
        }
    }

    /// The snapshot is over.
    pub fn end(&mut self, names: &NameBook, mut runs: Runs) {
        self.take(names, &mut runs);
    }

    fn take(&mut self, names: &NameBook, of: &mut Runs) {
        let mut runs = std::mem::take(&mut of.runs);
        // Recordings of other programs may break the order that a snapshot promises.
        if !runs.is_sorted_by_key(|r| r.start) {
            runs.sort_by_key(|r| r.start);
        }
        let Some(id) = of.target.take().filter(|_| !runs.is_empty()) else { return };
        if self.targets.len() >= MAX_TARGETS && !self.targets.contains_key(&id.0) {
            return;
        }
        let target = self.targets.entry(id.0).or_default();
        let here = |layout: &Vec<AddrRange>| runs.iter().any(|run| touches(layout, *run));
        let elsewhere = names.time_ns(id).is_none() && !target.layouts.last().is_some_and(here);
        if std::mem::take(&mut target.left) || elsewhere || target.layouts.is_empty() {
            target.layouts.push(Vec::new());
            if target.layouts.len() > MAX_LAYOUTS {
                target.layouts.remove(0);
            }
        }
        if let Some(layout) = target.layouts.last_mut() {
            add(layout, &runs);
        }
        runs.clear();
        of.runs = runs;
    }

    /// The layouts of a target, in the order it had them; none when it is not known.
    pub fn of(&self, target: TargetId) -> &[Vec<AddrRange>] {
        self.targets.get(&target.0).map_or(&[], |t| &t.layouts)
    }
}

/// The addresses of a target's regions, those that touch joined.
#[derive(Default)]
pub(super) struct Runs {
    target: Option<TargetId>,
    runs: Vec<AddrRange>,
}

impl Runs {
    fn add(&mut self, regions: &[RegionSnapshot]) {
        for region in regions.iter().filter(|r| !r.range.is_empty()) {
            match self.runs.last_mut() {
                Some(last) if last.end >= region.range.start && last.start <= region.range.start => {
                    last.end = last.end.max(region.range.end);
                }
                _ => self.runs.push(region.range),
            }
        }
    }
}

fn touches(layout: &[AddrRange], range: AddrRange) -> bool {
    let at = layout.partition_point(|r| r.end <= range.start);
    layout.get(at).is_some_and(|r| r.start < range.end)
}

fn holds(layout: &[AddrRange], range: AddrRange) -> bool {
    let at = layout.partition_point(|r| r.end <= range.start);
    layout.get(at).is_some_and(|r| r.start <= range.start && range.end <= r.end)
}

fn add(layout: &mut Vec<AddrRange>, runs: &[AddrRange]) {
    // Nearly always nothing is new.
    if runs.iter().all(|run| holds(layout, *run)) {
        return;
    }
    layout.extend_from_slice(runs);
    layout.sort_by_key(|r| r.start);
    join(layout, 0);
    if layout.len() > MAX_RANGES {
        let mut gaps: Vec<u64> = layout.windows(2).map(|pair| pair[1].start - pair[0].end).collect();
        let excess = layout.len() - MAX_RANGES;
        let (_, widest, _) = gaps.select_nth_unstable(excess - 1);
        let widest = *widest;
        join(layout, widest);
    }
}

/// Joins what is no further apart than `gap`.
fn join(ranges: &mut Vec<AddrRange>, gap: u64) {
    ranges.dedup_by(|next, kept| {
        let near = next.start <= kept.end.saturating_add(gap);
        if near {
            kept.end = kept.end.max(next.end);
        }
        near
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic::{mapping, mappings, region, snapshot};

    fn ranges(layouts: &Layouts) -> Vec<Vec<(u64, u64)>> {
        let list = |l: &Vec<AddrRange>| l.iter().map(|r| (r.start, r.end)).collect();
        layouts.of(TargetId(1)).iter().map(list).collect()
    }

    #[test]
    fn another_layout_begins_where_nothing_of_the_last_is_left() {
        let (mut layouts, mut names) = (Layouts::default(), NameBook::default());
        let vsyscall = || mapping(900, 910, "--xp", "[vsyscall]", 0, 0);
        let heap = |start, end| mappings(1, vec![mapping(start, end, "rw-p", "[heap]", 0, 0), vsyscall()]);
        for (item, regions) in [
            (heap(10, 20), vec![region(10, 20, 1)]),
            (heap(10, 30), vec![region(10, 25, 1), region(25, 30, 1)]),
            // Another program: its memory may touch the old one's all the same.
            (heap(5, 15), vec![region(5, 15, 1)]),
            (heap(5, 25), vec![region(5, 25, 1)]),
        ] {
            layouts.note(&item, &names);
            names.note(&item);
            layouts.snapshot(&snapshot(0, 1, regions), &names);
        }
        assert_eq!(ranges(&layouts), [[(10, 30)], [(5, 25)]]);
    }

    #[test]
    fn without_mappings_addresses_tell() {
        let (mut layouts, names) = (Layouts::default(), NameBook::default());
        for regions in [
            vec![region(10, 20, 1), region(50, 60, 1)],
            vec![region(55, 80, 1)],
            vec![region(100, 110, 1)],
            vec![],
            vec![region(105, 120, 1)],
        ] {
            layouts.snapshot(&snapshot(0, 1, regions), &names);
        }
        assert_eq!(ranges(&layouts), [vec![(10, 20), (50, 80)], vec![(100, 120)]]);
    }

    #[test]
    fn few_ranges_are_kept_and_the_widest_gaps_stay() {
        let (mut layouts, names) = (Layouts::default(), NameBook::default());
        let mut regions: Vec<RegionSnapshot> = (0..500).map(|i| region(i * 10, i * 10 + 5, 1)).collect();
        regions.push(region(1 << 40, (1 << 40) + 1, 1));
        layouts.snapshot(&snapshot(0, 1, regions), &names);
        assert_eq!(ranges(&layouts), [[(0, 4995), (1 << 40, (1 << 40) + 1)]]);
    }
}

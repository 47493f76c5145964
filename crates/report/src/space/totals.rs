//! How much of a region is mapped, without going through its mappings.
//!
//! A region of a process of many mappings spans hundreds of them, and there are ten snapshots a second. Where only how much there
//! is counts, what lies before each piece, added up once for each list of mappings, answers that for any region: but for
//! the pieces at its ends, which are cut, it is a difference. Pieces of objects are found by their places, as each has its own
//! offset.

use super::Piece;
use isotherm_damon::{AddrRange, RegionSnapshot};

/// Regions of fewer pieces are gone through as quickly.
const FEW: usize = 4;

/// What lies before each piece of a target's memory.
#[derive(Clone, Debug, Default)]
pub(super) struct Totals {
    /// Bytes of all pieces before each, and of all; the same of the target's own.
    before: Vec<(u64, u64)>,
    /// The pieces that are an object's.
    objects: Vec<usize>,
}

impl Totals {
    pub(super) fn of(pieces: &[Piece]) -> Self {
        let mut before = Vec::with_capacity(pieces.len() + 1);
        let (mut all, mut own) = (0_u64, 0_u64);
        before.push((0, 0));
        for piece in pieces {
            all += piece.range.size();
            own += if piece.object.is_none() { piece.range.size() } else { 0 };
            before.push((all, own));
        }
        let objects = pieces.iter().enumerate().filter(|(_, piece)| piece.object.is_some());
        Self { before, objects: objects.map(|(at, _)| at).collect() }
    }

    /// Not of a list that was not read to its end, which names not all that is mapped.
    pub(super) fn get(&self, partial: bool) -> Option<&Self> {
        (!partial).then_some(self)
    }

    /// Hands out the mapped parts of a region as [`super::Cutter::parts`] does, but what is the target's own as one part, from
    /// the region's start. `false`: nothing was handed out, and has to be cut: the region lies in few pieces or none.
    pub(super) fn parts(
        &self,
        pieces: &[Piece],
        region: &RegionSnapshot,
        mut part: impl FnMut(RegionSnapshot, Option<(usize, u64)>),
    ) -> bool {
        let first = pieces.partition_point(|piece| piece.range.end <= region.range.start);
        let end = first
            + pieces
                .get(first..)
                .map_or(0, |rest| rest.partition_point(|p| p.range.start < region.range.end));
        if end - first < FEW {
            return false;
        }
        let (mut all, mut own) = {
            let ((all, own), (all_before, own_before)) = (self.before[end], self.before[first]);
            (all - all_before, own - own_before)
        };
        for piece in [&pieces[first], &pieces[end - 1]] {
            let outside = piece.range.size() - piece.range.intersection(region.range).size();
            all -= outside;
            own -= if piece.object.is_none() { outside } else { 0 };
        }
        let resident = |bytes: u64| {
            region.resident.map(|r| ((r as f64 * bytes as f64 / all.max(1) as f64) as u64).min(bytes))
        };
        if own > 0 {
            let range = AddrRange::new(region.range.start, region.range.start + own);
            part(RegionSnapshot { range, resident: resident(own), ..*region }, None);
        }
        let near = self.objects.partition_point(|at| *at < first);
        for at in self.objects.iter().skip(near).take_while(|at| **at < end) {
            let piece = &pieces[*at];
            let range = piece.range.intersection(region.range);
            part(
                RegionSnapshot { range, resident: resident(range.size()), ..*region },
                piece.within(range.start),
            );
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Space, is_object};
    use crate::synthetic::{mapping, mappings, region, snapshot};
    use isotherm_damon::Snapshot;
    use proptest::prelude::*;

    proptest! {
        /// As much of each region's rate as when every mapping is gone through, of a target's own and of each object.
        #[test]
        fn there_is_as_much_as_piece_by_piece(
            parts in prop::collection::vec((0..3_u64, 1..5_u64, 0..3_u64), 0..40),
            ends in prop::collection::vec(0..400_u64, 2..12),
            resident in prop::option::of(0..90_u64),
        ) {
            let (mut at, mut maps) = (0, Vec::new());
            for (gap, size, object) in parts {
                let name = if object == 0 { "" } else { "/srv/x" };
                maps.push(mapping(at + gap, at + gap + size, "rw-p", name, object, at));
                at += gap + size;
            }
            let mut ends = ends;
            ends.sort_unstable();
            ends.dedup();
            let mut regions = Vec::new();
            for (nr, pair) in ends.windows(2).enumerate() {
                let mut one = region(pair[0], pair[1], nr as u32 % 20 + 1);
                one.resident = resident.map(|r| r.min(pair[1] - pair[0]));
                regions.push(one);
            }
            let mut space = Space::default();
            space.note(&mappings(1, maps));
            let taken = snapshot(0, 1, regions);
            let (mut apart, mut added) = (Snapshot::default(), Snapshot::default());
            space.by_object(&taken, |_| true, &mut apart);
            space.amounts(&taken, |_| true, &mut added);
            let own = |of: &Snapshot, nr: u32| {
                let targets = of.targets.iter().filter(|t| !is_object(t.id));
                let regions = targets.flat_map(|t| &t.regions).filter(|r| r.nr_accesses == nr);
                regions.fold((0, 0), |(bytes, there), r| (bytes + r.range.size(), there + r.resident.unwrap_or(0)))
            };
            for nr in 1..=20 {
                let ((bytes, there), (also, there_too)) = (own(&apart, nr), own(&added, nr));
                prop_assert_eq!(bytes, also);
                // Each part is rounded down.
                prop_assert!(there <= there_too && there_too <= there + 40, "{} {}", there, there_too);
            }
            let objects = |of: &Snapshot| of.targets.iter().filter(|t| is_object(t.id)).cloned().collect::<Vec<_>>();
            prop_assert_eq!(objects(&apart), objects(&added));
        }
    }
}

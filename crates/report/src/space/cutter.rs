//! Regions cut to the mappings of their target.

use super::Piece;
use isotherm_damon::{AddrRange, PAGE_SIZE, RegionSnapshot};

/// Cuts regions, which come in order of their addresses, to a target's mappings.
pub(super) struct Cutter<'a> {
    /// None: not known, regions count whole.
    pub(super) pieces: &'a [Piece],
    pub(super) partial: bool,
    /// Where the last region began.
    pub(super) at: usize,
}

impl Cutter<'_> {
    /// The mapped parts of a region, in order, each with the object it belongs to.
    pub(super) fn parts(
        &mut self,
        region: &RegionSnapshot,
        mut part: impl FnMut(RegionSnapshot, Option<(usize, u64)>),
    ) {
        // A list that was not read to its end says nothing of what lies beyond.
        let known_to = self.pieces.last().map_or(0, |piece| piece.range.end);
        if let Some(bytes) = region.resident.filter(|_| self.partial)
            && (region.range.start + 1..region.range.end).contains(&known_to)
        {
            let before = AddrRange::new(region.range.start, known_to);
            let inside = self.pieces.iter().rev().take_while(|p| p.range.end > before.start);
            let listed: u64 = inside.map(|p| p.range.intersection(before).size()).sum();
            let there = bytes.min(listed);
            self.parts_of(&RegionSnapshot { range: before, resident: Some(there), ..*region }, &mut part);
            let beyond = AddrRange::new(known_to, region.range.end);
            let rest = RegionSnapshot { range: beyond, resident: Some(bytes - there), ..*region };
            if let Some(range) = memory_outside(&rest) {
                part(RegionSnapshot { range, ..rest }, None);
            }
            return;
        }
        self.parts_of(region, &mut part);
    }

    fn parts_of(
        &mut self,
        region: &RegionSnapshot,
        part: &mut impl FnMut(RegionSnapshot, Option<(usize, u64)>),
    ) {
        if self.pieces.is_empty() {
            // Of a list that is known to be one what is resident is counted, as beyond the end of any.
            let range = if self.partial { memory_beyond(region) } else { Some(region.range) };
            if let Some(range) = range {
                part(RegionSnapshot { range, ..*region }, None);
            }
            return;
        }
        // What is resident outside of what is listed is counted there: that tells a gap from memory.
        let partial = self.partial && region.resident.is_none();
        self.advance(region.range.start);
        let rest = self.pieces.get(self.at..).unwrap_or_default();
        // The common case: all of it lies in one piece.
        if let Some(piece) = rest.first()
            && !partial
            && piece.range.start <= region.range.start
            && region.range.end <= piece.range.end
            && !region.range.is_empty()
        {
            let resident = region.resident.map(|r| r.min(region.range.size()));
            part(RegionSnapshot { resident, ..*region }, piece.within(region.range.start));
            return;
        }
        let inside = rest.iter().take_while(|p| p.range.start < region.range.end);
        if !partial && inside.clone().next().is_none() {
            if let Some(range) = memory_outside(region) {
                part(RegionSnapshot { range, ..*region }, None);
            }
            return;
        }
        // Resident bytes are known of the whole region only: each part has its share.
        let mapped = match region.resident {
            Some(_) => inside.clone().map(|p| p.range.intersection(region.range).size()).sum(),
            None => 0,
        };
        let cut = |range: AddrRange| RegionSnapshot {
            range,
            resident: region.resident.map(|r| {
                let share = r as f64 * range.size() as f64 / mapped.max(1) as f64;
                (share as u64).min(range.size())
            }),
            ..*region
        };
        let mut at = region.range.start;
        for piece in inside {
            let range = piece.range.intersection(region.range);
            if partial {
                if piece.object.is_none() {
                    continue;
                }
                if at < range.start {
                    part(cut(AddrRange::new(at, range.start)), None);
                }
                at = range.end;
            }
            part(cut(range), piece.within(range.start));
        }
        if partial && at < region.range.end {
            part(cut(AddrRange::new(at, region.range.end)), None);
        }
    }

    /// Goes to the first piece that ends past `address`.
    fn advance(&mut self, address: u64) {
        let ends_before = |p: &Piece| p.range.end <= address;
        if self.at.checked_sub(1).and_then(|at| self.pieces.get(at)).is_some_and(|p| !ends_before(p)) {
            // Recordings of other programs may break the order that a snapshot promises.
            self.at = 0;
        }
        if self.pieces.get(self.at).is_some_and(ends_before) {
            let rest = self.pieces.get(self.at..).unwrap_or_default();
            self.at += match rest.iter().take(8).position(|p| !ends_before(p)) {
                Some(steps) => steps,
                None => rest.partition_point(ends_before),
            };
        }
    }
}

/// What counts of a region that lies outside of all mappings, if it is memory for all that, and no gap.
fn memory_outside(region: &RegionSnapshot) -> Option<AddrRange> {
    let accessed = !region.is_unknown() && (region.nr_accesses > 0 || region.nr_accesses_bp > 0);
    match region.resident {
        // It was there when it was accessed, a page at least: how much is resident is counted at another time.
        Some(0) if accessed => Some(AddrRange::new(
            region.range.start,
            region.range.end.min(region.range.start.saturating_add(PAGE_SIZE)),
        )),
        // Which of its bytes these are is not known.
        Some(bytes) => Some(AddrRange::new(
            region.range.start,
            region.range.end.min(region.range.start.saturating_add(bytes)),
        )),
        None => accessed.then_some(region.range),
    }
    .filter(|range| !range.is_empty())
}

/// The same of one for which there may be mappings that are not listed: all of it, where it is not known what is resident.
fn memory_beyond(region: &RegionSnapshot) -> Option<AddrRange> {
    if region.resident.is_some() { memory_outside(region) } else { Some(region.range) }
}

//! Closing in on a border.
//!
//! Between the last probe of one stretch and the first of the next lies a zone in which the border may be anywhere.
//! A few probes inside the zone tell which part of it to keep; repeated, the zone shrinks to nothing (or to the size
//! of a huge page, whose Accessed bit has no inside).

use super::Watched;
use super::count::Rung;
use super::probe::{Probe, State, look_period};

use crate::{AddrRange, Target};
use alloc::vec::Vec;

/// Probes in a zone at a time: three divide it by four.
const PROBES: u64 = 3;
/// Programs align what they lay out in the large, and Accessed bits of huge pages cannot be told apart any finer.
const HUGE_PAGE: u64 = 2 << 20;
/// Nats from which a page's side is clear: one side is e^3, twenty times likelier.
const CLEAR: f32 = 4.0;
/// Nats a look must yield on average for bisection to be worth it.
const TELLING: f32 = 0.1;
/// Zones closed in on at the same time, a target.
const MAX_REFINES: usize = 24;

/// A border being closed in on.
#[derive(Clone, Debug)]
pub(super) struct Refine {
    /// Where the regions meet at present.
    pub border: u64,
    /// Where the true border may be: its two ends are known to belong to either side.
    zone: AddrRange,
    left: Rung,
    right: Rung,
    pub probes: Vec<Probe>,
}

/// A border that segmentation found: the zone, and the rates on both sides.
#[derive(Clone, Copy, Debug)]
pub(super) struct Border {
    pub at: u64,
    pub zone: AddrRange,
    pub left: Rung,
    pub right: Rung,
    /// Bytes of the smaller of the two stretches.
    pub smaller: u64,
}

/// Which side of the border a page belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Left,
    Right,
}

impl Refine {
    /// Which side a probe belongs to, as soon as that is clear.
    fn side(&self, probe: &Probe) -> Option<Side> {
        if probe.state == State::Blind {
            return Some(if self.left < self.right { Side::Left } else { Side::Right });
        }
        let nats = probe.fresh.against(self.left, self.right);
        (nats.abs() >= CLEAR).then_some(if nats > 0.0 { Side::Left } else { Side::Right })
    }

    /// Whether a probe has to be cleared (again) to tell more.
    pub fn wants_clear(&self, probe: &Probe) -> bool {
        match probe.state {
            State::Unknown => true,
            State::Lit => self.side(probe).is_none(),
            State::Watching | State::Blind => false,
        }
    }

    fn place_probes(&mut self, min_region: u64) {
        let pages = self.zone.size() / min_region;
        let count = PROBES.min(pages);
        let period = look_period(self.left.max(self.right).rate());
        self.probes.clear();
        for index in 0..count {
            let addr = self.zone.start + pages * (2 * index + 1) / (2 * count) * min_region;
            self.probes.push(Probe {
                counting: true,
                run_end: u64::MAX,
                period,
                ..Probe::new(addr, min_region)
            });
        }
    }
}

/// Begins to close in on the borders that are worth it, keeping the progress on those known already.
pub(super) fn begin(watched: &mut Watched, borders: &[Border], min_region: u64) {
    let mut old = core::mem::take(&mut watched.refines);
    for border in borders {
        let (left, right) = (border.left, border.right);
        // Bisection needs sides that a few looks can tell apart, and a zone that matters.
        if left.information(right).min(right.information(left)) < TELLING
            || border.zone.size() < min_region
            || border.smaller / 256 > border.zone.size()
        {
            continue;
        }
        let known = old.iter().position(|r| r.border == border.at && (r.left > r.right) == (left > right));
        if let Some(index) = known {
            let refine = old.swap_remove(index);
            watched.refines.push(Refine { left, right, ..refine });
        } else {
            let mut refine = Refine { border: border.at, zone: border.zone, left, right, probes: Vec::new() };
            refine.place_probes(min_region);
            watched.refines.push(refine);
        }
        if watched.refines.len() == MAX_REFINES {
            break;
        }
    }
}

/// Draws conclusions from the probes looked at so far; moves the border where a zone shrank.
pub(super) fn advance(watched: &mut Watched, target: &mut Target, min_region: u64) {
    let mut kept: Vec<Probe> = Vec::new();
    let mut index = 0;
    while let Some(refine) = watched.refines.get_mut(index) {
        if refine.probes.iter().any(|p| refine.side(p).is_none()) {
            index += 1;
            continue;
        }
        shrink(refine);
        kept.append(&mut refine.probes);
        let open = refine.zone.size() >= min_region;
        let to = if open {
            refine.zone.start + refine.zone.size() / 2 / min_region * min_region
        } else {
            refine.zone.start
        };
        let from = refine.border;
        let moved = move_border(target, from, to);
        if moved {
            refine.border = to;
            if let Ok(at) = watched.borders.binary_search(&from) {
                watched.borders[at] = to;
                watched.borders.sort_unstable();
            }
        }
        if moved && open {
            refine.place_probes(min_region);
            index += 1;
        } else {
            watched.refines.swap_remove(index);
        }
    }
    if !kept.is_empty() {
        // Their runs are over; the idle ones stay as guards beside the border.
        for probe in &mut kept {
            probe.run_end = 0;
            probe.counting = probe.state == State::Watching;
        }
        watched.insert(kept);
    }
}

/// Where to draw a border that may be anywhere in `zone`: in its middle, at the start of a huge page if there is one.
pub(super) fn middle(zone: AddrRange, min_region: u64) -> u64 {
    let at = zone.start + zone.size() / 2 / min_region * min_region;
    let huge = at.next_multiple_of(HUGE_PAGE);
    if huge <= zone.end {
        huge
    } else if at & !(HUGE_PAGE - 1) >= zone.start {
        at & !(HUGE_PAGE - 1)
    } else {
        at
    }
}

/// Keeps the part of the zone between the last probe like the left side and the first unlike it.
fn shrink(refine: &mut Refine) {
    let mut start = refine.zone.start;
    let mut end = refine.zone.end;
    for probe in &refine.probes {
        if refine.side(probe) == Some(Side::Left) {
            start = probe.unit.end.clamp(refine.zone.start, refine.zone.end);
        } else {
            end = probe.unit.start.clamp(refine.zone.start, refine.zone.end);
            break;
        }
    }
    refine.zone = AddrRange::new(start, end.max(start));
}

/// Moves the border between two adjacent regions; false when there is no such border (any more).
fn move_border(target: &mut Target, from: u64, to: u64) -> bool {
    let index = target.regions.partition_point(|r| r.range.end < from);
    let Some([left, right]) = target.regions.get_mut(index..index + 2) else { return false };
    if left.range.end != from || right.range.start != from || to <= left.range.start || to >= right.range.end
    {
        return false;
    }
    left.range.end = to;
    right.range.start = to;
    true
}

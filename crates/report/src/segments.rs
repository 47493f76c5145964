//! Heat over address space in bounded memory.
//!
//! Snapshots laid over each other give ever more boundaries. A [`Segment`] is what several of them say about a stretch
//! of addresses: how many byte-seconds of it were monitored and how much heat was seen there, so that joining segments,
//! like DAMON's own merging, loses resolution but no heat: the sums stay what they were.

mod gather;
mod pile;

pub(crate) use gather::Gather;
pub(crate) use pile::Pile;

use crate::rate::{BP, RateScale};
use isotherm_damon::{AddrRange, RegionSnapshot, Snapshot, TargetId};
use std::cmp::Ordering;

/// How far apart in Hz known memory and unknown memory are taken to be, when segments have to be joined: as far as cold
/// memory and what is accessed every tenth interval of 5 ms. A guess.
const UNKNOWN_HZ: f64 = 20.0;

/// Of a stretch of which less is in memory, nobody sees anything in a picture of it all: it is as good as a gap. A guess: a row of
/// what is shown of a stretch is hardly less.
pub(crate) const SPARSE: f64 = 1.0 / 1024.0;

/// What was seen of a stretch of a target's addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Segment {
    pub target: TargetId,
    pub range: AddrRange,
    /// Bytes of it that were mapped; less than the range where segments were joined across a gap.
    pub size: f64,
    /// Monitored and known: byte-seconds. Less than size x time where a part was not mapped all the time.
    pub seen: f64,
    /// Monitored and unknown: byte-seconds.
    pub unknown: f64,
    /// Of what is unknown, what was not there for all that: byte-seconds. 0 where it is not known what was resident.
    pub absent: f64,
    /// The same of what is known.
    pub empty: f64,
    /// Access rate over what was monitored: Hz x bytes x seconds.
    pub heat: f64,
    /// Age over what was monitored: seconds x bytes x seconds.
    pub aged: f64,
}

impl Segment {
    /// Share of what was monitored that is unknown, 0..=1.
    pub fn unknown_share(&self) -> f64 {
        let all = self.seen + self.unknown;
        if all > 0.0 { self.unknown / all } else { 0.0 }
    }

    /// Share of what was monitored that was there, as far as that is known, 0..=1.
    pub fn there_share(&self) -> f64 {
        // A page of 40 TiB; less is what rounding leaves.
        const LEAST: f64 = 1e-10;
        let all = self.seen + self.unknown;
        let there = if all > 0.0 { (1.0 - (self.absent + self.empty) / all).clamp(0.0, 1.0) } else { 1.0 };
        if there < LEAST { 0.0 } else { there }
    }

    /// Share of it that was there while it was observed, 0..=1; where it never was, at any time. Before anything is known of a stretch
    /// it is not known either what of it is there.
    pub fn there_when_seen(&self) -> f64 {
        if self.seen > 0.0 { (1.0 - self.empty / self.seen).clamp(0.0, 1.0) } else { self.there_share() }
    }

    /// Share of what was there that could be observed, 0..=1; where nothing was, of what was monitored.
    pub fn seen_share(&self) -> f64 {
        let (seen, unknown) = ((self.seen - self.empty).max(0.0), (self.unknown - self.absent).max(0.0));
        if seen + unknown > 0.0 { seen / (seen + unknown) } else { 1.0 - self.unknown_share() }
    }

    /// The same where it was only told in this share of the time what is there, above 0, and had been the same in the rest, in which
    /// it was unknown what it is rather than seen.
    pub fn as_when_told(&self, share: f64) -> Self {
        let all = self.seen + self.unknown;
        let more = (((self.absent + self.empty) / share).min(all) - self.absent - self.empty).max(0.0);
        let of_unknown = more.min((self.unknown - self.absent).max(0.0));
        Self { absent: self.absent + of_unknown, empty: self.empty + more - of_unknown, ..*self }
    }

    /// Mean access rate while monitored and known, Hz.
    pub fn rate_hz(&self) -> f64 {
        if self.seen > 0.0 { self.heat / self.seen } else { 0.0 }
    }

    /// Mean age while monitored, seconds.
    pub fn age_s(&self) -> f64 {
        if self.seen > 0.0 { self.aged / self.seen } else { 0.0 }
    }

    /// Cuts at `addr`, which must lie inside: sums go with the bytes, and add up to what they were.
    fn split(&self, addr: u64) -> (Self, Self) {
        let share = (addr - self.range.start) as f64 / self.range.size().max(1) as f64;
        let left = Self {
            range: AddrRange::new(self.range.start, addr),
            size: self.size * share,
            seen: self.seen * share,
            unknown: self.unknown * share,
            absent: self.absent * share,
            empty: self.empty * share,
            heat: self.heat * share,
            aged: self.aged * share,
            ..*self
        };
        let right = Self {
            range: AddrRange::new(addr, self.range.end),
            size: self.size - left.size,
            seen: self.seen - left.seen,
            unknown: self.unknown - left.unknown,
            absent: self.absent - left.absent,
            empty: self.empty - left.empty,
            heat: self.heat - left.heat,
            aged: self.aged - left.aged,
            ..*self
        };
        (left, right)
    }

    /// Takes over the sums of `other`, and its addresses, which are the same or others.
    fn absorb(&mut self, other: &Self) {
        self.size = if self.range.intersects(other.range) {
            self.size.max(other.size)
        } else {
            self.size + other.size
        };
        self.range.start = self.range.start.min(other.range.start);
        self.range.end = self.range.end.max(other.range.end);
        self.seen += other.seen;
        self.unknown += other.unknown;
        self.absent += other.absent;
        self.empty += other.empty;
        self.heat += other.heat;
        self.aged += other.aged;
    }

    fn order(&self, other: &Self) -> Ordering {
        (self.target, self.range.start).cmp(&(other.target, other.range.start))
    }
}

/// The weight of what could not be observed and is not there, beside that of what was observed: it is known not to be accessed, and
/// the rate of its neighbours is not that of fewer bytes for it. Next to nothing, so that it shows where there is nothing else.
pub(crate) const ABSENT: f64 = 1e-6;

/// Of a region of which so many seconds could not be observed: how many of these are unknown, and how many are of what is not
/// there.
pub(crate) fn unknown_of(region: &RegionSnapshot, unseen: f64) -> (f64, f64) {
    let absent = if unseen > 0.0 { absent(region) * unseen } else { 0.0 };
    (unseen - absent, absent)
}

/// Whether it is known that as good as nothing of a region is there: idle memory beside it that is there is something else.
fn is_sparse(region: &RegionSnapshot) -> bool {
    region.resident.is_some_and(|there| (there as f64) < SPARSE * region.range.size() as f64)
}

/// Share of a region that is known not to be there.
fn absent(region: &RegionSnapshot) -> f64 {
    let size = region.range.size().max(1) as f64;
    region.resident.map_or(0.0, |bytes| 1.0 - (bytes as f64 / size).min(1.0))
}

/// Heat of `snapshot`, which stands for so many `seconds`: Hz x bytes x seconds.
pub(crate) fn heat(snapshot: &Snapshot, seconds: f64, wanted: impl Fn(TargetId) -> bool) -> f64 {
    let scale = RateScale::of(snapshot);
    let targets = snapshot.targets.iter().filter(|target| wanted(target.id));
    let known = targets.flat_map(|target| &target.regions).filter(|region| region.accesses_bp() > 0);
    let of = |region: &RegionSnapshot| {
        region.range.size() as f64 * (f64::from(region.seen_bp) / BP).min(1.0) * scale.hz(region)
    };
    known.map(of).sum::<f64>() * seconds
}

/// Replaces `out` by both lists, each sorted and disjoint, laid over each other: where both have a segment, sums add
/// up; boundaries of either stay.
pub(crate) fn overlay(a: &[Segment], b: &[Segment], out: &mut Vec<Segment>) {
    out.clear();
    let (mut a, mut b) = (a.iter().copied(), b.iter().copied());
    let (mut left, mut right) = (a.next(), b.next());
    loop {
        match (left, right) {
            (None, None) => return,
            (Some(x), None) => {
                out.push(x);
                out.extend(a.by_ref());
                return;
            }
            (None, Some(y)) => {
                out.push(y);
                out.extend(b.by_ref());
                return;
            }
            (Some(x), Some(y))
                if (x.target, x.range.end) <= (y.target, y.range.start) || x.target < y.target =>
            {
                out.push(x);
                left = a.next();
            }
            (Some(x), Some(y))
                if (y.target, y.range.end) <= (x.target, x.range.start) || y.target < x.target =>
            {
                out.push(y);
                right = b.next();
            }
            (Some(x), Some(y)) if x.range.start < y.range.start => {
                let (before, rest) = x.split(y.range.start);
                out.push(before);
                left = Some(rest);
            }
            (Some(x), Some(y)) if y.range.start < x.range.start => {
                let (before, rest) = y.split(x.range.start);
                out.push(before);
                right = Some(rest);
            }
            (Some(mut x), Some(mut y)) => {
                match x.range.end.cmp(&y.range.end) {
                    Ordering::Less => {
                        let (part, rest) = y.split(x.range.end);
                        y = part;
                        left = a.next();
                        right = Some(rest);
                    }
                    Ordering::Greater => {
                        let (part, rest) = x.split(y.range.end);
                        x = part;
                        left = Some(rest);
                        right = b.next();
                    }
                    Ordering::Equal => {
                        left = a.next();
                        right = b.next();
                    }
                }
                x.absorb(&y);
                out.push(x);
            }
        }
    }
}

/// Joins segments until at most `max` are left: first neighbours by how little heat that displaces, then across the
/// narrowest gaps, none wider than `widest`. When that does not suffice, the coldest go; returns the heat lost with them.
pub(crate) fn reduce(segments: &mut Vec<Segment>, max: usize, widest: u64) -> f64 {
    let displaced = |a: &Segment, b: &Segment| {
        let touching = a.target == b.target && a.range.end == b.range.start;
        // Known and unknown are at least as far apart as rates that differ by this.
        let unlike = (a.unknown_share() - b.unknown_share()).abs() * UNKNOWN_HZ;
        let apart = (a.rate_hz() - b.rate_hz()).abs() + unlike;
        touching.then(|| apart * a.range.size().min(b.range.size()) as f64)
    };
    let gap = |a: &Segment, b: &Segment| {
        let gap = b.range.start.saturating_sub(a.range.end);
        (a.target == b.target && gap <= widest).then_some(gap as f64)
    };
    while segments.len() > max && join_cheapest(segments, max, displaced) {}
    while segments.len() > max && join_cheapest(segments, max, gap) {}
    if segments.len() <= max {
        return 0.0;
    }
    segments.sort_by(|a, b| b.heat.total_cmp(&a.heat));
    let lost = segments.drain(max..).map(|s| s.heat).sum();
    segments.sort_by(Segment::order);
    lost
}

/// One pass over `segments`, joining the neighbours whose `cost` is among the lowest, down to `max` segments at the
/// lowest. Whether any two could be joined.
fn join_cheapest(
    segments: &mut Vec<Segment>,
    max: usize,
    cost: impl Fn(&Segment, &Segment) -> Option<f64>,
) -> bool {
    let mut costs: Vec<f64> = segments.windows(2).filter_map(|pair| cost(&pair[0], &pair[1])).collect();
    if costs.is_empty() {
        return false;
    }
    let mut excess = segments.len().saturating_sub(max);
    let nth = excess.clamp(1, costs.len()) - 1;
    let (_, &mut threshold, _) = costs.select_nth_unstable_by(nth, f64::total_cmp);
    segments.dedup_by(|next, kept| {
        let join = excess > 0 && cost(kept, next).is_some_and(|c| c <= threshold);
        if join {
            kept.absorb(next);
            excess -= 1;
        }
        join
    });
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn segment(target: u64, start: u64, end: u64, hz: f64) -> Segment {
        let seen = (end - start) as f64;
        let range = AddrRange::new(start, end);
        let (size, target) = (seen, TargetId(target));
        Segment {
            target,
            range,
            size,
            seen,
            unknown: seen / 2.0,
            absent: seen / 4.0,
            empty: seen / 8.0,
            heat: seen * hz,
            aged: seen,
        }
    }

    fn segments() -> impl Strategy<Value = Vec<Segment>> {
        let piece = (0u64..50, 1u64..100, prop_oneof![Just(0.0), 0.0..200.0]);
        (proptest::collection::vec(piece, 0..40), 1u64..4).prop_map(|(pieces, targets)| {
            let per_target = pieces.len() / targets as usize + 1;
            let mut out = Vec::new();
            for (target, chunk) in (0..targets).zip(pieces.chunks(per_target)) {
                let mut at = 0;
                for (gap, size, hz) in chunk {
                    out.push(segment(target, at + gap, at + gap + size, *hz));
                    at += gap + size;
                }
            }
            out
        })
    }

    fn sums(list: &[Segment]) -> [f64; 6] {
        let of = |x: &Segment| [x.seen, x.heat, x.aged, x.unknown, x.absent, x.empty];
        list.iter().fold([0.0; 6], |sums, x| std::array::from_fn(|i| sums[i] + of(x)[i]))
    }

    fn close(a: [f64; 6], b: [f64; 6]) -> bool {
        a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-9 * b.abs().max(1.0))
    }

    /// Heat of one byte, the naive way.
    fn heat_at(list: &[Segment], target: TargetId, addr: u64) -> f64 {
        let inside = list.iter().filter(|s| s.target == target && s.range.contains(addr));
        inside.map(|s| s.heat / s.range.size() as f64).sum()
    }

    proptest! {
        #[test]
        fn overlay_adds_up_byte_by_byte(a in segments(), b in segments()) {
            let mut out = Vec::new();
            overlay(&a, &b, &mut out);
            for pair in out.windows(2) {
                prop_assert!((pair[0].target, pair[0].range.end) <= (pair[1].target, pair[1].range.start)
                    || pair[0].target < pair[1].target);
            }
            for target in 0..3 {
                for addr in (0..2000).step_by(7) {
                    let expected = heat_at(&a, TargetId(target), addr) + heat_at(&b, TargetId(target), addr);
                    prop_assert!((heat_at(&out, TargetId(target), addr) - expected).abs() < 1e-6);
                }
            }
            let (a, b) = (sums(&a), sums(&b));
            prop_assert!(close(sums(&out), [0, 1, 2, 3, 4, 5].map(|i| a[i] + b[i])));
        }

        #[test]
        fn reduce_keeps_its_bound_and_all_heat(list in segments(), max in 4usize..20) {
            let before = sums(&list);
            let mut out = list.clone();
            let lost = reduce(&mut out, max, u64::MAX);
            prop_assert!(out.len() <= max);
            prop_assert_eq!(lost, 0.0);
            prop_assert!(close(sums(&out), before));
            let sizes = |list: &[Segment]| list.iter().map(|s| s.size).sum::<f64>();
            prop_assert!((sizes(&out) - sizes(&list)).abs() <= 1e-6 * sizes(&list).max(1.0));
            if list.len() <= max {
                prop_assert_eq!(out, list);
            }
        }
    }

    #[test]
    fn a_small_hot_spot_survives_in_a_large_noisy_mapping() {
        let mut list: Vec<Segment> = (0..400)
            .map(|i| segment(1, i * 1_000_000, (i + 1) * 1_000_000, f64::from(i as u32 % 2)))
            .collect();
        list[200] = segment(1, 200_000_000, 201_000_000, 200.0);
        reduce(&mut list, 10, u64::MAX);
        let hottest = list.iter().max_by(|a, b| a.rate_hz().total_cmp(&b.rate_hz())).unwrap();
        assert_eq!(hottest.range, AddrRange::new(200_000_000, 201_000_000));
    }

    #[test]
    fn more_targets_than_segments_lose_the_coldest() {
        let mut list: Vec<Segment> = (0..10).map(|t| segment(t, 0, 10, t as f64)).collect();
        let lost = reduce(&mut list, 4, u64::MAX);
        assert_eq!(list.iter().map(|s| s.target.0).collect::<Vec<_>>(), [6, 7, 8, 9]);
        assert_eq!(lost, 150.0);
    }

    #[test]
    fn what_lies_far_apart_is_not_joined() {
        let mut list: Vec<Segment> =
            (0..10).map(|i| segment(1, i * 1000, i * 1000 + 10 + i, i as f64)).collect();
        let lost = reduce(&mut list, 4, 900);
        assert_eq!(list.iter().map(|s| s.range.start).collect::<Vec<_>>(), [6000, 7000, 8000, 9000]);
        assert!(list.iter().all(|s| s.range.size() < 20) && lost > 0.0);
    }
}

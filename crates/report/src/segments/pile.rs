//! Many snapshots laid over each other, in linear time.
//!
//! Laying each snapshot over the sum of all before it would touch the whole sum, which has ever more boundaries, once a
//! snapshot. So snapshots are collected. What has the same addresses as in the snapshot before is added to that at once:
//! regions mostly persist. The rest is put together when enough has come up, in one sweep over sorted boundaries, and only
//! the result is laid over the sum.
//!
//! At a boundary the sweep adds what begins there and subtracts what ends there. That is done in whole numbers, so that
//! nothing is left of what has ended, and 0 Hz stays exactly 0.

use super::{Segment, overlay, reduce};
use isotherm_damon::TargetId;

/// Segments collected before they are put together: 6 MB.
const COLLECTED: usize = 1 << 16;

/// The sum of segments of many snapshots.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pile {
    /// Sorted and disjoint: what was put together so far.
    sum: Vec<Segment>,
    /// Of snapshots that are not part of it yet: lists, each sorted and disjoint, one behind the other.
    collected: Vec<Segment>,
    /// The latest snapshot, with those before it that had the same addresses.
    open: Vec<Segment>,
    /// Snapshots added since `collected` was last empty.
    lists: u32,
    spare: Spare,
}

/// Memory to use again.
#[derive(Clone, Debug, Default)]
struct Spare {
    open: Vec<Segment>,
    put: Vec<Segment>,
    sum: Vec<Segment>,
    edges: Vec<Edge>,
    deltas: Vec<[i128; SUMS]>,
}

/// Heat, seen, unknown, aged.
const SUMS: usize = 4;

/// Where the sums a byte change; in what way says the delta of this number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Edge {
    target: TargetId,
    at: u64,
    delta: u32,
}

impl Pile {
    /// Adds the segments of a snapshot, sorted and disjoint. The sum is reduced to `max` segments when it has twice as many.
    pub fn add(&mut self, segments: &[Segment], max: usize) {
        self.lists = self.lists.saturating_add(1);
        let mut next = std::mem::take(&mut self.spare.open);
        next.clear();
        let mut before = self.open.iter().copied().peekable();
        for segment in segments {
            let place = |s: &Segment| (s.target, s.range.start, s.range.end);
            while let Some(old) = before.next_if(|old| place(old) < place(segment)) {
                self.collected.push(old);
            }
            let mut segment = *segment;
            if let Some(old) = before.next_if(|old| place(old) == place(&segment)) {
                segment.absorb(&old);
            }
            next.push(segment);
        }
        self.collected.extend(before);
        self.spare.open = std::mem::replace(&mut self.open, next);
        if self.collected.len() >= COLLECTED {
            self.put(max);
        }
    }

    /// The sum, at most `max` segments.
    pub fn finish(mut self, max: usize) -> Vec<Segment> {
        self.collected.append(&mut self.open);
        self.put(max);
        reduce(&mut self.sum, max, u64::MAX);
        self.sum
    }

    /// Puts together what was collected, and adds it to the sum.
    fn put(&mut self, max: usize) {
        let Spare { put, sum, edges, deltas, .. } = &mut self.spare;
        sweep(&self.collected, self.lists, edges, deltas, put);
        self.collected.clear();
        self.lists = 0;
        overlay(&self.sum, put, sum);
        std::mem::swap(&mut self.sum, sum);
        if self.sum.len() > 2 * max {
            reduce(&mut self.sum, max, u64::MAX);
        }
    }
}

/// What is added up of a segment; nothing of it is negative.
fn sums(s: &Segment) -> [f64; SUMS] {
    [s.heat, s.seen, s.unknown, s.aged].map(|sum| sum.max(0.0))
}

/// Replaces `out` by all of `segments` laid over each other, sorted and disjoint. They are of `lists` snapshots, and one
/// before those.
fn sweep(
    segments: &[Segment],
    lists: u32,
    edges: &mut Vec<Edge>,
    deltas: &mut Vec<[i128; SUMS]>,
    out: &mut Vec<Segment>,
) {
    out.clear();
    edges.clear();
    deltas.clear();
    // As fine as the sum of all allows.
    let mut highest = [0.0_f64; SUMS];
    for segment in segments {
        let bytes = segment.range.size().max(1) as f64;
        for (highest, sum) in highest.iter_mut().zip(sums(segment)) {
            *highest = highest.max(sum / bytes);
        }
    }
    let most = f64::from(lists) + 1.0;
    let scale = highest.map(|h| if h > 0.0 { (i128::MAX / 4) as f64 / (h * most) } else { 0.0 });
    let mut last: Option<(TargetId, u64)> = None;
    for segment in segments {
        let bytes = segment.range.size().max(1) as f64;
        let mut density = [0; SUMS];
        for ((density, sum), scale) in density.iter_mut().zip(sums(segment)).zip(scale) {
            *density = (sum / bytes * scale) as i128;
        }
        let (target, start, end) = (segment.target, segment.range.start, segment.range.end);
        let edge =
            |at: u64, delta: usize| Edge { target, at, delta: u32::try_from(delta).unwrap_or(u32::MAX) };
        match deltas.last_mut().filter(|_| last == Some((target, start))) {
            Some(delta) => delta.iter_mut().zip(density).for_each(|(d, more)| *d += more),
            None => {
                edges.push(edge(start, deltas.len()));
                deltas.push(density);
            }
        }
        edges.push(edge(end, deltas.len()));
        deltas.push(density.map(|d| -d));
        last = Some((target, end));
    }
    // Sorted lists one behind the other: the standard library's stable sort merges them.
    edges.sort();
    let mut now = [0_i128; SUMS];
    let mut from = 0;
    for edge in edges.iter() {
        if from < edge.at && now[1] + now[2] > 0 {
            let bytes = (edge.at - from) as f64;
            let value = |i: usize| if now[i] == 0 { 0.0 } else { now[i] as f64 / scale[i] * bytes };
            out.push(Segment {
                target: edge.target,
                range: isotherm_damon::AddrRange::new(from, edge.at),
                size: bytes,
                heat: value(0),
                seen: value(1),
                unknown: value(2),
                aged: value(3),
            });
        }
        from = edge.at;
        if let Some(delta) = deltas.get(edge.delta as usize) {
            now.iter_mut().zip(delta).for_each(|(n, d)| *n += d);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isotherm_damon::AddrRange;
    use proptest::prelude::*;

    fn segment(target: u64, start: u64, end: u64, hz: f64, seen: f64, age: f64) -> Segment {
        let bytes = (end - start) as f64;
        Segment {
            target: TargetId(target),
            range: AddrRange::new(start, end),
            size: bytes,
            seen: bytes * seen,
            unknown: bytes * (1.0 - seen),
            heat: hz * bytes * seen,
            aged: age * bytes * seen,
        }
    }

    fn snapshots() -> impl Strategy<Value = Vec<Vec<Segment>>> {
        let rate = prop_oneof![Just(0.0), Just(200.0), 0.0..1e6_f64];
        let seen = prop_oneof![Just(1.0), Just(0.0), 0.0..1.0_f64];
        let piece = (0..30_u64, 1..90_u64, rate, seen, 0.0..100.0_f64);
        let list = prop::collection::vec(piece, 0..20).prop_map(|pieces| {
            let mut out: Vec<Segment> = Vec::new();
            let half = pieces.len() / 2;
            for (target, part) in [&pieces[..half], &pieces[half..]].into_iter().enumerate() {
                let mut at = 0;
                for &(gap, size, hz, seen, age) in part {
                    out.push(segment(target as u64, at + gap, at + gap + size, hz, seen, age));
                    at += gap + size;
                }
            }
            out
        });
        // Some of them the same as the one before, as regions mostly are.
        prop::collection::vec((list, 1..3_usize), 1..9)
            .prop_map(|lists| lists.into_iter().flat_map(|(list, n)| vec![list; n]).collect())
    }

    proptest! {
        /// Byte by byte what laying them over each other one after the other gives.
        #[test]
        fn a_pile_is_the_sum_of_its_snapshots(lists in snapshots()) {
            let (mut pile, mut sum, mut spare) = (Pile::default(), Vec::new(), Vec::new());
            for list in &lists {
                pile.add(list, 10_000);
                overlay(&sum, list, &mut spare);
                std::mem::swap(&mut sum, &mut spare);
            }
            let found = pile.finish(10_000);
            prop_assert!(found.windows(2).all(|w| (w[0].target, w[0].range.end) <= (w[1].target, w[1].range.start)
                || w[0].target < w[1].target));
            let at = |list: &[Segment], target, address| {
                let here = list.iter().find(|s| s.target == TargetId(target) && s.range.contains(address));
                here.map(|s| sums(s).map(|sum| sum / s.range.size() as f64))
            };
            for target in 0..2 {
                for address in (0..1500).step_by(3) {
                    let (found, expected) = (at(&found, target, address), at(&sum, target, address));
                    prop_assert_eq!(found.is_some(), expected.is_some(), "{} {}", target, address);
                    for (found, expected) in found.into_iter().flatten().zip(expected.into_iter().flatten()) {
                        prop_assert!((found - expected).abs() <= 1e-9 * expected.max(1.0), "{found} {expected}");
                        prop_assert!(expected != 0.0 || found == 0.0, "0 stays 0: {found}");
                    }
                }
            }
        }
    }

    #[test]
    fn memory_does_not_grow_with_the_number_of_snapshots() {
        let mut pile = Pile::default();
        for i in 0..2000_u64 {
            let list: Vec<Segment> = (0..100)
                .map(|r| {
                    segment(1, r * 4096 + i % 71, (r + 1) * 4096 + i % 71, (r * i % 21) as f64, 1.0, 0.0)
                })
                .collect();
            pile.add(&list, 200);
            assert!(pile.sum.len() <= 400 && pile.collected.len() <= COLLECTED + 200);
        }
        assert!(pile.finish(200).len() <= 200);
    }
}

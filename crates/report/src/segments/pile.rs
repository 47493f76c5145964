//! Many snapshots laid over each other, in linear time.
//!
//! Laying each snapshot over the sum of all before it would touch the whole sum, which has ever more boundaries, once a
//! snapshot. So snapshots are collected. What has the same addresses as in the snapshot before is added to that at once:
//! regions mostly persist. The rest is put together when enough has come up, in one sweep over sorted boundaries, and only
//! the result is laid over the sum. That is half of the work; a thread does it while the next snapshots are collected.
//!
//! At a boundary the sweep adds what begins there and subtracts what ends there. That is done in whole numbers, so that
//! nothing is left of what has ended, and 0 Hz stays exactly 0.

use super::{Segment, overlay, reduce};
use isotherm_damon::{AddrRange, TargetId};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

/// Segments collected before they are put together: 3 MB, and what is made of them stays in a processor's cache.
const COLLECTED: usize = 1 << 15;
/// What the densities of collected segments may differ by for whole numbers of 63 bits to tell the lowest to eight digits.
const SPREAD: f64 = (1_u64 << 36) as f64;

/// The sum of segments of many snapshots.
#[derive(Debug, Default)]
pub(crate) struct Pile {
    /// What was put together so far, unless the thread has it.
    total: Total,
    is_away: bool,
    thread: Option<Beside>,
    /// Whether a thread was asked for.
    asked: bool,
    /// Of snapshots that are not part of it yet: lists, each sorted and disjoint, one behind the other.
    collected: Vec<Segment>,
    /// The latest snapshot, with those before it that had the same addresses.
    open: Vec<Segment>,
    /// Snapshots added since `collected` was last empty.
    lists: u32,
    /// Memory to use again.
    next: Vec<Segment>,
}

/// What is to be put together.
#[derive(Debug)]
struct Job {
    total: Total,
    collected: Vec<Segment>,
    lists: u32,
    max: usize,
}

/// The sum with what was collected in it, and the memory of that.
type Put = (Total, Vec<Segment>);

/// A thread that puts together, one job at a time. It ends with the sender.
#[derive(Debug)]
struct Beside {
    to: SyncSender<Job>,
    from: Receiver<Put>,
    thread: JoinHandle<()>,
}

/// What was put together.
#[derive(Debug, Default)]
struct Total {
    /// Sorted and disjoint.
    sum: Vec<Segment>,
    spare: Spare,
}

/// Memory to use again.
#[derive(Debug, Default)]
struct Spare {
    put: Vec<Segment>,
    sum: Vec<Segment>,
    targets: Vec<TargetId>,
    edges: Vec<Edge>,
    deltas: Vec<Densities>,
}

/// Heat, seen, unknown, aged, absent, empty of a byte, in whole numbers.
type Densities = [i64; SUMS];

const SUMS: usize = 6;

/// Where the densities change; in what way says the delta of this number.
#[derive(Clone, Copy, Debug)]
struct Edge {
    at: u64,
    /// Place in the list of targets.
    target: u32,
    delta: u32,
}

impl Edge {
    fn key(&self) -> u128 {
        u128::from(self.target) << 64 | u128::from(self.at)
    }
}

fn place(s: &Segment) -> (TargetId, u64, u64) {
    (s.target, s.range.start, s.range.end)
}

impl Pile {
    /// Adds the segments of a snapshot, sorted and disjoint. The sum is reduced to `max` segments when it has twice as many.
    pub fn add(&mut self, segments: &[Segment], max: usize) {
        self.lists = self.lists.saturating_add(1);
        let next = &mut self.next;
        next.clear();
        let mut open = self.open.iter();
        let mut old = open.next();
        for segment in segments {
            let here = place(segment);
            while let Some(ended) = old.filter(|old| place(old) < here) {
                self.collected.push(*ended);
                old = open.next();
            }
            let mut segment = *segment;
            if let Some(same) = old.filter(|old| place(old) == here) {
                segment.seen += same.seen;
                segment.unknown += same.unknown;
                segment.absent += same.absent;
                segment.empty += same.empty;
                segment.heat += same.heat;
                segment.aged += same.aged;
                old = open.next();
            }
            next.push(segment);
        }
        self.collected.extend(old.into_iter().chain(open));
        std::mem::swap(&mut self.open, next);
        if self.collected.len() >= COLLECTED {
            self.put_beside(max);
        }
    }

    /// The sum, at most `max` segments.
    pub fn finish(mut self, max: usize) -> Vec<Segment> {
        let (mut total, _) = self.take_total();
        self.collected.append(&mut self.open);
        total.put(&self.collected, self.lists, max);
        reduce(&mut total.sum, max, u64::MAX);
        total.sum
    }

    /// Waits for what is being put together.
    fn take_total(&mut self) -> Put {
        if !std::mem::take(&mut self.is_away) {
            return (std::mem::take(&mut self.total), Vec::new());
        }
        let Some(Beside { to, from, thread }) = self.thread.take() else { return Put::default() };
        match from.recv() {
            Ok(put) => {
                self.thread = Some(Beside { to, from, thread });
                put
            }
            // It panicked.
            Err(_) => match thread.join() {
                Ok(()) => Put::default(),
                Err(panic) => std::panic::resume_unwind(panic),
            },
        }
    }

    /// Has what was collected put together, on a thread where there is one to be had.
    fn put_beside(&mut self, max: usize) {
        let (total, room) = self.take_total();
        let collected = std::mem::replace(&mut self.collected, room);
        let mut job = Job { total, collected, lists: std::mem::take(&mut self.lists), max };
        if !std::mem::replace(&mut self.asked, true) {
            self.thread = Beside::start();
        }
        if let Some(beside) = &self.thread {
            match beside.to.send(job) {
                Ok(()) => {
                    self.is_away = true;
                    return;
                }
                Err(unsent) => job = unsent.0,
            }
        }
        (self.total, self.collected) = job.put();
    }
}

impl Beside {
    /// None where threads would take turns on one processor, or no more may be started.
    fn start() -> Option<Self> {
        thread::available_parallelism().ok().filter(|processors| processors.get() > 1)?;
        let (to, jobs) = sync_channel::<Job>(1);
        let (done, from) = sync_channel(1);
        let work = move || {
            while let Ok(job) = jobs.recv() {
                if done.send(job.put()).is_err() {
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name("sums".to_owned()).spawn(work).ok()?;
        Some(Self { to, from, thread })
    }
}

impl Job {
    fn put(self) -> Put {
        let Self { mut total, mut collected, lists, max } = self;
        total.put(&collected, lists, max);
        collected.clear();
        (total, collected)
    }
}

impl Total {
    /// Puts together what was collected of so many snapshots, and adds it to the sum, which is reduced to `max` segments when it
    /// has twice as many.
    fn put(&mut self, collected: &[Segment], lists: u32, max: usize) {
        let Spare { put, sum, targets, edges, deltas } = &mut self.spare;
        match Scale::of(collected, lists) {
            Some(scale) => {
                cut(collected, &scale, targets, edges, deltas);
                sweep(&scale, targets, edges, deltas, put);
                overlay(&self.sum, put, sum);
                std::mem::swap(&mut self.sum, sum);
            }
            None => {
                let follows = |a: &Segment, b: &Segment| (a.target, a.range.end) <= (b.target, b.range.start);
                for list in collected.chunk_by(follows) {
                    overlay(&self.sum, list, sum);
                    std::mem::swap(&mut self.sum, sum);
                }
            }
        }
        if self.sum.len() > 2 * max {
            reduce(&mut self.sum, max, u64::MAX);
        }
    }
}

/// What is added up of a segment; nothing of it is negative. (An array's `map` is not always inlined, and took a tenth of all time.)
#[inline]
fn sums(s: &Segment) -> [f64; SUMS] {
    let mut sums = [s.heat, s.seen, s.unknown, s.aged, s.absent, s.empty];
    for sum in &mut sums {
        *sum = sum.max(0.0);
    }
    sums
}

/// How densities become whole numbers.
struct Scale {
    up: [f64; SUMS],
    down: [f64; SUMS],
}

impl Scale {
    /// As fine as the sum of all segments allows, of which not more than `lists` and one lie over each other. `None` when
    /// their densities differ too much.
    fn of(segments: &[Segment], lists: u32) -> Option<Self> {
        let (mut lowest, mut highest) = ([f64::MAX; SUMS], [0.0_f64; SUMS]);
        for segment in segments {
            let per_byte = 1.0 / segment.range.size().max(1) as f64;
            let sums = sums(segment);
            for i in 0..SUMS {
                let density = sums[i] * per_byte;
                highest[i] = highest[i].max(density);
                if density > 0.0 {
                    lowest[i] = lowest[i].min(density);
                }
            }
        }
        let most = f64::from(lists) + 1.0;
        let mut scale = Self { up: [0.0; SUMS], down: [0.0; SUMS] };
        for i in 0..SUMS {
            if highest[i] > 0.0 {
                if highest[i] * most > lowest[i] * SPREAD {
                    return None;
                }
                // A half for rounding.
                scale.up[i] = (i64::MAX / 2) as f64 / (highest[i] * most);
                scale.down[i] = 1.0 / scale.up[i];
            }
        }
        Some(scale)
    }
}

/// Replaces `edges` by all starts and ends, sorted, with what changes there in `deltas`.
fn cut(
    segments: &[Segment],
    scale: &Scale,
    targets: &mut Vec<TargetId>,
    edges: &mut Vec<Edge>,
    deltas: &mut Vec<Densities>,
) {
    targets.clear();
    targets.extend(segments.iter().map(|s| s.target));
    targets.dedup();
    targets.sort_unstable();
    targets.dedup();
    edges.clear();
    deltas.clear();
    // In 32 bits fits what is collected.
    let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let (mut target, mut end) = (0, None);
    for segment in segments {
        if targets.get(target) != Some(&segment.target) {
            target = targets.partition_point(|t| *t < segment.target);
            end = None;
        }
        let per_byte = 1.0 / segment.range.size().max(1) as f64;
        let sums = sums(segment);
        let mut density = [0; SUMS];
        for i in 0..SUMS {
            density[i] = (sums[i] * per_byte * scale.up[i]) as i64;
        }
        match deltas.last_mut().filter(|_| end == Some(segment.range.start)) {
            Some(delta) => {
                for i in 0..SUMS {
                    delta[i] += density[i];
                }
            }
            None => {
                edges.push(Edge {
                    at: segment.range.start,
                    target: number(target),
                    delta: number(deltas.len()),
                });
                deltas.push(density);
            }
        }
        edges.push(Edge { at: segment.range.end, target: number(target), delta: number(deltas.len()) });
        let mut ends = [0; SUMS];
        for i in 0..SUMS {
            ends[i] = -density[i];
        }
        deltas.push(ends);
        end = Some(segment.range.end);
    }
    // Sorted lists one behind the other: the standard library's stable sort merges them.
    edges.sort_by_key(Edge::key);
}

/// Replaces `out` by the segments between the edges, sorted and disjoint.
fn sweep(scale: &Scale, targets: &[TargetId], edges: &[Edge], deltas: &[Densities], out: &mut Vec<Segment>) {
    out.clear();
    let mut now = [0_i64; SUMS];
    let mut from = 0;
    for edge in edges {
        if from < edge.at
            && now[1] | now[2] != 0
            && let Some(target) = targets.get(edge.target as usize)
        {
            let bytes = (edge.at - from) as f64;
            let value = |i: usize| now[i] as f64 * scale.down[i] * bytes;
            out.push(Segment {
                target: *target,
                range: AddrRange::new(from, edge.at),
                size: bytes,
                heat: value(0),
                seen: value(1),
                unknown: value(2),
                aged: value(3),
                absent: value(4),
                empty: value(5),
            });
        }
        from = edge.at;
        if let Some(delta) = deltas.get(edge.delta as usize) {
            for i in 0..SUMS {
                now[i] += delta[i];
            }
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
            absent: bytes * (1.0 - seen) * 0.25,
            empty: bytes * seen * 0.5,
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
            assert!(pile.collected.len() <= COLLECTED + 200);
            if i % 100 == 0 {
                let (total, room) = pile.take_total();
                assert!(total.sum.len() <= 400 && room.capacity() <= 2 * (COLLECTED + 200));
                pile.total = total;
            }
        }
        assert!(pile.finish(200).len() <= 200);
    }
}

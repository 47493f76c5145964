//! Files and shared memory: each byte once, with the accesses of all who map it.
//!
//! A byte is left alone for a time if all who map it leave it alone. Which bytes of a region those are, of each of them, no recording
//! says, so their shares are put together by one of two rules ([`Logs`]):
//! - Of a file that is mapped privately, as programs and libraries are, the same pages: who runs the same program has the same of it
//!   in use, and in its page tables. Then the working set of the object is the largest share that any of them has in its own, and so
//!   it is with what is present.
//! - Of memory that somebody maps shared, as a database's buffers, independently of each other: `1 - product(1 - share)`.
//!
//! So it is never less than the largest of their shares, nor more than their sum. What a target cannot see of a byte is in no working
//! set of its own, and so in none of the object's: how much one of them sees says nothing of what another accessed. Cold is a byte
//! only as far as all who map it are known to have left it alone. The rest of it is seen as
//! [`crate::space`] has it (without an access: no more than who sees least of it). Targets that ended have their part in what was
//! accessed and is present, not in what is unknown now ([`super::past`]).

use super::bounds::Span;
use super::figures::{Density, HOT_SHARE, Sums};
use crate::space::Logs;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// What one target says of a stretch of an object.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Share {
    pub object: usize,
    pub target: u64,
    pub start: u64,
    pub end: u64,
    said: Arc<Said>,
}

/// One byte of a share, and what it adds to those of others: the same for all that a segment has of objects, which may be many
/// pages here and there.
#[derive(Debug, PartialEq)]
pub(super) struct Said {
    sums: Sums,
    weight: Weight,
    /// Between which bounds it lies, where it is a portion.
    span: Option<Span>,
}

impl Said {
    pub fn of(density: &Density) -> Arc<Self> {
        Arc::new(Self { sums: density.sums(), weight: Weight::of(density), span: None })
    }

    /// Of a region that is spread evenly: a byte of it comes to `sums`; where it is a portion, between these bounds.
    pub fn of_portion(density: &Density, sums: Sums, span: Option<Span>) -> Arc<Self> {
        // What is in use of a part, and no more than is there of that, is not what the means of both come to.
        let missed = sums.ws.map(|share| log(1.0 - share.min(1.0)));
        Arc::new(Self { sums, weight: Weight { missed, ..Weight::of(density) }, span })
    }

    /// Of targets that ended: the share that is resident, those in the working sets, and those known to be idle for each time.
    pub fn of_ended(resident: Option<f64>, ws: [f64; 3], idle: [f64; 3], observed: [bool; 3]) -> Arc<Self> {
        let there = resident.unwrap_or(1.0);
        let mut cold = [None; 3];
        for ((cold, idle), observed) in cold.iter_mut().zip(idle).zip(observed) {
            *cold = observed.then(|| (idle - (1.0 - there)).max(0.0));
        }
        let told = resident.unwrap_or(0.0);
        let sums = Sums { mapped: 1.0, resident, told, ws, hot: Some(0.0), cold, unknown: 0.0 };
        let weight = Weight {
            ended: true,
            knows: false,
            seen: 0,
            shows_all: false,
            shown: 0,
            absent: resident.map(|share| log(1.0 - share)),
            is_rated: false,
            idle: idle.map(|idle| Some(log(idle))),
            per_s: 0,
            mean_per_s: 0,
            missed: ws.map(|share| log(1.0 - share)),
        };
        Arc::new(Self { sums, weight, span: None })
    }
}

impl Said {
    /// Of what a target left, so much that it comes to the more of that and what it has now (`share`), when both are put together as if
    /// independent of each other.
    pub fn beyond(&self, share: &Share) -> Arc<Self> {
        let (left, has) = (&self.weight, &share.said.weight);
        let beyond = |left: i64, has: i64| (left - has).max(0);
        let mut weight = left.clone();
        weight.absent = left.absent.map(|absent| beyond(absent, has.absent.unwrap_or(0)));
        if has.knows {
            for (missed, has) in weight.missed.iter_mut().zip(has.missed) {
                *missed = beyond(*missed, has);
            }
        }
        for (idle, has) in weight.idle.iter_mut().zip(has.idle) {
            *idle = idle.map(|idle| beyond(idle, has.unwrap_or(0)));
        }
        Arc::new(Self { sums: self.sums, weight, span: self.span })
    }
}

impl Share {
    /// Of `size` bytes from `start` on.
    pub fn new(object: usize, target: u64, (start, size): (u64, u64), said: &Arc<Said>) -> Self {
        Self { object, target, start, end: start.saturating_add(size), said: Arc::clone(said) }
    }
}

/// What is the same for all of a snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Scale {
    /// Length of an aggregation, seconds.
    pub aggr_s: f64,
    /// Sampling interval, seconds; 0: not known.
    pub sample_s: f64,
    /// The highest rate, Hz; `None` where it is not known.
    pub max_hz: Option<f64>,
    /// Recorded in another program's format: what is unknown is not told from what is idle.
    pub imported: bool,
}

impl Scale {
    /// The rate of accesses at random that are seen in `hz` sampling intervals a second.
    pub fn per_s(&self, hz: f64) -> f64 {
        // What stands still is most of all memory.
        if hz == 0.0 {
            0.0
        } else if self.sample_s > 0.0 {
            (-(-(hz * self.sample_s).min(1.0)).ln_1p()).min(CERTAIN) / self.sample_s
        } else {
            hz
        }
    }

    /// Whether memory accessed at random `per_s` times a second is hot.
    pub fn hot(&self, per_s: f64) -> Option<bool> {
        let max_hz = self.max_hz?;
        let hz = if self.sample_s > 0.0 && per_s != 0.0 {
            -(-per_s * self.sample_s).exp_m1() / self.sample_s
        } else {
            per_s
        };
        // A rate that is meant to be a tenth must not miss it by rounding.
        Some(hz >= max_hz * HOT_SHARE * (1.0 - 1e-6))
    }
}

/// What all who map an object have of it.
#[derive(Clone, Debug)]
pub(super) struct OfObject {
    pub sums: Sums,
    /// Between which bounds that lies, where somebody has a portion of a region.
    pub span: Option<Span>,
    /// Whether several say something of it.
    pub several: bool,
}

/// Every object, each byte once. `is_same`: whether all who map an object have the same pages of it.
pub(super) fn each(
    shares: &[&Share],
    scale: &Scale,
    is_same: impl Fn(usize) -> bool,
) -> BTreeMap<usize, OfObject> {
    let mut said_by: HashMap<usize, (u64, bool)> = HashMap::new();
    for share in shares {
        let (first, several) = said_by.entry(share.object).or_insert((share.target, false));
        *several |= share.target != *first;
    }
    let spans = spans(shares.iter().copied(), &is_same);
    let mut found = BTreeMap::new();
    add_up(shares.iter().copied(), scale, &is_same, |object, sums| {
        let several = said_by.get(&object).is_some_and(|(_, several)| *several);
        found.insert(object, OfObject { sums: *sums, span: spans.get(&object).copied(), several });
    });
    found
}

/// What all who map an object may have of it, of those objects of which somebody has a portion of a region.
fn spans<'a>(
    shares: impl Iterator<Item = &'a Share> + Clone,
    is_same: impl Fn(usize) -> bool,
) -> HashMap<usize, Span> {
    let portions = shares.clone().filter(|share| share.said.span.is_some());
    let mut found: HashMap<usize, Option<Span>> = portions.map(|share| (share.object, None)).collect();
    let mut of_each: BTreeMap<(usize, u64, bool), Span> = BTreeMap::new();
    for share in shares.filter(|share| found.contains_key(&share.object)) {
        let whole = || Span::of(&share.said.sums);
        let bytes = (share.end - share.start) as f64;
        // What a target left is not beside what it has.
        of_each
            .entry((share.object, share.target, share.said.weight.ended))
            .or_default()
            .add(&share.said.span.unwrap_or_else(whole), bytes);
    }
    for ((object, ..), span) in of_each {
        match found.entry(object).or_default() {
            Some(all) => all.with(&span, is_same(object)),
            none => *none = Some(span),
        }
    }
    found.into_iter().filter_map(|(object, span)| Some((object, span?))).collect()
}

/// Calls `done` with each object and its sums. `is_same`: whether all who map an object have the same pages of it.
fn add_up<'a>(
    shares: impl Iterator<Item = &'a Share>,
    scale: &Scale,
    is_same: impl Fn(usize) -> bool,
    mut done: impl FnMut(usize, &Sums),
) {
    // What is sorted is small: there may be thousands, a second.
    let mut order: Vec<(usize, u64, u64, &Share)> = shares.map(|s| (s.object, s.start, s.end, s)).collect();
    order.sort_unstable_by_key(|(object, start, end, _)| (*object, *start, *end));
    let mut edges = Vec::new();
    for shares in order.chunk_by(|a, b| a.0 == b.0) {
        let Some(first) = shares.first() else { continue };
        let mut sums = Sums::default();
        let mut rest = shares;
        while let Some(((_, _, end, head), tail)) = rest.split_first() {
            let mut end = *end;
            let more = tail.iter().take_while(|s| {
                let overlaps = s.1 < end;
                if overlaps {
                    end = end.max(s.2);
                }
                overlaps
            });
            let (cluster, next) = rest.split_at(1 + more.count());
            match cluster {
                [_] => sums.add(&head.said.sums, (head.end - head.start) as f64),
                several => sweep(several, &mut edges, (scale, is_same(first.0)), &mut sums),
            }
            rest = next;
        }
        done(first.0, &sums);
    }
}

/// Where a share begins (true) or ends.
type Edge<'a> = (u64, bool, &'a Weight);

/// Adds up shares that overlap.
fn sweep<'a>(
    shares: &[(usize, u64, u64, &'a Share)],
    edges: &mut Vec<Edge<'a>>,
    (scale, is_same): (&Scale, bool),
    sums: &mut Sums,
) {
    edges.clear();
    for (_, start, end, share) in shares {
        edges.push((*start, true, &share.said.weight));
        edges.push((*end, false, &share.said.weight));
    }
    edges.sort_unstable_by_key(|(at, begins, _)| (*at, *begins));
    let mut all = All::new(is_same);
    let mut from = 0;
    for (at, begins, weight) in edges {
        if all.mappers + all.ended > 0 && from < *at {
            sums.add(&all.sums(scale), (*at - from) as f64);
        }
        from = *at;
        all.change(weight, if *begins { 1 } else { -1 });
    }
}

/// One in the fixed point of logarithms and shares: what is taken out again must leave nothing behind.
const ONE: f64 = (1_u64 << 32) as f64;

/// Accesses are as good as certain beyond so many expected ones.
const CERTAIN: f64 = 40.0;

fn fixed(value: f64) -> i64 {
    (value * ONE).round() as i64
}

fn log(left_alone: f64) -> i64 {
    if left_alone == 1.0 { 0 } else { fixed(-left_alone.max(f64::MIN_POSITIVE).ln().max(-CERTAIN)) }
}

/// The share of which this is `-ln(1 - share)`.
fn share_of(log: i64) -> f64 {
    if log == 0 { 0.0 } else { -(-(log as f64) / ONE).exp_m1() }
}

/// In fixed point what a density adds to those of others.
#[derive(Clone, Debug, PartialEq)]
struct Weight {
    /// Who says so ended.
    ended: bool,
    knows: bool,
    seen: i64,
    /// Of who accesses it: whether all of it is seen, and otherwise of what is not.
    shows_all: bool,
    shown: i64,
    /// Of what is not resident.
    absent: Option<i64>,
    is_rated: bool,
    idle: [Option<i64>; 3],
    per_s: i64,
    mean_per_s: i64,
    /// Of what is in no working set of its own.
    missed: [i64; 3],
}

impl Weight {
    fn of(one: &Density) -> Self {
        let shown = if one.per_s > 0.0 { one.seen } else { 0.0 };
        Self {
            ended: false,
            knows: one.seen > 0.0,
            seen: log(one.seen),
            shows_all: shown >= 1.0,
            shown: if shown < 1.0 { log(1.0 - shown) } else { 0 },
            absent: one.resident.map(|share| log(1.0 - share.min(1.0))),
            is_rated: one.hot.is_some(),
            idle: one.idle.map(|idle| idle.map(log)),
            per_s: fixed(one.per_s),
            mean_per_s: fixed(one.mean_per_s),
            missed: one.working_sets().map(|share| log(1.0 - share)),
        }
    }
}

/// All who map a byte.
#[derive(Default)]
struct All {
    mappers: i64,
    /// What is said by those that ended, how many of it say what was present, and of what they had not.
    ended: i64,
    left: i64,
    left_absent: Logs,
    known: i64,
    /// Those for whom the highest rate is known, presence, and idleness for each time.
    rated: i64,
    present: i64,
    absent: Logs,
    watched: [i64; 3],
    seen: Logs,
    show_all: i64,
    shown: Logs,
    per_s: i64,
    mean_per_s: i64,
    missed: [Logs; 3],
    idle: [Logs; 3],
}

impl All {
    fn new(is_same: bool) -> Self {
        let logs = || Logs::new(is_same);
        Self {
            left_absent: logs(),
            absent: logs(),
            seen: logs(),
            shown: logs(),
            missed: [logs(), logs(), logs()],
            idle: [logs(), logs(), logs()],
            ..Self::default()
        }
    }

    fn change(&mut self, one: &Weight, by: i64) {
        if one.ended {
            self.ended += by;
            if let Some(absent) = one.absent {
                self.left += by;
                self.left_absent.change(absent, by);
            }
            for (idle, one) in self.idle.iter_mut().zip(one.idle) {
                idle.change(one.unwrap_or(0), by);
            }
            for (missed, one) in self.missed.iter_mut().zip(one.missed) {
                missed.change(one, by);
            }
            return;
        }
        self.mappers += by;
        self.rated += by * i64::from(one.is_rated);
        if let Some(absent) = one.absent {
            self.present += by;
            self.absent.change(absent, by);
        }
        for ((watched, idle), one) in self.watched.iter_mut().zip(&mut self.idle).zip(one.idle) {
            if let Some(one) = one {
                *watched += by;
                idle.change(one, by);
            }
        }
        if !one.knows {
            return;
        }
        self.known += by;
        self.seen.change(one.seen, by);
        self.show_all += by * i64::from(one.shows_all);
        self.shown.change(one.shown, by);
        self.per_s += by * one.per_s;
        self.mean_per_s += by * one.mean_per_s;
        for (missed, one) in self.missed.iter_mut().zip(one.missed) {
            missed.change(one, by);
        }
    }

    /// Of one byte.
    fn sums(&self, scale: &Scale) -> Sums {
        let density = self.density(scale);
        let ws = self.missed.each_ref().map(|logs| share_of(logs.get()));
        let mut sums = density.sums();
        sums.told = self.resident_told();
        if self.ended > 0 {
            sums.resident = self.resident();
            // What those who run do not have, they do not access: it is as idle as those who ended left it.
            let unknown = sums.unknown;
            for (cold, idle) in sums.cold.iter_mut().zip(density.idle) {
                *cold = idle.map(|idle| (idle - unknown).max(0.0));
            }
        }
        let there = sums.resident.unwrap_or(1.0).min(1.0);
        // What is known to have been accessed is neither unknown nor cold.
        let left = |ws: f64| (there - ws).max(0.0);
        sums.unknown = sums.unknown.min(left(ws[2]));
        let unknown = if self.ended > 0 { sums.unknown } else { 0.0 };
        for (cold, ws) in sums.cold.iter_mut().zip([ws[1], ws[2], ws[2]]) {
            *cold = cold.map(|cold| cold.min(left(ws + unknown)));
        }
        sums.hot = density.hot.map(|hot| if hot { ws[1] } else { 0.0 });
        Sums { ws, ..sums }
    }

    /// Share that is present, with what those that ended had.
    fn resident(&self) -> Option<f64> {
        let told = self.present == self.mappers && (self.mappers > 0 || self.left > 0);
        told.then(|| self.resident_told())
    }

    /// The same as far as those who say it know.
    fn resident_told(&self) -> f64 {
        let (absent, left) = (self.absent.get(), self.left_absent.get());
        share_of(if self.absent.are_same() { absent.max(left) } else { absent + left })
    }

    fn density(&self, scale: &Scale) -> Density {
        let exp = |log: i64| if log == 0 { 1.0 } else { (-(log as f64) / ONE).exp() };
        let per_s = self.per_s as f64 / ONE;
        let mean_per_s = self.mean_per_s as f64 / ONE;
        let all = if self.known < self.mappers { 0.0 } else { exp(self.seen.get()) };
        // Of an access in an aggregation: one of them shows it, that there is none only all of them do.
        let accessed = -(-per_s * scale.aggr_s).exp_m1();
        let idle = |at: usize| (self.watched[at] == self.mappers).then(|| exp(self.idle[at].get()));
        let shown = if self.show_all > 0 { 1.0 } else { 1.0 - exp(self.shown.get()) };
        let seen = all + (shown - all).max(0.0) * accessed;
        Density {
            seen,
            resident: (self.present == self.mappers).then(|| 1.0 - exp(self.absent.get())),
            per_s,
            mean_per_s,
            hot: if self.rated == self.mappers { scale.hot(mean_per_s) } else { None },
            // Of bytes of which each sees another share there is no share of what is seen: `sums` has their working sets.
            met: [0.0; 3],
            idle: [0, 1, 2].map(|at| idle(at).map(|idle: f64| idle.min(seen))),
        }
    }
}

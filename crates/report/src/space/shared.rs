//! Memory that several targets map: each byte once, with the accesses of all.
//!
//! Each target that maps a byte says how often it accessed it: in a share `p` of the sampling intervals. That the byte was
//! accessed by any of them in an interval has the probability `1 - product(1 - p)`, if they access it independently of
//! each other. That is the rate of the byte. Those of which nothing is known are left out of the product.
//!
//! How much of a byte is *seen* then depends on what was seen. That it is accessed, one of the targets suffices to show;
//! that it is not, only all of them together can: what one of them does not know may be in use there, however many others
//! know that they do not use it. Each sees some of the bytes, and which is independent of what the others see. So what is sure to
//! be accessed within an aggregation is seen as far as any of those who access it sees it, `1 - product(1 - seen)`. What is not
//! accessed is seen to the product of the shares of all: never more than who sees least, and nothing where one of them knows
//! nothing.
//! Between the two it goes by the probability of an access. But who sees much of it does not show what another accesses of which it
//! sees little: no more of it is seen than leaves the working set of a second at `1 - product(1 - share)` over the shares that are
//! in theirs, which is no more than their sum. A byte has stood still for as long as the one that moved last.
//!
//! A byte can be accessed by those who have it in their page tables, and each may have others: what is *resident* of memory that
//! somebody maps shared is `1 - product(1 - share)` over the shares that each has, as if who has which were independent, too. That is
//! never less than the largest share, nor more than their sum or the size. The largest alone would say of buffers of which ten
//! processes use a tenth each that a tenth is in use. Where one of them does not say what is resident, it is not known of the byte.
//!
//! Of a file that is mapped privately, as programs and libraries are, those who map it have the same pages, and use the same: sixteen
//! processes that have the same hundredth of a library have a hundredth of it, not a seventh. So of such shares, of what is resident,
//! seen or in a working set, it is the largest that counts, not `1 - product(1 - share)` ([`Logs`]).

use super::accessible_of;
use super::logs::{Logs, Multiset};
use crate::rate::{BP, share_accessed, share_in_use};
use crate::units::SECOND_NS;
use isotherm_damon::{AddrRange, RegionSnapshot};

/// What the targets of a snapshot say about objects, and memory to use again.
#[derive(Clone, Debug, Default)]
pub(super) struct Shares {
    list: Vec<Share>,
    weights: Vec<Weight>,
    edges: Vec<Edge>,
    scale: Scale,
}

/// What is the same for all of a snapshot.
#[derive(Clone, Copy, Debug, Default)]
struct Scale {
    /// The most accesses that there can be; 0: not known.
    max_bp: f64,
    /// Sampling intervals a second; 0: not known.
    second: f64,
    /// The same in the window of the working set that is asked for.
    window: f64,
}

/// What one target says about part of an object. There may be hundreds of thousands in a snapshot, most of which come from few
/// regions; so it is small, and what a region says stands apart.
#[derive(Clone, Copy, Debug)]
struct Share {
    object: usize,
    /// Offsets in the object.
    start: u64,
    end: u64,
    /// Bytes resident, as far as the weight says that this is known.
    resident: u64,
    /// Its place in the list of weights.
    weight: usize,
}

/// Where a share begins (true) or ends.
type Edge = (u64, bool, usize);

/// What a region says of each of its bytes, ready to be added up.
#[derive(Clone, Copy, Debug)]
struct Weight {
    /// But for its addresses, and how much is resident.
    region: RegionSnapshot,
    /// Share that is resident; `None`: not known.
    resident: Option<f64>,
    accesses: Accesses,
    /// -ln(1 - resident share); 0 where that is all.
    absent_log: i64,
}

/// Of who knows.
#[derive(Clone, Copy, Debug, Default)]
struct Accesses {
    known: bool,
    /// Of all of its bytes, and of those that are there, which are the same for all: whether they are accessed in each interval, and
    /// -ln(1 - p), which is 0 where they are.
    certain: [bool; 2],
    log: [i64; 2],
    seen_log: i64,
    /// Of who accesses it: whether all of it is seen, and otherwise -ln(1 - share seen).
    shows_all: bool,
    shown_log: i64,
    /// -ln(1 - share in its working set of a second), where that is known.
    used_log: i64,
    /// The same in that of the window that is asked for.
    met_log: i64,
    exposure: u64,
    bp: u64,
}

/// One in the fixed point of the sums of logarithms.
const ONE: f64 = (1_u64 << 40) as f64;

/// Accesses are as good as certain beyond so many expected ones: as often as that fits into the sums.
const CERTAIN: f64 = 40.0;

/// -ln(1 - share) in that fixed point; 0 for all of it, which is counted apart.
fn missed(share: f64) -> i64 {
    if share < 1.0 { (-(-share).ln_1p() * ONE) as i64 } else { 0 }
}

fn resident_share(region: &RegionSnapshot) -> Option<f64> {
    region.resident.map(|bytes| bytes as f64 / region.range.size().max(1) as f64)
}

impl Weight {
    fn of(region: &RegionSnapshot, scale: Scale) -> Self {
        let Scale { max_bp, second, window } = scale;
        let resident = resident_share(region);
        let (seen, present, _) = accessible_of(region);
        let used_log = |intervals: f64| {
            if intervals <= 0.0 || region.accesses_bp() == 0 {
                return 0;
            }
            let used = (seen * share_accessed(region, max_bp, intervals)).min(present * share_in_use(region));
            (-(-used.min(1.0)).ln_1p().max(-CERTAIN) * ONE) as i64
        };
        let used = used_log(second);
        let p = if max_bp > 0.0 { region.accesses_bp() as f64 / max_bp } else { 0.0 };
        // Of what is not there nothing is accessed.
        let p = if resident == Some(0.0) { 0.0 } else { p };
        let of_all = p * resident.unwrap_or(1.0).min(1.0);
        let counted = region.exposure == RegionSnapshot::COUNTED;
        let shown = if region.accesses_bp() > 0 || region.nr_accesses > 0 { seen } else { 0.0 };
        let accesses = Accesses {
            known: true,
            certain: [of_all >= 1.0, p >= 1.0],
            log: [missed(of_all), missed(p)],
            seen_log: (-seen.ln() * ONE) as i64,
            shows_all: shown >= 1.0,
            shown_log: missed(shown),
            used_log: used,
            met_log: if window == second { used } else { used_log(window) },
            exposure: if counted { 0 } else { u64::from(region.exposure) },
            bp: region.accesses_bp(),
        };
        Self {
            region: *region,
            resident,
            accesses: if region.is_unknown() { Accesses::default() } else { accesses },
            absent_log: resident.map_or(0, missed),
        }
    }

    /// Whether `region` says the same of each of its bytes.
    fn says(&self, region: &RegionSnapshot) -> bool {
        let same = RegionSnapshot { range: region.range, resident: region.resident, ..self.region };
        same == *region && self.resident == resident_share(region)
    }
}

impl Shares {
    /// Begins anew, for a snapshot with this `max_nr_accesses` and this sampling interval (0: not known), and working sets of a
    /// window of `window_s` seconds.
    pub fn begin(&mut self, max_nr_accesses: u32, sample_ns: u64, window_s: f64) {
        self.list.clear();
        self.weights.clear();
        let max_bp = f64::from(max_nr_accesses) * BP;
        let known = sample_ns > 0 && max_bp > 0.0;
        let second = if known { SECOND_NS / sample_ns as f64 } else { 0.0 };
        self.scale = Scale { max_bp, second, window: second * window_s };
    }

    /// Adds what `part` says, which begins at `offset` in the object.
    pub fn add(&mut self, object: usize, offset: u64, part: &RegionSnapshot) {
        // Those of one region come one after the other.
        if !self.weights.last().is_some_and(|last| last.says(part)) {
            self.weights.push(Weight::of(part, self.scale));
        }
        self.list.push(Share {
            object,
            start: offset,
            end: offset.saturating_add(part.range.size()),
            resident: part.resident.unwrap_or(0),
            weight: self.weights.len() - 1,
        });
    }

    /// Hands out the regions of each object: sorted, disjoint.
    pub fn add_up(
        &mut self,
        is_same: impl Fn(usize) -> bool,
        mut done: impl FnMut(usize, Vec<RegionSnapshot>),
    ) {
        let mut object: Option<(usize, Vec<RegionSnapshot>)> = None;
        self.each(is_same, |of, region, _| match &mut object {
            Some((last, regions)) if *last == of => push(regions, region),
            other => {
                if let Some((last, regions)) = other.replace((of, vec![region])) {
                    done(last, regions);
                }
            }
        });
        if let Some((last, regions)) = object {
            done(last, regions);
        }
    }

    /// Hands out what there is of each object, in order and no byte twice, with the share of it that is in the working set of the
    /// window. `is_same`: whether all who map an object have the same pages of it.
    pub fn each(
        &mut self,
        is_same: impl Fn(usize) -> bool,
        mut piece: impl FnMut(usize, RegionSnapshot, f64),
    ) {
        let Self { list, weights, edges, scale } = self;
        // Each target's come in order, mostly: a sort that merges what is sorted.
        list.sort_by_key(|s| (s.object, s.start, s.end));
        for shares in list.chunk_by(|a, b| a.object == b.object) {
            let Some(first) = shares.first() else { continue };
            let mut out = |region: RegionSnapshot, met_log: i64| {
                if !region.range.is_empty() {
                    piece(first.object, region, -(-(met_log as f64) / ONE).exp_m1());
                }
            };
            let is_same = is_same(first.object);
            // Most of what is mapped is mapped once, or always the same way: only what overlaps in part is swept.
            let mut rest = shares;
            while let Some((head, tail)) = rest.split_first() {
                let (mut end, mut alike) = (head.end, true);
                let more = tail.iter().take_while(|s| {
                    let overlaps = s.start < end;
                    if overlaps {
                        alike &= (s.start, s.end) == (head.start, head.end);
                        end = end.max(s.end);
                    }
                    overlaps
                });
                let (cluster, next) = rest.split_at(1 + more.count());
                match cluster {
                    [only] => out(only.region(weights), weights[only.weight].accesses.met_log),
                    several if alike => together(several, weights, (*scale, is_same), &mut out),
                    several => sweep(several, weights, (*scale, is_same), edges, &mut out),
                }
                rest = next;
            }
        }
    }
}

impl Share {
    fn region(&self, weights: &[Weight]) -> RegionSnapshot {
        let said = weights[self.weight].region;
        let resident = said.resident.map(|_| self.resident);
        RegionSnapshot { range: AddrRange::new(self.start, self.end), resident, ..said }
    }
}

/// Appends a region; to the last one where they touch and say the same.
fn push(out: &mut Vec<RegionSnapshot>, region: RegionSnapshot) {
    match out.last_mut() {
        Some(last)
            if last.range.end == region.range.start
                && RegionSnapshot { range: region.range, resident: region.resident, ..*last } == region
                && last.resident.is_some() == region.resident.is_some() =>
        {
            super::join(last, &region);
        }
        _ => out.push(region),
    }
}

/// Adds up shares of the same bytes.
fn together(
    shares: &[Share],
    weights: &[Weight],
    (scale, is_same): (Scale, bool),
    out: &mut impl FnMut(RegionSnapshot, i64),
) {
    let mut sum = Sum::new(scale, is_same);
    let (mut age, mut idle, mut range) = (u32::MAX, u32::MAX, AddrRange::new(0, 0));
    for share in shares {
        let weight = &weights[share.weight];
        sum.change(weight, 1);
        age = age.min(weight.region.age);
        idle = idle.min(idle_of(weight));
        range = AddrRange::new(share.start, share.end);
    }
    out(sum.region(range, age, idle), sum.met_log.get());
}

/// The share that is idle of what somebody maps, in 1/10000, also if that is all. Which pages those are is not told: of several who
/// access the same memory, most likely the same.
fn idle_of(weight: &Weight) -> u32 {
    let accesses = weight.region.accesses_bp() > 0 && weight.accesses.known;
    if accesses { u32::from(weight.region.idle_bp) } else { 10_000 }
}

/// Adds up shares that overlap.
fn sweep(
    shares: &[Share],
    weights: &[Weight],
    (scale, is_same): (Scale, bool),
    edges: &mut Vec<Edge>,
    out: &mut impl FnMut(RegionSnapshot, i64),
) {
    edges.clear();
    for share in shares {
        edges.push((share.start, true, share.weight));
        edges.push((share.end, false, share.weight));
    }
    edges.sort_by_key(|(at, begins, _)| (*at, *begins));
    let mut sum = Sum::new(scale, is_same);
    let (mut ages, mut idle) = (Multiset::default(), Multiset::default());
    let mut from = 0;
    for &(at, begins, weight) in edges.iter() {
        if sum.mappers > 0 && from < at {
            let (age, idle) = (ages.lowest().unwrap_or(0), idle.lowest().unwrap_or(0));
            out(sum.region(AddrRange::new(from, at), age, idle), sum.met_log.get());
        }
        from = at;
        let weight = &weights[weight];
        sum.change(weight, if begins { 1 } else { -1 });
        ages.change(weight.region.age, begins);
        idle.change(idle_of(weight), begins);
    }
}

/// What all who map a byte say together. Everything is kept so that who no longer maps can be taken out exactly.
#[derive(Debug, Default)]
struct Sum {
    scale: Scale,
    is_same: bool,
    mappers: i64,
    /// Of those who know: how many are certain to access in every interval; of the others, the sum of -ln(1 - p) in
    /// fixed point; of the accesses, where no probability is known.
    known: i64,
    certain: i64,
    log: i64,
    accesses_bp: u64,
    accessing: i64,
    counted: i64,
    exposure: u64,
    /// Of those who know, the sum of -ln(share seen) in the same fixed point.
    seen_log: Logs,
    /// Of those who access it, how many see all of it, and of the others the sum of -ln(1 - share seen).
    show_all: i64,
    shown_log: Logs,
    used_log: Logs,
    met_log: Logs,
    /// Those who say what is resident, those who have all of it, and of the others the sum of -ln(1 - share) in the same
    /// fixed point.
    told: i64,
    whole: i64,
    absent_log: Logs,
}

impl Sum {
    fn new(scale: Scale, is_same: bool) -> Self {
        let logs = || Logs::new(is_same);
        Self {
            scale,
            is_same,
            seen_log: logs(),
            shown_log: logs(),
            used_log: logs(),
            met_log: logs(),
            absent_log: logs(),
            ..Self::default()
        }
    }

    /// Who says so maps it too (1), or no longer (-1).
    fn change(&mut self, said: &Weight, by: i64) {
        let Weight { region, resident, accesses, absent_log } = said;
        self.mappers += by;
        if let Some(share) = resident {
            self.told += by;
            self.whole += by * i64::from(*share >= 1.0);
            self.absent_log.change(*absent_log, by);
        }
        if !accesses.known {
            return;
        }
        self.known += by;
        let of = usize::from(self.is_same);
        self.certain += by * i64::from(accesses.certain[of]);
        self.accessing += by * i64::from(region.nr_accesses > 0);
        self.counted += by * i64::from(region.exposure == RegionSnapshot::COUNTED);
        self.log += by * accesses.log[of];
        self.seen_log.change(accesses.seen_log, by);
        self.show_all += by * i64::from(accesses.shows_all);
        self.shown_log.change(accesses.shown_log, by);
        self.used_log.change(accesses.used_log, by);
        self.met_log.change(accesses.met_log, by);
        if by > 0 {
            self.exposure += accesses.exposure;
            self.accesses_bp += accesses.bp;
        } else {
            self.exposure -= accesses.exposure;
            self.accesses_bp -= accesses.bp;
        }
    }

    /// Where it has been as it is for `age` aggregations at least, and of all who access it a share of `idle_bp` is idle.
    fn region(&self, range: AddrRange, age: u32, idle_bp: u32) -> RegionSnapshot {
        let max_bp = self.scale.max_bp;
        let share = if self.whole > 0 { 1.0 } else { -(-(self.absent_log.get() as f64) / ONE).exp_m1() };
        // The rate is that of what is there; where one does not say what it has, of all.
        let there = if self.told == self.mappers && share > 0.0 { share } else { 1.0 };
        let bp = if max_bp <= 0.0 {
            self.accesses_bp as f64
        } else if self.certain > 0 {
            max_bp
        } else {
            let of = if self.is_same { 1.0 } else { there };
            -(-(self.log as f64) / ONE).exp_m1() / of * max_bp
        };
        // Of an access in an aggregation.
        let accessed = match max_bp > 0.0 {
            true => 1.0 - (1.0 - bp / max_bp).max(0.0).powf(max_bp / BP),
            false => (bp / BP).min(1.0),
        };
        let idle =
            if self.known < self.mappers { 0.0 } else { (-(self.seen_log.get() as f64) / ONE).exp() * BP };
        let shown =
            if self.show_all > 0 { BP } else { -(-(self.shown_log.get() as f64) / ONE).exp_m1() * BP };
        let seen = idle + (shown - idle).max(0.0) * accessed;
        let resident = (self.told == self.mappers).then(|| (range.size() as f64 * share).round() as u64);
        let summed = RegionSnapshot {
            range,
            nr_accesses: ((bp / BP).round() as u32).max(u32::from(self.accessing > 0)),
            nr_accesses_bp: bp.round() as u32,
            age,
            resident,
            // No more than leaves pages enough for the accesses.
            idle_bp: match max_bp > 0.0 && bp > 0.0 {
                true => f64::from(idle_bp.min(9999)).min((1.0 - bp / max_bp) * BP) as u16,
                false => 0,
            },
            ..RegionSnapshot::default()
        };
        let (seen, idle_bp) = self.as_used(&summed, there, (idle.min(seen), seen));
        // However rare the access that is known: its rate is.
        let seen_bp = (seen.round() as u16).max(u16::from(bp > 0.0 || self.accessing > 0));
        RegionSnapshot {
            seen_bp,
            exposure: match (self.counted, self.known) {
                // No rate: there is nothing that evidence could stand behind.
                _ if seen_bp == 0 => 0,
                (0, _) => u32::try_from(self.exposure).unwrap_or(u32::MAX - 1).min(u32::MAX - 1),
                _ => RegionSnapshot::COUNTED,
            },
            idle_bp,
            ..summed
        }
    }

    /// Of a sum how much is seen, between these (in 1/10000), and how much of that is idle, so that the working set of a second is no
    /// more than those of all who map it come to. What one of them uses a part of, and another may have in part, is no more in use
    /// for being mapped by both.
    fn as_used(&self, summed: &RegionSnapshot, there: f64, (least, seen): (f64, f64)) -> (f64, u16) {
        let Scale { max_bp, second, .. } = self.scale;
        if second <= 0.0 || summed.accesses_bp() == 0 {
            return (seen, summed.idle_bp);
        }
        let used = -(-(self.used_log.get() as f64) / ONE).exp_m1() * BP;
        // As working sets are counted.
        let met = |idle_bp| {
            let with = RegionSnapshot { idle_bp, ..*summed };
            share_accessed(&with, max_bp, second).min(there * share_in_use(&with))
        };
        let all = met(summed.idle_bp);
        if seen * all <= used * (1.0 + 1e-4) {
            return (seen, summed.idle_bp);
        }
        let seen = (used / all).clamp(least, seen);
        // As many pages as it accesses are in use.
        let most = ((1.0 - summed.accesses_bp() as f64 / max_bp).max(0.0) * BP) as u16;
        let (mut low, mut high) = (summed.idle_bp, most.max(summed.idle_bp));
        while low < high {
            let middle = low.midpoint(high);
            if seen * met(middle) <= used * (1.0 + 1e-4) { high = middle } else { low = middle + 1 }
        }
        (seen, low)
    }
}

#[cfg(test)]
mod tests;

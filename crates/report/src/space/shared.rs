//! Memory that several targets map: each byte once, with the accesses of all.
//!
//! Each target that maps a byte says how often it accessed it: in a share `p` of the sampling intervals. That the byte was
//! accessed by any of them in an interval has the probability `1 - product(1 - p)`, if they access it independently of
//! each other. That is the rate of the byte. Those of which nothing is known are left out of the product.
//!
//! How much of a byte is *seen* then depends on what was seen. That it is accessed, one of the targets suffices to show;
//! that it is not, only all of them together can: what one of them does not know may be in use there, however many others
//! know that they do not use it. So what is sure to be accessed within an aggregation is seen to the largest share in which
//! any of them shows it. What is not accessed is seen to the product of their shares (each sees some of the bytes, and which
//! is independent of what the others see): never more than who sees least, and nothing where one of them knows nothing.
//! Between the two it goes by the probability of an access. A byte has stood still for as long as the one that moved last.
//!
//! A byte can be accessed by those who have it in their page tables, and each may have others: what is *resident* of it is
//! `1 - product(1 - share)` over the shares that each has, as if who has which were independent, too. That is never less than
//! the largest share, nor more than their sum or the size. The largest alone would say of memory of which ten processes use a
//! tenth each that a tenth is in use. Where one of them does not say what is resident, it is not known of the byte.

use crate::rate::BP;
use isotherm_damon::{AddrRange, RegionSnapshot};
use std::collections::BTreeMap;

/// What the targets of a snapshot say about objects, and memory to use again.
#[derive(Clone, Debug, Default)]
pub(super) struct Shares {
    list: Vec<Share>,
    weights: Vec<Weight>,
    edges: Vec<Edge>,
    max_bp: f64,
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
    certain: bool,
    /// -ln(1 - p); 0 where that is certain.
    log: i64,
    seen_log: i64,
    exposure: u64,
    bp: u64,
}

/// One in the fixed point of the sums of logarithms.
const ONE: f64 = (1_u64 << 40) as f64;

/// -ln(1 - share) in that fixed point; 0 for all of it, which is counted apart.
fn missed(share: f64) -> i64 {
    if share < 1.0 { (-(-share).ln_1p() * ONE) as i64 } else { 0 }
}

fn resident_share(region: &RegionSnapshot) -> Option<f64> {
    region.resident.map(|bytes| bytes as f64 / region.range.size().max(1) as f64)
}

impl Weight {
    fn of(region: &RegionSnapshot, max_bp: f64) -> Self {
        let resident = resident_share(region);
        let p = if max_bp > 0.0 { region.accesses_bp() as f64 / max_bp } else { 0.0 };
        let counted = region.exposure == RegionSnapshot::COUNTED;
        let accesses = Accesses {
            known: true,
            certain: p >= 1.0,
            log: missed(p),
            seen_log: (-(f64::from(region.seen_bp) / BP).min(1.0).ln() * ONE) as i64,
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
    /// Begins anew, for a snapshot with this `max_nr_accesses`; 0: not known.
    pub fn begin(&mut self, max_nr_accesses: u32) {
        self.list.clear();
        self.weights.clear();
        self.max_bp = f64::from(max_nr_accesses) * BP;
    }

    /// Adds what `part` says, which begins at `offset` in the object.
    pub fn add(&mut self, object: usize, offset: u64, part: &RegionSnapshot) {
        // Those of one region come one after the other.
        if !self.weights.last().is_some_and(|last| last.says(part)) {
            self.weights.push(Weight::of(part, self.max_bp));
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
    pub fn add_up(&mut self, mut done: impl FnMut(usize, Vec<RegionSnapshot>)) {
        let Self { list, weights, edges, max_bp } = self;
        // Each target's come in order, mostly: a sort that merges what is sorted.
        list.sort_by_key(|s| (s.object, s.start, s.end));
        for shares in list.chunk_by(|a, b| a.object == b.object) {
            let Some(first) = shares.first() else { continue };
            let mut out: Vec<RegionSnapshot> = Vec::new();
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
                    [only] => push(&mut out, only.region(weights)),
                    several if alike => push(&mut out, together(several, weights, *max_bp)),
                    several => sweep(several, weights, *max_bp, edges, &mut out),
                }
                rest = next;
            }
            done(first.object, out);
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
    if region.range.is_empty() {
        return;
    }
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
fn together(shares: &[Share], weights: &[Weight], max_bp: f64) -> RegionSnapshot {
    let mut sum = Sum { max_bp, ..Sum::default() };
    let (mut seen, mut age, mut idle, mut range) = (0, u32::MAX, u32::MAX, AddrRange::new(0, 0));
    for share in shares {
        let weight = &weights[share.weight];
        sum.change(weight, 1);
        seen = seen.max(weight.region.seen_bp);
        age = age.min(weight.region.age);
        idle = idle.min(idle_of(weight));
        range = AddrRange::new(share.start, share.end);
    }
    sum.region(range, u32::from(seen), age, idle)
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
    max_bp: f64,
    edges: &mut Vec<Edge>,
    out: &mut Vec<RegionSnapshot>,
) {
    edges.clear();
    for share in shares {
        edges.push((share.start, true, share.weight));
        edges.push((share.end, false, share.weight));
    }
    edges.sort_by_key(|(at, begins, _)| (*at, *begins));
    let mut sum = Sum { max_bp, ..Sum::default() };
    let (mut seen, mut ages, mut idle) = (Multiset::default(), Multiset::default(), Multiset::default());
    let mut from = 0;
    for &(at, begins, weight) in edges.iter() {
        if sum.mappers > 0 && from < at {
            let (seen, age) = (seen.highest().unwrap_or(0), ages.lowest().unwrap_or(0));
            let idle = idle.lowest().unwrap_or(0);
            push(out, sum.region(AddrRange::new(from, at), seen, age, idle));
        }
        from = at;
        let weight = &weights[weight];
        sum.change(weight, if begins { 1 } else { -1 });
        seen.change(u32::from(weight.region.seen_bp), begins);
        ages.change(weight.region.age, begins);
        idle.change(idle_of(weight), begins);
    }
}

/// What all who map a byte say together. Everything is kept so that who no longer maps can be taken out exactly.
#[derive(Debug, Default)]
struct Sum {
    max_bp: f64,
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
    seen_log: i64,
    /// Those who say what is resident, those who have all of it, and of the others the sum of -ln(1 - share) in the same
    /// fixed point.
    told: i64,
    whole: i64,
    absent_log: i64,
}

impl Sum {
    /// Who says so maps it too (1), or no longer (-1).
    fn change(&mut self, said: &Weight, by: i64) {
        let Weight { region, resident, accesses, absent_log } = said;
        self.mappers += by;
        if let Some(share) = resident {
            self.told += by;
            self.whole += by * i64::from(*share >= 1.0);
            self.absent_log += by * absent_log;
        }
        if !accesses.known {
            return;
        }
        self.known += by;
        self.certain += by * i64::from(accesses.certain);
        self.accessing += by * i64::from(region.nr_accesses > 0);
        self.counted += by * i64::from(region.exposure == RegionSnapshot::COUNTED);
        self.log += by * accesses.log;
        self.seen_log += by * accesses.seen_log;
        if by > 0 {
            self.exposure += accesses.exposure;
            self.accesses_bp += accesses.bp;
        } else {
            self.exposure -= accesses.exposure;
            self.accesses_bp -= accesses.bp;
        }
    }

    /// Where who sees most sees a share of `seen` (in 1/10000), it has been as it is for `age` aggregations at least, and of all who
    /// access it a share of `idle_bp` is idle.
    fn region(&self, range: AddrRange, seen: u32, age: u32, idle_bp: u32) -> RegionSnapshot {
        let bp = if self.max_bp <= 0.0 {
            self.accesses_bp as f64
        } else if self.certain > 0 {
            self.max_bp
        } else {
            -(-(self.log as f64) / ONE).exp_m1() * self.max_bp
        };
        // Of an access in an aggregation.
        let accessed = match self.max_bp > 0.0 {
            true => 1.0 - (1.0 - bp / self.max_bp).max(0.0).powf(self.max_bp / BP),
            false => (bp / BP).min(1.0),
        };
        let idle = if self.known < self.mappers { 0.0 } else { (-(self.seen_log as f64) / ONE).exp() * BP };
        let seen = idle + (f64::from(seen) - idle) * accessed;
        // However rare the access that is known: its rate is.
        let seen_bp = (seen.round() as u16).max(u16::from(bp > 0.0 || self.accessing > 0));
        let share = if self.whole > 0 { 1.0 } else { -(-(self.absent_log as f64) / ONE).exp_m1() };
        let resident = (self.told == self.mappers).then(|| (range.size() as f64 * share).round() as u64);
        RegionSnapshot {
            range,
            nr_accesses: ((bp / BP).round() as u32).max(u32::from(self.accessing > 0)),
            nr_accesses_bp: bp.round() as u32,
            age,
            seen_bp,
            exposure: match (self.counted, self.known) {
                // No rate: there is nothing that evidence could stand behind.
                _ if seen_bp == 0 => 0,
                (0, _) => u32::try_from(self.exposure).unwrap_or(u32::MAX - 1).min(u32::MAX - 1),
                _ => RegionSnapshot::COUNTED,
            },
            resident,
            // No more than leaves pages enough for the accesses.
            idle_bp: match self.max_bp > 0.0 && bp > 0.0 {
                true => f64::from(idle_bp.min(9999)).min((1.0 - bp / self.max_bp) * BP) as u16,
                false => 0,
            },
        }
    }
}

/// Numbers, each as often as it was put in.
#[derive(Debug, Default)]
pub(crate) struct Multiset(BTreeMap<u32, usize>);

impl Multiset {
    /// Puts a number in, or takes it out.
    pub fn change(&mut self, value: u32, begins: bool) {
        if begins {
            *self.0.entry(value).or_default() += 1;
        } else if let Some(count) = self.0.get_mut(&value) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(&value);
            }
        }
    }

    /// The lowest number in it.
    pub fn lowest(&self) -> Option<u32> {
        self.0.keys().next().copied()
    }

    /// The highest number in it.
    pub fn highest(&self) -> Option<u32> {
        self.0.keys().next_back().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic::region;
    use proptest::prelude::*;

    fn summed(shares: &[RegionSnapshot]) -> Vec<RegionSnapshot> {
        let mut all = Shares::default();
        all.begin(20);
        shares.iter().for_each(|r| all.add(3, r.range.start, r));
        let mut out = Vec::new();
        all.add_up(|object, regions| {
            assert_eq!(object, 3);
            out = regions;
        });
        out
    }

    proptest! {
        /// Against the definition, byte by byte.
        #[test]
        fn every_byte_has_the_accesses_of_all_who_map_it(
            parts in prop::collection::vec((0..100_u64, 1..40_u64, 0..=20_u32, 0..3_u16, 0..9_u32), 1..20),
        ) {
            let parts: Vec<RegionSnapshot> = parts
                .into_iter()
                .map(|(start, size, nr, seen, age)| RegionSnapshot {
                    nr_accesses: if seen == 0 { 0 } else { nr },
                    nr_accesses_bp: if seen == 0 { 0 } else { nr * 10_000 },
                    seen_bp: seen * 5000,
                    age,
                    ..region(start, start + size, 0)
                })
                .collect();
            let out = summed(&parts);
            prop_assert!(out.windows(2).all(|w| w[0].range.end <= w[1].range.start));
            for at in 0..150 {
                let here: Vec<&RegionSnapshot> = parts.iter().filter(|r| r.range.contains(at)).collect();
                let Some(found) = out.iter().find(|r| r.range.contains(at)) else {
                    prop_assert!(here.is_empty());
                    continue;
                };
                let known = here.iter().filter(|r| !r.is_unknown());
                let missed: f64 = known.map(|r| 1.0 - f64::from(r.nr_accesses) / 20.0).product();
                let expected = (1.0 - missed) * 200_000.0;
                prop_assert!((f64::from(found.nr_accesses_bp) - expected).abs() <= 1.0, "{:?} {}", found, expected);
                let seen = here.iter().map(|r| f64::from(r.seen_bp) / 10_000.0);
                let (least, most) = (seen.clone().fold(1.0, f64::min), seen.clone().fold(0.0, f64::max));
                let all: f64 = seen.product();
                let accessed = 1.0 - missed.powi(20);
                let expected = (all + (most - all) * accessed) * 10_000.0;
                prop_assert!((f64::from(found.seen_bp) - expected).abs() <= 1.0, "{:?} {}", found, expected);
                if found.nr_accesses_bp == 0 {
                    prop_assert!(f64::from(found.seen_bp) <= least * 10_000.0, "{:?} {}", found, least);
                }
                prop_assert_eq!(Some(found.age), here.iter().map(|r| r.age).min());
                prop_assert_eq!(found.nr_accesses > 0, here.iter().any(|r| r.nr_accesses > 0));
            }
        }
    }

    /// One who knows that it does not access a byte says nothing of the others, each of which may: a share of one in four
    /// "known idle" would be cold memory that a backend not looked at yet may be reading.
    #[test]
    fn one_who_sees_no_access_does_not_speak_for_the_others() {
        let unknown = RegionSnapshot { seen_bp: 0, ..region(0, 10, 0) };
        for (idle, others) in [(1, 3), (9, 1)] {
            let all = [vec![region(0, 10, 0); idle], vec![unknown; others]].concat();
            let [found] = summed(&all)[..] else { panic!("one region") };
            assert!(found.is_unknown() && found.nr_accesses_bp == 0 && found.exposure == 0, "{found:?}");
        }
        let idle = summed(&[region(0, 10, 0); 9]);
        assert_eq!((idle[0].seen_bp, idle[0].nr_accesses_bp), (10_000, 0));
        let half = RegionSnapshot { seen_bp: 5000, ..region(0, 10, 0) };
        assert_eq!(summed(&[half, region(0, 10, 0)])[0].seen_bp, 5000);
        assert_eq!(summed(&[half, half])[0].seen_bp, 2500, "which halves these are is not known");
        let hot = summed(&[region(0, 10, 20), unknown, unknown, unknown]);
        assert_eq!((hot[0].seen_bp, hot[0].nr_accesses), (10_000, 20));
        let rare = RegionSnapshot { nr_accesses_bp: 1, ..region(0, 10, 0) };
        let rare = summed(&[rare, unknown]);
        assert!(!rare[0].is_unknown() && rare[0].nr_accesses_bp == 1, "{:?}", rare[0]);
    }

    #[test]
    fn accesses_add_up_where_their_fine_count_is_too_small() {
        let often = |nr| RegionSnapshot { nr_accesses: nr, nr_accesses_bp: u32::MAX, ..region(0, 10, 0) };
        let mut shares = Shares::default();
        shares.begin(1_000_000);
        [500_000, 600_000].iter().for_each(|nr| shares.add(1, 0, &often(*nr)));
        let mut found = Vec::new();
        shares.add_up(|_, regions| found = regions);
        assert!(
            found[0].nr_accesses.abs_diff(800_000) <= 1 && found[0].nr_accesses_bp == u32::MAX,
            "{found:?}"
        );
    }

    /// Ten who have a tenth each may have all of it between them, and two who have none have none.
    #[test]
    fn pages_that_lie_apart_are_the_same_ones_for_all_who_use_them() {
        let apart = |idle_bp| RegionSnapshot { nr_accesses_bp: 5000, idle_bp, ..region(0, 10, 0) };
        let idle = |shares: &[RegionSnapshot]| summed(shares)[0].idle_bp;
        assert_eq!(idle(&[apart(8750), apart(8750)]), 8750);
        assert_eq!(idle(&[apart(8750), region(0, 10, 0)]), 8750, "who does not use it says nothing of which");
        assert_eq!(idle(&[apart(8750), RegionSnapshot { seen_bp: 0, ..region(0, 10, 0) }]), 8750);
        assert_eq!(idle(&[apart(8750), apart(2000)]), 2000, "at least as many as of any");
        assert_eq!(idle(&[apart(8750), region(0, 10, 1)]), 0);
        assert_eq!(idle(&[region(0, 10, 0), region(0, 10, 0)]), 0, "all of it is idle, and that is its rate");
        // Together they access more than an eighth of it in each interval.
        let often =
            RegionSnapshot { nr_accesses: 2, nr_accesses_bp: 20_000, idle_bp: 8750, ..region(0, 10, 0) };
        assert!((8000..=8200).contains(&idle(&[often, often])), "{}", idle(&[often, often]));
    }

    #[test]
    fn who_has_which_bytes_is_independent() {
        let has = |bytes| RegionSnapshot { resident: Some(bytes), ..region(0, 1000, 20) };
        let resident = |shares: &[RegionSnapshot]| summed(shares)[0].resident;
        assert_eq!(resident(&[has(500), has(500)]), Some(750));
        assert_eq!(resident(&[has(100); 10]), Some(651));
        assert_eq!(resident(&[has(1000), has(10)]), Some(1000));
        assert_eq!(resident(&[has(0), has(300)]), Some(300));
        assert_eq!(resident(&[has(0), has(0)]), Some(0));
        assert_eq!(resident(&[has(500), region(0, 1000, 20)]), None, "one may have any");
    }

    #[test]
    fn what_all_map_alike_stays_one_region() {
        let alike = [region(0, 50, 10), region(50, 90, 10), region(0, 90, 0)];
        let out = summed(&alike);
        assert_eq!(out.len(), 1);
        assert_eq!((out[0].range, out[0].nr_accesses), (AddrRange::new(0, 90), 10));
    }
}

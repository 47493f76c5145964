//! Which bytes were accessed within a second, as `lab accuracy` judges it: recorded against true, by what both have in common.

use crate::patterns::{areas, watch};
use crate::space::{Kind, Pattern};
use crate::{MIB, PAGE};
use isotherm_damon::*;

/// The truth of an area: the probability that one of its pages is accessed within the second before `now`.
fn accessed(pattern: &Pattern, area: AddrRange, rate: f64, now: u64) -> Vec<(AddrRange, f64)> {
    if let Some((front, _)) = pattern.front.filter(|(front, _)| *front == area) {
        let (then, till) = (pattern.reached(now.saturating_sub(200)).end, pattern.reached(now).end);
        return vec![(AddrRange::new(front.start, then), 0.0), (AddrRange::new(then, till), 1.0)];
    }
    let hits = rate * 200.0;
    vec![(area, if pattern.kind == Kind::Random { 1.0 - (-hits).exp() } else { hits.min(1.0) })]
}

/// F1 of bytes accessed within a second, and bytes recorded by bytes accessed; after `idle` aggregations without an access.
fn second(pattern: &Pattern, idle: u32, aggregations: u32) -> (f64, f64) {
    let (mut common, mut told, mut truth) = (0.0, 0.0, 0.0);
    for seed in [11, 23, 35, 47] {
        let before = Pattern { hot: Vec::new(), ..pattern.clone() };
        let phases = [(before, idle), (pattern.clone(), aggregations)];
        for (_, snapshot) in watch(&phases, seed).iter().filter(|(phase, _)| *phase == 1).skip(10) {
            let now = snapshot.end_ns / 5_000_000;
            let front = pattern.front.map(|(range, _)| (range, 0.0));
            for (area, rate) in pattern.areas.iter().copied().chain(front) {
                for (part, share) in accessed(pattern, area, rate, now) {
                    for region in snapshot.targets[0].regions.iter().filter(|r| !r.is_unknown()) {
                        let bytes = region.range.intersection(part).size() as f64;
                        let p =
                            f64::from(region.nr_accesses_bp) / f64::from(snapshot.max_nr_accesses) / 10_000.0;
                        let recorded = 1.0 - (1.0 - p.min(1.0)).powi(200);
                        common += bytes * share.min(recorded);
                        told += bytes * recorded;
                        truth += bytes * share;
                    }
                }
            }
        }
    }
    (2.0 * common / (told + truth), told / truth)
}

/// Grains of `kib` KiB whose popularity falls as 1 / n^0.9, of 2 Hz on average.
fn zipf(count: u64, kib: u64, scattered: bool) -> Vec<(u64, u64, f64)> {
    let share = |n: u64| 1.0 / ((n + 1) as f64).powf(0.9);
    let all: f64 = (0..count).map(share).sum();
    let rank = |i: u64| if scattered { i * 79 % count } else { i };
    (0..count).map(|i| (0, kib, share(rank(i)) / all * count as f64 * 2.0)).collect()
}

#[test]
fn what_was_accessed_within_a_second() {
    for (unit, word) in [(PAGE, "4k"), (2 * MIB, "huge")] {
        let idle = [(0, 128 * 1024, 0.0)];
        let list = [zipf(256, 1024, false), zipf(128, 2048, true), idle.to_vec()].concat();
        let zipf = Pattern { unit, kind: Kind::Random, ..areas(&list) };
        let sweep = areas(&[(0, 512 * 1024, 2.0), (0, 128 * 1024, 0.0)]);
        let mut front = Pattern { unit, ..areas(&[(0, 64 * 1024, 0.0)]) };
        let start = 0x7f00_1000_0000;
        front.front = Some((AddrRange::new(start, start + 1024 * MIB), MIB / 2));
        let sweep = Pattern { unit, kind: Kind::InOrder, ..sweep };
        // Of small pages each speaks for itself.
        let least_zipf = if unit == PAGE { 0.93 } else { 0.87 };
        for (name, pattern, idle, time, least) in [
            ("zipf", &zipf, 0, 200, least_zipf),
            ("zipf that begins later", &zipf, 30, 200, least_zipf - 0.01),
            ("a loop over 512 MiB", &sweep, 0, 200, 0.9),
            ("a loop that begins later", &sweep, 30, 200, 0.9),
            ("front", &front, 0, 150, 0.97),
        ] {
            let (f1, ratio) = second(pattern, idle, time);
            println!("F1 {f1:.3}, recorded / true {ratio:.2}: {name}, {word} pages");
            assert!(f1 > least, "{name}, {word} pages: F1 {f1:.3}, recorded / true {ratio:.2}");
        }
    }
}

//! Pieces of hot memory among idle memory, smaller than what is observed as one, wherever they lie.

use crate::patterns::watch;
use isotherm_damon::*;
use isotherm_simulated::{
    Keep, Kind, MIB, PAGE, Pattern, Prices, Purse, Simulated, areas, share_accessed, tick,
};

/// 200 MiB with a piece of `kib` every 8 MiB, `offset` KiB into it, accessed at 10 Hz.
fn pieces(kib: u64, offset: u64, kind: Kind) -> Pattern {
    let mut pattern = areas(&[(0, 200 * 1024, 0.0)]);
    let start = pattern.areas[0].0.start;
    pattern.kind = kind;
    pattern.hot = (0..25)
        .map(|i| {
            let at = start + i * 8 * MIB + offset * 1024;
            (AddrRange::new(at, at + kib * 1024), 0.05)
        })
        .collect();
    pattern
}

/// How often a piece of a few cells is met is chance: rates are a mean of these.
const SEEDS: [u64; 4] = [11, 12, 13, 14];

fn snapshots(pattern: &Pattern, seed: u64) -> Vec<Snapshot> {
    watch(&[(pattern.clone(), 150)], seed).into_iter().map(|(_, s)| s).collect()
}

/// Bytes of the pieces that a region has, and all that it has.
fn bytes_of(region: &RegionSnapshot, pattern: &Pattern) -> (f64, f64) {
    let of = |ranges: &[(AddrRange, f64)]| {
        ranges.iter().map(|(range, _)| region.range.intersection(*range).size()).sum::<u64>() as f64
    };
    (of(&pattern.hot), of(&pattern.areas))
}

/// Seconds until nine tenths of the pieces read as accessed.
fn found_after(pattern: &Pattern, snapshots: &[Snapshot]) -> f64 {
    let all: u64 = pattern.hot.iter().map(|(range, _)| range.size()).sum();
    let found = |s: &Snapshot| -> f64 {
        let hot = s.targets[0].regions.iter().filter(|r| r.nr_accesses > 0);
        hot.map(|r| bytes_of(r, pattern).0).sum()
    };
    let first = snapshots.iter().position(|s| found(s) >= 0.9 * all as f64);
    first.map_or(f64::INFINITY, |i| i as f64 / 10.0)
}

/// From the seventh second on: mean rate of the pieces, and the share of all else that reads as accessed.
fn told(pattern: &Pattern, snapshots: &[Snapshot]) -> (f64, f64) {
    let (mut hz, mut bytes, mut beside, mut idle) = (0.0, 0.0, 0.0, 0.0);
    for s in snapshots.iter().skip(70) {
        for r in &s.targets[0].regions {
            let (hot, all) = bytes_of(r, pattern);
            hz += hot * r.rate_hz(s.sample_ns, s.max_nr_accesses);
            bytes += hot;
            beside += if r.nr_accesses_bp > 0 { all - hot } else { 0.0 };
            idle += all - hot;
        }
    }
    (hz / bytes, beside / idle)
}

#[test]
fn small_pieces_are_found_where_they_lie() {
    let mut failed = 0;
    for kind in [Kind::Random, Kind::Sweep] {
        for kib in [16, 32, 64, 128, 256, 512] {
            for offset in [0, 100, 1000 - kib / 2] {
                let pattern = pieces(kib, offset, kind);
                let runs = SEEDS.map(|seed| snapshots(&pattern, seed));
                let after = runs.iter().map(|run| found_after(&pattern, run)).fold(0.0, f64::max);
                let of_each = runs.each_ref().map(|run| told(&pattern, run));
                let beside = of_each.iter().map(|one| one.1).fold(0.0, f64::max);
                let hz = of_each.iter().map(|one| one.0).sum::<f64>() / SEEDS.len() as f64;
                println!(
                    "{kind:?} {kib} KiB at {offset}: {hz:.1} Hz after {after:.1} s, and {beside:.4} of all else"
                );
                // Of pages that are accessed at random 9.75 intervals a second see an access.
                failed += u32::from(!(8.0..13.0).contains(&hz) || after > 6.0 || beside > 0.05);
                let astray = of_each.iter().filter(|one| !(4.5..20.0).contains(&one.0)).count();
                assert_eq!(astray, 0, "{of_each:?}");
            }
        }
    }
    assert_eq!(failed, 0);
}

/// Every eighth page: a rate is that of all pages, and nothing is told of what is idle around.
#[test]
fn pages_far_apart_are_a_share_of_their_region() {
    let mut pattern = areas(&[(0, 64 * 1024, 0.0)]);
    let start = pattern.areas[0].0.start + 16 * MIB;
    pattern.kind = Kind::Sweep;
    pattern.hot =
        (0..512).map(|i| start + i * 8 * PAGE).map(|at| (AddrRange::new(at, at + PAGE), 0.05)).collect();
    let range = AddrRange::new(start, start + 16 * MIB);
    let snapshots = snapshots(&pattern, 11);
    let hz = crate::mean_hz(&snapshots[70..], range);
    assert!((1.0..1.6).contains(&hz), "{hz} Hz instead of 1.25");
    let before = crate::mean_hz(&snapshots[70..], AddrRange::new(start - 16 * MIB, start));
    assert!(before < 0.05, "{before} Hz before it");
}

/// Pages that lie apart in a region, and pages that are each accessed now and then: as much is told to be accessed within a second
/// as is, whether it is known which pages those are or not.
#[test]
fn a_region_of_pages_far_apart_is_as_large_a_working_set_as_those_are() {
    let mut failed = 0;
    for kind in [Kind::Random, Kind::Sweep] {
        for (apart, p) in [(1, 0.05), (1, 0.005), (2, 0.05), (4, 0.05), (8, 0.05), (8, 0.01), (32, 0.05)] {
            let mut pattern = areas(&[(0, 128 * 1024, 0.0)]);
            let start = pattern.areas[0].0.start + 32 * MIB;
            let pages = 64 * MIB / PAGE / apart;
            pattern.kind = kind;
            pattern.hot = (0..pages)
                .map(|i| start + i * apart * PAGE)
                .map(|at| (AddrRange::new(at, at + PAGE), p))
                .collect();
            let range = AddrRange::new(start, start + 64 * MIB);
            let (mut told, mut idle, mut taken) = (0.0, 0.0, 0.0);
            for s in snapshots(&pattern, 11).iter().skip(70) {
                for r in &s.targets[0].regions {
                    let bytes = r.range.intersection(range).size() as f64;
                    told += bytes * share_accessed(r, s.max_nr_accesses, 200);
                    idle += bytes * f64::from(r.idle_bp) / 10_000.0;
                }
                taken += 1.0;
            }
            let truth = (pages * PAGE) as f64 * (1.0 - (1.0_f64 - p).powi(200)) * taken;
            let (ratio, idle) = (told / truth, idle / (64.0 * MIB as f64 * taken));
            println!(
                "{kind:?} every {apart} pages at {p} an interval: {ratio:.2} of the truth, {idle:.3} idle"
            );
            failed += u32::from(!(0.8..1.3).contains(&ratio) || apart == 1 && idle > 0.01);
        }
    }
    assert_eq!(failed, 0);
}

/// What was accessed of a cell is idle, and what was idle beside it is accessed.
#[test]
fn a_piece_that_moves_within_its_cell_is_followed() {
    for kind in [Kind::Random, Kind::Sweep] {
        for (from, to) in [(0, 128), (128, 0), (100, 164)] {
            let (before, after) = (pieces(64, from, kind), pieces(64, to, kind));
            let (mut first, mut hot, mut idle) = (0.0, 0.0, 0.0);
            for seed in SEEDS {
                let phases = [(before.clone(), 80), (after.clone(), 100)];
                let all: Vec<Snapshot> = watch(&phases, seed).into_iter().map(|(_, s)| s).collect();
                let moved = all.get(130..).unwrap();
                let left = |(old, new): (&(AddrRange, f64), &(AddrRange, f64))| {
                    AddrRange::new(old.0.start, old.0.end.min(new.0.start.max(old.0.start + PAGE)))
                };
                let were = before.hot.iter().zip(&after.hot).map(left);
                let of_one = told(&before, &all[..80]).0;
                let then =
                    after.hot.iter().map(|(range, _)| crate::mean_hz(moved, *range)).sum::<f64>() / 25.0;
                assert!(
                    (4.0..20.0).contains(&of_one) && (4.0..20.0).contains(&then),
                    "{of_one}, {then} Hz: {seed}"
                );
                first += of_one / SEEDS.len() as f64;
                hot += then / SEEDS.len() as f64;
                idle +=
                    were.map(|range| crate::mean_hz(moved, range)).sum::<f64>() / (25 * SEEDS.len()) as f64;
            }
            println!("{kind:?} from {from} to {to}: {first:.1} Hz, then {hot:.1} and {idle:.1} where it was");
            assert!((7.0..14.0).contains(&first), "{first} Hz");
            assert!((6.0..14.0).contains(&hot) && idle < 2.0, "then {hot} Hz, and {idle} where it was");
        }
    }
}

/// Of 64 MiB every second page, each at even distances: two windows of a cell tell that it is the same ones, and a few cells that all are
/// like that. Most of it after two seconds, all after four or so; it took 5 to 20.
#[test]
fn that_it_is_every_second_page_is_known_after_two_seconds() {
    for seed in [11, 23, 35, 47] {
        let mut pattern = areas(&[(0, 128 * 1024, 0.0)]);
        let start = pattern.areas[0].0.start + 32 * MIB;
        pattern.kind = Kind::Sweep;
        let page = |i: u64| AddrRange::new(start + 2 * i * PAGE, start + (2 * i + 1) * PAGE);
        pattern.hot = (0..32 * MIB / PAGE).map(|i| (page(i), 0.05)).collect();
        let range = AddrRange::new(start, start + 64 * MIB);
        let idle = |s: &Snapshot| {
            let of =
                |r: &RegionSnapshot| r.range.intersection(range).size() as f64 * f64::from(r.idle_bp) / 1e4;
            s.targets[0].regions.iter().map(of).sum::<f64>() / (64 * MIB) as f64
        };
        let all: Vec<f64> = watch(&[(pattern, 100)], seed).iter().map(|(_, s)| idle(s)).collect();
        println!("idle, a second each: {:.2?}", all.iter().step_by(10).collect::<Vec<_>>());
        assert!(all[20..].iter().all(|idle| (0.3..0.6).contains(idle)), "{:.2?}", &all[20..]);
        assert!(all[45..].iter().all(|idle| (0.42..0.55).contains(idle)), "{:.2?}", &all[45..]);
    }
}

/// A hundred pieces of 1 MiB, 4 MiB apart, gone over ten times a second: MiB that are told to be accessed within a second, and MiB of
/// which nothing is known, of each snapshot from 2 s on.
fn many_pieces(kind: Kind, prices: Prices, share: f64) -> Vec<(f64, f64)> {
    let mut pattern = areas(&[(0, 400 << 10, 0.0)]);
    let start = pattern.areas[0].0.start;
    pattern.kind = kind;
    pattern.hot =
        (0..100).map(|i| start + i * 4 * MIB).map(|at| (AddrRange::new(at, at + MIB), 0.05)).collect();
    let mut monitor = Monitor::new(Attrs::default(), Simulated::new(pattern), Watch::new(), 11).unwrap();
    monitor.add_target(TargetId(1)).unwrap();
    let mut purse = Purse::full(1).with_prices(prices).with_share(share);
    let (mut now, mut keep) = (0, Keep::default());
    while now < 200 * 30 {
        tick(&mut monitor, &mut now, &mut purse, &mut keep);
    }
    let told = |s: &Snapshot| {
        let mib = |r: &RegionSnapshot, part: f64| r.range.size() as f64 * part / MIB as f64;
        let seen = |r: &RegionSnapshot| f64::from(r.seen_bp) / 10_000.0;
        let regions = || s.targets.iter().flat_map(|target| &target.regions);
        let used = regions().map(|r| mib(r, seen(r) * share_accessed(r, s.max_nr_accesses, 200))).sum();
        (used, regions().map(|r| mib(r, 1.0 - seen(r))).sum())
    };
    keep.0.iter().filter(|s| s.start_ns >= 2_000_000_000).map(told).collect()
}

/// There is too little for a check of each now and then. What was known of them faded, went with the idle memory around it, and was told as
/// 0.003 Hz, seen without a doubt: a scheme would have paged out what is in use ten times a second.
#[test]
fn what_cannot_be_checked_often_enough_is_unknown_and_not_idle() {
    for kind in [Kind::Sweep, Kind::Periodic] {
        for (name, prices, share) in
            [("busy", Prices::BUSY, 0.01), ("busy", Prices::BUSY, 0.007), ("quiet", Prices::QUIET, 0.01)]
        {
            let told = many_pieces(kind, prices, share);
            let least = told.iter().map(|(used, unknown)| used + unknown).fold(f64::INFINITY, f64::min);
            let most = told.iter().map(|(used, _)| *used).fold(0.0, f64::max);
            let used = told.iter().map(|(used, _)| *used).sum::<f64>() / told.len() as f64;
            println!(
                "{kind:?}, {name} at {share}: {used:.0} of 100 MiB, {most:.0} at most, {least:.0} at least with what is unknown"
            );
            assert!(least > 80.0 && most < 103.0, "{kind:?}, {name} at {share}: {least} to {most} MiB");
            assert!(name == "busy" || used > 97.0, "{kind:?}, {name}: {used} MiB on the mean");
        }
    }
}

//! Other intervals than the default: what is said in seconds (how long something that appeared counts as accessed, how long
//! evidence lasts) is the same time at each.

use isotherm_damon::*;
use isotherm_simulated::{
    Keep, Kind, MIB, Pace, Pattern, Phase, Purse, Run, Simulated, areas, run_at, tick, told,
};
use std::time::Duration;

/// Sampling intervals, ms, each with 20 to an aggregation, and the unit that the simulation takes for it.
const INTERVALS: [(u64, u64); 5] = [(1, 1), (2, 1), (5, 5), (20, 5), (50, 5)];

fn pace((sample_ms, unit_ms): (u64, u64)) -> Pace {
    let ms = Duration::from_millis;
    let attrs = Attrs { sample: ms(sample_ms), aggr: ms(20 * sample_ms), ..Attrs::default() };
    Pace { attrs, unit_ns: unit_ms * 1_000_000 }
}

/// Areas with their KiB and Hz, in units of `unit_ms`.
fn pattern(unit_ms: u64, list: &[(u64, f64)], kind: Kind) -> Pattern {
    let list: Vec<_> = list.iter().map(|(kib, hz)| (0, *kib, hz * unit_ms as f64 / 5.0)).collect();
    Pattern { kind, ..areas(&list) }
}

fn watch(interval: (u64, u64), pattern: &Pattern, seconds: u64, seed: u64) -> Run {
    let aggregations = (seconds * 1000 / (20 * interval.0)) as u32;
    let phases = [Phase::new(pattern.clone(), aggregations)];
    run_at(pace(interval), &phases, 1, (false, &|_| true), Watch::new(), seed)
}

/// Bytes accessed within a second, by the rates told.
fn working_set(snapshot: &Snapshot) -> f64 {
    let a_second = 1e9 / snapshot.sample_ns as f64;
    let of = |r: &RegionSnapshot| {
        r.range.size() as f64
            * (1.0 - (1.0 - r.probability(snapshot.max_nr_accesses).min(1.0)).powf(a_second))
    };
    snapshot.targets.iter().flat_map(|t| &t.regions).filter(|r| !r.is_unknown()).map(of).sum()
}

#[test]
fn rates_are_right_at_every_interval() {
    for interval in INTERVALS {
        let mut all = Vec::new();
        for kind in [Kind::InOrder, Kind::Sweep] {
            let pattern = pattern(interval.1, &[(16 << 10, 10.0), (64 << 10, 0.0), (32 << 10, 0.5)], kind);
            let mut hz = Vec::new();
            // Of four seeds the mean was 6.9 to 12 Hz by chance; short intervals take the longest.
            for seed in 0..(4 * interval.0).clamp(6, 20) {
                let run = watch(interval, &pattern, 14, seed);
                let settled = run.snapshots.iter().filter(|(_, s)| s.end_ns > 4_000_000_000);
                let rates: Vec<f64> =
                    settled.map(|(_, s)| told(s, &s.targets[0], pattern.areas[0].0)).collect();
                hz.push(rates.iter().sum::<f64>() / rates.len() as f64);
            }
            all.push(hz.iter().sum::<f64>() / hz.len() as f64);
        }
        println!("{} ms: {all:.1?} of 10 Hz", interval.0);
        for hz in all {
            assert!((7.0..13.5).contains(&hz), "{hz} of 10 Hz at {} ms", interval.0);
        }
    }
}

#[test]
fn what_was_written_once_counts_for_a_second_at_every_interval() {
    for interval in INTERVALS {
        let mut pattern = pattern(interval.1, &[(16 << 10, 0.0)], Kind::Random);
        let range = AddrRange::new(0x7fff_0000_0000, 0x7fff_0000_0000 + 64 * MIB);
        pattern.ranges.push(range);
        // All of it within the first two seconds.
        pattern.front = Some((range, 64 * MIB * interval.1 / 2000));
        let run = watch(interval, &pattern, 10, 5);
        let at = |from: f64, until: f64| {
            let within = |s: &&(usize, Snapshot)| (from..until).contains(&(s.1.end_ns as f64 / 1e9));
            let sets: Vec<f64> =
                run.snapshots.iter().filter(within).map(|(_, s)| working_set(s) / MIB as f64).collect();
            sets.iter().sum::<f64>() / sets.len().max(1) as f64
        };
        let (during, after) = (at(1.3, 2.3), at(5.0, 10.0));
        println!("{} ms: {during:.1} MiB while it is written, {after:.1} MiB after that", interval.0);
        assert!(during > 16.0, "{during} MiB of 32 a second at {} ms", interval.0);
        assert!(after < 3.0, "{after} MiB of none at {} ms", interval.0);
    }
}

#[test]
fn what_is_known_stays_so_when_the_interval_changes() {
    let pattern = pattern(5, &[(16 << 10, 10.0), (64 << 10, 0.0)], Kind::InOrder);
    let hot = pattern.areas[0].0;
    let attrs = |interval: u64| pace((interval, 5)).attrs;
    let mut monitor = Monitor::new(attrs(5), Simulated::new(pattern.clone()), Watch::new(), 7).unwrap();
    monitor.add_target(TargetId(1)).unwrap();
    let (mut now, mut purse) = (0, Purse::at(1, pace((5, 5))));
    // As auto-tuning does, up and down.
    for interval in [5, 10, 20, 40, 20, 10, 5] {
        monitor.set_attrs(attrs(interval)).unwrap();
        purse.set_attrs(attrs(interval));
        let mut keep = Keep::default();
        let before = monitor.ops().clears;
        // 4 s each.
        let end = now + 4 * 200;
        while now < end {
            tick(&mut monitor, &mut now, &mut purse, &mut keep);
        }
        let clears = monitor.ops().clears - before;
        let rates: Vec<f64> = keep.0.iter().map(|s| told(s, &s.targets[0], hot)).collect();
        let unknown = |s: &Snapshot| -> u64 {
            s.targets[0].regions.iter().filter(|r| r.is_unknown()).map(|r| r.range.size()).sum()
        };
        println!("{interval} ms: {rates:.1?} of 10 Hz, {clears} clears");
        if now > 4 * 200 {
            assert!(keep.0.iter().all(|s| unknown(s) < MIB), "at {interval} ms");
            let mean = rates.iter().sum::<f64>() / rates.len() as f64;
            assert!((7.0..13.5).contains(&mean), "{mean} of 10 Hz at {interval} ms");
            assert!(rates.iter().all(|hz| (5.0..20.0).contains(hz)), "{rates:?} at {interval} ms");
        }
    }
}

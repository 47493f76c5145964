//! What looks and clears cost beside a busy program: a call costs as much as several of what it does, and a page as much as a
//! twelfth of a range. Where the sampler took a cell for as dear as a check it made a third as many, and found changes later.

use crate::poor::followed;
use isotherm_damon::*;
use isotherm_simulated::{Keep, Kind, Pattern, Prices, Purse, Second, Simulated, areas, tick, zipf};

const SEEDS: [u64; 8] = [11, 23, 35, 47, 59, 61, 73, 85];

fn purse(share: f64) -> Purse {
    Purse::full(1).with_prices(Prices::BUSY).with_share(share)
}

/// The mean of all seeds.
fn mean_followed(name: &str, phases: &[Pattern], each: u64, share: f64) -> f64 {
    let all = SEEDS.map(|seed| followed(phases, each, purse(share), seed));
    let mean = all.iter().sum::<f64>() / all.len() as f64;
    println!("{name} at {share}: F1 {mean:.3}, by seed {all:.3?}");
    mean
}

/// One of so many areas is hot by turns.
fn by_turns(kind: Kind, count: usize, kib: u64, rate: f64, at: usize) -> Pattern {
    let list: Vec<_> = (0..count).map(|i| (2, kib, if i == at { rate } else { 0.0 })).collect();
    Pattern { kind, ..areas(&list) }
}

#[test]
fn what_is_hot_by_turns_is_followed() {
    for kind in [Kind::Sweep, Kind::Random] {
        let zigzag = [0, 1, 0, 1].map(|at| by_turns(kind, 2, 100 << 10, 200.0, at));
        let stairs: Vec<_> = (0..8).map(|at| by_turns(kind, 8, 32 << 10, 200.0, at)).collect();
        let hotspot = [3, 12].map(|at| by_turns(kind, 16, 20 << 10, 100.0, at));
        for (share, least) in [(0.01, [0.98, 0.95, 0.98]), (0.007, [0.93, 0.84, 0.96])] {
            let found = [
                mean_followed("zigzag", &zigzag, 1000, share),
                mean_followed("stairs", &stairs, 600, share),
                mean_followed("hotspot", &hotspot, 2000, share),
            ];
            assert!(found.iter().zip(least).all(|(f1, least)| *f1 > least), "{found:?} at {share}, {kind:?}");
        }
    }
}

#[test]
fn what_is_accessed_now_and_then_is_told() {
    let list = [zipf(256, 1024, false), zipf(128, 2048, true), vec![(0, 64 * 1024, 0.0)]].concat();
    let pattern = Pattern { kind: Kind::Random, ..areas(&list) };
    for (share, least) in [(0.01, 0.94), (0.007, 0.925)] {
        let mut bytes = Second::default();
        for seed in &SEEDS[..4] {
            let ops = Simulated::new(pattern.clone());
            let mut monitor = Monitor::new(Attrs::default(), ops, Watch::new(), *seed).unwrap();
            monitor.add_target(TargetId(1)).unwrap();
            let (mut now, mut purse, mut keep) = (0, purse(share), Keep::default());
            while now < 4000 {
                tick(&mut monitor, &mut now, &mut purse, &mut keep);
            }
            keep.0.iter().skip(60).for_each(|s| bytes.add(s, &s.targets[0], &pattern));
        }
        println!("at {share}: F1 {:.3}", bytes.f1());
        assert!(bytes.f1() > least, "F1 {} at {share}", bytes.f1());
    }
}

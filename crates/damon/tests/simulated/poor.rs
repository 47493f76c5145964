//! Little to spend on much memory: what is left of the ceiling where a wake-up is dear and a gigabyte is to be looked at.

use isotherm_damon::*;
use isotherm_simulated::{Keep, Kind, Purse, Simulated, areas, tick, told};

/// Of areas of 200, 50, 10, 2, 0.2 and 0 Hz, 1 GiB together, by the second half of 25 s: what is told of their rates, Hz, and the share of
/// them that is unknown.
fn told_at(kind: Kind, share: f64, seed: u64) -> Vec<(f64, f64)> {
    let hz = [200.0, 50.0, 10.0, 2.0, 0.2, 0.0];
    let mib = [16, 32, 64, 64, 128, 720];
    let list: Vec<_> = hz.iter().zip(mib).map(|(hz, mib)| (0, mib << 10, *hz)).collect();
    let mut pattern = areas(&list);
    pattern.kind = kind;
    let ops = Simulated::new(pattern.clone());
    let mut monitor = Monitor::new(Attrs::default(), ops, Watch::new(), seed).unwrap();
    monitor.add_target(TargetId(1)).unwrap();
    let (mut now, mut purse, mut keep) = (0, Purse::full(1).with_share(share), Keep::default());
    while now < 20 * 250 {
        tick(&mut monitor, &mut now, &mut purse, &mut keep);
    }
    let half = keep.0.get(keep.0.len() / 2..).unwrap();
    let of = |area: AddrRange| {
        let unknown = |s: &Snapshot| -> u64 {
            let regions = s.targets[0].regions.iter().filter(|r| r.is_unknown());
            regions.map(|r| r.range.intersection(area).size()).sum()
        };
        let unknown =
            half.iter().map(|s| unknown(s) as f64).sum::<f64>() / half.len() as f64 / area.size() as f64;
        let rate = half.iter().map(|s| told(s, &s.targets[0], area)).sum::<f64>() / half.len() as f64;
        (rate / (1.0 - unknown).max(1e-3), unknown)
    };
    pattern.areas.iter().map(|(area, _)| of(*area)).collect()
}

/// Half of what was hot was unknown at 0.4 %: what was accessed now and then took all that there was.
#[test]
fn what_is_hot_stays_known_where_there_is_little_to_spend() {
    for kind in [Kind::Sweep, Kind::InOrder, Kind::Random] {
        for (share, most_unknown, factor) in [(0.01, 0.05, 1.8), (0.004, 0.15, 2.0)] {
            let seeds = [11, 23, 35, 47, 59, 61];
            let runs: Vec<_> = seeds.iter().map(|seed| told_at(kind, share, *seed)).collect();
            let mean = |i: usize, of: fn(&(f64, f64)) -> f64| {
                runs.iter().map(|run| of(&run[i])).sum::<f64>() / runs.len() as f64
            };
            for (i, hz) in [200.0, 50.0, 10.0].into_iter().enumerate() {
                let (rate, unknown) = (mean(i, |area| area.0), mean(i, |area| area.1));
                // Two accesses within one interval are one.
                let countable = if kind == Kind::Random { 200.0 * (1.0 - f64::exp(-hz / 200.0)) } else { hz };
                println!(
                    "{kind:?} at {share}: {rate:.1} of {countable:.1} Hz, {:.0} % unknown",
                    unknown * 100.0
                );
                assert!(unknown < most_unknown, "{hz} Hz, {kind:?} at {share}: {unknown} of it unknown");
                let off = rate / countable;
                assert!(off < factor && off > 1.0 / factor, "{rate} of {hz} Hz, {kind:?} at {share}");
            }
            assert!(mean(5, |area| area.0) < 0.05, "what is idle is told as that");
        }
    }
}

//! Somebody else clears Accessed bits, often and of all memory: a profiler, another monitor, the kernel's reclaim.

use isotherm_damon::*;
use isotherm_simulated::{Keep, Kind, MIB, PAGE, Pattern, Purse, Simulated, areas, tick, told};

/// Mean rates, Hz, of three areas of 50, 20 and 2 Hz from the third second on, and bytes of the idle one told as accessed at 1 Hz or
/// more, beside a thief.
fn beside(thief: Option<u64>, kind: Kind, seed: u64) -> (Vec<f64>, u64) {
    let mut pattern = areas(&[(0, 20480, 50.0), (0, 20480, 20.0), (0, 20480, 2.0), (0, 40960, 0.0)]);
    pattern.kind = kind;
    let mut ops = Simulated::new(pattern.clone());
    ops.thief = thief;
    let mut monitor = Monitor::new(Attrs::default(), ops, Watch::new(), seed).unwrap();
    monitor.add_target(TargetId(1)).unwrap();
    let (mut now, mut purse, mut keep) = (0, Purse::full(1), Keep::default());
    while now < 20 * 150 {
        tick(&mut monitor, &mut now, &mut purse, &mut keep);
    }
    let settled = keep.0.get(30..).unwrap();
    let mean =
        |area| settled.iter().map(|s| told(s, &s.targets[0], area)).sum::<f64>() / settled.len() as f64;
    let idle = pattern.areas[3].0;
    let last = &settled[settled.len() - 1].targets[0];
    let warm = last.regions.iter().filter(|r| r.rate_hz(5_000_000, 20) >= 1.0);
    let warm = warm.map(|r| r.range.intersection(idle).size()).sum();
    (pattern.areas[..3].iter().map(|(area, _)| mean(*area)).collect(), warm)
}

#[test]
fn rates_allow_for_accesses_that_others_hid() {
    for kind in [Kind::Random, Kind::Periodic] {
        // Every 15, 55 and 265 ms.
        for thief in [None, Some(3), Some(11), Some(53)] {
            let runs = [3, 14, 15, 92].map(|seed| beside(thief, kind, seed));
            let mean = |i: usize| runs.iter().map(|(rates, _)| rates[i]).sum::<f64>() / runs.len() as f64;
            let found = [0, 1, 2].map(mean);
            println!("{kind:?}, thief {thief:?}: {found:.1?} of 50, 20 and 2 Hz");
            for (found, hz) in found.iter().zip([50.0, 20.0, 2.0]) {
                let off = found / hz;
                assert!((0.6..1.5).contains(&off), "{found} of {hz} Hz, {kind:?}, thief {thief:?}");
            }
            assert!(runs.iter().all(|(_, warm)| *warm < MIB), "{runs:?}");
        }
    }
}

/// As behind another recorder, or in a child that was forked.
#[test]
fn what_was_clear_from_the_start_was_taken_by_nobody() {
    for unit in [PAGE, 2 * MIB] {
        let pattern = Pattern { unit, ..areas(&[(0, 20480, 20.0), (0, 40960, 0.0)]) };
        let mut ops = Simulated::new(pattern.clone());
        let all = |(range, _): &(AddrRange, f64)| RangeClear { range: *range, cleared: Cleared::NotDone };
        let mut ranges: Vec<RangeClear> = pattern.areas.iter().map(all).collect();
        ops.clear(TargetId(1), &mut ranges);
        let mut monitor = Monitor::new(Attrs::default(), ops, Watch::new(), 7).unwrap();
        monitor.add_target(TargetId(1)).unwrap();
        let (mut now, mut purse, mut keep) = (0, Purse::full(1), Keep::default());
        while now < 20 * 60 {
            tick(&mut monitor, &mut now, &mut purse, &mut keep);
        }
        let tally = monitor.tally();
        assert!(tally.left_set > 0 && tally.found_clear == 0, "{} byte pages: {tally:?}", unit);
    }
}

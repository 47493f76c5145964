//! Areas at slow rates that change places: how soon it is known that what was accessed is accessed less.

use isotherm_damon::*;
use isotherm_simulated::{Keep, Kind, Pattern, Purse, Simulated, areas, tick, told};

const RATES: [f64; 8] = [0.0, 0.05, 0.1, 0.2, 0.5, 2.0, 10.0, 50.0];

/// By the second since the first change of places what is told of each area, Hz, in the order of what they are accessed at then.
fn told_after(kind: Kind, share: f64, seed: u64) -> Vec<Vec<f64>> {
    let of = |rates: [f64; 8]| Pattern { kind, ..areas(&rates.map(|hz| (0, 48 << 10, hz))) };
    let mut turned = RATES;
    turned.reverse();
    let (before, after) = (of(RATES), of(turned));
    let mut monitor =
        Monitor::new(Attrs::default(), Simulated::new(before.clone()), Watch::new(), seed).unwrap();
    monitor.add_target(TargetId(1)).unwrap();
    let (mut now, mut purse) = (0, Purse::full(1).with_share(share));
    while now < 40 * 200 {
        tick(&mut monitor, &mut now, &mut purse, &mut Keep::default());
    }
    monitor.ops().change(after.clone());
    let mut seconds = Vec::new();
    for second in 1..=38 {
        let mut keep = Keep::default();
        while now < (40 + second) * 200 {
            tick(&mut monitor, &mut now, &mut purse, &mut keep);
        }
        let last = keep.0.last().unwrap();
        seconds.push(after.areas.iter().rev().map(|(area, _)| told(last, &last.targets[0], *area)).collect());
    }
    seconds
}

/// Half a Hz was told where a fifth and a tenth were for half a minute, and a quarter was told of them in the end.
#[test]
fn what_is_accessed_now_and_then_is_known_within_seconds_of_a_change() {
    for (kind, share) in [(Kind::Random, 0.04), (Kind::Periodic, 0.04)] {
        let runs: Vec<_> = [11, 23, 35, 47, 59].map(|seed| told_after(kind, share, seed)).into();
        println!("{kind:?} at {share}");
        for second in [1, 2, 3, 5, 10, 20, 30] {
            let of =
                |area: usize| runs.iter().map(|run| run[second - 1][area]).sum::<f64>() / runs.len() as f64;
            let told: [f64; 8] = std::array::from_fn(of);
            println!("{second:3} {told:7.3?}");
            if second >= 10 {
                assert!(told[0] < 0.02, "{kind:?} at {share}, after {second} s: {told:.3?}");
                for (told, hz) in told.iter().zip(RATES).skip(1).take(4) {
                    let off = told / hz;
                    assert!(
                        (0.5..2.0).contains(&off),
                        "{told} of {hz} Hz, {kind:?} at {share}, after {second} s"
                    );
                }
            }
        }
    }
}

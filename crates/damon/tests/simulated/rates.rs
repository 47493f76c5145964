//! How true rates are: neighbours of 200, 50, 20, 10, 1 and 0 Hz, in this order and the other way round, as the workload
//! `rates` has them.

use crate::patterns::{told, watch};
use isotherm_simulated::{Kind, MIB, PAGE, Pattern, areas};

const RATES: [f64; 6] = [200.0, 50.0, 20.0, 10.0, 1.0, 0.0];

/// Mean relative error of the rates of 10 to 50 Hz over 15 s from the start and over 15 s from a change on, of eight seeds.
fn mean_error(kind: Kind, unit: u64) -> f64 {
    let phase = |rates: [f64; 6]| Pattern { unit, kind, ..areas(&rates.map(|hz| (0, 20480, hz))) };
    let (mut rising, mut errors) = (RATES, Vec::new());
    rising.reverse();
    // Programs do not begin with what they go on to do.
    let idle = phase([0.0; 6]);
    let phases = [(phase(RATES), 150), (phase(rising), 150), (idle, 20), (phase(RATES), 150)];
    for seed in [11, 23, 35, 47, 59, 61, 73, 85] {
        let found = watch(&phases, seed);
        for (index, (pattern, _)) in phases.iter().enumerate() {
            let of_phase: Vec<_> = found.iter().filter(|(phase, _)| *phase == index).cloned().collect();
            for (area, rate) in &pattern.areas {
                let hz = rate * 200.0;
                if (9.0..51.0).contains(&hz) {
                    errors.push((told(&of_phase, *area) - hz).abs() / hz);
                }
            }
        }
    }
    errors.iter().sum::<f64>() / errors.len() as f64
}

#[test]
fn neighbours_of_ten_to_fifty_hertz_are_right_within_a_third() {
    let mut all = Vec::new();
    for kind in [Kind::InOrder, Kind::Sweep, Kind::Periodic, Kind::Random] {
        for (unit, word) in [(PAGE, "4k"), (2 * MIB, "huge")] {
            let error = mean_error(kind, unit);
            println!("{:.0} % {kind:?}, {word} pages", error * 100.0);
            all.push(error);
        }
    }
    let mean = all.iter().sum::<f64>() / all.len() as f64;
    assert!(mean < 0.33 && all.iter().all(|e| *e < 0.45), "{mean}: {all:.2?}");
}

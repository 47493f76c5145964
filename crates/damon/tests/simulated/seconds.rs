//! Which bytes were accessed within a second, as `lab accuracy` judges it: recorded against true, by what both have in common.

use crate::patterns::watch;
use isotherm_damon::*;
use isotherm_simulated::{Kind, MIB, PAGE, Pattern, Second, areas, zipf};

/// F1 of bytes accessed within a second, and bytes recorded by bytes accessed; after `idle` aggregations without an access.
fn second(pattern: &Pattern, idle: u32, aggregations: u32) -> (f64, f64) {
    let mut bytes = Second::default();
    for seed in [11, 23, 35, 47] {
        let before = Pattern { hot: Vec::new(), ..pattern.clone() };
        let phases = [(before, idle), (pattern.clone(), aggregations)];
        for (_, snapshot) in watch(&phases, seed).iter().filter(|(phase, _)| *phase == 1).skip(10) {
            bytes.add(snapshot, &snapshot.targets[0], pattern);
        }
    }
    (bytes.f1(), bytes.told / bytes.truth)
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

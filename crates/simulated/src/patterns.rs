//! Patterns that several experiments begin with.

use crate::{Kind, MIB, PAGE, Pattern};
use isotherm_damon::AddrRange;

/// Areas one after the other, each (MiB of hole before it, KiB, Hz), between a small heap and a stack.
#[must_use]
pub fn areas(list: &[(u64, u64, f64)]) -> Pattern {
    let base = 0x7f00_0000_0000;
    let mut at = base;
    let mut areas = Vec::new();
    for &(hole, kib, hz) in list {
        at += hole * MIB;
        areas.push((AddrRange::new(at, at + kib * 1024), hz / 200.0));
        at += kib * 1024;
    }
    Pattern {
        ranges: vec![
            AddrRange::new(0x5500_0000_0000, 0x5500_0000_0000 + 40 * PAGE),
            AddrRange::new(base, at + 900 * MIB),
            AddrRange::new(0x7fff_0000_0000, 0x7fff_0000_0000 + 33 * PAGE),
        ],
        hot: areas.iter().copied().filter(|(_, rate)| *rate > 0.0).collect(),
        areas,
        front: None,
        unit: PAGE,
        kind: Kind::Sweep,
    }
}

/// A worker: 10 MiB in ten places, 4 MiB of it in use at 20 Hz.
#[must_use]
pub fn worker() -> Pattern {
    let list: Vec<(u64, u64, f64)> =
        (0..11).map(|i| (8, if i == 5 { 4096 } else { 600 }, if i == 5 { 20.0 } else { 0.0 })).collect();
    areas(&list)
}

/// Grains of `kib` KiB whose popularity falls as 1 / n^0.9, of 2 Hz on average, for [`areas`].
#[must_use]
pub fn zipf(count: u64, kib: u64, scattered: bool) -> Vec<(u64, u64, f64)> {
    let share = |n: u64| 1.0 / ((n + 1) as f64).powf(0.9);
    let all: f64 = (0..count).map(share).sum();
    let rank = |i: u64| if scattered { i * 79 % count } else { i };
    (0..count).map(|i| (0, kib, share(rank(i)) / all * count as f64 * 2.0)).collect()
}

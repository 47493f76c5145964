//! A loop that passes over its memory at once, a few times a second: all checks of one moment meet it, or none does. Its rate was
//! reported at a quarter to twice of what it is by turns, since drawing it anew kept what one or two passes had shown, and for 10 to
//! 15 s after it had ended.

use isotherm_damon::*;
use isotherm_simulated::{Keep, Prices, Purse, Simulated, areas, share_accessed, tick, told as told_of};

const SEEDS: [u64; 4] = [11, 23, 35, 47];
/// Seconds for which it goes on, and those that follow.
const LASTS: u64 = 20;
const AFTER: u64 = 15;

/// When, and how much is told to be accessed within a second, as a share of what is.
fn told(hz: f64, mib: u64, prices: Prices, seed: u64) -> Vec<(f64, f64)> {
    let at = |hz| areas(&[(2, mib << 10, hz), (8, 64 << 10, 0.0)]);
    let ops = Simulated::new(at(hz));
    let mut monitor = Monitor::new(Attrs::default(), ops, Watch::new(), seed).unwrap();
    monitor.add_target(TargetId(1)).unwrap();
    let (mut now, mut purse, mut keep) = (0, Purse::full(1).with_prices(prices), Keep::default());
    while now < (LASTS + AFTER) * 200 {
        if now == LASTS * 200 {
            monitor.ops().change(at(0.0));
        }
        tick(&mut monitor, &mut now, &mut purse, &mut keep);
    }
    let used = |s: &Snapshot| {
        let regions = s.targets.iter().flat_map(|target| &target.regions);
        let bytes = regions.map(|r| {
            r.range.size() as f64 * f64::from(r.seen_bp) / 10_000.0
                * share_accessed(r, s.max_nr_accesses, 200)
        });
        bytes.sum::<f64>() / (mib << 20) as f64
    };
    keep.0.iter().map(|s| (s.end_ns as f64 / 1e9, used(s))).collect()
}

#[test]
fn what_is_gone_over_at_once_is_told_while_it_is_and_not_for_long_after() {
    for (name, prices, mib) in [("busy", Prices::BUSY, 300), ("quiet", Prices::QUIET, 64)] {
        // By its rate, 1 - exp(-2) and 1 - exp(-4) of it are accessed within a second.
        for (hz, shares) in [(2.0, 0.84..0.94), (4.0, 0.95..0.995)] {
            let lasts = LASTS as f64;
            let (mut share, mut lowest, mut fell_after) = (0.0, f64::INFINITY, 0.0);
            for seed in SEEDS {
                let told = told(hz, mib, prices, seed);
                let meanwhile: Vec<f64> =
                    told.iter().filter(|(at, _)| (3.0..lasts).contains(at)).map(|(_, used)| *used).collect();
                share += meanwhile.iter().sum::<f64>() / meanwhile.len() as f64 / SEEDS.len() as f64;
                lowest = meanwhile.into_iter().fold(lowest, f64::min);
                let last = told.iter().rfind(|(_, used)| *used > 0.1).map_or(0.0, |(at, _)| at - lasts);
                fell_after += last / SEEDS.len() as f64;
            }
            println!(
                "{name}, {mib} MiB at {hz} Hz: {share:.2} of it, {lowest:.2} at least; gone after {fell_after:.1} s"
            );
            assert!(shares.contains(&share) && lowest > 0.6, "{name}, {hz} Hz: {share}, {lowest} at least");
            // Or is unknown: most of it was not looked at.
            assert!(fell_after < 5.0, "{name}, {hz} Hz: {fell_after} s");
        }
    }
}

/// What is told of a loop over 16 MiB every 53 ms that is over one array for 4 s and then over another, by turns, by five snapshots from
/// one second after each change on.
#[derive(Default)]
struct Told {
    /// How often, as a multiple of the truth.
    of_it: Vec<f64>,
    /// Of the other array, that it was over before, Hz.
    of_other: Vec<f64>,
}

fn told_by_turns(prices: Prices, share: f64, takes: Option<u64>) -> Told {
    let at = |which: usize| {
        let rate = |i: usize| if i == which { OFTEN } else { 0.0 };
        areas(&[(2, 16 << 10, rate(0)), (0, 48 << 10, 0.0), (2, 16 << 10, rate(1)), (0, 48 << 10, 0.0)])
    };
    let mut told = Told::default();
    for seed in 0..24 {
        let mut ops = Simulated::new(at(0));
        if let Some(takes) = takes {
            (ops.thief, ops.thief_takes) = (Some(1), takes);
        }
        let mut monitor = Monitor::new(Attrs::default(), ops, Watch::new(), 11 + 12 * seed).unwrap();
        monitor.add_target(TargetId(1)).unwrap();
        let (mut now, mut purse) = (0, Purse::full(1).with_prices(prices).with_share(share));
        let arrays = [at(0).hot[0].0, at(1).hot[0].0];
        for phase in 0..8u64 {
            let (began, end) = (phase * 800, (phase + 1) * 800);
            monitor.ops().change(at(phase as usize % 2));
            let mut keep = Keep::default();
            while now < end {
                tick(&mut monitor, &mut now, &mut purse, &mut keep);
            }
            keep.0.retain(|s| s.start_ns >= (began + 200) * 5_000_000);
            let mean = |five: &[Snapshot], area| {
                five.iter().map(|s| told_of(s, &s.targets[0], area)).sum::<f64>() / five.len() as f64
            };
            for five in keep.0.chunks(5) {
                told.of_it.push(mean(five, arrays[phase as usize % 2]) / OFTEN);
                if phase > 0 {
                    told.of_other.push(mean(five, arrays[1 - phase as usize % 2]));
                }
            }
        }
    }
    told
}

/// Accesses a second of such a loop.
const OFTEN: f64 = 18.9;

#[test]
fn a_loop_that_moves_on_is_not_told_many_times_as_hot() {
    for (name, prices, share, takes, [most_off, most_high, most_left]) in [
        ("busy", Prices::BUSY, 0.01, None, [0.34, 0.02, 0.2]),
        ("busy", Prices::BUSY, 0.007, None, [0.5, 0.04, 1.0]),
        ("busy, some of its bits are taken", Prices::BUSY, 0.01, Some(1000), [0.5, 0.07, 0.2]),
        ("quiet", Prices::QUIET, 0.01, None, [0.34, 0.02, 0.2]),
    ] {
        let Told { of_it, of_other } = told_by_turns(prices, share, takes);
        let share_of = |all: &[f64], is: &dyn Fn(f64) -> bool| {
            all.iter().filter(|told| is(**told)).count() as f64 / all.len() as f64
        };
        let mean = |all: &[f64]| all.iter().sum::<f64>() / all.len() as f64;
        let off = of_it.iter().map(|told| (told - 1.0).abs()).sum::<f64>() / of_it.len() as f64;
        let (high, left) = (share_of(&of_it, &|told| told > 2.5), mean(&of_other));
        println!(
            "{name} at {share}: {:.2} of what it is, {:.0} % off, {:.1} % of the time above 2.5; of the other {left:.2} Hz",
            mean(&of_it),
            off * 100.0,
            high * 100.0
        );
        assert!(
            off < most_off && (mean(&of_it) - 1.0).abs() < 0.22,
            "{name} at {share}: {off}, {}",
            mean(&of_it)
        );
        assert!(high < most_high && left < most_left, "{name} at {share}: {high} too high, {left} Hz left");
    }
}

/// By seconds, how often a loop over 50 MiB that lasts is told to be accessed, as a multiple of the truth.
fn told_by_seconds(hz: f64, share: f64, seed: u64) -> Vec<f64> {
    let at = areas(&[(2, 50 << 10, hz), (8, 64 << 10, 0.0)]);
    let (area, mut ops) = (at.hot[0].0, Simulated::new(at));
    // Some of its bits are taken by others, as is usual.
    (ops.thief, ops.thief_takes) = (Some(1), 1000);
    let mut monitor = Monitor::new(Attrs::default(), ops, Watch::new(), seed).unwrap();
    monitor.add_target(TargetId(1)).unwrap();
    let (mut now, mut purse, mut keep) =
        (0, Purse::full(1).with_prices(Prices::BUSY).with_share(share), Keep::default());
    while now < LASTS * 200 {
        tick(&mut monitor, &mut now, &mut purse, &mut keep);
    }
    let seconds = keep.0.chunks(10);
    seconds
        .map(|some| {
            some.iter().map(|s| told_of(s, &s.targets[0], area)).sum::<f64>() / some.len() as f64 / hz
        })
        .collect()
}

/// One check that met the loop by chance was taken for the rate of all of it, up to twelve times of what it is (live ten, of 50 MiB at
/// 10 Hz), because of one of its cells no more was known than that it is accessed at least so often.
#[test]
fn a_loop_that_lasts_is_told_steadily() {
    for share in [0.01, 0.006] {
        for hz in [4.7, 9.3, OFTEN] {
            let seeds = (0..40).map(|seed| 11 + 12 * seed);
            let all: Vec<f64> =
                seeds.flat_map(|seed| told_by_seconds(hz, share, seed).split_off(2)).collect();
            let off = all.iter().map(|told| (told - 1.0).abs()).sum::<f64>() / all.len() as f64;
            let highest = all.iter().copied().fold(0.0, f64::max);
            let high = all.iter().filter(|told| **told > 2.0).count() as f64 / all.len() as f64;
            let mean = all.iter().sum::<f64>() / all.len() as f64;
            let low = all.iter().filter(|told| **told < 0.5).count() as f64 / all.len() as f64;
            println!(
                "at {share}, {hz} Hz: {mean:.2} on the mean, {:.0} % off, {highest:.2} times at most, {:.1} % above twice, {low:.3} below half",
                off * 100.0,
                high * 100.0
            );
            assert!((mean - 1.0).abs() < 0.2 && low < 0.01, "at {share}, {hz} Hz: {mean}, {low}");
            assert!(
                off < 0.26 && high < 0.03 && highest < 5.0,
                "at {share}, {hz} Hz: {off}, {high}, {highest}"
            );
        }
    }
}

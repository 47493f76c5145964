//! The device against guests that do anything at all.
//!
//! A case is a string of bytes that a script of hostile steps is made from: descriptors, rings and buffers in guest
//! memory, notifications, accesses to the configuration, resets. After every notification the device is compared with a
//! naive interpreter of the same memory.
//!
//! The ordinary tests run some thousand cases, found by proptest. `cargo test --release -p isotherm-balloon --test
//! hostile_guest -- --ignored --nocapture` runs two million (or `ISOTHERM_FUZZ_CASES`) from fixed seeds.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

#[path = "../common/mod.rs"]
mod common;
mod guest;
mod naive;

use isotherm_balloon::device::{Fault, Faults, Totals};
use proptest::prelude::*;

/// Runs a case; returns what the device counted.
fn run(bytes: &[u8]) -> (Faults, Totals) {
    let mut guest = guest::Guest::new(guest::Dice::new(bytes));
    while guest.step() {}
    guest.counted()
}

/// A generator of pseudo-random numbers, the same everywhere (Steele, Lea, Flood: SplitMix).
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn case(seed: u64) -> Vec<u8> {
        let mut numbers = Self(seed);
        let length = 64 + numbers.next() as usize % 512;
        std::iter::repeat_with(|| numbers.next().to_le_bytes()).flatten().take(length).collect()
    }
}

/// Runs cases of consecutive seeds and sums up what the device counted.
fn run_many(seeds: std::ops::Range<u64>) -> (Vec<(Fault, u64)>, Totals) {
    let mut faults: Vec<_> = Fault::ALL.into_iter().map(|fault| (fault, 0)).collect();
    let mut totals = Totals::default();
    for seed in seeds {
        let (counted, moved) = run(&SplitMix::case(seed));
        for (fault, sum) in &mut faults {
            *sum += counted.count(*fault);
        }
        totals.inflated += moved.inflated;
        totals.deflated += moved.deflated;
        totals.reported += moved.reported;
        totals.hinted += moved.hinted;
        totals.discarded += moved.discarded;
    }
    (faults, totals)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 4 } else { 2000 }, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn nothing_a_guest_does_makes_the_device_panic_or_lose_count(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        run(&bytes);
    }
}

#[test]
#[cfg_attr(miri, ignore = "takes some thousand cases to meet all kinds")]
fn hostile_scripts_reach_every_fault_and_every_service() {
    let (faults, totals) = run_many(0..5000);
    for (fault, count) in faults {
        assert!(count > 0, "never met: {fault}");
    }
    let Totals { inflated, deflated, reported, hinted, discarded, .. } = totals;
    for bytes in [inflated, deflated, reported, hinted, discarded] {
        assert!(bytes > 0, "some service was never reached: {totals:?}");
    }
}

#[test]
#[ignore = "long: two million cases, or ISOTHERM_FUZZ_CASES"]
fn millions_of_hostile_scripts() {
    let number = |name, default| std::env::var(name).map_or(default, |value| value.parse().unwrap());
    let (first, cases) = (number("ISOTHERM_FUZZ_FIRST", 0), number("ISOTHERM_FUZZ_CASES", 2_000_000));
    let (faults, totals) = run_many(first..first + cases);
    println!("{cases} cases from seed {first}: {totals:?}");
    for (fault, sum) in faults {
        println!("{sum:>12}  {fault}");
    }
}

//! Random operations on fork trees, compared with a naive per-page map, on every format.

mod model;

use isotherm_pagetable::*;
use model::{Cpu, World};
use proptest::prelude::*;

fn run<F: Format>(seed: u64, operations: u64, huge: bool) {
    let machine = Cpu::new(1 << (15 + F::GRANULE));
    let mut world = World::<F>::new(&machine, seed, huge);
    for _ in 0..operations {
        world.step();
    }
    world.finish();
}

fn short<F: Format>(seed: u64, operations: u64) {
    let machine = Cpu::new(2048);
    let mut world = World::<F>::with_files(&machine, seed, false, &[0, 2, 4]);
    for _ in 0..operations {
        world.step();
    }
    world.finish();
}

/// As many operations as Miri gets through in a minute.
#[test]
fn a_short_run_on_x86_64_agrees() {
    short::<X86_64>(3, 25);
}

#[test]
fn a_short_run_on_arm64_agrees() {
    short::<Arm64Hafdbs>(4, 25);
}

/// The comparison is worth what the operations get to.
#[test]
#[cfg_attr(miri, ignore = "thousands of operations")]
fn the_random_operations_get_everywhere() {
    let mut reached = std::collections::BTreeMap::<&str, u64>::new();
    for seed in 0..8 {
        let machine = Cpu::new(1 << 16);
        let mut world = World::<Arm64Hafdbs>::new(&machine, seed, true);
        (0..1000).for_each(|_| world.step());
        for (what, n) in world.reached() {
            *reached.entry(what).or_default() += n;
        }
        let counts = machine.host.counts();
        for (what, n) in [("folds", counts.folds), ("unfolds", counts.unfolds), ("splits", counts.splits)] {
            *reached.entry(what).or_default() += n;
        }
        world.finish();
    }
    for what in [
        "huge leaf",
        "page copied",
        "folio copied",
        "page reused",
        "folio reused",
        "copy of a pinned page",
        "swapped out",
        "swapped in",
        "exchanged",
        "collapsed in place",
        "collapsed by copying",
        "folio split",
        "folds",
        "unfolds",
        "splits",
    ] {
        let n = reached.get(what).copied().unwrap_or(0);
        assert!(n >= 8, "{what}: {n} times in 8000 operations; all: {reached:?}");
    }
}

/// Cases of each test; `PROPTEST_CASES` asks for others.
fn cases() -> u32 {
    let usual = if cfg!(debug_assertions) { 8 } else { 48 };
    std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(usual)
}

macro_rules! formats {
    ($($name:ident: $format:ty),*) => {$(
        mod $name {
            use super::*;
            proptest! {
                #![proptest_config(ProptestConfig {
                    cases: cases(),
                    failure_persistence: None,
                    ..ProptestConfig::default()
                })]

                #[test]
                #[cfg_attr(miri, ignore = "thousands of operations")]
                fn agrees(seed: u64, n in 50u64..1500, huge: bool) {
                    run::<$format>(seed, n, huge);
                }
            }
        }
    )*};
}

formats!(
    x86_64: X86_64,
    x86_64_la57: X86_64La57,
    arm64_hafdbs: Arm64Hafdbs,
    arm64_haf: Arm64Haf,
    arm64_software: Arm64Software,
    arm64_lpa2: Arm64<Hafdbs, Granule4KLpa2>,
    arm64_16k: Arm64<Hafdbs, Granule16K>,
    arm64_16k_lpa2_ttbr1: Arm64<Hafdbs, Granule16KLpa2, Ttbr1>,
    arm64_64k: Arm64<Haf, Granule64K>,
    arm64_64k_lpa: Arm64<Software, Granule64KLpa>,
    sv39: RiscV<Sv39>,
    sv48: RiscV<Sv48, Svade>,
    sv57: RiscV<Sv57>
);

//! Random operations on fork trees, compared with a naive per-page map.

mod model;

use isotherm_pagetable::host::HostMachine;
use isotherm_pagetable::*;
use model::World;
use proptest::prelude::*;

fn run<F: Format, B: Batching>(seed: u64, operations: u64, huge: bool) {
    let machine = HostMachine::new(if cfg!(miri) { 4096 } else { 1 << 15 });
    let mut world = World::<F, B>::new(&machine, seed, huge);
    for _ in 0..operations {
        world.step();
    }
    world.finish();
}

/// Cases of each test; `PROPTEST_CASES` asks for others.
fn cases() -> u32 {
    let usual = if cfg!(debug_assertions) { 12 } else { 64 };
    std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(usual)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn x86_64_agrees(seed: u64, n in 50u64..1500) {
        run::<X86_64, Batched>(seed, n, false);
    }

    #[test]
    fn x86_64_with_huge_leaves_agrees(seed: u64, n in 50u64..1500) {
        run::<X86_64La57, Batched>(seed, n, true);
    }

    #[test]
    fn x86_64_page_by_page_agrees(seed: u64, n in 50u64..1500) {
        run::<X86_64, PerPage>(seed, n, true);
    }

    #[test]
    fn arm64_agrees(seed: u64, n in 50u64..1500) {
        run::<Arm64Hafdbs, Batched>(seed, n, false);
    }

    #[test]
    fn arm64_with_huge_leaves_agrees(seed: u64, n in 50u64..1500) {
        run::<Arm64Hafdbs, Batched>(seed, n, true);
    }

    #[test]
    fn arm64_without_hardware_dirty_agrees(seed: u64, n in 50u64..1500) {
        run::<Arm64Haf, Batched>(seed, n, true);
    }

    #[test]
    fn arm64_in_software_agrees(seed: u64, n in 50u64..1500) {
        run::<Arm64Software, Batched>(seed, n, true);
    }

    #[test]
    fn arm64_page_by_page_agrees(seed: u64, n in 50u64..1500) {
        run::<Arm64Hafdbs, PerPage>(seed, n, true);
    }
}

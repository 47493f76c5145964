//! The comparison with the naive model, for long: random operations on fork trees, on every format.
//!
//! `cargo run --release -p isotherm-pagetable --features host --example random -- --operations 10000000`
//!
//! Ends with a panic, which names the seed to repeat with `--seed`, at the first disagreement.

#[path = "../tests/model/mod.rs"]
mod model;

use isotherm_pagetable::*;
use model::{Cpu, World};

/// Operations until all spaces end and the counts are looked at.
const ROUND: u64 = 2_000;

fn round<F: Format>(seed: u64, operations: u64, huge: bool) {
    let machine = Cpu::new(1 << (15 + F::GRANULE));
    let mut world = World::<F>::new(&machine, seed, huge);
    for _ in 0..operations {
        world.step();
    }
    world.finish();
    let c = machine.host.counts();
    if seed % 1000 < 26 {
        let name = F::NAME;
        println!(
            "seed {seed}: {name}: {} folds, {} unfolds, {} splits, {} copies, {} range and {} page invalidations",
            c.folds, c.unfolds, c.splits, c.copies, c.tlb_ranges, c.tlb_pages
        );
    }
}

fn argument(name: &str) -> Option<u64> {
    let mut arguments = std::env::args().skip_while(|a| a != name).skip(1);
    arguments.next().and_then(|value| value.parse().ok())
}

fn main() {
    let operations = argument("--operations").unwrap_or(100_000);
    let mut seed = argument("--seed").unwrap_or(0);
    let mut done = 0;
    while done < operations {
        let n = ROUND.min(operations - done);
        // Without huge leaves young and dirty are compared exactly.
        let huge = !seed.is_multiple_of(3);
        let outcome = std::panic::catch_unwind(|| match seed % 13 {
            0 => round::<X86_64>(seed, n, huge),
            1 => round::<X86_64La57>(seed, n, huge),
            2 => round::<Arm64Hafdbs>(seed, n, huge),
            3 => round::<Arm64Haf>(seed, n, huge),
            4 => round::<Arm64Software>(seed, n, huge),
            5 => round::<Arm64<Hafdbs, Granule4KLpa2>>(seed, n, huge),
            6 => round::<Arm64<Hafdbs, Granule16K>>(seed, n, huge),
            7 => round::<Arm64<Haf, Granule16KLpa2, Ttbr1>>(seed, n, huge),
            8 => round::<Arm64<Hafdbs, Granule64K>>(seed, n, huge),
            9 => round::<Arm64<Software, Granule64KLpa>>(seed, n, huge),
            10 => round::<RiscV<Sv39>>(seed, n, huge),
            11 => round::<RiscV<Sv48, Svade>>(seed, n, huge),
            _ => round::<RiscV<Sv57>>(seed, n, huge),
        });
        if outcome.is_err() {
            eprintln!("disagreed after {done} operations; repeat with --seed {seed} --operations {n}");
            std::process::exit(1);
        }
        done += n;
        seed += 1;
    }
    println!("{done} operations agreed");
}

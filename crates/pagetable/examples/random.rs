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

fn round<F: Format, B: Batching>(seed: u64, operations: u64, huge: bool) {
    let machine = Cpu::new(1 << 15);
    let mut world = World::<F, B>::new(&machine, seed, huge);
    for _ in 0..operations {
        world.step();
    }
    world.finish();
    let c = machine.host.counts();
    if seed % 1000 < 10 {
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
        // Five formats, in batches and page by page; without huge leaves young and dirty are compared exactly.
        let huge = !seed.is_multiple_of(3);
        let outcome = std::panic::catch_unwind(|| match seed % 10 {
            0 => round::<X86_64, Batched>(seed, n, huge),
            1 => round::<X86_64, PerPage>(seed, n, huge),
            2 => round::<X86_64La57, Batched>(seed, n, huge),
            3 => round::<X86_64La57, PerPage>(seed, n, huge),
            4 => round::<Arm64Hafdbs, Batched>(seed, n, huge),
            5 => round::<Arm64Hafdbs, PerPage>(seed, n, huge),
            6 => round::<Arm64Haf, Batched>(seed, n, huge),
            7 => round::<Arm64Haf, PerPage>(seed, n, huge),
            8 => round::<Arm64Software, Batched>(seed, n, huge),
            _ => round::<Arm64Software, PerPage>(seed, n, huge),
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

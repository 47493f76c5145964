//! What the operations cost in batches and one page at a time, for 1 GiB: paired runs, medians.
//!
//! `cargo run --release -p isotherm-pagetable --features host --example speed -- [RUNS]`

use std::time::Instant;

use isotherm_pagetable::host::HostMachine;
use isotherm_pagetable::*;

const GIB: u64 = 1 << 18;

/// Populates 1 GiB at 0 in folios of this order.
fn populate<F: Format, B: Batching>(space: &AddressSpace<F, HostMachine, B>, order: u8, largest: Level) {
    let machine = space.machine();
    let mut page = 0;
    while page < GIB {
        let head = machine.take(order).expect("frames");
        let folio = Folio::prepare(machine, head, order, FolioKind::Anon).expect("a folio");
        let range = PageRange::with_pages(VirtAddr::of_page(page), 1 << order).expect("a range");
        space.map(range, head, Attributes::anonymous(), largest).expect("mapped");
        folio.put(machine);
        page += 1 << order;
    }
}

fn all() -> PageRange {
    PageRange::with_pages(VirtAddr(0), GIB).expect("a range")
}

/// Seconds of: first fork, fork again, exit of the child, young harvest, zap.
fn once<F: Format, B: Batching>(machine: &HostMachine, order: u8, largest: Level) -> [f64; 5] {
    let mut slots = vec![Slot::default(); 512];
    let space = AddressSpace::<F, HostMachine, B>::new(machine, 1).expect("a space");
    populate(&space, order, largest);
    let fork = |slots: &mut [Slot]| {
        let mut child = AddressSpace::<F, HostMachine, B>::new(machine, 2).expect("a space");
        let start = Instant::now();
        let mut gather = space.gather(slots);
        space.copy_range(&mut child, all(), ForkRule::Copy(Sharing::Private), &mut gather).expect("copied");
        gather.flush();
        (start.elapsed().as_secs_f64(), child)
    };
    let mut bitmap = vec![0; (GIB / 64) as usize];
    let start = Instant::now();
    let young = space.harvest_young(all(), &mut bitmap).expect("harvested");
    let harvest = start.elapsed().as_secs_f64();
    assert_eq!(young, GIB);
    let (warm, child) = fork(&mut slots);
    drop(child);
    let _ = warm;
    let (second, child) = fork(&mut slots);
    let start = Instant::now();
    child.exit(&mut slots);
    let exit = start.elapsed().as_secs_f64();
    drop(space);
    let space = AddressSpace::<F, HostMachine, B>::new(machine, 1).expect("a space");
    populate(&space, order, largest);
    let mut child = AddressSpace::<F, HostMachine, B>::new(machine, 2).expect("a space");
    let start = Instant::now();
    let mut gather = space.gather(&mut slots);
    space.copy_range(&mut child, all(), ForkRule::Copy(Sharing::Private), &mut gather).expect("copied");
    gather.flush();
    let first = start.elapsed().as_secs_f64();
    drop(gather);
    drop(child);
    let start = Instant::now();
    let mut gather = space.gather(&mut slots);
    space.zap(all(), &mut gather).expect("zapped");
    gather.flush();
    let zap = start.elapsed().as_secs_f64();
    [first, second, exit, harvest, zap]
}

fn compare<F: Format>(name: &str, order: u8, largest: Level, runs: usize) {
    // One each, so that both see the same layouts of memory in the same order.
    let machines = [HostMachine::new(2 * GIB), HostMachine::new(2 * GIB)];
    let (mut batched, mut single) = (Vec::new(), Vec::new());
    for run in 0..runs {
        for turn in [run % 2, 1 - run % 2] {
            match turn {
                0 => batched.push(once::<F, Batched>(&machines[0], order, largest)),
                _ => single.push(once::<F, PerPage>(&machines[1], order, largest)),
            }
        }
    }
    let median = |all: &[[f64; 5]], n: usize| {
        let mut one: Vec<f64> = all.iter().map(|r| r[n]).collect();
        one.sort_by(f64::total_cmp);
        one[one.len() / 2]
    };
    for (n, what) in ["first fork", "fork again", "child's exit", "young harvest", "zap"].iter().enumerate() {
        let mut ratios: Vec<f64> = batched.iter().zip(&single).map(|(b, s)| b[n] / s[n]).collect();
        ratios.sort_by(f64::total_cmp);
        let (b, s) = (median(&batched, n), median(&single, n));
        println!(
            "{:24} {name:18} {what:14} batched {:8.3} ms  per page {:8.3} ms  {:6.1}x  paired median {:+6.1} %",
            F::NAME,
            b * 1e3,
            s * 1e3,
            s / b,
            (ratios[ratios.len() / 2] - 1.0) * 100.0
        );
    }
}

fn formats<F: Format>(runs: usize) {
    compare::<F>("order 0", 0, Level::Pte, runs);
    compare::<F>("order 9, PTEs", 9, Level::Pte, runs);
    compare::<F>("order 9, PMDs", 9, Level::Pmd, runs);
}

fn main() {
    let runs = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(7);
    formats::<X86_64>(runs);
    formats::<Arm64Hafdbs>(runs);
}

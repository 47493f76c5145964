//! What looks, surveys, clears and sweeps cost here: `cargo run --release -p isotherm-linux --example block_costs` (root).
#![allow(clippy::print_stdout, reason = "that is what it is for")]

mod child;

use child::{Backing, Doing, Process};
use isotherm_damon::{
    AddrRange, BLOCK_SIZE, BlockLook, BlockOperations, Check, Cleared, Operations, Ownership, PAGE_SIZE,
    RangeClear, Sweep, TargetId,
};
use isotherm_linux::pte::Pte;
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

const ID: TargetId = TargetId(1);

/// The median of some repetitions of `what`, after `before` each.
fn median(times: usize, mut before: impl FnMut(), mut what: impl FnMut()) -> f64 {
    let mut took: Vec<Duration> = (0..times)
        .map(|_| {
            before();
            let start = Instant::now();
            what();
            start.elapsed()
        })
        .collect();
    took.sort_unstable();
    took.get(times / 2).map_or(0.0, |took| took.as_nanos() as f64 / 1e3)
}

fn watch(process: &Process) -> Result<Pte, Box<dyn Error>> {
    let mut pte = Pte::load()?;
    pte.add(ID, Arc::new(isotherm_linux::process::Process::open(process.pid())?));
    Ok(pte)
}

fn looks(times: usize) -> Result<(), Box<dyn Error>> {
    let process = Process::start(1 << 30, Backing::Small, Doing::Asleep)?;
    let mut pte = watch(&process)?;
    for count in [1, 8, 64, 256, 512] {
        let mut blocks: Vec<BlockLook> =
            (0..count).map(|i| BlockLook::at(process.start + i * BLOCK_SIZE)).collect();
        let us = median(times, || {}, || assert!(pte.look(ID, &mut blocks)));
        println!("look at {count:3} blocks      {us:8.1} us   {:6.2} us a block", us / count as f64);
    }
    let mut checks: Vec<Check> =
        (0..1000).map(|i| Check::new(ID, process.start + i * 257 * PAGE_SIZE)).collect();
    let us = median(times, || {}, || pte.check(&mut checks));
    println!("check 1000 single pages  {us:8.1} us   {:6.3} us a page", us / 1000.0);
    let mut found = Vec::new();
    let us = median(times, || {}, || assert!(pte.survey(ID, &mut found)));
    println!("survey of {:5} blocks   {us:8.1} us", found.len());
    let mut own = Pte::load()?;
    own.add(ID, Arc::new(isotherm_linux::process::Process::open(rustix::process::getpid())?));
    let us = median(times, || {}, || assert!(own.survey(ID, &mut found)));
    println!("survey of {:5} blocks   {us:8.1} us", found.len());
    let (addrs, mut owned): (Vec<u64>, Vec<Ownership>) =
        ((0..512).map(|i| process.start + i * PAGE_SIZE).collect(), Vec::new());
    let us = median(times, || {}, || pte.ownership(ID, &addrs, &mut owned));
    println!("ownership of 512 pages   {us:8.1} us   {:6.3} us a page", us / 512.0);
    Ok(())
}

/// Neighbouring pages at the start of as many blocks.
fn ranges(process: &Process, count: u64, pages: u64) -> Vec<RangeClear> {
    let range = |at: u64| AddrRange::new(at, at + pages * PAGE_SIZE);
    let starts = (0..count).map(|i| process.start + i * BLOCK_SIZE);
    starts.map(|at| RangeClear::of(range(at))).collect()
}

fn clears(doing: Doing, times: usize) -> Result<(), Box<dyn Error>> {
    for pages in [1, 32, 64, 512] {
        for count in [1, 16] {
            let (mut set, mut clear) = (Vec::new(), Vec::new());
            // A new child each time: the bits of one that leaves its memory alone are set only once.
            for _ in 0..times {
                let process = Process::start(64 << 20, Backing::Small, doing)?;
                let mut pte = watch(&process)?;
                let mut ranges = ranges(&process, count, pages);
                let mut looks: Vec<BlockLook> = ranges.iter().map(|r| BlockLook::at(r.range.start)).collect();
                assert!(pte.look(ID, &mut looks));
                // The first call of all pays for memory that the programs share with us.
                let last = process.start + (60 << 20);
                let range = AddrRange::new(last, last + pages * PAGE_SIZE);
                pte.clear(ID, &mut [RangeClear::of(range)]);
                for took in [&mut set, &mut clear] {
                    took.push(median(1, || {}, || pte.clear(ID, &mut ranges)));
                    assert!(ranges.iter().all(|r| r.cleared == Cleared::Done), "{ranges:?}");
                }
            }
            let middle = |mut took: Vec<f64>| {
                took.sort_unstable_by(f64::total_cmp);
                took.get(took.len() / 2).copied().unwrap_or_default()
            };
            let (set, clear) = (middle(set), middle(clear));
            println!(
                "clear {count:2} ranges of {pages:3} pages, {doing:?}: {set:8.1} us ({:6.3} a page), clear already {clear:8.1} us",
                set / (pages * count) as f64
            );
        }
    }
    Ok(())
}

fn sweeps(times: usize) -> Result<(), Box<dyn Error>> {
    const BYTES: u64 = 256 << 20;
    for (backing, kind) in [
        (Backing::Small, Sweep::Anonymous),
        (Backing::Huge, Sweep::Anonymous),
        (Backing::Shared, Sweep::Mapped),
        (Backing::Small, Sweep::Mapped),
        (Backing::Small, Sweep::All),
    ] {
        let process = Process::start(BYTES, backing, Doing::Asleep)?;
        let mut pte = watch(&process)?;
        let first = median(1, || {}, || assert!(pte.sweep(ID, kind)));
        let us = median(times, || {}, || assert!(pte.sweep(ID, kind)));
        let pages = (BYTES / PAGE_SIZE) as f64;
        println!(
            "sweep {kind:?} of 256 MiB {backing:?}: first {first:8.1} us ({:6.1} ns a page), again {us:8.1} us ({:6.1} ns a page)",
            first * 1e3 / pages,
            us * 1e3 / pages
        );
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    child::run_if_child()?;
    let start = Instant::now();
    drop(Pte::load()?);
    println!("load                     {:8.1} ms", start.elapsed().as_secs_f64() * 1e3);
    looks(200)?;
    clears(Doing::Asleep, 9)?;
    clears(Doing::Busy, 9)?;
    sweeps(9)?;
    Ok(())
}

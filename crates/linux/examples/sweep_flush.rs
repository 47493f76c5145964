//! What a sweep misses for want of a TLB flush: `cargo run --release -p isotherm-linux --example sweep_flush` (root).
//!
//! A child reads a byte of each page of its memory, over and over, on another processor. After a sweep of its Accessed
//! bits, when do they show that? A page whose translation the processor still holds reads as idle until it is dropped.
//! Tried as it is, and with a flush: MADV_COLD flushes what lies between the first and the last page of a range whose bits
//! were set; where that is more than 33 pages (tlb_single_page_flush_ceiling), all of the address space. So it takes two
//! pages, far enough apart, that were accessed since the sweep.
//!
//! Run it with `nice -n -20` on a machine that has other work: a child that had to leave its processor meanwhile may have
//! lost translations by that. Such tries are counted and left out.
#![allow(clippy::print_stdout, reason = "that is what it is for")]

mod child;

use child::{Backing, Doing, Process};
use isotherm_damon::{
    AddrRange, BLOCK_SIZE, BlockLook, BlockOperations, PAGE_SIZE, RangeClear, Sweep, TargetId,
};
use isotherm_linux::pte::Pte;
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

const ID: TargetId = TargetId(1);

struct Target {
    pte: Pte,
    process: Process,
    blocks: Vec<BlockLook>,
    pages: usize,
}

impl Target {
    fn new(bytes: u64, backing: Backing) -> Result<Self, Box<dyn Error>> {
        let process = Process::start(bytes, backing, Doing::Reading)?;
        let mut pte = Pte::load()?;
        pte.add(ID, Arc::new(isotherm_linux::process::Process::open(process.pid())?));
        let blocks = (0..bytes.div_ceil(BLOCK_SIZE)).map(|i| BlockLook::at(process.start + i * BLOCK_SIZE));
        Ok(Self { blocks: blocks.collect(), pte, process, pages: (bytes / PAGE_SIZE) as usize })
    }

    /// Share of its pages whose Accessed bit is set.
    fn young(&mut self) -> f64 {
        if !self.pte.look(ID, &mut self.blocks) {
            return 0.0;
        }
        let young = (0..self.pages)
            .filter(|i| self.blocks.get(i / 512).is_some_and(|block| block.young.contains(i % 512)));
        young.count() as f64 / self.pages as f64
    }

    /// The range from the first to the last page that shows as accessed, if a clear of it flushes all.
    fn anchor(&mut self) -> Option<AddrRange> {
        let start = self.process.start;
        let mut young =
            (0..self.pages.min(512)).filter(|i| self.blocks.first().is_some_and(|b| b.young.contains(*i)));
        let (first, last) = (young.next()?, young.next_back()?);
        let page = |i: usize| start + i as u64 * PAGE_SIZE;
        (last - first > 34).then(|| AddrRange::new(page(first), page(last + 1)))
    }

    /// Sweeps, flushes if asked to, and reports how long it took until a flush was possible, and from then on until so
    /// much of the memory showed as accessed again: half, 95 in 100, all of it. Milliseconds. `None` if the child was
    /// interrupted.
    fn again(&mut self, kind: Sweep, flush: bool) -> Option<[f64; 4]> {
        const WAIT: Duration = Duration::from_millis(300);
        let ms = |since: Instant| since.elapsed().as_secs_f64() * 1e3;
        let before = self.process.switches();
        assert!(self.pte.sweep(ID, kind));
        let swept = Instant::now();
        let mut at = [f64::INFINITY; 4];
        while flush && swept.elapsed() < WAIT {
            self.young();
            if let Some(range) = self.anchor() {
                let mut ranges = [RangeClear::of(range)];
                self.pte.clear(ID, &mut ranges);
                at[0] = ms(swept);
                break;
            }
        }
        let flushed = Instant::now();
        while flushed.elapsed() < WAIT && at.iter().skip(1).any(|at| at.is_infinite()) {
            let young = self.young();
            for (at, share) in at.iter_mut().skip(1).zip([0.5, 0.95, 1.0]) {
                if at.is_infinite() && young >= share {
                    *at = ms(flushed);
                }
            }
        }
        (self.process.switches() == before).then_some(at)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    const TRIES: usize = 40;
    child::run_if_child()?;
    println!(
        "ms until a flush, and from there until 50 %, 95 %, all of the pages show as accessed: median (90 in 100)"
    );
    for (backing, kind) in [(Backing::Small, Sweep::Anonymous), (Backing::Shared, Sweep::Mapped)] {
        for bytes in [256 << 10, 1 << 20, 4 << 20, 16 << 20] {
            let mut target = Target::new(bytes, backing)?;
            for flush in [false, true] {
                let tries: Vec<[f64; 4]> = (0..TRIES)
                    .filter_map(|_| {
                        std::thread::sleep(Duration::from_millis(5));
                        target.again(kind, flush)
                    })
                    .collect();
                let column = |i: usize| {
                    let mut at: Vec<f64> = tries.iter().filter_map(|t| t.get(i).copied()).collect();
                    at.sort_unstable_by(f64::total_cmp);
                    let at = |part: usize| at.get(at.len() * part / 10).copied().unwrap_or(f64::NAN);
                    format!("{:8.2} ({:.2})", at(5), at(9))
                };
                let columns: Vec<String> = (if flush { 0 } else { 1 }..4).map(column).collect();
                let what = if flush { "flush" } else { "no flush" };
                println!(
                    "{:5} KiB {backing:?}, {what}, {} tries: {}",
                    bytes >> 10,
                    tries.len(),
                    columns.join(" ")
                );
            }
        }
    }
    Ok(())
}

//! LLFree (Wrenger et al., USENIX ATC 2023; `llfree-rs`) in the loops of `isotherm lab frames`, beside the zone.
//!
//! `cargo run --release --manifest-path crates/lab/llfree/Cargo.toml -- [ROUNDS]`
//!
//! How to put any allocator into them: implement `get` and `put` of [`Allocator`] with numbers that mean something to it.

#[path = "../../src/frames/pattern.rs"]
mod pattern;

use isotherm_frames::{Block, Config, Frame, FrameRange, Mobility, Order, OwnedBlock, Zone, metadata_size};
use llfree::{Alloc, Classing, FrameId, Init, LLFree, MetaData, Request};
use pattern::{Allocator, ORDERS, Pattern, Run};
use std::mem::MaybeUninit;
use std::time::Duration;

/// 8 GiB, which nobody touches.
const FRAMES: usize = 1 << 21;
const SLICE: Duration = Duration::from_millis(100);

struct OfLlfree<R> {
    allocator: LLFree<'static>,
    /// The request for an order on a core, with LLFree's own simple classes: small and huge.
    request: R,
}

impl<R: Fn(usize, usize) -> Request + Sync> Allocator for OfLlfree<R> {
    #[inline]
    fn get(&self, cpu: usize, order: Order) -> Option<usize> {
        let request = (self.request)(usize::from(order.get()), cpu);
        self.allocator.get(None, request).ok().map(|(frame, _)| frame.0)
    }

    #[inline]
    fn put(&self, cpu: usize, block: usize, order: Order) {
        let request = (self.request)(usize::from(order.get()), cpu);
        let put = self.allocator.put(FrameId(block), request);
        debug_assert!(put.is_ok(), "{put:?}");
    }
}

struct OfZone<'m>(Zone<'m>);

impl Allocator for OfZone<'_> {
    #[inline]
    fn get(&self, cpu: usize, order: Order) -> Option<usize> {
        self.0.get(cpu, order, Mobility::Movable).ok().map(|block| block.frame.0 as usize)
    }

    #[inline]
    fn put(&self, cpu: usize, block: usize, order: Order) {
        // SAFETY: the block came from `get`, and no memory stands behind it.
        let block = unsafe { OwnedBlock::new(Block::new(Frame(block as u64), order)) };
        let put = self.0.put(cpu, block);
        debug_assert!(put.is_ok(), "{put:?}");
    }
}

/// Binds this thread to a CPU.
fn pin(index: usize) {
    // SAFETY: a set is plain bits, and the call reads it. Not pinned, figures spread more; they are not wrong.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(index, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &raw const set);
    }
}

/// Memory for the metadata, for good, and aligned for anything.
fn memory(bytes: usize) -> &'static mut [u8] {
    #[derive(Clone)]
    #[repr(align(4096))]
    struct Page(#[expect(dead_code, reason = "only its size and alignment matter")] [u8; 4096]);
    let pages = vec![Page([0; 4096]); bytes.div_ceil(4096)].leak();
    // SAFETY: the same bytes.
    unsafe { std::slice::from_raw_parts_mut(pages.as_mut_ptr().cast(), bytes) }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let rounds = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(5);
    let (classing, request) = Classing::simple(2);
    let size = LLFree::metadata_size(&classing, FRAMES);
    let meta = MetaData { local: memory(size.local), trees: memory(size.trees), lower: memory(size.lower) };
    let allocator = LLFree::new(FRAMES, Init::FreeAll, &classing, meta).expect("LLFree");
    let llfree = OfLlfree { allocator, request };
    let ranges = [FrameRange::new(0, FRAMES as u64)];
    let mut metadata = vec![MaybeUninit::uninit(); metadata_size(&ranges, &Config::new(2))];
    // SAFETY: no memory stands behind the numbers.
    let zone = OfZone(unsafe { Zone::new(&Config::new(2), &ranges, &mut metadata) }.expect("a zone"));
    println!("million pairs of get and put/s          zone   LLFree");
    for pattern in Pattern::ALL {
        for order in ORDERS.into_iter().filter_map(Order::new) {
            for threads in 1..=2 {
                let run = Run { pattern, order, threads, slice: SLICE };
                let (mut ours, mut theirs) = (Vec::new(), Vec::new());
                for _ in 0..rounds {
                    ours.push(run.on(&zone, pin) / 1e6);
                    theirs.push(run.on(&llfree, pin) / 1e6);
                }
                let name = format!("{}, order {order}, {threads} threads", pattern.name());
                println!("{name:36} {:8.2} {:8.2}", median(ours), median(theirs));
            }
        }
    }
}

//! What the tests share: guest memory, a host that writes down what it is asked for, an allocator that trusts nobody.
#![allow(dead_code, reason = "not every test uses all of it")]

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::rc::Rc;

use isotherm_balloon::device::{Device, GuestRange, Host};
use isotherm_balloon::loopback::{LoopbackHal, LoopbackTransport, Machine, Presentation};
use isotherm_balloon::{Balloon, DirectMap, Error, Features, FrameSource, Options};
use isotherm_frames::{Block, Frame, Order, OwnedBlock};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap, GuestRegionMmap, MmapRegion, mmap::MmapRegionBuilder};

pub const PAGE: u64 = 4096;

pub type Driver<H = Recorder> = Balloon<LoopbackHal, LoopbackTransport<H>, DirectMap>;

/// Memory of the Rust allocator, so that Miri sees every access. Never freed: a guest's memory outlives its test.
pub fn memory(bytes: usize) -> GuestMemoryMmap {
    let layout = std::alloc::Layout::from_size_align(bytes, 4096).unwrap();
    // SAFETY: the layout is not empty.
    let start = unsafe { std::alloc::alloc_zeroed(layout) };
    assert!(!start.is_null());
    // SAFETY: the memory is there for good, and used through this region and the driver's pointers only.
    let region: MmapRegion =
        unsafe { MmapRegionBuilder::new(bytes).with_raw_mmap_pointer(start) }.build().unwrap();
    GuestMemoryMmap::from_regions(vec![GuestRegionMmap::new(region, GuestAddress(0)).unwrap()]).unwrap()
}

/// A host that writes down what it is asked for and does, to memory, what a real one does: zeros it.
#[derive(Debug)]
pub struct Recorder {
    pub memory: GuestMemoryMmap,
    pub page_size: u64,
    pub discarded: Vec<GuestRange>,
    pub restored: Vec<GuestRange>,
    pub hinted: Vec<GuestRange>,
    pub fail: bool,
    /// Only writes down, without touching memory.
    pub idle: bool,
}

impl Recorder {
    pub fn new(memory: &GuestMemoryMmap) -> Self {
        Self {
            memory: memory.clone(),
            page_size: PAGE,
            discarded: Vec::new(),
            restored: Vec::new(),
            hinted: Vec::new(),
            fail: false,
            idle: false,
        }
    }

    /// The pages of the recorded ranges.
    pub fn pages(ranges: &[GuestRange]) -> BTreeSet<u64> {
        ranges.iter().flat_map(|range| range.start / PAGE..(range.start + range.bytes) / PAGE).collect()
    }
}

impl Host for Recorder {
    fn page_size(&self, _address: u64) -> u64 {
        self.page_size
    }

    fn discard(&mut self, range: GuestRange) -> io::Result<()> {
        assert!(range.bytes > 0 && (range.start | range.bytes).is_multiple_of(self.page_size));
        if self.fail {
            return Err(io::Error::other("the test wants it so"));
        }
        if !self.idle {
            self.memory.write_slice(&vec![0; range.bytes as usize], GuestAddress(range.start)).unwrap();
        }
        self.discarded.push(range);
        Ok(())
    }

    fn restore(&mut self, range: GuestRange) {
        self.restored.push(range);
    }

    fn hint(&mut self, range: GuestRange) {
        self.hinted.push(range);
    }
}

/// An allocator of blocks that checks what it gets back: each block once, as it was handed out.
#[derive(Debug, Default)]
pub struct Pool {
    free: BTreeMap<Order, BTreeSet<Frame>>,
    pub away: BTreeMap<Frame, Order>,
    /// Gives no block larger than this.
    pub largest: Order,
}

impl Pool {
    /// All frames of the range, in as large blocks as possible.
    pub fn new(range: isotherm_frames::FrameRange) -> Self {
        let mut pool = Self { largest: Order::MAX, ..Self::default() };
        let mut frame = range.start;
        while frame < range.end {
            let order = Order::all()
                .rev()
                .find(|&order| frame.is_aligned(order) && frame.0 + order.frames() <= range.end.0)
                .unwrap();
            pool.free.entry(order).or_default().insert(frame);
            frame.0 += order.frames();
        }
        pool
    }

    /// Takes any block of this order.
    pub fn get(&mut self, order: Order) -> Option<Block> {
        let from = Order::all()
            .filter(|&from| from >= order)
            .find(|from| self.free.get(from).is_some_and(|frames| !frames.is_empty()))?;
        let frame = self.free.get_mut(&from)?.pop_first()?;
        for lower in Order::all().filter(|&lower| order <= lower && lower < from) {
            self.free.entry(lower).or_default().insert(Frame(frame.0 + lower.frames()));
        }
        assert_eq!(self.away.insert(frame, order), None, "handed out twice");
        Some(Block::new(frame, order))
    }

    pub fn put(&mut self, block: Block) {
        assert_eq!(self.away.remove(&block.frame), Some(block.order), "{block} was not handed out");
        self.free.entry(block.order).or_default().insert(block.frame);
    }

    pub fn free_frames(&self) -> u64 {
        self.free.iter().map(|(order, frames)| order.frames() * frames.len() as u64).sum()
    }
}

impl FrameSource for Pool {
    fn take(&mut self, max: Order) -> Option<OwnedBlock> {
        let max = max.min(self.largest);
        let block = Order::all().rev().filter(|&order| order <= max).find_map(|order| self.get(order))?;
        // SAFETY: the pool hands each block out once.
        Some(unsafe { OwnedBlock::new(block) })
    }

    fn give(&mut self, block: OwnedBlock) {
        self.put(block.into_block());
    }
}

type OnWait = Rc<dyn Fn(u64) -> bool>;

thread_local! {
    static ON_WAIT: RefCell<Option<OnWait>> = const { RefCell::new(None) };
}

/// For [`Options::relax`]: what [`on_wait`] was told, else gives up after 100 looks.
pub fn relax(looks: u64) -> bool {
    let action = ON_WAIT.with_borrow(Clone::clone);
    action.map_or(looks < 100, |action| action(looks))
}

/// What the driver does while it waits, on this thread.
pub fn on_wait(action: impl Fn(u64) -> bool + 'static) {
    ON_WAIT.set(Some(Rc::new(action)));
}

pub fn options() -> Options {
    ON_WAIT.set(None);
    Options { relax, ..Options::default() }
}

pub fn machine(memory: &GuestMemoryMmap, offered: Features, presentation: Presentation) -> Machine<Recorder> {
    Machine::new(memory.clone(), Device::new(Recorder::new(memory), offered), presentation).unwrap()
}

pub fn driver<H: Host>(machine: &Machine<H>, options: Options) -> Result<Driver<H>, Error> {
    // SAFETY: the tests pass the driver blocks of a `Pool` or zone only.
    unsafe { Balloon::new(machine.transport(), machine.direct_map(), options) }
}

/// Fills a block with a pattern.
pub fn fill(memory: &GuestMemoryMmap, block: Block, byte: u8) {
    memory.write_slice(&vec![byte; block.bytes() as usize], GuestAddress(block.address())).unwrap();
}

/// Whether every byte of a block is this.
pub fn holds(memory: &GuestMemoryMmap, block: Block, byte: u8) -> bool {
    let mut bytes = vec![!byte; block.bytes() as usize];
    memory.read_slice(&mut bytes, GuestAddress(block.address())).unwrap();
    bytes.iter().all(|&found| found == byte)
}

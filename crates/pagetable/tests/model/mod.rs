//! Random operations on fork trees, done on page tables and on a [naive model](naive), and compared.
//!
//! | file | what |
//! |---|---|
//! | `naive.rs` | the model |
//! | `cpu.rs` | the machine, with a TLB that holds on to translations |
//! | `range.rs` | operations on ranges: map, zap, protect, remap, swap entries |
//! | `life.rs` | fork, exit, accesses with their faults, pins |
//! | `table.rs` | young harvest, split and collapse, also of folios |
//! | `check.rs` | the comparison |

#![allow(dead_code, reason = "each user takes what it needs")]

mod check;
mod cpu;
#[path = "../common/folio.rs"]
mod folio;
mod life;
mod naive;
mod range;
mod table;

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

pub use cpu::Cpu;
use folio::{prepare, take};
use isotherm_page::{Block, OwnedBlock, Reserved, Unique};
use isotherm_pagetable::*;
use naive::Naive;

/// A small generator, so that a run is repeated by its seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

/// What a region is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Use {
    /// Private anonymous memory; here and there the zero page.
    Anon,
    /// Pages of files, writes private.
    FilePrivate,
    /// Pages of files, writes shared.
    FileShared,
    /// Frames without metadata.
    Device,
}

impl Use {
    fn sharing(self) -> Sharing {
        match self {
            Use::Anon | Use::FilePrivate => Sharing::Private,
            Use::FileShared | Use::Device => Sharing::Shared,
        }
    }
}

/// A mapping of a space, as large as a VMA would be. Pages are counted in those of the format.
#[derive(Clone, Copy, Debug)]
struct Region {
    first: u64,
    pages: u64,
    usage: Use,
}

impl Region {
    const fn new(first: u64, pages: u64, usage: Use) -> Region {
        Region { first, pages, usage }
    }

    fn end(&self) -> u64 {
        self.first + self.pages
    }
}

/// The regions of an address space. Borders of tables and huge leaves lie within, and one region begins in the middle
/// of the contiguous block that the one before ends in.
fn regions<F: Format>() -> [Region; 6] {
    let mut regions = match F::GRANULE {
        _ if cfg!(miri) => FEW_PAGES,
        0 => MANY_PAGES,
        _ => LARGE_PAGES,
    };
    if F::VA_BITS < 40 {
        // Not in the hole between the halves.
        regions[3].first -= 3 << 25;
    }
    regions
}

const MANY_PAGES: [Region; 6] = [
    Region::new(512, 1536, Use::Anon),
    Region::new((1 << 18) - 256, 763, Use::Anon),
    Region::new((1 << 18) + 507, 268, Use::Anon),
    Region::new((1 << 27) - 300, 900, Use::FilePrivate),
    Region::new(1 << 20, 1024, Use::FileShared),
    Region::new((1 << 21) - 40, 640, Use::Device),
];

/// For tables of 2048 or 8192 entries, and blocks of 128, of larger pages.
const LARGE_PAGES: [Region; 6] = [
    Region::new(8192 - 100, 400, Use::Anon),
    Region::new((1 << 18) - 150, 263, Use::Anon),
    Region::new((1 << 18) + 113, 168, Use::Anon),
    Region::new((1 << 27) - 140, 300, Use::FilePrivate),
    Region::new(1 << 20, 200, Use::FileShared),
    Region::new((1 << 21) - 40, 340, Use::Device),
];

/// The same in small, for an interpreter.
const FEW_PAGES: [Region; 6] = [
    Region::new(504, 24, Use::Anon),
    Region::new((1 << 18) - 8, 19, Use::Anon),
    Region::new((1 << 18) + 11, 21, Use::Anon),
    Region::new((1 << 27) - 8, 24, Use::FilePrivate),
    Region::new(1 << 20, 32, Use::FileShared),
    Region::new((1 << 21) - 8, 24, Use::Device),
];

/// The device's first frame, beyond what the machine has.
const DEVICE: u64 = 1 << 30;
/// Frames of zeros, mapped as special pages.
const ZEROS_ORDER: u8 = 4;
/// Swap entries are below this.
const SWAP_ENTRIES: u64 = 4;
/// Spaces that live at the same time.
const SPACES: usize = 5;

struct Space<'m, F: Format> {
    real: AddressSpace<'m, F, Cpu>,
    model: Naive,
}

/// A folio of a file, and the contents of each page.
type File<'m> = (Folio<'m, Cpu>, Vec<Rc<Cell<u64>>>);

/// The page tables and the model beside them.
pub struct World<'m, F: Format> {
    machine: &'m Cpu,
    random: Random,
    spaces: Vec<Space<'m, F>>,
    /// Folios of files, held by the page cache.
    files: Vec<File<'m>>,
    zeros: Unique<'m, Cpu, Reserved>,
    pins: Vec<Pinned<'m, Cpu>>,
    /// How often each swap entry was put somewhere; forks and zaps are the machine's to count.
    swap_entries: HashMap<u64, i64>,
    stamp: u64,
    slots: usize,
    huge: bool,
    free: u64,
    trace: bool,
    reached: BTreeMap<&'static str, u64>,
}

impl<'m, F: Format> World<'m, F> {
    /// `huge`: huge leaves are mapped too. Without them and without contiguous blocks, young and dirty must agree
    /// exactly, else only nothing may be lost.
    pub fn new(machine: &'m Cpu, seed: u64, huge: bool) -> Self {
        World::with_files(machine, seed, huge, &[0, 0, 2, 4, 5, 9])
    }

    /// With files of these orders.
    pub fn with_files(machine: &'m Cpu, seed: u64, huge: bool, orders: &[u8]) -> Self {
        let free = machine.host.free_frames();
        let zeros = Block::new(
            take(&machine.host, Self::order(ZEROS_ORDER)).expect("frames"),
            Order::new(Self::order(ZEROS_ORDER)).expect("an order"),
        );
        // SAFETY: it was just taken.
        let zeros = unsafe { Unique::new(machine, OwnedBlock::new(zeros)) };
        let zeros = zeros.into_reserved().expect("reserved");
        let mut world = World {
            machine,
            random: Random(seed),
            spaces: Vec::new(),
            files: Vec::new(),
            zeros,
            pins: Vec::new(),
            swap_entries: HashMap::new(),
            stamp: 1,
            slots: 1 + seed as usize % 40,
            huge,
            free,
            trace: std::env::var_os("TRACE").is_some(),
            reached: BTreeMap::new(),
        };
        let real = AddressSpace::new(machine, 0).expect("a space");
        world.spaces.push(Space { real, model: Naive::default() });
        for &order in orders {
            let order = order.min(MAX_ORDER.get() - F::GRANULE as u8);
            let head = take(&machine.host, Self::order(order)).expect("frames");
            let folio = prepare(machine, head, Self::order(order), FolioKind::File).expect("a folio");
            let contents = (0..1 << order)
                .map(|n| Rc::new(Cell::new(world.write_stamp(Self::frame(head, n)))))
                .collect();
            world.files.push((folio, contents));
        }
        world
    }

    /// Writes something new to a frame.
    fn write_stamp(&mut self, frame: Frame) -> u64 {
        self.stamp += 1;
        self.machine.host.write(frame.address(), self.stamp).expect("memory");
        self.stamp
    }

    /// Whether young and dirty must be those of each page, and not of a block or huge leaf around it.
    fn exact(&self) -> bool {
        F::CONTIGUOUS == 1 && !self.huge
    }

    fn regions() -> [Region; 6] {
        regions::<F>()
    }

    /// The first page of 4 KiB of the addresses that the format translates.
    const BASE: u64 =
        if matches!(F::HALF, Half::Upper) { (1 << 52) - (1 << (F::VA_BITS - PAGE_SHIFT)) } else { 0 };

    fn at(page: u64) -> VirtAddr {
        VirtAddr::of_page(Self::BASE + (page << F::GRANULE))
    }

    fn page_of(at: VirtAddr) -> u64 {
        (at.page() - Self::BASE) >> F::GRANULE
    }

    fn span(first: u64, pages: u64) -> PageRange {
        PageRange::with_pages(Self::at(first), pages << F::GRANULE).expect("a range")
    }

    fn first(range: PageRange) -> u64 {
        Self::page_of(range.start())
    }

    fn count(range: PageRange) -> u64 {
        range.pages() >> F::GRANULE
    }

    /// The frame of a page so many after that of this frame.
    fn frame(first: Frame, n: u64) -> Frame {
        first.add(n << F::GRANULE)
    }

    /// The order of so many pages.
    fn order(order: u8) -> u8 {
        order + F::GRANULE as u8
    }

    /// Where a folio of this use ends at the latest that is mapped here: it may reach into the region that follows.
    fn reach(region: Region) -> u64 {
        let follows = |next: &&Region| next.first == region.end() && next.usage == region.usage;
        Self::regions().iter().find(follows).map_or(region.end(), Region::end)
    }

    fn region_of(page: u64) -> Region {
        *Self::regions().iter().find(|r| (r.first..r.end()).contains(&page)).expect("a page of a region")
    }

    fn space(&mut self) -> usize {
        self.random.below(self.spaces.len() as u64) as usize
    }

    /// A random range within a region: often one page, often a whole table or block.
    fn range(&mut self) -> PageRange {
        let region = self.random.of(&Self::regions());
        let mut start = region.first + self.random.below(region.pages);
        let len = match self.random.below(6) {
            0 => 1,
            1 => self.random.below(16) + 1,
            2 => {
                start &= !15;
                16 * (1 + self.random.below(8))
            }
            3 => {
                start &= !511;
                512 * (1 + self.random.below(2))
            }
            4 => region.pages,
            _ => self.random.below(200) + 1,
        };
        let start = start.max(region.first);
        Self::span(start, len.min(region.end() - start))
    }

    fn pages(range: PageRange) -> std::ops::Range<u64> {
        Self::first(range)..Self::first(range) + Self::count(range)
    }

    /// A page of the space, one that is mapped if there is one, mostly.
    fn a_page(&mut self, s: usize) -> u64 {
        let region = self.random.of(&Self::regions());
        let page = region.first + self.random.below(region.pages);
        if self.random.one_in(8) {
            return page;
        }
        let model = &self.spaces[s].model;
        let Some((low, high)) = model.ends() else { return page };
        let from = if self.random.one_in(2) { low + self.random.below(high - low + 1) } else { page };
        self.spaces[s].model.next(from).unwrap_or(low)
    }

    /// Counts that something came about, which no single operation asks for.
    fn note(&mut self, what: &'static str) {
        *self.reached.entry(what).or_default() += 1;
    }

    /// How often what came about.
    pub fn reached(&self) -> &BTreeMap<&'static str, u64> {
        &self.reached
    }

    /// One random operation.
    pub fn step(&mut self) {
        let dice = self.random.below(100);
        if self.trace {
            eprintln!("op {dice}");
        }
        match dice {
            0..=17 => self.map(),
            18..=25 => self.zap(),
            26..=31 => self.protect(),
            32..=35 => self.write_protect(),
            36..=39 => self.fork(),
            40..=42 => self.exit(),
            43..=66 => self.access(Access::Write),
            67..=76 => self.access(Access::Read),
            77..=78 => self.access(Access::Execute),
            79..=83 => self.harvest(),
            84..=87 => self.split_or_collapse(),
            88..=91 => self.remap(),
            92..=94 => self.swap_entry(),
            95..=97 => self.pin(),
            98 => self.split_folio(),
            _ => {
                if self.random.one_in(4) {
                    self.check();
                }
            }
        }
    }
}

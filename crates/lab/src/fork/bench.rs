//! Forking hosted address spaces, so that both ways find the same: the same frames, as warm, in the same order.

use super::memory::Memory;
use super::per_page::PerPage;
use super::{Error, Layout, PAGE, Setup};
use crate::Watch;
use crate::statistics::median;
use isotherm_page::{Block, OwnedBlock, Unique, Unused};
use isotherm_pagetable::host::{Counts, HostMachine};
use isotherm_pagetable::{
    AddressSpace, Attributes, FolioKind, ForkRule, Format, Frame, Level, Order, PageRange, Pages as _,
    Sharing, Slot, VirtAddr,
};
use std::time::Instant;

/// What one operation took and asked of the machine.
#[derive(Clone, Copy, Default)]
pub(super) struct Timed {
    /// Milliseconds; of repetitions the shortest.
    pub ms: f64,
    /// Of repetitions the median.
    pub typical_ms: f64,
    /// What was asked for.
    pub counts: Counts,
    /// Page faults of this program meanwhile.
    pub page_faults: u64,
}

/// Each operation, timed.
type Once = [Timed; 4];

/// A run of both ways.
#[derive(Clone, Copy)]
pub(super) struct Run {
    /// In batches.
    pub batched: Once,
    /// Page by page.
    pub per_page: Once,
}

/// Pages of a MiB.
const MIB: u64 = 256;

impl Layout {
    /// How often everything is repeated in a run, whose figure is the shortest time: what else the machine does only ever
    /// adds to it (Chen and Revels, Robust benchmarking in noisy environments, 2016). The shorter it takes the more often.
    fn repetitions(self) -> u32 {
        match self {
            Layout::Order0 | Layout::Mixed => 4,
            Layout::Order9 => 16,
            Layout::Pmd => 32,
        }
    }
}

/// A machine, and what every run on it needs. One for all: both ways and both formats see the same frames.
pub(super) struct Bench {
    machine: HostMachine,
    layout: Layout,
    pages: u64,
    slots: Vec<Slot>,
    bitmap: Vec<u64>,
    /// The frames that tables are made of, and memory of order 0: free while something is mapped, taken in between.
    singles: Vec<Frame>,
}

impl Bench {
    pub(super) fn new(layout: Layout, setup: &Setup, watch: &Watch<'_>) -> Result<Bench, Error> {
        let pages = setup.mib * MIB;
        // Of two spaces, with some to spare.
        let tables = pages / 128 + 64;
        // Room for them, and for what is left of blocks that they split.
        let frames = pages + tables + 4096;
        // What there is no room for is refused here with an error, by the machine with an abort.
        drop(Memory::new((frames as usize).saturating_mul(PAGE))?);
        let machine = HostMachine::new(frames);
        let singles = if layout == Layout::Order0 { machine.free_frames() } else { tables };
        // Any of them may become a table: all must be there, or the system would have to find some while the clock runs.
        let mut taken = Vec::new();
        for n in 0..singles {
            if n % (64 * MIB) == 0 {
                watch.go_on()?;
            }
            let Some(mut block) = machine.take(Order::BASE) else { break };
            HostMachine::fill(&mut block, 0);
            taken.push(kept(block));
        }
        let singles = taken;
        let (slots, bitmap) = (vec![Slot::default(); 512], vec![0; pages.div_ceil(64) as usize]);
        Ok(Bench { machine, layout, pages, slots, bitmap, singles })
    }

    /// Has single frames handed out in the order of their numbers. By itself the machine hands out those first that were
    /// freed last, memory and tables mixed, which every fork mixes further: after some hundred, none would find what the
    /// first found. Larger blocks are memory only, and keep apart.
    fn sort_singles(&mut self) {
        self.singles.sort_unstable();
        // The last that came is the first to go.
        for &frame in self.singles.iter().rev() {
            // SAFETY: `single` took it, and it is nobody's until `take_singles`.
            unsafe { self.machine.free(OwnedBlock::new(Block::new(frame, Order::BASE))) };
        }
    }

    fn take_singles(&mut self) {
        for place in &mut self.singles {
            // Those that were given are all back, and come before blocks are split for others.
            if let Some(frame) = single(&self.machine) {
                *place = frame;
            }
        }
    }

    /// Each operation several times, in batches and page by page in turn; the shortest time of each.
    pub(super) fn run<F: Format>(&mut self, watch: &Watch<'_>) -> Result<Run, Error> {
        // What is timed first does not count: what it uses the others find as warm, whatever was done before.
        self.once(Self::batched::<F>)?;
        self.once(Self::per_page::<F>)?;
        let (mut batched, mut per_page) = (Vec::new(), Vec::new());
        for n in 0..self.layout.repetitions() {
            watch.go_on()?;
            // They take turns at being first, so that each comes after each as often.
            if n % 2 == 0 {
                per_page.push(self.once(Self::per_page::<F>)?);
                batched.push(self.once(Self::batched::<F>)?);
            } else {
                batched.push(self.once(Self::batched::<F>)?);
                per_page.push(self.once(Self::per_page::<F>)?);
            }
        }
        Ok(Run { batched: of_repetitions(&batched), per_page: of_repetitions(&per_page) })
    }

    fn once(&mut self, way: fn(&mut Self) -> Result<Once, Error>) -> Result<Once, Error> {
        self.sort_singles();
        let run = way(self);
        self.take_singles();
        run
    }

    /// Fork, exit of the child, harvest and zap of the parent, each timed. All of the memory was just mapped, and with
    /// that written to: a fork finds it so once.
    fn batched<F: Format>(&mut self) -> Result<Once, Error> {
        let Bench { machine, layout, pages, slots, bitmap, .. } = self;
        let machine = &*machine;
        let parent = AddressSpace::<F, HostMachine>::new(machine, 1)?;
        populate(&parent, *layout, *pages)?;
        let all = PageRange::with_pages(VirtAddr(0), *pages)?;
        let child = AddressSpace::<F, HostMachine>::new(machine, 2)?;
        let (fork, done) = timed(machine, || {
            let mut gather = parent.gather(slots);
            parent.copy_range(&child, all, ForkRule::Copy(Sharing::Private), &mut gather)
        });
        done?;
        let (exit, _) = timed(machine, || child.exit(slots));
        bitmap.fill(0);
        let (harvest, done) = timed(machine, || parent.harvest_young(all, bitmap));
        done?;
        let (zap, done) = timed(machine, || parent.zap(all, &mut parent.gather(slots)));
        done?;
        Ok([fork, exit, harvest, zap])
    }

    /// The same, page by page.
    fn per_page<F: Format>(&mut self) -> Result<Once, Error> {
        let Bench { machine, layout, pages, bitmap, .. } = self;
        let machine = &*machine;
        let parent = PerPage::<F>::new(machine, 1)?;
        parent.populate(*layout, *pages)?;
        let child = PerPage::<F>::new(machine, 2)?;
        let (fork, done) = timed(machine, || parent.fork(&child, *pages));
        done?;
        let (exit, _) = timed(machine, || child.exit());
        bitmap.fill(0);
        let (harvest, done) = timed(machine, || parent.harvest(*pages, bitmap));
        done?;
        let (zap, done) = timed(machine, || parent.zap(*pages));
        done?;
        parent.exit();
        Ok([fork, exit, harvest, zap])
    }
}

/// The shortest and the median time of each operation.
fn of_repetitions(all: &[Once]) -> Once {
    let mut run = Once::default();
    for (n, timed) in run.iter_mut().enumerate() {
        let of: Vec<Timed> = all.iter().filter_map(|once| once.get(n).copied()).collect();
        let times: Vec<f64> = of.iter().map(|once| once.ms).collect();
        *timed = Timed {
            ms: times.iter().copied().fold(f64::INFINITY, f64::min),
            typical_ms: median(&times).unwrap_or(f64::INFINITY),
            counts: of.last().map(|once| once.counts).unwrap_or_default(),
            page_faults: of.iter().map(|once| once.page_faults).sum(),
        };
    }
    run
}

fn timed<T>(machine: &HostMachine, work: impl FnOnce() -> T) -> (Timed, T) {
    machine.reset_counts();
    let faults = page_faults();
    let start = Instant::now();
    let result = work();
    let ms = start.elapsed().as_secs_f64() * 1e3;
    (Timed { ms, typical_ms: ms, counts: machine.counts(), page_faults: page_faults() - faults }, result)
}

/// Page faults of this thread so far.
fn page_faults() -> u64 {
    // SAFETY: all zeros are a value of that structure.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: writes to the structure that it is given.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    (usage.ru_minflt + usage.ru_majflt) as u64
}

/// A frame of the machine's, by its number alone.
fn single(machine: &HostMachine) -> Option<Frame> {
    machine.take(Order::BASE).map(kept)
}

/// Keeps the number alone.
fn kept(block: Unique<'_, HostMachine, Unused>) -> Frame {
    let frame = block.frame();
    std::mem::forget(block);
    frame
}

fn populate<F: Format>(
    space: &AddressSpace<'_, F, HostMachine>,
    layout: Layout,
    pages: u64,
) -> Result<(), Error> {
    let machine = space.machine();
    let largest = if layout == Layout::Pmd { Level::Pmd } else { Level::Pte };
    let mut page = 0;
    while page < pages {
        let order = Order::new(layout.order_at(page)).ok_or(Error::NoFrames)?;
        let folio = machine.folio(order, FolioKind::Anon).ok_or(Error::NoFrames)?;
        let range = PageRange::with_pages(VirtAddr::of_page(page), order.frames())?;
        space.map(range, folio.head(), Attributes::anonymous(), largest)?;
        page += order.frames();
    }
    Ok(())
}

//! CPUs with TLBs that hold on to translations until these are invalidated and that waited for, while other threads
//! change the tables: fork, collapse and split, protect, fold and unfold, move, unmap and map anew. No write is lost, none
//! reaches a child after its fork, and nobody reads a page that was freed.
//!
//! Write faults and forks exclude each other here, as by Linux' `mmap_lock`; everything else comes at the same time.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::cell::RefCell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

use common::{at, pages, prepare, take};
use isotherm_page::{OwnedBlock, Unique};
use isotherm_pagetable::host::HostMachine;
use isotherm_pagetable::*;

const CPUS: usize = 3;
/// Translations that a TLB holds.
const ENTRIES: usize = 32;
/// What pages that are free hold.
const FREED: u64 = u64::MAX;

/// Pages whose contents are accounted for: of one table, and some of the next.
const FIRST: u64 = 512;
const PAGES: u64 = 512 + 32;
/// Pages that come and go.
const SCRATCH: u64 = 4096;
const SCRATCHES: u64 = 64;
const RULE: ForkRule = ForkRule::Copy(Sharing::Private);

/// Changes that each of two threads makes; as many as `PHASES` says, where threads are slow.
fn changes() -> u64 {
    let usual = if cfg!(debug_assertions) { 400 } else { 800 };
    std::env::var("PHASES").ok().and_then(|n| n.parse().ok()).unwrap_or(usual)
}

#[derive(Clone, Copy)]
struct Cached {
    space: SpaceId,
    page: u64,
    frame: Frame,
    write: bool,
}

thread_local! {
    /// Invalidations that this thread has issued and not yet waited for.
    static ISSUED: RefCell<Vec<(SpaceId, u64, u64)>> = const { RefCell::new(Vec::new()) };
}

struct Cpus {
    host: HostMachine,
    /// Held for the length of an access: whoever waits for an invalidation waits for that as well.
    tlbs: [Mutex<Vec<Cached>>; CPUS],
}

impl Cpus {
    fn tlb(&self, cpu: usize) -> MutexGuard<'_, Vec<Cached>> {
        self.tlbs[cpu].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An access, during which `then` is done to the frame.
    fn access<T, F: Format>(
        &self,
        cpu: usize,
        space: &AddressSpace<'_, F, Cpus>,
        page: u64,
        access: Access,
        then: impl FnOnce(Frame) -> T,
    ) -> Result<T, Fault> {
        let mut tlb = self.tlb(cpu);
        let known = tlb.iter().find(|c| c.space == space.id() && c.page == page);
        if let Some(known) = known.filter(|c| c.write || access == Access::Read) {
            return Ok(then(known.frame));
        }
        let frame = space.read().access(at(page), access)?;
        tlb.retain(|c| c.page != page || c.space != space.id());
        if tlb.len() == ENTRIES {
            tlb.remove(0);
        }
        // For writes it is known only to be dirty by now.
        tlb.push(Cached { space: space.id(), page, frame, write: access == Access::Write });
        Ok(then(frame))
    }
}

// SAFETY: all is forwarded to a machine that keeps the rules.
unsafe impl Pages for Cpus {
    fn meta(&self, frame: Frame) -> Option<&PageMeta> {
        self.host.meta(frame)
    }
    unsafe fn free(&self, block: OwnedBlock) {
        let freed = block.frame.0..block.frame.0 + block.order.frames();
        for cpu in 0..CPUS {
            let reached = self.tlb(cpu).iter().any(|cached| freed.contains(&cached.frame.0));
            assert!(!reached, "{:?} is freed, and the TLB of CPU {cpu} reaches it", *block);
        }
        // SAFETY: the block is the host's, and nobody refers to it. Dropped, it is free.
        let mut block = unsafe { Unique::new(&self.host, block) };
        HostMachine::fill(&mut block, FREED);
    }
    unsafe fn split(&self, block: OwnedBlock, order: Order) {
        // SAFETY: the caller's promise is passed on.
        unsafe { self.host.split(block, order) };
    }
}

// SAFETY: all is forwarded to a machine that keeps the rules.
unsafe impl Memory for Cpus {
    fn table(&self, frame: Frame) -> NonNull<Table> {
        self.host.table(frame)
    }
    fn is_device(&self, frame: Frame) -> bool {
        self.host.is_device(frame)
    }
    unsafe fn copy(&self, from: Frame, to: Frame, frames: u64) {
        // SAFETY: the caller's promise is passed on.
        unsafe { self.host.copy(from, to, frames) };
    }
    unsafe fn clear(&self, frame: Frame) {
        // SAFETY: the caller's promise is passed on.
        unsafe { self.host.clear(frame) };
    }
    fn relax(&self, tries: u32) {
        self.host.relax(tries);
    }
}

// SAFETY: as above.
unsafe impl Frames for Cpus {
    fn alloc_table(&self) -> Option<Frame> {
        self.host.alloc_table()
    }
    unsafe fn retire_table(&self, frame: Frame) {
        // SAFETY: the caller's promise is passed on.
        unsafe { self.host.retire_table(frame) };
    }
    fn alloc_folio(&self, order: Order) -> Option<Frame> {
        self.host.alloc_folio(order)
    }
}

// SAFETY: `sync` takes what this thread invalidated out of all TLBs, between two accesses of each CPU.
unsafe impl Tlb for Cpus {
    type Context = u16;
    fn invalidate_page(&self, space: SpaceId, page: u64) {
        ISSUED.with_borrow_mut(|issued| issued.push((space, page, page + 1)));
    }
    fn invalidate_range(&self, space: SpaceId, flush: Flush) {
        let range = flush.range;
        let first = range.start().page();
        ISSUED.with_borrow_mut(|issued| issued.push((space, first, first + range.pages())));
    }
    fn invalidate_space(&self, space: SpaceId) {
        ISSUED.with_borrow_mut(|issued| issued.push((space, 0, u64::MAX)));
    }
    fn sync(&self) {
        let issued = ISSUED.take();
        let hit = |cached: &Cached| {
            issued
                .iter()
                .any(|&(space, first, end)| space == cached.space && (first..end).contains(&cached.page))
        };
        for cpu in 0..CPUS {
            self.tlb(cpu).retain(|cached| !hit(cached));
        }
    }
}

impl Rcu for Cpus {
    type Guard<'a> = <HostMachine as Rcu>::Guard<'a>;
    fn read_lock(&self) -> Self::Guard<'_> {
        self.host.read_lock()
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

struct World<'m, F: Format> {
    space: AddressSpace<'m, F, Cpus>,
    /// Forks take it to write, write faults to read.
    mmap: RwLock<()>,
    done: AtomicBool,
}

/// Sets the flag when it goes, also by a panic: the others must not go on for ever.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl<'m, F: Format> World<'m, F> {
    fn machine(&self) -> &'m Cpus {
        self.space.machine()
    }

    /// A new folio, mapped from `page` on; `false` if something is there.
    fn map(&self, page: u64, order: u8) -> bool {
        let machine = self.machine();
        let Some(head) = take(&machine.host, order) else { return false };
        let folio = prepare(machine, head, order, FolioKind::Anon).unwrap();
        for n in 0..1 << order {
            // A word for each CPU.
            (0..CPUS as u64).for_each(|cpu| machine.host.write(head.add(n).address() + 8 * cpu, 0).unwrap());
        }
        let state = Attributes { young: false, dirty: false, ..Attributes::anonymous() };
        let mapped = self.space.map(pages(page, 1 << order), head, state, Level::Pte);
        drop(folio);
        mapped.is_ok()
    }

    fn populate(&self) {
        let (mut page, mut n) = (0, 0);
        while page < PAGES {
            let order = [0, 0, 4, 2, 5, 0][n % 6].min((PAGES - page).ilog2() as u8);
            let order = order.min((FIRST + page).trailing_zeros() as u8);
            assert!(self.map(FIRST + page, order));
            page += 1 << order;
            n += 1;
        }
    }

    /// Resolves a fault on a page that must be there.
    fn fault(&self, page: u64, fault: Fault, write: bool, random: &mut Random) {
        let bounds = pages(FIRST, PAGES);
        let result = match fault {
            Fault::Protection => {
                let whole_folio = random.below(2) == 0;
                let fault = WriteFault { sharing: Sharing::Private, bounds, whole_folio };
                let _no_fork = self.mmap.read().unwrap();
                self.space.write_fault(at(page), None, fault).map(drop)
            }
            Fault::Old | Fault::Clean => self.space.mark_accessed(at(page), None, write),
            Fault::NotPresent => {
                let there = matches!(self.space.query(at(page)), Mapping::Page { .. });
                if there { Ok(()) } else { Err(Error::NotMapped) }
            }
        };
        match result {
            Ok(()) | Err(Error::NoFolioFrames(_) | Error::NotPermitted) => {}
            Err(why) => panic!("page {page}, {fault:?}: {why}"),
        }
    }

    /// Reads and writes pages, each time looking whether what this CPU wrote last is there.
    fn program(&self, cpu: usize) {
        let mut random = Random(cpu as u64 + 77);
        let mut written = vec![0; PAGES as usize];
        let mut near = 0;
        while !self.done.load(Ordering::Relaxed) {
            // Mostly near the last one, so that the TLB knows it.
            near = if random.below(64) == 0 { random.below(PAGES) } else { near };
            let n = (near + random.below(8)) % PAGES;
            let (page, last) = (FIRST + n, &mut written[n as usize]);
            let write = random.below(2) == 0;
            let result = self.machine().access(
                cpu,
                &self.space,
                page,
                if write { Access::Write } else { Access::Read },
                |frame| {
                    let word = frame.address() + 8 * cpu as u64;
                    assert_eq!(self.machine().host.read(word), Some(*last), "page {page}: a write is lost");
                    if write {
                        *last += 1;
                        self.machine().host.write(word, *last).unwrap();
                    }
                },
            );
            if let Err(fault) = result {
                self.fault(page, fault, write, &mut random);
            }
        }
    }

    /// Reads pages that come and go.
    fn scratch(&self, cpu: usize) {
        let mut random = Random(5);
        while !self.done.load(Ordering::Relaxed) {
            let page = SCRATCH + random.below(SCRATCHES);
            let read = |frame: Frame| self.machine().host.read(frame.address());
            match self.machine().access(cpu, &self.space, page, Access::Read, read) {
                Ok(found) => assert_eq!(found, Some(0), "page {page} was freed"),
                Err(Fault::Old) => {
                    let _gone = self.space.mark_accessed(at(page), None, false);
                }
                Err(_) => {}
            }
        }
    }

    fn fork(&self, range: PageRange) {
        let machine = self.machine();
        let child = AddressSpace::new(machine, 2).unwrap();
        let mut slots = [Slot::default(); 8];
        {
            let _no_faults = self.mmap.write().unwrap();
            let gather = &mut self.space.gather(&mut slots);
            self.space.copy_range(&child, pages(FIRST, PAGES), RULE, gather).unwrap();
            gather.flush();
        }
        let seen = || {
            let word = |page: u64, cpu: u64| match child.query(at(page)) {
                Mapping::Page { frame, .. } => machine.host.read(frame.address() + 8 * cpu),
                other => panic!("page {page} of the child: {other:?}"),
            };
            let pages = range.start().page()..range.start().page() + range.pages();
            pages
                .flat_map(|page| (0..CPUS as u64).map(move |cpu| (page, cpu)))
                .map(|(p, c)| word(p, c))
                .collect()
        };
        let before: Vec<_> = seen();
        // The parent goes on writing meanwhile.
        (0..8).for_each(|_| std::thread::yield_now());
        assert_eq!(seen(), before, "a child sees what its parent writes after the fork");
        child.exit(&mut slots);
    }

    fn change(&self, random: &mut Random) {
        let space = &self.space;
        let first = random.below(PAGES);
        let range = pages(FIRST + first, (1 + random.below(40)).min(PAGES - first));
        let mut slots = [Slot::default(); 4];
        let mut gather = space.gather(&mut slots[..random.below(5) as usize]);
        let scratch = SCRATCH + random.below(SCRATCHES);
        let scratches = pages(scratch, 1 + random.below(SCRATCH + SCRATCHES - scratch));
        match random.below(13) {
            0 | 1 => match space.collapse(at(FIRST), 0, &mut gather) {
                Ok(_) | Err(Error::Changed | Error::NotCollapsible(_) | Error::NoFolioFrames(_)) => {}
                Err(why) => panic!("collapse: {why}"),
            },
            2 => space.split(at(FIRST)).unwrap(),
            3 => {
                space.write_protect(range, &mut gather).unwrap();
            }
            4 | 5 => {
                let protection = [Protection::READ, Protection::READ_WRITE][random.below(2) as usize];
                space.protect(range, protection, Sharing::Private, &mut gather).unwrap();
            }
            6 => {
                space.harvest_young(range, &mut []).unwrap();
            }
            7 => self.fork(pages(range.start().page(), range.pages().min(16))),
            8 | 9 => {
                self.map(scratch & !3, [0, 2][random.below(2) as usize]);
            }
            10 => {
                space.zap(scratches, &mut gather).unwrap();
            }
            11 => {
                let _moved = space.remap(pages(scratch, 1), at(SCRATCH + random.below(SCRATCHES)));
            }
            _ => {
                space.unmap(pages(SCRATCH, 512), &mut gather).unwrap();
            }
        }
    }
}

fn nothing_stale_is_used<F: Format>() {
    let machine =
        Cpus { host: HostMachine::new(1 << 14), tlbs: std::array::from_fn(|_| Mutex::new(Vec::new())) };
    let free = machine.host.free_frames();
    let space = AddressSpace::<F, _>::new(&machine, 1).unwrap();
    let world = World { space, mmap: RwLock::new(()), done: AtomicBool::new(false) };
    world.populate();
    std::thread::scope(|scope| {
        let world = &world;
        for cpu in 0..CPUS - 1 {
            scope.spawn(move || {
                let _ends = Ends(&world.done);
                world.program(cpu);
            });
        }
        scope.spawn(move || {
            let _ends = Ends(&world.done);
            world.scratch(CPUS - 1);
        });
        scope.spawn(move || {
            let _ends = Ends(&world.done);
            std::thread::scope(|scope| {
                for seed in 0..2 {
                    scope.spawn(move || {
                        let mut random = Random(seed);
                        for _ in 0..changes() {
                            if world.done.load(Ordering::Relaxed) {
                                return;
                            }
                            world.change(&mut random);
                        }
                    });
                }
            });
        });
    });
    drop(world);
    assert_eq!(machine.host.free_frames(), free);
}

#[test]
#[cfg_attr(miri, ignore = "thousands of accesses")]
fn on_x86_64() {
    nothing_stale_is_used::<X86_64>();
}

#[test]
#[cfg_attr(miri, ignore = "thousands of accesses")]
fn on_arm64() {
    nothing_stale_is_used::<Arm64Hafdbs>();
}

#[test]
#[cfg_attr(miri, ignore = "thousands of accesses")]
fn on_arm64_with_software_bits() {
    nothing_stale_is_used::<Arm64Software>();
}

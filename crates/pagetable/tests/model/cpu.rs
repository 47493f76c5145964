//! A machine with a CPU whose TLB holds on to translations: [`HostMachine`]'s only counts. A translation stays until
//! it is invalidated *and* the invalidation waited for, so an operation that forgets a flush, or flushes too little, or
//! gives memory back before, is seen by what the program then reads and writes.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use isotherm_page::OwnedBlock;
use isotherm_pagetable::host::HostMachine;
use isotherm_pagetable::*;

/// Translations that the TLB holds, more than are in use at a time in a small space.
const ENTRIES: usize = 64;

/// A translation of the pages `first..first + pages`.
#[derive(Clone, Copy, Debug)]
struct Cached {
    space: SpaceId,
    first: u64,
    pages: u64,
    frame: Frame,
    write: bool,
    /// Writes go through, else the CPU walks to set that.
    dirty: bool,
    execute: bool,
}

impl Cached {
    /// What becomes of an access without a walk.
    fn permits<F: Format>(&self, access: Access) -> Permitted {
        let refused = match access {
            Access::Read => return Permitted::Yes,
            Access::Execute if self.execute => return Permitted::Yes,
            Access::Write if self.write && self.dirty => return Permitted::Yes,
            Access::Write if self.write && F::HARDWARE_DIRTY => return Permitted::Walk,
            Access::Write if self.write => Fault::Clean,
            Access::Write | Access::Execute => Fault::Protection,
        };
        // x86-64 walks before it faults (Intel SDM vol. 3, 4.10.4.3), arm64 need not: there a translation that permits
        // too little faults until it is invalidated (Arm ARM D8.16).
        if F::CONTIGUOUS > 1 { Permitted::No(refused) } else { Permitted::Walk }
    }
}

enum Permitted {
    Yes,
    No(Fault),
    Walk,
}

#[derive(Clone, Copy, Debug)]
enum Invalidation {
    Pages(SpaceId, u64, u64),
    Space(SpaceId),
}

impl Invalidation {
    fn hits(&self, cached: &Cached) -> bool {
        match *self {
            Invalidation::Pages(space, first, end) => {
                space == cached.space && first < cached.first + cached.pages && cached.first < end
            }
            Invalidation::Space(space) => space == cached.space,
        }
    }
}

#[derive(Debug, Default)]
struct Cache {
    held: Vec<Cached>,
    issued: Vec<Invalidation>,
}

/// The entry that translates a page, as a walk finds it at this moment.
type Walk = fn(&Cpu, SpaceId, u64) -> u64;

/// See the [module](self).
#[derive(Debug)]
pub struct Cpu {
    pub host: HostMachine,
    tlb: Mutex<Cache>,
    walk: OnceLock<Walk>,
    seen: Mutex<Vec<(u64, u64)>>,
    slow: AtomicBool,
}

impl Cpu {
    pub fn new(frames: u64) -> Cpu {
        Cpu {
            host: HostMachine::new(frames),
            tlb: Mutex::default(),
            walk: OnceLock::new(),
            seen: Mutex::default(),
            slow: AtomicBool::new(false),
        }
    }

    /// From here on other CPUs take their time to confirm an invalidation.
    pub fn slow_down(&self) {
        self.slow.store(true, Ordering::Relaxed);
    }

    /// From here on looks at what is being invalidated, at the moment that this is waited for.
    pub fn watch<F: Format>(&self) {
        let walk = |machine: &Cpu, space: SpaceId, page| {
            let (mut level, mut frame) = (F::ROOT, space.root);
            loop {
                // SAFETY: the frame is a table of a tree that this thread, the only one, is changing.
                let entry =
                    unsafe { machine.table(frame).cast::<Entry>().add(F::index(level, page)).as_ref() };
                let raw = entry.load();
                match level.below() {
                    Some(below) if raw != 0 && F::is_table(level, raw) => {
                        (level, frame) = (below, F::table_frame(raw));
                    }
                    _ => return raw,
                }
            }
        };
        self.walk.set(walk).expect("watched once");
    }

    /// Each page and the entry that translated it while an invalidation of the page was waited for.
    pub fn take_seen(&self) -> Vec<(u64, u64)> {
        std::mem::take(&mut self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn tlb(&self) -> MutexGuard<'_, Cache> {
        self.tlb.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An access of a program: by the TLB if it holds a translation that permits it, else by a walk.
    pub fn access<F: Format>(
        &self,
        space: &AddressSpace<'_, F, Cpu>,
        page: u64,
        access: Access,
    ) -> Result<(Frame, Walked), Fault> {
        let covers = |c: &Cached| c.space == space.id() && (c.first..c.first + c.pages).contains(&page);
        let cached = self.tlb().held.iter().copied().find(covers);
        if let Some(cached) = cached {
            match cached.permits::<F>(access) {
                Permitted::Yes => return Ok((cached.frame.add(page - cached.first), Walked(false))),
                Permitted::No(fault) => return Err(fault),
                Permitted::Walk => {}
            }
        }
        let at = VirtAddr::of_page(page);
        let reader = space.read();
        let frame = reader.access(at, access)?;
        if let Mapping::Page { level, contiguous, attributes, .. } = reader.lookup(at) {
            let pages = F::pages(level) * if contiguous { F::contiguous(level) as u64 } else { 1 };
            let mut tlb = self.tlb();
            // What did not permit the access is replaced.
            tlb.held.retain(|cached| !covers(cached));
            if tlb.held.len() == ENTRIES {
                tlb.held.remove(0);
            }
            let first = page - page % pages;
            tlb.held.push(Cached {
                space: space.id(),
                first,
                pages,
                frame: Frame(frame.0 - (page - first)),
                write: attributes.write,
                dirty: attributes.dirty,
                execute: attributes.execute,
            });
        }
        Ok((frame, Walked(true)))
    }
}

/// Whether the CPU walked the tables, and so set the accessed bit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Walked(pub bool);

// SAFETY: all is forwarded to a machine that keeps the rules.
unsafe impl Pages for Cpu {
    fn meta(&self, frame: Frame) -> Option<&PageMeta> {
        self.host.meta(frame)
    }
    unsafe fn free(&self, block: OwnedBlock) {
        let freed = block.frame.0..block.frame.0 + block.order.frames();
        let reached =
            self.tlb().held.iter().any(|c| c.frame.0 < freed.end && freed.start < c.frame.0 + c.pages);
        assert!(!reached, "{:?} is freed and the TLB still reaches it", block.frame);
        // SAFETY: the caller's promise is passed on.
        unsafe { self.host.free(block) };
    }
    unsafe fn split(&self, block: OwnedBlock, order: Order) {
        // SAFETY: the caller's promise is passed on.
        unsafe { self.host.split(block, order) };
    }
}

// SAFETY: all is forwarded to a machine that keeps the rules.
unsafe impl Memory for Cpu {
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
    fn event(&self, event: Event) {
        self.host.event(event);
    }
}

// SAFETY: as above.
unsafe impl Frames for Cpu {
    fn alloc_table(&self) -> Option<Frame> {
        self.host.alloc_table()
    }
    unsafe fn retire_table(&self, frame: Frame) {
        // SAFETY: the caller's promise is passed on.
        unsafe { self.host.retire_table(frame) };
    }
    fn alloc_table_of(&self, order: Order) -> Option<Frame> {
        self.host.alloc_table_of(order)
    }
    unsafe fn retire_table_of(&self, frame: Frame, order: Order) {
        // SAFETY: the caller's promise is passed on.
        unsafe { self.host.retire_table_of(frame, order) };
    }
    fn alloc_folio(&self, order: Order) -> Option<Frame> {
        self.host.alloc_folio(order)
    }
    fn share_swap_entry(&self, swap_entry: u64) {
        self.host.share_swap_entry(swap_entry);
    }
    fn release_swap_entry(&self, swap_entry: u64) {
        self.host.release_swap_entry(swap_entry);
    }
}

// SAFETY: what was invalidated is dropped when `sync` is called.
unsafe impl Tlb for Cpu {
    type Context = u16;
    fn invalidate_page(&self, space: SpaceId, page: u64) {
        self.host.invalidate_page(space, page);
        self.tlb().issued.push(Invalidation::Pages(space, page, page + 1));
    }
    fn invalidate_range(&self, space: SpaceId, flush: Flush) {
        let range = flush.range;
        self.host.invalidate_range(space, flush);
        let first = range.start().page();
        self.tlb().issued.push(Invalidation::Pages(space, first, first + range.pages()));
    }
    fn invalidate_space(&self, space: SpaceId) {
        self.host.invalidate_space(space);
        self.tlb().issued.push(Invalidation::Space(space));
    }
    fn permitted(&self, space: SpaceId, page: u64) {
        // As arm64 has to, where a fault leaves the translation that caused it.
        self.tlb().held.retain(|c| c.space != space || !(c.first..c.first + c.pages).contains(&page));
    }
    fn sync(&self) {
        if self.slow.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_micros(50));
        }
        self.host.sync();
        let mut tlb = self.tlb();
        let issued = std::mem::take(&mut tlb.issued);
        if let Some(walk) = self.walk.get() {
            let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            for invalidation in &issued {
                if let Invalidation::Pages(space, first, end) = *invalidation {
                    seen.extend((first..end).map(|page| (page, walk(self, space, page))));
                }
            }
        }
        tlb.held.retain(|cached| !issued.iter().any(|invalidation| invalidation.hits(cached)));
    }
}

impl Rcu for Cpu {
    type Guard<'a> = <HostMachine as Rcu>::Guard<'a>;
    fn read_lock(&self) -> Self::Guard<'_> {
        self.host.read_lock()
    }
}

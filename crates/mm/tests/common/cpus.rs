//! A machine of which a flush waits for accesses of CPUs that are under way, as one with TLBs does.
#![allow(dead_code, clippy::unwrap_used, reason = "shared by several tests; what fails here fails the test")]

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::{Mutex, RwLock};

use isotherm_mm::*;
use isotherm_page::{Block, Frame, Order, OwnedBlock, PageMeta, Pages, Unique, Unused};
use isotherm_pagetable::host::HostMachine;
use isotherm_pagetable::{Event, Flush, Frames, Memory, Rcu, SpaceId, Table, Tlb, X86_64};
use isotherm_rcu::Epoch;

use super::files::WORD;
use super::{Failing, PAGE, SMALL};

pub struct Cpus {
    pub host: HostMachine,
    accesses: RwLock<()>,
    /// What is done, once, when pages have been copied.
    pub copied: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Cpus {
    pub fn new(host: HostMachine) -> Self {
        Self { host, accesses: RwLock::new(()), copied: Mutex::default() }
    }

    /// A block that nobody uses.
    pub fn take(&self, order: Order) -> Option<Unique<'_, Self, Unused>> {
        let frame = self.host.alloc_folio(order)?;
        // SAFETY: it was just allocated.
        let block = unsafe { OwnedBlock::new(Block::new(frame, order)) };
        // SAFETY: from here.
        Some(unsafe { Unique::new(self, block) })
    }
}

// SAFETY: the host's.
unsafe impl Pages for Cpus {
    fn meta(&self, frame: Frame) -> Option<&PageMeta> {
        self.host.meta(frame)
    }
    unsafe fn free(&self, block: OwnedBlock) {
        // SAFETY: the caller vouches for it.
        unsafe { self.host.free(block) };
    }
    unsafe fn split(&self, block: OwnedBlock, order: Order) {
        // SAFETY: the caller vouches for it.
        unsafe { self.host.split(block, order) };
    }
}

// SAFETY: the host's.
unsafe impl Memory for Cpus {
    fn table(&self, frame: Frame) -> NonNull<Table> {
        self.host.table(frame)
    }
    unsafe fn copy(&self, from: Frame, to: Frame, frames: u64) {
        // SAFETY: the caller vouches for it.
        unsafe { self.host.copy(from, to, frames) };
        let then = self.copied.lock().unwrap().take();
        if let Some(then) = then {
            then();
        }
    }
    unsafe fn clear(&self, frame: Frame) {
        // SAFETY: the caller vouches for it.
        unsafe { self.host.clear(frame) };
    }
    fn relax(&self, tries: u32) {
        self.host.relax(tries);
    }
    fn event(&self, event: Event) {
        self.host.event(event);
    }
}

// SAFETY: the host's.
unsafe impl Frames for Cpus {
    fn alloc_table(&self) -> Option<Frame> {
        self.host.alloc_table()
    }
    unsafe fn retire_table(&self, frame: Frame) {
        // SAFETY: the caller vouches for it.
        unsafe { self.host.retire_table(frame) };
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

// SAFETY: `sync` waits for all accesses that began before.
unsafe impl Tlb for Cpus {
    type Context = u16;
    fn invalidate_page(&self, _: SpaceId, _: u64) {}
    fn invalidate_range(&self, _: SpaceId, _: Flush) {}
    fn invalidate_space(&self, _: SpaceId) {}
    fn sync(&self) {
        drop(self.accesses.write().unwrap());
    }
}

impl Rcu for Cpus {
    type Guard<'a> = <HostMachine as Rcu>::Guard<'a>;
    fn read_lock(&self) -> Self::Guard<'_> {
        self.host.read_lock()
    }
}

impl FrameBytes for Cpus {
    fn read_page(&self, frame: Frame, into: &mut PageBytes) {
        self.host.read_page(frame, into).unwrap();
    }
    fn write_page(&self, frame: Frame, from: &PageBytes) {
        self.host.write_page(frame, from).unwrap();
    }
}

pub struct CpuProcess<'m>(PhantomData<&'m Cpus>);

impl<'m> Platform for CpuProcess<'m> {
    type Rcu = Epoch;
    type Lock = RwLock<()>;
    type Contents = Paged<'m, X86_64, Cpus>;
    type Alloc = Failing;
}

pub type CpuSpace<'m> = AddressSpace<CpuProcess<'m>>;

pub fn cpu_space<'m>(system: &System<'m, X86_64, Cpus>, zero: Frame) -> CpuSpace<'m> {
    CpuSpace::new(Epoch, RwLock::new(()), Paged::in_system(system, 1, zero, ()).unwrap(), SMALL)
}

pub fn cpu_fork<'m>(space: &CpuSpace<'m>, zero: Frame) -> Result<CpuSpace<'m>, Error> {
    let system = space.contents().system().unwrap().clone();
    space.fork(RwLock::new(()), Paged::in_system(&system, 2, zero, ())?)
}

/// An access of a CPU to a page.
pub fn cpu_word(
    machine: &Cpus,
    space: &CpuSpace<'_>,
    page: u64,
    write: Option<u64>,
) -> Result<u64, FaultError> {
    let access = if write.is_some() { Access::Write } else { Access::Read };
    loop {
        {
            let _access = machine.accesses.read().unwrap();
            if let Ok(frame) = space.contents().access(page * PAGE, access) {
                let at = frame.address() + WORD;
                return Ok(match write {
                    // Not what is there by now: another may have written since.
                    Some(value) => machine.host.write(at, value).map(|()| value).unwrap(),
                    None => machine.host.read(at).unwrap(),
                });
            }
        }
        space.fault(page * PAGE, access)?;
    }
}

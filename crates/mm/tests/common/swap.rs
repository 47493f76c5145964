//! A machine with swap that fails when it is told to.
#![allow(dead_code, clippy::unwrap_used, reason = "shared by several tests; what fails here fails the test")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock};

use isotherm_mm::*;
use isotherm_page::Frame;
use isotherm_pagetable::Format;
use isotherm_pagetable::host::HostMachine;
use isotherm_rcu::Epoch;

use super::SMALL;
use super::host::{FRAMES, Space};

/// Compressed memory, or nothing.
pub struct Flaky {
    pub memory: Compressed,
    pub reads_fail: AtomicBool,
    pub writes_fail: AtomicBool,
}

impl Swap for Flaky {
    fn slots(&self) -> u32 {
        self.memory.slots()
    }

    fn write(&self, slot: u32, page: SwapPage<'_>) -> Result<(), SwapError> {
        if self.writes_fail.load(Ordering::Relaxed) {
            return Err(SwapError::Failed);
        }
        self.memory.write(slot, page)
    }

    fn read(&self, slot: u32, page: SwapPage<'_>) -> Result<(), SwapError> {
        if self.reads_fail.load(Ordering::Relaxed) {
            return Err(SwapError::Failed);
        }
        self.memory.read(slot, page)
    }

    fn free(&self, slot: u32) {
        self.memory.free(slot);
    }
}

pub struct Swapped {
    pub flaky: Arc<Flaky>,
    pub area: Arc<SwapArea>,
}

/// A machine, and swap of so many slots that it tells of swap entries.
pub fn machine_with_swap(frames: u64, slots: u32) -> (HostMachine, Swapped) {
    let memory = Compressed::new(slots, u64::MAX).unwrap();
    let flaky =
        Arc::new(Flaky { memory, reads_fail: AtomicBool::new(false), writes_fail: AtomicBool::new(false) });
    let area = Arc::new(SwapArea::new(Box::new(Arc::clone(&flaky))).unwrap());
    let machine = HostMachine::new(frames);
    machine.set_swap_counts(Arc::clone(&area) as _);
    (machine, Swapped { flaky, area })
}

pub fn system<'m, F: Format>(machine: &'m HostMachine, swap: &Swapped) -> System<'m, F, HostMachine> {
    System::new(machine, FRAMES, Some(Arc::clone(&swap.area))).unwrap()
}

pub fn space_in<'m, F: Format + 'm>(system: &System<'m, F, HostMachine>, zero: Frame) -> Space<'m, F> {
    Space::new(Epoch, RwLock::new(()), Paged::in_system(system, 1, zero, ()).unwrap(), SMALL)
}

pub fn fork_in<'m, F: Format + 'm>(space: &Space<'m, F>, zero: Frame) -> Result<Space<'m, F>, Error> {
    let system = space.contents().system().unwrap().clone();
    space.fork(RwLock::new(()), Paged::in_system(&system, 2, zero, ())?)
}

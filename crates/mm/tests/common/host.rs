//! Spaces on a machine of ordinary memory.
#![allow(dead_code, clippy::unwrap_used, reason = "shared by several tests; what fails here fails the test")]

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::RwLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use isotherm_mm::*;
use isotherm_page::{Frame, Order, Reserved, Unique};
use isotherm_pagetable::host::HostMachine;
use isotherm_pagetable::{Format, X86_64};
use isotherm_rcu::Epoch;

use super::{Failing, PAGE, SMALL};

thread_local! {
    static THREAD: Cell<usize> = const { Cell::new(usize::MAX) };
}

pub struct Process<'m, F>(PhantomData<(&'m HostMachine, F)>);

impl<'m, F: Format> Platform for Process<'m, F> {
    type Rcu = Epoch;
    type Lock = RwLock<()>;
    type Contents = Paged<'m, F, HostMachine>;
    type Alloc = Failing;

    fn cpu() -> usize {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        if THREAD.get() == usize::MAX {
            THREAD.set(THREADS.fetch_add(1, Ordering::Relaxed));
        }
        THREAD.get()
    }
}

pub type Space<'m, F = X86_64> = AddressSpace<Process<'m, F>>;

pub const FRAMES: u64 = 4096;

/// A page of zeros that is never freed.
pub fn zero(machine: &HostMachine) -> Unique<'_, HostMachine, Reserved> {
    machine.take(Order::BASE).unwrap().into_reserved().map_err(|(why, _)| why).unwrap()
}

pub fn new_space<F: Format>(machine: &HostMachine, zero: Frame) -> Space<'_, F> {
    Space::new(Epoch, RwLock::new(()), Paged::new(machine, 1, zero).unwrap(), SMALL)
}

/// A word of a program's memory, as its CPU comes to it: by the tables, and by faults.
pub fn word<'m, F, O, P>(
    machine: &HostMachine,
    space: &AddressSpace<P>,
    address: u64,
    write: Option<u64>,
) -> Result<u64, FaultError>
where
    F: Format + 'm,
    O: Objects<'m, F, HostMachine>,
    P: Platform<Contents = Paged<'m, F, HostMachine, O>>,
{
    let access = if write.is_some() { Access::Write } else { Access::Read };
    for _ in 0..100 {
        match space.contents().access(address, access) {
            Ok(frame) => {
                let at = frame.address() + (address & (PAGE - 1));
                if let Some(value) = write {
                    machine.write(at, value).unwrap();
                }
                return Ok(machine.read(at).unwrap());
            }
            Err(_) => space.fault(address, access)?,
        }
    }
    panic!("faults at {address:#x} for ever");
}

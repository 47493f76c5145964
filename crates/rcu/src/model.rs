//! The machine of loom's models, of this crate and of those that stand on it: CPUs that threads play.

use std::boxed::Box;
use std::cell::{Cell, RefCell};
use std::marker::PhantomData;

use crate::Cpus;

loom::thread_local! {
    static CPU: Cell<usize> = Cell::new(0);
    static DEPTH: Cell<u32> = Cell::new(0);
    static PREEMPTION: RefCell<Option<Box<dyn FnOnce()>>> = RefCell::new(None);
}

/// A CPU for each thread, until it is moved: CPU 0 at first.
#[derive(Debug)]
pub struct Machine;

/// A section of a thread.
#[derive(Debug)]
pub struct Section(PhantomData<*mut ()>);

impl Drop for Section {
    fn drop(&mut self) {
        DEPTH.with(|depth| depth.set(depth.get() - 1));
    }
}

// SAFETY: each thread is a CPU and counts its sections.
unsafe impl Cpus for Machine {
    type Section = Section;

    fn enter(&self) -> Section {
        DEPTH.with(|depth| depth.set(depth.get() + 1));
        Section(PhantomData)
    }

    fn in_section(&self) -> bool {
        DEPTH.with(Cell::get) > 0
    }

    fn current(&self) -> usize {
        let cpu = CPU.with(Cell::get);
        let preemption = PREEMPTION.with(|preemption| preemption.borrow_mut().take());
        if let Some(preemption) = preemption {
            preemption();
        }
        cpu
    }

    fn relax(&self, _tries: u32) {
        loom::thread::yield_now();
    }
}

/// The calling thread runs on this CPU from now on.
pub fn on(cpu: usize) {
    CPU.with(|this| this.set(cpu));
}

/// The calling thread is preempted once it has asked for its CPU the next time, and `then` is what that CPU goes on with.
pub fn preempted_after_current(then: impl FnOnce() + 'static) {
    PREEMPTION.with(|preemption| *preemption.borrow_mut() = Some(Box::new(then)));
}

//! The protocol of `Qsbr` in every interleaving: `RUSTFLAGS='--cfg loom' cargo test --release --test loom`.
//!
//! An object is a cell that loom watches: it reports a reader and a callback that are not ordered.
#![cfg(loom)]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::cell::Cell;
use std::ptr::NonNull;

use isotherm_rcu::{Cpus, Qsbr, Rcu, RcuHead, Reclaim};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicPtr, Ordering::*};
use loom::thread;

loom::thread_local! {
    static CPU: Cell<usize> = Cell::new(0);
    static DEPTH: Cell<u32> = Cell::new(0);
}

/// Each thread is a CPU.
struct Machine;

struct Section;

impl Drop for Section {
    fn drop(&mut self) {
        DEPTH.with(|depth| depth.set(depth.get() - 1));
    }
}

unsafe impl Cpus for Machine {
    type Section = Section;

    fn enter(&self) -> Section {
        DEPTH.with(|depth| depth.set(depth.get() + 1));
        Section
    }

    fn in_section(&self) -> bool {
        DEPTH.with(Cell::get) > 0
    }

    fn current(&self) -> usize {
        CPU.with(Cell::get)
    }

    fn relax(&self, _tries: u32) {
        thread::yield_now();
    }
}

/// What is read and freed. Freeing is writing, which loom reports if a reader is not done.
#[repr(C)]
struct Object {
    head: RcuHead,
    freed: UnsafeCell<bool>,
}

impl Object {
    fn new() -> *mut Self {
        Box::into_raw(Box::new(Self { head: RcuHead::new(), freed: UnsafeCell::new(false) }))
    }

    unsafe fn free(head: NonNull<RcuHead>) {
        let object = head.cast::<Self>();
        // SAFETY: the memory itself is given back only when the model is over.
        unsafe { object.as_ref() }.freed.with_mut(|freed| unsafe {
            assert!(!*freed, "called twice");
            *freed = true;
        });
    }
}

/// One place that holds an object, which an updater replaces.
struct World<const CPUS: usize> {
    rcu: Qsbr<Machine, CPUS>,
    place: AtomicPtr<Object>,
    /// After `rcu`, which runs what is left when it is dropped.
    all: Objects,
}

struct Objects([*mut Object; 2]);

unsafe impl<const CPUS: usize> Send for World<CPUS> {}
unsafe impl<const CPUS: usize> Sync for World<CPUS> {}

impl<const CPUS: usize> World<CPUS> {
    fn new() -> Arc<Self> {
        let all = [Object::new(), Object::new()];
        Arc::new(Self { rcu: Qsbr::new(Machine), place: AtomicPtr::new(all[0]), all: Objects(all) })
    }

    fn read(&self) {
        let guard = self.rcu.read_lock();
        let object = self.place.load(Acquire);
        unsafe { &*object }.freed.with(|freed| assert!(!unsafe { *freed }, "read after it was freed"));
        drop(guard);
    }

    /// Takes the first object out.
    fn replace(&self) -> NonNull<RcuHead> {
        NonNull::new(self.place.swap(self.all.0[1], AcqRel)).unwrap().cast()
    }

    fn freed(&self) -> bool {
        unsafe { &*self.all.0[0] }.freed.with(|freed| unsafe { *freed })
    }
}

impl Drop for Objects {
    fn drop(&mut self) {
        for object in self.0 {
            drop(unsafe { Box::from_raw(object) });
        }
    }
}

fn on(cpu: usize) {
    CPU.with(|this| this.set(cpu));
}

/// All interleavings with up to so many preemptions, on top of those where a CPU waits.
fn model(preemptions: usize, run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 20_000;
    builder.check(run);
}

#[test]
fn who_waited_for_a_grace_period_may_free() {
    model(3, || {
        let world = World::<2>::new();
        let other = world.clone();
        let reader = thread::spawn(move || {
            on(1);
            other.read();
            assert!(other.rcu.quiescent());
            other.read();
            unsafe { other.rcu.offline(1) };
        });
        let head = world.replace();
        world.rcu.synchronize();
        unsafe { Object::free(head) };
        reader.join().unwrap();
    });
}

#[test]
fn a_callback_runs_after_the_readers_that_saw_its_object() {
    model(4, || {
        let world = World::<2>::new();
        let other = world.clone();
        let reader = thread::spawn(move || {
            on(1);
            other.read();
            other.rcu.quiescent();
            other.read();
            other.rcu.quiescent();
        });
        let head = world.replace();
        unsafe { world.rcu.defer(head, Object::free) };
        for _ in 0..2 {
            world.rcu.quiescent();
            world.rcu.advance(usize::MAX);
        }
        reader.join().unwrap();
        unsafe { world.rcu.offline(1) };
        while !world.freed() {
            world.rcu.quiescent();
            world.rcu.advance(usize::MAX);
        }
    });
}

#[test]
fn a_cpu_that_comes_online_is_waited_for_or_sees_the_update() {
    model(4, || {
        let world = World::<2>::new();
        unsafe { world.rcu.offline(1) };
        let other = world.clone();
        let reader = thread::spawn(move || {
            on(1);
            other.rcu.online();
            other.read();
            unsafe { other.rcu.offline(1) };
        });
        let head = world.replace();
        world.rcu.synchronize();
        unsafe { Object::free(head) };
        reader.join().unwrap();
    });
}

#[test]
fn a_cpu_that_goes_idle_has_finished_reading() {
    model(4, || {
        let world = World::<2>::new();
        let other = world.clone();
        let reader = thread::spawn(move || {
            on(1);
            other.read();
            unsafe { other.rcu.offline(1) };
            other.rcu.online();
            other.read();
            unsafe { other.rcu.offline(1) };
        });
        let head = world.replace();
        unsafe { world.rcu.defer(head, Object::free) };
        world.rcu.advance(usize::MAX);
        world.rcu.quiescent();
        world.rcu.advance(usize::MAX);
        reader.join().unwrap();
        world.rcu.barrier();
        assert!(world.freed());
    });
}

#[test]
fn callbacks_of_a_cpu_that_went_offline_are_run_by_another() {
    model(4, || {
        let world = World::<2>::new();
        let other = world.clone();
        let there = thread::spawn(move || {
            on(1);
            let head = other.replace();
            unsafe {
                other.rcu.defer(head, Object::free);
                other.rcu.offline(1);
            }
        });
        world.read();
        world.rcu.quiescent();
        world.rcu.advance(usize::MAX);
        there.join().unwrap();
        for _ in 0..3 {
            world.rcu.quiescent();
            world.rcu.advance(usize::MAX);
        }
        assert!(world.freed());
        assert_eq!(world.rcu.pending(), 0);
    });
}

#[test]
fn two_cpus_wait_for_each_other_s_readers_without_a_deadlock() {
    model(4, || {
        let world = World::<2>::new();
        let other = world.clone();
        let there = thread::spawn(move || {
            on(1);
            other.read();
            other.rcu.synchronize();
            unsafe { other.rcu.offline(1) };
        });
        let head = world.replace();
        world.rcu.synchronize();
        unsafe { Object::free(head) };
        unsafe { world.rcu.offline(0) };
        there.join().unwrap();
    });
}

/// One CPU's proof is another's: a period that the one found over stands for the other's. Without loops: three CPUs are
/// many interleavings.
#[test]
fn two_updaters_and_a_reader() {
    model(2, || {
        let world = World::<3>::new();
        unsafe { world.rcu.offline(1) };
        let (reading, updating) = (world.clone(), world.clone());
        let reader = thread::spawn(move || {
            on(1);
            reading.rcu.online();
            reading.read();
        });
        let updater = thread::spawn(move || {
            on(2);
            let unrelated = Box::new(RcuHead::new());
            let head = NonNull::from(Box::leak(unrelated));
            unsafe { updating.rcu.defer(head, |head| drop(Box::from_raw(head.as_ptr()))) };
            updating.rcu.advance(usize::MAX);
            updating.rcu.quiescent();
            updating.rcu.advance(usize::MAX);
        });
        let head = world.replace();
        unsafe { world.rcu.defer(head, Object::free) };
        world.rcu.advance(usize::MAX);
        world.rcu.quiescent();
        world.rcu.advance(usize::MAX);
        reader.join().unwrap();
        updater.join().unwrap();
    });
}

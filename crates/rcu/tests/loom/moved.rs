//! Callers that are moved to another CPU in the middle of a function, and interrupts.

use std::cell::Cell;
use std::rc::Rc;

use isotherm_rcu::{Reclaim, interrupt};
use loom::thread;

use crate::world::{Object, World, model, on, preempted_after_current, unrelated};

/// `quiescent` finds that it is on CPU 1 and in no section, and is preempted. What it reports later from elsewhere must
/// not be newer than what a reader of CPU 1 found meanwhile.
#[test]
fn a_caller_that_leaves_its_cpu_to_a_reader() {
    model(4, || {
        let world = World::<2>::new();
        let (reading, updating) = (world.clone(), world.clone());
        thread::spawn(move || {
            on(0);
            let head = updating.replace();
            updating.rcu.synchronize();
            // SAFETY: the object was replaced, and nobody finds it any more.
            unsafe { Object::free(head) };
        });
        on(1);
        preempted_after_current(move || {
            thread::spawn(move || {
                on(1);
                reading.read();
                // SAFETY: this CPU reads no more.
                unsafe { reading.rcu.offline(1) };
            });
        });
        world.rcu.quiescent();
    });
}

/// The same, but the CPU goes offline meanwhile: neither what waited before waits for it, nor what is deferred later. What the
/// caller reports at last must not take the place of that.
#[test]
fn a_caller_that_leaves_its_cpu_which_goes_offline() {
    model(4, || {
        let world = World::<2>::new();
        unrelated(&world.rcu);
        world.rcu.advance(usize::MAX);
        let other = world.clone();
        let caller = thread::spawn(move || {
            on(1);
            let there = other.clone();
            let next = Rc::new(Cell::new(None));
            let spawned = next.clone();
            preempted_after_current(move || {
                // SAFETY: this CPU reads no more.
                spawned.set(Some(thread::spawn(move || unsafe { there.rcu.offline(1) })));
            });
            other.rcu.quiescent();
            next.take().unwrap().join().unwrap();
        });
        caller.join().unwrap();
        unrelated(&world.rcu);
        for _ in 0..3 {
            world.rcu.quiescent();
            world.rcu.advance(usize::MAX);
        }
        assert_eq!(world.rcu.pending(), 0, "one waits for a CPU that is offline");
    });
}

/// An interrupt comes when `online` has marked the CPU and has not fenced yet.
#[test]
fn an_interrupt_that_reads_while_its_cpu_comes_online() {
    model(4, || {
        let world = World::<2>::new();
        // SAFETY: this CPU reads no more.
        unsafe { world.rcu.offline(1) };
        let other = world.clone();
        thread::spawn(move || {
            on(1);
            let interrupted = other.clone();
            interrupt::before_fence(move || {
                let was_offline = interrupted.rcu.online();
                interrupted.read();
                if was_offline {
                    // SAFETY: this CPU reads no more.
                    unsafe { interrupted.rcu.offline(1) };
                }
            });
            assert!(other.rcu.online());
            // SAFETY: this CPU reads no more.
            unsafe { other.rcu.offline(1) };
        });
        let head = world.replace();
        world.rcu.synchronize();
        // SAFETY: the object was replaced, and nobody finds it any more.
        unsafe { Object::free(head) };
    });
}

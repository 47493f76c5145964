//! When a grace period is over.

use isotherm_rcu::Reclaim;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering::Relaxed};
use loom::thread;

use crate::world::{Object, World, model, on, unrelated};

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

/// What another CPU found out through `completed`: it saw the reader's report, and the CPU that frees does not look at the
/// reader's again. Without loops: three CPUs are many interleavings.
#[test]
fn a_grace_period_that_another_cpu_found_over() {
    model(3, || {
        let world = World::<3>::new();
        let (reading, updating) = (world.clone(), world.clone());
        thread::spawn(move || {
            on(1);
            reading.read();
            reading.rcu.quiescent();
            reading.read();
            reading.rcu.quiescent();
        });
        thread::spawn(move || {
            on(2);
            unrelated(&updating.rcu);
            for _ in 0..2 {
                updating.rcu.advance(usize::MAX);
                updating.rcu.quiescent();
            }
            updating.rcu.advance(usize::MAX);
        });
        let head = world.replace();
        unsafe { world.rcu.defer(head, Object::free) };
        world.rcu.advance(usize::MAX);
        world.rcu.quiescent();
        world.rcu.advance(usize::MAX);
    });
}

/// The same at its shortest: what is left to chance is when the reader reads, and who finds the end of the grace period. The one
/// that frees learns from `completed` alone that the reader is done.
#[test]
fn what_completed_says_happened_before() {
    model(3, || {
        let world = World::<3>::new();
        let reading = world.clone();
        thread::spawn(move || {
            on(1);
            reading.read();
            reading.rcu.quiescent();
        });
        on(2);
        unrelated(&world.rcu);
        on(0);
        let head = world.replace();
        // SAFETY: the object was taken out by this thread, so it is deferred once.
        unsafe { world.rcu.defer(head, Object::free) };
        // Grace period 1 for the object, and 2, which another CPU finds over.
        world.rcu.advance(usize::MAX);
        on(2);
        world.rcu.advance(usize::MAX);
        for cpu in [0, 2] {
            on(cpu);
            world.rcu.quiescent();
        }
        // Relaxed, so that it orders nothing: it has loom run the other first, and the object's end rests on `completed` alone.
        let over = Arc::new(AtomicBool::new(false));
        let (finding, told) = (world.clone(), over.clone());
        thread::spawn(move || {
            on(2);
            finding.rcu.advance(usize::MAX);
            told.store(true, Relaxed);
        });
        on(0);
        while !over.load(Relaxed) {
            thread::yield_now();
        }
        world.rcu.advance(usize::MAX);
    });
}

/// All CPUs have seen grace period 1, which CPU 2 finds over, while grace period 2 waits for the reader.
#[test]
fn a_grace_period_that_is_over_says_nothing_of_the_next() {
    model(3, || {
        let world = World::<3>::new();
        on(2);
        unrelated(&world.rcu);
        world.rcu.advance(usize::MAX);
        for cpu in [2, 1, 0] {
            on(cpu);
            world.rcu.quiescent();
        }
        let (reading, updating) = (world.clone(), world.clone());
        thread::spawn(move || {
            on(1);
            reading.read();
        });
        thread::spawn(move || {
            on(2);
            updating.rcu.advance(usize::MAX);
        });
        let head = world.replace();
        unsafe { world.rcu.defer(head, Object::free) };
        world.rcu.advance(usize::MAX);
        world.rcu.quiescent();
        world.rcu.advance(usize::MAX);
    });
}

/// A reader that comes online, and two updaters whose grace periods begin and end in any order.
#[test]
fn two_updaters_and_a_reader_that_comes_online() {
    model(3, || {
        let world = World::<3>::new();
        unsafe { world.rcu.offline(1) };
        let (reading, updating) = (world.clone(), world.clone());
        thread::spawn(move || {
            on(1);
            reading.rcu.online();
            reading.read();
        });
        thread::spawn(move || {
            on(2);
            unrelated(&updating.rcu);
            updating.rcu.advance(usize::MAX);
            updating.rcu.quiescent();
            updating.rcu.advance(usize::MAX);
        });
        let head = world.replace();
        unsafe { world.rcu.defer(head, Object::free) };
        world.rcu.advance(usize::MAX);
        world.rcu.quiescent();
        world.rcu.advance(usize::MAX);
    });
}

#[test]
fn a_timer_tick_inside_a_section_reports_nothing() {
    model(4, || {
        let world = World::<2>::new();
        let other = world.clone();
        let reader = thread::spawn(move || {
            on(1);
            other.read_and(|| assert!(!other.rcu.quiescent()));
            unsafe { other.rcu.offline(1) };
        });
        let head = world.replace();
        world.rcu.synchronize();
        unsafe { Object::free(head) };
        reader.join().unwrap();
    });
}

//! CPUs that contend for the callbacks of one.

use isotherm_rcu::Reclaim;
use loom::thread;

use crate::world::{Object, World, model, on, unrelated};

#[test]
fn callbacks_of_a_cpu_that_went_offline_are_run_by_another() {
    model(4, || {
        let world = World::<2>::new();
        let other = world.clone();
        let there = thread::spawn(move || {
            on(1);
            let head = other.replace();
            // SAFETY: the object was taken out by this thread, so it is deferred once; the CPU reads nothing when it goes offline.
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

/// The owner comes back online, while another has found it offline and advances the same lists.
#[test]
fn the_owner_of_callbacks_against_a_cpu_that_adopts_them() {
    model(3, || {
        let world = World::<2>::new();
        on(1);
        let head = world.replace();
        // SAFETY: the object was taken out by this thread, so it is deferred once.
        unsafe {
            world.rcu.defer(head, Object::free);
            world.rcu.offline(1);
        }
        on(0);
        let other = world.clone();
        thread::spawn(move || {
            on(1);
            other.rcu.online();
            for _ in 0..2 {
                other.rcu.quiescent();
                other.rcu.advance(usize::MAX);
            }
            // SAFETY: this CPU is in no section and enters none any more.
            unsafe { other.rcu.offline(1) };
        });
        for _ in 0..2 {
            world.rcu.quiescent();
            world.rcu.advance(usize::MAX);
        }
        // As `barrier` concludes from the same counters.
        if world.rcu.pending() == 0 {
            assert!(world.freed());
        }
    });
}

#[test]
fn a_barrier_against_a_cpu_that_defers() {
    model(4, || {
        let world = World::<2>::new();
        let other = world.clone();
        let there = thread::spawn(move || {
            on(1);
            let head = other.replace();
            // SAFETY: the object was replaced, and nobody finds it any more.
            unsafe {
                other.rcu.defer(head, Object::free);
                other.rcu.offline(1);
            }
        });
        world.rcu.barrier();
        there.join().unwrap();
        world.rcu.barrier();
        assert!(world.freed());
    });
}

/// The owner of the lists advances them, while another waits for what is in them and wants to advance them itself.
#[test]
fn a_barrier_against_the_owner_of_the_lists() {
    model(3, || {
        let world = World::<2>::new();
        on(1);
        let head = world.replace();
        // SAFETY: the object was taken out by this thread, so it is deferred once.
        unsafe { world.rcu.defer(head, Object::free) };
        on(0);
        let other = world.clone();
        let owner = thread::spawn(move || {
            on(1);
            for _ in 0..2 {
                other.rcu.advance(usize::MAX);
                other.rcu.quiescent();
            }
            // SAFETY: this CPU is in no section and enters none any more.
            unsafe { other.rcu.offline(1) };
        });
        world.rcu.barrier();
        assert!(world.freed(), "what was deferred before has been called");
        owner.join().unwrap();
    });
}

/// One is moved between two CPUs in `defer`, while the one it left is taken offline.
#[test]
fn a_callback_that_is_deferred_while_its_cpu_goes_offline() {
    model(4, || {
        let world = World::<2>::new();
        let other = world.clone();
        // SAFETY: this CPU reads no more.
        let there = thread::spawn(move || unsafe { other.rcu.offline(1) });
        on(1);
        let head = world.replace();
        // SAFETY: the object was replaced, and nobody finds it any more.
        unsafe { world.rcu.defer(head, Object::free) };
        on(0);
        there.join().unwrap();
        for _ in 0..3 {
            world.rcu.quiescent();
            world.rcu.advance(usize::MAX);
        }
        assert_eq!(world.rcu.pending(), 0, "forgotten");
    });
}

/// The owner goes offline while another looks for CPUs that are.
#[test]
fn two_cpus_with_callbacks_go_offline_one_after_the_other() {
    model(3, || {
        let world = World::<3>::new();
        let (one, two) = (world.clone(), world.clone());
        let threads = [(1, one), (2, two)].map(|(cpu, world)| {
            thread::spawn(move || {
                on(cpu);
                unrelated(&world.rcu);
                // SAFETY: this CPU reads no more.
                unsafe { world.rcu.offline(cpu) };
            })
        });
        world.rcu.quiescent();
        world.rcu.advance(usize::MAX);
        for thread in threads {
            thread.join().unwrap();
        }
        for _ in 0..3 {
            world.rcu.quiescent();
            world.rcu.advance(usize::MAX);
        }
        assert_eq!(world.rcu.pending(), 0, "forgotten");
    });
}

//! Both implementations under threads that read, replace and free for real.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use isotherm_rcu::{Epoch, Qsbr, Rcu, RcuHead, Reclaim, Threads, TooManyThreads};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::thread;

const ROUNDS: u64 = if cfg!(miri) { 40 } else { 20_000 };

#[repr(C)]
struct Object {
    value: u64,
    head: RcuHead,
    freed: *const AtomicU64,
}

impl Object {
    fn new(value: u64, freed: &AtomicU64) -> *mut Self {
        Box::into_raw(Box::new(Self { value, head: RcuHead::new(), freed }))
    }
}

/// The head is not the first field: the object begins before it.
unsafe fn free(head: NonNull<RcuHead>) {
    // SAFETY: only heads of objects from `new` are deferred, with the provenance of the whole.
    let object = unsafe { head.byte_sub(std::mem::offset_of!(Object, head)).cast::<Object>() };
    // SAFETY: the callback owns the object; the counter outlives all.
    let object = unsafe { Box::from_raw(object.as_ptr()) };
    assert_eq!(object.value % 3, 0);
    // SAFETY: the same.
    unsafe { &*object.freed }.fetch_add(1, Ordering::Relaxed);
}

/// Replaces the object `ROUNDS` times, freeing by callback or by waiting in turn.
fn update(rcu: &impl Reclaim, place: &AtomicPtr<Object>, freed: &AtomicU64, between: impl Fn()) {
    for round in 1..=ROUNDS {
        let old = place.swap(Object::new(3 * round, freed), Ordering::AcqRel);
        // SAFETY: it was taken out by the swap, so by nobody else; it came from `new`.
        let head = unsafe { NonNull::new_unchecked(&raw mut (*old).head) };
        if round % 64 == 0 {
            rcu.synchronize();
            // SAFETY: a grace period has passed since nobody could find it.
            unsafe { free(head) };
        } else {
            // SAFETY: as above, and the callback may run anywhere.
            unsafe { rcu.defer(head, free) };
        }
        between();
    }
}

fn read(rcu: &impl Rcu, place: &AtomicPtr<Object>) -> u64 {
    let _guard = rcu.read_lock();
    // SAFETY: what is found under a guard is not freed before the guard is gone.
    let value = unsafe { &*place.load(Ordering::Acquire) }.value;
    assert_eq!(value % 3, 0);
    value
}

fn last(place: &AtomicPtr<Object>) {
    // SAFETY: all others are gone.
    drop(unsafe { Box::from_raw(place.load(Ordering::Acquire)) });
}

#[test]
fn threads_with_quiescent_states() {
    let freed = AtomicU64::new(0);
    let place = AtomicPtr::new(Object::new(0, &freed));
    {
        let qsbr = Qsbr::<Threads, 3>::for_threads();
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let _joined = qsbr.join().unwrap();
                    while read(&qsbr, &place) < 3 * ROUNDS {
                        assert!(qsbr.quiescent());
                    }
                });
            }
            scope.spawn(|| {
                let _joined = qsbr.join().unwrap();
                update(&qsbr, &place, &freed, || {
                    qsbr.quiescent();
                    qsbr.advance(10);
                });
                qsbr.barrier();
                assert_eq!(freed.load(Ordering::Relaxed), ROUNDS);
            });
        });
    }
    last(&place);
}

#[test]
fn threads_with_epochs() {
    let freed = AtomicU64::new(0);
    let place = AtomicPtr::new(Object::new(0, &freed));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| while read(&Epoch, &place) < 3 * ROUNDS {});
        }
        scope.spawn(|| update(&Epoch, &place, &freed, || ()));
    });
    while freed.load(Ordering::Relaxed) < ROUNDS {
        Epoch.advance();
    }
    last(&place);
}

#[test]
fn a_section_keeps_what_it_may_see() {
    let freed = AtomicU64::new(0);
    let qsbr = Qsbr::<Threads, 2>::for_threads();
    let _joined = qsbr.join().unwrap();
    let object = Object::new(0, &freed);
    let outer = qsbr.read_lock();
    let inner = qsbr.read_lock();
    // SAFETY: nobody else has it.
    unsafe { qsbr.defer(NonNull::new_unchecked(&raw mut (*object).head), free) };
    drop(inner);
    for _ in 0..3 {
        assert!(!qsbr.quiescent(), "a nested section does not end the outer one");
        assert_eq!(qsbr.advance(usize::MAX), 0);
    }
    drop(outer);
    qsbr.barrier();
    assert_eq!(freed.load(Ordering::Relaxed), 1);
}

#[test]
fn there_is_room_for_so_many_threads_at_once() {
    let qsbr = Qsbr::<Threads, 1>::for_threads();
    for _ in 0..2 {
        let joined = qsbr.join().unwrap();
        thread::scope(|scope| {
            scope.spawn(|| assert_eq!(qsbr.join().unwrap_err(), TooManyThreads { limit: 1 }));
        });
        drop(joined);
    }
}

#[test]
#[should_panic = "this thread has not joined"]
fn a_thread_that_has_not_joined_cannot_read() {
    let (one, other) = (Qsbr::<Threads, 1>::for_threads(), Qsbr::<Threads, 1>::for_threads());
    let _joined = one.join().unwrap();
    let _guard = other.read_lock();
}

/// A thread is no CPU of what it has not joined, and the call says so.
#[test]
fn a_thread_that_has_not_joined_can_do_nothing() {
    let qsbr = Qsbr::<Threads, 1>::for_threads();
    let all: [(&str, &dyn Fn()); 5] = [
        ("quiescent", &|| _ = qsbr.quiescent()),
        ("online", &|| _ = qsbr.online()),
        ("advance", &|| _ = qsbr.advance(1)),
        ("synchronize", &|| qsbr.synchronize()),
        ("defer", &|| {
            let head = RcuHead::new();
            // SAFETY: it panics, so the head is not kept.
            unsafe { qsbr.defer(NonNull::from(&head), |_| ()) };
        }),
    ];
    for (name, call) in all {
        let panic = catch_unwind(AssertUnwindSafe(call)).unwrap_err();
        let message = panic.downcast_ref::<&str>().copied().or(panic.downcast_ref::<String>().map(|s| &**s));
        assert_eq!(message, Some("this thread has not joined"), "{name}");
    }
}

#[test]
fn a_thread_that_left_before_its_last_guard_leaves_with_that() {
    let freed = AtomicU64::new(0);
    let (one, other) = (Qsbr::<Threads, 1>::for_threads(), Qsbr::<Threads, 1>::for_threads());
    let joined = one.join().unwrap();
    let (outer, inner) = (one.read_lock(), one.read_lock());
    drop(joined);
    drop(inner);
    thread::scope(|scope| {
        scope.spawn(|| assert_eq!(one.join().unwrap_err(), TooManyThreads { limit: 1 }));
    });
    drop(outer);
    let _joined = other.join().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            let _joined = one.join().unwrap();
            let object = Object::new(0, &freed);
            // SAFETY: nobody else has it.
            unsafe { one.defer(NonNull::new_unchecked(&raw mut (*object).head), free) };
            one.barrier();
        });
    });
    assert_eq!(freed.load(Ordering::Relaxed), 1);
}

#[test]
fn nobody_waits_for_a_thread_that_blocks_offline() {
    let qsbr = Qsbr::<Threads, 2>::for_threads();
    let mut joined = qsbr.join().unwrap();
    joined.offline(|| {
        assert!(catch_unwind(AssertUnwindSafe(|| drop(qsbr.read_lock()))).is_err());
        assert!(catch_unwind(AssertUnwindSafe(|| drop(qsbr.join()))).is_err());
        thread::scope(|scope| {
            scope.spawn(|| {
                let _joined = qsbr.join().unwrap();
                qsbr.synchronize();
            });
        });
    });
    // It is back, also after a panic.
    let unwound =
        catch_unwind(AssertUnwindSafe(|| joined.offline(|| std::panic::resume_unwind(Box::new(())))));
    assert!(unwound.is_err());
    drop(qsbr.read_lock());
    assert!(qsbr.quiescent());
}

#[test]
#[should_panic = "synchronize inside a read-side critical section or a callback"]
fn waiting_for_oneself_is_refused_by_epochs() {
    let _guard = Epoch.read_lock();
    Epoch.synchronize();
}

//! `Qsbr` on machines that do at a given moment what rarely happens: move the caller, have callbacks panic or nest.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use isotherm_rcu::{Callback, Cpus, Qsbr, QsbrGuard, Rcu, RcuHead, Reclaim};
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

const CPUS: usize = 2;

thread_local! {
    static CPU: Cell<usize> = const { Cell::new(0) };
    static DEPTH: Cell<[u32; CPUS]> = const { Cell::new([0; CPUS]) };
    static CALLED: Cell<usize> = const { Cell::new(0) };
    static PREEMPTION: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
}

/// CPUs that one thread plays in turn.
struct Played;

struct Section(usize);

fn deepen(cpu: usize, by: i32) {
    let mut depth = DEPTH.get();
    // One out of range has nowhere to count.
    if let Some(depth) = depth.get_mut(cpu) {
        *depth = depth.checked_add_signed(by).unwrap();
    }
    DEPTH.set(depth);
}

impl Drop for Section {
    fn drop(&mut self) {
        deepen(self.0, -1);
    }
}

// SAFETY: the tests keep a section on the CPU that made it.
unsafe impl Cpus for Played {
    type Section = Section;

    fn enter(&self) -> Section {
        deepen(CPU.get(), 1);
        Section(CPU.get())
    }

    fn in_section(&self) -> bool {
        DEPTH.get()[CPU.get()] > 0
    }

    fn current(&self) -> usize {
        let cpu = CPU.get();
        if let Some(preemption) = PREEMPTION.take() {
            preemption();
        }
        cpu
    }
}

type Rcu2 = Qsbr<Played, CPUS>;

unsafe fn count(head: NonNull<RcuHead>) {
    // SAFETY: `defer` below made it.
    drop(unsafe { Box::from_raw(head.as_ptr()) });
    CALLED.set(CALLED.get() + 1);
}

unsafe fn count_and_panic(head: NonNull<RcuHead>) {
    // SAFETY: as for `count`.
    unsafe { count(head) };
    // Without the message, which would look like a failure.
    std::panic::resume_unwind(Box::new("a callback"));
}

/// Tests may share a thread.
fn reset() -> Rcu2 {
    CPU.set(0);
    DEPTH.set([0; CPUS]);
    CALLED.set(0);
    Qsbr::new(Played)
}

fn defer(rcu: &Rcu2, callback: Callback) {
    // SAFETY: it is leaked, and nobody else has it.
    unsafe { rcu.defer(NonNull::from(Box::leak(Box::new(RcuHead::new()))), callback) };
}

/// Each CPU reports and advances so many times.
fn turns(rcu: &Rcu2, turns: usize) {
    for cpu in (0..turns).flat_map(|_| 0..CPUS) {
        CPU.set(cpu);
        rcu.quiescent();
        rcu.advance(usize::MAX);
    }
    CPU.set(0);
}

#[test]
fn a_report_from_elsewhere_does_not_pass_over_a_reader() {
    static RCU: Rcu2 = Qsbr::new(Played);
    thread_local! {
        static GUARD: RefCell<Option<QsbrGuard<'static, Played>>> = const { RefCell::new(None) };
    }
    reset();
    CPU.set(1);
    PREEMPTION.set(Some(Box::new(|| {
        // CPU 1 goes on with a reader, and the caller on CPU 0, where a grace period begins.
        GUARD.set(Some(RCU.read_lock()));
        CPU.set(0);
        defer(&RCU, count);
        RCU.advance(usize::MAX);
    })));
    assert!(RCU.quiescent());
    for _ in 0..3 {
        RCU.quiescent();
        RCU.advance(usize::MAX);
    }
    assert_eq!(CALLED.get(), 0, "called while the section was alive");
    GUARD.take();
    turns(&RCU, 2);
    assert_eq!(CALLED.get(), 1);
}

#[test]
#[should_panic = "CPU 2, but this instance has only 2"]
fn a_cpu_out_of_range_cannot_read() {
    let rcu = reset();
    CPU.set(2);
    let _guard = rcu.read_lock();
}

#[test]
fn a_callback_that_panics_is_called_once_and_the_others_are_not_lost() {
    let rcu = reset();
    defer(&rcu, count_and_panic);
    defer(&rcu, count);
    rcu.advance(usize::MAX);
    CPU.set(1);
    rcu.quiescent();
    CPU.set(0);
    rcu.quiescent();
    assert!(catch_unwind(AssertUnwindSafe(|| rcu.advance(usize::MAX))).is_err());
    assert_eq!((CALLED.get(), rcu.pending()), (1, 1));
    rcu.advance(usize::MAX);
    assert_eq!((CALLED.get(), rcu.pending()), (2, 0));
}

#[test]
fn a_callback_of_an_offline_cpu_that_panics_does_not_hide_the_others() {
    let rcu = reset();
    CPU.set(1);
    defer(&rcu, count_and_panic);
    defer(&rcu, count);
    // SAFETY: no section is alive, and none is entered on it.
    unsafe { rcu.offline(1) };
    CPU.set(0);
    let unwound = (0..4).filter(|_| {
        rcu.quiescent();
        catch_unwind(AssertUnwindSafe(|| rcu.advance(usize::MAX))).is_err()
    });
    assert_eq!(unwound.count(), 1);
    assert_eq!((CALLED.get(), rcu.pending()), (2, 0));
}

#[test]
fn barrier_and_drop_end_after_a_callback_panicked() {
    // What does not end is not waited for.
    let (ended, end) = mpsc::channel();
    thread::spawn(move || {
        let rcu = reset();
        defer(&rcu, count_and_panic);
        // SAFETY: no section is alive, and none is entered on it.
        unsafe { rcu.offline(1) };
        assert!(catch_unwind(AssertUnwindSafe(|| rcu.barrier())).is_err());
        rcu.barrier();
        drop(rcu);
        ended.send(CALLED.get()).unwrap();
    });
    assert_eq!(end.recv_timeout(Duration::from_secs(10)), Ok(1));
}

#[test]
fn callbacks_do_not_nest() {
    static RCU: Rcu2 = Qsbr::new(Played);
    thread_local! {
        static NESTED: Cell<usize> = const { Cell::new(0) };
    }
    unsafe fn advance(head: NonNull<RcuHead>) {
        // Twice: the first must not end what keeps it out.
        NESTED.set(NESTED.get() + RCU.advance(usize::MAX) + RCU.advance(usize::MAX));
        // SAFETY: the same head.
        unsafe { count(head) };
    }
    reset();
    // Of CPU 0, and of CPU 1, which is offline: CPU 0 calls both.
    defer(&RCU, advance);
    CPU.set(1);
    defer(&RCU, advance);
    defer(&RCU, advance);
    // SAFETY: no section is alive, and none is entered on it.
    unsafe { RCU.offline(1) };
    CPU.set(0);
    for _ in 0..4 {
        RCU.quiescent();
        RCU.advance(usize::MAX);
    }
    assert_eq!((CALLED.get(), NESTED.get()), (3, 0));
}

#[test]
fn online_returns_whether_the_cpu_was_offline() {
    let rcu = reset();
    assert!(!rcu.online());
    // SAFETY: no section is alive, and none is entered before `online`.
    unsafe { rcu.offline(0) };
    assert!(rcu.online());
    assert!(!rcu.online(), "as an interrupt finds it that came in between");
}

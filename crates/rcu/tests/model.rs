//! `Qsbr` against a naive model of grace periods: the set of sections that were alive when something was deferred.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use isotherm_rcu::{Cpus, Qsbr, Rcu, RcuHead, Reclaim};
use proptest::prelude::*;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::ptr::NonNull;

const CPUS: usize = 4;

thread_local! {
    static CPU: Cell<usize> = const { Cell::new(0) };
    static DEPTH: RefCell<[u32; CPUS]> = const { RefCell::new([0; CPUS]) };
    static CALLED: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// CPUs that the test switches between: all are played by one thread.
struct Played;

struct Section(usize);

impl Drop for Section {
    fn drop(&mut self) {
        DEPTH.with_borrow_mut(|depth| depth[self.0] -= 1);
    }
}

// SAFETY: the test keeps a section on the CPU that made it.
unsafe impl Cpus for Played {
    type Section = Section;

    fn enter(&self) -> Section {
        DEPTH.with_borrow_mut(|depth| depth[CPU.get()] += 1);
        Section(CPU.get())
    }

    fn in_section(&self) -> bool {
        DEPTH.with_borrow(|depth| depth[CPU.get()] > 0)
    }

    fn current(&self) -> usize {
        CPU.get()
    }
}

#[repr(C)]
struct Object {
    head: RcuHead,
    name: usize,
}

unsafe fn called(head: NonNull<RcuHead>) {
    // SAFETY: it was made by `Box::into_raw`, and this is called once.
    let object = unsafe { Box::from_raw(head.cast::<Object>().as_ptr()) };
    CALLED.with_borrow_mut(|called| called.push(object.name));
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Enter,
    Leave,
    Quiescent,
    Offline,
    Online,
    Defer,
    Advance(usize),
}

fn steps() -> impl Strategy<Value = Vec<(usize, Step)>> {
    let step = prop_oneof![
        3 => Just(Step::Enter),
        3 => Just(Step::Leave),
        4 => Just(Step::Quiescent),
        1 => Just(Step::Offline),
        2 => Just(Step::Online),
        3 => Just(Step::Defer),
        4 => (0..4_usize).prop_map(Step::Advance),
    ];
    prop::collection::vec((0..CPUS, step), 1..200)
}

/// What was deferred, by its number, and the sections of that time that still live.
#[derive(Default)]
struct Naive {
    sections: u64,
    waiting: Vec<(usize, usize, BTreeSet<u64>)>,
    deferred: usize,
}

impl Naive {
    fn ended(&mut self, section: u64) {
        for (_, _, alive) in &mut self.waiting {
            alive.remove(&section);
        }
    }

    /// What ran: each once, after all sections it had to wait for, and in the order of its CPU.
    fn ran(&mut self, called: &[usize]) {
        for &name in called {
            let at = self.waiting.iter().position(|&(waiting, _, _)| waiting == name).expect("it ran once");
            let (_, cpu, alive) = self.waiting.remove(at);
            assert!(alive.is_empty(), "{name} ran while sections {alive:?} were alive");
            let older = self.waiting[..at].iter().find(|&&(_, of, _)| of == cpu);
            assert_eq!(older.map(|&(name, _, _)| name), None, "deferred before {name} on the same CPU");
        }
    }
}

proptest! {
    #[test]
    fn callbacks_wait_for_all_sections_and_for_nothing_else(steps in steps()) {
        let qsbr = Qsbr::<_, CPUS>::new(Played);
        let mut naive = Naive::default();
        let mut guards: [Vec<(u64, _)>; CPUS] = [const { Vec::new() }; CPUS];
        let mut online = [true; CPUS];
        CALLED.take();
        for (cpu, step) in steps {
            CPU.set(cpu);
            match step {
                Step::Enter if online[cpu] => {
                    naive.sections += 1;
                    guards[cpu].push((naive.sections, qsbr.read_lock()));
                }
                Step::Leave => {
                    if let Some((section, guard)) = guards[cpu].pop() {
                        drop(guard);
                        naive.ended(section);
                    }
                }
                Step::Quiescent => prop_assert_eq!(qsbr.quiescent(), guards[cpu].is_empty()),
                Step::Offline if guards[cpu].is_empty() => {
                    // SAFETY: it is in no section, and `online` is kept.
                    unsafe { qsbr.offline(cpu) };
                    online[cpu] = false;
                }
                Step::Online => {
                    qsbr.online();
                    online[cpu] = true;
                }
                Step::Defer => {
                    let name = naive.deferred;
                    naive.deferred += 1;
                    let alive = guards.iter().flatten().map(|&(section, _)| section).collect();
                    naive.waiting.push((name, cpu, alive));
                    let object = Box::leak(Box::new(Object { head: RcuHead::new(), name }));
                    // SAFETY: it is leaked, and nobody else has it.
                    unsafe { qsbr.defer(NonNull::from(object).cast(), called) };
                }
                Step::Advance(limit) => {
                    let ran = qsbr.advance(limit);
                    let called = CALLED.take();
                    prop_assert_eq!(ran, called.len());
                    prop_assert!(ran <= limit);
                    naive.ran(&called);
                }
                Step::Enter | Step::Offline => {}
            }
            prop_assert_eq!(qsbr.pending(), naive.waiting.len() as u64);
        }
        // Once all sections are over, a few turns of the CPUs that are online run everything.
        for (section, guard) in guards.into_iter().flatten() {
            drop(guard);
            naive.ended(section);
        }
        CPU.set(0);
        qsbr.online();
        online[0] = true;
        for _ in 0..4 {
            for cpu in (0..CPUS).filter(|&cpu| online[cpu]) {
                CPU.set(cpu);
                prop_assert!(qsbr.quiescent());
                qsbr.advance(usize::MAX);
            }
        }
        naive.ran(&CALLED.take());
        prop_assert_eq!(naive.waiting.len(), 0);
    }
}

#[test]
fn what_is_left_runs_when_it_is_dropped() {
    CPU.set(0);
    CALLED.take();
    let qsbr = Qsbr::<_, CPUS>::new(Played);
    for name in 0..3 {
        CPU.set(name);
        let object = Box::leak(Box::new(Object { head: RcuHead::new(), name }));
        // SAFETY: it is leaked, and nobody else has it.
        unsafe { qsbr.defer(NonNull::from(object).cast(), called) };
        // The first is in `waiting` when its CPU is gone, the others in `next`.
        if name == 0 {
            qsbr.advance(1);
        }
    }
    drop(qsbr);
    let mut called = CALLED.take();
    called.sort_unstable();
    assert_eq!(called, [0, 1, 2]);
}

#[test]
#[should_panic = "synchronize inside a read-side critical section"]
fn waiting_for_oneself_is_refused() {
    CPU.set(0);
    let qsbr = Qsbr::<_, CPUS>::new(Played);
    let _guard = qsbr.read_lock();
    qsbr.synchronize();
}

//! Threads that fault while one maps, with quiescent states for RCU: runs under ThreadSanitizer, and under Miri without leaks.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use std::marker::PhantomData;
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use common::host::zero;
use common::{PAGE, SMALL, anonymous};
use isotherm_maple::Global;
use isotherm_mm::*;
use isotherm_pagetable::X86_64;
use isotherm_pagetable::host::HostMachine;
use isotherm_rcu::{Qsbr, Threads};

type Rcu = Qsbr<Threads, 4>;

struct Process<'w>(PhantomData<(&'w Rcu, &'w HostMachine)>);

impl<'w> Platform for Process<'w> {
    type Rcu = &'w Rcu;
    type Lock = RwLock<()>;
    type Contents = Paged<'w, X86_64, HostMachine>;
    type Alloc = Global;
}

const ROUNDS: u64 = if cfg!(miri) { 6 } else { 2000 };

/// What the mapper does in a round: maps, protects, moves, unmaps and forks.
fn round<'w>(
    space: &AddressSpace<Process<'w>>,
    machine: &'w HostMachine,
    zero: isotherm_page::Frame,
    n: u64,
) {
    let at = 30 + n % 5;
    space.mmap(&anonymous(8).at(at * PAGE)).unwrap();
    let _ = space.fault(at * PAGE, Access::Write);
    space.mprotect((at + 2) * PAGE, 3 * PAGE, Prot::READ).unwrap();
    space.mprotect((at + 2) * PAGE, 3 * PAGE, Prot::READ | Prot::WRITE).unwrap();
    let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
    space.mremap((at + 1) * PAGE, 2 * PAGE, 2 * PAGE, flags, 42 * PAGE).unwrap();
    space.munmap((at + 4) * PAGE, 3 * PAGE).unwrap();
    if n.is_multiple_of(50) {
        let contents = Paged::new(machine, 2, zero).unwrap();
        drop(space.fork(RwLock::new(()), contents).unwrap());
    }
}

#[test]
fn faults_beside_a_mapper_with_quiescent_states() {
    let machine = HostMachine::new(512);
    let zero = zero(&machine);
    let before = machine.free_frames();
    let rcu = Rcu::for_threads();
    let contents = Paged::new(&machine, 1, zero.frame()).unwrap();
    let space = AddressSpace::<Process<'_>>::new(&rcu, RwLock::new(()), contents, SMALL);
    let done = AtomicBool::new(false);
    let own = |worker: u64| (100 + 40 * worker) * PAGE;
    thread::scope(|scope| {
        for worker in 0..2 {
            let (rcu, space, done) = (&rcu, &space, &done);
            scope.spawn(move || {
                let _joined = rcu.join().unwrap();
                space.mmap(&anonymous(8).at(own(worker))).unwrap();
                for n in 0.. {
                    for page in 0..8 {
                        assert_eq!(space.fault(own(worker) + page * PAGE, Access::Write), Ok(()));
                        let common = (30 + (n * 7 + page) % 20) * PAGE;
                        let access = if page % 2 == 0 { Access::Write } else { Access::Read };
                        let _ = space.fault(common, access);
                        rcu.quiescent();
                    }
                    space.discard(own(worker), 8 * PAGE).unwrap();
                    rcu.quiescent();
                    rcu.advance(usize::MAX);
                    if done.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
        }
        let _joined = rcu.join().unwrap();
        for n in 0..ROUNDS {
            round(&space, &machine, zero.frame(), n);
            rcu.quiescent();
            rcu.advance(usize::MAX);
        }
        done.store(true, Ordering::Relaxed);
    });
    let _joined = rcu.join().unwrap();
    let stats = space.lock_stats();
    assert!(stats.success > 0 || cfg!(miri), "{stats:?}");
    space.munmap(SMALL.lowest, SMALL.end - SMALL.lowest).unwrap();
    assert_eq!((space.usage(), space.contents().resident()), (Usage::default(), 0));
    drop(space);
    rcu.barrier();
    assert_eq!(machine.free_frames(), before, "exit frees all");
}

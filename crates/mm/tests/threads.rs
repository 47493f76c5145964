//! Threads that fault while one maps, or takes pages of a file away, with quiescent states for RCU: runs under ThreadSanitizer,
//! and under Miri without leaks.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock};
use std::thread;

use common::files::*;
use common::host::zero;
use common::{PAGE, SMALL, anonymous};
use isotherm_maple::Global;
use isotherm_mm::ObjectKind::{File, Shmem};
use isotherm_mm::*;
use isotherm_page::Frame;
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

/// Few for an interpreter: each kind of lock has as many.
const ROUNDS: u64 = if cfg!(miri) { 2 } else { 2000 };

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
    [VmaLocking::Sequence, VmaLocking::Counted, VmaLocking::Biased].into_iter().for_each(beside_a_mapper);
}

fn beside_a_mapper(vma_lock: VmaLocking) {
    let machine = HostMachine::new(512);
    let zero = zero(&machine);
    let before = machine.free_frames();
    let rcu = Rcu::for_threads();
    let contents = Paged::new(&machine, 1, zero.frame()).unwrap();
    let space =
        AddressSpace::<Process<'_>>::new(&rcu, RwLock::new(()), contents, Config { vma_lock, ..SMALL });
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

struct Sharing<'w>(PhantomData<(&'w Rcu, &'w HostMachine)>);

impl<'w> Platform for Sharing<'w> {
    type Rcu = &'w Rcu;
    type Lock = RwLock<()>;
    type Contents = Paged<'w, X86_64, HostMachine, Arc<Files<'w, X86_64>>>;
    type Alloc = Global;
}

/// An access of a CPU. Whoever takes pages away waits until it is over, as a flush of the TLB does.
fn access(
    (machine, gate): (&HostMachine, &RwLock<()>),
    space: &AddressSpace<Sharing<'_>>,
    page: u64,
    write: Option<u64>,
) -> u64 {
    let access = if write.is_some() { Access::Write } else { Access::Read };
    loop {
        {
            let _gate = gate.read().unwrap();
            if let Ok(frame) = space.contents().access(page * PAGE, access) {
                let at = frame.address() + WORD;
                if let Some(value) = write {
                    machine.write(at, value).unwrap();
                }
                return machine.read(at).unwrap();
            }
        }
        space.fault(page * PAGE, access).unwrap();
    }
}

/// A worker writes to two pages of the file, reads a third where it is mapped privately, copies it, and drops the copy.
fn share(cpu: (&HostMachine, &RwLock<()>), space: &AddressSpace<Sharing<'_>>, worker: u64, n: u64) {
    for page in 2 * worker..2 * worker + 2 {
        assert_eq!(access(cpu, space, 100 + page, Some(n)), n);
        assert_eq!(access(cpu, space, 100 + page, None), n, "nothing is lost");
    }
    access(cpu, space, 200 + worker, Some(n));
    let own = 150 + 4 + worker;
    assert_eq!(access(cpu, space, own, None), 1004 + worker);
    assert_eq!(access(cpu, space, own, Some(n)), n);
    space.discard(own * PAGE, PAGE).unwrap();
}

#[test]
fn faults_on_files_beside_reclaim_with_quiescent_states() {
    let machine = HostMachine::new(512);
    let zero = zero(&machine);
    let before = machine.free_frames();
    let rcu = Rcu::for_threads();
    let files = Files::<X86_64>::new(&machine, &[(File, 6), (Shmem, 2)]);
    let paged = |asid| Paged::with_objects(&machine, asid, zero.frame(), Arc::clone(&files)).unwrap();
    let space = AddressSpace::<Sharing<'_>>::new(&rcu, RwLock::new(()), paged(1), SMALL);
    {
        let _joined = rcu.join().unwrap();
        for (id, pages, shared, at) in [(1, 6, true, 100), (1, 6, false, 150), (2, 2, true, 200)] {
            space.mmap(&object(id, 0, pages, shared, at)).unwrap();
        }
    }
    let (done, gate) = (AtomicBool::new(false), RwLock::new(()));
    let cpu = (&machine, &gate);
    let rounds: Vec<u64> = thread::scope(|scope| {
        let workers = [0, 1].map(|worker| {
            let (rcu, space, done) = (&rcu, &space, &done);
            scope.spawn(move || {
                let _joined = rcu.join().unwrap();
                for n in 1.. {
                    share(cpu, space, worker, n);
                    rcu.quiescent();
                    rcu.advance(usize::MAX);
                    if done.load(Ordering::Relaxed) {
                        return n;
                    }
                }
                unreachable!()
            })
        });
        // Miri writes a whole page at once when it is made, which this would read word by word.
        if !cfg!(miri) {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    for frame in 0..512 {
                        // Refers to whatever page is there, for a moment.
                        let _ = machine.read(Frame(frame).address() + WORD);
                    }
                }
            });
        }
        let _joined = rcu.join().unwrap();
        for n in 0..ROUNDS {
            {
                let _gate = gate.write().unwrap();
                match n % 3 {
                    0 => files.file(1).write_back(0..6).unwrap(),
                    1 => drop(files.file(1).evict(0..6)),
                    _ => files.file(2).resize(2),
                }
            }
            let at = 30 + n % 5;
            space.mmap(&object(1, 4, 2, n.is_multiple_of(2), at)).unwrap();
            space.fault((at + 1) * PAGE, Access::Read).unwrap();
            let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
            space.mremap(at * PAGE, PAGE, PAGE, flags, 42 * PAGE).unwrap();
            space.munmap((at + 1) * PAGE, PAGE).unwrap();
            if n.is_multiple_of(50) {
                drop(space.fork(RwLock::new(()), paged(2)).unwrap());
            }
            rcu.quiescent();
            rcu.advance(usize::MAX);
        }
        done.store(true, Ordering::Relaxed);
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    let _joined = rcu.join().unwrap();
    files.file(1).write_back(0..6).unwrap();
    for page in 0..4 {
        assert_eq!(files.file(1).backing().get(page), rounds[page as usize / 2], "page {page}");
    }
    space.munmap(SMALL.lowest, SMALL.end - SMALL.lowest).unwrap();
    assert_eq!((space.usage(), space.contents().resident()), (Usage::default(), 0));
    let cached = files.file(1).cached();
    assert_eq!((files.file(1).evict(0..6), files.file(1).cached()), (cached, 0), "nobody refers to a page");
    drop((space, files));
    rcu.barrier();
    assert_eq!(machine.free_frames(), before, "exit frees all");
}

//! One run: threads that fault, and perhaps one that maps.

use super::machine::{Machine, ThreadRcu, books, cpu, set_cpu};
use super::{Error, Run};
use crate::machine::pin;
use isotherm_maple::Global;
use isotherm_mm::{Access, AddressSpace, Config, LockStats, MapFlags, MapRequest, Paged, Platform, Prot};
use isotherm_page::Frame;
use isotherm_pagetable::X86_64;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, RwLock};
use std::time::{Duration, Instant};

const PAGE: u64 = 4096;
/// Pages that a thread faults in before it gives them back: 4 MiB.
const OWN: u64 = 1024;
/// Pages that the mapper maps.
const MAPPED: u64 = 16;
/// Between the parts of two threads, so that each has a VMA of its own.
const APART: u64 = 1 << 30;
/// Frames that tables, the mapper and caches take at most.
const SPARE: u64 = 8192;
/// Faults between two quiescent states.
const QUIET: u64 = 64;

/// What a space stands on here.
struct Process<'w, 'm>(PhantomData<&'w Machine<'m>>);

impl<'w, 'm> Platform for Process<'w, 'm> {
    type Rcu = &'w ThreadRcu;
    type Lock = RwLock<()>;
    type Contents = Paged<'w, X86_64, Machine<'m>>;
    type Alloc = Global;

    fn cpu() -> usize {
        cpu()
    }
}

type Space<'w, 'm> = AddressSpace<Process<'w, 'm>>;

/// What a run came to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outcome {
    /// Faults a second, of all threads.
    pub(super) faults: f64,
    /// Rounds of the mapper a second.
    pub(super) mapped: f64,
    pub(super) stats: LockStats,
    /// Pages that are counted, and that are there.
    pub(super) resident: (u64, u64),
}

fn own(worker: usize) -> u64 {
    APART * (worker as u64 + 1)
}

impl Run {
    /// Does it for `slice`.
    pub(super) fn go(&self, slice: Duration) -> Result<Outcome, Error> {
        let rcu = ThreadRcu::for_threads();
        let frames = OWN * self.threads as u64 + SPARE;
        let mut books = books(frames);
        let machine = Machine::new(frames, &mut books, &rcu).ok_or(Error::Memory)?;
        machine.populate();
        let outcome = self.on(&machine, &rcu, slice);
        // Tables of the machine's may still wait.
        let _joined = rcu.join().map_err(|_| Error::Memory)?;
        rcu.barrier();
        outcome
    }

    fn on<'w, 'm>(
        &self,
        machine: &'w Machine<'m>,
        rcu: &'w ThreadRcu,
        slice: Duration,
    ) -> Result<Outcome, Error> {
        let _joined = rcu.join().map_err(|_| Error::Memory)?;
        let contents = Paged::new(machine, 1, Frame(0))?;
        let config = Config { per_vma_locks: self.per_vma_locks, ..Config::X86_64 };
        let space: Space<'w, 'm> = AddressSpace::new(rcu, RwLock::new(()), contents, config);
        for worker in 0..self.threads {
            let request = MapRequest::anonymous(OWN * PAGE, Prot::READ | Prot::WRITE).at(own(worker));
            space.mmap(&request)?;
            // The first fault takes mmap_lock whatever it is; it is not what is measured.
            space.fault(own(worker), Access::Write)?;
        }
        let before = space.lock_stats();
        let (stop, barrier) =
            (AtomicBool::new(false), Barrier::new(self.threads + 1 + usize::from(self.mapper)));
        let (faults, rounds) = (AtomicU64::new(0), AtomicU64::new(0));
        let started = std::thread::scope(|scope| {
            for worker in 0..self.threads {
                let (space, stop, barrier, faults) = (&space, &stop, &barrier, &faults);
                scope.spawn(move || {
                    pin(worker);
                    set_cpu(worker);
                    let Ok(_joined) = rcu.join() else { return };
                    barrier.wait();
                    faults.fetch_add(fault(space, rcu, own(worker), stop), Ordering::Relaxed);
                });
            }
            if self.mapper {
                let (space, stop, barrier, rounds) = (&space, &stop, &barrier, &rounds);
                let thread = self.threads;
                scope.spawn(move || {
                    set_cpu(thread);
                    let Ok(_joined) = rcu.join() else { return };
                    barrier.wait();
                    rounds.fetch_add(map(space, rcu, stop), Ordering::Relaxed);
                });
            }
            barrier.wait();
            let started = Instant::now();
            std::thread::sleep(slice);
            stop.store(true, Ordering::Relaxed);
            started
        });
        let seconds = started.elapsed().as_secs_f64();
        let resident = (space.contents().resident(), there(&space));
        Ok(Outcome {
            faults: faults.into_inner() as f64 / seconds,
            mapped: rounds.into_inner() as f64 / seconds,
            stats: since(space.lock_stats(), before),
            resident,
        })
    }
}

/// Faults all pages of a part in, one after the other, gives them back, and again.
fn fault(space: &Space<'_, '_>, rcu: &ThreadRcu, start: u64, stop: &AtomicBool) -> u64 {
    let mut faults = 0;
    loop {
        for page in 0..OWN {
            if stop.load(Ordering::Relaxed) || space.fault(start + page * PAGE, Access::Write).is_err() {
                return faults;
            }
            faults += 1;
            if faults % QUIET == 0 {
                rcu.quiescent();
                rcu.advance(QUIET as usize);
            }
        }
        if space.discard(start, OWN * PAGE).is_err() {
            return faults;
        }
    }
}

/// Maps, touches a page, protects a half and unmaps, again and again.
fn map(space: &Space<'_, '_>, rcu: &ThreadRcu, stop: &AtomicBool) -> u64 {
    let request = MapRequest::anonymous(MAPPED * PAGE, Prot::READ | Prot::WRITE);
    let request = MapRequest { flags: MapFlags::NORESERVE, ..request };
    let mut rounds = 0;
    while !stop.load(Ordering::Relaxed) {
        let Ok(at) = space.mmap(&request) else { break };
        let _ = space.fault(at, Access::Write);
        let protected = space.mprotect(at, MAPPED / 2 * PAGE, Prot::READ);
        if protected.is_err() || space.munmap(at, MAPPED * PAGE).is_err() {
            break;
        }
        rounds += 1;
        rcu.quiescent();
        rcu.advance(QUIET as usize);
    }
    rounds
}

/// How many pages the MMU finds.
fn there(space: &Space<'_, '_>) -> u64 {
    let mut pages = 0;
    space.for_each(0..u64::MAX, |vma| {
        let all = vma.range().step_by(PAGE as usize);
        pages += all
            .filter(|&at| space.contents().access(at, Access::Read).is_ok_and(|frame| frame.0 != 0))
            .count();
    });
    pages as u64
}

fn since(now: LockStats, before: LockStats) -> LockStats {
    LockStats {
        success: now.success - before.success,
        retry: now.retry - before.retry,
        miss: now.miss - before.miss,
        not_mapped: now.not_mapped - before.not_mapped,
        object: now.object - before.object,
        no_anon: now.no_anon - before.no_anon,
        locked: now.locked - before.locked,
        moved: now.moved - before.moved,
        access: now.access - before.access,
    }
}

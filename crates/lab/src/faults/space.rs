//! The address space that is measured, and what it stands on.

use super::machine::{Machine, Member, ThreadRcu, books, cpu};
use super::{Error, Way};
use isotherm_maple::Global;
use isotherm_mm::{
    Access, AddressSpace, Config, LockStats, MapFlags, MapRequest, Object, ObjectId, Objects, Paged,
    Platform, Prot, Shmem, Source,
};
use isotherm_page::Frame;
use isotherm_pagetable::X86_64;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::{Arc, RwLock};

pub(super) const PAGE: u64 = 4096;
/// Frames that tables, mappers and caches take at most.
pub(super) const SPARE: u64 = 8192;
/// Faults between two quiescent states.
pub(super) const QUIET: u64 = 64;

/// The only piece of shared memory there is, as Linux' side has one.
type Shared<'w, 'm> = Object<'w, X86_64, Machine<'m>, Shmem, RwLock<()>>;

pub(super) struct Files<'w, 'm>(Shared<'w, 'm>);

impl<'w, 'm> Objects<'w, X86_64, Machine<'m>> for Files<'w, 'm> {
    type Backing = Shmem;
    type Lock = RwLock<()>;

    fn get(&self, _: ObjectId) -> Option<impl Deref<Target = Shared<'w, 'm>>> {
        Some(&self.0)
    }
}

/// What a space stands on here.
pub(super) struct Process<'w, 'm>(PhantomData<&'w Machine<'m>>);

impl<'w, 'm> Platform for Process<'w, 'm> {
    type Rcu = &'w ThreadRcu;
    type Lock = RwLock<()>;
    type Contents = Paged<'w, X86_64, Machine<'m>, Arc<Files<'w, 'm>>>;
    type Alloc = Global;

    fn cpu() -> usize {
        cpu()
    }
}

pub(super) type Space<'w, 'm> = AddressSpace<Process<'w, 'm>>;

/// An experiment on a space, or on two of one machine, with frames that the system has there.
pub(super) trait Experiment {
    type Outcome;

    /// Done by a thread that RCU knows. While it only waits for others, it goes offline: no grace period would end meanwhile, and
    /// what others free would be lacking.
    ///
    /// # Errors
    /// Any.
    fn run<'w>(
        &self,
        spaces: [&Space<'w, '_>; 2],
        rcu: &'w ThreadRcu,
        me: &mut Member<'w>,
    ) -> Result<Self::Outcome, Error>;
}

/// Runs it on a machine of so many frames beyond the spare ones, of which shared memory has so many.
pub(super) fn on_a_machine<E: Experiment>(
    experiment: &E,
    way: Way,
    frames: u64,
    shared: u64,
) -> Result<E::Outcome, Error> {
    let rcu = ThreadRcu::for_threads();
    let frames = frames + SPARE;
    let mut books = books(frames);
    let machine = Machine::new(frames, &mut books, &rcu).ok_or(Error::Memory)?;
    machine.populate();
    let outcome = on(experiment, &machine, &rcu, way, shared);
    // Tables of the machine's may still wait.
    let _joined = rcu.join().map_err(|_| Error::Memory)?;
    rcu.barrier();
    outcome
}

fn on<'w, 'm, E: Experiment>(
    experiment: &E,
    machine: &'w Machine<'m>,
    rcu: &'w ThreadRcu,
    way: Way,
    pages: u64,
) -> Result<E::Outcome, Error> {
    let mut joined = rcu.join().map_err(|_| Error::Memory)?;
    let shared = || -> Result<_, Error> {
        let shared = Object::new(machine, Shmem, RwLock::new(()), pages);
        Ok(Arc::new(Files(shared)))
    };
    let space = |asid, files| -> Result<Space<'w, 'm>, Error> {
        let contents = Paged::with_objects(machine, asid, Frame(0), files)?;
        Ok(AddressSpace::new(rcu, RwLock::new(()), contents, way.config()))
    };
    let files = shared()?;
    for index in 0..pages {
        files.0.page_in(index).map_err(|_| Error::Memory)?;
    }
    let spaces = [space(1, files)?, space(2, shared()?)?];
    experiment.run(spaces.each_ref(), rcu, &mut joined)
}

impl Way {
    fn config(self) -> Config {
        let vma_lock = match self {
            Self::MmapLock | Self::Sequence => isotherm_mm::VmaLocking::Sequence,
            Self::Counted => isotherm_mm::VmaLocking::Counted,
            Self::Biased => isotherm_mm::VmaLocking::Biased,
        };
        Config { per_vma_locks: self != Self::MmapLock, vma_lock, ..Config::X86_64 }
    }
}

/// Private memory to read and write.
pub(super) const fn read_write(pages: u64) -> MapRequest {
    MapRequest::anonymous(pages * PAGE, Prot::READ.union(Prot::WRITE))
}

/// The shared memory, from a page on.
pub(super) fn shared(pages: u64, from: u64, flags: MapFlags) -> MapRequest {
    let source = Source::Object { id: ObjectId::MIN, offset: from * PAGE, rights: Prot::all() };
    MapRequest { source, flags, ..read_write(pages) }
}

/// How many pages the MMU finds.
pub(super) fn there(space: &Space<'_, '_>) -> u64 {
    let mut pages = 0;
    space.for_each(0..u64::MAX, |vma| {
        let all = vma.range().step_by(PAGE as usize);
        pages += all
            .filter(|&at| space.contents().access(at, Access::Read).is_ok_and(|frame| frame.0 != 0))
            .count();
    });
    pages as u64
}

/// What was counted since.
pub(super) fn since(now: LockStats, before: LockStats) -> LockStats {
    LockStats {
        success: now.success - before.success,
        retry: now.retry - before.retry,
        miss: now.miss - before.miss,
        not_mapped: now.not_mapped - before.not_mapped,
        object: now.object - before.object,
        no_anon: now.no_anon - before.no_anon,
        user: now.user - before.user,
        locked: now.locked - before.locked,
        moved: now.moved - before.moved,
        access: now.access - before.access,
    }
}

/// A quiescent state now and then, in a loop.
pub(super) fn quiet(rcu: &ThreadRcu, step: u64) {
    if step.is_multiple_of(QUIET) {
        rcu.quiescent();
        rcu.advance(QUIET as usize);
    }
}

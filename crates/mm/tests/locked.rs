//! Pages that spaces lock in memory: they stay as long as somebody who maps them has them locked, and no longer.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use std::sync::{Arc, Barrier, RwLock};

use common::files::*;
use common::host::*;
use common::swap::*;
use common::{PAGE, SMALL, anonymous};
use isotherm_mm::*;
use isotherm_page::{Frame, Order};
use isotherm_pagetable::host::HostMachine;
use isotherm_pagetable::{Mapping, X86_64};
use isotherm_rcu::Epoch;

/// A page each: anonymous, of shared memory, of a file, and of a private mapping of a file that was written to.
const KINDS: [u64; 4] = [30 * PAGE, 31 * PAGE, 32 * PAGE, 33 * PAGE];
/// Anonymous too.
const OTHER: u64 = 40 * PAGE;
/// Of a private mapping of a file that is only read.
const READ: u64 = 42 * PAGE;

struct World<'m> {
    machine: &'m HostMachine,
    system: System<'m, X86_64, HostMachine>,
    files: Arc<Files<'m, X86_64>>,
    zero: Frame,
}

impl<'m> World<'m> {
    fn new(machine: &'m HostMachine, swap: &Swapped, zero: Frame) -> Self {
        let kinds = [(ObjectKind::Shmem, 1), (ObjectKind::File, 1), (ObjectKind::File, 1)];
        Self { machine, system: system(machine, swap), files: Files::new(machine, &kinds), zero }
    }

    fn contents(&self, context: u16) -> Paged<'m, X86_64, HostMachine, Arc<Files<'m, X86_64>>> {
        Paged::in_system(&self.system, context, self.zero, Arc::clone(&self.files)).unwrap()
    }

    /// One that has a page of each kind, and another.
    fn space(&self) -> FileSpace<'m> {
        let space = FileSpace::new(Epoch, RwLock::new(()), self.contents(1), SMALL);
        for request in [
            anonymous(1).at(KINDS[0]),
            object(1, 0, 1, true, KINDS[1] / PAGE),
            object(2, 0, 1, true, KINDS[2] / PAGE),
            object(3, 0, 1, false, KINDS[3] / PAGE),
            anonymous(1).at(OTHER),
        ] {
            space.mmap(&request).unwrap();
        }
        for at in KINDS.into_iter().chain([OTHER]) {
            word(self.machine, &space, at + WORD, Some(at)).unwrap();
        }
        space
    }

    /// A child, which has all pages that the parent has.
    fn fork(&self, space: &FileSpace<'m>) -> FileSpace<'m> {
        let child = space.fork(RwLock::new(()), self.contents(2)).unwrap();
        for at in KINDS.into_iter().chain([OTHER]) {
            assert_eq!(word(self.machine, &child, at + WORD, None), Ok(at));
        }
        child
    }

    /// Moves the page of an address to another frame.
    fn migrate(&self, space: &FileSpace<'m>, at: u64) {
        let old = space.contents().access(at, Access::Read).unwrap();
        self.system.migrate(&*self.files, old, self.machine.take(Order::BASE).unwrap()).unwrap();
    }

    /// All pages leave that may.
    fn leave(&self) {
        while self.system.reclaim(&*self.files, 100).total() > 0 {}
    }

    /// Which of the pages of a space stay when all leave that may.
    fn stay(&self, space: &FileSpace<'m>) -> Vec<bool> {
        self.leave();
        let stays = KINDS.iter().map(|&at| matches!(space.contents().mapping(at), Mapping::Page { .. }));
        let stay = stays.collect();
        // What has left comes back as it was.
        for at in KINDS {
            assert_eq!(word(self.machine, space, at + WORD, None), Ok(at));
        }
        stay
    }
}

fn all(space: &FileSpace<'_>, act: impl Fn(&FileSpace<'_>, u64)) {
    KINDS.into_iter().for_each(|at| act(space, at));
}

fn lock(space: &FileSpace<'_>) {
    all(space, |space, at| space.mlock(at, PAGE, false).unwrap());
}

fn unlock(space: &FileSpace<'_>) {
    all(space, |space, at| space.munlock(at, PAGE).unwrap());
}

#[test]
fn who_has_ended_locks_nothing() {
    let (machine, swap) = machine_with_swap(FRAMES, 64);
    let zero = zero(&machine);
    let world = World::new(&machine, &swap, zero.frame());
    let parent = world.space();
    lock(&parent);
    let child = world.fork(&parent);
    assert_eq!(world.stay(&child), [true; 4]);
    drop(parent);
    assert_eq!(world.stay(&child), [false; 4]);
    // By a program that has become another.
    let mut parent = world.space();
    lock(&parent);
    let child = world.fork(&parent);
    parent.exec(RwLock::new(()), world.contents(3));
    assert_eq!(world.stay(&child), [false; 4]);
}

#[test]
fn who_unlocks_a_page_unlocks_it_for_nobody_else() {
    let (machine, swap) = machine_with_swap(FRAMES, 64);
    let zero = zero(&machine);
    let world = World::new(&machine, &swap, zero.frame());
    let parent = world.space();
    let child = world.fork(&parent);
    lock(&parent);
    lock(&child);
    unlock(&parent);
    assert_eq!(world.stay(&child), [true; 4]);
    unlock(&child);
    assert_eq!(world.stay(&child), [false; 4]);
}

/// A page of an object that has moved is mapped nowhere until it is used again: who maps it alone is not alone with its lock.
fn one_gives_up_its_lock_after_a_move(give_up: impl Fn(&FileSpace<'_>, u64)) {
    let (machine, swap) = machine_with_swap(FRAMES, 64);
    let zero = zero(&machine);
    let world = World::new(&machine, &swap, zero.frame());
    let parent = world.space();
    let child = world.fork(&parent);
    // A private mapping that was not written to has the file's page.
    for space in [&parent, &child] {
        space.mmap(&object(3, 0, 1, false, READ / PAGE)).unwrap();
        assert_eq!(word(&machine, space, READ + WORD, None), Ok(1000));
        lock(space);
        space.mlock(READ, PAGE, false).unwrap();
    }
    for at in KINDS.into_iter().chain([READ]) {
        world.migrate(&parent, at);
        // The parent alone uses it again.
        word(&machine, &parent, at + WORD, None).unwrap();
    }
    let mapped = |at| matches!(child.contents().mapping(at), Mapping::Page { .. });
    assert_eq!([KINDS[1], KINDS[2], READ].map(mapped), [false; 3]);
    all(&parent, &give_up);
    give_up(&parent, READ);
    world.leave();
    assert_eq!([KINDS[0], KINDS[3]].map(mapped), [true; 2]);
    assert_eq!([1, 2, 3].map(|id| world.files.file(id).cached()), [1; 3]);
    // The last who has them locked.
    unlock(&child);
    child.munlock(READ, PAGE).unwrap();
    assert_eq!(world.stay(&child), [false; 4]);
    assert_eq!(word(&machine, &child, READ + WORD, None), Ok(1000));
}

#[test]
fn who_unlocks_a_page_that_has_moved_unlocks_it_for_nobody_else() {
    one_gives_up_its_lock_after_a_move(|space, at| space.munlock(at, PAGE).unwrap());
}

#[test]
fn who_unmaps_a_page_that_has_moved_unlocks_it_for_nobody_else() {
    one_gives_up_its_lock_after_a_move(|space, at| space.munmap(at, PAGE).unwrap());
}

#[test]
fn what_is_unmapped_is_unlocked() {
    let (machine, swap) = machine_with_swap(FRAMES, 64);
    let zero = zero(&machine);
    let world = World::new(&machine, &swap, zero.frame());
    let parent = world.space();
    lock(&parent);
    // This one stays locked.
    parent.mlock(OTHER, PAGE, false).unwrap();
    let child = world.fork(&parent);
    all(&parent, |space, at| space.munmap(at, PAGE).unwrap());
    assert_eq!(world.stay(&child), [false; 4]);
    assert!(matches!(parent.contents().mapping(OTHER), Mapping::Page { .. }));
}

/// The rule of `MAP_LOCKED`: what is faulted in stays.
#[test]
fn what_is_mapped_locked_stays() {
    let (machine, swap) = machine_with_swap(FRAMES, 64);
    let zero = zero(&machine);
    let world = World::new(&machine, &swap, zero.frame());
    let space = world.space();
    for (at, request) in [
        (KINDS[0], anonymous(1).at(KINDS[0])),
        (KINDS[1], object(1, 0, 1, true, KINDS[1] / PAGE)),
        (KINDS[2], object(2, 0, 1, true, KINDS[2] / PAGE)),
        (KINDS[3], object(3, 0, 1, false, KINDS[3] / PAGE)),
    ] {
        space.munmap(at, PAGE).unwrap();
        space.mmap(&MapRequest { flags: request.flags | MapFlags::LOCKED, ..request }).unwrap();
        word(&machine, &space, at + WORD, Some(at)).unwrap();
    }
    assert_eq!(world.stay(&space), [true; 4]);
    unlock(&space);
    assert_eq!(world.stay(&space), [false; 4]);
}

/// A page that reclaim has chosen, and writes back, is mapped locked by another and used meanwhile.
#[test]
fn what_is_mapped_locked_while_it_is_written_back_stays() {
    let (machine, swap) = machine_with_swap(FRAMES, 64);
    let zero = zero(&machine);
    let world = World::new(&machine, &swap, zero.frame());
    let _space = world.space();
    let other = FileSpace::new(Epoch, RwLock::new(()), world.contents(2), SMALL);
    let pause = Arc::new(Barrier::new(2));
    *world.files.file(2).backing().pause.lock().unwrap() = Some(Arc::clone(&pause));
    let request = MapRequest { prot: Prot::READ, ..object(2, 0, 1, true, READ / PAGE) };
    let request = MapRequest { flags: request.flags | MapFlags::LOCKED, ..request };
    let mapped = || matches!(other.contents().mapping(READ), Mapping::Page { .. });
    std::thread::scope(|scope| {
        let reclaim = scope.spawn(|| world.leave());
        pause.wait();
        // What fails before the second wait would leave the other thread waiting for ever.
        let done = other.mmap(&request);
        let found = done.is_ok().then(|| word(&machine, &other, READ + WORD, None));
        let was_mapped = mapped();
        pause.wait();
        reclaim.join().unwrap();
        done.unwrap();
        assert_eq!((found, was_mapped), (Some(Ok(KINDS[2])), true));
    });
    assert_eq!(world.files.file(2).cached(), 1);
    other.munlock(READ, PAGE).unwrap();
    world.leave();
    assert_eq!(world.files.file(2).cached(), 0);
}

/// What is moved stays locked, also the pages of objects, which have their marks for all that map them.
#[test]
fn what_is_moved_stays_locked() {
    let (machine, swap) = machine_with_swap(FRAMES, 64);
    let zero = zero(&machine);
    let world = World::new(&machine, &swap, zero.frame());
    let space = world.space();
    lock(&space);
    let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
    let there = |at| at + 100 * PAGE;
    all(&space, |space, at| assert_eq!(space.mremap(at, PAGE, PAGE, flags, there(at)), Ok(there(at))));
    let mapped = |at| matches!(space.contents().mapping(there(at)), Mapping::Page { .. });
    world.leave();
    assert_eq!(KINDS.map(mapped), [true; 4]);
    all(&space, |space, at| space.munlock(there(at), PAGE).unwrap());
    world.leave();
    assert_eq!(KINDS.map(mapped), [false; 4]);
}

/// A page that a space has mapped twice, and locked at both places, stays until it is unlocked at both.
#[test]
fn what_is_mapped_twice_is_locked_until_it_is_unlocked_twice() {
    let (machine, swap) = machine_with_swap(FRAMES, 64);
    let zero = zero(&machine);
    let world = World::new(&machine, &swap, zero.frame());
    let space = world.space();
    lock(&space);
    let give_up: [fn(&FileSpace<'_>, u64); 2] =
        [|space, at| space.munlock(at, PAGE).unwrap(), |space, at| space.munmap(at, PAGE).unwrap()];
    for give_up in give_up {
        for (id, at) in [(1, 50 * PAGE), (2, 51 * PAGE)] {
            let request = object(id, 0, 1, true, at / PAGE);
            space.mmap(&MapRequest { flags: request.flags | MapFlags::LOCKED, ..request }).unwrap();
            word(&machine, &space, at + WORD, None).unwrap();
            give_up(&space, at);
        }
        assert_eq!(world.stay(&space), [true; 4]);
    }
    unlock(&space);
    assert_eq!(world.stay(&space), [false; 4]);
}

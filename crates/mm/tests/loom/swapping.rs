//! An anonymous page, which one thread swaps out or migrates from below, while another forks, writes to it, moves it, unmaps it, ends its
//! space, or swaps it out as well: on page tables of two entries. What a processor has stored is found in the end, wherever the page
//! is mapped it is found from below, and slots are counted exactly.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};

use isotherm_mm::*;
use isotherm_page::{Block, FolioView, Frame, Order, OwnedBlock, Unique};
use isotherm_pagetable::{Frames, X86_64};
use isotherm_rcu::Qsbr;
use isotherm_rcu::model::{Machine, on};
use loom::sync::{Arc, RwLock};
use loom::thread;

use crate::tiny::Tiny;
use crate::{Lock, Overwriting, PAGE, free_all, read_write};

const AT: u64 = 2 * PAGE;
const TO: u64 = 5 * PAGE;
const BEYOND: u64 = 7 * PAGE;

/// A byte a slot.
#[derive(Default)]
struct Slots([AtomicU8; 4]);

impl Swap for Slots {
    fn slots(&self) -> u32 {
        4
    }

    fn write(&self, slot: u32, page: SwapPage<'_>) -> Result<(), SwapError> {
        let mut bytes = [0; PAGE as usize];
        page.read(&mut bytes);
        self.0[slot as usize].store(bytes[0], Ordering::Relaxed);
        Ok(())
    }

    fn read(&self, slot: u32, page: SwapPage<'_>) -> Result<(), SwapError> {
        page.fill(&[self.0[slot as usize].load(Ordering::Relaxed); PAGE as usize]);
        Ok(())
    }

    fn free(&self, slot: u32) {
        self.0[slot as usize].store(0xee, Ordering::Relaxed);
    }
}

struct Process;

impl Platform for Process {
    type Rcu = &'static Qsbr<Machine, 2>;
    type Lock = Lock;
    type Contents = Paged<'static, X86_64, Tiny>;
    type Alloc = Overwriting;
}

type Space = AddressSpace<Process>;
type Slot = Mutex<Option<std::sync::Arc<Space>>>;

/// The spaces go before what they stand on.
struct World {
    space: Slot,
    child: Slot,
    /// No lock of the model's is taken with these held: nobody would go on.
    system: Mutex<Option<std::sync::Arc<System<'static, X86_64, Tiny>>>>,
    /// Which the page was when all began.
    frame: AtomicUsize,
    /// Whether the page was in memory when it had been locked.
    found: AtomicBool,
    /// See [`begin`](Self::begin).
    begun: loom::sync::atomic::AtomicUsize,
    area: std::sync::Arc<SwapArea>,
    rcu: *mut Qsbr<Machine, 2>,
    machine: *mut Tiny,
}

// SAFETY: what the pointers lead to is used by shared references alone until the last owner drops it, and is `Sync`.
unsafe impl Send for World {}
// SAFETY: as above.
unsafe impl Sync for World {}

impl World {
    fn new() -> Arc<Self> {
        free_all();
        let machine = Box::into_raw(Box::new(Tiny::new()));
        let rcu = Box::into_raw(Box::new(Qsbr::new(Machine)));
        let area = std::sync::Arc::new(SwapArea::new(Box::new(Slots::default())).unwrap());
        // SAFETY: it lives until the drop of the world.
        let tiny: &'static Tiny = unsafe { &*machine };
        // SAFETY: as above.
        let _ = tiny.area.set(unsafe { &*std::sync::Arc::as_ptr(&area) });
        let system = System::new(tiny, 64, Some(std::sync::Arc::clone(&area))).unwrap();
        let config = Config {
            lowest: PAGE,
            end: 8 * PAGE,
            top_down_base: 8 * PAGE,
            bottom_up_base: PAGE,
            heap: PAGE,
            stack_guard: 0,
            ..Config::X86_64
        };
        // No page of zeros is mapped here.
        let contents = Paged::in_system(&system, 1, Frame(0), ()).unwrap();
        // SAFETY: it lives until the drop of the world.
        let space = Space::new(unsafe { &*rcu }, Lock(RwLock::new(())), contents, config);
        space.mmap(&read_write(1).at(AT)).unwrap();
        let world = Self {
            space: Mutex::new(Some(std::sync::Arc::new(space))),
            child: Mutex::default(),
            system: Mutex::new(Some(std::sync::Arc::new(system))),
            frame: AtomicUsize::new(0),
            found: AtomicBool::new(false),
            begun: loom::sync::atomic::AtomicUsize::new(0),
            area,
            rcu,
            machine,
        };
        world.store(AT, 7);
        let frame = world.space().contents().access(AT, Access::Write).unwrap();
        world.frame.store(frame.0 as usize, Ordering::Relaxed);
        Arc::new(world)
    }

    fn machine(&self) -> &'static Tiny {
        // SAFETY: it lives until the drop, after which no model uses it.
        unsafe { &*self.machine }
    }

    fn rcu(&self) -> &'static Qsbr<Machine, 2> {
        // SAFETY: as above.
        unsafe { &*self.rcu }
    }

    fn space(&self) -> std::sync::Arc<Space> {
        std::sync::Arc::clone(self.space.lock().unwrap().as_ref().unwrap())
    }

    fn child(&self) -> std::sync::Arc<Space> {
        std::sync::Arc::clone(self.child.lock().unwrap().as_ref().unwrap())
    }

    fn system(&self) -> std::sync::Arc<System<'static, X86_64, Tiny>> {
        std::sync::Arc::clone(self.system.lock().unwrap().as_ref().unwrap())
    }

    fn frame(&self) -> Frame {
        Frame(self.frame.load(Ordering::Relaxed) as u64)
    }

    /// An access of a program.
    fn run(&self, space: &Space, at: u64, value: Option<usize>) -> usize {
        let access = if value.is_some() { Access::Write } else { Access::Read };
        let machine = self.machine();
        loop {
            let done = machine.access(|| {
                let word = machine.word(space.contents().access(at, access)?);
                if let Some(value) = value {
                    word.store(value, Ordering::Relaxed);
                }
                Ok::<_, MmuFault>(word.load(Ordering::Relaxed))
            });
            if let Ok(found) = done {
                return found;
            }
            space.fault(at, access).unwrap();
        }
    }

    fn store(&self, at: u64, value: usize) {
        self.run(&self.space(), at, Some(value));
    }

    fn load(&self, at: u64) -> usize {
        self.run(&self.space(), at, None)
    }

    /// For two who may otherwise meet at nothing that loom knows, as marks of locked pages: it has each of them begin first.
    fn begin(&self) {
        self.begun.fetch_add(1, Ordering::SeqCst);
    }

    fn counts(&self) -> (u64, u64, u64) {
        let rss = self.space().contents().rss();
        (rss.anon, rss.swap, self.area.used())
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        drop(self.child.lock().unwrap().take());
        drop(self.space.lock().unwrap().take());
        drop(self.system.lock().unwrap().take());
        assert_eq!(self.area.used(), 0, "all slots are given back");
        // SAFETY: nobody else has them, and each goes before what it stands on.
        unsafe {
            drop(Box::from_raw(self.rcu));
            let machine = Box::from_raw(self.machine);
            let freed = machine.freed.load(loom::sync::atomic::Ordering::Relaxed);
            assert_eq!(freed, machine.given_out(), "all pages are given back");
        }
    }
}

fn model(
    preemptions: usize,
    prepare: fn(&World),
    [other, act]: [fn(&World); 2],
    check: impl Fn(&World) + Send + Sync + 'static,
) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 20_000;
    builder.check(move || {
        let world = World::new();
        prepare(&world);
        let there = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                on(1);
                world.rcu().online();
                other(&world);
                // SAFETY: this CPU reads no more.
                unsafe { world.rcu().offline(1) };
            })
        };
        act(&world);
        world.rcu().quiescent();
        world.rcu().advance(usize::MAX);
        there.join().unwrap();
        check(&world);
        world.rcu().barrier();
    });
}

fn nothing(_: &World) {}

/// A processor goes on storing until its translation is flushed.
fn written(world: &World) {
    world.machine().keep_translation(world.frame());
}

fn swap_out(world: &World) {
    let _ = world.system().swap_out(world.frame());
}

fn begin_swap_out(world: &World) {
    world.begin();
    swap_out(world);
}

/// To a frame that nobody uses.
fn migrate(world: &World) {
    let machine = world.machine();
    let frame = machine.alloc_folio(Order::BASE).unwrap();
    // SAFETY: it was just allocated.
    let to = unsafe { Unique::new(machine, OwnedBlock::new(Block::new(frame, Order::BASE))) };
    let _ = world.system().migrate(&(), world.frame(), to);
}

fn relocate(world: &World, from: u64, to: u64) {
    let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
    world.space().mremap(from, PAGE, PAGE, flags, to).unwrap();
}

fn fork(world: &World) {
    let contents = Paged::in_system(&world.system(), 2, Frame(0), ()).unwrap();
    let child = world.space().fork(Lock(RwLock::new(())), contents).unwrap();
    *world.child.lock().unwrap() = Some(std::sync::Arc::new(child));
}

/// What was stored by a translation before its flush is in the new frame.
#[test]
fn migration_against_a_read() {
    model(2, written, [migrate, |world| assert!(world.load(AT) > 0)], |world| {
        assert_eq!((world.load(AT), world.counts()), (1, (1, 0, 0)));
    });
}

#[test]
fn migration_against_a_write() {
    model(2, nothing, [migrate, |world| world.store(AT, 9)], |world| {
        assert_eq!((world.load(AT), world.counts()), (9, (1, 0, 0)));
    });
}

#[test]
fn migration_against_a_fork() {
    model(2, nothing, [migrate, fork], |world| {
        let child = world.child();
        for space in [&world.space(), &child] {
            let frame = space.contents().access(AT, Access::Read).unwrap();
            let maps = FolioView::of(world.machine(), frame).unwrap().maps();
            assert_eq!(world.system().find(frame).unwrap().len() as u32, maps, "it is found wherever it is");
        }
        assert_eq!((world.load(AT), world.run(&child, AT, None)), (7, 7));
        assert_eq!((world.counts(), child.contents().rss().anon), ((1, 0, 0), 1));
    });
}

#[test]
fn migration_against_a_move() {
    model(2, nothing, [migrate, |world| relocate(world, AT, TO)], |world| {
        assert_eq!((world.load(TO), world.counts()), (7, (1, 0, 0)));
    });
}

#[test]
fn migration_against_exit() {
    let exit = |world: &World| drop(world.space.lock().unwrap().take());
    model(2, nothing, [migrate, exit], |_| {});
}

#[test]
fn migration_against_swap_out() {
    model(2, nothing, [migrate, swap_out], |world| {
        assert_eq!((world.load(AT), world.counts()), (7, (1, 0, 0)));
    });
}

/// The space unlocks the page while it moves: no place that it may be at by then stays locked.
#[test]
fn migration_against_munlock() {
    let lock = |world: &World| world.space().mlock(AT, PAGE, false).unwrap();
    model(2, lock, [migrate, |world| world.space().munlock(AT, PAGE).unwrap()], |world| {
        let now = world.space().contents().access(AT, Access::Read).unwrap();
        world.system().swap_out(now).unwrap();
        assert_eq!((world.load(AT), world.counts()), (7, (1, 0, 0)));
    });
}

#[test]
fn migration_against_mlock() {
    model(2, nothing, [migrate, |world| world.space().mlock(AT, PAGE, false).unwrap()], |world| {
        let now = world.space().contents().access(AT, Access::Read).unwrap();
        assert_eq!(world.system().swap_out(now), Err(Kept::InUse), "it is locked");
        world.space().munlock(AT, PAGE).unwrap();
    });
}

/// Of two who have locked a page, one unlocks it at the same time as the other locks it: it stays.
#[test]
fn munlock_against_mlock_of_a_child() {
    let forked = |world: &World| {
        world.space().mlock(AT, PAGE, false).unwrap();
        fork(world);
    };
    let lock = |world: &World| world.child().mlock(AT, PAGE, false).unwrap();
    model(2, forked, [lock, |world| world.space().munlock(AT, PAGE).unwrap()], |world| {
        assert_eq!(world.system().swap_out(world.frame()), Err(Kept::InUse), "the child has locked it");
        world.child().munlock(AT, PAGE).unwrap();
        assert_eq!(world.system().swap_out(world.frame()), Ok(()));
    });
}

#[test]
fn two_who_migrate() {
    model(2, nothing, [migrate, migrate], |world| {
        assert_eq!((world.load(AT), world.counts()), (7, (1, 0, 0)));
    });
}

#[test]
fn swap_out_against_a_read() {
    model(2, written, [swap_out, |world| assert!(world.load(AT) > 0)], |world| {
        // What was stored last, unless the page never left.
        assert!(
            world.load(AT) == 1
                || world.frame() == world.space().contents().access(AT, Access::Read).unwrap()
        );
        assert_eq!(world.counts(), (1, 0, 0));
    });
}

#[test]
fn swap_out_against_a_write() {
    model(2, nothing, [swap_out, |world| world.store(AT, 9)], |world| {
        assert_eq!((world.load(AT), world.counts()), (9, (1, 0, 0)));
    });
}

#[test]
fn swap_out_against_a_fork() {
    model(2, nothing, [swap_out, fork], |world| {
        let child = world.child();
        if let Ok(folio) = FolioView::of(world.machine(), world.frame()) {
            let places = world.system().find(world.frame()).unwrap();
            assert_eq!(places.len() as u32, folio.maps(), "it is found wherever it is");
        }
        let rss = child.contents().rss();
        assert_eq!((rss.anon + rss.swap, rss.anon.max(rss.swap)), (1, 1));
        assert_eq!((world.load(AT), world.run(&child, AT, None)), (7, 7));
        assert_eq!(world.counts(), (1, 0, 0));
    });
}

#[test]
fn swap_out_against_a_move() {
    model(2, nothing, [swap_out, |world| relocate(world, AT, TO)], |world| {
        assert_eq!((world.load(TO), world.counts()), (7, (1, 0, 0)));
    });
}

/// A walk that is done while the page is moved finds it all the same.
#[test]
fn search_against_a_move() {
    let find = |world: &World| assert_eq!(world.system().find(world.frame()).unwrap().len(), 1);
    model(2, nothing, [find, |world| relocate(world, AT, TO)], |world| assert_eq!(world.load(TO), 7));
}

/// A page that was moved before is moved once more, and the place where it was between is forgotten while a walk looks there.
#[test]
fn search_against_a_second_move() {
    let moved = |world: &World| relocate(world, AT, TO);
    let find = |world: &World| assert_eq!(world.system().find(world.frame()).unwrap().len(), 1);
    model(2, moved, [find, |world| relocate(world, TO, BEYOND)], |world| assert_eq!(world.load(BEYOND), 7));
}

#[test]
fn swap_out_against_discard() {
    let discard = |world: &World| world.space().discard(AT, PAGE).unwrap();
    model(2, nothing, [swap_out, discard], |world| assert_eq!(world.counts(), (0, 0, 0)));
}

#[test]
fn swap_out_against_exit() {
    let exit = |world: &World| drop(world.space.lock().unwrap().take());
    model(2, nothing, [swap_out, exit], |world| assert_eq!(world.area.used(), 0));
}

/// Locks the page, and notes whether it is in memory then.
fn lock_and_look(world: &World) {
    world.begin();
    world.space().mlock(AT, PAGE, false).unwrap();
    let found = world.space().contents().access(AT, Access::Read).is_ok();
    world.found.store(found, Ordering::Relaxed);
}

/// What is found in memory after it was locked stays there.
fn stays_if_it_was_found(world: &World) {
    if world.found.load(Ordering::Relaxed) {
        assert_eq!(world.counts(), (1, 0, 0), "it is locked");
        assert_eq!(world.load(AT), 7);
    }
    world.space().munlock(AT, PAGE).unwrap();
}

#[test]
fn swap_out_against_mlock() {
    model(2, nothing, [begin_swap_out, lock_and_look], |world| {
        stays_if_it_was_found(world);
        assert_eq!(world.load(AT), 7);
    });
}

/// The space unlocks the page while it is looked at whether it is locked: it goes or stays, and stays locked no longer.
#[test]
fn swap_out_against_munlock() {
    let lock = |world: &World| world.space().mlock(AT, PAGE, false).unwrap();
    let unlock = |world: &World| {
        world.begin();
        world.space().munlock(AT, PAGE).unwrap();
    };
    model(2, lock, [begin_swap_out, unlock], |world| {
        assert_eq!((world.load(AT), world.counts()), (7, (1, 0, 0)));
        let now = world.space().contents().access(AT, Access::Read).unwrap();
        world.system().swap_out(now).unwrap();
        assert_eq!((world.load(AT), world.counts()), (7, (1, 0, 0)));
    });
}

#[test]
fn what_was_given_up_is_dropped_against_mlock() {
    let given_up = |world: &World| world.space().lazy_free(AT, PAGE).unwrap();
    model(2, given_up, [begin_swap_out, lock_and_look], stays_if_it_was_found);
}

#[test]
fn two_who_swap_out() {
    model(2, nothing, [swap_out, swap_out], |world| {
        assert_eq!((world.load(AT), world.counts()), (7, (1, 0, 0)));
    });
}

#[test]
fn two_who_swap_in() {
    model(
        2,
        |world| world.system().swap_out(world.frame()).unwrap(),
        [|world| world.store(AT, 9), |world| assert!(world.load(AT) > 0)],
        |world| assert_eq!((world.load(AT), world.counts()), (9, (1, 0, 0))),
    );
}

/// Given up, and written to at the same time as it is taken away: it is kept.
#[test]
fn what_was_given_up_is_dropped_against_a_write() {
    let given_up = |world: &World| world.space().lazy_free(AT, PAGE).unwrap();
    model(2, given_up, [swap_out, |world| world.store(AT, 9)], |world| {
        assert_eq!((world.load(AT), world.counts()), (9, (1, 0, 0)));
    });
}

/// A processor's translation lasts until the advice returns; what it stores after that is kept.
#[test]
fn a_page_is_given_up_against_swap_out() {
    let give_up_and_write = |world: &World| {
        world.space().lazy_free(AT, PAGE).unwrap();
        world.store(AT, 9);
    };
    model(2, written, [swap_out, give_up_and_write], |world| {
        assert_eq!((world.load(AT), world.counts()), (9, (1, 0, 0)));
        world.system().swap_out(world.space().contents().access(AT, Access::Read).unwrap()).unwrap();
        assert_eq!((world.load(AT), world.counts()), (9, (1, 0, 0)), "it is given up no more");
    });
}

#[test]
fn a_page_is_given_up_against_a_write() {
    let give_up = |world: &World| world.space().lazy_free(AT, PAGE).unwrap();
    model(2, nothing, [|world| world.store(AT, 9), give_up], |world| {
        // One came last. Here is no page of zeros that could be read.
        swap_out(world);
        if world.counts().0 + world.counts().1 > 0 {
            assert_eq!(world.load(AT), 9);
        }
        world.store(AT, 8);
        swap_out(world);
        assert_eq!(world.load(AT), 8);
    });
}

#[test]
fn what_was_given_up_is_dropped_against_a_fork() {
    let given_up = |world: &World| world.space().lazy_free(AT, PAGE).unwrap();
    let fork = |world: &World| {
        let contents = Paged::in_system(&world.system(), 2, Frame(0), ()).unwrap();
        let child = world.space().fork(Lock(RwLock::new(())), contents).unwrap();
        world.run(&child, AT, Some(5));
        *world.child.lock().unwrap() = Some(std::sync::Arc::new(child));
    };
    // The child writes too: with one preemption more it takes minutes.
    model(1, given_up, [swap_out, fork], |world| {
        let child = world.child();
        assert_eq!(world.run(&child, AT, None), 5);
        let rss = world.space().contents().rss();
        assert_eq!(rss.swap, 0);
        if rss.anon == 1 {
            assert_eq!(world.load(AT), 7);
        }
    });
}

//! A page of shared memory, which one thread swaps out, while another writes to it, unmaps it, cuts it off, or swaps it out as
//! well: on page tables of two entries. What a processor has stored is found in the end, and slots are counted exactly.

use std::num::NonZeroU64;
use std::ops::Deref;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, Ordering};

use isotherm_mm::*;
use isotherm_page::Frame;
use isotherm_pagetable::X86_64;
use isotherm_rcu::Qsbr;
use isotherm_rcu::model::{Machine, on};
use loom::sync::{Arc, RwLock};
use loom::thread;

use crate::tiny::Tiny;
use crate::{Lock, Overwriting, PAGE, free_all, read_write};

const AT: u64 = 2 * PAGE;
const ELSEWHERE: u64 = 5 * PAGE;

const CONFIG: Config = Config {
    lowest: PAGE,
    end: 8 * PAGE,
    top_down_base: 8 * PAGE,
    bottom_up_base: PAGE,
    heap: PAGE,
    stack_guard: 0,
    ..Config::X86_64
};

/// A byte a slot.
#[derive(Default)]
struct Slots([AtomicU8; 2]);

impl Swap for Slots {
    fn slots(&self) -> u32 {
        2
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

type Memory = Object<'static, X86_64, Tiny, Shmem, Lock>;

struct Memories(Memory);

impl Objects<'static, X86_64, Tiny> for Memories {
    type Backing = Shmem;
    type Lock = Lock;

    fn get(&self, _: ObjectId) -> Option<impl Deref<Target = Memory>> {
        Some(&self.0)
    }
}

struct Process;

impl Platform for Process {
    type Rcu = &'static Qsbr<Machine, 2>;
    type Lock = Lock;
    type Contents = Paged<'static, X86_64, Tiny, &'static Memories>;
    type Alloc = Overwriting;
}

type Space = AddressSpace<Process>;

/// The space goes before what it stands on.
struct World {
    space: Mutex<Option<std::sync::Arc<Space>>>,
    /// Another that may map the page, in some models.
    other: Mutex<Option<std::sync::Arc<Space>>>,
    /// No lock of the model's is taken with it held: nobody would go on.
    system: Mutex<Option<System<'static, X86_64, Tiny>>>,
    memories: *mut Memories,
    area: std::sync::Arc<SwapArea>,
    rcu: *mut Qsbr<Machine, 2>,
    machine: *mut Tiny,
}

// SAFETY: what the pointers lead to is used by shared references alone until the last owner drops it, and is `Sync`.
unsafe impl Send for World {}
// SAFETY: as above.
unsafe impl Sync for World {}

fn map(space: &Space, flags: MapFlags) {
    map_as(space, Prot::READ | Prot::WRITE, flags);
}

fn map_as(space: &Space, prot: Prot, flags: MapFlags) {
    let source = Source::Object { id: NonZeroU64::MIN, offset: 0, rights: Prot::all() };
    let request = MapRequest { prot, ..read_write(1).at(AT) };
    space.mmap(&MapRequest { source, flags: request.flags | MapFlags::SHARED | flags, ..request }).unwrap();
}

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
        let memory = Object::new(tiny, Shmem, Lock(RwLock::new(())), 1);
        let memories = Box::into_raw(Box::new(Memories(memory)));
        let system = System::new(tiny, 64, Some(std::sync::Arc::clone(&area))).unwrap();
        // SAFETY: it lives until the drop of the world.
        let contents = Paged::in_system(&system, 1, Frame(0), unsafe { &*memories }).unwrap();
        // SAFETY: as above.
        let space = Space::new(unsafe { &*rcu }, Lock(RwLock::new(())), contents, CONFIG);
        map(&space, MapFlags::empty());
        let world = Self {
            space: Mutex::new(Some(std::sync::Arc::new(space))),
            other: Mutex::default(),
            system: Mutex::new(Some(system)),
            memories,
            area,
            rcu,
            machine,
        };
        world.store(7);
        Arc::new(world)
    }

    fn memory(&self) -> &'static Memory {
        // SAFETY: it lives until the drop, after which no model uses it.
        unsafe { &(*self.memories).0 }
    }

    fn machine(&self) -> &'static Tiny {
        // SAFETY: as above.
        unsafe { &*self.machine }
    }

    fn rcu(&self) -> &'static Qsbr<Machine, 2> {
        // SAFETY: as above.
        unsafe { &*self.rcu }
    }

    fn space(&self) -> std::sync::Arc<Space> {
        std::sync::Arc::clone(self.space.lock().unwrap().as_ref().unwrap())
    }

    /// A space that maps nothing of the memory yet, and has locked other pages, if it is to.
    fn add_other(&self, locks: bool) {
        let system = self.system.lock().unwrap();
        // SAFETY: it lives until the drop of the world.
        let memories = unsafe { &*self.memories };
        let contents = Paged::in_system(system.as_ref().unwrap(), 2, Frame(0), memories).unwrap();
        drop(system);
        let space = Space::new(self.rcu(), Lock(RwLock::new(())), contents, CONFIG);
        if locks {
            space.mmap(&read_write(1).at(ELSEWHERE)).unwrap();
            space.mlock(ELSEWHERE, PAGE, true).unwrap();
        }
        *self.other.lock().unwrap() = Some(std::sync::Arc::new(space));
    }

    fn other(&self) -> std::sync::Arc<Space> {
        std::sync::Arc::clone(self.other.lock().unwrap().as_ref().unwrap())
    }

    /// An access of a program.
    fn run(&self, value: Option<usize>) -> usize {
        let (space, machine) = (self.space(), self.machine());
        let access = if value.is_some() { Access::Write } else { Access::Read };
        loop {
            let done = machine.access(|| {
                let word = machine.word(space.contents().access(AT, access)?);
                if let Some(value) = value {
                    word.store(value, Ordering::Relaxed);
                }
                Ok::<_, MmuFault>(word.load(Ordering::Relaxed))
            });
            if let Ok(found) = done {
                return found;
            }
            space.fault(AT, access).unwrap();
        }
    }

    fn store(&self, value: usize) {
        self.run(Some(value));
    }

    fn load(&self) -> usize {
        self.run(None)
    }

    /// What the object has, mapped or not.
    fn read(&self) -> usize {
        let machine = self.machine();
        self.memory().with_page(0, false, |frame| machine.word(frame).load(Ordering::Relaxed)).unwrap()
    }

    /// Whether reclaim leaves the page.
    fn is_locked(&self) -> bool {
        let frame = self.space().contents().access(AT, Access::Read).unwrap();
        let system = self.system.lock().unwrap();
        // SAFETY: it lives until the drop of the world.
        system.as_ref().unwrap().is_locked(&unsafe { &*self.memories }, frame)
    }

    fn counts(&self) -> (u64, u64, u64) {
        (self.memory().cached(), self.memory().swapped(), self.area.used())
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        drop(self.other.lock().unwrap().take());
        drop(self.space.lock().unwrap().take());
        drop(self.system.lock().unwrap().take());
        // SAFETY: nobody else has them, and each goes before what it stands on.
        unsafe {
            drop(Box::from_raw(self.memories));
            assert_eq!(self.area.used(), 0, "all slots are given back");
            drop(Box::from_raw(self.rcu));
            let machine = Box::from_raw(self.machine);
            let freed = machine.freed.load(loom::sync::atomic::Ordering::Relaxed);
            assert_eq!(freed, machine.given_out(), "all pages are given back");
        }
    }
}

fn model(
    prepare: impl Fn(&World) + Send + Sync + 'static,
    [other, act]: [fn(&World); 2],
    check: impl Fn(&World) + Send + Sync + 'static,
) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
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

fn page_out(world: &World) {
    let _ = world.space().page_out(AT, PAGE);
}

#[test]
fn shared_memory_is_swapped_out_against_a_write() {
    model(nothing, [page_out, |world| world.store(9)], |world| {
        assert_eq!((world.load(), world.counts()), (9, (1, 0, 0)));
        let rss = world.space().contents().rss();
        assert_eq!(rss, Rss { shmem: 1, ..Rss::default() });
    });
}

/// A processor goes on storing until its translation is flushed.
#[test]
fn shared_memory_is_swapped_out_against_a_read() {
    let written = |world: &World| {
        let frame = world.space().contents().access(AT, Access::Write).unwrap();
        world.machine().keep_translation(frame);
    };
    model(written, [page_out, |world| assert!(world.load() > 0)], |world| {
        let found = world.load();
        assert!(found == 1 || found == 7 && world.counts() == (1, 0, 0), "{found}");
    });
}

#[test]
fn shared_memory_is_swapped_out_against_munmap() {
    let unmap = |world: &World| world.space().munmap(AT, PAGE).unwrap();
    model(nothing, [page_out, unmap], |world| {
        assert_eq!((world.read(), world.counts()), (7, (1, 0, 0)));
        assert_eq!(world.space().contents().rss(), Rss::default());
    });
}

#[test]
fn shared_memory_is_swapped_out_against_truncation() {
    let cut = |world: &World| world.memory().resize(0);
    model(nothing, [page_out, cut], |world| {
        assert_eq!((world.counts(), world.space().contents().rss()), ((0, 0, 0), Rss::default()));
    });
}

#[test]
fn two_who_swap_shared_memory_out() {
    model(nothing, [page_out, page_out], |world| {
        assert_eq!((world.load(), world.counts()), (7, (1, 0, 0)));
    });
}

#[test]
fn two_who_swap_shared_memory_in() {
    let swapped = |world: &World| assert_eq!(world.space().page_out(AT, PAGE), Ok(PAGE));
    let write = |world: &World| {
        let machine = world.machine();
        let put = |frame: Frame| machine.word(frame).store(9, Ordering::Relaxed);
        world.memory().with_page(0, true, put).unwrap();
    };
    model(swapped, [write, |world| assert!(world.load() > 0)], |world| {
        assert_eq!((world.load(), world.counts()), (9, (1, 0, 0)));
    });
}

/// One unlocks the page at the same time as another, who has locked memory elsewhere, maps it as `MAP_LOCKED` says and uses it:
/// it stays.
#[test]
fn munlock_against_a_mapping_that_is_locked() {
    for locks in [false, true] {
        let prepare = move |world: &World| {
            world.space().mlock(AT, PAGE, false).unwrap();
            world.add_other(locks);
        };
        let map_locked = |world: &World| {
            let other = world.other();
            map(&other, MapFlags::LOCKED);
            other.fault(AT, Access::Read).unwrap();
        };
        model(prepare, [|world| world.space().munlock(AT, PAGE).unwrap(), map_locked], move |world| {
            assert!(world.is_locked(), "the other has locked it: {locks}");
            world.other().munlock(AT, PAGE).unwrap();
            assert!(!world.is_locked());
        });
    }
}

/// The same if it locks what it has just mapped.
#[test]
fn munlock_against_mlock_of_a_new_mapping() {
    let prepare = |world: &World| {
        world.space().mlock(AT, PAGE, false).unwrap();
        world.add_other(true);
    };
    let map_and_lock = |world: &World| {
        let other = world.other();
        map(&other, MapFlags::empty());
        other.fault(AT, Access::Read).unwrap();
        other.mlock(AT, PAGE, false).unwrap();
    };
    model(prepare, [|world| world.space().munlock(AT, PAGE).unwrap(), map_and_lock], |world| {
        assert!(world.is_locked(), "the other has locked it");
        world.other().munlock(AT, PAGE).unwrap();
        assert!(!world.is_locked());
    });
}

/// Who has mapped a page as `MAP_LOCKED` says, and used it, has it in memory, also if it may only read it.
#[test]
fn shared_memory_is_swapped_out_against_a_mapping_that_is_locked() {
    let map_locked = |world: &World| {
        let other = world.other();
        map_as(&other, Prot::READ, MapFlags::LOCKED);
        other.fault(AT, Access::Read).unwrap();
    };
    model(
        |world| world.add_other(false),
        [page_out, map_locked],
        |world| {
            assert_eq!(world.counts(), (1, 0, 0), "the other has locked it");
            world.other().munlock(AT, PAGE).unwrap();
        },
    );
}

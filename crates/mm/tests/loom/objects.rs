//! The page of a file, which one thread writes back and evicts, while another unmaps it, writes to it, or ends its space: on
//! page tables of two entries. What a processor has stored is on the disk in the end.

use std::num::NonZeroU64;
use std::ops::Deref;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

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

/// A file of one page of one word.
struct Disk {
    machine: &'static Tiny,
    word: AtomicUsize,
}

impl Backing for Disk {
    fn kind(&self) -> ObjectKind {
        ObjectKind::File
    }

    fn page_in(&self, _: u64, frame: Frame) -> Result<(), BackingError> {
        let word = self.word.load(Ordering::Relaxed);
        self.machine.word(frame).store(word, Ordering::Relaxed);
        Ok(())
    }

    fn write_back(&self, _: u64, frame: Frame) -> Result<(), BackingError> {
        self.word.store(self.machine.word(frame).load(Ordering::Relaxed), Ordering::Relaxed);
        Ok(())
    }
}

type File = Object<'static, X86_64, Tiny, Disk, Lock>;

struct Files(File);

impl Objects<'static, X86_64, Tiny> for Files {
    type Backing = Disk;
    type Lock = Lock;

    fn get(&self, _: ObjectId) -> Option<impl Deref<Target = File>> {
        Some(&self.0)
    }
}

struct Process;

impl Platform for Process {
    type Rcu = &'static Qsbr<Machine, 2>;
    type Lock = Lock;
    type Contents = Paged<'static, X86_64, Tiny, &'static Files>;
    type Alloc = Overwriting;
}

type Space = AddressSpace<Process>;

/// The space goes before what it stands on.
struct World {
    /// Until it is ended. No lock of the model's: one thread alone ends it.
    space: Mutex<Option<std::sync::Arc<Space>>>,
    files: *mut Files,
    rcu: *mut Qsbr<Machine, 2>,
    machine: *mut Tiny,
}

// SAFETY: what the pointers lead to is used by shared references alone until the last owner drops it, and is `Sync`.
unsafe impl Send for World {}
// SAFETY: as above.
unsafe impl Sync for World {}

impl World {
    fn new(flags: MapFlags) -> Arc<Self> {
        free_all();
        let machine = Box::into_raw(Box::new(Tiny::new()));
        let rcu = Box::into_raw(Box::new(Qsbr::new(Machine)));
        // SAFETY: it lives until the drop of the world.
        let tiny: &'static Tiny = unsafe { &*machine };
        let disk = Disk { machine: tiny, word: AtomicUsize::new(0) };
        let file = Object::new(tiny, disk, Lock(RwLock::new(())), 1);
        let files = Box::into_raw(Box::new(Files(file)));
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
        // SAFETY: as above.
        let contents = Paged::with_objects(tiny, 1, Frame(0), unsafe { &*files }).unwrap();
        // SAFETY: as above.
        let space = Space::new(unsafe { &*rcu }, Lock(RwLock::new(())), contents, config);
        let source = Source::Object { id: NonZeroU64::MIN, offset: 0, rights: Prot::all() };
        let request = read_write(1).at(AT);
        space.mmap(&MapRequest { source, flags: request.flags | flags, ..request }).unwrap();
        let space = Mutex::new(Some(std::sync::Arc::new(space)));
        Arc::new(Self { space, files, rcu, machine })
    }

    fn file(&self) -> &'static File {
        // SAFETY: it lives until the drop, after which no model uses it.
        unsafe { &(*self.files).0 }
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

    /// A store of a program.
    fn store(&self, value: usize) {
        let space = self.space();
        let machine = self.machine();
        loop {
            let stored = machine.access(|| {
                let frame = space.contents().access(AT, Access::Write)?;
                machine.word(frame).store(value, Ordering::Relaxed);
                Ok::<_, MmuFault>(())
            });
            if stored.is_ok() {
                return;
            }
            space.fault(AT, Access::Write).unwrap();
        }
    }

    fn rss(&self) -> Rss {
        self.space().contents().rss()
    }

    fn on_disk(&self) -> usize {
        self.file().backing().word.load(Ordering::Relaxed)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        drop(self.space.lock().unwrap().take());
        // SAFETY: nobody else has them, and each goes before what it stands on.
        unsafe {
            drop(Box::from_raw(self.files));
            drop(Box::from_raw(self.rcu));
            let machine = Box::from_raw(self.machine);
            assert_eq!(
                machine.freed.load(Ordering::Relaxed),
                machine.given_out(),
                "all pages are given back"
            );
        }
    }
}

/// Two threads, with so many preemptions, in a space that maps the file, shared or privately, and what is there in the end.
fn model(
    preemptions: usize,
    flags: MapFlags,
    prepare: fn(&World),
    [other, act]: [fn(&World); 2],
    check: impl Fn(&World) + Send + Sync + 'static,
) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 10_000;
    builder.check(move || {
        let world = World::new(flags);
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

fn reclaim(world: &World) {
    world.file().write_back(0..1).unwrap();
    world.file().evict(0..1);
}

/// The page is mapped and written to, and a processor goes on storing until its translation is flushed.
fn written(world: &World) {
    world.store(7);
    let frame = world.space().contents().access(AT, Access::Write).unwrap();
    world.machine().keep_translation(frame);
}

/// What the last store was is on the disk, also after one write-back more.
fn nothing_is_lost(expected: usize) -> impl Fn(&World) {
    move |world| {
        world.file().write_back(0..1).unwrap();
        assert_eq!(world.on_disk(), expected, "what was stored is lost");
    }
}

#[test]
fn reclaim_against_munmap() {
    let unmap = |world: &World| world.space().munmap(AT, PAGE).unwrap();
    model(4, MapFlags::SHARED, written, [reclaim, unmap], nothing_is_lost(1));
}

#[test]
fn reclaim_against_discard() {
    let discard = |world: &World| world.space().discard(AT, PAGE).unwrap();
    model(4, MapFlags::SHARED, written, [reclaim, discard], nothing_is_lost(1));
}

#[test]
fn reclaim_against_mprotect() {
    let protect = |world: &World| world.space().mprotect(AT, PAGE, Prot::READ).unwrap();
    model(4, MapFlags::SHARED, written, [reclaim, protect], nothing_is_lost(1));
}

#[test]
fn reclaim_against_a_move() {
    let relocate = |world: &World| {
        let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
        world.space().mremap(AT, PAGE, PAGE, flags, 5 * PAGE).unwrap();
    };
    model(4, MapFlags::SHARED, written, [reclaim, relocate], nothing_is_lost(1));
}

#[test]
fn reclaim_against_exit() {
    let exit = |world: &World| drop(world.space.lock().unwrap().take());
    model(4, MapFlags::SHARED, |world| world.store(7), [reclaim, exit], nothing_is_lost(7));
}

#[test]
fn reclaim_against_a_write_fault() {
    let read = |world: &World| world.space().fault(AT, Access::Read).unwrap();
    model(4, MapFlags::SHARED, read, [reclaim, |world| world.store(7)], nothing_is_lost(7));
}

#[test]
fn truncation_against_a_write_fault() {
    let cut = |world: &World| world.file().resize(0);
    let write = |world: &World| {
        let done = world.space().fault(AT, Access::Write);
        assert!(matches!(done, Ok(()) | Err(FaultError::Bus)), "{done:?}");
    };
    model(
        4,
        MapFlags::SHARED,
        |_| {},
        [cut, write],
        |world| {
            assert_eq!(
                (world.file().cached(), world.rss()),
                (0, Rss::default()),
                "beyond the end is nothing"
            );
        },
    );
}

/// Both find nothing in memory, or a page that is read-only: it is brought in once, and both may write.
#[test]
fn two_writes_to_a_shared_page() {
    for prepare in [|_: &World| {}, |world: &World| world.space().fault(AT, Access::Read).unwrap()] {
        model(2, MapFlags::SHARED, prepare, [|world| world.store(5), |world| world.store(7)], |world| {
            world.file().write_back(0..1).unwrap();
            assert!([5, 7].contains(&world.on_disk()));
            assert_eq!((world.file().cached(), world.rss()), (1, Rss { file: 1, ..Rss::default() }));
        });
    }
}

/// Who finds that the other has made a copy in the meantime makes none of it.
#[test]
fn two_writes_to_a_private_page() {
    let read = |world: &World| world.space().fault(AT, Access::Read).unwrap();
    model(2, MapFlags::empty(), read, [|world| world.store(5), |world| world.store(7)], |world| {
        let frame = world.space().contents().access(AT, Access::Read).unwrap();
        assert!([5, 7].contains(&world.machine().word(frame).load(loom::sync::atomic::Ordering::Relaxed)));
        assert_eq!((world.file().cached(), world.rss()), (1, Rss { anon: 1, ..Rss::default() }));
        nothing_is_lost(0)(world);
    });
}

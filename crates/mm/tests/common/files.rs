//! Files on a disk that is a map of words, and shared memory.
#![allow(dead_code, clippy::unwrap_used, reason = "shared by several tests; what fails here fails the test")]

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::num::NonZeroU64;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex, RwLock};

use isotherm_mm::*;
use isotherm_page::Frame;
use isotherm_pagetable::host::HostMachine;
use isotherm_pagetable::{Format, X86_64};
use isotherm_rcu::Epoch;

use super::host::word;
use super::{Failing, PAGE, SMALL, anonymous};

/// Where in a page the word is that counts: the others stay 0.
pub const WORD: u64 = 16;

/// A word a page.
pub struct Disk<'m> {
    machine: &'m HostMachine,
    kind: ObjectKind,
    pub words: Mutex<BTreeMap<u64, u64>>,
    pub fails: AtomicBool,
    pub reads: AtomicU64,
    pub writes: AtomicU64,
    /// So many pages are brought in behind one that is needed.
    pub ahead: AtomicU64,
    /// The next read or write stops at it twice: a read when it has read, and before it returns, a write before it writes.
    pub pause: Mutex<Option<Arc<Barrier>>>,
}

impl Disk<'_> {
    fn check(&self) -> Result<(), BackingError> {
        if self.fails.load(Ordering::Relaxed) { Err(BackingError) } else { Ok(()) }
    }

    fn stop(&self) {
        let pause = self.pause.lock().unwrap().take();
        for pause in pause.iter().chain(&pause) {
            pause.wait();
        }
    }

    pub fn get(&self, index: u64) -> u64 {
        self.words.lock().unwrap().get(&index).copied().unwrap_or(0)
    }

    /// What a file system does when a file becomes shorter.
    pub fn truncate(&self, pages: u64) {
        self.words.lock().unwrap().retain(|&index, _| index < pages);
    }

    /// How many pages were read and written.
    pub fn io(&self) -> (u64, u64) {
        (self.reads.load(Ordering::Relaxed), self.writes.load(Ordering::Relaxed))
    }
}

impl Backing for Disk<'_> {
    fn kind(&self) -> ObjectKind {
        self.kind
    }

    fn page_in(&self, index: u64, frame: Frame) -> Result<(), BackingError> {
        self.check()?;
        if self.kind == ObjectKind::File {
            self.reads.fetch_add(1, Ordering::Relaxed);
            self.machine.write(frame.address() + WORD, self.get(index)).unwrap();
        }
        self.stop();
        Ok(())
    }

    fn read_ahead(&self, _: u64) -> u64 {
        self.ahead.load(Ordering::Relaxed)
    }

    fn write_back(&self, index: u64, frame: Frame) -> Result<(), BackingError> {
        self.check()?;
        assert_eq!(self.kind, ObjectKind::File, "shared memory is written back");
        self.writes.fetch_add(1, Ordering::Relaxed);
        let word = self.machine.read(frame.address() + WORD).unwrap();
        self.stop();
        self.words.lock().unwrap().insert(index, word);
        Ok(())
    }
}

pub type File<'m, F = X86_64> = Object<'m, F, HostMachine, Disk<'m>, RwLock<()>>;

/// Objects 1, 2 and so on.
pub struct Files<'m, F: Format>(pub Vec<File<'m, F>>);

impl<'m, F: Format + 'm> Files<'m, F> {
    pub fn new(machine: &'m HostMachine, files: &[(ObjectKind, u64)]) -> Arc<Self> {
        let file = |&(kind, pages): &(ObjectKind, u64)| {
            let words = match kind {
                ObjectKind::File => (0..pages).map(|index| (index, 1000 + index)).collect(),
                ObjectKind::Shmem => BTreeMap::new(),
            };
            let disk = Disk {
                machine,
                kind,
                words: Mutex::new(words),
                fails: AtomicBool::new(false),
                reads: AtomicU64::new(0),
                writes: AtomicU64::new(0),
                ahead: AtomicU64::new(0),
                pause: Mutex::new(None),
            };
            Object::new(machine, disk, RwLock::new(()), pages)
        };
        Arc::new(Self(files.iter().map(file).collect()))
    }

    pub fn file(&self, id: u64) -> &File<'m, F> {
        &self.0[id as usize - 1]
    }
}

impl<'m, F: Format + 'm> Objects<'m, F, HostMachine> for Files<'m, F> {
    type Backing = Disk<'m>;
    type Lock = RwLock<()>;

    fn get(&self, id: ObjectId) -> Option<impl Deref<Target = File<'m, F>>> {
        self.0.get(usize::try_from(id.get()).ok()? - 1)
    }
}

pub struct FileProcess<'m, F>(PhantomData<(&'m HostMachine, F)>);

impl<'m, F: Format + 'm> Platform for FileProcess<'m, F> {
    type Rcu = Epoch;
    type Lock = RwLock<()>;
    type Contents = Paged<'m, F, HostMachine, Arc<Files<'m, F>>>;
    type Alloc = Failing;
}

pub type FileSpace<'m, F = X86_64> = AddressSpace<FileProcess<'m, F>>;

pub fn paged<'m, F: Format + 'm>(
    machine: &'m HostMachine,
    files: &Arc<Files<'m, F>>,
    asid: u16,
    zero: Frame,
) -> Result<Paged<'m, F, HostMachine, Arc<Files<'m, F>>>, Error> {
    Paged::with_objects(machine, asid, zero, Arc::clone(files))
}

pub fn file_space<'m, F: Format + 'm>(
    machine: &'m HostMachine,
    files: &Arc<Files<'m, F>>,
    zero: Frame,
) -> FileSpace<'m, F> {
    FileSpace::new(Epoch, RwLock::new(()), paged(machine, files, 1, zero).unwrap(), SMALL)
}

/// Pages of an object, which may be read and written, at a page.
pub fn object(id: u64, offset: u64, pages: u64, shared: bool, at: u64) -> MapRequest {
    let source =
        Source::Object { id: NonZeroU64::new(id).unwrap(), offset: offset * PAGE, rights: Prot::all() };
    let request = anonymous(pages).at(at * PAGE);
    let flags = if shared { request.flags | MapFlags::SHARED } else { request.flags };
    MapRequest { source, flags, ..request }
}

/// A space that maps a file of 16 pages and shared memory of 16 besides its own 16, all there.
pub fn mixed<'m, F: Format>(
    machine: &'m HostMachine,
    system: &System<'m, F, HostMachine>,
    files: &Arc<Files<'m, F>>,
    zero: Frame,
) -> FileSpace<'m, F> {
    let contents = Paged::in_system(system, 1, zero, Arc::clone(files)).unwrap();
    let space = FileSpace::new(Epoch, RwLock::new(()), contents, SMALL);
    space.mmap(&anonymous(16).at(40 * PAGE)).unwrap();
    space.mmap(&object(1, 0, 16, true, 60)).unwrap();
    space.mmap(&object(2, 0, 16, true, 80)).unwrap();
    for page in (40..56).chain(60..76).chain(80..96) {
        word(machine, &space, page * PAGE + WORD, Some(page)).unwrap();
    }
    space
}

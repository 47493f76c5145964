//! Files, shared memory and private copies against a naive model: random operations of several spaces, and from below. After
//! each: what is resident, by kind, and what is in the cache; at the end contents, reverse maps and what the disk has.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, RwLock};

use common::files::*;
use common::host::{FRAMES, word, zero};
use common::{PAGE, anonymous};
use isotherm_mm::ObjectKind::{File, Shmem};
use isotherm_mm::*;
use isotherm_page::Frame;
use isotherm_pagetable::host::HostMachine;
use isotherm_pagetable::{Arm64Software, Format, X86_64};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    Map {
        at: u64,
        pages: u64,
        object: Option<(u64, u64)>,
        shared: bool,
        prot: u8,
    },
    Unmap(u64, u64),
    Protect(u64, u64, u8),
    Discard(u64, u64),
    Move {
        from: u64,
        pages: u64,
        to: u64,
        stays: bool,
    },
    Read(u64),
    Write(u64, u64),
    Sync(u64, u64),
    Fork,
    Switch(usize),
    Exit,
    /// `write` to an object.
    Put(u64, u64, u64),
    Resize(u64, u64),
    Evict(u64, u64, u64),
    WriteBack(u64, u64, u64),
}

/// Objects 1 and 2 are files, 3 is shared memory.
const OBJECTS: [(ObjectKind, u64); 3] = [(File, 12), (File, 8), (Shmem, 12)];
/// Addresses of objects and of mappings, in pages.
const INDEX: std::ops::Range<u64> = 0..14;
const PAGES: std::ops::Range<u64> = 30..54;

fn op() -> impl Strategy<Value = Op> {
    let (page, pages) = (PAGES, 1..9u64);
    let (id, index) = (1..4u64, INDEX);
    let prot = prop_oneof![4 => Just(3u8), 1 => 0..8u8];
    let object = proptest::option::weighted(0.85, (id.clone(), index.clone()));
    prop_oneof![
        4 => (page.clone(), pages.clone(), object, any::<bool>(), prot.clone())
            .prop_map(|(at, pages, object, shared, prot)| Op::Map { at, pages, object, shared, prot }),
        1 => (page.clone(), pages.clone()).prop_map(|(at, n)| Op::Unmap(at, n)),
        2 => (page.clone(), pages.clone(), prot).prop_map(|(at, n, prot)| Op::Protect(at, n, prot)),
        1 => (page.clone(), pages.clone()).prop_map(|(at, n)| Op::Discard(at, n)),
        1 => (page.clone(), pages.clone(), page.clone(), any::<bool>())
            .prop_map(|(from, pages, to, stays)| Op::Move { from, pages, to, stays }),
        5 => page.clone().prop_map(Op::Read),
        8 => (page.clone(), any::<u64>()).prop_map(|(at, value)| Op::Write(at, value)),
        1 => (page, pages).prop_map(|(at, n)| Op::Sync(at, n)),
        1 => Just(Op::Fork),
        1 => (0..3usize).prop_map(Op::Switch),
        1 => Just(Op::Exit),
        1 => (id.clone(), index.clone(), any::<u64>()).prop_map(|(id, at, value)| Op::Put(id, at, value)),
        1 => (id.clone(), index.clone()).prop_map(|(id, pages)| Op::Resize(id, pages)),
        2 => (id.clone(), index.clone(), index.clone()).prop_map(|(id, from, to)| Op::Evict(id, from, to)),
        1 => (id, index.clone(), index).prop_map(|(id, from, to)| Op::WriteBack(id, from, to)),
    ]
}

/// What an object is, page by page.
struct NaiveObject {
    kind: ObjectKind,
    size: u64,
    words: BTreeMap<u64, u64>,
    disk: BTreeMap<u64, u64>,
    cached: BTreeSet<u64>,
    dirty: BTreeSet<u64>,
}

impl NaiveObject {
    fn new(&(kind, size): &(ObjectKind, u64)) -> Self {
        let words: BTreeMap<u64, u64> = if kind == File {
            (0..size).map(|index| (index, 1000 + index)).collect()
        } else {
            BTreeMap::new()
        };
        let (disk, cached, dirty) = (words.clone(), BTreeSet::new(), BTreeSet::new());
        Self { kind, size, words, disk, cached, dirty }
    }

    fn get(&self, index: u64) -> u64 {
        self.words.get(&index).copied().unwrap_or(0)
    }

    fn bring_in(&mut self, index: u64) {
        self.cached.insert(index);
        if self.kind == Shmem {
            self.dirty.insert(index);
        }
    }

    fn put(&mut self, index: u64, value: u64) {
        self.bring_in(index);
        self.words.insert(index, value);
        self.dirty.insert(index);
    }

    fn write_back(&mut self, pages: impl Iterator<Item = u64>) {
        for index in pages {
            if self.kind == File && self.dirty.remove(&index) {
                self.disk.insert(index, self.get(index));
            }
        }
    }
}

/// What a page of a space is mapped as.
#[derive(Clone, Copy)]
struct Page {
    /// The object, from 0 on, and the page of it.
    object: Option<(usize, u64)>,
    shared: bool,
    prot: u8,
}

struct Process<'m, F: Format> {
    space: FileSpace<'m, F>,
    pages: BTreeMap<u64, Page>,
    /// Anonymous pages that are there.
    own: BTreeMap<u64, u64>,
    /// Pages at which the object's is mapped.
    mapped: BTreeSet<u64>,
}

struct World<'m, F: Format> {
    machine: &'m HostMachine,
    zero: Frame,
    files: Arc<Files<'m, F>>,
    objects: Vec<NaiveObject>,
    processes: Vec<Process<'m, F>>,
    current: usize,
    forks: u16,
}

impl<'m, F: Format + 'm> World<'m, F> {
    fn new(machine: &'m HostMachine, zero: Frame) -> Self {
        let files = Files::new(machine, &OBJECTS);
        let space = file_space(machine, &files, zero);
        let first = Process { space, pages: BTreeMap::new(), own: BTreeMap::new(), mapped: BTreeSet::new() };
        let objects = OBJECTS.iter().map(NaiveObject::new).collect();
        Self { machine, zero, files, objects, processes: vec![first], current: 0, forks: 1 }
    }

    /// What a read or a write comes to.
    fn access(&mut self, at: u64, write: Option<u64>) {
        let process = &mut self.processes[self.current];
        let got = word(self.machine, &process.space, at * PAGE + WORD, write);
        let expected = (|| {
            let page = process.pages.get(&at).ok_or(FaultError::NotMapped)?;
            let needed = if write.is_some() { page.prot & 2 } else { page.prot };
            if needed == 0 {
                return Err(FaultError::NotPermitted);
            }
            if let Some(own) = process.own.get_mut(&at) {
                *own = write.unwrap_or(*own);
                return Ok(*own);
            }
            let Some((object, index)) = page.object else {
                process.own.extend(write.map(|value| (at, value)));
                return Ok(write.unwrap_or(0));
            };
            let object = &mut self.objects[object];
            if !process.mapped.contains(&at) && index >= object.size {
                return Err(FaultError::Bus);
            }
            object.bring_in(index);
            if let Some(value) = write
                && !page.shared
            {
                process.mapped.remove(&at);
                process.own.insert(at, value);
                return Ok(value);
            }
            process.mapped.insert(at);
            if let Some(value) = write {
                object.put(index, value);
            }
            Ok(object.get(index))
        })();
        assert_eq!(got, expected, "page {at}, written {write:x?}");
    }

    fn apply(&mut self, op: &Op) {
        let process = &mut self.processes[self.current];
        let bits = |prot: u8| Prot::from_bits_truncate(u64::from(prot));
        match *op {
            Op::Map { at, pages, object: id, shared, prot } => {
                let request = match id {
                    Some((id, offset)) => object(id, offset, pages, shared, at),
                    None => anonymous(pages).at(at * PAGE),
                };
                process.space.mmap(&MapRequest { prot: bits(prot), ..request }).unwrap();
                process.forget(at, pages);
                for n in 0..pages {
                    let object = id.map(|(id, offset)| (id as usize - 1, offset + n));
                    process.pages.insert(at + n, Page { object, shared, prot });
                }
            }
            Op::Unmap(at, n) => {
                process.space.munmap(at * PAGE, n * PAGE).unwrap();
                process.forget(at, n);
            }
            Op::Protect(at, n, prot) => {
                let hole = (at..at + n).find(|page| !process.pages.contains_key(page));
                let got = process.space.mprotect(at * PAGE, n * PAGE, bits(prot));
                assert_eq!(got, if hole.is_some() { Err(Error::Hole) } else { Ok(()) });
                for (_, page) in process.pages.range_mut(at..hole.unwrap_or(at + n)) {
                    page.prot = prot;
                }
            }
            Op::Discard(at, n) => {
                let _ = process.space.discard(at * PAGE, n * PAGE);
                process.own.retain(|page, _| !(at..at + n).contains(page));
                process.mapped.retain(|page| !(at..at + n).contains(page));
            }
            Op::Move { from, pages, to, stays } => process.relocate(from, pages, to, stays),
            Op::Read(at) => self.access(at, None),
            Op::Write(at, value) => self.access(at, Some(value)),
            Op::Sync(at, n) => {
                let whole = (at..at + n).all(|page| process.pages.contains_key(&page));
                let got = process.space.msync(at * PAGE, n * PAGE, MsyncFlags::SYNC);
                assert_eq!(got, if whole { Ok(()) } else { Err(Error::Hole) });
                for page in process.pages.range(at..at + n).map(|(_, page)| page).filter(|page| page.shared) {
                    if let Some((object, index)) = page.object {
                        self.objects[object].write_back([index].into_iter());
                    }
                }
            }
            Op::Fork if self.processes.len() < 3 => {
                self.forks += 1;
                let paged = paged(self.machine, &self.files, self.forks, self.zero).unwrap();
                let process = &self.processes[self.current];
                // Pages of objects are copied where there may be private ones, and found by faults elsewhere.
                let copied = |at: &&u64| process.space.find(**at * PAGE).unwrap().has_anon;
                let mapped = process.mapped.iter().filter(copied).copied().collect();
                let space = process.space.fork(RwLock::new(()), paged).unwrap();
                let (pages, own) = (process.pages.clone(), process.own.clone());
                self.processes.push(Process { space, pages, own, mapped });
            }
            Op::Fork => {}
            Op::Switch(to) => self.current = to % self.processes.len(),
            Op::Exit if self.processes.len() > 1 => {
                self.processes.remove(self.current);
                self.current = 0;
            }
            Op::Exit => {}
            Op::Put(id, index, value) => {
                let naive = &mut self.objects[id as usize - 1];
                let machine = self.machine;
                let put = |frame: Frame| machine.write(frame.address() + WORD, value).unwrap();
                match self.files.file(id).with_page(index, true, put) {
                    Ok(()) => naive.put(index, value),
                    Err(why) => assert!(why == PageInError::BeyondEnd && index >= naive.size),
                }
            }
            Op::Resize(id, pages) => self.resize(id as usize - 1, pages),
            Op::Evict(id, from, to) => {
                let naive = &mut self.objects[id as usize - 1];
                let clean: BTreeSet<u64> = naive.cached.difference(&naive.dirty).copied().collect();
                let gone: BTreeSet<u64> =
                    clean.into_iter().filter(|index| (from..to).contains(index)).collect();
                assert_eq!(self.files.file(id).evict(from..to), gone.len() as u64);
                naive.cached.retain(|index| !gone.contains(index));
                for process in &mut self.processes {
                    let pages = &process.pages;
                    process.mapped.retain(|at| {
                        pages[at]
                            .object
                            .is_none_or(|(object, index)| object != id as usize - 1 || !gone.contains(&index))
                    });
                }
            }
            Op::WriteBack(id, from, to) => {
                let naive = &mut self.objects[id as usize - 1];
                let disk = self.files.file(id).backing();
                let (dirty, writes) =
                    (naive.dirty.iter().filter(|at| (from..to).contains(at)).count(), disk.io().1);
                self.files.file(id).write_back(from..to).unwrap();
                let expected = if naive.kind == File { dirty as u64 } else { 0 };
                assert_eq!(disk.io().1 - writes, expected, "each dirty page is written once");
                naive.write_back(from..to);
            }
        }
    }

    fn resize(&mut self, object: usize, size: u64) {
        let naive = &mut self.objects[object];
        let file = &self.files.0[object];
        file.resize(size);
        file.backing().truncate(size);
        naive.size = size;
        naive.words.retain(|&index, _| index < size);
        naive.disk.retain(|&index, _| index < size);
        naive.cached.retain(|&index| index < size);
        naive.dirty.retain(|&index| index < size);
        for process in &mut self.processes {
            let pages = &process.pages;
            let beyond = |at: &u64| pages[at].object.is_some_and(|(is, index)| is == object && index >= size);
            process.mapped.retain(|at| !beyond(at));
            process.own.retain(|at, _| !beyond(at));
        }
    }

    fn check(&self, op: &Op) {
        for (object, file) in self.objects.iter().zip(&self.files.0) {
            assert_eq!(file.cached(), object.cached.len() as u64, "cached after {op:?}");
        }
        for process in &self.processes {
            let of = |kind| {
                let is =
                    |at: &&u64| process.pages[*at].object.is_some_and(|(o, _)| self.objects[o].kind == kind);
                process.mapped.iter().filter(is).count() as u64
            };
            let expected = Rss { anon: process.own.len() as u64, file: of(File), shmem: of(Shmem), swap: 0 };
            assert_eq!(process.space.contents().rss(), expected, "resident after {op:?}");
        }
    }

    /// Every place at which a page is mapped is found from below, and nothing else.
    fn check_reverse_maps(&self) {
        for (object, file) in self.files.0.iter().enumerate() {
            for index in INDEX {
                let mut found = BTreeSet::new();
                file.mappings(index, |id, at| {
                    assert!(found.insert((id.context, at.0 / PAGE)), "found twice")
                });
                let mut expected = BTreeSet::new();
                for process in &self.processes {
                    let is = |at: &&u64| process.pages[*at].object == Some((object, index));
                    let asid = process.space.contents().id().context;
                    expected.extend(process.mapped.iter().filter(is).map(|&at| (asid, at)));
                }
                assert_eq!(found, expected, "page {index} of object {object}");
            }
        }
    }
}

impl<F: Format> Process<'_, F> {
    fn forget(&mut self, at: u64, n: u64) {
        self.pages.retain(|page, _| !(at..at + n).contains(page));
        self.own.retain(|page, _| !(at..at + n).contains(page));
        self.mapped.retain(|page| !(at..at + n).contains(page));
    }

    fn relocate(&mut self, from: u64, pages: u64, to: u64, stays: bool) {
        let mut flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
        flags.set(RemapFlags::DONTUNMAP, stays);
        let got = self.space.mremap(from * PAGE, pages * PAGE, pages * PAGE, flags, to * PAGE);
        let expected = if from < to + pages && to < from + pages {
            Err(Error::Invalid)
        } else if !self.pages.contains_key(&from) {
            Err(Error::BadAddress)
        } else {
            Ok(to * PAGE)
        };
        assert_eq!(got, expected);
        if got.is_err() {
            return;
        }
        for n in 0..pages {
            let (old, new) = (from + n, to + n);
            // What is at the target of a gap stays.
            let Some(page) = self.pages.get(&old).copied() else { continue };
            let (own, mapped) = (self.own.remove(&old), self.mapped.remove(&old));
            self.forget(new, 1);
            if !stays {
                self.pages.remove(&old);
            }
            self.pages.insert(new, page);
            self.own.extend(own.map(|value| (new, value)));
            self.mapped.extend(mapped.then_some(new));
        }
    }
}

fn run<F: Format>(ops: &[Op]) {
    let machine = HostMachine::new(FRAMES);
    let zero = zero(&machine);
    let before = machine.free_frames();
    let mut world = World::<F>::new(&machine, zero.frame());
    for op in ops {
        world.apply(op);
        world.check(op);
    }
    world.check_reverse_maps();
    for process in 0..world.processes.len() {
        world.current = process;
        for at in PAGES.start..PAGES.end + 10 {
            world.access(at, None);
        }
    }
    world.check_reverse_maps();
    for (object, file) in world.objects.iter_mut().zip(&world.files.0) {
        let disk = || file.backing().words.lock().unwrap().clone();
        assert_eq!(disk(), object.disk, "what was written back");
        file.write_back(INDEX).unwrap();
        object.write_back(INDEX);
        assert_eq!(disk(), object.disk, "what is written back at last");
    }
    drop(world);
    assert_eq!(machine.free_frames(), before, "the end frees all");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 2 } else { 256 }, ..ProptestConfig::default() })]

    #[test]
    fn contents_and_counts_are_those_of_a_naive_model(ops in proptest::collection::vec(op(), 1..90)) {
        run::<X86_64>(&ops);
        run::<Arm64Software>(&ops);
    }
}

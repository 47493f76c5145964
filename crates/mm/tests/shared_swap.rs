//! Shared memory in swap: it leaves all who map it, and is found by each of them again.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock};
use std::thread;

use common::files::*;
use common::host::*;
use common::swap::*;
use common::{PAGE, SMALL};
use isotherm_mm::*;
use isotherm_page::{Folio, Frame};
use isotherm_pagetable::host::HostMachine;
use isotherm_pagetable::{Arm64Software, Format, Mapping, X86_64};
use isotherm_rcu::Epoch;
use proptest::prelude::*;

const SIZE: u64 = 12;
const AT: u64 = 40;

fn shared<'m, F: Format>(machine: &'m HostMachine) -> Arc<Files<'m, F>> {
    Files::new(machine, &[(ObjectKind::Shmem, SIZE), (ObjectKind::File, SIZE)])
}

fn new<'m, F: Format>(
    system: &System<'m, F, HostMachine>,
    files: &Arc<Files<'m, F>>,
    zero: Frame,
) -> FileSpace<'m, F> {
    let contents = Paged::in_system(system, 1, zero, Arc::clone(files)).unwrap();
    FileSpace::new(Epoch, RwLock::new(()), contents, SMALL)
}

fn fork<'m, F: Format>(space: &FileSpace<'m, F>, files: &Arc<Files<'m, F>>, zero: Frame) -> FileSpace<'m, F> {
    let system = space.contents().system().unwrap().clone();
    let contents = Paged::in_system(&system, 2, zero, Arc::clone(files)).unwrap();
    space.fork(RwLock::new(()), contents).unwrap()
}

fn get<F: Format>(machine: &HostMachine, space: &FileSpace<'_, F>, page: u64) -> Result<u64, FaultError> {
    word(machine, space, page * PAGE + WORD, None)
}

fn set<F: Format>(machine: &HostMachine, space: &FileSpace<'_, F>, page: u64, value: u64) {
    assert_eq!(word(machine, space, page * PAGE + WORD, Some(value)), Ok(value));
}

/// Pages of shared memory that are in memory, and in swap.
fn counts<F: Format>(files: &Files<'_, F>) -> (u64, u64) {
    (files.file(1).cached(), files.file(1).swapped())
}

fn rss<F: Format>(space: &FileSpace<'_, F>) -> (u64, u64, u64) {
    let Rss { anon, shmem, swap, .. } = space.contents().rss();
    (anon, shmem, swap)
}

#[test]
fn it_leaves_all_and_is_found_by_each() {
    let (machine, swap) = machine_with_swap(FRAMES, 64);
    let zero = zero(&machine);
    let before = machine.free_frames();
    let system = system::<X86_64>(&machine, &swap);
    let files = shared(&machine);
    let one = new(&system, &files, zero.frame());
    let two = new(&system, &files, zero.frame());
    one.mmap(&object(1, 0, SIZE, true, AT)).unwrap();
    two.mmap(&object(1, 4, SIZE - 4, true, 100)).unwrap();
    for page in 0..SIZE {
        set(&machine, &one, AT + page, 10 + page);
    }
    for page in 4..SIZE {
        assert_eq!(get(&machine, &two, 100 + page - 4), Ok(10 + page));
    }
    assert_eq!((rss(&one), rss(&two), counts(&files)), ((0, 12, 0), (0, 8, 0), (12, 0)));
    // By advice, as in Linux, what others map stays.
    let free = machine.free_frames();
    assert_eq!(one.page_out(AT * PAGE, SIZE * PAGE), Ok(4 * PAGE));
    assert_eq!((rss(&one), counts(&files), machine.free_frames()), ((0, 8, 0), (8, 4), free + 4));
    // Reclaim takes all. What is in swap is the object's: no space has an entry of it.
    for _ in 0..2 {
        system.age();
    }
    let done = system.reclaim(&*files, 100);
    assert_eq!((done.shmem, done.anon, done.file), (8, 0, 0), "{done:?}");
    assert_eq!((rss(&one), rss(&two), counts(&files)), ((0, 0, 0), (0, 0, 0), (0, 12)));
    assert_eq!((swap.area.used(), machine.free_frames()), (12, free + 12));
    assert_eq!(one.contents().mapping(AT * PAGE), Mapping::None);
    assert_eq!(get(&machine, &two, 101), Ok(15));
    assert_eq!((counts(&files), swap.area.used(), system.stats().refaults_anon), ((1, 11), 11, 1));
    set(&machine, &two, 101, 77);
    assert_eq!(get(&machine, &one, AT + 5), Ok(77), "it is one page");
    assert_eq!((rss(&one), rss(&two), counts(&files)), ((0, 1, 0), (0, 1, 0), (1, 11)));
    // Who maps it later, or copies it, or reads it without a mapping, finds it too.
    let three = new(&system, &files, zero.frame());
    three.mmap(&object(1, 0, SIZE, false, 60)).unwrap();
    set(&machine, &three, 60, 5);
    assert_eq!((get(&machine, &three, 60), get(&machine, &one, AT)), (Ok(5), Ok(10)));
    let read = |index: u64| {
        files.file(1).with_page(index, false, |frame| machine.read(frame.address() + WORD).unwrap()).unwrap()
    };
    assert_eq!((read(9), counts(&files)), (19, (3, 9)));
    // What will be needed comes back by advice.
    assert_eq!(one.will_need(AT * PAGE, SIZE * PAGE), Ok(9 * PAGE));
    assert_eq!((counts(&files), swap.area.used()), ((12, 0), 0));
    drop((one, two, three, system, files));
    assert_eq!(machine.free_frames(), before);
}

#[test]
fn forks_truncation_and_the_end() {
    let (machine, swap) = machine_with_swap(FRAMES, 64);
    let zero = zero(&machine);
    let before = machine.free_frames();
    let system = system::<X86_64>(&machine, &swap);
    let files = shared(&machine);
    let space = new(&system, &files, zero.frame());
    space.mmap(&object(1, 0, SIZE, true, AT)).unwrap();
    space.mmap(&object(1, 0, SIZE, false, 60)).unwrap();
    for page in 0..SIZE {
        set(&machine, &space, AT + page, page);
    }
    set(&machine, &space, 62, 100);
    set(&machine, &space, 63, 101);
    let child = fork(&space, &files, zero.frame());
    while system.reclaim(&*files, 100).total() > 0 {}
    // Copies are the spaces' own: of these each has a swap entry.
    assert_eq!((rss(&space), rss(&child), counts(&files)), ((0, 0, 2), (0, 0, 2), (0, SIZE)));
    assert_eq!(swap.area.used(), SIZE + 2);
    set(&machine, &child, AT + 1, 50);
    assert_eq!((get(&machine, &space, AT + 1), get(&machine, &space, 61)), (Ok(50), Ok(50)));
    assert_eq!((get(&machine, &child, 62), get(&machine, &child, AT + 2)), (Ok(100), Ok(2)));
    // What is cut off is gone, from swap too, and begins anew as zeros.
    files.file(1).resize(3);
    assert_eq!((counts(&files), swap.area.used()), ((2, 1), 2));
    assert_eq!(space.fault((AT + 3) * PAGE, Access::Read), Err(FaultError::Bus));
    files.file(1).resize(SIZE);
    assert_eq!(get(&machine, &space, AT + 7), Ok(0));
    assert_eq!(get(&machine, &space, AT), Ok(0), "as it was written");
    while system.reclaim(&*files, 100).total() > 0 {}
    // It lives as long as the object, mapped or not.
    drop((space, child));
    assert_eq!(counts(&files), (0, 4));
    let late = new(&system, &files, zero.frame());
    late.mmap(&object(1, 0, SIZE, true, 200)).unwrap();
    assert_eq!((get(&machine, &late, 201), get(&machine, &late, 202)), (Ok(50), Ok(2)));
    drop((late, system));
    assert!(swap.area.used() > 0);
    drop(files);
    assert_eq!((swap.area.used(), machine.free_frames()), (0, before));
}

#[test]
fn swap_that_fails_loses_nothing() {
    let (machine, swap) = machine_with_swap(FRAMES, 5);
    let zero = zero(&machine);
    let system = system::<X86_64>(&machine, &swap);
    let files = shared(&machine);
    let space = new(&system, &files, zero.frame());
    space.mmap(&object(1, 0, SIZE, true, AT)).unwrap();
    let fill = |round: u64| {
        for page in 0..SIZE {
            set(&machine, &space, AT + page, round + page);
        }
    };
    fill(10);
    swap.flaky.writes_fail.store(true, Ordering::Relaxed);
    assert_eq!(space.page_out(AT * PAGE, SIZE * PAGE), Ok(0));
    assert_eq!((counts(&files), swap.area.used()), ((SIZE, 0), 0));
    assert_eq!(files.file(1).evict(0..SIZE), 0, "it is not clean for that");
    fill(20);
    swap.flaky.writes_fail.store(false, Ordering::Relaxed);
    assert_eq!(space.page_out(AT * PAGE, SIZE * PAGE), Ok(5 * PAGE), "as much as there is room for");
    swap.flaky.reads_fail.store(true, Ordering::Relaxed);
    assert_eq!(space.fault(AT * PAGE, Access::Read), Err(FaultError::Bus));
    assert_eq!(space.fault(AT * PAGE, Access::Write), Err(FaultError::Bus));
    assert_eq!(space.will_need(AT * PAGE, PAGE), Ok(0));
    assert_eq!((counts(&files), swap.area.used()), ((SIZE - 5, 5), 5));
    swap.flaky.reads_fail.store(false, Ordering::Relaxed);
    // Without a frame it stays where it is.
    machine.set_budget(0, 0);
    let done = space.fault(AT * PAGE, Access::Read);
    machine.set_budget(u64::MAX, u64::MAX);
    assert_eq!((done, counts(&files).1), (Err(FaultError::NoMemory), 5));
    for page in 0..SIZE {
        assert_eq!(get(&machine, &space, AT + page), Ok(20 + page));
    }
    assert_eq!((counts(&files), swap.area.used()), ((SIZE, 0), 0));
}

#[test]
fn what_must_stay_stays() {
    let (machine, swap) = machine_with_swap(FRAMES, 64);
    let zero = zero(&machine);
    let system = system::<X86_64>(&machine, &swap);
    let files = shared(&machine);
    let space = new(&system, &files, zero.frame());
    space.mmap(&object(1, 0, SIZE, true, AT)).unwrap();
    for page in 0..4 {
        set(&machine, &space, AT + page, page);
    }
    space.mlock(AT * PAGE, PAGE, false).unwrap();
    let frame = |page: u64| match space.contents().mapping((AT + page) * PAGE) {
        Mapping::Page { frame, .. } => frame,
        other => panic!("{other:?}"),
    };
    let pinned = Folio::get(&machine, frame(1)).unwrap().pin();
    let held = Folio::get(&machine, frame(2)).unwrap();
    while system.reclaim(&*files, 100).total() > 0 {}
    assert_eq!(counts(&files), (3, 1));
    drop((pinned, held));
    space.munlock(AT * PAGE, PAGE).unwrap();
    while system.reclaim(&*files, 100).total() > 0 {}
    assert_eq!(counts(&files), (0, 4));
    for page in 0..4 {
        assert_eq!(get(&machine, &space, AT + page), Ok(page));
    }
    // Without swap nothing leaves; nor to the swap of another system than that which has some of it.
    space.page_out(AT * PAGE, PAGE).unwrap();
    let other = machine_with_swap(8, 64).1;
    let elsewhere = System::<X86_64, _>::new(&machine, FRAMES, Some(other.area)).unwrap();
    let without = System::<X86_64, _>::new(&machine, FRAMES, None).unwrap();
    for system in [&elsewhere, &without] {
        let space = new(system, &files, zero.frame());
        space.mmap(&object(1, 0, SIZE, true, AT)).unwrap();
        assert_eq!(get(&machine, &space, AT + 5), Ok(0));
        assert_eq!(space.page_out((AT + 5) * PAGE, PAGE), Ok(0));
        assert_eq!(system.reclaim(&*files, 100).total(), 0);
        assert_eq!(get(&machine, &space, AT), Ok(0));
    }
}

/// A page in swap is not missing: who resolves faults maps it as one that the object has.
#[test]
fn faults_that_somebody_else_resolves() {
    let (machine, swap) = machine_with_swap(FRAMES, 64);
    let zero = zero(&machine);
    let system = system::<X86_64>(&machine, &swap);
    let files = shared(&machine);
    let space = new(&system, &files, zero.frame());
    space.mmap(&object(1, 0, SIZE, true, AT)).unwrap();
    set(&machine, &space, AT, 7);
    set(&machine, &space, AT + 1, 8);
    space.page_out(AT * PAGE, 2 * PAGE).unwrap();
    assert_eq!(counts(&files), (0, 2));
    space.register(AT * PAGE, SIZE * PAGE, UserFaults::MISSING).unwrap();
    assert_eq!(space.fill_zeros(AT * PAGE), Err(Error::Exists));
    assert_eq!(get(&machine, &space, AT), Ok(7));
    assert_eq!(space.fault((AT + 2) * PAGE, Access::Read), Err(FaultError::Missing));
    space.register(AT * PAGE, SIZE * PAGE, UserFaults::MISSING | UserFaults::MINOR).unwrap();
    assert_eq!(space.fault((AT + 1) * PAGE, Access::Read), Err(FaultError::Minor));
    space.map_cached((AT + 1) * PAGE).unwrap();
    assert_eq!((get(&machine, &space, AT + 1), swap.area.used()), (Ok(8), 0));
}

#[derive(Clone, Debug)]
enum Op {
    Map(usize, bool, u64, u64),
    Unmap(usize, u64, u64),
    Move(usize, u64, u64),
    Read(usize, u64),
    Write(usize, u64, u64),
    Put(u64, u64),
    PageOut(usize, u64, u64),
    Reclaim(u64),
    Age,
    Fork(usize),
    Exit(usize),
    Truncate(u64),
    Fail(bool, bool),
}

fn op() -> impl Strategy<Value = Op> {
    let (space, page, pages) = (0..3usize, 40..56u64, 1..9u64);
    prop_oneof![
        3 => (space.clone(), any::<bool>(), page.clone(), 0..SIZE).prop_map(|(s, own, at, of)| Op::Map(s, own, at, of)),
        1 => (space.clone(), page.clone(), pages.clone()).prop_map(|(s, at, n)| Op::Unmap(s, at, n)),
        1 => (space.clone(), page.clone(), 60..70u64).prop_map(|(s, at, to)| Op::Move(s, at, to)),
        5 => (space.clone(), page.clone()).prop_map(|(s, at)| Op::Read(s, at)),
        8 => (space.clone(), page.clone(), 1..u64::MAX).prop_map(|(s, at, value)| Op::Write(s, at, value)),
        1 => (0..SIZE, 1..u64::MAX).prop_map(|(index, value)| Op::Put(index, value)),
        3 => (space.clone(), page, pages).prop_map(|(s, at, n)| Op::PageOut(s, at, n)),
        3 => (1..10u64).prop_map(Op::Reclaim),
        1 => Just(Op::Age),
        1 => space.clone().prop_map(Op::Fork),
        1 => space.prop_map(Op::Exit),
        1 => (0..=SIZE).prop_map(Op::Truncate),
        1 => (any::<bool>(), any::<bool>()).prop_map(|(write, read)| Op::Fail(write, read)),
    ]
}

/// What a page of a space is: of the object, with its copy if it is private and was written to.
#[derive(Clone, Copy)]
struct Page {
    index: u64,
    shared: bool,
    copy: Option<u64>,
}

type Naive = BTreeMap<u64, Page>;

fn expected(page: &Page, object: &[u64]) -> Result<u64, FaultError> {
    match (page.copy, object.get(page.index as usize)) {
        (_, None) => Err(FaultError::Bus),
        (Some(copy), _) => Ok(copy),
        (None, Some(&word)) => Ok(word),
    }
}

fn run<F: Format>(ops: &[Op]) {
    let (machine, swap) = machine_with_swap(FRAMES, 24);
    let zero = zero(&machine);
    let before = machine.free_frames();
    let system = system::<F>(&machine, &swap);
    let files = shared::<F>(&machine);
    let file = files.file(1);
    let mut spaces = vec![(new(&system, &files, zero.frame()), Naive::new())];
    let mut words = vec![0; SIZE as usize];
    for op in ops {
        let len = spaces.len();
        match *op {
            Op::Map(s, shared, at, first) => {
                let (space, naive) = &mut spaces[s % len];
                space.mmap(&object(1, first, 6, shared, at)).unwrap();
                naive.extend((0..6).map(|n| (at + n, Page { index: first + n, shared, copy: None })));
            }
            Op::Unmap(s, at, n) => {
                let (space, naive) = &mut spaces[s % len];
                space.munmap(at * PAGE, n * PAGE).unwrap();
                naive.retain(|page, _| !(at..at + n).contains(page));
            }
            Op::Move(s, from, to) => {
                let (space, naive) = &mut spaces[s % len];
                let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
                if space.mremap(from * PAGE, PAGE, PAGE, flags, to * PAGE).is_ok() {
                    let page = naive.remove(&from).unwrap();
                    naive.insert(to, page);
                }
            }
            Op::Read(s, at) => {
                let (space, naive) = &spaces[s % len];
                let Some(page) = naive.get(&at) else { continue };
                let got = get(&machine, space, at);
                let fails = swap.flaky.reads_fail.load(Ordering::Relaxed) && got == Err(FaultError::Bus);
                assert!(fails || got == expected(page, &words), "{got:?} of {op:?}");
            }
            Op::Write(s, at, value) => {
                let (space, naive) = &mut spaces[s % len];
                let Some(page) = naive.get_mut(&at) else { continue };
                let got = word(&machine, space, at * PAGE + WORD, Some(value));
                let beyond = expected(page, &words).is_err();
                match got {
                    Ok(_) if page.shared => words[page.index as usize] = value,
                    Ok(_) => page.copy = Some(value),
                    Err(why) => {
                        assert_eq!(why, FaultError::Bus);
                        assert!(beyond || swap.flaky.reads_fail.load(Ordering::Relaxed), "{op:?}");
                    }
                }
                assert!(got.is_err() || !beyond, "{op:?}");
            }
            Op::Put(index, value) => {
                let put = |frame: Frame| machine.write(frame.address() + WORD, value).unwrap();
                if file.with_page(index, true, put).is_ok() {
                    words[index as usize] = value;
                }
            }
            Op::PageOut(s, at, n) => {
                let _ = spaces[s % len].0.page_out(at * PAGE, n * PAGE);
            }
            Op::Reclaim(n) => {
                system.reclaim(&*files, n);
            }
            Op::Age => {
                system.age();
            }
            Op::Fork(s) => {
                let (space, naive) = &spaces[s % len];
                let child = (fork(space, &files, zero.frame()), naive.clone());
                if len < 3 {
                    spaces.push(child);
                }
            }
            Op::Exit(s) if len > 1 => drop(spaces.remove(s % len)),
            Op::Exit(_) => {}
            Op::Truncate(pages) => {
                file.resize(pages);
                words.resize(pages as usize, 0);
                for (_, naive) in &mut spaces {
                    naive.values_mut().filter(|page| page.index >= pages).for_each(|page| page.copy = None);
                }
            }
            Op::Fail(write, read) => {
                swap.flaky.writes_fail.store(write, Ordering::Relaxed);
                swap.flaky.reads_fail.store(read, Ordering::Relaxed);
            }
        }
        // What is counted is what is there.
        let held: u64 = (1..=24).map(|swap_entry| u64::from(swap.area.swap_count(swap_entry))).sum();
        let swap_entries: u64 = spaces.iter().map(|(space, _)| space.contents().rss().swap).sum();
        assert_eq!(held, swap_entries + file.swapped(), "{op:?}");
        for (space, _) in &spaces {
            let mut mapped = [0, 0];
            let each = |run: isotherm_pagetable::MappedRun| {
                if let Mapping::Page { frame, .. } = run.mapping {
                    let kind = Folio::get(&machine, frame).unwrap().kind();
                    mapped[usize::from(kind == isotherm_page::FolioKind::File)] += run.pages;
                }
            };
            space.contents().mappings(0..SMALL.end, each).unwrap();
            assert_eq!([rss(space).0, rss(space).1], mapped, "{op:?}");
        }
    }
    swap.flaky.reads_fail.store(false, Ordering::Relaxed);
    for (space, naive) in &spaces {
        for (&at, page) in naive {
            assert_eq!(get(&machine, space, at), expected(page, &words), "page {at}");
        }
    }
    drop((spaces, system));
    drop(files);
    assert_eq!((machine.free_frames(), swap.area.used()), (before, 0));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 2 } else { 192 }, ..ProptestConfig::default() })]

    #[test]
    fn shared_memory_is_that_of_a_naive_model(ops in proptest::collection::vec(op(), 1..80)) {
        run::<X86_64>(&ops);
        run::<Arm64Software>(&ops);
    }
}

/// Threads that write to shared memory by `write`, and read it, each its own pages, while it is swapped out and cut off behind them,
/// until enough has left.
#[test]
fn threads_beside_reclaim() {
    const ENOUGH: u64 = if cfg!(miri) { 2 } else { 300 };
    let (machine, swap) = machine_with_swap(64, 64);
    let zero = zero(&machine);
    let system = System::<X86_64, _>::new(&machine, 64, Some(Arc::clone(&swap.area))).unwrap();
    let files = shared(&machine);
    let space = new(&system, &files, zero.frame());
    space.mmap(&object(1, 0, SIZE, true, AT)).unwrap();
    let file = files.file(1);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..2u64)
            .map(|worker| {
                let (space, machine, done) = (&space, &machine, &done);
                scope.spawn(move || {
                    for round in 1.. {
                        for page in (worker..8).step_by(2) {
                            let value = round * 100 + page;
                            let put = |frame: Frame| machine.write(frame.address() + WORD, value).unwrap();
                            file.with_page(page, true, put).unwrap();
                            // Mapped, so that reclaim knows it.
                            space.fault((AT + page) * PAGE, Access::Read).unwrap();
                            thread::yield_now();
                            let read = |frame: Frame| machine.read(frame.address() + WORD).unwrap();
                            assert_eq!(file.with_page(page, false, read), Ok(value));
                        }
                        if done.load(Ordering::Relaxed) {
                            return;
                        }
                    }
                })
            })
            .collect();
        let mut left = 0;
        for round in 0.. {
            left += system.reclaim(&*files, 8).shmem;
            if left >= ENOUGH || workers.iter().any(|worker| worker.is_finished()) {
                break;
            }
            file.resize(if round % 2 == 0 { 9 } else { SIZE });
            thread::yield_now();
        }
        done.store(true, Ordering::Relaxed);
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    });
    assert_eq!(swap.area.used(), file.swapped());
    assert_eq!(file.cached() + file.swapped(), 8);
    drop((space, system, files));
    assert_eq!(swap.area.used(), 0);
}

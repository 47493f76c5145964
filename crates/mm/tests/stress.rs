//! Random operations by several threads in one space, forks of it, swap-out, aging and migration from below, and memory that is short: each
//! thread compares its pages with a naive model of them; at rest what is resident, in swap and free is exact.
#![cfg(not(loom))]
#![cfg(not(miri))]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::cpus::*;
use common::host::zero;
use common::swap::machine_with_swap;
use common::{PAGE, anonymous};
use isotherm_mm::*;
use isotherm_page::{Frame, Order};
use isotherm_pagetable::{Mapping, X86_64};

const WORKERS: u64 = 3;
/// Pages of each worker's own: side by side, so that VMAs of two workers merge.
const EACH: u64 = 100;
const FIRST: u64 = 100;
/// Frames for pages and tables: fewer than all workers and a child can use, so that faults reclaim.
const FRAMES: u64 = 320;
const SLOTS: u32 = 2048;

/// A page in the naive model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Page {
    Unmapped,
    /// What it holds, once it was written to; and whether it may be.
    Mapped(Option<u64>, bool),
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

struct Worker<'a, 'm> {
    cpu: &'m Cpus,
    space: &'a CpuSpace<'m>,
    zero: Frame,
    first: u64,
    pages: Vec<Page>,
    random: Random,
    operations: u64,
}

impl Worker<'_, '_> {
    /// A stretch of its own pages.
    fn stretch(&mut self) -> (usize, usize) {
        let start = self.random.below(EACH);
        let len = (1 + self.random.below(12)).min(EACH - start);
        (start as usize, (start + len) as usize)
    }

    fn address(&self, page: usize) -> u64 {
        (self.first + page as u64) * PAGE
    }

    /// Looks at a page, or writes to it; in the space or in a child of it.
    fn look(&self, space: &CpuSpace<'_>, page: usize, write: Option<u64>) {
        let (at, was) = (self.first + page as u64, self.pages[page]);
        let expected = match (was, write) {
            (Page::Unmapped, _) => Err(FaultError::NotMapped),
            (Page::Mapped(_, false), Some(_)) => Err(FaultError::NotPermitted),
            (Page::Mapped(..), Some(value)) => Ok(value),
            (Page::Mapped(value, _), None) => Ok(value.unwrap_or(0)),
        };
        // Others may have all frames in hand.
        let found = loop {
            match cpu_word(self.cpu, space, at, write) {
                Err(FaultError::NoMemory) => thread::yield_now(),
                found => break found,
            }
        };
        assert_eq!(found, expected, "page {at}, {was:?}, write {write:?}");
    }

    fn step(&mut self) {
        self.operations += 1;
        let (start, end) = self.stretch();
        let (at, bytes) = (self.address(start), (end - start) as u64 * PAGE);
        let is_whole = self.pages[start..end].iter().all(|page| *page != Page::Unmapped);
        match self.random.below(100) {
            0..6 => {
                self.space.mmap(&anonymous((end - start) as u64).at(at)).unwrap();
                self.pages[start..end].fill(Page::Mapped(None, true));
            }
            6..9 => {
                self.space.munmap(at, bytes).unwrap();
                self.pages[start..end].fill(Page::Unmapped);
            }
            9..15 if is_whole => {
                let write = self.random.below(2) == 0;
                self.space
                    .mprotect(at, bytes, if write { Prot::READ | Prot::WRITE } else { Prot::READ })
                    .unwrap();
                for page in &mut self.pages[start..end] {
                    if let Page::Mapped(_, may) = page {
                        *may = write;
                    }
                }
            }
            15..18 if is_whole => {
                self.space.discard(at, bytes).unwrap();
                for page in &mut self.pages[start..end] {
                    if let Page::Mapped(value, _) = page {
                        *value = None;
                    }
                }
            }
            18..21 if is_whole => self.relocate(start, end),
            21..27 if is_whole => {
                let _ = self.space.page_out(at, bytes);
            }
            27..28 => self.fork(start, end),
            28..60 => {
                for page in start..end {
                    self.look(self.space, page, None);
                }
            }
            _ => {
                for page in start..end {
                    let value = self.random.next() | 1;
                    self.look(self.space, page, Some(value));
                    if let Page::Mapped(was, true) = &mut self.pages[page] {
                        *was = Some(value);
                    }
                }
            }
        }
    }

    /// Moves a stretch to another that it does not overlap.
    fn relocate(&mut self, start: usize, end: usize) {
        let len = end - start;
        let to = self.random.below(EACH - len as u64 + 1) as usize;
        if to < end && start < to + len {
            return;
        }
        let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
        let bytes = len as u64 * PAGE;
        // Pages that may be written and others are different VMAs, which move together.
        let (from, to_address) = (self.address(start), self.address(to));
        while let Err(why) = self.space.mremap(from, bytes, bytes, flags, to_address) {
            // There may be no frame for a table just now. Room at the target was made the first time.
            assert_eq!(why, Error::NoMemory);
            thread::yield_now();
        }
        self.pages.copy_within(start..end, to);
        self.pages[start..end].fill(Page::Unmapped);
    }

    /// A child has what its parent had, and what it writes is its own.
    fn fork(&mut self, start: usize, end: usize) {
        let child = match cpu_fork(self.space, self.zero) {
            Ok(child) => child,
            Err(Error::NoMemory) => return,
            Err(why) => panic!("{why}"),
        };
        for page in start..end {
            self.look(&child, page, None);
            let value = self.random.next() | 1;
            self.look(&child, page, Some(value));
            self.look(self.space, page, None);
        }
    }
}

/// What the machine does meanwhile: pages grow older, some leave, and some move to other frames.
fn from_below<'m>(
    cpu: &'m Cpus,
    system: &System<'m, X86_64, Cpus>,
    space: &CpuSpace<'m>,
    seed: u64,
    done: &AtomicBool,
) {
    let mut random = Random(seed);
    while !done.load(Ordering::Relaxed) {
        match random.below(6) {
            0 => drop(system.age()),
            1 => drop(system.reclaim(&(), 1 + random.below(40))),
            2 | 3 => {
                let page = FIRST + random.below(WORKERS * EACH);
                if let Mapping::Page { frame, .. } = space.contents().mapping(page * PAGE)
                    && let Some(to) = cpu.take(Order::BASE)
                {
                    let _ = system.migrate(&(), frame, to);
                }
            }
            _ => thread::sleep(Duration::from_micros(random.below(500))),
        }
    }
}

/// One run on a new machine; how many operations it were.
fn stress(seed: u64, steps: u64) -> u64 {
    let (machine, swap) = machine_with_swap(FRAMES, SLOTS);
    let machine = Cpus::new(machine);
    let cpu = &machine;
    let zero = zero(&machine.host);
    let before = machine.host.free_frames();
    let system: System<'_, X86_64, _> = System::new(cpu, FRAMES, Some(swap.area.clone())).unwrap();
    let space = cpu_space(&system, zero.frame());
    let done = AtomicBool::new(false);
    let workers = thread::scope(|scope| {
        let below = scope.spawn(|| from_below(cpu, &system, &space, seed, &done));
        let workers: Vec<_> = (0..WORKERS)
            .map(|n| {
                let (space, zero) = (&space, zero.frame());
                scope.spawn(move || {
                    let mut worker = Worker {
                        cpu,
                        space,
                        zero,
                        first: FIRST + n * EACH,
                        pages: vec![Page::Unmapped; EACH as usize],
                        random: Random(seed ^ (n + 1) << 56),
                        operations: 0,
                    };
                    for _ in 0..steps {
                        worker.step();
                    }
                    (worker.operations, worker.pages)
                })
            })
            .collect();
        let workers: Vec<_> = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
        done.store(true, Ordering::Relaxed);
        below.join().unwrap();
        workers
    });
    let written =
        |pages: &Vec<Page>| pages.iter().filter(|page| matches!(page, Page::Mapped(Some(_), _))).count();
    let pages: usize = workers.iter().map(|(_, pages)| written(pages)).sum();
    let rss = space.contents().rss();
    assert_eq!(rss.anon + rss.swap, pages as u64, "seed {seed}: {rss:?}");
    assert_eq!(swap.area.used(), rss.swap, "seed {seed}");
    drop((space, system));
    assert_eq!(swap.area.used(), 0, "seed {seed}");
    assert_eq!(machine.host.free_frames(), before, "seed {seed}");
    workers.iter().map(|(operations, _)| operations).sum()
}

#[test]
fn threads_find_their_pages_as_a_naive_model_has_them() {
    for seed in 1..=4 {
        stress(seed, 3000);
    }
}

/// As long as `ISOTHERM_STRESS_MINUTES` says, 30 minutes if it says nothing.
#[test]
#[ignore = "takes half an hour: cargo test --release -p isotherm-mm --test stress -- --ignored --nocapture"]
fn for_long() {
    let minutes = std::env::var("ISOTHERM_STRESS_MINUTES").ok();
    let minutes: f64 = minutes.map_or(30.0, |minutes| minutes.parse().expect("a number of minutes"));
    let (start, mut seed, mut operations) = (Instant::now(), 100, 0);
    while start.elapsed() < Duration::from_secs_f64(minutes * 60.0) {
        seed += 1;
        operations += stress(seed, 20_000);
    }
    println!("{operations} operations in {} runs, {:.0?}", seed - 100, start.elapsed());
}

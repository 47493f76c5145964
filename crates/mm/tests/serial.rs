//! Threads that do operations on the same pages, beside reclaim and migration: each operation notes the time before and after it, and
//! what each returned must be what a naive model of a page returns for some order in which no operation comes before one that had
//! ended when it began (linearizability: Herlihy and Wing 1990; the search is that of Wing and Gong 1993).
#![cfg(not(loom))]
#![cfg(not(miri))]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use std::collections::HashSet;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::cpus::*;
use common::host::zero;
use common::swap::machine_with_swap;
use common::{PAGE, anonymous};
use isotherm_mm::*;
use isotherm_page::{Frame, Order};
use isotherm_pagetable::{Mapping, X86_64};

const THREADS: u64 = 3;
/// Operations of a thread in a round: all of a round are ordered anew.
const EACH: usize = 5;
const FIRST: u64 = 100;
const PAGES: u64 = 4;
const FRAMES: u64 = 96;

/// A page in the naive model: what it holds, and whether it may be written; `None` if it is not mapped.
type State = Option<(u64, bool)>;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Act {
    Read,
    /// In a child that is forked for it.
    ReadInChild,
    Write(u64),
    Map,
    Unmap,
    Discard,
    Protect(bool),
    PageOut,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Returned {
    Word(Result<u64, FaultError>),
    Done(Result<(), Error>),
}

#[derive(Clone, Copy, Debug)]
struct Event {
    page: u64,
    act: Act,
    returned: Returned,
    began: u64,
    ended: u64,
}

/// What the naive model does.
fn model(state: State, act: Act) -> (State, Returned) {
    let done = |new| (new, Returned::Done(Ok(())));
    match (act, state) {
        (Act::Map, _) => done(Some((0, true))),
        (Act::Unmap, _) => done(None),
        // What could leave has, or has not.
        (Act::PageOut, _) => done(state),
        (Act::Read | Act::ReadInChild | Act::Write(_), None) => {
            (state, Returned::Word(Err(FaultError::NotMapped)))
        }
        (Act::Read | Act::ReadInChild, Some((value, _))) => (state, Returned::Word(Ok(value))),
        (Act::Write(_), Some((_, false))) => (state, Returned::Word(Err(FaultError::NotPermitted))),
        (Act::Write(new), Some(_)) => (Some((new, true)), Returned::Word(Ok(new))),
        (Act::Discard | Act::Protect(_), None) => (state, Returned::Done(Err(Error::Hole))),
        (Act::Discard, Some((_, write))) => done(Some((0, write))),
        (Act::Protect(write), Some((value, _))) => done(Some((value, write))),
    }
}

/// The states that a page may be in after these operations, if it was in one of `states` before.
fn orders(events: &[Event], states: &HashSet<State>) -> HashSet<State> {
    let all = (1_u32 << events.len()) - 1;
    let (mut seen, mut last) = (HashSet::new(), HashSet::new());
    let mut open: Vec<(u32, State)> = states.iter().map(|&state| (all, state)).collect();
    while let Some((left, state)) = open.pop() {
        if !seen.insert((left, state)) {
            continue;
        }
        if left == 0 {
            last.insert(state);
            continue;
        }
        let those = || (0..events.len()).filter(|n| left & 1 << n != 0);
        let first_end = those().map(|n| events[n].ended).min().unwrap();
        for n in those().filter(|&n| events[n].began < first_end) {
            let (new, returned) = model(state, events[n].act);
            if returned == events[n].returned {
                open.push((left & !(1 << n), new));
            }
        }
    }
    last
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}

struct World<'a, 'm> {
    cpu: &'m Cpus,
    space: &'a CpuSpace<'m>,
    zero: Frame,
    clock: AtomicU64,
}

impl World<'_, '_> {
    fn now(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    /// Repeats what found no frame, as others may have all in hand.
    fn word(&self, space: &CpuSpace<'_>, page: u64, write: Option<u64>) -> Returned {
        loop {
            match cpu_word(self.cpu, space, page, write) {
                Err(FaultError::NoMemory) => thread::yield_now(),
                found => return Returned::Word(found),
            }
        }
    }

    fn act(&self, page: u64, act: Act) -> Returned {
        let at = page * PAGE;
        let done = |result: Result<(), Error>| Returned::Done(result);
        match act {
            Act::Read => self.word(self.space, page, None),
            Act::Write(value) => self.word(self.space, page, Some(value)),
            Act::ReadInChild => match cpu_fork(self.space, self.zero) {
                Ok(child) => self.word(&child, page, None),
                // Another look at the page then.
                Err(_) => self.word(self.space, page, None),
            },
            Act::Map => done(self.space.mmap(&anonymous(1).at(at)).map(drop)),
            Act::Unmap => done(self.space.munmap(at, PAGE)),
            Act::Discard => done(self.space.discard(at, PAGE)),
            Act::Protect(write) => {
                let prot = if write { Prot::READ | Prot::WRITE } else { Prot::READ };
                done(self.space.mprotect(at, PAGE, prot))
            }
            Act::PageOut => {
                let _ = self.space.page_out(at, PAGE);
                done(Ok(()))
            }
        }
    }

    fn round(&self, random: &mut Random, thread: u64, round: u64) -> Vec<Event> {
        let mut events = Vec::new();
        for n in 0..EACH as u64 {
            let page = FIRST + random.below(PAGES);
            let act = match random.below(16) {
                0..5 => Act::Read,
                5 => Act::ReadInChild,
                6..11 => Act::Write((round * THREADS + thread) * EACH as u64 + n + 1),
                11 => Act::Map,
                12 => Act::Unmap,
                13 => Act::Discard,
                14 => Act::Protect(random.below(2) == 0),
                _ => Act::PageOut,
            };
            let began = self.now();
            let returned = self.act(page, act);
            events.push(Event { page, act, returned, began, ended: self.now() });
        }
        events
    }
}

/// Pages grow older, leave, and move to other frames.
fn from_below<'m>(world: &World<'_, 'm>, system: &System<'m, X86_64, Cpus>, seed: u64, done: &AtomicBool) {
    let mut random = Random(seed);
    while !done.load(Ordering::Relaxed) {
        match random.below(4) {
            0 => drop(system.age()),
            1 => drop(system.reclaim(&(), 1 + random.below(3))),
            2 => {
                let page = FIRST + random.below(PAGES);
                if let Mapping::Page { frame, .. } = world.space.contents().mapping(page * PAGE)
                    && let Some(to) = world.cpu.take(Order::BASE)
                {
                    let _ = system.migrate(&(), frame, to);
                }
            }
            _ => thread::yield_now(),
        }
    }
}

/// So many rounds on a new machine.
fn run(seed: u64, rounds: u64) {
    let (machine, swap) = machine_with_swap(FRAMES, 256);
    let machine = Cpus::new(machine);
    let zero = zero(&machine.host);
    let before = machine.host.free_frames();
    let system: System<'_, X86_64, _> = System::new(&machine, FRAMES, Some(swap.area.clone())).unwrap();
    let space = cpu_space(&system, zero.frame());
    let world = World { cpu: &machine, space: &space, zero: zero.frame(), clock: AtomicU64::new(0) };
    let (done, gate) = (AtomicBool::new(false), Barrier::new(THREADS as usize));
    let mut histories: Vec<Vec<Vec<Event>>> = thread::scope(|scope| {
        let (world, gate) = (&world, &gate);
        let below = scope.spawn(|| from_below(world, &system, seed, &done));
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                scope.spawn(move || {
                    let mut random = Random(seed ^ (thread + 1) << 56);
                    let round = |round| {
                        gate.wait();
                        world.round(&mut random, thread, round)
                    };
                    (0..rounds).map(round).collect()
                })
            })
            .collect();
        let histories = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        done.store(true, Ordering::Relaxed);
        below.join().unwrap();
        histories
    });
    let mut states: Vec<HashSet<State>> = (0..PAGES).map(|_| HashSet::from([None])).collect();
    for round in 0..rounds as usize {
        let events: Vec<Event> =
            histories.iter_mut().flat_map(|history| std::mem::take(&mut history[round])).collect();
        for (page, states) in (FIRST..).zip(&mut states) {
            let of: Vec<Event> = events.iter().filter(|event| event.page == page).copied().collect();
            let after = orders(&of, states);
            assert!(
                !after.is_empty(),
                "seed {seed}, round {round}: no order of {of:#?} explains it, from {states:?}"
            );
            *states = after;
        }
    }
    drop((space, system));
    assert_eq!((machine.host.free_frames(), swap.area.used()), (before, 0), "seed {seed}");
}

#[test]
fn what_threads_see_has_an_order() {
    for seed in 1..=4 {
        run(seed, 1500);
    }
}

/// An order that none explains is found.
#[test]
fn an_impossible_history_is_found() {
    let event = |act, returned, began, ended| Event { page: FIRST, act, returned, began, ended };
    let word = |value| Returned::Word(Ok(value));
    let write = event(Act::Write(7), word(7), 2, 5);
    let states = HashSet::from([Some((1, true))]);
    // Beside the write either is right; after it only one.
    for (value, began, ended, possible) in
        [(1, 3, 4, true), (7, 3, 4, true), (1, 6, 7, false), (7, 0, 1, false)]
    {
        let events = [write, event(Act::Read, word(value), began, ended)];
        assert_eq!(!orders(&events, &states).is_empty(), possible, "{value} from {began} to {ended}");
    }
}

/// As long as `ISOTHERM_STRESS_MINUTES` says, 30 minutes if it says nothing.
#[test]
#[ignore = "takes half an hour: cargo test --release -p isotherm-mm --test serial -- --ignored --nocapture"]
fn for_long() {
    let minutes = std::env::var("ISOTHERM_STRESS_MINUTES").ok();
    let minutes: f64 = minutes.map_or(30.0, |minutes| minutes.parse().expect("a number of minutes"));
    let (start, mut seed) = (Instant::now(), 100);
    while start.elapsed() < Duration::from_secs_f64(minutes * 60.0) {
        seed += 1;
        run(seed, 10_000);
    }
    println!("{} rounds, {:.0?}", (seed - 100) * 10_000, start.elapsed());
}

//! A program's memory by ports: against a naive model, and by threads beside one who takes pages away.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use common::host::{FRAMES, Process, Space, new_space, zero};
use common::swap::{machine_with_swap, space_in, system};
use common::{PAGE, anonymous};
use isotherm_mm::*;
use isotherm_pagetable::X86_64;
use isotherm_pagetable::host::HostMachine;
use proptest::prelude::*;

const PORTS: usize = 4;

type Tlbs = SoftTlbs<PORTS>;
type Way<'s, 'm> = Port<'s, Process<'m, X86_64>, PORTS>;

fn relax(tries: u32) {
    if tries > 64 {
        thread::yield_now();
    }
}

fn tlbs(machine: &HostMachine) -> Arc<Tlbs> {
    let tlbs = Arc::new(Tlbs::new(relax));
    let passed: Arc<Tlbs> = Arc::clone(&tlbs);
    assert!(machine.set_tlb(passed));
    tlbs
}

fn port<'s, 'm>(space: &'s Space<'m>, tlbs: &'s Tlbs) -> Option<Way<'s, 'm>> {
    // SAFETY: the machine passes all on to them.
    unsafe { Port::new(space, tlbs) }
}

#[test]
fn bytes_go_where_a_program_would_have_them() {
    let machine = HostMachine::new(FRAMES);
    let tlbs = tlbs(&machine);
    let zero = zero(&machine);
    let space = new_space::<X86_64>(&machine, zero.frame());
    let at = 30 * PAGE;
    space.mmap(&anonymous(3).at(at)).unwrap();
    let mut port = port(&space, &tlbs).unwrap();
    let bytes: Vec<u8> = (0..PAGE as usize + 100).map(|n| (n % 251) as u8).collect();
    port.write(at + 5, &bytes).unwrap();
    let mut back = vec![0xff; bytes.len() + 10];
    port.read(at, &mut back).unwrap();
    assert_eq!(back[..5], [0; 5]);
    assert_eq!(&back[5..bytes.len() + 5], bytes);
    assert_eq!(back[bytes.len() + 5..], [0; 5]);
    // Numbers are little-endian, of each width.
    port.write(at, &[1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
    assert_eq!(port.load(at, Width::Double), Ok(0x0807_0605_0403_0201));
    assert_eq!(port.load(at + 4, Width::Word), Ok(0x0807_0605));
    assert_eq!(port.load(at + 6, Width::Half), Ok(0x0807));
    assert_eq!(port.load(at + 3, Width::Byte), Ok(4));
    assert_eq!(port.fetch_add(at + 1, Width::Byte, 0x1ff), Ok(2));
    assert_eq!(port.load(at, Width::Word), Ok(0x0403_0101), "neighbours stay");
    assert_eq!(port.compare_exchange(at + 2, Width::Half, 0, 7), Ok(0x0403));
    assert_eq!(port.compare_exchange(at + 2, Width::Half, 0x0403, 7), Ok(0x0403));
    assert_eq!(port.swap(at, Width::Word, 1 << 40 | 9), Ok(0x0007_0101));
    assert_eq!(port.load(at, Width::Double), Ok(0x0807_0605_0000_0009));
    assert_eq!(port.load(at + 1, Width::Half), Err(AtomicError::Misaligned));
    // What may not be done, and how far it came.
    space.mprotect(at + PAGE, PAGE, Prot::READ).unwrap();
    let stopped = port.write(at + PAGE - 3, &[1; 8]).unwrap_err();
    assert_eq!(stopped, PortError { done: 3, why: FaultError::NotPermitted });
    assert_eq!(port.read(at + 3 * PAGE - 1, &mut [0; 2]).unwrap_err().why, FaultError::NotMapped);
    assert_eq!(port.fetch(at, &mut [0; 4]).unwrap_err().why, FaultError::NotPermitted);
    // A second access to a page needs no tables.
    let before = port.stats();
    port.load(at, Width::Word).unwrap();
    assert_eq!(port.stats(), PortStats { hits: before.hits + 1, ..before });
    // There are so many places.
    let others: Vec<_> = (1..PORTS).map(|_| self::port(&space, &tlbs).unwrap()).collect();
    assert!(self::port(&space, &tlbs).is_none());
    drop(others);
    assert!(self::port(&space, &tlbs).is_some());
}

#[derive(Clone, Debug)]
enum Op {
    Write(u64, Vec<u8>),
    Read(u64, usize),
    Add(u64, u64),
    Discard(u64),
    Protect(u64, bool),
    Fork,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let address = 0..8 * PAGE;
    let op = prop_oneof![
        4 => (address.clone(), proptest::collection::vec(any::<u8>(), 1..40)).prop_map(|(at, bytes)| Op::Write(at, bytes)),
        4 => (address.clone(), 1..5000usize).prop_map(|(at, length)| Op::Read(at, length)),
        2 => (address, any::<u64>()).prop_map(|(at, value)| Op::Add(at & !7, value)),
        1 => (0..8u64).prop_map(Op::Discard),
        1 => (0..8u64, any::<bool>()).prop_map(|(page, write)| Op::Protect(page, write)),
        1 => Just(Op::Fork),
    ];
    proptest::collection::vec(op, 1..60)
}

proptest! {
    /// Memory as a map of bytes, and pages that may not be written.
    #[test]
    fn ports_agree_with_bytes(ops in ops()) {
        let machine = HostMachine::new(FRAMES);
        let tlbs = tlbs(&machine);
        let zero = zero(&machine);
        let space = new_space::<X86_64>(&machine, zero.frame());
        let base = 30 * PAGE;
        space.mmap(&anonymous(8).at(base)).unwrap();
        let mut port = port(&space, &tlbs).unwrap();
        let (mut naive, mut read_only) = (BTreeMap::<u64, u8>::new(), [false; 8]);
        let mut children = Vec::new();
        for op in ops {
            match op {
                Op::Write(at, bytes) => {
                    let writable = |&n: &usize| {
                        read_only.get(((at + n as u64) / PAGE) as usize).is_some_and(|&read_only| !read_only)
                    };
                    let done = (0..bytes.len()).find(|n| !writable(n)).unwrap_or(bytes.len());
                    let written = port.write(base + at, &bytes);
                    prop_assert_eq!(written.map_or_else(|why| why.done, |()| bytes.len()), done);
                    naive.extend((at..).zip(bytes).take(done));
                }
                Op::Read(at, length) => {
                    let mut buffer = vec![0; length];
                    let there = length.min((8 * PAGE - at) as usize);
                    let read = port.read(base + at, &mut buffer);
                    prop_assert_eq!(read.map_or_else(|why| why.done, |()| length), there);
                    for (n, &byte) in buffer.iter().take(there).enumerate() {
                        prop_assert_eq!(byte, naive.get(&(at + n as u64)).copied().unwrap_or(0));
                    }
                }
                Op::Add(at, value) => {
                    let byte = |n: u64| u64::from(naive.get(&(at + n)).copied().unwrap_or(0)) << (8 * n);
                    let old = (0..8).map(byte).sum::<u64>();
                    let added = port.fetch_add(base + at, Width::Double, value);
                    if read_only[(at / PAGE) as usize] {
                        prop_assert_eq!(added, Err(AtomicError::Fault(FaultError::NotPermitted)));
                    } else {
                        prop_assert_eq!(added, Ok(old));
                        naive.extend((at..).zip(old.wrapping_add(value).to_le_bytes()));
                    }
                }
                Op::Discard(page) => {
                    space.discard(base + page * PAGE, PAGE).unwrap();
                    naive.retain(|&at, _| at / PAGE != page);
                }
                Op::Protect(page, write) => {
                    let prot = if write { Prot::READ | Prot::WRITE } else { Prot::READ };
                    space.mprotect(base + page * PAGE, PAGE, prot).unwrap();
                    read_only[page as usize] = !write;
                }
                Op::Fork => {
                    let contents = Paged::new(&machine, 2, zero.frame()).unwrap();
                    let child = space.fork(std::sync::RwLock::new(()), contents).unwrap();
                    children.push((child, naive.clone()));
                }
            }
        }
        drop(port);
        // What children have is as it was.
        for (child, naive) in &children {
            let mut port = self::port(child, &tlbs).unwrap();
            let mut all = vec![0; 8 * PAGE as usize];
            port.read(base, &mut all).unwrap();
            for (n, &byte) in (0..).zip(&all) {
                prop_assert_eq!(byte, naive.get(&n).copied().unwrap_or(0));
            }
        }
    }
}

/// Counters that threads add to, each through a TLB of its own, while one forks, moves what is there, protects it and gives other
/// pages back: nothing is lost, and nobody writes to a page that is another's by now.
#[test]
fn nothing_is_lost_while_pages_come_and_go() {
    const THREADS: u64 = 2;
    let rounds = if cfg!(miri) { 20 } else { 2000 };
    let machine = HostMachine::new(FRAMES);
    let tlbs = tlbs(&machine);
    let zero = zero(&machine);
    let space = new_space::<X86_64>(&machine, zero.frame());
    let (base, scratch) = (30 * PAGE, 60 * PAGE);
    space.mmap(&anonymous(4).at(base)).unwrap();
    space.mmap(&anonymous(4).at(scratch)).unwrap();
    let stop = AtomicBool::new(false);
    let added: u64 = thread::scope(|scope| {
        let adders: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (space, tlbs, stop) = (&space, &tlbs, &stop);
                scope.spawn(move || {
                    let mut port = port(space, tlbs).unwrap();
                    let mut added = 0;
                    while !stop.load(Ordering::Relaxed) {
                        for page in 0..4 {
                            match port.fetch_add(base + page * PAGE + 8, Width::Word, 1) {
                                Ok(_) => added += 1,
                                // Just now it may not be written.
                                Err(why) => assert_eq!(why, AtomicError::Fault(FaultError::NotPermitted)),
                            }
                            let own = scratch + page * PAGE + 16 + 8 * thread;
                            port.swap(own, Width::Double, thread + 1).unwrap();
                            let found = port.load(own, Width::Double).unwrap();
                            assert!(found == thread + 1 || found == 0, "another's page: {found:#x}");
                        }
                    }
                    added
                })
            })
            .collect();
        for round in 0..rounds {
            match round % 4 {
                0 => drop(
                    space
                        .fork(std::sync::RwLock::new(()), Paged::new(&machine, 2, zero.frame()).unwrap())
                        .unwrap(),
                ),
                1 => {
                    space.mprotect(base, 2 * PAGE, Prot::READ).unwrap();
                    space.mprotect(base, 2 * PAGE, Prot::READ | Prot::WRITE).unwrap();
                }
                _ => {
                    space.discard(scratch, 4 * PAGE).unwrap();
                    // Whoever takes the frames next finds them as it leaves them.
                    let other = space.mmap(&anonymous(4)).unwrap();
                    for page in 0..4 {
                        space.fault(other + page * PAGE, Access::Write).unwrap();
                        let frame = space.contents().access(other + page * PAGE, Access::Write).unwrap();
                        for word in 0..8 {
                            assert_eq!(machine.read(frame.address() + word * 8), Some(0));
                        }
                    }
                    space.munmap(other, 4 * PAGE).unwrap();
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
        adders.into_iter().map(|adder| adder.join().unwrap()).sum()
    });
    let mut port = port(&space, &tlbs).unwrap();
    let sum: u64 = (0..4).map(|page| port.load(base + page * PAGE + 8, Width::Word).unwrap()).sum();
    assert_eq!(sum, added & 0xffff_ffff);
}

#[test]
fn what_leaves_from_below_comes_back_as_a_port_has_written_it() {
    let (machine, swap) = machine_with_swap(FRAMES, 16);
    let tlbs = tlbs(&machine);
    let zero = zero(&machine);
    let system = system::<X86_64>(&machine, &swap);
    let space = space_in(&system, zero.frame());
    let at = 30 * PAGE;
    space.mmap(&anonymous(2).at(at)).unwrap();
    let mut port = port(&space, &tlbs).unwrap();
    for n in 1..4 {
        port.write(at + 5, &[n; 20]).unwrap();
        assert_eq!(port.load(at + 8, Width::Byte), Ok(n.into()));
        system.swap_out(space.contents().access(at, Access::Read).unwrap()).unwrap();
        assert_eq!(space.contents().rss(), Rss { swap: 1, ..Rss::default() });
        // Another page has its frame.
        let other = machine.take(isotherm_page::Order::BASE).unwrap();
        let before = port.stats();
        let mut back = [0; 22];
        port.read(at + 4, &mut back).unwrap();
        assert_eq!((back[0], &back[1..21], back[21]), (0, &[n; 20][..], 0));
        assert_eq!(port.stats(), PortStats { walks: before.walks + 1, faults: before.faults + 1, ..before });
        drop(other);
    }
}

/// Nothing that is added is lost while pages leave and come back.
#[test]
fn ports_write_while_pages_are_swapped_out() {
    const PAGES: u64 = 4;
    const ADDS: u64 = 2000;
    let (machine, swap) = machine_with_swap(FRAMES, 64);
    let tlbs = tlbs(&machine);
    let zero = zero(&machine);
    let system = system::<X86_64>(&machine, &swap);
    let space = space_in(&system, zero.frame());
    let base = 30 * PAGE;
    space.mmap(&anonymous(PAGES).at(base)).unwrap();
    let stop = AtomicBool::new(false);
    let left = thread::scope(|scope| {
        let (space, tlbs, stop) = (&space, &*tlbs, &stop);
        let adders: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(move || {
                    let mut port = port(space, tlbs).unwrap();
                    for n in 0..ADDS {
                        port.fetch_add(base + n % PAGES * PAGE, Width::Double, 1).unwrap();
                    }
                })
            })
            .collect();
        let reclaimer = scope.spawn(move || {
            let mut left = 0;
            while !stop.load(Ordering::Relaxed) || left == 0 {
                left += space.page_out(base, PAGES * PAGE).unwrap();
                thread::yield_now();
            }
            left
        });
        adders.into_iter().for_each(|adder| adder.join().unwrap());
        stop.store(true, Ordering::Relaxed);
        reclaimer.join().unwrap()
    });
    assert!(left > 0);
    let mut port = port(&space, &tlbs).unwrap();
    let sum: u64 = (0..PAGES).map(|page| port.load(base + page * PAGE, Width::Double).unwrap()).sum();
    assert_eq!(sum, 2 * ADDS);
    assert_eq!(space.contents().rss(), Rss { anon: PAGES, ..Rss::default() });
}

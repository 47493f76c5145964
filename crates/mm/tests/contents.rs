//! The contents of memory against a naive model: random operations, faults and forks, without swap, and with pages that are
//! swapped out by advice and from below.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use std::collections::BTreeMap;
use std::sync::RwLock;

use common::host::*;
use common::swap::*;
use common::{PAGE, SMALL, anonymous};
use isotherm_mm::*;
use isotherm_page::{FolioKind, FolioView, Frame, Order};
use isotherm_pagetable::host::HostMachine;
use isotherm_pagetable::{Arm64Software, Format, Mapping, VirtAddr, X86_64};
use isotherm_rcu::Epoch;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    Map(u64, u64, u8),
    Unmap(u64, u64),
    Protect(u64, u64, u8),
    Discard(u64, u64),
    LazyFree(u64, u64),
    Move {
        from: u64,
        pages: u64,
        to: u64,
        stays: bool,
    },
    Stack(u64),
    Read(u64),
    Write(u64, u64),
    PageOut(u64, u64),
    /// From below, wherever the page is mapped.
    SwapOut(u64),
    Fork,
    /// Go on as another of the spaces.
    Switch(usize),
    Exit,
}

fn op() -> impl Strategy<Value = Op> {
    let (page, pages) = (30..60u64, 1..10u64);
    let prot = prop_oneof![3 => Just(3u8), 1 => 0..8u8];
    prop_oneof![
        3 => (page.clone(), pages.clone(), prot.clone()).prop_map(|(at, n, prot)| Op::Map(at, n, prot)),
        1 => (page.clone(), pages.clone()).prop_map(|(at, n)| Op::Unmap(at, n)),
        2 => (page.clone(), pages.clone(), prot).prop_map(|(at, n, prot)| Op::Protect(at, n, prot)),
        1 => (page.clone(), pages.clone()).prop_map(|(at, n)| Op::Discard(at, n)),
        2 => (page.clone(), pages.clone()).prop_map(|(at, n)| Op::LazyFree(at, n)),
        1 => (page.clone(), pages, page.clone(), any::<bool>())
            .prop_map(|(from, pages, to, stays)| Op::Move { from, pages, to, stays }),
        1 => page.clone().prop_map(Op::Stack),
        4 => page.clone().prop_map(Op::Read),
        1 => (page.clone(), 1..10u64).prop_map(|(at, n)| Op::PageOut(at, n)),
        2 => page.clone().prop_map(Op::SwapOut),
        8 => (page, any::<u64>()).prop_map(|(at, value)| Op::Write(at, value)),
        1 => Just(Op::Fork),
        1 => (0..3usize).prop_map(Op::Switch),
        1 => Just(Op::Exit),
    ]
}

/// What the words of a space's pages are, of those that were written to.
type Naive = BTreeMap<u64, Word>;

/// What was given up may be zeros, from one operation to the next.
#[derive(Clone, Copy)]
struct Word {
    value: u64,
    given_up: bool,
}

/// Of what was given up, what is gone is known to be.
fn forget_dropped<F: Format>(space: &Space<'_, F>, naive: &mut Naive) {
    naive.retain(|page, word| {
        !word.given_up || !matches!(space.contents().mapping(page * PAGE), Mapping::None)
    });
}

fn check<F: Format>(machine: &HostMachine, space: &Space<'_, F>, naive: &Naive, at: u64) {
    let expected = match space.find(at * PAGE) {
        None => Err(FaultError::NotMapped),
        Some(vma) if vma.flags.prot().is_empty() => Err(FaultError::NotPermitted),
        Some(_) => Ok(naive.get(&at).map_or(0, |word| word.value)),
    };
    // A read below a stack would make it grow.
    if expected != Err(FaultError::NotMapped) {
        assert_eq!(word(machine, space, at * PAGE + 16, None), expected, "page {at}");
    }
}

/// Pages that some space has written to and still has.
fn apply<'m, F: Format>(
    machine: &'m HostMachine,
    zero: Frame,
    spaces: &mut Vec<(Space<'m, F>, Naive)>,
    current: &mut usize,
    op: &Op,
) {
    let (space, naive) = &mut spaces[*current];
    let prot = |bits: u8| Prot::from_bits_truncate(u64::from(bits));
    match *op {
        Op::Map(at, n, bits) => {
            space.mmap(&MapRequest { prot: prot(bits), ..anonymous(n).at(at * PAGE) }).unwrap();
            naive.retain(|page, _| !(at..at + n).contains(page));
        }
        Op::Unmap(at, n) => {
            space.munmap(at * PAGE, n * PAGE).unwrap();
            naive.retain(|page, _| !(at..at + n).contains(page));
        }
        Op::Protect(at, n, bits) => drop(space.mprotect(at * PAGE, n * PAGE, prot(bits))),
        Op::Discard(at, n) => {
            let _ = space.discard(at * PAGE, n * PAGE);
            naive.retain(|page, _| !(at..at + n).contains(page));
        }
        Op::LazyFree(at, n) => {
            let _ = space.lazy_free(at * PAGE, n * PAGE);
            for (_, word) in naive.range_mut(at..at + n) {
                word.given_up = true;
            }
        }
        Op::Move { from, pages, to, stays } => {
            let mut flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
            flags.set(RemapFlags::DONTUNMAP, stays);
            let is_mapped = |page: u64| space.find(page * PAGE).is_some();
            let mapped: Vec<u64> = (from..from + pages).filter(|&page| is_mapped(page)).collect();
            if space.mremap(from * PAGE, pages * PAGE, pages * PAGE, flags, to * PAGE).is_ok() {
                for page in mapped {
                    let value = naive.remove(&page);
                    naive.remove(&(page - from + to));
                    naive.extend(value.map(|value| (page - from + to, value)));
                }
            }
        }
        Op::Stack(at) => {
            let request = anonymous(1);
            let flags = request.flags | MapFlags::GROWSDOWN | MapFlags::FIXED_NOREPLACE;
            let _ = space.mmap(&MapRequest { flags, address: at * PAGE, ..request });
        }
        Op::PageOut(at, n) => drop(space.page_out(at * PAGE, n * PAGE)),
        Op::SwapOut(at) => {
            if let Some(system) = space.contents().system()
                && let Ok(frame) = space.contents().access(at * PAGE, Access::Read)
                && frame != zero
            {
                assert_eq!(system.swap_out(frame), Ok(()), "nobody else refers to it");
                assert!(space.contents().access(at * PAGE, Access::Read).is_err());
            }
        }
        Op::Read(at) => check(machine, space, naive, at),
        Op::Write(at, value) => {
            let writable = space.find(at * PAGE).map(|vma| vma.flags.contains(VmFlags::WRITE));
            let got = word(machine, space, at * PAGE + 16, Some(value));
            match writable {
                Some(true) => assert_eq!(got, Ok(value)),
                Some(false) => assert_eq!(got, Err(FaultError::NotPermitted)),
                // A stack may have grown.
                None => assert!(got == Ok(value) || got.is_err()),
            }
            if got.is_ok() {
                naive.insert(at, Word { value, given_up: false });
            }
        }
        Op::Fork => {
            let child = match space.contents().system() {
                Some(system) => Paged::in_system(system, 2, zero, ()),
                None => Paged::new(machine, 2, zero),
            };
            let child = child.unwrap();
            let child = (space.fork(RwLock::new(()), child).unwrap(), naive.clone());
            if spaces.len() < 3 {
                spaces.push(child);
            }
        }
        Op::Switch(to) => *current = to % spaces.len(),
        Op::Exit => {
            if spaces.len() > 1 {
                spaces.remove(*current);
                *current = 0;
            }
        }
    }
}

/// Every anonymous page is found where it is.
fn found<F: Format>(
    machine: &HostMachine,
    system: &System<'_, F, HostMachine>,
    spaces: &[(Space<'_, F>, Naive)],
) {
    for (space, naive) in spaces {
        for &page in naive.keys() {
            let at = page * PAGE;
            let Ok(frame) = space.contents().access(at, Access::Read) else { continue };
            let folio = FolioView::of(machine, frame).unwrap();
            assert_eq!(folio.kind(), FolioKind::Anon);
            let places = system.find(frame).unwrap();
            assert!(places.contains(&(space.contents().id(), VirtAddr(at))), "page {page}: {places:?}");
            if folio.order() == Order::BASE {
                assert_eq!(places.len() as u32, folio.maps(), "page {page}: {places:?}");
            }
        }
    }
}

fn run<F: Format>(ops: &[Op], with_swap: bool, large: u8) {
    let (machine, swap) = machine_with_swap(FRAMES, 256);
    let zero = zero(&machine);
    let before = machine.free_frames();
    let system = system::<F>(&machine, &swap);
    let first = match (with_swap, Order::new(large).unwrap()) {
        (false, _) => new_space(&machine, zero.frame()),
        (true, always) => {
            let contents = Paged::in_system(&system, 1, zero.frame(), ()).unwrap();
            let contents = contents.with_folios(Folios { always, advised: always });
            Space::new(Epoch, RwLock::new(()), contents, SMALL)
        }
    };
    let mut spaces = vec![(first, Naive::new())];
    let mut current = 0;
    for op in ops {
        apply(&machine, zero.frame(), &mut spaces, &mut current, op);
        for (space, naive) in &mut spaces {
            forget_dropped(space, naive);
            let rss = space.contents().rss();
            let (counted, written) = (rss.total() + rss.swap, naive.len() as u64);
            assert!(counted == written || large > 0 && counted > written, "{rss:?} after {op:?}");
        }
    }
    if with_swap {
        found(&machine, &system, &spaces);
    }
    for (space, naive) in &spaces {
        for at in 30..75 {
            check(&machine, space, naive, at);
        }
        let stats = space.lock_stats();
        let expected = (0, if with_swap { stats.retry } else { 0 });
        let counted = (stats.miss + stats.locked + stats.moved, stats.retry);
        assert_eq!(counted, expected, "there is one thread: {stats:?}");
    }
    drop(spaces);
    drop(system);
    assert_eq!(machine.free_frames(), before, "exit frees all");
    assert_eq!((swap.area.used(), swap.flaky.memory.stats()), (0, CompressedStats::default()));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 2 } else { 256 }, ..ProptestConfig::default() })]

    #[test]
    fn contents_are_those_of_a_naive_model(ops in proptest::collection::vec(op(), 1..80)) {
        run::<X86_64>(&ops, false, 0);
        run::<Arm64Software>(&ops, false, 0);
    }

    #[test]
    fn contents_with_swap_are_those_of_a_naive_model(ops in proptest::collection::vec(op(), 1..80)) {
        run::<X86_64>(&ops, true, 0);
        run::<Arm64Software>(&ops, true, 0);
    }

    #[test]
    fn contents_in_large_folios_are_those_of_a_naive_model(ops in proptest::collection::vec(op(), 1..80)) {
        run::<X86_64>(&ops, true, 3);
        run::<Arm64Software>(&ops, true, 4);
    }
}

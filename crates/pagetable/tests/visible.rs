//! Children that reverse maps know while they are made: pages are swapped out wherever they are mapped, the parent's mapping
//! first, while the parent is forked; no mapping is left.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::{at, pages, prepare, swap_out, take};
use isotherm_pagetable::host::HostMachine;
use isotherm_pagetable::*;

/// Over the border of two tables, the second of which the child has already.
const FIRST: u64 = 480;
const PAGES: u64 = 64;
const ROUNDS: u64 = if cfg!(miri) { 1 } else { 300 };

fn walked_while_forked<F: Format>(order: u8) {
    let machine = HostMachine::new(4096);
    let free = machine.free_frames();
    for round in 0..ROUNDS {
        let parent = AddressSpace::<F, HostMachine>::new(&machine, 1).unwrap();
        let child = AddressSpace::new(&machine, 2).unwrap();
        let mut folios = Vec::new();
        for first in (FIRST..FIRST + PAGES).step_by(1 << order) {
            let folio = prepare(&machine, take(&machine, order).unwrap(), order, FolioKind::Anon).unwrap();
            let range = pages(first, 1 << order);
            parent.map(range, folio.head(), Attributes::anonymous(), Level::Pte).unwrap();
            folios.push(folio);
        }
        let other = machine.folio(Order::BASE, FolioKind::Anon).unwrap();
        child.map(pages(600, 1), other.head(), Attributes::anonymous(), Level::Pte).unwrap();
        drop(other);
        let range = pages(FIRST, PAGES);
        let swapped = std::thread::scope(|scope| {
            let walker = scope.spawn(|| {
                let mut swapped = 0;
                // From either end, so that both meet.
                for n in 0..PAGES {
                    let page = FIRST + if round % 2 == 0 { n } else { PAGES - 1 - n };
                    for space in [&parent, &child] {
                        let mut gather = space.gather(&mut []);
                        swapped += u64::from(swap_out(space, at(page), 1, &mut gather).is_ok());
                    }
                }
                swapped
            });
            let rule = ForkRule::Copy(Sharing::Private);
            parent.copy_range(&child, range, rule, &mut parent.gather(&mut [])).unwrap();
            walker.join().unwrap()
        });
        for folio in folios {
            assert_eq!((folio.maps(), folio.refs()), (0, 1), "round {round}: a mapping was missed");
        }
        for space in [&parent, &child] {
            let held =
                (FIRST..FIRST + PAGES).filter(|&page| matches!(space.query(at(page)), Mapping::SwapEntry(_)));
            assert_eq!(held.count() as u64, PAGES);
        }
        drop((parent, child));
        assert_eq!(machine.swap_entry_balance(1) + swapped as i64, 0, "each entry's swap entry once");
        // Of the next round the balance begins anew.
        (0..swapped).for_each(|_| machine.share_swap_entry(1));
        assert_eq!(machine.free_frames(), free);
    }
}

#[test]
fn a_walk_during_a_fork_misses_nothing() {
    for order in [0, 4] {
        walked_while_forked::<X86_64>(order);
        walked_while_forked::<Arm64Hafdbs>(order);
    }
}

/// A space is not its own child.
#[test]
fn a_space_is_not_copied_to_itself() {
    let machine = HostMachine::new(64);
    let space = AddressSpace::<X86_64, HostMachine>::new(&machine, 1).unwrap();
    let rule = ForkRule::Copy(Sharing::Private);
    let copied = space.copy_range(&space, pages(0, 8), rule, &mut space.gather(&mut []));
    assert_eq!(copied.unwrap_err().why, Error::Occupied);
}

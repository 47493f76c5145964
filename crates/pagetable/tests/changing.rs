//! A split, a collapse or a copy under way is waited for: whoever asks under a lock meanwhile finds the pages, in one size or the
//! other. Lookups without a lock may find none for a moment.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;
#[path = "model/cpu.rs"]
#[allow(dead_code, reason = "here nothing is accessed through the TLB")]
mod cpu;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use common::{at, pages, prepare, take};
use cpu::Cpu;
use isotherm_pagetable::*;

const FIRST: u64 = 512;
/// How often either thread does what it does at the least.
const ROUNDS: usize = if cfg!(miri) { 2 } else { 300 };

/// Sets the flag when it goes, also by a panic: the other thread must not go on for ever.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Does `ask` again and again while another thread splits and collapses the pages.
fn meanwhile<F: Format>(ask: impl Fn(&AddressSpace<'_, F, Cpu>, PageRange)) {
    let change = |space: &AddressSpace<'_, F, Cpu>| {
        space.split(at(FIRST)).unwrap();
        space.collapse(at(FIRST), 0, &mut space.gather(&mut [Slot::default(); 4])).unwrap();
    };
    both(change, ask);
}

/// Does `ask` again and again while another thread does `change`.
fn both<F: Format>(
    change: impl Fn(&AddressSpace<'_, F, Cpu>) + Sync,
    ask: impl Fn(&AddressSpace<'_, F, Cpu>, PageRange),
) {
    let machine = Cpu::new(1 << 13);
    machine.slow_down();
    let space = AddressSpace::<F, Cpu>::new(&machine, 1).unwrap();
    let folio = prepare(&machine, take(&machine.host, 9).unwrap(), 9, FolioKind::Anon).unwrap();
    let range = pages(FIRST, 512);
    space.map(range, folio.head(), Attributes::anonymous(), Level::Pmd).unwrap();
    drop(folio);
    let (done, changed) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                change(&space);
                changed.fetch_add(1, Ordering::Relaxed);
            }
        });
        let _ends = Ends(&done);
        let mut asked = 0;
        while asked < ROUNDS || changed.load(Ordering::Relaxed) < ROUNDS {
            ask(&space, range);
            asked += 1;
        }
    });
    assert!(matches!(space.query(at(FIRST)), Mapping::Page { .. }));
}

fn is_found<F: Format>() {
    meanwhile::<F>(|space, range| {
        assert!(matches!(space.query(range.start()), Mapping::Page { .. }), "query");
        let mut found = 0;
        space.runs(range, |run| found += run.pages).unwrap();
        assert_eq!(found, 512, "runs");
        assert_eq!(space.test_young(range, &mut [0; 8]), Ok(512), "young");
        let fault = WriteFault { sharing: Sharing::Private, bounds: range, whole_folio: true };
        assert!(space.write_fault(range.start(), None, fault).is_ok(), "write fault");
    });
}

/// Write faults copy the huge leaf as a whole: it is empty for a moment, but no hole.
fn is_found_while_copied<F: Format>() {
    let change = |space: &AddressSpace<'_, F, Cpu>| {
        let range = pages(FIRST, 512);
        let child = AddressSpace::new(space.machine(), 2).unwrap();
        let rule = ForkRule::Copy(Sharing::Private);
        space.copy_range(&child, range, rule, &mut space.gather(&mut [])).unwrap();
        let fault = WriteFault { sharing: Sharing::Private, bounds: range, whole_folio: true };
        assert_eq!(space.write_fault(at(FIRST), None, fault), Ok(Resolved::Copied(512)));
    };
    both::<F>(change, |space, range| {
        assert!(matches!(space.query(range.start()), Mapping::Page { .. }), "query");
        assert!(space.mark_accessed(range.start(), None, false).is_ok(), "fault");
        let occupied = space.map_swap_entry(pages(FIRST, 1), 7).unwrap_err();
        assert_eq!(occupied.why, Error::Occupied);
    });
}

#[test]
fn a_page_that_is_copied_is_found_on_x86_64() {
    is_found_while_copied::<X86_64>();
}

#[test]
fn a_page_that_is_copied_is_found_on_arm64() {
    is_found_while_copied::<Arm64Hafdbs>();
}

#[test]
fn pages_are_found_on_x86_64() {
    is_found::<X86_64>();
}

#[test]
fn pages_are_found_on_arm64() {
    is_found::<Arm64Hafdbs>();
}

#[test]
fn tables_beside_are_made_and_pruned() {
    // The neighbouring pages hang from the same tables above.
    meanwhile::<X86_64>(|space, _| {
        let machine = space.machine();
        let folio = prepare(machine, take(&machine.host, 0).unwrap(), 0, FolioKind::Anon).unwrap();
        let beside = pages(FIRST + 512, 1);
        space.map(beside, folio.head(), Attributes::anonymous(), Level::Pte).unwrap();
        drop(folio);
        let all = pages(FIRST + 512, 512);
        space.unmap(all, &mut space.gather(&mut [Slot::default(); 4])).unwrap();
        // In the way whatever its size.
        let occupied = space.map_swap_entry(pages(FIRST, 1), 7).unwrap_err();
        assert_eq!(occupied.why, Error::Occupied);
    });
}

#[test]
fn a_fork_copies_all_of_it() {
    meanwhile::<X86_64>(|space, range| {
        let child = AddressSpace::new(space.machine(), 2).unwrap();
        let rule = ForkRule::Copy(Sharing::Shared);
        space.copy_range(&child, range, rule, &mut space.gather(&mut [])).unwrap();
        let mut found = 0;
        child.runs(range, |run| found += run.pages).unwrap();
        assert_eq!(found, 512);
    });
}

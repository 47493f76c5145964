//! How often an operation reads an entry of a contiguous block: once. Read page by page, each of the sixteen would
//! gather young and dirty of all sixteen, the 256 reads that the seed discusses.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::cell::RefCell;
use std::collections::HashMap;

use common::{Changed, Wrap, at, pages};
use isotherm_pagetable::host::HostMachine;
use isotherm_pagetable::*;

thread_local! {
    /// Reads of each entry, by its address.
    static READS: RefCell<HashMap<usize, u64>> = RefCell::default();
}

/// arm64 that counts the reads of each entry.
struct Counted;

// SAFETY: counting changes nothing.
unsafe impl Changed for Counted {
    type Of = Arm64Hafdbs;
    const NAME: &'static str = "arm64, counted";
    fn load(entry: &Entry) -> u64 {
        READS.with_borrow_mut(|reads| *reads.entry(std::ptr::from_ref(entry).addr()).or_default() += 1);
        entry.load()
    }
}

type Space<'m> = AddressSpace<'m, Wrap<Counted>, HostMachine>;

/// All reads and the most of a single entry, since the last time.
fn reads() -> (u64, u64) {
    READS.with_borrow_mut(|reads| {
        let counts = (reads.values().sum(), reads.values().copied().max().unwrap_or(0));
        reads.clear();
        counts
    })
}

/// Where the memory is mapped: two blocks, then more of the folio.
const FIRST: u64 = 512;
const PAGES: u64 = 64;

/// The folio of 64 pages, its blocks folded, or every page by itself.
fn mapped<'m>(machine: &'m HostMachine, kind: FolioKind, attributes: Attributes) -> Space<'m> {
    let space = Space::new(machine, 1).unwrap();
    let folio = Folio::prepare(machine, machine.take(6).unwrap(), 6, kind).unwrap();
    space.map(pages(FIRST, PAGES), folio.head(), attributes, Level::Pte).unwrap();
    folio.put(machine);
    // As hardware leaves it: all was aged, then a page here and there was used.
    space.clear_young(pages(FIRST, PAGES)).unwrap();
    let guard = Rcu::read_lock(machine);
    for page in [3, 21, 40] {
        space.access(&guard, at(FIRST + page), Access::Read).unwrap();
    }
    drop(guard);
    let Mapping::Page { contiguous: true, .. } = space.query(at(FIRST)) else { panic!("not folded") };
    space
}

type Operation = fn(&Space<'_>, PageRange);

fn fault(space: &Space<'_>, range: PageRange, whole_folio: bool) {
    let middle = at(range.start().page() + range.pages() / 2);
    let fault = WriteFault { sharing: Sharing::Private, bounds: range, whole_folio };
    space.write_fault(middle, fault).unwrap();
}

fn fork(space: &Space<'_>, range: PageRange, sharing: Sharing) {
    let mut child = Space::new(space.machine(), 2).unwrap();
    space.copy_range(&mut child, range, ForkRule::Copy(sharing), &mut space.gather(&mut [])).unwrap();
    // Only the fork is counted, not the child's end.
    let counted = READS.with_borrow_mut(std::mem::take);
    drop(child);
    READS.set(counted);
}

/// Operations that a page of memory sees, each over a range.
const OPERATIONS: [(&str, Operation); 15] = [
    ("runs", |space, range| space.runs(range, |_| {}).unwrap()),
    ("test young", |space, range| assert!(space.test_young(range, &mut [0]).is_ok())),
    ("harvest", |space, range| assert!(space.harvest_young(range, &mut [0]).is_ok())),
    ("clear young", |space, range| assert!(space.clear_young(range).is_ok())),
    ("fork, private", |space, range| fork(space, range, Sharing::Private)),
    ("fork, shared", |space, range| fork(space, range, Sharing::Shared)),
    ("zap", |space, range| space.zap(range, &mut space.gather(&mut [Slot::default(); 4])).unwrap()),
    ("protect", |space, range| {
        let gather = &mut space.gather(&mut []);
        space.protect(range, Protection::NONE, Sharing::Private, gather).unwrap();
    }),
    ("write-protect", |space, range| space.write_protect(range, &mut space.gather(&mut [])).unwrap()),
    ("write fault on a page", |space, range| fault(space, range, false)),
    ("write fault on the folio", |space, range| fault(space, range, true)),
    ("mark accessed", |space, range| space.mark_accessed(range.start(), false).unwrap()),
    ("remap", |space, range| space.remap(range, at(range.start().page() + 4096)).unwrap()),
    ("swap out", |space, range| {
        assert!(space.swap_out(range.start(), 1, &mut space.gather(&mut [])).is_ok());
    }),
    ("query", |space, range| assert!(matches!(space.query(range.start()), Mapping::Page { .. }))),
];

/// Whole blocks, one in part from its start, its middle, to its end, and over the border of two.
const RANGES: [(u64, u64); 7] = [(0, 64), (0, 16), (16, 32), (0, 5), (5, 6), (11, 5), (9, 30)];

/// Runs every operation over every range; which of them read an entry more than once.
fn offenders(prepare: impl Fn(&HostMachine) -> Space<'_>) -> Vec<String> {
    let mut offenders = vec![];
    for (name, operation) in OPERATIONS {
        for (first, len) in RANGES {
            let machine = HostMachine::new(4096);
            let space = prepare(&machine);
            reads();
            operation(&space, pages(FIRST + first, len));
            let (all, most) = reads();
            if most > 1 {
                offenders.push(format!(
                    "{name} of {len} pages from {first} on: {all} reads, one entry {most} times"
                ));
            }
        }
    }
    offenders
}

#[test]
fn no_operation_reads_an_entry_of_writable_memory_twice() {
    let offenders = offenders(|machine| mapped(machine, FolioKind::Anon, Attributes::anonymous()));
    assert!(offenders.is_empty(), "{}", offenders.join("\n"));
}

#[test]
fn no_operation_reads_an_entry_of_read_only_memory_twice() {
    // Exclusive: faults reuse it.
    let attributes = Attributes { write: false, ..Attributes::anonymous() };
    let offenders = offenders(|machine| mapped(machine, FolioKind::Anon, attributes));
    assert!(offenders.is_empty(), "{}", offenders.join("\n"));
}

#[test]
fn no_operation_reads_an_entry_of_a_file_twice() {
    // A write copies it.
    let offenders = offenders(|machine| mapped(machine, FolioKind::File, Attributes::file()));
    assert!(offenders.is_empty(), "{}", offenders.join("\n"));
}

#[test]
fn a_lookup_without_lock_reads_each_entry_once() {
    let machine = HostMachine::new(4096);
    let space = mapped(&machine, FolioKind::Anon, Attributes::anonymous());
    let guard = Rcu::read_lock(&machine);
    reads();
    for page in 0..PAGES {
        let Mapping::Page { attributes, .. } = space.lookup(&guard, at(FIRST + page)) else { panic!() };
        assert_eq!(attributes.young, page / 16 < 3, "page {page}");
        // Its own was read by the walk.
        assert_eq!(reads(), (15, 1), "page {page}");
    }
}

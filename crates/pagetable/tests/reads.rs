//! How often an operation reads an entry of a contiguous block: once, with few exceptions that are named. Read page by
//! page, each of the sixteen would gather young and dirty of all sixteen, the 256 reads that the seed discusses.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::cell::RefCell;
use std::collections::HashMap;

use common::{Changed, Wrap, at, pages, prepare, take};
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
    let folio = prepare(machine, take(machine, 6).unwrap(), 6, kind).unwrap();
    space.map(pages(FIRST, PAGES), folio.head(), attributes, Level::Pte).unwrap();
    drop(folio);
    // As hardware leaves it: all was aged, then a page here and there was used.
    space.clear_young(pages(FIRST, PAGES)).unwrap();
    for page in [3, 21, 40] {
        space.read().access(at(FIRST + page), Access::Read).unwrap();
    }
    let Mapping::Page { contiguous: true, .. } = space.query(at(FIRST)) else { panic!("not folded") };
    space
}

type Operation = fn(&Space<'_>, PageRange);

/// How often entries may be read, where it is not once each.
#[derive(Clone, Copy)]
struct Limits {
    /// Reads beside one of each entry of the blocks that the range touches, if it covers these as a whole.
    extra: u64,
    /// Reads of a single entry then.
    most: u64,
    /// Reads of a single entry if the range cuts a block: a change unfolds it, and what it says after that is read anew.
    cut: u64,
}

const ONCE: Limits = Limits { extra: 0, most: 1, cut: 1 };
/// What a run is cut by is unfolded, and read anew.
const CUT_RUN: Limits = Limits { cut: 4, ..ONCE };
/// A block in another state than those before ends their run, and begins the next.
const STATE_ENDS_RUN: Limits = Limits { extra: 16, most: 2, cut: 3 };
/// Decided upon, by one entry and those of its folio behind it, and then changed or looked at again after the copy.
const FAULT: Limits = Limits { extra: 32, most: 2, cut: 3 };

fn fault(space: &Space<'_>, range: PageRange, whole_folio: bool) {
    let middle = at(range.start().page() + range.pages() / 2);
    let fault = WriteFault { sharing: Sharing::Private, bounds: range, whole_folio };
    space.write_fault(middle, None, fault).unwrap();
}

fn fork(space: &Space<'_>, range: PageRange, sharing: Sharing) {
    let child = Space::new(space.machine(), 2).unwrap();
    space.copy_range(&child, range, ForkRule::Copy(sharing), &mut space.gather(&mut [])).unwrap();
    // Only the fork is counted, not the child's end.
    let counted = READS.with_borrow_mut(std::mem::take);
    drop(child);
    READS.set(counted);
}

/// Operations that a page of memory sees, each over a range.
const OPERATIONS: [(&str, Limits, Operation); 15] = [
    ("query", ONCE, |space, range| assert!(matches!(space.query(range.start()), Mapping::Page { .. }))),
    ("runs", STATE_ENDS_RUN, |space, range| space.runs(range, |_| {}).unwrap()),
    ("test young", ONCE, |space, range| assert!(space.test_young(range, &mut [0]).is_ok())),
    ("harvest", ONCE, |space, range| assert!(space.harvest_young(range, &mut [0]).is_ok())),
    ("clear young", ONCE, |space, range| assert!(space.clear_young(range).is_ok())),
    ("fork, private", CUT_RUN, |space, range| fork(space, range, Sharing::Private)),
    ("fork, shared", CUT_RUN, |space, range| fork(space, range, Sharing::Shared)),
    ("zap", CUT_RUN, |space, range| {
        space.zap(range, &mut space.gather(&mut [Slot::default(); 4])).unwrap();
    }),
    ("protect", Limits { cut: 3, ..ONCE }, |space, range| {
        let gather = &mut space.gather(&mut []);
        space.protect(range, Protection::NONE, Sharing::Private, gather).unwrap();
    }),
    ("write-protect", Limits { cut: 3, ..ONCE }, |space, range| {
        space.write_protect(range, &mut space.gather(&mut [])).unwrap();
    }),
    ("write fault on a page", FAULT, |space, range| fault(space, range, false)),
    ("write fault on the folio", FAULT, |space, range| fault(space, range, true)),
    ("mark accessed", Limits { extra: 1, most: 2, cut: 2 }, |space, range| {
        space.mark_accessed(range.start(), None, false).unwrap();
    }),
    ("remap", STATE_ENDS_RUN, |space, range| {
        let _ = space.remap(range, at(range.start().page() + 4096)).unwrap();
    }),
    ("swap out", Limits { cut: 2, ..ONCE }, |space, range| {
        let Mapping::Page { frame, .. } = space.query(range.start()) else { panic!("not mapped") };
        // Those of the query.
        let _ = reads();
        assert!(space.swap_out(range.start(), frame, 1, &mut space.gather(&mut [])).is_ok());
    }),
];

/// Whole blocks, one in part from its start, its middle, to its end, and over the border of two.
const RANGES: [(u64, u64); 7] = [(0, 64), (0, 16), (16, 32), (0, 5), (5, 6), (11, 5), (9, 30)];

/// Runs every operation over every range; which of them read more than they may.
fn offenders(prepare: impl Fn(&HostMachine) -> Space<'_>) -> Vec<String> {
    let mut offenders = vec![];
    for (name, limits, operation) in OPERATIONS {
        for (first, len) in RANGES {
            let machine = HostMachine::new(4096);
            let space = prepare(&machine);
            reads();
            operation(&space, pages(FIRST + first, len));
            let (all, most) = reads();
            let (aligned, touched) = (first & !15, (first + len).next_multiple_of(16));
            let whole = (aligned, touched) == (first, first + len);
            let allowed = if whole { limits.most } else { limits.cut };
            if most > allowed || whole && all > touched - aligned + limits.extra {
                offenders.push(format!(
                    "{name} of {len} pages from {first} on: {all} reads, one entry {most} times"
                ));
            }
        }
    }
    offenders
}

#[test]
fn writable_memory_is_read_once() {
    let offenders = offenders(|machine| mapped(machine, FolioKind::Anon, Attributes::anonymous()));
    assert!(offenders.is_empty(), "{}", offenders.join("\n"));
}

#[test]
fn read_only_memory_is_read_once() {
    // Exclusive: faults reuse it.
    let attributes = Attributes { write: false, ..Attributes::anonymous() };
    let offenders = offenders(|machine| mapped(machine, FolioKind::Anon, attributes));
    assert!(offenders.is_empty(), "{}", offenders.join("\n"));
}

#[test]
fn a_file_is_read_once() {
    // A write copies it.
    let offenders = offenders(|machine| mapped(machine, FolioKind::File, Attributes::file()));
    assert!(offenders.is_empty(), "{}", offenders.join("\n"));
}

#[test]
fn a_lookup_without_lock_reads_each_entry_once() {
    let machine = HostMachine::new(4096);
    let space = mapped(&machine, FolioKind::Anon, Attributes::anonymous());
    reads();
    for page in 0..PAGES {
        let Mapping::Page { attributes, .. } = space.read().lookup(at(FIRST + page)) else { panic!() };
        assert_eq!(attributes.young, page / 16 < 3, "page {page}");
        // Its own was read by the walk.
        assert_eq!(reads(), (15, 1), "page {page}");
    }
}

//! What operations on ranges say that they did, and of which folios some pages are left.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::{Busy, at, pages};
use isotherm_pagetable::host::HostMachine;
use isotherm_pagetable::*;

const PRIVATE: ForkRule = ForkRule::Copy(Sharing::Private);
const DEVICE: Attributes = Attributes { special: true, ..Attributes::file() };

fn map<F: Format, M: Machine>(
    space: &AddressSpace<'_, F, M>,
    host: &HostMachine,
    page: u64,
    order: u8,
    kind: FolioKind,
) -> RssStat {
    let attributes = if kind == FolioKind::Anon { Attributes::anonymous() } else { Attributes::file() };
    let head = common::take(host, order).unwrap();
    let folio = common::prepare(space.machine(), head, order, kind).unwrap();
    space.map(pages(page, 1 << order), folio.head(), attributes, Level::Pmd).unwrap()
}

/// Small folios of both kinds in turn, larger ones, a device's pages and swap entries, in one table.
fn mixed<F: Format>() {
    let machine = HostMachine::new(4096);
    let space = AddressSpace::<F, _>::new(&machine, 1).unwrap();
    let mut mapped = RssStat::default();
    for (page, kind) in
        [(0, FolioKind::Anon), (1, FolioKind::File), (2, FolioKind::File), (4, FolioKind::Anon)]
    {
        mapped += map(&space, &machine, 512 + page, 0, kind);
    }
    mapped += map(&space, &machine, 512 + 16, 4, FolioKind::File);
    mapped += map(&space, &machine, 512 + 32, 3, FolioKind::Anon);
    mapped += space.map(pages(512 + 64, 5), Frame(1 << 30), DEVICE, Level::Pte).unwrap();
    mapped += space.map_swap_entry(pages(512 + 80, 3), 9).unwrap();
    // What was mapped, and the tables of three levels below the root, but for Sv39, which has fewer.
    let levels = F::ROOT as u64;
    let expected = RssStat { anon: 10, file: 18, special: 5, swap_entries: 3, tables: levels, splits: 0 };
    assert_eq!((mapped, mapped.resident()), (expected, 28), "mapped");

    let all = pages(512, 512);
    let child = AddressSpace::new(&machine, 2).unwrap();
    let got = space.copy_range(&child, all, PRIVATE, &mut space.gather(&mut [])).unwrap();
    assert_eq!(got, expected, "the child");
    // What changes no count.
    let protected = space.protect(all, Protection::READ, Sharing::Private, &mut space.gather(&mut []));
    assert_eq!(protected, Ok(RssStat::default()), "protected");
    let moved = space.remap(all, at(4096)).unwrap();
    assert_eq!(RssStat { tables: 0, ..moved }, RssStat::default(), "moved");
    let unused = space.unmap(all, &mut space.gather(&mut [])).unwrap();
    assert_eq!(unused, RssStat { tables: 1, ..RssStat::default() }, "what was moved away left its table");

    let zapped = space.zap(pages(4096, 4), &mut space.gather(&mut [])).unwrap();
    assert_eq!(zapped, RssStat { anon: 1, file: 2, ..RssStat::default() }, "zapped");
    let unmapped = space.unmap(pages(4096, 512), &mut space.gather(&mut [])).unwrap();
    assert_eq!(unmapped, RssStat { anon: 9, file: 16, tables: 1, ..expected }, "unmapped");
    // And the root.
    assert_eq!(child.exit(&mut []), RssStat { tables: levels + 1, ..expected }, "the child's exit");
}

#[test]
fn operations_say_what_they_did_by_kind() {
    mixed::<X86_64>();
    mixed::<X86_64La57>();
    mixed::<Arm64Hafdbs>();
    mixed::<RiscV<Sv39, Svade>>();
}

/// A range that ends in a huge leaf splits it, which adds a table.
#[test]
#[cfg_attr(miri, ignore = "512 entries")]
fn leaves_that_are_split_are_counted() {
    let machine = HostMachine::new(4096);
    let space = AddressSpace::<X86_64, _>::new(&machine, 1).unwrap();
    map(&space, &machine, 512, 9, FolioKind::Anon);
    let child = AddressSpace::new(&machine, 2).unwrap();
    let half = pages(512, 256);
    let got = space.copy_range(&child, half, PRIVATE, &mut space.gather(&mut [])).unwrap();
    assert_eq!(got, RssStat { anon: 256, tables: 3, splits: 1, ..RssStat::default() });
    map(&space, &machine, 1024, 9, FolioKind::Anon);
    let gone = space.zap(pages(1000, 30), &mut space.gather(&mut [])).unwrap();
    assert_eq!(gone, RssStat { anon: 30, splits: 1, ..RssStat::default() });
}

/// An operation that fails half-way says what it did before.
#[test]
fn what_was_done_before_a_failure_is_said() {
    let machine = HostMachine::new(4096);
    let space = AddressSpace::<X86_64, _>::new(&machine, 1).unwrap();
    map(&space, &machine, 510, 0, FolioKind::File);
    map(&space, &machine, 511, 0, FolioKind::Anon);
    map(&space, &machine, 512, 0, FolioKind::Anon);
    let child = AddressSpace::new(&machine, 2).unwrap();
    // For the first table and those above it, and no more.
    machine.set_budget(3, 0);
    let stopped = space.copy_range(&child, pages(0, 1024), PRIVATE, &mut space.gather(&mut []));
    let done = RssStat { anon: 1, file: 1, tables: 3, ..RssStat::default() };
    assert_eq!(stopped, Err(Stopped { at: at(512), why: Error::NoTableFrame, done }));
    let stopped = space.map_swap_entry(pages(508, 4), 7);
    let done = RssStat { swap_entries: 2, ..RssStat::default() };
    assert_eq!(stopped, Err(Stopped { at: at(510), why: Error::Occupied, done }));
}

/// What takes the place of some pages of a folio, or leaves none, makes it partly mapped; what takes all does not.
#[test]
fn the_machine_hears_of_folios_that_are_partly_mapped() {
    let machine = Busy::new(4096);
    let space: AddressSpace<'_, X86_64, Busy> = AddressSpace::new(&machine, 1).unwrap();
    let heard = || std::mem::take(&mut *machine.partly_mapped.lock().unwrap());
    let zap = |range| space.zap(range, &mut space.gather(&mut [Slot::default(); 8])).unwrap();
    let map = |page| {
        map(&space, &machine.host, page, 3, FolioKind::Anon);
        let Mapping::Page { frame, .. } = space.query(at(page)) else { panic!() };
        frame
    };
    let first = map(16);
    zap(pages(18, 2));
    assert_eq!(heard(), [first]);
    zap(pages(16, 2));
    assert_eq!(heard(), [first]);
    zap(pages(16, 8));
    assert_eq!(heard(), [], "the last pages went, and the folio with them");

    let whole = map(16);
    zap(pages(0, 512));
    assert_eq!(heard(), []);
    // In two pieces with one flush.
    assert_eq!(map(16), whole);
    let mut slots = [Slot::default(); 8];
    let mut gather = space.gather(&mut slots);
    space.zap(pages(16, 3), &mut gather).unwrap();
    space.zap(pages(19, 5), &mut gather).unwrap();
    drop(gather);
    assert_eq!(heard(), [], "nothing of it was left when the TLB was flushed");

    // A child has all of it still.
    let shared = map(16);
    let child = AddressSpace::new(&machine, 2).unwrap();
    space.copy_range(&child, pages(0, 512), PRIVATE, &mut space.gather(&mut [])).unwrap();
    zap(pages(16, 1));
    assert_eq!(heard(), [], "as often mapped as it has pages");
    let fault = WriteFault { sharing: Sharing::Private, bounds: pages(0, 512), whole_folio: false };
    drop(child);
    assert_eq!(heard(), [shared]);
    let held = space.reference(at(20), None).unwrap();
    assert_eq!(space.write_fault(at(20), held.frame(), fault), Ok(Resolved::Copied(1)));
    assert_eq!(heard(), [shared]);
    drop(held);
    let swapped = space.swap_out(at(21), shared.add(5), 7, &mut space.gather(&mut []));
    assert_eq!((swapped, heard()), (Ok(true), vec![shared]));
}

/// A space that ends may have had but a part of a folio, of which another has a part as well.
#[test]
fn the_machine_hears_of_what_a_space_that_ends_leaves() {
    for slots in [0, 1, 2, 64] {
        let machine = Busy::new(4096);
        let heard = || std::mem::take(&mut *machine.partly_mapped.lock().unwrap());
        let space: AddressSpace<'_, X86_64, Busy> = AddressSpace::new(&machine, 1).unwrap();
        map(&space, &machine.host, 16, 4, FolioKind::Anon);
        let Mapping::Page { frame, .. } = space.query(at(16)) else { panic!() };
        let child = AddressSpace::new(&machine, 2).unwrap();
        space.copy_range(&child, pages(0, 512), PRIVATE, &mut space.gather(&mut [])).unwrap();
        child.zap(pages(21, 1), &mut child.gather(&mut [])).unwrap();
        space.zap(pages(19, 1), &mut space.gather(&mut [])).unwrap();
        assert_eq!(heard(), [], "as often mapped as it has pages, nearly twice");
        let mut slots = vec![Slot::default(); slots];
        child.exit(&mut slots);
        assert!(heard().contains(&frame), "{} slots", slots.len());
        space.exit(&mut slots);
        assert_eq!(FolioView::of(&machine, frame).err(), Some(isotherm_page::PageError::NotAFolio));
    }
}

/// Whoever acts on one page says which it saw.
#[test]
fn another_page_than_the_one_that_was_seen_is_refused() {
    let machine = HostMachine::new(1024);
    let space = AddressSpace::<Arm64Hafdbs, _>::new(&machine, 1).unwrap();
    map(&space, &machine, 16, 4, FolioKind::Anon);
    let Mapping::Page { frame, .. } = space.query(at(19)) else { panic!() };
    let fault = WriteFault { sharing: Sharing::Private, bounds: pages(16, 16), whole_folio: true };
    let before = space.query(at(19));
    for other in [frame.add(1), Frame(0), Frame(frame.0 - 3)] {
        assert_eq!(space.write_fault(at(19), other, fault), Err(Error::Changed));
        assert_eq!(space.mark_accessed(at(19), other, true), Err(Error::Changed));
        assert_eq!(space.pin(at(19), other).err(), Some(Error::Changed));
        assert_eq!(space.reference(at(19), other).err(), Some(Error::Changed));
    }
    assert_eq!((space.query(at(19)), machine.counts().copies), (before, 0));
    assert_eq!(space.write_fault(at(19), frame, fault), Ok(Resolved::Writable));
    assert_eq!(space.mark_accessed(at(19), frame, true), Ok(()));
    assert_eq!(space.pin(at(19), frame).map(|pinned| pinned.frame()), Ok(frame));
    assert_eq!(space.reference(at(19), frame).map(|folio| folio.frame()), Ok(frame));
    assert_eq!(space.reference(at(40), frame).err(), Some(Error::NotMapped));
}

//! What write-back and reclaim ask: which pages were dirty, which young, so that what comes after is seen again.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::{at, pages};
use isotherm_pagetable::host::HostMachine;
use isotherm_pagetable::*;

/// Pages of a file in a shared mapping, clean and old, in folios of this order.
fn mapped<F: Format>(machine: &HostMachine, order: u8, number: u64) -> AddressSpace<'_, F, HostMachine> {
    let space = AddressSpace::new(machine, 1).unwrap();
    let order = Order::new(order).unwrap();
    let attributes = Attributes { write: true, young: false, ..Attributes::file() };
    for n in (0..number).step_by(order.frames() as usize) {
        let folio = machine.folio(order, FolioKind::File).unwrap();
        space.map(pages(64 + n, order.frames()), folio.head(), attributes, Level::Pmd).unwrap();
    }
    space
}

fn write<F: Format>(space: &AddressSpace<'_, F, HostMachine>, page: u64) -> Result<(), Fault> {
    match space.read().access(at(page), Access::Write) {
        Err(Fault::Old | Fault::Clean) => {
            space.mark_accessed(at(page), None, true).unwrap();
            Ok(())
        }
        other => other.map(drop),
    }
}

/// Of each young page its frame, once; of what is huge or folded all.
#[test]
fn young_frames_are_named() {
    fn check<F: Format>(order: u8, block: u64) {
        let machine = HostMachine::new(2048);
        let space = mapped::<F>(&machine, order, 64);
        let named = |range: PageRange| {
            let mut named = Vec::new();
            let count = space.harvest_frames(range, |at, frame, pages| {
                named.extend((0..pages).map(|n| (at.page() + n, frame.add(n))));
            });
            assert_eq!(count.unwrap(), named.len() as u64);
            named
        };
        assert_eq!(named(pages(0, 600)), []);
        for page in [64, 100] {
            let access = space.read().access(at(page), Access::Read);
            if access == Err(Fault::Old) {
                space.mark_accessed(at(page), None, false).unwrap();
            }
        }
        let first = named(pages(0, 96));
        let frame = |page: u64| match space.query(at(page)) {
            Mapping::Page { frame, .. } => frame,
            other => panic!("{other:?}"),
        };
        assert_eq!(first, (64..64 + block).map(|page| (page, frame(page))).collect::<Vec<_>>());
        let second: Vec<u64> = named(pages(96, 500)).iter().map(|one| one.0).collect();
        let start = 100 / block * block;
        assert_eq!(second, (start..start + block).collect::<Vec<_>>());
        assert_eq!(named(pages(0, 600)), []);
    }
    check::<X86_64>(0, 1);
    check::<Arm64Hafdbs>(4, 16);
    check::<Arm64Software>(0, 1);
}

/// Which pages are dirty at a harvest; `block` pages are as one.
fn each_write_is_found_once<F: Format>(order: u8, block: u64) {
    let machine = HostMachine::new(512);
    let space = mapped::<F>(&machine, order, 64);
    let range = pages(64, 64);
    let harvest = |range: PageRange| {
        let (mut bitmap, mut slots) = ([0], [Slot::default(); 4]);
        let mut gather = space.gather(&mut slots);
        let dirty = space.mkclean(range, &mut bitmap, &mut gather).unwrap();
        assert_eq!(u64::from(bitmap[0].count_ones()), dirty);
        gather.flush();
        (bitmap[0], gather.flushes())
    };
    for page in [3, 40] {
        write(&space, 64 + page).unwrap();
    }
    let of = |page: u64| (u64::MAX >> (64 - block)) << (page - page % block);
    // Flushed, since a CPU may know that they may be written.
    assert_eq!(harvest(range), (of(3) | of(40), 1));
    assert_eq!(harvest(range), (0, 0), "nothing is left to do");
    // Whoever writes faults first.
    assert_eq!(write(&space, 64 + 3), Err(Fault::Protection));
    let fault = WriteFault { sharing: Sharing::Shared, bounds: range, whole_folio: false };
    assert_eq!(space.write_fault(at(64 + 3), None, fault), Ok(Resolved::Reused(1)));
    assert_eq!(harvest(pages(64 + 8, 56)), (0, 0));
    assert_eq!(harvest(pages(64, 8)), (1 << 3, 1));
}

#[test]
fn each_write_is_found_once_by_write_back() {
    each_write_is_found_once::<X86_64>(0, 1);
    each_write_is_found_once::<X86_64>(4, 1);
    each_write_is_found_once::<Arm64Hafdbs>(0, 1);
    each_write_is_found_once::<Arm64Hafdbs>(4, 16);
    each_write_is_found_once::<Arm64Software>(4, 16);
    each_write_is_found_once::<RiscV<Sv39>>(2, 1);
}

/// Of a block that the range cuts only that part is made clean, and the rest stays dirty and writable.
#[test]
fn what_is_not_in_the_range_stays_as_it_is() {
    let machine = HostMachine::new(512);
    let space = mapped::<Arm64Hafdbs>(&machine, 4, 16);
    write(&space, 64 + 2).unwrap();
    let mut bitmap = [0];
    assert_eq!(space.mkclean(pages(64 + 8, 4), &mut bitmap, &mut space.gather(&mut [])), Ok(4));
    assert_eq!(bitmap, [0b1111]);
    for page in 0..16 {
        let Mapping::Page { attributes, .. } = space.query(at(64 + page)) else { panic!("gone") };
        let inside = (8..12).contains(&page);
        assert_eq!((attributes.dirty, attributes.write), (!inside, !inside), "page {page}");
    }
}

#[test]
fn an_access_after_the_flush_is_seen_again() {
    let machine = HostMachine::new(512);
    let space = mapped::<X86_64>(&machine, 0, 64);
    space.read().access(at(64 + 5), Access::Read).unwrap();
    let clear = |range| {
        let (mut bitmap, mut slots) = ([0], [Slot::default(); 1]);
        let mut gather = space.gather(&mut slots);
        let young = space.clear_flush_young(range, &mut bitmap, &mut gather).unwrap();
        gather.flush();
        (young, bitmap[0], gather.flushes())
    };
    assert_eq!(clear(pages(64, 5)), (0, 0, 0), "nothing changed, nothing is flushed");
    assert_eq!(clear(pages(64, 64)), (1, 1 << 5, 1));
    assert_eq!(clear(pages(64, 64)), (0, 0, 0));
}

/// A page that the reverse map says is there is made old if it is, and its translation goes from TLBs; no other is. Pages that are
/// `block` together are old together.
fn a_page_is_made_old_by_its_frame<F: Format>(order: u8, block: u64) {
    let machine = HostMachine::new(512);
    let space = mapped::<F>(&machine, order, 64);
    let granule = 1 << F::GRANULE;
    let (here, other) = (64 + 2 * granule, 64 + 32 * granule);
    let frame = |page| match space.query(at(page)) {
        Mapping::Page { frame, .. } => frame,
        none => panic!("{none:?}"),
    };
    let young = |first, count: u64| space.test_young(pages(first, count), &mut []).unwrap();
    let all = young(64, 64);
    for page in [here, other] {
        space.mark_accessed(at(page), None, false).unwrap();
    }
    let marked = young(64, 64);
    assert!(marked >= all.max(2 * block.max(granule)));
    let clear = |page, frame| {
        let mut slots = [Slot::default(); 1];
        let mut gather = space.gather(&mut slots);
        let young = space.clear_flush_young_page(at(page), frame, &mut gather);
        gather.flush();
        (young, gather.flushes())
    };
    // Another frame than what is there, a hole, and what is no page of the space.
    assert_eq!(clear(here, frame(other)), (Err(Error::Changed), 0));
    assert_eq!(clear(1 << 10, frame(here)), (Err(Error::Changed), 0));
    assert_eq!(clear(1 << 51, frame(here)).0, Err(Error::NotCanonical));
    assert_eq!(young(64, 64), marked, "nothing was made old");
    assert_eq!(clear(here, frame(here)), (Ok(true), 1));
    assert_eq!(young(64, 64), marked - block.max(granule));
    assert_eq!(young(other, granule), granule);
    assert_eq!(clear(here, frame(here)), (Ok(false), 0), "nothing changed, nothing is flushed");
    space.mark_accessed(at(here), None, false).unwrap();
    assert_eq!(clear(here, frame(here)), (Ok(true), 1));
}

#[test]
fn reclaim_makes_a_page_old_that_is_still_there() {
    a_page_is_made_old_by_its_frame::<X86_64>(0, 1);
    a_page_is_made_old_by_its_frame::<X86_64>(4, 1);
    a_page_is_made_old_by_its_frame::<Arm64Hafdbs>(4, 16);
    a_page_is_made_old_by_its_frame::<Arm64Software>(4, 16);
    a_page_is_made_old_by_its_frame::<RiscV<Sv39>>(2, 1);
}

/// Of a huge leaf all pages are one.
#[test]
fn a_huge_leaf_is_made_old_by_the_frame_of_any_page() {
    let machine = HostMachine::new(2048);
    let folio = machine.folio(Order::new(9).unwrap(), FolioKind::Anon).unwrap();
    let space = AddressSpace::<X86_64, _>::new(&machine, 1).unwrap();
    space.map(pages(512, 512), folio.head(), Attributes::anonymous(), Level::Pmd).unwrap();
    let mut slots = [Slot::default(); 1];
    let mut gather = space.gather(&mut slots);
    let mut clear = |frame| space.clear_flush_young_page(at(512 + 7), frame, &mut gather);
    assert_eq!(clear(folio.head()), Err(Error::Changed));
    assert_eq!(clear(folio.head().add(7)), Ok(true));
    assert_eq!(clear(folio.head().add(7)), Ok(false));
    assert_eq!(space.test_young(pages(512, 512), &mut []), Ok(0));
    gather.flush();
    assert_eq!(gather.flushes(), 1);
}

//! What is known of a folio while it is unmapped: who may take a reference, and since when it is dirty.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::{at, pages, prepare, swap_out, take};
use isotherm_pagetable::host::HostMachine;
use isotherm_pagetable::*;

fn mapped<'m>(
    machine: &'m HostMachine,
    kind: FolioKind,
    order: u8,
) -> (AddressSpace<'m, X86_64, HostMachine>, Folio<'m, HostMachine>) {
    let space = AddressSpace::new(machine, 1).unwrap();
    let folio = prepare(machine, take(machine, order).unwrap(), order, kind).unwrap();
    let attributes = Attributes { write: true, dirty: true, ..Attributes::file() };
    space.map(pages(16, 1 << order), folio.head(), attributes, Level::Pte).unwrap();
    (space, folio)
}

/// Until the flush a CPU may go on writing through its TLB. Whoever takes the dirty bit before, to write the folio back,
/// must find it again, or what came after is lost.
#[test]
fn a_file_is_dirty_for_as_long_as_it_may_be_written() {
    type Remove = fn(&AddressSpace<'_, X86_64, HostMachine>, PageRange, &mut Gather<'_, HostMachine>);
    let ways: [(&str, Remove); 2] = [
        ("zap", |space, range, gather| assert!(space.zap(range, gather).is_ok())),
        ("swap_out", |space, range, gather| {
            (0..range.pages()).for_each(|n| {
                assert!(swap_out(space, at(range.start().page() + n), 7, gather).unwrap());
            });
        }),
    ];
    for order in [0, 2] {
        for (name, remove) in ways {
            let machine = HostMachine::new(64);
            let (space, folio) = mapped(&machine, FolioKind::File, order);
            let range = pages(16, 1 << order);
            let mut slots = [Slot::default(); 8];
            let mut gather = space.gather(&mut slots);
            remove(&space, range, &mut gather);
            let _early = folio.take_dirty();
            gather.flush();
            assert!(
                folio.take_dirty(),
                "{name}, order {order}: what was written after the first look is lost"
            );
            assert!(folio.take_referenced(), "{name}, order {order}");
            assert_eq!(folio.refs(), 1);
            gather.flush();
            assert!(!folio.take_dirty(), "{name}, order {order}: returned once");
        }
    }
}

/// A lookup without a lock may find what is being freed.
#[test]
fn of_a_folio_that_is_free_nobody_gets_a_reference() {
    let machine = HostMachine::new(64);
    let (space, folio) = mapped(&machine, FolioKind::Anon, 2);
    drop(folio);
    let free = machine.free_frames();
    let Mapping::Page { frame, .. } = space.read().lookup(at(18)) else { panic!() };
    assert!(FolioView::of(&machine, frame).is_ok());
    space.zap(pages(16, 4), &mut space.gather(&mut [])).unwrap();
    assert_eq!(machine.free_frames(), free + 4);
    assert_eq!(Folio::get(&machine, frame).err(), Some(isotherm_page::PageError::NotAFolio));
    assert_eq!(machine.free_frames(), free + 4, "it was freed once");
}

#[test]
fn a_reference_keeps_the_page_after_its_mapping() {
    let machine = HostMachine::new(64);
    let (space, folio) = mapped(&machine, FolioKind::Anon, 2);
    let (head, view) = (folio.head(), folio.view());
    drop(folio);
    let free = machine.free_frames();
    let reference = space.reference(at(18), None).unwrap();
    assert_eq!(reference.frame(), head.add(2));
    space.zap(pages(16, 4), &mut space.gather(&mut [])).unwrap();
    assert_eq!((view.refs(), view.maps(), machine.free_frames()), (1, 0, free));
    drop(reference);
    assert_eq!(machine.free_frames(), free + 4);
    assert_eq!(space.reference(at(18), None).err(), Some(Error::NotMapped));
    space.map_swap_entry(pages(18, 1), 7).unwrap();
    assert_eq!(space.reference(at(18), None).err(), Some(Error::NotMapped));
    let device = Attributes { special: true, ..Attributes::file() };
    space.map(pages(19, 1), Frame(1 << 20), device, Level::Pte).unwrap();
    assert_eq!(space.reference(at(19), None).err(), Some(Error::NotMapped));
    assert_eq!(space.reference(VirtAddr(1 << 60), None).err(), Some(Error::NotCanonical));
}

/// A pin that was taken without the table's lock keeps the memory, but a write fault after a fork maps a copy all the same;
/// the pin of the address space is refused there.
#[test]
fn a_pin_of_the_folio_keeps_it_and_not_the_mapping() {
    let machine = HostMachine::new(64);
    let space: AddressSpace<'_, X86_64, HostMachine> = AddressSpace::new(&machine, 1).unwrap();
    let folio = prepare(&machine, take(&machine, 0).unwrap(), 0, FolioKind::Anon).unwrap();
    space.map(pages(16, 1), folio.head(), Attributes::anonymous(), Level::Pte).unwrap();
    let child = AddressSpace::new(&machine, 2).unwrap();
    let rule = ForkRule::Copy(Sharing::Private);
    space.copy_range(&child, pages(16, 1), rule, &mut space.gather(&mut [])).unwrap();
    assert_eq!(space.pin(at(16), None).err(), Some(Error::NotPermitted));
    let pinned = folio.pin();
    let fault = WriteFault { sharing: Sharing::Private, bounds: pages(16, 1), whole_folio: false };
    assert_eq!(space.write_fault(at(16), None, fault), Ok(Resolved::Copied(1)));
    assert!(matches!(space.query(at(16)), Mapping::Page { frame, .. } if frame != pinned.frame()));
    assert!(matches!(child.query(at(16)), Mapping::Page { frame, .. } if frame == pinned.frame()));
    drop(child);
    assert_eq!((pinned.refs(), pinned.maps(), pinned.pins()), (1, 0, 1));
}

//! Memory that is given up until it is written to: which pages are, that each write is found, and what becomes of swap entries.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::{at, pages};
use isotherm_pagetable::host::HostMachine;
use isotherm_pagetable::*;

/// Anonymous pages, written to, in folios of this order, from page 64 on.
fn mapped<F: Format>(machine: &HostMachine, order: u8, number: u64) -> AddressSpace<'_, F, HostMachine> {
    let space = AddressSpace::new(machine, 1).unwrap();
    let order = Order::new(order).unwrap();
    for n in (0..number).step_by(order.frames() as usize) {
        let folio = machine.folio(order, FolioKind::Anon).unwrap();
        space.map(pages(64 + n, order.frames()), folio.head(), Attributes::anonymous(), Level::Pmd).unwrap();
    }
    space
}

fn write<F: Format>(space: &AddressSpace<'_, F, HostMachine>, page: u64) {
    loop {
        match space.read().access(at(page), Access::Write) {
            Ok(_) => return,
            Err(Fault::Old | Fault::Clean) => space.mark_accessed(at(page), None, true).unwrap(),
            Err(why) => panic!("{why:?}: it stays writable"),
        }
    }
}

fn lazy_free<F: Format>(
    space: &AddressSpace<'_, F, HostMachine>,
    range: PageRange,
) -> (RssStat, Vec<(u64, bool)>) {
    let mut slots = [Slot::default(); 4];
    let mut gather = space.gather(&mut slots);
    let mut runs = Vec::new();
    let done = space.lazy_free(range, &mut gather, |_, at, freed| runs.push((at.page(), freed)));
    gather.flush();
    (done.unwrap(), runs)
}

fn state<F: Format>(space: &AddressSpace<'_, F, HostMachine>, page: u64) -> (bool, bool, bool, bool) {
    let Mapping::Page { frame, attributes, .. } = space.query(at(page)) else { panic!("nothing at {page}") };
    let lazy = FolioView::of(space.machine(), frame).unwrap().is_lazy_free();
    (lazy, attributes.dirty, attributes.young, attributes.write)
}

#[test]
fn what_is_given_up_is_clean_until_it_is_written_to() {
    fn check<F: Format>(order: u8) {
        let machine = HostMachine::new(2048);
        let space = mapped::<F>(&machine, order, 64);
        let folios = 64 >> order;
        let (done, runs) = lazy_free(&space, pages(0, 600));
        assert_eq!((done.anon, done.swap_entries), (64, 0), "{}", F::NAME);
        assert_eq!(runs, (0..folios).map(|n| (64 + (n << order), true)).collect::<Vec<_>>());
        assert!((64..128).all(|page| state(&space, page) == (true, false, false, true)), "{}", F::NAME);
        write(&space, 64 + 20);
        let mut bitmap = [0];
        let found = space.mkclean(pages(64, 64), &mut bitmap, &mut space.gather(&mut [])).unwrap();
        let block = if order == 4 && F::CONTIGUOUS > 1 { 16 } else { 1 };
        assert_eq!((found, bitmap[0] >> 20 & 1), (block, 1), "{}", F::NAME);
    }
    check::<X86_64>(0);
    check::<X86_64>(4);
    check::<Arm64Hafdbs>(0);
    check::<Arm64Hafdbs>(4);
    check::<Arm64Software>(4);
    check::<RiscV<Sv39>>(0);
}

/// A folio is given up as a whole: if the range cuts it, or somebody else maps it, it is not.
#[test]
fn a_folio_that_others_map_or_the_range_cuts_is_kept() {
    fn check<F: Format>() {
        let machine = HostMachine::new(2048);
        let space = mapped::<F>(&machine, 4, 64);
        let (done, runs) = lazy_free(&space, pages(64 + 8, 40));
        assert_eq!(done.anon, 32, "two of the middle");
        assert_eq!(runs, [(72, false), (80, true), (96, true)]);
        assert_eq!(state(&space, 64 + 8), (false, true, true, true));
        let child = AddressSpace::<F, _>::new(&machine, 2).unwrap();
        let rule = ForkRule::Copy(Sharing::Private);
        space.copy_range(&child, pages(64, 16), rule, &mut space.gather(&mut [])).unwrap();
        assert_eq!(lazy_free(&space, pages(64, 16)).0.anon, 0);
        assert!(state(&space, 64).1 && state(&child, 64).1);
        drop(child);
        assert_eq!(lazy_free(&space, pages(64, 16)).0.anon, 16);
    }
    check::<X86_64>();
    check::<Arm64Hafdbs>();
}

#[test]
fn a_huge_leaf_is_given_up_as_a_whole() {
    fn check<F: Format>() {
        let machine = HostMachine::new(2048);
        let space = AddressSpace::<F, _>::new(&machine, 1).unwrap();
        let folio = machine.folio(Order::HUGE, FolioKind::Anon).unwrap();
        space.map(pages(512, 512), folio.head(), Attributes::anonymous(), Level::Pmd).unwrap();
        drop(folio);
        let (done, runs) = lazy_free(&space, pages(600, 10));
        assert_eq!((done.anon, runs), (0, vec![(600, false)]));
        assert!(state(&space, 600).1);
        assert_eq!(lazy_free(&space, pages(512, 512)).0.anon, 512);
        assert_eq!(state(&space, 600), (true, false, false, true));
        // Split into entries, each page is written to by itself, or each block.
        space.split(at(520)).unwrap();
        write(&space, 521);
        assert_eq!((state(&space, 560).1, state(&space, 521).1), (false, true));
    }
    check::<X86_64>();
    check::<Arm64Hafdbs>();
}

#[test]
fn only_what_is_clean_still_is_replaced_by_nothing() {
    let machine = HostMachine::new(512);
    let space = mapped::<X86_64>(&machine, 0, 2);
    lazy_free(&space, pages(64, 2));
    let frame = |page| match space.query(at(page)) {
        Mapping::Page { frame, .. } => frame,
        other => panic!("{other:?}"),
    };
    let mut slots = [Slot::default(); 4];
    let mut gather = space.gather(&mut slots);
    let drop_page = |page: u64, gather: &mut Gather<'_, _>| {
        space.replace(at(page), Seen::Clean(frame(page)), Replacement::Nothing, gather)
    };
    assert_eq!(drop_page(64, &mut gather), Err(Error::Changed), "it may be written");
    assert_eq!(space.mkclean(pages(64, 2), &mut [], &mut gather), Ok(0));
    space
        .write_fault(
            at(65),
            None,
            WriteFault { sharing: Sharing::Private, bounds: pages(64, 2), whole_folio: false },
        )
        .unwrap();
    assert_eq!(drop_page(65, &mut gather), Err(Error::Changed), "it was written");
    let free = machine.free_frames();
    assert!(drop_page(64, &mut gather).is_ok());
    gather.flush();
    assert_eq!((space.query(at(64)), machine.free_frames()), (Mapping::None, free + 1));
}

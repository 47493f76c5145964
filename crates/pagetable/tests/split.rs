//! A folio split while it is mapped: every piece has the mappings of its pages, and whoever uses the folio otherwise keeps it
//! whole.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::{Busy, at, pages, prepare, take};
use isotherm_pagetable::host::HostMachine;
use isotherm_pagetable::*;

type Host<'m, F> = AddressSpace<'m, F, HostMachine>;

fn slots<'m, F: Format, M: Machine>() -> [TableSlot<'m, F, M>; 16] {
    std::array::from_fn(|_| TableSlot::default())
}

fn split<'m, F: Format>(
    folio: Folio<'m, HostMachine>,
    order: u8,
    mapped: &[(&Host<'m, F>, PageRange)],
) -> Result<Pieces<'m, HostMachine>, (Error, Folio<'m, HostMachine>)> {
    let mapped: Vec<_> = mapped.iter().map(|&(space, range)| MappedIn { space, range }).collect();
    split_folio(folio, Order::new(order).unwrap(), &mapped, &mut slots())
}

fn fork<'m, F: Format, M: Machine + Tlb<Context = u16>>(
    space: &AddressSpace<'m, F, M>,
    range: PageRange,
) -> AddressSpace<'m, F, M> {
    let child = AddressSpace::new(space.machine(), 2).unwrap();
    let rule = ForkRule::Copy(Sharing::Private);
    space.copy_range(&child, range, rule, &mut space.gather(&mut [])).unwrap();
    child
}

fn zap<F: Format, M: Machine>(space: &AddressSpace<'_, F, M>, range: PageRange) {
    space.zap(range, &mut space.gather(&mut [])).unwrap();
}

fn page<F: Format, M: Machine>(space: &AddressSpace<'_, F, M>, page: u64) -> (Frame, Attributes) {
    match space.query(at(page)) {
        Mapping::Page { frame, attributes, .. } => (frame, attributes),
        other => panic!("page {page:#x}: {other:?}"),
    }
}

/// A folio, mapped as a whole from page 512 on; the reference comes along.
fn mapped<F: Format>(machine: &HostMachine, order: u8) -> (Host<'_, F>, Folio<'_, HostMachine>) {
    let space = AddressSpace::new(machine, 1).unwrap();
    let folio = prepare(machine, take(machine, order).unwrap(), order, FolioKind::Anon).unwrap();
    space.map(pages(512, 1 << order), folio.head(), Attributes::anonymous(), Level::Pmd).unwrap();
    (space, folio)
}

/// By a huge leaf, by its table after a split, by a table of which pages are gone, and moved across two tables.
fn four_spaces<F: Format>(to: u8) {
    let machine = HostMachine::new(4096);
    let free = machine.free_frames();
    let (space, folio) = mapped::<F>(&machine, 9);
    let head = folio.head();
    for n in 0..512 {
        machine.write(head.add(n).address(), 7000 + n).unwrap();
    }
    let whole = pages(512, 512);
    let (table, part, moved) = (fork(&space, whole), fork(&space, whole), fork(&space, whole));
    table.split(at(512)).unwrap();
    zap(&part, pages(600, 100));
    moved.split(at(512)).unwrap();
    moved.remap(whole, at(1536 - 100)).unwrap();
    let (before, again) = (page(&space, 512).1, page(&part, 512).1);
    assert_eq!((folio.maps(), folio.refs()), (4 * 512 - 100, 4 * 512 - 99));
    let everywhere = [
        (&space, whole),
        (&table, whole),
        (&part, pages(512, 1)),
        (&moved, pages(1436, 512)),
        // Twice, and where nothing is.
        (&table, pages(700, 900)),
        (&part, pages(1 << 20, 4096)),
    ];
    let pieces: Vec<_> = split(folio, to, &everywhere).unwrap().collect();
    assert_eq!(pieces.len(), 512 >> to);
    for (piece, first) in pieces.iter().zip((0..512).step_by(1 << to)) {
        let gone = (first..first + (1 << to)).filter(|n| (88..188).contains(n)).count() as u32;
        let maps = (4 << to) - gone;
        assert_eq!((piece.head(), piece.order().get()), (head.add(first), to));
        assert_eq!((piece.maps(), piece.refs()), (maps, maps + 1), "piece from page {first} on");
    }
    for n in (0..512).step_by(37) {
        for (space, from) in [(&space, 512), (&table, 512), (&part, 512), (&moved, 1436)] {
            if std::ptr::eq(space, &part) && (88..188).contains(&n) {
                assert_eq!(space.query(at(from + n)), Mapping::None);
                continue;
            }
            let (frame, attributes) = page(space, from + n);
            assert_eq!(frame, head.add(n));
            assert_eq!(machine.read(frame.address()), Some(7000 + n));
            assert!(!attributes.write && !attributes.exclusive && attributes.dirty == before.dirty);
            assert_eq!((attributes.user, attributes.execute), (again.user, again.execute));
        }
    }
    // Every piece goes with its own last mapping.
    drop(pieces);
    zap(&space, pages(512, 1 << to));
    for space in [space, table, part, moved] {
        drop(space);
    }
    assert_eq!(machine.free_frames(), free);
}

#[test]
#[cfg_attr(miri, ignore = "thousands of entries")]
fn pieces_have_the_mappings_of_their_pages_in_every_space() {
    for to in [0, 3, 8] {
        four_spaces::<X86_64>(to);
        four_spaces::<Arm64Hafdbs>(to);
        four_spaces::<RiscV<Sv48, Svadu>>(to);
    }
}

/// The page tables say which folios a zap has left partly mapped; split, what is mapped nowhere is free.
#[test]
#[cfg_attr(miri, ignore = "thousands of entries")]
fn a_folio_that_is_partly_mapped_gives_its_rest_back() {
    let machine = Busy::new(4096);
    let space: AddressSpace<'_, X86_64, Busy> = AddressSpace::new(&machine, 1).unwrap();
    let folio = prepare(&machine, take(&machine.host, 9).unwrap(), 9, FolioKind::Anon).unwrap();
    space.map(pages(512, 512), folio.head(), Attributes::anonymous(), Level::Pmd).unwrap();
    drop(folio);
    let child = fork(&space, pages(512, 512));
    zap(&space, pages(520, 504));
    zap(&child, pages(512, 500));
    let before = machine.host.free_frames();
    let mut queue = std::mem::take(&mut *machine.partly_mapped.lock().unwrap());
    queue.dedup();
    assert_eq!(queue.len(), 1, "it was heard of");
    for head in queue {
        let folio = Folio::get(&machine, head).unwrap();
        assert!(folio.is_partly_mapped() || folio.maps() > 0);
        let mapped = [&space, &child].map(|space| MappedIn { space, range: pages(512, 512) });
        drop(split_folio(folio, Order::BASE, &mapped, &mut slots()).unwrap());
    }
    assert_eq!(machine.host.free_frames(), before + 512 - 8 - 12);
    assert!(FolioView::of(&machine, page(&space, 519).0).is_ok_and(|folio| folio.order() == Order::BASE));
    zap(&space, pages(512, 8));
    assert_eq!(machine.host.free_frames(), before + 512 - 12);
}

#[test]
fn whoever_uses_the_folio_otherwise_keeps_it_whole() {
    let (machine, other) = (HostMachine::new(2048), HostMachine::new(64));
    let (space, folio) = mapped::<X86_64>(&machine, 4);
    let (whole, here) = (pages(512, 16), (&space, pages(512, 16)));
    fn refused<'m>(
        folio: Folio<'m, HostMachine>,
        mapped: &[(&Host<'m, X86_64>, PageRange)],
        expected: Error,
    ) -> Folio<'m, HostMachine> {
        let head = folio.head();
        let (why, folio) = split(folio, 0, mapped).unwrap_err();
        assert_eq!((why, folio.order().get(), folio.head()), (expected, 4, head));
        folio
    }
    let pinned = space.pin(at(515), None).unwrap();
    let folio = refused(folio, &[here], Error::Pinned);
    drop(pinned);
    let reference = space.reference(at(515), None).unwrap();
    let folio = refused(folio, &[here], Error::Referenced);
    drop(reference);
    let folio = refused(folio, &[], Error::Changed);
    let child = fork(&space, whole);
    let folio = refused(folio, &[here], Error::Changed);
    // Its own pages wait for the flush.
    let mut room = [Slot::default(); 8];
    let mut gather = child.gather(&mut room);
    child.zap(pages(512, 3), &mut gather).unwrap();
    let folio = refused(folio, &[here, (&child, whole)], Error::Changed);
    drop(gather);
    let both = [MappedIn { space: &space, range: whole }, MappedIn { space: &child, range: whole }];
    let one = &mut slots()[..1];
    let (why, folio) = split_folio(folio, Order::BASE, &both, one).unwrap_err();
    assert_eq!((why, folio.maps()), (Error::TooManyTables, 29));
    let elsewhere = Host::<X86_64>::new(&other, 1).unwrap();
    let (why, folio) =
        split_folio(folio, Order::BASE, &[MappedIn { space: &elsewhere, range: whole }], &mut slots())
            .unwrap_err();
    assert_eq!(why, Error::OtherMachine);
    let folio = refused(folio, &[(&space, pages(1 << 51, 1))], Error::NotCanonical);
    // No table for the huge leaf: nothing is changed.
    let (huge, second) = mapped::<X86_64>(&machine, 9);
    machine.set_budget(0, 0);
    let (why, second) = split(second, 0, &[(&huge, pages(512, 512))]).unwrap_err();
    assert_eq!((why, second.order(), second.maps()), (Error::NoTableFrame, MAX_ORDER, 512));
    assert!(matches!(huge.query(at(600)), Mapping::Page { level: Level::Pmd, .. }));
    // As large as it is already.
    assert_eq!(split::<X86_64>(second, 9, &[]).unwrap().len(), 1);
    assert_eq!(split(folio, 1, &[here, (&child, whole)]).unwrap().len(), 8);
}

/// A piece that is exclusive stays so: its next write fault copies nothing.
#[test]
fn what_belonged_to_one_space_alone_still_does() {
    let machine = HostMachine::new(512);
    let (space, folio) = mapped::<X86_64>(&machine, 4);
    drop(split(folio, 2, &[(&space, pages(512, 16))]).unwrap());
    assert!(page(&space, 515).1.exclusive && page(&space, 515).1.write);
    let range = pages(512, 16);
    space.write_protect(range, &mut space.gather(&mut [])).unwrap();
    let fault = WriteFault { sharing: Sharing::Private, bounds: range, whole_folio: true };
    assert_eq!(space.write_fault(at(517), None, fault), Ok(Resolved::Reused(4)), "the piece alone");
}

#[test]
fn blocks_larger_than_the_pieces_are_unfolded() {
    let contiguous = |space: &Host<'_, Arm64Hafdbs>, page| match space.query(at(page)) {
        Mapping::Page { contiguous, attributes, .. } => (contiguous, attributes.dirty),
        other => panic!("{other:?}"),
    };
    for to in [0, 3, 4, 5] {
        let machine = HostMachine::new(512);
        let (space, folio) = mapped::<Arm64Hafdbs>(&machine, 6);
        assert_eq!(contiguous(&space, 540), (true, true));
        let pieces = split(folio, to, &[(&space, pages(512, 64))]).unwrap();
        for page in 512..576 {
            assert_eq!(contiguous(&space, page), (to >= 4, true), "order {to}, page {page}");
        }
        assert_eq!(machine.counts().unfolds, if to >= 4 { 0 } else { 4 });
        drop(pieces);
    }
}

#[test]
#[cfg_attr(miri, ignore = "thousands of entries")]
fn no_piece_is_smaller_than_a_leaf() {
    type F = Arm64<Hafdbs, Granule16K>;
    let machine = HostMachine::new(4096);
    let space = Host::<F>::new(&machine, 1).unwrap();
    let folio = prepare(&machine, take(&machine, 9).unwrap(), 9, FolioKind::Anon).unwrap();
    let (head, whole) = (folio.head(), pages(512, 512));
    space.map(whole, head, Attributes::anonymous(), Level::Pte).unwrap();
    let (why, folio) = split(folio, 1, &[(&space, whole)]).unwrap_err();
    assert_eq!(why, Error::Misaligned);
    for (n, piece) in split(folio, 2, &[(&space, whole)]).unwrap().enumerate() {
        assert_eq!((piece.head(), piece.maps(), piece.refs()), (head.add(4 * n as u64), 4, 5));
    }
}

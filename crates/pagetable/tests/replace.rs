//! Pages that nobody may access, and pages and swap entries in the place of each other.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::{at, pages, swap_out};
use isotherm_pagetable::host::HostMachine;
use isotherm_pagetable::*;

fn folio(machine: &HostMachine, order: u8) -> Folio<'_, HostMachine> {
    machine.folio(Order::new(order).unwrap(), FolioKind::Anon).unwrap()
}

fn mapped<'m, F: Format>(machine: &'m HostMachine, page: u64, order: u8) -> AddressSpace<'m, F, HostMachine> {
    let space = AddressSpace::new(machine, 1).unwrap();
    let folio = folio(machine, order);
    space.map(pages(page, 1 << order), folio.head(), Attributes::anonymous(), Level::Pmd).unwrap();
    space
}

fn attributes<F: Format>(space: &AddressSpace<'_, F, HostMachine>, page: u64) -> Attributes {
    match space.query(at(page)) {
        Mapping::Page { attributes, .. } => attributes,
        other => panic!("{other:?} at page {page}"),
    }
}

fn nobody_may_access<F: Format>() {
    let orders: &[u8] = if cfg!(miri) { &[0, 4] } else { &[0, 4, 9] };
    for &order in orders {
        let machine = HostMachine::new(4096);
        let free = machine.free_frames();
        let space = mapped::<F>(&machine, 512, order);
        let (range, before) = (pages(512, 1 << order), space.query(at(512)));
        let protect = |protection| {
            space.protect(range, protection, Sharing::Private, &mut space.gather(&mut [])).unwrap();
        };
        protect(Protection::NONE);
        for access in [Access::Read, Access::Write, Access::Execute] {
            assert_eq!(space.read().access(at(512), access), Err(Fault::NotPresent));
        }
        // It is mapped all the same: with its frame, its bits and its references.
        let expected = Attributes { no_access: true, write: false, ..Attributes::anonymous() };
        assert_eq!(attributes(&space, 512), expected);
        let mut runs = 0;
        space.runs(range, |run| runs += run.pages).unwrap();
        assert_eq!(runs, range.pages());
        let Mapping::Page { frame, .. } = before else { panic!("not mapped") };
        assert_eq!(FolioView::of(&machine, frame).unwrap().maps(), 1 << order);
        let fault = WriteFault { sharing: Sharing::Private, bounds: range, whole_folio: true };
        assert_eq!(space.write_fault(at(512), None, fault), Err(Error::NotPermitted));
        assert_eq!(space.mark_accessed(at(512), None, false), Err(Error::NotPermitted));
        assert_eq!(space.pin(at(512), None).err(), Some(Error::NotPermitted));
        // A fork copies it as it is.
        let child = AddressSpace::new(&machine, 2).unwrap();
        let rule = ForkRule::Copy(Sharing::Private);
        space.copy_range(&child, range, rule, &mut space.gather(&mut [])).unwrap();
        assert!(attributes(&child, 511 + (1 << order)).no_access);
        assert_eq!(FolioView::of(&machine, frame).unwrap().maps(), 2 << order);
        drop(child);
        // Permitted again, and nobody needs a flush for it: it was in no TLB.
        machine.reset_counts();
        protect(Protection::READ);
        let counts = machine.counts();
        assert_eq!((counts.tlb_pages, counts.tlb_ranges, counts.tlb_syncs), (0, 0, 0));
        let after = space.query(at(512));
        let expected = Attributes { write: false, exclusive: false, ..Attributes::anonymous() };
        let contiguous = F::CONTIGUOUS > 1 && order == 4;
        assert!(
            matches!((before, after), (Mapping::Page { frame: a, level: l, contiguous: c, .. },
            Mapping::Page { frame: b, level: m, contiguous: d, attributes })
            if (a, l, c) == (b, m, d) && c == contiguous && attributes == expected),
            "{before:?} {after:?}"
        );
        drop(space);
        assert_eq!(machine.free_frames(), free);
    }
}

#[test]
fn nobody_may_access_a_page_of_prot_none() {
    nobody_may_access::<X86_64>();
    nobody_may_access::<Arm64Hafdbs>();
}

/// Of a huge leaf and of a run of its parts the frames are those that they were.
#[test]
#[cfg_attr(miri, ignore = "tables of 512 entries, several times")]
fn frames_stay_where_nobody_may_access_them() {
    let machine = HostMachine::new(4096);
    let space = mapped::<X86_64>(&machine, 512, 9);
    let Mapping::Page { frame: head, .. } = space.query(at(512)) else { panic!("not mapped") };
    let protect = |range, protection| {
        space.protect(range, protection, Sharing::Private, &mut space.gather(&mut [])).unwrap();
    };
    protect(pages(512, 512), Protection::NONE);
    space.split(at(512)).unwrap();
    space.remap(pages(600, 100), at(2048)).unwrap();
    protect(pages(512, 40), Protection::READ_WRITE);
    for n in 0..512 {
        let page = if (88..188).contains(&n) { 2048 + n - 88 } else { 512 + n };
        let Mapping::Page { frame, attributes, level, .. } = space.query(at(page)) else {
            panic!("gone: {n}")
        };
        assert_eq!((frame, level), (head.add(n), Level::Pte));
        assert_eq!((attributes.no_access, attributes.write), (n >= 40, n < 40));
    }
    space.remap(pages(2048, 100), at(600)).unwrap();
    protect(pages(512, 40), Protection::NONE);
    assert_eq!(space.collapse(at(512), 0, &mut space.gather(&mut [])), Ok(Collapsed::InPlace));
    assert!(matches!(space.query(at(777)), Mapping::Page { frame, level: Level::Pmd, attributes, .. }
        if frame == head.add(265) && attributes.no_access));
}

fn swap_entry(space: &AddressSpace<'_, X86_64, HostMachine>, page: u64) -> SwapEntry {
    match space.query(at(page)) {
        Mapping::SwapEntry(swap_entry) => swap_entry,
        other => panic!("{other:?} at page {page}"),
    }
}

#[test]
fn what_was_exclusive_is_so_again_when_it_comes_back_unless_there_was_a_fork() {
    for forked in [false, true] {
        let machine = HostMachine::new(256);
        let space = mapped::<X86_64>(&machine, 16, 0);
        assert_eq!(swap_out(&space, at(16), 77, &mut space.gather(&mut [])), Ok(true));
        let seen = swap_entry(&space, 16);
        assert_eq!(seen, SwapEntry { value: 77, exclusive: true });
        let child = AddressSpace::new(&machine, 2).unwrap();
        if forked {
            let rule = ForkRule::Copy(Sharing::Private);
            space.copy_range(&child, pages(0, 64), rule, &mut space.gather(&mut [])).unwrap();
            assert_eq!(
                (swap_entry(&space, 16), swap_entry(&child, 16)),
                (SwapEntry::from(77), SwapEntry::from(77))
            );
        }
        let page = folio(&machine, 0);
        let by = Replacement::Page { frame: page.head(), attributes: Attributes::anonymous() };
        let result = space.replace(at(16), Seen::SwapEntry(seen), by, &mut space.gather(&mut []));
        // Who saw it before the fork must not map it as the parent's own.
        assert_eq!(result, if forked { Err(Error::Changed) } else { Ok(Mapping::SwapEntry(seen)) });
        assert_eq!(page.maps(), u32::from(!forked));
        assert_eq!(machine.swap_entry_balance(77), if forked { 1 } else { -1 });
    }
}

#[test]
fn a_page_takes_the_place_of_another_that_is_not_written_meanwhile() {
    let machine = HostMachine::new(256);
    let free = machine.free_frames();
    let space = mapped::<Arm64Hafdbs>(&machine, 16, 4);
    let Mapping::Page { frame: old, .. } = space.query(at(21)) else { panic!("not mapped") };
    let page = folio(&machine, 0);
    let attributes = Attributes { write: false, ..Attributes::anonymous() };
    let by = Replacement::Page { frame: page.head(), attributes };
    let replace = |seen, by| space.replace(at(21), seen, by, &mut space.gather(&mut []));
    assert_eq!(replace(Seen::Page(old), by), Err(Error::NotPermitted), "it may be written");
    space.write_protect(pages(16, 16), &mut space.gather(&mut [])).unwrap();
    assert_eq!(replace(Seen::Page(old.add(1)), by), Err(Error::Changed));
    assert_eq!(replace(Seen::SwapEntry(SwapEntry::from(1)), by), Err(Error::Changed));
    let root = Replacement::Page { frame: space.id().root, attributes };
    assert_eq!(replace(Seen::Page(old), root), Err(Error::NotAFolio));
    assert_eq!(FolioView::of(&machine, old).unwrap().maps(), 16);
    let pinned = space.pin(at(20), None).unwrap();
    assert_eq!(replace(Seen::Page(old), by), Err(Error::Pinned));
    drop(pinned);
    assert!(matches!(replace(Seen::Page(old), by), Ok(Mapping::Page { frame, .. }) if frame == old));
    assert!(
        matches!(space.query(at(21)), Mapping::Page { frame, contiguous: false, .. } if frame == page.head())
    );
    assert_eq!((FolioView::of(&machine, old).unwrap().maps(), page.maps()), (15, 1));
    assert_eq!(replace(Seen::Page(old), by), Err(Error::Changed), "it is not there any more");
    drop(page);
    drop(space);
    assert_eq!(machine.free_frames(), free);
}

/// A page that moves to another frame is the same page: what the entry says stays, as does whose it is.
#[test]
fn a_page_moves_to_another_frame_and_stays_what_it_is() {
    fn check<F: Format>() {
        let machine = HostMachine::new(256);
        let free = machine.free_frames();
        let space = mapped::<F>(&machine, 16, 4);
        let Mapping::Page { frame: old, .. } = space.query(at(21)) else { panic!("not mapped") };
        let page = folio(&machine, 0);
        let replace = |seen, to| {
            space.replace(at(21), seen, Replacement::Moved(to), &mut space.gather(&mut [])).map(drop)
        };
        assert_eq!(replace(Seen::Page(old), page.head()), Err(Error::NotPermitted), "it may be written");
        space.mkclean(pages(16, 16), &mut [], &mut space.gather(&mut [])).unwrap();
        assert_eq!(replace(Seen::Clean(old), space.id().root), Err(Error::NotAFolio));
        let pinned = space.pin(at(20), None).unwrap();
        assert_eq!(replace(Seen::Clean(old), page.head()), Err(Error::Pinned));
        drop(pinned);
        let before = attributes(&space, 21);
        assert!(before.exclusive && !before.write && !before.dirty, "{before:?}");
        assert_eq!(replace(Seen::Clean(old), page.head()), Ok(()));
        assert_eq!((attributes(&space, 21), attributes(&space, 22)), (before, before));
        assert_eq!((FolioView::of(&machine, old).unwrap().maps(), page.maps()), (15, 1));
        // Its program writes to it without a copy, as before.
        drop(page);
        let fault = WriteFault { sharing: Sharing::Private, bounds: pages(16, 16), whole_folio: false };
        assert_eq!(space.write_fault(at(21), None, fault), Ok(Resolved::Reused(1)));
        // Where nobody may access it, it moves as well, and a swap entry does not.
        let protection = Protection::NONE;
        space.protect(pages(21, 1), protection, Sharing::Private, &mut space.gather(&mut [])).unwrap();
        let Mapping::Page { frame: now, attributes: before, .. } = space.query(at(21)) else {
            panic!("gone")
        };
        let page = folio(&machine, 0);
        assert_eq!(replace(Seen::Page(now), page.head()), Ok(()));
        assert_eq!(attributes(&space, 21), before);
        space.swap_out(at(21), page.head(), 5, &mut space.gather(&mut [])).unwrap();
        let Mapping::SwapEntry(seen) = space.query(at(21)) else { panic!("no swap entry") };
        assert_eq!(replace(Seen::SwapEntry(seen), page.head()), Err(Error::NotMapped));
        assert_eq!(page.refs(), 1);
        drop(page);
        drop(space);
        assert_eq!(machine.free_frames(), free);
    }
    check::<X86_64>();
    check::<Arm64Hafdbs>();
    check::<RiscV<Sv39, Svadu>>();
}

/// A huge leaf moves as a whole where there is a folio as large for it, and is split where there is not.
#[test]
#[cfg_attr(miri, ignore = "thousands of entries")]
fn a_huge_leaf_moves_as_a_whole() {
    fn check<F: Format>() {
        let machine = HostMachine::new(4096);
        let free = machine.free_frames();
        let space = AddressSpace::<F, _>::new(&machine, 1).unwrap();
        let old = folio(&machine, 9);
        for n in 0..2 {
            space.map(pages(512 * n, 512), old.head(), Attributes::anonymous(), Level::Pmd).unwrap();
        }
        let new = folio(&machine, 9);
        let moved = |page, frame, to| {
            space.replace(at(page), Seen::Page(frame), Replacement::Moved(to), &mut space.gather(&mut []))
        };
        assert_eq!(moved(0, old.head(), new.head()), Err(Error::NotPermitted), "it may be written");
        space.mkclean(pages(0, 1024), &mut [], &mut space.gather(&mut [])).unwrap();
        let head = old.head();
        let pinned = old.pin();
        assert_eq!(moved(0, head, new.head()), Err(Error::Pinned));
        drop(pinned);
        let before = attributes(&space, 0);
        let done = moved(0, head, new.head()).unwrap();
        assert!(matches!(done, Mapping::Page { level: Level::Pmd, frame, .. } if frame == head), "{done:?}");
        assert!(matches!(space.query(at(100)), Mapping::Page { level: Level::Pmd, frame, .. }
            if frame == new.head().add(100)));
        assert_eq!((attributes(&space, 0), machine.counts().splits), (before, 0));
        assert_eq!((FolioView::of(&machine, head).unwrap().refs(), new.refs(), new.maps()), (512, 513, 512));
        // One page of the other, to a page by itself.
        let page = folio(&machine, 0);
        let done = moved(512 + 7, head.add(7), page.head()).unwrap();
        assert!(matches!(done, Mapping::Page { level: Level::Pte, .. }), "{done:?}");
        assert_eq!((FolioView::of(&machine, head).unwrap().maps(), page.maps()), (511, 1));
        // The first of a large folio is not all of it.
        let small = folio(&machine, 4);
        let view = FolioView::of(&machine, new.head()).unwrap();
        moved(0, new.head(), small.head()).unwrap();
        assert_eq!((view.maps(), small.maps()), (511, 1));
        drop((page, small, new));
        drop(space);
        assert_eq!(machine.free_frames(), free);
    }
    check::<X86_64>();
    check::<Arm64Hafdbs>();
    check::<RiscV<Sv39, Svadu>>();
}

/// Of all who find the swap entry only one puts its page there, and nobody finds the page empty.
#[test]
fn a_page_comes_back_once_and_leaves_no_hole() {
    let machine = HostMachine::new(1024);
    let free = machine.free_frames();
    let space = mapped::<X86_64>(&machine, 16, 0);
    let rounds = if cfg!(miri) { 5 } else { 2000 };
    let came = std::sync::atomic::AtomicU32::new(0);
    let migrate = || {
        for _ in 0..rounds {
            match space.query(at(16)) {
                Mapping::Page { frame, .. } => {
                    let _ = space.swap_out(at(16), frame, 5, &mut space.gather(&mut []));
                }
                Mapping::SwapEntry(seen) => {
                    let page = folio(&machine, 0);
                    let by = Replacement::Page { frame: page.head(), attributes: Attributes::anonymous() };
                    if space.replace(at(16), Seen::SwapEntry(seen), by, &mut space.gather(&mut [])).is_ok() {
                        came.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    }
                }
                Mapping::None => panic!("a hole"),
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(migrate);
        scope.spawn(migrate);
    });
    // Each time that it came back a swap entry was released.
    assert_eq!(-machine.swap_entry_balance(5), i64::from(came.into_inner()));
    drop(space);
    assert_eq!(machine.free_frames(), free);
}

/// What was copied from a page is not what it says after a write, whoever has write-protected it since.
#[test]
fn a_page_that_was_written_and_forked_is_not_what_it_was() {
    fn check<F: Format>() {
        let machine = HostMachine::new(256);
        let space = mapped::<F>(&machine, 16, 0);
        let Mapping::Page { frame, .. } = space.query(at(16)) else { panic!("not mapped") };
        let clean = || space.mkclean(pages(16, 1), &mut [], &mut space.gather(&mut [])).unwrap();
        let replace = |space: &AddressSpace<'_, F, HostMachine>| {
            space.replace(at(16), Seen::Clean(frame), Replacement::SwapEntry(5), &mut space.gather(&mut []))
        };
        let child = AddressSpace::new(&machine, 2).unwrap();
        let fork = || {
            let rule = ForkRule::Copy(Sharing::Private);
            space.copy_range(&child, pages(16, 1), rule, &mut space.gather(&mut [])).unwrap();
        };
        assert_eq!(replace(&space), Err(Error::Changed), "it may be written");
        clean();
        let fault = WriteFault { sharing: Sharing::Private, bounds: pages(16, 1), whole_folio: false };
        assert_eq!(space.write_fault(at(16), frame, fault).map(|_| ()), Ok(()));
        assert_eq!(replace(&space), Err(Error::Changed));
        fork();
        let protection = Protection::READ;
        space.protect(pages(16, 1), protection, Sharing::Private, &mut space.gather(&mut [])).unwrap();
        assert!(!attributes(&space, 16).write);
        assert_eq!((replace(&space), replace(&child)), (Err(Error::Changed), Err(Error::Changed)));
        // Clean both again, it is.
        clean();
        assert!(replace(&space).is_ok());
        assert_eq!(replace(&child), Err(Error::Changed));
        child.mkclean(pages(16, 1), &mut [], &mut child.gather(&mut [])).unwrap();
        assert!(replace(&child).is_ok());
    }
    check::<X86_64>();
    check::<Arm64Hafdbs>();
    check::<Arm64Software>();
}

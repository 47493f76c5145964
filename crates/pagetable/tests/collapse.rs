//! Collapse by copying: of which pages, and that nothing written meanwhile is lost.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::sync::atomic::{AtomicU64, Ordering};

use common::{Busy, Meanwhile, at, pages, prepare, take};
use isotherm_pagetable::host::HostMachine;
use isotherm_pagetable::*;

const FIRST: u64 = 512;
const RULE: ForkRule = ForkRule::Copy(Sharing::Private);

/// Maps a folio of its own, each page of which holds `value`.
fn map<M: Machine, F: Format>(
    space: &AddressSpace<'_, F, M>,
    host: &HostMachine,
    page: u64,
    order: u8,
    value: u64,
) {
    let machine = space.machine();
    let folio = prepare(machine, take(host, order).unwrap(), order, FolioKind::Anon).unwrap();
    for n in 0..1 << order {
        host.write(folio.head().add(n).address(), value).unwrap();
    }
    space.map(pages(page, 1 << order), folio.head(), Attributes::anonymous(), Level::Pte).unwrap();
    drop(folio);
}

fn frame<M: Machine, F: Format>(space: &AddressSpace<'_, F, M>, page: u64) -> Frame {
    let Mapping::Page { frame, .. } = space.query(at(page)) else { panic!("page {page} is not mapped") };
    frame
}

fn fault(range: PageRange) -> WriteFault {
    WriteFault { sharing: Sharing::Private, bounds: range, whole_folio: false }
}

/// Once a child is gone its pages are the parent's alone again, though their entries do not know it yet.
fn after_a_child<F: Format>() {
    let machine = HostMachine::new(4096);
    let free = machine.free_frames();
    let space = AddressSpace::<F, _>::new(&machine, 1).unwrap();
    for page in 0..4 {
        map(&space, &machine, FIRST + page, 0, 70 + page);
    }
    map(&space, &machine, FIRST + 16, 4, 7);
    let child = AddressSpace::new(&machine, 2).unwrap();
    let all = pages(FIRST, 512);
    space.copy_range(&child, all, RULE, &mut space.gather(&mut [])).unwrap();
    let shared = space.collapse(at(FIRST), 511, &mut space.gather(&mut []));
    assert!(matches!(shared, Err(Error::NotCollapsible(_))), "{shared:?}");
    drop(child);
    let collapsed = space.collapse(at(FIRST), 511, &mut space.gather(&mut [])).unwrap();
    assert_eq!(collapsed, Collapsed::Copied { pages: 20 });
    for (page, value) in [(0, 70), (3, 73), (4, 0), (16, 7), (31, 7), (32, 0)] {
        assert_eq!(machine.read(frame(&space, FIRST + page).address()), Some(value), "page {page}");
    }
    // It is this space's alone: no copy for the next write.
    assert_eq!(space.write_fault(at(FIRST), None, fault(all)), Ok(Resolved::Reused(512)));
    drop(space);
    assert_eq!(machine.free_frames(), free);
}

#[test]
#[cfg_attr(miri, ignore = "thousands of entries")]
fn pages_whose_other_owners_are_gone_collapse_on_x86_64() {
    after_a_child::<X86_64>();
}

#[test]
#[cfg_attr(miri, ignore = "thousands of entries")]
fn pages_whose_other_owners_are_gone_collapse_on_arm64() {
    after_a_child::<Arm64Hafdbs>();
}

/// Writes a page as a program does: through a write fault, since the collapse made it read-only.
fn write(space: &AddressSpace<'_, X86_64, Busy>, page: u64) {
    space.write_fault(at(page), None, fault(pages(FIRST, 512))).unwrap();
    space.machine().host.write(frame(space, page).address(), 1234).unwrap();
}

/// What else may happen after the write that leaves the entry exactly as the collapse knew it.
const HIDDEN: [(&str, Meanwhile); 7] = [
    ("write", |space| write(space, FIRST)),
    ("write, write-protect", |space| {
        write(space, FIRST);
        space.write_protect(pages(FIRST, 1), &mut space.gather(&mut [])).unwrap();
    }),
    ("protect, write, protect", |space| {
        let protect = |protection| {
            space
                .protect(pages(FIRST, 512), protection, Sharing::Private, &mut space.gather(&mut []))
                .unwrap();
        };
        protect(Protection::READ_WRITE);
        space.machine().host.write(frame(space, FIRST).address(), 1234).unwrap();
        protect(Protection::READ);
    }),
    ("move away, write, write-protect, move back", |space| {
        space.remap(pages(FIRST, 1), at(4096)).unwrap();
        space.write_fault(at(4096), None, fault(pages(4096, 1))).unwrap();
        space.machine().host.write(frame(space, 4096).address(), 1234).unwrap();
        space.write_protect(pages(4096, 1), &mut space.gather(&mut [])).unwrap();
        space.remap(pages(4096, 1), at(FIRST)).unwrap();
    }),
    ("move away with its table, write, write-protect, move back with it", |space| {
        let (here, there) = (pages(FIRST, 512), pages(4096, 512));
        space.remap(here, there.start()).unwrap();
        space.unmap(here, &mut space.gather(&mut [])).unwrap();
        // The table's frame is the next that is taken.
        let _ = space.machine().host.free_frames();
        space.write_fault(at(4096), None, fault(there)).unwrap();
        space.machine().host.write(frame(space, 4096).address(), 1234).unwrap();
        space.write_protect(pages(4096, 1), &mut space.gather(&mut [])).unwrap();
        space.remap(there, here.start()).unwrap();
    }),
    ("pin, write by a device, unpin", |space| {
        let pinned = space.pin(at(FIRST), None).unwrap();
        space.machine().host.write(pinned.frame().address(), 1234).unwrap();
    }),
    ("write, another collapse", |space| {
        write(space, FIRST);
        // Fails for want of memory, when it has made the pages read-only as well.
        space.machine().host.set_budget(u64::MAX, 0);
        let failed = space.collapse(at(FIRST), 511, &mut space.gather(&mut []));
        assert_eq!(failed, Err(Error::NoFolioFrames(MAX_ORDER)));
    }),
];

#[test]
#[cfg_attr(miri, ignore = "thousands of entries")]
fn what_is_written_while_pages_are_copied_is_not_lost() {
    for (name, other) in HIDDEN {
        let machine = Busy::new(4096);
        let free = machine.host.free_frames();
        let space = AddressSpace::<X86_64, _>::new(&machine, 1).unwrap();
        map(&space, &machine.host, FIRST, 0, 1);
        map(&space, &machine.host, FIRST + 100, 2, 2);
        let collapsed =
            Busy::while_copying(&space, other, || space.collapse(at(FIRST), 511, &mut space.gather(&mut [])));
        let found = machine.host.read(frame(&space, FIRST).address());
        assert_eq!(found, Some(1234), "{name}: the write is lost, the collapse came to {collapsed:?}");
        assert_eq!(collapsed, Err(Error::Changed), "{name}");
        machine.host.set_budget(u64::MAX, u64::MAX);
        let collapsed = space.collapse(at(FIRST), 511, &mut space.gather(&mut []));
        assert_eq!(collapsed, Ok(Collapsed::Copied { pages: 5 }), "{name}");
        assert_eq!(machine.host.read(frame(&space, FIRST).address()), Some(1234), "{name}");
        drop(space);
        assert_eq!(machine.host.free_frames(), free, "{name}");
    }
}

/// What is decided while pages are copied that leaves their entries as the collapse made them, read-only.
const DECIDED: [(&str, Meanwhile); 2] = [
    ("write-protect", |space| {
        space.write_protect(pages(FIRST, 512), &mut space.gather(&mut [])).unwrap();
    }),
    ("protect", |space| {
        let gather = &mut space.gather(&mut []);
        space.protect(pages(FIRST, 512), Protection::READ, Sharing::Private, gather).unwrap();
    }),
];

#[test]
#[cfg_attr(miri, ignore = "thousands of entries")]
fn what_is_made_read_only_while_pages_are_copied_stays_so() {
    for (name, other) in DECIDED {
        let machine = Busy::new(4096);
        let space = AddressSpace::<X86_64, _>::new(&machine, 1).unwrap();
        for page in 0..4 {
            map(&space, &machine.host, FIRST + page, 0, 1);
        }
        let collapse = || space.collapse(at(FIRST), 511, &mut space.gather(&mut []));
        let collapsed = Busy::while_copying(&space, other, collapse);
        for page in 0..4 {
            let Mapping::Page { attributes, .. } = space.query(at(FIRST + page)) else { panic!("{name}") };
            assert!(!attributes.write, "{name}: page {page} may be written after {collapsed:?}");
        }
    }
}

/// Of which the last page's folio can take no more references: those of the pages before go back.
#[test]
#[cfg_attr(miri, ignore = "thousands of entries")]
fn a_collapse_that_cannot_hold_a_page_holds_none() {
    let machine = HostMachine::new(4096);
    let free = machine.free_frames();
    let space = AddressSpace::<X86_64, _>::new(&machine, 1).unwrap();
    map(&space, &machine, FIRST, 0, 1);
    map(&space, &machine, FIRST + 9, 0, 2);
    let last = FolioView::of(&machine, frame(&space, FIRST + 9)).unwrap();
    // Two milliards of references, taken at once: `maps << 32 | refs` is the first word of the metadata.
    let meta = machine.meta(last.head()).unwrap();
    // SAFETY: 16 bytes of which the first 8 are an atomic word.
    let counts = unsafe { &*std::ptr::from_ref(meta).cast::<AtomicU64>() };
    let many = (1 << 31) - 2;
    counts.fetch_add(many, Ordering::Relaxed);
    assert_eq!(u64::from(last.refs()), many + 1);
    let failed = space.collapse(at(FIRST), 511, &mut space.gather(&mut []));
    assert_eq!(failed, Err(Error::TooManyReferences));
    counts.fetch_sub(many, Ordering::Relaxed);
    assert_eq!((last.refs(), FolioView::of(&machine, frame(&space, FIRST)).unwrap().refs()), (1, 1));
    let all = pages(FIRST, 512);
    assert_eq!(
        space.write_fault(at(FIRST), None, fault(all)),
        Ok(Resolved::Writable),
        "nothing was made read-only"
    );
    drop(space);
    assert_eq!(machine.free_frames(), free);
}

/// A folded block of which a reference is refused half-way: a block that is read-only in part only is none, for the hardware.
#[test]
#[cfg_attr(miri, ignore = "512 entries")]
fn what_cannot_be_held_as_a_whole_is_not_made_read_only() {
    let machine = HostMachine::new(4096);
    let space = AddressSpace::<Arm64Hafdbs, _>::new(&machine, 1).unwrap();
    map(&space, &machine, FIRST, 4, 7);
    map(&space, &machine, FIRST + 16, 4, 7);
    let last = FolioView::of(&machine, frame(&space, FIRST + 16)).unwrap();
    let meta = machine.meta(last.head()).unwrap();
    // SAFETY: 16 bytes of which the first 8 are an atomic word.
    let counts = unsafe { &*std::ptr::from_ref(meta).cast::<AtomicU64>() };
    // References up to 2^30 are given: to half of the block's pages.
    let many = (1 << 30) - u64::from(last.refs()) - 9;
    counts.fetch_add(many, Ordering::Relaxed);
    let failed = space.collapse(at(FIRST), 511, &mut space.gather(&mut []));
    assert_eq!(failed, Err(Error::TooManyReferences));
    for page in 0..32 {
        let Mapping::Page { contiguous, attributes, .. } = space.query(at(FIRST + page)) else { panic!() };
        assert!(contiguous && attributes.write, "page {page}: {attributes:?}");
        let read = space.read();
        assert!(read.access(at(FIRST + page), Access::Write).is_ok());
    }
    counts.fetch_sub(many, Ordering::Relaxed);
    assert_eq!((last.refs(), machine.counts().unfolds), (16, 0));
}

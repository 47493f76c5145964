//! Tables that are left empty, as a zap leaves them for the faults to come, are no mappings: whoever maps, moves or copies
//! a huge leaf there gets the pages mapped, by the smaller leaves of that table.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::{at, pages, prepare, take};
use isotherm_pagetable::host::HostMachine;
use isotherm_pagetable::*;

type Space<'m, F> = AddressSpace<'m, F, HostMachine>;

fn folio(machine: &HostMachine, order: u8) -> Folio<'_, HostMachine> {
    prepare(machine, take(machine, order).unwrap(), order, FolioKind::Anon).unwrap()
}

/// Leaves a PTE table without entries around a page.
fn leave_table<F: Format>(space: &Space<'_, F>, page: u64) {
    let machine = space.machine();
    let small = folio(machine, 0);
    space.map(pages(page, 1), small.head(), Attributes::anonymous(), Level::Pte).unwrap();
    drop(small);
    space.zap(pages(page, 1), &mut space.gather(&mut [])).unwrap();
}

/// The frames that pages are mapped to, and by leaves of which level.
fn mapped<F: Format>(space: &Space<'_, F>, range: PageRange) -> (Vec<Frame>, Level) {
    let mut found = (vec![], Level::Pte);
    space
        .runs(range, |run| {
            let Mapping::Page { frame, level, .. } = run.mapping else { panic!("{run:?}") };
            found.0.extend((0..run.pages).map(|n| frame.add(n)));
            found.1 = level;
        })
        .unwrap();
    found
}

fn huge_leaves_over_empty_tables<F: Format>() {
    let machine = HostMachine::new(1 << 13);
    let free = machine.free_frames();
    let space = Space::<F>::new(&machine, 1).unwrap();
    let huge = folio(&machine, 9);
    let frames: Vec<Frame> = (0..512).map(|n| huge.head().add(n)).collect();
    let fits = Level::Pmd;

    // Mapped where one of three tables is, in the middle.
    leave_table(&space, 1024 + 7);
    for first in [512, 1024, 1536] {
        space.map(pages(first, 512), huge.head(), Attributes::anonymous(), fits).unwrap();
        let level = if first == 1024 { Level::Pte } else { fits };
        assert_eq!(mapped(&space, pages(first, 512)), (frames.clone(), level), "mapped at {first}");
    }
    // Something in the table is in the way, and its page is named.
    space.zap(pages(1024, 512), &mut space.gather(&mut [])).unwrap();
    space.map(pages(1024 + 9, 1), huge.head(), Attributes::anonymous(), Level::Pte).unwrap();
    let stopped = space.map(pages(1024, 512), huge.head(), Attributes::anonymous(), fits).unwrap_err();
    assert_eq!((stopped.at, stopped.why), (at(1024 + 9), Error::Occupied));
    space.zap(pages(1024, 512), &mut space.gather(&mut [])).unwrap();

    // Moved there.
    space.remap(pages(512, 512), at(1024)).unwrap();
    assert_eq!(mapped(&space, pages(1024, 512)), (frames.clone(), Level::Pte), "moved");
    assert_eq!(space.query(at(512)), Mapping::None);

    // And copied to a child that has such a table.
    let child = Space::new(&machine, 2).unwrap();
    leave_table(&child, 1536 + 300);
    let rule = ForkRule::Copy(Sharing::Private);
    space.copy_range(&child, pages(1536, 512), rule, &mut space.gather(&mut [])).unwrap();
    assert_eq!(mapped(&child, pages(1536, 512)).0, frames, "copied");
    assert_eq!((huge.refs(), huge.maps()), (1 + 3 * 512, 3 * 512));
    drop((space, child));
    drop(huge);
    assert_eq!(machine.free_frames(), free);
}

fn special_leaves_over_empty_tables<F: Format>() {
    let machine = HostMachine::new(1 << 10);
    let space = Space::<F>::new(&machine, 1).unwrap();
    let attributes = Attributes { special: true, ..Attributes::file() };
    // A GiB with a table of PTEs in one place: PMDs all around it.
    leave_table(&space, (1 << 18) + 512 * 5);
    space.map(pages(1 << 18, 1 << 18), Frame(1 << 30), attributes, Level::Pud).unwrap();
    for (page, level) in
        [(0, Level::Pmd), (512 * 5, Level::Pte), (512 * 6 - 1, Level::Pte), (512 * 6, Level::Pmd)]
    {
        let Mapping::Page { frame, level: found, .. } = space.query(at((1 << 18) + page)) else {
            panic!("page {page} is not mapped")
        };
        assert_eq!((frame, found), (Frame((1 << 30) + page), level));
    }
}

#[test]
#[cfg_attr(miri, ignore = "thousands of entries")]
fn on_x86_64() {
    huge_leaves_over_empty_tables::<X86_64>();
    special_leaves_over_empty_tables::<X86_64>();
}

#[test]
#[cfg_attr(miri, ignore = "thousands of entries")]
fn on_x86_64_with_five_levels() {
    huge_leaves_over_empty_tables::<X86_64La57>();
}

#[test]
#[cfg_attr(miri, ignore = "thousands of entries")]
fn on_arm64() {
    huge_leaves_over_empty_tables::<Arm64Hafdbs>();
    special_leaves_over_empty_tables::<Arm64Hafdbs>();
}

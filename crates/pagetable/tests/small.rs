//! What takes thousands of entries elsewhere, with as few as it can be done with: for Miri, to which a table of 512
//! entries is much. What is asserted is little; that nothing undefined happens on these paths is the point.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::{at, pages, prepare, swap_out, take};
use isotherm_pagetable::host::HostMachine;
use isotherm_pagetable::*;

fn map<F: Format>(space: &AddressSpace<'_, F, HostMachine>, first: u64, order: u8, largest: Level) -> Frame {
    let machine = space.machine();
    let folio = prepare(machine, take(machine, order).unwrap(), order, FolioKind::Anon).unwrap();
    let head = folio.head();
    space.map(pages(first, 1 << order), head, Attributes::anonymous(), largest).unwrap();
    drop(folio);
    head
}

/// Collapse by copying, split, and collapse in place: a huge leaf comes and goes.
fn huge_leaves<F: Format>() {
    let machine = HostMachine::new(2048);
    let free = machine.free_frames();
    let space = AddressSpace::<F, _>::new(&machine, 1).unwrap();
    let head = map(&space, 515, 0, Level::Pte);
    machine.write(head.address(), 42).unwrap();
    let mut slots = [Slot::default(); 2];
    let collapsed = space.collapse(at(520), 511, &mut space.gather(&mut slots));
    assert_eq!(collapsed, Ok(Collapsed::Copied { pages: 1 }));
    let Mapping::Page { frame, level: Level::Pmd, .. } = space.query(at(515)) else { panic!("no huge leaf") };
    assert_eq!(machine.read(frame.address()), Some(42));
    assert_eq!(machine.read(frame.add(1).address()), Some(0));
    space.split(at(515)).unwrap();
    assert_eq!(space.collapse(at(515), 0, &mut space.gather(&mut slots)), Ok(Collapsed::InPlace));
    // To another folio as large, as a whole.
    let Mapping::Page { frame: old, .. } = space.query(at(512)) else { panic!("no huge leaf") };
    space.mkclean(pages(512, 1), &mut [], &mut space.gather(&mut slots)).unwrap();
    let new = take(&machine, 9).unwrap();
    let new = prepare(&machine, new, 9, FolioKind::Anon).unwrap();
    let by = Replacement::Moved(new.head());
    let moved = space.replace(at(512), Seen::Clean(old), by, &mut space.gather(&mut slots));
    assert!(matches!(moved, Ok(Mapping::Page { level: Level::Pmd, .. })), "{moved:?}");
    assert_eq!((new.maps(), new.refs()), (512, 513));
    drop(new);
    // Covered in part: split by the operation itself.
    space.zap(pages(512, 3), &mut space.gather(&mut slots)).unwrap();
    assert!(matches!(space.query(at(515)), Mapping::Page { level: Level::Pte, .. }));
    drop(space);
    assert_eq!(machine.free_frames(), free);
}

#[test]
fn huge_leaves_on_x86_64() {
    huge_leaves::<X86_64>();
}

#[test]
fn huge_leaves_on_arm64() {
    huge_leaves::<Arm64Hafdbs>();
}

/// Operations that find no memory, at five levels, and then find some.
#[test]
fn failures_and_repetitions() {
    let machine = HostMachine::new(1024);
    let free = machine.free_frames();
    let space = AddressSpace::<X86_64La57, _>::new(&machine, 1).unwrap();
    let head = take(&machine, 0).unwrap();
    let folio = prepare(&machine, head, 0, FolioKind::Anon).unwrap();
    // The tables that were found stay, so of the four below the root each try brings one.
    for tables in [0, 1, 1, 1] {
        machine.set_budget(tables, 0);
        let stopped = space.map(pages(3, 1), head, Attributes::anonymous(), Level::Pte).unwrap_err();
        assert_eq!((stopped.at, stopped.why), (at(3), Error::NoTableFrame));
    }
    machine.set_budget(1, 0);
    space.map(pages(3, 1), head, Attributes::anonymous(), Level::Pte).unwrap();
    let pinned = space.pin(at(3), None).unwrap();
    machine.set_budget(u64::MAX, 0);
    let child = AddressSpace::new(&machine, 2).unwrap();
    let rule = ForkRule::Copy(Sharing::Private);
    let stopped = space.copy_range(&child, pages(0, 8), rule, &mut space.gather(&mut [])).unwrap_err();
    assert_eq!((stopped.at, stopped.why), (at(3), Error::NoFolioFrames(Order::BASE)));
    machine.set_budget(u64::MAX, u64::MAX);
    space.copy_range(&child, pages(3, 5), rule, &mut space.gather(&mut [])).unwrap();
    assert!(matches!(child.query(at(3)), Mapping::Page { frame, .. } if frame != head));
    drop(pinned);
    drop((space, child));
    drop(folio);
    assert_eq!(machine.free_frames(), free);
}

/// Pages that move between two tables, the one with the lower frame first or second, and within one.
#[test]
fn moves_between_tables_in_both_orders() {
    let machine = HostMachine::new(1024);
    let free = machine.free_frames();
    let space = AddressSpace::<Arm64Hafdbs, _>::new(&machine, 1).unwrap();
    let head = map(&space, 16, 4, Level::Pte);
    for (from, to) in [(16, 1024), (1024, 1040), (1040, 32)] {
        space.remap(pages(from, 16), at(to)).unwrap();
        assert!(matches!(space.query(at(to + 5)), Mapping::Page { frame, contiguous: true, .. }
            if frame == head.add(5)));
    }
    let mut slots = [Slot::default(); 1];
    let mut gather = space.gather(&mut slots);
    assert_eq!(swap_out(&space, at(40), 9, &mut gather), Ok(true));
    assert_eq!(space.query(at(40)), Mapping::SwapEntry(SwapEntry { value: 9, exclusive: true }));
    space.unmap(pages(0, 2048), &mut gather).unwrap();
    drop(gather);
    drop(space);
    assert_eq!(machine.free_frames(), free);
}

/// A walk without lock while the table it goes through is taken out of the tree, retired, and made anew.
#[test]
fn a_lookup_while_tables_come_and_go() {
    let machine = HostMachine::new(1024);
    let free = machine.free_frames();
    let space = AddressSpace::<Arm64Hafdbs, _>::new(&machine, 1).unwrap();
    let rounds = if cfg!(miri) { 2 } else { 2000 };
    let folio = prepare(&machine, take(&machine, 4).unwrap(), 4, FolioKind::Anon).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..rounds {
                space.map(pages(16, 16), folio.head(), Attributes::anonymous(), Level::Pte).unwrap();
                space.write_protect(pages(20, 1), &mut space.gather(&mut [])).unwrap();
                space.unmap(pages(0, 512), &mut space.gather(&mut [])).unwrap();
            }
        });
        scope.spawn(|| {
            for _ in 0..rounds * 20 {
                match space.read().lookup(at(21)) {
                    Mapping::None => {}
                    Mapping::Page { frame, .. } => assert_eq!(frame, folio.head().add(5)),
                    Mapping::SwapEntry(_) => panic!("a swap entry"),
                }
                let _ = space.read().access(at(22), Access::Write);
            }
        });
    });
    drop(space);
    drop(folio);
    assert_eq!(machine.free_frames(), free);
}

#[test]
fn a_machine_without_a_whole_block_has_smaller_ones() {
    // Frame 0 stays unused.
    let machine = HostMachine::new(64);
    assert_eq!(machine.free_frames(), 63);
    assert_eq!(take(&machine, 5), Some(Frame(32)));
    assert_eq!(take(&machine, 4), Some(Frame(16)));
    assert_eq!(take(&machine, 4), None);
    assert_eq!(take(&machine, 3), Some(Frame(8)));
    assert_eq!(machine.free_frames(), 7);
}

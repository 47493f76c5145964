//! One thing after the other on a small machine.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::{at, pages, prepare, take};
use isotherm_page::PageError;
use isotherm_pagetable::host::HostMachine;
use isotherm_pagetable::*;

/// What is known of a folio after its reference is given back.
fn view_and_drop<'m>(folio: Folio<'m, HostMachine>) -> FolioView<'m> {
    folio.view()
}

fn folio(machine: &HostMachine, order: u8) -> Folio<'_, HostMachine> {
    let head = take(machine, order).unwrap();
    prepare(machine, head, order, FolioKind::Anon).unwrap()
}

#[test]
#[cfg_attr(miri, ignore = "thousands of entries")]
fn a_large_folio_comes_back_when_its_last_mapping_is_gone() {
    let machine = HostMachine::new(4096);
    let free = machine.free_frames();
    let space = AddressSpace::<X86_64, _>::new(&machine, 1).unwrap();
    let f = folio(&machine, 9);
    let range = PageRange::new(0, 2 << 20).unwrap();
    space.map(range, f.head(), Attributes::anonymous(), Level::Pte).unwrap();
    assert_eq!((f.refs(), f.maps()), (513, 512));
    let f = view_and_drop(f);
    let child = AddressSpace::<X86_64, _>::new(&machine, 2).unwrap();
    let mut slots = [Slot::default(); 8];
    space.copy_range(&child, range, ForkRule::Copy(Sharing::Private), &mut space.gather(&mut slots)).unwrap();
    assert_eq!((f.refs(), f.maps()), (1024, 1024));
    drop(child);
    assert_eq!((f.refs(), f.maps()), (512, 512));
    space.zap(range, &mut space.gather(&mut slots)).unwrap();
    assert_eq!(machine.free_frames(), free - 3 - 1);
    drop(space);
    assert_eq!(machine.free_frames(), free);
}

/// Map, fork, write on both sides, harvest, move, zap; contents and counts at each step.
fn a_life<F: Format>() {
    let machine = HostMachine::new(1024);
    let free = machine.free_frames();
    let parent = AddressSpace::<F, _>::new(&machine, 1).unwrap();
    let f = folio(&machine, 5);
    let range = pages(64, 32);
    for n in 0..32 {
        machine.write(f.head().add(n).address(), 100 + n).unwrap();
    }
    parent.map(range, f.head(), Attributes::anonymous(), Level::Pmd).unwrap();
    let f = view_and_drop(f);
    let child = AddressSpace::new(&machine, 2).unwrap();
    let mut slots = [Slot::default(); 2];
    parent
        .copy_range(&child, range, ForkRule::Copy(Sharing::Private), &mut parent.gather(&mut slots))
        .unwrap();
    assert_eq!((f.refs(), f.maps()), (64, 64));
    let word = |space: &AddressSpace<'_, F, HostMachine>, page| {
        let Mapping::Page { frame, .. } = space.query(VirtAddr::of_page(page)) else {
            panic!("page {page} is gone")
        };
        (frame, machine.read(frame.address()).unwrap())
    };
    let at = VirtAddr::of_page(70);
    assert_eq!(child.read().access(at, Access::Write), Err(Fault::Protection));
    let fault = WriteFault { sharing: Sharing::Private, bounds: range, whole_folio: false };
    assert_eq!(child.write_fault(at, None, fault), Ok(Resolved::Copied(1)));
    let (frame, value) = word(&child, 70);
    assert_eq!(value, 106);
    machine.write(frame.address(), 7).unwrap();
    assert_eq!((word(&child, 70).1, word(&parent, 70).1), (7, 106));
    let whole = WriteFault { whole_folio: true, ..fault };
    assert_eq!(parent.write_fault(at, None, whole), Ok(Resolved::Copied(32)));
    assert_eq!(word(&parent, 95).1, 131);
    assert_eq!((f.refs(), f.maps()), (31, 31));
    // The child alone is left with the first folio.
    assert!(matches!(child.write_fault(VirtAddr::of_page(80), None, fault), Ok(Resolved::Reused(1))));
    let mut bitmap = [0];
    assert_eq!(parent.harvest_young(range, &mut bitmap), Ok(32));
    assert_eq!(bitmap[0], 0xffff_ffff);
    parent.remap(range, VirtAddr::of_page(513)).unwrap();
    assert_eq!((parent.query(at), word(&parent, 513 + 31).1), (Mapping::None, 131));
    parent.unmap(pages(0, 1024), &mut parent.gather(&mut slots)).unwrap();
    child.exit(&mut slots);
    drop(parent);
    assert_eq!(machine.free_frames(), free);
}

#[test]
fn a_life_on_x86_64() {
    a_life::<X86_64>();
}

#[test]
fn a_life_on_x86_64_with_five_levels() {
    a_life::<X86_64La57>();
}

#[test]
fn a_life_on_arm64() {
    a_life::<Arm64Hafdbs>();
}

#[test]
#[cfg_attr(miri, ignore = "thousands of entries")]
fn a_fork_that_finds_no_table_says_how_far_it_came_and_can_go_on() {
    let machine = HostMachine::new(4096);
    let free = machine.free_frames();
    let parent = AddressSpace::<X86_64, _>::new(&machine, 1).unwrap();
    let f = folio(&machine, 3);
    for table in 0..4 {
        parent.map(pages(table * 512 + 8, 8), f.head(), Attributes::anonymous(), Level::Pte).unwrap();
    }
    let f = view_and_drop(f);
    let child = AddressSpace::new(&machine, 2).unwrap();
    // Tables for the levels above, and for two of the four.
    machine.set_budget(5, u64::MAX);
    let all = pages(0, 2048);
    let mut slots = [Slot::default(); 4];
    let rule = ForkRule::Copy(Sharing::Private);
    let stopped = parent.copy_range(&child, all, rule, &mut parent.gather(&mut slots)).unwrap_err();
    assert_eq!(stopped.why, Error::NoTableFrame);
    let reached = stopped.at.page();
    assert!(reached > 16 && reached < 2048, "{reached}");
    let mut mapped = 0;
    child.runs(all, |run| mapped += run.pages).unwrap();
    assert_eq!((u64::from(f.maps()), f.refs()), (32 + mapped, f.maps()));
    for page in (0..2048).filter(|page| page % 512 / 8 == 1) {
        let there = matches!(child.query(VirtAddr::of_page(page)), Mapping::Page { .. });
        assert_eq!(there, page < reached, "page {page}");
    }
    machine.set_budget(u64::MAX, u64::MAX);
    let rest = pages(reached, 2048 - reached);
    parent.copy_range(&child, rest, rule, &mut parent.gather(&mut slots)).unwrap();
    assert_eq!(f.maps(), 64);
    drop(child);
    assert_eq!(f.maps(), 32);
    drop(parent);
    assert_eq!(machine.free_frames(), free);
}

#[test]
fn a_copy_without_memory_leaves_the_page_as_it_was() {
    let machine = HostMachine::new(1024);
    let parent = AddressSpace::<Arm64Software, _>::new(&machine, 1).unwrap();
    let f = folio(&machine, 4);
    let range = pages(16, 16);
    parent.map(range, f.head(), Attributes::anonymous(), Level::Pte).unwrap();
    let child = {
        let child = AddressSpace::new(&machine, 2).unwrap();
        let rule = ForkRule::Copy(Sharing::Private);
        parent.copy_range(&child, range, rule, &mut parent.gather(&mut [])).unwrap();
        child
    };
    let before = parent.query(range.start());
    machine.set_budget(u64::MAX, 0);
    let fault = WriteFault { sharing: Sharing::Private, bounds: range, whole_folio: true };
    assert_eq!(parent.write_fault(range.start(), None, fault), Err(Error::NoFolioFrames(Order::BASE)));
    assert_eq!(parent.query(range.start()), before);
    machine.set_budget(u64::MAX, 1);
    assert_eq!(parent.write_fault(range.start(), None, fault), Ok(Resolved::Copied(16)));
    drop((parent, child));
    drop(f);
}

#[test]
fn a_pinned_page_stays_with_the_parent() {
    let machine = HostMachine::new(1024);
    let parent = AddressSpace::<X86_64, _>::new(&machine, 1).unwrap();
    let f = folio(&machine, 0);
    parent.map(pages(1, 1), f.head(), Attributes::anonymous(), Level::Pte).unwrap();
    machine.write(f.head().address(), 5).unwrap();
    let pinned = parent.pin(VirtAddr::of_page(1), None).unwrap();
    let frame = pinned.frame();
    assert_eq!(frame, f.head());
    let child = AddressSpace::new(&machine, 2).unwrap();
    let rule = ForkRule::Copy(Sharing::Private);
    parent.copy_range(&child, pages(1, 1), rule, &mut parent.gather(&mut [])).unwrap();
    let Mapping::Page { frame: copy, attributes, .. } = child.query(VirtAddr::of_page(1)) else { panic!() };
    assert!(copy != frame && attributes.write);
    assert_eq!(machine.read(copy.address()), Some(5));
    assert!(
        matches!(parent.query(VirtAddr::of_page(1)), Mapping::Page { attributes, .. } if attributes.write)
    );
    drop(pinned);
    assert_eq!((f.refs(), f.maps(), f.pins()), (2, 1, 0));
    drop(f);
}

#[test]
#[cfg_attr(miri, ignore = "the same paths as the lives")]
fn a_page_that_somebody_else_refers_to_is_copied_and_not_reused() {
    for order in [0, 4] {
        let machine = HostMachine::new(1024);
        let space = AddressSpace::<Arm64Hafdbs, _>::new(&machine, 1).unwrap();
        let f = folio(&machine, order);
        let range = pages(16, 1 << order);
        space.map(range, f.head(), Attributes::anonymous(), Level::Pte).unwrap();
        // A child came and went, so the page is not known to be this space's alone.
        let child = AddressSpace::new(&machine, 2).unwrap();
        let rule = ForkRule::Copy(Sharing::Private);
        space.copy_range(&child, range, rule, &mut space.gather(&mut [])).unwrap();
        drop(child);
        // This test's own reference is what I/O holds on to that reads the page right now.
        assert_eq!((u64::from(f.refs()), u64::from(f.maps())), (range.pages() + 1, range.pages()));
        let fault = WriteFault { sharing: Sharing::Private, bounds: range, whole_folio: true };
        assert_eq!(space.write_fault(range.start(), None, fault), Ok(Resolved::Copied(range.pages())));
        assert_eq!((f.refs(), f.maps()), (1, 0));
        drop(f);
    }
}

#[test]
#[cfg_attr(miri, ignore = "the same paths as the lives")]
fn a_folio_that_is_mapped_elsewhere_too_is_copied_and_not_reused() {
    let machine = HostMachine::new(1024);
    let space = AddressSpace::<X86_64, _>::new(&machine, 1).unwrap();
    let f = folio(&machine, 2);
    let range = pages(16, 4);
    space.map(range, f.head(), Attributes::anonymous(), Level::Pte).unwrap();
    drop(f);
    let child = AddressSpace::new(&machine, 2).unwrap();
    let rule = ForkRule::Copy(Sharing::Private);
    space.copy_range(&child, range, rule, &mut space.gather(&mut [])).unwrap();
    // Each space has some of the pages left: all references are mappings, but not all are here.
    space.zap(pages(17, 3), &mut space.gather(&mut [])).unwrap();
    child.zap(pages(16, 1), &mut child.gather(&mut [])).unwrap();
    let fault = WriteFault { sharing: Sharing::Private, bounds: range, whole_folio: false };
    assert_eq!(space.write_fault(at(16), None, fault), Ok(Resolved::Copied(1)));
    // Now all are the child's.
    assert_eq!(child.write_fault(at(18), None, fault), Ok(Resolved::Reused(1)));
}

/// Of memory that a device has and this machine has not, a private write gets a page of its own all the same.
#[test]
fn a_private_write_to_a_device_gets_a_page() {
    let machine = HostMachine::new(1024);
    let free = machine.free_frames();
    let space = AddressSpace::<X86_64, _>::new(&machine, 1).unwrap();
    let attributes = Attributes { special: true, ..Attributes::file() };
    space.map(pages(16, 2), Frame(1 << 30), attributes, Level::Pte).unwrap();
    let fault = WriteFault { sharing: Sharing::Private, bounds: pages(16, 2), whole_folio: true };
    assert_eq!(space.write_fault(at(17), None, fault), Ok(Resolved::Copied(1)));
    let Mapping::Page { frame, attributes, .. } = space.query(at(17)) else { panic!("not mapped") };
    assert!(attributes.write && !attributes.special);
    assert_eq!(machine.read(frame.address()), Some(0));
    drop(space);
    assert_eq!(machine.free_frames(), free);
}

/// A folio that reaches beyond memory is none, also not in part.
#[test]
fn a_folio_without_all_its_frames_is_none() {
    let machine = HostMachine::new(20);
    let beyond = prepare(&machine, Frame(16), 3, FolioKind::Anon);
    assert_eq!(beyond.err(), Some(Error::UnknownFrame));
    for frame in 16..20 {
        assert_eq!(FolioView::of(&machine, Frame(frame)).err(), Some(PageError::NotAFolio), "frame {frame}");
    }
    assert_eq!(FolioView::of(&machine, Frame(20)).err(), Some(PageError::Unknown));
}

/// If all that is left are tables that a reader may still look at, memory is short until the reader is done, not for good.
#[test]
fn a_machine_waits_for_readers_before_it_says_that_memory_is_short() {
    let machine = HostMachine::new(8);
    let space = AddressSpace::<X86_64, _>::new(&machine, 1).unwrap();
    let attributes = Attributes { special: true, ..Attributes::file() };
    space.map(pages(16, 1), Frame(1 << 30), attributes, Level::Pte).unwrap();
    let rest: Vec<Frame> = std::iter::from_fn(|| take(&machine, 0)).collect();
    assert_eq!(rest.len(), 3);
    let reads = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let guard = machine.read_lock();
            reads.wait();
            std::thread::sleep(std::time::Duration::from_millis(20));
            drop(guard);
        });
        reads.wait();
        drop(space);
        assert!(AddressSpace::<X86_64, _>::new(&machine, 2).is_ok());
    });
    assert!(take(&machine, 3).is_none());
}

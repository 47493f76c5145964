//! Break before make: where two translations of a page must not coexist in TLBs (another frame, another size of the
//! leaf, more permission for one entry of a contiguous block than for the next), the entry is not present while the
//! invalidation is waited for (Arm ARM D8.16.1, and D8.7.1 for contiguous entries that differ).

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;
#[path = "model/cpu.rs"]
#[allow(dead_code, reason = "here nothing is accessed through the TLB")]
mod cpu;

use common::{at, pages, prepare, take};
use cpu::Cpu;
use isotherm_pagetable::*;

type Space<'m, F> = AddressSpace<'m, F, Cpu>;

const FIRST: u64 = 1024;

fn machine<F: Format>() -> Cpu {
    let machine = Cpu::new(2048);
    machine.watch::<F>();
    machine
}

fn map<F: Format>(space: &Space<'_, F>, order: u8, write: bool, largest: Level) -> PageRange {
    let machine = space.machine();
    let folio = prepare(machine, take(&machine.host, order).unwrap(), order, FolioKind::Anon).unwrap();
    let range = pages(FIRST, 1 << order);
    let attributes = Attributes { write, ..Attributes::anonymous() };
    space.map(range, folio.head(), attributes, largest).unwrap();
    drop(folio);
    machine.take_seen();
    range
}

/// The pages were invalidated, and not present meanwhile.
fn broken<F: Format>(space: &Space<'_, F>, range: PageRange, what: &str) {
    let seen = space.machine().take_seen();
    for page in range.start().page()..range.start().page() + range.pages() {
        let mut entries = seen.iter().filter(|(seen, _)| *seen == page).map(|(_, raw)| *raw).peekable();
        assert!(entries.peek().is_some(), "{what}: page {page} was not invalidated");
        assert!(
            entries.all(|raw| !F::is_present(raw)),
            "{what}: page {page} was there while it was invalidated"
        );
    }
}

fn fault(bounds: PageRange, whole_folio: bool) -> WriteFault {
    WriteFault { sharing: Sharing::Private, bounds, whole_folio }
}

fn copies_and_sizes<F: Format>() {
    // Another frame: the copy of a page, and of a folio.
    for whole_folio in [false, true] {
        let machine = machine::<F>();
        let space = Space::<F>::new(&machine, 1).unwrap();
        let range = map(&space, 4, true, Level::Pte);
        let child = Space::new(&machine, 2).unwrap();
        let rule = ForkRule::Copy(Sharing::Private);
        space.copy_range(&child, range, rule, &mut space.gather(&mut [])).unwrap();
        machine.take_seen();
        let copied = child.write_fault(at(FIRST + 3), None, fault(range, whole_folio)).unwrap();
        let changed = if whole_folio { range } else { pages(FIRST + 3, 1) };
        assert_eq!(copied, Resolved::Copied(changed.pages()));
        broken(&child, changed, "copy");
    }
    // Another size.
    let machine = machine::<F>();
    let space = Space::<F>::new(&machine, 1).unwrap();
    let range = map(&space, 9, true, Level::Pmd);
    space.split(range.start()).unwrap();
    broken(&space, range, "split");
    let collapsed = space.collapse(range.start(), 0, &mut space.gather(&mut [])).unwrap();
    assert_eq!(collapsed, Collapsed::InPlace);
    let seen = machine.take_seen();
    let (first, last) = seen.split_at(512);
    assert!(
        first.iter().all(|(_, raw)| !F::is_present(*raw)),
        "collapse: the leaf was there before the table was gone"
    );
    assert!(last.is_empty() || last.iter().all(|(_, raw)| F::is_present(*raw)), "the table's end");
}

#[test]
#[cfg_attr(miri, ignore = "thousands of entries")]
fn another_frame_or_size_on_x86_64() {
    copies_and_sizes::<X86_64>();
}

#[test]
#[cfg_attr(miri, ignore = "thousands of entries")]
fn another_frame_or_size_on_arm64() {
    copies_and_sizes::<Arm64Hafdbs>();
}

#[test]
fn blocks_are_folded_and_unfolded_while_empty() {
    let machine = machine::<Arm64Hafdbs>();
    let space = Space::<Arm64Hafdbs>::new(&machine, 1).unwrap();
    let range = map(&space, 5, true, Level::Pte);
    space.write_protect(pages(FIRST + 2, 3), &mut space.gather(&mut [])).unwrap();
    let seen = machine.take_seen();
    assert!(seen[..16].iter().all(|(_, raw)| *raw == 0), "unfolded");
    space.zap(range, &mut space.gather(&mut [])).unwrap();
    let folio = prepare(&machine, take(&machine.host, 4).unwrap(), 4, FolioKind::Anon).unwrap();
    for n in 0..15 {
        space.map(pages(FIRST + n, 1), folio.head().add(n), Attributes::anonymous(), Level::Pte).unwrap();
    }
    machine.take_seen();
    space.map(pages(FIRST + 15, 1), folio.head().add(15), Attributes::anonymous(), Level::Pte).unwrap();
    broken(&space, pages(FIRST, 16), "fold");
    drop(folio);
}

#[test]
fn a_folded_block_gets_permissions_while_empty() {
    let machine = machine::<Arm64Hafdbs>();
    let space = Space::<Arm64Hafdbs>::new(&machine, 1).unwrap();
    let range = map(&space, 4, false, Level::Pte);
    assert_eq!(space.write_fault(at(FIRST), None, fault(range, true)), Ok(Resolved::Reused(16)));
    broken(&space, range, "write fault");
    space.write_protect(range, &mut space.gather(&mut [])).unwrap();
    machine.take_seen();
    let gather = &mut space.gather(&mut []);
    space.protect(range, Protection::READ_WRITE, Sharing::Private, gather).unwrap();
    let seen = machine.take_seen();
    assert!(seen[..16].iter().all(|(_, raw)| *raw == 0), "protect");
}

#[test]
fn a_folded_block_after_one_that_is_not_gets_permissions_while_empty_too() {
    let machine = machine::<Arm64Hafdbs>();
    let space = Space::<Arm64Hafdbs>::new(&machine, 1).unwrap();
    let range = map(&space, 5, true, Level::Pte);
    // The first block alone is unfolded, then both are read-only and belong to this space.
    space.write_protect(pages(FIRST + 3, 1), &mut space.gather(&mut [])).unwrap();
    space.write_protect(range, &mut space.gather(&mut [])).unwrap();
    let folded = |page| matches!(space.query(at(page)), Mapping::Page { contiguous: true, .. });
    assert!(!folded(FIRST) && folded(FIRST + 16));
    machine.take_seen();
    assert_eq!(space.write_fault(at(FIRST + 3), None, fault(range, true)), Ok(Resolved::Reused(32)));
    broken(&space, pages(FIRST + 16, 16), "write fault");
}

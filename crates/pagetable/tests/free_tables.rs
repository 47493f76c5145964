//! Tables that a range left empty, and that a gap holds as a whole.
#![cfg(feature = "host")]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use isotherm_pagetable::host::HostMachine;
use isotherm_pagetable::*;

/// 2 MiB and 1 GiB in pages.
const PMD: u64 = 1 << 9;
const PUD: u64 = 1 << 18;

fn pages(first: u64, pages: u64) -> PageRange {
    PageRange::with_pages(VirtAddr::of_page(first), pages).unwrap()
}

fn map<F: Format>(space: &AddressSpace<'_, F, HostMachine>, page: u64) {
    let folio = space.machine().folio(Order::BASE, FolioKind::Anon).unwrap();
    space.map(pages(page, 1), folio.head(), Attributes::anonymous(), Level::Pte).unwrap();
}

fn tables_of_a_gap_go<F: Format>() {
    let machine = HostMachine::new(64);
    let space = AddressSpace::<F, _>::new(&machine, 1).unwrap();
    let empty = machine.free_frames();
    // Up to a half of what most formats translate.
    let all = pages(0, 1 << (F::VA_BITS - 13));
    let free = |range: PageRange, within: PageRange| {
        let mut slots = [Slot::default(); 4];
        let mut gather = space.gather(&mut slots);
        space.zap(range, &mut gather).unwrap();
        gather.flush();
        let tables = empty - machine.free_frames();
        let gone = space.free_empty_tables(range, within, &mut gather).unwrap();
        drop(gather);
        let left = empty - machine.free_frames();
        assert_eq!(gone, RssStat { tables: tables - left, ..RssStat::default() });
        left
    };
    let page = PUD + PMD + 7;
    map(&space, page);
    let used = empty - machine.free_frames() - 1;
    assert!(used >= 2, "a table of PTEs and what is above it");
    // The gap ends within the lowest table; then within the one above; then all is free.
    assert_eq!(free(pages(page, 1), pages(page, 2)), used);
    assert_eq!(free(pages(page, 1), pages(PUD + PMD, PMD)), used - 1);
    map(&space, page);
    assert_eq!(free(pages(page, 1), pages(PUD + 1, PUD)), used - 1);
    map(&space, page);
    assert_eq!(free(pages(page, 1), all), 0);
    // Tables beside the range are not looked at; one that is not empty stays.
    map(&space, page);
    map(&space, 3 * PUD);
    let both = empty - machine.free_frames();
    assert_eq!(free(pages(2 * PUD, 1), all), both);
    assert_eq!(free(pages(page + 1, 1), all), both);
    assert_eq!(free(pages(page, 0), all), both, "of nothing, nothing");
    assert_eq!(free(pages(0, 4 * PUD), all), 0);
}

#[test]
fn tables_of_a_gap_go_on_x86_64() {
    tables_of_a_gap_go::<X86_64>();
}

#[test]
fn tables_of_a_gap_go_on_x86_64_with_five_levels() {
    tables_of_a_gap_go::<X86_64La57>();
}

#[test]
fn tables_of_a_gap_go_on_arm64() {
    tables_of_a_gap_go::<Arm64Hafdbs>();
}

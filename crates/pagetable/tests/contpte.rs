//! Contiguous blocks on arm64, counted: what is folded, unfolded, flushed and read.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::cell::Cell;

use common::{Changed, Wrap, pages, prepare, take};
use isotherm_pagetable::host::HostMachine;
use isotherm_pagetable::*;

thread_local! {
    static READS: Cell<u64> = const { Cell::new(0) };
}

/// arm64 that counts the reads of entries.
struct Counted;

// SAFETY: counting changes nothing.
unsafe impl Changed for Counted {
    type Of = Arm64Hafdbs;
    const NAME: &'static str = "arm64, counted";
    fn load(entry: &Entry) -> u64 {
        READS.set(READS.get() + 1);
        entry.load()
    }
}

type Space<'m> = AddressSpace<'m, Wrap<Counted>, HostMachine>;

fn reads() -> u64 {
    READS.replace(0)
}

fn map(space: &Space<'_>, first: u64, order: u8) -> Frame {
    let machine = space.machine();
    let folio = prepare(machine, take(machine, order).unwrap(), order, FolioKind::Anon).unwrap();
    space.map(pages(first, 1 << order), folio.head(), Attributes::anonymous(), Level::Pte).unwrap();
    let head = folio.head();
    drop(folio);
    head
}

/// For each page of a range, whether it is part of a folded block.
fn folded(space: &Space<'_>, range: PageRange) -> Vec<bool> {
    let first = range.start().page();
    (first..first + range.pages())
        .map(|page| matches!(space.query(VirtAddr::of_page(page)), Mapping::Page { contiguous: true, .. }))
        .collect()
}

fn fork<'m>(space: &Space<'m>, range: PageRange) -> Space<'m> {
    let child = Space::new(space.machine(), 2).unwrap();
    let mut slots = [Slot::default(); 64];
    let mut gather = space.gather(&mut slots);
    space.copy_range(&child, range, ForkRule::Copy(Sharing::Private), &mut gather).unwrap();
    child
}

#[test]
#[cfg_attr(miri, ignore = "thousands of entries")]
fn fork_of_folded_memory_unfolds_nothing_and_flushes_once_a_table_at_most() {
    // A gigabyte.
    let tables = 512;
    let machine = HostMachine::new(tables * 512 + 4096);
    let space = Space::new(&machine, 1).unwrap();
    for table in 0..tables {
        map(&space, table * 512, 9);
    }
    let all = pages(0, tables * 512);
    assert!(folded(&space, all).iter().all(|&folded| folded));
    machine.reset_counts();
    reads();
    let child = fork(&space, all);
    let counts = machine.counts();
    assert_eq!((counts.tlb_ranges, counts.tlb_syncs), (1, 1), "one flush, which the gather makes at its end");
    assert!(reads() <= tables * 512, "entries were read more than once");
    assert_eq!((counts.unfolds, counts.folds, counts.tlb_pages, counts.tlb_spaces), (0, 0, 0, 0));
    assert!(counts.tlb_ranges <= tables && counts.tlb_syncs <= tables, "{counts:?}");
    assert!(folded(&space, all).iter().all(|&folded| folded));
    assert!(folded(&child, all).iter().all(|&folded| folded));
    // Again, with young and dirty as hardware leaves them: set in some entries, cleared in others.
    space.clear_young(all).unwrap();
    for page in (3..tables * 512).step_by(160) {
        space.read().access(VirtAddr::of_page(page), Access::Read).unwrap();
    }
    machine.reset_counts();
    reads();
    let child = fork(&space, all);
    assert_eq!(machine.counts().unfolds, 0);
    // Each entry once, and the first of a table to see what it is.
    let read = reads();
    assert!(read <= tables * (512 + 2), "{read} reads");
    drop(child);
}

#[test]
#[cfg_attr(miri, ignore = "thousands of entries")]
fn a_partial_write_protect_unfolds_its_block_alone() {
    let machine = HostMachine::new(2048);
    let space = Space::new(&machine, 1).unwrap();
    map(&space, 512, 9);
    machine.reset_counts();
    space.write_protect(pages(512 + 35, 3), &mut space.gather(&mut [])).unwrap();
    assert_eq!(machine.counts().unfolds, 1);
    let expected: Vec<bool> = (0..512).map(|page| page / 16 != 2).collect();
    assert_eq!(folded(&space, pages(512, 512)), expected);
    // Over the middle of two blocks and all of those between.
    machine.reset_counts();
    space.write_protect(pages(512 + 104, 96), &mut space.gather(&mut [])).unwrap();
    assert_eq!(machine.counts().unfolds, 2);
    let expected: Vec<bool> = (0..512).map(|page| ![2, 6, 12].contains(&(page / 16))).collect();
    assert_eq!(folded(&space, pages(512, 512)), expected);
    for page in 0..512 {
        let Mapping::Page { attributes, .. } = space.query(VirtAddr::of_page(512 + page)) else { panic!() };
        let protected = (35..38).contains(&page) || (104..200).contains(&page);
        assert_eq!(
            (attributes.write, attributes.dirty, attributes.young),
            (!protected, true, true),
            "page {page}"
        );
    }
}

#[test]
fn a_gather_reads_each_of_the_sixteen_once() {
    let machine = HostMachine::new(2048);
    let space = Space::new(&machine, 1).unwrap();
    map(&space, 512, 4);
    space.clear_young(pages(512, 16)).unwrap();
    space.read().access(VirtAddr::of_page(519), Access::Write).unwrap();
    reads();
    for page in 512..528 {
        let Mapping::Page { attributes, .. } = space.query(VirtAddr::of_page(page)) else { panic!() };
        assert!(attributes.young && attributes.dirty, "page {page} does not see the access to its block");
        // Its own entry says that it is folded, then the block is read.
        assert!(reads() <= 17);
    }
    let mut bitmap = [0];
    assert_eq!(space.harvest_young(pages(512, 16), &mut bitmap), Ok(16));
    assert_eq!((reads(), bitmap[0]), (16, 0xffff));
    assert_eq!(space.harvest_young(pages(512, 16), &mut bitmap), Ok(0));
    let mut runs = 0;
    reads();
    space.runs(pages(512, 16), |_| runs += 1).unwrap();
    assert_eq!(runs, 1);
    assert!(reads() <= 17);
}

#[test]
fn an_unfolded_block_keeps_what_its_entries_gathered() {
    let machine = HostMachine::new(2048);
    let space = Space::new(&machine, 1).unwrap();
    let folio = prepare(&machine, take(&machine, 5).unwrap(), 5, FolioKind::File).unwrap();
    let clean = Attributes { write: true, young: false, ..Attributes::file() };
    space.map(pages(512, 32), folio.head(), clean, Level::Pte).unwrap();
    // Hardware sets the bits in one entry, of which the sixteen are young and dirty together.
    space.read().access(VirtAddr::of_page(521), Access::Write).unwrap();
    space.write_protect(pages(514, 2), &mut space.gather(&mut [])).unwrap();
    for page in 512..544 {
        let Mapping::Page { attributes, contiguous, .. } = space.query(VirtAddr::of_page(page)) else {
            panic!()
        };
        let first_block = page < 528;
        assert_eq!((attributes.young, attributes.dirty), (first_block, first_block), "page {page}");
        assert_eq!(contiguous, !first_block, "page {page}");
    }
    space.zap(pages(512, 2), &mut space.gather(&mut [])).unwrap();
    assert!(folio.take_dirty() && folio.take_referenced());
    drop(space);
    drop(folio);
}

/// Blocks of one folio that are permitted other things together are young and dirty each by itself.
#[test]
fn blocks_that_change_together_keep_their_own_state() {
    let machine = HostMachine::new(2048);
    let space = Space::new(&machine, 1).unwrap();
    let folio = prepare(&machine, take(&machine, 6).unwrap(), 6, FolioKind::Anon).unwrap();
    let clean = Attributes { dirty: false, young: false, ..Attributes::anonymous() };
    space.map(pages(512, 64), folio.head(), clean, Level::Pte).unwrap();
    space.read().access(VirtAddr::of_page(512 + 21), Access::Write).unwrap();
    space.read().access(VirtAddr::of_page(512 + 50), Access::Read).unwrap();
    let permit = |protection| {
        let gather = &mut space.gather(&mut []);
        space.protect(pages(512, 64), protection, Sharing::Private, gather).unwrap();
    };
    let executable = Protection { execute: true, ..Protection::READ_WRITE };
    for protection in [Protection::READ, Protection::READ_WRITE, executable, Protection::NONE, executable] {
        machine.reset_counts();
        permit(protection);
        assert!(machine.counts().tlb_syncs <= 2, "a flush of all that was broken, and the gather's");
        for page in 0..64 {
            let Mapping::Page { attributes, .. } = space.query(VirtAddr::of_page(512 + page)) else {
                panic!()
            };
            let expected = (matches!(page / 16, 1 | 3), page / 16 == 1);
            assert_eq!((attributes.young, attributes.dirty), expected, "page {page}, {protection:?}");
        }
    }
}

#[test]
fn a_block_that_two_mappings_share_is_taken_in_parts() {
    let machine = HostMachine::new(2048);
    let space = Space::new(&machine, 1).unwrap();
    map(&space, 512, 5);
    // The border of the VMAs lies within the first block.
    let (left, right) = (pages(512, 7), pages(519, 25));
    let mut runs = vec![];
    space.runs(right, |run| runs.push((run.at.page(), run.pages))).unwrap();
    assert_eq!(runs, [(519, 25)]);
    let child = fork(&space, right);
    assert_eq!(child.query(VirtAddr::of_page(518)), Mapping::None);
    assert!(matches!(child.query(VirtAddr::of_page(519)), Mapping::Page { contiguous: false, .. }));
    assert!(matches!(child.query(VirtAddr::of_page(528)), Mapping::Page { contiguous: true, .. }));
    // What the left mapping may write it still may; the block was unfolded for that.
    space.read().access(VirtAddr::of_page(518), Access::Write).unwrap();
    assert_eq!(space.read().access(VirtAddr::of_page(519), Access::Write), Err(Fault::Protection));
    space.zap(left, &mut space.gather(&mut [])).unwrap();
    assert_eq!(space.query(VirtAddr::of_page(518)), Mapping::None);
    assert!(matches!(space.query(VirtAddr::of_page(519)), Mapping::Page { .. }));
}

#[test]
fn pages_that_arrive_one_by_one_are_folded_with_the_last() {
    let machine = HostMachine::new(2048);
    let space = Space::new(&machine, 1).unwrap();
    let folio = prepare(&machine, take(&machine, 4).unwrap(), 4, FolioKind::Anon).unwrap();
    machine.reset_counts();
    for n in 0..16 {
        assert_eq!(machine.counts().folds, 0);
        space.map(pages(1024 + n, 1), folio.head().add(n), Attributes::anonymous(), Level::Pte).unwrap();
    }
    assert_eq!(machine.counts().folds, 1);
    assert!(folded(&space, pages(1024, 16)).iter().all(|&folded| folded));
    // Faults come in any order: whichever is the last.
    for (table, order) in [|n: u64| 15 - n, |n| n * 7 % 16, |n| n ^ 4].into_iter().enumerate() {
        let first = 1 << 14 | (table as u64) << 9;
        for n in 0..16 {
            assert!(!folded(&space, pages(first, 16)).iter().any(|&folded| folded));
            let (page, frame) = (pages(first + order(n), 1), folio.head().add(order(n)));
            space.map(page, frame, Attributes::anonymous(), Level::Pte).unwrap();
        }
        assert!(folded(&space, pages(first, 16)).iter().all(|&folded| folded), "order {table}");
    }
    // Two runs, the later the first.
    space.map(pages(1 << 15 | 5, 11), folio.head().add(5), Attributes::anonymous(), Level::Pte).unwrap();
    space.map(pages(1 << 15, 5), folio.head(), Attributes::anonymous(), Level::Pte).unwrap();
    assert!(folded(&space, pages(1 << 15, 16)).iter().all(|&folded| folded));
    // Sixteen small folios that happen to lie side by side are none.
    let head = take(&machine, 4).unwrap();
    for n in 0..16 {
        let small = prepare(&machine, head.add(n), 0, FolioKind::Anon).unwrap();
        space.map(pages(2048 + n, 1), head.add(n), Attributes::anonymous(), Level::Pte).unwrap();
        drop(small);
    }
    assert!(!folded(&space, pages(2048, 16)).iter().any(|&folded| folded));
    // Nor is a folio at an address that is not aligned as its frames are.
    space.map(pages(4097, 16), folio.head(), Attributes::anonymous(), Level::Pte).unwrap();
    assert!(!folded(&space, pages(4096, 32)).iter().any(|&folded| folded));
    drop(folio);
    // Nor are sixteen frames of one folio at an address that is aligned, if the frames are not: the hardware takes the
    // first of the block to be.
    let folio = prepare(&machine, take(&machine, 5).unwrap(), 5, FolioKind::Anon).unwrap();
    let skewed = folio.head().add(1);
    space.map(pages(8192, 16), skewed, Attributes::anonymous(), Level::Pte).unwrap();
    for n in 0..16 {
        space.map(pages(8208 + n, 1), skewed.add(n), Attributes::anonymous(), Level::Pte).unwrap();
    }
    assert!(!folded(&space, pages(8192, 32)).iter().any(|&folded| folded));
    drop(folio);
}

#[test]
fn device_memory_is_folded_at_the_pmd_level_too() {
    let machine = HostMachine::new(2048);
    let space = Space::new(&machine, 1).unwrap();
    let attributes = Attributes {
        user: true,
        write: true,
        special: true,
        memory: MemoryType::Device,
        ..Attributes::default()
    };
    space.map(pages(1 << 13, 16 * 512), Frame(1 << 20), attributes, Level::Pmd).unwrap();
    let at = VirtAddr::of_page(1 << 13);
    assert!(matches!(space.query(at), Mapping::Page { contiguous: true, level: Level::Pmd, .. }));
    machine.reset_counts();
    space.zap(pages(1 << 13, 512), &mut space.gather(&mut [])).unwrap();
    assert_eq!(machine.counts().unfolds, 1);
    assert_eq!(space.query(at), Mapping::None);
    assert!(matches!(
        space.query(VirtAddr::of_page((1 << 13) + 512)),
        Mapping::Page { contiguous: false, level: Level::Pmd, frame: Frame(f), .. } if f == (1 << 20) + 512
    ));
}

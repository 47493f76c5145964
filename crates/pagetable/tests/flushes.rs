//! TLB operations, counted exactly: one flush serves a whole gathered batch, whatever the size of the folios.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::{at, pages, prepare, take};
use isotherm_pagetable::host::{Counts, HostMachine};
use isotherm_pagetable::*;

/// Tables of the memory that is looked at: a gigabyte.
const TABLES: u64 = 512;

fn machine() -> HostMachine {
    HostMachine::new((TABLES + 32) * 512)
}

fn map<F: Format, B: Batching>(
    space: &AddressSpace<'_, F, HostMachine, B>,
    first: u64,
    order: u8,
    largest: Level,
) {
    let machine = space.machine();
    let folio = prepare(machine, take(machine, order).unwrap(), order, FolioKind::Anon).unwrap();
    space.map(pages(first, 1 << order), folio.head(), Attributes::anonymous(), largest).unwrap();
    drop(folio);
}

/// A gigabyte of folios of order 9.
fn gigabyte<F: Format, B: Batching>(
    machine: &HostMachine,
    largest: Level,
) -> AddressSpace<'_, F, HostMachine, B> {
    let space = AddressSpace::new(machine, 1).unwrap();
    (0..TABLES).for_each(|table| map(&space, table * 512, 9, largest));
    machine.reset_counts();
    space
}

/// Invalidations of pages, of ranges, of the space, and how often they were waited for.
fn tlb(machine: &HostMachine) -> [u64; 4] {
    let Counts { tlb_pages, tlb_ranges, tlb_spaces, tlb_syncs, .. } = machine.counts();
    machine.reset_counts();
    [tlb_pages, tlb_ranges, tlb_spaces, tlb_syncs]
}

fn zap_flushes_once_a_gathered_batch<F: Format>() {
    let machine = machine();
    let all = pages(0, TABLES * 512);
    // A folio of order 9 is a batch and takes a slot of the gather.
    for (room, flushes) in [(512, 1), (1000, 1), (256, 2), (100, 6), (1, 512), (0, 512)] {
        let space = gigabyte::<F, Batched>(&machine, Level::Pte);
        let free = machine.free_frames();
        let mut slots = vec![Slot::default(); room];
        let mut gather = space.gather(&mut slots);
        space.zap(all, &mut gather).unwrap();
        gather.flush();
        assert_eq!(gather.flushes(), flushes, "{room} slots");
        assert_eq!(tlb(&machine), [0, flushes, 0, flushes]);
        assert_eq!(machine.free_frames(), free + TABLES * 512);
    }
    // Page by page each takes a slot.
    let space = gigabyte::<F, PerPage>(&machine, Level::Pte);
    let mut slots = vec![Slot::default(); 512];
    space.zap(all, &mut space.gather(&mut slots)).unwrap();
    let [_, ranges, _, syncs] = tlb(&machine);
    assert!(ranges >= TABLES && syncs >= TABLES, "{ranges} {syncs}");
    // Of huge leaves one is a batch, too.
    let space = gigabyte::<F, Batched>(&machine, Level::Pmd);
    space.zap(all, &mut space.gather(&mut slots)).unwrap();
    assert_eq!(tlb(&machine), [0, 1, 0, 1]);
}

fn exit_flushes_once_a_gathered_batch<F: Format>() {
    let machine = machine();
    // The folios, their tables, and those above, of which there are up to four.
    for (slots, flushes) in [(TABLES * 2 + 4, 1), (TABLES + 2, 2)] {
        let space = gigabyte::<F, Batched>(&machine, Level::Pte);
        space.exit(&mut vec![Slot::default(); slots as usize]);
        assert_eq!(tlb(&machine), [0, 0, flushes, flushes], "{slots} slots");
    }
}

fn fork_flushes_once<F: Format>() {
    let machine = machine();
    for largest in [Level::Pte, Level::Pmd] {
        let space = gigabyte::<F, Batched>(&machine, largest);
        let rule = ForkRule::Copy(Sharing::Private);
        let fork = || {
            let child = AddressSpace::new(&machine, 2).unwrap();
            let mut slots = [Slot::default(); 8];
            let mut gather = space.gather(&mut slots);
            // Mapping by mapping, as fork goes over VMAs.
            for vma in 0..16 {
                let pages = pages(vma * TABLES * 32, TABLES * 32);
                space.copy_range(&child, pages, rule, &mut gather).unwrap();
                assert_eq!(gather.flushes(), 0);
            }
            assert_eq!(tlb(&machine), [0; 4]);
            gather.flush();
            child
        };
        let first = fork();
        assert_eq!(tlb(&machine), [0, 1, 0, 1], "one flush for all that was write-protected");
        let second = fork();
        assert_eq!(tlb(&machine), [0; 4], "all is read-only already");
        // The child was never loaded: its own end alone flushes.
        drop((first, second));
        machine.reset_counts();
        let shared = AddressSpace::new(&machine, 2).unwrap();
        let all = pages(0, TABLES * 512);
        let rule = ForkRule::Copy(Sharing::Shared);
        space.copy_range(&shared, all, rule, &mut space.gather(&mut [])).unwrap();
        assert_eq!(tlb(&machine), [0; 4], "shared memory stays writable");
    }
}

fn other_operations_flush_once<F: Format>() {
    let machine = machine();
    let space = gigabyte::<F, Batched>(&machine, Level::Pte);
    let all = pages(0, TABLES * 512);
    space.write_protect(all, &mut space.gather(&mut [])).unwrap();
    assert_eq!(tlb(&machine), [0, 1, 0, 1], "write-protect");
    space.write_protect(all, &mut space.gather(&mut [])).unwrap();
    assert_eq!(tlb(&machine), [0; 4], "nothing was writable");
    let mut bitmap = vec![0; (TABLES * 8) as usize];
    assert_eq!(space.harvest_young(all, &mut bitmap), Ok(TABLES * 512));
    assert_eq!(tlb(&machine), [0; 4], "harvest");
    // A write fault on a page, which belongs to this space alone.
    let fault = WriteFault { sharing: Sharing::Private, bounds: all, whole_folio: true };
    assert_eq!(space.write_fault(at(7), None, fault), Ok(Resolved::Reused(512)));
    assert_eq!(tlb(&machine), [0, 1, 0, 1], "write fault on a folio");
    map(&space, 1 << 20, 0, Level::Pte);
    space.write_protect(pages(1 << 20, 1), &mut space.gather(&mut [])).unwrap();
    tlb(&machine);
    let fault = WriteFault { bounds: pages(1 << 20, 1), ..fault };
    assert_eq!(space.write_fault(at(1 << 20), None, fault), Ok(Resolved::Reused(1)));
    assert_eq!(tlb(&machine), [1, 0, 0, 1], "write fault on a page");
    // Moved table by table, the old translations gone before the new can be zapped.
    space.remap(pages(0, 1024), at(1 << 21)).unwrap();
    assert_eq!(tlb(&machine), [0, 2, 0, 2], "remap");
    space.collapse(at(1 << 21), 0, &mut space.gather(&mut [])).unwrap();
    let [pages, ranges, spaces, syncs] = tlb(&machine);
    assert_eq!((pages, spaces), (0, 0));
    assert!(ranges == syncs && ranges <= 2, "break before make, then the table: {ranges}");
    space.split(at(1 << 21)).unwrap();
    assert_eq!(tlb(&machine), [0, 1, 0, 1], "split");
}

macro_rules! formats {
    ($($name:ident: $format:ty),*) => {$(
        mod $name {
            use super::*;
            #[test]
            fn zap_of_a_gigabyte_flushes_once_a_gathered_batch() {
                zap_flushes_once_a_gathered_batch::<$format>();
            }
            #[test]
            fn exit_of_a_gigabyte_flushes_once_a_gathered_batch() {
                exit_flushes_once_a_gathered_batch::<$format>();
            }
            #[test]
            fn fork_of_a_gigabyte_flushes_once() {
                fork_flushes_once::<$format>();
            }
            #[test]
            fn what_else_changes_a_gigabyte_flushes_once() {
                other_operations_flush_once::<$format>();
            }
        }
    )*};
}

formats!(x86_64: X86_64, x86_64_la57: X86_64La57, arm64: Arm64Hafdbs);

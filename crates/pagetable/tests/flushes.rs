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

fn map<F: Format>(space: &AddressSpace<'_, F, HostMachine>, first: u64, order: u8, largest: Level) {
    let machine = space.machine();
    let folio = prepare(machine, take(machine, order).unwrap(), order, FolioKind::Anon).unwrap();
    space.map(pages(first, 1 << order), folio.head(), Attributes::anonymous(), largest).unwrap();
    drop(folio);
}

/// A gigabyte of folios of order 9.
fn gigabyte<F: Format>(machine: &HostMachine, largest: Level) -> AddressSpace<'_, F, HostMachine> {
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
        let space = gigabyte::<F>(&machine, Level::Pte);
        let free = machine.free_frames();
        let mut slots = vec![Slot::default(); room];
        let mut gather = space.gather(&mut slots);
        space.zap(all, &mut gather).unwrap();
        gather.flush();
        assert_eq!(gather.flushes(), flushes, "{room} slots");
        assert_eq!(tlb(&machine), [0, flushes, 0, flushes]);
        assert_eq!(machine.free_frames(), free + TABLES * 512);
    }
    let mut slots = vec![Slot::default(); 512];
    // Of huge leaves one is a batch, too.
    let space = gigabyte::<F>(&machine, Level::Pmd);
    space.zap(all, &mut space.gather(&mut slots)).unwrap();
    assert_eq!(tlb(&machine), [0, 1, 0, 1]);
}

fn exit_flushes_once_a_gathered_batch<F: Format>() {
    let machine = machine();
    // The folios, their tables, and those above, of which there are up to four.
    for (slots, flushes) in [(TABLES * 2 + 4, 1), (TABLES + 2, 2)] {
        let space = gigabyte::<F>(&machine, Level::Pte);
        space.exit(&mut vec![Slot::default(); slots as usize]);
        assert_eq!(tlb(&machine), [0, 0, flushes, flushes], "{slots} slots");
    }
}

fn fork_flushes_once<F: Format>() {
    let machine = machine();
    for largest in [Level::Pte, Level::Pmd] {
        let space = gigabyte::<F>(&machine, largest);
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
    let space = gigabyte::<F>(&machine, Level::Pte);
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
    // More permission is not everybody's business, but a folded block is broken before it is made.
    let flush = u64::from(F::CONTIGUOUS > 1);
    assert_eq!(tlb(&machine), [0, flush, 0, flush], "write fault on a folio");
    map(&space, 1 << 20, 0, Level::Pte);
    space.write_protect(pages(1 << 20, 1), &mut space.gather(&mut [])).unwrap();
    tlb(&machine);
    let fault = WriteFault { bounds: pages(1 << 20, 1), ..fault };
    assert_eq!(space.write_fault(at(1 << 20), None, fault), Ok(Resolved::Reused(1)));
    assert_eq!(tlb(&machine), [0; 4], "write fault on a page");
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

/// What is asked of a TLB.
#[derive(Default)]
struct Asked {
    flushes: std::sync::Mutex<Vec<Flush>>,
    pages: std::sync::atomic::AtomicU64,
    permitted: std::sync::atomic::AtomicU64,
}

impl Asked {
    fn take(&self) -> (Vec<Flush>, u64, u64) {
        use std::sync::atomic::Ordering::Relaxed;
        (
            std::mem::take(&mut self.flushes.lock().unwrap()),
            self.pages.swap(0, Relaxed),
            self.permitted.swap(0, Relaxed),
        )
    }
}

// SAFETY: there is no TLB.
unsafe impl Tlb for Asked {
    type Context = u16;
    fn invalidate_page(&self, _: SpaceId, _: u64) {
        self.pages.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
    fn invalidate_range(&self, _: SpaceId, flush: Flush) {
        self.flushes.lock().unwrap().push(flush);
    }
    fn invalidate_space(&self, _: SpaceId) {}
    fn permitted(&self, _: SpaceId, _: u64) {
        self.permitted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
    fn sync(&self) {}
}

fn asked() -> (HostMachine, std::sync::Arc<Asked>) {
    let (machine, asked) = (HostMachine::new(1 << 13), std::sync::Arc::new(Asked::default()));
    assert!(machine.set_tlb(asked.clone()));
    (machine, asked)
}

#[test]
fn flushes_say_how_far_apart_leaves_are_and_of_which_level() {
    let (machine, asked) = asked();
    let space = AddressSpace::<X86_64, _>::new(&machine, 1).unwrap();
    let map = |first, order, level| {
        let folio = machine.folio(Order::new(order).unwrap(), FolioKind::Anon).unwrap();
        let range = pages(first, 1 << order);
        space.map(range, folio.head(), Attributes::anonymous(), level).unwrap();
    };
    map(0, 9, Level::Pmd);
    map(512, 9, Level::Pmd);
    map(1024, 9, Level::Pte);
    let mut slots = [Slot::default(); 64];
    let of = |range, stride, level, tables| Flush { range, stride, level, tables };
    space.write_protect(pages(0, 1024), &mut space.gather(&mut slots)).unwrap();
    assert_eq!(asked.take().0, [of(pages(0, 1024), 512, Some(Level::Pmd), false)]);
    space.write_protect(pages(1030, 4), &mut space.gather(&mut slots)).unwrap();
    assert_eq!(asked.take().0, [of(pages(1030, 4), 1, Some(Level::Pte), false)]);
    // Of both, the smaller; and no level.
    space.zap(pages(512, 1024), &mut space.gather(&mut slots)).unwrap();
    assert_eq!(asked.take().0, [of(pages(512, 1024), 1, None, false)]);
    // With the tables that go.
    map(1024, 9, Level::Pte);
    space.unmap(pages(1024, 512), &mut space.gather(&mut slots)).unwrap();
    let flushes = asked.take().0;
    assert_eq!(flushes.last().map(|flush| (flush.stride, flush.level, flush.tables)), Some((1, None, true)));
}

#[test]
fn more_permission_is_nobody_s_business_but_that_of_the_cpu_that_faulted() {
    let (machine, asked) = asked();
    let space = AddressSpace::<Arm64Haf, _>::new(&machine, 1).unwrap();
    let folio = machine.folio(Order::BASE, FolioKind::Anon).unwrap();
    let range = pages(0, 1);
    space
        .map(range, folio.head(), Attributes { write: false, ..Attributes::anonymous() }, Level::Pte)
        .unwrap();
    drop(folio);
    let fault = WriteFault { sharing: Sharing::Private, bounds: range, whole_folio: false };
    // Reused, and found writable by another CPU that has not heard of it.
    assert_eq!(space.write_fault(at(0), None, fault), Ok(Resolved::Reused(1)));
    assert_eq!(asked.take(), (vec![], 0, 1));
    assert_eq!(space.write_fault(at(0), None, fault), Ok(Resolved::Writable));
    assert_eq!(asked.take(), (vec![], 0, 1));
    // Less permission is everybody's, more is not.
    let mut slots = [Slot::default(); 4];
    let mut protect = |protection| {
        space.protect(range, protection, Sharing::Private, &mut space.gather(&mut slots)).unwrap();
        asked.take()
    };
    let (flushes, _, permitted) = protect(Protection::READ);
    assert_eq!((flushes.len(), permitted), (1, 0));
    assert_eq!(protect(Protection::READ_WRITE), (vec![], 0, 0));
    let (flushes, ..) = protect(Protection::NONE);
    assert_eq!(flushes.len(), 1);
    assert_eq!(protect(Protection::READ_WRITE), (vec![], 0, 0));
    let (flushes, ..) = protect(Protection { execute: true, ..Protection::READ_WRITE });
    assert_eq!(flushes.len(), 1, "nobody sees a fetch that faults for want of what it has");
    // Of which level they were is not known, and not said.
    let mut bitmap = [0];
    let mut slots = [Slot::default(); 4];
    assert_eq!(space.clear_flush_young(range, &mut bitmap, &mut space.gather(&mut slots)), Ok(1));
    assert_eq!(asked.take().0, [Flush { range, stride: 1, level: None, tables: false }]);
}

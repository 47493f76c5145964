//! Formats whose leaves, blocks and tables are larger than those of 4 KiB, and frames beyond 48 bits of address.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use isotherm_pagetable::host::HostMachine;
use isotherm_pagetable::*;

const DEVICE: Attributes =
    Attributes { write: true, special: true, memory: MemoryType::Device, ..Attributes::file() };

/// The first page of what the format translates.
fn base<F: Format>() -> u64 {
    if F::HALF == Half::Upper { (1 << 52) - (1 << (F::VA_BITS - PAGE_SHIFT)) } else { 0 }
}

fn pages<F: Format>(first: u64, pages: u64) -> PageRange {
    PageRange::with_pages(VirtAddr::of_page(base::<F>() + first), pages).unwrap()
}

fn at<F: Format>(page: u64) -> VirtAddr {
    pages::<F>(page, 0).start()
}

fn frame_at<F: Format>(space: &AddressSpace<'_, F, HostMachine>, page: u64) -> Option<(Frame, Level, bool)> {
    match space.query(at::<F>(page)) {
        Mapping::Page { frame, level, contiguous, .. } => Some((frame, level, contiguous)),
        _ => None,
    }
}

/// A folio of 2 MiB, which is a contiguous block; its counts, and what is left when a part goes.
fn a_block<F: Format>() {
    let machine = HostMachine::new(1 << 13);
    let free = machine.free_frames();
    let space = AddressSpace::<F, _>::new(&machine, 1).unwrap();
    let folio = machine.folio(Order::HUGE, FolioKind::Anon).unwrap();
    let (head, leaf) = (folio.head(), F::pages(Level::Pte));
    space.map(pages::<F>(512, 512), head, Attributes::anonymous(), Level::Pmd).unwrap();
    assert_eq!(folio.maps(), 512);
    for page in [512, 513, 700, 1023] {
        assert_eq!(frame_at(&space, page), Some((head.add(page - 512), Level::Pte, true)));
    }
    // Young as a whole; bit i is page i of 4 KiB.
    let mut bitmap = [0; 8];
    assert_eq!(space.harvest_young(pages::<F>(512, 512), &mut bitmap), Ok(512));
    assert_eq!(bitmap, [u64::MAX; 8]);
    space.mark_accessed(at::<F>(600), None, false).unwrap();
    let mut bitmap = [0; 8];
    assert_eq!(space.test_young(pages::<F>(512 + 2 * leaf, leaf), &mut bitmap), Ok(leaf));
    assert_eq!(bitmap, [(1 << leaf) - 1, 0, 0, 0, 0, 0, 0, 0]);
    // A fork shares it, and a write copies one leaf, or the folio.
    let child = AddressSpace::new(&machine, 2).unwrap();
    let rule = ForkRule::Copy(Sharing::Private);
    space.copy_range(&child, pages::<F>(0, 2048), rule, &mut space.gather(&mut [])).unwrap();
    assert_eq!((folio.maps(), machine.counts().unfolds), (1024, 0));
    assert_eq!(frame_at(&child, 512), Some((head, Level::Pte, true)));
    let fault =
        |whole_folio| WriteFault { sharing: Sharing::Private, bounds: pages::<F>(512, 512), whole_folio };
    // Bounds that cut a leaf are refused: it can be neither copied nor split.
    for bounds in [pages::<F>(513, 511), pages::<F>(512, leaf - 1)] {
        let refused = child.write_fault(at::<F>(513), None, WriteFault { bounds, ..fault(false) });
        assert_eq!(refused, Err(Error::Misaligned));
    }
    assert_eq!(child.write_fault(at::<F>(513), None, fault(false)), Ok(Resolved::Copied(leaf)));
    assert_eq!(u64::from(folio.maps()), 1024 - leaf);
    assert_eq!(frame_at(&child, 512 + leaf), Some((head.add(leaf), Level::Pte, false)));
    assert_eq!(space.write_fault(at::<F>(513), None, fault(true)), Ok(Resolved::Copied(512)));
    assert_eq!(u64::from(folio.maps()), 512 - leaf);
    child.zap(pages::<F>(512, 256), &mut child.gather(&mut [])).unwrap();
    assert_eq!(folio.maps(), 256);
    drop((child, folio));
    // And what this space has alone is reused, as one.
    space.write_protect(pages::<F>(512, 512), &mut space.gather(&mut [])).unwrap();
    assert_eq!(space.write_fault(at::<F>(800), None, fault(true)), Ok(Resolved::Reused(512)));
    drop(space);
    assert_eq!(machine.free_frames(), free);
}

/// Device memory in huge leaves, in blocks of them, and split.
fn huge_leaves<F: Format>() {
    let machine = HostMachine::new(1 << 13);
    let free = machine.free_frames();
    let space = AddressSpace::<F, _>::new(&machine, 1).unwrap();
    let (huge, block) = (F::pages(Level::Pmd), F::contiguous(Level::Pmd) as u64);
    let first = Frame(1 << 34);
    space.map(pages::<F>(block * huge, block * huge), first, DEVICE, Level::Pmd).unwrap();
    assert_eq!(frame_at(&space, block * huge + 5), Some((first.add(5), Level::Pmd, true)));
    // A hole in one: its neighbours stay as large as they are.
    let hole = pages::<F>((block + 1) * huge + 512, 512);
    space.zap(hole, &mut space.gather(&mut [])).unwrap();
    let page = |n| frame_at(&space, (block + 1) * huge + n);
    assert_eq!((page(512), page(1023)), (None, None));
    assert_eq!(page(511), Some((first.add(huge + 511), Level::Pte, page(511).is_some_and(|(_, _, c)| c))));
    assert_eq!(
        page(1024).map(|(frame, level, _)| (frame, level)),
        Some((first.add(huge + 1024), Level::Pte))
    );
    assert_eq!(frame_at(&space, (block + 2) * huge), Some((first.add(2 * huge), Level::Pmd, false)));
    let collapsed = space.collapse(hole.start(), 511, &mut space.gather(&mut []));
    assert!(matches!(collapsed, Err(Error::NotCollapsible(_))));
    space.unmap(pages::<F>(block * huge, block * huge), &mut space.gather(&mut [])).unwrap();
    drop(space);
    assert_eq!(machine.free_frames(), free);
}

/// Where the frame's number goes on in other bits, no run leads over.
fn beyond_48_bits<F: Format>() {
    if F::LINEAR == F::FRAME_LIMIT {
        return;
    }
    let machine = HostMachine::new(1 << 13);
    let space = AddressSpace::<F, _>::new(&machine, 1).unwrap();
    let leaf = F::pages(Level::Pte);
    let first = Frame(F::LINEAR - 64 * leaf);
    let range = pages::<F>(512, 128 * leaf);
    space.map(range, first, DEVICE, Level::Pte).unwrap();
    let all = |space: &AddressSpace<'_, F, HostMachine>| {
        let mut next = first;
        space
            .runs(range, |run| {
                let Mapping::Page { frame, .. } = run.mapping else { panic!("{run:?}") };
                assert_eq!((frame, run.at.page()), (next, base::<F>() + 512 + next.0 - first.0));
                next = next.add(run.pages);
            })
            .unwrap();
        assert_eq!(next, first.add(128 * leaf));
    };
    all(&space);
    space.write_protect(range, &mut space.gather(&mut [])).unwrap();
    let child = AddressSpace::new(&machine, 2).unwrap();
    space.copy_range(&child, range, ForkRule::Copy(Sharing::Shared), &mut space.gather(&mut [])).unwrap();
    all(&space);
    all(&child);
    assert!(
        space.map(pages::<F>(1 << 20, 2 * leaf), Frame(F::FRAME_LIMIT - leaf), DEVICE, Level::Pte).is_err()
    );
}

fn what_is_smaller_than_a_leaf_is_refused<F: Format>() {
    let machine = HostMachine::new(1 << 12);
    let space = AddressSpace::<F, _>::new(&machine, 1).unwrap();
    let leaf = F::pages(Level::Pte);
    let map = |range, frame, attributes| {
        space.map(range, frame, attributes, Level::Pte).map_err(|stopped| stopped.why)
    };
    let large = machine.folio(Order::new(5).unwrap(), FolioKind::Anon).unwrap();
    assert_eq!(map(pages::<F>(1, leaf), large.head(), Attributes::anonymous()), Err(Error::Misaligned));
    assert_eq!(map(pages::<F>(leaf, 1), large.head(), Attributes::anonymous()), Err(Error::Misaligned));
    assert_eq!(map(pages::<F>(leaf, leaf), large.head().add(1), DEVICE), Err(Error::Misaligned));
    let small = machine.folio(Order::new(1).unwrap(), FolioKind::Anon).unwrap();
    if small.head().0.is_multiple_of(leaf) {
        assert_eq!(
            map(pages::<F>(leaf, leaf), small.head(), Attributes::anonymous()),
            Err(Error::Misaligned)
        );
    }
    assert_eq!(space.query(at::<F>(leaf)), Mapping::None);
}

macro_rules! formats {
    ($($name:ident: $format:ty),*) => {$(
        #[test]
        #[cfg_attr(miri, ignore = "tables of thousands of entries")]
        fn $name() {
            a_block::<$format>();
            huge_leaves::<$format>();
            beyond_48_bits::<$format>();
            what_is_smaller_than_a_leaf_is_refused::<$format>();
        }
    )*};
}

formats!(
    granules_of_16k: Arm64<Hafdbs, Granule16K>,
    granules_of_16k_and_52_bits: Arm64<Hafdbs, Granule16KLpa2, Ttbr1>,
    granules_of_64k: Arm64<Haf, Granule64K, Ttbr1>,
    granules_of_64k_and_52_bits: Arm64<Software, Granule64KLpa>
);

#[test]
#[cfg_attr(miri, ignore = "tables of hundreds of entries")]
fn granules_of_4k_and_52_bits() {
    beyond_48_bits::<Arm64<Hafdbs, Granule4KLpa2>>();
}

/// RISC-V has no write-through memory, x86-64 none in large leaves.
#[test]
fn memory_that_a_format_does_not_have_is_refused_or_mapped_in_small_leaves() {
    let machine = HostMachine::new(64);
    let through = Attributes { memory: MemoryType::WriteThrough, ..DEVICE };
    let range = pages::<X86_64>(512, 1024);
    let space = AddressSpace::<RiscV<Sv39>, _>::new(&machine, 1).unwrap();
    let refused = space.map(range, Frame(1 << 20), through, Level::Pmd).unwrap_err();
    assert_eq!(refused.why, Error::MemoryType);
    let space = AddressSpace::<X86_64, _>::new(&machine, 1).unwrap();
    space.map(range, Frame(1 << 20), through, Level::Pmd).unwrap();
    assert!(matches!(space.query(range.start()), Mapping::Page { level: Level::Pte, attributes, .. }
        if attributes == through));
    let combining = Attributes { memory: MemoryType::WriteCombining, ..DEVICE };
    space.map(pages::<X86_64>(2048, 512), Frame(1 << 21), combining, Level::Pmd).unwrap();
    assert!(matches!(space.query(at::<X86_64>(2048)), Mapping::Page { level: Level::Pmd, attributes, .. }
        if attributes == combining));
}

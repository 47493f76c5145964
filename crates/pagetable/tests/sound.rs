//! Sequences of safe calls that would free or reuse memory in use, were they not refused. Miri runs them too.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::sync::{Arc, Mutex};

use common::{Busy, Meanwhile, at, pages, prepare, take};
use isotherm_page::PageError;
use isotherm_pagetable::host::HostMachine;
use isotherm_pagetable::*;

type Space<'m> = AddressSpace<'m, X86_64, HostMachine>;

const SPECIAL: Attributes = Attributes { special: true, ..Attributes::file() };

fn mapped(space: &Space<'_>, page: u64, order: u8) -> Frame {
    let folio = space.machine().folio(Order::new(order).unwrap(), FolioKind::Anon).unwrap();
    space.map(pages(page, 1 << order), folio.head(), Attributes::anonymous(), Level::Pte).unwrap();
    folio.head()
}

/// The table that maps a page: the frames that are tables are those that are no folio's and not free.
fn tables(machine: &HostMachine) -> Vec<Frame> {
    let kind = |n: &u64| machine.meta(Frame(*n)).unwrap().kind();
    (0..64).filter(|n| kind(n) == isotherm_page::Kind::Table).map(Frame).collect()
}

#[test]
fn what_is_gathered_goes_back_to_its_own_machine() {
    let (one, other) = (HostMachine::new(64), HostMachine::new(64));
    let (space, there) = (Space::new(&one, 1).unwrap(), Space::new(&other, 1).unwrap());
    // The same frames in both machines.
    let frame = mapped(&space, 16, 2);
    assert_eq!(mapped(&there, 16, 2), frame);
    let free = (one.free_frames(), other.free_frames());
    let mut slots = [Slot::default(); 8];
    let mut gather = there.gather(&mut slots);
    let range = pages(16, 4);
    let refused = Err(Error::OtherMachine);
    assert_eq!(space.zap(range, &mut gather).map_err(|stopped| stopped.why), refused);
    assert_eq!(space.unmap(range, &mut gather).map_err(|stopped| stopped.why), refused);
    assert_eq!(space.write_protect(range, &mut gather).map_err(|stopped| stopped.why), refused);
    let protected = space.protect(range, Protection::READ, Sharing::Private, &mut gather);
    assert_eq!(protected.map_err(|stopped| stopped.why), refused);
    assert_eq!(space.swap_out(at(16), frame, 7, &mut gather).map(drop), refused.map(drop));
    assert_eq!(space.collapse(at(16), 511, &mut gather).map(drop), refused.map(drop));
    let rule = ForkRule::Copy(Sharing::Private);
    let child = Space::new(&one, 2).unwrap();
    assert_eq!(space.copy_range(&child, range, rule, &mut gather).map_err(|stopped| stopped.why), refused);
    drop(gather);
    let foreign = Space::new(&other, 2).unwrap();
    let copied = space.copy_range(&foreign, range, rule, &mut space.gather(&mut []));
    assert_eq!(copied.map_err(|stopped| stopped.why), refused);
    drop((foreign, child));
    assert_eq!((one.free_frames(), other.free_frames()), free);
    assert_eq!(FolioView::of(&other, frame).unwrap().refs(), 4);
}

/// Which spaces were invalidated, by their contexts.
#[derive(Default)]
struct Invalidated(Mutex<Vec<u16>>);

impl Invalidated {
    fn of(machine: &HostMachine) -> Arc<Invalidated> {
        let tlb = Arc::<Invalidated>::default();
        assert!(machine.set_tlb(tlb.clone()));
        tlb
    }

    fn note(&self, space: SpaceId) {
        self.0.lock().unwrap().push(space.context);
    }

    fn take(&self) -> Vec<u16> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

// SAFETY: it is beside a machine that has no TLB.
unsafe impl Tlb for Invalidated {
    type Context = u16;

    fn invalidate_page(&self, space: SpaceId, _: u64) {
        self.note(space);
    }
    fn invalidate_range(&self, space: SpaceId, _: Flush) {
        self.note(space);
    }
    fn invalidate_space(&self, space: SpaceId) {
        self.note(space);
    }
    fn sync(&self) {}
}

/// Translations are dropped of the space whose pages go, whatever the gather was made for: else who holds one uses freed memory.
#[test]
fn a_gather_flushes_the_space_that_it_serves() {
    let machine = HostMachine::new(64);
    let tlb = Invalidated::of(&machine);
    let mut slots = [Slot::default(); 8];
    let space = Space::new(&machine, 7).unwrap();
    mapped(&space, 16, 2);
    let wrong = SpaceId { context: 9, ..space.id() };
    space.zap(pages(16, 4), &mut Gather::new(&machine, wrong, &mut slots)).unwrap();
    assert_eq!(tlb.take(), [7]);
}

/// A gather may outlive a space that it served, whose root becomes that of the next.
#[test]
fn a_gather_knows_spaces_apart_that_had_the_same_root() {
    let machine = HostMachine::new(64);
    let tlb = Invalidated::of(&machine);
    let mut slots = [Slot::default(); 8];
    let mut gather = Gather::of_any(&machine, &mut slots);
    let folio = machine.folio(Order::BASE, FolioKind::Anon).unwrap();
    let zap = |space: &Space<'_>, gather: &mut Gather<'_, _>| {
        space.map(pages(16, 1), folio.head(), Attributes::anonymous(), Level::Pte).unwrap();
        space.zap(pages(16, 1), gather).unwrap();
    };
    let first = Space::new(&machine, 1).unwrap();
    let root = first.id().root;
    zap(&first, &mut gather);
    // There are no frames for tables but those of the first, which are retired when it ends.
    let _rest: Vec<_> = std::iter::from_fn(|| machine.take(Order::BASE)).collect();
    drop(first);
    assert_eq!((tlb.take(), folio.maps()), (vec![1], 1), "it is in no TLB, and its page waits");
    let mut others: Vec<_> = (0..4).map(|_| Space::new(&machine, 2).unwrap()).collect();
    let second =
        others.iter().position(|space| space.id().root == root).map(|n| others.swap_remove(n)).unwrap();
    drop(others);
    tlb.take();
    zap(&second, &mut gather);
    gather.flush();
    assert_eq!((tlb.take(), folio.maps()), (vec![2], 0));
}

#[test]
fn only_live_folios_are_mapped() {
    let machine = HostMachine::new(64);
    let space = Space::new(&machine, 1).unwrap();
    let frame = mapped(&space, 16, 2);
    let root = space.id().root;
    let map = |frame, attributes| {
        space.map(pages(40, 1), frame, attributes, Level::Pte).map_err(|stopped| stopped.why)
    };
    // A free frame, a table, and what a folio was in.
    let free = machine.take(Order::BASE).unwrap();
    assert_eq!(map(free.frame(), Attributes::anonymous()), Err(Error::NotAFolio));
    assert_eq!(map(root, Attributes::anonymous()), Err(Error::NotAFolio));
    space.zap(pages(16, 4), &mut space.gather(&mut [])).unwrap();
    for n in 0..4 {
        assert_eq!(map(frame.add(n), Attributes::anonymous()), Err(Error::NotAFolio));
    }
    assert_eq!(space.query(at(40)), Mapping::None);
}

/// A global translation outlives the flushes of one space, so a process has none: by no way that leads into its tables. `page`
/// is in a half that is the space's own.
fn a_process_has_no_global_leaf<F: Format>(space: &AddressSpace<'_, F, HostMachine>, page: u64) {
    let folio = space.machine().folio(Order::BASE, FolioKind::Anon).unwrap();
    let global = Attributes { global: true, write: false, ..Attributes::anonymous() };
    let one = pages(page, 1);
    for attributes in [
        global,
        Attributes { user: false, ..global },
        Attributes { no_access: true, ..global },
        Attributes { special: true, ..global },
    ] {
        let refused = |done: Result<RssStat, Stopped>| {
            let stopped = done.unwrap_err();
            assert_eq!((stopped.at, stopped.why), (at(page), Error::Global));
        };
        refused(space.map(one, folio.head(), attributes, Level::Pmd));
        refused(space.mapper().map(one, folio.head(), attributes));
        let by = Replacement::Page { frame: folio.head(), attributes };
        let mut slots = [Slot::default(); 8];
        let mut gather = space.gather(&mut slots);
        space.map_swap_entry(one, 7).unwrap();
        let seen = Seen::SwapEntry(SwapEntry::from(7));
        assert_eq!(space.replace(at(page), seen, by, &mut gather), Err(Error::Global));
        space.zap(one, &mut gather).unwrap();
        let read_only = Attributes { write: false, ..Attributes::anonymous() };
        space.map(one, folio.head(), read_only, Level::Pte).unwrap();
        let seen = Seen::Page(folio.head());
        assert_eq!(space.replace(at(page), seen, by, &mut gather), Err(Error::Global));
        space.zap(one, &mut gather).unwrap();
        gather.flush();
        assert_eq!((folio.refs(), folio.maps()), (1, 0));
    }
}

#[test]
fn only_a_kernel_has_global_leaves() {
    let machine = HostMachine::new(4096);
    let high = (1 << 52) - (1 << 20);
    a_process_has_no_global_leaf::<X86_64>(&Space::new(&machine, 1).unwrap(), 16);
    // The upper half of a space that shares none is its own too.
    a_process_has_no_global_leaf::<X86_64>(&Space::new(&machine, 1).unwrap(), high);
    a_process_has_no_global_leaf::<RiscV<Sv39>>(&AddressSpace::new(&machine, 1).unwrap(), 16);
    a_process_has_no_global_leaf::<Arm64Hafdbs>(&AddressSpace::new(&machine, 1).unwrap(), 16);
    let kernel = KernelHalf::<X86_64, _>::new(&machine, 0).unwrap();
    let process = Space::with_kernel(&machine, 1, &kernel).unwrap();
    a_process_has_no_global_leaf(&process, 16);

    // A kernel has, by each of the ways.
    let folio = machine.folio(Order::BASE, FolioKind::File).unwrap();
    let global = Attributes { user: false, global: true, ..Attributes::file() };
    fn maps<F: Format>(
        space: &AddressSpace<'_, F, HostMachine>,
        page: u64,
        frame: Frame,
        global: Attributes,
    ) {
        space.map(pages(page, 1), frame, global, Level::Pte).unwrap();
        space.mapper().map(pages(page + 1, 1), frame, global).unwrap();
        let by = Replacement::Page { frame, attributes: global };
        space.replace(at(page), Seen::Page(frame), by, &mut space.gather(&mut [])).unwrap();
    }
    maps(kernel.space(), high, folio.head(), global);
    let upper = AddressSpace::<Arm64<Hafdbs, Granule4K, Ttbr1>, _>::new(&machine, 0).unwrap();
    maps(&upper, high, folio.head(), global);

    // And it has no child that is a process.
    let child = Space::new(&machine, 2).unwrap();
    let rule = ForkRule::Copy(Sharing::Shared);
    let copied = kernel.space().copy_range(&child, pages(high, 2), rule, &mut kernel.space().gather(&mut []));
    assert_eq!(copied.map_err(|stopped| stopped.why), Err(Error::Global));
    assert_eq!(child.query(at(high)), Mapping::None);
}

/// Special mappings hold no references, so what they map must not be freed.
#[test]
fn memory_that_can_be_freed_is_not_mapped_uncounted() {
    let machine = HostMachine::new(64);
    let before = machine.free_frames();
    let space = Space::new(&machine, 1).unwrap();
    let frame = mapped(&space, 16, 2);
    let map = |first, frame, count| {
        space.map(pages(first, count), frame, SPECIAL, Level::Pte).map_err(|stopped| stopped.why)
    };
    for table in tables(&machine) {
        assert_eq!(map(40, table, 1), Err(Error::NotReserved));
    }
    assert_eq!(map(40, frame, 1), Err(Error::NotReserved));
    let block = machine.take(Order::new(1).unwrap()).unwrap();
    assert_eq!(map(40, block.frame(), 1), Err(Error::NotReserved));
    let reserved = block.into_reserved().unwrap();
    // What comes behind the reserved frames is none.
    let stopped = space.map(pages(40, 3), reserved.frame(), SPECIAL, Level::Pte).unwrap_err();
    assert_eq!((stopped.at, stopped.why), (at(42), Error::NotReserved));
    assert_eq!(map(48, Frame(1 << 20), 1).map(|mapped| mapped.special), Ok(1), "a device's");
    let first = reserved.frame();
    drop(reserved);
    assert!(matches!(space.query(at(41)), Mapping::Page { frame, .. } if frame == first.add(1)));
    drop(space);
    assert_eq!(machine.free_frames(), before - 2, "reserved memory stays");
}

#[test]
fn nobody_refers_to_a_table_or_changes_it_by_a_number() {
    let machine = HostMachine::new(4096);
    let space = Space::new(&machine, 1).unwrap();
    let order = if cfg!(miri) { 2 } else { 9 };
    // A table that is filled at once, whose metadata then holds more than counts.
    let frame = mapped(&space, 512, order);
    for table in tables(&machine) {
        assert_eq!(Folio::get(&machine, table).err(), Some(PageError::NotAFolio));
        assert_eq!(machine.write(table.address(), 0), None);
        // Whoever owned the block could make a folio of it, and would be refused even so.
        let (why, block) = unsafe_folio(&machine, table);
        assert!(matches!(why, PageError::InUse(_)), "{why}");
        assert_eq!(block, table);
    }
    let mapping = space.query(at(513));
    assert!(matches!(mapping, Mapping::Page { frame: found, .. } if found == frame.add(1)));
}

fn unsafe_folio(machine: &HostMachine, frame: Frame) -> (PageError, Frame) {
    let block = isotherm_page::Block::new(frame, Order::BASE);
    // SAFETY: a lie, which is found out: that is the test.
    let made = unsafe { Folio::new(machine, isotherm_page::OwnedBlock::new(block), FolioKind::Anon) };
    let (why, block) = made.unwrap_err();
    (why, block.into_block().frame)
}

#[test]
fn live_metadata_is_not_made_anew() {
    let machine = HostMachine::new(64);
    let space = Space::new(&machine, 1).unwrap();
    let frame = mapped(&space, 16, 2);
    for n in 0..4 {
        assert!(matches!(prepare(&machine, frame.add(n), 0, FolioKind::File), Err(Error::InUse)), "{n}");
    }
    let view = FolioView::of(&machine, frame).unwrap();
    assert_eq!((view.refs(), view.maps(), view.kind()), (4, 4, FolioKind::Anon));
}

/// References outlive the mapping, the space, and each other, in any order.
#[test]
fn a_frame_is_free_when_nothing_is_left_and_not_before() {
    let machine = HostMachine::new(64);
    let before = machine.free_frames();
    let space = Space::new(&machine, 1).unwrap();
    let frame = mapped(&space, 16, 2);
    let held = space.reference(at(17), None).unwrap();
    let pinned = space.pin(at(18), None).unwrap();
    drop(space);
    assert_eq!(machine.free_frames(), before - 4);
    drop(held);
    assert_eq!((pinned.frame(), pinned.refs(), machine.free_frames()), (frame.add(2), 1, before - 4));
    drop(pinned);
    assert_eq!(machine.free_frames(), before);
    assert_eq!(take(&machine, 2), Some(frame), "and it is handed out again");
}

/// Nothing but its mapping says that a special page is still what it was: a write fault copies it under the table's lock. A
/// folio, which it holds a reference to, is copied without.
#[test]
fn a_special_page_is_copied_while_its_mapping_cannot_go() {
    fn locked(machine: &Busy) -> usize {
        let tables = (0..64).filter_map(|n| machine.meta(Frame(n)));
        let is_locked = |meta: &&PageMeta| {
            // SAFETY: it is a table.
            unsafe { meta.table() }.try_lock().is_err()
        };
        tables.filter(|meta| meta.kind() == isotherm_page::Kind::Table).filter(is_locked).count()
    }
    let machine = Busy::new(64);
    let space: AddressSpace<'_, X86_64, Busy> = AddressSpace::new(&machine, 1).unwrap();
    let reserved = machine.host.take(Order::BASE).unwrap().into_reserved().unwrap();
    space.map(pages(16, 1), reserved.frame(), SPECIAL, Level::Pte).unwrap();
    let file = machine.host.folio(Order::BASE, FolioKind::File).unwrap();
    space.map(pages(17, 1), file.head(), Attributes::file(), Level::Pte).unwrap();
    let fault = WriteFault { sharing: Sharing::Private, bounds: pages(16, 2), whole_folio: false };
    let checks: [(u64, Meanwhile); 2] = [
        (16, |space| assert_eq!(locked(space.machine()), 1)),
        (17, |space| assert_eq!(locked(space.machine()), 0)),
    ];
    for (page, check) in checks {
        let resolved = Busy::while_copying(&space, check, || space.write_fault(at(page), None, fault));
        assert_eq!(resolved, Ok(Resolved::Copied(1)));
    }
    drop(space);
    assert_eq!(file.refs(), 1);
}

/// An entry whose frame has no metadata, as memory corruption may leave it, is copied by a fork as a special mapping is. One whose
/// frame may yet become a folio's is not, as the child's reference would be missing then.
#[test]
fn a_fork_copies_a_corrupt_entry_uncounted() {
    let machine = HostMachine::new(64);
    let before = machine.free_frames();
    let space = Space::new(&machine, 1).unwrap();
    let frame = mapped(&space, 16, 2);
    // SAFETY: tables of a space that lives.
    let entries = |table: Frame| unsafe { machine.table(table).as_ref() }.entries();
    let mut table = space.id().root;
    for _ in 0..3 {
        table = X86_64::table_frame(entries(table)[0].load());
    }
    let corrupt = |page: usize, raw: u64| {
        let entry = std::ptr::from_ref(&entries(table)[page]).cast::<std::sync::atomic::AtomicU64>();
        // SAFETY: an entry is an atomic word, and nobody else uses the space now.
        unsafe { &*entry }.store(raw, std::sync::atomic::Ordering::Relaxed);
    };
    let intact = entries(table)[17].load();
    let rule = ForkRule::Copy(Sharing::Private);
    let fork = |child: &Space<'_>| {
        let mut slots = [Slot::default(); 8];
        space.copy_range(child, pages(0, 512), rule, &mut space.gather(&mut slots))
    };
    let nowhere = Frame(1 << 20);
    corrupt(17, X86_64::leaf(Level::Pte, nowhere, Attributes::anonymous()));
    let child = Space::new(&machine, 2).unwrap();
    let got = fork(&child).unwrap();
    assert_eq!((got.anon, got.special), (3, 1));
    for space in [&space, &child] {
        let Mapping::Page { frame, attributes, .. } = space.query(at(17)) else { panic!() };
        assert_eq!((frame, attributes.write, attributes.exclusive), (nowhere, false, false));
        let fault = WriteFault { sharing: Sharing::Private, bounds: pages(16, 4), whole_folio: false };
        assert_eq!(space.write_fault(at(17), None, fault), Err(Error::UnknownFrame));
        assert_eq!(space.reference(at(17), None).err(), Some(Error::UnknownFrame));
    }
    // Four references were taken, of which the corrupt entry lost one.
    assert_eq!(FolioView::of(&machine, frame).unwrap().maps(), 4 + 3);
    let gone = child.exit(&mut [Slot::default(); 8]);
    assert_eq!((gone.anon, gone.special), (3, 1));

    let free = machine.take(Order::BASE).unwrap();
    corrupt(17, X86_64::leaf(Level::Pte, free.frame(), Attributes::anonymous()));
    let child = Space::new(&machine, 3).unwrap();
    let stopped = fork(&child).unwrap_err();
    assert_eq!((stopped.at, stopped.why, stopped.done.anon), (at(17), Error::NotAFolio, 1));
    child.exit(&mut [Slot::default(); 8]);

    corrupt(17, intact);
    space.exit(&mut [Slot::default(); 8]);
    drop(free);
    assert_eq!(machine.free_frames(), before);
}

/// What has no metadata is a device's only if the machine says so: the kernel's own memory is none.
#[test]
fn memory_without_metadata_is_not_mapped_unless_it_is_a_devices() {
    let machine = Busy::new(64);
    let space: AddressSpace<'_, X86_64, Busy> = AddressSpace::new(&machine, 1).unwrap();
    let map = |frame, count| {
        space.map(pages(40, count), frame, SPECIAL, Level::Pte).map_err(|stopped| (stopped.at, stopped.why))
    };
    // The machine's image, say: it has no metadata, and is no device.
    assert!(machine.meta(Busy::IMAGE).is_none());
    assert_eq!(map(Busy::IMAGE, 1), Err((at(40), Error::NotReserved)));
    assert_eq!(map(Frame(Busy::IMAGE.0 - 2), 3), Err((at(42), Error::NotReserved)));
    assert_eq!(space.query(at(42)), Mapping::None);
    let by = Replacement::Page { frame: Busy::IMAGE, attributes: SPECIAL };
    let seen = Seen::Page(Frame(Busy::IMAGE.0 - 2));
    let replaced = space.replace(at(40), seen, by, &mut space.gather(&mut []));
    assert_eq!(replaced, Err(Error::NotReserved));
}

/// A program's store by a stale address while the frame becomes a page table: it finds no folio there, or holds the one that
/// it found, so that the table comes later or is another frame.
#[test]
fn a_store_by_a_stale_address_reaches_no_table() {
    let rounds = if cfg!(miri) { 3 } else { 2_000 };
    // So few frames that what is freed becomes a table soon.
    let machine = HostMachine::new(8);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                for frame in 1..8 {
                    // An entry that is valid, of a frame that is nobody's.
                    let _ = machine.write(Frame(frame).address() + 8, 0xdead_0001);
                    let _ = machine.read(Frame(frame).address() + 8);
                }
            }
        });
        for _ in 0..rounds {
            let space = Space::new(&machine, 1).unwrap();
            mapped(&space, 16, 0);
            // Next to where the stores go.
            assert_eq!(space.query(at(17)), Mapping::None);
            assert_eq!(space.query(VirtAddr(1 << 30)), Mapping::None);
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

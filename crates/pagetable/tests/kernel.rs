//! A kernel's half that processes share, and pages that are mapped one after the other.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use isotherm_pagetable::host::HostMachine;
use isotherm_pagetable::*;

const RULE: ForkRule = ForkRule::Copy(Sharing::Private);

fn kernel_attributes() -> Attributes {
    Attributes { user: false, global: true, exclusive: false, ..Attributes::anonymous() }
}

/// The first address of the upper half, and one as far above it as there are tables below a root's entry, and more.
fn upper<F: Format>() -> [u64; 2] {
    let first = (1u64 << (64 - PAGE_SHIFT)) - (1 << (F::VA_BITS - PAGE_SHIFT - 1));
    [first, first + 3 * F::pages(F::ROOT) + 7]
}

fn pages(first: u64, pages: u64) -> PageRange {
    PageRange::with_pages(VirtAddr::of_page(first), pages).unwrap()
}

fn the_kernel_s_half_is_one<F: Format>() {
    let machine = HostMachine::new(4096);
    let free = machine.free_frames();
    let kernel = KernelHalf::<F, _>::new(&machine, 0).unwrap();
    let half = 1 << (F::VA_BITS - PAGE_SHIFT - F::shift(F::ROOT) - 1);
    assert_eq!(machine.free_frames(), free - 1 - half);
    let [before, after] = upper::<F>();
    let folio = machine.folio(Order::BASE, FolioKind::Anon).unwrap();
    kernel.space().map(pages(before, 1), folio.head(), kernel_attributes(), Level::Pte).unwrap();
    let process = AddressSpace::with_kernel(&machine, 1, &kernel).unwrap();
    let other = AddressSpace::with_kernel(&machine, 2, &kernel).unwrap();
    // What was there is seen, and what comes later, in a part of the half where nothing was; what goes is gone for all.
    kernel.space().map(pages(after, 1), folio.head(), kernel_attributes(), Level::Pte).unwrap();
    for space in [&process, &other] {
        for page in [before, after] {
            let Mapping::Page { frame, attributes, .. } = space.query(VirtAddr::of_page(page)) else {
                panic!()
            };
            assert_eq!((frame, attributes.user, attributes.global), (folio.head(), false, true));
            assert_eq!(space.read().lookup(VirtAddr::of_page(page)), space.query(VirtAddr::of_page(page)));
        }
    }
    let mut slots = [Slot::default(); 8];
    let whole = pages(upper::<F>()[0], half << F::shift(F::ROOT));
    kernel.space().unmap(whole, &mut kernel.space().gather(&mut slots)).unwrap();
    assert_eq!(process.query(VirtAddr::of_page(after)), Mapping::None);
    // The tables that all share stay, so what is mapped now is seen again.
    kernel.space().map(pages(after, 1), folio.head(), kernel_attributes(), Level::Pte).unwrap();
    assert!(matches!(other.query(VirtAddr::of_page(after)), Mapping::Page { .. }));
    drop(folio);

    // A process' operations are on its own half, and the kernel's on its.
    let user = machine.folio(Order::BASE, FolioKind::Anon).unwrap();
    let refused = |stopped: Stopped| stopped.why == Error::NotCanonical;
    for space in [&process, &other] {
        assert!(
            space.map(pages(after, 1), user.head(), Attributes::anonymous(), Level::Pte).is_err_and(refused)
        );
        assert!(space.zap(pages(before, 1 << 9), &mut space.gather(&mut slots)).is_err_and(refused));
        space.map(pages(16, 1), user.head(), Attributes::file(), Level::Pte).unwrap();
    }
    let low = kernel.space().map(pages(16, 1), user.head(), Attributes::file(), Level::Pte);
    assert!(low.is_err_and(refused));
    drop(user);
    let child = AddressSpace::with_kernel(&machine, 3, &kernel).unwrap();
    process.copy_range(&child, pages(0, 512), RULE, &mut process.gather(&mut slots)).unwrap();
    assert!(matches!(child.query(VirtAddr::of_page(after)), Mapping::Page { .. }));
    assert!(matches!(child.query(VirtAddr::of_page(16)), Mapping::Page { .. }));
    // Each ends by itself, and leaves the kernel what it has.
    for space in [process, child, other] {
        let gone = space.exit(&mut slots);
        assert_eq!((gone.anon, gone.tables), (1, F::ROOT as u64 + 1));
        assert!(matches!(kernel.space().query(VirtAddr::of_page(after)), Mapping::Page { .. }));
    }
    drop(kernel);
    assert_eq!(machine.free_frames(), free);
}

#[test]
fn of_x86_64() {
    the_kernel_s_half_is_one::<X86_64>();
    the_kernel_s_half_is_one::<X86_64La57>();
}

#[test]
fn of_risc_v() {
    the_kernel_s_half_is_one::<RiscV<Sv39>>();
    the_kernel_s_half_is_one::<RiscV<Sv48>>();
    the_kernel_s_half_is_one::<RiscV<Sv57>>();
}

/// A space without a kernel has the upper half to itself. What it maps there becomes no other process'.
fn a_fork_writes_into_nobody_else_s_half<F: Format>() {
    let machine = HostMachine::new(4096);
    let kernel = KernelHalf::<F, _>::new(&machine, 0).unwrap();
    let bystander = AddressSpace::with_kernel(&machine, 1, &kernel).unwrap();
    let child = AddressSpace::with_kernel(&machine, 2, &kernel).unwrap();
    let parent = AddressSpace::<F, _>::new(&machine, 3).unwrap();
    let free = machine.free_frames();
    let [high, _] = upper::<F>();
    let mut slots = [Slot::default(); 8];
    for (page, into) in [(high, &child), (16, kernel.space())] {
        let folio = machine.folio(Order::BASE, FolioKind::Anon).unwrap();
        parent.map(pages(page, 1), folio.head(), Attributes::anonymous(), Level::Pte).unwrap();
        for rule in [RULE, ForkRule::Copy(Sharing::Shared), ForkRule::Refault] {
            let stopped =
                parent.copy_range(into, pages(page, 1), rule, &mut parent.gather(&mut slots)).unwrap_err();
            assert_eq!((stopped.why, stopped.done), (Error::NotCanonical, RssStat::default()));
        }
        assert_eq!(folio.maps(), 1);
        for space in [&bystander, &child, kernel.space()] {
            assert_eq!(space.query(VirtAddr::of_page(page)), Mapping::None);
        }
    }
    parent.exit(&mut slots);
    assert_eq!(machine.free_frames(), free + 1, "but for the parent's root all is as it was");
}

#[test]
fn a_fork_stays_in_the_child_s_own_half() {
    a_fork_writes_into_nobody_else_s_half::<X86_64>();
    a_fork_writes_into_nobody_else_s_half::<X86_64La57>();
    a_fork_writes_into_nobody_else_s_half::<RiscV<Sv39>>();
}

/// Tables that the caller made need be none that this machine knows: a look goes through them and locks none.
#[test]
fn a_look_locks_no_table_of_others() {
    let machine: &HostMachine = Box::leak(Box::new(HostMachine::new(256)));
    let owner = AddressSpace::<X86_64, _>::new(machine, 1).unwrap();
    let owner: &AddressSpace<'_, X86_64, _> = Box::leak(Box::new(owner));
    let folio = machine.folio(Order::BASE, FolioKind::File).unwrap();
    owner.map(pages(16, 1), folio.head(), Attributes::file(), Level::Pte).unwrap();
    // SAFETY: the root of a space that is never dropped.
    let entry = unsafe { machine.table(owner.id().root).as_ref() }.entries()[0].load();
    // SAFETY: an entry of such a root, and what it refers to stays.
    let guest = unsafe { AddressSpace::<X86_64, _>::with_entries(machine, 2, 0, &[entry]) }.unwrap();
    // The owner's lock is held as long as this is.
    let mut mapper = owner.mapper();
    mapper.map(pages(17, 1), folio.head(), Attributes::file()).unwrap();
    let (answer, answered) = std::sync::mpsc::channel();
    let looks = std::thread::spawn(move || {
        let _ = answer.send([16, 17, 18].map(|page| guest.query(VirtAddr::of_page(page))));
        drop(guest);
    });
    let found = answered.recv_timeout(std::time::Duration::from_secs(60)).expect("nobody is waited for");
    assert!(matches!(found[0], Mapping::Page { frame, .. } if frame == folio.head()));
    assert_eq!((found[0] == found[1], found[2]), (true, Mapping::None));
    looks.join().unwrap();
    drop(mapper);
}

#[test]
fn a_leaf_is_never_as_large_as_what_processes_share() {
    let machine = HostMachine::new(4096);
    let kernel = KernelHalf::<RiscV<Sv39>, _>::new(&machine, 0).unwrap();
    let process = AddressSpace::with_kernel(&machine, 1, &kernel).unwrap();
    let [first, _] = upper::<RiscV<Sv39>>();
    // 1 GiB of a device, which a leaf of the root could map.
    let attributes = Attributes { special: true, memory: MemoryType::Device, ..kernel_attributes() };
    kernel.space().map(pages(first, 1 << 18), Frame(1 << 20), attributes, Level::Pud).unwrap();
    let Mapping::Page { level, .. } = process.query(VirtAddr::of_page(first + 5)) else { panic!() };
    assert_eq!(level, Level::Pmd);
}

#[test]
fn pages_are_mapped_one_after_the_other() {
    let machine = HostMachine::new(4096);
    let free = machine.free_frames();
    let space = AddressSpace::<Arm64Hafdbs, _>::new(&machine, 1).unwrap();
    let large = machine.folio(Order::new(4).unwrap(), FolioKind::File).unwrap();
    let small: Vec<_> = (0..16).map(|_| machine.folio(Order::BASE, FolioKind::File).unwrap()).collect();
    let mut mapper = space.mapper();
    // Across the border of two tables, and page by page into a block, which is folded with the last.
    for (n, folio) in small.iter().enumerate() {
        let done = mapper.map(pages(504 + n as u64, 1), folio.head(), Attributes::file()).unwrap();
        assert_eq!((done.file, done.tables), (1, if n == 0 { 3 } else { u64::from(n == 8) }));
    }
    for n in 0..16 {
        mapper.map(pages(528 + n, 1), large.head().add(n), Attributes::file()).unwrap();
    }
    // Who maps around what is there goes on behind it.
    let stopped = mapper.map(pages(524, 16), large.head(), Attributes::file()).unwrap_err();
    assert_eq!((stopped.why, stopped.at, stopped.done.file), (Error::Occupied, VirtAddr::of_page(528), 4));
    mapper.rest();
    space.protect(pages(524, 4), Protection::NONE, Sharing::Private, &mut space.gather(&mut [])).unwrap();
    drop(mapper);
    assert!(matches!(space.query(VirtAddr::of_page(530)), Mapping::Page { contiguous: true, .. }));
    assert_eq!(large.view().maps(), 20);
    drop((small, large));
    drop(space);
    assert_eq!(machine.free_frames(), free);
}

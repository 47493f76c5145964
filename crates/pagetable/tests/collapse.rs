//! Collapse by copying: of which pages, and that nothing written meanwhile is lost.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::cell::{Cell, RefCell};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use common::{at, pages};
use isotherm_pagetable::host::HostMachine;
use isotherm_pagetable::*;

const FIRST: u64 = 512;
const RULE: ForkRule = ForkRule::Copy(Sharing::Private);

/// Maps a folio of its own, each page of which holds `value`.
fn map<M: Machine, F: Format>(
    space: &AddressSpace<'_, F, M>,
    host: &HostMachine,
    page: u64,
    order: u8,
    value: u64,
) {
    let machine = space.machine();
    let folio = Folio::prepare(machine, host.take(order).unwrap(), order, FolioKind::Anon).unwrap();
    for n in 0..1 << order {
        host.write(folio.head().add(n).address(), value).unwrap();
    }
    space.map(pages(page, 1 << order), folio.head(), Attributes::anonymous(), Level::Pte).unwrap();
    folio.put(machine);
}

fn frame<M: Machine, F: Format>(space: &AddressSpace<'_, F, M>, page: u64) -> Frame {
    let Mapping::Page { frame, .. } = space.query(at(page)) else { panic!("page {page} is not mapped") };
    frame
}

fn fault(range: PageRange) -> WriteFault {
    WriteFault { sharing: Sharing::Private, bounds: range, whole_folio: false }
}

/// Once a child is gone its pages are the parent's alone again, though their entries do not know it yet.
fn after_a_child<F: Format>() {
    let machine = HostMachine::new(4096);
    let free = machine.free_frames();
    let space = AddressSpace::<F, _>::new(&machine, 1).unwrap();
    for page in 0..4 {
        map(&space, &machine, FIRST + page, 0, 70 + page);
    }
    map(&space, &machine, FIRST + 16, 4, 7);
    let mut child = AddressSpace::new(&machine, 2).unwrap();
    let all = pages(FIRST, 512);
    space.copy_range(&mut child, all, RULE, &mut space.gather(&mut [])).unwrap();
    let shared = space.collapse(at(FIRST), 511, &mut space.gather(&mut []));
    assert!(matches!(shared, Err(Error::NotCollapsible(_))), "{shared:?}");
    drop(child);
    let collapsed = space.collapse(at(FIRST), 511, &mut space.gather(&mut [])).unwrap();
    assert_eq!(collapsed, Collapsed::Copied { pages: 20 });
    for (page, value) in [(0, 70), (3, 73), (4, 0), (16, 7), (31, 7), (32, 0)] {
        assert_eq!(machine.read(frame(&space, FIRST + page).address()), Some(value), "page {page}");
    }
    // It is this space's alone: no copy for the next write.
    assert_eq!(space.write_fault(at(FIRST), fault(all)), Ok(Resolved::Reused(512)));
    drop(space);
    assert_eq!(machine.free_frames(), free);
}

#[test]
#[cfg_attr(miri, ignore = "thousands of entries")]
fn pages_whose_other_owners_are_gone_collapse_on_x86_64() {
    after_a_child::<X86_64>();
}

#[test]
#[cfg_attr(miri, ignore = "thousands of entries")]
fn pages_whose_other_owners_are_gone_collapse_on_arm64() {
    after_a_child::<Arm64Hafdbs>();
}

type Meanwhile = fn(&AddressSpace<'_, X86_64, Busy>);

thread_local! {
    /// What another thread does while the first page of a collapse is copied.
    static MEANWHILE: Cell<Option<Meanwhile>> = const { Cell::new(None) };
    /// The space it does that to.
    static SPACE: RefCell<Option<NonNull<()>>> = const { RefCell::new(None) };
}

/// A machine that is busy with something else just while pages are copied: the order of two threads, by one.
struct Busy(HostMachine);

// SAFETY: all is forwarded to a machine that keeps the rules.
unsafe impl Memory for Busy {
    fn table(&self, frame: Frame) -> NonNull<Table> {
        self.0.table(frame)
    }
    fn meta(&self, frame: Frame) -> Option<&FrameMeta> {
        self.0.meta(frame)
    }
    unsafe fn copy(&self, from: Frame, to: Frame, frames: u64) {
        // SAFETY: the caller's promise is passed on.
        unsafe { self.0.copy(from, to, frames) };
        let space = SPACE.with_borrow(|space| *space);
        if let (Some(other), Some(space)) = (MEANWHILE.take(), space) {
            // SAFETY: the test put a reference there to a space that it still has.
            other(unsafe { space.cast::<AddressSpace<'_, X86_64, Busy>>().as_ref() });
        }
    }
    unsafe fn clear(&self, frame: Frame) {
        // SAFETY: the caller's promise is passed on.
        unsafe { self.0.clear(frame) };
    }
}

// SAFETY: as above.
unsafe impl Frames for Busy {
    fn alloc_table(&self) -> Option<Frame> {
        self.0.alloc_table()
    }
    fn retire_table(&self, frame: Frame) {
        self.0.retire_table(frame);
    }
    fn alloc_folio(&self, order: u8) -> Option<Frame> {
        self.0.alloc_folio(order)
    }
    fn free_folio(&self, head: Frame, order: u8) {
        self.0.free_folio(head, order);
    }
}

// SAFETY: there is no TLB.
unsafe impl Tlb for Busy {
    fn invalidate_page(&self, _: SpaceId, _: u64) {}
    fn invalidate_range(&self, _: SpaceId, _: PageRange, _: bool) {}
    fn invalidate_space(&self, _: SpaceId) {}
    fn sync(&self) {}
}

impl Rcu for Busy {
    type Guard<'a> = <HostMachine as Rcu>::Guard<'a>;
    fn read_lock(&self) -> Self::Guard<'_> {
        self.0.read_lock()
    }
}

impl Observe for Busy {}

/// Writes a page as a program does: through a write fault, since the collapse made it read-only.
fn write(space: &AddressSpace<'_, X86_64, Busy>, page: u64) {
    space.write_fault(at(page), fault(pages(FIRST, 512))).unwrap();
    space.machine().0.write(frame(space, page).address(), 1234).unwrap();
}

/// What else may happen after the write that leaves the entry exactly as the collapse knew it.
const HIDDEN: [(&str, Meanwhile); 6] = [
    ("write", |space| write(space, FIRST)),
    ("write, write-protect", |space| {
        write(space, FIRST);
        space.write_protect(pages(FIRST, 1), &mut space.gather(&mut [])).unwrap();
    }),
    ("protect, write, protect", |space| {
        let protect = |protection| {
            space
                .protect(pages(FIRST, 512), protection, Sharing::Private, &mut space.gather(&mut []))
                .unwrap();
        };
        protect(Protection::READ_WRITE);
        space.machine().0.write(frame(space, FIRST).address(), 1234).unwrap();
        protect(Protection::READ);
    }),
    ("move away, write, write-protect, move back", |space| {
        space.remap(pages(FIRST, 1), at(4096)).unwrap();
        space.write_fault(at(4096), fault(pages(4096, 1))).unwrap();
        space.machine().0.write(frame(space, 4096).address(), 1234).unwrap();
        space.write_protect(pages(4096, 1), &mut space.gather(&mut [])).unwrap();
        space.remap(pages(4096, 1), at(FIRST)).unwrap();
    }),
    ("pin, write by a device, unpin", |space| {
        let frame = space.pin(at(FIRST)).unwrap();
        space.machine().0.write(frame.address(), 1234).unwrap();
        Folio::of(space.machine(), frame).unwrap().unpin(space.machine());
    }),
    ("write, another collapse", |space| {
        write(space, FIRST);
        // Fails for want of memory, when it has made the pages read-only as well.
        space.machine().0.set_budget(u64::MAX, 0);
        let failed = space.collapse(at(FIRST), 511, &mut space.gather(&mut []));
        assert_eq!(failed, Err(Error::NoFolioFrames(MAX_ORDER)));
    }),
];

#[test]
#[cfg_attr(miri, ignore = "thousands of entries")]
fn what_is_written_while_pages_are_copied_is_not_lost() {
    for (name, other) in HIDDEN {
        let machine = Busy(HostMachine::new(4096));
        let free = machine.0.free_frames();
        let space = AddressSpace::<X86_64, _>::new(&machine, 1).unwrap();
        map(&space, &machine.0, FIRST, 0, 1);
        map(&space, &machine.0, FIRST + 100, 2, 2);
        SPACE.set(Some(NonNull::from(&space).cast()));
        MEANWHILE.set(Some(other));
        let collapsed = space.collapse(at(FIRST), 511, &mut space.gather(&mut []));
        SPACE.set(None);
        assert!(MEANWHILE.take().is_none(), "{name}: nothing was copied");
        let found = machine.0.read(frame(&space, FIRST).address());
        assert_eq!(found, Some(1234), "{name}: the write is lost, the collapse came to {collapsed:?}");
        assert_eq!(collapsed, Err(Error::Changed), "{name}");
        machine.0.set_budget(u64::MAX, u64::MAX);
        let collapsed = space.collapse(at(FIRST), 511, &mut space.gather(&mut []));
        assert_eq!(collapsed, Ok(Collapsed::Copied { pages: 5 }), "{name}");
        assert_eq!(machine.0.read(frame(&space, FIRST).address()), Some(1234), "{name}");
        drop(space);
        assert_eq!(machine.0.free_frames(), free, "{name}");
    }
}

/// Of which the last page's folio can take no more references: those of the pages before go back.
#[test]
#[cfg_attr(miri, ignore = "thousands of entries")]
fn a_collapse_that_cannot_hold_a_page_holds_none() {
    let machine = HostMachine::new(4096);
    let free = machine.free_frames();
    let space = AddressSpace::<X86_64, _>::new(&machine, 1).unwrap();
    map(&space, &machine, FIRST, 0, 1);
    map(&space, &machine, FIRST + 9, 0, 2);
    let last = Folio::of(&machine, frame(&space, FIRST + 9)).unwrap();
    // Two milliards of references, taken at once: `maps << 32 | refs` is the first word of the metadata.
    let meta = machine.meta(last.head()).unwrap();
    // SAFETY: 16 bytes of which the first 8 are an atomic word.
    let counts = unsafe { &*std::ptr::from_ref(meta).cast::<AtomicU64>() };
    let many = (1 << 31) - 2;
    counts.fetch_add(many, Ordering::Relaxed);
    assert_eq!(u64::from(last.refs()), many + 1);
    let failed = space.collapse(at(FIRST), 511, &mut space.gather(&mut []));
    assert_eq!(failed, Err(Error::TooManyReferences));
    counts.fetch_sub(many, Ordering::Relaxed);
    assert_eq!((last.refs(), Folio::of(&machine, frame(&space, FIRST)).unwrap().refs()), (1, 1));
    let all = pages(FIRST, 512);
    assert_eq!(space.write_fault(at(FIRST), fault(all)), Ok(Resolved::Reused(1)));
    drop(space);
    assert_eq!(machine.free_frames(), free);
}

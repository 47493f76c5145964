//! A machine that is busy with something else just while pages are copied: the order of two threads, by one.

use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::Mutex;

use isotherm_page::OwnedBlock;
use isotherm_pagetable::host::HostMachine;
use isotherm_pagetable::*;

/// What another thread does to a space.
pub type Meanwhile = fn(&AddressSpace<'_, X86_64, Busy>);

thread_local! {
    /// What to do while the first page is copied, and the space that it is done to.
    static MEANWHILE: Cell<Option<(Meanwhile, NonNull<()>)>> = const { Cell::new(None) };
}

/// See the [module](self).
pub struct Busy {
    pub host: HostMachine,
    /// The heads of folios that the page tables said are partly mapped.
    pub partly_mapped: Mutex<Vec<Frame>>,
}

impl Busy {
    /// The frame of the kernel's own image, which has no metadata and is no device's.
    pub const IMAGE: Frame = Frame(1 << 20);

    pub fn new(frames: u64) -> Busy {
        Busy { host: HostMachine::new(frames), partly_mapped: Mutex::default() }
    }

    /// Does `one`, and `other` while that copies its first page.
    pub fn while_copying<T>(
        space: &AddressSpace<'_, X86_64, Busy>,
        other: Meanwhile,
        one: impl FnOnce() -> T,
    ) -> T {
        MEANWHILE.set(Some((other, NonNull::from(space).cast())));
        let result = one();
        assert!(MEANWHILE.take().is_none(), "nothing was copied");
        result
    }
}

// SAFETY: all is forwarded to a machine that keeps the rules.
unsafe impl Pages for Busy {
    fn meta(&self, frame: Frame) -> Option<&PageMeta> {
        self.host.meta(frame)
    }
    unsafe fn free(&self, block: OwnedBlock) {
        // SAFETY: the caller's promise is passed on.
        unsafe { self.host.free(block) };
    }
    unsafe fn split(&self, block: OwnedBlock, order: Order) {
        // SAFETY: the caller's promise is passed on.
        unsafe { self.host.split(block, order) };
    }
    fn partly_mapped(&self, folio: &FolioView<'_>) {
        assert!(folio.refs() > folio.maps(), "a reference is held");
        self.partly_mapped.lock().unwrap().push(folio.head());
    }
}

// SAFETY: all is forwarded to a machine that keeps the rules.
unsafe impl Memory for Busy {
    fn table(&self, frame: Frame) -> NonNull<Table> {
        self.host.table(frame)
    }
    fn is_device(&self, frame: Frame) -> bool {
        frame != Busy::IMAGE && self.host.is_device(frame)
    }
    unsafe fn copy(&self, from: Frame, to: Frame, frames: u64) {
        // SAFETY: the caller's promise is passed on.
        unsafe { self.host.copy(from, to, frames) };
        if let Some((other, space)) = MEANWHILE.take() {
            // SAFETY: `while_copying`, which this runs in, borrows the space.
            other(unsafe { space.cast::<AddressSpace<'_, X86_64, Busy>>().as_ref() });
        }
    }
    unsafe fn clear(&self, frame: Frame) {
        // SAFETY: the caller's promise is passed on.
        unsafe { self.host.clear(frame) };
    }
}

// SAFETY: as above.
unsafe impl Frames for Busy {
    fn alloc_table(&self) -> Option<Frame> {
        self.host.alloc_table()
    }
    unsafe fn retire_table(&self, frame: Frame) {
        // SAFETY: the caller's promise is passed on.
        unsafe { self.host.retire_table(frame) };
    }
    fn alloc_folio(&self, order: Order) -> Option<Frame> {
        self.host.alloc_folio(order)
    }
}

// SAFETY: there is no TLB.
unsafe impl Tlb for Busy {
    type Context = u16;
    fn invalidate_page(&self, _: SpaceId, _: u64) {}
    fn invalidate_range(&self, _: SpaceId, _: Flush) {}
    fn invalidate_space(&self, _: SpaceId) {}
    fn sync(&self) {}
}

impl Rcu for Busy {
    type Guard<'a> = <HostMachine as Rcu>::Guard<'a>;
    fn read_lock(&self) -> Self::Guard<'_> {
        self.host.read_lock()
    }
}

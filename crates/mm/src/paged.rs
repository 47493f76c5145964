//! Private anonymous memory behind the VMAs: page tables, and the pages that they map, counted.

use core::fmt;
use core::ops::Range;

use isotherm_page::{Block, Folio, FolioKind, Frame, Order, OwnedBlock};
use isotherm_pagetable::{
    AddressSpace as Tables, Attributes, Error as TableError, ForkRule, Format, Gather, Level, Machine,
    Mapping, PageRange, Protection, Resolved, RssStat, Sharing, Slot, SpaceId, Stopped, VirtAddr, WriteFault,
};

use crate::contents::Contents;
use crate::error::Error;
use crate::flags::{PAGE_SIZE, VmFlags};
use crate::sharded::Sharded;
use crate::vma::VmaInfo;

/// What one flush gives back at most.
const SLOTS: usize = 128;

/// An access of a program, and what the MMU says of it.
pub use isotherm_pagetable::{Access, Fault as MmuFault};

/// Page tables of format `F` on a machine `M`, and private anonymous pages of order 0. What VMAs of objects map is not here.
pub struct Paged<'m, F: Format, M: Machine> {
    tables: Tables<'m, F, M>,
    zero: Frame,
    /// Pages that are mapped but for the zero page.
    resident: Sharded,
}

/// The pages of a range of addresses.
fn pages(range: &Range<u64>) -> Option<PageRange> {
    PageRange::new(range.start, range.end).ok()
}

fn protection(flags: VmFlags) -> Protection {
    Protection {
        user: flags.intersects(VmFlags::ACCESS),
        write: flags.contains(VmFlags::WRITE),
        execute: flags.contains(VmFlags::EXEC),
    }
}

impl<'m, F: Format, M: Machine> Paged<'m, F, M> {
    /// Empty page tables. `zero` is a frame of zeros that stays what it is, mapped wherever only reads came so far: one
    /// without metadata, or [`Reserved`](isotherm_page::Reserved). `asid` is the caller's tag for the TLB.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub fn new(machine: &'m M, asid: u16, zero: Frame) -> Result<Self, Error> {
        let tables = Tables::new(machine, asid).map_err(|_| Error::NoMemory)?;
        Ok(Self { tables, zero, resident: Sharded::new() })
    }

    /// What the TLB operations are called with; its root is what the CPU loads. No CPU may have it loaded when the space is
    /// dropped.
    #[must_use]
    pub fn id(&self) -> SpaceId {
        self.tables.id()
    }

    /// How many pages are mapped but for the zero page (`rss`). Exact while no fault or operation is under way.
    #[must_use]
    pub fn resident(&self) -> u64 {
        self.resident.get()
    }

    /// The frame of a page, as the MMU finds it, which sets the accessed and dirty bits; for emulators and tests. Nothing keeps
    /// the page from being unmapped when this returns but what the caller knows.
    ///
    /// # Errors
    /// What the CPU would raise: then the space's [`fault`](crate::AddressSpace::fault) resolves it.
    pub fn access(&self, address: u64, access: Access) -> Result<Frame, MmuFault> {
        self.tables.read().access(VirtAddr(address), access)
    }

    fn with_gather<R>(&self, act: impl FnOnce(&mut Gather<'_, M>) -> R) -> R {
        let mut slots = [Slot::default(); SLOTS];
        // Dropped, it flushes.
        act(&mut self.tables.gather(&mut slots))
    }

    /// Pages of a range went. All leaves are small, so none must be split, and only a range fails that the format does not
    /// translate: which has no pages.
    fn gone(&self, done: Result<RssStat, Stopped>) {
        let gone = done.unwrap_or_else(|stopped| stopped.done);
        self.resident.add(0, -(gone.resident() as i64));
    }

    /// Resolves a fault in a VMA that permits the access and stays as it is meanwhile. `cpu` chooses a counter.
    pub(crate) fn resolve(
        &self,
        vma: &VmaInfo,
        address: u64,
        access: Access,
        cpu: usize,
    ) -> Result<(), Error> {
        let at = VirtAddr(address & !(PAGE_SIZE - 1));
        let page = PageRange::with_pages(at, 1).map_err(|_| Error::BadAddress)?;
        let bounds = PageRange::new(vma.start, vma.end).map_err(|_| Error::BadAddress)?;
        loop {
            let found = { self.tables.read().lookup(at) };
            let write = access == Access::Write;
            let done = match found {
                Mapping::None if write => self.map_new(page, vma.flags, cpu),
                Mapping::None => self.map_zero(page, vma.flags),
                Mapping::Page { attributes, frame, .. } if write && !attributes.write => {
                    self.copy(at, frame, bounds, attributes, cpu)
                }
                Mapping::Page { frame, .. } => self.tables.mark_accessed(at, frame, write),
                // There is no swap.
                Mapping::Token(_) => return Err(Error::BadAddress),
            };
            match done {
                Ok(()) => return Ok(()),
                // Another fault on the page was faster, or has come half-way.
                Err(
                    TableError::Occupied
                    | TableError::NotMapped
                    | TableError::NotPermitted
                    | TableError::Changed,
                ) => {}
                Err(TableError::NoTableFrame | TableError::NoFolioFrames(_)) => return Err(Error::NoMemory),
                Err(_) => return Err(Error::BadAddress),
            }
        }
    }

    /// A page of zeros of its own.
    fn map_new(&self, page: PageRange, flags: VmFlags, cpu: usize) -> Result<(), TableError> {
        let machine = self.tables.machine();
        let frame = machine.alloc_folio(Order::BASE).ok_or(TableError::NoFolioFrames(Order::BASE))?;
        // SAFETY: it was just allocated.
        let block = unsafe { OwnedBlock::new(Block::new(frame, Order::BASE)) };
        // SAFETY: it came from this machine.
        let folio = unsafe { Folio::new(machine, block, FolioKind::Anon) }.map_err(|(why, block)| {
            // SAFETY: nothing was made of it.
            unsafe { machine.free(block) };
            TableError::from(why)
        })?;
        // SAFETY: it is ours alone.
        unsafe { machine.clear(frame) };
        let attributes = Attributes { execute: flags.contains(VmFlags::EXEC), ..Attributes::anonymous() };
        let mapped = self.tables.map(page, folio.head(), attributes, Level::Pte);
        self.resident.add(cpu, mapped.map_err(|stopped| stopped.why)?.resident() as i64);
        Ok(())
    }

    fn map_zero(&self, page: PageRange, flags: VmFlags) -> Result<(), TableError> {
        let attributes =
            Attributes { execute: flags.contains(VmFlags::EXEC), special: true, ..Attributes::file() };
        self.tables.map(page, self.zero, attributes, Level::Pte).map(drop).map_err(|stopped| stopped.why)
    }

    /// A page that may not be written yet: of the parent's too, or the zero page.
    fn copy(
        &self,
        at: VirtAddr,
        frame: Frame,
        bounds: PageRange,
        was: Attributes,
        cpu: usize,
    ) -> Result<(), TableError> {
        let fault = WriteFault { sharing: Sharing::Private, bounds, whole_folio: false };
        let resolved = self.tables.write_fault(at, frame, fault)?;
        // What was copied is this frame, the zero page or not.
        if was.special && matches!(resolved, Resolved::Copied(_)) {
            self.resident.add(cpu, 1);
        }
        Ok(())
    }
}

impl<F: Format, M: Machine> Contents for Paged<'_, F, M> {
    fn unmap(&self, range: Range<u64>) {
        let Some(pages) = pages(&range) else { return };
        self.gone(self.with_gather(|gather| self.tables.unmap(pages, gather)));
    }

    fn zap(&self, range: Range<u64>) {
        let Some(pages) = pages(&range) else { return };
        self.gone(self.with_gather(|gather| self.tables.zap(pages, gather)));
    }

    fn protect(&self, range: Range<u64>, flags: VmFlags) {
        let Some(pages) = pages(&range) else { return };
        let done = self
            .with_gather(|gather| self.tables.protect(pages, protection(flags), Sharing::Private, gather));
        // Only a range fails that the format does not translate.
        debug_assert!(done.is_ok() || self.tables.query(VirtAddr(range.start)) == Mapping::None);
    }

    fn relocate(&self, range: Range<u64>, to: u64) -> Result<(), Error> {
        let Some(pages) = pages(&range) else { return Ok(()) };
        let Err(stopped) = self.tables.remap(pages, VirtAddr(to)) else { return Ok(()) };
        // What was moved goes back, where its tables still are.
        let moved = stopped.at.0 - range.start;
        let back = PageRange::new(to, to + moved).map(|back| self.tables.remap(back, VirtAddr(range.start)));
        debug_assert!(matches!(back, Ok(Ok(_))));
        Err(Error::NoMemory)
    }

    fn copy(&self, range: Range<u64>, _: VmFlags, child: &mut Self) -> Result<(), Error> {
        let Some(pages) = pages(&range) else { return Ok(()) };
        let rule = ForkRule::Copy(Sharing::Private);
        let copied =
            self.with_gather(|gather| self.tables.copy_range(&mut child.tables, pages, rule, gather));
        let got = copied.unwrap_or_else(|stopped| stopped.done);
        child.resident.add(0, got.resident() as i64);
        copied.map(drop).map_err(|_| Error::NoMemory)
    }
}

impl<F: Format, M: Machine> fmt::Debug for Paged<'_, F, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Paged").field("resident", &self.resident()).finish_non_exhaustive()
    }
}

//! What a fault does once its VMA is found.

use isotherm_page::{FolioKind, FolioView, Frame};
use isotherm_pagetable::{
    Access, Attributes, Error as TableError, Format, Level, Machine, Mapping, PageRange, Resolved, Sharing,
    SwapEntry, VirtAddr, WriteFault,
};

use super::mm::Kind;
use super::{Incoming, Paged};
use crate::error::Error;
use crate::fault::FaultError;
use crate::flags::{PAGE_SHIFT, PAGE_SIZE, VmFlags};
use crate::object::{Cached, ObjectKind, Objects, PageInError};
use crate::vma::{ObjectId, VmaInfo};

/// Why a page is not mapped.
pub(crate) enum Unresolved {
    Failed(Error),
    Fault(FaultError),
    /// This page of an object is to be brought in, without `mmap_lock`.
    NotCached(ObjectId, u64),
    /// This page is to be read from swap, likewise.
    Swapped(SwapEntry),
    Object(PageInError),
}

impl From<FaultError> for Unresolved {
    fn from(why: FaultError) -> Self {
        Self::Fault(why)
    }
}

impl From<Error> for Unresolved {
    fn from(why: Error) -> Self {
        Self::Failed(why)
    }
}

/// So many frames a fault frees that finds none: Linux' `SWAP_CLUSTER_MAX`.
const ROOM: u64 = 32;

/// A fault: the page, and the VMA that it lies in.
#[derive(Clone, Copy)]
pub(super) struct Fault {
    pub(super) at: VirtAddr,
    pub(super) page: PageRange,
    bounds: PageRange,
    pub(super) vma: VmaInfo,
    pub(super) flags: VmFlags,
    write: bool,
    /// Chooses a counter.
    pub(super) cpu: usize,
}

impl Fault {
    pub(super) fn new(vma: &VmaInfo, address: u64, access: Access, cpu: usize) -> Result<Self, Error> {
        let at = VirtAddr(address & !(PAGE_SIZE - 1));
        let page = PageRange::with_pages(at, 1).map_err(|_| Error::BadAddress)?;
        let bounds = PageRange::new(vma.start, vma.end).map_err(|_| Error::BadAddress)?;
        Ok(Self { at, page, bounds, vma: *vma, flags: vma.flags, write: access == Access::Write, cpu })
    }

    pub(super) fn executable(&self) -> bool {
        self.flags.contains(VmFlags::EXEC)
    }
}

/// Whether to look again: another fault on the page was faster, or has come half-way.
fn again(done: Result<(), TableError>) -> Result<bool, Error> {
    match done {
        Ok(()) => Ok(false),
        Err(
            TableError::Occupied | TableError::NotMapped | TableError::NotPermitted | TableError::Changed,
        ) => Ok(true),
        Err(TableError::NoTableFrame | TableError::NoFolioFrames(_)) => Err(Error::NoMemory),
        Err(_) => Err(Error::BadAddress),
    }
}

impl<'m, F: Format, M: Machine, O> Paged<'m, F, M, O> {
    pub(super) fn lookup(&self, at: VirtAddr) -> Mapping {
        self.mm.tables.read().lookup(at)
    }

    /// Resolves a fault in a VMA of anonymous memory that permits the access and stays as it is meanwhile.
    pub(crate) fn resolve(
        &self,
        vma: &VmaInfo,
        address: u64,
        access: Access,
        cpu: usize,
        incoming: &Option<Incoming<'m, M>>,
    ) -> Result<(), Unresolved> {
        let fault = Fault::new(vma, address, access, cpu)?;
        loop {
            let found = self.lookup(fault.at);
            let done = match found {
                Mapping::None if fault.write => self.map_new(&fault),
                Mapping::None => self.map_zero(&fault),
                Mapping::Page { frame, attributes, .. } if fault.write && !attributes.write => {
                    // What was copied is this frame, the zero page or not.
                    self.copy_page(&fault, frame).map(|copied| {
                        if copied && attributes.special {
                            self.mm.add(fault.cpu, None, 1);
                        }
                    })
                }
                Mapping::Page { frame, .. } => self.mm.tables.mark_accessed(fault.at, frame, fault.write),
                Mapping::SwapEntry(swap_entry) => self.swap_in(&fault, swap_entry, incoming)?,
            };
            // What is swapped in may still be shared.
            let copies = matches!(found, Mapping::SwapEntry(_)) && fault.write && done.is_ok();
            if !again(done)? && !copies {
                return Ok(());
            }
        }
    }

    /// A page of zeros of its own, or a larger folio around it.
    fn map_new(&self, fault: &Fault) -> Result<(), TableError> {
        if self.map_large(&fault.vma, fault.at, fault.cpu)? {
            return Ok(());
        }
        let folio = self.new_anon()?;
        // SAFETY: it is ours alone.
        unsafe { self.mm.tables.machine().clear(folio.head()) };
        if let Some(kin) = &self.kin {
            kin.come(&self.mm, &fault.vma).map_err(|_| TableError::NoTableFrame)?;
            kin.owns(folio.head(), &fault.vma, fault.at.0);
        }
        let attributes = Attributes { execute: fault.executable(), ..Attributes::anonymous() };
        self.map(fault, folio.head(), attributes, None)
    }

    pub(super) fn map_zero(&self, fault: &Fault) -> Result<(), TableError> {
        let attributes = Attributes { execute: fault.executable(), special: true, ..Attributes::file() };
        let tables = &self.mm.tables;
        tables.map(fault.page, self.zero, attributes, Level::Pte).map(drop).map_err(|stopped| stopped.why)
    }

    fn map(&self, fault: &Fault, frame: Frame, attributes: Attributes, kind: Kind) -> Result<(), TableError> {
        self.map_range(fault.cpu, fault.page, frame, attributes, kind)
    }

    pub(super) fn map_range(
        &self,
        cpu: usize,
        range: PageRange,
        frame: Frame,
        attributes: Attributes,
        kind: Kind,
    ) -> Result<(), TableError> {
        let mapped = self.mm.tables.map(range, frame, attributes, Level::Pte);
        self.mm.came(cpu, mapped.map_err(|stopped| stopped.why)?, kind);
        Ok(())
    }

    /// A page of a private mapping that may not be written yet: of the parent's too, an object's, or the zero page. Whether
    /// it was copied. `frame` is the one that was seen.
    fn copy_page(&self, fault: &Fault, frame: Frame) -> Result<bool, TableError> {
        if let Some(kin) = &self.kin {
            kin.come(&self.mm, &fault.vma).map_err(|_| TableError::NoTableFrame)?;
        }
        let private = WriteFault { sharing: Sharing::Private, bounds: fault.bounds, whole_folio: false };
        let resolved = self.mm.tables.write_fault(fault.at, frame, private)?;
        let copied = matches!(resolved, Resolved::Copied(_));
        if let Some(kin) = &self.kin
            && copied
            && let Ok(folio) = self.mm.tables.reference(fault.at, None)
            && folio.kind() == FolioKind::Anon
            && folio.maps() == 1
        {
            // Whatever is there by now is of this space alone.
            kin.owns(folio.head(), &fault.vma, fault.at.0);
        }
        Ok(copied)
    }

    /// What was read for a swap entry is put in its place; else it is to be read.
    fn swap_in(
        &self,
        fault: &Fault,
        swap_entry: SwapEntry,
        incoming: &Option<Incoming<'m, M>>,
    ) -> Result<Result<(), TableError>, Unresolved> {
        let incoming = Self::incoming_for(swap_entry, incoming).ok_or(Unresolved::Swapped(swap_entry))?;
        Ok(self.put_incoming(&fault.vma, fault.at, swap_entry, incoming, fault.cpu))
    }

    /// A page of the object, whose lock is held: nobody takes it away meanwhile.
    fn map_object(
        &self,
        fault: &Fault,
        id: ObjectId,
        page: Cached<'_>,
        kind: ObjectKind,
    ) -> Result<(), TableError> {
        if let Some(kin) = &self.kin {
            kin.maps(page.frame, &fault.vma, id, page.index);
        }
        // A page of a file may be written only after it is marked dirty; a private one never.
        let write = fault.flags.contains(VmFlags::SHARED)
            && fault.flags.contains(VmFlags::WRITE)
            && (fault.write || kind == ObjectKind::Shmem);
        if write {
            page.set_dirty();
        }
        let attributes = Attributes {
            execute: fault.executable(),
            write,
            dirty: write && fault.write,
            ..Attributes::file()
        };
        self.map(fault, page.frame, attributes, Some(kind))
    }

    /// The first write to a page of a shared mapping since it was clean.
    fn write_shared(&self, fault: &Fault, page: Cached<'_>) -> Result<(), TableError> {
        page.set_dirty();
        let shared = WriteFault { sharing: Sharing::Shared, bounds: fault.bounds, whole_folio: false };
        // Only the page that was marked becomes writable.
        self.mm.tables.write_fault(fault.at, page.frame, shared).map(drop)
    }

    /// A write to a page of a private mapping of an object.
    fn write_private(&self, fault: &Fault, was: Mapping, kind: ObjectKind) -> Result<(), TableError> {
        let Mapping::Page { frame, .. } = was else { return Err(TableError::NotMapped) };
        // The object's lock keeps its pages what they are; what is copied is this frame.
        let anon =
            FolioView::of(self.mm.tables.machine(), frame).is_ok_and(|folio| folio.kind() == FolioKind::Anon);
        if self.copy_page(fault, frame)? && !anon {
            self.mm.add(fault.cpu, Some(kind), -1);
            self.mm.add(fault.cpu, None, 1);
        }
        Ok(())
    }
}

impl<'m, F: Format + 'm, M: Machine + 'm, O: Objects<'m, F, M>> Paged<'m, F, M, O> {
    /// Resolves a fault in a VMA of an object that permits the access and stays as it is meanwhile. `around`: so many bytes are
    /// mapped by a read.
    pub(crate) fn resolve_object(
        &self,
        vma: &VmaInfo,
        (id, pgoff): (ObjectId, u64),
        address: u64,
        access: Access,
        (cpu, around): (usize, u64),
        incoming: &Option<Incoming<'m, M>>,
    ) -> Result<(), Unresolved> {
        let fault = Fault::new(vma, address, access, cpu)?;
        let index = pgoff + ((fault.at.0 - vma.start) >> PAGE_SHIFT);
        let object = self.objects.get(id).ok_or(Unresolved::Object(PageInError::BeyondEnd))?;
        let kind = object.kind();
        let shared = vma.flags.contains(VmFlags::SHARED);
        let inner = object.read();
        loop {
            let found = self.lookup(fault.at);
            let page = || match inner.page(index) {
                Ok(Some(page)) => Ok(page),
                Ok(None) => Err(Unresolved::NotCached(id, index)),
                Err(why) => Err(Unresolved::Object(why)),
            };
            let done = match found {
                Mapping::None => self.map_object(&fault, id, page()?, kind),
                Mapping::Page { attributes, .. } if fault.write && !attributes.write => {
                    if shared {
                        // What is mapped is in the cache, as the object's lock is held.
                        self.write_shared(&fault, page()?)
                    } else {
                        self.write_private(&fault, found, kind)
                    }
                }
                Mapping::Page { frame, .. } => self.mm.tables.mark_accessed(fault.at, frame, fault.write),
                Mapping::SwapEntry(swap_entry) => self.swap_in(&fault, swap_entry, incoming)?,
            };
            // A private page that is to be written is mapped first, and copied then.
            let copies = matches!(found, Mapping::None | Mapping::SwapEntry(_))
                && fault.write
                && !shared
                && done.is_ok();
            let mapped = matches!(found, Mapping::None) && done.is_ok();
            if !again(done)? && !copies {
                if mapped && !fault.write && around > PAGE_SIZE {
                    self.map_around(&fault, vma, (id, pgoff), (&inner, kind), around >> PAGE_SHIFT);
                }
                return Ok(());
            }
        }
    }

    /// Brings in a page that a fault needs.
    pub(crate) fn page_in(&self, id: ObjectId, index: u64) -> Result<(), PageInError> {
        let left_at = self.objects.get(id).ok_or(PageInError::BeyondEnd)?.bring_in_ahead(index)?;
        if let (Some(kin), Some(left_at)) = (&self.kin, left_at) {
            let file = self.objects.get(id).is_some_and(|object| object.kind() == ObjectKind::File);
            kin.system().inner().refault(file, left_at);
        }
        Ok(())
    }

    /// Frees some frames for a fault that found none; whether there may be any.
    pub(crate) fn make_room(&self) -> bool {
        self.kin.as_ref().is_some_and(|kin| kin.system().make_room(&self.objects, ROOM))
    }
}

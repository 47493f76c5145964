//! Pages that somebody else brings: see `src/userfault.rs`.

use isotherm_page::Frame;
use isotherm_pagetable::{Access, Attributes, Error as TableError, Format, Machine, Mapping, VirtAddr};

use super::Paged;
use super::resolve::Fault;
use crate::error::Error;
use crate::flags::{PAGE_SHIFT, VmFlags};
use crate::object::{ObjectKind, Objects, PageInError};
use crate::vma::{ObjectId, VmaInfo};

/// What a page is filled by.
pub(crate) enum Filled<W: FnOnce(Frame)> {
    /// Whoever writes to the frame.
    With(W),
    Zeros,
    /// What its object has already.
    Cached,
}

fn error(why: TableError) -> Error {
    match why {
        TableError::Occupied => Error::Exists,
        TableError::NoTableFrame | TableError::NoFolioFrames(_) => Error::NoMemory,
        _ => Error::BadAddress,
    }
}

fn no_page(why: PageInError) -> Error {
    match why {
        PageInError::NoMemory => Error::NoMemory,
        _ => Error::BadAddress,
    }
}

impl<'m, F: Format + 'm, M: Machine + 'm, O: Objects<'m, F, M>> Paged<'m, F, M, O> {
    pub(crate) fn is_shmem(&self, id: ObjectId) -> bool {
        self.objects.get(id).is_some_and(|object| object.kind() == ObjectKind::Shmem)
    }

    /// Whether anything is mapped there, swapped pages too.
    pub(crate) fn is_mapped(&self, address: u64) -> bool {
        !matches!(self.lookup(VirtAddr(address & !(crate::flags::PAGE_SIZE - 1))), Mapping::None)
    }

    /// Whether the object of a VMA has the page, in memory or in swap.
    pub(crate) fn is_cached(&self, vma: &VmaInfo, address: u64) -> bool {
        let Some((id, pgoff)) = vma.object else { return false };
        let index = pgoff + ((address - vma.start) >> PAGE_SHIFT);
        self.objects.get(id).is_some_and(|object| {
            let inner = object.read();
            inner.page(index).is_ok_and(|page| page.is_some() || inner.cache.swap_entry(index).is_some())
        })
    }

    /// Maps a page that was missing, writable if the VMA is. What it is is not accessed yet.
    pub(crate) fn fill<W: FnOnce(Frame)>(
        &self,
        vma: &VmaInfo,
        address: u64,
        how: Filled<W>,
        cpu: usize,
    ) -> Result<(), Error> {
        if self.is_mapped(address) {
            return Err(Error::Exists);
        }
        let fault = Fault::new(vma, address, Access::Read, cpu)?;
        let write = vma.flags.contains(VmFlags::WRITE);
        // What is private to the space is none of the object's.
        let shared = vma.object.filter(|_| vma.flags.contains(VmFlags::SHARED));
        let Some((id, pgoff)) = shared else {
            return match how {
                Filled::With(fill) => self.fill_anonymous(&fault, write, fill),
                Filled::Zeros => self.map_zero(&fault).map_err(error),
                Filled::Cached => Err(Error::BadAddress),
            };
        };
        let index = pgoff + ((address - vma.start) >> PAGE_SHIFT);
        let object = self.objects.get(id).ok_or(Error::BadAddress)?;
        match how {
            Filled::With(fill) => object.bring(index, fill)?,
            Filled::Zeros => object.bring(index, |_| {})?,
            Filled::Cached if self.is_cached(vma, address) => drop(object.bring_in(index).map_err(no_page)?),
            Filled::Cached => {}
        }
        let inner = object.read();
        let page = inner.page(index).map_err(no_page)?.ok_or(Error::BadAddress)?;
        if write {
            page.set_dirty();
        }
        if let Some(kin) = &self.kin {
            kin.maps(page.frame, &fault.vma, id, index);
        }
        let attributes =
            Attributes { execute: fault.executable(), write, young: false, ..Attributes::file() };
        self.map_range(cpu, fault.page, page.frame, attributes, Some(object.kind())).map_err(error)
    }

    fn fill_anonymous(&self, fault: &Fault, write: bool, fill: impl FnOnce(Frame)) -> Result<(), Error> {
        let folio = self.new_anon().map_err(error)?;
        // SAFETY: it is ours alone.
        unsafe { self.mm.tables.machine().clear(folio.head()) };
        fill(folio.head());
        // Before anybody can find it.
        if let Some(kin) = &self.kin {
            kin.come(&self.mm, &fault.vma)?;
            kin.owns(folio.head(), &fault.vma, fault.at.0);
        }
        // What another wrote is more than zeros, whether this program writes or not.
        let attributes =
            Attributes { execute: fault.executable(), write, young: false, ..Attributes::anonymous() };
        self.map_range(fault.cpu, fault.page, folio.head(), attributes, None).map_err(error)
    }
}

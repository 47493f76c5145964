//! Faults that somebody else resolves, as userfaultfd does it in Linux: for a VMM's post-copy and snapshots.
//!
//! A range is *registered* for one or several kinds of faults ([`UserFaults`]):
//!
//! | kind | fault | resolved by | for |
//! |---|---|---|---|
//! | missing | on a page that is nowhere | [`fill`](AddressSpace::fill), [`fill_zeros`](AddressSpace::fill_zeros) | post-copy: memory that is still elsewhere |
//! | write-protect | a write to a page that is marked | [`write_protect`](AddressSpace::write_protect) off | snapshots: what is written first is copied first |
//! | minor | on a page that its object has, and the space has not mapped | [`map_cached`](AddressSpace::map_cached) | shared memory that another fills |
//!
//! Such a fault is an error of [`fault`](AddressSpace::fault) that says which ([`FaultError::Missing`], [`FaultError::WriteProtected`],
//! [`FaultError::Minor`]): who runs the program keeps it waiting, hands the fault to whoever resolves it, and faults again then. Nothing
//! waits in here, so there is no queue and no descriptor.
//!
//! Marks are kept by address, in a tree of ranges, also where nothing is mapped yet (as with `UFFD_FEATURE_WP_UNPOPULATED`). They
//! go when the range is unmapped or unregistered. If memory is lacking for that, some may stay: writes there are reported once more
//! than needed. Where somebody moves (`mremap`) or forks a registered range, the copy is not registered, as in Linux without
//! `UFFD_FEATURE_EVENT_REMAP` and `_FORK`.
//!
//! Faults in registered VMAs take `mmap_lock`, as in the seed. Marks are changed with it held for writing, and the VMAs
//! write-locked.

use bitflags::bitflags;
use core::ops::Range;

use isotherm_maple::Value;
use isotherm_page::Frame;
use isotherm_pagetable::{Format, Machine};

use crate::contents::Contents;
use crate::error::Error;
use crate::fault::FaultError;
use crate::flags::{PAGE_SIZE, VmFlags, is_page_aligned, page_align};
use crate::mmap_lock::MmapLock;
use crate::object::Objects;
use crate::paged::{Access, Filled, Paged};
use crate::space::{AddressSpace, Platform};
use crate::vma::{Desc, VmaInfo};
use crate::writing::Writing;

bitflags! {
    /// Kinds of faults that somebody else resolves (`UFFDIO_REGISTER_MODE_*`).
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct UserFaults: u8 {
        /// On pages that are nowhere.
        const MISSING = 1;
        /// Writes to pages that are marked.
        const WRITE_PROTECT = 2;
        /// On pages that an object has, and the space has not mapped.
        const MINOR = 4;
    }
}

impl UserFaults {
    fn flags(self) -> VmFlags {
        let each = [
            (Self::MISSING, VmFlags::USER_MISSING),
            (Self::WRITE_PROTECT, VmFlags::USER_WP),
            (Self::MINOR, VmFlags::USER_MINOR),
        ];
        let set = each.into_iter().filter(|(kind, _)| self.contains(*kind));
        set.fold(VmFlags::empty(), |all, (_, flag)| all | flag)
    }
}

/// That a page is write-protected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mark;

// SAFETY: there is one value.
unsafe impl Value for Mark {
    fn into_raw(self) -> *mut () {
        core::ptr::without_provenance_mut(8)
    }

    unsafe fn from_raw(_: *mut ()) -> Self {
        Self
    }
}

fn pages(address: u64, length: u64) -> Result<Range<u64>, Error> {
    let length = page_align(length).filter(|&length| length > 0).ok_or(Error::Invalid)?;
    let end = address.checked_add(length).filter(|_| is_page_aligned(address)).ok_or(Error::Invalid)?;
    Ok(address..end)
}

impl<'m, P, F, M, O> AddressSpace<P>
where
    P: Platform<Contents = Paged<'m, F, M, O>>,
    F: Format + 'm,
    M: Machine + 'm,
    O: Objects<'m, F, M>,
{
    /// From here on faults of these kinds in the range are somebody else's (`UFFDIO_REGISTER`). Marks of an earlier registration go.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an empty range or no kind, for files, and for [`UserFaults::MINOR`] where no shared memory is mapped as shared;
    /// [`Error::Hole`]; nothing is registered then that was not. [`Error::Limit`], [`Error::NoMemory`]: what lies before is.
    pub fn register(&self, address: u64, length: u64, kinds: UserFaults) -> Result<(), Error> {
        let range = pages(address, length)?;
        if kinds.is_empty() {
            return Err(Error::Invalid);
        }
        let mut writing = self.write();
        writing.each_part(range.start, range.end, |_, vma, _, _| {
            let this = vma.desc();
            let shmem = match this.object {
                None => false,
                Some(id) if self.contents.is_shmem(id) => true,
                Some(_) => return Err(Error::Invalid),
            };
            if kinds.contains(UserFaults::MINOR) && !(shmem && this.flags.contains(VmFlags::SHARED)) {
                return Err(Error::Invalid);
            }
            Ok(())
        })?;
        writing.unmark(&range)?;
        writing.each_part(range.start, range.end, |writing, vma, from, to| {
            let flags = (vma.flags() - VmFlags::USER) | kinds.flags();
            writing.change(vma, from, to, flags)
        })
    }

    /// Faults in the range are the space's again (`UFFDIO_UNREGISTER`).
    ///
    /// # Errors
    /// [`Error::Invalid`], [`Error::Hole`], [`Error::Limit`], [`Error::NoMemory`].
    pub fn unregister(&self, address: u64, length: u64) -> Result<(), Error> {
        let range = pages(address, length)?;
        let mut writing = self.write();
        writing.unmark(&range)?;
        writing.each_part(range.start, range.end, |writing, vma, from, to| {
            let flags = vma.flags() - VmFlags::USER;
            writing.change(vma, from, to, flags)
        })
    }

    /// Marks the pages of a range, or takes the marks away (`UFFDIO_WRITEPROTECT`). When marks are set, nobody writes to the pages
    /// any more who has not had a fault; when they are gone, whoever had one may fault again.
    ///
    /// # Errors
    /// [`Error::Invalid`]; [`Error::BadAddress`] if a part of the range is not registered for it; [`Error::NoMemory`], and nothing
    /// is marked that was not. Huge pages that are marked in part are split.
    pub fn write_protect(&self, address: u64, length: u64, on: bool) -> Result<(), Error> {
        let range = pages(address, length)?;
        let mut writing = self.write();
        writing
            .each_part(range.start, range.end, |writing, vma, from, to| {
                if !vma.flags().contains(VmFlags::USER_WP) {
                    return Err(Error::BadAddress);
                }
                if on { writing.split_contents(vma, from, to) } else { Ok(()) }
            })
            .map_err(|why| if why == Error::Hole { Error::BadAddress } else { why })?;
        if !on {
            return writing.unmark(&range);
        }
        writing.mark(&range)?;
        let mut at = range.start;
        while let Some(vma) = writing.first_in(at, range.end) {
            writing.start_write(vma);
            let this = vma.desc();
            writing.make_read_only(&this.part(at.max(this.start), this.end.min(range.end)));
            at = this.end;
        }
        Ok(())
    }

    /// Resolves a missing fault by a page (`UFFDIO_COPY`): `fill` writes to a frame that nobody else reaches, all of it, and to
    /// another if that could not be mapped before there was room ([`System`](crate::System)). With `protect` the page is marked, in
    /// a range that is registered for it.
    ///
    /// # Errors
    /// [`Error::BadAddress`] if the page is not registered, or its object ends before it; [`Error::Exists`] if there is a page by
    /// now; [`Error::NoMemory`].
    pub fn fill(&self, address: u64, protect: bool, mut fill: impl FnMut(Frame)) -> Result<(), Error> {
        self.with_room(Error::NoMemory, || self.try_fill(address, protect, &mut fill))
    }

    fn try_fill(&self, address: u64, protect: bool, fill: &mut impl FnMut(Frame)) -> Result<(), Error> {
        let page = pages(address, PAGE_SIZE)?;
        if !protect {
            let _lock = self.lock.read();
            let tree = self.tree.read();
            let vma = tree.get(address).ok_or(Error::BadAddress)?;
            if !vma.flags().contains(VmFlags::SHARED) {
                self.prepare(|address| tree.get(address), vma);
            }
            let info = vma.info();
            drop(tree);
            return self.fill_at(&info, address, false, Filled::With(fill));
        }
        // The mark comes before the page can be found.
        let mut writing = self.write();
        let vma = writing.at(address).ok_or(Error::BadAddress)?;
        if !vma.flags().contains(VmFlags::USER_WP) {
            return Err(Error::BadAddress);
        }
        writing.start_write(vma);
        if !vma.flags().contains(VmFlags::SHARED) {
            self.prepare(|address| writing.at(address), vma);
        }
        let marked = writing.is_marked(address);
        writing.mark(&page)?;
        let filled = self.fill_at(&vma.info(), address, true, Filled::With(fill));
        if filled.is_err() && !marked {
            // It was not there before, so no more is needed to take it away than to set it.
            let _ = writing.unmark(&page);
        }
        filled
    }

    /// Resolves a missing fault by zeros (`UFFDIO_ZEROPAGE`).
    ///
    /// # Errors
    /// As [`fill`](Self::fill).
    pub fn fill_zeros(&self, address: u64) -> Result<(), Error> {
        pages(address, PAGE_SIZE)?;
        self.with_room(Error::NoMemory, || {
            let _lock = self.lock.read();
            let info = self.tree.read().get(address).ok_or(Error::BadAddress)?.info();
            self.fill_at::<fn(Frame)>(&info, address, false, Filled::Zeros)
        })
    }

    /// Resolves a minor fault by the page that the object has (`UFFDIO_CONTINUE`).
    ///
    /// # Errors
    /// [`Error::BadAddress`] if the page is not registered for it, or the object does not have the page; [`Error::Exists`],
    /// [`Error::NoMemory`].
    pub fn map_cached(&self, address: u64) -> Result<(), Error> {
        pages(address, PAGE_SIZE)?;
        self.with_room(Error::NoMemory, || {
            let _lock = self.lock.read();
            let info = self.tree.read().get(address).ok_or(Error::BadAddress)?.info();
            if !info.flags.contains(VmFlags::USER_MINOR) {
                return Err(Error::BadAddress);
            }
            self.fill_at::<fn(Frame)>(&info, address, self.is_marked(address), Filled::Cached)
        })
    }

    fn fill_at<W: FnOnce(Frame)>(
        &self,
        info: &VmaInfo,
        address: u64,
        read_only: bool,
        how: Filled<W>,
    ) -> Result<(), Error> {
        if !info.flags.intersects(VmFlags::USER) {
            return Err(Error::BadAddress);
        }
        let flags = if read_only { info.flags - VmFlags::WRITE } else { info.flags };
        self.contents.fill(&VmaInfo { flags, ..*info }, address, how, P::cpu())
    }

    /// What a fault is to do with its VMA, `mmap_lock` held: what is marked is mapped read-only.
    pub(crate) fn intercept(
        &self,
        info: VmaInfo,
        address: u64,
        access: Access,
    ) -> Result<VmaInfo, FaultError> {
        if !info.flags.intersects(VmFlags::USER) {
            return Ok(info);
        }
        let (missing, minor) = (VmFlags::USER_MISSING, VmFlags::USER_MINOR);
        if info.flags.intersects(missing | minor) && !self.contents.is_mapped(address) {
            let cached = self.contents.is_cached(&info, address);
            if !cached && info.flags.contains(missing) {
                return Err(FaultError::Missing);
            }
            if cached && info.flags.contains(minor) {
                return Err(FaultError::Minor);
            }
        }
        if !info.flags.contains(VmFlags::USER_WP) || !self.is_marked(address) {
            return Ok(info);
        }
        if access == Access::Write {
            return Err(FaultError::WriteProtected);
        }
        Ok(VmaInfo { flags: info.flags - VmFlags::WRITE, ..info })
    }
}

impl<P: Platform> AddressSpace<P> {
    /// Whether a page is marked, `mmap_lock` held.
    pub(crate) fn is_marked(&self, address: u64) -> bool {
        self.marks.read().get(address).is_some()
    }
}

impl<P: Platform> Writing<'_, P> {
    fn is_marked(&self, address: u64) -> bool {
        self.space.is_marked(address)
    }

    fn mark(&mut self, range: &Range<u64>) -> Result<(), Error> {
        // SAFETY: `mmap_lock` is held for writing, until after the writer is gone.
        let mut marks = unsafe { self.space.marks.write_locked() };
        Ok(marks.store(range.start..=range.end - 1, Mark)?)
    }

    /// Takes the marks of a range away.
    pub(crate) fn unmark(&mut self, range: &Range<u64>) -> Result<(), Error> {
        let range = range.start..=range.end - 1;
        if self.space.marks.read().range(range.clone()).next().is_none() {
            return Ok(());
        }
        // SAFETY: as above.
        let mut marks = unsafe { self.space.marks.write_locked() };
        Ok(marks.erase_range(range)?)
    }

    /// A part of a VMA that is write-locked: its pages may be written after a fault alone.
    fn make_read_only(&self, part: &Desc) {
        let info = part.info();
        self.space.contents.protect(&self.held, &VmaInfo { flags: info.flags - VmFlags::WRITE, ..info });
    }

    /// The permissions of a part of a VMA were set anew: what is marked stays read-only.
    pub(crate) fn protect_marked(&self, part: &Desc) {
        if !part.flags.contains(VmFlags::USER_WP | VmFlags::WRITE) {
            return;
        }
        for marked in self.space.marks.read().range(part.start..=part.end - 1) {
            let (first, last) = (marked.first, marked.last);
            let (start, end) = (part.start.max(first), part.end.min(last + 1));
            self.make_read_only(&part.part(start, end));
        }
    }
}

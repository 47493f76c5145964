//! `mmap`, `munmap` and `brk`.

use crate::error::Error;
use crate::flags::{MapFlags, PAGE_SHIFT, PAGE_SIZE, Prot, VmFlags, is_page_aligned, page_align};
use crate::place::Place;
use crate::space::{AddressSpace, Platform};
use crate::sync::counter::Ordering;
use crate::vma::{Anon, Desc, ObjectId};
use crate::writing::Writing;

/// What is to be mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// Anonymous memory, private to the space.
    Anonymous,
    /// A file or shared memory.
    Object {
        /// Which.
        id: ObjectId,
        /// From where on, in bytes.
        offset: u64,
        /// What the mapping may ever permit: the rights with which the file was opened. A private mapping may be written
        /// whatever they are.
        rights: Prot,
    },
}

/// A mapping that is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MapRequest {
    /// Where, if it is fixed, else a hint; 0 for none.
    pub address: u64,
    /// How many bytes; counted up to whole pages.
    pub length: u64,
    /// What is permitted.
    pub prot: Prot,
    /// How.
    pub flags: MapFlags,
    /// What.
    pub source: Source,
}

impl MapRequest {
    /// Private anonymous memory anywhere.
    #[must_use]
    pub const fn anonymous(length: u64, prot: Prot) -> Self {
        Self { address: 0, length, prot, flags: MapFlags::empty(), source: Source::Anonymous }
    }

    /// The same at this address, in the place of what is there (`MAP_FIXED`).
    #[must_use]
    pub const fn at(mut self, address: u64) -> Self {
        self.address = address;
        self.flags = self.flags.union(MapFlags::FIXED);
        self
    }

    fn vm_flags(&self) -> Result<VmFlags, Error> {
        let mut flags = VmFlags::of_prot(self.prot) | VmFlags::MAY;
        let both = [
            (MapFlags::GROWSDOWN, VmFlags::GROWSDOWN),
            (MapFlags::LOCKED, VmFlags::LOCKED),
            (MapFlags::NORESERVE, VmFlags::NORESERVE),
            (MapFlags::STACK, VmFlags::NOHUGEPAGE),
            (MapFlags::SHARED, VmFlags::SHARED | VmFlags::MAY_SHARE),
        ];
        for (_, flag) in both.iter().filter(|(asked, _)| self.flags.contains(*asked)) {
            flags |= *flag;
        }
        let shared = flags.contains(VmFlags::SHARED);
        match self.source {
            // Shared memory has an identity, by which those who share it know each other.
            Source::Anonymous if shared => return Err(Error::Invalid),
            Source::Anonymous => {}
            Source::Object { rights, .. } => {
                if flags.contains(VmFlags::GROWSDOWN) {
                    return Err(Error::Invalid);
                }
                if !rights.contains(Prot::READ)
                    || shared && self.prot.contains(Prot::WRITE) && !rights.contains(Prot::WRITE)
                {
                    return Err(Error::Access);
                }
                if shared && !rights.contains(Prot::WRITE) {
                    // As Linux: what can never be written shared is mapped as if it were private.
                    flags -= VmFlags::MAY_WRITE | VmFlags::SHARED;
                }
                if !rights.contains(Prot::EXEC) {
                    if self.prot.contains(Prot::EXEC) {
                        return Err(Error::Access);
                    }
                    flags -= VmFlags::MAY_EXEC;
                }
            }
        }
        Ok(flags)
    }
}

/// Private memory that may be written is counted as committed, unless it was mapped as not to be.
pub(crate) fn is_accountable(flags: VmFlags) -> bool {
    flags & (VmFlags::NORESERVE | VmFlags::SHARED | VmFlags::WRITE) == VmFlags::WRITE
}

impl<P: Platform> AddressSpace<P> {
    /// Maps memory, and returns where.
    ///
    /// Neighbours that are alike become one VMA with it. Where [`Source`] is an object, [`MapFlags::SHARED`] says whether
    /// writes are; anonymous memory is private, and shared memory an object of the caller's.
    ///
    /// # Errors
    /// [`Error::Invalid`], [`Error::NoSpace`], [`Error::Limit`], [`Error::LockedLimit`], [`Error::Exists`],
    /// [`Error::Access`], [`Error::TooLow`], [`Error::NoMemory`]. Nothing has changed then.
    pub fn mmap(&self, request: &MapRequest) -> Result<u64, Error> {
        self.write().mmap(request)
    }

    /// Takes out what is mapped in the range; that nothing is, is no error.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an empty range or one that is not in the space or not aligned; [`Error::Limit`] if a VMA more
    /// is needed than may be; [`Error::NoMemory`]. Nothing has changed then.
    pub fn munmap(&self, address: u64, length: u64) -> Result<(), Error> {
        self.write().munmap(address, length)
    }

    /// Sets the end of the heap, and returns it as it is then: unchanged if it could not be set.
    pub fn brk(&self, end: u64) -> u64 {
        let mut writing = self.write();
        if writing.brk(end).is_ok() {
            self.brk.store(end, Ordering::Relaxed);
        }
        self.brk.load(Ordering::Relaxed)
    }
}

impl<P: Platform> Writing<'_, P> {
    fn mmap(&mut self, request: &MapRequest) -> Result<u64, Error> {
        let config = &self.space.config;
        let aligned = match request.source {
            Source::Anonymous => true,
            Source::Object { offset, .. } => is_page_aligned(offset),
        };
        if request.length == 0 || !aligned {
            return Err(Error::Invalid);
        }
        let fixed = request.flags.intersects(MapFlags::FIXED | MapFlags::FIXED_NOREPLACE);
        let mut address = request.address;
        if !fixed {
            address &= !(PAGE_SIZE - 1);
            if address != 0 {
                address = address.max(config.lowest);
            }
        }
        let length = page_align(request.length).ok_or(Error::NoSpace)?;
        if self.space.usage().maps > config.limits.maps {
            return Err(Error::Limit);
        }
        let anonymous = request.source == Source::Anonymous && !request.flags.contains(MapFlags::SHARED);
        let start = self.place(Place { address, length, fixed, anonymous })?;
        let end = start + length;
        if request.flags.contains(MapFlags::FIXED_NOREPLACE) && self.first_in(start, end).is_some() {
            return Err(Error::Exists);
        }
        let mut flags = request.vm_flags()?;
        if !self.may_lock(flags, length >> PAGE_SHIFT) {
            return Err(Error::LockedLimit);
        }
        let pages = (length >> PAGE_SHIFT) as i64;
        if !self.may_expand(flags, pages - self.pages_in(start, end) as i64) {
            return Err(Error::Limit);
        }
        let (object, pgoff) = match request.source {
            Source::Anonymous => (None, start >> PAGE_SHIFT),
            Source::Object { id, offset, .. } => (Some(id), offset >> PAGE_SHIFT),
        };
        if is_accountable(flags) {
            flags |= VmFlags::ACCOUNT;
        }
        let new = Desc { start, end, flags, pgoff, object, anon: Anon::NONE };
        self.reserve(object, 1)?;
        let done = self.map_at(&new);
        self.unreserve(object, 1);
        done?;
        self.space.usage.pages(flags, pages);
        Ok(start)
    }

    /// Maps it in the place of what is there.
    fn map_at(&mut self, new: &Desc) -> Result<(), Error> {
        let (start, end) = (new.start, new.end);
        // What is in the way is taken out only when nothing can fail any more.
        let mut spare = None;
        if self.first_in(start, end).is_some() {
            spare = Some(self.spare(new, 1)?);
            if let Err(error) = self.unmap(start, end) {
                self.give_back(spare);
                return Err(error);
            }
        }
        self.insert(new, spare)?;
        self.attach(new);
        Ok(())
    }

    pub(crate) fn munmap(&mut self, address: u64, length: u64) -> Result<(), Error> {
        let top = self.space.config.end;
        if !is_page_aligned(address) || address > top || length > top - address {
            return Err(Error::Invalid);
        }
        let length = page_align(length).filter(|&length| length > 0).ok_or(Error::Invalid)?;
        self.unmap(address, address.checked_add(length).ok_or(Error::Invalid)?)
    }

    fn brk(&mut self, end: u64) -> Result<(), Error> {
        let config = &self.space.config;
        let old = self.space.brk.load(Ordering::Relaxed);
        if end < config.heap {
            return Err(Error::Invalid);
        }
        let old_end = page_align(old).ok_or(Error::Invalid)?;
        let new_end = page_align(end).ok_or(Error::NoSpace)?;
        if old_end == new_end {
            return Ok(());
        }
        if new_end < old_end {
            // What is unmapped must begin within the heap, or just what is left of it.
            return match self.first_in(new_end, old_end) {
                Some(_) => self.unmap(new_end, old_end),
                None => Err(Error::Invalid),
            };
        }
        let length = new_end - old_end;
        if new_end > config.end {
            return Err(Error::NoSpace);
        }
        let reach = new_end.saturating_add(PAGE_SIZE).saturating_add(config.stack_guard);
        if let Some(next) = self.first_in(old_end, reach)
            && new_end + PAGE_SIZE > self.start_gap(&next)
        {
            return Err(Error::NoSpace);
        }
        let flags = VmFlags::READ | VmFlags::WRITE | VmFlags::MAY | VmFlags::ACCOUNT;
        let pages = (length >> PAGE_SHIFT) as i64;
        if !self.may_expand(flags, pages) || self.space.usage().maps > config.limits.maps {
            return Err(Error::Limit);
        }
        let pgoff = old_end >> PAGE_SHIFT;
        let new = Desc { start: old_end, end: new_end, flags, pgoff, object: None, anon: Anon::NONE };
        self.insert_heap(&new)?;
        self.space.usage.pages(flags, pages);
        Ok(())
    }
}

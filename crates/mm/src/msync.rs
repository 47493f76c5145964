//! `msync`.

use crate::contents::Contents;
use crate::error::Error;
use crate::flags::{MsyncFlags, PAGE_SHIFT, VmFlags, is_page_aligned, page_align};
use crate::mmap_lock::MmapLock;
use crate::space::{AddressSpace, Platform};

impl<P: Platform> AddressSpace<P> {
    /// With [`MsyncFlags::SYNC`] writes what was written through shared mappings of a range to the storage of their objects.
    /// What was written before is there when this returns. `mmap_lock` is not held meanwhile.
    ///
    /// # Errors
    /// [`Error::Invalid`]; [`Error::Hole`] if a part of the range is not mapped: the rest is written then;
    /// [`Error::Busy`] for locked memory with [`MsyncFlags::INVALIDATE`]; [`Error::Io`].
    pub fn msync(&self, address: u64, length: u64, flags: MsyncFlags) -> Result<(), Error> {
        if !is_page_aligned(address) || flags.contains(MsyncFlags::ASYNC | MsyncFlags::SYNC) {
            return Err(Error::Invalid);
        }
        // A length beyond the end of addresses is 0, as in Linux.
        let length = page_align(length).unwrap_or(0);
        let end = address.checked_add(length).ok_or(Error::Hole)?;
        let (mut at, mut done) = (address, Ok(()));
        while at < end {
            let found = {
                let _lock = self.lock.read();
                self.tree.read().find(at..=u64::MAX).map(|found| found.value.info())
            };
            let Some(vma) = found else { return Err(Error::Hole) };
            if at < vma.start {
                if flags == MsyncFlags::ASYNC || vma.start >= end {
                    return Err(Error::Hole);
                }
                at = vma.start;
                done = Err(Error::Hole);
            }
            if flags.contains(MsyncFlags::INVALIDATE) && vma.flags.contains(VmFlags::LOCKED) {
                return Err(Error::Busy);
            }
            let until = vma.end.min(end);
            if let Some((object, pgoff)) = vma.object
                && flags.contains(MsyncFlags::SYNC)
                && vma.flags.contains(VmFlags::SHARED)
            {
                let page = |address: u64| pgoff + ((address - vma.start) >> PAGE_SHIFT);
                self.contents.write_back(object, page(at)..page(until))?;
            }
            at = until;
        }
        done
    }
}

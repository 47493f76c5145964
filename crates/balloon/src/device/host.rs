//! What the host does with the memory that a guest gives up.

use std::io;
use std::os::fd::AsFd;

use rustix::fs::FallocateFlags;
use rustix::mm::Advice;
use vm_memory::{GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion};

use crate::config::PAGE_SIZE;

/// A range of guest memory, not empty, within the guest's regions, and aligned to the host's page size there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GuestRange {
    /// Guest physical address of the first byte.
    pub start: u64,
    /// Number of bytes.
    pub bytes: u64,
}

/// The host's side of a balloon: takes memory from the guest and gives it back.
pub trait Host {
    /// Page size of the memory at a guest physical address, in bytes: a power of two. Memory is taken in whole pages.
    fn page_size(&self, address: u64) -> u64;

    /// The guest needs the content of this range no more. Afterwards it may read as zeros, or as before, but as nothing
    /// else, and must be there again as soon as the guest touches it.
    ///
    /// # Errors
    /// The memory could not be taken. The device counts that; for the guest it makes no difference.
    fn discard(&mut self, range: GuestRange) -> io::Result<()>;

    /// The guest takes this range out of the balloon. Its memory comes back by itself when it is touched, so there is
    /// nothing to do but bookkeeping. Aligned to 4 KiB only.
    fn restore(&mut self, _range: GuestRange) {}

    /// While a migration is under way, the guest says that this range is free: it need not be sent unless it is written
    /// from now on. Aligned to 4 KiB only.
    fn hint(&mut self, _range: GuestRange) {}
}

/// How private anonymous memory is given up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Discard {
    /// At once: `MADV_DONTNEED`. The guest finds zeros.
    #[default]
    Now,
    /// When the host needs memory: `MADV_FREE`. Costs less where the guest soon uses the memory again, but until then the
    /// memory counts as the process's, so the effect cannot be seen.
    UnderPressure,
}

/// Guest memory mapped into this process by `vm-memory`.
///
/// | memory | given up by |
/// |---|---|
/// | private, anonymous | `madvise`, see [`Discard`] |
/// | shared, of a file (memfd, tmpfs, hugetlbfs) | a hole in the file: `MADV_DONTNEED` gives back nothing of shared memory |
/// | private, of a file (a snapshot) | anonymous memory in its place: `MADV_DONTNEED` would bring the file's old content back |
///
/// Errors are those of the system calls.
#[derive(Clone, Debug)]
pub struct GuestRam {
    memory: GuestMemoryMmap,
    how: Discard,
    /// The page size of each region, by the region's first address.
    page_sizes: Vec<(u64, u64)>,
}

impl GuestRam {
    /// The memory of a guest. No other user of the process may rely on its content, as device assignment does: see
    /// [`Device::set_inhibited`](super::Device::set_inhibited).
    pub fn new(memory: GuestMemoryMmap, how: Discard) -> Self {
        let page_sizes =
            memory.iter().map(|region| (region.start_addr().0, region_page_size(region))).collect();
        Self { memory, how, page_sizes }
    }

    /// Says that all memory has this page size, in bytes, a power of two; needed for anonymous memory of `MAP_HUGETLB`,
    /// whose page size cannot be found out.
    #[must_use]
    pub fn with_page_size(mut self, bytes: u64) -> Self {
        self.page_sizes.iter_mut().for_each(|(_, size)| *size = bytes);
        self
    }

    fn discard_in(&self, region: &impl MappedRegion, offset: u64, bytes: u64) -> io::Result<()> {
        let address = region.address(offset, bytes).ok_or(io::ErrorKind::InvalidInput)?;
        let length = usize::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
        match (region.file(), region.is_shared()) {
            (Some((file, start)), true) => {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(file, flags, start + offset, bytes)?;
            }
            (Some(_), false) => {
                use rustix::mm::{MapFlags, ProtFlags};
                let protection = ProtFlags::from_bits_retain(region.protection());
                // SAFETY: the range is within the region's mapping, which it replaces by memory of the same kind of use;
                // all access to it is by the guest or volatile.
                unsafe {
                    rustix::mm::mmap_anonymous(
                        address,
                        length,
                        protection,
                        MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE,
                    )
                }?;
            }
            (None, shared) => {
                let advice = match self.how {
                    // There is no file to punch, but this frees the pages of an anonymous shared mapping.
                    _ if shared => Advice::LinuxRemove,
                    Discard::Now => Advice::LinuxDontNeed,
                    Discard::UnderPressure => Advice::LinuxFree,
                };
                // SAFETY: the range is within the region's mapping, whose content nobody in this process relies on; all
                // access to it is by the guest or volatile.
                unsafe { rustix::mm::madvise(address, length, advice) }?;
            }
        }
        Ok(())
    }
}

/// The part of a region that [`GuestRam`] works on.
trait MappedRegion {
    fn address(&self, offset: u64, bytes: u64) -> Option<*mut core::ffi::c_void>;
    fn file(&self) -> Option<(&std::fs::File, u64)>;
    fn is_shared(&self) -> bool;
    fn protection(&self) -> u32;
}

impl MappedRegion for vm_memory::GuestRegionMmap {
    fn address(&self, offset: u64, bytes: u64) -> Option<*mut core::ffi::c_void> {
        let size = self.size() as u64;
        let fits = offset.checked_add(bytes).is_some_and(|end| end <= size);
        fits.then(|| self.as_ptr().wrapping_add(offset as usize).cast())
    }

    fn file(&self) -> Option<(&std::fs::File, u64)> {
        self.file_offset().map(|file| (file.file(), file.start()))
    }

    fn is_shared(&self) -> bool {
        self.flags() as u32 & rustix::mm::MapFlags::SHARED.bits() != 0
    }

    fn protection(&self) -> u32 {
        self.prot() as u32
    }
}

/// Regions on hugetlbfs have its pages, all others those of the system.
fn region_page_size(region: &impl MappedRegion) -> u64 {
    const HUGETLBFS: u64 = 0x9584_58f6;
    let huge = region.file().and_then(|(file, _)| {
        let status = rustix::fs::fstatfs(file.as_fd()).ok()?;
        (status.f_type as u64 & 0xffff_ffff == HUGETLBFS).then_some(status.f_bsize as u64)
    });
    huge.unwrap_or(rustix::param::page_size() as u64)
}

impl Host for GuestRam {
    fn page_size(&self, address: u64) -> u64 {
        let after = self.page_sizes.partition_point(|&(start, _)| start <= address);
        after.checked_sub(1).map_or(PAGE_SIZE, |region| self.page_sizes[region].1)
    }

    fn discard(&mut self, range: GuestRange) -> io::Result<()> {
        let (mut start, mut left) = (range.start, range.bytes);
        while left > 0 {
            let (region, offset) =
                self.memory.to_region_addr(GuestAddress(start)).ok_or(io::ErrorKind::InvalidInput)?;
            let bytes = left.min(region.len() - offset.0);
            self.discard_in(region, offset.0, bytes)?;
            start += bytes;
            left -= bytes;
        }
        Ok(())
    }
}

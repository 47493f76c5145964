//! The memory itself, and the three ways to give it back.

use std::os::fd::OwnedFd;
use std::ptr::NonNull;

use isotherm_frames::{Block, Order, ReportSink};
use rustix::fs::{FallocateFlags, MemfdFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// How free memory goes back to the system.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum GiveBack {
    /// Anonymous memory and `MADV_DONTNEED`: it goes at once.
    DontNeed,
    /// Anonymous memory and `MADV_FREE`: it goes when the system is short of memory, and stays resident until then. Memory
    /// allocated again before that is there without a page fault; in return each page of an allocated block is written
    /// to once, as it could vanish until then.
    Free,
    /// A memfd and holes punched into it: it goes at once, as `MADV_DONTNEED` would not from shared memory.
    PunchHole,
}

/// A mapping aligned to the largest block. Its frames are counted from 0.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
    file: Option<OwnedFd>,
    give_back: GiveBack,
}

// SAFETY: the mapping is plain memory of the process, and this only its address; who may access what of it is the arena's
// affair.
unsafe impl Send for Mapping {}
// SAFETY: as above; every method takes `&self` and makes system calls only.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `bytes`, a multiple of 4 MiB and not 0.
    pub fn new(bytes: usize, give_back: GiveBack) -> Result<Self, Errno> {
        let align = Order::MAX.bytes() as usize;
        let room = bytes.checked_add(align).ok_or(Errno::NOMEM)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // Room for an aligned mapping is reserved first; what lies beside it is given up again.
        // SAFETY: the kernel chooses the place, so nothing of ours lies there.
        let start = unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), room, ProtFlags::empty(), MapFlags::PRIVATE)?
        };
        let skip = start.cast::<u8>().align_offset(align);
        let base = start.wrapping_byte_add(skip);
        let behind = align - skip;
        // SAFETY: both pieces are parts of the mapping just made, before and behind what is kept.
        unsafe {
            if skip > 0 {
                rustix::mm::munmap(start, skip)?;
            }
            if behind > 0 {
                rustix::mm::munmap(base.wrapping_byte_add(bytes), behind)?;
            }
        }
        let base = NonNull::new(base.cast::<u8>()).ok_or(Errno::NOMEM)?;
        // From here on dropping unmaps.
        let mut mapping = Self { base, bytes, file: None, give_back };
        let at = base.as_ptr().cast();
        if give_back == GiveBack::PunchHole {
            let file = rustix::fs::memfd_create("isotherm-arena", MemfdFlags::CLOEXEC)?;
            rustix::fs::ftruncate(&file, bytes as u64)?;
            // SAFETY: FIXED replaces the reservation, which is ours and of exactly this place and size.
            unsafe { rustix::mm::mmap(at, bytes, access, MapFlags::SHARED | MapFlags::FIXED, &file, 0)? };
            mapping.file = Some(file);
        } else {
            // SAFETY: as above. NORESERVE: memory that is free must not count as used where overcommit is accounted for.
            unsafe {
                let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
                rustix::mm::mmap_anonymous(at, bytes, access, flags)?;
            }
        }
        Ok(mapping)
    }

    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    pub const fn give_back(&self) -> GiveBack {
        self.give_back
    }

    /// The first byte of a block of this mapping's frames.
    pub fn at(&self, block: Block) -> NonNull<u8> {
        debug_assert!(block.address() + block.bytes() <= self.bytes as u64);
        // SAFETY: the zone's frames are those of the mapping, so the block lies in it.
        unsafe { self.base.add(block.address() as usize) }
    }

    /// Bytes of the mapping that take up memory.
    pub fn resident(&self) -> Result<u64, Errno> {
        if let Some(file) = &self.file {
            // In units of 512 bytes, whatever the file system's block size.
            return Ok(u64::try_from(rustix::fs::fstat(file)?.st_blocks).unwrap_or(0) * 512);
        }
        let page = rustix::param::page_size();
        // In pieces, so that the table stays small.
        let piece = page * 4096;
        let mut table = vec![0u8; 4096];
        let mut pages = 0;
        for start in (0..self.bytes).step_by(piece) {
            let length = piece.min(self.bytes - start);
            let used = length.div_ceil(page);
            let at = self.base.as_ptr().wrapping_add(start).cast();
            // SAFETY: the piece lies in the mapping, and the table has a byte for each of its pages.
            if unsafe { libc::mincore(at, length, table.as_mut_ptr()) } != 0 {
                return Err(std::io::Error::last_os_error()
                    .raw_os_error()
                    .map_or(Errno::INVAL, Errno::from_raw_os_error));
            }
            pages += table[..used].iter().filter(|&&state| state & 1 != 0).count() as u64;
        }
        Ok(pages * page as u64)
    }

    fn release(&self, start: u64, bytes: u64) -> Result<(), Errno> {
        let at = self.base.as_ptr().wrapping_add(start as usize).cast();
        let advice = match (self.give_back, &self.file) {
            (GiveBack::PunchHole, Some(file)) => {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                return rustix::fs::fallocate(file, flags, start, bytes);
            }
            (GiveBack::Free, _) => Advice::LinuxFree,
            _ => Advice::LinuxDontNeed,
        };
        // SAFETY: only blocks that the zone has isolated are released: nobody has a reference into them.
        unsafe { rustix::mm::madvise(at, bytes as usize, advice) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and whoever borrowed from it borrowed from this.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

/// The system as the zone's host.
pub struct System<'a>(pub &'a Mapping);

impl ReportSink for System<'_> {
    type Error = Errno;

    fn report(&mut self, blocks: &[Block]) -> Result<(), Errno> {
        let mut blocks = blocks.iter().peekable();
        while let Some(first) = blocks.next() {
            let (start, mut end) = (first.address(), first.address() + first.bytes());
            // Neighbours go in one call.
            while let Some(next) = blocks.next_if(|next| next.address() == end) {
                end += next.bytes();
            }
            self.0.release(start, end - start)?;
        }
        Ok(())
    }
}

//! The guest's memory as the driver sees it: where frames are mapped, where they come from, and a page of its own.

use core::marker::PhantomData;
use core::ptr::NonNull;

use isotherm_frames::{Block, Frame, Order, OwnedBlock};
use virtio_drivers::{BufferDirection, Hal, PAGE_SIZE, PhysAddr};

use super::Error;

/// Where a frame is mapped.
///
/// The driver needs it to describe free blocks to the queue (whose buffers are given by virtual address and turned into
/// addresses of the device by [`Hal::share`]), to keep its record of ballooned blocks, and to poison frames.
///
/// # Safety
/// For a block that the driver was given (see [`Balloon::new`](super::Balloon::new)), the pointer must be valid for reads
/// and writes of the whole block, and [`Hal::share`] must turn it into the address of these very frames: a bounce buffer
/// would report memory that is not the block's.
pub unsafe trait FrameMemory {
    /// Address of the first byte of the block, `None` if it is not mapped.
    fn block_ptr(&self, block: Block) -> Option<NonNull<u8>>;
}

/// All memory mapped at one distance from its physical address, as kernels have it.
#[derive(Clone, Copy, Debug)]
pub struct DirectMap {
    offset: usize,
    frames: u64,
}

impl DirectMap {
    /// Frames `0..frames`, each at its physical address plus `offset` (0: mapped one to one).
    ///
    /// # Safety
    /// The frames that the driver is given must be mapped there, readable and writable, for as long as the driver lives,
    /// and [`Hal::share`] must subtract the same offset.
    pub const unsafe fn new(offset: usize, frames: u64) -> Self {
        Self { offset, frames }
    }
}

// SAFETY: whoever made the map vouched for it.
unsafe impl FrameMemory for DirectMap {
    fn block_ptr(&self, block: Block) -> Option<NonNull<u8>> {
        if block.frame.0.checked_add(block.order.frames())? > self.frames {
            return None;
        }
        let address = usize::try_from(block.address()).ok()?.checked_add(self.offset)?;
        NonNull::new(core::ptr::with_exposed_provenance_mut(address))
    }
}

/// Where the frames for the balloon come from and go back to: the guest's allocator.
pub trait FrameSource {
    /// Takes a free block of an order of at most `max`, or says that there is none to spare.
    ///
    /// Only frames below 2^32 (16 TiB) can go into a balloon, for its page numbers have 32 bits: others are given back
    /// at once, and the balloon stays as it is.
    fn take(&mut self, max: Order) -> Option<OwnedBlock>;

    /// Takes a block back that [`take`](Self::take) handed out, of the same order. What it held is lost, unless the
    /// balloon was set up with a poison value: then it is filled with that.
    fn give(&mut self, block: OwnedBlock);
}

impl<S: FrameSource + ?Sized> FrameSource for &mut S {
    fn take(&mut self, max: Order) -> Option<OwnedBlock> {
        (**self).take(max)
    }

    fn give(&mut self, block: OwnedBlock) {
        (**self).give(block);
    }
}

/// Fills a block with a value, 32 bits at a time.
pub(super) fn poison<M: FrameMemory>(memory: &M, block: Block, value: u32) {
    let Some(start) = memory.block_ptr(block) else { return };
    let words = NonNull::slice_from_raw_parts(start.cast::<u32>(), (block.bytes() / 4) as usize);
    // SAFETY: the block is the driver's alone, mapped whole (`FrameMemory`), and aligned to its size.
    unsafe { &mut *words.as_ptr() }.fill(value);
}

/// The block of a single frame.
pub(super) const fn single(frame: Frame) -> Block {
    Block::new(frame, Order::BASE)
}

/// A page that device and driver share, for what the driver sends: page numbers, statistics, command ids.
///
/// It is not part of the driver's own structure, because that may be moved while the device reads.
#[derive(Debug)]
pub(super) struct RequestPage<H: Hal> {
    address: PhysAddr,
    start: NonNull<u8>,
    hal: PhantomData<H>,
}

// SAFETY: the page is memory like any other and belongs to its owner alone.
unsafe impl<H: Hal> Send for RequestPage<H> {}
// SAFETY: as above; a shared reference gives read access only.
unsafe impl<H: Hal> Sync for RequestPage<H> {}

impl<H: Hal> RequestPage<H> {
    pub fn new() -> Result<Self, Error> {
        let (address, start) = H::dma_alloc(1, BufferDirection::Both);
        // By the convention of `Hal`, 0 means that there was no memory.
        if address == 0 {
            return Err(Error::NoDmaMemory("requests"));
        }
        Ok(Self { address, start, hal: PhantomData })
    }

    pub fn bytes(&self) -> &[u8; PAGE_SIZE] {
        // SAFETY: `dma_alloc` gave a zeroed page, which is ours until `Drop`; the device only ever reads it.
        unsafe { self.start.cast().as_ref() }
    }

    pub fn bytes_mut(&mut self) -> &mut [u8; PAGE_SIZE] {
        // SAFETY: as above, and `&mut self` excludes other references.
        unsafe { self.start.cast().as_mut() }
    }
}

impl<H: Hal> Drop for RequestPage<H> {
    fn drop(&mut self) {
        // SAFETY: these are the values that `dma_alloc` gave, and the owner has reset the device before.
        unsafe { H::dma_dealloc(self.address, self.start, 1) };
    }
}

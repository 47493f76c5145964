//! Where anonymous pages go when their frames are needed: storage by slots, and who counts them.

mod area;
#[cfg(feature = "lz4")]
mod compressed;

use alloc::sync::Arc;
use core::fmt;

use isotherm_page::Frame;

pub use area::SwapArea;
#[cfg(feature = "lz4")]
pub use compressed::{Compressed, CompressedStats};

/// The bytes of a page.
pub type PageBytes = [u8; crate::PAGE_SIZE as usize];

/// A page could not be written to swap, or read from it. One that was to be written stays where it is; a fault on one that cannot
/// be read is [`FaultError::Bus`](crate::FaultError::Bus), and may be repeated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SwapError {
    /// No room for the page.
    #[error("no room in swap")]
    Full,
    /// The storage failed.
    #[error("the storage of swap failed")]
    Failed,
}

/// How software reaches the contents of a frame: for storage that has no means of its own.
pub trait FrameBytes {
    /// Reads a page to which the caller holds a reference. Nobody writes to it meanwhile.
    fn read_page(&self, frame: Frame, into: &mut PageBytes);

    /// Writes a page that is the caller's alone.
    fn write_page(&self, frame: Frame, from: &PageBytes);
}

#[cfg(feature = "host")]
impl FrameBytes for isotherm_pagetable::host::HostMachine {
    fn read_page(&self, frame: Frame, into: &mut PageBytes) {
        let done = Self::read_page(self, frame, into);
        debug_assert!(done.is_some(), "{frame:?} is no page");
    }

    fn write_page(&self, frame: Frame, from: &PageBytes) {
        let done = Self::write_page(self, frame, from);
        debug_assert!(done.is_some(), "{frame:?} is no page");
    }
}

/// A page on its way to storage or from it.
#[derive(Clone, Copy)]
pub struct SwapPage<'a> {
    pub(crate) frame: Frame,
    pub(crate) bytes: &'a dyn FrameBytes,
}

impl SwapPage<'_> {
    /// Its frame: what a device is given.
    #[must_use]
    pub const fn frame(&self) -> Frame {
        self.frame
    }

    /// Its bytes, of a page that is written to storage.
    pub fn read(&self, into: &mut PageBytes) {
        self.bytes.read_page(self.frame, into);
    }

    /// Fills a page that is read from storage.
    pub fn fill(&self, from: &PageBytes) {
        self.bytes.write_page(self.frame, from);
    }
}

impl fmt::Debug for SwapPage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SwapPage").field(&self.frame).finish()
    }
}

/// Storage for pages by the numbers of slots, from 0 on. Which slots are in use is counted by a [`SwapArea`]. Called by several
/// threads at once, for different slots, but that one may be read by several.
pub trait Swap: Send + Sync {
    /// How many slots there are.
    fn slots(&self) -> u32;

    /// Writes a page to a slot that is free. May sleep; no lock of this crate is held.
    ///
    /// # Errors
    /// [`SwapError`]; the slot is free then.
    fn write(&self, slot: u32, page: SwapPage<'_>) -> Result<(), SwapError>;

    /// Fills a page with what was written to a slot. May sleep; no lock of this crate is held.
    ///
    /// # Errors
    /// [`SwapError::Failed`]; the slot stays what it is.
    fn read(&self, slot: u32, page: SwapPage<'_>) -> Result<(), SwapError>;

    /// What was written to a slot is needed no more. Perhaps under the lock of a table: it must neither sleep nor call operations
    /// on spaces.
    fn free(&self, slot: u32);
}

impl<S: Swap + ?Sized> Swap for Arc<S> {
    fn slots(&self) -> u32 {
        (**self).slots()
    }

    fn write(&self, slot: u32, page: SwapPage<'_>) -> Result<(), SwapError> {
        (**self).write(slot, page)
    }

    fn read(&self, slot: u32, page: SwapPage<'_>) -> Result<(), SwapError> {
        (**self).read(slot, page)
    }

    fn free(&self, slot: u32) {
        (**self).free(slot);
    }
}

//! What lies behind the VMAs.

use core::ops::Range;

use crate::error::Error;
use crate::flags::VmFlags;

/// The contents of an address space: page tables and pages. `()` has none, for layouts alone.
///
/// All methods are called with `mmap_lock` held for writing and the VMAs of the range write-locked: no fault is under way in
/// it, and none begins.
pub trait Contents {
    /// The range is not mapped any more: its pages go, and tables that are empty.
    fn unmap(&self, range: Range<u64>);

    /// The pages of the range go, and are found empty again (`MADV_DONTNEED`).
    fn zap(&self, range: Range<u64>);

    /// The flags of the range are these now; permissions may have changed.
    fn protect(&self, range: Range<u64>, flags: VmFlags);

    /// Moves the pages of the range to `to`, where nothing is. Ranges do not overlap.
    ///
    /// # Errors
    /// [`Error::NoMemory`], and all is where it was.
    fn relocate(&self, range: Range<u64>, to: u64) -> Result<(), Error>;

    /// Copies the pages of the range, which permits what `flags` says, to a fork's child that has none there. When it
    /// returns, nobody writes to a page that both have.
    ///
    /// # Errors
    /// [`Error::NoMemory`]; the child has some of the pages then.
    fn copy(&self, range: Range<u64>, flags: VmFlags, child: &mut Self) -> Result<(), Error>;
}

impl Contents for () {
    fn unmap(&self, _: Range<u64>) {}

    fn zap(&self, _: Range<u64>) {}

    fn protect(&self, _: Range<u64>, _: VmFlags) {}

    fn relocate(&self, _: Range<u64>, _: u64) -> Result<(), Error> {
        Ok(())
    }

    fn copy(&self, _: Range<u64>, _: VmFlags, (): &mut Self) -> Result<(), Error> {
        Ok(())
    }
}

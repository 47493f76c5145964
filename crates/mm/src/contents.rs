//! What lies behind the VMAs.

use core::ops::Range;

use crate::error::Error;
use crate::mmap_lock::MmapLock;
use crate::object::BackingError;
use crate::vma::{ObjectId, VmaInfo};

/// Says that `mmap_lock` of the space is held for writing, and that the VMAs of the range are write-locked: no fault is under way
/// in it, and none begins. Operations of [`AddressSpace`](crate::AddressSpace) alone have one, so nobody else can change the
/// [`Contents`] of a space beside its faults:
///
/// ```compile_fail,E0423
/// let held = isotherm_mm::Held(());
/// ```
pub struct Held<'a>(&'a dyn Relax);

/// What to do while somebody is waited for who may sleep: [`MmapLock::relax`] of whatever lock it is.
trait Relax {
    fn relax(&self, tries: u32);
}

impl<L: MmapLock> Relax for L {
    fn relax(&self, tries: u32) {
        MmapLock::relax(self, tries);
    }
}

impl<'a> Held<'a> {
    pub(crate) const fn new<L: MmapLock>(lock: &'a L) -> Self {
        Self(lock)
    }

    /// Waits as long as `waits`, with the lock held. Whoever is waited for does not wait for it, but may sleep.
    pub(crate) fn wait_while(&self, waits: impl Fn() -> bool) {
        let mut tries = 0;
        while waits() {
            self.0.relax(tries);
            tries = tries.saturating_add(1);
        }
    }
}

impl core::fmt::Debug for Held<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Held").finish_non_exhaustive()
    }
}

/// Says that `mmap_lock` of the space is held for reading: its VMAs stay as they are, and faults go on. As of [`Held`], operations
/// alone have one.
#[derive(Debug)]
pub struct HeldForRead(());

impl HeldForRead {
    pub(crate) const fn new() -> Self {
        Self(())
    }
}

/// The contents of an address space: page tables and pages. `()` has none, for layouts alone.
///
/// A VMA that is passed is one of the space, or a part of one.
pub trait Contents {
    /// The address behind the last that can be mapped: a space ends there, whatever its
    /// [`Config`](crate::Config) says.
    fn limit(&self) -> u64 {
        u64::MAX
    }

    /// The first address that can be mapped: a space begins there, whatever its [`Config`](crate::Config) says.
    fn lowest(&self) -> u64 {
        0
    }

    /// The space exists from now on: a new one, or a fork's child, which has all by now that it was to get.
    fn begin(&mut self) {}

    /// Makes room for an object to be mapped at so many places more, until [`unreserve`](Self::unreserve): so that what
    /// follows cannot fail.
    ///
    /// # Errors
    /// [`Error::NoMemory`], [`Error::NoObject`].
    fn reserve(&self, held: &Held<'_>, object: ObjectId, more: usize) -> Result<(), Error> {
        let _ = (held, object, more);
        Ok(())
    }

    /// Takes back what was reserved, used or not.
    fn unreserve(&self, held: &Held<'_>, object: ObjectId, more: usize) {
        let _ = (held, object, more);
    }

    /// The VMA, which is of an object, is mapped from now on, or is a part of one that has grown. For one place there is room.
    fn attach(&self, held: &Held<'_>, vma: &VmaInfo) {
        let _ = (held, vma);
    }

    /// The VMA is mapped no more, of a space that ends.
    fn detach(&self, held: &Held<'_>, vma: &VmaInfo) {
        let _ = (held, vma);
    }

    /// These VMAs, which lie in `range`, are not mapped any more: their pages go, and the tables that are empty then. Nothing
    /// else is mapped in `within`, which holds the range and the gaps beside it. If one is of an object, there is room for one
    /// place more: the range may have split what was mapped.
    fn unmap(
        &self,
        held: &Held<'_>,
        vmas: &mut dyn Iterator<Item = VmaInfo>,
        range: Range<u64>,
        within: Range<u64>,
    );

    /// A VMA is about to begin or end at an address, or pages of one to be dropped or moved up to there: nothing that is mapped as
    /// one reaches across.
    ///
    /// # Errors
    /// [`Error::NoMemory`], and nothing has changed.
    fn split(&self, held: &Held<'_>, at: u64) -> Result<(), Error> {
        let _ = (held, at);
        Ok(())
    }

    /// The pages of the VMA go, and are found empty again (`MADV_DONTNEED`).
    fn zap(&self, held: &Held<'_>, vma: &VmaInfo);

    /// The pages of the VMA, which is private and anonymous, are given up until they are written to (`MADV_FREE`).
    fn lazy_free(&self, held: &HeldForRead, vma: &VmaInfo) {
        let _ = (held, vma);
    }

    /// The flags of the VMA are these now; permissions may have changed.
    fn protect(&self, held: &Held<'_>, vma: &VmaInfo);

    /// The pages of the VMA that are there are to stay in memory, or need not any more: its flags say so.
    fn lock(&self, held: &Held<'_>, vma: &VmaInfo) {
        let _ = (held, vma);
    }

    /// So many pages of the space are locked from now on, when an operation ends: in VMAs that nobody can fault in yet, if they
    /// are new.
    fn count_locked(&self, held: &Held<'_>, pages: u64) {
        let _ = (held, pages);
    }

    /// Moves the pages of the VMA to `to`, where nothing is. The ranges do not overlap.
    ///
    /// # Errors
    /// [`Error::NoMemory`], and all is where it was.
    fn relocate(&self, held: &Held<'_>, vma: &VmaInfo, to: u64) -> Result<(), Error>;

    /// Copies the pages of these VMAs to a fork's child that has none yet. When it returns, nobody writes to a page that both
    /// have, unless writes are shared.
    ///
    /// # Errors
    /// [`Error::NoMemory`]; the child has some of the pages then.
    fn copy(
        &self,
        held: &Held<'_>,
        vmas: &mut dyn Iterator<Item = VmaInfo>,
        child: &mut Self,
    ) -> Result<(), Error>;

    /// Writes the dirty pages of an object to its storage. Called without `mmap_lock`.
    ///
    /// # Errors
    /// [`BackingError`].
    fn write_back(&self, object: ObjectId, pages: Range<u64>) -> Result<(), BackingError> {
        let _ = (object, pages);
        Ok(())
    }
}

impl Contents for () {
    fn unmap(&self, _: &Held<'_>, _: &mut dyn Iterator<Item = VmaInfo>, _: Range<u64>, _: Range<u64>) {}

    fn zap(&self, _: &Held<'_>, _: &VmaInfo) {}

    fn protect(&self, _: &Held<'_>, _: &VmaInfo) {}

    fn relocate(&self, _: &Held<'_>, _: &VmaInfo, _: u64) -> Result<(), Error> {
        Ok(())
    }

    fn copy(&self, _: &Held<'_>, _: &mut dyn Iterator<Item = VmaInfo>, (): &mut Self) -> Result<(), Error> {
        Ok(())
    }
}

//! Memory of VMAs that are in no tree, for the next ones, without a grace period between: see "Beyond the seed" in `src/lock.rs`.

use isotherm_maple::NodeAlloc;

use crate::sync::counter::{AtomicU64, Ordering};
use crate::vma::VmaPtr;

/// So many are kept at most; a guess: a program that unmaps more at a time does so seldom.
const MOST: u64 = 32;

/// All functions but [`free`](Self::free) are called by who holds `mmap_lock` for writing.
pub(crate) struct Pool {
    first: core::cell::UnsafeCell<Option<VmaPtr>>,
    count: AtomicU64,
}

// SAFETY: `first` is used by who holds `mmap_lock` for writing, or has the space alone.
unsafe impl Sync for Pool {}
// SAFETY: a VMA may be owned by any thread.
unsafe impl Send for Pool {}

impl Pool {
    pub(crate) const fn new() -> Self {
        Self { first: core::cell::UnsafeCell::new(None), count: AtomicU64::new(0) }
    }

    /// Keeps a VMA that nobody refers to but readers that find it detached; whether there was room.
    ///
    /// # Safety
    /// `mmap_lock` is held for writing, and the VMA's counter is 0.
    pub(crate) unsafe fn put(&self, vma: VmaPtr) -> bool {
        let count = self.count.load(Ordering::Relaxed);
        if count >= MOST {
            return false;
        }
        self.count.store(count + 1, Ordering::Relaxed);
        // SAFETY: nobody else is here.
        vma.push(unsafe { &mut *self.first.get() });
        true
    }

    /// One of them.
    ///
    /// # Safety
    /// `mmap_lock` is held for writing.
    pub(crate) unsafe fn take(&self) -> Option<VmaPtr> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.count.fetch_sub(1, Ordering::Relaxed);
        // SAFETY: nobody else is here.
        VmaPtr::pop(unsafe { &mut *self.first.get() })
    }

    /// Gives their memory back.
    ///
    /// # Safety
    /// Nobody has the space any more; they came from this allocator.
    pub(crate) unsafe fn free<A: NodeAlloc>(&self) {
        // SAFETY: the caller has it alone.
        while let Some(vma) = unsafe { self.take() } {
            // SAFETY: it is in no tree, and there are no readers.
            unsafe { vma.free::<A>() };
        }
    }
}

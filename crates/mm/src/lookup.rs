//! How a fault finds its VMA: under the VMA's lock, or under `mmap_lock`.

use core::fmt;

use isotherm_rcu::Rcu;

use crate::error::Error;
use crate::flags::VmFlags;
use crate::mmap_lock::MmapLock;
use crate::space::{AddressSpace, Platform};
use crate::stats::{Event, LockStats};
use crate::vma::{VmaInfo, VmaPtr};

/// A VMA that is read-locked: it stays what it is, and mapped, until this is dropped. Dropped, it counts as a fault that was
/// handled under the VMA's lock; see [`retry`](Self::retry).
///
/// Whoever holds it takes no `mmap_lock` of the same space, for writing or reading: the holder of that may wait for this.
pub struct VmaRead<'a, P: Platform> {
    space: &'a AddressSpace<P>,
    vma: VmaPtr,
    event: Event,
}

impl<'a, P: Platform> VmaRead<'a, P> {
    /// What it is.
    #[must_use]
    pub fn info(&self) -> VmaInfo {
        self.vma.info()
    }

    /// Gives it up: the fault is started again under `mmap_lock`.
    pub fn retry(mut self) {
        self.event = Event::Retry;
    }

    /// Gives it up: the VMA does not permit the access, which is looked at again under `mmap_lock`.
    pub fn refuse(mut self) {
        self.event = Event::Access;
    }
}

impl<P: Platform> Drop for VmaRead<'_, P> {
    fn drop(&mut self) {
        // `vma_end_read`: as soon as the lock is free the VMA may be taken out and freed, while this is in the middle of it.
        let guard = self.space.tree.rcu().read_lock();
        self.vma.end_read();
        drop(guard);
        self.space.count(self.event);
    }
}

impl<P: Platform> fmt::Debug for VmaRead<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("VmaRead").field(&self.info()).finish()
    }
}

/// A VMA with `mmap_lock` held for reading: it stays what it is until this is dropped.
pub struct MmapRead<'a, P: Platform> {
    space: &'a AddressSpace<P>,
    vma: VmaPtr,
    _lock: <P::Lock as MmapLock>::Read<'a>,
}

impl<P: Platform> MmapRead<'_, P> {
    /// What it is.
    #[must_use]
    pub fn info(&self) -> VmaInfo {
        self.vma.info()
    }

    /// Gives it anonymous state if it has none, so that later faults can go under its own lock (`anon_vma_prepare`).
    pub fn prepare_anon(&self) {
        let tree = self.space.tree.read();
        self.space.prepare(|address| tree.get(address), self.vma);
    }
}

impl<P: Platform> fmt::Debug for MmapRead<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MmapRead").field(&self.info()).finish()
    }
}

impl<P: Platform> AddressSpace<P> {
    pub(crate) fn count(&self, event: Event) {
        self.stats.count(P::cpu(), event);
    }

    /// How lookups under per-VMA locks ended so far.
    #[must_use]
    pub fn lock_stats(&self) -> LockStats {
        self.stats.get()
    }

    /// The VMA of an address, read-locked; `None` on any doubt, then [`lock_mmap`](Self::lock_mmap) does
    /// (`lock_vma_under_rcu`). Waits for nobody.
    ///
    /// Refused are VMAs of objects and those without anonymous state, as in the seed: their faults look at more than the VMA's
    /// lock holds. Nothing is counted if [`Config::per_vma_locks`](crate::Config::per_vma_locks) is off.
    #[must_use]
    pub fn lock_vma(&self, address: u64) -> Option<VmaRead<'_, P>> {
        if !self.config.per_vma_locks {
            return None;
        }
        let abort = |event| {
            self.count(event);
            None
        };
        let tree = self.tree.read();
        loop {
            let Some(vma) = tree.get(address) else { return abort(Event::NotMapped) };
            if vma.object().is_some() {
                return abort(Event::Object);
            }
            // A fault that must make it looks at the neighbours.
            if !vma.anon().is_some() {
                return abort(Event::NoAnon);
            }
            if !vma.start_read(&self.seq) {
                return abort(Event::Locked);
            }
            // Locked, it does not change any more; but it may have, after it was found.
            if !vma.contains(address) {
                vma.end_read();
                return abort(Event::Moved);
            }
            if vma.is_detached() {
                // Another may have taken its place.
                vma.end_read();
                self.count(Event::Miss);
                continue;
            }
            // What it had before it was locked `mremap` with DONTUNMAP may have taken away.
            if !vma.anon().is_some() {
                vma.end_read();
                return abort(Event::NoAnon);
            }
            return Some(VmaRead { space: self, vma, event: Event::Success });
        }
    }

    /// The VMA of an address with `mmap_lock` held for reading (`lock_mm_and_find_vma`). A stack above grows to the address,
    /// for which the lock is taken for writing meanwhile.
    ///
    /// # Errors
    /// Those of [`grow_stack`](Self::grow_stack).
    pub fn lock_mmap(&self, address: u64) -> Result<MmapRead<'_, P>, Error> {
        loop {
            let lock = self.lock.read();
            let found = self.tree.read().get(address);
            if let Some(vma) = found {
                return Ok(MmapRead { space: self, vma, _lock: lock });
            }
            // Writers are not troubled, nor waited for, unless there is a stack that could grow.
            let above = self.tree.read().find(address..=u64::MAX).map(|above| above.value);
            if !above.is_some_and(|above| above.flags().contains(VmFlags::GROWSDOWN)) {
                return Err(Error::BadAddress);
            }
            drop(lock);
            self.grow_stack(address)?;
        }
    }
}

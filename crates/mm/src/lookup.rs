//! How a fault finds its VMA: under the VMA's lock, or under `mmap_lock`.

use core::fmt;

use isotherm_rcu::Rcu;

use crate::biased::Slot;
use crate::config::VmaLocking;
use crate::error::Error;
use crate::flags::VmFlags;
use crate::lock::Counted;
use crate::mmap_lock::MmapLock;
use crate::space::{AddressSpace, Platform};
use crate::stats::{Event, LockStats};
use crate::vma::{VmaInfo, VmaPtr};

/// A VMA that is read-locked: it stays what it is, and mapped, until this is dropped, but that it may come to have anonymous state
/// ([`VmaInfo::has_anon`]). It counts as a fault that was handled under the VMA's lock, but for [`retry`](Self::retry) and
/// [`refuse`](Self::refuse).
///
/// Whoever holds it takes no `mmap_lock` of the same space, for writing or reading: the holder of that may wait for this.
pub struct VmaRead<'a, P: Platform> {
    space: &'a AddressSpace<P>,
    vma: VmaPtr,
    /// That it is locked by, if not by the VMA's counter.
    slot: Option<&'a Slot>,
    /// Why it is given up, if it is.
    given_up: Option<Event>,
}

impl<'a, P: Platform> VmaRead<'a, P> {
    /// What it is.
    #[must_use]
    pub fn info(&self) -> VmaInfo {
        self.vma.info()
    }

    /// Gives it anonymous state if it has none, as the first write to a private page needs it. `false` if that needs waiting:
    /// then the caller gives it up ([`retry`](Self::retry)).
    #[must_use]
    pub fn prepare_anon(&self) -> bool {
        if self.vma.anon().is_some() {
            return true;
        }
        // The neighbours are looked at.
        let Some(_lock) = self.space.lock.try_read() else { return false };
        let tree = self.space.tree.read();
        self.space.prepare(|address| tree.get(address), self.vma);
        true
    }

    /// Gives it up: the fault is started again under `mmap_lock`.
    pub fn retry(mut self) {
        self.given_up = Some(Event::Retry);
    }

    /// Gives it up: the VMA does not permit the access, which is looked at again under `mmap_lock`.
    pub fn refuse(mut self) {
        self.given_up = Some(Event::Access);
    }
}

impl<P: Platform> Drop for VmaRead<'_, P> {
    fn drop(&mut self) {
        match (self.slot, self.given_up) {
            (Some(slot), None) => slot.leave(),
            (Some(slot), Some(_)) => slot.cancel(),
            (None, given_up) => {
                // `vma_end_read`: as soon as the lock is free the VMA may be taken out and freed, while this is in the middle of it.
                let guard = self.space.tree.rcu().read_lock();
                if given_up.is_none() {
                    self.vma.end_read();
                } else {
                    self.vma.cancel_read();
                }
                drop(guard);
            }
        }
        if let Some(why) = self.given_up {
            self.space.count(why);
        }
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

/// A VMA that is read-locked in a section of RCU, and looked at.
struct Locked<'a, P: Platform> {
    space: &'a AddressSpace<P>,
    vma: VmaPtr,
    slot: Option<&'a Slot>,
}

impl<'a, P: Platform> Locked<'a, P> {
    fn keep(self) -> VmaRead<'a, P> {
        let Self { space, vma, slot } = *core::mem::ManuallyDrop::new(self);
        VmaRead { space, vma, slot, given_up: None }
    }
}

impl<P: Platform> Drop for Locked<'_, P> {
    fn drop(&mut self) {
        match self.slot {
            Some(slot) => slot.cancel(),
            None => self.vma.cancel_read(),
        }
    }
}

impl<P: Platform> AddressSpace<P> {
    pub(crate) fn count(&self, event: Event) {
        self.stats.count(P::cpu(), event);
    }

    /// How lookups under per-VMA locks ended so far: exact while none is under way. A VMA that is locked counts as success until
    /// it is given up. It takes `mmap_lock` for reading and looks at all VMAs, since faults are counted in their locks.
    #[must_use]
    pub fn lock_stats(&self) -> LockStats {
        let _lock = self.lock.read();
        let mut stats = self.stats.get();
        stats.success += self.slots.entries();
        for found in self.tree.read().range(0..=u64::MAX) {
            stats.success += found.value.entries();
        }
        stats
    }

    /// The VMA of an address, read-locked; `None` on any doubt, then [`lock_mmap`](Self::lock_mmap) does
    /// (`lock_vma_under_rcu`). Waits for nobody.
    ///
    /// Refused are VMAs of objects and, unless [`Config::vma_lock`](crate::Config::vma_lock) says otherwise, those without
    /// anonymous state, as in the seed: their faults look at more than the VMA's lock holds. Nothing is counted if
    /// [`Config::per_vma_locks`](crate::Config::per_vma_locks) is off.
    #[must_use]
    pub fn lock_vma(&self, address: u64) -> Option<VmaRead<'_, P>> {
        if !self.config.per_vma_locks {
            return None;
        }
        match self.try_lock_vma(address) {
            Ok(vma) => Some(vma),
            Err(why) => {
                self.count(why);
                None
            }
        }
    }

    fn try_lock_vma(&self, address: u64) -> Result<VmaRead<'_, P>, Event> {
        let tree = self.tree.read();
        loop {
            let vma = tree.get(address).ok_or(Event::NotMapped)?;
            self.is_served(vma)?;
            let Some(slot) = self.start_read(vma)? else {
                // It was taken out meanwhile; another may have taken its place.
                self.count(Event::Miss);
                continue;
            };
            let read = Locked { space: self, vma, slot };
            // Locked, it does not change any more; but it may have, after it was found.
            if !vma.contains(address) {
                return Err(Event::Moved);
            }
            if vma.is_detached() {
                drop(read);
                self.count(Event::Miss);
                continue;
            }
            // What it had before it was locked `mremap` with DONTUNMAP may have taken away; or it was another.
            self.is_served(vma)?;
            return Ok(read.keep());
        }
    }

    /// Whether faults in a VMA of its kind go under its lock.
    fn is_served(&self, vma: VmaPtr) -> Result<(), Event> {
        if vma.object().is_some() {
            return Err(Event::Object);
        }
        if vma.flags().intersects(VmFlags::USER) {
            return Err(Event::User);
        }
        // A fault that must make it looks at the neighbours.
        if self.config.vma_lock == VmaLocking::Sequence && !vma.anon().is_some() {
            return Err(Event::NoAnon);
        }
        Ok(())
    }

    /// Read-locks a VMA, by a slot or its counter; `None` if it is in no tree.
    fn start_read(&self, vma: VmaPtr) -> Result<Option<Option<&Slot>>, Event> {
        match self.config.vma_lock {
            VmaLocking::Sequence => vma.start_read(&self.seq).then_some(Some(None)).ok_or(Event::Locked),
            VmaLocking::Counted => match vma.start_read_counted(&self.seq) {
                Counted::In => Ok(Some(None)),
                Counted::Detached => Ok(None),
                Counted::Refused => Err(Event::Locked),
            },
            VmaLocking::Biased => {
                if vma.is_biased()
                    && let Some(slot) = self.slots.enter(P::cpu(), vma)
                {
                    if vma.is_open(&self.seq) {
                        return Ok(Some(Some(slot)));
                    }
                    slot.cancel();
                }
                if !vma.start_read(&self.seq) {
                    return Err(Event::Locked);
                }
                if !vma.is_biased() {
                    vma.bias();
                }
                Ok(Some(None))
            }
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

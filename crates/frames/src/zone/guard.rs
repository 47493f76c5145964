//! What a zone's locks guard, and what is read without them.

use core::mem::ManuallyDrop;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::AtomicUsize;

use crate::buddy::Buddy;
use crate::cache::{Cache, Limits};
use crate::lock::{Guard, Lock};
use crate::schedule::Schedule;
use crate::sync::{AtomicBool, AtomicU32, Ordering};
use crate::{Order, Zone};

/// What the zone's lock guards.
pub(crate) struct Core<'m> {
    pub buddy: Buddy<'m>,
    pub schedule: Schedule,
    /// Frames that came back although they were free. As every block is claimed before, there are none unless memory was
    /// corrupted.
    pub rejected: u64,
}

/// Free frames, and blocks that wait to be reported, as of when the zone's lock was last given back.
pub(crate) struct Figures {
    pub free: AtomicUsize,
    pub waiting: AtomicUsize,
}

/// A CPU's cache, and what is known of it without its lock.
pub(crate) struct PerCpu<'m> {
    pub cache: Lock<Cache<'m>>,
    /// Whether there may be something in it: set by whoever puts something into an empty cache, before the zone's pressure is
    /// looked at, and cleared by whoever empties it. An allocation that finds nothing leaves the others alone.
    pub filled: AtomicBool,
    /// Frames in it: no fewer than there are, for whoever holds the zone's lock. Written by who holds the cache's lock.
    held: AtomicU32,
}

impl<'m> PerCpu<'m> {
    pub fn new(limits: &Limits, items: &'m mut [u32]) -> Self {
        Self {
            cache: Lock::new(Cache::new(limits, items)),
            filled: AtomicBool::new(false),
            held: AtomicU32::new(0),
        }
    }

    /// Frames in it, read without its lock: none is missed that was in the cache or the zone all along, if the caller holds the
    /// zone's lock.
    pub fn held(&self) -> u64 {
        u64::from(self.held.load(Ordering::Relaxed))
    }

    /// A block was taken out by the caller, who holds the cache's lock, and not for the zone.
    #[inline]
    pub fn took(&self, order: Order) {
        // Relaxed, and no read-modify-write: the lock orders those who write, and the zone's lock what moves to the zone and back.
        let held = self.held.load(Ordering::Relaxed);
        self.held.store(held.wrapping_sub(1 << order.get()), Ordering::Relaxed);
    }

    /// A block was put in, as above, and not from the zone.
    #[inline]
    pub fn put(&self, order: Order) {
        let held = self.held.load(Ordering::Relaxed);
        self.held.store(held.wrapping_add(1 << order.get()), Ordering::Relaxed);
    }

    /// Blocks were moved between the cache, whose lock the caller holds, and the zone. Those that came from the zone are said to
    /// be here before its lock is given back, those that went there after that: so neither are missed by who holds it.
    pub fn moved(&self, cache: &Cache<'_>) {
        self.held.store(u32::try_from(cache.len()).unwrap_or(u32::MAX), Ordering::Relaxed);
    }
}

/// The zone's lock, held. What others read without it is brought up to date as it is given back.
pub(crate) struct CoreGuard<'z, 'm> {
    pub zone: &'z Zone<'m>,
    pub core: ManuallyDrop<Guard<'z, Core<'m>>>,
}

impl<'m> Deref for CoreGuard<'_, 'm> {
    type Target = Core<'m>;

    #[inline]
    fn deref(&self) -> &Core<'m> {
        &self.core
    }
}

impl<'m> DerefMut for CoreGuard<'_, 'm> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Core<'m> {
        &mut self.core
    }
}

impl Drop for CoreGuard<'_, '_> {
    #[inline]
    fn drop(&mut self) {
        let (free, waiting) = (self.core.buddy.free(), self.core.buddy.waiting());
        let figures = &self.zone.figures.0;
        figures.free.store(free as usize, Ordering::Relaxed);
        figures.waiting.store(waiting as usize, Ordering::Relaxed);
        let wakes = self.core.schedule.wakes(waiting);
        // SAFETY: not used again.
        unsafe { ManuallyDrop::drop(&mut self.core) };
        if wakes && let Some(wake) = self.zone.wake {
            (wake.call)(wake.argument);
        }
    }
}

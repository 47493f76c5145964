//! What a zone's locks guard, and what is read without them.

use core::mem::ManuallyDrop;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::AtomicUsize;

use crate::Zone;
use crate::buddy::Buddy;
use crate::cache::{Cache, Limits};
use crate::lock::{Guard, Lock};
use crate::schedule::Schedule;
use crate::sync::{AtomicBool, Ordering};

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
}

impl<'m> PerCpu<'m> {
    pub fn new(limits: &Limits, items: &'m mut [u32]) -> Self {
        Self { cache: Lock::new(Cache::new(limits, items)), filled: AtomicBool::new(false) }
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

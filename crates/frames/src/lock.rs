//! The one lock of the crate: test and set, for sections of some hundred nanoseconds.
//!
//! Own code, because loom must see through it, because a cache is only ever *tried* on the fast path, and because what
//! waiting means is the caller's to say (a kernel spins, a process lets others run).

use core::mem::ManuallyDrop;
use core::ops::{Deref, DerefMut};

use crate::sync::{AtomicBool, MutPtr, Ordering, UnsafeCell};

pub struct Lock<T> {
    held: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: `value` is reached only through a `Guard`, of which there is one at a time; it moves between threads with it.
unsafe impl<T: Send> Sync for Lock<T> {}
// SAFETY: the lock owns its value.
unsafe impl<T: Send> Send for Lock<T> {}

impl<T> Lock<T> {
    pub fn new(value: T) -> Self {
        Self { held: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// The lock, if nobody holds it now.
    #[inline]
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        // Acquire: what the holder before us wrote is seen (its release is in `Guard::drop`).
        // Not a swap, whose failures would be writes that can keep the holder's release from becoming visible (in the
        // language's memory model; loom found it).
        self.held.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).ok()?;
        Some(Guard { value: ManuallyDrop::new(self.value.get_mut()), lock: self })
    }

    /// The lock, once nobody holds it; `relax` is called between two looks.
    pub fn lock(&self, relax: fn()) -> Guard<'_, T> {
        loop {
            if let Some(guard) = self.try_lock() {
                return guard;
            }
            relax();
            // Waiting reads only, so that the holder's cache line is left to it. Loom need not see that: to it every read
            // is one more thing to explore, and a read that comes too late changes nothing.
            while cfg!(not(loom)) && self.held.load(Ordering::Relaxed) {
                relax();
            }
        }
    }
}

/// The right to the value of a lock, until dropped.
pub struct Guard<'l, T> {
    lock: &'l Lock<T>,
    value: ManuallyDrop<MutPtr<T>>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: a guard exists only while its lock is held by it, and lends no longer than it lives.
        unsafe { MutPtr::deref(&self.value) }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`, and `&mut self` makes this the only reference.
        unsafe { MutPtr::deref(&self.value) }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // The access ends before the lock does; to loom that is an event.
        // SAFETY: not used again.
        unsafe { ManuallyDrop::drop(&mut self.value) };
        self.lock.held.store(false, Ordering::Release);
    }
}

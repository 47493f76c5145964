//! The one lock of the crate: test and set, for sections of some hundred nanoseconds.
//!
//! Own code, because loom must see through it, because a cache is only ever *tried* on the fast path, and because what
//! waiting means is the caller's to say (a kernel spins, a process lets others run).

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
        if self.held.swap(true, Ordering::Acquire) {
            return None;
        }
        Some(Guard { value: self.value.get_mut(), lock: self })
    }

    /// The lock, once nobody holds it; `relax` is called between two looks.
    pub fn lock(&self, relax: fn()) -> Guard<'_, T> {
        loop {
            if let Some(guard) = self.try_lock() {
                return guard;
            }
            // Waiting reads only, so that the holder's cache line is left to it.
            while self.held.load(Ordering::Relaxed) {
                relax();
            }
        }
    }
}

/// The right to the value of a lock, until dropped.
pub struct Guard<'l, T> {
    lock: &'l Lock<T>,
    value: MutPtr<T>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: a guard exists only while its lock is held by it, and lends no longer than it lives.
        unsafe { self.value.deref() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`, and `&mut self` makes this the only reference.
        unsafe { self.value.deref() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.lock.held.store(false, Ordering::Release);
    }
}

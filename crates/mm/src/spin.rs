//! A lock that spins, for a few instructions: lists of this crate that are changed seldom.

#[cfg(loom)]
pub(crate) use model::Spin;
#[cfg(not(loom))]
pub(crate) use spinning::Spin;

/// What to do between two tries.
pub(crate) fn relax(tries: u32) {
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(all(feature = "std", not(loom)))]
    if tries > 64 {
        std::thread::yield_now();
    }
    let _ = tries;
    core::hint::spin_loop();
}

/// In models, where who spins for ever has too many interleavings, it is loom's mutex.
#[cfg(loom)]
mod model {
    pub(crate) struct Spin<T>(loom::sync::Mutex<T>);

    impl<T> Spin<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
        }
    }
}

#[cfg(not(loom))]
mod spinning {
    use core::cell::UnsafeCell;
    use core::ops::{Deref, DerefMut};

    use super::relax;
    use crate::sync::{AtomicBool, Ordering};

    /// A value, and the lock that it is reached with. While it is held nothing is waited for, and no other lock of this crate is
    /// taken; a kernel holds preemption off around operations, as for the locks of tables.
    pub(crate) struct Spin<T> {
        locked: AtomicBool,
        value: UnsafeCell<T>,
    }

    // SAFETY: one thread at a time reaches the value.
    unsafe impl<T: Send> Sync for Spin<T> {}

    pub(crate) struct SpinGuard<'a, T>(&'a Spin<T>);

    impl<T> Spin<T> {
        pub(crate) fn new(value: T) -> Self {
            Self { locked: AtomicBool::new(false), value: UnsafeCell::new(value) }
        }

        pub(crate) fn lock(&self) -> SpinGuard<'_, T> {
            let mut tries = 0;
            while self.locked.swap(true, Ordering::Acquire) {
                relax(tries);
                tries = tries.saturating_add(1);
            }
            SpinGuard(self)
        }
    }

    impl<T> Deref for SpinGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            // SAFETY: the lock is held.
            unsafe { &*self.0.value.get() }
        }
    }

    impl<T> DerefMut for SpinGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            // SAFETY: the lock is held, and the guard is borrowed alone.
            unsafe { &mut *self.0.value.get() }
        }
    }

    impl<T> Drop for SpinGuard<'_, T> {
        fn drop(&mut self) {
            self.0.locked.store(false, Ordering::Release);
        }
    }
}

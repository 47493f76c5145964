//! The atomics and cells the crate is built on: the language's own, or loom's when its models run.

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, Ordering, fence};
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, Ordering, fence};

#[cfg(loom)]
pub use loom::cell::{MutPtr, UnsafeCell};
#[cfg(not(loom))]
pub use plain::{MutPtr, UnsafeCell};

/// Loom's cell, whose accesses are guarded, over the language's, whose accesses are not.
#[cfg(not(loom))]
mod plain {
    pub struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        pub const fn new(value: T) -> Self {
            Self(core::cell::UnsafeCell::new(value))
        }

        pub const fn get_mut(&self) -> MutPtr<T> {
            MutPtr(self.0.get())
        }
    }

    pub struct MutPtr<T>(*mut T);

    impl<T> MutPtr<T> {
        /// # Safety
        /// The cell is alive, and nobody else accesses it while the reference lives.
        #[expect(clippy::mut_from_ref, reason = "loom's signature, which this stands in for")]
        pub const unsafe fn deref(&self) -> &mut T {
            // SAFETY: the caller vouches for it.
            unsafe { &mut *self.0 }
        }
    }
}

/// What a CPU does between two looks at a lock that another holds.
pub fn spin() {
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(not(loom))]
    core::hint::spin_loop();
}

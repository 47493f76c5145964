//! A counted reference to a value, whose allocation may fail.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::marker::PhantomData;
use core::ops::Deref;
use core::ptr::NonNull;

use crate::error::Error;
use crate::sync::{AtomicUsize, Ordering, fence};

struct Counted<T> {
    count: AtomicUsize,
    value: T,
}

/// What `alloc::sync::Arc` is, but that without memory [`new`](Self::new) is an error.
pub(crate) struct Shared<T> {
    counted: NonNull<Counted<T>>,
    owns: PhantomData<Counted<T>>,
}

// SAFETY: whoever has one may use the value and drop it.
unsafe impl<T: Send + Sync> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for Shared<T> {}

impl<T> Shared<T> {
    pub(crate) fn new(value: T) -> Result<Self, Error> {
        let mut one = Vec::new();
        one.try_reserve_exact(1).map_err(|_| Error::NoMemory)?;
        one.push(Counted { count: AtomicUsize::new(1), value });
        let slice: *mut [Counted<T>] = Box::into_raw(one.into_boxed_slice());
        let counted = NonNull::new(slice.cast()).ok_or(Error::NoMemory)?;
        Ok(Self { counted, owns: PhantomData })
    }

    fn counted(&self) -> &Counted<T> {
        // SAFETY: it lives as long as there is a reference.
        unsafe { self.counted.as_ref() }
    }

    /// The value, if there is no other reference.
    pub(crate) fn get_mut(&mut self) -> Option<&mut T> {
        // Acquire: what others did with the value before they gave their references up has happened.
        if self.counted().count.load(Ordering::Acquire) != 1 {
            return None;
        }
        // SAFETY: the only reference is borrowed, so nobody makes another from it.
        Some(unsafe { &mut self.counted.as_mut().value })
    }

    pub(crate) fn is(&self, other: &Self) -> bool {
        self.counted == other.counted
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        let before = self.counted().count.fetch_add(1, Ordering::Relaxed);
        assert!(before < usize::MAX / 2, "references are forgotten");
        Self { ..*self }
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.counted().value
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        // Release and acquire: whatever was done with the value happens before it is dropped.
        if self.counted().count.fetch_sub(1, Ordering::Release) == 1 {
            fence(Ordering::Acquire);
            let slice = core::ptr::slice_from_raw_parts_mut(self.counted.as_ptr(), 1);
            // SAFETY: it was made of a boxed slice of one, and the last reference is gone.
            drop(unsafe { Box::from_raw(slice) });
        }
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used, reason = "what fails here fails the test")]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn the_last_reference_drops_the_value() {
        let value = Arc::new(7);
        let mut one = Shared::new(Arc::clone(&value)).unwrap();
        assert!(one.get_mut().is_some());
        let other = one.clone();
        assert!(one.is(&other) && one.get_mut().is_none());
        assert_eq!((**other, Arc::strong_count(&value)), (7, 2));
        std::thread::scope(|scope| {
            scope.spawn(move || drop(other));
            drop(one);
        });
        assert_eq!(Arc::strong_count(&value), 1);
    }
}

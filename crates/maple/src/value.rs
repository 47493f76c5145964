//! What a tree maps ranges to.

use core::num::NonZeroUsize;
use core::ptr::NonNull;

/// A value of a tree: a pointer's worth of bits that is never null.
///
/// The tree copies values and never drops what they point to. Whoever takes a value out frees its object after a grace
/// period ([`Reclaim::defer`](isotherm_rcu::Reclaim::defer)), as readers may have found it before.
///
/// # Safety
/// `from_raw(into_raw(value))` is `value`, and `into_raw` never returns null. Values may be sent to and shared between
/// threads as far as they are `Send` and `Sync`, also in this form.
pub unsafe trait Value: Copy {
    /// The value as a pointer, not null.
    fn into_raw(self) -> *mut ();

    /// The value that this pointer was made from.
    ///
    /// # Safety
    /// The pointer was returned by [`into_raw`](Self::into_raw) of a value of this type.
    unsafe fn from_raw(raw: *mut ()) -> Self;
}

// SAFETY: a reference is a pointer that is not null.
unsafe impl<T> Value for &T {
    #[inline]
    fn into_raw(self) -> *mut () {
        core::ptr::from_ref(self).cast_mut().cast()
    }

    #[inline]
    unsafe fn from_raw(raw: *mut ()) -> Self {
        // SAFETY: it was made from such a reference.
        unsafe { &*raw.cast() }
    }
}

// SAFETY: the pointer is not null.
unsafe impl<T> Value for NonNull<T> {
    #[inline]
    fn into_raw(self) -> *mut () {
        self.as_ptr().cast()
    }

    #[inline]
    unsafe fn from_raw(raw: *mut ()) -> Self {
        // SAFETY: it was made from such a pointer.
        unsafe { Self::new_unchecked(raw.cast()) }
    }
}

// SAFETY: the number is not 0, so neither is the address.
unsafe impl Value for NonZeroUsize {
    #[inline]
    fn into_raw(self) -> *mut () {
        core::ptr::without_provenance_mut(self.get())
    }

    #[inline]
    unsafe fn from_raw(raw: *mut ()) -> Self {
        // SAFETY: it was made from such a number.
        unsafe { Self::new_unchecked(raw.addr()) }
    }
}

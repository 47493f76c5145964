//! A list of at most `N` items that needs no memory but its own.

use core::mem::MaybeUninit;
use core::ops::Deref;

pub(crate) struct Stack<T: Copy, const N: usize> {
    /// The first `len` are initialised. The others are not: an operation would spend a third of its time on that.
    items: [MaybeUninit<T>; N],
    len: usize,
}

impl<T: Copy, const N: usize> Stack<T, N> {
    #[inline]
    pub(crate) const fn new() -> Self {
        Self { items: [const { MaybeUninit::uninit() }; N], len: 0 }
    }

    /// # Panics
    /// There are `N` already.
    #[inline]
    pub(crate) fn push(&mut self, item: T) {
        self.items[self.len].write(item);
        self.len += 1;
    }
}

impl<T: Copy, const N: usize> Deref for Stack<T, N> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: `push` wrote the first `len`, and there are so many.
        unsafe { core::slice::from_raw_parts(self.items.as_ptr().cast(), self.len) }
    }
}

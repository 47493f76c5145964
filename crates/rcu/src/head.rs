//! The link of an object that waits for its grace period, and lists of such links.

use core::fmt;
use core::ptr::{NonNull, null_mut};

use crate::sync::{UnsafeCell, const_unless_loom};

/// What is called after the grace period, with the head that was deferred. From the head it finds the object: the head is
/// the first field of a `repr(C)` type, or lies at a known offset.
pub type Callback = unsafe fn(NonNull<RcuHead>);

/// Two words that an object brings so that it can be deferred without allocation. They are used from
/// [`Reclaim::defer`](crate::Reclaim::defer) until the callback is called, and hold nothing before and after.
///
/// The pointer that is deferred must be valid for the whole object, if the callback is to reach it:
/// `&raw mut (*object).head`, not a reference to the head alone.
#[repr(C)]
pub struct RcuHead {
    link: UnsafeCell<Link>,
}

#[derive(Clone, Copy)]
struct Link {
    next: *mut RcuHead,
    callback: Option<Callback>,
}

// SAFETY: nothing is accessed through a shared reference; `defer` has its caller vouch for who uses the head.
unsafe impl Sync for RcuHead {}
// SAFETY: what the link points to belongs to whoever has the head.
unsafe impl Send for RcuHead {}

impl RcuHead {
    const_unless_loom! {
        /// A head in no list.
        #[must_use]
        pub fn new() -> Self {
            Self { link: UnsafeCell::new(Link { next: null_mut(), callback: None }) }
        }
    }

    /// # Safety
    /// The head is valid, and nobody else uses it.
    unsafe fn link<R>(head: NonNull<Self>, access: impl FnOnce(&mut Link) -> R) -> R {
        // SAFETY: the caller vouches for it. Only the link is accessed through this reference; `head` itself keeps the
        // provenance of the object, for the callback.
        let link = unsafe { &(*head.as_ptr()).link };
        // SAFETY: the caller vouches for it.
        link.with_mut(|link| access(unsafe { &mut *link }))
    }

    /// # Safety
    /// As for [`link`](Self::link).
    pub(crate) unsafe fn prepare(head: NonNull<Self>, callback: Callback) {
        // SAFETY: the caller vouches for it.
        unsafe { Self::link(head, |link| link.callback = Some(callback)) };
    }

    /// # Safety
    /// As for [`link`](Self::link).
    pub(crate) unsafe fn set_next(head: NonNull<Self>, next: *mut Self) {
        // SAFETY: the caller vouches for it.
        unsafe { Self::link(head, |link| link.next = next) };
    }

    /// # Safety
    /// The head was deferred, its grace period is over, and it is in no list any more.
    pub(crate) unsafe fn call(head: NonNull<Self>) {
        // SAFETY: the caller vouches for it.
        let callback = unsafe { Self::link(head, |link| link.callback.take()) };
        if let Some(callback) = callback {
            // SAFETY: whoever deferred it vouched for the callback.
            unsafe { callback(head) };
        }
    }
}

impl Default for RcuHead {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for RcuHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RcuHead").finish_non_exhaustive()
    }
}

/// A list of heads, first in first out. It has them for itself.
#[derive(Debug)]
pub(crate) struct List {
    first: *mut RcuHead,
    last: *mut RcuHead,
}

impl List {
    pub(crate) const fn new() -> Self {
        Self { first: null_mut(), last: null_mut() }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.first.is_null()
    }

    /// The list of a chain whose newest comes first.
    ///
    /// # Safety
    /// The heads of the chain are valid and linked, and nobody else has them.
    pub(crate) unsafe fn of_newest(mut head: *mut RcuHead) -> Self {
        let mut list = Self::new();
        while let Some(this) = NonNull::new(head) {
            // SAFETY: it is one of the chain.
            head = unsafe { RcuHead::link(this, |link| core::mem::replace(&mut link.next, list.first)) };
            if list.last.is_null() {
                list.last = this.as_ptr();
            }
            list.first = this.as_ptr();
        }
        list
    }

    pub(crate) fn append(&mut self, other: &mut Self) {
        match NonNull::new(self.last) {
            // SAFETY: the last of a list is valid, and the list's own.
            Some(last) if !other.is_empty() => unsafe { RcuHead::set_next(last, other.first) },
            Some(_) => return,
            None => self.first = other.first,
        }
        self.last = other.last;
        *other = Self::new();
    }

    pub(crate) fn pop(&mut self) -> Option<NonNull<RcuHead>> {
        let first = NonNull::new(self.first)?;
        // SAFETY: the first of a list is valid, and the list's own.
        self.first = unsafe { RcuHead::link(first, |link| link.next) };
        if self.first.is_null() {
            self.last = null_mut();
        }
        Some(first)
    }
}

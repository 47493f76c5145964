//! RCU by the epochs of crossbeam.

use core::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::{Callback, Rcu, RcuHead, Reclaim};

/// RCU for the threads of a process, by the default collector of crossbeam-epoch: threads need not register, and may end at
/// any time. A guard costs a full memory barrier, and deferring allocates now and then; [`Qsbr`](crate::Qsbr) does neither.
///
/// Callbacks run on whatever thread makes a guard or waits later. All instances are the same one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Epoch;

impl Epoch {
    /// Runs callbacks whose grace period is over, if it is, and moves towards the end of the next one.
    pub fn advance(self) {
        crossbeam_epoch::pin().flush();
    }
}

impl Rcu for Epoch {
    type Guard<'a> = crossbeam_epoch::Guard;

    #[inline]
    fn read_lock(&self) -> Self::Guard<'_> {
        crossbeam_epoch::pin()
    }
}

/// A head on its way to another thread.
struct Deferred(NonNull<RcuHead>);

// SAFETY: who defers vouches that any thread may call the callback with the head.
unsafe impl Send for Deferred {}

impl Deferred {
    /// # Safety
    /// The grace period is over.
    unsafe fn call(self) {
        // SAFETY: the caller vouches for it; the head was in no list.
        unsafe { RcuHead::call(self.0) };
    }
}

// SAFETY: crossbeam runs what is deferred after all guards are gone that were pinned at the time; `synchronize` waits for
// just that.
unsafe impl Reclaim for Epoch {
    #[inline]
    unsafe fn defer(&self, head: NonNull<RcuHead>, callback: Callback) {
        // SAFETY: the caller vouches that the head is valid and not in use.
        unsafe { RcuHead::prepare(head, callback) };
        let deferred = Deferred(head);
        // SAFETY: the caller vouches for any thread; the closure holds no reference.
        unsafe { crossbeam_epoch::pin().defer_unchecked(move || deferred.call()) };
    }

    fn synchronize(&self) {
        assert!(!crossbeam_epoch::is_pinned(), "synchronize inside a read-side critical section");
        let over = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&over);
        crossbeam_epoch::pin().defer(move || flag.store(true, Ordering::Release));
        while !over.load(Ordering::Acquire) {
            // Of its own accord a bag of callbacks goes on only when it is full.
            crossbeam_epoch::pin().flush();
            std::thread::yield_now();
        }
    }
}

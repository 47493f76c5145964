//! RCU by the epochs of crossbeam.

use core::fmt;
use core::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::{Callback, Rcu, RcuHead, Reclaim};

/// RCU for the threads of a process, by the default collector of crossbeam-epoch: threads need not register, and may end at
/// any time. A guard costs a full memory barrier, and deferring allocates now and then; [`Qsbr`](crate::Qsbr) does neither.
///
/// Callbacks run on whatever thread makes a guard, defers, advances or waits later, inside that very call: whoever does
/// so holds no lock that any callback takes. There is no barrier that waits for all callbacks: some are run only after the
/// thread that deferred them ends or defers more, or never if the process ends before. All instances are the same one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Epoch;

impl Epoch {
    /// Runs callbacks whose grace period is over, if it is, and moves towards the end of the next one.
    pub fn advance(self) {
        crossbeam_epoch::pin().flush();
    }
}

/// A read-side critical section of [`Epoch`]. It stays on its thread.
pub struct EpochGuard(#[expect(dead_code, reason = "its drop ends the section")] crossbeam_epoch::Guard);

impl fmt::Debug for EpochGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EpochGuard").finish_non_exhaustive()
    }
}

impl Rcu for Epoch {
    /// Crossbeam's own guard would have safe functions that end the section, as `repin`.
    type Guard<'a> = EpochGuard;

    #[inline]
    fn read_lock(&self) -> EpochGuard {
        EpochGuard(crossbeam_epoch::pin())
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
        // Crossbeam is in a section of its own while it runs callbacks.
        assert!(
            !crossbeam_epoch::is_pinned(),
            "synchronize inside a read-side critical section or a callback"
        );
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

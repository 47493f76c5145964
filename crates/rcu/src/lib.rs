//! Read-copy-update (RCU): readers that never wait, and memory that is freed when no reader can see it any more.
//!
//! | what | where |
//! |---|---|
//! | the readers' side: a guard | [`Rcu`] |
//! | the updaters' side: defer a callback, wait for a grace period | [`Reclaim`] |
//! | the link that an object brings to be deferred without allocation | [`RcuHead`] |
//! | RCU by quiescent states: kernels, hypervisors, emulators | [`Qsbr`], and [`Cpus`], which its user implements |
//! | the same, with the threads of a process as CPUs (feature `std`) | `Threads` |
//! | RCU by the epochs of crossbeam (feature `std`) | `Epoch` |
//!
//! The words are those of the literature (McKenney, "What is RCU?", and Desnoyers et al., "User-Level Implementations of
//! Read-Copy Update", IEEE TPDS 2012). A *read-side critical section* lasts as long as a guard. A *grace period* is a
//! time in which every section that existed at its start has ended. A *quiescent state* is a moment at which a CPU is in
//! no section; an *extended* one lasts, as when the CPU is idle or offline.
//!
//! An updater takes an object out of a structure, so that no new reader finds it, and then either waits for a grace
//! period ([`Reclaim::synchronize`]) or has a callback run after one ([`Reclaim::defer`]). Readers that found the object
//! before may use it until their guard is dropped.
//!
//! Structures that only read ask for [`Rcu`]; those that free memory ask for [`Reclaim`]. How [`Qsbr`] finds the end of
//! a grace period, with the proof of its memory order, is explained in its own documentation.
#![cfg_attr(not(any(test, feature = "std", loom)), no_std)]

#[cfg(feature = "std")]
mod epoch;
mod head;
#[cfg(loom)]
#[doc(hidden)]
pub mod model;
mod qsbr;
mod sync;

#[cfg(feature = "std")]
pub use epoch::{Epoch, EpochGuard};
pub use head::{Callback, RcuHead};
pub use qsbr::{Cpus, Qsbr, QsbrGuard};
#[cfg(feature = "std")]
pub use qsbr::{Joined, Threads, TooManyThreads};
#[cfg(loom)]
#[doc(hidden)]
pub use sync::interrupt;

use core::ptr::NonNull;

/// The readers' side of RCU.
pub trait Rcu {
    /// A read-side critical section: while it lives, nothing is freed that could be found at its creation.
    type Guard<'a>
    where
        Self: 'a;

    /// Starts a read-side critical section. Sections may be nested.
    fn read_lock(&self) -> Self::Guard<'_>;
}

/// The updaters' side of RCU.
///
/// # Where callbacks run
/// A callback is called by some CPU or thread that is inside a function of the implementation, which states which functions
/// these are: those of [`Qsbr`] are `advance`, `barrier` and its drop; for `Epoch` it is every function, `read_lock` too.
/// Hence:
///
/// - Who calls such a function holds no lock that a callback takes.
/// - A callback may defer, and start sections. It does not wait for a grace period, nor for other callbacks: it may be what
///   they wait for.
///
/// # Safety
/// A callback given to [`defer`](Self::defer) does not run, and [`synchronize`](Self::synchronize) does not return, before
/// every [`Rcu::Guard`] of this instance that existed at the time of the call has been dropped. All that was done under those
/// guards happens before the callback or the return. And a guard that is still alive when the callback runs, or when
/// `synchronize` returns, was created after the call; what is read under it is as new as what the caller did before the
/// call.
pub unsafe trait Reclaim: Rcu {
    /// Has `callback` called with `head` once, after a grace period. Callable inside a section, and never waits for a grace
    /// period.
    ///
    /// # Safety
    /// - `head` is valid and stays so until the callback is called. Nobody else uses it until then, and it is in no
    ///   other call.
    /// - `callback` may be called with it by any CPU or thread, as described [above](Self#where-callbacks-run).
    unsafe fn defer(&self, head: NonNull<RcuHead>, callback: Callback);

    /// Waits for a grace period.
    ///
    /// # Panics
    /// Inside a read-side critical section of this CPU or thread, where it would wait for itself. In callbacks it may panic
    /// or never return.
    fn synchronize(&self);
}

impl<R: Rcu> Rcu for &R {
    type Guard<'a>
        = R::Guard<'a>
    where
        Self: 'a;

    #[inline]
    fn read_lock(&self) -> Self::Guard<'_> {
        (**self).read_lock()
    }
}

// SAFETY: it is the same instance.
unsafe impl<R: Reclaim> Reclaim for &R {
    #[inline]
    unsafe fn defer(&self, head: NonNull<RcuHead>, callback: Callback) {
        // SAFETY: the caller's duty is the same.
        unsafe { (**self).defer(head, callback) }
    }

    fn synchronize(&self) {
        (**self).synchronize();
    }
}

#[cfg(all(doctest, feature = "std"))]
#[doc = include_str!("../README.md")]
struct Readme;

//! What belongs to one CPU.

use core::cell::UnsafeCell;
use core::fmt;
use core::ops::{Deref, DerefMut};
use core::ptr::{NonNull, null_mut};

use crate::RcuHead;
use crate::head::List;
use crate::sync::{AtomicBool, AtomicPtr, AtomicU64, Ordering, const_unless_loom};

/// The period that a CPU has seen while it is offline: later than all.
pub(super) const OFFLINE: u64 = u64::MAX;

/// The state of one CPU in [`Qsbr`](super::Qsbr), alone on its cache lines.
#[repr(align(128))]
pub(super) struct CpuState {
    /// The latest period at a quiescent state, or [`OFFLINE`].
    pub(super) seen: AtomicU64,
    /// What was deferred, newest first.
    next: AtomicPtr<RcuHead>,
    queued: AtomicU64,
    ran: AtomicU64,
    /// Whether somebody has the lists.
    busy: AtomicBool,
    lists: UnsafeCell<Lists>,
}

/// Callbacks that wait for a period, and those whose period is over.
#[derive(Debug)]
pub(super) struct Lists {
    pub(super) waiting: List,
    /// What `waiting` waits for.
    pub(super) period: u64,
    done: List,
}

impl Lists {
    /// What waited is done.
    pub(super) fn finish(&mut self) {
        let Self { waiting, done, .. } = self;
        done.append(waiting);
    }
}

// SAFETY: the lists are accessed by whoever holds `busy`, and callbacks may be called by any CPU.
unsafe impl Sync for CpuState {}
// SAFETY: the same.
unsafe impl Send for CpuState {}

impl CpuState {
    const_unless_loom! {
        /// Online, with nothing deferred.
        #[must_use]
        pub(super) fn new() -> Self {
            Self {
                seen: AtomicU64::new(0),
                next: AtomicPtr::new(null_mut()),
                queued: AtomicU64::new(0),
                ran: AtomicU64::new(0),
                busy: AtomicBool::new(false),
                lists: UnsafeCell::new(Lists { waiting: List::new(), period: 0, done: List::new() }),
            }
        }
    }

    /// # Safety
    /// The head is valid and nobody else's until its callback is called.
    pub(super) unsafe fn push(&self, head: NonNull<RcuHead>) {
        self.queued.fetch_add(1, Ordering::Relaxed);
        let mut next = self.next.load(Ordering::Relaxed);
        loop {
            // SAFETY: the caller vouches for it; nobody sees the head yet.
            unsafe { RcuHead::set_next(head, next) };
            // SeqCst so that either this finds the CPU offline afterwards, or who took it offline finds this.
            let pushed =
                self.next.compare_exchange_weak(next, head.as_ptr(), Ordering::SeqCst, Ordering::Relaxed);
            match pushed {
                Ok(_) => return,
                Err(newer) => next = newer,
            }
        }
    }

    /// All that was pushed, oldest first.
    pub(super) fn take(&self) -> List {
        if self.next.load(Ordering::Relaxed).is_null() {
            return List::new();
        }
        let newest = self.next.swap(null_mut(), Ordering::Acquire);
        // SAFETY: a chain that was pushed; the swap took it from everyone else.
        unsafe { List::of_newest(newest) }
    }

    /// The lists, unless somebody has them.
    pub(super) fn lists(&self) -> Option<Held<'_>> {
        (!self.busy.swap(true, Ordering::Acquire)).then_some(Held(self))
    }

    pub(super) fn queued(&self) -> u64 {
        self.queued.load(Ordering::Relaxed)
    }

    pub(super) fn ran(&self) -> u64 {
        self.ran.load(Ordering::Acquire)
    }

    pub(super) fn pending(&self) -> u64 {
        let ran = self.ran();
        self.queued().saturating_sub(ran)
    }

    pub(super) fn has_callbacks(&self) -> bool {
        !self.next.load(Ordering::SeqCst).is_null() || self.pending() > 0
    }
}

impl fmt::Debug for CpuState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seen, pending) = (self.seen.load(Ordering::Relaxed), self.pending());
        f.debug_struct("CpuState").field("seen", &seen).field("pending", &pending).finish_non_exhaustive()
    }
}

/// The lists of a CPU, held.
#[derive(Debug)]
pub(super) struct Held<'a>(&'a CpuState);

impl Held<'_> {
    /// Runs up to `limit` callbacks that are done; how many.
    ///
    /// # Safety
    /// The grace period of what is done is over.
    pub(super) unsafe fn run(&mut self, limit: usize) -> usize {
        let mut ran = 0;
        while ran < limit
            && let Some(head) = self.done.pop()
        {
            // SAFETY: the caller vouches for the period; it was in no other list.
            unsafe { RcuHead::call(head) };
            self.0.ran.fetch_add(1, Ordering::Release);
            ran += 1;
        }
        ran
    }
}

impl Deref for Held<'_> {
    type Target = Lists;

    fn deref(&self) -> &Lists {
        // SAFETY: `busy` is held.
        unsafe { &*self.0.lists.get() }
    }
}

impl DerefMut for Held<'_> {
    fn deref_mut(&mut self) -> &mut Lists {
        // SAFETY: `busy` is held, and this is borrowed exclusively.
        unsafe { &mut *self.0.lists.get() }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.busy.store(false, Ordering::Release);
    }
}

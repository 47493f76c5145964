//! What belongs to one CPU.

use core::fmt;
use core::ptr::{NonNull, null_mut};

use crate::RcuHead;
use crate::head::List;
use crate::sync::{AtomicBool, AtomicPtr, AtomicU64, Ordering, Padded, UnsafeCell, const_unless_loom, fence};

/// What a CPU has seen while it is offline: later than every grace period.
pub(super) const OFFLINE: u64 = u64::MAX;

/// The state of one CPU in [`Qsbr`](super::Qsbr).
pub(super) struct CpuState {
    /// The latest grace period at a quiescent state, or [`OFFLINE`]. Its own CPU writes it at quiescent states, and those who
    /// wait read it, so it shares no cache line with what deferring writes.
    pub(super) seen: Padded<AtomicU64>,
    pub(super) callbacks: Padded<Callbacks>,
}

/// The callbacks that were deferred on one CPU.
pub(super) struct Callbacks {
    /// What was deferred, newest first.
    next: AtomicPtr<RcuHead>,
    /// How many were deferred ever.
    queued: AtomicU64,
    /// How many of them were called, also if they panicked.
    ran: AtomicU64,
    /// Whether this CPU is calling callbacks, of whatever CPU.
    calling: AtomicBool,
    /// Whether somebody has the lists.
    busy: AtomicBool,
    lists: UnsafeCell<Lists>,
}

/// Callbacks that wait for a grace period, and those whose grace period is over.
#[derive(Debug)]
pub(super) struct Lists {
    pub(super) waiting: List,
    /// The grace period that `waiting` waits for.
    pub(super) period: u64,
    done: List,
}

impl Lists {
    /// The grace period of what waited is over.
    pub(super) fn finish(&mut self) {
        let Self { waiting, done, .. } = self;
        done.append(waiting);
    }
}

// SAFETY: the lists are accessed by whoever holds `busy`, and callbacks may be called by any CPU.
unsafe impl Sync for Callbacks {}
// SAFETY: the same.
unsafe impl Send for Callbacks {}

impl CpuState {
    const_unless_loom! {
        /// Online, with nothing deferred.
        #[must_use]
        pub(super) fn new() -> Self {
            Self {
                seen: Padded(AtomicU64::new(0)),
                callbacks: Padded(Callbacks {
                    next: AtomicPtr::new(null_mut()),
                    queued: AtomicU64::new(0),
                    ran: AtomicU64::new(0),
                    calling: AtomicBool::new(false),
                    busy: AtomicBool::new(false),
                    lists: UnsafeCell::new(Lists { waiting: List::new(), period: 0, done: List::new() }),
                }),
            }
        }
    }

    /// Goes offline. Returns whether callbacks are left, for others to call.
    pub(super) fn leave(&self) -> bool {
        // Release: what was read before happens before the end of any grace period.
        // A swap, as a caller that was moved away may be about to replace the number: after a swap, it finds OFFLINE.
        self.seen.0.swap(OFFLINE, Ordering::Release);
        // O in the protocol.
        fence(Ordering::SeqCst);
        self.callbacks.0.any()
    }

    pub(super) fn is_offline(&self) -> bool {
        self.seen.0.load(Ordering::Relaxed) == OFFLINE
    }

    /// Defers. Returns whether the CPU is offline, so that somebody else is to call it.
    ///
    /// # Safety
    /// The head is valid and nobody else's until its callback is called.
    pub(super) unsafe fn defer(&self, head: NonNull<RcuHead>) -> bool {
        // SAFETY: the caller vouches for the same.
        unsafe { self.callbacks.0.push(head) };
        // D in the protocol.
        fence(Ordering::SeqCst);
        self.is_offline()
    }
}

impl Callbacks {
    /// # Safety
    /// The head is valid and nobody else's until its callback is called.
    unsafe fn push(&self, head: NonNull<RcuHead>) {
        self.queued.fetch_add(1, Ordering::Relaxed);
        let mut next = self.next.load(Ordering::Relaxed);
        loop {
            // SAFETY: the caller vouches for it; nobody sees the head yet.
            unsafe { RcuHead::set_next(head, next) };
            let pushed =
                self.next.compare_exchange_weak(next, head.as_ptr(), Ordering::Release, Ordering::Relaxed);
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
        // Made only if it is held, as its drop gives up what is held.
        let free = self.busy.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
        free.is_ok().then(|| Held(self))
    }

    /// Marks that this CPU calls callbacks until the result is dropped; `None` if it does already.
    pub(super) fn calling(&self) -> Option<Calling<'_>> {
        // Nothing is ordered by it: it keeps one CPU from itself.
        if self.calling.swap(true, Ordering::Relaxed) { None } else { Some(Calling(self)) }
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

    /// Whether there are any that were not called yet. They were counted before they were pushed.
    pub(super) fn any(&self) -> bool {
        self.pending() > 0
    }
}

impl fmt::Debug for CpuState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seen, pending) = (self.seen.0.load(Ordering::Relaxed), self.callbacks.0.pending());
        f.debug_struct("CpuState").field("seen", &seen).field("pending", &pending).finish_non_exhaustive()
    }
}

/// The lists of a CPU, held.
pub(super) struct Held<'a>(&'a Callbacks);

impl Held<'_> {
    pub(super) fn with<R>(&mut self, access: impl FnOnce(&mut Lists) -> R) -> R {
        // SAFETY: `busy` is held, and this is borrowed exclusively.
        self.0.lists.with_mut(|lists| access(unsafe { &mut *lists }))
    }

    /// Calls up to `limit` callbacks that are done; how many.
    ///
    /// # Safety
    /// The grace period of what is done is over.
    pub(super) unsafe fn run(&mut self, limit: usize) -> usize {
        /// Counts a callback when it has ended, also by a panic: `barrier` waits for the count.
        struct Ran<'a>(&'a AtomicU64);

        impl Drop for Ran<'_> {
            fn drop(&mut self) {
                self.0.fetch_add(1, Ordering::Release);
            }
        }

        let mut ran = 0;
        while ran < limit
            && let Some(head) = self.with(|lists| lists.done.pop())
        {
            let _ran = Ran(&self.0.ran);
            // SAFETY: the caller vouches for the period; it was in no other list.
            unsafe { RcuHead::call(head) };
            ran += 1;
        }
        ran
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.busy.store(false, Ordering::Release);
    }
}

/// A CPU that calls callbacks.
pub(super) struct Calling<'a>(&'a Callbacks);

impl Drop for Calling<'_> {
    fn drop(&mut self) {
        self.0.calling.store(false, Ordering::Relaxed);
    }
}

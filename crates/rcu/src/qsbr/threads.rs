//! The threads of a process as CPUs.

use core::cell::Cell;
use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering, compiler_fence};
use std::sync::{Mutex, PoisonError};

use super::{Cpus, Qsbr};

/// Threads of a process as the CPUs of a [`Qsbr`]: emulators' vCPUs, workers of a pool. A thread reads after it
/// [joined](Qsbr::join), and then reports quiescent states as a CPU does. A guard is a counter of the thread's.
///
/// All functions of [`Qsbr`] that concern the calling CPU panic in a thread that has not joined: `read_lock`, `defer`,
/// `synchronize`, `barrier` with callbacks to wait for, `quiescent`, `online` and `advance`.
#[derive(Debug)]
pub struct Threads {
    /// Distinguishes it from all others, also from those that are gone. Not 0.
    id: u64,
    /// Which indexes are taken.
    taken: Mutex<Vec<bool>>,
}

/// More threads than the [`Qsbr`] has CPUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{limit} threads have joined, and there is room for no more")]
pub struct TooManyThreads {
    /// How many it has.
    pub limit: usize,
}

/// What a thread is.
#[derive(Clone, Copy)]
struct Member {
    /// The identity of what it joined, or 0.
    of: u64,
    index: usize,
}

const NOBODY: Member = Member { of: 0, index: 0 };
/// In [`Joined::offline`]: a member of nothing that has an identity.
const AWAY: Member = Member { of: u64::MAX, index: 0 };

/// What is left to do when the last guard of a thread is dropped, if its [`Joined`] was dropped before.
#[derive(Clone, Copy)]
struct Leaving {
    qsbr: NonNull<()>,
    /// Takes the thread out of it.
    leave: unsafe fn(NonNull<()>),
}

/// What a thread keeps of itself: in one place, which a section finds once.
struct Local {
    member: Cell<Member>,
    /// Sections that are alive; with [`LAST`], the thread's membership ends with the last of them.
    depth: Cell<u32>,
    leaving: Cell<Option<Leaving>>,
}

/// A bit of the depth.
const LAST: u32 = 1 << 31;

thread_local! {
    static LOCAL: Local =
        const { Local { member: Cell::new(NOBODY), depth: Cell::new(0), leaving: Cell::new(None) } };
}

/// The next identity. Never loom's: what threads are is not part of its models.
static IDS: AtomicU64 = AtomicU64::new(1);

impl Threads {
    #[inline]
    fn member(&self) -> Option<Member> {
        let member = LOCAL.with(|local| local.member.get());
        (member.of == self.id).then_some(member)
    }
}

/// A section of a thread.
#[derive(Debug)]
pub struct ThreadSection(PhantomData<*mut ()>);

impl Drop for ThreadSection {
    #[inline]
    fn drop(&mut self) {
        // A compiler barrier: nothing of the section moves past its end.
        compiler_fence(Ordering::SeqCst);
        let depth = LOCAL.with(|local| {
            let depth = local.depth.get() - 1;
            local.depth.set(depth);
            depth
        });
        if depth == LAST {
            // SAFETY: what this was the last section of, its guard still borrows: nothing but a `Qsbr` has `Threads`, and it lends them
            // to nobody, so sections are in guards only.
            unsafe { leave() };
        }
    }
}

/// Ends the membership of a thread whose [`Joined`] was dropped in a section.
///
/// # Safety
/// The section was the last, and its guard still borrows the `Qsbr`.
#[cold]
unsafe fn leave() {
    let leaving = LOCAL.with(|local| {
        local.depth.set(0);
        local.leaving.take()
    });
    if let Some(Leaving { qsbr, leave }) = leaving {
        // SAFETY: it was put there while the section was alive; the caller vouches for the rest.
        unsafe { leave(qsbr) };
    }
}

// SAFETY: a thread is a CPU that it stays on, a section stays in its thread, which counts them, and only a thread that has
// joined enters one.
unsafe impl Cpus for Threads {
    type Section = ThreadSection;

    #[inline]
    fn enter(&self) -> ThreadSection {
        LOCAL.with(|local| {
            assert!(local.member.get().of == self.id, "this thread has not joined");
            let depth = local.depth.get().wrapping_add(1);
            // Guards that were forgotten add up. Wrapping would end the sections of those that are alive.
            assert!(depth & !LAST != 0, "too many read-side critical sections");
            local.depth.set(depth);
        });
        compiler_fence(Ordering::SeqCst);
        ThreadSection(PhantomData)
    }

    #[inline]
    fn in_section(&self) -> bool {
        LOCAL.with(|local| local.depth.get() > 0)
    }

    #[inline]
    fn current(&self) -> usize {
        self.member().expect("this thread has not joined").index
    }

    fn relax(&self, _tries: u32) {
        std::thread::yield_now();
    }
}

/// A thread's membership. The thread is online until it is dropped, or until the last guard is, if that is later.
#[derive(Debug)]
pub struct Joined<'q, const CPUS: usize> {
    qsbr: &'q Qsbr<Threads, CPUS>,
    _not_send: PhantomData<*mut ()>,
}

impl<const CPUS: usize> Joined<'_, CPUS> {
    /// Runs `f`, which may block for long, without anyone waiting for this thread. Within `f` the thread is no member, so
    /// it cannot enter a section, defer or wait for a grace period, nor join anything else.
    ///
    /// # Panics
    /// Inside a read-side critical section, or as `f` does. The thread is a member again thereafter.
    pub fn offline<T>(&mut self, f: impl FnOnce() -> T) -> T {
        struct Back<'a, const CPUS: usize>(&'a Qsbr<Threads, CPUS>, Member);

        impl<const CPUS: usize> Drop for Back<'_, CPUS> {
            fn drop(&mut self) {
                LOCAL.with(|local| local.member.set(self.1));
                self.0.online();
            }
        }

        let threads = &self.qsbr.cpus;
        assert!(!threads.in_section(), "offline inside a read-side critical section");
        let member = threads.member().expect("this thread has not joined");
        LOCAL.with(|local| local.member.set(AWAY));
        // SAFETY: the thread is in no section, and enters none before it is a member again and online.
        unsafe { self.qsbr.offline(member.index) };
        let _back = Back(self.qsbr, member);
        f()
    }
}

impl<const CPUS: usize> Qsbr<Threads, CPUS> {
    /// For up to `CPUS` threads at once, none of which has joined.
    #[must_use]
    pub fn for_threads() -> Self {
        let qsbr = Self::new(Threads {
            id: IDS.fetch_add(1, Ordering::Relaxed),
            taken: Mutex::new(vec![false; CPUS]),
        });
        for cpu in 0..CPUS {
            // SAFETY: a thread enters no section before it has joined, and that takes it online.
            unsafe { qsbr.offline(cpu) };
        }
        qsbr
    }

    /// Makes the calling thread a member.
    ///
    /// # Errors
    /// `CPUS` threads are members already.
    ///
    /// # Panics
    /// The thread is a member already, of this or of another; also if it dropped its [`Joined`] and not yet its guards.
    pub fn join(&self) -> Result<Joined<'_, CPUS>, TooManyThreads> {
        assert!(LOCAL.with(|local| local.member.get().of) == NOBODY.of, "this thread has joined already");
        let mut taken = self.cpus.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let index = taken.iter().position(|taken| !taken).ok_or(TooManyThreads { limit: CPUS })?;
        taken[index] = true;
        LOCAL.with(|local| local.member.set(Member { of: self.cpus.id, index }));
        self.online();
        Ok(Joined { qsbr: self, _not_send: PhantomData })
    }
}

impl<const CPUS: usize> Qsbr<Threads, CPUS> {
    /// Ends the calling thread's membership. It is in no section.
    fn leave(&self) {
        let index = self.cpus.current();
        LOCAL.with(|local| local.member.set(NOBODY));
        // SAFETY: the thread is in no section, and enters none without being a member.
        unsafe { self.offline(index) };
        self.cpus.taken.lock().unwrap_or_else(PoisonError::into_inner)[index] = false;
    }

    /// # Safety
    /// The pointer comes from a reference to `Self` that is still valid. The thread is a member and in no section.
    unsafe fn leave_erased(qsbr: NonNull<()>) {
        // SAFETY: the caller vouches for it.
        unsafe { qsbr.cast::<Self>().as_ref() }.leave();
    }
}

impl<const CPUS: usize> Drop for Joined<'_, CPUS> {
    fn drop(&mut self) {
        if self.qsbr.cpus.in_section() {
            let qsbr = NonNull::from(self.qsbr).cast();
            let leaving = Leaving { qsbr, leave: Qsbr::<Threads, CPUS>::leave_erased };
            LOCAL.with(|local| {
                local.leaving.set(Some(leaving));
                local.depth.set(local.depth.get() | LAST);
            });
        } else {
            self.qsbr.leave();
        }
    }
}

#[cfg(all(test, not(loom)))]
#[test]
#[should_panic = "too many read-side critical sections"]
fn sections_that_are_forgotten_are_counted_up_to_a_limit() {
    let qsbr = Qsbr::<Threads, 1>::for_threads();
    let _joined = core::mem::ManuallyDrop::new(qsbr.join());
    // As 2^31-1 guards that were forgotten leave it.
    LOCAL.with(|local| local.depth.set(LAST - 1));
    let _guard = qsbr.cpus.enter();
}

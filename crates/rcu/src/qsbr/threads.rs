//! The threads of a process as CPUs.

use core::cell::Cell;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicU64, Ordering, compiler_fence};
use std::sync::{Mutex, PoisonError};

use super::{Cpus, Qsbr};

/// Threads of a process as the CPUs of a [`Qsbr`]: emulators' vCPUs, workers of a pool. A thread reads after it
/// [joined](Qsbr::join), and then reports quiescent states as a CPU does. A guard is a counter of the thread's.
#[derive(Debug)]
pub struct Threads {
    /// Tells it from all others, also from those that are gone. Not 0.
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

thread_local! {
    static MEMBER: Cell<Member> = const { Cell::new(NOBODY) };
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// The next identity. Never loom's: what threads are is not part of its models.
static IDS: AtomicU64 = AtomicU64::new(1);

impl Threads {
    fn member(&self) -> Option<Member> {
        let member = MEMBER.get();
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
        DEPTH.set(DEPTH.get() - 1);
    }
}

// SAFETY: a thread is a CPU that it stays on, a section stays in its thread, DEPTH counts them, and only a thread that has
// joined enters one.
unsafe impl Cpus for Threads {
    type Section = ThreadSection;

    #[inline]
    fn enter(&self) -> ThreadSection {
        assert!(self.member().is_some(), "this thread has not joined");
        DEPTH.set(DEPTH.get() + 1);
        compiler_fence(Ordering::SeqCst);
        ThreadSection(PhantomData)
    }

    #[inline]
    fn in_section(&self) -> bool {
        DEPTH.get() > 0
    }

    #[inline]
    fn current(&self) -> usize {
        self.member().map_or(usize::MAX, |member| member.index)
    }

    fn relax(&self, _tries: u32) {
        std::thread::yield_now();
    }
}

/// A thread's membership. The thread is online until it is dropped.
#[derive(Debug)]
pub struct Joined<'q, const CPUS: usize> {
    qsbr: &'q Qsbr<Threads, CPUS>,
    _not_send: PhantomData<*mut ()>,
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
    /// The thread is a member already, of this or of another.
    pub fn join(&self) -> Result<Joined<'_, CPUS>, TooManyThreads> {
        assert!(MEMBER.get().of == NOBODY.of, "this thread has joined already");
        let mut taken = self.cpus.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let index = taken.iter().position(|taken| !taken).ok_or(TooManyThreads { limit: CPUS })?;
        taken[index] = true;
        MEMBER.set(Member { of: self.cpus.id, index });
        self.online();
        Ok(Joined { qsbr: self, _not_send: PhantomData })
    }
}

impl<const CPUS: usize> Drop for Joined<'_, CPUS> {
    fn drop(&mut self) {
        let threads = &self.qsbr.cpus;
        // A guard can outlive this value: then the thread stays a member, and nothing is freed any more.
        if threads.in_section() {
            return;
        }
        let index = threads.current();
        // SAFETY: the thread is in no section, and without being a member enters none.
        unsafe { self.qsbr.offline(index) };
        MEMBER.set(NOBODY);
        threads.taken.lock().unwrap_or_else(PoisonError::into_inner)[index] = false;
    }
}

//! RCU by quiescent states.

mod state;
#[cfg(feature = "std")]
mod threads;

#[cfg(feature = "std")]
pub use threads::{Joined, Threads, TooManyThreads};

use core::fmt;
use core::marker::PhantomData;
use core::ptr::NonNull;

use crate::sync::{AtomicBool, AtomicU64, Ordering, const_unless_loom, fence};
use crate::{Callback, Rcu, RcuHead, Reclaim};
use state::{CpuState, OFFLINE};

/// What [`Qsbr`] asks of a kernel.
///
/// # Safety
/// - From [`enter`](Self::enter) until the section is dropped, the code that entered stays on its CPU: it is neither
///   preempted in favour of other code that reports quiescent states, nor does it sleep or migrate. In a preemptible kernel
///   entering turns preemption off.
/// - [`in_section`](Self::in_section) is true whenever a section of this CPU is alive, also for an interrupt that
///   came while one was. A counter of this CPU does it, which `enter` increments and dropping the section decrements. Both
///   must be compiler barriers, as the increment of an atomic with `SeqCst` ordering and [`compiler_fence`] are.
/// - [`current`](Self::current) is the index of the CPU that runs the caller.
///
/// [`compiler_fence`]: core::sync::atomic::compiler_fence
pub unsafe trait Cpus {
    /// Keeps the CPU in a read-side critical section until it is dropped.
    type Section;

    /// Enters a section on this CPU. Sections may be nested.
    fn enter(&self) -> Self::Section;

    /// Whether this CPU is in a section.
    fn in_section(&self) -> bool;

    /// The index of this CPU, from 0. [`Qsbr`] panics if it is not less than the number of its CPUs.
    fn current(&self) -> usize;

    /// Called between two looks at a grace period that is waited for, `tries` counting from 0. A kernel lets other threads
    /// run here. The other CPUs must get on meanwhile.
    fn relax(&self, tries: u32) {
        let _ = tries;
        core::hint::spin_loop();
    }
}

/// RCU by quiescent states (QSBR), for up to `CPUS` CPUs. It allocates nothing, so it can be a `static`.
///
/// Readers do no more than [`Cpus::enter`] does. In return every CPU reports quiescent states: it calls
/// [`quiescent`](Self::quiescent) again and again, as when it switches threads, from the timer tick or in its idle loop, and
/// [`advance`](Self::advance) somewhere, which runs the callbacks whose grace period is over. A CPU that would not report
/// for long, since it sleeps or is switched off, goes [`offline`](Self::offline) and comes back [`online`](Self::online).
///
/// All CPUs are online at first. Those that do not run yet are taken offline before anything is deferred.
///
/// # Protocol
///
/// *Periods* are numbered. `number` is that of the latest that began; to begin one is to increment it. Each CPU
/// has a number of its own, *seen*: at a quiescent state it copies the latest there; while it is offline, *seen* is the
/// largest value there is. **Period n is over when every CPU's *seen* is n or more.**
///
/// Callbacks go through three lists of the CPU they were deferred on. `next` is a lock-free stack that anyone pushes to
/// and one takes whole, so `defer` can be called anywhere, also by interrupts. `waiting` is what was taken from it,
/// together with the period that began thereafter. When that is over it becomes `done`, and is called. The last two belong
/// to whoever holds `busy`, which is only ever tried. Usually that is the CPU itself; if it is offline, another CPU
/// advances its lists.
///
/// # Memory order
///
/// Let U be the store that takes an object out of its structure, n a period that begins after U, and R any load under a
/// guard. To show: either R happens before the callback, or R sees U.
///
/// - U happens before the increment to n: in program order, or through `next`, which is pushed to with release and taken
///   with acquire. Increments are acquire and release, so they order all that began periods before.
/// - *The CPU reports a quiescent state.* It loads the number with acquire and stores it to *seen* with release. The
///   callback's CPU loads *seen* with acquire and finds n or more. If R came before that quiescent state, it happens
///   before the store to *seen*, so before the callback. If R came later, the CPU had loaded n or more, which happens after
///   U, so R sees U. No stronger order is needed, and R's guard needs none at all, as it ends in program order before a
///   quiescent state of its own CPU.
/// - *The CPU is found offline.* It stored that with release, so all R before that happen before the callback. Those
///   after it comes online are told apart by two fences of `SeqCst`: F between the increment to n and the load of *seen*,
///   and G between the store to *seen* and R. If F comes first, R sees U. If G comes first, the load finds the CPU
///   online, and the period is not over before it reports n, as above.
/// - A CPU that finds a period over stores the fact in `completed` with release, for others to load with acquire. It may
///   stand for smaller periods of other CPUs too, since their increments happen before its own, so before its fence.
///
/// `tests/loom.rs` runs these cases in every interleaving that loom makes, `tests/model.rs` compares with a naive model.
pub struct Qsbr<C: Cpus, const CPUS: usize> {
    cpus: C,
    states: [CpuState; CPUS],
    /// The latest period that began.
    number: Padded<AtomicU64>,
    /// Some period that is known to be over.
    completed: Padded<AtomicU64>,
    /// Whether a CPU that is offline may have callbacks.
    adopt: AtomicBool,
}

/// Alone on its cache lines (two, since they are prefetched in pairs).
#[repr(align(128))]
struct Padded<T>(T);

/// A read-side critical section of [`Qsbr`]. It stays on its CPU.
pub struct QsbrGuard<'a, C: Cpus> {
    _section: C::Section,
    _qsbr: PhantomData<&'a C>,
    _not_send: PhantomData<*mut ()>,
}

impl<C: Cpus> fmt::Debug for QsbrGuard<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QsbrGuard").finish_non_exhaustive()
    }
}

impl<C: Cpus, const CPUS: usize> Qsbr<C, CPUS> {
    const_unless_loom! {
        /// With all CPUs online and nothing deferred.
        #[must_use]
        pub fn new(cpus: C) -> Self {
            #[cfg(not(loom))]
            let states = [const { CpuState::new() }; CPUS];
            #[cfg(loom)]
            let states = core::array::from_fn(|_| CpuState::new());
            Self {
                cpus,
                states,
                number: Padded(AtomicU64::new(0)),
                completed: Padded(AtomicU64::new(0)),
                adopt: AtomicBool::new(false),
            }
        }
    }

    /// The caller's half.
    #[must_use]
    pub const fn cpus(&self) -> &C {
        &self.cpus
    }

    fn current(&self) -> &CpuState {
        &self.states[self.cpus.current()]
    }

    /// Reports that this CPU is in no read-side critical section. Returns `false`, and reports nothing, if it is in one: a
    /// timer tick may call this whatever it interrupted.
    ///
    /// Costs two loads unless a period began since the last time.
    #[inline]
    pub fn quiescent(&self) -> bool {
        if self.cpus.in_section() {
            return false;
        }
        let state = self.current();
        let seen = state.seen.load(Ordering::Relaxed);
        let number = self.number.0.load(Ordering::Acquire);
        if seen < number {
            // Fails if an interrupt did it, or if the caller was moved meanwhile and the CPU went offline.
            let _ = state.seen.compare_exchange(seen, number, Ordering::Release, Ordering::Relaxed);
        }
        true
    }

    /// Begins an extended quiescent state of the CPU with this index: nothing waits for it any more. Its callbacks are
    /// left to other CPUs.
    ///
    /// # Safety
    /// That CPU is in no read-side critical section, and enters none before it called [`online`](Self::online): it is about
    /// to sleep or to be switched off, it runs a user's program, or it never ran.
    ///
    /// # Panics
    /// There is no such CPU.
    pub unsafe fn offline(&self, cpu: usize) {
        let state = &self.states[cpu];
        state.seen.store(OFFLINE, Ordering::SeqCst);
        if state.has_callbacks() {
            self.adopt.store(true, Ordering::Release);
        }
    }

    /// Ends the extended quiescent state of this CPU, if it is in one. From now on it reports quiescent states.
    pub fn online(&self) {
        let state = self.current();
        if state.seen.load(Ordering::Relaxed) == OFFLINE {
            state.seen.store(self.number.0.load(Ordering::Acquire), Ordering::Release);
            // G in the protocol.
            fence(Ordering::SeqCst);
        }
    }

    /// Begins a period, and returns its number.
    fn begin(&self) -> u64 {
        self.number.0.fetch_add(1, Ordering::AcqRel) + 1
    }

    fn is_over(&self, period: u64) -> bool {
        if self.completed.0.load(Ordering::Acquire) >= period {
            return true;
        }
        // F in the protocol.
        fence(Ordering::SeqCst);
        let over = self.states.iter().all(|state| state.seen.load(Ordering::Acquire) >= period);
        if over {
            self.completed.0.fetch_max(period, Ordering::AcqRel);
        }
        over
    }

    /// Runs up to `limit` callbacks of this CPU whose grace period is over, oldest first, and has a grace period begin for
    /// those that were deferred since. Returns how many it ran. Also cares for CPUs that are offline.
    ///
    /// Call it again and again, outside of locks that callbacks take. In a callback it does nothing.
    pub fn advance(&self, limit: usize) -> usize {
        let mut ran = self.advance_of(self.current(), limit);
        if self.adopt.load(Ordering::Relaxed) && self.adopt.swap(false, Ordering::AcqRel) {
            let mut left = false;
            for state in self.states.iter().filter(|state| state.seen.load(Ordering::SeqCst) == OFFLINE) {
                ran += self.advance_of(state, limit - ran);
                left |= state.has_callbacks();
            }
            if left {
                self.adopt.store(true, Ordering::Release);
            }
        }
        ran
    }

    fn advance_of(&self, state: &CpuState, limit: usize) -> usize {
        let Some(mut lists) = state.lists() else { return 0 };
        if !lists.waiting.is_empty() && self.is_over(lists.period) {
            lists.finish();
        }
        if lists.waiting.is_empty() {
            lists.waiting = state.take();
            if !lists.waiting.is_empty() {
                lists.period = self.begin();
            }
        }
        // SAFETY: in `done` is what was deferred and whose period is over.
        unsafe { lists.run(limit) }
    }

    /// Callbacks that were deferred and did not run yet, of all CPUs. While others defer it is only a hint.
    #[must_use]
    pub fn pending(&self) -> u64 {
        self.states.iter().map(CpuState::pending).sum()
    }

    /// Waits until all callbacks that were deferred before have run, by whatever CPU. For the end of what they need, such
    /// as the code of a module. (Linux: `rcu_barrier`.)
    ///
    /// # Panics
    /// Inside a read-side critical section. Inside a callback it never returns.
    pub fn barrier(&self) {
        assert!(!self.cpus.in_section(), "barrier inside a read-side critical section");
        let mut tries = 0;
        for state in &self.states {
            let queued = state.queued();
            // Callbacks of a CPU run in the order they were deferred in.
            while state.ran() < queued {
                self.quiescent();
                if self.advance_of(state, usize::MAX) == 0 {
                    self.cpus.relax(tries);
                    tries = tries.saturating_add(1);
                }
            }
        }
    }
}

impl<C: Cpus, const CPUS: usize> Rcu for Qsbr<C, CPUS> {
    type Guard<'a>
        = QsbrGuard<'a, C>
    where
        Self: 'a;

    #[inline]
    fn read_lock(&self) -> QsbrGuard<'_, C> {
        let section = self.cpus.enter();
        debug_assert_ne!(
            self.current().seen.load(Ordering::Relaxed),
            OFFLINE,
            "a read-side critical section on a CPU that is offline"
        );
        QsbrGuard { _section: section, _qsbr: PhantomData, _not_send: PhantomData }
    }
}

// SAFETY: proved at the type.
unsafe impl<C: Cpus, const CPUS: usize> Reclaim for Qsbr<C, CPUS> {
    unsafe fn defer(&self, head: NonNull<RcuHead>, callback: Callback) {
        let state = self.current();
        // SAFETY: the caller vouches that the head is valid and not in use, until the callback is called.
        unsafe {
            RcuHead::prepare(head, callback);
            state.push(head);
        }
        if state.seen.load(Ordering::SeqCst) == OFFLINE {
            self.adopt.store(true, Ordering::Release);
        }
    }

    fn synchronize(&self) {
        assert!(!self.cpus.in_section(), "synchronize inside a read-side critical section");
        let period = self.begin();
        let mut tries = 0;
        // Others may wait for this CPU meanwhile, and the caller may have been moved to another.
        while !(self.quiescent() && self.is_over(period)) {
            self.cpus.relax(tries);
            tries = tries.saturating_add(1);
        }
    }
}

impl<C: Cpus, const CPUS: usize> Drop for Qsbr<C, CPUS> {
    /// Runs all callbacks that are left: guards borrow what is dropped, so none is alive.
    fn drop(&mut self) {
        while self.pending() > 0 {
            for state in &self.states {
                let Some(mut lists) = state.lists() else { return };
                lists.finish();
                lists.waiting = state.take();
                lists.finish();
                // SAFETY: what was deferred, and no section is alive.
                unsafe { lists.run(usize::MAX) };
            }
        }
    }
}

impl<C: Cpus, const CPUS: usize> fmt::Debug for Qsbr<C, CPUS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Qsbr")
            .field("number", &self.number.0)
            .field("completed", &self.completed.0)
            .field("pending", &self.pending())
            .finish_non_exhaustive()
    }
}

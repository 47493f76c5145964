//! RCU by quiescent states.

mod state;
#[cfg(feature = "std")]
mod threads;

#[cfg(feature = "std")]
pub use threads::{Joined, Threads, TooManyThreads};

use core::fmt;
use core::marker::PhantomData;
use core::ptr::NonNull;

use crate::sync::{AtomicBool, AtomicU64, Ordering, Padded, const_unless_loom, fence};
use crate::{Callback, Rcu, RcuHead, Reclaim};
use state::{Callbacks, CpuState};

/// What [`Qsbr`] asks of a kernel.
///
/// # Safety
/// - From [`enter`](Self::enter) until the section is dropped, the code that entered stays on its CPU: it is neither
///   preempted in favour of other code that reports quiescent states, nor does it sleep or migrate. In a preemptible kernel
///   entering turns preemption off.
/// - A section is dropped on the CPU that entered it: its type is not `Send`, or no safe code of another CPU gets hold of it. Who drops
///   it elsewhere would end a section of that CPU, and its reader would be waited for no more.
/// - [`in_section`](Self::in_section) is true whenever a section of this CPU is alive, also for an interrupt that
///   came while one was, and however many sections were entered and never dropped: safe code may [forget] guards, so a
///   counter must not wrap. A counter of this CPU does it, which `enter` increments, panicking on overflow, and dropping the
///   section decrements. Only its own CPU changes it, so it needs no atomic operation; it needs a [`compiler_fence`] after
///   the increment and before the decrement, so that nothing of the section is moved out of it.
/// - [`current`](Self::current) is the index of the CPU that runs the caller. It may be out of date when it is returned,
///   unless the caller is in a section or cannot migrate for another reason.
///
/// [forget]: core::mem::forget
///
/// [`compiler_fence`]: core::sync::atomic::compiler_fence
pub unsafe trait Cpus {
    /// Keeps the CPU in a read-side critical section until it is dropped.
    type Section;

    /// Enters a section on this CPU. Sections may be nested.
    fn enter(&self) -> Self::Section;

    /// Whether this CPU is in a section.
    fn in_section(&self) -> bool;

    /// The index of this CPU, from 0. All functions of [`Qsbr`] that concern this CPU panic if it is not less than the number
    /// of CPUs.
    ///
    /// # Panics
    /// Implementations may panic where the caller is no CPU.
    fn current(&self) -> usize;

    /// Called in a loop by whoever waits for a grace period, after each time it was found not over yet. `tries` counts
    /// these calls from 0. A kernel lets other threads run here; the other CPUs must be able to reach quiescent states
    /// meanwhile.
    fn relax(&self, tries: u32) {
        let _ = tries;
        core::hint::spin_loop();
    }
}

/// RCU by quiescent states (QSBR), for up to `CPUS` CPUs. It allocates nothing, so it can be a `static`.
///
/// Readers do no more than [`Cpus::enter`] does. In return every CPU reports quiescent states: it calls
/// [`quiescent`](Self::quiescent) at every context switch, in its timer tick or in its idle loop. It also calls
/// [`advance`](Self::advance) now and then, which calls the callbacks whose grace period is over. A CPU that would not
/// report for long, since it sleeps or is switched off, goes [`offline`](Self::offline) and comes back
/// [`online`](Self::online).
///
/// All CPUs are online at first. Those that do not run yet are taken offline before anything is deferred.
///
/// # Protocol
///
/// Grace periods are numbered. `sequence`, the grace-period sequence number, is that of the latest that began; to begin one
/// is to increment it. Each CPU has a number of its own, *seen*: at a quiescent state it copies `sequence` there; while it
/// is offline, *seen* is the largest value there is. **Grace period n is over when every CPU's *seen* is n or more.**
///
/// The callbacks that are deferred on a CPU go through three lists of that CPU. `next` is a lock-free stack that anyone
/// pushes to and one takes whole, so `defer` can be called anywhere, also by interrupts. `waiting` is what was taken from
/// it, together with the grace period that began thereafter. When that is over it becomes `done`, and is called. The last
/// two belong to whoever holds `busy`, which is only ever tried. Usually that is the CPU itself; if it is offline, another
/// CPU advances its lists.
///
/// # Memory order
///
/// Let U be the store that takes an object out of its structure, n a grace period that begins after U, and R any load
/// under a guard. To show: either R happens before the callback, or R sees U.
///
/// - U happens before the increment to n: in program order, or through `next`, which is pushed to with release and taken
///   with acquire. Increments are acquire and release, so they order all that began grace periods before.
/// - *The CPU reports a quiescent state.* The caller loads `sequence` with acquire, and finds m. **Only then** it looks
///   whether it is in a section, and on which CPU it is; this is the quiescent state. At last it stores m to that CPU's
///   *seen* with release, maybe from another CPU, if it was preempted. The callback's CPU loads *seen* with acquire and
///   finds m, which is n or more. If R came before the quiescent state, it happens before the store to *seen*, so before
///   the callback. If R came later, `sequence` had been loaded by then with n or more, which happens after U, so R sees U.
///   (If the load came last, readers could enter on that CPU, find the object, and be passed over by the later m.) No
///   stronger order is needed, and R's guard needs none at all, as its ends are in program order with the quiescent states
///   of its CPU.
/// - *The CPU is found offline.* It stored that with release, so all R before that happen before the callback. Those
///   after it comes online are distinguished by two fences of `SeqCst`: F between the increment to n and the load of *seen*,
///   and G between the store to *seen* and R. If F comes first, R sees U. If G comes first, the load finds the CPU
///   online, and the grace period is not over before it reports n, as above. An interrupt can come between the store and
///   G: so `online` fences also when it finds the CPU online, and interrupts that read call it. G also orders the load of
///   `sequence` whose value `online` stores: together they are an acquire.
/// - A CPU that finds a grace period over stores the fact in `completed` with release, for others to load with acquire. It
///   may stand for smaller ones of other CPUs too, since their increments happen before its own, so before its fence.
/// - *No callback is forgotten.* Who defers pushes, fences (D), and looks whether the CPU is offline. Who takes the CPU
///   offline stores that, fences (O), and looks whether there are callbacks. Of two fences of `SeqCst` one comes first, so
///   one of both finds what the other did, and sets `adopt`, for other CPUs to look.
///
/// `tests/loom` runs these cases under loom, within the bounds it states; `tests/model.rs` compares with a naive model.
pub struct Qsbr<C: Cpus, const CPUS: usize> {
    cpus: C,
    states: [CpuState; CPUS],
    /// The grace-period sequence number: that of the latest that began.
    sequence: Padded<AtomicU64>,
    /// Some grace period that is known to be over.
    completed: Padded<AtomicU64>,
    /// Whether a CPU that is offline may have callbacks.
    adopt: AtomicBool,
}

/// A read-side critical section of [`Qsbr`]. It stays on its CPU.
pub struct QsbrGuard<'a, C: Cpus> {
    _section: C::Section,
    _qsbr: PhantomData<&'a C>,
    _not_send: PhantomData<*mut ()>,
}

impl<C: Cpus> Drop for QsbrGuard<'_, C> {
    /// Drops the section. That this is written out has the compiler refuse to drop the [`Qsbr`] before the guard.
    #[inline]
    fn drop(&mut self) {}
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
                sequence: Padded(AtomicU64::new(0)),
                completed: Padded(AtomicU64::new(0)),
                adopt: AtomicBool::new(false),
            }
        }
    }

    /// The state of the CPU with this index. Checked in all builds: nobody waits for readers on a CPU without one.
    #[inline]
    fn state(&self, cpu: usize) -> &CpuState {
        let Some(state) = self.states.get(cpu) else { no_such_cpu(cpu, CPUS) };
        state
    }

    #[inline]
    fn current(&self) -> &CpuState {
        self.state(self.cpus.current())
    }

    /// Reports that this CPU is in no read-side critical section. Returns `false`, and reports nothing, if it is in one: a
    /// timer tick may call this whatever it interrupted. The caller may be preempted and moved to another CPU meanwhile.
    ///
    /// Costs two loads unless a grace period began since the last time.
    ///
    /// # Panics
    /// [`Cpus::current`] panics or is out of range.
    #[inline]
    pub fn quiescent(&self) -> bool {
        // Before the two questions below: what is reported must have been known at the quiescent state. See the protocol.
        let sequence = self.sequence.0.load(Ordering::Acquire);
        if self.cpus.in_section() {
            return false;
        }
        let state = self.current();
        let seen = state.seen.0.load(Ordering::Relaxed);
        if seen < sequence {
            // Fails if an interrupt did it, or if the caller was moved meanwhile and the CPU went offline.
            let _ = state.seen.0.compare_exchange(seen, sequence, Ordering::Release, Ordering::Relaxed);
        }
        true
    }

    /// Begins an extended quiescent state of the CPU with this index: nothing waits for it any more. Its callbacks are
    /// left to other CPUs.
    ///
    /// # Safety
    /// That CPU is in no read-side critical section, and enters none before [`online`](Self::online), called on that CPU,
    /// has returned. This concerns its interrupts too. So it is about to sleep or to be switched off, it runs a user's
    /// program, or it never ran.
    ///
    /// # Panics
    /// There is no such CPU.
    pub unsafe fn offline(&self, cpu: usize) {
        if self.state(cpu).leave() {
            self.adopt.store(true, Ordering::Release);
        }
    }

    /// Ends the extended quiescent state of this CPU, and returns whether it was in one. From now on it reports quiescent
    /// states. The caller stays on its CPU until this has returned: with preemption off, or in the idle loop.
    ///
    /// An interrupt that enters sections and may come while its CPU is offline, or while it is in this call, calls this first.
    /// If it returned `true`, the interrupt goes [`offline`](Self::offline) again at its end. (Linux: `ct_irq_enter`.)
    ///
    /// Costs a full barrier, also if the CPU is online.
    ///
    /// # Panics
    /// [`Cpus::current`] panics or is out of range.
    pub fn online(&self) -> bool {
        let state = self.current();
        let was_offline = state.is_offline();
        if was_offline {
            state.seen.0.store(self.sequence.0.load(Ordering::Relaxed), Ordering::Release);
        }
        // G in the protocol. This may be an interrupt that came between the store above and this fence.
        fence(Ordering::SeqCst);
        was_offline
    }

    /// Begins a grace period, and returns its number.
    fn begin(&self) -> u64 {
        self.sequence.0.fetch_add(1, Ordering::AcqRel) + 1
    }

    fn is_over(&self, period: u64) -> bool {
        if self.completed.0.load(Ordering::Acquire) >= period {
            return true;
        }
        // F in the protocol.
        fence(Ordering::SeqCst);
        let over = self.states.iter().all(|state| state.seen.0.load(Ordering::Acquire) >= period);
        if over {
            self.completed.0.fetch_max(period, Ordering::AcqRel);
        }
        over
    }

    /// Calls up to `limit` callbacks of this CPU whose grace period is over, oldest first, and has a grace period begin for
    /// those that were deferred since. Returns how many it called. It also does so for CPUs that are offline.
    ///
    /// Call it again and again, without locks that callbacks take. While this CPU is calling callbacks it returns 0, so
    /// callbacks do not nest: in a callback, in an interrupt that came in one, and in a thread that runs where another was
    /// preempted in one. (Only a callback that was moved to another CPU may call others in this way.)
    ///
    /// # Panics
    /// [`Cpus::current`] panics or is out of range. If a callback panics, the others are called another time.
    pub fn advance(&self, limit: usize) -> usize {
        let own = &self.current().callbacks.0;
        let Some(_calling) = own.calling() else { return 0 };
        let mut ran = self.advance_of(own, limit);
        if self.adopt.load(Ordering::Relaxed) && self.adopt.swap(false, Ordering::AcqRel) {
            let mut left = Left { adopt: &self.adopt, any: true };
            let mut any = false;
            for state in self.states.iter().filter(|state| state.is_offline()) {
                ran += self.advance_of(&state.callbacks.0, limit - ran);
                any |= state.callbacks.0.any();
            }
            left.any = any;
        }
        ran
    }

    /// In [`Callbacks::calling`].
    fn advance_of(&self, callbacks: &Callbacks, limit: usize) -> usize {
        let Some(mut held) = callbacks.lists() else { return 0 };
        held.with(|lists| {
            if !lists.waiting.is_empty() && self.is_over(lists.period) {
                lists.finish();
            }
            if lists.waiting.is_empty() {
                lists.waiting = callbacks.take();
                if !lists.waiting.is_empty() {
                    lists.period = self.begin();
                }
            }
        });
        // SAFETY: in `done` is what was deferred and whose grace period is over.
        unsafe { held.run(limit) }
    }

    /// How many callbacks were deferred and not called yet, of all CPUs. While others defer it is only a hint.
    #[must_use]
    pub fn pending(&self) -> u64 {
        self.states.iter().map(|state| state.callbacks.0.pending()).sum()
    }

    /// Waits until all callbacks that were deferred before have been called, by whatever CPU. For the end of what they need,
    /// such as the code of a module. (Linux: `rcu_barrier`.)
    ///
    /// # Locks
    /// It calls callbacks of all CPUs itself, and waits for those that others are calling: the caller holds no lock that any
    /// callback takes.
    ///
    /// # Panics
    /// Inside a read-side critical section; or if [`Cpus::current`] panics or is out of range; or if a callback does that is
    /// called here. Inside a callback it never returns.
    pub fn barrier(&self) {
        assert!(!self.cpus.in_section(), "barrier inside a read-side critical section");
        let mut tries = 0;
        for callbacks in self.states.iter().map(|state| &state.callbacks.0) {
            let queued = callbacks.queued();
            // Callbacks of a CPU run in the order they were deferred in.
            while callbacks.ran() < queued {
                self.quiescent();
                let calling = self.current().callbacks.0.calling();
                let ran = calling.as_ref().map_or(0, |_| self.advance_of(callbacks, usize::MAX));
                drop(calling);
                if ran == 0 {
                    self.cpus.relax(tries);
                    tries = tries.saturating_add(1);
                }
            }
        }
    }
}

/// Sets `adopt` again when it is dropped, also by a callback that panics, if callbacks of CPUs that are offline are left.
struct Left<'a> {
    adopt: &'a AtomicBool,
    any: bool,
}

impl Drop for Left<'_> {
    fn drop(&mut self) {
        if self.any {
            self.adopt.store(true, Ordering::Release);
        }
    }
}

#[cold]
#[track_caller]
fn no_such_cpu(cpu: usize, cpus: usize) -> ! {
    panic!("CPU {cpu}, but this instance has only {cpus}");
}

impl<C: Cpus, const CPUS: usize> Rcu for Qsbr<C, CPUS> {
    type Guard<'a>
        = QsbrGuard<'a, C>
    where
        Self: 'a;

    #[inline]
    fn read_lock(&self) -> QsbrGuard<'_, C> {
        let section = self.cpus.enter();
        let state = self.current();
        debug_assert!(!state.is_offline(), "a read-side critical section on a CPU that is offline");
        QsbrGuard { _section: section, _qsbr: PhantomData, _not_send: PhantomData }
    }
}

// SAFETY: proved at the type.
unsafe impl<C: Cpus, const CPUS: usize> Reclaim for Qsbr<C, CPUS> {
    unsafe fn defer(&self, head: NonNull<RcuHead>, callback: Callback) {
        let state = self.current();
        // SAFETY: the caller vouches that the head is valid and not in use, until the callback is called.
        let offline = unsafe {
            RcuHead::prepare(head, callback);
            state.defer(head)
        };
        if offline {
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
    /// Calls all callbacks that are left: guards borrow what is dropped, so none is alive. If one panics, those after it are
    /// not called.
    fn drop(&mut self) {
        loop {
            let mut ran = 0;
            for callbacks in self.states.iter().map(|state| &state.callbacks.0) {
                let Some(mut held) = callbacks.lists() else { continue };
                held.with(|lists| {
                    lists.finish();
                    lists.waiting = callbacks.take();
                    lists.finish();
                });
                // SAFETY: what was deferred, and no section is alive.
                ran += unsafe { held.run(usize::MAX) };
            }
            // Callbacks may defer others.
            if ran == 0 {
                return;
            }
        }
    }
}

impl<C: Cpus, const CPUS: usize> fmt::Debug for Qsbr<C, CPUS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Qsbr")
            .field("sequence", &self.sequence.0)
            .field("completed", &self.completed.0)
            .field("pending", &self.pending())
            .finish_non_exhaustive()
    }
}

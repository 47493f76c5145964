//! What all processes have in common: the system, files, threads that wait for a processor, and what is counted.

use super::platform::{Files, RCU};
use super::process::{Next, Process, Thread};
use crate::mmu::hardware::Hardware;
use crate::mmu::tlb;
use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use isotherm_mm::{Error, System};
use isotherm_page::Frame;
use isotherm_pagetable::Format;
use spin::Mutex;

/// So often a fault that finds no memory is tried again later, in all: who has memory ends.
const PATIENCE: u64 = 10_000;
/// How often room is made for a call, and for how many pages: for as many tables as a fork may need.
const ROOM_TRIES: usize = 16;
const ROOM: u64 = 64;
/// Callbacks of RCU that are called between two turns.
const CALLBACKS: usize = 64;

/// See the module.
pub struct World<F: Format + 'static> {
    queue: Mutex<VecDeque<Thread<F>>>,
    watched: Mutex<Vec<Weak<Process<F>>>>,
    /// Files that programs map.
    pub files: Arc<Files<F>>,
    /// Memory as all spaces use it.
    pub system: System<'static, F, Hardware>,
    /// The page of zeros.
    pub zero: Frame,
    alive: AtomicU64,
    numbers: AtomicU64,
    waited: AtomicU64,
    failed: Mutex<Option<String>>,
    /// Threads that ran.
    pub threads: AtomicU64,
    /// Page faults of programs.
    pub faults: AtomicU64,
    /// Forks.
    pub forks: AtomicU64,
    /// Processes that were replaced.
    pub execs: AtomicU64,
}

impl<F: Format + 'static> World<F> {
    /// Without processes.
    pub fn new(system: System<'static, F, Hardware>, zero: Frame) -> Self {
        let count = || AtomicU64::new(0);
        Self {
            queue: Mutex::new(VecDeque::new()),
            watched: Mutex::new(Vec::new()),
            files: Arc::new(Files::new()),
            system,
            zero,
            alive: count(),
            numbers: count(),
            waited: count(),
            failed: Mutex::new(None),
            threads: count(),
            faults: count(),
            forks: count(),
            execs: count(),
        }
    }

    /// A number for a process, from 1 on.
    pub fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// A process that the monitor is to watch.
    pub fn watch(&self, process: &Arc<Process<F>>) {
        self.watched.lock().push(Arc::downgrade(process));
    }

    /// Those that came since the last time.
    pub fn take_new(&self) -> Vec<Weak<Process<F>>> {
        core::mem::take(&mut *self.watched.lock())
    }

    /// A thread that waits for a processor.
    pub fn add(&self, thread: Thread<F>) {
        self.threads.fetch_add(1, Ordering::Relaxed);
        self.alive.fetch_add(1, Ordering::Release);
        self.queue.lock().push_back(thread);
    }

    /// The first thing that went wrong ends the run.
    pub fn fail(&self, what: fmt::Arguments<'_>) {
        self.failed.lock().get_or_insert_with(|| alloc::fmt::format(what));
    }

    /// What went wrong.
    pub fn failure(&self) -> Option<String> {
        self.failed.lock().clone()
    }

    /// Whether a fault without memory may be tried again.
    pub fn is_patient(&self) -> bool {
        self.waited.fetch_add(1, Ordering::Relaxed) < PATIENCE
    }

    /// Does something that may find no memory, and then again once some is reclaimed: what a kernel does for its calls, as faults do it
    /// for themselves.
    ///
    /// # Errors
    /// Other errors, and that nothing more can be reclaimed.
    pub fn with_room<R>(&self, act: impl Fn() -> Result<R, Error>) -> Result<R, Error> {
        for _ in 0..ROOM_TRIES {
            match act() {
                Err(Error::NoMemory) => {
                    self.system.reclaim(&self.files, ROOM);
                }
                done => return done,
            }
        }
        Err(Error::NoMemory)
    }

    /// A page fault of a program.
    pub fn count_fault(&self) {
        self.faults.fetch_add(1, Ordering::Relaxed);
    }

    /// A fork.
    pub fn count_fork(&self) {
        self.forks.fetch_add(1, Ordering::Relaxed);
    }

    /// A process that is another program from now on.
    pub fn count_exec(&self) {
        self.execs.fetch_add(1, Ordering::Relaxed);
    }

    /// What a processor does until all threads have ended: it lets those that wait run in turn, and calls `between`.
    pub fn work(&self, mut between: impl FnMut()) {
        RCU.online();
        while self.alive.load(Ordering::Acquire) > 0 && self.failed.lock().is_none() {
            RCU.quiescent();
            RCU.advance(CALLBACKS);
            between();
            let next = self.queue.lock().pop_front();
            let Some(mut thread) = next else {
                tlb::answer();
                core::hint::spin_loop();
                continue;
            };
            match thread.turn(self) {
                Next::Again => self.queue.lock().push_back(thread),
                Next::Over => {
                    drop(thread);
                    self.alive.fetch_sub(1, Ordering::Release);
                }
            }
        }
        // SAFETY: it is in no section, and enters none before it is online again.
        unsafe { RCU.offline(crate::processor::current()) };
    }

    /// Ends all that still wait, after a failure.
    pub fn clear(&self) {
        loop {
            // Its end takes locks.
            let thread = self.queue.lock().pop_front();
            if thread.is_none() {
                break;
            }
        }
    }
}

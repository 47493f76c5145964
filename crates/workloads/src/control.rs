//! What the processes of a workload share to work together: a page of memory in which the first process says which phase
//! is on, and until when.

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use rustix::thread::futex;
use std::ffi::c_void;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// The shared words. All zero at first.
#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct Words {
    /// Phases begun so far; a futex for those who wait for the next.
    begun: AtomicU32,
    /// Set when no phase will come any more; a futex for those who never work.
    over: AtomicU32,
    start_ns: AtomicU64,
    end_ns: AtomicU64,
    /// Set when the workload is to end.
    pub(crate) stop: AtomicBool,
    /// Streams of the phase, over all processes, that have not reached their own end.
    pub(crate) open_work: AtomicUsize,
}

/// A phase as it is announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Announced {
    /// Counts from 0.
    pub(crate) index: usize,
    pub(crate) start_ns: u64,
    pub(crate) end_ns: Option<u64>,
}

/// The words, in memory that stays shared after a fork.
#[derive(Debug)]
pub(crate) struct Control(NonNull<Words>);

// SAFETY: the words are atomics, which any thread may use; the mapping lives as long as the value.
unsafe impl Send for Control {}
// SAFETY: as above.
unsafe impl Sync for Control {}

impl Control {
    pub(crate) fn new() -> Result<Self, Errno> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice touches no memory in use.
        let words = unsafe {
            mmap_anonymous(std::ptr::null_mut(), size_of::<Words>(), protection, MapFlags::SHARED)?
        };
        // Zeroed memory is a valid value of all the words.
        NonNull::new(words.cast()).map(Self).ok_or(Errno::NOMEM)
    }
}

impl Deref for Control {
    type Target = Words;

    fn deref(&self) -> &Words {
        // SAFETY: mapped until drop, aligned to a page, zeroed or written through atomics only.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`; borrows of the words have ended.
        let _ = unsafe { munmap(self.0.as_ptr().cast::<c_void>(), size_of::<Words>()) };
    }
}

impl Words {
    /// Says that the phase `index` begins, and wakes who waits for it.
    pub(crate) fn announce(&self, phase: Announced, open_work: usize) {
        self.start_ns.store(phase.start_ns, Ordering::Relaxed);
        self.end_ns.store(phase.end_ns.unwrap_or(u64::MAX), Ordering::Relaxed);
        self.open_work.store(open_work, Ordering::Relaxed);
        self.begun.store(u32::try_from(phase.index + 1).unwrap_or(u32::MAX), Ordering::Release);
        wake(&self.begun);
    }

    /// Says that no phase will come any more.
    pub(crate) fn finish(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.over.store(1, Ordering::Release);
        wake(&self.over);
        // Whoever waits for a phase looks again.
        self.begun.store(u32::MAX, Ordering::Release);
        wake(&self.begun);
    }

    /// Waits for the phase after the first `seen` ones; `None`: there will be none.
    pub(crate) fn next_phase(&self, seen: usize) -> Option<Announced> {
        loop {
            let begun = self.begun.load(Ordering::Acquire);
            if self.over.load(Ordering::Acquire) != 0 {
                return None;
            }
            if begun as usize > seen {
                let end = self.end_ns.load(Ordering::Relaxed);
                return Some(Announced {
                    index: begun as usize - 1,
                    start_ns: self.start_ns.load(Ordering::Relaxed),
                    end_ns: (end != u64::MAX).then_some(end),
                });
            }
            // Signals and spurious wake-ups end it early; so it looks again.
            let _ = futex::wait(&self.begun, futex::Flags::empty(), begun, None);
        }
    }

    /// Waits until no phase will come any more.
    pub(crate) fn wait_for_end(&self) {
        while self.over.load(Ordering::Acquire) == 0 {
            let _ = futex::wait(&self.over, futex::Flags::empty(), 0, None);
        }
    }
}

fn wake(word: &AtomicU32) {
    // Fails for no address that is mapped.
    let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
}

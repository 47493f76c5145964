//! What is mapped, counted.

use crate::flags::VmFlags;
use crate::sync::counter::{AtomicU64, Ordering};

/// How much is mapped, in pages but for the first. Exact while `mmap_lock` is held, or nobody writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// VMAs (`map_count`).
    pub maps: u64,
    /// All (`total_vm`).
    pub total: u64,
    /// Private writable memory that is no stack (`data_vm`).
    pub data: u64,
    /// Executable memory that is not writable (`exec_vm`).
    pub exec: u64,
    /// Stacks that grow (`stack_vm`).
    pub stack: u64,
    /// Locked (`locked_vm`).
    pub locked: u64,
}

/// The same as counters. Changed by who holds `mmap_lock` for writing.
#[derive(Debug)]
pub(crate) struct Counters {
    maps: AtomicU64,
    total: AtomicU64,
    data: AtomicU64,
    exec: AtomicU64,
    stack: AtomicU64,
    locked: AtomicU64,
}

/// Whether it counts as data: private and writable, and no stack.
pub(crate) fn is_data(flags: VmFlags) -> bool {
    flags.contains(VmFlags::WRITE) && !flags.intersects(VmFlags::SHARED | VmFlags::GROWSDOWN)
}

fn add(counter: &AtomicU64, change: i64) {
    // One writer at a time.
    counter.store(counter.load(Ordering::Relaxed).wrapping_add_signed(change), Ordering::Relaxed);
}

impl Counters {
    pub(crate) fn new() -> Self {
        let zero = || AtomicU64::new(0);
        Self { maps: zero(), total: zero(), data: zero(), exec: zero(), stack: zero(), locked: zero() }
    }

    pub(crate) fn maps(&self, change: i64) {
        add(&self.maps, change);
    }

    /// So many pages more, or less, of a VMA with these flags.
    pub(crate) fn pages(&self, flags: VmFlags, change: i64) {
        add(&self.total, change);
        if flags.contains(VmFlags::GROWSDOWN) {
            add(&self.stack, change);
        } else if is_data(flags) {
            add(&self.data, change);
        } else if flags & (VmFlags::EXEC | VmFlags::WRITE) == VmFlags::EXEC {
            add(&self.exec, change);
        }
        if flags.contains(VmFlags::LOCKED) {
            add(&self.locked, change);
        }
    }

    pub(crate) fn locked(&self) -> u64 {
        self.locked.load(Ordering::Relaxed)
    }

    pub(crate) fn get(&self) -> Usage {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Usage {
            maps: get(&self.maps),
            total: get(&self.total),
            data: get(&self.data),
            exec: get(&self.exec),
            stack: get(&self.stack),
            locked: get(&self.locked),
        }
    }
}

//! How faults found their VMA, counted.

use crate::sharded::{Padded, SHARDS};
use crate::sync::counter::{AtomicU64, Ordering};

/// Counts of lookups under per-VMA locks: the seed's four events (patch 28), the reasons of its aborts, and permissions.
///
/// Each lookup ends as one of [`success`](Self::success), [`retry`](Self::retry), [`access`](Self::access), or an abort;
/// [`miss`](Self::miss) counts lookups that began anew.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LockStats {
    /// Faults that were handled under the VMA's lock (`VMA_LOCK_SUCCESS`).
    pub success: u64,
    /// Faults that began under the VMA's lock and were started again under `mmap_lock` (`VMA_LOCK_RETRY`).
    pub retry: u64,
    /// The VMA that was found had been taken out, and the lookup began anew (`VMA_LOCK_MISS`).
    pub miss: u64,
    /// Aborts (`VMA_LOCK_ABORT`): no VMA has the address. It may be a stack that is to grow.
    pub not_mapped: u64,
    /// Aborts: the VMA maps an object.
    pub object: u64,
    /// Aborts: no page of the VMA was written to yet.
    pub no_anon: u64,
    /// Aborts: faults in the VMA are somebody else's ([`UserFaults`](crate::UserFaults)).
    pub user: u64,
    /// Aborts: the VMA is write-locked, or is about to be.
    pub locked: u64,
    /// Aborts: the VMA does not hold the address any more.
    pub moved: u64,
    /// The VMA does not permit the access, which is looked at again under `mmap_lock`. The seed does not count these.
    pub access: u64,
}

/// Events, by the order of the fields. Faults under a VMA's lock are counted there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    Retry,
    Miss,
    NotMapped,
    Object,
    NoAnon,
    User,
    Locked,
    Moved,
    Access,
}

const EVENTS: usize = 9;

/// As faults would meet in a common counter, there are several.
#[derive(Debug)]
pub(crate) struct LockCounters {
    events: [Padded<[AtomicU64; EVENTS]>; SHARDS],
    /// Faults under the locks of VMAs that are gone.
    gone: AtomicU64,
}

impl LockCounters {
    pub(crate) fn new() -> Self {
        let zeros = || core::array::from_fn(|_| AtomicU64::new(0));
        Self { events: core::array::from_fn(|_| Padded(zeros())), gone: AtomicU64::new(0) }
    }

    /// So many faults were handled under the lock of a VMA that is gone.
    pub(crate) fn add_success(&self, faults: u64) {
        self.gone.fetch_add(faults, Ordering::Relaxed);
    }

    /// `cpu` is any number; CPUs that differ in the lowest bits do not meet.
    pub(crate) fn count(&self, cpu: usize, event: Event) {
        let shard = self.events.get(cpu % SHARDS);
        if let Some(counter) = shard.and_then(|shard| shard.0.get(event as usize)) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Without those that VMAs and slots have counted.
    pub(crate) fn get(&self) -> LockStats {
        let sum = |event: Event| {
            let counters = self.events.iter().filter_map(|shard| shard.0.get(event as usize));
            counters.map(|counter| counter.load(Ordering::Relaxed)).sum()
        };
        LockStats {
            success: self.gone.load(Ordering::Relaxed),
            retry: sum(Event::Retry),
            miss: sum(Event::Miss),
            not_mapped: sum(Event::NotMapped),
            object: sum(Event::Object),
            no_anon: sum(Event::NoAnon),
            user: sum(Event::User),
            locked: sum(Event::Locked),
            moved: sum(Event::Moved),
            access: sum(Event::Access),
        }
    }
}

impl LockStats {
    /// All aborts.
    #[must_use]
    pub const fn aborts(&self) -> u64 {
        self.not_mapped + self.object + self.no_anon + self.user + self.locked + self.moved
    }

    /// All lookups.
    #[must_use]
    pub const fn lookups(&self) -> u64 {
        self.success + self.retry + self.access + self.aborts()
    }
}

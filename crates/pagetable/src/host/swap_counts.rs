//! How often swap entries are held.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::HostMachine;
use crate::machine::SwapCounts;

/// Counts them, and passes on what is said of them.
#[derive(Default)]
pub(super) struct Held {
    /// Modulo 2^64, relative to those that `map_swap_entry` put there.
    counts: Mutex<HashMap<u64, u64>>,
    beside: OnceLock<Arc<dyn SwapCounts>>,
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Held").field(&self.beside.get().is_some()).finish()
    }
}

impl Held {
    fn counts(&self) -> MutexGuard<'_, HashMap<u64, u64>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, swap_entry: u64, more: u64) {
        let mut counts = self.counts();
        let held = counts.entry(swap_entry).or_default();
        *held = held.wrapping_add(more);
    }

    pub fn share(&self, swap_entry: u64) {
        self.add(swap_entry, 1);
        if let Some(counts) = self.beside.get() {
            counts.share(swap_entry);
        }
    }

    pub fn release(&self, swap_entry: u64) {
        self.add(swap_entry, u64::MAX);
        if let Some(counts) = self.beside.get() {
            counts.release(swap_entry);
        }
    }
}

impl HostMachine {
    /// Passes on what is said of swap entries from here on, to the first for whom this is called.
    pub fn set_swap_counts(&self, counts: Arc<dyn SwapCounts>) {
        let _ = self.swap_counts.beside.set(counts);
    }

    /// How often each swap entry is held by entries, relative to those that [`map_swap_entry`](crate::AddressSpace::map_swap_entry)
    /// put there.
    #[must_use]
    pub fn swap_entry_balance(&self, swap_entry: u64) -> i64 {
        self.swap_counts.counts().get(&swap_entry).map_or(0, |&n| n as i64)
    }
}

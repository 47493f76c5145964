//! What the machine was asked for, counted, and the TLB that an emulator puts beside it.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use super::HostMachine;
use crate::machine::{Event, Flush, SpaceId, Tlb};

/// How many operations of each kind the machine was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Counts {
    /// [`Tlb::invalidate_page`].
    pub tlb_pages: u64,
    /// [`Tlb::invalidate_range`].
    pub tlb_ranges: u64,
    /// [`Tlb::invalidate_space`].
    pub tlb_spaces: u64,
    /// [`Tlb::sync`].
    pub tlb_syncs: u64,
    /// Contiguous blocks folded while in use.
    pub folds: u64,
    /// Contiguous blocks unfolded.
    pub unfolds: u64,
    /// Huge leaves split.
    pub splits: u64,
    /// Copies for write faults and pinned pages.
    pub copies: u64,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    tlb: [AtomicU64; 4],
    events: [AtomicU64; 4],
}

impl Counters {
    pub fn count(&self, event: Event) {
        let n = match event {
            Event::Fold => 0,
            Event::Unfold => 1,
            Event::Split => 2,
            Event::Copy => 3,
        };
        self.events[n].fetch_add(1, Ordering::Relaxed);
    }
}

/// A TLB that is no part of the machine, if there is one.
#[derive(Default)]
pub(super) struct Beside(OnceLock<Arc<dyn Tlb<Context = u16> + Send + Sync>>);

impl fmt::Debug for Beside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Beside").field(&self.0.get().is_some()).finish()
    }
}

impl HostMachine {
    /// Passes invalidations on to a TLB, of an emulator say: from now on and for good. `false`, and nothing changes, if there is
    /// one.
    pub fn set_tlb(&self, tlb: Arc<dyn Tlb<Context = u16> + Send + Sync>) -> bool {
        self.tlb.0.set(tlb).is_ok()
    }

    fn tlb(&self) -> Option<&(dyn Tlb<Context = u16> + Send + Sync)> {
        self.tlb.0.get().map(|tlb| &**tlb)
    }

    /// What was asked for so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let tlb = |n: usize| self.counters.tlb[n].load(Ordering::Relaxed);
        let event = |n: usize| self.counters.events[n].load(Ordering::Relaxed);
        Counts {
            tlb_pages: tlb(0),
            tlb_ranges: tlb(1),
            tlb_spaces: tlb(2),
            tlb_syncs: tlb(3),
            folds: event(0),
            unfolds: event(1),
            splits: event(2),
            copies: event(3),
        }
    }

    /// Counts from zero again.
    pub fn reset_counts(&self) {
        for counter in self.counters.tlb.iter().chain(&self.counters.events) {
            counter.store(0, Ordering::Relaxed);
        }
    }
}

// SAFETY: there is no TLB but the one beside, which does what is asked.
unsafe impl Tlb for HostMachine {
    type Context = u16;

    fn invalidate_page(&self, space: SpaceId, page: u64) {
        self.counters.tlb[0].fetch_add(1, Ordering::Relaxed);
        if let Some(tlb) = self.tlb() {
            tlb.invalidate_page(space, page);
        }
    }

    fn invalidate_range(&self, space: SpaceId, flush: Flush) {
        self.counters.tlb[1].fetch_add(1, Ordering::Relaxed);
        if let Some(tlb) = self.tlb() {
            tlb.invalidate_range(space, flush);
        }
    }

    fn invalidate_space(&self, space: SpaceId) {
        self.counters.tlb[2].fetch_add(1, Ordering::Relaxed);
        if let Some(tlb) = self.tlb() {
            tlb.invalidate_space(space);
        }
    }

    fn permitted(&self, space: SpaceId, page: u64) {
        if let Some(tlb) = self.tlb() {
            tlb.permitted(space, page);
        }
    }

    fn sync(&self) {
        self.counters.tlb[3].fetch_add(1, Ordering::Relaxed);
        if let Some(tlb) = self.tlb() {
            tlb.sync();
        }
    }
}

//! Readers of VMAs that a writer finds in a slot of their CPU: see "Beyond the seed" in `src/lock.rs`.

use alloc::vec::Vec;
use core::ptr::null_mut;

use crate::sharded::Padded;
use crate::sync::counter::AtomicU64;
use crate::sync::{AtomicPtr, Ordering, fence};
use crate::vma::{Vma, VmaPtr};

/// So many CPUs can be in slots of [`VmaLocking::Biased`](crate::VmaLocking::Biased) at once; others, and a second fault on a CPU, go by
/// the VMA's counter.
pub const SLOTS: usize = if cfg!(loom) { 2 } else { 64 };

/// One reader's place.
pub(crate) struct Slot {
    /// What it reads, if anything.
    vma: AtomicPtr<Vma>,
    /// How many readers there were, but for those that gave up. Written by who is in the slot.
    entries: AtomicU64,
}

/// The slots, or none: then all go by the counter.
pub(crate) struct Slots(Vec<Padded<Slot>>);

impl Slots {
    /// None unless they are used, or if there is no memory.
    pub(crate) fn new(used: bool) -> Self {
        let slot = || Padded(Slot { vma: AtomicPtr::new(null_mut()), entries: AtomicU64::new(0) });
        let mut slots = Vec::new();
        if used && slots.try_reserve_exact(SLOTS).is_ok() {
            slots.resize_with(SLOTS, slot);
        }
        Self(slots)
    }

    /// Says in the slot of this CPU that the VMA is read, unless the slot is taken. Whoever looks at the VMA afterwards sees
    /// what a writer did that did not see the slot.
    pub(crate) fn enter(&self, cpu: usize, vma: VmaPtr) -> Option<&Slot> {
        let slot = &self.0.get(cpu % SLOTS)?.0;
        slot.vma.compare_exchange(null_mut(), vma.address(), Ordering::Acquire, Ordering::Relaxed).ok()?;
        fence(Ordering::SeqCst);
        slot.add(1);
        Some(slot)
    }

    /// Waits until no slot has the VMA, after what keeps new readers out is stored.
    pub(crate) fn wait(&self, vma: VmaPtr, relax: impl Fn(u32)) {
        fence(Ordering::SeqCst);
        for slot in &self.0 {
            let mut tries = 0;
            while slot.0.vma.load(Ordering::Acquire) == vma.address() {
                relax(tries);
                tries = u32::saturating_add(tries, 1);
            }
        }
    }

    /// How many readers there were in all.
    pub(crate) fn entries(&self) -> u64 {
        self.0.iter().fold(0, |sum, slot| sum.wrapping_add(slot.0.entries.load(Ordering::Relaxed)))
    }
}

impl Slot {
    fn add(&self, change: i64) {
        let entries = self.entries.load(Ordering::Relaxed);
        self.entries.store(entries.wrapping_add_signed(change), Ordering::Relaxed);
    }

    /// The end of reading.
    pub(crate) fn leave(&self) {
        self.vma.store(null_mut(), Ordering::Release);
    }

    /// The same by who gives up, and is not counted.
    pub(crate) fn cancel(&self) {
        self.add(-1);
        self.leave();
    }
}

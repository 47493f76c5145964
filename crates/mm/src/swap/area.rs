//! Which slots of swap are in use, and how often.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;

use isotherm_pagetable::SwapCounts;

use super::{Swap, SwapError, SwapPage};
use crate::error::Error;
use crate::spin::Spin;
use crate::sync::counter::{AtomicU64, Ordering as Counting};
use crate::sync::{AtomicU32, Ordering};

/// Storage for pages, with a count a slot: how many entries of page tables hold its swap entry, and who is reading it. The machine
/// passes on what page tables say of swap entries: [`Frames::share_swap_entry`](isotherm_pagetable::Frames::share_swap_entry) and
/// [`release_swap_entry`](isotherm_pagetable::Frames::release_swap_entry) call [`SwapCounts`]' of the area, or slots are never free again.
///
/// A swap entry is the number of its slot and one.
pub struct SwapArea {
    swap: Box<dyn Swap>,
    counts: Vec<AtomicU32>,
    /// When pages were taken away: see `System`.
    stamps: Vec<AtomicU64>,
    /// Room for all: putting one back cannot fail.
    free: Spin<Vec<u32>>,
    used: AtomicU64,
}

fn vec_of<T>(count: usize, each: impl FnMut(u32) -> T) -> Result<Vec<T>, Error> {
    let mut all = Vec::new();
    all.try_reserve_exact(count).map_err(|_| Error::NoMemory)?;
    all.extend((0..count as u32).map(each));
    Ok(all)
}

impl SwapArea {
    /// An area of all slots of a storage, which are free: 16 bytes a slot.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub fn new(swap: Box<dyn Swap>) -> Result<Self, Error> {
        let slots = swap.slots();
        let counts = vec_of(slots as usize, |_| AtomicU32::new(0))?;
        let stamps = vec_of(slots as usize, |_| AtomicU64::new(0))?;
        // The lowest first.
        let free = vec_of(slots as usize, |n| slots - 1 - n)?;
        Ok(Self { swap, counts, stamps, free: Spin::new(free), used: AtomicU64::new(0) })
    }

    /// How many slots there are.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.counts.len() as u32
    }

    /// How many slots are in use.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.used.load(Counting::Relaxed)
    }

    fn count(&self, swap_entry: u64) -> Option<(u32, &AtomicU32)> {
        let slot = u32::try_from(swap_entry.checked_sub(1)?).ok()?;
        Some((slot, self.counts.get(slot as usize)?))
    }

    /// Writes a page to a free slot; its swap entry, of which the caller has one.
    pub(crate) fn write(&self, page: SwapPage<'_>) -> Result<u64, SwapError> {
        let slot = self.free.lock().pop().ok_or(SwapError::Full)?;
        if let Err(why) = self.swap.write(slot, page) {
            self.free.lock().push(slot);
            return Err(why);
        }
        self.used.fetch_add(1, Counting::Relaxed);
        let swap_entry = u64::from(slot) + 1;
        if let Some((_, count)) = self.count(swap_entry) {
            count.store(1, Ordering::Release);
        }
        Ok(swap_entry)
    }

    /// Fills a page with what the swap entry stands for; the caller has one.
    pub(crate) fn read(&self, swap_entry: u64, page: SwapPage<'_>) -> Result<(), SwapError> {
        let (slot, _) = self.count(swap_entry).ok_or(SwapError::Failed)?;
        self.swap.read(slot, page)
    }

    /// One swap entry more, if there is one: the slot is not another page's until it is released.
    pub(crate) fn try_share(&self, swap_entry: u64) -> bool {
        let Some((_, count)) = self.count(swap_entry) else { return false };
        let more = |count: u32| (count > 0).then(|| count + 1);
        count.fetch_update(Ordering::Acquire, Ordering::Relaxed, more).is_ok()
    }

    /// How many there are of a swap entry.
    #[must_use]
    pub fn swap_count(&self, swap_entry: u64) -> u32 {
        self.count(swap_entry).map_or(0, |(_, count)| count.load(Ordering::Relaxed))
    }

    pub(crate) fn stamp(&self, swap_entry: u64, time: u64) {
        if let Some(stamp) = self.count(swap_entry).and_then(|(slot, _)| self.stamps.get(slot as usize)) {
            stamp.store(time, Counting::Relaxed);
        }
    }

    pub(crate) fn stamped(&self, swap_entry: u64) -> u64 {
        let stamp = self.count(swap_entry).and_then(|(slot, _)| self.stamps.get(slot as usize));
        stamp.map_or(0, |stamp| stamp.load(Counting::Relaxed))
    }
}

impl SwapCounts for SwapArea {
    fn share(&self, swap_entry: u64) {
        if let Some((_, count)) = self.count(swap_entry) {
            // An entry holds one: it does not go meanwhile.
            let before = count.fetch_add(1, Ordering::Relaxed);
            debug_assert!(before > 0, "a swap entry of a free slot is shared");
        }
    }

    fn release(&self, swap_entry: u64) {
        let Some((slot, count)) = self.count(swap_entry) else { return };
        // Acquire and release: who read the slot has done so before it is free.
        let before = count.fetch_sub(1, Ordering::AcqRel);
        debug_assert!(before > 0, "a swap entry is released that nobody has");
        if before == 1 {
            self.swap.free(slot);
            self.used.fetch_sub(1, Counting::Relaxed);
            self.free.lock().push(slot);
        }
    }
}

impl fmt::Debug for SwapArea {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SwapArea").field("slots", &self.slots()).field("used", &self.used()).finish()
    }
}

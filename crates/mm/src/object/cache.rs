//! The pages of an object that are in memory (the page cache): which frame each is, and whether it is dirty.
//!
//! Chunks of 512 pages, found by binary search. Memory for both may be lacking, which is an error.

use alloc::vec::Vec;
use core::ops::Range;

use isotherm_page::Frame;

use crate::error::Error;
use crate::sync::counter::{AtomicU64, Ordering};

/// Pages of a chunk: entries of 4 KiB.
const CHUNK: u64 = 512;

/// A page: 0 if it is not there, else twice its frame's number and one, and whether it is dirty, above the rest. Where reclaim took
/// one away, twice a number that it wants to know again, plus 1: a shadow, which goes with its chunk. Of a page that is in swap, twice its
/// swap entry, and a bit that says so.
#[derive(Debug, Default)]
struct Entry(AtomicU64);

const DIRTY: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;

#[derive(Debug)]
struct Chunk {
    number: u64,
    /// Entries that are there, or in swap.
    used: usize,
    entries: Vec<Entry>,
}

/// A page that is there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cached<'c> {
    pub(crate) index: u64,
    pub(crate) frame: Frame,
    entry: &'c Entry,
}

impl Cached<'_> {
    pub(crate) fn is_dirty(&self) -> bool {
        self.entry.0.load(Ordering::Relaxed) & DIRTY != 0
    }

    pub(crate) fn set_dirty(&self) {
        // Faults of a page that is dirty already do not meet in its line.
        if !self.is_dirty() {
            self.entry.0.fetch_or(DIRTY, Ordering::Relaxed);
        }
    }

    pub(crate) fn clear_dirty(&self) {
        self.entry.0.fetch_and(!DIRTY, Ordering::Relaxed);
    }
}

#[derive(Debug, Default)]
pub(crate) struct Cache {
    /// By their numbers.
    chunks: Vec<Chunk>,
    pages: u64,
    swapped: u64,
}

impl Cache {
    /// How many pages are there.
    pub(crate) fn len(&self) -> u64 {
        self.pages
    }

    /// How many are in swap.
    pub(crate) fn swapped(&self) -> u64 {
        self.swapped
    }

    /// The swap entry of a page that is in swap.
    pub(crate) fn swap_entry(&self, index: u64) -> Option<u64> {
        let chunk = self.chunks.get(self.search(index / CHUNK).ok()?)?;
        let raw = chunk.entries.get((index % CHUNK) as usize)?.0.load(Ordering::Relaxed);
        (raw & SWAPPED != 0).then_some((raw & !(SWAPPED | DIRTY)) >> 1)
    }

    /// The first page within the range that is in swap, and its swap entry.
    pub(crate) fn first_swap_entry(&self, range: Range<u64>) -> Option<(u64, u64)> {
        if self.swapped == 0 {
            return None;
        }
        let (Ok(first) | Err(first)) = self.search(range.start / CHUNK);
        let chunks = self.chunks.get(first..).unwrap_or_default().iter();
        let mut all = chunks
            .take_while(|chunk| chunk.number * CHUNK < range.end)
            .flat_map(|chunk| chunk.number * CHUNK..(chunk.number + 1) * CHUNK);
        all.find_map(|index| range.contains(&index).then(|| Some((index, self.swap_entry(index)?))).flatten())
    }

    fn search(&self, number: u64) -> Result<usize, usize> {
        self.chunks.binary_search_by_key(&number, |chunk| chunk.number)
    }

    pub(crate) fn get(&self, index: u64) -> Option<Cached<'_>> {
        let chunk = self.chunks.get(self.search(index / CHUNK).ok()?)?;
        let entry = chunk.entries.get((index % CHUNK) as usize)?;
        let raw = entry.0.load(Ordering::Relaxed) & !DIRTY;
        (raw & 1 != 0).then_some(Cached { index, frame: Frame(raw >> 1), entry })
    }

    /// The first page within the range.
    pub(crate) fn first_in(&self, range: Range<u64>) -> Option<Cached<'_>> {
        let mut index = range.start;
        while index < range.end {
            let (Ok(at) | Err(at)) = self.search(index / CHUNK);
            let chunk = self.chunks.get(at)?;
            index = index.max(chunk.number * CHUNK);
            let end = range.end.min((chunk.number + 1) * CHUNK);
            if let Some(found) = (index..end).find_map(|index| self.get(index)) {
                return Some(found);
            }
            index = end.max(index);
        }
        None
    }

    /// Puts in a page that is not there, and returns its shadow.
    pub(crate) fn insert(&mut self, index: u64, frame: Frame, dirty: bool) -> Result<Option<u64>, Error> {
        let number = index / CHUNK;
        let at = match self.search(number) {
            Ok(at) => at,
            Err(at) => {
                let mut entries = Vec::new();
                entries.try_reserve_exact(CHUNK as usize).map_err(|_| Error::NoMemory)?;
                entries.resize_with(CHUNK as usize, Entry::default);
                self.chunks.try_reserve(1).map_err(|_| Error::NoMemory)?;
                self.chunks.insert(at, Chunk { number, used: 0, entries });
                at
            }
        };
        if let Some(chunk) = self.chunks.get_mut(at)
            && let Some(entry) = chunk.entries.get_mut((index % CHUNK) as usize)
        {
            let shadow = *entry.0.get_mut();
            debug_assert_eq!(shadow & (1 | SWAPPED), 0, "the page is there already");
            entry.0 = AtomicU64::new(frame.0 << 1 | 1 | if dirty { DIRTY } else { 0 });
            chunk.used += 1;
            self.pages += 1;
            return Ok((shadow >> 1).checked_sub(1));
        }
        Ok(None)
    }

    /// Takes a page out.
    pub(crate) fn remove(&mut self, index: u64) -> Option<Frame> {
        self.take_out(index, 0)
    }

    /// The same, and leaves a shadow.
    pub(crate) fn evict(&mut self, index: u64, shadow: u64) -> Option<Frame> {
        self.take_out(index, ((shadow + 1) << 1) & !(DIRTY | SWAPPED))
    }

    /// A page that is there has another frame from now on; which it had.
    pub(crate) fn migrate(&mut self, index: u64, to: Frame) -> Option<Frame> {
        let entry = self.entry(index)?;
        let raw = *entry.get_mut();
        if raw & 1 == 0 {
            return None;
        }
        *entry.get_mut() = to.0 << 1 | 1 | raw & DIRTY;
        Some(Frame((raw & !DIRTY) >> 1))
    }

    /// A page that is there is in swap from now on.
    pub(crate) fn swap_out(&mut self, index: u64, swap_entry: u64) -> Option<Frame> {
        let entry = self.entry(index)?;
        let raw = *entry.get_mut() & !DIRTY;
        if raw & 1 == 0 {
            return None;
        }
        *entry.get_mut() = swap_entry << 1 | SWAPPED;
        self.pages -= 1;
        self.swapped += 1;
        Some(Frame(raw >> 1))
    }

    /// The same back: this frame has it, and is dirty.
    pub(crate) fn swap_in(&mut self, index: u64, frame: Frame) {
        if let Some(entry) = self.entry(index) {
            *entry.get_mut() = frame.0 << 1 | 1 | DIRTY;
            self.pages += 1;
            self.swapped -= 1;
        }
    }

    /// Takes out a page that is in swap; its swap entry.
    pub(crate) fn drop_swap_entry(&mut self, index: u64) -> Option<u64> {
        let swap_entry = self.swap_entry(index)?;
        *self.entry(index)?.get_mut() = 0;
        self.swapped -= 1;
        self.unused(index);
        Some(swap_entry)
    }

    fn entry(&mut self, index: u64) -> Option<&mut AtomicU64> {
        let at = self.search(index / CHUNK).ok()?;
        Some(&mut self.chunks.get_mut(at)?.entries.get_mut((index % CHUNK) as usize)?.0)
    }

    /// An entry of a chunk is there no more.
    fn unused(&mut self, index: u64) {
        let Ok(at) = self.search(index / CHUNK) else { return };
        if let Some(chunk) = self.chunks.get_mut(at) {
            chunk.used -= 1;
            if chunk.used == 0 {
                self.chunks.remove(at);
            }
        }
    }

    fn take_out(&mut self, index: u64, leave: u64) -> Option<Frame> {
        let entry = self.entry(index)?;
        let raw = *entry.get_mut() & !DIRTY;
        if raw & 1 == 0 {
            return None;
        }
        *entry.get_mut() = leave;
        self.pages -= 1;
        self.unused(index);
        Some(Frame(raw >> 1))
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used, reason = "what fails here fails the test")]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn pages_are_those_of_a_map(ops in proptest::collection::vec((0..1600u64, 0..9u8), 1..200)) {
            let (mut cache, mut naive) = (Cache::default(), BTreeMap::new());
            let (mut shadows, mut swapped) = (BTreeMap::new(), BTreeMap::new());
            for (n, &(index, op)) in (0..).zip(&ops) {
                match op {
                    0 => prop_assert_eq!(cache.remove(index).map(|f| f.0), naive.remove(&index).map(|(f, _)| f)),
                    1 if naive.contains_key(&index) => {
                        cache.get(index).unwrap().set_dirty();
                        naive.get_mut(&index).unwrap().1 = true;
                    }
                    2 if naive.contains_key(&index) => {
                        cache.get(index).unwrap().clear_dirty();
                        naive.get_mut(&index).unwrap().1 = false;
                    }
                    4 => {
                        let gone = naive.remove(&index).map(|(f, _)| f);
                        prop_assert_eq!(cache.evict(index, n).map(|f| f.0), gone);
                        shadows.extend(gone.map(|_| (index, n)));
                    }
                    5 => {
                        let gone = naive.remove(&index).map(|(f, _)| f);
                        prop_assert_eq!(cache.swap_out(index, n + 1).map(|f| f.0), gone);
                        swapped.extend(gone.map(|_| (index, n + 1)));
                    }
                    6 if swapped.remove(&index).is_some() => {
                        cache.swap_in(index, Frame(n));
                        naive.insert(index, (n, true));
                    }
                    7 => prop_assert_eq!(cache.drop_swap_entry(index), swapped.remove(&index)),
                    8 => {
                        let there = naive.get_mut(&index);
                        let old = there.map(|(frame, _)| std::mem::replace(frame, n));
                        prop_assert_eq!(cache.migrate(index, Frame(n)).map(|f| f.0), old);
                    }
                    _ if !naive.contains_key(&index) && !swapped.contains_key(&index) => {
                        let shadow = cache.insert(index, Frame(n), op == 3).unwrap();
                        // Perhaps it went with its chunk.
                        prop_assert!(shadow.is_none() || shadow == shadows.remove(&index));
                        naive.insert(index, (n, op == 3));
                    }
                    _ => {}
                }
            }
            prop_assert_eq!((cache.len(), cache.swapped()), (naive.len() as u64, swapped.len() as u64));
            let (mut at, mut swap_entries) = (0, BTreeMap::new());
            while let Some((index, swap_entry)) = cache.first_swap_entry(at..1600) {
                prop_assert_eq!(cache.swap_entry(index), Some(swap_entry));
                swap_entries.insert(index, swap_entry);
                at = index + 1;
            }
            prop_assert_eq!(swap_entries, swapped);
            let (mut at, mut found) = (0, BTreeMap::new());
            while let Some(page) = cache.first_in(at..u64::MAX) {
                found.insert(page.index, (page.frame.0, page.is_dirty()));
                at = page.index + 1;
            }
            prop_assert_eq!(found, naive);
        }
    }
}

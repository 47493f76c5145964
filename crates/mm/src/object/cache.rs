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
/// one away, twice a number that it wants to know again, plus 1: a shadow, which goes with its chunk.
#[derive(Debug, Default)]
struct Entry(AtomicU64);

const DIRTY: u64 = 1 << 63;

#[derive(Debug)]
struct Chunk {
    number: u64,
    /// Entries that are there.
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
}

impl Cache {
    /// How many pages are there.
    pub(crate) fn len(&self) -> u64 {
        self.pages
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
            debug_assert_eq!(shadow & 1, 0, "the page is there already");
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
        self.take_out(index, ((shadow + 1) << 1) & !DIRTY)
    }

    fn take_out(&mut self, index: u64, leave: u64) -> Option<Frame> {
        let at = self.search(index / CHUNK).ok()?;
        let chunk = self.chunks.get_mut(at)?;
        let entry = chunk.entries.get_mut((index % CHUNK) as usize)?;
        let raw = *entry.0.get_mut() & !DIRTY;
        if raw & 1 == 0 {
            return None;
        }
        *entry.0.get_mut() = leave;
        self.pages -= 1;
        chunk.used -= 1;
        if chunk.used == 0 {
            self.chunks.remove(at);
        }
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
        fn pages_are_those_of_a_map(ops in proptest::collection::vec((0..1600u64, 0..5u8), 1..200)) {
            let (mut cache, mut naive) = (Cache::default(), BTreeMap::new());
            let mut shadows = BTreeMap::new();
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
                    _ if !naive.contains_key(&index) => {
                        let shadow = cache.insert(index, Frame(n), op == 3).unwrap();
                        // Perhaps it went with its chunk.
                        prop_assert!(shadow.is_none() || shadow == shadows.remove(&index));
                        naive.insert(index, (n, op == 3));
                    }
                    _ => {}
                }
            }
            prop_assert_eq!(cache.len(), naive.len() as u64);
            let (mut at, mut found) = (0, BTreeMap::new());
            while let Some(page) = cache.first_in(at..u64::MAX) {
                found.insert(page.index, (page.frame.0, page.is_dirty()));
                at = page.index + 1;
            }
            prop_assert_eq!(found, naive);
        }
    }
}

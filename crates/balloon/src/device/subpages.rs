//! Which pages are in the balloon, and which pages of the host that makes free.
//!
//! A page of the balloon has 4 KiB, one of the host may have more: 64 KiB on arm64 and ppc64, 2 MiB or 1 GiB with hugetlb.
//! A page of the host can be given up only when all of it is in the balloon. Therefore every page of the balloon has a bit;
//! the bits are kept in chunks that exist while one of their bits is set.
//!
//! QEMU remembers one partly ballooned host page at a time and forgets it at the next, so a guest that inflates in another
//! order gives nothing back. Here the order does not matter.

use std::collections::BTreeMap;
use std::ops::Range;

/// Pages of a chunk, 16 MiB.
const CHUNK_PAGES: u64 = 4096;
const WORDS: usize = (CHUNK_PAGES / 64) as usize;

/// The set of ballooned pages, by number.
#[derive(Debug, Default)]
pub(super) struct BalloonedPages {
    chunks: BTreeMap<u64, Box<[u64; WORDS]>>,
    len: u64,
}

fn place(page: u64) -> (u64, usize, u64) {
    (page / CHUNK_PAGES, (page % CHUNK_PAGES / 64) as usize, 1 << (page % 64))
}

impl BalloonedPages {
    pub fn len(&self) -> u64 {
        self.len
    }

    pub fn clear(&mut self) {
        *self = Self::default();
    }

    #[cfg(test)]
    fn contains(&self, page: u64) -> bool {
        let (chunk, word, bit) = place(page);
        self.chunks.get(&chunk).is_some_and(|words| words[word] & bit != 0)
    }

    /// `false` if it was there already.
    pub fn insert(&mut self, page: u64) -> bool {
        let (chunk, word, bit) = place(page);
        let word = &mut self.chunks.entry(chunk).or_insert_with(|| Box::new([0; WORDS]))[word];
        let new = *word & bit == 0;
        *word |= bit;
        self.len += u64::from(new);
        new
    }

    /// `false` if it was not there.
    pub fn remove(&mut self, page: u64) -> bool {
        let (chunk, word, bit) = place(page);
        let Some(words) = self.chunks.get_mut(&chunk) else { return false };
        let there = words[word] & bit != 0;
        words[word] &= !bit;
        self.len -= u64::from(there);
        if words.iter().all(|&word| word == 0) {
            self.chunks.remove(&chunk);
        }
        there
    }

    /// Whether all pages of the range, which is aligned to its length, a power of two, are there.
    pub fn contains_all(&self, pages: Range<u64>) -> bool {
        let count = pages.end - pages.start;
        if count < 64 {
            let (chunk, word, bit) = place(pages.start);
            let mask = ((1 << count) - 1) * bit;
            return self.chunks.get(&chunk).is_some_and(|words| words[word] & mask == mask);
        }
        (pages.start / CHUNK_PAGES..=(pages.end - 1) / CHUNK_PAGES).all(|chunk| {
            let first = chunk * CHUNK_PAGES;
            let from = (pages.start.max(first) - first) as usize / 64;
            let to = (pages.end.min(first + CHUNK_PAGES) - first) as usize / 64;
            self.chunks.get(&chunk).is_some_and(|words| words[from..to].iter().all(|&word| word == u64::MAX))
        })
    }
}

/// Joins ranges that touch, so that the host is asked once for what is contiguous.
#[derive(Debug, Default)]
pub(super) struct Runs {
    open: Option<Range<u64>>,
}

impl Runs {
    /// Adds a range; if it does not touch what is open, that comes back.
    pub fn add(&mut self, range: Range<u64>) -> Option<Range<u64>> {
        match &mut self.open {
            Some(open) if open.end == range.start => open.end = range.end,
            Some(open) if open.start == range.end => open.start = range.start,
            open => return open.replace(range),
        }
        None
    }

    /// What is still open.
    pub fn finish(&mut self) -> Option<Range<u64>> {
        self.open.take()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 2 } else { 256 }, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn the_bitmap_is_a_set_of_pages(
            steps in proptest::collection::vec((any::<bool>(), prop_oneof![0u64..300, 4000u64..4200, 1_000_000u64..1_000_070]), 1..if cfg!(miri) { 40 } else { 600 }),
            order in 0u32..13,
        ) {
            let (mut pages, mut naive) = (BalloonedPages::default(), BTreeSet::new());
            for (insert, page) in steps {
                if insert {
                    prop_assert_eq!(pages.insert(page), naive.insert(page));
                } else {
                    prop_assert_eq!(pages.remove(page), naive.remove(&page));
                }
                prop_assert_eq!(pages.len(), naive.len() as u64);
                prop_assert_eq!(pages.contains(page), naive.contains(&page));
                let start = page >> order << order;
                let range = start..start + (1 << order);
                prop_assert_eq!(pages.contains_all(range.clone()), range.clone().all(|page| naive.contains(&page)));
            }
            for page in naive {
                pages.remove(page);
            }
            prop_assert!(pages.chunks.is_empty(), "an empty balloon keeps no bitmap");
        }

        #[test]
        fn runs_cover_what_was_added(numbers in proptest::collection::vec(0u64..40, 0..40)) {
            let mut runs = Runs::default();
            let mut covered = Vec::new();
            for &number in &numbers {
                covered.extend(runs.add(number..number + 1));
            }
            covered.extend(runs.finish());
            let mut pages: Vec<u64> = covered.into_iter().flatten().collect();
            let mut expected = numbers;
            pages.sort_unstable();
            expected.sort_unstable();
            prop_assert_eq!(pages, expected);
        }
    }

    #[test]
    fn a_gigabyte_page_is_complete_with_its_last_page() {
        let mut pages = BalloonedPages::default();
        // Miri takes minutes for a gigabyte.
        let huge = if cfg!(miri) { 1 << 9..2 << 9 } else { 1 << 18..2 << 18 };
        for page in huge.clone().rev() {
            assert!(!pages.contains_all(huge.clone()));
            pages.insert(page);
        }
        assert!(pages.contains_all(huge.clone()));
        pages.remove(huge.start + 77);
        assert!(!pages.contains_all(huge));
    }

    #[test]
    fn runs_join_upwards_and_downwards() {
        let mut runs = Runs::default();
        assert_eq!(runs.add(4..5), None);
        assert_eq!(runs.add(5..6), None);
        assert_eq!(runs.add(3..4), None);
        assert_eq!(runs.add(9..10), Some(3..6));
        assert_eq!(runs.finish(), Some(9..10));
        assert_eq!(runs.finish(), None);
    }
}

//! A TLB that costs time, and nothing else: an access sets the Accessed bit of a page whether its translation is in the TLB or
//! not. (On hardware it is not set again while the TLB has the translation.)

use super::prices::{TLB_SETS, TLB_WAYS};

/// The translations of a thread's CPU, by sets, the last used first.
pub struct Tlb {
    sets: Vec<[u64; TLB_WAYS]>,
    /// What was used last: most touches are of the same page as the one before.
    last: u64,
}

impl Tlb {
    pub fn new() -> Self {
        Self { sets: vec![[u64::MAX; TLB_WAYS]; TLB_SETS], last: u64::MAX }
    }

    /// A translation is used: whether it was there.
    pub fn use_page(&mut self, address: u64, huge: bool) -> bool {
        let number = if huge { address >> 21 } else { address >> 12 };
        let key = number << 1 | u64::from(huge);
        if self.last == key {
            return true;
        }
        self.last = key;
        let Some(set) = self.sets.get_mut(number as usize % TLB_SETS) else { return false };
        let (at, hit) = match set.iter().position(|&entry| entry == key) {
            Some(at) => (at, true),
            None => (TLB_WAYS - 1, false),
        };
        if let Some(part) = set.get_mut(..=at) {
            part.rotate_right(1);
        }
        set[0] = key;
        hit
    }

    /// All are gone.
    pub fn flush(&mut self) {
        *self = Self::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn misses(tlb: &mut Tlb, pages: u64, huge: bool) -> u64 {
        let size = if huge { 2 << 20 } else { 4096 };
        (0..pages).filter(|page| !tlb.use_page(page * size, huge)).count() as u64
    }

    #[test]
    fn what_fits_stays_and_huge_pages_reach_further() {
        let mut tlb = Tlb::new();
        let fits = (TLB_SETS * TLB_WAYS) as u64;
        assert_eq!(misses(&mut tlb, fits, false), fits);
        assert_eq!(misses(&mut tlb, fits, false), 0);
        // A loop over more than fits finds none of it again, once what was there has gone.
        assert_eq!(misses(&mut tlb, fits * 2, false), fits);
        assert_eq!(misses(&mut tlb, fits * 2, false), fits * 2);
        assert_eq!(misses(&mut tlb, fits, true), fits);
        assert_eq!(misses(&mut tlb, fits, true), 0);
        tlb.flush();
        assert!(!tlb.use_page(0, true) && tlb.use_page(1, true));
    }
}

//! What is written to pages, so that a page that was lost, swapped with another or left from before is found.

/// Bytes of a page.
pub const PAGE: u64 = 4096;

/// The word that belongs at `address` in the block's `generation`: both are in it, and no two neighbours look alike.
///
/// Never 0, which is what a page that the host took reads as.
#[must_use]
pub const fn stamp(address: u64, generation: u64) -> u64 {
    // SplitMix64's finaliser: a bijection, so two addresses of one generation never have the same word.
    let mut x = address ^ generation.rotate_left(40) ^ 0x9e37_79b9_7f4a_7c15;
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^= x >> 31;
    if x == 0 { 1 } else { x }
}

/// Offsets of the words of a page that are stamped: its first, one that moves with the generation, its last.
#[must_use]
pub const fn places(generation: u64) -> [u64; 3] {
    [0, 8 + 8 * (generation % 510), PAGE - 8]
}

/// A generator of random numbers (xorshift64*): the same seed gives the same run.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A sequence of its own for each seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(stamp(seed, 0))
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `bound`; 0 for 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.draw()) * u128::from(bound)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn stamps_tell_pages_and_generations_apart() {
        let all: HashSet<u64> = (0..1000)
            .flat_map(|page| (0..20).map(move |generation| stamp(page * PAGE, generation)))
            .collect();
        assert_eq!(all.len(), 20_000);
        assert!(!all.contains(&0));
    }

    #[test]
    fn places_are_three_words_inside_the_page() {
        for generation in 0..2000 {
            let places = places(generation);
            assert!(places[0] < places[1] && places[1] < places[2] && places[2] + 8 == PAGE, "{places:?}");
            assert!(places.iter().all(|p| p % 8 == 0));
        }
    }

    #[test]
    fn random_numbers_stay_below_their_bound_and_reach_all_of_it() {
        let mut random = Random::new(7);
        let seen: HashSet<u64> = (0..1000).map(|_| random.below(10)).collect();
        assert_eq!(seen, (0..10).collect());
        assert_eq!(random.below(0), 0);
    }
}

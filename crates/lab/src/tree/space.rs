//! The ranges that all are measured with.

use isotherm_workloads::Rng;

/// Indexes from one range's first to the next one's, where no large gap is between.
const STRIDE: u64 = 64;
/// Indexes of a range at most.
const LONGEST: u64 = 32;
/// Indexes of the least of the gaps that are searched for. Others are smaller than [`STRIDE`].
pub(super) const LARGE: u64 = 96;

/// Ranges of 1 to 32 indexes with gaps of 32 to 63 between them. Up to 63 gaps are larger: from either end towards the
/// middle each by one more than the one before, so that a search for one of a given size ends at a place of its own.
#[derive(Debug)]
pub(super) struct Space {
    /// First and last index of each.
    pub(super) ranges: Vec<(u64, u64)>,
    /// How many sizes there are to search for, from [`LARGE`].
    pub(super) sizes: u64,
    /// Ranges from one large gap to the next.
    every: usize,
    /// By how much the ranges after each large gap are moved.
    moved: Vec<u64>,
}

impl Space {
    pub(super) fn new(count: usize) -> Self {
        let mut rng = Rng::new(1, count as u64);
        // An odd number of large gaps, each after as many ranges.
        let large = ((count as u64 / 4).clamp(1, 63) - 1) | 1;
        let every = count as u64 / (large + 1);
        let is_before_large = |n: u64| (n + 1).is_multiple_of(every) && (n + 1) / every <= large;
        let (mut first, mut moved) = (0, vec![0]);
        let ranges = (0..count as u64).map(|n| {
            let length = if is_before_large(n) { LONGEST } else { 1 + rng.below(LONGEST) };
            let range = (first, first + length - 1);
            first += STRIDE;
            if is_before_large(n) {
                let place = (n + 1) / every - 1;
                first += LARGE - (STRIDE - LONGEST) + place.min(large - 1 - place);
                moved.push(first - STRIDE * (n + 1));
            }
            range
        });
        Self { ranges: ranges.collect(), sizes: large / 2 + 1, every: every as usize, moved }
    }

    /// The last index of all: what lies behind is a gap that no search is for.
    pub(super) fn last(&self) -> u64 {
        self.ranges.last().map_or(0, |&(_, last)| last)
    }

    /// The first index of a range at random. Found without a look at all ranges: that would be a cache miss of its own before
    /// each look-up that is timed.
    #[inline]
    pub(super) fn index(&self, chain: &mut Chain) -> u64 {
        let (part, n) = (chain.below(self.moved.len()), chain.below(self.every));
        STRIDE * (part * self.every + n) as u64 + self.moved.get(part).copied().unwrap_or(0)
    }

    /// A range at random.
    pub(super) fn range(&self, chain: &mut Chain) -> (u64, u64) {
        self.ranges.get(chain.below(self.ranges.len())).copied().unwrap_or((0, 0))
    }

    /// Eight indexes of the gap behind a range, with some free on either side.
    pub(super) const fn hole((_, last): (u64, u64)) -> (u64, u64) {
        (last + 4, last + 11)
    }
}

/// Numbers at random, one after the other, which a result can be mixed into: what comes next is not known before (xorshift64*).
#[derive(Clone, Debug)]
pub(super) struct Chain(pub(super) u64);

impl Chain {
    /// A number below `limit`; 0 if that is 0.
    #[inline]
    pub(super) fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let random = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
        // Multiplied into the range: a division would cost as much as what is measured.
        ((random * limit as u64) >> 32) as usize
    }

    /// The next number depends on this one. Kept from being 0, where the chain would end.
    #[inline]
    pub(super) fn mix(&mut self, result: u64) {
        self.0 = (self.0 ^ result) | 1 << 63;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_as_large_as_is_said() {
        for count in [4, 10, 100, 1000, 20_000] {
            let space = Space::new(count);
            assert_eq!(space.ranges.len(), count);
            let gaps: Vec<u64> = space.ranges.windows(2).map(|two| two[1].0 - two[0].1 - 1).collect();
            assert!(gaps.iter().all(|&gap| gap >= 32), "room for a hole in {count}");
            let large: Vec<u64> = gaps.into_iter().filter(|&gap| gap >= STRIDE).collect();
            let up = LARGE..LARGE + space.sizes;
            let expected: Vec<u64> = up.clone().chain(up.rev().skip(1)).collect();
            assert_eq!(large, expected, "{count}");
            let mut chain = Chain(1);
            for _ in 0..1000 {
                let index = space.index(&mut chain);
                assert!(space.ranges.binary_search_by_key(&index, |range| range.0).is_ok(), "{count}");
            }
        }
    }
}

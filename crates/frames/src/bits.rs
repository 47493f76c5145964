//! A pageblock's frames as a bitfield: 512 bits, one cache line, 1 = free.
//!
//! There is no list of free frames and nothing is merged or split: an order's free blocks *are* the aligned runs of
//! ones of that length. Runs of up to 64 frames (orders 0 to 6) are found within a word by halving: a run of order
//! j + 1 begins where one of order j begins and another one follows, at even places. Above, the same is done with the
//! eight words, of which each counts as one frame of order 6.

/// log2 of the frames of a pageblock: 2 MiB, what a huge page takes.
pub const PAGEBLOCK_ORDER: u8 = 9;
/// Frames of a pageblock.
pub const PAGEBLOCK: u32 = 1 << PAGEBLOCK_ORDER;
/// Words of a pageblock's bitfield.
pub const WORDS: usize = 8;
/// log2 of the frames of a word.
pub const WORD_ORDER: u8 = 6;

/// Where runs of an order may begin in a word.
const STARTS: [u64; 7] = [
    u64::MAX,
    0x5555_5555_5555_5555,
    0x1111_1111_1111_1111,
    0x0101_0101_0101_0101,
    0x0001_0001_0001_0001,
    0x0000_0001_0000_0001,
    1,
];

/// The beginnings of the free runs of `order` + 1, given those of `order` (0..=5).
#[inline]
const fn above(starts: u64, order: u8) -> u64 {
    starts & (starts >> (1 << order)) & STARTS[order as usize + 1]
}

/// The beginnings of the free runs of `order` (0..=6) in a word. A run that is part of a longer one counts.
#[inline]
pub const fn runs(word: u64, order: u8) -> u64 {
    let mut starts = word;
    let mut at = 0;
    while at < order {
        starts = above(starts, at);
        at += 1;
    }
    starts
}

/// A run's bits in its word; `order` is 0..=6 and `bit` where it begins.
#[inline]
pub const fn mask(bit: u32, order: u8) -> u64 {
    (u64::MAX >> (64 - (1u32 << order))) << bit
}

/// The free frames of a pageblock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(align(64))]
pub struct Bitfield {
    pub words: [u64; WORDS],
}

const _: () = assert!(size_of::<Bitfield>() == 64, "a bitfield is a cache line");

impl Bitfield {
    /// Which words are wholly free, as bits.
    #[inline]
    pub fn full(&self) -> u64 {
        self.words.iter().enumerate().fold(0, |full, (at, &word)| full | u64::from(word == u64::MAX) << at)
    }

    /// The order of the longest free run, 0..=9; `None` if nothing is free.
    pub fn largest(&self) -> Option<u8> {
        let mut full = self.full();
        if full != 0 {
            let mut order = WORD_ORDER;
            while order < PAGEBLOCK_ORDER {
                full = above(full, order - WORD_ORDER);
                if full == 0 {
                    break;
                }
                order += 1;
            }
            return Some(order);
        }
        let mut starts = self.words;
        if starts.iter().all(|&word| word == 0) {
            return None;
        }
        // No word is full, so this ends below 6.
        for order in 0..WORD_ORDER {
            let longer = starts.map(|word| above(word, order));
            if longer.iter().all(|&word| word == 0) {
                return Some(order);
            }
            starts = longer;
        }
        Some(WORD_ORDER)
    }

    /// Where the run begins of which a block of `order` (0..=9) had best be taken: the first of the shortest that are long
    /// enough, so that long ones stay whole.
    pub fn find(&self, order: u8) -> Option<u32> {
        if order < WORD_ORDER {
            let mut starts = self.words.map(|word| runs(word, order));
            for at in order..WORD_ORDER {
                for (index, word) in starts.iter_mut().enumerate() {
                    let longer = above(*word, at);
                    let alone = *word & !(longer | longer << (1 << at));
                    if alone != 0 {
                        return Some(index as u32 * 64 + alone.trailing_zeros());
                    }
                    *word = longer;
                }
            }
        }
        let mut full = self.full();
        for at in WORD_ORDER..PAGEBLOCK_ORDER {
            let longer = above(full, at - WORD_ORDER);
            let alone = full & !(longer | longer << (1 << (at - WORD_ORDER)));
            if at >= order && alone != 0 {
                return Some(alone.trailing_zeros() * 64);
            }
            full = longer;
        }
        (full & 1 != 0).then_some(0)
    }

    /// Adds the free blocks of each order 0..=9 to `counts`, every frame counted once, in the largest block it is part of:
    /// what a buddy allocator that merges all it can would have in its lists.
    pub fn count(&self, counts: &mut [u64]) {
        let mut add = |order: u8, starts: u64, longer: u64| {
            if let Some(count) = counts.get_mut(usize::from(order)) {
                *count += u64::from(starts.count_ones() - 2 * longer.count_ones());
            }
        };
        for word in self.words {
            let mut starts = word;
            for order in 0..WORD_ORDER {
                let longer = above(starts, order);
                add(order, starts, longer);
                starts = longer;
            }
        }
        let mut full = self.full();
        for order in WORD_ORDER..PAGEBLOCK_ORDER {
            let longer = above(full, order - WORD_ORDER);
            add(order, full, longer);
            full = longer;
        }
        add(PAGEBLOCK_ORDER, full, 0);
    }
}

/// The words a block of `order` (0..=9) at frame `at` of a pageblock takes, with the bits of each.
#[inline]
pub fn parts(at: u32, order: u8) -> impl Iterator<Item = (usize, u64)> {
    let bits = if order < WORD_ORDER { mask(at % 64, order) } else { u64::MAX };
    let words = 1usize << order.saturating_sub(WORD_ORDER);
    let first = at as usize / 64;
    (first..first + words).map(move |word| (word, bits))
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    /// Every frame by itself, and blocks by looking at each of their frames.
    fn naive_free(field: &Bitfield, at: u32, order: u8) -> bool {
        (at..at + (1 << order)).all(|frame| field.words[frame as usize / 64] >> (frame % 64) & 1 == 1)
    }

    fn naive_blocks(field: &Bitfield, order: u8) -> Vec<u32> {
        (0..PAGEBLOCK).step_by(1 << order).filter(|&at| naive_free(field, at, order)).collect()
    }

    /// The blocks of an order that are not part of a larger one.
    fn naive_alone(field: &Bitfield, order: u8) -> Vec<u32> {
        let mut blocks = naive_blocks(field, order);
        blocks.retain(|at| order == 9 || !naive_free(field, at & !((2 << order) - 1), order + 1));
        blocks
    }

    fn check(field: &Bitfield) {
        let largest = (0..=9).rev().find(|&order| !naive_blocks(field, order).is_empty());
        assert_eq!(field.largest(), largest, "{field:x?}");
        let mut counts = [0; 10];
        field.count(&mut counts);
        for order in 0..=9 {
            assert_eq!(
                counts[usize::from(order)],
                naive_alone(field, order).len() as u64,
                "{field:x?} {order}"
            );
            let best = (order..=9).find_map(|at| naive_alone(field, at).first().copied());
            assert_eq!(field.find(order), best, "{field:x?} {order}");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "safe code, and exhaustive")]
    fn every_pattern_of_sixteen_frames_at_every_place() {
        for pattern in 0..=u64::from(u16::MAX) {
            // Alone in its word, and in a word that is free otherwise, at a place that depends on the pattern.
            let place = (pattern % 4 * 16) as u32;
            for word in [pattern << place, pattern << place | !(0xffff << place)] {
                for order in 0..=6u8 {
                    let expected = (0..64u32).step_by(1 << order).fold(0, |starts, bit| {
                        starts | u64::from(word & mask(bit, order) == mask(bit, order)) << bit
                    });
                    assert_eq!(runs(word, order), expected, "{word:x} {order}");
                }
            }
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "safe code, and exhaustive")]
    fn every_combination_of_full_and_empty_words() {
        for full in 0..256u32 {
            let mut field = Bitfield::default();
            for (at, word) in field.words.iter_mut().enumerate() {
                *word = if full >> at & 1 == 1 { u64::MAX } else { 0 };
            }
            assert_eq!(field.full(), u64::from(full));
            check(&field);
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "safe code, and exhaustive")]
    fn parts_cover_the_block_and_nothing_else() {
        for order in 0..=9 {
            for at in (0..PAGEBLOCK).step_by(1 << order) {
                let mut field = Bitfield::default();
                parts(at, order).for_each(|(word, bits)| field.words[word] |= bits);
                assert_eq!(naive_alone(&field, order), [at]);
                assert_eq!(field.words.iter().map(|word| word.count_ones()).sum::<u32>(), 1 << order);
            }
        }
    }

    proptest! {
        /// Words of which whole stretches are free or taken, as allocation leaves them.
        #[test]
        #[cfg_attr(miri, ignore = "safe code")]
        fn runs_are_what_a_look_at_every_frame_finds(
            words in prop::array::uniform8(prop_oneof![
                Just(0), Just(u64::MAX), any::<u64>(),
                (any::<u64>(), 0u32..6).prop_map(|(word, order)| {
                    (0..64).fold(0, |spread, bit| spread | (word >> (bit >> order) & 1) << bit)
                }),
            ]),
        ) {
            check(&Bitfield { words });
        }
    }
}

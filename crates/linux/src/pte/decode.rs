//! From raw page tables to bits a page.

use super::walk::{Table, bit};
use isotherm_damon::Pages;

/// A bit a page; as in [`isotherm_damon::BlockLook`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bits {
    pub present: Pages,
    pub young: Pages,
    pub writable: Pages,
    pub around: Pages,
}

/// Where the bit that says that an entry is special goes in its byte: that of one that is not asked for.
const SPECIAL_SHIFT: u32 = 7;
const ACCESSED_SHIFT: u32 = bit::ACCESSED.trailing_zeros();
const WRITABLE_SHIFT: u32 = bit::WRITABLE.trailing_zeros();
const DIRTY_SHIFT: u32 = bit::DIRTY.trailing_zeros();

/// What of a block its page table tells: which pages are present, and of those which have the Accessed bit set, which are writable,
/// and which may be there by fault-around: clean ones, since what a fault maps to be written is dirty, but for zero pages, of which
/// each has a fault of its own.
///
/// It is done once a block and look, which made it a twenty-fifth of all cost: so with the vectors that most processors have by now,
/// where there are any.
pub fn pages(table: &Table) -> Bits {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2.
        return unsafe { with_avx2(table) };
    }
    in_words(table)
}

/// What is asked for of entries, a byte each.
#[inline(always)]
fn to_bytes(table: &Table) -> [u8; 512] {
    let mut bytes = [0u8; 512];
    for (byte, entry) in bytes.iter_mut().zip(table) {
        let special = (*entry >> bit::SPECIAL.trailing_zeros() & 1) << SPECIAL_SHIFT;
        *byte = (*entry & ((1 << SPECIAL_SHIFT) - 1) | special) as u8;
    }
    bytes
}

/// In steps that compilers make vector instructions of: entries to bytes first, then eight bytes at a time to bits.
fn in_words(table: &Table) -> Bits {
    const ONES: u64 = 0x0101_0101_0101_0101;
    // Multiplied by this, the lowest bits of eight bytes meet in the highest byte, the first byte's lowest.
    const GATHER: u64 = 0x0102_0408_1020_4080;
    let bytes = to_bytes(table);
    let mut found = Bits::default();
    let Bits { present, young, writable, around } = &mut found;
    let words = present.0.iter_mut().zip(&mut young.0).zip(&mut writable.0).zip(&mut around.0);
    for ((((present, young), writable), around), bytes) in words.zip(bytes.as_chunks::<64>().0) {
        for (i, eight) in bytes.as_chunks::<8>().0.iter().enumerate() {
            let eight = u64::from_le_bytes(*eight);
            let (p, y) = (eight & ONES, eight & eight >> ACCESSED_SHIFT & ONES);
            let w = eight & eight >> WRITABLE_SHIFT & ONES;
            let a = eight & !(eight >> DIRTY_SHIFT | eight >> SPECIAL_SHIFT) & ONES;
            *present |= (p.wrapping_mul(GATHER) >> 56) << (8 * i);
            *young |= (y.wrapping_mul(GATHER) >> 56) << (8 * i);
            *writable |= (w.wrapping_mul(GATHER) >> 56) << (8 * i);
            *around |= (a.wrapping_mul(GATHER) >> 56) << (8 * i);
        }
    }
    found
}

/// The same, 32 bytes at a time to bits.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn with_avx2(table: &Table) -> Bits {
    use std::arch::x86_64::{_mm256_movemask_epi8, _mm256_set_epi64x, _mm256_slli_epi16};
    /// Of each byte the bit `$shift`, as bits.
    macro_rules! bits {
        ($bytes:expr, $shift:expr) => {
            // The highest bit of each byte; what comes from the byte below lies lower.
            u64::from(_mm256_movemask_epi8(_mm256_slli_epi16::<{ 7 - $shift as i32 }>($bytes)) as u32)
        };
    }
    let bytes = to_bytes(table);
    let mut found = Bits::default();
    for (i, half) in bytes.as_chunks::<32>().0.iter().enumerate() {
        let [a, b, c, d] = [0, 8, 16, 24].map(|at| {
            let eight = half.get(at..at + 8).and_then(|eight| eight.try_into().ok());
            u64::from_le_bytes(eight.unwrap_or_default()) as i64
        });
        let bytes = _mm256_set_epi64x(d, c, b, a);
        let (p, special) = (bits!(bytes, 0), bits!(bytes, SPECIAL_SHIFT));
        let (y, w, d) =
            (bits!(bytes, ACCESSED_SHIFT), bits!(bytes, WRITABLE_SHIFT), bits!(bytes, DIRTY_SHIFT));
        let (word, shift) = (i / 2, 32 * (i % 2));
        found.present.0[word] |= p << shift;
        found.young.0[word] |= (p & y) << shift;
        found.writable.0[word] |= (p & w) << shift;
        found.around.0[word] |= (p & !(d | special)) << shift;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bits_are_those_of_the_entries(entries in proptest::collection::vec(any::<u64>(), 512)) {
            let table: Table = entries.try_into().unwrap();
            let Bits { present, young, writable, around } = pages(&table);
            // Whichever this processor takes.
            prop_assert_eq!(in_words(&table), pages(&table));
            for (i, entry) in table.iter().enumerate() {
                prop_assert_eq!(present.contains(i), entry & 1 != 0);
                prop_assert_eq!(young.contains(i), entry & 0x21 == 0x21);
                prop_assert_eq!(writable.contains(i), entry & 0x3 == 0x3);
                // Present, neither dirty nor special.
                prop_assert_eq!(around.contains(i), entry & 0x241 == 0x1);
            }
        }
    }
}

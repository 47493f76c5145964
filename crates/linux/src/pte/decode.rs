//! From raw page tables to bits a page.

use super::walk::{Table, bit};
use isotherm_damon::Pages;

/// Which pages of a page table are present, which of those have the Accessed bit set, and which are writable.
///
/// It is done once a block and look, so in steps that compilers make vector instructions of: entries to bytes first, then
/// eight bytes at a time to bits.
pub fn pages(table: &Table) -> (Pages, Pages, Pages) {
    const ONES: u64 = 0x0101_0101_0101_0101;
    // Multiplied by this, the lowest bits of eight bytes meet in the highest byte, the first byte's lowest.
    const GATHER: u64 = 0x0102_0408_1020_4080;
    const ACCESSED_SHIFT: u32 = bit::ACCESSED.trailing_zeros();
    const WRITABLE_SHIFT: u32 = bit::WRITABLE.trailing_zeros();
    let mut bytes = [0u8; 512];
    for (byte, entry) in bytes.iter_mut().zip(table) {
        *byte = *entry as u8;
    }
    let (mut present, mut young, mut writable) = (Pages::NONE, Pages::NONE, Pages::NONE);
    let words = present.0.iter_mut().zip(&mut young.0).zip(&mut writable.0);
    for (((present, young), writable), bytes) in words.zip(bytes.as_chunks::<64>().0) {
        for (i, eight) in bytes.as_chunks::<8>().0.iter().enumerate() {
            let eight = u64::from_le_bytes(*eight);
            let (p, y) = (eight & ONES, eight & eight >> ACCESSED_SHIFT & ONES);
            let w = eight & eight >> WRITABLE_SHIFT & ONES;
            *present |= (p.wrapping_mul(GATHER) >> 56) << (8 * i);
            *young |= (y.wrapping_mul(GATHER) >> 56) << (8 * i);
            *writable |= (w.wrapping_mul(GATHER) >> 56) << (8 * i);
        }
    }
    (present, young, writable)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bits_are_those_of_the_entries(entries in proptest::collection::vec(any::<u64>(), 512)) {
            let table: Table = entries.try_into().unwrap();
            let (present, young, writable) = pages(&table);
            for (i, entry) in table.iter().enumerate() {
                prop_assert_eq!(present.contains(i), entry & 1 != 0);
                prop_assert_eq!(young.contains(i), entry & 0x21 == 0x21);
                prop_assert_eq!(writable.contains(i), entry & 0x3 == 0x3);
            }
        }
    }
}

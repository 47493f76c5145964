//! From raw page tables to bits a page.

use super::walk::{Table, bit};
use isotherm_damon::Pages;

/// A bit a page; as in [`isotherm_damon::BlockLook`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Bits {
    pub present: Pages,
    pub young: Pages,
    pub writable: Pages,
    pub around: Pages,
}

/// What of a block its page table tells: which pages are present, and of those which have the Accessed bit set, which are writable,
/// and which may be there by fault-around: clean ones, since what a fault maps to be written is dirty, but for zero pages, of which
/// each has a fault of its own.
///
/// It is done once a block and look, so in steps that compilers make vector instructions of: entries to bytes first, then
/// eight bytes at a time to bits.
pub fn pages(table: &Table) -> Bits {
    const ONES: u64 = 0x0101_0101_0101_0101;
    // Multiplied by this, the lowest bits of eight bytes meet in the highest byte, the first byte's lowest.
    const GATHER: u64 = 0x0102_0408_1020_4080;
    const ACCESSED_SHIFT: u32 = bit::ACCESSED.trailing_zeros();
    const WRITABLE_SHIFT: u32 = bit::WRITABLE.trailing_zeros();
    const DIRTY_SHIFT: u32 = bit::DIRTY.trailing_zeros();
    // In the place of a bit that is not asked for.
    const SPECIAL_SHIFT: u32 = 7;
    let mut bytes = [0u8; 512];
    for (byte, entry) in bytes.iter_mut().zip(table) {
        let special = (*entry >> bit::SPECIAL.trailing_zeros() & 1) << SPECIAL_SHIFT;
        *byte = (*entry & ((1 << SPECIAL_SHIFT) - 1) | special) as u8;
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bits_are_those_of_the_entries(entries in proptest::collection::vec(any::<u64>(), 512)) {
            let table: Table = entries.try_into().unwrap();
            let Bits { present, young, writable, around } = pages(&table);
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

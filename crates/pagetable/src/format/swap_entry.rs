//! Swap entries, in the sense of Linux' `swp_entry_t`: what the entry of a page table holds whose page is elsewhere, in swap, or
//! on its way to another frame (a migration entry).

use super::Format;
use crate::address::PAGE_SHIFT;

/// What the entry of a page holds in the page's place: which page of swap it is, or which migration it waits for. The value
/// is the caller's; the format puts it where no CPU takes it for the address of memory, if the value is not larger than
/// [`largest_safe`](Self::largest_safe).
///
/// The limit matters on x86-64 CPUs with L1TF, which read ahead through the address in an entry that is not present. There the
/// address of a swap entry is in the upper half of what the CPU can address only up to that value, and there must be no memory
/// in that half. A larger value is stored and read back all the same.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SwapEntry {
    /// Not 0, and below `1 <<` [`Format::SWAP_ENTRY_BITS`]. See [`largest_safe`](Self::largest_safe) for CPUs with L1TF.
    pub value: u64,
    /// The anonymous page belonged to this mapping alone, as [`Attributes::exclusive`](crate::Attributes::exclusive) says
    /// of a page. A fork makes it shared.
    pub exclusive: bool,
}

impl From<u64> for SwapEntry {
    /// A swap entry that others may hold too.
    fn from(value: u64) -> SwapEntry {
        SwapEntry { value, exclusive: false }
    }
}

impl SwapEntry {
    /// The largest value whose entry, up to which every entry, has an address in the upper half of `address_bits` bits: no CPU
    /// that reads ahead through it (L1TF) finds memory there, if all memory is in the lower half. 0 if there is none.
    ///
    /// `address_bits` are those of a physical address that the CPU's L1 cache compares: what `CPUID` leaf 0x8000_0008 reports, or
    /// more where the cache has more (Linux' `x86_cache_bits`; its `max_swapfile_size` is the same limit). More than the format
    /// can hold count as so many.
    ///
    /// ```
    /// use isotherm_pagetable::{SwapEntry, X86_64};
    ///
    /// // 46 bits: swap of 2^33 pages, which are 32 TiB, and no memory from 32 TiB on.
    /// assert_eq!(SwapEntry::largest_safe::<X86_64>(46), (1 << 33) - 1);
    /// // With all 52 every value is safe.
    /// assert_eq!(SwapEntry::largest_safe::<X86_64>(52), (1 << 48) - 1);
    /// ```
    #[must_use]
    pub fn largest_safe<F: Format>(address_bits: u32) -> u64 {
        let bits = address_bits.min(F::FRAME_LIMIT.ilog2() + PAGE_SHIFT);
        let Some(highest) = bits.checked_sub(1 + PAGE_SHIFT) else { return 0 };
        // Each bit of a value inverts one bit of the entry, so the first that clears the highest of the address is the limit.
        let in_upper_half = |value| F::frame(F::swap_entry(value) | F::VALID).0 >> highest & 1 == 1;
        if !in_upper_half(0) {
            return 0;
        }
        let clears = (0..F::SWAP_ENTRY_BITS).find(|&bit| !in_upper_half(1 << bit));
        (1 << clears.unwrap_or(F::SWAP_ENTRY_BITS)) - 1
    }

    /// The entry.
    pub(crate) fn encode<F: Format>(self) -> Option<u64> {
        let fits = self.value != 0 && self.value >> F::SWAP_ENTRY_BITS == 0;
        fits.then(|| F::swap_entry(self.value) | if self.exclusive { F::EXCLUSIVE } else { 0 })
    }

    /// What an entry holds that is neither present nor empty.
    pub(crate) fn decode<F: Format>(raw: u64) -> SwapEntry {
        SwapEntry { value: F::swap_entry_value(raw), exclusive: raw & F::EXCLUSIVE != 0 }
    }
}

/// Where a format keeps the value of a swap entry.
///
/// A CPU with L1TF reads ahead through the address bits of an entry that is not present. So the value's low bits stand there
/// inverted, and above them are ones: the address is at the end of what the CPU can address, where there is no memory, as
/// long as values are small. How small depends on how many bits of an address the CPU's cache compares: with `n` of them,
/// values below `2^(n - 13)` are safe (Linux limits the size of swap to the same: `max_swapfile_size`).
pub(super) struct Place {
    /// The lowest bit of the address.
    pub low: u32,
    /// How many bits of the value are there.
    pub bits: u32,
    /// All bits that are set whatever the value is.
    pub ones: u64,
    /// Where the rest of the value is.
    pub high: u32,
}

impl Place {
    #[inline]
    pub const fn encode(&self, value: u64) -> u64 {
        let mask = (1 << self.bits) - 1;
        (!value & mask) << self.low | self.ones | (value >> self.bits) << self.high
    }

    #[inline]
    pub const fn decode(&self, raw: u64, value_bits: u32) -> u64 {
        let mask = (1 << self.bits) - 1;
        let rest = (1 << (value_bits - self.bits)) - 1;
        (!raw >> self.low & mask) | (raw >> self.high & rest) << self.bits
    }
}

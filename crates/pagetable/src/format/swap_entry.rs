//! Swap entries, in the sense of Linux' `swp_entry_t`: what the entry of a page table holds whose page is elsewhere, in swap, or
//! on its way to another frame (a migration entry).

use super::Format;

/// What the entry of a page holds in the page's place: which page of swap it is, or which migration it waits for. The value
/// is the caller's; the format puts it where no CPU takes it for the address of memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SwapEntry {
    /// Not 0, and below `1 <<` [`Format::SWAP_ENTRY_BITS`].
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

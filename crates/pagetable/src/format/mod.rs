//! How entries are encoded: the trait and what all formats share.

mod arm64;
mod riscv;
mod swap_entry;
mod x86_64;

pub use arm64::{
    ARM64_MAIR, Arm64, Arm64Haf, Arm64Hafdbs, Arm64Software, Granule, Granule4K, Granule4KLpa2, Granule16K,
    Granule16KLpa2, Granule64K, Granule64KLpa, Haf, Hafdbs, HardwareBits, Software, Ttbr, Ttbr0, Ttbr1,
};
pub use riscv::{RiscV, RiscVBits, RiscVLevels, Sv39, Sv48, Sv57, Svade, Svadu};
pub use swap_entry::SwapEntry;
pub use x86_64::{X86_64, X86_64_PAT, X86_64La57};

use crate::address::{Frame, Level, PAGE_SHIFT};
use crate::table::Entry;

/// How the CPU caches accesses to a mapping.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum MemoryType {
    /// Ordinary memory.
    #[default]
    WriteBack,
    /// Cached for reads, writes go through. RISC-V has none.
    WriteThrough,
    /// Not cached, but writes are gathered and reads may be ahead of time, as for frame buffers: WC of x86-64's PAT,
    /// Normal-NC of arm64, NC of RISC-V.
    WriteCombining,
    /// Registers of devices: uncached, in order.
    Device,
}

/// What a leaf says apart from its frame. `Default` is nothing permitted, ordinary memory, clean, old.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Attributes {
    /// User programs may access it. Without, it is for the kernel only.
    pub user: bool,
    /// Nobody may access it, not even the kernel (`PROT_NONE`): the entry is not present for hardware, a software bit says
    /// that a page is mapped all the same, and the rest stays for when it is permitted again.
    ///
    /// For CPUs with L1TF the formats of x86-64 keep the frame inverted: its address is then in the upper half of what the CPU can
    /// address, if the memory itself is in the lower half. So such a CPU must have no memory from half of its physical address
    /// space on (2^45 bytes with 46 bits of address), as Linux warns too; else pages that nobody may access can be read ahead.
    pub no_access: bool,
    /// May be written. In a private mapping only exclusive folios are.
    pub write: bool,
    /// May be executed: by user programs if `user`, else by the kernel.
    pub execute: bool,
    /// The translation is the same in every address space, so a change of space does not flush it, nor does what flushes one
    /// ASID or PCID. Only a [kernel's half](crate::KernelHalf) may have such leaves, and spaces of a format of the
    /// [upper half](Half::Upper): elsewhere operations refuse it with [`Error::Global`](crate::Error::Global).
    pub global: bool,
    /// Caching.
    pub memory: MemoryType,
    /// Accessed since this was last cleared (the A bit, arm64's access flag).
    pub young: bool,
    /// Written since this was last cleared.
    pub dirty: bool,
    /// The anonymous page belongs to this mapping alone: a write fault may reuse it without a copy, and fork makes
    /// it shared. Linux keeps this bit with the page (`PageAnonExclusive`); kept in the entry, fork clears it with
    /// the same store that write-protects.
    pub exclusive: bool,
    /// No folio stands behind the frame (device memory, the zero page): nothing is counted and nothing freed.
    pub special: bool,
}

impl Attributes {
    /// Anonymous memory as a fault on a private writable mapping sets it up: user, writable, young, dirty, exclusive.
    #[must_use]
    pub const fn anonymous() -> Attributes {
        Attributes {
            user: true,
            no_access: false,
            write: true,
            execute: false,
            global: false,
            memory: MemoryType::WriteBack,
            young: true,
            dirty: true,
            exclusive: true,
            special: false,
        }
    }

    /// A page of a file as a read fault sets it up: user, read-only, young, clean.
    #[must_use]
    pub const fn file() -> Attributes {
        Attributes { write: false, dirty: false, exclusive: false, ..Attributes::anonymous() }
    }
}

/// Which half of the 64-bit addresses a tree translates.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Half {
    /// From 0 on.
    Lower,
    /// Up to the last address.
    Upper,
    /// Both, half of the table each: addresses are sign-extended.
    Both,
}

impl Half {
    /// Whether page numbers are all in one stretch that `bits` bits of an address translate.
    #[inline]
    fn holds(self, bits: u32, first: u64, end: u64) -> bool {
        let all = 1u64 << (64 - PAGE_SHIFT);
        let size = 1u64 << (bits - PAGE_SHIFT - u32::from(self == Half::Both));
        (self != Half::Upper && end <= size) || (self != Half::Lower && first >= all - size && end <= all)
    }
}

/// A page-table format. All are zero-sized types with constants and pure functions of an entry's 64 bits, so that the
/// operations are compiled once for each.
///
/// Entries that hardware takes for not present are software's: 0 is empty, others are pages that nobody may access
/// ([`Attributes::no_access`]) or hold a [`SwapEntry`]. Where CPUs read ahead through the address in such an entry (L1TF), none
/// of them may look like the address of memory, as long as all memory is below half of the CPU's physical address space and swap
/// entries are no larger than [`SwapEntry::largest_safe`].
///
/// # Safety
/// The operations rely on, for every present leaf `raw` and all `n` with frames below `FRAME_LIMIT`:
/// - the frame is added to linearly: `raw + n * step(raw, level)`, wrapping, is the same leaf `n` leaves further on, within
///   aligned stretches of `LINEAR` frames;
/// - [`no_hw_update`](Self::no_hw_update) is true only if hardware can change no bit of the entry, whatever it accesses;
/// - an entry is a table exactly if `is_table` says so, and `table_frame` is what `table` was given;
/// - the entry `1 << 7` is neither present nor a table at any level: operations leave that where they are about to write
///   another;
/// - of valid entries bit 0 is set, of swap entries none of `PRESENT`, and a swap entry is not 0.
pub unsafe trait Format: 'static {
    /// What people call it.
    const NAME: &'static str;
    /// The level of the root table.
    const ROOT: Level;
    /// The largest leaf.
    const LARGEST_LEAF: Level;
    /// The order, in frames of 4 KiB, of the smallest leaf and of a table: the granule.
    const GRANULE: u32;
    /// Bits of a page number that a table translates: it has `1 << TABLE_BITS` entries.
    const TABLE_BITS: u32;
    /// Bits of a virtual address.
    const VA_BITS: u32;
    /// Which addresses of 64 bits have so few.
    const HALF: Half;
    /// Entries of a contiguous block in the lowest tables: a power of two, 128 at the most, 1 where the format has none.
    const CONTIGUOUS: usize;
    /// Entries of a contiguous block in the tables above.
    const CONTIGUOUS_PMD: usize;
    /// The bit of an entry where the frame number begins.
    const FRAME_BIT: u32;
    /// Frames must be below this.
    const FRAME_LIMIT: u64;
    /// Adding to an entry does not lead past a multiple of so many frames, where the number goes on in other bits.
    const LINEAR: u64 = Self::FRAME_LIMIT;
    /// The bit that makes an entry valid for hardware.
    const VALID: u64;
    /// That bit, and the one of [`Attributes::no_access`]: an entry that has one of them is a table or maps a page.
    const PRESENT: u64;
    /// The accessed bit.
    const YOUNG: u64;
    /// Every bit that says young and dirty, and nothing else (of an entry whose permission to write is compared apart).
    const STATE: u64;
    /// The contiguous bit, 0 without.
    const CONT: u64;
    /// The software bit of [`Attributes::exclusive`].
    const EXCLUSIVE: u64;
    /// The software bit of [`Attributes::special`].
    const SPECIAL: u64;

    /// What a valid leaf of the lowest level grows by from one to the next.
    const STEP: u64 = 1 << (Self::GRANULE + Self::FRAME_BIT);

    /// Whether the tree translates the page numbers `first..end`, `first < end`.
    fn translates(first: u64, end: u64) -> bool {
        Self::HALF.holds(Self::VA_BITS, first, end)
    }
    /// Bits of a page number that lie below this level's index.
    #[inline(always)]
    fn shift(level: Level) -> u32 {
        Self::GRANULE + level as u32 * Self::TABLE_BITS
    }
    /// Pages under one entry of this level.
    #[inline(always)]
    fn pages(level: Level) -> u64 {
        1 << Self::shift(level)
    }
    /// Pages under a whole table of this level.
    #[inline(always)]
    fn table_pages(level: Level) -> u64 {
        Self::pages(level) << Self::TABLE_BITS
    }
    /// Which entry of a table of this level translates the page.
    #[inline(always)]
    fn index(level: Level, page: u64) -> usize {
        let bits = Self::VA_BITS - PAGE_SHIFT;
        let index = (page >> Self::shift(level)) as usize & ((1 << Self::TABLE_BITS) - 1);
        // A root of fewer entries than other tables: what is above the address says which half it is.
        let root = Self::shift(Self::ROOT);
        if bits < root + Self::TABLE_BITS && level == Self::ROOT {
            index & ((1 << (bits - root)) - 1)
        } else {
            index
        }
    }
    /// Entries of a contiguous block of this level.
    #[inline(always)]
    fn contiguous(level: Level) -> usize {
        match level {
            Level::Pte => Self::CONTIGUOUS,
            Level::Pmd => Self::CONTIGUOUS_PMD,
            _ => 1,
        }
    }
    /// Whether leaves of this level can be cached like that.
    fn supports(level: Level, memory: MemoryType) -> bool;
    /// The entry that refers to a lower table.
    fn table(frame: Frame) -> u64;
    /// Whether a present entry of this level refers to a lower table.
    fn is_table(level: Level, raw: u64) -> bool;
    /// The frame of a table entry.
    fn table_frame(raw: u64) -> Frame;
    /// The leaf of this level.
    fn leaf(level: Level, frame: Frame, attributes: Attributes) -> u64;
    /// The first frame of a leaf.
    fn frame(raw: u64) -> Frame;
    /// What a leaf says apart from the frame.
    fn attributes(raw: u64) -> Attributes;
    /// What a leaf of this level grows by, wrapping, to be that of the frames that follow its own.
    #[inline(always)]
    fn step(_raw: u64, level: Level) -> u64 {
        Self::pages(level) << Self::FRAME_BIT
    }
    /// Bits of a swap entry's value.
    const SWAP_ENTRY_BITS: u32;
    /// The entry that holds a swap entry, without [`EXCLUSIVE`](Self::EXCLUSIVE), which is kept as in a leaf. The value is below
    /// `1 << SWAP_ENTRY_BITS`.
    fn swap_entry(value: u64) -> u64;
    /// The value of the swap entry in an entry that is neither present nor empty.
    fn swap_entry_value(raw: u64) -> u64;
    /// The same leaf for another level, its frame unchanged.
    fn at_level(raw: u64, level: Level) -> u64;
    /// May be written.
    fn is_writable(raw: u64) -> bool;
    /// Is dirty.
    fn is_dirty(raw: u64) -> bool;
    /// Whether one of several leaves is dirty that agree but for `STATE`, from the OR and the AND of their bits.
    fn any_dirty(or: u64, and: u64) -> bool;
    /// The leaf, read-only, as dirty as before.
    fn write_protect(raw: u64) -> u64;
    /// The leaf, writable, as dirty as before.
    fn make_writable(raw: u64) -> u64;
    /// The leaf, clean.
    fn make_clean(raw: u64) -> u64;
    /// The leaf, dirty.
    fn make_dirty(raw: u64) -> u64;
    /// Whether no access can make hardware change the entry any more. Then a plain store by the holder of the table's
    /// lock loses nothing.
    fn no_hw_update(raw: u64) -> bool;

    /// Whether [`no_hw_update`](Self::no_hw_update) holds for all of several leaves, from the OR and the AND of their bits. `false` if these do not decide it.
    fn no_hw_update_of_any(or: u64, and: u64) -> bool;

    /// Whether hardware sets the accessed bit. If not, an access to an old page faults.
    const HARDWARE_YOUNG: bool;
    /// Whether hardware makes a writable clean page dirty. If not, the first write faults.
    const HARDWARE_DIRTY: bool;

    /// Reads an entry. Every read of a leaf by the range operations goes through here, so that a format of a test can
    /// count them.
    #[inline]
    fn load(entry: &Entry) -> u64 {
        entry.load()
    }

    /// The entries from `index` on that the architecture holds to be one batch: what is left of a contiguous block,
    /// of so many entries, else 1 (the seed's `pte_batch_remaining`).
    #[inline]
    fn batch_remaining(raw: u64, index: usize, block: usize) -> usize {
        if Self::CONTIGUOUS > 1 && raw & Self::CONT != 0 { block - index % block } else { 1 }
    }

    /// Whether the entry is a leaf, of a page that nobody may access too, or a table.
    #[inline]
    fn is_present(raw: u64) -> bool {
        raw & Self::PRESENT != 0
    }

    /// Whether hardware follows the entry.
    #[inline]
    fn is_valid(raw: u64) -> bool {
        raw & Self::VALID != 0
    }

    /// Is young.
    #[inline]
    fn is_young(raw: u64) -> bool {
        raw & Self::YOUNG != 0
    }
}

//! How entries are encoded: the trait and what all formats share.

mod arm64;
mod x86_64;

pub use arm64::{Arm64, Arm64Haf, Arm64Hafdbs, Arm64Software};
pub use x86_64::{X86_64, X86_64La57};

use crate::address::{Frame, Level};
use crate::table::Entry;

/// Bits of a token that a non-present entry can hold.
pub const TOKEN_BITS: u32 = 56;

/// How the CPU caches accesses to a mapping.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum MemoryType {
    /// Ordinary memory.
    #[default]
    WriteBack,
    /// Cached for reads, writes go through.
    WriteThrough,
    /// Registers of devices: uncached, in order.
    Device,
}

/// What a leaf says apart from its frame. `Default` is nothing permitted, ordinary memory, clean, old.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Attributes {
    /// User programs may access it. Without, it is for the kernel only: how `PROT_NONE` is expressed too.
    pub user: bool,
    /// May be written. In a private mapping only exclusive folios are.
    pub write: bool,
    /// May be executed: by user programs if `user`, else by the kernel.
    pub execute: bool,
    /// The translation is the same in every address space, so a change of space does not flush it.
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

/// A page-table format. All are zero-sized types with constants and pure functions of an entry's 64 bits, so that the
/// operations are compiled once for each.
///
/// Entries that are not present are free for software: 0 is empty, others hold a token (a swap slot), see
/// [`encode_token`].
///
/// # Safety
/// The operations rely on, for every present leaf `raw` and all `n` with frames below `FRAME_LIMIT`:
/// - the frame is added to linearly: `raw + (n << 12)` is the same leaf `n` frames further on;
/// - [`settled`](Self::settled) is true only if hardware can change no bit of the entry, whatever it accesses;
/// - an entry is a table exactly if `is_table` says so, and `table_frame` is what `table` was given;
/// - an entry whose two lowest bits are clear is not present, and the entry `1 << 7` no table either at any level:
///   operations leave that where they are about to write another.
pub unsafe trait Format: 'static {
    /// What people call it.
    const NAME: &'static str;
    /// The level of the root table.
    const ROOT: Level;
    /// The largest leaf.
    const LARGEST_LEAF: Level;
    /// Entries of a contiguous block: 16 on arm64, 1 where the format has none. Nothing else is supported.
    const CONTIGUOUS: usize;
    /// Frames must be below this.
    const FRAME_LIMIT: u64;
    /// The bit that makes an entry present.
    const PRESENT: u64;
    /// The accessed bit.
    const YOUNG: u64;
    /// Every bit that only tells young and dirty (of an entry whose permission to write is compared apart).
    const STATE: u64;
    /// The contiguous bit, 0 without.
    const CONT: u64;
    /// The software bit of [`Attributes::exclusive`].
    const EXCLUSIVE: u64;
    /// The software bit of [`Attributes::special`].
    const SPECIAL: u64;

    /// Whether the tree translates the page numbers `first..end`, `first < end`.
    fn translates(first: u64, end: u64) -> bool;
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
    fn settled(raw: u64) -> bool;

    /// Whether all of several leaves are settled, from the OR and the AND of their bits. `false` if that does not tell.
    fn all_settled(or: u64, and: u64) -> bool;

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
    /// else 1 (the seed's `pte_batch_remaining`).
    #[inline]
    fn batch_remaining(raw: u64, index: usize) -> usize {
        if Self::CONTIGUOUS > 1 && raw & Self::CONT != 0 {
            Self::CONTIGUOUS - index % Self::CONTIGUOUS
        } else {
            1
        }
    }

    /// Whether the entry is a leaf or a table.
    #[inline]
    fn is_present(raw: u64) -> bool {
        raw & Self::PRESENT != 0
    }

    /// Is young.
    #[inline]
    fn is_young(raw: u64) -> bool {
        raw & Self::YOUNG != 0
    }
}

/// The non-present entry that holds a token.
///
/// The two lowest bits stay clear, which both architectures take for not present whatever the other bits are.
#[inline]
#[must_use]
pub const fn encode_token(token: u64) -> Option<u64> {
    if token == 0 || token >> TOKEN_BITS != 0 { None } else { Some(token << 2) }
}

/// The token of a non-present entry that is not empty.
#[inline]
#[must_use]
pub const fn decode_token(raw: u64) -> u64 {
    raw >> 2
}

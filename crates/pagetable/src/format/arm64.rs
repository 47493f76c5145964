//! arm64, stage 1 (Arm ARM, D8.3): granules of 4, 16 and 64 KiB, addresses of 48 or 52 bits, translated through TTBR0 or
//! TTBR1.
//!
//! | bits | meaning | | bits | meaning |
//! |---|---|---|---|---|
//! | 0 | valid | | 51 | DBM: may be written |
//! | 1 | table, or leaf at the PTE level | | 52 | contiguous |
//! | 2..=4 | memory attribute index | | 53 | not executable by the kernel |
//! | 5 | software: nobody may access it (not valid) | | 54 | not executable by user programs |
//! | 6 | user | | 55 | software: dirty although read-only |
//! | 7 | read-only | | 56 | software: special |
//! | 8, 9 | inner shareable; with LPA2 address bits 50, 51 | | 57 | software: exclusive |
//! | 10 | access flag | | 12..=47 | frame; with LPA2 up to 49 |
//! | 11 | not global | | 12..=15 | with 64 KiB and LPA, address bits 48..=51 |
//!
//! Dirty state is where the hardware that has it keeps it: an entry that may be written (DBM) is dirty if bit 7 is
//! clear, which hardware does on the first write, and software in its place where hardware cannot. A page that is
//! write-protected keeps its dirtiness in bit 55.
//!
//! `MAIR_EL1` must hold [`ARM64_MAIR`]: attribute 0 = 0xff (write-back), 1 = 0xbb (write-through), 2 = 0x04 (Device-nGnRE), 3 =
//! 0x44 (Normal-NC, for write-combining). With LPA2 `TCR_EL1.DS` is set, and `SH0` or `SH1` says inner shareable.

use core::marker::PhantomData;

use super::swap_entry::Place;
use super::{Attributes, Format, Half, MemoryType};
use crate::address::{Frame, Level, TABLE_BITS};

/// What `MAIR_EL1` must hold for the memory types of these formats.
pub const ARM64_MAIR: u64 = 0x4404_bbff;

const VALID: u64 = 1 << 0;
const TABLE: u64 = 1 << 1;
const ATTRIBUTE: u32 = 2;
/// NS in an entry of secure memory, which this is not.
const NO_ACCESS: u64 = 1 << 5;
const USER: u64 = 1 << 6;
const READ_ONLY: u64 = 1 << 7;
const INNER_SHAREABLE: u64 = 3 << 8;
const ACCESS_FLAG: u64 = 1 << 10;
const NOT_GLOBAL: u64 = 1 << 11;
const DBM: u64 = 1 << 51;
const CONT: u64 = 1 << 52;
const PXN: u64 = 1 << 53;
const UXN: u64 = 1 << 54;
const SAVED_DIRTY: u64 = 1 << 55;
const SPECIAL: u64 = 1 << 56;
const EXCLUSIVE: u64 = 1 << 57;

/// Bits 16..=46 hold the low 31 bits, 50..=56 the rest. What else of an entry may be the upper bits of an address is set.
const SWAP_ENTRY: Place = Place { low: 16, bits: 31, ones: 7 << 47 | 3 << 8 | 0xf << 12, high: 50 };

mod sealed {
    use crate::address::{Frame, Level};

    /// What hardware sets.
    pub trait Bits: 'static {
        const HAF: bool;
        const HD: bool;
        const NAME: &'static str;
    }

    /// The shape of tables, and where the frame is.
    pub trait Granule: 'static {
        const NAME: &'static str;
        const ORDER: u32;
        const TABLE_BITS: u32;
        const ROOT: Level;
        const LARGEST_LEAF: Level;
        const VA_BITS: u32;
        const FRAME_LIMIT: u64;
        const LINEAR: u64;
        const CONTIGUOUS: usize;
        const CONTIGUOUS_PMD: usize;
        /// Bits of the frame in an entry.
        const FRAME: u64;
        /// Of every leaf.
        const SHAREABLE: u64;
        fn frame_bits(frame: Frame) -> u64;
        fn frame(raw: u64) -> Frame;
    }

    pub trait Base: 'static {
        const HALF: crate::format::Half;
    }
}

/// Which of access flag and dirty state hardware manages. Dirty state without access flag there is none.
pub trait HardwareBits: sealed::Bits {}
impl<T: sealed::Bits> HardwareBits for T {}

/// The granule, and whether addresses have 52 bits.
pub trait Granule: sealed::Granule {}
impl<T: sealed::Granule> Granule for T {}

/// The register that the root stands in.
pub trait Ttbr: sealed::Base {}
impl<T: sealed::Base> Ttbr for T {}

macro_rules! bits {
    ($($(#[$doc:meta])* $name:ident: $haf:literal, $hd:literal, $text:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub enum $name {}
        impl sealed::Bits for $name {
            const HAF: bool = $haf;
            const HD: bool = $hd;
            const NAME: &'static str = $text;
        }
    )*};
}

bits! {
    /// Hardware sets access flag and dirty state (FEAT_HAFDBS with `TCR_EL1.HA` and `HD`).
    Hafdbs: true, true, "arm64, hardware A and D";
    /// Hardware sets the access flag, the first write faults (`TCR_EL1.HA` alone).
    Haf: true, false, "arm64, hardware A";
    /// Both are software's: the first access and the first write fault.
    Software: false, false, "arm64, software A and D";
}

/// `TTBR0_EL1`: addresses from 0 on.
#[derive(Clone, Copy, Debug)]
pub enum Ttbr0 {}
/// `TTBR1_EL1`: addresses up to the last, the kernel's.
#[derive(Clone, Copy, Debug)]
pub enum Ttbr1 {}

impl sealed::Base for Ttbr0 {
    const HALF: Half = Half::Lower;
}
impl sealed::Base for Ttbr1 {
    const HALF: Half = Half::Upper;
}

/// The bits `low..=high`.
const fn mask(low: u32, high: u32) -> u64 {
    (u64::MAX >> (63 - high)) & (u64::MAX << low)
}

macro_rules! granules {
    ($($(#[$doc:meta])* $name:ident {
        $order:literal, $table_bits:expr, $root:expr, $largest:expr, $va:literal,
        contiguous: $cont:literal $cont_pmd:literal, address: $pa:literal, low: $low:expr, moved: $moved:expr
    })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub enum $name {}
        impl $name {
            /// The address bits that stand at their place, and how many more there are at which bit.
            const LOW: u64 = $low;
            const MOVED: (u32, u32) = $moved;
        }
        impl sealed::Granule for $name {
            const NAME: &'static str = stringify!($name);
            const ORDER: u32 = $order;
            const TABLE_BITS: u32 = $table_bits;
            const ROOT: Level = $root;
            const LARGEST_LEAF: Level = $largest;
            const VA_BITS: u32 = $va;
            const FRAME_LIMIT: u64 = 1 << ($pa - 12);
            const LINEAR: u64 = 1 << ($pa - Self::MOVED.0 - 12);
            const CONTIGUOUS: usize = $cont;
            const CONTIGUOUS_PMD: usize = $cont_pmd;
            const FRAME: u64 = Self::LOW | ((1 << Self::MOVED.0) - 1) << Self::MOVED.1;
            const SHAREABLE: u64 = INNER_SHAREABLE & !Self::FRAME;

            #[inline]
            fn frame_bits(frame: Frame) -> u64 {
                let address = frame.address();
                if Self::MOVED.0 == 0 {
                    return address & Self::LOW;
                }
                let high = address >> ($pa - Self::MOVED.0);
                address & Self::LOW | (high << Self::MOVED.1) & Self::FRAME
            }

            #[inline]
            fn frame(raw: u64) -> Frame {
                let low = raw & Self::LOW;
                if Self::MOVED.0 == 0 {
                    return Frame(low >> 12);
                }
                let high = (raw & Self::FRAME & !Self::LOW) >> Self::MOVED.1;
                Frame((low | high << ($pa - Self::MOVED.0)) >> 12)
            }
        }
    )*};
}

granules! {
    /// Pages of 4 KiB, addresses of 48 bits.
    Granule4K {
        0, TABLE_BITS, Level::P4d, Level::Pud, 48,
        contiguous: 16 16, address: 48, low: mask(12, 47), moved: (0, 0)
    }
    /// Pages of 4 KiB, addresses of 52 bits (FEAT_LPA2).
    Granule4KLpa2 {
        0, TABLE_BITS, Level::Pgd, Level::Pud, 52,
        contiguous: 16 16, address: 52, low: mask(12, 49), moved: (2, 8)
    }
    /// Pages of 16 KiB, addresses of 48 bits.
    Granule16K {
        2, 11, Level::P4d, Level::Pmd, 48,
        contiguous: 128 32, address: 48, low: mask(14, 47), moved: (0, 0)
    }
    /// Pages of 16 KiB, addresses of 52 bits (FEAT_LPA2).
    Granule16KLpa2 {
        2, 11, Level::P4d, Level::Pud, 52,
        contiguous: 128 32, address: 52, low: mask(14, 49), moved: (2, 8)
    }
    /// Pages of 64 KiB, addresses of 48 bits.
    Granule64K {
        4, 13, Level::Pud, Level::Pmd, 48,
        contiguous: 32 32, address: 48, low: mask(16, 47), moved: (0, 0)
    }
    /// Pages of 64 KiB, addresses of 52 bits (FEAT_LPA and FEAT_LVA).
    Granule64KLpa {
        4, 13, Level::Pud, Level::Pmd, 52,
        contiguous: 32 32, address: 52, low: mask(16, 47), moved: (4, 12)
    }
}

/// arm64 with bits that hardware sets, with a granule, for a half of the addresses.
///
/// ```compile_fail
/// # use isotherm_pagetable::*;
/// // Dirty state without access flag: no hardware has it, and there is no name for it.
/// type Impossible = Arm64<Hd>;
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Arm64<B: HardwareBits, G: Granule = Granule4K, T: Ttbr = Ttbr0>(PhantomData<(B, G, T)>);

/// Hardware sets access flag and dirty state (FEAT_HAFDBS with `TCR_EL1.HA` and `HD`).
pub type Arm64Hafdbs = Arm64<Hafdbs>;
/// Hardware sets the access flag, the first write faults (`TCR_EL1.HA` alone).
pub type Arm64Haf = Arm64<Haf>;
/// Both are software's: the first access and the first write fault.
pub type Arm64Software = Arm64<Software>;

// SAFETY: the frame stands in a row of bits, or in two, as `LINEAR` says; hardware sets the access flag if it manages
// it, and clears bit 7 if it manages dirty state and DBM is set; tables are the entries above the PTE level with bit 1.
unsafe impl<B: HardwareBits, G: Granule, T: Ttbr> Format for Arm64<B, G, T> {
    const NAME: &'static str = B::NAME;
    const ROOT: Level = G::ROOT;
    const LARGEST_LEAF: Level = G::LARGEST_LEAF;
    const GRANULE: u32 = G::ORDER;
    const TABLE_BITS: u32 = G::TABLE_BITS;
    const VA_BITS: u32 = G::VA_BITS;
    const HALF: Half = T::HALF;
    const CONTIGUOUS: usize = G::CONTIGUOUS;
    const CONTIGUOUS_PMD: usize = G::CONTIGUOUS_PMD;
    const FRAME_BIT: u32 = 12;
    const FRAME_LIMIT: u64 = G::FRAME_LIMIT;
    const LINEAR: u64 = G::LINEAR;
    const VALID: u64 = VALID;
    const PRESENT: u64 = VALID | NO_ACCESS;
    const YOUNG: u64 = ACCESS_FLAG;
    const STATE: u64 = ACCESS_FLAG | READ_ONLY | SAVED_DIRTY;
    const CONT: u64 = CONT;
    const EXCLUSIVE: u64 = EXCLUSIVE;
    const SPECIAL: u64 = SPECIAL;
    const HARDWARE_YOUNG: bool = B::HAF;
    const HARDWARE_DIRTY: bool = B::HD;
    const SWAP_ENTRY_BITS: u32 = 38;

    #[inline]
    fn supports(_: Level, _: MemoryType) -> bool {
        true
    }

    #[inline]
    fn swap_entry(value: u64) -> u64 {
        SWAP_ENTRY.encode(value)
    }

    #[inline]
    fn swap_entry_value(raw: u64) -> u64 {
        SWAP_ENTRY.decode(raw, Self::SWAP_ENTRY_BITS)
    }

    #[inline]
    fn table(frame: Frame) -> u64 {
        G::frame_bits(frame) | VALID | TABLE
    }

    #[inline]
    fn is_table(level: Level, raw: u64) -> bool {
        level != Level::Pte && raw & TABLE != 0
    }

    #[inline]
    fn table_frame(raw: u64) -> Frame {
        G::frame(raw)
    }

    fn leaf(level: Level, frame: Frame, a: Attributes) -> u64 {
        let mut raw = G::frame_bits(frame) | G::SHAREABLE;
        raw |= if a.no_access { NO_ACCESS } else { VALID };
        raw |= match a.memory {
            MemoryType::WriteBack => 0,
            MemoryType::WriteThrough => 1,
            MemoryType::Device => 2,
            MemoryType::WriteCombining => 3,
        } << ATTRIBUTE;
        let mut set = |on: bool, bits: u64| raw |= if on { bits } else { 0 };
        set(level == Level::Pte, TABLE);
        set(a.user, USER);
        set(a.write, DBM);
        set(!(a.write && a.dirty), READ_ONLY);
        set(!a.write && a.dirty, SAVED_DIRTY);
        // What user programs can execute the kernel must not, and the other way round.
        set(!(a.execute && a.user), UXN);
        set(!a.execute || a.user, PXN);
        set(!a.global, NOT_GLOBAL);
        set(a.young, ACCESS_FLAG);
        set(a.exclusive, EXCLUSIVE);
        set(a.special, SPECIAL);
        raw
    }

    #[inline]
    fn frame(raw: u64) -> Frame {
        G::frame(raw)
    }

    #[inline]
    fn attributes(raw: u64) -> Attributes {
        let user = raw & USER != 0;
        Attributes {
            user,
            no_access: raw & VALID == 0,
            write: raw & DBM != 0,
            execute: raw & (if user { UXN } else { PXN }) == 0,
            global: raw & NOT_GLOBAL == 0,
            memory: match raw >> ATTRIBUTE & 7 {
                0 => MemoryType::WriteBack,
                1 => MemoryType::WriteThrough,
                3 => MemoryType::WriteCombining,
                _ => MemoryType::Device,
            },
            young: raw & ACCESS_FLAG != 0,
            dirty: Self::is_dirty(raw),
            exclusive: raw & EXCLUSIVE != 0,
            special: raw & SPECIAL != 0,
        }
    }

    #[inline]
    fn at_level(raw: u64, level: Level) -> u64 {
        if level == Level::Pte { raw | TABLE } else { raw & !TABLE }
    }

    #[inline]
    fn is_writable(raw: u64) -> bool {
        raw & DBM != 0
    }

    #[inline]
    fn is_dirty(raw: u64) -> bool {
        raw & SAVED_DIRTY != 0 || raw & (DBM | READ_ONLY) == DBM
    }

    #[inline]
    fn any_dirty(or: u64, and: u64) -> bool {
        or & SAVED_DIRTY != 0 || (or & DBM != 0 && and & READ_ONLY == 0)
    }

    #[inline]
    fn write_protect(raw: u64) -> u64 {
        let saved = if raw & (DBM | READ_ONLY) == DBM { SAVED_DIRTY } else { 0 };
        (raw & !DBM) | READ_ONLY | saved
    }

    #[inline]
    fn make_writable(raw: u64) -> u64 {
        let dirty = if raw & SAVED_DIRTY != 0 { READ_ONLY } else { 0 };
        (raw | DBM) & !(SAVED_DIRTY | dirty)
    }

    #[inline]
    fn make_clean(raw: u64) -> u64 {
        (raw | READ_ONLY) & !SAVED_DIRTY
    }

    #[inline]
    fn make_dirty(raw: u64) -> u64 {
        if raw & DBM != 0 { raw & !READ_ONLY } else { raw | SAVED_DIRTY }
    }

    #[inline]
    fn no_hw_update_of_any(or: u64, and: u64) -> bool {
        (!B::HAF || and & ACCESS_FLAG != 0) && (!B::HD || or & DBM == 0 || or & READ_ONLY == 0)
    }

    #[inline]
    fn no_hw_update(raw: u64) -> bool {
        (!B::HAF || raw & ACCESS_FLAG != 0) && (!B::HD || raw & (DBM | READ_ONLY) != DBM | READ_ONLY)
    }
}

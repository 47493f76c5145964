//! RISC-V: Sv39, Sv48 and Sv57 (the privileged architecture, 12.4 to 12.6), with Svpbmt.
//!
//! | bits | meaning | | bits | meaning |
//! |---|---|---|---|---|
//! | 0 | valid | | 6 | accessed |
//! | 1 | readable: of every leaf | | 7 | dirty |
//! | 2 | writable | | 8 | software: special |
//! | 3 | executable | | 9 | software: exclusive |
//! | 4 | user | | 10..=53 | frame |
//! | 5 | global | | 61, 62 | memory type (Svpbmt) |
//!
//! An entry without R, W and X refers to a table. Bit 60, of which no valid entry may make use, says of one that is not valid
//! that it is a page which nobody may access. A page that is write-protected keeps its dirty bit: only W lets it be written.
//!
//! `menvcfg.PBMTE` must be set for other memory than write-back. There is no write-through.

use core::marker::PhantomData;

use super::swap_entry::Place;
use super::{Attributes, Format, Half, MemoryType};
use crate::address::{Frame, Level, TABLE_BITS};

const VALID: u64 = 1 << 0;
const READ: u64 = 1 << 1;
const WRITE: u64 = 1 << 2;
const EXECUTE: u64 = 1 << 3;
const USER: u64 = 1 << 4;
const GLOBAL: u64 = 1 << 5;
const ACCESSED: u64 = 1 << 6;
const DIRTY: u64 = 1 << 7;
const SPECIAL: u64 = 1 << 8;
const EXCLUSIVE: u64 = 1 << 9;
const FRAME_BIT: u32 = 10;
const FRAME: u64 = ((1 << 44) - 1) << FRAME_BIT;
const NO_ACCESS: u64 = 1 << 60;
const MEMORY: u32 = 61;

/// Bits 10..=52 hold the low 43 bits, 1..=5 the rest.
const SWAP_ENTRY: Place = Place { low: FRAME_BIT, bits: 43, ones: 1 << 53, high: 1 };

mod sealed {
    pub trait Levels: 'static {
        const NAME: &'static str;
        const ROOT: crate::Level;
        const VA_BITS: u32;
    }
    pub trait Bits: 'static {
        const HARDWARE: bool;
    }
}

/// How many levels.
pub trait RiscVLevels: sealed::Levels {}
impl<T: sealed::Levels> RiscVLevels for T {}

/// Who sets the accessed and the dirty bit.
pub trait RiscVBits: sealed::Bits {}
impl<T: sealed::Bits> RiscVBits for T {}

macro_rules! levels {
    ($($(#[$doc:meta])* $name:ident: $root:expr, $va:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub enum $name {}
        impl sealed::Levels for $name {
            const NAME: &'static str = concat!("RISC-V ", stringify!($name));
            const ROOT: Level = $root;
            const VA_BITS: u32 = $va;
        }
    )*};
}

levels! {
    /// Three levels: addresses of 39 bits, sign-extended.
    Sv39: Level::Pud, 39;
    /// Four levels: addresses of 48 bits, sign-extended.
    Sv48: Level::P4d, 48;
    /// Five levels: addresses of 57 bits, sign-extended.
    Sv57: Level::Pgd, 57;
}

/// Hardware sets both (Svadu with `menvcfg.ADUE`).
#[derive(Clone, Copy, Debug)]
pub enum Svadu {}
/// The first access and the first write fault (Svade).
#[derive(Clone, Copy, Debug)]
pub enum Svade {}

impl sealed::Bits for Svadu {
    const HARDWARE: bool = true;
}
impl sealed::Bits for Svade {
    const HARDWARE: bool = false;
}

/// RISC-V with so many levels.
#[derive(Clone, Copy, Debug)]
pub struct RiscV<L: RiscVLevels, B: RiscVBits = Svadu>(PhantomData<fn() -> (L, B)>);

// SAFETY: the frame stands at bits 10..=53, so frames are added to linearly; hardware sets only A, and D if the entry is
// writable; tables are the valid entries above the PTE level without R, W and X.
unsafe impl<L: RiscVLevels, B: RiscVBits> Format for RiscV<L, B> {
    const NAME: &'static str = L::NAME;
    const ROOT: Level = L::ROOT;
    const LARGEST_LEAF: Level = Level::Pud;
    const GRANULE: u32 = 0;
    const TABLE_BITS: u32 = TABLE_BITS;
    const VA_BITS: u32 = L::VA_BITS;
    const HALF: Half = Half::Both;
    const CONTIGUOUS: usize = 1;
    const CONTIGUOUS_PMD: usize = 1;
    const FRAME_BIT: u32 = FRAME_BIT;
    const FRAME_LIMIT: u64 = 1 << 44;
    const VALID: u64 = VALID;
    const PRESENT: u64 = VALID | NO_ACCESS;
    const YOUNG: u64 = ACCESSED;
    const STATE: u64 = ACCESSED | DIRTY;
    const CONT: u64 = 0;
    const EXCLUSIVE: u64 = EXCLUSIVE;
    const SPECIAL: u64 = SPECIAL;
    const HARDWARE_YOUNG: bool = B::HARDWARE;
    const HARDWARE_DIRTY: bool = B::HARDWARE;
    const SWAP_ENTRY_BITS: u32 = 48;

    #[inline]
    fn supports(_: Level, memory: MemoryType) -> bool {
        memory != MemoryType::WriteThrough
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
        (frame.0 << FRAME_BIT) & FRAME | VALID
    }

    #[inline]
    fn is_table(level: Level, raw: u64) -> bool {
        level != Level::Pte && raw & (VALID | READ | WRITE | EXECUTE) == VALID
    }

    #[inline]
    fn table_frame(raw: u64) -> Frame {
        Self::frame(raw)
    }

    fn leaf(_: Level, frame: Frame, a: Attributes) -> u64 {
        let mut raw = (frame.0 << FRAME_BIT) & FRAME | READ;
        raw |= if a.no_access { NO_ACCESS } else { VALID };
        raw |= match a.memory {
            MemoryType::WriteBack | MemoryType::WriteThrough => 0,
            MemoryType::WriteCombining => 1,
            MemoryType::Device => 2,
        } << MEMORY;
        let mut set = |on: bool, bits: u64| raw |= if on { bits } else { 0 };
        set(a.user, USER);
        set(a.write, WRITE);
        set(a.execute, EXECUTE);
        set(a.global, GLOBAL);
        set(a.young, ACCESSED);
        set(a.dirty, DIRTY);
        set(a.exclusive, EXCLUSIVE);
        set(a.special, SPECIAL);
        raw
    }

    #[inline]
    fn frame(raw: u64) -> Frame {
        Frame((raw & FRAME) >> FRAME_BIT)
    }

    #[inline]
    fn attributes(raw: u64) -> Attributes {
        Attributes {
            user: raw & USER != 0,
            no_access: raw & VALID == 0,
            write: raw & WRITE != 0,
            execute: raw & EXECUTE != 0,
            global: raw & GLOBAL != 0,
            memory: match raw >> MEMORY & 3 {
                0 => MemoryType::WriteBack,
                1 => MemoryType::WriteCombining,
                _ => MemoryType::Device,
            },
            young: raw & ACCESSED != 0,
            dirty: raw & DIRTY != 0,
            exclusive: raw & EXCLUSIVE != 0,
            special: raw & SPECIAL != 0,
        }
    }

    #[inline]
    fn at_level(raw: u64, _: Level) -> u64 {
        raw
    }

    #[inline]
    fn is_writable(raw: u64) -> bool {
        raw & WRITE != 0
    }

    #[inline]
    fn is_dirty(raw: u64) -> bool {
        raw & DIRTY != 0
    }

    #[inline]
    fn any_dirty(or: u64, _and: u64) -> bool {
        or & DIRTY != 0
    }

    #[inline]
    fn write_protect(raw: u64) -> u64 {
        raw & !WRITE
    }

    #[inline]
    fn make_writable(raw: u64) -> u64 {
        raw | WRITE
    }

    #[inline]
    fn make_clean(raw: u64) -> u64 {
        raw & !DIRTY
    }

    #[inline]
    fn make_dirty(raw: u64) -> u64 {
        raw | DIRTY
    }

    #[inline]
    fn no_hw_update_of_any(or: u64, and: u64) -> bool {
        !B::HARDWARE || and & ACCESSED != 0 && (or & WRITE == 0 || and & DIRTY != 0)
    }

    #[inline]
    fn no_hw_update(raw: u64) -> bool {
        !B::HARDWARE || raw & ACCESSED != 0 && raw & (WRITE | DIRTY) != WRITE
    }
}

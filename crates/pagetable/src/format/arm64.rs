//! arm64, stage 1, 4 KiB granule, 48-bit addresses translated through TTBR0 (Arm ARM, D8.3).
//!
//! | bits | meaning | | bits | meaning |
//! |---|---|---|---|---|
//! | 0 | valid | | 51 | DBM: may be written |
//! | 1 | table, or leaf at the PTE level | | 52 | contiguous |
//! | 2..=4 | memory attribute index | | 53 | not executable by the kernel |
//! | 6 | user | | 54 | not executable by user programs |
//! | 7 | read-only | | 55 | software: dirty although read-only |
//! | 8, 9 | inner shareable | | 56 | software: special |
//! | 10 | access flag | | 57 | software: exclusive |
//! | 11 | not global | | 12..=47 | frame |
//!
//! Dirty state is where the hardware that has it keeps it: an entry that may be written (DBM) is dirty if bit 7 is
//! clear, which hardware does on the first write, and software in its place where hardware cannot. A page that is
//! write-protected keeps its dirtiness in bit 55.
//!
//! `MAIR_EL1` must hold: attribute 0 = 0xff (write-back), 1 = 0xbb (write-through), 2 = 0x04 (Device-nGnRE).
//! 52-bit physical addresses (LPA2) are not encoded: [`Format::FRAME_LIMIT`].

use super::{Attributes, Format, MemoryType};
use crate::address::{Frame, Level};

const VALID: u64 = 1 << 0;
const TABLE: u64 = 1 << 1;
const ATTRIBUTE: u32 = 2;
const USER: u64 = 1 << 6;
const READ_ONLY: u64 = 1 << 7;
const INNER_SHAREABLE: u64 = 3 << 8;
const ACCESS_FLAG: u64 = 1 << 10;
const NOT_GLOBAL: u64 = 1 << 11;
const FRAME: u64 = ((1 << 48) - 1) & !0xfff;
const DBM: u64 = 1 << 51;
const CONT: u64 = 1 << 52;
const PXN: u64 = 1 << 53;
const UXN: u64 = 1 << 54;
const SAVED_DIRTY: u64 = 1 << 55;
const SPECIAL: u64 = 1 << 56;
const EXCLUSIVE: u64 = 1 << 57;

/// arm64 with or without hardware management of the access flag (`HAF`) and of the dirty state (`HD`).
#[derive(Clone, Copy, Debug)]
pub struct Arm64<const HAF: bool, const HD: bool>;

/// Hardware sets access flag and dirty state (FEAT_HAFDBS with `TCR_EL1.HA` and `HD`).
pub type Arm64Hafdbs = Arm64<true, true>;
/// Hardware sets the access flag, the first write faults (`TCR_EL1.HA` alone).
pub type Arm64Haf = Arm64<true, false>;
/// Both are software's: the first access and the first write fault.
pub type Arm64Software = Arm64<false, false>;

// SAFETY: the frame stands at bits 12..=47, so frames are added to linearly; hardware sets the access flag if it manages
// it, and clears bit 7 if it manages dirty state and DBM is set; tables are the entries above the PTE level with bit 1.
unsafe impl<const HAF: bool, const HD: bool> Format for Arm64<HAF, HD> {
    const NAME: &'static str = match (HAF, HD) {
        (true, true) => "arm64, hardware A and D",
        (true, false) => "arm64, hardware A",
        (false, true) => "arm64, hardware D",
        (false, false) => "arm64, software A and D",
    };
    const ROOT: Level = Level::P4d;
    const LARGEST_LEAF: Level = Level::Pud;
    const CONTIGUOUS: usize = 16;
    const FRAME_LIMIT: u64 = 1 << 36;
    const PRESENT: u64 = VALID;
    const YOUNG: u64 = ACCESS_FLAG;
    const STATE: u64 = ACCESS_FLAG | READ_ONLY | SAVED_DIRTY;
    const CONT: u64 = CONT;
    const EXCLUSIVE: u64 = EXCLUSIVE;
    const SPECIAL: u64 = SPECIAL;
    const HARDWARE_YOUNG: bool = HAF;
    const HARDWARE_DIRTY: bool = HD;

    fn translates(_first: u64, end: u64) -> bool {
        end <= 1 << (48 - 12)
    }

    #[inline]
    fn table(frame: Frame) -> u64 {
        frame.address() & FRAME | VALID | TABLE
    }

    #[inline]
    fn is_table(level: Level, raw: u64) -> bool {
        level != Level::Pte && raw & TABLE != 0
    }

    #[inline]
    fn table_frame(raw: u64) -> Frame {
        Frame((raw & FRAME) >> 12)
    }

    fn leaf(level: Level, frame: Frame, a: Attributes) -> u64 {
        let mut raw = frame.address() & FRAME | VALID | INNER_SHAREABLE;
        raw |= match a.memory {
            MemoryType::WriteBack => 0,
            MemoryType::WriteThrough => 1,
            MemoryType::Device => 2,
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
        Frame((raw & FRAME) >> 12)
    }

    #[inline]
    fn attributes(raw: u64) -> Attributes {
        let user = raw & USER != 0;
        Attributes {
            user,
            write: raw & DBM != 0,
            execute: raw & (if user { UXN } else { PXN }) == 0,
            global: raw & NOT_GLOBAL == 0,
            memory: match raw >> ATTRIBUTE & 7 {
                0 => MemoryType::WriteBack,
                1 => MemoryType::WriteThrough,
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
    fn all_settled(or: u64, and: u64) -> bool {
        (!HAF || and & ACCESS_FLAG != 0) && (!HD || or & DBM == 0 || or & READ_ONLY == 0)
    }

    #[inline]
    fn settled(raw: u64) -> bool {
        (!HAF || raw & ACCESS_FLAG != 0) && (!HD || raw & (DBM | READ_ONLY) != DBM | READ_ONLY)
    }
}

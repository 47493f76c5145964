//! x86-64, 4 and 5 levels (Intel SDM volume 3, chapter 4; AMD APM volume 2, chapter 5).
//!
//! | bits | meaning | | bits | meaning |
//! |---|---|---|---|---|
//! | 0 | present | | 8 | global |
//! | 1 | writable | | 9 | software: special |
//! | 2 | user | | 10 | software: exclusive |
//! | 3, 4 | write-through, cache disable | | 12..=51 | frame |
//! | 5 | accessed | | 58 | software: dirty although read-only |
//! | 6 | dirty | | 63 | no execute |
//! | 7 | leaf, above the PTE level | | 11 | software: nobody may access it (not present) |
//!
//! A read-only entry with the dirty bit would be a page of a shadow stack once CET is on. So a dirty page that is
//! write-protected keeps that in bit 58 instead, and the two bits are never both set.
//!
//! `IA32_PAT` must hold [`X86_64_PAT`]: 0 = WB, 1 = WC, 3 = UC, 6 = WT. Write-through needs the PAT bit, and is for PTEs only. A
//! kernel that leaves the register as it is after reset gets write-through for write-combining, and UC- for write-through.
//!
//! CPUs with L1TF read ahead through the address of an entry that is not present. So of a page that nobody may access the
//! frame stands inverted there, as in Linux, and a swap entry as [`Place`] says.

use super::swap_entry::Place;
use super::{Attributes, Format, Half, MemoryType};
use crate::address::{Frame, Level, PAGE_SHIFT, TABLE_BITS};

const PRESENT: u64 = 1 << 0;
const WRITE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
const WRITE_THROUGH: u64 = 1 << 3;
const CACHE_DISABLE: u64 = 1 << 4;
const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
const LARGE: u64 = 1 << 7;
/// The same bit of a PTE.
const PAT: u64 = 1 << 7;
const GLOBAL: u64 = 1 << 8;
const SPECIAL: u64 = 1 << 9;
const EXCLUSIVE: u64 = 1 << 10;
const NO_ACCESS: u64 = 1 << 11;
const FRAME: u64 = ((1 << 52) - 1) & !0xfff;
const SAVED_DIRTY: u64 = 1 << 58;
const NO_EXECUTE: u64 = 1 << 63;
/// How far the dirty bit moves when it is saved.
const SAVE: u32 = 52;

const _: () = assert!(DIRTY << SAVE == SAVED_DIRTY);

/// Bits 12..=50 hold the low 39 bits, 53..=61 the rest.
const SWAP_ENTRY: Place = Place { low: 12, bits: 39, ones: 1 << 51, high: 53 };

/// The bits that the frame is inverted by: all, if hardware does not follow the entry.
#[inline(always)]
fn inversion(raw: u64) -> u64 {
    (raw & PRESENT).wrapping_sub(1)
}

/// What `IA32_PAT` must hold for the memory types of these formats; as Linux has it but for entries that are not used.
pub const X86_64_PAT: u64 = 0x0004_0106_0007_0106;

/// x86-64 with 4 levels: 48-bit addresses, sign-extended.
#[derive(Clone, Copy, Debug)]
pub struct X86_64;

/// x86-64 with 5 levels (LA57): 57-bit addresses, sign-extended.
#[derive(Clone, Copy, Debug)]
pub struct X86_64La57;

macro_rules! x86_64 {
    ($name:ty, $text:literal, $root:expr) => {
        // SAFETY: the frame stands at bits 12..=51, so frames are added to linearly; hardware sets only A, and D if the
        // entry is writable; tables are the entries above the PTE level without the leaf bit.
        unsafe impl Format for $name {
            const NAME: &'static str = $text;
            const ROOT: Level = $root;
            const LARGEST_LEAF: Level = Level::Pud;
            const GRANULE: u32 = 0;
            const TABLE_BITS: u32 = TABLE_BITS;
            const VA_BITS: u32 = PAGE_SHIFT + ($root as u32 + 1) * TABLE_BITS;
            const HALF: Half = Half::Both;
            const CONTIGUOUS: usize = 1;
            const CONTIGUOUS_PMD: usize = 1;
            const FRAME_BIT: u32 = 12;
            const FRAME_LIMIT: u64 = 1 << 40;
            const VALID: u64 = PRESENT;
            const PRESENT: u64 = PRESENT | NO_ACCESS;
            const YOUNG: u64 = ACCESSED;
            const STATE: u64 = ACCESSED | DIRTY | SAVED_DIRTY;
            const CONT: u64 = 0;
            const EXCLUSIVE: u64 = EXCLUSIVE;
            const SPECIAL: u64 = SPECIAL;
            const HARDWARE_YOUNG: bool = true;
            const HARDWARE_DIRTY: bool = true;
            const SWAP_ENTRY_BITS: u32 = 48;

            #[inline(always)]
            fn step(raw: u64, level: Level) -> u64 {
                let inversion = inversion(raw);
                // Inverted, the frame counts down.
                ((Self::pages(level) << 12) ^ inversion).wrapping_sub(inversion)
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
            fn supports(level: Level, memory: MemoryType) -> bool {
                // Of a large leaf the PAT bit is one of the address.
                level == Level::Pte || memory != MemoryType::WriteThrough
            }

            #[inline]
            fn table(frame: Frame) -> u64 {
                // Permissions are ANDed on the way down: the leaves alone decide.
                frame.address() & FRAME | PRESENT | WRITE | USER | ACCESSED
            }

            #[inline]
            fn is_table(level: Level, raw: u64) -> bool {
                level != Level::Pte && raw & LARGE == 0
            }

            #[inline]
            fn table_frame(raw: u64) -> Frame {
                Frame((raw & FRAME) >> 12)
            }

            fn leaf(level: Level, frame: Frame, a: Attributes) -> u64 {
                let mut raw = if a.no_access { NO_ACCESS } else { PRESENT };
                raw |= (frame.address() ^ inversion(raw)) & FRAME;
                let mut set = |on: bool, bits: u64| raw |= if on { bits } else { 0 };
                set(level != Level::Pte, LARGE);
                set(a.user, USER);
                set(a.write, WRITE);
                set(!a.execute, NO_EXECUTE);
                set(a.global, GLOBAL);
                set(matches!(a.memory, MemoryType::WriteCombining | MemoryType::Device), WRITE_THROUGH);
                set(matches!(a.memory, MemoryType::WriteThrough | MemoryType::Device), CACHE_DISABLE);
                set(a.memory == MemoryType::WriteThrough, PAT);
                set(a.young, ACCESSED);
                set(a.dirty, if a.write { DIRTY } else { SAVED_DIRTY });
                set(a.exclusive, EXCLUSIVE);
                set(a.special, SPECIAL);
                raw
            }

            #[inline]
            fn frame(raw: u64) -> Frame {
                Frame(((raw ^ inversion(raw)) & FRAME) >> 12)
            }

            #[inline]
            fn attributes(raw: u64) -> Attributes {
                Attributes {
                    user: raw & USER != 0,
                    no_access: raw & PRESENT == 0,
                    write: raw & WRITE != 0,
                    execute: raw & NO_EXECUTE == 0,
                    global: raw & GLOBAL != 0,
                    memory: match (raw & CACHE_DISABLE != 0, raw & WRITE_THROUGH != 0) {
                        (true, true) => MemoryType::Device,
                        (true, false) => MemoryType::WriteThrough,
                        (false, true) => MemoryType::WriteCombining,
                        (false, false) => MemoryType::WriteBack,
                    },
                    young: raw & ACCESSED != 0,
                    dirty: Self::is_dirty(raw),
                    exclusive: raw & EXCLUSIVE != 0,
                    special: raw & SPECIAL != 0,
                }
            }

            #[inline]
            fn at_level(raw: u64, level: Level) -> u64 {
                if level == Level::Pte { raw & !LARGE } else { raw | LARGE }
            }

            #[inline]
            fn is_writable(raw: u64) -> bool {
                raw & WRITE != 0
            }

            #[inline]
            fn is_dirty(raw: u64) -> bool {
                raw & (DIRTY | SAVED_DIRTY) != 0
            }

            #[inline]
            fn any_dirty(or: u64, _and: u64) -> bool {
                Self::is_dirty(or)
            }

            #[inline]
            fn write_protect(raw: u64) -> u64 {
                (raw & !(WRITE | DIRTY)) | (raw & DIRTY) << SAVE
            }

            #[inline]
            fn make_writable(raw: u64) -> u64 {
                (raw & !SAVED_DIRTY) | WRITE | (raw & SAVED_DIRTY) >> SAVE
            }

            #[inline]
            fn make_clean(raw: u64) -> u64 {
                raw & !(DIRTY | SAVED_DIRTY)
            }

            #[inline]
            fn make_dirty(raw: u64) -> u64 {
                if raw & WRITE != 0 { raw | DIRTY } else { raw | SAVED_DIRTY }
            }

            #[inline]
            fn no_hw_update_of_any(or: u64, and: u64) -> bool {
                and & ACCESSED != 0 && (or & WRITE == 0 || and & DIRTY != 0)
            }

            #[inline]
            fn no_hw_update(raw: u64) -> bool {
                raw & ACCESSED != 0 && raw & (WRITE | DIRTY) != WRITE
            }
        }
    };
}

x86_64!(X86_64, "x86-64, 4 levels", Level::P4d);
x86_64!(X86_64La57, "x86-64, 5 levels", Level::Pgd);

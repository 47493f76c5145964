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
//! | 7 | leaf, above the PTE level | | | |
//!
//! A read-only entry with the dirty bit would be a page of a shadow stack once CET is on. So a dirty page that is
//! write-protected keeps that in bit 58 instead, and the two bits are never both set. The PAT bit stays clear: the
//! caching types are those that the two other bits select from the PAT as it is after reset.

use super::{Attributes, Format, MemoryType};
use crate::address::{Frame, Level};

const PRESENT: u64 = 1 << 0;
const WRITE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
const WRITE_THROUGH: u64 = 1 << 3;
const CACHE_DISABLE: u64 = 1 << 4;
const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
const LARGE: u64 = 1 << 7;
const GLOBAL: u64 = 1 << 8;
const SPECIAL: u64 = 1 << 9;
const EXCLUSIVE: u64 = 1 << 10;
const FRAME: u64 = ((1 << 52) - 1) & !0xfff;
const SAVED_DIRTY: u64 = 1 << 58;
const NO_EXECUTE: u64 = 1 << 63;
/// How far the dirty bit moves when it is saved.
const SAVE: u32 = 52;

const _: () = assert!(DIRTY << SAVE == SAVED_DIRTY);

/// x86-64 with 4 levels: 48-bit addresses, sign-extended.
#[derive(Clone, Copy, Debug)]
pub struct X86_64;

/// x86-64 with 5 levels (LA57): 57-bit addresses, sign-extended.
#[derive(Clone, Copy, Debug)]
pub struct X86_64La57;

/// Whether the page numbers are all in the lower or all in the upper half of `bits`-bit addresses.
fn canonical(bits: u32, first: u64, end: u64) -> bool {
    let half = 1u64 << (bits - 1 - 12);
    let all = 1u64 << (64 - 12);
    end <= half || (first >= all - half && end <= all)
}

macro_rules! x86_64 {
    ($name:ty, $text:literal, $root:expr, $bits:literal) => {
        // SAFETY: the frame stands at bits 12..=51, so frames are added to linearly; hardware sets only A, and D if the
        // entry is writable; tables are the entries above the PTE level without the leaf bit.
        unsafe impl Format for $name {
            const NAME: &'static str = $text;
            const ROOT: Level = $root;
            const LARGEST_LEAF: Level = Level::Pud;
            const CONTIGUOUS: usize = 1;
            const FRAME_LIMIT: u64 = 1 << 40;
            const PRESENT: u64 = PRESENT;
            const YOUNG: u64 = ACCESSED;
            const STATE: u64 = ACCESSED | DIRTY | SAVED_DIRTY;
            const CONT: u64 = 0;
            const EXCLUSIVE: u64 = EXCLUSIVE;
            const SPECIAL: u64 = SPECIAL;
            const HARDWARE_YOUNG: bool = true;
            const HARDWARE_DIRTY: bool = true;

            fn translates(first: u64, end: u64) -> bool {
                canonical($bits, first, end)
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
                let mut raw = frame.address() & FRAME | PRESENT;
                let mut set = |on: bool, bits: u64| raw |= if on { bits } else { 0 };
                set(level != Level::Pte, LARGE);
                set(a.user, USER);
                set(a.write, WRITE);
                set(!a.execute, NO_EXECUTE);
                set(a.global, GLOBAL);
                set(a.memory != MemoryType::WriteBack, WRITE_THROUGH);
                set(a.memory == MemoryType::Device, CACHE_DISABLE);
                set(a.young, ACCESSED);
                set(a.dirty, if a.write { DIRTY } else { SAVED_DIRTY });
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
                Attributes {
                    user: raw & USER != 0,
                    write: raw & WRITE != 0,
                    execute: raw & NO_EXECUTE == 0,
                    global: raw & GLOBAL != 0,
                    memory: match (raw & CACHE_DISABLE != 0, raw & WRITE_THROUGH != 0) {
                        (true, _) => MemoryType::Device,
                        (false, true) => MemoryType::WriteThrough,
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
            fn all_settled(or: u64, and: u64) -> bool {
                and & ACCESSED != 0 && (or & WRITE == 0 || and & DIRTY != 0)
            }

            #[inline]
            fn settled(raw: u64) -> bool {
                raw & ACCESSED != 0 && raw & (WRITE | DIRTY) != WRITE
            }
        }
    };
}

x86_64!(X86_64, "x86-64, 4 levels", Level::P4d, 48);
x86_64!(X86_64La57, "x86-64, 5 levels", Level::Pgd, 57);

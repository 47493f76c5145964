//! The identity map: every byte of RAM at its own address, but nothing at address 0 and below the stacks, and no
//! writing to code.

use super::boot::{self, PD, PDPT, PT, Table};
use core::sync::atomic::Ordering;
use isotherm_guest::ram::{RamMap, Range};
use x86_64::instructions::tlb;

const PRESENT: u64 = 1;
const WRITABLE: u64 = 1 << 1;
const WRITE_THROUGH: u64 = 1 << 3;
const UNCACHED: u64 = 1 << 4;
const LEAF: u64 = 1 << 7;
const HUGE: u64 = 2 << 20;
const GIANT: u64 = 1 << 30;
/// The first address that is not mapped from the start.
pub const MAPPED: u64 = 4 << 30;
/// Bytes that one PDPT covers, and so the most this program maps.
pub const REACH: u64 = 512 * GIANT;

/// Bytes of tables that RAM above 4 GiB needs on this processor: none where it has 1 GiB pages.
pub fn tables_needed(ram: &RamMap) -> u64 {
    if has_giant_pages() { 0 } else { ram.end().min(REACH).saturating_sub(4 * GIANT).div_ceil(GIANT) * 4096 }
}

fn has_giant_pages() -> bool {
    let highest = core::arch::x86_64::__cpuid(0x8000_0000).eax;
    highest >= 0x8000_0001 && core::arch::x86_64::__cpuid(0x8000_0001).edx & (1 << 26) != 0
}

fn set(table: &Table, index: u64, entry: u64) {
    table.0[index as usize].store(entry, Ordering::Relaxed);
}

/// Completes what `boot.s` began: device memory is not cached, mistakes fault, RAM above 4 GiB is there.
///
/// `tables`: zeroed RAM below 4 GiB, of [`tables_needed`] bytes, page aligned, that nobody else uses ever after.
pub fn complete(ram: &RamMap, tables: Range) {
    for page in 0..4 * GIANT / HUGE {
        let range = Range { start: page * HUGE, end: (page + 1) * HUGE };
        if !ram.usable().any(|usable| usable.overlaps(range)) && page >= 2 {
            let leaf = range.start | LEAF | PRESENT | WRITABLE | UNCACHED | WRITE_THROUGH;
            set(&PD[(page / 512) as usize], page % 512, leaf);
        }
    }
    let constant = &raw const boot::image_start as u64..&raw const boot::data_start as u64;
    for (index, table) in (0..).zip(&PT) {
        for page in 0..512 {
            let address = index * HUGE + page * 4096;
            let access = match address {
                0 => 0,
                address if constant.contains(&address) => PRESENT,
                address if boot::stack_guards().any(|guard| guard == address) => 0,
                _ => PRESENT | WRITABLE,
            };
            set(table, page, address | access);
        }
        set(&PD[0], index, table as *const Table as u64 | PRESENT | WRITABLE);
    }

    let giant = has_giant_pages();
    let mut free = tables.start;
    for gib in 4..ram.end().min(REACH).div_ceil(GIANT) {
        if giant {
            set(&PDPT, gib, (gib * GIANT) | LEAF | PRESENT | WRITABLE);
            continue;
        }
        // SAFETY: the caller gave these pages, zeroed and mapped, for tables only; each is taken once. `tables_needed`
        // counted one for every round of this loop.
        let table = unsafe { &*(free as *const Table) };
        for page in 0..512 {
            set(table, page, (gib * GIANT + page * HUGE) | LEAF | PRESENT | WRITABLE);
        }
        set(&PDPT, gib, free | PRESENT | WRITABLE);
        free += 4096;
    }
    tlb::flush_all();
}

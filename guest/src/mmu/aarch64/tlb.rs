//! Translations: which processor has which tables loaded, and how all TLBs are flushed.
//!
//! TLBI tells the other processors by itself (the inner shareable forms), and DSB waits until each has done it: nobody is
//! interrupted. Every space has ASID 0, and loading one drops all translations; so a change is made known for all spaces at
//! an address. No entry under test is global.

use crate::boot::MAX_CPUS;
use crate::mmu::figures::{Figure, count};
use crate::mmu::hardware::Hardware;
use crate::mmu::lapse::{self, Lapse};
use crate::processor;
use core::arch::asm;
use core::sync::atomic::{AtomicU64, Ordering, fence};
use isotherm_pagetable::{Flush, SpaceId, Tlb};

/// Above so many pages all of the TLB goes.
const MOST_SINGLE: u64 = 32;

/// For each processor the address of the root under test that it has loaded, 0 for none.
static LOADED: [AtomicU64; MAX_CPUS] = [const { AtomicU64::new(0) }; MAX_CPUS];

/// The address of the root that this processor has loaded.
pub fn root() -> u64 {
    let root: u64;
    // SAFETY: reading it has no effect.
    unsafe { asm!("mrs {}, ttbr0_el1", out(reg) root, options(nomem, nostack, preserves_flags)) };
    root
}

/// # Safety
/// `root` is a root table that maps this program as before.
unsafe fn set_root(root: u64) {
    // SAFETY: the caller's duty.
    unsafe {
        // What was written to the tables is seen by walks.
        asm!("dsb ishst", "msr ttbr0_el1, {}", "isb", "tlbi vmalle1", "dsb nsh", "isb", in(reg) root, options(nostack, preserves_flags));
    }
}

/// Loads the space of the table at `root` on this processor.
///
/// # Safety
/// `root` is a root table that maps this program as `kernel`, the identity map's root, does, as long as it is loaded.
pub unsafe fn load(kernel: u64, root: u64, _context: u16) {
    unload(kernel);
    LOADED[processor::current()].store(root, Ordering::SeqCst);
    fence(Ordering::SeqCst);
    // SAFETY: the caller's duty.
    unsafe { set_root(root) };
}

/// Loads the identity map alone.
pub fn unload(kernel: u64) {
    // SAFETY: the identity map is what this program was started with.
    unsafe { set_root(kernel) };
    LOADED[processor::current()].store(0, Ordering::SeqCst);
}

/// Whether this processor has the space loaded.
pub fn is_loaded(root: u64) -> bool {
    LOADED[processor::current()].load(Ordering::Relaxed) == root
}

/// Whether any processor has.
pub fn is_loaded_anywhere(root: u64) -> bool {
    LOADED.iter().any(|loaded| loaded.load(Ordering::SeqCst) == root)
}

/// Does what other processors wait for: nothing, hardware does.
pub fn answer() {}

/// Waits until `done`.
pub fn wait_until(mut done: impl FnMut() -> bool) {
    while !done() {
        core::hint::spin_loop();
    }
}

fn invalidate(root: u64, first: u64, end: u64, stride: u64) {
    if lapse::is(Lapse::Flush) {
        return;
    }
    let me = processor::current();
    let others =
        LOADED.iter().enumerate().any(|(cpu, loaded)| cpu != me && loaded.load(Ordering::SeqCst) == root);
    count(Figure::Shootdowns, u64::from(others));
    let alone = lapse::is(Lapse::Shootdown);
    // SAFETY: forgetting translations is always allowed. Entries that were changed are seen by walks before it.
    unsafe { asm!("dsb ishst", options(nostack, preserves_flags)) };
    if (end - first) / stride > MOST_SINGLE {
        // SAFETY: as above.
        unsafe {
            if alone {
                asm!("tlbi vmalle1", options(nostack, preserves_flags));
            } else {
                asm!("tlbi vmalle1is", options(nostack, preserves_flags));
            }
        }
        return;
    }
    for page in (first..end).step_by(stride as usize) {
        // The address from bit 12 on, for all ASIDs; entries of upper tables go with it.
        let page = page & ((1 << 44) - 1);
        // SAFETY: as above.
        unsafe {
            if alone {
                asm!("tlbi vaae1, {}", in(reg) page, options(nostack, preserves_flags));
            } else {
                asm!("tlbi vaae1is, {}", in(reg) page, options(nostack, preserves_flags));
            }
        }
    }
}

// SAFETY: see the essay above.
unsafe impl Tlb for Hardware {
    type Context = u16;

    fn invalidate_page(&self, space: SpaceId, page: u64) {
        invalidate(space.root.address(), page, page + 1, 1);
    }

    fn invalidate_range(&self, space: SpaceId, flush: Flush) {
        let first = flush.range.start().page();
        invalidate(space.root.address(), first, first + flush.range.pages(), flush.stride);
    }

    fn invalidate_space(&self, space: SpaceId) {
        invalidate(space.root.address(), 0, u64::MAX, 1);
    }

    fn permitted(&self, _space: SpaceId, page: u64) {
        if lapse::is(Lapse::Flush) {
            return;
        }
        let page = page & ((1 << 44) - 1);
        // On this processor alone: others fault in their turn, if they have to.
        // SAFETY: forgetting a translation is always allowed.
        unsafe {
            asm!("dsb nshst", "tlbi vaae1, {}", "dsb nsh", "isb", in(reg) page, options(nostack, preserves_flags));
        }
    }

    fn sync(&self) {
        // SAFETY: barriers.
        unsafe { asm!("dsb ish", "isb", options(nostack, preserves_flags)) };
    }
}

//! Holding interrupts back, and sleeping until one comes.

use core::arch::asm;

/// Takes interrupts from here on.
pub fn enable() {
    // SAFETY: the vectors are there since `boot.s`.
    unsafe { asm!("msr daifclr, #2", options(nostack)) };
}

/// Holds them back.
pub fn disable() {
    // SAFETY: changes nothing but that.
    unsafe { asm!("msr daifset, #2", options(nostack)) };
}

/// Sleeps until there is one, held back or not, and takes it.
pub fn enable_and_hlt() {
    // SAFETY: WFI ends when an interrupt is pending, also if it is masked.
    unsafe { asm!("dsb sy", "wfi", "msr daifclr, #2", "isb", options(nostack)) };
}

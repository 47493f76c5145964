//! Which processor this is: a register that software has to itself.

use core::arch::asm;

/// Makes this processor number `cpu`. Before anything asks which it is.
pub fn set(cpu: usize) {
    // SAFETY: nothing else uses the register.
    unsafe { asm!("msr tpidr_el1, {}", in(reg) cpu, options(nomem, nostack, preserves_flags)) };
}

/// The number of this processor, below [`MAX_CPUS`](super::boot::MAX_CPUS).
pub fn current() -> usize {
    let number: usize;
    // SAFETY: reading it has no effect.
    unsafe { asm!("mrs {}, tpidr_el1", out(reg) number, options(nomem, nostack, preserves_flags)) };
    number
}

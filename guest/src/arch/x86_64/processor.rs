//! Which processor this is: a word that each finds at the base of its GS segment.

use super::boot::MAX_CPUS;
use x86_64::VirtAddr;
use x86_64::registers::model_specific::GsBase;

static NUMBERS: [usize; MAX_CPUS] = {
    let mut numbers = [0; MAX_CPUS];
    let mut cpu = 0;
    while cpu < MAX_CPUS {
        numbers[cpu] = cpu;
        cpu += 1;
    }
    numbers
};

/// Makes this processor number `cpu`. Before anything asks which it is.
pub fn set(cpu: usize) {
    GsBase::write(VirtAddr::new(&raw const NUMBERS[cpu] as u64));
}

/// The number of this processor, below [`MAX_CPUS`].
pub fn current() -> usize {
    let number: usize;
    // SAFETY: `set` made GS point to a number, on every processor before anything else.
    unsafe {
        core::arch::asm!("mov {}, gs:[0]", out(reg) number, options(nostack, preserves_flags, readonly))
    };
    number
}
